import { createInterface } from 'node:readline/promises'
import { Writable } from 'node:stream'
import { AppError } from '#core/base/errors.ts'
import { addressOf } from '#core/db/database-url.ts'
import { loadModules } from '#core/modules/module.ts'
import { OutdatedReleaseError, SkippedReleaseError } from '#core/queues/breaking-migrations.ts'
import { migrateCells, migrateHome } from '#core/services/migrate-cells.ts'
import { bootstrapAdmin } from '#identity/users/bootstrap.ts'
import { modules } from '#modules.ts'
import { withConfig, withServices } from './environment.ts'
import { CommandError, describeError, print, printJson, printProgress } from './output.ts'

/**
 * `muster migrate`: waits for the lock, runs pending migrations and prints their names; then the same for each other cell. Sets
 * exit code 1 if a cell fails.
 */
export const migrateCommand = ({ data, json }: { data: string; json?: boolean }): Promise<void> =>
  withConfig(data, async config => {
    loadModules(modules)
    const startedAt = performance.now()
    try {
      const onWait = () => printProgress('another process migrates; waiting for its lock')
      const ran = await migrateHome(config, { onWait })
      const ms = Math.round(performance.now() - startedAt)
      for (const name of json ? [] : ran) print(`ran ${name}`)
      if (!json) print(ran.length === 0 ? 'the database is up to date' : `${ran.length} migrations in ${ms} ms`)
      const cells: object[] = []
      for await (const { error, ...cell } of migrateCells(config, { onWait })) {
        cells.push({ ...cell, error: error && describeError(error) })
        if (!json) print(`cell ${cell.name}: ${outcomeOf(cell.ran.length, error)}`)
        if (error) process.exitCode = 1
      }
      if (json) printJson({ ran, ms, ...(cells.length > 0 && { cells }) })
    } catch (error) {
      if (error instanceof OutdatedReleaseError || error instanceof SkippedReleaseError)
        throw new CommandError(error.message)
      throw new CommandError(
        `the database ${addressOf(config.DATABASE_URL)} cannot be migrated: ${describeError(error)}`,
        'Set DATABASE_URL to an existing database, or run muster up, which starts an embedded one.',
      )
    }
  })

function outcomeOf(migrations: number, error: unknown): string {
  if (error) return `cannot be migrated: ${describeError(error)}`
  return migrations === 0 ? 'up to date' : `${migrations} migrations`
}

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
