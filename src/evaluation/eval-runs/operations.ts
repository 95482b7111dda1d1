import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { columnFilter, filterConditions, filterSchema, flagFilter, oneOf } from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { booleanQuery, pageOf, pageResult } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, type OperationResult, result } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { callerContext } from '../../core/api/tool-context.ts'
import { sql } from '../../core/db/sql.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { evalKind } from '../evals/model.ts'
import { compareRuns, comparisonQuery, EvalComparison } from './compare.ts'
import {
  EVAL_RUN_STATUSES,
  EvalResult,
  type EvalResultRow,
  EvalRun,
  EvalRunInput,
  type EvalRunRow,
  evalResultKind,
  evalRunKind,
  isLive,
} from './model.ts'
import { endRun } from './settle-run.ts'
import { startEval } from './start.ts'
import { dropQueued } from './store.ts'
import { subscribeEvalRun } from './wait.ts'

const tag = 'Evals'
const path = '/evals/{eval_id}/runs'
const runs = resource(evalRunKind, { path, tag, module: 'evaluations', param: 'eval_run_id' })

/** Raises RESOURCE_NOT_FOUND for a run of another eval than the path names. */
function requireMember({ params }: Pick<Context, 'params'>, run: EvalRunRow): void {
  if (run.eval_id !== params.eval_id) raise('RESOURCE_NOT_FOUND', { meta: { id: run.id } })
}

const start = itemOperation(evalKind, {
  id: 'createEvalRun',
  starts: { kind: 'eval_run', field: 'id', bounded: true },
  method: 'post',
  path,
  summary: 'Run an eval: in the background or waited for',
  waiting: { default: false, done: ['completed'], failed: ['failed', 'canceled'], paused: [], poll: 'getEvalRun' },
  description:
    'Asks one version of the agent every item, each by a turn of its own, in the name of the caller: with real calls of models and tools, which are metered and count against quotas.',
  tag,
  action: 'evaluations:RunEval',
  body: EvalRunInput,
  bodyOptional: true,
  answers: { 201: EvalRun },
  raises: ['INVALID_TOOL_CONTEXT_KEY', 'PROJECT_PAUSED', 'TOOL_NOT_FOUND', 'AI_PROVIDER_NOT_FOUND'],
  transaction: false,
  async run(context) {
    const { services, caller, resource: row, request } = context
    const { wait, tool_context, ...given } = context.body ?? {}
    const bag = callerContext(tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
    const id = newId(evalRunKind.prefix)
    const expected = wait === true ? subscribeEvalRun(services, id) : null
    try {
      const run = await services.write(async tx => {
        const started = await startEval(tx, services, row, {
          ...given,
          id,
          wait: wait === true,
          tool_context: bag,
          authority: principalRecord(caller),
          trigger_id: caller.run?.trigger_id ?? null,
        })
        const kept = wait === true ? { made: { id } } : { body: evalRunKind.present(started) }
        context.record(tx, 201, { id: row.id, ...kept })
        return started
      })
      return shown(expected ? await expected.wait(request.closed) : run, id)
    } finally {
      expected?.cancel()
    }
  },
  again: async ({ services, request }, { id }) =>
    shown(await subscribeEvalRun(services, id as string).wait(request.closed), id as string),
})

/** The answer with a run as it is. Raises RESOURCE_NOT_FOUND. */
const shown = (run: EvalRunRow | null, id: string): OperationResult =>
  run
    ? result(201, evalRunKind.present(run))
    : raise('RESOURCE_NOT_FOUND', { message: 'The run is gone', meta: { id } })

const runFilters = { status: oneOf('status', EVAL_RUN_STATUSES), passed: flagFilter('passed') }

const resultFilters = {
  passed: columnFilter(
    booleanQuery.optional().describe('Only results that passed, or only others'),
    passed => sql.fragment`coalesce(t.passed, false) = ${passed}`,
  ),
  errored: columnFilter(booleanQuery.optional().describe('Only results with an error, or only others'), errored =>
    errored ? sql.fragment`t.error is not null` : sql.fragment`t.error is null`,
  ),
}

export const evalRunOperations: Operation[] = [
  start,
  itemOperation(evalKind, {
    id: 'listEvalRuns',
    method: 'get',
    path,
    summary: 'List the runs of an eval, newest first',
    description: 'Each with its status and the totals of its scores so far.',
    tag,
    action: 'evaluations:ListEvals',
    paged: true,
    query: filterSchema(runFilters),
    answers: { 200: pageOf(EvalRun) },
    // Index eval_runs_eval.
    run: context =>
      pageResult<EvalRunRow>(context, {
        columns: evalRunKind.columns,
        from: sql.fragment`eval_runs t`,
        rows: sql.fragment`t.eval_id = ${context.resource.id}`,
        filters: filterConditions(runFilters, context.query),
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.created_at desc, t.id desc`,
        key: sql.fragment`t.id`,
        // Figures by groups and scorers take up to 2 MiB.
        bytes: sql.fragment`octet_length(t.scorers::text) + coalesce(octet_length(t.aggregate_scores::text), 0)`,
        present: evalRunKind.present,
      }),
  }),
  runs.get({
    summary: 'Read a run of an eval',
    description: 'Once it has ended it carries the verdict by the thresholds of the eval.',
    action: 'evaluations:GetEval',
    present: async context => {
      requireMember(context, context.resource as EvalRunRow)
      return evalRunKind.present(context.resource as EvalRunRow)
    },
  }),
  itemOperation(evalRunKind, {
    id: 'listEvalResults',
    method: 'get',
    path: `${path}/{eval_run_id}/results`,
    summary: 'List the results of a run in the order of its dataset',
    description:
      'Also while it runs: results come as items are done, each in its place, so that pages shift until the run has ended. A page ends before 16 MiB of them: `limit` says how many it was cut to.',
    tag,
    action: 'evaluations:ListEvals',
    paged: true,
    query: filterSchema(resultFilters),
    answers: { 200: pageOf(EvalResult) },
    // Index eval_results_done.
    run: context => {
      requireMember(context, context.resource)
      return pageResult<EvalResultRow>(context, {
        columns: evalResultKind.columns,
        from: sql.fragment`eval_results t`,
        rows: sql.fragment`t.eval_run_id = ${context.resource.id} and t.state = 'done'`,
        kept: sql.fragment`(
          select (r.completed_count + r.errored_count)::bigint from eval_runs r where r.id = ${context.resource.id})`,
        filters: filterConditions(resultFilters, context.query),
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.id`,
        key: sql.fragment`t.id`,
        bytes: sql.fragment`t.bytes`,
        present: evalResultKind.present,
      })
    },
  }),
  runs.action('cancel', {
    summary: 'Cancel a run of an eval',
    description: 'Items that nobody was asked yet are dropped; what is under way ends and keeps its result.',
    action: 'evaluations:RunEval',
    answers: { 200: EvalRun },
    async run(context) {
      const { tx, resource: row } = context
      requireMember(context, row)
      const run = await evalRunKind.lock(tx, row.id)
      if (!isLive(run)) raiseInvalid({ code: 'INVALID_STATE', path: 'status', message: `the run is ${run.status}` })
      await dropQueued(tx, run.id)
      return evalRunKind.present(await endRun(tx, run, { status: 'canceled' }))
    },
  }),
  itemOperation(evalKind, {
    id: 'compareEvalRuns',
    command: ['evals', 'compare'],
    method: 'get',
    path: '/evals/{eval_id}/compare',
    summary: 'Compare runs of an eval item by item',
    description:
      'What the runs named made of each item, in the order in which they are named; null where a run has no result of it. A page ends before 16 MiB of results: `limit` says how many it was cut to.',
    tag,
    action: 'evaluations:GetEval',
    paged: true,
    timed: false,
    query: comparisonQuery,
    answers: { 200: EvalComparison },
    run: compareRuns,
  }),
]
