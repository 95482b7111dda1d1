import { inTransaction } from '../../core/db/pool.ts'
import { deleteInBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { deleteAuditEntries } from './store.ts'

const DAY_MS = 86_400_000

/**
 * Deletes entries older than AUDIT_RETENTION_DAYS (0 disables it), one batch per transaction, unless the sweep is
 * disabled. Returns their number.
 */
export async function pruneAudit(
  { config, clock, pool }: Pick<Services, 'config' | 'clock' | 'pool'>,
  stopping?: AbortSignal,
): Promise<number> {
  if (config.AUDIT_RETENTION_DAYS === 0 || config.AUDIT_RETENTION_SWEEP_DISABLED) return 0
  const before = new Date(clock.now().getTime() - config.AUDIT_RETENTION_DAYS * DAY_MS)
  return deleteInBatches(limit => inTransaction(pool, tx => deleteAuditEntries(tx, before, limit)), stopping)
}
