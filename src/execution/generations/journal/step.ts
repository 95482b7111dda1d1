import { randomUUID } from 'node:crypto'
import { totalsOf } from '#control/usage/totals.ts'
import { systemClock } from '#core/base/clock.ts'
import type { ModelAnswer } from '#execution/providers/model-messages.ts'
import type { GenerationRow, JournalStepRow, OpenStep, ToolCallOutcome } from '../model.ts'

/** Ids that are valid as an Idempotency-Key. */
const CALL_ID = /^[\x21-\x7e]{1,128}$/

/** Returns the step of a model answer, with call ids that are unique in the turn. */
export function openStepOf(
  answer: ModelAnswer,
  n: number,
  startedAt: string,
  earlier: readonly JournalStepRow[],
): OpenStep {
  const usedIds = new Set(earlier.flatMap(step => step.tool_calls.map(({ id }) => id)))
  const unique = (id: string): string => {
    const callId = CALL_ID.test(id) && !usedIds.has(id) ? id : `call_${randomUUID().replaceAll('-', '')}`
    usedIds.add(callId)
    return callId
  }
  return {
    n,
    text: answer.text,
    finish_reason: answer.finish_reason,
    model: answer.model,
    ai_provider_id: answer.ai_provider_id,
    tool_calls: answer.tool_calls.map(({ id, tool_name, args, args_error }) => ({
      id: unique(id),
      tool_name,
      args,
      ...(args_error ? { args_error } : {}),
    })),
    usage: answer.usage ? totalsOf(answer.usage) : null,
    ...(answer.served_model && { served_model: answer.served_model }),
    ...(answer.service_tier && { service_tier: answer.service_tier }),
    ...(answer.vendor_parts && { vendor_parts: answer.vendor_parts }),
    ...(answer.annotations && { annotations: answer.annotations }),
    ...(answer.notes && { notes: answer.notes }),
    started_at: startedAt,
    answered_at: systemClock.now().toISOString(),
  }
}

/** Returns the outcome of a failed call, which the model receives. */
export const failedCall = (code: string, message: string, meta?: Record<string, unknown>): ToolCallOutcome => ({
  result: null,
  error: { code, message, ...(meta ? { meta } : {}) },
})
export const callFailed = (message: string, reason: string) => failedCall('TOOL_CALL_FAILED', message, { reason })

/** Name of the built-in tool that writes facts. */
export const WRITE_MEMORY = 'write_memory'

const NOT_RUN = callFailed('The turn ended before the call was made', 'not_run')
/** Outcome of a call that had started when its turn ended. */
const UNKNOWN = callFailed('The outcome of the call is unknown', 'outcome_unknown')

/** Outcome of a call that a lost worker had started, and that must not be repeated. */
export const WITHHELD: ToolCallOutcome = { ...UNKNOWN, recovery: 'withheld' }

/** Outcome of a call in an answer that was cut off by its limit of tokens. */
export const CUT = callFailed('The answer was cut before the call was complete; it was not made', 'answer_cut')

/** Returns a step as settled. Calls without an outcome were either not made or have an unknown outcome. */
export const settledStep = (
  { tool_calls, ...step }: OpenStep,
  outcomes: ReadonlyMap<number, ToolCallOutcome>,
  started: ReadonlySet<number> = new Set(),
): JournalStepRow => ({
  ...step,
  tool_calls: tool_calls.map(({ id, tool_name, args }) => ({ id, tool_name, args })),
  tool_results: tool_calls.map(({ id, tool_name }, index) => ({
    tool_call_id: id,
    tool_name,
    ...(outcomes.get(index) ?? (started.has(index) ? UNKNOWN : NOT_RUN)),
  })),
  completed_at: systemClock.now().toISOString(),
})

/** Returns the journalled form of a step: in content mode `none` without content. */
export const storedStep = (step: JournalStepRow, mode: GenerationRow['content_mode']): JournalStepRow =>
  mode === 'full'
    ? step
    : { ...step, text: null, tool_calls: [], tool_results: [], vendor_parts: null, annotations: null }
