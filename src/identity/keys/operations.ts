import { z } from 'zod'
import { invalid, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf, type Kind, srn } from '../../core/api/kind.ts'
import { between, page, pageOf, parseTime, textFilter } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation, type Verdict } from '../../core/api/operation.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/write.ts'
import { permitted, projectBinding, sees, visibleRows } from '../../core/iam/access.ts'
import { type Caller, isAdmin } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { principalsChanged } from '../principals.ts'
import { projectKind } from '../projects/model.ts'
import {
  type KeyFields,
  KeyInput,
  KeyPatch,
  type KeyRow,
  ProjectKey,
  ProjectKeyWithSecret,
  projectKey,
  RotateInput,
} from './model.ts'
import { mintKey } from './secret.ts'
import {
  auditedDays,
  deleteKey,
  insertKey,
  lastAudited,
  lockKey,
  lockPolicies,
  lockProject,
  rotateKey,
  updateKey,
} from './store.ts'

const tag = 'Project keys'
const DAY_MS = 86_400_000
const USAGE_DAYS = 30

/** Who may know and touch a key (identity, 4.4 rule 4). */
function mine(caller: Caller, row: KeyRow): 'user' | 'credential' | null {
  if (caller.credential.type === 'user') return row.user_id === caller.user.id || isAdmin(caller) ? 'user' : null
  const reachable = caller.project_id === null || caller.project_id === row.project_id
  return row.user_id === caller.user.id && reachable ? 'credential' : null
}

const mayRead =
  (action: string) =>
  (caller: Caller, row: KeyRow): Verdict => {
    const as = mine(caller, row)
    if (as === null) return 'hide'
    return as === 'user' || permitted(caller, action, { kind: projectKey as unknown as Kind, row }) ? 'allow' : 'forbid'
  }

const mayChange = (caller: Caller, row: KeyRow): Verdict => {
  const as = mine(caller, row)
  return as === null ? 'hide' : as === 'user' ? 'allow' : 'forbid'
}

const mayRotate = (caller: Caller, row: KeyRow): Verdict =>
  caller.credential.type === 'api_key' && caller.credential.id === row.id ? 'allow' : mayChange(caller, row)

/**
 * Checks the references and times of a key that is being written. Raises POLICY_NOT_FOUND, RESOURCE_NOT_FOUND (admins)
 * or FORBIDDEN for the project, VALIDATION_FAILED.
 * @param stored the key as it is, on an update
 */
async function checkFields(
  tx: Tx,
  { caller, services, action }: { caller: Caller; services: Services; action: string },
  fields: KeyFields,
  stored?: KeyRow,
): Promise<KeyFields> {
  const checked = { ...fields }
  if (checked.policy_ids) {
    const found = checked.policy_ids.length > 0 ? await lockPolicies(tx, checked.policy_ids) : []
    const missing = checked.policy_ids.find(id => !found.includes(id))
    if (missing !== undefined) raise('POLICY_NOT_FOUND', { meta: { id: missing } })
  }
  const named = checked.project_id
  if (named && named !== stored?.project_id) {
    if (!sees(caller, named)) raise('FORBIDDEN', { meta: { action } })
    if (!isIdOf(projectKind, named) || !(await lockProject(tx, named))) {
      if (isAdmin(caller)) raise('RESOURCE_NOT_FOUND', { meta: { id: named } })
      raise('FORBIDDEN', { meta: { action } })
    }
  }
  const now = services.clock.now().getTime()
  if (checked.expires_at) {
    const expires = parseTime(checked.expires_at) as Date
    if (expires.getTime() <= now)
      invalid({ code: 'INVALID_VALUE', path: 'expires_at', message: 'must lie in the future' })
    checked.expires_at = expires.toISOString()
  }
  const { KEY_MAX_TTL_DAYS } = services.config
  const expires = checked.expires_at === undefined ? stored?.expires_at : checked.expires_at
  if (KEY_MAX_TTL_DAYS > 0 && (!expires || new Date(expires).getTime() > now + KEY_MAX_TTL_DAYS * DAY_MS))
    invalid({
      code: 'INVALID_VALUE',
      path: 'expires_at',
      message: `must lie within ${KEY_MAX_TTL_DAYS} days (KEY_MAX_TTL_DAYS)`,
    })
  return checked
}

/** The entry's project is the key's binding (identity, 12). */
function auditKey(audit: Context['audit'], row: KeyRow): void {
  audit.project_id = row.project_id
  audit.resource_srn = srn(row.project_id, projectKey.name, row.id)
}

const gone = (id: string): never => raise('RESOURCE_NOT_FOUND', { meta: { id } })

const listQuery = z.object({
  project_id: textFilter,
  user_id: textFilter,
  unused_since: z
    .string()
    .refine(value => parseTime(value) !== null, 'must be an ISO 8601 time')
    .optional()
    .describe('Only keys that were not used at or after this time'),
})

const KeyUsage = z
  .object({
    days: z.array(z.object({ date: z.string(), requests: z.int() })),
    last_action: z.object({ action: z.string(), status: z.int(), at: z.string() }).nullable(),
    last_used_at: z.string().nullable(),
  })
  .meta({ id: 'ProjectKeyUsage' })

/** The routes under one path; `/api-keys` is an alias of all of them (identity, 4). */
function keyRoutes(path: '/project-keys' | '/api-keys'): Operation[] {
  const alias = path === '/api-keys'
  const noun = alias ? 'ApiKey' : 'ProjectKey'
  const note = alias ? ' (alias of /project-keys)' : ''
  const shared = { tag, gate: 'owner', internal: alias } as const
  const one = `${path}/{key_id}`

  const change = (method: 'patch' | 'put') =>
    itemOperation(projectKey, {
      ...shared,
      id: `${method === 'patch' ? 'update' : 'replace'}${noun}`,
      method,
      path: one,
      param: 'key_id',
      summary: `Change the fields named of a key${note}`,
      action: 'project-keys:UpdateProjectKey',
      decide: mayChange,
      body: KeyPatch,
      answers: { 200: ProjectKey },
      raises: ['POLICY_NOT_FOUND'],
      async run({ tx, body, resource, caller, services }) {
        if (!(await lockKey(tx, resource.id))) gone(resource.id)
        const stored = (await projectKey.find(tx, resource.id)) as KeyRow
        const action = 'project-keys:UpdateProjectKey'
        const fields = await checkFields(tx, { caller, services, action }, body, stored)
        const row = await updateKey(tx, resource.id, fields)
        principalsChanged(tx, `key:${row.id}`)
        tx.emit(projectKey, 'updated', row)
        return projectKey.present(row)
      },
    })

  return [
    operation({
      ...shared,
      id: `create${noun}`,
      method: 'post',
      path,
      summary: `Mint a key that acts for the caller${note}`,
      description: 'Needs a user credential. The key string is in this answer only.',
      action: 'project-keys:CreateProjectKey',
      creates: projectKey,
      decide: caller => (caller.credential.type === 'user' ? 'allow' : 'forbid'),
      body: KeyInput,
      bodyOptional: true,
      answers: { 201: ProjectKeyWithSecret },
      raises: ['POLICY_NOT_FOUND'],
      secretAnswer: true,
      async run({ tx, body, caller, services, audit }) {
        const action = 'project-keys:CreateProjectKey'
        const fields = await checkFields(tx, { caller, services, action }, body ?? {})
        const { key, ...stored } = mintKey()
        const row = await insertKey(tx, { ...fields, ...stored, id: newId('key'), user_id: caller.user.id })
        auditKey(audit, row)
        tx.emit(projectKey, 'created', row)
        return { ...projectKey.present(row), secret: key, key }
      },
    }),
    operation({
      ...shared,
      id: `list${noun}s`,
      method: 'get',
      path,
      summary: `List keys: a user's own, for an admin all${note}`,
      action: 'project-keys:ListProjectKeys',
      lists: projectKey,
      query: listQuery,
      answers: { 200: pageOf(ProjectKey) },
      async run(context) {
        const { caller, query } = context
        const byUser = caller.credential.type === 'user'
        if (query.project_id !== undefined) projectBinding(caller, query.project_id)
        return page<KeyRow>(context, {
          columns: projectKey.columns,
          from: sql.fragment`project_keys t`,
          where: [
            byUser && isAdmin(caller) ? null : sql.fragment`t.user_id = ${caller.user.id}`,
            byUser
              ? null
              : visibleRows(
                  caller,
                  { action: 'project-keys:ListProjectKeys', type: projectKey.name, project: caller.project_id },
                  { project: sql.fragment`coalesce(t.project_id, '*')`, id: sql.fragment`t.id` },
                ),
            query.project_id !== undefined && sql.fragment`t.project_id = ${query.project_id}`,
            query.user_id !== undefined && sql.fragment`t.user_id = ${query.user_id}`,
            query.unused_since !== undefined &&
              sql.fragment`coalesce(t.last_used_at, t.created_at) < ${(parseTime(query.unused_since) as Date).toISOString()}::timestamptz`,
            between(sql.fragment`t.created_at`, context.page),
          ],
          // Ids rise with creation time, so the primary key gives the order.
          order: sql.fragment`t.id desc`,
          present: projectKey.present,
        })
      },
    }),
    itemOperation(projectKey, {
      ...shared,
      id: `get${noun}`,
      method: 'get',
      path: one,
      param: 'key_id',
      summary: `Read a key${note}`,
      action: 'project-keys:GetProjectKey',
      decide: mayRead('project-keys:GetProjectKey'),
      answers: { 200: ProjectKey },
      run: async ({ resource }) => projectKey.present(resource),
    }),
    change('patch'),
    change('put'),
    itemOperation(projectKey, {
      ...shared,
      id: `delete${noun}`,
      method: 'delete',
      path: one,
      param: 'key_id',
      summary: `Delete a key${note}`,
      action: 'project-keys:DeleteProjectKey',
      decide: mayChange,
      answers: { 204: null },
      async run({ tx, resource }) {
        if (!(await lockKey(tx, resource.id))) gone(resource.id)
        const row = (await projectKey.find(tx, resource.id)) as KeyRow
        await deleteKey(tx, row.id)
        principalsChanged(tx, `key:${row.id}`)
        tx.emit(projectKey, 'deleted', row)
      },
    }),
    itemOperation(projectKey, {
      ...shared,
      id: `rotate${noun}`,
      method: 'post',
      path: `${one}/rotate`,
      param: 'key_id',
      summary: `Replace the key string${note}`,
      description: 'The old string works for grace_seconds more. A key may rotate itself.',
      action: 'project-keys:RotateProjectKey',
      decide: mayRotate,
      body: RotateInput,
      bodyOptional: true,
      answers: { 200: ProjectKeyWithSecret },
      secretAnswer: true,
      async run({ tx, body, resource, services }) {
        const seconds = body?.grace_seconds ?? 0
        const { key, ...next } = mintKey()
        const until = new Date(services.clock.now().getTime() + seconds * 1000)
        if (!(await rotateKey(tx, resource.id, next, seconds, until))) gone(resource.id)
        const row = (await projectKey.find(tx, resource.id)) as KeyRow
        principalsChanged(tx, `key:${row.id}`)
        tx.emit(projectKey, 'updated', row)
        return { ...projectKey.present(row), secret: key, key }
      },
    }),
    itemOperation(projectKey, {
      ...shared,
      id: `get${noun}Usage`,
      method: 'get',
      path: `${one}/usage`,
      param: 'key_id',
      summary: `Audited requests of a key per day, the last ${USAGE_DAYS} days, and its last action${note}`,
      description: 'Counts what the audit log holds: changes, and reads where the project audits them.',
      action: 'project-keys:GetProjectKey',
      decide: mayRead('project-keys:GetProjectKey'),
      answers: { 200: KeyUsage },
      async run({ db, resource, services }) {
        const since = new Date(services.clock.now().getTime() - USAGE_DAYS * DAY_MS)
        const days = await auditedDays(db, resource.id, since)
        const last_action = await lastAudited(db, resource.id, since)
        return { days, last_action, last_used_at: resource.last_used_at }
      },
    }),
  ]
}

export const keyOperations: Operation[] = [...keyRoutes('/project-keys'), ...keyRoutes('/api-keys')]
