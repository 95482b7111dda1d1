import { z } from 'zod'
import { TagBag } from '#core/api/record.ts'
import { MetadataFilter } from '../documents/metadata-filter.ts'
import { Directory } from '../paths.ts'

const MAX_LIMIT = 100
const MAX_QUERY = 8000

/** A list of strings, or a single string without an array; an empty string is an empty list. */
const stringList = (max: number) =>
  z
    .union([z.string(), z.array(z.string()).max(max)])
    .transform(value => (typeof value === 'string' ? (value === '' ? [] : [value]) : value))

const share = z.number().min(0).max(1)

/** Parameters that select rows and so allow a search without a query. */
const SELECTORS = ['document_ids', 'document_paths', 'metadata', 'memory_store_ids', 'tags'] as const

export const SearchInput = z
  .strictObject({
    project_id: z
      .string()
      .optional()
      .describe('ID of the project to search. Default the project of the key; for users all projects they may search.'),
    query: z
      .string()
      .max(MAX_QUERY)
      .optional()
      .describe('Search text. Quotes match phrases and a leading minus excludes words.'),
    limit: z
      .int()
      .min(1)
      .transform(limit => Math.min(limit, MAX_LIMIT))
      .default(10)
      .describe(`Maximum number of results. Default 10; values above ${MAX_LIMIT} count as ${MAX_LIMIT}.`),
    document_ids: stringList(500).optional().describe('IDs of documents to search'),
    document_paths: stringList(50)
      .pipe(z.array(Directory))
      .optional()
      .describe('Directories or exact paths of documents to search'),
    metadata: MetadataFilter.optional(),
    memory_store_ids: stringList(50).optional().describe('IDs of memory stores to search'),
    actor_id: z
      .string()
      .min(1)
      .max(255)
      .nullable()
      .optional()
      .describe(
        'ID of an end user whose memories are searched along with memories without an end user; null searches only memories without one. Default all.',
      ),
    tags: z.record(z.string().min(1).max(128), z.string().max(256)).optional().describe('Tags that results must have'),
    include_documents: z.boolean().default(true).describe('Whether to search documents. Default true.'),
    include_memories: z.boolean().default(true).describe('Whether to search memories. Default true.'),
    min_similarity: share.optional().describe('Minimum cosine of results that are found only by meaning'),
    min_score: share.optional().describe('Alias of min_similarity'),
    rrf_k: z
      .number()
      .gt(0)
      .max(1000)
      .optional()
      .describe(
        'Constant of the rank fusion; larger values reduce the weight of the first ranks. Default KNOWLEDGE_RRF_K.',
      ),
    recency_half_life_days: z
      .number()
      .min(0)
      .max(36_500)
      .optional()
      .describe('Age in days at which the score of a memory is halved; 0 disables it'),
    max_chunks_per_document: z.int().min(1).max(100).optional().describe('Maximum number of results per document'),
    neighbors: z
      .int()
      .min(0)
      .max(3)
      .optional()
      .describe('Number of chunks before and after each chunk to return as context'),
    rerank: z
      .strictObject({
        tool_id: z.string().min(1).max(200).describe('ID of the tool, which is called with the query and the results'),
        action: z.string().max(200).nullish().describe('Action of the tool; required for mcp and platform tools'),
        top_n: z.int().min(1).max(MAX_LIMIT).default(20).describe('Number of first results to rerank. Default 20.'),
      })
      .optional()
      .describe('Tool that reranks the first results; requires a project'),
  })
  .superRefine((body, context) => {
    const { query, include_documents, include_memories, min_similarity, min_score } = body
    const selects = !!query || SELECTORS.some(name => body[name] !== undefined && Object.keys(body[name]).length > 0)
    if (!selects)
      context.addIssue({
        code: 'custom',
        path: ['query'],
        params: { code: 'REQUIRED' },
        message: `is required if none of ${SELECTORS.join(', ')} is set`,
      })
    if (!include_documents && !include_memories)
      context.addIssue({
        code: 'custom',
        path: ['include_documents'],
        message: 'must be true if include_memories is false',
      })
    if (min_similarity !== undefined && min_score !== undefined && min_similarity !== min_score)
      context.addIssue({
        code: 'custom',
        path: ['min_score'],
        message: 'must equal min_similarity, of which it is an alias',
      })
  })
  .meta({ id: 'KnowledgeSearchInput' })
export type SearchInput = z.output<typeof SearchInput>

const resultFields = {
  content: z.string(),
  score: z.number().optional().describe('Score of the result; comparable only within one response'),
  similarity_score: z.number().optional().describe('Cosine of the result and the query'),
  signals: z
    .object({
      vector: z.int().optional().describe('Rank by meaning'),
      lexical: z.int().optional().describe('Rank by words'),
      rerank: z.number().optional().describe('Score from the reranker'),
    })
    .optional()
    .describe('Ranks in the channels that found the result, from 1, and the score of the reranker'),
  project_id: z.string(),
  tags: TagBag,
  created_at: z.iso.datetime(),
  updated_at: z.iso.datetime(),
}

export const DocumentResult = z
  .object({
    source_type: z.literal('document'),
    ...resultFields,
    document_id: z.string(),
    chunk_id: z.string(),
    file_id: z.string(),
    chunk_index: z.int(),
    page: z.int().nullable().describe('Page number in the document. Null without pages.'),
    path: z.string().nullable(),
    filename: z.string(),
    title: z.string().nullable(),
    content_type: z.string().nullable(),
    size: z.int(),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    context_before: z.string().nullable().optional().describe('Text of the preceding chunks'),
    context_after: z.string().nullable().optional().describe('Text of the following chunks'),
  })
  .meta({ id: 'KnowledgeDocumentResult' })
export type DocumentResult = z.output<typeof DocumentResult>

export const MemoryResult = z
  .object({
    source_type: z.literal('memory'),
    ...resultFields,
    memory_id: z.string(),
    memory_store_id: z.string(),
    memory_store_name: z.string().describe('Name of the memory store'),
    actor_id: z.string().nullable().describe('ID of the end user that the memory belongs to, or null'),
  })
  .meta({ id: 'KnowledgeMemoryResult' })

export const Result = z.discriminatedUnion('source_type', [DocumentResult, MemoryResult])
export type Result = z.output<typeof Result>

const CHANNELS = ['vector', 'lexical', 'rerank'] as const

export const SearchAnswer = z
  .object({
    results: z.array(Result),
    degraded_channels: z.array(z.enum(CHANNELS)).describe('Unavailable channels'),
  })
  .meta({ id: 'KnowledgeSearchAnswer' })
export type SearchAnswer = z.output<typeof SearchAnswer>
