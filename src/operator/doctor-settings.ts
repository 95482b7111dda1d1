import leven from 'leven'
import type { Config } from '#core/base/config.ts'
import { settingRows } from '#core/base/declared-settings.ts'
import { type Environment, namesDatabase } from './environment.ts'
import type { Check } from './output.ts'

/** Shortest setting whose misspelt forms are found: short ones resemble variables of other programs. */
const MIN_LENGTH = 8
/** Letters in which a misspelt name differs at most. */
const MAX_DISTANCE = 2

const warning = (detail: string, fix: string): Check => ({ name: 'settings', status: 'warn', detail, fix })

/** Warns of settings that are valid and probably not intended. */
export function checkSettings(config: Config, env: Environment): Check[] {
  const checks = listMisspelt(env).map(({ variable, setting }) =>
    warning(`${variable} is no setting`, `Did you mean ${setting}?`),
  )
  if (config.TRUST_PROXY === true)
    checks.push(
      warning(
        'TRUST_PROXY=true accepts a client address from every client',
        'Set the number of proxies in front of web.',
      ),
    )
  if (!config.production) return checks
  if (config.CORS_ALLOWED_ORIGINS.includes('*'))
    checks.push(
      warning(
        'CORS_ALLOWED_ORIGINS=* lets pages of every origin read responses',
        'List the origins of your pages, or BASE_URL alone.',
      ),
    )
  if (!namesDatabase(env))
    checks.push(warning('production without DATABASE_URL', 'Set it; the embedded database is for development.'))
  return checks
}

/** Returns variables that resemble a setting, or are one after `MUSTER_`. */
function listMisspelt(env: Environment): { variable: string; setting: string }[] {
  const names = settingRows().map(({ name }) => name)
  const known = new Set(names)
  const resembled = (variable: string): string | undefined => {
    if (known.has(variable)) return
    const bare = variable.replace(/^MUSTER_/, '')
    if (bare !== variable && known.has(bare)) return bare
    return names.find(
      name => name.length >= MIN_LENGTH && leven(variable, name, { maxDistance: MAX_DISTANCE + 1 }) <= MAX_DISTANCE,
    )
  }
  return Object.keys(env).flatMap(variable => {
    const setting = env[variable] ? resembled(variable) : undefined
    return setting === undefined ? [] : { variable, setting }
  })
}
