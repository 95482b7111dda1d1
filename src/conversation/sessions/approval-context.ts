import { z } from 'zod'
import { actorKind } from '#conversation/actors/model.ts'
import type { Kind } from '#core/api/kind.ts'
import { type Context, itemOperation } from '#core/api/operation.ts'
import { agentKind } from '#execution/agents/model.ts'
import { type ApprovalRow, approvalKind } from '#execution/approvals/model.ts'
import { approvedArgumentsSchema } from '#execution/approvals/tool.ts'
import { guardrailKind } from '#execution/guardrails/model.ts'
import type { Callable } from '#execution/tools/call-types.ts'
import { toolKind } from '#execution/tools/model.ts'
import { type ApprovalContextRow, findApprovalContext } from './approval-context-store.ts'
import { sessionKind } from './kind.ts'

const jsonObject = z.record(z.string(), z.unknown())
const nullableText = z.string().nullable()

const ApprovalContext = z
  .object({
    approval_id: z.string().describe('ID of the approval'),
    actor: z
      .object({ id: z.string(), name: z.string().describe('Display name'), external_id: nullableText })
      .nullable()
      .describe('End user of the session or turn. Requires `actors:GetActor`.'),
    agent: z
      .object({ id: z.string(), name: nullableText.describe('Display name') })
      .nullable()
      .describe('Agent that proposed the call. Requires `agents:GetAgent`.'),
    guardrail: z
      .object({
        id: z.string(),
        name: z.string().describe('Display name'),
        version: z.int().describe('Version that required the approval'),
        document: jsonObject.nullable().describe('Rules of this version'),
      })
      .nullable()
      .describe('Guardrail that required the approval. Requires `guardrails:GetGuardrail`.'),
    tool: z
      .object({
        id: nullableText.describe('Null for a tool defined inline in a binding'),
        name: z.string().describe('Name of the tool'),
        parameters: jsonObject.nullable().describe('JSON Schema of the arguments. Null if unknown.'),
        presets: z.array(z.string()).describe('Names of arguments that the tool presets: editing them has no effect'),
      })
      .nullable()
      .describe('Tool to call. Requires `tools:GetTool`, for a tool of a binding `agents:GetAgent`.'),
    messages: z
      .array(
        z.object({
          role: z.enum(['user', 'assistant']),
          origin: z.enum(['end_user', 'agent', 'operator']).describe('Who wrote the message'),
          author_name: nullableText.describe('Display name of the user who wrote an operator message'),
          content: nullableText.describe('Text, at most 2,000 characters. Null if it was erased.'),
          created_at: z.iso.datetime(),
        }),
      )
      .nullable()
      .describe('Last six messages of the session, oldest first. Requires `sessions:ListSessionMessages`.'),
  })
  .meta({ id: 'ApprovalContext' })

/** Returns the definition of the tool of an approval, if the caller may read it. */
function visibleTool(row: ApprovalContextRow, mayRead: Reads): Callable | null {
  const { tool_row, inline_tool, agent_row } = row
  if (tool_row) return mayRead('tools:GetTool', toolKind, tool_row) ? (tool_row as never) : null
  if (!inline_tool || !agent_row || !mayRead('agents:GetAgent', agentKind, agent_row)) return null
  return { type: 'http', ...inline_tool, id: null } as never
}

type Reads = (action: string, kind: Kind<any, any>, row: { id: string; project_id: string } | null) => boolean

function presentTool(tool: Callable, { proposed_action }: ApprovalRow) {
  const parameters = approvedArgumentsSchema(tool, proposed_action?.action) as Record<string, unknown> | null
  return {
    id: tool.id,
    name: tool.name,
    parameters: parameters ?? null,
    presets: Object.keys(tool.preset_parameters ?? {}),
  }
}

/** Returns what a person needs for a decision; parts that the caller may not read are null. */
function presentContext({ resource, allowed }: Pick<Context<unknown, unknown, ApprovalRow>, 'resource' | 'allowed'>) {
  const row = resource as ApprovalContextRow
  const mayRead: Reads = (action, kind, target) => target !== null && allowed(action, { kind, row: target })
  const { actor_row: actor, agent_row: agent, guardrail_row: guardrail, session_row } = row
  const tool = visibleTool(row, mayRead)
  return {
    approval_id: row.id,
    actor:
      actor && mayRead('actors:GetActor', actorKind, actor)
        ? { id: actor.id, name: actor.name, external_id: actor.external_id }
        : null,
    agent: agent && mayRead('agents:GetAgent', agentKind, agent) ? { id: agent.id, name: agent.name } : null,
    guardrail:
      guardrail && mayRead('guardrails:GetGuardrail', guardrailKind, guardrail)
        ? {
            id: guardrail.id,
            name: guardrail.name,
            version: Number(guardrail.version),
            document: guardrail.document,
          }
        : null,
    tool: tool && presentTool(tool, row),
    messages: mayRead('sessions:ListSessionMessages', sessionKind, session_row) ? row.messages : null,
  }
}

/** Declared here and not with approvals, because it reads sessions. */
export const approvalContextOperation = itemOperation(approvalKind, {
  id: 'getApprovalContext',
  method: 'get',
  path: '/approvals/{approval_id}/context',
  summary: 'Get the context of an approval',
  description:
    'Returns what a person needs for the decision: end user, agent, guardrail with its rules, parameters of the tool, and the last messages of the session. A part is null if there is none or the caller may not read it.',
  tag: 'Approvals',
  action: 'approvals:GetApproval',
  alsoActions: [
    'actors:GetActor',
    'agents:GetAgent',
    'guardrails:GetGuardrail',
    'sessions:ListSessionMessages',
    'tools:GetTool',
  ],
  find: (db, id) => findApprovalContext(db, id),
  answers: { 200: ApprovalContext },
  run: async context => presentContext(context),
})
