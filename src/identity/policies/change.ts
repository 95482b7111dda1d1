import { raise } from '../../core/errors.ts'
import type { Tx } from '../../core/write.ts'
import { principalsChanged } from '../principals.ts'
import { type PolicyRow, policies } from './model.ts'
import { deletePolicy, policyHolders, updatePolicy } from './store.ts'

/** A policy whose row is now locked, and which may be changed. Raises RESOURCE_NOT_FOUND, FORBIDDEN when it is managed. */
async function lockPolicy(tx: Tx, id: string, action: string): Promise<PolicyRow> {
  const policy = await policies.find(tx, id, true)
  if (!policy) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  if (policy.managed) raise('FORBIDDEN', { meta: { action } })
  return policy
}

/** Writes the fields given as the next version of a policy; `by` is the principal. Every holder is judged by it at once. */
export async function changePolicy(
  tx: Tx,
  id: string,
  change: { name?: string | null; description?: string | null; document?: unknown },
  by: string,
): Promise<PolicyRow> {
  const policy = await lockPolicy(tx, id, 'policies:UpdatePolicy')
  const { name = policy.name, description = policy.description, document = policy.document } = change
  principalsChanged(tx, `policy:${id}`)
  return updatePolicy(tx, id, { name, description, document, by })
}

/** Deletes a policy that nothing holds. Raises POLICY_HAS_DEPENDENTS: without it a key could do more than before. */
export async function removePolicy(tx: Tx, id: string): Promise<void> {
  await lockPolicy(tx, id, 'policies:DeletePolicy')
  const { counts, sample_ids } = await policyHolders(tx, id)
  const all = { ...counts, triggers: 0, webhooks: 0 }
  if (Object.values(all).some(count => count > 0))
    raise('POLICY_HAS_DEPENDENTS', { meta: { counts: all, sample_ids, forcible: false } })
  await deletePolicy(tx, id)
}
