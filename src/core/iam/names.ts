/** Spellings of names in policies. */

const ACTION_ALIASES = new Map([
  ['usage:GetUsage', 'usage:GetAggregate'],
  ['usage:ListUsageMeters', 'usage:ListUsageEvents'],
  ['deciders:EvaluateDecider', 'deciders:CreateDecision'],
])

/** Action names by module. */
export type KnownActions = { actions: ReadonlyMap<string, ReadonlySet<string>> }

/**
 * Returns the canonical spellings of an action. `agents:<Name>` is an alias of `sessions:<Name>` if according to the
 * catalogue only sessions has the name. Without a catalogue both are returned, which is equivalent as long as no name is in
 * both modules.
 * @param action `<module>:<Action>`, without wildcards
 */
export function canonicalActions(action: string, catalogue?: KnownActions): string[] {
  const alias = ACTION_ALIASES.get(action)
  if (alias) return [alias]
  const colon = action.indexOf(':')
  const module = action.slice(0, colon)
  const name = action.slice(colon + 1)
  if (module === 'api-keys') {
    const noun = name.endsWith('ApiKey') ? 'ApiKey' : name.endsWith('ApiKeys') ? 'ApiKeys' : null
    if (noun) return [`project-keys:${name.slice(0, -noun.length)}${noun.replace('Api', 'Project')}`]
  }
  if (module === 'agents') {
    const session = `sessions:${name}`
    if (!catalogue) return [action, session]
    if (!catalogue.actions.get('agents')?.has(name) && catalogue.actions.get('sessions')?.has(name)) return [session]
  }
  return [action]
}

/** Returns the canonical resource type of any accepted spelling: `files` → `file`, `api-keys` → `project_key`, `*` → `*`. */
export function canonicalType(type: string): string {
  const snake = type.replaceAll('-', '_')
  const singular = snake.endsWith('ies') ? `${snake.slice(0, -3)}y` : snake.endsWith('s') ? snake.slice(0, -1) : snake
  return singular === 'api_key' ? 'project_key' : singular
}

/** Splits `srn:<project>:<type>:<id>` into its segments; null if one is missing. */
export function splitName(name: string): { project: string; type: string; id: string } | null {
  if (!name.startsWith('srn:')) return null
  const second = name.indexOf(':', 4)
  const third = second < 0 ? -1 : name.indexOf(':', second + 1)
  if (third < 0) return null
  return { project: name.slice(4, second), type: name.slice(second + 1, third), id: name.slice(third + 1) }
}
