import { currentCapture } from '#core/base/telemetry.ts'
import { addSpans } from '#core/writes/span-outbox.ts'
import type { Outbox, StatementWrite, Tx } from '#core/writes/writer.ts'
import type { GenerationRow } from '../model.ts'
import { listAbortedOrLost } from '../store.ts'
import { addFrame, type Frame } from '../streams/frame-store.ts'
import { liveTurns, TurnAborted, TurnClaimLost } from '../streams/live-turns.ts'
import { localEnd, notifyEnd, sealEnd } from '../streams/turn-end.ts'
import type { TurnAttempt } from './turn-attempt.ts'
import { settledTurn } from './turn-span.ts'
import { executeFenced } from './turn-store.ts'

type AttemptCommit = {
  /** The record after the write. */
  after: GenerationRow
  /** Frames before the last one. */
  frames: Frame[]
  /** Builds the last frame, with the result of the turn's source in place of the agent's result. */
  last: (result: object | null) => { event: string; data: object }
  /** Whether no reader needs the last frame, unless the turn's source has a result. */
  isRecorded?: boolean
  parts: (frames: Frame[]) => StatementWrite
  addWrites: (outbox: Outbox) => void
  /** Writes of the turn's source in the same transaction. */
  inSource: ((tx: Tx) => Promise<{ result: object | null } | undefined> | undefined) | undefined
  /** Whether a failure found by the source under its locks, or a requested abort, takes precedence. */
  interruptible: boolean
}

/**
 * Writes the end or the pause of an attempt: in one statement, or in a transaction if the turn's source adds writes.
 * @throws TurnClaimLost, TurnAborted for a failure that takes precedence
 */
export async function commitAttempt(
  turn: TurnAttempt,
  { after, frames, last, isRecorded = false, parts, addWrites, inSource, interruptible }: AttemptCommit,
): Promise<void> {
  const { services, context, generation } = turn
  // A retried write gives its last frame the same number.
  const firstSeq = turn.frames.seq
  const capture = currentCapture()
  const addAll = (outbox: Outbox) => {
    addWrites(outbox)
    if (capture) addSpans(services, outbox, settledTurn(turn, after), capture)
  }
  const lastFrame = (outbox: Outbox, result: object | null): Frame => {
    const { event, data } = last(result)
    const frame = turn.frames.next(event, data)
    const end = { seq: frame.seq, data }
    if (context.isHolder) {
      // Callers in this process get the end directly; the notification is for other processes.
      notifyEnd(outbox, after.id)
      outbox.afterCommit(() => liveTurns(services).announceEnd(after.id, localEnd(after, end)))
    } else notifyEnd(outbox, after.id, turn.data?.awaited ? sealEnd(services, after, end) : null)
    return frame
  }
  const inTransaction = (writeSource: NonNullable<AttemptCommit['inSource']>) =>
    services.write(async tx => {
      turn.frames.rewind(firstSeq)
      const { stop, isOwned } = (await context.source?.lock?.(tx, generation)) ?? { stop: null, isOwned: null }
      if (stop && interruptible) throw new TurnAborted({ stop_reason: 'error', ...stop })
      const write = parts(frames)
      if (isOwned) tx.alongside(() => write.ctes)
      else if (isOwned === false || !(await executeFenced(tx, write))) return false
      addAll(tx)
      const written = await writeSource(tx)
      const result = written?.result ?? null
      const frame = lastFrame(tx, result)
      if (!isRecorded || result) addFrame(tx, after.id, frame)
      return true
    })
  const inOneStatement = async () => {
    const { held } = await services.writeOne(outbox => {
      turn.frames.rewind(firstSeq)
      addAll(outbox)
      context.complete?.(outbox)
      const frame = lastFrame(outbox, null)
      return parts(isRecorded ? frames : [...frames, frame])
    })
    return held
  }
  const owned = await turn.writeFenced(() => (inSource ? inTransaction(inSource) : inOneStatement()), after)
  if (!owned) throw (interruptible && (await findRequestedAbort(turn))) || new TurnClaimLost()
  turn.committed(after)
}

/** Returns the requested abort of a turn whose claim is current. */
export async function findRequestedAbort({
  services,
  generation: { id, attempt },
}: TurnAttempt): Promise<TurnAborted | null> {
  const [found] = await listAbortedOrLost(services.pool, [{ id, attempt }])
  const isOwn = found?.status === 'in_progress' && found.attempt === attempt
  return isOwn && found.abort ? new TurnAborted(found.abort) : null
}
