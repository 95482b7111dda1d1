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
import { followUpMessage } from './follow-up-message.ts'
import { type ApprovalRow, type ApprovedCallOutcome, approvalKind, type Execution } from './model.ts'
import { type ContinueMessage, continueQueue } from './queue.ts'
import { openFrozen } from './seal.ts'
import { type Continuation, followUpWork } from './store.ts'

/** Tries of the turn that carries on; the call is never one of them. */
const MAX_TRIES = 4
const FIRST_RETRY_MS = 1000

const ownLease = ({ config }: Services): Lease => leaseTimings(config.GENERATION_LEASE_SECONDS * 1000)

/**
 * Carries on after an approval: makes the call of an approved one, at most once, and starts the turn that tells the model.
 * A worker that is lost in between is followed by another, which goes on from what is on record.
 */
export async function processFollowUp(message: ContinueMessage, context: JobContext): Promise<void> {
  const { services } = context
  const taken = await services.write(tx => take(tx, services, message))
  if (!taken) return
  const { row, claim } = taken
  const work = () =>
    processClaim(context, {
      what: 'approval',
      ids: { approval_id: row.id, attempt_id: claim.id, project_id: row.project_id },
      attempts: followUpWork,
      claim,
      lease: ownLease(services),
      lock: tx => approvalKind.find(tx, row.id, true),
      work: hold => startFollowUpTurn(services, row, hold),
      fail: (error, failed) => retryOrEnd(services, row, failed, error),
    })
  await withTriggerChain(row.authority && triggerChainOf(row.authority), work)
}

async function take(
  tx: Tx,
  services: Services,
  message: ContinueMessage,
): Promise<{ row: ApprovalRow; claim: Continuation } | null> {
  const named = { entity: message.approval_id, id: message.attempt_id }
  const row = await approvalKind.find(tx, named.entity, true)
  if (!row) return null
  const claim = await claimOrReschedule(tx, followUpWork, named, ownLease(services), continueQueue, message)
  return claim === null || claim === 'held' ? null : { row, claim }
}

async function startFollowUpTurn(
  services: Services,
  row: ApprovalRow,
  hold: ActiveClaim<Continuation>,
): Promise<AttemptOutcome> {
  // The call of a client's tool is for the client to make.
  const clients = row.status === 'approved' && row.tool_type === 'client'
  const outcome = row.status === 'approved' && !clients ? await executeApproved(services, row, hold) : null
  try {
    const generation_id = await hold.write(async tx => {
      await hold.guard(tx)
      const turn = await startTurn(tx, services, row, outcome)
      await finish(tx, row, hold.claim, turn?.generation_id ?? null)
      return turn?.generation_id ?? null
    })
    const outcomeName = generation_id === null ? 'chain_limit' : 'continued'
    return { outcome: outcomeName, generation_id, call: outcome?.error?.code ?? null }
  } catch (error) {
    // The item stands; the model is not told.
    if (!(error instanceof AppError) || error.status >= 500) throw error
    await hold.write(async tx => {
      await hold.guard(tx)
      await finish(tx, row, hold.claim, null)
    })
    return { outcome: 'not_continued', error: error.recorded(), call: outcome?.error?.code ?? null }
  }
}

/** Nothing follows any more: what was frozen goes. */
async function finish(tx: Tx, { id }: ApprovalRow, claim: Continuation, generation_id: string | null): Promise<void> {
  const now = await approvalKind.lock(tx, id)
  const execution = now.execution && {
    ...(isHanded(now, generation_id) ? handed(now.execution) : ended(now.execution)),
    generation_id,
  }
  await approvalKind.update(tx, id, { sealed: null, execution })
  await followUpWork.end(tx, claim)
}

/** Whether a turn asks the client for the call. */
const isHanded = ({ tool_type, status }: ApprovalRow, generation_id: string | null): boolean =>
  tool_type === 'client' && status === 'approved' && generation_id !== null

const handed = (execution: Execution): Execution => ({
  ...execution,
  status: 'succeeded',
  finished_at: new Date().toISOString(),
})

/**
 * Starts the turn that tells the model; null where its chain has no room for it. Raises what refuses the turn:
 * AGENT_NOT_FOUND, PROJECT_PAUSED, SESSION_CLOSED.
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

/** Another try after what the database or a worker did; the end after the last one. */
async function retryOrEnd(
  services: Services,
  row: ApprovalRow,
  claim: Continuation,
  error: unknown,
): Promise<AttemptOutcome> {
  const last = claim.failures + 1 >= MAX_TRIES
  const delayMs = FIRST_RETRY_MS * 4 ** claim.failures
  services.log.error({ err: error, approval_id: row.id, last }, 'what follows from an approval failed')
  await services.write(async tx => {
    if (!(await approvalKind.find(tx, row.id, true))) return
    if (last) await finish(tx, row, claim, null)
    else if (await followUpWork.requeue(tx, claim, { delayMs, failed: true }))
      tx.send(
        continueQueue,
        { approval_id: row.id, attempt_id: claim.id, project_id: row.project_id },
        { startAfter: new Date(Date.now() + delayMs) },
      )
  })
  return last ? { outcome: 'given_up' } : { outcome: 'retry', next_ms: delayMs }
}

/** Gives up what too many workers were lost over. */
export const abandonFollowUp = (
  services: Services,
  approvalId: string,
  limits: { silenceMs: number; queueMs: number },
) =>
  services.write(async tx => {
    const row = await approvalKind.find(tx, approvalId, true)
    if (!row || !(await followUpWork.endStalled(tx, approvalId, limits))) return
    const execution = row.execution && ended(row.execution)
    await approvalKind.update(tx, approvalId, { sealed: null, execution })
  })

/** What became of a call when nobody goes on with it. */
const ended = (execution: Execution): Execution =>
  execution.finished_at
    ? execution
    : {
        ...execution,
        status: 'failed',
        error: { code: 'TOOL_CALL_FAILED', message: 'The call was given up', meta: { reason: 'outcome_unknown' } },
        finished_at: new Date().toISOString(),
      }
