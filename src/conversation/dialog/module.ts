import { endUserContent, turnContent } from '#control/retention/erasure.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { waitingRows } from '#core/work/waiting-rows.ts'
import { mailboxHooks } from '#execution/generations/request/cancel-turn.ts'
import { enqueueContinuation, enqueueRetry } from './mailbox/generate.ts'
import { turnHandlers, turnSchedules } from './mailbox/handler.ts'
import { cancelMailboxTurn, enqueueResumed } from './mailbox/mailbox.ts'
import { oldestQueuedTurn } from './mailbox/store.ts'
import { pruneDeletedMessages } from './messages/deleted-messages.ts'
import { historyContent, messageContent } from './messages/erase.ts'
import { EXPIRE_CONVERSATIONS, expiryHandler, expirySchedule } from './messages/expire.ts'
import { addSessionFrame } from './messages/frames.ts'
import { conversationKind, messageEvents } from './messages/model.ts'
import { conversationOperations } from './messages/operations.ts'
import { summaryOperations } from './summaries/operations.ts'
import { summaryWork } from './summaries/summarize.ts'

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
