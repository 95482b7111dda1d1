import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { AgentRow } from '#execution/agents/model.ts'
import { findAgentVersion, findServedAgent, type ReleaseSubject } from '#execution/agents/served-version.ts'
import { consumeShareCall } from '#execution/grants/consume-cap.ts'
import { findGrantingShares } from '#execution/grants/grants.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'

/**
 * Admits a turn: share-locks the project against a pause until the transaction ends, resolves the agent, which is one
 * of the project or shared with it, and consumes a turn of the share. Returns the agent in the version of the turn.
 * @throws PROJECT_PAUSED, AGENT_NOT_FOUND, SHARE_CAP_EXCEEDED
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
 * Consumes a turn of the share of an agent in the transaction that creates the turn; does nothing for an agent of the
 * project.
 * @throws AGENT_NOT_FOUND if no share grants the agent, SHARE_CAP_EXCEEDED
 */
export async function consumeShareForTurn(
  tx: Tx,
  services: Services,
  projectId: string,
  { id, project_id }: Pick<AgentRow, 'id' | 'project_id'>,
): Promise<void> {
  if (project_id === projectId) return
  const share = (await findGrantingShares(tx, 'agent', projectId, [id])).get(id)
  if (!share) return raise('AGENT_NOT_FOUND', { meta: { id } })
  await consumeShareCall(services, { project_id: projectId, share }, tx)
}
