import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import type { RecordedFailure } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/writer.ts'
import { handler, type JobContext, RequeueError, schedule } from '../../core/jobs/handler.ts'
import { queueMessage, workQueue } from '../../core/jobs/queue.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { executeTurn } from '../../execution/generations/loop/execute-turn.ts'
import { lockConversation } from '../conversations/store.ts'
import { executeChatTurn } from './execute-chat-turn.ts'
import { cancelTurns, conversationQueue, endTurnsLeft, wakeConversation } from './mailbox.ts'
import { preparePrompt } from './prompt.ts'
import { type PickedTurn, sessionOf, sessionRefusal, turnSource } from './source.ts'
import {
  deletedConversations,
  endTurns,
  nextTurn,
  requeueTurn,
  startTurn,
  type TurnState,
  wakeableConversations,
} from './store.ts'

/** Finds conversations with due turns and no message: the floor under the wake-ups. */
export const conversationSweep = workQueue('conversation.sweep', {
  message: z.object({}),
  concern: 'generation',
  retry: { limit: 0 },
  leaseSeconds: 60,
})

/** What a turn's row becomes once its generation is at its end. */
const endOf: Record<string, Extract<TurnState, 'done' | 'failed'> | undefined> = {
  completed: 'done',
  requires_action: 'done',
  failed: 'failed',
}

/**
 * Takes the turn to run now: the one that runs already (its worker was lost), else the lowest due one. Its prompt is read
 * with the choice, so that a message either is in it or finds the turn running and asks for another. Null when nothing
 * is due; then a wake-up is on its way for the next one that waits for its time. `deleted` when the conversation is. Because the choice is made under the
 * conversation's lock, no wake-up is lost.
 */
async function pickTurn(tx: Tx, conversationId: string): Promise<PickedTurn | 'deleted' | null> {
  const conversation = await lockConversation(tx, conversationId)
  if (!conversation) return 'deleted'
  for (;;) {
    const turn = await nextTurn(tx, conversationId)
    if (!turn) return null
    const end = turn.chat_id === null && endOf[turn.generation_status]
    if (end) {
      // Its generation was ended without its worker, by a cancel or a redaction.
      await endTurns(tx, conversationId, [turn.seq], end)
      continue
    }
    if (turn.generation_status === 'in_progress') {
      if (turn.state === 'queued') await startTurn(tx, turn)
      return { conversation, turn, session: null, prompt: null }
    }
    // Resumed by the project's resume or the sweep.
    if (turn.paused) return null
    if (turn.state === 'queued' && !turn.due) {
      wakeConversation(tx, conversation, { startAfter: new Date(turn.not_before as string) })
      return null
    }
    const prompt = await preparePrompt(tx, conversation, turn)
    const session = await sessionOf(tx, conversation)
    const refuse = sessionRefusal(conversation, session)
    const attempt = turn.attempt + 1
    const taken = turn.chat_id === null ? turn : { ...turn, attempt }
    return { conversation, turn: taken, session, prompt: refuse ? { refuse } : prompt }
  }
}

/** Gives back a turn that was taken and did not start, because its project was paused in between. */
const requeue = (services: Services, { conversation, turn }: PickedTurn) =>
  services.write(async tx => {
    if (await lockConversation(tx, conversation.id)) await requeueTurn(tx, turn)
  })

/** Runs a turn that was taken, by an agent or by a chat. */
function runTurn(services: Services, picked: PickedTurn, context: JobContext) {
  if (picked.turn.chat_id !== null) return executeChatTurn(services, picked, context)
  const { signal, stopping, log, releaseSlotWhile: aside, complete } = context
  const source = turnSource(picked, complete)
  return executeTurn(services, picked.turn.generation_id, { signal, stopping, log, aside, source })
}

/** Runs the due turns of a conversation, one after the other, in the order of their acceptance. */
async function drain(services: Services, conversationId: string, context: JobContext): Promise<void> {
  const { signal, stopping } = context
  for (;;) {
    if (signal.aborted) return
    if (stopping.aborted) throw new RequeueError('the worker stops')
    const picked = await services.write(tx => pickTurn(tx, conversationId))
    if (!picked) return
    if (picked === 'deleted') return endTurnsLeft(services, conversationId, stopping)
    await injectFault(services, 'turn_taken')
    const log = context.log.child({ conversation_id: conversationId, seq: picked.turn.seq })
    const outcome = await runTurn(services, picked, { ...context, log })
    if (outcome === 'settled' && picked.alone) return
    if (outcome === 'handed_back') throw new RequeueError('the turn goes on elsewhere')
    if (outcome === 'waiting') {
      await requeue(services, picked)
      return
    }
    if (outcome === 'lost') {
      if (signal.aborted) return
      if (await stillOpen(services, conversationId, picked)) {
        context.retryIn(1000)
        throw new Error('another worker runs the turn of this conversation')
      }
    }
  }
}

/** Whether a turn that this worker does not own goes on elsewhere; one that was cancelled at its start does not. */
const stillOpen = (services: Services, conversationId: string, picked: PickedTurn): Promise<boolean> =>
  services.write(async tx => {
    if (!(await lockConversation(tx, conversationId))) return false
    const turn = await nextTurn(tx, conversationId)
    return turn?.seq === picked.turn.seq && (turn.chat_id !== null || endOf[turn.generation_status] === undefined)
  })

/** Records that the mailbox could not get past its next turn, so that the turns behind it are not held up. */
async function giveUp(services: Services, conversationId: string): Promise<void> {
  await services.write(async tx => {
    const conversation = await lockConversation(tx, conversationId)
    if (!conversation) return
    const turn = await nextTurn(tx, conversationId)
    if (!turn?.due && turn?.state !== 'running') return
    const failure: RecordedFailure = {
      code: 'GENERATION_FAILED',
      message: 'The turn could not be run',
      meta: { reason: 'handler_failed' },
    }
    await cancelTurns(tx, services, [turn], failure, { force: true })
    wakeConversation(tx, conversation)
  })
}

const SWEEP_PAGE = 500
/** A turn this young has its own wake-up on the way. */
const QUIET_SECONDS = 5

/**
 * Sends a wake-up to every conversation with a due turn, and to those that were deleted while turns of theirs ran; one that has
 * a message keeps that one.
 */
async function sweep({ pool, queues }: Services): Promise<void> {
  const wake = (found: readonly { conversation_id: string; project_id: string }[]) =>
    queues.send(found.map(named => queueMessage(conversationQueue, named)))
  await wake(await deletedConversations(pool, SWEEP_PAGE))
  let after = ''
  for (;;) {
    const found = await wakeableConversations(pool, { quietSeconds: QUIET_SECONDS, after, limit: SWEEP_PAGE })
    await wake(found)
    if (found.length < SWEEP_PAGE) return
    after = found[found.length - 1].conversation_id
    await sleep(0)
  }
}

/** The mailbox of a conversation, and the sweep under it. */
export const turnHandlers = [
  handler(
    conversationQueue,
    {
      leaseSeconds: config => config.GENERATION_LEASE_SECONDS,
      onExhausted: ({ conversation_id }, _error, services) => giveUp(services, conversation_id),
    },
    ({ conversation_id }, context) => drain(context.services, conversation_id, context),
  ),
  handler(conversationSweep, { concurrency: 1 }, (_message, { services }) => sweep(services)),
]

export const turnSchedules = [
  schedule('conversation.sweep', config => config.CONVERSATION_SWEEP_SECONDS, conversationSweep, {}),
]
