import { estimatedTokens } from '#control/usage/meter.ts'
import type { ModelRequest, ModelUsage } from './model-messages.ts'
import { contentWithMedia } from './outgoing/result-media.ts'

/** Returns the tokens of a request and of the characters of its answer, where the vendor reported none. */
export function estimatedUsage({ system, messages, tools }: ModelRequest, outputCharacters: number): ModelUsage {
  const others = (system?.length ?? 0) + (tools.length > 0 ? JSON.stringify(tools).length : 0)
  const inputCharacters = messages.reduce((sum, { content }) => sum + charactersOf(content), others)
  return {
    input_tokens: estimatedTokens(inputCharacters),
    output_tokens: estimatedTokens(outputCharacters),
    cached_tokens: 0,
    cache_write_tokens: 0,
    reasoning_tokens: 0,
    details: { estimated_calls: 1 },
  }
}

/** Returns the number of characters of a message without files. */
function charactersOf(content: ModelRequest['messages'][number]['content']): number {
  if (typeof content === 'string') return content.length
  return content.reduce((sum, part) => {
    if (part.type === 'text') return sum + part.text.length
    if (part.type === 'tool_call') return sum + JSON.stringify(part.args).length
    return part.type === 'tool_result' ? sum + resultCharacters(part.result) : sum
  }, 0)
}

function resultCharacters(result: unknown): number {
  if (typeof result === 'string') return result.length
  const items = contentWithMedia(result)
  if (items) return items.reduce((sum, item) => sum + (item.type === 'text' ? item.text.length : 0), 0)
  return JSON.stringify(result)?.length ?? 0
}
