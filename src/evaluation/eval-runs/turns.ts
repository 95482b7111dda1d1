import type { TurnOwner } from '../../execution/generations/loop/turn-owner.ts'
import { EVAL_SOURCE } from './execute-item.ts'
import type { OpenItem } from './model.ts'
import { scoreQueue } from './queue.ts'
import { computeLocalScores, scoringFailure } from './score.ts'
import { findItemOfTurn, storeAnswer } from './store.ts'
import { storeEvalResult } from './store-result.ts'

/**
 * The transaction that settles the turn of an item also settles the item if its scorers make no calls; otherwise it
 * queues the item for scoring.
 */
export const itemTurnOwner: TurnOwner = {
  source: EVAL_SOURCE,
  async settled(tx, { id }, { status, content, object, error }) {
    const item = await findItemOfTurn(tx, id)
    if (!item) return
    if (status !== 'completed') {
      const failure = error ?? { code: 'GENERATION_FAILED', message: 'Turn failed' }
      await storeEvalResult(tx, item, 'asked', { output: null, scores: [], error: failure })
      return
    }
    const output = content ?? ''
    const answered: OpenItem = { ...item, output, object: object ?? null }
    const storedOutput = item.content_mode === 'none' ? null : output
    try {
      const scores = computeLocalScores(answered)
      if (scores) await storeEvalResult(tx, item, 'asked', { output: storedOutput, scores, error: null })
      else {
        await storeAnswer(tx, item, { output, object })
        tx.send(scoreQueue, { result_id: item.id, eval_run_id: item.eval_run_id, project_id: item.project_id })
      }
    } catch (failed) {
      const failure = scoringFailure(failed)
      if (!failure) throw failed
      await storeEvalResult(tx, item, 'asked', { output: storedOutput, scores: [], error: failure })
    }
  },
  async paused(tx, { id }) {
    const item = await findItemOfTurn(tx, id)
    const error = {
      code: 'GENERATION_FAILED',
      message: 'Turn requires client tool outputs, which are not available in an eval',
    }
    if (item) await storeEvalResult(tx, item, 'asked', { output: null, scores: [], error })
  },
}
