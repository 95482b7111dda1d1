import { randomBytes } from 'node:crypto'
import pg from 'pg'
import type { Logger } from 'pino'
import { settledWithin } from '../base/event-loop.ts'
import { channelPrefix, withParameters } from './database-url.ts'
import { DatabaseClient, KEEPALIVE_OPTIONS } from './pg-client.ts'

declare module '../base/services.ts' {
  interface Services {
    notifications: Notifications
  }
}

/** Ends a subscription. `ready` resolves when PostgreSQL has confirmed the LISTEN: later notifications arrive. */
export type Unsubscribe = (() => void) & { ready: Promise<void> }

export type Notifications = {
  /**
   * Calls `handler` with the payload of every notification on `channel`. Notifications are lost while the connection is
   * down: `onDown` is called when the loss is detected, `onReconnect` after each reconnect, for reading missed changes.
   */
  listen(
    channel: string,
    handler: (payload: string) => void,
    options?: { onReconnect?: () => void; onDown?: () => void },
  ): Unsubscribe
  /** False while the connection is down. */
  healthy(): boolean
  /**
   * Sends a statement that returns one row. Returns null without an answer in time.
   * @throws if the connection is down or lost
   */
  ask(text: string, timeoutMs: number): Promise<{ client: DatabaseClient; row: object } | null>
  /** Reconnects now, if the connection is down, instead of after the current backoff. */
  reconnect(): void
  /**
   * Returns the number of the advisory lock that the server holds while the current connection exists. Rows that carry it
   * are valid only during that time; it changes with each reconnect.
   */
  presence(): string
  close(): Promise<void>
}

type Subscription = { handler: (payload: string) => void; onReconnect?: () => void; onDown?: () => void }
type Channel = { subscriptions: Set<Subscription>; ready: Promise<void>; idle?: NodeJS.Timeout }

const FIRST_BACKOFF_MS = 100
/** Short enough that a process is ready within seconds of a failover that took longer. */
const LAST_BACKOFF_MS = 2000

type NotificationOptions = {
  databaseUrl: string
  log: Logger
  applicationName?: string
  heartbeatMs?: number
  heartbeatTimeoutMs?: number
  /** Time without subscriptions after which a channel is left; default 10 s. */
  idleMs?: number
  onDown?: (error: Error) => void
  onUp?: () => void
}

/**
 * Opens this process's one listening connection. It requires a dedicated session (no transaction pooler). A heartbeat
 * every `heartbeatMs` (default 10 s) without an answer in `heartbeatTimeoutMs` (default 5 s) counts as a lost
 * connection. Lost connections are reopened with backoff, without limit.
 * @throws when the first connection fails
 */
export async function openNotifications(options: NotificationOptions): Promise<Notifications> {
  const connection = new ListeningConnection(options)
  await connection.connect()
  return connection
}

class ListeningConnection implements Notifications {
  readonly #options: NotificationOptions
  readonly #databaseUrl: string
  readonly #prefix: string
  readonly #heartbeatMs: number
  readonly #heartbeatTimeoutMs: number
  readonly #idleMs: number
  readonly #channels = new Map<string, Channel>()
  #client: DatabaseClient | undefined
  #timer: NodeJS.Timeout | undefined
  #backoff = FIRST_BACKOFF_MS
  #closed = false
  #presence = ''
  #connecting = false
  /** Last statement of the current connection, which runs one at a time. */
  #lastSent: Promise<unknown> = Promise.resolve()

  constructor(options: NotificationOptions) {
    this.#options = options
    this.#prefix = channelPrefix(options.databaseUrl)
    this.#heartbeatMs = options.heartbeatMs ?? 10_000
    this.#heartbeatTimeoutMs = options.heartbeatTimeoutMs ?? 5000
    // Without it, each of several short waits would send two statements.
    this.#idleMs = options.idleMs ?? 10_000
    // The server drops the connection, and with it the presence, half a minute after the host of this process was lost.
    this.#databaseUrl = withParameters(options.databaseUrl, { options: KEEPALIVE_OPTIONS })
  }

  listen(name: string, handler: Subscription['handler'], callbacks: Omit<Subscription, 'handler'> = {}): Unsubscribe {
    const channel = this.#prefix + name
    const subscription: Subscription = { handler, ...callbacks }
    const entry = this.#channels.get(channel) ?? {
      subscriptions: new Set<Subscription>(),
      ready: this.#send('listen', channel),
    }
    clearTimeout(entry.idle)
    entry.subscriptions.add(subscription)
    this.#channels.set(channel, entry)
    const unsubscribe = () => {
      if (!entry.subscriptions.delete(subscription) || entry.subscriptions.size > 0) return
      entry.idle = setTimeout(() => this.#leave(channel, entry), this.#idleMs).unref()
    }
    return Object.assign(unsubscribe, { ready: entry.ready })
  }

  #leave(channel: string, entry: Channel): void {
    if (this.#channels.get(channel) !== entry) return
    this.#channels.delete(channel)
    void this.#send('unlisten', channel)
  }

  healthy(): boolean {
    return this.#client !== undefined
  }

  presence(): string {
    return this.#presence
  }

  async ask(text: string, timeoutMs: number): Promise<{ client: DatabaseClient; row: object } | null> {
    const target = this.#client
    if (!target) throw new Error('not connected')
    const { rows } = (await settledWithin(timeoutMs, this.#query(target, text))) ?? {}
    return rows ? { client: target, row: rows[0] } : null
  }

  reconnect(): void {
    this.#backoff = FIRST_BACKOFF_MS
    if (this.#client || this.#connecting) return
    clearTimeout(this.#timer)
    this.#reopen()
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    const target = this.#client
    this.#client = undefined
    this.#channels.clear()
    await target?.end().catch(() => {})
  }

  #query(target: DatabaseClient, text: string): Promise<{ rows: object[] }> {
    const sent = this.#lastSent.then(() => {
      if (this.#client !== target) throw new Error('connection lost')
      return target.query(text)
    })
    this.#lastSent = sent.catch(() => {})
    return sent
  }

  #call(work: () => void): void {
    try {
      work()
    } catch (error) {
      this.#options.log.error({ err: error }, 'notification handler failed')
    }
  }

  #notifySubscribers(name: 'onReconnect' | 'onDown'): void {
    for (const { subscriptions } of this.#channels.values())
      for (const { [name]: callback } of [...subscriptions]) if (callback) this.#call(callback)
  }

  #drop(target: DatabaseClient, error: Error): void {
    if (this.#client !== target) return
    this.#client = undefined
    clearTimeout(this.#timer)
    // A half-open connection never answers a Terminate message.
    target.destroy()
    if (this.#closed) return
    this.#options.log.warn({ err: error }, 'notification connection lost')
    this.#call(() => this.#options.onDown?.(error))
    this.#notifySubscribers('onDown')
    this.#reopenLater()
  }

  #reopen(): void {
    if (this.#client || this.#connecting || this.#closed) return
    this.#connecting = true
    this.connect()
      .then(
        () => {
          this.#options.log.info('notification connection restored')
          this.#call(() => this.#options.onUp?.())
          this.#notifySubscribers('onReconnect')
        },
        () => {
          if (!this.#closed) this.#reopenLater()
        },
      )
      .finally(() => {
        this.#connecting = false
      })
  }

  #reopenLater(): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.#reopen(), this.#backoff * (0.5 + Math.random()))
    this.#backoff = Math.min(this.#backoff * 2, LAST_BACKOFF_MS)
  }

  /** Opens the connection and listens on all channels. */
  async connect(): Promise<void> {
    const next = new DatabaseClient({
      connectionString: this.#databaseUrl,
      application_name: this.#options.applicationName ?? 'muster-listen',
    })
    next.on('error', error => this.#drop(next, error))
    next.on('end', () => this.#drop(next, new Error('connection ended')))
    next.on('notification', ({ channel, payload }) => {
      for (const { handler } of [...(this.#channels.get(channel)?.subscriptions ?? [])])
        this.#call(() => handler(payload ?? ''))
    })
    try {
      await next.connect()
      const names = [...this.#channels.keys()]
      const lock = randomBytes(8).readBigInt64BE().toString()
      const listens = names.map(name => `listen ${pg.escapeIdentifier(name)}`)
      await next.query([`select pg_advisory_lock(${lock})`, ...listens].join('; '))
      if (this.#closed) throw new Error('closed')
      this.#client = next
      this.#presence = lock
      this.#lastSent = Promise.resolve()
      // Channels that were added while the statement above ran.
      for (const name of this.#channels.keys())
        if (!names.includes(name)) await this.#query(next, `listen ${pg.escapeIdentifier(name)}`)
    } catch (error) {
      if (this.#client === next) this.#client = undefined
      next.destroy()
      throw error
    }
    this.#backoff = FIRST_BACKOFF_MS
    this.#scheduleHeartbeat(next)
  }

  #scheduleHeartbeat(target: DatabaseClient): void {
    this.#timer = setTimeout(() => {
      const timeout = setTimeout(() => this.#drop(target, new Error('heartbeat timed out')), this.#heartbeatTimeoutMs)
      this.#query(target, 'select 1')
        .then(
          () => {
            if (this.#client === target) this.#scheduleHeartbeat(target)
          },
          (error: Error) => this.#drop(target, error),
        )
        .finally(() => clearTimeout(timeout))
    }, this.#heartbeatMs)
  }

  /** While the connection is down there is nothing to send: the reconnect listens on all channels. */
  async #send(statement: 'listen' | 'unlisten', channel: string): Promise<void> {
    const target = this.#client
    if (target)
      await this.#query(target, `${statement} ${pg.escapeIdentifier(channel)}`).catch((error: Error) =>
        this.#drop(target, error),
      )
  }
}
