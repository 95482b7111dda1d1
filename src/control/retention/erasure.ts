import { AppError } from '../../core/api/errors.ts'
import { type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'
import { type Redaction, redactEvents } from '../events/redact.ts'

/** How much was erased, by what it is called. */
export type Counts = Record<string, number>

/** In whose name content is erased, as erased records show it. */
export type ErasedBy = { type: string; id: string }

/** What answers in the place of content that was erased. */
export const contentUnavailable = () =>
  new AppError('GENERATION_CONTENT_UNAVAILABLE', { message: 'The content has been erased' })

/** Turns whose content is erased; their rows are locked, and they have ended. */
export type ErasedTurn = { id: string; project_id: string; session_id: string | null }

/**
 * What a module keeps of what turns were given, did and said, beside the turns themselves. `erase` is part of the
 * transaction that erases theirs. It raises what forbids it, and returns which events show what it erased.
 */
export type TurnContentEraser = {
  erase(tx: Tx, turns: readonly ErasedTurn[]): Promise<{ counts: Counts; events: readonly Redaction[] }>
}
export const turnContent = extensionPoint<TurnContentEraser>('content of turns')

/** A turn `g` of a statement about generations. */
type TurnColumns = { id: Fragment; chain_id: Fragment }

/**
 * Conditions under which something still needs the record of a turn that has ended, such as an approval that waits for a
 * person; `since` is the time since which nothing has happened in what is to be deleted.
 */
export const turnHolds = extensionPoint<(turn: TurnColumns, since: Fragment) => Fragment>('holds of turns')

/** The condition under which something needs the record of a generation `g`. */
export const isTurnHeld = (since: Fragment): Fragment =>
  sql.fragment`(${sql.join(
    turnHolds.all().map(hold => hold({ id: sql.fragment`g.id`, chain_id: sql.fragment`g.chain_id` }, since)),
    sql.fragment` or `,
  )})`

/** An end user whose content is erased. */
export type EndUser = {
  id: string
  project_id: string
  /** A select of the ids of its conversations, and of those in which it wrote. */
  conversations: Fragment
  /** A select of the ids of its own conversations, of which all is erased. */
  ownConversations: Fragment
}

/** The erasure of what a project has of an end user, while a worker is at it. */
export type EndUserPurge = {
  services: Services
  endUser: EndUser
  by: ErasedBy
  /** What was made later stays. */
  until: string
  /**
   * A transaction of a part of the work, which gives what it erased. It fails when another worker has the work or a legal
   * hold began.
   */
  write(work: (tx: Tx) => Promise<Counts>): Promise<Counts>
  read: Queryable
}

/**
 * What a module keeps of end users. `erase` erases it in transactions of its own, each of a bounded number of rows, and
 * returns whether something is left that has to be waited for. Repeated after a worker was lost.
 */
export type EndUserContentEraser = { erase(purge: EndUserPurge): Promise<'erased' | 'busy'> }
/** Pieces of what is kept of an end user that one transaction erases. */
const BATCH = 200

/** Erases, a batch after the other, what is found of an end user until nothing is left: what was erased is not found again. */
export async function eraseInBatches<T>(
  find: (limit: number) => Promise<readonly T[]>,
  erase: (found: readonly T[]) => Promise<unknown>,
): Promise<void> {
  for (let found: readonly T[] | null = null; !found || found.length === BATCH; ) {
    found = await find(BATCH)
    if (found.length > 0) await erase(found)
  }
}

export const endUserContent = extensionPoint<EndUserContentEraser>('content of end users')

/** Adds counts up. */
export function sumCounts(...all: readonly Counts[]): Counts {
  const sum: Counts = {}
  for (const counts of all) for (const [name, count] of Object.entries(counts)) sum[name] = (sum[name] ?? 0) + count
  return sum
}

/** Erases what other modules keep of turns, and what events show of it and of `events`. */
export async function eraseTurnContent(
  tx: Tx,
  turns: readonly ErasedTurn[],
  events: readonly Redaction[],
): Promise<Counts> {
  const counts: Counts[] = []
  const shown = [...events]
  if (turns.length > 0)
    for (const { erase } of turnContent.all()) {
      const erased = await erase(tx, turns)
      counts.push(erased.counts)
      shown.push(...erased.events)
    }
  return sumCounts(...counts, { events: await redactEvents(tx, shown) })
}
