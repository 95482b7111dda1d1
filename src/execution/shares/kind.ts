import { z } from 'zod'
import { kind, type Reference, selectList } from '#core/api/kind.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { notifyConsumers } from '../grants/share-activity.ts'
import { RESOURCE_KINDS, type ResourceKind } from '../grants/terms.ts'
import { Share, ShareAcceptance } from './model.ts'

/**
 * Returns the references from shares to a resource: active acceptances block its deletion unless forced, and other
 * shares of it are revoked. Over the columns of `shares`.
 */
const shareReferences = (resource: ResourceKind): Reference[] => [
  {
    kind: resource,
    column: 'resource_id',
    on_delete: 'force',
    counted: 'accepted_shares',
    where: sql.fragment`revoked_at is null and (expires_at is null or expires_at > now()) and exists (
      select 1 from share_acceptances a where a.share_id = shares.id and a.status = 'active')`,
    detach: revokeShares,
  },
  {
    kind: resource,
    column: 'resource_id',
    on_delete: 'follow',
    counted: null,
    where: sql.fragment`revoked_at is null`,
    detach: revokeShares,
  },
]

export const shareKind = kind({
  name: 'share',
  prefix: 'shr',
  table: 'shares',
  // Updated by every call.
  shared: true,
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    ...RESOURCE_KINDS.flatMap(resource => shareReferences(resource)),
  ],
  record: Share,
  hidden: { resource_kind: z.enum(RESOURCE_KINDS), resource_id: z.string() },
  computed: {
    resource: sql.fragment`'srn:' || t.project_id || ':' || t.resource_kind || ':' || t.resource_id`,
    acceptance: sql.fragment`null::jsonb`,
    projection: sql.fragment`null::jsonb`,
  },
  events: ['created', 'updated', 'deleted', 'accepted', 'suspended', 'resumed', 'revoked'],
  eventNotes: 'of the publisher; accepted, and revoked when it is about one acceptance, carry acceptance',
})

export type ShareRow = z.output<typeof shareKind.row>

export const ACCEPTANCE_PREFIX = 'shr_acc'

export const acceptanceColumns = selectList(Object.keys(ShareAcceptance.shape))
export const acceptanceSql = sql.type(ShareAcceptance)

const projectIdRow = sql.type(z.object({ project_id: z.string() }))

/** Lists the projects that use a share (index share_acceptances_share). */
export const listShareConsumers = (db: Queryable, shareId: string): Promise<readonly string[]> =>
  db.anyFirst(projectIdRow`
    select project_id from share_acceptances where share_id = ${shareId} and status = 'active' order by project_id`)

const revokedRow = sql.type(shareKind.row.extend({ consumers: z.array(z.string()) }))

/**
 * Revokes shares permanently, together with their active acceptances on behalf of the publisher, and returns those that
 * were not revoked before. Lock order: shares, then acceptances.
 */
export async function revokeShares(tx: Tx, ids: readonly string[]): Promise<readonly ShareRow[]> {
  const rows = await tx.any(revokedRow`
    with revoked as (
      update shares t set revoked_at = now(), updated_at = now()
      where t.id = any(${sql.array([...ids], 'text')}) and t.revoked_at is null returning ${shareKind.columns}),
    stopped as (
      update share_acceptances a set status = 'revoked', revoked_by = 'publisher', revoked_at = now(), updated_at = now()
      from revoked where a.share_id = revoked.id and a.status = 'active' returning a.share_id, a.project_id)
    select revoked.*, array(
      select s.project_id from stopped s where s.share_id = revoked.id order by s.project_id) as consumers
    from revoked`)
  return rows.map(({ consumers, ...share }) => {
    tx.emit(shareKind, 'revoked', share)
    notifyConsumers(tx, 'share_revoked', share, consumers)
    return share
  })
}

/** Notifies the projects that use the shares of a project of their deletion with it. */
export async function notifyProjectDeletion(tx: Tx, projectId: string): Promise<void> {
  const rows = await tx.any(revokedRow`
    select ${shareKind.columns}, array_agg(a.project_id order by a.project_id) as consumers
    from shares t join share_acceptances a on a.share_id = t.id and a.status = 'active'
    where t.project_id = ${projectId} group by t.id`)
  for (const { consumers, ...share } of rows) notifyConsumers(tx, 'share_revoked', share, consumers)
}
