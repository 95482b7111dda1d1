import { z } from 'zod'
import { enumListQuery, integerQuery, parseTime, textFilter, timeRangeCondition } from '#core/api/lists.ts'
import type { Context } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { allOf, sql } from '#core/db/sql.ts'
import { ACTIVITY_KIND_NAMES, SEVERITIES } from './model.ts'
import type { FeedSelection } from './store.ts'

const project = z
  .string()
  .optional()
  .describe('Project of the feed; required for credentials that are not bound to a project')

const filters = {
  kind: enumListQuery(ACTIVITY_KIND_NAMES).describe('Value of `kind`; repeat the parameter to match any of several'),
  severity: enumListQuery(SEVERITIES).describe('Value of `severity`; repeat the parameter to match any of several'),
  agent_id: textFilter.describe('Exact match of `agent_id`'),
  generation_id: textFilter.describe('Exact match of `generation_id`'),
  orchestration_run_id: textFilter.describe('Exact match of `orchestration_run_id`'),
}

const time = z
  .string()
  .refine(value => parseTime(value) !== null, 'must be an ISO 8601 time')
  .transform(value => parseTime(value) as Date)
  .optional()

const bounds = {
  from: time.describe('Entries created at this time or later'),
  to: time.describe('Entries created at this time or earlier'),
}

export const FeedQuery = z
  .looseObject({
    project_id: project,
    ...filters,
    ...bounds,
    cursor: z.string().optional().describe('`next_cursor` of the previous page'),
    limit: integerQuery(1)
      .default(50)
      .transform(value => Math.min(value, 100))
      // The schema of a preprocessed value has no default of its own.
      .meta({ default: 50, description: 'Page size. Default 50, at most 100; larger values are reduced to 100.' }),
  })
  .superRefine((query, context) => {
    // Other lists page by offset: ignored here, it would make such a client read the first page forever.
    if ('offset' in query)
      context.addIssue({ code: 'custom', path: ['offset'], message: 'is not supported, use cursor' })
  })

export const ActivityExportQuery = z.object({
  project_id: z.string().describe('Project of the feed'),
  ...filters,
  ...bounds,
})

export const StreamQuery = z.object({ project_id: project, ...filters })

type Filters = z.output<z.ZodObject<typeof filters>> & { from?: Date; to?: Date }

/**
 * Returns the selection of entries that match the query and that the caller may read.
 * @throws VALIDATION_FAILED without a project
 */
export function selectionOf({
  project,
  query,
  visible,
}: Pick<Context<Filters>, 'project' | 'query' | 'visible'>): FeedSelection {
  if (project === null)
    return raiseInvalid({
      code: 'REQUIRED',
      path: 'project_id',
      message: 'is required for credentials that are not bound to a project',
    })
  const { kind, severity, agent_id, generation_id, orchestration_run_id, from, to } = query
  return {
    project,
    kinds: kind,
    severities: severity,
    where: allOf([
      visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }).rows,
      agent_id !== undefined && sql.fragment`t.agent_id = ${agent_id}`,
      generation_id !== undefined && sql.fragment`t.generation_id = ${generation_id}`,
      orchestration_run_id !== undefined && sql.fragment`t.orchestration_run_id = ${orchestration_run_id}`,
      timeRangeCondition(sql.fragment`t.created_at`, { from: from ?? null, to: to ?? null }),
    ]),
  }
}
