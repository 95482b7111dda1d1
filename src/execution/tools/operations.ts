import { z } from 'zod'
import { checkSpend } from '../../control/quotas/spend.ts'
import { raise } from '../../core/api/errors.ts'
import { containsFilter, oneOf } from '../../core/api/filters.ts'
import { pageOf, pageOfArray } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { shownWarnings } from '../../core/api/warnings.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { detachPermission, removedGuardrails, requireDetach } from '../../identity/guardrail-ids.ts'
import { requireNotPaused, requireUnpaused } from '../../identity/projects/pause.ts'
import { actionsOf } from './actions.ts'
import { callTool, openCall } from './call.ts'
import { checkTool } from './check.ts'
import { stepToolIds } from './check-pipeline.ts'
import { toolGate } from './guardrail-gate.ts'
import { mcpActions } from './mcp.ts'
import {
  CallInput,
  TOOL_TYPES,
  Tool,
  ToolAction,
  ToolInput,
  ToolPatch,
  type ToolRow,
  ToolWithWarnings,
  toolKind,
  withToolDefaults,
} from './model.ts'
import { projectionOf, ToolProjection } from './projection.ts'
import { type CalledTool, findCalledTool } from './store.ts'

const tools = resource(toolKind, { path: '/tools', tag: 'Tools' })

const raises = [
  'INVALID_TEMPLATE_TOKEN',
  'SECRET_NOT_FOUND',
  'INVALID_TOOL_CONTEXT_KEY',
  'PIPELINE_INVALID_STEP',
  'GUARDRAIL_NOT_FOUND',
] as const

/** What the guardrails of a tool have to warn of. */
const warningsOf = async (tool: ToolRow, { tx }: Pick<Context, 'tx'>): Promise<object> =>
  shownWarnings(
    (await toolGate.only()?.warnings(tx, tool.guardrail_ids ?? [], [{ tool, path: 'guardrail_ids' }])) ?? [],
  )

export const toolOperations: Operation[] = [
  // tools_project serves the order.
  tools.list({ filters: { name: containsFilter('name'), type: oneOf('type', TOOL_TYPES) } }),
  tools.create({
    description:
      'The definition is validated as a whole. Without what its type needs, `execute` or `mcp`, it is a draft that fails when it is called. Naming a secret needs `secrets:UseSecret` on it, naming a tool in a step `tools:CallTool`.',
    alsoActions: ['secrets:UseSecret', 'tools:CallTool'],
    body: ToolInput,
    answers: { 201: ToolWithWarnings },
    show: warningsOf,
    raises: [...raises],
    async make(context) {
      const { tx, body, project, caller } = context
      const tool = withToolDefaults(body)
      const secret_ids = await checkTool({ ...context, project_id: project }, tool, tool, null)
      const { guardrail_ids = null } = body
      return toolKind.insert(tx, {
        ...tool,
        guardrail_ids,
        secret_ids,
        step_tool_ids: stepToolIds(tool.pipeline),
        author: principalRecord(caller),
        project_id: project,
      })
    },
  }),
  tools.get({
    description: 'With a credential of a project that the tool is shared with: what that project is shown of it.',
    granted: true,
    answers: { 200: z.union([Tool, ToolProjection]) },
    present: async ({ resource: tool, grant }) => (grant ? projectionOf(tool) : toolKind.present(tool)),
  }),
  tools.update({
    description:
      'Acts on the next call. The resulting definition is validated as a whole. Naming another secret, or changing what is sent with one, needs `secrets:UseSecret` on it; changing a pipeline needs `tools:CallTool` on the tools of its steps, detaching a guardrail `guardrails:DetachGuardrail`.',
    alsoActions: ['secrets:UseSecret', 'tools:CallTool', detachPermission],
    body: ToolPatch,
    answers: { 200: ToolWithWarnings },
    show: warningsOf,
    quiet: true,
    raises: [...raises],
    check: (next, context) =>
      requireDetach(context, next.project_id, removedGuardrails([context.stored.guardrail_ids], [next.guardrail_ids])),
    async change(next, context) {
      const { body, stored } = context
      const given = body as Partial<ToolRow>
      const tool = { ...next, type: given.type ?? stored.type } as ToolRow
      const secret_ids = await checkTool({ ...context, project_id: stored.project_id }, tool, given, stored)
      return { ...tool, secret_ids, step_tool_ids: stepToolIds(tool.pipeline) }
    },
  }),
  tools.adopt(),
  tools.remove({
    description:
      'Refused while an ingestion rule names it, or another project uses it through a share; with `force` its shares are revoked. Pipelines that name it fail from then on.',
    dependents: 'TOOL_HAS_DEPENDENTS',
  }),
  tools.action('call', {
    summary: 'Call a tool and wait for its result',
    description:
      'Presets replace arguments of their names; the arguments must satisfy `parameters`, and the guardrails of the project and the tool must let the call pass: nobody is asked for approval here. No tool context is sent, save to a tool that another project shares: it is told who calls, as `calling_project_id`. A repeat with the same Idempotency-Key gets the first result without another call.',
    action: 'tools:CallTool',
    granted: true,
    find: findCalledTool,
    joined: true,
    body: CallInput,
    bodyOptional: true,
    answers: { 200: z.unknown().describe('What the tool answered, null for nothing') },
    raises: [
      'TOOL_CALL_NOT_SUPPORTED',
      'TOOL_EGRESS_BLOCKED',
      'TOOL_HTTP_ERROR',
      'TOOL_AUTH_FAILED',
      'MISSING_TOOL_CONTEXT_KEY',
      'SECRET_NOT_FOUND',
      'SECRET_NOT_DECRYPTABLE',
      'PIPELINE_STEP_FAILED',
      'PIPELINE_DEPTH_EXCEEDED',
      'PROJECT_PAUSED',
      'TOOL_DISPATCH_FAILED',
      'TOOL_CALL_FAILED',
      'SHARE_CAP_EXCEEDED',
      'QUOTA_EXCEEDED',
    ],
    transaction: false,
    // A result may hold what only the target may show.
    secretAnswer: true,
    async run({ services, db, resource: tool, project, grant, body, caller, request, effectKey, noteMade }) {
      // What is shared runs where it is called.
      if (grant) await requireUnpaused(db, project as string)
      else requireNotPaused(tool.project_id, tool as CalledTool)
      const spender = { project_id: project as string, agent_id: null, actor_id: null }
      await checkSpend(services, spender, services.pool, { metered: 'tool_execution' })
      const call = openCall(services, {
        action: body?.action,
        input: body?.input,
        caller: async () => caller,
        metering: { source: 'direct', record: null },
        // A call that is made again has the effect of one.
        idempotencyKey: tool.idempotent ? effectKey() : null,
        begin: () => noteMade({ called: true }),
        // A call that may be asked for again goes on without its caller.
        signal: effectKey() === null ? request.closed : undefined,
      })
      return callTool(services, tool, call)
    },
    again: async () =>
      raise('TOOL_CALL_FAILED', {
        message: 'The process that made the call was lost; whether the call was made is not known',
        meta: { reason: 'outcome_unknown' },
      }),
  }),
  itemOperation(toolKind, {
    id: 'listToolActions',
    method: 'get',
    path: '/tools/{tool_id}/actions',
    summary: 'List what a tool offers, as models see it',
    tag: 'Tools',
    action: 'tools:GetTool',
    paged: true,
    timed: false,
    description: 'The server of an mcp tool is asked each time; it is sent no tool context.',
    answers: { 200: pageOf(ToolAction) },
    raises: [
      'TOOL_EGRESS_BLOCKED',
      'TOOL_HTTP_ERROR',
      'TOOL_AUTH_FAILED',
      'MISSING_TOOL_CONTEXT_KEY',
      'SECRET_NOT_FOUND',
      'SECRET_NOT_DECRYPTABLE',
    ],
    async run({ services, resource: tool, page, request }) {
      if (tool.type !== 'mcp') return pageOfArray(actionsOf(tool), page)
      const call = openCall(services, { caller: async () => null, metering: null, signal: request.closed })
      return pageOfArray(await mcpActions(services, tool, call, { fresh: true }), page)
    },
  }),
]
