import { randomBytes } from 'node:crypto'
import pg from 'pg'
import type { Logger } from 'pino'
import { DatabaseClient } from './pg-client.ts'

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
  /** Whether the server answers on this connection in time; false while it is down. */
  ping(timeoutMs: number): Promise<boolean>
  /**
   * Returns the number of the advisory lock that the server holds while the current connection exists. Rows that carry it
   * are valid only during that time; it changes with each reconnect.
   */
  presence(): string
  close(): Promise<void>
}

type Subscription = { handler: (payload: string) => void; onReconnect?: () => void; onDown?: () => void }
type Channel = { subscriptions: Set<Subscription>; ready: Promise<void> }

const FIRST_BACKOFF_MS = 100
const LAST_BACKOFF_MS = 5000

/** The server drops the connection, and with it the presence, half a minute after the host of this process was lost. */
const KEEPALIVE = 'set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 4'

/**
 * Opens this process's one listening connection. It requires a dedicated session (no transaction pooler). A heartbeat
 * every `heartbeatMs` (default 10 s) without an answer in `heartbeatTimeoutMs` (default 5 s) counts as a lost
 * connection. Lost connections are reopened with backoff, without limit.
 * @throws when the first connection fails
 */
export async function openNotifications(options: {
  databaseUrl: string
  log: Logger
  applicationName?: string
  heartbeatMs?: number
  heartbeatTimeoutMs?: number
  onDown?: (error: Error) => void
  onUp?: () => void
}): Promise<Notifications> {
  const { databaseUrl, log, heartbeatMs = 10_000, heartbeatTimeoutMs = 5000 } = options
  const channels = new Map<string, Channel>()
  let client: DatabaseClient | undefined
  let timer: NodeJS.Timeout | undefined
  let backoff = FIRST_BACKOFF_MS
  let closed = false
  let presence = ''

  const call = (work: () => void) => {
    try {
      work()
    } catch (error) {
      log.error({ err: error }, 'notification handler failed')
    }
  }

  const notifySubscribers = (name: 'onReconnect' | 'onDown') => {
    for (const { subscriptions } of channels.values())
      for (const { [name]: callback } of [...subscriptions]) if (callback) call(callback)
  }

  const drop = (target: DatabaseClient, error: Error) => {
    if (client !== target) return
    client = undefined
    clearTimeout(timer)
    // A half-open connection never answers a Terminate message.
    destroyConnection(target)
    if (closed) return
    log.warn({ err: error }, 'notification connection lost')
    call(() => options.onDown?.(error))
    notifySubscribers('onDown')
    reconnectLater()
  }

  const reconnectLater = () => {
    timer = setTimeout(
      () => {
        connect().then(
          () => {
            log.info('notification connection restored')
            call(() => options.onUp?.())
            notifySubscribers('onReconnect')
          },
          () => {
            if (!closed) reconnectLater()
          },
        )
      },
      backoff * (0.5 + Math.random()),
    )
    backoff = Math.min(backoff * 2, LAST_BACKOFF_MS)
  }

  const connect = async () => {
    const next = new DatabaseClient({
      connectionString: databaseUrl,
      application_name: options.applicationName ?? 'muster-listen',
      keepAlive: true,
      keepAliveInitialDelayMillis: 10_000,
      connectionTimeoutMillis: 5000,
    })
    next.on('error', error => drop(next, error))
    next.on('end', () => drop(next, new Error('connection ended')))
    next.on('notification', ({ channel, payload }) => {
      for (const { handler } of [...(channels.get(channel)?.subscriptions ?? [])]) call(() => handler(payload ?? ''))
    })
    try {
      await next.connect()
      const names = [...channels.keys()]
      const lock = randomBytes(8).readBigInt64BE().toString()
      const listens = names.map(name => `listen ${pg.escapeIdentifier(name)}`)
      await next.query([KEEPALIVE, `select pg_advisory_lock(${lock})`, ...listens].join('; '))
      if (closed) throw new Error('closed')
      client = next
      presence = lock
      // Channels that were added while the statement above ran.
      for (const name of channels.keys())
        if (!names.includes(name)) await next.query(`listen ${pg.escapeIdentifier(name)}`)
    } catch (error) {
      if (client === next) client = undefined
      destroyConnection(next)
      throw error
    }
    backoff = FIRST_BACKOFF_MS
    scheduleHeartbeat(next)
  }

  const scheduleHeartbeat = (target: DatabaseClient) => {
    timer = setTimeout(() => {
      const timeout = setTimeout(() => drop(target, new Error('heartbeat timed out')), heartbeatTimeoutMs)
      target
        .query('select 1')
        .then(
          () => {
            if (client === target) scheduleHeartbeat(target)
          },
          (error: Error) => drop(target, error),
        )
        .finally(() => clearTimeout(timeout))
    }, heartbeatMs)
  }

  let lastSent: Promise<unknown> = Promise.resolve()
  /** Sends one statement at a time, in the order of the calls. */
  const send = (statement: 'listen' | 'unlisten', channel: string): Promise<void> => {
    const sending = lastSent.then(async () => {
      const target = client
      // While the connection is down there is nothing to send: the reconnect listens on all channels.
      await target?.query(`${statement} ${pg.escapeIdentifier(channel)}`).catch((error: Error) => drop(target, error))
    })
    lastSent = sending
    return sending
  }

  await connect()

  return {
    listen(channel, handler, callbacks = {}) {
      const subscription: Subscription = { handler, ...callbacks }
      const entry = channels.get(channel) ?? { subscriptions: new Set<Subscription>(), ready: send('listen', channel) }
      entry.subscriptions.add(subscription)
      channels.set(channel, entry)
      const unsubscribe = () => {
        if (!entry.subscriptions.delete(subscription) || entry.subscriptions.size > 0) return
        if (channels.get(channel) !== entry) return
        channels.delete(channel)
        void send('unlisten', channel)
      }
      return Object.assign(unsubscribe, { ready: entry.ready })
    },
    healthy: () => client !== undefined,
    presence: () => presence,
    async ping(timeoutMs) {
      if (!client) return false
      let timer: NodeJS.Timeout | undefined
      const timedOut = new Promise<boolean>(resolve => {
        // After CPU starvation of this process a pending answer is read before the timeout counts.
        timer = setTimeout(() => setImmediate(() => setImmediate(() => resolve(false))), timeoutMs)
      })
      const answered = client.query('select 1').then(
        () => true,
        () => false,
      )
      return Promise.race([answered, timedOut]).finally(() => clearTimeout(timer))
    },
    async close() {
      closed = true
      clearTimeout(timer)
      const target = client
      client = undefined
      channels.clear()
      await target?.end().catch(() => {})
    },
  }
}

/** Destroys the socket: `end` waits for the server, which never answers on a lost connection. */
export function destroyConnection(client: pg.Client): void {
  client.on('error', () => {})
  const { connection } = client as unknown as { connection?: { stream?: { destroy(): void } } }
  connection?.stream?.destroy()
}
