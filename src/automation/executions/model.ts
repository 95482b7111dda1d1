import { z } from 'zod'
import { UsageTotals } from '../../control/usage/totals.ts'
import { RecordedFailure, raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import type { PlaybookDefinition } from '../playbooks/definition.ts'
import { STEP_TYPES } from '../playbooks/definition.ts'

/** An execution is one run of one version of a playbook over one case. */

export const EXECUTION_STATUSES = ['queued', 'running', 'waiting', 'completed', 'failed', 'cancelled'] as const
export type ExecutionStatus = (typeof EXECUTION_STATUSES)[number]

export const isExecutionTerminal = ({ status }: { status: ExecutionStatus }): boolean =>
  status === 'completed' || status === 'failed' || status === 'cancelled'

const STEP_STATUSES = ['pending', 'running', 'waiting', 'completed', 'failed', 'skipped', 'cancelled'] as const

export const WAITS = ['manual', 'approval', 'timer', 'event'] as const

const anObject = z.record(z.string(), z.unknown())
const time = z.iso.datetime().nullable()
const text = z.string().nullable()

const StepActor = z.object({ kind: z.enum(['user', 'api_key']), id: z.string() })
export type StepActor = z.output<typeof StepActor>

export const StepRecord = z
  .object({
    key: z.string(),
    title: z.string(),
    type: z.enum(STEP_TYPES),
    position: z.int().describe('Place in the playbook, from 0'),
    status: z.enum(STEP_STATUSES),
    attempt: z.int().describe('Counts the tries, from 1; 0 before the first'),
    input: anObject.nullable().describe('What a machine was given'),
    output: z.unknown().describe('What expressions read as `steps.<key>.output`; null until it has completed'),
    error: RecordedFailure.nullable(),
    assignee: text,
    due_at: time,
    overdue: z.boolean().describe('Whether it is late'),
    approval_id: text,
    generation_id: text,
    decision_id: text,
    orchestration_run_id: text.describe('The run that the step started'),
    tool_id: text,
    completed_by: StepActor.nullable().describe('Who completed or skipped a manual step'),
    note: text,
    started_at: time,
    completed_at: time,
  })
  .meta({ id: 'PlaybookStepRecord' })
export type StepRecord = z.output<typeof StepRecord>

/** A step as it is stored. */
export const PlaybookStepRow = StepRecord.extend({ execution_id: z.string(), attempts_before: z.int() })
export type PlaybookStepRow = z.output<typeof PlaybookStepRow>

export const WaitingOn = z
  .object({
    type: z.enum(WAITS),
    step_key: z.string(),
    assignee: text.optional(),
    due_at: time.optional(),
    approval_id: text.optional(),
    resumes_at: time.optional().describe('When it resumes without further input'),
    event_pattern: text.optional().describe('Events that it waits for'),
    expires_at: time.optional().describe('When the wait for an event fails'),
  })
  .meta({ id: 'PlaybookWaitingOn' })
export type WaitingOn = z.output<typeof WaitingOn>

/** The event that a step waits for; what its filter reads beside the envelope is the input of the step. */
export type EventWait = {
  step_key: string
  pattern: string
  filter: unknown
  /** What happened before does not count. */
  since: string
  expires_at: string | null
}

const columns = {
  case_id: z.string(),
  playbook_id: z.string(),
  playbook_name: z.string().describe('As it was when the execution started'),
  playbook_version: z.int().describe('The version that it follows, whatever is written later'),
  status: z.enum(EXECUTION_STATUSES),
  input: anObject
    .nullable()
    .describe('What it was started with; null in lists of an execution with much in its fields'),
  metadata: anObject.nullable(),
  current_step_key: text.describe('Step that it is at'),
  waiting_on: WaitingOn.nullable().describe('What has to happen before it goes on'),
  outcome: text.describe('What it came to'),
  output: anObject.nullable().describe('Outputs of completed steps by their keys, once it has completed'),
  error: RecordedFailure.nullable(),
  orchestration_run_id: z.string().describe('The run that drives it'),
  previous_orchestration_run_ids: z.array(z.string()).describe('Runs that drove it before it was retried'),
  trigger_id: text,
  started_by: StepActor.nullable(),
  pause_requested_at: time.describe('Since when it is paused'),
  pause_reason: text,
  started_at: time,
  completed_at: time,
}

export const PlaybookExecution = record('PlaybookExecution', {
  ...columns,
  steps: z.array(StepRecord).nullable().describe('In the order of the playbook; null in lists'),
  usage: UsageTotals.nullable().describe('Of its runs with everything below them; null in lists and events'),
})

export const ExecutionRow = record('PlaybookExecutionRow', columns).extend({
  definition: z.custom<PlaybookDefinition>(),
  event_wait: z.custom<EventWait | null>(),
})
export type ExecutionRow = z.output<typeof ExecutionRow>

/** An execution as the wire shows it, without its steps where they are not given. */
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

/** A step that nobody has begun. */
export const NOT_BEGUN = {
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

/** Executions are named as their case by policies. */
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
  eventNotes: 'Data has `steps`. step_*: `step` is the record of the step. failed: `step_key` names it.',
})

/** Raises PLAYBOOK_EXECUTION_CONFLICT: the command does not go with how the execution or a step of it stands. */
export const executionConflict = (
  { id, status }: Pick<ExecutionRow, 'id' | 'status'>,
  message: string,
  step?: Pick<PlaybookStepRow, 'key' | 'status'>,
): never =>
  raise('PLAYBOOK_EXECUTION_CONFLICT', {
    message,
    meta: step ? { execution_id: id, step_key: step.key, status: step.status } : { execution_id: id, status },
  })
