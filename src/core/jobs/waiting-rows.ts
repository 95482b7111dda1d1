import { z } from 'zod'
import { type Fragment, type Queryable, sql } from '../db/sql.ts'
import { extensionPoint } from '../declarations.ts'

/** Work of a concern that waits for a worker as rows; `since` is an expression: since when the oldest has. */
export type WaitingRows = { concern: string; since: Fragment }

export const waitingRows = extensionPoint<WaitingRows>('waiting rows')

const age = sql.type(z.strictObject({ concern: z.string(), seconds: z.number() }))

/** How long the oldest rows have waited, by concern; what a paused project holds back does not count. */
export async function waitingRowAges(db: Queryable): Promise<readonly { concern: string; seconds: number }[]> {
  const parts = waitingRows.all().map(({ concern, since }) => sql.fragment`(${concern}::text, ${since})`)
  if (parts.length === 0) return []
  return db.any(age`
    select concern, extract(epoch from now() - min(since))::float8 as seconds
    from (values ${sql.join(parts, sql.fragment`, `)}) as rows (concern, since)
    where since is not null group by concern`)
}
