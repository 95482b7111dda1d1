import { z } from 'zod'
import { workQueue } from '#core/queues/queue.ts'
import { handler, schedule } from '#core/work/handler.ts'
import { isolateFailures } from '#core/work/sweeps.ts'
import { markOverdue } from './command.ts'
import { hasOverdueSteps, listOverdueExecutions, type OverdueExecution } from './store.ts'

/** Sweep for overdue manual steps. The run engine handles step timeouts. */
const overdueSweep = workQueue('execution.mark_overdue', {
  message: z.object({}),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

/** Steps per query. */
const BATCH = 500

export const executionHandlers = [
  handler(overdueSweep, { concurrency: 1 }, async (_message, { services, stopping }) => {
    for (let page: readonly OverdueExecution[] | null = null; !page || page.length === BATCH; ) {
      page = await listOverdueExecutions(services.pool, { after: page?.at(-1), limit: BATCH })
      for (const ref of new Map(page.map(each => [each.id, each])).values()) {
        if (stopping.aborted) return
        await isolateFailures(services, { execution_id: ref.id }, () =>
          services.write(tx => markOverdue(tx, services, ref)),
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
    hasOverdueSteps,
  ),
]
