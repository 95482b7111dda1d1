import { recordUsage } from '#control/usage/meter.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { batchByKey } from '#core/db/batcher.ts'
import { databaseErrorKind } from '#core/db/database-errors.ts'
import { withTenant } from '#core/db/tenant-context.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { triggerChainOf } from '#core/iam/caller.ts'
import { addSpans } from '#core/writes/span-outbox.ts'
import type { Tx } from '#core/writes/writer.ts'
import { nodeExecutionQueue } from '../queue.ts'
import type { Advance } from './advance.ts'
import { advanceRun, type CachedStart } from './advance-run.ts'
import { endNode } from './end-node.ts'
import type { AdvanceResult, NodeEnd } from './node-execution.ts'
import { claimedNode } from './node-execution-store.ts'
import { settledNode } from './spans.ts'

/**
 * Ends node executions of one run and advances it once. For each that ends, the next ready node execution is claimed if its
 * caller may continue with it.
 * @param from the run, if it is cached
 * @returns a result for each of `ends`: null if its claim was lost
 */
export async function settleNodes(
  tx: Tx,
  services: Services,
  ends: readonly NodeEnd[],
  from: CachedStart | null = null,
): Promise<(AdvanceResult | null)[]> {
  const used = ends.flatMap(end => end.used)
  const held: NodeEnd[] = []
  let continuing: NodeEnd[] = []
  const advanced = await advanceRun(tx, services, ends[0].execution.run_id, {
    ...from,
    async report(advance) {
      advance.addUsage(...used)
      for (const end of ends) if (await endNode(advance, end)) held.push(end)
      for (const end of held) if (end.capture) addSpans(services, tx, settledNode(end), end.capture)
      return held.length > 0
    },
    claims(advance) {
      continuing = held.filter(({ mayContinue }) => mayContinue()).slice(0, slotsReleased(advance, held.length))
      return continuing.length
    },
  })
  if (!advanced) {
    await recordUsage(services, used, tx)
    return ends.map(() => null)
  }
  for (const [index, row] of advanced.claimed.entries())
    continuing[index].following.push(claimedNode(row, advanced.run))
  return ends.map(end => {
    if (!held.includes(end)) return null
    const index = continuing.indexOf(end)
    return { ...advanced, claimed: index < 0 ? [] : advanced.claimed.slice(index, index + 1) }
  })
}

/** Slots of the project that ending node executions release: fewer than them while the project is above its limit. */
function slotsReleased({ services, projectLeases }: Advance, ended: number): number {
  const limit = services.config.ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES
  return limit === 0 ? ended : Math.max(0, ended - Math.max(0, projectLeases - limit))
}

/**
 * Ends a node execution in a transaction, together with others of its run that end in this process at the same time or
 * while such a transaction runs: each of them would wait for the lock of the run, read it and write it.
 */
export async function settleNode(services: Services, end: NodeEnd): Promise<AdvanceResult | null> {
  const settled = await settlements(services)(end.execution.run_id, end)
  if (settled.status === 'rejected') throw settled.reason
  return settled.value
}

type Settled = PromiseSettledResult<AdvanceResult | null>

const settlements = processSingleton(services =>
  batchByKey<string, NodeEnd, Settled>((_run, ends) => {
    const { project_id: tenant, authority } = ends[0].execution
    const context = { tenant, patienceMs: Number.POSITIVE_INFINITY, work: nodeExecutionQueue.name }
    return withTenant(context, () => withTriggerChain(triggerChainOf(authority), () => settleTogether(services, ends)))
  }),
)

async function settleTogether(services: Services, ends: readonly NodeEnd[]): Promise<Settled[]> {
  // Claims of a transaction that was rolled back.
  for (const end of ends) end.following.length = 0
  try {
    const results = await services.write(tx => settleNodes(tx, services, ends))
    return results.map(value => ({ status: 'fulfilled', value }))
  } catch (error) {
    if (ends.length === 1 || databaseErrorKind(error) === 'unavailable')
      return ends.map(() => ({ status: 'rejected', reason: error }))
    // A refused end must not keep the others from being written.
    const settled: Settled[] = []
    for (const end of ends) settled.push(...(await settleTogether(services, [end])))
    return settled
  }
}
