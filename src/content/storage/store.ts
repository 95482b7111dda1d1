import { z } from 'zod'
import { type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { Location, StagedBytes } from './backend.ts'

const id = sql.type(z.object({ id: z.string() }))
const facts = sql.type(z.object({ size: z.int(), chunk_bytes: z.int() }))
const slice = sql.type(z.object({ bytes: z.string() }))
const one = sql.type(z.object({ '?column?': z.int() }))
const outside = sql.type(z.object({ id: z.string(), storage: z.enum(['local', 's3']), location: z.string() }))

/**
 * Makes the commit of a statement wait for no disk. A blob that is lost with the server was never named: the commit of the
 * row that names it does wait, and what was written before is on the disk with it.
 */
const unhurried = sql.fragment`set_config('synchronous_commit', 'off', true)`

/** Starts a blob, with its first chunk when there is one. */
export const insertBlob = (db: Queryable, id: string, first: Buffer | null) =>
  first === null
    ? db.query(voidStatement`insert into file_blobs (id) values (${id})`)
    : db.query(voidStatement`
        with blob as (insert into file_blobs (id) values (${id}))
        insert into file_blob_chunks (blob_id, seq, bytes) select ${id}::uuid, 0, ${sql.binary(first)} from ${unhurried}`)

/** Adds a chunk to a blob that is being staged; false when the blob is gone. */
export const insertChunk = async (db: Queryable, id: string, seq: number, chunk: Buffer): Promise<boolean> => {
  const { rowCount } = await db.query(voidStatement`
    insert into file_blob_chunks (blob_id, seq, bytes)
    select b.id, ${seq}::integer, ${sql.binary(chunk)} from file_blobs b, ${unhurried} where b.id = ${id}`)
  return rowCount === 1
}

/** Writes blobs of one chunk each, committed from the start. */
export const insertBlobs = (db: Queryable, blobs: readonly (StagedBytes & { held: Buffer })[]) =>
  db.query(voidStatement`
    with blob as (
      select * from ${sql.unnest(
        blobs.map(({ location, size, sha256, held }) => [location, size, sha256, held]),
        ['uuid', 'int8', 'bytea', 'bytea'],
      )} as b (id, size, sha256, bytes)
    ), named as (
      insert into file_blobs (id, state, size, sha256) select id, 'committed', size, sha256 from blob
    )
    insert into file_blob_chunks (blob_id, seq, bytes) select id, 0, bytes from blob where size > 0`)

/**
 * Commits staged blobs; false when one was swept meanwhile, or lost chunks with a server that crashed while it was staged.
 * Lengths are counted without reading the bytes.
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

/** A committed blob: its size, and the length of all chunks but the last. Reads no bytes. */
export const blobFacts = (db: Queryable, id: string): Promise<{ size: number; chunk_bytes: number } | null> =>
  db.maybeOne(facts`
    select b.size, coalesce(octet_length(c.bytes), 0) as chunk_bytes
    from file_blobs b left join file_blob_chunks c on c.blob_id = b.id and c.seq = 0
    where b.id = ${id} and b.state = 'committed'`)

/** Of so many bytes the base64 text is no large object yet, which the young generation of the heap would not hold. */
const SLICE_BYTES = 48 * 1024

/**
 * One chunk of a blob in slices, by its primary key; none when it is gone. The driver reads bytes as hex text; base64 is
 * a third less to hold.
 */
export const blobChunk = async (db: Queryable, id: string, seq: number): Promise<Buffer[]> => {
  const rows = await db.any(slice`
    select encode(substring(c.bytes from s.start + 1 for ${SLICE_BYTES}), 'base64') as bytes
    from file_blob_chunks c, generate_series(0, octet_length(c.bytes) - 1, ${SLICE_BYTES}) as s (start)
    where c.blob_id = ${id} and c.seq = ${seq} order by s.start`)
  return rows.map(row => Buffer.from(row.bytes, 'base64'))
}

export const deleteBlob = (db: Queryable, id: string) =>
  db.query(voidStatement`
    with blob as (delete from file_blobs where id = ${id})
    delete from file_blob_chunks where blob_id = ${id}`)

/** The same for many; by the primary keys. */
export const deleteBlobs = (db: Queryable, ids: readonly string[]) =>
  db.query(voidStatement`
    with gone as (select unnest(${sql.array([...ids], 'uuid')}) as id),
      blobs as (delete from file_blobs b using gone where b.id = gone.id)
    delete from file_blob_chunks c using gone where c.blob_id = gone.id`)

/** Drops a blob that was not committed; one that was stays, whatever the caller has heard of its commit. */
export const deleteStagedBlob = (db: Queryable, id: string) =>
  db.query(voidStatement`
    with blob as (delete from file_blobs where id = ${id} and state = 'staging')
    delete from file_blob_chunks where blob_id = ${id}
      and not exists (select 1 from file_blobs where id = ${id} and state = 'committed')`)

/** Blobs that nothing will ever name: staged before a time, by file_blobs_staging. */
export const listAbandonedUploads = (db: Queryable, before: Date, limit: number): Promise<readonly string[]> =>
  db.anyFirst(id`
    select id from file_blobs where state = 'staging' and created_at < ${before.toISOString()}::timestamptz
    order by created_at limit ${limit}`)

/**
 * Committed blobs without a file: those of deleted projects. Blob and file are committed in one transaction, so a
 * snapshot never has the one without the other. Joins all blobs with files_location: for a sweep.
 */
export const listOrphanedBlobs = (db: Queryable, limit: number): Promise<readonly string[]> =>
  db.anyFirst(id`
    select b.id from file_blobs b
    where b.state = 'committed' and not exists (select 1 from files f where f.location = b.id::text)
    limit ${limit}`)

/** Deletes some chunks of a blob; returns how many went. */
export const deleteChunks = async (db: Queryable, id: string, limit: number): Promise<number> => {
  const { rowCount } = await db.query(voidStatement`
    delete from file_blob_chunks where blob_id = ${id} and seq in
      (select seq from file_blob_chunks where blob_id = ${id} limit ${limit})`)
  return rowCount
}

/** Whether a file has its bytes at a location, by files_location. */
export const isReferenced = (db: Queryable, { storage, location }: Location): Promise<boolean> =>
  db.exists(one`select 1 from files where location = ${location} and storage = ${storage}`)

/** Up to `limit` locations of a project outside of the database, behind a file's id; for the delete of the project. */
export const listExternalLocations = (
  db: Queryable,
  projectId: string,
  after: string,
  limit: number,
): Promise<readonly (Location & { id: string })[]> =>
  db.any(outside`
    select id, storage, location from files
    where project_id = ${projectId} and storage in ('local', 's3') and id > ${after} order by id limit ${limit}`)
