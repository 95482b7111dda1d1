import {
  type AwaitedInput,
  type LongWork,
  longWorkResult,
  parseIfObject,
  type WorkState,
  type WorkView,
  workInProgress,
} from '#core/api/long-work.ts'
import type { Services } from '#core/base/services.ts'
import { truncateBytes } from '#core/base/storable-text.ts'
import type { Queryable } from '#core/db/sql.ts'
import { type GenerationRow, generationKind } from '../generations/model.ts'
import { readTurnEnd } from '../generations/request/wait-for-turn.ts'
import { type ApprovalRow, approvalKind } from './model.ts'
import { listTurnApprovals } from './store.ts'

/** Maximum number of argument and context bytes shown in a form. */
export const SHOWN_BYTES = 4096

const text = (description: string) => ({ type: 'string', description, maxLength: 65_536 })

/** Returns the input request for a pending approval. */
function approvalInput(row: ApprovalRow): AwaitedInput {
  const { proposed_action: proposed, reasoning } = approvalKind.present(row) as ApprovalRow
  const shown = proposed ? `${proposed.tool_name} with ${JSON.stringify(proposed.arguments)}` : 'a step of a run'
  const args = { approval_id: row.id }
  const rejected = (reason: string) => ({ operation: 'rejectApproval', args: { ...args, reason } })
  return {
    key: `approval:${row.id}`,
    message: `Approve ${truncateBytes(shown, SHOWN_BYTES)}${reasoning ? `\n${truncateBytes(reasoning, SHOWN_BYTES)}` : ''}`,
    form: {
      type: 'object',
      properties: {
        decision: { type: 'string', enum: ['approve', 'reject'], description: 'Decision on the proposed call' },
        reason: text('Reason; reported to the model'),
      },
      required: ['decision'],
    },
    operation: 'approveApproval',
    permission: { action: 'approvals:ResolveApproval', target: { kind: approvalKind, row } },
    accepted: ({ decision, reason }) =>
      decision === 'approve' ? { args } : rejected(typeof reason === 'string' && reason.trim() ? reason : 'rejected'),
    declined: () => rejected('declined'),
  }
}

/** Returns the input request of an approval, or none once it is resolved. */
export async function pendingApproval(db: Queryable, id: string): Promise<AwaitedInput[]> {
  const approval = await approvalKind.find(db, id)
  return approval?.status === 'pending' ? [approvalInput(approval)] : []
}

type ToolCall = { tool_call_id: string; tool_name: string; args: unknown }

/** Returns the input request for all client tool outputs that a paused turn awaits. */
export function outputsInput(row: GenerationRow): AwaitedInput {
  const calls = ((row.required_action as { tool_calls?: ToolCall[] } | null)?.tool_calls ?? []) as ToolCall[]
  const field = (index: number) => (calls.length === 1 ? 'output' : `output_${index + 1}`)
  const submitted = (outputs: (index: number) => unknown) => {
    const tool_outputs = calls.map(({ tool_call_id }, index) => ({ tool_call_id, output: outputs(index) ?? null }))
    const body = { tool_outputs, wait: false }
    return row.session_id === null
      ? { operation: 'submitAgentToolOutputs', args: { agent_id: row.agent_id, generation_id: row.id, ...body } }
      : { operation: 'submitSessionToolOutputs', args: { session_id: row.session_id, generation_id: row.id, ...body } }
  }
  const shown = calls.map(({ tool_name, args }) => `${tool_name} with ${JSON.stringify(args)}`).join('\n')
  const ofSession = row.session_id !== null
  return {
    key: `outputs:${row.id}:${row.step_count}`,
    message: `The agent calls ${truncateBytes(shown, SHOWN_BYTES)}`,
    form: {
      type: 'object',
      properties: Object.fromEntries(
        calls.map(({ tool_name }, index) => [field(index), text(`Output of ${tool_name}: text or a JSON object`)]),
      ),
      required: calls.map((_, index) => field(index)),
    },
    operation: ofSession ? 'submitSessionToolOutputs' : 'submitAgentToolOutputs',
    permission: {
      action: ofSession ? 'sessions:SubmitSessionToolOutputs' : 'agents:CreateAgentGeneration',
      target: ofSession
        ? { kind: { ...generationKind, authorize: () => ({ type: 'session', id: row.session_id as string }) }, row }
        : { kind: { ...generationKind, authorize: () => ({ type: 'agent', id: row.agent_id }) }, row },
    },
    accepted: content => submitted(index => parseIfObject(content[field(index)])),
    declined: () => submitted(() => ({ error: 'declined' })),
  }
}

/** Maximum number of follow-up turns that are followed. */
const MAX_FOLLOW_UPS = 100

/** Latest follow-up turn, its pending approvals, and the approval whose call is being made. */
type LastTurn = { turn: GenerationRow; pending: ApprovalRow[]; executing: string | null }

/** Returns the latest follow-up turn after approvals of a turn, with its unsettled approvals. */
async function lastTurn(db: Queryable, first: GenerationRow): Promise<LastTurn> {
  let turn = first
  for (let followed = 0; followed < MAX_FOLLOW_UPS; followed++) {
    const approvals = turn.status === 'completed' ? await listTurnApprovals(db, turn.id) : []
    const pending = approvals.filter(({ status }) => status === 'pending')
    if (pending.length > 0) return { turn, pending, executing: null }
    const executions = approvals.flatMap(({ id, execution }) => (execution ? [{ id, execution }] : []))
    const open = executions.find(({ execution }) => ['pending', 'running'].includes(execution.status))
    if (open) return { turn, pending: [], executing: open.id }
    const next = executions.map(({ execution }) => execution.generation_id).findLast(id => id !== null)
    const found = next ? await generationKind.find(db, next) : null
    if (!found || found.id === turn.id) break
    turn = found
  }
  return { turn, pending: [], executing: null }
}

async function turnState({ services }: WorkView, row: GenerationRow): Promise<WorkState> {
  const { turn, pending, executing } = await lastTurn(services.pool, row)
  const state = await lastTurnState(services, { turn, pending, executing })
  return { ...state, updated_at: turn.last_activity_at ?? turn.updated_at }
}

async function lastTurnState(services: Services, { turn, pending, executing }: LastTurn): Promise<WorkState> {
  if (pending.length > 0)
    return workInProgress(`Waiting for approval ${pending.map(({ id }) => id).join(', ')}`, pending.map(approvalInput))
  if (executing) return workInProgress(`Executing the approved call of ${executing}`)
  if (turn.status === 'requires_action')
    return workInProgress('Waiting for the results of client tools', [outputsInput(turn)])
  if (turn.status === 'pending' || turn.status === 'in_progress')
    return workInProgress(`The turn is ${turn.status.replace('_', ' ')}, step ${turn.step_count + 1}`)
  if (turn.stop_reason === 'cancelled') return { status: 'cancelled', message: 'The turn was cancelled' }
  const ended = await readTurnEnd(services, turn.id)
  return {
    status: 'completed',
    message: ended?.failure ? 'The turn failed' : 'The turn completed',
    result: longWorkResult(ended?.failure, ended?.result ?? null),
  }
}

export const turnWork: LongWork<GenerationRow> = {
  kind: 'generation',
  read: 'getGeneration',
  cancel: 'cancelGeneration',
  args: id => ({ generation_id: id }),
  state: turnState,
}
