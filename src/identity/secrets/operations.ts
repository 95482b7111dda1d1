import { type ReferenceEntry, referencesTo } from '../../core/api/dependents.ts'
import { raise } from '../../core/api/errors.ts'
import { contains } from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { page, pageOf, pageOfArray } from '../../core/api/lists.ts'
import { itemOperation, type Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { Secret, SecretInput, SecretPatch, SecretReference, sealedFor, secretKind } from './model.ts'
import { insertSecret, replaceValue, rollbackSecret } from './store.ts'

/** How long a replaced value can be restored. */
const ROLLBACK_HOURS = 24

const secrets = resource(secretKind, { path: '/secrets', tag: 'Secrets' })

const change = (method: 'patch' | 'put') =>
  secrets.update({
    method,
    summary: 'Rename a secret or replace its value',
    description: 'A new value is used from the next call on.',
    body: SecretPatch,
    write({ name }, { stored: { id, project_id }, body: { value }, tx, services }) {
      if (value === undefined) return secretKind.update(tx, id, { name })
      const sealed_value = services.secrets.seal(value, sealedFor(id, project_id))
      return replaceValue(tx, id, { name, sealed_value }, ROLLBACK_HOURS)
    },
  })

export const secretOperations: Operation[] = [
  // secrets_project
  secrets.list({ summary: 'List secrets; values are never shown', filters: { name: contains('name') } }),
  secrets.create({
    summary: 'Store a value encrypted',
    body: SecretInput,
    make({ body: { name, value }, project, tx, services }) {
      const id = newId(secretKind.prefix)
      const sealed_value = services.secrets.seal(value, sealedFor(id, project))
      return insertSecret(tx, { id, project_id: project, name, sealed_value })
    },
  }),
  secrets.get({ summary: 'Read a secret; its value is never shown' }),
  change('patch'),
  change('put'),
  secrets.remove({
    summary: 'Delete a secret; with force, what cannot be without it too',
    description: 'AI providers that name it, as their secret or in a header, keep it from being deleted.',
    dependents: 'SECRET_HAS_DEPENDENTS',
  }),
  secrets.action('rollback', {
    summary: `Restore the value before the last one, up to ${ROLLBACK_HOURS} hours after it was replaced`,
    description: 'The value it replaces can be restored in the same way. Without a kept value: RESOURCE_NOT_FOUND.',
    action: 'secrets:UpdateSecret',
    answers: { 200: Secret },
    async run({ tx, resource: { id } }) {
      const row = await rollbackSecret(tx, id, ROLLBACK_HOURS)
      if (!row) return raise('RESOURCE_NOT_FOUND', { message: 'No replaced value is kept', meta: { id } })
      tx.emit(secretKind, 'updated', row)
      return secretKind.present(row)
    },
  }),
  itemOperation(secretKind, {
    id: 'listSecretReferences',
    method: 'get',
    path: '/secrets/{secret_id}/references',
    summary: 'List what names a secret',
    tag: 'Secrets',
    action: 'secrets:GetSecret',
    paged: true,
    timed: false,
    answers: { 200: pageOf(SecretReference) },
    async run(context) {
      const relation = referencesTo(secretKind, context.resource.id)
      if (!relation) return pageOfArray([], context.page)
      return page<ReferenceEntry>(context, {
        columns: sql.fragment`r.type, r.id, r.field`,
        from: sql.fragment`${relation} r`,
        order: sql.fragment`r.id desc, r.field`,
        present: row => row,
      })
    },
  }),
]
