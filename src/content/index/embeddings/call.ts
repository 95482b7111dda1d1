import { Histogram } from 'prom-client'
import type { Services } from '#core/base/services.ts'
import type { EmbeddingModel } from './model.ts'
import { type CallFailure, callFailure, type EmbeddingModelRef, type ProviderResponse } from './providers.ts'

export type EmbeddingCallOutcome = { ok: true; response: ProviderResponse } | { ok: false; failure: CallFailure }

export const embeddingCallDuration = new Histogram({
  name: 'muster_embedding_call_duration_seconds',
  help: 'Duration of embedding provider calls by outcome (done, abandoned, or failure class)',
  labelNames: ['outcome'],
  buckets: [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
  registers: [],
})

const FIRST_DELAY_MS = 500
const MAX_RETRY_AFTER_MS = 20_000

const TRANSIENT_FAILURES = new Set<CallFailure['class']>(['unreachable', 'timeout', 'rate_limited', 'server'])

/**
 * Calls the provider and retries transient failures. Writes one log line per attempt. Failures are outcomes; never
 * throws.
 * @param options.attempts maximum number of attempts
 * @param options.isSearch whether the texts are search texts
 * @param options.signal aborted when no caller waits for the response
 */
export async function callProvider(
  services: Services,
  model: EmbeddingModel,
  client: EmbeddingModelRef,
  texts: string[],
  options: { attempts: number; isSearch: boolean; signal: AbortSignal },
): Promise<EmbeddingCallOutcome> {
  const { attempts, signal } = options
  for (let attempt = 1; ; attempt++) {
    const outcome = await callOnce(services, model, client, texts, { ...options, attempt })
    if (outcome.ok) return outcome
    const delay = attempt < attempts ? retryDelayMs(outcome.failure, attempt) : null
    if (delay === null) return outcome
    await sleep(delay, signal)
    if (signal.aborted) return outcome
  }
}

async function callOnce(
  { config, log }: Services,
  { provider, model }: EmbeddingModel,
  client: EmbeddingModelRef,
  texts: string[],
  { attempt, isSearch, signal }: { attempt: number; isSearch: boolean; signal: AbortSignal },
): Promise<EmbeddingCallOutcome> {
  const started = performance.now()
  const deadline = AbortSignal.timeout(config.EMBEDDING_TIMEOUT_MS)
  const logFields = () => ({
    provider,
    model,
    texts: texts.length,
    attempt,
    ms: Math.round(performance.now() - started),
  })
  const observe = (outcome: string) => embeddingCallDuration.observe({ outcome }, (performance.now() - started) / 1000)
  try {
    const response = await client.call(texts, { isSearch, signal: AbortSignal.any([deadline, signal]) })
    observe('done')
    log.info({ ...logFields(), tokens: response.tokens, outcome: 'done' }, 'embedding call')
    return { ok: true, response }
  } catch (error) {
    const failure = await callFailure(error, secretsOf(config), deadline.aborted)
    observe(signal.aborted ? 'abandoned' : failure.class)
    if (signal.aborted) log.info({ ...logFields(), outcome: 'abandoned' }, 'embedding call')
    else
      log.warn(
        { ...logFields(), outcome: failure.class, status: failure.status, detail: failure.detail },
        'embedding call',
      )
    return { ok: false, failure }
  }
}

/** Secrets to mask in logged messages of a provider. */
const secretsOf = (config: Services['config']): string[] =>
  [config.EMBEDDING_API_KEY, process.env.OPENAI_API_KEY].filter(secret => !!secret) as string[]

/** Returns the delay before the next attempt, or null if the failure is not retried. */
function retryDelayMs(failure: CallFailure, attempt: number): number | null {
  if (!TRANSIENT_FAILURES.has(failure.class)) return null
  const requested = failure.retry_after_ms ?? 0
  if (requested > MAX_RETRY_AFTER_MS) return null
  // Some servers send 0 s, or a time that is in the past for this clock.
  return Math.max(requested, FIRST_DELAY_MS * 2 ** (attempt - 1) * (0.8 + Math.random() * 0.4))
}

/** Resolves after `ms`, or when the signal aborts. */
function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    if (signal.aborted) return resolve()
    const done = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done, { once: true })
  })
}
