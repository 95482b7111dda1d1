import { z } from 'zod'
import type { ListOrder, OrderTerm } from '../api/across.ts'
import { MAX_PAGE_BYTES, type PageBody, rowSizes } from '../api/lists.ts'
import type { Page } from '../api/operation.ts'
import { type Queryable, sql } from '../db/sql.ts'

/** Merges lists in the same order, of which each can be read from any position, into pages of one list. */

type Row = Record<string, unknown>

type Bounds = Pick<Page, 'limit' | 'offset'>

/** Reads rows of a list. */
export type ReadList = (bounds: Bounds) => Promise<PageBody<Row>>

/**
 * Returns a page of the merged lists. Each list is read by one statement, from the first row that may belong to the page and at
 * most `slack` rows more than the page has. Deep pages are found by single rows of each list.
 */
export async function mergedPage(
  lists: readonly ReadList[],
  order: MergeOrder,
  { limit, offset }: Bounds,
  slack: number,
): Promise<PageBody<Row>> {
  const { starts, rest } = await findStarts(lists, order, offset, slack)
  const size = rest + limit
  const pages = await Promise.all(lists.map((read, index) => read({ limit: size, offset: starts[index] })))
  // A page that is cut may lack rows that are needed: the cut counts from the first row of the merged page.
  if (rest > 0 && pages.some(page => page.limit < size)) return mergedPage(lists, order, { limit, offset }, 0)
  const total = pages.reduce((sum, page) => sum + page.total, 0)
  const sizes = pages.map(rowSizes)
  const rows = pages.map((page, index) => page.data.map((row, at) => ({ row, bytes: sizes[index]?.[at] ?? 0 })))
  const merged = (await order.merge(rows, size)).slice(rest)
  let before = 0
  const end = merged.findIndex(({ bytes }) => {
    const isBeyond = before >= MAX_PAGE_BYTES
    before += bytes
    return isBeyond
  })
  const data = merged.slice(0, end < 0 ? merged.length : end).map(({ row }) => row)
  return { data, total, limit: end < 0 ? limit : data.length, offset }
}

/**
 * Returns a position in each list before which all rows are among the first `offset` rows of the merged list, and how many of
 * those come after these positions: at most `slack`. Each round reads a row of each list at equal distances, whose sum is at
 * most the number of the rows still to skip; so the rows up to the first of them are to be skipped.
 */
async function findStarts(
  lists: readonly ReadList[],
  order: MergeOrder,
  offset: number,
  slack: number,
): Promise<{ starts: readonly number[]; rest: number }> {
  if (lists.length === 1) return { starts: [offset], rest: 0 }
  const starts = lists.map(() => 0)
  const totals = lists.map(() => Number.POSITIVE_INFINITY)
  let rest = offset
  while (rest > slack) {
    const open = [...lists.keys()].filter(index => starts[index] < totals[index])
    if (open.length === 0) return { starts, rest: 0 }
    const distance = Math.max(1, Math.floor(rest / open.length))
    const heads = await Promise.all(
      open.map(async index => {
        const rows = Math.min(distance, totals[index] - starts[index])
        const { data, total } = await lists[index]({ limit: 1, offset: starts[index] + rows - 1 })
        totals[index] = total
        return data.map(row => ({ row, index, rows }))
      }),
    )
    const [first] = await order.merge(heads, 1)
    if (!first) continue
    starts[first.index] += first.rows
    rest -= first.rows
  }
  return { starts, rest }
}

const rankRow = sql.type(z.strictObject({ text: z.string(), rank: z.int() }))

/** Compares rows of lists as the statements of the lists do. */
export class MergeOrder {
  readonly #order: ListOrder
  readonly #db: Queryable

  constructor(order: ListOrder, db: Queryable) {
    this.#order = order
    this.#db = db
  }

  /** Merges lists, of which each is in order, up to a number of rows. */
  async merge<T extends { row: Row }>(lists: readonly (readonly T[])[], count: number): Promise<T[]> {
    const keys = new Map<Row, readonly unknown[]>()
    const ranks = await this.#ranks(lists.flat())
    for (const { row } of lists.flat())
      keys.set(
        row,
        this.#order.map(term => (term[2] ? ranks.get(termValue(term, row)) : termValue(term, row))),
      )
    const keysOf = (list: readonly T[], at: number) => keys.get(list[at].row) as readonly unknown[]
    const positions = lists.map(() => 0)
    const merged: T[] = []
    while (merged.length < count) {
      let first = -1
      for (const [index, list] of lists.entries())
        if (
          positions[index] < list.length &&
          (first < 0 || this.#compare(keysOf(list, positions[index]), keysOf(lists[first], positions[first])) < 0)
        )
          first = index
      if (first < 0) break
      merged.push(lists[first][positions[first]++])
    }
    return merged
  }

  #compare(a: readonly unknown[], b: readonly unknown[]): number {
    for (const [index, [, direction]] of this.#order.entries()) {
      const found = compareValues(a[index], b[index])
      if (found !== 0) return direction === 'asc' ? found : -found
    }
    return 0
  }

  /** Returns the ranks of the collated texts of rows, by one statement if there are any. */
  async #ranks(rows: readonly { row: Row }[]): Promise<Map<unknown, number>> {
    const collated = this.#order.filter(([, , mode]) => mode)
    const texts = new Set(rows.flatMap(({ row }) => collated.map(term => termValue(term, row) as string)))
    if (texts.size === 0) return new Map()
    const ranked = await this.#db.any(rankRow`
      select text, rank() over (order by text)::int as rank from unnest(${sql.array([...texts], 'text')}) as t (text)`)
    return new Map(ranked.map(({ text, rank }) => [text, rank]))
  }
}

const termValue = ([value]: OrderTerm, row: Row): unknown =>
  (typeof value === 'string' ? row[value] : value(row as never)) ?? null

/** Compares numbers, or texts by their characters. A null is the greatest value, as in PostgreSQL. */
function compareValues(a: unknown, b: unknown): number {
  if (a === b) return 0
  if (a === null || b === null) return a === null ? 1 : -1
  return (a as string | number) < (b as string | number) ? -1 : 1
}
