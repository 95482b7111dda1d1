import { isDeepStrictEqual } from 'node:util'
import { changesBetween } from '../../core/api/compare.ts'
import { invalid, raise } from '../../core/api/errors.ts'
import { kinds } from '../../core/api/kind.ts'
import type { Tx } from '../../core/db/write.ts'
import { principalsChanged } from '../principals.ts'
import { checkDocument, type PolicyRow, type PolicyVersion, policies } from './model.ts'
import { deletePolicy, findPolicyVersions, policyHolders, updatePolicy } from './store.ts'

/** A policy whose row is now locked, and which may be changed. Raises RESOURCE_NOT_FOUND, FORBIDDEN when it is managed. */
async function lockPolicy(tx: Tx, id: string, action: string): Promise<PolicyRow> {
  const policy = await policies.find(tx, id, true)
  if (!policy) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  if (policy.managed) raise('FORBIDDEN', { meta: { action } })
  return policy
}

type Change = { name?: string | null; description?: string | null; document?: unknown }

/**
 * Writes the fields given as the next version of a policy; every holder is judged by it at once. What changes nothing
 * makes no version. `by` is the principal's id. Raises VALIDATION_FAILED for a document that says nothing we know.
 */
export async function changePolicy(tx: Tx, id: string, change: Change, by: string): Promise<PolicyRow> {
  if (change.document !== undefined) checkDocument(change.document)
  const policy = await lockPolicy(tx, id, 'policies:UpdatePolicy')
  const before = fields(policy)
  const after = {
    name: change.name === undefined ? before.name : change.name,
    description: change.description === undefined ? before.description : change.description,
    document: change.document ?? before.document,
  }
  if (isDeepStrictEqual(before, after)) return policy
  principalsChanged(tx, `policy:${id}`)
  return updatePolicy(tx, id, { ...after, by })
}

/** Writes an earlier version as the next one. Its document must still be one that could be written today. */
export async function restorePolicy(tx: Tx, id: string, number: number, by: string): Promise<PolicyRow> {
  const [version] = await findPolicyVersions(tx, id, [number])
  if (!version) return raise('RESOURCE_NOT_FOUND', { meta: { id, version: number } })
  return changePolicy(tx, id, fields(version), by)
}

/** What a version says beside its number and its author. */
const fields = ({ name, description, document }: PolicyRow | PolicyVersion) => ({ name, description, document })

/** What changed from one version to another. Raises RESOURCE_NOT_FOUND for a number that does not exist. */
export async function comparePolicyVersions(
  db: Parameters<typeof findPolicyVersions>[0],
  id: string,
  from: number,
  to: number,
) {
  const versions = new Map((await findPolicyVersions(db, id, [from, to])).map(found => [found.version, found]))
  const version = (number: number): PolicyVersion =>
    versions.get(number) ?? raise('RESOURCE_NOT_FOUND', { meta: { id, version: number } })
  return { from, to, changes: changesBetween(fields(version(from)), fields(version(to))) }
}

/** A version number as a path names it. Raises VALIDATION_FAILED. */
export function versionNumber(text: string): number {
  const number = Number(text)
  if (!/^\d{1,9}$/.test(text) || number < 1)
    invalid({ code: 'INVALID_VALUE', path: 'version', message: 'must be a positive integer' })
  return number
}

/** Deletes a policy that nothing holds. Raises POLICY_HAS_DEPENDENTS: without it a key could do more than before. */
export async function removePolicy(tx: Tx, id: string): Promise<void> {
  await lockPolicy(tx, id, 'policies:DeletePolicy')
  const holders = await policyHolders(tx, id)
  if (holders.length > 0) {
    const counts: Record<string, number> = { users: 0, project_keys: 0, triggers: 0, webhooks: 0 }
    const sample_ids: Record<string, string[]> = {}
    for (const { type, count, ids } of holders) {
      const plural = kinds.find(type)?.plural ?? type
      counts[plural] = count
      sample_ids[plural] = ids
    }
    raise('POLICY_HAS_DEPENDENTS', { meta: { counts, sample_ids, forcible: false } })
  }
  await deletePolicy(tx, id)
}
