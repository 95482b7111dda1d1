import type { RecordedFailure } from '../../core/errors.ts'
import type { Services } from '../../core/operation.ts'
import type { Tx } from '../../core/write.ts'
import { makeFrame } from './frames.ts'
import { ABORT_CHANNEL, TURN_CHANNEL } from './live.ts'
import { type GenerationRow, presentGeneration, storable } from './model.ts'
import { lockGeneration, requestAbort, settleTurn } from './store.ts'

/**
 * Ends a turn from outside, inside the caller's transaction: a pending one fails at once with the failure, a running
 * one is asked to abort and its worker settles it, a settled one is left alone. With `force` a running one fails at once
 * too: for turns that no worker can get past; whatever still runs of it then writes nothing.
 */
export async function abortTurn(
  tx: Tx,
  services: Services,
  generationId: string,
  failure: RecordedFailure,
  options: { stop_reason?: 'error' | 'cancelled'; force?: boolean } = {},
): Promise<'failed' | 'requested' | 'terminal'> {
  const generation = await lockGeneration(tx, generationId)
  if (!generation || generation.status === 'completed' || generation.status === 'failed') return 'terminal'
  const stop_reason = options.stop_reason ?? 'error'
  if (generation.status === 'in_progress' && !options.force) {
    await requestAbort(tx, generationId, { ...failure, stop_reason })
    tx.notify(ABORT_CHANNEL, generationId)
    return 'requested'
  }
  const now = new Date().toISOString()
  const shown: GenerationRow = {
    ...generation,
    status: 'failed',
    stop_reason,
    error: failure,
    required_action: null,
    completed_at: now,
    last_activity_at: now,
    updated_at: now,
  }
  const after = storable(shown, now)
  const frames = [makeFrame(services, generation, 1, 'error', failure)]
  await settleTurn(tx, {
    generation,
    after,
    step: null,
    frames,
    outbox: { events: [], entries: [], notifications: [] },
  })
  tx.emit('generations.failed', after.project_id, presentGeneration(after))
  tx.notify(TURN_CHANNEL, `${generationId} settled`)
  return 'failed'
}
