import { isWorkerType, startsRuns } from '#automation/orchestrations/definition/definition.ts'
import type { PricedUsage } from '#control/usage/price-usage.ts'
import type { RunTotals } from '#control/usage/report-store.ts'
import { toWireTime } from '#core/base/clock.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { CallerFacts } from '#core/iam/caller.ts'
import { listExecutions, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import type { WaitedRun } from '../engine/run-notifications.ts'
import { type NodeExecution, type OrchestrationRunRecord, presentRun, type RunRow } from '../model.ts'
import { withCallbacks } from '../nodes/callback-token.ts'
import { usageOfRun, usageOfRuns } from './usage.ts'

/**
 * Returns the idempotency key of a node execution's side effect: a retry has a new key; a redelivery of the same
 * attempt keeps it.
 */
export const idempotencyKeyOf = ({
  run_id,
  node_id,
  attempt,
  node_type,
  polls,
}: Pick<NodeExecutionRow, 'run_id' | 'node_id' | 'attempt' | 'node_type' | 'polls'>): string =>
  [run_id, node_id, attempt, ...(node_type === 'poll' ? [polls + 1] : [])].join(':')

/** Whether workers were lost too often for the call of a node execution to be made again. */
export const isAbandoned = (errorCode: string | null | undefined): boolean =>
  errorCode === 'EXECUTOR_LOST' || errorCode === 'WORKER_LOST'

/** Whether the last call of a node execution has ended, and `polls` counts it. */
export const hasCallEnded = (
  { status, polls, deliveries }: Pick<NodeExecutionRow, 'status' | 'polls' | 'deliveries'>,
  errorCode: string | null | undefined,
): boolean =>
  status === 'completed' || (status === 'failed' && !isAbandoned(errorCode)) || (polls > 0 && deliveries === 0)

/** Returns the idempotency key of the last call of a node execution. */
export const lastKeyOf = (execution: Parameters<typeof idempotencyKeyOf>[0], hasEnded: boolean): string =>
  idempotencyKeyOf({ ...execution, polls: hasEnded ? Math.max(0, execution.polls - 1) : execution.polls })

export const presentNodeExecution = (row: NodeExecutionRow): NodeExecution => ({
  node_id: row.node_id,
  node_type: row.node_type,
  attempt: row.attempt,
  status: row.status,
  input: row.input,
  output: row.output ?? null,
  label: row.label,
  error: row.error,
  generation_id: row.generation_id,
  approval_id: row.approval_id,
  idempotency_key:
    isWorkerType(row.node_type) && row.status !== 'skipped' ? lastKeyOf(row, hasCallEnded(row, row.error?.code)) : null,
  wake_at: toWireTime(row.wake_at),
  started_at: toWireTime(row.started_at),
  completed_at: toWireTime(row.completed_at),
  created_at: toWireTime(row.created_at) as string,
})

/** Whether executions of a node type are metered. */
const isMetered = (type: string): boolean => type === 'agent' || isWorkerType(type) || startsRuns(type)

/**
 * Presents a run with its node executions and its usage.
 * @param known all its node executions, if the caller has loaded them
 * @param used usage that is not written yet
 * @param written all other usage, if the caller has read it
 */
export async function presentRunDetail(
  db: Queryable,
  run: RunRow,
  known: readonly NodeExecutionRow[] | null,
  used: readonly PricedUsage[] = [],
  written: readonly RunTotals[] | null = null,
): Promise<OrchestrationRunRecord> {
  const rows = known ?? (await listExecutions(db, run.id))
  const usage = rows.some(({ node_type }) => isMetered(node_type)) ? await usageOfRun(db, run, used, written) : NO_USAGE
  return { ...presentRun(run), node_executions: rows.map(presentNodeExecution), ...usage }
}

/** Presents runs with their node executions and their usage, in one statement. */
export async function presentRunDetails(
  db: Queryable,
  runs: readonly RunRow[],
  executions: ReadonlyMap<string, readonly NodeExecutionRow[]>,
): Promise<OrchestrationRunRecord[]> {
  const rowsOf = ({ id }: RunRow) => executions.get(id) ?? []
  const metered = runs.filter(run => rowsOf(run).some(({ node_type }) => isMetered(node_type)))
  const usage = await usageOfRuns(
    db,
    metered.map(({ id }) => id),
  )
  return runs.map(run => ({
    ...presentRun(run),
    node_executions: rowsOf(run).map(presentNodeExecution),
    ...(usage.get(run.id) ?? NO_USAGE),
  }))
}

/** Presents a run to a caller, with the callback URLs that the caller may use. */
export async function presentRunFor(
  services: Services,
  caller: CallerFacts,
  run: RunRow,
): Promise<OrchestrationRunRecord> {
  const [presented] = await withCallbacks(services, caller, [await presentRunDetail(services.pool, run, null)])
  return presented
}

/** Presents a run to a caller that waited for it. */
export const presentWaitedRun = async (
  services: Services,
  caller: CallerFacts,
  waited: WaitedRun,
): Promise<OrchestrationRunRecord> =>
  'row' in waited
    ? presentRunFor(services, caller, waited.row)
    : (await withCallbacks(services, caller, [waited.record]))[0]

const NO_USAGE = { usage: null, usage_own: null }
