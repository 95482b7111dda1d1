import type { Services } from '../../core/process/services.ts'
import { deleteHeartbeats, deleteIdempotencyKeys } from './store.ts'

const DAY_MS = 86_400_000
const HEARTBEAT_DAYS = 7

const ago = ({ clock }: Pick<Services, 'clock'>, days: number): Date => new Date(clock.now().getTime() - days * DAY_MS)

/** Deletes stored idempotency answers older than 24 h. Returns how many. */
export const pruneIdempotencyKeys = (services: Services): Promise<number> =>
  deleteIdempotencyKeys(services.pool, ago(services, 1))

/** Deletes heartbeats of worker processes that ended a week ago. Returns how many. */
export const pruneHeartbeats = (services: Services): Promise<number> =>
  deleteHeartbeats(services.pool, ago(services, HEARTBEAT_DAYS))
