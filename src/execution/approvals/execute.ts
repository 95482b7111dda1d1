import { recordActivityInTx } from '../../control/activity/record.ts'
import { recordUsage, recordUsageLater, type UsageDraft } from '../../control/usage/meter.ts'
import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import { isDatabaseError, isTransient } from '../../core/db/database-errors.ts'
import { sql } from '../../core/db/sql.ts'
import { type ActiveClaim, ClaimLostError } from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { requireUnpaused } from '../../identity/projects/pause.ts'
import { refusalToStart } from '../generations/loop/prepare-turn.ts'
import { callTool, openCall } from '../tools/call.ts'
import { lostCall } from '../tools/metering.ts'
import { type ApprovalRow, type ApprovedCallOutcome, approvalKind, type Execution } from './model.ts'
import { digestOf, openFrozen, openOutcome, sealOutcome } from './seal.ts'
import { type Continuation, followUpWork } from './store.ts'
import { approvedTool, isRepeatable } from './tool.ts'
import { agentOf, callerOf } from './verdict.ts'

/** Characters of a result that the model is told. */
const MAX_TOLD = 64 * 1024

const failure = (error: RecordedFailure): ApprovedCallOutcome => ({ text: null, digest: null, error })

const UNKNOWN = failure({
  code: 'TOOL_CALL_FAILED',
  message: 'The worker that made the call was lost; whether the call was made is not known',
  meta: { reason: 'outcome_unknown' },
})

/**
 * The outcome of the call of an approved item, which is made at most once: that it is about to be made is on record before
 * it is, and a call that may have been made is repeated only where its tool allows that.
 */
export async function executeApproved(
  services: Services,
  row: ApprovalRow,
  hold: ActiveClaim<Continuation>,
): Promise<ApprovedCallOutcome> {
  const known = openOutcome(services, row, hold.claim.outcome)
  if (known) return known
  const used: UsageDraft[] = []
  try {
    const outcome = await call(services, row, hold, used)
    // A call that was cut off because another worker took over is not this worker's to report.
    hold.signal.throwIfAborted()
    await injectFault(services, 'approval_called')
    await keepOutcome(services, row, hold, outcome, used)
    await injectFault(services, 'approval_executed')
    return outcome
  } catch (error) {
    // Made all the same; under its key it is written once.
    recordUsageLater(services, used)
    throw error
  }
}

/** Keeps the outcome of a call on its attempt and its item, with its usage. Raises Superseded. */
const keepOutcome = (
  services: Services,
  row: ApprovalRow,
  hold: ActiveClaim<Continuation>,
  outcome: ApprovedCallOutcome,
  used: readonly UsageDraft[],
): Promise<void> =>
  hold.write(async tx => {
    await hold.guard(tx)
    await recordUsage(services, used, tx)
    const sealed = sealOutcome(services, row, outcome)
    if (!(await followUpWork.set(tx, hold.claim, sql.fragment`outcome = ${sealed}`))) throw new ClaimLostError()
    await approvalKind.update(tx, row.id, { execution: finished(services, row, outcome) })
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

/** What the item shows of a call; where no content is kept, of an error no more than its code. */
function finished(services: Services, row: ApprovalRow, { digest, error }: ApprovedCallOutcome): Execution {
  return {
    status: error ? 'failed' : 'succeeded',
    result_digest: digest,
    error: error && row.content_mode === 'none' ? { code: error.code, message: error.code } : error,
    generation_id: null,
    finished_at: services.clock.now().toISOString(),
  }
}

async function call(
  services: Services,
  row: ApprovalRow,
  hold: ActiveClaim<Continuation>,
  used: UsageDraft[],
): Promise<ApprovedCallOutcome> {
  try {
    const frozen = openFrozen(services, row)
    if (!frozen) throw new AppError('SECRET_NOT_DECRYPTABLE', { message: 'The frozen call cannot be decrypted' })
    const tool = await approvedTool(services.pool, row)
    if (!tool) throw new AppError('TOOL_NOT_FOUND', { meta: { id: row.proposed_action?.tool_id ?? null } })
    const action = row.proposed_action?.action
    const metering = meteringOf(row)
    if (hold.claim.executing && !isRepeatable(tool, action)) {
      used.push(lostCall(tool, action ?? null, metering, frozen.arguments))
      return UNKNOWN
    }
    await requireUnpaused(services.pool, row.project_id)
    await requirePrincipal(services, row)
    await begin(row, hold)
    await injectFault(services, 'approval_executing')
    const calling = openCall(services, {
      action: tool.type === 'platform' || tool.type === 'mcp' ? action : null,
      input: frozen.arguments,
      caller: async () => callerOf(services, row, await agentOf(services, row)),
      context: frozen.tool_context ?? undefined,
      idempotencyKey: row.id,
      metering: { ...metering, add: draft => void used.push(draft) },
      judged: true,
      signal: hold.signal,
    })
    const result = (await callTool(services, tool, calling)) ?? null
    return { text: truncateChars(JSON.stringify(result), MAX_TOLD), digest: digestOf(result), error: null }
  } catch (error) {
    // The next attempt finds out from the record whether the call may have been made.
    if (hold.signal.aborted || error instanceof ClaimLostError || isTransient(error)) throw error
    if (error instanceof AppError) return failure(error.recorded())
    services.log.error({ err: error, approval_id: row.id }, 'approved call failed')
    const told = error instanceof Error && !isDatabaseError(error)
    return failure({ code: 'TOOL_CALL_FAILED', message: told ? error.message : 'The call could not be made' })
  }
}

/** Whom the call of an item is metered to. */
export const meteringOf = ({
  id,
  agent_id,
  generation_id,
  session_id,
  orchestration_run_id,
  node_id,
}: ApprovalRow) => ({
  source: 'approval' as const,
  record: id,
  agent_id,
  generation_id,
  session_id,
  orchestration_run_id,
  node_id,
})

/** The call is made as whoever the turn ran as, with the rights of this moment. */
async function requirePrincipal(services: Services, row: ApprovalRow): Promise<void> {
  const { authority, permission, project_id, agent_id } = row
  if (authority === null) return
  if (await refusalToStart(services, { authority, permission, project_id, agent_id }))
    throw new AppError('FORBIDDEN', {
      message: 'Whoever started the turn may no longer run it',
      meta: { principal_id: authority.id },
    })
}

/** Puts on record that the call is about to be made. */
const begin = (row: ApprovalRow, hold: ActiveClaim<Continuation>): Promise<void> =>
  hold.write(async tx => {
    await hold.guard(tx)
    if (!(await followUpWork.set(tx, hold.claim, sql.fragment`executing = true`))) throw new ClaimLostError()
    if (row.execution) await approvalKind.update(tx, row.id, { execution: { ...row.execution, status: 'running' } })
  })
