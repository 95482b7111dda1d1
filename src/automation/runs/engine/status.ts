import { startsRuns } from '../../orchestrations/definition.ts'
import type { Graph } from '../../orchestrations/graph.ts'
import type { RunRow, RunStatus } from '../model.ts'
import { isDecided } from '../nodes/required-actions.ts'
import type { Children } from '../store.ts'
import { computeFrontier } from './frontier.ts'
import type { NodeExecutionRow } from './node-execution-store.ts'

/** What the status of a run that has not ended follows from, beside its open attempts. */
type Standing = {
  run: RunRow
  graph: Graph
  children: ReadonlyMap<string, Children>
  /** Attempts that started runs which `children` does not show. */
  begunBelow: ReadonlySet<string>
  paused: boolean
  /** Something is ready to begin, or to go on, and there is no room for it. */
  slotMissing: boolean
  isPast(time: string | null): boolean
}

/**
 * The status of a run that has not ended, whose required actions are known.
 * @param more whether an advance follows at once
 */
export function runStatus(standing: Standing, open: readonly NodeExecutionRow[], more: boolean): RunStatus {
  const { run, children, begunBelow, paused } = standing
  const below = open.flatMap(({ id }) => children.get(id) ?? [])
  const executes = open.some(({ status, node_type }) => status === 'running' && !startsRuns(node_type))
  if (executes || more || below.some(({ running }) => running > 0)) return 'running'
  if (isReady(standing, open) || open.some(({ id }) => begunBelow.has(id)) || below.some(({ queued }) => queued > 0))
    return 'queued'
  if (paused || run.required_actions.length > 0) return 'awaiting_input'
  return open.length > 0 ? 'sleeping' : 'queued'
}

/** Whether the run would go on if it were looked at. */
const isReady = (
  { run, graph, paused, slotMissing: lacksRoom, isPast }: Standing,
  open: readonly NodeExecutionRow[],
): boolean =>
  lacksRoom ||
  open.some(({ status }) => status === 'completed') ||
  (!paused &&
    (computeFrontier(graph, run).length > 0 ||
      open.some(row => isDecided(row) || (row.status === 'waiting' && isPast(row.wake_at)))))
