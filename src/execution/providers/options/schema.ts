import { isObject } from '#core/base/exact-json.ts'

/** The parts of JSON Schema that the schemas of vendor options have. */
export type OptionSchema = {
  type?: string | string[]
  enum?: unknown[]
  const?: unknown
  properties?: Record<string, OptionSchema>
  required?: string[]
  additionalProperties?: OptionSchema | boolean
  propertyNames?: OptionSchema
  items?: OptionSchema
  minItems?: number
  anyOf?: OptionSchema[]
  oneOf?: OptionSchema[]
  not?: object
  minimum?: number
  maximum?: number
  minLength?: number
  maxLength?: number
  pattern?: string
}

/** Problem of an option: no package reads it, or its value is not accepted. `accepted` has the listed values, if any. */
export type OptionProblem = {
  path: string
  message: string
  accepted?: unknown[]
  /** Set if no package reads the option: returns a suggestion for the message. */
  unknown?: () => string
}

/** An option as its package reads it: with the names of the schema, and without other names. */
type Reading = { value: unknown; problems: OptionProblem[] }

/** Returns a name without its spelling: `budget_tokens` and `budgetTokens` are the same. */
export const plainName = (name: string): string => name.replace(/[_-]/g, '').toLowerCase()

/** Returns a name of a schema in any spelling; undefined if there is none. */
const propertyOf = (properties: Record<string, OptionSchema>, name: string): string | undefined =>
  Object.hasOwn(properties, name)
    ? name
    : Object.keys(properties).find(property => plainName(property) === plainName(name))

const listed = (values: readonly unknown[]): string => [...new Set(values)].map(String).join(', ')

/** Reads a value by a schema. */
export function readOption(schema: OptionSchema, value: unknown, path: string): Reading {
  const invalid = (message: string, accepted?: unknown[]): Reading => ({
    value: undefined,
    problems: [{ path, message, ...(accepted && { accepted }) }],
  })
  const branches = schema.anyOf ?? schema.oneOf
  if (branches) return bestReading(branches.map(branch => readOption(branch, value, path)))
  if (schema.not) return invalid('is not allowed', [])
  const accepted = schema.enum ?? ('const' in schema ? [schema.const] : null)
  if (accepted)
    return accepted.includes(value) ? { value, problems: [] } : invalid(`must be one of ${listed(accepted)}`, accepted)
  const types = schema.type === undefined ? [] : [schema.type].flat()
  const type = types.find(each => isOfType(each, value))
  if (types.length > 0 && type === undefined) return invalid(`must be of type ${types.join(' or ')}`)
  const limit = exceeded(schema, value)
  if (limit) return invalid(limit)
  if (type === 'array' && schema.items) return readItems(schema.items, value as unknown[], path)
  return type === 'object' ? readObject(schema, value as Record<string, unknown>, path) : { value, problems: [] }
}

function isOfType(type: string, value: unknown): boolean {
  if (type === 'integer') return Number.isInteger(value)
  if (type === 'array') return Array.isArray(value)
  if (type === 'null') return value === null
  if (type === 'object') return isObject(value)
  return typeof value === type
}

function exceeded(schema: OptionSchema, value: unknown): string | null {
  const { minimum, maximum, minLength, maxLength, minItems, pattern } = schema
  if (typeof value === 'number') {
    if (minimum !== undefined && value < minimum) return `must be at least ${minimum}`
    if (maximum !== undefined && value > maximum) return `must be at most ${maximum}`
  }
  if (typeof value === 'string') {
    if (minLength !== undefined && value.length < minLength) return `must have at least ${minLength} characters`
    if (maxLength !== undefined && value.length > maxLength) return `must have at most ${maxLength} characters`
    if (pattern !== undefined && !new RegExp(pattern).test(value)) return `must match ${pattern}`
  }
  return Array.isArray(value) && minItems !== undefined && value.length < minItems
    ? `must have at least ${minItems} items`
    : null
}

function readItems(schema: OptionSchema, items: readonly unknown[], path: string): Reading {
  const readings = items.map((item, index) => readOption(schema, item, `${path}[${index}]`))
  return { value: readings.map(({ value }) => value), problems: readings.flatMap(({ problems }) => problems) }
}

function readObject(schema: OptionSchema, object: Record<string, unknown>, path: string): Reading {
  const { properties = {}, required = [], additionalProperties, propertyNames } = schema
  const isOpen = additionalProperties !== undefined && additionalProperties !== false
  const hasNames = Object.keys(properties).length > 0
  const value: Record<string, unknown> = hasNames ? {} : object
  const problems: OptionProblem[] = []
  for (const [name, each] of Object.entries(object)) {
    const at = `${path}.${name}`
    const property = propertyOf(properties, name)
    if (property === undefined && !isOpen) {
      problems.push({ path: at, message: 'is not an option', unknown: () => suggestion(at, properties) })
      continue
    }
    if (property !== undefined && Object.hasOwn(value, property)) {
      problems.push({ path: at, message: `repeats ${property} in another spelling` })
      continue
    }
    if (property === undefined && propertyNames) problems.push(...readOption(propertyNames, name, at).problems)
    const rest = typeof additionalProperties === 'object' ? additionalProperties : {}
    const reading = readOption(property === undefined ? rest : properties[property], each, at)
    if (hasNames) value[property ?? name] = reading.value
    problems.push(...reading.problems)
  }
  for (const name of required)
    if (!Object.hasOwn(value, name)) problems.push({ path: `${path}.${name}`, message: 'is required' })
  return { value, problems }
}

/** Returns the reading of the alternative that fits best. If none fits for its kind alone, the problem lists the kinds. */
function bestReading(readings: readonly Reading[]): Reading {
  const cost = ({ problems }: Reading) =>
    problems.reduce((sum, { unknown, accepted }) => sum + (unknown ? 1 : accepted ? 10_000 : 100), 0)
  const best = readings.reduce((least, reading) => (cost(reading) < cost(least) ? reading : least))
  const problem = best.problems.find(({ accepted }) => accepted)
  if (!problem) return best
  const accepted = readings.flatMap(({ problems }) =>
    problems.flatMap(each => (each.path === problem.path ? (each.accepted ?? []) : [])),
  )
  return { value: undefined, problems: [{ ...problem, message: `must be one of ${listed(accepted)}`, accepted }] }
}

/**
 * Returns the part of a message that names the option nearest to the last name of a path, or the place of that name within
 * the options; empty if there is none.
 */
export function suggestion(
  path: string,
  properties: Record<string, OptionSchema>,
  others: readonly string[] = [],
): string {
  const style = (text: string) => (/[A-Z]/.test(path) ? text : snakeCase(text))
  const plain = plainName(path.split('.').at(-1)!)
  const nested = pathsOf(properties).filter(each => each.includes('.') && plainName(each.split('.').at(-1)!) === plain)
  const candidates = [...Object.keys(properties), ...others]
    .map(candidate => ({ candidate, distance: nameDistance(plain, plainName(candidate)) }))
    .sort((a, b) => a.distance - b.distance)
  const [nearest] = candidates
  const found = nested[0] ?? (nearest && nearest.distance <= Math.max(2, plain.length / 3) ? nearest.candidate : null)
  return found === null || found === undefined ? '' : `; did you mean ${style(found)}?`
}

export const snakeCase = (name: string): string =>
  /^[A-Z]/.test(name) ? name : name.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`)

/** Returns the paths of all options, those in alternatives too. */
function pathsOf(properties: Record<string, OptionSchema>, prefix = ''): string[] {
  return Object.entries(properties).flatMap(([name, schema]) => {
    const path = `${prefix}${name}`
    const objects = [schema, ...(schema.anyOf ?? []), ...(schema.oneOf ?? [])].flatMap(each => [
      each,
      ...(each.anyOf ?? []),
      ...(each.oneOf ?? []),
    ])
    return [path, ...objects.flatMap(each => pathsOf(each.properties ?? {}, `${path}.`))]
  })
}

/** Returns the number of edits between two names; names that contain one another are near. */
export function nameDistance(a: string, b: string): number {
  if (a === b) return 0
  if (Math.min(a.length, b.length) > 3 && (a.includes(b) || b.includes(a))) return 1
  // Longer names than any option are far from all.
  if (a.length > 64) return a.length
  let row = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++)
      next.push(Math.min(next[j - 1] + 1, row[j] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1)))
    row = next
  }
  return row[b.length]
}
