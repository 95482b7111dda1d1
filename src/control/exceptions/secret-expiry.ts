import type { Services } from '#core/base/services.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { claimExpiring } from '#identity/secrets/store.ts'
import { fileExceptionInTx } from './file-exception.ts'

/** Lead time of the report before a secret expires. */
const LEAD_MS = 14 * 86_400_000

/**
 * Files an exception for each secret that has expired or expires within 14 days, once per expiry date: the same
 * transaction marks the date as reported. The secret stays usable. Returns the number of filed exceptions.
 */
export const reportExpiring = (
  { write, clock }: Pick<Services, 'write' | 'clock'>,
  stopping?: AbortSignal,
): Promise<number> => {
  const now = clock.now()
  const before = new Date(now.getTime() + LEAD_MS)
  return deleteInBatches(
    limit =>
      write(async tx => {
        const secrets = await claimExpiring(tx, before, limit)
        for (const { id, project_id, name, expires_at } of secrets)
          fileExceptionInTx(tx, {
            project_id,
            kind: 'secret_expiring',
            title: `Secret ${name} ${new Date(expires_at) <= now ? 'expired' : 'expires'} on ${expires_at.slice(0, 10)}`,
            detail: { secret_id: id, name, expires_at },
            dedup_key: id,
          })
        return secrets.length
      }),
    stopping,
  )
}
