import { z } from 'zod'
import { type Operation, operations } from '#core/api/operation.ts'

let routes: { operation: Operation; pattern: RegExp }[] | undefined

/** The operation of a request below `/api/v1`; undefined for other paths. */
export function operationAt(method: string, path: string): Operation | undefined {
  // A fixed segment goes before a parameter.
  routes ??= operations
    .all()
    .map(operation => ({ operation, pattern: new RegExp(`^${operation.path.replace(/\{\w+\}/g, '[^/]+')}$`) }))
    .sort((a, b) => a.operation.path.split('{').length - b.operation.path.split('{').length)
  const [pathname] = path.split('?')
  const verb = method.toLowerCase()
  return routes.find(({ operation, pattern }) => operation.method === verb && pattern.test(pathname))?.operation
}

/** Read by functions that handle any value, and by tests that expect a refusal. */
const ALWAYS = new Set(['then', 'toJSON', 'error', 'length', 'constructor', 'prototype'])

/**
 * Returns a response whose undeclared fields cannot be read, except by `in`: a test that compares a field that no
 * response has would pass or fail by chance. Bodies of refusals are returned unchanged.
 */
export function declaredOnly(method: string, path: string, status: number, body: any): any {
  const operation = status < 300 ? operationAt(method, path) : undefined
  const schema = operation?.answers[status]
  return schema ? guard(body, [schema], `${method} ${operation.path}`) : body
}

/** @param schemas alternatives of the value */
function guard(value: any, schemas: readonly z.core.$ZodType[], where: string): any {
  if (typeof value !== 'object' || value === null) return value
  const alternatives = schemas.flatMap(expand)
  if (alternatives.some(isOpen)) return value
  const guarded = new Map<string, [unknown, unknown]>()
  return new Proxy(value, {
    get(target, key, receiver) {
      const found = Reflect.get(target, key, receiver)
      if (typeof key === 'symbol') return found
      const [original, answer] = guarded.get(key) ?? []
      if (found !== undefined && original === found) return answer
      const isOwn = Object.hasOwn(target, key)
      const inner = Array.isArray(target)
        ? alternatives.flatMap(each => (each instanceof z.ZodArray && /^\d+$/.test(key) ? [each.element] : []))
        : alternatives.flatMap(each => fieldOf(each, key))
      if (inner.length === 0) {
        if (!isOwn && !Array.isArray(target) && !(key in target) && !ALWAYS.has(key))
          throw new Error(`${where} declares no field ${key}: ${Object.keys(target).join(', ')}`)
        return found
      }
      const result = isOwn ? guard(found, inner, `${where} ${key}`) : found
      if (isOwn) guarded.set(key, [found, result])
      return result
    },
  })
}

/** The schemas that a value may have, without wrappers. */
function expand(schema: z.core.$ZodType): z.core.$ZodType[] {
  if (schema instanceof z.ZodUnion || schema instanceof z.ZodDiscriminatedUnion)
    return schema.options.flatMap(option => expand(option as z.core.$ZodType))
  if (schema instanceof z.ZodIntersection) return [...expand(schema.def.left), ...expand(schema.def.right)]
  if (schema instanceof z.ZodLazy) return expand(schema.unwrap() as z.core.$ZodType)
  if (schema instanceof z.ZodPipe) return expand(schema.def.out)
  const { innerType } = schema._zod.def as { innerType?: z.core.$ZodType }
  return innerType ? expand(innerType) : [schema]
}

/** Whether values of a schema have fields that it does not declare. */
const isOpen = (schema: z.core.$ZodType): boolean =>
  schema instanceof z.ZodObject
    ? schema.def.catchall !== undefined && !(schema.def.catchall instanceof z.ZodNever)
    : schema instanceof z.ZodAny || schema instanceof z.ZodUnknown || schema instanceof z.ZodCustom

/** The schema of a field, in a list; empty if the schema has no field of this name. */
function fieldOf(schema: z.core.$ZodType, key: string): z.core.$ZodType[] {
  if (schema instanceof z.ZodRecord) return [schema.valueType as z.core.$ZodType]
  if (schema instanceof z.ZodObject && Object.hasOwn(schema.shape, key)) return [schema.shape[key]]
  return []
}
