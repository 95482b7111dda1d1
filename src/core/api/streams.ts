import { z } from 'zod'
import { RecordedFailure } from '../base/errors.ts'

/** Declarations of the server-sent event streams of operations. */

/** The schema of an event: the lines of a message by their names. */
export type EventSchema = z.ZodObject<{ event: z.ZodLiteral<string>; id: z.ZodType; data: z.ZodType }>

export type EventStream = {
  /** Schema name of the union of its events. */
  name: string
  events: readonly EventSchema[]
  /** Events that end the stream. */
  last: readonly string[]
  /** Operation that resumes an interrupted stream, with `Last-Event-ID`. */
  resume: string | null
}

/** Declares an event. `name` is the name of its schema. */
export const streamEvent = (name: string, event: string, about: string, data: z.ZodType): EventSchema =>
  z
    .object({
      event: z.literal(event),
      id: z.string().optional().describe('Position in the stream, for `Last-Event-ID`'),
      data: data.describe(about),
    })
    .meta({ id: name }) as unknown as EventSchema

/** The last event of a stream whose work failed or whose caller lost permission. */
export const FailedEvent = streamEvent(
  'StreamErrorEvent',
  'error',
  'Failure of the work, or refusal of a caller that has lost permission',
  RecordedFailure,
)
