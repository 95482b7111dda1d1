import { execFile as startFile } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { createServer } from 'node:http'
import { isIPv6 } from 'node:net'
import path from 'node:path'
import { stderr } from 'node:process'
import { promisify } from 'node:util'
import { loadSettings } from '#config.ts'
import type { Config } from '#core/base/config.ts'
import { createLog } from '#core/base/log.ts'
import { onShutdownSignal } from '#core/base/shutdown.ts'
import { addressOf } from '#core/db/database-url.ts'
import { openPool } from '#core/db/pool.ts'
import { portOf } from '#core/http/health.ts'
import { isConsoleOutdated } from '#local/build.ts'
import type { Double } from '#local/double/server.ts'
import { findEmbedded, startEmbedded, stopEmbedded } from '#local/postgres.ts'
import type { Demo, SignIn } from './demo.ts'
import { databaseDirectory, type Environment, loadOrCreateSecrets, namesDatabase, withSecrets } from './environment.ts'
import { CommandError, describeError, print, printJson, printProgress } from './output.ts'
import { REFUSED_PORTS } from './ports.ts'
import { tryLockData } from './store.ts'

export type UpOptions = { data: string; port?: string; demo?: boolean; sample?: boolean; json?: boolean }

const execFile = promisify(startFile)

const CHECKOUT = path.resolve(import.meta.dirname, '../..')

/** Preferred port of the test model, so that the address of the demo provider is stable across starts. */
const DOUBLE_PORT = 5049

const SAMPLE_PROGRAM = 'scripts/sample-project.ts'

/** Packages and images have no test model. */
const HAS_TEST_MODEL = fs.existsSync(new URL('../local/double/server.ts', import.meta.url))

/** Default of HOST: the passwords of a first start are for this machine. */
const LOOPBACK = '127.0.0.1'

/** Stops a part of the deployment. Parts are stopped in the reverse order of their start. */
type Stop = () => Promise<unknown>

/**
 * Runs a whole deployment in this process until a signal: web, worker, the test model, and an embedded database unless
 * one is configured. An empty deployment gets a first admin and a demo project. Prints instructions. A second signal
 * exits immediately. Exits 1 with a message if a part does not start.
 */
export async function startAll(options: UpOptions): Promise<void> {
  const startedAt = performance.now()
  const stops: Stop[] = []
  let stopRequested = false
  const starting = startParts(options, stops, () => stopRequested)
  const stopParts = async () => {
    for (const stop of stops.splice(0).reverse()) await stop()
  }
  const fail = (error: unknown) => {
    printProgress(describeError(error))
    process.exit(1)
  }
  onShutdownSignal(
    () => {
      stopRequested = true
      printProgress('stopping')
      starting
        .catch(() => {})
        .then(stopParts)
        .then(() => process.exit(0), fail)
    },
    () => process.exit(1),
  )
  let started: StartedDeployment | null
  try {
    started = await starting
  } catch (error) {
    await stopParts().catch(failure => printProgress(describeError(failure)))
    throw error
  }
  if (!started) return
  printInstructions(started, options, performance.now() - startedAt)
  fs.rmSync(started.signInFile, { force: true })
}

type StartedDeployment = {
  config: Config
  url: string
  database: string
  double: Double | null
  /** Address of the console that signs the first admin in, once; null where it is not to be printed. */
  signInUrl: string | null
  signIn: SignIn | null
  signInFile: string
  demo: Demo | null
  /** ID of the sample project; null without --sample. */
  sample: string | null
}

/** Starts the parts in order. Returns null once `isStopped` is true. */
async function startParts(
  options: UpOptions,
  stops: Stop[],
  isStopped: () => boolean,
): Promise<StartedDeployment | null> {
  if (options.sample) requireSample(options)
  if (options.demo && !HAS_TEST_MODEL)
    throw new CommandError('--demo requires the test model', 'Only a checkout has it.')
  const dataDir = path.resolve(options.data)
  const embedded = !namesDatabase(process.env)
  const env = withDefaults(withSecrets(process.env, loadOrCreateSecrets(dataDir), embedded), options)
  const { PORT, HOST, CONSOLE_ENABLED, production } = loadSettings(env)
  if (CONSOLE_ENABLED && isConsoleOutdated(CHECKOUT))
    printProgress('the console was built from other sources than this checkout has: run npm run build')
  env.PORT = String(await findFreePort(PORT, HOST))

  // The modules load while the database starts.
  const loading = Promise.all([
    import('#web.ts'),
    import('../../jobs/worker.ts'),
    import('#core/services/migrate-cells.ts'),
    import('./demo.ts'),
    import('#core/modules/module.ts'),
    import('#modules.ts'),
  ])
  loading.catch(() => {})
  const directory = databaseDirectory(dataDir)
  if (embedded) env.DATABASE_URL = await startDatabase(directory, stops)
  let double: Double | null = null
  const hasDemo = options.demo ?? (!production && HAS_TEST_MODEL)
  if (hasDemo || options.sample) {
    double = await startTestModel()
    stops.push(double.close)
    env.EGRESS_ALLOW_HOSTS = [env.EGRESS_ALLOW_HOSTS, new URL(double.url).host].filter(Boolean).join(',')
    env.EMBEDDING_PROVIDER ||= 'local'
  }
  if (isStopped()) return null

  const [
    { startWeb },
    { startWorker },
    { migrateAtStart },
    { createFirstAdmin, createSignInUrl, issueAdminToken },
    { loadModules },
    { modules },
  ] = await loading
  loadModules(modules)
  const config = loadSettings(env)
  const log = (process: string) =>
    createLog({ level: config.LOG_LEVEL, base: { process }, destination: options.json ? stderr : undefined })
  if (config.AUTO_MIGRATE)
    await migrateAtStart(config, log('up')).catch(error => {
      throw new CommandError(
        `the database ${addressOf(config.DATABASE_URL)} cannot be migrated: ${describeError(error)}`,
      )
    })
  const migrated = { ...config, AUTO_MIGRATE: false }
  process.on('unhandledRejection', error => log('up').error({ err: error }, 'unhandled rejection'))
  if (isStopped()) return null

  const worker = await startWorker(migrated, log('worker'), config.WORKER_KINDS)
  stops.push(worker.stop)
  if (isStopped()) return null
  const web = await startWeb(migrated, log('web')).catch(error => {
    throw portInUseError(error, config.PORT) ?? error
  })
  stops.push(web.stop)
  if (isStopped()) return null

  const address = `http://${reachableHost(config.HOST)}:${web.port}`
  const signInFile = path.join(dataDir, 'first-sign-in.json')
  const pool = await openPool({ databaseUrl: config.DATABASE_URL, connections: 2, applicationName: 'muster up' })
  try {
    const signIn = await createFirstAdmin(pool, address, signInFile, config)
    const token = double && (await issueAdminToken(pool, config))
    const model = double && token !== null ? { token, address, double } : null
    const demo = model && hasDemo ? await createDemoOn(model, signIn !== null) : null
    const sample = model && options.sample ? await createSample(model).catch(skipping('sample project')) : null
    return {
      config,
      // Sign-in cookies are bound to this host and are not sent under another name of it.
      url: config.BASE_URL,
      database: embedded
        ? `PostgreSQL in ${path.relative('', directory)}, port ${new URL(config.DATABASE_URL).port}`
        : addressOf(config.DATABASE_URL),
      double,
      signInUrl: config.CONSOLE_ENABLED && !config.production ? await createSignInUrl(pool, config) : null,
      signIn,
      signInFile,
      demo,
      sample,
    }
  } finally {
    await pool.end()
  }
}

/** A deployment with the test model, and a token of its first admin. */
type TestModel = { token: string; address: string; double: Double }

const createDemoOn = async ({ token, address, double }: TestModel, withKey: boolean): Promise<Demo | null> => {
  const { createDemo } = await import('./demo.ts')
  return createDemo(token, address, double.url, { withKey, env: process.env }).catch(skipping('demo project'))
}

/**
 * Creates the sample project, or gives the test model its answers again. Returns the ID of the project. A separate program,
 * because it uses the client of the API.
 */
async function createSample({ token, address, double }: TestModel): Promise<string> {
  printProgress('sample project')
  const env = { ...process.env, MUSTER_URL: address, MUSTER_TOKEN: token, MODEL_URL: double.url }
  const { stdout } = await execFile(process.execPath, [SAMPLE_PROGRAM], { cwd: CHECKOUT, env })
  return stdout.trim()
}

/** Reports the failure of a project, which does not stop the deployment. */
const skipping =
  (project: string) =>
  (error: unknown): null => {
    printProgress(`${project} not created: ${describeError(error)}`)
    return null
  }

/** @throws CommandError if the sample project cannot be created here */
function requireSample({ demo }: UpOptions): void {
  if (demo === false) throw new CommandError('--sample requires the test model', 'Omit --no-demo.')
  if (!fs.existsSync(path.join(CHECKOUT, SAMPLE_PROGRAM))) throw new CommandError('--sample requires a checkout')
}

/** Returns an environment with the defaults of one process for everything. */
function withDefaults(env: Environment, { port }: UpOptions): Environment {
  return {
    ...env,
    ...(port !== undefined && { PORT: port }),
    LOG_LEVEL: env.LOG_LEVEL || 'warn',
    HOST: env.HOST || LOOPBACK,
    WEB_EXECUTES: env.WEB_EXECUTES || 'true',
    // The health of this process is served by web; a fixed port of the worker could only conflict.
    WORKER_HEALTH_PORT: env.WORKER_HEALTH_PORT || '0',
  }
}

/** Returns the host for URLs of a local server that listens on `host`. */
function reachableHost(host: string): string {
  if (host === '0.0.0.0' || host === '::') return '127.0.0.1'
  return isIPv6(host) ? `[${host}]` : host
}

/**
 * Returns the port for web: `port`, or a free one for 0.
 * @throws CommandError if it is in use, or browsers refuse it
 */
async function findFreePort(port: number, host: string): Promise<number> {
  if (REFUSED_PORTS.has(port))
    throw new CommandError(`port ${port} is refused by browsers`, 'Choose another port with --port or PORT.')
  const server = createServer().listen(port, host)
  try {
    await once(server, 'listening')
  } catch (error) {
    throw portInUseError(error, port) ?? error
  }
  const free = portOf(server)
  server.close()
  await once(server, 'close')
  return free
}

function portInUseError(error: unknown, port: number): CommandError | null {
  if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') return null
  return new CommandError(
    `port ${port} is in use`,
    'Stop the process that uses it, or choose another port with --port or PORT.',
  )
}

/**
 * Starts the embedded server and returns its URL. Only one `up` may use it, enforced by a lock: of two, the first to
 * stop would stop the database of the other.
 */
async function startDatabase(dir: string, stops: Stop[]): Promise<string> {
  // Stops the server whenever this process exits, except by SIGKILL: stopEmbedded sends its signal synchronously.
  const onExit = () => void stopEmbedded(dir)
  const running = await findEmbedded(dir)
  if (running === null) process.on('exit', onExit)
  const server = await startEmbedded({ dir })
  const unlock = await lockDataDirectory(server.url)
  if (!unlock) {
    process.off('exit', onExit)
    throw new CommandError(
      'another muster up runs on this data directory',
      'Stop it, or choose another directory with --data.',
    )
  }
  process.off('exit', onExit).on('exit', onExit)
  stops.push(async () => {
    await unlock()
    await server.stop()
    process.off('exit', onExit)
  })
  return server.url
}

/**
 * Acquires the lock on a dedicated connection. Returns a function that releases it, null if another process holds it.
 */
async function lockDataDirectory(databaseUrl: string): Promise<(() => Promise<void>) | null> {
  const pool = await openPool({ databaseUrl, connections: 1, applicationName: 'muster up lock' })
  const { promise: released, resolve: release } = Promise.withResolvers<void>()
  const isLocked = await new Promise<boolean>((resolve, reject) => {
    pool
      .connect(async connection => {
        const isAcquired = await tryLockData(connection)
        resolve(isAcquired)
        if (isAcquired) await released
      })
      .catch(reject)
  })
  const close = async () => {
    release()
    await pool.end()
  }
  if (isLocked) return close
  await close()
  return null
}

async function startTestModel(): Promise<Double> {
  const { startDouble } = await import('#local/double/server.ts')
  return startDouble({ port: DOUBLE_PORT }).catch(() => startDouble())
}

function printInstructions(started: StartedDeployment, { json }: UpOptions, ms: number): void {
  const { config, url, database, double, signInUrl, signIn, demo, sample } = started
  const api = `${url}/api/v1`
  if (json) {
    const model = double && { url: `${double.url}/v1`, model: 'double-1' }
    printJson({
      url,
      api,
      docs: config.DOCS_BASE_URL,
      database,
      model,
      admin: signIn,
      sign_in_url: signInUrl,
      demo,
      sample_project_id: sample,
      ready_ms: Math.round(ms),
    })
    return
  }
  print(`Muster answers at ${url} after ${(ms / 1000).toFixed(1)} s. Ctrl-C stops it.`)
  print()
  if (config.CONSOLE_ENABLED) print(`  Console    ${url}/app`)
  print(`  API        ${api}`)
  print(`  Reference  ${config.DOCS_BASE_URL}`)
  print(`  Database   ${database}`)
  if (double) print(`  Model      double-1, a test model that echoes its input, at ${double.url}/v1`)
  for (const { agent_id, provider, model, variable } of demo?.vendors ?? [])
    print(`             ${model} of ${provider}, with the key in ${variable}: agent ${agent_id}`)
  if (sample) print(`  Sample     ${url}/app/p/${sample}/overview`)
  if (config.HOST === LOOPBACK) print(`  Listens    on ${LOOPBACK}, for this machine; HOST=0.0.0.0 for others`)
  if (signInUrl) {
    print()
    print('Open the console, signed in (the link works once, for 15 minutes):')
    print()
    print(`  ${signInUrl}`)
  }
  if (signIn) {
    print()
    print('First admin (the password is shown once):')
    print()
    print(`  username   ${signIn.username}`)
    print(`  password   ${signIn.password}`)
  }
  const login = `curl -s ${api}/users/login -H 'Content-Type: application/json' \\\n    -d '{"username":"${signIn?.username ?? 'admin'}","password":"${signIn?.password ?? '...'}"}'`
  if (demo) {
    print()
    print(demo.key ? 'First conversation (the project key is shown once):' : 'Conversation:')
    print()
    print(`  KEY=${demo.key ?? '...      # a project key'}`)
    print(`  curl -s '${api}/sessions/${demo.session_id}/messages?wait=true' \\`)
    print(`    -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' \\`)
    print(`    -d '{"message":"Hello, who are you?"}'`)
    print(`  curl -s ${api}/sessions/${demo.session_id}/messages -H "Authorization: Bearer $KEY"`)
    if (demo.key) {
      print()
      print('Upload a file, ingest and search it (run in the directory of this checkout):')
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
  print('Sign in (send the returned token in the same header):')
  print()
  print(`  ${login}`)
  if (demo && !demo.key) {
    print()
    print('Create a new key of the demo project with that token:')
    print()
    print(`  curl -s ${api}/project-keys -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\`)
    print(`    -d '{"project_id":"${demo.project_id}"}'`)
  }
  print()
}
