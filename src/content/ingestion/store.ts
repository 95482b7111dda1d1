import { z } from 'zod'
import { type Fragment, jsonb, type Queryable, sql } from '../../core/db/sql.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import type { ChunkSettings, Page, PartialSettings } from '../chunks/model.ts'

/** The attempts table holds what is under way only; its primary key is the document. */

/** A worker's hold on an attempt. What it writes is conditional on `claims`: a later claim fences it. */
export type Claim = {
  document_id: string
  id: string
  claims: number
  failures: number
  principal: PrincipalRecord
  allow_deferral: boolean
  settings: PartialSettings
  pages: Page[] | null
}

const interval = (ms: number): Fragment => sql.fragment`${ms} * interval '1 ms'`

/** Makes the attempt of a document, in place of the one it had: whoever works on that one finds itself superseded. */
export const putAttempt = (
  db: Queryable,
  attempt: {
    document_id: string
    id: string
    principal: PrincipalRecord
    allow_deferral: boolean
    settings: PartialSettings
  },
) =>
  db.query(sql.unsafe`
    insert into ingestion_attempts (document_id, id, principal, allow_deferral, settings)
    values (${attempt.document_id}, ${attempt.id}, ${jsonb(attempt.principal)}, ${attempt.allow_deferral},
      ${jsonb(attempt.settings)})
    on conflict (document_id) do update set id = excluded.id, state = 'queued', due_at = now(), claims = 0, losses = 0,
      failures = 0, principal = excluded.principal, allow_deferral = excluded.allow_deferral,
      settings = excluded.settings, pages = null, heartbeat_at = null, created_at = now()`)

/** Workers that may be lost before nobody tries again. */
const MAX_LOSSES = 2

/**
 * Claims an attempt that is queued, or whose worker was silent for a lease. The caller holds the document's lock. Null
 * when it is superseded, settled, awaiting, held by a live worker, or was lost too often.
 */
export const claimAttempt = (
  db: Queryable,
  { document_id, id }: { document_id: string; id: string },
  leaseMs: number,
): Promise<Claim | null> =>
  db.maybeOne(sql.unsafe`
    update ingestion_attempts
    set state = 'running', claims = claims + 1, losses = losses + (state = 'running')::integer, heartbeat_at = now(),
      due_at = now() + ${interval(leaseMs)}
    where document_id = ${document_id} and id = ${id}
      and (state = 'queued' or (state = 'running' and due_at <= now() and losses < ${MAX_LOSSES}))
    returning document_id, id, claims, failures, principal, allow_deferral, settings, pages`) as Promise<Claim | null>

/** When the lease of a running attempt is over, while it is not. */
export const heldUntil = (db: Queryable, { document_id, id }: { document_id: string; id: string }) =>
  db.maybeOneFirst(sql.unsafe`
    select due_at from ingestion_attempts
    where document_id = ${document_id} and id = ${id} and state = 'running' and due_at > now()`) as Promise<
    string | null
  >

type Held = Pick<Claim, 'document_id' | 'id' | 'claims'>

const held = ({ document_id, id, claims }: Held): Fragment =>
  sql.fragment`document_id = ${document_id} and id = ${id} and claims = ${claims} and state = 'running'`

/** Renews the lease; false when the attempt is no longer this worker's. */
export const renewLease = async (db: Queryable, claim: Held, leaseMs: number): Promise<boolean> =>
  (
    await db.query(sql.unsafe`
      update ingestion_attempts set heartbeat_at = now(), due_at = now() + ${interval(leaseMs)} where ${held(claim)}`)
  ).rowCount === 1

/** Gives an attempt back, to be tried again after a delay; `failed` counts this try. False when it is not held. */
export const requeueAttempt = async (
  db: Queryable,
  claim: Held,
  { delayMs, failed }: { delayMs: number; failed: boolean },
): Promise<boolean> =>
  (
    await db.query(sql.unsafe`
      update ingestion_attempts set state = 'queued', due_at = now() + ${interval(delayMs)},
        failures = failures + ${failed ? 1 : 0}
      where ${held(claim)}`)
  ).rowCount === 1

/** Leaves an attempt to its converter's callback, which has so long. False when it is not held. */
export const awaitCallback = async (db: Queryable, claim: Held, withinMs: number): Promise<boolean> =>
  (
    await db.query(sql.unsafe`
      update ingestion_attempts set state = 'awaiting', due_at = now() + ${interval(withinMs)} where ${held(claim)}`)
  ).rowCount === 1

/**
 * Keeps what a converter has answered: a callback comes too late from here on, and another try does not ask again. False
 * when the attempt is not held.
 */
export const keepPages = async (db: Queryable, claim: Held, pages: Page[]): Promise<boolean> =>
  (await db.query(sql.unsafe`update ingestion_attempts set pages = ${jsonb(pages)} where ${held(claim)}`)).rowCount ===
  1

/** Ends an attempt that this worker holds; false when it does not. */
export const endHeld = async (db: Queryable, claim: Held): Promise<boolean> =>
  (await db.query(sql.unsafe`delete from ingestion_attempts where ${held(claim)}`)).rowCount === 1

/** Whether a callback is still welcome: the attempt is the live one, and nobody has delivered its pages. */
const open = (documentId: string, id: string): Fragment =>
  sql.fragment`document_id = ${documentId} and id = ${id} and pages is null`

/** Takes a converter's pages; whoever works on the attempt loses it. False when they come too late. */
export const deliverPages = async (db: Queryable, documentId: string, id: string, pages: Page[]): Promise<boolean> =>
  (
    await db.query(sql.unsafe`
      update ingestion_attempts set state = 'queued', due_at = now(), pages = ${jsonb(pages)}
      where ${open(documentId, id)}`)
  ).rowCount === 1

/** Ends an attempt whose converter gave up; false when that comes too late. */
export const endOpen = async (db: Queryable, documentId: string, id: string): Promise<boolean> =>
  (await db.query(sql.unsafe`delete from ingestion_attempts where ${open(documentId, id)}`)).rowCount === 1

/** Ends an attempt that no live worker holds; false when one does, or it is superseded. */
export const endIdle = async (db: Queryable, documentId: string, id: string): Promise<boolean> =>
  (
    await db.query(sql.unsafe`
      delete from ingestion_attempts
      where document_id = ${documentId} and id = ${id} and state <> 'awaiting' and (state = 'queued' or due_at <= now())`)
  ).rowCount === 1

/** What an attempt may take, in milliseconds: silence of its worker, waiting for one. */
export type Limits = { silenceMs: number; queueMs: number }

const stalled = ({ silenceMs, queueMs }: Limits): Fragment => sql.fragment`(
  (state = 'running' and heartbeat_at < now() - ${interval(silenceMs)})
  or (state = 'queued' and due_at < now() - ${interval(queueMs)})
  or (state = 'awaiting' and due_at < now()))`

/**
 * Ends the attempt of a document if it has taken too long, and tells in which state; null when it has not. The caller
 * holds the document's lock.
 */
export const endStalled = (
  db: Queryable,
  documentId: string,
  limits: Limits,
): Promise<{ id: string; state: 'queued' | 'running' | 'awaiting' } | null> =>
  db.maybeOne(sql.unsafe`
    delete from ingestion_attempts where document_id = ${documentId} and ${stalled(limits)}
    returning id, state`) as Promise<{ id: string; state: 'queued' | 'running' | 'awaiting' } | null>

/** Whether the attempt of a document has taken too long, null when there is none; a look before any lock is taken. */
export const isStalled = (db: Queryable, documentId: string, limits: Limits): Promise<boolean | null> =>
  db.maybeOneFirst(sql.unsafe`
    select ${stalled(limits)} from ingestion_attempts where document_id = ${documentId}`) as Promise<boolean | null>

/** Attempts that somebody has to look at, by ingestion_attempts_due, oldest first after `after`. */
const Due = z.object({
  document_id: z.string(),
  id: z.string(),
  project_id: z.string(),
  due_at: z.string(),
  stalled: z.boolean(),
})
export type Due = z.output<typeof Due>

/**
 * A page of the attempts that are due for `quietSeconds`, in the order of ingestion_attempts_due: those that have taken
 * too long, and those that a worker has to be sent to.
 */
export const dueAttempts = (
  db: Queryable,
  limits: Limits,
  { quietSeconds, after, limit }: { quietSeconds: number; after: Pick<Due, 'due_at' | 'id'> | null; limit: number },
): Promise<readonly Due[]> =>
  db.any(sql.type(Due)`
    select a.document_id, a.id, d.project_id, a.due_at, ${stalled(limits)} as stalled
    from ingestion_attempts a join documents d on d.id = a.document_id
    where a.due_at < now() - ${quietSeconds} * interval '1 s'
      ${after ? sql.fragment`and (a.due_at, a.id) > (${after.due_at}::timestamptz, ${after.id})` : sql.fragment``}
    order by a.due_at, a.id limit ${limit}`)

/** How much there is to do, and how the text is cut. */
export type Totals = { total_pages: number; total_chunks: number } & ChunkSettings

/** Records how much there is to do; the caller holds the attempt. */
export const setTotals = (db: Queryable, documentId: string, totals: Totals) =>
  db.query(sql.unsafe`
    update documents set total_pages = ${totals.total_pages}, total_chunks = ${totals.total_chunks},
      chunk_strategy = ${totals.chunk_strategy}, chunk_unit = ${totals.chunk_unit}, chunk_size = ${totals.chunk_size},
      chunk_overlap = ${totals.chunk_overlap}
    where id = ${documentId}`)

/** Counts chunks that were written; the caller holds the attempt. */
export const countChunks = (db: Queryable, documentId: string, chunks: { written: number; embedded: number }) =>
  db.query(sql.unsafe`
    update documents set chunk_count = chunk_count + ${chunks.written},
      embedded_chunks = embedded_chunks + ${chunks.embedded}
    where id = ${documentId}`)

/** The chunk settings that a version of a document has. */
export const versionSettings = (db: Queryable, documentId: string, version: number): Promise<ChunkSettings | null> =>
  db.maybeOne(sql.unsafe`
    select chunk_strategy, chunk_unit, chunk_size, chunk_overlap from document_versions
    where document_id = ${documentId} and version = ${version}`) as Promise<ChunkSettings | null>
