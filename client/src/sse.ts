import { NoAnswer } from './errors.ts'
import { MESSAGE_MAX_BYTES } from './limits.ts'

/** One message of an event stream. */
export type Message = { event: string; id: string | null; data: string }

/** Yields the messages of an event stream, by the rules of the HTML standard. */
export async function* messagesOf(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Message> {
  const decoder = new TextDecoder()
  let rest = ''
  let size = 0
  let event = ''
  let id: string | null = null
  let data: string[] = []
  for await (const chunk of chunks) {
    size += chunk.byteLength
    const text = rest + decoder.decode(chunk, { stream: true })
    // A CR at the end may be the first half of a CRLF.
    const end = text.endsWith('\r') ? text.length - 1 : text.length
    const lines = text.slice(0, end).split(/\r\n|\r|\n/)
    rest = (lines.pop() as string) + text.slice(end)
    for (const line of lines) {
      if (line === '') {
        if (data.length > 0) yield { event: event || 'message', id, data: data.join('\n') }
        size = rest.length
        event = ''
        id = null
        data = []
        continue
      }
      const colon = line.indexOf(':')
      const field = colon < 0 ? line : line.slice(0, colon)
      const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1)
      if (field === 'event') event = value
      else if (field === 'data') data.push(value)
      else if (field === 'id' && !value.includes('\0')) id = value
    }
    if (size > MESSAGE_MAX_BYTES) throw new NoAnswer('too_large', 'a message of the stream is larger than 16 MiB')
  }
}
