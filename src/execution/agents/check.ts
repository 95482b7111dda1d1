import { isDeepStrictEqual } from 'node:util'
import type { z } from 'zod'
import { essenceOf } from '#content/files/media-type.ts'
import { fileKind } from '#content/files/model.ts'
import { kinds } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { requireAll, requireReferences } from '#core/api/references.ts'
import { parse } from '#core/api/validate.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { lenientSchema, schemaChecks } from '#core/json-schema/checks.ts'
import { policyDocumentProblems } from '#identity/policies/model.ts'
import { lockDefaultRoute } from '#identity/projects/default-model-route.ts'
import { modelRouteKind } from '../model-routes/model.ts'
import { aiProviderKind } from '../providers/model.ts'
import { optionApiOf, providerOptionProblems } from '../providers/options/provider-options.ts'
import { vendorToolProblems } from '../providers/options/vendor-tools.ts'
import { parameterSchemas } from '../tools/check-definition.ts'
import { checkBindings, checkToolSettings, uniqueBindings } from './bindings.ts'
import type { ContextPolicy } from './context-policy.ts'
import { checkAgentKnowledge } from './knowledge.ts'
import { AgentConfig, type AgentRow, agentKind } from './model.ts'
import { checkOutputSchema } from './schema.ts'

const findProject = (db: Queryable, id: string): Promise<{ trace_content_mode: string } | null> =>
  kinds.get('project').find(db, id)

type ModelBinding = { ai_provider_id?: string | null; model_route_id?: string | null; model?: string | null }

/**
 * Validates the model binding that a write would store: a provider, or a route, or neither if the project has a default
 * route. The default route is then locked against removal until the write commits.
 */
export function checkBindingFields({ ai_provider_id, model_route_id, model }: ModelBinding): void {
  if (ai_provider_id != null && model_route_id != null)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'model_route_id',
      message: 'cannot be combined with ai_provider_id',
    })
  if (ai_provider_id == null && model != null)
    raiseInvalid({ code: 'REQUIRED', path: 'model', message: 'requires ai_provider_id' })
}

export async function checkBinding(
  { ai_provider_id, model_route_id, model }: ModelBinding,
  tx: Queryable,
  projectId: string,
) {
  checkBindingFields({ ai_provider_id, model_route_id, model })
  if (ai_provider_id != null) return
  if (model_route_id == null && (await lockDefaultRoute(tx, projectId)) === null)
    raiseInvalid({
      code: 'REQUIRED',
      path: 'ai_provider_id',
      message: 'or model_route_id is required: the project has no default model route',
    })
}

/**
 * Validates the fields of `body` in a configuration whose result is `next`.
 * @param stored current agent
 */
export async function checkConfig(
  next: Partial<z.output<typeof AgentConfig>>,
  body: Partial<z.output<typeof AgentConfig>>,
  context: Pick<Context, 'tx' | 'services' | 'allow' | 'caller'>,
  projectId: string,
  stored: Partial<AgentRow> = {},
): Promise<void> {
  const { tx, services } = context
  await checkBinding(next, tx, projectId)
  if (body.tool_bindings) {
    body.tool_bindings = uniqueBindings(body.tool_bindings)
    next.tool_bindings = body.tool_bindings
    await checkBindings({ ...context, project_id: projectId }, body.tool_bindings, stored)
  }
  checkToolSettings(next, next.tool_bindings ?? null)
  if (body.knowledge_config)
    await checkAgentKnowledge(context, projectId, body.knowledge_config, stored.knowledge_config)
  if (body.boundary_policy) policyDocumentProblems(body.boundary_policy, 'boundary_policy')
  // Loose afterwards: without the route, models that cannot take a file get a note.
  const describer = body.media?.describe_model_route_id
  if (describer != null && describer !== stored.media?.describe_model_route_id)
    await requireAll(tx, modelRouteKind, projectId, [describer])
  checkProviderOptions(body, stored)
  if (body.vendor_tools || body.ai_provider_id) await checkVendorTools(tx, projectId, next)
  if (body.context_policy) await checkContextPolicy(tx, projectId, body.context_policy)
  if (body.avatar_file_id != null && body.avatar_file_id !== stored.avatar_file_id)
    await checkAvatar(context, projectId, body.avatar_file_id)
  const ceiling = services.config.AGENT_MAX_STEPS_CEILING
  // A stored value above a lowered ceiling stays, and its turns run at the ceiling.
  if (body.max_steps && body.max_steps > ceiling)
    raiseInvalid({ code: 'TOO_BIG', path: 'max_steps', message: `must be at most ${ceiling}` })
  // A stored mode stays as well: the stricter mode of agent and project applies.
  if (body.trace_content_mode === 'full' && (await findProject(tx, projectId))?.trace_content_mode === 'none')
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'trace_content_mode',
      message: 'must be none: the project does not store content',
    })
  if (body.output_schema != null) await checkOutputSchema(services, projectId, body.output_schema)
}

/** Refuses options that no vendor reads. Options stored before they were checked stay. */
function checkProviderOptions(
  { provider_options: options }: Partial<Pick<AgentRow, 'provider_options'>>,
  stored: Partial<AgentRow> = {},
): void {
  if (options == null || isDeepStrictEqual(options, stored.provider_options)) return
  const problems = providerOptionProblems(options)
  if (problems.length > 0) raiseInvalid(problems)
}

/** @throws VALIDATION_FAILED for tools that the agent's provider does not have; targets of routes leave them out */
async function checkVendorTools(
  tx: Queryable,
  projectId: string,
  { vendor_tools, ai_provider_id }: Partial<Pick<AgentRow, 'vendor_tools' | 'ai_provider_id'>>,
): Promise<void> {
  if (!vendor_tools || !ai_provider_id) return
  const provider = await aiProviderKind.reference(tx, ai_provider_id, projectId)
  const problems = provider ? vendorToolProblems(optionApiOf(provider), provider.provider, vendor_tools) : []
  if (problems.length > 0) raiseInvalid(problems)
}

/** @throws VALIDATION_FAILED for a summary that takes more than half of the context, MODEL_ROUTE_NOT_FOUND */
async function checkContextPolicy(
  tx: Queryable,
  projectId: string,
  { max_context_tokens, summary_max_tokens = 0, summary_model_route_id }: ContextPolicy,
): Promise<void> {
  if (summary_max_tokens > max_context_tokens / 2)
    raiseInvalid({
      code: 'TOO_BIG',
      path: 'context_policy.summary_max_tokens',
      message: 'must be at most half of max_context_tokens',
    })
  await requireReferences(tx, agentKind, projectId, { summary_model_route_id })
}

/** Media types of images that browsers show. */
const AVATAR_TYPES = ['image/png', 'image/jpeg', 'image/webp', 'image/gif']

/** @throws FILE_NOT_FOUND, FORBIDDEN for a file that the caller may not download, VALIDATION_FAILED for another type */
async function checkAvatar(
  { tx, allow }: Pick<Context, 'tx' | 'allow'>,
  projectId: string,
  fileId: string,
): Promise<void> {
  const row = await fileKind.reference(tx, fileId, projectId)
  if (!row) return raise(fileKind.missing, { meta: { id: fileId } })
  allow('files:DownloadFile', { kind: fileKind, row })
  if (!AVATAR_TYPES.includes(essenceOf(row.content_type ?? '')))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'avatar_file_id', message: 'must be a PNG, JPEG, WebP or GIF image' })
}

/** Errors of an invalid configuration. */
export const agentRefusals = [
  'AI_PROVIDER_NOT_FOUND',
  'MODEL_ROUTE_NOT_FOUND',
  'INVALID_OUTPUT_SCHEMA',
  'TOOL_NOT_FOUND',
  'FORCED_TOOL_CHOICE_CANNOT_STOP',
  'INVALID_TEMPLATE_TOKEN',
  'INVALID_TOOL_CONTEXT_KEY',
  'SECRET_NOT_FOUND',
  'GUARDRAIL_NOT_FOUND',
  'FILE_NOT_FOUND',
  'RESOURCE_NOT_FOUND',
] as const

/** Compiles the schemas in a body before the transaction that checks them. */
export const compileSchemas = ({
  services,
  project,
  body: { output_schema, tool_bindings },
}: Pick<Context, 'services' | 'project'> & { body: Partial<z.output<typeof AgentConfig>> }) =>
  schemaChecks(services).refusals([
    ...parameterSchemas(
      project,
      (tool_bindings ?? []).map(({ tool }) => tool),
    ),
    ...(output_schema == null ? [] : [lenientSchema(project as string, output_schema)]),
  ])

/**
 * Validates a configuration without its references.
 * @throws VALIDATION_FAILED, TOOL_NOT_FOUND, FORCED_TOOL_CHOICE_CANNOT_STOP, INVALID_OUTPUT_SCHEMA
 */
export async function validateConfig(
  services: Services,
  project: string,
  body: Partial<z.output<typeof AgentConfig>>,
): Promise<void> {
  checkBindingFields(body)
  checkToolSettings(body, body.tool_bindings ?? null)
  if (body.boundary_policy) policyDocumentProblems(body.boundary_policy, 'boundary_policy')
  checkProviderOptions(body)
  if (body.output_schema) await checkOutputSchema(services, project, body.output_schema)
}

/** Permissions that references in a configuration require. */
export const referencePermissions = [
  'tools:CallTool',
  'secrets:UseSecret',
  'knowledge:SearchKnowledge',
  'memories:CreateMemoryEntry',
  'files:DownloadFile',
]

/**
 * Validates an earlier configuration like a new write and locks the resources that it references against deletion.
 * @throws the errors of an update
 */
export async function requireValidAgentConfig(
  context: Pick<Context, 'tx' | 'services' | 'allow' | 'caller'>,
  agent: AgentRow,
  config: AgentConfig,
): Promise<void> {
  const body = parse(AgentConfig, config)
  await checkConfig(body, body, context, agent.project_id, agent)
  await requireReferences(context.tx, agentKind, agent.project_id, body)
}
