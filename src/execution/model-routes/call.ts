import { Counter } from 'prom-client'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { ModelCallOutcome } from '../providers/attempt.ts'
import { attemptModel, requireModelAnswer } from '../providers/call.ts'
import type { ModelFailure } from '../providers/failure.ts'
import type { FailureClass } from '../providers/failure-class.ts'
import type { ModelAnswer, ModelRequest } from '../providers/model-messages.ts'
import { targetBreaker } from './breaker.ts'
import type { RoutingRecord } from './model.ts'
import type { LoadedRoute } from './store.ts'

export const fallbacksTotal = new Counter({
  name: 'muster_model_route_fallbacks_total',
  help: 'Route targets that failed or were skipped',
  registers: [],
})

/** Maximum number of attempts stored on a generation. */
const MAX_ATTEMPTS = 500

/** Returns the routing record of a turn to continue. With a `publisher`, it contains no ids of that project. */
export const routingRecorder = (
  { route }: LoadedRoute,
  previous: RoutingRecord | null,
  publisher: string | null = null,
): RoutingRecord => ({
  ...(previous ? structuredClone(previous) : { target_index: null, fallbacks: 0, attempts: [] }),
  route_id: publisher === null ? route.id : null,
})

/**
 * Calls the targets of a route in order and returns the first answer. Each target has its own attempts; failures in a
 * `retry_on` class lead to the next target, and with `refusal` withheld answers too, of which the first is returned if no
 * later target answers. Targets with an open breaker are skipped; if all are open, the first is called. A stream fails over
 * only before its first content. `routing` records each attempt.
 * @throws AI_PROVIDER_ERROR and other failures of a call, with `meta.model_route_id`; the reason of the caller's signal
 */
export async function callRoute(
  services: Services,
  loaded: LoadedRoute,
  request: ModelRequest,
  { step, routing }: { step: number; routing: RoutingRecord },
): Promise<ModelAnswer> {
  const { route, providers } = loaded
  const { log } = services
  const leadsOn = (failed: FailureClass) => failed !== null && route.retry_on.includes(failed)
  // Some vendors report missing credit as a rate limit.
  const failsOver = ({ class: failed, meta }: ModelFailure) =>
    leadsOn(failed) || (failed === 'credit' && meta.provider_status_code === 429 && leadsOn('rate_limited'))
  const isWithheld = (outcome: ModelCallOutcome) =>
    outcome.ok && outcome.answer.finish_reason === 'content-filter' && !outcome.isShown && leadsOn('refusal')
  const started = performance.now()
  const sinceRead = () => (performance.now() - started) / 1000
  let currentIndex = 0

  const callTarget = async (index: number, breaker: ReturnType<typeof targetBreaker>) => {
    const target = route.targets[index]
    const { ai_provider_id, model } = target
    if (index > currentIndex) {
      log.info({ model_route_id: route.id, from: currentIndex, to: index }, 'model call failed over')
      routing.fallbacks += index - currentIndex
      fallbacksTotal.inc(index - currentIndex)
      currentIndex = index
    }
    const provider =
      providers.find(({ id }) => id === ai_provider_id) ??
      raise('AI_PROVIDER_NOT_FOUND', { meta: { id: ai_provider_id } })
    const timed = target.timeout_seconds === null ? request : { ...request, timeout_ms: target.timeout_seconds * 1000 }
    return attemptModel(services, provider, model, timed, {
      retries: target.max_retries,
      repeats: leadsOn,
      async each(attempt) {
        const failure = attempt.ok ? null : attempt.failure
        const error_class = failure?.class ?? (isWithheld(attempt) ? 'refusal' : null)
        const { provider_status_code = null, provider_code, provider_request_id } = failure?.facts ?? {}
        const ids = {
          ...(provider_code !== undefined && { provider_code }),
          ...(provider_request_id !== undefined && { provider_request_id }),
        }
        routing.attempts.push({
          step,
          target_index: index,
          ai_provider_id: routing.route_id && ai_provider_id,
          model,
          ...(attempt.ok && attempt.answer.served_model && { served_model: attempt.answer.served_model }),
          error_class,
          provider_status_code,
          ...(routing.route_id && ids),
        })
        if (routing.attempts.length > MAX_ATTEMPTS) routing.attempts.shift()
        if (attempt.ok) routing.target_index = index
        const isOfRequest = error_class === 'context_length' || error_class === 'refusal'
        const hasFailed = failure !== null && failsOver(failure) && !isOfRequest
        await breaker.note(attempt.ok ? 'answered' : hasFailed ? 'failed' : 'unclear', sinceRead())
      },
    }).finally(() => breaker.leave())
  }

  let outcome: ModelCallOutcome | null = null
  const withheld: { answer: ModelAnswer; index: number }[] = []
  for (const [index, target] of route.targets.entries()) {
    const breaker = targetBreaker(services, loaded, target)
    if (!(await breaker.admits(sinceRead()))) continue
    outcome = await callTarget(index, breaker)
    if (outcome.ok && isWithheld(outcome)) withheld.push({ answer: outcome.answer, index })
    else if (outcome.ok || !failsOver(outcome.failure)) break
  }
  outcome ??= await callTarget(0, targetBreaker(services, loaded, route.targets[0]))
  const isAnswered = outcome.ok && !isWithheld(outcome)
  const [first] = isAnswered ? [] : withheld.splice(0, 1)
  for (const { answer } of withheld) request.onUnused?.(answer)
  if (first) routing.target_index = first.index
  return first?.answer ?? requireModelAnswer(outcome, { model_route_id: route.id })
}
