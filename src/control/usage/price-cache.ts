import { Big } from 'big.js'
import { NotifiedCache } from '../../core/db/notified-cache.ts'
import { onSeparateConnection } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { type BookRow, readBooks } from './prices-store.ts'

/** Carries the id of a project whose prices or thresholds changed; empty for the prices of all projects. */
export const usageChannel = 'muster_usage'
/** The key of the prices of all projects. */
export const GLOBAL = ''

const MAX_AGE_MS = 60_000
const MAX_BOOKS = 2_000

export type CachedPrice = Pick<BookRow, 'id' | 'component' | 'unit' | 'quantity'> & {
  unit_price: Big
  effective_from: number
}

/** What rates the usage of a project. */
export type PriceBook = {
  /** By scope, provider or AI provider, model and component; the latest first. */
  prices: ReadonlyMap<string, readonly CachedPrice[]>
  /** By the SRN of a tool or agent: the prices of each component that it adds, the latest first. */
  resources: ReadonlyMap<string, readonly (readonly CachedPrice[])[]>
  /** It has thresholds. */
  watched: boolean
}

/** The name of what a price is for: overrides by the id of their AI provider, others by the slug. */
export const priceKey = (of: { ai_provider_id: string } | { provider: string }, model: string, component: string) =>
  JSON.stringify(['ai_provider_id' in of ? [of.ai_provider_id] : of.provider, model, component])

const latestFirst = (rows: readonly BookRow[]): CachedPrice[] =>
  rows
    .map(({ id, component, unit, quantity, unit_price, effective_from }) => ({
      id,
      component,
      unit,
      quantity,
      unit_price: new Big(unit_price),
      effective_from: new Date(effective_from).getTime(),
    }))
    .sort((left, right) => right.effective_from - left.effective_from)

function bookOf(rows: readonly BookRow[], watched: boolean): PriceBook {
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
  const identity = ({ provider, model, component }: BookRow) => priceKey({ provider }, model, component)
  return {
    prices: new Map([...prices].map(([key, of]) => [key, latestFirst(of)])),
    resources: new Map(
      [...resources].map(([srn, of]) => [srn, [...Map.groupBy(of, identity).values()].map(latestFirst)]),
    ),
    watched,
  }
}

async function loadBooks(db: Queryable, projectIds: readonly string[], now: Date): Promise<PriceBook[]> {
  const books = await readBooks(db, projectIds, now)
  return books.map(({ rows, watched }) => bookOf(rows, watched))
}

const booksOf = processSingleton(
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
 * The books of projects, by their ids: kept in the process, so that rating costs no round trip.
 * @param db the transaction of a caller that has one open, which must not wait for what others read: what is not kept is
 *   read there
 */
export async function priceBooks(
  services: Services,
  projectIds: Iterable<string>,
  db?: Queryable,
): Promise<ReadonlyMap<string, PriceBook>> {
  const cache = booksOf(services)
  const wanted = [...new Set([GLOBAL, ...projectIds])]
  const known = wanted.map(id => onSeparateConnection(() => cache.get(id)))
  const missing = wanted.filter((_id, index) => known[index] instanceof Promise)
  if (!db || missing.length === 0)
    return new Map((await Promise.all(known)).map((book, index) => [wanted[index], book]))
  for (const loading of known)
    if (loading instanceof Promise) loading.catch(error => services.log.error({ err: error }, 'prices not read'))
  const read = await loadBooks(db, missing, services.clock.now())
  return new Map(
    wanted.map((id, index) => {
      const book = known[index]
      return [id, book instanceof Promise ? read[missing.indexOf(id)] : book]
    }),
  )
}
