import { isIdOf, type Kind, type KindRow, kinds, srn } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { systemClock } from '#core/base/clock.ts'
import { raise, raiseInvalid, raiseInvalidValue } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { servicesOfId } from '#core/services/cells.ts'
import type { Tx } from '#core/writes/writer.ts'
import { notifyConsumers } from '../grants/share-activity.ts'
import { ALL_PROJECTS, RESOURCE_KINDS, type ResourceKind, SHAREABLE } from '../grants/terms.ts'
import { listShareConsumers, revokeShares, type ShareRow, shareKind } from './kind.ts'
import type { ShareAcceptance, ShareInput } from './model.ts'
import {
  deleteAcceptance,
  findAcceptance,
  insertAcceptance,
  listProjectReferences,
  lockAcceptance,
  revokeAcceptance,
} from './store.ts'

type CreateContext = Pick<Context<unknown, ShareInput>, 'tx' | 'body' | 'services' | 'allow'> & { project: string }

/**
 * Validates a new share and locks its resource until the transaction ends. Sharing requires permission to call the
 * resource.
 * @throws VALIDATION_FAILED, TOOL_NOT_FOUND, AGENT_NOT_FOUND, PUBLIC_SHARES_DISABLED, SHARE_ACROSS_CELLS, FORBIDDEN
 */
export async function checkShare({ tx, body, project, services, allow }: CreateContext) {
  const { resource_kind, resource_id } = parseResource(body.resource, project)
  const actions = [...new Set(body.actions)]
  const grantable: readonly string[] = SHAREABLE[resource_kind]
  for (const [index, action] of body.actions.entries())
    if (!grantable.includes(action)) raiseInvalidValue(`actions[${index}]`, `must be ${grantable.join(' or ')}`)
  await checkGrantee({ tx, body, project, services, allow })
  const kind = kinds.get(resource_kind)
  const row = isIdOf(kind, resource_id) ? await kind.reference(tx, resource_id, project) : null
  if (!row) return raise(kind.missing, { meta: { id: resource_id } })
  for (const action of actions) allow(action, { kind, row })
  checkExpiry(body.expires_at)
  return { resource_kind, resource_id, actions }
}

/** Raises VALIDATION_FAILED for an expiry time in the past. */
export function checkExpiry(expires_at: string | null | undefined): void {
  if (expires_at != null && new Date(expires_at) <= systemClock.now())
    raiseInvalidValue('expires_at', 'must be in the future')
}

/** Parses a resource name: one tool or agent of the project, not a pattern. */
function parseResource(name: string, project: string): { resource_kind: ResourceKind; resource_id: string } {
  const [, , resource_kind = '', resource_id = ''] = name.split(':')
  if (!RESOURCE_KINDS.includes(resource_kind as ResourceKind) || !/^[a-z0-9_]+$/.test(resource_id))
    raiseInvalidValue('resource', 'must be srn:<project>:tool:<id> or srn:<project>:agent:<id>')
  if (name !== srn(project, resource_kind, resource_id))
    raiseInvalidValue('resource', 'must belong to the sharing project')
  return { resource_kind: resource_kind as ResourceKind, resource_id }
}

async function checkGrantee({ tx, body: { grantee }, project, services }: CreateContext): Promise<void> {
  if (grantee === ALL_PROJECTS) {
    if (!services.config.SHARES_ALLOW_PUBLIC) raise('PUBLIC_SHARES_DISABLED')
    return
  }
  if (grantee === project) raiseInvalidValue('grantee', 'must be another project')
  const projects: Kind<KindRow> = kinds.get('project')
  if (services.cells && isIdOf(projects, grantee) && services.cells.ofProject(grantee) !== services)
    raise('SHARE_ACROSS_CELLS')
  if (!isIdOf(projects, grantee) || !(await projects.find(tx, grantee)))
    raiseInvalidValue('grantee', 'is not a project')
}

/** Maximum number of references in a refused revocation. */
const MAX_REFERENCES = 20

type ShareContext = Pick<Context, 'tx' | 'grant'> & { resource: ShareRow }

/** Whether a share was revoked or expired. */
export const isShareEnded = ({ revoked_at, expires_at }: ShareRow): boolean =>
  revoked_at !== null || (expires_at !== null && new Date(expires_at) <= systemClock.now())

/**
 * Locks and returns a share that has not ended.
 * @throws SHARE_REVOKED
 */
async function lockActiveShare(tx: Tx, id: string): Promise<ShareRow> {
  const share = await shareKind.lock(tx, id)
  if (isShareEnded(share)) raise('SHARE_REVOKED', { meta: { share_id: id } })
  return share
}

/**
 * Returns the project that acts as a grantee.
 * @throws VALIDATION_FAILED for the publisher
 */
export function granteeOf({ grant }: Pick<Context, 'grant'>): string {
  if (grant) return grant.project_id
  return raiseInvalid({
    code: 'REQUIRED',
    path: 'project_id',
    message: 'must be a grantee project of the share; optional for credentials that are bound to one',
  })
}

/**
 * Refuses a share of another cell, which the cell of the grantee does not have.
 * @throws SHARE_ACROSS_CELLS
 */
export async function requireSameCell(services: Services, shareId: string): Promise<void> {
  if ((await servicesOfId(services, shareId)) !== services) raise('SHARE_ACROSS_CELLS')
}

/**
 * Accepts a share, also a suspended one, which grants nothing until it is resumed.
 * @throws SHARE_REVOKED
 */
export async function acceptShare(context: ShareContext): Promise<ShareAcceptance> {
  const { tx, resource } = context
  const project = granteeOf(context)
  const share = await lockActiveShare(tx, resource.id)
  const existing = await findAcceptance(tx, share.id, project, true)
  if (existing?.status === 'active') return existing
  if (existing?.revoked_by === 'publisher') raise('SHARE_REVOKED', { meta: { share_id: share.id } })
  const acceptance = await insertAcceptance(tx, share.id, project)
  tx.emit(shareKind, 'accepted', share, { extra: { acceptance } })
  return acceptance
}

/**
 * Suspends or resumes a share.
 * @throws SHARE_REVOKED
 */
export async function suspendOrResume({ tx, resource }: ShareContext, suspend: boolean): Promise<ShareRow> {
  const share = await lockActiveShare(tx, resource.id)
  if ((share.suspended_at !== null) === suspend) return share
  const row = await shareKind.update(tx, share.id, { suspended_at: suspend ? systemClock.now().toISOString() : null })
  const verb = suspend ? 'suspended' : 'resumed'
  tx.emit(shareKind, verb, row)
  notifyConsumers(tx, `share_${verb}`, row, await listShareConsumers(tx, row.id))
  return row
}

/**
 * Revokes a share permanently and for all grantees as its publisher, or only the own acceptance as a grantee.
 * @throws SHARE_IN_USE for a grantee whose resources reference the shared resource, without `force`; RESOURCE_NOT_FOUND
 *   for a grantee without an acceptance
 */
export async function revokeShare(context: ShareContext, force: boolean): Promise<ShareRow> {
  const { tx, resource, grant } = context
  const share = await shareKind.lock(tx, resource.id)
  if (!grant) return (await revokeShares(tx, [share.id]))[0] ?? share
  const project = grant.project_id
  const existing = await findAcceptance(tx, share.id, project, true)
  if (!existing) return raise('RESOURCE_NOT_FOUND', { meta: { id: share.id } })
  if (existing.status === 'revoked') return { ...share, acceptance: existing }
  if (!force) {
    const references = await listProjectReferences(tx, share, project, MAX_REFERENCES)
    const [first] = references
    if (first)
      raise('SHARE_IN_USE', {
        message: `Resources of the project still reference the shared resource, such as ${first.type} ${first.id}`,
        meta: { references },
      })
  }
  const acceptance = await revokeAcceptance(tx, existing.id, 'consumer')
  tx.emit(shareKind, 'revoked', share, { extra: { acceptance } })
  return { ...share, acceptance }
}

/**
 * Revokes one acceptance on behalf of the publisher.
 * @throws RESOURCE_NOT_FOUND
 */
export async function revokeShareAcceptance({ tx, resource }: ShareContext, id: string): Promise<ShareAcceptance> {
  const share = await shareKind.lock(tx, resource.id)
  const existing = await lockAcceptance(tx, share.id, id)
  if (!existing) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  return existing.status === 'revoked' ? existing : revokeByPublisher(tx, share, existing)
}

/**
 * Revokes and deletes one acceptance; its project may then accept again.
 * @throws RESOURCE_NOT_FOUND
 */
export async function deleteShareAcceptance({ tx, resource }: ShareContext, id: string): Promise<void> {
  const share = await shareKind.lock(tx, resource.id)
  const existing = await lockAcceptance(tx, share.id, id)
  if (!existing) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  if (existing.status === 'active') await revokeByPublisher(tx, share, existing)
  await deleteAcceptance(tx, existing.id)
}

async function revokeByPublisher(tx: Tx, share: ShareRow, existing: ShareAcceptance): Promise<ShareAcceptance> {
  const acceptance = await revokeAcceptance(tx, existing.id, 'publisher')
  tx.emit(shareKind, 'revoked', share, { extra: { acceptance } })
  notifyConsumers(tx, 'share_revoked', share, [acceptance.project_id])
  return acceptance
}
