import { raise } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/write.ts'
import { lockRunnable } from '../../identity/projects/pause.ts'
import type { AgentRow } from '../agents/model.ts'
import { findServedAgent, type TurnOwner } from '../agents/served.ts'

/**
 * What every surface asks before it makes a turn: the project is not paused (PROJECT_PAUSED) and stays so until the
 * transaction ends, the agent is one of the project's (AGENT_NOT_FOUND). Returns the agent as the turn would be served it.
 */
export async function admitTurn(
  tx: Tx,
  input: TurnOwner & { project_id: string; agent_id: string },
): Promise<AgentRow> {
  await lockRunnable(tx, input.project_id)
  const agent = await findServedAgent(tx, input.agent_id, input)
  if (!agent || agent.project_id !== input.project_id) raise('AGENT_NOT_FOUND', { meta: { id: input.agent_id } })
  return agent
}
