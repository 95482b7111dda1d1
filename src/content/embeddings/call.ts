import { Histogram } from 'prom-client'
import type { Services } from '../../core/process/services.ts'
import type { EmbeddingModel } from './model.ts'
import { type CallFailure, callFailure, type EmbeddingModelRef, type ProviderAnswer } from './providers.ts'

export type EmbeddingCallOutcome = { ok: true; answer: ProviderAnswer } | { ok: false; failure: CallFailure }

export const embeddingCallDuration = new Histogram({
  name: 'muster_embedding_call_duration_seconds',
  help: 'Time of calls of the embedding provider by outcome: done, abandoned, or the class of the failure',
  labelNames: ['outcome'],
  buckets: [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
  registers: [],
})

const FIRST_DELAY_MS = 500
const LONGEST_RETRY_AFTER_MS = 20_000

/** What may pass by itself. */
const PASSING = new Set<CallFailure['class']>(['unreachable', 'timeout', 'rate_limited', 'server'])

/**
 * One call of the provider, tried again where its failure may pass. Every try leaves a log line. What a
 * provider does is an outcome; it never throws.
 * @param options.tries tries in all
 * @param options.asked whether the texts are questions
 * @param options.signal aborted when nobody waits for the answer any more
 */
export async function callProvider(
  services: Services,
  model: EmbeddingModel,
  client: EmbeddingModelRef,
  texts: string[],
  options: { tries: number; asked: boolean; signal: AbortSignal },
): Promise<EmbeddingCallOutcome> {
  const { tries, signal } = options
  for (let attempt = 1; ; attempt++) {
    const outcome = await tryOnce(services, model, client, texts, { ...options, attempt })
    if (outcome.ok) return outcome
    const delay = attempt < tries ? delayAfter(outcome.failure, attempt) : null
    if (delay === null) return outcome
    await sleep(delay, signal)
    if (signal.aborted) return outcome
  }
}

async function tryOnce(
  { config, log }: Services,
  { provider, model }: EmbeddingModel,
  client: EmbeddingModelRef,
  texts: string[],
  { attempt, asked, signal }: { attempt: number; asked: boolean; signal: AbortSignal },
): Promise<EmbeddingCallOutcome> {
  const started = performance.now()
  const deadline = AbortSignal.timeout(config.EMBEDDING_TIMEOUT_MS)
  const facts = () => ({
    provider,
    model,
    texts: texts.length,
    attempt,
    ms: Math.round(performance.now() - started),
  })
  const observe = (outcome: string) => embeddingCallDuration.observe({ outcome }, (performance.now() - started) / 1000)
  try {
    const answer = await client.call(texts, { asked, signal: AbortSignal.any([deadline, signal]) })
    observe('done')
    log.info({ ...facts(), tokens: answer.tokens, outcome: 'done' }, 'embedding call')
    return { ok: true, answer }
  } catch (error) {
    const failure = await callFailure(error, secretsOf(config), deadline.aborted)
    observe(signal.aborted ? 'abandoned' : failure.class)
    if (signal.aborted) log.info({ ...facts(), outcome: 'abandoned' }, 'embedding call')
    else
      log.warn({ ...facts(), outcome: failure.class, status: failure.status, detail: failure.detail }, 'embedding call')
    return { ok: false, failure }
  }
}

/** What must not get into the log, should a provider repeat it. */
const secretsOf = (config: Services['config']): string[] =>
  [config.EMBEDDING_API_KEY, process.env.OPENAI_API_KEY].filter(secret => !!secret) as string[]

/** Milliseconds before the next try; null when there is none. */
function delayAfter(failure: CallFailure, attempt: number): number | null {
  if (!PASSING.has(failure.class)) return null
  const asked = failure.retry_after_ms ?? 0
  if (asked > LONGEST_RETRY_AFTER_MS) return null
  // Some servers ask for 0 s, or for a time that is past by this clock.
  return Math.max(asked, FIRST_DELAY_MS * 2 ** (attempt - 1) * (0.8 + Math.random() * 0.4))
}

/** Resolves after `ms`, or when the signal is aborted. */
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
