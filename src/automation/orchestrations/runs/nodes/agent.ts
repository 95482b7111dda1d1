import { z } from 'zod'
import type { Node } from '#automation/orchestrations/definition/model.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { isObject, parseExactJson } from '#core/base/exact-json.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { stripCodeFence } from '#execution/generations/loop/structured-output.ts'
import type { TurnOwner } from '#execution/generations/loop/turn-owner.ts'
import { admitTurn } from '#execution/generations/request/admission.ts'
import { createTurn } from '#execution/generations/request/create.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import type { Advance } from '../engine/advance.ts'
import { runToolContext } from '../engine/context.ts'
import type { NodeExecutionRow } from '../engine/node-execution-store.ts'
import { type ExpressionState, evaluateText, nodeFailed, storableArtifact } from '../engine/run-state.ts'
import { wakeWaitingRun } from './wake-waiting-run.ts'

/** Returns the messages of an agent node. */
async function messagesOf(
  advance: Advance,
  node: Node,
  input: Record<string, unknown>,
  state: ExpressionState,
): Promise<ModelMessage[]> {
  if (Array.isArray(input.messages)) return input.messages.map(message => toMessage(node, message))
  const nodePrompt = await evaluateText(advance, node, 'prompt', node.prompt, state)
  const { prompt: inputPrompt, ...others } = input
  const isPrompt = nodePrompt === null && typeof inputPrompt === 'string'
  const rest = Object.entries(isPrompt ? others : input).map(([key, value]) => `${key}: ${JSON.stringify(value)}`)
  const text = [...(nodePrompt !== null ? [nodePrompt] : isPrompt ? [inputPrompt] : []), ...rest].join('\n')
  return [{ role: 'user', content: text === '' ? '(no input)' : text }]
}

function toMessage(node: Node, message: unknown): ModelMessage {
  if (
    isObject(message) &&
    (message.role === 'user' || message.role === 'assistant') &&
    typeof message.content === 'string'
  )
    return { role: message.role, content: message.content }
  throw nodeFailed(node, 'expression', "messages must be objects with role 'user' or 'assistant' and text content", {
    field: 'input_mapping.messages',
  })
}

/** Creates the turn of an agent node; the node ends when the turn settles. */
export async function startAgentNode(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  state: ExpressionState,
): Promise<void> {
  const { run, services } = advance
  const input = row.input ?? {}
  const messages = advance.driven?.messages(node, input) ?? (await messagesOf(advance, node, input, state))
  const context = runToolContext(services, run)
  const { generation_id, trace_id } = await advance.tx.nested(async tx => {
    const agent = await admitTurn(tx, services, { project_id: run.project_id, agent_id: node.agent_id as string })
    return createTurn(tx, services, {
      project_id: run.project_id,
      agent_id: agent.id,
      agent_version: agent.version,
      messages,
      tool_context: context.tool_context,
      guardrail_context: context.guardrail_context,
      overrides: node.output_schema ? { output_schema: node.output_schema } : {},
      // Later turns of the run are children of its first one.
      ...(run.trace_id === null ? {} : { parent_trace_id: run.trace_id, root_trace_id: run.trace_id }),
      orchestration: { run_id: run.id, node_id: node.id, attempt: row.attempt },
      trigger_id: run.trigger_id,
      source: run.source,
      authority: run.authority,
      streamed: false,
      shape: 'agent',
    })
  })
  run.trace_id ??= trace_id
  row.generation_id = generation_id
}

const TurnEnd = z.object({
  id: z.string(),
  status: z.enum(['pending', 'in_progress', 'requires_action', 'completed', 'failed']),
  output: z.object({ content: z.string(), object: z.unknown() }).nullable(),
  error: z.custom<RecordedFailure>().nullable(),
})
export type TurnEnd = z.output<typeof TurnEnd>
const turnEndRow = sql.type(TurnEnd)

/** Lists turns by ID. By primary key. */
export const listTurns = (db: Queryable, ids: readonly string[]): Promise<readonly TurnEnd[]> =>
  db.any(turnEndRow`
    select id, status, output, error from generations where id = any(${sql.array([...ids], 'text')})`)

/**
 * Returns the artifact of a settled turn.
 * @throws ORCHESTRATION_NODE_FAILED (content) if its content was not stored
 */
export function turnArtifact(node: Node, { output }: TurnEnd): unknown {
  if (!output) throw nodeFailed(node, 'content', 'Content of the turn was not stored, so the node has no output')
  const { content, object } = output
  if (!node.output_schema) return storableArtifact(node, { content })
  if (isObject(object)) return storableArtifact(node, object)
  try {
    const parsed = parseExactJson(stripCodeFence(content))
    if (isObject(parsed)) return storableArtifact(node, parsed)
  } catch {
    // Content that is not JSON becomes the artifact unparsed.
  }
  return storableArtifact(node, { content })
}

/** Wakes the run when a turn of one of its nodes settles, pauses or resumes. */
export const nodeTurns: TurnOwner = {
  owns: ({ orchestration_run_id }) => orchestration_run_id !== null,
  settled: (tx, { id }) => wakeWaitingRun(tx, 'generation_id', id),
  paused: (tx, { id }) => wakeWaitingRun(tx, 'generation_id', id),
  resumed: (tx, { id }) => wakeWaitingRun(tx, 'generation_id', id),
}
