import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { workQueue } from '#core/queues/queue.ts'
import { handler, schedule } from '#core/work/handler.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import type { Tx } from '#core/writes/writer.ts'
import { addSessionFrame } from '../dialog/messages/frames.ts'
import { handBackTimedOut } from './handback.ts'
import { findSession, removeSession, sessionKind } from './kind.ts'
import type { SessionRow } from './model.ts'
import {
  type ExpiringSession,
  listOldEphemeralSessions,
  listOverdueSessions,
  tryLockSessions,
  writeExpiry,
} from './store.ts'

/**
 * Expires overdue sessions with their events and returns their rows. Requires the locks of their conversations. A
 * session expires only with an empty mailbox.
 */
export async function expireLockedSessions(tx: Tx, ids: readonly string[]): Promise<readonly SessionRow[]> {
  const expired = ids.length === 0 ? [] : await writeExpiry(tx, ids)
  for (const session of expired) {
    tx.emit(sessionKind, 'expired', session)
    addSessionFrame(tx, { session_id: session.id }, { event: 'session' })
  }
  return expired
}

const BATCH = 100

/**
 * Expires overdue sessions, one transaction per batch; locked sessions are left to the next sweep. Returns the number
 * of expired sessions.
 */
async function expireOverdueSessions(services: Services, stopping: AbortSignal): Promise<number> {
  let count = 0
  let after: ExpiringSession | null = null
  while (!stopping.aborted) {
    const found: readonly ExpiringSession[] = await listOverdueSessions(services.pool, after, BATCH)
    if (found.length === 0) break
    after = found[found.length - 1]
    count += await services.write(async tx => {
      const locked = await tryLockSessions(
        tx,
        found.map(session => session.id),
      )
      return (await expireLockedSessions(tx, locked)).length
    })
  }
  return count
}

/** Deletes ephemeral sessions after a day. Their turns are outside the mailbox and remain. */
export const sweepEphemeralSessions = (services: Services, stopping: AbortSignal): Promise<number> =>
  deleteInBatches(
    async limit => {
      const found = await listOldEphemeralSessions(services.pool, limit)
      await services.write(async tx => {
        for (const { id } of found) {
          const session = await findSession(tx, id, true)
          if (session) await removeSession(tx, session)
        }
      })
      return found.length
    },
    stopping,
    BATCH,
  )

const sessionExpiryQueue = workQueue('session.expire', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
})

/** Expires overdue sessions and ends timed-out takeovers every SESSION_SWEEP_SECONDS. */
export const sessionExpiryHandler = handler(sessionExpiryQueue, { concurrency: 1 }, async (_message, context) => {
  const expired = await expireOverdueSessions(context.services, context.stopping)
  if (expired > 0) context.log.info({ expired }, 'sessions expired')
  const ended = await handBackTimedOut(context)
  if (ended > 0) context.log.info({ ended }, 'takeovers ended by their timeout')
})

export const sessionExpirySchedule = schedule(
  'session.expire',
  config => config.SESSION_SWEEP_SECONDS,
  sessionExpiryQueue,
  {},
)
