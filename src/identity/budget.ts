import { notReady } from '../core/api/errors.ts'
import type { Pool } from '../core/db/pool.ts'
import { outsideTenancy } from '../core/db/tenancy.ts'
import { perProcess } from '../core/process/per-process.ts'
import type { Services } from '../core/process/services.ts'
import { Shares } from '../core/process/shares.ts'

/** Connections of this process that requests without a credential hold: they do not delay those with one. */
const MAX_CONNECTIONS = 2
const MAX_WAITING = 1000

const connections = perProcess(
  () =>
    new Shares(MAX_CONNECTIONS, {
      most: MAX_WAITING,
      full: () => notReady({ sign_in: 'busy' }, { message: 'Too many sign-ins are in progress', retryAfterSeconds: 5 }),
    }),
)

/** Does database work of a sign-in, here or at the OAuth endpoints; networks take turns. */
export const withBudget = <T>(services: Services, network: string, work: (db: Pool) => Promise<T>): Promise<T> =>
  connections(services).use(network, 1, undefined, () => outsideTenancy(() => work(services.pool)))
