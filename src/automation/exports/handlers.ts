import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import { abandonExport, buildExport } from './build.ts'
import { exportQueue, exportSweep } from './queue.ts'
import { exportAttempts, hasExportWork } from './store.ts'

/** Seconds after its due time at which an attempt counts as orphaned. */
const ORPHANED_AFTER_SECONDS = 5

export const exportHandlers = [
  handler(
    exportQueue,
    {
      // An export needs up to 64 MiB of memory for its snapshot.
      concurrency: 2,
      leaseSeconds: config => config.PLAYBOOK_EXPORT_LEASE_SECONDS,
      onExhausted: (message, error, services) => services.write(tx => abandonExport(tx, message, error)),
    },
    buildExport,
  ),
  handler(exportSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    sweepWorkItems(services.pool, {
      attempts: exportAttempts,
      quietSeconds: ORPHANED_AFTER_SECONDS,
      stopping,
      // The handler ignores exports that are claimed or settled.
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
