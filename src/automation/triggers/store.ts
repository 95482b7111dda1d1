import { z } from 'zod'
import type { RecordedFailure } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { type WorkItemClaim, workItemTable } from '../../core/jobs/work-item.ts'
import { type FiringResult, type FiringRow, firingKind, type TriggerRow, triggerKind } from './model.ts'

const counts = sql.type(z.object({ all: z.int(), events: z.int() }))

/** Counts the triggers of a project, to which nobody adds another until the transaction ends. Index triggers_project. */
export async function countLockedTriggers(db: Queryable, projectId: string): Promise<{ all: number; events: number }> {
  await db.query(voidStatement`select from projects where id = ${projectId} for no key update`)
  return db.one(counts`
    select count(*) as all, count(*) filter (where type = 'event') as events from triggers where project_id = ${projectId}`)
}

/** Puts a new secret in place; the old one verifies too for `keepSeconds`. */
export const rotateTriggerSecret = (
  db: Queryable,
  id: string,
  sealed: string,
  keepSeconds: number,
): Promise<TriggerRow | null> =>
  db.maybeOne(triggerKind.sql`
    update triggers t set sealed_secret = ${sealed}, updated_at = now(),
      previous_sealed_secret = case when ${keepSeconds} > 0 then t.sealed_secret end,
      previous_secret_until = case when ${keepSeconds} > 0 then now() + make_interval(secs => ${keepSeconds}) end
    where t.id = ${id} returning ${triggerKind.columns}`)

/** The triggers of a project, oldest first. Index triggers_project. */
export const triggersOf = (db: Queryable, projectId: string): Promise<readonly TriggerRow[]> =>
  db.any(triggerKind.sql`
    select ${triggerKind.columns} from triggers t where t.project_id = ${projectId} order by t.created_at, t.id`)

const WebhookTrigger = z.object({
  ...triggerKind.row.shape,
  paused_at: z.string().nullable(),
  pause_reason: z.string().nullable(),
})
export type WebhookTrigger = z.output<typeof WebhookTrigger>
const hooked = sql.type(WebhookTrigger)

/** A webhook trigger with the pause of its project; null for another trigger, and for none. */
export const findWebhookTrigger = (db: Queryable, id: string): Promise<WebhookTrigger | null> =>
  db.maybeOne(hooked`
    select ${triggerKind.columns}, p.paused_at, p.pause_reason
    from triggers t join projects p on p.id = t.project_id where t.id = ${id} and t.type = 'webhook'`)

/** Firings as attempts: each is its own entity, and stays when it has ended. */
export const triggerFiringWork = workItemTable({
  table: 'trigger_firings',
  entity: 'id',
  owner: 'trigger_firings',
  row: { losses: z.int() },
  // What is too often is a setting: `lostWorkers`.
  maxLosses: 1_000_000,
})
export type FiringClaim = WorkItemClaim & { losses: number }

const losses = sql.type(z.object({ lost: z.int() }))

/** How many workers a firing has lost, with the one that is silent now; null while none is. */
export const lostWorkerCount = (db: Queryable, id: string): Promise<number | null> =>
  db.maybeOneFirst(losses`
    select losses + 1 as lost from trigger_firings where id = ${id} and state = 'running' and due_at <= now()`)

/** A firing that a call starts, as a part of a statement; nothing where the condition does not hold or the key is taken. */
export const triggerFiringCte = (
  firing: Pick<FiringRow, 'id' | 'project_id' | 'trigger_id' | 'source' | 'target_type' | 'input' | 'idempotency_key'>,
  from: Fragment,
): Fragment => sql.fragment`
  insert into trigger_firings (id, project_id, trigger_id, source, target_type, input, idempotency_key)
  select ${firing.id}, ${firing.project_id}, ${firing.trigger_id}, ${firing.source}, ${firing.target_type},
    ${JSON.stringify(firing.input)}::json, ${firing.idempotency_key} ${from}
  on conflict (trigger_id, idempotency_key) where idempotency_key is not null do nothing
  returning id`

/** The firing of a key. Unique index trigger_firings_key. */
export const firingOfKey = (db: Queryable, triggerId: string, key: string): Promise<FiringRow | null> =>
  db.maybeOne(firingKind.sql`
    select ${firingKind.columns} from trigger_firings t where t.trigger_id = ${triggerId} and t.idempotency_key = ${key}`)

/** Firings that were not accepted one by one: by the clock, by events. `error`: refused, never tried. */
export type NewFiring = Pick<
  FiringRow,
  'id' | 'project_id' | 'trigger_id' | 'source' | 'target_type' | 'input' | 'idempotency_key' | 'causation_chain'
> & {
  event_id?: string
  scheduled_for?: string
  root_id?: string | null
  error?: RecordedFailure
  /** What it began with has led to too much. */
  skipped?: boolean
}

const ids = sql.type(z.object({ id: z.string() }))

/** What a firing takes beside its contents: its row with the room that pages leave, and its entries in indexes; measured. */
const ROW_BYTES = 1400

/** Writes firings in one statement and returns the ids of those that were not there. Unique index trigger_firings_key. */
export const insertFirings = (db: Queryable, firings: readonly NewFiring[]): Promise<readonly string[]> =>
  db.anyFirst(ids`
    insert into trigger_firings (id, project_id, trigger_id, source, target_type, input, idempotency_key, causation_chain,
      event_id, scheduled_for, root_id, state, error, due_at, completed_at)
    select f.id, f.project_id, f.trigger_id, f.source, f.target_type, f.input, f.idempotency_key,
      array(select json_array_elements_text(f.causation_chain)), f.event_id, f.scheduled_for,
      f.root_id, case when f.skipped then 'skipped' when f.error is null then 'queued' else 'failed' end, f.error, case when f.error is null then now() end,
      case when f.error is not null then now() end
    from json_to_recordset(${JSON.stringify(firings)}::json) as f (id text, project_id text, trigger_id text, source text,
      target_type text, input json, idempotency_key text, causation_chain json, event_id text, scheduled_for timestamptz,
      root_id text, error jsonb, skipped boolean)
    where exists (select from triggers g where g.id = f.trigger_id)
    on conflict (trigger_id, idempotency_key) where idempotency_key is not null do nothing
    returning id`)

const Held = z.object({ firing: firingKind.row, trigger: triggerKind.row, paused: z.boolean() })

const pausedRow = sql.type(z.object({ ...firingKind.row.shape, paused: z.boolean() }))

/** A firing, its trigger as it stands now, and whether its project is paused; null when it is gone. */
export async function findFiring(db: Queryable, id: string): Promise<z.output<typeof Held> | null> {
  const found = await db.maybeOne(pausedRow`
    select ${firingKind.columns}, (select p.paused_at is not null from projects p where p.id = t.project_id) as paused
    from trigger_firings t where t.id = ${id}`)
  const trigger = found && (await triggerKind.find(db, found.trigger_id))
  if (!found || !trigger) return null
  const { paused, ...firing } = found
  return { firing, trigger, paused }
}

/** Takes a firing that waits, to start its work in this transaction; false when it does not wait any more. */
export const lockQueuedFiring = async (db: Queryable, id: string): Promise<boolean> =>
  (await db.maybeOne(ids`
    update trigger_firings set claims = claims + 1, started_at = now(), updated_at = now()
    where id = ${id} and state = 'queued' returning id`)) !== null

/** Notes what a firing waits for. */
export const noteStarted = (db: Queryable, id: string, resultId: string, result: FiringResult) =>
  db.query(voidStatement`
    update trigger_firings set state = 'started', due_at = null, result_id = ${resultId}, result = ${JSON.stringify(result)},
      updated_at = now()
    where id = ${id}`)

/** How a firing ended. `undefined` leaves its result as it is. */
export type TriggerFiringEnd = { result?: FiringResult; result_id?: string | null; error: RecordedFailure | null }

const ending = ({ result, result_id, error }: TriggerFiringEnd): Fragment => sql.fragment`
  state = ${error ? 'failed' : 'succeeded'}, error = ${jsonb(error)}, due_at = null, completed_at = now(), updated_at = now(),
  started_at = coalesce(t.started_at, case when t.claims > 0 then now() end)
  ${result === undefined ? sql.fragment`` : sql.fragment`, result = ${JSON.stringify(result)}, result_id = ${result_id ?? null}`}`

/** Ends a firing that has not ended; null for one that has, or is gone. With a claim only while it holds. */
export const endFiring = (
  db: Queryable,
  id: string,
  end: TriggerFiringEnd,
  claim?: FiringClaim,
): Promise<FiringRow | null> =>
  db.maybeOne(firingKind.sql`
    update trigger_firings t set ${ending(end)}
    where t.id = ${id} and ${
      claim
        ? sql.fragment`t.state = 'running' and t.claims = ${claim.claims}`
        : sql.fragment`t.state in ('queued', 'running', 'started')`
    }
    returning ${firingKind.columns}`)

/** Ends the firing that waits for something; null without one. Index trigger_firings_result. */
export const settleByResult = (
  db: Queryable,
  resultId: string,
  outcome: { status: string; output: unknown },
  error: RecordedFailure | null,
): Promise<FiringRow | null> =>
  db.maybeOne(firingKind.sql`
    update trigger_firings t set state = ${error ? 'failed' : 'succeeded'}, error = ${jsonb(error)}, completed_at = now(),
      updated_at = now(),
      result = json_build_object('target_type', t.target_type, 'result_id', t.result_id, 'status', ${outcome.status}::text,
        'output', ${JSON.stringify(outcome.output ?? null)}::json)
    where t.result_id = ${resultId} and t.state = 'started' returning ${firingKind.columns}`)

/** Puts off a firing that waits while its project is paused. The share lock keeps the end of the pause from passing by. */
export const deferFiring = (db: Queryable, id: string, delayMs: number) =>
  db.query(voidStatement`
    update trigger_firings f set due_at = now() + ${delayMs} * interval '1 ms'
    where id = ${id} and state = 'queued' and exists (
      select from projects p where p.id = f.project_id and p.paused_at is not null for share of p)`)

const Waiting = z.object({ id: z.string(), project_id: z.string() })
const waiting = sql.type(Waiting)

/** Makes a batch of the firings of a project that were put off due now, and returns them. Index trigger_firings_due. */
export const releaseDeferredFirings = (
  db: Queryable,
  projectId: string,
  limit: number,
): Promise<readonly z.output<typeof Waiting>[]> =>
  db.any(waiting`
    update trigger_firings set due_at = now()
    where id = any (array(
      select id from trigger_firings
      where project_id = ${projectId} and state = 'queued' and due_at > now() order by due_at limit ${limit}
      for update skip locked)) and state = 'queued'
    returning id, project_id`)

const Orphan = z.object({ id: z.string(), created_at: z.string() })
const orphan = sql.type(Orphan)
export type Orphan = z.output<typeof Orphan>

/**
 * Firings that wait for what is gone, oldest first. Index trigger_firings_started.
 * @param started tables of what targets of a type start
 * @param after the firing to go on behind
 */
export const listOrphanedFirings = (
  db: Queryable,
  started: readonly { type: string; table: string }[],
  { after, limit }: { after: Orphan | undefined; limit: number },
): Promise<readonly Orphan[]> =>
  started.length === 0
    ? Promise.resolve([])
    : db.any(orphan`
        select f.id, f.created_at from trigger_firings f
        where f.state = 'started' and ${
          after
            ? sql.fragment`(f.created_at, f.id) > (${after.created_at}::timestamptz, ${after.id})`
            : sql.fragment`true`
        } and (${sql.join(
          started.map(
            ({ type, table }) => sql.fragment`(f.target_type = ${type}
              and not exists (select from ${sql.identifier([table])} s where s.id = f.result_id))`,
          ),
          sql.fragment` or `,
        )})
        order by f.created_at, f.id limit ${limit}`)

/** Whether a firing waits for a worker, or has one. Index trigger_firings_due. */
export const hasDueTriggers: Fragment = sql.fragment`exists (select from trigger_firings where due_at < now())`

/** Whether a firing waits for what it started. Index trigger_firings_started. */
export const hasStarted: Fragment = sql.fragment`exists (select from trigger_firings where state = 'started')`

/**
 * What firings of a project take: what they were given and came to, as it is stored, and their rows with the entries of indexes.
 * Index trigger_firings_project.
 */
export const firingFootprint = (project: Fragment) => ({
  bytes: sql.fragment`
    select sum(pg_column_size(f.input) + coalesce(pg_column_size(f.result), 0) + coalesce(pg_column_size(f.error), 0) + ${ROW_BYTES})
    from trigger_firings f where f.project_id = ${project}`,
})

/** Deletes a batch of firings that ended before a time. Index trigger_firings_ended. */
export async function deleteEnded(db: Queryable, before: Date, limit: number): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    delete from trigger_firings where id = any (array(
      select id from trigger_firings
      where state in ('succeeded', 'failed', 'skipped') and completed_at < ${before.toISOString()}::timestamptz
      order by completed_at limit ${limit}))`)
  return rowCount
}

/** Erases what turns were given by firings and said to them. Index trigger_firings_result. */
export const eraseFiringTurns = (db: Queryable, generationIds: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    update trigger_firings set input = '{}', error = null, updated_at = now(),
      result = json_build_object('target_type', target_type, 'result_id', result_id, 'status', result ->> 'status', 'output', null)
    where result_id = any(${sql.array([...generationIds], 'text')}) returning id`)

const madeAgain = sql.type(z.strictObject({ id: z.string(), project_id: z.string() }))

/** Makes firings again, each as a new one; returns those that were not there. */
export const refireTrigger = (
  db: Queryable,
  taken: readonly { id: string }[],
): Promise<readonly { id: string; project_id: string }[]> =>
  db.any(madeAgain`
    insert into trigger_firings (id, project_id, trigger_id, source, target_type, input, idempotency_key, event_id,
      scheduled_for, causation_chain, root_id, fired_by, asked_by)
    select n.new_id, t.project_id, t.trigger_id, t.source, t.target_type, t.input, 'again:' || t.id, t.event_id,
      t.scheduled_for, t.causation_chain, t.root_id, t.fired_by, t.asked_by
    from ${sql.unnest(
      taken.map(({ id }) => [id, newId(firingKind.prefix)]),
      ['text', 'text'],
    )} as n (id, new_id) join trigger_firings t on t.id = n.id
    on conflict (trigger_id, idempotency_key) where idempotency_key is not null do nothing
    returning id, project_id`)

/** Since when the oldest firing waits for a worker; a pause takes the time of those that it puts off. By trigger_firings_due. */
export const oldestFiring: Fragment = sql.fragment`(
  select min(due_at) from trigger_firings where state = 'queued' and due_at <= now())`
