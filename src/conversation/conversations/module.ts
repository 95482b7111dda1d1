import { endUserContent, turnContent } from '#control/retention/erasure.ts'
import { module } from '#core/api/module.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { waitingRows } from '#core/jobs/waiting-rows.ts'
import { mailboxHooks } from '#execution/generations/request/cancel-turn.ts'
import { summaryOperations } from '../summaries/operations.ts'
import { summaryWork } from '../summaries/summarize.ts'
import { enqueueContinuation, enqueueRetry } from '../turns/generate.ts'
import { turnHandlers, turnSchedules } from '../turns/handler.ts'
import { cancelMailboxTurn, enqueueResumed } from '../turns/mailbox.ts'
import { oldestQueuedTurn } from '../turns/store.ts'
import { pruneDeletedMessages } from './deleted-messages.ts'
import { historyContent, messageContent } from './erase.ts'
import { EXPIRE_CONVERSATIONS, expiryHandler, expirySchedule } from './expire.ts'
import { addSessionFrame } from './frames.ts'
import { conversationKind, messageEvents } from './model.ts'
import { conversationOperations } from './operations.ts'

export default module('conversations', {
  tags: { Conversations: 'Ordered messages of several actors, and their turns.' },
  kinds: [conversationKind],
  resourceTypes: [resourceType(conversationKind)],
  eventSources: [messageEvents],
  operations: [...conversationOperations, ...summaryOperations],
  work: [summaryWork],
  handlers: [...turnHandlers, expiryHandler],
  schedules: [...turnSchedules, expirySchedule],
  policyActions: [
    {
      action: EXPIRE_CONVERSATIONS,
      description: 'Written to the audit log when conversations past the retention of the project are deleted',
      resource_type: 'project',
    },
  ],
  sweeps: [{ name: 'deleted messages', when: '57 3 * * *', run: pruneDeletedMessages }],
  extensions: [
    turnContent.with(historyContent),
    endUserContent.with(messageContent),
    waitingRows.with({ concern: 'generation', since: oldestQueuedTurn }),
    mailboxHooks.with({
      cancel: cancelMailboxTurn,
      retry: enqueueRetry,
      resume: enqueueResumed,
      pausedEnded: (tx, { id, session_id }) =>
        addSessionFrame(tx, { session_id }, { event: 'turn_failed', generation_id: id }),
      continue: enqueueContinuation,
    }),
  ],
})
