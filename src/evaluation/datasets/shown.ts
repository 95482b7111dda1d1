import { z } from 'zod'
import { between } from '../../core/api/lists.ts'
import type { Page } from '../../core/api/operation.ts'
import { all, type Fragment, type Queryable, sql } from '../../core/db/sql.ts'

/** How much of items and results is in memory at once: a row has up to 5 MiB, and a list up to 100 rows. */

/** Bytes of what one answer shows, or one statement reads or writes, beside a row that is larger alone. */
export const MOST_BYTES = 16 * 1024 * 1024

const fitting = sql.type(z.object({ fit: z.int(), count: z.int() }))

/** A page cut to the rows that fit into one answer, at least one: the first rows from the offset on. */
export async function cutPage(
  { db, page }: { db: Queryable; page: Page },
  rows: {
    from: Fragment
    filters: (Fragment | null | undefined | false)[]
    time?: Fragment
    order: Fragment
    bytes: Fragment
  },
): Promise<Page> {
  const where = all([...rows.filters, rows.time && between(rows.time, page)])
  const { fit, count } = await db.one(fitting`
    select count(*) filter (where upto - bytes < ${MOST_BYTES}) as fit, count(*) as count from (
      select bytes, sum(bytes) over (order by place) as upto from (
        select ${rows.bytes} as bytes, row_number() over (order by ${rows.order}) as place from ${rows.from} where ${where}
        order by ${rows.order} limit ${page.limit} offset ${page.offset}) as listed) as added`)
  return fit < count ? { ...page, limit: fit } : page
}

/** Values in batches of so many, and of so many bytes beside one that is larger alone. */
export async function* inBatches<T>(
  values: AsyncIterable<T> | Iterable<T>,
  most: number,
  bytesOf: (value: T) => number,
): AsyncGenerator<T[]> {
  let batch: T[] = []
  let bytes = 0
  for await (const value of values) {
    const size = bytesOf(value)
    if (batch.length === most || (batch.length > 0 && bytes + size > MOST_BYTES)) {
      yield batch
      batch = []
      bytes = 0
    }
    batch.push(value)
    bytes += size
  }
  if (batch.length > 0) yield batch
}
