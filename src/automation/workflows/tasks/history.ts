import { z } from 'zod'
import { selectList } from '#core/api/kind.ts'
import { newId } from '#core/base/ids.ts'

export const PRINCIPAL_KINDS = ['user', 'api_key', 'automation', 'approval'] as const

const nullableString = z.string().nullable()

export const TaskTransition = z
  .object({
    id: z.string(),
    task_id: z.string(),
    from_state: nullableString.describe('State before the transition. Null for the creation of the task.'),
    to_state: z.string().describe('State after the transition'),
    transition: nullableString.describe(
      'Name of the transition. Null for the creation of the task and for a transition that was not approved.',
    ),
    principal_kind: z.enum(PRINCIPAL_KINDS),
    principal_id: nullableString,
    generation_id: nullableString.describe('ID of the generation that caused an automated transition'),
    orchestration_run_id: nullableString,
    tool_id: nullableString,
    trigger_firing_id: nullableString,
    note: nullableString,
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'TaskTransition' })
/** `seq`: revision of the task after the entry. */
export type TransitionRow = z.output<typeof TaskTransition> & { seq: number }

export const transitionColumns = selectList(Object.keys(TaskTransition.shape))

/** Work that caused an automated move. */
export type Cause = { column: 'generation_id' | 'orchestration_run_id' | 'tool_id' | 'trigger_firing_id'; id: string }

/** Originator of a move. */
export type TransitionActor = { kind: (typeof PRINCIPAL_KINDS)[number]; id: string | null; cause: Cause | null }

/** Returns the actor of an automated move. A tool or firing is also recorded as the principal. */
export const automationBy = (cause: Cause | null): TransitionActor => ({
  kind: 'automation',
  id: cause && (cause.column === 'tool_id' || cause.column === 'trigger_firing_id') ? cause.id : null,
  cause,
})

export const transitionRow = (
  { kind, id, cause }: TransitionActor,
  fields: Pick<TransitionRow, 'task_id' | 'from_state' | 'to_state' | 'transition' | 'note' | 'created_at' | 'seq'>,
): TransitionRow => ({
  id: newId('task_tr'),
  ...fields,
  principal_kind: kind,
  principal_id: id,
  generation_id: null,
  orchestration_run_id: null,
  tool_id: null,
  trigger_firing_id: null,
  ...(cause && { [cause.column]: cause.id }),
})
