import { randomBytes } from 'node:crypto'
import pg from 'pg'
import type { Logger } from 'pino'
import { settledWithin } from '../base/event-loop.ts'
import { withParameters } from './database-url.ts'
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
type Channel = { subscriptions: Set<Subscription>; ready: Promise<void> }

const FIRST_BACKOFF_MS = 100
const LAST_BACKOFF_MS = 5000

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
  const { log, heartbeatMs = 10_000, heartbeatTimeoutMs = 5000 } = options
  // The server drops the connection, and with it the presence, half a minute after the host of this process was lost.
  const databaseUrl = withParameters(options.databaseUrl, { options: KEEPALIVE_OPTIONS })
  const channels = new Map<string, Channel>()
  let client: DatabaseClient | undefined
  let timer: NodeJS.Timeout | undefined
  let backoff = FIRST_BACKOFF_MS
  let closed = false
  let presence = ''
  let connecting = false
  /** Last statement of the current connection, which runs one at a time. */
  let lastSent: Promise<unknown> = Promise.resolve()

  const query = (target: DatabaseClient, text: string): Promise<{ rows: object[] }> => {
    const sent = lastSent.then(() => {
      if (client !== target) throw new Error('connection lost')
      return target.query(text)
    })
    lastSent = sent.catch(() => {})
    return sent
  }

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
    target.destroy()
    if (closed) return
    log.warn({ err: error }, 'notification connection lost')
    call(() => options.onDown?.(error))
    notifySubscribers('onDown')
    reconnectLater()
  }

  const reconnect = () => {
    if (client || connecting || closed) return
    connecting = true
    connect()
      .then(
        () => {
          log.info('notification connection restored')
          call(() => options.onUp?.())
          notifySubscribers('onReconnect')
        },
        () => {
          if (!closed) reconnectLater()
        },
      )
      .finally(() => {
        connecting = false
      })
  }

  const reconnectLater = () => {
    clearTimeout(timer)
    timer = setTimeout(reconnect, backoff * (0.5 + Math.random()))
    backoff = Math.min(backoff * 2, LAST_BACKOFF_MS)
  }

  const connect = async () => {
    const next = new DatabaseClient({
      connectionString: databaseUrl,
      application_name: options.applicationName ?? 'muster-listen',
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
      await next.query([`select pg_advisory_lock(${lock})`, ...listens].join('; '))
      if (closed) throw new Error('closed')
      client = next
      presence = lock
      lastSent = Promise.resolve()
      // Channels that were added while the statement above ran.
      for (const name of channels.keys())
        if (!names.includes(name)) await query(next, `listen ${pg.escapeIdentifier(name)}`)
    } catch (error) {
      if (client === next) client = undefined
      next.destroy()
      throw error
    }
    backoff = FIRST_BACKOFF_MS
    scheduleHeartbeat(next)
  }

  const scheduleHeartbeat = (target: DatabaseClient) => {
    timer = setTimeout(() => {
      const timeout = setTimeout(() => drop(target, new Error('heartbeat timed out')), heartbeatTimeoutMs)
      query(target, 'select 1')
        .then(
          () => {
            if (client === target) scheduleHeartbeat(target)
          },
          (error: Error) => drop(target, error),
        )
        .finally(() => clearTimeout(timeout))
    }, heartbeatMs)
  }

  /** While the connection is down there is nothing to send: the reconnect listens on all channels. */
  const send = async (statement: 'listen' | 'unlisten', channel: string): Promise<void> => {
    const target = client
    if (target)
      await query(target, `${statement} ${pg.escapeIdentifier(channel)}`).catch((error: Error) => drop(target, error))
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
    async ask(text, timeoutMs) {
      const target = client
      if (!target) throw new Error('not connected')
      const { rows } = (await settledWithin(timeoutMs, query(target, text))) ?? {}
      return rows ? { client: target, row: rows[0] } : null
    },
    reconnect() {
      backoff = FIRST_BACKOFF_MS
      if (client || connecting) return
      clearTimeout(timer)
      reconnect()
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
