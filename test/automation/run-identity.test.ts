import assert from 'node:assert/strict'
import { json } from '../execution/tool-target.ts'
import { forSuite } from '../support/suite.ts'
import { chain, startRunApp } from './fixtures.ts'

describe('acting principal of runs', function () {
  this.timeout(60_000)
  const app = forSuite(startRunApp)
  let tool_id: string

  before(async () => {
    const made = await app.admin.post('/tools', {
      project_id: app.projectId,
      name: 'platform',
      type: 'platform',
      actions: ['list-orchestrations'],
    })
    if (made.status === 201) tool_id = made.body.id
    else assert.fail(JSON.stringify(made.body))
  })
  beforeEach(() => {
    app.target.answer = json({ ok: true })
  })

  /** A key of the project that may do just this. */
  const keyWith = async (...actions: string[]) => {
    const statement = [{ effect: 'Allow', action: actions, resource: [`srn:${app.projectId}:*:*`] }]
    const policy = (await app.admin.post('/policies', { document: { statement } })).body
    const { body } = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.id] })
    return { client: app.as(body.secret), id: body.id as string }
  }
  const list = (id: string) => ({ id, type: 'tool', tool_id, operation_id: 'list-orchestrations' })

  it('may do through a platform tool what the principal that started it may', async () => {
    const graph = await app.orchestration([list('a')])
    const narrow = await keyWith('orchestrations:StartRun', 'orchestrations:GetRun')
    const run = (await narrow.client.post('/orchestration-runs', { orchestration_id: graph, wait: true })).body
    assert.equal(run.status, 'failed', JSON.stringify(run))
    assert.equal(run.error.meta.tool_status_code, 403, JSON.stringify(run.error))
    const wide = await keyWith('orchestrations:StartRun', 'orchestrations:ListOrchestrations')
    const allowed = (await wide.client.post('/orchestration-runs', { orchestration_id: graph, wait: true })).body
    assert.equal(allowed.status, 'succeeded', JSON.stringify(allowed.error))
    assert.deepEqual(allowed.started_by, { kind: 'api_key', id: wide.id })
  })

  it('permit nothing after their key is deleted, for any caller that submits input', async () => {
    const graph = await app.orchestration([{ id: 'h', type: 'human' }, list('a')], chain('h', 'a'))
    const { client, id } = await keyWith('orchestrations:*')
    const run = (await client.post('/orchestration-runs', { orchestration_id: graph, wait: true })).body
    assert.equal((await app.admin.delete(`/project-keys/${id}`)).status, 204)
    const done = (await app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'h', output: {} })).body
    assert.equal(done.status, 'failed', JSON.stringify(done))
    assert.equal(done.error.code, 'UNAUTHORIZED')
    assert.deepEqual(done.started_by, { kind: 'api_key', id })
  })

  it('is limited to the project of the run', async () => {
    const other = await app.project()
    const store = (await other.key.post('/memory-stores', { name: 'elsewhere' })).body.id
    await other.key.post('/memory-entries', { memory_store_id: store, content: 'harbour' })
    const asAdmin = async (node: object) => {
      const orchestration_id = await app.orchestration([node])
      return (await app.admin.post('/orchestration-runs', { orchestration_id, wait: true })).body
    }
    const find = (memory_store_id: string) => ({
      id: 'k',
      type: 'knowledge',
      input_mapping: { query: 'harbour', memory_store_ids: [memory_store_id], project_id: other.id },
    })
    const own = (await app.key.post('/memory-stores', { name: 'here' })).body.id
    await app.key.post('/memory-entries', { memory_store_id: own, content: 'harbour' })
    assert.equal((await asAdmin(find(own))).output?.k.results.length, 1)
    assert.deepEqual((await asAdmin(find(store))).output?.k.results, [])
    const write = { id: 'm', type: 'memory_write', memory_store_id: store, input_mapping: { content: 'x' } }
    assert.equal((await asAdmin(write)).error?.code, 'RESOURCE_NOT_FOUND')
  })

  it('writes memory only with permission', async () => {
    const store = await app.key.post('/memory-stores', { name: 'facts' })
    const graph = await app.orchestration([
      { id: 'm', type: 'memory_write', memory_store_id: store.body.id, input_mapping: { content: 'x' } },
    ])
    const { client } = await keyWith('orchestrations:StartRun')
    const run = (await client.post('/orchestration-runs', { orchestration_id: graph, wait: true })).body
    assert.deepEqual([run.status, run.error?.code], ['failed', 'FORBIDDEN'], JSON.stringify(run.error))
    const stored = await app.key.get(`/memory-entries?memory_store_id=${store.body.id}`)
    assert.equal(stored.body.total ?? stored.body.data?.length, 0, JSON.stringify(stored.body))
  })
})
