import { settledWithin } from '../base/event-loop.ts'
import type { Logger } from '../base/log.ts'
import { databaseConnectionsEnded } from '../base/metrics.ts'
import { DatabaseUnresponsiveError } from './database-errors.ts'
import { addressOf } from './database-url.ts'
import type { Notifications } from './notify.ts'
import {
  DatabaseClient,
  onPending,
  openClients,
  type PendingStatement,
  pendingStatements,
  SESSION_TIMEOUTS,
} from './pg-client.ts'
import { withoutTenant } from './tenant-context.ts'

/** A wait for the database longer than this triggers a probe. */
const SUSPECT_MS = 1000
/** A server that does not answer a probe in this time, twice in a row, is unresponsive. */
const PROBE_MS = 1750
/** Time without an answer on the listening connection after which a new connection is opened. */
const QUICK_MS = 300
/** Time after which the listening connection is dead: from its probe, and from the answer on a new connection. */
const DEAD_MS = 1000
const DEAD_AFTER_NEW_MS = 500
/** Time for which the server must report a session as idle before its pending statement counts as lost. */
const LOST_MS = 1000
const PERIOD_MS = 250
/** Time for which connections count as lost after some were ended. */
const LOSSES_MS = 10_000

export type ServerWatchdog = {
  /** Whether the last probes of the server failed. */
  isUnresponsive(): boolean
  /** Whether connections were ended in the last seconds. */
  hasEndedConnections(): boolean
  /**
   * Runs work that needs a connection and rejects if the server becomes unresponsive before `begun` is called. Work
   * that holds a connection fails with its aborted statement instead.
   */
  runWhileResponsive<T>(work: (begun: () => void) => Promise<T>): Promise<T>
  close(): void
}

type WaitingWork = { since: number; holds: boolean; reject: (error: Error) => void }

/** Answer of a probe: the process ID of its session, and the sessions that execute no statement. */
type Answer = { pid: number; idle: number[]; client: DatabaseClient }

/** Returns the statement of a probe, which reports the sessions that are idle or gone. */
const activityOf = (pids: readonly number[]) => `
  select pg_backend_pid() as pid, array(
    select e.pid from unnest('{${pids}}'::int[]) e (pid)
    where not exists (select from pg_stat_activity a where a.pid = e.pid and coalesce(a.state, '') not like 'idle%')) as idle`

/** Session of a connection that was ended. */
type EndedSession = { pid: number; openedAt: number; endedAt: number }

/** Time after which the server has ended the transaction of such a session itself. */
const TERMINATE_FOR_MS = 2 * SESSION_TIMEOUTS.idle_in_transaction_session_timeout

// A session that began after the connection was opened has the same process ID by chance.
const terminationOf = (sessions: readonly EndedSession[]) => `
  select count(pg_terminate_backend(a.pid))
  from unnest('{${sessions.map(({ pid }) => pid)}}'::int[],
    '{${sessions.map(({ openedAt }) => performance.now() - openedAt)}}'::float8[]) e (pid, open_ms)
  join pg_stat_activity a on a.pid = e.pid
  where a.usename = current_user and a.backend_start <= now() - e.open_ms * interval '1 ms'`

/**
 * Finds connections that died without a FIN or RST: a lost host, a hanging process, a firewall or proxy that forgot
 * them. None of these ends a pending statement. While a statement or a wait for a connection takes long, the server is
 * probed on the listening connection and, without a quick answer, on a new connection.
 *
 * - Neither is answered: the server is unresponsive. All connections are ended, also idle ones, which would lose a later
 *   statement, and waiting work is rejected, so that requests fail within five seconds instead of minutes. Further
 *   requests fail immediately until the server answers again.
 * - Only the new connection is answered: the older connections are dead and are ended.
 * - The server reports the session of a pending statement as idle or gone: the statement or its answer was lost, and its
 *   connection is ended, with the idle ones if new connections pass. With a pooler, whose process IDs differ from the
 *   server's, it ends at its limit.
 * - A statement exceeds its limit: its connection is ended.
 *
 * Once the server answers, the sessions of ended connections are terminated, because they may hold locks.
 */
export function watchServer(options: {
  databaseUrl: string
  /** URL of the listening connection; another one than `databaseUrl` with a pooler. */
  listenUrl: string
  notifications: Pick<Notifications, 'healthy' | 'ask' | 'reconnect'>
  log: Logger
}): ServerWatchdog {
  const { databaseUrl, listenUrl, notifications, log } = options
  const waiting = new Set<WaitingWork>()
  let closed = false

  const onFailed = () => {
    for (const { since, holds, reject } of waiting)
      if (!holds && isSuspect(since)) reject(new DatabaseUnresponsiveError())
  }
  const hasWaiting = (): boolean => {
    for (const { since, holds } of waiting) if (!holds && isSuspect(since)) return true
    return false
  }
  const server = new WatchedAddress(listenUrl, log, notifications)
  const isPooled = addressOf(databaseUrl) !== addressOf(listenUrl)
  const watched = isPooled ? new WatchedAddress(databaseUrl, log, null) : server
  const addresses = new Set([watched, server])

  // Only while statements are pending: otherwise an idle process would wake up four times a second.
  let timer: NodeJS.Timeout | undefined
  const check = () => {
    let isBusy = waiting.size > 0 || pendingStatements().size > 0
    for (const address of addresses) {
      address.endOverdue()
      const waits = address === watched && hasWaiting()
      if (!address.probing && (waits || address.needsProbe()))
        void address.probe().then(() => {
          if (!closed && address === watched && address.unresponsive) onFailed()
        })
      if (address.probing || address.needsProbe()) isBusy = true
    }
    if (isBusy) return
    clearInterval(timer)
    timer = undefined
  }
  const startTimer = () => {
    timer ??= withoutTenant(() => setInterval(check, PERIOD_MS)).unref()
  }
  const unsubscribe = onPending(startTimer)

  return {
    isUnresponsive: () => watched.unresponsive,
    hasEndedConnections: () => performance.now() - watched.endedAt < LOSSES_MS,
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
      for (const address of addresses) address.closed = true
      unsubscribe()
      clearInterval(timer)
    },
  }
}

/** Whether a statement of this process has exceeded its limit. */
export function hasOverdueStatement(): boolean {
  for (const statement of pendingStatements()) if (isOverdue(statement)) return true
  return false
}

const isSuspect = (since: number): boolean => performance.now() - since > SUSPECT_MS

const isOverdue = ({ since, limitMs }: PendingStatement): boolean => performance.now() - since > limitMs

type Listener = Pick<Notifications, 'healthy' | 'ask' | 'reconnect'>

/** The connections of this process to one server or pooler. */
class WatchedAddress {
  unresponsive = false
  /** Time when connections were last ended. */
  endedAt = Number.NEGATIVE_INFINITY
  probing = false
  closed = false
  readonly #url: string
  readonly #address: string
  readonly #log: Logger
  readonly #listener: Listener | null
  /** Whether the process IDs of connections are the server's; false with a pooler. */
  #isDirect = true
  /** Time of the first probe that found the session of a pending statement idle. */
  readonly #idleSince = new WeakMap<PendingStatement, number>()
  /** Sessions of ended connections, which may continue at the server. */
  #ended: EndedSession[] = []

  /** @param listener the listening connection, if it has this address */
  constructor(url: string, log: Logger, listener: Listener | null) {
    this.#url = url
    this.#address = addressOf(url)
    this.#log = log
    this.#listener = listener
  }

  /** Whether a statement takes long, or sessions are to be terminated. */
  needsProbe(): boolean {
    return this.unresponsive || this.#ended.length > 0 || this.#suspects().length > 0
  }

  #suspects(): PendingStatement[] {
    return [...pendingStatements()].filter(({ since, client }) => isSuspect(since) && client.address === this.#address)
  }

  /** Ends the connections of statements that exceeded their limit. */
  endOverdue(): void {
    const overdue = this.#suspects().filter(isOverdue)
    this.#end(
      overdue.map(({ client }) => client),
      'limit',
    )
  }

  async probe(): Promise<void> {
    this.probing = true
    const startedAt = performance.now()
    const suspects = this.#suspects()
    const { answer, isListenerDead } = await this.#ask(suspects)
    this.probing = false
    if (this.closed) return
    const older = [...openClients()].filter(
      ({ address, openedAt }) => address === this.#address && openedAt < startedAt,
    )
    const wasUnresponsive = this.unresponsive
    this.unresponsive = answer === null
    if (!answer) {
      if (!wasUnresponsive) this.#log.error('database unresponsive')
      return this.#end(older, 'unresponsive')
    }
    if (isListenerDead) this.#end(older, 'dead')
    if (wasUnresponsive) {
      this.#log.info('database recovered')
      // Their attempt to connect began before, and would only end with its timeout.
      for (const client of older) if (!client.isConnected) client.destroy()
      this.#listener?.reconnect()
    }
    const lost = this.#lost(suspects, new Set(answer.idle))
    this.#end(lost, 'lost')
    if (lost.length > 0) await this.#endIdle(older, answer)
    await this.#terminateEnded()
  }

  /** Probes the server on the listening connection and, without a quick answer, on a new connection. */
  async #ask(suspects: readonly PendingStatement[]): Promise<{ answer: Answer | null; isListenerDead: boolean }> {
    const text = activityOf(suspects.flatMap(({ client }) => client.sessionId ?? []))
    const startedAt = performance.now()
    const listener = this.#listener?.healthy() ? this.#listener.ask(text, 2 * PROBE_MS) : undefined
    // A lost listening connection says nothing of the others.
    const onListener = listener?.then(
      reply => reply && this.#read(reply),
      () => 'failed' as const,
    )
    const quick = onListener && (await settledWithin(QUICK_MS, onListener))
    if (quick && quick !== 'failed') return { answer: quick, isListenerDead: false }
    const onNew = this.#askNew(text).then(reply => reply ?? this.#askNew(text))
    const either = onListener?.then(answer => (answer === 'failed' || !answer ? onNew : answer))
    const answer = await Promise.race([onNew.then(reply => reply ?? either ?? null), either ?? onNew])
    if (!answer || !onListener) return { answer, isListenerDead: false }
    const restMs = Math.max(DEAD_MS - (performance.now() - startedAt), DEAD_AFTER_NEW_MS)
    return { answer, isListenerDead: !(await settledWithin(restMs, onListener)) }
  }

  async #askNew(text: string): Promise<Answer | null> {
    const reply = await this.#query(text)
    return reply && this.#read(reply)
  }

  /** Sends a statement on a new connection. Returns its row, null without an answer in time. */
  async #query(text: string): Promise<{ client: DatabaseClient; row: object } | null> {
    const client = new DatabaseClient({ connectionString: this.#url, connectionTimeoutMillis: PROBE_MS })
    client.on('error', () => {})
    const answered = client
      .connect()
      .then(() => client.query(text))
      .then(({ rows }: { rows: object[] }) => ({ client, row: rows[0] }))
    try {
      return (
        (await settledWithin(
          PROBE_MS,
          answered.catch(() => null),
        )) ?? null
      )
    } finally {
      client.destroy()
    }
  }

  #read({ client, row }: { client: DatabaseClient; row: object }): Answer {
    const answer = row as Omit<Answer, 'client'>
    this.#isDirect = answer.pid === client.sessionId
    return { ...answer, client, ...(!this.#isDirect && { idle: [] }) }
  }

  /**
   * Ends the idle connections after others were lost, if new ones pass: what lost those may have lost some of these, and each
   * would lose a statement for seconds.
   */
  async #endIdle(clients: readonly DatabaseClient[], { client: answering }: Answer): Promise<void> {
    if (!(await this.#query('select 1'))) return
    const busy = new Set([...pendingStatements()].map(({ client }) => client))
    const isIdle = (client: DatabaseClient) =>
      openClients().has(client) &&
      client.isConnected &&
      client !== answering &&
      !busy.has(client) &&
      client.getTransactionStatus() === 'I'
    this.#end(clients.filter(isIdle), 'lost')
  }

  /** Returns the connections whose statement the server does not execute, in two probes. */
  #lost(suspects: readonly PendingStatement[], idle: ReadonlySet<number>): DatabaseClient[] {
    const now = performance.now()
    const lost: DatabaseClient[] = []
    for (const statement of suspects) {
      const { client } = statement
      if (!pendingStatements().has(statement) || client.sessionId === null) continue
      if (!idle.has(client.sessionId)) {
        this.#idleSince.delete(statement)
        continue
      }
      const since = this.#idleSince.get(statement) ?? now
      this.#idleSince.set(statement, since)
      if (now - since > LOST_MS) lost.push(client)
    }
    return lost
  }

  #end(clients: readonly DatabaseClient[], reason: 'unresponsive' | 'dead' | 'lost' | 'limit'): void {
    if (clients.length === 0) return
    this.endedAt = performance.now()
    databaseConnectionsEnded.inc({ reason }, clients.length)
    if (reason !== 'unresponsive') this.#log.warn({ reason, connections: clients.length }, 'database connections ended')
    for (const client of clients) {
      const { sessionId: pid, openedAt, isConnected } = client
      if (isConnected && pid !== null) this.#ended.push({ pid, openedAt, endedAt: performance.now() })
      client.destroy(new DatabaseUnresponsiveError())
    }
  }

  /** Terminates the sessions of ended connections, which may hold locks. Without success the next probe repeats it. */
  async #terminateEnded(): Promise<void> {
    const since = performance.now() - TERMINATE_FOR_MS
    const ended = this.#isDirect ? this.#ended.filter(({ endedAt }) => endedAt > since) : []
    this.#ended = ended
    if (ended.length === 0) return
    const text = terminationOf(ended)
    const listener = this.#listener?.healthy() ? this.#listener : null
    const reply = await listener?.ask(text, PROBE_MS).catch(() => null)
    if (reply || (await this.#query(text))) this.#ended = this.#ended.filter(session => !ended.includes(session))
  }
}
