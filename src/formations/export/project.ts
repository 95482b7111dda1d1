import type { JsonObject } from '../../core/api/flatten.ts'
import { isIdOf, kinds } from '../../core/api/kind.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { isSameValue } from '../live.ts'
import type { FormationRow } from '../model.ts'
import { dependencyOrder } from '../template/dependencies.ts'
import { expressionOf } from '../template/expressions.ts'
import { isBelow } from '../template/properties.ts'
import type { BuiltInType } from '../types/model.ts'
import { Names, nameOf } from './names.ts'
import { type ExportSelection, type SelectedResource, selectResources } from './select.ts'

/** A template out of resources that exist. */

const ID = /[a-z][a-z_]*_[0-9a-hjkmnp-tv-z]{26}/g
const SECRET = /\{\{secret:([a-z_]+_[0-9a-hjkmnp-tv-z]{26})\}\}/g

type Parameter = { description: string; no_echo?: boolean }

export type ExportedResource = { template: JsonObject; parameters: Record<string, string>; warnings: string[] }

export async function exportProject(
  services: Services,
  caller: Caller,
  projectId: string,
  selection: ExportSelection,
  allowFormation: (row: FormationRow) => void,
): Promise<ExportedResource> {
  const chosen = await selectResources(services, caller, projectId, selection, allowFormation)
  const warnings: string[] = []
  const drafts = new Map(chosen.map(each => [each.id, { ...each, ...draftOf(each) }]))
  const { order, broken } = ordered(drafts)
  const names = new Names()
  const logical = new Map(order.map(id => [id, names.take(logicalId(drafts.get(id) as SelectedResource))]))
  const parameters = new Parameters(names)
  const resources: Record<string, JsonObject> = {}
  for (const id of order) {
    const { type, properties, secrets, unshown } = drafts.get(id) as Draft
    const own = logical.get(id) as string
    const meaning = (named: string): JsonObject | null => {
      const target = logical.get(named)
      if (target === undefined || named === id) return null
      if (!broken.has(`${id} ${named}`)) return { ref: target }
      warnings.push(`${own} and ${target} refer to each other: ${own} takes the id of ${target} as a parameter`)
      return { param: parameters.of(named, target) }
    }
    const written = Object.entries(properties).flatMap(([name, value]): [string, unknown][] => {
      if (!hasExpressions(value)) return [[name, referring(value, meaning, parameters)]]
      warnings.push(`${own}.${name} is left out: templates would read a part of it as an expression`)
      return []
    })
    for (const name of unshown)
      warnings.push(`${own}.${name} is left out: its value is not shown, and no text, which parameters are`)
    const hidden = secrets.map((name): [string, JsonObject] => [
      name,
      { param: parameters.add(nameOf(own, name), { description: `${name} of ${own}`, no_echo: true }) },
    ])
    resources[own] = { type: type.name, properties: Object.fromEntries([...written, ...hidden]) }
    for (const name of await misfits(services, type, properties, secrets)) {
      delete (resources[own].properties as JsonObject)[name]
      warnings.push(`${own}.${name} is left out: it cannot be set to what it shows`)
    }
  }
  const declared = parameters.declared()
  return {
    template: { ...(Object.keys(declared).length > 0 ? { parameters: declared } : {}), resources },
    parameters: parameters.values(),
    warnings: warnings.map(warning => warning.replaceAll(ID, id => logical.get(id) ?? id)),
  }
}

/** `secrets` are texts that are not shown, `unshown` other values. */
type Draft = SelectedResource & { properties: JsonObject; secrets: string[]; unshown: string[] }

/** The properties of a resource that differ from what they are by default, and the names of those that are not shown. */
function draftOf({ type, live }: SelectedResource): Omit<Draft, keyof SelectedResource> {
  const { defaults, hides } = type.declared
  const hidden = (live.row && hides?.(live.row)) ?? type.writeOnly
  const properties: JsonObject = {}
  const secrets: string[] = []
  const unshown: string[] = []
  for (const [name, { required, schema }] of type.properties) {
    const value = live.values[name]
    if (type.writeOnly.includes(name) ? hidden.includes(name) : required && value === undefined)
      (isText(schema) ? secrets : unshown).push(name)
    else if (value !== undefined && value !== null && (required || !isDefault(value, defaults[name] ?? schema.default)))
      properties[name] = value
  }
  return { properties, secrets, unshown }
}

const isText = ({ type, anyOf = [] }: JsonObject): boolean => type === 'string' || (anyOf as JsonObject[]).some(isText)

const isDefault = (value: unknown, standard: unknown): boolean =>
  isSameValue(value, standard) || (typeof value === 'object' && Object.keys(value as object).length === 0)

/** Optional properties whose values the operations of the type refuse: what a record shows need not be what it takes. */
async function misfits(
  services: Services,
  type: BuiltInType,
  properties: JsonObject,
  secrets: string[],
): Promise<string[]> {
  const given = { ...properties, ...Object.fromEntries(secrets.map(name => [name, 'hidden'])) }
  const problems = await type.check(services, given, { at: '', complete: true })
  return Object.keys(properties).filter(
    name => !type.properties.get(name)?.required && problems.some(({ path }) => isBelow(path, name)),
  )
}

const idsIn = (value: unknown): string[] => JSON.stringify(value).match(ID) ?? []

/** The resources, each behind those that it names; of those that name each other one names the other by a parameter. */
function ordered(drafts: ReadonlyMap<string, Draft>): { order: string[]; broken: Set<string> } {
  const depends = new Map(
    [...drafts].map(([id, { properties }]) => [
      id,
      new Set(idsIn(properties).filter(other => other !== id && drafts.has(other))),
    ]),
  )
  const broken = new Set<string>()
  for (;;) {
    const { order, cycle } = dependencyOrder(new Map([...depends].map(([id, others]) => [id, [...others]])))
    const [first] = cycle
    if (first === undefined) return { order, broken }
    for (const other of cycle) if (depends.get(first)?.delete(other)) broken.add(`${first} ${other}`)
  }
}

function logicalId({ type, live }: SelectedResource): string {
  const { name } = live.values
  const words = nameOf(...type.name.split('_'))
  return typeof name === 'string' ? nameOf(words, name) : words
}

/** Whether a value has a part that a template reads as an expression. */
const hasExpressions = (value: unknown): boolean =>
  typeof value === 'object' &&
  value !== null &&
  (expressionOf(value) !== null || Object.values(value).some(hasExpressions))

/** A value in which ids are expressions. */
function referring(value: unknown, meaning: (id: string) => JsonObject | null, parameters: Parameters): unknown {
  const walk = (node: unknown): unknown => {
    if (typeof node === 'string') return written(node)
    if (typeof node !== 'object' || node === null) return node
    if (Array.isArray(node)) return node.map(walk)
    return Object.fromEntries(Object.entries(node).map(([key, item]) => [key, walk(item)]))
  }
  const written = (text: string): unknown => {
    const [whole] = text.match(ID) ?? []
    if (whole === text) return meaning(text) ?? outside(text) ?? text
    const secrets = [...text.matchAll(SECRET)].map(([, id]) => id)
    const expressions = new Map(
      idsIn(text).flatMap((id): [string, JsonObject][] => {
        const found = meaning(id) ?? (secrets.includes(id) ? outside(id) : null)
        return found ? [[id, found]] : []
      }),
    )
    if (expressions.size === 0) return text
    const named = (id: string): string | undefined => {
      const found = expressions.get(id)
      return found && `\${${found.ref ?? found.param}}`
    }
    // What reads as a name of the template and is none.
    const plain = text.replace(/\$(?=\{[A-Za-z][A-Za-z0-9_]{0,127}\})/g, () => `\${${parameters.dollar()}}`)
    return { sub: plain.replaceAll(ID, id => named(id) ?? id) }
  }
  const outside = (id: string): JsonObject | null => {
    const kind = kinds.all().find(each => isIdOf(each, id))
    return kind ? { param: parameters.of(id, nameOf(...kind.name.split('_'))) } : null
  }
  return walk(value)
}

/** The parameters of an exported template. */
class Parameters {
  readonly #names: Names
  readonly #declared: Record<string, Parameter & { default?: string }> = {}
  readonly #values: Record<string, string> = {}
  readonly #byId = new Map<string, string>()
  #dollar: string | undefined

  constructor(names: Names) {
    this.#names = names
  }

  add(name: string, parameter: Parameter & { default?: string }): string {
    const free = this.#names.take(name)
    this.#declared[free] = parameter
    return free
  }

  /** The parameter that stands for the id of a resource that is not exported, or comes later. */
  of(id: string, what: string): string {
    const known = this.#byId.get(id)
    if (known !== undefined) return known
    const name = this.add(`${what}Id`, { description: `Id of ${what}` })
    this.#byId.set(id, name)
    this.#values[name] = id
    return name
  }

  /** The parameter for a dollar sign in texts with expressions. */
  dollar(): string {
    this.#dollar ??= this.add('Dollar', { description: 'A dollar sign', default: '$' })
    return this.#dollar
  }

  declared(): JsonObject {
    return this.#declared
  }

  values(): Record<string, string> {
    return this.#values
  }
}
