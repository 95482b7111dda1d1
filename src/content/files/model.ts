import { z } from 'zod'
import { type Fragment, sql } from '../../core/db.ts'
import { kind } from '../../core/kind.ts'
import { TagBag } from '../../core/tags.ts'
import { directoryOf } from '../paths.ts'

/** A file as the wire shows it (content, 2.1). */
export const File = z
  .object({
    id: z.string(),
    project_id: z.string(),
    prefix: z.string().nullable().describe('Directory part of the path'),
    filename: z.string(),
    path: z.string().nullable(),
    content_type: z.string().nullable(),
    size: z.int().nullable().describe('Stored bytes; declared ones while there is no content'),
    has_content: z.boolean(),
    checksum_sha256: z.string().nullable(),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    tags: TagBag,
    document_id: z.string().nullable().describe('The document that the file backs'),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
  })
  .meta({ id: 'File' })

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
  created_at: z.string(),
  updated_at: z.string(),
})
export type FileRow = z.output<typeof FileRow>

/** The columns of a file over the alias `t`; documents_file_id_key finds the document. */
export const fileColumns: Fragment = sql.fragment`t.id, t.project_id, t.path, t.filename, t.content_type, t.size,
  encode(t.sha256, 'hex') as sha256, t.storage, t.location, t.metadata, t.tags,
  (select d.id from documents d where d.file_id = t.id) as document_id, t.created_at, t.updated_at`

export const fileKind = kind<FileRow>({
  name: 'file',
  prefix: 'file',
  table: 'files',
  tags: true,
  missing: 'FILE_NOT_FOUND',
  columns: fileColumns,
  path: row => row.path,
  present: row => ({
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
    created_at: row.created_at,
    updated_at: row.updated_at,
  }),
})
