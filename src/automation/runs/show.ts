import type { Rated } from '../../control/usage/rate.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Decided } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { isWorkerType, startsRuns } from '../orchestrations/definition.ts'
import { type ExecutionRow, executionsOf } from './attempt-store.ts'
import { withCallbacks } from './callback-token.ts'
import { type NodeExecution, type OrchestrationRunRecord, presentRun, type RunRow } from './model.ts'
import { usageOfRun } from './usage.ts'

/** What the side effect of an attempt is made under: a retry has another one, the same attempt by another worker the same. */
export const keyOf = ({ run_id, node_id, attempt, node_type, polls }: Omit<ExecutionRow, 'input'>): string =>
  [run_id, node_id, attempt, ...(node_type === 'poll' ? [polls + 1] : [])].join(':')

const time = (text: string | null): string | null => text && new Date(text).toISOString()

export const presentExecution = (row: ExecutionRow): NodeExecution => ({
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
      ? keyOf({ ...row, polls: Math.max(0, row.polls - 1) })
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
export async function shownRun(
  db: Queryable,
  run: RunRow,
  known: readonly ExecutionRow[] | null,
  used: readonly Rated[] = [],
): Promise<OrchestrationRunRecord> {
  const rows = known ?? (await executionsOf(db, run.id))
  const usage = rows.some(({ node_type }) => isMetered(node_type)) ? await usageOfRun(db, run, used) : NOTHING
  return { ...presentRun(run), node_executions: rows.map(presentExecution), ...usage }
}

/** The same for those who ask for it. */
export async function shownTo(services: Services, caller: Decided, run: RunRow): Promise<OrchestrationRunRecord> {
  const [shown] = await withCallbacks(services, caller, [await shownRun(services.pool, run, null)])
  return shown
}

const NOTHING = { usage: null, usage_own: null }
