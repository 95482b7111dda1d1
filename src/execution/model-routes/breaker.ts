import type { Services } from '#core/base/services.ts'
import type { RouteTarget } from './model.ts'
import { claimProbe, type LoadedRoute, recordFailure, recordSuccess, releaseProbe } from './store.ts'

/** Time added to the timeout of a probe. */
const PROBE_SLACK_SECONDS = 5

/**
 * Returns the circuit breaker of one target for one call. Its state is a row shared by all processes: read with the
 * route, written only when the target fails or answers after failures. A failed write is logged and the call continues,
 * since an extra call is better than none.
 */
export function targetBreaker(services: Services, { route, breakers }: LoadedRoute, target: RouteTarget) {
  const { ai_provider_id, model } = target
  const { failure_threshold, cooldown_seconds } = route
  const { pool, log, config } = services
  const find = () => breakers.find(each => each.ai_provider_id === ai_provider_id && each.model === model)
  let probing = false

  const logFailure = async <T>(work: Promise<T>, fallback: T): Promise<T> => {
    try {
      return await work
    } catch (error) {
      log.warn({ err: error, ai_provider_id, model, model_route_id: route.id }, 'breaker update failed')
      return fallback
    }
  }

  return {
    /**
     * Whether the target may be called: its failures are below the threshold, or its cooldown is over and this call
     * claims the probe.
     * @param seconds seconds since the route was read
     */
    async admits(seconds: number): Promise<boolean> {
      const breaker = find()
      if (!breaker || breaker.failures < failure_threshold) return true
      if (breaker.failed_seconds_ago + seconds < cooldown_seconds) return false
      const probe_seconds =
        (target.timeout_seconds ?? Math.ceil(config.MODEL_CALL_TIMEOUT_MS / 1000)) + PROBE_SLACK_SECONDS
      const rule = { failure_threshold, cooldown_seconds, probe_seconds }
      const answer = await logFailure<Awaited<ReturnType<typeof claimProbe>>>(claimProbe(pool, target, rule), 'open')
      probing = answer === 'probe'
      return answer !== 'open'
    },

    /**
     * Records the outcome of an attempt; `unclear` indicates nothing about the target, such as a refused request.
     * @param seconds seconds since the route was read
     */
    async note(outcome: 'answered' | 'failed' | 'unclear', seconds: number): Promise<void> {
      if (outcome === 'unclear') return
      probing = false
      if (outcome === 'failed') {
        // For a later target of the route with the same model.
        const breaker = find() ?? { ai_provider_id, model, failures: 0, failed_seconds_ago: 0 }
        if (breaker.failures === 0) breakers.push(breaker)
        breaker.failures += 1
        breaker.failed_seconds_ago = -seconds
        await logFailure<unknown>(recordFailure(pool, target), null)
      } else if (find()) await logFailure<unknown>(recordSuccess(pool, target), null)
    },

    /** Releases an unused probe, so that another call can claim it. */
    async leave(): Promise<void> {
      if (probing) await logFailure<unknown>(releaseProbe(pool, target), null)
      probing = false
    },
  }
}
