import { deleteInBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { deleteHeartbeats, deleteIdempotencyKeys } from './store.ts'

const DAY_MS = 86_400_000
const HEARTBEAT_DAYS = 7

const ago = ({ clock }: Pick<Services, 'clock'>, days: number): Date => new Date(clock.now().getTime() - days * DAY_MS)

/** Deletes stored idempotency answers older than 24 h. Returns how many. */
export const pruneIdempotencyKeys = (services: Services, stopping: AbortSignal): Promise<number> => {
  const before = ago(services, 1)
  return deleteInBatches(limit => deleteIdempotencyKeys(services.pool, before, limit), stopping)
}

/** Deletes heartbeats of worker processes that ended a week ago. Returns how many. */
export const pruneHeartbeats = (services: Services): Promise<number> =>
  deleteHeartbeats(services.pool, ago(services, HEARTBEAT_DAYS))
