import { visibleRows } from '#core/api/access.ts'
import { BY_NEWEST_ID } from '#core/api/across.ts'
import { rowsOfProject } from '#core/api/dependents.ts'
import { containsFilter } from '#core/api/filters.ts'
import { srn } from '#core/api/kind.ts'
import { type Context, itemOperation, type Operation } from '#core/api/operation.ts'
import { raise, raiseInvalid, raiseInvalidValue } from '#core/base/errors.ts'
import { invalidateOnCommit } from '#core/db/notified-cache.ts'
import { sql } from '#core/db/sql.ts'
import { type Caller, principalRecord } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { HOME } from '#core/services/cell.ts'
import { wakeResumedWork } from '#core/work/work.ts'
import { cloneableNames, cloneProject } from './clone.ts'
import { refuseRouteInUse } from './default-model-route.ts'
import { deleteProject, scheduleDelete } from './delete.ts'
import { detachPermission, projectGuardrailsChannel, removedGuardrails, requireDetach } from './guardrail-ids.ts'
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
import { requireSearchLanguage, searchLanguageChanged } from './search-language.ts'
import { findLastActivity, pauseProject, resumeProject } from './store.ts'

const tag = 'Projects'

const projects = resource(projectKind, { path: '/projects', tag })

/** Sets the new project in the audit entry of a create. */
function auditCreated(audit: Context['audit'], id: string): void {
  audit.project_id = id
  audit.resource_srn = srn(id, projectKind.name, id)
}

/** Condition for projects that the caller may list or get. */
function visibleProjects(caller: Caller) {
  const columns = { project: sql.fragment`t.id`, id: sql.fragment`t.id`, tags: sql.fragment`t.tags` }
  const visible = (action: string) =>
    visibleRows(caller, { action, type: projectKind.name, project: caller.project_id }, columns).rows
  return sql.fragment`(${visible('projects:ListProjects')} or ${visible('projects:GetProject')})`
}

export const projectOperations: Operation[] = [
  projects.list({
    summary: 'List projects',
    description: 'Returns the projects that the caller may list or get, all for an admin.',
    alsoActions: ['projects:GetProject'],
    gate: 'any',
    byDefinitions: true,
    filters: { name: containsFilter('name') },
    visible: ({ caller }) => visibleProjects(caller),
    // IDs are ordered by creation time, so the primary key gives the order.
    order: () => sql.fragment`t.id desc`,
    across: { order: BY_NEWEST_ID },
  }),
  projects.create({
    gate: 'admin',
    body: ProjectInput,
    async make({ tx, body: { cell = HOME.name, ...body }, audit, services }) {
      if (!services.cells && cell !== HOME.name) raiseInvalidValue('cell', 'must be home, the only cell')
      await requireSearchLanguage(tx, body.search_language)
      const row = await projectKind.insert(tx, body)
      auditCreated(audit, row.id)
      if (row.search_language !== null) searchLanguageChanged(tx, row.id)
      return row
    },
  }),
  projects.get({ raises: ['API_KEY_PROJECT_SCOPE'] }),
  projects.update({
    summary: 'Update a project',
    description:
      'Lowered limits apply only to new work. Detaching a guardrail requires `guardrails:DetachGuardrail` on it.',
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
      if (next.search_language !== stored.search_language) {
        await requireSearchLanguage(tx, next.search_language)
        searchLanguageChanged(tx, stored.id)
      }
      return { ...next, guardrail_ids: next.guardrail_ids ?? [] }
    },
    changed: ({ id }, { tx }) => invalidateOnCommit(tx, projectGuardrailsChannel, id),
  }),
  itemOperation(projectKind, {
    id: 'deleteProject',
    method: 'delete',
    path: '/projects/{project_id}',
    summary: 'Delete a project',
    description:
      'Fails with the resource counts if the project still has resources. With force, ends its active runs and turns and deletes everything in it.',
    tag,
    action: 'projects:DeleteProject',
    gate: 'admin',
    query: DeleteQuery,
    answers: { 204: null },
    raises: ['PROJECT_HAS_DEPENDENTS'],
    async run({ tx, query, resource, audit, services }) {
      // The audit entry belongs to the deployment, so that it outlives the project.
      audit.project_id = null
      if (query.grace_days) await scheduleDelete(tx, services, resource.id, query.grace_days)
      else await deleteProject(services, tx, resource.id, query.force)
    },
  }),
  projects.action('pause', {
    internal: true,
    mcp: true,
    summary: 'Pause a project',
    description:
      'The project refuses new work until it is resumed. Pausing a paused project changes nothing; the first reason is kept.',
    body: PauseProjectInput,
    bodyOptional: true,
    answers: { 200: Project },
    raises: ['API_KEY_PROJECT_SCOPE'],
    async run({ tx, body, resource: { id } }) {
      const paused = await pauseProject(tx, id, body?.reason ?? null)
      if (paused) {
        for (const hook of pauseHooks.all()) await hook(tx, id)
        tx.emit(projectKind, 'paused', paused)
      }
      const row = paused ?? (await projectKind.find(tx, id))
      return row ? projectKind.present(row) : raise('RESOURCE_NOT_FOUND', { meta: { id } })
    },
  }),
  projects.action('resume', {
    internal: true,
    mcp: true,
    summary: 'Resume a project',
    description: 'Cancels a scheduled deletion. Deferred work starts again, within the limits of the project.',
    answers: { 200: Project },
    raises: ['API_KEY_PROJECT_SCOPE', 'PROJECT_NOT_PAUSED'],
    async run({ tx, resource, caller }) {
      const row = await resumeProject(tx, resource.id)
      if (!row) return raise('PROJECT_NOT_PAUSED', { meta: { project_id: resource.id } })
      wakeResumedWork(tx, row.id)
      for (const hook of resumeHooks.all()) await hook(tx, row.id, principalRecord(caller))
      tx.emit(projectKind, 'resumed', row)
      return projectKind.present(row)
    },
  }),
  itemOperation(projectKind, {
    id: 'getProjectSummary',
    method: 'get',
    path: '/projects/{project_id}/summary',
    summary: 'Get a project summary',
    description:
      'Returns the number of resources that prevent deletion without force, and the time of the last activity.',
    tag,
    action: 'projects:GetProject',
    answers: { 200: ProjectSummary },
    raises: ['API_KEY_PROJECT_SCOPE'],
    async run({ db, resource: { id } }) {
      const [{ counts }, last_activity_at] = await Promise.all([rowsOfProject(db, id), findLastActivity(db, id)])
      return { counts, last_activity_at }
    },
  }),
  projects.action('clone', {
    summary: 'Clone a project',
    description:
      'Creates a project with the settings and the included configuration of another. Secrets, keys, content and history are not copied.',
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
          message: `must be one of: ${names.join(', ') || 'none can be copied'}`,
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
