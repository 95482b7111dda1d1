import { readFileSync } from 'node:fs'
import { readPrices } from './bundled.ts'
import { UsageError } from './failure.ts'

/** A price book: a file of prices of vendors, with its date and sources. */

/** Prices of components, in USD per million tokens or per thousand of other units. */
type Prices = Record<string, number>

type Entry = {
  models: string[]
  /** Page of the prices, a second source with the same prices, and the day for which one of them gives them. */
  source: string
  also?: string
  as_of: string | null
  /** Pages of the prices of web searches and of service tiers. */
  search_source?: string
  tier_source?: string
  prices: Prices
  /** Prices of calls whose prompt has more tokens than the key. */
  above?: Record<string, Prices>
  /** Prices of service tiers. */
  tiers?: Record<string, Prices>
  /** Prices from a day on. */
  from?: Record<string, Prices>
}

export type PriceBook = {
  date: string
  vendors: { vendor: string; provider: string; note?: string; prices: Entry[] }[]
}

/** A price of a book as the API takes it; `effective_from` only if the book gives a day. */
export type BookPrice = {
  provider: string
  model: string
  component: string
  unit: string
  unit_price: number
  tier: string | null
  above_tokens: number | null
  effective_from?: string
}

/** Reads a price book; by default the book of this program. */
export function readPriceBook(path?: string): PriceBook {
  const file = path ?? 'of this program'
  try {
    const book = JSON.parse(String(path === undefined ? readPrices() : readFileSync(path)))
    if (typeof book.date === 'string' && Array.isArray(book.vendors)) return book
  } catch (error) {
    throw new UsageError(`cannot read the price book ${file}: ${(error as Error).message}`)
  }
  throw new UsageError(`${file} is no price book`, 'It has a date and vendors, as cli/price-book.json has.')
}

const UNITS: Record<string, { unit: string; exponent: number }> = { web_searches: { unit: 'search', exponent: -3 } }
const TOKENS = { unit: 'token', exponent: -6 }

/** Returns the prices of a book, of all vendors or of some. */
export function pricesOf({ vendors }: PriceBook, chosen: readonly string[]): BookPrice[] {
  const unknown = chosen.find(name => !vendors.some(({ vendor }) => vendor === name))
  if (unknown !== undefined)
    throw new UsageError(
      `the price book has no vendor ${unknown}`,
      `It has: ${vendors.map(({ vendor }) => vendor).join(', ')}`,
    )
  return vendors
    .filter(({ vendor }) => chosen.length === 0 || chosen.includes(vendor))
    .flatMap(({ provider, prices }) => prices.flatMap(entry => entry.models.flatMap(pricesOfModel(provider, entry))))
}

const pricesOfModel = (provider: string, { prices, above = {}, tiers = {}, from = {} }: Entry) => {
  const rows = (model: string, of: Prices, more: Partial<BookPrice> = {}): BookPrice[] =>
    Object.entries(of).map(([component, price]) => {
      const { unit, exponent } = UNITS[component] ?? TOKENS
      // From decimal text, because a division by a million could change the last digit.
      const unit_price = Number(`${price}e${exponent}`)
      return { provider, model, component, unit, unit_price, tier: null, above_tokens: null, ...more }
    })
  return (model: string): BookPrice[] => [
    ...rows(model, prices),
    ...Object.entries(above).flatMap(([size, of]) => rows(model, of, { above_tokens: Number(size) })),
    ...Object.entries(tiers).flatMap(([tier, of]) => rows(model, of, { tier })),
    ...Object.entries(from).flatMap(([day, of]) => rows(model, of, { effective_from: `${day}T00:00:00Z` })),
  ]
}
