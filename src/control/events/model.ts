import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { Envelope } from '../webhooks/model.ts'

export const Event = Envelope.extend({
  dispatched_at: z.iso.datetime().nullable().meta({ description: 'When its deliveries were queued' }),
}).meta({ id: 'Event' })

export const EventFamily = z
  .object({
    resource_type: z.string(),
    prefix: z.string(),
    events: z.array(z.object({ name: z.string(), aliases: z.array(z.string()) })),
    notes: z.string().nullable(),
  })
  .meta({ id: 'EventFamily' })

export const RedispatchInput = z.strictObject({ webhook_id: z.string() }).meta({ id: 'RedispatchEventInput' })

const EventRow = z.object({
  id: z.string(),
  project_id: z.string(),
  name: z.string(),
  envelope: z.string(),
  dispatched_at: z.string().nullable(),
})
export type EventRow = z.output<typeof EventRow>

export const event = kind({
  name: 'event',
  prefix: 'evt',
  table: 'events',
  counted: false,
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  row: EventRow,
  present: row => ({ ...JSON.parse(row.envelope), dispatched_at: row.dispatched_at }),
})
