import type { PromptMessage } from '../model-messages.ts'

/**
 * Returns messages in which no two calls have the same ID, which Anthropic refuses: models that count their calls begin again in
 * each turn. The first call keeps its ID. Results are of the calls of the message that they follow, in order.
 */
export function withUniqueCalls(messages: readonly PromptMessage[]): PromptMessage[] {
  const used = new Set<string>()
  let called = new Map<string, string[]>()
  return messages.map((message): PromptMessage => {
    if (message.role === 'tool') {
      const content = message.content.map(part => {
        const tool_call_id = called.get(part.tool_call_id)?.shift() ?? part.tool_call_id
        return tool_call_id === part.tool_call_id ? part : { ...part, tool_call_id }
      })
      return { ...message, content }
    }
    if (message.role === 'user' || typeof message.content === 'string') return message
    called = new Map()
    const content = message.content.map(part => {
      if (part.type === 'text') return part
      const { tool_call_id: id } = part
      let unique = id
      for (let n = 1; used.has(unique); n++) unique = `${id}-${n}`
      used.add(unique)
      called.set(id, [...(called.get(id) ?? []), unique])
      return unique === id ? part : { ...part, tool_call_id: unique }
    })
    return { ...message, content }
  })
}
