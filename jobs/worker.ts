import { writeFile } from 'node:fs/promises'
import { pathToFileURL } from 'node:url'
import express from 'express'
import { z } from 'zod'
import { loadSettings } from '#config.ts'
import { type Config, ConfigError } from '#core/base/config.ts'
import { inCell } from '#core/base/current-cell.ts'
import { HOLDER, instanceId, ownIdentity } from '#core/base/holder.ts'
import { createLog, type Logger } from '#core/base/log.ts'
import type { Services } from '#core/base/services.ts'
import { loadConfigOrExit, runUntilShutdown } from '#core/base/shutdown.ts'
import { openTelemetry } from '#core/base/telemetry.ts'
import { requireConnections } from '#core/db/connections.ts'
import { sql } from '#core/db/sql.ts'
import { mountHealth } from '#core/http/endpoints.ts'
import { closeServer, portOf } from '#core/http/health.ts'
import { openServer } from '#core/http/server.ts'
import { declaredNames, loadModules, workForConcerns } from '#core/modules/module.ts'
import { IDLE_POLL_MS } from '#core/queues/queue.ts'
import { HOME } from '#core/services/cell.ts'
import { Cells } from '#core/services/cells.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { migrateAtStart } from '#core/services/migrate-cells.ts'
import type { Serving } from '#core/services/opened-cells.ts'
import { stallWatchdog } from '#core/services/stall-watchdog.ts'
import { slotsOf } from '#core/work/handler.ts'
import { WORKER_KINDS } from '#core/work/settings.ts'
import { Heartbeat } from '#core/work/takeover.ts'
import { startWorkers } from '#core/work/worker.ts'
import { modules } from '#modules.ts'

export type WorkerProcess = { healthPort: number; stop(): Promise<void> }

/**
 * Starts a worker process for the given concerns.
 * @throws ConfigError if the queue driver of one of them is not supported
 */
export async function startWorker(
  config: Config,
  log: Logger,
  kinds: readonly (typeof WORKER_KINDS)[number][],
): Promise<WorkerProcess> {
  const isOrchestrationWorker = kinds.includes('orchestration')
  if (isOrchestrationWorker && config.ORCHESTRATION_QUEUE_DRIVER !== 'postgres')
    throw new ConfigError('ORCHESTRATION_QUEUE_DRIVER', 'must be postgres')
  loadModules(modules)
  const telemetry = await openTelemetry(config, { role: 'worker', log })
  await requireConnections(config)
  if (config.AUTO_MIGRATE) await migrateAtStart(config, log)
  const services = await openServices(config, { log, role: 'worker' })
  stallWatchdog(services)
  const file = isOrchestrationWorker ? config.ORCHESTRATION_WORKER_HEARTBEAT_FILE : null
  let fileWritten = 0
  const writeHeartbeat = async () => {
    if (file === null) return
    await writeFile(file, new Date().toISOString())
    fileWritten = Date.now()
  }
  const served = config.CELLS && config.WORKER_CELLS.length > 0 ? config.WORKER_CELLS : undefined
  const cells = config.CELLS
    ? new Cells(services, {
        role: 'worker',
        serve: cell => serveQueues(cell, kinds),
        only: served,
      })
    : null
  // Before home, whose work may be about projects of other cells.
  await cells?.start()
  const serveHome = () => serveQueues(services, kinds, writeHeartbeat)
  const servesHome = served?.includes(HOME.name) ?? true
  const home = servesHome ? await (cells ? inCell(HOME.number, serveHome) : serveHome()) : null
  log.debug(declaredNames(), 'modules loaded')
  const app = express()
  app.disable('x-powered-by')
  let draining = false
  mountHealth(app, services, {
    draining: () => draining,
    extra: () => ({
      ...(home && {
        worker: home.heartbeat.ageMs < config.WORKER_HEARTBEAT_STALE_MS ? 'ok' : 'no recent successful poll',
      }),
      ...(file !== null && {
        heartbeat_file:
          Date.now() - fileWritten < config.ORCHESTRATION_WORKER_HEARTBEAT_STALE_MS ? 'ok' : 'not written recently',
      }),
    }),
  })
  const server = openServer(app, {
    docsBaseUrl: config.DOCS_BASE_URL,
    log,
    idleMs: config.HTTP_IDLE_TIMEOUT_MS,
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(config.WORKER_HEALTH_PORT, config.HOST, resolve)
  })
  const healthPort = portOf(server)
  // It may have work already: a heartbeat that fails now is followed by others.
  await home?.beat().catch(error => log.warn({ err: error }, 'heartbeat failed'))
  log.info({ kinds, health_port: healthPort, instance: config.INSTANCE_ID }, 'worker is ready')
  const unserved = await listUnservedConcerns(services, config.WORKER_HEARTBEAT_STALE_MS).catch(error => {
    log.warn({ err: error }, 'concerns without a worker are not known')
    return []
  })
  if (unserved.length > 0) log.warn({ concerns: unserved }, 'concerns without a worker')
  let stopping: Promise<void> | undefined
  return {
    healthPort,
    stop: () => {
      stopping ??= (async () => {
        const deadline = performance.now() + config.SHUTDOWN_GRACE_MS
        draining = true
        await Promise.all([home?.drain(), cells?.drain()])
        await closeServer(server, 1000)
        await cells?.close()
        await home?.end()
        await services.close()
        await telemetry.close(deadline - performance.now())
        log.info('worker stopped')
      })()
      return stopping
    },
  }
}

/**
 * Starts the modules, heartbeats and consumers of a worker in a cell.
 * @param onPoll called after each successful poll
 */
async function serveQueues(
  services: Services,
  kinds: readonly (typeof WORKER_KINDS)[number][],
  onPoll?: () => Promise<unknown>,
): Promise<Serving & { heartbeat: Heartbeat; beat(): Promise<void> }> {
  const { config, log } = services
  for (const { start } of modules) await start?.(services, 'worker')
  const { handlers, schedules, background } = workForConcerns(kinds)
  const instance = instanceId(config, 'worker')
  const queues = Object.fromEntries(handlers.map(handler => [handler.queue.name, slotsOf(handler, config)]))
  const heartbeat = new Heartbeat(services, { instance, kinds, holder: HOLDER, identity: ownIdentity(), queues })
  const beat = async () => {
    // Polls are at most one interval apart from each other. Writing from half an interval on keeps heartbeats closer
    // than two intervals, after which other workers end the leases of this one.
    if (heartbeat.ageMs >= config.WORKER_HEARTBEAT_INTERVAL_MS / 2) await heartbeat.beat()
  }
  // Before the first claim, so that other workers can attribute its leases.
  await heartbeat.beat().catch(error => log.error({ err: error }, 'first heartbeat failed'))
  const workers = await startWorkers({
    services,
    handlers,
    schedules,
    background,
    concurrency: config.WORKER_CONCURRENCY,
    projectShare: config.PROJECT_WORKER_SHARE,
    listen: services.notifications,
    idleMs: Math.min(IDLE_POLL_MS, config.WORKER_HEARTBEAT_INTERVAL_MS),
    onPoll: () => Promise.all([beat(), onPoll?.()]),
    workers: () => heartbeat.workers,
  })
  let draining: Promise<unknown> | undefined
  const drain = async (mostMs?: number) => {
    // Polls have stopped, but heartbeats must continue until running handlers end, or other workers take over.
    const beatTimer = setInterval(() => void beat().catch(() => {}), config.WORKER_HEARTBEAT_INTERVAL_MS / 2)
    await workers.stop(config.SHUTDOWN_GRACE_MS, mostMs)
    clearInterval(beatTimer)
  }
  return {
    heartbeat,
    beat,
    drain: mostMs => {
      draining ??= drain(mostMs)
      return draining
    },
    end: () => heartbeat.end().catch(() => {}),
  }
}

/** Lists the concerns without a live worker in the deployment. */
async function listUnservedConcerns({ pool }: Pick<Services, 'pool'>, staleMs: number) {
  const servedKinds = await pool.anyFirst(sql.type(z.strictObject({ kind: z.string() }))`
    select distinct unnest(kinds) as kind from worker_heartbeats
    where beat_at > now() - make_interval(secs => ${staleMs / 1000})`)
  return WORKER_KINDS.filter(kind => !servedKinds.includes(kind))
}

/**
 * Returns the concerns named on the command line, WORKER_KINDS without any.
 * @throws ConfigError for an unknown concern
 */
export function concernsOf(names: readonly string[], config: Config): (typeof WORKER_KINDS)[number][] {
  if (names.length === 0) return config.WORKER_KINDS
  for (const name of names)
    if (!(WORKER_KINDS as readonly string[]).includes(name))
      throw new ConfigError(name, `is not a worker concern; use one of ${WORKER_KINDS.join(', ')}`)
  return names as (typeof WORKER_KINDS)[number][]
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const config = loadConfigOrExit(loadSettings)
  const log = createLog({ level: config.LOG_LEVEL, base: { process: 'worker' } })
  const kinds = loadConfigOrExit(() => concernsOf(process.argv.slice(2), config))
  await runUntilShutdown(log, () => startWorker(config, log, kinds))
}
