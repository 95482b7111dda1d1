import type { Services } from '#core/base/services.ts'
import { memoryBound, narrowAuthority } from '#core/iam/authority.ts'
import type { Caller, CallerDefinition, PrincipalRecord } from '#core/iam/caller.ts'
import type { AgentRow } from '#execution/agents/model.ts'
import { keepBoundary, keepsBoundary } from '#identity/principals/boundaries.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import type { GenerationRow } from '../model.ts'

type ActingAgent = Pick<AgentRow, 'id' | 'project_id' | 'version' | 'author' | 'boundary_policy' | 'knowledge_config'>

type ActingTurn = Pick<GenerationRow, 'authority' | 'project_id' | 'actor_id'>

const boundaryOf = ({ id: agent_id, version }: ActingAgent) => ({ agent_id, version })

/** Returns the narrowing of permissions by an agent in a project, which may be another project than the agent's. */
const definitionOf = (agent: ActingAgent, { project_id, actor_id }: ActingTurn): CallerDefinition => {
  const isOwnAgent = agent.project_id === project_id
  return {
    id: agent.id,
    author: isOwnAgent ? agent.author : undefined,
    boundary: agent.boundary_policy === null ? undefined : boundaryOf(agent),
    // A publisher does not decide who reads facts of the consuming project.
    memory: { actor_id, shared: isOwnAgent && sharesFacts(agent) },
  }
}

const sharesFacts = ({ knowledge_config }: ActingAgent): boolean => knowledge_config?.share_between_actors ?? false

/**
 * Returns the authority of a turn: its own, narrowed by its agent's boundary, by the permissions of the agent's author
 * and to the facts that it may read.
 */
export const actingAuthority = (turn: ActingTurn, agent: ActingAgent): PrincipalRecord =>
  narrowAuthority(turn.authority, definitionOf(agent, turn))

/** Returns the end user of a turn, or of the turn that led to it. */
export const actorOfTurn = ({ actor_id, authority }: Pick<ActingTurn, 'actor_id' | 'authority'>): string | null =>
  actor_id ?? memoryBound(authority)?.actor_id ?? null

/** Returns the caller of a turn with its current permissions; null if the turn may no longer act. */
export async function actingCaller(services: Services, turn: ActingTurn, agent: ActingAgent): Promise<Caller | null> {
  if (agent.boundary_policy !== null && !keepsBoundary(services, boundaryOf(agent)))
    keepBoundary(services, boundaryOf(agent), agent.boundary_policy)
  return callerForPrincipal(services, actingAuthority(turn, agent), turn.project_id)
}
