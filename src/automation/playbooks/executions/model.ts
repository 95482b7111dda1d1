import { z } from 'zod'
import { UsageTotals } from '#control/usage/totals.ts'
import { kind } from '#core/api/kind.ts'
import { record } from '#core/api/record.ts'
import { RecordedFailure, raise } from '#core/base/errors.ts'
import type { PlaybookDefinition } from '../definition/definition.ts'
import { STEP_TYPES } from '../definition/definition.ts'

export const EXECUTION_STATUSES = ['queued', 'running', 'waiting', 'completed', 'failed', 'cancelled'] as const
export type ExecutionStatus = (typeof EXECUTION_STATUSES)[number]

export const isExecutionTerminal = ({ status }: { status: ExecutionStatus }): boolean =>
  status === 'completed' || status === 'failed' || status === 'cancelled'

const STEP_STATUSES = ['pending', 'running', 'waiting', 'completed', 'failed', 'skipped', 'cancelled'] as const

export const WAITS = ['manual', 'approval', 'timer', 'event'] as const

const jsonObject = z.record(z.string(), z.unknown())
const nullableTime = z.iso.datetime().nullable()
const nullableText = z.string().nullable()

const StepActor = z.object({ kind: z.enum(['user', 'api_key']), id: z.string() })
export type StepActor = z.output<typeof StepActor>

export const StepRecord = z
  .object({
    key: z.string(),
    title: z.string(),
    type: z.enum(STEP_TYPES),
    position: z.int().describe('Position in the playbook, starting at 0'),
    status: z.enum(STEP_STATUSES),
    attempt: z.int().describe('Attempt number, starting at 1. 0 before the first attempt.'),
    input: jsonObject.nullable().describe('Input of an automated step'),
    output: z.unknown().describe('Value of `steps.<key>.output` in expressions. Null until the step has completed.'),
    error: RecordedFailure.nullable(),
    assignee: nullableText,
    due_at: nullableTime,
    overdue: z.boolean().describe('Whether the step has passed its due time'),
    approval_id: nullableText,
    generation_id: nullableText,
    decision_id: nullableText,
    orchestration_run_id: nullableText.describe('ID of the run that the step started'),
    tool_id: nullableText,
    completed_by: StepActor.nullable().describe('Principal that completed or skipped a manual step'),
    note: nullableText,
    started_at: nullableTime,
    completed_at: nullableTime,
  })
  .meta({ id: 'PlaybookStepRecord' })
export type StepRecord = z.output<typeof StepRecord>

export const PlaybookStepRow = StepRecord.extend({ execution_id: z.string(), attempts_before: z.int() })
export type PlaybookStepRow = z.output<typeof PlaybookStepRow>

export const WaitingOn = z
  .object({
    type: z.enum(WAITS),
    step_key: z.string(),
    assignee: nullableText.optional(),
    due_at: nullableTime.optional(),
    approval_id: nullableText.optional(),
    resumes_at: nullableTime.optional().describe('Time at which the step resumes without input'),
    event_pattern: nullableText.optional().describe('Pattern of the awaited events'),
    expires_at: nullableTime.optional().describe('Time at which the wait for an event fails'),
  })
  .meta({ id: 'PlaybookWaitingOn' })
export type WaitingOn = z.output<typeof WaitingOn>

/** Event that a step waits for. Its filter reads the envelope and the input of the step. */
export type EventWait = {
  step_key: string
  pattern: string
  filter: unknown
  /** Earlier events do not match. */
  since: string
  expires_at: string | null
}

const columns = {
  case_id: z.string(),
  playbook_id: z.string(),
  playbook_name: z.string().describe('Name of the playbook when the execution started'),
  playbook_version: z.int().describe('Playbook version that the execution is pinned to'),
  status: z.enum(EXECUTION_STATUSES),
  input: jsonObject.nullable().describe('Input of the execution. Null in lists if the execution is large.'),
  metadata: jsonObject.nullable(),
  current_step_key: nullableText.describe('Key of the current step'),
  waiting_on: WaitingOn.nullable().describe('Condition that the execution waits for. Null unless it is waiting.'),
  outcome: nullableText.describe('Outcome of the execution'),
  output: jsonObject
    .nullable()
    .describe('Outputs of completed steps by step key. Null until the execution has completed.'),
  error: RecordedFailure.nullable(),
  orchestration_run_id: z.string().describe('ID of the run that drives the execution'),
  previous_orchestration_run_ids: z.array(z.string()).describe('IDs of the runs before each retry'),
  trigger_id: nullableText,
  started_by: StepActor.nullable(),
  pause_requested_at: nullableTime.describe('Time of the pause request. Null if it is not paused.'),
  pause_reason: nullableText,
  started_at: nullableTime,
  completed_at: nullableTime,
}

export const PlaybookExecution = record('PlaybookExecution', {
  ...columns,
  steps: z.array(StepRecord).nullable().describe('Steps in playbook order. Null in lists.'),
  usage: UsageTotals.nullable().describe('Usage of its runs and their descendants. Null in lists and events.'),
})

export const ExecutionRow = record('PlaybookExecutionRow', columns).extend({
  definition: z.custom<PlaybookDefinition>(),
  event_wait: z.custom<EventWait | null>(),
})
export type ExecutionRow = z.output<typeof ExecutionRow>

/** Presents an execution, with steps if given. */
export const presentExecution = (
  { definition: _pinned, event_wait: _wait, ...row }: ExecutionRow,
  steps: readonly PlaybookStepRow[] | null = null,
) => ({ ...row, steps: steps ? steps.map(presentStep) : null, usage: null as z.output<typeof UsageTotals> | null })

export const presentStep = ({
  execution_id: _execution,
  attempts_before: _before,
  ...step
}: PlaybookStepRow): StepRecord => ({
  ...step,
  output: step.output ?? null,
})

/** Values of a step that has not started. */
export const PENDING_STEP = {
  status: 'pending',
  output: null,
  error: null,
  assignee: null,
  due_at: null,
  overdue: false,
  approval_id: null,
  generation_id: null,
  decision_id: null,
  orchestration_run_id: null,
  completed_by: null,
  note: null,
  started_at: null,
  completed_at: null,
} satisfies Partial<PlaybookStepRow>

/** Policies refer to executions by their case. */
export const executionKind = kind({
  name: 'playbook_execution',
  prefix: 'pbk_exec',
  table: 'playbook_executions',
  references: [{ kind: 'case', column: 'case_id', on_delete: 'cascade' }],
  row: ExecutionRow,
  record: PlaybookExecution,
  present: (row: ExecutionRow) => presentExecution(row),
  authorize: ({ case_id }: ExecutionRow) => ({ type: 'case', id: case_id }),
  events: ['started', 'completed', 'failed', 'cancelled', 'step_waiting', 'step_completed', 'step_overdue'],
  eventNotes:
    'The data contains `steps`. step_*: `step` is the step record. failed: `step_key` is the key of the failed step.',
})

/** @throws PLAYBOOK_EXECUTION_CONFLICT with the status of the execution or of its step */
export const raiseExecutionConflict = (
  { id, status }: Pick<ExecutionRow, 'id' | 'status'>,
  message: string,
  step?: Pick<PlaybookStepRow, 'key' | 'status'>,
): never =>
  raise('PLAYBOOK_EXECUTION_CONFLICT', {
    message,
    meta: step ? { execution_id: id, step_key: step.key, status: step.status } : { execution_id: id, status },
  })
