import {
  type AwaitedInput,
  type LongWork,
  longWorkResult,
  parsedText,
  underWay,
  type WorkState,
  type WorkView,
} from '../../core/api/long-work.ts'
import { truncateBytes } from '../../core/api/storable-text.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { type GenerationRow, generationKind } from '../generations/model.ts'
import { readTurnEnd } from '../generations/request/wait-for-turn.ts'
import { type ApprovalRow, approvalKind } from './model.ts'
import { approvalsOfGeneration } from './store.ts'

/** Bytes of arguments and contexts that a form shows. */
export const SHOWN_BYTES = 4096

const text = (description: string) => ({ type: 'string', description, maxLength: 65_536 })

/** The decision about an approval, as it is shown to a person. */
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
        decision: { type: 'string', enum: ['approve', 'reject'], description: 'What becomes of it' },
        reason: text('Why; the model is told'),
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

/** The decision about an approval that is still to be made. */
export async function pendingApproval(db: Queryable, id: string): Promise<AwaitedInput[]> {
  const approval = await approvalKind.find(db, id)
  return approval?.status === 'pending' ? [approvalInput(approval)] : []
}

type ToolCall = { tool_call_id: string; tool_name: string; args: unknown }

/** The outputs that a paused turn waits for, of all its calls together. */
export function outputsInput(row: GenerationRow): AwaitedInput {
  const calls = ((row.required_action as { tool_calls?: ToolCall[] } | null)?.tool_calls ?? []) as ToolCall[]
  const field = (index: number) => (calls.length === 1 ? 'output' : `output_${index + 1}`)
  const submitted = (outputs: (index: number) => unknown) => {
    const tool_outputs = calls.map(({ tool_call_id }, index) => ({ tool_call_id, output: outputs(index) ?? null }))
    const given = { tool_outputs, wait: false }
    return row.session_id === null
      ? { operation: 'submitAgentToolOutputs', args: { agent_id: row.agent_id, generation_id: row.id, ...given } }
      : { operation: 'submitSessionToolOutputs', args: { session_id: row.session_id, generation_id: row.id, ...given } }
  }
  const shown = calls.map(({ tool_name, args }) => `${tool_name} with ${JSON.stringify(args)}`).join('\n')
  const ofSession = row.session_id !== null
  return {
    key: `outputs:${row.id}:${row.step_count}`,
    message: `The agent calls ${truncateBytes(shown, SHOWN_BYTES)}`,
    form: {
      type: 'object',
      properties: Object.fromEntries(
        calls.map(({ tool_name }, index) => [field(index), text(`What ${tool_name} gave: text, or JSON of an object`)]),
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
    accepted: content => submitted(index => parsedText(content[field(index)])),
    declined: () => submitted(() => ({ error: 'declined' })),
  }
}

/** Turns that carry on from one another by approvals are followed no further. */
const FOLLOWED = 100

/** A turn, its approvals that are not decided, and the one whose call is made. */
type LastTurn = { turn: GenerationRow; pending: ApprovalRow[]; executing: string | null }

/** The turn that carries on last after approvals of a turn, with those of its approvals that are not settled. */
async function lastTurn(db: Queryable, first: GenerationRow): Promise<LastTurn> {
  let turn = first
  for (let followed = 0; followed < FOLLOWED; followed++) {
    const approvals = turn.status === 'completed' ? await approvalsOfGeneration(db, turn.id) : []
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

async function stateOfTurn({ services }: WorkView, row: GenerationRow): Promise<WorkState> {
  const { turn, pending, executing } = await lastTurn(services.pool, row)
  const state = await stateOfLast(services, { turn, pending, executing })
  return { ...state, updated_at: turn.last_activity_at ?? turn.updated_at }
}

async function stateOfLast(services: Services, { turn, pending, executing }: LastTurn): Promise<WorkState> {
  if (pending.length > 0)
    return underWay(`Waiting for approval ${pending.map(({ id }) => id).join(', ')}`, pending.map(approvalInput))
  if (executing) return underWay(`The approved call of ${executing} is made`)
  if (turn.status === 'requires_action')
    return underWay('Waiting for the results of client tools', [outputsInput(turn)])
  if (turn.status === 'pending' || turn.status === 'in_progress')
    return underWay(`The turn is ${turn.status.replace('_', ' ')}, step ${turn.step_count + 1}`)
  if (turn.stop_reason === 'cancelled') return { status: 'cancelled', message: 'The turn was cancelled' }
  const ended = await readTurnEnd(services, turn.id)
  return {
    status: 'completed',
    message: ended?.failure ? 'The turn failed' : 'The turn has completed',
    result: longWorkResult(ended?.failure, ended?.result ?? null),
  }
}

export const turnWork: LongWork<GenerationRow> = {
  kind: 'generation',
  read: 'getGeneration',
  cancel: 'cancelGeneration',
  args: id => ({ generation_id: id }),
  state: stateOfTurn,
}
