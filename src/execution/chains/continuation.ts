import { fileExceptionInTx } from '#control/exceptions/file-exception.ts'
import { systemClock } from '#core/base/clock.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import type { AgentRow } from '../agents/model.ts'
import { loadTurnMemory } from '../generations/loop/turn-hooks.ts'
import { type GenerationRow, generationKind } from '../generations/model.ts'
import type { TurnInput } from '../generations/request/create.ts'
import { joinChain } from '../generations/store.ts'
import { addTraceNote } from '../generations/traces/store.ts'
import type { ChainRow } from './model.ts'
import { type ChainLimit, countMembers, lockChain, projectChainLimit, writeChain } from './store.ts'

/** Chain fields of a continuing turn. */
export type ChainMembership = Pick<TurnInput, 'initiator_generation_id' | 'chain_id'>

/** Rolls back the admission of a turn when its chain is at its limit. */
class ChainLimitReached extends Error {}

/**
 * Starts a turn that continues another one, in the caller's transaction. Returns null, and records the refusal, if the
 * chain is at its limit. Turns of a chain are counted under its lock, so concurrent continuations cannot exceed the
 * limit.
 * @param initiatorId turn to continue; null or a deleted turn starts outside a chain
 * @param admit admits the turn like `admitTurn`; rolled back at the limit
 * @param start creates the turn with the given chain fields
 * @throws PROJECT_PAUSED, and the errors of `admit` and `start`, after which the transaction must not commit
 */
export async function startContinuation<T>(
  tx: Tx,
  services: Services,
  { project_id, initiatorId }: { project_id: string; initiatorId: string | null },
  admit: (tx: Tx) => Promise<AgentRow>,
  start: (agent: AgentRow, member: ChainMembership, initiator: GenerationRow | null) => Promise<T>,
): Promise<T | null> {
  // Locked before the chain, in the order of a project deletion.
  await lockUnpaused(tx, project_id)
  const initiator = initiatorId === null ? null : await generationKind.find(tx, initiatorId)
  if (!initiator) return start(await admit(tx), {}, null)
  const bounds: ChainLimit[] = [{ limit: services.config.MAX_CONTINUATION_CHAIN_GENERATIONS, limit_source: 'platform' }]
  const projectLimit = await projectChainLimit(tx, project_id)
  if (projectLimit !== null) bounds.unshift({ limit: projectLimit, limit_source: 'project' })
  const chain = await lockChain(tx, initiator, lowest(bounds))
  const count = await countMembers(tx, chain)
  let ceiling = lowest(bounds)
  try {
    const agent = await tx.nested(async nested => {
      const admitted = await admit(nested)
      ceiling = lowest([...agentBounds(admitted), ...bounds])
      if (chain.stopped_at !== null || count >= ceiling.limit) throw new ChainLimitReached()
      return admitted
    })
    const started = await start(agent, { initiator_generation_id: initiator.id, chain_id: chain.id }, initiator)
    if (initiator.chain_id === null) await joinChain(tx, initiator.id, chain.id)
    await writeChain(tx, chain, { ...ceiling, status: 'active', generation_count: count + 1, continued: true })
    return started
  } catch (error) {
    if (!(error instanceof ChainLimitReached)) throw error
    const limit_source = chain.stopped_at === null ? ceiling.limit_source : 'stopped'
    await recordChainLimit(tx, chain, initiator, count, { ...ceiling, limit_source })
    return null
  }
}

const agentBounds = ({ stop_conditions }: AgentRow): ChainLimit[] =>
  (stop_conditions ?? []).flatMap(condition =>
    condition.type === 'max_chain_generations'
      ? [{ limit: condition.max_generations, limit_source: 'agent' as const }]
      : [],
  )

/** Returns the smallest limit; of equal ones the first. */
const lowest = (bounds: readonly ChainLimit[]): ChainLimit =>
  bounds.reduce((least, bound) => (bound.limit < least.limit ? bound : least))

/**
 * Records a refused continuation: on the chain, in the trace of the turn to continue, as an event and as an exception.
 */
async function recordChainLimit(
  tx: Tx,
  chain: ChainRow,
  initiator: GenerationRow,
  chain_size: number,
  ceiling: ChainLimit,
): Promise<void> {
  const { id: chain_id, root_generation_id, project_id, agent_id } = chain
  const { limit, limit_source } = ceiling
  if (initiator.chain_id === null) await joinChain(tx, initiator.id, chain_id)
  await writeChain(tx, chain, {
    ...ceiling,
    status: 'budget_exhausted',
    generation_count: chain_size,
    continued: false,
  })
  await addTraceNote(tx, initiator.trace_id, {
    kind: 'chain_limit',
    generation_id: initiator.id,
    stop_reason: 'chain_limit',
    created_at: systemClock.now().toISOString(),
  })
  const root = await generationKind.find(tx, root_generation_id)
  if (root)
    tx.emit(generationKind, 'chain_limit', root, {
      extra: {
        memory_entries: await loadTurnMemory(tx, root.id),
        chain_id,
        root_generation_id,
        chain_size,
        limit,
        limit_source,
      },
    })
  fileExceptionInTx(tx, {
    project_id,
    kind: 'chain_limit',
    title:
      limit_source === 'stopped'
        ? `Continuation refused: chain of ${chain_size} turns was stopped`
        : `Continuation refused: chain of ${chain_size} turns is at its limit`,
    detail: {
      chain_id,
      root_generation_id,
      initiator_generation_id: initiator.id,
      chain_size,
      budget: limit,
      limit_source,
    },
    dedup_key: chain_id,
    agent_id,
  })
}
