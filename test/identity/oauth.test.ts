import assert from 'node:assert/strict'
import { decodeJwt } from 'jose'
import * as oauth from 'oauth4webapi'
import { z } from 'zod'
import { rawQuery, sql } from '#core/db/sql.ts'
import { CELL_COUNT, type Client, eventually } from '../support/app.ts'
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
  startDocuments,
  startOauthApp,
  tokensOf,
} from '../support/oauth.ts'
import { forSuite } from '../support/suite.ts'

describe('OAuth', () => {
  const app = forSuite(() => startOauthApp({ env: { OAUTH_INTROSPECTION_ENABLED: 'true' } }))
  const project = forSuite(() => app.project())
  const other = forSuite(() => app.project())
  let user: Client & { id: string }
  let documents: Awaited<ReturnType<typeof startDocuments>>
  let client_id: string

  const all = () => ({ project_id: project.id, selection: { kind: 'all' } })
  const modules = (...names: string[]) => ({
    project_id: project.id,
    selection: { kind: 'modules', modules: names },
  })
  const flow = (consent: object = all(), more: object = {}) => ({
    client_id,
    redirect_uri: REDIRECT,
    user,
    consent,
    ...more,
  })
  const exchange = (code: string, code_verifier: string, more: object = {}) =>
    postForm(`${app.base}/oauth/token`, {
      grant_type: 'authorization_code',
      code,
      code_verifier,
      client_id,
      redirect_uri: REDIRECT,
      ...more,
    })
  const allowed = async (token: string) => (await app.as(token).get('/actors')).status
  const newUser = async (action: string[] = ['*']) => app.user(undefined, [allowing(project.id, action)])

  before(async () => {
    user = await newUser()
    ;({ client_id } = await register(app.base))
    documents = await startDocuments((req, res) => {
      res.setHeader('content-type', 'application/json')
      res.end(
        JSON.stringify({
          client_id: `${documents.url}${req.url}`,
          client_name: 'An assistant',
          redirect_uris: ['http://127.0.0.1/callback'],
          grant_types: ['authorization_code', 'refresh_token'],
          token_endpoint_auth_method: 'none',
          logo_uri: `${documents.url}/logo.png`,
        }),
      )
    })
  })

  after(async () => {
    await documents?.close()
  })

  afterEach(function () {
    const failures = app.logs.splice(0).filter(line => line.includes('"request failed"'))
    if (this.currentTest?.state === 'passed') assert.deepEqual(failures, [])
    else console.error(failures.join(''))
  })

  describe('discovery', () => {
    it('describes exactly the enabled features', async () => {
      for (const path of [
        '/.well-known/oauth-authorization-server',
        '/.well-known/oauth-authorization-server/mcp',
        '/.well-known/openid-configuration',
      ]) {
        const { status, body } = await app.anonymous.get(`/${path}`)
        assert.equal(status, 200, path)
        assert.equal(body.issuer, app.base)
        assert.deepEqual(body.response_types_supported, ['code'])
        assert.deepEqual(body.response_modes_supported, ['query'])
        assert.deepEqual(body.code_challenge_methods_supported, ['S256'])
        assert.equal(body.authorization_response_iss_parameter_supported, true)
        assert.equal(body.client_id_metadata_document_supported, true)
        assert.deepEqual(body.scopes_supported, ['openid', 'profile', 'offline_access', 'mcp:access'])
        assert.ok(!body.grant_types_supported.includes('implicit'))
        for (const [name, url] of Object.entries<string>(body)) {
          if (!/_(endpoint|uri)$/.test(name) || typeof url !== 'string') continue
          assert.ok(url.startsWith(`${app.base}/oauth/`), url)
          const found = await Promise.all(['GET', 'POST'].map(async method => (await fetch(url, { method })).status))
          assert.ok(
            found.some(each => each !== 404),
            url,
          )
        }
      }
    })

    it('describes the API as a protected resource, under both of its names', async () => {
      for (const suffix of ['', '/mcp']) {
        const { status, body } = await app.anonymous.get(`//.well-known/oauth-protected-resource${suffix}`)
        assert.equal(status, 200)
        assert.equal(body.resource, `${app.base}${suffix}`)
        assert.deepEqual(body.authorization_servers, [app.base])
        assert.deepEqual(body.bearer_methods_supported, ['header'])
        assert.deepEqual(body.scopes_supported, ['mcp:access'])
      }
    })

    it('takes its URL from the settings, not from the request', async () => {
      const response = await fetch(`${app.url}/.well-known/oauth-authorization-server`, {
        headers: { 'x-forwarded-host': 'evil.example', 'x-forwarded-proto': 'https', forwarded: 'host=evil.example' },
      })
      const body = (await response.json()) as { token_endpoint: string }
      assert.equal(body.token_endpoint, `${app.base}/oauth/token`)
    })

    it('returns 404 for other paths', async () => {
      for (const path of ['//oauth', '//oauth/x', `//oauth/register/${client_id}`, '//oauth/end', '//oauth/request']) {
        const { status, body } = await app.anonymous.get(path)
        assert.equal(status, 404, path)
        assert.equal(body.error.code, 'RESOURCE_NOT_FOUND', path)
      }
    })
  })

  describe('the code flow', () => {
    it('gives a registered client a token for the project and the granted scopes', async () => {
      const tokens = await tokensOf(app.base, flow(modules('actors')))
      assert.equal(tokens.token_type, 'Bearer')
      assert.equal(tokens.expires_in, 3600)
      assert.equal(tokens.scope, 'mcp:access actors:*')
      assert.match(tokens.refresh_token, /^ort_/)
      const api = app.as(tokens.access_token)
      assert.equal((await api.post('/actors', { name: 'x' })).status, 201)
      assert.equal((await api.get('/files')).status, 403)
      assert.equal((await api.get(`/actors?project_id=${other.id}`)).body.error.code, 'API_KEY_PROJECT_SCOPE')
      const { credential } = (await api.get('/users/me')).body
      assert.equal(credential.type, 'oauth_token')
      assert.deepEqual(credential.scopes, ['mcp:access', 'actors:*'])
      assert.equal(credential.project_id, project.id)
    })

    it('serves an unmodified client that a metadata document describes', async () => {
      const issuer = new URL(app.base)
      const insecure = { [oauth.allowInsecureRequests]: true }
      const server = await oauth.processDiscoveryResponse(
        issuer,
        await oauth.discoveryRequest(issuer, { ...insecure, algorithm: 'oauth2' }),
      )
      const client = { client_id: `${documents.url}/client.json` }
      const verifier = oauth.generateRandomCodeVerifier()
      const state = oauth.generateRandomState()
      const url = new URL(server.authorization_endpoint as string)
      const asked = {
        client_id: client.client_id,
        redirect_uri: REDIRECT,
        response_type: 'code',
        scope: 'actors:* nonsense:* files:NoSuchAction',
        resource: `${app.base}/mcp`,
        code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
        code_challenge_method: 'S256',
        state,
      }
      for (const [name, value] of Object.entries(asked)) url.searchParams.set(name, value)
      const browser = new Browser()
      const request_id = await beginRequest(browser, url)
      const info = await inBrowser(app.base, browser, user).get(`/oauth/consent-info?request_id=${request_id}`)
      assert.equal(info.status, 200, JSON.stringify(info.body))
      assert.deepEqual(info.body.projects, [{ id: project.id, name: info.body.projects[0].name }])
      const { expires_at, ...request } = info.body.request
      assert.ok(new Date(expires_at) > new Date())
      assert.deepEqual(request, {
        client_id: client.client_id,
        client_kind: 'metadata_document',
        client_name: 'An assistant',
        client_host: new URL(documents.url).host,
        redirect_host: '127.0.0.1:4711',
        loopback: true,
        requested_scopes: ['actors:*'],
        needs_project: true,
        device: null,
      })
      const redirect = await approve(app.base, browser, user, request_id, modules('actors', 'files'))
      const params = oauth.validateAuthResponse(server, client, redirect, state)
      const answer = await oauth.authorizationCodeGrantRequest(
        server,
        client,
        oauth.None(),
        params,
        REDIRECT,
        verifier,
        insecure,
      )
      const tokens = await oauth.processAuthorizationCodeResponse(server, client, answer)
      assert.equal(tokens.scope, 'mcp:access actors:* files:*')
      assert.equal(await allowed(tokens.access_token), 200)
      assert.equal((await app.as(tokens.access_token).get('/chats')).status, 403)
      const again = await oauth.processRefreshTokenResponse(
        server,
        client,
        await oauth.refreshTokenGrantRequest(server, client, oauth.None(), tokens.refresh_token as string, insecure),
      )
      assert.equal(await allowed(again.access_token), 200)
      await oauth.processRevocationResponse(
        await oauth.revocationRequest(server, client, oauth.None(), again.refresh_token as string, insecure),
      )
      assert.equal(await allowed(again.access_token), 401)
      assert.deepEqual([...new Set(documents.requests)], ['/client.json'], 'no logo is fetched')
      const listed = (await app.admin.get('/oauth/clients')).body.data
      assert.ok(listed.some((each: { id: string }) => each.id === client.client_id))
    })

    it('serves a confidential client, whose secret is stored as a hash', async () => {
      const client = await register(app.base, {
        redirect_uris: ['https://app.example/callback'],
        token_endpoint_auth_method: 'client_secret_basic',
      })
      const redirect_uri = 'https://app.example/callback'
      const { code, verifier } = await codeOf(app.base, flow(all(), { client_id: client.client_id, redirect_uri }))
      const form = { grant_type: 'authorization_code', code, code_verifier: verifier, redirect_uri }
      const basic = (secret: string) => ({
        authorization: `Basic ${Buffer.from(`${client.client_id}:${secret}`).toString('base64')}`,
      })
      const wrong = await postForm(`${app.base}/oauth/token`, form, basic('wrong'))
      assert.deepEqual([wrong.status, wrong.body.error], [401, 'invalid_client'])
      const right = await postForm(`${app.base}/oauth/token`, form, basic(client.client_secret))
      assert.equal(right.status, 200, JSON.stringify(right.body))
      const { refresh_token } = right.body
      const token = { token: refresh_token }
      const told = await postForm(`${app.base}/oauth/introspect`, token, basic(client.client_secret))
      assert.equal(told.body.active, true)
      assert.equal(told.body.sub, user.id)
      const stranger = await postForm(`${app.base}/oauth/introspect`, { ...token, client_id })
      assert.deepEqual(stranger.body, { active: false })
    })

    it('dry-runs consent without storing anything, and names what does not exist', async () => {
      const dry = (body: object) => user.post('/oauth/consent', body)
      const { body } = await dry({ project_id: project.id, selection: { kind: 'actions', actions: ['files:GetFile'] } })
      assert.deepEqual(body, {
        project_id: project.id,
        scopes: ['mcp:access', 'files:GetFile'],
        policy: { statement: [{ effect: 'Allow', action: ['files:GetFile'], resource: [`srn:${project.id}:*:*`] }] },
        redirect_to: null,
      })
      const read = (await dry({ project_id: project.id, selection: { kind: 'read' } })).body.scopes
      assert.ok(read.includes('files:DownloadFile') && read.includes('agents:ListAgents'))
      assert.ok(read.every((scope: string) => scope === 'mcp:access' || /:(List|Get|Search|Download)/.test(scope)))
      const unknown = await dry({ project_id: project.id, selection: { kind: 'actions', actions: ['files:Fly'] } })
      assert.deepEqual([unknown.status, unknown.body.error.meta.unknown], [400, ['files:Fly']])
      assert.deepEqual((await dry(modules('oauth'))).body.error.meta.unknown, ['oauth'])
      const empty = await dry({ project_id: project.id, selection: { kind: 'modules', modules: [] } })
      assert.equal(empty.status, 400)
      assert.equal((await dry({ selection: { kind: 'all' } })).body.error.meta.problems[0].path, 'project_id')
      assert.equal((await dry({ project_id: other.id, selection: { kind: 'all' } })).status, 403)
      const missing = { project_id: 'proj_00000000000000000000000000', selection: { kind: 'all' } }
      assert.equal((await dry(missing)).status, 403)
      assert.equal((await app.admin.post('/oauth/consent', missing)).status, 404)
    })

    it('accepts consent only from users', async () => {
      const { access_token } = await tokensOf(app.base, flow())
      const { key } = await app.project()
      for (const caller of [app.as(access_token), key]) {
        assert.equal((await caller.post('/oauth/consent', all())).status, 403)
        assert.equal((await caller.get('/oauth/consent-info')).status, 403)
        assert.equal((await caller.get('/oauth/grants')).status, 403)
      }
      assert.equal((await app.anonymous.post('/oauth/consent', all())).status, 401)
    })

    it('records a decision once, and reports a denial to the client', async () => {
      const browser = new Browser()
      const { challenge } = pkce()
      const asked = { client_id, redirect_uri: REDIRECT, code_challenge: challenge, code_challenge_method: 'S256' }
      const request_id = await beginRequest(browser, authorizeUrl(app.base, asked))
      const redirect = await approve(app.base, browser, user, request_id, { decision: 'deny' })
      assert.equal(redirect.searchParams.get('error'), 'access_denied')
      assert.equal(redirect.searchParams.get('state'), 'a state')
      assert.equal(redirect.searchParams.get('iss'), app.base)
      const again = await inBrowser(app.base, browser, user).post('/oauth/consent', { request_id, ...all() })
      assert.equal(again.status, 404)
      const { data } = (await app.admin.get('/audit-log?action=oauth:GrantConsent&limit=2')).body
      assert.deepEqual(
        data.map((each: { status: number; detail: object | null }) => [each.status, each.detail]),
        [
          [404, null],
          [200, { client_id, client_name: 'A registered client', scopes: [], decision: 'deny' }],
        ],
      )
    })

    it('requires sign-in and consent for every request', async () => {
      const browser = new Browser()
      await codeOf(app.base, flow(all(), { browser }))
      const { challenge } = pkce()
      const asked = { client_id, redirect_uri: REDIRECT, code_challenge: challenge, code_challenge_method: 'S256' }
      const silent = await browser.send(authorizeUrl(app.base, { ...asked, prompt: 'none' }))
      const to = new URL(silent.headers.get('location') as string)
      assert.equal(to.searchParams.get('error'), 'login_required')
      // Another user in the same browser.
      const { access_token } = await tokensOf(app.base, flow(all(), { browser, user: await newUser() }))
      assert.notEqual((await app.as(access_token).get('/users/me')).body.id, user.id)
    })
  })

  describe('tokens', () => {
    it('are refused for a wrong verifier, redirect, client, and for a code that has expired', async () => {
      const wrong = async (more: object, verifier?: string) => {
        const made = await codeOf(app.base, flow())
        const { status, body } = await exchange(made.code, verifier ?? made.verifier, more)
        return [status, body.error]
      }
      const invalid = [400, 'invalid_grant']
      assert.deepEqual(await wrong({}, pkce().verifier), invalid)
      assert.deepEqual(await wrong({ redirect_uri: `${REDIRECT}/x` }), invalid)
      assert.deepEqual(await wrong({ redirect_uri: 'http://127.0.0.1:4712/callback' }), invalid)
      assert.deepEqual(await wrong({ client_id: (await register(app.base)).client_id }), invalid)
      assert.deepEqual(await wrong({ resource: 'https://elsewhere.example' }), [400, 'invalid_target'])
      assert.deepEqual(await wrong({ grant_type: 'password' }), [400, 'unsupported_grant_type'])
      const { code, verifier } = await codeOf(app.base, flow())
      await app.pool.query(
        sql.unsafe`update oauth_objects set expires_at = now() - interval '1 second' where model = 'AuthorizationCode' and consumed_at is null`,
      )
      const late = await exchange(code, verifier)
      assert.deepEqual([late.status, late.body.error], invalid)
    })

    it('are revoked when their code is replayed', async () => {
      const { code, verifier } = await codeOf(app.base, flow())
      const first = await exchange(code, verifier)
      assert.equal(await allowed(first.body.access_token), 200)
      const second = await exchange(code, verifier)
      assert.deepEqual([second.status, second.body.error], [400, 'invalid_grant'])
      assert.equal(await allowed(first.body.access_token), 401)
      const { data } = (await app.admin.get('/audit-log?action=oauth:RevokeGrant&limit=1')).body
      assert.deepEqual([data[0].principal_id, data[0].detail.kind], [null, 'code_reuse'])
    })

    it('are issued to only one of several requests with a code', async () => {
      const { code, verifier } = await codeOf(app.base, flow())
      const replies = await Promise.all(Array.from({ length: 8 }, () => exchange(code, verifier)))
      assert.ok(replies.filter(({ status }) => status === 200).length <= 1)
      assert.ok(replies.every(({ status, body }) => status === 200 || body.error === 'invalid_grant'))
    })

    it('rotate; a replayed refresh token ends the grant', async () => {
      const own = await startOauthApp({
        env: { OAUTH_REFRESH_REUSE_GRACE_SECONDS: '0' },
        databaseUrl: undefined,
      })
      try {
        const { id } = await own.project()
        const { client_id } = await register(own.base)
        const consent = { project_id: id, selection: { kind: 'all' } }
        const given = { client_id, redirect_uri: REDIRECT, user: own.admin, consent }
        const first = await tokensOf(own.base, given)
        const second = (await refresh(own.base, client_id, first.refresh_token)).body
        assert.notEqual(second.refresh_token, first.refresh_token)
        assert.equal((await own.as(second.access_token).get('/actors')).status, 200)
        const replay = await refresh(own.base, client_id, first.refresh_token)
        assert.deepEqual([replay.status, replay.body.error], [400, 'invalid_grant'])
        assert.equal((await own.as(second.access_token).get('/actors')).status, 401)
        assert.equal((await refresh(own.base, client_id, second.refresh_token)).status, 400)
        const { data } = (await own.admin.get('/audit-log?action=oauth:RevokeGrant&limit=1')).body
        assert.equal(data[0].detail.kind, 'refresh_reuse')
        assert.deepEqual([data[0].ip, data[0].request_id], ['192.0.2.1', replay.headers.get('x-request-id')])
      } finally {
        await own.close()
      }
    })

    it('survive lost responses and concurrent refreshes: all have one successor, until the grace ends', async () => {
      const { refresh_token } = await tokensOf(app.base, flow())
      const many = await Promise.all(Array.from({ length: 20 }, () => refresh(app.base, client_id, refresh_token)))
      const replies = [...many, await refresh(app.base, client_id, refresh_token)]
      assert.deepEqual(new Set(replies.map(({ status }) => status)), new Set([200]))
      assert.equal(new Set(replies.map(({ body }) => body.refresh_token)).size, 1)
      for (const { body } of replies) assert.equal(await allowed(body.access_token), 200)
      const [{ body }] = replies
      const next = await refresh(app.base, client_id, body.refresh_token)
      assert.equal(next.status, 200)
      // The same a moment after the grace is a theft.
      const grace = app.config.OAUTH_REFRESH_REUSE_GRACE_SECONDS
      await app.pool.query(
        sql.unsafe`update oauth_objects set consumed_at = consumed_at - ${grace + 1} * interval '1 second' where model = 'RefreshToken'`,
      )
      const late = await refresh(app.base, client_id, refresh_token)
      assert.deepEqual([late.status, late.body.error], [400, 'invalid_grant'])
      assert.equal(await allowed(next.body.access_token), 401)
      assert.equal((await refresh(app.base, client_id, next.body.refresh_token)).body.error, 'invalid_grant')
    })

    it('are given in the grace neither to another client nor after the end of the grant', async () => {
      const { refresh_token } = await tokensOf(app.base, flow())
      const next = await refresh(app.base, client_id, refresh_token)
      assert.equal(next.status, 200)
      const other = await register(app.base)
      for (const token of [refresh_token, next.body.refresh_token]) {
        const { status, body } = await refresh(app.base, other.client_id, token)
        assert.deepEqual([status, body.error], [400, 'invalid_grant'])
      }
      assert.equal((await refresh(app.base, client_id, refresh_token)).body.refresh_token, next.body.refresh_token)
      await postForm(`${app.base}/oauth/revoke`, { client_id, token: next.body.refresh_token })
      for (const token of [refresh_token, next.body.refresh_token])
        assert.equal((await refresh(app.base, client_id, token)).body.error, 'invalid_grant')
      assert.equal(await allowed(next.body.access_token), 401)
    })

    it('are for the address of the API or of its MCP server, as the client names them', async () => {
      const audienceOf = async (resource: string | undefined) => {
        const { access_token } = await tokensOf(app.base, flow(all(), { asked: { resource } }))
        assert.equal(await allowed(access_token), 200)
        return JSON.parse(Buffer.from(access_token.split('.')[1], 'base64url').toString()).aud
      }
      assert.equal(await audienceOf(undefined), app.base)
      assert.equal(await audienceOf(`${app.base}/`), app.base)
      assert.equal(await audienceOf(`${app.base}/mcp`), `${app.base}/mcp`)
    })

    it('with all read scopes are small enough for a header', async () => {
      const { access_token, scope } = await tokensOf(app.base, flow({ ...all(), selection: { kind: 'read' } }))
      assert.ok(scope.length > 2048)
      assert.ok(access_token.length < 2048, String(access_token.length))
      assert.equal(await allowed(access_token), 200)
      assert.equal((await app.as(access_token).post('/actors', { name: 'x' })).status, 403)
    })

    it('are not given for a grant that ends during the refresh', async () => {
      const { pool } = app.home
      const tokens = await tokensOf(app.base, flow())
      const { gid } = decodeJwt(tokens.access_token) as { gid: string }
      const [locked, waits] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      const ending = pool.transaction(async tx => {
        await tx.query(rawQuery(`update oauth_grants set revoked_at = now() where id = '${gid}'`))
        locked.resolve()
        await waits.promise
      })
      await locked.promise
      const refreshing = refresh(app.base, client_id, tokens.refresh_token)
      try {
        await eventually(() =>
          pool.exists(
            rawQuery(
              `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%update oauth_grants%' and datname = current_database()`,
            ),
          ),
        )
      } finally {
        waits.resolve()
        await ending
      }
      const { status, body } = await refreshing
      assert.deepEqual([status, body.error], [400, 'invalid_grant'])
    })

    it('are narrowed by a refresh with fewer scopes, and never widened', async () => {
      const { refresh_token } = await tokensOf(app.base, flow(modules('actors', 'files')))
      const wider = await refresh(app.base, client_id, refresh_token, { scope: 'chats:*' })
      assert.deepEqual([wider.status, wider.body.error], [400, 'invalid_scope'])
      const { body } = await refresh(app.base, client_id, refresh_token, { scope: 'files:*' })
      assert.equal(body.scope, 'files:*')
      assert.equal(await allowed(body.access_token), 403)
      assert.equal((await app.as(body.access_token).get('/files')).status, 200)
    })

    it('are narrowed to a part of a scope too, in one refresh, and to no other scope', async () => {
      const grants: [object, string[], string[]][] = [
        [
          modules('actors', 'files'),
          ['actors:ListActors', 'mcp:access files:DeleteFile'],
          ['chats:ListChats', 'actors:Unknown'],
        ],
        [all(), ['actors:ListActors', 'actors:*'], ['muster:user', 'openid', 'unknown:*', 'actors:Unknown']],
        [
          { ...all(), selection: { kind: 'actions', actions: ['actors:ListActors'] } },
          ['actors:ListActors'],
          ['actors:*', '*', 'actors:GetActor'],
        ],
      ]
      for (const [consent, legal, illegal] of grants) {
        const given = await tokensOf(app.base, flow(consent))
        let { refresh_token } = given
        for (const scope of illegal) {
          const { status, body } = await refresh(app.base, client_id, refresh_token, { scope })
          assert.deepEqual([status, body.error], [400, 'invalid_scope'], scope)
        }
        for (const scope of legal) {
          const { status, body } = await refresh(app.base, client_id, refresh_token, { scope })
          assert.deepEqual([status, body.scope], [200, scope], JSON.stringify(body))
          assert.equal(await allowed(body.access_token), scope.startsWith('actors') ? 200 : 403, scope)
          assert.equal((await app.as(body.access_token).get('/files')).status, 403, scope)
          ;({ refresh_token } = body)
        }
        const whole = await refresh(app.base, client_id, refresh_token)
        assert.equal(whole.body.scope, given.scope)
      }
    })

    it('are not revoked one by one: the revocation endpoint ends grants by their refresh token', async () => {
      const tokens = await tokensOf(app.base, flow())
      const revoke = (token: string, more: object = {}) =>
        postForm(`${app.base}/oauth/revoke`, { token, client_id, ...more })
      const structured = await revoke(tokens.access_token)
      assert.deepEqual([structured.status, structured.body.error], [400, 'unsupported_token_type'])
      assert.equal((await revoke('ort_unknown')).status, 200)
      const stranger = (await register(app.base)).client_id
      assert.equal((await revoke(tokens.refresh_token, { client_id: stranger })).status, 200)
      assert.equal(await allowed(tokens.access_token), 200)
      assert.equal((await revoke(tokens.refresh_token)).status, 200)
      assert.equal(await allowed(tokens.access_token), 401)
    })
  })

  describe('grants', () => {
    const newest = async () => (await user.get(`/oauth/grants?client_id=${client_id}&limit=1`)).body.data[0]

    it('are listed by their owner and by admins, narrowed and revoked immediately', async () => {
      const tokens = await tokensOf(app.base, flow(modules('actors', 'files')))
      const grant = await newest()
      assert.deepEqual(
        { ...grant, id: '', created_at: '', expires_at: '', last_used_at: '' },
        {
          id: '',
          client_id,
          client_name: 'A registered client',
          user_id: user.id,
          project_id: project.id,
          scopes: ['mcp:access', 'actors:*', 'files:*'],
          created_at: '',
          expires_at: '',
          last_used_at: '',
        },
      )
      const stranger = await newUser()
      assert.equal((await stranger.get('/oauth/grants')).body.total, 0)
      assert.equal((await stranger.delete(`/oauth/grants/${grant.id}`)).status, 404)
      assert.ok((await app.admin.get(`/oauth/grants?user_id=${user.id}`)).body.total > 0)

      const patch = (selection: object) => user.patch(`/oauth/grants/${grant.id}`, { selection })
      const wider = await patch({ kind: 'all' })
      assert.deepEqual([wider.status, wider.body.error.code], [400, 'VALIDATION_FAILED'])
      assert.equal(await allowed(tokens.access_token), 200)
      const narrower = await patch({ kind: 'actions', actions: ['files:GetFile'] })
      assert.equal(narrower.status, 200, JSON.stringify(narrower.body))
      assert.deepEqual(narrower.body.scopes, ['mcp:access', 'files:GetFile'])
      assert.equal(await allowed(tokens.access_token), 403)
      assert.equal((await app.as(tokens.access_token).get('/files')).status, 200)
      const refreshed = (await refresh(app.base, client_id, tokens.refresh_token)).body
      assert.equal(refreshed.scope, 'mcp:access files:GetFile')
      assert.equal((await app.as(refreshed.access_token).get('/files')).status, 200)

      assert.equal((await user.delete(`/oauth/grants/${grant.id}`)).status, 204)
      assert.equal((await app.as(refreshed.access_token).get('/files')).status, 401)
      assert.equal((await refresh(app.base, client_id, refreshed.refresh_token)).body.error, 'invalid_grant')
      assert.equal((await user.delete(`/oauth/grants/${grant.id}`)).status, 404)
    })

    it('end earlier if the consent sets an expiry', async () => {
      await tokensOf(app.base, flow({ ...all(), expires_in_days: 1 }))
      const { expires_at } = await newest()
      assert.ok(Math.abs(new Date(expires_at).getTime() - Date.now() - 86_400_000) < 60_000)
    })

    it('end with their user, their client, their project and their policies', async () => {
      const owner = await newUser()
      const { access_token } = await tokensOf(app.base, flow(all(), { user: owner }))
      assert.equal(await allowed(access_token), 200)
      await app.admin.put(`/users/${owner.id}/policies`, { policy_ids: [] })
      assert.equal(await allowed(access_token), 403)
      await app.admin.patch(`/users/${owner.id}`, { disabled: true })
      assert.equal(await allowed(access_token), 401)
      await app.admin.patch(`/users/${owner.id}`, { disabled: false })
      await app.admin.delete(`/users/${owner.id}`)
      assert.equal(await allowed(access_token), 401)

      const own = (await register(app.base)).client_id
      const tokens = await tokensOf(app.base, flow(all(), { client_id: own }))
      assert.equal((await user.delete(`/oauth/clients/${own}`)).status, 403)
      assert.equal((await app.admin.delete(`/oauth/clients/${own}`)).status, 204)
      assert.equal(await allowed(tokens.access_token), 401)
      assert.equal((await app.admin.delete(`/oauth/clients/${own}`)).status, 404)

      const { id } = await app.project()
      const consent = { project_id: id, selection: { kind: 'all' } }
      const bound = await tokensOf(app.base, flow(consent, { user: app.admin }))
      assert.equal(await allowed(bound.access_token), 200)
      assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
      const isRefused = async () => (await allowed(bound.access_token)) === 401
      // The grant of a project of another cell ends directly after the deletion.
      if (CELL_COUNT > 1) await eventually(isRefused)
      else assert.ok(await isRefused())
      assert.equal((await refresh(app.base, client_id, bound.refresh_token)).body.error, 'invalid_grant')
    })

    it('of an admin neither leave the project nor pass the gate of admins', async () => {
      const { access_token } = await tokensOf(app.base, flow(all(), { user: app.admin }))
      const api = app.as(access_token)
      assert.equal((await api.post('/users', { username: 'x', password: 'a fine password' })).status, 403)
      assert.equal((await api.get(`/actors?project_id=${other.id}`)).body.error.code, 'API_KEY_PROJECT_SCOPE')
      assert.equal((await api.get('/oauth/clients')).status, 403)
    })

    it('do not reach what their user owns beyond the consent', async () => {
      const { access_token } = await tokensOf(app.base, flow(modules('files')))
      assert.equal((await app.as(access_token).get('/project-keys')).status, 403)
      assert.equal((await app.as(access_token).get(`/users/${user.id}`)).status, 403)
    })

    it('are audited with their scopes, and their tokens with the client', async () => {
      const { access_token } = await tokensOf(app.base, flow(modules('actors')))
      await app.as(access_token).post('/actors', { name: 'audited' })
      const granted = (await app.admin.get('/audit-log?action=oauth:GrantConsent&limit=1')).body.data[0]
      assert.equal(granted.project_id, project.id)
      assert.deepEqual(granted.detail, {
        client_id,
        client_name: 'A registered client',
        scopes: ['mcp:access', 'actors:*'],
      })
      const used = (await app.admin.get('/audit-log?action=actors:CreateActor&limit=1')).body.data[0]
      assert.equal(used.principal_id, user.id)
      assert.equal(used.detail.oauth_client_id, client_id)
    })
  })

  describe('step-up', () => {
    it('lists missing scopes that the user may grant, in one challenge', async () => {
      const { access_token } = await tokensOf(app.base, flow(modules('files')))
      const { status, body, headers } = await app.as(access_token).get('/agents')
      assert.deepEqual([status, body.error.code], [403, 'FORBIDDEN'])
      assert.equal(
        headers.get('www-authenticate'),
        `Bearer error="insufficient_scope", scope="agents:ListAgents files:* mcp:access", resource_metadata="${app.base}/.well-known/oauth-protected-resource"`,
      )
    })

    it('names both actions of an operation that needs two', async () => {
      const { access_token } = await tokensOf(app.base, flow(modules('files')))
      const { status, headers } = await app.as(access_token).post('/datasets/dset_x/items/from-generation', {})
      assert.equal(status, 403)
      const scope = /scope="([^"]+)"/.exec(headers.get('www-authenticate') as string)?.[1]
      assert.equal(scope, 'evaluations:CreateDataset files:* generations:GetGeneration mcp:access')
    })

    it('is not offered if more consent would not help', async () => {
      const limited = await newUser(['files:*'])
      const { access_token } = await tokensOf(app.base, flow(modules('files'), { user: limited }))
      const refused = await app.as(access_token).get('/agents')
      assert.equal(refused.status, 403)
      assert.equal(refused.headers.get('www-authenticate'), null)
      const elsewhere = await app.as(access_token).get(`/files?project_id=${other.id}`)
      assert.equal(elsewhere.headers.get('www-authenticate'), null)
      // Of an operation that needs two actions the user may do one.
      const half = await newUser(['files:*', 'generations:*'])
      const tokens = await tokensOf(app.base, flow(modules('files'), { user: half }))
      const both = await app.as(tokens.access_token).post('/datasets/dset_x/items/from-generation', {})
      assert.deepEqual([both.status, both.headers.get('www-authenticate')], [403, null])
    })
  })

  it('stores no secret in plain text', async () => {
    const secret = await register(app.base, { token_endpoint_auth_method: 'client_secret_post' })
    const { code, verifier } = await codeOf(app.base, flow(all(), { client_id: secret.client_id }))
    const { body } = await exchange(code, verifier, {
      client_id: secret.client_id,
      client_secret: secret.client_secret,
    })
    const device = await postForm(`${app.base}/oauth/device_authorization`, { client_id: 'muster-cli' })
    const texts = await Promise.all(
      ['oauth_clients', 'oauth_grants', 'oauth_objects', 'oauth_keys', 'oauth_limits'].map(async table => {
        const row = sql.type(z.object({ text: z.string() }))
        const name = sql.identifier([table])
        const rows = await app.pool.any(row`select to_jsonb(t)::text as text from ${name} t`)
        return rows.map(({ text }) => text).join('\n')
      }),
    )
    const sent = [
      code,
      body.access_token,
      body.refresh_token,
      secret.client_secret,
      device.body.device_code,
      device.body.user_code,
      device.body.user_code.replace('-', ''),
    ]
    for (const value of sent) {
      assert.ok(value, JSON.stringify(sent))
      const forms = [value, Buffer.from(value).toString('hex'), Buffer.from(value).toString('base64')]
      for (const form of forms) assert.ok(!texts.some(text => text.includes(form)), form)
    }
  })

  it('shows use of a grant', async () => {
    const { access_token } = await tokensOf(app.base, flow())
    await allowed(access_token)
    const list = () => user.get(`/oauth/grants?client_id=${client_id}&limit=1`)
    await eventually(async () => (await list()).body.data[0].last_used_at !== null)
  })
})
