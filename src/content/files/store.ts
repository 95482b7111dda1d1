import { z } from 'zod'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { deleteContent, type FileRow, fileKind, raisePathConflict } from './model.ts'

/** Columns of a new file. */
export type NewFile = Pick<
  FileRow,
  'id' | 'project_id' | 'path' | 'filename' | 'content_type' | 'size' | 'storage' | 'location' | 'metadata' | 'tags'
> & { sha256: Buffer | null; actor_id?: string | null }

const bytea = (bytes: Buffer | null) => (bytes ? sql.binary(bytes) : sql.fragment`null::bytea`)

/** Insert of a file; inserts no row if the path exists (files_path). */
export const fileInsert = (row: NewFile): Fragment => sql.fragment`
    insert into files as t (id, project_id, path, filename, content_type, size, sha256, storage, location, metadata, tags, actor_id)
    values (${row.id}, ${row.project_id}, ${row.path}, ${row.filename}, ${row.content_type}, ${row.size},
      ${bytea(row.sha256)}, ${row.storage}, ${row.location}, ${jsonb(row.metadata)}, ${jsonb(row.tags)}, ${row.actor_id ?? null})
    on conflict (project_id, path) do nothing`

/** Inserts a file. Raises NAME_CONFLICT with `meta { path }` if the path exists (files_path). */
export async function insertFile(tx: Queryable, row: NewFile): Promise<FileRow> {
  const inserted = await tx.maybeOne(fileKind.sql`${fileInsert(row)} returning ${fileKind.columns}`)
  return inserted ?? raisePathConflict(row.path)
}

/** Points a file at new bytes and deletes the old ones. The caller commits the new bytes. */
export async function setFileContent(
  tx: Tx,
  row: FileRow,
  bytes: Pick<FileRow, 'size' | 'content_type' | 'storage' | 'location'> & { sha256: Buffer },
): Promise<FileRow> {
  await deleteContent(tx, row)
  return tx.one(fileKind.sql`
    update files t set size = ${bytes.size}, content_type = ${bytes.content_type}, sha256 = ${sql.binary(bytes.sha256)},
      storage = ${bytes.storage}, location = ${bytes.location}, updated_at = now()
    where t.id = ${row.id} returning ${fileKind.columns}`)
}

/** Makes the document text, in UTF-8, the content of a file and deletes the stored bytes. */
export async function setFileText(tx: Tx, row: FileRow, text: { size: number; sha256: Buffer }): Promise<FileRow> {
  await deleteContent(tx, row)
  return tx.one(fileKind.sql`
    update files t set size = ${text.size}, sha256 = ${sql.binary(text.sha256)}, storage = 'text', location = null,
      content_type = regexp_replace(content_type, '\\s*;\\s*charset\\s*=[^;]*', '', 'i'), updated_at = now()
    where t.id = ${row.id} returning ${fileKind.columns}`)
}

const sliceRow = sql.type(z.object({ bytes: z.instanceof(Buffer) }))

/**
 * Reads bytes of the document text that is the content of a file; returns null if the content was replaced. Index
 * documents_file_id_key.
 */
export const readTextSlice = async (
  db: Queryable,
  row: Pick<FileRow, 'id' | 'sha256'>,
  start: number,
  length: number,
): Promise<Buffer | null> => {
  const found = await db.maybeOne(sliceRow`
    select substring(convert_to(x.content, 'UTF8') from ${start + 1}::int for ${length}::int) as bytes
    from files t join documents d on d.file_id = t.id join document_texts x on x.document_id = d.id
    where t.id = ${row.id} and t.storage = 'text' and encode(t.sha256, 'hex') = ${row.sha256}`)
  return found?.bytes ?? null
}

export const UploadTokenRow = z.object({
  project_id: z.string(),
  principal: z.custom<PrincipalRecord>(value => typeof value === 'object' && value !== null),
  prefix: z.string().nullable(),
  filename: z.string().nullable(),
  content_type: z.string().nullable(),
  max_bytes: z.int().nullable(),
  expires_at: z.string(),
  used_at: z.string().nullable(),
})
export type UploadTokenRow = z.output<typeof UploadTokenRow>

const tokenRow = sql.type(UploadTokenRow)

const tokenColumns = sql.fragment`project_id, principal, prefix, filename, content_type, max_bytes, expires_at, used_at`

export const insertUploadToken = (tx: Queryable, hash: Buffer, row: Omit<UploadTokenRow, 'used_at'>) =>
  tx.query(voidStatement`
    insert into upload_tokens (token_hash, project_id, principal, prefix, filename, content_type, max_bytes, expires_at)
    values (${sql.binary(hash)}, ${row.project_id}, ${jsonb(row.principal)}, ${row.prefix}, ${row.filename},
      ${row.content_type}, ${row.max_bytes}, ${row.expires_at}::timestamptz)`)

export const findUploadToken = (db: Queryable, hash: Buffer): Promise<UploadTokenRow | null> =>
  db.maybeOne(tokenRow`
    select ${tokenColumns} from upload_tokens where token_hash = ${sql.binary(hash)}`)

/** Marks a token as used; returns null if it is used already or not found. Concurrent calls serialize on the row. */
export const consumeUploadToken = (tx: Queryable, hash: Buffer, now: Date): Promise<UploadTokenRow | null> =>
  tx.maybeOne(tokenRow`
    update upload_tokens set used_at = ${now.toISOString()}::timestamptz
    where token_hash = ${sql.binary(hash)} and used_at is null
    returning ${tokenColumns}`)

/** Deletes tokens that were used or expired before a time; returns their number. Index upload_tokens_ended. */
export const deleteEndedTokens = async (db: Queryable, before: Date): Promise<number> => {
  const { rowCount } = await db.query(voidStatement`
    delete from upload_tokens where least(expires_at, used_at) < ${before.toISOString()}::timestamptz`)
  return rowCount
}
