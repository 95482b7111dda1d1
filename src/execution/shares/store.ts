import { z } from 'zod'
import { referenceCondition } from '#core/api/dependents.ts'
import { isIdOf, kinds } from '#core/api/kind.ts'
import { pageResult } from '#core/api/lists.ts'
import type { Context, Page } from '#core/api/operation.ts'
import { newId } from '#core/base/ids.ts'
import { type Fragment, idStatement, type Queryable, sql } from '#core/db/sql.ts'
import { ALL_PROJECTS } from '../grants/terms.ts'
import { ACCEPTANCE_PREFIX, acceptanceColumns, acceptanceSql, type ShareRow, shareKind } from './kind.ts'
import type { ShareAcceptance, ShareReference } from './model.ts'

/**
 * Returns the acceptance of a share by a project, or null (unique index on both). `lock` locks its row; lock the share
 * first.
 */
export const findAcceptance = (
  db: Queryable,
  shareId: string,
  projectId: string,
  lock = false,
): Promise<ShareAcceptance | null> =>
  db.maybeOne(acceptanceSql`
    select ${acceptanceColumns} from share_acceptances t where t.share_id = ${shareId} and t.project_id = ${projectId}
    ${lock ? sql.fragment`for update` : sql.fragment``}`)

/** Locks and returns an acceptance of a share by id, or null. */
export const lockAcceptance = async (db: Queryable, shareId: string, id: string): Promise<ShareAcceptance | null> =>
  isIdOf({ prefix: ACCEPTANCE_PREFIX, fixedIds: [] }, id)
    ? db.maybeOne(acceptanceSql`
        select ${acceptanceColumns} from share_acceptances t where t.id = ${id} and t.share_id = ${shareId} for update`)
    : null

/** Inserts or reactivates the acceptance of a share. The caller has locked the share. */
export const insertAcceptance = (db: Queryable, shareId: string, projectId: string): Promise<ShareAcceptance> =>
  db.one(acceptanceSql`
    insert into share_acceptances as t (id, share_id, project_id, status)
    values (${newId(ACCEPTANCE_PREFIX)}, ${shareId}, ${projectId}, 'active')
    on conflict (share_id, project_id) do update
    set status = 'active', revoked_by = null, revoked_at = null, accepted_at = now(), updated_at = now()
    returning ${acceptanceColumns}`)

/** Revokes an acceptance. The caller has locked its row. */
export const revokeAcceptance = (
  db: Queryable,
  id: string,
  by: NonNullable<ShareAcceptance['revoked_by']>,
): Promise<ShareAcceptance> =>
  db.one(acceptanceSql`
    update share_acceptances t set status = 'revoked', revoked_by = ${by}, revoked_at = now(), updated_at = now()
    where t.id = ${id} returning ${acceptanceColumns}`)

/** Deletes an acceptance with its counters. */
export const deleteAcceptance = (db: Queryable, id: string): Promise<unknown> =>
  db.query(idStatement`delete from share_acceptances where id = ${id} returning id`)

/** Lists the acceptances of a share, newest first (index share_acceptances_share). */
export const listAcceptances = (context: Pick<Context, 'db' | 'page'>, shareId: string, statuses?: readonly string[]) =>
  pageResult<ShareAcceptance>(context, {
    columns: acceptanceColumns,
    from: sql.fragment`share_acceptances t`,
    rows: sql.fragment`t.share_id = ${shareId}`,
    filters: [statuses && sql.fragment`t.status = any(${sql.array([...statuses], 'text')})`],
    time: sql.fragment`t.created_at`,
    order: sql.fragment`t.created_at desc, t.id desc`,
    key: sql.fragment`t.id`,
    present: acceptance => acceptance,
  })

/** Condition for shares that a project accepted or may accept: shares for it, and accepted shares for all projects. */
export const sharedWithCondition = (projectId: string): Fragment => sql.fragment`(t.grantee = ${projectId}
  or t.grantee = ${ALL_PROJECTS} and exists (
    select 1 from share_acceptances a where a.share_id = t.id and a.project_id = ${projectId}))`

/**
 * Lists shares, newest first (indexes shares_project and shares_grantee), each with the acceptance of the requesting
 * grantee project.
 */
export async function listShares(
  context: Pick<Context, 'db' | 'page'>,
  { rows, filters, grantee }: { rows: Fragment; filters: (Fragment | false)[]; grantee: string | null },
) {
  const found = await pageResult<ShareRow>(context, {
    columns: shareKind.columns,
    from: sql.fragment`shares t`,
    rows,
    filters,
    time: sql.fragment`t.created_at`,
    order: sql.fragment`t.created_at desc, t.id desc`,
    key: sql.fragment`t.id`,
    present: row => row,
  })
  const shares = found.data as ShareRow[]
  const accepted = grantee === null ? new Map() : await listProjectAcceptances(context.db, shares, grantee)
  const data = shares.map(share => shareKind.present({ ...share, acceptance: accepted.get(share.id) ?? null }))
  return { ...found, data }
}

async function listProjectAcceptances(db: Queryable, shares: readonly ShareRow[], projectId: string) {
  const ids = shares.map(({ id }) => id)
  const rows = await db.any(acceptanceSql`
    select ${acceptanceColumns} from share_acceptances t
    where t.share_id = any(${sql.array(ids, 'text')}) and t.project_id = ${projectId}`)
  return new Map(rows.map(row => [row.share_id, row]))
}

/** Returns a relation `type, id, created_at` of the resources of a project that reference a shared resource. */
function referencesRelation({ resource_kind, resource_id }: ShareRow, projectId: string): Fragment {
  const parts = kinds.all().flatMap(kind =>
    kind.references
      .filter(({ kind: target, grantable, on_delete }) => {
        // References with other delete actions are products of the resource, not uses of it.
        return target === resource_kind && grantable && (on_delete === 'block' || on_delete === 'null')
      })
      .map(
        reference => sql.fragment`
          select ${kind.name}::text as type, id, created_at from ${sql.identifier([kind.table])}
          where project_id = ${projectId} and ${referenceCondition(reference, sql.fragment`select ${resource_id}::text`)}`,
      ),
  )
  return sql.fragment`(${sql.join(parts, sql.fragment` union `)})`
}

/** Lists the references to a shared resource, newest first. */
export const listReferences = (context: Pick<Context, 'db' | 'page'>, share: ShareRow, projectId: string) =>
  pageResult<ShareReference>(context, {
    columns: sql.fragment`t.type, t.id`,
    from: sql.fragment`${referencesRelation(share, projectId)} t`,
    time: sql.fragment`t.created_at`,
    order: sql.fragment`t.created_at desc, t.id desc`,
    present: reference => reference,
  })

/** Lists up to `limit` references to a shared resource, newest first. */
export const listProjectReferences = (
  db: Queryable,
  share: ShareRow,
  projectId: string,
  limit: number,
): Promise<readonly ShareReference[]> =>
  db.any(sql.type(z.object({ type: z.string(), id: z.string() }))`
    select t.type, t.id from ${referencesRelation(share, projectId)} t order by t.created_at desc, t.id desc limit ${limit}`)

/** Lists the calls of a share by calling project within time bounds (primary key of share_usage). */
export function listUsage({ db, page: bounds }: Pick<Context, 'db' | 'page'>, shareId: string) {
  const { from, to } = bounds
  const since = from && sql.fragment`and u.hour >= date_trunc('hour', ${from.toISOString()}::timestamptz, 'UTC')`
  const until = to && sql.fragment`and u.hour <= ${to.toISOString()}::timestamptz`
  const unbounded: Page = { ...bounds, from: null, to: null }
  return pageResult<{ project_id: string; calls: number; refused: number }>(
    { db, page: unbounded },
    {
      columns: sql.fragment`t.project_id, t.calls, t.refused`,
      from: sql.fragment`(
        select u.project_id, sum(u.calls)::bigint as calls, sum(u.refused)::bigint as refused from share_usage u
        where u.share_id = ${shareId} ${since ?? sql.fragment``} ${until ?? sql.fragment``} group by u.project_id) t`,
      order: sql.fragment`t.project_id`,
      present: row => row,
    },
  )
}

/** Locks expired shares that are not revoked and returns their ids (index shares_expiring). */
export const lockExpiredShares = (db: Queryable, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from shares where expires_at <= now() and revoked_at is null order by expires_at limit ${limit}
    for no key update skip locked`)

/**
 * Deletes up to `limit` counters of windows that began before a time and returns their number (index
 * share_counters_start).
 */
export const deleteShareCounters = async (db: Queryable, before: Date, limit: number): Promise<number> =>
  (
    await db.query(idStatement`
      delete from share_counters where (acceptance_id, window_key) in (
        select acceptance_id, window_key from share_counters where window_start < ${before.toISOString()}::timestamptz
        order by window_start limit ${limit})`)
  ).rowCount

/** Deletes up to `limit` hours of usage before a time and returns their number (index share_usage_hour). */
export const deleteUsage = async (db: Queryable, before: Date, limit: number): Promise<number> =>
  (
    await db.query(idStatement`
      delete from share_usage where (share_id, project_id, hour) in (
        select share_id, project_id, hour from share_usage where hour < ${before.toISOString()}::timestamptz
        order by hour limit ${limit})`)
  ).rowCount
