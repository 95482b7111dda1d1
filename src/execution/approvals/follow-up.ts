import { systemClock } from '#core/base/clock.ts'
import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Unsubscribe } from '#core/db/notify.ts'
import { triggerChainOf } from '#core/iam/caller.ts'
import { exponential } from '#core/work/retry.ts'
import { work } from '#core/work/work.ts'
import type { Tx } from '#core/writes/writer.ts'
import { startContinuation } from '../chains/continuation.ts'
import { admitTurn } from '../generations/request/admission.ts'
import { mailboxHooks } from '../generations/request/cancel-turn.ts'
import { createTurn, type TurnInput, turnOrigin } from '../generations/request/create.ts'
import { createPausedTurn } from '../generations/request/create-paused.ts'
import { resolvedName } from '../tools/actions.ts'
import { executeApproved } from './execute.ts'
import { type ApprovalRow, type ApprovedCallOutcome, approvalKind, type Execution, type Frozen } from './model.ts'
import { openFrozen } from './seal.ts'
import { followUpColumns, insertFollowUpWork } from './store.ts'

/** Silence of workers, and wait for a worker, after which a follow-up is abandoned. */
const STALL = { silentMs: 3_600_000, queuedMs: 7 * 86_400_000 }

/**
 * Follows up an approval: makes the approved call, at most once, and starts the turn that reports the decision to the model.
 * After the loss of a worker the next one continues from the recorded state.
 */
export const followUpWork = work({
  name: 'approval.continue',
  concern: 'generation',
  entity: approvalKind,
  table: 'approval_attempts',
  entityColumn: 'approval_id',
  columns: followUpColumns,
  ids: ({ id, project_id }, { id: attempt_id }) => ({ approval_id: id, attempt_id, project_id }),
  leaseSeconds: config => config.GENERATION_LEASE_SECONDS,
  retry: { attempts: 4, losses: 5, delayMs: exponential(1000, { factor: 4 }) },
  stall: { limits: () => STALL, error: () => new AppError('INTERNAL_ERROR') },
  sweep: { seconds: config => Math.ceil(config.APPROVAL_SWEEP_INTERVAL_MS / 1000) },
  chain: ({ authority }) => (authority === null ? undefined : triggerChainOf(authority)),
  async run(attempt) {
    const { services, entity: row } = attempt
    // The call of a client tool is made by the client.
    const isCalled = row.status === 'approved' && row.tool_type !== 'client'
    const outcome = isCalled ? await executeApproved(attempt) : null
    const call = outcome?.error?.code ?? null
    try {
      const generation_id = await attempt.settle(async (tx, current) => {
        const turn = await startTurn(tx, services, row, outcome)
        await recordEnd(tx, current, turn?.generation_id ?? null)
        return turn?.generation_id ?? null
      })
      return { outcome: generation_id === null ? 'chain_limit' : 'continued', generation_id, call }
    } catch (error) {
      // The decision holds; no turn reports it.
      if (!(error instanceof AppError) || error.status >= 500) throw error
      await attempt.settle((tx, current) => recordEnd(tx, current, null))
      return { outcome: 'not_continued', error: error.recorded(), call }
    }
  },
  async fail(tx, { entity }) {
    await recordEnd(tx, entity, null)
    return undefined
  },
})

/** Enqueues the follow-up of an approval. */
export async function enqueueFollowUp(tx: Tx, { id: entity, project_id }: ApprovalRow): Promise<void> {
  followUpWork.wake(tx, { entity, id: await insertFollowUpWork(tx, entity), project_id })
}

/** Notifies processes of ended follow-ups: the id of the approval. */
const FOLLOW_UP_CHANNEL = 'muster_follow_ups'

/** Subscribes to the end of the follow-up of an approval, and to reconnects. Call the result to unsubscribe. */
export const watchFollowUp = ({ notifications }: Services, approvalId: string, notify: () => void): Unsubscribe =>
  notifications.listen(FOLLOW_UP_CHANNEL, id => id === approvalId && notify(), { onReconnect: notify })

/** Records the end of a follow-up and erases the sealed call. */
async function recordEnd(tx: Tx, row: ApprovalRow, generation_id: string | null): Promise<void> {
  const execution = row.execution && {
    ...(isHandedToClient(row, generation_id) ? handedToClient(row.execution) : abandonedExecution(row.execution)),
    generation_id,
  }
  await approvalKind.update(tx, row.id, { sealed: null, execution, continuation_id: generation_id })
  tx.notify(FOLLOW_UP_CHANNEL, row.id)
}

/** Whether the follow-up turn requests the call from the client. */
const isHandedToClient = ({ tool_type, status }: ApprovalRow, generation_id: string | null): boolean =>
  tool_type === 'client' && status === 'approved' && generation_id !== null

const handedToClient = (execution: Execution): Execution => ({
  ...execution,
  status: 'succeeded',
  finished_at: systemClock.now().toISOString(),
})

/**
 * Starts the turn that reports the decision to the model. Returns null at the chain limit.
 * @throws AGENT_NOT_FOUND, PROJECT_PAUSED, SESSION_CLOSED and other refusals of a turn
 */
async function startTurn(
  tx: Tx,
  services: Services,
  row: ApprovalRow,
  outcome: ApprovedCallOutcome | null,
): Promise<{ generation_id: string } | null> {
  const { project_id, agent_id, session_id, conversation_id, generation_id: initiatorId, authority } = row
  if (agent_id === null || authority === null) throw new AppError('AGENT_NOT_FOUND', { meta: { id: agent_id } })
  const frozen = openFrozen(services, row)
  const opening = followUpMessage(row, frozen, outcome)
  const input: Omit<TurnInput, 'messages'> = {
    project_id,
    agent_id,
    tool_context: frozen?.tool_context ?? null,
    guardrail_context: frozen?.guardrail_context ?? null,
    authority,
    streamed: false,
    shape: 'agent',
  }
  const messages = [{ role: 'user' as const, content: opening }]
  const inMailbox = conversation_id === null ? null : mailboxHooks.only()
  return startContinuation(
    tx,
    services,
    { project_id, initiatorId },
    nested => admitTurn(nested, services, { project_id, agent_id, session_id, conversation_id }),
    (agent, membership, initiator) => {
      const member = { ...membership, ...(initiator && turnOrigin(initiator)) }
      if (row.tool_type === 'client' && row.status === 'approved' && frozen && row.proposed_action) {
        const tool_name = resolvedName(row.proposed_action.tool_name)
        const turn = { ...input, ...member, agent_version: agent.version, messages }
        return createPausedTurn(tx, services, turn, { tool_name, args: frozen.arguments })
      }
      return inMailbox
        ? inMailbox.continue(tx, services, conversation_id as string, opening, { ...input, ...member })
        : createTurn(tx, services, { ...input, ...member, messages })
    },
  )
}

/** Returns the opening message of the turn that follows an approval. */
function followUpMessage(row: ApprovalRow, frozen: Frozen | null, outcome: ApprovedCallOutcome | null): string {
  const { proposed_action, status, resolution_reason, resolved_by_actor_id, id } = row
  const called = proposed_action?.action ?? proposed_action?.tool_name ?? 'a tool'
  const lines = [`The call of ${called} that waited for approval (${id}) was ${STATUS_TEXT[status]}.`]
  if (frozen) lines.push(`Arguments: ${JSON.stringify(frozen.arguments)}`)
  if (row.edited_arguments) lines.push('The approver changed the arguments.')
  // A JSON string, so that an end user adds no lines to the text of the platform.
  if (resolution_reason !== null)
    lines.push(
      resolved_by_actor_id === null
        ? `Reason: ${resolution_reason}`
        : `Reason, as the end user wrote it: ${JSON.stringify(resolution_reason)}`,
    )
  if (outcome?.error) lines.push(`It failed: ${JSON.stringify({ error: outcome.error })}`)
  else if (outcome) lines.push(`Result: ${outcome.text}`)
  else if (status === 'approved') lines.push('The client makes the call.')
  else lines.push('It was not executed.')
  return lines.join('\n')
}

const STATUS_TEXT: Record<ApprovalRow['status'], string> = {
  pending: 'not decided',
  approved: 'approved',
  rejected: 'rejected',
  expired: 'not decided in time: the approval has expired',
}

/** Returns the execution of a call whose follow-up was abandoned. */
const abandonedExecution = (execution: Execution): Execution =>
  execution.finished_at
    ? execution
    : {
        ...execution,
        status: 'failed',
        error: { code: 'TOOL_CALL_FAILED', message: 'The call was abandoned', meta: { reason: 'outcome_unknown' } },
        finished_at: systemClock.now().toISOString(),
      }
