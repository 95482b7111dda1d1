import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { sql } from '#core/db/sql.ts'
import { readEnvelope, StoredEnvelope } from '#core/writes/event-envelopes.ts'
import { EVENT_PREFIX } from '#core/writes/events.ts'
import { Envelope } from '../webhooks/model.ts'

export const Event = Envelope.extend({
  dispatched_at: z.iso
    .datetime()
    .nullable()
    .meta({ description: 'Time at which the deliveries were queued. Null until then.' }),
}).meta({ id: 'Event' })

export const EventFamily = z
  .object({
    resource_type: z.string(),
    prefix: z.string().describe('Common prefix of the event names'),
    events: z
      .array(
        z.object({
          name: z.string(),
          aliases: z.array(z.string()).describe('Former names that subscriptions may still use'),
        }),
      )
      .describe('Events of the resource type'),
    notes: z.string().nullable(),
  })
  .meta({ id: 'EventFamily' })

export const RedispatchInput = z
  .strictObject({ webhook_id: z.string().describe('ID of the webhook, in the project of the event') })
  .meta({ id: 'RedispatchEventInput' })

const EventRow = StoredEnvelope.extend({ name: z.string(), dispatched_at: z.string().nullable() })

export const eventKind = kind({
  name: 'event',
  prefix: EVENT_PREFIX,
  table: 'events',
  countKept: true,
  counted: false,
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Event,
  row: EventRow,
  columns: sql.fragment`t.id, t.project_id, t.resource_id, t.created_at, t.name, t.envelope, t.packed, t.dispatched_at`,
  present: (row: z.output<typeof EventRow>) => ({
    ...parseExactJson(readEnvelope(row)),
    dispatched_at: row.dispatched_at,
  }),
})
