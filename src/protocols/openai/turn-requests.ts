import { createHash } from 'node:crypto'
import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import type { Outbox } from '#core/writes/writer.ts'

/** Requests that began or resumed turns, by credential and body: a retry of a client attaches to its turn. */

const TurnRequest = z.object({ generation_id: z.string(), after_step: z.int(), after_frame: z.int() })
export type TurnRequest = z.output<typeof TurnRequest>
const turnRequestRow = sql.type(TurnRequest)

/** A request by its credential and the hash of its content. */
export type RequestIdentity = { credential_id: string; body_hash: Buffer }

export const requestIdentity = ({ credential }: Caller, ...parts: unknown[]): RequestIdentity => ({
  credential_id: `${credential.type} ${credential.id}`,
  body_hash: createHash('sha256').update(JSON.stringify(parts)).digest(),
})

/** Ten minutes: longer than clients repeat a request. */
const LIFE: Fragment = sql.fragment`interval '10 minutes'`

/** Records the turn of a request with its other writes. */
export const recordTurnRequest = (
  outbox: Outbox,
  { credential_id, body_hash }: RequestIdentity,
  turn: TurnRequest,
): void =>
  outbox.alongside(
    guard => sql.fragment`
    insert into turn_requests (credential_id, body_hash, generation_id, after_step, after_frame)
    select ${credential_id}, ${sql.binary(body_hash)}, ${turn.generation_id}, ${turn.after_step}::integer,
      ${turn.after_frame}::integer
    where ${guard}`,
  )

/** Returns the last turn of an equal request in ten minutes, or null. By turn_requests_hash. */
export const findTurnRequest = (
  db: Queryable,
  { credential_id, body_hash }: RequestIdentity,
): Promise<TurnRequest | null> =>
  db.maybeOne(turnRequestRow`
    select generation_id, after_step, after_frame from turn_requests
    where credential_id = ${credential_id} and body_hash = ${sql.binary(body_hash)} and created_at > now() - ${LIFE}
    order by created_at desc limit 1`)

const deleteOld = async (db: Queryable, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from turn_requests where ctid = any (array(
        select ctid from turn_requests where created_at < now() - ${LIFE} limit ${limit}))`)
  ).rowCount

/** Deletes the requests that retries no longer attach to. By turn_requests_created. */
export const sweepTurnRequests = ({ pool }: Services, stopping: AbortSignal): Promise<number> =>
  deleteInBatches(limit => deleteOld(pool, limit), stopping)
