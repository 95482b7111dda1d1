import { extensionPoint } from '#core/base/declarations.ts'
import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type Redaction, redactEvents } from '../events/redact.ts'

/** Numbers of erased rows, by name. */
export type Counts = Record<string, number>

/** Principal that erased content, as stored in erased records. */
export type ErasedBy = { type: string; id: string }

/** Returns the error for reads of erased content. */
export const contentUnavailable = () =>
  new AppError('GENERATION_CONTENT_UNAVAILABLE', { message: 'Content was erased' })

/** A settled turn whose content is erased; its row is locked. */
export type ErasedTurn = { id: string; project_id: string; session_id: string | null }

/**
 * Erases the content of turns that a module stores outside the generations. `erase` runs in the transaction that erases
 * the generations; it raises if the content must not be erased, and returns the events that contain erased content.
 */
export type TurnContentEraser = {
  erase(tx: Tx, turns: readonly ErasedTurn[]): Promise<{ counts: Counts; events: readonly Redaction[] }>
}
export const turnContent = extensionPoint<TurnContentEraser>({
  name: 'content of turns',
  folder: 'control/retention',
  description: 'Erases content of turns that a module stores outside of generations',
})

/** Columns of a generation `g`. */
type TurnColumns = { id: Fragment; chain_id: Fragment }

/**
 * Conditions under which the record of a settled turn is still needed, for example by a pending approval; `since` is
 * the time of the last activity in the records to delete.
 */
export const turnHolds = extensionPoint<(turn: TurnColumns, since: Fragment) => Fragment>({
  name: 'holds of turns',
  folder: 'control/retention',
  description: 'Gives the SQL conditions under which the record of a settled turn is still needed',
})

/** Returns the condition under which the record of a generation `g` is still needed. */
export const isTurnHeld = (since: Fragment): Fragment =>
  sql.fragment`(${sql.join(
    turnHolds.all().map(condition => condition({ id: sql.fragment`g.id`, chain_id: sql.fragment`g.chain_id` }, since)),
    sql.fragment` or `,
  )})`

/** An end user whose content is erased. */
export type EndUser = {
  id: string
  project_id: string
  /** Select of the ids of conversations that the end user owns or wrote in. */
  conversations: Fragment
  /** Select of the ids of conversations that the end user owns; they are erased completely. */
  ownConversations: Fragment
}

/** An active erasure of an end user's content. */
export type EndUserPurge = {
  services: Services
  endUser: EndUser
  by: ErasedBy
  /** Content created after this time is not erased. */
  until: string
  /** Runs one transaction and adds its counts. Fails when the claim is lost or a legal hold began. */
  write(work: (tx: Tx) => Promise<Counts>): Promise<Counts>
  read: Queryable
}

/**
 * Erases the end-user content of a module, in separate transactions of a bounded number of rows. Returns `busy` when
 * some rows cannot be erased yet. Repeated after a lost worker.
 */
export type EndUserContentEraser = { erase(purge: EndUserPurge): Promise<'erased' | 'busy'> }

/** Rows per transaction. */
const BATCH = 200

/** Erases rows batch by batch until `find` returns none; `find` must not return erased rows. */
export async function eraseInBatches<T>(
  find: (limit: number) => Promise<readonly T[]>,
  erase: (found: readonly T[]) => Promise<unknown>,
): Promise<void> {
  for (let found: readonly T[] | null = null; !found || found.length === BATCH; ) {
    found = await find(BATCH)
    if (found.length > 0) await erase(found)
  }
}

export const endUserContent = extensionPoint<EndUserContentEraser>({
  name: 'content of end users',
  folder: 'control/retention',
  description: 'Erases the content of an end user that a module stores',
})

/** Returns the sums of counts by name. */
export function sumCounts(...all: readonly Counts[]): Counts {
  const sum: Counts = {}
  for (const counts of all) for (const [name, count] of Object.entries(counts)) sum[name] = (sum[name] ?? 0) + count
  return sum
}

/** Erases the content of turns in other modules, and redacts the events that contain it along with `events`. */
export async function eraseTurnContent(
  tx: Tx,
  turns: readonly ErasedTurn[],
  events: readonly Redaction[],
): Promise<Counts> {
  const counts: Counts[] = []
  const redactions = [...events]
  if (turns.length > 0)
    for (const { erase } of turnContent.all()) {
      const erased = await erase(tx, turns)
      counts.push(erased.counts)
      redactions.push(...erased.events)
    }
  return sumCounts(...counts, { events: await redactEvents(tx, redactions) })
}
