import { z } from 'zod'

/** Largest bag, as JSON text, and its deepest level (execution, 0.2; conversation, 0.1). */
const MAX_BYTES = 16 * 1024
const MAX_DEPTH = 8

/** Requests are nested at most 64 levels deep (core/validate), so the stack holds. */
const depthOf = (value: unknown): number =>
  typeof value === 'object' && value !== null ? 1 + Math.max(0, ...Object.values(value).map(depthOf)) : 0

/** A caller's own JSON object: at most 16 KiB as JSON text, at most 8 levels deep; its keys are never touched. */
export const MetadataBag = z
  .record(z.string(), z.unknown())
  .refine(bag => Buffer.byteLength(JSON.stringify(bag)) <= MAX_BYTES, 'must be at most 16 KiB as JSON')
  .refine(bag => depthOf(bag) <= MAX_DEPTH, `must be at most ${MAX_DEPTH} levels deep`)
