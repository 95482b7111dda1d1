import { Big } from 'big.js'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { NotifiedCache } from '#core/db/notified-cache.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import type { Queryable } from '#core/db/sql.ts'
import { listPriceBooks, type PriceBookRow } from './prices-store.ts'

/**
 * Invalidation channel; the payload is the id of a project whose prices or thresholds changed, empty for global prices.
 */
export const usageChannel = 'muster_usage'
/** Cache key of the global prices. */
export const GLOBAL_PRICES = ''

const MAX_AGE_MS = 60_000
const MAX_BOOKS = 2_000

export type CachedPrice = Pick<PriceBookRow, 'id' | 'component' | 'unit' | 'quantity' | 'tier' | 'above_tokens'> & {
  unit_price: Big
  effective_from: number
  /** Infinity unless the price was ended. */
  effective_until: number
}

/** The prices of a project and whether it has thresholds. */
export type PriceBook = {
  /** Prices by `priceKey`: with a tier first, then by size of prompts, the largest first; latest first. */
  prices: ReadonlyMap<string, readonly CachedPrice[]>
  /** Sizes of prompts above which other prices apply. */
  sizes: readonly number[]
  /** Prices of each added component by the SRN of a tool or agent, latest first. */
  resources: ReadonlyMap<string, readonly (readonly CachedPrice[])[]>
  /** Whether the project has thresholds. */
  watched: boolean
}

/** Returns the lookup key of a price: overrides by the id of their AI provider, other prices by provider slug. */
export const priceKey = (of: { ai_provider_id: string } | { provider: string }, model: string, component: string) =>
  JSON.stringify(['ai_provider_id' in of ? [of.ai_provider_id] : of.provider, model, component])

const inOrder = (rows: readonly PriceBookRow[]): CachedPrice[] =>
  rows
    .map(({ id, component, unit, quantity, tier, above_tokens, unit_price, effective_from, effective_until }) => ({
      id,
      component,
      unit,
      quantity,
      tier,
      above_tokens,
      unit_price: new Big(unit_price),
      effective_from: new Date(effective_from).getTime(),
      effective_until: effective_until === null ? Number.POSITIVE_INFINITY : new Date(effective_until).getTime(),
    }))
    .sort(
      (left, right) =>
        Number(right.tier !== null) - Number(left.tier !== null) ||
        (right.above_tokens ?? 0) - (left.above_tokens ?? 0) ||
        right.effective_from - left.effective_from,
    )

function buildBook(rows: readonly PriceBookRow[], watched: boolean): PriceBook {
  const prices = Map.groupBy(
    rows.filter(({ resource }) => resource === null),
    row =>
      priceKey(
        row.ai_provider_id === null ? { provider: row.provider } : { ai_provider_id: row.ai_provider_id },
        row.model,
        row.component,
      ),
  )
  const resources = Map.groupBy(
    rows.filter(({ resource }) => resource !== null),
    ({ resource }) => resource as string,
  )
  const identity = ({ provider, model, component }: PriceBookRow) => priceKey({ provider }, model, component)
  return {
    sizes: [...new Set(rows.flatMap(({ above_tokens }) => above_tokens ?? []))],
    prices: new Map([...prices].map(([key, of]) => [key, inOrder(of)])),
    resources: new Map([...resources].map(([srn, of]) => [srn, [...Map.groupBy(of, identity).values()].map(inOrder)])),
    watched,
  }
}

async function loadBooks(db: Queryable, projectIds: readonly string[], now: Date): Promise<PriceBook[]> {
  const books = await listPriceBooks(db, projectIds, now)
  return books.map(({ rows, watched }) => buildBook(rows, watched))
}

const priceBookCache = processSingleton(
  ({ clock, notifications, pool }: Services) =>
    new NotifiedCache<PriceBook>(notifications, {
      channel: usageChannel,
      maxAgeMs: MAX_AGE_MS,
      maxEntries: MAX_BOOKS,
      load: projectIds => loadBooks(pool, projectIds, clock.now()),
    }),
  books => books.close(),
)

/**
 * Returns the cached price books of projects by id, so that pricing usually costs no round trip.
 * @param db the caller's open transaction: it must not wait for other connections, so uncached books are read in it
 */
export async function priceBooks(
  services: Services,
  projectIds: Iterable<string>,
  db?: Queryable,
): Promise<ReadonlyMap<string, PriceBook>> {
  const cache = priceBookCache(services)
  const ids = [...new Set([GLOBAL_PRICES, ...projectIds])]
  const cached = ids.map(id => onSeparateConnection(() => cache.get(id)))
  const missing = ids.filter((_id, index) => cached[index] instanceof Promise)
  if (!db || missing.length === 0) return new Map((await Promise.all(cached)).map((book, index) => [ids[index], book]))
  for (const loading of cached)
    if (loading instanceof Promise)
      loading.catch(error => services.log.error({ err: error }, 'price cache load failed'))
  const read = await loadBooks(db, missing, services.clock.now())
  return new Map(
    ids.map((id, index) => {
      const book = cached[index]
      return [id, book instanceof Promise ? read[missing.indexOf(id)] : book]
    }),
  )
}
