import { setTimeout as sleep } from 'node:timers/promises'
import type { Config } from '#core/base/config.ts'
import { requireConnections } from '#core/db/connections.ts'
import { addressOf } from '#core/db/database-url.ts'
import { firstOfMonth, listTablesWithoutMonth } from '#core/db/months.ts'
import { openPool, type Pool } from '#core/db/pool.ts'
import { readPrimaryFacts, replicaFacts, replicaProblem } from '#core/db/replica-facts.ts'
import { migrationNames, OutdatedReleaseError, requireRelease } from '#core/queues/breaking-migrations.ts'
import { DEVELOPMENT_KEY, secretBoxOf } from '#core/secrets/secretbox.ts'
import { countValuesByKey } from './keys.ts'
import { type Check, describeError } from './output.ts'
import { listAppliedMigrations, readServerFacts } from './store.ts'

const MIN_SERVER_VERSION = 150_000
export const SKEW_WARN_MS = 1000
const SKEW_FAIL_MS = 30_000

/** Checks the version and the clock of a server. */
export async function checkServer(pool: Pool, address: string): Promise<Check[]> {
  // The first call opens the connection, which must not distort the measured clock skew.
  await readServerFacts(pool)
  const sentAt = Date.now()
  const { version, number, now_ms } = await readServerFacts(pool)
  const skew = (sentAt + Date.now()) / 2 - now_ms
  if (number >= MIN_SERVER_VERSION)
    return [{ name: 'database', status: 'ok', detail: `PostgreSQL ${version} at ${address}` }, checkClock(skew)]
  const fix = 'Upgrade the server to PostgreSQL 15 or later.'
  return [{ name: 'database', status: 'fail', detail: `PostgreSQL ${version} is too old`, fix }, checkClock(skew)]
}

export const POOLER_FIX = 'Correct the address or the settings of its pooler.'

/** Runs the same check as web and worker at their start. */
export async function checkConnections(config: Pick<Config, 'DATABASE_URL' | 'DATABASE_LISTEN_URL'>): Promise<Check> {
  const name = 'connections'
  try {
    await requireConnections(config)
    return { name, status: 'ok', detail: 'notifications and prepared statements work' }
  } catch (error) {
    const detail = describeError(error)
    return { name, status: 'fail', detail, fix: POOLER_FIX }
  }
}

const REPLICA_FIX = 'Correct DATABASE_READ_URL or the replica; reads run on the server of DATABASE_URL meanwhile.'
const REPLAY_POLL_MS = 50

/** Checks that the replica is a standby of the database, and replays it in time; no check without one. */
export async function checkReplica(config: Config, pool: Pool): Promise<Check[]> {
  const { DATABASE_READ_URL: databaseUrl, READ_MAX_LAG_SECONDS: maxSeconds } = config
  if (!databaseUrl) return []
  const check = { name: 'replica', fix: REPLICA_FIX }
  let replica: Pool | undefined
  try {
    replica = await openPool({ databaseUrl, connections: 1, applicationName: 'muster doctor' })
    const primary = await readPrimaryFacts(pool)
    const startedAt = performance.now()
    for (;;) {
      const facts = await replica.one(replicaFacts)
      const problem = replicaProblem(primary, facts)
      if (problem !== null) return [{ ...check, status: 'fail', detail: `DATABASE_READ_URL ${problem}` }]
      const lagMs = performance.now() - startedAt
      if ((facts.position ?? 0) >= primary.position) {
        const detail = `a standby at ${addressOf(databaseUrl)}, which replays within ${Math.ceil(lagMs)} ms`
        return [{ name: check.name, status: 'ok', detail }]
      }
      if (lagMs > maxSeconds * 1000)
        return [{ ...check, status: 'warn', detail: `lags more than READ_MAX_LAG_SECONDS, ${maxSeconds} s` }]
      await sleep(REPLAY_POLL_MS)
    }
  } catch (error) {
    return [{ ...check, status: 'fail', detail: `DATABASE_READ_URL does not answer: ${describeError(error)}` }]
  } finally {
    await replica?.end()
  }
}

/** Checks that the migrations of this release, and no breaking one of a later, are applied. */
export async function checkMigrations(pool: Pool): Promise<Check> {
  const name = 'migrations'
  try {
    await requireRelease({ pool })
  } catch (error) {
    if (!(error instanceof OutdatedReleaseError)) throw error
    return { name, status: 'fail', detail: error.message, fix: 'Install the newer release.' }
  }
  const applied = await listAppliedMigrations(pool)
  const missing = migrationNames().filter(name => !applied.includes(name))
  if (missing.length === 0) return { name, status: 'ok', detail: `${applied.length} applied` }
  const names = `${missing.slice(0, 5).join(', ')}${missing.length > 5 ? ', ...' : ''}`
  return {
    name,
    status: 'fail',
    detail: `${missing.length} not applied: ${names}`,
    fix: 'Run muster migrate.',
  }
}

/** Checks that the sweeps make partitions ahead of time. */
export async function checkMonths(pool: Pool): Promise<Check[]> {
  const tables = await listTablesWithoutMonth(pool, firstOfMonth(new Date(), 1))
  return tables.map(table => ({
    name: 'months',
    status: 'warn',
    detail: `${table} has no partition for the next month`,
    fix: 'Start a worker that executes snapshot: its daily sweeps make partitions.',
  }))
}

/** Judges the difference between two clocks. */
export function checkClock(skewMs: number): Check {
  const size = Math.abs(skewMs)
  const detail =
    size < SKEW_WARN_MS
      ? `within ${Math.max(1, Math.round(size))} ms of the database`
      : `${(size / 1000).toFixed(1)} s ${skewMs > 0 ? 'fast' : 'slow'} compared to the database`
  if (size < SKEW_WARN_MS) return { name: 'clock', status: 'ok', detail }
  return {
    name: 'clock',
    status: size < SKEW_FAIL_MS ? 'warn' : 'fail',
    detail,
    fix: 'Synchronize both machines with NTP: leases, tokens and retries compare the two clocks.',
  }
}

/** Counts the keys of stored secrets. */
export async function checkKeys(config: Config, pool: Pool): Promise<Check[]> {
  const key = config.SECRETS_ENCRYPTION_KEY[0] ?? DEVELOPMENT_KEY
  const counts = await countValuesByKey({ config, pool, secrets: secretBoxOf(config) })
  const total = (state: string) =>
    counts.filter(each => each.state === state).reduce((sum, { count }) => sum + count, 0)
  const checks: Check[] = []
  if (key === DEVELOPMENT_KEY)
    checks.push({
      name: 'encryption key',
      status: 'warn',
      detail: 'the public development key is in use',
      fix: 'Set SECRETS_ENCRYPTION_KEY (openssl rand -hex 32) and run muster secrets reencrypt.',
    })
  if (total('unknown') > 0)
    checks.push({
      name: 'encryption key',
      status: 'fail',
      detail: `${total('unknown')} values are encrypted with a key that is not configured: ${[
        ...new Set(counts.filter(({ state }) => state === 'unknown').map(({ key_id }) => key_id)),
      ].join(', ')}`,
      fix: 'Add the key to SECRETS_ENCRYPTION_KEY_PREVIOUS, then run muster secrets reencrypt.',
    })
  if (total('previous') > 0)
    checks.push({
      name: 'encryption key',
      status: 'warn',
      detail: `${total('previous')} values are encrypted with a previous key`,
      fix: 'Run muster secrets reencrypt, then remove the key from SECRETS_ENCRYPTION_KEY_PREVIOUS.',
    })
  if (checks.length === 0)
    checks.push({ name: 'encryption key', status: 'ok', detail: `all ${total('current')} values use the current key` })
  return checks
}
