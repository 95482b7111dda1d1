import { AppError, serviceNotReady } from '../api/errors.ts'
import { claimLost } from '../api/idempotency.ts'
import { isTransient } from '../db/database-errors.ts'

/**
 * An error that is a refusal whatever the call: one that was raised, a key that another request has claimed, or a database
 * that takes no statement now.
 */
export function toRefusal(error: unknown): AppError | null {
  if (error instanceof AppError) return error
  const lost = claimLost(error)
  if (lost) return lost
  if (!isTransient(error)) return null
  return serviceNotReady({ database: 'not available' }, { cause: error, retryAfterSeconds: 1 })
}
