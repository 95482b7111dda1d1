import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { booleanQuery } from '../../core/api/lists.ts'
import type { Tags } from '../../core/api/record.ts'
import { record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'

const MAX_INTEGER = 2_147_483_647
const limit = z.int().min(1).max(MAX_INTEGER).nullable()

/** A project as the wire shows it (identity, 3.1). */
export const Project = record(
  'Project',
  {
    name: z.string(),
    description: z.string().nullable(),
    guardrail_ids: z.array(z.string()),
    default_model_route_id: z.string().nullable(),
    max_run_depth: limit,
    max_concurrent_runs: limit,
    max_chain_generations: limit,
    audit_reads_enabled: z.boolean(),
    trace_content_retention_days: limit,
    trace_content_mode: z.enum(['full', 'none']),
    paused_at: z.string().nullable(),
    pause_reason: z.string().nullable(),
    delete_at: z.string().nullable().describe('When a deferred delete removes the project; null when none is due'),
  },
  { project: false, tags: true },
)
export type Project = z.output<typeof Project>

const settings = {
  name: z.string().trim().min(1).max(255),
  description: z.string().max(2000).nullable(),
  max_run_depth: limit,
  max_concurrent_runs: limit,
  max_chain_generations: limit,
  audit_reads_enabled: z.boolean(),
  trace_content_retention_days: limit,
  trace_content_mode: z.enum(['full', 'none']),
}

export const ProjectInput = z
  .strictObject({ ...settings })
  .partial()
  .required({ name: true })
  .meta({ id: 'ProjectInput' })
export type ProjectInput = z.output<typeof ProjectInput>

export const ProjectPatch = z
  .strictObject({
    ...settings,
    guardrail_ids: z.array(z.string().min(1).max(64)).max(20).nullable(),
    default_model_route_id: z.string().min(1).max(64).nullable(),
  })
  .partial()
  .refine(patch => Object.keys(patch).length > 0, 'must name at least one field')
  .meta({ id: 'ProjectPatch' })
export type ProjectPatch = z.output<typeof ProjectPatch>

export const PauseInput = z.strictObject({ reason: z.string().max(256).nullable().optional() }).meta({
  id: 'ProjectPauseInput',
})

export const CloneInput = z
  .strictObject({
    name: settings.name,
    include: z.array(z.string().min(1).max(64)).max(50).default([]).describe('Kinds of configuration to copy'),
  })
  .meta({ id: 'ProjectCloneInput' })

export const ProjectClone = z
  .object({
    project: Project,
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
    force: booleanQuery.default(false),
    grace_days: z
      .string()
      .regex(/^\d{1,3}$/, 'must be an integer from 0 to 365')
      .transform(Number)
      .pipe(z.int().max(365))
      .optional()
      .describe('With force: pause the project now and delete it after so many days; a resume cancels'),
  })
  .refine(query => query.force || !query.grace_days, { path: ['grace_days'], message: 'needs force=true' })

export type ProjectRow = Project & { project_id: string; tags: Tags }

/** Its own project, so that decisions about it fall under `srn:<id>:project:<id>`. */
export const project = kind({
  name: 'project',
  prefix: 'proj',
  table: 'projects',
  counted: false,
  record: Project,
  hidden: { project_id: z.string() },
  computed: { project_id: sql.fragment`t.id` },
  events: ['updated', 'paused', 'resumed'],
})
