import type { z } from 'zod'
import { requirePerson } from '#core/api/access.ts'
import type { Context } from '#core/api/operation.ts'
import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { PrincipalRef } from '#core/iam/caller.ts'
import type { JobContext } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { findMailboxState, type MailboxState, mergeAutoTurn, wakeConversation } from '../dialog/mailbox/mailbox.ts'
import { addSessionFrame } from '../dialog/messages/frames.ts'
import type { ConversationRow } from '../dialog/messages/model.ts'
import { appendMessage } from '../dialog/messages/store.ts'
import { sessionKind } from './kind.ts'
import type { HandbackInput, SessionRow } from './model.ts'
import { lockSessionAndConversation, requireOpen } from './session-locks.ts'
import { OPERATE_ACTION, requireOperatorControl } from './takeover.ts'
import { findLastShownMessage, listTimedOutSessions, writeHandback } from './takeover-store.ts'
import { turnContext } from './turn-context.ts'
import { turnInput } from './turns.ts'

type HandbackContext = Pick<
  Context<unknown, z.output<typeof HandbackInput> | undefined, SessionRow>,
  'tx' | 'services' | 'body' | 'caller' | 'resource'
>

type Handback = {
  note?: string
  /** Whether the agent answers even if the end user did not write last; its refusal then refuses the handback. */
  generate: boolean
  /** The operator and the principal of the request; null after a timeout. */
  operator: { id: string; principal: PrincipalRef } | null
}

/**
 * Returns a session to its agent. Waiting turns continue, and the agent answers an end user who wrote last.
 * @throws FORBIDDEN for background work, SESSION_CLOSED, SESSION_EXPIRED, SESSION_NOT_UNDER_OPERATOR; with `generate` the
 *   refusal of the turn
 */
export async function handBack({ tx, services, body = {}, caller, resource }: HandbackContext) {
  requirePerson(caller, OPERATE_ACTION)
  const { user, principal } = caller
  const { session, conversation } = await lockSessionAndConversation(tx, resource)
  requireOpen(session)
  requireOperatorControl(session)
  return handBackLocked(tx, services, session, conversation, {
    note: body.note,
    generate: body.generate ?? false,
    operator: { id: user.id, principal },
  })
}

/** Returns a locked session to its agent, with the ID of the turn that answers. */
async function handBackLocked(
  tx: Tx,
  services: Services,
  session: SessionRow,
  conversation: ConversationRow,
  { note, generate, operator }: Handback,
) {
  const mailbox = await findMailboxState(tx, conversation.id)
  const answers = generate || (session.auto_generate && (await isUnanswered(tx, conversation, mailbox)))
  await appendMessage(tx, conversation, {
    role: 'user',
    origin: 'system',
    note: true,
    content: handbackText(note),
    actor_id: null,
  })
  const next = await writeHandback(tx, session.id)
  addSessionFrame(tx, conversation, { event: 'control', data: operator ? {} : { reason: 'timeout' } })
  if (mailbox.queued.length > 0) wakeConversation(tx, conversation)
  const generation_id = answers ? await requestReply(tx, services, session, conversation, { generate, operator }) : null
  const extra = { reason: operator ? 'operator' : 'timeout', operator_id: operator?.id ?? null, generation_id }
  tx.emit(sessionKind, 'handed_back', next, { extra })
  return { session: next, generation_id }
}

/** Returns the message that informs the model who wrote the latest messages of the assistant. */
const handbackText = (note: string | undefined): string =>
  [
    'A colleague took over this conversation and has returned it to you. The assistant messages since then were written by the colleague.',
    ...(note === undefined ? [] : [`Note of the colleague: ${note}`]),
  ].join('\n')

/** Whether the end user wrote last and the running turn, if any, does not answer that message. */
async function isUnanswered(tx: Tx, { id }: ConversationRow, { running }: MailboxState): Promise<boolean> {
  const last = await findLastShownMessage(tx, id)
  return last?.role === 'user' && (running?.seen_position ?? -1) < last.position
}

/**
 * Requests the turn that answers, with the principal of the message that waits. A turn that cannot be created does not
 * keep the session from its agent, unless the operator requested it; null then.
 */
async function requestReply(
  tx: Tx,
  services: Services,
  session: SessionRow,
  conversation: ConversationRow,
  { generate, operator }: Pick<Handback, 'generate' | 'operator'>,
): Promise<string | null> {
  const { reply_permit } = session
  if (!reply_permit) throw new Error(`session ${session.id} under an operator has no principal of replies`)
  const { authority, permission } = reply_permit
  const starters = [...(authority.starters ?? []), ...(operator ? [operator.principal] : [])]
  const input = turnInput(session, starters.length > 0 ? { ...authority, starters } : authority, {
    tool_context: turnContext(session, null),
    streamed: false,
    origin: null,
  })
  const request = async (nested: Tx) => {
    const turn = await mergeAutoTurn(nested, services, conversation, { input: { ...input, permission } })
    return turn.generation_id
  }
  if (generate) return request(tx)
  try {
    return await tx.nested(request)
  } catch (error) {
    if (!(error instanceof AppError) || error.status >= 500) throw error
    services.log.info({ session_id: session.id, code: error.code }, 'no reply after the handback')
    return null
  }
}

const BATCH = 100

/** Returns sessions without an operator message for their timeout to their agents. Returns their number. */
export async function handBackTimedOut({
  services,
  stopping,
  log,
}: Pick<JobContext, 'services' | 'stopping' | 'log'>): Promise<number> {
  let count = 0
  let after = ''
  while (!stopping.aborted) {
    const found: readonly string[] = await listTimedOutSessions(services.pool, after, BATCH)
    for (const id of found) {
      if (stopping.aborted) break
      try {
        if (await services.write(tx => handBackIfTimedOut(tx, services, id))) count++
      } catch (error) {
        // The next sweep repeats it; the others continue.
        log.error({ err: error, session_id: id }, 'handback failed')
      }
    }
    if (found.length < BATCH) break
    after = found[found.length - 1]
  }
  return count
}

/** Returns a session to its agent unless it changed since it was found. */
async function handBackIfTimedOut(tx: Tx, services: Services, id: string): Promise<boolean> {
  const session = await sessionKind.find(tx, id, true)
  if (!session?.operator_timed_out || session.status !== 'open') return false
  const { conversation } = await lockSessionAndConversation(tx, session)
  await handBackLocked(tx, services, session, conversation, { generate: false, operator: null })
  return true
}
