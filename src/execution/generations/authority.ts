import { narrowed } from '../../core/iam/authority.ts'
import type { Caller, Definition, PrincipalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { keepBoundary, keepsBoundary } from '../../identity/boundaries.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import type { AgentRow } from '../agents/model.ts'
import type { GenerationRow } from './model.ts'

type Acting = Pick<AgentRow, 'id' | 'project_id' | 'version' | 'author' | 'boundary_policy'>

const boundaryOf = ({ id: agent_id, version }: Acting) => ({ agent_id, version })

/** An agent as what narrows the rights of what its turns do in a project, which may be another one that it is shared with. */
const definitionOf = (agent: Acting, projectId: string): Definition => ({
  id: agent.id,
  author: agent.project_id === projectId ? agent.author : undefined,
  boundary: agent.boundary_policy === null ? undefined : boundaryOf(agent),
})

/** Whose rights a turn acts with: its own authority, within its agent's boundary and the rights of the agent's author. */
export const actingAuthority = (
  { authority, project_id }: Pick<GenerationRow, 'authority' | 'project_id'>,
  agent: Acting,
): PrincipalRecord => narrowed(authority, definitionOf(agent, project_id))

/** The same as of now; null when the turn may not act any more. */
export async function actingCaller(
  services: Services,
  turn: Pick<GenerationRow, 'authority' | 'project_id'>,
  agent: Acting,
): Promise<Caller | null> {
  if (agent.boundary_policy !== null && !keepsBoundary(services, boundaryOf(agent)))
    keepBoundary(services, boundaryOf(agent), agent.boundary_policy)
  return callerForPrincipal(services, actingAuthority(turn, agent), turn.project_id)
}
