import { z } from 'zod'
import { type Queryable, sql } from '#core/db/sql.ts'
import { ALL_PROJECTS, Cap, type ResourceKind, SHAREABLE } from './terms.ts'

/** Share by which a project may call a tool or agent of another project. */
export const GrantingShare = z.object({
  share_id: z.string(),
  acceptance_id: z.string(),
  resource_kind: z.enum(['tool', 'agent']),
  resource_id: z.string(),
  publisher_project_id: z.string(),
  cap: Cap.nullable(),
})
export type GrantingShare = z.output<typeof GrantingShare>
const grantingShareRow = sql.type(GrantingShare)

/** Project that calls a tool or agent of another project. */
export type Consumer = {
  project_id: string
  /** Share whose cap the call consumes; null within a turn that already consumed it. */
  share: GrantingShare | null
}

/** Condition under which share `s` grants by its acceptance `a`. Evaluated for each call and never cached. */
export const shareGrantsCondition = sql.fragment`a.status = 'active' and s.suspended_at is null and s.revoked_at is null
  and (s.expires_at is null or s.expires_at > now())`

/**
 * Returns the shares by which a project may call tools or agents of others, by resource id; ids without a grant are
 * absent. A share for the project takes precedence over one for all projects, then the oldest (index shares_resource).
 * @param hold locks the acceptances against revocation until the transaction ends, for writers of references
 */
export async function findGrantingShares(
  db: Queryable,
  kind: ResourceKind,
  projectId: string,
  ids: readonly string[],
  hold = false,
): Promise<Map<string, GrantingShare>> {
  if (ids.length === 0) return new Map()
  const rows = await db.any(grantingShareRow`
    select s.id as share_id, a.id as acceptance_id, s.resource_kind, s.resource_id, s.project_id as publisher_project_id, s.cap
    from shares s join share_acceptances a on a.share_id = s.id and a.project_id = ${projectId}
    where s.resource_id = any(${sql.array([...new Set(ids)], 'text')}) and s.resource_kind = ${kind}
      and s.grantee in (${projectId}, ${ALL_PROJECTS}) and s.actions && ${sql.array([...SHAREABLE[kind]], 'text')} and ${shareGrantsCondition}
    order by s.grantee = ${ALL_PROJECTS} desc, s.created_at desc, s.id desc
    ${hold ? sql.fragment`for share of a` : sql.fragment``}`)
  // The last row of an id wins.
  return new Map(rows.map(share => [share.resource_id, share]))
}

/** Whether any share of a tool or agent is for the project, whatever its state (index shares_resource). */
export const isOffered = (db: Queryable, kind: ResourceKind, projectId: string, id: string): Promise<boolean> =>
  db.exists(sql.type(z.object({ id: z.string() }))`
    select id from shares
    where resource_id = ${id} and resource_kind = ${kind} and grantee in (${projectId}, ${ALL_PROJECTS})`)
