import { type Config, ConfigError, WORKER_KINDS } from '../config.ts'
import { loadModules } from '../core/api/module.ts'
import { requireConnections } from '../core/db/connections.ts'
import { migrationNames } from '../core/db/migrate.ts'
import { openPool, type Pool } from '../core/db/pool.ts'
import { deadLetterQueue, queues as declared, openQueues, type QueueStats } from '../core/jobs/queue.ts'
import { loadSettings } from '../core/process/settings.ts'
import { createSecretBox, DEVELOPMENT_KEY } from '../core/secrets/secretbox.ts'
import { hasUsers } from '../identity/users/store.ts'
import { modules } from '../modules.ts'
import { checkContent } from './doctor-content.ts'
import { commandLog, type Environment, openDeployment } from './environment.ts'
import { type Check, describeError, print, printJson } from './output.ts'
import { keyStates } from './secrets.ts'
import { appliedMigrations, listHeartbeats, queueNames, serverFacts } from './store.ts'

const OLDEST_SERVER = 150_000
const SKEW_WARN_MS = 1000
const SKEW_FAIL_MS = 30_000
const LATE_SECONDS = 60

/** `muster doctor`: runs every check and prints a line for each. Leaves nothing changed. Sets exit code 1 when one fails. */
export async function runDoctor({ data, json }: { data: string; json?: boolean }): Promise<void> {
  loadModules(modules)
  const { env, close } = await openDeployment(data)
  let checks: Check[]
  try {
    checks = await examine(env)
  } finally {
    await close()
  }
  const failed = checks.some(({ status }) => status === 'fail')
  if (json) printJson({ ok: !failed, checks })
  else {
    const width = Math.max(...checks.map(({ name }) => name.length))
    for (const { name, status, detail, fix } of checks) {
      print(`${status.padEnd(4)}  ${name.padEnd(width)}  ${detail}`)
      if (fix) print(`${' '.repeat(width + 8)}${fix}`)
    }
  }
  if (failed) process.exitCode = 1
}

async function examine(env: Environment): Promise<Check[]> {
  const { config, problems } = readable(env)
  const checks: Check[] =
    problems.length === 0
      ? [{ name: 'configuration', status: 'ok', detail: 'every setting is valid' }]
      : problems.map(({ variable, message }) => ({
          name: 'configuration',
          status: 'fail',
          detail: `${variable}: ${message}`,
          fix: 'Correct the variable; muster settings says what it means.',
        }))
  if (!config) return checks
  const broken = new Set(problems.map(({ variable }) => variable))
  if (!broken.has('BASE_URL')) checks.push(baseUrl(config))
  if ([...broken].some(variable => variable.startsWith('DATABASE_'))) return checks
  const address = `${new URL(config.DATABASE_URL).host}${new URL(config.DATABASE_URL).pathname}`
  let pool: Pool
  try {
    pool = await openPool({ databaseUrl: config.DATABASE_URL, connections: 2, applicationName: 'muster doctor' })
  } catch (error) {
    checks.push({
      name: 'database',
      status: 'fail',
      detail: `${address} does not answer: ${describeError(error)}`,
      fix: 'Start it, or correct DATABASE_URL; muster up brings a database of its own.',
    })
    return checks
  }
  try {
    checks.push(...(await examineServer(pool, address)))
    checks.push(await examineConnections(config))
    const missing = await missingMigrations(pool)
    checks.push(missing)
    if (missing.status === 'fail') return checks
    checks.push(...(await examineQueues(config, pool, env)))
    checks.push(...(await examineWorkers(config, pool)))
    checks.push(...(await checkContent(config)))
    if (!broken.has('SECRETS_ENCRYPTION_KEY')) checks.push(...(await examineKeys(config, pool)))
    checks.push(await examineUsers(pool))
  } finally {
    await pool.end()
  }
  return checks
}

/** Values that let the rest be read when a required one is missing. */
const FILLERS: Environment = {
  BASE_URL: 'http://localhost',
  JWT_SECRET: 'x'.repeat(32),
  SECRETS_ENCRYPTION_KEY: DEVELOPMENT_KEY,
}

/** Every problem of an environment, and the configuration without them. */
function readable(env: Environment): { config: Config | null; problems: ConfigError['problems'] } {
  const mended = { ...env }
  const problems: ConfigError['problems'][number][] = []
  for (;;) {
    try {
      return { config: loadSettings(mended), problems }
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error
      const more = error.problems.filter(({ variable }) => !problems.some(known => known.variable === variable))
      if (more.length === 0) return { config: null, problems }
      problems.push(...more)
      for (const { variable } of more) mended[variable] = FILLERS[variable]
    }
  }
}

const baseUrl = (config: Config): Check =>
  config.baseUrlGiven
    ? { name: 'base url', status: 'ok', detail: config.BASE_URL }
    : {
        name: 'base url',
        status: 'warn',
        detail: `not set: links point at ${config.BASE_URL}`,
        fix: 'Set BASE_URL to the address your callers use.',
      }

async function examineServer(pool: Pool, address: string): Promise<Check[]> {
  // The first answer pays for the connection.
  await serverFacts(pool)
  const asked = Date.now()
  const { version, number, now_ms } = await serverFacts(pool)
  const skew = (asked + Date.now()) / 2 - now_ms
  if (number >= OLDEST_SERVER)
    return [{ name: 'database', status: 'ok', detail: `PostgreSQL ${version} at ${address}` }, clock(skew)]
  const fix = 'Upgrade the server to PostgreSQL 15 or later.'
  return [{ name: 'database', status: 'fail', detail: `PostgreSQL ${version} is too old`, fix }, clock(skew)]
}

/** Asked as a process asks at its start. */
async function examineConnections(config: Config): Promise<Check> {
  const name = 'connections'
  try {
    await requireConnections(config)
    return { name, status: 'ok', detail: 'notifications arrive and prepared statements hold' }
  } catch (error) {
    const detail = describeError(error)
    return { name, status: 'fail', detail, fix: 'Correct the address or the settings of the pooler behind it.' }
  }
}

async function missingMigrations(pool: Pool): Promise<Check> {
  const applied = await appliedMigrations(pool)
  const missing = migrationNames().filter(name => !applied.includes(name))
  if (missing.length === 0) return { name: 'migrations', status: 'ok', detail: `${applied.length} have run` }
  const named = `${missing.slice(0, 5).join(', ')}${missing.length > 5 ? ', ...' : ''}`
  return {
    name: 'migrations',
    status: 'fail',
    detail: `${missing.length} are missing: ${named}`,
    fix: 'Run muster migrate.',
  }
}

async function examineUsers(pool: Pool): Promise<Check> {
  if (await hasUsers(pool)) return { name: 'users', status: 'ok', detail: 'there is at least one' }
  return { name: 'users', status: 'warn', detail: 'there is none', fix: 'Run muster bootstrap.' }
}

function clock(skewMs: number): Check {
  const size = Math.abs(skewMs)
  const detail =
    size < SKEW_WARN_MS
      ? `within ${Math.max(1, Math.round(size))} ms of the database`
      : `${(size / 1000).toFixed(1)} s ${skewMs > 0 ? 'ahead of' : 'behind'} the database`
  if (size < SKEW_WARN_MS) return { name: 'clock', status: 'ok', detail }
  return {
    name: 'clock',
    status: size < SKEW_FAIL_MS ? 'warn' : 'fail',
    detail,
    fix: 'Keep both machines on network time: leases, tokens and retries compare the two clocks.',
  }
}

async function examineQueues(config: Config, pool: Pool, env: Environment): Promise<Check[]> {
  const present = new Set(await queueNames(pool))
  const missing = declared
    .all()
    .flatMap(({ name }) => [name, deadLetterQueue(name)])
    .filter(name => !present.has(name))
  if (missing.length > 0)
    return [{ name: 'queues', status: 'fail', detail: `missing: ${missing.join(', ')}`, fix: 'Run muster migrate.' }]
  const log = commandLog(env)
  const queues = await openQueues({
    databaseUrl: config.DATABASE_LISTEN_URL,
    connections: 1,
    notifier: { notify: () => {} },
    log,
  })
  try {
    const stats = await queues.stats()
    const sum = (key: 'waiting' | 'delayed' | 'active' | 'dead') => stats.reduce((all, each) => all + each[key], 0)
    const checks: Check[] = [
      {
        name: 'queues',
        status: 'ok',
        detail: `${stats.length} queues: ${sum('waiting')} messages waiting, ${sum('delayed')} delayed, ${sum('active')} active`,
      },
    ]
    for (const late of stats.filter(each => each.oldest_seconds > LATE_SECONDS)) checks.push(lateQueue(late))
    const dead = stats.filter(each => each.dead > 0)
    if (dead.length > 0)
      checks.push({
        name: 'dead letters',
        status: 'warn',
        detail: dead.map(each => `${each.queue} ${each.dead}`).join(', '),
        fix: 'muster reprocess dead-letters list shows them, replay sends them again.',
      })
    return checks
  } finally {
    await queues.close()
  }
}

const lateQueue = ({ queue, waiting, oldest_seconds }: QueueStats): Check => ({
  name: 'queues',
  status: 'warn',
  detail: `${queue}: ${waiting} waiting, the oldest for ${Math.round(oldest_seconds)} s`,
  fix: `Start a worker for it, or more: npm run worker ${declared.get(queue).concern}`.trimEnd(),
})

async function examineWorkers(config: Config, pool: Pool): Promise<Check[]> {
  const all = await listHeartbeats(pool)
  const fresh = all.filter(({ age_ms }) => age_ms < config.WORKER_HEARTBEAT_STALE_MS)
  const uncovered = WORKER_KINDS.filter(kind => !fresh.some(({ kinds }) => kinds.includes(kind)))
  const checks: Check[] = []
  if (uncovered.length > 0)
    checks.push({
      name: 'workers',
      status: 'fail',
      detail: `no worker lives that runs ${uncovered.join(', ')}`,
      fix: `Start one: npm run worker${uncovered.length === WORKER_KINDS.length ? '' : ` ${uncovered.join(' ')}`}`,
    })
  else {
    const oldest = Math.max(...fresh.map(({ age_ms }) => age_ms))
    const detail = `${fresh.length} alive, every heartbeat younger than ${Math.ceil(oldest / 1000)} s`
    checks.push({ name: 'workers', status: 'ok', detail })
  }
  const silent = all.filter(each => !fresh.includes(each))
  if (silent.length > 0)
    checks.push({
      name: 'workers',
      status: 'warn',
      detail: `no heartbeat lately from ${silent.map(({ instance_id }) => instance_id).join(', ')}`,
      fix: 'They were killed, hang, or have lost the database; their rows go after a week.',
    })
  return checks
}

async function examineKeys(config: Config, pool: Pool): Promise<Check[]> {
  const key = config.SECRETS_ENCRYPTION_KEY[0] ?? DEVELOPMENT_KEY
  const secrets = createSecretBox({ key, previous: config.SECRETS_ENCRYPTION_KEY_PREVIOUS })
  const counts = await keyStates({ config, pool, secrets })
  const total = (state: string) =>
    counts.filter(each => each.state === state).reduce((sum, { count }) => sum + count, 0)
  const checks: Check[] = []
  if (key === DEVELOPMENT_KEY)
    checks.push({
      name: 'encryption key',
      status: 'warn',
      detail: 'the development key is in use; it is public',
      fix: 'Set SECRETS_ENCRYPTION_KEY (openssl rand -hex 32) and run muster secrets reencrypt.',
    })
  if (total('unknown') > 0)
    checks.push({
      name: 'encryption key',
      status: 'fail',
      detail: `${total('unknown')} values were sealed under a key that is not configured: ${[
        ...new Set(counts.filter(({ state }) => state === 'unknown').map(({ key_id }) => key_id)),
      ].join(', ')}`,
      fix: 'Put the key that sealed them into SECRETS_ENCRYPTION_KEY_PREVIOUS, then run muster secrets reencrypt.',
    })
  if (total('previous') > 0)
    checks.push({
      name: 'encryption key',
      status: 'warn',
      detail: `${total('previous')} values are still sealed under a previous key`,
      fix: 'Run muster secrets reencrypt, then take the key out of SECRETS_ENCRYPTION_KEY_PREVIOUS.',
    })
  if (checks.length === 0)
    checks.push({ name: 'encryption key', status: 'ok', detail: `seals all of ${total('current')} values` })
  return checks
}
