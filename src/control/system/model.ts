import { z } from 'zod'
import { integerQuery } from '#core/api/lists.ts'
import { CELL_STATES } from '#core/services/cell.ts'
import { COPY_METHODS } from '#core/services/copies.ts'
import { MESSAGE_STATES } from '#core/work/inspection.ts'

const count = (of: string) => z.int().describe(of)

export const SystemStatus = z
  .object({
    version: z.string().describe('Version of the web process that answers'),
    started_at: z.string().describe('Time at which that web process started'),
    checks: z.record(z.string(), z.string()).describe('Results of the checks of /readyz: `ok`, or a short reason'),
    processes: z
      .array(
        z
          .object({
            instance_id: z.string().describe('Instance of the process'),
            kind: z.enum(['web', 'worker']).describe('Program'),
            concerns: z.array(z.string()).describe('Concerns of a worker'),
            version: z.string().nullable().describe('Version. Null before the first heartbeat of this release.'),
            started_at: z.string().describe('Time at which it started'),
            heartbeat_at: z.string().describe('Time of its last heartbeat'),
            stale: z.boolean().describe('Whether its heartbeat is too old: it was killed, hangs, or lost the database'),
          })
          .meta({ id: 'SystemProcess' }),
      )
      .describe('The web process that answers, and all workers of the last week'),
    queues: z
      .array(
        z
          .object({
            name: z.string().describe('Name of the queue'),
            waiting: count('Messages that are due'),
            delayed: count('Messages and retries that are due later'),
            active: count('Messages claimed by workers'),
            dead: count('Dead letters'),
            oldest_seconds: z.number().describe('Age of the oldest waiting message since it was due, in seconds'),
            slots: count('Messages that the live workers handle at a time'),
            workers: count('Live workers that handle the queue'),
          })
          .meta({ id: 'SystemQueue' }),
      )
      .describe('Queues of the deployment'),
    projects: z
      .array(
        z
          .object({
            project_id: z.string(),
            active: count('Messages of the project claimed by workers'),
            waiting: count('Messages of the project that are due'),
            share: count('Slots that the project may hold, in the queues with its messages, while others wait'),
          })
          .meta({ id: 'SystemProject' }),
      )
      .describe('The 20 projects with the most active and waiting messages'),
    turns_per_minute: count('Turns created in the last minute'),
    errors_per_minute: count('Turns created in the last minute that failed'),
    telemetry: z
      .object({
        enabled: z.boolean().describe('Whether this web process exports traces'),
        dropped: count('Spans that this web process has not exported: the queue was full, or the export failed'),
      })
      .describe('Export of traces by the web process that answers'),
  })
  .meta({ id: 'SystemStatus' })
export type SystemStatus = z.output<typeof SystemStatus>

const WAIT_REASONS = ['slot', 'project_share', 'entity', 'backoff', 'no_worker'] as const

export const QueueMessage = z
  .object({
    id: z.string().describe('ID of the message'),
    key: z.string().nullable().describe('Key under which at most one message waits. Null in queues without keys.'),
    project_id: z.string().nullable().describe('ID of the project. Null for work of the platform.'),
    state: z.enum(MESSAGE_STATES).describe('waiting - due, delayed - due later, active - claimed, dead - dead letter'),
    attempts: z.int().describe('Number of attempts so far'),
    created_at: z.string().describe('Time at which the message was sent'),
    due_at: z.string().describe('Time at which it is due'),
    started_at: z.string().nullable().describe('Time of the claim. Null unless active.'),
    lease_expires_at: z
      .string()
      .nullable()
      .describe('Time after which another worker takes over, unless the lease is renewed. Null unless active.'),
    instance_id: z.string().nullable().describe('Worker that claimed it. Null unless active.'),
    entity: z
      .object({ kind: z.string().describe('Kind of the record'), id: z.string().describe('ID of the record') })
      .nullable()
      .describe('Record that the message is about. Null if it names none.'),
    waits_for: z
      .enum(WAIT_REASONS)
      .nullable()
      .describe(
        'slot - all slots are in use, project_share - the project holds its share of the slots, entity - earlier work of the same record, backoff - the delay before a retry, no_worker - no live worker handles the queue. Null if it is claimed next, active, or dead.',
      ),
    error: z.string().nullable().describe('Error of the last attempt. Null without one.'),
  })
  .meta({ id: 'QueueMessage' })
export type QueueMessage = z.output<typeof QueueMessage>

export const QueueMessageQuery = z.object({
  state: z.enum(MESSAGE_STATES).optional().describe('State of the messages. Default all.'),
  project_id: z.string().min(1).max(255).optional().describe('ID of the project of the messages'),
  older_than_seconds: integerQuery(0, 1e9).optional().describe('Minimum age in seconds'),
})

export const SystemCell = z
  .object({
    name: z.string().describe('Name of the cell, which never changes; `home` for the first'),
    number: z.int().describe('Number in the IDs that the cell makes; 0 for the first'),
    address: z
      .string()
      .nullable()
      .describe('Host, database and schema, without credentials. Null if its URL cannot be decrypted.'),
    state: z
      .enum(CELL_STATES)
      .describe('open - takes new projects, closed - takes none, moving, down - serves no requests'),
    reachable: z.boolean().describe('Whether the web process that answers reads its database'),
    projects: z.int().nullable().describe('Number of its projects. Null if it is not reachable.'),
    bytes: z.int().nullable().describe('Size of its tables with their indexes. Null if it is not reachable.'),
    release: z.string().nullable().describe('Latest release that migrated it. Null if it is not reachable.'),
    migrations: z.int().nullable().describe('Number of its migrations. Null if it is not reachable.'),
    copies: z
      .enum(COPY_METHODS)
      .nullable()
      .describe(
        'How users and policies of home are copied to it: triggers - in the transaction of the change, without a lag, replication - by a subscription to home. Null for home, and if they are not copied.',
      ),
    copies_connected: z
      .boolean()
      .nullable()
      .describe('Whether its subscription is connected to home. Null without a subscription.'),
    lag_bytes: z
      .int()
      .nullable()
      .describe('Bytes of the log of home that its copies lack. Null without a subscription.'),
    lag_seconds: z
      .number()
      .nullable()
      .describe('Time by which its copies are late, in seconds, as home measures it. Null if it is not known.'),
    added_at: z.string().nullable().describe('Time at which it was added. Null for the first.'),
    changed_at: z.string().nullable().describe('Time of the last change of its state or address. Null for the first.'),
  })
  .meta({ id: 'SystemCell' })
export type SystemCell = z.output<typeof SystemCell>

export const SystemSetting = z
  .object({
    name: z.string().describe('Environment variable'),
    group: z.string().describe('Group of related settings'),
    value: z.string().nullable().describe('Value in the web process that answers. Null for secrets and empty values.'),
    default: z.string().describe('Default; empty if it has none'),
    doc: z.string().describe('Meaning'),
    secret: z.boolean().describe('Whether the value is a secret, which is never returned'),
    set: z.boolean().describe('Whether the value differs from the default'),
  })
  .meta({ id: 'SystemSetting' })
