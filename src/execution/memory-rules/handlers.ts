import { handler, schedule } from '../../core/jobs/handler.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { deleteInBatches, type Sweep } from '../../core/jobs/sweeps.ts'
import { sweepWorkItems } from '../../core/jobs/work-item.ts'
import type { Services } from '../../core/process/services.ts'
import { abandonRuleFiring, processRuleFiring } from './fire.ts'
import { memoryRuleQueue, ruleFiringSweep } from './queue.ts'
import { deleteSettledRuleFirings, ruleFiringWork } from './store.ts'

/** Delay after which a message or a worker counts as lost. */
const QUIET_SECONDS = 5

const MESSAGE_LEASE_SECONDS = 60

/** Retention of settled firings, which prevent that a rule processes a turn twice. */
const KEPT_MS = 30 * 24 * 3_600_000

/** Handlers that process firings and sweep orphaned ones. */
export const firingHandlers = [
  handler(
    memoryRuleQueue,
    {
      // A lost worker blocks a message no longer than a firing.
      leaseSeconds: config => Math.min(config.GENERATION_LEASE_SECONDS, MESSAGE_LEASE_SECONDS),
      onExhausted: (message, error, services) => services.write(tx => abandonRuleFiring(tx, message, error)),
    },
    processRuleFiring,
  ),
  handler(ruleFiringSweep, { concurrency: 1 }, (_message, { services, stopping }) => sweepFirings(services, stopping)),
]

export const firingSchedules = [
  schedule('memory_rule.sweep', config => config.GENERATION_SWEEP_SECONDS, ruleFiringSweep, {}),
]

/** Wakes firings whose message or worker was lost. */
const sweepFirings = (services: Services, stopping: AbortSignal): Promise<void> =>
  sweepWorkItems(services.pool, {
    attempts: ruleFiringWork,
    quietSeconds: QUIET_SECONDS,
    stopping,
    // Dropped if a message is already queued.
    wake: due =>
      services.queues.send(
        due.map(({ entity, id, project_id }) =>
          queueMessage(memoryRuleQueue, { firing_id: id, generation_id: entity, project_id }),
        ),
      ),
  })

export const firingRetention: Sweep = {
  name: 'memory_rule_firings',
  when: '37 3 * * *',
  run: ({ pool, clock }, stopping) =>
    deleteInBatches(
      limit => deleteSettledRuleFirings(pool, new Date(clock.now().getTime() - KEPT_MS), limit),
      stopping,
    ),
}
