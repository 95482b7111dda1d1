import { z } from 'zod'
import { retryAfter, type Window, windowOf } from '#control/quotas/windows.ts'
import { kinds } from '#core/api/kind.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type Consumer, type GrantingShare, shareGrantsCondition } from './grants.ts'
import { recordCapRefusal } from './share-activity.ts'

const consumedRow = sql.type(z.object({ granted: z.boolean(), taken: z.boolean() }))

const startOfHour = (now: Date): string => windowOf('rolling_1h', now).start

/**
 * Consumes one call, or one agent turn, of the share that covers it; call this right before the call. Does nothing for
 * a call without a share. In a transaction (`db`), a rollback restores the count. One statement: the counter of the
 * window increases only below the cap, so the cap is exact across processes. Refused calls are not counted.
 * @throws SHARE_CAP_EXCEEDED with Retry-After; TOOL_NOT_FOUND or AGENT_NOT_FOUND if the share has ended
 */
export async function consumeShareCall(
  services: Services,
  consumer: Consumer | null | undefined,
  db: Queryable = services.pool,
): Promise<void> {
  const share = consumer?.share
  if (!share) return
  const now = services.clock.now()
  const window = share.cap && windowOf(share.cap.window, now)
  const found = await db.one(consumedRow`
    with granting as (
      select s.id as share_id, a.id as acceptance_id, a.project_id from share_acceptances a join shares s on s.id = a.share_id
      where a.id = ${share.acceptance_id} and ${shareGrantsCondition}),
    counted as (${countCallCte(share, window)}),
    used as (
      insert into share_usage as u (share_id, project_id, hour, calls, refused)
      select share_id, project_id, ${startOfHour(now)}::timestamptz, 1, 0 from granting where exists (select 1 from counted)
      on conflict (share_id, project_id, hour) do update set calls = u.calls + 1)
    select exists (select 1 from granting) as granted, exists (select 1 from counted) as taken`)
  if (!found.granted) raise(kinds.get(share.resource_kind).missing, { meta: { id: share.resource_id } })
  if (!found.taken && window) refuseCall(services, share, consumer.project_id, window, now)
}

/** Returns the statement part that counts the call in its window unless the cap is reached. */
const countCallCte = ({ cap }: GrantingShare, window: Window | null) =>
  cap && window
    ? sql.fragment`
      insert into share_counters as c (acceptance_id, window_key, window_start, calls)
      select acceptance_id, ${window.key}, ${window.start}::timestamptz, 1 from granting
      on conflict (acceptance_id, window_key) do update set calls = c.calls + 1 where c.calls < ${cap.calls}
      returning calls`
    : sql.fragment`select 1 from granting`

function refuseCall(services: Services, share: GrantingShare, projectId: string, window: Window, now: Date): never {
  const { calls, window: name } = share.cap as NonNullable<GrantingShare['cap']>
  // Outside the transaction that the refusal rolls back.
  onSeparateConnection(() => {
    recordRefusal(services, share.share_id, projectId, now).catch(error =>
      services.log.error({ err: error, share_id: share.share_id }, 'share refusal not recorded'),
    )
    recordCapRefusal(
      services,
      projectId,
      { ...share, id: share.share_id, project_id: share.publisher_project_id },
      { calls, window: name },
    )
  })
  const resets_at = window.resets_at as string
  const retry_after = retryAfter(resets_at, now)
  return raise('SHARE_CAP_EXCEEDED', {
    meta: { share_id: share.share_id, calls, window: name, retry_after, resets_at },
    headers: { 'Retry-After': String(retry_after) },
  })
}

/** Inserts nothing if the share or the project was deleted. */
const recordRefusal = ({ pool }: Services, shareId: string, projectId: string, now: Date) =>
  pool.query(voidStatement`
    insert into share_usage as u (share_id, project_id, hour, calls, refused)
    select s.id, p.id, ${startOfHour(now)}::timestamptz, 0, 1 from shares s cross join projects p
    where s.id = ${shareId} and p.id = ${projectId}
    on conflict (share_id, project_id, hour) do update set refused = u.refused + 1`)
