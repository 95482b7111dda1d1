import { createHash } from 'node:crypto'
import type { Config } from '#core/base/config.ts'
import type { Services } from '#core/base/services.ts'
import { anonymousBodyError } from '#core/http/body.ts'
import type { MountExchange } from '#core/http/mounts.ts'
import { findTarget, openTarget, type Target, targetNotFound } from './target.ts'
import { PROTOCOL_VERSION } from './wire.ts'

const MAX_AGE_SECONDS = 300

const TEXT_MODES = ['text/plain', 'application/json']
const MEDIA_MODES = ['image/png', 'image/jpeg', 'image/webp', 'image/gif', 'application/pdf']

/** Returns the agent card: what the owner describes, and how to connect. */
function cardOf({ BASE_URL }: Pick<Config, 'BASE_URL'>, { kind, id, name, description, version, face }: Target) {
  const url = `${BASE_URL}/a2a/${id}`
  const bindings = ['JSONRPC', 'HTTP+JSON']
  return {
    name,
    description,
    version: String(version),
    supportedInterfaces: bindings.map(protocolBinding => ({ url, protocolBinding, protocolVersion: PROTOCOL_VERSION })),
    capabilities: { streaming: true, pushNotifications: true, extendedAgentCard: false },
    securitySchemes: { bearer: { httpAuthSecurityScheme: { scheme: 'Bearer' } } },
    securityRequirements: [{ schemes: { bearer: { list: [] } } }],
    defaultInputModes: kind === 'agent' ? [...TEXT_MODES, ...MEDIA_MODES] : TEXT_MODES,
    defaultOutputModes: TEXT_MODES,
    skills: (face.skills ?? []).map(({ tags = [], examples = [], ...skill }) => ({ ...skill, tags, examples })),
  }
}

/** Responds with the card of a target. A card that is not public needs a credential that may see the target. */
export async function serveCard(services: Services, exchange: MountExchange, id: string): Promise<void> {
  const { req, res } = exchange
  const target = (await findTarget(services.pool, id)) ?? targetNotFound(id)
  const isPublic = target.face.public_card === true
  if (!isPublic) {
    const caller = await exchange.identify()
    if (!caller) throw anonymousBodyError(req)
    await openTarget(services, exchange, caller, id)
  }
  const text = JSON.stringify(cardOf(services.config, target))
  const tag = `"${createHash('sha256').update(text).digest('base64url')}"`
  res.setHeader('ETag', tag)
  res.setHeader('Cache-Control', `${isPublic ? 'public' : 'private'}, max-age=${MAX_AGE_SECONDS}`)
  if (req.headers['if-none-match'] === tag) return exchange.end(304, null)
  exchange.end(200, text)
}
