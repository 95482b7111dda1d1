import { raise, raiseInvalid } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Tx } from '../../core/db/writer.ts'
import { consumersOf, revokeShares, type ShareRow, shareKind } from './kind.ts'
import type { ShareAcceptance } from './model.ts'
import { notifyConsumers } from './share-activity.ts'
import {
  acceptanceOf,
  deleteAcceptance,
  insertAcceptance,
  lockAcceptance,
  referencesIn,
  revokeAcceptance,
} from './store.ts'

/** References that a refused revoke names. */
const SAMPLE = 20

type Acting = Pick<Context, 'tx' | 'grant'> & { resource: ShareRow }

/** Whether a share has ended for good. */
export const isShareEnded = ({ revoked_at, expires_at }: ShareRow): boolean =>
  revoked_at !== null || (expires_at !== null && new Date(expires_at) <= new Date())

/** The share under its lock, unless it has ended. Raises SHARE_REVOKED. */
async function lockLive(tx: Tx, id: string): Promise<ShareRow> {
  const share = await shareKind.lock(tx, id)
  if (isShareEnded(share)) raise('SHARE_REVOKED', { meta: { share_id: id } })
  return share
}

/** The project that acts as a grantee. Raises VALIDATION_FAILED for the publisher. */
export function granteeOf({ grant }: Pick<Context, 'grant'>): string {
  if (grant) return grant.project_id
  return raiseInvalid({
    code: 'REQUIRED',
    path: 'project_id',
    message: 'must be a project that the share is for; a credential that is bound to one needs none',
  })
}

/** POST accept: for a suspended share too, which grants nothing yet. Raises SHARE_REVOKED. */
export async function acceptShare(context: Acting): Promise<ShareAcceptance> {
  const { tx, resource } = context
  const project = granteeOf(context)
  const share = await lockLive(tx, resource.id)
  const known = await acceptanceOf(tx, share.id, project, true)
  if (known?.status === 'active') return known
  if (known?.revoked_by === 'publisher') raise('SHARE_REVOKED', { meta: { share_id: share.id } })
  const acceptance = await insertAcceptance(tx, share.id, project)
  tx.emit(shareKind, 'accepted', share, { extra: { acceptance } })
  return acceptance
}

/** POST suspend and resume. Raises SHARE_REVOKED. */
export async function suspendOrResume({ tx, resource }: Acting, suspend: boolean): Promise<ShareRow> {
  const share = await lockLive(tx, resource.id)
  if ((share.suspended_at !== null) === suspend) return share
  const row = await shareKind.update(tx, share.id, { suspended_at: suspend ? new Date().toISOString() : null })
  const verb = suspend ? 'suspended' : 'resumed'
  tx.emit(shareKind, verb, row)
  notifyConsumers(tx, `share_${verb}`, row, await consumersOf(tx, row.id))
  return row
}

/**
 * POST revoke: by the publisher for good and for all, by a grantee its own acceptance.
 * @throws SHARE_IN_USE for a grantee whose resources name what is shared, without `force`; RESOURCE_NOT_FOUND for one that
 *   never accepted
 */
export async function revokeShare(context: Acting, force: boolean): Promise<ShareRow> {
  const { tx, resource, grant } = context
  const share = await shareKind.lock(tx, resource.id)
  if (!grant) return (await revokeShares(tx, [share.id]))[0] ?? share
  const project = grant.project_id
  const known = await acceptanceOf(tx, share.id, project, true)
  if (!known) return raise('RESOURCE_NOT_FOUND', { meta: { id: share.id } })
  if (known.status === 'revoked') return { ...share, acceptance: known }
  if (!force) {
    const references = await referencesIn(tx, share, project, SAMPLE)
    const [first] = references
    if (first)
      raise('SHARE_IN_USE', {
        message: `Resources of the project still name what is shared, such as the ${first.type} ${first.id}`,
        meta: { references },
      })
  }
  const acceptance = await revokeAcceptance(tx, known.id, 'consumer')
  tx.emit(shareKind, 'revoked', share, { extra: { acceptance } })
  return { ...share, acceptance }
}

/** Revokes one acceptance in the name of the publisher. Raises RESOURCE_NOT_FOUND. */
export async function revokeAcceptanceOf({ tx, resource }: Acting, id: string): Promise<ShareAcceptance> {
  const share = await shareKind.lock(tx, resource.id)
  const known = await lockAcceptance(tx, share.id, id)
  if (!known) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  return known.status === 'revoked' ? known : stop(tx, share, known)
}

/** Deletes one acceptance, revoked first while it is active; its project may then accept again. Raises RESOURCE_NOT_FOUND. */
export async function deleteAcceptanceOf({ tx, resource }: Acting, id: string): Promise<void> {
  const share = await shareKind.lock(tx, resource.id)
  const known = await lockAcceptance(tx, share.id, id)
  if (!known) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  if (known.status === 'active') await stop(tx, share, known)
  await deleteAcceptance(tx, known.id)
}

async function stop(tx: Tx, share: ShareRow, known: ShareAcceptance): Promise<ShareAcceptance> {
  const acceptance = await revokeAcceptance(tx, known.id, 'publisher')
  tx.emit(shareKind, 'revoked', share, { extra: { acceptance } })
  notifyConsumers(tx, 'share_revoked', share, [acceptance.project_id])
  return acceptance
}
