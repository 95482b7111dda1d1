import { z } from 'zod'
import { TagBag } from '../../core/api/record.ts'
import { MetadataFilter } from '../documents/metadata-filter.ts'
import { Directory } from '../paths.ts'

const MAX_LIMIT = 100
const MAX_QUERY = 8000

/** Several strings; one may come without its array. An empty string names nothing. */
const several = (max: number) =>
  z
    .union([z.string(), z.array(z.string()).max(max)])
    .transform(value => (typeof value === 'string' ? (value === '' ? [] : [value]) : value))

const share = z.number().min(0).max(1)

/** What of a search decides which rows it sees, beside what the caller may see. */
const selectors = ['document_ids', 'document_paths', 'metadata', 'memory_store_ids', 'tags'] as const

/** A search as a caller asks for it. */
export const SearchInput = z
  .strictObject({
    project_id: z
      .string()
      .optional()
      .describe('Default: the project of the key; for users every project they may search'),
    query: z
      .string()
      .max(MAX_QUERY)
      .optional()
      .describe('What to search for, in words; quotes and a leading minus work as in web searches'),
    limit: z
      .int()
      .min(1)
      .transform(limit => Math.min(limit, MAX_LIMIT))
      .default(10)
      .describe(`A larger value than ${MAX_LIMIT} is taken as ${MAX_LIMIT}`),
    document_ids: several(500).optional().describe('Only these documents'),
    document_paths: several(50).pipe(z.array(Directory)).optional().describe('Directories, or exact paths'),
    metadata: MetadataFilter.optional(),
    memory_store_ids: several(50).optional().describe('Only memories of these stores'),
    actor_id: z
      .string()
      .min(1)
      .max(255)
      .nullable()
      .optional()
      .describe('Only memories of this end user and memories without one; null: only those without one; default: all'),
    tags: z
      .record(z.string().min(1).max(128), z.string().max(256))
      .optional()
      .describe('Only rows that carry all of these tags'),
    include_documents: z.boolean().default(true).describe('Search documents'),
    include_memories: z.boolean().default(true).describe('Search memories'),
    min_similarity: share.optional().describe('Least cosine of a row that its meaning alone has found'),
    min_score: share.optional().describe('The same as min_similarity'),
    rrf_k: z
      .number()
      .gt(0)
      .max(1000)
      .optional()
      .describe('Constant of the rank fusion: the larger, the less the first ranks count; default KNOWLEDGE_RRF_K'),
    recency_half_life_days: z.number().min(0).max(36_500).optional().describe('For memories; 0 is off'),
    max_chunks_per_document: z.int().min(1).max(100).optional().describe('Most rows of one document'),
    neighbors: z.int().min(0).max(3).optional().describe('Chunks before and after each chunk that come with it'),
    rerank: z
      .strictObject({
        tool_id: z.string().min(1).max(200).describe('Tool that is called with the query and the rows'),
        action: z.string().max(200).nullish().describe('Operation of the tool; mcp and platform tools need one'),
        top_n: z.int().min(1).max(MAX_LIMIT).default(20).describe('Rows that are ordered anew'),
      })
      .optional()
      .describe('A tool that orders the first rows anew; needs one project'),
  })
  .superRefine((body, context) => {
    const { query, include_documents, include_memories, min_similarity, min_score } = body
    const asks = !!query || selectors.some(name => body[name] !== undefined && Object.keys(body[name]).length > 0)
    if (!asks)
      context.addIssue({
        code: 'custom',
        path: ['query'],
        params: { code: 'REQUIRED' },
        message: `is required without ${selectors.join(', ')}`,
      })
    if (!include_documents && !include_memories)
      context.addIssue({ code: 'custom', path: ['include_documents'], message: 'one source has to be included' })
    if (min_similarity !== undefined && min_score !== undefined && min_similarity !== min_score)
      context.addIssue({ code: 'custom', path: ['min_score'], message: 'is another name of min_similarity' })
  })
  .meta({ id: 'KnowledgeSearchInput' })
export type SearchInput = z.output<typeof SearchInput>

const common = {
  content: z.string(),
  score: z.number().optional().describe('Only its order within one answer means anything'),
  similarity_score: z.number().optional().describe('Cosine of the row and the query'),
  signals: z
    .object({
      vector: z.int().optional().describe('Rank by meaning'),
      lexical: z.int().optional().describe('Rank by words'),
      rerank: z.number().optional().describe('Score of the reranker'),
    })
    .optional()
    .describe('Ranks of the row in the channels that found it, from 1, and what the reranker gave it'),
  project_id: z.string(),
  tags: TagBag,
  created_at: z.iso.datetime(),
  updated_at: z.iso.datetime(),
}

export const DocumentResult = z
  .object({
    source_type: z.literal('document'),
    ...common,
    document_id: z.string(),
    chunk_id: z.string(),
    file_id: z.string(),
    chunk_index: z.int(),
    page: z.int().nullable().describe('Page of the document; null without pages'),
    path: z.string().nullable(),
    filename: z.string(),
    title: z.string().nullable(),
    content_type: z.string().nullable(),
    size: z.int(),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    context_before: z.string().nullable().optional().describe('Text before the chunk'),
    context_after: z.string().nullable().optional().describe('Text after the chunk'),
  })
  .meta({ id: 'KnowledgeDocumentResult' })
export type DocumentResult = z.output<typeof DocumentResult>

export const MemoryResult = z
  .object({
    source_type: z.literal('memory'),
    ...common,
    memory_id: z.string(),
    memory_store_id: z.string(),
    memory_store_name: z.string().describe('Name of the memory store'),
    actor_id: z.string().nullable().describe('End user that it belongs to; null without one'),
  })
  .meta({ id: 'KnowledgeMemoryResult' })

export const Result = z.discriminatedUnion('source_type', [DocumentResult, MemoryResult])
export type Result = z.output<typeof Result>

const CHANNELS = ['vector', 'lexical', 'rerank'] as const

/** What a search answers. */
export const SearchAnswer = z
  .object({
    results: z.array(Result),
    degraded_channels: z.array(z.enum(CHANNELS)).describe('Channels that could not be asked'),
  })
  .meta({ id: 'KnowledgeSearchAnswer' })
export type SearchAnswer = z.output<typeof SearchAnswer>
