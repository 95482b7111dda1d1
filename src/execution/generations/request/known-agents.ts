import { LRUCache } from 'lru-cache'
import type { Context } from '#core/api/operation.ts'
import { AppError } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { AgentRow } from '#execution/agents/model.ts'
import { AgentChanged } from './create.ts'
import { findRunnableAgent, type RunnableAgent } from './create-store.ts'

const MAX_AGE_MS = 60_000
const MAX_AGENTS = 1000
/** Characters of all agents as JSON, and of one: larger ones are read for each turn. */
const MAX_CHARACTERS = { all: 16 * 1024 * 1024, each: 128 * 1024 }

const agents = processSingleton(
  () =>
    new LRUCache<string, RunnableAgent>({
      max: MAX_AGENTS,
      ttl: MAX_AGE_MS,
      maxSize: MAX_CHARACTERS.all,
      maxEntrySize: MAX_CHARACTERS.each,
      sizeCalculation: agent => JSON.stringify(agent).length,
    }),
)

/**
 * Agents that this process has read, for operations that start turns with `withCurrentAgent`. No notification drops them:
 * the statement that creates a turn requires their revision. Agents with a release are read for each turn, because the
 * read draws its version.
 */
export const knownAgents = (services: Services) => {
  const known = agents(services)
  return {
    get: (id: string): RunnableAgent | undefined => known.get(id),
    set(agent: RunnableAgent): void {
      if (agent.active_release === null) known.set(agent.id, { ...agent, known: true })
      else known.delete(agent.id)
    },
  }
}

/**
 * Starts a turn of the agent of an operation. If the process knew the agent and it has changed, the call is authorized and the
 * turn started again with the agent as it is: a change whose response was sent before applies to checks and turn.
 * @param start has no effect if it fails; passes the revision of a known agent to the creation of the turn
 */
export async function withCurrentAgent<T>(
  context: Pick<Context<unknown, unknown, AgentRow>, 'services' | 'audit' | 'recheck' | 'resource'>,
  start: (agent: RunnableAgent) => Promise<T>,
): Promise<T> {
  const { services, audit } = context
  const agent = context.resource as RunnableAgent
  if (!agent.known) return start(agent)
  const checks = audit.additional_checks.length
  try {
    return await start(agent)
  } catch (error) {
    const isChange = error instanceof AgentChanged
    if (!isChange && !(error instanceof AppError)) throw error
    const current = await findRunnableAgent(services.pool, agent.id)
    if (!isChange && current?.revision === agent.revision) throw error
    if (current) knownAgents(services).set(current)
    audit.additional_checks.length = checks
    await context.recheck(current)
    return start(current as RunnableAgent)
  }
}

/** Returns the revision that the creation of a turn requires: of an agent that the process knew. */
export const requiredRevision = ({ known, revision }: RunnableAgent): string | null => (known ? revision : null)
