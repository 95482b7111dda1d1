import { isDeepStrictEqual } from 'node:util'
import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { listTable, pageOf } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { judgeRule } from './judge.ts'
import { isNative, matchRule } from './match.ts'
import {
  configOf,
  IngestionRule,
  IngestionRuleInput,
  IngestionRulePatch,
  type IngestionRuleRow,
  ingestionRuleKind,
  Resolved,
  ResolveInput,
} from './model.ts'
import { deleteRule, globConflict, insertRule, updateRule } from './store.ts'

const tag = 'Ingestion rules'

const listIngestionRules = operation({
  id: 'listIngestionRules',
  method: 'get',
  path: '/ingestion-rules',
  summary: 'List ingestion rules',
  tag,
  action: 'ingestion-rules:ListIngestionRules',
  lists: ingestionRuleKind,
  answers: { 200: pageOf(IngestionRule) },
  // Index ingestion_rules_project.
  run: context =>
    listTable<IngestionRuleRow>(context, { table: ingestionRuleKind.table, present: ingestionRuleKind.present }),
})

const createIngestionRule = operation({
  id: 'createIngestionRule',
  method: 'post',
  path: '/ingestion-rules',
  summary: 'Have a tool or an agent turn files of a type into text',
  tag,
  action: 'ingestion-rules:CreateIngestionRule',
  creates: ingestionRuleKind,
  body: IngestionRuleInput,
  answers: { 201: IngestionRule },
  raises: ['INGESTION_RULE_VALIDATION_FAILED', 'TOOL_NOT_FOUND', 'AGENT_NOT_FOUND', 'INGESTION_RULE_GLOB_CONFLICT'],
  async run({ tx, body, project }) {
    const { project_id: _, ...fields } = body
    const config = await judgeRule(tx, project as string, null, fields)
    const row = await insertRule(tx, newId(ingestionRuleKind.prefix), project as string, config)
    if (!row) return globConflict(config)
    const record = ingestionRuleKind.present(row)
    tx.emit(
      ingestionRuleKind,
      'created',
      { id: (record as { id: string }).id, project_id: row.project_id },
      { data: record },
    )
    return record
  },
})

const resolveIngestionRule = operation({
  id: 'resolveIngestionRule',
  method: 'post',
  path: '/ingestion-rules/resolve',
  summary: 'Ask which rule files of a type go by',
  tag,
  action: 'ingestion-rules:ListIngestionRules',
  creates: ingestionRuleKind,
  body: ResolveInput,
  answers: { 200: Resolved },
  transaction: false,
  async run({ db, body, project }) {
    const { content_type, path } = body
    const rule = await matchRule(db, project as string, { content_type, path: path ?? null })
    return { rule_id: rule?.id ?? null, native: isNative(content_type) }
  },
})

const getIngestionRule = itemOperation(ingestionRuleKind, {
  id: 'getIngestionRule',
  method: 'get',
  path: '/ingestion-rules/{ingestion_rule_id}',
  summary: 'Read an ingestion rule',
  tag,
  action: 'ingestion-rules:GetIngestionRule',
  answers: { 200: IngestionRule },
  run: async ({ resource }) => ingestionRuleKind.present(resource),
})

const updateIngestionRule = itemOperation(ingestionRuleKind, {
  id: 'updateIngestionRule',
  method: 'patch',
  path: '/ingestion-rules/{ingestion_rule_id}',
  summary: 'Change an ingestion rule',
  description: 'Judged as the rule that results. Attempts that have asked for their rule before go by what it was.',
  tag,
  action: 'ingestion-rules:UpdateIngestionRule',
  body: IngestionRulePatch,
  answers: { 200: IngestionRule },
  raises: ['INGESTION_RULE_VALIDATION_FAILED', 'TOOL_NOT_FOUND', 'AGENT_NOT_FOUND', 'INGESTION_RULE_GLOB_CONFLICT'],
  async run({ tx, body, resource }) {
    const stored = await ingestionRuleKind.find(tx, resource.id, true)
    if (!stored) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    const before = configOf(stored)
    const config = await judgeRule(tx, stored.project_id, before, body)
    if (isDeepStrictEqual(config, before)) return ingestionRuleKind.present(stored)
    const record = ingestionRuleKind.present(await updateRule(tx, stored.id, config))
    tx.emit(
      ingestionRuleKind,
      'updated',
      { id: (record as { id: string }).id, project_id: stored.project_id },
      { data: record },
    )
    return record
  },
})

const deleteIngestionRule = itemOperation(ingestionRuleKind, {
  id: 'deleteIngestionRule',
  method: 'delete',
  path: '/ingestion-rules/{ingestion_rule_id}',
  summary: 'Delete an ingestion rule',
  tag,
  action: 'ingestion-rules:DeleteIngestionRule',
  answers: { 204: null },
  async run({ tx, resource }) {
    const row = await deleteRule(tx, resource.id)
    if (!row) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    tx.emit(ingestionRuleKind, 'deleted', row)
  },
})

export const ingestionRuleOperations: Operation[] = [
  listIngestionRules,
  createIngestionRule,
  resolveIngestionRule,
  getIngestionRule,
  updateIngestionRule,
  deleteIngestionRule,
]
