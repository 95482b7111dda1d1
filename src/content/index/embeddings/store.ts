import { z } from 'zod'
import { countStatement, type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { hasVector, VECTOR_SOURCES } from '../vectors/store.ts'
import type { Space } from './space.ts'

const retrievalSettings = z.object({ space_id: z.int().nullable(), text_search_config: z.string() })
const settingsRow = sql.type(retrievalSettings)

/** Embedding space and text search configuration that documents are indexed with. */
export type RetrievalSettings = z.output<typeof retrievalSettings>

/** Stores the active settings; without a space, the stored one remains. */
export const setActiveSettings = async (
  db: Queryable,
  { space_id, text_search_config }: RetrievalSettings,
): Promise<void> => {
  await db.query(voidStatement`
    insert into retrieval_settings (space_id, text_search_config) values (${space_id}, ${text_search_config})
    on conflict (singleton) do update set space_id = coalesce(excluded.space_id, retrieval_settings.space_id),
      text_search_config = excluded.text_search_config`)
}

/** Returns the active settings; null before the first worker has started. */
export const findActiveSettings = (db: Queryable): Promise<RetrievalSettings | null> =>
  db.maybeOne(settingsRow`select space_id, text_search_config from retrieval_settings`)

const Owner = z.object({ id: z.string(), project_id: z.string() })
export type Owner = z.output<typeof Owner>

const ownerRow = sql.type(Owner)
const waitingRow = sql.type(Owner.extend({ embed_since: z.string() }))

/** Counts documents of other spaces that match a condition over the alias `t`. Index documents_space. */
export const countOtherSpaceDocuments = (db: Queryable, space: Space, visible: Fragment): Promise<number> =>
  db.oneFirst(countStatement`
    select count(*) from documents t
    where t.chunk_count > 0 and (t.space_id < ${space.id} or t.space_id > ${space.id}) and ${visible}`)

/**
 * Lists documents of other spaces and of none, newest first, below an ID, except documents that already wait for
 * vectors. Index documents_space, once per space.
 */
export const listOtherSpaceDocuments = (
  db: Queryable,
  space: Space,
  below: string | null,
  limit: number,
): Promise<readonly Owner[]> =>
  db.any(ownerRow`
    select d.id, d.project_id
    from (select s.id from embedding_spaces s where s.id <> ${space.id} union all select 0) o (id)
    cross join lateral (
      select t.id, t.project_id from documents t
      where t.space_id = o.id and t.chunk_count > 0 and t.embed_since is null
        ${below === null ? sql.fragment`` : sql.fragment`and t.id < ${below}`}
      order by t.id desc limit ${limit}
    ) d
    order by d.id desc limit ${limit}`)

/** Lists documents that wait for vectors, longest wait first, after a position. Index documents_embed_since. */
export const listWaitingDocuments = (
  db: Queryable,
  after: { embed_since: string; id: string } | null,
  limit: number,
): Promise<readonly (Owner & { embed_since: string })[]> =>
  db.any(waitingRow`
    select t.id, t.project_id, t.embed_since from documents t
    where t.embed_since is not null
      ${after === null ? sql.fragment`` : sql.fragment`and (t.embed_since, t.id) > (${after.embed_since}::timestamptz, ${after.id})`}
    order by t.embed_since, t.id limit ${limit}`)

const PartialDocuments = z.object({ project_id: z.string(), documents: z.int(), document_id: z.string() })
const partialRow = sql.type(PartialDocuments)
/** Number of documents of a project that became partial, and one of them. */
export type PartialDocuments = z.output<typeof PartialDocuments>

/** Ends waits for vectors that began before a time: the documents are partial. */
export const expireWaits = (db: Queryable, before: Date): Promise<readonly PartialDocuments[]> =>
  db.any(partialRow`
    with expired as (
      update documents set embed_since = null, embedding = 'partial'
      where embed_since < ${before.toISOString()}::timestamptz returning id, project_id)
    select project_id, count(*)::int as documents, max(id) as document_id from expired group by project_id`)

/** Returns the projects among some that have no partial document. Index documents_embedding. */
export const listWhole = (db: Queryable, projectIds: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select p.id from unnest(${sql.array([...projectIds], 'text')}) p (id)
    where not exists (select from documents d where d.project_id = p.id and d.embedding is not null)`)

const PartialChange = z.object({ id: z.string(), project_id: z.string(), is_partial: z.boolean() })
const changedRow = sql.type(PartialChange)
/** A document that became partial, or is no longer. */
export type PartialChange = z.output<typeof PartialChange>

/** Locks documents in order of ID. Every change of chunks holds the lock of the document. */
export const lockDocuments = async (tx: Queryable, ids: readonly string[]): Promise<void> => {
  await tx.query(
    idStatement`select id from documents where id = any(${sql.array([...ids], 'text')}) order by id for update`,
  )
}

/**
 * Moves documents to a space, and deletes their vectors of other spaces unless a chunk failed. Documents with chunks
 * that were not processed, because they changed concurrently, are unchanged. Returns the documents that became partial, or
 * are no longer. The caller holds the locks.
 * @param skipped chunks that failed or have nothing to embed
 */
export async function markEmbedded(
  tx: Queryable,
  space: Space,
  documents: readonly { id: string; failed: boolean; refused: boolean }[],
  skipped: readonly string[],
  now: Date,
): Promise<readonly PartialChange[]> {
  return tx.any(changedRow`
    with settled as (
      update documents d set space_id = ${space.id},
        embedded_chunks = (select count(distinct v.ref_id) from knowledge_vectors v
          where v.container_id = d.id and v.source = ${VECTOR_SOURCES.document} and v.space_id = ${space.id}),
        embed_since = case when f.failed then coalesce(d.embed_since, ${now.toISOString()}::timestamptz) end,
        embedding = case when f.refused then 'partial' end
      from ${sql.unnest(
        documents.map(({ id, failed, refused }) => [id, failed, refused]),
        ['text', 'bool', 'bool'],
      )} as f (id, failed, refused) join documents b on b.id = f.id
      where d.id = f.id and not exists (
        select from document_chunks c
        where c.document_id = d.id and c.id <> all(${sql.array([...skipped], 'text')})
          and not ${hasVector(VECTOR_SOURCES.document, sql.fragment`c.id`, space.id)})
      returning d.id, d.project_id, f.failed or f.refused as failed, d.embedding, b.embedding as before
    ), removed as (
      delete from knowledge_vectors v using settled s
      where v.container_id = s.id and v.source = ${VECTOR_SOURCES.document} and v.space_id <> ${space.id} and not s.failed)
    select id, project_id, embedding is not null as is_partial from settled where embedding is distinct from before`)
}
