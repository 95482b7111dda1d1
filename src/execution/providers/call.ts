import { setTimeout as sleep } from 'node:timers/promises'
import { AppError, raise } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import type { ModelCallOutcome } from './attempt.ts'
import type { FailureClass } from './failure.ts'
import type { ProviderRow } from './model.ts'
import type { ModelAnswer, ModelRequest } from './model-messages.ts'
import { modelClient } from './models.ts'

/** The SDK takes 30 MB and a tenth of a second to load: a process that makes no call, a web process, does without it. */
const attempts = () => import('./attempt.ts')

/**
 * Attempts at one model until it answers, fails in a way that is not to be repeated, or `retries` are used up; of a stream
 * only before its first content. A failure of the vendor or of the record is a value, with secrets masked; an abort of
 * the caller's signal is thrown as that signal's reason.
 * @param rule.repeats whether a class of failure is worth another attempt; default every one
 * @param rule.each takes in the outcome of an attempt before anything follows from it
 */
export async function attemptModel(
  services: Services,
  provider: ProviderRow,
  model: string,
  request: ModelRequest,
  rule: {
    retries: number
    repeats?: (failed: FailureClass) => boolean
    each?: (outcome: ModelCallOutcome) => Promise<void>
  },
): Promise<ModelCallOutcome> {
  const { retries, repeats = () => true, each } = rule
  const { attemptCall, modelFailure, modelRetryDelay } = await attempts()
  const about = { ai_provider_id: provider.id, model }
  const opened = await modelClient(services, provider).catch((error: unknown) => {
    if (!(error instanceof AppError)) throw error
    return {
      ok: false as const,
      failure: modelFailure(error, { ...about, secrets: [], timedOutAfter: null, started: false }),
    }
  })
  for (let attempt = 0; ; attempt++) {
    const started = performance.now()
    const outcome = 'ok' in opened ? opened : await attemptCall(services, opened, provider, model, request)
    const facts = { ...about, attempt: attempt + 1, duration_ms: performance.now() - started }
    await each?.(outcome)
    if (outcome.ok) {
      services.log.debug(facts, 'model call answered')
      return outcome
    }
    const { failure } = outcome
    const delay = attempt < retries && repeats(failure.class) ? modelRetryDelay(failure, attempt) : null
    services.log.warn({ ...facts, ...failure.facts, retry_in_ms: delay }, 'model call failed')
    if (delay === null) return outcome
    await sleep(delay, undefined, { signal: request.signal }).catch(() => {})
    request.signal.throwIfAborted()
  }
}

/**
 * One answered model call, retried PROVIDER_MAX_RETRIES times where another try may succeed. Raises AI_PROVIDER_ERROR,
 * AI_PROVIDER_MISCONFIGURED and SECRET_NOT_FOUND. An abort of the caller's signal is thrown as that signal's reason.
 */
export async function callModel(
  services: Services,
  provider: ProviderRow,
  model: string,
  request: ModelRequest,
): Promise<ModelAnswer> {
  const outcome = await attemptModel(services, provider, model, request, {
    retries: services.config.PROVIDER_MAX_RETRIES,
  })
  return answerOf(outcome)
}

/** The answer of a call. Raises its failure, with `more` in its meta. */
export function answerOf(outcome: ModelCallOutcome, more: Record<string, unknown> = {}): ModelAnswer {
  if (outcome.ok) return outcome.answer
  const { code, message, meta, cause } = outcome.failure
  return raise(code, { message, meta: { ...meta, ...more }, cause })
}
