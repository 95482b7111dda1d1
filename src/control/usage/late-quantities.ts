import { z } from 'zod'
import { AppError } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { openJson } from '#core/secrets/json.ts'
import { handler, RequeueError } from '#core/work/handler.ts'
import { recordUsageInTx } from './meter.ts'
import { type LateUsage, type PricedUsage, priceLateUsage } from './price-usage.ts'
import { quantityQueue, sealedForQuantities } from './quantity-queue.ts'

/** Longest wait for a thread, and delay of the next try. */
const WAIT_MS = 2000
const RETRY_MS = 5000

const duplicateRow = sql.type(z.object({ exists: z.boolean() }))

/**
 * Whether late usage is not to be written: its project was deleted, or a repeat of the original usage has been priced in
 * the meantime. By projects_pkey and usage_events_key.
 */
const isObsolete = (db: Queryable, { draft, prices }: LateUsage): Promise<boolean> =>
  db.oneFirst(duplicateRow`
    select not exists (select from projects where id = ${draft.project_id}) or exists (
      select from usage_events u, jsonb_to_recordset(u.components) c (price_id text)
      where u.idempotency_key = ${draft.idempotency_key} and c.price_id = any(${sql.array(
        prices.map(({ id }) => id),
        'text',
      )})) as exists`)

/** Prices usage for whose quantities no thread was free, until one is. */
export const quantityHandlers = [
  handler(quantityQueue, { concurrency: 4 }, async ({ sealed, ...ref }, { services, retryIn, complete }) => {
    const late = openJson<LateUsage>(services, sealed, sealedForQuantities(ref), 'Usage')
    let priced: PricedUsage | null
    try {
      priced = await priceLateUsage(services, late, WAIT_MS)
    } catch (error) {
      if (!(error instanceof AppError) || error.code !== 'SERVICE_NOT_READY') throw error
      retryIn(RETRY_MS)
      throw new RequeueError('no thread is free')
    }
    await services.write(async tx => {
      if (priced && !(await isObsolete(tx, late))) recordUsageInTx(services, tx, [priced])
      complete(tx)
    })
  }),
]
