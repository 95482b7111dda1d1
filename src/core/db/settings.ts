import { z } from 'zod'
import { sendAhead } from './commit-piggyback.ts'
import { type Queryable, sql } from './sql.ts'

const set = sql.type(z.object({ set_config: z.string() }))

/** Settings of the database for the transaction that begins with them; they travel with its next statement. */
export const setForTransaction = (tx: Queryable, settings: Record<string, string>): Promise<unknown> =>
  sendAhead(() =>
    tx.query(set`
      select ${sql.join(
        Object.entries(settings).map(([name, value]) => sql.fragment`set_config(${name}, ${value}, true)`),
        sql.fragment`, `,
      )}`),
  )
