import { loadModules } from '../core/api/module.ts'
import { migrate } from '../core/db/migrate.ts'
import { modules } from '../modules.ts'
import { withConfig } from './environment.ts'
import { CommandError, describeError, print, printJson, printProgress } from './output.ts'

/** `muster migrate`: waits for the lock, runs what is missing, prints what ran. */
export const migrateCommand = ({ data, json }: { data: string; json?: boolean }): Promise<void> =>
  withConfig(data, async config => {
    loadModules(modules)
    const began = performance.now()
    try {
      const ran = await migrate(config.DATABASE_LISTEN_URL, {
        lockTimeoutMs: config.MIGRATION_LOCK_TIMEOUT_MS,
        jobRetentionDays: config.JOB_RETENTION_DAYS,
        onWait: () => printProgress('another process migrates; waiting for its lock'),
      })
      const ms = Math.round(performance.now() - began)
      if (json) return printJson({ ran, ms })
      for (const name of ran) print(`ran ${name}`)
      print(ran.length === 0 ? 'the database is up to date' : `${ran.length} migrations in ${ms} ms`)
    } catch (error) {
      const { host, pathname } = new URL(config.DATABASE_URL)
      throw new CommandError(
        `the database ${host}${pathname} cannot be migrated: ${describeError(error)}`,
        'Set DATABASE_URL to a database that exists, or run muster up, which brings its own.',
      )
    }
  })
