import pg from 'pg'
import type { Logger } from '../process/log.ts'
import { DatabaseUnresponsiveError } from './database-errors.ts'
import type { Notifications } from './notify.ts'
import { onPending, pendingStatements } from './pg-client.ts'
import { withoutTenant } from './tenant-context.ts'

/** What waits for the database so long is looked into. */
const SUSPECT_MS = 1000
/** A server that does not answer `select 1` in this time, twice in a row, is silent. */
const PROBE_MS = 1750
const PERIOD_MS = 250

export type ServerWatchdog = {
  /** Whether the server is known not to answer. */
  isSilent(): boolean
  /**
   * The outcome of work that waits for a connection, given up when the server falls silent before `begun` is called: work
   * that holds a connection fails with the statement that is cut off.
   */
  waiting<T>(work: (begun: () => void) => Promise<T>): Promise<T>
  close(): void
}

type Work = { since: number; holds: boolean; giveUp: (error: Error) => void }

/**
 * Distinguishes a silent server from a busy one: a host that has gone, a process that hangs, connections that a firewall has
 * dropped or that no server accepts. Neither ends what waits for it. While something waits long, the listening connection is
 * asked for `select 1`; when that stays unanswered too, connections that wait are cut and what waits for one is given up,
 * so that requests fail within five seconds instead of minutes, and further ones at once until the server answers again.
 */
export function watchServer(options: {
  databaseUrl: string
  /** Whether the listening connection goes to the same address; false behind a pooler, which is asked by itself. */
  direct: boolean
  notifications: Pick<Notifications, 'healthy' | 'ping'>
  log: Logger
}): ServerWatchdog {
  const { databaseUrl, direct, notifications, log } = options
  const waiting = new Set<Work>()
  let silent = false
  let probing = false
  let closed = false
  // Never connected: it says how the driver reads the url.
  const { database } = new pg.Client({ connectionString: databaseUrl })
  /** Statements of this database; a process may have clients of others. */
  function* suspects(): Generator<pg.Client> {
    for (const { client, since } of pendingStatements())
      if (isSuspect(since) && client.database === database) yield client
  }

  const probe = async () => {
    probing = true
    const ask = () => (direct && notifications.healthy() ? notifications.ping(PROBE_MS) : canConnect(databaseUrl))
    const answers = (await ask()) || (await ask())
    probing = false
    if (closed) return
    if (answers && silent) log.info('the database answers again')
    if (!answers && !silent) log.error('the database does not answer')
    silent = !answers
    if (!silent) return
    for (const client of [...suspects()]) cut(client)
    for (const { since, holds, giveUp } of waiting)
      if (!holds && isSuspect(since)) giveUp(new DatabaseUnresponsiveError())
  }

  const somethingWaits = (): boolean => {
    for (const { since, holds } of waiting) if (!holds && isSuspect(since)) return true
    return !suspects().next().done
  }
  // Only while something is under way: a process that does nothing would wake up four times a second for this.
  let timer: NodeJS.Timeout | undefined
  const check = () => {
    if (!probing && (silent || somethingWaits())) void probe()
    if (probing || silent || waiting.size > 0 || !pendingStatements().next().done) return
    clearInterval(timer)
    timer = undefined
  }
  const watch = () => {
    timer ??= withoutTenant(() => setInterval(check, PERIOD_MS)).unref()
  }
  const ignore = onPending(watch)

  return {
    isSilent: () => silent,
    waiting(work) {
      return new Promise((resolve, reject) => {
        const entry: Work = { since: performance.now(), holds: false, giveUp: reject }
        waiting.add(entry)
        watch()
        work(() => {
          entry.holds = true
        })
          .then(resolve, reject)
          .finally(() => waiting.delete(entry))
      })
    },
    close() {
      closed = true
      ignore()
      clearInterval(timer)
    },
  }
}

const isSuspect = (since: number): boolean => performance.now() - since > SUSPECT_MS

/** Cuts the socket: an orderly end waits for the server. */
function cut(client: pg.Client): void {
  const { connection } = client as unknown as { connection?: { stream?: { destroy(error: Error): void } } }
  connection?.stream?.destroy(new DatabaseUnresponsiveError())
}

/** For a process whose listening connection is down. */
async function canConnect(databaseUrl: string): Promise<boolean> {
  const client = new pg.Client({ connectionString: databaseUrl, connectionTimeoutMillis: PROBE_MS })
  client.on('error', () => {})
  try {
    await client.connect()
    return true
  } catch {
    return false
  } finally {
    cut(client)
  }
}
