import { z } from 'zod'
import { type ReferenceEntry, referencesTo, refuseDependents } from '../../core/api/dependents.ts'
import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { booleanQuery, listTable, page, pageOf, pageOfArray, textFilter } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { sql, substring } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { Secret, SecretInput, SecretPatch, SecretReference, type SecretRow, sealedFor, secret } from './model.ts'
import { deleteSecret, dropReplacedValues, insertSecret, rollbackSecret, updateSecret } from './store.ts'

const tag = 'Secrets'
/** How long a replaced value can be rolled back to. */
const ROLLBACK_HOURS = 24

const gone = (id: string): never => raise('RESOURCE_NOT_FOUND', { meta: { id } })

/** Forgets replaced values after their time, for a periodic tick. @returns how many */
export const sweepReplacedValues = (services: Services): Promise<number> => dropReplacedValues(services.pool)

const list = operation({
  id: 'listSecrets',
  method: 'get',
  path: '/secrets',
  summary: 'List secrets; values are never shown',
  tag,
  action: 'secrets:ListSecrets',
  lists: secret,
  query: z.object({ project_id: textFilter, name: textFilter }),
  answers: { 200: pageOf(Secret) },
  // Index secrets_project.
  run: context =>
    listTable<SecretRow>(context, {
      table: 'secrets',
      columns: secret.columns,
      where: [context.query.name !== undefined && sql.fragment`t.name ilike ${substring(context.query.name)}`],
      present: secret.present,
    }),
})

const create = operation({
  id: 'createSecret',
  method: 'post',
  path: '/secrets',
  summary: 'Store a value encrypted',
  tag,
  action: 'secrets:CreateSecret',
  creates: secret,
  body: SecretInput,
  answers: { 201: Secret },
  async run({ tx, body, project, services }) {
    const id = newId('sec')
    const project_id = project as string
    const sealed_value = services.secrets.seal(body.value, sealedFor(id, project_id))
    const row = await insertSecret(tx, { id, project_id, name: body.name, sealed_value })
    tx.emit(secret, 'created', row)
    return secret.present(row)
  },
})

const get = itemOperation(secret, {
  id: 'getSecret',
  method: 'get',
  path: '/secrets/{secret_id}',
  summary: 'Read a secret; its value is never shown',
  tag,
  action: 'secrets:GetSecret',
  answers: { 200: Secret },
  run: async ({ resource }) => secret.present(resource),
})

const change = (method: 'patch' | 'put') =>
  itemOperation(secret, {
    id: method === 'patch' ? 'updateSecret' : 'replaceSecret',
    method,
    path: '/secrets/{secret_id}',
    summary: 'Rename a secret or replace its value',
    description: 'A new value is used from the next call on.',
    tag,
    action: 'secrets:UpdateSecret',
    body: SecretPatch,
    answers: { 200: Secret },
    async run({ tx, body, resource, services }) {
      const { name, value } = body
      const sealed_value =
        value === undefined ? undefined : services.secrets.seal(value, sealedFor(resource.id, resource.project_id))
      const row = await updateSecret(tx, resource.id, { name, sealed_value }, ROLLBACK_HOURS)
      if (!row) return gone(resource.id)
      tx.emit(secret, 'updated', row)
      return secret.present(row)
    },
  })

const remove = itemOperation(secret, {
  id: 'deleteSecret',
  method: 'delete',
  path: '/secrets/{secret_id}',
  summary: 'Delete a secret; with force, what cannot be without it too',
  description: 'AI providers that name it, as their secret or in a header, keep it from being deleted.',
  tag,
  action: 'secrets:DeleteSecret',
  query: z.object({ force: booleanQuery.default(false) }),
  answers: { 204: null },
  raises: ['SECRET_HAS_DEPENDENTS'],
  async run({ tx, query, resource }) {
    const row = await secret.find(tx, resource.id, true)
    if (!row) return gone(resource.id)
    await refuseDependents(tx, secret, row.id, { force: query.force, code: 'SECRET_HAS_DEPENDENTS' })
    await deleteSecret(tx, row.id)
    tx.emit(secret, 'deleted', row)
  },
})

const rollback = itemOperation(secret, {
  id: 'rollbackSecret',
  method: 'post',
  path: '/secrets/{secret_id}/rollback',
  summary: `Restore the value before the last one, up to ${ROLLBACK_HOURS} hours after it was replaced`,
  description: 'The value it replaces can be restored in the same way. Without a kept value: RESOURCE_NOT_FOUND.',
  tag,
  action: 'secrets:UpdateSecret',
  answers: { 200: Secret },
  async run({ tx, resource }) {
    const row = await rollbackSecret(tx, resource.id, ROLLBACK_HOURS)
    if (!row) return raise('RESOURCE_NOT_FOUND', { message: 'No replaced value is kept', meta: { id: resource.id } })
    tx.emit(secret, 'updated', row)
    return secret.present(row)
  },
})

const references = itemOperation(secret, {
  id: 'listSecretReferences',
  method: 'get',
  path: '/secrets/{secret_id}/references',
  summary: 'List what names a secret',
  tag,
  action: 'secrets:GetSecret',
  paged: true,
  timed: false,
  answers: { 200: pageOf(SecretReference) },
  async run(context) {
    const relation = referencesTo(secret, context.resource.id)
    if (!relation) return pageOfArray([], context.page)
    return page<ReferenceEntry>(context, {
      columns: sql.fragment`r.type, r.id, r.field`,
      from: sql.fragment`${relation} r`,
      where: [],
      order: sql.fragment`r.id desc, r.field`,
      present: row => row,
    })
  },
})

export const secretOperations: Operation[] = [
  list,
  create,
  get,
  change('patch'),
  change('put'),
  remove,
  rollback,
  references,
]
