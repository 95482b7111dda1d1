import type { Context } from '../../core/api/operation.ts'
import { raiseForbidden } from '../../core/iam/access.ts'
import { type KeyFields, type KeyRow, projectKeyKind } from './model.ts'

/** Keys that a template declares and a key deploys: they have exactly the limits of that key, so that it makes no wider one. */

type Deploying = Pick<Context, 'caller' | 'tx'>

/** The key that deploys; null for a user. Raises FORBIDDEN for one that is gone. */
async function deployingKey({ caller: { credential }, tx }: Deploying, action: string): Promise<KeyRow | null> {
  if (credential.type !== 'api_key') return null
  return (await projectKeyKind.find(tx, credential.id)) ?? raiseForbidden(null, action)
}

const inOrder = (texts: readonly string[] | null): string => JSON.stringify(texts && [...texts].sort())
const timeOf = (text: string | null): number | null => (text === null ? null : Date.parse(text))

/** The fields of a key to be made: what limits a key that deploys it limits it too. Raises FORBIDDEN for other limits. */
export async function withinDeploying(context: Deploying, action: string, fields: KeyFields): Promise<KeyFields> {
  const key = await deployingKey(context, action)
  if (!key) return fields
  const { policy_ids, allowed_ips, expires_at } = key
  const limits = { policy_ids, allowed_ips, expires_at }
  const given = { ...limits, ...fields }
  const isSame =
    inOrder(given.policy_ids) === inOrder(policy_ids) &&
    inOrder(given.allowed_ips) === inOrder(allowed_ips) &&
    timeOf(given.expires_at) === timeOf(expires_at)
  return isSame ? { ...fields, ...limits } : raiseForbidden(null, action)
}

/** Raises FORBIDDEN for a key that deletes one which it could not have deployed. */
export async function requireDeletable(context: Deploying, action: string, row: KeyRow): Promise<void> {
  const key = await deployingKey(context, action)
  if (key && inOrder(key.policy_ids) !== inOrder(row.policy_ids)) raiseForbidden(null, action)
}
