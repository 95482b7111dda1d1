import { z } from 'zod'
import { RecordedFailure } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { projectField, record, TagBag } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { chunkFields, chunkRecord } from '../chunks/model.ts'
import { ContentMetadata } from '../metadata.ts'
import { Filename, WritablePath } from '../paths.ts'

export const DOCUMENT_STATUSES = ['pending', 'processing', 'ready', 'failed', 'withdrawn'] as const

/** A document as the wire shows it, in lists and events without its text. */
export const Document = record(
  'Document',
  {
    file_id: z.string(),
    path: z.string().nullable(),
    filename: z.string().describe('Of the file'),
    content_type: z.string().nullable().describe('Of the file'),
    size: z.int().describe('Bytes of the file'),
    kind: z.enum(['document', 'message']).describe('`message`: the text of a message of a conversation'),
    status: z.enum(DOCUMENT_STATUSES),
    version: z.int(),
    title: z.string().nullable(),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    ...chunkRecord,
    chunk_count: z.int().describe('Chunks that are there now'),
    error: RecordedFailure.nullable().describe('Why the ingestion failed'),
  },
  { tags: true },
)

/** One document with its text. */
export const DocumentWithContent = Document.extend({
  content: z.string().nullable().describe('The whole text; null unless the document is ready'),
}).meta({ id: 'DocumentWithContent' })

const title = z.string().max(512)

export const DocumentInput = z
  .strictObject({
    project_id: projectField,
    content: z.string().describe('The whole text'),
    path: WritablePath.nullish().describe('Default: the filename, at the root'),
    filename: Filename.nullish().describe('Default: the last segment of the path, else the id with `.txt`'),
    title: title.nullish().describe('Title, searched with the text'),
    metadata: ContentMetadata.nullish().describe('Data of your own, checked by the metadata schema of the path'),
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
  .describe('The write goes through only while the document is at this version')

export const DocumentPatch = z
  .strictObject({
    content: z.string().optional().describe('The new text, in place of the whole one'),
    append: z.string().optional().describe('Text to add at the end, instead of content'),
    title: title.nullish().describe('null clears it'),
    path: WritablePath.nullish().describe('Moves the document with its file; null leaves them without a place'),
    metadata: ContentMetadata.nullish().describe('null clears it'),
    tags: TagInput.optional().describe('Replaces the tags'),
    ...chunkFields,
    expected_version,
  })
  .refine(patch => patch.content === undefined || patch.append === undefined, {
    path: ['append'],
    message: 'cannot come with content',
  })
  .meta({ id: 'DocumentPatch', example: { content: 'Orders can be returned within 60 days.' } })

export const VersionPrecondition = z.strictObject({ expected_version }).meta({ id: 'VersionPrecondition' })

/** How far the ingestion of a document is. */
export const DocumentStatus = z
  .object({
    id: z.string(),
    status: z.enum(DOCUMENT_STATUSES),
    chunk_count: z.int().describe('Chunks that are searched'),
    embedded_chunks: z.int().describe('Chunks that searches by meaning find'),
    total_chunks: z.int().nullable().describe('null until the text is cut'),
    total_pages: z.int().nullable().describe('null until the file is read'),
    progress: z.int().nullable().describe('Percent; null while the total is not known, and for failed and withdrawn'),
    error: RecordedFailure.nullable(),
  })
  .meta({ id: 'DocumentStatus' })

/** A chunk of a document as the wire shows it. */
export const DocumentChunk = z
  .object({
    id: z.string(),
    chunk_index: z.int(),
    page_number: z.int().nullable().describe('Page of the document; null without pages'),
    char_start: z.int().describe('Code points of the text'),
    char_end: z.int().describe('Exclusive'),
    content: z.string(),
    embedded: z.boolean().describe('Searches by meaning find it'),
  })
  .meta({ id: 'DocumentChunk' })

const pages = z.array(z.tuple([z.int().nullable(), z.int()])).nullable()

/** A text as it is stored, with where its pages begin. */
export const StoredText = z.object({ content: z.string(), pages })
export type StoredText = z.output<typeof StoredText>

/** Who made a version: a principal, or the platform itself. */
export const DocumentAuthor = z.object({ type: z.enum(['user', 'api_key', 'system']), id: z.string().nullable() })
export type DocumentAuthor = z.output<typeof DocumentAuthor>

export const documentAuthor = (caller: Caller): DocumentAuthor => ({
  type: caller.principal.type,
  id: caller.principal.id,
})

/** What a document was, in lists without its text. */
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

/** A version with its text and where its pages begin. */
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
    /** The version that brought the live text; null while there is none. */
    text_version: z.int().nullable(),
    embedded_chunks: z.int(),
    total_chunks: z.int().nullable(),
    total_pages: z.int().nullable(),
    embed_since: z.string().nullable(),
  },
  events: ['created', 'updated', 'deleted', 'withdrawn', 'restored', 'ingested', 'ingest_failed'],
  eventNotes: 'without content; ingested adds chunk_count, ingest_failed carries error',
})
export const DocumentRow = documentKind.row
export type DocumentRow = z.output<typeof DocumentRow>
