import { systemClock } from '#core/base/clock.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { settledStep, storedStep } from '../journal/step.ts'
import { findAbandonedSteps } from '../journal/store.ts'
import { meterAbortedTurn } from '../loop/metering.ts'
import { openTurnData } from '../loop/turn-data.ts'
import { emitSettled, loadTurnMemory } from '../loop/turn-hooks.ts'
import { turnOwnerOf } from '../loop/turn-owner.ts'
import { executeFenced, settlementParts } from '../loop/turn-store.ts'
import { type GenerationRow, generationKind, storedForm } from '../model.ts'
import { findTurnData, listActiveTurns, requestAbort } from '../store.ts'
import { lastFrame } from '../streams/frame-store.ts'
import { makeFrame } from '../streams/frames.ts'
import { ABORT_CHANNEL } from '../streams/live-turns.ts'
import { notifyEnd } from '../streams/turn-end.ts'
import { traceFlushQueue } from '../traces/flush.ts'
import type { TurnInput } from './create.ts'

type CancelOptions = { stop_reason?: 'error' | 'cancelled'; force?: boolean }

/** Failure of a cancelled turn. */
export const CANCELLED: RecordedFailure = { code: 'GENERATION_FAILED', message: 'cancelled' }

/** Reasons in the failure of a turn that another turn replaced or an operator cancelled. */
export const CANCEL_REASONS = ['interrupted', 'rolled_back', 'takeover']

/** Operations of conversations on turns in their mailboxes, contributed because conversations depend on this module. */
export type Mailboxes = {
  /** Cancels a turn and removes it from its mailbox. Returns false if it is in no mailbox. */
  cancel: (
    tx: Tx,
    services: Services,
    generation: Pick<GenerationRow, 'id' | 'conversation_id'>,
    failure: RecordedFailure,
    options: CancelOptions,
  ) => Promise<boolean>
  /** Enqueues a turn that retries a failed one in the mailbox of the failed one. */
  retry: (
    tx: Tx,
    services: Services,
    failed: GenerationRow,
    input: TurnInput,
  ) => Promise<{ generation_id: string; trace_id: string }>
  /** Locks the mailbox of a paused turn, before its generation is locked. The returned function enqueues the turn. */
  resume: (
    tx: Tx,
    generation: Pick<GenerationRow, 'id' | 'conversation_id'>,
    principal: { type: string; id: string },
  ) => Promise<() => Promise<void>>
  /** Reports the end of a paused turn, which is in no mailbox. */
  pausedEnded: (tx: Tx, generation: Pick<GenerationRow, 'id' | 'session_id'>) => void
  /** Enqueues a turn that continues an earlier one, after an opening message. */
  continue: (
    tx: Tx,
    services: Services,
    conversationId: string,
    opening: string,
    input: Omit<TurnInput, 'messages'>,
  ) => Promise<{ generation_id: string; trace_id: string }>
}

export const mailboxHooks = extensionPoint<Mailboxes>({
  name: 'mailboxes of turns',
  folder: 'execution/generations/request',
  description: 'Cancels, retries, resumes and continues turns that wait in the mailbox of a conversation',
})

/** Cancels a turn in any state and removes it from its mailbox; its generation settles as with `abortTurn`. */
export async function cancelTurn(tx: Tx, services: Services, generation: GenerationRow): Promise<void> {
  const options = { stop_reason: 'cancelled' } as const
  const inMailbox = generation.conversation_id === null ? null : mailboxHooks.only()
  if (await inMailbox?.cancel(tx, services, generation, CANCELLED, options)) return
  await abortTurn(tx, services, generation.id, CANCELLED, options)
}

/**
 * Cancels a turn that another row waited for, unless it has settled or was deleted. A settled turn is not locked: a
 * transaction that erases or settles it may be waiting for a lock of the caller.
 */
export async function cancelTurnIfActive(tx: Tx, services: Services, id: string): Promise<void> {
  const turn = await generationKind.find(tx, id)
  if (turn && turn.status !== 'completed' && turn.status !== 'failed') await cancelTurn(tx, services, turn)
}

/** Cancels the turns among some that have not settled; see `cancelTurnIfActive`. One statement for those that have. */
export async function cancelActiveTurns(tx: Tx, services: Services, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  for (const id of await listActiveTurns(tx, ids)) await cancelTurnIfActive(tx, services, id)
}

/**
 * Ends a turn from outside in the caller's transaction: a pending, paused or waiting turn fails immediately, a turn in progress
 * is requested to abort and settled by its worker, a settled turn is unchanged. With `force` a turn in progress also
 * fails immediately, for turns whose worker makes no progress; its later writes fail the fence.
 */
export async function abortTurn(
  tx: Tx,
  services: Services,
  generationId: string,
  failure: RecordedFailure,
  options: CancelOptions = {},
): Promise<'failed' | 'requested' | 'terminal'> {
  const generation = await generationKind.find(tx, generationId, true)
  if (!generation || generation.status === 'completed' || generation.status === 'failed') return 'terminal'
  const stop_reason = options.stop_reason ?? 'error'
  // No worker has a turn that was requeued to wait for its model, whether or not the wait is over.
  const hasNoWorker = generation.handed_back && generation.model_retry_at !== null
  if (generation.status === 'in_progress' && !hasNoWorker && !options.force) {
    await requestAbort(tx, generationId, { ...failure, stop_reason })
    tx.notify(ABORT_CHANNEL, generationId)
    return 'requested'
  }
  const now = systemClock.now().toISOString()
  const abandoned = await findAbandonedSteps(tx, services, generation)
  const usage = await meterAbortedTurn(tx, services, generation, abandoned)
  // The step in progress is settled with its outcomes, so that a retry does not repeat its calls.
  const { open } = abandoned
  const step = open && settledStep(open.step, open.outcomes, open.started)
  const settled: GenerationRow = {
    ...generation,
    status: 'failed',
    stop_reason,
    error: failure,
    usage: usage ?? generation.usage,
    step_count: generation.step_count + (step ? 1 : 0),
    input: generation.input ?? (await findTurnMessages(tx, services, generation)),
    required_action: null,
    completed_at: now,
    last_activity_at: now,
    updated_at: now,
  }
  const after = storedForm(settled, now)
  const frames = [makeFrame(services, generation, (await lastFrame(tx, generationId)) + 1, 'error', failure)]
  const journalled = generation.journalled > 0
  const stored = step && storedStep(step, generation.content_mode)
  await executeFenced(tx, settlementParts({ generation, after, step: stored, frames, journalled }))
  if (generation.status === 'requires_action') mailboxHooks.only()?.pausedEnded(tx, after)
  emitSettled(tx, after, generation.journalled > 0 ? await loadTurnMemory(tx, generationId) : [])
  notifyEnd(tx, generationId)
  await turnOwnerOf(after)?.settled(tx, after, { status: 'failed', content: null, object: null, error: failure })
  if (after.step_count > 0) tx.send(traceFlushQueue, { trace_id: after.trace_id, project_id: after.project_id })
  return 'failed'
}

/** Returns the messages of a turn for its record; null if they had not been prepared. */
async function findTurnMessages(
  tx: Tx,
  services: Services,
  generation: GenerationRow,
): Promise<GenerationRow['input']> {
  const sealed = await findTurnData(tx, generation.id)
  return sealed === null ? null : (openTurnData(services, generation, sealed)?.messages ?? null)
}
