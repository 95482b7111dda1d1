import type { RequestListener, Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { errorBody, serviceNotReady } from '../api/errors.ts'
import { hearsItself, LOST_STATEMENT } from '../db/connections.ts'
import { sqlStateOf } from '../db/database-errors.ts'
import { countStatement, type Queryable, voidStatement } from '../db/sql.ts'
import type { Services } from '../process/services.ts'
import { requestIdOf } from './server.ts'

/** Results by check name: `ok`, or a short reason. */
export type Checks = Record<string, string>

const BUDGET_MS = 2000

/** Reasons that an operator can act on, by SQLSTATE. */
const REASONS: Record<string, string> = {
  ...Object.fromEntries(LOST_STATEMENT.map(code => [code, 'prepared statements do not hold'])),
  '25006': 'read-only',
  '53100': 'disk full',
}

/** Why a check failed, without the addresses and names that messages of the database hold: it is public. */
function reasonOf(error: unknown): string {
  const { code, cause } = error as { code?: unknown; cause?: { code?: unknown } }
  const known = sqlStateOf(error) ?? code ?? cause?.code
  return typeof known === 'string' ? (REASONS[known] ?? `failed with ${known}`) : 'failed'
}

/** Seconds between two writes of the probe, whichever processes are asked and how often. */
const PROBE_SECONDS = 15

/**
 * Checks that the database takes writes. A read-only server refuses the statement also where it would write nothing; a full
 * disk is found by the write, which every process tries until one succeeds.
 */
const probeWrite = (db: Queryable) =>
  db.query(voidStatement`
    update write_probe set written_at = now() where written_at < now() - ${PROBE_SECONDS} * interval '1 s'`)

const withBudget = async (check: () => Promise<string>): Promise<string> => {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<string>(resolve => {
    timer = setTimeout(() => resolve('no answer within 2 s'), BUDGET_MS)
  })
  try {
    return await Promise.race([check(), late])
  } catch (error) {
    return reasonOf(error)
  } finally {
    clearTimeout(timer)
  }
}

/** The checks of /readyz. `expectedMigrations` is the number of files in sql/. */
export async function readinessHandler(services: Services, expectedMigrations: number): Promise<Checks> {
  const { notifications, pool } = services
  const [database, migrations, queue, notified] = await Promise.all([
    withBudget(async () => {
      await probeWrite(pool)
      return 'ok'
    }),
    withBudget(async () => {
      const done = await pool.oneFirst(countStatement`select count(*) from migrations`)
      return done >= expectedMigrations ? 'ok' : `${expectedMigrations - done} migrations are missing`
    }),
    withBudget(async () => {
      await pool.query(countStatement`select count(*) from pgboss.queue`)
      return 'ok'
    }),
    withBudget(async () => {
      if (!notifications.healthy()) return 'not connected'
      await hearsItself(services)()
      return 'ok'
    }),
  ])
  return { database, migrations, queue, storage: database, notifications: notified }
}

export const allHealthy = (checks: Checks): boolean => Object.values(checks).every(result => result === 'ok')

const HEALTH_PATH = /^\/(healthz|readyz|metrics)(\?|$)/

/**
 * Stands before an application so that its process can leave without dropping a request. After `drain` requests in
 * flight go on, new ones are refused with SERVICE_NOT_READY, and health is still answered, so that a balancer sees why.
 */
export function createDrainGate(handler: RequestListener, docsBaseUrl: string) {
  let inFlight = 0
  let drained: (() => void) | undefined
  const listener: RequestListener = (req, res) => {
    if (HEALTH_PATH.test(req.url ?? '')) return handler(req, res)
    if (drained) {
      const error = serviceNotReady({ process: 'shutting down' })
      res.writeHead(error.status, {
        'Content-Type': 'application/json; charset=utf-8',
        'X-Request-Id': requestIdOf(req),
        Connection: 'close',
      })
      res.end(JSON.stringify(errorBody(error, docsBaseUrl)))
      return
    }
    inFlight++
    res.once('close', () => {
      inFlight--
      if (inFlight === 0) drained?.()
    })
    handler(req, res)
  }
  return {
    listener,
    /** Refuses new requests; resolves when none is in flight, or after `graceMs`. */
    drain: (graceMs: number): Promise<void> =>
      new Promise(resolve => {
        const timer = setTimeout(resolve, graceMs)
        drained = () => {
          clearTimeout(timer)
          resolve()
        }
        if (inFlight === 0) drained()
      }),
  }
}

/** Closes a listening server: no new connections, idle ones ended at once, busy ones after their answer or at the end of the grace. */
export function closeServer(server: Server, graceMs: number): Promise<void> {
  return new Promise(resolve => {
    const timer = setTimeout(() => server.closeAllConnections(), graceMs)
    server.close(() => {
      clearTimeout(timer)
      resolve()
    })
    server.closeIdleConnections()
  })
}

export const portOf = (server: Server): number => (server.address() as AddressInfo).port
