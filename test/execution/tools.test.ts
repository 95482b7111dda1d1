import assert from 'node:assert/strict'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import { type Client, startApp } from '../support/app.ts'
import { longestTurn } from '../support/event-loop.ts'
import { forSuite } from '../support/suite.ts'
import { call, made, refused, refusedAt, secretOf } from './tool-target.ts'

const URL = 'https://api.example.com/v1/items'
const CRUD = ['tools:CreateTool', 'tools:GetTool', 'tools:ListTools', 'tools:UpdateTool', 'tools:DeleteTool']

describe('tools', () => {
  const app = forSuite(() => startApp({ env: { TOOL_CALL_TIMEOUT_MS: '20000' } }))
  let id: string
  let key: Client

  before(async () => {
    ;({ id, key } = await app.projectWith([...CRUD, 'secrets:CreateSecret', 'secrets:UseSecret', 'events:*']))
  })

  const create = (fields: object) => key.post('/tools', { name: 'tool', ...fields })

  const eventsOf = async (tool: string): Promise<string[]> =>
    (await app.pool.anyFirst(
      sql.unsafe`select name from events where resource_id = ${tool} order by id`,
    )) as unknown as string[]

  it('are drafts of type http by their name alone', async () => {
    const tool = await made(key, { name: ' weather ' })
    assert.match(tool.id, /^tool_[0-9a-z]{26}$/)
    assert.deepEqual(tool, {
      id: tool.id,
      project_id: id,
      name: 'weather',
      type: 'http',
      description: null,
      parameters: null,
      execute: null,
      guardrail_ids: null,
      mcp: null,
      actions: null,
      denied_actions: null,
      context_keys: null,
      preset_parameters: null,
      pipeline: null,
      output_mapping: null,
      idempotent: false,
      created_at: tool.created_at,
      updated_at: tool.created_at,
    })
    assert.deepEqual((await key.get(`/tools/${tool.id}`)).body, tool)
    refusedAt(await key.post('/tools', {}), 'name')
  })

  it('store every field unchanged, with tokens unresolved', async () => {
    const secret = await secretOf(key, 'the value of the secret')
    const fields = {
      name: 'everything',
      description: 'Finds items',
      type: 'http',
      parameters: { type: 'object', required: ['b'], properties: { b: { type: 'string' }, a: {} } },
      execute: {
        url: `${URL}/{b}?key={{secret:${secret}}}`,
        method: 'PUT',
        headers: { 'X-Two': `{{context:a|b}} {{secret:${secret}}}`, Authorization: `Bearer {{secret:${secret}}}` },
        body_mode: 'json',
        auth: {
          type: 'aws_sigv4',
          region: 'r',
          service: 's',
          access_key_id: 'a',
          secret_access_key: `{{secret:${secret}}}`,
        },
        timeout_ms: 1000,
        sign: `{{secret:${secret}}}`,
      },
      context_keys: ['Tenant', 'a|b'],
      preset_parameters: { z: '{{literal}}', a: [{ b: null }] },
      output_mapping: { var: 'output.items' },
      idempotent: true,
    }
    const tool = await made(key, fields)
    for (const [name, value] of Object.entries(fields))
      assert.equal(JSON.stringify(tool[name]), JSON.stringify(value), name)
    const listed = (await key.get('/tools?name=EVERYTH')).body
    assert.deepEqual([listed.total, listed.data[0]], [1, tool])
    const [event] = (await key.get(`/events?resource_id=${tool.id}`)).body.data
    assert.deepEqual(event.data.execute, fields.execute)
    for (const text of [JSON.stringify(tool), JSON.stringify(event), app.logs.join('')])
      assert.ok(!text.includes('the value of the secret'))
  })

  it('take objects as JSON text, and methods in any case', async () => {
    const tool = await made(key, {
      parameters: '{"type":"object"}',
      execute: JSON.stringify({ url: URL, method: 'get' }),
      preset_parameters: '{"a":1}',
      output_mapping: '{"var":"output"}',
    })
    assert.deepEqual(tool.parameters, { type: 'object' })
    assert.deepEqual(tool.execute, { url: URL, method: 'GET' })
    assert.deepEqual([tool.preset_parameters, tool.output_mapping], [{ a: 1 }, { var: 'output' }])
    for (const text of ['{', '[]', '1', 'text', '']) refusedAt(await create({ parameters: text }), 'parameters')
    refusedAt(await create({ execute: 'null and void' }), 'execute')
  })

  it('are refused with a field that is wrong, naming it', async () => {
    const execute = (fields: object) => ({ execute: { url: URL, ...fields } })
    const cases: [string, object][] = [
      ['name', { name: '' }],
      ['name', { name: 'x'.repeat(129) }],
      ['name', { name: null }],
      ['type', { type: 'nothing' }],
      ['type', { type: null }],
      ['surprise', { surprise: 1 }],
      ['mcp.url', { mcp: { url: 'nowhere' } }],
      ['guardrail_ids', { guardrail_ids: Array.from({ length: 21 }, (_, n) => `guard_${n}`) }],
      ['description', { description: 5 }],
      ['parameters', { parameters: [] }],
      ['parameters.type', { parameters: { type: 'array' } }],
      ['parameters.type', { parameters: {} }],
      ['parameters', { parameters: { type: 'object', properties: 7 } }],
      ['parameters', { parameters: { type: 'object', $ref: 'https://example.com/s.json' } }],
      ['parameters', { parameters: { type: 'object', description: 'x'.repeat(66_000) } }],
      ['execute', { execute: [] }],
      ['execute.url', { execute: {} }],
      ['execute.url', execute({ url: '/relative' })],
      ['execute.url', execute({ url: 'ftp://example.com/' })],
      ['execute.url', execute({ url: 'https://user:pass@example.com/' })],
      ['execute.url', execute({ url: 'https://{host}.example.com/' })],
      ['execute.url', execute({ url: 'https://example.com:${body.port}/' })],
      ['execute.url', execute({ url: 'https://example.com\\@{host}/' })],
      ['execute.url', execute({ url: 'https://exa\nmple.com/' })],
      ['execute.url', execute({ url: 'https://a b/' })],
      ['execute.url', execute({ url: 'https://{{secret:sec_00000000000000000000000000}}.example.com/' })],
      ['execute.method', execute({ method: 'TRACE' })],
      ['execute.method', execute({ method: 'CONNECT' })],
      ['execute.body_mode', execute({ body_mode: 'xml' })],
      ['execute.surprise', execute({ surprise: 1 })],
      ['execute.timeout_ms', execute({ timeout_ms: 999 })],
      ['execute.timeout_ms', execute({ timeout_ms: 20_001 })],
      ['execute.sign', execute({ sign: 'plain text' })],
      ['execute.auth.type', execute({ auth: { type: 'magic' } })],
      ['execute.auth.region', execute({ auth: { type: 'aws_sigv4', region: '' } })],
      ['execute.auth.scopes', execute({ auth: { type: 'gcp_service_account', credentials: 'x', scopes: [] } })],
      [
        'execute.auth',
        execute({
          body_mode: 'multipart',
          auth: { type: 'aws_sigv4', region: 'r', service: 's', access_key_id: 'a', secret_access_key: 'b' },
        }),
      ],
      [
        'execute.auth.token_url',
        execute({
          auth: { type: 'oauth2_client_credentials', token_url: 'file:///x', client_id: 'a', client_secret: 'b' },
        }),
      ],
      ['execute.headers.X-A', execute({ headers: { 'X-A': 'a\r\nX-Injected: yes' } })],
      ['execute.headers.X-A', execute({ headers: { 'X-A': 'schön ✓' } })],
      ['execute.headers.X-A', execute({ headers: { 'X-A': 5 } })],
      ['execute.headers.x-a', execute({ headers: { 'X-A': '1', 'x-a': '2' } })],
      ['execute.headers.X A', execute({ headers: { 'X A': '1' } })],
      ['execute.headers.X:\r\nY', execute({ headers: { 'X:\r\nY': '1' } })],
      ...['Host', 'content-length', 'Transfer-Encoding', 'CONNECTION', 'Upgrade'].map((name): [string, object] => [
        `execute.headers.${name}`,
        execute({ headers: { [name]: '1' } }),
      ]),
      [
        'execute.headers',
        execute({ headers: Object.fromEntries(Array.from({ length: 65 }, (_, n) => [`x-${n}`, '1'])) }),
      ],
      ['preset_parameters', { preset_parameters: { a: 'x'.repeat(66_000) } }],
      ['output_mapping', { output_mapping: { a: 'x'.repeat(66_000) } }],
      ['output_mapping', { output_mapping: [1] }],
      ['idempotent', { idempotent: 'yes' }],
      ['actions', { type: 'platform' }],
      ['actions', { type: 'platform', actions: [] }],
      ['context_keys', { context_keys: 'a' }],
    ]
    for (const [path, fields] of cases) refusedAt(await create(fields), path)
    assert.equal((await create({ guardrail_ids: null })).status, 201)
    assert.equal((await create({ guardrail_ids: [] })).status, 201)
    const total = async () => (await key.get('/tools?name=nowhere')).body.total
    await create({ name: 'nowhere', type: 'magic' })
    assert.equal(await total(), 0)
  })

  it('accept tokens only in certain fields, and name the others', async () => {
    const secret = await secretOf(key, 'value')
    const S = `{{secret:${secret}}}`
    const execute = (fields: object) => ({ execute: { url: URL, ...fields } })
    const gcp = (credentials: string) => execute({ auth: { type: 'gcp_service_account', credentials, scopes: ['a'] } })
    const cases: [object, string][] = [
      [execute({ url: `${URL}/{{city}}` }), '{{city}}'],
      [execute({ url: `${URL}/{{context:tok}}` }), '{{context:tok}}'],
      [execute({ url: `${URL}/{{secret:nothing}}` }), '{{secret:nothing}}'],
      [execute({ url: `${URL}/{{ secret:${secret} }}` }), `{{ secret:${secret} }}`],
      [execute({ headers: { 'X-A': '{{context:}}' } }), '{{context:}}'],
      [execute({ headers: { 'X-A': '{{context:a b}}' } }), '{{context:a b}}'],
      [execute({ headers: { 'X-A': '{{a}}' } }), '{{a}}'],
      [execute({ headers: { [S]: 'a' } }), S],
      [gcp('{{context:a}}'), '{{context:a}}'],
      [execute({ sign: '{{context:a}}' }), '{{context:a}}'],
      [{ preset_parameters: { a: [{ b: `x ${S}` }] } }, S],
      [{ preset_parameters: { a: '{{context:b}}' } }, '{{context:b}}'],
      [{ preset_parameters: { [S]: 1 } }, S],
    ]
    for (const [fields, token] of cases)
      assert.deepEqual(refused(await create(fields), 400, 'INVALID_TEMPLATE_TOKEN').meta, { tokens: [token] })
    const tool = await made(key, execute({ headers: { 'X-A': `{{context:tok}}${S}` } }))
    const changed = await key.patch(`/tools/${tool.id}`, { execute: { url: `${URL}/{{city}}` } })
    refused(changed, 400, 'INVALID_TEMPLATE_TOKEN')
    assert.deepEqual((await key.get(`/tools/${tool.id}`)).body, tool)
  })

  it('are checked for tokens in time that does not grow with braces times braces', async () => {
    const open = '{{'.repeat(8000)
    const headers = Object.fromEntries(Array.from({ length: 300 }, (_, at) => [`X-${at}`, open]))
    const held = await longestTurn(async () => {
      const preset_parameters = { a: `{{secret:${'{{'.repeat(1_000_000)}` }
      refusedAt(await create({ preset_parameters }), 'preset_parameters')
      refusedAt(await create({ execute: { url: URL, headers } }), 'execute')
      const unended = { preset_parameters: { a: `{{secret:${open}` } }
      assert.equal(refused(await create(unended), 400, 'INVALID_TEMPLATE_TOKEN').meta.tokens.length, 1)
    })
    assert.ok(held < 1000, `${held} ms`)
  })

  it('take context keys that can be header names', async () => {
    for (const bad of ['', 'a b', 'a:b', 'ä', 'a\r\nb', 7, null, {}]) {
      const error = refused(await create({ context_keys: ['fine', bad] }), 400, 'INVALID_TOOL_CONTEXT_KEY')
      assert.deepEqual(error.meta, { keys: [bad] })
    }
    assert.deepEqual((await made(key, { context_keys: [] })).context_keys, [])
  })

  describe('with secrets', () => {
    const naming = (secret: string) => ({ execute: { url: URL, headers: { 'X-Key': `{{secret:${secret}}}` } } })

    it('name secrets of their project; other secrets are not found', async () => {
      const other = await app.project()
      const foreign = await secretOf(other.key, 'value')
      for (const secret of [foreign, newId('sec'), 'sec_0']) {
        const fields = [
          naming(secret),
          { execute: { url: `${URL}?k={{secret:${secret}}}` } },
          { execute: { url: URL, sign: `{{secret:${secret}}}` } },
          { type: 'pipeline', pipeline: { steps: [{ id: 'a', tool: { name: 'x', ...naming(secret) } }] } },
        ]
        for (const each of fields)
          assert.deepEqual(refused(await create(each), 400, 'SECRET_NOT_FOUND').meta, { secret_id: secret })
      }
      const tool = await made(key, { execute: { url: URL } })
      refused(await key.patch(`/tools/${tool.id}`, naming(foreign)), 400, 'SECRET_NOT_FOUND')
    })

    it('need the right to use them, for each and for where they go', async () => {
      const secret = await secretOf(key, 'value')
      const tool = await made(key, naming(secret))
      const writer = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: CRUD, resource: [`srn:${id}:*:*`] }] },
      ])
      const change = (fields: object) => writer.patch(`/tools/${tool.id}`, fields)
      refused(await writer.post('/tools', { project_id: id, name: 'x', ...naming(secret) }), 403, 'FORBIDDEN')
      const [own] = (await key.get('/tools?name=tool&limit=1')).body.data
      assert.equal(own.id, tool.id, 'nothing was written')
      refused(await change({ execute: { ...tool.execute, url: 'https://evil.example.com/' } }), 403, 'FORBIDDEN')
      refused(
        await change({ execute: { url: URL, headers: { 'X-Log': tool.execute.headers['X-Key'] } } }),
        403,
        'FORBIDDEN',
      )
      refused(await change({ execute: { ...tool.execute, method: 'PUT' } }), 403, 'FORBIDDEN')
      assert.equal((await change({ name: 'other', execute: { ...tool.execute, timeout_ms: 2000 } })).status, 200)
      assert.equal((await change({ execute: { url: 'https://other.example.com/' } })).status, 200)
      refused(await change(naming(secret)), 403, 'FORBIDDEN')
    })

    it('can be changed otherwise when one was deleted, and show up as what refers to it', async () => {
      const secret = await secretOf(app.admin, 'x').catch(() => '')
      assert.equal(secret, undefined, 'an admin names a project')
      const mine = await secretOf(key, 'value')
      const tool = await made(key, naming(mine))
      const references = (await app.admin.get(`/secrets/${mine}/references`)).body.data
      assert.deepEqual(references, [{ type: 'tool', id: tool.id, field: 'secret_ids' }])
      assert.equal((await app.admin.delete(`/secrets/${mine}`)).status, 204)
      assert.equal((await key.patch(`/tools/${tool.id}`, { name: 'other' })).status, 200)
      refused(await key.patch(`/tools/${tool.id}`, { execute: tool.execute }), 400, 'SECRET_NOT_FOUND')
    })
  })

  describe('change', () => {
    it('by what differs, as a whole, with an event each', async () => {
      const tool = await made(key, { description: 'a', execute: { url: URL } })
      const patched = await key.patch(`/tools/${tool.id}`, { description: null, name: 'b' })
      assert.deepEqual(patched.body, { ...tool, description: null, name: 'b', updated_at: patched.body.updated_at })
      for (const body of [{}, { name: 'b' }, { execute: { url: URL } }])
        assert.deepEqual((await key.patch(`/tools/${tool.id}`, body)).body, patched.body)
      refusedAt(await key.patch(`/tools/${tool.id}`, { type: 'platform' }), 'actions')
      refused(await key.patch(`/tools/${tool.id}`, { type: 'pipeline' }), 400, 'PIPELINE_INVALID_STEP')
      refusedAt(await key.patch(`/tools/${tool.id}`, { name: null }), 'name')
      refusedAt(await key.patch(`/tools/${tool.id}`, { project_id: id }), 'project_id')
      assert.deepEqual((await key.patch(`/tools/${tool.id}`, { type: 'client' })).body.type, 'client')
      assert.deepEqual(await eventsOf(tool.id), ['tools.created', 'tools.updated', 'tools.updated'])
      assert.equal((await key.delete(`/tools/${tool.id}`)).status, 204)
      assert.deepEqual((await eventsOf(tool.id)).at(-1), 'tools.deleted')
      refused(await key.get(`/tools/${tool.id}`), 404, 'RESOURCE_NOT_FOUND')
    })

    it('concurrently without losing a field', async () => {
      const tool = await made(key, {})
      const fields = [
        { description: 'd' },
        { context_keys: ['k'] },
        { preset_parameters: { a: 1 } },
        { idempotent: true },
      ]
      await Promise.all(fields.map(body => key.patch(`/tools/${tool.id}`, body)))
      const { description, context_keys, preset_parameters, idempotent } = (await key.get(`/tools/${tool.id}`)).body
      assert.deepEqual([description, context_keys, preset_parameters, idempotent], ['d', ['k'], { a: 1 }, true])
    })
  })

  it('are listed newest first, by type and part of the name', async () => {
    const own = await app.project()
    for (const [name, type] of [
      ['Alpha 100%', 'http'],
      ['beta', 'client'],
      ['alphabet', 'client'],
    ])
      await made(own.key, { name, type })
    const names = async (query: string) =>
      (await own.key.get(`/tools${query}`)).body.data.map(({ name }: { name: string }) => name)
    assert.deepEqual(await names(''), ['alphabet', 'beta', 'Alpha 100%'])
    assert.deepEqual(await names('?name=ALPHA'), ['alphabet', 'Alpha 100%'])
    assert.deepEqual(await names('?name=0%25'), ['Alpha 100%'])
    assert.deepEqual(await names('?type=client'), ['alphabet', 'beta'])
    assert.deepEqual((await names('?type=client&type=http')).length, 3)
    refusedAt(await own.key.get('/tools?type=magic'), 'type')
  })

  it('answer 404 to other projects, and 403 without the permission of each action', async () => {
    const tool = await made(key, { execute: { url: URL } })
    const stranger = (await app.project()).key
    for (const reply of [
      await stranger.get(`/tools/${tool.id}`),
      await stranger.patch(`/tools/${tool.id}`, { name: 'x' }),
      await stranger.delete(`/tools/${tool.id}`),
      await stranger.get(`/tools/${tool.id}/actions`),
      await call(stranger, tool.id),
    ])
      assert.deepEqual(refused(reply, 404, 'RESOURCE_NOT_FOUND').meta, { id: tool.id })
    // The key of this suite may do everything with tools but call them.
    refused(await call(key, tool.id), 403, 'FORBIDDEN')
    const nobody = await app.projectWith(['tools:CallTool'])
    refused(await nobody.key.post('/tools', { name: 'x' }), 403, 'FORBIDDEN')
    refused(await nobody.key.get('/tools'), 403, 'FORBIDDEN')
  })

  it('are kept by the ingestion rules that name them, by force too', async () => {
    const own = await app.project()
    const tool = await made(own.key, { execute: { url: URL } })
    const rule = await own.key.post('/ingestion-rules', { content_type_glob: 'a/b', tool_id: tool.id })
    assert.equal(rule.status, 201, JSON.stringify(rule.body))
    for (const query of ['', '?force=true'])
      assert.deepEqual(refused(await own.key.delete(`/tools/${tool.id}${query}`), 409, 'TOOL_HAS_DEPENDENTS').meta, {
        counts: { ingestion_rules: 1 },
        sample_ids: { ingestion_rules: [rule.body.id] },
        forcible: false,
      })
    const other = await made((await app.project()).key, {})
    const naming = (tool_id: string) => own.key.post('/ingestion-rules', { content_type_glob: 'c/d', tool_id })
    refused(await naming(other.id), 400, 'TOOL_NOT_FOUND')
    refused(await naming((await made(own.key, { type: 'client' })).id), 400, 'INGESTION_RULE_VALIDATION_FAILED')
    assert.equal((await own.key.delete(`/ingestion-rules/${rule.body.id}`)).status, 204)
    assert.equal((await own.key.delete(`/tools/${tool.id}`)).status, 204)
  })

  it('never leave a rule without its tool, whatever a delete races with', async () => {
    const own = await app.project()
    for (let round = 0; round < 10; round++) {
      const tool = await made(own.key, {})
      const [rule, deleted] = await Promise.all([
        own.key.post('/ingestion-rules', { content_type_glob: `a/b${round}`, tool_id: tool.id }),
        own.key.delete(`/tools/${tool.id}`),
      ])
      const pair = `${rule.status},${deleted.status}`
      assert.ok(pair === '201,409' || pair === '400,204', pair)
      if (rule.status === 400) assert.equal(rule.body.error.code, 'TOOL_NOT_FOUND')
    }
  })

  it('are named by rules and searches only of who may call them', async () => {
    const own = await app.project()
    const tool = await made(own.key, { execute: { url: URL } })
    const limited = await app.user(undefined, [
      {
        statement: [
          {
            effect: 'Allow',
            action: ['ingestion-rules:*', 'knowledge:*', 'documents:*'],
            resource: [`srn:${own.id}:*:*`],
          },
        ],
      },
    ])
    const rule = { project_id: own.id, content_type_glob: 'a/b', tool_id: tool.id }
    assert.deepEqual(refused(await limited.post('/ingestion-rules', rule), 403, 'FORBIDDEN').meta, {
      action: 'tools:CallTool',
    })
    const stored = await own.key.post('/ingestion-rules', { content_type_glob: 'a/b', tool_id: tool.id })
    const path = `/ingestion-rules/${stored.body.id}`
    refused(await limited.patch(path, { preset_parameters: { amount: 5 } }), 403, 'FORBIDDEN')
    assert.equal((await limited.patch(path, { enabled: false })).status, 200)
    const search = { project_id: own.id, query: 'x', rerank: { tool_id: tool.id } }
    refused(await limited.post('/knowledge/search', search), 403, 'FORBIDDEN')
    assert.equal((await limited.post('/knowledge/search', { ...search, rerank: undefined })).status, 200)
  })

  it('are copied by a project clone without what names secrets, and with the rules that name them', async () => {
    const own = await app.project()
    const secret = await secretOf(own.key, 'value')
    const S = `{{secret:${secret}}}`
    const plain = await made(own.key, {
      name: 'plain',
      execute: { url: URL, headers: { 'X-A': S, 'X-B': 'b' }, sign: S },
    })
    const bare = await made(own.key, { name: 'bare', execute: { url: `${URL}?k=${S}` } })
    const chained = await made(own.key, {
      name: 'chained',
      type: 'pipeline',
      pipeline: {
        steps: [
          { id: 'a', tool_id: plain.id },
          { id: 'b', tool: { name: 'i', execute: { url: URL, headers: { 'X-A': S } } } },
        ],
      },
    })
    await own.key.post('/ingestion-rules', { content_type_glob: 'a/b', tool_id: plain.id })
    const include = ['ingestion_rules', 'tools']
    const { body } = await app.admin.post(`/projects/${own.id}/clone`, { name: 'copy', include })
    const copyOf = async (original: string) => (await app.admin.get(`/tools/${body.ids[original]}`)).body
    assert.deepEqual((await copyOf(plain.id)).execute, { url: URL, headers: { 'X-B': 'b' } })
    assert.equal((await copyOf(bare.id)).execute, null)
    const { steps } = (await copyOf(chained.id)).pipeline
    assert.equal(steps[0].tool_id, body.ids[plain.id])
    assert.deepEqual(steps[1].tool.execute, { url: URL, headers: {} })
    const rules = (await app.admin.get(`/ingestion-rules?project_id=${body.project.id}`)).body.data
    assert.deepEqual(
      rules.map(({ tool_id }: { tool_id: string }) => tool_id),
      [body.ids[plain.id]],
    )
  })

  it('list their actions, without preset arguments, under a name that models accept', async () => {
    const parameters = { type: 'object', required: ['a', 'b'], properties: { a: {}, b: {} } }
    const tool = await made(key, { name: 'Wetter, heute!', description: 'd', parameters, preset_parameters: { a: 1 } })
    assert.deepEqual((await key.get(`/tools/${tool.id}/actions`)).body, {
      data: [
        {
          name: 'Wetter, heute!',
          resolved_name: 'Wetter__heute_',
          description: 'd',
          input_schema: { type: 'object', required: ['b'], properties: { b: {} } },
        },
      ],
      total: 1,
      limit: 50,
      offset: 0,
    })
    const long = await made(key, { name: 'x'.repeat(100) })
    const [{ resolved_name, input_schema }] = (await key.get(`/tools/${long.id}/actions`)).body.data
    assert.match(resolved_name, /^x{57}_[0-9a-f]{6}$/)
    assert.deepEqual(input_schema, { type: 'object' })
  })
})
