import {
  contentUnavailable,
  type EndUserContentEraser,
  type EndUserPurge,
  sumCounts,
  type TurnContentEraser,
} from '#control/retention/erasure.ts'
import { eraseStoredResponses } from '#core/api/idempotency.ts'
import { AppError } from '#core/base/errors.ts'
import { eraseDecisions } from '#execution/deciders/erase.ts'
import { purgeTraces } from '#execution/generations/erase/purge.ts'
import { cancelTurnIfActive } from '#execution/generations/request/cancel-turn.ts'
import {
  eraseOutputs,
  eraseResults,
  listDecisionsOfResults,
  listResultsOfEndUser,
  listTracesOfResults,
  lockUnsettledItems,
} from './store.ts'
import { storeEvalResult } from './store-result.ts'

/** Erases outputs together with the content of their turns; scores and verdicts remain. */
export const resultContent: TurnContentEraser = {
  async erase(tx, turns) {
    const count = await eraseOutputs(
      tx,
      turns.map(({ id }) => id),
    )
    return { counts: { eval_results: count }, events: [] }
  },
}

/** Results per transaction. */
const BATCH = 50

/**
 * Erases results of items copied from an end user, except scores and verdicts, together with the content of their turns
 * and of the turns of their decisions. Active items fail.
 */
export const copiedResults: EndUserContentEraser = {
  async erase(purge) {
    const { read, endUser, until } = purge
    let busy = false
    for (let after = ''; ; ) {
      const ids = await listResultsOfEndUser(read, endUser, { until, after, limit: BATCH })
      if (ids.length === 0) break
      await failOpen(purge, ids)
      if (!(await eraseResultBatch(purge, ids))) busy = true
      after = ids[ids.length - 1]
    }
    return busy ? 'busy' : 'erased'
  },
}

/** Fails items without a result; cancels active turns, whose settlement ends the item. */
const failOpen = ({ services, write }: EndUserPurge, ids: readonly string[]) =>
  write(async tx => {
    const error = contentUnavailable().recorded()
    for (const item of await lockUnsettledItems(tx, ids)) {
      if (item.state === 'asked') await cancelTurnIfActive(tx, services, item.generation_id as string)
      else await storeEvalResult(tx, item, { scores: [], error })
    }
    return {}
  })

/** Erases results in one transaction, or in one per result if a turn is busy. Returns false if some remain. */
async function eraseResultBatch(purge: EndUserPurge, ids: readonly string[]): Promise<boolean> {
  const { services, endUser, by, write } = purge
  let hasOpen = false
  try {
    await write(async tx => {
      const open = await lockUnsettledItems(tx, ids)
      hasOpen = open.length > 0
      const done = ids.filter(id => !open.some(item => item.id === id))
      const decisions = await listDecisionsOfResults(tx, done)
      const roots = await listTracesOfResults(tx, done, decisions)
      const { counts } =
        roots.length > 0 ? await purgeTraces(tx, services, endUser.project_id, roots, by) : { counts: {} }
      const eval_results = await eraseResults(tx, done, contentUnavailable().recorded())
      const kept_answers = await eraseStoredResponses(tx, services, endUser.project_id, done, contentUnavailable())
      const decided = await eraseDecisions(tx, decisions)
      return sumCounts({ ...counts, eval_results, decisions: 0 }, decided, { kept_answers })
    })
    return !hasOpen
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'GENERATION_ALREADY_IN_PROGRESS') throw error
    if (ids.length === 1) return false
    let allErased = true
    for (const id of ids) allErased = (await eraseResultBatch(purge, [id])) && allErased
    return allErased
  }
}
