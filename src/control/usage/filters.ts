import { z } from 'zod'
import { columnFilter, equalsFilter, type Filters, oneOf } from '../../core/api/filters.ts'
import { textFilter } from '../../core/api/lists.ts'
import { type Fragment, sql } from '../../core/db/sql.ts'
import { extensionPoint } from '../../core/declarations.ts'
import { METER_TYPES } from './model.ts'

/** The runs that an orchestration started itself, as a select of their ids. Orchestrations are a later area. */
export const orchestrationRuns = extensionPoint<(orchestrationId: string) => Fragment>('runs of orchestrations')

/**
 * What narrows usage, over the alias `t`. Ids are compared with those that the events keep: one that names nothing leaves
 * nothing. usage_events_session, _actor, _agent, _provider, _generation, _run, _trace, _source, _trigger and _action serve
 * theirs, usage_events_project the others within a project.
 */
export const usageFilters = {
  session_id: equalsFilter('session_id'),
  actor_id: equalsFilter('actor_id'),
  agent_id: equalsFilter('agent_id'),
  ai_provider_id: equalsFilter('ai_provider_id'),
  orchestration_run_id: equalsFilter('orchestration_run_id'),
  orchestration_id: columnFilter(textFilter.describe('Runs that the orchestration started itself'), id => {
    const runs = orchestrationRuns.only()?.(id)
    return runs ? sql.fragment`t.orchestration_run_id in (${runs})` : sql.fragment`false`
  }),
  generation_id: equalsFilter('generation_id'),
  trace_id: equalsFilter('trace_id'),
  meter_type: oneOf('meter_type', METER_TYPES),
  model: equalsFilter('model'),
  source: equalsFilter('source'),
  trigger_id: equalsFilter('trigger_id'),
  action_id: equalsFilter('action_id'),
} satisfies Filters

/** What every list takes. */
const OF_LISTS = ['project_id', 'limit', 'offset', 'from', 'to']

/** The query of a read of usage: a parameter that it does not declare is refused, as it would seem to narrow the figures. */
export function usageQuery<S extends z.ZodRawShape>(shape: S) {
  const known = [...OF_LISTS, ...Object.keys(shape)]
  return z.looseObject(shape).superRefine((query, context) => {
    for (const name of Object.keys(query))
      if (!known.includes(name))
        context.addIssue({ code: 'custom', path: [name], message: 'is not a parameter of this operation' })
  })
}
