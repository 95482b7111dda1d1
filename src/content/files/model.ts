import { z } from 'zod'
import { type Kind, kind, type Values } from '#core/api/kind.ts'
import { projectField, record } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { storabilityProblem } from '#core/api/validate.ts'
import { raise } from '#core/base/errors.ts'
import { parseJson } from '#core/base/json-limits.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { ContentMetadata } from '../metadata.ts'
import { directoryOf, leafOf, WritableDirectory } from '../paths.ts'
import { deleteBytes } from '../storage/backends.ts'
import { MediaType } from './media-type.ts'
import { Upload } from './upload.ts'

/** A file in responses. */
export const File = record(
  'File',
  {
    prefix: z.string().nullable().describe('Directory part of the path'),
    filename: z.string(),
    path: z.string().nullable(),
    content_type: z.string().nullable(),
    size: z.int().nullable().describe('Size of the content in bytes; the declared size until content is stored'),
    has_content: z.boolean().describe('Whether content is stored'),
    checksum_sha256: z.string().nullable(),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    document_id: z.string().nullable().describe('ID of the document that the file belongs to'),
    actor_id: z.string().nullable().describe('ID of the end user who uploaded the file'),
  },
  { tags: true },
)

export const FileRow = z.object({
  id: z.string(),
  project_id: z.string(),
  path: z.string().nullable(),
  filename: z.string(),
  content_type: z.string().nullable(),
  size: z.int().nullable(),
  /** Lower-case hex. */
  sha256: z.string().nullable(),
  storage: z.enum(['postgres', 'local', 's3', 'text']).nullable(),
  location: z.string().nullable(),
  metadata: z.record(z.string(), z.unknown()).nullable(),
  tags: z.record(z.string(), z.string()),
  document_id: z.string().nullable(),
  actor_id: z.string().nullable(),
  created_at: z.string(),
  updated_at: z.string(),
})
export type FileRow = z.output<typeof FileRow>

/** Columns of a file with alias `t`. Index documents_file_id_key for the document. */
const fileColumns: Fragment = sql.fragment`t.id, t.project_id, t.path, t.filename, t.content_type, t.size,
  encode(t.sha256, 'hex') as sha256, t.storage, t.location, t.metadata, t.tags,
  (select d.id from documents d where d.file_id = t.id) as document_id, t.actor_id, t.created_at, t.updated_at`

/** Raises NAME_CONFLICT with `meta { path }`. */
export const raisePathConflict = (path: string | null | undefined): never =>
  raise('NAME_CONFLICT', { message: `A file with path '${path}' already exists in the project`, meta: { path } })

/** Deletes the stored bytes of a file; a text is deleted with its document. */
export const deleteContent = async (tx: Tx, { storage, location }: FileRow): Promise<void> => {
  if (storage !== null && storage !== 'text') await deleteBytes(tx, { storage, location: location as string })
}

export const fileKind: Kind<FileRow, 'created' | 'updated' | 'deleted'> = kind({
  name: 'file',
  prefix: 'file',
  table: 'files',
  tags: true,
  missing: 'FILE_NOT_FOUND',
  record: File,
  row: FileRow,
  columns: fileColumns,
  references: [{ kind: 'actor', column: 'actor_id', on_delete: 'null' }],
  events: ['created', 'updated', 'deleted'],
  unique: { files_path: ({ path }: Values<FileRow>) => raisePathConflict(path) },
  async remove(tx: Tx, row: FileRow) {
    await deleteContent(tx, row)
    await fileKind.delete(tx, row.id)
    tx.emit(fileKind, 'deleted', row)
  },
  path: (row: FileRow) => row.path,
  present: (row: FileRow) => ({
    id: row.id,
    project_id: row.project_id,
    prefix: row.path === null ? null : directoryOf(row.path),
    filename: row.filename,
    path: row.path,
    content_type: row.content_type,
    size: row.size,
    has_content: row.storage !== null,
    checksum_sha256: row.sha256,
    metadata: row.metadata,
    tags: row.tags,
    document_id: row.document_id,
    actor_id: row.actor_id,
    created_at: row.created_at,
    updated_at: row.updated_at,
  }),
})

const MAX_NAME_BYTES = 255

/** Filename sent by a caller; parses to its last segment. */
export const FileName = z
  .string()
  .transform((text, context) => {
    const name = leafOf(text).normalize('NFC').trim()
    const problem =
      name === '' || name === '.' || name === '..'
        ? 'must be a filename'
        : /\p{Cc}/u.test(text)
          ? 'must not contain control characters'
          : Buffer.byteLength(name) > MAX_NAME_BYTES
            ? `must be at most ${MAX_NAME_BYTES} bytes`
            : null
    if (problem === null) return name
    context.addIssue({ code: 'custom', message: problem })
    return z.NEVER
  })
  .meta({ type: 'string' })

/** A JSON object, or its JSON text for clients that can send only text fields. */
const Metadata = z.union([
  ContentMetadata,
  z
    .string()
    .transform((text, context): unknown => {
      try {
        const value: unknown = parseJson(text)
        const problem = storabilityProblem(value)
        if (!problem) return value
        context.addIssue({ code: 'custom', message: problem.message })
      } catch {
        context.addIssue({ code: 'custom', message: 'must be a JSON object' })
      }
      return z.NEVER
    })
    .pipe(ContentMetadata),
])

const placementFields = {
  project_id: projectField,
  prefix: WritableDirectory.nullish().describe('Directory. Default the root.'),
  filename: FileName.optional().describe('Name within the directory; only the last segment of a path is used'),
  content_type: MediaType.nullish().describe(
    'Media type. By default detected from the upload, the filename or the content.',
  ),
}
const metadataFields = {
  metadata: Metadata.nullish().describe('Custom metadata, validated by the metadata schema of the path'),
  tags: TagInput.optional().describe('Tags of the file'),
}

export const FileInput = z
  .strictObject({
    ...placementFields,
    name: FileName.optional().describe('Alias of filename'),
    size: z.int().min(0).nullish().describe('Declared size in bytes'),
    ...metadataFields,
    path: z.unknown().optional().describe('Ignored'),
    storage_type: z.unknown().optional().describe('Ignored'),
    storage_path: z.unknown().optional().describe('Ignored'),
  })
  .meta({ id: 'FileInput', example: { filename: 'returns.md', prefix: '/help' } })

const uploadField = (expected: string) =>
  z.custom<Upload>().superRefine((value, context) => {
    if (value instanceof Upload) return
    const [code, message] = value === undefined ? ['REQUIRED', 'is required'] : ['INVALID_TYPE', `must be ${expected}`]
    context.addIssue({ code: 'custom', params: { code }, message })
  })
const binaryField = (description: string) =>
  uploadField('a file').meta({ type: 'string', format: 'binary', description })
const base64Field = uploadField('base64').meta({
  type: 'string',
  contentEncoding: 'base64',
  description: 'File content in base64',
})

export const UploadForm = z
  .strictObject({ file: binaryField('Content of the file; exactly one part'), ...placementFields, ...metadataFields })
  .meta({ id: 'FileUpload' })

export const UploadJson = z
  .strictObject({ content: base64Field, ...placementFields, ...metadataFields })
  .meta({ id: 'FileUploadBase64' })

/** An upload by token: a form with `file`, or JSON with `content`. */
export const TokenUpload = z
  .strictObject({
    file: binaryField('Content of the file in a form').optional(),
    content: base64Field.optional(),
    filename: placementFields.filename,
    content_type: placementFields.content_type,
    ...metadataFields,
  })
  .meta({ id: 'FileTokenUpload' })

export const ContentUpload = z.strictObject({ file: binaryField('New content') }).meta({ id: 'FileContentUpload' })

export const FilePatch = z
  .strictObject({
    metadata: Metadata.nullish().describe('Custom metadata; null clears it'),
    prefix: WritableDirectory.optional().describe('New directory'),
    filename: FileName.optional().describe('New filename'),
  })
  .meta({ id: 'FilePatch', example: { metadata: { audience: 'customers' } } })

export const UploadTokenInput = z
  .strictObject({
    ...placementFields,
    max_bytes: z
      .int()
      .min(1)
      .optional()
      .describe('Maximum size of the file. Default and maximum FILES_MAX_UPLOAD_BYTES.'),
    expires_in_seconds: z
      .int()
      .min(60)
      .max(3600)
      .optional()
      .describe('Lifetime of the token in seconds. Default UPLOAD_TOKEN_TTL_SECONDS.'),
  })
  .meta({ id: 'UploadTokenInput', example: { filename: 'returns.md', prefix: '/help' } })

export const UploadToken = z
  .object({
    upload_token: z.string().describe('Credential for one upload').meta({ 'x-secret': true }),
    upload_url: z.string().describe('URL to upload the file to'),
    expires_at: z.iso.datetime(),
  })
  .meta({ id: 'UploadToken' })

export const FileContent = z
  .object({ content: z.string(), filename: z.string(), content_type: z.string().nullable(), size: z.int() })
  .meta({ id: 'FileContent' })

export const FileDependent = z
  .object({ resource_type: z.string(), resource_id: z.string() })
  .meta({ id: 'FileDependent' })
