import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import type { SessionRow } from '#conversation/sessions/model.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { rowFromJson } from '#core/db/sql.ts'
import { queueMessage, workQueue } from '#core/queues/queue.ts'
import { handler, type JobContext, RequeueError, schedule } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { executeTurn } from '#execution/generations/loop/execute-turn.ts'
import { addSessionFrame, SESSION_CHANNEL } from '../messages/frames.ts'
import type { ConversationRow } from '../messages/model.ts'
import { lockConversation } from '../messages/store.ts'
import { executeChatTurn } from './execute-chat-turn.ts'
import { cancelTurns, conversationQueue, endOrphanedTurns, wakeConversation } from './mailbox.ts'
import { preparePrompt, promptFrom } from './prompt.ts'
import { type ClaimedTurn, sessionOf, sessionRefusal, turnSource } from './source.ts'
import {
  endTurns,
  findNextTurn,
  listDeletedConversations,
  listWakeableConversations,
  requeueTurn,
  startTurn,
  type TurnRow,
  type TurnState,
  takeStartingTurn,
} from './store.ts'

/** Fallback for lost notifications: wakes conversations with due turns and without a message. */
const conversationSweep = workQueue('conversation.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

/** State of a turn's mailbox row by the status of its settled generation. */
const endStates: Record<string, Extract<TurnState, 'done' | 'failed'> | undefined> = {
  completed: 'done',
  requires_action: 'done',
  failed: 'failed',
}

/** Takes the next turn in one statement if it starts now and nothing else changes the conversation; null otherwise. */
async function takeNextTurn({ pool, notifier }: Services, conversationId: string): Promise<ClaimedTurn | null> {
  const taken = await takeStartingTurn(pool, conversationId)
  if (!taken) return null
  const { answers, actors, messages, summary, loaded, conversation: row, session: json, taken_at, ...turn } = taken
  const conversation = rowFromJson(row) as ConversationRow
  const session = json && sessionWithTurn(rowFromJson(json) as SessionRow, taken_at)
  if (conversation.session_id !== null && conversation.streamed)
    notifier.notify({ channel: SESSION_CHANNEL, payload: conversation.session_id })
  const prepared = promptFrom({ answers, actors, messages, summary, loaded }, conversation, turn)
  return claimedTurn(conversation, turn, session, prepared)
}

/** Returns a session after its turn was taken. */
const sessionWithTurn = (session: SessionRow, at: string): SessionRow => ({
  ...session,
  generating_at: at,
  queued_turns: session.queued_turns - 1,
})

/** Returns a turn that starts, which a closed or expired session refuses. */
function claimedTurn(
  conversation: ConversationRow,
  turn: TurnRow,
  session: SessionRow | null,
  { prompt, loaded }: Pick<ClaimedTurn, 'prompt' | 'loaded'>,
): ClaimedTurn {
  const refuse = sessionRefusal(conversation, session)
  return { conversation, turn, session, prompt: refuse ? { refuse } : prompt, loaded }
}

/**
 * Takes the next turn from a mailbox: the running one (its worker was lost), else the lowest due one. The prompt is read and
 * the turn loaded in the same transaction, so that a message is either part of it or finds the turn running and requests
 * another. Under an operator only the running turn continues. Returns null if no turn is due, after sending a wake-up for the next
 * start, and `deleted` if the conversation was deleted. The conversation's lock ensures that no wake-up is lost.
 */
async function claimNextTurn(tx: Tx, conversationId: string): Promise<ClaimedTurn | 'deleted' | null> {
  const conversation = await lockConversation(tx, conversationId)
  if (!conversation) return 'deleted'
  for (;;) {
    const turn = await findNextTurn(tx, conversationId)
    if (!turn) return null
    const end = turn.chat_id === null && endStates[turn.generation_status]
    if (end) {
      // Its generation was ended from outside, by a cancellation or a redaction.
      await endTurns(tx, conversationId, [turn.seq], end)
      if (end === 'failed')
        addSessionFrame(tx, conversation, { event: 'turn_failed', generation_id: turn.generation_id })
      continue
    }
    // Woken by the handback.
    if (turn.held && turn.state === 'queued') return null
    if (turn.generation_status === 'in_progress') {
      if (turn.state === 'queued') {
        await startTurn(tx, turn)
        addStartFrame(tx, conversation, turn)
      }
      return { conversation, turn, session: null, prompt: null, loaded: null }
    }
    // Woken by the resume of the project or by the sweep.
    if (turn.paused) return null
    if (turn.state === 'queued' && !turn.due) {
      wakeConversation(tx, conversation, { startAfter: new Date(turn.not_before as string) })
      return null
    }
    const prepared = await preparePrompt(tx, conversation, turn)
    if (turn.state === 'queued') addStartFrame(tx, conversation, turn)
    const session = await sessionOf(tx, conversation)
    return claimedTurn(
      conversation,
      turn.chat_id === null ? turn : { ...turn, attempt: turn.attempt + 1 },
      session,
      prepared,
    )
  }
}

/** Adds the start of a turn to the stream of its session. Turns of chats have no generation. */
function addStartFrame(tx: Tx, conversation: ConversationRow, { generation_id }: TurnRow): void {
  if (generation_id !== null) addSessionFrame(tx, conversation, { event: 'turn_started', generation_id })
}

/** Returns a turn to the queue that did not start because its project was paused meanwhile. */
const requeueClaimedTurn = (services: Services, { conversation, turn }: ClaimedTurn) =>
  services.write(async tx => {
    if (await lockConversation(tx, conversation.id)) await requeueTurn(tx, turn)
  })

/** Executes a turn by its agent or its chat. `wasLast`: no other turn was open when it ended. */
async function executeClaimedTurn(services: Services, claimed: ClaimedTurn, context: JobContext) {
  if (claimed.turn.chat_id !== null)
    return { outcome: await executeChatTurn(services, claimed, context), wasLast: false }
  const { signal, stopping, log, releaseSlotWhile, retryIn, complete, lostClaim } = context
  const source = turnSource(claimed, complete)
  const options = { signal, stopping, log, releaseSlotWhile, retryIn, source, lostClaim }
  const outcome = await executeTurn(services, claimed.turn.generation_id, options, claimed.loaded)
  return { outcome, wasLast: source.wasLast() }
}

/** Executes the due turns of a conversation in sequence, in the order of the mailbox. */
async function processMailbox(services: Services, conversationId: string, context: JobContext): Promise<void> {
  const { signal, stopping } = context
  for (;;) {
    if (signal.aborted) return
    if (stopping.aborted) throw new RequeueError('worker is stopping')
    const claimed =
      (await takeNextTurn(services, conversationId)) ?? (await services.write(tx => claimNextTurn(tx, conversationId)))
    if (!claimed) return
    if (claimed === 'deleted') return endOrphanedTurns(services, conversationId, stopping)
    await injectFault(services, 'turn_taken')
    const log = context.log.child({ conversation_id: conversationId, seq: claimed.turn.seq })
    const { outcome, wasLast } = await executeClaimedTurn(services, claimed, { ...context, log })
    if (outcome === 'waiting' || (outcome === 'settled' && wasLast)) return
    if (outcome === 'requeued') throw new RequeueError('turn was requeued')
    if (outcome === 'deferred') {
      await requeueClaimedTurn(services, claimed)
      return
    }
    if (outcome === 'claim_lost') {
      if (signal.aborted) return
      if (await isStillOpen(services, conversationId, claimed)) {
        context.retryIn(1000)
        throw new Error('another worker executes the turn of this conversation')
      }
    }
  }
}

/** Whether a turn whose claim was lost is still open; a turn cancelled at its start is not. */
const isStillOpen = (services: Services, conversationId: string, claimed: ClaimedTurn): Promise<boolean> =>
  services.write(async tx => {
    if (!(await lockConversation(tx, conversationId))) return false
    const turn = await findNextTurn(tx, conversationId)
    return turn?.seq === claimed.turn.seq && (turn.chat_id !== null || endStates[turn.generation_status] === undefined)
  })

/** Fails the next turn after the last attempt of its mailbox, so that later turns are not blocked. */
async function abandonNextTurn(services: Services, conversationId: string): Promise<void> {
  await services.write(async tx => {
    const conversation = await lockConversation(tx, conversationId)
    if (!conversation) return
    const turn = await findNextTurn(tx, conversationId)
    if (turn?.state !== 'running' && (!turn?.due || turn.held)) return
    const failure: RecordedFailure = {
      code: 'GENERATION_FAILED',
      message: 'The turn was abandoned after repeated failures of its handler',
      meta: { reason: 'handler_failed' },
    }
    await cancelTurns(tx, services, [turn], failure, { force: true })
    wakeConversation(tx, conversation)
  })
}

const SWEEP_PAGE = 500
/** Age up to which a turn's own wake-up is assumed to be pending. */
const QUIET_SECONDS = 5

/** Wakes every conversation with a due turn, and deleted ones with unsettled turns; an existing message is retained. */
async function sweepConversations({ pool, queues }: Services): Promise<void> {
  const wake = (found: readonly { conversation_id: string; project_id: string }[]) =>
    queues.send(found.map(ref => queueMessage(conversationQueue, ref)))
  await wake(await listDeletedConversations(pool, SWEEP_PAGE))
  let after = ''
  for (;;) {
    const found = await listWakeableConversations(pool, { quietSeconds: QUIET_SECONDS, after, limit: SWEEP_PAGE })
    await wake(found)
    if (found.length < SWEEP_PAGE) return
    after = found[found.length - 1].conversation_id
    await sleep(0)
  }
}

/** Handlers of mailboxes and of the sweep. */
export const turnHandlers = [
  handler(
    conversationQueue,
    {
      leaseSeconds: config => config.GENERATION_LEASE_SECONDS,
      boundsLosses: true,
      onExhausted: ({ conversation_id }, _error, services) => abandonNextTurn(services, conversation_id),
    },
    ({ conversation_id }, context) => processMailbox(context.services, conversation_id, context),
  ),
  handler(conversationSweep, { concurrency: 1 }, (_message, { services }) => sweepConversations(services)),
]

export const turnSchedules = [
  schedule('conversation.sweep', config => config.CONVERSATION_SWEEP_SECONDS, conversationSweep, {}),
]
