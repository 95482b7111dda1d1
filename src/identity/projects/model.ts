import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { booleanQuery, integerQuery, timeInput } from '#core/api/lists.ts'
import { patchBody, record } from '#core/api/record.ts'
import { sql } from '#core/db/sql.ts'
import { GuardrailIds } from './guardrail-ids.ts'
import { SearchLanguage } from './search-language.ts'

const MAX_INTEGER = 2_147_483_647
const limit = z.int().min(1).max(MAX_INTEGER).nullable()
const traceModes = z.enum(['full', 'none'])

/** Settings that a create accepts and a clone copies. */
const settings = {
  name: z.string().trim().min(1).max(255).describe('Display name, not necessarily unique'),
  description: z.string().max(2000).nullable().describe('Purpose of the project'),
  max_run_depth: limit.describe(
    'Maximum nesting depth of loops and sub-orchestrations. Null for the limit of the deployment.',
  ),
  max_concurrent_runs: limit.describe('Maximum number of concurrent orchestration runs. Null for no project limit.'),
  max_chain_generations: limit.describe(
    'Maximum number of generations in one chain of continuations; the lowest applicable limit applies',
  ),
  audit_reads_enabled: z.boolean().describe('Whether reads are written to the audit log too'),
  trace_content_retention_days: limit.describe('Days for which trace content is retained. Null for no expiry.'),
  trace_retention_days: limit.describe(
    'Days after their last activity for which traces and their generations are retained. Null for no expiry.',
  ),
  conversation_retention_days: limit.describe(
    'Days after their last activity for which conversations, with their sessions and messages, are retained. Null for no expiry.',
  ),
  run_retention_days: limit.describe(
    'Days after their end for which orchestration runs, with their nested runs, are retained. Null for no expiry.',
  ),
  trace_content_mode: traceModes.describe('Whether traces contain content'),
  require_priced_model: z
    .boolean()
    .describe(
      'Whether turns are refused on models without prices for input and output tokens, and for web searches if the agent has them as a tool of the vendor; every target of a route must have prices',
    ),
  search_language: SearchLanguage.describe(
    'Language of the texts for searches by words: a text search configuration of PostgreSQL such as `german`, or `auto` to choose by script. Null for the language of the deployment. A change rebuilds the words of existing texts.',
  ),
}

export const Project = record(
  'Project',
  {
    name: z.string(),
    description: z.string().nullable(),
    guardrail_ids: z.array(z.string()),
    default_model_route_id: z.string().nullable(),
    max_run_depth: settings.max_run_depth,
    max_concurrent_runs: settings.max_concurrent_runs,
    max_chain_generations: settings.max_chain_generations,
    audit_reads_enabled: settings.audit_reads_enabled,
    trace_content_retention_days: settings.trace_content_retention_days,
    trace_retention_days: settings.trace_retention_days,
    conversation_retention_days: settings.conversation_retention_days,
    run_retention_days: settings.run_retention_days,
    trace_content_mode: settings.trace_content_mode,
    require_priced_model: settings.require_priced_model,
    search_language: settings.search_language,
    content_hold_until: z.iso
      .datetime()
      .nullable()
      .describe('Legal hold: no content is erased until this time. Null for none.'),
    paused_at: z.string().nullable(),
    pause_reason: z.string().nullable(),
    delete_at: z.string().nullable().describe('Time of the scheduled deletion. Null if none is scheduled.'),
  },
  { project: false, tags: true },
)

const legalHold = {
  content_hold_until: timeInput
    .nullable()
    .describe('Legal hold: no content is erased until this time, neither by request nor by retention. Null for none.'),
}

export const settingNames = Object.keys(settings) as (keyof typeof settings)[]

export const ProjectInput = z
  .strictObject({
    ...settings,
    ...legalHold,
    cell: z
      .string()
      .min(1)
      .max(30)
      .describe('Cell of the project, in a deployment with several. Default the one with the fewest rows.'),
  })
  .partial()
  .required({ name: true })
  .meta({ id: 'ProjectInput', example: { name: 'Shop support' } })

export const ProjectPatch = patchBody(
  'ProjectPatch',
  {
    ...settings,
    ...legalHold,
    guardrail_ids: GuardrailIds.nullable().describe(
      'Ordered IDs of guardrails for every tool call in the project. Null for none.',
    ),
    default_model_route_id: z
      .string()
      .min(1)
      .max(64)
      .nullable()
      .describe(
        'ID of the model route for resources without a route or provider. Can be cleared only if no resource inherits it.',
      ),
  },
  { name: 'Shop support' },
)

export const PauseProjectInput = z
  .strictObject({
    reason: z.string().max(256).nullable().optional().describe('Reason returned to refused callers'),
  })
  .meta({ id: 'ProjectPauseInput' })

export const CloneInput = z
  .strictObject({
    name: settings.name.describe('Name of the new project'),
    include: z
      .array(z.string().min(1).max(64))
      .max(50)
      .default([])
      .describe('Kinds of configuration to copy. Default none.'),
  })
  .meta({ id: 'ProjectCloneInput' })

export const ProjectClone = z
  .object({
    project: Project.describe('The new project'),
    ids: z.record(z.string(), z.string()).describe('ID of each copy by the ID of its original'),
  })
  .meta({ id: 'ProjectClone' })

export const ProjectSummary = z
  .object({
    counts: z.record(z.string(), z.int()).describe('Number of resources by kind; kinds without resources are absent'),
    last_activity_at: z.string().nullable().describe('Time of the newest event or audit entry'),
  })
  .meta({ id: 'ProjectSummary' })

export const DeleteQuery = z
  .object({
    force: booleanQuery.default(false).describe('Whether to delete everything in the project too. Default false.'),
    grace_days: integerQuery(0, 365)
      .optional()
      .describe(
        'Days after which the project is deleted; it is paused until then, and resuming it cancels the deletion. Requires force. At most 365.',
      ),
  })
  .refine(query => query.force || !query.grace_days, { path: ['grace_days'], message: 'requires force=true' })

/** Projects belong to themselves, so that decisions about them fall under `srn:<id>:project:<id>`. */
export const projectKind = kind({
  name: 'project',
  prefix: 'proj',
  table: 'projects',
  counted: false,
  shared: true,
  references: [
    { kind: 'model_route', column: 'default_model_route_id', counted: 'project_default', on_delete: 'block' },
    { kind: 'guardrail', column: 'guardrail_ids', many: true, on_delete: 'block' },
  ],
  record: Project,
  hidden: { project_id: z.string() },
  computed: { project_id: sql.fragment`t.id` },
  events: ['updated', 'paused', 'resumed'],
})

export type ProjectRow = z.output<typeof projectKind.row>
