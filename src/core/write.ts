import { z } from 'zod'
import type { AuditEntry } from './audit.ts'
import { executor, inTransaction, type Pool, type Queryable, sql } from './db.ts'
import { type EventName, makeEvent, type StoredEvent } from './events.ts'
import { type Message, type Queue, type Queues, workQueue } from './queue.ts'

/** Events of one transaction on their way to webhooks and internal subscribers. */
export const dispatchQueue = workQueue('event.dispatch', {
  message: z.object({ event_ids: z.array(z.string()) }),
  kind: 'delivery',
  retry: { limit: 10, delaySeconds: 1, backoff: true, maxDelaySeconds: 300 },
  leaseSeconds: 60,
})

/** A transaction that also carries what follows from it: events, audit entries, messages and notifications commit with the rows. */
export type Tx = Queryable & {
  /** Records an event. `record` is the resource as its GET returns it, with `id` (or `resourceId` given) and the project. */
  emit(
    name: EventName,
    projectId: string,
    record: object & { id?: string },
    options?: { resourceId?: string; extra?: object },
  ): void
  /** Sends a message to an actor; it exists when the transaction commits. */
  send<M extends object>(queue: Queue<M>, message: M, options?: { startAfter?: Date }): void
  /** Tells every process listening on a channel, after the commit. */
  notify(channel: string, payload: string): void
  /** Adds an audit entry. The request pipeline adds its own. */
  audit(entry: AuditEntry): void
  /** Runs after the commit; its failure is logged and changes nothing. */
  afterCommit(action: () => void): void
  /** Runs last inside the transaction, before the outbox is written. */
  beforeCommit(action: (tx: Tx) => void | Promise<void>): void
}

export type Writer = { write<T>(work: (tx: Tx) => Promise<T>): Promise<T> }

type Outbox = {
  events: StoredEvent[]
  entries: AuditEntry[]
  messages: Message[]
  notifications: { channel: string; payload: string }[]
}

/**
 * The one statement that writes an outbox: events and audit entries as rows, notifications sent at commit. One
 * round trip whatever their number; the messages follow in one more per queue.
 */
async function writeOutbox(db: Queryable, outbox: Outbox): Promise<void> {
  const { events, entries, notifications } = outbox
  const parts = []
  if (events.length > 0) {
    parts.push(sql.fragment`e as (
      insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at)
      select * from ${sql.unnest(
        events.map(event => [
          event.id,
          event.project_id,
          event.name,
          event.resource_type,
          event.resource_id,
          event.envelope,
          event.created_at,
        ]),
        ['text', 'text', 'text', 'text', 'text', 'text', 'timestamptz'],
      )})`)
  }
  if (entries.length > 0) {
    parts.push(sql.fragment`a as (
      insert into audit_entries (id, project_id, principal_type, principal_id, action, resource_srn, resource_public_id, status,
        request_id, ip, user_agent, detail, created_at)
      select * from ${sql.unnest(
        entries.map(entry => [
          entry.id,
          entry.project_id,
          entry.principal_type,
          entry.principal_id,
          entry.action,
          entry.resource_srn,
          entry.resource_public_id,
          entry.status,
          entry.request_id,
          entry.ip,
          entry.user_agent,
          entry.detail ? JSON.stringify(entry.detail) : null,
          entry.created_at,
        ]),
        [
          'text',
          'text',
          'text',
          'text',
          'text',
          'text',
          'text',
          'int4',
          'text',
          'text',
          'text',
          'jsonb',
          'timestamptz',
        ],
      )})`)
  }
  const ctes = parts.length > 0 ? sql.fragment`with ${sql.join(parts, sql.fragment`, `)}` : sql.fragment``
  const last =
    notifications.length > 0
      ? sql.fragment`select pg_notify(channel, payload)::text from ${sql.unnest(
          notifications.map(item => [item.channel, item.payload]),
          ['text', 'text'],
        )} as n(channel, payload)`
      : sql.fragment`select 1`
  await db.query(sql.unsafe`${ctes} ${last}`)
}

/** The audit entry as its GET shows it and as `audit_entries.created` carries it. */
const entryEvent = (entry: AuditEntry, maxBytes: number): StoredEvent | null =>
  entry.project_id === null
    ? null
    : makeEvent('audit_entries.created', entry.project_id, entry.id, entry, undefined, maxBytes)

/** Makes the writer of a process. */
export function createWriter(options: {
  pool: Pool
  queues: Pick<Queues, 'send'>
  eventMaxBytes: number
  onError: (error: unknown) => void
}): Writer {
  const { pool, queues, eventMaxBytes, onError } = options
  return {
    async write(work) {
      let after: (() => void)[] = []
      const value = await inTransaction(pool, async connection => {
        const outbox: Outbox = { events: [], entries: [], messages: [], notifications: [] }
        const before: ((tx: Tx) => void | Promise<void>)[] = []
        after = []
        const tx: Tx = {
          ...connection,
          emit(name, projectId, record, more = {}) {
            const resourceId = more.resourceId ?? record.id
            if (!resourceId) throw new Error(`event ${name} without a resource id`)
            outbox.events.push(makeEvent(name, projectId, resourceId, record, more.extra, eventMaxBytes))
          },
          send(queue, data, more = {}) {
            outbox.messages.push({ queue, data, startAfter: more.startAfter })
          },
          notify(channel, payload) {
            outbox.notifications.push({ channel, payload })
          },
          audit(entry) {
            outbox.entries.push(entry)
          },
          afterCommit(action) {
            after.push(action)
          },
          beforeCommit(action) {
            before.push(action)
          },
        }
        const result = await work(tx)
        for (const action of before) await action(tx)
        for (const entry of outbox.entries) {
          const event = entryEvent(entry, eventMaxBytes)
          if (event) outbox.events.push(event)
        }
        if (outbox.events.length > 0)
          outbox.messages.push({ queue: dispatchQueue, data: { event_ids: outbox.events.map(event => event.id) } })
        if (outbox.events.length + outbox.entries.length + outbox.notifications.length > 0)
          await writeOutbox(connection, outbox)
        if (outbox.messages.length > 0) await queues.send(outbox.messages, executor(connection))
        return result
      })
      for (const action of after) {
        try {
          action()
        } catch (error) {
          onError(error)
        }
      }
      return value
    },
  }
}
