import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { equalsFilter, type Filters, filterConditions, filterSchema, flagFilter } from '../../core/api/filters.ts'
import { listTable, pageOf } from '../../core/api/lists.ts'
import { type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { invalidateOnCommit } from '../../core/db/notified-cache.ts'
import { sql } from '../../core/db/sql.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { memoryStoreKind } from '../../memory/stores/model.ts'
import { allowHandler, checkMemoryRule } from './check.ts'
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

/** Most rules of a project: the transaction that completes a turn makes a firing of each, and every process keeps them. */
const MAX_RULES = 200
const rules = resource(memoryRuleKind, { path: '/memory-rules', tag, module: 'memories' })

const refusals = ['AGENT_NOT_FOUND', 'TOOL_NOT_FOUND', 'AI_PROVIDER_NOT_FOUND'] as const
const RIGHTS = ['agents:CreateAgentGeneration', 'tools:CallTool']

const createRule = operation({
  id: 'createMemoryRule',
  method: 'post',
  path: '/memory-rules',
  summary: 'Have a memory store take facts from turns',
  description:
    'Decided on the store. Naming an agent needs `agents:CreateAgentGeneration` on it, naming a tool `tools:CallTool`: they run as whoever named them.',
  tag,
  action: 'memories:CreateMemoryRule',
  alsoActions: RIGHTS,
  creates: memoryRuleKind,
  under: { kind: memoryStoreKind, field: 'memory_store_id' },
  body: MemoryRuleInput,
  answers: { 201: MemoryRule },
  raises: [...refusals],
  async run(context) {
    const { tx, body, caller, project } = context
    const { project_id: _named, memory_store_id, on, enabled = true, ...given } = body
    const project_id = project as string
    // Held, so that the rule does not outlive it.
    if (!(await memoryStoreKind.reference(tx, memory_store_id, project_id)))
      raise('RESOURCE_NOT_FOUND', { meta: { id: memory_store_id } })
    if ((await countRules(tx, project_id)) >= MAX_RULES)
      raiseInvalid({ code: 'LIMIT_REACHED', path: '', message: `a project has at most ${MAX_RULES} memory rules` })
    const settings = { ...UNSET, ...given, on, project_id }
    await checkMemoryRule(context, settings, null)
    const authority = principalRecord(caller)
    const row = await memoryRuleKind.insert(tx, { ...settings, memory_store_id, enabled, authority })
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
  description: 'Rules by which facts are taken out of turns that have ended.',
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
      'Checked as it stands then. Naming another agent or tool, or other arguments of a tool, needs the right to ask it, and has it run as whoever does so.',
    alsoActions: RIGHTS,
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
    alsoActions: RIGHTS,
    async adopt(stored, { tx, allow, caller }) {
      allowHandler({ allow }, stored)
      invalidateOnCommit(tx, rulesChannel, stored.project_id)
      return memoryRuleKind.update(tx, stored.id, { authority: principalRecord(caller) })
    },
  }),
  rules.remove({
    description: 'What it brought into the store stays.',
    removed: ({ project_id }, { tx }) => invalidateOnCommit(tx, rulesChannel, project_id),
  }),
  rules.action('test', {
    id: 'testMemoryRule',
    summary: 'Try a memory rule on a past turn',
    description:
      'Has the handler asked as the caller, and answers its facts with what writing each would do. Nothing is written; what is asked of models is metered.',
    action: 'memories:GetMemoryRule',
    alsoActions: [...RIGHTS, 'generations:GetGeneration'],
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
