import type { z } from 'zod'
import { closeMatter } from '#control/exceptions/file-exception.ts'
import { isAllowed, requirePerson } from '#core/api/access.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { generationKind } from '#execution/generations/model.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { cancelTurns, findMailboxState } from '../dialog/mailbox/mailbox.ts'
import type { TurnRow } from '../dialog/mailbox/store.ts'
import { addSessionFrame } from '../dialog/messages/frames.ts'
import { appendMessage } from '../dialog/messages/store.ts'
import { HUMAN_REQUESTED } from './attention.ts'
import { sessionKind } from './kind.ts'
import type { ReplyPermit, SessionRow, TakeoverInput } from './model.ts'
import { lockSessionAndConversation, requireOpen, sessionFailure } from './session-locks.ts'
import { writeTakeover } from './takeover-store.ts'

export const OPERATE_ACTION = 'sessions:OperateSession'

type TakeoverContext = Pick<
  Context<unknown, z.output<typeof TakeoverInput> | undefined, SessionRow>,
  'tx' | 'services' | 'body' | 'caller' | 'resource'
>

/**
 * Requires that the assigned user may operate the session.
 * @throws FORBIDDEN for background work, VALIDATION_FAILED for an unknown user and for one without the permission
 */
export async function checkAssignee({ services, body, caller, resource }: Omit<TakeoverContext, 'tx'>): Promise<void> {
  requirePerson(caller, OPERATE_ACTION)
  const id = body?.assignee_user_id
  if (id === undefined || id === caller.user.id) return
  const user = await callerForPrincipal(services, { type: 'user', id, via: null }, resource.project_id)
  if (!user || !isAllowed(user, OPERATE_ACTION, { kind: sessionKind, row: resource }))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'assignee_user_id', message: 'is no user who may operate the session' })
}

/**
 * Puts a session under an operator, or assigns it to another one. Decided under the conversation's lock: queued replies
 * and a turn that has not started end, the running turn finishes or is aborted, and no reply starts until the handback.
 * @throws SESSION_CLOSED, SESSION_EXPIRED; SESSION_ASSIGNED if another user is assigned than the caller expects
 */
export async function takeOver({ tx, services, body = {}, caller, resource }: TakeoverContext) {
  const { session, conversation } = await lockSessionAndConversation(tx, resource)
  requireOpen(session)
  const assigned_to = body.assignee_user_id ?? caller.user.id
  requireExpectedAssignee(session, assigned_to, body.expected_assigned_to)
  const { running, queued } = await findMailboxState(tx, conversation.id)
  const isFinishing = running?.generation_status === 'in_progress' && body.running !== 'abort'
  const ended = [...(running && !isFinishing ? [running] : []), ...queued.filter(isReply)]
  const reply_permit = (await permitOf(tx, ended)) ??
    session.reply_permit ?? { authority: principalRecord(caller), permission: operatePermission(session) }
  await endReplies(tx, services, session, ended, assigned_to)
  if (body.note !== undefined)
    await appendMessage(tx, conversation, {
      role: 'user',
      origin: 'system',
      note: true,
      content: `A colleague takes over this conversation.\nNote: ${body.note}`,
      actor_id: null,
    })
  if (session.attention) await closeMatter(tx, session.project_id, HUMAN_REQUESTED, session.id)
  const next = await writeTakeover(tx, session.id, { assigned_to, reply_permit })
  const generation_id = isFinishing ? running.generation_id : null
  addSessionFrame(tx, conversation, { event: 'control' })
  tx.emit(sessionKind, 'taken_over', next, { extra: { operator_id: caller.user.id, generation_id } })
  return next
}

/** @throws SESSION_ASSIGNED */
function requireExpectedAssignee(
  { id, assigned_to, assignee_name }: SessionRow,
  next: string,
  expected?: string | null,
) {
  if (expected === undefined || assigned_to === null || assigned_to === expected || assigned_to === next) return
  raise('SESSION_ASSIGNED', { meta: { session_id: id, assigned_to, assignee_name } })
}

/** Whether a queued turn answers messages; continuations and resumed turns wait for the handback. */
const isReply = ({ kind }: TurnRow): boolean => kind === 'auto' || kind === 'turn'

const operatePermission = ({ id }: SessionRow) => ({ action: OPERATE_ACTION, kind: 'session', id })

/** Returns the principal of the last of the ended turns, which answers after the handback; null without turns. */
async function permitOf(tx: Tx, ended: readonly TurnRow[]): Promise<ReplyPermit | null> {
  const id = ended.at(-1)?.generation_id
  const generation = id == null ? null : await generationKind.find(tx, id)
  return generation && { authority: generation.authority, permission: generation.permission }
}

/** Ends turns for a takeover. Their callers get the error of a request that comes later. */
const endReplies = (tx: Tx, services: Services, { id }: SessionRow, ended: readonly TurnRow[], assigned_to: string) =>
  cancelTurns(
    tx,
    services,
    ended,
    sessionFailure('SESSION_UNDER_OPERATOR', undefined, { session_id: id, assigned_to }),
    { stop_reason: 'cancelled' },
  )

/** @throws SESSION_NOT_UNDER_OPERATOR */
export function requireOperatorControl({ id, control }: Pick<SessionRow, 'id' | 'control'>): void {
  if (control === 'agent') raise('SESSION_NOT_UNDER_OPERATOR', { meta: { session_id: id } })
}
