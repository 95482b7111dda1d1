import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { columnFilter, containsFilter, equalsFilter, oneOf, tagsFilter } from '../../core/api/filters.ts'
import { kinds } from '../../core/api/kind.ts'
import { enumListQuery, pageOf, textFilter } from '../../core/api/lists.ts'
import { ndjsonStream } from '../../core/api/ndjson.ts'
import { itemOperation, type Operation, result } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { spendRefusals } from '../../execution/generations/request/create.ts'
import { WaitQuery } from '../../execution/generations/request/respond.ts'
import { turnWaiting } from '../../execution/generations/streams/events.ts'
import { actorKind } from '../actors/model.ts'
import { generateAgain, generateInConversation } from '../turns/generate.ts'
import { sessionHooks } from '../turns/hooks.ts'
import { clearMailbox, conversationDeletedFailure, openSession } from '../turns/mailbox.ts'
import { AcceptedReply, conversationTurnEvents, TurnResult } from '../turns/result.ts'
import {
  CONVERSATION_STATUSES,
  ConversationInput,
  ConversationMessage,
  ConversationPatch,
  conversationKind,
  GenerateMessageInput,
  MESSAGE_ROLES,
  MessageInput,
  MessagePatch,
  type MessageRow,
} from './model.ts'
import {
  appendMessage,
  findMessage,
  findMessageByKey,
  listMessages as listRows,
  messageSource,
  messagesAfter,
  removeConversation,
  removeMessage,
  setMessageMetadata,
} from './store.ts'

const tag = 'Conversations'
const path = '/conversations/{conversation_id}'
const conversations = resource(conversationKind, { path: '/conversations', tag })

const deleteConversation = itemOperation(conversationKind, {
  id: 'deleteConversation',
  method: 'delete',
  path,
  summary: 'Delete a conversation with its messages, and the session it belongs to',
  description: 'Turns that run in it are cancelled. Cannot be undone.',
  tag,
  action: 'conversations:DeleteConversation',
  alsoActions: ['sessions:DeleteSession'],
  answers: { 204: null },
  async run({ resource, tx, services, allow }) {
    const stored = await conversationKind.lock(tx, resource.id)
    const session =
      stored.session_id === null ? null : ((await sessionHooks.only()?.load(tx, stored.session_id)) ?? null)
    if (session) allow('sessions:DeleteSession', { kind: kinds.get('session'), row: session.row })
    await clearMailbox(tx, services, stored, conversationDeletedFailure(stored.id))
    if (session) await sessionHooks.only()?.remove(tx, session.id)
    await removeConversation(tx, stored)
  },
})

const position = z
  .string()
  .regex(/^\d{1,9}$/, 'must be an integer of at least 0')
  .transform(Number)
  .optional()

const listMessages = itemOperation(conversationKind, {
  id: 'listConversationMessages',
  method: 'get',
  path: `${path}/messages`,
  summary: 'List the messages of a conversation in order',
  description: 'Oldest first, each with its text and the actor that said it.',
  tag,
  action: 'conversations:GetConversation',
  paged: true,
  query: z.object({
    role: enumListQuery(MESSAGE_ROLES).describe('One role or several, by repeating it'),
    actor_id: textFilter.describe('Exact match of `actor_id`'),
    after_position: position.describe('Only messages behind this position'),
    before_position: position.describe('Only messages before this position'),
  }),
  answers: { 200: pageOf(ConversationMessage) },
  run: context => listRows(context, context.resource.id, context.query),
})

const addMessage = itemOperation(conversationKind, {
  id: 'createConversationMessage',
  method: 'post',
  path: `${path}/messages`,
  summary: 'Add a message at the end or at a position',
  description: 'Stores the message and asks nobody for an answer.',
  tag,
  action: 'conversations:UpdateConversation',
  alsoActions: ['documents:GetDocument'],
  body: MessageInput,
  answers: { 201: ConversationMessage, 200: ConversationMessage },
  raises: ['SYSTEM_MESSAGE_NOT_ALLOWED', 'ACTOR_NOT_FOUND', 'NAME_CONFLICT', 'SESSION_CLOSED', 'SESSION_EXPIRED'],
  async run({ allow, body, resource, tx }) {
    if (body.role === 'system') raise('SYSTEM_MESSAGE_NOT_ALLOWED')
    // Before the conversation's lock: the delete of an actor goes the other way round.
    const unknown = body.actor_id != null && !(await actorKind.reference(tx, body.actor_id, resource.project_id))
    const owner = await conversationKind.lock(tx, resource.id)
    const session = await openSession(tx, owner)
    if (unknown) {
      // A repeat gets the first message whatever its body says.
      const first =
        body.idempotency_key === undefined ? null : await findMessageByKey(tx, owner.id, body.idempotency_key)
      if (first) return result(200, first)
      raise('ACTOR_NOT_FOUND', { meta: { id: body.actor_id } })
    }
    const { message, created } = await appendMessage(tx, owner, {
      ...messageSource(body, allow),
      role: body.role,
      actor_id: body.actor_id ?? null,
      metadata: body.metadata,
      position: body.position,
      idempotency_key: body.idempotency_key,
    })
    if (created && session) await sessionHooks.only()?.stored(tx, session.id, message)
    return result(created ? 201 : 200, message)
  },
})

const updateMessage = itemOperation(conversationKind, {
  id: 'updateConversationMessage',
  method: 'patch',
  path: `${path}/messages/{document_id}`,
  summary: "Change a message's metadata; its content never changes",
  description: 'Keys given are merged into what is there.',
  tag,
  action: 'conversations:UpdateConversation',
  body: MessagePatch,
  answers: { 200: ConversationMessage },
  raises: ['SESSION_CLOSED', 'SESSION_EXPIRED'],
  async run({ body, resource, params: { document_id: id }, tx }) {
    const owner = await conversationKind.lock(tx, resource.id)
    await openSession(tx, owner)
    const message = await (body.metadata === undefined
      ? findMessage(tx, owner.id, id)
      : setMessageMetadata(tx, owner.id, id, body.metadata))
    return message ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
  },
})

const deleteMessage = itemOperation(conversationKind, {
  id: 'deleteConversationMessage',
  method: 'delete',
  path: `${path}/messages/{document_id}`,
  summary: 'Delete a message; the others keep their positions',
  description: 'Turns that come after it no longer read it.',
  tag,
  action: 'conversations:UpdateConversation',
  answers: { 204: null },
  raises: ['SESSION_CLOSED', 'SESSION_EXPIRED'],
  async run({ resource, params: { document_id: id }, tx }) {
    const owner = await conversationKind.lock(tx, resource.id)
    await openSession(tx, owner)
    if (!(await removeMessage(tx, owner, id))) raise('RESOURCE_NOT_FOUND', { meta: { id } })
  },
})

/** A text may have 1 MiB, that of a named document more. */
const EXPORT_PAGE = 50

export const conversationOperations: Operation[] = [
  conversations.create({ body: ConversationInput, raises: ['ACTOR_NOT_FOUND'] }),
  // conversations_project serves the order; conversations_actor, conversations_tags and conversation_messages_actor filters.
  conversations.list({
    filters: {
      actor_id: columnFilter(
        textFilter.describe('Conversations with a message of the actor'),
        id => sql.fragment`exists (select 1 from conversation_messages m
          where m.actor_id = ${id} and m.conversation_id = t.id)`,
      ),
      owner_actor_id: equalsFilter('actor_id'),
      status: oneOf('status', CONVERSATION_STATUSES),
      name: containsFilter('name'),
      tags: tagsFilter,
    },
  }),
  conversations.get(),
  conversations.update({ body: ConversationPatch }),
  deleteConversation,
  ...conversations.tags(),
  listMessages,
  addMessage,
  updateMessage,
  deleteMessage,
  conversations.action('export', {
    method: 'get',
    summary: 'Export the messages in order, one JSON object a line',
    description: 'Oldest first; an answer that ends without a newline was broken off.',
    action: 'conversations:GetConversation',
    answers: { 200: ConversationMessage },
    produces: 'application/x-ndjson',
    internal: true,
    async run(context) {
      const { services, resource } = context
      return ndjsonStream<MessageRow>(context, {
        read: (last, limit) => messagesAfter(services.pool, resource.id, last?.position ?? -1, limit),
        pageSize: EXPORT_PAGE,
        present: message => message,
      })
    },
  }),
  conversations.action('generate', {
    id: 'generateConversationMessage',
    starts: { kind: 'generation', field: 'generation_id' },
    summary: 'Ask an agent or a chat for the next message: in the background, waited for, or streamed',
    description:
      'An actor that is linked to a chat answers with one completion: it has no generation, and its text comes in one piece.',
    action: 'conversations:GenerateConversationMessage',
    query: WaitQuery,
    body: GenerateMessageInput,
    answers: { 202: AcceptedReply, 200: TurnResult },
    stream: conversationTurnEvents,
    waiting: turnWaiting(false),
    transaction: false,
    raises: [
      'AGENT_NOT_FOUND',
      'ACTOR_NOT_FOUND',
      'CHAT_NOT_FOUND',
      'INVALID_TOOL_CONTEXT_KEY',
      'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
      'PROJECT_PAUSED',
      'SESSION_CLOSED',
      'SESSION_EXPIRED',
      'GENERATION_ALREADY_IN_PROGRESS',
      'AI_PROVIDER_NOT_FOUND',
      'MODEL_ROUTE_NOT_FOUND',
      'AI_PROVIDER_MISCONFIGURED',
      'AI_PROVIDER_ERROR',
      'OUTPUT_SCHEMA_VALIDATION_FAILED',
      'GENERATION_FAILED',
      ...spendRefusals,
    ],
    run: generateInConversation,
    again: generateAgain,
  }),
]
