import type { ModelAnswer, ModelMessage } from '../providers/exchange.ts'
import { type GenerationRow, type StepRow, totalsOf } from './model.ts'

/**
 * A step out of what the model answered. No tool is bound, so every call names a tool that is not there; the model sees
 * that as the call's result.
 */
export const stepOf = (answer: ModelAnswer, n: number, startedAt: string): StepRow => ({
  n,
  text: answer.text,
  finish_reason: answer.finish_reason,
  model: answer.model,
  ai_provider_id: answer.ai_provider_id,
  tool_calls: answer.tool_calls.map(({ id, tool_name, args }) => ({ id, tool_name, args })),
  tool_results: answer.tool_calls.map(({ id, tool_name }) => ({
    tool_call_id: id,
    tool_name,
    result: null,
    error: { code: 'TOOL_NOT_FOUND', message: `There is no tool ${tool_name}` },
  })),
  usage: answer.usage ? totalsOf(answer.usage) : null,
  started_at: startedAt,
  completed_at: new Date().toISOString(),
})

/** A step as the journal keeps it: in content mode `none` counters and usage. */
export const storedStep = (step: StepRow, mode: GenerationRow['content_mode']): StepRow =>
  mode === 'full' ? step : { ...step, text: null, tool_calls: [], tool_results: [] }

/** A turn's messages, the newest ones when the agent bounds them; a tool message left alone by the cut goes too. */
export function historyOf(messages: ModelMessage[], limit: number | null): ModelMessage[] {
  if (limit === null || messages.length <= limit) return messages
  const kept = messages.slice(-limit)
  while (kept[0]?.role === 'tool') kept.shift()
  return kept
}
