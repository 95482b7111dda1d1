import { setTimeout as sleep } from 'node:timers/promises'
import { UNREPORTED } from '#control/usage/meter.ts'
import type { Services } from '#core/base/services.ts'
import type { ModelCallOutcome } from './attempt.ts'
import { type ModelFailure, NOT_BEGUN } from './failure.ts'
import type { FailureClass } from './failure-class.ts'
import { abnormalEnd, emptyAnswerMessage, isMalformed } from './malformed.ts'
import type { ProviderRow } from './model.ts'
import type { ModelAnswer, ModelRequest, UnusedAnswer } from './model-messages.ts'
import type { ModelClient } from './models.ts'
import {
  mayBeOfRequest,
  namedSettings,
  type RefusedSetting,
  refusedNotes,
  withoutRefused,
} from './outgoing/refused-settings.ts'
import { continuationOf, isLarge, joinAnswers, MAX_PAUSES } from './paused.ts'
import type { ModelFindings } from './profile.ts'

export type RepeatRule = {
  /** Maximum number of attempts after transient failures. Other repeats do not count. */
  retries: number
  /** Whether a class of transient failures is retried. */
  repeats: (failed: FailureClass) => boolean
  /** Receives the outcome of each attempt before the next one, except of paused answers, which the next one continues. */
  each?: (outcome: ModelCallOutcome) => Promise<void>
  /** Findings about the model, which receive the settings that its refusals name. */
  findings: ModelFindings
}

type Attempts = typeof import('./attempt.ts')
type FailedCall = Extract<ModelCallOutcome, { ok: false }>

/**
 * A model call with its repeats: after transient failures, after a malformed answer, without settings that the model refuses,
 * and for the rest of an answer that the vendor paused.
 */
export class RepeatedCall {
  readonly #services: Services
  readonly #provider: ProviderRow
  readonly #model: string
  readonly #client: ModelClient
  readonly #request: ModelRequest
  readonly #rule: RepeatRule
  readonly #attempts: Attempts
  /** Settings that a refusal names for this request: left out of this call only. */
  readonly #onlyHere = new Set<RefusedSetting>()
  /** Attempts so far; of a paused answer, at its current part. */
  #made = 0
  /** Attempts that were repeated after a transient failure. */
  #retried = 0
  #hasRepeatedMalformed = false
  /** Whether the caller received a part of the answer. */
  #isShown = false
  /** The answer so far, which the vendor paused. */
  #paused: ModelAnswer | null = null
  #pauses = 0

  constructor(
    services: Services,
    { provider, model, client }: { provider: ProviderRow; model: string; client: ModelClient },
    request: ModelRequest,
    rule: RepeatRule,
    attempts: Attempts,
  ) {
    this.#services = services
    this.#provider = provider
    this.#model = model
    this.#client = client
    this.#request = request
    this.#rule = rule
    this.#attempts = attempts
  }

  /** Attempts the call until it is answered or not repeated. */
  async run(): Promise<ModelCallOutcome> {
    try {
      for (;;) {
        const outcome = await this.#runAttempt()
        if (outcome) return outcome
      }
    } finally {
      if (this.#paused) this.#reportUnused(this.#paused)
    }
  }

  /** Makes the next attempt. Returns the outcome of the call; null if another attempt follows. */
  async #runAttempt(): Promise<ModelCallOutcome | null> {
    const started = performance.now()
    const refused = this.#refused()
    const next = this.#paused ? continuationOf(this.#request, this.#paused) : this.#request
    const { request: sent, dropped } = withoutRefused(next, refused)
    const { attemptCall } = this.#attempts
    const outcome = await attemptCall(this.#services, this.#client, this.#provider, this.#model, sent)
    this.#made++
    this.#isShown ||= outcome.isShown
    const facts = { ...this.#target, attempt: this.#made, duration_ms: performance.now() - started }
    const { log } = this.#services
    if (outcome.ok && dropped.length > 0)
      outcome.answer.notes = [...(outcome.answer.notes ?? []), ...refusedNotes(dropped)]
    if (this.#continuesPaused(outcome)) return null
    if (await this.#repeatsMalformed(outcome)) {
      log.info(facts, 'model call is repeated after a malformed answer')
      return null
    }
    const ended = outcome.ok ? this.#endedAnswer(outcome) : outcome
    await this.#rule.each?.(ended)
    if (ended.ok) {
      log.debug(facts, 'model call answered')
      return ended
    }
    ended.failure.attempts = this.#made
    if (ended.used) this.#reportUnused({ usage: ended.used })
    if (this.#learnsRefusal(sent, ended.failure, refused)) {
      log.info({ ...facts, ...ended.failure.facts }, 'model call is repeated without refused settings')
      return null
    }
    const delay = this.#retryDelay(ended.failure)
    log.warn({ ...facts, ...ended.failure.facts, retry_in_ms: delay }, 'model call failed')
    if (delay !== null) {
      await this.#wait(delay)
      return null
    }
    // Another target would repeat the part of the answer that was shown.
    return this.#paused ? { ...ended, failure: { ...ended.failure, class: null } } : ended
  }

  get #target(): Pick<UnusedAnswer, 'ai_provider_id' | 'model'> {
    return { ai_provider_id: this.#provider.id, model: this.#model }
  }

  #refused(): ReadonlySet<RefusedSetting> {
    const found = this.#rule.findings.refused()
    return this.#onlyHere.size === 0 ? found : new Set([...found, ...this.#onlyHere])
  }

  #reportUnused(answer: Omit<UnusedAnswer, 'ai_provider_id' | 'model'>): void {
    this.#request.onUnused?.({ ...answer, ...this.#target })
  }

  /** Keeps an answer that the vendor paused. Its rest is a separate call. */
  #continuesPaused(outcome: ModelCallOutcome): boolean {
    if (!outcome.ok || !outcome.answer.paused || this.#pauses++ >= MAX_PAUSES || isLarge(this.#paused)) return false
    this.#paused = this.#paused ? joinAnswers(this.#paused, outcome.answer) : outcome.answer
    this.#made = 0
    this.#retried = 0
    return true
  }

  /** Reports the first malformed answer, which is not returned. */
  async #repeatsMalformed(outcome: ModelCallOutcome): Promise<boolean> {
    if (this.#hasRepeatedMalformed || this.#paused || !isMalformed(this.#provider.provider, outcome)) return false
    this.#hasRepeatedMalformed = true
    if (outcome.ok) this.#reportUnused(outcome.answer)
    else if (outcome.used) this.#reportUnused({ usage: outcome.used })
    await this.#rule.each?.(outcome.ok ? this.#emptyAnswer(outcome.answer) : outcome)
    return true
  }

  /** Returns a whole answer; a failure if it ended abnormally. */
  #endedAnswer(outcome: Extract<ModelCallOutcome, { ok: true }>): ModelCallOutcome {
    const answer = this.#paused ? joinAnswers(this.#paused, outcome.answer) : outcome.answer
    this.#paused = null
    if (abnormalEnd(answer) === null) return { ok: true, answer, isShown: this.#isShown }
    return { ...this.#emptyAnswer(answer), used: answer.usage ?? UNREPORTED }
  }

  /** Returns the failure of an empty answer, which leads to no other target. */
  #emptyAnswer(answer: ModelAnswer): FailedCall {
    const error = new Error(emptyAnswerMessage(answer))
    const failure = this.#attempts.modelFailure(error, { ...this.#target, ...NOT_BEGUN, isShown: true })
    return { ok: false, failure, isShown: false }
  }

  /** Notes the settings that a refusal names. Each refusal names another one, so that these repeats end. */
  #learnsRefusal(sent: ModelRequest, failure: ModelFailure, refused: ReadonlySet<RefusedSetting>): boolean {
    const named = namedSettings(sent, failure, refused)
    const certain = named.filter(setting => !mayBeOfRequest(sent, failure, setting))
    for (const setting of named) if (!certain.includes(setting)) this.#onlyHere.add(setting)
    if (certain.length > 0) this.#rule.findings.add(certain)
    return named.length > 0
  }

  #retryDelay(failure: ModelFailure): number | null {
    const { retries, repeats } = this.#rule
    if (this.#retried >= retries || !repeats(failure.class)) return null
    return this.#attempts.modelRetryDelay(failure, this.#retried)
  }

  /** @throws the reason of the caller's signal */
  async #wait(delay: number): Promise<void> {
    this.#retried++
    await sleep(delay, undefined, { signal: this.#request.signal }).catch(() => {})
    this.#request.signal.throwIfAborted()
  }
}
