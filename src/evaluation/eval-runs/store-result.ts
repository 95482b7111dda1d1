import type { RecordedFailure } from '#core/base/errors.ts'
import { storableText, storableValue } from '#core/base/storable-text.ts'
import { currentSpan } from '#core/base/telemetry.ts'
import { ATTRIBUTE, EVALUATION_EVENT } from '#core/base/telemetry-names.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type OpenItem, RESULT_CHANNEL } from './model.ts'
import { evalRunQueue } from './settle-run.ts'
import { deleteToolContext, type ItemEnd, storeResult } from './store.ts'

/** Stores the result of an item; after the last item, wakes the run. */
export async function storeEvalResult(
  tx: Tx,
  item: Pick<OpenItem, 'id' | 'eval_run_id' | 'project_id'>,
  { output, scores, error }: ItemEnd,
): Promise<void> {
  const counts = await storeResult(tx, item, {
    output: output && storableText(output),
    scores: error ? [] : (storableValue(scores) as ItemEnd['scores']),
    error: error && (storableValue(error) as RecordedFailure),
  })
  if (!counts) return
  const span = error ? undefined : currentSpan()
  for (const { scorer, score, passed } of span ? scores : [])
    span?.addEvent(EVALUATION_EVENT, {
      [ATTRIBUTE.evaluationName]: scorer,
      [ATTRIBUTE.evaluationScore]: score,
      [ATTRIBUTE.evaluationLabel]: passed ? 'passed' : 'failed',
    })
  tx.notify(RESULT_CHANNEL, item.id)
  if (counts.status === 'canceled') await deleteToolContext(tx, item.eval_run_id)
  else if (counts.left === 0) tx.send(evalRunQueue, { eval_run_id: item.eval_run_id, project_id: item.project_id })
}
