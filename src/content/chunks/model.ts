import { z } from 'zod'

export const CHUNK_STRATEGIES = ['page', 'whole', 'size', 'auto'] as const
export const CHUNK_UNITS = ['characters', 'tokens'] as const

/** Text of a source in the order it is read; `number` is its page, null for sources without pages. */
export type PageText = { number: number | null; text: string }

/** How a text is cut; unit, size and overlap are null unless the strategy takes them. */
export type ChunkSettings = {
  chunk_strategy: (typeof CHUNK_STRATEGIES)[number]
  chunk_unit: (typeof CHUNK_UNITS)[number] | null
  chunk_size: number | null
  chunk_overlap: number | null
}

/** A chunk as it was cut. Offsets are Unicode code points of the joined text, end exclusive. */
export type ChunkDraft = {
  chunk_index: number
  page_number: number | null
  char_start: number
  char_end: number
  content: string
  /** Title and headings above it, embedded with it. */
  context: string | null
}

/** Chunk settings as a caller sends them. */
export const chunkFields = {
  chunk_strategy: z
    .enum(CHUNK_STRATEGIES)
    .nullish()
    .describe('One chunk a page, one chunk, windows of a size, or cut at headings and paragraphs'),
  chunk_unit: z
    .enum(CHUNK_UNITS)
    .nullish()
    .describe('What chunk_size and chunk_overlap count; tokens are those of o200k_base. Default characters'),
  chunk_size: z
    .int()
    .min(1)
    .max(100_000)
    .nullish()
    .describe('Of `size` and `auto`; default 1000 and 1200 characters, 256 and 300 tokens'),
  chunk_overlap: z
    .int()
    .min(0)
    .max(99_999)
    .nullish()
    .describe('Of `size` and `auto`, less than chunk_size; default 200 and 0 characters, 32 and 0 tokens'),
}

/** Chunk settings as a record shows them. */
export const chunkRecord = {
  chunk_strategy: z.enum(CHUNK_STRATEGIES),
  chunk_unit: z.enum(CHUNK_UNITS).nullable(),
  chunk_size: z.int().nullable(),
  chunk_overlap: z.int().nullable(),
}

/** What of the settings a request, a document, a rule or an entry point says; absent and null say nothing. */
export type PartialSettings = { [K in keyof ChunkSettings]?: ChunkSettings[K] | null }
