import type { ToolContext } from '#core/api/tool-context.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { ExactNumber } from '#core/base/exact-json.ts'
import { HEADER_VALUE } from '#core/net/headers.ts'
import type { Execute, ToolRow } from './model.ts'
import {
  fillPlaceholders,
  fillTokens,
  forwardedContext,
  holdsToken,
  placeholdersOf,
  type TokenValues,
} from './tokens.ts'

/** Request before its credential is computed. Only `shown` may appear in errors and logs. */
export type ToolRequest = {
  method: NonNullable<Execute['method']>
  url: string
  /** URL with arguments but without secrets. */
  shown: string
  headers: RequestHeaders
  body: string | Buffer | undefined
}

const MAX_URL_BYTES = 64 * 1024
const WITH_BODY = ['POST', 'PUT', 'PATCH']

/** Request headers. A later header replaces an earlier one with the same name, ignoring case. */
export class RequestHeaders {
  readonly #values = new Map<string, { name: string; value: string; sensitive: boolean }>()

  /** @param sensitive whether the header is dropped when a redirect leads to another origin */
  set(name: string, value: string, sensitive = false): void {
    this.#values.set(name.toLowerCase(), { name, value, sensitive })
  }

  /** Sets all headers of another set. */
  add(others: RequestHeaders): void {
    for (const [name, header] of others.#values) this.#values.set(name, header)
  }

  delete(name: string): void {
    this.#values.delete(name.toLowerCase())
  }

  all(): Record<string, string> {
    return Object.fromEntries([...this.#values.values()].map(({ name, value }) => [name, value]))
  }

  sensitive(): string[] {
    return [...this.#values.values()].filter(({ sensitive }) => sensitive).map(({ name }) => name)
  }
}

/**
 * Builds the request of a call from its arguments. Arguments in the URL are not sent otherwise.
 * @throws VALIDATION_FAILED for arguments that cannot be sent, MISSING_TOOL_CONTEXT_KEY
 */
export async function toolRequest(
  { execute, context_keys }: { execute: Execute } & Pick<ToolRow, 'context_keys'>,
  input: Record<string, unknown>,
  values: TokenValues,
  options: { contextPrefix: string; idempotencyKey: string | null },
): Promise<ToolRequest> {
  const method = execute.method ?? 'POST'
  const withBody = WITH_BODY.includes(method)
  const urlArguments = new Set(placeholdersOf(execute.url))
  const rest = Object.entries(input).filter(([name]) => !urlArguments.has(name))
  const filledUrl = fillUrl(execute.url, input)
  const shown = withBody ? filledUrl : withQuery(filledUrl, rest)
  const url = fillSecrets(shown, values)
  if (Buffer.byteLength(url) > MAX_URL_BYTES)
    raiseInvalid({ code: 'TOO_BIG', path: 'input', message: 'results in a URL of more than 64 KiB' })
  const sent = withBody ? await encodeBody(execute.body_mode ?? 'json', rest) : null
  const headers = new RequestHeaders()
  if (sent) headers.set('Content-Type', sent.type)
  setConfiguredHeaders(headers, execute.headers ?? {}, values, 'execute')
  // The multipart boundary is known only here.
  if (sent && execute.body_mode === 'multipart') headers.set('Content-Type', sent.type)
  setContextHeaders(headers, forwardedContext(values.context, context_keys), options.contextPrefix)
  if (options.idempotencyKey !== null) headers.set('Idempotency-Key', options.idempotencyKey)
  return { method, url, shown, headers, body: sent?.body }
}

/** Adds the tool context as headers. */
export function setContextHeaders(headers: RequestHeaders, context: ToolContext, prefix: string): void {
  for (const [key, value] of Object.entries(context))
    headers.set(`${prefix}${key}`, headerText(value, `tool_context.${key}`), true)
}

/** Encodes a text for one component of a URL. */
const encodePart = (text: string): string => encodeURIComponent(text.toWellFormed())

function fillUrl(url: string, input: Record<string, unknown>): string {
  const path = url.split(/[?#]/, 1)[0]
  const inPath = new Set(placeholdersOf(path))
  return fillPlaceholders(url, name => {
    const refuse = (message: string) => raiseInvalid({ code: 'INVALID_VALUE', path: `input.${name}`, message })
    const value = Object.hasOwn(input, name) ? input[name] : undefined
    if (value === undefined || value === null)
      return raiseInvalid({
        code: 'REQUIRED',
        path: `input.${name}`,
        message: 'is required: it is part of the URL',
      })
    if (!['string', 'number', 'boolean'].includes(typeof value) && !(value instanceof ExactNumber))
      return refuse('must be a string, number or boolean')
    const text = String(value)
    if (text === '.' || text === '..') return refuse('must not be . or .., because it is part of the URL')
    if (text === '' && inPath.has(name)) return refuse('must not be empty, because it is part of the path')
    return encodePart(text)
  })
}

/** Returns a URL with arguments appended to its query; null is omitted, objects are sent as JSON. */
function withQuery(url: string, args: readonly (readonly [string, unknown])[]): string {
  const query = args
    .filter(([, value]) => value !== null && value !== undefined)
    .map(
      ([name, value]) =>
        `${encodePart(name)}=${encodePart(typeof value === 'object' ? JSON.stringify(value) : String(value))}`,
    )
    .join('&')
  const [address] = url.split('#', 1)
  if (query === '') return address
  if (!address.includes('?')) return `${address}?${query}`
  return /[?&]$/.test(address) ? address + query : `${address}&${query}`
}

/** Inserts secrets into a URL, encoded so that they cannot change its structure. */
export function fillSecrets(url: string, { secrets }: TokenValues): string {
  const values = new Map([...secrets].map(([id, value]) => [id, encodePart(value)]))
  return fillTokens(url, { secrets: values, context: {} }, key => `{{context:${key}}}`)
}

/**
 * Adds the headers configured in `execute` or `mcp`.
 * @throws MISSING_TOOL_CONTEXT_KEY
 */
export function setConfiguredHeaders(
  headers: RequestHeaders,
  configured: Record<string, string>,
  values: TokenValues,
  at: 'execute' | 'mcp',
): void {
  for (const [name, template] of Object.entries(configured)) {
    const value = fillTokens(template, values, key =>
      raise('MISSING_TOOL_CONTEXT_KEY', { meta: { key, header: name } }),
    )
    headers.set(name, headerText(value, `${at}.headers.${name}`), holdsToken(template))
  }
}

/** Returns a value as a UTF-8 header value. */
function headerText(value: string, path: string): string {
  const text = /[^\0-\x7f]/.test(value) ? Buffer.from(value).toString('latin1') : value
  if (!HEADER_VALUE.test(text))
    raiseInvalid({ code: 'INVALID_VALUE', path, message: 'is not a valid header value after its tokens are inserted' })
  return text
}

async function encodeBody(
  mode: 'json' | 'multipart',
  args: readonly (readonly [string, unknown])[],
): Promise<{ type: string; body: string | Buffer }> {
  if (mode === 'json') return { type: 'application/json', body: JSON.stringify(Object.fromEntries(args)) }
  const form = new FormData()
  for (const [name, value] of args) {
    if (value === null || value === undefined) continue
    const file = parseFile(value, name)
    if (file) form.append(name, file)
    else form.append(name, typeof value === 'object' ? JSON.stringify(value) : String(value))
  }
  const encoding = new Response(form)
  return {
    type: encoding.headers.get('content-type') as string,
    body: Buffer.from(await encoding.arrayBuffer()),
  }
}

const FILE_KEYS = ['data_base64', 'filename', 'content_type']
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/

/** Returns the file in a value `{ data_base64, filename?, content_type? }`; null for any other value. */
function parseFile(value: unknown, name: string): File | null {
  if (typeof value !== 'object' || value === null || !('data_base64' in value)) return null
  const { data_base64, filename = 'file', content_type = 'application/octet-stream' } = value as Record<string, unknown>
  if (Object.keys(value).some(key => !FILE_KEYS.includes(key))) return null
  if (typeof filename !== 'string' || typeof content_type !== 'string') return null
  if (typeof data_base64 !== 'string' || !BASE64.test(data_base64))
    return raiseInvalid({ code: 'INVALID_VALUE', path: `input.${name}.data_base64`, message: 'must be base64' })
  return new File([Buffer.from(data_base64, 'base64')], filename, { type: content_type })
}
