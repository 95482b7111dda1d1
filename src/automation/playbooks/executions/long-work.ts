import {
  type AwaitedInput,
  type LongWork,
  longWorkResult,
  parseAsObject,
  type WorkState,
  type WorkView,
  workInProgress,
} from '#core/api/long-work.ts'
import type { Services } from '#core/base/services.ts'
import { pendingApproval } from '#execution/approvals/long-work.ts'
import { type ExecutionRow, executionKind, isExecutionTerminal, type StepRecord } from './model.ts'

/** Presents a manual step as a form. */
function stepInput(row: ExecutionRow, step: StepRecord): AwaitedInput {
  return {
    key: `step:${row.id}:${step.key}:${step.attempt}`,
    message: step.title,
    form: {
      type: 'object',
      properties: {
        note: { type: 'string', description: 'A note on the step', maxLength: 10_000 },
        result: { type: 'string', description: 'Result of the step: text, or a JSON object', maxLength: 65_536 },
      },
      required: [],
    },
    operation: 'completePlaybookStep',
    permission: { action: 'playbooks:CompleteStep', target: { kind: executionKind, row } },
    accepted: ({ note, result }) => ({
      args: {
        execution_id: row.id,
        step_key: step.key,
        ...(typeof note === 'string' && note !== '' ? { note } : {}),
        ...(result === undefined || result === '' ? {} : { result: parseAsObject(result) }),
      },
    }),
    declined: () => null,
  }
}

async function stateOfExecution({ services, record }: WorkView, row: ExecutionRow): Promise<WorkState> {
  if (row.status === 'cancelled') return { status: 'cancelled', message: 'Execution cancelled' }
  if (isExecutionTerminal(row))
    return {
      status: 'completed',
      message: `Execution ${row.status}`,
      result: longWorkResult(row.error, record),
    }
  const steps = (record.steps ?? []) as StepRecord[]
  const done = steps.filter(({ status }) => status === 'completed' || status === 'skipped').length
  return { ...(await activeState(services, row, steps)), progress: { done, total: steps.length } }
}

async function activeState(services: Services, row: ExecutionRow, steps: readonly StepRecord[]): Promise<WorkState> {
  if (row.pause_requested_at) return workInProgress('Execution is paused')
  const { waiting_on: waiting } = row
  if (waiting?.approval_id)
    return workInProgress(
      `Waiting for approval ${waiting.approval_id}`,
      await pendingApproval(services.pool, waiting.approval_id),
    )
  const message = `At step ${waiting?.step_key ?? row.current_step_key ?? 'none'}`
  const step = waiting?.type === 'manual' && steps.find(({ key }) => key === waiting.step_key)
  return workInProgress(message, step ? [stepInput(row, step)] : [])
}

export const executionWork: LongWork<ExecutionRow> = {
  kind: 'playbook_execution',
  read: 'getPlaybookExecution',
  cancel: 'cancelPlaybookExecution',
  args: id => ({ execution_id: id }),
  state: stateOfExecution,
}
