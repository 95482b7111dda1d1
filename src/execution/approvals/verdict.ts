import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import type { AgentRow } from '../agents/model.ts'
import { findServedAgent } from '../agents/served-version.ts'
import { actingCaller } from '../generations/loop/acting-caller.ts'
import { nodeSubject, recordDeferredEvaluations } from '../guardrails/evaluation-records.ts'
import { actingThrough, guardrailView, judgedArguments } from '../tools/call.ts'
import type { Callable } from '../tools/call-types.ts'
import { runOfCall, toolGate, type Verdict } from '../tools/guardrail-gate.ts'
import type { ApprovalRow } from './model.ts'
import { openFrozen } from './seal.ts'

/** Returns the agent of an approval in its served version; null if there is none. */
export const findApprovalAgent = async (
  { pool }: Pick<Services, 'pool'>,
  row: ApprovalRow,
): Promise<AgentRow | null> => (row.agent_id === null ? null : findServedAgent(pool, row.agent_id, row))

/** Returns the caller of an approved call: its principal, within the current permissions of the served agent. */
export async function approvedCaller(
  services: Services,
  { authority, agent_id, project_id }: ApprovalRow,
  agent: AgentRow | null,
): Promise<Caller | null> {
  if (!authority || (agent_id !== null && !agent)) return null
  return agent
    ? actingCaller(services, { authority, project_id, actor_id: null }, agent)
    : callerForPrincipal(services, authority, project_id)
}

/** Returns the current guardrail verdict on a call with edited arguments; null without guardrails. */
export async function evaluateEdit(
  services: Services,
  row: ApprovalRow,
  tool: Callable,
  edited: Record<string, unknown>,
): Promise<Verdict | null> {
  const agent = await findApprovalAgent(services, row)
  const { project_id, generation_id, proposed_action } = row
  const action = proposed_action?.action ?? tool.name
  const args = judgedArguments(tool, edited)
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
    caller: actingThrough(services, tool, () => approvedCaller(services, row, agent)),
  })
  const subject_id = generation_id ?? (run && nodeSubject(run))
  if (subject_id !== null)
    recordDeferredEvaluations(services, { subject_id, tool: tool.id ?? tool.name, action, args }, row.id)
  return verdict ?? null
}
