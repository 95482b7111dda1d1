import type { EventEnvelope } from './generated/types.gen.ts'

export type { EventEnvelope } from './generated/types.gen.ts'

/**
 * - `malformed`: no signature, or a body that is no event
 * - `stale`: signed too long ago, or in the future
 * - `mismatch`: no signature of the body with one of the secrets
 */
export type WebhookSignatureReason = 'malformed' | 'stale' | 'mismatch'

/** A webhook that must not be trusted. */
export class WebhookSignatureError extends Error {
  override readonly name = 'WebhookSignatureError'
  readonly reason: WebhookSignatureReason
  constructor(reason: WebhookSignatureReason, message: string) {
    super(message)
    this.reason = reason
  }
}

/** Headers of a request, of `fetch` or of a Node server. */
export type ReceivedHeaders = { get(name: string): string | null } | Record<string, string | string[] | undefined>

export type VerifyWebhookOptions = {
  /** Bytes of the body as they were received, or their text. */
  rawBody: Uint8Array | ArrayBuffer | string
  headers: ReceivedHeaders
  /** Secret of the webhook; during a rotation the old and the new one. */
  secret: string | readonly string[]
  /** Age of the signature that is accepted. Default 300. */
  toleranceSeconds?: number
  /** Prefix of the headers of the deployment. Default `X-Svc-`. */
  headerPrefix?: string
  /** Time in milliseconds. Default the current one. */
  now?: number
}

const HEX_SHA256 = /^[0-9a-f]{64}$/i
const SIGNATURES_MAX = 10

/**
 * Verifies the signature of a webhook and returns its event.
 * @throws WebhookSignatureError; TypeError for a body that was parsed, whose bytes are lost
 */
export async function verifyWebhook<Event = EventEnvelope>(options: VerifyWebhookOptions): Promise<Event> {
  const { rawBody, headers, secret, toleranceSeconds = 300, headerPrefix = 'X-Svc-', now = Date.now() } = options
  const body = bytesOf(rawBody)
  const header = headerOf(headers, `${headerPrefix}Signature`)
  const parts = (header ?? '').split(',').map(part => part.trim().split('='))
  const seconds = parts.find(([name]) => name === 't')?.[1] ?? ''
  const signatures = parts.flatMap(([name, value]) => (name === 'v1' && HEX_SHA256.test(value ?? '') ? [value] : []))
  if (!/^\d{1,12}$/.test(seconds) || signatures.length === 0)
    throw new WebhookSignatureError('malformed', `${headerPrefix}Signature is missing or has no signature`)
  if (Math.abs(now / 1000 - Number(seconds)) > toleranceSeconds)
    throw new WebhookSignatureError('stale', `the signature is not of the last ${toleranceSeconds} seconds`)
  const message = signedBytes(seconds, body)
  let isVerified = false
  for (const each of typeof secret === 'string' ? [secret] : secret) {
    const key = await hmacKey(each, 'verify')
    // Compares in constant time.
    for (const signature of signatures.slice(0, SIGNATURES_MAX))
      if (await crypto.subtle.verify('HMAC', key, fromHex(signature), message)) isVerified = true
  }
  if (!isVerified) throw new WebhookSignatureError('mismatch', 'the body was not signed with the secret')
  try {
    return JSON.parse(new TextDecoder().decode(body))
  } catch {
    throw new WebhookSignatureError('malformed', 'the body is no JSON')
  }
}

/** Returns the signature header of a body, as the service sends it to webhooks and accepts it for triggers. */
export async function signWebhook({
  rawBody,
  secret,
  headerPrefix = 'X-Svc-',
  now = Date.now(),
}: Pick<VerifyWebhookOptions, 'rawBody' | 'secret' | 'headerPrefix' | 'now'>): Promise<Record<string, string>> {
  const seconds = String(Math.floor(now / 1000))
  const message = signedBytes(seconds, bytesOf(rawBody))
  const signatures: string[] = []
  for (const each of typeof secret === 'string' ? [secret] : secret) {
    const signature = await crypto.subtle.sign('HMAC', await hmacKey(each, 'sign'), message)
    signatures.push(`v1=${toHex(new Uint8Array(signature))}`)
  }
  return { [`${headerPrefix}Signature`]: [`t=${seconds}`, ...signatures].join(',') }
}

function bytesOf(body: VerifyWebhookOptions['rawBody']): Uint8Array<ArrayBuffer> {
  if (typeof body === 'string') return new TextEncoder().encode(body)
  if (ArrayBuffer.isView(body)) return new Uint8Array(body.buffer as ArrayBuffer, body.byteOffset, body.byteLength)
  // Not instanceof: the buffer may come from another realm.
  if (Object.prototype.toString.call(body) === '[object ArrayBuffer]') return new Uint8Array(body)
  throw new TypeError('rawBody must be the received bytes or their text: a parsed body has lost the signed bytes')
}

function headerOf(headers: ReceivedHeaders, name: string): string | null {
  if (typeof headers.get === 'function') return headers.get(name)
  const found = Object.entries(headers as Record<string, string | string[] | undefined>).find(
    ([key]) => key.toLowerCase() === name.toLowerCase(),
  )?.[1]
  return Array.isArray(found) ? found.join(',') : (found ?? null)
}

function signedBytes(seconds: string, body: Uint8Array): Uint8Array<ArrayBuffer> {
  const prefix = new TextEncoder().encode(`${seconds}.`)
  const all = new Uint8Array(prefix.length + body.length)
  all.set(prefix)
  all.set(body, prefix.length)
  return all
}

const hmacKey = (secret: string, use: 'sign' | 'verify') =>
  crypto.subtle.importKey('raw', new TextEncoder().encode(secret), { name: 'HMAC', hash: 'SHA-256' }, false, [use])

const fromHex = (hex: string): Uint8Array<ArrayBuffer> =>
  Uint8Array.from(hex.match(/../g) ?? [], byte => Number.parseInt(byte, 16))

const toHex = (bytes: Uint8Array): string => [...bytes].map(byte => byte.toString(16).padStart(2, '0')).join('')
