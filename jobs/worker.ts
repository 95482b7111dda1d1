import { writeFile } from 'node:fs/promises'
import { pathToFileURL } from 'node:url'
import express from 'express'
import { z } from 'zod'
import { type Config, ConfigError, WORKER_KINDS } from '../src/config.ts'
import { declaredNames, loadModules, workForConcerns } from '../src/core/api/module.ts'
import { requireConnections } from '../src/core/db/connections.ts'
import { migrate } from '../src/core/db/migrate.ts'
import { sql } from '../src/core/db/sql.ts'
import { mountHealth } from '../src/core/http/endpoints.ts'
import { closeServer, portOf } from '../src/core/http/health.ts'
import { openServer } from '../src/core/http/server.ts'
import { IDLE_POLL_MS } from '../src/core/jobs/queue.ts'
import { Heartbeat } from '../src/core/jobs/takeover.ts'
import { startWorkers } from '../src/core/jobs/worker.ts'
import { HOLDER, ownIdentity } from '../src/core/process/holder.ts'
import { createLog, type Logger } from '../src/core/process/log.ts'
import type { Services } from '../src/core/process/services.ts'
import { openServices } from '../src/core/process/services-lifecycle.ts'
import { loadSettings } from '../src/core/process/settings.ts'
import { loadConfigOrExit, runUntilShutdown } from '../src/core/process/shutdown.ts'
import { modules } from '../src/modules.ts'

export type WorkerProcess = { healthPort: number; stop(): Promise<void> }

/** Starts a worker process for the concerns named. Raises ConfigError where a queue of theirs cannot be had. */
export async function startWorker(
  config: Config,
  log: Logger,
  kinds: readonly (typeof WORKER_KINDS)[number][],
): Promise<WorkerProcess> {
  const runs = kinds.includes('orchestration')
  if (runs && config.ORCHESTRATION_QUEUE_DRIVER !== 'postgres')
    throw new ConfigError('ORCHESTRATION_QUEUE_DRIVER', 'must be postgres')
  loadModules(modules)
  await requireConnections(config)
  if (config.AUTO_MIGRATE)
    await migrate(config.DATABASE_LISTEN_URL, {
      lockTimeoutMs: config.MIGRATION_LOCK_TIMEOUT_MS,
      jobRetentionDays: config.JOB_RETENTION_DAYS,
      log: line => log.debug(line),
    })
  const services = await openServices(config, { log, role: 'worker' })
  for (const { start } of modules) await start?.(services, 'worker')
  log.debug(declaredNames(), 'modules loaded')
  const { handlers, schedules, background } = workForConcerns(kinds)
  // Two workers may share INSTANCE_ID, and in containers the number of the process too.
  const instance = `${config.INSTANCE_ID}:${HOLDER}`
  const startedAt = new Date().toISOString()
  const heartbeat = new Heartbeat(services, { instance, kinds, startedAt, identity: ownIdentity() })
  const beat = async () => {
    // Polls come at any time, an interval apart at most: so heartbeats are never two apart, after which others end its leases.
    if (heartbeat.ageMs >= config.WORKER_HEARTBEAT_INTERVAL_MS / 2) await heartbeat.beat()
  }
  // Before it takes anything: whoever comes later is to know whose that is.
  await heartbeat.beat().catch(error => log.error({ err: error }, 'first heartbeat not written'))
  const file = runs ? config.ORCHESTRATION_WORKER_HEARTBEAT_FILE : null
  let fileWritten = 0
  const writeHeartbeat = async () => {
    if (file === null) return
    await writeFile(file, new Date().toISOString())
    fileWritten = Date.now()
  }
  const workers = await startWorkers({
    services,
    handlers,
    schedules,
    concurrency: config.WORKER_CONCURRENCY,
    projectShare: config.PROJECT_WORKER_SHARE,
    listen: services.notifications,
    idleMs: Math.min(IDLE_POLL_MS, config.WORKER_HEARTBEAT_INTERVAL_MS),
    onPoll: () => Promise.all([beat(), writeHeartbeat()]),
  })
  const running = background.map(({ start }) => start(services))
  const app = express()
  app.disable('x-powered-by')
  let draining = false
  mountHealth(app, services, {
    draining: () => draining,
    extra: () => ({
      worker: heartbeat.ageMs < config.WORKER_HEARTBEAT_STALE_MS ? 'ok' : 'no successful poll lately',
      ...(file !== null && {
        heartbeat_file:
          Date.now() - fileWritten < config.ORCHESTRATION_WORKER_HEARTBEAT_STALE_MS ? 'ok' : 'not written lately',
      }),
    }),
  })
  const server = openServer(app, { docsBaseUrl: config.DOCS_BASE_URL, log })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(config.WORKER_HEALTH_PORT, config.HOST, resolve)
  })
  const healthPort = portOf(server)
  log.info({ kinds, health_port: healthPort, instance: config.INSTANCE_ID }, 'worker is ready')
  await beat()
  const unserved = await unservedConcerns(services, config.WORKER_HEARTBEAT_STALE_MS)
  if (unserved.length > 0) log.warn({ concerns: unserved }, 'nobody works on these concerns; start a worker for them')
  let stopping: Promise<void> | undefined
  return {
    healthPort,
    stop: () => {
      stopping ??= (async () => {
        draining = true
        // It polls no more, and what it still does is not to be taken for left.
        const beating = setInterval(() => void beat().catch(() => {}), config.WORKER_HEARTBEAT_INTERVAL_MS / 2)
        await Promise.all([workers.stop(config.SHUTDOWN_GRACE_MS), ...running.map(part => part?.close())])
        clearInterval(beating)
        await closeServer(server, 1000)
        await heartbeat.end().catch(() => {})
        await services.close()
        log.info('worker has stopped')
      })()
      return stopping
    },
  }
}

/** The concerns that no worker of the deployment has, this one included. */
async function unservedConcerns({ pool }: Pick<Services, 'pool'>, staleMs: number) {
  const served = await pool.anyFirst(sql.type(z.strictObject({ kind: z.string() }))`
    select distinct unnest(kinds) as kind from worker_heartbeats
    where beat_at > now() - make_interval(secs => ${staleMs / 1000})`)
  return WORKER_KINDS.filter(kind => !served.includes(kind))
}

/** The concerns named on the command line; without names, WORKER_KINDS. Raises ConfigError for an unknown one. */
export function concernsOf(names: readonly string[], config: Config): (typeof WORKER_KINDS)[number][] {
  if (names.length === 0) return config.WORKER_KINDS
  for (const name of names)
    if (!(WORKER_KINDS as readonly string[]).includes(name))
      throw new ConfigError(name, `is no concern of the worker; the concerns are ${WORKER_KINDS.join(', ')}`)
  return names as (typeof WORKER_KINDS)[number][]
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const config = loadConfigOrExit(loadSettings)
  const log = createLog({ level: config.LOG_LEVEL, base: { process: 'worker' } })
  const kinds = loadConfigOrExit(() => concernsOf(process.argv.slice(2), config))
  await runUntilShutdown(log, () => startWorker(config, log, kinds))
}
