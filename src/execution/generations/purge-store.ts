import type { z } from 'zod'
import { packEnvelope, readEnvelope, StoredEnvelope, storedEnvelope } from '../../core/db/envelopes.ts'
import { type Fragment, type Queryable, sql, statement } from '../../core/db/sql.ts'
import { type GenerationRow, generationKind, Trace, type TraceRow } from './model.ts'

const trace = sql.type(Trace)

type Redaction = { type: string; id: string }

/** Erases the content of generations; the skeleton stays. The first stamp stays. One that was paused has failed then. */
export async function redactGenerations(
  db: Queryable,
  ids: readonly string[],
  by: Redaction,
): Promise<readonly GenerationRow[]> {
  const list = sql.array([...ids], 'text')
  return db.any(generationKind.sql`
    with steps as (delete from generation_steps where generation_id = any(${list})),
      frames as (delete from stream_frames where generation_id = any(${list})),
      work as (delete from generation_work where generation_id = any(${list})),
      hidden as (delete from generation_work_unlogged where generation_id = any(${list})),
      journal as (delete from generation_journal where generation_id = any(${list})),
      hidden_journal as (delete from generation_journal_unlogged where generation_id = any(${list}))
    update generations t set status = case when t.status = 'requires_action' then 'failed' else t.status end,
      stop_reason = case when t.status = 'requires_action' then 'error' else t.stop_reason end,
      completed_at = coalesce(t.completed_at, now()), metadata = null, error = null, input = null, output = null, required_action = null, content_redacted_at = now(),
      content_redacted_by_principal_type = ${by.type}, content_redacted_by_principal_id = ${by.id}, updated_at = now()
    where id = any(${list}) and content_redacted_at is null
    returning ${generationKind.columns}`)
}

export const redactTraces = (db: Queryable, ids: readonly string[], by: Redaction): Promise<readonly TraceRow[]> =>
  db.any(trace`
    update traces set error = null, content_redacted_at = now(), content_redacted_by_principal_type = ${by.type},
      content_redacted_by_principal_id = ${by.id}, updated_at = now()
    where id = any(${sql.array([...ids], 'text')}) and content_redacted_at is null
    returning *`)

const CONTENT_FIELDS = ['metadata', 'error', 'output', 'input', 'required_action'] as const

const storedEvent = sql.type(StoredEnvelope)

/** A compressed event without content: its id, its text and that compressed, of which one is null. */
function redactedPacked(event: z.output<typeof StoredEnvelope>): [string, string | null, Buffer | null] {
  const said = JSON.parse(readEnvelope(event)) as { data: Record<string, unknown> }
  for (const field of CONTENT_FIELDS) if (field in said.data) said.data[field] = null
  const envelope = JSON.stringify(said)
  const packed = packEnvelope({ ...event, envelope })
  return [event.id, packed ? null : envelope, packed]
}

/**
 * The only rewrite an envelope ever sees: content fields of the record inside `data` become null, in the
 * event, in what is retained of events for their deliveries, and in every copy that a delivery holds. Indexes
 * events_resource, retained_envelopes_resource and webhook_deliveries_event.
 */
export async function redactEnvelopes(db: Queryable, resources: readonly string[]): Promise<void> {
  const nulls = JSON.stringify(Object.fromEntries(CONTENT_FIELDS.map(field => [field, null])))
  const redacted = (
    envelope: Fragment,
  ) => sql.fragment`jsonb_set(${envelope}::jsonb, '{data}', (${envelope}::jsonb -> 'data') || (
    select coalesce(jsonb_object_agg(n.key, n.value), '{}') from jsonb_each(${nulls}::jsonb) n where ${envelope}::jsonb -> 'data' ? n.key))::text`
  const theirs = sql.fragment`
    resource_id = any(${sql.array([...resources], 'text')}) and resource_type in ('generation', 'trace')`
  // Waits for a retention that is moving them: a statement that began before would not see where they went.
  const events = await db.any(
    storedEvent`select ${storedEnvelope} from events where ${theirs} order by id for no key update`,
  )
  await db.query(statement`
    with held as (
      select id from events where ${theirs} union all select event_id from retained_envelopes where ${theirs}),
    retained as (
      update retained_envelopes k set envelope = ${redacted(sql.fragment`k.envelope`)} where ${theirs}),
    copies as (
      update webhook_deliveries d set envelope = ${redacted(sql.fragment`d.envelope`)}
      where d.event_id in (select id from held) and d.envelope is not null)
    update events e set envelope = ${redacted(sql.fragment`e.envelope`)} where e.id in (select id from held) and e.packed is null`)
  const packed = events.filter(({ packed }) => packed !== null).map(redactedPacked)
  if (packed.length > 0)
    await db.query(statement`
      update events e set envelope = n.envelope, packed = n.packed
      from ${sql.unnest(packed, ['text', 'text', 'bytea'])} as n (id, envelope, packed) where e.id = n.id`)
}
