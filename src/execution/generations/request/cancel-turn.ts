import type { RecordedFailure } from '../../../core/api/errors.ts'
import type { Tx } from '../../../core/db/writer.ts'
import { extensionPoint } from '../../../core/declarations.ts'
import type { Services } from '../../../core/process/services.ts'
import { findAbandonedSteps } from '../journal/abandoned-steps.ts'
import { settledStep } from '../journal/open-step.ts'
import { storedStep } from '../loop/history.ts'
import { meterStopped } from '../loop/metering.ts'
import { openTurnData } from '../loop/turn-data.ts'
import { emitSettled, rememberTurnCte } from '../loop/turn-hooks.ts'
import { turnOwnerOf } from '../loop/turn-owner.ts'
import { executeFenced, settlementParts } from '../loop/turn-store.ts'
import { type GenerationRow, generationKind, storedForm } from '../model.ts'
import { findTurnData, requestAbort } from '../store.ts'
import { lastFrame } from '../streams/frame-store.ts'
import { makeFrame } from '../streams/frames.ts'
import { ABORT_CHANNEL } from '../streams/live-turns.ts'
import { traceFlushQueue } from '../traces/flush.ts'
import type { TurnInput } from './create.ts'

type EndOptions = { stop_reason?: 'error' | 'cancelled'; force?: boolean }

/** The end of a turn that somebody called off. */
export const CANCELLED: RecordedFailure = { code: 'GENERATION_FAILED', message: 'cancelled' }

/** What conversations add to turns that wait in their mailboxes. They build on this area, so they contribute it. */
export type Mailboxes = {
  /** Ends a turn with its place in the mailbox; false when no mailbox holds it. */
  end: (
    tx: Tx,
    services: Services,
    generation: Pick<GenerationRow, 'id' | 'conversation_id'>,
    failure: RecordedFailure,
    options: EndOptions,
  ) => Promise<boolean>
  /** Puts a turn that repeats a failed one into the failed one's mailbox. */
  retry: (
    tx: Tx,
    services: Services,
    failed: GenerationRow,
    input: TurnInput,
  ) => Promise<{ generation_id: string; trace_id: string }>
  /** Takes the mailbox of a paused turn, before its generation is locked; the result puts the turn into it again. */
  resume: (
    tx: Tx,
    generation: Pick<GenerationRow, 'id' | 'conversation_id'>,
    principal: { type: string; id: string },
  ) => Promise<() => Promise<void>>
  /** Puts a turn that carries on with what came of an earlier one into its mailbox, behind a message that says so. */
  continue: (
    tx: Tx,
    services: Services,
    conversationId: string,
    opening: string,
    input: Omit<TurnInput, 'messages'>,
  ) => Promise<{ generation_id: string; trace_id: string }>
}

export const mailboxHooks = extensionPoint<Mailboxes>('mailboxes of turns')

/** Calls a turn off, whoever holds it: its generation ends as with `abortTurn`, and its place in a mailbox with it. */
export async function cancelTurn(tx: Tx, services: Services, generation: GenerationRow): Promise<void> {
  const options = { stop_reason: 'cancelled' } as const
  const inMailbox = generation.conversation_id === null ? null : mailboxHooks.only()
  if (await inMailbox?.end(tx, services, generation, CANCELLED, options)) return
  await abortTurn(tx, services, generation.id, CANCELLED, options)
}

/**
 * Calls off a turn that something else waited for, unless it has ended or is gone. One that has ended is not locked: whoever
 * holds it, to erase it or to note its end, may be waiting for what the caller holds.
 */
export async function cancelTurnIfActive(tx: Tx, services: Services, id: string): Promise<void> {
  const turn = await generationKind.find(tx, id)
  if (turn && turn.status !== 'completed' && turn.status !== 'failed') await cancelTurn(tx, services, turn)
}

/**
 * Ends a turn from outside, inside the caller's transaction: a pending one fails at once with the failure, a running
 * one is asked to abort and its worker settles it, a settled one is left alone. With `force` a running one fails at once
 * too: for turns that no worker can get past; whatever still runs of it then writes nothing.
 */
export async function abortTurn(
  tx: Tx,
  services: Services,
  generationId: string,
  failure: RecordedFailure,
  options: EndOptions = {},
): Promise<'failed' | 'requested' | 'terminal'> {
  const generation = await generationKind.find(tx, generationId, true)
  if (!generation || generation.status === 'completed' || generation.status === 'failed') return 'terminal'
  const stop_reason = options.stop_reason ?? 'error'
  if (generation.status === 'in_progress' && !options.force) {
    await requestAbort(tx, generationId, { ...failure, stop_reason })
    tx.notify(ABORT_CHANNEL, generationId)
    return 'requested'
  }
  const now = new Date().toISOString()
  const left = await findAbandonedSteps(tx, services, generation)
  const usage = await meterStopped(tx, services, generation, left)
  // As far as it went, so that a retry does not repeat its calls.
  const step = left.open && settledStep(left.open.step, left.open.outcomes, left.open.started)
  const shown: GenerationRow = {
    ...generation,
    status: 'failed',
    stop_reason,
    error: failure,
    usage: usage ?? generation.usage,
    step_count: generation.step_count + (step ? 1 : 0),
    input: generation.input ?? (await askedOf(tx, services, generation)),
    required_action: null,
    completed_at: now,
    last_activity_at: now,
    updated_at: now,
  }
  const after = storedForm(shown, now)
  const frames = [makeFrame(services, generation, (await lastFrame(tx, generationId)) + 1, 'error', failure)]
  const journalled = generation.journalled > 0
  const stored = step && storedStep(step, generation.content_mode)
  await executeFenced(tx, settlementParts({ generation, after, step: stored, frames, journalled }))
  emitSettled(tx, after, generation.journalled > 0 ? await rememberTurnCte(tx, generationId) : [])
  await turnOwnerOf(after)?.settled(tx, after, { status: 'failed', content: null, object: null, error: failure })
  if (after.step_count > 0) tx.send(traceFlushQueue, { trace_id: after.trace_id, project_id: after.project_id })
  return 'failed'
}

/** What a turn was asked, for its record; null when that was to be read at its start. */
async function askedOf(tx: Tx, services: Services, generation: GenerationRow): Promise<GenerationRow['input']> {
  const sealed = await findTurnData(tx, generation.id)
  return sealed === null ? null : (openTurnData(services, generation, sealed)?.messages ?? null)
}
