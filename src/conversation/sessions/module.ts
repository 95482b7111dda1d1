import { turnContent } from '../../control/retention/erasure.ts'
import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { endUserSessions } from '../../execution/generations/end-user.ts'
import { actorMergeHooks } from '../actors/merge.ts'
import { sessionHooks } from '../turns/hooks.ts'
import { isOwnSession } from './end-user.ts'
import { sessionErrors } from './errors.ts'
import { sessionExpiryHandler, sessionExpirySchedule, sweepEphemeralSessions } from './expire.ts'
import { moveActorSessions, sessionContent, sessionTurnHooks } from './hooks.ts'
import { sessionKind } from './kind.ts'
import { sessionOperations } from './operations.ts'

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
  handlers: [sessionExpiryHandler],
  schedules: [sessionExpirySchedule],
  sweeps: [{ name: 'ephemeral sessions', when: '42 * * * *', run: sweepEphemeralSessions }],
  extensions: [
    turnContent.with(sessionContent),
    sessionHooks.with(sessionTurnHooks),
    actorMergeHooks.with(moveActorSessions),
    endUserSessions.with(isOwnSession),
  ],
})
