import { z } from 'zod'
import { columnFilter, equalsFilter, type Filters, oneOf } from '#core/api/filters.ts'
import { textFilter } from '#core/api/lists.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { METER_TYPES } from './model.ts'

/** Select of the ids of the direct runs of an orchestration, registered by the runs module. */
export const orchestrationRuns = extensionPoint<(orchestrationId: string) => Fragment>({
  name: 'runs of orchestrations',
  folder: 'control/usage',
  description: 'Selects the direct runs of an orchestration, for filters of usage',
})

/**
 * Usage filters on the alias `t`. Ids are compared with the ids stored in events, which may be of deleted resources.
 * Indexes usage_events_session, _actor, _agent, _provider, _generation, _run, _trace, _source, _trigger and _action;
 * usage_events_project for the other filters within a project.
 */
export const usageFilters = {
  session_id: equalsFilter('session_id'),
  actor_id: equalsFilter('actor_id'),
  agent_id: equalsFilter('agent_id'),
  ai_provider_id: equalsFilter('ai_provider_id'),
  orchestration_run_id: equalsFilter('orchestration_run_id'),
  orchestration_id: columnFilter(
    textFilter.describe('ID of the orchestration; matches usage of its direct runs'),
    id => {
      const runs = orchestrationRuns.only()?.(id)
      return runs ? sql.fragment`t.orchestration_run_id in (${runs})` : sql.fragment`false`
    },
  ),
  generation_id: equalsFilter('generation_id'),
  trace_id: equalsFilter('trace_id'),
  meter_type: oneOf('meter_type', METER_TYPES),
  model: equalsFilter('model'),
  source: equalsFilter('source'),
  trigger_id: equalsFilter('trigger_id'),
  action_id: equalsFilter('action_id'),
} satisfies Filters

/** Parameters of every list. */
const LIST_PARAMETERS = ['project_id', 'limit', 'offset', 'from', 'to', 'partial']

/**
 * Returns a usage query schema that rejects undeclared parameters: an ignored filter would return misleading totals.
 */
export function usageQuery<S extends z.ZodRawShape>(shape: S) {
  const declared = [...LIST_PARAMETERS, ...Object.keys(shape)]
  return z.looseObject(shape).superRefine((query, context) => {
    for (const name of Object.keys(query))
      if (!declared.includes(name))
        context.addIssue({ code: 'custom', path: [name], message: 'is not a parameter of this operation' })
  })
}
