import { raise, raiseInvalid } from '../../core/api/errors.ts'
import type { ToolContext } from '../../core/api/tool-context.ts'
import { HEADER_VALUE } from './check-definition.ts'
import type { Execute, ToolRow } from './model.ts'
import {
  fillPlaceholders,
  fillTokens,
  forwardedContext,
  holdsToken,
  placeholdersOf,
  type TokenValues,
} from './tokens.ts'

/** A request before its credential is computed. Only `shown` may be told to anybody. */
export type ToolRequest = {
  method: NonNullable<Execute['method']>
  url: string
  /** The url with its arguments and without its secrets. */
  shown: string
  headers: RequestHeaders
  body: string | Buffer | undefined
}

const MAX_URL_BYTES = 64 * 1024
const WITH_BODY = ['POST', 'PUT', 'PATCH']

/** Headers as they are sent. A later one replaces an earlier one of its name, whatever the case. */
export class RequestHeaders {
  readonly #values = new Map<string, { name: string; value: string; sensitive: boolean }>()

  /** @param sensitive it does not follow a redirect to another origin */
  set(name: string, value: string, sensitive = false): void {
    this.#values.set(name.toLowerCase(), { name, value, sensitive })
  }

  /** Sets all headers of others. */
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
 * Makes the request of a call out of its arguments. Those that the url takes are not sent otherwise.
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
  const taken = new Set(placeholdersOf(execute.url))
  const rest = Object.entries(input).filter(([name]) => !taken.has(name))
  const filled = fillUrl(execute.url, input)
  const shown = withBody ? filled : withQuery(filled, rest)
  const url = fillSecrets(shown, values)
  if (Buffer.byteLength(url) > MAX_URL_BYTES)
    raiseInvalid({ code: 'TOO_BIG', path: 'input', message: 'makes an address of more than 64 KiB' })
  const sent = withBody ? await bodyOf(execute.body_mode ?? 'json', rest) : null
  const headers = new RequestHeaders()
  if (sent) headers.set('Content-Type', sent.type)
  setConfigured(headers, execute.headers ?? {}, values, 'execute')
  // The boundary between parts is known here alone.
  if (sent && execute.body_mode === 'multipart') headers.set('Content-Type', sent.type)
  setContext(headers, forwardedContext(values.context, context_keys), options.contextPrefix)
  if (options.idempotencyKey !== null) headers.set('Idempotency-Key', options.idempotencyKey)
  return { method, url, shown, headers, body: sent?.body }
}

/** Sends a tool context along. */
export function setContext(headers: RequestHeaders, context: ToolContext, prefix: string): void {
  for (const [key, value] of Object.entries(context))
    headers.set(`${prefix}${key}`, headerText(value, `tool_context.${key}`), true)
}

/** A text that leaves one place of an address as it is. */
const encoded = (text: string): string => encodeURIComponent(text.toWellFormed())

function fillUrl(url: string, input: Record<string, unknown>): string {
  const path = url.split(/[?#]/, 1)[0]
  const inPath = new Set(placeholdersOf(path))
  return fillPlaceholders(url, name => {
    const wrong = (message: string) => raiseInvalid({ code: 'INVALID_VALUE', path: `input.${name}`, message })
    const value = Object.hasOwn(input, name) ? input[name] : undefined
    if (value === undefined || value === null)
      return raiseInvalid({
        code: 'REQUIRED',
        path: `input.${name}`,
        message: 'is required: it is part of the address',
      })
    if (!['string', 'number', 'boolean'].includes(typeof value))
      return wrong('must be a text, a number or true or false')
    const text = String(value)
    if (text === '.' || text === '..') return wrong('must not be . or ..: it is part of the address')
    if (text === '' && inPath.has(name)) return wrong('must not be empty: it is part of the path')
    return encoded(text)
  })
}

/** The address with arguments behind what it asks for already; null leaves one out, objects are JSON. */
function withQuery(url: string, args: readonly (readonly [string, unknown])[]): string {
  const query = args
    .filter(([, value]) => value !== null && value !== undefined)
    .map(
      ([name, value]) =>
        `${encoded(name)}=${encoded(typeof value === 'object' ? JSON.stringify(value) : String(value))}`,
    )
    .join('&')
  const [address] = url.split('#', 1)
  if (query === '') return address
  if (!address.includes('?')) return `${address}?${query}`
  return /[?&]$/.test(address) ? address + query : `${address}&${query}`
}

/** Secrets in an address are encoded, so that they stay where they were put. */
export function fillSecrets(url: string, { secrets }: TokenValues): string {
  const values = new Map([...secrets].map(([id, value]) => [id, encoded(value)]))
  return fillTokens(url, { secrets: values, context: {} }, key => `{{context:${key}}}`)
}

/** Sets headers as the author of a tool wrote them, in its `at`. Raises MISSING_TOOL_CONTEXT_KEY. */
export function setConfigured(
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

/** A value as a header carries it, in UTF-8. */
function headerText(value: string, path: string): string {
  const text = /[^\0-\x7f]/.test(value) ? Buffer.from(value).toString('latin1') : value
  if (!HEADER_VALUE.test(text))
    raiseInvalid({ code: 'INVALID_VALUE', path, message: 'is not a header value once it is filled in' })
  return text
}

async function bodyOf(
  mode: 'json' | 'multipart',
  args: readonly (readonly [string, unknown])[],
): Promise<{ type: string; body: string | Buffer }> {
  if (mode === 'json') return { type: 'application/json', body: JSON.stringify(Object.fromEntries(args)) }
  const form = new FormData()
  for (const [name, value] of args) {
    if (value === null || value === undefined) continue
    const file = fileOf(value, name)
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

/** The file that `{ data_base64, filename?, content_type? }` is; null for any other value. */
function fileOf(value: unknown, name: string): File | null {
  if (typeof value !== 'object' || value === null || !('data_base64' in value)) return null
  const { data_base64, filename = 'file', content_type = 'application/octet-stream' } = value as Record<string, unknown>
  if (Object.keys(value).some(key => !FILE_KEYS.includes(key))) return null
  if (typeof filename !== 'string' || typeof content_type !== 'string') return null
  if (typeof data_base64 !== 'string' || !BASE64.test(data_base64))
    return raiseInvalid({ code: 'INVALID_VALUE', path: `input.${name}.data_base64`, message: 'must be base64' })
  return new File([Buffer.from(data_base64, 'base64')], filename, { type: content_type })
}
