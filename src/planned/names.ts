import type { PlannedNames } from '../core/iam/catalogue.ts'

const crud = (plural: string, singular: string): string =>
  `List${plural} Get${singular} Create${singular} Update${singular} Delete${singular}`

/** Actions of modules to come, by the module that policies name. */
const actions: Record<string, string> = {
  formations: `${crud('Formations', 'Formation')} PlanFormation ListFormationEvents ValidateFormation`,
}

/** Resource types to come. */
const types = 'formation knowledge'

/** Events to come, by their prefix. */
const events: Record<string, string> = {
  formations: 'deployed failed deleted delete_failed',
}

const words = (text: string): string[] => text.trim().split(/\s+/)

const named = (groups: Record<string, string>, separator: string): string[] =>
  Object.entries(groups).flatMap(([group, names]) => words(names).map(name => `${group}${separator}${name}`))

export const plannedNames: PlannedNames = {
  actions: named(actions, ':'),
  types: words(types),
  events: named(events, '.'),
}
