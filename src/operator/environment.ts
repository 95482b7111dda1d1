import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { loadSettings } from '#config.ts'
import type { Config } from '#core/base/config.ts'
import { createLog, type Logger } from '#core/base/log.ts'
import type { OpenServices } from '#core/services/lifecycle.ts'
import { findEmbedded, startEmbedded } from '#local/postgres.ts'

export type Environment = Record<string, string | undefined>

/** Default data directory of `up`, relative to the working directory. */
export const DATA_DIRECTORY = '.data'

export const databaseDirectory = (dataDir: string): string => path.join(path.resolve(dataDir), 'postgres')

/** Whether the environment configures a database; otherwise the embedded server is used. */
export const namesDatabase = (env: Environment): boolean =>
  ['DATABASE_URL', 'DATABASE_HOST', 'DATABASE_NAME', 'DATABASE_USER'].some(name => env[name])

type StoredSecrets = { JWT_SECRET: string; SECRETS_ENCRYPTION_KEY: string }

const secretsFile = (dataDir: string): string => path.join(path.resolve(dataDir), 'secrets.json')

function readSecrets(dataDir: string): StoredSecrets | null {
  const file = secretsFile(dataDir)
  return fs.existsSync(file) ? (JSON.parse(fs.readFileSync(file, 'utf8')) as StoredSecrets) : null
}

/** Returns the secrets of the data directory, created by the first call. Concurrent calls return the same secrets. */
export function loadOrCreateSecrets(dataDir: string): StoredSecrets {
  const existing = readSecrets(dataDir)
  if (existing) return existing
  const file = secretsFile(dataDir)
  fs.mkdirSync(path.dirname(file), { recursive: true })
  const fresh: StoredSecrets = {
    JWT_SECRET: randomBytes(48).toString('base64url'),
    SECRETS_ENCRYPTION_KEY: randomBytes(32).toString('hex'),
  }
  const temporary = `${file}.${process.pid}`
  fs.writeFileSync(temporary, `${JSON.stringify(fresh, null, 2)}\n`, { mode: 0o600 })
  try {
    // A link is atomic and never replaces the file of a concurrent start.
    fs.linkSync(temporary, file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    fs.rmSync(temporary)
  }
  return readSecrets(dataDir) as StoredSecrets
}

/**
 * Returns the environment with stored secrets for missing ones. The stored encryption key applies only to the embedded
 * database: a configured database is shared with other processes, which must all have the same key.
 */
export function withSecrets(env: Environment, secrets: StoredSecrets, embedded: boolean): Environment {
  return {
    ...env,
    JWT_SECRET: env.JWT_SECRET || secrets.JWT_SECRET,
    ...(embedded ? { SECRETS_ENCRYPTION_KEY: env.SECRETS_ENCRYPTION_KEY || secrets.SECRETS_ENCRYPTION_KEY } : {}),
  }
}

/**
 * Returns the environment of a command on a deployment: with the configured database, otherwise with the embedded one
 * of the data directory, which is started if it is not running. `close` stops a server started here.
 */
export async function openDeployment(dataDir: string): Promise<{ env: Environment; close(): Promise<void> }> {
  const { env } = process
  const dir = databaseDirectory(dataDir)
  if (namesDatabase(env) || !fs.existsSync(path.join(dir, 'PG_VERSION'))) return { env, close: async () => {} }
  const running = await findEmbedded(dir)
  const started = running === null ? await startEmbedded({ dir }) : null
  return {
    env: { ...withSecrets(env, loadOrCreateSecrets(dataDir), true), DATABASE_URL: running ?? started?.url },
    close: async () => started?.stop(),
  }
}

/** Creates the log of a command: on stderr, errors only by default. */
export const commandLog = (env: Environment): Logger =>
  createLog({ level: env.LOG_LEVEL || 'error', destination: process.stderr })

/** Runs `work` with the configuration of the deployment. */
export async function withConfig<T>(dataDir: string, work: (config: Config, log: Logger) => Promise<T>): Promise<T> {
  const { env, close } = await openDeployment(dataDir)
  try {
    return await work(loadSettings(env), commandLog(env))
  } finally {
    await close()
  }
}

/** Runs `work` with all modules loaded and open services of the deployment. */
export const withServices = <T>(dataDir: string, work: (services: OpenServices) => Promise<T>): Promise<T> =>
  withConfig(dataDir, async (config, log) => {
    const [{ openServices }, { loadModules }, { modules }] = await Promise.all([
      import('#core/services/lifecycle.ts'),
      import('#core/modules/module.ts'),
      import('#modules.ts'),
    ])
    loadModules(modules)
    const services = await openServices(config, { log, role: 'cli' })
    try {
      return await work(services)
    } finally {
      await services.close()
    }
  })
