import type { RecordedFailure } from '../../../core/api/errors.ts'
import type { KindRow } from '../../../core/api/kind.ts'
import type { Queryable } from '../../../core/db/sql.ts'
import type { Outbox, Tx } from '../../../core/db/writer.ts'
import { extensionPoint } from '../../../core/declarations.ts'
import type { Logger } from '../../../core/process/log.ts'
import type { SessionKnowledge } from '../../agents/knowledge.ts'
import type { ModelMessage } from '../../providers/model-messages.ts'
import type { GenerationRow } from '../model.ts'

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
    | {
        messages: ModelMessage[]
        system_extra: string[]
        notes?: Record<string, unknown>
        /** What the turn knows beside its agent; the request's is laid over it. */
        knowledge_config?: SessionKnowledge | null
      }
    | { refuse: RecordedFailure }
  >
  /** What its permission is on, when the source has just read it. */
  target?(permission: { kind: string; id: string }): KindRow | null
  /** What follows from the first claim, beside the events of the generation. */
  started?(outgoing: Outbox, generation: GenerationRow): void
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
export type TurnOwner = (
  | {
      /** The `source` that its turns carry. */
      source: string
    }
  | {
      /** Whether a turn is one of its. Turns that repeat one, carry it on or nest in it may look like it: they have an initiator. */
      owns(generation: GenerationRow): boolean
    }
) & {
  /**
   * Inside the transaction that ends a turn, whoever ends it, behind the turn's row: where its own rows come before turns,
   * it takes none of them and sends a message. The same for the others.
   */
  settled(
    tx: Tx,
    generation: GenerationRow,
    outcome: Pick<TurnOutcome, 'status' | 'content' | 'object' | 'error'>,
  ): Promise<void>
  /** Inside the transaction that leaves a turn to its client. */
  paused?(tx: Tx, generation: GenerationRow): Promise<void>
  /** Inside the transaction in which the client of a paused turn lets it go on. */
  resumed?(tx: Tx, generation: GenerationRow): Promise<void>
}

export const turnOwners = extensionPoint<TurnOwner>('owners of turns')

/** Who owns a turn: of several modules that would, the one that was loaded last. */
export const turnOwnerOf = (generation: GenerationRow): TurnOwner | undefined =>
  turnOwners.all().findLast(owner => ('owns' in owner ? owner.owns(generation) : owner.source === generation.source))

/** What an owner adds to a turn. What its permission is on may be gone by now: only the name counts. */
export function ownedTurn(generation: GenerationRow): TurnSource | undefined {
  const owner = turnOwnerOf(generation)
  if (!owner) return undefined
  return {
    target: ({ id }) => ({ id, project_id: generation.project_id }),
    ...(owner.paused && {
      async pause(tx: Tx, after: GenerationRow) {
        await owner.paused?.(tx, after)
        return undefined
      },
    }),
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
  complete?: (outgoing: Outbox) => void
}
