import { isDeepStrictEqual } from 'node:util'
import { changesBetween } from '#core/api/compare.ts'
import { kinds } from '#core/api/kind.ts'
import { countsText, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { noVersion } from '#core/resources/version.ts'
import { requireNoMoves } from '#core/services/project-entries.ts'
import type { Tx } from '#core/writes/writer.ts'
import { principalsChanged } from '../principals/principals.ts'
import { type PolicyRow, type PolicyVersion, policyDocumentProblems } from './model.ts'
import { findPolicyVersions, listPolicyHolders, updatePolicy } from './store.ts'

/** Refuses to change a policy that ships with the deployment. @throws FORBIDDEN */
function refuseManaged(policy: PolicyRow, action: string): void {
  if (policy.managed) raise('FORBIDDEN', { meta: { action } })
}

type PolicyChange = { name?: string | null; description?: string | null; document?: unknown }

/**
 * Writes the given fields as the next version of a policy; the caller holds its row lock. The new version applies
 * immediately to every holder. Unchanged fields create no version.
 * @param by ID of the principal
 * @throws FORBIDDEN for a managed policy, VALIDATION_FAILED for a document that is no longer valid
 */
export async function updatePolicyFields(
  tx: Tx,
  policy: PolicyRow,
  change: PolicyChange,
  by: string,
): Promise<PolicyRow> {
  const document = change.document === undefined ? policy.document : policyDocumentProblems(change.document)
  refuseManaged(policy, 'policies:UpdatePolicy')
  const before = policyFields(policy)
  const after = {
    name: change.name === undefined ? before.name : change.name,
    description: change.description === undefined ? before.description : change.description,
    document,
  }
  if (isDeepStrictEqual(before, after)) return policy
  principalsChanged(tx, `policy:${policy.id}`)
  return updatePolicy(tx, policy.id, { ...after, by })
}

/** Returns the versioned fields, without number and author. */
export const policyFields = ({ name, description, document }: PolicyRow | PolicyVersion) => ({
  name,
  description,
  document,
})

/** Returns one version of a policy. @throws RESOURCE_NOT_FOUND for an unknown version */
export async function policyVersion(db: Queryable, id: string, number: number): Promise<PolicyVersion> {
  const [version] = await findPolicyVersions(db, id, [number])
  return version ?? noVersion(id, number)
}

/** Returns the changes between two versions. @throws RESOURCE_NOT_FOUND for an unknown version */
export async function comparePolicyVersions(db: Queryable, id: string, from: number, to: number) {
  const versions = new Map((await findPolicyVersions(db, id, [from, to])).map(found => [found.version, found]))
  const version = (number: number): PolicyVersion => versions.get(number) ?? noVersion(id, number)
  return { from, to, changes: changesBetween(policyFields(version(from)), policyFields(version(to))) }
}

/**
 * Refuses to delete a policy that is managed or attached: a key without its boundary would have more permissions.
 * @throws FORBIDDEN, POLICY_HAS_DEPENDENTS, CELL_UNAVAILABLE
 */
export async function requireUnattached(services: Services, tx: Tx, policy: PolicyRow): Promise<void> {
  refuseManaged(policy, 'policies:DeletePolicy')
  const holders = await listPolicyHolders(services, tx, policy.id)
  await requireNoMoves(services, tx)
  if (holders.length === 0) return
  const counts: Record<string, number> = { users: 0, project_keys: 0, triggers: 0, webhooks: 0 }
  const sample_ids: Record<string, string[]> = {}
  for (const { type, count, ids } of holders) {
    const plural = kinds.find(type)?.plural ?? type
    counts[plural] = (counts[plural] ?? 0) + count
    sample_ids[plural] = [...(sample_ids[plural] ?? []), ...ids].sort().reverse().slice(0, 5)
  }
  raise('POLICY_HAS_DEPENDENTS', {
    message: `Policy ${policy.id} is still attached (${countsText(counts)})`,
    meta: { counts, sample_ids, forcible: false },
  })
}
