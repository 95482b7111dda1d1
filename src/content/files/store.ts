import { UniqueIntegrityConstraintViolationError } from 'slonik'
import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { jsonb, type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/write.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { dropBytes, type Stores } from '../storage/stores.ts'
import { FileRow, fileColumns, fileKind } from './model.ts'

const file = sql.type(FileRow)

/** What a new file is made of. */
export type NewFile = Pick<
  FileRow,
  'id' | 'project_id' | 'path' | 'filename' | 'content_type' | 'size' | 'storage' | 'location' | 'metadata' | 'tags'
> & { sha256: Buffer | null }

const bytea = (bytes: Buffer | null) => (bytes ? sql.binary(bytes) : sql.fragment`null::bytea`)

const taken = (path: string | null): never =>
  raise('NAME_CONFLICT', { message: 'Another file of the project has this path', meta: { path } })

/** Inserts a file. Raises NAME_CONFLICT with `meta { path }` when files_path has its path already. */
export async function insertFile(tx: Queryable, row: NewFile): Promise<FileRow> {
  const made = await tx.maybeOne(file`
    insert into files as t (id, project_id, path, filename, content_type, size, sha256, storage, location, metadata, tags)
    values (${row.id}, ${row.project_id}, ${row.path}, ${row.filename}, ${row.content_type}, ${row.size},
      ${bytea(row.sha256)}, ${row.storage}, ${row.location}, ${jsonb(row.metadata)}, ${jsonb(row.tags)})
    on conflict (project_id, path) do nothing
    returning ${fileColumns}`)
  return made ?? taken(row.path)
}

/** The row of a file under its lock; null when it is gone. */
export const lockFile = (tx: Queryable, id: string): Promise<FileRow | null> => fileKind.find(tx, id, true)

/** Gives a file another path. Raises NAME_CONFLICT with `meta { path }`; the transaction is over then. */
export async function moveFile(
  tx: Queryable,
  id: string,
  { path, filename }: { path: string | null; filename: string },
): Promise<FileRow> {
  try {
    return await tx.one(file`
      update files t set path = ${path}, filename = ${filename}, updated_at = now() where t.id = ${id}
      returning ${fileColumns}`)
  } catch (error) {
    if (error instanceof UniqueIntegrityConstraintViolationError) return taken(path)
    throw error
  }
}

export const setFileMetadata = (tx: Queryable, id: string, metadata: FileRow['metadata']): Promise<FileRow> =>
  tx.one(file`
    update files t set metadata = ${jsonb(metadata)}, updated_at = now() where t.id = ${id} returning ${fileColumns}`)

export const setFileTags = (tx: Queryable, id: string, tags: Record<string, string>): Promise<FileRow> =>
  tx.one(file`
    update files t set tags = ${jsonb(tags)}, updated_at = now() where t.id = ${id} returning ${fileColumns}`)

/** Drops the stored bytes that others replace; a text goes with its document. */
const dropContent = async (tx: Tx, { storage, location }: FileRow): Promise<void> => {
  if (storage !== null && storage !== 'text') await dropBytes(tx, { storage, location: location as string })
}

/** Gives a file other bytes, which are committed; those it had are dropped. */
export async function setFileContent(
  tx: Tx,
  row: FileRow,
  bytes: Pick<FileRow, 'size' | 'content_type' | 'storage' | 'location'> & { sha256: Buffer },
): Promise<FileRow> {
  await dropContent(tx, row)
  return tx.one(file`
    update files t set size = ${bytes.size}, content_type = ${bytes.content_type}, sha256 = ${sql.binary(bytes.sha256)},
      storage = ${bytes.storage}, location = ${bytes.location}, updated_at = now()
    where t.id = ${row.id} returning ${fileColumns}`)
}

/** The bytes of a file are its document's text from now on, in UTF-8 whatever they were in; stored ones are dropped. */
export async function setFileText(tx: Tx, row: FileRow, text: { size: number; sha256: Buffer }): Promise<FileRow> {
  await dropContent(tx, row)
  return tx.one(file`
    update files t set size = ${text.size}, sha256 = ${sql.binary(text.sha256)}, storage = 'text', location = null,
      content_type = regexp_replace(content_type, '\\s*;\\s*charset\\s*=[^;]*', '', 'i'), updated_at = now()
    where t.id = ${row.id} returning ${fileColumns}`)
}

/** Deletes a file with its bytes. Nothing may refer to it. */
export async function deleteFileRow(tx: Tx, stores: Pick<Stores, 'drop'>, row: FileRow): Promise<void> {
  if (row.storage !== null && row.storage !== 'text')
    await stores.drop(tx, { storage: row.storage, location: row.location as string })
  await tx.query(sql.unsafe`delete from files where id = ${row.id}`)
}

/**
 * Some bytes of the text that a file's bytes are; null when the file has other bytes by now. By documents_file_id_key.
 */
export const textSlice = async (
  db: Queryable,
  row: Pick<FileRow, 'id' | 'sha256'>,
  start: number,
  length: number,
): Promise<Buffer | null> => {
  const found = await db.maybeOne(sql.type(z.object({ bytes: z.instanceof(Buffer) }))`
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

const tokenColumns = sql.fragment`project_id, principal, prefix, filename, content_type, max_bytes, expires_at, used_at`

export const insertUploadToken = (tx: Queryable, hash: Buffer, row: Omit<UploadTokenRow, 'used_at'>) =>
  tx.query(sql.unsafe`
    insert into upload_tokens (token_hash, project_id, principal, prefix, filename, content_type, max_bytes, expires_at)
    values (${sql.binary(hash)}, ${row.project_id}, ${jsonb(row.principal)}, ${row.prefix}, ${row.filename},
      ${row.content_type}, ${row.max_bytes}, ${row.expires_at}::timestamptz)`)

export const findUploadToken = (db: Queryable, hash: Buffer): Promise<UploadTokenRow | null> =>
  db.maybeOne(sql.type(UploadTokenRow)`
    select ${tokenColumns} from upload_tokens where token_hash = ${sql.binary(hash)}`)

/** Uses a token up; null when it is used or gone. Of two at once the second one waits for the first. */
export const useUploadToken = (tx: Queryable, hash: Buffer, now: Date): Promise<UploadTokenRow | null> =>
  tx.maybeOne(sql.type(UploadTokenRow)`
    update upload_tokens set used_at = ${now.toISOString()}::timestamptz
    where token_hash = ${sql.binary(hash)} and used_at is null
    returning ${tokenColumns}`)

/** Deletes tokens that were used or ran out before a time, by upload_tokens_ended; answers how many. */
export const deleteEndedTokens = async (db: Queryable, before: Date): Promise<number> => {
  const { rowCount } = await db.query(sql.unsafe`
    delete from upload_tokens where least(expires_at, used_at) < ${before.toISOString()}::timestamptz`)
  return rowCount
}
