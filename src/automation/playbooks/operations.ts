import { containsFilter } from '../../core/api/filters.ts'
import { type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { madeBy, versionOperations } from '../../core/api/version-archive.ts'
import { versionNumber } from '../../core/api/versions.ts'
import { sql } from '../../core/db/sql.ts'
import { lookupProject } from '../orchestrations/lookup-project.ts'
import { orchestrationKind } from '../orchestrations/model.ts'
import { checkPlaybook, requireValidPlaybook } from './check.ts'
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
import { STEP_RIGHTS } from './references.ts'
import { insertPlaybook, versionedPlaybooks } from './versions.ts'

const tag = 'Playbooks'
const path = '/playbooks'
const playbooks = resource(playbookKind, { path, tag })
const { adopt, change, configOf, restore } = versionedPlaybooks

const bodyLimit = () => 1024 * 1024

/** The definition that a body gives, with what it leaves out. */
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
    description: 'A page ends before 16 MiB of procedures: `limit` says how many it was cut to.',
  }),
  playbooks.create({
    checkedBy: 'validatePlaybook',
    description:
      'Refused with everything that is wrong with the procedure in meta.problems; agents, tools, orchestrations and deciders that it names have to exist. Needs the rights to call the tools, run the orchestrations and ask the deciders, since whoever starts an execution has them called; a step that waits for an event needs triggers:CreateTrigger.',
    alsoActions: STEP_RIGHTS,
    body: PlaybookInput,
    bodyLimit,
    raises: ['PLAYBOOK_VALIDATION_FAILED', 'NAME_CONFLICT'],
    async make({ tx, services, allow, body, project, caller }) {
      const { version_label, project_id: _project, name, description = null } = body
      const definition = playbookIn(body)
      await requireValidPlaybook({ tx, services, allow }, project, definition)
      const making = madeBy(caller, version_label)
      return insertPlaybook(tx, { name, description, ...definition, project_id: project }, making)
    },
  }),
  operation({
    id: 'validatePlaybook',
    method: 'post',
    path: `${path}/validate`,
    summary: 'Check a playbook without writing it',
    description:
      'Finds what a write would be refused with, at most 1,000 problems. With a project, which a bound credential always has, it also finds what the steps name and the project does not have; that needs the action there.',
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
      const asking = { project, tenant: project ?? `user:${caller.user.id}`, inTransaction: false }
      const problems = await checkPlaybook(db, services, playbookIn(body), asking)
      return { valid: problems.length === 0, problems }
    },
  }),
  playbooks.get(),
  playbooks.update({
    checkedBy: 'validatePlaybook',
    description:
      'Replaces `steps` as a whole. Another procedure makes a version; name and description do not. Executions go on with the version that they were started on. Other steps need the rights that they need to be created.',
    alsoActions: STEP_RIGHTS,
    body: PlaybookPatch,
    bodyLimit,
    quiet: true,
    raises: ['PLAYBOOK_VALIDATION_FAILED', 'NAME_CONFLICT'],
    async change(next, { body, stored, tx, services, allow }) {
      if (playbookFields.every(name => body[name] === undefined)) return next
      await requireValidPlaybook({ tx, services, allow }, stored.project_id, configOf(next), configOf(stored))
      return next
    },
    write: (next, { tx, stored, body, caller }) =>
      // With the name, which its refusal says.
      change(
        tx,
        stored,
        { name: stored.name, ...playbookKind.changes(stored, next) },
        madeBy(caller, body.version_label),
      ),
  }),
  playbooks.adopt({ adopt: (stored, { tx, caller }) => adopt(tx, stored, caller) }),
  playbooks.remove({
    description:
      'Refused while an execution is under way. Executions keep their records, but cannot be retried any more.',
    raises: ['PLAYBOOK_HAS_ACTIVE_EXECUTIONS'],
    async check(row, { tx }) {
      for (const end of playbookDeleteHooks.all()) await end(tx, row)
    },
    async removed({ orchestration_id }, { tx }) {
      await orchestrationKind.delete(tx, orchestration_id)
    },
  }),
  ...versionOperations(playbookKind, { path, tag, record: PlaybookVersion, archive: playbookVersions }),
  playbooks.action('restore', {
    id: 'restorePlaybookVersion',
    path: `${path}/{playbook_id}/versions/{version}/restore`,
    summary: 'Write the procedure of an earlier version as the next one',
    description: 'It must still be one that the caller could write today. Name and description stay.',
    alsoActions: STEP_RIGHTS,
    action: 'playbooks:RestorePlaybookVersion',
    body: RestorePlaybookInput,
    bodyOptional: true,
    answers: { 200: Playbook },
    raises: ['PLAYBOOK_VALIDATION_FAILED'],
    run: async context =>
      playbookKind.present(await restore(context, versionNumber(context.params.version), context.body?.label)),
  }),
]
