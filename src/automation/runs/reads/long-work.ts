import {
  type AwaitedInput,
  type LongWork,
  longWorkResult,
  parsedObject,
  underWay,
  type WorkState,
  type WorkView,
} from '../../../core/api/long-work.ts'
import { truncateBytes } from '../../../core/api/storable-text.ts'
import type { Services } from '../../../core/process/services.ts'
import { outputsInput, pendingApproval, SHOWN_BYTES } from '../../../execution/approvals/long-work.ts'
import { generationKind } from '../../../execution/generations/model.ts'
import { orchestrationVersions } from '../../orchestrations/model.ts'
import { executionsOf, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import { isRunTerminal, type RequiredAction, type RunRow, runKind } from '../model.ts'

/** Runs nest no deeper than this below the run of a task. */
const DEPTH = 20

/** A human node, as it is shown to a person. */
function humanInput(run: RunRow, action: RequiredAction, execution: NodeExecutionRow): AwaitedInput {
  const { node_id, prompt, context, options } = action
  const shown =
    context && Object.keys(context).length > 0 ? `\n${truncateBytes(JSON.stringify(context), SHOWN_BYTES)}` : ''
  const args = { orchestration_run_id: run.id, node_id, wait: false }
  return {
    key: `human:${run.id}:${node_id}:${execution.id}`,
    message: `${truncateBytes(prompt ?? `Node ${node_id} waits for input`, SHOWN_BYTES)}${shown}`,
    form: {
      type: 'object',
      ...(options
        ? {
            properties: { choice: { type: 'string', enum: options, description: 'What is chosen' } },
            required: ['choice'],
          }
        : {
            properties: {
              output: { type: 'string', description: 'The answer: text, or JSON of an object', maxLength: 65_536 },
            },
            required: ['output'],
          }),
    },
    operation: 'submitHumanInput',
    permission: { action: 'orchestrations:SubmitHumanInput', target: { kind: runKind, row: run } },
    accepted: ({ choice, output }) => ({ args: { ...args, output: options ? { choice } : parsedObject(output) } }),
    declined: () => null,
  }
}

/** What a run waits for that a person may answer, and that of the runs below it. */
async function awaitedBy(services: Services, run: RunRow, depth = 0): Promise<AwaitedInput[]> {
  if (run.required_actions.length === 0) return []
  const { pool } = services
  const executions = await executionsOf(pool, run.id)
  const found = await Promise.all(
    run.required_actions.map(async (action): Promise<AwaitedInput[]> => {
      const execution = executions.findLast(({ node_id }) => node_id === action.node_id)
      if (action.type === 'human_input' && execution) return [humanInput(run, action, execution)]
      if (action.type === 'approval' && action.approval_id) return pendingApproval(pool, action.approval_id)
      if (action.type === 'generation' && action.generation_id) {
        const turn = await generationKind.find(pool, action.generation_id)
        return turn?.status === 'requires_action' ? [outputsInput(turn)] : []
      }
      if (action.type === 'nested_run' && action.orchestration_run_id && depth < DEPTH) {
        const child = await runKind.find(pool, action.orchestration_run_id)
        return child ? awaitedBy(services, child, depth + 1) : []
      }
      return []
    }),
  )
  return found.flat()
}

const WAITS: Partial<Record<RequiredAction['type'], string>> = {
  webhook_receive: 'Waiting for a call of its address by node',
  paused: 'Paused',
}

function messageOf(run: RunRow): string {
  const [first] = run.required_actions
  if (run.pause_requested_at) return 'The run is paused'
  if (first?.type === 'approval') return `Waiting for approval ${first.approval_id}`
  if (first) return `${WAITS[first.type] ?? 'Waiting for input at node'} ${first.node_id ?? ''}`.trim()
  return run.active_nodes.length > 0 ? `At node ${run.active_nodes.join(', ')}` : `The run is ${run.status}`
}

async function stateOfRun({ services, record }: WorkView, run: RunRow): Promise<WorkState> {
  const progress = await progressOf(services, run)
  if (run.status === 'cancelled') return { status: 'cancelled', message: 'The run was cancelled', progress }
  if (isRunTerminal(run)) {
    const expired = { code: 'ORCHESTRATION_NODE_FAILED', message: 'The run has expired' }
    const failure = run.status === 'succeeded' ? null : (run.error ?? expired)
    return {
      status: 'completed',
      message: `The run has ${run.status}`,
      result: longWorkResult(failure, record),
      progress,
    }
  }
  const awaited = run.pause_requested_at ? [] : await awaitedBy(services, run)
  return { ...underWay(messageOf(run), awaited), progress }
}

/** Nodes that have an outcome, of those of the graph. */
async function progressOf({ pool }: Services, run: RunRow): Promise<WorkState['progress']> {
  const version = await orchestrationVersions.get(pool, run.orchestration_id, run.orchestration_version)
  return { done: Object.keys(run.outcomes).length, total: (version.config.nodes as unknown[]).length }
}

export const runWork: LongWork<RunRow> = {
  kind: 'orchestration_run',
  read: 'getRun',
  cancel: 'cancelRun',
  args: id => ({ orchestration_run_id: id }),
  state: stateOfRun,
}
