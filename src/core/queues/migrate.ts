import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { MigrationBuilder } from 'node-pg-migrate'
import { ConfigError } from '../base/config.ts'
import { compareReleases, release } from '../base/release.ts'
import { isLockFailure } from '../db/database-errors.ts'
import { channelPrefix, parseDatabaseUrl } from '../db/database-url.ts'
import { DatabaseClient } from '../db/pg-client.ts'
import {
  contractOf,
  MIGRATIONS,
  migrationNames,
  migrationStatements,
  requireContracts,
  requireCurrentRelease,
} from './breaking-migrations.ts'
import { createQueuesInDatabase } from './queue.ts'

/**
 * Longest wait of a statement of a migration for a lock: work that needs the table waits with it. Then the migrations begin
 * again, after a pause in which that work continues. Less than deadlock_timeout, 1 s: PostgreSQL would then fail work that waits
 * for the migration and has a lock which the migration waits for.
 */
const LOCK_WAIT_MS = 500
/** The same for each fifth time: after deadlock_timeout, PostgreSQL ends an automatic vacuum that has the lock. */
const LONG_LOCK_WAIT_MS = 1500
const LONG_EVERY = 5
const PAUSE_MS = 500

const UNBOUNDED = ['set lock_timeout = 0', 'set statement_timeout = 0']
const BOUNDED = [`set lock_timeout = ${LOCK_WAIT_MS}`, 'reset statement_timeout']

/** Release of a database that records none. */
const FIRST_RELEASE = '0.1.0'

/** Key of the advisory lock; arbitrary, but the same in every release. */
export const MIGRATION_LOCK = 7_310_542_201

/**
 * Runs the pending migrations of sql/, in the schema of the URL, and creates or updates the queues of the loaded modules.
 * Concurrent calls wait for each other.
 * @param options.directory files of the migrations, default sql/
 * @param options.by release that migrates, default this one
 * @param options.lockTimeoutMs longest wait for another process that migrates, and for locks of tables, default 10 minutes
 * @param options.onWait called before waiting for another process that migrates
 * @param options.jobRetentionDays how long finished messages are kept, default 7
 * @returns the names of the migrations that ran
 * @throws OutdatedReleaseError if the database has a breaking migration of a later release
 * @throws ConfigError if its schema is a reserved word
 * @throws SkippedReleaseError if a migration removes what the release of the database uses
 */
export async function migrate(
  databaseUrl: string,
  options: {
    directory?: string
    by?: string
    lockTimeoutMs?: number
    jobRetentionDays?: number
    log?: (line: string) => void
    onWait?: () => void
  } = {},
): Promise<string[]> {
  const { directory = MIGRATIONS, by = release, lockTimeoutMs = 600_000 } = options
  const { schema } = parseDatabaseUrl(databaseUrl)
  // Imported lazily: most processes do not migrate.
  const { runner } = await import('node-pg-migrate')
  const client = new DatabaseClient({ connectionString: databaseUrl, application_name: 'muster migrate' })
  await client.connect()
  try {
    if (schema !== null) await requireSchema(client, schema)
    await lockMigrations(client, { schema, timeoutMs: lockTimeoutMs, onWait: options.onWait })
    await client.query(`set lock_timeout = ${LOCK_WAIT_MS}`)
    await requireCurrentRelease(
      async () => (await client.query('select name, release from breaking_migrations order by name')).rows,
      migrationNames(directory),
    )
    const migrated = await readMigrated(client)
    const pending = migrationNames(directory).filter(name => !migrated.names.has(name))
    const texts = await readTexts(pending, directory)
    // An empty database has nothing that a migration removes.
    if (migrated.names.size > 0) requireContracts(contractsOf(texts), migrated.by)
    const isBreaking = [...texts.values()].some(text => text.startsWith('-- breaking: true'))
    await untilLocked(client, lockTimeoutMs, () =>
      runner({
        dbClient: client,
        dir: directory,
        migrationLoaderStrategies: [{ extensions: ['.sql'], loader: migrationLoader(channelPrefix(databaseUrl)) }],
        direction: 'up',
        migrationsTable: 'migrations',
        ...(schema !== null && { schema }),
        checkOrder: true,
        noLock: true,
        // Each migration is committed on its own, so that it holds few locks and is not repeated because of a later one. But a
        // release must not stop its predecessor and then fail.
        singleTransaction: isBreaking,
        log: options.log ?? (() => {}),
      }),
    )
    await recordRelease(client, by)
    await createQueuesInDatabase(databaseUrl, { retentionDays: options.jobRetentionDays })
    return pending
  } finally {
    await client.end()
  }
}

/**
 * Creates a schema, if the database lacks it: with `if not exists`, PostgreSQL requires the privilege even if it does not.
 * @throws ConfigError if pg-boss cannot use its name
 */
async function requireSchema(client: DatabaseClient, schema: string): Promise<void> {
  const { rows } = await client.query(
    `select quote_ident($1) <> $1 as is_reserved, to_regnamespace($1) is not null as exists`,
    [schema],
  )
  if (rows[0].is_reserved) throw new ConfigError('DATABASE_URL', `has the schema ${schema}, a reserved word of SQL`)
  if (!rows[0].exists) await client.query(`create schema if not exists ${schema}`)
}

/**
 * Acquires the lock of migrations. Polls: a statement that waits for it would have a snapshot, for whose end the build of an
 * index by the holder of the lock waits.
 */
async function lockMigrations(
  client: DatabaseClient,
  { schema, timeoutMs, onWait }: { schema: string | null; timeoutMs: number; onWait?: () => void },
): Promise<void> {
  const key = schema === null ? `${MIGRATION_LOCK}` : `${MIGRATION_LOCK} + abs(hashtext('${schema}')::bigint)`
  const deadline = performance.now() + timeoutMs
  for (let polls = 0; ; polls++) {
    const { rows } = await client.query(`select pg_try_advisory_lock(${key}) as locked`)
    if (rows[0].locked) return
    if (performance.now() > deadline) throw new Error(`another process has migrated for ${timeoutMs / 1000} s`)
    if (polls === 0) onWait?.()
    await sleep(PAUSE_MS)
  }
}

/** Keeps other processes from migrating a database until the returned session ends. */
export async function lockCellMigrations(databaseUrl: string, timeoutMs = 60_000): Promise<DatabaseClient> {
  const client = new DatabaseClient({ connectionString: databaseUrl, application_name: 'muster move' })
  client.on('error', () => {})
  await client.connect()
  try {
    await lockMigrations(client, { schema: parseDatabaseUrl(databaseUrl).schema, timeoutMs })
    return client
  } catch (error) {
    await client.end()
    throw error
  }
}

/** Returns the names of the migrations that have run, and the latest release that migrated the database. */
async function readMigrated(client: DatabaseClient): Promise<{ names: ReadonlySet<string>; by: string }> {
  const exists = (await client.query(`select to_regclass('migrations') is not null as exists`)).rows[0].exists
  const rows: { name: string; release: string | null }[] = exists
    ? (await client.query(`select name, to_jsonb(m) ->> 'release' as release from migrations m`)).rows
    : []
  const releases = rows.flatMap(({ release }) => release ?? []).sort(compareReleases)
  return { names: new Set(rows.map(({ name }) => name)), by: releases.at(-1) ?? FIRST_RELEASE }
}

/** Records the release that has migrated, unless a later one has. Earlier migrations have no column for it. */
async function recordRelease(client: DatabaseClient, by: string): Promise<void> {
  const { rows } = await client.query(
    `select id, to_jsonb(m) ->> 'release' as release from migrations m where to_jsonb(m) ? 'release' order by id desc limit 1`,
  )
  for (const { id, release } of rows)
    if (release === null || compareReleases(release, by) < 0)
      await client.query('update migrations set release = $1 where id = $2', [by, id])
}

const readTexts = async (names: readonly string[], directory: string): Promise<ReadonlyMap<string, string>> =>
  new Map(
    await Promise.all(
      names.map(async name => [name, await readFile(path.join(directory, `${name}.sql`), 'utf8')] as const),
    ),
  )

/** Returns the releases that stopped using what migrations remove, by their names. */
const contractsOf = (texts: ReadonlyMap<string, string>): ReadonlyMap<string, string> =>
  new Map(
    [...texts].flatMap(([name, text]) => {
      const stopped = contractOf(text)
      return stopped === null ? [] : [[name, stopped] as const]
    }),
  )

/** Runs migrations again while a statement of them does not get its lock, at most for `timeoutMs`. */
async function untilLocked<T>(client: DatabaseClient, timeoutMs: number, run: () => Promise<T>): Promise<T> {
  const deadline = performance.now() + timeoutMs
  for (let attempt = 1; ; attempt++) {
    try {
      return await run()
    } catch (error) {
      if (!isLockFailure(error) || performance.now() > deadline) throw error
      // The runner leaves the transaction of a migration that failed open.
      await client.query('rollback')
      for (const statement of BOUNDED) await client.query(statement)
      if (attempt % LONG_EVERY === 0) await client.query(`set lock_timeout = ${LONG_LOCK_WAIT_MS}`)
      await sleep(PAUSE_MS)
    }
  }
}

/** Returns the reader of files of migrations for the runner. */
const migrationLoader = (prefix: string) => (files: string[]) =>
  Promise.all(
    files.map(async file => {
      const text = await readFile(file, 'utf8')
      const { statements, isTransactional } = migrationStatements(path.basename(file, '.sql'), text, prefix)
      const up = (builder: MigrationBuilder) => {
        if (!isTransactional) builder.noTransaction()
        // Building an index waits for older transactions, and checking a table takes long, without delaying other work.
        for (const statement of statements)
          if (!isTransactional && /concurrently|validate constraint|^call /.test(statement))
            for (const each of [...UNBOUNDED, statement, ...BOUNDED]) builder.sql(each)
          else builder.sql(statement)
      }
      return { id: file, filePaths: [file], actions: { up, down: false as const } }
    }),
  )
