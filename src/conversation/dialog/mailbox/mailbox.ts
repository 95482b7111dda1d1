import { z } from 'zod'
import { findSession } from '#conversation/sessions/kind.ts'
import type { SessionRow } from '#conversation/sessions/model.ts'
import { settleSessionTurn } from '#conversation/sessions/settle-turn.ts'
import type { Origin } from '#core/api/call.ts'
import { AppError, type RecordedFailure, raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { Fragment, Queryable } from '#core/db/sql.ts'
import { entityMailbox } from '#core/queues/queue.ts'
import { RequeueError } from '#core/work/handler.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { generationKind } from '#execution/generations/model.ts'
import { consumeShareForTurn } from '#execution/generations/request/admission.ts'
import { abortTurn, CANCELLED, type Mailboxes } from '#execution/generations/request/cancel-turn.ts'
import { createTurnWithoutWakeUp, priorityOf, type TurnInput } from '#execution/generations/request/create.ts'
import { updatePendingTurn } from '#execution/generations/request/update-pending-turn.ts'
import type { ConversationRow } from '../messages/model.ts'
import { lockConversation } from '../messages/store.ts'
import { endChatTurn, notifyChatSettled } from './chat-turn.ts'
import {
  type AgentTurn,
  endTurns,
  findOpenTurn,
  findSpeaker,
  hasQueuedAutoTurn,
  insertMailboxTurn,
  listFirstTurns,
  listOpenTurns,
  listOrphanedTurns,
  mailboxTurnCte,
  rescheduleTurn,
  type TurnRow,
} from './store.ts'

/**
 * Wake-ups of conversations. A lost worker costs an attempt and one message may execute many turns, so the limit is
 * high; the attempts of a single turn are limited separately.
 */
export const conversationQueue = entityMailbox('conversation.process', {
  message: z.object({ conversation_id: z.string(), project_id: z.string() }),
  concern: 'generation',
  key: message => message.conversation_id,
  project: message => message.project_id,
  retry: { limit: 10, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
  leaseSeconds: 60,
})

/** Sends the wake-up of a conversation, immediately or for a later time. */
export const wakeConversation = (
  tx: Outbox,
  conversation: { id: string; project_id: string },
  options: { startAfter?: Date; priority?: number } = {},
): void =>
  tx.send(conversationQueue, { conversation_id: conversation.id, project_id: conversation.project_id }, options)

export type EnqueuedTurn = {
  kind: 'turn' | 'auto' | 'continuation'
  input: TurnInput
  /** The actor that the agent speaks as. */
  speaker_actor_id?: string | null
  /** Earliest start. */
  not_before?: Date
}

/** Options of a wake-up: nested turns, which other turns wait for, have priority. */
const wakeUpOf = (services: Services, { input, not_before }: Pick<EnqueuedTurn, 'input' | 'not_before'>) => ({
  ...(not_before ? { startAfter: not_before } : {}),
  ...(input.initiator_generation_id == null ? {} : { priority: priorityOf(services, input) }),
})

/** Returns the permission that the turn's principal must still have when the turn starts. */
const permissionOf = (conversation: ConversationRow) =>
  conversation.session_id === null
    ? { action: 'conversations:GenerateConversationMessage', kind: 'conversation', id: conversation.id }
    : { action: 'sessions:SendSessionMessage', kind: 'session', id: conversation.session_id }

/**
 * Appends a turn to a conversation's mailbox, with its generation and its wake-up. Requires lockConversation.
 * Conversation and session of the input are replaced; the default permission is generating in the conversation or its
 * session.
 */
export async function enqueueTurn(
  tx: Tx,
  services: Services,
  conversation: ConversationRow,
  turn: EnqueuedTurn,
): Promise<{ generation_id: string; trace_id: string }> {
  wakeConversation(tx, conversation, wakeUpOf(services, turn))
  const { generation_id, trace_id } = await insertTurn(tx, services, conversation, turn)
  return { generation_id, trace_id }
}

/** Inserts a turn and its mailbox row in one statement. */
function insertTurn(tx: Tx, services: Services, conversation: ConversationRow, turn: EnqueuedTurn, unless?: Fragment) {
  const { input } = turn
  const generation_id = input.generation_id ?? newId(generationKind.prefix)
  const generation = {
    ...input,
    generation_id,
    permission: input.permission ?? permissionOf(conversation),
    conversation_id: conversation.id,
    session_id: conversation.session_id,
    // Readers of the session's stream follow every turn.
    streamed: input.streamed || (conversation.session_id !== null && conversation.streamed),
  }
  const row = mailboxTurnCte({
    conversation_id: conversation.id,
    kind: turn.kind,
    generation_id,
    actor_id: turn.speaker_actor_id ?? null,
    principal_type: input.authority.type,
    principal_id: input.authority.id,
    not_before: turn.not_before ?? null,
  })
  return createTurnWithoutWakeUp(tx, services, generation, { unless, ctes: [row] })
}

export type MailboxState = { running: TurnRow | null; queued: TurnRow[] }

/**
 * Returns the open turns of a conversation. Under lockConversation only the end of the running turn can change them.
 */
export async function findMailboxState(db: Queryable, conversationId: string): Promise<MailboxState> {
  const open = await listOpenTurns(db, conversationId)
  return {
    running: open.find(turn => turn.state === 'running') ?? null,
    queued: open.filter(turn => turn.state === 'queued'),
  }
}

/**
 * Requests a turn that answers a message: changes time, tool_context (new keys win) and principal of the queued
 * automatic turn, or enqueues one. Requires lockConversation.
 */
export async function mergeAutoTurn(
  tx: Tx,
  services: Services,
  conversation: ConversationRow,
  turn: Omit<EnqueuedTurn, 'kind'>,
): Promise<{ generation_id: string; trace_id: string }> {
  wakeConversation(tx, conversation, wakeUpOf(services, turn))
  const { made, publisher_project_id, ...ids } = await insertTurn(
    tx,
    services,
    conversation,
    { input: { ...turn.input, automatic: true }, not_before: turn.not_before, kind: 'auto' },
    hasQueuedAutoTurn(conversation.id),
  )
  if (made) {
    if (publisher_project_id !== null)
      await consumeShareForAutoTurn(tx, services, conversation, { ...ids, publisher_project_id })
    return ids
  }
  const { queued } = await findMailboxState(tx, conversation.id)
  const auto = queued.find(({ kind }) => kind === 'auto') as AgentTurn
  const { authority, tool_context } = turn.input
  const permission = turn.input.permission ?? permissionOf(conversation)
  await updatePendingTurn(tx, services, auto.generation_id, { authority, permission, tool_context })
  await rescheduleTurn(tx, auto, {
    not_before: turn.not_before ?? null,
    principal_type: authority.type,
    principal_id: authority.id,
  })
  return { generation_id: auto.generation_id, trace_id: auto.trace_id }
}

/**
 * Consumes the share of an automatic turn's agent. If the share refuses, the turn fails and the message is retained.
 */
async function consumeShareForAutoTurn(
  tx: Tx,
  services: Services,
  { project_id }: ConversationRow,
  { generation_id, publisher_project_id }: { generation_id: string; publisher_project_id: string },
): Promise<void> {
  const turn = await findOpenTurn(tx, generation_id)
  if (!turn) return
  try {
    await consumeShareForTurn(tx, services, project_id, { id: turn.agent_id, project_id: publisher_project_id })
  } catch (error) {
    if (!(error instanceof AppError) || error.status >= 500) throw error
    await cancelTurns(tx, services, [turn], error.recorded())
  }
}

/**
 * Ends open turns: their generations fail immediately, except turns in progress, which are requested to abort and
 * settled by their worker. With `force` turns in progress fail immediately too. Requires lockConversation.
 */
export async function cancelTurns(
  tx: Tx,
  services: Services,
  turns: readonly TurnRow[],
  failure: RecordedFailure,
  options: { stop_reason?: 'error' | 'cancelled'; force?: boolean } = {},
): Promise<void> {
  for (const turn of turns) {
    if (turn.chat_id !== null) {
      // The worker that executes it finds that it has ended.
      await endChatTurn(tx, turn, turn.state === 'running' ? 'failed' : 'cancelled', { error: failure })
      notifyChatSettled(tx, turn)
      continue
    }
    const outcome = await abortTurn(tx, services, turn.generation_id, failure, options)
    if (outcome !== 'failed') continue
    await endTurns(tx, turn.conversation_id, [turn.seq], turn.state === 'running' ? 'failed' : 'cancelled')
    // Wake-ups of later turns were used up while it waited for its model.
    if (turn.state === 'running') wakeConversation(tx, { id: turn.conversation_id, project_id: turn.project_id })
    const { generation_id, trace_id, agent_id } = turn
    await settleSessionTurn(tx, turn, {
      generation_id,
      trace_id,
      agent_id,
      session: null,
      status: 'failed',
      error: failure,
    })
  }
}

/** Cancels turns on request, or because another turn replaces them. Requires lockConversation. */
export const endCancelledTurns = (tx: Tx, services: Services, turns: readonly TurnRow[]): Promise<void> =>
  cancelTurns(tx, services, turns, CANCELLED, { stop_reason: 'cancelled' })

/**
 * Cancels a turn and removes it from its mailbox; false if it is in no mailbox. A turn of a deleted conversation fails
 * immediately, because its worker may be lost.
 */
export const cancelMailboxTurn: Mailboxes['cancel'] = async (tx, services, generation, failure, options) => {
  const conversation = await lockConversation(tx, generation.conversation_id as string)
  if (!conversation) {
    await abortTurn(tx, services, generation.id, failure, { ...options, force: true })
    return true
  }
  const turn = await findOpenTurn(tx, generation.id)
  if (!turn) return false
  await cancelTurns(tx, services, [turn], failure, options)
  return true
}

/** Turns ended in one transaction. */
const TURNS_PER_TRANSACTION = 100

/**
 * Ends the open turns of a conversation that is deleted or no longer accepts turns. The worker woken here ends turns
 * after the first hundred, and paused turns of a deleted conversation. Requires lockConversation.
 */
export async function clearMailbox(
  tx: Tx,
  services: Services,
  conversation: Pick<ConversationRow, 'id' | 'project_id'>,
  failure: RecordedFailure,
): Promise<void> {
  await cancelTurns(tx, services, await listFirstTurns(tx, conversation.id, TURNS_PER_TRANSACTION), failure)
  wakeConversation(tx, conversation)
}

/** Ends the remaining turns of a deleted conversation. */
export async function endOrphanedTurns(
  services: Services,
  conversationId: string,
  stopping: AbortSignal,
): Promise<void> {
  for (let hasMore = true; hasMore; ) {
    if (stopping.aborted) throw new RequeueError('worker is stopping')
    hasMore = await services.write(async tx => {
      const ids = await listOrphanedTurns(tx, conversationId, TURNS_PER_TRANSACTION)
      for (const id of ids)
        await abortTurn(tx, services, id, conversationDeletedFailure(conversationId), { force: true })
      return ids.length === TURNS_PER_TRANSACTION
    })
  }
}

/** Returns the failure of turns whose conversation was deleted. */
export const conversationDeletedFailure = (conversationId: string): RecordedFailure => ({
  code: 'RESOURCE_NOT_FOUND',
  message: `Conversation ${conversationId} was deleted`,
  meta: { id: conversationId },
})

/**
 * Refuses a nested turn that would wait for the turn that requests it.
 * @throws GENERATION_ALREADY_IN_PROGRESS
 */
export function refuseSelfWait(origin: Origin | null, conversationId: string): void {
  if (origin?.conversations.includes(conversationId))
    raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: origin.generation_id } })
}

/** Returns the open session of a conversation, or null if it has none. @throws SESSION_CLOSED, SESSION_EXPIRED */
export async function requireOpenSession(tx: Tx, conversation: ConversationRow) {
  if (conversation.session_id === null) return null
  const session = await findSession(tx, conversation.session_id)
  if (session?.status === 'closed') raise('SESSION_CLOSED', { meta: { session_id: session.id } })
  if (session?.status === 'expired') raise('SESSION_EXPIRED', { meta: { session_id: session.id } })
  return session
}

/** Like requireOpenSession, for a request of a reply. @throws SESSION_UNDER_OPERATOR */
export async function requireAnsweringSession(tx: Tx, conversation: ConversationRow) {
  const session = await requireOpenSession(tx, conversation)
  if (session) requireAgentControl(session)
  return session
}

/** @throws SESSION_UNDER_OPERATOR */
export function requireAgentControl({ id, control, assigned_to }: Pick<SessionRow, 'id' | 'control' | 'assigned_to'>) {
  if (control === 'operator') raise('SESSION_UNDER_OPERATOR', { meta: { session_id: id, assigned_to } })
}

/**
 * Appends a paused turn to its mailbox after its tool outputs were submitted.
 * @throws SESSION_CLOSED, SESSION_EXPIRED
 */
export const enqueueResumed: Mailboxes['resume'] = async (tx, generation, principal) => {
  const conversation = await lockConversation(tx, generation.conversation_id as string)
  if (!conversation) return raise('GENERATION_NOT_FOUND', { meta: { id: generation.id } })
  await requireOpenSession(tx, conversation)
  return async () => {
    wakeConversation(tx, conversation)
    await insertMailboxTurn(tx, {
      conversation_id: conversation.id,
      kind: 'tool_outputs',
      generation_id: generation.id,
      actor_id: await findSpeaker(tx, generation.id),
      principal_type: principal.type,
      principal_id: principal.id,
      not_before: null,
    })
  }
}
