/** Spellings of the names that policies use. */

const ACTION_ALIASES = new Map([
  ['usage:GetUsage', 'usage:GetAggregate'],
  ['usage:ListUsageMeters', 'usage:ListUsageEvents'],
  ['deciders:EvaluateDecider', 'deciders:CreateDecision'],
])

/** module -> grantable action names */
export type KnownActions = { actions: ReadonlyMap<string, ReadonlySet<string>> }

/**
 * Canonical spellings of one exact action. `agents:<Name>` also stands for `sessions:<Name>` unless the catalogue shows
 * that agents has the name itself or sessions has not; without a catalogue both are given, which is the same as long as
 * no name is in both modules.
 * @param action `<module>:<Action>`, no wildcard
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

/** Canonical resource type of any accepted spelling: `files` -> `file`, `api-keys` -> `project_key`, `*` stays. */
export function canonicalType(type: string): string {
  const snake = type.replaceAll('-', '_')
  const singular = snake.endsWith('ies') ? `${snake.slice(0, -3)}y` : snake.endsWith('s') ? snake.slice(0, -1) : snake
  return singular === 'api_key' ? 'project_key' : singular
}

/** Segments of `srn:<project>:<type>:<id>`, or null when there are not that many. */
export function splitName(name: string): { project: string; type: string; id: string } | null {
  if (!name.startsWith('srn:')) return null
  const second = name.indexOf(':', 4)
  const third = second < 0 ? -1 : name.indexOf(':', second + 1)
  if (third < 0) return null
  return { project: name.slice(4, second), type: name.slice(second + 1, third), id: name.slice(third + 1) }
}
