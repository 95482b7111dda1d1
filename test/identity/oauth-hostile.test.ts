import assert from 'node:assert/strict'
import { createHmac, randomUUID } from 'node:crypto'
import { exportJWK, generateKeyPair, SignJWT } from 'jose'
import { rawQuery } from '#core/db/sql.ts'
import { createEgress } from '#core/net/egress.ts'
import { CAPACITY, spendLimit } from '#identity/oauth/limits.ts'
import oauthModule from '#identity/oauth/module.ts'
import { eventually, startApp } from '../support/app.ts'
import {
  allowing,
  authorizeUrl,
  Browser,
  beginRequest,
  inBrowser,
  pkce,
  postForm,
  REDIRECT,
  register,
  startDocuments,
  startOauthApp,
  tokensOf,
} from '../support/oauth.ts'
import { forSuite } from '../support/suite.ts'
import { cert } from '../support/tls.ts'

describe('attacks on OAuth', function () {
  this.timeout(60_000)
  const app = forSuite(() => startOauthApp({ env: { OAUTH_INTROSPECTION_ENABLED: 'true' } }))
  const project = forSuite(() => app.project())
  const user = forSuite(() => app.user('ada', [allowing(project.id)]))
  let client_id: string
  const consent = () => ({ project_id: project.id, selection: { kind: 'all' } })
  const challenged = () => ({ code_challenge: pkce().challenge, code_challenge_method: 'S256' })
  const authorize = (asked: object, address?: string) =>
    new Browser(address).send(authorizeUrl(app.base, { client_id, redirect_uri: REDIRECT, ...challenged(), ...asked }))
  const registration = (metadata: object, address: string) =>
    fetch(`${app.base}/oauth/register`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-test-address': address },
      body: JSON.stringify({ token_endpoint_auth_method: 'none', ...metadata }),
    })

  before(async () => {
    ;({ client_id } = await register(app.base))
  })

  describe('a request at the authorization endpoint', () => {
    it('without a proper challenge is refused towards the client, with state and issuer', async () => {
      for (const defect of [
        { code_challenge: undefined, code_challenge_method: undefined },
        { code_challenge_method: 'plain' },
        { code_challenge: 'short' },
      ]) {
        const response = await authorize(defect)
        const to = new URL(response.headers.get('location') as string)
        assert.equal(to.origin + to.pathname, REDIRECT)
        assert.deepEqual(
          ['error', 'state', 'iss'].map(name => to.searchParams.get(name)),
          ['invalid_request', 'a state', app.base],
        )
      }
      const errors = async (asked: object) => {
        const { search, hash } = new URL((await authorize(asked)).headers.get('location') as string)
        return new URLSearchParams((search || hash).slice(1)).get('error')
      }
      assert.equal(await errors({ response_type: 'token' }), 'unsupported_response_type')
      assert.equal(await errors({ resource: 'https://elsewhere.example' }), 'invalid_target')
    })

    it('with an unregistered redirect URI is refused', async () => {
      for (const redirect_uri of [
        undefined,
        'http://127.0.0.1:4711/callback/x',
        'http://127.0.0.1:4711/callbac',
        'http://127.0.0.1:4711/callback?x=1',
        'http://127.0.0.1.evil.example/callback',
        'http://user@127.0.0.1:4711/callback',
        'https://evil.example/callback',
        'javascript:alert(1)',
        '//evil.example',
      ]) {
        const response = await authorize({ redirect_uri })
        assert.equal(response.status, 400, redirect_uri)
        assert.equal(response.headers.get('location'), null, redirect_uri)
      }
      const url = authorizeUrl(app.base, { client_id, redirect_uri: REDIRECT, ...challenged() })
      url.searchParams.append('redirect_uri', 'https://evil.example/callback')
      const twice = await new Browser().send(url)
      assert.equal(twice.status, 400)
      assert.equal(twice.headers.get('location'), null)
    })

    it('of an unknown client shows a page with escaped text', async () => {
      const response = await authorize({ client_id: '<img src=x onerror=alert(1)>' })
      assert.equal(response.status, 400)
      assert.ok(!(await response.text()).includes('<img'))
      assert.equal((await authorize({ client_id: 'oac_\0' })).status, 400)
    })
  })

  it('keeps every page from being framed, cached, or given to scripts of other origins', async () => {
    for (const path of ['/oauth/consent', '/oauth/device', '/oauth/authorize', '/oauth/authorize/unknown']) {
      const response = await fetch(app.base + path, { redirect: 'manual', headers: { origin: 'https://evil.example' } })
      const policy = response.headers.get('content-security-policy') ?? ''
      for (const part of ["default-src 'none'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"])
        assert.ok(policy.includes(part), `${path}: ${policy}`)
      assert.equal(response.headers.get('x-frame-options'), 'DENY')
      assert.equal(response.headers.get('referrer-policy'), 'no-referrer')
      assert.match(response.headers.get('cache-control') ?? '', /no-store/)
      assert.equal(response.headers.get('access-control-allow-origin'), null)
      assert.match(await response.text(), /<link rel="icon" href="data:/)
    }
    const script = await (await fetch(`${app.base}/oauth/consent.js`)).text()
    assert.ok(!/innerHTML|insertAdjacentHTML|document\.write/.test(script))
  })

  it('takes consent from the browser that began the request, and never by its cookies alone', async () => {
    const attacker = new Browser()
    const request_id = await beginRequest(
      attacker,
      authorizeUrl(app.base, { client_id, redirect_uri: REDIRECT, ...challenged() }),
    )
    const victim = new Browser()
    await beginRequest(victim, authorizeUrl(app.base, { client_id, redirect_uri: REDIRECT, ...challenged() }))
    for (const browser of [victim, new Browser()]) {
      const api = inBrowser(app.base, browser, user)
      assert.equal((await api.get(`/oauth/consent-info?request_id=${request_id}`)).status, 404)
      assert.equal((await api.post('/oauth/consent', { request_id, ...consent() })).status, 404)
    }
    // A cookie of one's own making.
    const [{ name }] = attacker.cookies(app.base)
    const value = request_id.slice('oar_'.length)
    const signature = createHmac('sha1', 'a guess').update(`${name}=${value}`).digest('base64url')
    const forged = { cookie: `oauth_interaction=${value}; oauth_interaction.sig=${signature}` }
    assert.equal((await user.get(`/oauth/consent-info?request_id=${request_id}`, forged)).status, 404)
    const cookies = { cookie: attacker.header(`${app.base}/api/v1/oauth/consent`) }
    assert.equal((await app.anonymous.post('/oauth/consent', { request_id, ...consent() }, cookies)).status, 401)
  })

  it('issues one code per decision, even for concurrent resumes', async () => {
    const browser = new Browser()
    const request_id = await beginRequest(
      browser,
      authorizeUrl(app.base, { client_id, redirect_uri: REDIRECT, ...challenged() }),
    )
    const decided = await inBrowser(app.base, browser, user).post('/oauth/consent', { request_id, ...consent() })
    const { redirect_to } = decided.body
    const headers = { cookie: browser.header(redirect_to) }
    const resumed = await Promise.all(
      Array.from({ length: 8 }, async () => {
        const { status } = await fetch(redirect_to, { headers, redirect: 'manual' })
        return status
      }),
    )
    assert.deepEqual(resumed.toSorted(), [303, 400, 400, 400, 400, 400, 400, 400])
  })

  it('accepts no token that it did not issue for itself', async () => {
    const { access_token } = await tokensOf(app.base, { client_id, redirect_uri: REDIRECT, user, consent: consent() })
    const [, body] = access_token.split('.')
    const claims = JSON.parse(Buffer.from(body, 'base64url').toString())
    const secret = Buffer.from(app.config.JWT_SECRET)
    const sign = (more: object, key: Uint8Array = secret) =>
      new SignJWT({ ...claims, ...more }).setProtectedHeader({ alg: 'HS256' }).sign(key)
    const status = async (token: string) => {
      const api = app.as(token)
      const ping = { jsonrpc: '2.0', id: 1, method: 'ping' }
      const [rest, mcp] = [await api.get('/actors'), await api.post('//mcp', ping)].map(reply => reply.status)
      assert.equal(mcp, rest, 'both take the same tokens')
      return rest
    }
    assert.equal(await status(await sign({})), 200)
    const forged = {
      'another secret': await sign({}, Buffer.from('another secret that is long enough')),
      'another audience': await sign({ aud: 'https://elsewhere.example' }),
      'another issuer': await sign({ iss: 'https://elsewhere.example' }),
      'another type': await sign({ typ: 'download' }),
      'another user': await sign({ sub: 'user_00000000000000000000000000' }),
      'another client': await sign({ client_id: 'muster-cli' }),
      'another grant': await sign({ gid: 'ogr_00000000000000000000000000' }),
      'no grant': await sign({ gid: undefined }),
      expired: await sign({ exp: Math.floor(Date.now() / 1000) - 1 }),
      'no signature': `${Buffer.from('{"alg":"none"}').toString('base64url')}.${body}.`,
    }
    for (const [what, token] of Object.entries(forged)) assert.equal(await status(token), 401, what)
    const { privateKey, publicKey } = await generateKeyPair('RS256', { extractable: true })
    const jwk = await exportJWK(publicKey)
    const rs256 = await new SignJWT(claims).setProtectedHeader({ alg: 'RS256', jwk }).sign(privateKey)
    assert.equal(await status(rs256), 401)
    const [published] = (await app.anonymous.get('//oauth/jwks')).body.keys
    assert.equal(await status(await sign({}, Buffer.from(published.n))), 401, 'HS256 over a public key')
  })

  describe('a metadata document', () => {
    const inner = forSuite(() =>
      startDocuments((req, res) => {
        if (req.url === '/hangs') return
        if (req.url === '/moved') return void res.writeHead(302, { location: '/good' }).end()
        const document = {
          client_id: `${inner.url}${req.url === '/other' ? '/good' : req.url}`,
          client_name: 'x',
          redirect_uris: [REDIRECT],
          token_endpoint_auth_method: req.url === '/secret' ? 'client_secret_post' : 'none',
          padding: req.url === '/large' ? 'x'.repeat(6 * 1024) : '',
        }
        res.setHeader('content-type', 'application/json')
        res.end(JSON.stringify(document))
      }),
    )
    let unsettled = 0

    before(async () => {
      const names: Record<string, () => string[]> = {
        'inner.example': () => ['127.0.0.1'],
        'metadata.example': () => ['169.254.169.254'],
        // Resolves to a public address first, and to an internal one afterwards.
        'unsettled.example': () => (unsettled++ === 0 ? ['198.51.100.1'] : ['127.0.0.1']),
      }
      app.home.egress = createEgress({
        allowHosts: 'tls.test',
        resolve: async name => names[name]?.() ?? ['127.0.0.1'],
        ca: cert,
      })
    })

    const refused = async (url: string, address?: string) => {
      const started = performance.now()
      const response = await authorize({ client_id: url }, address)
      assert.ok(performance.now() - started < 10_000, url)
      assert.equal(response.status, 400, url)
      assert.equal(response.headers.get('location'), null)
    }

    it('is refused when it redirects, hangs, is large, is of another client or requires a shared secret', async () => {
      for (const path of ['/moved', '/hangs', '/large', '/other', '/secret']) await refused(`${inner.url}${path}`)
      const good = await authorize({ client_id: `${inner.url}/good` })
      assert.equal(good.status, 303, `${await good.text()} ${inner.requests.join()}`)
    })

    it('is not fetched from an internal address, nor of an address in another form', async () => {
      const port = new URL(inner.url).port
      const asked = inner.requests.length
      for (const url of [
        `https://127.0.0.1:${port}/good`,
        `https://169.254.169.254/good`,
        `https://inner.example:${port}/good`,
        'https://metadata.example/good',
        `http://tls.test:${port}/good`,
        `https://tls.test:${port}/a/../good`,
        `https://user@tls.test:${port}/good`,
        `https://tls.test:${port}/good#x`,
      ])
        await refused(url, '192.0.2.3')
      await refused(`https://unsettled.example:${port}/good`, '192.0.2.3')
      assert.equal(unsettled, 1, 'one lookup, and the connection uses the checked address')
      assert.equal(inner.requests.length, asked)
    })

    it('is fetched at a limited rate across all senders', async () => {
      const replies = []
      for (let index = 0; index < 12; index++) {
        const asked = inner.requests.length
        const { status } = await authorize({ client_id: `${inner.url}/many/${index}` }, `192.0.2.${50 + index}`)
        replies.push(status === 303 ? 'fetched' : inner.requests.length === asked ? 'refused' : 'failed')
      }
      assert.ok(replies.includes('refused') && !replies.includes('failed'), replies.join())
      assert.equal(replies.at(-1), 'refused')
    })

    it('is fetched at a limited rate per sender', async () => {
      await app.pool.query(rawQuery('delete from oauth_limits'))
      const asked = inner.requests.length
      const from = { 'x-test-address': '192.0.2.70' }
      for (let index = 0; index < 12; index++)
        await postForm(`${app.base}/oauth/revoke`, { token: 'x', client_id: `${inner.url}/flood/${index}` }, from)
      assert.equal(inner.requests.length - asked, 8)
      assert.equal((await authorize({ client_id: `${inner.url}/quiet` }, '192.0.2.71')).status, 303)
    })
  })

  it('follows the settings, below the path of a proxy, with secure cookies', async () => {
    const base = 'https://muster.example/under'
    const off = { OAUTH_CIMD_ENABLED: 'false', OAUTH_REGISTRATION_ENABLED: 'false', OAUTH_DEVICE_ENABLED: 'false' }
    const own = await startApp({ env: { BASE_URL: base, ...off } })
    try {
      const { body } = await own.anonymous.get('//.well-known/oauth-authorization-server')
      assert.equal(body.token_endpoint, `${base}/oauth/token`)
      assert.equal(body.registration_endpoint, undefined)
      assert.equal(body.device_authorization_endpoint, undefined)
      assert.equal(body.client_id_metadata_document_supported, undefined)
      assert.ok((await (await fetch(`${own.url}/oauth/consent`)).text()).includes('<div id="company" hidden>'))
      assert.equal(body.introspection_endpoint, undefined)
      for (const path of ['register', 'device_authorization', 'device', 'introspect'])
        assert.equal((await fetch(`${own.url}/oauth/${path}`, { method: 'POST' })).status, 404, path)
      const asked = {
        client_id: 'muster-console',
        redirect_uri: `${base}/app/callback`,
        ...challenged(),
      }
      const begun = await fetch(authorizeUrl(own.url, asked), { redirect: 'manual' })
      assert.ok(begun.headers.get('location')?.startsWith(`${base}/oauth/consent?request_id=oar_`))
      const cookies = begun.headers.getSetCookie()
      assert.equal(cookies.length, 4)
      for (const cookie of cookies) {
        assert.match(cookie, /^__Secure-oauth_(interaction|resume)(\.sig)?=/)
        assert.match(cookie, /; secure/i)
        assert.match(cookie, /; httponly/i)
        assert.match(cookie, /; samesite=lax/i)
        assert.match(cookie, /; path=\/under\/(oauth|api\/v1\/oauth)/i)
      }
      const document = authorizeUrl(own.url, { ...asked, client_id: 'https://app.example/client.json' })
      assert.equal((await fetch(document, { redirect: 'manual' })).status, 400)
      const pages = ['/oauth/consent', '/oauth/authorize', '/oauth/consent.js']
      for (const path of pages) {
        const text = await (await fetch(own.url + path)).text()
        const named = [...text.matchAll(/(?:href="(?!data:)|src="|root = new URL\(')([^"$]+)/g)].map(
          ([, address]) => address,
        )
        assert.ok(named.length > 0, path)
        for (const address of named) {
          const from = path.endsWith('.js') ? '/oauth/consent' : path
          assert.ok(new URL(address, base + from).href.startsWith(`${base}/`), `${path}: ${address}`)
        }
      }
    } finally {
      await own.close()
    }
  })

  describe('the storage', () => {
    const limits = (text: string) => app.pool.query(rawQuery(text))
    const count = async (text: string) => Number(((await app.pool.one(rawQuery(text))) as { count: string }).count)
    const from = (address: string) => ({ 'x-test-address': address })
    const signed = async (id: string, exp: number) =>
      new SignJWT({})
        .setProtectedHeader({ alg: 'ES256' })
        .setIssuer(id)
        .setSubject(id)
        .setAudience(app.base)
        .setJti(randomUUID())
        .setExpirationTime(exp)
        .sign(keys.privateKey)
    let keys: Awaited<ReturnType<typeof generateKeyPair>>
    let confidential: string

    before(async () => {
      keys = await generateKeyPair('ES256', { extractable: true })
      const registered = await registration(
        {
          redirect_uris: ['https://client.example/callback'],
          token_endpoint_auth_method: 'private_key_jwt',
          jwks: { keys: [await exportJWK(keys.publicKey)] },
        },
        '192.0.2.80',
      )
      confidential = ((await registered.json()) as { client_id: string }).client_id
    })

    const introspect = async (exp: number, address: string, id = confidential) =>
      postForm(
        `${app.base}/oauth/introspect`,
        {
          token: 'x',
          client_assertion: await signed(id, exp),
          client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
        },
        from(address),
      )

    it('stores client assertions for at most ten minutes', async () => {
      const now = Math.floor(Date.now() / 1000)
      for (const exp of [now + 3600, 4102444800, 1e14]) {
        const { status, body } = await introspect(exp, '192.0.2.81')
        assert.deepEqual([status, body.error], [401, 'invalid_client'], String(exp))
      }
      assert.equal((await introspect(now + 300, '192.0.2.81')).status, 200)
      const long = `select count(*) from oauth_objects where expires_at > now() + interval '20 minutes' and model = 'ReplayDetection'`
      assert.equal(await count(long), 0)
    })

    it('limits token queries of an address, and failed ones further', async () => {
      const soon = Math.floor(Date.now() / 1000) + 300
      assert.equal((await introspect(soon, '192.0.2.82')).status, 200)
      await limits(`update oauth_limits set count = 300 where kind = 'token_question' and subject = '192.0.2.82'`)
      assert.equal((await introspect(soon, '192.0.2.82')).status, 429)
      const fail = (path: string) =>
        postForm(`${app.base}${path}`, { token: 'x', client_id: 'oac_unknown' }, from('192.0.2.83'))
      assert.equal((await fail('/oauth/revoke')).status, 401)
      await limits(`update oauth_limits set count = 60 where kind = 'token_failure' and subject = '192.0.2.83'`)
      assert.equal((await fail('/oauth/introspect')).status, 401)
      assert.equal((await fail('/oauth/revoke')).status, 429)
    })

    it('has one session for each page that is admitted, and no more', async () => {
      const open = (address: string) => new Browser(address).send(`${app.base}/oauth/device`)
      assert.equal((await open('192.0.2.84')).status, 200)
      await limits(`update oauth_limits set count = 300 where kind = 'page' and subject = '192.0.2.84'`)
      const before = await count(`select count(*) from oauth_objects where model = 'Session'`)
      const address = { headers: from('192.0.2.84') }
      for (const [path, method] of [
        ['/oauth/device', 'GET'],
        ['/oauth/device', 'POST'],
        ['/oauth/device/x', 'GET'],
        ['/oauth/authorize/x', 'GET'],
        ['/oauth/end/confirm', 'POST'],
      ])
        assert.equal((await fetch(`${app.base}${path}`, { ...address, method })).status, 429, path)
      assert.equal(await count(`select count(*) from oauth_objects where model = 'Session'`), before)
      assert.equal((await open('192.0.2.85')).status, 200)
    })

    it('refuses client metadata that the database cannot store', async () => {
      for (const client_name of ['a\0b', '\ud800']) {
        const refused = await registration({ redirect_uris: [REDIRECT], client_name }, '192.0.2.80')
        assert.equal(refused.status, 400)
        assert.equal(((await refused.json()) as { error: string }).error, 'invalid_client_metadata')
      }
      const response = await authorize({ client_id: 'oac_\0' }, '192.0.2.86')
      assert.equal(response.status, 400)
      assert.match(await response.text(), /invalid_client/)
    })

    it('gives connections to senders fairly', async () => {
      const { pool } = app.home
      const [locked, done] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      const lock = pool.transaction(async tx => {
        await tx.query(rawQuery('lock table oauth_limits in exclusive mode'))
        locked.resolve()
        await done.promise
      })
      await locked.promise
      const order: string[] = []
      const use = (sender: string) =>
        spendLimit(app.services, 'authorization', sender).then(() => void order.push(sender))
      const flood = Array.from({ length: 30 }, () => use('192.0.2.87'))
      const quiet = use('192.0.2.88')
      done.resolve()
      await Promise.all([lock, quiet, ...flood])
      assert.ok(order.indexOf('192.0.2.88') < 6, order.join())
    })
  })

  it('starts only with the supported draft of metadata documents or with them disabled', async () => {
    const { EXPERIMENTS } = await import('oidc-provider/lib/helpers/features.js' as string)
    const documents = EXPERIMENTS.get('clientIdMetadataDocument')
    const { version } = documents
    const { services } = app
    const off = { ...services, config: { ...services.config, OAUTH_CIMD_ENABLED: false } }
    await oauthModule.start?.(services, 'web')
    try {
      documents.version = 'draft-99'
      await assert.rejects(async () => oauthModule.start?.(services, 'web'), /draft-99.*draft-02/)
      await oauthModule.start?.(off, 'web')
    } finally {
      documents.version = version
    }
  })

  describe('a registration', () => {
    it('requires valid redirect URIs', async () => {
      const refusals: [object, string][] = [
        [{ redirect_uris: ['http://evil.example/callback'] }, 'invalid_redirect_uri'],
        [{ redirect_uris: ['https://a.example/callback#x'] }, 'invalid_redirect_uri'],
        [{ redirect_uris: ['https://user@a.example/callback'] }, 'invalid_redirect_uri'],
        [{ redirect_uris: ['javascript:alert(1)'] }, 'invalid_redirect_uri'],
        [{ redirect_uris: [REDIRECT, 'data:text/html,x'] }, 'invalid_redirect_uri'],
        [{ redirect_uris: [REDIRECT, 'file:///etc/passwd'] }, 'invalid_redirect_uri'],
        [{ redirect_uris: Array.from({ length: 11 }, (_, i) => `https://a.example/${i}`) }, 'invalid_redirect_uri'],
        [{ redirect_uris: [`https://a.example/${'x'.repeat(2048)}`] }, 'invalid_redirect_uri'],
        [{ redirect_uris: [] }, 'invalid_redirect_uri'],
        [{ redirect_uris: [REDIRECT], client_name: 'x'.repeat(201) }, 'invalid_client_metadata'],
        [{ redirect_uris: [REDIRECT], token_endpoint_auth_method: 'client_secret_jwt' }, 'invalid_client_metadata'],
        [{ redirect_uris: [REDIRECT], grant_types: ['implicit'] }, 'invalid_client_metadata'],
        [{ redirect_uris: [REDIRECT], client_name: 'a\0' }, 'invalid_client_metadata'],
        [{ redirect_uris: [REDIRECT], software_id: 'a\ud800' }, 'invalid_client_metadata'],
        [{ redirect_uris: ['com.example.app:/\0'] }, 'invalid_redirect_uri'],
      ]
      for (const [metadata, error] of refusals) {
        const response = await registration(metadata, '192.0.2.20')
        assert.deepEqual(
          [response.status, ((await response.json()) as { error: string }).error],
          [400, error],
          JSON.stringify(metadata).slice(0, 200),
        )
      }
    })

    it('keeps the redirect URIs that can be used, and makes an app with a loopback or private-use one native', async () => {
      const cases: [string[], string[], string][] = [
        [['com.example.app:/callback'], ['com.example.app:/callback'], 'native'],
        [[REDIRECT, 'http://evil.example/', 'https://a@b.example/'], [REDIRECT], 'native'],
        [['https://a.example/', 'http://a.example/'], ['https://a.example/'], 'web'],
        [['https://localhost/', REDIRECT], [REDIRECT], 'native'],
      ]
      for (const [redirect_uris, kept, application_type] of cases) {
        const reply = await registration({ redirect_uris, application_type: 'web', logo_uri: '' }, '192.0.2.21')
        const body = (await reply.json()) as Record<string, unknown>
        assert.deepEqual([reply.status, body.redirect_uris, body.application_type], [201, kept, application_type])
        assert.equal('logo_uri' in body, false)
      }
    })

    it('sends codes to no other host than a registered one, however it is written', async () => {
      const schemes = [
        'java\tscript:alert(1)',
        ' javascript:alert(1)',
        'JAVASCRIPT:alert(1)',
        'vb\nscript:x',
        'Data:text/html,x',
      ]
      for (const uri of schemes) {
        const { status } = await registration({ redirect_uris: [REDIRECT, uri] }, '192.0.2.24')
        assert.equal(status, 400, JSON.stringify(uri))
      }
      const foreign = [
        'http://127.0.0.1@evil.example/',
        'http://127.0.0.1:80@evil.example/',
        'http://localhost.evil.example/',
        'http://127.0.0.1.evil.example/',
        'http://evil.example\\@127.0.0.1/',
        'http://evil.example#@127.0.0.1/',
        'http://localhost./',
        'http://[::ffff:7f00:1]/',
        'http://0.0.0.0/',
        'http://127.0.0.2/',
        'http://localhost\u3002evil.example/',
        '//evil.example/',
      ]
      const kept = await registration({ redirect_uris: [REDIRECT, ...foreign.slice(0, 9)] }, '192.0.2.24')
      assert.deepEqual(((await kept.json()) as { redirect_uris: string[] }).redirect_uris, [REDIRECT])
      const native = [
        'http://127.0.0.1/',
        'http://localhost/cb',
        'http://[::1]/',
        'com.example.app:/cb',
        'https://a.example/cb',
      ]
      const reply = await registration({ redirect_uris: native }, '192.0.2.24')
      const { client_id: id } = (await reply.json()) as { client_id: string }
      const locationOf = async (redirect_uri: string) => {
        const { status, headers } = await authorize({ client_id: id, redirect_uri })
        return status >= 300 && status < 400 ? String(headers.get('location')) : status
      }
      for (const uri of [
        'http://127.0.0.1:50001/',
        'http://localhost:1/cb',
        'http://[::1]:50001/',
        'com.example.app:/cb',
      ])
        assert.ok(String(await locationOf(uri)).startsWith(`${app.base}/oauth/consent?`), uri)
      const odd = [
        ...foreign,
        'http://127.0.0.1:50001/x',
        'http://127.0.0.1:50001/?x',
        'http://127.0.0.1:50001/#x',
        'http://u@127.0.0.1:50001/',
        'http://127\u30020\u30020\u30021:50001/',
        'http://2130706433:50001/',
        'HTTP://127.0.0.1:50001/',
        'https://127.0.0.1:50001/',
        'http://localhost:50001/',
        'https://a.example:444/cb',
        'https://a.example/cb/',
        'https://A.EXAMPLE/cb',
        'COM.EXAMPLE.APP:/cb',
        'com.example.app:/cb?x',
        'http://127.0.0.1:50001\\@evil.example/',
        'http://127.0.0.1:50001/%2e%2e/',
        'http://127.0.0.1:50001/ ',
        '\thttp://127.0.0.1:50001/',
      ]
      for (const uri of odd) assert.equal(await locationOf(uri), 400, JSON.stringify(uri))
    })

    it('is counted by address', async () => {
      const many = []
      for (let index = 0; index < 65; index++)
        many.push((await registration({ redirect_uris: [REDIRECT] }, '192.0.2.22')).status)
      assert.deepEqual(many, [...Array(60).fill(201), ...Array(5).fill(429)])
      const refused = await registration({ redirect_uris: [REDIRECT] }, '192.0.2.22')
      assert.ok(Number(refused.headers.get('retry-after')) > 0)
      assert.equal(((await refused.json()) as { error: string }).error, 'temporarily_unavailable')
      assert.equal((await registration({ redirect_uris: [REDIRECT] }, '192.0.2.23')).status, 201)
    })
  })

  describe('a flood of registrations from many addresses', () => {
    const unused = async () =>
      Number(
        ((await app.pool.one(rawQuery('select count(*) from oauth_clients where last_used_at is null'))) as any).count,
      )
    /** Concurrent registrations, each from a different address. */
    const flood = (network: string, count: number) =>
      Array.from({ length: count }, (_value, index) =>
        registration({ redirect_uris: [REDIRECT] }, `${network}.${index >> 8}.${index & 255}`),
      )

    it('stores clients up to the limit', async () => {
      assert.equal(CAPACITY.unusedClients, 2000)
      const room = 30
      const bound = (await unused()) + room
      CAPACITY.unusedClients = bound
      try {
        const replies = await Promise.all(flood('198.18', 100))
        const statuses = replies.map(({ status }) => status)
        assert.equal(statuses.filter(status => status === 201).length, room)
        const refused = replies.filter(({ status }) => status === 429)
        assert.equal(refused.length, 100 - room)
        assert.ok(Number(refused[0].headers.get('retry-after')) > 0)
        assert.equal(((await refused[0].json()) as { error: string }).error, 'temporarily_unavailable')
        assert.equal(await unused(), bound)
        // A client in use counts no more.
        const made = (await replies.find(({ status }) => status === 201)?.json()) as { client_id: string }
        const flow = { client_id: made.client_id, redirect_uri: REDIRECT, user, consent: consent() }
        await tokensOf(app.base, flow)
        assert.equal((await registration({ redirect_uris: [REDIRECT] }, '198.18.9.9')).status, 201)
      } finally {
        CAPACITY.unusedClients = 2000
      }
    })

    it('serializes registrations across processes', async () => {
      const { pool } = app.home
      CAPACITY.unusedClients = (await unused()) + 1
      try {
        let reply: Promise<Response> | undefined
        await pool.transaction(async tx => {
          // As another process that stores the last one.
          await tx.query(rawQuery(`select pg_advisory_xact_lock(hashtext('muster oauth clients'))`))
          await tx.query(
            rawQuery(`insert into oauth_clients (id, kind, metadata) values ('oac_x', 'registered', '{}')`),
          )
          reply = registration({ redirect_uris: [REDIRECT] }, '198.18.10.1')
          const waiting = `select 1 from pg_locks where locktype = 'advisory' and not granted and database =
            (select oid from pg_database where datname = current_database())`
          await eventually(async () => (await tx.any(rawQuery(waiting))).length === 1)
        })
        assert.equal((await reply)?.status, 429)
      } finally {
        CAPACITY.unusedClients = 2000
      }
    })

    it('uses at most two connections and does not delay signed-in callers', async () => {
      const { pool } = app.home
      const blocked = async () =>
        Number(
          (
            (await pool.one(
              rawQuery(
                `select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%oauth_limits%' and datname = current_database()`,
              ),
            )) as any
          ).count,
        )
      const [locked, done] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      const lock = pool.transaction(async tx => {
        await tx.query(rawQuery('lock table oauth_limits in exclusive mode'))
        locked.resolve()
        await done.promise
      })
      await locked.promise
      const replies = flood('198.19', 100)
      try {
        await eventually(async () => (await blocked()) === 2)
        for (let count = 0; count < 30; count++) assert.equal((await user.get('/actors')).status, 200)
        assert.equal(await blocked(), 2)
      } finally {
        done.resolve()
        await lock
      }
      assert.ok((await Promise.all(replies)).every(({ status }) => status === 201))
    })
  })

  describe('a flood', () => {
    it('counts authorization requests and failed token requests of an address', async () => {
      const asked = []
      for (let index = 0; index < 62; index++) asked.push((await authorize({ client_id: 'x' }, '192.0.2.30')).status)
      assert.deepEqual(asked.slice(58), [400, 400, 429, 429])
      assert.equal((await authorize({}, '192.0.2.31')).status, 303)

      const address = { 'x-test-address': '192.0.2.32' }
      const fail = async () =>
        (
          await postForm(
            `${app.base}/oauth/token`,
            { grant_type: 'refresh_token', client_id, refresh_token: 'x' },
            address,
          )
        ).status
      const failed = []
      for (let index = 0; index < 62; index++) failed.push(await fail())
      assert.deepEqual([failed[0], failed.at(-1)], [400, 429])
    })

    it('prevents guessing the code of a device', async () => {
      const started = await postForm(
        `${app.base}/oauth/device_authorization`,
        { client_id: 'muster-cli' },
        { 'x-test-address': '192.0.2.40' },
      )
      const enter = async (browser: Browser, user_code: string) => {
        const page = await (await browser.send(`${app.base}/oauth/device`)).text()
        const xsrf = /name="xsrf" value="([^"]+)"/.exec(page)?.[1] as string
        const response = await browser.send(`${app.base}/oauth/device`, {
          method: 'POST',
          body: new URLSearchParams({ xsrf, user_code }),
        })
        return response.status
      }
      const one = new Browser('192.0.2.41')
      const guesses = []
      for (let index = 0; index < 6; index++) guesses.push(await enter(one, 'BBBB-BBBB'))
      assert.deepEqual(guesses, [200, 200, 200, 200, 200, 429])
      for (let index = 0; index < 5; index++) await enter(new Browser('192.0.2.41'), 'BBBB-BBBB')
      assert.equal(await enter(new Browser('192.0.2.41'), started.body.user_code), 429)
      assert.equal(await enter(new Browser('192.0.2.42'), started.body.user_code), 200)
      await app.pool.query(
        rawQuery(`update oauth_limits set started_at = started_at - interval '601 seconds' where kind = 'user_code'`),
      )
      assert.equal(await enter(new Browser('192.0.2.41'), started.body.user_code), 200, 'the window is over')
    })

    it('counts concurrent guesses like sequential ones', async () => {
      const browser = new Browser('192.0.2.43')
      const page = await (await browser.send(`${app.base}/oauth/device`)).text()
      const xsrf = /name="xsrf" value="([^"]+)"/.exec(page)?.[1] as string
      const guess = async () => {
        const body = new URLSearchParams({ xsrf, user_code: 'BBBB-BBBB' })
        return (await browser.send(`${app.base}/oauth/device`, { method: 'POST', body })).status
      }
      const answers = await Promise.all(Array.from({ length: 40 }, guess))
      assert.ok(answers.filter(status => status === 200).length <= 5, answers.join())
    })

    it('leads a browser without a session to the code form', async () => {
      for (const [path, method] of [
        ['/oauth/device', 'POST'],
        ['/oauth/device/x', 'GET'],
      ]) {
        const response = await fetch(`${app.base}${path}`, { method, redirect: 'manual' })
        assert.equal(response.status, 303, path)
        assert.equal(response.headers.get('location'), `${app.base}/oauth/device`)
      }
    })
  })

  describe('the sweep', () => {
    it('deletes expired rows, and grants a month after their end', async () => {
      const { pool } = app
      const count = async (table: string) =>
        Number(((await pool.one(rawQuery(`select count(*) from ${table}`))) as { count: string }).count)
      await pool.query(rawQuery(`update oauth_objects set expires_at = now() - interval '1 second'`))
      await pool.query(rawQuery(`update oauth_limits set started_at = now() - interval '2 hours'`))
      await pool.query(
        rawQuery(`update oauth_clients set created_at = now() - interval '2 days' where last_used_at is null`),
      )
      const { data: grants } = (await user.get('/oauth/grants')).body
      assert.ok(grants.length > 0)
      for (const { id } of grants) assert.equal((await user.delete(`/oauth/grants/${id}`)).status, 204)
      await pool.query(rawQuery(`update oauth_grants set expires_at = expires_at - interval '31 days'`))
      const [sweep] = oauthModule.sweeps ?? []
      assert.ok((await sweep.run(app.services, new AbortController().signal)) > 100)
      assert.deepEqual(await Promise.all(['oauth_objects', 'oauth_limits', 'oauth_grants'].map(count)), [0, 0, 0])
      assert.equal(await count('oauth_clients'), 2, 'the clients that a user consented to')
    })
  })
})
