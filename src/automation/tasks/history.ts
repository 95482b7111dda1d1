import { z } from 'zod'
import { newId } from '../../core/api/ids.ts'
import { selectList } from '../../core/api/kind.ts'

/** What happened to a task: each move, and what became of a gate that was not passed. */

export const PRINCIPAL_KINDS = ['user', 'api_key', 'automation', 'approval'] as const

const name = z.string().nullable()

export const TaskTransition = z
  .object({
    id: z.string(),
    task_id: z.string(),
    from_state: name.describe('Null where the task was created'),
    to_state: z.string().describe('State after it'),
    transition: name.describe('Null where the task was created, and for a gate that was not passed'),
    principal_kind: z.enum(PRINCIPAL_KINDS),
    principal_id: name,
    generation_id: name.describe('The turn that moved it, as the other three: what caused the move of a machine'),
    orchestration_run_id: name,
    tool_id: name,
    trigger_firing_id: name,
    note: name,
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'TaskTransition' })
/** `seq` is the revision of the task that the entry made. */
export type TransitionRow = z.output<typeof TaskTransition> & { seq: number }

export const transitionColumns = selectList(Object.keys(TaskTransition.shape))

/** What caused the move of a machine. */
export type Cause = { column: 'generation_id' | 'orchestration_run_id' | 'tool_id' | 'trigger_firing_id'; id: string }

/** Who moves a task. */
export type TransitionActor = { kind: (typeof PRINCIPAL_KINDS)[number]; id: string | null; cause: Cause | null }

/** The mover of what a dispatch caused: a tool or a firing is named as its principal, too. */
export const automationBy = (cause: Cause | null): TransitionActor => ({
  kind: 'automation',
  id: cause && (cause.column === 'tool_id' || cause.column === 'trigger_firing_id') ? cause.id : null,
  cause,
})

export const transitionRow = (
  { kind, id, cause }: TransitionActor,
  move: Pick<TransitionRow, 'task_id' | 'from_state' | 'to_state' | 'transition' | 'note' | 'created_at' | 'seq'>,
): TransitionRow => ({
  id: newId('task_tr'),
  ...move,
  principal_kind: kind,
  principal_id: id,
  generation_id: null,
  orchestration_run_id: null,
  tool_id: null,
  trigger_firing_id: null,
  ...(cause && { [cause.column]: cause.id }),
})
