import type { Graph } from '#automation/orchestrations/definition/graph.ts'
import type { NodeExecutionRow } from '../engine/node-execution-store.ts'
import type { RequiredAction } from '../model.ts'
import type { ChildCounts } from '../store.ts'

export type { RequiredAction } from '../model.ts'

const EMPTY_ACTION: Omit<RequiredAction, 'type' | 'node_id'> = {
  prompt: null,
  context: null,
  options: null,
  approval_id: null,
  generation_id: null,
  orchestration_run_id: null,
  expires_at: null,
  reason: null,
  callback_url: null,
}

/** State of a run from which its required actions are derived. */
type Waiting = {
  graph: Graph
  children: ReadonlyMap<string, ChildCounts>
  paused: boolean
  pauseReason: string | null
}

/** Returns the actions required from callers, by node in definition order; a pause is last. */
export function requiredActions(waiting: Waiting, open: readonly NodeExecutionRow[]): RequiredAction[] {
  const { graph } = waiting
  const position = ({ node_id }: NodeExecutionRow) => graph.order.get(node_id) as number
  const actions = [...open]
    .sort((one, other) => position(one) - position(other))
    .flatMap(row => actionOf(waiting, row) ?? [])
  return waiting.paused
    ? [...actions, { ...EMPTY_ACTION, type: 'paused', node_id: null, reason: waiting.pauseReason }]
    : actions
}

/** Whether a node execution whose approval was decided only waits for the end of a pause. */
export const isDecided = ({ status, progress }: NodeExecutionRow): boolean =>
  status === 'requires_action' && progress?.decided === true

function actionOf({ children }: Waiting, row: NodeExecutionRow): RequiredAction | null {
  const { node_id, progress, deadline_at: expires_at, input: context } = row
  const prompt = (progress?.prompt as string | undefined) ?? null
  const base = { ...EMPTY_ACTION, node_id, context }
  if (isDecided(row)) return null
  if (row.status === 'requires_action') {
    if (row.generation_id !== null) return { ...base, type: 'generation', generation_id: row.generation_id }
    if (row.approval_id !== null)
      return {
        ...base,
        type: 'approval',
        approval_id: row.approval_id,
        prompt: prompt ?? 'Approval required.',
        expires_at: (progress?.expires_at as string | null | undefined) ?? null,
      }
    const options = (progress?.options as string[] | null | undefined) ?? null
    const type = row.node_type === 'webhook' ? 'webhook_receive' : 'human_input'
    return { ...base, type, prompt, options, expires_at }
  }
  const waiting = row.status === 'running' ? children.get(row.id)?.awaiting_id : null
  return waiting ? { ...base, type: 'nested_run', orchestration_run_id: waiting } : null
}
