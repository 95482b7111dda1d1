import { invalid, raise } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/write.ts'
import { principalsChanged } from '../principals.ts'
import { users } from '../users/model.ts'
import { MAX_USER_POLICIES } from './model.ts'
import { lockExistingPolicies, replaceUserPolicies } from './store.ts'

/**
 * Collapses duplicates and sees to it that every id names a policy, which then stays until the transaction ends.
 * Raises POLICY_NOT_FOUND naming the first that does not, VALIDATION_FAILED above `max` of them.
 */
export async function referencedPolicies(tx: Tx, ids: readonly string[], max: number): Promise<string[]> {
  const wanted = [...new Set(ids)]
  if (wanted.length > max)
    invalid({ code: 'TOO_LARGE', path: 'policy_ids', message: `must name at most ${max} policies` })
  if (wanted.length === 0) return wanted
  const found = new Set(await lockExistingPolicies(tx, wanted))
  const missing = wanted.find(id => !found.has(id))
  if (missing !== undefined) raise('POLICY_NOT_FOUND', { meta: { id: missing } })
  return wanted
}

/** The ids attached to a user whose row is now locked. */
async function lockUser(tx: Tx, userId: string): Promise<string[]> {
  const user = await users.find(tx, userId, true)
  if (!user) return raise('RESOURCE_NOT_FOUND', { meta: { id: userId } })
  return user.policy_ids
}

/** Replaces the policies of a user, in the order given. Raises POLICY_NOT_FOUND, VALIDATION_FAILED. */
export async function setUserPolicies(tx: Tx, userId: string, ids: readonly string[]): Promise<void> {
  await lockUser(tx, userId)
  const wanted = await referencedPolicies(tx, ids, MAX_USER_POLICIES)
  await replaceUserPolicies(tx, userId, wanted)
  principalsChanged(tx, `user:${userId}`)
}

/** Attaches one policy behind the others; once it is attached nothing changes. Raises RESOURCE_NOT_FOUND for either id. */
export async function attachPolicy(tx: Tx, userId: string, policyId: string): Promise<void> {
  const attached = await lockUser(tx, userId)
  if (attached.includes(policyId)) return
  const found = await lockExistingPolicies(tx, [policyId])
  if (found.length === 0) raise('RESOURCE_NOT_FOUND', { meta: { id: policyId } })
  const wanted = await referencedPolicies(tx, [...attached, policyId], MAX_USER_POLICIES)
  await replaceUserPolicies(tx, userId, wanted)
  principalsChanged(tx, `user:${userId}`)
}

/** Detaches one policy; one that is not attached changes nothing. */
export async function detachPolicy(tx: Tx, userId: string, policyId: string): Promise<void> {
  const attached = await lockUser(tx, userId)
  if (!attached.includes(policyId)) return
  await replaceUserPolicies(
    tx,
    userId,
    attached.filter(id => id !== policyId),
  )
  principalsChanged(tx, `user:${userId}`)
}
