import { z } from 'zod'
import { raiseInvalid } from '../../core/api/errors.ts'
import { columnFilter, containsFilter, equalsFilter } from '../../core/api/filters.ts'
import { kinds } from '../../core/api/kind.ts'
import { textFilter } from '../../core/api/lists.ts'
import type { Context, Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { versionAuthor } from '../../core/api/version-archive.ts'
import { requireVersion } from '../../core/api/versions.ts'
import { warningsField } from '../../core/api/warnings.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { schemaChecks } from '../../core/json-schema/checks.ts'
import { detachPermission, hasGuardrail, removedGuardrails, requireDetach } from '../../identity/guardrail-ids.ts'
import { policyDocumentProblems } from '../../identity/policies/model.ts'
import { lockDefaultRoute } from '../../identity/projects/default-model-route.ts'
import { parameterSchemas } from '../tools/check-definition.ts'
import { toolGate } from '../tools/guardrail-gate.ts'
import { withToolDefaults } from '../tools/model.ts'
import { listToolsById } from '../tools/store.ts'
import { adoptAgent, changeAgent, insertAgent } from './agent-archive.ts'
import { checkBindings, checkToolSettings, uniqueBindings } from './bindings.ts'
import { refuseBoundedCaller } from './bounds.ts'
import { checkAgentKnowledge } from './knowledge.ts'
import {
  Agent,
  type AgentConfig,
  AgentInput,
  AgentPatch,
  AgentProjection,
  type AgentRow,
  AgentWithWarnings,
  agentKind,
} from './model.ts'
import { checkOutputSchema, outputSchema } from './schema.ts'

const agents = resource(agentKind, { path: '/agents', tag: 'Agents' })

const findProject = (db: Queryable, id: string): Promise<{ trace_content_mode: string } | null> =>
  kinds.get('project').find(db, id)

type ModelBinding = { ai_provider_id?: string | null; model_route_id?: string | null; model?: string | null }

/**
 * Validates the model binding that a write would store: a provider, or a route, or neither if the project has a default
 * route. The default route is then locked against removal until the write commits.
 */
export async function checkBinding(
  { ai_provider_id, model_route_id, model }: ModelBinding,
  tx: Queryable,
  projectId: string,
) {
  if (ai_provider_id != null && model_route_id != null)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'model_route_id',
      message: 'cannot be combined with ai_provider_id',
    })
  if (ai_provider_id != null) return
  if (model != null) raiseInvalid({ code: 'REQUIRED', path: 'model', message: 'requires ai_provider_id' })
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
  'RESOURCE_NOT_FOUND',
] as const

/** Permissions that references in a configuration require. */
export const referencePermissions = [
  'tools:CallTool',
  'secrets:UseSecret',
  'knowledge:SearchKnowledge',
  'memories:CreateMemoryEntry',
]

/** Returns the warnings of the agent's guardrails about the tools in its bindings. */
async function agentWarnings(agent: AgentRow, { tx }: Pick<Context, 'tx'>): Promise<object> {
  const { guardrail_ids, tool_bindings } = agent
  if (!guardrail_ids?.length || !tool_bindings?.length) return {}
  const ids = tool_bindings.flatMap(({ tool_id }) => tool_id ?? [])
  const records = ids.length === 0 ? [] : await listToolsById(tx, agent.project_id, ids)
  const tools = [...records, ...tool_bindings.flatMap(({ tool }) => (tool ? withToolDefaults(tool) : []))]
  const guarded = tools.map(tool => ({ tool, path: 'guardrail_ids' }))
  return warningsField((await toolGate.only()?.warnings(tx, guardrail_ids, guarded)) ?? [])
}

/** Compiles the schemas in a body before the transaction that checks them. */
const compileSchemas = ({
  services,
  project,
  body: { output_schema, tool_bindings },
}: Pick<Context, 'services' | 'project'> & { body: Partial<z.output<typeof AgentConfig>> }) =>
  schemaChecks(services).refusals([
    ...parameterSchemas(
      project,
      (tool_bindings ?? []).map(({ tool }) => tool),
    ),
    ...(output_schema == null ? [] : [outputSchema(project as string, output_schema)]),
  ])

const updateOperation = (method: 'patch' | 'put', id: string, summary: string): Operation =>
  agents.update({
    method,
    id,
    summary,
    description:
      'Omitted fields are unchanged. A write without changes creates no version. Binding a tool for the first time requires `tools:CallTool` on it, a secret referenced by an inline definition `secrets:UseSecret`, detaching a guardrail `guardrails:DetachGuardrail`, a source added to `knowledge_config` `knowledge:SearchKnowledge`, and its store for writes `memories:CreateMemoryEntry`.',
    alsoActions: [...referencePermissions, detachPermission],
    admit: refuseBoundedCaller,
    body: AgentPatch,
    answers: { 200: AgentWithWarnings },
    show: agentWarnings,
    quiet: true,
    raises: [...agentRefusals, 'VERSION_CONFLICT'],
    prepare: compileSchemas,
    check(next, context) {
      const { stored } = context
      requireVersion(stored, context.body.expected_version)
      requireDetach(context, next.project_id, removedGuardrails([stored.guardrail_ids], [next.guardrail_ids]))
      return checkConfig(next, context.body, context, next.project_id, context.stored)
    },
    write: (next, { stored, body, caller, tx }) =>
      changeAgent(tx, stored, agentKind.changes(stored, next), versionAuthor(caller, body.version_label)),
  })

export const agentOperations: Operation[] = [
  // agents_project serves the order; agents_ai_provider, agents_model_route, agents_tools and agents_guardrails their filters.
  agents.list({
    filters: {
      name: containsFilter('name'),
      ai_provider_id: equalsFilter('ai_provider_id'),
      model_route_id: equalsFilter('model_route_id'),
      tool_id: columnFilter(z.string().min(1).optional().describe('ID of a bound tool'), id =>
        id === undefined ? null : sql.fragment`t.tool_ids @> ${sql.array([id], 'text')}`,
      ),
      guardrail_id: columnFilter(textFilter.describe('ID of an attached guardrail'), hasGuardrail),
    },
  }),
  agents.create({
    description:
      'Binding a tool requires `tools:CallTool` on it, a secret referenced by an inline definition `secrets:UseSecret`, sources of `knowledge_config` `knowledge:SearchKnowledge`, and its store for writes `memories:CreateMemoryEntry`.',
    alsoActions: referencePermissions,
    body: AgentInput,
    answers: { 201: AgentWithWarnings },
    show: agentWarnings,
    raises: [...agentRefusals],
    prepare: compileSchemas,
    check: context => checkConfig(context.body, context.body, context, context.project),
    make: ({ body, project, caller, tx }) =>
      insertAgent(tx, { ...(body as AgentConfig), project_id: project }, versionAuthor(caller, body.version_label)),
  }),
  agents.get({
    description: 'Projects that the agent is shared with get its ID and name only.',
    granted: true,
    answers: { 200: z.union([Agent, AgentProjection]) },
    present: async ({ resource: agent, grant }) =>
      grant ? { id: agent.id, name: agent.name } : agentKind.present(agent),
  }),
  updateOperation('patch', 'updateAgent', 'Update an agent'),
  updateOperation('put', 'putAgent', 'Update an agent (same as PATCH)'),
  agents.adopt({
    admit: refuseBoundedCaller,
    adopt: (stored, { tx, caller }) => adoptAgent(tx, stored, versionAuthor(caller, 'adopted')),
  }),
  agents.remove({
    admit: refuseBoundedCaller,
    description:
      'With `force`, also deletes the generations and traces of the agent in its project, and revokes its shares. Generations in other projects remain.',
    dependents: 'AGENT_HAS_DEPENDENTS',
  }),
]
