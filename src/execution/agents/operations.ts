import { z } from 'zod'
import { columnFilter, containsFilter, equalsFilter } from '#core/api/filters.ts'
import { textFilter } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, type WarningInput } from '#core/api/operation.ts'
import { warningsField } from '#core/api/warnings.ts'
import type { Problem } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { detachPermission, hasGuardrail, removedGuardrails, requireDetach } from '#identity/projects/guardrail-ids.ts'
import { addressWarnings } from '../tools/check-definition.ts'
import { toolGate } from '../tools/guardrail-gate.ts'
import { withToolDefaults } from '../tools/model.ts'
import { listToolsById } from '../tools/store.ts'
import { refuseBoundedCaller } from './bounds.ts'
import {
  agentRefusals,
  checkConfig,
  compileSchemas,
  referencePermissions,
  requireValidAgentConfig,
  validateConfig,
} from './check.ts'
import { agentAccess } from './end-user.ts'
import {
  Agent,
  AgentInput,
  AgentPatch,
  AgentProjection,
  type AgentRow,
  AgentWithWarnings,
  agentKind,
  ReleaseInput,
} from './model.ts'
import { endRelease, setRelease } from './release.ts'
import { agentVersions } from './versions.ts'

const tag = 'Agents'
const agents = resource(agentKind, { path: '/agents', tag, versions: agentVersions })

/** Returns the warnings of an agent: of its guardrails about its tools, and about addresses of its inline tools. */
const agentWarnings = async (agent: AgentRow, { tx, services }: Pick<Context, 'tx' | 'services'>): Promise<object> =>
  warningsField([...(await guardrailWarnings(tx, agent)), ...inlineAddressWarnings({ services, body: agent })])

/** Returns the warnings about addresses of the inline tools of an agent. */
const inlineAddressWarnings = ({ services, body }: WarningInput<Partial<Pick<AgentRow, 'tool_bindings'>>>): Problem[] =>
  (body.tool_bindings ?? []).flatMap(({ tool }, index) =>
    tool ? addressWarnings(services, tool, `tool_bindings[${index}].tool.`) : [],
  )

/** Presents an agent whose configuration was written, with its warnings. */
const presentWritten = async (agent: AgentRow, context: Pick<Context, 'tx' | 'services'>): Promise<object> => ({
  ...agentKind.present(agent),
  ...(await agentWarnings(agent, context)),
})

async function guardrailWarnings(tx: Context['tx'], agent: AgentRow): Promise<Problem[]> {
  const { guardrail_ids, tool_bindings } = agent
  if (!guardrail_ids?.length || !tool_bindings?.length) return []
  const ids = tool_bindings.flatMap(({ tool_id }) => tool_id ?? [])
  const records = ids.length === 0 ? [] : await listToolsById(tx, agent.project_id, ids)
  const tools = [...records, ...tool_bindings.flatMap(({ tool }) => (tool ? withToolDefaults(tool) : []))]
  const guarded = tools.map(tool => ({ tool, path: 'guardrail_ids' }))
  return (await toolGate.only()?.warnings(tx, guardrail_ids, guarded)) ?? []
}

/** Requires permission to detach each guardrail that a write removes. */
const requireDetachOfRemoved = (
  next: AgentRow,
  { stored, allowed }: Pick<Context, 'allowed'> & { stored: AgentRow },
): void =>
  requireDetach({ allowed }, stored.project_id, removedGuardrails([stored.guardrail_ids], [next.guardrail_ids]))

const updateOperation = (method: 'patch' | 'put', id: string, summary: string): Operation =>
  agents.update({
    method,
    id,
    summary,
    description:
      'Omitted fields are unchanged. A write without changes creates no version. Binding a tool for the first time requires `tools:CallTool` on it, a secret referenced by an inline definition `secrets:UseSecret`, detaching a guardrail `guardrails:DetachGuardrail`, a source added to `knowledge_config` `knowledge:SearchKnowledge`, its store for writes `memories:CreateMemoryEntry`, and a new avatar `files:DownloadFile`.',
    alsoActions: [...referencePermissions, detachPermission],
    admit: refuseBoundedCaller,
    body: AgentPatch,
    answers: { 200: AgentWithWarnings },
    show: agentWarnings,
    raises: [...agentRefusals, 'VERSION_CONFLICT'],
    prepare: compileSchemas,
    check(next, context) {
      requireDetachOfRemoved(next, context)
      return checkConfig(next, context.body, context, next.project_id, context.stored)
    },
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
      'Binding a tool requires `tools:CallTool` on it, a secret referenced by an inline definition `secrets:UseSecret`, sources of `knowledge_config` `knowledge:SearchKnowledge`, its store for writes `memories:CreateMemoryEntry`, and an avatar `files:DownloadFile`.',
    alsoActions: referencePermissions,
    body: AgentInput,
    validate: ({ services, project, body }) => validateConfig(services, project, body),
    warnings: inlineAddressWarnings,
    answers: { 201: AgentWithWarnings },
    show: agentWarnings,
    raises: [...agentRefusals],
    prepare: compileSchemas,
    check: context => checkConfig(context.body, context.body, context, context.project),
  }),
  agents.get({
    description: 'Projects that the agent is shared with get its ID and name only.',
    granted: true,
    endUser: agentAccess,
    answers: { 200: z.union([Agent, AgentProjection]) },
    present: async ({ resource: agent, grant }) =>
      grant ? { id: agent.id, name: agent.name } : agentKind.present(agent),
  }),
  updateOperation('patch', 'updateAgent', 'Update an agent'),
  updateOperation('put', 'putAgent', 'Update an agent (same as PATCH)'),
  agents.adopt({ admit: refuseBoundedCaller }),
  agents.remove({
    admit: refuseBoundedCaller,
    description:
      'With `force`, also deletes the generations and traces of the agent in its project, and revokes its shares. Generations in other projects remain.',
    dependents: 'AGENT_HAS_DEPENDENTS',
  }),
  ...agents.versions({
    description:
      'Writes the configuration of that version as the next one. The restored version is validated and authorized like a new write. During a release the served versions are unchanged.',
    admit: refuseBoundedCaller,
    alsoActions: [...referencePermissions, detachPermission],
    raises: [...agentRefusals, 'VERSION_CONFLICT'],
    answers: { 200: AgentWithWarnings },
    show: agentWarnings,
    expects: true,
    prepare: (next, services) => compileSchemas({ services, project: next.project_id, body: next }),
    check(next, context) {
      requireDetachOfRemoved(next, context)
      return requireValidAgentConfig(context, context.stored, agentVersions.configOf(next))
    },
  }),
  itemOperation(agentKind, {
    id: 'setAgentRelease',
    command: ['agents', 'release', 'set'],
    method: 'put',
    path: '/agents/{agent_id}/release',
    summary: 'Start or replace an agent release',
    description:
      'Serves two versions concurrently. An end user keeps its version. Until the release ends the configuration of the agent is a draft. Replaces an active release.',
    tag,
    action: 'agents:SetAgentRelease',
    admit: refuseBoundedCaller,
    alsoActions: [...referencePermissions, detachPermission],
    body: ReleaseInput,
    answers: { 200: Agent },
    raises: ['VERSION_CONFLICT'],
    run: async context => agentKind.present(await setRelease(context, context.body)),
  }),
  agents.action('promote', {
    id: 'promoteAgentRelease',
    path: '/agents/{agent_id}/release/promote',
    summary: 'Promote the canary',
    description:
      'Ends the release: the next turns of all callers use the configuration of the canary, written as a new version.',
    action: 'agents:SetAgentRelease',
    admit: refuseBoundedCaller,
    alsoActions: [...referencePermissions, detachPermission],
    answers: { 200: AgentWithWarnings },
    raises: [...agentRefusals, 'NO_ACTIVE_RELEASE', 'PROMOTION_GATE_UNMET'],
    run: async context => presentWritten(await endRelease(context, 'promoted'), context),
  }),
  agents.action('abort', {
    id: 'abortAgentRelease',
    path: '/agents/{agent_id}/release/abort',
    summary: 'Abort an agent release',
    description:
      'Restores the configuration of the stable version. The canary gets no further turns; running turns keep their version.',
    action: 'agents:SetAgentRelease',
    admit: refuseBoundedCaller,
    alsoActions: [detachPermission],
    answers: { 200: AgentWithWarnings },
    raises: ['AI_PROVIDER_NOT_FOUND', 'MODEL_ROUTE_NOT_FOUND', 'GUARDRAIL_NOT_FOUND', 'NO_ACTIVE_RELEASE'],
    run: async context => presentWritten(await endRelease(context, 'aborted'), context),
  }),
]
