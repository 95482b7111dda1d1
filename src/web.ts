import type { Server } from 'node:http'
import { pathToFileURL } from 'node:url'
import { createApp } from './app.ts'
import { loadSettings } from './config.ts'
import type { Config } from './core/base/config.ts'
import { inCell } from './core/base/current-cell.ts'
import { createLog, type Logger } from './core/base/log.ts'
import type { Services } from './core/base/services.ts'
import { loadConfigOrExit, runUntilShutdown } from './core/base/shutdown.ts'
import { openTelemetry } from './core/base/telemetry.ts'
import { requireConnections } from './core/db/connections.ts'
import { closeServer, createDrainGate, portOf } from './core/http/health.ts'
import { openServer } from './core/http/server.ts'
import { declaredNames, loadModules } from './core/modules/module.ts'
import { HOME } from './core/services/cell.ts'
import { Cells } from './core/services/cells.ts'
import { openServices } from './core/services/lifecycle.ts'
import { migrateAtStart } from './core/services/migrate-cells.ts'
import { stallWatchdog } from './core/services/stall-watchdog.ts'
import { openLocalWork } from './core/work/local-work.ts'
import { startWebHeartbeat } from './core/work/web-heartbeat.ts'
import { modules } from './modules.ts'

export type Web = { port: number; url: string; server: Server; stop(): Promise<void> }

/** Starts the web process: migrates the database if AUTO_MIGRATE is set, starts the modules and serves requests. */
export async function startWeb(config: Config, log: Logger): Promise<Web> {
  loadModules(modules)
  const telemetry = await openTelemetry(config, { role: 'web', log })
  await requireConnections(config)
  if (config.AUTO_MIGRATE) await migrateAtStart(config, log)
  const services = await openServices(config, { log, role: 'web' })
  stallWatchdog(services)
  const serve = async (of: Services) => {
    for (const { start } of modules) await start?.(of, 'web')
    const heartbeat = await startWebHeartbeat(of)
    const local = config.WEB_EXECUTES ? openLocalWork(of, heartbeat.isRecent) : null
    return {
      drain: (mostMs = config.SHUTDOWN_GRACE_MS) => local?.stop(Math.min(mostMs, config.SHUTDOWN_GRACE_MS)),
      end: () => heartbeat.end(),
    }
  }
  const cells = config.CELLS ? new Cells(services, { role: 'web', serve }) : null
  await cells?.start()
  const home = cells ? await inCell(HOME.number, () => serve(services)) : await serve(services)
  log.debug(declaredNames(), 'modules loaded')
  const app = createApp(services)
  const gate = createDrainGate(app.http, config.DOCS_BASE_URL)
  const server = openServer(gate.listener, {
    docsBaseUrl: config.DOCS_BASE_URL,
    log,
    requestTimeoutMs: Math.max(config.HTTP_BODY_TIMEOUT_MS, config.UPLOAD_TIMEOUT_MS),
    keepAliveMs: config.HTTP_KEEP_ALIVE_MS,
    idleMs: config.HTTP_IDLE_TIMEOUT_MS,
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(config.PORT, config.HOST, resolve)
  })
  const port = portOf(server)
  log.info({ port, instance: config.INSTANCE_ID }, 'web is ready')
  let stopping: Promise<void> | undefined
  return {
    port,
    url: `http://127.0.0.1:${port}`,
    server,
    stop: () => {
      stopping ??= (async () => {
        const deadline = performance.now() + config.SHUTDOWN_GRACE_MS
        app.drain()
        await Promise.all([gate.drain(config.SHUTDOWN_GRACE_MS), home.drain(), cells?.drain()])
        await closeServer(server, 100)
        await cells?.close()
        await home.end()
        await services.close()
        await telemetry.close(deadline - performance.now())
        log.info('web stopped')
      })()
      return stopping
    },
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const config = loadConfigOrExit(loadSettings)
  const log = createLog({ level: config.LOG_LEVEL, base: { process: 'web' } })
  await runUntilShutdown(log, () => startWeb(config, log))
}
