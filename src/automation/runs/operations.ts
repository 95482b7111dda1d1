import { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import {
  columnFilter,
  equalsFilter,
  type Filters,
  filterConditions,
  filterSchema,
  oneOf,
} from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { booleanQuery, listTable, pageOf, textFilter } from '../../core/api/lists.ts'
import { metadataBag } from '../../core/api/metadata.ts'
import { type Context, itemOperation, type Operation, operation, result } from '../../core/api/operation.ts'
import { projectField } from '../../core/api/record.ts'
import { resource } from '../../core/api/resource.ts'
import { callerContext, ToolContextInput } from '../../core/api/tool-context.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { requirePerson } from '../../core/iam/access.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { lastEventId } from '../../execution/generations/streams/stream.ts'
import { orchestrationKind, orchestrationVersions } from '../orchestrations/model.ts'
import { callRunHook } from './commands/callback.ts'
import { cancelRun, pauseRun, resumeRun, submitInput } from './commands/command.ts'
import { retryRun } from './commands/retry.ts'
import { inputProblems, requireSize, startRunInOneStatement } from './commands/start.ts'
import { listedExecutions } from './engine/node-execution-store.ts'
import { OrchestrationRun, presentRun, RUN_STATUSES, type RunRow, runKind } from './model.ts'
import { withCallbacks } from './nodes/callback-token.ts'
import { runEvents, runWaiting } from './reads/events.ts'
import { largeRuns, runListColumns } from './reads/list-store.ts'
import { presentNodeExecution, presentRunFor } from './reads/present-run.ts'
import { streamRun } from './reads/stream.ts'
import { subscribeRun } from './reads/wait-for-run.ts'

const tag = 'Orchestrations'
const runs = resource(runKind, {
  path: '/orchestration-runs',
  tag,
  module: 'orchestrations',
  noun: 'Run',
  nouns: 'Runs',
})

/** Its keys are never touched; requests are nested no deeper. */
const AS_GIVEN = metadataBag(1024, 64)

const RunInput = z
  .strictObject({
    project_id: projectField,
    orchestration_id: z.string().min(1).max(255).describe('Orchestration to execute'),
    orchestration_version: z.int().min(1).nullish().describe('Version to execute; default the live one'),
    input: AS_GIVEN.nullish().describe('What expressions read as `input`; at most 1 MiB'),
    metadata: AS_GIVEN.nullish().describe('Data of your own, kept on the run'),
    tool_context: ToolContextInput.nullish().describe('Headers that calls of tools in the run carry'),
    guardrail_context: AS_GIVEN.nullish().describe('What guardrails read as `context`'),
    expires_in: z.int().min(1).max(31_536_000).nullish().describe('Seconds after which the run expires'),
    wait: z.boolean().nullish().describe('Answer once the run has ended or waits for input'),
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
  summary: 'Start a run of an orchestration',
  description:
    'Decided on the orchestration. Answers at once with a queued run; with `wait` as it is once it has ended or waits for input, or when ORCHESTRATION_WAIT_MAX_MS are over.',
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
    const { wait, orchestration_id, orchestration_version, project_id: _project, ...given } = body
    const orchestration = await orchestrationKind.find(services.pool, orchestration_id)
    if (!orchestration || orchestration.project_id !== project || orchestration.managed_by !== null)
      return raise('ORCHESTRATION_NOT_FOUND', { meta: { id: orchestration_id } })
    const version = orchestration_version ?? orchestration.version
    const input_schema =
      version === orchestration.version
        ? orchestration.input_schema
        : ((await orchestrationVersions.get(services.pool, orchestration.id, version)).config.input_schema as Record<
            string,
            unknown
          > | null)
    const input = given.input ?? null
    requireSize(input)
    const tool_context = callerContext(given.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
    const problems = await inputProblems(services, { project_id: orchestration.project_id, input_schema }, input)
    if (problems.length > 0) raiseInvalid(problems)
    const id = newId(runKind.prefix)
    const definition = await orchestrationVersions.definition(services.pool, orchestration, version)
    const expected = wait === true ? subscribeRun(services, id) : null
    try {
      const run = await startRunInOneStatement(
        services,
        { ...given, id, orchestration, version, definition, input, tool_context, authority: principalRecord(caller) },
        (outgoing, run) =>
          context.record(outgoing, 201, { id, ...(expected ? { made: { id } } : { body: startedRun(run) }) }),
      )
      if (!expected) return result(201, startedRun(run))
      const now = await expected.wait(request.closed, run)
      return result(201, await presentRunFor(services, caller, now ?? run))
    } finally {
      expected?.cancel()
    }
  },
  again: async ({ services, caller, request }, { id }) =>
    result(201, await presentRunFor(services, caller, await waitedFor(services, id as string, request))),
})

/** A new run as its creation answers. */
const startedRun = (run: RunRow) => ({ ...presentRun(run), node_executions: [] })

/** A run that a first request was lost over, once it has ended or waits for input. Raises RESOURCE_NOT_FOUND. */
const waitedFor = async (services: Services, id: string, { closed }: Context['request']): Promise<RunRow> =>
  (await subscribeRun(services, id).wait(closed)) ??
  raise('RESOURCE_NOT_FOUND', { message: 'The run is gone', meta: { id } })

/** Raises QUEUE_DRIVER_MISCONFIGURED. */
export function requireDriver({ services }: Pick<Context, 'services'>): void {
  const driver = services.config.ORCHESTRATION_QUEUE_DRIVER
  if (driver !== 'postgres') raise('QUEUE_DRIVER_MISCONFIGURED', { meta: { driver } })
}

const filters = {
  orchestration_id: equalsFilter('orchestration_id'),
  status: oneOf('status', RUN_STATUSES),
  parent_orchestration_run_id: columnFilter(
    textFilter.describe('Runs that a run started'),
    id => sql.fragment`t.parent_id = ${id}`,
  ),
  parent_node_id: equalsFilter('parent_node_id'),
  nested: columnFilter(booleanQuery.optional().describe('Only runs that other runs started, or only others'), nested =>
    nested ? sql.fragment`t.parent_id is not null` : sql.fragment`t.parent_id is null`,
  ),
  trigger_id: equalsFilter('trigger_id'),
} satisfies Filters

const listRuns = operation({
  id: 'listRuns',
  method: 'get',
  path: '/orchestration-runs',
  summary: 'List runs of orchestrations',
  description:
    'Of a run whose values are larger than 128 KiB together, state, artifacts, input, output, metadata and the context of its required actions are null, as are node_executions where they are; the run itself shows them.',
  tag,
  action: 'orchestrations:ListRuns',
  lists: runKind,
  query: filterSchema(filters).extend({
    view: z.enum(['full', 'summary']).optional().describe('`summary` leaves out state, artifacts and node_executions'),
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
      // Runs that a module drives are its own: neither listed nor counted.
      filters: filterConditions(filters, query),
      only: sql.fragment`t.driver is null`,
      present: row => row,
    })
    const rows = page.data as Listed[]
    const whole = rows.flatMap(({ id, outcomes }) => (outcomes === null ? [] : [id]))
    const large = summary ? new Set() : await largeRuns(services.pool, whole)
    const executions = await listedExecutions(
      services.pool,
      whole.filter(id => !large.has(id)),
    )
    const shown = rows.map(row => {
      const { outcomes, written } = row
      if (outcomes === null || written === null)
        return { ...presentRun({ ...row, outcomes: {}, written: {} }), state: null, artifacts: null }
      const node_executions = large.has(row.id) ? null : (executions.get(row.id) ?? []).map(presentNodeExecution)
      return { ...presentRun({ ...row, outcomes, written }), node_executions }
    })
    return { ...page, data: await withCallbacks(services, caller, shown) }
  },
})

/** A run in a list: without what is large. */
type Listed = Omit<RunRow, 'outcomes' | 'written'> & {
  outcomes: RunRow['outcomes'] | null
  written: RunRow['written'] | null
}

const Reason = z.strictObject({
  reason: z.string().max(1000).nullish().describe('Why, for whoever reads the run'),
})

const RetryInput = z
  .strictObject({
    from_node_id: z
      .string()
      .min(1)
      .max(128)
      .nullish()
      .describe('Node to begin with again, forgetting it and all that comes behind it; default where the run stood'),
    tool_context: ToolContextInput.nullish().describe('Headers that calls of tools carry; those of the run are gone'),
    guardrail_context: AS_GIVEN.nullish().describe('What guardrails read as `context`; that of the run is gone'),
    expires_in: z.int().min(1).max(31_536_000).nullish().describe('Seconds after which the new run expires'),
  })
  .meta({ id: 'RunRetryInput' })

const AnswerInput = z
  .strictObject({
    node_id: z.string().min(1).max(128).describe('Node that waits'),
    output: z.unknown().optional().describe('Its artifact; what is no object counts as an empty one'),
    wait: z.boolean().nullish().describe('Default true: answer once the run has ended or waits for input again'),
  })
  .meta({ id: 'HumanInput', example: { node_id: 'decide', output: { approved: true } } })

/** Makes a change of a run in a transaction, and answers with the run as it stands then or, when asked to, later. */
async function command(
  context: Context<any, any, RunRow>,
  wait: boolean,
  change: (tx: Tx) => Promise<RunRow>,
): Promise<unknown> {
  const { services, resource, request, caller } = context
  const expected = wait ? subscribeRun(services, resource.id) : null
  try {
    const changed = await services.write(async tx => {
      const run = await change(tx)
      context.record(tx, 200, { made: {} })
      return run
    })
    const now = expected ? await expected.wait(request.closed, { ...changed, status: 'running' }) : changed
    return presentRunFor(services, caller, now ?? changed)
  } finally {
    expected?.cancel()
  }
}

/** Answers a repeat of a command whose first request was lost: the run as it is, waited for like that of the first. */
const commandedAgain = async (
  { services, resource, request, caller }: Context<any, any, RunRow>,
  wait: boolean,
): Promise<unknown> =>
  presentRunFor(services, caller, wait ? await waitedFor(services, resource.id, request) : resource)

export const runOperations: Operation[] = [
  start,
  listRuns,
  callRunHook,
  runs.get({ present: ({ resource, services, caller }) => presentRunFor(services, caller, resource) }),
  itemOperation(runKind, {
    id: 'streamOrchestrationRun',
    method: 'get',
    path: '/orchestration-runs/{orchestration_run_id}/stream',
    summary: 'Follow a run',
    description:
      'Server-sent events with the revision of the run as id: `node.updated` with an attempt of a node but its input and output, `run.updated` with id, status, active_nodes, required_actions and updated_at, and `run.settled` with the run, after which the stream ends. Begins with how things stand, unless `Last-Event-ID` is the revision that the run has.',
    tag,
    action: 'orchestrations:GetRun',
    answers: { 200: null },
    stream: runEvents,
    internal: true,
    run: async context => streamRun(context, context.resource, lastEventId(context.request.headers['last-event-id'])),
  }),
  runs.action('cancel', {
    summary: 'Cancel a run with everything below it',
    description:
      'Nodes that run are aborted, and nested runs and turns with them. What has completed keeps its artifacts.',
    action: 'orchestrations:CancelRun',
    body: Reason.meta({ id: 'RunCancelInput' }),
    bodyOptional: true,
    answers: { 200: OrchestrationRun },
    raises: ['ORCHESTRATION_RUN_NOT_CANCELLABLE'],
    transaction: false,
    run(context) {
      const reason = context.body?.reason ?? null
      if (reason !== null) context.audit.detail.reason = reason
      return command(context, false, tx => cancelRun(tx, context.services, context.resource.id))
    },
    again: context => commandedAgain(context, false),
  }),
  runs.action('human-input', {
    id: 'submitHumanInput',
    command: ['orchestration-runs', 'submit-human-input'],
    starts: { kind: 'orchestration_run', field: 'id' },
    summary: 'Answer a node that waits for input',
    description: 'For people and their servers: work in the background, such as a tool of an agent, is refused.',
    action: 'orchestrations:SubmitHumanInput',
    admit: caller => requirePerson(caller, 'orchestrations:SubmitHumanInput'),
    body: AnswerInput,
    waiting: runWaiting(true),
    bodyLimit: () => 2 * 1024 * 1024,
    answers: { 200: OrchestrationRun },
    raises: ['ORCHESTRATION_HUMAN_NODE_MISMATCH', 'ORCHESTRATION_RUN_NOT_AWAITING_INPUT', 'ORCHESTRATION_RUN_PAUSED'],
    transaction: false,
    run: context =>
      command(context, context.body.wait !== false, tx =>
        submitInput(tx, context.services, context.resource.id, context.body.node_id, context.body.output),
      ),
    again: context => commandedAgain(context, context.body.wait !== false),
  }),
  runs.action('retry', {
    starts: { kind: 'orchestration_run', field: 'id' },
    summary: 'Start a run anew that did not succeed',
    description:
      'Makes a new run of the same version with the same input and metadata, as whoever started the first one. What nodes had completed is taken over; it begins where the run stood, or at `from_node_id`.',
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
      return result(201, startedRun(retried))
    },
  }),
  runs.action('pause', {
    summary: 'Pause a run with everything below it',
    description: 'What is under way ends and is recorded; nothing new begins until the run is resumed.',
    action: 'orchestrations:PauseRun',
    body: Reason.meta({ id: 'RunPauseInput' }),
    bodyOptional: true,
    answers: { 200: OrchestrationRun },
    raises: ['ORCHESTRATION_RUN_NOT_PAUSABLE'],
    transaction: false,
    run: context =>
      command(context, false, tx => pauseRun(tx, context.services, context.resource.id, context.body?.reason ?? null)),
    again: context => commandedAgain(context, false),
  }),
  runs.action('resume', {
    starts: { kind: 'orchestration_run', field: 'id' },
    summary: 'Resume a run that is paused',
    description: 'Nodes that became due in the meantime start at once.',
    action: 'orchestrations:ResumeRun',
    body: z
      .strictObject({
        wait: z.boolean().nullish().describe('Default true: answer once the run has ended or waits for input'),
      })
      .meta({ id: 'RunResumeInput' }),
    waiting: runWaiting(true),
    bodyOptional: true,
    answers: { 200: OrchestrationRun },
    raises: ['ORCHESTRATION_RUN_NOT_AWAITING_INPUT', 'PROJECT_PAUSED'],
    transaction: false,
    run: context =>
      command(context, context.body?.wait !== false, tx => resumeRun(tx, context.services, context.resource.id)),
    again: context => commandedAgain(context, context.body?.wait !== false),
  }),
]
