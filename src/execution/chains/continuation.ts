import { fileExceptionInTx } from '../../control/exceptions/file-exception.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { lockUnpaused } from '../../identity/projects/pause.ts'
import type { AgentRow } from '../agents/model.ts'
import { rememberTurnCte } from '../generations/loop/turn-hooks.ts'
import { type GenerationRow, generationKind } from '../generations/model.ts'
import type { TurnInput } from '../generations/request/create.ts'
import { joinChain } from '../generations/store.ts'
import { addTraceNote } from '../generations/traces/store.ts'
import type { ChainRow } from './model.ts'
import { type ChainLimit, countMembers, lockChain, projectChainLimit, writeChain } from './store.ts'

/** What a turn that carries on is made with. */
export type ChainMembership = Pick<TurnInput, 'initiator_generation_id' | 'chain_id'>

/** Undoes what an agent was asked for that its chain has no room for. */
class NoRoom extends Error {}

/**
 * Starts a turn that carries on after another one, in the transaction of what makes it go on; null where the chain of the two
 * has no room, which is noted then. Turns of a chain are counted under its lock, so of several that carry on at once none
 * takes the place of another.
 * @param initiatorId the turn that is carried on; null, or one that is gone, makes a turn outside a chain
 * @param admit asks for the turn, as `admitTurn` does; undone where the chain has no room
 * @param start makes the turn with the membership given
 * @throws PROJECT_PAUSED, and what `admit` and `start` raise, upon which the transaction must not commit
 */
export async function startContinuation<T>(
  tx: Tx,
  services: Services,
  { project_id, initiatorId }: { project_id: string; initiatorId: string | null },
  admit: (tx: Tx) => Promise<AgentRow>,
  start: (agent: AgentRow, member: ChainMembership, initiator: GenerationRow | null) => Promise<T>,
): Promise<T | null> {
  // Before the chain, as a delete of the project goes.
  await lockUnpaused(tx, project_id)
  const initiator = initiatorId === null ? null : await generationKind.find(tx, initiatorId)
  if (!initiator) return start(await admit(tx), {}, null)
  const bounds: ChainLimit[] = [{ limit: services.config.MAX_CONTINUATION_CHAIN_GENERATIONS, limit_source: 'platform' }]
  const ofProject = await projectChainLimit(tx, project_id)
  if (ofProject !== null) bounds.unshift({ limit: ofProject, limit_source: 'project' })
  const chain = await lockChain(tx, initiator, lowest(bounds))
  const count = await countMembers(tx, chain)
  let ceiling = lowest(bounds)
  try {
    const agent = await tx.nested(async nested => {
      const admitted = await admit(nested)
      ceiling = lowest([...agentBounds(admitted), ...bounds])
      if (chain.stopped_at !== null || count >= ceiling.limit) throw new NoRoom()
      return admitted
    })
    const made = await start(agent, { initiator_generation_id: initiator.id, chain_id: chain.id }, initiator)
    if (initiator.chain_id === null) await joinChain(tx, initiator.id, chain.id)
    await writeChain(tx, chain, { ...ceiling, status: 'active', generation_count: count + 1, continued: true })
    return made
  } catch (error) {
    if (!(error instanceof NoRoom)) throw error
    const limit_source = chain.stopped_at === null ? ceiling.limit_source : 'stopped'
    await refuseHop(tx, chain, initiator, count, { ...ceiling, limit_source })
    return null
  }
}

const agentBounds = ({ stop_conditions }: AgentRow): ChainLimit[] =>
  (stop_conditions ?? []).flatMap(condition =>
    condition.type === 'max_chain_generations'
      ? [{ limit: condition.max_generations, limit_source: 'agent' as const }]
      : [],
  )

/** The smallest bound; of equal ones the first. */
const lowest = (bounds: readonly ChainLimit[]): ChainLimit =>
  bounds.reduce((least, bound) => (bound.limit < least.limit ? bound : least))

/** Notes that a chain did not go on: for its readers, on the trace of the turn that was to be carried on, and for people. */
async function refuseHop(
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
    created_at: new Date().toISOString(),
  })
  const root = await generationKind.find(tx, root_generation_id)
  if (root)
    tx.emit(generationKind, 'chain_limit', root, {
      extra: {
        memory_entries: await rememberTurnCte(tx, root.id),
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
        ? `A chain of ${chain_size} turns was to go on after it had been stopped`
        : `A chain of ${chain_size} turns has reached the most that it may have`,
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
