import { authorColumn } from '../../core/api/authors.ts'
import { type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { checkIngestionRule } from './check.ts'
import { isNative, matchRule } from './match.ts'
import { IngestionRuleInput, IngestionRulePatch, ingestionRuleKind, ResolvedRule, ResolveRuleInput } from './model.ts'

const tag = 'Ingestion rules'
const rules = resource(ingestionRuleKind, { path: '/ingestion-rules', tag })

const raises = [
  'INGESTION_RULE_VALIDATION_FAILED',
  'TOOL_NOT_FOUND',
  'AGENT_NOT_FOUND',
  'INGESTION_RULE_GLOB_CONFLICT',
] as const

const resolveIngestionRule = operation({
  id: 'resolveIngestionRule',
  method: 'post',
  path: '/ingestion-rules/resolve',
  summary: 'Find the rule that applies to files of a type',
  description: 'Says by which rule a file of that type and path would be ingested, without ingesting anything.',
  tag,
  action: 'ingestion-rules:ListIngestionRules',
  creates: ingestionRuleKind,
  body: ResolveRuleInput,
  answers: { 200: ResolvedRule },
  transaction: false,
  async run({ db, body, project }) {
    const { content_type, path } = body
    const rule = await matchRule(db, project as string, { content_type, path: path ?? null })
    return { rule_id: rule?.id ?? null, native: isNative(content_type) }
  },
})

export const ingestionRuleOperations: Operation[] = [
  // ingestion_rules_project serves the order.
  rules.list(),
  rules.create({
    summary: 'Have a tool or an agent turn files of a type into text',
    body: IngestionRuleInput,
    raises: [...raises],
    alsoActions: ['tools:CallTool'],
    description: 'Naming a tool needs `tools:CallTool` on it.',
    check: ({ tx, project, body, allow }) => checkIngestionRule({ db: tx, project_id: project, allow }, body, null),
  }),
  resolveIngestionRule,
  rules.get(),
  rules.update({
    description: 'The resulting rule is validated as a whole. Attempts that have read their rule already keep it.',
    body: IngestionRulePatch,
    quiet: true,
    raises: [...raises],
    alsoActions: ['tools:CallTool'],
    check: (next, { tx, stored, allow }) =>
      checkIngestionRule({ db: tx, project_id: stored.project_id, allow }, next, stored),
    // With what ingestion_rules_glob is over, which its refusal names.
    write(next, { tx, stored, caller }) {
      const changes = ingestionRuleKind.changes(stored, next)
      return ingestionRuleKind.update(tx, stored.id, {
        ...changes,
        ...authorColumn(changes, caller),
        content_type_glob: next.content_type_glob,
        path_prefix: next.path_prefix,
      })
    },
  }),
  rules.adopt(),
  rules.remove(),
]
