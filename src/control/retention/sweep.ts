import type { Services } from '#core/base/services.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { deleteHeartbeats, deleteIdempotencyKeys } from './store.ts'

const DAY_MS = 86_400_000
const HEARTBEAT_DAYS = 7

const daysAgo = ({ clock }: Pick<Services, 'clock'>, days: number): Date =>
  new Date(clock.now().getTime() - days * DAY_MS)

/** Deletes stored idempotent responses older than 24 h. Returns their number. */
export const pruneIdempotencyKeys = (services: Services, stopping: AbortSignal): Promise<number> => {
  const before = daysAgo(services, 1)
  return deleteInBatches(limit => deleteIdempotencyKeys(services.pool, before, limit), stopping)
}

/** Deletes heartbeats of worker processes without one for a week. Returns their number. */
export const pruneHeartbeats = (services: Services): Promise<number> =>
  deleteHeartbeats(services.pool, daysAgo(services, HEARTBEAT_DAYS))
