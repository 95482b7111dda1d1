import type { Problem } from '../../core/api/errors.ts'
import type { JsonObject } from '../../core/api/flatten.ts'
import type { Services } from '../../core/process/services.ts'
import type { TemplateType } from '../types/model.ts'
import { type ResolvedValue, resolveValue, type TemplateScope } from './expressions.ts'

/** Resolved properties of a resource, by name. */
export type ResolvedProperties = ReadonlyMap<string, ResolvedValue>

/** Converts the text of an expression to the number or boolean that a validation message requires. */
function converted(text: string, message: string): unknown {
  if (message === 'must be true or false') return text === 'true' ? true : text === 'false' ? false : text
  const isNumber = message === 'must be a number' || message === 'must be an integer'
  return isNumber && /^-?\d+(?:\.\d+)?$/.test(text) ? Number(text) : text
}

/**
 * Resolves and validates properties. Parameters are texts: where the schema of the type requires a number or a boolean, the
 * text is converted. `complete`: whether required properties must be present.
 */
export async function resolveProperties(
  services: Services,
  type: TemplateType,
  properties: JsonObject,
  scope: TemplateScope,
  { at, complete, tenant }: { at: string; complete: boolean; tenant?: string },
): Promise<{ resolved: ResolvedProperties; problems: Problem[] }> {
  const resolved = new Map(
    Object.entries(properties).map(([name, value]) => [name, resolveValue(value, scope, propertyPath(at, name))]),
  )
  const texts = new Set([...resolved.values()].flatMap(each => each.texts))
  const present = () =>
    Object.fromEntries([...resolved].filter(([, { nothing }]) => !nothing).map(([name, { value }]) => [name, value]))
  let problems = await type.check(services, present(), { at, complete, tenant })
  const convertible = problems.filter(({ path }) => texts.has(path))
  let changed = false
  for (const { path, message } of convertible)
    for (const [name, each] of resolved) {
      if (!isBelow(path, propertyPath(at, name))) continue
      const before = each.value
      each.value = replacedAt(before, path.slice(propertyPath(at, name).length), text => converted(text, message))
      changed ||= each.value !== before
    }
  if (changed) problems = await type.check(services, present(), { at, complete, tenant })
  return { resolved, problems }
}

/** Returns a path below the properties at `at`. */
export const propertyPath = (at: string, path: string): string => [at, path].filter(part => part !== '').join('.')

/** Returns the first segment of a path, the name of the property. */
export const propertyName = (path: string): string => path.split(/[.[]/, 1)[0]

/** Whether a wire path is equal to or below another. */
export const isBelow = (path: string, other: string): boolean =>
  path === other || path.startsWith(`${other}.`) || path.startsWith(`${other}[`)

/** Returns a value with the text at a wire path (`.a[0].b`) replaced; the same value if nothing changes. */
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
