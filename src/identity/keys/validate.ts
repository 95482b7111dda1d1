import { canSeeProject, raiseForbidden } from '#core/api/access.ts'
import { isIdOf } from '#core/api/kind.ts'
import { parseTime } from '#core/api/lists.ts'
import type { Context } from '#core/api/operation.ts'
import { requireAll } from '#core/api/references.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { type Caller, isAdmin } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { policyKind } from '../policies/model.ts'
import { projectKind } from '../projects/model.ts'
import { type KeyFields, type KeyRow, projectKeyKind } from './model.ts'
import { lockProject } from './store.ts'

/**
 * Keys that a formation declares and a key deploys: they get exactly the limits of the deploying key, never wider ones.
 */

type Deploying = Pick<Context, 'caller' | 'tx'>

/** Returns the deploying key; null for a user. @throws FORBIDDEN if the key was deleted */
async function deployingKey({ caller: { credential }, tx }: Deploying, action: string): Promise<KeyRow | null> {
  if (credential.type !== 'api_key') return null
  return (await projectKeyKind.find(tx, credential.id)) ?? raiseForbidden(null, action)
}

const sortedJson = (texts: readonly string[] | null): string => JSON.stringify(texts && [...texts].sort())
const toMillis = (text: string | null): number | null => (text === null ? null : Date.parse(text))

/**
 * Returns the fields of a new key with the limits of the key that deploys it. @throws FORBIDDEN for different limits
 */
export async function limitToDeployingKey(context: Deploying, action: string, fields: KeyFields): Promise<KeyFields> {
  const key = await deployingKey(context, action)
  if (!key) return fields
  const { policy_ids, allowed_ips, expires_at } = key
  const limits = { policy_ids, allowed_ips, expires_at }
  const given = { ...limits, ...fields }
  const isSame =
    sortedJson(given.policy_ids) === sortedJson(policy_ids) &&
    sortedJson(given.allowed_ips) === sortedJson(allowed_ips) &&
    toMillis(given.expires_at) === toMillis(expires_at)
  return isSame ? { ...fields, ...limits } : raiseForbidden(null, action)
}

/** Requires that a deploying key could have created the key it deletes. @throws FORBIDDEN */
export async function requireDeployable(context: Deploying, action: string, row: KeyRow): Promise<void> {
  const key = await deployingKey(context, action)
  if (key && sortedJson(key.policy_ids) !== sortedJson(row.policy_ids)) raiseForbidden(null, action)
}

const DAY_MS = 86_400_000

type KeyWrite = { tx: Tx; caller: Caller; services: Services }

/**
 * Validates the references and times of a key before a write.
 * @param stored current key, on an update
 * @throws POLICY_NOT_FOUND, VALIDATION_FAILED, and for the project RESOURCE_NOT_FOUND (admins) or FORBIDDEN
 */
export async function validateKeyFields(
  { tx, caller, services }: KeyWrite,
  action: string,
  fields: KeyFields,
  stored?: KeyRow,
): Promise<KeyFields> {
  await requireAll(tx, policyKind, null, fields.policy_ids ?? [])
  const { project_id = stored?.project_id ?? null } = fields
  // Keys for all projects are at home, which copies them to the cells.
  if (project_id === null && services.cell?.number) raiseOtherCell()
  if (project_id && project_id !== stored?.project_id) {
    if (!canSeeProject(caller, project_id)) raise('FORBIDDEN', { meta: { action } })
    if (services.cells && services.cells.ofProject(project_id).cell?.number !== services.cell?.number) raiseOtherCell()
    if (!isIdOf(projectKind, project_id) || !(await lockProject(tx, project_id))) {
      if (isAdmin(caller)) raise('RESOURCE_NOT_FOUND', { meta: { id: project_id } })
      raise('FORBIDDEN', { meta: { action } })
    }
  }
  return { ...fields, ...validateExpiry(services, fields.expires_at, stored?.expires_at) }
}

/** Returns the expiry to store; nothing if it is not written. @throws VALIDATION_FAILED */
export function validateExpiry(
  { clock, config: { KEY_MAX_TTL_DAYS } }: Services,
  given: string | null | undefined,
  stored: string | null | undefined,
): Pick<KeyFields, 'expires_at'> {
  const now = clock.now().getTime()
  const expires_at = given && (parseTime(given) as Date).toISOString()
  if (expires_at && new Date(expires_at).getTime() <= now) raiseInvalidExpiry('must be in the future')
  const end = expires_at === undefined ? stored : expires_at
  if (KEY_MAX_TTL_DAYS > 0 && (!end || new Date(end).getTime() > now + KEY_MAX_TTL_DAYS * DAY_MS))
    raiseInvalidExpiry(`must be within ${KEY_MAX_TTL_DAYS} days (KEY_MAX_TTL_DAYS)`)
  return expires_at === undefined ? {} : { expires_at }
}

const raiseOtherCell = (): never =>
  raiseInvalid({ code: 'INVALID_VALUE', path: 'project_id', message: 'must be a project of the cell of the key' })

const raiseInvalidExpiry = (message: string): never =>
  raiseInvalid({ code: 'INVALID_VALUE', path: 'expires_at', message })
