import { z } from 'zod'
import { ExactNumber } from '../base/exact-json.ts'

/** Recursive, because requests are nested at most 64 levels deep. */
function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return 0
  let deepest = 0
  for (const inner of Object.values(value)) deepest = Math.max(deepest, depthOf(inner))
  return deepest + 1
}

/** An unchanged JSON object; a zod record would drop a key `__proto__`. */
const JsonObject = z.custom<Record<string, unknown>>().superRefine((value, context) => {
  if (typeof value !== 'object' || value === null || Array.isArray(value) || value instanceof ExactNumber)
    context.addIssue({ code: 'invalid_type', expected: 'record', input: value, continue: false })
})

/** Returns the schema of a caller's own JSON object of at most `kib` KiB and `depth` levels; keys are unchanged. */
export const metadataBag = (kib: number, depth: number) =>
  JsonObject.refine(bag => Buffer.byteLength(JSON.stringify(bag)) <= kib * 1024, `must be at most ${kib} KiB as JSON`)
    .refine(bag => depthOf(bag) <= depth, `must be at most ${depth} levels deep`)
    .meta({ type: 'object', additionalProperties: {} })

/** Metadata of turns, messages and memories. */
export const MetadataBag = metadataBag(16, 8)
