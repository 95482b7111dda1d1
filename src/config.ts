import { type Config, ConfigError, type SettingProblem } from './core/base/config.ts'
import { declareSettings, parseEnvironment } from './core/base/declared-settings.ts'
import { parseDatabaseUrl } from './core/db/database-url.ts'
import { parseAllowHosts } from './core/net/allow-hosts.ts'
import { parseNameServers } from './core/net/resolver.ts'
import { settingDeclarations } from './settings.ts'

declareSettings(settingDeclarations)

/**
 * Returns the configuration of an environment; the syntax of special settings is not checked.
 * @throws ConfigError with all missing and invalid variables
 */
export const loadConfig = (env: Record<string, string | undefined> = process.env): Config => parseEnvironment(env)

const schemaOf = (url: string) => parseDatabaseUrl(url).schema

const parseUrl = (text: string) => text && parseDatabaseUrl(text)

/** Settings with a special syntax, and their parsers. */
const PARSERS = {
  DATABASE_URL: parseUrl,
  DATABASE_LISTEN_URL: parseUrl,
  EGRESS_ALLOW_HOSTS: parseAllowHosts,
  EGRESS_DNS_SERVERS: parseNameServers,
  OTEL_PROPAGATE_HOSTS: parseAllowHosts,
}

/**
 * Returns the validated configuration of a process.
 * @throws ConfigError with all missing and invalid variables
 */
export function loadSettings(env: Record<string, string | undefined> = process.env): Config {
  const problems: SettingProblem[] = []
  let config: Config | null = null
  try {
    config = loadConfig(env)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    problems.push(...error.problems)
  }
  for (const [variable, parse] of Object.entries(PARSERS)) {
    try {
      parse(env[variable] ?? '')
    } catch (error) {
      problems.push({ variable, message: (error as Error).message })
    }
  }
  if (config && problems.length === 0 && schemaOf(config.DATABASE_URL) !== schemaOf(config.DATABASE_LISTEN_URL))
    problems.push({ variable: 'DATABASE_LISTEN_URL', message: 'must have the same schema as DATABASE_URL' })
  const [first, ...others] = problems
  if (first) throw new ConfigError(first.variable, first.message, others)
  return config as Config
}
