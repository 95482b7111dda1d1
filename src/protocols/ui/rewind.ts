import { z } from 'zod'
import { cancelTurns, findMailboxState } from '#conversation/dialog/mailbox/mailbox.ts'
import { copyClientIds } from '#conversation/dialog/messages/store.ts'
import { branchSession } from '#conversation/sessions/create.ts'
import { requireUsableAgent } from '#conversation/sessions/end-user.ts'
import { findSession, sessionKind } from '#conversation/sessions/kind.ts'
import type { SessionRow } from '#conversation/sessions/model.ts'
import { moveSessionKey } from '#conversation/sessions/session-keys.ts'
import { lockSessionAndConversation, ROLLED_BACK, requireOpen } from '#conversation/sessions/session-locks.ts'
import { lockPair, updateSession } from '#conversation/sessions/store.ts'
import { operation } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { callOperation, type Run } from '../ag-ui/call.ts'
import type { Rewind } from './input.ts'
import { findPlace, isUntouchedFork } from './store.ts'

/** Regenerated answers and edited messages: the chat continues in a fork of its session. */

const RewindInput = z.object({
  session_id: z.string(),
  message_id: z.string(),
  replaces_message: z.boolean(),
  /** Key that moves to the fork; null for a chat by the id of its session. */
  key: z.string().nullable(),
})

const rewindOperation = operation({
  id: 'rewindUiChat',
  method: 'post',
  path: '/ui/rewind',
  summary: 'Rewind a chat to a message',
  tag: 'UI',
  action: 'sessions:SendSessionMessage',
  about: sessionKind,
  endUser: { scope: 'chat', fields: Object.keys(RewindInput.shape), presented: true },
  body: RewindInput,
  answers: { 200: null },
  async run({ tx, services, allow, caller, audit, body }) {
    const { session_id, message_id, replaces_message, key } = body
    const found = (await findSession(tx, session_id)) ?? raise(sessionKind.notFound, { meta: { id: session_id } })
    allow('sessions:SendSessionMessage', { kind: sessionKind, row: found })
    const { session, conversation } = await lockSessionAndConversation(tx, found)
    requireOpen(session)
    const place = await findPlace(tx, conversation.id, message_id)
    // Messages are stored only while an operator answers.
    if (!place || session.control === 'operator') return { session_id }
    const { running, queued } = await findMailboxState(tx, conversation.id)
    await cancelTurns(tx, services, [...(running ? [running] : []), ...queued], ROLLED_BACK)
    if (place.is_last && !replaces_message) return { session_id }
    if (key === null)
      return raiseInvalid({
        code: 'INVALID_VALUE',
        path: 'id',
        message: 'is the ID of a session, in which no message can be replaced',
      })
    // The number of open sessions does not change: the fork replaces its parent.
    if (caller.end_user) requireUsableAgent(caller.end_user, session.agent_id)
    const until = replaces_message ? place.position - 1 : place.position
    const fork = await branchSession(tx, session, { single_session_per_actor: true }, until)
    await copyClientIds(tx, conversation.id, fork.conversation.id)
    await moveSessionKey(tx, keyOf(session, key), fork.session.id)
    Object.assign(audit.detail, { session_id, fork_session_id: fork.session.id })
    return { session_id: fork.session.id }
  },
})

const keyOf = ({ project_id, agent_id, actor_id }: SessionRow, key: string) => ({ project_id, agent_id, actor_id, key })

/** The key of the session of a chat. */
const chatKey = ({ request, input }: Run): string => request.mount.keyPrefix + input.threadId

/**
 * Rewinds a chat to a message and cancels its open turns. Returns the session in which it continues.
 * @throws FORBIDDEN, SESSION_CLOSED, SESSION_EXPIRED, VALIDATION_FAILED for a chat by the id of its session
 */
export async function rewind(run: Run, to: Rewind): Promise<string> {
  const { request, sessionId, thread, input } = run
  const { body } = await callOperation(request, rewindOperation, {
    query: request.caller.project_id === null ? { project_id: thread.project_id } : {},
    body: { ...to, session_id: sessionId, key: input.threadId === sessionId ? null : chatKey(run) },
  })
  return (body as { session_id: string }).session_id
}

/**
 * Undoes a rewind whose run was refused, so that the chat keeps its messages: continues it in the session before, unless
 * something has happened in the fork. Locks the pair of agent and end user first, then the parent, as everywhere. It is not
 * an operation: the limit that refused the run would refuse it too.
 */
export const undoRewind = (run: Run, forkId: string): Promise<void> =>
  run.request.services.write(async tx => {
    const [parentFound, forkFound] = [await findSession(tx, run.sessionId), await findSession(tx, forkId)]
    if (!parentFound || !forkFound) return
    if (parentFound.actor_id !== null) await lockPair(tx, parentFound.agent_id, parentFound.actor_id)
    const { session: parent } = await lockSessionAndConversation(tx, parentFound)
    const { session: fork } = await lockSessionAndConversation(tx, forkFound)
    if (parent.status !== 'closed' || fork.status !== 'open' || fork.forked_from_session_id !== parent.id) return
    if (!(await isUntouchedFork(tx, fork, parent))) return
    await moveSessionKey(tx, keyOf(parent, chatKey(run)), parent.id)
    tx.emit(sessionKind, 'closed', await updateSession(tx, fork.id, { status: 'closed' }))
    tx.emit(sessionKind, 'updated', await updateSession(tx, parent.id, { status: 'open', reopened: true }))
  })
