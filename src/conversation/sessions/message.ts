import type { z } from 'zod'
import { documentExists } from '../../content/documents/message-text.ts'
import { contentUnavailable } from '../../control/retention/erasure.ts'
import { raise } from '../../core/api/errors.ts'
import type { Made, ReplayCondition } from '../../core/api/idempotency.ts'
import { newId } from '../../core/api/ids.ts'
import { type Context, type OperationResult, result } from '../../core/api/operation.ts'
import { callerContext } from '../../core/api/tool-context.ts'
import { sql } from '../../core/db/sql.ts'
import { replayWhileContentKept } from '../../execution/generations/erase/purge.ts'
import { raiseFailure, subscribeTurn, type TurnEndState } from '../../execution/generations/request/wait-for-turn.ts'
import type { MessageRow } from '../conversations/model.ts'
import { appendMessage, findMessage, messageSource } from '../conversations/store.ts'
import { mergeAutoTurn, refuseSelfWait } from '../turns/mailbox.ts'
import type { SessionMessageInput, SessionRow } from './model.ts'
import { lockSessionAndConversation, requireOpen } from './session-locks.ts'
import { recordRequestedTurn, requestedTurn, touchSession } from './store.ts'
import { turnContext, turnInput } from './turns.ts'

type Send = Pick<
  Context<{ wait?: boolean }, z.output<typeof SessionMessageInput>, SessionRow>,
  'services' | 'caller' | 'allow' | 'body' | 'query' | 'resource' | 'request' | 'record' | 'origin'
>

/**
 * POST of a user message. Stored at once whatever runs; with auto_generate it asks, in
 * the same transaction, for one following turn that sees it. `wait` holds the answer of a message without delay until
 * that turn is over.
 * @throws SESSION_CLOSED, SESSION_EXPIRED; what refuses a document (appendMessage); with `wait` what the turn failed with
 */
export async function sendMessage(context: Send): Promise<OperationResult> {
  const { services, query, request } = context
  const turnId = newId('gen')
  // Listens before the turn exists, so that its end is not missed and need not be looked for.
  const expected = query.wait ? subscribeTurn(services, turnId) : null
  try {
    const stored = await storeMessage(context, turnId)
    const { generation_id, delayed } = stored
    if (!expected || generation_id === null || delayed) return answerOf(stored, null)
    const { closed } = request
    const ended =
      generation_id === turnId
        ? await expected.wait({ closed, running: true })
        : await subscribeTurn(services, generation_id).wait({ closed })
    return answerOf(stored, ended)
  } finally {
    expected?.cancel()
  }
}

/** Answers a repeat for a message that a first request had stored when it was lost. */
export async function sendMessageAgain(context: Send, made: Made): Promise<OperationResult> {
  const { services, query, request, resource } = context
  const { document_id, ...stored } = made as Omit<Stored, 'message'> & { document_id: string }
  const message = await findMessage(services.pool, resource.conversation_id, document_id)
  if (!message) return raise('RESOURCE_NOT_FOUND', { message: 'The message is gone', meta: { id: document_id } })
  const { generation_id, delayed } = stored
  const waits = query.wait && generation_id !== null && !delayed
  const ended = waits ? await subscribeTurn(services, generation_id).wait({ closed: request.closed }) : null
  return answerOf({ message, ...stored }, ended)
}

type Stored = { message: MessageRow; created: boolean; delayed: boolean; generation_id: string | null }

/** The answer of a stored message, with the reply of a turn that was waited for. Raises what the turn failed with. */
function answerOf({ message, created, generation_id }: Stored, ended: TurnEndState | null): OperationResult {
  if (ended?.failure) raiseFailure(ended)
  const reply = ended?.result ?? null
  const { role, content, document_id, position, created_at } = message
  const given = result(created ? 201 : 200, {
    role,
    content,
    document_id,
    position,
    created_at,
    generation_id,
    reply,
  })
  return { ...given, keptWhile: whileSaid(document_id, reply && generation_id) }
}

/** The message, and the turn whose reply the answer shows, may be erased before the answer is kept for repeats. */
function whileSaid(documentId: string, generationId: string | null): ReplayCondition {
  const said = documentExists(documentId)
  if (generationId === null) return { holds: said, refusal: contentUnavailable }
  const { holds } = replayWhileContentKept(generationId)
  return { holds: sql.fragment`${holds} and ${said}`, refusal: contentUnavailable }
}

/** Stores the message; a turn that it asks for, when there is none to answer it, gets the id given. */
function storeMessage(context: Send, turnId: string): Promise<Stored> {
  const { services, caller, body, resource } = context
  const sent = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  return services.write(async tx => {
    const { session, conversation } = await lockSessionAndConversation(tx, resource)
    requireOpen(session)
    if (session.auto_generate && context.query.wait) refuseSelfWait(context.origin, conversation.id)
    const stored = await appendMessage(tx, conversation, {
      ...messageSource(body, context.allow),
      role: 'user',
      actor_id: session.actor_id,
      idempotency_key: body.idempotency_key,
    })
    const delayed = (session.message_delay_seconds ?? 0) > 0
    const { document_id } = stored.message
    const ending = (generation_id: string | null): Stored => {
      const { created } = stored
      context.record(tx, created ? 201 : 200, { made: { document_id, created, delayed, generation_id } })
      return { ...stored, delayed, generation_id }
    }
    if (!stored.created) return ending(await requestedTurn(tx, conversation.id, document_id))
    touchSession(tx, session.id)
    if (!session.auto_generate) return ending(null)
    const input = turnInput(session, caller, {
      generation_id: turnId,
      tool_context: turnContext(session, sent),
      streamed: false,
      origin: context.origin,
    })
    const { generation_id } = await mergeAutoTurn(tx, services, conversation, {
      input,
      not_before: delayed ? new Date(Date.now() + (session.message_delay_seconds as number) * 1000) : undefined,
    })
    if (body.idempotency_key !== undefined)
      await recordRequestedTurn(tx, { conversation_id: conversation.id, document_id, generation_id })
    return ending(generation_id)
  })
}
