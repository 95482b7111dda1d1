import { createSecretKey } from 'node:crypto'
import type { Response } from 'express'
import Provider, { type Configuration, errors, interactionPolicy, type KoaContextWithOIDC } from 'oidc-provider'
import type { Config } from '#core/base/config.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { basePath } from '#core/http/base-path.ts'
import { toRefusal } from '#core/invoke/refusal-mapping.ts'
import { CONSOLE, isFirstParty } from '../grants/built-in-clients.ts'
import { PROOF_ALGORITHMS } from '../grants/dpop.ts'
import { ACT_AS_USER, consentCatalogue, MCP_ACCESS, OPENID_SCOPES } from '../grants/scopes.ts'
import { findUsername } from '../grants/store.ts'
import { withBudget } from '../sign-in/budget.ts'
import { derivedKeys } from '../tokens/signatures.ts'
import { verifyToken } from '../tokens/tokens.ts'
import { adapterOf, currentGrant, resourcesOf, revokeInRequest } from './adapter.ts'
import {
  checkClientMetadata,
  firstPartyClients,
  isHostAllowed,
  overrideClientMethods,
  overrideConsoleToken,
  overrideRefreshTokens,
  UNSAID,
} from './clients.ts'
import { clearConsoleCookie, consoleRequest, setConsoleCookie } from './console-cookie.ts'
import { cookieNames } from './cookies.ts'
import { METADATA_DOCUMENT_DRAFT } from './draft.ts'
import { signingKeys } from './keys.ts'
import { countTokenFailure, RETRY_SECONDS, senderIp, senderNetwork, spendLimit } from './limits.ts'
import { clientKind } from './model.ts'
import { oauthErrorPage, userCodeConfirmPage, userCodeDonePage, userCodePage } from './pages.ts'

/** The OAuth library, configured with our storage, clients and consent. */

const INTERACTION_SECONDS = 600
const CODE_SECONDS = 60
const DEVICE_CODE_SECONDS = 600
const SESSION_SECONDS = 600
const POLL_SECONDS = 5
const MAX_ASSERTION_SECONDS = 600
const MAX_DOCUMENT_BYTES = 5 * 1024
const MAX_JWKS_BYTES = 64 * 1024
/**
 * Scope claims above this size are omitted if they equal the scopes of the grant, since headers are limited to 16 KiB.
 */
const MAX_SCOPE_BYTES = 2048

export async function createProvider(services: Services): Promise<Provider> {
  const provider = new Provider(services.config.BASE_URL, {
    ...configuration(services),
    jwks: { keys: (await signingKeys(services)) as never },
  })
  // URLs are built from the headers set by the mount, which match BASE_URL.
  provider.proxy = true
  overrideClientMethods(provider)
  overrideRefreshTokens(provider, services.config)
  overrideConsoleToken(provider)
  provider.use((ctx, next) => completeResponse(services, ctx as KoaContextWithOIDC, next))
  provider.on('authorization.success', forgetAccount)
  provider.on('server_error', (ctx, error) => respondToFailure(services, ctx, error))
  return provider
}

/**
 * Removes the user from the browser session after a request: later requests require a new sign-in, and another user of
 * the browser need not sign out first.
 */
function forgetAccount({ oidc: { session } }: KoaContextWithOIDC): void {
  if (!session) return
  delete session.accountId
  delete session.authorizations
}

/** Errors of the token endpoint that do not indicate guessing. */
const NON_GUESS_ERRORS = [
  'authorization_pending',
  'slow_down',
  'use_dpop_nonce',
  'server_error',
  'temporarily_unavailable',
]

/** Adds behaviour that the library's configuration does not offer. */
async function completeResponse(services: Services, ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> {
  await next()
  const body = ctx.body as Record<string, unknown> | undefined
  const name = (ctx as { _matchedRouteName?: string })._matchedRouteName
  if (name === 'discovery' && body) {
    body.scopes_supported = [...OPENID_SCOPES, MCP_ACCESS]
    body.response_modes_supported = ['query']
  }
  if (name === 'device_authorization' && ctx.status === 200 && body) body.interval = POLL_SECONDS
  if (name === 'registration' && body?.error === 'temporarily_unavailable') {
    ctx.status = 429
    ctx.set('Retry-After', String(RETRY_SECONDS))
  }
  if (await completeConsoleResponse(services, ctx, name)) return
  const error = String(body?.error)
  const isGuess =
    name === 'token'
      ? !NON_GUESS_ERRORS.includes(error)
      : (name === 'revocation' || name === 'introspection') && error === 'invalid_client'
  if (isGuess && ctx.status >= 400) await countTokenFailure(services, senderIp(ctx))
}

/**
 * Moves the refresh token of the console from the response to the cookie of the browser. A browser without a cookie of
 * the page gets 204: it is not signed in, which is no failure. Nor is a cookie whose sign-in has ended: only this
 * deployment makes cookies, so none is a guess. Returns whether the response is complete.
 */
async function completeConsoleResponse(
  services: Services,
  ctx: KoaContextWithOIDC,
  route: string | undefined,
): Promise<boolean> {
  const { config } = services
  const request = consoleRequest(ctx)
  const res = ctx.res as Response
  const body = ctx.body as Record<string, unknown> | undefined
  if (request && route === 'revocation' && ctx.status === 200) {
    clearConsoleCookie(config, res)
    await revokeByAccessToken(services, ctx)
  }
  if (!request || route !== 'token') return false
  if (ctx.oidc.params?.grant_type === 'refresh_token') {
    if (request.token === null) {
      if (request.hasCookie) clearConsoleCookie(config, res)
      ctx.status = 204
      return true
    }
    if (body?.error === 'invalid_grant') {
      clearConsoleCookie(config, res)
      return true
    }
  }
  const { RefreshToken: token } = ctx.oidc.entities
  if (ctx.status !== 200 || !body || !token) return false
  setConsoleCookie(config, res, request, String(body.refresh_token), token.expiration)
  delete body.refresh_token
  return true
}

/**
 * Ends the sign-in of the console to which the access token of the page belongs, whether or not the browser still has
 * the cookie: a copy of the cookie must not outlive a sign-out. A token that has expired does so as well.
 */
async function revokeByAccessToken(services: Services, ctx: KoaContextWithOIDC): Promise<void> {
  const { access_token: token } = (ctx.oidc.body ?? {}) as { access_token?: unknown }
  if (typeof token !== 'string') return
  const beforeExpiry = { now: () => new Date(0) }
  const claims = await verifyToken({ config: services.config, clock: beforeExpiry }, ['oauth'], token)
  const grantId = claims?.client_id === CONSOLE ? claims.gid : undefined
  if (typeof grantId !== 'string' || grantId === ctx.oidc.entities.RefreshToken?.grantId) return
  try {
    await revokeInRequest(services, ctx, grantId, 'client')
  } catch (error) {
    ctx.status = 500
    ctx.body = { error: 'server_error', error_description: 'the sign-in has not ended' }
    respondToFailure(services, ctx, error as Error)
  }
}

/** Responds to failures that the caller did not cause, with a retryable error if the database is unavailable. */
function respondToFailure({ log }: Services, ctx: KoaContextWithOIDC, error: Error): void {
  const refusal = toRefusal(error)
  if (!refusal) {
    log.error({ err: error, path: ctx.path, method: ctx.method }, 'request failed')
    return
  }
  ctx.status = refusal.status
  ctx.set(refusal.headers ?? {})
  if (ctx.type === 'application/json')
    ctx.body = { error: 'temporarily_unavailable', error_description: refusal.message }
}

function configuration(services: Services): Configuration {
  const { config } = services
  const { BASE_URL } = config
  const signingKey = createSecretKey(Buffer.from(config.JWT_SECRET, 'utf8'))
  /** Metadata document fetched by each request. */
  const fetched = new WeakMap<object, string>()
  return {
    adapter: adapterOf(services),
    clients: firstPartyClients(config) as never,
    clientDefaults: {
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      application_type: UNSAID as never,
    },
    extraClientMetadata: {
      // Any property serves: its validator sees all metadata before the library checks it.
      properties: ['software_id'],
      validator: (_ctx, _key, _value, metadata) => checkClientMetadata(metadata),
    },
    routes: {
      authorization: '/oauth/authorize',
      token: '/oauth/token',
      revocation: '/oauth/revoke',
      introspection: '/oauth/introspect',
      registration: '/oauth/register',
      device_authorization: '/oauth/device_authorization',
      code_verification: '/oauth/device',
      userinfo: '/oauth/userinfo',
      jwks: '/oauth/jwks',
      end_session: '/oauth/end',
    },
    cookies: {
      names: cookieNames(config),
      keys: derivedKeys(config, 'cookies').map(key => key.toString('base64url')),
      long: { httpOnly: true, sameSite: 'lax', path: `${basePath(config)}/oauth` },
      short: { httpOnly: true, sameSite: 'lax', path: `${basePath(config)}/api/v1/oauth` },
    },
    responseTypes: ['code'],
    clientAuthMethods: ['none', 'client_secret_basic', 'client_secret_post', 'private_key_jwt'],
    enabledJWA: {
      idTokenSigningAlgValues: ['RS256'],
      clientAuthSigningAlgValues: ['RS256', 'PS256', 'ES256', 'Ed25519', 'EdDSA'],
      dPoPSigningAlgValues: PROOF_ALGORITHMS as never,
    },
    assertJwtClientAuthClaimsAndHeader: async (_ctx, { exp }) => {
      // The library stores each assertion until it expires.
      if (!(Number(exp) - Date.now() / 1000 <= MAX_ASSERTION_SECONDS))
        throw new errors.InvalidClientAuth(
          `exp of the client assertion must be within ${MAX_ASSERTION_SECONDS} seconds`,
        )
    },
    pkce: { required: () => true },
    allowOmittingSingleRegisteredRedirectUri: false,
    scopes: OPENID_SCOPES,
    claims: { openid: ['sub', 'auth_time'], profile: ['preferred_username'] },
    // An id_token is issued with an access token: without its claims, a client would need a second request for a name.
    conformIdTokenClaims: false,
    subjectTypes: ['public'],
    expiresWithSession: () => false,
    rotateRefreshToken: true,
    revokeGrantPolicy: () => true,
    issueRefreshToken: (_ctx, client, source) =>
      client.grantTypeAllowed('refresh_token') &&
      ((source as { resource?: unknown }).resource !== undefined || source.scopes.has('offline_access')),
    ttl: lifetimesOf(config),
    findAccount: async (ctx, sub) => {
      const username = await withBudget(services, senderNetwork(ctx), db => findUsername(db, sub))
      return username === null ? undefined : { accountId: sub, claims: () => ({ sub, preferred_username: username }) }
    },
    loadExistingGrant: ctx => {
      const id = ctx.oidc.result?.consent?.grantId
      return id ? ctx.oidc.provider.Grant.find(id) : undefined
    },
    interactions: {
      policy: requireEveryTime(),
      url: (_ctx, interaction) => {
        const url = new URL(config.OAUTH_CONSENT_URL)
        url.searchParams.set('request_id', `oar_${interaction.uid}`)
        // The page names a built-in client before the user has signed in to read the request.
        const client = String(interaction.params.client_id)
        if (isFirstParty(client)) url.searchParams.set('client', client)
        return url.href
      },
    },
    fetch: async (url, init) => {
      const { signal, method, headers } = init ?? {}
      return services.egress.fetch(url as string, { signal, method, headers, maxBytes: MAX_JWKS_BYTES })
    },
    fetchResponseBodyLimits: { 'client_id metadata document': MAX_DOCUMENT_BYTES, jwks_uri: MAX_JWKS_BYTES },
    formats: {
      customizers: {
        jwt: (_ctx, token, { payload }) => {
          const grant = currentGrant()
          const scope = String(payload.scope ?? '')
          const isWhole = grant?.scopes.every(each => token.scopes.has(each)) ?? false
          Object.assign(payload, {
            typ: 'oauth',
            gid: (token as { grantId?: string }).grantId,
            prj: grant?.project_id ?? null,
            scope: isWhole && scope.length > MAX_SCOPE_BYTES ? undefined : payload.scope,
          })
          return undefined
        },
      },
    },
    renderError: (ctx, out) => oauthErrorPage(services, ctx, out),
    features: {
      devInteractions: { enabled: false },
      dPoP: { enabled: true, nonceSecret: derivedKeys(config, 'dpop nonces')[0] },
      introspection: {
        enabled: config.OAUTH_INTROSPECTION_ENABLED,
        allowedPolicy: (_ctx, client, token) =>
          client.clientAuthMethod !== 'none' && token.clientId === client.clientId,
      },
      revocation: {
        enabled: true,
        allowedPolicy: (_ctx, client, token) => token.clientId === client.clientId,
      },
      userinfo: { enabled: true },
      pushedAuthorizationRequests: { enabled: false },
      rpInitiatedLogout: { enabled: false },
      registration: {
        enabled: config.OAUTH_REGISTRATION_ENABLED,
        idFactory: () => newId(clientKind.prefix),
        issueRegistrationAccessToken: false,
      },
      clientIdMetadataDocument: {
        enabled: config.OAUTH_CIMD_ENABLED,
        ack: METADATA_DOCUMENT_DRAFT,
        allowFetch: async (ctx, clientId) => {
          // The library calls this again when it reports a failed fetch.
          if (!isHostAllowed(config, clientId) || (ctx && fetched.get(ctx) === clientId)) return false
          if (ctx) fetched.set(ctx, clientId)
          const host = new URL(clientId).hostname
          const sender = senderNetwork(ctx)
          return (
            (!ctx || (await spendLimit(services, 'document_sender', sender)) === null) &&
            (await spendLimit(services, 'document_host', host, sender)) === null &&
            (await spendLimit(services, 'document', '', sender)) === null
          )
        },
        allowClient: (_ctx, client) => isHostAllowed(config, client.clientId),
      },
      deviceFlow: {
        enabled: config.OAUTH_DEVICE_ENABLED,
        charset: 'base-20',
        mask: '****-****',
        deviceInfo: ctx => ({ ip: senderIp(ctx), user_agent: ctx.get('user-agent').slice(0, 300) }),
        userCodeInputSource: async (ctx, form, _out, error) => userCodePage(services, ctx, form, error),
        userCodeConfirmSource: async (ctx, form, client, info, userCode) =>
          userCodeConfirmPage(services, ctx, form, { client, info, userCode }),
        successSource: async ctx => userCodeDonePage(services, ctx),
      },
      resourceIndicators: {
        enabled: true,
        defaultResource: (ctx, _client, oneOf) => {
          // All of them identify this API.
          if (oneOf) return oneOf[0]
          const requested = String(ctx.oidc.params?.scope ?? '').split(' ')
          const isSignIn = requested.includes('openid') && requested.every(scope => OPENID_SCOPES.includes(scope))
          return isSignIn ? (undefined as never) : BASE_URL
        },
        useGrantedResource: () => true,
        getResourceServerInfo: (_ctx, resource, client) => {
          if (!resourcesOf(BASE_URL).includes(resource)) throw new errors.InvalidTarget()
          const { known } = consentCatalogue(services)
          return {
            scope: isFirstParty(client.clientId) ? `${known} ${ACT_AS_USER}` : known,
            audience: resource === `${BASE_URL}/` ? BASE_URL : resource,
            accessTokenFormat: 'jwt' as const,
            accessTokenTTL: config.OAUTH_ACCESS_TOKEN_TTL_SECONDS,
            jwt: { sign: { alg: 'HS256' as const, key: signingKey } },
          }
        },
      },
    },
  }
}

/** Returns the lifetimes of objects in seconds. */
const lifetimesOf = (config: Config): Configuration['ttl'] => ({
  AccessToken: config.OAUTH_ACCESS_TOKEN_TTL_SECONDS,
  AuthorizationCode: CODE_SECONDS,
  DeviceCode: DEVICE_CODE_SECONDS,
  IdToken: config.OAUTH_ACCESS_TOKEN_TTL_SECONDS,
  Interaction: INTERACTION_SECONDS,
  RefreshToken: (ctx, _token, client) =>
    client.clientId === CONSOLE ? consoleTtl(config, ctx) : config.OAUTH_REFRESH_TOKEN_TTL_SECONDS,
  Session: SESSION_SECONDS,
  Grant: config.OAUTH_GRANT_MAX_SECONDS,
})

/**
 * Returns the seconds until a sign-in of the console ends, unless it is refreshed after further input: its token and its
 * grant end when the idle time since the last input, which the page sends, is over.
 */
function consoleTtl(config: Config, { oidc: { body } }: KoaContextWithOIDC): number {
  const { CONSOLE_IDLE_MINUTES: minutes, OAUTH_REFRESH_TOKEN_TTL_SECONDS: most } = config
  if (minutes === 0) return most
  const idle = Number((body as { idle_seconds?: unknown } | undefined)?.idle_seconds)
  return Math.min(most, Math.max(1, Math.ceil(minutes * 60 - (idle > 0 ? idle : 0))))
}

/** Requires sign-in and consent for every request, regardless of the browser session. */
function requireEveryTime() {
  const policy = interactionPolicy.base()
  const { Check } = interactionPolicy
  policy
    .get('login')
    ?.checks.add(new Check('every_time', 'sign-in is required', 'login_required', ctx => !ctx.oidc.result?.login))
  policy
    .get('consent')
    ?.checks.add(new Check('every_time', 'consent is required', 'consent_required', ctx => !ctx.oidc.result?.consent))
  return policy
}
