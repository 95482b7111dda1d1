import { z } from 'zod'
import { handler, schedule } from '../../core/jobs/handler.ts'
import { workQueue } from '../../core/jobs/queue.ts'
import { deleteInBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { revokeShares } from './kind.ts'
import { deleteShareCounters, deleteUsage, lockExpiredShares } from './store.ts'

const INTERVAL_SECONDS = 30
/** Shares that are revoked in one transaction, each with its acceptances. */
const BATCH = 20

const expiry = workQueue('share.expire', {
  message: z.object({}),
  concern: 'snapshot',
  retry: { limit: 3, delaySeconds: 10, backoff: true, maxDelaySeconds: 60 },
})

/** Revokes the shares that have run out. They grant nothing since then: this makes their record and its events say so. */
async function revokeExpired({ write }: Pick<Services, 'write'>, stopping?: AbortSignal): Promise<number> {
  let revoked = 0
  while (!stopping?.aborted) {
    const found = await write(async tx => {
      const ids = await lockExpiredShares(tx, BATCH)
      return (await revokeShares(tx, ids)).length
    })
    revoked += found
    if (found < BATCH) break
  }
  return revoked
}

export const shareExpiryHandler = handler(expiry, { concurrency: 1 }, (_message, { services, stopping }) =>
  revokeExpired(services, stopping),
)

export const shareExpirySchedule = schedule('shares that run out', INTERVAL_SECONDS, expiry, {})

const DAY_MS = 86_400_000
const COUNTERS_KEPT_DAYS = 40
const USAGE_KEPT_DAYS = 400

/** Deletes counters of windows older than 40 days, and usage older than 400. Returns how many rows went. */
export async function pruneShares({ pool, clock }: Services, stopping?: AbortSignal): Promise<number> {
  const ago = (days: number) => new Date(clock.now().getTime() - days * DAY_MS)
  const counters = await deleteInBatches(limit => deleteShareCounters(pool, ago(COUNTERS_KEPT_DAYS), limit), stopping)
  return counters + (await deleteInBatches(limit => deleteUsage(pool, ago(USAGE_KEPT_DAYS), limit), stopping))
}
