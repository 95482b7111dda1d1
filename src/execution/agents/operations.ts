import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { refuseDependents, removeRow } from '../../core/api/dependents.ts'
import { invalid, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { kinds } from '../../core/api/kind.ts'
import { booleanQuery, listTable, pageOf, textFilter } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { type Queryable, sql, substring } from '../../core/db/sql.ts'
import { lockProvider } from '../providers/store.ts'
import { Agent, type AgentConfig, AgentInput, AgentPatch, type AgentRow, agentKind, configOf } from './model.ts'
import { checkOutputSchema } from './schema.ts'
import { insertAgent, updateAgent } from './store.ts'

const tag = 'Agents'

/** The model binding has no default to fall back to, so a provider must be named. */
type Draft = Omit<AgentConfig, 'ai_provider_id' | 'output_schema'> & {
  ai_provider_id: string | null
  output_schema?: unknown
}

const EMPTY: Draft = {
  name: null,
  instructions: null,
  ai_provider_id: null,
  model: null,
  max_steps: null,
  temperature: null,
  max_output_tokens: null,
  top_p: null,
  seed: null,
  provider_options: null,
  output_schema: null,
  prompt_caching: null,
  max_context_messages: null,
  single_session_per_actor: false,
  trace_content_mode: null,
}

const projectOf = (db: Queryable, id: string): Promise<{ trace_content_mode: string } | null> =>
  kinds.get('project').find(db, id)

/** Validates the configuration a write would leave and holds what it names against deletion. */
async function checkConfig(
  { tx, services }: Pick<Context, 'tx' | 'services'>,
  projectId: string,
  draft: Draft,
  given: { output_schema?: unknown; max_steps?: number | null; trace_content_mode?: 'full' | 'none' | null },
): Promise<AgentConfig> {
  const { ai_provider_id } = draft
  if (ai_provider_id === null) {
    const path = draft.model === null ? 'ai_provider_id' : 'model'
    const message = draft.model === null ? 'is required: the project has no default' : 'needs ai_provider_id'
    return invalid({ code: 'REQUIRED', path, message })
  }
  const ceiling = services.config.AGENT_MAX_STEPS_CEILING
  // A stored value above a lowered ceiling stays and runs at the ceiling.
  if (given.max_steps && given.max_steps > ceiling)
    invalid({ code: 'TOO_BIG', path: 'max_steps', message: `must be at most ${ceiling}` })
  // Likewise a stored mode: of the agent's and the project's the stricter one counts.
  if (given.trace_content_mode === 'full' && (await projectOf(tx, projectId))?.trace_content_mode === 'none')
    invalid({ code: 'INVALID_VALUE', path: 'trace_content_mode', message: 'the project keeps no content' })
  const output_schema =
    draft.output_schema === null || draft.output_schema === undefined
      ? null
      : given.output_schema === undefined
        ? (draft.output_schema as Record<string, unknown>)
        : await checkOutputSchema(services, projectId, draft.output_schema)
  if (!(await lockProvider(tx, projectId, ai_provider_id)))
    raise('AI_PROVIDER_NOT_FOUND', { meta: { id: ai_provider_id } })
  return { ...draft, ai_provider_id, output_schema }
}

const defined = <T extends object>(body: T): Partial<T> =>
  Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined)) as Partial<T>

const listAgents = operation({
  id: 'listAgents',
  method: 'get',
  path: '/agents',
  summary: 'List agents',
  tag,
  action: 'agents:ListAgents',
  lists: agentKind,
  query: z.object({ name: textFilter, ai_provider_id: textFilter }),
  answers: { 200: pageOf(Agent) },
  run: context => {
    const { name, ai_provider_id } = context.query
    return listTable<AgentRow>(context, {
      table: agentKind.table,
      where: [
        name !== undefined && sql.fragment`t.name ilike ${substring(name)}`,
        ai_provider_id !== undefined && sql.fragment`t.ai_provider_id = ${ai_provider_id}`,
      ],
      present: agentKind.present,
    })
  },
})

const createAgent = operation({
  id: 'createAgent',
  method: 'post',
  path: '/agents',
  summary: 'Create an agent',
  tag,
  action: 'agents:CreateAgent',
  creates: agentKind,
  body: AgentInput,
  answers: { 201: Agent },
  raises: ['AI_PROVIDER_NOT_FOUND', 'INVALID_OUTPUT_SCHEMA'],
  async run(context) {
    const { tx, body } = context
    const project = context.project as string
    const { project_id: _, ...fields } = body
    const config = await checkConfig(context, project, { ...EMPTY, ...defined(fields) }, body)
    const record = agentKind.present(await insertAgent(tx, newId(agentKind.prefix), project, config))
    tx.emit(agentKind, 'created', { id: (record as { id: string }).id, project_id: project }, { data: record })
    return record
  },
})

const getAgent = itemOperation(agentKind, {
  id: 'getAgent',
  method: 'get',
  path: '/agents/{agent_id}',
  summary: 'Read an agent',
  tag,
  action: 'agents:GetAgent',
  answers: { 200: Agent },
  run: async ({ resource }) => agentKind.present(resource),
})

const change = (method: 'put' | 'patch', id: string, summary: string): Operation =>
  itemOperation(agentKind, {
    id,
    method,
    path: '/agents/{agent_id}',
    summary,
    description: 'Fields that are left out stay as they are. A write that changes nothing makes no version.',
    tag,
    action: 'agents:UpdateAgent',
    body: AgentPatch,
    answers: { 200: Agent },
    raises: ['AI_PROVIDER_NOT_FOUND', 'INVALID_OUTPUT_SCHEMA'],
    async run(context) {
      const { tx, body, resource } = context
      const row = await agentKind.find(tx, resource.id, true)
      if (!row) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
      const before = configOf(row)
      const config = await checkConfig(context, row.project_id, { ...before, ...defined(body) }, body)
      if (isDeepStrictEqual(config, before)) return agentKind.present(row)
      const record = agentKind.present(await updateAgent(tx, row.id, config))
      tx.emit(agentKind, 'updated', { id: (record as { id: string }).id, project_id: row.project_id }, { data: record })
      return record
    },
  })

const deleteAgent = itemOperation(agentKind, {
  id: 'deleteAgent',
  method: 'delete',
  path: '/agents/{agent_id}',
  summary: 'Delete an agent',
  description: 'With `force`, what it produced goes with it.',
  tag,
  action: 'agents:DeleteAgent',
  query: z.object({ force: booleanQuery.optional() }),
  answers: { 204: null },
  raises: ['AGENT_HAS_DEPENDENTS'],
  async run({ tx, query, resource }) {
    const row = await agentKind.find(tx, resource.id, true)
    if (!row) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    await refuseDependents(tx, agentKind, row.id, { force: query.force ?? false, code: 'AGENT_HAS_DEPENDENTS' })
    await removeRow(tx, agentKind, row)
  },
})

export const agentOperations: Operation[] = [
  listAgents,
  createAgent,
  getAgent,
  change('patch', 'updateAgent', 'Change an agent'),
  change('put', 'putAgent', 'Change an agent, as PATCH does'),
  deleteAgent,
]
