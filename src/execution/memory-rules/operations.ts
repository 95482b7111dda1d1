import { equalsFilter, type Filters, filterConditions, filterSchema, flagFilter } from '#core/api/filters.ts'
import { listTable, pageOf } from '#core/api/lists.ts'
import { type Operation, operation } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { invalidateOnCommit } from '#core/db/notified-cache.ts'
import { sql } from '#core/db/sql.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { memoryStoreKind } from '#memory/stores/model.ts'
import { allowHandler, checkFields, checkMemoryRule } from './check.ts'
import {
  MemoryRule,
  MemoryRuleInput,
  MemoryRulePatch,
  type MemoryRuleRow,
  memoryRuleKind,
  RuleTest,
  RuleTestInput,
  rulesChannel,
} from './model.ts'
import { countRules } from './store.ts'
import { testRule } from './test-rule.ts'

const tag = 'Memory'

/** Maximum number of rules in a project: completing a turn inserts a firing for each, and every process caches them. */
const MAX_RULES = 200
const rules = resource(memoryRuleKind, { path: '/memory-rules', tag, module: 'memories' })

const refusals = ['AGENT_NOT_FOUND', 'TOOL_NOT_FOUND', 'AI_PROVIDER_NOT_FOUND'] as const
const HANDLER_PERMISSIONS = ['agents:CreateAgentGeneration', 'tools:CallTool']

const createRule = operation({
  id: 'createMemoryRule',
  method: 'post',
  path: '/memory-rules',
  summary: 'Create a memory rule',
  description:
    'Authorized on the store. An agent requires `agents:CreateAgentGeneration` on it, a tool `tools:CallTool`; the handler runs with the permissions of the principal that set it.',
  tag,
  action: 'memories:CreateMemoryRule',
  alsoActions: HANDLER_PERMISSIONS,
  creates: memoryRuleKind,
  under: { kind: memoryStoreKind, field: 'memory_store_id' },
  body: MemoryRuleInput,
  validate: ({ body }) => checkFields({ ...UNSET, ...body }),
  answers: { 201: MemoryRule },
  raises: [...refusals],
  async run(context) {
    const { tx, body, caller, project } = context
    const { project_id: _project, memory_store_id, on, enabled = true, include_evaluations = false, ...fields } = body
    const project_id = project as string
    // Locks the store against deletion.
    if (!(await memoryStoreKind.reference(tx, memory_store_id, project_id)))
      raise('RESOURCE_NOT_FOUND', { meta: { id: memory_store_id } })
    if ((await countRules(tx, project_id)) >= MAX_RULES)
      raiseInvalid({ code: 'LIMIT_REACHED', path: '', message: `a project has at most ${MAX_RULES} memory rules` })
    const settings = { ...UNSET, ...fields, on, project_id }
    await checkMemoryRule(context, settings, null)
    const authority = principalRecord(caller)
    const row = await memoryRuleKind.insert(tx, {
      ...settings,
      memory_store_id,
      enabled,
      include_evaluations,
      authority,
    })
    invalidateOnCommit(tx, rulesChannel, project_id)
    tx.emit(memoryRuleKind, 'created', row)
    return memoryRuleKind.present(row)
  },
})

const UNSET = {
  source_agent_ids: null,
  agent_id: null,
  tool_id: null,
  action: null,
  preset_parameters: null,
  prompt: null,
  ai_provider_id: null,
  model: null,
}

const filters = {
  memory_store_id: equalsFilter('memory_store_id'),
  agent_id: equalsFilter('agent_id'),
  tool_id: equalsFilter('tool_id'),
  enabled: flagFilter('enabled'),
} satisfies Filters

const listRules = operation({
  id: 'listMemoryRules',
  method: 'get',
  path: '/memory-rules',
  summary: 'List memory rules',
  description: 'Memory rules extract facts from completed turns.',
  tag,
  action: 'memories:ListMemoryRules',
  lists: memoryStoreKind,
  query: filterSchema(filters),
  answers: { 200: pageOf(MemoryRule) },
  // memory_rules_project serves the order; memory_rules_store, memory_rules_agent and memory_rules_tool their filters.
  run: context =>
    listTable<MemoryRuleRow>(
      {
        ...context,
        visible: ({ project }) =>
          context.visible({
            project,
            id: sql.fragment`t.memory_store_id`,
            tags: sql.fragment`(select s.tags from memory_stores s where s.id = t.memory_store_id)`,
          }),
      },
      {
        table: 'memory_rules',
        columns: memoryRuleKind.columns,
        filters: filterConditions(filters, context.query),
        present: memoryRuleKind.present,
      },
    ),
})

export const memoryRuleOperations: Operation[] = [
  createRule,
  listRules,
  rules.get(),
  rules.update({
    description:
      'Omitted fields are unchanged; the resulting rule is validated as a whole. Another agent or tool, or other arguments of a tool, requires permission to use it; the handler then runs as the caller.',
    alsoActions: HANDLER_PERMISSIONS,
    body: MemoryRulePatch,
    quiet: true,
    raises: [...refusals],
    async change(next, context) {
      const { stored, caller, body } = context
      const { newHandler } = await checkMemoryRule(context, next, stored)
      return {
        ...next,
        ...(newHandler ? { authority: principalRecord(caller) } : {}),
        ...(body.enabled ? { disabled_reason: null } : {}),
      }
    },
    changed: ({ project_id }, { tx }) => invalidateOnCommit(tx, rulesChannel, project_id),
  }),
  rules.adopt({
    alsoActions: HANDLER_PERMISSIONS,
    async adopt(stored, { tx, allow, caller }) {
      allowHandler({ allow }, stored)
      invalidateOnCommit(tx, rulesChannel, stored.project_id)
      return memoryRuleKind.update(tx, stored.id, { authority: principalRecord(caller) })
    },
  }),
  rules.remove({
    description: 'Memories written by the rule remain.',
    removed: ({ project_id }, { tx }) => invalidateOnCommit(tx, rulesChannel, project_id),
  }),
  rules.action('test', {
    id: 'testMemoryRule',
    summary: 'Test a memory rule',
    description:
      'Runs the handler as the caller on a past turn and returns its facts with the outcome of writing each. Nothing is written; model usage is metered.',
    action: 'memories:GetMemoryRule',
    alsoActions: [...HANDLER_PERMISSIONS, 'generations:GetGeneration'],
    body: RuleTestInput,
    answers: { 200: RuleTest },
    transaction: false,
    raises: [
      ...refusals,
      'GENERATION_NOT_FOUND',
      'GENERATION_CONTENT_UNAVAILABLE',
      'GENERATION_FAILED',
      'AI_PROVIDER_ERROR',
      'AI_PROVIDER_MISCONFIGURED',
      'MODEL_ROUTE_NOT_FOUND',
      'MISSING_TOOL_CONTEXT_KEY',
      'OUTPUT_SCHEMA_VALIDATION_FAILED',
      'PIPELINE_DEPTH_EXCEEDED',
      'PIPELINE_STEP_FAILED',
      'PROJECT_PAUSED',
      'QUOTA_EXCEEDED',
      'QUOTA_UNENFORCEABLE',
      'SECRET_NOT_DECRYPTABLE',
      'SECRET_NOT_FOUND',
      'TEXT_ENCODED_TOOL_CALL',
      'TOOL_AUTH_FAILED',
      'TOOL_EGRESS_BLOCKED',
      'TOOL_HTTP_ERROR',
    ],
    run: testRule,
  }),
]
