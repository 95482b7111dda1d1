import { type Clock, systemClock } from '../base/clock.ts'
import type { Config } from '../base/config.ts'
import type { CellIdentity } from '../base/current-cell.ts'
import type { Logger } from '../base/log.ts'
import type { ProcessState, Services } from '../base/services.ts'
import { isTracing } from '../base/telemetry.ts'
import { channelPrefix } from '../db/database-url.ts'
import { openNotifier } from '../db/notifier.ts'
import { openNotifications } from '../db/notify.ts'
import { cancelAbandonedStatements } from '../db/pg-client.ts'
import { openPool } from '../db/pool.ts'
import { replicaOf } from '../db/replica.ts'
import { watchServer } from '../db/server-watchdog.ts'
import { createEgress } from '../net/egress.ts'
import { openResolver } from '../net/resolver.ts'
import { requireRelease, stopWhenOutdated } from '../queues/breaking-migrations.ts'
import { openQueues } from '../queues/queue.ts'
import { secretBoxOf } from '../secrets/secretbox.ts'
import { createWriter } from '../writes/writer.ts'
import { HOME } from './cell.ts'

export type OpenServices = Services & { close(): Promise<void> }

/**
 * Opens the services of a process: pool, queues, listening connection, egress client, secret box. The schema must exist
 * (core/queues/migrate.ts). `close` closes them once, in reverse order.
 * @throws OutdatedReleaseError if the database has a breaking migration of a later release
 */
export async function openServices(
  config: Config,
  options: {
    log: Logger
    role: 'web' | 'worker' | 'cli'
    clock?: Clock
    strict?: boolean
    onRoundTrip?: (text: string) => void
    /** For a cell besides the first: its identity, and the services of the first. */
    of?: { cell: CellIdentity; home: Services }
  },
): Promise<OpenServices> {
  const { log } = options
  const applicationName = `muster ${options.role} ${config.INSTANCE_ID}`.slice(0, 63)
  const secrets = secretBoxOf(config)
  if (config.SECRETS_ENCRYPTION_KEY.length === 0)
    log.warn('SECRETS_ENCRYPTION_KEY is not set: the fixed development key is in use')
  const egress = createEgress({
    allowHosts: config.EGRESS_ALLOW_HOSTS,
    propagateHosts: config.OTEL_PROPAGATE_HOSTS,
    resolve: openResolver({ servers: config.EGRESS_DNS_SERVERS }),
  })
  const queueConnections = options.role === 'worker' ? 6 : 2
  const notifications = await openNotifications({ databaseUrl: config.DATABASE_LISTEN_URL, log })
  const watchdog = watchServer({
    databaseUrl: config.DATABASE_URL,
    listenUrl: config.DATABASE_LISTEN_URL,
    notifications,
    log,
  })
  const abandoned = cancelAbandonedStatements()
  const notifier = openNotifier({ databaseUrl: config.DATABASE_LISTEN_URL, applicationName, log })
  const poolOptions = {
    ...poolSizes(config.DATABASE_POOL_MAX - queueConnections),
    applicationName,
    strict: options.strict,
    spans: config.OTEL_DB_SPANS && isTracing(),
    onRoundTrip: options.onRoundTrip,
  }
  const mayMove = options.of !== undefined
  const pool = await openPool({ ...poolOptions, databaseUrl: config.DATABASE_URL, watchdog, mayMove })
  // Slonik also reports every failed statement here; these are handled by their callers.
  pool.on('error', error => log.debug({ err: error }, 'database error'))
  if (options.role !== 'cli') await stopWhenOutdated({ log, notifications, pool })
  await requireRelease({ pool }).catch(async error => {
    watchdog.close()
    abandoned.close()
    await Promise.all([notifications.close(), notifier.close(), egress.close(), pool.end()])
    throw error
  })
  const queues = await openQueues({
    databaseUrl: config.DATABASE_LISTEN_URL,
    connections: queueConnections,
    applicationName,
    supervise: options.role === 'worker',
    notifier,
    log,
  })
  const writer = createWriter({
    pool,
    queues,
    notifier,
    eventMaxBytes: config.EVENT_DATA_MAX_BYTES,
    channelPrefix: channelPrefix(config.DATABASE_LISTEN_URL),
    // Called by writes only, when the services are open.
    isInOtherCell: id => services.cell?.number === HOME.number && !!services.cells?.isInOtherCell(id),
    onError: error => log.error({ err: error }, 'after-commit action failed'),
  })
  const readsReplica = options.role === 'web' && !options.of
  const replica = readsReplica ? replicaOf(config, { log, primary: pool, pool: poolOptions }) : null
  const state: ProcessState = new Map()
  const services: OpenServices = {
    cell: options.of?.cell ?? null,
    cells: null,
    home: options.of?.home,
    config,
    clock: options.clock ?? systemClock,
    log,
    pool,
    replica,
    queues,
    notifications,
    notifier,
    secrets,
    egress,
    state,
    ...writer,
    close: closeOnce(async () => {
      for (const { close } of [...state.values()].reverse()) await close?.()
      await replica?.close()
      watchdog.close()
      abandoned.close()
      for (const part of [notifications, queues, notifier, egress]) await part.close()
      await pool.end()
    }),
  }
  return services
}

/** Returns the connections of the pool, and those for one project, out of all but the connections of the queues. */
function poolSizes(most: number): { connections: number; perTenant: number } {
  // Minus two connections: to listen and to notify.
  const connections = Math.max(2, most - 2)
  // At least two of three: with one, a statement that waits for a lock would block its whole project.
  return { connections, perTenant: Math.max(Math.min(2, connections - 1), Math.floor(connections / 3)) }
}

/** Returns a function that closes once; later calls wait for the same end. */
function closeOnce(close: () => Promise<void>): () => Promise<void> {
  let closing: Promise<void> | undefined
  return () => {
    closing ??= close()
    return closing
  }
}
