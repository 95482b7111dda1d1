import { z } from 'zod'
import { checkSpend } from '../../../control/quotas/spend.ts'
import { raise, raiseInvalid } from '../../../core/api/errors.ts'
import type { Context } from '../../../core/api/operation.ts'
import { storableValue } from '../../../core/api/storable-text.ts'
import { readPath } from '../../../core/expressions/evaluate.ts'
import type { AgentRow } from '../../agents/model.ts'
import type { ModelMessage } from '../../providers/model-messages.ts'
import { callTool, openCall } from '../../tools/call.ts'
import { toolKind } from '../../tools/model.ts'
import { resolveSharedTools } from '../../tools/resolve.ts'
import type { SentMessage } from './message-documents.ts'

/** Results of tools in the place of texts: called once, for the one who asks, before the turn is made. */

/** Calls of one request: it waits for each in turn. */
const MAX_PER_PASS = 16

const id = z.string().min(1).max(255)

export const ToolOutputPart = z.strictObject({
  type: z.literal('tool_output').describe('What it is'),
  tool_id: id.describe('Tool that the agent is bound to; it is called once, as by `POST /tools/{id}/call`'),
  action: id.optional().describe('Operation of a platform tool, tool of the server of an mcp tool'),
  input: z.record(z.string(), z.unknown()).optional().describe('Arguments of the call'),
  output_path: z
    .string()
    .min(1)
    .max(1000)
    .optional()
    .describe('Dotted path into the result, numbers index lists; default the whole result'),
})
type ToolOutputPart = z.output<typeof ToolOutputPart>

type Whole = Exclude<SentMessage['content'], unknown[]>
type Each = Extract<SentMessage['content'], unknown[]>[number]

/** A message that may have results of tools for texts. */
export type AskedMessage = {
  role: SentMessage['role']
  content: Whole | ToolOutputPart | (Each | ToolOutputPart)[]
}

/** A result that is still to come: the part, and the message that has an empty text in its place. */
export type AwaitedOutput = { part: ToolOutputPart; path: string; index: number; at: number | null }

/** Messages with empty texts where results of tools go. Raises VALIDATION_FAILED for more calls than one request may make. */
export function withoutToolOutputs(messages: readonly AskedMessage[]): {
  sent: SentMessage[]
  awaited: AwaitedOutput[]
} {
  const awaited: AwaitedOutput[] = []
  const sent = messages.map(({ role, content }, index): SentMessage => {
    const path = `messages[${index}].content`
    if (typeof content === 'string') return { role, content }
    if (!Array.isArray(content)) {
      if (content.type === 'document') return { role, content }
      awaited.push({ part: content, path, index, at: null })
      return { role, content: '' }
    }
    const parts = content.map((part, at): Each => {
      if (part.type !== 'tool_output') return part
      awaited.push({ part, path: `${path}[${at}]`, index, at })
      return { type: 'text', text: '' }
    })
    return { role, content: parts }
  })
  if (awaited.length > MAX_PER_PASS)
    raiseInvalid({ code: 'TOO_BIG', path: 'messages', message: `must hold at most ${MAX_PER_PASS} tool_output parts` })
  return { sent, awaited }
}

type Asking = Pick<Context, 'services' | 'caller' | 'allow' | 'request'>

/**
 * Makes the calls that messages wait for, in their order, and puts their results into the messages. All of them are checked before
 * the first is made.
 * @throws FORBIDDEN for a tool that the agent is not bound to or the caller may not call, TOOL_CALL_NOT_SUPPORTED,
 *   VALIDATION_FAILED for a path that the result has not; what calls raise
 */
export async function withToolOutputs(
  { services, caller, allow, request }: Asking,
  turn: { project_id: string; agent: Pick<AgentRow, 'id' | 'tool_bindings'>; generation_id: string },
  messages: readonly ModelMessage[],
  awaited: readonly AwaitedOutput[],
): Promise<ModelMessage[]> {
  const { project_id, agent, generation_id } = turn
  const bound = new Set(agent.tool_bindings?.flatMap(({ tool_id }) => tool_id ?? []))
  const named = [...new Set(awaited.map(({ part }) => part.tool_id))].filter(tool => bound.has(tool))
  const tools = await resolveSharedTools(services.pool, project_id, named)
  const calls = awaited.map(each => {
    const tool = tools.get(each.part.tool_id)
    if (!tool)
      return raise('FORBIDDEN', {
        message: `${each.path} names no tool that the agent is bound to`,
        meta: { tool_id: each.part.tool_id },
      })
    // A shared one is called as if it were the project's.
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

/** A result as a text: what its path says, a text as it is, anything else as JSON. */
function textOf(result: unknown, { output_path }: ToolOutputPart, path: string): string {
  const value = output_path === undefined ? (result ?? null) : readPath(result, output_path)
  if (value === null && output_path !== undefined)
    raiseInvalid({ code: 'NOT_FOUND', path: `${path}.output_path`, message: 'names nothing in the result of the tool' })
  const kept = storableValue(value)
  return typeof kept === 'string' ? kept : JSON.stringify(kept)
}
