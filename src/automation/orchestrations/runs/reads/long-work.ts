import { orchestrationVersions } from '#automation/orchestrations/definition/model.ts'
import {
  type AwaitedInput,
  type LongWork,
  longWorkResult,
  parseAsObject,
  type WorkState,
  type WorkView,
  workInProgress,
} from '#core/api/long-work.ts'
import type { Services } from '#core/base/services.ts'
import { truncateBytes } from '#core/base/storable-text.ts'
import { outputsInput, pendingApproval, SHOWN_BYTES } from '#execution/approvals/long-work.ts'
import { generationKind } from '#execution/generations/model.ts'
import { listExecutions, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import { isRunTerminal, type RequiredAction, type RunRow, runKind } from '../model.ts'

/** Limit of nested runs that are followed below the run. */
const MAX_DEPTH = 20

/** Returns the form of a human node. */
function humanInput(run: RunRow, action: RequiredAction, execution: NodeExecutionRow): AwaitedInput {
  const { node_id, prompt, context, options } = action
  const contextText =
    context && Object.keys(context).length > 0 ? `\n${truncateBytes(JSON.stringify(context), SHOWN_BYTES)}` : ''
  const args = { orchestration_run_id: run.id, node_id, wait: false }
  return {
    key: `human:${run.id}:${node_id}:${execution.id}`,
    message: `${truncateBytes(prompt ?? `Node ${node_id} waits for input`, SHOWN_BYTES)}${contextText}`,
    form: {
      type: 'object',
      ...(options
        ? {
            properties: { choice: { type: 'string', enum: options, description: 'Choice' } },
            required: ['choice'],
          }
        : {
            properties: {
              output: { type: 'string', description: 'Answer: text, or a JSON object', maxLength: 65_536 },
            },
            required: ['output'],
          }),
    },
    operation: 'submitHumanInput',
    permission: { action: 'orchestrations:SubmitHumanInput', target: { kind: runKind, row: run } },
    accepted: ({ choice, output }) => ({ args: { ...args, output: options ? { choice } : parseAsObject(output) } }),
    declined: () => null,
  }
}

/** Lists the inputs that people can submit to a run and its nested runs. */
async function listAwaitedInputs(services: Services, run: RunRow, depth = 0): Promise<AwaitedInput[]> {
  if (run.required_actions.length === 0) return []
  const { pool } = services
  const executions = await listExecutions(pool, run.id)
  const found = await Promise.all(
    run.required_actions.map(async (action): Promise<AwaitedInput[]> => {
      const execution = executions.findLast(({ node_id }) => node_id === action.node_id)
      if (action.type === 'human_input' && execution) return [humanInput(run, action, execution)]
      if (action.type === 'approval' && action.approval_id) return pendingApproval(pool, action.approval_id)
      if (action.type === 'generation' && action.generation_id) {
        const turn = await generationKind.find(pool, action.generation_id)
        return turn?.status === 'requires_action' ? [outputsInput(turn)] : []
      }
      if (action.type === 'nested_run' && action.orchestration_run_id && depth < MAX_DEPTH) {
        const child = await runKind.find(pool, action.orchestration_run_id)
        return child ? listAwaitedInputs(services, child, depth + 1) : []
      }
      return []
    }),
  )
  return found.flat()
}

const WAIT_MESSAGES: Partial<Record<RequiredAction['type'], string>> = {
  webhook_receive: 'Waiting for the webhook of node',
  paused: 'Paused',
}

function messageOf(run: RunRow): string {
  const [first] = run.required_actions
  if (run.pause_requested_at) return 'Run is paused'
  if (first?.type === 'approval') return `Waiting for approval ${first.approval_id}`
  if (first) return `${WAIT_MESSAGES[first.type] ?? 'Waiting for input at node'} ${first.node_id ?? ''}`.trim()
  return run.active_nodes.length > 0 ? `At node ${run.active_nodes.join(', ')}` : `Run is ${run.status}`
}

async function stateOfRun({ services, record }: WorkView, run: RunRow): Promise<WorkState> {
  const progress = await progressOf(services, run)
  if (run.status === 'cancelled') return { status: 'cancelled', message: 'Run was cancelled', progress }
  if (isRunTerminal(run)) {
    const expired = { code: 'ORCHESTRATION_NODE_FAILED', message: 'Run expired' }
    const failure = run.status === 'succeeded' ? null : (run.error ?? expired)
    return {
      status: 'completed',
      message: `Run ${run.status}`,
      result: longWorkResult(failure, record),
      progress,
    }
  }
  const awaited = run.pause_requested_at ? [] : await listAwaitedInputs(services, run)
  return { ...workInProgress(messageOf(run), awaited), progress }
}

/** Counts the nodes of the graph and the nodes with an outcome. */
async function progressOf({ pool }: Services, run: RunRow): Promise<WorkState['progress']> {
  const version = await orchestrationVersions.get(pool, run.orchestration_id, run.orchestration_version)
  return { done: Object.keys(run.outcomes).length, total: version.config.nodes.length }
}

export const runWork: LongWork<RunRow> = {
  kind: 'orchestration_run',
  read: 'getRun',
  cancel: 'cancelRun',
  args: id => ({ orchestration_run_id: id }),
  state: stateOfRun,
}
