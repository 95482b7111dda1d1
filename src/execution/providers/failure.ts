import {
  APICallError,
  InvalidArgumentError,
  InvalidPromptError,
  JSONParseError,
  LoadAPIKeyError,
  LoadSettingError,
  MissingToolResultsError,
  NoSuchModelError,
  StreamProviderError,
  TypeValidationError,
  UnsupportedFunctionalityError,
} from 'ai'
import { AppError, type ErrorCode } from '../../core/api/errors.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import { EgressBlockedError } from '../../core/net/egress.ts'
import { maskSecrets } from '../../identity/secrets/mask.ts'
import { misconfiguredProvider } from './misconfigured.ts'
import type { FAILURE_CLASSES } from './model-messages.ts'

/** Why a call failed; null is deterministic and never repeated. */
export type FailureClass = (typeof FAILURE_CLASSES)[number] | null

/** A failed attempt, ready to be raised or recorded; `message` and `meta` hold no secret. */
export type ModelFailure = {
  code: ErrorCode
  message: string
  meta: Record<string, unknown>
  class: FailureClass
  /** The vendor's Retry-After. */
  retry_after_ms: number | null
  /** For the log line of the attempt. */
  facts: { error_class: FailureClass; provider_status_code: number | null; error: string }
  cause: unknown
}

type About = {
  ai_provider_id: string
  model: string
  secrets: string[]
  timedOutAfter: number | null
  started: boolean
}

const BODY_BYTES = 2048
const TEXT_LENGTH = 500
/** Bytes that hold so many characters. */
const TEXT_BYTES = 4 * TEXT_LENGTH

/** Names what went wrong in an attempt. */
export function modelFailure(thrown: unknown, about: About): ModelFailure {
  const found = <T>(is: (error: unknown) => error is T): T | null => (causes(thrown).find(is) as T | undefined) ?? null
  const own = found((error): error is AppError => error instanceof AppError)
  if (own) return deterministic(own, thrown)
  const blocked = found((error): error is EgressBlockedError => error instanceof EgressBlockedError)
  if (blocked)
    return deterministic(
      misconfiguredProvider(about.ai_provider_id, 'egress_blocked', maskSecrets(blocked.message, about.secrets)),
      thrown,
    )
  const unset = found(
    (error): error is Error => LoadSettingError.isInstance(error) || LoadAPIKeyError.isInstance(error),
  )
  if (unset) return deterministic(misconfiguredProvider(about.ai_provider_id, 'config_key', unset.message), thrown)

  const answered = found(APICallError.isInstance)
  const streamed =
    thrown instanceof Error ? found(StreamProviderError.isInstance) : (thrown as Partial<StreamProviderError>)
  const broken = brokenTransfer(answered)
  const status = broken ? null : (answered?.statusCode ?? tokenStatus(thrown))
  const body = answered?.responseBody ?? null
  const text = truncateChars(
    maskSecrets(broken ?? vendorText(thrown, answered, body), about.secrets, TEXT_BYTES),
    TEXT_LENGTH,
  )
  const errorClass =
    about.timedOutAfter !== null
      ? 'timeout'
      : causes(thrown).some(refusedBySdk)
        ? null
        : classOf(status ?? streamed?.statusCode ?? null, answered, streamed)
  const kind = about.started ? null : errorClass
  const message =
    about.timedOutAfter !== null
      ? `The AI provider did not answer within ${about.timedOutAfter} ms`
      : status === null
        ? `The AI provider failed: ${text}`
        : `The AI provider answered ${status}: ${text}`
  return {
    code: 'AI_PROVIDER_ERROR',
    message,
    meta: {
      provider_status_code: status,
      provider_response_body: body === null ? null : maskSecrets(body, about.secrets, BODY_BYTES),
      ai_provider_id: about.ai_provider_id,
      model: about.model,
    },
    class: kind,
    retry_after_ms: retryAfter(answered?.responseHeaders),
    facts: { error_class: errorClass, provider_status_code: status, error: message },
    // Errors of the SDK carry the whole request; what is worth keeping of them is in the message.
    cause: undefined,
  }
}

/** Whether an error says that we asked wrongly: nothing the vendor or the record did. */
export const isRequestFault = (error: unknown): boolean =>
  InvalidPromptError.isInstance(error) || MissingToolResultsError.isInstance(error)

/** What the SDK refuses to send: the model, an option or a part that the vendor does not know. */
const refusedBySdk = (error: unknown): boolean =>
  UnsupportedFunctionalityError.isInstance(error) ||
  InvalidArgumentError.isInstance(error) ||
  NoSuchModelError.isInstance(error)

/** Why an answer that began well did not come to its end; null when it did, readable or not. */
function brokenTransfer(answered: APICallError | null): string | null {
  const status = answered?.statusCode
  if (status === undefined || status < 200 || status > 299) return null
  const chain = causes(answered)
  if (chain.some(error => JSONParseError.isInstance(error) || TypeValidationError.isInstance(error))) return null
  const root = chain.at(-1)
  return `the answer broke off: ${root instanceof Error ? root.message : 'no reason was given'}`
}

/** The status with which a token endpoint refused the credential. */
function tokenStatus(thrown: unknown): number | null {
  const { name, status } = (thrown ?? {}) as { name?: unknown; status?: unknown }
  return name === 'GaxiosError' && typeof status === 'number' ? status : null
}

/** Milliseconds before attempt `n + 2`; null when the failure is not repeated. */
export function modelRetryDelay(failure: ModelFailure, n: number): number | null {
  if (failure.class === null) return null
  if (failure.class === 'rate_limited' && failure.retry_after_ms !== null)
    return failure.retry_after_ms <= MAX_DELAY_MS ? failure.retry_after_ms : null
  return Math.min(MAX_DELAY_MS, 250 * 2 ** n * (0.8 + Math.random() * 0.4))
}

const MAX_DELAY_MS = 5000

function deterministic(error: AppError, thrown: unknown): ModelFailure {
  return {
    code: error.code,
    message: error.message,
    meta: error.meta ?? {},
    class: null,
    retry_after_ms: null,
    facts: { error_class: null, provider_status_code: null, error: `${error.code}: ${error.message}` },
    cause: error === thrown ? error.cause : error,
  }
}

function classOf(
  status: number | null,
  answered: APICallError | null,
  streamed: Partial<StreamProviderError> | null,
): FailureClass {
  if (status === 429) return 'rate_limited'
  if (status !== null && status >= 500) return 'provider_error'
  if (status === 408 || status === 409) return (answered ?? streamed)?.isRetryable ? 'provider_error' : null
  if (status !== null) return null
  return 'provider_error'
}

/** The error and what caused it, outermost first. */
function causes(error: unknown): unknown[] {
  const chain: unknown[] = []
  for (let next = error; next !== undefined && next !== null && chain.length < 10; next = (next as Error).cause)
    chain.push(next)
  return chain
}

/** What the vendor said; the raw body when the SDK made nothing of it. */
function vendorText(thrown: unknown, answered: APICallError | null, body: string | null): string {
  const said = (answered ?? (thrown as { message?: unknown } | null))?.message
  if (typeof said === 'string' && said !== '') return said
  if (body) return body
  return typeof thrown === 'string' ? thrown : 'no reason was given'
}

function retryAfter(headers: Record<string, string> | undefined): number | null {
  const ms = Number(headers?.['retry-after-ms'] ?? Number.NaN)
  if (Number.isFinite(ms) && ms >= 0) return ms
  const value = headers?.['retry-after']
  if (value === undefined) return null
  if (/^\d+(\.\d+)?$/.test(value)) return Number(value) * 1000
  const at = Date.parse(value)
  return Number.isNaN(at) ? null : Math.max(0, at - Date.now())
}
