import type { z } from 'zod'
import { closeMatter, fileExceptionNow } from '#control/exceptions/file-exception.ts'
import type { Context } from '#core/api/operation.ts'
import { systemClock } from '#core/base/clock.ts'
import { addSessionFrame } from '../dialog/messages/frames.ts'
import { sessionKind } from './kind.ts'
import type { Attention, AttentionInput, SessionRow } from './model.ts'
import { lockSessionAndConversation, requireOpen } from './session-locks.ts'
import { writeAttention } from './takeover-store.ts'

/** Kind of the exception of a requested person; its key is the session. */
export const HUMAN_REQUESTED = 'human_requested'

type AttentionContext = Pick<
  Context<unknown, z.output<typeof AttentionInput>, SessionRow>,
  'tx' | 'body' | 'caller' | 'resource' | 'origin'
>

/**
 * Requests a person for a session, or clears the request. A turn that makes the call continues to its end.
 * @throws SESSION_CLOSED, SESSION_EXPIRED for a request
 */
export async function requestHuman({ tx, body, caller, resource, origin }: AttentionContext): Promise<SessionRow> {
  const { session, conversation } = await lockSessionAndConversation(tx, resource)
  const { id, project_id, agent_id, conversation_id } = session
  const { reason, urgency = 'normal' } = body
  if (reason === null) {
    if (session.attention === null) return session
    await closeMatter(tx, project_id, HUMAN_REQUESTED, id)
    const cleared = await writeAttention(tx, id, null)
    tx.emit(sessionKind, 'updated', cleared)
    addSessionFrame(tx, conversation, { event: 'control' })
    return cleared
  }
  requireOpen(session)
  const isOwnTurn = origin?.conversations.includes(conversation_id) ?? false
  const by: Attention['by'] = isOwnTurn ? { type: 'agent', id: agent_id } : caller.principal
  const next = await writeAttention(tx, id, { reason, urgency, since: systemClock.now().toISOString(), by })
  tx.emit(sessionKind, 'attention_requested', next)
  addSessionFrame(tx, conversation, { event: 'control' })
  // In this transaction, so that a takeover finds and resolves it. The session's lock precedes the exception's.
  await fileExceptionNow(tx, {
    project_id,
    kind: HUMAN_REQUESTED,
    severity: urgency === 'high' ? 'critical' : undefined,
    title: `A person is requested in session ${id}`,
    detail: { session_id: id, urgency },
    dedup_key: id,
    agent_id,
  })
  return next
}
