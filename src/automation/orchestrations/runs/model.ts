import { z } from 'zod'
import { UsageTotals } from '#control/usage/totals.ts'
import { kind } from '#core/api/kind.ts'
import { record } from '#core/api/record.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'

export const RUN_STATUSES = [
  'queued',
  'running',
  'sleeping',
  'awaiting_input',
  'succeeded',
  'failed',
  'cancelled',
  'expired',
] as const
export type RunStatus = (typeof RUN_STATUSES)[number]

const TERMINAL: readonly RunStatus[] = ['succeeded', 'failed', 'cancelled', 'expired']

export const isRunTerminal = ({ status }: { status: RunStatus }): boolean => TERMINAL.includes(status)

/** SQL list of the non-terminal statuses; the text matches the predicate of the index orchestration_runs_live. */
export const LIVE = sql.fragment`('queued', 'running', 'sleeping', 'awaiting_input')`

/**
 * SQL condition that a run is about to be cancelled with its parent or its orchestration. Two lookups by primary key; one
 * and no call of a function for a run without a parent.
 * @param run alias of the run's row
 */
export function isStopping(run: string): Fragment {
  const orchestration = sql.identifier([run, 'orchestration_id'])
  const parent = sql.identifier([run, 'parent_execution_id'])
  return sql.fragment`case when ${parent} is null
    then exists (select from orchestrations o where o.id = ${orchestration} and o.managed_by = 'deletion')
    else orchestration_run_stopping(${orchestration}, ${parent}) end`
}

export const NODE_STATUSES = [
  'running',
  'waiting',
  'requires_action',
  'completed',
  'failed',
  'skipped',
  'cancelled',
] as const

export const jsonObject = z.record(z.string(), z.unknown())
const time = z.iso.datetime().nullable()
const id = z.string().nullable()

export const NodeExecution = z
  .object({
    node_id: z.string(),
    node_type: z.string(),
    attempt: z.int().describe('Attempt number, starting at 1. The polls of a node share one attempt.'),
    status: z.enum(NODE_STATUSES),
    input: jsonObject.nullable().describe('Evaluated input_mapping; of an approval node, the evaluated arguments'),
    output: z.unknown().describe('Artifact. Null until the execution completes.'),
    label: z.string().nullable().describe('Value that edge conditions are compared with'),
    error: RecordedFailure.nullable(),
    generation_id: id,
    approval_id: id,
    idempotency_key: z
      .string()
      .nullable()
      .describe('Idempotency key of the side effect. Null for node types without a side effect.'),
    wake_at: time,
    started_at: time,
    completed_at: time,
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'NodeExecution' })
export type NodeExecution = z.output<typeof NodeExecution>

export const RequiredAction = z
  .object({
    type: z.enum(['human_input', 'webhook_receive', 'approval', 'generation', 'nested_run', 'paused']),
    node_id: id,
    prompt: z.string().nullable().describe('Question shown to people'),
    context: jsonObject.nullable().describe('Input of the node'),
    options: z.array(z.string()).nullable().describe('Allowed answers'),
    approval_id: id,
    generation_id: id,
    orchestration_run_id: z.string().nullable().describe('ID of the nested run that awaits input'),
    expires_at: time,
    reason: z.string().nullable().describe('Reason of the pause'),
    callback_url: z.string().nullable().describe('One-time URL that completes a webhook node. Null in events.'),
  })
  .meta({ id: 'RequiredAction' })
export type RequiredAction = z.output<typeof RequiredAction>

const Starter = z.object({ kind: z.enum(['user', 'api_key', 'oauth_grant', 'trigger']), id: z.string() })

/** Result of a completed node. */
export type NodeOutcome = {
  /** Value of `nodes.<id>` in expressions. */
  artifact: unknown
  label: string | null
  /** Whether edges without a condition pass. */
  through: boolean
}

export const OrchestrationRun = record('OrchestrationRun', {
  orchestration_id: z.string(),
  orchestration_version: z.int().describe('Version that the run executes; later versions do not affect it'),
  status: z.enum(RUN_STATUSES),
  input: jsonObject.nullable(),
  metadata: jsonObject.nullable(),
  tool_context: z.record(z.string(), z.string()).nullable().describe('Keys of the tool context; values are redacted'),
  state: jsonObject.nullable().describe('State that expressions read: `input`, `nodes` and values written by nodes'),
  artifacts: jsonObject.nullable().describe('Artifacts of completed nodes, by node ID'),
  active_nodes: z.array(z.string()).describe('Nodes that are executing or waiting, in definition order'),
  required_action: RequiredAction.nullable().describe('First entry of required_actions'),
  required_actions: z.array(RequiredAction).describe('Actions required to continue the run'),
  output: jsonObject.nullable().describe('Artifacts of the final nodes. Null until the run succeeds.'),
  error: RecordedFailure.nullable(),
  failed_node_id: id,
  node_executions: z.array(NodeExecution).nullable().describe('Node executions, oldest first'),
  parent_orchestration_run_id: id,
  parent_node_id: id,
  run_depth: z.int().describe('Nesting depth. 0 for a root run.'),
  retry_of_run_id: z.string().nullable().describe('ID of the run that this run retries'),
  trigger_id: id,
  trigger_firing_id: id,
  started_by: Starter.nullable(),
  trace_id: id,
  pause_requested_at: time,
  pause_reason: z.string().nullable(),
  wake_at: time.describe('Time of the earliest timer'),
  expires_at: time,
  usage: UsageTotals.nullable().describe('Usage of the run and its nested runs. Null in lists.'),
  usage_own: UsageTotals.nullable().describe('Usage of the run without its nested runs. Null in lists.'),
  started_at: time,
  completed_at: time,
})
export type OrchestrationRunRecord = z.output<typeof OrchestrationRun>

/** Row of a run. */
export const RunRow = z.object({
  id: z.string(),
  project_id: z.string(),
  orchestration_id: z.string(),
  orchestration_version: z.int(),
  status: z.enum(RUN_STATUSES),
  revision: z.int(),
  input: jsonObject.nullable(),
  metadata: jsonObject.nullable(),
  tool_context: z.record(z.string(), z.string()).nullable(),
  context: z.string().nullable(),
  /** Values that nodes wrote into the state with state_mapping. */
  written: jsonObject,
  outcomes: z.record(z.string(), z.custom<NodeOutcome>()),
  active_nodes: z.array(z.string()),
  required_actions: z.array(RequiredAction),
  output: jsonObject.nullable(),
  error: RecordedFailure.nullable(),
  failed_node_id: id,
  steps: z.int(),
  rounds: z.int(),
  parent_id: id,
  parent_node_id: id,
  parent_execution_id: id,
  parent_index: z.int().nullable(),
  root_id: z.string(),
  run_depth: z.int(),
  retry_of_run_id: id,
  trigger_id: id,
  trigger_firing_id: id,
  /** Task whose dispatch started the run. */
  task_id: id,
  /** Source of the turn that started it, which its turns inherit. */
  source: id,
  /** Whether a caller waits until it ends or awaits input. */
  awaited: z.boolean().nullable(),
  trace_id: id,
  authority: z.custom<PrincipalRecord>(),
  permission: z.custom<{ action: string; kind: string; id: string }>(),
  /** Name of the module that drives the run; null for a run without a driver. */
  driver: z.string().nullable(),
  pause_requested_at: z.string().nullable(),
  pause_reason: z.string().nullable(),
  paused_with_project: z.boolean(),
  wake_at: z.string().nullable(),
  due_at: z.string().nullable(),
  expires_at: z.string().nullable(),
  queued_at: z.string().nullable(),
  started_at: z.string().nullable(),
  completed_at: z.string().nullable(),
  created_at: z.string(),
  updated_at: z.string(),
  trace_context: z.string().nullable(),
})
export type RunRow = z.output<typeof RunRow>

const starterOf = ({ via, ...principal }: PrincipalRecord): z.output<typeof Starter> =>
  via && via.type !== 'actor_token' ? { kind: via.type, id: via.id } : { kind: principal.type, id: principal.id }

/** Returns the state that expressions read. Nodes cannot write the keys `input` and `nodes`. */
export const longWorkState = ({ input, outcomes, written }: Pick<RunRow, 'input' | 'outcomes' | 'written'>) => ({
  input,
  nodes: Object.fromEntries(Object.entries(outcomes).map(([node, { artifact }]) => [node, artifact])),
  ...written,
})

/** Presents a run from its row alone: fields that need other tables are null. */
export function presentRun(row: RunRow): OrchestrationRunRecord {
  const { written, outcomes, context, revision, steps, rounds, root_id, ...shown } = row
  const {
    parent_id,
    parent_execution_id,
    parent_index,
    authority,
    permission,
    driver,
    paused_with_project,
    task_id,
    source,
    awaited,
    due_at,
    queued_at,
    trace_context,
    ...fields
  } = shown
  const state = longWorkState(row)
  return {
    ...fields,
    state,
    artifacts: state.nodes,
    required_action: row.required_actions[0] ?? null,
    node_executions: null,
    parent_orchestration_run_id: parent_id,
    started_by: starterOf(authority),
    usage: null,
    usage_own: null,
  }
}

/** Policies can also name a run by its orchestration. */
export const runKind = kind({
  name: 'orchestration_run',
  prefix: 'orch_run',
  table: 'orchestration_runs',
  notFound: 'ORCHESTRATION_RUN_NOT_FOUND',
  missing: 'ORCHESTRATION_RUN_NOT_FOUND',
  countKept: true,
  counted: false,
  references: [{ kind: 'orchestration', column: 'orchestration_id', on_delete: 'cascade' }],
  row: RunRow,
  record: OrchestrationRun,
  present: presentRun,
  parent: { kind: 'orchestration', column: 'orchestration_id' },
  events: ['started', 'awaiting_input', 'succeeded', 'failed', 'cancelled', 'expired'],
  eventNotes: 'failed carries error',
})

/** Context that a run passes to its tools and guardrails; stored sealed and removed when the run ends. */
export type RunContext = {
  tool_context: Record<string, string> | null
  guardrail_context: Record<string, unknown> | null
}

export const sealedRuns = [
  sealedColumn({
    table: 'orchestration_runs',
    column: 'context',
    kind: 'orchestration_run_context',
    id: sql.fragment`id`,
  }),
]

/** Returns the row identity that the sealed context is bound to. */
export const runSeal = ({ id, project_id }: Pick<RunRow, 'id' | 'project_id'>) => ({
  kind: 'orchestration_run_context',
  id,
  project_id,
})
