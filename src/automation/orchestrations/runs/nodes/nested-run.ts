import { type Node, orchestrationKind } from '#automation/orchestrations/definition/model.ts'
import { stateSubpath } from '#automation/orchestrations/definition/state-paths.ts'
import { definitionOf } from '#core/api/authors.ts'
import { AppError } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { readPath } from '#core/expressions/evaluate.ts'
import { cancelDescendants } from '../commands/cancel-descendants.ts'
import { buildRunRow, inputProblems, insertRuns } from '../commands/start-run.ts'
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
import { findChild, listChildOutputs } from '../store.ts'

/** Items of a loop, fixed when it started; null for a sub_orchestration. */
type Progress = { items: unknown[] | null }

const progressOf = (row: NodeExecutionRow): Progress => row.progress as Progress

const PARALLELISM = 5
const MAX_ITERATIONS = 1000
/** Limit of outputs that are read at all: above it the artifact cannot fit. */
const MAX_READ_BYTES = 2 * MAX_ARTIFACT_BYTES
/** Input size after which one transaction starts no further nested runs. */
const MAX_BATCH_BYTES = 4 * 1024 * 1024

/** Starts a node that starts nested runs. */
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
  await startNextRuns(advance, node, row, { started: 0, live: 0 })
}

function itemsOf(node: Node, state: ExpressionState): unknown[] {
  const collection = readPath(state, stateSubpath(node.collection ?? 'items'))
  if (!Array.isArray(collection)) return []
  const limit = node.max_iterations ?? MAX_ITERATIONS
  if (collection.length > limit)
    throw new AppError('ORCHESTRATION_MAX_ITERATIONS_EXCEEDED', {
      message: 'Collection exceeds max_iterations',
      meta: { node_id: node.id, items: collection.length, limit },
    })
  return collection
}

/**
 * Refuses a nesting depth above the limit. The limit is read at each start, so lowering it stops a recursive tree.
 * @throws ORCHESTRATION_RUN_DEPTH_LIMIT
 */
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

/** Starts further nested runs of a node, up to its parallelism. */
async function startNextRuns(
  advance: Advance,
  node: Node,
  row: NodeExecutionRow,
  { started, live }: { started: number; live: number },
): Promise<void> {
  const { tx, services, run } = advance
  const { items } = progressOf(row)
  const parallelism = items === null ? 1 : (node.parallelism ?? PARALLELISM)
  const count = Math.min(parallelism - live, (items?.length ?? 1) - started)
  if (count <= 0) return
  const orchestration = await orchestrationKind.reference(tx, node.orchestration_id as string, run.project_id)
  if (!orchestration || orchestration.managed_by !== null)
    throw new AppError('ORCHESTRATION_NOT_FOUND', { meta: { id: node.orchestration_id } })
  const context = runToolContext(services, run)
  const narrowed = { ...context, tool_context: narrowContext(context.tool_context, node.context_keys) }
  const runs = []
  let bytes = 0
  for (let index = started; index < started + count && bytes < MAX_BATCH_BYTES; index++) {
    const input = items === null ? (row.input ?? {}) : { ...row.input, [node.item_variable ?? 'item']: items[index] }
    const size = jsonBytes(input)
    if (size > MAX_RUN_INPUT_BYTES) throw nodeFailed(node, 'too_large', 'Input of a nested run exceeds 1 MiB')
    bytes += size
    const problems = await inputProblems(services, orchestration, input)
    if (problems.length > 0)
      throw nodeFailed(
        node,
        'input_schema',
        'Input of the nested run does not match the input_schema of the orchestration',
        {
          problems,
        },
      )
    runs.push(
      buildRunRow(services, {
        orchestration,
        definition: definitionOf(orchestration),
        input,
        ...narrowed,
        authority: run.authority,
        permission: run.permission,
        source: run.source,
        trigger: run.trigger_id === null ? null : { id: run.trigger_id, firing_id: run.trigger_firing_id },
        parent: { run, node_id: node.id, execution_id: row.id, index },
      }),
    )
  }
  insertRuns(tx, runs)
  if (runs.length < count) tx.send(runQueue, advance.message)
  await injectFault(services, 'child_started')
  advance.startedNested.add(row.id)
}

/** Applies the states of the nested runs of a node: completes or fails the node, or starts further runs. */
export async function collectNestedRuns(advance: Advance, node: Node, row: NodeExecutionRow): Promise<void> {
  const below = advance.children.get(row.id)
  if (advance.startedNested.has(row.id)) return
  // Nested runs are deleted with their orchestration.
  if (!below) throw orchestrationDeleted(node)
  if (below.failed_id !== null) throw await nestedFailure(advance, node, below.failed_id)
  const { items } = progressOf(row)
  const { started } = below
  if (below.succeeded === (items?.length ?? 1)) {
    const outputs = await listChildOutputs(advance.tx, advance.run.id, row.id, MAX_READ_BYTES)
    if (outputs.length === 0) throw nodeFailed(node, 'too_large', 'Outputs of the nested runs exceed 1 MiB')
    const artifact = items === null ? (outputs[0]?.output ?? {}) : { results: outputs.map(({ output }) => output) }
    const stored = storableArtifact(node, artifact)
    advance.countOpenValue(node, stored)
    return advance.complete(row, { artifact: stored })
  }
  const live = started - below.succeeded
  if (items !== null && started < items.length && (await advance.mayProceed()))
    await startNextRuns(advance, node, row, { started, live })
  // Once no nested run is active, the node counts as waiting and no longer delays the nodes activated with it.
  if (!row.parked && !advance.startedNested.has(row.id) && below.running + below.queued === 0) {
    row.parked = true
    advance.markChanged(row)
  }
}

const orchestrationDeleted = ({ id: node_id, orchestration_id }: Node) =>
  new AppError('ORCHESTRATION_NESTED_RUN_FAILED', {
    message: 'Orchestration of the nested runs was deleted',
    meta: { orchestration_run_id: null, node_id, status: 'cancelled', orchestration_id },
  })

/** Returns the failure of a nested run. */
async function nestedFailure({ tx }: Advance, node: Node, childId: string): Promise<unknown> {
  const child = await findChild(tx, childId)
  const meta = { orchestration_run_id: childId, node_id: node.id, status: child?.status ?? 'cancelled' }
  return child?.error ?? new AppError('ORCHESTRATION_NESTED_RUN_FAILED', { meta })
}

/** Cancels the nested runs of a node execution. */
export const cancelNestedRuns = ({ tx, services, run }: Advance, row: NodeExecutionRow): Promise<void> =>
  cancelDescendants(tx, services, run, [], row.id)
