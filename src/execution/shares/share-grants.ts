import type { GrantRequest, GrantSource } from '../../core/api/grants.ts'
import { grantingShares, isOffered } from './grants.ts'
import { type ShareRow, shareKind } from './kind.ts'
import { ALL_PROJECTS, RESOURCE_KINDS, type ResourceKind } from './terms.ts'

/**
 * How tools and agents reach the projects that they are shared with: for credentials that are bound to one of them. Who is
 * offered a share that does not grant learns that the resource is another project's; to all others it does not exist.
 */
export const sharedResourceGrants: GrantSource = {
  kinds: RESOURCE_KINDS,
  async grant(db, { operation, kind, row, caller, project_id }) {
    if (caller.project_id === null) return 'none'
    const resource = kind.name as ResourceKind
    const share = (await grantingShares(db, resource, project_id, [row.id])).get(row.id)
    if (share && operation.granted)
      return { project_id, row: { ...row, consumer: { project_id, share } } as typeof row }
    return share || (await isOffered(db, resource, project_id, row.id)) ? 'refused' : 'none'
  },
  among: async (db, kind, projectId, ids) => [
    ...(await grantingShares(db, kind as ResourceKind, projectId, ids, true)).keys(),
  ],
}

/** How shares themselves reach the projects that they are for. */
export const shareGrants: GrantSource = {
  kinds: [shareKind.name],
  async grant(_db, { operation, row, caller, project_id }: GrantRequest) {
    const { grantee } = row as ShareRow
    if (grantee !== project_id && grantee !== ALL_PROJECTS) return 'hidden'
    if (operation.granted) return { project_id, row }
    return caller.project_id === null ? 'none' : 'refused'
  },
  among: async () => [],
}
