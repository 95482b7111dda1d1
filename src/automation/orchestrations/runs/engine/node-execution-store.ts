import type { IdentifierSqlToken } from 'slonik'
import { z } from 'zod'
import { WORKER_TYPES } from '#automation/orchestrations/definition/definition.ts'
import { selectList } from '#core/api/kind.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { isStopping, jsonObject, LIVE, NODE_STATUSES, type RunRow, RunRow as RunShape } from '../model.ts'

/** SQL list of the node types that workers execute. */
export const WORKER_EXECUTED = sql.fragment`(${sql.join([...WORKER_TYPES], sql.fragment`, `)})`

/** Timestamp columns that a statement may set to its own time. */
export const STATEMENT_TIMES = ['created_at', 'started_at', 'completed_at', 'queued_at', 'updated_at']

const joined = (parts: readonly (Fragment | IdentifierSqlToken)[]): Fragment =>
  sql.fragment`${sql.join(parts, sql.fragment`, `)}`

/**
 * Returns fragments that write the columns of a table from rows in JSON, built once because they are on hot paths.
 * `values`: times equal to `estimated` become the time of the statement; null if times are exact. `source` has one row for a
 * row, which the planner then expects.
 */
export function jsonColumns(table: string, columns: readonly string[]) {
  const read = (column: string) => sql.identifier(['r', column])
  const exact = joined(columns.map(read))
  const estimates = joined(
    columns.map(column =>
      STATEMENT_TIMES.includes(column)
        ? sql.fragment`case when ${read(column)} = n.estimated then now() else ${read(column)} end`
        : read(column),
    ),
  )
  const none = sql.fragment`null::${sql.identifier([table])}`
  return {
    names: joined(columns.map(column => sql.identifier([column]))),
    values: (estimated: string | null): Fragment => (estimated === null ? exact : estimates),
    source(rows: object | readonly object[], estimated: string | null): Fragment {
      const read = Array.isArray(rows)
        ? sql.fragment`json_populate_recordset(${none}, ${JSON.stringify(rows)}::json) r`
        : sql.fragment`json_populate_record(${none}, ${JSON.stringify(rows)}::json) r`
      return estimated === null
        ? read
        : sql.fragment`${read} cross join (select ${estimated}::timestamptz as estimated) n`
    },
  }
}

/** Row of a node execution. */
export const NodeExecutionRow = z.object({
  id: z.string(),
  run_id: z.string(),
  project_id: z.string(),
  node_id: z.string(),
  node_type: z.string(),
  attempt: z.int(),
  status: z.enum(NODE_STATUSES),
  /** Number of the activation round. Outcomes of nodes activated in the same round are applied together. */
  round: z.int(),
  /** Whether the outcome is part of the state of the run, or never will be. */
  applied: z.boolean(),
  /** Whether the execution has waited; its outcome is then applied separately. */
  parked: z.boolean(),
  input: jsonObject.nullable(),
  output: z.unknown(),
  label: z.string().nullable(),
  through: z.boolean(),
  error: RecordedFailure.nullable(),
  generation_id: z.string().nullable(),
  approval_id: z.string().nullable(),
  decision_id: z.string().nullable(),
  progress: jsonObject.nullable(),
  deliveries: z.int(),
  leased_until: z.string().nullable(),
  holder: z.string().nullable(),
  polls: z.int(),
  wake_at: z.string().nullable(),
  deadline_at: z.string().nullable(),
  callback_hash: z.string().nullable(),
  compute_seconds: z.number(),
  started_at: z.string().nullable(),
  completed_at: z.string().nullable(),
  created_at: z.string(),
  trace_context: z.string().nullable(),
})
export type NodeExecutionRow = z.output<typeof NodeExecutionRow>

const executionColumns = selectList(Object.keys(NodeExecutionRow.shape))
const executionRow = sql.type(NodeExecutionRow)

const COLUMNS = Object.keys(NodeExecutionRow.shape) as (keyof NodeExecutionRow)[]
/** Columns of a node execution that never change. */
const FIXED = [
  'id',
  'run_id',
  'project_id',
  'node_id',
  'node_type',
  'attempt',
  'round',
  'input',
  'created_at',
  'trace_context',
]
const CHANGING = COLUMNS.filter(column => !FIXED.includes(column))
const inserted = jsonColumns('orchestration_node_executions', COLUMNS)
const updated = jsonColumns('orchestration_node_executions', CHANGING)

/** Returns the CTE that inserts node executions. `estimated`: see `jsonColumns`. */
export const executionsInsert = (
  rows: readonly NodeExecutionRow[],
  guard: Fragment,
  estimated: string | null,
): Fragment => sql.fragment`
  insert into orchestration_node_executions (${inserted.names})
  select ${inserted.values(estimated)} from ${inserted.source(rows, estimated)} where ${guard}`

/** Returns the CTE that updates node executions of a locked run. `estimated`: see `jsonColumns`. */
export function executionsUpdate(
  rows: readonly NodeExecutionRow[],
  guard: Fragment,
  estimated: string | null,
): Fragment {
  const changed = rows.map(row => Object.fromEntries(['id' as const, ...CHANGING].map(column => [column, row[column]])))
  return sql.fragment`
    update orchestration_node_executions t set (${updated.names}) = row(${updated.values(estimated)})
    from ${updated.source(changed.length === 1 ? changed[0] : changed, estimated)} where t.id = r.id and ${guard}`
}

/** Lists all node executions of a run, oldest first. By orchestration_node_executions_run. */
export const listExecutions = (db: Queryable, runId: string): Promise<readonly NodeExecutionRow[]> =>
  db.any(executionRow`
    select ${executionColumns} from orchestration_node_executions t where t.run_id = ${runId}
    order by t.created_at, t.id`)

/**
 * Whether a run has reached a node. `seeded`: the node completed in the run that this run retries. By the unique index
 * on run, node and attempt.
 */
export const hasReachedNode = async (db: Queryable, runId: string, nodeId: string, seeded: boolean): Promise<boolean> =>
  seeded ||
  (await db.exists(idStatement`
    select id from orchestration_node_executions
    where run_id = ${runId} and node_id = ${nodeId} and status <> 'skipped' limit 1`))

const lastStateRow = sql.type(NodeExecutionRow.pick({ node_id: true, status: true }))

/** Returns the status of the last execution of each node of a run. By the unique index on run, node and attempt. */
export const listLastStatuses = (db: Queryable, runId: string) =>
  db.any(lastStateRow`
    select distinct on (node_id) node_id, status from orchestration_node_executions
    where run_id = ${runId} order by node_id, attempt desc`)

const callbackRow = sql.type(
  NodeExecutionRow.pick({ run_id: true, node_id: true, project_id: true }).extend({ callback_hash: z.string() }),
)

/**
 * Finds the node execution that a callback completes; null if there is none. By orchestration_node_executions_callback.
 */
export const findCallback = (db: Queryable, hash: string) =>
  db.maybeOne(callbackRow`
    select run_id, node_id, project_id, callback_hash from orchestration_node_executions where callback_hash = ${hash}`)

/** Lists the node executions of runs that await a callback. By orchestration_node_executions_run. */
export const listCallbacks = (db: Queryable, runIds: readonly string[]) =>
  db.any(callbackRow`
    select run_id, node_id, project_id, callback_hash from orchestration_node_executions
    where run_id = any(${sql.array([...runIds], 'text')}) and callback_hash is not null`)

/**
 * Lists the node executions of a run created at or after a time, without input and output. By
 * orchestration_node_executions_run.
 */
export const listExecutionsSince = (
  db: Queryable,
  runId: string,
  since: string | null,
): Promise<readonly NodeExecutionRow[]> =>
  db.any(executionRow`
    select ${selectList(Object.keys(NodeExecutionRow.shape), {
      input: sql.fragment`null::json`,
      output: sql.fragment`null::json`,
      progress: sql.fragment`null::json`,
    })} from orchestration_node_executions t
    where t.run_id = ${runId} and t.created_at >= coalesce(${since}::timestamptz, '-infinity') order by t.created_at, t.id`)

const ClaimedNode = NodeExecutionRow.extend({
  orchestration_id: z.string(),
  orchestration_version: z.int(),
  context: z.string().nullable(),
  driver: z.string().nullable(),
  authority: RunShape.shape.authority,
  trigger_id: z.string().nullable(),
  root_id: z.string(),
})
/** A claimed node execution, with the columns of its run that executing it requires. */
export type ClaimedNode = z.output<typeof ClaimedNode>
const claimedRow = sql.type(ClaimedNode)

/** Combines a node execution with its run. */
export const claimedNode = (row: NodeExecutionRow, run: RunRow): ClaimedNode => ({
  ...row,
  orchestration_id: run.orchestration_id,
  orchestration_version: run.orchestration_version,
  context: run.context,
  driver: run.driver,
  authority: run.authority,
  trigger_id: run.trigger_id,
  root_id: run.root_id,
})

/**
 * Returns the ctes that record, for a claim of a node execution, the end of a delivery whose lease has expired, and the start of
 * the claimed one. They read the row from before the claim.
 */
const continuedCtes = (executionId: string, instanceId: string): Fragment => sql.fragment`
  continued as (
    update node_interruptions set continued_at = now(), continued_by = ${instanceId}
    where node_execution_id = ${executionId} and continued_at is null and exists (select from claimed)),
  lost as (
    insert into node_interruptions
      (node_execution_id, number, instance_id, lease_expires_at, ended_at, ended_by, continued_at, continued_by)
    select e.id, ${nextNumber('e')}, ${instanceOf('e')}, e.leased_until, e.leased_until, 'lease_lost', now(), ${instanceId}
    from orchestration_node_executions e
    where e.id = ${executionId} and e.deliveries > 0 and e.leased_until < now() and exists (select from claimed)
      and not exists (select from node_interruptions i where i.node_execution_id = e.id and i.continued_at is null)
    on conflict do nothing)`

/** Number of the next interruption of the node execution of an alias. */
const nextNumber = (alias: string): Fragment => sql.fragment`(
  select 1 + count(*) from node_interruptions i where i.node_execution_id = ${sql.identifier([alias, 'id'])})`

/** Name of the process that holds the node execution of an alias; null if it has left. */
const instanceOf = (alias: string): Fragment => sql.fragment`(
  select h.instance_id from worker_heartbeats h
  where h.holder = split_part(${sql.identifier([alias, 'holder'])}, ':', 1) limit 1)`

/**
 * Options of a claim. `holder`: the process, and after a colon the claim. `instanceId`: name of the process. `projectLimit`:
 * limit of concurrent node executions per project; 0 for no limit.
 */
export type NodeClaimOptions = {
  holder: string
  instanceId: string
  leaseMs: number
  projectLimit: number
  deliveries: number
}

/**
 * Claims a node execution without a valid lease, in a live run: counts the delivery and starts a lease. Null if it
 * cannot be claimed or the project holds `projectLimit` leases already.
 */
export const claimNode = (
  db: Queryable,
  executionId: string,
  { holder, instanceId, leaseMs, projectLimit, deliveries }: NodeClaimOptions,
): Promise<ClaimedNode | null> =>
  db.maybeOne(claimedRow`
    with claimed as (update orchestration_node_executions t
    set deliveries = t.deliveries + 1, leased_until = now() + ${leaseMs} * interval '1 ms', holder = ${holder},
      started_at = coalesce(t.started_at, now())
    from orchestration_runs r
    where t.id = ${executionId} and r.id = t.run_id and t.status = 'running' and not t.applied
      and r.status in ${LIVE} and not ${isStopping('r')}
      and (t.leased_until is null or t.leased_until < now()) and t.deliveries < ${deliveries}
      and (${projectLimit} = 0 or ${projectLimit} > (
        select count(*) from orchestration_node_executions o
        where o.project_id = t.project_id and o.leased_until > now()))
    returning ${executionColumns}, r.orchestration_id, r.orchestration_version, r.context, r.driver, r.authority, r.trigger_id, r.root_id),
    ${continuedCtes(executionId, instanceId)}
    select * from claimed`)

/**
 * Claims one of the last slots of a project: one transaction at a time, so that two claims cannot take the same slot.
 */
export const claimNodeSerialized = async (
  tx: Queryable,
  execution: { id: string; project_id: string },
  options: NodeClaimOptions,
) => {
  await tx.query(voidStatement`select from pg_advisory_xact_lock(${claimLock(execution.project_id)})`)
  return claimNode(tx, execution.id, options)
}

const claimLock = (projectId: string): Fragment => sql.fragment`hashtextextended(${`attempts ${projectId}`}, 0)`

const lockedRow = sql.type(z.strictObject({ locked: z.boolean() }))
const countRow = sql.type(z.strictObject({ count: z.int() }))

/**
 * Returns the node executions of a project with a valid lease, for a transaction that claims several: until it ends, none
 * other does, nor claims one of the last slots. Null if another one is about to.
 */
export async function countLeasesAlone(tx: Queryable, projectId: string): Promise<number | null> {
  const { locked } = await tx.one(lockedRow`select pg_try_advisory_xact_lock(${claimLock(projectId)}) as locked`)
  if (!locked) return null
  // A separate statement, which sees what the previous holder of the lock has claimed.
  const { count } = await tx.one(countRow`
    select count(*) from orchestration_node_executions where project_id = ${projectId} and leased_until > now()`)
  return count
}

const ClaimState = z.object({
  deliveries: z.int(),
  leased: z.boolean(),
  age_ms: z.number(),
})
const claimStateRow = sql.type(ClaimState)

/** Returns the claim state of a node execution that a worker should execute; null if it must not be executed. */
export const findClaimState = (db: Queryable, executionId: string): Promise<z.output<typeof ClaimState> | null> =>
  db.maybeOne(claimStateRow`
    select t.deliveries, coalesce(t.leased_until > now(), false) as leased,
      extract(epoch from now() - t.created_at)::float8 * 1000 as age_ms
    from orchestration_node_executions t join orchestration_runs r on r.id = t.run_id
    where t.id = ${executionId} and t.status = 'running' and not t.applied
      and r.status in ${LIVE} and not ${isStopping('r')}`)

/** Renews the lease of a node execution; false if the claim was lost or the run has ended. */
export const renewLease = async (
  db: Queryable,
  { id, deliveries, polls }: Pick<NodeExecutionRow, 'id' | 'deliveries' | 'polls'>,
  leaseMs: number,
): Promise<boolean> =>
  (
    await db.query(voidStatement`
      update orchestration_node_executions set leased_until = now() + ${leaseMs} * interval '1 ms'
      where id = ${id} and status = 'running' and deliveries = ${deliveries} and polls = ${polls}`)
  ).rowCount === 1

/**
 * Ends the leases of processes that are gone, records the deliveries that end, and returns their node executions. By
 * orchestration_node_executions_leased.
 */
export const expireNodeLeases = (db: Queryable, isGone: (holder: Fragment) => Fragment) =>
  db.any(requeuedRow`
    with ended as (
      update orchestration_node_executions set leased_until = now() - interval '1 ms'
      where leased_until > now() and ${isGone(sql.fragment`split_part(holder, ':', 1)`)}
      returning id, run_id, project_id, holder),
    recorded as (
      insert into node_interruptions (node_execution_id, number, instance_id, lease_expires_at, ended_at, ended_by)
      select e.id, ${nextNumber('e')}, ${instanceOf('e')}, now(), now(), 'lease_lost' from ended e on conflict do nothing)
    select id, run_id, project_id from ended`)

/**
 * Requeues a node execution claimed by this worker; its delivery counts only if `counted`. False if the claim was lost.
 */
export const requeueNode = async (
  db: Queryable,
  { id, deliveries, polls }: Pick<NodeExecutionRow, 'id' | 'deliveries' | 'polls'>,
  counted = false,
): Promise<boolean> =>
  (
    await db.query(voidStatement`
      update orchestration_node_executions set leased_until = null, deliveries = deliveries - ${counted ? 0 : 1}
      where id = ${id} and status = 'running' and deliveries = ${deliveries} and polls = ${polls}`)
  ).rowCount === 1

/** As `requeueNode`, because the process stops: records the delivery as released. */
export const releaseNode = async (
  db: Queryable,
  { id, deliveries, polls }: Pick<NodeExecutionRow, 'id' | 'deliveries' | 'polls'>,
  instanceId: string,
): Promise<boolean> =>
  (
    await db.query(voidStatement`
      with released as (
        update orchestration_node_executions set leased_until = null, deliveries = deliveries - 1
        where id = ${id} and status = 'running' and deliveries = ${deliveries} and polls = ${polls} returning id)
      insert into node_interruptions (node_execution_id, number, instance_id, ended_at, ended_by)
      select r.id, ${nextNumber('r')}, ${instanceId}, now(), 'released' from released r`)
  ).rowCount === 1

/** Ends a claim whose answer was lost, without counting the delivery. */
export const releaseNodeClaim = (db: Queryable, id: string, holder: string) =>
  db.query(voidStatement`
    update orchestration_node_executions set leased_until = null, deliveries = deliveries - 1
    where id = ${id} and status = 'running' and holder = ${holder} and leased_until is not null`)

const requeuedRow = sql.type(z.object({ id: z.string(), run_id: z.string(), project_id: z.string() }))
const cancelledRow = sql.type(z.object({ generation_id: z.string().nullable(), approval_id: z.string().nullable() }))

/** Cancels the active node executions of runs and returns the turns and approvals that they waited for. */
export const cancelExecutions = (db: Queryable, runIds: readonly string[]) =>
  db.any(cancelledRow`
    update orchestration_node_executions set applied = true, leased_until = null, wake_at = null, deadline_at = null,
      callback_hash = null, completed_at = coalesce(completed_at, now()),
      status = case when status in ('completed', 'failed') then status else 'cancelled' end
    where run_id = any(${sql.array([...runIds], 'text')}) and not applied returning generation_id, approval_id`)

/** Lists the node executions of several runs, oldest first, by run ID. By orchestration_node_executions_run. */
export async function listExecutionsByRun(
  db: Queryable,
  runIds: readonly string[],
): Promise<ReadonlyMap<string, NodeExecutionRow[]>> {
  if (runIds.length === 0) return new Map()
  const rows = await db.any(executionRow`
    select ${executionColumns} from orchestration_node_executions t
    where t.run_id = any(${sql.array([...runIds], 'text')}) order by t.created_at, t.id`)
  return Map.groupBy(rows, ({ run_id }) => run_id)
}
