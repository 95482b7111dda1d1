import { startsRuns } from '#automation/orchestrations/definition/definition.ts'
import type { Graph } from '#automation/orchestrations/definition/graph.ts'
import type { RunRow, RunStatus } from '../model.ts'
import { isDecided } from '../nodes/required-actions.ts'
import type { ChildCounts } from '../store.ts'
import { computeFrontier } from './frontier.ts'
import type { NodeExecutionRow } from './node-execution-store.ts'

/** State from which the status of a live run is derived, in addition to its open node executions. */
type LiveRunState = {
  run: RunRow
  graph: Graph
  children: ReadonlyMap<string, ChildCounts>
  /** Node executions that started nested runs which `children` does not include. */
  startedNested: ReadonlySet<string>
  paused: boolean
  /** Whether something is ready to start or continue and lacks a run slot. */
  slotMissing: boolean
  isPast(time: string | null): boolean
}

/**
 * Returns the status of a live run whose required actions are set.
 * @param continues whether another advance follows immediately
 */
export function runStatus(state: LiveRunState, open: readonly NodeExecutionRow[], continues: boolean): RunStatus {
  const { run, children, startedNested, paused } = state
  const below = open.flatMap(({ id }) => children.get(id) ?? [])
  const executes = open.some(({ status, node_type }) => status === 'running' && !startsRuns(node_type))
  if (executes || continues || below.some(({ running }) => running > 0)) return 'running'
  if (isReady(state, open) || open.some(({ id }) => startedNested.has(id)) || below.some(({ queued }) => queued > 0))
    return 'queued'
  if (paused || run.required_actions.length > 0) return 'awaiting_input'
  return open.length > 0 ? 'sleeping' : 'queued'
}

/** Whether an advance would change the run. */
const isReady = (
  { run, graph, paused, slotMissing: lacksSlot, isPast }: LiveRunState,
  open: readonly NodeExecutionRow[],
): boolean =>
  lacksSlot ||
  open.some(({ status }) => status === 'completed') ||
  (!paused &&
    (computeFrontier(graph, run).length > 0 ||
      open.some(row => isDecided(row) || (row.status === 'waiting' && isPast(row.wake_at)))))
