import assert from 'node:assert/strict'
import { request as httpRequest, type ServerResponse } from 'node:http'
import { callTool, openCall } from '#execution/tools/call.ts'
import { toolKind } from '#execution/tools/model.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { bomb } from '../support/bombs.ts'
import { forSuite } from '../support/suite.ts'
import { startMcpServer } from './mcp-target.ts'
import { call, json, made, refused, refusedAt, secretOf, startTarget, type TargetRequest } from './tool-target.ts'

const SECRET = 'a secret of many letters'

describe('mcp tools', () => {
  let app: TestApp
  const server = forSuite(startMcpServer)
  /** Servers that misbehave. */
  const target = forSuite(startTarget)
  const other = forSuite(startTarget)
  /** A tool that may not be called. */
  const hidden = forSuite(startTarget)
  let id: string
  let key: Client
  /** May call tools of the project, and nothing else. */
  let caller: Client

  before(async () => {
    const allowed = [server, target, other].map(({ port }) => `127.0.0.1:${port}`)
    app = await startApp({
      env: {
        EGRESS_ALLOW_HOSTS: allowed.join(','),
        TOOL_MAX_RESPONSE_BYTES: '200000',
        TOOL_CALL_TIMEOUT_MS: '3000',
      },
    })
    ;({ id, key } = await app.projectWith(['*']))
    const statement = [{ effect: 'Allow', action: ['tools:CallTool'], resource: [`srn:${id}:tool:*`] }]
    caller = await app.user(undefined, [{ statement }])
  })
  beforeEach(async () => {
    target.requests.length = 0
    other.requests.length = 0
    await settled()
  })
  after(async () => {
    await app?.close()
  })

  /** Every session is ended; forgets the requests. */
  const settled = () => eventually(async () => (await server.seen()).sessions === 0)
  const tool = (path = '/stateful', fields: object = {}, mcp: object = {}) =>
    made(key, { type: 'mcp', mcp: { url: `${server.url}${path}`, ...mcp }, ...fields })
  const raw = (fields: object = {}, mcp: object = {}) =>
    made(key, { type: 'mcp', mcp: { url: `${target.url}/mcp`, ...mcp }, ...fields })
  const calling = (id: string, action?: string, input?: object) => call(caller, id, input, action ? { action } : {})
  const called = async (id: string, action: string, input?: object) => {
    const reply = await calling(id, action, input)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }
  const failing = async (id: string, action = 'x') => refused(await calling(id, action), 502, 'TOOL_HTTP_ERROR')

  describe('definitions', () => {
    it('store their definition, and are drafts without a server', async () => {
      const secret = await secretOf(key, SECRET)
      const mcp = {
        url: `https://example.com/{{secret:${secret}}}`,
        headers: { 'X-B': '{{context:tok}}', 'X-A': `{{secret:${secret}}}` },
        auth: {
          type: 'oauth2_client_credentials',
          token_url: 'https://a.example/',
          client_id: 'c',
          client_secret: 's',
        },
      }
      const fields = { type: 'mcp', mcp, actions: ['b', 'a'], denied_actions: ['a'] }
      const tool = await made(key, fields)
      for (const [name, value] of Object.entries(fields))
        assert.equal(JSON.stringify(tool[name]), JSON.stringify(value), name)
      assert.deepEqual((await key.get('/tools?type=mcp&limit=1')).body.data, [tool])
      const patched = await key.patch(`/tools/${tool.id}`, {
        denied_actions: null,
        mcp: JSON.stringify({ url: mcp.url }),
      })
      assert.deepEqual([patched.body.denied_actions, patched.body.mcp], [null, { url: mcp.url }])
      refusedAt(await calling((await made(key, { type: 'mcp' })).id, 'x'), 'mcp')
    })

    it('are validated like definitions of http tools', async () => {
      const url = 'https://example.com/'
      const cases: [string, object][] = [
        ['mcp.url', {}],
        ['mcp.url', { url: 'ftp://example.com/' }],
        ['mcp.url', { url: 'https://user:pass@example.com/' }],
        ['mcp.url', { url: 'https://example.com/{name}' }],
        ['mcp.url', { url: 'https://example.com/${body.name}' }],
        ['mcp.url', { url: 'https://{{secret:sec_00000000000000000000000000}}.example.com/' }],
        ['mcp.headers.X A', { url, headers: { 'X A': '1' } }],
        ['mcp.headers.Host', { url, headers: { Host: '1' } }],
        ['mcp.headers.X-A', { url, headers: { 'X-A': 'a\r\nX-Injected: yes' } }],
        ['mcp.auth.type', { url, auth: { type: 'magic' } }],
        ['mcp.method', { url, method: 'GET' }],
      ]
      for (const [path, mcp] of cases) {
        refusedAt(await key.post('/tools', { name: 'x', type: 'mcp', mcp }), path)
        const pipeline = { steps: [{ id: 'a', tool: { name: 'x', type: 'mcp', mcp } }] }
        refusedAt(await key.post('/tools', { name: 'x', type: 'pipeline', pipeline }), `pipeline.steps[0].tool.${path}`)
      }
      const many = Array.from({ length: 501 }, (_, n) => `a${n}`)
      refusedAt(await key.post('/tools', { name: 'x', type: 'mcp', denied_actions: many }), 'denied_actions')
    })

    it('take context tokens in headers alone', async () => {
      const create = (mcp: object) => key.post('/tools', { name: 'x', type: 'mcp', mcp })
      const url = 'https://example.com/'
      const gcp = { type: 'gcp_service_account', credentials: '{{context:tok}}', scopes: ['a'] }
      for (const mcp of [
        { url: `${url}{{context:tok}}` },
        { url, headers: { '{{context:tok}}': '1' } },
        { url, auth: gcp },
      ])
        assert.deepEqual(refused(await create(mcp), 400, 'INVALID_TEMPLATE_TOKEN').meta, {
          tokens: ['{{context:tok}}'],
        })
      assert.equal((await create({ url, headers: { A: '{{context:tok}}' } })).status, 201)
    })

    it('name secrets of their project, with the right to use them', async () => {
      const foreign = await secretOf((await app.project()).key, SECRET)
      const naming = (secret: string) => ({
        type: 'mcp',
        mcp: { url: 'https://example.com/', headers: { A: `{{secret:${secret}}}` } },
      })
      const step = { steps: [{ id: 'a', tool: { name: 'x', ...naming(foreign) } }] }
      for (const fields of [naming(foreign), { type: 'pipeline', pipeline: step }])
        refused(await key.post('/tools', { name: 'x', ...fields }), 400, 'SECRET_NOT_FOUND')
      const own = await secretOf(key, SECRET)
      const kept = await made(key, naming(own))
      const crud = ['tools:CreateTool', 'tools:UpdateTool', 'tools:GetTool']
      const writer = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: crud, resource: [`srn:${id}:*:*`] }] },
      ])
      refused(await writer.post('/tools', { project_id: id, name: 'x', ...naming(own) }), 403, 'FORBIDDEN')
      const elsewhere = { mcp: { ...kept.mcp, url: 'https://evil.example.com/' } }
      refused(await writer.patch(`/tools/${kept.id}`, elsewhere), 403, 'FORBIDDEN')
      assert.equal((await writer.patch(`/tools/${kept.id}`, { denied_actions: ['x'] })).status, 200)
      const references = (await app.admin.get(`/secrets/${own}/references`)).body.data
      assert.deepEqual(references, [{ type: 'tool', id: kept.id, field: 'secret_ids' }])
    })

    it('are cloned without what holds secrets', async () => {
      const from = await app.project()
      const secret = await secretOf(from.key, SECRET)
      const mcp = { url: 'https://example.com/', headers: { A: `{{secret:${secret}}}`, B: 'b' } }
      await made(from.key, { name: 'one', type: 'mcp', mcp, denied_actions: ['x'] })
      await made(from.key, { name: 'two', type: 'mcp', mcp: { url: `https://example.com/{{secret:${secret}}}` } })
      const step = { id: 'a', tool: { name: 'x', type: 'mcp', mcp } }
      await made(from.key, { name: 'three', type: 'pipeline', pipeline: { steps: [step] } })
      const clone = await app.admin.post(`/projects/${from.id}/clone`, { name: 'copy', include: ['tools'] })
      assert.equal(clone.status, 201, JSON.stringify(clone.body))
      const copies = (await app.admin.get(`/tools?project_id=${clone.body.project.id}`)).body.data
      const of = (name: string) => copies.find((each: { name: string }) => each.name === name)
      assert.deepEqual([of('one').mcp, of('one').denied_actions], [{ url: mcp.url, headers: { B: 'b' } }, ['x']])
      assert.equal(of('two').mcp, null)
      assert.deepEqual(of('three').pipeline.steps[0].tool.mcp, of('one').mcp)
    })
  })

  for (const path of ['/stateful', '/json', '/stateless'])
    describe(`on ${path}`, () => {
      it('give the results of calls', async () => {
        const { id } = await tool(path)
        assert.deepEqual(await called(id, 'echo', { city: 'Köln', n: [1, null] }), { city: 'Köln', n: [1, null] })
        assert.equal(await called(id, 'say'), 'not { JSON')
        assert.deepEqual(await called(id, 'structured'), { degrees: 21, list: [1] })
        assert.deepEqual(await called(id, 'parts'), [
          { type: 'text', text: '1' },
          { type: 'image', data: 'aGk=', mimeType: 'image/png' },
        ])
        assert.deepEqual(await called(id, 'nothing'), [])
        assert.equal(await called(id, 'odd name!'), 'odd')
      })

      it('fail with what the server says', async () => {
        const { id } = await tool(path)
        const failed = await failing(id, 'fail')
        assert.deepEqual(failed.meta, {
          tool_status_code: 200,
          tool_response_body: 'cannot: ',
          tool_url: `${server.url}${path}`,
          tool_method: 'POST',
        })
        const { rpc_code, rpc_message, tool_status_code } = (await failing(id, 'throw')).meta
        assert.deepEqual([tool_status_code, rpc_code], [200, -32_050])
        assert.match(rpc_message, /unknown: /)
        assert.equal((await failing(id, 'unheard of')).meta.rpc_code, -32_602)
      })

      it('end a session that they began', async () => {
        const { id } = await tool(path)
        await called(id, 'say')
        await failing(id, 'throw')
        const methods: string[] = []
        await eventually(async () => {
          const { requests, sessions } = await server.seen()
          methods.push(...requests.map(({ method, body }) => body?.method ?? method))
          const ends = methods.filter(each => each === 'DELETE').length
          return sessions === 0 && ends === (path === '/stateless' ? 0 : 2)
        })
        assert.deepEqual(methods.slice(0, 3), ['initialize', 'notifications/initialized', 'tools/call'])
      })
    })

  it('say which session and which version they speak, to every request', async () => {
    const { id } = await tool()
    await called(id, 'say')
    const { requests } = await server.seen()
    const [first, ...rest] = requests.filter(({ method }) => method === 'POST')
    assert.equal(first.headers['mcp-session-id'], undefined)
    const session = rest[0].headers['mcp-session-id']
    assert.match(session, /^[0-9a-f-]{36}$/)
    for (const { headers } of rest)
      assert.deepEqual([headers['mcp-session-id'], headers['mcp-protocol-version']], [session, '2025-06-18'])
    for (const { headers } of [first, ...rest]) {
      assert.equal(headers.accept, 'application/json, text/event-stream')
      assert.equal(headers['content-type'], 'application/json')
    }
  })

  it('are sent presets over arguments, which must satisfy the schema', async () => {
    const parameters = { type: 'object', required: ['city'] }
    const { id } = await tool('/stateful', {
      parameters,
      preset_parameters: { unit: 'C' },
      output_mapping: { cat: [{ var: 'output.city' }, '/', { var: 'output.unit' }, '/', { var: 'input.unit' }] },
    })
    assert.equal(await called(id, 'echo', { city: 'Rome', unit: 'F' }), 'Rome/C/C')
    await settled()
    refusedAt(await calling(id, 'echo', { unit: 'F' }), 'input')
    assert.deepEqual((await server.seen()).requests, [])
  })

  it('offer actions that are allowed and not denied, and send the server no other call', async () => {
    const cases: [object, string[], (string | undefined)[]][] = [
      [{ denied_actions: ['say'] }, ['echo', 'structured'], ['say', undefined]],
      [{ actions: ['say'] }, ['say'], ['echo', 'SAY']],
      [{ actions: ['say', 'echo'], denied_actions: ['echo'] }, ['say'], ['echo']],
      [{ actions: [] }, [], ['say']],
      [{ preset_parameters: { action: 'say' } }, ['say'], ['echo']],
    ]
    for (const [fields, allowed, denied] of cases) {
      const { id } = await tool('/stateful', fields)
      for (const action of allowed) await called(id, action)
      await settled()
      for (const action of denied) refusedAt(await calling(id, action), 'action')
      const inStep = await made(key, {
        type: 'pipeline',
        pipeline: { steps: [{ id: 'a', tool_id: id, action: denied[0] }] },
      })
      const { step_id, cause } = refused(await calling(inStep.id), 422, 'PIPELINE_STEP_FAILED').meta
      assert.deepEqual([step_id, cause.code], ['a', 'VALIDATION_FAILED'])
      assert.deepEqual((await server.seen()).requests, [], JSON.stringify(fields))
    }
  })

  it('are called without an action that they pin, and do not send it', async () => {
    const { id } = await tool('/stateful', { preset_parameters: { action: 'echo', unit: 'C' } })
    assert.deepEqual((await calling(id, undefined, { city: 'Oslo' })).body, { city: 'Oslo', unit: 'C' })
    const free = await tool()
    assert.deepEqual(await called(free.id, 'echo', { action: 'an argument' }), { action: 'an argument' })
  })

  it('are steps of pipelines', async () => {
    const named = await tool()
    const inline = { name: 'x', type: 'mcp', mcp: { url: `${server.url}/stateless` }, denied_actions: ['say'] }
    const pipeline = {
      steps: [
        { id: 'first', tool_id: named.id, action: 'structured' },
        { id: 'second', tool: inline, action: 'echo', input: { city: { var: 'steps.first.degrees' } } },
      ],
    }
    assert.deepEqual((await calling((await made(key, { type: 'pipeline', pipeline })).id)).body, { city: 21 })
  })

  describe('list', () => {
    const actions = async (id: string, query = '?limit=100') => {
      const reply = await key.get(`/tools/${id}/actions${query}`)
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
      return reply.body
    }

    it('the current tools of their server, without presets and denied tools', async () => {
      const { id } = await tool('/stateful', {
        name: 'the weather',
        description: 'Of the tool',
        preset_parameters: { unit: 'C' },
        denied_actions: ['say', 'slow'],
      })
      const { data, total } = await actions(id)
      assert.equal(total, 8)
      assert.deepEqual(data[0], {
        name: 'echo',
        resolved_name: 'the_weather_echo',
        description: 'Says what it got',
        input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
      })
      assert.deepEqual(data.at(-1), {
        name: 'odd name!',
        resolved_name: 'the_weather_odd_name_',
        description: 'Of the tool',
        input_schema: { type: 'object', properties: {}, required: [] },
      })
      assert.ok(!data.some(({ name }: { name: string }) => name === 'say'))
    })

    it('up to 500 tools and 20 pages', async () => {
      const many = await tool('/many', { actions: null, denied_actions: ['tool_0'] })
      const last = await actions(many.id, '?limit=1&offset=498')
      assert.deepEqual([last.total, last.data[0].name], [499, 'tool_499'])
      const pages = await tool('/pages')
      assert.equal((await actions(pages.id)).total, 20)
    })

    it('and fail as calls do, for callers who may read the tool', async () => {
      target.answer = json({ message: 'broken' }, 500)
      const { id } = await raw()
      const { meta } = refused(await key.get(`/tools/${id}/actions`), 502, 'TOOL_HTTP_ERROR')
      assert.deepEqual([meta.tool_status_code, meta.tool_response_body], [500, '{"message":"broken"}'])
      refused(await caller.get(`/tools/${id}/actions`), 403, 'FORBIDDEN')
      refused(await (await app.project()).key.get(`/tools/${id}/actions`), 404, 'RESOURCE_NOT_FOUND')
      refusedAt(await key.get(`/tools/${(await made(key, { type: 'mcp' })).id}/actions`), 'mcp')
      target.answer = rpc(() => ({ tools: 'none' }))
      refused(await key.get(`/tools/${id}/actions`), 502, 'TOOL_HTTP_ERROR')
      target.answer = rpc(() => ({ tools: [{ name: 'a', inputSchema: 7 }, { name: '' }, null, { name: 'a' }] }))
      assert.deepEqual((await actions(id)).data, [
        { name: 'a', resolved_name: 'tool_a', description: null, input_schema: { type: 'object' } },
      ])
    })

    it('without names that nothing could be recorded of', async () => {
      const { id } = await raw()
      const names = ['a\0b', 'half \ud800', 'n'.repeat(256), 'n'.repeat(255)]
      target.answer = rpc(() => ({ tools: names.map(name => ({ name, inputSchema: { type: 'object' } })) }))
      assert.deepEqual(
        (await actions(id)).data.map(({ name }: { name: string }) => name),
        ['n'.repeat(255)],
      )
    })
  })

  /** A server without sessions that answers requests with what `result` makes of them. */
  const rpc =
    (result: (message: any) => unknown) =>
    (request: TargetRequest, response: ServerResponse): void => {
      const message = JSON.parse(request.body)
      const error = { code: -32_601, message: 'Method not found' }
      const answer = message.method === 'initialize' ? { error } : { result: result(message) }
      json({ jsonrpc: '2.0', id: message.id, ...answer })(request, response)
    }
  /** The same, that answers requests after `initialize` by writing given bytes. */
  const behind =
    (write: (message: any, response: ServerResponse, request: TargetRequest) => unknown) =>
    (request: TargetRequest, response: ServerResponse): void => {
      const message = JSON.parse(request.body)
      if (message.method === 'initialize') response.writeHead(405).end()
      else write(message, response, request)
    }
  const result = (id: unknown, value: object = { structuredContent: { done: true } }) =>
    JSON.stringify({ jsonrpc: '2.0', id, result: value })
  const stream = (response: ServerResponse) =>
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })

  describe('call servers', () => {
    it('that refuse to begin a session, by status or by an error', async () => {
      const { id } = await raw()
      for (const answer of [
        behind((m, r) => r.end(result(m.id))),
        rpc(() => ({ structuredContent: { done: true } })),
      ]) {
        target.requests.length = 0
        target.answer = answer
        assert.deepEqual(await called(id, 'x'), { done: true })
        const methods = target.requests.map(({ body }) => JSON.parse(body).method)
        assert.deepEqual(methods, ['initialize', 'tools/call'])
        assert.equal(target.last().headers['mcp-protocol-version'], undefined)
      }
    })

    it('that are broken only once', async () => {
      const { id } = await raw()
      target.answer = json({}, 503)
      assert.equal((await failing(id)).meta.tool_status_code, 503)
      assert.equal(target.requests.length, 1)
    })

    it('whose events come in pieces, among others, with any line ends', async () => {
      const { id } = await raw()
      for (const end of ['\n', '\r\n', '\r']) {
        target.answer = behind(async ({ id }, response) => {
          const noise = [
            ': a comment',
            'event: message',
            'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}',
            '',
            'data: no JSON',
            '',
            `data: ${result(id + 1, { structuredContent: { wrong: 'id' } })}`,
            '',
            `data: {"jsonrpc":"2.0","id":${id},"method":"ping"}`,
            '',
            'id: 7',
            'data:{"jsonrpc":"2.0",',
            `data:"id":${id},"result":{"content":[{"type":"text","text":"{\\"ü\\":1}"}]}}`,
            '',
            '',
          ]
          const bytes = Buffer.from(noise.join(end))
          stream(response)
          for (let at = 0; at < bytes.length; at += 41) {
            response.write(bytes.subarray(at, at + 41))
            await new Promise(resolve => setTimeout(resolve, 2))
          }
          // It stays open: the answer has come.
        })
        const started = performance.now()
        assert.deepEqual(await called(id, 'x'), { ü: 1 })
        assert.ok(performance.now() - started < 2000)
      }
    })

    it('that answer lists of messages', async () => {
      target.answer = behind(({ id }, response) => response.end(`[{"method":"x"},${result(id)}]`))
      assert.deepEqual(await called((await raw()).id, 'x'), { done: true })
    })
  })

  describe('fail within bounds when the server', () => {
    const failsWith = async (reason: string | undefined, status: number | null, most = 4000) => {
      const { id } = await raw()
      const started = performance.now()
      const { meta, message } = await failing(id)
      assert.deepEqual([meta.reason, meta.tool_status_code], [reason, status], JSON.stringify(meta).slice(0, 500))
      assert.ok(performance.now() - started < most)
      return { ...meta, message }
    }

    it('streams events without end', async () => {
      let open = 0
      target.answer = behind((_message, response) => {
        open++
        stream(response)
        const event = `data: ${JSON.stringify({ jsonrpc: '2.0', method: 'notifications/message', params: 'x'.repeat(900) })}\n\n`
        const timer = setInterval(() => response.write(event.repeat(20)), 1)
        response.on('close', () => {
          clearInterval(timer)
          open--
        })
      })
      await failsWith('response_too_large', null)
      await eventually(() => open === 0)
    })

    it('streams more messages than the limit', async () => {
      const [small, enough] = ['data: {}\n\n', 9_999]
      for (const [count, expected] of [
        [enough, 200],
        [enough + 2, 502],
      ]) {
        target.answer = behind(({ id }, response) =>
          stream(response).end(`${small.repeat(count)}data: ${result(id)}\n\n`),
        )
        const reply = await calling((await raw()).id, 'x')
        assert.equal(reply.status, expected)
        if (expected === 502) assert.equal(reply.body.error.meta.reason, 'response_too_large')
      }
    })

    it('streams one event without end, or keeps silent', async () => {
      target.answer = behind((_message, response) => {
        stream(response).write('data: ')
        const timer = setInterval(() => response.write('x'.repeat(10_000)), 1)
        response.on('close', () => clearInterval(timer))
      })
      await failsWith('response_too_large', null)
      target.answer = behind((_message, response) => stream(response).write(': hello\n\n'))
      await failsWith('timeout', null)
      target.answer = () => {}
      await failsWith('timeout', null)
    })

    it('answers with a body that unpacks to a gigabyte', async () => {
      for (const type of ['application/json', 'text/event-stream']) {
        target.answer = behind((_message, response) =>
          response.writeHead(200, { 'content-type': type, 'content-encoding': 'gzip' }).end(bomb('gzip, gzip')),
        )
        const before = process.memoryUsage().rss
        assert.match((await failsWith(undefined, 200)).message, /is compressed/)
        assert.equal(target.last().headers['accept-encoding'], 'identity')
        assert.ok(process.memoryUsage().rss - before < 100_000_000)
      }
      target.answer = behind((_message, response) =>
        response.writeHead(200, { 'content-type': 'application/json', 'content-encoding': 'gzip' }).end(bomb('gzip')),
      )
      await failsWith('response_too_large', null)
    })

    it('answers more values than are parsed, outside or in a text', async () => {
      const values = `[${'0,'.repeat(99_000)}0]`
      const deep = '['.repeat(70) + ']'.repeat(70)
      for (const text of [deep, JSON.stringify({ a: JSON.parse(deep) })]) {
        target.answer = rpc(() => ({ content: [{ type: 'text', text }] }))
        assert.match((await failing((await raw()).id)).message, /deeper than 64/)
      }
      target.answer = rpc(() => ({ content: [{ type: 'text', text: values }] }))
      assert.equal((await called((await raw()).id, 'x')).length, 99_001)
      for (const start of [(r: ServerResponse) => r.writeHead(200), stream])
        target.answer = behind((message, response) => {
          const text = result(message.id, { structuredContent: { deep: 0 } }).replace('0}', `${deep}}`)
          start(response).end(start === stream ? `data: ${text}\n\n` : text)
        })
      await failsWith('response_too_large', 200)
    })

    it('goes away in the middle', async () => {
      target.answer = behind((_message, response) => {
        stream(response).write('data: {"json')
        setTimeout(() => response.destroy(), 20)
      })
      await failsWith('connect', null)
      for (const path of ['/stateful', '/json', '/stateless'])
        assert.equal((await failing((await tool(path)).id, 'die')).meta.reason, 'connect')
    })

    it('ends without an answer, or answers something else', async () => {
      target.answer = behind((_message, response) => stream(response).end('data: {"jsonrpc":"2.0"}\n\n'))
      await failsWith(undefined, 200)
      target.answer = behind((_message, response) => response.writeHead(202).end())
      await failsWith(undefined, 202)
      target.answer = (_request, response) => response.writeHead(200, { 'content-type': 'text/html' }).end('<html>')
      assert.equal((await failsWith(undefined, 200)).tool_response_body, '<html>')
      target.answer = json({ jsonrpc: '2.0', id: null, error: { code: -32_000, message: 'No session' } }, 400)
      const meta = await failsWith(undefined, 400)
      assert.deepEqual([meta.rpc_code, meta.rpc_message], [-32_000, 'No session'])
    })

    it('gives a session id that is none', async () => {
      target.answer = (request, response) => {
        response.setHeader('mcp-session-id', 'two words')
        response.end(result(JSON.parse(request.body).id, { protocolVersion: '2025-06-18' }))
      }
      await failsWith(undefined, 200)
      assert.equal(target.requests.length, 1)
    })

    it('begins a session without an answer, which is ended', async () => {
      target.answer = (_request, response) => response.setHeader('mcp-session-id', 'session-2').end('{}')
      await failsWith(undefined, 200)
      await eventually(() => target.last().method === 'DELETE')
      assert.equal(target.last().headers['mcp-session-id'], 'session-2')
    })

    it('is slow', async () => {
      const { id } = await tool()
      const started = performance.now()
      assert.equal((await failing(id, 'slow')).meta.reason, 'timeout')
      assert.ok(performance.now() - started < 4000)
      await settled()
    })
  })

  it('disconnect from a server whose caller left', async () => {
    const { id } = await tool()
    const { port } = new URL(app.url)
    const request = httpRequest({
      port,
      method: 'POST',
      path: `/api/v1/tools/${id}/call`,
      headers: { authorization: `Bearer ${caller.token}`, 'content-type': 'application/json' },
    })
    request.on('error', () => {})
    request.end('{"action":"slow"}')
    await eventually(async () => (await server.seen()).sessions === 1)
    await new Promise(resolve => setTimeout(resolve, 200))
    const gone = performance.now()
    request.destroy()
    await settled()
    assert.ok(performance.now() - gone < 1500)
  })

  it('share the limits of a call between its steps and pages', async () => {
    const { id } = await raw()
    const steps = Array.from({ length: 6 }, (_, n) => ({ id: `s${n}`, tool_id: id, action: 'x' }))
    target.answer = rpc(() => ({ content: [{ type: 'text', text: 'x'.repeat(180_000) }] }))
    const pipeline = await made(key, { type: 'pipeline', pipeline: { steps } })
    const { step_id, cause } = refused(await calling(pipeline.id), 422, 'PIPELINE_STEP_FAILED').meta
    assert.deepEqual([step_id, cause.meta.reason], ['s4', 'response_too_large'])
    target.answer = rpc(() => ({ tools: [{ name: 'a', description: 'x'.repeat(180_000) }], nextCursor: 'again' }))
    const { meta } = refused(await key.get(`/tools/${id}/actions`), 502, 'TOOL_HTTP_ERROR')
    assert.equal(meta.reason, 'response_too_large')
  })

  describe('send', () => {
    it('secrets in headers and addresses with every request, and show them nowhere', async () => {
      const secret = await secretOf(key, SECRET)
      const S = `{{secret:${secret}}}`
      const { id } = await tool('/stateful', {}, { headers: { Authorization: `Bearer ${S}` } })
      const { tool_response_body } = (await failing(id, 'fail')).meta
      assert.equal(tool_response_body, 'cannot: Bearer ***')
      assert.match((await failing(id, 'throw')).meta.rpc_message, /Bearer \*\*\*$/)
      await eventually(async () => {
        const { requests, sessions } = await server.seen()
        for (const { headers } of requests) assert.equal(headers.authorization, `Bearer ${SECRET}`)
        return sessions === 0
      })
      target.answer = json({}, 500)
      const inUrl = await raw({}, { url: `${target.url}/mcp?key=${S}` })
      const { meta } = await failing(inUrl.id)
      assert.deepEqual(
        [target.last().url, meta.tool_url],
        [`/mcp?key=${encodeURIComponent(SECRET)}`, `${target.url}/mcp?key=${S}`],
      )
      assert.ok(!app.logs.join('').includes(SECRET))
      await app.admin.delete(`/secrets/${secret}`)
      refused(await calling(id, 'say'), 400, 'SECRET_NOT_FOUND')
    })

    it('the tool context, and nothing when a key of it is missing', async () => {
      const { id } = await tool('/stateful', { context_keys: ['team'] }, { headers: { 'X-Tok': 'a {{context:tok}}' } })
      for (const reply of [await calling(id, 'say'), await key.get(`/tools/${id}/actions`)])
        assert.deepEqual(refused(reply, 400, 'MISSING_TOOL_CONTEXT_KEY').meta, { key: 'tok', header: 'X-Tok' })
      assert.deepEqual((await server.seen()).requests, [])
      const { services } = app
      const row = (await toolKind.find(services.pool, id)) ?? assert.fail()
      const context = { tok: 't', team: 'red', other: 'o' }
      const open = () =>
        openCall(services, {
          action: 'say',
          caller: async () => null,
          context,
          idempotencyKey: 'key-1',
          metering: null,
        })
      assert.equal(await callTool(services, row, open()), 'not { JSON')
      const { requests } = await server.seen()
      assert.ok(requests.length >= 3)
      for (const { headers, body } of requests) {
        assert.deepEqual(
          [headers['x-tok'], headers['x-svc-context-team'], headers['x-svc-context-other']],
          ['a t', 'red', undefined],
        )
        assert.equal(headers['idempotency-key'], body?.method === 'tools/call' ? 'key-1' : undefined)
      }
    })

    it('computed credentials, and get another when one is refused', async () => {
      let tokens = 0
      other.answer = (request, response) =>
        json({ access_token: `token-${++tokens}-of-many`, expires_in: 3600 })(request, response)
      target.answer = rpc(() => ({ structuredContent: { done: true } }))
      const auth = {
        type: 'oauth2_client_credentials',
        token_url: `${other.url}/token`,
        client_id: 'c',
        client_secret: 's',
      }
      const { id } = await raw({}, { auth })
      await called(id, 'x')
      await called(id, 'x')
      assert.equal(tokens, 1)
      for (const { headers } of target.requests) assert.equal(headers.authorization, 'Bearer token-1-of-many')
      target.answer = (request, response) => json({ got: request.headers.authorization }, 401)(request, response)
      assert.equal((await failing(id)).meta.tool_response_body, '{"got":"Bearer ***"}')
      other.answer = json({}, 500)
      refused(await calling(id, 'x'), 502, 'TOOL_AUTH_FAILED')
    })

    it('no credentials and no session to where a redirect leads', async () => {
      const secret = await secretOf(key, SECRET)
      const headers = { Authorization: 'Bearer plain', 'X-Key': `{{secret:${secret}}}`, 'X-Open': 'open' }
      const { id } = await raw({}, { headers })
      target.answer = (request, response) => {
        const { id, method } = JSON.parse(request.body || '{}')
        if (method === 'tools/call') return response.writeHead(307, { location: `${other.url}/away` }).end()
        response.setHeader('mcp-session-id', 'session-1')
        return json({ jsonrpc: '2.0', id, result: { protocolVersion: '2025-03-26' } })(request, response)
      }
      other.answer = (request, response) => response.end(result(JSON.parse(request.body).id))
      assert.deepEqual(await called(id, 'x', { a: 1 }), { done: true })
      const sent = target.requests.find(({ body }) => body.includes('tools/call'))?.headers ?? assert.fail()
      assert.deepEqual([sent['x-key'], sent['mcp-session-id']], [SECRET, 'session-1'])
      const got = other.last().headers
      assert.deepEqual(
        [got.authorization, got['x-key'], got['mcp-session-id'], got['x-open'], got['mcp-protocol-version']],
        [undefined, undefined, undefined, 'open', '2025-03-26'],
      )
      await eventually(() => target.last().method === 'DELETE')
      assert.equal(target.last().headers['mcp-session-id'], 'session-1')
    })
  })

  it('reach no private address, by themselves or by a redirect', async () => {
    for (const url of [`http://localhost:${hidden.port}/`, `${hidden.url}/`, 'http://169.254.169.254/']) {
      const { id } = await raw({}, { url })
      for (const reply of [await calling(id, 'x'), await key.get(`/tools/${id}/actions`)]) {
        const { meta } = refused(reply, 403, 'TOOL_EGRESS_BLOCKED')
        assert.equal(meta.tool_url, url)
        assert.match(meta.tool_address, /^(127\.0\.0\.1|169\.254\.169\.254)$/)
      }
    }
    target.answer = (_request, response) => response.writeHead(307, { location: `${hidden.url}/` }).end()
    const { meta } = refused(await calling((await raw()).id, 'x'), 403, 'TOOL_EGRESS_BLOCKED')
    assert.deepEqual([meta.tool_url, meta.tool_address], [`${hidden.url}/`, '127.0.0.1'])
    assert.equal(hidden.connections, 0)
    target.answer = (_request, response) => response.writeHead(307, { location: `${target.url}/again` }).end()
    refused(await calling((await raw()).id, 'x'), 403, 'TOOL_EGRESS_BLOCKED')
  })

  it('are called with the right to call them alone', async () => {
    const { id } = await tool()
    assert.equal(await called(id, 'say'), 'not { JSON')
    refused(await caller.get(`/tools/${id}`), 403, 'FORBIDDEN')
    const statement = [{ effect: 'Allow', action: ['tools:GetTool'], resource: ['*'] }]
    const reader = await app.user(undefined, [{ statement }])
    assert.equal((await reader.get(`/tools/${id}/actions`)).status, 200)
    refused(await call(reader, id, undefined, { action: 'say' }), 403, 'FORBIDDEN')
  })

  it('have a session for each of many concurrent calls', async () => {
    const { id } = await tool()
    const replies = await Promise.all(Array.from({ length: 20 }, (_, n) => called(id, 'echo', { n })))
    assert.deepEqual(
      replies.map(({ n }) => n),
      Array.from({ length: 20 }, (_, n) => n),
    )
    const { requests } = await server.seen()
    const sessions = requests
      .filter(({ body }) => body?.method === 'tools/call')
      .map(({ headers }) => headers['mcp-session-id'])
    assert.equal(new Set(sessions).size, 20)
    await settled()
  })
})
