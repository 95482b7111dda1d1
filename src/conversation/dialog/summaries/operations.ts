import { itemOperation, type Operation } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { conversationKind } from '../messages/model.ts'
import { ConversationSummary } from './model.ts'
import { findSummary } from './store.ts'

export const summaryOperations: Operation[] = [
  itemOperation(conversationKind, {
    id: 'getConversationSummary',
    method: 'get',
    path: '/conversations/{conversation_id}/summary',
    summary: 'Get the summary of a conversation',
    description:
      'Returns the summary that turns of agents with a summarizing context policy read instead of older messages. Not found until it is written, and after a message that it covers was deleted or erased.',
    tag: 'Conversations',
    action: 'conversations:GetConversation',
    answers: { 200: ConversationSummary },
    run: async ({ resource, services }) =>
      (await findSummary(services.pool, resource.id)) ??
      raise('RESOURCE_NOT_FOUND', { message: `Conversation ${resource.id} has no summary`, meta: { id: resource.id } }),
  }),
]
