import type { Problem } from '../../core/api/errors.ts'
import type { JsonObject } from '../../core/api/flatten.ts'
import type { Services } from '../../core/process/services.ts'
import type { TemplateType } from '../types/model.ts'
import { type ResolvedValue, resolveValue, type TemplateScope } from './expressions.ts'

/** Properties of a resource with their expressions resolved, each by itself. */
export type ResolvedProperties = ReadonlyMap<string, ResolvedValue>

/** A text that an expression gave where a number or a boolean is asked for, as such. */
function converted(text: string, message: string): unknown {
  if (message === 'must be true or false') return text === 'true' ? true : text === 'false' ? false : text
  const isNumber = message === 'must be a number' || message === 'must be an integer'
  return isNumber && /^-?\d+(?:\.\d+)?$/.test(text) ? Number(text) : text
}

/**
 * Resolves properties and says what is wrong with them. Parameters are texts: where the schema of the type asks for a number
 * or a boolean, what a parameter gave is read as one. With `complete` what is required must be there.
 */
export async function fitProperty(
  services: Services,
  type: TemplateType,
  properties: JsonObject,
  scope: TemplateScope,
  { at, complete }: { at: string; complete: boolean },
): Promise<{ resolved: ResolvedProperties; problems: Problem[] }> {
  const resolved = new Map(
    Object.entries(properties).map(([name, value]) => [name, resolveValue(value, scope, propertyPath(at, name))]),
  )
  const texts = new Set([...resolved.values()].flatMap(each => each.texts))
  const present = () =>
    Object.fromEntries([...resolved].filter(([, { nothing }]) => !nothing).map(([name, { value }]) => [name, value]))
  let problems = await type.check(services, present(), { at, complete })
  const misread = problems.filter(({ path }) => texts.has(path))
  let changed = false
  for (const { path, message } of misread)
    for (const [name, each] of resolved) {
      if (!isBelow(path, propertyPath(at, name))) continue
      const before = each.value
      each.value = replacedAt(before, path.slice(propertyPath(at, name).length), text => converted(text, message))
      changed ||= each.value !== before
    }
  if (changed) problems = await type.check(services, present(), { at, complete })
  return { resolved, problems }
}

/** A path below the properties at `at`. */
export const propertyPath = (at: string, path: string): string => [at, path].filter(part => part !== '').join('.')

/** The property that a path below the properties begins with. */
export const propertyIn = (path: string): string => path.split(/[.[]/, 1)[0]

/** Whether a path of the wire is another one, or leads into it. */
export const isBelow = (path: string, other: string): boolean =>
  path === other || path.startsWith(`${other}.`) || path.startsWith(`${other}[`)

/** A value with the text at a path of the wire (`.a[0].b`) replaced; the value itself where nothing changes. */
function replacedAt(value: unknown, path: string, change: (text: string) => unknown): unknown {
  if (path === '') return typeof value === 'string' ? change(value) : value
  const [, name, index, rest] = path.match(/^(?:\.([^.[\]]+)|\[(\d+)\])(.*)$/s) ?? []
  const key = name ?? index
  if (key === undefined || typeof value !== 'object' || value === null) return value
  const inner = (value as JsonObject)[key]
  const next = replacedAt(inner, rest, change)
  if (next === inner) return value
  if (Array.isArray(value)) return value.with(Number(key), next)
  return { ...value, [key]: next }
}
