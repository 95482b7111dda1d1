import {
  APICallError,
  InvalidArgumentError,
  JSONParseError,
  LoadAPIKeyError,
  LoadSettingError,
  NoSuchModelError,
  TypeValidationError,
  UnsupportedFunctionalityError,
} from '@ai-sdk/provider'
import { AppError, type ErrorCode } from '#core/base/errors.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { EgressBlockedError } from '#core/net/egress.ts'
import { maskSecrets } from '#identity/secrets/mask.ts'
import { type FailureClass, failureClassOf, isTransientClass } from './failure-class.ts'
import { misconfiguredProvider } from './misconfigured.ts'
import { retryAfter } from './retry-after.ts'
import { fieldsOf } from './vendor-json.ts'

/** Failure of an attempt, ready to be raised or recorded; `message` and `meta` contain no secrets. */
export type ModelFailure = {
  code: ErrorCode
  message: string
  meta: Record<string, unknown>
  class: FailureClass
  /** Time after which the vendor accepts a repeat, if it said so. */
  retry_after_ms: number | null
  /** Number of attempts of the call; set by the caller of the attempt. */
  attempts?: number
  /** Fields for the log line of the attempt. */
  facts: { error_class: FailureClass; provider_status_code: number | null; error: string } & VendorIds
  cause: unknown
  /** Whether the package of the vendor refuses to send the request. */
  unsupported?: true
}

/** Code and request ID of a failure at the vendor, as far as it gave them. */
export type VendorIds = { provider_code?: string; provider_request_id?: string }

/** An error after the response began, with the headers of the response. */
export class StreamFailure {
  readonly error: unknown
  readonly headers: Record<string, string> | undefined

  constructor(error: unknown, headers: Record<string, string> | undefined) {
    this.error = error
    this.headers = headers
  }
}

type AttemptInfo = {
  ai_provider_id: string
  model: string
  secrets: string[]
  exceeded: TimeLimit | null
  /** Whether the caller got a part of the answer. */
  isShown: boolean
}

/** A time limit of a call: for the whole of it, or for the silence after its first byte. */
export type TimeLimit = { kind: 'total' | 'idle'; ms: number }

/** Facts of an attempt that was not begun. */
export const NOT_BEGUN = { secrets: [], exceeded: null, isShown: false } satisfies Partial<AttemptInfo>

const BODY_BYTES = 2048
const TEXT_LENGTH = 500
/** Bytes that contain at least TEXT_LENGTH characters. */
const TEXT_BYTES = 4 * TEXT_LENGTH

/** Converts an error thrown in an attempt to a failure. */
export function modelFailure(caught: unknown, attempt: AttemptInfo): ModelFailure {
  const thrown = caught instanceof StreamFailure ? caught.error : caught
  const findCause = <T>(is: (error: unknown) => error is T): T | null =>
    (causes(thrown).find(is) as T | undefined) ?? null
  const appError = findCause((error): error is AppError => error instanceof AppError)
  if (appError) return permanentFailure(appError, thrown)
  const blocked = findCause((error): error is EgressBlockedError => error instanceof EgressBlockedError)
  if (blocked)
    return permanentFailure(
      misconfiguredProvider(attempt.ai_provider_id, 'egress_blocked', maskSecrets(blocked.message, attempt.secrets)),
      thrown,
    )
  const missingSetting = findCause(
    (error): error is Error => LoadSettingError.isInstance(error) || LoadAPIKeyError.isInstance(error),
  )
  if (missingSetting)
    return permanentFailure(misconfiguredProvider(attempt.ai_provider_id, 'config_key', missingSetting.message), thrown)

  const apiError = findCause(APICallError.isInstance)
  const streamError = thrown instanceof Error ? null : streamErrorOf(thrown)
  const interruption = interruptedResponse(apiError)
  const status = interruption ? null : (apiError?.statusCode ?? tokenStatus(thrown))
  const provider_status_code = status ?? (interruption ? null : (streamError?.statusCode ?? null))
  const body = apiError?.responseBody ?? null
  const headers = caught instanceof StreamFailure ? caught.headers : apiError?.responseHeaders
  const ids = vendorIds(streamError?.code ?? codeOfBody(body), headers, attempt.secrets)
  const text = truncateChars(
    maskSecrets(interruption ?? vendorText(streamError ?? thrown, apiError, body), attempt.secrets, TEXT_BYTES),
    TEXT_LENGTH,
  )
  const errorClass = attempt.exceeded
    ? 'timeout'
    : causes(thrown).some(isPermanent)
      ? null
      : failureClassOf({
          status: status ?? streamError?.statusCode ?? null,
          text: `${text}\n${(body ?? '').slice(0, BODY_BYTES)}\n${apiError?.responseHeaders?.['x-amzn-errortype'] ?? ''}`,
          isRetryable: (apiError ?? streamError)?.isRetryable ?? false,
        })
  const failureClass = attempt.isShown ? null : errorClass
  const retry_after_ms = retryAfter(apiError?.responseHeaders ?? {}, body)
  const message = attempt.exceeded
    ? timeLimitMessage(attempt.exceeded)
    : status === null
      ? `AI provider failed: ${text}`
      : `AI provider responded with ${status}: ${text}`
  return {
    code: 'AI_PROVIDER_ERROR',
    message,
    meta: {
      provider_status_code,
      ...ids,
      provider_response_body: body === null ? null : maskSecrets(body, attempt.secrets, BODY_BYTES),
      ai_provider_id: attempt.ai_provider_id,
      model: attempt.model,
      ...(retry_after_ms !== null && { retry_after_seconds: Math.ceil(retry_after_ms / 1000) }),
    },
    class: failureClass,
    retry_after_ms,
    facts: { error_class: errorClass, provider_status_code, ...ids, error: message },
    // SDK errors carry the whole request; the message contains the relevant part.
    cause: undefined,
    ...(causes(thrown).some(UnsupportedFunctionalityError.isInstance) && { unsupported: true }),
  }
}

const timeLimitMessage = ({ kind, ms }: TimeLimit): string =>
  kind === 'total' ? `AI provider did not respond within ${ms} ms` : `AI provider sent nothing for ${ms} ms`

const REQUEST_IDS = ['request-id', 'x-request-id', 'x-amzn-requestid']
const ID_LENGTH = 128

function vendorIds(code: string | null, headers: Record<string, string> | undefined, secrets: string[]): VendorIds {
  const id = REQUEST_IDS.flatMap(name => headers?.[name] ?? [])[0]
  const named = code ?? headers?.['x-amzn-errortype']?.split(':')[0]
  const shown = (text: string) => truncateChars(maskSecrets(text, secrets, 4 * ID_LENGTH), ID_LENGTH)
  return { ...(named && { provider_code: shown(named) }), ...(id && { provider_request_id: shown(id) }) }
}

/** Returns the code in the body of a refusal. Vendors place it differently. */
function codeOfBody(body: string | null): string | null {
  try {
    const { type, error = {} } = JSON.parse(body ?? '{}')
    return [error.code, error.status, type === 'error' ? error.type : null].find(isText) ?? null
  } catch {
    return null
  }
}

const isText = (value: unknown): value is string => typeof value === 'string' && value !== ''

/** An answer has more parts than are accepted. */
export class AnswerLimitError extends Error {}

/** Whether the SDK refused to send what the vendor does not support, or the answer exceeds a limit. */
const isPermanent = (error: unknown): boolean =>
  UnsupportedFunctionalityError.isInstance(error) ||
  InvalidArgumentError.isInstance(error) ||
  NoSuchModelError.isInstance(error) ||
  error instanceof AnswerLimitError

/** Returns why a successful response was interrupted, or null if it was complete. */
function interruptedResponse(apiError: APICallError | null): string | null {
  const status = apiError?.statusCode
  if (status === undefined || status < 200 || status > 299) return null
  const chain = causes(apiError)
  if (chain.some(error => JSONParseError.isInstance(error) || TypeValidationError.isInstance(error))) return null
  const root = chain.at(-1)
  return `the response was interrupted: ${root instanceof Error ? root.message : 'no reason given'}`
}

/** Returns the status with which a token endpoint refused the credential. */
function tokenStatus(thrown: unknown): number | null {
  const { name, status } = (thrown ?? {}) as { name?: unknown; status?: unknown }
  return name === 'GaxiosError' && typeof status === 'number' ? status : null
}

/** Returns the delay in milliseconds after attempt `n + 1`, or null if the failure is not retried. */
export function modelRetryDelay(failure: ModelFailure, n: number): number | null {
  if (!isTransientClass(failure.class)) return null
  if (failure.class !== 'timeout' && failure.retry_after_ms !== null)
    return failure.retry_after_ms <= MAX_DELAY_MS ? failure.retry_after_ms : null
  return Math.min(MAX_DELAY_MS, 250 * 2 ** n * (0.8 + Math.random() * 0.4))
}

const MAX_DELAY_MS = 5000

function permanentFailure(error: AppError, thrown: unknown): ModelFailure {
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

/** Error in a stream that began with a success. */
type StreamError = { message: unknown; statusCode: number | null; code: string | null; isRetryable: boolean }

/** Statuses of messages that vendors send in streams without a code. */
const MESSAGE_STATUSES: Record<string, number> = {
  overloaded: 503,
  'overloaded error': 503,
  'model overloaded': 503,
  'service unavailable': 503,
  'internal server error': 500,
}

/** Returns an error that a vendor sent in a stream. Vendors place its message and status differently. */
function streamErrorOf(thrown: unknown): StreamError {
  const outer = fieldsOf(thrown)
  const inner = fieldsOf(fieldsOf(outer.response).error ?? outer.error)
  const { message = outer.message } = inner
  const values = [inner, outer].flatMap(({ statusCode, status_code, status, code }) => [
    statusCode,
    status_code,
    status,
    code,
  ])
  const statusCode =
    values.map(Number).find(status => Number.isInteger(status) && status >= 400 && status <= 599) ??
    MESSAGE_STATUSES[String(message).trim().toLowerCase()] ??
    null
  const declared = [inner.isRetryable, inner.is_retryable, outer.isRetryable, outer.is_retryable].find(
    value => typeof value === 'boolean',
  )
  return {
    message: message ?? (typeof thrown === 'string' ? thrown : undefined),
    statusCode,
    code: [inner.code, inner.type, outer.code, outer.type].filter(isText).find(value => value !== 'error') ?? null,
    isRetryable: (declared as boolean | undefined) ?? (statusCode === 408 || statusCode === 409),
  }
}

/** Returns an error and its causes, outermost first. */
function causes(error: unknown): unknown[] {
  const chain: unknown[] = []
  for (let next = error; next !== undefined && next !== null && chain.length < 10; next = (next as Error).cause)
    chain.push(next)
  return chain
}

/** Returns the vendor's message, or the raw body if the SDK extracted none. */
function vendorText(thrown: unknown, apiError: APICallError | null, body: string | null): string {
  // Without data the package found no field of the body, and its message is the text of the status.
  const own = apiError?.data === undefined || isRelayed(apiError) ? messageOfBody(body) : null
  const message = own ?? (apiError ?? (thrown as { message?: unknown } | null))?.message
  if (typeof message === 'string' && message !== '') return message
  if (body) return body
  return typeof thrown === 'string' ? thrown : 'no reason given'
}

/** Whether a gateway has the refusal of the vendor in another field. */
const isRelayed = ({ message }: APICallError): boolean => message === 'Provider returned error'

/** Returns the message of a refusal in JSON, wherever its server places it. */
function messageOfBody(body: string | null): string | null {
  try {
    const { error, message, detail } = JSON.parse(body ?? '{}')
    return [error?.metadata?.raw, error?.message, error, message, detail].find(isText) ?? null
  } catch {
    return null
  }
}
