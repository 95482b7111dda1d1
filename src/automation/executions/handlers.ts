import { z } from 'zod'
import { every, handler } from '../../core/jobs/handler.ts'
import { workQueue } from '../../core/jobs/queue.ts'
import { apart } from '../../core/jobs/sweeps.ts'
import { markOverdue } from './command.ts'
import { isAnyOverdue, overdueExecutions } from './store.ts'

/** Looks for manual steps that have become overdue. Those that have timed out are the engine's. */
const overdueSweep = workQueue('playbook.overdue', {
  message: z.object({}),
  concern: 'orchestration',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

const SWEPT = 500

export const executionHandlers = [
  handler(overdueSweep, { concurrency: 1 }, async (_message, { services, stopping }) => {
    for (const placed of await overdueExecutions(services.pool, SWEPT)) {
      if (stopping.aborted) return
      // One that cannot be marked keeps nobody else's from being marked.
      await apart(services, { execution_id: placed.id }, () => services.write(tx => markOverdue(tx, services, placed)))
    }
  }),
]

export const executionSchedules = [
  every(
    'playbook.overdue',
    config => Math.ceil(config.TASKS_SCHEDULER_INTERVAL_MS / 1000),
    overdueSweep,
    {},
    ({ pool }) => isAnyOverdue(pool),
  ),
]
