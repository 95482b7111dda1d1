import { z } from 'zod'
import type { Tx } from '../../core/db/writer.ts'
import { handler, schedule } from '../../core/jobs/handler.ts'
import { workQueue } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { sessionKind } from './kind.ts'
import type { SessionRow } from './model.ts'
import { type ExpiringSession, overdueSessions, tryLockSessions, writeExpiry } from './store.ts'

/**
 * Writes the expiry of overdue sessions down, with its event; the caller holds their conversations' locks. A session
 * expires only with an empty mailbox, so there is nothing to clear. Returns the rows that expired.
 */
export async function expireLocked(tx: Tx, ids: readonly string[]): Promise<readonly SessionRow[]> {
  const expired = ids.length === 0 ? [] : await writeExpiry(tx, ids)
  for (const session of expired) tx.emit(sessionKind, 'expired', session)
  return expired
}

const BATCH = 100

/**
 * Expires what is overdue, in batches of one transaction each; sessions whose conversation is locked are left to the
 * next sweep. Returns how many expired.
 */
async function sweepExpired(services: Services, stop: AbortSignal): Promise<number> {
  let count = 0
  let after: ExpiringSession | null = null
  while (!stop.aborted) {
    const found: readonly ExpiringSession[] = await overdueSessions(services.pool, after, BATCH)
    if (found.length === 0) break
    after = found[found.length - 1]
    count += await services.write(async tx => {
      const locked = await tryLockSessions(
        tx,
        found.map(session => session.id),
      )
      return (await expireLocked(tx, locked)).length
    })
  }
  return count
}

const sessionExpiryQueue = workQueue('session.expire', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
})

/** Expires sessions past their time, one message every SESSION_SWEEP_SECONDS in the whole deployment. */
export const sessionExpiryHandler = handler(sessionExpiryQueue, { concurrency: 1 }, async (_message, context) => {
  const expired = await sweepExpired(context.services, context.stopping)
  if (expired > 0) context.log.info({ expired }, 'sessions expired')
})

export const sessionExpirySchedule = schedule(
  'session.expire',
  config => config.SESSION_SWEEP_SECONDS,
  sessionExpiryQueue,
  {},
)
