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

export type EventRow = {
  id: string
  project_id: string
  name: string
  envelope: string
  dispatched_at: string | null
}

export const event = kind<EventRow>({
  name: 'event',
  prefix: 'evt',
  table: 'events',
  counted: false,
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  present: row => ({ ...JSON.parse(row.envelope), dispatched_at: row.dispatched_at }),
})
