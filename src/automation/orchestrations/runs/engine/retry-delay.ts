import type { Node } from '#automation/orchestrations/definition/model.ts'
import { errorEntry, isErrorCode, type RecordedFailure } from '#core/base/errors.ts'

const RETRIED_STATUSES = [408, 425, 429]

/** Whether another attempt may succeed. */
function isRetriable({ code, meta }: RecordedFailure): boolean {
  if (meta && 'tool_status_code' in meta) {
    const status = meta.tool_status_code
    return typeof status !== 'number' || status >= 500 || RETRIED_STATUSES.includes(status)
  }
  if (code === 'ORCHESTRATION_NODE_FAILED') return meta?.reason === 'timeout'
  return !isErrorCode(code) || errorEntry(code).status >= 500
}

/**
 * Returns the milliseconds until the next attempt of a node; null if there is none. A Retry-After header raises the
 * delay, up to max_delay_ms.
 */
export function nodeRetryDelay(node: Node, attempt: number, failure: RecordedFailure): number | null {
  const { max_attempts = 1, backoff } = node.retry ?? {}
  if (attempt >= max_attempts || !isRetriable(failure)) return null
  const { strategy = 'fixed', delay_ms = 1000, factor = 2, max_delay_ms = Math.max(300_000, delay_ms) } = backoff ?? {}
  const delay = strategy === 'exponential' ? delay_ms * factor ** (attempt - 1) : delay_ms
  const requested = failure.meta?.retry_after_ms
  return Math.min(Math.max(delay, typeof requested === 'number' ? requested : 0), max_delay_ms)
}
