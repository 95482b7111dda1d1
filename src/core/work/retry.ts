/** Retry policy of a kind of work. */
export type RetryRule = {
  /** Failed attempts after which the item is abandoned. */
  attempts: number
  /** Lost workers that the item tolerates; the next loss abandons it. */
  losses: number
  /** Milliseconds before the next attempt, after `failures` earlier failures. */
  delayMs: (failures: number) => number
}

/** Exponential backoff: `firstMs`, multiplied by `factor` for each failure, at most `maxMs`. */
export const exponential =
  (firstMs: number, { factor = 2, maxMs = 3_600_000 }: { factor?: number; maxMs?: number } = {}) =>
  (failures: number): number =>
    Math.min(firstMs * factor ** Math.min(failures, 30), maxMs)

/** Limits of work that is retried until it succeeds. */
export const UNLIMITED = { attempts: Number.MAX_SAFE_INTEGER, losses: Number.MAX_SAFE_INTEGER }

/** Policy without a retry after a failure, and with at most `losses` after a lost worker. */
export const withoutRetries = (losses: number): RetryRule => ({ attempts: 1, losses, delayMs: () => 0 })
