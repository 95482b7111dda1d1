import { setTimeout as sleep } from 'node:timers/promises'
import { raise } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import type { ModelAnswer, ModelRequest } from './exchange.ts'
import type { ProviderRow } from './model.ts'
import { modelClient } from './models.ts'

/** The SDK takes 30 MB and a tenth of a second to load: a process that makes no call, a web process, does without it. */
const attempts = () => import('./attempt.ts')

/**
 * One answered model call, retried PROVIDER_MAX_RETRIES times where another try may succeed; a stream only before its
 * first content. Raises AI_PROVIDER_ERROR, AI_PROVIDER_MISCONFIGURED and SECRET_NOT_FOUND with secrets masked. An abort of
 * the caller's signal is thrown as that signal's reason.
 */
export async function callModel(
  services: Services,
  provider: ProviderRow,
  model: string,
  request: ModelRequest,
): Promise<ModelAnswer> {
  const { attemptCall, retryDelay } = await attempts()
  const client = await modelClient(services, provider)
  for (let attempt = 0; ; attempt++) {
    const started = performance.now()
    const outcome = await attemptCall(services, client, provider, model, request)
    const facts = { ai_provider_id: provider.id, model, attempt: attempt + 1, duration_ms: performance.now() - started }
    if (outcome.ok) {
      services.log.debug(facts, 'model call answered')
      return outcome.answer
    }
    const { failure } = outcome
    const delay = attempt < services.config.PROVIDER_MAX_RETRIES ? retryDelay(failure, attempt) : null
    services.log.warn({ ...facts, ...failure.facts, retry_in_ms: delay }, 'model call failed')
    if (delay === null) raise(failure.code, { message: failure.message, meta: failure.meta, cause: failure.cause })
    await sleep(delay, undefined, { signal: request.signal }).catch(() => {})
    request.signal.throwIfAborted()
  }
}
