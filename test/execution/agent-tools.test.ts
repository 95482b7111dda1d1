import assert from 'node:assert/strict'
import { type Client, type Reply, startApp } from '../support/app.ts'
import { createdBy, refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const SETTINGS = ['tool_bindings', 'active_tool_ids', 'tool_choice', 'stop_conditions', 'step_rules', 'boundary_policy']

describe('tools of agents', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  const key = forSuite(() => project.key)
  let ai_provider_id: string
  let tool: string
  let other: string

  const newTool = async (as: Client, fields: object = {}): Promise<string> => {
    return (await createdBy(as, '/tools', { name: 'weather', execute: { url: 'https://example.com/' }, ...fields })).id
  }
  const create = (fields: object, as = key): Promise<Reply> => as.post('/agents', { ai_provider_id, ...fields })
  /** A key of the project that may do just this. */
  const keyWith = async (...action: string[]): Promise<Client> => {
    const document = { statement: [{ effect: 'Allow', action, resource: [`srn:${project.id}:*:*`] }] }
    const policy = await app.admin.post('/policies', { document })
    const made = await app.admin.post('/project-keys', { project_id: project.id, policy_ids: [policy.body.id] })
    return app.as(made.body.secret)
  }
  const problem = (reply: Reply): string => {
    assert.deepEqual(refusalOf(reply), [400, 'VALIDATION_FAILED'], JSON.stringify(reply.body))
    return reply.body.error.meta.problems[0].path
  }

  before(async () => {
    const provider = { name: 'p', provider: 'custom', default_model: 'm', base_url: 'https://models.example.com/v1' }
    ai_provider_id = (await key.post('/ai-providers', provider)).body.id
    tool = await newTool(key)
    other = await newTool(key, { name: 'other', type: 'client', execute: null })
  })

  it('are kept as they were written, each tool once, with every version', async () => {
    const inline = {
      name: 'own',
      type: 'client',
      parameters: { type: 'object', required: ['b'], properties: { b: {}, a: {} } },
    }
    const settings = {
      tool_bindings: [{ tool_id: tool }, { tool: inline }, { tool_id: other }, { tool_id: tool }],
      active_tool_ids: [tool],
      tool_choice: { type: 'tool', tool_name: 'weather' },
      stop_conditions: [
        { type: 'has_tool_call', tool_name: 'weather' },
        { type: 'max_chain_generations', max_generations: 3 },
      ],
      step_rules: [
        { step: 1, tool_choice: 'required' },
        { step: 2, tool_choice: 'none', active_tool_ids: [other] },
      ],
      boundary_policy: { statement: [{ effect: 'Allow', action: ['tools:ListTools'], resource: ['*'] }] },
    }
    const made = await create(settings)
    assert.equal(made.status, 201, JSON.stringify(made.body))
    const kept = { ...settings, tool_bindings: settings.tool_bindings.slice(0, 3) }
    const shown = (body: Record<string, unknown>) => Object.fromEntries(SETTINGS.map(name => [name, body[name]]))
    assert.deepEqual(shown(made.body), kept)
    assert.equal(JSON.stringify(made.body.tool_bindings[1].tool.parameters), JSON.stringify(inline.parameters))
    const { body: version } = await key.get(`/agents/${made.body.id}/versions/1`)
    assert.deepEqual(shown(version.config), kept)

    const cleared = Object.fromEntries(SETTINGS.map(name => [name, null]))
    const changed = await key.patch(`/agents/${made.body.id}`, cleared)
    assert.deepEqual([changed.status, changed.body.version, shown(changed.body)], [200, 2, cleared])
    const restored = await key.post(`/agents/${made.body.id}/versions/1/restore`)
    assert.deepEqual([restored.status, shown(restored.body)], [200, kept])
  })

  it('are found by a tool that they are bound to', async () => {
    const [mine, its] = [await newTool(key), await newTool(key)]
    const { id } = (await create({ tool_bindings: [{ tool_id: mine }] })).body
    await create({ tool_bindings: [{ tool_id: its }] })
    const { body } = await key.get(`/agents?tool_id=${mine}`)
    assert.deepEqual([body.total, body.data.map((agent: { id: string }) => agent.id)], [1, [id]])
  })

  it('must be tools of the project', async () => {
    const foreign = await newTool((await app.project()).key)
    for (const id of [foreign, 'tool_00000000000000000000000000', 'nonsense'])
      assert.deepEqual(refusalOf(await create({ tool_bindings: [{ tool_id: id }] })), [400, 'TOOL_NOT_FOUND'], id)
  })

  it('are refused where they are wrong, naming the field', async () => {
    const url = 'https://example.com/'
    for (const [fields, path] of [
      [{ tool_bindings: [{}] }, 'tool_bindings[0]'],
      [{ tool_bindings: [{ tool_id: tool, tool: { name: 'x' } }] }, 'tool_bindings[0]'],
      [{ tool_bindings: [{ tool_id: tool }, { tool: { name: 'x', type: 'pipeline' } }] }, 'tool_bindings[1].tool.type'],
      [{ tool_bindings: [{ tool: { name: 'x', guardrail_ids: [] } }] }, 'tool_bindings[0].tool.guardrail_ids'],
      [{ tool_bindings: [{ tool: { name: 'x', execute: { url: 'ftp://x' } } }] }, 'tool_bindings[0].tool.execute.url'],
      [{ tool_bindings: Array(129).fill({ tool: { name: 'x', execute: { url } } }) }, 'tool_bindings'],
      [{ tool_choice: 'none' }, 'tool_choice'],
      [{ tool_choice: { type: 'tool' } }, 'tool_choice'],
      [{ stop_conditions: [{ type: 'has_tool_call', tool_name: '' }] }, 'stop_conditions[0].tool_name'],
      [
        { stop_conditions: [{ type: 'max_chain_generations', max_generations: 0 }] },
        'stop_conditions[0].max_generations',
      ],
      [{ stop_conditions: [{ type: 'later' }] }, 'stop_conditions[0].type'],
      [{ step_rules: [{ step: 1 }] }, 'step_rules[0]'],
      [{ step_rules: [{ step: 0, tool_choice: 'auto' }] }, 'step_rules[0].step'],
      [{ step_rules: [1, 1].map(step => ({ step, tool_choice: 'auto' })) }, 'step_rules'],
      [
        { boundary_policy: { statement: [{ effect: 'Allow', action: ['tools:Nope'], resource: ['*'] }] } },
        'boundary_policy',
      ],
    ] as [object, string][])
      assert.ok(problem(await create(fields)).startsWith(path), `${path} ${problem(await create(fields))}`)
    const token = { url: 'https://example.com/{{city}}' }
    assert.deepEqual(refusalOf(await create({ tool_bindings: [{ tool: { name: 'x', execute: token } }] })), [
      400,
      'INVALID_TEMPLATE_TOKEN',
    ])
  })

  it('that are active must be bound, in every setting', async () => {
    const bound = { tool_bindings: [{ tool_id: tool }] }
    for (const fields of [
      { ...bound, active_tool_ids: [other] },
      { ...bound, step_rules: [{ step: 1, active_tool_ids: [other] }] },
      { active_tool_ids: [tool] },
    ])
      assert.deepEqual(refusalOf(await create(fields)), [400, 'TOOL_NOT_FOUND'])
    const { id } = (await create({ ...bound, active_tool_ids: [tool] })).body
    assert.deepEqual(refusalOf(await key.patch(`/agents/${id}`, { tool_bindings: [] })), [400, 'TOOL_NOT_FOUND'])
    assert.equal((await key.patch(`/agents/${id}`, { tool_bindings: [], active_tool_ids: null })).status, 200)
  })

  it('may be forced only where something ends the turn', async () => {
    const stop = { stop_conditions: [{ type: 'has_tool_call', tool_name: 'weather' }] }
    const chain = { stop_conditions: [{ type: 'max_chain_generations', max_generations: 3 }] }
    const refused = [400, 'FORCED_TOOL_CHOICE_CANNOT_STOP']
    assert.deepEqual(refusalOf(await create({ tool_choice: 'required' })), refused)
    assert.deepEqual(refusalOf(await create({ tool_choice: { type: 'tool', tool_name: 'x' }, ...chain })), refused)
    const { id } = (await create({ tool_choice: 'required', ...stop })).body
    assert.deepEqual(refusalOf(await key.patch(`/agents/${id}`, { stop_conditions: null })), refused)
    assert.deepEqual(refusalOf(await key.put(`/agents/${id}`, chain)), refused)
    assert.equal((await key.patch(`/agents/${id}`, { stop_conditions: null, tool_choice: 'auto' })).status, 200)
  })

  it('require permissions on the bound tools', async () => {
    const secret = (await key.post('/secrets', { name: 'token', value: 'hunter2hunter2' })).body.id
    const limited = await keyWith('agents:*')
    const inline = {
      name: 'x',
      execute: { url: 'https://example.com/', headers: { Authorization: `Bearer {{secret:${secret}}}` } },
    }
    for (const bindings of [[{ tool_id: tool }], [{ tool: inline }]])
      assert.deepEqual(refusalOf(await create({ tool_bindings: bindings }, limited)), [403, 'FORBIDDEN'])
    const { id } = (await create({ tool_bindings: [{ tool_id: tool }] })).body
    const other_of_it = { tool_bindings: [{ tool_id: tool }, { tool: { name: 'y', type: 'client' } }] }
    assert.equal((await limited.patch(`/agents/${id}`, other_of_it)).status, 200, 'the binding stays')
    const trusted = await keyWith('agents:*', 'tools:CallTool', 'secrets:UseSecret')
    assert.equal((await create({ tool_bindings: [{ tool_id: tool }, { tool: inline }] }, trusted)).status, 201)
  })

  it('may be deleted while they are bound', async () => {
    const gone = await newTool(key)
    const { id } = (await create({ tool_bindings: [{ tool_id: gone }] })).body
    assert.equal((await key.delete(`/tools/${gone}`)).status, 204)
    assert.equal((await key.patch(`/agents/${id}`, { name: 'still' })).status, 200)
    assert.equal((await key.patch(`/agents/${id}`, { tool_bindings: null })).status, 200)
    assert.deepEqual(refusalOf(await key.post(`/agents/${id}/versions/1/restore`)), [400, 'TOOL_NOT_FOUND'])
    assert.equal((await key.get(`/agents/${id}`)).body.version, 3)
  })

  it('come along into the clone of a project', async () => {
    const inline = { name: 'x', execute: { url: 'https://example.com/' } }
    const source = await app.project()
    const bound = await newTool(source.key)
    const provider = { name: 'p', provider: 'custom', default_model: 'm', base_url: 'https://models.example.com/v1' }
    const its = (await source.key.post('/ai-providers', provider)).body.id
    const fields = { tool_bindings: [{ tool_id: bound }, { tool: inline }], active_tool_ids: [bound] }
    const { id } = (await source.key.post('/agents', { ai_provider_id: its, ...fields })).body
    const clone = await app.admin.post(`/projects/${source.id}/clone`, { name: 'copy', include: ['tools', 'agents'] })
    assert.equal(clone.status, 201, JSON.stringify(clone.body))
    const { ids } = clone.body
    const { body } = await app.admin.get(`/agents/${ids[id]}`)
    assert.deepEqual(body.tool_bindings[0], { tool_id: ids[bound] })
    assert.deepEqual(body.active_tool_ids, [ids[bound]])
    assert.equal(body.tool_bindings[1].tool.execute.url, inline.execute.url)
  })
})
