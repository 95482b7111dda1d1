import type { Client, TestApp } from '../support/app.ts'
import { checkFrame, type Frame, frameIn } from '../support/frames.ts'

/** One message of an event stream. */
export type Message = { id: number; event: string; data: any }

export type OpenStream = { status: number; headers: Headers; messages: AsyncIterable<Message>; close(): void }

/** Opens an event stream whose ids are numbers: a POST when there is a body, else a GET. */
export async function openStream(...given: Parameters<typeof openEvents>): Promise<OpenStream> {
  const stream = await openEvents(...given)
  return { ...stream, messages: numbered(stream.messages) }
}

async function* numbered(events: AsyncIterable<StreamedEvent>): AsyncGenerator<Message> {
  for await (const event of events) yield { ...event, id: Number(event.id) }
}

/** One event of a stream, with its id as sent. */
export type StreamedEvent = Omit<Message, 'id'> & { id: string }

/** Opens an event stream: a POST when there is a body, else a GET. Each event is part of the description. */
export async function openEvents(
  app: Pick<TestApp, 'url'> & { key: Client },
  path: string,
  body?: object,
  headers: Record<string, string> = {},
): Promise<Omit<OpenStream, 'messages'> & { messages: AsyncIterable<StreamedEvent> }> {
  const controller = new AbortController()
  const response = await fetch(`${app.url}/api/v1${path}`, {
    method: body ? 'POST' : 'GET',
    headers: {
      authorization: `Bearer ${app.key.token}`,
      ...(body ? { 'content-type': 'application/json' } : {}),
      ...headers,
    },
    body: body ? JSON.stringify(body) : undefined,
    signal: controller.signal,
  })
  if (response.status !== 200) throw new Error(`${response.status} ${await response.text()}`)
  return {
    status: response.status,
    headers: response.headers,
    messages: parse(response.body as ReadableStream<Uint8Array>, frame =>
      checkFrame(body ? 'post' : 'get', path, frame),
    ),
    close: () => controller.abort(),
  }
}

async function* parse(body: ReadableStream<Uint8Array>, check: (frame: Frame) => void): AsyncGenerator<StreamedEvent> {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const chunk of body) {
    rest += decoder.decode(chunk, { stream: true })
    const blocks = rest.split('\n\n')
    rest = blocks.pop() as string
    for (const block of blocks) {
      const frame = frameIn(block)
      if (!frame) continue
      check(frame)
      yield { ...frame, id: frame.id as string }
    }
  }
}

/** All messages of a stream until it ends. */
export async function readStream(stream: OpenStream): Promise<Message[]> {
  const messages: Message[] = []
  for await (const message of stream.messages) messages.push(message)
  return messages
}
