import type { RequestBody } from './request.ts'
import { isJsonObject } from './request.ts'

/** Values of commonly validated formats. */
const formats: Record<string, string> = {
  'date-time': '1970-01-01T00:00:00Z',
  date: '1970-01-01',
  time: '00:00:00Z',
  duration: 'PT0S',
  email: 'a@a.aa',
  hostname: 'a',
  ipv4: '0.0.0.0',
  ipv6: '::',
  uri: 'http://a',
  url: 'http://a',
  uuid: '00000000-0000-0000-0000-000000000000',
}

/** Most values generated for one schema; beyond it, or with endless recursion, values are null. */
const maxValues = 10_000
const maxDepth = 64
const maxLength = 1_000_000

/**
 * Returns the smallest value that a JSON Schema accepts: const, first enum value, default, otherwise by type, with only
 * the required properties and `minItems` items. Local `$ref`s are followed; `anyOf` and `oneOf` use their first branch.
 */
export function smallestValue(schema: unknown): unknown {
  let left = maxValues

  function make(part: unknown, depth: number): unknown {
    if (!isJsonObject(part) || --left < 0 || depth > maxDepth) return null
    if (typeof part.$ref === 'string')
      return make({ ...asObject(resolve(schema, part.$ref)), ...without(part, '$ref') }, depth + 1)
    if ('const' in part) return part.const
    if (Array.isArray(part.enum) && part.enum.length > 0) return part.enum[0]
    if ('default' in part) return part.default
    for (const key of ['anyOf', 'oneOf']) {
      const branches = part[key]
      if (Array.isArray(branches) && branches.length > 0)
        return make(merge(without(part, key), dereference(branches[0])), depth + 1)
    }
    if (Array.isArray(part.allOf) && part.allOf.length > 0)
      return make(part.allOf.map(dereference).reduce(merge, without(part, 'allOf')), depth + 1)
    switch (typeOf(part)) {
      case 'object':
        return makeObject(part, depth)
      case 'array':
        return makeArray(part, depth)
      case 'string':
        return makeString(part)
      case 'integer':
      case 'number':
        return makeNumber(part)
      case 'boolean':
        return true
      default:
        return null
    }
  }

  function dereference(part: unknown): RequestBody {
    let each = asObject(part)
    for (let hops = 0; typeof each.$ref === 'string' && hops < maxDepth; hops += 1)
      each = { ...asObject(resolve(schema, each.$ref)), ...without(each, '$ref') }
    return each
  }

  function makeObject(part: RequestBody, depth: number): RequestBody {
    const properties = asObject(part.properties)
    const names = Array.isArray(part.required) ? part.required.filter(name => typeof name === 'string') : []
    return Object.fromEntries(
      names.map(name => [
        name,
        make(Object.hasOwn(properties, name) ? properties[name] : part.additionalProperties, depth + 1),
      ]),
    )
  }

  function makeArray(part: RequestBody, depth: number): unknown[] {
    const values: unknown[] = []
    const prefix = Array.isArray(part.prefixItems) ? part.prefixItems : []
    const length = typeof part.minItems === 'number' ? part.minItems : 0
    while (values.length < length && left > 0) values.push(make(prefix[values.length] ?? part.items, depth + 1))
    return values
  }

  return make(schema, 0)
}

function makeString(part: RequestBody): string {
  const literal = typeof part.pattern === 'string' ? literalOf(part.pattern) : undefined
  if (literal !== undefined) return literal
  if (typeof part.format === 'string' && Object.hasOwn(formats, part.format)) return formats[part.format]
  if (part.maxLength === 0) return ''
  return 'a'.repeat(Math.min(Math.max(1, typeof part.minLength === 'number' ? part.minLength : 1), maxLength))
}

/** Returns the text matched by a pattern without operators, undefined for other patterns. */
function literalOf(pattern: string): string | undefined {
  const body = pattern.replace(/^\^/, '').replace(/(?<!\\)\$$/, '')
  if (body === '' || !/^(?:[^\\^$.*+?()[\]{}|]|\\[^a-zA-Z0-9])*$/.test(body)) return undefined
  return body.replace(/\\(.)/g, '$1')
}

function makeNumber(part: RequestBody): number {
  const max = typeof part.maximum === 'number' ? part.maximum : part.exclusiveMaximum
  let value = 0
  if (typeof part.minimum === 'number') value = part.minimum
  else if (typeof part.exclusiveMinimum === 'number') {
    value = part.exclusiveMinimum + 1
    if (typeof max === 'number' && value >= max && part.type !== 'integer') value = (part.exclusiveMinimum + max) / 2
  } else if (typeof max === 'number' && max <= 0) value = part.exclusiveMaximum === max ? max - 1 : max
  if (typeOf(part) === 'integer') value = Math.ceil(value)
  if (typeof part.multipleOf === 'number' && part.multipleOf > 0)
    value = Math.ceil(value / part.multipleOf) * part.multipleOf
  return value
}

function typeOf(part: RequestBody): unknown {
  if (Array.isArray(part.type)) return part.type[0]
  if (part.type !== undefined) return part.type
  if ('properties' in part || 'required' in part) return 'object'
  if ('items' in part || 'prefixItems' in part || 'minItems' in part) return 'array'
  if ('pattern' in part || 'minLength' in part || 'format' in part) return 'string'
  if ('minimum' in part || 'maximum' in part) return 'number'
  return undefined
}

function merge(first: RequestBody, second: RequestBody): RequestBody {
  const merged = { ...first, ...second }
  if (first.properties || second.properties)
    merged.properties = { ...asObject(first.properties), ...asObject(second.properties) }
  if (Array.isArray(first.required) && Array.isArray(second.required))
    merged.required = [...new Set([...first.required, ...second.required])]
  return merged
}

/** Follows a local reference such as `#/$defs/city`. */
function resolve(root: unknown, ref: string): unknown {
  if (!ref.startsWith('#')) return undefined
  let value = root
  for (const part of ref.slice(1).split('/').filter(Boolean)) {
    const key = pointerKey(part)
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key)) return undefined
    value = (value as RequestBody)[key]
  }
  return value
}

function pointerKey(part: string): string {
  const text = part.replace(/~1/g, '/').replace(/~0/g, '~')
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

function asObject(value: unknown): RequestBody {
  return isJsonObject(value) ? value : {}
}

function without(part: RequestBody, key: string): RequestBody {
  const { [key]: _, ...rest } = part
  return rest
}
