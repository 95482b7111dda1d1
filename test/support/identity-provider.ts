import { generateKeyPairSync } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { exportJWK, importPKCS8, type JWTHeaderParameters, type JWTPayload, SignJWT } from 'jose'
import Provider, { type Adapter, type AdapterPayload } from 'oidc-provider'

export const CLIENT = { id: 'muster', secret: 'the secret of muster at the provider' }

/** Names the account that a browser signs in with, in the place of a form. */
export const ACCOUNT_HEADER = 'x-account'
/** An account holder who refuses. */
export const REFUSING = 'refusing'

const ISSUED = 'RS256'

const TTL_SECONDS = 600

/** What the provider stores, in memory. */
const memory = (): (() => Adapter) => {
  const rows = new Map<string, AdapterPayload>()
  return () => ({
    upsert: async (id, payload) => void rows.set(id, payload),
    find: async id => rows.get(id),
    findByUid: async uid => [...rows.values()].find(row => row.uid === uid),
    findByUserCode: async () => undefined,
    consume: async id => void Object.assign(rows.get(id) ?? {}, { consumed: Math.floor(Date.now() / 1000) }),
    destroy: async id => void rows.delete(id),
    async revokeByGrantId(grantId) {
      for (const [id, row] of rows) if (row.grantId === grantId) rows.delete(id)
    },
  })
}

const newKey = () => {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  return privateKey.export({ type: 'pkcs8', format: 'pem' }) as string
}

/** An id_token as the provider made it. */
export type IdToken = { header: JWTHeaderParameters; claims: JWTPayload }

export type IdentityProvider = {
  issuer: string
  /** Claims by account; an account without an entry has none but its `sub`. */
  accounts: Map<string, Record<string, unknown>>
  /** Replaces the id_tokens that it issues until it is null again. */
  forge: ((token: IdToken) => Promise<string>) | null
  /** Signs a token as the provider does, or with a key that only its sender has. */
  sign(token: IdToken, key?: 'own' | 'foreign'): Promise<string>
  /** Paths that were requested; followed by ` as <scheme>` where a client showed credentials in the header. */
  requests: string[]
  close(): Promise<void>
}

/**
 * An OpenID provider: a certified implementation with a separate client, whose accounts sign in by a header. It can be
 * made to issue tokens that a good provider would not.
 * @param options.claimsInToken the id_token holds the claims of all scopes; else the userinfo endpoint does
 */
export async function startIdentityProvider(options: {
  redirectUri: string
  port?: number
  claimsInToken?: boolean
  authMethod?: 'client_secret_post' | 'client_secret_basic' | 'none'
}): Promise<IdentityProvider> {
  const { redirectUri, port = 0, claimsInToken = false, authMethod = 'client_secret_post' } = options
  const server: Server = createServer()
  await new Promise<void>(resolve => server.listen(port, '127.0.0.1', resolve))
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const keys = { own: newKey(), foreign: newKey() }
  const privateKey = (owner: keyof typeof keys) => importPKCS8(keys[owner], ISSUED, { extractable: true })
  const accounts: IdentityProvider['accounts'] = new Map()
  const requests: string[] = []
  const provider = new Provider(issuer, {
    adapter: memory(),
    ttl: Object.fromEntries(
      ['AccessToken', 'AuthorizationCode', 'Grant', 'IdToken', 'Interaction', 'Session'].map(name => [
        name,
        TTL_SECONDS,
      ]),
    ),
    clients: [
      {
        client_id: CLIENT.id,
        ...(authMethod === 'none' ? {} : { client_secret: CLIENT.secret }),
        redirect_uris: [redirectUri],
        grant_types: ['authorization_code'],
        response_types: ['code'],
        token_endpoint_auth_method: authMethod,
      },
    ],
    clientAuthMethods: [authMethod],
    jwks: { keys: [{ ...(await exportJWK(await privateKey('own'))), kid: 'own', alg: ISSUED, use: 'sig' }] },
    cookies: { keys: ['a key of the tests'] },
    claims: { openid: ['sub', 'groups', 'hd'], profile: ['preferred_username', 'name'], email: ['email'] },
    conformIdTokenClaims: !claimsInToken,
    features: { devInteractions: { enabled: false } },
    interactions: { url: (_ctx, { uid }) => `/interaction/${uid}` },
    findAccount: (_ctx, sub) => ({ accountId: sub, claims: () => ({ sub, ...accounts.get(sub) }) }),
    async loadExistingGrant({ oidc }) {
      const { client, provider, session } = oidc
      const grant = new provider.Grant({ clientId: client?.clientId, accountId: session?.accountId })
      grant.addOIDCScope('openid profile email')
      await grant.save()
      return grant
    },
  })
  const made: IdentityProvider = {
    issuer,
    accounts,
    forge: null,
    requests,
    async sign({ header, claims }, key = 'own') {
      return new SignJWT(claims).setProtectedHeader(header).sign(await privateKey(key))
    },
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
  provider.use(async (context, next) => {
    await next()
    const body = context.body as { id_token?: string } | undefined
    if (made.forge && context.oidc?.route === 'token' && body?.id_token) {
      const [header, claims] = body.id_token
        .split('.', 2)
        .map(part => JSON.parse(Buffer.from(part, 'base64url').toString()))
      body.id_token = await made.forge({ header, claims })
    }
  })
  const handle = provider.callback()
  const interact = (req: IncomingMessage, res: ServerResponse) => {
    const account = String(req.headers[ACCOUNT_HEADER])
    const result =
      account === REFUSING
        ? { error: 'access_denied', error_description: 'The account holder refused' }
        : { login: { accountId: account } }
    return provider.interactionFinished(req, res, result, { mergeWithLastSubmission: false })
  }
  server.on('request', (req: IncomingMessage, res: ServerResponse) => {
    const path = (req.url as string).split('?', 1)[0]
    const scheme = req.headers.authorization?.split(' ', 1)[0]
    requests.push(scheme ? `${path} as ${scheme}` : path)
    if (!path.startsWith('/interaction/')) return void handle(req, res)
    interact(req, res).catch(error => {
      res.statusCode = 500
      res.end(String(error))
    })
  })
  return made
}
