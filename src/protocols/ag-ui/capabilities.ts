import { sessionKind } from '#conversation/sessions/kind.ts'
import { canSeeProject, requirePermitted } from '#core/api/access.ts'
import { raise } from '#core/base/errors.ts'
import { endUserLimits } from '#core/invoke/hooks.ts'
import { agentKind, findAgent } from '#execution/agents/model.ts'
import { findGrantingShares } from '#execution/grants/grants.ts'
import type { AgUiRequest } from './call.ts'

/**
 * Returns what the agent offers to clients of the protocol.
 * @throws RESOURCE_NOT_FOUND, QUOTA_EXCEEDED, FORBIDDEN for a caller that may not send messages to sessions
 */
export async function capabilitiesOf({ services, exchange, caller }: AgUiRequest, agentId: string): Promise<object> {
  const agent = await findAgent(services.pool, agentId)
  const project_id = caller.project_id ?? agent?.project_id ?? null
  const isVisible =
    agent !== null &&
    project_id !== null &&
    (agent.project_id === project_id
      ? canSeeProject(caller, project_id)
      : (await findGrantingShares(services.pool, 'agent', project_id, [agentId])).has(agentId))
  const isOpen = caller.end_user?.agent_ids.includes(agentId) ?? true
  if (!isVisible || !isOpen) return raise(agentKind.notFound, { meta: { id: agentId } })
  await exchange.request.count?.in(caller, project_id)
  requirePermitted(caller, 'sessions:SendSessionMessage', { kind: sessionKind, project_id })
  if (caller.end_user) await endUserLimits.only()?.(services, caller.end_user, {})
  return {
    identity: { name: agent.name ?? undefined, type: 'agent' },
    transport: { streaming: true, websocket: false, httpBinary: false, pushNotifications: false, resumable: true },
    tools: { supported: true, clientProvided: agent.accept_client_tools },
    output: { structuredOutput: agent.output_schema !== null },
    state: { snapshots: true, deltas: agent.shared_state, memory: true, persistentState: true },
    humanInTheLoop: { supported: true, approvals: true, interrupts: true, approveWithEdits: false },
  }
}
