import { isAllowed, visibleRows } from '#core/api/access.ts'
import type { GateVerdict } from '#core/api/operation.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { type Caller, isAdmin } from '#core/iam/caller.ts'
import { type KeyRow, projectKeyKind } from './model.ts'

/**
 * Access to keys: the owner and admins with a user token may read and update one; a key or grant of the owner may read
 * it.
 */

/**
 * Returns the role in which the caller reaches a key: a user, or a credential of its owner; null if the key is hidden.
 */
function reachedAs(caller: Caller, row: KeyRow): 'user' | 'credential' | null {
  if (caller.credential.type === 'user') return row.user_id === caller.user.id || isAdmin(caller) ? 'user' : null
  const reachable = caller.project_id === null || caller.project_id === row.project_id
  return row.user_id === caller.user.id && reachable ? 'credential' : null
}

export const mayReadKey =
  (action: string) =>
  (caller: Caller, row: KeyRow): GateVerdict => {
    const as = reachedAs(caller, row)
    if (as === null) return 'hide'
    return as === 'user' || isAllowed(caller, action, { kind: projectKeyKind, row }) ? 'allow' : 'forbid'
  }

export const mayChangeKey = (caller: Caller, row: KeyRow): GateVerdict => {
  const as = reachedAs(caller, row)
  return as === null ? 'hide' : as === 'user' ? 'allow' : 'forbid'
}

const isDeployedByKey = ({ credential }: Caller, surface: string): boolean =>
  credential.type === 'api_key' && surface === 'formation'

/** Users may create keys; a key may create the keys that its formations declare. */
export const mayCreateKey = (caller: Caller, _row: unknown, surface: string): GateVerdict =>
  caller.credential.type === 'user' || isDeployedByKey(caller, surface) ? 'allow' : 'forbid'

export const mayDeleteKey = (caller: Caller, row: KeyRow, surface: string): GateVerdict =>
  isDeployedByKey(caller, surface) && reachedAs(caller, row) !== null ? 'allow' : mayChangeKey(caller, row)

/** A key may rotate itself. */
export const mayRotateKey = (caller: Caller, row: KeyRow): GateVerdict =>
  caller.credential.type === 'api_key' && caller.credential.id === row.id ? 'allow' : mayChangeKey(caller, row)

/**
 * Condition for visible keys: a user's own, all for an admin; for a credential, its owner's keys that its policies
 * permit.
 */
export function visibleKeys(caller: Caller): Fragment {
  const own = sql.fragment`t.user_id = ${caller.user.id}`
  if (caller.credential.type === 'user') return isAdmin(caller) ? sql.fragment`true` : own
  const { rows } = visibleRows(
    caller,
    { action: 'project-keys:ListProjectKeys', type: projectKeyKind.name, project: caller.project_id },
    { project: sql.fragment`coalesce(t.project_id, '*')`, id: sql.fragment`t.id` },
  )
  return sql.fragment`${own} and ${rows}`
}
