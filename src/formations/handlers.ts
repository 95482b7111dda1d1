import { handler, schedule } from '../core/jobs/handler.ts'
import { queueMessage } from '../core/jobs/queue.ts'
import { sweepWorkItems } from '../core/jobs/work-item.ts'
import { abandonOperation, runOperation } from './operate.ts'
import { formationQueue, formationSweep } from './queue.ts'
import { formationAttempts, hasOperationWork } from './store.ts'

/** An attempt this late has lost its message, or its worker. */
const QUIET_SECONDS = 5

/** The handler of operations, and the sweep that finds operations without a message. */
export const formationHandlers = [
  handler(
    formationQueue,
    { concurrency: 4, onExhausted: (asked, _error, services) => services.write(tx => abandonOperation(tx, asked)) },
    runOperation,
  ),
  handler(formationSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    sweepWorkItems(services.pool, {
      attempts: formationAttempts,
      quietSeconds: QUIET_SECONDS,
      stopping,
      // An operation that a worker holds, or that has ended, ignores the message.
      wake: due =>
        services.queues.send(
          due.map(({ entity, id, project_id }) =>
            queueMessage(formationQueue, { formation_id: entity, operation_id: id, project_id }),
          ),
        ),
    }),
  ),
]

export const formationSchedules = [schedule('formation.sweep', 15, formationSweep, {}, hasOperationWork)]
