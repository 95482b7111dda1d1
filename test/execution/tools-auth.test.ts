import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { decodeProtectedHeader, importSPKI, jwtVerify } from 'jose'
import { type Client, startApp, type TestApp } from '../support/app.ts'
import { KEY_ID, SECRET_KEY, sha256, signatures } from '../support/aws-signature.ts'
import { call, json, made, refused, secretOf, startTarget, type Target } from './tool-target.ts'

describe('computed credentials of tools', () => {
  let app: TestApp
  let target: Target
  let tokens: Target
  let elsewhere: Target
  let key: Client

  before(async () => {
    target = await startTarget()
    tokens = await startTarget()
    elsewhere = await startTarget()
    const hosts = [target, tokens, elsewhere].map(({ port }) => `127.0.0.1:${port}`)
    app = await startApp({ env: { EGRESS_ALLOW_HOSTS: hosts.join(',') } })
    ;({ key } = await app.project())
  })
  beforeEach(() => {
    target.answer = json({ ok: true })
    tokens.requests.length = 0
    target.requests.length = 0
  })
  after(async () => {
    await app?.close()
    for (const server of [target, tokens, elsewhere]) await server?.close()
  })

  const tool = (auth: object, execute: object = {}) =>
    made(key, { execute: { url: `${target.url}/x`, ...execute, auth } })
  const called = async (tool: { id: string }, input?: object) => {
    const reply = await call(key, tool.id, input)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }

  describe('aws_sigv4', () => {
    const auth = async (fields: object = {}) => ({
      type: 'aws_sigv4',
      region: 'eu-central-1',
      service: 'execute-api',
      access_key_id: KEY_ID,
      secret_access_key: `{{secret:${await secretOf(key, SECRET_KEY)}}}`,
      ...fields,
    })
    const verified = (
      where: { region: string; service: string } = { region: 'eu-central-1', service: 'execute-api' },
    ) => {
      const { expected, signature, signedHeaders } = signatures(target.last(), where)
      assert.equal(signature, expected)
      return signedHeaders
    }

    it('signs host, content type, x-amz headers and the body, and nothing else', async () => {
      const headers = {
        'X-Plain': 'p',
        'X-Amz-Target': 'Service.Action',
        Authorization: 'replaced',
        'Content-Type': 'application/x-amz-json-1.1',
      }
      await called(await tool(await auth(), { headers }), { a: 'ü', b: [1] })
      assert.equal(verified(), 'content-type;host;x-amz-date;x-amz-target')
      assert.deepEqual([target.last().headers['x-plain'], target.last().body], ['p', '{"a":"ü","b":[1]}'])
      assert.equal(target.last().headers['x-amz-content-sha256'], undefined)
    })

    it('signs addresses with everything in them', async () => {
      const execute = { method: 'GET', url: `${target.url}/a b/{id}?z=1&a=x*y`.replace(' ', '%20') }
      await called(await tool(await auth(), execute), { id: "ü/!'()*", q: 'a b+c&d', a: '2' })
      assert.equal(verified(), 'host;x-amz-date')
    })

    it('encodes paths of s3 once, and says what the body is', async () => {
      const where = { region: 'us-east-1', service: 's3' }
      await called(await tool(await auth(where), { method: 'PUT', url: `${target.url}/bucket/{key}` }), {
        key: 'a b+ü',
        c: 1,
      })
      assert.equal(verified(where), 'content-type;host;x-amz-content-sha256;x-amz-date')
      assert.equal(target.last().headers['x-amz-content-sha256'], sha256('{"c":1}'))
      await called(await tool(await auth(where), { method: 'GET' }))
      assert.equal(verified(where), 'host;x-amz-content-sha256;x-amz-date')
    })

    it('sends a session token', async () => {
      await called(await tool(await auth({ session_token: `{{secret:${await secretOf(key, 'session token')}}}` })))
      assert.equal(target.last().headers['x-amz-security-token'], 'session token')
      assert.equal(verified(), 'content-type;host;x-amz-date;x-amz-security-token')
    })

    it('drops the computed header when a redirect leads to another origin', async () => {
      target.answer = (_request, response) => response.writeHead(307, { location: `${elsewhere.url}/` }).end()
      await called(await tool(await auth({ session_token: 'a session token' })))
      const { headers } = elsewhere.last()
      assert.deepEqual(
        Object.keys(headers).filter(name => name === 'authorization' || name.startsWith('x-amz-')),
        [],
      )
    })

    it('fails without revealing the key when it cannot be used', async () => {
      const access_key_id = `{{secret:${await secretOf(key, 'broken\nkey id')}}}`
      const error = refused(await call(key, (await tool(await auth({ access_key_id }))).id), 502, 'TOOL_AUTH_FAILED')
      assert.ok(!JSON.stringify(error).includes('key id'))
      assert.equal(target.requests.length, 0)
    })
  })

  describe('gcp_service_account', () => {
    const { publicKey, privateKey } = generateKeyPairSync('rsa', {
      modulusLength: 2048,
      publicKeyEncoding: { type: 'spki', format: 'pem' },
      privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
    })
    let count = 0
    const auth = async (file: object = {}, scopes = ['https://a', 'https://b']) => {
      const content = {
        client_email: `robot-${++count}@x.iam`,
        private_key: privateKey,
        private_key_id: 'kid-1',
        token_uri: `${tokens.url}/token`,
        ...file,
      }
      const secret = await secretOf(key, JSON.stringify(content))
      return { type: 'gcp_service_account', credentials: `{{secret:${secret}}}`, scopes }
    }
    const token = (access_token: unknown, more: object = { expires_in: 3600 }) => json({ access_token, ...more })

    it('exchanges a signed assertion for a token, once while that lasts', async () => {
      tokens.answer = token('ya29.first')
      const made = await tool(await auth(), { headers: { authorization: 'replaced' } })
      await Promise.all([called(made), called(made), called(made)])
      await called(made)
      assert.equal(target.last().headers.authorization, 'Bearer ya29.first')
      assert.equal(tokens.requests.length, 1)
      const { method, url, headers, body } = tokens.last()
      assert.deepEqual([method, url, headers['content-type']], ['POST', '/token', 'application/x-www-form-urlencoded'])
      const form = new URLSearchParams(body)
      assert.equal(form.get('grant_type'), 'urn:ietf:params:oauth:grant-type:jwt-bearer')
      const assertion = form.get('assertion') as string
      assert.deepEqual(decodeProtectedHeader(assertion), { alg: 'RS256', typ: 'JWT', kid: 'kid-1' })
      const { payload } = await jwtVerify(assertion, await importSPKI(publicKey, 'RS256'))
      assert.deepEqual(
        [payload.iss, payload.aud, payload.scope],
        [`robot-${count}@x.iam`, `${tokens.url}/token`, 'https://a https://b'],
      )
      assert.equal((payload.exp as number) - (payload.iat as number), 3600)
    })

    it('requests a new token a minute before it expires, and when the target refuses it', async () => {
      for (const more of [{ expires_in: 60 }, {}, { expires_in: 'soon' }]) {
        tokens.requests.length = 0
        tokens.answer = token('short', more)
        const made = await tool(await auth())
        await called(made)
        await called(made)
        assert.equal(tokens.requests.length, 2, JSON.stringify(more))
      }
      tokens.requests.length = 0
      tokens.answer = token('revoked')
      const made = await tool(await auth())
      target.answer = (_request, response) => response.writeHead(401).end()
      refused(await call(key, made.id), 502, 'TOOL_HTTP_ERROR')
      target.answer = json(1)
      await called(made)
      assert.equal(tokens.requests.length, 2)
    })

    it('caches tokens per project, scope and key', async () => {
      tokens.answer = token('t')
      const file = { client_email: 'same@x.iam' }
      await called(await tool(await auth(file)))
      await called(await tool(await auth(file)))
      assert.equal(tokens.requests.length, 1)
      await called(await tool(await auth(file, ['https://c'])))
      assert.equal(tokens.requests.length, 2)
      const other = (await app.project()).key
      const secret = await secretOf(
        other,
        JSON.stringify({ ...file, private_key: privateKey, token_uri: `${tokens.url}/token` }),
      )
      const foreign = await made(other, {
        execute: {
          url: target.url,
          auth: {
            type: 'gcp_service_account',
            credentials: `{{secret:${secret}}}`,
            scopes: ['https://a', 'https://b'],
          },
        },
      })
      assert.equal((await call(other, foreign.id)).status, 200)
      assert.equal(tokens.requests.length, 3)
    })

    it('fails with what the endpoint answered, without the key and the assertion', async () => {
      const made = await tool(await auth())
      const failing = async (answer: Target['answer']) => {
        tokens.answer = answer
        const error = refused(await call(key, made.id), 502, 'TOOL_AUTH_FAILED')
        assert.ok(!JSON.stringify(error).includes('PRIVATE'))
        return error.meta
      }
      assert.deepEqual(await failing(json({ error: 'invalid_grant' }, 400)), {
        upstream_status: 400,
        upstream_body: '{"error":"invalid_grant"}',
      })
      const echoed = await failing(({ body }, response) =>
        response.writeHead(500).end(new URLSearchParams(body).get('assertion')),
      )
      assert.equal(echoed.upstream_body, '***')
      assert.equal((await failing((_request, response) => response.end('no json'))).upstream_status, 200)
      assert.equal((await failing(json({ token: 'x' }))).upstream_status, 200)
      assert.equal((await failing(token('with\nbreak'))).upstream_status, 200)
      assert.deepEqual(await failing((_request, response) => response.destroy()), { reason: 'connect' })
      tokens.answer = (_request, response) => response.writeHead(307, { location: elsewhere.url }).end()
      assert.equal((await failing(tokens.answer)).upstream_status, 307)
      assert.equal(target.requests.length, 0)
    })

    it('fails for a key file that is none', async () => {
      for (const file of [{ private_key: 'no key' }, { client_email: 5 }, { token_uri: 5 }]) {
        const error = refused(await call(key, (await tool(await auth(file))).id), 502, 'TOOL_AUTH_FAILED')
        assert.equal(error.meta, undefined)
      }
      const credentials = `{{secret:${await secretOf(key, 'not json but secret')}}}`
      const made = await tool({ type: 'gcp_service_account', credentials, scopes: ['a'] })
      const error = refused(await call(key, made.id), 502, 'TOOL_AUTH_FAILED')
      assert.ok(!JSON.stringify(error).includes('but secret'))
      assert.ok(!app.logs.join('').includes('but secret'))
    })

    it('calls no endpoint that is not public', async () => {
      const made = await tool(await auth({ token_uri: 'http://169.254.169.254/computeMetadata?key=in+the+file' }))
      assert.deepEqual(refused(await call(key, made.id), 403, 'TOOL_EGRESS_BLOCKED').meta, {
        tool_url: 'http://169.254.169.254',
        tool_address: '169.254.169.254',
      })
    })

    it('does not wait for an endpoint longer than the tool takes', async () => {
      tokens.answer = () => {}
      const started = performance.now()
      const made = await tool(await auth(), { timeout_ms: 1000 })
      assert.deepEqual(refused(await call(key, made.id), 502, 'TOOL_AUTH_FAILED').meta, { reason: 'timeout' })
      assert.ok(performance.now() - started < 15_000)
    })
  })

  describe('oauth2_client_credentials', () => {
    it('gets a token by the grant, once while it lasts', async () => {
      tokens.answer = json({ access_token: 'at-1', token_type: 'bearer', expires_in: 300 })
      const secret = await secretOf(key, 'client secret & more')
      const made = await tool({
        type: 'oauth2_client_credentials',
        token_url: `${tokens.url}/oauth/token`,
        client_id: 'client',
        client_secret: `{{secret:${secret}}}`,
        scope: 'read write',
        audience: 'https://api',
      })
      await called(made)
      await called(made)
      assert.equal(tokens.requests.length, 1)
      assert.deepEqual(Object.fromEntries(new URLSearchParams(tokens.last().body)), {
        grant_type: 'client_credentials',
        client_id: 'client',
        client_secret: 'client secret & more',
        scope: 'read write',
        audience: 'https://api',
      })
      assert.equal(target.last().headers.authorization, 'Bearer at-1')
      await key.patch(`/secrets/${secret}`, { value: 'another client secret' })
      tokens.answer = ({ body }, response) => response.writeHead(401).end(body)
      const { meta } = refused(await call(key, made.id), 502, 'TOOL_AUTH_FAILED')
      assert.equal(meta.upstream_status, 401)
      assert.ok(!meta.upstream_body.includes('another'), meta.upstream_body)
    })
  })
})
