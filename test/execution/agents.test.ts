import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type Client, type Reply, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

describe('agents', () => {
  const app = forSuite(() => startApp({ env: { AGENT_MAX_STEPS_CEILING: '50' } }))
  const project = forSuite(() => app.project())
  const key = forSuite(() => project.key)
  let ai_provider_id: string

  const newProvider = async (as: Client): Promise<string> =>
    (
      await as.post('/ai-providers', {
        name: 'p',
        provider: 'custom',
        default_model: 'model-1',
        base_url: 'https://models.example.com/v1',
      })
    ).body.id

  before(async () => {
    ai_provider_id = await newProvider(key)
  })

  const create = (fields: Record<string, unknown> = {}): Promise<Reply> =>
    key.post('/agents', { ai_provider_id, ...fields })

  const made = async (fields: Record<string, unknown> = {}) => {
    const reply = await create(fields)
    assert.equal(reply.status, 201, JSON.stringify(reply.body))
    return reply.body
  }

  const eventNames = async (id: string): Promise<string[]> =>
    (await app.pool.anyFirst(
      sql.unsafe`select name from events where resource_id = ${id} order by id`,
    )) as unknown as string[]

  const refusedAt = (reply: Reply, path: string) => {
    assert.equal(reply.status, 400, JSON.stringify(reply.body))
    assert.equal(reply.body.error.code, 'VALIDATION_FAILED')
    assert.ok(
      reply.body.error.meta.problems.some((problem: { path: string }) => problem.path === path),
      JSON.stringify(reply.body.error),
    )
  }

  const EVERYTHING = {
    name: 'helper',
    instructions: 'Be kind.',
    model: 'model-2',
    max_steps: 7,
    temperature: 0.3,
    max_output_tokens: 500,
    top_p: 0.9,
    seed: 42,
    provider_options: { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } },
    output_schema: { type: 'object', required: ['b'], properties: { b: { type: 'string' }, a: {} } },
    prompt_caching: { enabled: true },
    max_context_messages: 12,
    single_session_per_actor: true,
    trace_content_mode: 'full',
    context_policy: { max_context_tokens: 8000, strategy: 'summarize', keep_last_messages: 4 },
    auto_title: true,
    description: 'Help with orders',
    greeting: 'Hello!',
    suggestions: ['Where is my order?', 'Return an order'],
    media: { accept: ['image/*'], history_turns: 2, fallback: 'note' },
  }

  it('are created with a provider alone', async () => {
    const record = await made()
    assert.match(record.id, /^agent_[0-9a-z]{26}$/)
    assert.deepEqual(record, {
      id: record.id,
      project_id: project.id,
      name: null,
      knowledge_config: null,
      guardrail_ids: null,
      on_approval_expiry: null,
      instructions: null,
      ai_provider_id,
      model_route_id: null,
      model: null,
      tool_bindings: null,
      active_tool_ids: null,
      tool_choice: null,
      stop_conditions: null,
      step_rules: null,
      boundary_policy: null,
      max_steps: null,
      temperature: null,
      max_output_tokens: null,
      top_p: null,
      seed: null,
      provider_options: null,
      vendor_tools: null,
      output_schema: null,
      prompt_caching: null,
      max_context_messages: null,
      single_session_per_actor: false,
      trace_content_mode: null,
      context_policy: null,
      auto_title: false,
      description: null,
      avatar_file_id: null,
      greeting: null,
      suggestions: null,
      media: null,
      end_user_activity: 'none',
      client_instructions: 'block',
      accept_client_tools: false,
      request_settings: null,
      shared_state: false,
      a2a: null,
      version: 1,
      active_release: null,
      created_at: record.created_at,
      updated_at: record.created_at,
    })
    assert.deepEqual((await key.get(`/agents/${record.id}`)).body, record)
  })

  it('keep every field as written', async () => {
    const record = await made(EVERYTHING)
    for (const [name, value] of Object.entries(EVERYTHING)) assert.deepEqual(record[name], value, name)
    assert.equal(
      JSON.stringify(record.output_schema),
      JSON.stringify(EVERYTHING.output_schema),
      'keys keep their order',
    )
    assert.deepEqual(await eventNames(record.id), ['agents.created'])
  })

  it('need a provider of their project', async () => {
    refusedAt(await key.post('/agents', {}), 'ai_provider_id')
    refusedAt(await key.post('/agents', { ai_provider_id: null }), 'ai_provider_id')
    refusedAt(await key.post('/agents', { model: 'model-1' }), 'model')
    const foreign = await newProvider((await app.project()).key)
    for (const id of [foreign, 'aip_00000000000000000000000000', 'nonsense']) {
      const refused = await create({ ai_provider_id: id })
      assert.equal(refused.status, 400)
      assert.equal(refused.body.error.code, 'AI_PROVIDER_NOT_FOUND')
    }
    const { id } = await made()
    refusedAt(await key.patch(`/agents/${id}`, { ai_provider_id: null }), 'ai_provider_id')
    const moved = await key.patch(`/agents/${id}`, { ai_provider_id: foreign })
    assert.equal(moved.body.error.code, 'AI_PROVIDER_NOT_FOUND')
  })

  it('are refused with a field that is wrong, naming it', async () => {
    const wrong: [string, unknown][] = [
      ['name', ''],
      ['name', 'x'.repeat(256)],
      ['instructions', 'x'.repeat(65_537)],
      ['model', ''],
      ['max_steps', 0],
      ['max_steps', 51],
      ['max_steps', 1.5],
      ['temperature', 2.1],
      ['temperature', -1],
      ['max_output_tokens', 0],
      ['top_p', 1.1],
      ['seed', 1.5],
      ['provider_options', []],
      ['max_context_messages', 0],
      ['single_session_per_actor', null],
      ['auto_title', null],
      ['suggestions', ['1', '2', '3', '4', '5', '6', '7']],
      ['greeting', 'x'.repeat(4001)],
      ['description', 'x'.repeat(2001)],
      ['prompt_caching', true],
    ]
    for (const [path, value] of wrong) refusedAt(await create({ [path]: value }), path)
    refusedAt(await create({ suggestions: ['Hello', ' '] }), 'suggestions[1]')
    refusedAt(await create({ prompt_caching: { enabled: 'yes' } }), 'prompt_caching.enabled')
    refusedAt(await create({ prompt_caching: { enabled: true, ttl: 1 } }), 'prompt_caching.ttl')
    refusedAt(await create({ provider_options: { openai: 1 } }), 'provider_options.openai')
  })

  it('have an image as avatar that the writer may download, and that is not deleted while they use it', async () => {
    const upload = async (filename: string, content_type: string) => {
      const body = { project_id: project.id, filename, content_type, content: Buffer.from('x').toString('base64') }
      return (await createdBy(app.admin, '/files/upload/base64', body)).id as string
    }
    const picture = await upload('a.png', 'image/png')
    refusedAt(await create({ avatar_file_id: await upload('a.svg', 'image/svg+xml') }), 'avatar_file_id')
    const missing = await create({ avatar_file_id: 'file_00000000000000000000000000' })
    assert.deepEqual([missing.status, missing.body.error.code], [400, 'FILE_NOT_FOUND'])
    const statement = [{ effect: 'Allow', action: ['agents:*'], resource: [`srn:${project.id}:*:*`] }]
    const narrow = await app.user(undefined, [{ statement }])
    const body = { project_id: project.id, ai_provider_id, avatar_file_id: picture }
    assert.equal((await narrow.post('/agents', body)).status, 403)
    const agent = await made({ avatar_file_id: picture })
    // An avatar that is there already takes no permission.
    assert.equal((await narrow.patch(`/agents/${agent.id}`, { avatar_file_id: picture, greeting: 'Hi' })).status, 200)
    const kept = await app.admin.delete(`/files/${picture}`)
    assert.deepEqual([kept.status, kept.body.error.code], [409, 'FILE_HAS_DEPENDENTS'])
    assert.equal((await key.patch(`/agents/${agent.id}`, { avatar_file_id: null })).status, 200)
    assert.equal((await app.admin.delete(`/files/${picture}`)).status, 204)
    const restored = await key.post(`/agents/${agent.id}/versions/1/restore`)
    assert.deepEqual([restored.status, restored.body.error.code], [400, 'FILE_NOT_FOUND'])
  })

  it('refuse unknown fields', async () => {
    for (const name of [
      'reasoning',
      'tool_ids',
      'tools',
      'secret_ids',
      'version',
      'active_release',
      'release_references',
    ])
      refusedAt(await create({ [name]: null }), name)
  })

  it('accept JSON Schemas of draft-07 and 2020-12 and nothing else', async () => {
    const local = { $ref: '#/definitions/a', definitions: { a: { type: 'string' } } }
    const tuple = { type: 'array', items: [{ type: 'string' }], additionalItems: false }
    const accepted = [
      {},
      { type: 'object' },
      { $schema: 'http://json-schema.org/draft-07/schema#', ...local },
      { $schema: 'https://json-schema.org/draft/2020-12/schema', prefixItems: [{ type: 'string' }] },
      { type: 'string', format: 'unheard-of', 'x-note': 1 },
      { $id: 'https://example.com/own', $ref: 'https://example.com/own#/$defs/a', $defs: { a: {} } },
      tuple,
      { type: 'object', properties: { child: { $ref: '#' } } },
      { type: 'string', pattern: '^(?!x)y' },
    ]
    for (const output_schema of accepted) {
      assert.equal((await create({ output_schema })).status, 201, JSON.stringify(output_schema))
      assert.equal((await create({ output_schema })).status, 201, 'a second time')
    }
    const refused = [
      'text',
      [],
      true,
      { type: 'nonsense' },
      { properties: 1 },
      { $ref: 'https://example.com/schema.json' },
      { properties: { a: { $ref: 'http://json-schema.org/draft-07/schema#' } } },
      { $ref: '#/definitions/missing' },
      { $ref: 'other.json' },
      { $schema: 'http://json-schema.org/draft-04/schema#' },
      { $schema: 7 },
      { $async: true },
      { pattern: '(' },
      { description: 'x'.repeat(66_000) },
    ]
    for (const output_schema of refused) {
      const reply = await create({ output_schema })
      assert.equal(reply.status, 400, JSON.stringify(output_schema).slice(0, 100))
      assert.equal(reply.body.error.code, 'INVALID_OUTPUT_SCHEMA', JSON.stringify(output_schema).slice(0, 100))
    }
  })

  it('keep content or none, but not more than their project', async () => {
    const { id } = await made({ trace_content_mode: 'none' })
    refusedAt(await key.patch(`/agents/${id}`, { trace_content_mode: 'some' }), 'trace_content_mode')
    const stored = await made({ trace_content_mode: 'full' })
    await app.admin.patch(`/projects/${project.id}`, { trace_content_mode: 'none' })
    try {
      refusedAt(await create({ trace_content_mode: 'full' }), 'trace_content_mode')
      refusedAt(await key.patch(`/agents/${id}`, { trace_content_mode: 'full' }), 'trace_content_mode')
      // An earlier value stays, and means no more than the project's.
      assert.equal((await key.patch(`/agents/${stored.id}`, { name: 'other' })).body.trace_content_mode, 'full')
      assert.equal((await key.patch(`/agents/${id}`, { trace_content_mode: null })).body.trace_content_mode, null)
    } finally {
      await app.admin.patch(`/projects/${project.id}`, { trace_content_mode: 'full' })
    }
  })

  it('change by PATCH and by PUT in parts, each change a version', async () => {
    const record = await made(EVERYTHING)
    const patched = await key.patch(`/agents/${record.id}`, { name: 'other', model: null })
    assert.equal(patched.status, 200)
    assert.deepEqual(patched.body, {
      ...record,
      name: 'other',
      model: null,
      version: 2,
      updated_at: patched.body.updated_at,
    })
    const put = await key.put(`/agents/${record.id}`, { output_schema: null })
    assert.deepEqual([put.body.output_schema, put.body.name, put.body.version], [null, 'other', 3])
    assert.deepEqual(await eventNames(record.id), ['agents.created', 'agents.updated', 'agents.updated'])
  })

  it('stay as they are when a write changes nothing', async () => {
    const record = await made(EVERYTHING)
    const { output_schema, ...rest } = EVERYTHING
    const { properties, ...schema } = output_schema
    const same = { ...rest, output_schema: { properties, ...schema }, ai_provider_id }
    for (const body of [{}, same, { name: ' helper ' }]) {
      const reply = await key.patch(`/agents/${record.id}`, body)
      assert.equal(reply.status, 200)
      assert.deepEqual(reply.body, record)
    }
    assert.deepEqual(await eventNames(record.id), ['agents.created'])
  })

  it('number concurrent changes without gap or repetition', async () => {
    const { id } = await made()
    const replies = await Promise.all(
      Array.from({ length: 20 }, (_, index) => key.patch(`/agents/${id}`, { name: `name ${index}` })),
    )
    assert.deepEqual(
      replies.map(reply => reply.body.version).sort((a, b) => a - b),
      Array.from({ length: 20 }, (_, index) => index + 2),
    )
    const last = replies.find(reply => reply.body.version === 21)
    assert.deepEqual((await key.get(`/agents/${id}`)).body, last?.body)
    assert.equal((await eventNames(id)).length, 21)
  })

  it('are listed by name and provider', async () => {
    const other = (await app.project()).key
    const [first, second] = [await newProvider(other), await newProvider(other)]
    await other.post('/agents', { ai_provider_id: first, name: 'Sales 100%' })
    await other.post('/agents', { ai_provider_id: second, name: 'sales two' })
    await other.post('/agents', { ai_provider_id: second })
    const names = async (query: string) =>
      (await other.get(`/agents${query}`)).body.data.map((item: { name: string | null }) => item.name)
    assert.deepEqual(await names(''), [null, 'sales two', 'Sales 100%'])
    assert.deepEqual(await names('?name=SALES'), ['sales two', 'Sales 100%'])
    assert.deepEqual(await names('?name=0%25'), ['Sales 100%'])
    assert.deepEqual(await names(`?ai_provider_id=${second}`), [null, 'sales two'])
  })

  it('refuse a stale If-Match', async () => {
    const { id } = await made()
    const tag = (await key.get(`/agents/${id}`)).headers.get('etag') as string
    assert.equal((await key.patch(`/agents/${id}`, { name: 'a' }, { 'If-Match': tag })).status, 200)
    assert.equal((await key.patch(`/agents/${id}`, { name: 'b' }, { 'If-Match': tag })).status, 412)
  })

  it('are deleted, with an event', async () => {
    const { id } = await made()
    assert.equal((await key.delete(`/agents/${id}`)).status, 204)
    assert.equal((await key.get(`/agents/${id}`)).status, 404)
    assert.deepEqual(await eventNames(id), ['agents.created', 'agents.deleted'])
    assert.equal((await key.delete(`/agents/${id}`)).status, 404)
  })

  it('remain as actors without an agent when the agent is deleted', async () => {
    const { id } = await made()
    const actor = (await key.post('/actors', { name: 'Ada', agent_id: id })).body
    assert.equal(actor.agent_id, id)
    assert.equal((await key.delete(`/agents/${id}`)).status, 204)
    assert.equal((await key.get(`/actors/${actor.id}`)).body.agent_id, null)
  })

  it('answer 404 to other projects and 403 without the permission', async () => {
    const { id } = await made()
    const stranger = (await app.project()).key
    assert.equal((await stranger.get(`/agents/${id}`)).status, 404)
    assert.equal((await stranger.patch(`/agents/${id}`, { name: 'x' })).status, 404)
    const reader = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['agents:GetAgent'], resource: [`srn:${project.id}:agent:${id}`] }] },
    ])
    assert.equal((await reader.get(`/agents/${id}`)).status, 200)
    assert.equal((await reader.patch(`/agents/${id}`, { name: 'x' })).status, 403)
  })
  it('are copied by a project clone with the providers they name, without credentials', async () => {
    const source = await app.project()
    const secret_id = (await source.key.post('/secrets', { name: 's', value: 'a value' })).body.id
    const fields = { name: 'p', provider: 'custom', default_model: 'm', base_url: 'https://models.example.com/v1' }
    const headers = { Authorization: 'Basic abc', 'X-A': `{{secret:${secret_id}}}`, 'X-Title': 'plain' }
    const named = await source.key.post('/ai-providers', { ...fields, secret_id, config: { headers, other: 1 } })
    await source.key.post('/ai-providers', fields)
    const agent = await source.key.post('/agents', { ...EVERYTHING, ai_provider_id: named.body.id })
    const cloned = await app.admin.post(`/projects/${source.id}/clone`, { name: 'copy', include: ['agents'] })
    assert.equal(cloned.status, 201)
    const { ids } = cloned.body
    assert.deepEqual(Object.keys(ids).sort(), [agent.body.id, named.body.id].sort())
    const copy = (await app.admin.get(`/agents/${ids[agent.body.id]}`)).body
    assert.equal(copy.ai_provider_id, ids[named.body.id])
    assert.deepEqual([copy.name, copy.version, copy.project_id], ['helper', 1, cloned.body.project.id])
    const provider = (await app.admin.get(`/ai-providers/${copy.ai_provider_id}`)).body
    assert.equal(provider.secret_id, null)
    assert.deepEqual(provider.config, { headers: { 'X-Title': 'plain' }, other: 1 })
  })
})
