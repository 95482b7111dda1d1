import { columnFilter, filterConditions, filterSchema, flagFilter, oneOf } from '#core/api/filters.ts'
import { booleanQuery, pageOf, pageResult } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, type OperationResult, result } from '#core/api/operation.ts'
import { callerContext } from '#core/api/tool-context.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
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
  RUN_CHANNEL,
} from './model.ts'
import { endRun } from './settle-run.ts'
import { startEval } from './start.ts'
import { deleteUnstarted } from './store.ts'

/** Polling interval, as a fallback for lost notifications. */
const POLL_MS = 1000

/** Subscribes to the end of a run before its creation; `wait` returns the run at its end or after SYNC_WAIT_SECONDS. */
function subscribeEvalRun(services: Services, runId: string) {
  const { wait, cancel } = subscribeUntil<EvalRunRow | null>({
    subscribe: listener =>
      services.notifications.listen(RUN_CHANNEL, endedId => endedId === runId && listener(), { onReconnect: listener }),
    read: () => evalRunKind.find(services.pool, runId),
    isOver: run => !run || !isLive(run),
    pollMs: POLL_MS,
  })
  return {
    cancel,
    wait: (closed: AbortSignal): Promise<EvalRunRow | null> =>
      wait({ closed, withinMs: services.config.SYNC_WAIT_SECONDS * 1000 }),
  }
}

const tag = 'Evals'
const path = '/evals/{eval_id}/runs'
const runs = resource(evalRunKind, { path, tag, module: 'evaluations', param: 'eval_run_id' })

/** @throws RESOURCE_NOT_FOUND if the run does not belong to the eval of the path */
function requireMember({ params }: Pick<Context, 'params'>, run: EvalRunRow): void {
  if (run.eval_id !== params.eval_id) raise('RESOURCE_NOT_FOUND', { meta: { id: run.id } })
}

const start = itemOperation(evalKind, {
  id: 'createEvalRun',
  starts: { kind: 'eval_run', field: 'id', bounded: true },
  method: 'post',
  path,
  summary: 'Create an eval run',
  waiting: {
    default: false,
    running: ['queued', 'running'],
    done: ['completed'],
    failed: ['failed', 'canceled'],
    paused: [],
    poll: 'getEvalRun',
  },
  description:
    'Executes one agent version on every item of the dataset, each in a separate generation with the permissions of the caller. Model and tool calls are real, metered and count against quotas. Runs in the background unless `wait` is set.',
  tag,
  action: 'evaluations:RunEval',
  body: EvalRunInput,
  bodyOptional: true,
  answers: { 201: EvalRun },
  raises: ['INVALID_TOOL_CONTEXT_KEY', 'PROJECT_PAUSED', 'TOOL_NOT_FOUND', 'AI_PROVIDER_NOT_FOUND'],
  transaction: false,
  async run(context) {
    const { services, caller, resource: row, request } = context
    const { wait, tool_context, ...input } = context.body ?? {}
    const toolContext = callerContext(tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
    const id = newId(evalRunKind.prefix)
    const subscription = wait === true ? subscribeEvalRun(services, id) : null
    try {
      const run = await services.write(async tx => {
        const started = await startEval(tx, services, row, {
          ...input,
          id,
          wait: wait === true,
          tool_context: toolContext,
          authority: principalRecord(caller),
          trigger_id: caller.run?.trigger_id ?? null,
        })
        const recorded = wait === true ? { made: { id } } : { body: evalRunKind.present(started) }
        context.record(tx, 201, { id: row.id, ...recorded })
        return started
      })
      return runResult(subscription ? await subscription.wait(request.closed) : run, id)
    } finally {
      subscription?.cancel()
    }
  },
  again: async ({ services, request }, { id }) =>
    runResult(await subscribeEvalRun(services, id as string).wait(request.closed), id as string),
})

/** @throws RESOURCE_NOT_FOUND if the run was deleted */
const runResult = (run: EvalRunRow | null, id: string): OperationResult =>
  run
    ? result(201, evalRunKind.present(run))
    : raise('RESOURCE_NOT_FOUND', { message: 'Eval run was deleted', meta: { id } })

const runFilters = { status: oneOf('status', EVAL_RUN_STATUSES), passed: flagFilter('passed') }

const resultFilters = {
  passed: columnFilter(
    booleanQuery.optional().describe('Whether the result passed'),
    passed => sql.fragment`coalesce(t.passed, false) = ${passed}`,
  ),
  errored: columnFilter(booleanQuery.optional().describe('Whether the result has an error'), errored =>
    errored ? sql.fragment`t.error is not null` : sql.fragment`t.error is null`,
  ),
}

export const evalRunOperations: Operation[] = [
  start,
  itemOperation(evalKind, {
    id: 'listEvalRuns',
    method: 'get',
    path,
    summary: 'List eval runs',
    description: 'Newest first, with the status and the counts of completed and failed items.',
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
        // Aggregated scores by group and scorer take up to 2 MiB.
        bytes: sql.fragment`octet_length(t.scorers::text) + coalesce(octet_length(t.aggregate_scores::text), 0)`,
        present: evalRunKind.present,
      }),
  }),
  runs.get({
    summary: 'Get an eval run',
    description: 'A completed run contains the aggregated scores and, if the eval has a threshold, the verdict.',
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
    summary: 'List eval results',
    description:
      'In the order of the dataset. Results appear as items finish, so pages can shift until the run ends. A page has at most 16 MiB of results; `limit` in the response is the resulting page size.',
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
    summary: 'Cancel an eval run',
    description: 'Discards queued items. Active items finish and keep their results.',
    action: 'evaluations:RunEval',
    answers: { 200: EvalRun },
    async run(context) {
      const { tx, resource: row } = context
      requireMember(context, row)
      // Items are locked before their run everywhere.
      await deleteUnstarted(tx, row.id)
      const run = await evalRunKind.lock(tx, row.id)
      if (!isLive(run))
        raiseInvalid({
          code: 'INVALID_STATE',
          path: 'status',
          message: `is ${run.status}, so the run cannot be cancelled`,
        })
      return evalRunKind.present(await endRun(tx, run, { status: 'canceled' }))
    },
  }),
  itemOperation(evalKind, {
    id: 'compareEvalRuns',
    command: ['evals', 'compare'],
    method: 'get',
    path: '/evals/{eval_id}/compare',
    summary: 'Compare eval runs',
    description:
      'Returns the results of each item in the given runs, in their order; null for a run without a result of the item. A page has at most 16 MiB of results; `limit` in the response is the resulting page size.',
    tag,
    action: 'evaluations:GetEval',
    paged: true,
    timed: false,
    query: comparisonQuery,
    answers: { 200: EvalComparison },
    run: compareRuns,
  }),
]
