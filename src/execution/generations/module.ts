import { workUnderWay } from '../../control/quotas/spend-store.ts'
import { endUserContent } from '../../control/retention/content.ts'
import { module } from '../../core/api/module.ts'
import { waitingRows } from '../../core/jobs/waiting-rows.ts'
import { endUserTurns } from './end-user.ts'
import { generationErrors } from './errors.ts'
import { contentSweepHandler, contentSweepSchedule } from './expire-content.ts'
import { EXPIRE_TRACES, traceSweepHandler, traceSweepSchedule } from './expire-traces.ts'
import { generationHandlers, generationSchedules, sdkLoading } from './handler.ts'
import { generationKind, sealedWork } from './model.ts'
import { generationOperations, traceOperations } from './operations.ts'
import { oldestPending, openTurnsOf } from './store.ts'
import { traceKind } from './trace-kind.ts'
import { turnsTotal } from './turn-attempt.ts'

export default module('generations', {
  tags: {
    Generations: 'Turns of agents: run, streamed, paused, cancelled, retried, read.',
    Traces: 'Trees of turns and the steps that they settled.',
  },
  errors: generationErrors,
  kinds: [generationKind, traceKind],
  operations: [...generationOperations, ...traceOperations],
  handlers: [...generationHandlers, contentSweepHandler, traceSweepHandler],
  schedules: [...generationSchedules, contentSweepSchedule, traceSweepSchedule],
  policyActions: [
    {
      action: EXPIRE_TRACES,
      description: 'Written to the audit log when traces past the retention of the project are deleted',
      resource_type: 'project',
    },
  ],
  background: [sdkLoading],
  sealedColumns: sealedWork,
  metrics: [turnsTotal],
  extensions: [
    workUnderWay.with(openTurnsOf),
    endUserContent.with(endUserTurns),
    waitingRows.with({ concern: 'generation', since: oldestPending }),
  ],
})
