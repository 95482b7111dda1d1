import { once } from 'node:events'
import fs from 'node:fs'
import { createServer } from 'node:http'
import { isIPv6 } from 'node:net'
import path from 'node:path'
import { stderr } from 'node:process'
import type { Config } from '../config.ts'
import { openPool } from '../core/db/pool.ts'
import { portOf } from '../core/http/health.ts'
import { createLog } from '../core/process/log.ts'
import { loadSettings } from '../core/process/settings.ts'
import { onShutdownSignal } from '../core/process/shutdown.ts'
import type { Double } from '../local/double/server.ts'
import { findEmbedded, startEmbedded, stopEmbedded } from '../local/postgres.ts'
import type { Demo, SignIn } from './demo.ts'
import { databaseDirectory, loadOrCreateSecrets, namesDatabase, withSecrets } from './environment.ts'
import { CommandError, describeError, print, printJson, printProgress } from './output.ts'
import { tryLockData } from './store.ts'

export type UpOptions = { data: string; port?: string; demo?: boolean; json?: boolean }

/** Tried first, so that the address of the demo provider stays the same from start to start. */
const DOUBLE_PORT = 5049

/** What stops a part of what runs. Parts are kept in the order of their start and stopped in the reverse one. */
type Part = () => Promise<unknown>

/**
 * Runs a whole deployment in this process until a signal: database unless the environment names one, web, worker and
 * the model double, with a first admin and a demo project in an empty one. Prints how to use it. A second signal ends
 * the process at once. Exits 1 with a message when something does not start.
 */
export async function startAll(options: UpOptions): Promise<void> {
  const began = performance.now()
  const parts: Part[] = []
  let asked = false
  const starting = start(options, parts, () => asked)
  const stop = async () => {
    for (const part of parts.splice(0).reverse()) await part()
  }
  const ended = (error: unknown) => {
    printProgress(describeError(error))
    process.exit(1)
  }
  onShutdownSignal(
    () => {
      asked = true
      printProgress('stopping')
      starting
        .catch(() => {})
        .then(stop)
        .then(() => process.exit(0), ended)
    },
    () => process.exit(1),
  )
  let started: Started | null
  try {
    started = await starting
  } catch (error) {
    await stop().catch(failure => printProgress(describeError(failure)))
    throw error
  }
  if (!started) return
  report(started, options, performance.now() - began)
  fs.rmSync(started.signInFile, { force: true })
}

type Started = {
  config: Config
  url: string
  database: string
  double: Double | null
  signIn: SignIn | null
  signInFile: string
  demo: Demo | null
}

/** Starts the parts in order; null when `stopped` said so on the way. */
async function start(options: UpOptions, parts: Part[], stopped: () => boolean): Promise<Started | null> {
  const dataDir = path.resolve(options.data)
  const embedded = !namesDatabase(process.env)
  const secrets = loadOrCreateSecrets(dataDir)
  const env = withSecrets({ ...process.env, LOG_LEVEL: process.env.LOG_LEVEL || 'warn' }, secrets, embedded)
  if (options.port !== undefined) env.PORT = options.port
  // One process has one health to ask for, that of web; the worker's port shall not be what keeps it from starting.
  env.WORKER_HEALTH_PORT ||= '0'
  const { PORT, HOST, production } = loadSettings(env)
  env.PORT = String(await takePort(PORT, HOST))

  // The database comes up while the modules load.
  const loading = Promise.all([
    import('../web.ts'),
    import('../../jobs/worker.ts'),
    import('../core/db/migrate.ts'),
    import('./demo.ts'),
    import('../core/api/module.ts'),
    import('../modules.ts'),
  ])
  loading.catch(() => {})
  const directory = databaseDirectory(dataDir)
  if (embedded) env.DATABASE_URL = await startDatabase(directory, parts)
  let double: Double | null = null
  if (options.demo ?? !production) {
    double = await startModel()
    parts.push(double.close)
    env.EGRESS_ALLOW_HOSTS = [env.EGRESS_ALLOW_HOSTS, new URL(double.url).host].filter(Boolean).join(',')
    env.EMBEDDING_PROVIDER ||= 'local'
  }
  if (stopped()) return null

  const [
    { startWeb },
    { startWorker },
    { migrate },
    { createFirstAdmin: firstSignIn, createDemo: makeDemo },
    { loadModules },
    all,
  ] = await loading
  loadModules(all.modules)
  const config = loadSettings(env)
  const { host, port, pathname } = new URL(config.DATABASE_URL)
  if (config.AUTO_MIGRATE)
    await migrate(config.DATABASE_LISTEN_URL, {
      lockTimeoutMs: config.MIGRATION_LOCK_TIMEOUT_MS,
      jobRetentionDays: config.JOB_RETENTION_DAYS,
    }).catch(error => {
      throw new CommandError(`the database ${host}${pathname} cannot be migrated: ${describeError(error)}`)
    })
  const migrated = { ...config, AUTO_MIGRATE: false }
  const log = (process: string) =>
    createLog({ level: config.LOG_LEVEL, base: { process }, destination: options.json ? stderr : undefined })
  process.on('unhandledRejection', error => log('up').error({ err: error }, 'unhandled rejection'))
  if (stopped()) return null

  const worker = await startWorker(migrated, log('worker'), config.WORKER_KINDS)
  parts.push(worker.stop)
  if (stopped()) return null
  const web = await startWeb(migrated, log('web')).catch(error => {
    throw portTaken(error, config.PORT) ?? error
  })
  parts.push(web.stop)
  if (stopped()) return null

  const address = `http://${reachable(config.HOST)}:${web.port}`
  const signInFile = path.join(dataDir, 'first-sign-in.json')
  const pool = await openPool({ databaseUrl: config.DATABASE_URL, connections: 2, applicationName: 'muster up' })
  try {
    const signIn = await firstSignIn(pool, address, signInFile, config)
    const demo = double && (await makeDemo(pool, config, address, double.url, signIn !== null).catch(unmade))
    return {
      config,
      // Cookies of sign-ins are of this host: under another name of it they are not sent.
      url: config.BASE_URL,
      database: embedded ? `PostgreSQL in ${path.relative('', directory)}, port ${port}` : `${host}${pathname}`,
      double,
      signIn,
      signInFile,
      demo,
    }
  } finally {
    await pool.end()
  }
}

/** The demo is not what a deployment is for: without it the rest goes on. */
function unmade(error: unknown): null {
  printProgress(`the demo project is left as it is: ${describeError(error)}`)
  return null
}

/** The host part of a url at which what listens on `host` is reached from here. */
function reachable(host: string): string {
  if (host === '0.0.0.0' || host === '::') return '127.0.0.1'
  return isIPv6(host) ? `[${host}]` : host
}

/** The port that web will listen on: `port`, or a free one for 0. Raises CommandError when it is taken. */
async function takePort(port: number, host: string): Promise<number> {
  const server = createServer().listen(port, host)
  try {
    await once(server, 'listening')
  } catch (error) {
    throw portTaken(error, port) ?? error
  }
  const free = portOf(server)
  server.close()
  await once(server, 'close')
  return free
}

function portTaken(error: unknown, port: number): CommandError | null {
  if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') return null
  return new CommandError(
    `port ${port} is in use`,
    'Stop what listens there, or choose another one: muster up --port <number>, or PORT in the environment.',
  )
}

/**
 * Starts the embedded server; answers its url. One `up` at a time holds a lock in it: of two, whichever stopped first
 * would take the database from the other.
 */
async function startDatabase(dir: string, parts: Part[]): Promise<string> {
  // However this process ends, short of a kill, its server goes with it: the signal is sent before the first wait.
  const end = () => void stopEmbedded(dir)
  const others = await findEmbedded(dir)
  if (others === null) process.on('exit', end)
  const server = await startEmbedded({ dir })
  const unlock = await lockData(server.url)
  if (!unlock) {
    process.off('exit', end)
    throw new CommandError(
      'another muster up runs on this data directory',
      'Stop it, or choose another directory: muster up --data <directory>.',
    )
  }
  process.off('exit', end).on('exit', end)
  parts.push(async () => {
    await unlock()
    await server.stop()
    process.off('exit', end)
  })
  return server.url
}

/** Takes the lock on a connection of its own; answers what gives it back, null when another process has it. */
async function lockData(databaseUrl: string): Promise<(() => Promise<void>) | null> {
  const pool = await openPool({ databaseUrl, connections: 1, applicationName: 'muster up lock' })
  const { promise: done, resolve: release } = Promise.withResolvers<void>()
  const locked = await new Promise<boolean>((resolve, reject) => {
    pool
      .connect(async connection => {
        const got = await tryLockData(connection)
        resolve(got)
        if (got) await done
      })
      .catch(reject)
  })
  const close = async () => {
    release()
    await pool.end()
  }
  if (locked) return close
  await close()
  return null
}

async function startModel(): Promise<Double> {
  const { startDouble } = await import('../local/double/server.ts')
  return startDouble({ port: DOUBLE_PORT }).catch(() => startDouble())
}

function report(started: Started, { json }: UpOptions, ms: number): void {
  const { config, url, database, double, signIn, demo } = started
  const api = `${url}/api/v1`
  if (json) {
    const model = double && { url: `${double.url}/v1`, model: 'double-1' }
    printJson({ url, api, docs: config.DOCS_BASE_URL, database, model, admin: signIn, demo, ready_ms: Math.round(ms) })
    return
  }
  print(`Muster answers at ${url} after ${(ms / 1000).toFixed(1)} s. Ctrl-C stops it.`)
  print()
  print(`  API        ${api}`)
  print(`  Reference  ${config.DOCS_BASE_URL}`)
  print(`  Database   ${database}`)
  if (double) print(`  Model      double-1, a stand-in that repeats what it is told, at ${double.url}/v1`)
  if (signIn) {
    print()
    print('The first admin (the password is shown once):')
    print()
    print(`  username   ${signIn.username}`)
    print(`  password   ${signIn.password}`)
  }
  const login = `curl -s ${api}/users/login -H 'Content-Type: application/json' \\\n    -d '{"username":"${signIn?.username ?? 'admin'}","password":"${signIn?.password ?? '...'}"}'`
  if (demo) {
    print()
    print(demo.key ? 'A first conversation (the project key is shown once):' : 'A conversation:')
    print()
    print(`  KEY=${demo.key ?? '...      # a key of the project'}`)
    print(`  curl -s '${api}/sessions/${demo.session_id}/messages?wait=true' \\`)
    print(`    -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' \\`)
    print(`    -d '{"message":"Hello, who are you?"}'`)
    print(`  curl -s ${api}/sessions/${demo.session_id}/messages -H "Authorization: Bearer $KEY"`)
    if (demo.key) {
      print()
      print('A file that becomes searchable, from the directory of this checkout:')
      print()
      print(`  FILE=$(curl -fsS ${api}/files/upload -H "Authorization: Bearer $KEY" -F file=@README.md \\`)
      print(`    | sed 's/.*"id":"\\(file_[^"]*\\)".*/\\1/')`)
      print(`  curl -s '${api}/documents/ingest?wait=true' -H "Authorization: Bearer $KEY" \\`)
      print(`    -H 'Content-Type: application/json' -d '{"file_id":"'"$FILE"'","chunk_strategy":"auto"}'`)
      print(`  curl -s ${api}/knowledge/search -H "Authorization: Bearer $KEY" \\`)
      print(`    -H 'Content-Type: application/json' -d '{"query":"which database does it need?","limit":3}'`)
    }
  }
  print()
  print('To sign in; the token in the answer goes into the same header:')
  print()
  print(`  ${login}`)
  if (demo && !demo.key) {
    print()
    print('A new key of the demo project, with that token:')
    print()
    print(`  curl -s ${api}/project-keys -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\`)
    print(`    -d '{"project_id":"${demo.project_id}"}'`)
  }
  print()
}
