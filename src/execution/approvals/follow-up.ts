import { AppError } from '../../core/api/errors.ts'
import { withTriggerChain } from '../../core/db/trigger-chain.ts'
import type { Tx } from '../../core/db/writer.ts'
import { triggerChainOf } from '../../core/iam/caller.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import {
  type ActiveClaim,
  type AttemptOutcome,
  claimOrReschedule,
  type Lease,
  leaseTimings,
  processClaim,
} from '../../core/jobs/work-item.ts'
import type { Services } from '../../core/process/services.ts'
import { startContinuation } from '../chains/continuation.ts'
import { admitTurn } from '../generations/request/admission.ts'
import { mailboxHooks } from '../generations/request/cancel-turn.ts'
import { createTurn, type TurnInput, turnOrigin } from '../generations/request/create.ts'
import { createPausedTurn } from '../generations/request/create-paused.ts'
import { resolvedName } from '../tools/actions.ts'
import { executeApproved } from './execute.ts'
import { type ApprovalRow, type ApprovedCallOutcome, approvalKind, type Execution, type Frozen } from './model.ts'
import { type ContinueMessage, continueQueue } from './queue.ts'
import { openFrozen } from './seal.ts'
import { type Continuation, followUpWork } from './store.ts'

/** Attempts to start the follow-up turn; the call itself is never repeated by them. */
const MAX_ATTEMPTS = 4
const FIRST_RETRY_MS = 1000

const ownLease = ({ config }: Services): Lease => leaseTimings(config.GENERATION_LEASE_SECONDS * 1000)

/**
 * Makes an approved call at most once and starts the turn that reports the decision to the model. After a lost worker
 * the next attempt resumes from the stored state.
 */
export async function processFollowUp(message: ContinueMessage, context: JobContext): Promise<void> {
  const { services } = context
  const claimed = await services.write(tx => claimFollowUp(tx, services, message))
  if (!claimed) return
  const { row, claim } = claimed
  const work = () =>
    processClaim(context, {
      what: 'approval',
      ids: { approval_id: row.id, attempt_id: claim.id, project_id: row.project_id },
      attempts: followUpWork,
      claim,
      lease: ownLease(services),
      lock: tx => approvalKind.find(tx, row.id, true),
      work: lease => startFollowUpTurn(services, row, lease),
      fail: (error, failed) => retryOrAbandon(services, row, failed, error),
    })
  await withTriggerChain(row.authority && triggerChainOf(row.authority), work)
}

async function claimFollowUp(
  tx: Tx,
  services: Services,
  message: ContinueMessage,
): Promise<{ row: ApprovalRow; claim: Continuation } | null> {
  const ref = { entity: message.approval_id, id: message.attempt_id }
  const row = await approvalKind.find(tx, ref.entity, true)
  if (!row) return null
  const claim = await claimOrReschedule(tx, followUpWork, ref, ownLease(services), continueQueue, message)
  return claim === null || claim === 'held' ? null : { row, claim }
}

async function startFollowUpTurn(
  services: Services,
  row: ApprovalRow,
  lease: ActiveClaim<Continuation>,
): Promise<AttemptOutcome> {
  // The client makes the call of a client tool.
  const isClientCall = row.status === 'approved' && row.tool_type === 'client'
  const outcome = row.status === 'approved' && !isClientCall ? await executeApproved(services, row, lease) : null
  try {
    const generation_id = await lease.write(async tx => {
      await lease.guard(tx)
      const turn = await startTurn(tx, services, row, outcome)
      await completeFollowUp(tx, row, lease.claim, turn?.generation_id ?? null)
      return turn?.generation_id ?? null
    })
    const outcomeName = generation_id === null ? 'chain_limit' : 'continued'
    return { outcome: outcomeName, generation_id, call: outcome?.error?.code ?? null }
  } catch (error) {
    // The decision remains; the turn was refused, so the model gets no report.
    if (!(error instanceof AppError) || error.status >= 500) throw error
    await lease.write(async tx => {
      await lease.guard(tx)
      await completeFollowUp(tx, row, lease.claim, null)
    })
    return { outcome: 'not_continued', error: error.recorded(), call: outcome?.error?.code ?? null }
  }
}

/** Settles the follow-up and erases the sealed call. */
async function completeFollowUp(
  tx: Tx,
  { id }: ApprovalRow,
  claim: Continuation,
  generation_id: string | null,
): Promise<void> {
  const now = await approvalKind.lock(tx, id)
  const execution = now.execution && {
    ...(isHandedToClient(now, generation_id) ? handedToClient(now.execution) : abandonedExecution(now.execution)),
    generation_id,
  }
  await approvalKind.update(tx, id, { sealed: null, execution })
  await followUpWork.end(tx, claim)
}

/** Whether the follow-up turn requests the call from the client. */
const isHandedToClient = ({ tool_type, status }: ApprovalRow, generation_id: string | null): boolean =>
  tool_type === 'client' && status === 'approved' && generation_id !== null

const handedToClient = (execution: Execution): Execution => ({
  ...execution,
  status: 'succeeded',
  finished_at: new Date().toISOString(),
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
  const { proposed_action, status, resolution_reason, id } = row
  const called = proposed_action?.action ?? proposed_action?.tool_name ?? 'a tool'
  const lines = [`The call of ${called} that waited for approval (${id}) was ${STATUS_TEXT[status]}.`]
  if (frozen) lines.push(`Arguments: ${JSON.stringify(frozen.arguments)}`)
  if (row.edited_arguments) lines.push('The approver changed the arguments.')
  if (resolution_reason !== null) lines.push(`Reason: ${resolution_reason}`)
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

/** Reschedules the follow-up after a failure, or settles it after the last attempt. */
async function retryOrAbandon(
  services: Services,
  row: ApprovalRow,
  claim: Continuation,
  error: unknown,
): Promise<AttemptOutcome> {
  const last = claim.failures + 1 >= MAX_ATTEMPTS
  const delayMs = FIRST_RETRY_MS * 4 ** claim.failures
  services.log.error({ err: error, approval_id: row.id, last }, 'approval follow-up failed')
  await services.write(async tx => {
    if (!(await approvalKind.find(tx, row.id, true))) return
    if (last) await completeFollowUp(tx, row, claim, null)
    else if (await followUpWork.requeue(tx, claim, { delayMs, failed: true }))
      tx.send(
        continueQueue,
        { approval_id: row.id, attempt_id: claim.id, project_id: row.project_id },
        { startAfter: new Date(Date.now() + delayMs) },
      )
  })
  return last ? { outcome: 'abandoned' } : { outcome: 'retry', next_ms: delayMs }
}

/** Abandons a follow-up after too many lost workers. */
export const abandonFollowUp = (
  services: Services,
  approvalId: string,
  limits: { silenceMs: number; queueMs: number },
) =>
  services.write(async tx => {
    const row = await approvalKind.find(tx, approvalId, true)
    if (!row || !(await followUpWork.endStalled(tx, approvalId, limits))) return
    const execution = row.execution && abandonedExecution(row.execution)
    await approvalKind.update(tx, approvalId, { sealed: null, execution })
  })

/** Returns the execution of a call whose follow-up was abandoned. */
const abandonedExecution = (execution: Execution): Execution =>
  execution.finished_at
    ? execution
    : {
        ...execution,
        status: 'failed',
        error: { code: 'TOOL_CALL_FAILED', message: 'The call was abandoned', meta: { reason: 'outcome_unknown' } },
        finished_at: new Date().toISOString(),
      }
