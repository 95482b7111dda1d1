import { memoryBound, narrowAuthority } from '../../../core/iam/authority.ts'
import type { Caller, CallerDefinition, PrincipalRecord } from '../../../core/iam/caller.ts'
import type { Services } from '../../../core/process/services.ts'
import { keepBoundary, keepsBoundary } from '../../../identity/boundaries.ts'
import { callerForPrincipal } from '../../../identity/principals.ts'
import type { AgentRow } from '../../agents/model.ts'
import type { GenerationRow } from '../model.ts'

type Acting = Pick<AgentRow, 'id' | 'project_id' | 'version' | 'author' | 'boundary_policy' | 'knowledge_config'>

type ActingTurn = Pick<GenerationRow, 'authority' | 'project_id' | 'actor_id'>

const boundaryOf = ({ id: agent_id, version }: Acting) => ({ agent_id, version })

/** An agent as what narrows the rights of what its turns do in a project, which may be another one that it is shared with. */
const definitionOf = (agent: Acting, { project_id, actor_id }: ActingTurn): CallerDefinition => {
  const own = agent.project_id === project_id
  return {
    id: agent.id,
    author: own ? agent.author : undefined,
    boundary: agent.boundary_policy === null ? undefined : boundaryOf(agent),
    // Another project has no say in who reads the facts of this one.
    memory: { actor_id, shared: own && sharesFacts(agent) },
  }
}

const sharesFacts = ({ knowledge_config }: Acting): boolean => knowledge_config?.share_between_actors ?? false

/**
 * Whose rights a turn acts with: its own authority, within its agent's boundary and the rights of the agent's author, and
 * among the facts that it may read.
 */
export const actingAuthority = (turn: ActingTurn, agent: Acting): PrincipalRecord =>
  narrowAuthority(turn.authority, definitionOf(agent, turn))

/** The end user whose turn it is, or of the turn that caused it; null for none. */
export const actorOfTurn = ({ actor_id, authority }: Pick<ActingTurn, 'actor_id' | 'authority'>): string | null =>
  actor_id ?? memoryBound(authority)?.actor_id ?? null

/** The same as of now; null when the turn may not act any more. */
export async function actingCaller(services: Services, turn: ActingTurn, agent: Acting): Promise<Caller | null> {
  if (agent.boundary_policy !== null && !keepsBoundary(services, boundaryOf(agent)))
    keepBoundary(services, boundaryOf(agent), agent.boundary_policy)
  return callerForPrincipal(services, actingAuthority(turn, agent), turn.project_id)
}
