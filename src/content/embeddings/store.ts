import { z } from 'zod'
import { countStatement, type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
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

/** Ends waits for vectors that began before a time; returns the number of documents. */
export const expireWaits = async (db: Queryable, before: Date): Promise<number> =>
  (
    await db.query(voidStatement`
      update documents set embed_since = null where embed_since < ${before.toISOString()}::timestamptz`)
  ).rowCount

/** Locks documents in order of ID. Every change of chunks holds the lock of the document. */
export const lockDocuments = async (tx: Queryable, ids: readonly string[]): Promise<void> => {
  await tx.query(
    idStatement`select id from documents where id = any(${sql.array([...ids], 'text')}) order by id for update`,
  )
}

/**
 * Moves documents to a space, and deletes their vectors of other spaces unless a chunk failed. Documents with chunks
 * that were not processed, because they changed concurrently, are unchanged. The caller holds the locks.
 * @param skipped chunks that failed or have nothing to embed
 */
export async function markEmbedded(
  tx: Queryable,
  space: Space,
  documents: readonly { id: string; failed: boolean }[],
  skipped: readonly string[],
  now: Date,
): Promise<void> {
  await tx.query(voidStatement`
    with settled as (
      update documents d set space_id = ${space.id},
        embedded_chunks = (select count(distinct v.ref_id) from knowledge_vectors v
          where v.container_id = d.id and v.source = ${VECTOR_SOURCES.document} and v.space_id = ${space.id}),
        embed_since = case when f.failed then coalesce(d.embed_since, ${now.toISOString()}::timestamptz) end
      from ${sql.unnest(
        documents.map(({ id, failed }) => [id, failed]),
        ['text', 'bool'],
      )} as f (id, failed)
      where d.id = f.id and not exists (
        select from document_chunks c
        where c.document_id = d.id and c.id <> all(${sql.array([...skipped], 'text')})
          and not ${hasVector(VECTOR_SOURCES.document, sql.fragment`c.id`, space.id)})
      returning d.id, f.failed
    )
    delete from knowledge_vectors v using settled s
    where v.container_id = s.id and v.source = ${VECTOR_SOURCES.document} and v.space_id <> ${space.id} and not s.failed`)
}
