import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import type { Services } from '../../core/process/services.ts'
import { abandonDecision, processDecision } from './evaluate.ts'
import { decisionQueue, decisionSweep } from './queue.ts'
import { settleDecision } from './settle.ts'
import { decisionAttempts, listOrphanedDecisions } from './store.ts'

/** Delay after which a message or a worker counts as lost. */
const QUIET_SECONDS = 5

const MESSAGE_LEASE_SECONDS = 60

/** Maximum number of orphaned decisions settled in one sweep. */
const MAX_ORPHANS = 500

/** Handlers that make decisions and sweep orphaned ones. */
export const decisionHandlers = [
  handler(
    decisionQueue,
    {
      // A lost worker blocks a message no longer than a work item.
      leaseSeconds: config => Math.min(config.DECISION_LEASE_SECONDS, MESSAGE_LEASE_SECONDS),
      onExhausted: (message, error, services) => services.write(tx => abandonDecision(tx, services, message, error)),
    },
    processDecision,
  ),
  handler(decisionSweep, { concurrency: 1 }, (_message, { services, stopping }) => sweepDecisions(services, stopping)),
]

export const decisionSchedules = [
  schedule('decision.sweep', config => Math.ceil(config.DECISION_SWEEP_INTERVAL_MS / 1000), decisionSweep, {}),
]

/** Wakes work items whose message or worker was lost, and settles decisions whose turn was deleted with its agent. */
async function sweepDecisions(services: Services, stopping: AbortSignal): Promise<void> {
  await sweepWorkItems(services.pool, {
    attempts: decisionAttempts,
    quietSeconds: QUIET_SECONDS,
    stopping,
    // Dropped if a message is already queued.
    wake: due =>
      services.queues.send(
        due.map(({ entity, id, project_id }) =>
          queueMessage(decisionQueue, { decision_id: entity, attempt_id: id, project_id }),
        ),
      ),
  })
  for (const id of await listOrphanedDecisions(services.pool, MAX_ORPHANS)) {
    if (stopping.aborted) return
    await services.write(tx => settleDecision(tx, id, { error: AGENT_DELETED }))
  }
}

const AGENT_DELETED = { code: 'AGENT_NOT_FOUND', message: 'The agent was deleted during the decision' }
