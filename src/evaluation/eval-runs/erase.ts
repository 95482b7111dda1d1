import {
  contentUnavailable,
  type EndUserContentEraser,
  type EndUserPurge,
  sumCounts,
  type TurnContentEraser,
} from '../../control/retention/erasure.ts'
import { AppError } from '../../core/api/errors.ts'
import { eraseStoredResponses } from '../../core/api/idempotency.ts'
import { eraseDecisions } from '../../execution/deciders/erase.ts'
import { purgeTraces } from '../../execution/generations/erase/purge.ts'
import { cancelTurnIfActive } from '../../execution/generations/request/cancel-turn.ts'
import { decisionsOfResults, eraseOutputs, eraseResults, lockOpen, resultsOfEndUser, tracesOfResults } from './store.ts'
import { storeEvalResult } from './store-result.ts'

/** What a turn answered to an item goes with the content of the turn; scores and verdict stay. */
export const resultContent: TurnContentEraser = {
  async erase(tx, turns) {
    const count = await eraseOutputs(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { eval_results: count }, events: [] }
  },
}

/** Results of a transaction. */
const BATCH = 50

/**
 * Results of items that were copied from an end user keep their scores and verdicts alone; with them goes the content of the
 * turns that answered them, and of those by which deciders judged them. Items that are under way fail.
 */
export const copiedResults: EndUserContentEraser = {
  async erase(purge) {
    const { read, endUser, until } = purge
    let busy = false
    for (let after = ''; ; ) {
      const ids = await resultsOfEndUser(read, endUser, { until, after, limit: BATCH })
      if (ids.length === 0) break
      await endOpen(purge, ids)
      if (!(await eraseTogether(purge, ids))) busy = true
      after = ids[ids.length - 1]
    }
    return busy ? 'busy' : 'erased'
  },
}

/** Ends items that have no result yet; a turn that runs is called off, and its worker ends the item. */
const endOpen = ({ services, write }: EndUserPurge, ids: readonly string[]) =>
  write(async tx => {
    const error = contentUnavailable().recorded()
    for (const item of await lockOpen(tx, ids)) {
      if (item.state === 'asked') await cancelTurnIfActive(tx, services, item.generation_id as string)
      else if (item.state !== 'done') await storeEvalResult(tx, item, item.state, { output: null, scores: [], error })
    }
    return {}
  })

/** Erases results in one transaction; where a turn of one is busy, each in its own. False when something is left. */
async function eraseTogether(purge: EndUserPurge, ids: readonly string[]): Promise<boolean> {
  const { services, endUser, by, write } = purge
  let left = false
  try {
    await write(async tx => {
      const open = await lockOpen(tx, ids)
      left = open.length > 0
      const done = ids.filter(id => !open.some(item => item.id === id))
      const decisions = await decisionsOfResults(tx, done)
      const roots = await tracesOfResults(tx, done, decisions)
      const { counts } =
        roots.length > 0 ? await purgeTraces(tx, services, endUser.project_id, roots, by) : { counts: {} }
      const eval_results = await eraseResults(tx, done, contentUnavailable().recorded())
      const kept_answers = await eraseStoredResponses(tx, services, endUser.project_id, done, contentUnavailable())
      const decided = await eraseDecisions(tx, decisions)
      return sumCounts({ ...counts, eval_results, decisions: 0 }, decided, { kept_answers })
    })
    return !left
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'GENERATION_ALREADY_IN_PROGRESS') throw error
    if (ids.length === 1) return false
    let all = true
    for (const id of ids) all = (await eraseTogether(purge, [id])) && all
    return all
  }
}
