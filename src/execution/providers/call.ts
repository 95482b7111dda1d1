import { setTimeout as sleep } from 'node:timers/promises'
import { AppError, raise } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import type { ModelCallOutcome } from './attempt.ts'
import type { FailureClass } from './failure.ts'
import { abnormalEnd, isMalformed, sumUsage } from './malformed.ts'
import type { ProviderRow } from './model.ts'
import { modelInputs } from './model-inputs.ts'
import type {
  AttachedFile,
  MediaFallback,
  ModelAnswer,
  ModelRequest,
  PromptMessage,
  TextPart,
  VendorNote,
} from './model-messages.ts'
import { modelClient } from './models.ts'
import { type RefusedSetting, refusedSettings, rememberRefusal, withoutRefused } from './outgoing/refused-settings.ts'
import { continuationOf, joinAnswers, MAX_PAUSES } from './paused.ts'

let attempts: typeof import('./attempt.ts') | undefined

/**
 * Loaded on demand: the package takes memory and time, which a web process without calls avoids. A failed load, for lack of
 * file descriptors, is repeated by the next call.
 */
const loadAttempts = async () => (attempts ??= await import('./attempt.ts'))

/**
 * Attempts a model call until it is answered, fails permanently, or `retries` are used up; a stream is retried only
 * before its first content. A vendor failure or an invalid record is returned as a value, with secrets masked; an abort
 * is thrown as the reason of the caller's signal.
 * @param rule.repeats whether a failure class is retried; default all
 * @param rule.each receives the outcome of each attempt before the next one
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
  const accepted = await acceptedRequest(provider, model, request)
  const { attemptCall, modelFailure, modelRetryDelay } = await loadAttempts()
  const target = { ai_provider_id: provider.id, model }
  const client = await modelClient(services, provider).catch((error: unknown) => {
    if (!(error instanceof AppError)) throw error
    return {
      ok: false as const,
      failure: modelFailure(error, { ...target, secrets: [], timedOutAfter: null, started: false }),
    }
  })
  let malformed: ModelCallOutcome | null = null
  let paused: ModelAnswer | null = null
  let pauses = 0
  for (let attempt = 0; ; attempt++) {
    const started = performance.now()
    const asked = paused ? continuationOf(accepted, paused) : accepted
    const { request: sent, dropped } = withoutRefused(asked, refusedSettings(services, provider.id, model))
    let outcome = 'ok' in client ? client : await attemptCall(services, client, provider, model, sent)
    if (outcome.ok && dropped.length > 0) outcome.answer.notes = [...(outcome.answer.notes ?? []), ...notesOf(dropped)]
    const facts = { ...target, attempt: attempt + 1, duration_ms: performance.now() - started }
    if (outcome.ok && outcome.answer.paused && pauses++ < MAX_PAUSES) {
      paused = paused ? joinAnswers(paused, outcome.answer) : outcome.answer
      // The rest of the answer is a separate call.
      attempt = -1
      continue
    }
    if (!malformed && !paused && isMalformed(provider.provider, outcome)) {
      malformed = outcome
      services.log.info(facts, 'model call is repeated after a malformed answer')
      continue
    }
    if (outcome.ok) {
      if (paused) outcome.answer = joinAnswers(paused, outcome.answer)
      if (malformed?.ok) outcome.answer.usage = sumUsage(malformed.answer.usage, outcome.answer.usage)
      const reason = abnormalEnd(outcome.answer)
      const error = reason === null ? null : new Error(`the answer is empty and ended with ${reason}`)
      if (error)
        outcome = {
          ok: false,
          failure: modelFailure(error, { ...target, secrets: [], timedOutAfter: null, started: true }),
        }
    }
    await each?.(outcome)
    if (outcome.ok) {
      services.log.debug(facts, 'model call answered')
      return outcome
    }
    const { failure } = outcome
    // Each refusal names another setting, so that this ends.
    if (rememberRefusal(services, provider.id, model, sent, failure)) {
      services.log.info({ ...facts, ...failure.facts }, 'model call is repeated without refused settings')
      continue
    }
    const delay = attempt < retries && repeats(failure.class) ? modelRetryDelay(failure, attempt) : null
    services.log.warn({ ...facts, ...failure.facts, retry_in_ms: delay }, 'model call failed')
    // Another target would repeat the part of the answer that was shown.
    if (delay === null) return paused ? { ok: false, failure: { ...failure, class: null } } : outcome
    await sleep(delay, undefined, { signal: request.signal }).catch(() => {})
    request.signal.throwIfAborted()
  }
}

const notesOf = (dropped: readonly RefusedSetting[]): VendorNote[] =>
  dropped.map(setting => ({ kind: 'setting_left_out', setting, message: 'refused by the model' }))

/** Returns a request with texts in place of the files that the model does not take. */
async function acceptedRequest(provider: ProviderRow, model: string, request: ModelRequest): Promise<ModelRequest> {
  const inputs = modelInputs(provider, model)
  if (inputs === null) return request
  const fallbackOf = (part: TextPart | AttachedFile): MediaFallback | null =>
    part.type === 'attachment' && part.fallback && !inputs.has(part.fallback.input) ? part.fallback : null
  const messages: PromptMessage[] = []
  for (const message of request.messages) {
    if (message.role !== 'user' || typeof message.content === 'string' || !message.content.some(fallbackOf)) {
      messages.push(message)
      continue
    }
    const content: (TextPart | AttachedFile)[] = []
    for (const part of message.content) {
      const fallback = fallbackOf(part)
      content.push(fallback ? { type: 'text', text: await fallback.text() } : part)
    }
    messages.push({ role: 'user', content })
  }
  return { ...request, messages, inputs }
}

/**
 * Makes a model call with up to PROVIDER_MAX_RETRIES retries and returns the answer.
 * @throws AI_PROVIDER_ERROR, AI_PROVIDER_MISCONFIGURED, SECRET_NOT_FOUND; the reason of the caller's signal
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
  return requireModelAnswer(outcome)
}

/** Returns the answer of a call, or raises its failure with `more` added to its meta. */
export function requireModelAnswer(outcome: ModelCallOutcome, more: Record<string, unknown> = {}): ModelAnswer {
  if (outcome.ok) return outcome.answer
  const { code, message, meta, cause } = outcome.failure
  return raise(code, { message, meta: { ...meta, ...more }, cause })
}
