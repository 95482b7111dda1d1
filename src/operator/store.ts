import { z } from 'zod'
import { WORKER_EXECUTED } from '#automation/orchestrations/runs/engine/node-execution-store.ts'
import { uncollectedCondition } from '#automation/orchestrations/runs/engine/sweep-store.ts'
import { LIVE } from '#automation/orchestrations/runs/model.ts'
import { hasVector, VECTOR_SOURCES } from '#content/index/vectors/store.ts'
import { timeRangeCondition } from '#core/api/lists.ts'
import { allOf, countStatement, type Queryable, sql } from '#core/db/sql.ts'
import { isExecutedByHolder } from '#execution/generations/store.ts'
import { type BareMemory, bareColumns, unembeddedMemory } from '#memory/facts/store.ts'

const FirstAdmin = z.strictObject({
  id: z.string(),
  username: z.string(),
  role: z.string(),
  token_version: z.int(),
  last_login_at: z.string().nullable(),
})
const nameRow = sql.type(z.strictObject({ name: z.string() }))
const existsRow = sql.type(z.strictObject({ exists: z.boolean() }))

/** Finds the oldest enabled admin. */
export const findFirstAdmin = (db: Queryable): Promise<z.output<typeof FirstAdmin> | null> =>
  db.maybeOne(sql.type(FirstAdmin)`
    select id, username, role, token_version, last_login_at from users where role = 'admin' and disabled_at is null
    order by created_at, id limit 1`)

const tableExists = (db: Queryable, table: string): Promise<boolean> =>
  db.oneFirst(existsRow`select to_regclass(${table}) is not null as exists`)

/** Lists the names of the applied migrations; empty for an empty database. */
export const listAppliedMigrations = async (db: Queryable): Promise<readonly string[]> =>
  (await tableExists(db, 'migrations')) ? db.anyFirst(nameRow`select name from migrations`) : []

const ServerFacts = z.strictObject({ version: z.string(), number: z.int(), now_ms: z.number() })

/** Reads the version of the server and its time in milliseconds. */
export const readServerFacts = (db: Queryable): Promise<z.output<typeof ServerFacts>> =>
  db.one(sql.type(ServerFacts)`
    select current_setting('server_version') as version, current_setting('server_version_num')::int as number,
      (extract(epoch from clock_timestamp()) * 1000)::float8 as now_ms`)

/** Lists the names of the existing queues. */
export const listQueueNames = async (db: Queryable): Promise<readonly string[]> =>
  (await db.oneFirst(existsRow`select to_regclass('pgboss.queue') is not null as exists`))
    ? db.anyFirst(nameRow`select name from pgboss.queue`)
    : []

/** Counts the keys that browsers sent in the last seven days. */
export const countBrowserKeys = (db: Queryable): Promise<number> =>
  db.oneFirst(countStatement`
    select count(*)::int as count from project_keys where browser_used_at > now() - interval '7 days'`)

const Heartbeat = z.strictObject({
  instance_id: z.string(),
  kinds: z.array(z.string()),
  version: z.string().nullable(),
  age_ms: z.number(),
  clock_ahead_ms: z.number().nullable(),
})

/** Lists the heartbeats of workers, and of web processes, which have no `kinds`, newest first. */
export const listHeartbeats = (db: Queryable): Promise<readonly z.output<typeof Heartbeat>[]> =>
  db.any(sql.type(Heartbeat)`
    select instance_id, kinds, version, (extract(epoch from now() - beat_at) * 1000)::float8 as age_ms, clock_ahead_ms
    from worker_heartbeats order by age_ms`)

/** Acquires the lock of `up` on an embedded database, until the connection is closed. Returns false if it is held. */
export const tryLockData = (db: Queryable): Promise<boolean> =>
  db.oneFirst(sql.type(z.strictObject({ locked: z.boolean() }))`
    select pg_try_advisory_lock(hashtext('muster.up')) as locked`)

const StoredAddress = z.strictObject({ id: z.string(), address: z.string() })

/** Maximum number of addresses that the doctor reads. */
const MAX_ADDRESSES = 10_000

/**
 * Lists addresses of active webhooks, providers, tools and inline tools whose host is an IP address or localhost, with the
 * ID of their record. Reads the tables whole.
 */
export const listLiteralAddresses = (db: Queryable): Promise<readonly z.output<typeof StoredAddress>[]> =>
  db.any(sql.type(StoredAddress)`
    with requests as (
      select t.id, r.request::jsonb as request from tools t, lateral (values (t.execute), (t.mcp)) r (request)
      union all select t.id, r from tools t, jsonb_path_query(t.pipeline::jsonb, '$.steps[*].tool.execute') r
      union all select t.id, r from tools t, jsonb_path_query(t.pipeline::jsonb, '$.steps[*].tool.mcp') r
      union all select a.id, r from agents a, jsonb_path_query(a.tool_bindings::jsonb, '$[*].tool.execute') r
      union all select a.id, r from agents a, jsonb_path_query(a.tool_bindings::jsonb, '$[*].tool.mcp') r
    ), addresses as (
      select id, url as address from webhooks where active and task_id is null
      union all select id, base_url from ai_providers
      union all select id, request ->> 'url' from requests
      union all select id, request -> 'auth' ->> 'token_url' from requests
    )
    select distinct id, address from addresses where address ~* '^https?://(\\[|[0-9]|[^/?#]*localhost)'
    order by id, address limit ${MAX_ADDRESSES}`)

export type DeliveryFilter = {
  project: string | null
  webhook: string | null
  status: 'failed' | 'completed'
  ids: readonly string[]
  from: Date | null
  to: Date | null
}

/**
 * Condition of deliveries to resend. A delivery whose event was already resent to the webhook is excluded, so that a
 * second run repeats nothing, unless its ID is given.
 */
const deliveryCondition = (filter: DeliveryFilter) =>
  allOf([
    sql.fragment`t.status = ${filter.status}`,
    filter.project !== null && sql.fragment`t.project_id = ${filter.project}`,
    filter.webhook !== null && sql.fragment`t.webhook_id = ${filter.webhook}`,
    filter.ids.length > 0
      ? sql.fragment`t.id = any (${sql.array([...filter.ids], 'text')})`
      : sql.fragment`not exists (select from webhook_deliveries r
          where r.event_id = t.event_id and r.webhook_id = t.webhook_id and r.id > t.id)`,
    timeRangeCondition(sql.fragment`t.created_at`, filter),
  ])

export const countDeliveries = (db: Queryable, filter: DeliveryFilter): Promise<number> =>
  db.oneFirst(countStatement`select count(*) from webhook_deliveries t where ${deliveryCondition(filter)}`)

const LockedDelivery = z.strictObject({ id: z.string(), webhook_id: z.string(), project_id: z.string() })

/** Locks the next deliveries to resend, after ID `after`, oldest first. */
export const lockDeliveries = (
  db: Queryable,
  filter: DeliveryFilter,
  after: string,
  limit: number,
): Promise<readonly z.output<typeof LockedDelivery>[]> =>
  db.any(sql.type(LockedDelivery)`
    select t.id, t.webhook_id, t.project_id from webhook_deliveries t
    where ${deliveryCondition(filter)} and t.id > ${after}
    order by t.id limit ${limit} for update of t skip locked`)

export type FiringFilter = {
  project: string | null
  trigger: string | null
  status: 'failed' | 'pending'
  ids: readonly string[]
  from: Date | null
  to: Date | null
}

/**
 * Condition of firings to repeat. An already repeated firing, recognized by the idempotency key of the new one, is
 * excluded, so that a second run repeats nothing. So is a firing that was refused because its triggers form a cycle.
 */
const firingCondition = (filter: FiringFilter) =>
  allOf([
    sql.fragment`t.state = ${filter.status === 'pending' ? 'queued' : 'failed'}`,
    filter.project !== null && sql.fragment`t.project_id = ${filter.project}`,
    filter.trigger !== null && sql.fragment`t.trigger_id = ${filter.trigger}`,
    filter.ids.length > 0 && sql.fragment`t.id = any (${sql.array([...filter.ids], 'text')})`,
    sql.fragment`t.error ->> 'code' is distinct from 'TRIGGER_CAUSATION_LIMIT'`,
    sql.fragment`not exists (select from trigger_firings r
      where r.trigger_id = t.trigger_id and r.idempotency_key = 'again:' || t.id)`,
    timeRangeCondition(sql.fragment`t.created_at`, filter),
  ])

export const countFirings = (db: Queryable, filter: FiringFilter): Promise<number> =>
  db.oneFirst(countStatement`select count(*) from trigger_firings t where ${firingCondition(filter)}`)

const LockedFiring = z.strictObject({ id: z.string(), project_id: z.string() })
type LockedFiring = z.output<typeof LockedFiring>

/** Locks the next firings to repeat, after ID `after`, oldest first. */
export const lockFirings = (
  db: Queryable,
  filter: FiringFilter,
  after: string,
  limit: number,
): Promise<readonly LockedFiring[]> =>
  db.any(sql.type(LockedFiring)`
    select t.id, t.project_id from trigger_firings t
    where ${firingCondition(filter)} and t.id > ${after} order by t.id limit ${limit} for update of t skip locked`)

export type TurnFilter = {
  project: string | null
  status: 'pending' | 'in_progress' | null
  ids: readonly string[]
  from: Date | null
  to: Date | null
}

const OrphanedTurn = z.strictObject({
  id: z.string(),
  project_id: z.string(),
  conversation_id: z.string().nullable(),
  status: z.string(),
})
export type OrphanedTurn = z.output<typeof OrphanedTurn>

/**
 * Lists turns in progress without a waiting or active message; turns of paused projects are deferred and excluded. The
 * keys of both mailboxes are read once and matched by hash. Reads generation_work, which contains all turns in
 * progress.
 */
export const listTurnsWithoutMessage = (
  db: Queryable,
  filter: TurnFilter,
  queues: { turn: string; conversation: string },
  limit: number,
): Promise<readonly OrphanedTurn[]> =>
  db.any(sql.type(OrphanedTurn)`
    with messages as materialized (
      select name, split_part(singleton_key, '@', 1) as key from pgboss.job_common
      where name in (${queues.turn}, ${queues.conversation}) and state <= 'active'
    )
    select t.id, t.project_id, t.conversation_id, t.status
    from generation_work w join generations t on t.id = w.generation_id
    join projects p on p.id = t.project_id and p.paused_at is null
    where ${allOf([
      filter.status === null
        ? sql.fragment`t.status in ('pending', 'in_progress')`
        : sql.fragment`t.status = ${filter.status}`,
      filter.project !== null && sql.fragment`t.project_id = ${filter.project}`,
      filter.ids.length > 0 && sql.fragment`t.id = any (${sql.array([...filter.ids], 'text')})`,
      timeRangeCondition(sql.fragment`t.created_at`, filter),
    ])}
      and not ${isExecutedByHolder(sql.fragment`t`, sql.fragment`w`)}
      and not exists (select from messages k where k.name = ${queues.turn} and k.key = t.id)
      and not exists (select from messages k where k.name = ${queues.conversation} and k.key = t.conversation_id)
    order by t.created_at, t.id limit ${limit}`)

const OrphanedRun = z.strictObject({
  id: z.string(),
  project_id: z.string(),
  status: z.string(),
  /** The node execution without a message; null if the run itself requires a wake-up. */
  execution_id: z.string().nullable(),
})
export type OrphanedRun = z.output<typeof OrphanedRun>

/**
 * Lists runs that can advance without a waiting or active message, and unclaimed node executions without a message.
 * Paused ones are deferred and excluded. orchestration_runs_live, orchestration_runs_due and the primary keys of the
 * awaited rows serve it.
 */
export const listRunsWithoutMessage = (
  db: Queryable,
  filter: Omit<TurnFilter, 'status'>,
  queues: { run: string; wake: string; node: string },
  limit: number,
): Promise<readonly OrphanedRun[]> =>
  db.any(sql.type(OrphanedRun)`
    with messages as materialized (
      select name, case name when ${queues.run} then split_part(singleton_key, '@', 1) when ${queues.node} then data ->> 'execution_id'
        else data ->> 'run_id' end as key, start_after <= now() or state = 'active' as due
      from pgboss.job_common where name in (${queues.run}, ${queues.wake}, ${queues.node}) and state <= 'active'
    ), live as (
      select r.* from orchestration_runs r
      where r.status in ${LIVE} and ${allOf([
        filter.project !== null && sql.fragment`r.project_id = ${filter.project}`,
        filter.ids.length > 0 && sql.fragment`r.id = any (${sql.array([...filter.ids], 'text')})`,
        timeRangeCondition(sql.fragment`r.created_at`, filter),
      ])}
    )
    select id, project_id, status, execution_id from (
      select r.id, r.project_id, r.status, r.created_at, null as execution_id
      from live r join projects p on p.id = r.project_id
      where not exists (select from messages k where k.name in (${queues.run}, ${queues.wake}) and k.key = r.id and k.due)
        and (
          r.due_at <= now()
          or r.pause_requested_at is null and p.paused_at is null and (
            r.status = 'queued'
            or exists (select from json_array_elements(r.required_actions) a where a ->> 'type' = 'paused')
            or ${uncollectedCondition}))
      union all
      select r.id, r.project_id, r.status, r.created_at, e.id
      from live r join orchestration_node_executions e on e.run_id = r.id
      where r.status = 'running' and e.status = 'running' and not e.applied
        and e.node_type in ${WORKER_EXECUTED}
        and (e.leased_until is null or e.leased_until < now())
        and not exists (select from messages k where k.name = ${queues.node} and k.key = e.id)) found
    order by created_at, id limit ${limit}`)

export type DocumentFilter = {
  project: string | null
  /** Null for all documents with chunks. */
  status: 'failed' | 'ready' | null
  /** Only documents with a chunk without a vector of this embedding space. */
  missing: number | null
  ids: readonly string[]
  from: Date | null
  to: Date | null
}

const documentCondition = (filter: DocumentFilter) =>
  allOf([
    sql.fragment`t.kind = 'document'`,
    filter.status === null ? sql.fragment`t.chunk_count > 0` : sql.fragment`t.status = ${filter.status}`,
    filter.missing !== null && sql.fragment`(t.space_id <> ${filter.missing} or t.embedded_chunks < t.chunk_count)`,
    filter.project !== null && sql.fragment`t.project_id = ${filter.project}`,
    filter.ids.length > 0 && sql.fragment`t.id = any (${sql.array([...filter.ids], 'text')})`,
    timeRangeCondition(sql.fragment`t.created_at`, filter),
  ])

export const countDocuments = (db: Queryable, filter: DocumentFilter): Promise<number> =>
  db.oneFirst(countStatement`select count(*) from documents t where ${documentCondition(filter)}`)

const NextDocument = z.strictObject({ id: z.string(), project_id: z.string() })

/** Lists the next documents with IDs below `below`, newest first. */
export const listNextDocuments = (
  db: Queryable,
  filter: DocumentFilter,
  below: string | null,
  limit: number,
): Promise<readonly z.output<typeof NextDocument>[]> =>
  db.any(sql.type(NextDocument)`
    select t.id, t.project_id from documents t
    where ${allOf([documentCondition(filter), below !== null && sql.fragment`t.id < ${below}`])}
    order by t.id desc limit ${limit}`)

export type MemoryFilter = Omit<DocumentFilter, 'status'>

const memoryCondition = (filter: MemoryFilter) =>
  allOf([
    sql.fragment`t.invalidated_at is null`,
    filter.missing !== null &&
      sql.fragment`(t.space_id <> ${filter.missing}
        or t.embedded <> ${hasVector(VECTOR_SOURCES.memory, sql.fragment`t.id`, filter.missing)})`,
    filter.project !== null && sql.fragment`t.project_id = ${filter.project}`,
    filter.ids.length > 0 && sql.fragment`t.id = any (${sql.array([...filter.ids], 'text')})`,
    timeRangeCondition(sql.fragment`t.created_at`, filter),
  ])

export const countMemories = (db: Queryable, filter: MemoryFilter): Promise<number> =>
  db.oneFirst(countStatement`select count(*) from memories t where ${memoryCondition(filter)}`)

/** Lists the next current memories with IDs below `below`, newest first. */
export const listNextMemories = (
  db: Queryable,
  filter: MemoryFilter,
  below: string | null,
  limit: number,
): Promise<readonly BareMemory[]> =>
  db.any(unembeddedMemory`
    select ${bareColumns} from memories t
    where ${allOf([memoryCondition(filter), below !== null && sql.fragment`t.id < ${below}`])}
    order by t.id desc limit ${limit}`)
