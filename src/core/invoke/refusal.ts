import { AppError, notReady } from '../api/errors.ts'
import { isDatabaseLost } from '../db/sql.ts'

/** What was thrown, where it is a refusal whatever the call: one that was raised, or the loss of the database. */
export function refusalOf(error: unknown): AppError | null {
  if (error instanceof AppError) return error
  if (!isDatabaseLost(error)) return null
  return notReady({ database: 'cannot be reached' }, { cause: error, retryAfterSeconds: 1 })
}
