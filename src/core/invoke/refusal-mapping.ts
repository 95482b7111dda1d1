import { claimLostRefusal } from '../api/idempotency.ts'
import { AppError, serviceNotReady } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import { isTransient } from '../db/database-errors.ts'
import { cellUnavailable } from '../services/cell.ts'

/**
 * Returns the refusal for a raised error, a lost idempotency claim or an unavailable database; null for any other error.
 */
export function toRefusal(error: unknown, { cell }: Partial<Pick<Services, 'cell'>> = {}): AppError | null {
  if (error instanceof AppError) return error
  const lost = claimLostRefusal(error)
  if (lost) return lost
  if (!isTransient(error)) return null
  if (cell?.number) return cellUnavailable(cell, error)
  return serviceNotReady({ database: 'not available' }, { cause: error, retryAfterSeconds: 1 })
}
