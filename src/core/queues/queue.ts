import { createHash } from 'node:crypto'
import { type ConstructorOptions, PgBoss } from 'pg-boss'
import type { Logger } from 'pino'
import type { z } from 'zod'
import { systemClock } from '../base/clock.ts'
import { declarations } from '../base/declarations.ts'
import { formatVersionOf, withFormatVersion } from '../base/format-versions.ts'
import { parseDatabaseUrl, withParameters } from '../db/database-url.ts'
import type { Notification, Notifier } from '../db/notifier.ts'
import { DatabaseClient, KEEPALIVE_OPTIONS, QUEUE_SCHEMA, SESSION_TIMEOUTS } from '../db/pg-client.ts'
import type { SqlExecutor } from '../db/pool.ts'
import { currentTriggerChain } from '../db/trigger-chain.ts'
import { createAccounts, LOSSES, withoutLosses } from './suspects.ts'

declare module '../base/services.ts' {
  interface Services {
    queues: Queues
  }
}

/**
 * Declaration of queues and sending of messages; handler.ts declares the handlers. pg-boss stores, retries,
 * dead-letters and deletes messages, in the schema `pgboss`, or in the schema of the URL.
 */

/**
 * Retry policy of a queue. `limit` is the number of retries after the first attempt. With `backoff` the delay doubles
 * from `delaySeconds` (at least 1), with jitter, up to `maxDelaySeconds`.
 */
export type QueueRetry = { limit: number; delaySeconds: number; backoff: boolean; maxDelaySeconds?: number }

export type Queue<M extends object> = {
  name: string
  /** Version of the format of its messages. A process leaves messages of later versions to workers of later releases. */
  version: number
  message: z.ZodType<M>
  /** `standard`: messages are independent. `stately`: at most one waiting and one active message per key. */
  policy: 'standard' | 'stately'
  key?: (message: M) => string
  project?: (message: M) => string | undefined
  retry: QueueRetry
  /** Time without a renewal after which another worker takes over a message. */
  leaseSeconds: number
  /** Kind of worker process that handles the queue (WORKER_KINDS). */
  concern: string
}

type QueueOptions<M extends object> = {
  message: z.ZodType<M>
  /** Default 1; raised when workers of the release before would misread a message. */
  version?: number
  concern: string
  /** Returns the project whose slots the message counts against. */
  project?: (message: M) => string | undefined
  retry?: Partial<QueueRetry>
  leaseSeconds?: number
}

/** Whether failed or lost messages are dropped instead of dead-lettered, because a schedule sends them again. */
export const isDroppedOnFailure = ({ retry }: Pick<Queue<any>, 'retry'>): boolean => retry.limit === 0

/** The queues of all loaded modules. */
export const queues = declarations<Queue<any>>('queue', ({ name }) => name)

const defaultRetry: QueueRetry = { limit: 2, delaySeconds: 1, backoff: true, maxDelaySeconds: 60 }

function declareQueue<M extends object>(
  name: string,
  policy: Queue<M>['policy'],
  { retry, leaseSeconds = 60, version = 1, ...rest }: QueueOptions<M>,
): Queue<M> {
  if (!/^[\w./-]+$/.test(name))
    throw new Error(`queue name ${name} contains characters other than letters, digits, _ . / -`)
  return { name, version, policy, retry: { ...defaultRetry, ...retry }, leaseSeconds, ...rest }
}

/**
 * Declares a work queue: messages are independent. After `retry.limit` retries a message moves to `<name>.dead`; with a
 * limit of 0 it is dropped, for messages that a schedule sends again. Defaults: 2 retries with backoff from 1 s to 60
 * s, a lease of 60 s.
 */
export function workQueue<M extends object>(name: string, options: QueueOptions<M>): Queue<M> {
  return declareQueue(name, 'standard', options)
}

/**
 * Declares a mailbox of entities: the state is in their rows, and messages are only wake-ups. `key` returns the ID of
 * the entity. In the whole deployment at most one message per key waits and at most one is active. A sender writes its
 * rows under the entity's row lock and sends in the same transaction. The handler takes the same lock to read the rows
 * and to finish, so no wake-up is lost.
 */
export function entityMailbox<M extends object>(
  name: string,
  options: QueueOptions<M> & { key: (message: M) => string },
): Queue<M> {
  return declareQueue(name, 'stately', options)
}

/**
 * A message to send. A future `startAfter` delays it. A message with an `id` (a UUID) is stored only once, as long as
 * finished messages are kept. Due messages with a higher `priority` (default 0) are claimed first.
 */
export type QueueMessage = {
  queue: Queue<any>
  data: object
  startAfter?: Date
  id?: string
  priority?: number
  /** Trigger chain that caused the message, in which its handler runs. */
  chain?: readonly string[]
}

/** Key of the trigger chain in stored messages, next to their data. */
const CHAIN = 'causation_chain'

/** Returns the trigger chain of a stored message. */
export const messageTriggerChain = (data: object): readonly string[] | undefined =>
  (data as Record<string, readonly string[] | undefined>)[CHAIN]

/** Whether a queue is declared here in the version of a stored message, or in a later one. */
export const isReadable = ({ version }: Pick<Queue<any>, 'version'>, data: object): boolean =>
  formatVersionOf(data) <= version

/** Builds a message with the current trigger chain; its data has the type of the queue. */
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
  /** Dead letters of this queue. */
  dead: number
  /** Time since the oldest due message was due. */
  oldest_seconds: number
}

export type DeadLetter = {
  id: string
  queue: string
  data: object
  /** Error of the last attempt. */
  error: unknown
  attempts: number
  sent_at: Date
  died_at: Date
}

/**
 * pg-boss's insert into one queue as CTEs. `before` and `after` enclose the parameter, a JSON array of jobs as text.
 * `stored` is the CTE that returns the stored messages with their `start_after`. If one of them is due, the caller
 * notifies `wakeChannel` with `queue` after the commit.
 */
export type SendCte = { queue: string; before: string; jobs: string; after: string; stored: string }

/**
 * pg-boss 12.35's insert into a queue with notifications, of which the first CTE is used, without the notification in
 * the second one. test/core/queue.test.ts fails when it changes.
 */
const INSERT =
  /^\s*WITH\s+(ins AS \([\s\S]*\)), notified AS \([\s\S]*\)\s*SELECT id FROM ins WHERE \(SELECT count\(\*\) FROM notified\) < 0\s*$/

export type Queues = {
  boss: PgBoss
  /** pg-boss's pool, for the statements of message-claims.ts. */
  db: SqlExecutor
  /** Runs `work` in one transaction of that pool; an error rolls back and is rethrown. */
  transaction<T>(work: (executor: SqlExecutor) => Promise<T>): Promise<T>
  /**
   * Sends messages, one statement per queue, and wakes workers. A mailbox message whose key already has a waiting
   * message is dropped without an error: the handler of the waiting message will read the rows.
   * @throws ZodError if data does not match the schema of the queue
   */
  send(messages: QueueMessage[]): Promise<void>
  /**
   * Inserts messages in a transaction and returns the notifications to send after its commit. Requires READ COMMITTED:
   * at a stricter level PostgreSQL reports a key with a waiting message as a serialization failure.
   */
  insert(executor: SqlExecutor, messages: QueueMessage[]): Promise<Notification[]>
  /** Wakes the workers of a queue: to claim messages (`now`), or to poll for the next due time (`later`). */
  wake(queue: string, when: 'now' | 'later'): void
  /**
   * Returns the insert as CTEs for a statement of the caller, who notifies `delayedChannel` of messages that are
   * `isDueSoon`. Returns null if pg-boss builds its insert in an unexpected way: use `insert` then.
   */
  sendCtes(messages: QueueMessage[]): Promise<SendCte[] | null>
  stats(): Promise<QueueStats[]>
  deadLetters: {
    /** Newest first. */
    list(options?: { queue?: string; limit?: number }): Promise<DeadLetter[]>
    inspect(id: string): Promise<DeadLetter | null>
    /** Moves dead letters back to their queue, oldest first, without the workers that they lost. Returns their number. */
    replay(options: { queue: string; ids?: string[]; limit?: number }): Promise<number>
    /** Deletes a dead letter. Returns whether it existed. */
    remove(options: { queue: string; id: string }): Promise<boolean>
  }
  close(): Promise<void>
}

const schema = QUEUE_SCHEMA

const schemaOf = (databaseUrl: string): string => parseDatabaseUrl(databaseUrl).schema ?? schema

/**
 * Time after which an unused connection of the queues is closed. Idle workers use several at the same time about once a minute.
 * Closing them in between, after pg's default of 10 s, was two thirds of the processor time of a server for idle workers: a new
 * session plans each statement again.
 */
const QUEUE_IDLE_MS = 600_000

/**
 * Interval of pg-boss's checks of attempts of more than a day, of long queues and of the vacuum. Each worker takes part, with
 * nine statements.
 */
const SUPERVISION_SECONDS = 300

/**
 * Interval at which pg-boss reads its queues again. Sends use the table, policy and `notify` of a queue, which never change; the
 * insert itself reads the other options, which `muster migrate` may change.
 */
const QUEUE_CACHE_SECONDS = 3600

/** Bound of a statement of pg-boss's maintenance. */
const MAINTENANCE_MS = 600_000

/** Group of messages without a project. Every message has a group, so that job_i7 serves the active ones. */
export const NO_PROJECT = '*'

/** Channel notified with the name of a queue when a message is due; pg-boss uses the same one. */
export const wakeChannel = `pgboss_${createHash('sha224').update(schema).digest('hex').slice(0, 24)}`

/** Channel notified with the name of a queue when a message is due soon. */
export const delayedChannel = 'muster_delayed'

/** Longest interval between polls, which find messages that are due later. */
export const IDLE_POLL_MS = 5_000

/** Whether a delayed message needs a notification, because it may be due before every worker has polled again. */
export const isDueSoon = ({ startAfter }: Pick<QueueMessage, 'startAfter'>): boolean =>
  startAfter !== undefined && startAfter.getTime() - systemClock.now().getTime() < 3 * IDLE_POLL_MS

/** Returns the name of a queue's dead letter queue. */
export const deadLetterQueue = (name: string) => `${name}.dead`

/**
 * Returns the key of a message. A delayed wake-up of an entity has a separate key, so that it never suppresses an
 * immediate one; the worker replaces it by an immediate wake-up when it is due.
 */
function singletonKey(queue: Queue<any>, data: object, startAfter: Date | undefined): string | undefined {
  if (!queue.key) return undefined
  const key = queue.key(data)
  return startAfter ? `${key}@${startAfter.getTime()}` : key
}

function toJob(message: QueueMessage) {
  // A delay is kept even if it is over by the clock of this process: only the database's clock decides when a message
  // is due. With a clock that is ahead, an entity would be woken repeatedly before its time.
  const { queue, id, priority, startAfter, chain } = message
  const data = queue.message.parse(message.data)
  return {
    ...(id ? { id } : {}),
    data: withFormatVersion(chain && chain.length > 0 ? { ...data, [CHAIN]: chain } : data, queue.version),
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
  // Sorted, so that two transactions that send to the same keys wait for each other instead of deadlocking.
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
 * Returns a function that returns a prepared statement for the executor of the queues, which pg may change: pg-boss passes the text
 * to pg unchanged, and pg accepts a named statement in place of a text.
 */
export const namedStatement = (name: string, text: string, more: { limitMs?: number } = {}): (() => string) => {
  const statement = { name, text, ...more }
  return () => ({ ...statement }) as unknown as string
}

type OpeningOptions = {
  databaseUrl: string
  connections: number
  applicationName?: string
  supervise?: boolean
  notifier: Pick<Notifier, 'notify'>
  log: Logger
}

/**
 * Opens the queues for sending. Creates and migrates nothing (see createQueuesInDatabase) and throws if the schema is
 * missing or has another version. `connections` bounds the pool. With `supervise` (worker processes) this process takes
 * part in pg-boss's maintenance, which pg-boss coordinates between processes, on an additional connection.
 */
export async function openQueues(options: OpeningOptions): Promise<Queues> {
  const { notifier } = options
  const boss = await startBoss(options, `${plannerOptions} ${KEEPALIVE_OPTIONS}`, {
    max: options.connections,
    idleTimeoutMillis: QUEUE_IDLE_MS,
  })
  const supervisor = options.supervise
    ? await startBoss(options, KEEPALIVE_OPTIONS, {
        max: 1,
        statement_timeout: MAINTENANCE_MS,
        // Reconnecting each time would cost more than its statements.
        idleTimeoutMillis: 0,
        supervise: true,
        superviseIntervalSeconds: SUPERVISION_SECONDS,
        monitorIntervalSeconds: SUPERVISION_SECONDS,
        maintenanceIntervalSeconds: 3600,
        // No queue has messages that depend on other messages, which is all that flows serve.
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

  const insert = async (executor: SqlExecutor, messages: QueueMessage[]): Promise<Notification[]> => {
    const ctes = await buildCtes(messages, () => 'stored')
    const due: string[] = []
    if (!ctes) for (const [name, jobs] of byQueue(messages)) await boss.insert(name, jobs, { db: executor })
    for (const { queue, before, jobs, after, stored } of ctes ?? []) {
      const text = `with ${before}$1::text${after} select exists (select from ${stored} where start_after <= ${schema}.job_now()) as due`
      // Planning it takes longer than its execution.
      const statement = executor === db ? namedStatement(`send ${queue}`, text)() : text
      const { rows } = await executor.executeSql(statement, [jobs])
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

  const buildCtes = async (messages: QueueMessage[], nameOf: (index: number) => string): Promise<SendCte[] | null> => {
    const ctes: SendCte[] = []
    for (const [index, [name, jobs]] of byQueue(messages).entries()) {
      let captured: { text: string; values: unknown[] } | null = null
      const recorder: SqlExecutor = {
        executeSql: async (text, values = []) => {
          captured = { text, values }
          return { rows: [] }
        },
      }
      await boss.insert(name, jobs, { db: recorder })
      const { text, values } = captured as unknown as { text: string; values: unknown[] }
      const stored = nameOf(index)
      const around = INSERT.exec(text.replaceAll(/\s+/g, ' '))?.[1]
        .replace(/^ins\b/, stored)
        .split('$1')
      if (around?.length !== 2 || values.length !== 1) return null
      ctes.push({ queue: name, before: around[0], jobs: values[0] as string, after: around[1], stored })
    }
    return ctes
  }

  return {
    boss,
    db,
    transaction,
    insert,
    wake,
    sendCtes: messages => buildCtes(messages, index => `stored_${index}`),

    async send(messages) {
      notifier.notify(...(await insert(db, messages)))
    },

    stats: () => queueStats(db),

    deadLetters: deadLettersIn(boss, wake),

    async close() {
      await supervisor?.stop({ graceful: false, close: true })
      await boss.stop({ graceful: false, close: true })
    },
  }
}

function startBoss(
  { databaseUrl, applicationName = 'muster-queue', log }: OpeningOptions,
  sessionOptions: string,
  more: ConstructorOptions & { idleTimeoutMillis?: number; statement_timeout?: number },
): Promise<PgBoss> {
  const boss = new PgBoss({
    connectionString: withParameters(databaseUrl, { options: sessionOptions }),
    // Options of pg's pool, which pg-boss passes on; its type lacks them.
    ...{ Client: DatabaseClient, ...SESSION_TIMEOUTS },
    application_name: applicationName,
    schema: schemaOf(databaseUrl),
    migrate: false,
    createSchema: false,
    schedule: false,
    supervise: false,
    queueCacheIntervalSeconds: QUEUE_CACHE_SECONDS,
    ...more,
  })
  boss.on('error', error => log.error({ err: error }, 'queue error'))
  boss.on('warning', warning => log.warn({ warning }, 'queue warning'))
  return boss.start()
}

async function queueStats(db: SqlExecutor): Promise<QueueStats[]> {
  const declared = queues.all()
  const { rows } = await db.executeSql(statsSql, [declared.flatMap(({ name }) => [name, deadLetterQueue(name)])])
  const byName = new Map(rows.map(row => [row.name as string, row]))
  return declared.map(({ name, concern }) => {
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
}

function deadLettersIn(boss: PgBoss, wake: Queues['wake']): Queues['deadLetters'] {
  const db = boss.getDb()
  return {
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
      const name = deadLetterQueue(queue)
      await db.executeSql(
        `update ${schema}.job_common set data = ${withoutLosses('data')}
         where name = $1 and state < 'active' and data ? '${LOSSES}' and ($2::uuid[] is null or id = any ($2))`,
        [name, ids ?? null],
      )
      const moved = await boss.redrive(name, {
        ...(ids ? { ids } : {}),
        ...(limit ? { limit } : {}),
      })
      if (moved > 0) wake(queue, 'now')
      return moved
    },
    async remove({ queue, id }) {
      const { rows } = await db.executeSql(
        `delete from ${schema}.job_common where name = $1 and id = $2 and state < 'active' returning id`,
        [deadLetterQueue(queue), id],
      )
      return rows.length === 1
    },
  }
}

// Without statistics on a queue PostgreSQL may read and sort all of its messages instead of using job_i11, which has
// the order of the claim: 5 ms a message at 10,000 waiting instead of 0.5. Claims are prepared: their generic plan must
// not depend on the backlog at planning time, nor be replanned each time (2 ms). Maintenance, which reads whole tables,
// has a pool without these options.
const plannerOptions = '-c enable_sort=off -c enable_seqscan=off -c plan_cache_mode=force_generic_plan -c jit=off'

// Waiting messages by project, for the claim in turn (message-claims.ts). With pg-boss's job_i11 alone, claiming a
// message of a project reads all messages that wait before it. Inserts of messages wait while the index is built, 0.3 s
// for a million stored messages. `concurrently` would wait for processes that wait for the migration lock.
const waitingIndex = `create index if not exists muster_waiting on ${schema}.job_common
  (name, group_id, priority desc, created_on, start_after) where state < 'active' and not blocked`

// Suspects (quarantine.ts) that wait; almost always empty.
const suspectsIndex = `create index if not exists muster_suspects on ${schema}.job_common
  (name, created_on) where blocked and state < 'active'`

// With these foreign keys each insert share-locks the rows of its queue and dead letter queue, which all senders
// contend for. They protect nothing: an insert reads the row of its queue anyway, and queues are never deleted.
const dropQueueForeignKeys = `do $$ begin
  if exists (select from pg_constraint
    where conrelid = '${schema}.job_common'::regclass and conname in ('q_fkey', 'dlq_fkey')) then
    alter table ${schema}.job_common drop constraint if exists q_fkey, drop constraint if exists dlq_fkey;
  end if;
end $$`

const DAY_SECONDS = 24 * 60 * 60

function storedOptions(queue: Queue<any>, retentionDays: number) {
  const { limit, delaySeconds, backoff, maxDelaySeconds } = queue.retry
  return {
    retryLimit: limit,
    retryDelay: delaySeconds,
    retryBackoff: backoff,
    retryDelayMax: backoff ? (maxDelaySeconds ?? null) : null,
    // Bound of one attempt; leases are implemented by the worker.
    expireInSeconds: DAY_SECONDS,
    // Long enough that weeks without a worker lose no messages.
    retentionSeconds: 365 * DAY_SECONDS,
    deleteAfterSeconds: retentionDays * DAY_SECONDS,
    deadLetter: isDroppedOnFailure(queue) ? null : deadLetterQueue(queue.name),
    notify: true,
  }
}

/**
 * Creates or updates the schema of pg-boss, every declared queue and its dead letter queue. Idempotent; called by
 * `migrate`. Finished messages are kept `retentionDays` (default 7), dead letters `deadLetterDays` (default 90).
 * @throws if a queue exists with another policy, which pg-boss cannot change
 */
export async function createQueuesInDatabase(
  databaseUrl: string,
  options: { retentionDays?: number; deadLetterDays?: number } = {},
): Promise<void> {
  const { retentionDays = 7, deadLetterDays = 90 } = options
  const boss = new PgBoss({
    connectionString: databaseUrl,
    ...{ Client: DatabaseClient },
    application_name: 'muster-migrate',
    max: 2,
    schema: schemaOf(databaseUrl),
    createSchema: parseDatabaseUrl(databaseUrl).schema === null,
    supervise: false,
    schedule: false,
  })
  const errors: Error[] = []
  boss.on('error', error => errors.push(error))
  await boss.start()
  try {
    await boss.getDb().executeSql(waitingIndex)
    await boss.getDb().executeSql(suspectsIndex)
    await boss.getDb().executeSql(createAccounts)
    await boss.getDb().executeSql(dropQueueForeignKeys)
    const existing = new Map((await boss.getQueues()).map(queue => [queue.name, queue]))
    for (const queue of queues.all()) {
      const dead = { retentionSeconds: deadLetterDays * DAY_SECONDS, deleteAfterSeconds: DAY_SECONDS }
      if (existing.has(deadLetterQueue(queue.name))) await boss.updateQueue(deadLetterQueue(queue.name), dead)
      else await boss.createQueue(deadLetterQueue(queue.name), dead)

      const stored = storedOptions(queue, retentionDays)
      const present = existing.get(queue.name)
      if (present && present.policy !== queue.policy) {
        throw new Error(`Queue ${queue.name} has policy ${present.policy}, not ${queue.policy}`)
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
