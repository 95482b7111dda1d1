import { eventMessages, eventStream } from '#core/api/event-stream.ts'
import type { FrameFormat, StreamFrame } from '#core/api/frame-format.ts'
import type { Context, OperationResult } from '#core/api/operation.ts'
import type { GenerationRow } from '../model.ts'
import { generationKind } from '../model.ts'
import { readTurnEnd } from '../request/wait-for-turn.ts'
import { anyTurnEvents } from './events.ts'
import { type Frame, framesAfter } from './frame-store.ts'
import { deltaOf, readFrame, startedOf } from './frames.ts'
import { liveTurns } from './live-turns.ts'
import type { TurnEndState } from './turn-end.ts'

/** Polling interval in case of lost notifications. */
const POLL_MS = 2000
const END_EVENTS = new Set(['completed', 'error'])

/** Events of the API. Readers of it receive neither events for protocol mounts nor events that only a later release has. */
const API_EVENTS = new Set(anyTurnEvents.events.map(({ shape }) => shape.event.value))

/** Returns the sequence number in a Last-Event-ID header; 0 unless it is a whole number. */
export const lastEventId = (header: string | string[] | undefined): number =>
  typeof header === 'string' && /^\d{1,9}$/.test(header) ? Number(header) : 0

/** The wire format of a turn's frames. */
export type TurnFormat = FrameFormat & {
  /** Receives the turn before its frames. */
  found?(turn: GenerationRow): void
}

/**
 * Streams the events of a turn after `after`, from any web process. If the turn was not streamed or its frames were
 * deleted, events are built from its record. The turn is independent of the stream.
 */
export function streamTurn(
  context: Pick<Context, 'services' | 'request' | 'recheck' | 'client'>,
  generation: { id: string },
  after: number,
  format: TurnFormat = context.client?.format ?? eventMessages,
): OperationResult {
  const { services } = context
  let seq = after
  let row: GenerationRow | null = null
  const isOfMount = context.client !== null || format !== eventMessages
  /** Yields frames; returns whether one of them ended the stream. */
  const messages = async function* (turn: GenerationRow, frames: readonly Frame[]) {
    for (const frame of frames) {
      seq = frame.seq
      if (!isOfMount && !API_EVENTS.has(frame.event)) continue
      yield* format.frame({ ...frame, data: readFrame(services, turn, frame) })
      if (END_EVENTS.has(frame.event) || format.ended?.()) return true
      // The turn may have been resumed since.
      if (frame.event === 'requires_action' && (await readTurnEnd(services, generation.id))?.status === frame.event)
        return true
    }
    return false
  }
  return eventStream(context, {
    watch: notify => liveTurns(services).watch(generation.id, notify),
    position: () => seq,
    refused: format.refused,
    async *look(quiet) {
      if (!row) {
        row = await generationKind.find(services.pool, generation.id)
        if (!row) return 'ended'
        format.found?.(row)
      }
      if (row.streamed) {
        if (yield* messages(row, await framesAfter(services.pool, generation.id, seq))) return 'ended'
      } else if (seq === 0) {
        seq = 1
        yield* format.frame({ seq: 1, event: 'started', data: JSON.stringify(startedOf(row)) })
      }
      if (!quiet && row.streamed) return POLL_MS
      const ended = await readTurnEnd(services, generation.id)
      if (!ended) return POLL_MS
      // The last frames may have been written between the two reads.
      const rest = row.streamed ? await framesAfter(services.pool, generation.id, seq) : []
      yield* messages(row, rest)
      if (rest.length === 0) for (const frame of endFrames(ended, seq)) yield* format.frame(frame)
      return 'ended'
    },
  })
}

/** Yields the end of a turn from its record; the text is a single delta if none was written. */
function* endFrames(ended: TurnEndState, seq: number): Generator<StreamFrame> {
  let next = seq
  if (ended.failure) {
    yield { seq: next + 1, event: 'error', data: JSON.stringify(ended.failure) }
    return
  }
  if (!ended.streamed && ended.output?.content && next < 2)
    yield { seq: ++next, event: 'delta', data: JSON.stringify(deltaOf(ended.output.content)) }
  const event = ended.status === 'requires_action' ? 'requires_action' : 'completed'
  yield { seq: next + 1, event, data: JSON.stringify(ended.result) }
}
