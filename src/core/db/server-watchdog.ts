import pg from 'pg'
import type { Logger } from '../process/log.ts'
import { DatabaseUnresponsiveError } from './database-errors.ts'
import type { Notifications } from './notify.ts'
import { onPending, pendingStatements } from './pg-client.ts'
import { withoutTenant } from './tenant-context.ts'

/** A wait for the database longer than this triggers a probe. */
const SUSPECT_MS = 1000
/** A server that does not answer `select 1` in this time, twice in a row, is unresponsive. */
const PROBE_MS = 1750
const PERIOD_MS = 250

export type ServerWatchdog = {
  /** Whether the last probes of the server failed. */
  isUnresponsive(): boolean
  /**
   * Runs work that needs a connection and rejects if the server becomes unresponsive before `begun` is called. Work
   * that holds a connection fails with its aborted statement instead.
   */
  runWhileResponsive<T>(work: (begun: () => void) => Promise<T>): Promise<T>
  close(): void
}

type WaitingWork = { since: number; holds: boolean; reject: (error: Error) => void }

/**
 * Distinguishes an unresponsive server from a busy one: a lost host, a hanging process, connections dropped by a
 * firewall or never accepted. None of them ends a pending statement. While a statement or a wait for a connection takes
 * long, the listening connection sends `select 1`. If that is not answered either, slow connections are destroyed and
 * waiting work is rejected, so that requests fail within five seconds instead of minutes. Further requests fail
 * immediately until the server answers again.
 */
export function watchServer(options: {
  databaseUrl: string
  /**
   * Whether the listening connection has the same address; false with a pooler, which is then probed by a new
   * connection.
   */
  direct: boolean
  notifications: Pick<Notifications, 'healthy' | 'ping'>
  log: Logger
}): ServerWatchdog {
  const { databaseUrl, direct, notifications, log } = options
  const waiting = new Set<WaitingWork>()
  let unresponsive = false
  let probing = false
  let closed = false
  // Never connected: only parses the URL like the driver does.
  const { database } = new pg.Client({ connectionString: databaseUrl })
  /** Clients of this database with a slow statement; a process may have clients of other databases. */
  function* slowClients(): Generator<pg.Client> {
    for (const { client, since } of pendingStatements())
      if (isSuspect(since) && client.database === database) yield client
  }

  const probe = async () => {
    probing = true
    const isResponding = () =>
      direct && notifications.healthy() ? notifications.ping(PROBE_MS) : canConnect(databaseUrl)
    const responds = (await isResponding()) || (await isResponding())
    probing = false
    if (closed) return
    if (responds && unresponsive) log.info('database recovered')
    if (!responds && !unresponsive) log.error('database unresponsive')
    unresponsive = !responds
    if (!unresponsive) return
    for (const client of [...slowClients()]) destroySocket(client)
    for (const { since, holds, reject } of waiting)
      if (!holds && isSuspect(since)) reject(new DatabaseUnresponsiveError())
  }

  const hasSuspects = (): boolean => {
    for (const { since, holds } of waiting) if (!holds && isSuspect(since)) return true
    return !slowClients().next().done
  }
  // Only while statements are pending: otherwise an idle process would wake up four times a second.
  let timer: NodeJS.Timeout | undefined
  const check = () => {
    if (!probing && (unresponsive || hasSuspects())) void probe()
    if (probing || unresponsive || waiting.size > 0 || !pendingStatements().next().done) return
    clearInterval(timer)
    timer = undefined
  }
  const startTimer = () => {
    timer ??= withoutTenant(() => setInterval(check, PERIOD_MS)).unref()
  }
  const unsubscribe = onPending(startTimer)

  return {
    isUnresponsive: () => unresponsive,
    runWhileResponsive(work) {
      return new Promise((resolve, reject) => {
        const entry: WaitingWork = { since: performance.now(), holds: false, reject }
        waiting.add(entry)
        startTimer()
        work(() => {
          entry.holds = true
        })
          .then(resolve, reject)
          .finally(() => waiting.delete(entry))
      })
    },
    close() {
      closed = true
      unsubscribe()
      clearInterval(timer)
    },
  }
}

const isSuspect = (since: number): boolean => performance.now() - since > SUSPECT_MS

/** Destroys the socket: `end` would wait for the server. */
function destroySocket(client: pg.Client): void {
  const { connection } = client as unknown as { connection?: { stream?: { destroy(error: Error): void } } }
  connection?.stream?.destroy(new DatabaseUnresponsiveError())
}

/** Whether a new connection opens in time. For a process whose listening connection is down. */
async function canConnect(databaseUrl: string): Promise<boolean> {
  const client = new pg.Client({ connectionString: databaseUrl, connectionTimeoutMillis: PROBE_MS })
  client.on('error', () => {})
  try {
    await client.connect()
    return true
  } catch {
    return false
  } finally {
    destroySocket(client)
  }
}
