import { z } from 'zod'
import { isAllowed } from '#core/api/access.ts'
import { operation } from '#core/api/operation.ts'
import { AppError, raise } from '#core/base/errors.ts'
import type { Unsubscribe } from '#core/db/notify.ts'
import { subscribeUntil } from '#core/work/subscription.ts'
import { watchFollowUp } from '#execution/approvals/follow-up.ts'
import { approvalKind } from '#execution/approvals/model.ts'
import { type ApprovalDecision, RESOLVE_ACTION, resolveWithin } from '#execution/approvals/resolve.ts'
import { type AgUiRequest, callOperation, type Run } from './call.ts'
import type { AgUiEvent, FiledApprovals } from './events.ts'
import { RESULT_PREFIX, type Resume } from './input.ts'
import { findContinuation, lockInterrupts, type ThreadApproval } from './store.ts'

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
  if (!isAllowed(caller, RESOLVE_ACTION, { kind: approvalKind, project_id })) return null
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
 * Returns the decisions of a resume, which must cover all open interrupts of the session unless it is partial. An expired interrupt can only be
 * cancelled, which decides nothing.
 * @throws VALIDATION_FAILED, APPROVAL_ALREADY_RESOLVED for another decision than the first one
 */
function decisionsOf(resume: readonly Resume[], known: readonly ThreadApproval[], isPartial: boolean): Decision[] {
  const entries = new Map(resume.map(entry => [entry.interruptId, entry]))
  for (const { id, is_open } of known)
    if (!isPartial && is_open && !entries.has(id)) refuse(`must contain the interrupt ${id}`)
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

const ResumeInput = z.object({ session_id: z.string(), resume: z.custom<readonly Resume[]>(), partial: z.boolean() })

/** Resolves the interrupts of a session in one transaction, all or none. */
const resolveOperation = operation({
  id: 'resolveAgUiInterrupts',
  method: 'post',
  path: '/ag-ui/resume',
  summary: 'Resolve interrupts of a session',
  tag: 'AG-UI',
  action: RESOLVE_ACTION,
  about: approvalKind,
  endUser: { scope: 'approvals', fields: Object.keys(ResumeInput.shape), presented: true },
  body: ResumeInput,
  answers: { 200: null },
  async run(context) {
    const { tx, allow, audit, body } = context
    const { session_id, resume, partial } = body
    const ids = resume.map(({ interruptId }) => interruptId)
    const decisions = decisionsOf(resume, await lockInterrupts(tx, session_id, ids), partial)
    for (const { approval, approved } of decisions) {
      allow(RESOLVE_ACTION, { kind: approvalKind, row: approval })
      if (approval.status !== 'pending') continue
      const decision: ApprovalDecision = approved
        ? { status: 'approved', reason: null, edited: null }
        : { status: 'rejected', reason: 'declined by the end user', edited: null }
      const { id } = approval
      if (!(await resolveWithin(tx, context, approval, decision)))
        raise('APPROVAL_ALREADY_RESOLVED', { meta: { id, status: 'expired' } })
    }
    const idsOf = (answer: boolean) =>
      decisions.filter(({ approved }) => approved === answer).map(({ approval }) => approval.id)
    Object.assign(audit.detail, { session_id, approved: idsOf(true), rejected: idsOf(false) })
    return { decided: decisions.map(({ approval }) => approval.id) }
  },
})

/**
 * Resolves the interrupts of a resume; a repeat with the same answers changes nothing. Returns the decided approvals.
 * @throws VALIDATION_FAILED, APPROVAL_ALREADY_RESOLVED, FORBIDDEN
 */
export async function resolveInterrupts(
  { request, sessionId, thread: { project_id } }: Run,
  resume: readonly Resume[],
): Promise<readonly string[]> {
  const { body } = await callOperation(request, resolveOperation, {
    query: request.caller.project_id === null ? { project_id } : {},
    body: { session_id: sessionId, resume, partial: request.mount.answersPartly },
  })
  return (body as { decided: string[] }).decided
}

/** How the call of an approval ended, and the turn that continues with it; null if none does. */
export type Continuation = { result: AgUiEvent; generation_id: string | null }

/** Waits for the follow-up of a decided approval. Yields at intervals, for the connection. */
export async function* awaitContinuation({ request }: Run, approvalId: string): AsyncGenerator<null, Continuation> {
  const { services, exchange } = request
  const pingMs = services.config.STREAM_PING_INTERVAL_MS
  const { closed } = exchange.request
  for (;;) {
    let watch = {} as Unsubscribe
    const { wait } = subscribeUntil({
      subscribe(notify) {
        watch = watchFollowUp(services, approvalId, notify)
        return watch
      },
      async read() {
        await watch.ready
        return findContinuation(services.pool, approvalId)
      },
      isOver: ({ is_active }) => !is_active,
      pollMs: pingMs,
    })
    const { status, succeeded, generation_id, is_active } = await wait({ closed, withinMs: pingMs })
    if (!is_active || closed.aborted) {
      const content = status === 'rejected' ? 'declined' : succeeded ? 'done' : 'failed'
      const messageId = `${RESULT_PREFIX}${approvalId}`
      const result = { type: 'TOOL_CALL_RESULT', messageId, toolCallId: approvalId, content, role: 'tool' }
      return { result, generation_id }
    }
    yield null
  }
}
