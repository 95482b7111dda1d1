import { UniqueIntegrityConstraintViolationError } from 'slonik'
import type { Clock } from '#core/base/clock.ts'
import { raise } from '#core/base/errors.ts'
import type { Tx } from '#core/writes/writer.ts'
import { CONSOLE } from '../grants/built-in-clients.ts'
import { endUserGrants } from '../grants/store.ts'
import { principalsChanged } from '../principals/principals.ts'
import { type Role, type UserRow, userKind } from './model.ts'
import { lockAdmins, updateUser } from './store.ts'

/** Requires another admin who can sign in. @throws LAST_ADMIN_REQUIRED */
function requireAnotherAdmin(admins: readonly string[], id: string): void {
  if (admins.includes(id) && admins.length === 1) raise('LAST_ADMIN_REQUIRED')
}

/**
 * Updates names, role or disabled state of a user. A new username or role ends the user's tokens. These changes and
 * disabling end the sign-ins in the console.
 * @throws NAME_CONFLICT, RESOURCE_NOT_FOUND, and LAST_ADMIN_REQUIRED for the last admin who can sign in
 */
export async function updateUserFields(
  tx: Tx,
  clock: Clock,
  id: string,
  change: { username?: string; role?: Role; display_name?: string | null; disabled?: boolean },
): Promise<UserRow> {
  // Lock order: the admins first, so that a transaction that waits here holds no other lock.
  const admins = change.role === 'user' || change.disabled ? await lockAdmins(tx) : null
  const user = await userKind.lock(tx, id)
  if (admins) requireAnotherAdmin(admins, id)
  const username = change.username ?? user.username
  const role = change.role ?? user.role
  const disabled_at =
    change.disabled === undefined
      ? user.disabled_at
      : change.disabled
        ? (user.disabled_at ?? clock.now().toISOString())
        : null
  const endTokens = username !== user.username || role !== user.role
  const display_name = change.display_name === undefined ? user.display_name : change.display_name
  if (!endTokens && disabled_at === user.disabled_at && display_name === user.display_name) return user
  if (endTokens || disabled_at !== user.disabled_at) principalsChanged(tx, `user:${id}`)
  if (endTokens || (disabled_at && !user.disabled_at)) await endConsoleSignIns(tx, id)
  try {
    return await updateUser(tx, id, { username, role, display_name, disabled_at, endTokens })
  } catch (error) {
    if (error instanceof UniqueIntegrityConstraintViolationError)
      return raise('NAME_CONFLICT', { message: `Username ${username} is already in use`, meta: { username } })
    throw error
  }
}

/**
 * Ends the sign-ins of a user in the console, except the current one: what ends the tokens of a user must end these as
 * well. The caller announces the change.
 */
export const endConsoleSignIns = (tx: Tx, userId: string, except: string | null = null): Promise<unknown> =>
  endUserGrants(tx, { userId, clientId: CONSOLE, except, reason: 'tokens_revoked' })

/** Deletes a user with keys and attachments. @throws LAST_ADMIN_REQUIRED, RESOURCE_NOT_FOUND */
export async function deleteUser(tx: Tx, id: string): Promise<void> {
  const admins = await lockAdmins(tx)
  await userKind.lock(tx, id)
  requireAnotherAdmin(admins, id)
  await userKind.delete(tx, id)
  principalsChanged(tx, `user:${id}`)
}
