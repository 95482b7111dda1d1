import { between } from '../core/api/lists.ts'
import { all, type Queryable, sql } from '../core/db/sql.ts'

/** The oldest admin that is not disabled; null when there is none. */
export const firstAdmin = async (
  db: Queryable,
): Promise<{ id: string; username: string; role: string; token_version: number } | null> =>
  (await db.maybeOne(sql.unsafe`
    select id, username, role, token_version from users where role = 'admin' and disabled_at is null
    order by created_at, id limit 1`)) as {
    id: string
    username: string
    role: string
    token_version: number
  } | null

/** Names of the migrations that ran; none on an empty database. */
export async function appliedMigrations(db: Queryable): Promise<readonly string[]> {
  if ((await db.oneFirst(sql.unsafe`select to_regclass('migrations')`)) === null) return []
  return (await db.anyFirst(sql.unsafe`select name from migrations`)) as readonly string[]
}

/** Version of the server, and its time in milliseconds. */
export const serverFacts = async (db: Queryable): Promise<{ version: string; number: number; now_ms: number }> =>
  (await db.one(sql.unsafe`
    select current_setting('server_version') as version, current_setting('server_version_num')::int as number,
      (extract(epoch from clock_timestamp()) * 1000)::float8 as now_ms`)) as {
    version: string
    number: number
    now_ms: number
  }

/** Names of the queues that exist. */
export async function queueNames(db: Queryable): Promise<readonly string[]> {
  if ((await db.oneFirst(sql.unsafe`select to_regclass('pgboss.queue')`)) === null) return []
  return (await db.anyFirst(sql.unsafe`select name from pgboss.queue`)) as readonly string[]
}

/** Signs of life of workers by age. */
export const heartbeats = async (
  db: Queryable,
): Promise<readonly { instance_id: string; kinds: string[]; age_ms: number }[]> =>
  (await db.any(sql.unsafe`
    select instance_id, kinds, (extract(epoch from now() - beat_at) * 1000)::float8 as age_ms
    from worker_heartbeats order by age_ms`)) as readonly { instance_id: string; kinds: string[]; age_ms: number }[]

/** Takes the lock that one `up` holds on an embedded database, for as long as the connection lives. */
export const tryLockData = async (db: Queryable): Promise<boolean> =>
  (await db.oneFirst(sql.unsafe`select pg_try_advisory_lock(hashtext('muster.up'))`)) as boolean

export type DeliveryFilter = {
  project: string | null
  webhook: string | null
  status: 'failed' | 'completed'
  ids: readonly string[]
  from: Date | null
  to: Date | null
}

/**
 * Deliveries to make again. One whose event was sent to the webhook again since is left out, so that a second run
 * repeats nothing; naming its id takes it all the same.
 */
const deliveriesWhere = (filter: DeliveryFilter) =>
  all([
    sql.fragment`t.status = ${filter.status}`,
    filter.project !== null && sql.fragment`t.project_id = ${filter.project}`,
    filter.webhook !== null && sql.fragment`t.webhook_id = ${filter.webhook}`,
    filter.ids.length > 0
      ? sql.fragment`t.id = any (${sql.array([...filter.ids], 'text')})`
      : sql.fragment`not exists (select from webhook_deliveries r
          where r.event_id = t.event_id and r.webhook_id = t.webhook_id and r.id > t.id)`,
    between(sql.fragment`t.created_at`, filter),
  ])

export const countDeliveries = async (db: Queryable, filter: DeliveryFilter): Promise<number> =>
  (await db.oneFirst(
    sql.unsafe`select count(*)::int from webhook_deliveries t where ${deliveriesWhere(filter)}`,
  )) as number

/** Locks the next deliveries to make again, after id `after`, oldest first. Webhook and project with each. */
export const takeDeliveries = async (
  db: Queryable,
  filter: DeliveryFilter,
  after: string,
  limit: number,
): Promise<readonly { id: string; webhook_id: string; project_id: string }[]> =>
  (await db.any(sql.unsafe`
    select t.id, t.webhook_id, t.project_id from webhook_deliveries t
    where ${deliveriesWhere(filter)} and t.id > ${after}
    order by t.id limit ${limit} for update of t skip locked`)) as readonly {
    id: string
    webhook_id: string
    project_id: string
  }[]

export type TurnFilter = {
  project: string | null
  status: 'pending' | 'in_progress' | null
  ids: readonly string[]
  from: Date | null
  to: Date | null
}

export type IdleTurn = { id: string; project_id: string; conversation_id: string | null; status: string }

/**
 * Turns that are not at their end and for which no message waits or is handled; those of paused projects wait on
 * purpose. The keys of both mailboxes are read once and matched by hash. Served by generations_open.
 */
export const turnsWithoutMessage = async (
  db: Queryable,
  filter: TurnFilter,
  queues: { turn: string; conversation: string },
  limit: number,
): Promise<readonly IdleTurn[]> =>
  (await db.any(sql.unsafe`
    with kept as materialized (
      select name, split_part(singleton_key, '@', 1) as key from pgboss.job_common
      where name in (${queues.turn}, ${queues.conversation}) and state <= 'active'
    )
    select t.id, t.project_id, t.conversation_id, t.status
    from generations t join projects p on p.id = t.project_id and p.paused_at is null
    where ${all([
      filter.status === null
        ? sql.fragment`t.status in ('pending', 'in_progress')`
        : sql.fragment`t.status = ${filter.status}`,
      filter.project !== null && sql.fragment`t.project_id = ${filter.project}`,
      filter.ids.length > 0 && sql.fragment`t.id = any (${sql.array([...filter.ids], 'text')})`,
      between(sql.fragment`t.created_at`, filter),
    ])}
      and not exists (select from kept k where k.name = ${queues.turn} and k.key = t.id)
      and not exists (select from kept k where k.name = ${queues.conversation} and k.key = t.conversation_id)
    order by t.created_at, t.id limit ${limit}`)) as readonly IdleTurn[]

export type DocumentFilter = {
  project: string | null
  /** Null: whatever has chunks. */
  status: 'failed' | 'ready' | null
  /** Only documents in which a chunk lacks a vector of this embedding space. */
  missing: number | null
  ids: readonly string[]
  from: Date | null
  to: Date | null
}

const documentsWhere = (filter: DocumentFilter) =>
  all([
    sql.fragment`t.kind = 'document'`,
    filter.status === null ? sql.fragment`t.chunk_count > 0` : sql.fragment`t.status = ${filter.status}`,
    filter.missing !== null && sql.fragment`(t.space_id <> ${filter.missing} or t.embedded_chunks < t.chunk_count)`,
    filter.project !== null && sql.fragment`t.project_id = ${filter.project}`,
    filter.ids.length > 0 && sql.fragment`t.id = any (${sql.array([...filter.ids], 'text')})`,
    between(sql.fragment`t.created_at`, filter),
  ])

export const countDocuments = async (db: Queryable, filter: DocumentFilter): Promise<number> =>
  (await db.oneFirst(sql.unsafe`select count(*)::int from documents t where ${documentsWhere(filter)}`)) as number

/** The next documents, newest first, from below an id on. */
export const nextDocuments = async (
  db: Queryable,
  filter: DocumentFilter,
  below: string | null,
  limit: number,
): Promise<readonly { id: string; project_id: string }[]> =>
  (await db.any(sql.unsafe`
    select t.id, t.project_id from documents t
    where ${all([documentsWhere(filter), below !== null && sql.fragment`t.id < ${below}`])}
    order by t.id desc limit ${limit}`)) as readonly { id: string; project_id: string }[]
