import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { timeInput } from '#core/api/lists.ts'
import { MetadataBag, metadataBag } from '#core/api/metadata.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { ToolContextInput } from '#core/api/tool-context.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'

export const TASK_STATUSES = ['open', 'closed'] as const
export const AUTOMATION_STATUSES = ['running', 'completed', 'failed', 'unrouted', 'paused'] as const
const ACTIVE_KINDS = ['generation', 'orchestration_run', 'tool_call', 'trigger_firing'] as const

export const PAYLOAD_BYTES = 256 * 1024
/** Nesting limit of request bodies. */
const MAX_DEPTH = 64

const jsonObject = z.record(z.string(), z.unknown())
export const nullableTime = z.iso.datetime().nullable()
const id = z.string().min(1).max(255)

const fields = {
  title: z.string().trim().min(1).max(500).describe('Title of the task'),
  assignee: z.string().min(1).max(255).nullable().describe('Name or ID of the assignee. Not interpreted.'),
  due_at: timeInput.nullable().describe('Due time. Informational: nothing happens when it passes.'),
}

const payload = metadataBag(PAYLOAD_BYTES / 1024, MAX_DEPTH).transform(
  value => storableValue(value) as Record<string, unknown>,
)

const tool_context = ToolContextInput.nullish().describe('Tool context headers of later dispatches. Write-only.')

export const ActiveDispatch = z
  .object({
    kind: z.enum(ACTIVE_KINDS),
    id: z.string().nullable().describe('ID of the started work. Null for a tool call and until the work has started.'),
    status: z.enum(['running', 'completed', 'failed']),
    attempt: z.int().optional().describe('Attempt number, starting at 1. Present if the state has a retry policy.'),
  })
  .meta({ id: 'TaskDispatch' })
export type ActiveDispatch = z.output<typeof ActiveDispatch>

export const Task = record('Task', {
  workflow_id: z.string(),
  workflow_version: z.int().describe('Workflow version that the task is pinned to'),
  title: fields.title,
  state: z.string(),
  status: z.enum(TASK_STATUSES),
  payload: jsonObject,
  metadata: jsonObject.nullable(),
  last_result: z.unknown().describe('Result of the last completed dispatch'),
  assignee: z.string().nullable(),
  due_at: nullableTime,
  active_dispatch: ActiveDispatch.nullable().describe('Latest dispatch of the current state. Null if there is none.'),
  automation_status: z
    .enum(AUTOMATION_STATUSES)
    .nullable()
    .describe('Status of the automation of the current state. Null if the state has none.'),
  automation_error: RecordedFailure.nullable().describe('Error of the last dispatch of the current state'),
  automation_chain_depth: z.int().describe('Number of consecutive automated transitions'),
  pending_transition: z.string().nullable().describe('Name of the transition that is awaiting approval'),
  pending_approval_id: z.string().nullable(),
  pause_requested_at: nullableTime,
  pause_reason: z.string().nullable(),
  entered_state_at: z.iso.datetime(),
})

export const TaskDetail = Task.extend({
  available_transitions: z
    .array(
      z.object({
        name: z.string(),
        to: z.string(),
        requires_approval: z.boolean().describe('Whether the transition needs an approval'),
      }),
    )
    .describe('Transitions from the current state, guards not evaluated. Empty for closed tasks.'),
}).meta({ id: 'TaskDetail' })

export const TaskInput = createBody(
  'TaskInput',
  {
    ...fields,
    workflow_id: id.describe('ID of the workflow. The task is pinned to its current version.'),
    payload: payload.describe('Data of the task, validated against payload_schema of the workflow. Default {}.'),
    metadata: MetadataBag.nullable().describe('Arbitrary client data. Not interpreted.'),
    state: id.describe('State to create the task in. Default the initial state of the workflow.'),
    tool_context,
  },
  ['workflow_id', 'title'],
  { workflow_id: 'wfl_01k5p3vd7r9hj2x8m4qcw6tz0e', title: 'Order 1042 is late' },
)

export const TaskPatch = patchBody('TaskPatch', {
  ...fields,
  payload: payload.describe('Payload keys to replace. Omitted keys are unchanged.'),
})

const note = z.string().max(10_000).nullish()

export const TransitionInput = z
  .strictObject({
    transition: id.describe('Name of the transition'),
    note: note.describe('Note to store in the history of the task'),
    expected_state: id.nullish().describe('Current state of the task that the request requires'),
    tool_context,
  })
  .meta({ id: 'TaskTransitionInput', example: { transition: 'close' } })

export const PauseTaskInput = z
  .strictObject({ reason: z.string().max(2000).nullish().describe('Reason for the pause') })
  .meta({ id: 'TaskPauseInput' })

/** Requester of a transition that awaits approval. `context`: whether the request replaces the tool context. */
export type TransitionGate = {
  authority: PrincipalRecord
  context: boolean
  /** Whether the approval restarts the automation of the state that the transition leads to. */
  restarts?: true
}

export const taskKind = kind({
  name: 'task',
  prefix: 'task',
  table: 'tasks',
  notFound: 'TASK_NOT_FOUND',
  missing: 'TASK_NOT_FOUND',
  countKept: true,
  counted: false,
  references: [{ kind: 'workflow', column: 'workflow_id', on_delete: 'cascade' }],
  record: Task,
  hidden: {
    gate: z.custom<TransitionGate | null>(),
    gate_context: z.string().nullable(),
    result_of: z.string().nullable(),
    revision: z.int(),
    entry_seq: z.int(),
    stalls_at: z.string().nullable(),
    authority: z.custom<PrincipalRecord>(),
    context: z.string().nullable(),
  },
  events: [
    'created',
    'updated',
    'deleted',
    'transitioned',
    'closed',
    'stalled',
    'paused',
    'resumed',
    'approval_failed',
    'automation_retrying',
    'automation_rejected',
    'automation_unrouted',
  ],
  eventNotes: 'tool_context is never present; transitioned adds transition and from_state',
})
export type TaskRow = z.output<typeof taskKind.row>

export const sealedTaskColumns = ['context', 'gate_context'].map(column =>
  sealedColumn({ table: 'tasks', column, kind: 'task_context' }),
)

/** Returns the identity that a sealed context is bound to. */
export const sealedForTask = ({ id, project_id }: Pick<TaskRow, 'id' | 'project_id'>) => ({
  kind: 'task_context',
  id,
  project_id,
})
