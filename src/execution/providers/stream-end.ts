import { AsyncLocalStorage } from 'node:async_hooks'

/** Whether the last event of a vendor's stream was received, which the packages do not report. */
export type StreamEnd = { isSeen: boolean }

const current = new AsyncLocalStorage<StreamEnd>()

/** The last events of the formats of OpenAI. In a text of the model, the quotes would be escaped. */
const LAST_EVENT = /^data: ?\[DONE\]|"type": ?"response\.(?:completed|incomplete|failed)"/m
/** Characters of a chunk in which the start of a last event may be. */
const OVERLAP = 40

/** Makes a call and watches the end of the stream that it opens. */
export function watchEnd<T>(call: () => T): { result: T; end: StreamEnd } {
  const end: StreamEnd = { isSeen: false }
  return { result: current.run(end, call), end }
}

/** Returns `fetch` whose event streams are watched for the current call. */
export function watchedFetch(fetch: typeof globalThis.fetch): typeof globalThis.fetch {
  return async (input, init) => {
    const end = current.getStore()
    const response = await fetch(input, init)
    if (!end || !response.body || !response.headers.get('content-type')?.includes('text/event-stream')) return response
    const reader = response.body.getReader()
    let tail = ''
    const watched = new ReadableStream<Uint8Array>(
      {
        async pull(controller) {
          const { done, value } = await reader.read()
          if (done) return controller.close()
          const text = tail + Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('latin1')
          end.isSeen ||= LAST_EVENT.test(text)
          tail = text.slice(-OVERLAP)
          controller.enqueue(value)
        },
        cancel: reason => reader.cancel(reason),
      },
      { highWaterMark: 0 },
    )
    return new Response(watched, response)
  }
}
