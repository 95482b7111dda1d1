import { timingSafeEqual } from 'node:crypto'
import type Provider from 'oidc-provider'
import { errors } from 'oidc-provider'
import type { Config } from '../../config.ts'
import { storabilityProblem } from '../../core/api/validate.ts'
import { isLoopback as isLoopbackHost, LOOPBACK } from '../../core/net/loopback.ts'
import { sha256Of } from '../../core/secrets/digest.ts'
import { CLI, CONSOLE } from './client-kinds.ts'

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

const isLoopback = (url: URL): boolean => url.protocol === 'http:' && isLoopbackHost(url)
/** Whether the scheme is a private-use scheme in reverse domain notation, such as `com.example.app:`. */
const isPrivateUse = ({ protocol }: URL): boolean => protocol.includes('.')

/** Placeholder for an omitted client type, which is then derived from the redirect URIs. */
export const UNSAID = 'unsaid'

export type Metadata = {
  redirect_uris?: unknown
  client_name?: unknown
  application_type?: unknown
  scope?: unknown
}

/**
 * Validates client metadata beyond the library's checks and completes it: allowed redirect URIs, and whether the client
 * is a native app, whose loopback URI matches any port. Drops scopes, which have no effect: clients list the scopes
 * of the MCP server, and the user decides on each request.
 */
export function checkClientMetadata(metadata: Metadata): void {
  const { redirect_uris: uris, client_name: name } = metadata
  delete metadata.scope
  const problem = storabilityProblem(metadata)
  if (problem) throw new errors.InvalidClientMetadata(`${problem.path} ${problem.message}`)
  if (name !== undefined && (typeof name !== 'string' || name.length > MAX_NAME_LENGTH))
    throw new errors.InvalidClientMetadata(`client_name must be a string of at most ${MAX_NAME_LENGTH} characters`)
  if (!Array.isArray(uris)) return
  if (uris.length > MAX_REDIRECT_URIS)
    throw new errors.InvalidClientMetadata(`redirect_uris must have at most ${MAX_REDIRECT_URIS} items`)
  const parsed = uris.map(redirectUri)
  if (metadata.application_type === UNSAID)
    metadata.application_type = parsed.every(uri => isLoopback(uri) || isPrivateUse(uri)) ? 'native' : 'web'
}

function redirectUri(text: unknown): URL {
  const refuse = (problem: string): never => {
    throw new errors.InvalidClientMetadata(`redirect_uris ${problem}`)
  }
  if (typeof text !== 'string' || text.length > MAX_URI_LENGTH)
    return refuse(`must be strings of at most ${MAX_URI_LENGTH} characters`)
  const url = URL.parse(text) ?? refuse('must be absolute URLs')
  if (text.includes('#')) refuse('must have no fragment')
  if (url.username || url.password) refuse('must have no user information')
  if (url.protocol !== 'https:' && !isLoopback(url) && !isPrivateUse(url))
    refuse('must be https, http on a loopback address, or of a private-use scheme with a dot in its name')
  return url
}

/**
 * Overrides two behaviours of the library's clients: secrets are compared by hash, as only the hash is stored, and
 * codes are sent only in the query of a redirect.
 */
export function overrideClientMethods({ Client }: Provider): void {
  Client.prototype.responseModeAllowed = (mode, type) => mode === 'query' || (mode === 'fragment' && type !== 'code')
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
