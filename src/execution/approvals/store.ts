import { z } from 'zod'
import { pageResult } from '#core/api/lists.ts'
import type { Context, Page } from '#core/api/operation.ts'
import { newId } from '#core/base/ids.ts'
import { type Fragment, idStatement, isoTime, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import { type APPROVAL_STATUSES, type ApprovalRow, approvalKind, type Execution, type Recurrence } from './model.ts'

/** Columns of a follow-up: whether its call was about to be made, and the sealed outcome once it was. */
export const followUpColumns = { executing: z.boolean(), outcome: z.string().nullable() }
export type FollowUpColumns = z.output<z.ZodObject<typeof followUpColumns>>

/** Expression for the end user of the turn of an approval `t`; null if there is none. By the primary key. */
export const endUserOfApproval = sql.fragment`(select g.actor_id from generations g where g.id = t.generation_id)`

/** Inserts the follow-up of an approval and returns its id. */
export async function insertFollowUpWork(db: Queryable, approvalId: string): Promise<string> {
  const id = newId('aat')
  await db.query(voidStatement`insert into approval_attempts (approval_id, id) values (${approvalId}, ${id})`)
  return id
}

/** Locks and returns the pending approval of a dedup key (index approvals_dedup). */
export const findPending = (db: Queryable, projectId: string, dedupKey: string): Promise<ApprovalRow | null> =>
  db.maybeOne(approvalKind.sql`
    select ${approvalKind.columns} from approvals t
    where t.project_id = ${projectId} and t.dedup_key = ${dedupKey} and t.status = 'pending' for update`)

/** Returns the id of the latest rejected approval of a dedup key (index approvals_recurrences). */
export const findLatestRejected = (db: Queryable, projectId: string, dedupKey: string): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    select id from approvals where project_id = ${projectId} and dedup_key = ${dedupKey} and status = 'rejected'
    order by created_at desc, id desc limit 1`)

// If the project stores no content, the proposal is erased with the decision.
const redacted = sql.fragment`
  proposed_action = case when t.content_mode = 'full' or t.proposed_action is null then t.proposed_action
    else (t.proposed_action::jsonb || '{"arguments": null}')::json end,
  reasoning = case when t.content_mode = 'full' then t.reasoning end,
  evidence = case when t.content_mode = 'full' then t.evidence end,
  predicted_impact = case when t.content_mode = 'full' then t.predicted_impact end`

/**
 * Resolves an approval that is pending and not due, and returns it; null otherwise. Of concurrent calls one gets the
 * row.
 */
export const resolvePending = (
  db: Queryable,
  id: string,
  to: {
    status: 'approved' | 'rejected'
    resolved_by: string | null
    resolved_by_actor_id: string | null
    reason: string | null
    edited: Record<string, unknown> | null
    sealed: string | null
    execution: Execution | null
  },
): Promise<ApprovalRow | null> =>
  db.maybeOne(approvalKind.sql`
    update approvals t set status = ${to.status}, resolved_by = ${to.resolved_by},
      resolved_by_actor_id = ${to.resolved_by_actor_id}, resolution_reason = ${to.reason},
      edited_arguments = case when t.content_mode = 'full' then ${to.edited && JSON.stringify(to.edited)}::json end,
      sealed = ${to.sealed}, execution = ${to.execution && JSON.stringify(to.execution)}::json, updated_at = now(), ${redacted}
    where t.id = ${id} and t.status = 'pending' and t.expires_at > now()
    returning ${approvalKind.columns}`)

// A node makes no call without an approval; other sealed calls are still needed to report to the model.
const unsealedNode = sql.fragment`sealed = case when t.origin <> 'node' then t.sealed end`

/** Expires a pending approval that is due and returns it; null otherwise. */
export const expirePending = (db: Queryable, id: string): Promise<ApprovalRow | null> =>
  db.maybeOne(approvalKind.sql`
    update approvals t set status = 'expired', updated_at = now(), ${unsealedNode}, ${redacted}
    where t.id = ${id} and t.status = 'pending' and t.expires_at <= now()
    returning ${approvalKind.columns}`)

/** Expires the pending approvals among `ids`, due or not. */
export const expirePendingApprovals = (db: Queryable, ids: readonly string[]): Promise<readonly ApprovalRow[]> =>
  db.any(approvalKind.sql`
    with held as (
      select id from approvals where id = any(${sql.array([...ids], 'text')}) and status = 'pending' order by id for update)
    update approvals t set status = 'expired', updated_at = now(), sealed = null, ${redacted}
    from held h where t.id = h.id
    returning ${approvalKind.columns}`)

/** Erases the sealed calls of resolved approvals; pending ones are unchanged. */
export async function eraseSealedCalls(db: Queryable, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  await db.query(voidStatement`
    update approvals set sealed = null
    where id = any(${sql.array([...ids], 'text')}) and status <> 'pending' and sealed is not null`)
}

const requesterRow = sql.type(approvalKind.row.pick({ content_mode: true, starters: true }))

/**
 * Returns the users of a principal, who took part in starting its work, and whether its project stores content.
 * Uses primary keys.
 */
export function loadRequester(db: Queryable, projectId: string, authority: PrincipalRecord) {
  const principals = [authority, ...(authority.starters ?? [])]
  const idsOf = (principalType: PrincipalRecord['type']) =>
    sql.array(
      principals.filter(({ type }) => type === principalType).map(({ id }) => id),
      'text',
    )
  return db.one(requesterRow`
    select p.trace_content_mode as content_mode,
      ${idsOf('user')} || array(select k.user_id from project_keys k where k.id = any(${idsOf('api_key')})) as starters
    from projects p where p.id = ${projectId}`)
}

/** Lists pending approvals that are due (index approvals_expiry). */
export const listExpired = (db: Queryable, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select id from approvals where status = 'pending' and expires_at <= now() order by expires_at limit ${limit}`)

const erasedRow = sql.type(approvalKind.row.extend({ was_pending: z.boolean() }))

/**
 * Erases the proposals and sealed calls of turns and returns the approvals, locked; pending ones expire. Uses the index
 * approvals_generation.
 */
export const eraseApprovalTurns = (db: Queryable, generationIds: readonly string[]) =>
  db.any(erasedRow`
    with held as (
      select id, status = 'pending' as was_pending from approvals
      where generation_id = any(${sql.array([...generationIds], 'text')}) order by id for update)
    update approvals t set status = case when h.was_pending then 'expired' else t.status end,
      proposed_action = case when t.proposed_action is not null then (t.proposed_action::jsonb || '{"arguments": null}')::json end,
      execution = case when t.execution is not null then (t.execution::jsonb || '{"error": null}')::json end,
      reasoning = null, evidence = null, predicted_impact = null, edited_arguments = null, sealed = null, updated_at = now(),
      resolution_reason = case when t.resolved_by_actor_id is null then t.resolution_reason end
    from held h where t.id = h.id
    returning ${approvalKind.columns}, h.was_pending`)

/** Returns one of these approvals that has an unsettled follow-up, or null. Uses the primary key. */
export const findApprovalWithFollowUp = (db: Queryable, ids: readonly string[]): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    select approval_id as id from approval_attempts where approval_id = any(${sql.array([...ids], 'text')}) limit 1`)

/** Lists the approvals of a turn, oldest first (index approvals_generation). */
export const listTurnApprovals = (db: Queryable, generationId: string): Promise<readonly ApprovalRow[]> =>
  db.any(approvalKind.sql`
    select ${approvalKind.columns} from approvals t where t.generation_id = ${generationId} order by t.id`)

/** Whether a turn has a pending approval or an unsettled follow-up (index approvals_generation). */
export const isTurnAwaited = ({ id }: { id: Fragment }): Fragment => sql.fragment`exists (
  select from approvals a where a.generation_id = ${id}
    and (a.status = 'pending' or exists (select from approval_attempts w where w.approval_id = a.id)))`

/** Maximum number of approvals shown for a group. */
const CHAIN = 100

/**
 * Lists groups of equal proposals, most frequent first; the index approvals_recurrences keeps members of a group
 * together.
 */
export function listRecurrences(
  { db, page: bounds, visible }: { db: Queryable; page: Page; visible: Context['visible'] },
  { status, min_count }: { status: readonly (typeof APPROVAL_STATUSES)[number][]; min_count: number },
) {
  const mine = visible({ project: sql.fragment`a.project_id`, id: sql.fragment`a.id` }).rows
  const chosen = sql.array([...status], 'text')
  return pageResult<z.output<typeof Recurrence> & { project_id: string }>(
    { db, page: bounds },
    {
      columns: sql.fragment`t.dedup_key, t.agent_id, t.tool_id, t.count, l.chain, l.reasons`,
      from: sql.fragment`(
        select a.project_id, a.dedup_key, max(a.agent_id) as agent_id, max(a.proposed_action ->> 'tool_id') as tool_id,
          count(*) as count, max(a.created_at) as latest, array_agg(a.id order by a.created_at desc, a.id desc) as ids
        from approvals a where a.dedup_key is not null and a.status = any(${chosen}) and ${mine}
        group by a.project_id, a.dedup_key having count(*) >= ${min_count}) t
        cross join lateral (
          select json_agg(json_build_object('id', m.id, 'status', m.status, 'resolution_reason', m.resolution_reason,
              'created_at', ${isoTime(sql.fragment`m.created_at`)})
              order by m.created_at, m.id) as chain,
            coalesce(json_agg(m.resolution_reason order by m.created_at, m.id)
              filter (where m.resolution_reason <> ''), '[]') as reasons
          from approvals m where m.id = any(t.ids[1:${CHAIN}::int])) l`,
      order: sql.fragment`t.count desc, t.latest desc, t.dedup_key`,
      present: group => group,
    },
  )
}
