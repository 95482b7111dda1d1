import type { ClientAuth, Configuration, CustomFetch } from 'openid-client'
import type { Config } from '../../config.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { type AccountClaims, isAccount } from './model.ts'

/** How long a discovery document counts; keys are read again every five minutes by the library. */
const DISCOVERY_MS = 3_600_000
/** How long a failed discovery counts: requests of that time fail without another one. */
const FAILURE_MS = 1000
/** One request to the provider; a sign-in makes up to three. */
const TIMEOUT_SECONDS = 10
const ANSWER_BYTES = 1024 * 1024
const CLOCK_TOLERANCE_SECONDS = 30
const MAX_REASON_LENGTH = 500

const CALLBACK_PATH = '/oauth/oidc/callback'

type Settings = Config & { OIDC_ISSUER: string; OIDC_CLIENT_ID: string }

/** Whether sign-in with company accounts is on. */
export const isEnabled = (config: Config): config is Settings =>
  config.OIDC_ISSUER !== null && config.OIDC_CLIENT_ID !== null

/** The address that a provider has to know. */
export const redirectUri = ({ BASE_URL }: Pick<Config, 'BASE_URL'>): string => `${BASE_URL}${CALLBACK_PATH}`

/** What binds one sign-in to one browser at the provider. */
export type LoginSecrets = { state: string; nonce: string; verifier: string }

/** Processes without sign-ins do without the library, which takes 40 ms and 6 MB to load. */
const library = () => import('openid-client')

/** Posts the secret where the provider takes it so: encodings of the basic header differ between providers. */
const authenticateClient =
  ({ ClientSecretBasic, ClientSecretPost }: Awaited<ReturnType<typeof library>>, secret: string): ClientAuth =>
  (server, ...request) =>
    (server.token_endpoint_auth_methods_supported?.includes('client_secret_post')
      ? ClientSecretPost(secret)
      : ClientSecretBasic(secret))(server, ...request)

async function discover({ config, egress }: Services): Promise<Configuration> {
  const { OIDC_ISSUER, OIDC_CLIENT_ID, OIDC_CLIENT_SECRET } = config as Settings
  const oidc = await library()
  const issuer = new URL(OIDC_ISSUER)
  const send: CustomFetch = (url, options) => egress.fetch(url, { ...(options as RequestInit), maxBytes: ANSWER_BYTES })
  const found = await oidc.discovery(
    issuer,
    OIDC_CLIENT_ID,
    { [oidc.clockTolerance]: CLOCK_TOLERANCE_SECONDS },
    OIDC_CLIENT_SECRET ? authenticateClient(oidc, OIDC_CLIENT_SECRET) : oidc.None(),
    {
      [oidc.customFetch]: send,
      timeout: TIMEOUT_SECONDS,
      // Without them the library relies on TLS in place of the signature of an id_token.
      execute: [oidc.enableNonRepudiationChecks, ...(issuer.protocol === 'http:' ? [oidc.allowInsecureRequests] : [])],
    },
  )
  // The library lets some providers answer for all their tenants, whose accounts belong to anybody.
  if (new URL(found.serverMetadata().issuer).href !== issuer.href)
    throw new Error(`${OIDC_ISSUER} names ${found.serverMetadata().issuer} as its issuer`)
  return found
}

/** The provider as its discovery document describes it, read at first use. */
const provider = processSingleton(services => {
  let known: { found: Promise<Configuration>; until: number } | undefined
  return (): Promise<Configuration> => {
    if (known && performance.now() < known.until) return known.found
    const entry = { found: discover(services), until: performance.now() + DISCOVERY_MS }
    known = entry
    entry.found.catch(() => {
      entry.until = performance.now() + FAILURE_MS
    })
    return entry.found
  }
})

/** The address at the provider to which a browser is sent. */
export async function authorizationUrl(
  services: Services,
  { state, nonce, verifier }: LoginSecrets,
  prompt: string | null,
): Promise<URL> {
  const { buildAuthorizationUrl, calculatePKCECodeChallenge } = await library()
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
 * Exchanges the answer of the provider for the claims of an account. Issuer of the answer, issuer, audience, nonce, times
 * and signature of the id_token are checked by the library.
 * @param query of the callback's address
 * @throws Error when the provider refused, could not be reached, or answered what does not hold
 */
export async function exchangeAnswer(
  services: Services,
  query: URLSearchParams,
  { state, nonce, verifier }: LoginSecrets,
): Promise<AccountClaims> {
  const { config } = services
  const { authorizationCodeGrant, fetchUserInfo } = await library()
  const configuration = await provider(services)()
  const tokens = await authorizationCodeGrant(configuration, new URL(`${redirectUri(config)}?${query}`), {
    expectedState: state,
    expectedNonce: nonce,
    pkceCodeVerifier: verifier,
    idTokenExpected: true,
  })
  let claims: Record<string, unknown> = { ...tokens.claims() }
  const account = { issuer: claims.iss as string, subject: claims.sub as string }
  if (!isAccount(account)) throw new Error('the provider names no usable subject')
  const wanted = [config.OIDC_USERNAME_CLAIM, config.OIDC_REQUIRED_CLAIM?.name]
  const isMissing = wanted.some(name => name !== undefined && !Object.hasOwn(claims, name))
  // Many providers keep the claims of scopes out of an id_token that comes with an access token.
  if (isMissing && configuration.serverMetadata().userinfo_endpoint)
    claims = { ...(await fetchUserInfo(configuration, tokens.access_token, account.subject)), ...claims }
  return { ...account, claims }
}

/** Whether the account holder or the provider refused, rather than something having failed. */
export function isRefusal(failure: unknown): boolean {
  const { code, error } = failure as Record<string, unknown>
  return code === 'OAUTH_AUTHORIZATION_RESPONSE_ERROR' && error === 'access_denied'
}

/** What the provider itself said of a failure, for the log; undefined where it said nothing. */
export function providerError(failure: unknown): string | undefined {
  const { error, error_description } = failure as Record<string, unknown>
  return typeof error === 'string' ? `${error}: ${error_description ?? ''}`.slice(0, MAX_REASON_LENGTH) : undefined
}
