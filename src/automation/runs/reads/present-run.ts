import type { PricedUsage } from '../../../control/usage/price-usage.ts'
import type { Queryable } from '../../../core/db/sql.ts'
import type { CallerFacts } from '../../../core/iam/caller.ts'
import type { Services } from '../../../core/process/services.ts'
import { isWorkerType, startsRuns } from '../../orchestrations/definition.ts'
import { executionsOf, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import { type NodeExecution, type OrchestrationRunRecord, presentRun, type RunRow } from '../model.ts'
import { withCallbacks } from '../nodes/callback-token.ts'
import { usageOfRun } from './usage.ts'

/** What the side effect of an attempt is made under: a retry has another one, the same attempt by another worker the same. */
export const idempotencyKeyOf = ({
  run_id,
  node_id,
  attempt,
  node_type,
  polls,
}: Omit<NodeExecutionRow, 'input'>): string =>
  [run_id, node_id, attempt, ...(node_type === 'poll' ? [polls + 1] : [])].join(':')

const time = (text: string | null): string | null => text && new Date(text).toISOString()

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
    isWorkerType(row.node_type) && row.status !== 'skipped'
      ? idempotencyKeyOf({ ...row, polls: Math.max(0, row.polls - 1) })
      : null,
  wake_at: time(row.wake_at),
  started_at: time(row.started_at),
  completed_at: time(row.completed_at),
  created_at: time(row.created_at) as string,
})

/** Types whose work costs something. */
const isMetered = (type: string): boolean => type === 'agent' || isWorkerType(type) || startsRuns(type)

/**
 * A run as its GET answers, with its attempts and what it used.
 * @param known all its attempts, where the caller has them
 * @param used what it has used that is not written yet
 */
export async function presentRunDetail(
  db: Queryable,
  run: RunRow,
  known: readonly NodeExecutionRow[] | null,
  used: readonly PricedUsage[] = [],
): Promise<OrchestrationRunRecord> {
  const rows = known ?? (await executionsOf(db, run.id))
  const usage = rows.some(({ node_type }) => isMetered(node_type)) ? await usageOfRun(db, run, used) : NOTHING
  return { ...presentRun(run), node_executions: rows.map(presentNodeExecution), ...usage }
}

/** The same for those who ask for it. */
export async function presentRunFor(
  services: Services,
  caller: CallerFacts,
  run: RunRow,
): Promise<OrchestrationRunRecord> {
  const [shown] = await withCallbacks(services, caller, [await presentRunDetail(services.pool, run, null)])
  return shown
}

const NOTHING = { usage: null, usage_own: null }
