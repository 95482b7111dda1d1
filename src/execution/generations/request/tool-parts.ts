import { z } from 'zod'
import { checkSpend } from '#control/quotas/spend.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { readPath } from '#core/expressions/evaluate.ts'
import type { AgentRow } from '#execution/agents/model.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import { callTool, openCall } from '#execution/tools/call.ts'
import { toolKind } from '#execution/tools/model.ts'
import { resolveSharedTools } from '#execution/tools/resolve.ts'
import type { SentMessage } from './message-documents.ts'

/** Tool results in place of texts: each tool is called once, as the caller, before the turn is created. */

/** Most tool calls of one request, which waits for each of them in sequence. */
const MAX_TOOL_OUTPUTS = 16

const id = z.string().min(1).max(255)

export const ToolOutputPart = z.strictObject({
  type: z.literal('tool_output').describe('Type of the part'),
  tool_id: id.describe(
    'ID of a tool bound to the agent; called once, like `POST /tools/{id}/call`, before the model is called',
  ),
  action: id.optional().describe('Operation of a platform tool, or tool of the server of an MCP tool'),
  input: z.record(z.string(), z.unknown()).optional().describe('Arguments of the call'),
  output_path: z
    .string()
    .min(1)
    .max(1000)
    .optional()
    .describe('Dotted path into the result; numbers are list indexes. Default: the whole result.'),
})
type ToolOutputPart = z.output<typeof ToolOutputPart>

type SingleContent = Exclude<SentMessage['content'], unknown[]>
type ContentPart = Extract<SentMessage['content'], unknown[]>[number]

/** A message that may contain tool results in place of texts. */
export type MessageWithToolOutputs = {
  role: SentMessage['role']
  content: SingleContent | ToolOutputPart | (ContentPart | ToolOutputPart)[]
}

/** A tool result to be obtained: its part, and the position of the empty text in its place. */
export type PendingToolOutput = { part: ToolOutputPart; path: string; index: number; at: number | null }

/** Replaces tool results in messages by empty texts and returns them. @throws VALIDATION_FAILED for too many */
export function extractToolOutputs(messages: readonly MessageWithToolOutputs[]): {
  sent: SentMessage[]
  pending: PendingToolOutput[]
} {
  const pending: PendingToolOutput[] = []
  const sent = messages.map(({ role, content }, index): SentMessage => {
    const path = `messages[${index}].content`
    if (typeof content === 'string') return { role, content }
    if (!Array.isArray(content)) {
      if (content.type === 'document') return { role, content }
      pending.push({ part: content, path, index, at: null })
      return { role, content: '' }
    }
    const parts = content.map((part, at): ContentPart => {
      if (part.type !== 'tool_output') return part
      pending.push({ part, path: `${path}[${at}]`, index, at })
      return { type: 'text', text: '' }
    })
    return { role, content: parts }
  })
  if (pending.length > MAX_TOOL_OUTPUTS)
    raiseInvalid({
      code: 'TOO_BIG',
      path: 'messages',
      message: `must contain at most ${MAX_TOOL_OUTPUTS} tool_output parts`,
    })
  return { sent, pending }
}

type CallContext = Pick<Context, 'services' | 'caller' | 'allow' | 'request'>

/**
 * Calls tools in the order of the messages and inserts their results. All calls are authorized before the first is
 * made.
 * @throws FORBIDDEN for a tool that is not bound to the agent or that the caller may not call, TOOL_CALL_NOT_SUPPORTED,
 *   VALIDATION_FAILED for a path missing in the result, and errors of the calls
 */
export async function resolveToolOutputs(
  { services, caller, allow, request }: CallContext,
  turn: { project_id: string; agent: Pick<AgentRow, 'id' | 'tool_bindings'>; generation_id: string },
  messages: readonly ModelMessage[],
  pending: readonly PendingToolOutput[],
): Promise<ModelMessage[]> {
  const { project_id, agent, generation_id } = turn
  const bound = new Set(agent.tool_bindings?.flatMap(({ tool_id }) => tool_id ?? []))
  const toolIds = [...new Set(pending.map(({ part }) => part.tool_id))].filter(tool => bound.has(tool))
  const tools = await resolveSharedTools(services.pool, project_id, toolIds)
  const calls = pending.map(each => {
    const tool = tools.get(each.part.tool_id)
    if (!tool)
      return raise('FORBIDDEN', {
        message: `${each.path}: tool ${each.part.tool_id} is not bound to the agent`,
        meta: { tool_id: each.part.tool_id },
      })
    // A shared tool is authorized like a tool of the project.
    allow('tools:CallTool', { kind: toolKind, row: { ...tool, project_id } })
    if (tool.type === 'client') raise('TOOL_CALL_NOT_SUPPORTED', { meta: { tool_id: tool.id } })
    return { ...each, tool }
  })
  await checkSpend(services, { project_id, agent_id: null, actor_id: null }, services.pool, {
    metered: 'tool_execution',
  })
  const filled = [...messages]
  for (const { part, path, index, at, tool } of calls) {
    const call = openCall(services, {
      action: part.action,
      input: part.input,
      caller: async () => caller,
      metering: { source: 'direct', record: null, agent_id: agent.id, generation_id },
      signal: request.headers['idempotency-key'] === undefined ? request.closed : undefined,
    })
    const text = textOf(await callTool(services, tool, call), part, path)
    const { content } = filled[index]
    const parts = at === null ? text : (content as object[]).with(at, { type: 'text', text })
    filled[index] = { ...filled[index], content: parts } as ModelMessage
  }
  return filled
}

/** Returns the part of a result at `output_path` as text: strings unchanged, other values as JSON. */
function textOf(result: unknown, { output_path }: ToolOutputPart, path: string): string {
  const value = output_path === undefined ? (result ?? null) : readPath(result, output_path)
  if (value === null && output_path !== undefined)
    raiseInvalid({
      code: 'NOT_FOUND',
      path: `${path}.output_path`,
      message: 'does not exist in the result of the tool',
    })
  const storable = storableValue(value)
  return typeof storable === 'string' ? storable : JSON.stringify(storable)
}
