import type { Outbox, StatementWrite, Tx } from '../../../core/db/writer.ts'
import type { GenerationRow } from '../model.ts'
import { listAbortedOrLost } from '../store.ts'
import { addFrame, type Frame } from '../streams/frame-store.ts'
import { TurnAborted, TurnClaimLost } from '../streams/live-turns.ts'
import type { TurnAttempt } from './turn-attempt.ts'
import { executeFenced } from './turn-store.ts'

type Closing = {
  /** The record as it stands afterwards. */
  after: GenerationRow
  /** Frames of what came before the last one. */
  frames: Frame[]
  /** The last frame, with what the turn's source gives instead of the agent's result. */
  last: (result: object | null) => Frame
  parts: (frames: Frame[]) => StatementWrite
  follow: (outgoing: Outbox) => void
  /** What the turn's source adds in the same transaction. */
  add: ((tx: Tx) => Promise<{ result: object | null } | undefined> | undefined) | undefined
  /** Whether a failure that the source finds when it takes its locks, or an abort that `parts` minds, comes before this end. */
  yields: boolean
}

/**
 * Writes the end or the pause of an attempt: one statement, or a transaction where the turn's source adds to it.
 * @throws TurnLost when another process owns the turn, TurnAborted for a failure that comes before
 */
export async function commitAttempt(
  turn: TurnAttempt,
  { after, frames, last, parts, follow, add, yields }: Closing,
): Promise<void> {
  const { services, run, generation } = turn
  // A write that is made again numbers its last frame as the first did.
  const firstSeq = turn.frames.seq
  const inTransaction = (source: NonNullable<Closing['add']>) =>
    services.write(async tx => {
      turn.frames.seq = firstSeq
      const stop = await run.source?.lock?.(tx, generation)
      if (stop && yields) throw new TurnAborted({ stop_reason: 'error', ...stop })
      if (!(await executeFenced(tx, parts(frames)))) return false
      follow(tx)
      const given = await source(tx)
      addFrame(tx, after.id, last(given?.result ?? null))
      return true
    })
  const inOneStatement = async () => {
    const { held } = await services.writeOne(outgoing => {
      turn.frames.seq = firstSeq
      follow(outgoing)
      run.complete?.(outgoing)
      return parts([...frames, last(null)])
    })
    return held
  }
  const owned = await turn.persist(() => (add ? inTransaction(add) : inOneStatement()), after)
  if (!owned) throw (yields && (await abortOf(turn))) || new TurnClaimLost()
  turn.generation = after
}

/** The abort that was asked for of a turn that this process owns. */
async function abortOf({ services, generation: { id, attempt } }: TurnAttempt): Promise<TurnAborted | null> {
  const [found] = await listAbortedOrLost(services.pool, [{ id, attempt }])
  const isOwn = found?.status === 'in_progress' && found.attempt === attempt
  return isOwn && found.abort ? new TurnAborted(found.abort) : null
}
