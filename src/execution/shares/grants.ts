import { z } from 'zod'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { ALL_PROJECTS, Cap, type ResourceKind, SHAREABLE } from './terms.ts'

/** A share by which a project may call something of another one, as of now. */
export const GrantingShare = z.object({
  share_id: z.string(),
  acceptance_id: z.string(),
  resource_kind: z.enum(['tool', 'agent']),
  resource_id: z.string(),
  publisher_project_id: z.string(),
  cap: Cap.nullable(),
})
export type GrantingShare = z.output<typeof GrantingShare>
const granting = sql.type(GrantingShare)

/** The project that calls something of another one. */
export type Consumer = {
  project_id: string
  /** The share whose cap the call is taken from; null for what is called within a turn that was taken from one. */
  share: GrantingShare | null
}

/**
 * The condition under which a share `s` grants by its acceptance `a`. Each call asks anew: nothing of it is kept in a
 * process.
 */
export const listShareGrants = sql.fragment`a.status = 'active' and s.suspended_at is null and s.revoked_at is null
  and (s.expires_at is null or s.expires_at > now())`

/**
 * The shares by which a project may call tools or agents of others, by the ids of these; ids that nothing grants are absent.
 * Of several shares the one for the project comes before those for everybody, then the oldest (index shares_resource).
 * @param hold keeps the acceptances from being revoked until the transaction ends, for who writes a reference
 */
export async function grantingShares(
  db: Queryable,
  kind: ResourceKind,
  projectId: string,
  ids: readonly string[],
  hold = false,
): Promise<Map<string, GrantingShare>> {
  if (ids.length === 0) return new Map()
  const rows = await db.any(granting`
    select s.id as share_id, a.id as acceptance_id, s.resource_kind, s.resource_id, s.project_id as publisher_project_id, s.cap
    from shares s join share_acceptances a on a.share_id = s.id and a.project_id = ${projectId}
    where s.resource_id = any(${sql.array([...new Set(ids)], 'text')}) and s.resource_kind = ${kind}
      and s.grantee in (${projectId}, ${ALL_PROJECTS}) and s.actions && ${sql.array([...SHAREABLE[kind]], 'text')} and ${listShareGrants}
    order by s.grantee = ${ALL_PROJECTS} desc, s.created_at desc, s.id desc
    ${hold ? sql.fragment`for share of a` : sql.fragment``}`)
  // The last one of an id stays.
  return new Map(rows.map(share => [share.resource_id, share]))
}

/** Whether a share that names a tool or agent is for a project, whatever has become of it (index shares_resource). */
export const isOffered = (db: Queryable, kind: ResourceKind, projectId: string, id: string): Promise<boolean> =>
  db.exists(sql.type(z.object({ id: z.string() }))`
    select id from shares
    where resource_id = ${id} and resource_kind = ${kind} and grantee in (${projectId}, ${ALL_PROJECTS})`)
