import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { AppError } from '../../core/api/errors.ts'
import { isAllowed } from '../../core/iam/access.ts'
import { approvalKind } from '../../execution/approvals/model.ts'
import { type AgUiRequest, callOperation, type Run } from './call.ts'
import type { AgUiEvent, FiledApprovals } from './events.ts'
import { RESULT_PREFIX, type Resume } from './input.ts'
import { findContinuation, listInterrupts, type ThreadApproval } from './store.ts'

/** Interrupts: approvals that the end user decides. */

const RESPONSE_SCHEMA = {
  type: 'object',
  properties: { approved: { type: 'boolean' } },
  required: ['approved'],
  additionalProperties: false,
}

const Answer = z.strictObject({ approved: z.boolean() })

/** An approval as its operation presents it, to end users too. */
type ShownApproval = {
  id: string
  status: string
  title: string | null
  shown_arguments: Record<string, unknown> | null
  expires_at: string
}

/** Returns an approval that the caller may resolve as the end user's; null for any other. */
async function resolvable(request: AgUiRequest, project_id: string, id: string): Promise<ShownApproval | null> {
  const { caller } = request
  if (!isAllowed(caller, 'approvals:ResolveApproval', { kind: approvalKind, project_id })) return null
  try {
    const { body } = await callOperation(request, 'getApproval', { params: { approval_id: id } })
    const approval = body as ShownApproval
    return approval.title !== null && approval.status === 'pending' ? approval : null
  } catch (error) {
    if (error instanceof AppError && [403, 404].includes(error.status)) return null
    throw error
  }
}

/**
 * Returns the approvals filed in a turn. An approval of an operator is an event: an interrupt would lock the input of the
 * client until the decision.
 */
export async function filedApprovals(request: AgUiRequest, projectId: string, ids: readonly string[]) {
  const filed: FiledApprovals = { events: [], interrupts: [] }
  for (const id of ids) {
    const approval = await resolvable(request, projectId, id)
    if (!approval) filed.events.push({ type: 'CUSTOM', name: 'svc:approval_pending', value: { id } })
    else
      filed.interrupts.push({
        interrupt: {
          id,
          reason: 'tool_call',
          // The call is shown under the id of its approval, by which it is answered.
          toolCallId: id,
          message: approval.title as string,
          responseSchema: RESPONSE_SCHEMA,
          expiresAt: approval.expires_at,
        },
        name: 'approval',
        args: approval.shown_arguments ?? {},
      })
  }
  return filed
}

type Decision = { approval: ThreadApproval; approved: boolean }

const refuse = (message: string): never => {
  throw new AppError('VALIDATION_FAILED', {
    message,
    meta: { problems: [{ code: 'INVALID_VALUE', path: 'resume', message }] },
  })
}

/**
 * Returns the decisions of a resume, which must cover all open interrupts of the session. An expired interrupt can only be
 * cancelled, which decides nothing.
 * @throws VALIDATION_FAILED, APPROVAL_ALREADY_RESOLVED for another decision than the first one
 */
function decisionsOf(resume: readonly Resume[], known: readonly ThreadApproval[]): Decision[] {
  const entries = new Map(resume.map(entry => [entry.interruptId, entry]))
  for (const { id, is_open } of known) if (is_open && !entries.has(id)) refuse(`must contain the interrupt ${id}`)
  return [...entries.values()].flatMap((entry): Decision[] => {
    const approval = known.find(({ id }) => id === entry.interruptId)
    if (!approval) return refuse(`contains an unknown interrupt ${entry.interruptId}`)
    const approved = entry.status === 'resolved' && approvedBy(entry)
    const isExpired = approval.status === 'expired' || (approval.status === 'pending' && !approval.is_open)
    if (isExpired) return entry.status === 'cancelled' ? [] : refuse(`interrupt ${approval.id} has expired`)
    if (approval.status !== 'pending' && (approval.status === 'approved') !== approved)
      throw new AppError('APPROVAL_ALREADY_RESOLVED', { meta: { id: approval.id, status: approval.status } })
    return [{ approval, approved }]
  })
}

function approvedBy({ payload }: Resume): boolean {
  const { data } = Answer.safeParse(payload)
  return data
    ? data.approved
    : refuse('a resolved interrupt needs the payload { approved: true } or { approved: false }')
}

/**
 * Resolves the interrupts of a resume; a repeat with the same answers changes nothing. All are checked before the first is
 * resolved. Returns the decided approvals.
 * @throws VALIDATION_FAILED, APPROVAL_ALREADY_RESOLVED, FORBIDDEN
 */
export async function resolveInterrupts(run: Run, resume: readonly Resume[]): Promise<readonly string[]> {
  const { request, sessionId } = run
  const ids = resume.map(({ interruptId }) => interruptId)
  const decisions = decisionsOf(resume, await listInterrupts(request.services.pool, sessionId, ids))
  for (const { approval, approved } of decisions) {
    if (approval.status !== 'pending') continue
    const params = { approval_id: approval.id }
    if (approved) await callOperation(request, 'approveApproval', { params, body: {} })
    else await callOperation(request, 'rejectApproval', { params, body: { reason: 'declined by the end user' } })
  }
  return decisions.map(({ approval }) => approval.id)
}

const POLL_MS = 250

/** How the call of an approval ended, and the turn that continues with it; null if none does. */
export type Continuation = { result: AgUiEvent; generation_id: string | null }

/** Waits for the follow-up of a decided approval. Yields at intervals, for the connection. */
export async function* awaitContinuation({ request }: Run, approvalId: string): AsyncGenerator<null, Continuation> {
  const { services, exchange } = request
  let pingAt = Date.now() + services.config.STREAM_PING_INTERVAL_MS
  for (;;) {
    const { status, succeeded, generation_id, is_active } = await findContinuation(services.pool, approvalId)
    if (!is_active || exchange.request.closed.aborted) {
      const content = status === 'rejected' ? 'declined' : succeeded ? 'done' : 'failed'
      const messageId = `${RESULT_PREFIX}${approvalId}`
      const result = { type: 'TOOL_CALL_RESULT', messageId, toolCallId: approvalId, content, role: 'tool' }
      return { result, generation_id }
    }
    await sleep(POLL_MS)
    if (Date.now() < pingAt) continue
    yield null
    pingAt = Date.now() + services.config.STREAM_PING_INTERVAL_MS
  }
}
