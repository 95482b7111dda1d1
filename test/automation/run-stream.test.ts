import assert from 'node:assert/strict'
import { openStream, readStream } from '../execution/streams.ts'
import { forSuite } from '../support/suite.ts'
import { chain, type RunApp, startRunApp } from './fixtures.ts'

describe('run streams', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp({ env: { STREAM_PING_INTERVAL_MS: '100' } }))

  const ask = { id: 'ask', type: 'human', prompt: 'Well?' }
  const started = () =>
    app.run([ask, { id: 'then', type: 'transform', expression: { var: 'nodes.ask.choice' } }], chain('ask', 'then'))
  const open = (id: string, headers: Record<string, string> = {}, by: { key: RunApp['key'] } = app) =>
    openStream({ url: app.url, key: by.key }, `/orchestration-runs/${id}/stream`, undefined, headers)
  const answer = (id: string) =>
    app.key.post(`/orchestration-runs/${id}/human-input`, { node_id: 'ask', output: { choice: 'yes' } })

  it('send the state of a run and its changes until it ends', async () => {
    const run = await started()
    const stream = await open(run.id)
    assert.equal(stream.status, 200)
    const messages: any[] = []
    for await (const message of stream.messages) {
      messages.push(message)
      if (messages.length === 2) assert.equal((await answer(run.id)).status, 200)
    }
    const [node, updated] = messages
    assert.equal(node.event, 'node.updated')
    assert.equal(node.data.node_id, 'ask')
    assert.equal(node.data.status, 'requires_action')
    assert.ok(!('input' in node.data) && !('output' in node.data))
    assert.equal(updated.event, 'run.updated')
    assert.deepEqual(Object.keys(updated.data).sort(), [
      'active_nodes',
      'id',
      'required_actions',
      'status',
      'updated_at',
    ])
    assert.equal(updated.data.status, 'awaiting_input')
    assert.equal(updated.data.required_actions[0].prompt, 'Well?')
    const last = messages.at(-1)
    assert.equal(last.event, 'run.settled')
    assert.deepEqual(last.data, await app.read(run.id))
    assert.deepEqual(last.data.output, { then: { result: 'yes' } })
    const completed = messages.filter(({ event, data }) => event === 'node.updated' && data.status === 'completed')
    assert.deepEqual(completed.map(({ data }) => data.node_id).sort(), ['ask', 'then'])
    const ids = messages.map(({ id }) => id)
    assert.deepEqual(
      ids,
      [...ids].sort((one, other) => one - other),
    )
    assert.equal(messages.filter(({ event }) => event === 'run.settled').length, 1)
  })

  it('continue after the last revision of the client', async () => {
    const run = await started()
    const first = await open(run.id)
    let revision = 0
    for await (const { id, event } of first.messages) {
      revision = id
      if (event === 'run.updated') break
    }
    first.close()
    const second = await open(run.id, { 'Last-Event-ID': String(revision) })
    const reading = readStream(second)
    assert.equal((await answer(run.id)).status, 200)
    const messages: any[] = await reading
    assert.ok(messages.every(({ id }) => id > revision))
    assert.ok(!messages.some(({ data }) => data.status === 'requires_action' || data.status === 'awaiting_input'))
    assert.equal(messages.at(-1).event, 'run.settled')
    const old = await readStream(await open(run.id, { 'Last-Event-ID': String(revision) }))
    assert.deepEqual(
      old.map(({ event }) => event),
      ['run.settled'],
    )
  })

  it('end when the run is deleted', async () => {
    const id = await app.orchestration([ask])
    const run = await app.start(id)
    const stream = await open(run.id)
    const reading = readStream(stream)
    assert.equal((await app.key.delete(`/orchestrations/${id}`)).status, 204)
    const messages = await reading
    assert.ok(messages.length <= 4)
  })

  it('require permission to read the run', async () => {
    const run = await started()
    const other = await app.projectWith(['orchestrations:*'])
    assert.equal((await other.key.get(`/orchestration-runs/${run.id}/stream`)).status, 404)
    const statement = (effect: string, action: string) => ({
      effect,
      action: [action],
      resource: [`srn:${app.projectId}:*:*`],
    })
    const lister = await app.user(undefined, [{ statement: [statement('Allow', 'orchestrations:ListRuns')] }])
    assert.equal((await lister.get(`/orchestration-runs/${run.id}/stream`)).status, 403)
    const policy = await app.admin.post('/policies', {
      document: { statement: [statement('Allow', 'orchestrations:GetRun')] },
    })
    const key = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
    const stream = await open(run.id, {}, { key: app.as(key.body.secret) })
    const reading = readStream(stream)
    await app.admin.delete(`/project-keys/${key.body.id}`)
    assert.equal((await reading).at(-1)?.event, 'error')
  })
})
