import { z } from 'zod'
import { raise } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'

const legalHoldRow = sql.type(z.object({ content_hold_until: z.string().nullable() }))

/**
 * Returns the end of a project's legal hold, null without one. The row lock prevents a new hold until the transaction
 * ends.
 */
const lockLegalHold = (tx: Queryable, projectId: string): Promise<string | null> =>
  tx.maybeOneFirst(legalHoldRow`
    select case when content_hold_until > now() then content_hold_until end as content_hold_until
    from projects where id = ${projectId} for share`)

/** @throws CONTENT_ON_HOLD when the project is under a legal hold */
export async function requireNoLegalHold(tx: Queryable, projectId: string): Promise<void> {
  const content_hold_until = await lockLegalHold(tx, projectId)
  if (content_hold_until !== null) raise('CONTENT_ON_HOLD', { meta: { content_hold_until } })
}
