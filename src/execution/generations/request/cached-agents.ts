import { randomInt } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { Context } from '#core/api/operation.ts'
import { AppError } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { Outbox } from '#core/writes/writer.ts'
import type { AgentRow } from '#execution/agents/model.ts'
import { generationKind } from '../model.ts'
import { consumeShareForTurn } from './admission.ts'
import { AgentChanged, createStartedTurn, createTurn, createTurnInOneStatement, type TurnInput } from './create.ts'
import { findRunnableAgent, type RunnableAgent } from './create-store.ts'
import { acquireLocalSlot, startLocally } from './local-turns.ts'

const MAX_AGE_MS = 60_000
const MAX_AGENTS = 1000
/** Characters of all agents as JSON, and of one: larger ones are read for each turn. */
const MAX_CHARACTERS = { all: 16 * 1024 * 1024, each: 128 * 1024 }

/** The served versions of an agent that were read: one, or during a release up to two. */
type Versions = readonly RunnableAgent[]

const agents = processSingleton(() => ({
  cache: new LRUCache<string, Versions>({
    max: MAX_AGENTS,
    ttl: MAX_AGE_MS,
    maxSize: MAX_CHARACTERS.all,
    maxEntrySize: MAX_CHARACTERS.each,
    sizeCalculation: versions => JSON.stringify(versions).length,
  }),
  /** Revisions of agents that are too large, so that they are not measured for each turn. */
  large: new LRUCache<string, string>({ max: MAX_AGENTS }),
}))

/** Returns the versions that turns get, each with a chance. */
const servedVersions = ({ active_release: release, version }: RunnableAgent): number[] =>
  release
    ? [
        ...(release.canary_percent < 100 ? [release.stable_version] : []),
        ...(release.canary_percent > 0 ? [release.canary_version] : []),
      ]
    : [version]

/**
 * Agents that this process has read, for operations that start turns by `withCurrentAgent`. No notification drops them:
 * the statement that creates a turn requires their revision.
 */
export const cachedAgents = (services: Services) => {
  const { cache, large } = agents(services)
  return {
    /** Returns an agent in a version that its release draws; undefined unless all of them were read, so that chances are exact. */
    get(id: string): RunnableAgent | undefined {
      const versions = cache.get(id)
      if (!versions) return
      const [{ active_release: release, version }] = versions
      if (!servedVersions(versions[0]).every(served => versions.some(row => row.version === served))) return
      const drawn = release
        ? release[randomInt(100) < release.canary_percent ? 'canary_version' : 'stable_version']
        : version
      return versions.find(row => row.version === drawn)
    },
    set(agent: RunnableAgent): void {
      if (large.get(agent.id) === agent.revision) return
      const served = servedVersions(agent)
      const others = (cache.get(agent.id) ?? []).filter(
        ({ version, updated_at }) =>
          version !== agent.version && served.includes(version) && updated_at === agent.updated_at,
      )
      cache.set(agent.id, [{ ...agent, cached: true }, ...others])
      if (!cache.has(agent.id)) large.set(agent.id, agent.revision)
    },
    delete: (id: string): boolean => cache.delete(id),
  }
}

/**
 * Starts a turn of the agent of an operation. If the agent has changed since it was read, the call is authorized and the turn
 * started again with the current agent: a change whose response was sent before applies to checks and turn.
 * @param start has no effect if it fails; creates the turn by `createRequestedTurn`
 */
export async function withCurrentAgent<T>(
  context: Pick<Context<unknown, unknown, AgentRow>, 'services' | 'audit' | 'recheck' | 'resource'>,
  start: (agent: RunnableAgent) => Promise<T>,
): Promise<T> {
  const { services, audit } = context
  const checks = audit.additional_checks.length
  let agent = context.resource as RunnableAgent
  for (let changes = 0; ; changes++) {
    try {
      return await start(agent)
    } catch (error) {
      const isChange = error instanceof AgentChanged
      if (!isChange && !(agent.cached && error instanceof AppError)) throw error
      const current = await findRunnableAgent(services.pool, agent.id)
      if (!isChange && current?.revision === agent.revision) throw error
      if (current) cachedAgents(services).set(current)
      else cachedAgents(services).delete(agent.id)
      audit.additional_checks.length = checks
      await context.recheck(current)
      agent = changes === 0 ? (current as RunnableAgent) : { ...(current as RunnableAgent), mayHaveChanged: true }
    }
  }
}

/**
 * Creates the turn of a request outside of conversations in one statement, or in a transaction with the call that it takes
 * of a share. `addWrites` adds what the request writes with it.
 * @param isLocal whether this process may execute the turn, if it has a slot: the caller waits for it, and the request has
 *   had no effect that a second start would repeat
 * @throws AgentChanged if the agent has changed and may be read again
 */
export async function createRequestedTurn(
  { services, grant }: Pick<Context, 'services' | 'grant'>,
  agent: RunnableAgent,
  turn: Omit<TurnInput, 'agent_id' | 'agent_version' | 'agent_revision' | 'shape'>,
  { isLocal, addWrites }: { isLocal: boolean; addWrites: (outbox: Outbox) => void },
) {
  const { id: agent_id, version: agent_version, cached, mayHaveChanged, revision } = agent
  const input: TurnInput = {
    ...turn,
    agent_id,
    agent_version,
    agent_revision: cached ? revision : null,
    shape: 'agent',
  }
  if (grant)
    return services.write(async tx => {
      await consumeShareForTurn(tx, services, input.project_id, agent)
      const made = await createTurn(tx, services, input)
      addWrites(tx)
      return made
    })
  const slot = isLocal && !mayHaveChanged ? await acquireLocalSlot(services, input) : null
  if (!slot) return createTurnInOneStatement(services, { input, binding: agent, addWrites })
  const { project_id, generation_id: id = newId(generationKind.prefix) } = input
  const started = { ...input, generation_id: id, agent_revision: revision }
  return startLocally(services, slot, {
    id,
    project_id,
    create: () => createStartedTurn(services, { input: started, binding: agent, addWrites }),
  })
}
