import type { Readable } from 'node:stream'

/** An event of a turn's stream; null for a comment that keeps the connection open. */
export type TurnFrame = { event: string; data: Record<string, any> } | null

/** Reads the events of a response of server-sent events. */
export async function* readFrames(stream: Readable): AsyncGenerator<TurnFrame> {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const piece of stream) {
    rest += decoder.decode(piece as Buffer, { stream: true })
    const blocks = rest.split('\n\n')
    rest = blocks.pop() as string
    for (const block of blocks) yield frameOf(block)
  }
}

function frameOf(block: string): TurnFrame {
  const fields = new Map(
    block.split('\n').map(line => {
      const end = line.indexOf(':')
      return [line.slice(0, end), line.slice(end + 1).trimStart()] as const
    }),
  )
  const event = fields.get('event')
  return event === undefined ? null : { event, data: JSON.parse(fields.get('data') ?? '{}') }
}
