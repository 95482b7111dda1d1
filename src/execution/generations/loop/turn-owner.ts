import type { KindRow } from '#core/api/kind.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import type { Logger } from '#core/base/log.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { LostClaim } from '#core/work/message-claims.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import type { SessionKnowledge } from '#execution/agents/knowledge.ts'
import type { Annotation, ModelMessage } from '#execution/providers/model-messages.ts'
import type { GenerationRow, PromptContext } from '../model.ts'

export type TurnOutcome = {
  status: 'completed' | 'failed'
  content: string | null
  /** Texts of all steps; those without text are empty. */
  texts: readonly string[]
  /**
   * Messages of the steps, for later turns; null without tool calls, and for a turn whose content is not stored. Empty for
   * an answer that the vendor refused, which later turns do not read.
   */
  history: readonly ModelMessage[] | null
  /** Text streamed by the step in progress when the turn was aborted. */
  partial: string | null
  model: string | null
  /** Pages that the content cites. */
  annotations: readonly Annotation[] | null
  /** The structured answer; null without an output schema. */
  object: unknown
  error: RecordedFailure | null
  /** Settings that vendors ignored. */
  ignored_params: string[]
  /** Notes of `prepare`. */
  notes: Record<string, unknown>
  /**
   * With a context policy: bytes of a token in the last request and, if older messages are to be summarized, the tokens
   * that it left to messages.
   */
  context: { bytes_per_token: number | null; summarize: { history_tokens: number } | null } | null
  /** Whether the agent names its sessions, by a call of its model. */
  names_session: boolean
}

/** Data of a pause, stored or not. */
export type PausedTurn = { required_action: Record<string, unknown>; text: string | null; model: string | null }

/** What a turn's source has found under its locks. */
export type SettleLock = {
  /** A failure that takes precedence over a completion. */
  stop: (RecordedFailure & { stop_reason?: 'error' | 'cancelled' }) | null
  /** Whether the claim of the attempt is current, if the generation was locked; null if it was not. */
  isOwned: boolean | null
}

/** Extensions of a turn by the conversation or module that created it. */
export type TurnSource = {
  /** Called once, at the first claim; later attempts use its result. `refuse` fails the turn before it starts. */
  prepare?(
    db: Queryable,
    generation: GenerationRow,
  ): Promise<
    | {
        messages: ModelMessage[]
        system_extra: string[]
        notes?: Record<string, unknown>
        /** Additional knowledge of the turn; the configuration of the request is merged over it. */
        knowledge_config?: SessionKnowledge | null
        /** State that an agent may share with its client. */
        shared_state?: unknown
        context?: PromptContext | null
      }
    | { refuse: RecordedFailure }
  >
  /** Changes the state that the agent shares with its client, and returns the new one. Raises to refuse. */
  changeState?(services: Services, change: (state: unknown) => unknown): Promise<unknown>
  /** Returns the row that the permission refers to, if the source has just read it. */
  target?(permission: { kind: string; id: string }): KindRow | null
  /** Stores the description of a file of a message, so that later turns use it. */
  described?(db: Queryable, description: { message_id: string; file_id: string; text: string }): Promise<unknown>
  /** Returns the stored description of a file of a message, which an earlier attempt may have stored; null without one. */
  description?(db: Queryable, of: { message_id: string; file_id: string }): Promise<string | null>
  /** Sends the wake-up of a turn that waits for its model. */
  wake?(outbox: Outbox, at: Date): void
  /** Adds writes to the first claim. */
  started?(outbox: Outbox, generation: GenerationRow): void
  /**
   * Called first in the settle transaction: takes the locks that `settle` requires, in the order of an abort, and may lock the
   * generation after them.
   */
  lock?(tx: Tx, generation: GenerationRow): Promise<SettleLock>
  /** Called in the transaction that pauses the turn, with the result of `settle`. */
  pause?(tx: Tx, generation: GenerationRow, paused: PausedTurn): Promise<{ result: object | null } | undefined>
  /**
   * Called in the settle transaction. `result` replaces the agent's result for waiting callers and in the last frame.
   */
  settle?(tx: Tx, generation: GenerationRow, outcome: TurnOutcome): Promise<{ result: object | null } | undefined>
}

/** A module that creates turns outside conversations for its own rows, which change when the turns settle. */
export type TurnOwner = (
  | {
      /** The `source` of its turns. */
      source: string
    }
  | {
      /** Whether it owns a turn. Retries, continuations and nested turns may match too: they have an initiator. */
      owns(generation: GenerationRow): boolean
    }
) & {
  /**
   * Called in the transaction that settles a turn, after the turn's row was locked. If its own rows are locked before
   * turns elsewhere, it sends a message instead of locking them. This applies to `paused` and `resumed` too.
   */
  settled(
    tx: Tx,
    generation: GenerationRow,
    outcome: Pick<TurnOutcome, 'status' | 'content' | 'object' | 'error'>,
  ): Promise<void>
  /** Called in the transaction that pauses a turn. */
  paused?(tx: Tx, generation: GenerationRow): Promise<void>
  /** Called in the transaction that resumes a paused turn. */
  resumed?(tx: Tx, generation: GenerationRow): Promise<void>
}

export const turnOwners = extensionPoint<TurnOwner>({
  name: 'turn owners',
  folder: 'execution/generations/loop',
  description: 'Changes the row that requested a turn when the turn pauses, resumes or settles',
})

/** Returns the owner of a turn; if several modules match, the module loaded last. */
export const turnOwnerOf = (generation: GenerationRow): TurnOwner | undefined =>
  turnOwners.all().findLast(owner => ('owns' in owner ? owner.owns(generation) : owner.source === generation.source))

/** Returns the extensions of a turn by its owner. The row of its permission may be deleted: only its id is checked. */
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

export type TurnContext = {
  signal: AbortSignal
  stopping: AbortSignal
  log: Logger
  /** Releases the slot of the worker while `work` waits for other messages. */
  releaseSlotWhile: <T>(work: () => Promise<T>) => Promise<T>
  /** Sets the delay after which the message is handled again if the turn is requeued. */
  retryIn: (ms: number) => void
  source?: TurnSource
  /** Whether this process is the holder of the turn, which it created in progress. */
  isHolder?: boolean
  /** Completes the message of a turn without a source when it settles. */
  complete?: (outbox: Outbox) => void
  /** The last claim of the message that was lost. */
  lostClaim?: LostClaim | null
}
