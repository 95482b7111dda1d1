import { createInterface } from 'node:readline/promises'
import { Writable } from 'node:stream'
import { AppError } from '#core/base/errors.ts'
import { addressOf } from '#core/db/database-url.ts'
import { loadModules } from '#core/modules/module.ts'
import { OutdatedReleaseError, SkippedReleaseError } from '#core/queues/breaking-migrations.ts'
import { migrate } from '#core/queues/migrate.ts'
import { bootstrapAdmin } from '#identity/users/bootstrap.ts'
import { modules } from '#modules.ts'
import { withConfig, withServices } from './environment.ts'
import { CommandError, describeError, print, printJson, printProgress } from './output.ts'

/** `muster migrate`: waits for the lock, runs pending migrations and prints their names. */
export const migrateCommand = ({ data, json }: { data: string; json?: boolean }): Promise<void> =>
  withConfig(data, async config => {
    loadModules(modules)
    const startedAt = performance.now()
    try {
      const ran = await migrate(config.DATABASE_LISTEN_URL, {
        lockTimeoutMs: config.MIGRATION_LOCK_TIMEOUT_MS,
        jobRetentionDays: config.JOB_RETENTION_DAYS,
        onWait: () => printProgress('another process migrates; waiting for its lock'),
      })
      const ms = Math.round(performance.now() - startedAt)
      if (json) return printJson({ ran, ms })
      for (const name of ran) print(`ran ${name}`)
      print(ran.length === 0 ? 'the database is up to date' : `${ran.length} migrations in ${ms} ms`)
    } catch (error) {
      if (error instanceof OutdatedReleaseError || error instanceof SkippedReleaseError)
        throw new CommandError(error.message)
      throw new CommandError(
        `the database ${addressOf(config.DATABASE_URL)} cannot be migrated: ${describeError(error)}`,
        'Set DATABASE_URL to an existing database, or run muster up, which starts an embedded one.',
      )
    }
  })

type BootstrapOptions = { data: string; username?: string; password?: string; json?: boolean }

/**
 * `muster bootstrap`: creates the first admin.
 * @throws CommandError if a user exists or a value is invalid
 */
export async function bootstrapCommand({ data, json, ...options }: BootstrapOptions): Promise<void> {
  const username = options.username || (await promptFor('username', false))
  const password = options.password || process.env.ADMIN_PASSWORD || (await promptFor('password', true))
  await withServices(data, async services => {
    try {
      const { id } = await bootstrapAdmin(services, { username, password })
      if (json) printJson({ id, username, role: 'admin' })
      else print(`created admin ${username}, ${id}`)
    } catch (error) {
      if (!(error instanceof AppError)) throw error
      if (error.code === 'BOOTSTRAP_ALREADY_COMPLETED')
        throw new CommandError(
          `${error.code}: a user already exists`,
          'Create further users as an admin with POST /api/v1/users.',
        )
      throw new CommandError(describeError(error))
    }
  })
}

/**
 * Prompts on the terminal; `hidden` input is not echoed.
 * @throws CommandError without a terminal
 */
async function promptFor(name: string, hidden: boolean): Promise<string> {
  if (!process.stdin.isTTY)
    throw new CommandError(`no ${name} given`, `Pass --${name}, or set ADMIN_${name.toUpperCase()}.`)
  process.stderr.write(`${name}: `)
  const silent = new Writable({ write: (_chunk, _encoding, done) => done() })
  const line = createInterface({ input: process.stdin, output: hidden ? silent : process.stderr, terminal: true })
  // On a raw terminal Ctrl-C reaches the prompt instead of raising a signal.
  line.once('SIGINT', () => process.exit(130))
  try {
    return await line.question('')
  } finally {
    line.close()
    if (hidden) process.stderr.write('\n')
  }
}
