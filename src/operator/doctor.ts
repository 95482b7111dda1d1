import { loadSettings } from '#config.ts'
import { type Config, ConfigError } from '#core/base/config.ts'
import { release } from '#core/base/release.ts'
import { poolerProblem } from '#core/db/connections.ts'
import { addressOf } from '#core/db/database-url.ts'
import { openPool, type Pool } from '#core/db/pool.ts'
import { loadModules } from '#core/modules/module.ts'
import { createEgress } from '#core/net/egress.ts'
import { deadLetterQueue, queues as declared, openQueues, type QueueStats } from '#core/queues/queue.ts'
import { DEVELOPMENT_KEY } from '#core/secrets/secretbox.ts'
import { WORKER_KINDS } from '#core/work/settings.ts'
import { hasUsers } from '#identity/users/store.ts'
import { modules } from '#modules.ts'
import { checkBuild } from './doctor-build.ts'
import { checkCells } from './doctor-cells.ts'
import { checkContent } from './doctor-content.ts'
import {
  checkClock,
  checkConnections,
  checkKeys,
  checkMigrations,
  checkMonths,
  checkReplica,
  checkServer,
  POOLER_FIX,
  SKEW_WARN_MS,
} from './doctor-database.ts'
import { checkSettings } from './doctor-settings.ts'
import { commandLog, type Environment, openDeployment } from './environment.ts'
import { type Check, describeError, printChecks } from './output.ts'
import { countBrowserKeys, listHeartbeats, listLiteralAddresses, listQueueNames } from './store.ts'

const LATE_SECONDS = 60

/**
 * `muster doctor`: runs all checks without changing anything and prints a line for each. Sets exit code 1 if one fails.
 */
export async function runDoctor({ data, json }: { data: string; json?: boolean }): Promise<void> {
  loadModules(modules)
  const { env, close } = await openDeployment(data)
  let checks: Check[]
  try {
    checks = await runChecks(env)
  } finally {
    await close()
  }
  printChecks(checks, { json })
}

async function runChecks(env: Environment): Promise<Check[]> {
  const { config, problems } = loadConfigTolerantly(env)
  const checks: Check[] =
    problems.length === 0
      ? [{ name: 'configuration', status: 'ok', detail: 'every setting is valid' }]
      : problems.map(({ variable, message }) => ({
          name: 'configuration',
          status: 'fail',
          detail: `${variable}: ${message}`,
          fix: 'Correct the variable; run muster settings for its meaning.',
        }))
  checks.push(checkBuild())
  if (!config) return checks
  const broken = new Set(problems.map(({ variable }) => variable))
  if (!broken.has('BASE_URL')) checks.push(checkBaseUrl(config))
  checks.push(...checkSettings(config, env))
  if ([...broken].some(variable => variable.startsWith('DATABASE_'))) return checks
  const address = addressOf(config.DATABASE_URL)
  let pool: Pool
  try {
    pool = await openPool({ databaseUrl: config.DATABASE_URL, connections: 2, applicationName: 'muster doctor' })
  } catch (error) {
    const problem = poolerProblem(error)
    checks.push(
      problem
        ? { name: 'connections', status: 'fail', detail: describeError(problem), fix: POOLER_FIX }
        : {
            name: 'database',
            status: 'fail',
            detail: `${address} does not answer: ${describeError(error)}`,
            fix: 'Start it, or correct DATABASE_URL; muster up starts an embedded database.',
          },
    )
    return checks
  }
  try {
    checks.push(...(await checkServer(pool, address)))
    checks.push(await checkConnections(config))
    checks.push(...(await checkReplica(config, pool)))
    const migrations = await checkMigrations(pool)
    checks.push(migrations)
    if (migrations.status === 'fail') return checks
    checks.push(...(await checkMonths(pool)))
    checks.push(...(await checkQueues(config, pool, env)))
    checks.push(...(await checkWorkers(config, pool)))
    checks.push(...(await checkContent(config)))
    if (!broken.has('SECRETS_ENCRYPTION_KEY')) {
      checks.push(...(await checkKeys(config, pool)))
      checks.push(...(await checkCells(config, pool)))
    }
    checks.push(await checkAddresses(config, pool))
    checks.push(await checkUsers(pool))
    checks.push(await checkBrowserKeys(pool))
  } finally {
    await pool.end()
  }
  return checks
}

/** Substitutes for invalid required settings, so that the other settings can be read. */
const SUBSTITUTES: Environment = {
  BASE_URL: 'http://localhost',
  JWT_SECRET: 'x'.repeat(32),
  SECRETS_ENCRYPTION_KEY: DEVELOPMENT_KEY,
}

/** Collects all problems of an environment, and loads the configuration without the invalid settings. */
function loadConfigTolerantly(env: Environment): { config: Config | null; problems: ConfigError['problems'] } {
  const corrected = { ...env }
  const problems: ConfigError['problems'][number][] = []
  for (;;) {
    try {
      return { config: loadSettings(corrected), problems }
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error
      const added = error.problems.filter(({ variable }) => !problems.some(other => other.variable === variable))
      if (added.length === 0) return { config: null, problems }
      problems.push(...added)
      for (const { variable } of added) corrected[variable] = SUBSTITUTES[variable]
    }
  }
}

const checkBaseUrl = (config: Config): Check =>
  config.baseUrlGiven
    ? { name: 'base url', status: 'ok', detail: config.BASE_URL }
    : {
        name: 'base url',
        status: 'warn',
        detail: `not set: links point at ${config.BASE_URL}`,
        fix: 'Set BASE_URL to the public address of the API.',
      }

async function checkUsers(pool: Pool): Promise<Check> {
  if (await hasUsers(pool)) return { name: 'users', status: 'ok', detail: 'at least one user exists' }
  return { name: 'users', status: 'warn', detail: 'no user exists', fix: 'Run muster bootstrap.' }
}

/** Lists records whose address the egress rule blocks, judged without a lookup. */
async function checkAddresses(config: Config, pool: Pool): Promise<Check> {
  const name = 'addresses'
  const egress = createEgress({ allowHosts: config.EGRESS_ALLOW_HOSTS, resolve: async () => [] })
  const stored = await listLiteralAddresses(pool)
  const blocked = [...new Set(stored.flatMap(({ id, address }) => (egress.refusal(address) ? id : [])))]
  await egress.close()
  if (blocked.length === 0)
    return { name, status: 'ok', detail: 'no webhook, tool or provider has an address that the egress rule blocks' }
  const ids = `${blocked.slice(0, 10).join(', ')}${blocked.length > 10 ? ', ...' : ''}`
  return {
    name,
    status: 'warn',
    detail: `${blocked.length} record(s) with an address that the egress rule blocks, which is never called: ${ids}`,
    fix: 'Correct the addresses, or allow their hosts in EGRESS_ALLOW_HOSTS.',
  }
}

async function checkBrowserKeys(pool: Pool): Promise<Check> {
  const name = 'keys in browsers'
  const count = await countBrowserKeys(pool)
  if (count === 0) return { name, status: 'ok', detail: 'no key was sent by a browser in the last seven days' }
  return {
    name,
    status: 'warn',
    detail: `${count} key(s) were sent by browsers in the last seven days`,
    fix: 'Issue tokens of end users to pages (docs/end-users.md), and delete these keys; the log lists their IDs.',
  }
}

async function checkQueues(config: Config, pool: Pool, env: Environment): Promise<Check[]> {
  const present = new Set(await listQueueNames(pool))
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
    const sum = (key: 'waiting' | 'delayed' | 'active' | 'dead') => stats.reduce((total, each) => total + each[key], 0)
    const checks: Check[] = [
      {
        name: 'queues',
        status: 'ok',
        detail: `${stats.length} queues: ${sum('waiting')} messages waiting, ${sum('delayed')} delayed, ${sum('active')} active`,
      },
    ]
    for (const late of stats.filter(each => each.oldest_seconds > LATE_SECONDS)) checks.push(warnLateQueue(late))
    const dead = stats.filter(each => each.dead > 0)
    if (dead.length > 0)
      checks.push({
        name: 'dead letters',
        status: 'warn',
        detail: dead.map(each => `${each.queue} ${each.dead}`).join(', '),
        fix: 'Run muster reprocess dead-letters list to see them, replay to retry them.',
      })
    return checks
  } finally {
    await queues.close()
  }
}

const warnLateQueue = ({ queue, waiting, oldest_seconds }: QueueStats): Check => ({
  name: 'queues',
  status: 'warn',
  detail: `${queue}: ${waiting} waiting, the oldest for ${Math.round(oldest_seconds)} s`,
  fix: `Start more workers: npm run worker ${declared.get(queue).concern}`.trimEnd(),
})

async function checkWorkers(config: Config, pool: Pool): Promise<Check[]> {
  const processes = await listHeartbeats(pool)
  const isFresh = ({ age_ms }: { age_ms: number }) => age_ms < config.WORKER_HEARTBEAT_STALE_MS
  const all = processes.filter(({ kinds }) => kinds.length > 0)
  const fresh = all.filter(isFresh)
  const uncovered = WORKER_KINDS.filter(kind => !fresh.some(({ kinds }) => kinds.includes(kind)))
  const checks: Check[] = []
  if (uncovered.length > 0)
    checks.push({
      name: 'workers',
      status: 'fail',
      detail: `no live worker runs ${uncovered.join(', ')}`,
      fix: `Start one: npm run worker${uncovered.length === WORKER_KINDS.length ? '' : ` ${uncovered.join(' ')}`}`,
    })
  else {
    const oldest = Math.max(...fresh.map(({ age_ms }) => age_ms))
    const detail = `${fresh.length} alive, all heartbeats within ${Math.ceil(oldest / 1000)} s`
    checks.push({ name: 'workers', status: 'ok', detail })
  }
  for (const { instance_id, clock_ahead_ms } of processes.filter(isFresh))
    if (clock_ahead_ms !== null && Math.abs(clock_ahead_ms) >= SKEW_WARN_MS)
      checks.push({ ...checkClock(clock_ahead_ms), name: `clock of ${instance_id}` })
  checks.push(...checkVersions(processes.filter(isFresh).flatMap(({ version }) => version ?? [])))
  const silent = all.filter(each => !fresh.includes(each))
  if (silent.length > 0)
    checks.push({
      name: 'workers',
      status: 'warn',
      detail: `no recent heartbeat from ${silent.map(({ instance_id }) => instance_id).join(', ')}`,
      fix: 'Check whether they were killed, hang, or lost the database; their rows are deleted after a week.',
    })
  return checks
}

/** Returns a warning if live processes have other releases than this command, as during an upgrade. */
function checkVersions(versions: readonly string[]): Check[] {
  const counts = Map.groupBy(versions, version => version)
  if ([...counts.keys()].every(version => version === release)) return []
  const detail = [...counts].map(([version, all]) => `${version} (${all.length})`).sort()
  return [
    {
      name: 'versions',
      status: 'warn',
      detail: `live processes by release: ${detail.join(', ')}; this command is of ${release}`,
      fix: 'Finish the upgrade: replace the processes of other releases.',
    },
  ]
}
