import { type Answer, type Client, readJson } from './client.ts'
import { NoAnswer, NotFound, WorkFailed, WorkWaits } from './errors.ts'
import { sleep } from './limits.ts'
import { fillPath } from './request.ts'

/** A call whose request has been sent: await it for the data, or `withResponse()` for its status and headers too. */
export class Call<T> implements PromiseLike<T> {
  readonly #answer: Promise<Answer<T>>

  constructor(answer: Promise<Answer<T>>) {
    this.#answer = answer
  }

  then<A = T, B = never>(
    onData?: ((data: T) => A | PromiseLike<A>) | null,
    onError?: ((error: any) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.#answer.then(({ data }) => data).then(onData, onError)
  }

  catch<B>(onError: (error: any) => B | PromiseLike<B>): Promise<T | B> {
    return this.then(null, onError)
  }

  finally(onEnd: () => void): Promise<T> {
    return this.then().finally(onEnd)
  }

  /** Returns the data with status, headers, request id and ETag. */
  withResponse(): Promise<Answer<T>> {
    return this.#answer
  }
}

/** Statuses of a record of work, and the path that reads it. */
export type Wait = {
  poll: string
  running: readonly string[]
  done: readonly string[]
  failed: readonly string[]
  paused: readonly string[]
}

const FIRST_POLL_MS = 500
const MAX_POLL_MS = 5000

/** The request that starts work, and how to wait for it. */
export type Work = { client: Client; wait: Wait; args: Record<string, unknown>; isDelete: boolean }

type WorkRecord = { id?: string; status?: string; error?: { code?: string; message?: string } | null }

/** A call that starts work. */
export class WorkCall<T, S> extends Call<T> {
  readonly #work: Work

  constructor(answer: Promise<Answer<T>>, work: Work) {
    super(answer)
    this.#work = work
  }

  /**
   * Waits until the work is done and returns its record; of work that deletes its record, the record as last read.
   * Ending the wait does not end the work. `onRecord` receives each record that is read.
   * @throws WorkFailed, or WorkWaits if the work needs an input; NoAnswer after `timeoutMs`, by default never, and for a
   * status that this client does not handle
   */
  async settled({
    timeoutMs = Number.POSITIVE_INFINITY,
    signal,
    onRecord,
  }: {
    timeoutMs?: number
    signal?: AbortSignal
    onRecord?: (record: S) => void
  } = {}) {
    const start = Date.now()
    const first = (await this) as WorkRecord & Record<string, unknown>
    const { wait, args: sent, isDelete } = this.#work
    const { poll, running, done, failed, paused } = wait
    const names = [...poll.matchAll(/\{(\w+)\}/g)].map(match => match[1])
    const args = Object.fromEntries(
      names.map(name => [name, first?.[name] ?? (name === names.at(-1) ? first?.id : undefined) ?? sent[name]]),
    )
    if (names.some(name => args[name] == null)) throw new WorkFailed(first, 'the call has started no work')
    let record = first as WorkRecord
    for (let delay = FIRST_POLL_MS; ; delay = Math.min(delay * 1.5, MAX_POLL_MS)) {
      try {
        record = await this.#read(fillPath(poll, args), signal)
      } catch (error) {
        if (isDelete && error instanceof NotFound) return record as S
        throw error
      }
      onRecord?.(record as S)
      const status = record.status ?? ''
      if (done.includes(status)) return record as S
      if (failed.includes(status))
        throw new WorkFailed(record as S, record.error?.message ?? `the work is ${status}`, record.error?.code ?? null)
      if (paused.includes(status)) throw new WorkWaits(record as S, `the work waits: ${status}`)
      if (!running.includes(status))
        throw new NoAnswer('broken', `the work has a status that this client does not handle: ${status}`)
      if (Date.now() - start + delay > timeoutMs)
        throw new NoAnswer('timeout', `the work is still ${status} after ${timeoutMs / 1000} s`)
      await sleep(delay, signal)
    }
  }

  async #read(path: string, signal: AbortSignal | undefined): Promise<WorkRecord> {
    const request = { method: 'GET', path: `/api/v1${path}`, accept: 'application/json' }
    return (await this.#work.client.request<WorkRecord>(request, readJson, { signal })).data
  }
}
