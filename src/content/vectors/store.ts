import { z } from 'zod'
import { allOf, equalsAny, type Fragment, type Queryable, rawFragment, sql, voidStatement } from '../../core/db/sql.ts'
import { isZero } from '../embeddings/local.ts'
import { codeBits, codeOf } from './codes.ts'

/** What a vector belongs to, as knowledge_vectors.source. */
export const VECTOR_SOURCES = { document: 1, memory: 2 } as const
export type SourceNumber = (typeof VECTOR_SOURCES)[keyof typeof VECTOR_SOURCES]

export type NewVector = {
  project_id: string
  source: SourceNumber
  /** The document or the memory store. */
  container_id: string
  /** Whose it is within its container; default nobody's. */
  owner_id?: string
  /** The chunk or the memory. */
  ref_id: string
  /** Window of a text that is longer than one embedding takes, from 0. */
  segment: number
  space_id: number
  /** L2-normalized. */
  vector: Float32Array
}

/** Columns of a row of knowledge_vectors, for a condition on what a search may see. */
/** `owner` is '' for rows that are nobody's. */
export type VectorColumns = { ref: Fragment; container: Fragment; owner: Fragment }

const columns: VectorColumns = {
  ref: sql.fragment`v.ref_id`,
  container: sql.fragment`v.container_id`,
  owner: sql.fragment`v.owner_id`,
}

const bytesOf = (vector: Float32Array): string =>
  Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64')

/**
 * Writes vectors with their codes in one statement; a vector that is there already is replaced. A zero vector is near
 * nothing and not stored. The rows must differ in (source, ref_id, segment, space_id).
 */
export async function insertVectors(db: Queryable, rows: readonly NewVector[]): Promise<void> {
  if (rows.length > 0) await db.query(voidStatement`${vectorInsert(rows)}`)
}

/** The statement of `insertVectors`, where a condition holds. */
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

/** Gives rows to another owner within their container, where they count as written anew; by knowledge_vectors_ref. */
export const vectorsGivenTo = (owner: string, source: SourceNumber, refs: Fragment): Fragment => sql.fragment`
  update knowledge_vectors set owner_id = ${owner}, written_in = pg_current_xact_id() where source = ${source} and ref_id in (${refs})`

/** Removes the vectors of a container (knowledge_vectors_container) or of single rows (knowledge_vectors_ref). */
export async function removeVectors(
  db: Queryable,
  of: { container_id: string } | { source: SourceNumber; ref_ids: readonly string[] },
): Promise<void> {
  await db.query(
    'container_id' in of
      ? voidStatement`delete from knowledge_vectors where container_id = ${of.container_id}`
      : voidStatement`delete from knowledge_vectors where source = ${of.source} and ref_id = any(${sql.array([...of.ref_ids], 'text')})`,
  )
}

/** A statement that removes the vectors of rows; with `beside`, not those that replace them. By knowledge_vectors_ref. */
export const vectorRemoval = (
  source: SourceNumber,
  ref: Fragment,
  beside: { space_id: number; segments: number } | null = null,
): Fragment => sql.fragment`
  delete from knowledge_vectors where ref_id = ${ref} and source = ${source}
    ${beside && beside.segments > 0 ? sql.fragment`and (space_id <> ${beside.space_id} or segment >= ${beside.segments})` : sql.fragment``}`

/**
 * Whether a chunk or a memory has a vector of a space, by knowledge_vectors_ref. `offset 0` keeps it one lookup a row:
 * while statistics know nothing of a new space, the planner would compare each row with all vectors of the space (589 ms
 * for 256 chunks beside 60,000 vectors, 4 ms as lookups).
 */
export const hasVector = (source: SourceNumber, ref: Fragment, spaceId: number): Fragment => sql.fragment`
  exists (select from knowledge_vectors v
    where v.source = ${source} and v.ref_id = ${ref} and v.space_id = ${spaceId} offset 0)`

export type Scan = {
  /** Null: rows of every project, narrowed by `filter` alone. */
  projects: readonly string[] | null
  space: { id: number; dimensions: number }
  source: SourceNumber
  /** What of the projects the search may see; null sees all of it. */
  filter: ((columns: VectorColumns) => Fragment) | null
  /** `codeOf` the question. */
  code: string
  limit: number
}

/** Rows by the ids of their vectors, with their codes, one after the other. */
export type CodedRows = { ids: number[]; codes: Buffer }

/** The bytes of a code, without the number of its bits in front. */
const codeAsBytes = sql.fragment`substring(varbit_send(v.code) from 5)`

/** Rows of a query over knowledge_vectors `v` as one value: as thousands of rows they would cost the driver more than the database. */
const coded = sql.fragment`string_agg(v.id::text, ',') as ids, encode(string_agg(${codeAsBytes}, ''), 'base64') as codes`

const Parts = z.object({ ids: z.string().nullable(), codes: z.string().nullable() })
const parts = sql.type(Parts)

const codedOf = ({ ids, codes }: z.output<typeof Parts>): CodedRows => ({
  ids: ids?.split(',').map(Number) ?? [],
  codes: Buffer.from(codes ?? '', 'base64'),
})

/**
 * The vectors whose codes differ least from the question's, in no order, by an index-only scan of knowledge_vectors_scan and
 * the primary key. What is sorted is one number, the distance above 44 bits of id (a million rows a second for half a year):
 * a number is compared where it is, while of a row with its code the sort copies 300 bytes before it compares, for every row
 * of the project.
 */
export async function scanCodes(db: Queryable, scan: Scan): Promise<CodedRows> {
  return codedOf(
    await db.one(parts`
      with near as materialized (
        select (bit_count(v.code # ${scan.code}::bit varying) << 44) | v.id as place from knowledge_vectors v
        where ${within(scan)} order by 1 limit ${scan.limit}
      )
      select ${coded} from knowledge_vectors v
      where v.id = any(array(select place & ((1::bigint << 44) - 1) from near))`),
  )
}

/** All codes of one source in a project. */
export type CodeScope = { project: string; space: { id: number; dimensions: number }; source: SourceNumber }

/**
 * What a read of codes could see, and of which run of which server: the numbers of transactions mean nothing on another one,
 * and after a crash those that had written nothing lasting are given out again.
 */
const ScanSnapshot = z.object({ snapshot: z.string(), server: z.string() })
export type ScanSnapshot = z.output<typeof ScanSnapshot>

const state = sql.type(ScanSnapshot.extend({ count: z.int() }))
const code = sql.type(z.object({ id: z.int(), code: z.string() }))
const id = sql.type(z.object({ id: z.int() }))

/** A crash that the server recovers from by itself does not start it anew, but it starts its statistics anew. */
const serverRun = sql.fragment`concat(pg_postmaster_start_time(), ' ', pg_stat_get_bgwriter_stat_reset_time())`

const seen = sql.fragment`pg_current_snapshot()::text as snapshot, ${serverRun} as server`

const inScope = ({ project, space, source }: CodeScope): Fragment =>
  sql.fragment`v.project_id = ${project} and v.space_id = ${space.id} and v.source = ${source}`

/**
 * Opens a transaction's cursor over the codes of a scope, for `nextCodes`; every part is of the same moment. By an
 * index-only scan of knowledge_vectors_scan, or through the table where the scope is a large part of it.
 */
export async function openCodeCursor(db: Queryable, scope: CodeScope): Promise<ScanSnapshot & { count: number }> {
  await db.query(voidStatement`set transaction isolation level repeatable read, read only`)
  const opened = await db.one(state`
    select ${seen}, (select count(*) from knowledge_vectors v where ${inScope(scope)}) as count`)
  await db.query(voidStatement`
    declare codes no scroll cursor for
    select v.id, encode(${codeAsBytes}, 'base64') as code from knowledge_vectors v where ${inScope(scope)}`)
  return opened
}

/** Some thousand codes of the open cursor; none at its end. */
export async function fetchCodes(db: Queryable): Promise<CodedRows> {
  const rows = await db.any(code`fetch 1000 from codes`)
  return {
    ids: rows.map(row => row.id),
    codes: Buffer.concat(rows.map(row => Buffer.from(row.code, 'base64'))),
  }
}

/** Nearest first by the HNSW index of the space (pgvector.ts); fewer when the index gave up before it had found enough. */
export async function searchIndex(db: Queryable, scan: Scan): Promise<readonly number[]> {
  const bits = bitType(scan.space.dimensions)
  return db.anyFirst(id`
    select v.id from knowledge_vectors v where ${within(scan)}
    order by v.code::${bits} <~> ${scan.code}::${bits} limit ${scan.limit}`)
}

/** The type of codes; the length of a type is no parameter. */
export const bitType = (dimensions: number): Fragment => rawFragment(`bit(${codeBits(dimensions)})`)

const within = ({ projects, space, source, filter }: Scan): Fragment =>
  allOf([
    projects && equalsAny(sql.fragment`v.project_id`, projects),
    sql.fragment`v.space_id = ${space.id} and v.source = ${source}`,
    filter?.(columns),
  ])

const stored = sql.type(z.object({ ref_id: z.string(), container_id: z.string(), vec: z.string() }))

/** A row and one vector of it, in base64: 400 of 1,024 dimensions take 9 ms that way, 16 ms as the driver reads bytea. */
export type StoredVector = { ref_id: string; container_id: string; vec: string }

/** What a process knows of vectors: their ids, what wrote those that it keeps (`0` for others), and on which server. */
export type KnownVectors = { ids: readonly number[]; written_in: readonly string[]; server: string }

const NewVectorRow = z.object({
  id: z.int(),
  ref_id: z.string().nullable(),
  container_id: z.string().nullable(),
  written_in: z.string().nullable(),
  vec: z.string().nullable(),
  server: z.string(),
})
const newVector = sql.type(NewVectorRow)
/** A vector that is different from what the process knows of it. */
export type NewVectors = readonly z.output<typeof NewVectorRow>[]

/**
 * What is different from what a process knows of vectors: those it does not keep, or not as they are now; those that are gone,
 * without `ref_id`; those that the search may not see, without `vec`. Nothing of the others: to read 400 vectors of 1,024
 * dimensions took the database 7 ms, to find them unchanged takes 0.5. `offset 0` keeps it one lookup a vector. Numbers go as
 * one text: the driver takes an array apart.
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
  db.any(newVector`select v.*, (select ${serverRun}) as server from (${newVectors(known, filter)}) v`)

const news = sql.type(
  Parts.extend(ScanSnapshot.shape).extend({ ...NewVectorRow.omit({ server: true }).shape, id: z.int().nullable() }),
)

/**
 * What is new in a scope: the codes that transactions wrote which `snapshot` could not see, at most `limit`, and what is
 * different of the vectors that are candidates without them.
 *
 * New codes are of transactions that began later, and of those that were under way. Two ranges of knowledge_vectors_scan, so
 * that a transaction that stays open for hours does not make every read cover what others have written since (50,000 rows:
 * 15 ms, this way 0.05). Rows whose transactions have numbers that this server has not given yet were restored from another
 * one; they are not new.
 */
export async function readChangesSince(
  db: Queryable,
  scope: CodeScope,
  { snapshot, limit }: { snapshot: string; limit: number },
  known: KnownVectors,
  filter: Scan['filter'],
): Promise<{ codes: CodedRows; vectors: NewVectors } & ScanSnapshot> {
  const last = sql.fragment`${snapshot}::pg_snapshot`
  const rows = await db.many(news`
    select ${seen}, new.*, vectors.* from (
      select ${coded} from (
        select v.id, v.code from knowledge_vectors v
        where ${inScope(scope)} and v.written_in >= pg_snapshot_xmax(${last})
          and v.written_in < pg_snapshot_xmax(pg_current_snapshot())
        union all
        select v.id, v.code from knowledge_vectors v
        where ${inScope(scope)} and v.written_in = any(array(select pg_snapshot_xip(${last})))
        limit ${limit}
      ) v
    ) new left join (${newVectors(known, filter)}) vectors on true`)
  const [{ ids, codes, snapshot: now, server }] = rows
  const vectors = rows.filter((row): row is typeof row & { id: number } => row.id !== null)
  return { codes: codedOf({ ids, codes }), vectors, snapshot: now, server }
}

/**
 * The rows of a container that transactions wrote which a snapshot could not see; as in `readNews`. `offset 0` keeps it with
 * the few that are new: a plan that is made once for every container would read all vectors of the one at hand (100,000: 200 ms,
 * this way 0.1).
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

/** The vectors of a row, in the order of its windows, in base64; null for none. By knowledge_vectors_ref. */
export const vectorsOf = (source: SourceNumber, ref: Fragment, spaceId: number): Fragment => sql.fragment`
  (select json_agg(encode(v.vec, 'base64') order by v.segment) from knowledge_vectors v
    where v.ref_id = ${ref} and v.source = ${source} and v.space_id = ${spaceId})`

/** A vector as `encode(vec, 'base64')` gives it. */
export function decodeVector(text: string): Float32Array {
  const bytes = Buffer.from(text, 'base64')
  const vector = new Float32Array(bytes.length / Float32Array.BYTES_PER_ELEMENT)
  Buffer.from(vector.buffer).set(bytes)
  return vector
}

/** The vectors of single rows, by knowledge_vectors_ref. */
export const vectorsOfRefs = (
  db: Queryable,
  of: { source: SourceNumber; ref_ids: readonly string[]; space_id: number },
): Promise<readonly StoredVector[]> =>
  db.any(stored`
    select v.ref_id, v.container_id, encode(v.vec, 'base64') as vec from knowledge_vectors v
    where v.source = ${of.source} and v.ref_id = any(${sql.array([...of.ref_ids], 'text')}) and v.space_id = ${of.space_id}`)
