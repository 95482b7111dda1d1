import { columnFilter, equalsFilter } from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import { parseTime } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { principalsChanged } from '../principals.ts'
import { mayChange, mayCreate, mayDelete, mayReadKey, mayRotate, visibleKeys } from './access.ts'
import { checkedFields } from './check.ts'
import { requireDeletable, withinDeploying } from './deployed.ts'
import { isoTime, KeyInput, KeyPatch, KeyUsage, ProjectKeyWithSecret, projectKeyKind, RotateInput } from './model.ts'
import { generateKey } from './secret.ts'
import { auditedDays, insertKey, lastAudited, rotateKey, updateKey } from './store.ts'

const DAY_MS = 86_400_000
const USAGE_DAYS = 30

const tag = 'Project keys'
const gate = 'owner'

const keys = resource(projectKeyKind, { path: '/project-keys', tag, param: 'key_id' })

const change = (method: 'patch' | 'put') =>
  keys.update({
    method,
    summary: 'Change the fields named of a key',
    description: 'Fields that are left out keep their values. What is narrowed binds at the next request with the key.',
    gate,
    decide: mayChange,
    body: KeyPatch,
    raises: ['POLICY_NOT_FOUND'],
    async write(_next, context) {
      const { tx, body, stored } = context
      const fields = await checkedFields(context, 'project-keys:UpdateProjectKey', body, stored)
      principalsChanged(tx, `key:${stored.id}`)
      return updateKey(tx, stored.id, fields)
    },
  })

const routes: Operation[] = [
  operation({
    id: 'createProjectKey',
    method: 'post',
    path: '/project-keys',
    summary: 'Mint a key that acts for the caller',
    description:
      'Needs a user credential; a key that deploys a formation makes keys with its own limits. The key string is in this answer only.',
    tag,
    action: 'project-keys:CreateProjectKey',
    gate,
    creates: projectKeyKind,
    decide: mayCreate,
    body: KeyInput,
    bodyOptional: true,
    answers: { 201: ProjectKeyWithSecret },
    raises: ['POLICY_NOT_FOUND'],
    secretAnswer: true,
    async run(context) {
      const { tx, body, caller, audit } = context
      const action = 'project-keys:CreateProjectKey'
      const given = await withinDeploying(context, action, body ?? {})
      const fields = await checkedFields(context, action, given)
      const { key, ...stored } = generateKey()
      const row = await insertKey(tx, { ...fields, ...stored, id: newId('key'), user_id: caller.user.id })
      // The project of the audit entry is the one that the key is bound to.
      audit.project_id = row.project_id
      audit.resource_srn = srn(row.project_id, projectKeyKind.name, row.id)
      tx.emit(projectKeyKind, 'created', row)
      return { ...projectKeyKind.present(row), secret: key, key }
    },
  }),
  keys.list({
    summary: "List keys: a user's own, for an admin all",
    description: 'The strings of keys are never shown here.',
    gate,
    visible: ({ caller }) => visibleKeys(caller),
    filters: {
      project_id: equalsFilter('project_id'),
      user_id: equalsFilter('user_id'),
      unused_since: columnFilter(
        isoTime.optional().describe('Only keys that were not used at or after this time'),
        since =>
          sql.fragment`coalesce(t.last_used_at, t.created_at) < ${(parseTime(since) as Date).toISOString()}::timestamptz`,
      ),
    },
    // Ids rise with creation time, so the primary key gives the order.
    order: () => sql.fragment`t.id desc`,
  }),
  keys.get({
    summary: 'Read a key',
    description: 'Shows its rights, its last use and the start of its string, never the string.',
    gate,
    decide: mayReadKey('project-keys:GetProjectKey'),
  }),
  change('patch'),
  change('put'),
  keys.remove({
    summary: 'Delete a key',
    description: 'Requests with the key are refused from the next one on, in every process.',
    gate,
    decide: mayDelete,
    check: (row, context) => requireDeletable(context, 'project-keys:DeleteProjectKey', row),
    removed: ({ id }, { tx }) => principalsChanged(tx, `key:${id}`),
  }),
  keys.action('rotate', {
    summary: 'Replace the key string',
    description: 'The old string works for grace_seconds more. A key may rotate itself.',
    gate,
    decide: mayRotate,
    body: RotateInput,
    bodyOptional: true,
    answers: { 200: ProjectKeyWithSecret },
    secretAnswer: true,
    async run({ tx, body, resource: { id }, services }) {
      const seconds = body?.grace_seconds ?? 0
      const { key, ...next } = generateKey()
      const until = new Date(services.clock.now().getTime() + seconds * 1000)
      await projectKeyKind.lock(tx, id)
      const row = await rotateKey(tx, id, next, seconds > 0 ? until : null)
      principalsChanged(tx, `key:${id}`)
      tx.emit(projectKeyKind, 'updated', row)
      return { ...projectKeyKind.present(row), secret: key, key }
    },
  }),
  itemOperation(projectKeyKind, {
    id: 'getProjectKeyUsage',
    method: 'get',
    path: '/project-keys/{key_id}/usage',
    param: 'key_id',
    summary: `Audited requests of a key per day, the last ${USAGE_DAYS} days, and its last action`,
    description: 'Counts what the audit log holds: changes, and reads where the project audits them.',
    tag,
    action: 'project-keys:GetProjectKey',
    gate,
    decide: mayReadKey('project-keys:GetProjectKey'),
    answers: { 200: KeyUsage },
    async run({ db, resource: { id, last_used_at }, services }) {
      const since = new Date(services.clock.now().getTime() - USAGE_DAYS * DAY_MS)
      return { days: await auditedDays(db, id, since), last_action: await lastAudited(db, id, since), last_used_at }
    },
  }),
]

/** Every route answers below `/api-keys` too, with the same actions. */
const alias = (route: Operation): Operation => ({
  ...route,
  id: route.id.replace('ProjectKey', 'ApiKey'),
  aliasOf: route.id,
  path: route.path.replace('/project-keys', '/api-keys'),
  summary: `${route.summary} (alias of /project-keys)`,
  internal: true,
  mcp: false,
})

export const keyOperations: Operation[] = [...routes, ...routes.map(alias)]
