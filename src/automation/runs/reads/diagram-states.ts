import { raise } from '../../../core/api/errors.ts'
import { isIdOf } from '../../../core/api/kind.ts'
import type { DiagramRun, NodeState } from '../../orchestrations/diagram.ts'
import { lastStates } from '../engine/node-execution-store.ts'
import { pinnedGraph } from '../engine/pinned-graph.ts'
import { runKind } from '../model.ts'

/** Where a run stands with its nodes: by the last attempt of each, or by what a run before it had come to. */
export const readDiagramStates: DiagramRun = async ({ services, resource, allow }, runId) => {
  const { pool } = services
  const run = isIdOf(runKind, runId) ? await runKind.find(pool, runId) : null
  if (run?.orchestration_id !== resource.id) return raise('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id: runId } })
  allow('orchestrations:GetRun', { kind: runKind, row: run })
  const pinned = await pinnedGraph(services, pool, run)
  if (!pinned) return raise('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id: runId } })
  const states = new Map<string, NodeState>(Object.keys(run.outcomes).map(id => [id, 'completed']))
  for (const { node_id, status } of await lastStates(pool, run.id)) states.set(node_id, status)
  return { graph: pinned.graph, states }
}
