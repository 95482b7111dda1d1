import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { ModelCallOutcome } from './attempt.ts'
import { type ModelFailure, NOT_BEGUN } from './failure.ts'
import type { ProviderRow } from './model.ts'
import { modelInputs } from './model-inputs.ts'
import type {
  AttachedFile,
  MediaFallback,
  ModelAnswer,
  ModelRequest,
  PromptMessage,
  TextPart,
} from './model-messages.ts'
import { modelClient } from './models.ts'
import { findingsOf } from './profile.ts'
import { RepeatedCall, type RepeatRule } from './repeated-call.ts'

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
 * @param rule.repeats default all
 * @param rule.findings default the profile of the provider
 */
export async function attemptModel(
  services: Services,
  provider: ProviderRow,
  model: string,
  request: ModelRequest,
  {
    retries,
    each,
    repeats = () => true,
    findings = findingsOf(services, provider, model),
  }: Pick<RepeatRule, 'retries' | 'each'> & Partial<RepeatRule>,
): Promise<ModelCallOutcome> {
  const accepted = await acceptedRequest(provider, model, request)
  const loaded = await loadAttempts()
  const opened = await modelClient(services, provider).catch((error: unknown) => {
    if (!(error instanceof AppError)) throw error
    return loaded.modelFailure(error, { ai_provider_id: provider.id, model, ...NOT_BEGUN })
  })
  if (!('code' in opened)) {
    const rule = { retries, each, repeats, findings }
    return new RepeatedCall(services, { provider, model, client: opened }, accepted, rule, loaded).run()
  }
  const outcome: ModelCallOutcome = { ok: false, failure: { ...opened, attempts: 1 }, isShown: false }
  await each?.(outcome)
  services.log.warn({ ai_provider_id: provider.id, model, ...opened.facts }, 'model call failed')
  return outcome
}

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
