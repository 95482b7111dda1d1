import { z } from 'zod'
import { compressEnvelope, readEnvelope, StoredEnvelope, storedEnvelope } from '../../core/db/event-envelopes.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'

/** Content that leaves the events of resources. */
export type Redaction = {
  resource_type: string
  ids: readonly string[]
  /** Only events of these names. */
  names?: readonly string[]
  /** Their data without content; the same object where there is none in it. */
  without: (data: Record<string, unknown>) => Record<string, unknown>
}

const holdsContent = (value: unknown): boolean => value != null && !(Array.isArray(value) && value.length === 0)

/** Data without the values of fields. */
export const redactFields =
  (...fields: readonly string[]): Redaction['without'] =>
  data => {
    const shown = fields.filter(field => holdsContent(data[field]))
    return shown.length === 0 ? data : { ...data, ...Object.fromEntries(shown.map(field => [field, null])) }
  }

const event = sql.type(StoredEnvelope)
const retained = sql.type(z.object({ event_id: z.string(), envelope: z.string() }))

type Said = { event: string; resource_type: string; resource_id: string; data: Record<string, unknown> }

/** The text of an envelope after redactions; null where it stays as it is. */
function redacted(envelope: string, redactions: readonly (Redaction & { about: Set<string> })[]): string | null {
  const said = JSON.parse(envelope) as Said
  const data = redactions
    .filter(
      ({ resource_type, about, names }) =>
        resource_type === said.resource_type && about.has(said.resource_id) && (names?.includes(said.event) ?? true),
    )
    .reduce((shown, { without }) => without(shown), said.data)
  return data === said.data ? null : JSON.stringify({ ...said, data })
}

/**
 * The only rewrite that an envelope ever sees: content inside `data` becomes null, in events, in what is retained of
 * them for their deliveries, and in every copy that a delivery holds; what receivers answered to those goes with it.
 * Returns how many events there were. Indexes events_resource, retained_envelopes_resource, webhook_deliveries_event.
 */
export async function redactEvents(tx: Queryable, all: readonly Redaction[]): Promise<number> {
  const redactions = all.filter(({ ids }) => ids.length > 0).map(each => ({ ...each, about: new Set(each.ids) }))
  if (redactions.length === 0) return 0
  const of = ({ resource_type, ids }: Redaction): Fragment =>
    sql.fragment`resource_id = any(${sql.array([...ids], 'text')}) and resource_type = ${resource_type}`
  const any = (conditions: Fragment[]) => sql.join(conditions, sql.fragment` or `)
  const named = (redaction: Redaction): Fragment =>
    redaction.names
      ? sql.fragment`${of(redaction)} and name = any(${sql.array([...redaction.names], 'text')})`
      : of(redaction)
  // Waits for a retention that is moving them: a statement that began before would not see where they went.
  const rows = await tx.any(
    event`select ${storedEnvelope} from events where ${any(redactions.map(named))} order by id for no key update`,
  )
  const kept = await tx.any(
    retained`select event_id, envelope from retained_envelopes where ${any(redactions.map(of))} order by event_id for update`,
  )
  const events: [string, string | null, Buffer | null, string][] = []
  for (const row of rows) {
    const text = redacted(readEnvelope(row), redactions)
    if (text === null) continue
    const packed = row.packed && compressEnvelope({ ...row, envelope: text })
    events.push([row.id, packed ? null : text, packed, text])
  }
  const texts = kept.flatMap(({ event_id, envelope }): [string, string][] => {
    const text = redacted(envelope, redactions)
    return text === null ? [] : [[event_id, text]]
  })
  const written = [...events.map(([id, , , text]): [string, string] => [id, text]), ...texts]
  if (written.length === 0) return 0
  await tx.query(voidStatement`
    with texts as (
      select * from ${sql.unnest(written, ['text', 'text'])} as n (id, envelope)),
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
  return written.length
}
