import type { Services } from '#core/base/services.ts'
import { inTransaction } from '#core/db/pool.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { deleteAuditEntries, listPrunedChains, pruneSeals } from './store.ts'

const DAY_MS = 86_400_000

/**
 * Deletes entries older than AUDIT_RETENTION_DAYS (0 disables it) and the seals that precede all other entries of their
 * chain, one batch per transaction, unless the sweep is disabled. Returns the number of entries.
 */
export async function pruneAudit(
  { config, clock, pool }: Pick<Services, 'config' | 'clock' | 'pool'>,
  stopping?: AbortSignal,
): Promise<number> {
  if (config.AUDIT_RETENTION_DAYS === 0 || config.AUDIT_RETENTION_SWEEP_DISABLED) return 0
  const before = new Date(clock.now().getTime() - config.AUDIT_RETENTION_DAYS * DAY_MS)
  const removed = await deleteInBatches(
    limit => inTransaction(pool, tx => deleteAuditEntries(tx, before, limit)),
    stopping,
  )
  for (let after = ''; ; ) {
    const chains = await listPrunedChains(pool, after)
    if (chains.length === 0) return removed
    await deleteInBatches(() => inTransaction(pool, tx => pruneSeals(tx, chains)), stopping, 1)
    if (stopping?.aborted) return removed
    after = chains[chains.length - 1]
  }
}
