import { recordActivityInTx } from '#control/activity/record.ts'
import { recordUsage, recordUsageLater, type UsageDraft } from '#control/usage/meter.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { isDatabaseError, isTransient } from '#core/db/database-errors.ts'
import { sql } from '#core/db/sql.ts'
import type { WorkAttempt } from '#core/work/attempt.ts'
import { ClaimLostError } from '#core/work/handler.ts'
import { requireUnpaused } from '#identity/projects/pause.ts'
import { refusalToStart } from '../generations/loop/prepare-turn.ts'
import { callTool, openCall } from '../tools/call.ts'
import { lostCall } from '../tools/metering.ts'
import { type ApprovalRow, type ApprovedCallOutcome, approvalKind, type Execution } from './model.ts'
import { digestOf, openFrozen, openOutcome, sealOutcome } from './seal.ts'
import type { FollowUpColumns } from './store.ts'
import { approvedTool, isRepeatable } from './tool.ts'
import { approvedCaller, findApprovalAgent } from './verdict.ts'

/** Maximum number of result characters in the follow-up message. */
const MAX_RESULT_CHARS = 64 * 1024

const failure = (error: RecordedFailure): ApprovedCallOutcome => ({ text: null, digest: null, error })

const UNKNOWN = failure({
  code: 'TOOL_CALL_FAILED',
  message: 'The worker was lost during the call; whether the call was made is unknown',
  meta: { reason: 'outcome_unknown' },
})

type FollowUpAttempt = WorkAttempt<ApprovalRow, FollowUpColumns>

/**
 * Executes the call of an approved approval at most once and returns its outcome. The intent is stored before the call;
 * a call that may have been made is repeated only if its tool is idempotent or reads.
 */
export async function executeApproved(attempt: FollowUpAttempt): Promise<ApprovedCallOutcome> {
  const { services, entity: row, claim, signal } = attempt
  const known = openOutcome(services, row, claim.outcome)
  if (known) return known
  const used: UsageDraft[] = []
  try {
    const outcome = await call(attempt, used)
    // A call that was aborted because the claim was lost is not reported by this worker.
    signal.throwIfAborted()
    await injectFault(services, 'approval_called')
    await keepOutcome(attempt, outcome, used)
    await injectFault(services, 'approval_executed')
    return outcome
  } catch (error) {
    // The call was made; the idempotency key of the usage prevents a duplicate.
    recordUsageLater(services, used)
    throw error
  }
}

/** Stores the outcome of a call on the work and on the approval, with its usage. Raises ClaimLostError. */
const keepOutcome = (
  { services, entity: row, write, set }: FollowUpAttempt,
  outcome: ApprovedCallOutcome,
  used: readonly UsageDraft[],
): Promise<void> =>
  write(async tx => {
    await recordUsage(services, used, tx)
    await set(tx, sql.fragment`outcome = ${sealOutcome(services, row, outcome)}`)
    await approvalKind.update(tx, row.id, { execution: finishedExecution(services, row, outcome) })
    if (outcome.error) return
    const { proposed_action, project_id, orchestration_run_id, node_id, agent_id, generation_id } = row
    recordActivityInTx(tx, {
      project_id,
      kind: 'action_executed',
      summary: `${proposed_action?.tool_name} was called`,
      detail: {
        tool_id: proposed_action?.tool_id ?? null,
        tool_name: proposed_action?.tool_name,
        action: proposed_action?.action,
        ...(node_id !== null && { node_id }),
      },
      orchestration_run_id,
      agent_id,
      generation_id,
      ref_id: proposed_action?.tool_id ?? null,
    })
  })

/** Returns the execution shown on the approval. Without stored content, only the code of an error is kept. */
function finishedExecution(services: Services, row: ApprovalRow, { digest, error }: ApprovedCallOutcome): Execution {
  return {
    status: error ? 'failed' : 'succeeded',
    result_digest: digest,
    error: error && row.content_mode === 'none' ? { code: error.code, message: error.code } : error,
    generation_id: null,
    finished_at: services.clock.now().toISOString(),
  }
}

async function call(attempt: FollowUpAttempt, used: UsageDraft[]): Promise<ApprovedCallOutcome> {
  const { services, entity: row, claim, signal } = attempt
  try {
    const frozen = openFrozen(services, row)
    if (!frozen) throw new AppError('SECRET_NOT_DECRYPTABLE', { message: 'The stored call cannot be decrypted' })
    const tool = await approvedTool(services.pool, row)
    if (!tool) throw new AppError('TOOL_NOT_FOUND', { meta: { id: row.proposed_action?.tool_id ?? null } })
    const action = row.proposed_action?.action
    const metering = callMetering(row)
    if (claim.executing && !isRepeatable(tool, action)) {
      used.push(lostCall(tool, action ?? null, metering, frozen.arguments))
      return UNKNOWN
    }
    await requireUnpaused(services.pool, row.project_id)
    await requirePrincipal(services, row)
    await recordStart(attempt)
    await injectFault(services, 'approval_executing')
    const calling = openCall(services, {
      action: tool.type === 'platform' || tool.type === 'mcp' ? action : null,
      input: frozen.arguments,
      caller: async () => approvedCaller(services, row, await findApprovalAgent(services, row)),
      context: frozen.tool_context ?? undefined,
      idempotencyKey: row.id,
      metering: { ...metering, add: draft => void used.push(draft) },
      judged: true,
      signal,
    })
    const result = (await callTool(services, tool, calling)) ?? null
    return { text: truncateChars(JSON.stringify(result), MAX_RESULT_CHARS), digest: digestOf(result), error: null }
  } catch (error) {
    // The next attempt finds out from the record whether the call may have been made.
    if (signal.aborted || error instanceof ClaimLostError || isTransient(error)) throw error
    if (error instanceof AppError) return failure(error.recorded())
    services.log.error({ err: error, approval_id: row.id }, 'approved call failed')
    const isReportable = error instanceof Error && !isDatabaseError(error)
    return failure({ code: 'TOOL_CALL_FAILED', message: isReportable ? error.message : 'Call failed' })
  }
}

/** Returns the usage attribution of an approved call. */
const callMetering = ({ id, agent_id, generation_id, session_id, orchestration_run_id, node_id }: ApprovalRow) => ({
  source: 'approval' as const,
  record: id,
  agent_id,
  generation_id,
  session_id,
  orchestration_run_id,
  node_id,
})

/** Requires that the principal of the turn may still run it, with its current permissions. */
async function requirePrincipal(services: Services, row: ApprovalRow): Promise<void> {
  const { authority, permission, project_id, agent_id } = row
  if (authority === null) return
  if (await refusalToStart(services, { authority, permission, project_id, agent_id }))
    throw new AppError('FORBIDDEN', {
      message: 'The principal that started the turn may no longer run it',
      meta: { principal_id: authority.id },
    })
}

/** Records that the call is about to be made. */
const recordStart = ({ write, set, entity: row }: FollowUpAttempt): Promise<void> =>
  write(async tx => {
    await set(tx, sql.fragment`executing = true`)
    if (row.execution) await approvalKind.update(tx, row.id, { execution: { ...row.execution, status: 'running' } })
  })
