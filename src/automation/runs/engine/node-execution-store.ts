import { z } from 'zod'
import { RecordedFailure } from '../../../core/api/errors.ts'
import { selectList } from '../../../core/api/kind.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../../core/db/sql.ts'
import { HOLDER } from '../../../core/process/holder.ts'
import { WORKER_TYPES } from '../../orchestrations/definition.ts'
import { isStopping, jsonObject, LIVE, NODE_STATUSES, type RunRow, RunRow as RunShape } from '../model.ts'

/** Types of nodes whose attempts workers make. */
export const WORKER_EXECUTED = sql.fragment`(${sql.join([...WORKER_TYPES], sql.fragment`, `)})`

/**
 * Columns of rows that were made before their statement: the time that stood for its own there becomes its own.
 * @param estimated null where times are exact
 */
export const timestampColumns = (columns: readonly string[], from: string, estimated: string | null): Fragment =>
  estimated === null
    ? columnList(columns, from)
    : sql.fragment`${sql.join(
        columns.map(column => {
          const value = sql.identifier([from, column])
          return MOMENTS.includes(column)
            ? sql.fragment`case when ${value} = ${estimated}::timestamptz then now() else ${value} end`
            : value
        }),
        sql.fragment`, `,
      )}`

/** Columns that say when something was. */
const MOMENTS = ['created_at', 'started_at', 'completed_at', 'queued_at', 'updated_at']

/** Columns as a statement lists them. */
export const columnList = (columns: readonly string[], from?: string): Fragment =>
  sql.fragment`${sql.join(
    columns.map(column => sql.identifier(from ? [from, column] : [column])),
    sql.fragment`, `,
  )}`

/** An attempt of a node, as it is stored. */
export const NodeExecutionRow = z.object({
  id: z.string(),
  run_id: z.string(),
  project_id: z.string(),
  node_id: z.string(),
  node_type: z.string(),
  attempt: z.int(),
  status: z.enum(NODE_STATUSES),
  /** The nodes that were activated together with it: their outcomes are applied together. */
  round: z.int(),
  /** Its outcome is part of the state of the run, or never will be. */
  applied: z.boolean(),
  /** It has waited: its outcome is applied by itself. */
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
})
export type NodeExecutionRow = z.output<typeof NodeExecutionRow>

const executionColumns = selectList(Object.keys(NodeExecutionRow.shape))
const execution = sql.type(NodeExecutionRow)

/** Columns of an attempt that never change. */
const KEPT = ['id', 'run_id', 'project_id', 'node_id', 'node_type', 'attempt', 'round', 'input', 'created_at']
const WRITTEN = Object.keys(NodeExecutionRow.shape)

/** The part of a statement that writes attempts, new ones and others; `estimated` as `dated` takes it. */
export const executionsWrite = (
  rows: readonly NodeExecutionRow[],
  guard: Fragment,
  estimated: string | null,
): Fragment => sql.fragment`
  insert into orchestration_node_executions as t (${columnList(WRITTEN)})
  select ${timestampColumns(WRITTEN, 'e', estimated)} from json_populate_recordset(null::orchestration_node_executions, ${JSON.stringify(rows)}::json) e
  where ${guard}
  on conflict (id) do update set ${sql.join(
    WRITTEN.filter(column => !KEPT.includes(column)).map(
      column => sql.fragment`${sql.identifier([column])} = ${sql.identifier(['excluded', column])}`,
    ),
    sql.fragment`, `,
  )}`

/** All attempts of a run, oldest first. By orchestration_node_executions_run. */
export const executionsOf = (db: Queryable, runId: string): Promise<readonly NodeExecutionRow[]> =>
  db.any(execution`
    select ${executionColumns} from orchestration_node_executions t where t.run_id = ${runId}
    order by t.created_at, t.id`)

/** Whether a run has come to a node, or a run before that this one repeats. By the unique index of attempts. */
export const hasBegun = async (db: Queryable, runId: string, nodeId: string, seeded: boolean): Promise<boolean> =>
  seeded ||
  (await db.exists(idStatement`
    select id from orchestration_node_executions
    where run_id = ${runId} and node_id = ${nodeId} and status <> 'skipped' limit 1`))

const lastState = sql.type(NodeExecutionRow.pick({ node_id: true, status: true }))

/** How the last attempt of each node of a run stands. By the unique index of attempts. */
export const lastStates = (db: Queryable, runId: string) =>
  db.any(lastState`
    select distinct on (node_id) node_id, status from orchestration_node_executions
    where run_id = ${runId} order by node_id, attempt desc`)

const callback = sql.type(
  NodeExecutionRow.pick({ run_id: true, node_id: true, project_id: true }).extend({ callback_hash: z.string() }),
)

/** The wait that a callback ends; null when nobody waits for it. By orchestration_node_executions_callback. */
export const callbackOf = (db: Queryable, hash: string) =>
  db.maybeOne(callback`
    select run_id, node_id, project_id, callback_hash from orchestration_node_executions where callback_hash = ${hash}`)

/** The waits of runs that a callback ends. By orchestration_node_executions_run. */
export const callbacksOf = (db: Queryable, runIds: readonly string[]) =>
  db.any(callback`
    select run_id, node_id, project_id, callback_hash from orchestration_node_executions
    where run_id = any(${sql.array([...runIds], 'text')}) and callback_hash is not null`)

/** Attempts of a run that began at a time or later, without input and output. By orchestration_node_executions_run. */
export const executionsSince = (
  db: Queryable,
  runId: string,
  since: string | null,
): Promise<readonly NodeExecutionRow[]> =>
  db.any(execution`
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
/** An attempt that a worker has, with what it needs of the run. */
export type ClaimedNode = z.output<typeof ClaimedNode>
const taken = sql.type(ClaimedNode)

/** What an attempt needs of its run. */
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

/** What a worker takes attempts with. `most`: how many of one project are held at a time; 0 for any number. */
export type NodeClaimOptions = { leaseMs: number; most: number; deliveries: number }

/**
 * Takes an attempt that nobody holds, of a run that has not ended: counts the delivery and begins a lease. Null for any
 * other, and where `most` of the project are held already.
 */
export const claimNode = (
  db: Queryable,
  executionId: string,
  { leaseMs, most, deliveries }: NodeClaimOptions,
): Promise<ClaimedNode | null> =>
  db.maybeOne(taken`
    update orchestration_node_executions t
    set deliveries = t.deliveries + 1, leased_until = now() + ${leaseMs} * interval '1 ms', holder = ${HOLDER},
      started_at = coalesce(t.started_at, now())
    from orchestration_runs r
    where t.id = ${executionId} and r.id = t.run_id and t.status = 'running' and not t.applied
      and r.status in ${LIVE} and not ${isStopping('r')}
      and (t.leased_until is null or t.leased_until < now()) and t.deliveries < ${deliveries}
      and (${most} = 0 or ${most} > (
        select count(*) from orchestration_node_executions o
        where o.project_id = t.project_id and o.leased_until > now()))
    returning ${executionColumns}, r.orchestration_id, r.orchestration_version, r.context, r.driver, r.authority, r.trigger_id, r.root_id`)

/** The same for one of those that come last into a project: one after the other, so that no two take the same place. */
export const claimNodeSerialized = async (
  tx: Queryable,
  execution: { id: string; project_id: string },
  taking: NodeClaimOptions,
) => {
  await tx.query(voidStatement`
    select from pg_advisory_xact_lock(hashtextextended(${`attempts ${execution.project_id}`}, 0))`)
  return claimNode(tx, execution.id, taking)
}

const Waiting = z.object({
  deliveries: z.int(),
  held: z.boolean(),
  age_ms: z.number(),
})
const waitingOf = sql.type(Waiting)

/** How an attempt stands that a worker should do; null when nobody should. */
export const findWaiting = (db: Queryable, executionId: string): Promise<z.output<typeof Waiting> | null> =>
  db.maybeOne(waitingOf`
    select t.deliveries, coalesce(t.leased_until > now(), false) as held,
      extract(epoch from now() - t.created_at)::float8 * 1000 as age_ms
    from orchestration_node_executions t join orchestration_runs r on r.id = t.run_id
    where t.id = ${executionId} and t.status = 'running' and not t.applied
      and r.status in ${LIVE} and not ${isStopping('r')}`)

/** Renews the lease of an attempt; false when it is another's by now, or the run has stopped. */
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

/** Ends the leases of processes that are gone; what they held. By orchestration_node_executions_leased. */
export const expireNodeLeases = (db: Queryable, isGone: (holder: Fragment) => Fragment) =>
  db.any(freed`
    update orchestration_node_executions set leased_until = now() - interval '1 ms'
    where leased_until > now() and ${isGone(sql.fragment`holder`)}
    returning id, run_id, project_id`)

/** Requeues an attempt that this worker holds, without counting its delivery unless `counted`; false when it does not. */
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

const freed = sql.type(z.object({ id: z.string(), run_id: z.string(), project_id: z.string() }))
const left = sql.type(z.object({ generation_id: z.string().nullable(), approval_id: z.string().nullable() }))

/** Ends the attempts of runs that are under way; what they waited for. */
export const cancelExecutions = (db: Queryable, runIds: readonly string[]) =>
  db.any(left`
    update orchestration_node_executions set applied = true, leased_until = null, wake_at = null, deadline_at = null,
      callback_hash = null, completed_at = coalesce(completed_at, now()),
      status = case when status in ('completed', 'failed') then status else 'cancelled' end
    where run_id = any(${sql.array([...runIds], 'text')}) and not applied returning generation_id, approval_id`)

/** Attempts of each of some runs, oldest first. By orchestration_node_executions_run. */
export async function listedExecutions(
  db: Queryable,
  runIds: readonly string[],
): Promise<ReadonlyMap<string, NodeExecutionRow[]>> {
  if (runIds.length === 0) return new Map()
  const rows = await db.any(execution`
    select ${executionColumns} from orchestration_node_executions t
    where t.run_id = any(${sql.array([...runIds], 'text')}) order by t.created_at, t.id`)
  return Map.groupBy(rows, ({ run_id }) => run_id)
}
