import type { TurnOwner } from '../../execution/generations/loop/turn-owner.ts'
import { EVAL_SOURCE } from './execute-item.ts'
import type { OpenItem } from './model.ts'
import { scoreQueue } from './queue.ts'
import { localScores, scoringFailure } from './score.ts'
import { itemOfTurn, storeAnswer } from './store.ts'
import { storeEvalResult } from './store-result.ts'

/**
 * The turn of an item settles it, whoever ends the turn: at once where its scorers call nothing, else a worker has them judge
 * what was answered.
 */
export const itemTurns: TurnOwner = {
  source: EVAL_SOURCE,
  async settled(tx, { id }, { status, content, object, error }) {
    const item = await itemOfTurn(tx, id)
    if (!item) return
    if (status !== 'completed') {
      const failure = error ?? { code: 'GENERATION_FAILED', message: 'The turn failed' }
      await storeEvalResult(tx, item, 'asked', { output: null, scores: [], error: failure })
      return
    }
    const output = content ?? ''
    const answered: OpenItem = { ...item, output, object: object ?? null }
    const shown = item.content_mode === 'none' ? null : output
    try {
      const scores = localScores(answered)
      if (scores) await storeEvalResult(tx, item, 'asked', { output: shown, scores, error: null })
      else {
        await storeAnswer(tx, item, { output, object })
        tx.send(scoreQueue, { result_id: item.id, eval_run_id: item.eval_run_id, project_id: item.project_id })
      }
    } catch (failed) {
      const failure = scoringFailure(failed)
      if (!failure) throw failed
      await storeEvalResult(tx, item, 'asked', { output: shown, scores: [], error: failure })
    }
  },
  async paused(tx, { id }) {
    const item = await itemOfTurn(tx, id)
    const error = { code: 'GENERATION_FAILED', message: 'The turn waits for its client, which an eval has none of' }
    if (item) await storeEvalResult(tx, item, 'asked', { output: null, scores: [], error })
  },
}
