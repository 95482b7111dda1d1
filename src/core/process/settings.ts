import { type Config, ConfigError, loadConfig, type SettingProblem } from '../../config.ts'
import { parseAllowHosts } from '../net/allow-hosts.ts'
import { nameServers } from '../net/resolver.ts'

/** Settings that are lists with a form of their own, and what reads them. */
const LISTS = { EGRESS_ALLOW_HOSTS: parseAllowHosts, EGRESS_DNS_SERVERS: nameServers }

/**
 * The configuration of a process, with everything checked that can be before something is opened.
 * @throws ConfigError naming every variable that is missing or invalid
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
  for (const [variable, read] of Object.entries(LISTS)) {
    try {
      read(env[variable] ?? '')
    } catch (error) {
      problems.push({ variable, message: (error as Error).message })
    }
  }
  const [first, ...others] = problems
  if (first) throw new ConfigError(first.variable, first.message, others)
  return config as Config
}
