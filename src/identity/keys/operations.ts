import { BY_NEWEST_ID } from '#core/api/across.ts'
import { columnFilter, equalsFilter } from '#core/api/filters.ts'
import { srn } from '#core/api/kind.ts'
import { parseTime } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { newId } from '#core/base/ids.ts'
import { allOf, sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { ownRows } from '#core/services/copies.ts'
import { principalsChanged } from '../principals/principals.ts'
import { mayChangeKey, mayCreateKey, mayDeleteKey, mayReadKey, mayRotateKey, visibleKeys } from './access.ts'
import { isoTime, KeyInput, KeyPatch, KeyUsage, ProjectKeyWithSecret, projectKeyKind, RotateInput } from './model.ts'
import { findLastAuditedAction, generateKey, insertKey, listAuditedDays, rotateKey, updateKey } from './store.ts'
import { limitToDeployingKey, requireDeployable, validateExpiry, validateKeyFields } from './validate.ts'

const DAY_MS = 86_400_000
const USAGE_DAYS = 30

const tag = 'Project keys'
const gate = 'owner'

const keys = resource(projectKeyKind, { path: '/project-keys', tag, param: 'key_id' })

const updateOperation = (method: 'patch' | 'put') =>
  keys.update({
    method,
    summary: 'Update a key',
    description: 'Omitted fields are unchanged. Tighter limits apply from the next request with the key.',
    gate,
    decide: mayChangeKey,
    body: KeyPatch,
    raises: ['POLICY_NOT_FOUND'],
    async write(_next, context) {
      const { tx, body, stored } = context
      const fields = await validateKeyFields(context, 'project-keys:UpdateProjectKey', body, stored)
      principalsChanged(tx, `key:${stored.id}`)
      return updateKey(tx, stored.id, fields)
    },
  })

const routes: Operation[] = [
  operation({
    id: 'createProjectKey',
    method: 'post',
    path: '/project-keys',
    summary: 'Create a key',
    description:
      'Requires a user credential. A key that deploys a formation can create keys with its own limits. The key string is returned only in this response.',
    tag,
    action: 'project-keys:CreateProjectKey',
    gate,
    creates: projectKeyKind,
    decide: mayCreateKey,
    body: KeyInput,
    bodyOptional: true,
    validate: ({ services, body }) => void validateExpiry(services, body.expires_at, null),
    answers: { 201: ProjectKeyWithSecret },
    raises: ['POLICY_NOT_FOUND'],
    secretAnswer: true,
    async run(context) {
      const { tx, body, caller, audit } = context
      const action = 'project-keys:CreateProjectKey'
      const given = await limitToDeployingKey(context, action, body ?? {})
      const fields = await validateKeyFields(context, action, given)
      const { key, ...stored } = generateKey()
      const row = await insertKey(tx, {
        ...fields,
        ...stored,
        id: newId(projectKeyKind.prefix),
        user_id: caller.user.id,
      })
      // The audit entry belongs to the project to which the key is bound.
      audit.project_id = row.project_id
      audit.resource_srn = srn(row.project_id, projectKeyKind.name, row.id)
      tx.emit(projectKeyKind, 'created', row)
      return { ...projectKeyKind.present(row), secret: key, key }
    },
  }),
  keys.list({
    summary: 'List keys',
    description: 'Returns the keys of the caller, or all keys for an admin. Key strings are never included.',
    gate,
    visible: ({ caller, services }) => allOf([visibleKeys(caller), ownRows(services)]),
    filters: {
      project_id: equalsFilter('project_id'),
      user_id: equalsFilter('user_id'),
      unused_since: columnFilter(
        isoTime.optional().describe('Only keys not used since this time'),
        since =>
          sql.fragment`coalesce(t.last_used_at, t.created_at) < ${(parseTime(since) as Date).toISOString()}::timestamptz`,
      ),
    },
    // IDs are ordered by creation time, so the primary key gives the order.
    order: () => sql.fragment`t.id desc`,
    across: { order: BY_NEWEST_ID },
  }),
  keys.get({
    summary: 'Get a key',
    description: 'Returns the limits, the last use and the first characters of the key, never the whole key string.',
    gate,
    decide: mayReadKey('project-keys:GetProjectKey'),
  }),
  updateOperation('patch'),
  updateOperation('put'),
  keys.remove({
    summary: 'Delete a key',
    description: 'All processes refuse the key from the next request on.',
    gate,
    decide: mayDeleteKey,
    check: (row, context) => requireDeployable(context, 'project-keys:DeleteProjectKey', row),
    removed: ({ id }, { tx }) => principalsChanged(tx, `key:${id}`),
  }),
  keys.action('rotate', {
    summary: 'Rotate a key',
    description: 'Generates a new key string; the old one remains valid for grace_seconds. A key can rotate itself.',
    gate,
    decide: mayRotateKey,
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
    summary: 'Get key usage',
    description: `Returns the audited requests per day for the last ${USAGE_DAYS} days and the last action. Reads are counted only if the project audits them.`,
    tag,
    action: 'project-keys:GetProjectKey',
    gate,
    decide: mayReadKey('project-keys:GetProjectKey'),
    answers: { 200: KeyUsage },
    async run({ db, resource: { id, last_used_at }, services }) {
      const since = new Date(services.clock.now().getTime() - USAGE_DAYS * DAY_MS)
      return {
        days: await listAuditedDays(db, id, since),
        last_action: await findLastAuditedAction(db, id, since),
        last_used_at,
      }
    },
  }),
]

/** Returns the `/api-keys` alias of a route, with the same actions. */
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
