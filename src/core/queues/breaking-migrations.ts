import { readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { z } from 'zod'
import { compareReleases, release } from '../base/release.ts'
import type { Services } from '../base/services.ts'
import { sqlStateOf } from '../db/database-errors.ts'
import { sql } from '../db/sql.ts'

export const MIGRATIONS = fileURLToPath(new URL('../../../sql', import.meta.url))

/** Channel on which a breaking migration notifies running processes. */
const CHANNEL = 'muster_breaking_migrations'

const UNDEFINED_TABLE = '42P01'

const BreakingMigration = z.strictObject({ name: z.string(), release: z.string() })

/** Thrown when the database has a breaking migration of a later release. */
export class OutdatedReleaseError extends Error {}

/** Returns the names of the migrations of a directory, in order. */
export const migrationNames = (directory = MIGRATIONS): string[] =>
  readdirSync(directory)
    .filter(file => file.endsWith('.sql'))
    .map(file => file.slice(0, -'.sql'.length))
    .sort()

const HEADER = /^-- breaking: (true|false)(, transaction: none)?$/

/**
 * Returns the statements of a migration. A breaking one is recorded, and running processes are notified at its commit. One
 * without a transaction runs each statement on its own, as `create index concurrently` requires, and columns of several tables
 * that are busy together; a statement ends with a semicolon at the end of a line.
 * @param prefix precedes the channel of the notification
 * @throws Error if its first line is none of the three
 */
export function migrationStatements(
  name: string,
  text: string,
  prefix = '',
): { statements: string[]; isTransactional: boolean } {
  const [header, breaking, online] = HEADER.exec(text.slice(0, text.indexOf('\n'))) ?? []
  if (!header || (breaking === 'true' && online))
    throw new Error(
      `the first line of ${name}.sql must be "-- breaking: false", "-- breaking: false, transaction: none" or "-- breaking: true"`,
    )
  if (online) return { statements: onlineStatements(text), isTransactional: false }
  const recorded = [
    `insert into breaking_migrations (name, release) values ('${name}', '${release}')`,
    `select pg_notify('${prefix}${CHANNEL}', '${name}')`,
  ]
  return { statements: [text, ...(breaking === 'true' ? recorded : [])], isTransactional: true }
}

/** Statements outside a transaction: repeated from the first if one fails, so an index that was left invalid is dropped. */
const onlineStatements = (text: string): string[] =>
  text
    .replace(/^--.*$/gm, '')
    .split(/;\s*$/m)
    .map(statement => statement.trim())
    .filter(Boolean)
    .flatMap(statement => {
      const index = /^create (?:unique )?index concurrently (\w+) on/.exec(statement)?.[1]
      return index === undefined ? [statement] : [`drop index concurrently if exists ${index}`, statement]
    })

/**
 * Checks that the release with the migrations `names` has all breaking migrations of the database, which `list` reads.
 * @throws OutdatedReleaseError otherwise
 */
export async function requireCurrentRelease(
  list: () => Promise<readonly z.output<typeof BreakingMigration>[]>,
  names = migrationNames(),
): Promise<void> {
  const migrations = await list().catch(error => {
    // A database without migrations.
    if (sqlStateOf(error) === UNDEFINED_TABLE) return []
    throw error
  })
  const unknown = migrations.filter(({ name }) => !names.includes(name)).at(-1)
  if (unknown)
    throw new OutdatedReleaseError(
      `release ${release} cannot run on this database since migration ${unknown.name}: start a release that has it, ${unknown.release} or later, or restore the backup from before it`,
    )
}

/** A migration that removes objects, and the release that stopped using them. */
const CONTRACT = /^-- breaking: true\n-- contract: (\d+\.\d+\.\d+)$/m

/** Returns the release that stopped using what a migration removes; null if it removes nothing. */
export const contractOf = (text: string): string | null => CONTRACT.exec(text)?.[1] ?? null

/** Thrown when a database must be migrated by an earlier release first. */
export class SkippedReleaseError extends Error {}

/**
 * Checks that the database was migrated by the releases that stopped using what pending migrations remove.
 * @param contracts releases by the names of these migrations
 * @param migratedBy the latest release that migrated the database
 * @throws SkippedReleaseError that names the first release to stop at
 */
export function requireContracts(contracts: ReadonlyMap<string, string>, migratedBy: string): void {
  const [first] = [...contracts]
    .filter(([, stopped]) => compareReleases(migratedBy, stopped) < 0)
    .toSorted(([, one], [, other]) => compareReleases(one, other))
  if (!first) return
  const [name, stopped] = first
  throw new SkippedReleaseError(
    `migration ${name} removes what releases before ${stopped} use, and release ${migratedBy} was the last that migrated this database: migrate it with release ${stopped} and replace all processes, then migrate it with release ${release}`,
  )
}

/** As requireCurrentRelease, by the pool of a process. */
export const requireRelease = ({ pool }: Pick<Services, 'pool'>): Promise<void> =>
  requireCurrentRelease(() =>
    pool.any(sql.type(BreakingMigration)`select name, release from breaking_migrations order by name`),
  )

/** Time until a failed check is repeated. */
const CHECK_AGAIN_MS = 5000

/** Whether this process was stopped: another signal would end requests and work in flight. */
let isStopping = false

/**
 * Stops this process, as SIGTERM does, when a newer release runs a breaking migration. Resolves when no later migration is
 * missed.
 */
export async function stopWhenOutdated({
  log,
  notifications,
  pool,
}: Pick<Services, 'log' | 'notifications' | 'pool'>): Promise<void> {
  const check = () =>
    void requireRelease({ pool }).catch(error => {
      if (isStopping) return
      if (!(error instanceof OutdatedReleaseError)) {
        log.warn({ err: error }, 'check of the release failed')
        setTimeout(check, CHECK_AGAIN_MS).unref()
        return
      }
      isStopping = true
      log.fatal({ err: error }, 'release outdated')
      process.kill(process.pid, 'SIGTERM')
    })
  await notifications.listen(CHANNEL, check, { onReconnect: check }).ready
}
