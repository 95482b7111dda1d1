import type { TurnOwner } from '../../execution/generations/source.ts'
import { SOURCE } from './ask.ts'
import { finish } from './finish.ts'
import type { OpenItem } from './model.ts'
import { scoreQueue } from './queue.ts'
import { instantScores, scoringFailure } from './score.ts'
import { itemOfTurn, keepAnswer } from './store.ts'

/**
 * The turn of an item settles it, whoever ends the turn: at once where its scorers call nothing, else a worker has them judge
 * what was answered.
 */
export const itemTurns: TurnOwner = {
  source: SOURCE,
  async settled(tx, { id }, { status, content, object, error }) {
    const item = await itemOfTurn(tx, id)
    if (!item) return
    if (status !== 'completed') {
      const failure = error ?? { code: 'GENERATION_FAILED', message: 'The turn failed' }
      await finish(tx, item, 'asked', { output: null, scores: [], error: failure })
      return
    }
    const output = content ?? ''
    const answered: OpenItem = { ...item, output, object: object ?? null }
    const shown = item.content_mode === 'none' ? null : output
    try {
      const scores = instantScores(answered)
      if (scores) await finish(tx, item, 'asked', { output: shown, scores, error: null })
      else {
        await keepAnswer(tx, item, { output, object })
        tx.send(scoreQueue, { result_id: item.id, eval_run_id: item.eval_run_id, project_id: item.project_id })
      }
    } catch (failed) {
      const failure = scoringFailure(failed)
      if (!failure) throw failed
      await finish(tx, item, 'asked', { output: shown, scores: [], error: failure })
    }
  },
  async paused(tx, { id }) {
    const item = await itemOfTurn(tx, id)
    const error = { code: 'GENERATION_FAILED', message: 'The turn waits for its client, which an eval has none of' }
    if (item) await finish(tx, item, 'asked', { output: null, scores: [], error })
  },
}
