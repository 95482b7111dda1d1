import { type CallOptions, type Client, randomKey, requireType } from './client.ts'
import { NoAnswer, WorkFailed } from './errors.ts'
import { backoffMs, chunksOf, IDLE_MS, sleep } from './limits.ts'
import { type Args, fillPath, requestOf, type Shape } from './request.ts'
import { messagesOf } from './sse.ts'

export type StreamEvent = { event: string; id?: string; data: any }

export type StreamOptions = Omit<CallOptions, 'ifMatch'> & {
  /** Receives events that a newer server has added. */
  onUnknown?: (event: { event: string; data: unknown }) => void
  /** Position after which the stream starts. */
  lastEventId?: string
}

/** What an operation declares of its stream. */
export type StreamShape = Shape & {
  events: readonly string[]
  /** Events that end the stream. */
  last: readonly string[]
  /** Path that resumes the stream. */
  resume?: string
  /** Path that cancels the work. */
  cancel?: string
}

/** Resumes without an event between them before the stream counts as lost. */
const RESUMES_MAX = 5

/** End of the chat completions protocol, whose messages have no names. */
const DONE = '[DONE]'

/**
 * Events of work. The request is sent when the first event, the text or the result is requested. A lost connection is
 * resumed after the last event received. Ending the reading does not end the work: `cancel()` does.
 */
export class EventStream<E extends StreamEvent, Result = unknown> implements AsyncIterable<E> {
  readonly #client: Client
  readonly #route: string
  readonly #shape: StreamShape
  readonly #args: Args
  readonly #options: StreamOptions
  /** Parameters of the path to resume and cancel, from the arguments and from events. */
  readonly #ids: Args
  #isStarted = false
  readonly #ended: Deferred<E>

  constructor(client: Client, route: string, shape: StreamShape, args: Args = {}, options: StreamOptions = {}) {
    this.#client = client
    this.#route = route
    this.#shape = shape
    this.#args = args
    // Not the arguments of a POST: a retry of a generation starts another one.
    this.#ids = route.startsWith('GET') ? { ...args } : {}
    // A request repeated before its first event joins the work that the first one started.
    this.#options = route.startsWith('POST') ? { idempotencyKey: randomKey(), ...options } : options
    this.#ended = deferred()
  }

  /** Yields the events. A stream is read once. */
  async *[Symbol.asyncIterator](): AsyncGenerator<E> {
    if (this.#isStarted) throw new TypeError('the stream is already being read')
    this.#isStarted = true
    try {
      yield* this.#events()
      this.#ended.reject(new NoAnswer('broken', 'the stream ended without a result'))
    } catch (error) {
      this.#ended.reject(error)
      throw error
    } finally {
      this.#ended.reject(new TypeError('the stream was left before its end'))
    }
  }

  /** Yields the text of a reply in pieces. After a lost worker, the pieces of the current step come again from its start. */
  async *text(): AsyncGenerator<string> {
    for await (const event of this) {
      const piece = event.data?.choices?.[0]?.delta?.content
      if (typeof piece === 'string' && piece !== '') yield piece
    }
  }

  /**
   * Returns the data of the last event, reading the stream unless it is being read.
   * @throws WorkFailed if that event is an error
   */
  async result(): Promise<Result> {
    if (!this.#isStarted) for await (const _ of this);
    const { event, data } = await this.#ended.promise
    const failure = event === 'error' ? data : data?.error
    if (event === 'error' || (event === 'message' && failure))
      throw new WorkFailed(data, failure.message ?? 'the work failed', failure.code ?? null)
    return data
  }

  /** Cancels the work, if its stream has started. */
  async cancel(): Promise<void> {
    const { cancel } = this.#shape
    if (!cancel) throw new TypeError('the work of this stream cannot be cancelled')
    await this.#client.request(
      { method: 'POST', path: `/api/v1${fillPath(cancel, this.#ids)}`, isKeyed: true, accept: 'application/json' },
      async response => void (await response.body?.cancel()),
    )
  }

  async *#events(): AsyncGenerator<E> {
    const { events, last } = this.#shape
    const { signal, onUnknown } = this.#options
    let position = this.#options.lastEventId
    let isFirst = true
    for (let lost = 0; ; lost++) {
      try {
        for await (const { event, id, data } of this.#messages(position, isFirst)) {
          lost = 0
          isFirst = false
          if (id !== null) position = id
          const received = {
            event,
            ...(id === null ? {} : { id }),
            data: data === DONE ? data : this.#parse(data),
          } as E
          if (!events.includes(event)) {
            onUnknown?.({ event, data: received.data })
            continue
          }
          this.#note(received)
          const isLast = last.includes(event) && (event !== 'message' || data === DONE || received.data?.error)
          if (isLast) this.#ended.resolve(received)
          yield received
          if (isLast) return
        }
        throw new NoAnswer('broken', 'the stream ended before its last event')
      } catch (error) {
        signal?.throwIfAborted()
        const isLost = error instanceof NoAnswer && ['network', 'timeout', 'broken'].includes(error.reason)
        if (!isLost || lost >= RESUMES_MAX || !(isFirst || this.#canResume())) throw error
        await sleep(backoffMs(lost), signal)
      }
    }
  }

  /** Yields the messages of one connection, which starts the work until there was an event of it. */
  async *#messages(position: string | undefined, isFirst: boolean) {
    const { signal, idempotencyKey, timeoutMs, maxRetries, headers } = this.#options
    const request =
      isFirst || !this.#shape.resume
        ? requestOf(this.#route, this.#shape, this.#args, this.#client)
        : requestOf(`GET ${this.#shape.resume}`, {}, this.#pathArgs(this.#shape.resume), this.#client)
    const isPost = request.method === 'POST'
    const { data: connection } = await this.#client.request(
      { ...request, accept: 'text/event-stream' },
      async (response, { signal: ended, keep }) => {
        requireType(response, 'text/event-stream')
        return { body: response.body, signal: ended, close: keep() }
      },
      {
        signal,
        timeoutMs,
        maxRetries,
        ...(isPost ? { idempotencyKey } : {}),
        headers: { ...headers, ...(position === undefined ? {} : { 'last-event-id': position }) },
      },
    )
    try {
      yield* messagesOf(chunksOf(connection.body, { signal: connection.signal, idleMs: IDLE_MS }))
    } finally {
      connection.close()
    }
  }

  /** Keeps the ids of the first event, by which the stream is resumed and its work cancelled. */
  #note({ data }: StreamEvent): void {
    for (const path of [this.#shape.resume, this.#shape.cancel])
      for (const name of namesIn(path)) if (data?.[name] != null) this.#ids[name] = data[name]
  }

  #canResume(): boolean {
    const { resume } = this.#shape
    return resume !== undefined && namesIn(resume).every(name => this.#ids[name] != null)
  }

  #parse(text: string): unknown {
    try {
      return this.#client.parseJson(text)
    } catch {
      throw new NoAnswer('broken', 'an event of the stream is no JSON')
    }
  }

  /** Arguments of the path to resume, with the filters of a stream that resumes itself. */
  #pathArgs(resume: string): Args {
    if (this.#route === `GET ${resume}`) return this.#args
    return Object.fromEntries(namesIn(resume).map(name => [name, this.#ids[name]]))
  }
}

const namesIn = (path = ''): string[] => [...path.matchAll(/\{(\w+)\}/g)].map(match => match[1])

type Deferred<T> = { promise: Promise<T>; resolve: (value: T) => void; reject: (error: unknown) => void }

function deferred<T>(): Deferred<T> {
  let settle: Omit<Deferred<T>, 'promise'> | undefined
  const promise = new Promise<T>((resolve, reject) => {
    settle = { resolve, reject }
  })
  promise.catch(() => {})
  return { promise, ...(settle as Omit<Deferred<T>, 'promise'>) }
}
