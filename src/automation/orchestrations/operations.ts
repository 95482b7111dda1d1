import { Readable } from 'node:stream'
import { z } from 'zod'
import { containsFilter } from '../../core/api/filters.ts'
import { itemOperation, type Operation, operation, streamResult } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { madeBy, versionOperations } from '../../core/api/version-archive.ts'
import { versionNumber } from '../../core/api/versions.ts'
import { sql } from '../../core/db/sql.ts'
import { checkGraph, contextKeyProblems, requireValidGraph, withMissingReferences } from './check.ts'
import { withCurrentFieldNames } from './definition.ts'
import { orchestrationDeleteHooks } from './delete-hooks.ts'
import { diagramOf, diagramRuns } from './diagram.ts'
import { graphOf } from './graph.ts'
import { lookupProject } from './lookup-project.ts'
import {
  type GraphDefinition,
  GraphValidation,
  graphFields,
  Orchestration,
  OrchestrationInput,
  OrchestrationPatch,
  OrchestrationVersion,
  orchestrationKind,
  orchestrationVersions,
  RestoreGraphInput,
  ValidateGraphInput,
} from './model.ts'
import { NAMING_RIGHTS } from './references.ts'
import { truncateProblems } from './validate.ts'
import { versionedGraphs } from './versions.ts'

const tag = 'Orchestrations'
const path = '/orchestrations'
const orchestrations = resource(orchestrationKind, { path, tag })

const refusals = ['ORCHESTRATION_VALIDATION_FAILED', 'INVALID_TOOL_CONTEXT_KEY'] as const

/** The definition that a body gives, with what it leaves out. */
export const graphIn = (body: Partial<GraphDefinition>): GraphDefinition => ({
  nodes: withCurrentFieldNames(body.nodes ?? []),
  edges: body.edges ?? [],
  state_schema: body.state_schema ?? null,
  input_schema: body.input_schema ?? null,
})

export const orchestrationOperations: Operation[] = [
  // orchestrations_project serves the order.
  orchestrations.list({
    filters: { name: containsFilter('name') },
    where: () => [sql.fragment`t.managed_by is null`],
    bytes: sql.fragment`(
      octet_length(t.nodes::text) + octet_length(t.edges::text) +
      coalesce(octet_length(t.state_schema::text), 0) + coalesce(octet_length(t.input_schema::text), 0))`,
    description: 'A page ends before 16 MiB of graphs: `limit` says how many it was cut to.',
  }),
  orchestrations.create({
    checkedBy: 'validateOrchestration',
    description:
      'The graph is refused with everything that is wrong with it in meta.problems. Tools, agents, stores and orchestrations that it names are looked up when a run comes to them. Naming a tool or an orchestration needs the right to call or to run it, since whoever starts a run is not asked.',
    alsoActions: NAMING_RIGHTS,
    body: OrchestrationInput,
    raises: [...refusals],
    async make({ tx, services, allow, body, project, caller }) {
      const { version_label, ...values } = body
      const definition = graphIn(values)
      await requireValidGraph({ tx, services, allow }, project, definition)
      const making = madeBy(caller, version_label)
      return versionedGraphs.insert(tx, { ...values, ...definition, project_id: project }, making)
    },
  }),
  operation({
    id: 'validateOrchestration',
    method: 'post',
    path: `${path}/validate`,
    summary: 'Check a graph without writing it',
    description:
      'Finds what a write would be refused with, and what may be a mistake, at most 1,000 of each. With a project, which a bound credential always has, it also finds what the graph names and the project does not have; that needs the action there.',
    tag,
    action: 'orchestrations:ValidateOrchestration',
    gate: 'any',
    about: orchestrationKind,
    body: ValidateGraphInput,
    answers: { 200: GraphValidation },
    raises: ['RESOURCE_NOT_FOUND'],
    reads: true,
    async run(context) {
      const { services, db, caller, body } = context
      const project = await lookupProject(
        context,
        { kind: orchestrationKind, action: 'orchestrations:ValidateOrchestration' },
        body.project_id,
      )
      const definition = graphIn(body)
      const asking = { tenant: project ?? `user:${caller.user.id}`, inTransaction: false }
      const found = await checkGraph(services, definition, asking)
      const warnings =
        project === null ? found.warnings : await withMissingReferences(db, project, definition, found.warnings)
      const problems = truncateProblems([...found.problems, ...contextKeyProblems(definition.nodes)])
      return { valid: problems.length === 0, problems, warnings }
    },
  }),
  orchestrations.get(),
  orchestrations.update({
    checkedBy: 'validateOrchestration',
    description:
      'Replaces `nodes` and `edges` as a whole. A graph that runs otherwise makes a version; names and `metadata` of nodes and edges do not. Runs go on with the version that they were started on. Nodes and edges that run otherwise need the rights that the graph needs to be created.',
    alsoActions: NAMING_RIGHTS,
    body: OrchestrationPatch,
    quiet: true,
    raises: [...refusals],
    async change(next, { body, stored, tx, services, allow }) {
      if (graphFields.every(name => body[name] === undefined)) return next
      const changed = { ...next, nodes: withCurrentFieldNames(next.nodes) }
      await requireValidGraph({ tx, services, allow }, stored.project_id, changed, stored)
      return changed
    },
    write: (next, { tx, stored, body, caller }) =>
      versionedGraphs.change(tx, stored, orchestrationKind.changes(stored, next), madeBy(caller, body.version_label)),
  }),
  orchestrations.adopt({ adopt: (stored, { tx, caller }) => versionedGraphs.adopt(tx, stored, caller) }),
  orchestrations.remove({
    description:
      'Cancels its runs and deletes them with its versions; of many runs, workers do so afterwards. What names it stays, and fails when it is used; generations and usage keep its id.',
    async check(row, { tx, services }) {
      for (const end of orchestrationDeleteHooks.all()) await end(tx, services, row)
    },
  }),
  itemOperation(orchestrationKind, {
    id: 'getOrchestrationDiagram',
    method: 'get',
    path: `${path}/{orchestration_id}/diagram`,
    summary: 'Draw an orchestration as a Mermaid flowchart',
    description:
      'Text for Mermaid: shapes by the type of node, labels and groups on the edges. With a run, which needs orchestrations:GetRun on it, the version that it executes, coloured by where it stands.',
    tag,
    action: 'orchestrations:GetOrchestration',
    query: z.object({ run_id: z.string().min(1).max(255).optional().describe('Run whose nodes are coloured') }),
    raises: ['ORCHESTRATION_RUN_NOT_FOUND'],
    answers: { 200: null },
    produces: 'text/plain',
    async run(context) {
      const { resource, query } = context
      const pictured = query.run_id === undefined ? undefined : diagramRuns.only()
      const { graph, states } = pictured
        ? await pictured(context, query.run_id as string)
        : { graph: graphOf(resource), states: undefined }
      return streamResult('text/plain; charset=utf-8', Readable.from([diagramOf(graph, states)]))
    },
  }),
  ...versionOperations(orchestrationKind, {
    path,
    tag,
    record: OrchestrationVersion,
    archive: orchestrationVersions,
  }),
  orchestrations.action('restore', {
    id: 'restoreOrchestrationVersion',
    path: `${path}/{orchestration_id}/versions/{version}/restore`,
    summary: 'Write the graph of an earlier version as the next one',
    description: 'It must still be one that the caller could write today. Name and description stay.',
    alsoActions: NAMING_RIGHTS,
    action: 'orchestrations:RestoreOrchestrationVersion',
    body: RestoreGraphInput,
    bodyOptional: true,
    answers: { 200: Orchestration },
    raises: [...refusals],
    run: async context =>
      orchestrationKind.present(
        await versionedGraphs.restore(context, versionNumber(context.params.version), context.body?.label),
      ),
  }),
]
