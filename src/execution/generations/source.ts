import type { RecordedFailure } from '../../core/api/errors.ts'
import type { KindRow } from '../../core/api/kind.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Outgoing, Tx } from '../../core/db/write.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Logger } from '../../core/process/log.ts'
import type { ModelMessage } from '../providers/exchange.ts'
import type { GenerationRow } from './model.ts'

export type TurnOutcome = {
  status: 'completed' | 'failed'
  content: string | null
  /** Text of the step that was under way when the turn was aborted, as far as it was streamed. */
  partial: string | null
  model: string | null
  /** The answer as its schema asks for it; null without one. */
  object: unknown
  error: RecordedFailure | null
  /** What `prepare` noted. */
  notes: Record<string, unknown>
}

/** What a turn is paused with, kept or not. */
export type PausedTurn = { required_action: Record<string, unknown>; text: string | null; model: string | null }

/** What a turn's surface adds to it. */
export type TurnSource = {
  /** Read once, at the first claim; a resumed turn sees what it gave. `refuse` fails the turn before it starts. */
  prepare?(
    db: Queryable,
    generation: GenerationRow,
  ): Promise<
    { messages: ModelMessage[]; system_extra: string[]; notes?: Record<string, unknown> } | { refuse: RecordedFailure }
  >
  /** What its permission is on, when the source has just read it. */
  target?(permission: { kind: string; id: string }): KindRow | null
  /** What follows from the first claim, beside the events of the generation. */
  started?(outgoing: Outgoing, generation: GenerationRow): void
  /**
   * First in the settle transaction, before the generation's row is taken: takes what `settle` needs, in the order in
   * which an abort takes it. A failure it answers ends a turn that would have completed.
   */
  lock?(tx: Tx, generation: GenerationRow): Promise<(RecordedFailure & { stop_reason?: 'error' | 'cancelled' }) | null>
  /** Inside the transaction that pauses the turn, in place of `settle`; with the same result. */
  pause?(tx: Tx, generation: GenerationRow, paused: PausedTurn): Promise<{ result: object | null } | undefined>
  /** Inside the settle transaction. `result` is what a waiting caller and the last frame get instead of the agent's result. */
  settle?(tx: Tx, generation: GenerationRow, outcome: TurnOutcome): Promise<{ result: object | null } | undefined>
}

/** A module that makes turns outside conversations for rows of its own, which move when the turns end. */
export type TurnOwner = {
  /** The `source` that its turns carry. */
  source: string
  /** Inside the transaction that ends a turn, whoever ends it, behind the turn's row. */
  settled(
    tx: Tx,
    generation: GenerationRow,
    outcome: Pick<TurnOutcome, 'status' | 'content' | 'object' | 'error'>,
  ): Promise<void>
}

export const turnOwners = extensionPoint<TurnOwner>('owners of turns')

export const ownerOf = ({ source }: Pick<GenerationRow, 'source'>): TurnOwner | undefined =>
  source === null ? undefined : turnOwners.all().find(owner => owner.source === source)

/** What an owner adds to a turn. What its permission is on may be gone by now: only the name counts. */
export function ownedTurn(generation: GenerationRow): TurnSource | undefined {
  const owner = ownerOf(generation)
  if (!owner) return undefined
  return {
    target: ({ id }) => ({ id, project_id: generation.project_id }),
    async settle(tx, after, outcome) {
      await owner.settled(tx, after, outcome)
      return undefined
    },
  }
}

export type TurnRun = {
  signal: AbortSignal
  stopping: AbortSignal
  log: Logger
  /** Does work that waits for other messages to be handled. */
  aside: <T>(work: () => Promise<T>) => Promise<T>
  source?: TurnSource
  /** Completes the message of a turn that has no source, with its end. */
  complete?: (outgoing: Outgoing) => void
}
