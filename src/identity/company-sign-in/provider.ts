import type { ClientAuth, Configuration, CustomFetch } from 'openid-client'
import type { Config } from '#core/base/config.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { type AccountClaims, isAccount } from './model.ts'

/** Lifetime of a cached discovery document; the library reloads keys every five minutes. */
const DISCOVERY_MS = 3_600_000
/** Lifetime of a cached discovery failure: until then, requests fail without another attempt. */
const FAILURE_MS = 1000
/** Timeout of one request to the provider; a sign-in makes up to three. */
const TIMEOUT_SECONDS = 10
const ANSWER_BYTES = 1024 * 1024
const CLOCK_TOLERANCE_SECONDS = 30
const MAX_REASON_LENGTH = 500

const CALLBACK_PATH = '/oauth/oidc/callback'

type Settings = Config & { OIDC_ISSUER: string; OIDC_CLIENT_ID: string }

/** Whether company sign-in is configured. */
export const isEnabled = (config: Config): config is Settings =>
  config.OIDC_ISSUER !== null && config.OIDC_CLIENT_ID !== null

/** The redirect URI to register at the provider. */
export const redirectUri = ({ BASE_URL }: Pick<Config, 'BASE_URL'>): string => `${BASE_URL}${CALLBACK_PATH}`

/** Secrets that bind a sign-in at the provider to one browser. */
export type LoginSecrets = { state: string; nonce: string; verifier: string }

/** Loads the library on first use: it takes 40 ms and 6 MB. */
const loadLibrary = () => import('openid-client')

/** Posts the client secret if the provider supports it: encodings of the basic header differ between providers. */
const authenticateClient =
  ({ ClientSecretBasic, ClientSecretPost }: Awaited<ReturnType<typeof loadLibrary>>, secret: string): ClientAuth =>
  (server, ...request) =>
    (server.token_endpoint_auth_methods_supported?.includes('client_secret_post')
      ? ClientSecretPost(secret)
      : ClientSecretBasic(secret))(server, ...request)

async function discoverProvider({ config, egress }: Services): Promise<Configuration> {
  const { OIDC_ISSUER, OIDC_CLIENT_ID, OIDC_CLIENT_SECRET } = config as Settings
  const oidc = await loadLibrary()
  const issuer = new URL(OIDC_ISSUER)
  const fetchProvider: CustomFetch = (url, options) =>
    egress.fetch(url, { ...(options as RequestInit), maxBytes: ANSWER_BYTES })
  const found = await oidc.discovery(
    issuer,
    OIDC_CLIENT_ID,
    { [oidc.clockTolerance]: CLOCK_TOLERANCE_SECONDS },
    OIDC_CLIENT_SECRET ? authenticateClient(oidc, OIDC_CLIENT_SECRET) : oidc.None(),
    {
      [oidc.customFetch]: fetchProvider,
      timeout: TIMEOUT_SECONDS,
      // Without these checks the library accepts TLS in place of the id_token signature.
      execute: [oidc.enableNonRepudiationChecks, ...(issuer.protocol === 'http:' ? [oidc.allowInsecureRequests] : [])],
    },
  )
  // For some multi-tenant providers the library accepts a different issuer, whose accounts belong to other tenants.
  if (new URL(found.serverMetadata().issuer).href !== issuer.href)
    throw new Error(`${OIDC_ISSUER} names ${found.serverMetadata().issuer} as its issuer`)
  return found
}

/** The provider's configuration from its discovery document, loaded on first use. */
const provider = processSingleton(services => {
  let known: { found: Promise<Configuration>; until: number } | undefined
  return (): Promise<Configuration> => {
    if (known && performance.now() < known.until) return known.found
    const entry = { found: discoverProvider(services), until: performance.now() + DISCOVERY_MS }
    known = entry
    entry.found.catch(() => {
      entry.until = performance.now() + FAILURE_MS
    })
    return entry.found
  }
})

/** Returns the authorization URL of the provider. */
export async function authorizationUrl(
  services: Services,
  { state, nonce, verifier }: LoginSecrets,
  prompt: string | null,
): Promise<URL> {
  const { buildAuthorizationUrl, calculatePKCECodeChallenge } = await loadLibrary()
  return buildAuthorizationUrl(await provider(services)(), {
    redirect_uri: redirectUri(services.config),
    scope: services.config.OIDC_SCOPES,
    state,
    nonce,
    code_challenge: await calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    ...(prompt ? { prompt } : {}),
  })
}

/**
 * Exchanges the provider's response for the claims of an account. The library checks the issuer of the response and the
 * issuer, audience, nonce, times and signature of the id_token.
 * @param query of the callback URL
 * @throws Error if the provider refused, was unreachable, or sent an invalid response
 */
export async function exchangeResponse(
  services: Services,
  query: URLSearchParams,
  { state, nonce, verifier }: LoginSecrets,
): Promise<AccountClaims> {
  const { config } = services
  const { authorizationCodeGrant, fetchUserInfo } = await loadLibrary()
  const configuration = await provider(services)()
  const tokens = await authorizationCodeGrant(configuration, new URL(`${redirectUri(config)}?${query}`), {
    expectedState: state,
    expectedNonce: nonce,
    pkceCodeVerifier: verifier,
    idTokenExpected: true,
  })
  let claims: Record<string, unknown> = { ...tokens.claims() }
  const account = { issuer: claims.iss as string, subject: claims.sub as string }
  // The library does not check the time of issue.
  if (Number(claims.iat) > Date.now() / 1000 + CLOCK_TOLERANCE_SECONDS)
    throw new Error('identity provider returned an id_token of the future')
  if (!isAccount(account)) throw new Error('identity provider returned an unusable issuer or subject')
  const requiredClaims = [config.OIDC_USERNAME_CLAIM, config.OIDC_REQUIRED_CLAIM?.name]
  const isMissing = requiredClaims.some(name => name !== undefined && !Object.hasOwn(claims, name))
  // Many providers omit scope claims from an id_token that is issued with an access token.
  if (isMissing && configuration.serverMetadata().userinfo_endpoint)
    claims = { ...(await fetchUserInfo(configuration, tokens.access_token, account.subject)), ...claims }
  return { ...account, claims }
}

/** Whether the account holder or the provider refused the sign-in, as opposed to a failure. */
export function isRefusal(failure: unknown): boolean {
  const { code, error } = failure as Record<string, unknown>
  return code === 'OAUTH_AUTHORIZATION_RESPONSE_ERROR' && error === 'access_denied'
}

/** Returns the provider's own error text for the log; undefined if there is none. */
export function providerError(failure: unknown): string | undefined {
  const { error, error_description } = failure as Record<string, unknown>
  return typeof error === 'string' ? `${error}: ${error_description ?? ''}`.slice(0, MAX_REASON_LENGTH) : undefined
}
