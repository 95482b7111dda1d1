import { endUserError } from '#core/api/end-user.ts'
import { isIdOf } from '#core/api/kind.ts'
import { AppError, type ErrorCode, errorBody, type Problem } from '#core/base/errors.ts'
import { agentKind } from '#execution/agents/model.ts'

/**
 * Errors in the format of the OpenAI API. Its clients retry 408, 409, 429 and statuses from 500 on, and only some of them
 * read x-should-retry: a request that must not be repeated gets a status that no client repeats.
 */

type ErrorClass = { status: number; type: string; retry: boolean; retryAfterSeconds?: number }

/** Raised for a turn whose request must not be repeated: it continues, or a tool call had started when it failed. */
export class UnrepeatableTurnError extends AppError {}

const ROUTES_HINT = 'Use a route that the page docs/openai.md lists, below /openai/v1.'

/** Raised for a request without a route. The hint names the page of the mount. */
export class UnknownRouteError extends AppError {
  /** @param methods that the path has instead */
  constructor({ method, path }: { method: string; path: string }, methods: readonly string[] = []) {
    const others = methods.length > 0 ? `; the path accepts ${methods.join(', ')}` : ''
    super('RESOURCE_NOT_FOUND', { message: `No route ${method} ${path.slice(0, 200)}${others}` })
  }
}

const VENDOR_RETRY_SECONDS = 5
const BUSY_RETRY_SECONDS = 2
/** Longest wait for the reset of a quota after which clients repeat a request. */
const MAX_RESET_SECONDS = 60

const refused = (status: number, type = 'invalid_request_error'): ErrorClass => ({ status, type, retry: false })
const repeatable = (status: number, retryAfterSeconds?: number): ErrorClass => ({
  status,
  type: 'server_error',
  retry: true,
  retryAfterSeconds,
})

/** Codes of a model or of what serves it, which the model ID of the request named. */
const UNKNOWN_MODEL = new Set<ErrorCode>([
  'AGENT_NOT_FOUND',
  'CHAT_NOT_FOUND',
  'AI_PROVIDER_NOT_FOUND',
  'MODEL_ROUTE_NOT_FOUND',
])
const INVALID_ANSWER = new Set<ErrorCode>(['OUTPUT_SCHEMA_VALIDATION_FAILED', 'TEXT_ENCODED_TOOL_CALL'])

/** Returns the class of a vendor's failure; a status of null is a failure without a response. */
function vendorClass({ meta }: AppError): ErrorClass {
  const status = meta?.provider_status_code
  if (typeof status !== 'number' || status >= 500 || status === 408 || status === 409) return repeatable(502)
  if (status === 429) {
    const seconds = meta?.retry_after_seconds
    const retryAfterSeconds = typeof seconds === 'number' ? seconds : VENDOR_RETRY_SECONDS
    return { status, type: 'rate_limit_error', retry: true, retryAfterSeconds }
  }
  if (status === 400 || status === 404) return refused(400)
  if (status === 413 || status === 422) return refused(status)
  // The credential, account or permissions of the deployment at the vendor.
  return refused(424, 'upstream_error')
}

function classOf(error: AppError): ErrorClass {
  const { code, status } = error
  if (error instanceof UnrepeatableTurnError) return refused(424, 'turn_failed')
  if (code === 'AI_PROVIDER_ERROR') return vendorClass(error)
  if (INVALID_ANSWER.has(code)) return refused(422, 'invalid_response_error')
  if (UNKNOWN_MODEL.has(code)) return refused(404)
  // A caller that can wait for the running turn; see the conflict of two requests on one conversation.
  if (code === 'GENERATION_ALREADY_IN_PROGRESS')
    return { status: 409, type: 'conflict_error', retry: true, retryAfterSeconds: BUSY_RETRY_SECONDS }
  if (status === 401) return refused(401, 'authentication_error')
  if (status === 403) return refused(403, 'permission_error')
  if (status === 429) {
    const seconds = Number(error.headers?.['Retry-After'])
    return { status, type: 'rate_limit_error', retry: seconds <= MAX_RESET_SECONDS }
  }
  if (status === 409 || status === 410) return refused(400)
  if (status >= 500) return repeatable(status)
  return refused(status)
}

type VendorError = { code?: unknown; param?: unknown }

/** Returns the error in the body of a vendor's response. */
function vendorError({ meta }: AppError): VendorError {
  if (typeof meta?.provider_response_body !== 'string') return {}
  try {
    const { error } = JSON.parse(meta.provider_response_body) as { error?: VendorError }
    return typeof error === 'object' && error !== null ? error : {}
  } catch {
    return {}
  }
}

/** Whether an error is about an agent, which only the field `model` names. */
const isUnknownAgent = ({ code, meta }: AppError): boolean =>
  code === 'RESOURCE_NOT_FOUND' && typeof meta?.id === 'string' && isIdOf(agentKind, meta.id)

const textOrNull = (value: unknown): string | null => (typeof value === 'string' ? value : null)

/** Returns the field that an error is about. */
function paramOf(error: AppError, vendor: VendorError): string | null {
  if (error.code === 'AI_PROVIDER_ERROR') return textOrNull(vendor.param)
  if (UNKNOWN_MODEL.has(error.code) || isUnknownAgent(error)) return 'model'
  const problems = error.meta?.problems as Problem[] | undefined
  return problems?.[0]?.path || textOrNull(error.meta?.param)
}

type OpenAiError = { status: number; headers: Record<string, string>; body: { error: Record<string, unknown> } }

/** Returns the response of an error. @param hidesDetails whether the caller is an end user */
export function openAiError(error: AppError, docsBaseUrl: string, hidesDetails = false): OpenAiError {
  const { status, type, retry, retryAfterSeconds } = classOf(error)
  const shown = hidesDetails ? endUserError(error) : error
  const vendor = hidesDetails ? {} : vendorError(error)
  const { code, message, ...rest } = errorBody(shown, docsBaseUrl).error
  const hint = error instanceof UnknownRouteError ? ROUTES_HINT : rest.hint
  return {
    status,
    headers: {
      ...shown.headers,
      'x-should-retry': String(retry),
      ...(retryAfterSeconds !== undefined && { 'Retry-After': String(retryAfterSeconds) }),
    },
    body: {
      error: { message, type, param: paramOf(error, vendor), code: textOrNull(vendor.code) ?? code, ...rest, hint },
    },
  }
}
