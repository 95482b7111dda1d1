import { Counter } from 'prom-client'
import { raise } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import type { ModelCallOutcome } from '../providers/attempt.ts'
import { answerOf, attemptModel } from '../providers/call.ts'
import type { FailureClass } from '../providers/failure.ts'
import type { ModelAnswer, ModelRequest } from '../providers/model-messages.ts'
import { breakerOf } from './breaker.ts'
import type { RoutingRecord } from './model.ts'
import type { LoadedRoute } from './store.ts'

export const fallbacksTotal = new Counter({
  name: 'muster_model_route_fallbacks_total',
  help: 'Targets of model routes that calls left behind, failed or skipped',
  registers: [],
})

/** Attempts that a generation keeps. */
const ATTEMPTS_KEPT = 500

/** How the calls of a turn went so far, and those that follow. With a `publisher`, it names nothing of that project. */
export const routingRecorder = (
  { route }: LoadedRoute,
  before: RoutingRecord | null,
  publisher: string | null = null,
): RoutingRecord => ({
  ...(before ? structuredClone(before) : { target_index: null, fallbacks: 0, attempts: [] }),
  route_id: publisher === null ? route.id : null,
})

/**
 * One answered model call over the targets of a route, in their order: each has its attempts, and where they fail in a
 * class that the route moves on from, the next target is called. Targets that fail all the time are skipped; when all
 * are, the first is called. A stream moves on only before its first content. `routing` notes each attempt as it is made.
 * @throws AI_PROVIDER_ERROR and the other failures of a call, with `meta.model_route_id`; the reason of the caller's signal
 */
export async function callRoute(
  services: Services,
  loaded: LoadedRoute,
  request: ModelRequest,
  { step, routing }: { step: number; routing: RoutingRecord },
): Promise<ModelAnswer> {
  const { route, providers } = loaded
  const { log } = services
  const movesOn = (failed: FailureClass) => failed !== null && route.retry_on.includes(failed)
  const started = performance.now()
  const sinceRead = () => (performance.now() - started) / 1000
  let reached = 0

  const callTarget = async (index: number, breaker: ReturnType<typeof breakerOf>) => {
    const target = route.targets[index]
    const { ai_provider_id, model } = target
    if (index > reached) {
      log.info({ model_route_id: route.id, from: reached, to: index }, 'model call goes to another target')
      routing.fallbacks += index - reached
      fallbacksTotal.inc(index - reached)
      reached = index
    }
    const provider =
      providers.find(({ id }) => id === ai_provider_id) ??
      raise('AI_PROVIDER_NOT_FOUND', { meta: { id: ai_provider_id } })
    const timed = target.timeout_seconds === null ? request : { ...request, timeout_ms: target.timeout_seconds * 1000 }
    return attemptModel(services, provider, model, timed, {
      retries: target.max_retries,
      repeats: movesOn,
      async each(attempt) {
        const failure = attempt.ok ? null : attempt.failure
        const error_class = failure?.class ?? null
        const provider_status_code = failure?.facts.provider_status_code ?? null
        routing.attempts.push({
          step,
          target_index: index,
          ai_provider_id: routing.route_id && ai_provider_id,
          model,
          error_class,
          provider_status_code,
        })
        if (routing.attempts.length > ATTEMPTS_KEPT) routing.attempts.shift()
        if (attempt.ok) routing.target_index = index
        await breaker.note(attempt.ok ? 'answered' : movesOn(error_class) ? 'failed' : 'unclear', sinceRead())
      },
    }).finally(() => breaker.leave())
  }

  let outcome: ModelCallOutcome | null = null
  for (const [index, target] of route.targets.entries()) {
    const breaker = breakerOf(services, loaded, target)
    if (!(await breaker.admits(sinceRead()))) continue
    outcome = await callTarget(index, breaker)
    if (outcome.ok || !movesOn(outcome.failure.class)) break
  }
  outcome ??= await callTarget(0, breakerOf(services, loaded, route.targets[0]))
  return answerOf(outcome, { model_route_id: route.id })
}
