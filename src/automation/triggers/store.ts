import { z } from 'zod'
import type { RecordedFailure } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { isTracing, traceContext } from '#core/base/telemetry.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type FiringResult, type FiringRow, firingKind, type TriggerRow, triggerKind } from './model.ts'

const triggerCountRow = sql.type(z.object({ all: z.int(), events: z.int() }))

/**
 * Counts the triggers of a project. Locks the project row, so that none is added until the transaction ends. Index
 * triggers_project.
 */
export async function countLockedTriggers(db: Queryable, projectId: string): Promise<{ all: number; events: number }> {
  await db.query(voidStatement`select from projects where id = ${projectId} for no key update`)
  return db.one(triggerCountRow`
    select count(*) as all, count(*) filter (where type = 'event') as events from triggers where project_id = ${projectId}`)
}

/** Replaces the secret of a trigger. The previous secret stays valid for `keepSeconds`. */
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

/** Lists the triggers of a project, oldest first. Index triggers_project. */
export const listProjectTriggers = (db: Queryable, projectId: string): Promise<readonly TriggerRow[]> =>
  db.any(triggerKind.sql`
    select ${triggerKind.columns} from triggers t where t.project_id = ${projectId} order by t.created_at, t.id`)

const WebhookTrigger = z.object({
  ...triggerKind.row.shape,
  paused_at: z.string().nullable(),
  pause_reason: z.string().nullable(),
})
export type WebhookTrigger = z.output<typeof WebhookTrigger>
const webhookTriggerRow = sql.type(WebhookTrigger)

/** Returns a webhook trigger with the pause state of its project. Null for other types. */
export const findWebhookTrigger = (db: Queryable, id: string): Promise<WebhookTrigger | null> =>
  db.maybeOne(webhookTriggerRow`
    select ${triggerKind.columns}, p.paused_at, p.pause_reason
    from triggers t join projects p on p.id = t.project_id where t.id = ${id} and t.type = 'webhook'`)

/** Returns the CTE that inserts the firing of a webhook call, unless `from` is empty or the key exists. */
export const triggerFiringCte = (
  firing: Pick<FiringRow, 'id' | 'project_id' | 'trigger_id' | 'source' | 'target_type' | 'input' | 'idempotency_key'>,
  from: Fragment,
): Fragment => sql.fragment`
  insert into trigger_firings (id, project_id, trigger_id, source, target_type, input, idempotency_key, trace_context)
  select ${firing.id}, ${firing.project_id}, ${firing.trigger_id}, ${firing.source}, ${firing.target_type},
    ${JSON.stringify(firing.input)}::json, ${firing.idempotency_key}, ${traceContext()} ${from}
  on conflict (trigger_id, idempotency_key) where idempotency_key is not null do nothing
  returning id`

/** Returns the firing with an idempotency key. Unique index trigger_firings_key. */
export const findFiringByKey = (db: Queryable, triggerId: string, key: string): Promise<FiringRow | null> =>
  db.maybeOne(firingKind.sql`
    select ${firingKind.columns} from trigger_firings t where t.trigger_id = ${triggerId} and t.idempotency_key = ${key}`)

/** Firing of a schedule or event. With `error` it was refused and is never attempted. */
export type NewFiring = Pick<
  FiringRow,
  'id' | 'project_id' | 'trigger_id' | 'source' | 'target_type' | 'input' | 'idempotency_key' | 'causation_chain'
> & {
  event_id?: string
  scheduled_for?: string
  root_id?: string | null
  error?: RecordedFailure
  /** Whether its root has reached the firing limit. */
  skipped?: boolean
  unmapped?: boolean
}

/** Measured bytes per firing in addition to its contents: row overhead with free page space, and index entries. */
const ROW_BYTES = 1400

/** Context of the span that caused the event of a firing `f`, read only for telemetry. */
const eventContext = (): Fragment =>
  isTracing() ? sql.fragment`(select e.trace_context from events e where e.id = f.event_id)` : sql.fragment`null`

/** Inserts firings in one statement and returns the ids of those whose key is new. Unique index trigger_firings_key. */
export const insertFirings = (db: Queryable, firings: readonly NewFiring[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    insert into trigger_firings (id, project_id, trigger_id, source, target_type, input, idempotency_key, causation_chain,
      event_id, scheduled_for, root_id, unmapped, trace_context, state, error, due_at, completed_at)
    select f.id, f.project_id, f.trigger_id, f.source, f.target_type, f.input, f.idempotency_key,
      array(select json_array_elements_text(f.causation_chain)), f.event_id, f.scheduled_for,
      f.root_id, coalesce(f.unmapped, false), ${eventContext()}, case when f.skipped then 'skipped' when f.error is null then 'queued' else 'failed' end, f.error, case when f.error is null then now() end,
      case when f.error is not null then now() end
    from json_to_recordset(${JSON.stringify(firings)}::json) as f (id text, project_id text, trigger_id text, source text,
      target_type text, input json, idempotency_key text, causation_chain json, event_id text, scheduled_for timestamptz,
      root_id text, error jsonb, skipped boolean, unmapped boolean)
    where exists (select from triggers g where g.id = f.trigger_id)
    on conflict (trigger_id, idempotency_key) where idempotency_key is not null do nothing
    returning id`)

type FiringWithTrigger = { firing: FiringRow; trigger: TriggerRow; paused: boolean }

const firingWithPauseRow = sql.type(z.object({ ...firingKind.row.shape, paused: z.boolean() }))

/** Returns a firing with its current trigger and whether its project is paused. */
export async function findFiring(db: Queryable, id: string): Promise<FiringWithTrigger | null> {
  const row = await db.maybeOne(firingWithPauseRow`
    select ${firingKind.columns}, (select p.paused_at is not null from projects p where p.id = t.project_id) as paused
    from trigger_firings t where t.id = ${id}`)
  const trigger = row && (await triggerKind.find(db, row.trigger_id))
  if (!row || !trigger) return null
  const { paused, ...firing } = row
  return { firing, trigger, paused }
}

/** Locks a firing if it is still queued. Returns whether it is. */
export const lockQueuedFiring = async (db: Queryable, id: string): Promise<boolean> =>
  (await db.maybeOne(idStatement`select id from trigger_firings where id = ${id} and state = 'queued' for update`)) !==
  null

/** Assignment of the input of a firing that has been mapped; none for null. */
const mappedInput = (input: Record<string, unknown> | null): Fragment =>
  input === null ? sql.fragment`` : sql.fragment`, input = ${JSON.stringify(input)}::json, unmapped = false`

/** Stores the work that a firing has started, and its input if it was mapped for that. */
export const recordStartedWork = (
  db: Queryable,
  id: string,
  result: FiringResult & { result_id: string },
  input: Record<string, unknown> | null,
) =>
  db.query(voidStatement`
    update trigger_firings set state = 'started', claims = claims + 1, due_at = null, result_id = ${result.result_id},
      result = ${JSON.stringify(result)}, started_at = now(), updated_at = now() ${mappedInput(input)}
    where id = ${id}`)

/** Stores the mapped input of a firing before its target is called, so that every attempt calls it with the same input. */
export const storeMappedInput = (db: Queryable, id: string, input: Record<string, unknown>) =>
  db.query(voidStatement`
    update trigger_firings set updated_at = now() ${mappedInput(input)} where id = ${id} and state = 'queued' and unmapped`)

/** Values of a settled firing. Without `result`, `attempts` or mapped `input` the stored value is kept. */
export type TriggerFiringEnd = {
  result?: FiringResult
  attempts?: number
  input?: Record<string, unknown> | null
  error: RecordedFailure | null
}

/** Settles a firing that has not settled. Returns null otherwise. */
export const settleTriggerFiringRow = (
  db: Queryable,
  id: string,
  { result, attempts, input = null, error }: TriggerFiringEnd,
): Promise<FiringRow | null> =>
  db.maybeOne(firingKind.sql`
    update trigger_firings t set state = ${error ? 'failed' : 'succeeded'}, error = ${jsonb(error)}, due_at = null,
      result = coalesce(${result === undefined ? null : JSON.stringify(result)}::json, t.result),
      claims = coalesce(${attempts ?? null}::integer, t.claims),
      started_at = coalesce(t.started_at, case when t.claims > 0 then now() end), completed_at = now(), updated_at = now()
      ${mappedInput(input)}
    where t.id = ${id} and t.state in ('queued', 'running', 'started')
    returning ${firingKind.columns}`)

/** Settles the firing that waits for `resultId`; null if there is none. Index trigger_firings_result. */
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

const Orphan = z.object({ id: z.string(), created_at: z.string() })
const orphanRow = sql.type(Orphan)
export type Orphan = z.output<typeof Orphan>

/**
 * Lists started firings whose work was deleted, oldest first. Index trigger_firings_started.
 * @param started table of the work that targets of each type start
 * @param after the last firing of the previous page
 */
export const listOrphanedFirings = (
  db: Queryable,
  started: readonly { type: string; table: string }[],
  { after, limit }: { after: Orphan | undefined; limit: number },
): Promise<readonly Orphan[]> =>
  started.length === 0
    ? Promise.resolve([])
    : db.any(orphanRow`
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

/** Condition: a firing is overdue, or waits for work that it started. Indexes trigger_firings_due, _started. */
export const hasFiringsToSweep: Fragment = sql.fragment`(
  exists (select from trigger_firings where due_at < now()) or exists (select from trigger_firings where state = 'started'))`

/** Storage of a project's firings: contents as stored, rows and index entries. Index trigger_firings_project. */
export const firingFootprint = (project: Fragment) => ({
  bytes: sql.fragment`
    select sum(pg_column_size(f.input) + coalesce(pg_column_size(f.result), 0) + coalesce(pg_column_size(f.error), 0) + ${ROW_BYTES})
    from trigger_firings f where f.project_id = ${project}`,
})

/** Deletes a batch of firings that settled before a time. Index trigger_firings_ended. */
export async function deleteSettledTriggerFirings(db: Queryable, before: Date, limit: number): Promise<number> {
  const { rowCount } = await db.query(voidStatement`
    delete from trigger_firings where id = any (array(
      select id from trigger_firings
      where state in ('succeeded', 'failed', 'skipped') and completed_at < ${before.toISOString()}::timestamptz
      order by completed_at limit ${limit}))`)
  return rowCount
}

/** Erases the input and output of turns from their firings. Index trigger_firings_result. */
export const eraseFiringTurns = (db: Queryable, generationIds: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    update trigger_firings set input = '{}', error = null, updated_at = now(),
      result = json_build_object('target_type', target_type, 'result_id', result_id, 'status', result ->> 'status', 'output', null)
    where result_id = any(${sql.array([...generationIds], 'text')}) returning id`)

const FiringRef = z.object({ id: z.string(), project_id: z.string() })
const firingRefRow = sql.type(FiringRef)

/** Inserts copies of firings to be processed again, at most one copy per firing. Returns the new firings. */
export const refireTrigger = (
  db: Queryable,
  firings: readonly { id: string }[],
): Promise<readonly z.output<typeof FiringRef>[]> =>
  db.any(firingRefRow`
    insert into trigger_firings (id, project_id, trigger_id, source, target_type, input, idempotency_key, event_id,
      scheduled_for, causation_chain, root_id, fired_by, asked_by, unmapped)
    select n.new_id, t.project_id, t.trigger_id, t.source, t.target_type, t.input, 'again:' || t.id, t.event_id,
      t.scheduled_for, t.causation_chain, t.root_id, t.fired_by, t.asked_by, t.unmapped
    from ${sql.unnest(
      firings.map(({ id }) => [id, newId(firingKind.prefix)]),
      ['text', 'text'],
    )} as n (id, new_id) join trigger_firings t on t.id = n.id
    on conflict (trigger_id, idempotency_key) where idempotency_key is not null do nothing
    returning id, project_id`)

/** Due time of the oldest queued firing. Firings of paused projects are not due. By trigger_firings_due. */
export const oldestQueuedFiring: Fragment = sql.fragment`(
  select f.due_at from trigger_firings f join projects p on p.id = f.project_id
  where f.state = 'queued' and f.due_at <= now() and p.paused_at is null order by f.due_at limit 1)`
