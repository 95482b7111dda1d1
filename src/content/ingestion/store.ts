import { z } from 'zod'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { type WorkItemClaim, type WorkItemRef, workItemTable } from '../../core/jobs/work-item.ts'
import { type ChunkSettings, chunkRecord, type PageText, type PartialSettings } from '../chunks/model.ts'
import { DocumentRow } from '../documents/model.ts'

/** What a worker needs to know of an attempt. */
const row = {
  principal: z.custom<PrincipalRecord>(),
  allow_deferral: z.boolean(),
  settings: z.custom<PartialSettings>(),
  /** What a converter has answered or posted. */
  pages: z.custom<PageText[] | null>(),
}

/** Attempts at ingesting a document; the table holds what is under way only. */
export const ingestionWork = workItemTable({
  table: 'ingestion_attempts',
  entity: 'document_id',
  owner: 'documents',
  row,
  waits: ['awaiting'],
})

export type IngestionClaim = WorkItemClaim & z.output<z.ZodObject<typeof row>>

const begun = sql.type(DocumentRow.extend({ claim: z.custom<IngestionClaim>() }))

/** Begins an attempt that nobody has claimed before: its claim, and the document as it is worked on. Null for any other. */
export const claimFirst = async (
  db: Queryable,
  named: WorkItemRef,
  leaseMs: number,
): Promise<{ claim: IngestionClaim; document: DocumentRow } | null> => {
  const row = await db.maybeOne(begun`
    with locked as (select id from documents where id = ${named.entity} for update),
    claimed as (${ingestionWork.firstClaim(named, leaseMs, 'locked')}),
    begun as (
      update documents t set status = 'processing', chunk_count = 0, embedded_chunks = 0, total_chunks = null,
        total_pages = null, updated_at = now()
      from claimed c where t.id = c.entity
      returning t.*
    )
    select b.*, to_json(c) as claim from begun b, claimed c`)
  if (!row) return null
  const { claim, ...document } = row
  return { claim, document }
}

/** Makes the attempt of a document, in place of the one it had: whoever works on that one finds itself superseded. */
export const replaceAttempt = (
  db: Queryable,
  attempt: { document_id: string; id: string } & Pick<IngestionClaim, 'principal' | 'allow_deferral' | 'settings'>,
) =>
  db.query(voidStatement`
    insert into ingestion_attempts (document_id, id, principal, allow_deferral, settings)
    values (${attempt.document_id}, ${attempt.id}, ${jsonb(attempt.principal)}, ${attempt.allow_deferral},
      ${jsonb(attempt.settings)})
    on conflict (document_id) do update set id = excluded.id, state = 'queued', due_at = now(), claims = 0, losses = 0,
      failures = 0, principal = excluded.principal, allow_deferral = excluded.allow_deferral,
      settings = excluded.settings, pages = null, heartbeat_at = null, created_at = now()`)

/** Leaves an attempt to its converter's callback, which has so long. False when it is not held. */
export const awaitCallback = (db: Queryable, claim: IngestionClaim, withinMs: number): Promise<boolean> =>
  ingestionWork.set(db, claim, sql.fragment`state = 'awaiting', due_at = now() + ${withinMs} * interval '1 ms'`)

/**
 * Keeps what a converter has answered: a callback comes too late from here on, and another try does not ask again. False
 * when the attempt is not held.
 */
export const storePages = (db: Queryable, claim: IngestionClaim, pages: PageText[]): Promise<boolean> =>
  ingestionWork.set(db, claim, sql.fragment`pages = ${jsonb(pages)}`)

/** Whether a callback is still welcome: the attempt is the live one, and nobody has delivered its pages. */
const open = (documentId: string, id: string) =>
  sql.fragment`document_id = ${documentId} and id = ${id} and pages is null`

/** Takes a converter's pages; whoever works on the attempt loses it. False when they come too late. */
export const acceptPages = async (db: Queryable, documentId: string, id: string, pages: PageText[]): Promise<boolean> =>
  (
    await db.query(voidStatement`
      update ingestion_attempts set state = 'queued', due_at = now(), pages = ${jsonb(pages)}
      where ${open(documentId, id)}`)
  ).rowCount === 1

/** Ends an attempt whose converter gave up; false when that comes too late. */
export const failAwaitingCallback = async (db: Queryable, documentId: string, id: string): Promise<boolean> =>
  (await db.query(voidStatement`delete from ingestion_attempts where ${open(documentId, id)}`)).rowCount === 1

/** How much there is to do, and how the text is cut. */
export type Totals = { total_pages: number; total_chunks: number } & ChunkSettings

/** Records how much there is to do; the caller holds the attempt. */
export const setTotals = (db: Queryable, documentId: string, totals: Totals) =>
  db.query(voidStatement`
    update documents set total_pages = ${totals.total_pages}, total_chunks = ${totals.total_chunks},
      chunk_strategy = ${totals.chunk_strategy}, chunk_unit = ${totals.chunk_unit}, chunk_size = ${totals.chunk_size},
      chunk_overlap = ${totals.chunk_overlap}
    where id = ${documentId}`)

const settings = sql.type(z.object(chunkRecord))

/** The chunk settings that a version of a document has. */
export const versionSettings = (db: Queryable, documentId: string, version: number): Promise<ChunkSettings | null> =>
  db.maybeOne(settings`
    select chunk_strategy, chunk_unit, chunk_size, chunk_overlap from document_versions
    where document_id = ${documentId} and version = ${version}`)

/** Since when the oldest attempt waits for a worker. By ingestion_attempts_due. */
export const oldestIngestion: Fragment = sql.fragment`(
  select min(due_at) from ingestion_attempts where state = 'queued' and due_at <= now())`
