import { type ReferenceEntry, referencesTo } from '#core/api/dependents.ts'
import { containsFilter } from '#core/api/filters.ts'
import { pageOf, pageOfArray, pageResult } from '#core/api/lists.ts'
import { itemOperation, type Operation } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
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

/** Time for which a replaced value can be restored. */
const ROLLBACK_HOURS = 24

const secrets = resource(secretKind, { path: '/secrets', tag: 'Secrets' })

type ValueInput = { value?: string; source?: SecretSource }

/** Raises VALIDATION_FAILED for a store that is not configured. */
function requireConfigured({ config }: Services, { source }: Pick<ValueInput, 'source'>): void {
  if (source && !isConfigured(config, source.type))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'source.type', message: 'is not configured in this deployment' })
}

/** Returns a value in stored form; null for none. @throws VALIDATION_FAILED for a store that is not configured */
function storedValue(
  services: Services,
  { value, source }: ValueInput,
  id: string,
  project: string,
): StoredValue | null {
  if (source) {
    requireConfigured(services, { source })
    return { sealed_value: null, source }
  }
  if (value === undefined) return null
  return { sealed_value: services.secrets.seal(value, sealedForSecret(id, project)), source: null }
}

const updateOperation = (method: 'patch' | 'put') =>
  secrets.update({
    method,
    summary: 'Update a secret',
    description: 'Updates the name, value or expiry. A new value is used from the next call on.',
    body: SecretPatch,
    write({ name, expires_at }, { stored: { id, project_id }, body, tx, services }) {
      const value = storedValue(services, body, id, project_id)
      return value
        ? replaceValue(tx, id, { name, expires_at, ...value }, ROLLBACK_HOURS)
        : secretKind.update(tx, id, { name, expires_at })
    },
  })

export const secretOperations: Operation[] = [
  // secrets_project
  secrets.list({
    summary: 'List secrets',
    description: 'Values are never included.',
    filters: { name: containsFilter('name') },
  }),
  secrets.create({
    summary: 'Create a secret',
    description:
      'Requires either `value`, which is stored encrypted, or `source`. Values of external stores are read at use and cached for a minute.',
    body: SecretInput,
    validate: ({ services, body }) => requireConfigured(services, body),
    make({ body, project, tx, services }) {
      const id = newId(secretKind.prefix)
      const { name, expires_at = null } = body
      const value = storedValue(services, body, id, project) as StoredValue
      return insertSecret(tx, { id, project_id: project, name, expires_at, ...value })
    },
  }),
  secrets.get({
    summary: 'Get a secret',
    description: 'The value is never included.',
  }),
  updateOperation('patch'),
  updateOperation('put'),
  secrets.remove({
    summary: 'Delete a secret',
    description:
      'Fails if other resources reference the secret. With force, also deletes the resources that require it.',
    dependents: 'SECRET_HAS_DEPENDENTS',
  }),
  secrets.action('rollback', {
    summary: 'Restore the previous secret value',
    description: `Possible for ${ROLLBACK_HOURS} hours after a value was replaced; the current value then becomes the previous one. Fails with RESOURCE_NOT_FOUND if there is no previous value.`,
    action: 'secrets:UpdateSecret',
    answers: { 200: Secret },
    async run({ tx, resource: { id } }) {
      const row = await rollbackSecret(tx, id, ROLLBACK_HOURS)
      if (!row)
        return raise('RESOURCE_NOT_FOUND', { message: `Secret ${id} has no previous value to restore`, meta: { id } })
      tx.emit(secretKind, 'updated', row)
      return secretKind.present(row)
    },
  }),
  itemOperation(secretKind, {
    id: 'listSecretReferences',
    method: 'get',
    path: '/secrets/{secret_id}/references',
    summary: 'List secret references',
    description: 'Returns the resources that reference the secret and are affected when it is rotated or deleted.',
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
