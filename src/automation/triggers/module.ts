import { turnContent } from '#control/retention/erasure.ts'
import { footprints } from '#control/storage/footprint.ts'
import { eventSubscribers } from '#control/webhooks/event-subscribers.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { waitingRows } from '#core/work/waiting-rows.ts'
import { subscriberConditions } from '#core/writes/writer.ts'
import { turnOwners } from '#execution/generations/loop/turn-owner.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { resumeHooks } from '#identity/projects/pause.ts'
import { runWaiters } from '../orchestrations/runs/engine/run-notifications.ts'
import { agentTarget, triggeredTurns } from './agents.ts'
import { triggerCloning } from './clone.ts'
import { triggerFiringContent } from './erase.ts'
import { triggerErrors } from './errors.ts'
import { eventTriggerHandlers, eventTriggers, hasEventTrigger } from './events.ts'
import { triggerFiringWork } from './fire.ts'
import { firingKind, sealedTriggerColumns, triggerKind } from './model.ts'
import { triggerOperations } from './operations.ts'
import { orchestrationTarget, triggeredRuns } from './orchestrations.ts'
import { firingRetention } from './retention.ts'
import { scheduler, skipMissed } from './schedule.ts'
import { firingFootprint, oldestQueuedFiring } from './store.ts'
import { triggerTargets } from './targets.ts'
import { toolTarget } from './tools.ts'

export default module('triggers', {
  tags: { Triggers: 'Start work on a schedule, event, inbound webhook or request. Each start is a firing.' },
  errors: triggerErrors,
  kinds: [triggerKind, firingKind],
  resourceTypes: [
    resourceType(triggerKind, {
      fixed: ['type'],
      defaults: {
        active: true,
        timezone: 'UTC',
        overlap_policy: 'allow',
        misfire_policy: 'fire_once',
        signature_scheme: 'timestamped',
      },
      attributes: { secret: { read: 'getTriggerSecret', field: 'secret' } },
    }),
  ],
  operations: triggerOperations,
  work: [triggerFiringWork],
  handlers: eventTriggerHandlers,
  background: [scheduler],
  sealedColumns: sealedTriggerColumns,
  sweeps: [firingRetention],
  extensions: [
    triggerTargets.with(orchestrationTarget),
    triggerTargets.with(agentTarget),
    triggerTargets.with(toolTarget),
    turnOwners.with(triggeredTurns),
    runWaiters.with(triggeredRuns),
    subscriberConditions.with(hasEventTrigger),
    eventSubscribers.with(eventTriggers),
    resumeHooks.with(skipMissed),
    footprints.with(firingFootprint),
    turnContent.with(triggerFiringContent),
    waitingRows.with({ concern: 'trigger', since: oldestQueuedFiring }),
    cloneables.with(triggerCloning),
  ],
})
