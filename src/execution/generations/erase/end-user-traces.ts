import type { EndUserContentEraser, EndUserPurge } from '../../../control/retention/erasure.ts'
import { AppError } from '../../../core/api/errors.ts'
import { cancelTurn } from '../request/cancel-turn.ts'
import { purgeTraces } from './purge.ts'
import { openOf, rootsOfEndUser } from './purge-store.ts'

/** Traces of a transaction. */
const BATCH = 50

/**
 * The trees of traces in which there are turns of an end user, or of conversations in which it takes part: their turns were
 * given what it said. What runs or waits is called off first.
 */
export const endUserTurns: EndUserContentEraser = {
  async erase(purge) {
    const { endUser, until, read } = purge
    let busy = false
    for (let after = ''; ; ) {
      const roots = await rootsOfEndUser(read, endUser, { until, after, limit: BATCH })
      if (roots.length === 0) break
      await callOff(purge, roots)
      if (!(await eraseTogether(purge, roots))) busy = true
      after = roots[roots.length - 1]
    }
    return busy ? 'busy' : 'erased'
  },
}

/** Each in its own transaction, which takes the mailbox of its conversation. */
async function callOff({ services, read, write }: EndUserPurge, roots: readonly string[]): Promise<void> {
  for (const open of await openOf(read, roots))
    await write(async tx => {
      await cancelTurn(tx, services, open)
      return {}
    })
}

/** Erases traces in one transaction; where one of them is busy, each in its own. False when one still is. */
async function eraseTogether(purge: EndUserPurge, roots: readonly string[]): Promise<boolean> {
  const { services, endUser, by, write } = purge
  try {
    await write(async tx => (await purgeTraces(tx, services, endUser.project_id, roots, by)).counts)
    return true
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'GENERATION_ALREADY_IN_PROGRESS') throw error
    if (roots.length === 1) return false
    let all = true
    for (const root of roots) all = (await eraseTogether(purge, [root])) && all
    return all
  }
}
