import type { Services } from '../../core/process/services.ts'
import type { RouteTarget } from './model.ts'
import { claimProbe, type LoadedRoute, recordFailure, recordSuccess, releaseProbe } from './store.ts'

/** Beyond the time of an attempt: what a probe takes beside it. */
const PROBE_SLACK_SECONDS = 5

/**
 * The circuit breaker of one target for one call. Its state is a row that all processes share: read with the route, and
 * written only when the target fails, or answers after it had failed. What cannot be written is logged, and the call
 * goes on: better a call too many than none.
 */
export function breakerOf(services: Services, { route, breakers }: LoadedRoute, target: RouteTarget) {
  const { ai_provider_id, model } = target
  const { failure_threshold, cooldown_seconds } = route
  const { pool, log, config } = services
  const find = () => breakers.find(each => each.ai_provider_id === ai_provider_id && each.model === model)
  let probing = false

  const attempt = async <T>(work: Promise<T>, otherwise: T): Promise<T> => {
    try {
      return await work
    } catch (error) {
      log.warn({ err: error, ai_provider_id, model, model_route_id: route.id }, 'breaker of a model target not written')
      return otherwise
    }
  }

  return {
    /**
     * Whether the call may go to the target: it has not failed too often, or its cooldown is over and this call is the
     * one that probes it.
     * @param seconds since the route was read
     */
    async admits(seconds: number): Promise<boolean> {
      const known = find()
      if (!known || known.failures < failure_threshold) return true
      if (known.failed_seconds_ago + seconds < cooldown_seconds) return false
      const probe_seconds =
        (target.timeout_seconds ?? Math.ceil(config.MODEL_CALL_TIMEOUT_MS / 1000)) + PROBE_SLACK_SECONDS
      const rule = { failure_threshold, cooldown_seconds, probe_seconds }
      const answer = await attempt<Awaited<ReturnType<typeof claimProbe>>>(claimProbe(pool, target, rule), 'open')
      probing = answer === 'probe'
      return answer !== 'open'
    },

    /**
     * Takes in the outcome of an attempt; `unclear` says nothing about the target, such as a refused request.
     * @param seconds since the route was read
     */
    async note(outcome: 'answered' | 'failed' | 'unclear', seconds: number): Promise<void> {
      if (outcome === 'unclear') return
      probing = false
      if (outcome === 'failed') {
        // For a later target of the route that is the same.
        const known = find() ?? { ai_provider_id, model, failures: 0, failed_seconds_ago: 0 }
        if (known.failures === 0) breakers.push(known)
        known.failures += 1
        known.failed_seconds_ago = -seconds
        await attempt<unknown>(recordFailure(pool, target), null)
      } else if (find()) await attempt<unknown>(recordSuccess(pool, target), null)
    },

    /** Ends the call's use of the target: a probe that learned nothing is left to another call. */
    async leave(): Promise<void> {
      if (probing) await attempt<unknown>(releaseProbe(pool, target), null)
      probing = false
    },
  }
}
