import { randomBytes, timingSafeEqual } from 'node:crypto'
import { errors, Provider } from 'oidc-provider'
import { storabilityProblem } from '#core/api/validate.ts'
import type { Config } from '#core/base/config.ts'
import { isLoopback, LOOPBACK } from '#core/net/loopback.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { CLI, CONSOLE } from '../grants/built-in-clients.ts'
import { derivedKeys, signatureOf } from '../tokens/signatures.ts'
import { consoleRequest } from './console-cookie.ts'

/** Built-in clients, and the rules for client metadata. */

export const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code'

const MAX_REDIRECT_URIS = 10
const MAX_URI_LENGTH = 2048
const MAX_NAME_LENGTH = 200

export const firstPartyClients = ({ BASE_URL, OAUTH_DEVICE_ENABLED }: Config) => [
  {
    client_id: CONSOLE,
    client_name: 'Muster console',
    redirect_uris: [`${BASE_URL}/app/callback`],
    application_type: 'web' as const,
    token_endpoint_auth_method: 'none' as const,
  },
  {
    client_id: CLI,
    client_name: 'Muster command line',
    redirect_uris: LOOPBACK.map(host => `http://${host}/callback`),
    application_type: 'native' as const,
    token_endpoint_auth_method: 'none' as const,
    grant_types: ['authorization_code', 'refresh_token', ...(OAUTH_DEVICE_ENABLED ? [DEVICE_GRANT] : [])],
  },
]

const isHttp = ({ protocol }: URL): boolean => protocol === 'http:'
const isWeb = (url: URL): boolean => isHttp(url) || url.protocol === 'https:'

/** Schemes whose URIs run or show content in a browser: a client that registers one is refused as a whole. */
const FORBIDDEN_SCHEMES = ['javascript:', 'vbscript:', 'data:', 'blob:', 'file:', 'about:']

/** Placeholder for an omitted client type, which is derived from the redirect URIs. */
export const UNSAID = 'unsaid'

export type Metadata = {
  redirect_uris?: unknown
  client_name?: unknown
  application_type?: unknown
  scope?: unknown
}

/**
 * Validates client metadata beyond the library's checks and completes it: keeps the redirect URIs that are allowed, and
 * makes a client with a loopback or private-use one a native app, whatever it says, as the port of a loopback URI is
 * free for these only. Drops empty texts, which clients send for missing values, and scopes, which have no
 * effect: clients list the scopes of the MCP server, and the user decides on each request.
 */
export function checkClientMetadata(metadata: Metadata): void {
  for (const [name, value] of Object.entries(metadata)) if (value === '') delete metadata[name as keyof Metadata]
  delete metadata.scope
  const problem = storabilityProblem(metadata)
  if (problem) throw new errors.InvalidClientMetadata(`${problem.path} ${problem.message}`)
  const { redirect_uris: uris, client_name: name } = metadata
  if (name !== undefined && (typeof name !== 'string' || name.length > MAX_NAME_LENGTH))
    throw new errors.InvalidClientMetadata(`client_name must be a string of at most ${MAX_NAME_LENGTH} characters`)
  if (!Array.isArray(uris)) return
  if (uris.length > MAX_REDIRECT_URIS)
    throw new errors.InvalidClientMetadata(`redirect_uris must have at most ${MAX_REDIRECT_URIS} items`)
  const read = uris.map(readRedirectUri)
  const taken = read.filter(each => typeof each !== 'string')
  const [reason] = read.filter(each => typeof each === 'string')
  if (taken.length === 0 && reason) throw new errors.InvalidClientMetadata(`redirect_uris ${reason}`)
  const isNative = taken.some(({ url }) => isHttp(url) || !isWeb(url))
  metadata.application_type = isNative ? 'native' : 'web'
  // A native app gets no code by https at a loopback address: no other program could be kept from its port.
  const kept = taken.filter(({ url }) => !(isNative && url.protocol === 'https:' && isLoopback(url)))
  metadata.redirect_uris = kept.map(({ text }) => text)
}

/** Returns a redirect URI that a client may register, or why it may not. */
function readRedirectUri(text: unknown): { text: string; url: URL } | string {
  if (typeof text !== 'string' || text.length > MAX_URI_LENGTH)
    return `must be strings of at most ${MAX_URI_LENGTH} characters`
  const url = URL.parse(text)
  if (!url) return 'must be absolute URLs'
  if (FORBIDDEN_SCHEMES.includes(url.protocol))
    throw new errors.InvalidClientMetadata(`redirect_uris must not use the scheme ${url.protocol.slice(0, -1)}`)
  if (text.includes('#')) return 'must have no fragment'
  if (url.username || url.password) return 'must have no user information'
  if (isHttp(url) && !isLoopback(url)) return 'must be https, http on a loopback address, or of a private-use scheme'
  return { text, url }
}

/**
 * Derives each refresh token from its predecessor: a client that lost the response to a refresh, or refreshes
 * concurrently, gets the same successor, so that a grant has one line of tokens, in which later reuse shows a theft.
 */
export function overrideRefreshTokens({ RefreshToken }: Provider, config: Config): void {
  const keys = derivedKeys(config, 'refresh tokens')
  // Called by the library for a token without an ID; not in its types.
  const prototype = RefreshToken.prototype as unknown as { generateTokenId(): string }
  prototype.generateTokenId = () => {
    const replaced = Provider.ctx?.oidc.entities.RotatedRefreshToken
    return `ort_${replaced ? signatureOf(keys, replaced.jti) : randomBytes(32).toString('base64url')}`
  }
}

/** Finds the refresh token of the console by the cookie of its browser, whatever the page sends. */
export function overrideConsoleToken({ RefreshToken }: Provider): void {
  const { find } = RefreshToken
  RefreshToken.find = async function (this: typeof RefreshToken, ...[value, options]: Parameters<typeof find>) {
    const request = consoleRequest(Provider.ctx)
    if (!request) return find.call(this, value, options)
    return request.token === null ? undefined : find.call(this, request.token, options)
  } as typeof find
}

/**
 * Overrides three behaviours of the library's clients: secrets are compared by hash, as only the hash is stored, codes
 * are sent only in the query of a redirect, and the console gets tokens only where its refresh token becomes a cookie,
 * sealed by the key of the page.
 */
export function overrideClientMethods({ Client }: Provider): void {
  Client.prototype.responseModeAllowed = (mode, type) => mode === 'query' || (mode === 'fragment' && type !== 'code')
  const { grantTypeAllowed } = Client.prototype
  Client.prototype.grantTypeAllowed = function (type) {
    const request = consoleRequest(Provider.ctx)
    const isElsewhere = Provider.ctx?.oidc.route === 'token' && (request !== undefined) !== (this.clientId === CONSOLE)
    const isKeyless = type === 'authorization_code' && request?.box === null
    return !isElsewhere && !isKeyless && grantTypeAllowed.call(this, type)
  }
  Client.prototype.compareClientSecret = async function (actual: string) {
    const stored = Buffer.from(this.clientSecret ?? '', 'hex')
    const given = sha256Of(actual)
    return stored.length === given.length && timingSafeEqual(stored, given)
  }
}

/** Whether the settings allow client metadata documents of this host. */
export function isHostAllowed({ OAUTH_CIMD_HOSTS }: Pick<Config, 'OAUTH_CIMD_HOSTS'>, clientId: string): boolean {
  const { hostname } = new URL(clientId)
  return OAUTH_CIMD_HOSTS.some(entry =>
    entry === '*' ? true : entry.startsWith('*.') ? hostname.endsWith(entry.slice(1)) : hostname === entry,
  )
}
