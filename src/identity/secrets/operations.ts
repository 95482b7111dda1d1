import { type ReferenceEntry, referencesTo } from '../../core/api/dependents.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { containsFilter } from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { pageOf, pageOfArray, pageResult } from '../../core/api/lists.ts'
import { itemOperation, type Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { isConfigured } from './external.ts'
import {
  Secret,
  SecretInput,
  SecretPatch,
  SecretReference,
  type SecretSource,
  sealedForSecret,
  secretKind,
} from './model.ts'
import { insertSecret, replaceValue, rollbackSecret, type StoredValue } from './store.ts'

/** How long a replaced value can be restored. */
const ROLLBACK_HOURS = 24

const secrets = resource(secretKind, { path: '/secrets', tag: 'Secrets' })

type Given = { value?: string; source?: SecretSource }

/** A value as it is stored; null for none. Raises VALIDATION_FAILED for a store that the deployment is not set up for. */
function stored(services: Services, { value, source }: Given, id: string, project: string): StoredValue | null {
  if (source) {
    if (!isConfigured(services.config, source.type))
      raiseInvalid({
        code: 'INVALID_VALUE',
        path: 'source.type',
        message: 'is a store that this deployment is not set up for',
      })
    return { sealed_value: null, source }
  }
  if (value === undefined) return null
  return { sealed_value: services.secrets.seal(value, sealedForSecret(id, project)), source: null }
}

const change = (method: 'patch' | 'put') =>
  secrets.update({
    method,
    summary: 'Rename a secret, replace its value or change when it expires',
    description: 'A new value is used from the next call on.',
    body: SecretPatch,
    write({ name, expires_at }, { stored: { id, project_id }, body, tx, services }) {
      const value = stored(services, body, id, project_id)
      return value
        ? replaceValue(tx, id, { name, expires_at, ...value }, ROLLBACK_HOURS)
        : secretKind.update(tx, id, { name, expires_at })
    },
  })

export const secretOperations: Operation[] = [
  // secrets_project
  secrets.list({
    summary: 'List secrets; values are never shown',
    description: 'Records carry names and versions, by which other resources refer to a secret.',
    filters: { name: containsFilter('name') },
  }),
  secrets.create({
    summary: 'Store a value encrypted, or say which external store has it',
    description:
      'Either `value` or `source`. What lies in an external store is read at use and kept in memory for a minute.',
    body: SecretInput,
    make({ body, project, tx, services }) {
      const id = newId(secretKind.prefix)
      const { name, expires_at = null } = body
      const value = stored(services, body, id, project) as StoredValue
      return insertSecret(tx, { id, project_id: project, name, expires_at, ...value })
    },
  }),
  secrets.get({
    summary: 'Read a secret; its value is never shown',
    description: 'Shows the name, the version and when it was rotated.',
  }),
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
    description: 'Rotating or deleting a secret takes effect in all of them.',
    tag: 'Secrets',
    action: 'secrets:GetSecret',
    paged: true,
    timed: false,
    answers: { 200: pageOf(SecretReference) },
    async run(context) {
      const relation = referencesTo(secretKind, context.resource.id)
      if (!relation) return pageOfArray([], context.page)
      return pageResult<ReferenceEntry>(context, {
        columns: sql.fragment`r.type, r.id, r.field`,
        from: sql.fragment`${relation} r`,
        order: sql.fragment`r.id desc, r.field`,
        present: row => row,
      })
    },
  }),
]
