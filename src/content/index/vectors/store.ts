import { z } from 'zod'
import { allOf, equalsAny, type Fragment, type Queryable, rawFragment, sql, voidStatement } from '#core/db/sql.ts'
import { isZero } from '../embeddings/local.ts'
import { codeBits, codeOf } from './codes.ts'

/** Sources of vectors, as in knowledge_vectors.source. */
export const VECTOR_SOURCES = { document: 1, memory: 2 } as const
export type SourceNumber = (typeof VECTOR_SOURCES)[keyof typeof VECTOR_SOURCES]

export type NewVector = {
  project_id: string
  source: SourceNumber
  /** Document or memory store. */
  container_id: string
  /** Owner within the container. Default ''. */
  owner_id?: string
  /** Chunk or memory. */
  ref_id: string
  /** Index of the embedding window, from 0. */
  segment: number
  space_id: number
  /** L2-normalized. */
  vector: Float32Array
}

/** Columns of knowledge_vectors for conditions on visible rows; `owner` is '' for rows without an owner. */
export type VectorColumns = { ref: Fragment; container: Fragment; owner: Fragment }

const columns: VectorColumns = {
  ref: sql.fragment`v.ref_id`,
  container: sql.fragment`v.container_id`,
  owner: sql.fragment`v.owner_id`,
}

const bytesOf = (vector: Float32Array): string =>
  Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64')

/**
 * Inserts or replaces vectors with their codes in one statement. Zero vectors, which match nothing, are not stored.
 * Rows must be unique by (source, ref_id, segment, space_id).
 */
export async function insertVectors(db: Queryable, rows: readonly NewVector[]): Promise<void> {
  if (rows.length > 0) await db.query(voidStatement`${vectorInsert(rows)}`)
}

/** Statement of `insertVectors` with a condition. */
export function vectorInsert(rows: readonly NewVector[], guard: Fragment = sql.fragment`true`): Fragment {
  const stored = rows.filter(row => !isZero(row.vector))
  const column = <T>(value: (row: NewVector) => T) => stored.map(value)
  return sql.fragment`
    insert into knowledge_vectors (project_id, source, container_id, owner_id, ref_id, segment, space_id, code, vec)
    select t.project_id, t.source, t.container_id, t.owner_id, t.ref_id, t.segment, t.space_id, t.code::bit varying, decode(t.vec, 'base64')
    from unnest(${sql.array(
      column(row => row.project_id),
      'text',
    )}, ${sql.array(
      column(row => row.source),
      'int2',
    )}, ${sql.array(
      column(row => row.container_id),
      'text',
    )}, ${sql.array(
      column(row => row.owner_id ?? ''),
      'text',
    )}, ${sql.array(
      column(row => row.ref_id),
      'text',
    )}, ${sql.array(
      column(row => row.segment),
      'int4',
    )}, ${sql.array(
      column(row => row.space_id),
      'int4',
    )}, ${sql.array(
      column(row => codeOf(row.vector)),
      'text',
    )}, ${sql.array(
      column(row => bytesOf(row.vector)),
      'text',
    )}) as t (project_id, source, container_id, owner_id, ref_id, segment, space_id, code, vec)
    where ${guard}
    on conflict (source, ref_id, segment, space_id)
    do update set project_id = excluded.project_id, container_id = excluded.container_id, owner_id = excluded.owner_id,
      code = excluded.code,
      vec = excluded.vec, written_in = excluded.written_in`
}

/**
 * Statement that changes the owner of rows within their container and marks them as rewritten. Index
 * knowledge_vectors_ref.
 */
export const vectorOwnerUpdate = (owner: string, source: SourceNumber, refs: Fragment): Fragment => sql.fragment`
  update knowledge_vectors set owner_id = ${owner}, written_in = pg_current_xact_id() where source = ${source} and ref_id in (${refs})`

/** Deletes the vectors of a container (index knowledge_vectors_container) or of rows (index knowledge_vectors_ref). */
export async function removeVectors(
  db: Queryable,
  target: { container_id: string } | { source: SourceNumber; ref_ids: readonly string[] },
): Promise<void> {
  await db.query(
    'container_id' in target
      ? voidStatement`delete from knowledge_vectors where container_id = ${target.container_id}`
      : voidStatement`delete from knowledge_vectors where source = ${target.source} and ref_id = any(${sql.array([...target.ref_ids], 'text')})`,
  )
}

/** Statement that deletes the vectors of a row, except the segments that replace them. Index knowledge_vectors_ref. */
export const vectorRemoval = (
  source: SourceNumber,
  ref: Fragment,
  except: { space_id: number; segments: number } | null = null,
): Fragment => sql.fragment`
  delete from knowledge_vectors where ref_id = ${ref} and source = ${source}
    ${except && except.segments > 0 ? sql.fragment`and (space_id <> ${except.space_id} or segment >= ${except.segments})` : sql.fragment``}`

/**
 * Condition that a chunk or a memory has a vector of a space. Index knowledge_vectors_ref. `offset 0` forces one lookup
 * per row: without statistics for a new space, the planner would compare each row with all vectors of the space (589 ms
 * for 256 chunks and 60,000 vectors, 4 ms as lookups).
 */
export const hasVector = (source: SourceNumber, ref: Fragment, spaceId: number): Fragment => sql.fragment`
  exists (select from knowledge_vectors v
    where v.source = ${source} and v.ref_id = ${ref} and v.space_id = ${spaceId} offset 0)`

export type Scan = {
  /** Null for all projects, restricted by `filter`. */
  projects: readonly string[] | null
  space: { id: number; dimensions: number }
  source: SourceNumber
  /** Condition on visible rows; null for all rows of the projects. */
  filter: ((columns: VectorColumns) => Fragment) | null
  /** Code of the query vector (`codeOf`). */
  code: string
  limit: number
}

/** IDs of vectors and their consecutive codes. */
export type CodedRows = { ids: number[]; codes: Buffer }

/** Bytes of a code, without the leading bit count. */
const codeAsBytes = sql.fragment`substring(varbit_send(v.code) from 5)`

/** Aggregates rows of knowledge_vectors `v`: parsing thousands of rows would cost the driver more than the database. */
const codedColumns = sql.fragment`string_agg(v.id::text, ',') as ids, encode(string_agg(${codeAsBytes}, ''), 'base64') as codes`

const CodedColumns = z.object({ ids: z.string().nullable(), codes: z.string().nullable() })
const codedRow = sql.type(CodedColumns)

const parseCoded = ({ ids, codes }: z.output<typeof CodedColumns>): CodedRows => ({
  ids: ids?.split(',').map(Number) ?? [],
  codes: Buffer.from(codes ?? '', 'base64'),
})

/**
 * Returns the vectors whose codes differ least from the query's, unordered, by an index-only scan of
 * knowledge_vectors_scan and the primary key. Sorts a single number, the distance in the bits above a 44-bit ID (a
 * million rows per second for half a year): sorting rows with their codes would copy 300 bytes for every row of the
 * project.
 */
export async function scanCodes(db: Queryable, scan: Scan): Promise<CodedRows> {
  return parseCoded(
    await db.one(codedRow`
      with near as materialized (
        select (bit_count(v.code # ${scan.code}::bit varying) << 44) | v.id as place from knowledge_vectors v
        where ${scanCondition(scan)} order by 1 limit ${scan.limit}
      )
      select ${codedColumns} from knowledge_vectors v
      where v.id = any(array(select place & ((1::bigint << 44) - 1) from near))`),
  )
}

/** All codes of a source in a project. */
export type CodeScope = { project: string; space: { id: number; dimensions: number }; source: SourceNumber }

/**
 * Snapshot of a read of codes, and the server run. Transaction IDs are not comparable across servers, and after a
 * crash, IDs of transactions that had persisted nothing are reused.
 */
const ScanSnapshot = z.object({ snapshot: z.string(), server: z.string() })
export type ScanSnapshot = z.output<typeof ScanSnapshot>

const cursorRow = sql.type(ScanSnapshot.extend({ count: z.int() }))
const codeRow = sql.type(z.object({ id: z.int(), code: z.string() }))
const idRow = sql.type(z.object({ id: z.int() }))

/** Identifies a run of the server. Crash recovery keeps the start time, but resets the statistics. */
const serverRun = sql.fragment`concat(pg_postmaster_start_time(), ' ', pg_stat_get_bgwriter_stat_reset_time())`

const snapshotColumns = sql.fragment`pg_current_snapshot()::text as snapshot, ${serverRun} as server`

const inScope = ({ project, space, source }: CodeScope): Fragment =>
  sql.fragment`v.project_id = ${project} and v.space_id = ${space.id} and v.source = ${source}`

/**
 * Opens a cursor over the codes of a scope in the transaction, for `fetchCodes`; all parts belong to one snapshot.
 * Index-only scan of knowledge_vectors_scan, or a table scan if the scope is a large part of the table.
 */
export async function openCodeCursor(db: Queryable, scope: CodeScope): Promise<ScanSnapshot & { count: number }> {
  await db.query(voidStatement`set transaction isolation level repeatable read, read only`)
  const opened = await db.one(cursorRow`
    select ${snapshotColumns}, (select count(*) from knowledge_vectors v where ${inScope(scope)}) as count`)
  await db.query(voidStatement`
    declare codes no scroll cursor for
    select v.id, encode(${codeAsBytes}, 'base64') as code from knowledge_vectors v where ${inScope(scope)}`)
  return opened
}

/** Fetches the next thousand codes of the cursor; none at its end. */
export async function fetchCodes(db: Queryable): Promise<CodedRows> {
  const rows = await db.any(codeRow`fetch 1000 from codes`)
  return {
    ids: rows.map(row => row.id),
    codes: Buffer.concat(rows.map(row => Buffer.from(row.code, 'base64'))),
  }
}

/** Returns IDs, nearest first, by the HNSW index of the space (pgvector.ts); may return fewer than `limit`. */
export async function searchIndex(db: Queryable, scan: Scan): Promise<readonly number[]> {
  const bits = bitType(scan.space.dimensions)
  return db.anyFirst(idRow`
    select v.id from knowledge_vectors v where ${scanCondition(scan)}
    order by v.code::${bits} <~> ${scan.code}::${bits} limit ${scan.limit}`)
}

/** SQL type of codes; a type length cannot be a parameter. */
export const bitType = (dimensions: number): Fragment => rawFragment(`bit(${codeBits(dimensions)})`)

const scanCondition = ({ projects, space, source, filter }: Scan): Fragment =>
  allOf([
    projects && equalsAny(sql.fragment`v.project_id`, projects),
    sql.fragment`v.space_id = ${space.id} and v.source = ${source}`,
    filter?.(columns),
  ])

const storedVectorRow = sql.type(z.object({ ref_id: z.string(), container_id: z.string(), vec: z.string() }))

/** A row with a vector in base64: 400 vectors of 1,024 dimensions take 9 ms to read, 16 ms as bytea. */
export type StoredVector = { ref_id: string; container_id: string; vec: string }

/** Vectors with the writing transactions of cached ones (`0` for others), and the server run. */
export type KnownVectors = { ids: readonly number[]; written_in: readonly string[]; server: string }

const NewVectorRow = z.object({
  id: z.int(),
  ref_id: z.string().nullable(),
  container_id: z.string().nullable(),
  written_in: z.string().nullable(),
  vec: z.string().nullable(),
  server: z.string(),
})
const newVectorRow = sql.type(NewVectorRow)
/** Vectors that differ from their cached state. */
export type NewVectors = readonly z.output<typeof NewVectorRow>[]

/**
 * Query for vectors that differ from their cached state: uncached and rewritten ones; deleted ones without `ref_id`;
 * hidden ones without `vec`. Reading 400 vectors of 1,024 dimensions took the database 7 ms, finding them unchanged
 * takes 0.5 ms. `offset 0` forces one lookup per vector. Numbers are passed as one text, because the driver serializes
 * arrays slowly.
 */
const newVectors = ({ ids, written_in, server }: KnownVectors, filter: Scan['filter']): Fragment => sql.fragment`
  select k.id, v.ref_id, v.container_id, v.written_in::text, case when v.visible then encode(v.vec, 'base64') end as vec
  from unnest(string_to_array(${ids.join()}, ',')::int8[], string_to_array(${written_in.join()}, ',')::xid8[]) k (id, written_in)
  left join lateral (
    select v.ref_id, v.container_id, v.written_in, v.vec, ${filter?.(columns) ?? sql.fragment`true`} as visible
    from knowledge_vectors v where v.id = k.id offset 0
  ) v on true
  where v.ref_id is null or v.visible is not true or v.written_in <> k.written_in or (select ${serverRun}) <> ${server}`

export const readNewVectors = (db: Queryable, known: KnownVectors, filter: Scan['filter']): Promise<NewVectors> =>
  db.any(newVectorRow`select v.*, (select ${serverRun}) as server from (${newVectors(known, filter)}) v`)

const changesRow = sql.type(
  CodedColumns.extend(ScanSnapshot.shape).extend({
    ...NewVectorRow.omit({ server: true }).shape,
    id: z.int().nullable(),
  }),
)

/**
 * Returns up to `limit` codes in a scope written by transactions that `snapshot` did not see, and changes of the
 * `known` vectors.
 *
 * These transactions started later or were active at the snapshot: two ranges of knowledge_vectors_scan, so that a
 * transaction open for hours does not extend every read to all later writes (15 ms for 50,000 rows, 0.05 ms this way).
 * Rows with transaction IDs in the future of this server were restored from another one and are not new.
 */
export async function readChangesSince(
  db: Queryable,
  scope: CodeScope,
  { snapshot, limit }: { snapshot: string; limit: number },
  known: KnownVectors,
  filter: Scan['filter'],
): Promise<{ codes: CodedRows; vectors: NewVectors } & ScanSnapshot> {
  const since = sql.fragment`${snapshot}::pg_snapshot`
  const rows = await db.many(changesRow`
    select ${snapshotColumns}, new.*, vectors.* from (
      select ${codedColumns} from (
        select v.id, v.code from knowledge_vectors v
        where ${inScope(scope)} and v.written_in >= pg_snapshot_xmax(${since})
          and v.written_in < pg_snapshot_xmax(pg_current_snapshot())
        union all
        select v.id, v.code from knowledge_vectors v
        where ${inScope(scope)} and v.written_in = any(array(select pg_snapshot_xip(${since})))
        limit ${limit}
      ) v
    ) new left join (${newVectors(known, filter)}) vectors on true`)
  const [{ ids, codes, snapshot: now, server }] = rows
  const vectors = rows.filter((row): row is typeof row & { id: number } => row.id !== null)
  return { codes: parseCoded({ ids, codes }), vectors, snapshot: now, server }
}

/**
 * Query for rows of a container written by transactions that a snapshot did not see, as in `readChangesSince`. `offset
 * 0` prevents a generic plan from reading all vectors of the container (200 ms for 100,000 vectors, 0.1 ms this way).
 */
export const refsWrittenSince = (scope: CodeScope, container: string, snapshot: string): Fragment => {
  const since = sql.fragment`${snapshot}::pg_snapshot`
  return sql.fragment`
    select v.ref_id from (
      select v.ref_id, v.container_id from knowledge_vectors v
      where ${inScope(scope)} and v.written_in >= pg_snapshot_xmax(${since})
        and v.written_in < pg_snapshot_xmax(pg_current_snapshot())
      union all
      select v.ref_id, v.container_id from knowledge_vectors v
      where ${inScope(scope)} and v.written_in = any(array(select pg_snapshot_xip(${since})))
      offset 0
    ) v where v.container_id = ${container}`
}

/** Expression for the vectors of a row by segment, in base64; null for none. Index knowledge_vectors_ref. */
export const vectorsOf = (source: SourceNumber, ref: Fragment, spaceId: number): Fragment => sql.fragment`
  (select json_agg(encode(v.vec, 'base64') order by v.segment) from knowledge_vectors v
    where v.ref_id = ${ref} and v.source = ${source} and v.space_id = ${spaceId})`

/** Decodes a vector from base64. */
export function decodeVector(text: string): Float32Array {
  const bytes = Buffer.from(text, 'base64')
  const vector = new Float32Array(bytes.length / Float32Array.BYTES_PER_ELEMENT)
  Buffer.from(vector.buffer).set(bytes)
  return vector
}

/** Lists the vectors of rows. Index knowledge_vectors_ref. */
export const vectorsOfRefs = (
  db: Queryable,
  target: { source: SourceNumber; ref_ids: readonly string[]; space_id: number },
): Promise<readonly StoredVector[]> =>
  db.any(storedVectorRow`
    select v.ref_id, v.container_id, encode(v.vec, 'base64') as vec from knowledge_vectors v
    where v.source = ${target.source} and v.ref_id = any(${sql.array([...target.ref_ids], 'text')}) and v.space_id = ${target.space_id}`)
