import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'

const KEPT_MS = 2000

/**
 * Declares a read whose result is at most two seconds old: many consoles poll it. A read that takes longer is
 * shared until it ends, so that a slow database is not read more often.
 */
export function recentRead<T>(read: (services: Services) => Promise<T>): (services: Services) => Promise<T> {
  const kept = processSingleton(() => ({ at: Number.NEGATIVE_INFINITY, result: null as Promise<T> | null }))
  return services => {
    const cache = kept(services)
    if (cache.result && performance.now() - cache.at < KEPT_MS) return cache.result
    const result = read(services)
    cache.at = Number.POSITIVE_INFINITY
    cache.result = result
    result.then(
      () => {
        cache.at = performance.now()
      },
      () => {
        cache.result = null
      },
    )
    return result
  }
}
