import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { IncomingMessage } from 'node:http'
import { rawQuery } from '#core/db/sql.ts'
import { type Client, eventually, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { clients, MODERN, wire } from './support.ts'

const HELLO = { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'test', version: '1' } }

/** How /mcp is spoken to: eras, credentials, and what the protocol itself refuses. */
describe('the transport of /mcp', () => {
  const app = forSuite(() =>
    startApp({
      env: { BASE_URL: 'https://muster.example', CORS_ALLOWED_ORIGINS: 'https://console.example' },
    }),
  )
  const project = forSuite(() => app.project())
  let send: ReturnType<typeof wire>
  before(async () => {
    send = wire(app.url, project.key.token)
  })

  const tokenOf = (client: Client) => client.token as string

  for (const [name, connect] of Object.entries(clients))
    it(`serves ${name}`, async () => {
      const client = await connect(app.url, tokenOf(project.key))
      const { tools } = await client.listTools()
      assert.deepEqual(
        tools.map(({ name }: { name: string }) => name),
        ['call-tool', 'describe-tools', 'get-doc-page', 'get-docs', 'search-tools'],
      )
      assert.match(client.getInstructions(), /search-tools/)
      const made = await client.callTool({ name: 'create-actor', arguments: { name: 'Ada' } })
      assert.equal(made.structuredContent.name, 'Ada')
      assert.equal(JSON.parse(made.content[0].text).id, made.structuredContent.id)
      const read = await client.callTool({ name: 'get-actor', arguments: { actor_id: made.structuredContent.id } })
      assert.deepEqual(read.structuredContent, (await project.key.get(`/actors/${made.structuredContent.id}`)).body)
      const gone = await client.callTool({ name: 'delete-actor', arguments: { actor_id: made.structuredContent.id } })
      assert.deepEqual(gone.structuredContent, { deleted: true })
      await client.close()
    })

  it('declares its capabilities, in both protocol versions', async () => {
    const discovered = (await send('server/discover')).body.result
    assert.deepEqual(discovered.supportedVersions, [MODERN])
    assert.deepEqual(discovered.capabilities, {
      tools: {},
      resources: {},
      extensions: { 'io.modelcontextprotocol/tasks': {} },
    })
    assert.equal(discovered.ttlMs, 300_000)
    assert.equal(discovered.cacheScope, 'public')
    assert.equal(discovered._meta['io.modelcontextprotocol/serverInfo'].name, 'platform')
    const hello = (version: string) => ({ ...HELLO, protocolVersion: version })
    const old = (await send('initialize', hello('2025-06-18'), { revision: null })).body.result
    assert.equal(old.protocolVersion, '2025-06-18')
    assert.deepEqual(old.capabilities, { tools: {}, resources: {} })
    assert.equal(
      (await send('initialize', hello('2019-01-01'), { revision: null })).body.result.protocolVersion,
      '2025-11-25',
    )
    assert.deepEqual((await send('ping', {}, { revision: null })).body.result, {})
    for (const [params, field] of [
      [{ ...hello('2025-06-18'), protocolVersion: 1 }, 'protocolVersion'],
      [{}, 'capabilities'],
      [{ ...hello('2025-06-18'), capabilities: 1 }, 'capabilities'],
      [{ ...hello('2025-06-18'), clientInfo: { name: 'x' } }, 'clientInfo.version'],
    ] as const) {
      const { error } = (await send('initialize', params, { revision: null })).body
      assert.deepEqual([error.code, error.message.split(' must')[0]], [-32602, `params of initialize: params.${field}`])
    }
  })

  it('negotiates the version by the body of initialize, whatever the header says', async () => {
    const { protocolVersion: _, ...hello } = HELLO
    for (const revision of [null, '2025-03-26', '2025-11-25', MODERN, '2099-01-01'])
      for (const [asked, negotiated] of [
        ['2025-06-18', '2025-06-18'],
        ['2099-01-01', '2025-11-25'],
        [undefined, '2025-03-26'],
      ]) {
        const headers: Record<string, string> = revision ? { 'mcp-protocol-version': revision } : {}
        const params = { ...hello, ...(asked && { protocolVersion: asked }) }
        const { status, body } = await send('initialize', params, { revision: null, headers })
        assert.deepEqual([status, body.result?.protocolVersion], [200, negotiated], `${revision} ${asked}`)
      }
  })

  it('answers batches of the first revision, message by message', async () => {
    const ping = (id: number) => ({ jsonrpc: '2.0', id, method: 'ping' })
    const notice = { jsonrpc: '2.0', method: 'notifications/initialized' }
    const call = (id: number, args: object) => ({
      ...ping(id),
      method: 'tools/call',
      params: { name: 'create-actor', arguments: args },
    })
    const initialize = { ...ping(9), method: 'initialize', params: HELLO }
    for (const headers of [{}, { 'mcp-protocol-version': '2025-03-26' }] as Record<string, string>[]) {
      const messages = [ping(1), notice, call(2, { name: 'Ada' }), call(3, {}), { id: 4 }, [ping(5)], initialize, null]
      const { status, body } = await project.key.post('//mcp', messages, headers)
      assert.equal(status, 200)
      assert.deepEqual(
        body.map(({ id, error }: any) => [id, error?.code]),
        [
          [1, undefined],
          [2, undefined],
          [3, undefined],
          [4, -32600],
          [null, -32600],
          [9, -32600],
          [null, -32600],
        ],
      )
      assert.equal(body[1].result.structuredContent.name, 'Ada')
      assert.equal(body[2].result.isError, true)
      assert.equal(body[3].error.data.platform.code, 'VALIDATION_FAILED')
      assert.equal((await project.key.post('//mcp', [notice, notice], headers)).status, 202)
    }
    for (const version of ['2025-06-18', '2025-11-25', MODERN]) {
      const refused = await project.key.post('//mcp', [ping(1)], { 'mcp-protocol-version': version })
      assert.deepEqual([refused.status, refused.body.error.meta.jsonrpc_code], [400, -32600], version)
    }
    const many = Array.from({ length: 51 }, (_, id) => ping(id))
    assert.equal((await project.key.post('//mcp', many)).status, 400)
  })

  it('sends callers without a credential to the sign-in for every request', async () => {
    const challenge =
      'Bearer resource_metadata="https://muster.example/.well-known/oauth-protected-resource/mcp", scope="mcp:access", DPoP algs="ES256 EdDSA Ed25519 PS256 RS256"'
    for (const token of [null, 'sk_wrong', 'a.b.c'])
      for (const [method, revision] of [
        ['initialize', null],
        ['server/discover', MODERN],
        ['tools/list', MODERN],
      ] as const) {
        const { status, headers, body } = await wire(app.url, token)(method, {}, { revision })
        assert.equal(status, 401)
        assert.equal(body.error.code, 'UNAUTHORIZED')
        assert.equal(headers.get('www-authenticate'), challenge)
      }
    const get = await app.anonymous.get('//mcp')
    assert.equal(get.status, 401)
    assert.equal(get.headers.get('www-authenticate'), challenge)
  })

  it('accepts only POST', async () => {
    for (const method of ['get', 'delete'] as const) {
      const { status, body, headers } = await project.key[method]('//mcp')
      assert.equal(status, 405)
      assert.equal(body.error.code, 'REQUEST_REJECTED')
      assert.equal(headers.get('allow'), 'POST')
    }
  })

  it('refuses headers that do not match the body', async () => {
    const call = { name: 'get-docs', arguments: {} }
    for (const headers of [
      { 'mcp-name': 'get-doc-page' },
      { 'mcp-name': '=?base64?bm90IHRoaXM=?=' },
      { 'mcp-method': 'tools/list' },
      { 'mcp-method': '' },
      { 'mcp-protocol-version': '2025-11-25' },
    ] as Record<string, string>[]) {
      const { status, body } = await send('tools/call', call, { headers })
      assert.equal(status, 400, JSON.stringify(headers))
      assert.equal(body.error.code, -32020)
      assert.equal(body.error.data.platform.code, 'VALIDATION_FAILED')
    }
    const encoded = `=?base64?${Buffer.from('get-docs').toString('base64')}?=`
    assert.equal((await send('tools/call', call, { headers: { 'mcp-name': encoded } })).status, 200)
  })

  it('refuses unknown revisions, methods and parameters', async () => {
    const future = await send(
      'tools/list',
      {},
      {
        headers: { 'mcp-protocol-version': '2027-01-01' },
        meta: { 'io.modelcontextprotocol/protocolVersion': '2027-01-01' },
      },
    )
    assert.equal(future.status, 400)
    assert.equal(future.body.error.code, -32022)
    assert.deepEqual(future.body.error.data.supported, [MODERN])
    const past = await send('tools/list', {}, { revision: '2019-01-01' })
    assert.equal(past.status, 400)
    assert.equal(past.body.error.code, 'VALIDATION_FAILED')
    for (const method of ['nope/x', 'prompts/list', 'completion/complete', 'tasks/list', 'resources/subscribe']) {
      const unknown = await send(method)
      assert.equal(unknown.status, 404, method)
      assert.equal(unknown.body.error.code, -32601)
      const old = await send(method, {}, { revision: '2025-11-25' })
      assert.equal(old.status, 200, method)
      assert.equal(old.body.error.code, -32601)
    }
    for (const revision of [MODERN, '2025-11-25']) {
      const params = { name: 'no-such-tool', arguments: {} }
      assert.equal((await send('tools/call', params, { revision })).body.error.code, -32602)
      assert.equal(
        (await send('tools/call', { name: 'get-docs', arguments: [] }, { revision })).body.error.code,
        -32602,
      )
      for (const cursor of ['x', 7, Buffer.from('["0.0.0","a"]').toString('base64url')])
        assert.equal((await send('tools/list', { cursor }, { revision })).body.error.code, -32602)
    }
  })

  it('returns platform errors for bodies that are not messages', async () => {
    const post = (body: string) => project.key.post('//mcp', body)
    for (const [text, code] of [
      ['{', -32700],
      ['[]', -32600],
      ['{"id":1}', -32600],
      ['7', -32600],
    ] as const) {
      const { status, body } = await post(text)
      assert.equal(status, 400, text)
      assert.equal(body.error.code, 'VALIDATION_FAILED')
      assert.equal(body.error.meta.jsonrpc_code, code, text)
    }
    const notice = await post('{"jsonrpc":"2.0","method":"notifications/initialized"}')
    assert.equal(notice.status, 202)
  })

  it('returns JSON to a client that accepts no media type or only JSON', async () => {
    for (const accept of ['application/json', '*/*', 'text/html', ''])
      for (const revision of [MODERN, '2025-11-25']) {
        const { status, headers } = await send('tools/list', {}, { revision, headers: { accept } })
        assert.equal(status, 200)
        assert.match(headers.get('content-type') as string, /^application\/json/)
      }
  })

  it('refuses pages of other origins, but not of allowed ones', async () => {
    const refused = await send('tools/list', {}, { headers: { origin: 'https://evil.example' } })
    assert.equal(refused.status, 403)
    assert.equal(refused.body.error.code, 'FORBIDDEN')
    assert.equal((await send('tools/list', {}, { headers: { origin: 'https://console.example' } })).status, 200)
  })

  it('counts each request of a bound key once, and refuses it over HTTP', async () => {
    const { id, key, keyId } = await app.project()
    const quota = await app.admin.post('/quotas', {
      project_id: id,
      scope: 'api_key',
      scope_ref: keyId,
      metric: 'requests',
      window: 'rolling_24h',
      limit: 3,
    })
    assert.equal(quota.status, 201, JSON.stringify(quota.body))
    const ask = wire(app.url, key.token)
    for (const method of ['tools/list', 'server/discover']) assert.equal((await ask(method)).status, 200)
    assert.equal((await ask('tools/call', { name: 'list-actors', arguments: {} })).body.result.isError, undefined)
    const fourth = await ask('tools/call', { name: 'list-actors', arguments: {} })
    assert.equal(fourth.status, 429)
    assert.equal(fourth.body.error.code, 'QUOTA_EXCEEDED')
    const usage = await app.admin.get(`/quotas/${quota.body.id}/usage`)
    assert.equal(usage.body.observed_value, 4)
  })

  it('returns 404 when it is disabled', async () => {
    const off = await startApp({ env: { MCP_ENABLED: 'false' }, databaseUrl: app.databaseUrl })
    try {
      assert.equal((await wire(off.url, project.key.token)('tools/list')).status, 404)
    } finally {
      await off.close()
    }
  })

  it('counts no stream of a client that disconnected before it started', async () => {
    const { pool } = app.services
    const quota = { project_id: project.id, scope: 'project', metric: 'requests', window: 'rolling_1h', limit: 1e6 }
    assert.equal((await app.admin.post('/quotas', quota)).status, 201)
    const requests: IncomingMessage[] = []
    const arrive = (message: unknown) => {
      const { request } = message as { request: IncomingMessage }
      if (request.url === '/mcp') requests.push(request)
    }
    subscribe('http.server.request.start', arrive)
    const leaving = new AbortController()
    const lines = () => app.logs.filter(line => line.includes('"path":"/mcp"')).length
    const before = lines()
    try {
      await pool.transaction(async tx => {
        await tx.query(rawQuery('lock table quota_counters in exclusive mode'))
        for (let count = 0; count < 20; count++)
          void send('subscriptions/listen', { notifications: {} }, { signal: leaving.signal }).catch(() => null)
        await eventually(() => requests.length === 20)
        leaving.abort()
        await eventually(() => requests.every(({ socket }) => socket.destroyed))
      })
    } finally {
      unsubscribe('http.server.request.start', arrive)
    }
    await eventually(() => lines() - before === 20)
    const { body } = await send('subscriptions/listen', { notifications: {} })
    assert.match(body as string, /notifications\/subscriptions\/acknowledged/)
  })
})
