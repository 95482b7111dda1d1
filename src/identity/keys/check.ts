import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { parseTime } from '../../core/api/lists.ts'
import { requireAll } from '../../core/api/references.ts'
import type { Tx } from '../../core/db/writer.ts'
import { canSeeProject } from '../../core/iam/access.ts'
import { type Caller, isAdmin } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { policyKind } from '../policies/model.ts'
import { projectKind } from '../projects/model.ts'
import type { KeyFields, KeyRow } from './model.ts'
import { lockProject } from './store.ts'

const DAY_MS = 86_400_000

type Writing = { tx: Tx; caller: Caller; services: Services }

/**
 * Checks the references and times of a key that is being written. Raises POLICY_NOT_FOUND, RESOURCE_NOT_FOUND (admins)
 * or FORBIDDEN for the project, VALIDATION_FAILED.
 * @param stored the key as it is, on an update
 */
export async function checkedFields(
  { tx, caller, services }: Writing,
  action: string,
  fields: KeyFields,
  stored?: KeyRow,
): Promise<KeyFields> {
  await requireAll(tx, policyKind, null, fields.policy_ids ?? [])
  const { project_id } = fields
  if (project_id && project_id !== stored?.project_id) {
    if (!canSeeProject(caller, project_id)) raise('FORBIDDEN', { meta: { action } })
    if (!isIdOf(projectKind, project_id) || !(await lockProject(tx, project_id))) {
      if (isAdmin(caller)) raise('RESOURCE_NOT_FOUND', { meta: { id: project_id } })
      raise('FORBIDDEN', { meta: { action } })
    }
  }
  return { ...fields, ...checkedEnd(services, fields.expires_at, stored?.expires_at) }
}

/** When a key ends, as it is stored; nothing when that is not written. Raises VALIDATION_FAILED. */
function checkedEnd(
  { clock, config: { KEY_MAX_TTL_DAYS } }: Services,
  given: string | null | undefined,
  stored: string | null | undefined,
): Pick<KeyFields, 'expires_at'> {
  const now = clock.now().getTime()
  const expires_at = given && (parseTime(given) as Date).toISOString()
  if (expires_at && new Date(expires_at).getTime() <= now) refuseEnd('must lie in the future')
  const end = expires_at === undefined ? stored : expires_at
  if (KEY_MAX_TTL_DAYS > 0 && (!end || new Date(end).getTime() > now + KEY_MAX_TTL_DAYS * DAY_MS))
    refuseEnd(`must lie within ${KEY_MAX_TTL_DAYS} days (KEY_MAX_TTL_DAYS)`)
  return expires_at === undefined ? {} : { expires_at }
}

const refuseEnd = (message: string): never => raiseInvalid({ code: 'INVALID_VALUE', path: 'expires_at', message })
