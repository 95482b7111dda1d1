import { z } from 'zod'

/** Requests are nested at most 64 levels deep (core/validate), so the stack holds. */
const depthOf = (value: unknown): number =>
  typeof value === 'object' && value !== null ? 1 + Math.max(0, ...Object.values(value).map(depthOf)) : 0

/** A caller's own JSON object of at most `kib` KiB as JSON text and `depth` levels; its keys are never touched. */
export const metadataBag = (kib: number, depth: number) =>
  z
    .record(z.string(), z.unknown())
    .refine(bag => Buffer.byteLength(JSON.stringify(bag)) <= kib * 1024, `must be at most ${kib} KiB as JSON`)
    .refine(bag => depthOf(bag) <= depth, `must be at most ${depth} levels deep`)

/** The bag of turns, messages and memories (control, 7). */
export const MetadataBag = metadataBag(16, 8)
