import { loadSettings } from '#config.ts'
import { type Config, ConfigError } from '#core/base/config.ts'
import { release } from '#core/base/release.ts'
import { poolerProblem } from '#core/db/connections.ts'
import { addressOf } from '#core/db/database-url.ts'
import { openPool, type Pool } from '#core/db/pool.ts'
import { loadModules } from '#core/modules/module.ts'
import { DEVELOPMENT_KEY } from '#core/secrets/secretbox.ts'
import { HOME } from '#core/services/cell.ts'
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
import { checkAddresses, checkBrowserKeys, checkQueues } from './doctor-work.ts'
import { commandLog, type Environment, openDeployment } from './environment.ts'
import { type Check, describeError, printChecks } from './output.ts'
import { listHeartbeats } from './store.ts'

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
    checks.push(...(await checkQueues(config.DATABASE_LISTEN_URL, pool, commandLog(env), HOME.name)))
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
