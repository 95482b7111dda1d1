import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { guardrail } from '../execution/guardrail-support.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, set, startRunApp } from './fixtures.ts'

const label = (run: any, node_id: string) => run.node_executions.find((each: any) => each.node_id === node_id)?.label

describe('tools in runs', function () {
  this.timeout(60_000)
  const app = forSuite(startRunApp)
  const keys = () => app.target.requests.map(({ headers }) => headers['idempotency-key'])
  const bodies = () => app.target.requests.map(({ body }) => JSON.parse(body))
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })

  const guarded = async (document: object, fields: object = {}) =>
    app.tool({ guardrail_ids: [(await guardrail(app.key, document)).id], ...fields })
  const node = (id: string, tool_id: string, more: object = {}) => ({ id, type: 'tool', tool_id, ...more })
  const failed = (run: any, code: string, reason?: string) => {
    assert.deepEqual([run.status, run.error?.code], ['failed', code], JSON.stringify(run.error))
    if (reason) assert.equal(run.error.meta.reason, reason)
    return run.error
  }

  it('are blocked by a guardrail, and only a matching edge continues', async () => {
    const before = (await app.key.get('/events?event=guardrails.tripwire')).body.total
    for (const [document, stopped] of [
      [{ class: 'D' }, 'blocked'],
      [{ class: 'B', guard: false }, 'tripwire'],
    ] as const) {
      const run = await app.run(
        [node('t', await guarded(document)), set('next'), set('other')],
        [
          { from: 't', to: 'next' },
          { from: 't', to: 'other', condition: stopped },
        ],
      )
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      assert.equal(label(run, 't'), stopped)
      assert.equal(run.artifacts.t.status, stopped)
      assert.equal(typeof run.artifacts.t.reason, 'string')
      assert.deepEqual(run.output, { other: { result: 'other' } })
    }
    assert.equal(app.target.requests.length, 0)
    await eventually(async () => (await app.key.get('/events?event=guardrails.tripwire')).body.total === before + 1)
  })

  it('wait for an approval, and are called with the edited arguments under the same key without another evaluation', async () => {
    const tool_id = await guarded({ class: 'C' })
    app.target.answer = (request, response) => json({}, app.target.requests.length === 1 ? 503 : 200)(request, response)
    const run = await app.run(
      [
        node('t', tool_id, { input_mapping: { n: 1 }, retry: { max_attempts: 2, backoff: { delay_ms: 0 } } }),
        set('next'),
      ],
      chain('t', 'next'),
    )
    assert.equal(run.status, 'awaiting_input', JSON.stringify(run.error))
    const action = run.required_action
    assert.deepEqual([action.type, action.node_id, action.prompt], ['approval', 't', 'Approval required.'])
    assert.deepEqual(action.context, { n: 1 })
    assert.ok(action.expires_at)
    const item = (await app.key.get(`/approvals/${action.approval_id}`)).body
    assert.deepEqual([item.origin, item.node_id, item.orchestration_run_id], ['node', 't', run.id])
    assert.equal(app.target.requests.length, 0)
    const reply = await app.key.post(`/approvals/${action.approval_id}/approve`, { arguments: { n: 2 } })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    const done = await app.until(run.id)
    assert.equal(done.status, 'succeeded', JSON.stringify(done.error))
    assert.deepEqual(bodies(), [{ n: 2 }, { n: 2 }])
    assert.deepEqual(keys(), [`${run.id}:t:1`, `${run.id}:t:2`])
    assert.deepEqual(attempts(done), ['t:1:failed', 't:2:completed', 'next:1:completed'])
    assert.equal(done.node_executions[1].label, 'approved')
    const used = (await app.key.get(`/usage/events?orchestration_run_id=${run.id}`)).body.data
    const computed = used.filter((event: any) => event.meter_type === 'compute_execution')
    assert.deepEqual(computed.map(({ node_id }: any) => node_id).sort(), ['next', 't', 't'])
  })

  it('that are rejected show the decision, and only a matching edge continues', async () => {
    const graph = async (document: object) =>
      app.orchestration(
        [node('t', await guarded(document)), set('next'), set('no'), set('late')],
        [
          { from: 't', to: 'next' },
          { from: 't', to: 'no', condition: 'rejected' },
          { from: 't', to: 'late', condition: 'expired' },
        ],
      )
    const one = await app.start(await graph({ class: 'C' }))
    const two = await app.start(await graph({ class: 'C', expires_in: 1 }))
    await app.key.post(`/approvals/${one.required_action.approval_id}/reject`, { reason: 'no' })
    const rejected = await app.until(one.id)
    assert.deepEqual(rejected.output, { no: { result: 'no' } }, JSON.stringify(rejected.error))
    assert.deepEqual([rejected.artifacts.t.decision, rejected.artifacts.t.reason], ['rejected', 'no'])
    assert.equal(label(rejected, 't'), 'rejected')
    const expired = await app.until(two.id)
    assert.deepEqual(expired.output, { late: { result: 'late' } })
    assert.equal(app.target.requests.length, 0)
  })

  it('fail a poll that may not call them', async () => {
    const run = await app.run([
      { id: 'p', type: 'poll', tool_id: await guarded({ class: 'C' }), exit_condition: true, interval: '1s' },
    ])
    failed(run, 'TOOL_DISPATCH_FAILED')
    assert.equal(app.target.requests.length, 0)
  })

  it('are polled with the current input', async () => {
    const tool_id = await app.tool()
    app.target.answer = ({ body }, response) => json(JSON.parse(body))({} as never, response)
    const run = await app.run(
      [
        {
          id: 'p',
          type: 'poll',
          tool_id,
          input_mapping: { n: { var: ['x', 1] } },
          exit_condition: { and: [{ '==': [{ var: 'response.n' }, 2] }, { var: 'x' }] },
          interval: '20ms',
          max_iterations: 1000,
        },
        { id: 'd', type: 'delay', duration: '300ms', state_mapping: { x: 2 } },
      ],
      [],
    )
    assert.deepEqual(run.output.p.result, { n: 2 }, JSON.stringify(run.error))
    assert.deepEqual(bodies()[0], { n: 1 })
  })

  it('are evaluated with the guardrail context of the run', async () => {
    const tool_id = await guarded({ class: 'B', guard: { '==': [{ var: 'context.tenant' }, 'acme'] } })
    const run = await app.run([node('t', tool_id)], [], { guardrail_context: { tenant: 'acme' } })
    assert.deepEqual(run.output, { t: { ok: true } })
    const other = await app.run([node('t', tool_id)], [], { guardrail_context: { tenant: 'other' } })
    assert.equal(label(other, 't'), 'tripwire')
    const leaf = await app.orchestration([node('t', tool_id)])
    const below = await app.run(
      [{ id: 's', type: 'sub_orchestration', orchestration_id: leaf, context_keys: [] }],
      [],
      {
        guardrail_context: { tenant: 'acme' },
      },
    )
    assert.deepEqual(below.output, { s: { t: { ok: true } } }, 'nested runs inherit it whole')
  })

  it('receive the tool context of the run, whose values are never shown', async () => {
    const tool_id = await app.tool()
    const graph = await app.orchestration([node('t', tool_id), { id: 'h', type: 'human' }], chain('t', 'h'))
    const body = { orchestration_id: graph, tool_context: { Tenant: 'very-secret' }, wait: true }
    const headers = { 'idempotency-key': 'with-context' }
    const run = (await app.key.post('/orchestration-runs', body, headers)).body
    assert.deepEqual(run.tool_context, { Tenant: '[redacted]' })
    assert.ok(JSON.stringify(app.target.last().headers).includes('very-secret'))
    const again = await app.key.post('/orchestration-runs', body, headers)
    assert.equal(again.body.id, run.id)
    const audited = () =>
      eventually(async () => {
        const { data } = (await app.admin.get(`/audit-log?project_id=${app.projectId}&limit=100`)).body
        return data.some((entry: any) => entry.resource_public_id === run.id) && data
      })
    const kept = () =>
      app.pool.oneFirst(sql.unsafe`select context from orchestration_runs where id = ${run.id}`) as Promise<string>
    assert.match(await kept(), /^v1\./)
    await app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'h', output: {} })
    assert.equal(await kept(), null, 'is erased with the end of the run')
    for (const path of [
      `/orchestration-runs/${run.id}`,
      '/orchestration-runs',
      `/events?resource_id=${run.id}`,
      `/activity?orchestration_run_id=${run.id}`,
    ]) {
      const reply = await app.key.get(path)
      assert.equal(reply.status, 200, path)
      assert.ok(!JSON.stringify(reply.body).includes('very-secret'), path)
    }
    assert.ok(!JSON.stringify([again.body, await audited()]).includes('very-secret'))
    const twice = await app.key.post('/orchestration-runs', {
      orchestration_id: graph,
      tool_context: { a: '1', A: '2' },
    })
    assert.deepEqual([twice.status, twice.body.error.code], [400, 'INVALID_TOOL_CONTEXT_KEY'])
  })

  it('are not called without the context of their run', async () => {
    const tool_id = await app.tool()
    const run = await app.run([{ id: 'h', type: 'human' }, node('t', tool_id)], chain('h', 't'), {
      tool_context: { tenant: 'x' },
    })
    await app.pool.query(
      sql.unsafe`update orchestration_runs set context = 'v1.00000000.AAAA.AAAA.AAAA' where id = ${run.id}`,
    )
    await app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'h', output: {} })
    failed(await app.until(run.id), 'SECRET_NOT_DECRYPTABLE')
    assert.equal(app.target.requests.length, 0)
  })

  it('fail their node with their own code if they are missing', async () => {
    failed(await app.run([node('t', 'tool_missing')]), 'TOOL_NOT_FOUND')
    failed(await app.run([{ id: 'a', type: 'approval', tool_id: 'tool_missing' }]), 'TOOL_NOT_FOUND')
    failed(
      await app.run([{ id: 'm', type: 'memory_write', memory_store_id: 'missing', input_mapping: { content: 'x' } }]),
      'RESOURCE_NOT_FOUND',
    )
  })

  it('wrap results other than objects, and refuse large ones', async () => {
    const tool_id = await app.tool()
    app.target.answer = json([1, 2])
    const run = await app.run(
      [node('t', tool_id), { id: 'p', type: 'poll', tool_id, exit_condition: true, interval: '1s' }],
      chain('t', 'p'),
    )
    assert.deepEqual(run.artifacts.t, { result: [1, 2] }, JSON.stringify(run.error))
    assert.deepEqual(run.artifacts.p, { result: [1, 2], attempts: 1, condition_met: true, timed_out: false })
    app.target.answer = json({ text: 'x'.repeat(1024 * 1024) })
    failed(
      await app.run([node('t', tool_id, { retry: { max_attempts: 3 } })]),
      'ORCHESTRATION_NODE_FAILED',
      'too_large',
    )
    app.target.answer = json({ text: 'x'.repeat(1000 * 1024) })
    const names = ['a', 'b', 'c', 'd', 'e']
    const error = failed(
      await app.run(
        names.map(id => node(id, tool_id)),
        chain(...names),
      ),
      'ORCHESTRATION_NODE_FAILED',
      'too_large',
    )
    assert.equal(error.meta.node_id, 'e')
  })

  it('write memory by the settings of the node', async () => {
    const store = await app.key.post('/memory-stores', { name: 'facts' })
    assert.equal(store.status, 201, JSON.stringify(store.body))
    const run = await app.run(
      [
        {
          id: 'm',
          type: 'memory_write',
          memory_store_id: store.body.id,
          input_mapping: { content: { var: 'input' }, tags: { var: 'input.tags' } },
        },
      ],
      [],
      { input: { tags: { a: '1' }, n: 1 } },
    )
    assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
    const { action, memory_entry_id } = run.output.m
    assert.equal(action, 'created', JSON.stringify(run.output))
    const entry = (await app.key.get(`/memory-entries/${memory_entry_id}`)).body
    assert.equal(entry.content, JSON.stringify({ tags: { a: '1' }, n: 1 }))
    assert.deepEqual([entry.mechanism, entry.principal_id, entry.tags], ['orchestration', run.id, { a: '1' }])
    const { idempotency_key } = run.node_executions[0]
    assert.equal(idempotency_key, `${run.id}:m:1`)
    const stored = sql.unsafe`select attempt_key from memory_entries where id = ${memory_entry_id}`
    assert.equal(await app.pool.oneFirst(stored), idempotency_key)
  })

  it('write memory only from conversations of the project', async () => {
    const store = (await app.key.post('/memory-stores', { name: 'said' })).body.id
    const conversation = async (project_id: string) =>
      (await app.admin.post('/conversations', { project_id })).body.id as string
    const said = (source_id: string | null, source_type = 'conversation') =>
      app.run([
        {
          id: 'm',
          type: 'memory_write',
          memory_store_id: store,
          input_mapping: { content: 'x', source_type, source_id },
        },
      ])
    const own = await conversation(app.projectId)
    const run = await said(own)
    const entry = (await app.key.get(`/memory-entries/${run.output?.m.memory_entry_id}`)).body
    assert.equal((await app.key.get(`/memories/${entry.memory_id}`)).body.source_id, own, JSON.stringify(run.error))
    for (const id of [await conversation((await app.project()).id), 'conv_missing'])
      failed(await said(id), 'RESOURCE_NOT_FOUND')
    failed(await said(null), 'VALIDATION_FAILED')
    failed(await said(own, 'manual'), 'VALIDATION_FAILED')
  })

  it('are recorded in the activity with their node, once for all polls, and in the final event of the run', async () => {
    const price = {
      provider: 'platform',
      model: 'compute-second',
      component: 'compute_second',
      unit: 'compute_second',
      unit_price: 1000,
      effective_from: '2020-01-01T00:00:00.000Z',
    }
    const priced = await app.admin.put(`/projects/${app.projectId}/prices`, { prices: [price] })
    assert.equal(priced.status, 200, JSON.stringify(priced.body))
    const tool_id = await app.tool()
    app.target.answer = (request, response) => json({ n: app.target.requests.length })(request, response)
    const run = await app.run(
      [
        node('t', tool_id),
        { id: 'p', type: 'poll', tool_id, exit_condition: { '>=': [{ var: 'attempt' }, 3] }, interval: '1ms' },
      ],
      chain('t', 'p'),
    )
    assert.equal(run.output.p.attempts, 3, JSON.stringify(run.error))
    assert.deepEqual(keys(), [`${run.id}:t:1`, `${run.id}:p:1:1`, `${run.id}:p:1:2`, `${run.id}:p:1:3`])
    const entries = await eventually(async () => {
      const { data } = (await app.key.get(`/activity?orchestration_run_id=${run.id}&kind=action_executed`)).body
      return data.length >= 2 && data
    })
    assert.deepEqual(entries.map(({ detail }: any) => detail.node_id).sort(), ['p', 't'])
    const used = (await app.key.get(`/usage/events?orchestration_run_id=${run.id}&meter_type=compute_execution`)).body
      .data
    assert.deepEqual(used.map(({ node_id }: any) => node_id).sort(), ['p', 't'])
    const done = await app.read(run.id)
    assert.ok(done.usage_own && done.usage)
    const [{ data }] = await storedEvents(app.pool, { resource: run.id, name: 'orchestration_runs.succeeded' })
    assert.deepEqual([data.usage_own, data.usage], [done.usage_own, done.usage])
    assert.ok(done.usage.cost_usd > 0)
  })
})
