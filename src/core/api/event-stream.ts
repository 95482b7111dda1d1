import { Readable } from 'node:stream'
import { AppError, type RecordedFailure } from '../base/errors.ts'
import type { FrameFormat } from './frame-format.ts'
import { type Context, type OperationResult, streamResult } from './operation.ts'

/** The source of an event stream. */
export type StreamSource = {
  /** Subscribes to notifications of possible new messages; call the result to unsubscribe. */
  watch(notify: () => void): () => void
  /**
   * Yields the pending messages. Returns the delay in milliseconds until the next poll without a notification, or
   * `'ended'` after the last message.
   * @param quiet whether no notification has arrived since the last call
   */
  look(quiet: boolean): AsyncGenerator<string, number | 'ended'>
  /** Id of the last message. */
  position(): string | number
  /** The last message for a caller that has lost its permission; default an `error` event. */
  refused?: FrameFormat['refused']
}

/** Formats a message of a stream, without an id if a client cannot resume after it. */
export const eventMessage = (id: string | number | null, event: string, data: string): string =>
  `${id === null ? '' : `id: ${id}\n`}event: ${event}\ndata: ${data}\n\n`

/** The format of frames as server-sent events. */
export const eventMessages: FrameFormat = {
  *frame({ seq, event, data }) {
    yield eventMessage(seq, event, data)
  },
}

/** Formats a message without a name or id, for protocols whose messages have neither. */
export const dataMessage = (data: object): string => `data: ${JSON.stringify(data)}\n\n`

/** Comment that keeps a quiet stream open. */
export const PING = ': ping\n\n'

/**
 * Returns a response of server-sent events, which lasts until the client disconnects. The caller's permission is
 * checked again with each ping and when the tokens of an end user are revoked; once it is lost, the stream ends with an
 * `error` event.
 */
export const eventStream = (
  context: Pick<Context, 'services' | 'request' | 'recheck'>,
  source: StreamSource,
  headers?: Record<string, string>,
): OperationResult =>
  streamResult('text/event-stream', Readable.from(streamMessages(context, source), { objectMode: false }), {
    'Cache-Control': 'no-store',
    ...headers,
  })

async function* streamMessages(
  { services, request, recheck }: Parameters<typeof eventStream>[0],
  source: StreamSource,
): AsyncGenerator<string> {
  const { closed } = request
  const pingMs = services.config.STREAM_PING_INTERVAL_MS
  let notified = false
  let wake = () => {}
  const unwatch = source.watch(() => {
    notified = true
    wake()
  })
  const onClosed = () => wake()
  closed.addEventListener('abort', onClosed, { once: true })
  let quiet = true
  let pingAt = Date.now() + pingMs
  request.onRevoked = () => {
    pingAt = 0
    notified = true
    wake()
  }
  try {
    while (!closed.aborted) {
      if (Date.now() >= pingAt) {
        const refusal = await refusalOf(recheck)
        // Carries the id of the last event, so that a caller whose permission is restored resumes after that event.
        if (refusal)
          return yield source.refused?.(refusal) ?? eventMessage(source.position(), 'error', JSON.stringify(refusal))
        pingAt = Date.now() + pingMs
        yield PING
      }
      const next = yield* source.look(quiet)
      if (next === 'ended') return await request.audited
      if (!notified && !closed.aborted)
        await new Promise<void>(resolve => {
          const timer = setTimeout(resolve, Math.min(next, Math.max(0, pingAt - Date.now())))
          wake = () => {
            clearTimeout(timer)
            resolve()
          }
        })
      quiet = !notified
      notified = false
    }
  } finally {
    closed.removeEventListener('abort', onClosed)
    unwatch()
  }
}

/** Returns the failure if the caller's permission was revoked, otherwise null. Other errors are rethrown. */
async function refusalOf(recheck: Context['recheck']): Promise<RecordedFailure | null> {
  try {
    await recheck()
    return null
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return error.recorded()
    throw error
  }
}
