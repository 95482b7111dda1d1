import { z } from 'zod'
import type { Space } from '#content/index/embeddings/space.ts'
import {
  type NewVector,
  refsWrittenSince,
  removeVectors,
  VECTOR_SOURCES,
  vectorInsert,
  vectorRemoval,
  vectorsOf,
} from '#content/index/vectors/store.ts'
import { indexText } from '#content/index/words/index-text.ts'
import { wordsLanguageExpr } from '#content/index/words/languages.ts'
import { inProject, kinds } from '#core/api/kind.ts'
import { countStatement, type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { ownerKeyOf } from '../reach.ts'
import { ACTOR_MEMORY_LIMIT, type MemoryStoreRow } from '../stores/model.ts'
import { currentCondition, type MemoryRow, memoryKind, ownerColumn } from './model.ts'

/** Vectors of a memory; none if embedding failed (`failed`), or if there is nothing to embed. */
export type EmbeddedMemory = { vectors: Float32Array[]; failed: boolean; space: Space | null }

/** Returns the embedding columns of a memory. */
const embeddingOf = ({ vectors, failed, space }: EmbeddedMemory): { embedded: boolean; space_id: number } => ({
  embedded: vectors.length > 0,
  space_id: failed ? 0 : (space?.id ?? 0),
})

/** Returns rows of knowledge_vectors for a memory. */
export const memoryVectorRows = (
  { id, project_id, memory_store_id, actor_id }: Pick<MemoryRow, 'id' | 'project_id' | 'memory_store_id' | 'actor_id'>,
  vectors: readonly Float32Array[],
  space: Space | null,
): NewVector[] =>
  space
    ? vectors.map((vector, segment) => ({
        project_id,
        source: VECTOR_SOURCES.memory,
        container_id: memory_store_id,
        owner_id: ownerKeyOf(actor_id),
        ref_id: id,
        segment,
        space_id: space.id,
        vector,
      }))
    : []

const memoryVectorRemoval = (id: string, except?: { space_id: number; segments: number }): Fragment =>
  vectorRemoval(VECTOR_SOURCES.memory, sql.fragment`${id}`, except)

/** Columns of a new memory. */
export type NewMemory = Pick<
  MemoryRow,
  | 'id'
  | 'project_id'
  | 'memory_store_id'
  | 'content'
  | 'hash'
  | 'source_type'
  | 'source_id'
  | 'actor_id'
  | 'tags'
  | 'metadata'
  | 'expires_at'
>

/**
 * Adds a new memory with search words, vectors and entry to the statement of an outbox, which also invalidates the memory that it
 * supersedes and the evicted memories of its end user; returns its row. The caller has locked the end user's part of the store and
 * read these memories.
 * @param options.at time of the transaction, which the row gets
 */
export function addMemory(
  outbox: Outbox,
  memory: NewMemory,
  embedded: EmbeddedMemory,
  options: {
    textSearchConfig: string
    at: string
    store_tags: Record<string, string>
    supersedes: string | null
    evicted: readonly string[]
  },
): MemoryRow {
  const { textSearchConfig, at, store_tags, supersedes, evicted } = options
  const { id, project_id, memory_store_id, content, hash, source_type, source_id, actor_id, tags, metadata } = memory
  const { embedded: isEmbedded, space_id } = embeddingOf(embedded)
  const vectors = memoryVectorRows(memory, embedded.vectors, embedded.space)
  if (vectors.length > 0) outbox.alongside(guard => vectorInsert(vectors, guard))
  if (supersedes) retire(outbox, [supersedes], id)
  if (evicted.length > 0) retire(outbox, evicted)
  outbox.alongside(
    guard => sql.fragment`
      insert into memories (id, project_id, memory_store_id, content, content_hash, source_type, source_id, actor_id, tags,
        metadata, expires_at, embedded, space_id, tsv, tsv_config)
      select ${id}, ${project_id}, ${memory_store_id}, ${content}, decode(${hash}, 'hex'), ${source_type}, ${source_id},
        ${actor_id}, ${jsonb(tags)}, ${metadata === null ? null : JSON.stringify(metadata)}::json,
        ${memory.expires_at}::timestamptz, ${isEmbedded}, ${space_id}::int,
        words_tsv(${indexText(content)}, words.language, words.fallback, ${project_id}), words.tag
      from (${wordsLanguageExpr(sql.fragment`null::text`, sql.fragment`${project_id}`, textSearchConfig)}) words
      where ${guard}`,
  )
  const expires_at = memory.expires_at === null ? null : new Date(memory.expires_at).toISOString()
  return {
    ...memory,
    expires_at,
    invalidated_at: expires_at !== null && expires_at <= at ? expires_at : null,
    embedded: isEmbedded,
    superseded_by_memory_id: null,
    created_at: at,
    updated_at: at,
    store_tags,
  }
}

/** Invalidates memories and deletes their words and vectors. */
function retire(outbox: Outbox, ids: readonly string[], successor: string | null = null): void {
  const retired = sql.fragment`any(${sql.array([...ids], 'text')})`
  outbox.alongside(
    guard => sql.fragment`
      update memories set invalidated_at = now(), superseded_by_memory_id = ${successor}, embedded = false, tsv = null,
        updated_at = now()
      where id = ${retired} and ${guard}`,
  )
  outbox.alongside(guard => sql.fragment`${vectorRemoval(VECTOR_SOURCES.memory, retired)} and ${guard}`)
}

/** Replaces the text of a locked memory, with search words and vectors. */
export function replaceMemoryContent(
  db: Queryable,
  { id, project_id, memory_store_id, actor_id }: MemoryRow,
  { content, hash }: Pick<MemoryRow, 'content' | 'hash'>,
  embedded: EmbeddedMemory,
  textSearchConfig: string,
): Promise<MemoryRow> {
  const { embedded: isEmbedded, space_id } = embeddingOf(embedded)
  const rows = memoryVectorRows({ id, project_id, memory_store_id, actor_id }, embedded.vectors, embedded.space)
  const vectors = rows.length > 0 ? sql.fragment`vectors as (${vectorInsert(rows)}),` : sql.fragment``
  const newVectors = { space_id, segments: rows.length }
  return db.one(memoryKind.sql`
    with ${vectors}
    dropped as (${memoryVectorRemoval(id, newVectors)}),
    words as (${wordsLanguageExpr(sql.fragment`null::text`, sql.fragment`${project_id}`, textSearchConfig)})
    update memories t set content = ${content}, content_hash = decode(${hash}, 'hex'), embedded = ${isEmbedded},
      space_id = ${space_id}::int, embed_failures = 0,
      tsv = words_tsv(${indexText(content)}, words.language, words.fallback, t.project_id), tsv_config = words.tag,
      updated_at = now()
    from words where t.id = ${id}
    returning ${memoryKind.columns}`)
}

/** Maximum number of memories that one write evicts; after a limit was lowered, the next writes evict more. */
export const MAX_EVICTED = 100

const StorePart = z.object({
  /** Time of the transaction. */
  at: z.string(),
  /** Whether the end user exists; true without one. */
  has_owner: z.boolean(),
  duplicate_threshold: z.number().nullable(),
  supersede_threshold: z.number().nullable(),
  current_store_tags: z.record(z.string(), z.string()),
})
const comparedRow = sql.type(
  z.union([
    memoryKind.row.extend({ ...StorePart.shape, vectors: z.array(z.string()).nullable(), is_compared: z.boolean() }),
    StorePart.extend({ id: z.null() }),
  ]),
)
export type Candidate = MemoryRow & { vectors: string[] | null }

/** What a fact is compared with. */
export type FactQuery = {
  store: Pick<MemoryStoreRow, 'id' | 'project_id'>
  /** End user of the fact; only facts of the same end user are compared. */
  actor_id: string | null
  hash: string
  /** Memory to replace, current or not. */
  supersedes: string | null
  /** IDs of memories that a search at `snapshot` found near. */
  near: readonly string[]
  snapshot: string
  space: Space | null
}

/** The store of a fact, the memories to compare it with, and those that a new memory may evict. */
export type FactComparison = {
  at: string
  has_owner: boolean
  store: Pick<MemoryStoreRow, 'id' | 'project_id' | 'duplicate_threshold' | 'supersede_threshold' | 'tags'>
  /** By ID. */
  candidates: Candidate[]
  /** Current memories of the end user from the limit on, newest first. */
  last: MemoryRow[]
}

/**
 * Reads the store of a fact, null if it does not exist, and the memories to compare the fact with: the one to replace, memories with
 * the same text (memories_hash), near memories, and memories written since the search. All but the one to replace are current. Also
 * reads the memories of the end user at and above the limit (memories_owner).
 */
export async function readComparison(db: Queryable, query: FactQuery): Promise<FactComparison | null> {
  const { store, actor_id, hash, supersedes, near, snapshot, space } = query
  const scope = space && { project: store.project_id, space, source: VECTOR_SOURCES.memory }
  const recent =
    scope && !supersedes ? sql.fragment`union ${refsWrittenSince(scope, store.id, snapshot)}` : sql.fragment``
  const ownCurrent = sql.fragment`
    t.memory_store_id = ${store.id} and ${ownerColumn(sql.fragment`t`)} = ${ownerKeyOf(actor_id)} and ${currentCondition}`
  const actors = kinds.get('actor')
  const owner =
    actor_id === null
      ? sql.fragment`true`
      : sql.fragment`exists (
          select from ${sql.identifier([actors.table])} t where t.id = ${actor_id} and ${inProject(actors, store.project_id)})`
  const last =
    actor_id === null
      ? sql.fragment``
      : sql.fragment`union all (
          select ${memoryKind.columns}, null::json as vectors, false as is_compared from memories t where ${ownCurrent}
          order by t.created_at desc, t.id desc
          offset coalesce(s.actor_memory_limit, ${ACTOR_MEMORY_LIMIT}) - 1 limit ${MAX_EVICTED + 1})`
  const rows = await db.any(comparedRow`
    select now()::timestamptz(3) as at, ${owner} as has_owner, s.duplicate_threshold, s.supersede_threshold, s.tags as current_store_tags, m.*
    from memory_stores s left join lateral (
      select ${memoryKind.columns}, ${space ? vectorsOf(VECTOR_SOURCES.memory, sql.fragment`t.id`, space.id) : sql.fragment`null::json`} as vectors,
        true as is_compared
      from memories t
      where t.id in (
        select unnest(${sql.array(supersedes ? [supersedes] : [...near], 'text')})
        union
        select m.id from memories m
        where m.memory_store_id = ${store.id} and m.content_hash = decode(${hash}, 'hex') and m.invalidated_at is null
          and ${ownerColumn(sql.fragment`m`)} = ${ownerKeyOf(actor_id)}
        ${recent}
      ) and t.project_id = ${store.project_id} and (t.id = ${supersedes} or (${ownCurrent}))
      ${last}
    ) m on true
    where s.id = ${store.id}
    order by m.created_at desc, m.id desc`)
  if (rows.length === 0) return null
  const [{ at, has_owner, duplicate_threshold, supersede_threshold, current_store_tags: tags }] = rows
  const memories = rows.filter(row => row.id !== null)
  return {
    at,
    has_owner,
    store: { ...store, duplicate_threshold, supersede_threshold, tags },
    candidates: memories.filter(({ is_compared }) => is_compared).sort((one, other) => (one.id < other.id ? -1 : 1)),
    last: memories.filter(({ is_compared }) => !is_compared),
  }
}

/**
 * Invalidates a memory without a replacement and deletes its words and vectors. The caller has locked and checked it.
 */
export const invalidateMemory = (db: Queryable, id: string): Promise<MemoryRow> =>
  db.one(memoryKind.sql`
    with dropped as (${memoryVectorRemoval(id)})
    update memories t set invalidated_at = now(), embedded = false, tsv = null, updated_at = now() where t.id = ${id}
    returning ${memoryKind.columns}`)

/**
 * Returns the current memory of a chain of replacements, or null if the last one is invalidated. Index: primary key.
 */
export const findCurrentMemory = (db: Queryable, id: string): Promise<MemoryRow | null> =>
  db.maybeOne(memoryKind.sql`
    with recursive replaced (id) as (
      select ${id}::text
      union select m.superseded_by_memory_id from memories m join replaced r on r.id = m.id
      where m.superseded_by_memory_id is not null)
    select ${memoryKind.columns} from memories t where t.id in (select id from replaced) and ${currentCondition}`)

/** Lists memories that match a condition, oldest first, after a position. Index memories_store. */
export const listMemoriesAfter = (
  db: Queryable,
  where: Fragment,
  after: Pick<MemoryRow, 'created_at' | 'id'> | null,
  limit: number,
): Promise<readonly MemoryRow[]> =>
  db.any(memoryKind.sql`
    select ${memoryKind.columns} from memories t
    where ${where} ${after === null ? sql.fragment`` : sql.fragment`and (t.created_at, t.id) > (${after.created_at}::timestamptz, ${after.id})`}
    order by t.created_at, t.id limit ${limit}`)

/** Invalidates up to `limit` expired memories of a locked store (lockStores); returns their number. */
export const invalidateExpired = (db: Queryable, storeId: string, limit: number): Promise<number> =>
  db.oneFirst(countStatement`
    with retired as (
      update memories set invalidated_at = expires_at, embedded = false, tsv = null, updated_at = now()
      where id in (
        select t.id from memories t
        where t.memory_store_id = ${storeId} and t.invalidated_at is null and t.expires_at <= now() limit ${limit}
      )
      returning id
    ),
    dropped as (${vectorRemoval(VECTOR_SOURCES.memory, sql.fragment`any(array(select id from retired))`)})
    select count(*) from retired`)

/** Lists stores with expired memories. Index memories_expiring. */
export const listStoresWithExpired = (db: Queryable, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select distinct e.memory_store_id as id from (
      select t.memory_store_id from memories t where t.invalidated_at is null and t.expires_at <= now()
      order by t.expires_at limit ${limit}
    ) e`)

const BareMemory = memoryKind.row.pick({
  id: true,
  project_id: true,
  memory_store_id: true,
  actor_id: true,
  content: true,
  hash: true,
})
export type BareMemory = z.output<typeof BareMemory>
export const unembeddedMemory = sql.type(BareMemory)
export const bareColumns = sql.fragment`t.id, t.project_id, t.memory_store_id, t.actor_id, t.content, encode(t.content_hash, 'hex') as hash`

/** Lists memories of other spaces and of none, not invalidated, after an ID. Index memories_space, once per space. */
export const listOtherSpaceMemories = (
  db: Queryable,
  space: Space,
  after: string,
  limit: number,
): Promise<readonly BareMemory[]> =>
  db.any(unembeddedMemory`
    select ${bareColumns} from (select s.id from embedding_spaces s where s.id <> ${space.id} union all select 0) o (id)
    cross join lateral (
      select * from memories t
      where t.space_id = o.id and t.invalidated_at is null and t.id > ${after}
      order by t.id limit ${limit}
    ) t
    order by t.id limit ${limit}`)

const ownerRow = sql.type(memoryKind.row.pick({ id: true, actor_id: true }))

/** Locks memories whose text is unchanged and returns their current owners; skips invalidated and locked ones. */
export const lockUnchanged = (
  db: Queryable,
  memories: readonly BareMemory[],
): Promise<readonly Pick<MemoryRow, 'id' | 'actor_id'>[]> =>
  db.any(ownerRow`
    select t.id, t.actor_id from memories t
    join ${sql.unnest(
      memories.map(({ id, hash }) => [id, hash]),
      ['text', 'text'],
    )} as m (id, hash) on m.id = t.id and decode(m.hash, 'hex') = t.content_hash
    where t.invalidated_at is null for update of t skip locked`)

/** Deletes the vectors of memories in all spaces. */
export const dropVectors = (db: Queryable, ids: readonly string[]): Promise<void> =>
  removeVectors(db, { source: VECTOR_SOURCES.memory, ref_ids: ids })

/** Attempts after which a text that the model refuses remains without vectors of the space. */
const MAX_FAILURES = 5

/** Records the outcomes of embedding locked memories for a space. */
export async function settleEmbedding(
  db: Queryable,
  space: Space,
  memories: readonly { id: string; embedded: boolean; failed: boolean }[],
): Promise<void> {
  const abandoned = sql.fragment`t.embed_failures + 1 >= ${MAX_FAILURES}`
  await db.query(voidStatement`
    update memories t set embedded = case when m.failed then t.embedded else m.embedded end,
      space_id = case when not m.failed or ${abandoned} then ${space.id} else t.space_id end,
      embed_failures = case when not m.failed or ${abandoned} then 0 else t.embed_failures + 1 end
    from ${sql.unnest(
      memories.map(({ id, embedded, failed }) => [id, embedded, failed]),
      ['text', 'bool', 'bool'],
    )} as m (id, embedded, failed)
    where t.id = m.id`)
}

/** Recomputes hashes and search words of locked memories; returns the number of changed ones. */
export const recomputeDerived = async (
  db: Queryable,
  memories: readonly Pick<BareMemory, 'id' | 'hash' | 'content'>[],
  textSearchConfig: string,
): Promise<number> =>
  (
    await db.query(voidStatement`
      update memories t set content_hash = m.content_hash, tsv = m.tsv, tsv_config = m.tag
      from (
        select t.id, decode(h.hash, 'hex') as content_hash,
          words_tsv(h.words, words.language, words.fallback, t.project_id) as tsv, words.tag
        from memories t
        join ${sql.unnest(
          memories.map(({ id, hash, content }) => [id, hash, indexText(content)]),
          ['text', 'text', 'text'],
        )} as h (id, hash, words) on h.id = t.id
        cross join lateral (
          ${wordsLanguageExpr(sql.fragment`null::text`, sql.fragment`t.project_id`, textSearchConfig)}
        ) words
      ) m
      where t.id = m.id and (t.content_hash <> m.content_hash or t.tsv is distinct from m.tsv or t.tsv_config <> m.tag)`)
  ).rowCount

/** Deletes memories and returns their last rows. */
export const deleteMemories = (db: Queryable, ids: readonly string[]): Promise<readonly MemoryRow[]> =>
  db.any(memoryKind.sql`
    delete from memories t where t.id = any(${sql.array([...ids], 'text')}) returning ${memoryKind.columns}`)
