import type { Config } from '../base/config.ts'

/** A protected resource: the API, or its MCP server (`/mcp`). */
export type ProtectedResource = '' | '/mcp'

/** Path of the metadata of protected resources (RFC 9728). */
export const RESOURCE_METADATA = '/.well-known/oauth-protected-resource'

export const resourceMetadataUrl = ({ BASE_URL }: Pick<Config, 'BASE_URL'>, resource: ProtectedResource): string =>
  `${BASE_URL}${RESOURCE_METADATA}${resource}`

/** Returns the header that requests a token with all these scopes. */
export const insufficientScope = (
  config: Pick<Config, 'BASE_URL'>,
  resource: ProtectedResource,
  scopes: Iterable<string>,
): Record<string, string> => ({
  'WWW-Authenticate': `Bearer error="insufficient_scope", scope="${[...new Set(scopes)].sort().join(' ')}", resource_metadata="${resourceMetadataUrl(config, resource)}"`,
})
