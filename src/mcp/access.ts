import type { Config } from '../config.ts'
import { AppError, raise } from '../core/api/errors.ts'
import { anonymousBodyError } from '../core/http/body.ts'
import type { MountExchange } from '../core/http/mounts.ts'
import type { Caller } from '../core/iam/caller.ts'
import { insufficientScope, metadataOf } from '../core/iam/challenges.ts'
import { countRequest } from '../core/invoke/hooks.ts'
import { isLoopback } from '../core/net/loopback.ts'
import type { Services } from '../core/process/services.ts'
import { PROOF_ALGORITHMS } from '../identity/oauth/dpop.ts'
import { MCP_ACCESS } from '../identity/oauth/scopes.ts'

/**
 * The caller of a request.
 * @throws UNAUTHORIZED with the challenge that leads a client to the sign-in, FORBIDDEN for an OAuth token without the
 *   scope of this endpoint
 */
export async function admitRequest({ config }: Services, exchange: MountExchange): Promise<Caller> {
  const caller = await exchange.identify()
  if (!caller) {
    const refused = anonymousBodyError(exchange.req)
    if (refused.code !== 'UNAUTHORIZED') throw refused
    const challenge = `Bearer resource_metadata="${metadataOf(config, '/mcp')}", scope="${MCP_ACCESS}", DPoP algs="${PROOF_ALGORITHMS.join(' ')}"`
    throw new AppError('UNAUTHORIZED', { headers: { 'WWW-Authenticate': challenge } })
  }
  const { type, scopes } = caller.credential
  if (type === 'oauth_token' && !scopes?.includes(MCP_ACCESS))
    throw new AppError('FORBIDDEN', { headers: insufficientScope(config, '/mcp', [...(scopes ?? []), MCP_ACCESS]) })
  return caller
}

const isHere = (url: string): boolean => isLoopback(URL.parse(url) ?? { hostname: '' })

/**
 * Refuses pages of origins that may not use the API: a browser sends the origin of a page along, also to an address on the
 * machine of its user. A deployment there takes pages of that machine and those that are named; `*` names none.
 * Raises FORBIDDEN.
 */
export function requireOrigin(
  { CORS_ALLOWED_ORIGINS: allowed, BASE_URL }: Pick<Config, 'CORS_ALLOWED_ORIGINS' | 'BASE_URL'>,
  origin: string | undefined,
): void {
  if (origin === undefined || allowed.includes(origin)) return
  if (allowed.includes('*') && (!isHere(BASE_URL) || isHere(origin))) return
  raise('FORBIDDEN', { message: 'The origin is not allowed', meta: { origin: origin.slice(0, 255) } })
}

/** Counts a request of a bound key. A call of an unscoped one is counted where its project is known. Raises QUOTA_EXCEEDED. */
export async function countBound(services: Services, caller: Caller): Promise<void> {
  if (caller.credential.type === 'api_key' && caller.project_id !== null)
    await countRequest(services, caller, caller.project_id)
}
