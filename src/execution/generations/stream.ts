import { Readable } from 'node:stream'
import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import { framesAfter } from './frame-store.ts'
import { deltaOf, readFrame, startedOf } from './frames.ts'
import { liveTurns } from './live.ts'
import type { GenerationRow } from './model.ts'
import { generationKind } from './model.ts'
import { type EndedTurn, readEnd } from './wait.ts'

/** The record and the frames are read after every notification, and at least this often. */
const POLL_MS = 2000
const END_EVENTS = new Set(['completed', 'error'])

/** The position a client asks to go on from; anything but a whole number is the beginning. */
export const lastEventId = (header: string | string[] | undefined): number =>
  typeof header === 'string' && /^\d{1,9}$/.test(header) ? Number(header) : 0

/**
 * The event stream of a turn from the event after `after`, as executors write it, from any web process. The stream of a
 * turn that wrote no pieces, or whose frames are gone, is made from its record. The caller's rights are checked again with
 * each ping; when they are gone the stream ends with an `error` event that says so, and the turn goes on.
 */
export function streamTurn(
  context: Pick<Context, 'services' | 'request' | 'recheck'>,
  generation: { id: string },
  after: number,
): Readable {
  return Readable.from(follow(context, generation.id, after), { objectMode: false })
}

const message = (id: number, event: string, data: string): string => `id: ${id}\nevent: ${event}\ndata: ${data}\n\n`

async function* follow(
  { services, request: { closed }, recheck }: Pick<Context, 'services' | 'request' | 'recheck'>,
  generationId: string,
  after: number,
): AsyncGenerator<string> {
  const pingMs = services.config.STREAM_PING_INTERVAL_MS
  let news = false
  let wake = () => {}
  const unwatch = liveTurns(services).watch(generationId, () => {
    news = true
    wake()
  })
  const left = () => wake()
  closed.addEventListener('abort', left, { once: true })
  let seq = after
  let row: GenerationRow | null = null
  let quiet = true
  let pingAt = Date.now() + pingMs
  try {
    while (!closed.aborted) {
      if (Date.now() >= pingAt) {
        const refused = await refusalOf(recheck)
        // Under the id of the last event, so that a caller who may read on resumes behind that.
        if (refused) return yield message(seq, 'error', JSON.stringify(refused))
        pingAt = Date.now() + pingMs
        yield ': ping\n\n'
      }
      row ??= await generationKind.find(services.pool, generationId)
      if (!row) return
      if (row.streamed) {
        for (const frame of await framesAfter(services.pool, generationId, seq)) {
          seq = frame.seq
          yield message(frame.seq, frame.event, readFrame(services, row, frame))
          if (END_EVENTS.has(frame.event)) return
          // It may have gone on since.
          if (frame.event === 'requires_action' && (await readEnd(services, generationId))?.status === frame.event)
            return
        }
      } else if (seq === 0) {
        seq = 1
        yield message(1, 'started', JSON.stringify(startedOf(row)))
      }
      if (quiet || !row.streamed) {
        const ended = await readEnd(services, generationId)
        if (ended) {
          // The last frames may have come between the two reads.
          const rest = row.streamed ? await framesAfter(services.pool, generationId, seq) : []
          for (const frame of rest) yield message(frame.seq, frame.event, readFrame(services, row, frame))
          if (rest.length === 0) yield* endOf(ended, seq)
          return
        }
      }
      if (!news)
        await new Promise<void>(resolve => {
          const timer = setTimeout(resolve, Math.min(POLL_MS, Math.max(0, pingAt - Date.now())))
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

/** The end of a turn out of its record; its text comes as one piece when no piece of it was ever written. */
function* endOf(ended: EndedTurn, seq: number): Generator<string> {
  let next = seq
  if (ended.failure) {
    yield message(next + 1, 'error', JSON.stringify(ended.failure))
    return
  }
  if (!ended.streamed && ended.output?.content && next < 2)
    yield message(++next, 'delta', JSON.stringify(deltaOf(ended.output.content)))
  yield message(
    next + 1,
    ended.status === 'requires_action' ? 'requires_action' : 'completed',
    JSON.stringify(ended.result),
  )
}
