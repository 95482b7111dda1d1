import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { workQueue } from '#core/queues/queue.ts'
import { handler, schedule } from '#core/work/handler.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { revokeShares } from './kind.ts'
import { deleteShareCounters, deleteUsage, lockExpiredShares } from './store.ts'

const INTERVAL_SECONDS = 30
/** Shares revoked in one transaction, each with its acceptances. */
const BATCH = 20

const expiry = workQueue('share.expire', {
  message: z.object({}),
  concern: 'snapshot',
  retry: { limit: 3, delaySeconds: 10, backoff: true, maxDelaySeconds: 60 },
})

/** Revokes expired shares. Their grants ended at the expiry time; this updates their records and emits the events. */
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
const COUNTER_RETENTION_DAYS = 40
const USAGE_RETENTION_DAYS = 400

/** Deletes window counters older than 40 days and usage older than 400 days, and returns the number of rows. */
export async function pruneShares({ pool, clock }: Services, stopping?: AbortSignal): Promise<number> {
  const daysAgo = (days: number) => new Date(clock.now().getTime() - days * DAY_MS)
  const counters = await deleteInBatches(
    limit => deleteShareCounters(pool, daysAgo(COUNTER_RETENTION_DAYS), limit),
    stopping,
  )
  return counters + (await deleteInBatches(limit => deleteUsage(pool, daysAgo(USAGE_RETENTION_DAYS), limit), stopping))
}
