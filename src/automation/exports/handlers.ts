import { sweepAttempts } from '../../core/jobs/attempt.ts'
import { every, handler } from '../../core/jobs/handler.ts'
import { message } from '../../core/jobs/queue.ts'
import { buildExport, giveUp } from './build.ts'
import { exportQueue, exportSweep } from './queue.ts'
import { exportAttempts, hasAttempts } from './store.ts'

/** An attempt this late has lost its message, or its worker. */
const QUIET_SECONDS = 5

/** Who builds exports, and who looks for those that nobody builds. */
export const exportHandlers = [
  handler(
    exportQueue,
    {
      // Each holds what its case holds, and its files.
      concurrency: 2,
      leaseSeconds: config => config.PLAYBOOK_EXPORT_LEASE_SECONDS,
      onExhausted: (asked, error, services) => services.write(tx => giveUp(tx, asked, error)),
    },
    buildExport,
  ),
  handler(exportSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    sweepAttempts(services.pool, {
      attempts: exportAttempts,
      quietSeconds: QUIET_SECONDS,
      stopping,
      // One that is held, or at its end, is left as it is.
      wake: due =>
        services.queues.send(
          due.map(({ entity, id, project_id }) =>
            message(exportQueue, { export_id: entity, attempt_id: id, project_id }),
          ),
        ),
    }),
  ),
]

export const exportSchedules = [every('playbook-export.sweep', 30, exportSweep, {}, hasAttempts)]
