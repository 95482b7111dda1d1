import assert from 'node:assert/strict'
import { rawQuery, sql } from '#core/db/sql.ts'
import { builtInTypes } from '#formations/types/built-in.ts'
import { type Client, eventually, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>
type Refused = {
  type: string
  /** Route of the type, if it is not its plural. */
  route?: string
  properties: Json
  /** Property at fault. */
  path: string
  /** Body of the route, if it is not the properties. */
  body?: Json
}

const BAD_SCHEMA = { type: 'object', properties: { a: { type: 'nothing' } } }
const state = (name: string, more: object = {}) => ({ name, ...more })
const tool = (fields: Json, path: string): Refused => ({ type: 'tool', properties: { name: 't', ...fields }, path })
const url = 'https://example.com/'

/** Bodies that the create of each type refuses, whatever the project has. `ids` are of existing resources. */
const refusedBodies = (ids: Json): Refused[] => [
  { type: 'actor', properties: { name: 'a', agent_id: ids.agent, chat_id: ids.chat }, path: '' },
  { type: 'agent', properties: { name: 'a', model: 'm' }, path: 'model' },
  { type: 'agent', properties: { name: 'a', tool_choice: 'sometimes' }, path: 'tool_choice' },
  { type: 'agent', properties: { ai_provider_id: ids.provider, tool_choice: 'required' }, path: '' },
  { type: 'agent', properties: { ai_provider_id: ids.provider, output_schema: BAD_SCHEMA }, path: 'output_schema' },
  {
    type: 'agent',
    properties: {
      ai_provider_id: ids.provider,
      boundary_policy: { statement: [{ effect: 'Allow', action: ['no:Thing'] }] },
    },
    path: 'boundary_policy',
  },
  { type: 'ai_provider', properties: { name: 'p', provider: 'custom', default_model: 'm' }, path: 'base_url' },
  { type: 'ai_provider', properties: { name: 'p', provider: 'none', default_model: 'm' }, path: 'provider' },
  { type: 'ai_provider', properties: { name: 'p', provider: 'bedrock', default_model: 'm' }, path: '' },
  {
    type: 'api_key',
    route: 'project-keys',
    properties: { name: 'k', expires_at: '2020-01-01T00:00:00Z' },
    path: 'expires_at',
  },
  { type: 'chat', properties: { model: 'm' }, path: 'model' },
  { type: 'conversation', properties: { status: 'none' }, path: 'status' },
  { type: 'dataset', properties: { name: '' }, path: 'name' },
  {
    type: 'dataset_item',
    route: `datasets/${ids.dataset}/items`,
    properties: { dataset_id: ids.dataset, input: [{ role: 'system', content: 'x' }] },
    body: { input: [{ role: 'system', content: 'x' }] },
    path: '',
  },
  {
    type: 'decider',
    properties: { name: 'd', questions: [{ type: 'predicate', name: 'q', instructions: 'q?' }] },
    path: 'tool_id',
  },
  { type: 'document', properties: { content: 'x', chunk_strategy: 'none' }, path: 'chunk_strategy' },
  {
    type: 'eval',
    properties: { name: 'e', agent_id: ids.agent, dataset_id: ids.dataset, scorers: [{ type: 'none' }] },
    path: 'scorers',
  },
  { type: 'file', properties: { filename: 'a', content_type: 'text/plain', size: -1 }, path: 'size' },
  {
    type: 'guardrail',
    properties: { name: 'g', class: { nothing: [] } },
    body: { name: 'g', document: { class: { nothing: [] } } },
    path: 'class',
  },
  { type: 'ingestion_rule', properties: { content_type_glob: 'text/*' }, path: 'tool_id' },
  { type: 'ingestion_rule', properties: { content_type_glob: 'text', agent_id: ids.agent }, path: 'content_type_glob' },
  {
    type: 'memory_entry',
    route: 'memory-entries',
    properties: { memory_store_id: ids.store, content: '' },
    path: 'content',
  },
  {
    type: 'memory_rule',
    properties: { memory_store_id: ids.store, on: 'conversation_messages.generated' },
    path: 'on',
  },
  { type: 'memory_rule', properties: { memory_store_id: ids.store, on: 'none' }, path: 'on' },
  {
    type: 'memory_store',
    properties: { name: 's', duplicate_threshold: 0.5, supersede_threshold: 0.9 },
    path: 'supersede_threshold',
  },
  {
    type: 'metadata_schema',
    properties: { resource_type: 'document', path_prefix: '/', schema: BAD_SCHEMA },
    path: 'schema',
  },
  { type: 'model_route', properties: { name: 'r', targets: [] }, path: 'targets' },
  {
    type: 'orchestration',
    properties: { name: 'o', nodes: [{ id: 'a', type: 'human', prompt: 'x' }], edges: [{ from: 'a', to: 'b' }] },
    path: 'edges[0].to',
  },
  {
    type: 'orchestration',
    properties: { name: 'o', nodes: [{ id: 'a', type: 'human', prompt: 'x' }], edges: [], state_schema: BAD_SCHEMA },
    path: 'state_schema',
  },
  { type: 'playbook', properties: { name: 'p', steps: [{ key: 'a', title: 'a', type: 'none' }] }, path: 'steps' },
  {
    type: 'playbook',
    properties: { name: 'p', steps: [{ key: 'a', title: 'a', type: 'manual' }], input_schema: BAD_SCHEMA },
    path: 'input_schema',
  },
  {
    type: 'policy',
    route: 'policies',
    properties: { document: { statement: [{ effect: 'Allow', action: ['no:Thing'] }] } },
    path: 'document',
  },
  {
    type: 'project_price',
    properties: { provider: 'p', model: 'm', component: 'c', unit: 'u', unit_price: 1, quantity: { var: 'a' } },
    path: 'quantity',
  },
  { type: 'quota', properties: { scope: 'project', metric: 'none', window: 'day', limit: 1 }, path: 'metric' },
  { type: 'secret', properties: { name: 's', source: { type: 'vault', path: 'p' } }, path: 'source.type' },
  { type: 'session', properties: { agent_id: ids.agent, tool_context: { 'not a key': 'x' } }, path: '' },
  tool({ execute: { url: 'ftp://example.com/' } }, 'execute.url'),
  tool({ execute: { url: `${url}{{nothing:x}}` } }, 'execute'),
  tool({ execute: { url, headers: { host: 'x' } } }, 'execute.headers.host'),
  tool({ type: 'platform', actions: ['no-such-action'] }, 'actions'),
  tool({ execute: { url }, parameters: BAD_SCHEMA }, 'parameters'),
  tool({ execute: { url }, context_keys: ['not a key'] }, 'context_keys'),
  tool({ type: 'pipeline' }, 'pipeline'),
  tool({ type: 'pipeline', pipeline: { steps: [{ id: 'a b', tool_id: ids.tool }] } }, 'pipeline.steps[0].id'),
  {
    type: 'trigger',
    properties: { name: 't', type: 'schedule', target_type: 'agent', target_id: ids.agent },
    path: 'cron',
  },
  {
    type: 'trigger',
    properties: { name: 't', type: 'schedule', cron: 'whenever', target_type: 'agent', target_id: ids.agent },
    path: '',
  },
  {
    type: 'trigger',
    properties: { name: 't', type: 'event', event_pattern: 'Nothing!', target_type: 'agent', target_id: ids.agent },
    path: '',
  },
  {
    type: 'trigger',
    properties: { name: 't', type: 'manual', cron: '* * * * *', target_type: 'agent', target_id: ids.agent },
    path: 'cron',
  },
  {
    type: 'prepared_reply',
    route: 'prepared-replies',
    properties: { name: '', text: 'hello' },
    path: 'name',
  },
  { type: 'webhook', properties: { name: 'w', url: 'ftp://example.com/', events: ['*'] }, path: 'url' },
  { type: 'workflow', properties: { name: 'w', states: [state('a')], transitions: [] }, path: 'states' },
  {
    type: 'workflow',
    properties: {
      name: 'w',
      states: [state('a', { initial: true }), state('b', { terminal: true })],
      transitions: [{ name: 'go', from: ['a'], to: 'b' }],
      payload_schema: BAD_SCHEMA,
    },
    path: 'payload_schema',
  },
]

describe('the validation of a template', () => {
  const app = forSuite(startApp)
  let key: Client
  let ids: Json
  let projectId: string

  before(async () => {
    const project = await app.project()
    ;({ key } = project)
    projectId = project.id
    const made = async (path: string, body: object): Promise<string> => (await createdBy(key, path, body)).id
    const provider = await made('/ai-providers', { name: 'p', provider: 'ollama', default_model: 'm' })
    ids = {
      provider,
      agent: await made('/agents', { name: 'a', ai_provider_id: provider }),
      chat: await made('/chats', { ai_provider_id: provider }),
      dataset: await made('/datasets', { name: 'd' }),
      store: await made('/memory-stores', { name: 's' }),
      tool: await made('/tools', { name: 't', execute: { url } }),
    }
  })

  const validate = (resource: object, more: object = {}) =>
    createdBy(
      key,
      '/formations/validate',
      {
        template: { ...more, resources: { It: resource } },
      },
      200,
    )

  it('refuses what the create of each type refuses', async () => {
    const failures: string[] = []
    const cases = refusedBodies(ids)
    for (const { type, route = `${type.replaceAll('_', '-')}s`, properties, body = properties, path } of cases) {
      const label = `${type} ${JSON.stringify(properties).slice(0, 120)}`
      if (type !== 'project_price') {
        const reply = await app.admin.post(`/${route}`, type === 'policy' ? body : { project_id: projectId, ...body })
        if (reply.status !== 400) failures.push(`${label}: REST ${reply.status} ${JSON.stringify(reply.body)}`)
      }
      const { valid, errors } = await validate({ type, properties })
      const at = `resources.It.properties${path && `.${path}`}`
      if (
        valid ||
        !errors.some(
          (each: { path: string }) =>
            each.path === at || each.path.startsWith(`${at}.`) || each.path.startsWith(`${at}[`),
        )
      )
        failures.push(`${label}: ${JSON.stringify(errors)} without ${at}`)
    }
    assert.deepEqual(failures, [])
    const covered = new Set(cases.map(({ type }) => type))
    assert.deepEqual(
      builtInTypes(app.services)
        .filter(({ name }) => !covered.has(name))
        .map(({ name }) => name),
      [],
    )
  })

  it('checks values with references as far as they are known', async () => {
    const parameters = { Cron: {}, Url: {}, Class: {} }
    const schedule = (cron: unknown) => ({
      type: 'trigger',
      properties: { name: 't', type: 'schedule', cron, target_type: 'agent', target_id: ids.agent },
    })
    assert.equal((await validate(schedule({ param: 'Cron' }), { parameters })).valid, true)
    assert.equal((await validate(schedule('whenever'), { parameters })).valid, false)
    const reached = await validate(
      { type: 'tool', properties: { name: 't', execute: { url: { param: 'Url' } } } },
      { parameters },
    )
    assert.equal(reached.valid, true, JSON.stringify(reached.errors))
    const key = await validate({ type: 'api_key', properties: {} })
    assert.deepEqual(
      key.errors.map(({ path }: any) => path),
      ['resources.It.properties.name'],
    )
  })

  describe('in a project', () => {
    const MISSING = 'aip_00000000000000000000000000'
    const agentOf = (ai_provider_id: unknown) => ({ type: 'agent', properties: { name: 'x', ai_provider_id } })
    const datasetOf = (name: string) => ({ type: 'dataset', properties: { name } })
    const check = async (resources: object, client = key, more: object = {}) => {
      const { status, body } = await client.post('/formations/validate', { template: { resources }, ...more })
      assert.equal(status, 200, JSON.stringify(body))
      return { ...body, paths: body.errors.map(({ path }: { path: string }) => path) }
    }
    const rowCounts = async () => {
      const { rows } = await app.pool.query(
        rawQuery(`select (select count(*) from agents) as agents, (select count(*) from datasets) as datasets,
          (select count(*) from events) as events, (select count(*) from audit_entries where action like '%:Create%') as audits,
          (select count(*) from pgboss.job_common) as messages`),
      )
      return rows[0]
    }

    it('finds IDs that do not exist, taken names and reached limits, and writes nothing', async () => {
      assert.equal((await key.post('/datasets', { name: 'taken' })).status, 201)
      const foreign = (
        await (await app.project()).key.post('/ai-providers', { name: 'p', provider: 'ollama', default_model: 'm' })
      ).body.id
      const before = await rowCounts()
      const { valid, paths, errors } = await check({
        Missing: agentOf(MISSING),
        Foreign: agentOf(foreign),
        Good: agentOf(ids.provider),
        Linked: { type: 'chat', properties: { ai_provider_id: { ref: 'Provider' }, name: 'c' } },
        Provider: { type: 'ai_provider', properties: { name: 'q', provider: 'ollama', default_model: 'm' } },
        Taken: datasetOf('taken'),
        One: datasetOf('twice'),
        Two: datasetOf('twice'),
        Memory: {
          type: 'memory_entry',
          properties: { memory_store_id: 'memst_00000000000000000000000000', content: 'x' },
        },
      })
      assert.equal(valid, false)
      assert.deepEqual(paths.toSorted(), [
        'resources.Foreign.properties.ai_provider_id',
        'resources.Memory.properties.memory_store_id',
        'resources.Missing.properties.ai_provider_id',
        'resources.Taken.properties.name',
        'resources.Two.properties.name',
      ])
      // An ID of another project is answered like an ID that does not exist.
      const messageOf = (name: string) =>
        errors.find(({ path }: any) => path.includes(name)).message.replace(/aip_\w+/, '')
      assert.equal(messageOf('Foreign'), messageOf('Missing'))
      assert.deepEqual(await rowCounts(), before)
      assert.equal((await check({ Good: agentOf(ids.provider), Free: datasetOf('free') })).valid, true)
    })

    it('finds exceeded quotas', async () => {
      const project = await app.project()
      const quota = { scope: 'project', metric: 'storage_bytes', window: 'current', limit: 10 }
      assert.equal((await project.key.post('/quotas', quota)).status, 201)
      const file = { type: 'file', properties: { filename: 'a.txt', content_type: 'text/plain', size: 100 } }
      const { valid, errors } = await check({ File: file }, project.key)
      assert.deepEqual([valid, errors.length, errors[0]?.path], [false, 1, 'resources.File.properties'])
    })

    it('does not keep other requests waiting', async () => {
      const agent = (await key.post('/agents', { name: 'shared', ai_provider_id: ids.provider })).body.id
      const actors = Object.fromEntries(
        Array.from({ length: 500 }, (_, index) => [
          `Actor${index}`,
          { type: 'actor', properties: { name: `a${index}`, agent_id: agent } },
        ]),
      )
      const started = performance.now()
      const checking = check(actors)
      const hasBegun = sql.unsafe`
        select exists (select from pg_locks where relation = 'actors'::regclass and mode = 'RowExclusiveLock')`
      await eventually(async () => await app.pool.oneFirst(hasBegun), { every: 10, what: 'the first creates' })
      const patched = performance.now()
      assert.equal((await key.patch(`/agents/${agent}`, { description: 'changed' })).status, 200)
      const waited = performance.now() - patched
      const { valid, warnings } = await checking
      const took = performance.now() - started
      assert.ok(waited < took / 3, `${waited} of ${took} ms`)
      // It began again, and has left none for the sake of others.
      assert.deepEqual([valid, warnings.filter(({ message }: any) => /other requests/.test(message))], [true, []])
    })

    it('tries only what the caller may create', async () => {
      const limited = await app.projectWith(['evaluations:CreateDataset'])
      const { valid, errors, warnings } = await check({ A: agentOf(MISSING), S: datasetOf('s') }, limited.key)
      assert.deepEqual([valid, errors], [true, []])
      assert.deepEqual(warnings, [
        { path: 'resources.A', message: 'not checked against the project: agents:CreateAgent is not permitted' },
      ])
    })

    it('does not reveal the values of outputs that the caller may not read', async () => {
      const owner = await app.projectWith(['formations:*', 'agents:*', 'ai-providers:*', 'memories:*'])
      const template = {
        resources: { S: { type: 'memory_store', properties: { name: 's' } } },
        outputs: { secret: 'hidden-value-of-an-output' },
      }
      const made = await owner.key.post('/formations?wait=false', { name: 'source', template })
      assert.equal(made.status, 202, JSON.stringify(made.body))
      // No worker deploys it here.
      await app.pool.query(
        rawQuery(`update formations set status = 'active', outputs = '${JSON.stringify(template.outputs)}'
          where id = '${made.body.id}'`),
      )
      const reader = await app.admin.post('/project-keys', {
        project_id: owner.id,
        name: 'reader',
        policy_ids: [
          (
            await app.admin.post('/policies', {
              document: { statement: [{ effect: 'Allow', action: ['agents:CreateAgent'], resource: ['*'] }] },
            })
          ).body.id,
        ],
      })
      const importing = { A: { type: 'agent', properties: { ai_provider_id: { import: 'source.secret' } } } }
      const found = await check(importing, app.as(reader.body.secret))
      assert.doesNotMatch(JSON.stringify(found), /hidden-value/)
      assert.deepEqual(found.paths, ['resources'])
    })

    it('needs a project for it: of the credential, or given, which the caller must see', async () => {
      assert.equal((await check({ A: agentOf(MISSING) }, app.admin)).valid, true)
      const given = { project_id: projectId }
      assert.deepEqual((await check({ A: agentOf(MISSING) }, app.admin, given)).paths, [
        'resources.A.properties.ai_provider_id',
      ])
      const template = { resources: { A: agentOf(MISSING) } }
      const stranger = await app.user()
      for (const [client, project_id] of [
        [stranger, projectId],
        [app.admin, 'proj_00000000000000000000000000'],
        [app.admin, 'x'],
      ] as const) {
        const { status, body } = await client.post('/formations/validate', { project_id, template })
        assert.deepEqual([status, body.error.code, body.error.meta.id], [404, 'RESOURCE_NOT_FOUND', project_id])
      }
      const other = await app.project()
      const { status, body } = await other.key.post('/formations/validate', { ...given, template })
      assert.deepEqual([status, body.error.code], [403, 'API_KEY_PROJECT_SCOPE'])
    })
  })

  it('warns of addresses that are blocked, as the plan and the deploy do', async () => {
    const { key } = await app.project()
    const blocked = 'http://169.254.169.254/x'
    const template = {
      parameters: { Url: { default: blocked } },
      resources: {
        Hook: { type: 'webhook', properties: { name: 'h', url: { param: 'Url' }, events: ['agents.*'] } },
        Tool: { type: 'tool', properties: { name: 't', execute: { url: blocked } } },
        Fine: { type: 'tool', properties: { name: 'f', execute: { url } } },
      },
    }
    const paths = (body: any) => body.warnings?.map(({ path }: any) => path).filter((path: string) => /url/.test(path))
    const both = ['resources.Hook.properties.url', 'resources.Tool.properties.execute.url']
    const { body: checked } = await key.post('/formations/validate', { template })
    assert.deepEqual([checked.valid, paths(checked)], [true, both.slice(1)])
    assert.deepEqual(paths((await key.post('/formations/plan', { template })).body), both)
    const made = await key.post('/formations?wait=false', { name: 'w', template })
    assert.deepEqual([made.status, paths(made.body)], [202, both], JSON.stringify(made.body))
  })
})
