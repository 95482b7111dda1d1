import { endUserContent, turnContent } from '#control/retention/erasure.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { endUserSessions } from '#execution/generations/end-user.ts'
import { actorMergeHooks } from '../actors/merge.ts'
import { sessionHooks } from '../dialog/mailbox/hooks.ts'
import { isOwnSession, ownSessionIds } from './end-user.ts'
import { sessionFieldContent } from './erase.ts'
import { sessionErrors } from './errors.ts'
import { sessionExpiryHandler, sessionExpirySchedule, sweepEphemeralSessions } from './expire.ts'
import { deleteOldSessionFrames } from './frame-store.ts'
import { moveActorSessions, sessionContent, sessionTurnHooks } from './hooks.ts'
import { sessionKind } from './kind.ts'
import { sessionOperations } from './operations.ts'
import { titleContent, titleWork } from './title.ts'

export default module('sessions', {
  tags: { Sessions: 'Conversations of one end user with one agent.' },
  errors: sessionErrors,
  kinds: [sessionKind],
  resourceTypes: [
    resourceType(sessionKind, {
      writeOnly: ['tool_context'],
      without: ['actor'],
      hides: ({ tool_context }) => (tool_context === null ? [] : ['tool_context']),
      owns: ({ conversation_id }) => [conversation_id],
    }),
  ],
  operations: sessionOperations,
  work: [titleWork],
  handlers: [sessionExpiryHandler],
  schedules: [sessionExpirySchedule],
  sweeps: [
    { name: 'ephemeral sessions', when: '42 * * * *', run: sweepEphemeralSessions },
    {
      name: 'session frames',
      when: '33 * * * *',
      run: ({ pool, config }, stopping) =>
        deleteInBatches(limit => deleteOldSessionFrames(pool, config.SESSION_FRAMES_KEEP_HOURS, limit), stopping),
    },
  ],
  extensions: [
    turnContent.with(sessionContent),
    endUserContent.with(sessionFieldContent),
    endUserContent.with(titleContent),
    sessionHooks.with(sessionTurnHooks),
    actorMergeHooks.with(moveActorSessions),
    endUserSessions.with({ owns: isOwnSession, ids: ownSessionIds }),
  ],
})
