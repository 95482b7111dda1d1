import { rowsOfProject } from '../../core/api/dependents.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { containsFilter } from '../../core/api/filters.ts'
import { srn } from '../../core/api/kind.ts'
import { type Context, itemOperation, type Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { invalidateOnCommit } from '../../core/db/notified-cache.ts'
import { sql } from '../../core/db/sql.ts'
import { visibleRows } from '../../core/iam/access.ts'
import { type Caller, principalRecord } from '../../core/iam/caller.ts'
import { detachPermission, projectGuardrailsChannel, removedGuardrails, requireDetach } from '../guardrail-ids.ts'
import { cloneableNames, cloneProject } from './clone.ts'
import { refuseRouteInUse } from './default-model-route.ts'
import { removeProject, scheduleDelete } from './delete.ts'
import {
  CloneInput,
  DeleteQuery,
  PauseProjectInput,
  Project,
  ProjectClone,
  ProjectInput,
  ProjectPatch,
  ProjectSummary,
  projectKind,
} from './model.ts'
import { pauseHooks, resumeHooks } from './pause.ts'
import { lastActivity, pauseProject, resumeProject } from './store.ts'

const tag = 'Projects'

const projects = resource(projectKind, { path: '/projects', tag })

/** The audit entry of a create names the new project. */
function auditCreated(audit: Context['audit'], id: string): void {
  audit.project_id = id
  audit.resource_srn = srn(id, projectKind.name, id)
}

/** Projects that the caller may list or read. */
function listed(caller: Caller) {
  const columns = { project: sql.fragment`t.id`, id: sql.fragment`t.id`, tags: sql.fragment`t.tags` }
  const visible = (action: string) =>
    visibleRows(caller, { action, type: projectKind.name, project: caller.project_id }, columns).rows
  return sql.fragment`(${visible('projects:ListProjects')} or ${visible('projects:GetProject')})`
}

export const projectOperations: Operation[] = [
  projects.list({
    summary: 'List the projects the caller may list or read',
    description: 'Admins see all of them.',
    alsoActions: ['projects:GetProject'],
    gate: 'any',
    filters: { name: containsFilter('name') },
    visible: ({ caller }) => listed(caller),
    // Ids rise with creation time, so the primary key gives the order.
    order: () => sql.fragment`t.id desc`,
  }),
  projects.create({
    gate: 'admin',
    body: ProjectInput,
    async make({ tx, body, audit }) {
      const row = await projectKind.insert(tx, body)
      auditCreated(audit, row.id)
      return row
    },
  }),
  projects.get({ raises: ['API_KEY_PROJECT_SCOPE'] }),
  projects.update({
    summary: 'Change settings of a project',
    description:
      'A lowered limit binds new starts only. Detaching a guardrail needs `guardrails:DetachGuardrail` on it.',
    alsoActions: [detachPermission],
    body: ProjectPatch,
    raises: [
      'API_KEY_PROJECT_SCOPE',
      'GUARDRAIL_NOT_FOUND',
      'MODEL_ROUTE_NOT_FOUND',
      'PROJECT_DEFAULT_ROUTE_INHERITED',
    ],
    check: (next, context) =>
      requireDetach(context, next.id, removedGuardrails([context.stored.guardrail_ids], [next.guardrail_ids])),
    async change(next, { stored, tx }) {
      if (stored.default_model_route_id !== null && next.default_model_route_id === null)
        await refuseRouteInUse(tx, stored.id)
      return { ...next, guardrail_ids: next.guardrail_ids ?? [] }
    },
    changed: ({ id }, { tx }) => invalidateOnCommit(tx, projectGuardrailsChannel, id),
  }),
  itemOperation(projectKind, {
    id: 'deleteProject',
    method: 'delete',
    path: '/projects/{project_id}',
    summary: 'Delete a project; with force, everything in it',
    description:
      'A project with resources is refused with their counts unless forced; then everything goes, runs and turns are ended first.',
    tag,
    action: 'projects:DeleteProject',
    gate: 'admin',
    query: DeleteQuery,
    answers: { 204: null },
    raises: ['PROJECT_HAS_DEPENDENTS'],
    async run({ tx, query, resource, audit, services }) {
      // The entry is one of the deployment: it outlives the project.
      audit.project_id = null
      if (query.grace_days) await scheduleDelete(tx, services, resource.id, query.grace_days)
      else await removeProject(tx, resource.id, query.force)
    },
  }),
  projects.action('pause', {
    internal: true,
    mcp: true,
    summary: 'Refuse new work in a project until it is resumed',
    description: 'Pausing a paused project changes nothing: the first reason stays.',
    body: PauseProjectInput,
    bodyOptional: true,
    answers: { 200: Project },
    raises: ['API_KEY_PROJECT_SCOPE'],
    async run({ tx, body, resource: { id } }) {
      const paused = await pauseProject(tx, id, body?.reason ?? null)
      if (paused) {
        for (const follow of pauseHooks.all()) await follow(tx, id)
        tx.emit(projectKind, 'paused', paused)
      }
      const row = paused ?? (await projectKind.find(tx, id))
      return row ? projectKind.present(row) : raise('RESOURCE_NOT_FOUND', { meta: { id } })
    },
  }),
  projects.action('resume', {
    internal: true,
    mcp: true,
    summary: 'Lift the pause of a project, and a deferred delete with it',
    description: 'What was held while the project was paused starts again, within the limits of the project.',
    answers: { 200: Project },
    raises: ['API_KEY_PROJECT_SCOPE', 'PROJECT_NOT_PAUSED'],
    async run({ tx, resource, caller }) {
      const row = await resumeProject(tx, resource.id)
      if (!row) return raise('PROJECT_NOT_PAUSED', { meta: { project_id: resource.id } })
      for (const follow of resumeHooks.all()) await follow(tx, row.id, principalRecord(caller))
      tx.emit(projectKind, 'resumed', row)
      return projectKind.present(row)
    },
  }),
  itemOperation(projectKind, {
    id: 'getProjectSummary',
    method: 'get',
    path: '/projects/{project_id}/summary',
    summary: 'Count what a project holds',
    description: 'Counts what would keep the project from being deleted.',
    tag,
    action: 'projects:GetProject',
    answers: { 200: ProjectSummary },
    raises: ['API_KEY_PROJECT_SCOPE'],
    async run({ db, resource: { id } }) {
      const [{ counts }, last_activity_at] = await Promise.all([rowsOfProject(db, id), lastActivity(db, id)])
      return { counts, last_activity_at }
    },
  }),
  projects.action('clone', {
    summary: 'Create a project with the settings and the named configuration of another',
    description: 'Secrets, keys, content and history are not copied.',
    action: 'projects:CreateProject',
    gate: 'admin',
    body: CloneInput,
    answers: { 201: ProjectClone },
    async run({ tx, services, caller, body: { name, include }, resource, audit }) {
      const names = cloneableNames()
      const unknown = include.findIndex(kind => !names.includes(kind))
      if (unknown >= 0)
        raiseInvalid({
          code: 'INVALID_VALUE',
          path: `include[${unknown}]`,
          message: `is not one of: ${names.join(', ') || 'none can be copied'}`,
        })
      const { made, ids } = await cloneProject(tx, resource.id, name, include, { services, caller })
      auditCreated(audit, made.id)
      audit.resource_public_id = made.id
      audit.detail.cloned_from = resource.id
      return { project: projectKind.present(made), ids }
    },
  }),
  ...projects.tags(),
]
