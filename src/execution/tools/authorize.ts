import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { AppError, raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { EgressOutcome } from '#core/net/egress.ts'
import { maskYielding } from '#identity/secrets/mask.ts'
import type { Limits } from './call-types.ts'
import type { Auth } from './model.ts'
import type { ToolRequest } from './request.ts'
import { fillTokens, type TokenValues } from './tokens.ts'

/** Credential added to a request. */
export type ToolCredential = {
  /** Values to mask. */
  hidden: string[]
  /** Drops the credential after the target refused it, so that the next call gets a new one. */
  forget(): void
}

const DEFAULT_TOKEN_URI = 'https://oauth2.googleapis.com/token'
const ASSERTION_SECONDS = 3600
/** Time before its expiry after which a token is not used any more. */
const EXPIRY_MARGIN_MS = 60_000
const TOKEN_TIMEOUT_MS = 30_000
const TOKEN_BYTES = 256 * 1024

/**
 * Computes the credential of a request from its final content and adds it.
 * @throws TOOL_AUTH_FAILED, TOOL_EGRESS_BLOCKED for a token endpoint that the egress rule blocks
 */
export async function authorizeToolCall(
  services: Services,
  projectId: string,
  auth: Auth,
  request: ToolRequest,
  values: TokenValues,
  limits: Limits,
): Promise<ToolCredential> {
  const fill = (text: string) => fillTokens(text, values, () => '')
  try {
    if (auth.type === 'aws_sigv4') return await signAws(services, auth, request, fill)
    const grant =
      auth.type === 'gcp_service_account' ? await googleGrant(services, auth, fill) : clientGrant(auth, fill)
    return await addBearerToken(services, projectId, grant, request, limits)
  } catch (error) {
    if (error instanceof AppError) throw error
    // Library errors may quote key material, so none is passed on.
    return raise('TOOL_AUTH_FAILED', { message: 'Credentials in auth are invalid', cause: undefined })
  }
}

type Fill = (text: string) => string

async function signAws(
  { clock }: Services,
  auth: Extract<Auth, { type: 'aws_sigv4' }>,
  { method, url, headers, body }: ToolRequest,
  fill: Fill,
): Promise<ToolCredential> {
  const { AwsV4Signer } = await import('aws4fetch')
  const service = fill(auth.service)
  const secretAccessKey = fill(auth.secret_access_key)
  const sessionToken = auth.session_token === undefined ? undefined : fill(auth.session_token)
  const signedHeaders = Object.entries(headers.all()).filter(([name]) => /^(?:content-type$|x-amz-)/i.test(name))
  if (service === 's3')
    signedHeaders.push([
      'X-Amz-Content-Sha256',
      createHash('sha256')
        .update(body ?? '')
        .digest('hex'),
    ])
  const signer = new AwsV4Signer({
    method,
    url,
    headers: signedHeaders,
    body: body as string | undefined,
    accessKeyId: fill(auth.access_key_id),
    secretAccessKey,
    sessionToken,
    region: fill(auth.region),
    service,
    datetime: clock
      .now()
      .toISOString()
      .replace(/[:-]|\.\d{3}/g, ''),
    // Signs only the headers above: context headers and the Idempotency-Key are sent unsigned.
    allHeaders: true,
  })
  const signed = (await signer.sign()).headers
  for (const name of ['Authorization', 'X-Amz-Date', 'X-Amz-Security-Token', 'X-Amz-Content-Sha256']) {
    const value = signed.get(name)
    if (value !== null) headers.set(name, value, true)
  }
  return { hidden: [secretAccessKey, ...(sessionToken ? [sessionToken] : [])], forget: () => {} }
}

/** Request for an access token. */
type Grant = {
  url: string
  /** URL without secrets, for errors. */
  shown: string
  /** Cache key, with secrets hashed. */
  key: string
  form: () => Promise<Record<string, string>>
  hidden: string[]
}

const digest = (text: string): string => createHash('sha256').update(text).digest('base64')

async function googleGrant(
  { clock }: Services,
  auth: Extract<Auth, { type: 'gcp_service_account' }>,
  fill: Fill,
): Promise<Grant> {
  const scope = auth.scopes.map(fill).join(' ')
  const file = JSON.parse(fill(auth.credentials)) as Record<string, unknown>
  const { client_email, private_key, private_key_id, token_uri = DEFAULT_TOKEN_URI } = file
  if (typeof client_email !== 'string' || typeof private_key !== 'string' || typeof token_uri !== 'string')
    throw new Error('the key file has no client_email or private_key')
  const { importPKCS8, SignJWT } = await import('jose')
  return {
    url: token_uri,
    shown: URL.parse(token_uri)?.origin ?? '',
    key: JSON.stringify(['gcp', client_email, token_uri, scope, digest(private_key)]),
    async form() {
      const now = Math.floor(clock.now().getTime() / 1000)
      const assertion = await new SignJWT({ scope })
        .setProtectedHeader({
          alg: 'RS256',
          typ: 'JWT',
          ...(typeof private_key_id === 'string' ? { kid: private_key_id } : {}),
        })
        .setIssuer(client_email)
        .setAudience(token_uri)
        .setIssuedAt(now)
        .setExpirationTime(now + ASSERTION_SECONDS)
        .sign(await importPKCS8(private_key, 'RS256'))
      return { grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer', assertion }
    },
    hidden: [private_key],
  }
}

function clientGrant(auth: Extract<Auth, { type: 'oauth2_client_credentials' }>, fill: Fill): Grant {
  const client_id = fill(auth.client_id)
  const client_secret = fill(auth.client_secret)
  const { scope, audience, token_url } = auth
  const parameters = { ...(scope ? { scope: fill(scope) } : {}), ...(audience ? { audience: fill(audience) } : {}) }
  return {
    url: token_url,
    shown: token_url,
    key: JSON.stringify(['oauth2', token_url, client_id, parameters, digest(client_secret)]),
    form: async () => ({ grant_type: 'client_credentials', client_id, client_secret, ...parameters }),
    hidden: [client_secret],
  }
}

type Token = { value: string; until: number }

/** Cached access tokens of a process, used until a minute before they expire, and pending token requests. */
const tokenCache = processSingleton(() => ({
  cached: new LRUCache<string, Token>({ max: 1000 }),
  pending: new Map<string, Promise<Token>>(),
}))

async function addBearerToken(
  services: Services,
  projectId: string,
  grant: Grant,
  { headers }: ToolRequest,
  limits: Limits,
): Promise<ToolCredential> {
  const { cached, pending } = tokenCache(services)
  const key = `${projectId} ${grant.key}`
  let token = cached.get(key)
  if (!token || token.until <= services.clock.now().getTime()) {
    let request = pending.get(key)
    if (!request) {
      request = requestToken(services, projectId, grant).finally(() => pending.delete(key))
      pending.set(key, request)
    }
    token = await within(request, limits)
    cached.set(key, token)
  }
  const { value } = token
  headers.set('Authorization', `Bearer ${value}`, true)
  return {
    hidden: [...grant.hidden, value],
    forget: () => {
      if (cached.get(key)?.value === value) cached.delete(key)
    },
  }
}

/** Waits for a token request, shared by concurrent calls, within the limits of one call. */
async function within<T>(work: Promise<T>, { until, signal }: Limits): Promise<T> {
  const timeout = AbortSignal.timeout(Math.max(1, Math.ceil(until - performance.now())))
  const ended = signal ? AbortSignal.any([signal, timeout]) : timeout
  return Promise.race([
    work,
    new Promise<never>((_resolve, reject) => {
      const rejectWait = () =>
        reject(
          authFailure('Token endpoint did not respond in time', { reason: timeout.aborted ? 'timeout' : 'aborted' }),
        )
      if (ended.aborted) rejectWait()
      else ended.addEventListener('abort', rejectWait, { once: true })
    }),
  ])
}

const authFailure = (message: string, meta: Record<string, unknown>): AppError =>
  new AppError('TOOL_AUTH_FAILED', { message, meta })

async function requestToken(services: Services, projectId: string, grant: Grant): Promise<Token> {
  const { egress, clock } = services
  const form = await grant.form()
  const requestedAt = clock.now().getTime()
  const outcome = await egress.request({
    url: grant.url,
    method: 'POST',
    headers: { 'Content-Type': 'application/x-www-form-urlencoded', Accept: 'application/json' },
    body: new URLSearchParams(form).toString(),
    tenant: projectId,
    timeoutMs: TOKEN_TIMEOUT_MS,
    waitMs: TOKEN_TIMEOUT_MS,
    maxRedirects: 0,
    redirectMode: 'none',
    maxBytes: TOKEN_BYTES,
  })
  const { status, body } = requireAnswer(outcome, grant)
  const hidden = [...grant.hidden, ...(form.assertion ? [form.assertion] : [])]
  const meta = {
    upstream_status: status,
    upstream_body: await maskYielding(body, hidden),
  }
  if (status < 200 || status > 299) throw authFailure(`Token endpoint responded with ${status}`, meta)
  const { access_token, expires_in } = parseBody(body)
  if (typeof access_token !== 'string' || !/^[\x21-\x7e]+$/.test(access_token))
    // The body may contain a token in another form.
    throw authFailure('Token endpoint returned no access token', { upstream_status: status })
  const seconds = Number(expires_in)
  const until = Number.isFinite(seconds) ? requestedAt + seconds * 1000 - EXPIRY_MARGIN_MS : 0
  return { value: access_token, until }
}

function parseBody(body: Buffer): { access_token?: unknown; expires_in?: unknown } {
  try {
    return Object(JSON.parse(body.toString('utf8')))
  } catch {
    return {}
  }
}

function requireAnswer(outcome: EgressOutcome, { shown }: Grant): Extract<EgressOutcome, { kind: 'answer' }> {
  if (outcome.kind === 'answer') return outcome
  if (outcome.kind === 'blocked')
    return raise('TOOL_EGRESS_BLOCKED', {
      message: 'Token endpoint of the tool is blocked by the egress rule',
      meta: { tool_url: shown, tool_address: outcome.address },
    })
  throw authFailure('Token endpoint did not respond', { reason: outcome.reason })
}
