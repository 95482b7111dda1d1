import { containsFilter } from '../../core/api/filters.ts'
import { type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { versionAuthor, versionOperations } from '../../core/api/version-archive.ts'
import { versionNumber } from '../../core/api/versions.ts'
import { sql } from '../../core/db/sql.ts'
import { lookupProject } from '../orchestrations/lookup-project.ts'
import { orchestrationKind } from '../orchestrations/model.ts'
import { checkPlaybook, requireValidPlaybook, schemaProblems } from './check.ts'
import { type PlaybookDefinition, playbookFields } from './definition.ts'
import { playbookDeleteHooks } from './delete-hooks.ts'
import {
  Playbook,
  PlaybookInput,
  PlaybookPatch,
  PlaybookValidation,
  PlaybookVersion,
  playbookKind,
  playbookVersions,
  RestorePlaybookInput,
  ValidatePlaybookInput,
} from './model.ts'
import { STEP_PERMISSIONS } from './references.ts'
import { insertPlaybook, versionedPlaybooks } from './versions.ts'

const tag = 'Playbooks'
const path = '/playbooks'
const playbooks = resource(playbookKind, { path, tag })
const { adopt, change, configOf, restore } = versionedPlaybooks

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
    quiet: true,
    raises: ['PLAYBOOK_VALIDATION_FAILED', 'NAME_CONFLICT'],
    prepare: ({ services, body, resource }) =>
      schemaProblems(services, playbookIn({ steps: [], ...body }), resource.project_id),
    async change(next, { body, stored, tx, services, allow }) {
      if (playbookFields.every(name => body[name] === undefined)) return next
      await requireValidPlaybook({ tx, services, allow }, stored.project_id, configOf(next), configOf(stored))
      return next
    },
    write: (next, { tx, stored, body, caller }) =>
      // Includes the name for the NAME_CONFLICT error.
      change(
        tx,
        stored,
        { name: stored.name, ...playbookKind.changes(stored, next) },
        versionAuthor(caller, body.version_label),
      ),
  }),
  playbooks.adopt({ adopt: (stored, { tx, caller }) => adopt(tx, stored, caller) }),
  playbooks.remove({
    description: 'Refused while executions are active. Records of executions remain, but can no longer be retried.',
    raises: ['PLAYBOOK_HAS_ACTIVE_EXECUTIONS'],
    async check(row, { tx }) {
      for (const onDelete of playbookDeleteHooks.all()) await onDelete(tx, row)
    },
    async removed({ orchestration_id }, { tx }) {
      await orchestrationKind.delete(tx, orchestration_id)
    },
  }),
  ...versionOperations(playbookKind, { path, tag, record: PlaybookVersion, archive: playbookVersions }),
  playbooks.action('restore', {
    id: 'restorePlaybookVersion',
    path: `${path}/{playbook_id}/versions/{version}/restore`,
    summary: 'Restore a playbook version',
    description:
      'Creates a new version with the definition of an earlier one. The restored version is validated and authorized like a new write. Name and description are unchanged.',
    alsoActions: STEP_PERMISSIONS,
    action: 'playbooks:RestorePlaybookVersion',
    body: RestorePlaybookInput,
    bodyOptional: true,
    answers: { 200: Playbook },
    raises: ['PLAYBOOK_VALIDATION_FAILED'],
    run: async context =>
      playbookKind.present(await restore(context, versionNumber(context.params.version), context.body?.label)),
  }),
]
