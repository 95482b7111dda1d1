import pg from 'pg'
import type { Logger } from 'pino'

/** Ends a subscription. `ready` resolves when PostgreSQL confirmed the LISTEN: what is notified later arrives. */
export type Unsubscribe = (() => void) & { ready: Promise<void> }

export type Notifications = {
  /**
   * Calls `handler` with the payload of every notification on `channel`. What is notified while the connection is down
   * is lost: `onReconnect` is called after each reconnect so that the caller can read what it missed, `onDown` when the
   * connection turns out to be lost.
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
  close(): Promise<void>
}

type Subscription = { handler: (payload: string) => void; onReconnect?: () => void; onDown?: () => void }
type Channel = { subscriptions: Set<Subscription>; ready: Promise<void> }

const FIRST_BACKOFF_MS = 100
const LAST_BACKOFF_MS = 5000

/**
 * Opens this process's one listening connection. It needs a session of its own (no transaction pooler). A heartbeat
 * every `heartbeatMs` (default 10 s) that is not answered in `heartbeatTimeoutMs` (default 5 s) counts as a lost
 * connection; lost ones are opened again with backoff for as long as it takes.
 * @throws when the first connection fails.
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
  let client: pg.Client | undefined
  let timer: NodeJS.Timeout | undefined
  let backoff = FIRST_BACKOFF_MS
  let closed = false

  const call = (work: () => void) => {
    try {
      work()
    } catch (error) {
      log.error({ err: error }, 'notification handler failed')
    }
  }

  const tell = (what: 'onReconnect' | 'onDown') => {
    for (const { subscriptions } of channels.values())
      for (const { [what]: told } of [...subscriptions]) if (told) call(told)
  }

  const drop = (target: pg.Client, error: Error) => {
    if (client !== target) return
    client = undefined
    clearTimeout(timer)
    // A half-open connection never answers an orderly end.
    destroyConnection(target)
    if (closed) return
    log.warn({ err: error }, 'notifications down')
    call(() => options.onDown?.(error))
    tell('onDown')
    reconnectLater()
  }

  const reconnectLater = () => {
    timer = setTimeout(
      () => {
        connect().then(
          () => {
            log.info('notifications up')
            call(() => options.onUp?.())
            tell('onReconnect')
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
    const next = new pg.Client({
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
      if (names.length > 0) await next.query(names.map(name => `listen ${pg.escapeIdentifier(name)}`).join('; '))
      if (closed) throw new Error('closed')
      client = next
      // A channel that was added while the statement above was on its way.
      for (const name of channels.keys())
        if (!names.includes(name)) await next.query(`listen ${pg.escapeIdentifier(name)}`)
    } catch (error) {
      if (client === next) client = undefined
      destroyConnection(next)
      throw error
    }
    backoff = FIRST_BACKOFF_MS
    beatLater(next)
  }

  const beatLater = (target: pg.Client) => {
    timer = setTimeout(() => {
      const late = setTimeout(() => drop(target, new Error('heartbeat timed out')), heartbeatTimeoutMs)
      target
        .query('select 1')
        .then(
          () => {
            if (client === target) beatLater(target)
          },
          error => drop(target, error),
        )
        .finally(() => clearTimeout(late))
    }, heartbeatMs)
  }

  let lastSent: Promise<unknown> = Promise.resolve()
  /** One statement at a time, in the order of the calls. */
  const send = (statement: 'listen' | 'unlisten', channel: string): Promise<void> => {
    const sending = lastSent.then(async () => {
      const target = client
      // While the connection is down the reconnect listens to whatever is subscribed then.
      await target?.query(`${statement} ${pg.escapeIdentifier(channel)}`).catch(error => drop(target, error))
    })
    lastSent = sending
    return sending
  }

  await connect()

  return {
    listen(channel, handler, more = {}) {
      const subscription: Subscription = { handler, ...more }
      const entry = channels.get(channel) ?? { subscriptions: new Set<Subscription>(), ready: send('listen', channel) }
      entry.subscriptions.add(subscription)
      channels.set(channel, entry)
      const end = () => {
        if (!entry.subscriptions.delete(subscription) || entry.subscriptions.size > 0) return
        if (channels.get(channel) !== entry) return
        channels.delete(channel)
        void send('unlisten', channel)
      }
      return Object.assign(end, { ready: entry.ready })
    },
    healthy: () => client !== undefined,
    async ping(timeoutMs) {
      if (!client) return false
      let timer: NodeJS.Timeout | undefined
      const late = new Promise<boolean>(resolve => {
        // An answer that came while this process was kept from the processor is read first.
        timer = setTimeout(() => setImmediate(() => setImmediate(() => resolve(false))), timeoutMs)
      })
      const answered = client.query('select 1').then(
        () => true,
        () => false,
      )
      return Promise.race([answered, late]).finally(() => clearTimeout(timer))
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

/** Cuts the socket: `end` waits for the server, which never answers on a lost connection. */
export function destroyConnection(client: pg.Client): void {
  client.on('error', () => {})
  const { connection } = client as unknown as { connection?: { stream?: { destroy(): void } } }
  connection?.stream?.destroy()
}
