import { z } from 'zod'
import { WORKER_EXECUTED } from '../automation/runs/engine/node-execution-store.ts'
import { uncollectedCondition } from '../automation/runs/engine/sweep-store.ts'
import { LIVE } from '../automation/runs/model.ts'
import { hasVector, VECTOR_SOURCES } from '../content/vectors/store.ts'
import { timeRangeCondition } from '../core/api/lists.ts'
import { allOf, countStatement, type Queryable, sql } from '../core/db/sql.ts'
import { type BareMemory, bareColumns, unembeddedMemory } from '../memory/memories/store.ts'

const FirstAdmin = z.strictObject({ id: z.string(), username: z.string(), role: z.string(), token_version: z.int() })
const named = sql.type(z.strictObject({ name: z.string() }))
const existing = sql.type(z.strictObject({ exists: z.boolean() }))

/** The oldest admin that is not disabled; null when there is none. */
export const firstAdmin = (db: Queryable): Promise<z.output<typeof FirstAdmin> | null> =>
  db.maybeOne(sql.type(FirstAdmin)`
    select id, username, role, token_version from users where role = 'admin' and disabled_at is null
    order by created_at, id limit 1`)

const tableExists = (db: Queryable, table: string): Promise<boolean> =>
  db.oneFirst(existing`select to_regclass(${table}) is not null as exists`)

/** Names of the migrations that ran; none on an empty database. */
export const appliedMigrations = async (db: Queryable): Promise<readonly string[]> =>
  (await tableExists(db, 'migrations')) ? db.anyFirst(named`select name from migrations`) : []

const ServerFacts = z.strictObject({ version: z.string(), number: z.int(), now_ms: z.number() })

/** Version of the server, and its time in milliseconds. */
export const serverFacts = (db: Queryable): Promise<z.output<typeof ServerFacts>> =>
  db.one(sql.type(ServerFacts)`
    select current_setting('server_version') as version, current_setting('server_version_num')::int as number,
      (extract(epoch from clock_timestamp()) * 1000)::float8 as now_ms`)

/** Names of the queues that exist. */
export const queueNames = async (db: Queryable): Promise<readonly string[]> =>
  (await tableExists(db, 'pgboss.queue')) ? db.anyFirst(named`select name from pgboss.queue`) : []

const Heartbeat = z.strictObject({ instance_id: z.string(), kinds: z.array(z.string()), age_ms: z.number() })

/** Signs of life of workers by age. */
export const listHeartbeats = (db: Queryable): Promise<readonly z.output<typeof Heartbeat>[]> =>
  db.any(sql.type(Heartbeat)`
    select instance_id, kinds, (extract(epoch from now() - beat_at) * 1000)::float8 as age_ms
    from worker_heartbeats order by age_ms`)

/** Takes the lock that one `up` holds on an embedded database, for as long as the connection lives. */
export const tryLockData = (db: Queryable): Promise<boolean> =>
  db.oneFirst(sql.type(z.strictObject({ locked: z.boolean() }))`
    select pg_try_advisory_lock(hashtext('muster.up')) as locked`)

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
  db.oneFirst(countStatement`select count(*) from webhook_deliveries t where ${deliveriesWhere(filter)}`)

const TakenDelivery = z.strictObject({ id: z.string(), webhook_id: z.string(), project_id: z.string() })

/** Locks the next deliveries to make again, after id `after`, oldest first. Webhook and project with each. */
export const lockDeliveries = (
  db: Queryable,
  filter: DeliveryFilter,
  after: string,
  limit: number,
): Promise<readonly z.output<typeof TakenDelivery>[]> =>
  db.any(sql.type(TakenDelivery)`
    select t.id, t.webhook_id, t.project_id from webhook_deliveries t
    where ${deliveriesWhere(filter)} and t.id > ${after}
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
 * Firings to make again. One that was made again is left out, so that a second run repeats nothing: the key of the other says
 * so. Nor is one made that closed a circle of triggers.
 */
const firingsWhere = (filter: FiringFilter) =>
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
  db.oneFirst(countStatement`select count(*) from trigger_firings t where ${firingsWhere(filter)}`)

const TakenFiring = z.strictObject({ id: z.string(), project_id: z.string() })
type TakenFiring = z.output<typeof TakenFiring>

/** Locks the next firings to make again, after id `after`, oldest first. */
export const lockFirings = (
  db: Queryable,
  filter: FiringFilter,
  after: string,
  limit: number,
): Promise<readonly TakenFiring[]> =>
  db.any(sql.type(TakenFiring)`
    select t.id, t.project_id from trigger_firings t
    where ${firingsWhere(filter)} and t.id > ${after} order by t.id limit ${limit} for update of t skip locked`)

export type TurnFilter = {
  project: string | null
  status: 'pending' | 'in_progress' | null
  ids: readonly string[]
  from: Date | null
  to: Date | null
}

const IdleTurn = z.strictObject({
  id: z.string(),
  project_id: z.string(),
  conversation_id: z.string().nullable(),
  status: z.string(),
})
export type IdleTurn = z.output<typeof IdleTurn>

/**
 * Turns that are not at their end and for which no message waits or is handled; those of paused projects wait on
 * purpose. The keys of both mailboxes are read once and matched by hash. Reads generation_work, which has those turns.
 */
export const turnsWithoutMessage = (
  db: Queryable,
  filter: TurnFilter,
  queues: { turn: string; conversation: string },
  limit: number,
): Promise<readonly IdleTurn[]> =>
  db.any(sql.type(IdleTurn)`
    with kept as materialized (
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
      and not exists (select from kept k where k.name = ${queues.turn} and k.key = t.id)
      and not exists (select from kept k where k.name = ${queues.conversation} and k.key = t.conversation_id)
    order by t.created_at, t.id limit ${limit}`)

const IdleRun = z.strictObject({
  id: z.string(),
  project_id: z.string(),
  status: z.string(),
  /** The attempt that no worker is told of; null where the run itself is to be looked at. */
  execution_id: z.string().nullable(),
})
export type IdleRun = z.output<typeof IdleRun>

/**
 * Runs that can move and for which no message waits or is handled, and attempts of theirs that nobody has and no message
 * tells of. Those of a pause wait on purpose. By orchestration_runs_live, _due and the primary keys of what runs wait for.
 */
export const runsWithoutMessage = (
  db: Queryable,
  filter: Omit<TurnFilter, 'status'>,
  queues: { run: string; told: string; node: string },
  limit: number,
): Promise<readonly IdleRun[]> =>
  db.any(sql.type(IdleRun)`
    with kept as materialized (
      select name, case name when ${queues.run} then split_part(singleton_key, '@', 1) when ${queues.node} then data ->> 'execution_id'
        else data ->> 'run_id' end as key, start_after <= now() or state = 'active' as due
      from pgboss.job_common where name in (${queues.run}, ${queues.told}, ${queues.node}) and state <= 'active'
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
      where not exists (select from kept k where k.name in (${queues.run}, ${queues.told}) and k.key = r.id and k.due)
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
        and not exists (select from kept k where k.name = ${queues.node} and k.key = e.id)) found
    order by created_at, id limit ${limit}`)

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
  allOf([
    sql.fragment`t.kind = 'document'`,
    filter.status === null ? sql.fragment`t.chunk_count > 0` : sql.fragment`t.status = ${filter.status}`,
    filter.missing !== null && sql.fragment`(t.space_id <> ${filter.missing} or t.embedded_chunks < t.chunk_count)`,
    filter.project !== null && sql.fragment`t.project_id = ${filter.project}`,
    filter.ids.length > 0 && sql.fragment`t.id = any (${sql.array([...filter.ids], 'text')})`,
    timeRangeCondition(sql.fragment`t.created_at`, filter),
  ])

export const countDocuments = (db: Queryable, filter: DocumentFilter): Promise<number> =>
  db.oneFirst(countStatement`select count(*) from documents t where ${documentsWhere(filter)}`)

const NextDocument = z.strictObject({ id: z.string(), project_id: z.string() })

/** The next documents, newest first, from below an id on. */
export const nextDocuments = (
  db: Queryable,
  filter: DocumentFilter,
  below: string | null,
  limit: number,
): Promise<readonly z.output<typeof NextDocument>[]> =>
  db.any(sql.type(NextDocument)`
    select t.id, t.project_id from documents t
    where ${allOf([documentsWhere(filter), below !== null && sql.fragment`t.id < ${below}`])}
    order by t.id desc limit ${limit}`)

export type MemoryFilter = Omit<DocumentFilter, 'status'>

const memoriesWhere = (filter: MemoryFilter) =>
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
  db.oneFirst(countStatement`select count(*) from memories t where ${memoriesWhere(filter)}`)

/** The next memories that hold, newest first, from below an id on. */
export const nextMemories = (
  db: Queryable,
  filter: MemoryFilter,
  below: string | null,
  limit: number,
): Promise<readonly BareMemory[]> =>
  db.any(unembeddedMemory`
    select ${bareColumns} from memories t
    where ${allOf([memoriesWhere(filter), below !== null && sql.fragment`t.id < ${below}`])}
    order by t.id desc limit ${limit}`)
