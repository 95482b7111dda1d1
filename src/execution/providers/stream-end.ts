import { AsyncLocalStorage } from 'node:async_hooks'

/** The end of an event stream of a vendor, of which the packages tell nothing. */
export type StreamEnd = { tail: string }

const current = new AsyncLocalStorage<StreamEnd>()

/** Characters of the last event of an OpenAI-compatible stream, with what may surround it. */
const TAIL = 64

/** Makes a call and watches the end of the stream that it opens. */
export function watchEnd<T>(call: () => T): { result: T; end: StreamEnd } {
  const end: StreamEnd = { tail: '' }
  return { result: current.run(end, call), end }
}

/** Whether the stream ended with the last event of OpenAI-compatible streams, which may have no reason of the end. */
export const isEndSeen = ({ tail }: StreamEnd): boolean => tail.includes('[DONE]')

/** Returns `fetch` whose event streams are watched for the current call. */
export function watchedFetch(fetch: typeof globalThis.fetch): typeof globalThis.fetch {
  return async (input, init) => {
    const end = current.getStore()
    const response = await fetch(input, init)
    if (!end || !response.body || !response.headers.get('content-type')?.includes('text/event-stream')) return response
    const reader = response.body.getReader()
    const watched = new ReadableStream<Uint8Array>(
      {
        async pull(controller) {
          const { done, value } = await reader.read()
          if (done) return controller.close()
          end.tail = (end.tail + Buffer.from(value.subarray(-TAIL)).toString('latin1')).slice(-TAIL)
          controller.enqueue(value)
        },
        cancel: reason => reader.cancel(reason),
      },
      { highWaterMark: 0 },
    )
    return new Response(watched, response)
  }
}
