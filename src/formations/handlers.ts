import { sweepAttempts } from '../core/jobs/attempt.ts'
import { every, handler } from '../core/jobs/handler.ts'
import { message } from '../core/jobs/queue.ts'
import { giveUp, operate } from './operate.ts'
import { formationQueue, formationSweep } from './queue.ts'
import { formationAttempts, hasAttempts } from './store.ts'

/** An attempt this late has lost its message, or its worker. */
const QUIET_SECONDS = 5

/** The handler of operations, and the sweep that finds operations without a message. */
export const formationHandlers = [
  handler(
    formationQueue,
    { concurrency: 4, onExhausted: (asked, _error, services) => services.write(tx => giveUp(tx, asked)) },
    operate,
  ),
  handler(formationSweep, { concurrency: 1 }, (_message, { services, stopping }) =>
    sweepAttempts(services.pool, {
      attempts: formationAttempts,
      quietSeconds: QUIET_SECONDS,
      stopping,
      // An operation that a worker holds, or that has ended, ignores the message.
      wake: due =>
        services.queues.send(
          due.map(({ entity, id, project_id }) =>
            message(formationQueue, { formation_id: entity, operation_id: id, project_id }),
          ),
        ),
    }),
  ),
]

export const formationSchedules = [every('formation.sweep', 15, formationSweep, {}, hasAttempts)]
