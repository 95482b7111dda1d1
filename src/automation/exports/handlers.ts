import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import { abandonExport, buildExport } from './build.ts'
import { exportQueue, exportSweep } from './queue.ts'
import { exportAttempts, hasExportWork } from './store.ts'

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
      onExhausted: (asked, error, services) => services.write(tx => abandonExport(tx, asked, error)),
    },
    buildExport,
  ),
  handler(exportSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    sweepWorkItems(services.pool, {
      attempts: exportAttempts,
      quietSeconds: QUIET_SECONDS,
      stopping,
      // One that is held, or at its end, is left as it is.
      wake: due =>
        services.queues.send(
          due.map(({ entity, id, project_id }) =>
            queueMessage(exportQueue, { export_id: entity, attempt_id: id, project_id }),
          ),
        ),
    }),
  ),
]

export const exportSchedules = [schedule('export.sweep', 30, exportSweep, {}, hasExportWork)]
