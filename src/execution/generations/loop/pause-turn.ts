import { recordUsageInTx } from '#control/usage/meter.ts'
import { sumUsage } from '#control/usage/totals.ts'
import { systemClock } from '#core/base/clock.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { type Entry, type JournalState, journalRows } from '../journal/store.ts'
import type { GenerationRow } from '../model.ts'
import { agentResult, clientParts, requiredAction } from '../request/turn-result.ts'
import type { AllowedCall } from '../tools/call-decision.ts'
import type { StreamEvent } from '../tools/tool-calls.ts'
import { commitAttempt } from './commit-attempt.ts'
import type { TurnAttempt } from './turn-attempt.ts'
import { emitPaused, loadTurnMemoryIfWritten } from './turn-hooks.ts'
import { pauseParts } from './turn-store.ts'

/**
 * Pauses the turn until its client has submitted the outputs of the pending calls.
 * @throws TurnClaimLost, TurnAborted
 */
export async function pauseTurn(
  turn: TurnAttempt,
  pending: readonly AllowedCall[],
  events: StreamEvent[],
): Promise<'settled'> {
  const { services, context, generation, steps } = turn
  const { step, outcomes } = turn.open as NonNullable<JournalState['open']>
  const { source } = context
  await injectFault(services, 'before_settle')
  const frames = await turn.buildFrames(events)
  const settledCalls = [...outcomes].map(([position, value]): Entry => ({ n: step.n, position: position + 1, value }))
  const entries = journalRows(services, generation, [{ n: step.n, position: 0, value: step }, ...settledCalls])
  const now = systemClock.now().toISOString()
  const required_action = requiredAction(step, pending)
  const paused: GenerationRow = {
    ...generation,
    status: 'requires_action',
    journalled: generation.journalled + 1,
    required_action,
    usage: sumUsage([...steps, step]),
    last_activity_at: now,
    updated_at: now,
  }
  const calls = await turn.priceCalls()
  const sent = turn.requests.unwritten()
  const memory = await retryWhileUnavailable(
    () => loadTurnMemoryIfWritten(services.pool, generation, [...steps, step]),
    context,
  )
  const after = paused.content_mode === 'none' ? { ...paused, required_action: null } : paused
  await commitAttempt(turn, {
    after,
    frames,
    last: result => ({
      event: 'requires_action',
      data: { ...(result ?? agentResult(paused, steps, step)), ...clientParts(turn) },
    }),
    parts: frames => pauseParts(generation, after, entries, frames, sent),
    addWrites(outbox) {
      emitPaused(outbox, after, memory)
      recordUsageInTx(services, outbox, calls.rated)
    },
    inSource:
      source?.pause && (tx => source.pause?.(tx, after, { required_action, text: step.text, model: step.model })),
    interruptible: true,
  })
  calls.written()
  return turn.reportOutcome('requires_action', null)
}
