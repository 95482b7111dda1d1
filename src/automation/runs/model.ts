import { z } from 'zod'
import { UsageTotals } from '../../control/usage/totals.ts'
import { RecordedFailure } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { type Fragment, sql } from '../../core/db/sql.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'

/** A run is one execution of one version of an orchestration. */

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

const ENDED: readonly RunStatus[] = ['succeeded', 'failed', 'cancelled', 'expired']

export const isRunTerminal = ({ status }: { status: RunStatus }): boolean => ENDED.includes(status)

/** Statuses of runs that have not ended, in the words of orchestration_runs_live. */
export const LIVE = sql.fragment`('queued', 'running', 'sleeping', 'awaiting_input')`

/**
 * The condition that a run is about to be stopped: with a run above it, or with its orchestration. By primary keys.
 * @param run the alias of its row
 */
export const isStopping = (run: string): Fragment =>
  sql.fragment`orchestration_run_stopping(${sql.identifier([run, 'orchestration_id'])}, ${sql.identifier([run, 'parent_execution_id'])})`

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
    attempt: z.int().describe('Counts the tries, from 1; the polls of a node share one'),
    status: z.enum(NODE_STATUSES),
    input: jsonObject.nullable().describe('What input_mapping gave; of an approval the arguments'),
    output: z.unknown().describe('The artifact; null until it has completed'),
    label: z.string().nullable().describe('What edges with a condition compare'),
    error: RecordedFailure.nullable(),
    generation_id: id,
    approval_id: id,
    idempotency_key: z.string().nullable().describe('What its side effect is made under; null for types without one'),
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
    prompt: z.string().nullable().describe('What people are asked'),
    context: jsonObject.nullable().describe('The input of the node'),
    options: z.array(z.string()).nullable().describe('Answers to choose from'),
    approval_id: id,
    generation_id: id,
    orchestration_run_id: z.string().nullable().describe('The nested run that waits'),
    expires_at: time,
    reason: z.string().nullable().describe('Why the run is paused'),
    callback_url: z.string().nullable().describe('Where a webhook node takes its answer, once; null in events'),
  })
  .meta({ id: 'RequiredAction' })
export type RequiredAction = z.output<typeof RequiredAction>

const Starter = z.object({ kind: z.enum(['user', 'api_key', 'oauth_grant', 'trigger']), id: z.string() })

/** What a completed node came to. */
export type NodeOutcome = {
  /** What `nodes.<id>` reads. */
  artifact: unknown
  label: string | null
  /** Whether edges without a label pass. */
  through: boolean
}

export const OrchestrationRun = record('OrchestrationRun', {
  orchestration_id: z.string(),
  orchestration_version: z.int().describe('The version that it executes, whatever is written later'),
  status: z.enum(RUN_STATUSES),
  input: jsonObject.nullable(),
  metadata: jsonObject.nullable(),
  tool_context: z.record(z.string(), z.string()).nullable().describe('Its keys; values are not shown'),
  state: jsonObject.nullable().describe('What expressions read: `input`, `nodes` and what nodes wrote'),
  artifacts: jsonObject.nullable().describe('What nodes came to, by their ids'),
  active_nodes: z.array(z.string()).describe('Nodes that execute or wait, in the order of the definition'),
  required_action: RequiredAction.nullable().describe('The first of required_actions'),
  required_actions: z.array(RequiredAction).describe('What somebody has to do before the run can go on'),
  output: jsonObject.nullable().describe('Artifacts of the nodes that nothing follows; once it has succeeded'),
  error: RecordedFailure.nullable(),
  failed_node_id: id,
  node_executions: z.array(NodeExecution).nullable().describe('Tries of nodes, oldest first'),
  parent_orchestration_run_id: id,
  parent_node_id: id,
  run_depth: z.int().describe('0 for a run that a caller started'),
  retry_of_run_id: z.string().nullable().describe('The run that this one repeats'),
  trigger_id: id,
  trigger_firing_id: id,
  started_by: Starter.nullable(),
  trace_id: id,
  pause_requested_at: time,
  pause_reason: z.string().nullable(),
  wake_at: time.describe('The earliest timer'),
  expires_at: time,
  usage: UsageTotals.nullable().describe('Of the run with everything below it; null in lists'),
  usage_own: UsageTotals.nullable().describe('Of its own nodes; null in lists'),
  started_at: time,
  completed_at: time,
})
export type OrchestrationRunRecord = z.output<typeof OrchestrationRun>

/** A run as it is stored. */
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
  /** What nodes wrote beside the input and what they came to. */
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
  /** The task that it was dispatched for. */
  task_id: id,
  trace_id: id,
  authority: z.custom<PrincipalRecord>(),
  permission: z.custom<{ action: string; kind: string; id: string }>(),
  /** What drives it; null for a run that stands by itself. */
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
})
export type RunRow = z.output<typeof RunRow>

const starterOf = ({ via, ...principal }: PrincipalRecord): z.output<typeof Starter> =>
  via ? { kind: via.type, id: via.id } : { kind: principal.type, id: principal.id }

/** What expressions read. What nodes wrote is never called `input` or `nodes`. */
export const longWorkState = ({ input, outcomes, written }: Pick<RunRow, 'input' | 'outcomes' | 'written'>) => ({
  input,
  nodes: Object.fromEntries(Object.entries(outcomes).map(([node, { artifact }]) => [node, artifact])),
  ...written,
})

/** A run as the wire shows it, without what other tables hold of it: null. */
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
    due_at,
    queued_at,
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

/** Runs are named by their orchestration too: a policy of a graph covers what it does. */
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

/** What a run carries to its tools and guardrails, sealed until its end. */
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

/** What binds the sealed context to its run. */
export const runSeal = ({ id, project_id }: Pick<RunRow, 'id' | 'project_id'>) => ({
  kind: 'orchestration_run_context',
  id,
  project_id,
})
