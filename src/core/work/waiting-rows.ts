import { z } from 'zod'
import { extensionPoint } from '../base/declarations.ts'
import { type Fragment, type Queryable, sql } from '../db/sql.ts'

/** Rows of a concern that wait for a worker; `since` is the SQL expression of when the oldest began to wait. */
export type WaitingRows = { concern: string; since: Fragment }

export const waitingRows = extensionPoint<WaitingRows>({
  name: 'waiting rows',
  folder: 'core/work',
  description: 'Gives the SQL of the time since which rows of a concern wait for a worker',
})

const ageRow = sql.type(z.strictObject({ concern: z.string(), seconds: z.number() }))

/** Returns the age of the oldest waiting row by concern. Rows of paused projects do not count. */
export async function waitingRowAges(db: Queryable): Promise<readonly { concern: string; seconds: number }[]> {
  const parts = waitingRows.all().map(({ concern, since }) => sql.fragment`(${concern}::text, ${since})`)
  if (parts.length === 0) return []
  return db.any(ageRow`
    select concern, extract(epoch from now() - min(since))::float8 as seconds
    from (values ${sql.join(parts, sql.fragment`, `)}) as rows (concern, since)
    where since is not null group by concern`)
}
