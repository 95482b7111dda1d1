import { z } from 'zod'
import { type Fragment, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { hasVector, VECTOR_SOURCES } from '../vectors/store.ts'
import type { Space } from './space.ts'

/** Statements that find documents whose chunks lack vectors, note what they were given, and what all of them follow. */

const retrievalSettings = z.object({ space_id: z.int().nullable(), text_search_config: z.string() })
const settings = sql.type(retrievalSettings)

/** The settings that documents follow. */
export type RetrievalSettings = z.output<typeof retrievalSettings>

/** Makes settings those that documents follow; without a space, the one before stays. */
export const setActiveSettings = async (
  db: Queryable,
  { space_id, text_search_config }: RetrievalSettings,
): Promise<void> => {
  await db.query(voidStatement`
    insert into retrieval_settings (space_id, text_search_config) values (${space_id}, ${text_search_config})
    on conflict (singleton) do update set space_id = coalesce(excluded.space_id, retrieval_settings.space_id),
      text_search_config = excluded.text_search_config`)
}

/** The settings that documents follow; null before any worker has started. */
export const activeSettings = (db: Queryable): Promise<RetrievalSettings | null> =>
  db.maybeOne(settings`select space_id, text_search_config from retrieval_settings`)

const Owner = z.object({ id: z.string(), project_id: z.string() })
export type Owner = z.output<typeof Owner>

const owner = sql.type(Owner)
const waiting = sql.type(Owner.extend({ embed_since: z.string() }))
const count = sql.type(z.object({ count: z.int() }))
const id = sql.type(z.object({ id: z.string() }))

/**
 * How many documents have chunks without vectors of the space, among those a condition over the alias `t` lets through;
 * documents_space counts them.
 */
export const countOtherSpaceDocuments = (db: Queryable, space: Space, visible: Fragment): Promise<number> =>
  db.oneFirst(count`
    select count(*) from documents t
    where t.chunk_count > 0 and (t.space_id < ${space.id} or t.space_id > ${space.id}) and ${visible}`)

/**
 * Documents of other spaces and of none, newest first, from below an id on; those that are waiting for vectors anyway
 * are left out. documents_space gives them in their order, one space after the other.
 */
export const listOtherSpaceDocuments = (
  db: Queryable,
  space: Space,
  below: string | null,
  limit: number,
): Promise<readonly Owner[]> =>
  db.any(owner`
    select d.id, d.project_id
    from (select s.id from embedding_spaces s where s.id <> ${space.id} union all select 0) o (id)
    cross join lateral (
      select t.id, t.project_id from documents t
      where t.space_id = o.id and t.chunk_count > 0 and t.embed_since is null
        ${below === null ? sql.fragment`` : sql.fragment`and t.id < ${below}`}
      order by t.id desc limit ${limit}
    ) d
    order by d.id desc limit ${limit}`)

/** Documents that wait for vectors, those that wait longest first, from behind one on; by documents_embed_since. */
export const listWaitingDocuments = (
  db: Queryable,
  after: { embed_since: string; id: string } | null,
  limit: number,
): Promise<readonly (Owner & { embed_since: string })[]> =>
  db.any(waiting`
    select t.id, t.project_id, t.embed_since from documents t
    where t.embed_since is not null
      ${after === null ? sql.fragment`` : sql.fragment`and (t.embed_since, t.id) > (${after.embed_since}::timestamptz, ${after.id})`}
    order by t.embed_since, t.id limit ${limit}`)

/** Ends the wait of documents that began before a time; returns how many. */
export const expireWaits = async (db: Queryable, before: Date): Promise<number> =>
  (
    await db.query(voidStatement`
      update documents set embed_since = null where embed_since < ${before.toISOString()}::timestamptz`)
  ).rowCount

/** Takes the locks of documents, in one order everywhere. Who changes the chunks of a document holds its lock. */
export const lockDocuments = async (tx: Queryable, ids: readonly string[]): Promise<void> => {
  await tx.query(id`select id from documents where id = any(${sql.array([...ids], 'text')}) order by id for update`)
}

/**
 * Notes that documents were embedded for a space, and drops what they have of others unless a chunk failed. Those in
 * which a chunk is left that nobody looked at stay as they are. The caller holds their locks.
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
