import type { UsageDraft } from '../../../control/usage/meter.ts'
import { AppError } from '../../../core/api/errors.ts'
import type { Queryable } from '../../../core/db/sql.ts'
import type { Caller } from '../../../core/iam/caller.ts'
import { approvalKind } from '../../../execution/approvals/model.ts'
import { approvedArguments } from '../../../execution/approvals/node-approval.ts'
import {
  actingThrough,
  callTool as call,
  guardrailView,
  judgedArguments,
  openCall,
  prepareCall,
} from '../../../execution/tools/call.ts'
import type { ToolCall } from '../../../execution/tools/call-types.ts'
import { toolGate, type Verdict } from '../../../execution/tools/guardrail-gate.ts'
import { lostCall } from '../../../execution/tools/metering.ts'
import { type ResolvedTool, resolveSharedTool } from '../../../execution/tools/resolve.ts'
import { callerForPrincipal } from '../../../identity/principals.ts'
import type { Node } from '../../orchestrations/model.ts'
import { runToolContext } from '../engine/context.ts'
import type { Attempt, NodeAttemptOutcome } from '../engine/node-execution.ts'
import { toArtifact } from '../engine/run-state.ts'
import type { RunRow } from '../model.ts'
import { idempotencyKeyOf } from '../reads/present-run.ts'

/** As whom the work of a run acts: whoever started it, with the rights of this moment. */
export const runCaller = ({ services, taken }: Pick<Attempt, 'services' | 'taken'>): Promise<Caller | null> =>
  callerForPrincipal(services, taken.authority, taken.project_id, {
    work_type: 'orchestration_run',
    work_id: taken.run_id,
    trigger_id: null,
    policy_id: null,
    chain: [],
  })

/** A tool node calls its tool, once the guardrails or a person let it. */
export async function callNodeTool(attempt: Attempt): Promise<NodeAttemptOutcome> {
  const { services, node, taken } = attempt
  const tool = await toolOf(attempt)
  const approved =
    taken.progress?.approved === true ? await approvalKind.find(services.pool, taken.approval_id as string) : null
  const input = approved ? (approvedArguments(services, approved) ?? {}) : (taken.input ?? {})
  const opened = openNodeCall(attempt, input)
  if (!approved) {
    const { verdict, action, args } = await evaluateGuardrails(attempt, tool, opened)
    if (verdict?.decision === 'blocked' || verdict?.decision === 'tripwire')
      return {
        artifact: { status: verdict.decision, reason: verdict.reason },
        label: verdict.decision,
        through: false,
      }
    if (verdict?.decision === 'route_to_approval')
      return {
        ask: {
          tool: { tool_id: tool.id, tool_name: tool.name, action, arguments: args },
          expires_in: verdict.expires_in,
          policy_version: verdict.policy_version,
          forbid_self_approval: verdict.forbid_self_approval,
        },
      }
  }
  const result = (await call(services, tool, { ...opened, judged: true })) ?? null
  return {
    artifact: taken.driver === null ? toArtifact(result) : result,
    ...(approved ? { label: 'approved' } : {}),
    called: { tool_id: tool.id, tool_name: tool.name, action: node.operation_id ?? tool.name },
  }
}

/** The tool of a node. Raises TOOL_NOT_FOUND. */
export async function toolOf({ services, node, taken }: Attempt): Promise<ResolvedTool> {
  const tool = await resolveSharedTool(services.pool, taken.project_id, node.tool_id as string)
  return tool ?? raiseMissing(node.tool_id)
}

const raiseMissing = (id: string | undefined): never => {
  throw new AppError('TOOL_NOT_FOUND', { meta: { id } })
}

/** The call that a node makes of its tool. */
export function openNodeCall(attempt: Attempt, input: Record<string, unknown>): ToolCall {
  const { services, node, taken, key, signal, use } = attempt
  const { tool_context } = runToolContext(services, { ...taken, id: taken.run_id })
  return openCall(services, {
    action: node.operation_id,
    input,
    caller: () => runCaller(attempt),
    context: tool_context ?? undefined,
    idempotencyKey: key,
    metering: {
      source: 'orchestration',
      record: key,
      orchestration_run_id: taken.run_id,
      node_id: taken.node_id,
      trigger_id: taken.trigger_id,
      add: use,
    },
    signal,
  })
}

/** The use of the call of an attempt whose workers were all lost; null for a node that calls no tool, or one that is gone. */
export async function lostNodeCall(
  db: Queryable,
  { id: run_id, project_id, trigger_id }: Pick<RunRow, 'id' | 'project_id' | 'trigger_id'>,
  row: Parameters<typeof idempotencyKeyOf>[0],
  node: Node,
): Promise<UsageDraft | null> {
  if (node.type !== 'tool') return null
  const tool = await resolveSharedTool(db, project_id, node.tool_id as string)
  const { node_id } = row
  const metering = {
    source: 'orchestration' as const,
    record: idempotencyKeyOf(row),
    orchestration_run_id: run_id,
    node_id,
    trigger_id,
  }
  return tool && lostCall(tool, node.operation_id ?? null, metering, null)
}

/** What the guardrails of the project and the tool say of a call, and the call as they saw it. */
export async function evaluateGuardrails(
  attempt: Attempt,
  tool: ResolvedTool,
  opened: ToolCall,
): Promise<{ verdict: Verdict | null; action: string; args: Record<string, unknown> }> {
  const { services, taken, signal } = attempt
  const prepared = await prepareCall(services, tool, opened)
  const action = prepared.action ?? tool.name
  const args = judgedArguments(tool, opened.input)
  const { guardrail_context } = runToolContext(services, { ...taken, id: taken.run_id })
  const verdict = await toolGate.only()?.judge(services, {
    project_id: taken.project_id,
    agent: null,
    tool: guardrailView(tool),
    action,
    args,
    generation_id: null,
    run: { orchestration_run_id: taken.run_id, node_id: taken.node_id, node_attempt: taken.attempt },
    guardrail_context,
    caller: actingThrough(services, tool, () => runCaller(attempt)),
    signal,
  })
  return { verdict: verdict ?? null, action, args }
}
