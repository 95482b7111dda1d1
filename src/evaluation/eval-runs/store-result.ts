import type { RecordedFailure } from '../../core/api/errors.ts'
import { AppError } from '../../core/api/errors.ts'
import { storableText, storableValue } from '../../core/api/storable-text.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type OpenItem, RESULT_CHANNEL } from './model.ts'
import { evalRunQueue } from './queue.ts'
import { dropContext, type ItemEnd, storeResult } from './store.ts'

/**
 * Stores the result of an item that is in a state, unless it has one, and wakes its run with the last one. Returns whether
 * this was the end.
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
  if (counts.status === 'canceled') await dropContext(tx, item.eval_run_id)
  else if (counts.left === 0) tx.send(evalRunQueue, { eval_run_id: item.eval_run_id, project_id: item.project_id })
  return true
}

/** What is recorded of an item that could not be asked, or whose turn did not complete. */
export const notAnswered = (error: unknown): RecordedFailure =>
  error instanceof AppError
    ? error.recorded()
    : { code: 'GENERATION_FAILED', message: 'The item could not be asked: an internal failure' }

/** What is recorded of an item that was answered and could not be scored, for a reason of ours. */
export const notScored = (error: unknown): RecordedFailure =>
  error instanceof AppError
    ? error.recorded()
    : { code: 'GENERATION_FAILED', message: 'The answer could not be scored: an internal failure' }
