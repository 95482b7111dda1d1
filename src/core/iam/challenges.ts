import type { Config } from '../../config.ts'

/** What is protected: the API, or its MCP server (`/mcp`). */
export type Resource = '' | '/mcp'

/** Path of the metadata of protected resources (RFC 9728), which challenges name. */
export const RESOURCE_METADATA = '/.well-known/oauth-protected-resource'

export const metadataOf = ({ BASE_URL }: Pick<Config, 'BASE_URL'>, resource: Resource): string =>
  `${BASE_URL}${RESOURCE_METADATA}${resource}`

/** Asks a client to come again with a token of all these scopes. */
export const insufficientScope = (
  config: Pick<Config, 'BASE_URL'>,
  resource: Resource,
  scopes: Iterable<string>,
): Record<string, string> => ({
  'WWW-Authenticate': `Bearer error="insufficient_scope", scope="${[...new Set(scopes)].sort().join(' ')}", resource_metadata="${metadataOf(config, resource)}"`,
})
