import type { Graph } from '../../orchestrations/graph.ts'
import type { NodeExecutionRow } from '../engine/node-execution-store.ts'
import type { RequiredAction } from '../model.ts'
import type { Children } from '../store.ts'

export type { RequiredAction } from '../model.ts'

const NOTHING: Omit<RequiredAction, 'type' | 'node_id'> = {
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

/** What the actions of a run follow from. */
type Waiting = {
  graph: Graph
  children: ReadonlyMap<string, Children>
  paused: boolean
  pauseReason: string | null
}

/** What somebody outside has to do, node by node in the order of the definition; a pause comes last. */
export function requiredActions(waiting: Waiting, open: readonly NodeExecutionRow[]): RequiredAction[] {
  const { graph } = waiting
  const at = ({ node_id }: NodeExecutionRow) => graph.order.get(node_id) as number
  const actions = [...open].sort((one, other) => at(one) - at(other)).flatMap(row => actionOf(waiting, row) ?? [])
  return waiting.paused
    ? [...actions, { ...NOTHING, type: 'paused', node_id: null, reason: waiting.pauseReason }]
    : actions
}

/** Whether an attempt waits for nothing but the end of a pause, since its approval was decided. */
export const isDecided = ({ status, progress }: NodeExecutionRow): boolean =>
  status === 'requires_action' && progress?.decided === true

function actionOf({ children }: Waiting, row: NodeExecutionRow): RequiredAction | null {
  const { node_id, progress, deadline_at: expires_at, input: context } = row
  const prompt = (progress?.prompt as string | undefined) ?? null
  const base = { ...NOTHING, node_id, context }
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
