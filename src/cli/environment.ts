import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import type { Config } from '../config.ts'
import { createLog, type Logger } from '../core/process/log.ts'
import type { OpenServices } from '../core/process/services-lifecycle.ts'
import { loadSettings } from '../core/process/settings.ts'
import { findEmbedded, startEmbedded } from '../local/postgres.ts'

export type Environment = Record<string, string | undefined>

/** Where `up` keeps what it makes, relative to the working directory. */
export const DATA_DIRECTORY = '.data'

export const databaseDirectory = (dataDir: string): string => path.join(path.resolve(dataDir), 'postgres')

/** Whether the environment names a database; without one the embedded server is used. */
export const namesDatabase = (env: Environment): boolean =>
  ['DATABASE_URL', 'DATABASE_HOST', 'DATABASE_NAME', 'DATABASE_USER'].some(name => env[name])

type KeptSecrets = { JWT_SECRET: string; SECRETS_ENCRYPTION_KEY: string }

const secretsFile = (dataDir: string): string => path.join(path.resolve(dataDir), 'secrets.json')

function readSecrets(dataDir: string): KeptSecrets | null {
  const file = secretsFile(dataDir)
  return fs.existsSync(file) ? (JSON.parse(fs.readFileSync(file, 'utf8')) as KeptSecrets) : null
}

/** The secrets kept in the data directory, made at the first call: whoever starts at once gets the same. */
export function loadOrCreateSecrets(dataDir: string): KeptSecrets {
  const found = readSecrets(dataDir)
  if (found) return found
  const file = secretsFile(dataDir)
  fs.mkdirSync(path.dirname(file), { recursive: true })
  const fresh: KeptSecrets = {
    JWT_SECRET: randomBytes(48).toString('base64url'),
    SECRETS_ENCRYPTION_KEY: randomBytes(32).toString('hex'),
  }
  const written = `${file}.${process.pid}`
  fs.writeFileSync(written, `${JSON.stringify(fresh, null, 2)}\n`, { mode: 0o600 })
  try {
    // Complete or absent, and never over one that another start has put there.
    fs.linkSync(written, file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    fs.rmSync(written)
  }
  return readSecrets(dataDir) as KeptSecrets
}

/**
 * The environment with kept secrets where it names none. The encryption key belongs to the embedded database only: on
 * a named database other processes work too, and all must have the same key.
 */
export function withSecrets(env: Environment, secrets: KeptSecrets, embedded: boolean): Environment {
  return {
    ...env,
    JWT_SECRET: env.JWT_SECRET || secrets.JWT_SECRET,
    ...(embedded ? { SECRETS_ENCRYPTION_KEY: env.SECRETS_ENCRYPTION_KEY || secrets.SECRETS_ENCRYPTION_KEY } : {}),
  }
}

/**
 * The environment of a command that works on a deployment: the database it names, else the one that `up` keeps in the
 * data directory, which is started when it does not run. `close` stops what was started here.
 */
export async function openDeployment(dataDir: string): Promise<{ env: Environment; close(): Promise<void> }> {
  const { env } = process
  const dir = databaseDirectory(dataDir)
  if (namesDatabase(env) || !fs.existsSync(path.join(dir, 'PG_VERSION'))) return { env, close: async () => {} }
  const running = await findEmbedded(dir)
  const started = running === null ? await startEmbedded({ dir }) : null
  const kept = withSecrets(env, loadOrCreateSecrets(dataDir), true)
  return {
    env: { ...kept, DATABASE_URL: running ?? started?.url },
    close: async () => started?.stop(),
  }
}

/** The log of a command: errors on stderr unless LOG_LEVEL says otherwise. */
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

/** Runs `work` with open services of the deployment; every module is loaded. */
export const withServices = <T>(dataDir: string, work: (services: OpenServices) => Promise<T>): Promise<T> =>
  withConfig(dataDir, async (config, log) => {
    const [{ openServices }, { loadModules }, { modules }] = await Promise.all([
      import('../core/process/services-lifecycle.ts'),
      import('../core/api/module.ts'),
      import('../modules.ts'),
    ])
    loadModules(modules)
    const services = await openServices(config, { log, role: 'cli' })
    try {
      return await work(services)
    } finally {
      await services.close()
    }
  })
