import type { EndUserContentEraser, EndUserPurge } from '#control/retention/erasure.ts'
import { AppError } from '#core/base/errors.ts'
import { cancelTurn } from '../request/cancel-turn.ts'
import { purgeTraces } from './purge.ts'
import { listOpenTurnsOfRoots, listRootsOfEndUser } from './purge-store.ts'

/** Traces of one transaction. */
const BATCH = 50

/**
 * Erases the trace trees that contain turns of an end user, or of conversations in which it takes part, because these
 * turns had its messages as input. Open turns are cancelled first.
 */
export const endUserTurns: EndUserContentEraser = {
  async erase(purge) {
    const { endUser, until, read } = purge
    let busy = false
    for (let after = ''; ; ) {
      const roots = await listRootsOfEndUser(read, endUser, { until, after, limit: BATCH })
      if (roots.length === 0) break
      await cancelOpenTurns(purge, roots)
      if (!(await eraseTraces(purge, roots))) busy = true
      after = roots[roots.length - 1]
    }
    return busy ? 'busy' : 'erased'
  },
}

/** Cancels each turn in its own transaction, which locks the mailbox of its conversation. */
async function cancelOpenTurns({ services, read, write }: EndUserPurge, roots: readonly string[]): Promise<void> {
  for (const open of await listOpenTurnsOfRoots(read, roots))
    await write(async tx => {
      await cancelTurn(tx, services, open)
      return {}
    })
}

/** Erases traces in one transaction, or individually if one of them is busy. Returns false if one is still busy. */
async function eraseTraces(purge: EndUserPurge, roots: readonly string[]): Promise<boolean> {
  const { services, endUser, by, write } = purge
  try {
    await write(async tx => (await purgeTraces(tx, services, endUser.project_id, roots, by)).counts)
    return true
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'GENERATION_ALREADY_IN_PROGRESS') throw error
    if (roots.length === 1) return false
    let all = true
    for (const root of roots) all = (await eraseTraces(purge, [root])) && all
    return all
  }
}
