import { z } from 'zod'
import { requirePerson } from '#core/api/access.ts'
import type { Decision } from '#core/api/audit.ts'
import { columnFilter, equalsFilter, type Filters, filterConditions, filterSchema, oneOf } from '#core/api/filters.ts'
import { booleanQuery, listTable, pageOf, textFilter } from '#core/api/lists.ts'
import { metadataBag } from '#core/api/metadata.ts'
import { type Context, itemOperation, type Operation, operation, result } from '#core/api/operation.ts'
import { projectField } from '#core/api/record.ts'
import { callerContext, ToolContextInput } from '#core/api/tool-context.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lastEventId } from '#execution/generations/streams/stream.ts'
import { type OrchestrationRow, orchestrationKind, orchestrationVersions } from '../definition/model.ts'
import { callRunHook } from './commands/callback.ts'
import { cancelRun, pauseRun, resumeRun, submitInput } from './commands/command.ts'
import { retryRun } from './commands/retry.ts'
import { inputProblems, requireSize, startRunInOneStatement } from './commands/start-run.ts'
import { listExecutionsByRun } from './engine/node-execution-store.ts'
import { subscribeRun, type WaitedRun } from './engine/run-notifications.ts'
import { OrchestrationRun, presentRun, RUN_STATUSES, type RunRow, runKind } from './model.ts'
import { withCallbacks } from './nodes/callback-token.ts'
import { runEvents, runWaiting } from './reads/events.ts'
import { presentNodeExecution, presentRunFor, presentWaitedRun } from './reads/present-run.ts'
import { getRunRecovery } from './reads/recovery.ts'
import { streamRun } from './reads/stream.ts'
import { listLargeRuns, runListColumns } from './store.ts'

const tag = 'Orchestrations'
const runs = resource(runKind, {
  path: '/orchestration-runs',
  tag,
  module: 'orchestrations',
  noun: 'Run',
  nouns: 'Runs',
})

/** Metadata limits: 1,024 keys, nested 64 levels deep. Keys are stored unchanged. */
const Bag = metadataBag(1024, 64)

const RunInput = z
  .strictObject({
    project_id: projectField,
    orchestration_id: z.string().min(1).max(255).describe('Orchestration to execute'),
    orchestration_version: z.int().min(1).nullish().describe('Version to execute. Default: the current version.'),
    input: Bag.nullish().describe('Value of `input` in expressions. At most 1 MiB.'),
    metadata: Bag.nullish().describe('Custom data stored on the run'),
    tool_context: ToolContextInput.nullish().describe('Headers sent with tool calls of the run'),
    guardrail_context: Bag.nullish().describe('Value of `context` in guardrail expressions'),
    expires_in: z.int().min(1).max(31_536_000).nullish().describe('Seconds after which the run expires'),
    wait: z.boolean().nullish().describe('Whether to respond only when the run has ended or awaits input'),
  })
  .meta({
    id: 'OrchestrationRunInput',
    example: { orchestration_id: 'orch_01k5p3vd7r9hj2x8m4qcw6tz0e', input: { order_id: '1042' } },
  })

const start = operation({
  id: 'startRun',
  starts: { kind: 'orchestration_run', field: 'id' },
  method: 'post',
  path: '/orchestration-runs',
  summary: 'Start a run',
  description:
    'Authorized on the orchestration. Returns the queued run immediately. With `wait`, returns the run when it has ended or awaits input, or after ORCHESTRATION_WAIT_MAX_MS.',
  tag,
  action: 'orchestrations:StartRun',
  creates: runKind,
  under: { kind: orchestrationKind, field: 'orchestration_id' },
  body: RunInput,
  waiting: runWaiting(false),
  bodyLimit: () => 2 * 1024 * 1024,
  answers: { 201: OrchestrationRun },
  raises: [
    'INVALID_TOOL_CONTEXT_KEY',
    'ORCHESTRATION_NOT_FOUND',
    'RESOURCE_NOT_FOUND',
    'PROJECT_PAUSED',
    'QUEUE_DRIVER_MISCONFIGURED',
  ],
  transaction: false,
  async run(context) {
    const { services, body, caller, project, request } = context
    requireDriver(context)
    const orchestration = context.under as OrchestrationRow | null
    const { wait, orchestration_id, orchestration_version, project_id: _project, ...options } = body
    if (!orchestration || orchestration.project_id !== project || orchestration.managed_by !== null)
      return raise('ORCHESTRATION_NOT_FOUND', { meta: { id: orchestration_id } })
    const version = orchestration_version ?? orchestration.version
    const input_schema =
      version === orchestration.version
        ? orchestration.input_schema
        : (await orchestrationVersions.get(services.pool, orchestration.id, version)).config.input_schema
    const input = options.input ?? null
    requireSize(input)
    const tool_context = callerContext(options.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
    const problems = await inputProblems(services, { project_id: orchestration.project_id, input_schema }, input)
    if (problems.length > 0) raiseInvalid(problems)
    const id = newId(runKind.prefix)
    const definition = await orchestrationVersions.definition(services.pool, orchestration, version)
    const waiter = wait === true ? subscribeRun(services, id) : null
    try {
      const run = await startRunInOneStatement(
        services,
        {
          ...options,
          id,
          orchestration,
          version,
          definition,
          input,
          tool_context,
          authority: principalRecord(caller),
          source: context.origin?.source,
          awaited: waiter !== null,
        },
        (outbox, run) =>
          context.record(outbox, 201, { id, ...(waiter ? { made: { id } } : { body: presentStartedRun(run) }) }),
      )
      if (!waiter) return result(201, presentStartedRun(run))
      const waited = await waiter.wait(request.closed, run)
      return result(201, await presentWaitedRun(services, caller, waited ?? { row: run }))
    } finally {
      waiter?.cancel()
    }
  },
  again: async ({ services, caller, request }, { id }) =>
    result(201, await presentWaitedRun(services, caller, await waitForRun(services, id as string, request))),
})

/** Presents a new run as the response of its creation. */
const presentStartedRun = (run: RunRow) => ({ ...presentRun(run), node_executions: [] })

/**
 * Waits until a run has ended or awaits input; used when the response of the first request was lost.
 * @throws RESOURCE_NOT_FOUND
 */
const waitForRun = async (services: Services, id: string, { closed }: Context['request']): Promise<WaitedRun> =>
  (await subscribeRun(services, id).wait(closed)) ??
  raise('RESOURCE_NOT_FOUND', { message: 'Run not found', meta: { id } })

/**
 * Refuses to start runs on an unsupported queue driver.
 * @throws QUEUE_DRIVER_MISCONFIGURED
 */
export function requireDriver({ services }: Pick<Context, 'services'>): void {
  const driver = services.config.ORCHESTRATION_QUEUE_DRIVER
  if (driver !== 'postgres') raise('QUEUE_DRIVER_MISCONFIGURED', { meta: { driver } })
}

const filters = {
  orchestration_id: equalsFilter('orchestration_id'),
  status: oneOf('status', RUN_STATUSES),
  parent_orchestration_run_id: columnFilter(
    textFilter.describe('ID of the parent run'),
    id => sql.fragment`t.parent_id = ${id}`,
  ),
  parent_node_id: equalsFilter('parent_node_id'),
  nested: columnFilter(
    booleanQuery.optional().describe('Whether to return only nested runs (true) or only root runs (false)'),
    nested => (nested ? sql.fragment`t.parent_id is not null` : sql.fragment`t.parent_id is null`),
  ),
  trigger_id: equalsFilter('trigger_id'),
} satisfies Filters

const listRuns = operation({
  id: 'listRuns',
  method: 'get',
  path: '/orchestration-runs',
  summary: 'List runs',
  description:
    'If the values of a run exceed 128 KiB in total, its state, artifacts, input, output, metadata and the context of its required actions are null. If its node executions exceed 128 KiB, node_executions is null. Get the run to read them.',
  tag,
  action: 'orchestrations:ListRuns',
  lists: runKind,
  query: filterSchema(filters).extend({
    view: z
      .enum(['full', 'summary'])
      .optional()
      .describe(
        'Fields to return: `full` - all fields; `summary` - all except state, artifacts and node_executions. Default `full`.',
      ),
  }),
  answers: { 200: pageOf(OrchestrationRun) },
  // orchestration_runs_project serves the order; _orchestration, _parent and _trigger their filters.
  async run(context) {
    const { query, services, caller } = context
    const summary = query.view === 'summary'
    const page = await listTable<Listed>(context, {
      table: runKind.table,
      countKept: true,
      columns: runListColumns(!summary),
      // Driven runs belong to their driver: they are neither listed nor counted.
      filters: filterConditions(filters, query),
      only: sql.fragment`t.driver is null`,
      present: row => row,
    })
    const rows = page.data as Listed[]
    const withValues = rows.flatMap(({ id, outcomes }) => (outcomes === null ? [] : [id]))
    const large = summary ? new Set() : await listLargeRuns(services.pool, withValues)
    const executions = await listExecutionsByRun(
      services.pool,
      withValues.filter(id => !large.has(id)),
    )
    const presented = rows.map(row => {
      const { outcomes, written } = row
      if (outcomes === null || written === null)
        return { ...presentRun({ ...row, outcomes: {}, written: {} }), state: null, artifacts: null }
      const node_executions = large.has(row.id) ? null : (executions.get(row.id) ?? []).map(presentNodeExecution)
      return { ...presentRun({ ...row, outcomes, written }), node_executions }
    })
    return { ...page, data: await withCallbacks(services, caller, presented) }
  },
})

/** A run in a list; large values are null. */
type Listed = Omit<RunRow, 'outcomes' | 'written'> & {
  outcomes: RunRow['outcomes'] | null
  written: RunRow['written'] | null
}

const Reason = z.strictObject({
  reason: z.string().max(1000).nullish().describe('Reason, shown on the run'),
})

const RetryInput = z
  .strictObject({
    from_node_id: z
      .string()
      .min(1)
      .max(128)
      .nullish()
      .describe(
        'Node to restart from; its results and the results of all later nodes are discarded. Default: the nodes at which the run ended.',
      ),
    tool_context: ToolContextInput.nullish().describe(
      'Headers sent with tool calls; the tool context of the original run is not copied',
    ),
    guardrail_context: Bag.nullish().describe(
      'Value of `context` in guardrail expressions; the guardrail context of the original run is not copied',
    ),
    expires_in: z.int().min(1).max(31_536_000).nullish().describe('Seconds after which the new run expires'),
  })
  .meta({ id: 'RunRetryInput' })

const AnswerInput = z
  .strictObject({
    node_id: z.string().min(1).max(128).describe('Node awaiting input'),
    output: z
      .unknown()
      .optional()
      .describe('Artifact of the node. A value that is not an object is stored as an empty object.'),
    wait: z
      .boolean()
      .nullish()
      .describe('Whether to respond only when the run has ended or awaits input again. Default true.'),
  })
  .meta({ id: 'HumanInput', example: { node_id: 'decide', output: { approved: true } } })

/**
 * Changes a run in a transaction and returns the run after the change or, with `wait`, when it has ended or awaits
 * input.
 */
async function executeCommand(
  context: Context<any, any, RunRow>,
  wait: boolean,
  change: (tx: Tx, awaited: boolean) => Promise<RunRow>,
): Promise<unknown> {
  const { services, resource, request, caller } = context
  const waiter = wait ? subscribeRun(services, resource.id) : null
  try {
    const changed = await services.write(async tx => {
      const run = await change(tx, wait)
      context.record(tx, 200, { made: {} })
      return run
    })
    const waited = await waiter?.wait(request.closed, { ...changed, status: 'running' })
    return presentWaitedRun(services, caller, waited ?? { row: changed })
  } finally {
    waiter?.cancel()
  }
}

/**
 * Responds to the repetition of a command whose first response was lost: returns the current run, waiting as the first
 * request did.
 */
const repeatCommand = async (
  { services, resource, request, caller }: Context<any, any, RunRow>,
  wait: boolean,
): Promise<unknown> =>
  presentWaitedRun(services, caller, wait ? await waitForRun(services, resource.id, request) : { row: resource })

/** Returns the terms of an answer: the option of the node that was chosen, and the names of the fields that were filled in. */
function inputDecision({ required_actions }: RunRow, node_id: string, output: unknown): Decision {
  const fields = isObject(output) ? output : {}
  const options = required_actions.find(action => action.node_id === node_id)?.options ?? []
  return {
    decision: options.find(option => option === fields.choice) ?? 'answered',
    node_id,
    edited: Object.keys(fields),
  }
}

export const runOperations: Operation[] = [
  start,
  listRuns,
  callRunHook,
  getRunRecovery,
  runs.get({ present: ({ resource, services, caller }) => presentRunFor(services, caller, resource) }),
  itemOperation(runKind, {
    id: 'streamOrchestrationRun',
    method: 'get',
    path: '/orchestration-runs/{orchestration_run_id}/stream',
    summary: 'Stream run events',
    description:
      'Server-sent events whose id is the revision of the run: `node.updated` with a node execution without input and output; `run.updated` with id, status, active_nodes, required_actions and updated_at; and `run.settled` with the run, which ends the stream. The first events are the current state, unless `Last-Event-ID` is the current revision.',
    tag,
    action: 'orchestrations:GetRun',
    answers: { 200: null },
    stream: runEvents,
    internal: true,
    run: async context => streamRun(context, context.resource, lastEventId(context.request.headers['last-event-id'])),
  }),
  runs.action('cancel', {
    summary: 'Cancel a run and its nested runs',
    description:
      'Running nodes are aborted, and their nested runs and turns are cancelled. Completed nodes keep their artifacts.',
    action: 'orchestrations:CancelRun',
    body: Reason.meta({ id: 'RunCancelInput' }),
    bodyOptional: true,
    answers: { 200: OrchestrationRun },
    raises: ['ORCHESTRATION_RUN_NOT_CANCELLABLE'],
    transaction: false,
    run(context) {
      const reason = context.body?.reason ?? null
      if (reason !== null) context.audit.detail.reason = reason
      return executeCommand(context, false, tx => cancelRun(tx, context.services, context.resource.id))
    },
    again: context => repeatCommand(context, false),
  }),
  runs.action('human-input', {
    id: 'submitHumanInput',
    command: ['orchestration-runs', 'submit-human-input'],
    starts: { kind: 'orchestration_run', field: 'id' },
    summary: 'Submit input to a waiting node',
    description: 'For people and their servers. Calls from background work, such as a tool of an agent, are refused.',
    action: 'orchestrations:SubmitHumanInput',
    admit: caller => requirePerson(caller, 'orchestrations:SubmitHumanInput'),
    body: AnswerInput,
    waiting: runWaiting(true),
    bodyLimit: () => 2 * 1024 * 1024,
    answers: { 200: OrchestrationRun },
    raises: ['ORCHESTRATION_HUMAN_NODE_MISMATCH', 'ORCHESTRATION_RUN_NOT_AWAITING_INPUT', 'ORCHESTRATION_RUN_PAUSED'],
    transaction: false,
    decision: ({ resource, body: { node_id, output } }) => inputDecision(resource, node_id, output),
    run: context =>
      executeCommand(context, context.body.wait !== false, (tx, awaited) =>
        submitInput(tx, context.services, context.resource.id, context.body.node_id, context.body.output, awaited),
      ),
    again: context => repeatCommand(context, context.body.wait !== false),
  }),
  runs.action('retry', {
    starts: { kind: 'orchestration_run', field: 'id' },
    summary: 'Retry a run',
    description:
      'Starts a new run of the same version with the same input and metadata, with the permissions of the principal that started the original run. Results of completed nodes are copied; the run continues where the original ended, or restarts from `from_node_id`.',
    action: 'orchestrations:RetryRun',
    body: RetryInput,
    bodyOptional: true,
    bodyLimit: () => 2 * 1024 * 1024,
    answers: { 201: OrchestrationRun },
    raises: [
      'ORCHESTRATION_RUN_NOT_RETRYABLE',
      'INVALID_TOOL_CONTEXT_KEY',
      'PROJECT_PAUSED',
      'ORCHESTRATION_NOT_FOUND',
      'ORCHESTRATION_NODE_FAILED',
      'QUEUE_DRIVER_MISCONFIGURED',
    ],
    async run(context) {
      const { tx, services, resource, body, caller } = context
      requireDriver(context)
      const retried = await retryRun(tx, services, resource, caller, {
        from_node_id: body?.from_node_id ?? null,
        tool_context: callerContext(body?.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX),
        guardrail_context: body?.guardrail_context ?? null,
        expires_in: body?.expires_in ?? null,
      })
      return result(201, presentStartedRun(retried))
    },
  }),
  runs.action('pause', {
    summary: 'Pause a run and its nested runs',
    description: 'Active work finishes and is recorded; no node starts until the run is resumed.',
    action: 'orchestrations:PauseRun',
    body: Reason.meta({ id: 'RunPauseInput' }),
    bodyOptional: true,
    answers: { 200: OrchestrationRun },
    raises: ['ORCHESTRATION_RUN_NOT_PAUSABLE'],
    transaction: false,
    run: context =>
      executeCommand(context, false, tx =>
        pauseRun(tx, context.services, context.resource.id, context.body?.reason ?? null),
      ),
    again: context => repeatCommand(context, false),
  }),
  runs.action('resume', {
    starts: { kind: 'orchestration_run', field: 'id' },
    summary: 'Resume a run',
    description: 'Nodes that became due during the pause start immediately.',
    action: 'orchestrations:ResumeRun',
    body: z
      .strictObject({
        wait: z
          .boolean()
          .nullish()
          .describe('Whether to respond only when the run has ended or awaits input. Default true.'),
      })
      .meta({ id: 'RunResumeInput' }),
    waiting: runWaiting(true),
    bodyOptional: true,
    answers: { 200: OrchestrationRun },
    raises: ['ORCHESTRATION_RUN_NOT_AWAITING_INPUT', 'PROJECT_PAUSED'],
    transaction: false,
    run: context =>
      executeCommand(context, context.body?.wait !== false, (tx, awaited) =>
        resumeRun(tx, context.services, context.resource.id, { awaited }),
      ),
    again: context => repeatCommand(context, context.body?.wait !== false),
  }),
]
