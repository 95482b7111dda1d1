import { serviceNotReady } from '#core/base/errors.ts'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { Pool } from '#core/db/pool.ts'
import { withoutTenant } from '#core/db/tenant-context.ts'

/** Database connections of this process for unauthenticated requests, so that they cannot delay authenticated ones. */
const MAX_CONNECTIONS = 2
const MAX_WAITING = 1000

const connections = processSingleton(
  () =>
    new FairSemaphore(MAX_CONNECTIONS, {
      most: MAX_WAITING,
      full: () =>
        serviceNotReady({ sign_in: 'busy' }, { message: 'Too many sign-ins are in progress', retryAfterSeconds: 5 }),
    }),
)

/** Runs the database work of a sign-in or an OAuth request under the connection budget, fairly between networks. */
export const withBudget = <T>(services: Services, network: string, work: (db: Pool) => Promise<T>): Promise<T> =>
  connections(services).use(network, 1, undefined, () => withoutTenant(() => work(services.pool)))
