import { z } from 'zod'
import { parseExactJson } from '#core/base/exact-json.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { compressEnvelope, readEnvelope, StoredEnvelope, storedEnvelope } from '#core/writes/event-envelopes.ts'

/** Removal of content from the events of some resources. */
export type Redaction = {
  resource_type: string
  ids: readonly string[]
  /** Restricts the redaction to events with these names. */
  names?: readonly string[]
  /** Returns the data without content, or the same object when it has none. */
  without: (data: Record<string, unknown>) => Record<string, unknown>
}

const hasContent = (value: unknown): boolean => value != null && !(Array.isArray(value) && value.length === 0)

/** Returns a redaction that sets fields with content to null. */
export const redactFields =
  (...fields: readonly string[]): Redaction['without'] =>
  data => {
    const present = fields.filter(field => hasContent(data[field]))
    return present.length === 0 ? data : { ...data, ...Object.fromEntries(present.map(field => [field, null])) }
  }

const eventRow = sql.type(StoredEnvelope)
const retainedRow = sql.type(z.object({ event_id: z.string(), envelope: z.string() }))

type ParsedEnvelope = { event: string; resource_type: string; resource_id: string; data: Record<string, unknown> }

/** Returns the redacted text of an envelope; null if nothing changes. */
function redactEnvelope(envelope: string, redactions: readonly (Redaction & { idSet: Set<string> })[]): string | null {
  const parsed = parseExactJson(envelope) as ParsedEnvelope
  const data = redactions
    .filter(
      ({ resource_type, idSet, names }) =>
        resource_type === parsed.resource_type &&
        idSet.has(parsed.resource_id) &&
        (names?.includes(parsed.event) ?? true),
    )
    .reduce((data, { without }) => without(data), parsed.data)
  return data === parsed.data ? null : JSON.stringify({ ...parsed, data })
}

/**
 * Sets content inside the `data` of envelopes to null, in events, retained envelopes and deliveries, and removes the
 * response bodies of those deliveries. Envelopes never change otherwise. Returns the number of redacted events. Indexes
 * events_resource, retained_envelopes_resource, webhook_deliveries_event.
 */
export async function redactEvents(tx: Queryable, requested: readonly Redaction[]): Promise<number> {
  const redactions = requested
    .filter(({ ids }) => ids.length > 0)
    .map(redaction => ({ ...redaction, idSet: new Set(redaction.ids) }))
  if (redactions.length === 0) return 0
  const resourceCondition = ({ resource_type, ids }: Redaction): Fragment =>
    sql.fragment`resource_id = any(${sql.array([...ids], 'text')}) and resource_type = ${resource_type}`
  const anyOf = (conditions: Fragment[]) => sql.join(conditions, sql.fragment` or `)
  const eventCondition = (redaction: Redaction): Fragment =>
    redaction.names
      ? sql.fragment`${resourceCondition(redaction)} and name = any(${sql.array([...redaction.names], 'text')})`
      : resourceCondition(redaction)
  // Locking waits for retention, which moves envelopes: the snapshot of an earlier statement would miss the moved ones.
  const rows = await tx.any(
    eventRow`select ${storedEnvelope} from events where ${anyOf(redactions.map(eventCondition))} order by id for no key update`,
  )
  const retained = await tx.any(
    retainedRow`select event_id, envelope from retained_envelopes where ${anyOf(redactions.map(resourceCondition))} order by event_id for update`,
  )
  const events: [string, string | null, Buffer | null, string][] = []
  for (const row of rows) {
    const text = redactEnvelope(readEnvelope(row), redactions)
    if (text === null) continue
    const packed = row.packed && compressEnvelope({ ...row, envelope: text })
    events.push([row.id, packed ? null : text, packed, text])
  }
  const texts = retained.flatMap(({ event_id, envelope }): [string, string][] => {
    const text = redactEnvelope(envelope, redactions)
    return text === null ? [] : [[event_id, text]]
  })
  const rewritten = [...events.map(([id, , , text]): [string, string] => [id, text]), ...texts]
  if (rewritten.length === 0) return 0
  await tx.query(voidStatement`
    with texts as (
      select * from ${sql.unnest(rewritten, ['text', 'text'])} as n (id, envelope)),
    stored as (
      update events e set envelope = n.envelope, packed = n.packed
      from ${sql.unnest(
        events.map(([id, envelope, packed]) => [id, envelope, packed]),
        ['text', 'text', 'bytea'],
      )} as n (id, envelope, packed) where e.id = n.id),
    retained as (
      update retained_envelopes k set envelope = n.envelope from texts n where k.event_id = n.id)
    update webhook_deliveries d set response_body = null, envelope = case when d.envelope is not null then n.envelope end
    from texts n where d.event_id = n.id and (d.envelope is not null or d.response_body is not null)`)
  return rewritten.length
}
