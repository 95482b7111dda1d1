import assert from 'node:assert/strict'
import { startDouble } from '#local/double/server.ts'
import { upload } from '../content/file-support.ts'
import { type Client, eventually, startApp } from '../support/app.ts'
import { bodyOf, createdBy } from '../support/replies.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'

/**
 * Whose rights the effects of definitions have, whatever starts them. The effect is a secret that a platform tool makes;
 * definitions and starts are by users who may make secrets and by one with all other permissions.
 */
describe('effects of definitions', function () {
  this.timeout(240_000)
  const double = forSuite(() => startDouble({}))
  const app = forSuite(() =>
    startApp({ workers: ['generation', 'orchestration', 'trigger', 'evaluation', 'ingestion'] }),
  )
  const admin = forSuite(() => app.admin)
  let projectId: string
  /** May do everything in the project. */
  let wide: Client & { id: string }
  /** May do everything in the project but make secrets. */
  let narrow: Client & { id: string }
  let providerId: string
  let counter = 0

  const named = (what: string): string => `${what.replaceAll(/[^a-z]+/g, '-')}-${++counter}`
  /** What a user makes in the project. */
  const made = (by: Client, path: string, body: object): Promise<any> =>
    createdBy(by, path, { project_id: projectId, ...body })

  before(async () => {
    projectId = (await bodyOf(admin.post('/projects', { name: 'rights' }))).id
    const resource = [`srn:${projectId}:*:*`]
    const everything = { effect: 'Allow', action: ['*'], resource }
    wide = await app.user(undefined, [{ statement: [everything] }])
    const but = { effect: 'Deny', action: ['secrets:CreateSecret'], resource }
    narrow = await app.user(undefined, [{ statement: [everything, but] }])
    const provider = { name: 'double', provider: 'custom', default_model: 'double-1', base_url: `${double.url}/v1` }
    providerId = (await made(admin, '/ai-providers', provider)).id
  })

  /** A platform tool that makes a secret of a name when it is called, whatever it is given. */
  const maker = (by: Client, name: string, more: object = {}): Promise<any> =>
    made(by, '/tools', {
      name: named('maker'),
      type: 'platform',
      actions: ['create-secret'],
      preset_parameters: { action: 'create-secret', name, value: 'v' },
      ...more,
    })
  /** The same as a pipeline, which answers something. */
  const pipeline = async (by: Client, name: string, output: unknown): Promise<any> => {
    const tool = { name: 'inline', type: 'platform', actions: ['create-secret'] }
    const step = { id: 'make', action: 'create-secret', tool, input: { name, value: 'v' } }
    return made(by, '/tools', { name: named('pipeline'), type: 'pipeline', pipeline: { steps: [step], output } })
  }
  const agent = (by: Client, fields: object): Promise<any> =>
    made(by, '/agents', { name: named('agent'), ai_provider_id: providerId, ...fields })
  const exists = async (name: string): Promise<boolean> =>
    (await bodyOf(admin.get(`/secrets?project_id=${projectId}&limit=100`))).data.some((each: any) => each.name === name)
  const ended = (status: string) => ['succeeded', 'completed', 'failed', 'cancelled', 'ready', 'error'].includes(status)

  const toolNode = (tool_id: string) => ({
    nodes: [{ id: 'a', type: 'tool', tool_id, operation_id: 'create-secret' }],
    edges: [],
  })
  const generate = (by: Client, agentId: string, ...replies: object[]) =>
    by.post(`/agents/${agentId}/generate?wait=true`, { prompt: scriptOf(...replies, { text: 'done' }) })

  /** Ways to cause the effect: by a definition of an author, started by a starter. Each resolves when the work has ended. */
  const WAYS: Record<string, (author: Client, starter: Client, secret: string) => Promise<unknown>> = {
    'a tool that is called': async (author, starter, secret) =>
      starter.post(`/tools/${(await maker(author, secret)).id}/call`),
    'a pipeline that is called': async (author, starter, secret) =>
      starter.post(`/tools/${(await pipeline(author, secret, 'made')).id}/call`),
    'a pipeline whose step names a tool': async (author, starter, secret) => {
      const { id: tool_id } = await maker(wide, secret)
      const steps = [{ id: 'make', tool_id, action: 'create-secret' }]
      const tool = await made(author, '/tools', { name: named('steps'), type: 'pipeline', pipeline: { steps } })
      return starter.post(`/tools/${tool.id}/call`)
    },
    'an agent': async (author, starter, secret) => {
      const tool = await maker(wide, secret)
      const { id } = await agent(author, { tool_bindings: [{ tool_id: tool.id }] })
      return generate(starter, id, toolCall(`${tool.name}_create-secret`))
    },
    'a tool of an agent': async (author, starter, secret) => {
      const tool = await maker(author, secret)
      const { id } = await agent(wide, { tool_bindings: [{ tool_id: tool.id }] })
      return generate(starter, id, toolCall(`${tool.name}_create-secret`))
    },
    'an agent that calls another one': async (author, starter, secret) => {
      const tool = await maker(wide, secret)
      const below = await agent(wide, { tool_bindings: [{ tool_id: tool.id }] })
      const asking = await made(wide, '/tools', {
        name: named('ask'),
        type: 'platform',
        actions: ['create-agent-generation'],
      })
      const { id } = await agent(author, { tool_bindings: [{ tool_id: asking.id }] })
      const prompt = scriptOf(toolCall(`${tool.name}_create-secret`), { text: 'below' })
      return generate(starter, id, toolCall(`${asking.name}_create-agent-generation`, { agent_id: below.id, prompt }))
    },
    'an orchestration': async (author, starter, secret) => {
      const { id } = await made(author, '/orchestrations', {
        name: 'graph',
        ...toolNode((await maker(wide, secret)).id),
      })
      return made(starter, '/orchestration-runs', { orchestration_id: id, wait: true })
    },
    'an orchestration above another one': async (author, starter, secret) => {
      const below = await made(wide, '/orchestrations', { name: 'below', ...toolNode((await maker(wide, secret)).id) })
      const nodes = [{ id: 'a', type: 'sub_orchestration', orchestration_id: below.id }]
      const { id } = await made(author, '/orchestrations', { name: 'above', nodes, edges: [] })
      return made(starter, '/orchestration-runs', { orchestration_id: id, wait: true })
    },
    'an orchestration that a trigger starts': async (author, starter, secret) => {
      const graph = await made(author, '/orchestrations', {
        name: 'graph',
        ...toolNode((await maker(wide, secret)).id),
      })
      const fields = { name: named('trigger'), type: 'manual', target_type: 'orchestration', target_id: graph.id }
      const trigger = await made(starter, '/triggers', fields)
      return bodyOf(admin.post(`/triggers/${trigger.id}/fire`))
    },
    'a workflow': async (author, starter, secret) => {
      const { id: tool_id } = await maker(wide, secret)
      const on_enter = { dispatch: { kind: 'tool', tool_id, operation_id: 'create-secret' } }
      const workflow = await made(author, '/workflows', {
        name: named('workflow'),
        states: [
          { name: 'open', initial: true, on_enter },
          { name: 'done', terminal: true },
        ],
        transitions: [{ name: 'finish', from: ['open'], to: 'done' }],
      })
      const task = await made(starter, '/tasks', { workflow_id: workflow.id, title: 'a task' })
      return eventually(async () => {
        const { automation_status } = (await admin.get(`/tasks/${task.id}`)).body
        return automation_status !== 'pending' && automation_status !== 'running'
      })
    },
    'a playbook': async (author, starter, secret) => {
      const { id: tool_id } = await maker(wide, secret)
      const steps = [{ key: 'make', title: 'Make', type: 'call_tool', tool_id, operation_id: 'create-secret' }]
      const { id: playbook_id } = await made(author, '/playbooks', { name: named('playbook'), steps })
      const { id: case_id } = await made(starter, '/cases', { title: 'a case' })
      const { id } = await bodyOf(starter.post('/playbook-executions', { case_id, playbook_id }))
      return eventually(async () => ended((await admin.get(`/playbook-executions/${id}`)).body.status))
    },
    'a decider': async (author, starter, secret) => {
      const { id: tool_id } = await pipeline(wide, secret, {
        answers: [{ type: 'predicate', name: 'q', probability: 1 }],
      })
      const questions = [{ type: 'predicate', name: 'q', instructions: 'Is it?' }]
      const { id } = await made(author, '/deciders', { name: named('decider'), tool_id, questions })
      return bodyOf(starter.post(`/deciders/${id}/decisions`, { input: {}, wait: true }))
    },
    'an ingestion rule': async (author, starter, secret) => {
      const { id: tool_id } = await pipeline(wide, secret, 'a text')
      const content_type = `audio/${named('x')}`
      await made(author, '/ingestion-rules', { content_type_glob: content_type, tool_id })
      const part = { bytes: 'bytes', name: named('sound'), type: content_type }
      const file = await bodyOf(upload(app.url, starter, part, { project_id: projectId }))
      const { id } = await bodyOf(starter.post('/documents/ingest', { project_id: projectId, file_id: file.id }))
      return eventually(async () => ended((await admin.get(`/documents/${id}`)).body.status))
    },
    'an eval': async (author, starter, secret) => {
      const { id: tool_id } = await pipeline(wide, secret, { score: 1, passed: true })
      const dataset = await made(wide, '/datasets', { name: named('dataset') })
      const input = [{ role: 'user', content: 'hello' }]
      await bodyOf(wide.post(`/datasets/${dataset.id}/items`, { input }))
      const { id } = await made(author, '/evals', {
        name: named('eval'),
        agent_id: (await agent(wide, {})).id,
        dataset_id: dataset.id,
        scorers: [{ type: 'tool', name: 's', tool_id }],
      })
      return bodyOf(starter.post(`/evals/${id}/runs`, { wait: true }))
    },
    'an agent whose call a person approves': async (author, starter, secret) => {
      const rule = await made(wide, '/guardrails', { name: named('rule'), document: { class: 'C' } })
      const tool = await maker(wide, secret, { guardrail_ids: [rule.id] })
      const { id } = await agent(author, { tool_bindings: [{ tool_id: tool.id }] })
      const { id: generation } = await bodyOf(generate(starter, id, toolCall(`${tool.name}_create-secret`)))
      const pending = await bodyOf(admin.get(`/approvals?project_id=${projectId}&status=pending`))
      const item = pending.data.find((each: any) => each.generation_id === generation)
      await bodyOf(admin.post(`/approvals/${item.id}/approve`))
      return eventually(async () => (await admin.get(`/approvals/${item.id}`)).body.execution.finished_at)
    },
    'a memory rule that is tried': async (author, starter, secret) => {
      const tool = await pipeline(wide, secret, [])
      const store = await made(wide, '/memory-stores', { name: named('store') })
      const { id: talked } = await bodyOf(generate(wide, (await agent(wide, {})).id))
      const fields = { memory_store_id: store.id, on: 'generations.completed', tool_id: tool.id, enabled: false }
      const rule = await made(author, '/memory-rules', fields)
      return starter.post(`/memory-rules/${rule.id}/test`, { generation_id: talked })
    },
  }

  for (const [way, start] of Object.entries(WAYS))
    it(`happens by ${way} where its starter and its author may both do it`, async () => {
      for (const author of [wide, narrow])
        for (const starter of [wide, narrow]) {
          const secret = named(way)
          await start(author, starter, secret)
          const expected = author === wide && starter === wide
          const who = `author ${author === wide ? 'wide' : 'narrow'}, starter ${starter === wide ? 'wide' : 'narrow'}`
          assert.equal(await exists(secret), expected, who)
        }
    })

  it('are refused with the definition ID until a permitted user adopts it', async () => {
    const secret = named('adopted')
    const tool = await maker(narrow, secret)
    const refused = await wide.post(`/tools/${tool.id}/call`)
    assert.equal(refused.status, 403, JSON.stringify(refused.body))
    assert.equal(refused.body.error.code, 'FORBIDDEN')
    assert.deepEqual(refused.body.error.meta, { action: 'secrets:CreateSecret', resource: tool.id })
    const adopted = await wide.post(`/tools/${tool.id}/adopt`)
    assert.deepEqual([adopted.status, adopted.body.id], [200, tool.id])
    assert.equal((await wide.post(`/tools/${tool.id}/call`)).status, 200)
    assert.ok(await exists(secret))
  })

  it('keep the author on changes of names and descriptions, and get another one on other changes', async () => {
    const secret = named('renamed')
    const tool = await maker(wide, secret)
    await bodyOf(narrow.patch(`/tools/${tool.id}`, { name: named('renamed'), description: 'as before' }))
    assert.equal((await wide.post(`/tools/${tool.id}/call`)).status, 200)
    await bodyOf(narrow.patch(`/tools/${tool.id}`, { idempotent: true }))
    assert.equal((await wide.post(`/tools/${tool.id}/call`)).body.error.code, 'FORBIDDEN')
    const graph = await made(wide, '/orchestrations', {
      name: 'graph',
      ...toolNode((await maker(wide, named('graph'))).id),
    })
    await bodyOf(narrow.patch(`/orchestrations/${graph.id}`, { name: 'another name' }))
    const run = () => made(wide, '/orchestration-runs', { orchestration_id: graph.id, wait: true })
    assert.equal((await run()).status, 'succeeded')
    const nodes = [...graph.nodes, { id: 'b', type: 'transform', expression: 1 }]
    await bodyOf(narrow.patch(`/orchestrations/${graph.id}`, { nodes }))
    const { error } = await run()
    assert.deepEqual([error.code, error.meta.resource], ['FORBIDDEN', graph.id])
    // The version that the other user wrote acts as before.
    const old = await made(wide, '/orchestration-runs', {
      orchestration_id: graph.id,
      orchestration_version: 1,
      wait: true,
    })
    assert.equal(old.status, 'succeeded', JSON.stringify(old.error))
    assert.equal((await bodyOf(wide.post(`/orchestrations/${graph.id}/adopt`))).version, 3)
    assert.equal((await run()).status, 'succeeded')
  })

  it('are refused when the author is deleted, for every kind of definition', async () => {
    const resource = [`srn:${projectId}:*:*`]
    const author = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['*'], resource }] }])
    const secret = named('orphan')
    const tool = await maker(author, secret)
    const graph = await made(author, '/orchestrations', { name: 'graph', ...toolNode(tool.id) })
    const listed = await bodyOf(author.get(`/users/${author.id}/authored`))
    assert.deepEqual(
      listed.data.map((each: any) => [each.kind, each.id, each.project_id, each.author]),
      [
        ['orchestration', graph.id, projectId, { kind: 'user', id: author.id }],
        ['tool', tool.id, projectId, { kind: 'user', id: author.id }],
      ],
    )
    assert.equal(listed.total, 2)
    assert.equal((await narrow.get(`/users/${author.id}/authored`)).status, 403)
    assert.equal((await wide.post(`/tools/${tool.id}/call`)).status, 200)
    assert.equal((await admin.delete(`/users/${author.id}`)).status, 204)
    const { error } = (await wide.post(`/tools/${tool.id}/call`)).body
    assert.deepEqual(
      [error.code, error.meta],
      ['FORBIDDEN', { action: 'secrets:CreateSecret', resource: tool.id, author_unavailable: true }],
    )
    const run = await made(wide, '/orchestration-runs', { orchestration_id: graph.id, wait: true })
    assert.deepEqual([run.error.code, run.error.meta.author_unavailable], ['FORBIDDEN', true])
    // An admin has every right, but none that an author must lend.
    assert.equal((await admin.post(`/tools/${tool.id}/call`)).body.error.code, 'FORBIDDEN')
    await bodyOf(admin.post(`/tools/${tool.id}/adopt`))
    assert.equal((await wide.post(`/tools/${tool.id}/call`)).body.error?.code, undefined)
  })

  it('stay in the project and without the admin gate for every caller', async () => {
    const other = (await bodyOf(admin.post('/projects', { name: 'other' }))).id
    const victim = await app.user()
    const policy = (
      await bodyOf(admin.post('/policies', { document: { statement: [{ effect: 'Allow', action: ['*'] }] } }))
    ).id
    const tool = await made(wide, '/tools', {
      name: named('reach'),
      type: 'platform',
      actions: ['list-secrets', 'list-users', 'attach-user-policy', 'create-project-key', 'create-secret'],
    })
    const reach = async (action: string, input: object) => {
      const { status, body } = await admin.post(`/tools/${tool.id}/call`, { action, input })
      return [status, body.error?.meta?.tool_status_code, body.error?.message]
    }
    assert.deepEqual(await reach('list-secrets', { project_id: other }), [
      502,
      403,
      'list-secrets responded with 403 API_KEY_PROJECT_SCOPE',
    ])
    assert.deepEqual(await reach('create-secret', { project_id: other, name: 'x', value: 'y' }), [
      502,
      403,
      'create-secret responded with 403 API_KEY_PROJECT_SCOPE',
    ])
    assert.deepEqual(await reach('list-users', {}), [502, 403, 'list-users responded with 403 FORBIDDEN'])
    assert.deepEqual(await reach('attach-user-policy', { user_id: victim.id, policy_id: policy }), [
      502,
      403,
      'attach-user-policy responded with 403 FORBIDDEN',
    ])
    assert.deepEqual(await reach('create-project-key', { project_id: projectId }), [
      502,
      403,
      'create-project-key responded with 403 FORBIDDEN',
    ])
    assert.equal((await admin.post(`/tools/${tool.id}/call`, { action: 'list-secrets', input: {} })).status, 200)
    assert.deepEqual((await bodyOf(admin.get(`/users/${victim.id}/policies`))).data ?? [], [])
  })
})
