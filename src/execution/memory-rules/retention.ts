import { deleteInBatches, type Sweep } from '#core/work/sweeps.ts'
import { deleteSettledRuleFirings } from './store.ts'

/** Retention of settled firings, which prevent that a rule processes a turn twice. */
const KEPT_MS = 30 * 24 * 3_600_000

export const firingRetention: Sweep = {
  name: 'memory_rule_firings',
  when: '37 3 * * *',
  run: ({ pool, clock }, stopping) =>
    deleteInBatches(
      limit => deleteSettledRuleFirings(pool, new Date(clock.now().getTime() - KEPT_MS), limit),
      stopping,
    ),
}
