import { requireAll } from '#core/api/references.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Tx } from '#core/writes/writer.ts'
import { principalsChanged } from '../principals/principals.ts'
import { userKind } from '../users/model.ts'
import { MAX_USER_POLICIES, policyKind } from './model.ts'
import { listAttachedPolicyIds, replaceUserPolicies } from './store.ts'

/** Replaces the ordered policies of a user; the caller holds the user's row lock. */
async function replacePolicies(tx: Tx, userId: string, policyIds: readonly string[]): Promise<void> {
  await replaceUserPolicies(tx, userId, policyIds)
  principalsChanged(tx, `user:${userId}`)
}

function refuseTooMany(policyIds: readonly string[]): void {
  if (policyIds.length > MAX_USER_POLICIES)
    raiseInvalid({ code: 'TOO_LARGE', path: 'policy_ids', message: `must have at most ${MAX_USER_POLICIES} items` })
}

/** Replaces the policies of a user in the given order. @throws POLICY_NOT_FOUND, VALIDATION_FAILED */
export async function setUserPolicies(tx: Tx, userId: string, ids: readonly string[]): Promise<void> {
  await userKind.lock(tx, userId)
  const unique = [...new Set(ids)]
  refuseTooMany(unique)
  await requireAll(tx, policyKind, null, unique)
  await replacePolicies(tx, userId, unique)
}

/**
 * Attaches a policy after the others; does nothing if it is already attached. @throws RESOURCE_NOT_FOUND for either ID
 */
export async function attachPolicy(tx: Tx, userId: string, policyId: string): Promise<void> {
  const attached = await lockAttached(tx, userId)
  if (attached.includes(policyId)) return
  if (!(await policyKind.reference(tx, policyId, null))) raise('RESOURCE_NOT_FOUND', { meta: { id: policyId } })
  const unique = [...attached, policyId]
  refuseTooMany(unique)
  await replacePolicies(tx, userId, unique)
}

/** Detaches a policy; does nothing if it is not attached. */
export async function detachPolicy(tx: Tx, userId: string, policyId: string): Promise<void> {
  const attached = await lockAttached(tx, userId)
  if (!attached.includes(policyId)) return
  await replacePolicies(
    tx,
    userId,
    attached.filter(id => id !== policyId),
  )
}

/**
 * Locks a user and returns the attached policy IDs. They are read after the lock: a statement that waits for the lock
 * would see the IDs from its start.
 */
async function lockAttached(tx: Tx, userId: string): Promise<readonly string[]> {
  await userKind.lock(tx, userId)
  return listAttachedPolicyIds(tx, userId)
}
