import { Readable } from 'node:stream'
import type { Services } from '../../core/process/services.ts'
import { deltaOf, readFrame } from './frames.ts'
import { liveTurns } from './live.ts'
import type { GenerationRow } from './model.ts'
import { generationKind } from './model.ts'
import { framesAfter } from './store.ts'
import { type EndedTurn, readEnd } from './wait.ts'

/** A look follows every notification, and comes at least this often. */
const POLL_MS = 2000
const PING_MS = 15_000
const END_EVENTS = new Set(['completed', 'error', 'requires_action'])

/** The position a client asks to go on from; anything but a whole number is the beginning. */
export const lastEventId = (header: string | string[] | undefined): number =>
  typeof header === 'string' && /^\d{1,9}$/.test(header) ? Number(header) : 0

/**
 * The event stream of a turn from the event after `after`, as executors write it, from any web process. A turn that
 * wrote no pieces, or whose frames are gone, is told from its record.
 */
export function streamTurn(
  services: Services,
  generation: { id: string },
  options: { after: number; closed: AbortSignal },
): Readable {
  return Readable.from(follow(services, generation.id, options.after, options.closed), { objectMode: false })
}

const message = (id: number, event: string, data: string): string => `id: ${id}\nevent: ${event}\ndata: ${data}\n\n`

async function* follow(
  services: Services,
  generationId: string,
  after: number,
  closed: AbortSignal,
): AsyncGenerator<string> {
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
  let pingAt = Date.now() + PING_MS
  try {
    while (!closed.aborted) {
      row ??= await generationKind.find(services.pool, generationId)
      if (!row) return
      if (row.streamed) {
        for (const frame of await framesAfter(services.pool, generationId, seq)) {
          seq = frame.seq
          yield message(frame.seq, frame.event, readFrame(services, row, frame))
          if (END_EVENTS.has(frame.event)) return
        }
      } else if (seq === 0) {
        seq = 1
        yield message(1, 'started', JSON.stringify(startedOf(row)))
      }
      if (quiet || !row.streamed) {
        const ended = await readEnd(services, generationId)
        if (ended) {
          // The last frames may have come between the two looks.
          const rest = row.streamed ? await framesAfter(services.pool, generationId, seq) : []
          for (const frame of rest) yield message(frame.seq, frame.event, readFrame(services, row, frame))
          if (rest.length === 0) yield* told(ended, seq)
          return
        }
      }
      if (!news)
        await new Promise<void>(resolve => {
          const timer = setTimeout(resolve, POLL_MS)
          wake = () => {
            clearTimeout(timer)
            resolve()
          }
        })
      quiet = !news
      news = false
      if (Date.now() >= pingAt) {
        pingAt = Date.now() + PING_MS
        yield ': ping\n\n'
      }
    }
  } finally {
    closed.removeEventListener('abort', left)
    unwatch()
  }
}

const startedOf = (row: GenerationRow) => {
  const { id: generation_id, trace_id, agent_version } = row
  return row.shape === 'agent' ? { generation_id, trace_id, agent_version } : { generation_id, trace_id }
}

/** The end of a turn out of its record; its text comes as one piece when no piece of it was ever written. */
function* told(ended: EndedTurn, seq: number): Generator<string> {
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
