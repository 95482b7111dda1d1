import { containsFilter } from '#core/api/filters.ts'
import { type Operation, operation } from '#core/api/operation.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { versionAuthor } from '#core/resources/version.ts'
import {
  checkGraph,
  contextKeyProblems,
  requireValidGraph,
  validateDefinition,
  withMissingReferences,
} from './check.ts'
import { withCurrentFieldNames } from './definition.ts'
import { lookupProject } from './lookup-project.ts'
import {
  type GraphDefinition,
  GraphValidation,
  graphFields,
  OrchestrationInput,
  OrchestrationPatch,
  orchestrationKind,
  orchestrationVersions,
  ValidateGraphInput,
} from './model.ts'
import { REFERENCE_PERMISSIONS } from './references.ts'
import { schemaProblems } from './schemas.ts'
import { truncateProblems } from './validate.ts'

const tag = 'Orchestrations'
const path = '/orchestrations'
const orchestrations = resource(orchestrationKind, { path, tag, versions: orchestrationVersions })

const refusals = ['ORCHESTRATION_VALIDATION_FAILED', 'INVALID_TOOL_CONTEXT_KEY'] as const

/** Returns the definition in a body, with defaults for omitted fields. */
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
    description:
      'A page contains less than 16 MiB of graphs; `limit` in the response is the number of items it was limited to.',
  }),
  orchestrations.create({
    checkedBy: 'validateOrchestration',
    description:
      'Problems of the graph are listed in meta.problems. Referenced tools, agents, stores and orchestrations are looked up when a run reaches them. Referencing a tool or an orchestration requires permission to call or run it, because these permissions are not checked when a run is started.',
    alsoActions: REFERENCE_PERMISSIONS,
    body: OrchestrationInput,
    validate: ({ services, project, body }) => validateDefinition(services, project, graphIn(body)),
    raises: [...refusals],
    prepare: ({ services, body, project }) => schemaProblems(services, graphIn(body), project as string),
    async make({ tx, services, allow, body, project, caller }) {
      const definition = graphIn(body)
      await requireValidGraph({ tx, services, allow }, project, definition)
      const author = versionAuthor(caller, body.version_label)
      return orchestrationVersions.insert(tx, { ...body, ...definition, project_id: project }, author)
    },
  }),
  operation({
    id: 'validateOrchestration',
    method: 'post',
    path: `${path}/validate`,
    summary: 'Validate a graph',
    description:
      'Returns up to 1,000 problems and 1,000 warnings. If a project is given, or the credential is bound to one, references are checked against that project; this requires the action there.',
    tag,
    action: 'orchestrations:ValidateOrchestration',
    gate: 'any',
    byDefinitions: true,
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
      const found = await checkGraph(services, definition, project ?? `user:${caller.user.id}`)
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
      'Replaces `nodes` and `edges` entirely. A change in behaviour creates a version; a change of the name or of `metadata` of nodes and edges does not. Active runs keep the version they were started with. Changed graphs require the same permissions as on creation.',
    alsoActions: REFERENCE_PERMISSIONS,
    body: OrchestrationPatch,
    raises: [...refusals],
    prepare: ({ services, body, resource }) => schemaProblems(services, graphIn(body), resource.project_id),
    async change(next, { body, stored, tx, services, allow }) {
      if (graphFields.every(name => body[name] === undefined)) return next
      const changed = { ...next, nodes: withCurrentFieldNames(next.nodes) }
      await requireValidGraph({ tx, services, allow }, stored.project_id, changed, stored)
      return changed
    },
  }),
  orchestrations.adopt(),
  orchestrations.remove({
    description:
      'Cancels and deletes all its runs and versions; with many runs, workers do so afterwards. References to it remain and fail when used; generations and usage keep its ID.',
  }),
  ...orchestrations.versions({
    alsoActions: REFERENCE_PERMISSIONS,
    raises: [...refusals],
    prepare: (next, services) => schemaProblems(services, next, next.project_id),
    check: (next, { stored, ...context }) => requireValidGraph(context, stored.project_id, next, stored),
  }),
]
