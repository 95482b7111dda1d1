import { lookupProject } from '#automation/orchestrations/definition/lookup-project.ts'
import { orchestrationKind } from '#automation/orchestrations/definition/model.ts'
import { containsFilter } from '#core/api/filters.ts'
import { type Context, type Operation, operation } from '#core/api/operation.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { versionAuthor } from '#core/resources/version.ts'
import { checkPlaybook, requireValidPlaybook, schemaProblems, validateDefinition } from './check.ts'
import { type PlaybookDefinition, playbookFields } from './definition.ts'
import {
  PlaybookInput,
  PlaybookPatch,
  type PlaybookRow,
  PlaybookValidation,
  playbookKind,
  ValidatePlaybookInput,
} from './model.ts'
import { STEP_PERMISSIONS } from './references.ts'
import { insertPlaybook, playbookVersions } from './versions.ts'

const tag = 'Playbooks'
const path = '/playbooks'
const playbooks = resource(playbookKind, { path, tag, versions: playbookVersions })

const bodyLimit = () => 1024 * 1024

/** Returns the definition in a body, with defaults for omitted fields. */
export const playbookIn = (body: { [Name in keyof PlaybookDefinition]?: unknown }): PlaybookDefinition =>
  ({
    steps: body.steps,
    case_schema: body.case_schema ?? null,
    input_schema: body.input_schema ?? null,
    outcome: body.outcome ?? null,
    resolve_case: body.resolve_case ?? true,
  }) as PlaybookDefinition

/** Refuses a changed definition as on creation; unchanged steps require no permissions again. */
const checkDefinition = (
  next: PlaybookRow,
  { stored, ...context }: Pick<Context, 'tx' | 'services' | 'allow'> & { stored: PlaybookRow },
) => requireValidPlaybook(context, stored.project_id, playbookVersions.configOf(next), stored)

export const playbookOperations: Operation[] = [
  // playbooks_project serves the order.
  playbooks.list({
    filters: { name: containsFilter('name') },
    bytes: sql.fragment`(
      octet_length(t.steps::text) + coalesce(octet_length(t.description), 0) +
      coalesce(octet_length(t.case_schema::text), 0) + coalesce(octet_length(t.input_schema::text), 0))`,
    description:
      'A page contains less than 16 MiB of playbooks; `limit` in the response is the number of items it was limited to.',
  }),
  playbooks.create({
    checkedBy: 'validatePlaybook',
    description:
      'Problems of the definition are listed in meta.problems. Referenced agents, tools, orchestrations and deciders must exist. Requires permission to call the tools, run the orchestrations and call the deciders, because these permissions are not checked when an execution is started. A step that waits for an event requires triggers:CreateTrigger.',
    alsoActions: STEP_PERMISSIONS,
    body: PlaybookInput,
    validate: ({ services, project, body }) => validateDefinition(services, project, playbookIn(body)),
    bodyLimit,
    raises: ['PLAYBOOK_VALIDATION_FAILED', 'NAME_CONFLICT'],
    prepare: ({ services, body, project }) => schemaProblems(services, playbookIn(body), project as string),
    async make({ tx, services, allow, body, project, caller }) {
      const { version_label, project_id: _project, name, description = null } = body
      const definition = playbookIn(body)
      await requireValidPlaybook({ tx, services, allow }, project, definition)
      const author = versionAuthor(caller, version_label)
      return insertPlaybook(tx, { name, description, ...definition, project_id: project }, author)
    },
  }),
  operation({
    id: 'validatePlaybook',
    method: 'post',
    path: `${path}/validate`,
    summary: 'Validate a playbook',
    description:
      'Returns up to 1,000 problems. If a project is given, or the credential is bound to one, references are checked against that project; this requires the action there.',
    tag,
    action: 'playbooks:ValidatePlaybook',
    gate: 'any',
    byDefinitions: true,
    about: playbookKind,
    body: ValidatePlaybookInput,
    bodyLimit,
    answers: { 200: PlaybookValidation },
    raises: ['RESOURCE_NOT_FOUND'],
    reads: true,
    async run(context) {
      const { services, db, caller, body } = context
      const project = await lookupProject(
        context,
        { kind: playbookKind, action: 'playbooks:ValidatePlaybook' },
        body.project_id,
      )
      const tenant = project ?? `user:${caller.user.id}`
      const problems = await checkPlaybook(db, services, playbookIn(body), { project, tenant })
      return { valid: problems.length === 0, problems }
    },
  }),
  playbooks.get(),
  playbooks.update({
    checkedBy: 'validatePlaybook',
    description:
      'Replaces `steps` entirely. A changed definition creates a version; name and description do not. Active executions keep the version they were started with. Changed steps require the same permissions as on creation.',
    alsoActions: STEP_PERMISSIONS,
    body: PlaybookPatch,
    bodyLimit,
    raises: ['PLAYBOOK_VALIDATION_FAILED', 'NAME_CONFLICT'],
    prepare: ({ services, body, resource }) =>
      schemaProblems(services, playbookIn({ steps: [], ...body }), resource.project_id),
    async check(next, context) {
      if (playbookFields.some(name => context.body[name] !== undefined)) await checkDefinition(next, context)
    },
  }),
  playbooks.adopt(),
  playbooks.remove({
    description: 'Refused while executions are active. Records of executions remain, but can no longer be retried.',
    raises: ['PLAYBOOK_HAS_ACTIVE_EXECUTIONS'],
    async removed({ orchestration_id }, { tx }) {
      await orchestrationKind.delete(tx, orchestration_id)
    },
  }),
  ...playbooks.versions({
    alsoActions: STEP_PERMISSIONS,
    raises: ['PLAYBOOK_VALIDATION_FAILED'],
    prepare: (next, services) => schemaProblems(services, playbookVersions.configOf(next), next.project_id),
    check: checkDefinition,
  }),
]
