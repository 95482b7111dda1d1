import { z } from 'zod'
import type { AuditEntry } from '../api/audit.ts'
import { extensionPoint } from '../declarations.ts'
import {
  delayedChannel,
  isDueSoon,
  type Queue,
  type QueueMessage,
  type Queues,
  type SendCte,
  wakeChannel,
  workQueue,
} from '../jobs/queue.ts'
import { sendWithCommit } from './commit-piggyback.ts'
import { sqlStateOf } from './database-errors.ts'
import { compressEnvelope } from './event-envelopes.ts'
import { type EventData, type EventRow, type EventSource, eventSource, makeEvent, type StoredEvent } from './events.ts'
import type { Notice, Notifier } from './notifier.ts'
import { inTransaction, type Pool, sqlExecutor, type Transaction } from './pool.ts'
import { type Fragment, type Queryable, rawFragment, sql } from './sql.ts'
import { currentTriggerChain } from './trigger-chain.ts'

/**
 * Dispatch of events. An event row whose `dispatched_at` is null is the work; its commit is followed by a notice on
 * this channel, so that a dispatcher reads it at once, and a sweep searches every few seconds. There is no message per event:
 * an ordinary write saves a round trip, and one read takes many events.
 */
export const DISPATCH_CHANNEL = 'muster_events'

/**
 * Conditions under which somebody may want the events of a project. An event that nobody can want counts as dispatched
 * when it is written, and is kept compressed: to have it looked at and marked costs as much again as to write it.
 */
export const subscriberConditions = extensionPoint<(project: Fragment) => Fragment>('event consumers')

/** An event whose dispatch failed goes on alone, with the retries and the dead letters of a queue. */
export const eventDispatchQueue = workQueue('event.dispatch', {
  message: z.object({ event_id: z.string() }),
  concern: 'delivery',
  retry: { limit: 10, delaySeconds: 1, backoff: true, maxDelaySeconds: 300 },
  leaseSeconds: 60,
})

/** What follows from a change and commits with it. */
export type Outbox = {
  /**
   * Records an event of a row, with its record as data (or `data`), and `extra` beside it. Nothing for a row without a
   * project: events are of projects.
   */
  emit<Row extends EventRow, Event extends string>(
    source: EventSource<Row, Event>,
    verb: NoInfer<Event>,
    row: NoInfer<Row>,
    more?: EventData,
  ): void
  emit<Event extends string>(
    source: EventSource<any, Event>,
    verb: NoInfer<Event>,
    row: EventRow,
    more: EventData & { data: object },
  ): void
  /** Sends a message to the handler of a queue; it exists when the transaction commits. */
  send<M extends object>(queue: Queue<M>, message: M, options?: { startAfter?: Date; priority?: number }): void
  /** Wakes every process that listens on a channel, after the commit. May be lost: whoever listens polls as well. */
  notify(channel: string, payload: string): void
  /**
   * Has every process drop what it keeps of a key of a channel, with the commit: nothing is committed of which they were not
   * notified. For changes of what decides over rights and limits, which are rare: it makes all commits of the cluster that
   * notify wait for this one.
   */
  invalidate(channel: string, key: string): void
  /** Adds an audit entry. The request pipeline adds its own. */
  audit(entry: AuditEntry): void
  /** Runs after the commit; its failure is logged and changes nothing. */
  afterCommit(action: () => void): void
  /**
   * Makes a write part of the statement that writes all this, where it saves a round trip: nothing before the commit reads
   * what it wrote, `beforeCommit` neither. Of a nested transaction it is made at the end of the outer one, which its failure
   * fails. Two parts must not write the same row: PostgreSQL keeps one of them. `part` gets the condition under which it is
   * to write.
   */
  alongside(part: (guard: Fragment) => Fragment): void
}

/** A transaction that also carries what follows from it: events, audit entries, messages and notifications commit with the rows. */
export type Tx = Queryable &
  Outbox & {
    /** Runs last inside the transaction, before the outbox is written. */
    beforeCommit(action: (tx: Tx) => void | Promise<void>): void
    /**
     * Runs a part of the work that can fail by itself: what it wrote, sent and emitted is undone when it throws, and the
     * transaction goes on.
     */
    nested<T>(work: (tx: Tx) => Promise<T>): Promise<T>
  }

/** A change that one statement makes: ctes, a condition that says whether it happened, and the columns of the answer. */
export type StatementWrite = { ctes: Fragment[]; guard: Fragment; columns: Fragment }

/** Work that was to be one statement has something to ask of the database, or to write before the end. */
export class TransactionRequired extends Error {}

/**
 * What work that is written for a transaction takes in its place, to be made in one statement.
 * @throws NeedsTransaction from everything but what follows from the change
 */
export const statementOnlyTx = (outgoing: Outbox): Tx =>
  new Proxy(outgoing as Tx, {
    get(target, name) {
      if (name in target) return target[name as keyof Outbox]
      throw new TransactionRequired()
    },
  })

export type Writer = {
  /** Runs `work` in a transaction and writes what it sent, emitted and noted in one more statement. */
  write<T>(work: (tx: Tx) => Promise<T>): Promise<T>
  /**
   * Makes a change and what follows from it in a single statement: one round trip, no begin, no commit. What follows is
   * written only where the guard holds. `work` is done again where the statement lost a deadlock.
   */
  writeOne<Row>(work: (outgoing: Outbox) => StatementWrite | Promise<StatementWrite>): Promise<Row & { held: boolean }>
}

/** Audit entries of a project are events too; such an event makes no entry. */
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
  invalidations: Notice[]
  parts: ((guard: Fragment) => Fragment)[]
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

/**
 * The parts of a statement that write an outbox: `ctes` for its `with`, and its final select, which tells what is to be
 * woken after the commit. `guard` makes all of it depend on a condition, for example on a row that an earlier cte
 * updated. A statement of its own is a transaction of its own: one round trip in all.
 */
function outboxParts(
  outbox: OutboxRows,
  guard: Fragment = sql.fragment`true`,
  sends: SendCte[] = [],
): { ctes: Fragment[]; select: Fragment } {
  const { events, entries, invalidations, parts } = outbox
  const ctes = parts.map((part, index) => sql.fragment`${sql.identifier([`part_${index}`])} as (${part(guard)})`)
  if (events.length > 0) {
    const wanted = subscriberConditions.all().map(condition => condition(sql.fragment`e.project_id`))
    const isWanted = wanted.length > 0 ? sql.join(wanted, sql.fragment` or `) : sql.fragment`false`
    // As json, because of an array PostgreSQL expects another number of rows each time and plans anew.
    const rows = events.map(event => ({ ...event, packed: compressEnvelope(event)?.toString('base64') }))
    ctes.push(sql.fragment`outbox_events as (
      insert into events (id, project_id, name, resource_type, resource_id, envelope, packed, created_at, causation, dispatched_at)
      select e.id, e.project_id, e.name, e.resource_type, e.resource_id, case when w.text then e.envelope end,
        case when not w.text then decode(e.packed, 'base64') end, e.created_at, e.causation, case when not w.wanted then now() end
      from json_to_recordset(${JSON.stringify(rows)}::json) as e (id text, project_id text, name text, resource_type text,
        resource_id text, envelope text, packed text, created_at timestamptz, causation jsonb)
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
  const woken = sends.map(
    ({ queue, stored }) => sql.fragment`
      select ${queue}::text from ${sql.identifier([stored])} where start_after <= pgboss.job_now() limit 1`,
  )
  const queues =
    woken.length > 0
      ? sql.fragment`array(${sql.join(
          woken.map(each => sql.fragment`(${each})`),
          sql.fragment` union all `,
        )})`
      : sql.fragment`array[]::text[]`
  const told =
    invalidations.length > 0
      ? sql.fragment`(select count(pg_notify(channel, payload))::int from ${sql.unnest(
          invalidations.map(item => [item.channel, item.payload]),
          ['text', 'text'],
        )} as n (channel, payload) where ${guard})`
      : sql.fragment`0`
  const select = sql.fragment`select ${queues} as queues, ${isDispatched} as dispatched, ${told} as told`
  return { ctes, select }
}

const CONFLICT_TRIES = 3
/** SQLSTATE of a serialization failure and of a deadlock. */
const CONFLICTS = ['40001', '40P01']

const isConflict = (error: unknown): boolean => CONFLICTS.includes(sqlStateOf(error) ?? '')

const Sent = z.strictObject({ queues: z.array(z.string()), dispatched: z.boolean(), told: z.int() })
const sending = sql.type(Sent)

/** What is to be woken for what was written. */
const wakeUps = ({ queues, dispatched }: z.output<typeof Sent>): Notice[] => [
  ...queues.map(payload => ({ channel: wakeChannel, payload })),
  ...(dispatched ? [] : [{ channel: DISPATCH_CHANNEL, payload: '' }]),
]

async function writeOutbox(db: Queryable, outbox: OutboxRows, sends: SendCte[]): Promise<Notice[]> {
  if (Object.values(outbox).every(({ length }) => length === 0) && sends.length === 0) return []
  const { ctes, select } = outboxParts(outbox, undefined, sends)
  const head = ctes.length > 0 ? sql.fragment`with ${sql.join(ctes, sql.fragment`, `)}` : sql.fragment``
  return wakeUps(await db.one(sending`${head} ${select}`))
}

/** Makes the writer of a process. */
export function createWriter(options: {
  pool: Pool
  queues: Pick<Queues, 'insert' | 'parts'>
  notifier: Pick<Notifier, 'notify'>
  eventMaxBytes: number
  onError: (error: unknown) => void
}): Writer {
  const { pool, queues, notifier, eventMaxBytes, onError } = options

  type Gathered = ReturnType<typeof gather>

  const gather = () => {
    const outbox: OutboxRows = { events: [], entries: [], invalidations: [], parts: [] }
    const notices: Notice[] = []
    const messages: QueueMessage[] = []
    const after: (() => void)[] = []
    const before: ((tx: Tx) => void | Promise<void>)[] = []
    const outgoing: Outbox = {
      emit(source: EventSource<any>, verb: string, row: EventRow, more: EventData = {}) {
        if (row.project_id !== null) outbox.events.push(makeEvent(source, verb, row, more, eventMaxBytes))
      },
      send(queue, data, more = {}) {
        messages.push({ queue, data, chain: currentTriggerChain(), ...more })
        if (isDueSoon(more)) outgoing.notify(delayedChannel, queue.name)
      },
      notify(channel, payload) {
        notices.push({ channel, payload })
      },
      invalidate(channel, key) {
        outbox.invalidations.push({ channel, payload: key })
      },
      audit(entry) {
        outbox.entries.push(entry)
        outgoing.emit(auditEvents, 'created', entry)
      },
      afterCommit(action) {
        after.push(action)
      },
      alongside(part) {
        outbox.parts.push(part)
      },
    }
    return { outbox, notices, messages, after, before, outgoing }
  }

  const transactionOf = (connection: Transaction, gathered: Gathered): Tx =>
    // The connection's methods are on its prototype, where a spread would not find them.
    Object.assign(Object.create(connection) as Queryable, gathered.outgoing, {
      beforeCommit(action: (tx: Tx) => void | Promise<void>) {
        gathered.before.push(action)
      },
      async nested<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
        const inner = gather()
        const value = await connection.transaction(savepoint => work(transactionOf(savepoint, inner)))
        gathered.outbox.events.push(...inner.outbox.events)
        gathered.outbox.entries.push(...inner.outbox.entries)
        gathered.outbox.invalidations.push(...inner.outbox.invalidations)
        gathered.outbox.parts.push(...inner.outbox.parts)
        gathered.notices.push(...inner.notices)
        gathered.messages.push(...inner.messages)
        gathered.after.push(...inner.after)
        gathered.before.push(...inner.before)
        return value
      },
    })

  const committed = ({ notices, after }: Pick<Gathered, 'notices' | 'after'>) => {
    notifier.notify(...notices)
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
      let last: Gathered | undefined
      const value = await inTransaction(pool, async connection => {
        const gathered = gather()
        const { outbox, notices, messages } = gathered
        // A transaction that is run again after a serialization failure gathers anew.
        last = gathered
        const tx = transactionOf(connection, gathered)
        const result = await work(tx)
        for (const action of gathered.before) await action(tx)
        const sends = messages.length > 0 ? await queues.parts(messages) : []
        const writeLast = () => writeOutbox(connection, outbox, sends ?? [])
        if (sends !== null) notices.push(...(await sendWithCommit(writeLast)))
        else notices.push(...(await writeLast()), ...(await queues.insert(sqlExecutor(connection), messages)))
        return result
      })
      if (last) committed(last)
      return value
    },

    async writeOne<Row>(work: (outgoing: Outbox) => StatementWrite | Promise<StatementWrite>) {
      // A statement that lost a deadlock has done nothing, and finds the other's work done.
      for (let tries = 1; ; tries++) {
        try {
          return await once<Row>(work)
        } catch (error) {
          if (!isConflict(error) || tries === CONFLICT_TRIES) throw error
        }
      }
    },
  }

  async function once<Row>(
    work: (outgoing: Outbox) => StatementWrite | Promise<StatementWrite>,
  ): Promise<Row & { held: boolean }> {
    const gathered = gather()
    const { outbox, notices, messages, outgoing } = gathered
    const { ctes, guard, columns } = await work(outgoing)
    const sends = messages.length > 0 ? await queues.parts(messages) : []
    const follows = outboxParts(outbox, guard, sends ?? [])
    // Untyped: the columns are the caller's.
    const statement = sql.unsafe`
        with ${sql.join([...ctes, ...follows.ctes, sql.fragment`outbox_sent as (${follows.select})`], sql.fragment`, `)}
        select ${columns}, (${guard}) as held, (select to_json(s) from outbox_sent s) as sent`
    const row = (
      sends !== null
        ? await pool.one(statement)
        : await inTransaction(pool, async connection => {
            const made = (await connection.one(statement)) as { held: boolean }
            if (made.held) notices.push(...(await queues.insert(sqlExecutor(connection), messages)))
            return made
          })
    ) as Row & { held: boolean; sent: z.output<typeof Sent> }
    if (row.held) {
      notices.push(...wakeUps(row.sent))
      committed(gathered)
    }
    return row
  }
}
