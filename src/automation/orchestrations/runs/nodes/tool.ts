import { parseDuration } from '#automation/orchestrations/definition/duration.ts'
import type { Node } from '#automation/orchestrations/definition/model.ts'
import type { UsageDraft } from '#control/usage/meter.ts'
import { AppError } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import { coalescedReads } from '#core/db/coalesced-reads.ts'
import type { Queryable } from '#core/db/sql.ts'
import { truthy } from '#core/expressions/evaluate.ts'
import type { Caller } from '#core/iam/caller.ts'
import { approvalKind } from '#execution/approvals/model.ts'
import { approvedArguments } from '#execution/approvals/node-approval.ts'
import {
  actingThrough,
  callTool,
  guardrailView,
  judgedArguments,
  openCall,
  prepareCall,
} from '#execution/tools/call.ts'
import type { ToolCall } from '#execution/tools/call-types.ts'
import { toolGate, type Verdict } from '#execution/tools/guardrail-gate.ts'
import { lostCall } from '#execution/tools/metering.ts'
import { type ResolvedTool, resolveSharedTool } from '#execution/tools/resolve.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { runToolContext } from '../engine/context.ts'
import type { NodeWork, NodeWorkOutcome } from '../engine/node-execution.ts'
import { evaluateValue, mapState, toArtifact } from '../engine/run-state.ts'
import { longWorkState, type RunRow } from '../model.ts'
import { idempotencyKeyOf } from '../reads/present-run.ts'
import { findState } from '../store.ts'

/** Returns the caller as which a run acts: the principal that started it, with its current permissions. */
export const runCaller = ({ services, execution }: Pick<NodeWork, 'services' | 'execution'>): Promise<Caller | null> =>
  callerForPrincipal(services, execution.authority, execution.project_id, {
    work_type: 'orchestration_run',
    work_id: execution.run_id,
    trigger_id: null,
    policy_id: null,
    chain: [],
  })

/** Calls the tool of a node, after the guardrails or an approval allow it. */
export async function callNodeTool(work: NodeWork): Promise<NodeWorkOutcome> {
  const { services, node, execution } = work
  const tool = await requireTool(work)
  const approved =
    execution.progress?.approved === true
      ? await approvalKind.find(services.pool, execution.approval_id as string)
      : null
  const input = approved ? (approvedArguments(services, approved) ?? {}) : (execution.input ?? {})
  const opened = openNodeCall(work, input)
  if (!approved) {
    const { verdict, action, args } = await evaluateGuardrails(work, tool, opened)
    if (verdict?.decision === 'blocked' || verdict?.decision === 'tripwire')
      return {
        artifact: { status: verdict.decision, reason: verdict.reason },
        label: verdict.decision,
        through: false,
      }
    if (verdict?.decision === 'route_to_approval')
      return {
        approval: {
          tool: { tool_id: tool.id, tool_name: tool.name, action, arguments: args },
          expires_in: verdict.expires_in,
          policy_version: verdict.policy_version,
          forbid_self_approval: verdict.forbid_self_approval,
        },
      }
  }
  const result = (await callTool(services, tool, { ...opened, judged: true })) ?? null
  return {
    artifact: execution.driver === null ? toArtifact(result) : result,
    ...(approved ? { label: 'approved' } : {}),
    called: { tool_id: tool.id, tool_name: tool.name, action: node.operation_id ?? tool.name },
  }
}

/**
 * Returns the tool of a node.
 * @throws TOOL_NOT_FOUND
 */
export async function requireTool({ services, node, execution, tool: known }: NodeWork): Promise<ResolvedTool> {
  const { project_id } = execution
  const tool_id = node.tool_id as string
  const tool =
    known ??
    (await toolReads(services)(`${project_id} ${tool_id}`, () => resolveSharedTool(services.pool, project_id, tool_id)))
  return tool ?? raiseMissing(tool_id)
}

/** Nodes that start together mostly call the same tool. */
const toolReads = processSingleton(() => coalescedReads<ResolvedTool | null>())

const raiseMissing = (id: string | undefined): never => {
  throw new AppError('TOOL_NOT_FOUND', { meta: { id } })
}

/** Opens the tool call of a node execution. */
function openNodeCall(work: NodeWork, input: Record<string, unknown>): ToolCall {
  const { services, node, execution, idempotencyKey, signal, addUsage } = work
  const { tool_context } = runToolContext(services, { ...execution, id: execution.run_id })
  return openCall(services, {
    action: node.operation_id,
    input,
    caller: () => runCaller(work),
    context: tool_context ?? undefined,
    idempotencyKey,
    metering: {
      source: 'orchestration',
      record: idempotencyKey,
      orchestration_run_id: execution.run_id,
      node_id: execution.node_id,
      trigger_id: execution.trigger_id,
      add: addUsage,
    },
    signal,
  })
}

/**
 * Returns the usage of the call of a node execution whose workers were all lost; null if the node calls no tool or the
 * tool was deleted.
 */
export async function lostCallUsage(
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

/** Evaluates the guardrails of the project and of the tool for a call; returns the verdict with the evaluated call. */
export async function evaluateGuardrails(
  work: NodeWork,
  tool: ResolvedTool,
  opened: ToolCall,
): Promise<{ verdict: Verdict | null; action: string; args: Record<string, unknown> }> {
  const { services, execution, signal } = work
  const prepared = await prepareCall(services, tool, opened)
  const action = prepared.action ?? tool.name
  const args = judgedArguments(tool, opened.input)
  const { guardrail_context } = runToolContext(services, { ...execution, id: execution.run_id })
  const verdict = await toolGate.only()?.judge(services, {
    project_id: execution.project_id,
    agent: null,
    tool: guardrailView(tool),
    action,
    args,
    generation_id: null,
    run: { orchestration_run_id: execution.run_id, node_id: execution.node_id, node_attempt: execution.attempt },
    guardrail_context,
    caller: actingThrough(services, tool, () => runCaller(work)),
    signal,
  })
  return { verdict: verdict ?? null, action, args }
}

const MAX_POLLS = 10

/** Executes one poll: calls the tool and evaluates the exit condition. No connection or slot is held between polls. */
export async function pollNode(work: NodeWork): Promise<NodeWorkOutcome> {
  const { services, node, execution } = work
  const run = await findState(services.pool, execution.run_id)
  if (!run) throw new AppError('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id: execution.run_id } })
  const state = longWorkState(run)
  const scope = { services, project_id: execution.project_id }
  const number = execution.polls + 1
  const tool = await requireTool(work)
  const opened = openNodeCall(work, await mapState(scope, node, 'input_mapping', node.input_mapping, state))
  const { verdict } = await evaluateGuardrails(work, tool, opened)
  if (verdict && verdict.decision !== 'execute')
    throw new AppError('TOOL_DISPATCH_FAILED', {
      message: 'reason' in verdict ? verdict.reason : 'Call requires an approval, which poll nodes do not support',
      meta: { tool_id: tool.id, outcome: verdict.decision },
    })
  const response = (await callTool(services, tool, { ...opened, judged: true })) ?? null
  const isMet = truthy(
    await evaluateValue(scope, node, 'exit_condition', node.exit_condition, { ...state, response, attempt: number }),
  )
  const limit = node.max_iterations ?? MAX_POLLS
  if (!isMet && number < limit) return { pollAgainMs: parseDuration(node.interval as string) ?? 0 }
  if (!isMet && node.fail_on_timeout)
    throw new AppError('ORCHESTRATION_POLL_EXHAUSTED', { meta: { node_id: node.id, attempts: number } })
  return {
    artifact: { result: response, attempts: number, condition_met: isMet, timed_out: !isMet },
    called: { tool_id: tool.id, tool_name: tool.name, action: node.operation_id ?? tool.name },
  }
}
