import type { z } from 'zod'
import { requirePerson } from '#core/api/access.ts'
import { type Context, type OperationResult, result } from '#core/api/operation.ts'
import { userKind } from '#identity/users/model.ts'
import type { MessageRow } from '../dialog/messages/model.ts'
import type { CheckedParts } from '../dialog/messages/parts.ts'
import { appendMessage, findMessageByKey, messageSource } from '../dialog/messages/store.ts'
import type { OperatorMessageInput, SessionRow } from './model.ts'
import { lockSessionAndConversation, requireOpen } from './session-locks.ts'
import { OPERATE_ACTION, requireOperatorControl } from './takeover.ts'
import { touchTakeover } from './takeover-store.ts'

type MessageContext = Pick<
  Context<unknown, z.output<typeof OperatorMessageInput>, SessionRow, CheckedParts | null>,
  'tx' | 'body' | 'prepared' | 'caller' | 'resource' | 'allow' | 'audit'
>

/**
 * Stores a message of an operator, which the model reads as a message of the assistant.
 * @throws FORBIDDEN for background work, SESSION_CLOSED, SESSION_EXPIRED, SESSION_NOT_UNDER_OPERATOR; errors of a
 *   document (appendMessage) or of parts (checkParts)
 */
export async function sendOperatorMessage(context: MessageContext): Promise<OperationResult> {
  const { tx, body, prepared, caller, resource, allow, audit } = context
  requirePerson(caller, OPERATE_ACTION)
  const { user } = caller
  audit.detail.operator_id = user.id
  const { session, conversation } = await lockSessionAndConversation(tx, resource)
  const key = body.idempotency_key
  const first = key === undefined ? null : await findMessageByKey(tx, conversation.id, key, user.id)
  if (first) return result(200, await presentMessage(context, first))
  requireOpen(session)
  requireOperatorControl(session)
  const { message } = await appendMessage(tx, conversation, {
    ...messageSource(body, allow, prepared),
    role: 'assistant',
    origin: 'operator',
    actor_id: null,
    operator_id: user.id,
    idempotency_key: key,
  })
  touchTakeover(tx, session.id)
  return result(201, await presentMessage(context, message))
}

/** Returns a message of the calling operator as a session message. */
async function presentMessage(
  { tx, caller }: Pick<MessageContext, 'tx' | 'caller'>,
  { role, origin, content, parts, document_id, position, actor_id, generation_id, created_at }: MessageRow,
) {
  const author = await userKind.find(tx, caller.user.id)
  const author_name = author?.display_name ?? null
  const fields = { role, origin, content, parts, document_id, position, model: null, actor_id, generation_id }
  // Only replies of the agent have feedback.
  return { ...fields, author_name, refused: false, annotations: null, feedback: null, created_at }
}
