import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import type { Services } from '../../core/process/services.ts'
import { abandonDecision, processDecision } from './evaluate.ts'
import { decisionQueue, decisionSweep } from './queue.ts'
import { settleDecision } from './settle.ts'
import { decisionAttempts, listOrphanedDecisions } from './store.ts'

/** An attempt this late has lost its message, or its worker. */
const QUIET_SECONDS = 5

const MESSAGE_LEASE_SECONDS = 60

/** Turns that were deleted and whose decisions are settled at once. */
const ORPHANS = 500

/** Who makes decisions, and who looks for those that nobody makes. */
export const decisionHandlers = [
  handler(
    decisionQueue,
    {
      // A message stays with a lost worker no longer than the attempt.
      leaseSeconds: config => Math.min(config.DECISION_LEASE_SECONDS, MESSAGE_LEASE_SECONDS),
      onExhausted: (asked, error, services) => services.write(tx => abandonDecision(tx, services, asked, error)),
    },
    processDecision,
  ),
  handler(decisionSweep, { concurrency: 1 }, (_message, { services, stopping }) => sweepDecisions(services, stopping)),
]

export const decisionSchedules = [
  schedule('decision.sweep', config => Math.ceil(config.DECISION_SWEEP_INTERVAL_MS / 1000), decisionSweep, {}),
]

/** Wakes attempts whose message or worker was lost, and ends decisions whose turn was deleted with its agent. */
async function sweepDecisions(services: Services, stopping: AbortSignal): Promise<void> {
  await sweepWorkItems(services.pool, {
    attempts: decisionAttempts,
    quietSeconds: QUIET_SECONDS,
    stopping,
    // Dropped where one waits already.
    wake: due =>
      services.queues.send(
        due.map(({ entity, id, project_id }) =>
          queueMessage(decisionQueue, { decision_id: entity, attempt_id: id, project_id }),
        ),
      ),
  })
  for (const id of await listOrphanedDecisions(services.pool, ORPHANS)) {
    if (stopping.aborted) return
    await services.write(tx => settleDecision(tx, id, { error: GONE }))
  }
}

const GONE = { code: 'AGENT_NOT_FOUND', message: 'The agent was deleted while it was asked' }
