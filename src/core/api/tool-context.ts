import { z } from 'zod'
import { raise } from '../base/errors.ts'

/** Keys and values sent as request headers of tool calls. */
export type ToolContext = Record<string, string>

const MAX_KEYS = 64
const MAX_VALUE_BYTES = 8 * 1024
const MAX_TOTAL_BYTES = 32 * 1024

/** Keys set only by the platform; a caller's value under such a key, ignoring case, is dropped. */
const RESERVED = new Set(['sessionid', 'actorid', 'actorexternalid', 'calling_project_id'])

const KEY = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/

/** Whether a value is a valid key of a tool context, which becomes part of a header name. */
export const isContextKey = (key: unknown): key is string => typeof key === 'string' && KEY.test(key)

/** Schema of a tool context from a caller. `callerContext` checks the keys, which have a specific error code. */
export const ToolContextInput = z
  .record(
    z.string(),
    z
      .string()
      .refine(value => !/[\r\n]/.test(value), 'must not contain line breaks')
      .refine(value => Buffer.byteLength(value) <= MAX_VALUE_BYTES, `must be at most ${MAX_VALUE_BYTES} bytes`),
  )
  .refine(bag => Object.keys(bag).length <= MAX_KEYS, `must have at most ${MAX_KEYS} keys`)
  .refine(
    bag => Object.values(bag).reduce((sum, value) => sum + Buffer.byteLength(value), 0) <= MAX_TOTAL_BYTES,
    `must have values of at most ${MAX_TOTAL_BYTES} bytes in total`,
  )
  .meta({ id: 'ToolContext' })

/**
 * Returns a caller's tool context without reserved keys; null if it is absent.
 * @param prefix prefix of the context headers (TOOL_CONTEXT_HEADER_PREFIX), for the error of a duplicate
 * @throws INVALID_TOOL_CONTEXT_KEY for keys that are invalid in header names and for keys that are equal ignoring case
 */
export function callerContext(bag: ToolContext | null | undefined, prefix: string): ToolContext | null {
  if (!bag) return null
  const keys = Object.keys(bag)
  const bad: string[] = keys.filter(key => !isContextKey(key))
  if (bad.length > 0)
    raise('INVALID_TOOL_CONTEXT_KEY', {
      message: `tool_context: ${JSON.stringify(bad[0].slice(0, 100))} is not valid in a header name`,
      meta: { keys: bad },
    })
  const seen = new Map<string, string>()
  for (const key of keys) {
    const first = seen.get(key.toLowerCase())
    if (first !== undefined)
      raise('INVALID_TOOL_CONTEXT_KEY', {
        message: `tool_context: ${first} and ${key} map to the same header`,
        meta: { keys: [first, key], header: `${prefix}${first}` },
      })
    seen.set(key.toLowerCase(), key)
  }
  return Object.fromEntries(Object.entries(bag).filter(([key]) => !RESERVED.has(key.toLowerCase())))
}

/** Merges tool contexts; later ones take precedence. Keys are compared ignoring case, because they are headers. */
export function mergeContext(...layers: (ToolContext | null | undefined)[]): ToolContext {
  const merged = new Map<string, [string, string]>()
  for (const layer of layers)
    for (const [key, value] of Object.entries(layer ?? {})) merged.set(key.toLowerCase(), [key, value])
  return Object.fromEntries(merged.values())
}
