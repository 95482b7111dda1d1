import { z } from 'zod'
import { newId } from '#core/base/ids.ts'
import { countStatement, type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type PriceInput, type PriceRow, priceKind } from './prices-model.ts'

/** A price in a price book; the exact unit price is text. */
const PriceBookRow = z.object({
  id: z.string(),
  project_id: z.string().nullable(),
  ai_provider_id: z.string().nullable(),
  provider: z.string(),
  model: z.string(),
  component: z.string(),
  unit: z.string(),
  unit_price: z.string(),
  tier: z.string().nullable(),
  above_tokens: z.int().nullable(),
  effective_from: z.string(),
  effective_until: z.string().nullable(),
  resource: z.string().nullable(),
  quantity: z.unknown(),
})
export type PriceBookRow = z.output<typeof PriceBookRow>

const Book = z.object({ project_id: z.string(), watched: z.boolean(), rows: z.array(PriceBookRow) })

/** Returns a select of the prices of a project (null: global), each with the start of its successor as `followed`. */
const pricesWithSuccessor = (project: Fragment): Fragment => sql.fragment`
  select x.*, lead(x.effective_from) over (
    partition by x.ai_provider_id, x.provider, x.model, x.resource, x.component, x.unit, x.tier, x.above_tokens order by x.effective_from
  ) as followed
  from prices x where x.project_id is not distinct from ${project}`

/**
 * Lists the price books of projects in the given order: current and future prices, and whether the project has
 * thresholds; the id '' stands for global prices (indexes prices_identity, usage_thresholds_project). Unit prices are
 * text because a JSON number would be parsed as a double.
 */
export const listPriceBooks = (db: Queryable, projectIds: readonly string[], now: Date) =>
  db.any(sql.type(Book)`
    select p.project_id, exists (select from usage_thresholds t where t.project_id = p.project_id) as watched,
      coalesce((
        select json_agg(json_build_object('id', r.id, 'project_id', r.project_id, 'ai_provider_id', r.ai_provider_id,
          'provider', r.provider, 'model', r.model, 'component', r.component, 'unit', r.unit,
          'unit_price', r.unit_price::text, 'tier', r.tier, 'above_tokens', r.above_tokens, 'effective_from', r.effective_from, 'effective_until', r.effective_until,
          'resource', r.resource,
          'quantity', r.quantity)) from (
          ${pricesWithSuccessor(sql.fragment`nullif(p.project_id, '')`)}) r
        where r.followed is null or r.followed > ${now.toISOString()}::timestamptz), '[]') as rows
    from unnest(${sql.array([...projectIds], 'text')}) with ordinality p (project_id, position) order by p.position`)

/** Locks the prices of projects against concurrent writes until the transaction ends; '' for global prices. */
export const lockPrices = (tx: Queryable, projectIds: readonly string[]) =>
  tx.query(countStatement`
    select count(pg_advisory_xact_lock(hashtextextended('prices ' || p.id, 0))) as count
    from (select id from ${sql.unnest(
      [...projectIds].sort().map(id => [id]),
      ['text'],
    )} as n (id)) p`)

const positionRow = z.object({ position: z.int() })

/** Returns the from clause `n` of prices to write. */
const inputRecordset = (rows: readonly PriceInput[]): Fragment => sql.fragment`
  json_to_recordset(${JSON.stringify(rows.map((row, position) => ({ ...row, id: newId(priceKind.prefix), position })))}::json) as n (position int, id text,
    project_id text, ai_provider_id text, meter_type text, provider text, model text, component text, unit text,
    unit_price numeric, tier text, above_tokens bigint, effective_from timestamptz, resource text, quantity json)`

/**
 * Returns the position of the first price that starts in the past although a price of the same or a broader scope, tier and
 * size of prompts is in effect, or was until later than that start; null if there is none. Uses the later of the two clocks, so that a slow
 * clock cannot change the price of recorded usage (index prices_identity).
 */
export const findBackdatedPrice = (db: Queryable, rows: readonly PriceInput[], now: Date): Promise<number | null> =>
  db.maybeOneFirst(sql.type(positionRow)`
    select n.position from ${inputRecordset(rows)},
      lateral (select greatest(${now.toISOString()}::timestamptz, clock_timestamp()) as now) at
    where n.effective_from <= at.now and exists (
      select from prices p
      where (p.project_id is null or p.project_id = n.project_id)
        and (p.ai_provider_id is null or p.ai_provider_id = n.ai_provider_id)
        and p.provider = n.provider and p.model = n.model and p.component = n.component
        and p.resource is not distinct from n.resource and p.effective_from <= at.now
        and (p.tier is null or p.tier = n.tier) and (p.above_tokens is null or p.above_tokens <= n.above_tokens)
        and coalesce(p.effective_until, 'infinity') > n.effective_from)
    order by n.position limit 1`)

/** Upserts prices by scope, provider, model, component, tier, size of prompts and start; returns them in the order of `rows`. */
export async function writePrices(db: Queryable, rows: readonly PriceInput[]): Promise<PriceRow[]> {
  const written = await db.any(priceKind.sql`
    insert into prices as t (id, project_id, ai_provider_id, meter_type, provider, model, component, unit, unit_price,
      tier, above_tokens, effective_from, resource, quantity)
    select n.id, n.project_id, n.ai_provider_id, n.meter_type, n.provider, n.model, n.component, n.unit, n.unit_price,
      n.tier, n.above_tokens, n.effective_from, n.resource, n.quantity
    from ${inputRecordset(rows)}
    on conflict (project_id, ai_provider_id, provider, model, resource, component, tier, above_tokens, effective_from) do update
      set meter_type = excluded.meter_type, unit = excluded.unit, unit_price = excluded.unit_price,
        quantity = excluded.quantity
    returning ${priceKind.columns}`)
  const found = new Map(written.map(row => [priceIdentity(row), row]))
  return rows.map(row => found.get(priceIdentity(row)) as PriceRow)
}

/** Returns the identity of a price, which must be unique in a batch. */
export const priceIdentity = (row: Omit<PriceInput, 'meter_type' | 'unit' | 'unit_price' | 'quantity'>): string =>
  JSON.stringify([
    row.project_id,
    row.ai_provider_id,
    row.provider,
    row.model,
    row.resource,
    row.component,
    row.tier ?? null,
    row.above_tokens ?? null,
    new Date(row.effective_from).getTime(),
  ])

/** Returns the number of current and future prices of a project (index prices_identity). */
export const countPrices = (db: Queryable, projectId: string | null, now: Date): Promise<number> =>
  db.oneFirst(countStatement`
    select count(*) as count from (${pricesWithSuccessor(sql.fragment`${projectId}::text`)}) r
    where r.followed is null or r.followed > ${now.toISOString()}::timestamptz`)

/** Finds a price by id in a scope (index prices_pkey). */
export const findPrice = (db: Queryable, id: string, scope: Fragment): Promise<PriceRow | null> =>
  db.maybeOne(priceKind.sql`select ${priceKind.columns} from prices t where t.id = ${id} and ${scope}`)

/**
 * Deletes a future price in a scope. With `end`, also ends the price of its item in the scope that is in effect. Returns
 * the row, `in_effect` if it must stay, or null if not found.
 */
export async function deletePrice(
  db: Queryable,
  id: string,
  scope: Fragment,
  { now, end }: { now: Date; end: boolean },
): Promise<PriceRow | 'in_effect' | null> {
  const row = await db.maybeOne(
    priceKind.sql`select ${priceKind.columns} from prices t where t.id = ${id} and ${scope} for update`,
  )
  if (!row) return null
  const later = sql.fragment`greatest(${now.toISOString()}::timestamptz, clock_timestamp())`
  const { rowCount } = await db.query(voidStatement`delete from prices where id = ${id} and effective_from > ${later}`)
  if (!end) return rowCount > 0 ? row : 'in_effect'
  // The latest price of each unit (index prices_identity).
  await db.query(voidStatement`
    update prices set effective_until = ${later} where effective_until is null and id in (
      select distinct on (t.unit) t.id from prices t
      where t.project_id is not distinct from ${row.project_id} and t.ai_provider_id is not distinct from ${row.ai_provider_id}
        and t.provider = ${row.provider} and t.model = ${row.model} and t.component = ${row.component}
        and t.tier is not distinct from ${row.tier} and t.above_tokens is not distinct from ${row.above_tokens}::bigint
        and t.resource is not distinct from ${row.resource} and t.effective_from <= ${later}
      order by t.unit, t.effective_from desc)`)
  return row
}

/** Returns the latest end of a price of an item in its scope; null if none was ended (index prices_identity). */
export const findPriceEnd = (db: Queryable, of: PriceInput): Promise<string | null> =>
  db.oneFirst(sql.type(z.strictObject({ ended: z.string().nullable() }))`
    select max(t.effective_until) as ended from prices t
    where t.project_id is not distinct from ${of.project_id} and t.ai_provider_id is not distinct from ${of.ai_provider_id}
      and t.provider = ${of.provider} and t.model = ${of.model} and t.component = ${of.component}
      and t.tier is not distinct from ${of.tier ?? null} and t.above_tokens is not distinct from ${of.above_tokens ?? null}::bigint
      and t.resource is not distinct from ${of.resource}`)
