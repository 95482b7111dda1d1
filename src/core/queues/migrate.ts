import { readFile } from 'node:fs/promises'
import path from 'node:path'
import type { MigrationBuilder } from 'node-pg-migrate'
import { DatabaseClient } from '../db/pg-client.ts'
import { MIGRATIONS, migrationNames, migrationStatements, requireCurrentRelease } from './breaking-migrations.ts'
import { createQueuesInDatabase } from './queue.ts'

/** Key of the advisory lock; arbitrary, but the same in every release. */
export const MIGRATION_LOCK = 7_310_542_201

/**
 * Runs the pending migrations of sql/ and creates or updates the queues of the loaded modules. Concurrent calls wait
 * for each other.
 * @param options.directory files of the migrations, default sql/
 * @param options.lockTimeoutMs longest wait for the lock, default 10 minutes
 * @param options.onWait called before waiting for another process that migrates
 * @param options.jobRetentionDays how long finished messages are kept, default 7
 * @returns the names of the migrations that ran
 * @throws OutdatedReleaseError if the database has a breaking migration of a later release
 */
export async function migrate(
  databaseUrl: string,
  options: {
    directory?: string
    lockTimeoutMs?: number
    jobRetentionDays?: number
    log?: (line: string) => void
    onWait?: () => void
  } = {},
): Promise<string[]> {
  const directory = options.directory ?? MIGRATIONS
  // Imported lazily: most processes do not migrate.
  const { runner } = await import('node-pg-migrate')
  const client = new DatabaseClient({ connectionString: databaseUrl, application_name: 'muster migrate' })
  await client.connect()
  try {
    const { rows } = await client.query(`select pg_try_advisory_lock(${MIGRATION_LOCK}) as locked`)
    if (!rows[0].locked) {
      options.onWait?.()
      await client.query(`set lock_timeout = ${Math.max(1, options.lockTimeoutMs ?? 600_000)}`)
      await client.query(`select pg_advisory_lock(${MIGRATION_LOCK})`)
      await client.query('set lock_timeout = 0')
    }
    await requireCurrentRelease(
      async () => (await client.query('select name, release from breaking_migrations order by name')).rows,
      migrationNames(directory),
    )
    const ran = await runner({
      dbClient: client,
      dir: directory,
      migrationLoaderStrategies: [{ extensions: ['.sql'], loader: loadMigrations }],
      direction: 'up',
      migrationsTable: 'migrations',
      checkOrder: true,
      noLock: true,
      // Without this, each migration is committed on its own: a release would stop its predecessor and then fail.
      singleTransaction: true,
      log: options.log ?? (() => {}),
    })
    await createQueuesInDatabase(databaseUrl, { retentionDays: options.jobRetentionDays })
    return ran.map(migration => migration.name)
  } finally {
    await client.end()
  }
}

/** Reads files of migrations for the runner. */
const loadMigrations = (files: string[]) =>
  Promise.all(
    files.map(async file => {
      const statements = migrationStatements(path.basename(file, '.sql'), await readFile(file, 'utf8'))
      const up = (builder: MigrationBuilder) => {
        for (const statement of statements) builder.sql(statement)
      }
      return { id: file, filePaths: [file], actions: { up, down: false as const } }
    }),
  )
