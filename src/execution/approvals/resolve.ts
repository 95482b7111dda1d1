import { recordActivityInTx } from '../../control/activity/record.ts'
import { AppError, type Problem, problemsText, raise, raiseInvalid } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import { storableText } from '../../core/api/storable-text.ts'
import type { Outbox } from '../../core/db/writer.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import { requirePerson } from '../../core/iam/access.ts'
import { SchemaError, schemaChecks } from '../../core/json-schema/checks.ts'
import { wireProblems } from '../../core/json-schema/problems.ts'
import type { Services } from '../../core/process/services.ts'
import type { Callable } from '../tools/call-types.ts'
import { parametersSchema } from '../tools/check-definition.ts'
import { notifyProducer } from './approval-producers.ts'
import { enqueueFollowUp, expireDue } from './expire.ts'
import { type ApprovalRow, approvalKind, type Execution, proposalOf, storableApproval } from './model.ts'
import { openFrozen, sealFrozen } from './seal.ts'
import { resolvePending } from './store.ts'
import { approvedArgumentsSchema, approvedTool } from './tool.ts'
import { verdictOn } from './verdict.ts'

const RESOLVING = 'approvals:ResolveApproval'

export type ApprovalDecision = {
  status: 'approved' | 'rejected'
  reason: string | null
  edited: Record<string, unknown> | null
}

const MAX_REASON = 10_000

/** The reason of a decision. Raises APPROVAL_REASON_REQUIRED for a rejection without one. */
export function reasonOf(status: ApprovalDecision['status'], given: unknown): string | null {
  const reason = typeof given === 'string' ? storableText(given.trim()) : ''
  if (reason.length > MAX_REASON)
    raiseInvalid({ code: 'TOO_BIG', path: 'reason', message: `must have at most ${MAX_REASON} characters` })
  if (status === 'rejected' && reason === '') raise('APPROVAL_REASON_REQUIRED')
  return reason === '' ? null : reason
}

/**
 * Validates arguments that are to be executed in place of the proposed ones, with the presets of the tool, and holds them to
 * the guardrails: the decision of a person stands for an approval, never for what they forbid.
 * @throws APPROVAL_INVALID_EDIT with `meta.problems`, FORBIDDEN with `meta.verdict`
 */
export async function requireEdit(
  { services, caller }: Pick<Context, 'services' | 'caller'>,
  row: ApprovalRow,
  given: unknown,
): Promise<Record<string, unknown>> {
  const refuse = (problems: Problem[]): never =>
    raise('APPROVAL_INVALID_EDIT', { message: problemsText(problems), meta: { problems } })
  const wrong = (message: string) => refuse([{ code: 'INVALID_TYPE', path: 'arguments', message }])
  if (!isObject(given)) return wrong('must be an object')
  if (!row.proposed_action) return wrong('cannot be given: no tool is called')
  const tool = await approvedTool(services.pool, row)
  if (!tool) return given
  await requireArguments(services, row, tool, given, refuse)
  // Of one that is resolved already only that is told.
  if (row.status === 'pending') await judgeEdit({ services, caller }, row, tool, given)
  return given
}

async function requireArguments(
  services: Services,
  row: ApprovalRow,
  tool: Callable,
  given: Record<string, unknown>,
  refuse: (problems: Problem[]) => never,
): Promise<void> {
  const schema = approvedArgumentsSchema(tool, row.proposed_action?.action)
  if (!schema) return
  try {
    const input = { ...given, ...tool.preset_parameters }
    const [problems] = await schemaChecks(services).problems(parametersSchema(row.project_id, schema), [input])
    if (problems.length > 0) refuse(wireProblems(problems, 'arguments'))
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    refuse([{ code: 'INVALID_VALUE', path: 'parameters', message: error.message }])
  }
}

/** Raises FORBIDDEN for edited arguments that the guardrails forbid, or that the caller may not approve. */
async function judgeEdit(
  { services, caller }: Pick<Context, 'services' | 'caller'>,
  row: ApprovalRow,
  tool: Callable,
  given: Record<string, unknown>,
): Promise<void> {
  const verdict = await verdictOn(services, row, tool, given)
  if (!verdict || verdict.decision === 'execute') return
  if (verdict.decision === 'route_to_approval') {
    if (verdict.forbid_self_approval) requireOther(caller, row)
    return
  }
  raise('FORBIDDEN', { message: verdict.reason, meta: { action: RESOLVING, verdict: verdict.decision } })
}

/**
 * Resolves an item, with what follows in the same transaction. Of several who resolve it at once one does.
 * @param record what else is written with it
 * @throws FORBIDDEN for work in the background, and for whoever started the chain where that is forbidden;
 *   APPROVAL_EXPIRED, APPROVAL_ALREADY_RESOLVED
 */
export async function resolveApproval(
  { services, caller }: Pick<Context, 'services' | 'caller'>,
  row: ApprovalRow,
  decision: ApprovalDecision,
  record: (outgoing: Outbox, resolved: ApprovalRow) => void,
): Promise<ApprovalRow> {
  requireResolver(caller, row)
  const { status, reason, edited } = decision
  const calls = status === 'approved' && row.origin === 'tool_call'
  const resolved = await services.write(async tx => {
    const found = await resolvePending(tx, row.id, {
      status,
      resolved_by: caller.user.id,
      reason,
      edited,
      sealed: row.origin === 'node' && status === 'rejected' ? null : frozenBy(services, row, edited),
      execution: calls ? WAITING : null,
    })
    if (!found) return null
    tx.emit(approvalKind, status, storableApproval(found))
    if (found.origin === 'tool_call') await enqueueFollowUp(tx, found)
    if (found.origin !== 'tool_call') await notifyProducer(tx, found)
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
    record(tx, found)
    return found
  })
  return resolved ?? refuseResolved(services, row.id, status)
}

const WAITING: Execution = {
  status: 'pending',
  result_digest: null,
  error: null,
  generation_id: null,
  finished_at: null,
}

/**
 * Work in the background resolves nothing: an agent would clear its own gate. Nor does a starter of the chain where that is
 * forbidden. Raises FORBIDDEN.
 */
export function requireResolver(caller: Context['caller'], row: ApprovalRow): void {
  requirePerson(caller, RESOLVING)
  if (row.forbid_self_approval) requireOther(caller, row)
}

function requireOther(caller: Context['caller'], { starters }: ApprovalRow): void {
  if (starters.includes(caller.user.id))
    raise('FORBIDDEN', {
      message: 'A user who had a part in starting the chain may not resolve its approval',
      meta: { action: RESOLVING },
    })
}

/** What is executed later: edited arguments take the place of the proposed ones. */
function frozenBy(services: Services, row: ApprovalRow, edited: ApprovalDecision['edited']): string | null {
  const frozen = edited && openFrozen(services, row)
  return frozen ? sealFrozen(services, row, { ...frozen, arguments: edited, edited: true }) : row.sealed
}

/** Says why an item could not be resolved; one whose time is over is expired first. */
async function refuseResolved(services: Services, id: string, status: ApprovalDecision['status']): Promise<never> {
  await services.write(tx => expireDue(tx, id))
  const row = await approvalKind.find(services.pool, id)
  if (!row) return raise('APPROVAL_NOT_FOUND', { meta: { id } })
  const meta = { id, status: row.status }
  return raise(status === 'approved' && row.status === 'expired' ? 'APPROVAL_EXPIRED' : 'APPROVAL_ALREADY_RESOLVED', {
    meta,
  })
}

/** What is recorded of a refusal. */
export const recordedRefusal = (error: unknown) => {
  if (error instanceof AppError) return error.recorded()
  throw error
}
