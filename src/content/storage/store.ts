import { z } from 'zod'
import { idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Location, StagedBytes } from './backend.ts'

const blobRow = sql.type(z.object({ size: z.int(), chunk_bytes: z.int() }))
const sliceRow = sql.type(z.object({ bytes: z.string() }))
const existsRow = sql.type(z.object({ '?column?': z.int() }))
const locationRow = sql.type(z.object({ id: z.string(), storage: z.enum(['local', 's3']), location: z.string() }))

/**
 * Commits a statement without waiting for the disk. A blob lost in a server crash was not referenced yet: the commit of
 * the row that references it is synchronous and flushes all earlier writes.
 */
const commitAsynchronously = sql.fragment`set_config('synchronous_commit', 'off', true)`

/** Inserts a staged blob with its first chunk, if any. */
export const insertBlob = (db: Queryable, id: string, first: Buffer | null) =>
  first === null
    ? db.query(voidStatement`insert into file_blobs (id) values (${id})`)
    : db.query(voidStatement`
        with blob as (insert into file_blobs (id) values (${id}))
        insert into file_blob_chunks (blob_id, seq, bytes) select ${id}::uuid, 0, ${sql.binary(first)} from ${commitAsynchronously}`)

/** Appends a chunk to a staged blob; returns false if the blob was deleted. */
export const insertChunk = async (db: Queryable, id: string, seq: number, chunk: Buffer): Promise<boolean> => {
  const { rowCount } = await db.query(voidStatement`
    insert into file_blob_chunks (blob_id, seq, bytes)
    select b.id, ${seq}::integer, ${sql.binary(chunk)} from file_blobs b, ${commitAsynchronously} where b.id = ${id}`)
  return rowCount === 1
}

/** Inserts committed blobs of one chunk each. */
export const insertBlobs = (db: Queryable, blobs: readonly (StagedBytes & { inlineBytes: Buffer })[]) =>
  db.query(voidStatement`
    with blob as (
      select * from ${sql.unnest(
        blobs.map(({ location, size, sha256, inlineBytes }) => [location, size, sha256, inlineBytes]),
        ['uuid', 'int8', 'bytea', 'bytea'],
      )} as b (id, size, sha256, bytes)
    ), named as (
      insert into file_blobs (id, state, size, sha256) select id, 'committed', size, sha256 from blob
    )
    insert into file_blob_chunks (blob_id, seq, bytes) select id, 0, bytes from blob where size > 0`)

/**
 * Commits staged blobs; returns false if one was swept, or lost chunks in a server crash. Lengths are counted without
 * reading the bytes.
 */
export const commitBlobs = async (db: Queryable, staged: readonly StagedBytes[]): Promise<boolean> => {
  const { rowCount } = await db.query(voidStatement`
    update file_blobs b set state = 'committed', size = s.size, sha256 = decode(s.sha256, 'hex')
    from ${sql.unnest(
      staged.map(({ location, size, sha256 }) => [location, size, sha256.toString('hex')]),
      ['uuid', 'int8', 'text'],
    )} as s (id, size, sha256)
    where b.id = s.id and b.state = 'staging' and s.size =
      (select coalesce(sum(octet_length(c.bytes)), 0) from file_blob_chunks c where c.blob_id = b.id)`)
  return rowCount === staged.length
}

/**
 * Returns the size of a blob, 0 before its commit, and the length of all its chunks but the last. Reads no bytes.
 */
export const findBlob = (
  db: Queryable,
  id: string,
  state: 'staging' | 'committed',
): Promise<{ size: number; chunk_bytes: number } | null> =>
  db.maybeOne(blobRow`
    select coalesce(b.size, 0) as size, coalesce(octet_length(c.bytes), 0) as chunk_bytes
    from file_blobs b left join file_blob_chunks c on c.blob_id = b.id and c.seq = 0
    where b.id = ${id} and b.state = ${state}`)

/** The base64 text of a slice must fit the young generation of the heap, which excludes large objects. */
const SLICE_BYTES = 48 * 1024

/**
 * Reads one chunk of a blob in slices, by primary key; returns none if the chunk was deleted. The driver receives bytes
 * as hex text; base64 needs a third less memory.
 */
export const readChunk = async (db: Queryable, id: string, seq: number): Promise<Buffer[]> => {
  const rows = await db.any(sliceRow`
    select encode(substring(c.bytes from s.start + 1 for ${SLICE_BYTES}), 'base64') as bytes
    from file_blob_chunks c, generate_series(0, octet_length(c.bytes) - 1, ${SLICE_BYTES}) as s (start)
    where c.blob_id = ${id} and c.seq = ${seq} order by s.start`)
  return rows.map(row => Buffer.from(row.bytes, 'base64'))
}

export const deleteBlob = (db: Queryable, id: string) =>
  db.query(voidStatement`
    with blob as (delete from file_blobs where id = ${id})
    delete from file_blob_chunks where blob_id = ${id}`)

/** Deletes many blobs, by primary key. */
export const deleteBlobs = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`
    with gone as (select unnest(${sql.array([...ids], 'uuid')}) as id),
      blobs as (delete from file_blobs b using gone where b.id = gone.id)
    delete from file_blob_chunks c using gone where c.blob_id = gone.id`)

/** Deletes a blob unless it is committed, which the caller may not have been notified of. */
export const deleteStagedBlob = (db: Queryable, id: string) =>
  db.query(voidStatement`
    with blob as (delete from file_blobs where id = ${id} and state = 'staging')
    delete from file_blob_chunks where blob_id = ${id}
      and not exists (select 1 from file_blobs where id = ${id} and state = 'committed')`)

/** Lists blobs that were staged before a time and never committed. Index file_blobs_staging. */
export const listAbandonedUploads = (db: Queryable, before: Date, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from file_blobs where state = 'staging' and created_at < ${before.toISOString()}::timestamptz
    order by created_at limit ${limit}`)

/**
 * Lists committed blobs without a file, left by deleted projects. Blob and file are committed in one transaction, so no
 * snapshot contains only one of them. Joins all blobs with files_location: for sweeps only.
 */
export const listOrphanedBlobs = (db: Queryable, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select b.id from file_blobs b
    where b.state = 'committed' and not exists (select 1 from files f where f.location = b.id::text)
    limit ${limit}`)

/** Deletes up to `limit` chunks of a blob; returns their number. */
export const deleteChunks = async (db: Queryable, id: string, limit: number): Promise<number> => {
  const { rowCount } = await db.query(voidStatement`
    delete from file_blob_chunks where blob_id = ${id} and seq in
      (select seq from file_blob_chunks where blob_id = ${id} limit ${limit})`)
  return rowCount
}

/** Whether a file references a location. Index files_location. */
export const isReferenced = (db: Queryable, { storage, location }: Location): Promise<boolean> =>
  db.exists(existsRow`select 1 from files where location = ${location} and storage = ${storage}`)

/** Lists external locations of a project's files in order of file ID, after the file `after`. */
export const listExternalLocations = (
  db: Queryable,
  projectId: string,
  after: string,
  limit: number,
): Promise<readonly (Location & { id: string })[]> =>
  db.any(locationRow`
    select id, storage, location from files
    where project_id = ${projectId} and storage in ('local', 's3') and id > ${after} order by id limit ${limit}`)
