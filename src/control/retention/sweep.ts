import type { Services } from '../../core/process/services.ts'
import { deleteHeartbeats, deleteIdempotencyKeys, deleteLoginFailures } from './store.ts'

const DAY_MS = 86_400_000
const LOGIN_FAILURE_DAYS = 1
const HEARTBEAT_DAYS = 7

const ago = ({ clock }: Pick<Services, 'clock'>, days: number): Date => new Date(clock.now().getTime() - days * DAY_MS)

/** Deletes kept answers older than 24 h (conventions, 6). Answers how many. */
export const pruneIdempotencyKeys = (services: Services): Promise<number> =>
  deleteIdempotencyKeys(services.pool, ago(services, 1))

/** Deletes what failed logins left behind once it limits nobody. Answers how many. */
export const pruneLoginFailures = (services: Services): Promise<number> =>
  deleteLoginFailures(services.pool, ago(services, LOGIN_FAILURE_DAYS), services.clock.now())

/** Deletes heartbeats of worker processes that ended a week ago. Answers how many. */
export const pruneHeartbeats = (services: Services): Promise<number> =>
  deleteHeartbeats(services.pool, ago(services, HEARTBEAT_DAYS))
