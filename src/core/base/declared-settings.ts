import { type Config, ConfigError, type SettingProblem } from './config.ts'
import { declarations } from './declarations.ts'
import type { Environment, Setting, SettingsDeclaration } from './setting.ts'

/** The settings of all declarations, and the configuration that is read by them. */

type DeclaredSetting = Setting<unknown> & { name: string; group: string }

const declared = declarations<DeclaredSetting>('setting', ({ name }) => name)

let completions: NonNullable<SettingsDeclaration['complete']>[] = []

/** Registers all declarations. Settings are read, checked and documented in their order. */
export function declareSettings(all: readonly SettingsDeclaration[]): void {
  declared.fill(
    all.flatMap(({ group, settings }) => Object.entries(settings).map(([name, entry]) => ({ ...entry, name, group }))),
  )
  completions = all.flatMap(({ complete }) => complete ?? [])
}

const documentedDefault = (entry: DeclaredSetting): string => entry.documented ?? entry.default

/** Returns the settings as rows, for docs/operations.md and `muster doctor`. */
export const settingRows = () =>
  declared.all().map(entry => ({
    name: entry.name,
    group: entry.group,
    default: documentedDefault(entry),
    required_in_production: entry.production === true,
    secret: entry.secret === true,
    meaning: entry.doc,
  }))

/** Credentials in URLs. */
const USER_INFO = /(?<=\/\/)[^/?#@\s]*(?:@[^/?#@\s]*)*@/g

/** Returns the effective settings of a process; the values of secrets are null, and URLs are without credentials. */
export const effectiveSettings = (config: Config) =>
  declared.all().map(entry => {
    const { name, group, doc, schema } = entry
    const secret = entry.secret === true
    const fallback = documentedDefault(entry)
    const value = config[name as keyof Config] as unknown
    const text = typeof value === 'string' ? value : Array.isArray(value) ? value.join(',') : JSON.stringify(value)
    const unset = schema.safeParse(fallback)
    return {
      name,
      group,
      value: secret || value === null ? null : text.replace(USER_INFO, '[redacted]@'),
      default: fallback,
      doc,
      secret,
      set: !unset.success || JSON.stringify(unset.data) !== JSON.stringify(value),
    }
  })

/**
 * Parses an environment into the configuration.
 * @throws ConfigError with all missing and invalid variables
 */
export function parseEnvironment(env: Environment): Config {
  const parsed: Record<string, unknown> = {}
  const production = env.NODE_ENV === 'production'
  const problems: SettingProblem[] = []
  const addProblem = (variable: string, message: string) => {
    problems.push({ variable, message })
  }
  for (const { name, schema, default: fallback, production: required } of declared.all()) {
    const value = env[name]
    const result = schema.safeParse(value || fallback)
    if (production && required && !value) addProblem(name, 'is required in production')
    else if (!result.success) addProblem(name, result.error.issues[0].message)
    else parsed[name] = result.data
  }
  const config = { ...parsed, production } as unknown as Config
  for (const complete of completions) complete(config, addProblem, env)
  const [first, ...others] = problems
  if (first) throw new ConfigError(first.variable, first.message, others)
  return config
}
