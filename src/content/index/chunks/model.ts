import { z } from 'zod'

export const CHUNK_STRATEGIES = ['page', 'whole', 'size', 'auto'] as const
export const CHUNK_UNITS = ['characters', 'tokens'] as const

/** Text of one page of a source; `number` is null for sources without pages. */
export type PageText = { number: number | null; text: string }

/** Settings for splitting a text; unit, size and overlap are null unless the strategy uses them. */
export type ChunkSettings = {
  chunk_strategy: (typeof CHUNK_STRATEGIES)[number]
  chunk_unit: (typeof CHUNK_UNITS)[number] | null
  chunk_size: number | null
  chunk_overlap: number | null
}

/** A chunk before it is embedded. Offsets are Unicode code points of the joined text, end exclusive. */
export type ChunkDraft = {
  chunk_index: number
  page_number: number | null
  char_start: number
  char_end: number
  content: string
  /** Document title and preceding headings, embedded with the chunk. */
  context: string | null
}

/** Chunk settings as a caller sends them. */
export const chunkFields = {
  chunk_strategy: z
    .enum(CHUNK_STRATEGIES)
    .nullish()
    .describe(
      '`page` - one chunk per page; `whole` - one chunk; `size` - windows of a fixed size; `auto` - split at headings and paragraphs',
    ),
  chunk_unit: z
    .enum(CHUNK_UNITS)
    .nullish()
    .describe('Unit of chunk_size and chunk_overlap; tokens use the encoding o200k_base. Default `characters`.'),
  chunk_size: z
    .int()
    .min(1)
    .max(100_000)
    .nullish()
    .describe(
      'Size of a chunk, for `size` and `auto` only. Default 1000 characters or 256 tokens for `size`, 1200 or 300 for `auto`.',
    ),
  chunk_overlap: z
    .int()
    .min(0)
    .max(99_999)
    .nullish()
    .describe(
      'Overlap of adjacent chunks, less than chunk_size; for `size` and `auto` only. Default 200 characters or 32 tokens for `size`, 0 for `auto`.',
    ),
}

/** Chunk settings in a record. */
export const chunkRecord = {
  chunk_strategy: z.enum(CHUNK_STRATEGIES),
  chunk_unit: z.enum(CHUNK_UNITS).nullable(),
  chunk_size: z.int().nullable(),
  chunk_overlap: z.int().nullable(),
}

/** Chunk settings of a request, a document, a rule or an operation; absent and null are unset. */
export type PartialSettings = { [K in keyof ChunkSettings]?: ChunkSettings[K] | null }
