import { z } from 'zod'
import { checkSpend } from '#control/quotas/spend.ts'
import { containsFilter, oneOf } from '#core/api/filters.ts'
import { pageOf, pageOfArray } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, type WarningInput } from '#core/api/operation.ts'
import { warningsField } from '#core/api/warnings.ts'
import { type Problem, raise } from '#core/base/errors.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { schemaChecks } from '#core/json-schema/checks.ts'
import { resource } from '#core/resources/resource.ts'
import { detachPermission, removedGuardrails, requireDetach } from '#identity/projects/guardrail-ids.ts'
import { requireNotPaused, requireUnpaused } from '#identity/projects/pause.ts'
import { secretKind } from '#identity/secrets/model.ts'
import { checkTokens, tokenIds } from '#identity/secrets/resolve.ts'
import { actionsOf } from './actions.ts'
import { callTool, openCall } from './call.ts'
import { addressWarnings, checkDefinition, type DefinitionCheck, parameterSchemas } from './check-definition.ts'
import { checkPipeline, stepToolIds, validatePipeline } from './check-pipeline.ts'
import { toolGate } from './guardrail-gate.ts'
import { listMcpActions } from './mcp.ts'
import {
  CallInput,
  TOOL_TYPES,
  Tool,
  ToolAction,
  type ToolDefinition,
  ToolInput,
  ToolPatch,
  type ToolRow,
  ToolWithWarnings,
  toolKind,
  withToolDefaults,
} from './model.ts'
import { projectionOf, ToolProjection } from './projection.ts'
import { type CalledTool, findCalledTool } from './store.ts'
import { type Senders, secretTextsOf, sendersOf } from './tokens.ts'

const tools = resource(toolKind, { path: '/tools', tag: 'Tools' })

const raises = [
  'INVALID_TEMPLATE_TOKEN',
  'SECRET_NOT_FOUND',
  'INVALID_TOOL_CONTEXT_KEY',
  'PIPELINE_INVALID_STEP',
  'GUARDRAIL_NOT_FOUND',
] as const

/** Returns the warnings of a tool: of its guardrails, and about addresses that the egress rule blocks. */
const toolWarnings = async (tool: ToolRow, { tx, services }: Pick<Context, 'tx' | 'services'>): Promise<object> =>
  warningsField([
    ...((await toolGate.only()?.warnings(tx, tool.guardrail_ids ?? [], [{ tool, path: 'guardrail_ids' }])) ?? []),
    ...toolAddressWarnings({ services, body: tool }),
  ])

/** Returns the warnings about addresses of a tool and of the inline tools of its pipeline. */
const toolAddressWarnings = ({ services, body }: WarningInput<Partial<Senders>>): Problem[] => [
  ...addressWarnings(services, body, ''),
  ...(body.pipeline?.steps ?? []).flatMap(({ tool }, index) =>
    tool ? addressWarnings(services, tool, `pipeline.steps[${index}].tool.`) : [],
  ),
]

/**
 * Validates a tool as it would be stored and returns the ids of its secrets. Adding a secret, or changing the request
 * that one is sent with, requires permission to use it: otherwise a writer of tools could send any secret to any
 * address.
 * @param changes fields of the body: secrets must exist only if it contains some, so that a tool with a deleted secret
 *   can otherwise be updated
 * @throws VALIDATION_FAILED, INVALID_TEMPLATE_TOKEN, INVALID_TOOL_CONTEXT_KEY, PIPELINE_INVALID_STEP, SECRET_NOT_FOUND,
 *   FORBIDDEN
 */
async function checkTool(
  checking: DefinitionCheck,
  tool: ToolDefinition,
  changes: Partial<ToolDefinition>,
  stored: ToolRow | null,
): Promise<string[]> {
  const { tx, allow, project_id } = checking
  await checkDefinition(checking, tool, '')
  if (tool.pipeline) await checkPipeline(checking, tool.pipeline, stored?.pipeline ?? null)
  else requireNoPipeline(tool)
  const texts = secretTextsOf(tool)
  const secret_ids = tokenIds(texts)
  const linked = stored && destinationKey(stored) === destinationKey(tool) ? stored.secret_ids : []
  for (const id of secret_ids)
    if (!linked.includes(id)) allow('secrets:UseSecret', { kind: secretKind, row: { id, project_id } })
  if (changes.execute !== undefined || changes.mcp !== undefined || changes.pipeline !== undefined)
    await checkTokens(tx, project_id, texts)
  return secret_ids
}

/** Raises PIPELINE_INVALID_STEP for a tool of type pipeline. */
function requireNoPipeline({ type }: ToolDefinition): void {
  if (type === 'pipeline')
    raise('PIPELINE_INVALID_STEP', { message: 'pipeline: is required for a tool of type pipeline' })
}

/** Validates a tool without the resources that it refers to. @throws the errors of checkTool */
async function validateTool(checking: Parameters<typeof checkDefinition>[0], tool: ToolDefinition): Promise<void> {
  await checkDefinition(checking, tool, '')
  if (tool.pipeline) await validatePipeline(checking, tool.pipeline)
  else requireNoPipeline(tool)
}

/** Compiles the schemas of a tool and of inline tools in its steps before the transaction that checks them. */
const compileSchemas = ({ services, project, body }: Pick<Context, 'services' | 'project'> & { body: ToolPatch }) =>
  schemaChecks(services).refusals(
    parameterSchemas(project, [body, ...(body.pipeline?.steps ?? []).map(({ tool }) => tool)]),
  )

/** Returns a key of everything that determines the destination and form of secrets. */
const destinationKey = (tool: Senders): string =>
  JSON.stringify(sendersOf(tool).map(each => ({ ...each, timeout_ms: null })))

export const toolOperations: Operation[] = [
  // tools_project serves the order.
  tools.list({ filters: { name: containsFilter('name'), type: oneOf('type', TOOL_TYPES) } }),
  tools.create({
    description:
      'The definition is validated as a whole. Without the `execute` or `mcp` that its type requires, it is a draft and fails when called. A secret requires `secrets:UseSecret` on it, a tool in a step `tools:CallTool`.',
    alsoActions: ['secrets:UseSecret', 'tools:CallTool'],
    body: ToolInput,
    validate: ({ services, project, body }) => validateTool({ services, project_id: project }, withToolDefaults(body)),
    warnings: toolAddressWarnings,
    answers: { 201: ToolWithWarnings },
    show: toolWarnings,
    raises: [...raises],
    prepare: compileSchemas,
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
    description: 'Projects that the tool is shared with get its visible fields only.',
    granted: true,
    answers: { 200: z.union([Tool, ToolProjection]) },
    present: async ({ resource: tool, grant }) => (grant ? projectionOf(tool) : toolKind.present(tool)),
  }),
  tools.update({
    description:
      'Applies to the next call. Omitted fields are unchanged; the resulting definition is validated as a whole. Another secret, or a changed request with a secret, requires `secrets:UseSecret` on it; a changed pipeline requires `tools:CallTool` on the tools of its steps; detaching a guardrail requires `guardrails:DetachGuardrail`.',
    alsoActions: ['secrets:UseSecret', 'tools:CallTool', detachPermission],
    body: ToolPatch,
    answers: { 200: ToolWithWarnings },
    show: toolWarnings,
    quiet: true,
    raises: [...raises],
    prepare: compileSchemas,
    check: (next, context) =>
      requireDetach(context, next.project_id, removedGuardrails([context.stored.guardrail_ids], [next.guardrail_ids])),
    async change(next, context) {
      const { body, stored } = context
      const changes = body as Partial<ToolRow>
      const tool = { ...next, type: changes.type ?? stored.type } as ToolRow
      const secret_ids = await checkTool({ ...context, project_id: stored.project_id }, tool, changes, stored)
      return { ...tool, secret_ids, step_tool_ids: stepToolIds(tool.pipeline) }
    },
  }),
  tools.adopt(),
  tools.remove({
    description:
      'Refused while an ingestion rule uses the tool, or another project uses it through a share; with `force`, its shares are revoked. Pipelines that use it fail from then on.',
    dependents: 'TOOL_HAS_DEPENDENTS',
  }),
  tools.action('call', {
    summary: 'Call a tool',
    description:
      'Waits for the result. Presets replace arguments with the same name. The arguments must satisfy `parameters`, and the guardrails of the project and the tool must allow the call: a call that requires an approval is refused. No tool context is sent, except `calling_project_id` to a tool of another project. A repeat with the same Idempotency-Key gets the first result without another call.',
    action: 'tools:CallTool',
    granted: true,
    find: findCalledTool,
    joined: true,
    body: CallInput,
    bodyOptional: true,
    answers: { 200: z.unknown().describe('Result of the tool; null for none') },
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
    // A result may contain secrets that only the target may show.
    secretAnswer: true,
    async run({ services, db, resource: tool, project, grant, body, caller, request, effectKey, noteMade }) {
      // A shared tool runs in the calling project.
      if (grant) await requireUnpaused(db, project as string)
      else requireNotPaused(tool.project_id, tool as CalledTool)
      const spender = { project_id: project as string, agent_id: null, actor_id: null }
      await checkSpend(services, spender, services.pool, { metered: 'tool_execution' })
      const call = openCall(services, {
        action: body?.action,
        input: body?.input,
        caller: async () => caller,
        metering: { source: 'direct', record: null },
        // Lets the target recognize a repeated call.
        idempotencyKey: tool.idempotent ? effectKey() : null,
        begin: () => noteMade({ called: true }),
        // A call with an Idempotency-Key continues when its caller disconnects.
        signal: effectKey() === null ? request.closed : undefined,
      })
      return callTool(services, tool, call)
    },
    again: async () =>
      raise('TOOL_CALL_FAILED', {
        message: 'The process was lost during the call; whether the call was made is unknown',
        meta: { reason: 'outcome_unknown' },
      }),
  }),
  itemOperation(toolKind, {
    id: 'listToolActions',
    method: 'get',
    path: '/tools/{tool_id}/actions',
    summary: 'List tool actions',
    tag: 'Tools',
    action: 'tools:GetTool',
    paged: true,
    timed: false,
    description:
      'Actions of a tool as models see them. For an mcp tool, its server is called each time, without tool context.',
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
      return pageOfArray(await listMcpActions(services, tool, call, { fresh: true }), page)
    },
  }),
]
