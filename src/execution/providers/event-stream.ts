import { AsyncLocalStorage } from 'node:async_hooks'
import type { BodyReader } from './body-facts.ts'

/** What the packages do not report of the response to a call, and its idle limit. */
export class ResponseWatch {
  /** Whether the last event of a stream was received. */
  hasEnded = false
  /** A whole answer in place of the requested event stream; returned instead of the next response. */
  unstreamed: Response | null = null
  /** Whether an event stream was requested. */
  readonly isStreamed: boolean
  /** Reads what the packages do not return; null if they return everything. */
  readonly body: BodyReader | null
  readonly #idleMs: number
  readonly #onIdle: () => void

  /** @param onIdle called when no byte arrives for `ms` after the first one */
  constructor({
    isStreamed,
    idle,
    body,
  }: {
    isStreamed: boolean
    idle: { ms: number; onIdle: () => void }
    body: BodyReader | null
  }) {
    this.isStreamed = isStreamed
    this.body = body
    this.#idleMs = idle.ms
    this.#onIdle = idle.onIdle
  }

  /** Makes a call whose responses are watched. */
  run<T>(call: () => T): T {
    return current.run(this, call)
  }

  /** Waits for the next bytes of a body within the idle limit; for the first ones without a limit. */
  async read(reader: ReadableStreamDefaultReader<Uint8Array>, isFirst: boolean) {
    const timer = isFirst ? undefined : setTimeout(this.#onIdle, this.#idleMs)
    try {
      return await reader.read()
    } finally {
      clearTimeout(timer)
    }
  }
}

const current = new AsyncLocalStorage<ResponseWatch>()

/** Error of a call whose response is no event stream, although one was requested. The response is in the watch. */
export class UnstreamedError extends Error {}

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
  readonly #watch: ResponseWatch
  #tail = ''
  #held = ''
  #isAtLineStart = true

  constructor(watch: ResponseWatch) {
    this.#watch = watch
  }

  /** Returns the part of a chunk to pass on. */
  take(chunk: Uint8Array): Uint8Array {
    const text = this.#held + Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength).toString('latin1')
    const seen = this.#tail + text
    this.#watch.hasEnded ||= LAST_EVENT.test(seen)
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

const EVENT_STREAM = 'text/event-stream'
const JSON_TYPE = /^application\/(?:[\w.+-]+\+)?json\b/i

/** Returns `fetch` whose responses are watched for the current call, and whose event streams have no blank events. */
export function watchedFetch(fetch: typeof globalThis.fetch): typeof globalThis.fetch {
  return async (input, init) => {
    const watch = current.getStore()
    if (watch?.unstreamed) {
      const response = watch.unstreamed
      watch.unstreamed = null
      return response
    }
    const response = await fetch(input, init)
    if (!watch || !response.body) return response
    const type = response.headers.get('content-type') ?? ''
    const watched = new Response(watchedBody(response.body, watch, type.includes(EVENT_STREAM)), response)
    if (watch.isStreamed && response.ok && JSON_TYPE.test(type)) {
      watch.unstreamed = watched
      throw new UnstreamedError('the response is no event stream')
    }
    return watched
  }
}

function watchedBody(
  body: ReadableStream<Uint8Array>,
  watch: ResponseWatch,
  isEventStream: boolean,
): ReadableStream<Uint8Array> {
  const reader = body.getReader()
  const filter = isEventStream ? new EventStreamFilter(watch) : null
  let isFirst = true
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        for (;;) {
          const { done, value } = await watch.read(reader, isFirst)
          isFirst = false
          if (value) watch.body?.read(value)
          const passed = done ? filter?.rest() : (filter?.take(value) ?? value)
          if (passed?.length) controller.enqueue(passed)
          if (done) controller.close()
          if (done || passed?.length) return
        }
      },
      cancel: reason => reader.cancel(reason),
    },
    { highWaterMark: 0 },
  )
}
