import { AppError } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import { isStorable } from '../../core/api/validate.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { setUserPolicies } from '../policies/attach.ts'
import { Username, type UserRow } from '../users/model.ts'
import { type SignInRequest, signInEntry } from '../users/sign-in-audit.ts'
import { freeUsername, hasUsers, insertUser } from '../users/store.ts'
import type { AccountClaims } from './model.ts'
import { type LinkedUser, linkIdentity } from './store.ts'

/** Leaves what a number behind a username takes. */
const MAX_BASE_LENGTH = 120
/** Names that others take between the search for a free one and the insert. */
const MAX_NAME_RACES = 10

/** An account that cannot become a user, for a reason that the operator can remove. */
export class ProvisioningError extends Error {}

/**
 * Makes an account a user with the default policies and without a password. Null where unknown accounts are refused: by
 * OIDC_AUTO_PROVISION, or because the deployment waits for its first admin.
 * @throws ProvisioningError for an account without a usable name, and for policies that do not exist
 */
export async function provisionUser(
  tx: Tx,
  { config }: Pick<Services, 'config'>,
  { issuer, subject, claims }: AccountClaims,
  { label, request }: { label: string | null; request: SignInRequest },
): Promise<LinkedUser | null> {
  if (!config.OIDC_AUTO_PROVISION || !(await hasUsers(tx))) return null
  const user = await insertNamed(tx, baseName(claims[config.OIDC_USERNAME_CLAIM], config.OIDC_USERNAME_CLAIM))
  await linkIdentity(tx, { issuer, subject, user_id: user.id, label })
  await attachDefaults(tx, user.id, config.OIDC_DEFAULT_POLICY_IDS)
  const detail = { kind: 'oidc', issuer, subject }
  tx.audit(signInEntry('users:CreateUser', 201, user.username, user.id, request, detail))
  return { user_id: user.id, username: user.username, is_disabled: false }
}

function baseName(claim: unknown, name: string): string {
  const text = typeof claim === 'string' ? truncateChars(claim.trim(), MAX_BASE_LENGTH) : ''
  const username = Username.safeParse(text)
  if (!username.success || !isStorable(text)) throw new ProvisioningError(`the claim ${name} is no username`)
  return username.data
}

async function insertNamed(tx: Tx, base: string): Promise<UserRow> {
  for (let tries = 0; tries < MAX_NAME_RACES; tries++) {
    const username = await freeUsername(tx, base)
    const user = username && (await insertUser(tx, { id: newId('user'), username, role: 'user', password_hash: null }))
    if (user) return user
  }
  throw new ProvisioningError(`no username like ${base} is free`)
}

async function attachDefaults(tx: Tx, userId: string, policyIds: readonly string[]): Promise<void> {
  try {
    await setUserPolicies(tx, userId, policyIds)
  } catch (error) {
    if (error instanceof AppError && error.status < 500)
      throw new ProvisioningError(`OIDC_DEFAULT_POLICY_IDS: ${error.message}`)
    throw error
  }
}
