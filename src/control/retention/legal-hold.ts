import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'

const hold = sql.type(z.object({ content_hold_until: z.string().nullable() }))

/** The end of a project's legal hold, null without one. Until the transaction ends none is put on it. */
const holdOf = (tx: Queryable, projectId: string): Promise<string | null> =>
  tx.maybeOneFirst(hold`
    select case when content_hold_until > now() then content_hold_until end as content_hold_until
    from projects where id = ${projectId} for share`)

/** Raises CONTENT_ON_HOLD for a project whose content must not be erased. */
export async function requireNoLegalHold(tx: Queryable, projectId: string): Promise<void> {
  const content_hold_until = await holdOf(tx, projectId)
  if (content_hold_until !== null) raise('CONTENT_ON_HOLD', { meta: { content_hold_until } })
}
