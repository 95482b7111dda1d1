import { definitionOf } from '../../../core/api/authors.ts'
import { AppError } from '../../../core/api/errors.ts'
import { readPath } from '../../../core/expressions/evaluate.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import { type Node, orchestrationKind } from '../../orchestrations/model.ts'
import { stateSubpath } from '../../orchestrations/state-paths.ts'
import { cancelDescendants } from '../commands/cancel-descendants.ts'
import { buildRunRow, inputProblemsInTransaction, insertRuns } from '../commands/start.ts'
import type { Advance } from '../engine/advance.ts'
import { narrowContext, runToolContext } from '../engine/context.ts'
import type { NodeExecutionRow } from '../engine/node-execution-store.ts'
import {
  type ExpressionState,
  jsonBytes,
  MAX_ARTIFACT_BYTES,
  MAX_RUN_INPUT_BYTES,
  nodeFailed,
  storableArtifact,
} from '../engine/run-state.ts'
import { runQueue } from '../queue.ts'
import { childOutputs, findChild } from '../store.ts'

/** What a loop goes over, as it was when it began; null for one run of a sub_orchestration. */
type Progress = { items: unknown[] | null }

const progressOf = (row: NodeExecutionRow): Progress => row.progress as Progress

const PARALLELISM = 5
const MAX_ITERATIONS = 1000
/** Outputs that are not even read: an artifact has no room for half as much. */
const MOST_OUTPUT_BYTES = 2 * MAX_ARTIFACT_BYTES
/** Inputs of runs that are started together: with the last of them they are more. */
const MAX_TOGETHER_BYTES = 4 * 1024 * 1024

/** A node that starts runs begins. */
export async function startNestedRuns(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  state: ExpressionState,
): Promise<void> {
  const items = node.type === 'loop' ? itemsOf(node, state) : null
  requireDepth(advance, node)
  row.progress = { items } satisfies Progress
  if (items?.length === 0) return advance.complete(row, { artifact: { results: [] } })
  await startMore(advance, node, row, { started: 0, live: 0 })
}

function itemsOf(node: Node, state: ExpressionState): unknown[] {
  const collection = readPath(state, stateSubpath(node.collection ?? 'items'))
  if (!Array.isArray(collection)) return []
  const limit = node.max_iterations ?? MAX_ITERATIONS
  if (collection.length > limit)
    throw new AppError('ORCHESTRATION_MAX_ITERATIONS_EXCEEDED', {
      message: 'The collection has more items than the loop may go over',
      meta: { node_id: node.id, items: collection.length, limit },
    })
  return collection
}

/** Raises ORCHESTRATION_RUN_DEPTH_LIMIT. Read when it matters, so that lowering a limit stops a tree that recurses. */
function requireDepth({ run, limits, services }: Advance, node: Node): void {
  const deployment = services.config.MAX_ORCHESTRATION_RUN_DEPTH
  const project = limits.max_run_depth
  const [limit, limit_source] =
    project !== null && project < deployment ? [project, 'project'] : [deployment, 'deployment']
  const depth = run.run_depth + 1
  if (depth > limit)
    throw new AppError('ORCHESTRATION_RUN_DEPTH_LIMIT', {
      meta: { depth, limit, limit_source, orchestration_id: node.orchestration_id },
    })
}

/** Starts as many of the runs of a node as may be under way at once, beside those that are or were. */
async function startMore(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  { started, live }: { started: number; live: number },
): Promise<void> {
  const { tx, services, run } = advance
  const { items } = progressOf(row)
  const most = items === null ? 1 : (node.parallelism ?? PARALLELISM)
  const count = Math.min(most - live, (items?.length ?? 1) - started)
  if (count <= 0) return
  const orchestration = await orchestrationKind.reference(tx, node.orchestration_id as string, run.project_id)
  if (!orchestration || orchestration.managed_by !== null)
    throw new AppError('ORCHESTRATION_NOT_FOUND', { meta: { id: node.orchestration_id } })
  const context = runToolContext(services, run)
  const own = { ...context, tool_context: narrowContext(context.tool_context, node.context_keys) }
  const runs = []
  let bytes = 0
  for (let index = started; index < started + count && bytes < MAX_TOGETHER_BYTES; index++) {
    const input = items === null ? (row.input ?? {}) : { ...row.input, [node.item_variable ?? 'item']: items[index] }
    const size = jsonBytes(input)
    if (size > MAX_RUN_INPUT_BYTES)
      throw nodeFailed(node, 'too_large', 'The input of a nested run is larger than 1 MiB')
    bytes += size
    const problems = await inputProblemsInTransaction(services, orchestration, input)
    if (problems.length > 0)
      throw nodeFailed(node, 'input_schema', 'The input does not satisfy the input_schema of the orchestration', {
        problems,
      })
    runs.push(
      buildRunRow(services, {
        orchestration,
        definition: definitionOf(orchestration),
        input,
        ...own,
        authority: run.authority,
        permission: run.permission,
        trigger: run.trigger_id === null ? null : { id: run.trigger_id, firing_id: run.trigger_firing_id },
        parent: { run, node_id: node.id, execution_id: row.id, index },
      }),
    )
  }
  insertRuns(tx, runs)
  if (runs.length < count) tx.send(runQueue, advance.message)
  await injectFault(services, 'child_started')
  advance.begunBelow.add(row.id)
}

/** What has become of the runs that a node started: the node ends with them, or starts further ones. */
export async function collectNestedRuns(advance: Advance, node: Node, row: NodeExecutionRow): Promise<void> {
  const below = advance.children.get(row.id)
  if (advance.begunBelow.has(row.id)) return
  // Runs go with their orchestration.
  if (!below) throw gone(node)
  if (below.failed_id !== null) throw await failureBelow(advance, node, below.failed_id)
  const { items } = progressOf(row)
  const { started } = below
  if (below.succeeded === (items?.length ?? 1)) {
    const outputs = await childOutputs(advance.tx, advance.run.id, row.id, MOST_OUTPUT_BYTES)
    if (outputs.length === 0)
      throw nodeFailed(node, 'too_large', 'The outputs of the nested runs are larger than 1 MiB')
    const artifact = items === null ? (outputs[0]?.output ?? {}) : { results: outputs.map(({ output }) => output) }
    const kept = storableArtifact(node, artifact)
    advance.hold(node, kept)
    return advance.complete(row, { artifact: kept })
  }
  const live = started - below.succeeded
  if (items !== null && started < items.length && (await advance.mayProceed()))
    await startMore(advance, node, row, { started, live })
  // Once nothing below executes it has waited, and no longer holds back what began with it.
  if (!row.parked && !advance.begunBelow.has(row.id) && below.running + below.queued === 0) {
    row.parked = true
    advance.touch(row)
  }
}

const gone = ({ id: node_id, orchestration_id }: Node) =>
  new AppError('ORCHESTRATION_NESTED_RUN_FAILED', {
    message: 'The orchestration of the nested runs was deleted',
    meta: { orchestration_run_id: null, node_id, status: 'cancelled', orchestration_id },
  })

/** How a run below has failed. */
async function failureBelow({ tx }: Advance, node: Node, childId: string): Promise<unknown> {
  const child = await findChild(tx, childId)
  const meta = { orchestration_run_id: childId, node_id: node.id, status: child?.status ?? 'cancelled' }
  return child?.error ?? new AppError('ORCHESTRATION_NESTED_RUN_FAILED', { meta })
}

/** Ends the runs that an attempt started. */
export const cancelNestedRuns = ({ tx, services, run }: Advance, row: NodeExecutionRow): Promise<void> =>
  cancelDescendants(tx, services, run, [], row.id)
