import type { RecordedFailure } from '../../core/api/errors.ts'
import { storableValue, truncateChars } from '../../core/api/storable-text.ts'
import type { Tx } from '../../core/db/writer.ts'
import { FIRING_CHANNEL, type FiringRow } from './model.ts'
import { type FiringClaim, settleByResult, settleTriggerFiringRow, type TriggerFiringEnd } from './store.ts'
import { firingWatchers } from './targets.ts'

/** Characters of an output that a firing stores. */
const OUTPUT_CHARS = 4000

/** Returns an output as stored with the firing, long outputs as a preview. */
export function storedOutput(output: unknown): unknown {
  const value = storableValue(output ?? null)
  const text = JSON.stringify(value)
  return text.length <= OUTPUT_CHARS ? value : { truncated: true, preview: truncateChars(text, OUTPUT_CHARS) }
}

async function notifySettled(tx: Tx, firing: FiringRow | null): Promise<boolean> {
  if (!firing) return false
  tx.notify(FIRING_CHANNEL, firing.id)
  for (const watch of firingWatchers.all()) await watch(tx, firing)
  return true
}

/** Settles a firing that has not settled, fenced by `claim` if given. Returns whether this call settled it. */
export const settleTriggerFiring = async (
  tx: Tx,
  id: string,
  end: TriggerFiringEnd,
  claim?: FiringClaim,
): Promise<boolean> => notifySettled(tx, await settleTriggerFiringRow(tx, id, end, claim))

/** Settles the firing, if any, that waits for a turn or run, in the transaction that settles the turn or run. */
export async function settleStarted(
  tx: Tx,
  resultId: string,
  { status, output, error = null }: { status: string; output: unknown; error?: RecordedFailure | null },
): Promise<void> {
  await notifySettled(
    tx,
    await settleByResult(tx, resultId, { status, output: storedOutput(output) }, error && storableFailure(error)),
  )
}

const storableFailure = (error: RecordedFailure): RecordedFailure => storableValue(error) as RecordedFailure
