import { readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { DatabaseClient } from '../db/pg-client.ts'
import { createQueuesInDatabase } from './queue.ts'

const directory = fileURLToPath(new URL('../../../sql', import.meta.url))

/** Key of the advisory lock; arbitrary, but the same in every release. */
export const MIGRATION_LOCK = 7_310_542_201

/**
 * Runs the pending migrations of sql/ and creates or updates the queues of the loaded modules. Concurrent calls wait
 * for each other.
 * @param options.lockTimeoutMs longest wait for the lock, default 10 minutes
 * @param options.onWait called before waiting for another process that migrates
 * @param options.jobRetentionDays how long finished messages are kept, default 7
 * @returns the names of the migrations that ran
 */
export async function migrate(
  databaseUrl: string,
  options: {
    lockTimeoutMs?: number
    jobRetentionDays?: number
    log?: (line: string) => void
    onWait?: () => void
  } = {},
): Promise<string[]> {
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
    const ran = await runner({
      dbClient: client,
      dir: directory,
      direction: 'up',
      migrationsTable: 'migrations',
      checkOrder: true,
      noLock: true,
      log: options.log ?? (() => {}),
    })
    await createQueuesInDatabase(databaseUrl, { retentionDays: options.jobRetentionDays })
    return ran.map(migration => migration.name)
  } finally {
    await client.end()
  }
}

/** Returns the names of all migrations, in order. */
export const migrationNames = (): string[] =>
  readdirSync(directory)
    .filter(file => file.endsWith('.sql'))
    .map(file => file.slice(0, -'.sql'.length))
    .sort()
