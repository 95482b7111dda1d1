import { raise } from '../../../core/api/errors.ts'
import type { Tx } from '../../../core/db/writer.ts'
import type { Services } from '../../../core/process/services.ts'
import { lockUnpaused } from '../../../identity/projects/pause.ts'
import type { AgentRow } from '../../agents/model.ts'
import { findAgentVersion, findServedAgent, type ReleaseSubject } from '../../agents/served-version.ts'
import { consumeShareCall } from '../../shares/consume-cap.ts'
import { grantingShares } from '../../shares/grants.ts'

/**
 * What every surface asks before it makes a turn: the project is not paused (PROJECT_PAUSED) and stays so until the
 * transaction ends, the agent is one of the project's or shared with it (AGENT_NOT_FOUND), and the share allows one more
 * turn (SHARE_CAP_EXCEEDED). Returns the agent as the turn would be served it.
 */
export async function admitTurn(
  tx: Tx,
  services: Services,
  input: ReleaseSubject & { project_id: string; agent_id: string; pinned_version?: number },
): Promise<AgentRow> {
  await lockUnpaused(tx, input.project_id)
  const agent =
    input.pinned_version === undefined
      ? await findServedAgent(tx, input.agent_id, input)
      : await findAgentVersion(tx, input.agent_id, input.pinned_version)
  if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: input.agent_id } })
  await consumeShareForTurn(tx, services, input.project_id, agent)
  return agent
}

/**
 * Takes a turn of an agent from the share that it reaches a project by, in the transaction that makes the turn; nothing
 * for an agent of the project itself.
 * @throws AGENT_NOT_FOUND where nothing shares it, SHARE_CAP_EXCEEDED
 */
export async function consumeShareForTurn(
  tx: Tx,
  services: Services,
  projectId: string,
  { id, project_id }: Pick<AgentRow, 'id' | 'project_id'>,
): Promise<void> {
  if (project_id === projectId) return
  const share = (await grantingShares(tx, 'agent', projectId, [id])).get(id)
  if (!share) return raise('AGENT_NOT_FOUND', { meta: { id } })
  await consumeShareCall(services, { project_id: projectId, share }, tx)
}
