import { z } from 'zod'
import { AppError, type RecordedFailure, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import type { Fragment, Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Origin } from '../../core/invoke/call.ts'
import { RequeueError } from '../../core/jobs/handler.ts'
import { entityMailbox } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { generationKind } from '../../execution/generations/model.ts'
import { consumeShareForTurn } from '../../execution/generations/request/admission.ts'
import { abortTurn, CANCELLED, type Mailboxes } from '../../execution/generations/request/cancel-turn.ts'
import { createTurnWithoutWakeUp, priorityOf, type TurnInput } from '../../execution/generations/request/create.ts'
import { updatePendingTurn } from '../../execution/generations/request/update-pending-turn.ts'
import type { ConversationRow } from '../conversations/model.ts'
import { lockConversation } from '../conversations/store.ts'
import { notifyChatSettled, recordChatOutcome } from './chat-turn.ts'
import { sessionHooks } from './hooks.ts'
import {
  type AgentTurn,
  endTurns,
  firstTurns,
  hasQueuedAutoTurn,
  insertMailboxTurn,
  mailboxTurnCte,
  openTurnOf,
  openTurns,
  rescheduleTurn,
  speakerOf,
  type TurnRow,
  turnsLeft,
} from './store.ts'

/**
 * Wake-ups of conversations. A worker that dies costs a try, and one message may carry many turns, so the tries are
 * many; what a single turn may cost is bounded by its own attempts.
 */
export const conversationQueue = entityMailbox('conversation.process', {
  message: z.object({ conversation_id: z.string(), project_id: z.string() }),
  concern: 'generation',
  key: message => message.conversation_id,
  project: message => message.project_id,
  retry: { limit: 10, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 },
  leaseSeconds: 60,
})

/** Sends the wake-up of a conversation, at once or for a time. */
export const wakeConversation = (
  tx: Tx,
  conversation: { id: string; project_id: string },
  options: { startAfter?: Date; priority?: number } = {},
): void =>
  tx.send(conversationQueue, { conversation_id: conversation.id, project_id: conversation.project_id }, options)

export type EnqueuedTurn = {
  kind: 'turn' | 'auto' | 'continuation'
  input: TurnInput
  /** The actor that the agent speaks as. */
  speaker_actor_id?: string | null
  /** Not to be started before. */
  not_before?: Date
}

/** A turn that another waits for goes before those that nobody waits for. */
const wakeUpOf = (services: Services, { input, not_before }: Pick<EnqueuedTurn, 'input' | 'not_before'>) => ({
  ...(not_before ? { startAfter: not_before } : {}),
  ...(input.initiator_generation_id == null ? {} : { priority: priorityOf(services, input) }),
})

/** What its principal must still be allowed when the turn starts. */
const permissionOf = (conversation: ConversationRow) =>
  conversation.session_id === null
    ? { action: 'conversations:GenerateConversationMessage', kind: 'conversation', id: conversation.id }
    : { action: 'sessions:SendSessionMessage', kind: 'session', id: conversation.session_id }

/**
 * Puts a turn at the end of a conversation's mailbox, with its generation and its wake-up. Under lockConversation.
 * The input's conversation_id and session_id are the conversation's; without a permission of its own the turn needs the
 * one to ask the conversation or its session.
 */
export async function enqueueTurn(
  tx: Tx,
  services: Services,
  conversation: ConversationRow,
  asked: EnqueuedTurn,
): Promise<{ generation_id: string; trace_id: string }> {
  wakeConversation(tx, conversation, wakeUpOf(services, asked))
  const { generation_id, trace_id } = await place(tx, services, conversation, asked)
  return { generation_id, trace_id }
}

/** Writes a turn with its place in the mailbox. */
function place(tx: Tx, services: Services, conversation: ConversationRow, asked: EnqueuedTurn, unless?: Fragment) {
  const { input } = asked
  const generation_id = input.generation_id ?? newId(generationKind.prefix)
  const turn = {
    ...input,
    generation_id,
    permission: input.permission ?? permissionOf(conversation),
    conversation_id: conversation.id,
    session_id: conversation.session_id,
  }
  const row = mailboxTurnCte({
    conversation_id: conversation.id,
    kind: asked.kind,
    generation_id,
    actor_id: asked.speaker_actor_id ?? null,
    principal_type: input.authority.type,
    principal_id: input.authority.id,
    not_before: asked.not_before ?? null,
  })
  return createTurnWithoutWakeUp(tx, services, turn, { unless, ctes: [row] })
}

export type MailboxState = { running: TurnRow | null; queued: TurnRow[] }

/** What runs and what waits. Under lockConversation it stays so, but for the end of the running turn. */
export async function mailboxState(db: Queryable, conversationId: string): Promise<MailboxState> {
  const open = await openTurns(db, conversationId)
  return {
    running: open.find(turn => turn.state === 'running') ?? null,
    queued: open.filter(turn => turn.state === 'queued'),
  }
}

/**
 * Asks for a turn that answers a message: the queued automatic one when there is one, which moves to the new time, takes
 * the new keys of tool_context and runs as the newest message's principal; else a new one. Under
 * lockConversation.
 */
export async function mergeAutoTurn(
  tx: Tx,
  services: Services,
  conversation: ConversationRow,
  asked: Omit<EnqueuedTurn, 'kind'>,
): Promise<{ generation_id: string; trace_id: string }> {
  wakeConversation(tx, conversation, wakeUpOf(services, asked))
  const { made, publisher_project_id, ...ids } = await place(
    tx,
    services,
    conversation,
    { input: { ...asked.input, automatic: true }, not_before: asked.not_before, kind: 'auto' },
    hasQueuedAutoTurn(conversation.id),
  )
  if (made) {
    if (publisher_project_id !== null) await takeAuto(tx, services, conversation, { ...ids, publisher_project_id })
    return ids
  }
  const { queued } = await mailboxState(tx, conversation.id)
  const waiting = queued.find(turn => turn.kind === 'auto') as AgentTurn
  const { authority, tool_context } = asked.input
  const permission = asked.input.permission ?? permissionOf(conversation)
  await updatePendingTurn(tx, services, waiting.generation_id, { authority, permission, tool_context })
  await rescheduleTurn(tx, waiting, {
    not_before: asked.not_before ?? null,
    principal_type: authority.type,
    principal_id: authority.id,
  })
  return { generation_id: waiting.generation_id, trace_id: waiting.trace_id }
}

/**
 * Takes an automatic turn of an agent that another project shares from the share; where that refuses it, the turn has failed:
 * the message that it was to answer stays.
 */
async function takeAuto(
  tx: Tx,
  services: Services,
  { project_id }: ConversationRow,
  { generation_id, publisher_project_id }: { generation_id: string; publisher_project_id: string },
): Promise<void> {
  const turn = await openTurnOf(tx, generation_id)
  if (!turn) return
  try {
    await consumeShareForTurn(tx, services, project_id, { id: turn.agent_id, project_id: publisher_project_id })
  } catch (error) {
    if (!(error instanceof AppError) || error.status >= 500) throw error
    await cancelTurns(tx, services, [turn], error.recorded())
  }
}

/**
 * Ends turns that have not ended: their generations fail with the failure, at once unless a worker runs them, which is
 * then asked to abort and settles the turn itself; with `force` at once in any case. Under lockConversation.
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
      // Whoever runs it finds that it has ended.
      await recordChatOutcome(tx, turn, { error: failure })
      await endTurns(tx, turn.conversation_id, [turn.seq], turn.state === 'running' ? 'failed' : 'cancelled')
      notifyChatSettled(tx, turn)
      continue
    }
    const outcome = await abortTurn(tx, services, turn.generation_id, failure, options)
    if (outcome !== 'failed') continue
    await endTurns(tx, turn.conversation_id, [turn.seq], turn.state === 'running' ? 'failed' : 'cancelled')
    if (turn.session_id !== null)
      await sessionHooks.only()?.settled(tx, turn.session_id, {
        generation_id: turn.generation_id,
        trace_id: turn.trace_id,
        status: 'failed',
        error: failure,
        agent_id: turn.agent_id,
        partial: null,
        reply_position: undefined,
        session: null,
      })
  }
}

/** Ends turns that somebody called off, or that another turn answers for. Under lockConversation. */
export const endCancelledTurns = (tx: Tx, services: Services, turns: readonly TurnRow[]): Promise<void> =>
  cancelTurns(tx, services, turns, CANCELLED, { stop_reason: 'cancelled' })

/**
 * Ends a turn with its place in the mailbox; false when no mailbox holds it. One whose conversation was deleted ends at once:
 * its worker may have been lost.
 */
export const settleMailboxTurn: Mailboxes['end'] = async (tx, services, generation, failure, options) => {
  const conversation = await lockConversation(tx, generation.conversation_id as string)
  if (!conversation) {
    await abortTurn(tx, services, generation.id, failure, { ...options, force: true })
    return true
  }
  const turn = await openTurnOf(tx, generation.id)
  if (!turn) return false
  await cancelTurns(tx, services, [turn], failure, options)
  return true
}

/** Turns that one transaction ends. */
const AT_ONCE = 100

/**
 * Cancels the queued turns of a conversation that is deleted or takes no turns any more, and asks the running one to abort.
 * Turns beyond the first hundred, and those that wait for their clients in a conversation that is deleted, are ended by the
 * worker that this wakes. Under lockConversation.
 */
export async function clearMailbox(
  tx: Tx,
  services: Services,
  conversation: Pick<ConversationRow, 'id' | 'project_id'>,
  failure: RecordedFailure,
): Promise<void> {
  await cancelTurns(tx, services, await firstTurns(tx, conversation.id, AT_ONCE), failure)
  wakeConversation(tx, conversation)
}

/** Ends what is left of the turns of a conversation that was deleted, by the worker that has its mailbox. */
export async function endTurnsLeft(services: Services, conversationId: string, stopping: AbortSignal): Promise<void> {
  for (let left = true; left; ) {
    if (stopping.aborted) throw new RequeueError('the worker stops')
    left = await services.write(async tx => {
      const ids = await turnsLeft(tx, conversationId, AT_ONCE)
      for (const id of ids)
        await abortTurn(tx, services, id, conversationDeletedFailure(conversationId), { force: true })
      return ids.length === AT_ONCE
    })
  }
}

/** The failure of turns whose conversation was deleted. */
export const conversationDeletedFailure = (conversationId: string): RecordedFailure => ({
  code: 'RESOURCE_NOT_FOUND',
  message: 'The conversation was deleted',
  meta: { id: conversationId },
})

/**
 * Refuses a turn that would wait for the one that asks for it.
 * @throws GENERATION_ALREADY_IN_PROGRESS
 */
export function refuseSelfWait(origin: Origin | null, conversationId: string): void {
  if (origin?.conversations.includes(conversationId))
    raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: origin.generation_id } })
}

/** The open session of a conversation, null when it belongs to none. Raises SESSION_CLOSED, SESSION_EXPIRED. */
export async function openSession(tx: Tx, conversation: ConversationRow) {
  if (conversation.session_id === null) return null
  const session = (await sessionHooks.only()?.load(tx, conversation.session_id)) ?? null
  if (session?.status === 'closed') raise('SESSION_CLOSED', { meta: { session_id: session.id } })
  if (session?.status === 'expired') raise('SESSION_EXPIRED', { meta: { session_id: session.id } })
  return session
}

/** Puts a paused turn whose calls its client has made at the end of its mailbox. Raises SESSION_CLOSED, SESSION_EXPIRED. */
export const enqueueResumed: Mailboxes['resume'] = async (tx, generation, principal) => {
  const conversation = await lockConversation(tx, generation.conversation_id as string)
  if (!conversation) return raise('GENERATION_NOT_FOUND', { meta: { id: generation.id } })
  await openSession(tx, conversation)
  return async () => {
    wakeConversation(tx, conversation)
    await insertMailboxTurn(tx, {
      conversation_id: conversation.id,
      kind: 'tool_outputs',
      generation_id: generation.id,
      actor_id: await speakerOf(tx, generation.id),
      principal_type: principal.type,
      principal_id: principal.id,
      not_before: null,
    })
  }
}
