import { z } from 'zod'

/** Requests are nested at most 64 levels deep (core/validate), so the stack holds. */
const depthOf = (value: unknown): number =>
  typeof value === 'object' && value !== null ? 1 + Math.max(0, ...Object.values(value).map(depthOf)) : 0

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

/** The bag of turns, messages and memories (control, 7). */
export const MetadataBag = metadataBag(16, 8)
