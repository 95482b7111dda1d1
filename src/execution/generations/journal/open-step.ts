import { randomUUID } from 'node:crypto'
import { totalsOf } from '../../../control/usage/totals.ts'
import type { ModelAnswer } from '../../providers/model-messages.ts'
import type { JournalStepRow, OpenStep, ToolCallOutcome } from '../model.ts'

/** What an Idempotency-Key may hold. */
const CALL_ID = /^[\x21-\x7e]{1,128}$/

/** A step out of what the model answered; each call gets an id that no other call of the turn has. */
export function openStepOf(
  answer: ModelAnswer,
  n: number,
  startedAt: string,
  earlier: readonly JournalStepRow[],
): OpenStep {
  const taken = new Set(earlier.flatMap(step => step.tool_calls.map(({ id }) => id)))
  const unique = (id: string): string => {
    const own = CALL_ID.test(id) && !taken.has(id) ? id : `call_${randomUUID().replaceAll('-', '')}`
    taken.add(own)
    return own
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
    started_at: startedAt,
  }
}

/** An outcome that the model sees as a failure of its call. */
export const failedCall = (code: string, message: string, meta?: Record<string, unknown>): ToolCallOutcome => ({
  result: null,
  error: { code, message, ...(meta ? { meta } : {}) },
})
export const callFailed = (message: string, reason: string) => failedCall('TOOL_CALL_FAILED', message, { reason })

/** Name of the platform's own tool that states facts: it calls nobody. */
export const WRITE_MEMORY = 'write_memory'

const NOT_RUN = callFailed('The turn ended before the call was made', 'not_run')
/** Of a call that was started by a worker that was lost. */
export const UNKNOWN = callFailed('Whether the call was made is not known', 'outcome_unknown')

/** The step as it settles. Calls without an outcome were not made, or it is not known what became of them. */
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
  completed_at: new Date().toISOString(),
})
