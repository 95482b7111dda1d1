import { Readable } from 'node:stream'
import { AppError, type RecordedFailure } from './errors.ts'
import { type Context, type OperationResult, streamResult } from './operation.ts'

/** What a stream of events is made of. */
export type StreamSource = {
  /** Calls back when there may be something new; call the result to end that. */
  watch(news: () => void): () => void
  /**
   * The messages that are there now, and then how many milliseconds later it wants to look again without news; `'ended'`
   * after the last message.
   * @param quiet nothing has been announced since the last time
   */
  look(quiet: boolean): AsyncGenerator<string, number | 'ended'>
  /** Id of the last message. */
  position(): string | number
  /** The message that ends the stream of a caller that has lost its rights; default an `error` event. */
  refused?(refusal: RecordedFailure): string
}

/** One message of a stream. */
export const eventMessage = (id: string | number, event: string, data: string): string =>
  `id: ${id}\nevent: ${event}\ndata: ${data}\n\n`

/**
 * An answer of server-sent events, for as long as its client stays. The caller's rights are checked again with each ping;
 * when they are gone the stream ends with an `error` event that says so.
 */
export const eventStream = (
  context: Pick<Context, 'services' | 'request' | 'recheck'>,
  source: StreamSource,
  headers?: Record<string, string>,
): OperationResult =>
  streamResult('text/event-stream', Readable.from(follow(context, source), { objectMode: false }), {
    'Cache-Control': 'no-store',
    ...headers,
  })

async function* follow(
  { services, request: { closed }, recheck }: Parameters<typeof eventStream>[0],
  source: StreamSource,
): AsyncGenerator<string> {
  const pingMs = services.config.STREAM_PING_INTERVAL_MS
  let news = false
  let wake = () => {}
  const unwatch = source.watch(() => {
    news = true
    wake()
  })
  const left = () => wake()
  closed.addEventListener('abort', left, { once: true })
  let quiet = true
  let pingAt = Date.now() + pingMs
  try {
    while (!closed.aborted) {
      if (Date.now() >= pingAt) {
        const refused = await refusalOf(recheck)
        // Under the id of the last event, so that a caller who may read on resumes behind that.
        if (refused)
          return yield source.refused?.(refused) ?? eventMessage(source.position(), 'error', JSON.stringify(refused))
        pingAt = Date.now() + pingMs
        yield ': ping\n\n'
      }
      const next = yield* source.look(quiet)
      if (next === 'ended') return
      if (!news && !closed.aborted)
        await new Promise<void>(resolve => {
          const timer = setTimeout(resolve, Math.min(next, Math.max(0, pingAt - Date.now())))
          wake = () => {
            clearTimeout(timer)
            resolve()
          }
        })
      quiet = !news
      news = false
    }
  } finally {
    closed.removeEventListener('abort', left)
    unwatch()
  }
}

/** What the caller would be refused with now; null when nothing has changed for it. Other failures are thrown. */
async function refusalOf(recheck: () => Promise<void>): Promise<RecordedFailure | null> {
  try {
    await recheck()
    return null
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return error.recorded()
    throw error
  }
}
