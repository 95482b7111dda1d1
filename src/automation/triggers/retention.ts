import { deleteInBatches, type Sweep } from '#core/work/sweeps.ts'
import { deleteFanouts } from './fanout.ts'
import { deleteSettledTriggerFirings } from './store.ts'

const DAY_MS = 86_400_000

/** Deletes firings that settled, and fan-out counts created, more than TRIGGER_FIRING_RETENTION_DAYS ago. */
export const firingRetention: Sweep = {
  name: 'trigger firings',
  when: '53 3 * * *',
  async run({ pool, clock, config }, stopping) {
    const before = new Date(clock.now().getTime() - config.TRIGGER_FIRING_RETENTION_DAYS * DAY_MS)
    const firings = await deleteInBatches(limit => deleteSettledTriggerFirings(pool, before, limit), stopping)
    return firings + (await deleteInBatches(limit => deleteFanouts(pool, before, limit), stopping))
  },
}
