import { parseClientArguments } from '#conversation/chats/completion.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { MAX_MESSAGES_BYTES } from '#execution/generations/request/generate-request.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'

type ClientCall = { id: string; name: string; arguments: string }

const invalid = (path: string, message: string): never => raiseInvalid({ code: 'INVALID_VALUE', path, message })

/** Names of the fields of a route in the problems of a request. */
type FieldNames = { messages: 'messages' | 'input'; callId: 'tool_call_id' | 'call_id' }

/** Collects the messages of a request; results follow their calls immediately, as vendors require. */
export class HistoryBuilder {
  private readonly names: FieldNames
  private readonly messages: ModelMessage[] = []
  private readonly open = new Map<string, string>()

  constructor(names: FieldNames) {
    this.names = names
  }

  /** Adds messages that precede the request; calls of the last one may be answered by the request. */
  addAll(messages: readonly ModelMessage[]): void {
    this.messages.push(...messages)
    for (const message of messages) {
      this.open.clear()
      if (message.role !== 'assistant' || typeof message.content === 'string') continue
      for (const part of message.content)
        if (part.type === 'tool_call') this.open.set(part.tool_call_id, part.tool_name)
    }
  }

  addUser(content: Extract<ModelMessage, { role: 'user' }>['content']): void {
    this.closeCalls()
    this.messages.push({ role: 'user', content })
  }

  addAssistant(text: string, calls: readonly ClientCall[], reasoning?: string | null): void {
    this.closeCalls()
    if (text === '' && calls.length === 0) return
    const parts = calls.map(call => {
      this.open.set(call.id, call.name)
      const args = parseClientArguments(call.arguments)
      return { type: 'tool_call' as const, tool_call_id: call.id, tool_name: call.name, args }
    })
    this.messages.push({
      role: 'assistant',
      content: [...(text === '' ? [] : [{ type: 'text' as const, text }]), ...parts],
      ...(reasoning && { reasoning }),
    })
  }

  /** @throws VALIDATION_FAILED for a result without a preceding call */
  addResult(id: string, text: string, path: string, field: string = this.names.callId): void {
    const tool_name = this.open.get(id)
    if (tool_name === undefined)
      throw invalid(`${path}.${field}`, 'is not a pending call of the preceding assistant message')
    this.open.delete(id)
    const result = { type: 'tool_result' as const, tool_call_id: id, tool_name, result: text, error: null }
    const last = this.messages.at(-1)
    if (last?.role === 'tool') last.content.push(result)
    else this.messages.push({ role: 'tool', content: [result] })
  }

  /** Returns the messages. @throws VALIDATION_FAILED for pending calls, no message, and more than 4 MiB of text */
  finish(): ModelMessage[] {
    const path = this.names.messages
    this.closeCalls()
    if (this.messages.length === 0) invalid(path, 'must contain a message of the user or the assistant')
    const bytes = this.messages.reduce((sum, message) => sum + textBytes(message), 0)
    if (bytes > MAX_MESSAGES_BYTES)
      raiseInvalid({ code: 'TOO_BIG', path, message: 'must be at most 4 MiB of text in total' })
    return this.messages
  }

  /** Requires results of all calls before the next message. */
  private closeCalls(): void {
    if (this.open.size > 0)
      invalid(this.names.messages, `must contain the result of tool call ${[...this.open.keys()][0]}`)
  }
}

/** Returns the size of a message without its attachments. */
function textBytes(message: ModelMessage): number {
  const { content } = message
  if (typeof content === 'string') return Buffer.byteLength(content)
  return content.reduce(
    (sum, part) => sum + (part.type === 'attachment' ? 0 : Buffer.byteLength(JSON.stringify(part))),
    message.role === 'assistant' ? Buffer.byteLength(message.reasoning ?? '') : 0,
  )
}
