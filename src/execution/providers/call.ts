import { setTimeout as sleep } from 'node:timers/promises'
import { UNREPORTED } from '../../control/usage/meter.ts'
import { AppError } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import type { ModelCallOutcome } from './attempt.ts'
import { type ModelFailure, NOT_BEGUN } from './failure.ts'
import type { FailureClass } from './failure-class.ts'
import { abnormalEnd, isMalformed, sumUsage } from './malformed.ts'
import type { ProviderRow } from './model.ts'
import { modelInputs } from './model-inputs.ts'
import type {
  AttachedFile,
  MediaFallback,
  ModelAnswer,
  ModelRequest,
  ModelUsage,
  PromptMessage,
  TextPart,
  UnusedAnswer,
  VendorNote,
} from './model-messages.ts'
import { modelClient } from './models.ts'
import {
  isStreamSetting,
  mayBeQuoted,
  namedSettings,
  type RefusedSetting,
  withoutRefused,
} from './outgoing/refused-settings.ts'
import { continuationOf, isLarge, joinAnswers, MAX_PAUSES } from './paused.ts'
import { findingsOf, type ModelFindings } from './profile.ts'

let attempts: typeof import('./attempt.ts') | undefined

/**
 * Loaded on demand: the package takes memory and time, which a web process without calls avoids. A failed load, for lack of
 * file descriptors, is repeated by the next call.
 */
const loadAttempts = async () => (attempts ??= await import('./attempt.ts'))

/**
 * Attempts a model call until it is answered, fails permanently, or `retries` are used up; an answer that is shown is
 * retried only before its first content. A vendor failure or an invalid record is returned as a value, with secrets masked;
 * an abort is thrown as the reason of the caller's signal. Answers that are not returned are reported to
 * `request.onUnused`.
 * @param rule.repeats whether a class of transient failures is retried; default all
 * @param rule.each receives the outcome of each attempt before the next one, except of malformed and paused answers, which are
 *   continued by the next one
 * @param rule.findings findings about the model, which receive the settings that its refusals name; default the profile of the provider
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
    findings?: ModelFindings
  },
): Promise<ModelCallOutcome> {
  const { retries, repeats = () => true, each, findings = findingsOf(services, provider, model) } = rule
  let isShown = false
  const accepted = await acceptedRequest(provider, model, {
    ...request,
    ...(request.onDelta && {
      onDelta(text: string) {
        isShown = true
        request.onDelta?.(text)
      },
    }),
  })
  const { attemptCall, modelFailure, modelRetryDelay } = await loadAttempts()
  const target = { ai_provider_id: provider.id, model }
  const client = await modelClient(services, provider).catch((error: unknown): FailedCall => {
    if (!(error instanceof AppError)) throw error
    return { ok: false, failure: modelFailure(error, { ...target, ...NOT_BEGUN }) }
  })
  const reportUnused = (answer: Omit<UnusedAnswer, keyof typeof target>) => request.onUnused?.({ ...answer, ...target })
  /** Settings that a refusal names, or quotes from the request: left out of this call only. */
  const quoted = new Set<RefusedSetting>()
  let isRepeated = false
  /** Tokens of the malformed answer that the next one replaces. */
  let replaced: ModelUsage | null = null
  let paused: ModelAnswer | null = null
  let pauses = 0
  for (let attempt = 0; ; attempt++) {
    const started = performance.now()
    const asked = paused ? continuationOf(accepted, paused) : accepted
    const known = new Set([...findings.refused(), ...quoted])
    const { request: sent, dropped } = withoutRefused(asked, known)
    let outcome = 'ok' in client ? client : await attemptCall(services, client, provider, model, sent)
    const notes = notesOf(dropped)
    if (outcome.ok && notes.length > 0) outcome.answer.notes = [...(outcome.answer.notes ?? []), ...notes]
    const facts = { ...target, attempt: attempt + 1, duration_ms: performance.now() - started }
    if (outcome.ok && outcome.answer.paused && pauses++ < MAX_PAUSES && !isLarge(paused)) {
      paused = paused ? joinAnswers(paused, outcome.answer) : outcome.answer
      // The rest of the answer is a separate call.
      attempt = -1
      continue
    }
    if (!isRepeated && !paused && isMalformed(provider.provider, outcome, isShown)) {
      isRepeated = true
      replaced = outcome.ok ? (outcome.answer.usage ?? UNREPORTED) : (outcome.used ?? null)
      services.log.info(facts, 'model call is repeated after a malformed answer')
      continue
    }
    if (outcome.ok) {
      if (paused) outcome.answer = joinAnswers(paused, outcome.answer)
      paused = null
      if (replaced) outcome.answer.usage = sumUsage(replaced, outcome.answer.usage)
      replaced = null
      const reason = abnormalEnd(outcome.answer)
      const error = reason === null ? null : new Error(`the answer is empty and ended with ${reason}`)
      if (error)
        outcome = {
          ok: false,
          failure: modelFailure(error, { ...target, ...NOT_BEGUN, isShown: true }),
          used: outcome.answer.usage ?? UNREPORTED,
        }
    }
    await each?.(outcome)
    if (outcome.ok) {
      services.log.debug(facts, 'model call answered')
      return outcome
    }
    const { failure } = outcome
    failure.attempts = attempt + 1
    if (outcome.used) reportUnused({ usage: outcome.used })
    const named = namedSettings(sent, failure, known)
    // Each refusal names another setting, so that this ends.
    if (named.length > 0) {
      const uncertain = named.filter(setting => mayBeQuoted(sent, failure, setting))
      const certain = named.filter(setting => !uncertain.includes(setting))
      for (const setting of uncertain) quoted.add(setting)
      if (certain.length > 0) findings.add(certain)
      services.log.info({ ...facts, ...failure.facts }, 'model call is repeated without refused settings')
      continue
    }
    const delay = attempt < retries && repeats(failure.class) ? modelRetryDelay(failure, attempt) : null
    services.log.warn({ ...facts, ...failure.facts, retry_in_ms: delay }, 'model call failed')
    if (delay === null) {
      if (replaced) reportUnused({ usage: replaced })
      if (paused) reportUnused(paused)
      // Another target would repeat the part of the answer that was shown.
      return paused ? { ...outcome, failure: { ...failure, class: null } } : outcome
    }
    await sleep(delay, undefined, { signal: request.signal }).catch(() => {})
    request.signal.throwIfAborted()
  }
}

/** Message of the note on a setting that is left out because the model refuses it. */
export const REFUSED_NOTE = 'refused by the model'

const notesOf = (dropped: readonly RefusedSetting[]): VendorNote[] =>
  dropped
    .filter(setting => !isStreamSetting(setting))
    .map(setting =>
      setting === 'max_output_tokens'
        ? { kind: 'setting_changed', setting, message: 'sent as max_completion_tokens' }
        : { kind: 'setting_left_out', setting, message: REFUSED_NOTE },
    )

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

type FailedCall = Extract<ModelCallOutcome, { ok: false }>

/** Retries that hold the slot of the caller. */
export const IMMEDIATE_RETRIES = 2

/**
 * Makes a model call with up to IMMEDIATE_RETRIES retries, fewer by PROVIDER_MAX_RETRIES, and returns the answer.
 * @throws AI_PROVIDER_ERROR, AI_PROVIDER_MISCONFIGURED, SECRET_NOT_FOUND; the reason of the caller's signal
 */
export async function callModel(
  services: Services,
  provider: ProviderRow,
  model: string,
  request: ModelRequest,
  { retries = IMMEDIATE_RETRIES }: { retries?: number } = {},
): Promise<ModelAnswer> {
  const outcome = await attemptModel(services, provider, model, request, {
    retries: Math.min(retries, services.config.PROVIDER_MAX_RETRIES),
  })
  return requireModelAnswer(outcome)
}

/** Error of a failed model call. */
export class ModelCallError extends AppError {
  readonly failure: ModelFailure
  constructor(failure: ModelFailure, more: Record<string, unknown>) {
    const { code, message, meta, cause } = failure
    super(code, { message, meta: { ...meta, ...more }, cause })
    this.failure = failure
  }
}

/** Returns the answer of a call, or raises its failure with `more` added to its meta. @throws ModelCallError */
export function requireModelAnswer(outcome: ModelCallOutcome, more: Record<string, unknown> = {}): ModelAnswer {
  if (outcome.ok) return outcome.answer
  throw new ModelCallError(outcome.failure, more)
}
