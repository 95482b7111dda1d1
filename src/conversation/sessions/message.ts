import type { z } from 'zod'
import { documentExists } from '#content/documents/message-text.ts'
import { contentUnavailable } from '#control/retention/erasure.ts'
import type { Made, ReplayCondition } from '#core/api/idempotency.ts'
import { type Context, type OperationResult, result } from '#core/api/operation.ts'
import { callerContext } from '#core/api/tool-context.ts'
import { timeIn } from '#core/base/clock.ts'
import { raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { replayWhileContentKept } from '#execution/generations/erase/purge.ts'
import { generationKind } from '#execution/generations/model.ts'
import { raiseFailure, subscribeTurn } from '#execution/generations/request/wait-for-turn.ts'
import type { TurnEnd } from '#execution/generations/streams/turn-end.ts'
import { mergeAutoTurn, refuseSelfWait } from '../dialog/mailbox/mailbox.ts'
import type { MessageRow } from '../dialog/messages/model.ts'
import { type CheckedParts, checkBodyParts, findSessionAgent } from '../dialog/messages/parts.ts'
import { appendMessage, findMessage, type MessageDraft, messageSource } from '../dialog/messages/store.ts'
import type { SessionMessageInput, SessionRow } from './model.ts'
import { lockSessionAndConversation, requireOpen } from './session-locks.ts'
import { findRequestedTurn, recordRequestedTurn, touchSession } from './store.ts'
import { turnContext } from './turn-context.ts'
import { replyPermission, turnInput } from './turns.ts'

type SendContext = Pick<
  Context<{ wait?: boolean }, z.output<typeof SessionMessageInput>, SessionRow>,
  'services' | 'caller' | 'allow' | 'body' | 'query' | 'resource' | 'request' | 'record' | 'origin'
>

/**
 * Stores a user message, whether or not a turn is running. With auto_generate it also requests, in the same
 * transaction and unless an operator has the session, a turn that reads the message; `wait` then delays the response of a
 * message without delay until that turn ends.
 * @throws SESSION_CLOSED, SESSION_EXPIRED; errors of a document (appendMessage) or of parts (checkParts); with `wait`
 *   the failure of the turn
 */
export async function sendMessage(context: SendContext): Promise<OperationResult> {
  const { services, query, request } = context
  const turnId = newId(generationKind.prefix)
  const checked = await checkBodyParts(context, context.resource.project_id, context.body, () =>
    findSessionAgent(services.pool, context.resource),
  )
  // Subscribes before the turn exists, so that its end is neither missed nor polled.
  const subscription = query.wait ? subscribeTurn(services, turnId) : null
  try {
    const stored = await storeMessage(context, turnId, checked)
    const { generation_id, delayed } = stored
    if (!subscription || generation_id === null || delayed) return responseOf(stored, null)
    const { closed } = request
    const ended =
      generation_id === turnId
        ? await subscription.wait({ closed, after: 0 })
        : await subscribeTurn(services, generation_id).wait({ closed })
    return responseOf(stored, ended)
  } finally {
    subscription?.cancel()
  }
}

/** Responds to a repeated request whose first response was lost. */
export async function replaySendMessage(context: SendContext, made: Made): Promise<OperationResult> {
  const { services, query, request, resource } = context
  const { document_id, ...stored } = made as Omit<Stored, 'message'> & { document_id: string }
  const message = await findMessage(services.pool, resource.conversation_id, document_id)
  if (!message)
    return raise('RESOURCE_NOT_FOUND', { message: `Message ${document_id} not found`, meta: { id: document_id } })
  const { generation_id, delayed } = stored
  const waitsForTurn = query.wait && generation_id !== null && !delayed
  const ended = waitsForTurn ? await subscribeTurn(services, generation_id).wait({ closed: request.closed }) : null
  return responseOf({ message, ...stored }, ended)
}

type Stored = { message: MessageRow; created: boolean; delayed: boolean; generation_id: string | null }

/** Returns the response for a stored message, with the reply of an awaited turn. Raises the failure of the turn. */
function responseOf({ message, created, generation_id }: Stored, ended: TurnEnd | null): OperationResult {
  if (ended?.failure) raiseFailure(ended)
  const reply = ended?.result ?? null
  const { role, content, parts, document_id, position, created_at } = message
  const response = result(created ? 201 : 200, {
    role,
    content,
    parts,
    document_id,
    position,
    created_at,
    generation_id,
    reply,
  })
  return { ...response, keptWhile: whileContentStored(document_id, reply && generation_id) }
}

/** Stores the response for repeats only while the message and the reply in it are stored. */
function whileContentStored(documentId: string, generationId: string | null): ReplayCondition {
  const isMessageStored = documentExists(documentId)
  if (generationId === null) return { holds: isMessageStored, refusal: contentUnavailable }
  const { holds } = replayWhileContentKept(generationId)
  return { holds: sql.fragment`${holds} and ${isMessageStored}`, refusal: contentUnavailable }
}

/** Stores the message and, with auto_generate, requests a turn, which gets `turnId` if it is new. */
function storeMessage(context: SendContext, turnId: string, checked: CheckedParts | null): Promise<Stored> {
  const { services, caller, body, resource } = context
  const requestContext = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  return services.write(async tx => {
    const { session, conversation, place } = await lockSessionAndConversation(tx, resource)
    requireOpen(session)
    if (session.auto_generate && context.query.wait) refuseSelfWait(context.origin, conversation.id)
    let requested: string | null = null
    const draft: MessageDraft = {
      ...messageSource(body, context.allow, checked),
      role: 'user',
      actor_id: session.actor_id,
      idempotency_key: body.idempotency_key,
      requestedTurn: () => (body.idempotency_key === undefined ? null : requested),
    }
    const stored = await appendMessage(tx, conversation, draft, place)
    const delayed = (session.message_delay_seconds ?? 0) > 0
    const { document_id } = stored.message
    const recorded = (generation_id: string | null): Stored => {
      const { created } = stored
      context.record(tx, created ? 201 : 200, { made: { document_id, created, delayed, generation_id } })
      return { ...stored, delayed, generation_id }
    }
    if (!stored.created) return recorded(await findRequestedTurn(tx, conversation.id, document_id))
    const authority = principalRecord(caller)
    const answers = session.auto_generate && session.control === 'agent'
    const waits = session.auto_generate && !answers
    touchSession(tx, session.id, waits ? { authority, permission: replyPermission(session) } : undefined)
    if (!answers) return recorded(null)
    const input = turnInput(session, authority, {
      generation_id: turnId,
      tool_context: turnContext(session, requestContext),
      streamed: false,
      awaited: context.query.wait,
      origin: context.origin,
    })
    const { generation_id } = await mergeAutoTurn(tx, services, conversation, {
      input,
      not_before: delayed ? timeIn((session.message_delay_seconds as number) * 1000) : undefined,
    })
    requested = generation_id
    if (body.idempotency_key !== undefined && stored.isWritten)
      await recordRequestedTurn(tx, { conversation_id: conversation.id, document_id, generation_id })
    return recorded(generation_id)
  })
}
