import { type Problem, raise, raiseInvalid } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import type { OpenMessage } from '../../execution/generations/request/message-documents.ts'
import type { CompletionBody, WireMessage } from './openai-format.ts'

/**
 * The messages of a request as a model is asked with them.
 * @throws SYSTEM_MESSAGE_NOT_ALLOWED before anything else is looked at, VALIDATION_FAILED
 */
export function openMessages({ messages }: Pick<CompletionBody, 'messages'>): OpenMessage[] {
  if (messages.some(({ role }) => role === 'system' || role === 'developer')) raise('SYSTEM_MESSAGE_NOT_ALLOWED')
  const problems: Problem[] = []
  const called = new Map<string, string>()
  const opened = messages.map((message, index) => open(message, `messages[${index}]`, called, problems))
  if (problems.length > 0) raiseInvalid(problems)
  requireResults(messages)
  return opened
}

/** Refuses calls without results right behind them, and results without calls: each provider refuses them in its own way. */
function requireResults(messages: readonly WireMessage[]): void {
  let open = new Set<string>()
  const wrong = (path: string, message: string) => raiseInvalid({ code: 'INVALID_VALUE', path, message })
  for (const [index, message] of messages.entries()) {
    if (message.role === 'tool') {
      if (!open.delete(message.tool_call_id))
        wrong(`messages[${index}].tool_call_id`, 'is no call right before it that waits for its result')
      continue
    }
    if (open.size > 0) wrong(`messages[${index}]`, `comes before the result of the call ${[...open][0]}`)
    const ids = message.role === 'assistant' ? (message.tool_calls ?? []).map(call => call.id) : []
    open = new Set(ids)
    if (open.size < ids.length) wrong(`messages[${index}].tool_calls`, 'has two calls of one id')
  }
  if (open.size > 0) wrong('messages', `lack the result of the call ${[...open][0]}`)
}

/** @param called names of the tools that were called before, by the ids of the calls */
function open(message: WireMessage, path: string, called: Map<string, string>, problems: Problem[]): OpenMessage {
  const wrong = (at: string, text: string) =>
    problems.push({ code: 'INVALID_VALUE', path: `${path}${at}`, message: text })
  if (message.role === 'tool') {
    const { tool_call_id, content } = message
    const tool_name = called.get(tool_call_id)
    if (tool_name === undefined) wrong('.tool_call_id', 'is no call of an earlier message of the assistant')
    const result = {
      type: 'tool_result' as const,
      tool_call_id,
      tool_name: tool_name ?? '',
      result: content,
      error: null,
    }
    return { role: 'tool', content: [result] }
  }
  if (message.role === 'system' || message.role === 'developer') return raise('SYSTEM_MESSAGE_NOT_ALLOWED')
  const { role, content, document_id } = message
  const calls = message.role === 'assistant' ? (message.tool_calls ?? []) : []
  if (content != null && document_id !== undefined) wrong('.document_id', 'does not go with content')
  if (content == null && document_id === undefined && calls.length === 0)
    wrong('.content', 'content or document_id is required')
  if (document_id !== undefined) {
    if (calls.length > 0) wrong('.tool_calls', 'does not go with document_id')
    return { role, content: { type: 'document', document_id } }
  }
  if (calls.length === 0) return { role, content: content ?? '' } as OpenMessage
  const parts = calls.map(({ id, function: { name, arguments: text } }, at) => {
    called.set(id, name)
    return {
      type: 'tool_call' as const,
      tool_call_id: id,
      tool_name: name,
      args: parsed(text, () => wrong(`.tool_calls[${at}].function.arguments`, 'must be a JSON object')),
    }
  })
  const said = content ? [{ type: 'text' as const, text: content as string }] : []
  return { role: 'assistant', content: [...said, ...parts] }
}

function parsed(text: string, refuse: () => void): unknown {
  try {
    const value = storableValue(JSON.parse(text === '' ? '{}' : text))
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value
  } catch {}
  refuse()
  return {}
}
