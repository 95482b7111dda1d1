import { recordUsageInTx } from '../../../control/usage/meter.ts'
import { sumUsage } from '../../../control/usage/totals.ts'
import { retryWhileUnavailable } from '../../../core/db/retry.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import { type Entry, type JournalState, journalRows } from '../journal/store.ts'
import type { GenerationRow } from '../model.ts'
import { agentResult, requiredAction } from '../request/turn-result.ts'
import type { AllowedCall } from '../tools/call-decision.ts'
import type { StreamEvent } from '../tools/tool-calls.ts'
import { commitAttempt } from './commit-attempt.ts'
import type { TurnAttempt } from './turn-attempt.ts'
import { emitPaused, rememberedBy } from './turn-hooks.ts'
import { pauseParts } from './turn-store.ts'

/** Leaves the turn to its client, who makes the calls that are pending. Raises TurnLost, TurnAborted. */
export async function pauseTurn(
  turn: TurnAttempt,
  pending: readonly AllowedCall[],
  told: StreamEvent[],
): Promise<'settled'> {
  const { services, run, generation, steps } = turn
  const { step, outcomes } = turn.open as NonNullable<JournalState['open']>
  const { source } = run
  await injectFault(services, 'before_settle')
  const frames = await turn.framesOf(told)
  const settled = [...outcomes].map(([position, value]): Entry => ({ n: step.n, position: position + 1, value }))
  const entries = journalRows(services, generation, [{ n: step.n, position: 0, value: step }, ...settled])
  const now = new Date().toISOString()
  const required_action = requiredAction(step, pending)
  const shown: GenerationRow = {
    ...generation,
    status: 'requires_action',
    journalled: generation.journalled + 1,
    required_action,
    usage: sumUsage([...steps, step]),
    last_activity_at: now,
    updated_at: now,
  }
  const calls = await turn.rateCalls()
  const memory = await retryWhileUnavailable(() => rememberedBy(services.pool, generation, [...steps, step]), run)
  const after = shown.content_mode === 'none' ? { ...shown, required_action: null } : shown
  await commitAttempt(turn, {
    after,
    frames,
    last: result => turn.frames.next('requires_action', result ?? agentResult(shown, steps, step)),
    parts: frames => pauseParts(generation, after, entries, frames),
    follow(outgoing) {
      emitPaused(outgoing, after, memory)
      recordUsageInTx(outgoing, calls.rated)
    },
    add: source?.pause && (tx => source.pause?.(tx, after, { required_action, text: step.text, model: step.model })),
    yields: true,
  })
  calls.written()
  return turn.ended('requires_action', null)
}
