import { z } from 'zod'

/** Recursive: no request is nested deeper than 64 levels. */
function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0
  let deepest = 0
  for (const inner of Object.values(value)) deepest = Math.max(deepest, depthOf(inner))
  return deepest + 1
}

/** A JSON object as it is; a record of zod would leave a key `__proto__` out. */
const JsonObject = z.custom<Record<string, unknown>>().superRefine((value, context) => {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    context.addIssue({ code: 'invalid_type', expected: 'record', input: value, continue: false })
})

/** A caller's own JSON object of at most `kib` KiB as JSON text and `depth` levels; its keys are never touched. */
export const metadataBag = (kib: number, depth: number) =>
  JsonObject.refine(bag => Buffer.byteLength(JSON.stringify(bag)) <= kib * 1024, `must be at most ${kib} KiB as JSON`)
    .refine(bag => depthOf(bag) <= depth, `must be at most ${depth} levels deep`)
    .meta({ type: 'object', additionalProperties: {} })

/** Metadata of turns, messages and memories. */
export const MetadataBag = metadataBag(16, 8)
