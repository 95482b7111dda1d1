import assert from 'node:assert/strict'
import { json } from '../execution/tool-target.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, startRunApp } from './fixtures.ts'

const write = (id: string, value: unknown, more: object = {}) => ({
  id,
  type: 'transform',
  expression: value,
  state_mapping: { [id]: { var: 'output.result' } },
  ...more,
})

describe('retrying runs', function () {
  this.timeout(60_000)
  const app = forSuite(startRunApp)
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })

  const retry = (id: string, body: object = {}, headers?: Record<string, string>) =>
    app.key.post(`/orchestration-runs/${id}/retry`, body, headers)
  const retried = async (id: string, body: object = {}) => {
    const reply = await retry(id, body)
    assert.equal(reply.status, 201, JSON.stringify(reply.body))
    return reply.body
  }

  /** A run of a chain that fails at its call of a tool. */
  async function failed(more: object = {}) {
    const tool_id = await app.tool()
    app.target.answer = json({ no: true }, 404)
    const run = await app.run(
      [
        write('first', { var: 'input.n' }),
        write('second', { '+': [{ var: 'first' }, 1] }),
        { id: 'call', type: 'tool', tool_id, input_mapping: { n: { var: 'second' } } },
        write('last', { '+': [{ var: 'second' }, 1] }),
      ],
      chain('first', 'second', 'call', 'last'),
      { input: { n: 1 }, metadata: { mine: true }, tool_context: { 'x-token': 'old' }, ...more },
    )
    assert.equal(run.status, 'failed')
    app.target.answer = json({ ok: true })
    app.target.requests.length = 0
    return run
  }

  it('continues where the run ended, with its results', async () => {
    const run = await failed()
    const made = await retried(run.id, { tool_context: { 'x-token': 'new' } })
    assert.notEqual(made.id, run.id)
    assert.equal(made.status, 'queued')
    assert.equal(made.retry_of_run_id, run.id)
    assert.deepEqual(made.input, { n: 1 })
    assert.deepEqual(made.metadata, { mine: true })
    assert.deepEqual(made.tool_context, { 'x-token': '[redacted]' })
    assert.equal(made.state.second, 2)
    const done = await app.until(made.id)
    assert.equal(done.status, 'succeeded', JSON.stringify(done.error))
    assert.deepEqual(attempts(done), ['call:1:completed', 'last:1:completed'])
    assert.deepEqual(done.state, {
      input: { n: 1 },
      nodes: { first: { result: 1 }, second: { result: 2 }, call: { ok: true }, last: { result: 3 } },
      first: 1,
      second: 2,
      last: 3,
    })
    assert.deepEqual(done.output, { last: { result: 3 } })
    const [request] = app.target.requests
    assert.equal(request.headers['idempotency-key'], `${made.id}:call:1`)
    assert.ok(JSON.stringify(request.headers).includes('new'))
    assert.equal((await app.read(run.id)).status, 'failed')
  })

  it('copies nothing of the former tool context', async () => {
    const made = await retried((await failed()).id)
    assert.equal(made.tool_context, null)
    await app.until(made.id)
    assert.ok(!JSON.stringify(app.target.requests[0].headers).includes('old'))
  })

  it('restarts from a node, without the results of later nodes', async () => {
    const run = await failed()
    const made = await retried(run.id, { from_node_id: 'second' })
    assert.deepEqual(made.state, { input: { n: 1 }, nodes: { first: { result: 1 } }, first: 1 })
    const done = await app.until(made.id)
    assert.deepEqual(attempts(done), ['second:1:completed', 'call:1:completed', 'last:1:completed'])
    assert.equal(done.state.last, 3)
  })

  it('restarts from a node that was itself copied from an earlier run', async () => {
    const run = await failed()
    app.target.answer = json({ no: true }, 404)
    const again = await app.until((await retried(run.id)).id)
    assert.deepEqual(attempts(again), ['call:1:failed'])
    const made = await retried(again.id, { from_node_id: 'second' })
    assert.equal(made.retry_of_run_id, again.id)
    assert.deepEqual(Object.keys(made.artifacts), ['first'])
  })

  it('keeps submitted inputs and requests the missing ones again', async () => {
    const run = await app.run([
      { id: 'a', type: 'human' },
      { id: 'b', type: 'human' },
    ])
    const answer = (id: string, node_id: string) =>
      app.key.post(`/orchestration-runs/${id}/human-input`, { node_id, output: { choice: node_id } })
    assert.equal((await answer(run.id, 'a')).status, 200)
    assert.equal((await app.key.post(`/orchestration-runs/${run.id}/cancel`)).status, 200)
    const made = await app.until((await retried(run.id)).id, ({ status }) => status === 'awaiting_input')
    assert.deepEqual(
      made.required_actions.map(({ node_id }: any) => node_id),
      ['b'],
    )
    assert.equal((await answer(made.id, 'b')).body.status, 'succeeded')
  })

  it('is allowed for failed, cancelled and expired runs', async () => {
    const live = await app.run([{ id: 'a', type: 'human' }])
    for (const id of [live.id, (await app.run([write('a', 1)])).id]) {
      const reply = await retry(id)
      assert.equal(reply.status, 409)
      assert.equal(reply.body.error.code, 'ORCHESTRATION_RUN_NOT_RETRYABLE')
      assert.ok(reply.body.error.meta.status)
    }
    const expired = await app.until((await app.run([{ id: 'a', type: 'human', expires_in: 1 }])).id)
    assert.equal(expired.status, 'expired')
    const made = await app.until((await retried(expired.id)).id, ({ status }) => status === 'awaiting_input')
    assert.equal(made.expires_at, null)
  })

  it('refuses invalid requests and creates nothing', async () => {
    const run = await failed()
    const count = async () => (await app.key.get('/orchestration-runs?limit=1')).body.total
    const before = await count()
    for (const [body, status, code] of [
      [{ from_node_id: 'none' }, 400, 'VALIDATION_FAILED'],
      [{ from_node_id: 'last' }, 400, 'VALIDATION_FAILED'],
      [{ tool_context: { a: '1', A: '2' } }, 400, 'INVALID_TOOL_CONTEXT_KEY'],
      [{ other: 1 }, 400, 'VALIDATION_FAILED'],
    ] as const) {
      const reply = await retry(run.id, body)
      assert.deepEqual([reply.status, reply.body.error.code], [status, code])
    }
    assert.equal(await count(), before)
    await app.admin.post(`/projects/${app.projectId}/pause`)
    assert.equal((await retry(run.id)).body.error.code, 'PROJECT_PAUSED')
    await app.admin.post(`/projects/${app.projectId}/resume`)
    const reader = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['orchestrations:GetRun'], resource: [`srn:${app.projectId}:*:*`] }] },
    ])
    assert.equal((await reader.post(`/orchestration-runs/${run.id}/retry`)).status, 403)
  })

  it('runs once under an Idempotency-Key', async () => {
    const run = await failed()
    const headers = { 'Idempotency-Key': `retry-${run.id}` }
    const [one, other] = [await retry(run.id, {}, headers), await retry(run.id, {}, headers)]
    assert.equal(one.body.id, other.body.id)
    await app.until(one.body.id)
  })
})
