import { z } from 'zod'
import { raise } from './errors.ts'

/** Keys and values that tool calls carry as request headers. */
export type ToolContext = Record<string, string>

const MAX_KEYS = 64
const MAX_VALUE_BYTES = 8 * 1024
const MAX_TOTAL_BYTES = 32 * 1024

/** What the platform alone may say; a caller's value under such a key, in any casing, is dropped. */
const RESERVED = new Set(['sessionid', 'actorid', 'actorexternalid', 'calling_project_id'])

const KEY = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/

/** Whether a string can be a key of a tool context, which is sent as part of a header's name. */
export const isContextKey = (key: unknown): key is string => typeof key === 'string' && KEY.test(key)

/** A tool context that a caller sends. `callerContext` checks its keys, because they have an error code of their own. */
export const ToolContextInput = z
  .record(
    z.string(),
    z
      .string()
      .refine(value => !/[\r\n]/.test(value), 'must hold no line break')
      .refine(value => Buffer.byteLength(value) <= MAX_VALUE_BYTES, `must be at most ${MAX_VALUE_BYTES} bytes long`),
  )
  .refine(bag => Object.keys(bag).length <= MAX_KEYS, `must hold at most ${MAX_KEYS} keys`)
  .refine(
    bag => Object.values(bag).reduce((sum, value) => sum + Buffer.byteLength(value), 0) <= MAX_TOTAL_BYTES,
    `must hold at most ${MAX_TOTAL_BYTES} bytes of values`,
  )
  .meta({ id: 'ToolContext' })

/**
 * A caller's tool context without reserved keys; null stays null.
 * @param prefix of the context headers (TOOL_CONTEXT_HEADER_PREFIX), for the report of a clash
 * @throws INVALID_TOOL_CONTEXT_KEY for keys outside the grammar of header names and for keys that are equal ignoring case
 */
export function callerContext(bag: ToolContext | null | undefined, prefix: string): ToolContext | null {
  if (!bag) return null
  const keys = Object.keys(bag)
  const bad: string[] = keys.filter(key => !isContextKey(key))
  if (bad.length > 0)
    raise('INVALID_TOOL_CONTEXT_KEY', {
      message: `tool_context: ${JSON.stringify(bad[0].slice(0, 100))} cannot be part of a header name`,
      meta: { keys: bad },
    })
  const seen = new Map<string, string>()
  for (const key of keys) {
    const first = seen.get(key.toLowerCase())
    if (first !== undefined)
      raise('INVALID_TOOL_CONTEXT_KEY', {
        message: `tool_context: ${first} and ${key} would be the same header`,
        meta: { keys: [first, key], header: `${prefix}${first}` },
      })
    seen.set(key.toLowerCase(), key)
  }
  return Object.fromEntries(Object.entries(bag).filter(([key]) => !RESERVED.has(key.toLowerCase())))
}

/** Layers of one tool context, later ones win. Keys are headers, so one that differs only in case replaces the earlier. */
export function mergeContext(...layers: (ToolContext | null | undefined)[]): ToolContext {
  const merged = new Map<string, [string, string]>()
  for (const layer of layers)
    for (const [key, value] of Object.entries(layer ?? {})) merged.set(key.toLowerCase(), [key, value])
  return Object.fromEntries(merged.values())
}
