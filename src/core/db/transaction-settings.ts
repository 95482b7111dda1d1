import { z } from 'zod'
import { sendAhead } from './commit-piggyback.ts'
import { type Queryable, sql } from './sql.ts'

const settingRow = sql.type(z.object({ set_config: z.string() }))

/** Sets database settings for a transaction that has just begun; they are sent together with its next statement. */
export const setForTransaction = (tx: Queryable, settings: Record<string, string>): Promise<unknown> =>
  sendAhead(() =>
    tx.query(settingRow`
      select ${sql.join(
        Object.entries(settings).map(([name, value]) => sql.fragment`set_config(${name}, ${value}, true)`),
        sql.fragment`, `,
      )}`),
  )
