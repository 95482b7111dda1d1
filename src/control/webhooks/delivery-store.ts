import { z } from 'zod'
import { newId } from '#core/base/ids.ts'
import { isTracing } from '#core/base/telemetry.ts'
import { allOf, type Fragment, idStatement, type Queryable, rawFragment, sql, voidStatement } from '#core/db/sql.ts'
import { hasTimeLeft, joinAccount, leastDebt } from '#core/queues/suspects.ts'
import { MAX_WORKER_LOSSES } from '#core/work/message-claims.ts'
import { insertSpanRows, type SpanRow } from '#core/writes/span-outbox.ts'
import { DispatchedEvent, eventSubscribers } from './event-subscribers.ts'
import { deliveryKind, envelopeExpr, Webhook } from './model.ts'

export const WebhookSubscriber = z.object({
  id: z.string(),
  project_id: z.string(),
  events: z.array(z.string()),
  policy_id: z.string().nullable(),
  policy: z.unknown(),
})
/** Fields of a webhook for matching. `policy` is the document; null with a `policy_id` means a deleted policy. */
export type WebhookSubscriber = z.output<typeof WebhookSubscriber>

const WebhookTarget = z.object({ webhook_id: z.string(), project_id: z.string() })
export type WebhookTarget = z.output<typeof WebhookTarget>

const targetRow = sql.type(WebhookTarget)

const undispatched = sql.fragment`e.dispatched_at is null and not e.dispatch_deferred`

/**
 * Number of oldest events within which projects take turns. It is no value of the statement, like the limit below: with
 * values in its limits PostgreSQL plans it each time, 1 ms for 0.02 ms of work, which idle workers would repeat every sweep.
 */
const WINDOW = rawFragment('2000')

/**
 * Returns a select of the next undispatched events that no other process has locked: the oldest of each project, then
 * the second of each, so that a quiet project does not wait for a busy one. Index events_undispatched; 5 ms with a full
 * window, 0.2 ms with one waiting event.
 */
const nextUndispatched = (limit: number): Fragment => sql.fragment`
  select e.id, e.project_id from (
    select o.id from (
      select e.id, e.project_id collate "C" as project_id, e.created_at from events e
      where ${undispatched} order by e.created_at limit ${WINDOW}
    ) o order by row_number() over (partition by o.project_id order by o.created_at), o.created_at
  ) n cross join lateral (
    select e.id, e.project_id from events e where e.id = n.id and ${undispatched} for update skip locked
  ) e
  limit ${rawFragment(String(limit))}`

/**
 * Condition that a project has a webhook. Includes disabled webhooks, which may be enabled before an event commits
 * (index webhooks_project).
 */
export const hasWebhook = (project: Fragment): Fragment => sql.fragment`
  exists (select from webhooks w where w.project_id = ${project} and w.task_id is null)`

const markedRow = sql.type(z.object({ seen: z.int(), left: z.array(z.string()) }))

/**
 * Marks the next undispatched events, up to `limit`, as dispatched if their project has no active subscriber. One round
 * trip. Returns the number of events read as `seen`, and the ids of the unmarked events in dispatch order as `left`.
 */
export async function markWithoutSubscribers(db: Queryable, limit: number): Promise<{ seen: number; left: string[] }> {
  return db.one(markedRow`
    with picked as materialized (
      select n.*, row_number() over () as place from (${nextUndispatched(limit)}) n
    ), passed as (
      update events e set dispatched_at = now() from picked p
      where e.id = p.id and not exists (select from webhooks w where w.project_id = p.project_id and w.active and w.task_id is null)
        ${sql.join(
          eventSubscribers.all().map(({ active }) => sql.fragment`and not ${active(sql.fragment`p.project_id`)}`),
          sql.fragment` `,
        )}
      returning e.id
    )
    select (select count(*)::int from picked) as seen,
      array(select p.id from picked p where p.id not in (select id from passed) order by p.place) as left`)
}

const dispatchRow = sql.type(z.object({ events: z.array(DispatchedEvent), webhooks: z.array(WebhookSubscriber) }))

/**
 * Locks undispatched events and reads them with the active webhooks of their projects, in one round trip. Events of
 * `next` are skipped if another process has locked or deferred them; events of `ids` are waited for.
 */
export async function readUndispatched(
  db: Queryable,
  which: { next: readonly string[] } | { ids: readonly string[] },
): Promise<{ events: DispatchedEvent[]; webhooks: WebhookSubscriber[] }> {
  const [ids, condition] =
    'ids' in which
      ? [which.ids, sql.fragment`e.dispatched_at is null order by e.id for update`]
      : [which.next, sql.fragment`${undispatched} order by e.id for update skip locked`]
  const found = await db.one(dispatchRow`
    with picked as (
      select e.id, e.project_id, e.name, e.resource_type, e.resource_id,
        case when exists (
          select from webhooks w where w.project_id = e.project_id and w.active and w.task_id is null and w.policy_id is not null
        ) then e.envelope::json #> '{data,tags}' end as tags
      from events e where e.id = any (${sql.array([...ids], 'text')}) and ${condition}
    ), hooks as (
      select w.id, w.project_id, w.events, w.policy_id, p.document as policy
      from webhooks w left join policies p on p.id = w.policy_id
      where w.active and w.task_id is null and w.project_id in (select project_id from picked)
    )
    select (select coalesce(json_agg(picked), '[]') from picked) as events,
      (select coalesce(json_agg(hooks), '[]') from hooks) as webhooks`)
  const order = new Map(ids.map((id, index) => [id, index]))
  found.events.sort((a, b) => (order.get(a.id) as number) - (order.get(b.id) as number))
  return found
}

/**
 * Marks events as dispatched and queues the deliveries of `pairs`. Skips pairs that already have a delivery, and
 * webhooks that are newer than the event or have been disabled. Returns the webhooks with new deliveries.
 */
export async function completeDispatch(
  db: Queryable,
  eventIds: readonly string[],
  pairs: readonly { event_id: string; webhook_id: string }[],
): Promise<readonly WebhookTarget[]> {
  return db.any(targetRow`
    with marked as (
      update events set dispatched_at = now() where id = any (${sql.array([...eventIds], 'text')})
    ), made as (
      insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type)
      select p.id, w.id, w.project_id, e.id, e.name
      from ${sql.unnest(
        pairs.map(pair => [newId(deliveryKind.prefix), pair.event_id, pair.webhook_id]),
        ['text', 'text', 'text'],
      )} as p (id, event_id, webhook_id)
      join events e on e.id = p.event_id
      join webhooks w on w.id = p.webhook_id and w.active and w.created_at <= e.created_at
      on conflict do nothing
      returning webhook_id, project_id
    )
    select distinct webhook_id, project_id from made`)
}

/** Excludes the next undispatched events from batches, for individual dispatch; returns their ids. */
export async function deferDispatch(db: Queryable, limit: number): Promise<readonly string[]> {
  return db.anyFirst(idStatement`
    update events set dispatch_deferred = true
    where id = any (array(select n.id from (${nextUndispatched(limit)}) n))
    returning id`)
}

/**
 * CTE `queued` of webhooks with queued deliveries. A skip scan of webhook_deliveries_queued, so that its cost does not
 * depend on the backlog of a webhook.
 */
const queuedWebhooks: Fragment = sql.fragment`
    with recursive queued as (
      (select webhook_id from webhook_deliveries where status = 'queued' order by webhook_id limit 1)
      union all
      select (select d.webhook_id from webhook_deliveries d
        where d.status = 'queued' and d.webhook_id > q.webhook_id order by d.webhook_id limit 1)
      from queued q where q.webhook_id is not null
    )`

const isDue = sql.fragment`t.status = 'queued' and t.next_attempt_at <= now()
        and (t.lease_expires_at is null or t.lease_expires_at <= now())`

const dueRow = sql.type(z.strictObject({ targets: z.array(WebhookTarget), suspects: z.boolean() }))

/**
 * Lists webhooks with due deliveries that are not leased. `suspects`: whether suspects are due (index
 * webhook_deliveries_suspects).
 */
export const listWebhooksWithDue = (db: Queryable): Promise<{ targets: WebhookTarget[]; suspects: boolean }> =>
  db.one(dueRow`
    ${queuedWebhooks}
    select coalesce(json_agg(json_build_object('webhook_id', w.id, 'project_id', w.project_id)), '[]') as targets,
      exists (select from webhook_deliveries t where ${isDue} and t.worker_losses > 0) as suspects
    from queued q join webhooks w on w.id = q.webhook_id
    where exists (select from webhook_deliveries t where t.webhook_id = q.webhook_id and ${isDue} and t.worker_losses = 0)`)

/** Expression for the time of the oldest undispatched event or due delivery (events_undispatched, and a skip scan). */
export const oldestDelivery: Fragment = sql.fragment`least(
  (select e.created_at from events e where ${undispatched} order by e.created_at, e.id limit 1),
  (${queuedWebhooks}
    select min(d.next_attempt_at) from queued q cross join lateral (
      select t.next_attempt_at from webhook_deliveries t
      where t.webhook_id = q.webhook_id and t.status = 'queued' and t.next_attempt_at <= now()
        and (t.lease_expires_at is null or t.lease_expires_at <= now())
      order by t.next_attempt_at, t.id limit 1) d))`

/** Claim for one webhook: at most `rows` deliveries and `slots` slots in addition to the held ones. */
export type DeliveryClaimRequest = { webhook_id: string; rows: number; slots: number; held: readonly number[] }

const ClaimedDelivery = z.object({
  id: z.string(),
  claim: z.int(),
  attempts: z.int(),
  event_id: z.string(),
  event_type: z.string(),
  envelope: z.string(),
  trace_context: z.string().nullable(),
  webhook_id: z.string(),
  project_id: z.string(),
  url: z.string(),
  sealed_secret: z.string(),
  previous_sealed_secret: z.string().nullable(),
  previous_secret_until: z.string().nullable(),
  sealed_headers: z.string().nullable(),
  ...Webhook.pick({ template: true, mail: true, secret_id: true }).shape,
})
/** A claimed delivery with the data to send it; secrets are sealed. */
export type ClaimedDelivery = z.output<typeof ClaimedDelivery>

const SuspectDelivery = ClaimedDelivery.extend({ worker_losses: z.int() })
/** A claimed delivery that was claimed by workers that were lost. */
export type SuspectDelivery = z.output<typeof SuspectDelivery>

export type ClaimGrant = { webhook_id: string; slots: number[]; deliveries: ClaimedDelivery[] }

// A row without a delivery only returns the held slots.
const grantRow = sql.type(
  z.object({
    ...ClaimedDelivery.shape,
    slots: z.array(z.int()).nullable(),
    id: z.string().nullable(),
    claim: z.int().nullable(),
    attempts: z.int().nullable(),
    event_id: z.string().nullable(),
    event_type: z.string().nullable(),
    envelope: z.string().nullable(),
  }),
)

/** Context of the span that caused the event of a delivery, read only for telemetry. */
const eventContext = (delivery: Fragment): Fragment =>
  isTracing()
    ? sql.fragment`(select e.trace_context from events e where e.id = ${delivery}.event_id)`
    : sql.fragment`null::text`

/**
 * Claims due deliveries and the slots to send them, for many webhooks in one statement. Rows and slots locked by
 * another worker are skipped and checked in their latest version, so that two workers never claim the same row. Nothing
 * is claimed without a slot. Leases of held slots are renewed; expired slots are missing from the result.
 */
export async function claimDueDeliveries(
  db: Queryable,
  holder: string,
  requests: readonly DeliveryClaimRequest[],
  leaseMs: number,
): Promise<Map<string, ClaimGrant>> {
  const lease = sql.fragment`now() + make_interval(secs => ${leaseMs / 1000})`
  const rows = await db.any(grantRow`
    with request as (
      select * from ${sql.unnest(
        requests.map(request => [request.webhook_id, request.rows, request.slots]),
        ['text', 'int4', 'int4'],
      )} as r (webhook_id, rows, slots)
    ), due as materialized (
      select d.id, r.webhook_id from request r cross join lateral (
        select t.id from webhook_deliveries t
        where t.webhook_id = r.webhook_id and ${isDue} and t.worker_losses = 0
        order by t.next_attempt_at, t.id limit r.rows for update skip locked
      ) d
    ), found as (
      select webhook_id, count(*) as number from due group by webhook_id
    ), free as materialized (
      select s.webhook_id, s.slot from request r join found f on f.webhook_id = r.webhook_id cross join lateral (
        select t.webhook_id, t.slot from webhook_slots t
        where t.webhook_id = r.webhook_id and (t.lease_expires_at is null or t.lease_expires_at <= now())
        order by t.slot limit least(r.slots, f.number) for update skip locked
      ) s
    ), taken as (
      update webhook_slots s set holder = ${holder}, lease_expires_at = ${lease}
      from free f where s.webhook_id = f.webhook_id and s.slot = f.slot
      returning s.webhook_id, s.slot
    ), renewed as (
      update webhook_slots s set lease_expires_at = ${lease}
      from ${sql.unnest(
        requests.flatMap(request => request.held.map(slot => [request.webhook_id, slot])),
        ['text', 'int4'],
      )} as x (webhook_id, slot)
      where s.webhook_id = x.webhook_id and s.slot = x.slot and s.holder = ${holder} and s.lease_expires_at > now()
      returning s.webhook_id, s.slot
    ), held as (
      select webhook_id, array_agg(slot::int) as slots
      from (select * from taken union all select * from renewed) s group by webhook_id
    ), claimed as (
      update webhook_deliveries d set claim = d.claim + 1, lease_expires_at = ${lease}, holder = ${holder}
      from due u where d.id = u.id and u.webhook_id in (select webhook_id from held)
      returning d.id, d.claim, d.attempts, d.event_id, d.event_type, d.envelope, d.webhook_id, d.next_attempt_at
    )
    select r.webhook_id, h.slots, c.id, c.claim, c.attempts, c.event_id, c.event_type, ${envelopeExpr(sql.fragment`c`)} as envelope,
      ${eventContext(sql.fragment`c`)} as trace_context, w.project_id, w.url,
      w.sealed_secret, w.previous_sealed_secret, w.previous_secret_until, w.sealed_headers,
      w.template, w.mail, w.secret_id
    from request r
    join webhooks w on w.id = r.webhook_id
    left join held h on h.webhook_id = r.webhook_id
    left join claimed c on c.webhook_id = r.webhook_id
    order by c.next_attempt_at, c.id`)
  const grants = new Map<string, ClaimGrant>()
  for (const { slots, ...row } of rows) {
    let grant = grants.get(row.webhook_id)
    if (!grant) {
      grant = { webhook_id: row.webhook_id, slots: slots ?? [], deliveries: [] }
      grants.set(row.webhook_id, grant)
    }
    if (row.id !== null) grant.deliveries.push(row as ClaimedDelivery)
  }
  return grants
}

const nextSuspect = sql.fragment`webhook_deliveries t
      join webhooks w on w.id = t.webhook_id ${rawFragment(joinAccount('w.project_id'))}
      where ${isDue} and t.worker_losses > 0 and ${rawFragment(hasTimeLeft)}
      order by t.worker_losses, ${rawFragment(leastDebt)}, t.next_attempt_at, t.id limit 1`

/** Returns the lost workers of the next suspect that is due; null without one (index webhook_deliveries_suspects). */
export const findSuspectDelivery = (db: Queryable): Promise<number | null> =>
  db.maybeOneFirst(sql.type(SuspectDelivery.pick({ worker_losses: true }))`select t.worker_losses from ${nextSuspect}`)

/**
 * Claims the next suspect that is due; null without one. Without a slot of its webhook, which other workers may hold for
 * long: a process sends one suspect at a time (index webhook_deliveries_suspects).
 */
export const claimSuspectDelivery = (
  db: Queryable,
  holder: string,
  { alone, leaseMs }: { alone: boolean; leaseMs: number },
): Promise<SuspectDelivery | null> =>
  db.maybeOne(sql.type(SuspectDelivery)`
    with claimed as (
      update webhook_deliveries d
      set claim = d.claim + 1, lease_expires_at = now() + make_interval(secs => ${leaseMs / 1000}), holder = ${holder},
        ran_alone = ${alone}
      from (select t.id from ${nextSuspect} for update of t skip locked) n where d.id = n.id
      returning d.*
    )
    select c.id, c.claim, c.attempts, c.worker_losses, c.event_id, c.event_type, ${envelopeExpr(sql.fragment`c`)} as envelope,
      ${eventContext(sql.fragment`c`)} as trace_context, c.webhook_id, w.project_id, w.url, w.sealed_secret, w.previous_sealed_secret, w.previous_secret_until, w.sealed_headers,
      w.template, w.mail, w.secret_id
    from claimed c join webhooks w on w.id = c.webhook_id`)

/** Records that other work is in progress alongside a claimed suspect. */
export const endSuspectProbation = (db: Queryable, { id, claim }: Pick<ClaimedDelivery, 'id' | 'claim'>) =>
  db.query(voidStatement`update webhook_deliveries set ran_alone = false where id = ${id} and claim = ${claim}`)

/**
 * Releases the slots and deliveries of a holder that it does not have, because the answer of a claim was lost. The holder
 * must not wait for a claim meanwhile. Returns their webhooks.
 */
export const releaseUnheld = (
  db: Queryable,
  holder: string,
  held: { slots: readonly { webhook_id: string; slot: number }[]; deliveries: readonly string[] },
): Promise<readonly WebhookTarget[]> =>
  db.any(targetRow`
    with slots as (
      update webhook_slots s set holder = null, lease_expires_at = null
      where s.holder = ${holder} and s.lease_expires_at > now() and (s.webhook_id, s.slot) not in (
        select * from ${sql.unnest(
          held.slots.map(({ webhook_id, slot }) => [webhook_id, slot]),
          ['text', 'int4'],
        )})
      returning s.webhook_id
    ), deliveries as (
      update webhook_deliveries d set holder = null, lease_expires_at = null
      where d.status = 'queued' and d.holder = ${holder} and d.lease_expires_at > now()
        and d.id <> all (${sql.array([...held.deliveries], 'text')})
      returning d.webhook_id
    )
    select id as webhook_id, project_id from webhooks
    where id in (select webhook_id from slots union select webhook_id from deliveries)`)

/**
 * Outcome of a claimed delivery. `settled: false` requeues it unchanged. `counted` increments the attempts; `retry_ms`
 * is the delay of the next attempt, null without one.
 */
export type DeliveryOutcome = {
  id: string
  webhook_id: string
  claim: number
  settled: boolean
  status: 'queued' | 'completed' | 'failed'
  status_code: number | null
  counted: boolean
  retry_ms: number | null
  response_body: string | null
}

const isRecorded = sql.fragment`r.work_id in (select id from recorded)`

/**
 * Records outcomes with the spans of their attempts, resets the failure count of webhooks with a completed delivery, and releases slots, in one
 * statement. The claim number fences each outcome: neither a worker that was paused past its lease nor a repeated write
 * after a lost result changes anything. Returns the ids of the recorded deliveries.
 */
export async function recordOutcomes(
  db: Queryable,
  holder: string,
  {
    outcomes,
    releases,
    spans,
  }: {
    outcomes: readonly DeliveryOutcome[]
    releases: readonly { webhook_id: string; slot: number }[]
    /** For the targets of projects; most have none. */
    spans: readonly SpanRow[]
  },
): Promise<Set<string>> {
  const succeeded = [...new Set(outcomes.filter(item => item.status === 'completed').map(item => item.webhook_id))]
  const ids = await db.anyFirst(idStatement`
    with released as (
      update webhook_slots s set holder = null, lease_expires_at = null
      from ${sql.unnest(
        releases.map(release => [release.webhook_id, release.slot]),
        ['text', 'int4'],
      )} as r (webhook_id, slot)
      where s.webhook_id = r.webhook_id and s.slot = r.slot and s.holder = ${holder}
    ), well as (
      update webhooks w set failures = 0, failing_since = null
      where w.id = any (${sql.array(succeeded, 'text')}) and w.failures > 0
    )
    ${spans.length > 0 ? sql.fragment`, recorded as (` : sql.fragment``}
    update webhook_deliveries d set
      lease_expires_at = null,
      worker_losses = case when o.settled then 0 else d.worker_losses end,
      status = o.status,
      status_code = case when o.settled then o.status_code else d.status_code end,
      response_body = case when o.settled then o.response_body else d.response_body end,
      attempts = d.attempts + o.counted::int,
      last_attempt_at = case when o.counted then now() else d.last_attempt_at end,
      next_attempt_at = case when o.settled then now() + make_interval(secs => o.retry_ms / 1000) else d.next_attempt_at end,
      updated_at = case when o.settled then now() else d.updated_at end
    from ${sql.unnest(
      outcomes.map(item => [
        item.id,
        item.claim,
        item.settled,
        item.status,
        item.status_code,
        item.counted,
        item.retry_ms,
        item.response_body,
      ]),
      ['text', 'int4', 'bool', 'text', 'int4', 'bool', 'float8', 'text'],
    )} as o (id, claim, settled, status, status_code, counted, retry_ms, response_body)
    where d.id = o.id and d.claim = o.claim and d.status = 'queued' and d.lease_expires_at is not null
    returning d.id
    ${spans.length > 0 ? sql.fragment`), spans as (${insertSpanRows(spans, isRecorded)}) select id from recorded` : sql.fragment``}`)
  return new Set(ids)
}

/**
 * Adds consecutive failures by webhook. Returns the active webhooks with at least `limit` failures that have been
 * failing since `since` or longer.
 */
export async function countFailures(
  db: Queryable,
  failures: ReadonlyMap<string, number>,
  now: Date,
  { limit, since }: { limit: number; since: Date },
): Promise<readonly string[]> {
  return db.anyFirst(idStatement`
    with locked as (
      select w.id from webhooks w where w.id = any (${sql.array([...failures.keys()], 'text')})
      order by w.id for no key update
    ), counted as (
      update webhooks w set failures = w.failures + f.number,
        failing_since = coalesce(w.failing_since, ${now.toISOString()}::timestamptz)
      from locked l join ${sql.unnest([...failures], ['text', 'int4'])} as f (id, number) on f.id = l.id
      where w.id = l.id
      returning w.id, w.active, w.failures, w.failing_since
    )
    select id from counted
    where active and failures >= ${limit} and failing_since <= ${since.toISOString()}::timestamptz`)
}

const EndedLease = WebhookTarget.extend({
  delivery_id: z.string().nullable(),
  event_id: z.string().nullable(),
  worker_losses: z.int().nullable(),
  failed: z.boolean(),
})
/** A webhook with an expired slot, or a delivery with an expired lease. */
export type EndedLease = z.output<typeof EndedLease>

/**
 * Expires the delivery and slot leases of dead processes and counts the lost workers of the deliveries, which become
 * suspects; fails those that were alone in the last of MAX_WORKER_LOSSES, or lost more (indexes webhook_deliveries_queued and
 * webhook_deliveries_suspects).
 */
export const expireDeliveryLeases = (
  db: Queryable,
  isGone: (holder: Fragment) => Fragment,
  reason: string,
): Promise<readonly EndedLease[]> => {
  const isHolderGone = allOf([sql.fragment`lease_expires_at > now()`, isGone(sql.fragment`split_part(holder, ':', 1)`)])
  return db.any(sql.type(EndedLease)`
    with slots as (
      update webhook_slots set lease_expires_at = now() where ${isHolderGone} returning webhook_id),
    leased as (
      select id from webhook_deliveries
      where status = 'queued' and webhook_id in (select webhook_id from webhook_slots where ${isHolderGone}) and ${isHolderGone}
      union
      select id from webhook_deliveries where status = 'queued' and worker_losses > 0 and ${isHolderGone}),
    deliveries as (
      update webhook_deliveries d set worker_losses = d.worker_losses + 1, ran_alone = false,
        lease_expires_at = case when not l.failed then now() end,
        status = case when l.failed then 'failed' else d.status end,
        response_body = case when l.failed then ${reason} else d.response_body end,
        next_attempt_at = case when not l.failed then d.next_attempt_at end,
        updated_at = case when l.failed then now() else d.updated_at end
      from (
        select t.id, t.worker_losses + 1 + t.ran_alone::int > ${MAX_WORKER_LOSSES} as failed
        from webhook_deliveries t where t.id in (select id from leased) and t.status = 'queued' and ${isHolderGone}
        order by t.id for update) l
      where d.id = l.id
      returning d.id, d.webhook_id, d.event_id, d.worker_losses, l.failed)
    select w.id as webhook_id, w.project_id, d.id as delivery_id, d.event_id, d.worker_losses, coalesce(d.failed, false) as failed
    from (
      select webhook_id, id, event_id, worker_losses, failed from deliveries
      union all
      select distinct webhook_id, null, null, null::int, false from slots) d
    join webhooks w on w.id = d.webhook_id`)
}
