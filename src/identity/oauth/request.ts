import { IncomingMessage, ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import type Provider from 'oidc-provider'
import type { AdapterPayload, Client } from 'oidc-provider'
import { z } from 'zod'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { isLoopback } from '#core/net/loopback.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { isFirstParty } from '../grants/built-in-clients.ts'
import { ACT_AS_USER, consentCatalogue, MCP_ACCESS, OPENID_SCOPES } from '../grants/scopes.ts'
import { findObject } from '../grants/store.ts'
import { kindOfClient } from './client-kinds.ts'
import { cookieNames } from './cookies.ts'
import { providerOf } from './library.ts'
import { CLIENT_KINDS } from './model.ts'
import { openObject } from './seal.ts'

/** Authorization request that awaits a user's decision. */
export type AuthorizationRequest = {
  /** Identifier in the library. */
  uid: string
  client: Client
  params: Record<string, string | undefined>
  /** Known scopes requested by the client. */
  scopes: string[]
  /** Whether only the identity of the user is requested. */
  isSignIn: boolean
  /** Whether the token has all permissions of the user. */
  actsAsUser: boolean
  device: { user_code: string; ip: string; user_agent: string } | null
  expires_at: string
}

export const ConsentRequest = z
  .object({
    client_id: z.string().describe('ID of the client'),
    client_kind: z
      .enum(CLIENT_KINDS)
      .describe(
        'first_party – built in; registered – registered dynamically; metadata_document – described by the document at its ID',
      ),
    client_name: z.string().nullable().describe('Name from the client metadata'),
    client_host: z.string().nullable().describe('Host that identifies the client. Null for registered clients.'),
    redirect_host: z.string().nullable().describe('Host or URI scheme that receives the code. Null for devices.'),
    loopback: z.boolean().describe("Whether the code is sent to a program on the user's computer"),
    requested_scopes: z.array(z.string()).describe('Known scopes requested by the client'),
    needs_project: z.boolean().describe('Whether a project and a selection are required'),
    device: z
      .object({
        user_code: z.string().describe('Code displayed by the device'),
        ip: z.string().describe('IP address of the device'),
        user_agent: z.string().describe('User agent of the device'),
      })
      .nullable()
      .describe('Requesting device. Null for browsers.'),
    expires_at: z.string().describe('Expiry time of the request'),
  })
  .meta({ id: 'OauthConsentRequest' })

const PREFIX = 'oar_'

/**
 * Returns an undecided request, only for the browser that started it: a link to the consent of a request from another
 * browser does not work.
 * @throws RESOURCE_NOT_FOUND
 */
export async function loadRequest(
  services: Services,
  id: string,
  headers: { cookie?: string },
): Promise<AuthorizationRequest> {
  const refuseUnknown = () => raise('RESOURCE_NOT_FOUND', { meta: { id: id.slice(0, 100) } })
  const provider = await providerOf(services)
  const uid = id.startsWith(PREFIX) ? id.slice(PREFIX.length) : null
  if (uid === null || uid !== boundRequest(services, provider, headers)) return refuseUnknown()
  const found = await openStoredObject(services, 'Interaction', uid)
  const { params, exp = 0, result, deviceCode } = found ?? {}
  if (!params || result || exp <= Date.now() / 1000) return refuseUnknown()
  const requestParams = params as AuthorizationRequest['params']
  // Without a readable client document there is nothing to consent to.
  const client = await provider.Client.find(String(requestParams.client_id)).catch(() => undefined)
  if (!client) return refuseUnknown()
  const scopes = knownScopes(services, client, requestParams.scope)
  return {
    uid,
    client,
    params: requestParams,
    scopes,
    isSignIn: requestParams.resource === undefined,
    actsAsUser: scopes.includes(ACT_AS_USER),
    device: deviceCode ? await deviceOf(services, deviceCode) : null,
    expires_at: new Date(exp * 1000).toISOString(),
  }
}

/** Returns the ID of the request that this browser started, from its signed cookie. */
function boundRequest(services: Services, provider: Provider, { cookie }: { cookie?: string }): string | undefined {
  const req = Object.assign(new IncomingMessage(new Socket()), { headers: { cookie } })
  const { cookies } = provider.createContext(req, new ServerResponse(req))
  return cookies.get(cookieNames(services.config).interaction, { signed: true })
}

async function openStoredObject(services: Services, model: string, id: string): Promise<AdapterPayload | null> {
  const row = await findObject(services.pool, model, { by: 'id', value: id })
  return row && openObject(services, model, sha256Of(id).toString('hex'), row.sealed)
}

function knownScopes(services: Services, client: Client, scope = ''): string[] {
  const { scopes } = consentCatalogue(services)
  const known = [...OPENID_SCOPES, MCP_ACCESS, ...(isFirstParty(client.clientId) ? [ACT_AS_USER] : [])]
  return [...new Set(scope.split(' '))].filter(each => known.includes(each) || scopes.has(each))
}

async function deviceOf(services: Services, deviceCode: string): Promise<AuthorizationRequest['device']> {
  const { userCode = '', deviceInfo } = (await openStoredObject(services, 'DeviceCode', deviceCode)) ?? {}
  const { ip, user_agent } = (deviceInfo ?? {}) as { ip?: string; user_agent?: string }
  return { user_code: `${userCode.slice(0, 4)}-${userCode.slice(4)}`, ip: ip ?? '', user_agent: user_agent ?? '' }
}

/** Presents a request to the consent page. */
export function presentRequest(
  services: Services,
  { client, params, scopes, isSignIn, actsAsUser, device, expires_at }: AuthorizationRequest,
): z.output<typeof ConsentRequest> {
  const kind = kindOfClient(client.clientId)
  const redirect = params.redirect_uri === undefined ? null : new URL(params.redirect_uri)
  const identifyingUrl = {
    first_party: services.config.BASE_URL,
    metadata_document: client.clientId,
    registered: null,
  }[kind]
  return {
    client_id: client.clientId,
    client_kind: kind,
    client_name: client.clientName ?? null,
    client_host: identifyingUrl && new URL(identifyingUrl).host,
    redirect_host: redirect && (redirect.host || redirect.protocol),
    loopback: redirect !== null && isLoopback(redirect),
    requested_scopes: scopes,
    needs_project: !isSignIn && !actsAsUser,
    device,
    expires_at,
  }
}
