import { createHash } from 'node:crypto'
import { type ConstructorOptions, PgBoss } from 'pg-boss'
import type { Logger } from 'pino'
import type { z } from 'zod'
import type { Notice, Notifier } from '../db/notifier.ts'
import { currentTriggerChain } from '../db/trigger-chain.ts'
import { declarations } from '../declarations.ts'

/**
 * Queues: what can be sent, and sending it. Handlers (handler.ts) say who handles a queue. pg-boss stores, retries, dead-letters and deletes; its schema is `pgboss`.
 */

/**
 * When a failed message is tried again. `limit` is the number of retries after the first try; with `backoff` the delay
 * doubles from `delaySeconds` (at least 1), with jitter, up to `maxDelaySeconds`.
 */
export type QueueRetry = { limit: number; delaySeconds: number; backoff: boolean; maxDelaySeconds?: number }

export type Queue<M extends object> = {
  name: string
  message: z.ZodType<M>
  /** `standard`: many at once. `stately`: at most one waiting and one active message per key. */
  policy: 'standard' | 'stately'
  key?: (message: M) => string
  project?: (message: M) => string | undefined
  retry: QueueRetry
  /** A message whose handler was silent for this long is given to another worker. */
  leaseSeconds: number
  /** Which worker process handles it (WORKER_KINDS). */
  concern: string
}

type QueueOptions<M extends object> = {
  message: z.ZodType<M>
  concern: string
  /** The project whose share of slots the message counts against. */
  project?: (message: M) => string | undefined
  retry?: Partial<QueueRetry>
  leaseSeconds?: number
}

/** Whether a schedule sends the message again in any case: one that fails or is lost is dropped, and is no dead letter. */
export const isSentAnew = ({ retry }: Pick<Queue<any>, 'retry'>): boolean => retry.limit === 0

/** Every queue of the process. */
export const queues = declarations<Queue<any>>('queue', ({ name }) => name)

const defaultRetry: QueueRetry = { limit: 2, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 }

function declare<M extends object>(queue: Queue<M>): Queue<M> {
  if (!/^[\w./-]+$/.test(queue.name)) throw new Error(`queue name ${queue.name}: letters, digits, _ . / - only`)
  return queue
}

/**
 * Declares a work queue: many messages at once, each tried `retry.limit` times more, then moved to `<name>.dead`; with a limit
 * of 0, of messages that a schedule sends anew, it is dropped.
 * Defaults: 2 retries with backoff from 1 s to 60 s, a lease of 60 s.
 */
export function workQueue<M extends object>(name: string, options: QueueOptions<M>): Queue<M> {
  const { retry, leaseSeconds = 60, ...rest } = options
  return declare({ name, policy: 'standard', retry: { ...defaultRetry, ...retry }, leaseSeconds, ...rest })
}

/**
 * Declares an entity mailbox: the rows are the truth, a message only wakes a worker. `key` is the entity's id; at
 * most one message per key waits and at most one is handled, in the whole deployment. A sender writes what is to be
 * seen while it holds the entity's row lock and sends in the same transaction; the handler takes the same lock to
 * read them and to finish, so no wake-up is lost.
 */
export function entityMailbox<M extends object>(
  name: string,
  options: QueueOptions<M> & { key: (message: M) => string },
): Queue<M> {
  const { retry, leaseSeconds = 60, ...rest } = options
  return declare({ name, policy: 'stately', retry: { ...defaultRetry, ...retry }, leaseSeconds, ...rest })
}

/** What SQL is run with: the caller's transaction, or a pool. Parameters are `$1`, `$2`, ... */
export type SqlExecutor = { executeSql(text: string, values?: unknown[]): Promise<{ rows: any[] }> }

/**
 * One message to send. `startAfter` in the future delays it. A message with an `id` (a uuid) is stored once however
 * often it is sent, for as long as finished messages are kept. Of due messages those of a higher `priority` (default 0)
 * are handled first.
 */
export type QueueMessage = {
  queue: Queue<any>
  data: object
  startAfter?: Date
  id?: string
  priority?: number
  /** The triggers that led to it: its handler works in their name. */
  chain?: readonly string[]
}

/** What a stored message carries its chain as, beside its data. */
const CHAIN = 'causation_chain'

/** The triggers that led to a stored message. */
export const messageTriggerChain = (data: object): readonly string[] | undefined =>
  (data as Record<string, readonly string[] | undefined>)[CHAIN]

/** Builds a message with its data checked against the queue's type. */
export function queueMessage<M extends object>(
  queue: Queue<M>,
  data: M,
  options: Omit<QueueMessage, 'queue' | 'data'> = {},
): QueueMessage {
  return { queue, data, chain: currentTriggerChain(), ...options }
}

export type QueueStats = {
  queue: string
  concern: string
  /** Due now. */
  waiting: number
  /** Due later: delayed messages and retries. */
  delayed: number
  active: number
  /** Dead letters kept for this queue. */
  dead: number
  /** How long the oldest due message has been due. */
  oldest_seconds: number
}

export type DeadLetter = {
  id: string
  queue: string
  data: object
  /** What the last attempt failed with. */
  error: unknown
  attempts: number
  sent_at: Date
  died_at: Date
}

/**
 * pg-boss's own insert into one queue as ctes of a `with`. `before` and `after` enclose the parameter, a json array of
 * jobs as text; `stored` is the cte whose rows are the messages that were stored, with their `start_after`. Workers of
 * `queue` are to be woken after the commit where one of them is due (`wakeChannel`).
 */
export type SendCte = { queue: string; before: string; jobs: string; after: string; stored: string }

/**
 * What pg-boss 12.35 sends for an insert into a queue that notifies: its first cte is taken, without the notification of the
 * second. test/core/queue.test.ts fails when it changes.
 */
const INSERT =
  /^\s*WITH\s+(ins AS \([\s\S]*\)), notified AS \([\s\S]*\)\s*SELECT id FROM ins WHERE \(SELECT count\(\*\) FROM notified\) < 0\s*$/

export type Queues = {
  boss: PgBoss
  /** pg-boss's pool, for statements of claims.ts. */
  db: SqlExecutor
  /** Runs `work` in one transaction of that pool; rolls back and rethrows when it throws. */
  transaction<T>(work: (executor: SqlExecutor) => Promise<T>): Promise<T>
  /**
   * Sends messages, one statement per queue, and wakes workers. A message of an entity mailbox whose key already has a waiting
   * one is dropped without an error: the handler of the waiting one will see the rows.
   * @throws ZodError when data does not fit the queue's schema.
   */
  send(messages: QueueMessage[]): Promise<void>
  /**
   * The same as part of a transaction, which then sends the notices that are returned: nothing is sent if it rolls back. Run
   * it at READ COMMITTED: at a stricter level PostgreSQL reports a key that has a waiting message as a serialization failure.
   */
  insert(executor: SqlExecutor, messages: QueueMessage[]): Promise<Notice[]>
  /** Has workers claim messages of a queue (`now`), or find out when the next one is due (`later`). */
  wake(queue: string, when: 'now' | 'later'): void
  /**
   * The insert, taken apart so that it can ride in a statement of the caller's; see `SendPart`. The caller notifies
   * `delayedChannel` of what `isDueSoon`. Null when pg-boss builds its insert in a way that is not known here: send the
   * messages then.
   */
  parts(messages: QueueMessage[]): Promise<SendCte[] | null>
  stats(): Promise<QueueStats[]>
  deadLetters: {
    /** Newest first. */
    list(options?: { queue?: string; limit?: number }): Promise<DeadLetter[]>
    inspect(id: string): Promise<DeadLetter | null>
    /** Sends dead letters of a queue again, oldest first; returns how many. */
    replay(options: { queue: string; ids?: string[]; limit?: number }): Promise<number>
  }
  close(): Promise<void>
}

const schema = 'pgboss'

/** The group of messages without a project. Every message has one, so that job_i7 finds the active ones. */
export const NO_PROJECT = '*'

/** The channel that is notified with a queue's name when a message can be handled at once: that of pg-boss. */
export const wakeChannel = `pgboss_${createHash('sha224').update(schema).digest('hex').slice(0, 24)}`

/** The channel that is notified with a queue's name when a message was stored that is due soon. */
export const delayedChannel = 'muster_delayed'

/** Workers poll at least so often: they see in time what is due later. */
export const IDLE_POLL_MS = 5_000

/** Whether workers have to be told of a message with a delay: one that may be due before each of them has polled again. */
export const isDueSoon = ({ startAfter }: Pick<QueueMessage, 'startAfter'>): boolean =>
  startAfter !== undefined && startAfter.getTime() - Date.now() < 3 * IDLE_POLL_MS

/** Name of the queue that keeps the messages of a queue that failed for good. */
export const deadLetterQueue = (name: string) => `${name}.dead`

/**
 * The key a message is stored under. A delayed wake-up of an entity has a key of its own, so that it never hides an
 * immediate one; the worker turns it into an immediate one when it is due.
 */
function singletonKey(queue: Queue<any>, data: object, startAfter: Date | undefined): string | undefined {
  if (!queue.key) return undefined
  const key = queue.key(data)
  return startAfter ? `${key}@${startAfter.getTime()}` : key
}

function toJob(message: QueueMessage) {
  // Whether its time has come is for the clock of the database: by that of a process that is ahead, an entity whose time
  // has not come would be woken again and again.
  const { queue, id, priority, startAfter, chain } = message
  const data = queue.message.parse(message.data)
  return {
    ...(id ? { id } : {}),
    data: chain && chain.length > 0 ? { ...data, [CHAIN]: chain } : data,
    singletonKey: singletonKey(queue, data, startAfter),
    group: { id: queue.project?.(data) ?? NO_PROJECT },
    ...(startAfter ? { startAfter } : {}),
    ...(priority ? { priority } : {}),
  }
}

function byQueue(messages: QueueMessage[]): [string, ReturnType<typeof toJob>[]][] {
  const groups = new Map<string, ReturnType<typeof toJob>[]>()
  for (const message of messages) {
    const jobs = groups.get(message.queue.name)
    if (jobs) jobs.push(toJob(message))
    else groups.set(message.queue.name, [toJob(message)])
  }
  // One order everywhere: two transactions that send to the same keys wait for each other instead of deadlocking.
  for (const jobs of groups.values()) {
    jobs.sort((a, b) => ((a.singletonKey ?? '') < (b.singletonKey ?? '') ? -1 : 1))
  }
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1))
}

// job_i11 (name, priority, created_on, start_after; waiting) and job_i7 (name, group_id; active) serve the two counts.
const statsSql = `
  select q.name, w.waiting::int, w.delayed::int, a.active::int,
    coalesce(extract(epoch from now() - w.oldest), 0)::float8 as oldest_seconds
  from unnest($1::text[]) as q (name)
  cross join lateral (
    select count(*) filter (where j.start_after <= now()) as waiting,
      count(*) filter (where j.start_after > now()) as delayed,
      min(j.start_after) filter (where j.start_after <= now()) as oldest
    from ${schema}.job_common j where j.name = q.name and j.state < 'active' and not j.blocked
  ) w
  cross join lateral (
    select count(*) as active
    from ${schema}.job_common j where j.name = q.name and j.state = 'active' and j.group_id is not null
  ) a`

const deadLetterColumns = `j.id, coalesce(j.source_name, regexp_replace(j.name, '[.]dead$', '')) as queue, j.data,
  j.source_output as error, coalesce(j.source_retry_count, 0) + 1 as attempts, j.source_created_on as sent_at,
  j.created_on as died_at`

/**
 * Opens the queues for sending. Never creates or migrates anything (createQueuesInDatabase does); raises when the
 * schema is missing or of another version. `connections` bounds the pool; `supervise` (worker processes) lets this
 * process take part in pg-boss's maintenance, which pg-boss coordinates between processes, on one of the connections.
 */
export async function openQueues(options: {
  databaseUrl: string
  connections: number
  applicationName?: string
  supervise?: boolean
  notifier: Pick<Notifier, 'notify'>
  log: Logger
}): Promise<Queues> {
  const { log, notifier } = options
  const start = async (more: ConstructorOptions & { idleTimeoutMillis?: number }) => {
    const boss = new PgBoss({
      connectionString: options.databaseUrl,
      application_name: options.applicationName ?? 'muster-queue',
      schema,
      migrate: false,
      createSchema: false,
      schedule: false,
      supervise: false,
      ...more,
    })
    boss.on('error', error => log.error({ err: error }, 'queue error'))
    boss.on('warning', warning => log.warn({ warning }, 'queue warning'))
    return boss.start()
  }
  const boss = await start({ max: options.connections, options: plannerOptions })
  const supervisor = options.supervise
    ? await start({
        max: 1,
        // Used every minute: a connection for each time is a twentieth of what an idle worker costs.
        idleTimeoutMillis: 0,
        supervise: true,
        maintenanceIntervalSeconds: 3600,
        // No queue of ours has messages that wait for others, which a pass of flows looks for.
        flowIntervalSeconds: 86_400,
      })
    : null
  const db = boss.getDb()

  const transaction = async <T>(work: (executor: SqlExecutor) => Promise<T>): Promise<T> => {
    const handle = await db.beginTransaction!()
    try {
      const result = await work(handle.db)
      await handle.commit()
      return result
    } catch (error) {
      await handle.rollback()
      throw error
    }
  }

  const insert = async (executor: SqlExecutor, messages: QueueMessage[]): Promise<Notice[]> => {
    const parts = await partsOf(messages)
    const due: string[] = []
    if (!parts) for (const [name, jobs] of byQueue(messages)) await boss.insert(name, jobs, { db: executor })
    for (const { queue, before, jobs, after, stored } of parts ?? []) {
      const { rows } = await executor.executeSql(
        `with ${before}$1::text${after} select exists (select from ${stored} where start_after <= ${schema}.job_now()) as due`,
        [jobs],
      )
      if (rows[0].due) due.push(queue)
    }
    const soon = new Set(messages.filter(isDueSoon).map(({ queue }) => queue.name))
    return [
      ...due.map(payload => ({ channel: wakeChannel, payload })),
      ...[...soon].map(payload => ({ channel: delayedChannel, payload })),
    ]
  }

  const wake: Queues['wake'] = (payload, when) =>
    notifier.notify({ channel: when === 'now' ? wakeChannel : delayedChannel, payload })

  const partsOf: Queues['parts'] = async messages => {
    const parts: SendCte[] = []
    for (const [index, [name, jobs]] of byQueue(messages).entries()) {
      let caught: { text: string; values: unknown[] } | null = null
      const catcher: SqlExecutor = {
        executeSql: async (text, values = []) => {
          caught = { text, values }
          return { rows: [] }
        },
      }
      await boss.insert(name, jobs, { db: catcher })
      const { text, values } = caught as unknown as { text: string; values: unknown[] }
      const stored = `stored_${index}`
      const around = INSERT.exec(text.replaceAll(/\s+/g, ' '))?.[1]
        .replace(/^ins\b/, stored)
        .split('$1')
      if (around?.length !== 2 || values.length !== 1) return null
      parts.push({ queue: name, before: around[0], jobs: values[0] as string, after: around[1], stored })
    }
    return parts
  }

  return {
    boss,
    db,
    transaction,
    insert,
    wake,
    parts: partsOf,

    async send(messages) {
      notifier.notify(...(await insert(db, messages)))
    },

    async stats() {
      const known = queues.all()
      const { rows } = await db.executeSql(statsSql, [known.flatMap(({ name }) => [name, deadLetterQueue(name)])])
      const byName = new Map(rows.map(row => [row.name as string, row]))
      return known.map(({ name, concern }) => {
        const { waiting, delayed, active, oldest_seconds } = byName.get(name)
        return {
          queue: name,
          concern,
          waiting,
          delayed,
          active,
          dead: byName.get(deadLetterQueue(name)).waiting,
          oldest_seconds,
        }
      })
    },

    deadLetters: {
      async list({ queue, limit = 100 } = {}) {
        const names = queue
          ? [deadLetterQueue(queue)]
          : queues
              .all()
              .map(queue => queue.name)
              .map(deadLetterQueue)
        const { rows } = await db.executeSql(
          `select ${deadLetterColumns} from ${schema}.job_common j
           where j.name = any($1) and j.state < 'active' order by j.created_on desc limit $2`,
          [names, limit],
        )
        return rows
      },
      async inspect(id) {
        const names = queues
          .all()
          .map(queue => queue.name)
          .map(deadLetterQueue)
        const { rows } = await db.executeSql(
          `select ${deadLetterColumns} from ${schema}.job_common j where j.name = any($1) and j.id = $2`,
          [names, id],
        )
        return rows[0] ?? null
      },
      async replay({ queue, ids, limit }) {
        const moved = await boss.redrive(deadLetterQueue(queue), {
          ...(ids ? { ids } : {}),
          ...(limit ? { limit } : {}),
        })
        if (moved > 0) wake(queue, 'now')
        return moved
      },
    },

    async close() {
      await supervisor?.stop({ graceful: false, close: true })
      await boss.stop({ graceful: false, close: true })
    },
  }
}

// Without statistics on a queue PostgreSQL may read and sort all of its messages instead of following job_i11, which is
// in the order of the claim: 5 ms a message at 10,000 waiting instead of 0.5. Claims are prepared: their plan must not
// depend on how much waited when it was made, nor be made again for each (2 ms). Maintenance, which reads whole tables,
// has a pool without these options.
const plannerOptions = '-c enable_sort=off -c enable_seqscan=off -c plan_cache_mode=force_generic_plan -c jit=off'

// What waits, by project, for the claim in turn (claims.ts). pg-boss has no such index: with job_i11 alone the claim of a
// quiet project's message reads all that waits before it. Writers of messages wait while it is built, 0.3 s for a million
// kept messages. `concurrently` would wait for the processes that wait for the lock of the migration.
const waitingIndex = `create index if not exists muster_waiting on ${schema}.job_common
  (name, group_id, priority desc, created_on, start_after) where state < 'active' and not blocked`

// By these keys each message locks the rows of its queue and of its dead letters, which all senders share. They hold
// nothing: a message is made from the row of its queue, and no queue is deleted.
const sharedLocks = `do $$ begin
  if exists (select from pg_constraint
    where conrelid = '${schema}.job_common'::regclass and conname in ('q_fkey', 'dlq_fkey')) then
    alter table ${schema}.job_common drop constraint if exists q_fkey, drop constraint if exists dlq_fkey;
  end if;
end $$`

const daysInSeconds = 24 * 60 * 60

function storedOptions(queue: Queue<any>, retentionDays: number) {
  const { limit, delaySeconds, backoff, maxDelaySeconds } = queue.retry
  return {
    retryLimit: limit,
    retryDelay: delaySeconds,
    retryBackoff: backoff,
    retryDelayMax: backoff ? (maxDelaySeconds ?? null) : null,
    // The worker keeps the lease; this is only the bound of one attempt.
    expireInSeconds: daysInSeconds,
    // A message waits for as long as it takes: no worker for weeks must not lose work.
    retentionSeconds: 365 * daysInSeconds,
    deleteAfterSeconds: retentionDays * daysInSeconds,
    deadLetter: isSentAnew(queue) ? null : deadLetterQueue(queue.name),
    notify: true,
  }
}

/**
 * Creates or updates the schema of pg-boss, every declared queue and its dead letter queue. Idempotent; run by migrate.
 * Finished messages are kept `retentionDays` (default 7), dead letters `deadLetterDays` (default 90).
 * @throws when a queue was created with another policy: pg-boss cannot change it.
 */
export async function createQueuesInDatabase(
  databaseUrl: string,
  options: { retentionDays?: number; deadLetterDays?: number } = {},
): Promise<void> {
  const { retentionDays = 7, deadLetterDays = 90 } = options
  const boss = new PgBoss({
    connectionString: databaseUrl,
    application_name: 'muster-migrate',
    max: 2,
    schema,
    supervise: false,
    schedule: false,
  })
  const errors: Error[] = []
  boss.on('error', error => errors.push(error))
  await boss.start()
  try {
    await boss.getDb().executeSql(waitingIndex)
    await boss.getDb().executeSql(sharedLocks)
    const existing = new Map((await boss.getQueues()).map(queue => [queue.name, queue]))
    for (const queue of queues.all()) {
      const dead = { retentionSeconds: deadLetterDays * daysInSeconds, deleteAfterSeconds: daysInSeconds }
      if (existing.has(deadLetterQueue(queue.name))) await boss.updateQueue(deadLetterQueue(queue.name), dead)
      else await boss.createQueue(deadLetterQueue(queue.name), dead)

      const stored = storedOptions(queue, retentionDays)
      const present = existing.get(queue.name)
      if (present && present.policy !== queue.policy) {
        throw new Error(`queue ${queue.name} has policy ${present.policy}, declared ${queue.policy}`)
      }
      const { retryDelayMax, deadLetter, ...rest } = stored
      if (present) await boss.updateQueue(queue.name, stored)
      else
        await boss.createQueue(queue.name, {
          ...rest,
          ...(retryDelayMax ? { retryDelayMax } : {}),
          ...(deadLetter ? { deadLetter } : {}),
          policy: queue.policy,
        })
    }
  } finally {
    await boss.stop({ graceful: false, close: true })
  }
  if (errors.length > 0) throw errors[0]
}
