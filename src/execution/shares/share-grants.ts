import type { GrantRequest, GrantSource } from '#core/api/grants.ts'
import { findGrantingShares, isOffered } from '../grants/grants.ts'
import { ALL_PROJECTS, RESOURCE_KINDS, type ResourceKind } from '../grants/terms.ts'
import { type ShareRow, shareKind } from './kind.ts'

/**
 * Grants access to shared tools and agents for credentials that are bound to a grantee project. A project with a share
 * that does not grant gets a refusal; for all other projects the resource does not exist.
 */
export const sharedResourceGrants: GrantSource = {
  kinds: RESOURCE_KINDS,
  async grant(db, { operation, kind, row, caller, project_id }) {
    if (caller.project_id === null) return 'none'
    const resource = kind.name as ResourceKind
    const share = (await findGrantingShares(db, resource, project_id, [row.id])).get(row.id)
    if (share && operation.granted)
      return { project_id, row: { ...row, consumer: { project_id, share } } as typeof row }
    return share || (await isOffered(db, resource, project_id, row.id)) ? 'refused' : 'none'
  },
  among: async (db, kind, projectId, ids) => [
    ...(await findGrantingShares(db, kind as ResourceKind, projectId, ids, true)).keys(),
  ],
}

/** Grants access to shares for their grantee projects. */
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
