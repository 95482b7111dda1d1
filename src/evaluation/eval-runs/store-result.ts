import type { RecordedFailure } from '../../core/api/errors.ts'
import { AppError } from '../../core/api/errors.ts'
import { storableText, storableValue } from '../../core/api/storable-text.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type OpenItem, RESULT_CHANNEL } from './model.ts'
import { evalRunQueue } from './queue.ts'
import { deleteToolContext, type ItemEnd, storeResult } from './store.ts'

/**
 * Stores the result of an item in state `from`; after the last item, wakes the run. Returns whether the result was
 * stored.
 */
export async function storeEvalResult(
  tx: Tx,
  item: Pick<OpenItem, 'id' | 'eval_run_id' | 'project_id' | 'claims'>,
  from: 'queued' | 'asked' | 'answered',
  { output, scores, error }: ItemEnd,
): Promise<boolean> {
  const counts = await storeResult(tx, item, from, {
    output: output === null ? null : storableText(output),
    scores: error ? [] : (storableValue(scores) as ItemEnd['scores']),
    error: error && (storableValue(error) as RecordedFailure),
  })
  if (!counts) return false
  tx.notify(RESULT_CHANNEL, item.id)
  if (counts.status === 'canceled') await deleteToolContext(tx, item.eval_run_id)
  else if (counts.left === 0) tx.send(evalRunQueue, { eval_run_id: item.eval_run_id, project_id: item.project_id })
  return true
}

/** Returns the recorded failure of an item that could not be executed. */
export const executionFailure = (error: unknown): RecordedFailure =>
  error instanceof AppError
    ? error.recorded()
    : { code: 'GENERATION_FAILED', message: 'Item could not be executed because of an internal error' }

/** Returns the recorded failure of an item whose scoring attempts are exhausted. */
export const exhaustedScoringFailure = (error: unknown): RecordedFailure =>
  error instanceof AppError
    ? error.recorded()
    : { code: 'GENERATION_FAILED', message: 'Output could not be scored because of an internal error' }
