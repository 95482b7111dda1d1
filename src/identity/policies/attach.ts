import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { requireAll } from '../../core/api/references.ts'
import type { Tx } from '../../core/db/writer.ts'
import { principalsChanged } from '../principals.ts'
import { userKind } from '../users/model.ts'
import { MAX_USER_POLICIES, policyKind } from './model.ts'
import { attachedPolicies, replaceUserPolicies } from './store.ts'

/** Writes the policies of a user, in their order; the caller holds the user's row. */
async function replace(tx: Tx, userId: string, policyIds: readonly string[]): Promise<void> {
  await replaceUserPolicies(tx, userId, policyIds)
  principalsChanged(tx, `user:${userId}`)
}

function refuseTooMany(policyIds: readonly string[]): void {
  if (policyIds.length > MAX_USER_POLICIES)
    raiseInvalid({ code: 'TOO_LARGE', path: 'policy_ids', message: `must name at most ${MAX_USER_POLICIES} policies` })
}

/** Replaces the policies of a user, in the order given. Raises POLICY_NOT_FOUND, VALIDATION_FAILED. */
export async function setUserPolicies(tx: Tx, userId: string, ids: readonly string[]): Promise<void> {
  await userKind.lock(tx, userId)
  const wanted = [...new Set(ids)]
  refuseTooMany(wanted)
  await requireAll(tx, policyKind, null, wanted)
  await replace(tx, userId, wanted)
}

/** Attaches one policy behind the others; once it is attached nothing changes. Raises RESOURCE_NOT_FOUND for either id. */
export async function attachPolicy(tx: Tx, userId: string, policyId: string): Promise<void> {
  const attached = await lockAttached(tx, userId)
  if (attached.includes(policyId)) return
  if (!(await policyKind.reference(tx, policyId, null))) raise('RESOURCE_NOT_FOUND', { meta: { id: policyId } })
  const wanted = [...attached, policyId]
  refuseTooMany(wanted)
  await replace(tx, userId, wanted)
}

/** Detaches one policy; one that is not attached changes nothing. */
export async function detachPolicy(tx: Tx, userId: string, policyId: string): Promise<void> {
  const attached = await lockAttached(tx, userId)
  if (!attached.includes(policyId)) return
  await replace(
    tx,
    userId,
    attached.filter(id => id !== policyId),
  )
}

/**
 * The ids attached to a user whose row is now locked. Read after the lock: a statement that waited for it would still see
 * them as they were when it began.
 */
async function lockAttached(tx: Tx, userId: string): Promise<readonly string[]> {
  await userKind.lock(tx, userId)
  return attachedPolicies(tx, userId)
}
