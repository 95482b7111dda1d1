import { endUserContent, turnContent } from '#control/retention/erasure.ts'
import { actorMergeHooks } from '#conversation/actors/merge.ts'
import { approvalContextOperation } from '#conversation/sessions/approval-context.ts'
import { isOwnSession, ownSessionIds } from '#conversation/sessions/end-user.ts'
import { sessionFieldContent } from '#conversation/sessions/erase.ts'
import { sessionErrors } from '#conversation/sessions/errors.ts'
import { sessionExpiryHandler, sessionExpirySchedule, sweepEphemeralSessions } from '#conversation/sessions/expire.ts'
import { deleteOldSessionFrames } from '#conversation/sessions/frame-store.ts'
import { moveActorSessions, sessionContent } from '#conversation/sessions/hooks.ts'
import { sessionKind } from '#conversation/sessions/kind.ts'
import { sessionOperations } from '#conversation/sessions/operations.ts'
import { titleContent, titleWork } from '#conversation/sessions/title.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { waitingRows } from '#core/work/waiting-rows.ts'
import { endUserSessions } from '#execution/generations/end-user.ts'
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
  tags: {
    Conversations: 'Ordered messages of several actors, and their turns.',
    Sessions: 'Conversations of one end user with one agent.',
  },
  errors: sessionErrors,
  kinds: [conversationKind, sessionKind],
  resourceTypes: [
    resourceType(conversationKind, { exportedWith: 'named' }),
    resourceType(sessionKind, {
      exportedWith: 'named',
      writeOnly: ['tool_context'],
      without: ['actor'],
      hides: ({ tool_context }) => (tool_context === null ? [] : ['tool_context']),
      owns: ({ conversation_id }) => [conversation_id],
    }),
  ],
  eventSources: [messageEvents],
  operations: [...conversationOperations, ...summaryOperations, ...sessionOperations, approvalContextOperation],
  work: [summaryWork, titleWork],
  handlers: [...turnHandlers, expiryHandler, sessionExpiryHandler],
  schedules: [...turnSchedules, expirySchedule, sessionExpirySchedule],
  policyActions: [
    {
      action: EXPIRE_CONVERSATIONS,
      description: 'Written to the audit log when conversations past the retention of the project are deleted',
      resource_type: 'project',
    },
  ],
  sweeps: [
    { name: 'deleted messages', when: '57 3 * * *', run: pruneDeletedMessages },
    { name: 'ephemeral sessions', when: '42 * * * *', run: sweepEphemeralSessions },
    {
      name: 'session frames',
      when: '33 * * * *',
      run: ({ pool, config }, stopping) =>
        deleteInBatches(limit => deleteOldSessionFrames(pool, config.SESSION_FRAMES_KEEP_HOURS, limit), stopping),
    },
  ],
  extensions: [
    turnContent.with(historyContent),
    turnContent.with(sessionContent),
    endUserContent.with(messageContent),
    endUserContent.with(sessionFieldContent),
    endUserContent.with(titleContent),
    actorMergeHooks.with(moveActorSessions),
    endUserSessions.with({ owns: isOwnSession, ids: ownSessionIds }),
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
