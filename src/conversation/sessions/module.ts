import { turnContent } from '../../control/retention/content.ts'
import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { actorMoves } from '../actors/merge.ts'
import { sessionHooks } from '../turns/hooks.ts'
import { sessionContent } from './erase.ts'
import { sessionErrors } from './errors.ts'
import { expiryHandler, expirySchedule } from './expire.ts'
import { hooks, moveActorSessions } from './hooks.ts'
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
  handlers: [expiryHandler],
  schedules: [expirySchedule],
  extensions: [turnContent.with(sessionContent), sessionHooks.with(hooks), actorMoves.with(moveActorSessions)],
})
