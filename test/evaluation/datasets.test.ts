import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { client } from '../local/double/client.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const ACTIONS = ['evaluations:*', 'generations:*', 'agents:*', 'events:*', 'sessions:*', 'conversations:*']

describe('datasets', () => {
  const app = forSuite(() => startAgentApp({ actions: ACTIONS, env: { DATASET_MAX_ITEMS: '12' } }))
  const double = forSuite(() => client(app.double))

  let counter = 0
  const dataset = async (): Promise<string> => (await createdBy(app.key, '/datasets', { name: `set ${++counter}` })).id
  const item = (content = 'Hi') => ({ input: [{ role: 'user', content }] })
  const refused = (reply: { status: number; body: any }, status: number, code: string, path?: string) => {
    assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], JSON.stringify(reply.body))
    if (path !== undefined) assert.equal(reply.body.error.meta.problems[0].path, path)
  }

  it('are named once in a project, changed by given fields, and deleted with their items', async () => {
    const id = await dataset()
    const path = `/datasets/${id}`
    assert.match(id, /^dset_/)
    refused(await app.key.post('/datasets', { name: `set ${counter}` }), 409, 'NAME_CONFLICT')
    refused(await app.key.post('/datasets', { name: ' ' }), 400, 'VALIDATION_FAILED', 'name')
    assert.equal((await app.key.put(path, { description: 'Questions' })).body.name, `set ${counter}`)
    const read = (await app.key.get(path)).body
    assert.deepEqual(Object.keys(read), ['id', 'project_id', 'name', 'description', 'created_at', 'updated_at'])
    assert.equal((await app.key.patch(path, { name: 'renamed' })).body.description, 'Questions')
    const made = (await app.key.post(`${path}/items`, item())).body
    assert.equal((await app.key.delete(path)).status, 204)
    refused(await app.key.get(`${path}/items/${made.id}`), 404, 'RESOURCE_NOT_FOUND')
    const events = (await app.key.get(`/events?resource_id=${id}`)).body.data.map(({ event }: any) => event)
    assert.deepEqual(events, ['datasets.deleted', 'datasets.updated', 'datasets.updated', 'datasets.created'])
  })

  it('have items in their order, whose expectation and metadata can be cleared', async () => {
    const path = `/datasets/${await dataset()}/items`
    const first = (await app.key.post(path, item('one'))).body
    assert.deepEqual([first.expected_output, first.metadata, first.source_generation_id], [null, null, null])
    const parts = { input: [{ role: 'user', content: [{ type: 'text', text: 'two', mine: 1 }] }] }
    const second = (await app.key.post(path, { ...parts, expected_output: 'Two', metadata: { b: 1, a: 2 } })).body
    const list = (await app.key.get(`${path}?limit=1&offset=1`)).body
    assert.deepEqual([list.total, list.data], [2, [second]])
    assert.deepEqual(second.input, parts.input)
    assert.deepEqual(Object.keys(second.metadata), ['b', 'a'])
    const cleared = (await app.key.put(`${path}/${second.id}`, { expected_output: null, metadata: null })).body
    assert.deepEqual([cleared.expected_output, cleared.metadata, cleared.input], [null, null, parts.input])
    assert.equal((await app.key.delete(`${path}/${first.id}`)).status, 204)
    assert.equal((await app.key.get(path)).body.total, 1)
    const other = await dataset()
    refused(await app.key.get(`/datasets/${other}/items/${second.id}`), 404, 'RESOURCE_NOT_FOUND')
    refused(await app.key.delete(`/datasets/${other}/items/${second.id}`), 404, 'RESOURCE_NOT_FOUND')
    refused(await app.key.put(`/datasets/${other}/items/${second.id}`, { metadata: {} }), 404, 'RESOURCE_NOT_FOUND')
  })

  it('refuse items that say nothing, instruct the model, or are too many', async () => {
    const path = `/datasets/${await dataset()}/items`
    refused(await app.key.post(path, { input: [] }), 400, 'VALIDATION_FAILED', 'input')
    refused(await app.key.post(path, { input: [{ role: 'user' }] }), 400, 'VALIDATION_FAILED', 'input[0].content')
    refused(await app.key.post(path, { ...item(), metadata: [] }), 400, 'VALIDATION_FAILED', 'metadata')
    refused(await app.key.post(path, { input: [{ role: 'system', content: 'x' }] }), 400, 'SYSTEM_MESSAGE_NOT_ALLOWED')
    for (let at = 0; at < 12; at++) assert.equal((await app.key.post(path, item())).status, 201)
    refused(await app.key.post(path, item()), 400, 'VALIDATION_FAILED')
    assert.equal((await app.key.get(path)).body.total, 12)
  })

  it('take no item beyond the storage of the project, and give items away all the same', async () => {
    const path = `/datasets/${await dataset()}/items`
    const { id } = (await app.key.post(path, item())).body
    const quota = await app.admin.post('/quotas', {
      project_id: app.projectId,
      scope: 'project',
      metric: 'storage_bytes',
      window: 'current',
      limit: 100,
      mode: 'enforce',
    })
    assert.equal(quota.status, 201, JSON.stringify(quota.body))
    refused(await app.key.post(path, item('x'.repeat(200))), 409, 'QUOTA_STORAGE_EXCEEDED')
    const items = [item('x'.repeat(30)), item('x'.repeat(30))]
    refused(await app.key.post(`${path}/import`, { items }), 409, 'QUOTA_STORAGE_EXCEEDED')
    assert.equal((await app.key.delete(`${path}/${id}`)).status, 204)
    assert.equal((await app.key.get(path)).body.total, 0)
    assert.equal((await app.admin.delete(`/quotas/${quota.body.id}`)).status, 204)
  })

  describe('copy', () => {
    const turn = async (lane: string, reply: object, prompt = 'Where?') => {
      await double.put(lane, { rules: [{ reply }] })
      const agent = await app.agent({ model: `${lane}/m` })
      const { body } = await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt })
      return body.id as string
    }

    it('a completed turn with its answer, another one, or none', async () => {
      const path = `/datasets/${await dataset()}/items/from-generation`
      const generation_id = await turn('copied', { text: 'Here.' })
      const copied = await app.key.post(path, { generation_id, metadata: { kind: 'place' } })
      assert.equal(copied.status, 201, JSON.stringify(copied.body))
      const { input, expected_output, source_generation_id, metadata } = copied.body
      assert.deepEqual(
        [input, expected_output, source_generation_id, metadata],
        [[{ role: 'user', content: 'Where?' }], 'Here.', generation_id, { kind: 'place' }],
      )
      assert.equal(
        (await app.key.post(path, { generation_id, expected_output: 'There' })).body.expected_output,
        'There',
      )
      assert.equal((await app.key.post(path, { generation_id, expected_output: null })).body.expected_output, null)
      assert.equal((await app.key.delete(`/generations/${generation_id}/content`)).status, 200)
      refused(await app.key.post(path, { generation_id }), 409, 'GENERATION_CONTENT_UNAVAILABLE')
      const kept = await app.key.get(`${path.replace('/from-generation', '')}/${copied.body.id}`)
      assert.equal(kept.body.expected_output, 'Here.')
      refused(await app.key.post(path, { generation_id: '' }), 400, 'VALIDATION_FAILED', 'generation_id')
      refused(await app.key.post(path, { generation_id: 'gen_1' }), 404, 'GENERATION_NOT_FOUND')
    })

    it('no turn that failed, and none that the caller may not read', async () => {
      const id = await dataset()
      const path = `/datasets/${id}/items`
      const agent = await app.agent({ model: 'broken/m' })
      await double.put('broken', { rules: [{ reply: { error: { status: 400 } } }] })
      const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
      await app.key.get(`/generations/${body.generation_id}`)
      refused(
        await app.key.post(`${path}/from-generation`, { generation_id: body.generation_id }),
        409,
        'GENERATION_NOT_COMPLETED',
      )
      const generation_id = await turn('hidden', { text: 'Yes' })
      const statement = [{ effect: 'Allow', action: ['evaluations:*'], resource: [`srn:${app.projectId}:*:*`] }]
      const writer = await app.user('writer', [{ statement }])
      refused(await writer.post(`${path}/from-generation`, { generation_id }), 403, 'FORBIDDEN')
      assert.equal((await app.key.get(path)).body.total, 0)
    })

    it('the replies of a session, the last one or all', async () => {
      await double.put('talk', { rules: [{ reply: { text: 'First' }, times: 1 }, { reply: { text: 'Second' } }] })
      const agent_id = await app.agent({ model: 'talk/m' })
      const session = (await app.key.post('/sessions', { agent_id })).body
      for (const message of ['a', 'b']) {
        const sent = await app.key.post(`/sessions/${session.id}/messages`, { message })
        assert.ok(sent.status < 300, JSON.stringify(sent.body))
        const ran = await app.key.post(`/sessions/${session.id}/generate?wait=true`, {})
        assert.ok(ran.status < 300, JSON.stringify(ran.body))
      }
      const path = `/datasets/${await dataset()}/items`
      const all = await app.key.post(`${path}/from-session`, { session_id: session.id, replies: 'all' })
      assert.deepEqual([all.status, all.body.created], [201, 2], JSON.stringify(all.body))
      const items = (await app.key.get(path)).body.data
      assert.deepEqual(
        items.map(({ input, expected_output }: any) => [input.length, expected_output]),
        [
          [1, 'First'],
          [3, 'Second'],
        ],
      )
      const last = (await app.key.post(`${path}/from-session`, { session_id: session.id })).body
      assert.deepEqual([last.created, last.ids.length], [1, 1])
      const empty = (await app.key.post('/sessions', { agent_id })).body
      refused(
        await app.key.post(`${path}/from-session`, { session_id: empty.id }),
        400,
        'VALIDATION_FAILED',
        'session_id',
      )
    })
  })
})
