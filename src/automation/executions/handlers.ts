import { z } from 'zod'
import { handler, schedule } from '../../core/jobs/handler.ts'
import { workQueue } from '../../core/jobs/queue.ts'
import { isolateFailures } from '../../core/jobs/sweeps.ts'
import { markOverdue } from './command.ts'
import { type Due, isAnyOverdue, overdueExecutions } from './store.ts'

/** Looks for manual steps that have become overdue. Those that have timed out are the engine's. */
const overdueSweep = workQueue('execution.mark_overdue', {
  message: z.object({}),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

/** Steps that one statement finds. */
const SWEPT = 500

export const executionHandlers = [
  handler(overdueSweep, { concurrency: 1 }, async (_message, { services, stopping }) => {
    for (let found: readonly Due[] | null = null; !found || found.length === SWEPT; ) {
      found = await overdueExecutions(services.pool, { after: found?.at(-1), limit: SWEPT })
      for (const placed of new Map(found.map(each => [each.id, each])).values()) {
        if (stopping.aborted) return
        // Those that cannot be marked keep nobody else's from being marked.
        await isolateFailures(services, { execution_id: placed.id }, () =>
          services.write(tx => markOverdue(tx, services, placed)),
        )
      }
    }
  }),
]

export const executionSchedules = [
  schedule(
    'execution.mark_overdue',
    config => Math.ceil(config.TASKS_SCHEDULER_INTERVAL_MS / 1000),
    overdueSweep,
    {},
    isAnyOverdue,
  ),
]
