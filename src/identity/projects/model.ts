import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { booleanQuery, timeInput } from '../../core/api/lists.ts'
import { patchBody, record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { GuardrailIds } from '../guardrail-ids.ts'

const MAX_INTEGER = 2_147_483_647
const limit = z.int().min(1).max(MAX_INTEGER).nullable()
const traceModes = z.enum(['full', 'none'])

/** What a create sets and a clone copies. */
const settings = {
  name: z.string().trim().min(1).max(255).describe('Name to show; need not be unique'),
  description: z.string().max(2000).nullable().describe('What the project is for'),
  max_run_depth: limit.describe(
    'How deep runs of loops and sub-orchestrations may nest; null leaves the limit of the deployment',
  ),
  max_concurrent_runs: limit.describe('Orchestration runs at once; null for no limit of the project'),
  max_chain_generations: limit.describe(
    'Generations in one chain of continuations; the smallest of the limits that apply counts',
  ),
  audit_reads_enabled: z.boolean().describe('Also write reads to the audit log'),
  trace_content_retention_days: limit.describe('Days that the content of traces is kept; null keeps it'),
  trace_retention_days: limit.describe(
    'Days after their last activity for which traces and their generations are kept; null keeps them',
  ),
  conversation_retention_days: limit.describe(
    'Days after their last activity for which conversations, with their sessions and messages, are kept; null keeps them',
  ),
  trace_content_mode: traceModes.describe('Whether traces hold content at all'),
  require_priced_model: z
    .boolean()
    .describe(
      'Refuse turns on a model whose input and output tokens have no price; of a route every target must have one',
    ),
}

/** A project as the wire shows it. */
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
    trace_content_mode: settings.trace_content_mode,
    require_priced_model: settings.require_priced_model,
    content_hold_until: z.iso
      .datetime()
      .nullable()
      .describe('Legal hold: until then no content is erased; null for none'),
    paused_at: z.string().nullable(),
    pause_reason: z.string().nullable(),
    delete_at: z.string().nullable().describe('When a deferred delete removes the project; null when none is due'),
  },
  { project: false, tags: true },
)

const hold = {
  content_hold_until: timeInput
    .nullable()
    .describe('Legal hold: until then no content is erased, neither by request nor by retention; null for none'),
}

export const settingNames = Object.keys(settings) as (keyof typeof settings)[]

export const ProjectInput = z
  .strictObject({ ...settings, ...hold })
  .partial()
  .required({ name: true })
  .meta({ id: 'ProjectInput', example: { name: 'Shop support' } })

export const ProjectPatch = patchBody(
  'ProjectPatch',
  {
    ...settings,
    ...hold,
    guardrail_ids: GuardrailIds.nullable().describe(
      'Guardrails of every tool call in the project, in order; null for none',
    ),
    default_model_route_id: z
      .string()
      .min(1)
      .max(64)
      .nullable()
      .describe('Model route of whatever names neither a route nor a provider; cleared only while nothing goes by it'),
  },
  { name: 'Shop support' },
)

export const PauseProjectInput = z
  .strictObject({
    reason: z.string().max(256).nullable().optional().describe('Shown to callers that are refused meanwhile'),
  })
  .meta({ id: 'ProjectPauseInput' })

export const CloneInput = z
  .strictObject({
    name: settings.name.describe('Name of the new project'),
    include: z.array(z.string().min(1).max(64)).max(50).default([]).describe('Kinds of configuration to copy'),
  })
  .meta({ id: 'ProjectCloneInput' })

export const ProjectClone = z
  .object({
    project: Project.describe('The new project'),
    ids: z.record(z.string(), z.string()).describe('Id of each copy by the id it was made of'),
  })
  .meta({ id: 'ProjectClone' })

export const ProjectSummary = z
  .object({
    counts: z.record(z.string(), z.int()).describe('Rows by kind; kinds without rows are absent'),
    last_activity_at: z.string().nullable().describe('Time of the newest event or audit entry'),
  })
  .meta({ id: 'ProjectSummary' })

export const DeleteQuery = z
  .object({
    force: booleanQuery.default(false).describe('Delete everything in the project too'),
    grace_days: z
      .string()
      .regex(/^\d{1,3}$/, 'must be an integer from 0 to 365')
      .transform(Number)
      .pipe(z.int().max(365))
      .optional()
      .describe('With force: pause the project now and delete it after so many days; a resume cancels'),
  })
  .refine(query => query.force || !query.grace_days, { path: ['grace_days'], message: 'needs force=true' })

/** Its own project, so that decisions about it fall under `srn:<id>:project:<id>`. */
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
