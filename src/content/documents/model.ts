import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { projectField, record, TagBag } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import type { Caller } from '#core/iam/caller.ts'
import { chunkFields, chunkRecord } from '../index/chunks/model.ts'
import { ContentMetadata } from '../metadata.ts'
import { Filename, WritablePath } from '../paths.ts'

export const DOCUMENT_STATUSES = ['pending', 'processing', 'ready', 'failed', 'withdrawn'] as const

export const EMBEDDINGS = ['partial'] as const

/** A document without its text, as in lists and events. */
export const Document = record(
  'Document',
  {
    file_id: z.string(),
    path: z.string().nullable(),
    filename: z.string().describe('Name of the file'),
    content_type: z.string().nullable().describe('Media type of the file'),
    charset: z
      .string()
      .nullable()
      .describe('Charset in which the text was decoded because the file is not UTF-8 and names none; else null'),
    size: z.int().describe('Size of the file in bytes'),
    kind: z.enum(['document', 'message']).describe('`message` - the text of a conversation message'),
    status: z.enum(DOCUMENT_STATUSES),
    version: z.int(),
    title: z.string().nullable(),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    ...chunkRecord,
    chunk_count: z.int().describe('Number of stored chunks'),
    embedding: z
      .enum(EMBEDDINGS)
      .nullable()
      .describe(
        '`partial` - the embedding model refused some of the texts, or did not answer for a day; searches by meaning do not find them. Null otherwise.',
      ),
    error: RecordedFailure.nullable().describe('Error of a failed ingestion'),
  },
  { tags: true },
)

export const DocumentWithContent = Document.extend({
  content: z.string().nullable().describe('Text of the document. Null unless the document is ready.'),
}).meta({ id: 'DocumentWithContent' })

const title = z.string().max(512)

export const DocumentInput = z
  .strictObject({
    project_id: projectField,
    content: z.string().describe('Text of the document'),
    path: WritablePath.nullish().describe('Path of the document. Default the filename in the root directory.'),
    filename: Filename.nullish().describe(
      'Name of the file. Default the last segment of the path, else the ID with `.txt`.',
    ),
    title: title.nullish().describe('Title, searched together with the text'),
    metadata: ContentMetadata.nullish().describe('Custom metadata, validated by the metadata schema of the path'),
    tags: TagInput.optional().describe('Tags of the document'),
    ...chunkFields,
  })
  .meta({
    id: 'DocumentInput',
    example: { path: '/help/returns.md', content: 'Orders can be returned within 30 days.' },
  })

const expected_version = z
  .int()
  .min(1)
  .optional()
  .describe('Version that the document must have; otherwise the write is refused')

export const DocumentPatch = z
  .strictObject({
    content: z.string().optional().describe('Text that replaces the current text'),
    append: z.string().optional().describe('Text to append to the current text; cannot be combined with content'),
    title: title.nullish().describe('Title; null clears it'),
    path: WritablePath.nullish().describe('New path of the document and its file; null removes the path'),
    metadata: ContentMetadata.nullish().describe('Custom metadata; null clears it'),
    tags: TagInput.optional().describe('Tags that replace the current tags'),
    ...chunkFields,
    expected_version,
  })
  .refine(patch => patch.content === undefined || patch.append === undefined, {
    path: ['append'],
    message: 'cannot be combined with content',
  })
  .meta({ id: 'DocumentPatch', example: { content: 'Orders can be returned within 60 days.' } })

export const VersionPrecondition = z.strictObject({ expected_version }).meta({ id: 'VersionPrecondition' })

/** Ingestion progress of a document. */
export const DocumentStatus = z
  .object({
    id: z.string(),
    status: z.enum(DOCUMENT_STATUSES),
    chunk_count: z.int().describe('Number of searchable chunks'),
    embedded_chunks: z.int().describe('Number of chunks that searches by meaning can find'),
    total_chunks: z.int().nullable().describe('Total number of chunks. Null until the text is split.'),
    total_pages: z.int().nullable().describe('Number of pages. Null until the file is read.'),
    progress: z
      .int()
      .nullable()
      .describe('Progress in percent. Null until the total is computed, and for failed and withdrawn documents.'),
    error: RecordedFailure.nullable(),
  })
  .meta({ id: 'DocumentStatus' })

/** A chunk of a document in responses. */
export const DocumentChunk = z
  .object({
    id: z.string(),
    chunk_index: z.int(),
    page_number: z.int().nullable().describe('Page number in the document. Null without pages.'),
    char_start: z.int().describe('Start offset in the text, in code points'),
    char_end: z.int().describe('End offset in the text, exclusive'),
    content: z.string(),
    embedded: z.boolean().describe('Whether searches by meaning can find the chunk'),
  })
  .meta({ id: 'DocumentChunk' })

const pages = z.array(z.tuple([z.int().nullable(), z.int()])).nullable()

/** A stored text with the starts of its pages. */
export const StoredText = z.object({ content: z.string(), pages })
export type StoredText = z.output<typeof StoredText>

/** Author of a version: a principal or the platform. */
export const DocumentAuthor = z.object({ type: z.enum(['user', 'api_key', 'system']), id: z.string().nullable() })
export type DocumentAuthor = z.output<typeof DocumentAuthor>

export const documentAuthor = (caller: Caller): DocumentAuthor => ({
  type: caller.principal.type,
  id: caller.principal.id,
})

/** A version without its text, as in lists. */
export const DocumentVersion = z
  .object({
    document_id: z.string(),
    version: z.int(),
    tombstone: z.boolean().describe('Whether the document was withdrawn'),
    title: z.string().nullable(),
    path: z.string().nullable(),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    tags: TagBag,
    ...chunkRecord,
    created_by: DocumentAuthor.nullable(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'DocumentVersion' })

export const DocumentVersionWithContent = DocumentVersion.extend({ content: z.string().nullable() }).meta({
  id: 'DocumentVersionWithContent',
})

/** A version with its text and page starts. */
export const DocumentVersionRow = z.object({
  ...DocumentVersionWithContent.shape,
  text_version: z.int().nullable(),
  pages,
  created_at: z.string(),
})
export type DocumentVersionRow = z.output<typeof DocumentVersionRow>

export const documentKind = kind({
  name: 'document',
  prefix: 'doc',
  table: 'documents',
  references: [{ kind: 'file', column: 'file_id', on_delete: 'block' }],
  path: row => row.path,
  record: Document,
  hidden: {
    /** Version that introduced the current text; null without one. */
    text_version: z.int().nullable(),
    embedded_chunks: z.int(),
    total_chunks: z.int().nullable(),
    total_pages: z.int().nullable(),
    embed_since: z.string().nullable(),
    /** Language of the ingestion rule by which the text was read; null for the language of the project. */
    search_language: z.string().nullable(),
  },
  events: ['created', 'updated', 'deleted', 'withdrawn', 'restored', 'ingested', 'ingest_failed'],
  eventNotes: 'without content; ingested adds chunk_count, ingest_failed adds error',
})
export const DocumentRow = documentKind.row
export type DocumentRow = z.output<typeof DocumentRow>
