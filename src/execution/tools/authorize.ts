import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { AppError, raise } from '../../core/api/errors.ts'
import type { EgressOutcome } from '../../core/net/egress.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { maskYielding } from '../../identity/secrets/mask.ts'
import type { Limits } from './call-types.ts'
import type { Auth } from './model.ts'
import type { ToolRequest } from './request.ts'
import { fillTokens, type TokenValues } from './tokens.ts'

/** A credential that was put into a request. */
export type ToolCredential = {
  /** Values that may not be shown. */
  hidden: string[]
  /** The target refuses it: the next call gets a new one. */
  forget(): void
}

const DEFAULT_TOKEN_URI = 'https://oauth2.googleapis.com/token'
const ASSERTION_SECONDS = 3600
/** A token is no longer used so long before it expires. */
const MARGIN_MS = 60_000
const TOKEN_TIMEOUT_MS = 30_000
const TOKEN_BYTES = 256 * 1024

/**
 * Computes the credential of a request over what it will send, and puts it there.
 * @throws TOOL_AUTH_FAILED, TOOL_EGRESS_BLOCKED for a token endpoint that may not be called
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
    return await bearer(services, projectId, grant, request, limits)
  } catch (error) {
    if (error instanceof AppError) throw error
    // What libraries say of key material may quote it.
    return raise('TOOL_AUTH_FAILED', { message: 'The credentials of auth cannot be used', cause: undefined })
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
  const own = Object.entries(headers.all()).filter(([name]) => /^(?:content-type$|x-amz-)/i.test(name))
  if (service === 's3')
    own.push([
      'X-Amz-Content-Sha256',
      createHash('sha256')
        .update(body ?? '')
        .digest('hex'),
    ])
  const signer = new AwsV4Signer({
    method,
    url,
    headers: own,
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
    // Those above and no others: context headers and the Idempotency-Key travel unsigned.
    allHeaders: true,
  })
  const signed = (await signer.sign()).headers
  for (const name of ['Authorization', 'X-Amz-Date', 'X-Amz-Security-Token', 'X-Amz-Content-Sha256']) {
    const value = signed.get(name)
    if (value !== null) headers.set(name, value, true)
  }
  return { hidden: [secretAccessKey, ...(sessionToken ? [sessionToken] : [])], forget: () => {} }
}

/** How an access token is asked for. */
type Grant = {
  url: string
  /** The same, as errors may show it. */
  shown: string
  /** What the token depends on, hashed where it is secret. */
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
    throw new Error('the key file lacks client_email or private_key')
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
  const asked = { ...(scope ? { scope: fill(scope) } : {}), ...(audience ? { audience: fill(audience) } : {}) }
  return {
    url: token_url,
    shown: token_url,
    key: JSON.stringify(['oauth2', token_url, client_id, asked, digest(client_secret)]),
    form: async () => ({ grant_type: 'client_credentials', client_id, client_secret, ...asked }),
    hidden: [client_secret],
  }
}

type Token = { value: string; until: number }

/** Access tokens of a process, until a minute before they expire, and those that are being asked for. */
const tokensOf = processSingleton(() => ({
  known: new LRUCache<string, Token>({ max: 1000 }),
  asked: new Map<string, Promise<Token>>(),
}))

async function bearer(
  services: Services,
  projectId: string,
  grant: Grant,
  { headers }: ToolRequest,
  limits: Limits,
): Promise<ToolCredential> {
  const { known, asked } = tokensOf(services)
  const key = `${projectId} ${grant.key}`
  let token = known.get(key)
  if (!token || token.until <= services.clock.now().getTime()) {
    let asking = asked.get(key)
    if (!asking) {
      asking = requestToken(services, projectId, grant).finally(() => asked.delete(key))
      asked.set(key, asking)
    }
    token = await within(asking, limits)
    known.set(key, token)
  }
  const { value } = token
  headers.set('Authorization', `Bearer ${value}`, true)
  return {
    hidden: [...grant.hidden, value],
    forget: () => {
      if (known.get(key)?.value === value) known.delete(key)
    },
  }
}

/** Several calls may wait for one token, each as long as it has time. */
async function within<T>(work: Promise<T>, { until, signal }: Limits): Promise<T> {
  const late = AbortSignal.timeout(Math.max(1, Math.ceil(until - performance.now())))
  const over = signal ? AbortSignal.any([signal, late]) : late
  return Promise.race([
    work,
    new Promise<never>((_resolve, reject) => {
      const end = () =>
        reject(failed('The token endpoint gave no answer in time', { reason: late.aborted ? 'timeout' : 'aborted' }))
      if (over.aborted) end()
      else over.addEventListener('abort', end, { once: true })
    }),
  ])
}

const failed = (message: string, meta: Record<string, unknown>): AppError =>
  new AppError('TOOL_AUTH_FAILED', { message, meta })

async function requestToken(services: Services, projectId: string, grant: Grant): Promise<Token> {
  const { egress, clock } = services
  const form = await grant.form()
  const asked = clock.now().getTime()
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
  const { status, body } = answered(outcome, grant)
  const hidden = [...grant.hidden, ...(form.assertion ? [form.assertion] : [])]
  const meta = {
    upstream_status: status,
    upstream_body: await maskYielding(body, hidden),
  }
  if (status < 200 || status > 299) throw failed(`The token endpoint answered ${status}`, meta)
  const { access_token, expires_in } = parsed(body)
  if (typeof access_token !== 'string' || !/^[\x21-\x7e]+$/.test(access_token))
    // Its body may hold a token of another form.
    throw failed('The token endpoint answered no access token', { upstream_status: status })
  const seconds = Number(expires_in)
  const until = Number.isFinite(seconds) ? asked + seconds * 1000 - MARGIN_MS : 0
  return { value: access_token, until }
}

function parsed(body: Buffer): { access_token?: unknown; expires_in?: unknown } {
  try {
    return Object(JSON.parse(body.toString('utf8')))
  } catch {
    return {}
  }
}

function answered(outcome: EgressOutcome, { shown }: Grant): Extract<EgressOutcome, { kind: 'answer' }> {
  if (outcome.kind === 'answer') return outcome
  if (outcome.kind === 'blocked')
    return raise('TOOL_EGRESS_BLOCKED', {
      message: 'The token endpoint of the tool may not be called',
      meta: { tool_url: shown, tool_address: outcome.address },
    })
  throw failed('The token endpoint gave no answer', { reason: outcome.reason })
}
