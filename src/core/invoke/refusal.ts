import { AppError } from '../api/errors.ts'
import { isDatabaseLost } from '../db/sql.ts'

/** What was thrown, where it is a refusal whatever the call: one that was raised, or the loss of the database. */
export function refusalOf(error: unknown): AppError | null {
  if (error instanceof AppError) return error
  if (!isDatabaseLost(error)) return null
  return new AppError('SERVICE_NOT_READY', {
    cause: error,
    meta: { checks: { database: 'cannot be reached' } },
    headers: { 'Retry-After': '1' },
  })
}
