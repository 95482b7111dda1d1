import { authorColumn } from '#core/api/authors.ts'
import { type Operation, operation } from '#core/api/operation.ts'
import { resource } from '#core/resources/resource.ts'
import { searchLanguageChanged } from '#identity/projects/search-language.ts'
import { checkIngestionRule, checkRuleFields } from './check.ts'
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
  summary: 'Resolve an ingestion rule',
  description: 'Returns the rule by which a file of a type and path would be ingested, without ingesting it.',
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
  // Index ingestion_rules_project for the order.
  rules.list(),
  rules.create({
    summary: 'Create an ingestion rule',
    body: IngestionRuleInput,
    validate: ({ body }) => checkRuleFields(body),
    raises: [...raises],
    alsoActions: ['tools:CallTool'],
    description: 'A rule with a tool requires `tools:CallTool` on the tool.',
    async check({ tx, project, body, allow }) {
      await checkIngestionRule({ db: tx, project_id: project, allow }, body, null)
      if (body.search_language != null) searchLanguageChanged(tx, project)
    },
  }),
  resolveIngestionRule,
  rules.get(),
  rules.update({
    description:
      'The resulting rule is validated as a whole. Ingestions that have already read the rule are unaffected.',
    body: IngestionRulePatch,
    quiet: true,
    raises: [...raises],
    alsoActions: ['tools:CallTool'],
    async check(next, { tx, stored, allow }) {
      await checkIngestionRule({ db: tx, project_id: stored.project_id, allow }, next, stored)
      if (next.search_language !== stored.search_language) searchLanguageChanged(tx, stored.project_id)
    },
    // Includes the columns of ingestion_rules_glob for the message of a conflict.
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
