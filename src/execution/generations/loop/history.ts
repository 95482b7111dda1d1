import type { ModelMessage } from '../../providers/model-messages.ts'
import type { GenerationRow, JournalStepRow } from '../model.ts'

/** A step as the journal keeps it: in content mode `none` counters and usage. */
export const storedStep = (step: JournalStepRow, mode: GenerationRow['content_mode']): JournalStepRow =>
  mode === 'full' ? step : { ...step, text: null, tool_calls: [], tool_results: [] }

/** A turn's messages, the newest ones when the agent bounds them; a tool message left alone by the cut goes too. */
export function historyOf(messages: ModelMessage[], limit: number | null): ModelMessage[] {
  if (limit === null || messages.length <= limit) return messages
  const kept = messages.slice(-limit)
  while (kept[0]?.role === 'tool') kept.shift()
  return kept
}
