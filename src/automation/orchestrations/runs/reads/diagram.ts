import { Readable } from 'node:stream'
import { z } from 'zod'
import { diagramOf, type NodeState } from '#automation/orchestrations/definition/diagram.ts'
import { type Graph, graphOf } from '#automation/orchestrations/definition/graph.ts'
import { type OrchestrationRow, orchestrationKind } from '#automation/orchestrations/definition/model.ts'
import { isIdOf } from '#core/api/kind.ts'
import { type Context, itemOperation, streamResult } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { listLastStatuses } from '../engine/node-execution-store.ts'
import { loadPinnedGraph } from '../engine/pinned-graph.ts'
import { runKind } from '../model.ts'

/**
 * Returns the graph and the node states of a run: the status of the last execution of each node, or completed if the
 * result was copied from the run that this run retries.
 * @throws ORCHESTRATION_RUN_NOT_FOUND, FORBIDDEN
 */
async function readDiagramStates(
  { services, resource, allow }: Pick<Context<any, any, OrchestrationRow>, 'services' | 'resource' | 'allow'>,
  runId: string,
): Promise<{ graph: Graph; states: ReadonlyMap<string, NodeState> }> {
  const { pool } = services
  const run = isIdOf(runKind, runId) ? await runKind.find(pool, runId) : null
  if (run?.orchestration_id !== resource.id) return raise('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id: runId } })
  allow('orchestrations:GetRun', { kind: runKind, row: run })
  const pinned = await loadPinnedGraph(services, pool, run)
  if (!pinned) return raise('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id: runId } })
  const states = new Map<string, NodeState>(Object.keys(run.outcomes).map(id => [id, 'completed']))
  for (const { node_id, status } of await listLastStatuses(pool, run.id)) states.set(node_id, status)
  return { graph: pinned.graph, states }
}

/** The diagram of an orchestration, or of one of its runs. */
export const diagramOperation = itemOperation(orchestrationKind, {
  id: 'getOrchestrationDiagram',
  method: 'get',
  path: '/orchestrations/{orchestration_id}/diagram',
  summary: 'Get a Mermaid diagram of an orchestration',
  description:
    'Mermaid flowchart: node shapes show types, edge texts show labels and groups. With a run, the version that it executes, with nodes coloured by state; this requires orchestrations:GetRun on the run.',
  tag: 'Orchestrations',
  action: 'orchestrations:GetOrchestration',
  query: z.object({
    run_id: z.string().min(1).max(255).optional().describe('ID of the run whose node states are shown'),
  }),
  raises: ['ORCHESTRATION_RUN_NOT_FOUND'],
  answers: { 200: null },
  produces: 'text/plain',
  async run(context) {
    const { resource, query } = context
    const { graph, states } =
      query.run_id === undefined
        ? { graph: graphOf(resource), states: undefined }
        : await readDiagramStates(context, query.run_id)
    return streamResult('text/plain; charset=utf-8', Readable.from([diagramOf(graph, states)]))
  },
})
