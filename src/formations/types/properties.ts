import type { JsonObject } from '#core/api/flatten.ts'
import type { Problem } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { type ResolvedValue, resolveValue, type TemplateScope } from '../template/expressions.ts'
import type { TemplateType } from './model.ts'

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
      // The value is a copy, made above: one with all of its texts for each problem would be quadratic.
      if (replaceAt(each, path.slice(propertyPath(at, name).length), text => converted(text, message))) changed = true
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

/** Whether a wire path is equal to or below one of several. */
export function isBelowAny(path: string, others: ReadonlySet<string>): boolean {
  if (others.has(path)) return true
  for (let end = 1; end < path.length; end++)
    if ((path[end] === '.' || path[end] === '[') && others.has(path.slice(0, end))) return true
  return false
}

/** Replaces the text at a wire path (`.a[0].b`) in place; returns whether it changed. */
function replaceAt(holder: JsonObject, path: string, change: (text: string) => unknown): boolean {
  let node: unknown = holder
  let key = 'value'
  for (const [, name, index] of path.matchAll(/\.([^.[\]]+)|\[(\d+)\]/g)) {
    node = (node as JsonObject)[key]
    key = name ?? index
    if (typeof node !== 'object' || node === null) return false
  }
  const text = (node as JsonObject)[key]
  if (typeof text !== 'string') return false
  const next = change(text)
  ;(node as JsonObject)[key] = next
  return next !== text
}
