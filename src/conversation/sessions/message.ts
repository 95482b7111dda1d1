import type { z } from 'zod'
import { textIsThere } from '../../content/documents/message.ts'
import { unavailable } from '../../control/retention/content.ts'
import { raise } from '../../core/api/errors.ts'
import type { KeptWhile, Made } from '../../core/api/idempotency.ts'
import { newId } from '../../core/api/ids.ts'
import { type Answer, answer, type Context } from '../../core/api/operation.ts'
import { callerContext } from '../../core/api/tool-context.ts'
import { sql } from '../../core/db/sql.ts'
import { whileContentKept } from '../../execution/generations/purge.ts'
import { type EndedTurn, expectTurn, raiseFailure } from '../../execution/generations/wait.ts'
import type { MessageRow } from '../conversations/model.ts'
import { appendMessage, findMessage, saidBy } from '../conversations/store.ts'
import { coalesceAuto, refuseOwn } from '../turns/mailbox.ts'
import type { SessionMessageInput, SessionRow } from './model.ts'
import { lockBoth, requireOpen } from './state.ts'
import { noteRequestedTurn, requestedTurn, touchSession } from './store.ts'
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
export async function sendMessage(context: Send): Promise<Answer> {
  const { services, query, request } = context
  const turnId = newId('gen')
  // Listens before the turn exists, so that its end is not missed and need not be looked for.
  const expected = query.wait ? expectTurn(services, turnId) : null
  try {
    const stored = await storeMessage(context, turnId)
    const { generation_id, delayed } = stored
    if (!expected || generation_id === null || delayed) return answerOf(stored, null)
    const { closed } = request
    const ended =
      generation_id === turnId
        ? await expected.wait({ closed, running: true })
        : await expectTurn(services, generation_id).wait({ closed })
    return answerOf(stored, ended)
  } finally {
    expected?.cancel()
  }
}

/** Answers a repeat for a message that a first request had stored when it was lost. */
export async function sendMessageAgain(context: Send, made: Made): Promise<Answer> {
  const { services, query, request, resource } = context
  const { document_id, ...stored } = made as Omit<Stored, 'message'> & { document_id: string }
  const message = await findMessage(services.pool, resource.conversation_id, document_id)
  if (!message) return raise('RESOURCE_NOT_FOUND', { message: 'The message is gone', meta: { id: document_id } })
  const { generation_id, delayed } = stored
  const waits = query.wait && generation_id !== null && !delayed
  const ended = waits ? await expectTurn(services, generation_id).wait({ closed: request.closed }) : null
  return answerOf({ message, ...stored }, ended)
}

type Stored = { message: MessageRow; created: boolean; delayed: boolean; generation_id: string | null }

/** The answer of a stored message, with the reply of a turn that was waited for. Raises what the turn failed with. */
function answerOf({ message, created, generation_id }: Stored, ended: EndedTurn | null): Answer {
  if (ended?.failure) raiseFailure(ended)
  const reply = ended?.result ?? null
  const { role, content, document_id, position, created_at } = message
  const given = answer(created ? 201 : 200, {
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
function whileSaid(documentId: string, generationId: string | null): KeptWhile {
  const said = textIsThere(documentId)
  if (generationId === null) return { holds: said, refusal: unavailable }
  const { holds } = whileContentKept(generationId)
  return { holds: sql.fragment`${holds} and ${said}`, refusal: unavailable }
}

/** Stores the message; a turn that it asks for, when there is none to answer it, gets the id given. */
function storeMessage(context: Send, turnId: string): Promise<Stored> {
  const { services, caller, body, resource } = context
  const sent = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  return services.write(async tx => {
    const { session, conversation } = await lockBoth(tx, resource)
    requireOpen(session)
    if (session.auto_generate && context.query.wait) refuseOwn(context.origin, conversation.id)
    const stored = await appendMessage(tx, conversation, {
      ...saidBy(body, context.allow),
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
    const { generation_id } = await coalesceAuto(tx, services, conversation, {
      input,
      not_before: delayed ? new Date(Date.now() + (session.message_delay_seconds as number) * 1000) : undefined,
    })
    if (body.idempotency_key !== undefined)
      await noteRequestedTurn(tx, { conversation_id: conversation.id, document_id, generation_id })
    return ending(generation_id)
  })
}
