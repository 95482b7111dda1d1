import { z } from 'zod'
import { rowsOfProject } from '../../core/api/dependents.ts'
import { invalid, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import { between, page, pageOf, textFilter } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { tagOperations } from '../../core/api/tags.ts'
import { sql, substring } from '../../core/db/sql.ts'
import { visibleRows } from '../../core/iam/access.ts'
import { cloneableNames, copyConfiguration } from './clone.ts'
import { removeProject, scheduleDelete } from './delete.ts'
import {
  CloneInput,
  DeleteQuery,
  PauseInput,
  Project,
  ProjectClone,
  ProjectInput,
  ProjectPatch,
  type ProjectRow,
  ProjectSummary,
  project,
} from './model.ts'
import {
  copyProject,
  insertProject,
  lastActivity,
  pauseProject,
  resumeProject,
  setProjectTags,
  updateProject,
} from './store.ts'

const tag = 'Projects'

/** The entry of a project's create names the new project (identity, 12). */
export function auditCreated(audit: Context['audit'], id: string): void {
  audit.project_id = id
  audit.resource_srn = srn(id, 'project', id)
}

const listProjects = operation({
  id: 'listProjects',
  method: 'get',
  path: '/projects',
  summary: 'List the projects the caller may list or read',
  tag,
  action: 'projects:ListProjects',
  alsoActions: ['projects:GetProject'],
  gate: 'any',
  lists: project,
  query: z.object({ name: textFilter }),
  answers: { 200: pageOf(Project) },
  async run(context) {
    const { caller, query } = context
    const columns = { project: sql.fragment`t.id`, id: sql.fragment`t.id`, tags: sql.fragment`t.tags` }
    const visible = (action: string) =>
      visibleRows(caller, { action, type: project.name, project: caller.project_id }, columns)
    return page<ProjectRow>(context, {
      columns: sql.fragment`t.*, t.id as project_id`,
      from: sql.fragment`projects t`,
      where: [
        sql.fragment`(${visible('projects:ListProjects')} or ${visible('projects:GetProject')})`,
        query.name !== undefined && sql.fragment`t.name ilike ${substring(query.name)}`,
        between(sql.fragment`t.created_at`, context.page),
      ],
      // Ids rise with creation time, so the primary key gives the order.
      order: sql.fragment`t.id desc`,
      present: project.present,
    })
  },
})

const createProject = operation({
  id: 'createProject',
  method: 'post',
  path: '/projects',
  summary: 'Create a project',
  tag,
  action: 'projects:CreateProject',
  gate: 'admin',
  creates: project,
  body: ProjectInput,
  answers: { 201: Project },
  async run({ tx, body, audit }) {
    const row = await insertProject(tx, newId('proj'), body)
    auditCreated(audit, row.id)
    return project.present(row)
  },
})

const getProject = itemOperation(project, {
  id: 'getProject',
  method: 'get',
  path: '/projects/{project_id}',
  summary: 'Read a project',
  tag,
  action: 'projects:GetProject',
  answers: { 200: Project },
  raises: ['API_KEY_PROJECT_SCOPE'],
  run: async ({ resource }) => project.present(resource),
})

const patchProject = itemOperation(project, {
  id: 'updateProject',
  method: 'patch',
  path: '/projects/{project_id}',
  summary: 'Change settings of a project',
  description: 'A lowered limit binds new starts only.',
  tag,
  action: 'projects:UpdateProject',
  body: ProjectPatch,
  answers: { 200: Project },
  raises: ['API_KEY_PROJECT_SCOPE', 'GUARDRAIL_NOT_FOUND', 'MODEL_ROUTE_NOT_FOUND'],
  async run({ tx, body, resource }) {
    if (body.guardrail_ids?.length) raise('GUARDRAIL_NOT_FOUND', { meta: { id: body.guardrail_ids[0] } })
    if (body.default_model_route_id) raise('MODEL_ROUTE_NOT_FOUND', { meta: { id: body.default_model_route_id } })
    const row = await updateProject(tx, resource.id, body)
    if (!row) return raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    tx.emit(project, 'updated', row)
    return project.present(row)
  },
})

const pause = itemOperation(project, {
  id: 'pauseProject',
  method: 'post',
  path: '/projects/{project_id}/pause',
  summary: 'Refuse new work in a project until it is resumed',
  description: 'Pausing a paused project changes nothing: the first reason stays.',
  tag,
  action: 'projects:PauseProject',
  body: PauseInput,
  bodyOptional: true,
  answers: { 200: Project },
  raises: ['API_KEY_PROJECT_SCOPE'],
  async run({ tx, body, resource }) {
    const paused = await pauseProject(tx, resource.id, body?.reason ?? null)
    if (paused) tx.emit(project, 'paused', paused)
    const row = paused ?? (await project.find(tx, resource.id))
    return row ? project.present(row) : raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
  },
})

const resume = itemOperation(project, {
  id: 'resumeProject',
  method: 'post',
  path: '/projects/{project_id}/resume',
  summary: 'Lift the pause of a project, and a deferred delete with it',
  tag,
  action: 'projects:ResumeProject',
  answers: { 200: Project },
  raises: ['API_KEY_PROJECT_SCOPE', 'PROJECT_NOT_PAUSED'],
  async run({ tx, resource }) {
    const row = await resumeProject(tx, resource.id)
    if (!row) return raise('PROJECT_NOT_PAUSED', { meta: { project_id: resource.id } })
    tx.emit(project, 'resumed', row)
    return project.present(row)
  },
})

const deleteProject = itemOperation(project, {
  id: 'deleteProject',
  method: 'delete',
  path: '/projects/{project_id}',
  summary: 'Delete a project; with force, everything in it',
  tag,
  action: 'projects:DeleteProject',
  gate: 'admin',
  query: DeleteQuery,
  answers: { 204: null },
  raises: ['PROJECT_HAS_DEPENDENTS'],
  async run({ tx, query, resource, audit, services }) {
    // The entry is one of the deployment: it outlives the project (identity, 12).
    audit.project_id = null
    if (query.grace_days) await scheduleDelete(tx, services, resource.id, query.grace_days)
    else await removeProject(tx, resource.id, query.force)
  },
})

const summary = itemOperation(project, {
  id: 'getProjectSummary',
  method: 'get',
  path: '/projects/{project_id}/summary',
  summary: 'Count what a project holds',
  description: 'Counts what would keep the project from being deleted.',
  tag,
  action: 'projects:GetProject',
  answers: { 200: ProjectSummary },
  raises: ['API_KEY_PROJECT_SCOPE'],
  async run({ db, resource }) {
    const [{ counts }, last_activity_at] = await Promise.all([
      rowsOfProject(db, resource.id),
      lastActivity(db, resource.id),
    ])
    return { counts, last_activity_at }
  },
})

const clone = itemOperation(project, {
  id: 'cloneProject',
  method: 'post',
  path: '/projects/{project_id}/clone',
  summary: 'Create a project with the settings and the named configuration of another',
  description: 'Secrets, keys, content and history are not copied.',
  tag,
  action: 'projects:CreateProject',
  gate: 'admin',
  body: CloneInput,
  answers: { 201: ProjectClone },
  async run({ tx, body, resource, audit }) {
    const unknown = body.include.findIndex(name => !cloneableNames().includes(name))
    if (unknown >= 0)
      invalid({
        code: 'INVALID_VALUE',
        path: `include[${unknown}]`,
        message: `is not one of: ${cloneableNames().join(', ') || 'none can be copied'}`,
      })
    // Held against changes while its parts are copied.
    if (!(await project.find(tx, resource.id, true))) raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
    const made = await copyProject(tx, newId('proj'), resource.id, body.name)
    const ids = await copyConfiguration(tx, resource.id, made.id, body.include)
    auditCreated(audit, made.id)
    audit.resource_public_id = made.id
    audit.detail.cloned_from = resource.id
    return { project: project.present(made), ids }
  },
})

export const projectOperations: Operation[] = [
  listProjects,
  createProject,
  getProject,
  patchProject,
  deleteProject,
  pause,
  resume,
  summary,
  clone,
  ...tagOperations(project, {
    path: '/projects/{project_id}',
    tag,
    read: 'projects:GetProject',
    write: 'projects:UpdateProject',
    setTags: (tx, row, tags) => setProjectTags(tx, row.id, tags),
  }),
]
