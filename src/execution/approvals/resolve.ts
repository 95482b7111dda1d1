import { recordActivityInTx } from '#control/activity/record.ts'
import { requirePerson } from '#core/api/access.ts'
import type { Context } from '#core/api/operation.ts'
import { AppError, type Problem, problemsText, raise, raiseInvalid } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { storableText } from '#core/base/storable-text.ts'
import { lenientSchema, SchemaError, schemaChecks } from '#core/json-schema/checks.ts'
import { wireProblems } from '#core/json-schema/problems.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import type { Callable } from '../tools/call-types.ts'
import { expireDue } from './expire.ts'
import { enqueueFollowUp } from './follow-up.ts'
import {
  type ApprovalRow,
  approvalEffects,
  approvalKind,
  approvalWaiters,
  type Execution,
  proposalOf,
  storableApproval,
} from './model.ts'
import { openFrozen, sealFrozen } from './seal.ts'
import { resolvePending } from './store.ts'
import { approvedArgumentsSchema, approvedTool } from './tool.ts'
import { evaluateEdit } from './verdict.ts'

export const RESOLVE_ACTION = 'approvals:ResolveApproval'

export type ApprovalDecision = {
  status: 'approved' | 'rejected'
  reason: string | null
  edited: Record<string, unknown> | null
}

const MAX_REASON = 10_000

/**
 * Returns the reason of a decision.
 * @throws APPROVAL_REASON_REQUIRED for a rejection without one
 */
export function decisionReason(status: ApprovalDecision['status'], value: unknown): string | null {
  const reason = typeof value === 'string' ? storableText(value.trim()) : ''
  if (reason.length > MAX_REASON)
    raiseInvalid({ code: 'TOO_BIG', path: 'reason', message: `must have at most ${MAX_REASON} characters` })
  if (status === 'rejected' && reason === '') raise('APPROVAL_REASON_REQUIRED')
  return reason === '' ? null : reason
}

/**
 * Validates edited arguments against the schema of the tool, including its presets, and against the guardrails: a
 * person's decision replaces a required approval but never overrides a denial.
 * @throws APPROVAL_INVALID_EDIT with `meta.problems`, FORBIDDEN with `meta.verdict`
 */
export async function requireEdit(
  { services, caller }: Pick<Context, 'services' | 'caller'>,
  row: ApprovalRow,
  value: unknown,
): Promise<Record<string, unknown>> {
  const refuse = (problems: Problem[]): never =>
    raise('APPROVAL_INVALID_EDIT', { message: problemsText(problems), meta: { problems } })
  const refuseArguments = (message: string) => refuse([{ code: 'INVALID_TYPE', path: 'arguments', message }])
  if (!isObject(value)) return refuseArguments('must be an object')
  if (!row.proposed_action) return refuseArguments('cannot be set: the approval is not about a tool call')
  const tool = await approvedTool(services.pool, row)
  if (!tool) return value
  await requireArguments(services, row, tool, value, refuse)
  // A resolved approval is refused for its status, not for its arguments.
  if (row.status === 'pending') await requireAllowedEdit({ services, caller }, row, tool, value)
  return value
}

async function requireArguments(
  services: Services,
  row: ApprovalRow,
  tool: Callable,
  value: Record<string, unknown>,
  refuse: (problems: Problem[]) => never,
): Promise<void> {
  const schema = approvedArgumentsSchema(tool, row.proposed_action?.action)
  if (!schema) return
  try {
    const input = { ...value, ...tool.preset_parameters }
    const [problems] = await schemaChecks(services).problems(lenientSchema(row.project_id, schema), [input])
    if (problems.length > 0) refuse(wireProblems(problems, 'arguments'))
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    refuse([{ code: 'INVALID_VALUE', path: 'parameters', message: error.message }])
  }
}

/** Raises FORBIDDEN for edited arguments that the guardrails deny or that the caller may not approve. */
async function requireAllowedEdit(
  { services, caller }: Pick<Context, 'services' | 'caller'>,
  row: ApprovalRow,
  tool: Callable,
  value: Record<string, unknown>,
): Promise<void> {
  const verdict = await evaluateEdit(services, row, tool, value)
  if (!verdict || verdict.decision === 'execute') return
  if (verdict.decision === 'route_to_approval') {
    if (verdict.forbid_self_approval) requireOther(caller, row)
    return
  }
  raise('FORBIDDEN', { message: verdict.reason, meta: { action: RESOLVE_ACTION, verdict: verdict.decision } })
}

/**
 * Resolves an approval with its follow-up in one transaction. Of concurrent decisions, the first wins.
 * @param record writes the response with the transaction
 * @throws FORBIDDEN for background work, end users and starters of the chain (requireResolver);
 *   APPROVAL_EXPIRED, APPROVAL_ALREADY_RESOLVED
 */
export async function resolveApproval(
  context: Pick<Context, 'services' | 'caller'>,
  row: ApprovalRow,
  decision: ApprovalDecision,
  record: (outbox: Outbox, resolved: ApprovalRow) => void,
): Promise<ApprovalRow> {
  const { services } = context
  const resolved = await services.write(async tx => {
    const found = await resolveWithin(tx, context, row, decision)
    if (found) record(tx, found)
    return found
  })
  return resolved ?? refuseResolved(services, row.id, decision.status)
}

/**
 * Resolves an approval with its follow-up within a transaction. Returns null if it is no longer pending.
 * @throws FORBIDDEN (requireResolver)
 */
export async function resolveWithin(
  tx: Tx,
  { services, caller }: Pick<Context, 'services' | 'caller'>,
  row: ApprovalRow,
  { status, reason, edited }: ApprovalDecision,
): Promise<ApprovalRow | null> {
  requireResolver(caller, row)
  const effect = approvalEffects.all().find(({ applies }) => applies(row))
  await effect?.lock(tx, row)
  const hasCall = status === 'approved' && row.origin === 'tool_call'
  const found = await resolvePending(tx, row.id, {
    status,
    resolved_by: caller.end_user ? null : caller.user.id,
    resolved_by_actor_id: caller.end_user?.actor_id ?? null,
    reason,
    edited,
    sealed: row.origin === 'node' && status === 'rejected' ? null : sealedCallAfter(services, row, edited),
    execution: hasCall ? PENDING_EXECUTION : null,
  })
  if (!found) return null
  tx.emit(approvalKind, status, storableApproval(found))
  if (found.origin === 'tool_call') await enqueueFollowUp(tx, found)
  else if (effect) await effect.apply(tx, services, found)
  else await approvalWaiters.notify(tx, found)
  const { project_id, proposed_action, policy_version, agent_id, generation_id } = found
  recordActivityInTx(tx, {
    project_id,
    kind: 'approval_resolved',
    summary: `${proposalOf(found)} was ${status}`,
    detail: { status, tool_id: proposed_action?.tool_id ?? null, policy_version },
    orchestration_run_id: found.orchestration_run_id,
    agent_id,
    generation_id,
    ref_id: row.id,
  })
  return found
}

const PENDING_EXECUTION: Execution = {
  status: 'pending',
  result_digest: null,
  error: null,
  generation_id: null,
  finished_at: null,
}

/**
 * Refuses background work, so that an agent cannot approve its own calls, end users unless they are the approver, and
 * starters of the chain if self-approval is forbidden.
 * @throws FORBIDDEN
 */
export function requireResolver(caller: Context['caller'], row: ApprovalRow): void {
  requirePerson(caller, RESOLVE_ACTION)
  if (caller.end_user && row.approver !== 'end_user')
    raise('FORBIDDEN', { message: 'An operator resolves this approval', meta: { action: RESOLVE_ACTION } })
  if (row.forbid_self_approval) requireOther(caller, row)
}

function requireOther(caller: Context['caller'], { starters }: ApprovalRow): void {
  if (starters.includes(caller.user.id))
    raise('FORBIDDEN', {
      message: 'A user that took part in starting the chain cannot resolve its approval',
      meta: { action: RESOLVE_ACTION },
    })
}

/** Returns the sealed call after a decision, with edited arguments in place of the proposed ones. */
function sealedCallAfter(services: Services, row: ApprovalRow, edited: ApprovalDecision['edited']): string | null {
  const frozen = edited && openFrozen(services, row)
  return frozen ? sealFrozen(services, row, { ...frozen, arguments: edited, edited: true }) : row.sealed
}

/** Raises the error for an approval that could not be resolved, after expiring it if it is due. */
async function refuseResolved(services: Services, id: string, status: ApprovalDecision['status']): Promise<never> {
  await services.write(tx => expireDue(tx, id))
  const row = await approvalKind.find(services.pool, id)
  if (!row) return raise('APPROVAL_NOT_FOUND', { meta: { id } })
  const meta = { id, status: row.status }
  return raise(status === 'approved' && row.status === 'expired' ? 'APPROVAL_EXPIRED' : 'APPROVAL_ALREADY_RESOLVED', {
    meta,
  })
}

/** Returns the recorded form of a refusal; rethrows any other error. */
export const recordedRefusal = (error: unknown) => {
  if (error instanceof AppError) return error.recorded()
  throw error
}
