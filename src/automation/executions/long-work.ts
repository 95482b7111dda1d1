import {
  type AwaitedInput,
  type LongWork,
  parsedText,
  type WorkState,
  type WorkView,
} from '../../core/api/long-work.ts'
import { approvalInput } from '../../execution/approvals/long-work.ts'
import { approvalKind } from '../../execution/approvals/model.ts'
import { type ExecutionRow, executionKind, isOver, type StepRecord } from './model.ts'

/** A manual step, as it is shown to a person. */
function stepInput(row: ExecutionRow, step: StepRecord): AwaitedInput {
  return {
    key: `step:${row.id}:${step.key}:${step.attempt}`,
    message: step.title,
    form: {
      type: 'object',
      properties: {
        note: { type: 'string', description: 'A note on the step', maxLength: 10_000 },
        result: { type: 'string', description: 'What came of it: text, or JSON of an object', maxLength: 65_536 },
      },
      required: [],
    },
    operation: 'completePlaybookStep',
    permission: { action: 'playbooks:CompleteStep', target: { kind: executionKind, row } },
    accepted({ note, result }) {
      const value = parsedText(result)
      return {
        args: {
          execution_id: row.id,
          step_key: step.key,
          ...(typeof note === 'string' && note !== '' ? { note } : {}),
          ...(value === undefined || value === ''
            ? {}
            : { result: typeof value === 'object' ? value : { text: value } }),
        },
      }
    },
    declined: () => null,
  }
}

async function stateOfExecution({ services, record }: WorkView, row: ExecutionRow): Promise<WorkState> {
  const steps = (record.steps ?? []) as StepRecord[]
  const base = { created_at: row.created_at, updated_at: row.updated_at, result: null, awaited: [], progress: null }
  if (row.status === 'cancelled') return { ...base, status: 'cancelled', message: 'The execution was cancelled' }
  if (isOver(row)) {
    const result = row.error ? { failure: row.error } : { body: record }
    return { ...base, status: 'completed', message: `The execution has ${row.status}`, result }
  }
  const progress = {
    done: steps.filter(({ status }) => status === 'completed' || status === 'skipped').length,
    total: steps.length,
  }
  const waiting = row.pause_requested_at ? null : row.waiting_on
  const step = waiting && steps.find(({ key }) => key === waiting.step_key)
  const approval = waiting?.approval_id ? await approvalKind.find(services.pool, waiting.approval_id) : null
  const awaited =
    waiting?.type === 'manual' && step
      ? [stepInput(row, step)]
      : approval?.status === 'pending'
        ? [approvalInput(approval)]
        : []
  return {
    ...base,
    status: awaited.length > 0 ? 'input_required' : 'working',
    message: row.pause_requested_at
      ? 'The execution is paused'
      : approval
        ? `Waiting for approval ${approval.id}`
        : `At step ${waiting?.step_key ?? row.current_step_key ?? 'none'}`,
    awaited,
    progress,
  }
}

export const executionWork: LongWork<ExecutionRow> = {
  kind: 'playbook_execution',
  read: 'getPlaybookExecution',
  cancel: 'cancelPlaybookExecution',
  args: ({ id }) => ({ execution_id: id }),
  state: stateOfExecution,
}
