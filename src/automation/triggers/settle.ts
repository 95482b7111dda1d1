import { kinds } from '#core/api/kind.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue, truncateChars } from '#core/base/storable-text.ts'
import { isolateFailures } from '#core/work/sweeps.ts'
import { waiters } from '#core/work/waiters.ts'
import type { Tx } from '#core/writes/writer.ts'
import { FIRING_CHANNEL, type FiringRow } from './model.ts'
import {
  listOrphanedFirings,
  type Orphan,
  settleByResult,
  settleTriggerFiringRow,
  type TriggerFiringEnd,
} from './store.ts'
import { triggerTargets } from './targets.ts'

export const firingWaiters = waiters<FiringRow>('firings', 'automation/triggers')

/** Characters of an output that a firing stores. */
const OUTPUT_CHARS = 4000

/** Firings per query for deleted work. */
const ORPHAN_BATCH = 500

/** Returns an output as stored with the firing, long outputs as a preview. */
export function storedOutput(output: unknown): unknown {
  const value = storableValue(output ?? null)
  const text = JSON.stringify(value)
  return text.length <= OUTPUT_CHARS ? value : { truncated: true, preview: truncateChars(text, OUTPUT_CHARS) }
}

async function notifySettled(tx: Tx, firing: FiringRow | null): Promise<void> {
  if (!firing) return
  tx.notify(FIRING_CHANNEL, firing.id)
  await firingWaiters.notify(tx, firing)
}

/** Settles a firing that has not settled. */
export const settleTriggerFiring = async (tx: Tx, id: string, end: TriggerFiringEnd): Promise<void> =>
  notifySettled(tx, await settleTriggerFiringRow(tx, id, end))

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

/** Fails firings whose turn or run was deleted. Each is settled separately: a failure does not block the others. */
export async function settleOrphanedFirings(services: Services, stopping: AbortSignal): Promise<void> {
  const started = triggerTargets.all().flatMap(({ type, starts }) => {
    const kind = starts === undefined ? undefined : kinds.find(starts)
    return kind ? [{ type, table: kind.table }] : []
  })
  const error = new AppError('RESOURCE_NOT_FOUND', { message: 'The work started by the firing was deleted' }).recorded()
  for (let page: readonly Orphan[] | null = null; !page || page.length === ORPHAN_BATCH; ) {
    page = await listOrphanedFirings(services.pool, started, { after: page?.at(-1), limit: ORPHAN_BATCH })
    for (const { id } of page) {
      if (stopping.aborted) return
      await isolateFailures(services, { firing_id: id }, () =>
        services.write(tx => settleTriggerFiring(tx, id, { error })),
      )
    }
  }
}
