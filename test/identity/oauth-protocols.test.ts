import assert from 'node:assert/strict'
import { createHash, randomUUID } from 'node:crypto'
import { createRemoteJWKSet, exportJWK, jwtVerify, SignJWT } from 'jose'
import * as oauth from 'oauth4webapi'
import * as openid from 'openid-client'
import { findObject, rewriteObject } from '#identity/grants/store.ts'
import { rotateSigningKey } from '#identity/oauth/keys.ts'
import { openObject, sealObject } from '#identity/oauth/seal.ts'
import {
  allowing,
  approve,
  authorizeUrl,
  Browser,
  beginRequest,
  codeOf,
  inBrowser,
  pkce,
  postForm,
  REDIRECT,
  refresh,
  register,
  startOauthApp,
  tokensOf,
} from '../support/oauth.ts'
import { forSuite } from '../support/suite.ts'

/** A request to the MCP server. */
const PING = { jsonrpc: '2.0', id: 1, method: 'ping' }

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code'

describe('OAuth flows other than the code flow', () => {
  const app = forSuite(startOauthApp)
  const project = forSuite(() => app.project())
  const user = forSuite(() => app.user('ada', [allowing(project.id)]))
  const consent = () => ({ project_id: project.id, selection: { kind: 'all' } })

  describe('the device grant', () => {
    const begin = async (more: object = {}) => {
      const fields = { client_id: 'muster-cli', scope: 'actors:*', ...more }
      const { status, body } = await postForm(`${app.base}/oauth/device_authorization`, fields, {
        'user-agent': 'a terminal',
        'x-test-address': '198.51.100.7',
      })
      assert.equal(status, 200, JSON.stringify(body))
      return body
    }
    const poll = async (device_code: string) => {
      const fields = { grant_type: DEVICE_GRANT, client_id: 'muster-cli', device_code }
      const { status, body } = await postForm(`${app.base}/oauth/token`, fields)
      return status === 200 ? body : body.error
    }
    /** Submits the form of a page and returns the response page. */
    const submit = async (browser: Browser, page: string, more: Record<string, string> = {}) => {
      const action = /action="([^"]+)"/.exec(page)?.[1] as string
      const fields = [...page.matchAll(/name="([^"]+)" value="([^"]*)"/g)]
        .map(([, name, value]): [string, string] => [name, value])
        .filter(([name]) => name !== 'abort')
      return browser.send(action, { method: 'POST', body: new URLSearchParams([...fields, ...Object.entries(more)]) })
    }
    const confirm = async (browser: Browser, url: string) => {
      const entered = await submit(browser, await (await browser.send(url)).text())
      return entered.text()
    }

    /** Takes the time of a device code away. */
    const expire = async (code: string) => {
      const { pool } = app
      const row = await findObject(pool, 'DeviceCode', { by: 'id', value: code })
      assert.ok(row)
      const payload = openObject(app.services, 'DeviceCode', row.id_hash, row.sealed)
      const exp = Math.floor(Date.now() / 1000) - 1
      await rewriteObject(pool, 'DeviceCode', code, sealObject(app.services, 'DeviceCode', code, { ...payload, exp }))
    }

    it('signs a device in that polls, once its user has confirmed and consented', async () => {
      const started = await begin()
      assert.match(started.user_code, /^[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}$/)
      assert.deepEqual([started.expires_in, started.interval], [600, 5])
      assert.equal(started.verification_uri, `${app.base}/oauth/device`)
      assert.equal(await poll(started.device_code), 'authorization_pending')
      assert.equal(await poll(started.device_code), 'slow_down')

      const browser = new Browser()
      const page = await confirm(browser, started.verification_uri_complete)
      for (const shown of [started.user_code, 'Muster command line', '198.51.100.7', 'a terminal', 'ever sends you'])
        assert.ok(page.includes(shown), `${shown}: ${page}`)
      assert.ok(!page.includes('autofocus'))
      assert.equal(await poll(started.device_code), 'slow_down', 'no token without consent')
      const sent = await submit(browser, page)
      const request_id = new URL(sent.headers.get('location') as string).searchParams.get('request_id') as string
      const info = await inBrowser(app.base, browser, user).get(`/oauth/consent-info?request_id=${request_id}`)
      assert.deepEqual(info.body.request.device, {
        user_code: started.user_code,
        ip: '198.51.100.7',
        user_agent: 'a terminal',
      })
      const decided = await inBrowser(app.base, browser, user).post('/oauth/consent', { request_id, ...consent() })
      const done = await (await browser.send(decided.body.redirect_to)).text()
      assert.match(done, /You may close this page/)
      const tokens = await poll(started.device_code)
      assert.equal((await app.as(tokens.access_token).get('/actors')).status, 200)
      assert.equal(await poll(started.device_code), 'invalid_grant')
      assert.equal((await app.as(tokens.access_token).get('/actors')).status, 401, 'a code that comes twice')
    })

    it('reports a refusal to the device', async () => {
      const started = await begin()
      const browser = new Browser()
      const page = await confirm(browser, started.verification_uri_complete)
      await submit(browser, page, { abort: 'yes' })
      assert.equal(await poll(started.device_code), 'access_denied')
    })

    it('reports denied consent and expiry to the device', async () => {
      const started = await begin()
      const browser = new Browser()
      const sent = await submit(browser, await confirm(browser, started.verification_uri_complete))
      const request_id = new URL(sent.headers.get('location') as string).searchParams.get('request_id')
      const api = inBrowser(app.base, browser, user)
      const decided = await api.post('/oauth/consent', { request_id, decision: 'deny' })
      await browser.send(decided.body.redirect_to)
      assert.equal(await poll(started.device_code), 'access_denied')

      const late = await begin()
      await expire(late.device_code)
      assert.equal(await poll(late.device_code), 'expired_token')
      const page = await confirm(new Browser(), late.verification_uri_complete)
      assert.match(page, /This code is not valid/)
    })

    it('shows the names that clients give themselves as text', async () => {
      const name = `<img src=x onerror=alert(1)>${'\u202e'.repeat(100)}`
      const grant_types = [DEVICE_GRANT, 'refresh_token']
      const { client_id } = await register(app.base, { client_name: name, grant_types, response_types: [] })
      const started = await begin({ client_id })
      const browser = new Browser()
      const page = await confirm(browser, started.verification_uri_complete)
      assert.ok(!page.includes('<img') && page.includes('&lt;img src=x'), page)
      assert.ok(page.includes('<bdi>'), 'what runs from right to left stays in its place')
    })

    it('is for clients that name it', async () => {
      const { client_id } = await register(app.base)
      const { status } = await postForm(`${app.base}/oauth/device_authorization`, { client_id })
      assert.equal(status, 400)
    })
  })

  describe('tokens bound to a key', () => {
    const proofOf = async (
      keys: oauth.CryptoKeyPair,
      token: string,
      {
        htm = 'GET',
        htu = `${app.base}/api/v1/actors`,
        jti = randomUUID() as string,
        iat = Math.floor(Date.now() / 1000),
      },
    ) =>
      new SignJWT({ htm, htu, jti, iat, ath: createHash('sha256').update(token).digest('base64url') })
        .setProtectedHeader({ alg: 'ES256', typ: 'dpop+jwt', jwk: await exportJWK(keys.publicKey) })
        .sign(keys.privateKey)
    const get = async (token: string, proof?: string, scheme = 'DPoP') => {
      const headers = { authorization: `${scheme} ${token}`, ...(proof && { dpop: proof }) }
      return (await fetch(`${app.base}/api/v1/actors`, { headers })).status
    }

    it('require a fresh proof of the key for the request', async () => {
      const { client_id } = await register(app.base)
      const issuer = new URL(app.base)
      const insecure = { [oauth.allowInsecureRequests]: true }
      const server = await oauth.processDiscoveryResponse(
        issuer,
        await oauth.discoveryRequest(issuer, { ...insecure, algorithm: 'oauth2' }),
      )
      const keys = await oauth.generateKeyPair('ES256', { extractable: true })
      const client: oauth.Client = { client_id }
      const DPoP = oauth.DPoP(client, keys)
      const { redirect, verifier } = await codeOf(app.base, {
        client_id,
        redirect_uri: REDIRECT,
        user,
        consent: consent(),
      })
      const params = oauth.validateAuthResponse(server, client, redirect, 'a state')
      const answer = await oauth.authorizationCodeGrantRequest(
        server,
        client,
        oauth.None(),
        params,
        REDIRECT,
        verifier,
        {
          ...insecure,
          DPoP,
        },
      )
      const tokens = await oauth.processAuthorizationCodeResponse(server, client, answer)
      assert.equal(tokens.token_type, 'dpop')
      const token = tokens.access_token
      const served = await oauth.protectedResourceRequest(
        token,
        'GET',
        new URL(`${app.base}/api/v1/actors?limit=1`),
        undefined,
        undefined,
        { ...insecure, DPoP },
      )
      assert.equal(served.status, 200)

      const proof = await proofOf(keys, token, {})
      assert.equal(await get(token, proof), 200)
      assert.equal(await get(token, proof), 401, 'a proof that comes twice')
      assert.equal(await get(token, proof, 'Bearer'), 401)
      assert.equal(await get(token), 401)
      const stranger = await oauth.generateKeyPair('ES256', { extractable: true })
      assert.equal(await get(token, await proofOf(stranger, token, {})), 401)
      assert.equal(await get(token, await proofOf(keys, token, { htu: `${app.base}/api/v1/files` })), 401)
      assert.equal(await get(token, await proofOf(keys, token, { htm: 'POST' })), 401)
      assert.equal(await get(token, await proofOf(keys, 'another token', {})), 401)
      const old = Math.floor(Date.now() / 1000) - 120
      assert.equal(await get(token, await proofOf(keys, token, { iat: old })), 401)
      // The refresh token of a public client is bound too.
      const plain = await refresh(app.base, client_id, tokens.refresh_token as string)
      assert.deepEqual([plain.status, plain.body.error], [400, 'invalid_grant'])
    })

    it('are distinguished from bearer tokens', async () => {
      const { client_id } = await register(app.base)
      const { access_token } = await tokensOf(app.base, { client_id, redirect_uri: REDIRECT, user, consent: consent() })
      const keys = await oauth.generateKeyPair('ES256', { extractable: true })
      assert.equal(await get(access_token, await proofOf(keys, access_token, {})), 401)
      assert.equal(await get(user.token as string, await proofOf(keys, user.token as string, {})), 401)
    })
  })

  describe('the redirect URIs of editors', () => {
    /** As their programs register them, and URIs of their requests. November 2026. */
    const EDITORS = {
      Cursor: {
        registered: [
          'cursor://anysphere.cursor-mcp/oauth/callback',
          'https://www.cursor.com/agents/mcp/oauth/callback',
          'http://localhost:8787/callback',
        ],
        asked: [
          'cursor://anysphere.cursor-mcp/oauth/callback',
          'https://www.cursor.com/agents/mcp/oauth/callback',
          'http://localhost:8787/callback',
          'http://localhost:50123/callback',
        ],
        refused: ['cursor://anysphere.cursor-mcp/oauth/callback/x', 'http://127.0.0.1:8787/callback'],
      },
      'Visual Studio Code': {
        registered: [
          'https://insiders.vscode.dev/redirect',
          'https://vscode.dev/redirect',
          'http://localhost/',
          'http://127.0.0.1/',
          'http://localhost:33418/',
          'http://127.0.0.1:33418',
        ],
        asked: ['https://vscode.dev/redirect', 'http://127.0.0.1:50001/', 'http://localhost:33418/'],
        refused: ['http://127.0.0.1:50001/x', 'http://vscode.dev/redirect'],
      },
    }
    for (const [editor, { registered, asked, refused }] of Object.entries(EDITORS))
      it(`of ${editor} are taken, and lead to the consent page`, async () => {
        const made = { redirect_uris: registered, application_type: 'web', logo_uri: '' }
        const { client_id, redirect_uris } = await register(app.base, made)
        assert.deepEqual(redirect_uris, registered)
        const ask = (redirect_uri: string) =>
          authorizeUrl(app.base, {
            client_id,
            redirect_uri,
            code_challenge: pkce().challenge,
            code_challenge_method: 'S256',
          })
        for (const redirect_uri of asked) await beginRequest(new Browser(), ask(redirect_uri))
        for (const redirect_uri of refused)
          assert.equal((await new Browser().send(ask(redirect_uri))).status, 400, redirect_uri)
      })
  })

  describe('sign-in with OpenID Connect', () => {
    const signIn = async () => {
      const { client_id } = await register(app.base, { redirect_uris: [REDIRECT] })
      const config = await openid.discovery(new URL(app.base), client_id, undefined, openid.None(), {
        execute: [openid.allowInsecureRequests],
      })
      const pkceCodeVerifier = openid.randomPKCECodeVerifier()
      const [expectedState, expectedNonce] = [openid.randomState(), openid.randomNonce()]
      const url = openid.buildAuthorizationUrl(config, {
        redirect_uri: REDIRECT,
        scope: 'openid profile',
        code_challenge: await openid.calculatePKCECodeChallenge(pkceCodeVerifier),
        code_challenge_method: 'S256',
        state: expectedState,
        nonce: expectedNonce,
      })
      const browser = new Browser()
      const request_id = await beginRequest(browser, url)
      const info = await inBrowser(app.base, browser, user).get(`/oauth/consent-info?request_id=${request_id}`)
      assert.equal(info.body.request.needs_project, false)
      const redirect = await approve(app.base, browser, user, request_id, {})
      const tokens = await openid.authorizationCodeGrant(config, redirect, {
        pkceCodeVerifier,
        expectedState,
        expectedNonce,
      })
      return { config, tokens, client_id }
    }
    const verify = (token: string) => jwtVerify(token, createRemoteJWKSet(new URL(`${app.base}/oauth/jwks`)))

    it('identifies the user, and gives no access to the API', async () => {
      const { config, tokens, client_id } = await signIn()
      const { payload } = await verify(tokens.id_token as string)
      assert.deepEqual([payload.sub, payload.aud, payload.iss], [user.id, client_id, app.base])
      assert.equal(payload.preferred_username, 'ada')
      assert.ok(Math.abs((payload.auth_time as number) - Date.now() / 1000) < 600, String(payload.auth_time))
      assert.equal(tokens.refresh_token, undefined)
      const info = await openid.fetchUserInfo(config, tokens.access_token, user.id)
      assert.deepEqual(info, { sub: user.id, preferred_username: 'ada' })
      for (const token of [tokens.access_token, tokens.id_token as string]) {
        assert.equal((await app.as(token).get('/users/me')).status, 401)
        assert.equal((await app.as(token).post('//mcp', PING)).status, 401)
      }
    })

    it('accepts previous signing keys for a day', async () => {
      const before = (await signIn()).tokens.id_token as string
      const kid = await rotateSigningKey(app.services)
      let after = ''
      // The process finds out by a notification.
      for (let tries = 0; tries < 50; tries++) {
        after = (await signIn()).tokens.id_token as string
        if (JSON.parse(Buffer.from(after.split('.')[0], 'base64url').toString()).kid === kid) break
      }
      for (const token of [before, after]) assert.equal((await verify(token)).payload.sub, user.id)
      const { keys } = (await app.anonymous.get('//oauth/jwks')).body
      assert.equal(keys.length, 2)
      assert.ok(keys.every((key: object) => !('d' in key)))
    })
  })

  describe('first-party clients', () => {
    it('get a token with all permissions of the user, and others do not', async () => {
      const asked = { scope: 'muster:user' }
      const given = { redirect_uri: 'http://127.0.0.1:9/callback', user: app.admin, consent: {}, asked }
      const { access_token, scope } = await tokensOf(app.base, { ...given, client_id: 'muster-cli' })
      assert.equal(scope, 'muster:user')
      const api = app.as(access_token)
      assert.equal((await api.get('/users')).status, 200)
      const { credential } = (await api.get('/users/me')).body
      assert.deepEqual([credential.type, credential.project_id], ['user', null])
      assert.equal((await api.post('/projects', { name: 'by a client' })).status, 201)
      const [entry] = (await app.admin.get('/audit-log?action=projects:CreateProject&limit=1')).body.data
      assert.equal(entry.detail?.oauth_client_id, 'muster-cli')
      const [grant] = (await app.admin.get('/oauth/grants?client_id=muster-cli&limit=1')).body.data
      assert.equal(grant.id, credential.id)
      assert.equal((await app.admin.delete(`/oauth/grants/${grant.id}`)).status, 204)
      assert.equal((await api.get('/users')).status, 401)

      const chosen = tokensOf(app.base, { ...given, client_id: 'muster-cli', consent: consent() })
      await assert.rejects(chosen, /project_id: cannot be chosen for this request/)

      const { client_id } = await register(app.base)
      const others = await tokensOf(app.base, { ...given, client_id, redirect_uri: REDIRECT, consent: consent() })
      assert.equal(others.scope, 'mcp:access *')
      assert.equal((await app.as(others.access_token).get('/users')).status, 403)
    })
  })
})
