import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { z } from 'zod'
import { errorBody, serviceNotReady } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import { LOST_STATEMENT, notificationCheck } from '../db/connections.ts'
import { sqlStateOf } from '../db/database-errors.ts'
import { hasOverdueStatement } from '../db/server-watchdog.ts'
import { countStatement, type Queryable, sql, voidStatement } from '../db/sql.ts'
import { requestIdOf } from './server.ts'

/** Results by check name: `ok`, or a short reason. */
export type Checks = Record<string, string>

const BUDGET_MS = 2000

const migrationsStatement = sql.type(z.object({ missing: z.int(), isOutdated: z.boolean() }))

/** Actionable reasons by SQLSTATE. */
const REASONS: Record<string, string> = {
  ...Object.fromEntries(LOST_STATEMENT.map(code => [code, 'prepared statements are lost'])),
  '25006': 'read-only',
  '53100': 'disk full',
}

/** Returns the reason of a failed check without addresses and names, because the endpoint is public. */
function reasonOf(error: unknown): string {
  const { code, cause } = error as { code?: unknown; cause?: { code?: unknown } }
  const reason = sqlStateOf(error) ?? code ?? cause?.code
  return typeof reason === 'string' ? (REASONS[reason] ?? `failed with ${reason}`) : 'failed'
}

/** Minimum seconds between two writes of the probe, across all processes. */
const PROBE_SECONDS = 15

/**
 * Checks that the database accepts writes. A read-only server refuses the statement even if it updates no row; a full disk
 * is detected by the write, which every process attempts until one succeeds.
 */
const probeWrite = (db: Queryable) =>
  db.query(voidStatement`
    update write_probe set written_at = now() where written_at < now() - ${PROBE_SECONDS} * interval '1 s'`)

const withBudget = async (check: () => Promise<string>): Promise<string> => {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<string>(resolve => {
    timer = setTimeout(() => resolve('no response within 2 s'), BUDGET_MS)
  })
  try {
    return await Promise.race([check(), late])
  } catch (error) {
    return reasonOf(error)
  } finally {
    clearTimeout(timer)
  }
}

/** Returns the checks of /readyz. `expectedMigrations` are the names of the files in sql/. */
export async function readinessHandler(services: Services, expectedMigrations: readonly string[]): Promise<Checks> {
  const { notifications, pool } = services
  const [database, migrations, queue, notified] = await Promise.all([
    withBudget(async () => {
      await probeWrite(pool)
      return hasOverdueStatement() ? 'a statement exceeded its limit' : 'ok'
    }),
    withBudget(async () => {
      const expected = sql.array([...expectedMigrations], 'text')
      const { missing, isOutdated } = await pool.one(migrationsStatement`
        select (select count(*) from unnest(${expected}) as e (name)
            where not exists (select from migrations m where m.name = e.name)) as missing,
          exists (select from breaking_migrations where name <> all (${expected})) as "isOutdated"`)
      if (isOutdated) return 'a migration requires a later release'
      const all = expectedMigrations.length
      return missing === 0 ? 'ok' : `${all - missing} of ${all} migrations: run muster migrate`
    }),
    withBudget(async () => {
      await pool.query(countStatement`select count(*) from pgboss.queue`)
      return 'ok'
    }),
    withBudget(async () => {
      if (!notifications.healthy()) return 'not connected'
      await notificationCheck(services)()
      return 'ok'
    }),
  ])
  return { database, migrations, queue, storage: database, notifications: notified }
}

export const allHealthy = (checks: Checks): boolean => Object.values(checks).every(result => result === 'ok')

const HEALTH_PATH = /^\/(healthz|readyz|metrics)(\?|$)/

/**
 * Wraps an application so that its process can shut down without dropping requests. After `drain`, requests in flight
 * continue, new ones are refused with SERVICE_NOT_READY, and health endpoints still respond, for load balancers.
 */
export function createDrainGate(handler: RequestListener, docsBaseUrl: string) {
  const inFlight = new Map<ServerResponse, IncomingMessage>()
  let drained: (() => void) | undefined
  const refuse = (req: IncomingMessage, res: ServerResponse) => {
    const error = serviceNotReady({ process: 'shutting down' })
    res.writeHead(error.status, {
      'Content-Type': 'application/json; charset=utf-8',
      'X-Request-Id': requestIdOf(req),
      'Retry-After': '1',
      Connection: 'close',
    })
    res.end(JSON.stringify(errorBody(error, docsBaseUrl)))
  }
  const listener: RequestListener = (req, res) => {
    if (HEALTH_PATH.test(req.url ?? '')) return handler(req, res)
    if (drained) return refuse(req, res)
    inFlight.set(res, req)
    res.once('close', () => {
      inFlight.delete(res)
      if (inFlight.size === 0) drained?.()
    })
    handler(req, res)
  }
  return {
    listener,
    /**
     * Refuses new requests. Resolves when no request is in flight, or after `graceMs`, when it refuses the requests that
     * have no response yet: their work continues in workers, and a repeat finds it.
     */
    drain: (graceMs: number): Promise<void> =>
      new Promise(resolve => {
        const timer = setTimeout(() => {
          for (const [res, req] of inFlight) if (!res.headersSent) refuse(req, res)
          resolve()
        }, graceMs)
        drained = () => {
          clearTimeout(timer)
          resolve()
        }
        if (inFlight.size === 0) drained()
      }),
  }
}

/** Closes a listening server: idle connections immediately, busy ones after their response or after `graceMs`. */
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
