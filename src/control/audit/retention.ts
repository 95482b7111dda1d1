import type { Services } from '#core/base/services.ts'
import { expiresBefore, maintainMonths } from '#core/db/months.ts'
import { inTransaction } from '#core/db/pool.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { auditMonths, deleteAuditEntries, listPrunedChains, pruneSeals } from './store.ts'

/**
 * Deletes entries older than AUDIT_RETENTION_DAYS (0 disables it), whole months where it can, and the seals that precede all other
 * entries of their chain, one batch per transaction, unless the sweep is disabled. Makes the months ahead. Returns the number of
 * entries.
 */
export async function pruneAudit(
  { config, clock, pool, log }: Pick<Services, 'config' | 'clock' | 'pool' | 'log'>,
  stopping?: AbortSignal,
): Promise<number> {
  const isDisabled = config.AUDIT_RETENTION_DAYS === 0 || config.AUDIT_RETENTION_SWEEP_DISABLED
  const before = isDisabled ? null : expiresBefore({ config, clock }, config.AUDIT_RETENTION_DAYS)
  const dropped = await maintainMonths({ pool, clock, log }, auditMonths, before, stopping)
  if (before === null) return dropped
  const deleted = await deleteInBatches(
    limit => inTransaction(pool, tx => deleteAuditEntries(tx, before, limit)),
    stopping,
  )
  const removed = dropped + deleted
  for (let after = ''; ; ) {
    const chains = await listPrunedChains(pool, after)
    if (chains.length === 0) return removed
    await deleteInBatches(() => inTransaction(pool, tx => pruneSeals(tx, chains)), stopping, 1)
    if (stopping?.aborted) return removed
    after = chains[chains.length - 1]
  }
}
