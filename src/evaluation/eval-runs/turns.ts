import { AppError } from '#core/base/errors.ts'
import type { TurnOwner } from '#execution/generations/loop/turn-owner.ts'
import { EVAL_SOURCE } from '#execution/generations/model.ts'
import { type OpenItem, RESULT_CHANNEL, type Score } from './model.ts'
import { wakeItem } from './process-item.ts'
import { computeBriefScores } from './score.ts'
import { findItemOfTurn, storeAnswer } from './store.ts'
import { storeEvalResult } from './store-result.ts'

/** Items to be scored come before items to be executed, even of a run that a caller waits for. */
const SCORING_PRIORITY = 2

/**
 * The transaction that settles the turn of an item also settles the item if its scorers make no calls and are brief;
 * otherwise it queues the item for scoring.
 */
export const itemTurnOwner: TurnOwner = {
  source: EVAL_SOURCE,
  async settled(tx, { id }, { status, content, object, error }) {
    const item = await findItemOfTurn(tx, id)
    if (!item) return
    if (status !== 'completed') {
      const failure = error ?? { code: 'GENERATION_FAILED', message: 'Turn failed' }
      return storeEvalResult(tx, item, { scores: [], error: failure })
    }
    const output = content ?? ''
    const answered: OpenItem = { ...item, output, object: object ?? null }
    const storedOutput = item.content_mode === 'none' ? null : output
    let scores: Score[] | null
    try {
      scores = await computeBriefScores(answered)
    } catch (failure) {
      if (!(failure instanceof AppError)) throw failure
      return storeEvalResult(tx, item, { output: storedOutput, scores: [], error: failure.recorded() })
    }
    if (scores) return storeEvalResult(tx, item, { output: storedOutput, scores, error: null })
    await storeAnswer(tx, item, { output, object })
    tx.notify(RESULT_CHANNEL, item.id)
    wakeItem(tx, item, SCORING_PRIORITY)
  },
  async paused(tx, { id }) {
    const item = await findItemOfTurn(tx, id)
    const error = {
      code: 'GENERATION_FAILED',
      message: 'Turn requires client tool outputs, which are not available in an eval',
    }
    if (item) await storeEvalResult(tx, item, { scores: [], error })
  },
}
