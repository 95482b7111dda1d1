import { z } from 'zod'
import { RecordedFailure } from './errors.ts'

/** The server-sent events that operations answer with, declared once a stream. */

/** One event as its reader sees it: the lines of a message by their names. */
export type EventSchema = z.ZodObject<{ event: z.ZodLiteral<string>; id: z.ZodType; data: z.ZodType }>

export type EventStream = {
  /** Name of the schema of any of its events. */
  name: string
  events: readonly EventSchema[]
  /** Events that end the stream. */
  last: readonly string[]
  /** Operation that attaches to what was broken off, with `Last-Event-ID`. */
  resume: string | null
}

/** Declares an event. `name` is that of its schema. */
export const streamEvent = (name: string, event: string, about: string, data: z.ZodType): EventSchema =>
  z
    .object({
      event: z.literal(event),
      id: z.string().optional().describe('Position in the stream, for `Last-Event-ID`'),
      data: data.describe(about),
    })
    .meta({ id: name }) as unknown as EventSchema

/** The end of a stream whose work failed, or whose caller is refused while it reads. */
export const FailedEvent = streamEvent(
  'StreamErrorEvent',
  'error',
  'What failed, or what the caller is refused with from now on',
  RecordedFailure,
)
