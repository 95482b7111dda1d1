import assert from 'node:assert/strict'
import { eventually, type Reply, startApp, type TestProject } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { active, physical, store } from './support.ts'

const WHOLE = {
  parameters: { Key: { no_echo: true } },
  resources: {
    Secret: { type: 'secret', properties: { name: 'token', value: { param: 'Key' } } },
    Provider: {
      type: 'ai_provider',
      properties: { name: 'Demo', provider: 'ollama', default_model: 'demo', base_url: 'http://127.0.0.1:1' },
    },
    Tool: {
      type: 'tool',
      properties: {
        name: 'lookup',
        execute: {
          url: 'https://example.com/${Secret}/{id}',
          method: 'POST',
          headers: { authorization: { sub: 'Bearer {{secret:${Secret}}} of ${body.x}' } },
        },
        parameters: { type: 'object', properties: { id: { type: 'string' } }, required: ['id'] },
      },
    },
    Store: { type: 'memory_store', properties: { name: 'facts', duplicate_threshold: 0.95, tags: { team: 'a' } } },
    Agent: {
      type: 'agent',
      properties: {
        name: 'Support desk',
        instructions: 'Help.',
        ai_provider_id: { ref: 'Provider' },
        tool_bindings: [{ tool_id: { ref: 'Tool' } }],
        max_steps: 7,
        temperature: 0,
        knowledge_config: { memory_store_ids: [{ ref: 'Store' }] },
      },
    },
    Judge: { type: 'agent', properties: { name: 'Support desk', ai_provider_id: { ref: 'Provider' } } },
    Actor: { type: 'actor', properties: { name: 'Jo', external_id: 'jo', agent_id: { ref: 'Agent' } } },
    Chat: { type: 'chat', properties: { name: 'c', ai_provider_id: { ref: 'Provider' } } },
    Quota: {
      type: 'quota',
      properties: { scope: 'actor', scope_ref: { ref: 'Actor' }, metric: 'tokens', window: 'rolling_24h', limit: 10 },
    },
    Trigger: {
      type: 'trigger',
      properties: { name: 't', type: 'manual', target_type: 'agent', target_id: { ref: 'Agent' } },
    },
    Hook: {
      type: 'webhook',
      properties: { name: 'h', url: 'https://example.com/h', events: ['agents.created'], active: false },
    },
    Dataset: { type: 'dataset', properties: { name: 'd' } },
    Eval: {
      type: 'eval',
      properties: {
        name: 'e',
        agent_id: { ref: 'Agent' },
        dataset_id: { ref: 'Dataset' },
        scorers: [{ type: 'exact_match' }],
      },
    },
    Route: {
      type: 'model_route',
      properties: { name: 'r', targets: [{ ai_provider_id: { ref: 'Provider' }, model: 'm' }] },
    },
    Schema: {
      type: 'metadata_schema',
      properties: { resource_type: 'document', path_prefix: '/a/', schema: { type: 'object' } },
    },
    Document: { type: 'document', properties: { content: 'some text', path: '/d.txt', title: 'D' } },
    Rule: {
      type: 'ingestion_rule',
      properties: { content_type_glob: 'image/*', agent_id: { ref: 'Agent' } },
    },
    Remember: {
      type: 'memory_rule',
      properties: {
        memory_store_id: { ref: 'Store' },
        on: 'generations.completed',
        source_agent_ids: [{ ref: 'Agent' }],
      },
    },
    Decider: {
      type: 'decider',
      properties: {
        name: 'x',
        agent_id: { ref: 'Judge' },
        questions: [{ name: 'fine', type: 'predicate', instructions: 'Fine?' }],
      },
    },
    Workflow: {
      type: 'workflow',
      properties: {
        name: 'w',
        states: [
          { name: 'new', initial: true },
          { name: 'done', terminal: true },
        ],
        transitions: [{ name: 'finish', from: ['new'], to: 'done' }],
      },
    },
  },
}

const CONTENT = { include: ['content'] }

describe('exported templates', () => {
  const app = forSuite(() =>
    startApp({ workers: ['orchestration', 'ingestion'], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }),
  )
  const project = forSuite(() => app.project())

  const exported = ({ key }: TestProject, body: object = {}) => createdBy(key, '/formations/export', body, 200)

  const agentOf = async ({ key }: TestProject): Promise<string> => {
    const provider = { name: 'Double', provider: 'custom', base_url: 'https://127.0.0.1/v1', default_model: 'm' }
    const { id: ai_provider_id } = await createdBy(key, '/ai-providers', provider)
    return (await createdBy(key, '/agents', { name: 'Helper', ai_provider_id })).id
  }

  const resourcesOf = ({ template }: any) => Object.keys(template.resources).sort()

  it('make the same project, which exports the same template', async () => {
    await active(project.key, WHOLE, { parameters: { Key: 'hush' } })
    const first = await exported(project, CONTENT)
    assert.deepEqual([first.warnings, first.parameters], [[], {}])
    const { resources, parameters } = first.template
    assert.equal(Object.keys(resources).length, Object.keys(WHOLE.resources).length)
    assert.deepEqual(parameters, { SecretTokenValue: { description: 'value of SecretToken', no_echo: true } })
    assert.deepEqual(resources.SecretToken.properties.value, { param: 'SecretTokenValue' })
    const { headers, url } = resources.ToolLookup.properties.execute
    assert.equal(url, 'https://example.com/${Secret}/{id}')
    assert.deepEqual(headers.authorization, { sub: 'Bearer {{secret:${SecretToken}}} of ${body.x}' })
    // Defaults are omitted.
    assert.deepEqual(resources.AgentSupportDesk_2, {
      type: 'agent',
      properties: { name: 'Support desk', ai_provider_id: { ref: 'AiProviderDemo' } },
    })
    assert.deepEqual(
      Object.keys(resources.AgentSupportDesk.properties).sort(),
      Object.keys(WHOLE.resources.Agent.properties).sort(),
    )
    assert.doesNotMatch(JSON.stringify(first), /hush|proj_/)
    const second = await app.project()
    await active(second.key, first.template, { parameters: { SecretTokenValue: 'hush' } })
    assert.deepEqual(await exported(second, CONTENT), first)
  })

  it('take ids of unexported resources as parameters, with their values here', async () => {
    const own = await app.project()
    const made = await active(
      own.key,
      {
        ...WHOLE,
        resources: {
          ...WHOLE.resources,
          Dollars: {
            type: 'tool',
            properties: {
              name: 'dollars',
              execute: {
                url: 'https://example.com',
                headers: { x: { sub: '{{secret:${Secret}}} ${D}{Key} $5 ${body.y}' } },
              },
            },
          },
        },
        parameters: { ...WHOLE.parameters, D: { default: '$' } },
      },
      { parameters: { Key: 'hush' } },
    )
    const [agent, tool] = [physical(made, 'Agent'), physical(made, 'Dollars')]
    const part = await exported(own, { resources: [agent, tool] })
    assert.deepEqual(resourcesOf(part), ['AgentSupportDesk', 'ToolDollars'])
    const { properties } = part.template.resources.AgentSupportDesk
    assert.deepEqual(properties.ai_provider_id, { param: 'AiProviderId' })
    assert.deepEqual(properties.knowledge_config, { memory_store_ids: [{ param: 'MemoryStoreId' }] })
    assert.deepEqual(part.parameters, {
      AiProviderId: physical(made, 'Provider'),
      ToolId: physical(made, 'Tool'),
      MemoryStoreId: physical(made, 'Store'),
      SecretId: physical(made, 'Secret'),
    })
    const again = await active(own.key, part.template, { parameters: part.parameters })
    for (const [one, other, path] of [
      [agent, physical(again, 'AgentSupportDesk'), 'agents'],
      [tool, physical(again, 'ToolDollars'), 'tools'],
    ]) {
      const [was, is] = await Promise.all(
        [one, other].map(async id => ({
          ...(await own.key.get(`/${path}/${id}`)).body,
          id: null,
          created_at: null,
          updated_at: null,
        })),
      )
      assert.deepEqual(is, was)
    }
  })

  it('are of the resources of a formation, or of types', async () => {
    const own = await app.project()
    const { id } = await active(own.key, { resources: { S: store('a'), T: store('b') } })
    await own.key.post('/memory-stores', { name: 'c' })
    await own.key.post('/datasets', { name: 'd' })
    assert.deepEqual(resourcesOf(await exported(own, { formation_id: id })), ['MemoryStoreA', 'MemoryStoreB'])
    assert.deepEqual(resourcesOf(await exported(own, { types: ['dataset'] })), ['DatasetD'])
    assert.deepEqual(resourcesOf(await exported(own)), ['DatasetD', 'MemoryStoreA', 'MemoryStoreB', 'MemoryStoreC'])
    const unknown = await own.key.post('/formations/export', { types: ['dataset', 'nothing'] })
    assert.deepEqual(
      unknown.body.error.meta.problems.map(({ path }: any) => path),
      ['types[1]'],
    )
    // Keys and what conversations are made of are left out unless they are named.
    assert.deepEqual(resourcesOf(await exported(own, { types: ['api_key'] })).length, 1)
  })

  it('of a project have its content only on request, named by name, title or path', async () => {
    const own = await app.project()
    await createdBy(own.key, '/memory-stores', { name: 'Facts' })
    const { id: memory_store_id } = await createdBy(own.key, '/memory-stores', { name: 'Notes' })
    await createdBy(own.key, '/memory-entries', { memory_store_id, content: 'Curlews nest in moors' })
    await createdBy(own.key, '/actors', { name: 'Ada', external_id: 'customer-17' })
    await createdBy(own.key, '/documents', { content: 'Opening hours', path: '/shop/hours.md' })
    await createdBy(own.key, '/sessions', { agent_id: await agentOf(own), name: 'Chat' })
    const { id: dataset_id } = await createdBy(own.key, '/datasets', { name: 'Cases' })
    await createdBy(own.key, `/datasets/${dataset_id}/items`, { input: [{ role: 'user', content: 'Hello' }] })
    const configuration = ['AgentHelper', 'AiProviderDouble', 'DatasetCases', 'MemoryStoreFacts', 'MemoryStoreNotes']
    const all = await exported(own)
    assert.deepEqual(resourcesOf(all), configuration)
    const content = ['ActorAda', 'DatasetItem', 'DocumentShopHoursMd', 'MemoryEntry']
    const names = resourcesOf(await exported(own, CONTENT))
    assert.deepEqual(
      names.filter(name => !name.startsWith('Actor') || name === 'ActorAda'),
      [...configuration, ...content].sort(),
    )
    assert.deepEqual(resourcesOf(await exported(own, { types: ['actor'] })).includes('ActorAda'), true)
    const refused = await own.key.post('/formations/export', { include: ['keys'] })
    assert.deepEqual([refused.status, refused.body.error.meta.problems[0].path], [400, 'include[0]'])
  })

  it('need the rights to read all that they hold', async () => {
    const all = await active(project.key, { resources: { S: store('rights') } })
    const foreign = physical(all, 'S')
    const limited = await app.projectWith(['formations:*', 'memories:*', 'evaluations:CreateDataset'])
    const { id } = await active(limited.key, {
      resources: { S: store('a'), D: { type: 'dataset', properties: { name: 'd' } } },
    })
    const dataset = physical(await limited.key.get(`/formations/${id}`).then(({ body }) => body), 'D')
    for (const body of [{}, { formation_id: id }]) {
      const refused = await limited.key.post('/formations/export', body)
      assert.equal(refused.status, 403)
      assert.deepEqual(refused.body.error.meta.denied_actions, [
        { resource_type: 'dataset', action: 'evaluations:GetDataset' },
      ])
    }
    for (const hidden of [dataset, foreign, 'memst_00000000000000000000000000', 'x']) {
      const { status, body } = await limited.key.post('/formations/export', { resources: [hidden] })
      assert.deepEqual([status, body.error.code, body.error.meta.id], [404, 'RESOURCE_NOT_FOUND', hidden])
    }
    const other = await limited.key.post('/formations/export', { formation_id: all.id })
    assert.deepEqual([other.status, other.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    assert.equal((await limited.key.post('/formations/export', { types: ['memory_store'] })).status, 200)
    const without = await app.projectWith(['memories:*'])
    assert.equal((await without.key.post('/formations/export', {})).body.error.meta.action, 'formations:ExportTemplate')
  })

  it('are refused where they would be larger than templates may be', async () => {
    const own = await app.project()
    for (const _ of [1, 2])
      assert.equal((await own.key.post('/documents', { content: 'x'.repeat(600_000) })).status, 201)
    const documents = () => own.key.post('/formations/export', { types: ['document'] })
    const { body } = (await eventually(async () => {
      const reply = await documents()
      return reply.status !== 200 && reply
    })) as Reply
    assert.deepEqual(
      body.error.meta.problems.map(({ code }: any) => code),
      ['TOO_LARGE'],
    )
  })

  it('leave out what templates would read as expressions, and keep circles', async () => {
    const own = await app.project()
    const made = await active(own.key, {
      resources: { Provider: WHOLE.resources.Provider, Agent: { ...WHOLE.resources.Judge } },
    })
    const agent = physical(made, 'Agent')
    const schema = { type: 'object', properties: { ref: { type: 'string' } } }
    const odd = {
      name: 'odd',
      type: 'client',
      parameters: schema,
      preset_parameters: { x: { ref: 'A' }, agent_id: agent },
    }
    const tool = await own.key.post('/tools', odd)
    assert.equal(tool.status, 201, JSON.stringify(tool.body))
    const plain = await own.key.post('/tools', { ...odd, name: 'plain', preset_parameters: { agent_id: agent } })
    const bound = await own.key.patch(`/agents/${agent}`, { tool_bindings: [{ tool_id: plain.body.id }] })
    assert.equal(bound.status, 200, JSON.stringify(bound.body))
    const { template, parameters, warnings } = await exported(own)
    assert.equal('preset_parameters' in template.resources.ToolOdd.properties, false)
    assert.equal(warnings.length, 1)
    assert.match(warnings[0], /ToolOdd.preset_parameters is omitted/)
    assert.deepEqual(parameters, {})
    assert.equal(template.resources.ToolPlain.properties.preset_parameters.agent_id.ref, 'AgentSupportDesk')
    await active(own.key, template, { parameters })
  })
})
