import { z } from 'zod'
import { extensionPoint } from '../base/declarations.ts'
import { sendWithCommit } from '../db/commit-piggyback.ts'
import { sqlStateOf } from '../db/database-errors.ts'
import type { Notification, Notifier } from '../db/notifier.ts'
import { inTransaction, type Pool, sqlExecutor, type Transaction } from '../db/pool.ts'
import { type Fragment, type Queryable, rawFragment, sql } from '../db/sql.ts'
import { currentTriggerChain } from '../db/trigger-chain.ts'
import {
  delayedChannel,
  isDueSoon,
  type Queue,
  type QueueMessage,
  type Queues,
  type SendCte,
  wakeChannel,
  workQueue,
} from '../queues/queue.ts'
import type { AuditEntry } from './audit-entry.ts'
import { compressEnvelope } from './event-envelopes.ts'
import { type EventData, type EventRow, type EventSource, eventSource, makeEvent, type StoredEvent } from './events.ts'

declare module '../base/services.ts' {
  interface Services extends Writer {}
}

/**
 * Channel notified after the commit of events to dispatch, that is rows whose `dispatched_at` is null; a sweep every
 * few seconds is the fallback. There is no message per event: a write saves a round trip, and one read claims many
 * events.
 */
export const DISPATCH_CHANNEL = 'muster_events'

/**
 * SQL conditions under which a project may have subscribers. An event without possible subscribers is inserted
 * compressed and already dispatched: dispatching it would cost as much again as the insert.
 */
export const subscriberConditions = extensionPoint<(project: Fragment) => Fragment>({
  name: 'event consumers',
  folder: 'core/writes',
  description: 'Gives the SQL condition that a project may have subscribers of events',
})

/** Events whose batch dispatch failed, each dispatched individually with the retries and dead letters of a queue. */
export const eventDispatchQueue = workQueue('event.dispatch', {
  message: z.object({ event_id: z.string() }),
  concern: 'delivery',
  retry: { limit: 10, delaySeconds: 1, backoff: true, maxDelaySeconds: 300 },
  leaseSeconds: 60,
})

/** Events, messages, notifications and audit entries written with a transaction. */
export type Outbox = {
  /**
   * Adds an event of a row. Its data is the API representation of the row (or `data`), plus `extra`. Does nothing for a
   * row without a project.
   */
  emit<Row extends EventRow, Event extends string>(
    source: EventSource<Row, Event>,
    verb: NoInfer<Event>,
    row: NoInfer<Row>,
    overrides?: EventData,
  ): void
  emit<Event extends string>(
    source: EventSource<any, Event>,
    verb: NoInfer<Event>,
    row: EventRow,
    overrides: EventData & { data: object },
  ): void
  /** Sends a message to a queue with the commit. */
  send<M extends object>(queue: Queue<M>, message: M, options?: { startAfter?: Date; priority?: number }): void
  /** Notifies all listeners of a channel after the commit. Notifications may be lost, so listeners also poll. */
  notify(channel: string, payload: string): void
  /**
   * Invalidates a key in the caches of all processes. The notification is part of the commit and cannot be lost. For
   * rare changes of permissions and limits: all notifying commits of the cluster wait for this one.
   */
  invalidate(channel: string, key: string): void
  /** Adds an audit entry. The request pipeline adds its own entries. */
  audit(entry: AuditEntry): void
  /** Runs `action` after the commit; its failure is only logged. */
  afterCommit(action: () => void): void
  /**
   * Adds a write to the statement that writes the outbox, which saves a round trip. Its effects are not visible before
   * the commit. In a nested transaction it runs at the end of the outer one and its failure fails the outer one. Two
   * parts must not write the same row: PostgreSQL applies only one. `part` receives the condition under which it may
   * write, and returns a statement, or named ctes of which each may read the ones before.
   */
  alongside(part: OutboxPart): void
}

type OutboxPart = (guard: Fragment) => Fragment | readonly Fragment[]

/** A transaction with its outbox, which commits with the rows. */
export type Tx = Queryable &
  Outbox & {
    /**
     * Returns the result of `work`, which may take long and uses no connection: rolls the transaction back, runs `work` and
     * repeats the transaction, in which the same key returns the result. A nested transaction only runs `work`.
     */
    runOutside<T>(key: string, work: () => Promise<T>): Promise<T>
    /** Runs `work` in a savepoint: if it throws, its writes and outbox are undone and the transaction can continue. */
    nested<T>(work: (tx: Tx) => Promise<T>): Promise<T>
  }

/** Thrown in a transaction to roll it back and repeat it after `work`. */
class OutsideWork extends Error {
  readonly key: string
  readonly work: () => Promise<unknown>

  constructor(key: string, work: () => Promise<unknown>) {
    super('work must run outside the transaction')
    this.key = key
    this.work = work
  }
}

/** Pieces of work outside one transaction: a schema that changes with each repetition does not repeat it forever. */
const MAX_OUTSIDE = 200

/** A write in one statement: its CTEs, the condition that it took effect, and the columns to return. */
export type StatementWrite = { ctes: Fragment[]; guard: Fragment; columns: Fragment }

/** Thrown by work in a single statement that must read, or write before the end. */
export class TransactionRequired extends Error {}

/**
 * Returns a substitute transaction for work that may fit into a single statement: only its outbox can be used.
 * @throws TransactionRequired on use of any other member
 */
export const statementOnlyTx = (outbox: Outbox): Tx =>
  new Proxy(outbox as Tx, {
    get(target, name) {
      if (name in target) return target[name as keyof Outbox]
      throw new TransactionRequired()
    },
  })

export type Writer = {
  /** Runs `work` in a transaction and writes its outbox with one more statement. */
  write<T>(work: (tx: Tx) => Promise<T>): Promise<T>
  /**
   * Writes a change and its outbox in a single statement: one round trip, no BEGIN, no COMMIT. The outbox is written
   * only if the guard is true; `held` is its value. `work` is repeated after a deadlock.
   */
  writeOne<Row>(work: (outbox: Outbox) => StatementWrite | Promise<StatementWrite>): Promise<Row & { held: boolean }>
}

/** Events of audit entries with a project; such an event causes no audit entry. */
export const auditEvents = eventSource({
  name: 'audit_entry',
  plural: 'audit_entries',
  events: ['created'],
  eventAliases: { created: ['audit.entry_created'] },
  eventNotes: 'project-scoped entries only',
})

type OutboxRows = {
  events: StoredEvent[]
  entries: AuditEntry[]
  invalidations: Notification[]
  parts: OutboxPart[]
}

const ENTRY_COLUMNS = [
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
] as const

const isCtes = (part: Fragment | readonly Fragment[]): part is readonly Fragment[] => Array.isArray(part)

/**
 * Builds the CTEs that write an outbox, and the final select, which returns the wake-ups to send after the commit.
 * `guard` is the condition for all of it, for example that an earlier CTE updated a row.
 */
function buildOutboxSql(
  rows: OutboxRows,
  guard: Fragment = sql.fragment`true`,
  sends: SendCte[] = [],
): { ctes: Fragment[]; select: Fragment } {
  const { events, entries, invalidations, parts } = rows
  const ctes = parts.flatMap((part, index) => {
    const written = part(guard)
    return isCtes(written) ? written : [sql.fragment`${sql.identifier([`part_${index}`])} as (${written})`]
  })
  if (events.length > 0) {
    const conditions = subscriberConditions.all().map(condition => condition(sql.fragment`e.project_id`))
    const isWanted = conditions.length > 0 ? sql.join(conditions, sql.fragment` or `) : sql.fragment`false`
    // JSON instead of arrays, whose lengths PostgreSQL takes into account: it would replan for each number of rows.
    const eventRows = events.map(event => ({
      ...event,
      packed: events.length > MAX_COMPRESSED ? undefined : compressEnvelope(event)?.toString('base64'),
    }))
    ctes.push(sql.fragment`outbox_events as (
      insert into events (id, project_id, name, resource_type, resource_id, envelope, packed, created_at, causation, trace_context,
        dispatched_at)
      select e.id, e.project_id, e.name, e.resource_type, e.resource_id, case when w.text then e.envelope end,
        case when not w.text then decode(e.packed, 'base64') end, e.created_at, e.causation, e.trace_context, case when not w.wanted then now() end
      from json_to_recordset(${JSON.stringify(eventRows)}::json) as e (id text, project_id text, name text, resource_type text,
        resource_id text, envelope text, packed text, created_at timestamptz, causation jsonb,
        trace_context text)
      cross join lateral (select wanted, wanted or e.packed is null as text from (select ${isWanted} as wanted) w) w
      where ${guard}
      returning dispatched_at)`)
  }
  if (entries.length > 0) {
    ctes.push(sql.fragment`outbox_entries as (
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
        [...ENTRY_COLUMNS],
      )} where ${guard})`)
  }
  for (const { before, jobs, after } of sends) {
    ctes.push(
      sql.fragment`${rawFragment(before)}(case when ${guard} then ${jobs}::text else '[]' end)${rawFragment(after)}`,
    )
  }
  const isDispatched =
    events.length > 0
      ? sql.fragment`not exists (select from outbox_events where dispatched_at is null)`
      : sql.fragment`true`
  const dueQueues = sends.map(
    ({ queue, stored }) => sql.fragment`
      select ${queue}::text from ${sql.identifier([stored])} where start_after <= pgboss.job_now() limit 1`,
  )
  const queues =
    dueQueues.length > 0
      ? sql.fragment`array(${sql.join(
          dueQueues.map(each => sql.fragment`(${each})`),
          sql.fragment` union all `,
        )})`
      : sql.fragment`array[]::text[]`
  const notified =
    invalidations.length > 0
      ? sql.fragment`(select count(pg_notify(channel, payload))::int from ${sql.unnest(
          invalidations.map(item => [item.channel, item.payload]),
          ['text', 'text'],
        )} as n (channel, payload) where ${guard})`
      : sql.fragment`0`
  const select = sql.fragment`select ${queues} as queues, ${isDispatched} as dispatched, ${notified} as notified`
  return { ctes, select }
}

/**
 * Events of a transaction up to which they are compressed: beyond, the 30 to 80 us of each would be most of its processor time,
 * and block the event loop for 40 ms with 500 events.
 */
const MAX_COMPRESSED = 100

const MAX_CONFLICT_TRIES = 3
/** SQLSTATEs of a serialization failure and of a deadlock. */
const CONFLICTS = ['40001', '40P01']

const isConflict = (error: unknown): boolean => CONFLICTS.includes(sqlStateOf(error) ?? '')

const OutboxResult = z.strictObject({ queues: z.array(z.string()), dispatched: z.boolean(), notified: z.int() })
const outboxResult = sql.type(OutboxResult)

/** Returns the wake-ups of the queues and of the event dispatch after a commit. */
const wakeUpsFor = ({ queues, dispatched }: z.output<typeof OutboxResult>): Notification[] => [
  ...queues.map(payload => ({ channel: wakeChannel, payload })),
  ...(dispatched ? [] : [{ channel: DISPATCH_CHANNEL, payload: '' }]),
]

async function writeOutbox(db: Queryable, rows: OutboxRows, sends: SendCte[]): Promise<Notification[]> {
  if (Object.values(rows).every(({ length }) => length === 0) && sends.length === 0) return []
  const { ctes, select } = buildOutboxSql(rows, undefined, sends)
  const head = ctes.length > 0 ? sql.fragment`with ${sql.join(ctes, sql.fragment`, `)}` : sql.fragment``
  return wakeUpsFor(await db.one(outboxResult`${head} ${select}`))
}

type Collector = ReturnType<typeof createCollector>

type OutboxOptions = {
  /** Largest data of an event, in bytes of JSON. */
  eventMaxBytes: number
  /** Precedes the channels of notifications; default none. */
  channelPrefix?: string
  /** Whether a project is in another cell than the tables; default never. */
  isInOtherCell?: (projectId: string) => boolean
}

/** Returns an empty outbox with the writes that it collects. */
function createCollector({ eventMaxBytes, channelPrefix = '', isInOtherCell = () => false }: OutboxOptions) {
  const rows: OutboxRows = { events: [], entries: [], invalidations: [], parts: [] }
  const notifications: Notification[] = []
  const messages: QueueMessage[] = []
  const after: (() => void)[] = []
  const outbox: Outbox = {
    emit(source: EventSource<any>, verb: string, row: EventRow, overrides: EventData = {}) {
      if (row.project_id !== null) rows.events.push(makeEvent(source, verb, row, overrides, eventMaxBytes))
    },
    send(queue, data, options = {}) {
      messages.push({ queue, data, chain: currentTriggerChain(), ...options })
      if (isDueSoon(options)) outbox.notify(delayedChannel, queue.name)
    },
    notify(channel, payload) {
      notifications.push({ channel, payload })
    },
    invalidate(channel, key) {
      rows.invalidations.push({ channel: channelPrefix + channel, payload: key })
    },
    audit(entry) {
      const isOfCell = entry.project_id !== null && isInOtherCell(entry.project_id)
      // The chain of the project is in its cell, where this transaction cannot write: the entry joins the chain of the deployment.
      const stored = isOfCell ? { ...entry, project_id: null } : entry
      rows.entries.push(stored)
      outbox.emit(auditEvents, 'created', stored)
    },
    afterCommit(action) {
      after.push(action)
    },
    alongside(part) {
      rows.parts.push(part)
    },
  }
  return { rows, notifications, messages, after, outbox }
}

/** Returns the transaction of a connection, whose outbox is collected until its commit. */
const transactionOf = (
  connection: Transaction,
  collector: Collector,
  runOutside: Tx['runOutside'],
  options: OutboxOptions,
): Tx =>
  // The connection's methods are on its prototype, which a spread would omit.
  Object.assign(Object.create(connection) as Queryable, collector.outbox, {
    runOutside,
    async nested<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
      const inner = createCollector(options)
      const value = await connection.transaction(savepoint =>
        work(transactionOf(savepoint, inner, (_key, outside) => outside(), options)),
      )
      collector.rows.events.push(...inner.rows.events)
      collector.rows.entries.push(...inner.rows.entries)
      collector.rows.invalidations.push(...inner.rows.invalidations)
      collector.rows.parts.push(...inner.rows.parts)
      collector.notifications.push(...inner.notifications)
      collector.messages.push(...inner.messages)
      collector.after.push(...inner.after)
      return value
    },
  })

/** Creates the writer of a process. */
export function createWriter(
  options: OutboxOptions & {
    pool: Pool
    queues: Pick<Queues, 'insert' | 'sendCtes'>
    notifier: Pick<Notifier, 'notify'>
    onError: (error: unknown) => void
  },
): Writer {
  const { pool, queues, notifier, onError } = options

  const onCommitted = ({ notifications, after }: Pick<Collector, 'notifications' | 'after'>) => {
    notifier.notify(...notifications)
    for (const action of after) {
      try {
        action()
      } catch (error) {
        onError(error)
      }
    }
  }

  return {
    async write(work) {
      const results = new Map<string, unknown>()
      for (;;) {
        try {
          return await tryWrite(work, results)
        } catch (error) {
          if (!(error instanceof OutsideWork) || results.size === MAX_OUTSIDE) throw error
          results.set(error.key, await error.work())
        }
      }
    },

    async writeOne<Row>(work: (outbox: Outbox) => StatementWrite | Promise<StatementWrite>) {
      // The statement that lost a deadlock had no effect; its repetition sees the winner's changes.
      for (let tries = 1; ; tries++) {
        try {
          return await tryWriteOne<Row>(work)
        } catch (error) {
          if (!isConflict(error) || tries === MAX_CONFLICT_TRIES) throw error
        }
      }
    },
  }

  async function tryWrite<T>(work: (tx: Tx) => Promise<T>, results: Map<string, unknown>): Promise<T> {
    const runOutside: Tx['runOutside'] = async (key, outside) => {
      if (!results.has(key)) throw new OutsideWork(key, outside)
      return results.get(key) as never
    }
    let last: Collector | undefined
    const value = await inTransaction(pool, async connection => {
      const collector = createCollector(options)
      const { rows, notifications, messages } = collector
      // A repeated run, after a serialization failure, replaces the collector of the previous one.
      last = collector
      const tx = transactionOf(connection, collector, runOutside, options)
      const result = await work(tx)
      const sends = messages.length > 0 ? await queues.sendCtes(messages) : []
      const writeLast = () => writeOutbox(connection, rows, sends ?? [])
      if (sends !== null) notifications.push(...(await sendWithCommit(writeLast)))
      else notifications.push(...(await writeLast()), ...(await queues.insert(sqlExecutor(connection), messages)))
      return result
    })
    if (last) onCommitted(last)
    return value
  }

  async function tryWriteOne<Row>(
    work: (outbox: Outbox) => StatementWrite | Promise<StatementWrite>,
  ): Promise<Row & { held: boolean }> {
    const collector = createCollector(options)
    const { rows, notifications, messages, outbox } = collector
    const { ctes, guard, columns } = await work(outbox)
    const sends = messages.length > 0 ? await queues.sendCtes(messages) : []
    const outboxSql = buildOutboxSql(rows, guard, sends ?? [])
    // Untyped, because the caller defines the columns.
    const statement = sql.unsafe`
        with ${sql.join([...ctes, ...outboxSql.ctes, sql.fragment`outbox_sent as (${outboxSql.select})`], sql.fragment`, `)}
        select ${columns}, (${guard}) as held, (select to_json(s) from outbox_sent s) as sent`
    const row = (
      sends !== null
        ? await pool.one(statement)
        : await inTransaction(pool, async connection => {
            const written = (await connection.one(statement)) as { held: boolean }
            if (written.held) notifications.push(...(await queues.insert(sqlExecutor(connection), messages)))
            return written
          })
    ) as Row & { held: boolean; sent: z.output<typeof OutboxResult> }
    if (row.held) {
      notifications.push(...wakeUpsFor(row.sent))
      onCommitted(collector)
    }
    return row
  }
}
