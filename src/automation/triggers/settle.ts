import type { RecordedFailure } from '../../core/api/errors.ts'
import { storableValue, truncateChars } from '../../core/api/storable-text.ts'
import type { Tx } from '../../core/db/writer.ts'
import { FIRING_CHANNEL, type FiringRow } from './model.ts'
import { endFiring, type FiringClaim, settleByResult, type TriggerFiringEnd } from './store.ts'
import { firingWatchers } from './targets.ts'

/** Characters of an output that a firing keeps. */
const OUTPUT_CHARS = 4000

/** An output as a firing keeps it: a long one as a preview. */
export function storedOutput(output: unknown): unknown {
  const value = storableValue(output ?? null)
  const text = JSON.stringify(value)
  return text.length <= OUTPUT_CHARS ? value : { truncated: true, preview: truncateChars(text, OUTPUT_CHARS) }
}

async function ended(tx: Tx, firing: FiringRow | null): Promise<boolean> {
  if (!firing) return false
  tx.notify(FIRING_CHANNEL, firing.id)
  for (const watch of firingWatchers.all()) await watch(tx, firing)
  return true
}

/** Ends a firing, unless it has ended; with a claim only while that holds. Returns whether this was the end. */
export const settleTriggerFiring = async (
  tx: Tx,
  id: string,
  end: TriggerFiringEnd,
  claim?: FiringClaim,
): Promise<boolean> => ended(tx, await endFiring(tx, id, end, claim))

/** Ends the firing that waits for a turn or a run, in the transaction in which that ends. Nothing where none does. */
export async function settleStarted(
  tx: Tx,
  resultId: string,
  { status, output, error = null }: { status: string; output: unknown; error?: RecordedFailure | null },
): Promise<void> {
  await ended(
    tx,
    await settleByResult(tx, resultId, { status, output: storedOutput(output) }, error && recorded(error)),
  )
}

const recorded = (error: RecordedFailure): RecordedFailure => storableValue(error) as RecordedFailure
