import { z } from 'zod'
import { traceContext } from '#core/base/telemetry.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { WorkAttempt } from '#core/work/attempt.ts'
import type { DocumentRow } from '../documents/model.ts'
import { type ChunkSettings, chunkRecord, type PageText, type PartialSettings } from '../index/chunks/model.ts'

/** Columns of an ingestion attempt; `pages` are the output of the converter. */
export const ingestionColumns = {
  principal: z.custom<PrincipalRecord>(),
  allow_deferral: z.boolean(),
  settings: z.custom<PartialSettings>(),
  pages: z.custom<PageText[] | null>(),
  trace_context: z.string().nullable(),
  created_at: z.string(),
}
type IngestionColumns = z.output<z.ZodObject<typeof ingestionColumns>>

export type IngestionAttempt = WorkAttempt<DocumentRow, IngestionColumns>

/** Inserts the attempt of a document, replacing its previous one, whose worker loses the claim. */
export const replaceAttempt = (
  db: Queryable,
  attempt: { document_id: string; id: string } & Pick<IngestionColumns, 'principal' | 'allow_deferral' | 'settings'>,
) =>
  db.query(voidStatement`
    insert into ingestion_attempts (document_id, id, principal, allow_deferral, settings, trace_context)
    values (${attempt.document_id}, ${attempt.id}, ${jsonb(attempt.principal)}, ${attempt.allow_deferral},
      ${jsonb(attempt.settings)}, ${traceContext()})
    on conflict (document_id) do update set id = excluded.id, state = 'queued', due_at = now(), claims = 0, losses = 0,
      failures = 0, principal = excluded.principal, allow_deferral = excluded.allow_deferral,
      settings = excluded.settings, pages = null, created_at = now(), trace_context = excluded.trace_context`)

/** Condition that an attempt is current and has no converter output. */
const acceptsOutput = (documentId: string, id: string) =>
  sql.fragment`document_id = ${documentId} and id = ${id} and pages is null`

/**
 * Stores the pages posted by a converter and requeues the attempt; an active worker loses its claim. Returns false if
 * late.
 */
export const acceptPages = async (db: Queryable, documentId: string, id: string, pages: PageText[]): Promise<boolean> =>
  (
    await db.query(voidStatement`
      update ingestion_attempts set state = 'queued', due_at = now(), pages = ${jsonb(pages)}
      where ${acceptsOutput(documentId, id)}`)
  ).rowCount === 1

/** Deletes an attempt whose converter reported a failure; returns false if late. */
export const failAwaitingCallback = async (db: Queryable, documentId: string, id: string): Promise<boolean> =>
  (await db.query(voidStatement`delete from ingestion_attempts where ${acceptsOutput(documentId, id)}`)).rowCount === 1

/** Totals of an ingestion, its effective chunk settings, the language of its rule, and the charset of its text. */
export type Totals = {
  total_pages: number
  total_chunks: number
  search_language: string | null
  charset: string | null
} & ChunkSettings

/** Writes the totals of a document; the caller has fenced the claim. */
export const setTotals = (db: Queryable, documentId: string, totals: Totals) =>
  db.query(voidStatement`
    update documents set total_pages = ${totals.total_pages}, total_chunks = ${totals.total_chunks},
      chunk_strategy = ${totals.chunk_strategy}, chunk_unit = ${totals.chunk_unit}, chunk_size = ${totals.chunk_size},
      chunk_overlap = ${totals.chunk_overlap}, search_language = ${totals.search_language},
      charset = ${totals.charset}
    where id = ${documentId}`)

const settingsRow = sql.type(z.object(chunkRecord))

/** Returns the chunk settings of a document version. */
export const findVersionSettings = (
  db: Queryable,
  documentId: string,
  version: number,
): Promise<ChunkSettings | null> =>
  db.maybeOne(settingsRow`
    select chunk_strategy, chunk_unit, chunk_size, chunk_overlap from document_versions
    where document_id = ${documentId} and version = ${version}`)

/** Due time of the oldest attempt that waits for a worker. Index ingestion_attempts_due. */
export const oldestIngestion: Fragment = sql.fragment`(
  select min(due_at) from ingestion_attempts where state = 'queued' and due_at <= now())`
