import { AsyncLocalStorage } from 'node:async_hooks'

/** Whether the last event of a vendor's stream was received, which the packages do not report. */
export type StreamEnd = { isSeen: boolean }

const current = new AsyncLocalStorage<StreamEnd>()

/** Makes a call and watches the end of the stream that it opens. */
export function watchEnd<T>(call: () => T): { result: T; end: StreamEnd } {
  const end: StreamEnd = { isSeen: false }
  return { result: current.run(end, call), end }
}

/** The last events of the formats of OpenAI. In a text of the model, the quotes would be escaped. */
const LAST_EVENT = /^data: ?\[DONE\]|"type": ?"response\.(?:completed|incomplete|failed)"/m
/** Characters of a chunk in which the start of a last event may be. */
const OVERLAP = 40
/** Events without data, by which servers keep connections; the packages fail to parse them. */
const BLANK_EVENT = /^data: *\r?\n/gm
/** The start of a line that may become a blank event. */
const MAYBE_BLANK = /^d(?:a(?:t(?:a(?:: *\r?)?)?)?)?$/

/** Passes an event stream on, without blank events, and notes its last event. */
class EventStreamFilter {
  readonly #end: StreamEnd
  #tail = ''
  #held = ''
  #isAtLineStart = true

  constructor(end: StreamEnd) {
    this.#end = end
  }

  /** Returns the part of a chunk to pass on. */
  take(chunk: Uint8Array): Uint8Array {
    const text = this.#held + Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength).toString('latin1')
    const seen = this.#tail + text
    this.#end.isSeen ||= LAST_EVENT.test(seen)
    this.#tail = seen.slice(-OVERLAP)
    const lastLine = text.slice(text.lastIndexOf('\n') + 1)
    const isLineStart = this.#isAtLineStart || lastLine.length < text.length
    const held = isLineStart && MAYBE_BLANK.test(lastLine) ? lastLine : ''
    const body = text.slice(0, text.length - held.length)
    const start = this.#isAtLineStart ? 0 : body.indexOf('\n') + 1
    const passed =
      start === 0 && !this.#isAtLineStart ? body : body.slice(0, start) + body.slice(start).replace(BLANK_EVENT, '')
    const isUnchanged = this.#held === '' && passed.length === text.length
    this.#isAtLineStart = body === '' ? this.#isAtLineStart : body.endsWith('\n')
    this.#held = held
    return isUnchanged ? chunk : Buffer.from(passed, 'latin1')
  }

  /** Returns the bytes that remain at the end. */
  rest(): Uint8Array {
    return Buffer.from(this.#held, 'latin1')
  }
}

/** Returns `fetch` whose event streams have no blank events, and are watched for the current call. */
export function watchedFetch(fetch: typeof globalThis.fetch): typeof globalThis.fetch {
  return async (input, init) => {
    const end = current.getStore()
    const response = await fetch(input, init)
    if (!end || !response.body || !response.headers.get('content-type')?.includes('text/event-stream')) return response
    const reader = response.body.getReader()
    const filter = new EventStreamFilter(end)
    const watched = new ReadableStream<Uint8Array>(
      {
        async pull(controller) {
          for (;;) {
            const { done, value } = await reader.read()
            const passed = done ? filter.rest() : filter.take(value)
            if (passed.length > 0) controller.enqueue(passed)
            if (done) controller.close()
            if (done || passed.length > 0) return
          }
        },
        cancel: reason => reader.cancel(reason),
      },
      { highWaterMark: 0 },
    )
    return new Response(watched, response)
  }
}
