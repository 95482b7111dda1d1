import { z } from 'zod'
import { RecordedFailure } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { timeInput } from '../../core/api/lists.ts'
import { MetadataBag, metadataBag } from '../../core/api/metadata.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import { ToolContextInput } from '../../core/api/tool-context.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'

/** A task is an item that lives in the states of a workflow, in the version that it was created with. */

export const TASK_STATUSES = ['open', 'closed'] as const
export const AUTOMATION_STATUSES = ['running', 'completed', 'failed', 'unrouted', 'paused'] as const
export const ACTIVE_KINDS = ['generation', 'orchestration_run', 'tool_call', 'trigger_firing'] as const

/** As much as a payload may hold, and as deep as a request may be. */
export const PAYLOAD_BYTES = 256 * 1024
const DEPTH = 64

const anObject = z.record(z.string(), z.unknown())
const time = z.iso.datetime().nullable()
const id = z.string().min(1).max(255)

const fields = {
  title: z.string().trim().min(1).max(500).describe('What it is about'),
  assignee: z.string().min(1).max(255).nullable().describe('Who has it, a user or an actor; not interpreted'),
  due_at: timeInput.nullable().describe('When it should be done; nothing follows from it'),
}

const payload = metadataBag(PAYLOAD_BYTES / 1024, DEPTH).transform(
  value => storableValue(value) as Record<string, unknown>,
)

const tool_context = ToolContextInput.nullish().describe(
  'Keys and values that dispatches carry to tools, from this move on; never shown',
)

export const ActiveDispatch = z
  .object({
    kind: z.enum(ACTIVE_KINDS),
    id: z.string().nullable().describe('Null for a call of a tool, and until it has started'),
    status: z.enum(['running', 'completed', 'failed']),
    attempt: z.int().optional().describe('Counts the tries, where the state has a retry policy'),
  })
  .meta({ id: 'TaskDispatch' })
export type ActiveDispatch = z.output<typeof ActiveDispatch>

export const Task = record('Task', {
  workflow_id: z.string(),
  workflow_version: z.int().describe('The version that the task goes by, whatever is written later'),
  title: fields.title,
  state: z.string(),
  status: z.enum(TASK_STATUSES),
  payload: anObject,
  metadata: anObject.nullable(),
  last_result: z.unknown().describe('What the last completed dispatch came to'),
  assignee: z.string().nullable(),
  due_at: time,
  active_dispatch: ActiveDispatch.nullable().describe('Work in progress for the task; null if there is none'),
  automation_status: z.enum(AUTOMATION_STATUSES).nullable().describe('Null while the state has started nothing'),
  automation_error: RecordedFailure.nullable().describe('Why the last dispatch of the state failed'),
  automation_chain_depth: z.int().describe('Moves that machines made back-to-back'),
  pending_transition: z.string().nullable().describe('Transition that waits for approval'),
  pending_approval_id: z.string().nullable(),
  pause_requested_at: time,
  pause_reason: z.string().nullable(),
  entered_state_at: z.iso.datetime(),
})

/** A task as it is read by itself. */
export const TaskDetail = Task.extend({
  available_transitions: z
    .array(
      z.object({
        name: z.string(),
        to: z.string(),
        requires_approval: z.boolean().describe('Whether the transition needs an approval'),
      }),
    )
    .describe('What leads out of its state, whatever the guards say; none of a closed task'),
}).meta({ id: 'TaskDetail' })

export const TaskInput = createBody(
  'TaskInput',
  {
    ...fields,
    workflow_id: id.describe('Workflow whose current version it is pinned to'),
    payload: payload.describe('Data of the task, checked with the payload_schema of the workflow; default {}'),
    metadata: MetadataBag.nullable().describe('Data of your own, which nothing reads'),
    state: id.describe('State that it begins in; default the initial one'),
    tool_context,
  },
  ['workflow_id', 'title'],
  { workflow_id: 'wfl_01k5p3vd7r9hj2x8m4qcw6tz0e', title: 'Order 1042 is late' },
)

export const TaskPatch = patchBody('TaskPatch', {
  ...fields,
  payload: payload.describe('Keys that replace those of the payload; the others stay'),
})

const note = z.string().max(10_000).nullish()

export const TransitionInput = z
  .strictObject({
    transition: id.describe('Name of the transition'),
    note: note.describe('Kept with the history of the task'),
    expected_state: id.nullish().describe('State that the task has to be in'),
    tool_context,
  })
  .meta({ id: 'TaskTransitionInput', example: { transition: 'close' } })

export const PauseTaskInput = z
  .strictObject({ reason: z.string().max(2000).nullish().describe('Why') })
  .meta({ id: 'TaskPauseInput' })

/** Who asked for a transition that waits for approval. `context`: whether its request replaces the tool context. */
export type TransitionGate = { authority: PrincipalRecord; context: boolean }

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

export const sealedTasks = ['context', 'gate_context'].map(column =>
  sealedColumn({ table: 'tasks', column, kind: 'task_context' }),
)

/** What binds a sealed context to its task. */
export const sealedForTask = ({ id, project_id }: Pick<TaskRow, 'id' | 'project_id'>) => ({
  kind: 'task_context',
  id,
  project_id,
})
