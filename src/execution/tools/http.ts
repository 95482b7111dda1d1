import { signDelivery } from '#control/webhooks/deliver.ts'
import { AppError, raise, raiseInvalid } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { limitJson } from '#core/base/json-limits.ts'
import type { Services } from '#core/base/services.ts'
import type { EgressOutcome } from '#core/net/egress.ts'
import { maskYielding } from '#identity/secrets/mask.ts'
import { openSecrets, tokenIds } from '#identity/secrets/resolve.ts'
import { authorizeToolCall } from './authorize.ts'
import { reserveResponseBytes } from './call-limits.ts'
import { type Callable, callingProject, type Limits, type ToolCall } from './call-types.ts'
import type { Execute } from './model.ts'
import { type ToolRequest, toolRequest } from './request.ts'
import { contextValues, fillTokens, secretTexts, type TokenValues } from './tokens.ts'

/** Maximum number of JSON values in a response: parsing more would block the process. */
export const MAX_VALUES = 200_000
const JSON_TYPE = /^\s*(?:application|text)\/(?:[\w.-]+\+)?json\b/i

/**
 * Calls an http tool.
 * @throws VALIDATION_FAILED, MISSING_TOOL_CONTEXT_KEY, SECRET_NOT_FOUND, SECRET_NOT_DECRYPTABLE, TOOL_AUTH_FAILED,
 *   TOOL_EGRESS_BLOCKED, TOOL_HTTP_ERROR; none contains a secret
 */
export async function callHttp(
  services: Services,
  tool: Callable,
  input: Record<string, unknown>,
  call: ToolCall,
): Promise<unknown> {
  const { execute, project_id, context_keys } = tool
  if (!execute)
    return raiseInvalid({ code: 'REQUIRED', path: 'execute', message: 'is required: the tool has no endpoint yet' })
  const { config, egress, pool } = services
  const ids = tokenIds(secretTexts(execute))
  const values: TokenValues = { secrets: await openSecrets(pool, services, project_id, ids), context: call.context }
  const request = await toolRequest({ execute, context_keys }, input, values, {
    contextPrefix: config.TOOL_CONTEXT_HEADER_PREFIX,
    idempotencyKey: call.idempotencyKey,
  })
  signBody(services, execute, request, values)
  const limits = {
    ...call.limits,
    until: Math.min(call.limits.until, performance.now() + (execute.timeout_ms ?? Number.POSITIVE_INFINITY)),
  }
  const credential = execute.auth
    ? await authorizeToolCall(services, project_id, execute.auth, request, values, limits)
    : null
  const started = performance.now()
  const maxBytes = Math.min(config.TOOL_MAX_RESPONSE_BYTES, limits.room.bytes)
  const outcome = await egress.request({
    url: request.url,
    method: request.method,
    headers: request.headers.all(),
    body: request.body,
    tenant: callingProject(tool),
    ...callTimeouts(limits),
    maxRedirects: config.TOOL_MAX_REDIRECTS,
    redirectMode: 'standard',
    maxBytes,
    sensitiveHeaders: request.headers.sensitive(),
    signal: limits.signal,
  })
  services.log.info(
    {
      tool_id: tool.id,
      project_id,
      method: request.method,
      outcome: outcome.kind === 'failed' ? outcome.reason : outcome.kind,
      status: outcome.kind === 'answer' ? outcome.status : undefined,
      ms: Math.round(performance.now() - started),
    },
    'tool called',
  )
  const hidden = [...values.secrets.values(), ...contextValues(values.context), ...(credential?.hidden ?? [])]
  const answer = await responseOrRaise(outcome, request, hidden)
  if (answer.status === 401) credential?.forget()
  reserveResponseBytes(config, limits, answer.body.length)
  if (answer.status >= 200 && answer.status < 300) return outputOf(answer, request)
  return httpError(`Target of the tool responded with ${answer.status}`, request, {
    tool_status_code: answer.status,
    tool_response_body: await maskYielding(answer.body, hidden),
    ...retryAfter(answer.headers['retry-after']),
  })
}

/** Returns the delay that the target requested, if any. */
function retryAfter(header: string | undefined): { retry_after_ms?: number } {
  if (header === undefined) return {}
  const ms = /^\d+$/.test(header.trim()) ? Number(header) * 1000 : Date.parse(header) - Date.now()
  return Number.isSafeInteger(ms) && ms >= 0 ? { retry_after_ms: ms } : {}
}

/** Returns the timeout of a request, also applied to name resolution. */
export const callTimeouts = ({ until }: Limits) => {
  const timeoutMs = Math.max(1, until - performance.now())
  return { timeoutMs, waitMs: timeoutMs }
}

/** Signs the body, so that the target can authenticate the platform. */
function signBody(
  services: Services,
  execute: Execute,
  { headers, body = '' }: ToolRequest,
  values: TokenValues,
): void {
  if (!execute.sign) return
  const secret = fillTokens(execute.sign, values, () => '')
  headers.set(`${services.config.HEADER_PREFIX}Signature`, signDelivery([secret], body, services.clock.now()), true)
}

export type ToolHttpResponse = Extract<EgressOutcome, { kind: 'answer' }>

/** Raises TOOL_HTTP_ERROR. */
export function httpError(message: string, { method, shown }: ToolRequest, meta: Record<string, unknown>): never {
  return raise('TOOL_HTTP_ERROR', { message, meta: { ...meta, tool_url: shown, tool_method: method } })
}

/**
 * Returns the response of a request.
 * @param hidden secret values in the request
 * @throws TOOL_EGRESS_BLOCKED, TOOL_HTTP_ERROR without a response
 */
export async function responseOrRaise(
  outcome: EgressOutcome,
  request: ToolRequest,
  hidden: readonly string[],
): Promise<ToolHttpResponse> {
  if (outcome.kind === 'answer') return outcome
  if (outcome.kind === 'blocked') {
    // A redirect URL may repeat secrets of the request.
    const isOriginalUrl = URL.parse(request.url)?.href === outcome.url
    return raise('TOOL_EGRESS_BLOCKED', {
      message: `Address of the tool is blocked by the egress rule: ${await maskYielding(outcome.reason, hidden)}`,
      meta: {
        tool_url: isOriginalUrl ? request.shown : await maskYielding(outcome.url, hidden),
        tool_address: outcome.address,
      },
    })
  }
  // The queue for name resolution was full.
  const reason = outcome.reason === 'busy' ? 'dns' : outcome.reason
  return httpError(`Target of the tool did not respond: ${REASON_TEXT[reason] ?? reason}`, request, {
    tool_status_code: null,
    reason,
  })
}

const REASON_TEXT: Record<string, string> = {
  dns: 'its name cannot be resolved',
  connect: 'the connection failed',
  tls: 'its certificate or TLS version is invalid',
  timeout: 'it timed out',
  aborted: 'the call was aborted',
  response_too_large: 'the response is too large',
}

/** Returns the output in a 2xx response. */
function outputOf({ status, headers, body }: ToolHttpResponse, request: ToolRequest): unknown {
  if (status === 204 || body.length === 0) return null
  const type = headers['content-type']
  const text = decodeText(body)
  if (text === null) return { content_type: type ?? 'application/octet-stream', data_base64: body.toString('base64') }
  if (type !== undefined && !JSON_TYPE.test(type)) return text
  try {
    limitJson(body, MAX_VALUES)
    return parseExactJson(text)
  } catch (error) {
    if (!(error instanceof AppError)) return text
    return httpError(`Response of the target ${error.message}`, request, {
      tool_status_code: status,
      reason: 'response_too_large',
    })
  }
}

const utf8 = new TextDecoder('utf-8', { fatal: true })

/** Decodes bytes as UTF-8 without a byte order mark; null if they are not valid. */
function decodeText(body: Buffer): string | null {
  try {
    return utf8.decode(body)
  } catch {
    return null
  }
}
