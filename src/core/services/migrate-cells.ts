import type { Config } from '../base/config.ts'
import type { Logger } from '../base/log.ts'
import { addressOf } from '../db/database-url.ts'
import { openPool } from '../db/pool.ts'
import { migrate } from '../queues/migrate.ts'
import { secretBoxOf } from '../secrets/secretbox.ts'
import { listDirectory, NO_KEY } from './cell-directory.ts'

/** Outcome of the migration of a cell. `address` is null if no configured key opens its URL. */
export type MigratedCell = { name: string; address: string | null; ran: readonly string[]; error: unknown }

type MigrationOptions = Pick<NonNullable<Parameters<typeof migrate>[1]>, 'log' | 'onWait'>

/** Migrates the database of a URL by the settings of the deployment. Returns the names of the migrations that ran. */
export const migrateCell = (config: Config, url: string, options: MigrationOptions = {}): Promise<string[]> =>
  migrate(url, {
    lockTimeoutMs: config.MIGRATION_LOCK_TIMEOUT_MS,
    jobRetentionDays: config.JOB_RETENTION_DAYS,
    ...options,
  })

/** Migrates home. */
export const migrateHome = (config: Config, options: MigrationOptions = {}): Promise<string[]> =>
  migrateCell(config, config.DATABASE_LISTEN_URL, options)

/**
 * Migrates the cells of the directory, one after the other, once home is migrated. An incomplete cell is not migrated. A cell that
 * fails does not keep the others from being migrated.
 */
export async function* migrateCells(config: Config, options: MigrationOptions = {}): AsyncGenerator<MigratedCell> {
  for (const { name, url, state } of await readDirectory(config)) {
    if (state === 'down') continue
    const cell = { name, address: url && addressOf(url), ran: [] }
    if (url === null) yield { ...cell, error: new Error(NO_KEY) }
    else if (state === 'moving') yield { ...cell, error: new Error('the cell is being moved') }
    else
      yield await migrateCell(config, url, options).then(
        ran => ({ ...cell, ran, error: null }),
        error => ({ ...cell, error }),
      )
  }
}

async function readDirectory(config: Config) {
  const pool = await openPool({ databaseUrl: config.DATABASE_URL, connections: 1, applicationName: 'muster migrate' })
  try {
    return await listDirectory(pool, { secrets: secretBoxOf(config) })
  } finally {
    await pool.end()
  }
}

/**
 * Migrates the deployment at the start of a process. A cell that fails is logged; its projects are not available until it is
 * migrated.
 */
export async function migrateAtStart(config: Config, log: Logger): Promise<void> {
  const options = { log: (line: string) => log.debug(line) }
  await migrateHome(config, options)
  if (!config.CELLS) return
  for await (const { name, error } of migrateCells(config, options))
    if (error) log.error({ cell: name, err: error }, 'the cell cannot be migrated')
}
