import type { Caller } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import type { AgentRow } from '../agents/model.ts'
import { findServedAgent } from '../agents/served-version.ts'
import { actingCaller } from '../generations/loop/acting-caller.ts'
import { nodeSubject, recordDeferredEvaluations } from '../guardrails/evaluation-records.ts'
import { actingThrough, guardrailView, judgedArguments } from '../tools/call.ts'
import type { Callable } from '../tools/call-types.ts'
import { runOfCall, toolGate, type Verdict } from '../tools/guardrail-gate.ts'
import type { ApprovalRow } from './model.ts'
import { openFrozen } from './seal.ts'

/** The agent of an item as it is served now; null for none, and for one that is gone. */
export const agentOf = async ({ pool }: Pick<Services, 'pool'>, row: ApprovalRow): Promise<AgentRow | null> =>
  row.agent_id === null ? null : findServedAgent(pool, row.agent_id, row)

/** As whom the call of an item is made: as what proposed it, within what its agent may do as it is served now. */
export async function callerOf(
  services: Services,
  { authority, agent_id, project_id }: ApprovalRow,
  agent: AgentRow | null,
): Promise<Caller | null> {
  if (!authority || (agent_id !== null && !agent)) return null
  return agent
    ? actingCaller(services, { authority, project_id, actor_id: null }, agent)
    : callerForPrincipal(services, authority, project_id)
}

/** What the guardrails say now of a call that a person would approve with other arguments; null where there are none. */
export async function verdictOn(
  services: Services,
  row: ApprovalRow,
  tool: Callable,
  given: Record<string, unknown>,
): Promise<Verdict | null> {
  const agent = await agentOf(services, row)
  const { project_id, generation_id, proposed_action } = row
  const action = proposed_action?.action ?? tool.name
  const args = judgedArguments(tool, given)
  const run = runOfCall(row)
  const verdict = await toolGate.only()?.judge(services, {
    project_id,
    agent: agent && { id: agent.id, guardrail_ids: agent.project_id === project_id ? agent.guardrail_ids : null },
    tool: guardrailView(tool),
    action,
    args,
    generation_id,
    run,
    guardrail_context: openFrozen(services, row)?.guardrail_context ?? null,
    caller: actingThrough(services, tool, () => callerOf(services, row, agent)),
  })
  const asked_by = generation_id ?? (run && nodeSubject(run))
  if (asked_by !== null)
    recordDeferredEvaluations(services, { asked_by, tool: tool.id ?? tool.name, action, args }, row.id)
  return verdict ?? null
}
