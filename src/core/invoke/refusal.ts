import { AppError, notReady } from '../api/errors.ts'
import { isTransient } from '../db/database-errors.ts'

/** An error that is a refusal whatever the call: one that was raised, or a database that takes no statement now. */
export function refusalOf(error: unknown): AppError | null {
  if (error instanceof AppError) return error
  if (!isTransient(error)) return null
  return notReady({ database: 'not available' }, { cause: error, retryAfterSeconds: 1 })
}
