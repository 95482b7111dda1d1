import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { usageOf, usageOnce, usageSettled } from '../control/usage-support.ts'
import { eventually } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { COSTLY_ITEMS, costly, occupyThreads } from '../support/occupied-threads.ts'
import { startProcess } from '../support/processes.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { forSuite } from '../support/suite.ts'
import { madeDecider, TOOL_ANSWERS } from './decider-support.ts'
import { startAgentApp } from './fixtures.ts'
import { accepted, shared } from './share-support.ts'
import { json, made, startTarget } from './tool-target.ts'

const script = (...replies: object[]) => ({ prompt: `@double ${JSON.stringify(replies)}` })
const PAST = '2020-01-01T00:00:00Z'

describe('usage of tools', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({
      together: true,
      workers: ['generation', 'delivery'],
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1' },
      actions: [
        'agents:*',
        'tools:*',
        'deciders:*',
        'generations:*',
        'shares:*',
        'projects:*',
        'usage:*',
        'activity:*',
        'actors:*',
      ],
    }),
  )
  beforeEach(() => {
    target.answer = json({ ok: true })
  })

  const tool = async (fields: object = {}) => made(app.key, { execute: { url: `${target.url}/x` }, ...fields })
  const usesOf = async (id: string, count = 1) => {
    const of = async () => (await usageOf(app, app.projectId)).filter(({ tool_id }) => tool_id === id)
    return eventually(async () => {
      const found = await of()
      return found.length >= count ? found : null
    })
  }
  const put = async (prices: object[]) => {
    const reply = await app.key.put(`/projects/${app.projectId}/prices`, { prices })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body.prices
  }
  const perPage = (id: string, quantity: object | null = { var: 'output.pages' }) => ({
    meter_type: 'tool_execution',
    provider: 'platform',
    model: 'tool-call',
    component: 'pages',
    unit: 'page',
    unit_price: 0.25,
    effective_from: PAST,
    resource: `srn:${app.projectId}:tool:${id}`,
    quantity,
  })

  it('is one event of each call, whether it fails or not, and none of a refused call', async () => {
    const { id, name } = await tool({ parameters: { type: 'object', properties: { n: { type: 'integer' } } } })
    assert.equal((await app.key.post(`/tools/${id}/call`, { input: { n: 1 } })).status, 200)
    target.answer = json({}, 500)
    assert.equal((await app.key.post(`/tools/${id}/call`, { input: { n: 2 } })).status, 502)
    assert.equal((await app.key.post(`/tools/${id}/call`, { input: { n: 'x' } })).status, 400)
    const events = (await usesOf(id, 2)).filter(({ tool_id }) => tool_id === id)
    assert.equal((await usageSettled(app, app.projectId)).filter(({ tool_id }) => tool_id === id).length, 2)
    const { provider, model, tool_action, source, generation_id, components } = events[0]
    assert.deepEqual(
      [provider, model, tool_action, source, generation_id],
      ['platform', 'tool-call', name, 'direct', null],
    )
    assert.deepEqual(
      components.map(({ component, quantity, unit }: any) => [component, quantity, unit]),
      [['tool_call', 1, 'tool_call']],
    )
  })

  it('of a call for whose quantity no thread is free is priced later', async () => {
    const { id } = await tool({ name: 'late-tool' })
    await put([perPage(id, costly('output.pages')), { ...perPage(id, null), component: 'flat', unit_price: 1 }])
    target.answer = json({ pages: COSTLY_ITEMS })
    const free = occupyThreads(app.services, app.projectId)
    try {
      assert.equal((await app.key.post(`/tools/${id}/call`, { input: {} })).status, 200)
      const [first] = await usesOf(id)
      assert.deepEqual(
        first.components.map(({ component, cost_usd }: any) => [component, cost_usd]),
        [
          ['tool_call', null],
          ['flat', 1],
        ],
      )
    } finally {
      free()
    }
    const late = (await usesOf(id, 2)).find(({ components }) => components[0].component === 'pages')
    assert.deepEqual(
      [late?.cost_usd, late?.components.length, late?.components[0].quantity, late?.tool_id],
      [20, 1, 80, id],
    )
    // Data stored meanwhile is sealed.
    const messages = await app.pool.oneFirst(
      sql.unsafe`select json_agg(data)::text from pgboss.job_common where name = 'usage.price_quantities'`,
    )
    assert.doesNotMatch(messages as string, /pages/)
    const feed = (await app.key.get('/activity?kind=usage_quantity_invalid')).body.data
    assert.deepEqual(
      feed.filter(({ ref_id }: any) => ref_id === id),
      [],
    )
  })

  it('is priced by a quantity as its tool writes it', async () => {
    const { id } = await tool({ name: 'decimal-tool' })
    await put([perPage(id)])
    target.answer = (_request, response) =>
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"pages":2.50}')
    assert.equal((await app.key.post(`/tools/${id}/call`, { input: {} })).status, 200)
    const [{ components }] = await usesOf(id)
    const pages = components.find(({ component }: any) => component === 'pages')
    assert.deepEqual([pages?.quantity, pages?.cost_usd], [2.5, 0.625])
  })

  it('of a turn is written with the outcomes of its calls', async () => {
    const { id } = await tool({ name: 'turn-tool' })
    const agent = await app.agent({ tool_bindings: [{ tool_id: id }] })
    const call = {
      tool_calls: [
        { name: 'turn-tool', args: {} },
        { name: 'turn-tool', args: {} },
      ],
    }
    const turn = await app.key.post(`/agents/${agent}/generate?wait=true`, script(call, call, { text: 'done' }))
    assert.equal(turn.status, 200, JSON.stringify(turn.body))
    // No wait: the turn is at its end.
    const events = (await usageOf(app, app.projectId)).filter(({ tool_id }) => tool_id === id)
    assert.equal(events.length, 4)
    for (const event of events)
      assert.deepEqual(
        [event.source, event.agent_id, event.generation_id, event.trace_id],
        ['agent', agent, turn.body.id, turn.body.trace_id],
      )
  })

  it('of a call that is repeated after a crash is written once', async () => {
    const own = await startAgentApp({ workers: [], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } })
    const env = { EGRESS_ALLOW_HOSTS: '127.0.0.1', GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1' }
    const doomed = { ...env, FAULT_POINTS: 'after_tool=kill' }
    const first = await startProcess('worker', own.databaseUrl, doomed, ['generation'])
    try {
      const again = { tool: { name: 'again', idempotent: true, execute: { url: `${target.url}/again` } } }
      const agent = await own.agent({ tool_bindings: [again] })
      const before = target.requests.length
      const asked = await own.key.post(
        `/agents/${agent}/generate`,
        script({ tool_calls: [{ name: 'again', args: {} }] }, { text: 'done' }),
      )
      await eventually(() => first.child.signalCode === 'SIGKILL')
      const second = await runWorker(own.databaseUrl, env, ['generation'])
      try {
        await eventually(
          async () => (await own.key.get(`/generations/${asked.body.generation_id}`)).body.status === 'completed',
        )
        assert.equal(target.requests.length - before, 2)
        const events = (await usageOf(own, own.projectId)).filter(({ meter_type }) => meter_type === 'tool_execution')
        assert.equal(events.length, 1)
      } finally {
        await second.stop()
      }
    } finally {
      await first.kill()
      await own.close()
    }
  })

  it('of a pipeline is one of it and one of each step', async () => {
    const { id: step } = await tool()
    const { id } = await made(app.key, {
      name: 'line',
      type: 'pipeline',
      pipeline: {
        steps: [
          { id: 'a', tool_id: step },
          { id: 'b', tool_id: step },
        ],
      },
    })
    assert.equal((await app.key.post(`/tools/${id}/call`, {})).status, 200)
    assert.equal((await usesOf(id)).length, 1)
    assert.equal((await usesOf(step, 2)).length, 2)
  })

  it('of a decision is written with its answers', async () => {
    const { id } = await tool()
    target.answer = json(TOOL_ANSWERS)
    const decider = await madeDecider(app.key, { tool_id: id })
    const decision = await app.key.post(`/deciders/${decider.id}/decisions`, { input: 'x', wait: true })
    assert.equal(decision.body.status, 'completed', JSON.stringify(decision.body))
    const [event] = (await usageOf(app, app.projectId)).filter(({ tool_id }) => tool_id === id)
    assert.deepEqual([event.source, event.idempotency_key], ['decider', `tool:${decision.body.id}`])
  })

  it('of a decision whose tool fails or answers something else is written with the failure', async () => {
    const { id } = await tool()
    const decider = await madeDecider(app.key, { tool_id: id })
    const answers = [json({ error: 'x' }, 500), json({ answers: [] })]
    for (const [index, answer] of answers.entries()) {
      target.answer = answer
      const { body } = await app.key.post(`/deciders/${decider.id}/decisions`, { input: 'x', wait: true })
      assert.equal(body.status, 'failed', JSON.stringify(body))
      const event = (await usageOf(app, app.projectId)).filter(({ tool_id }) => tool_id === id)[index]
      assert.deepEqual([event?.source, event?.idempotency_key], ['decider', `tool:${body.id}`])
    }
  })

  it('of a decision whose answers cannot be written is written, with what prices add', async () => {
    const { id } = await tool()
    await put([perPage(id)])
    target.answer = json({ ...TOOL_ANSWERS, pages: 3 })
    const decider = await madeDecider(app.key, { tool_id: id })
    await refusingUpdates(app.services, 'decisions', "new.status = 'completed'", async () => {
      const { body } = await app.key.post(`/deciders/${decider.id}/decisions`, { input: 'x', wait: true })
      assert.deepEqual([body.status, body.error?.code], ['failed', 'INTERNAL_ERROR'])
      const [event] = await usesOf(id)
      assert.deepEqual(
        [event.source, event.idempotency_key, event.components[1].quantity],
        ['decider', `tool:${body.id}`, 3],
      )
    })
  })

  it('of a decision that an agent makes names its source', async () => {
    const decider = await madeDecider(app.key, { agent_id: app.agentId })
    const decision = await app.key.post(`/deciders/${decider.id}/decisions`, { input: 'x', wait: true })
    const { generation_id } = decision.body
    const [event] = (await app.key.get(`/usage/events?generation_id=${generation_id}`)).body.data
    assert.deepEqual([event.source, event.meter_type], ['decider', 'llm_tokens'])
  })

  it('includes the prices of the tool, and 0 of values that are no quantity', async () => {
    const { id } = await tool({ output_mapping: { hidden: true } })
    const [price] = await put([perPage(id)])
    target.answer = json({ pages: 3 })
    assert.deepEqual((await app.key.post(`/tools/${id}/call`)).body, { hidden: true })
    const [event] = await usesOf(id)
    assert.deepEqual(event.components[1], {
      component: 'pages',
      unit: 'page',
      billable: true,
      quantity: 3,
      unit_price: 0.25,
      cost_usd: 0.75,
      price_id: price.id,
    })
    assert.equal(event.cost_usd, 0.75)
    for (const pages of [-1, 'three', null, 1e300]) {
      target.answer = json({ pages })
      await app.key.post(`/tools/${id}/call`)
    }
    for (const { components, cost_usd } of (await usesOf(id, 5)).slice(1)) {
      const { quantity, unit_price, price_id } = components[1]
      assert.deepEqual([quantity, unit_price, price_id, cost_usd], [0, null, null, null])
    }
    const told = await eventually(async () => {
      const { data } = (await app.key.get('/activity?kind=usage_quantity_invalid')).body
      return data.length >= 4 ? data : null
    })
    assert.deepEqual(
      [told[0].severity, told[0].ref_id, told[0].detail],
      ['warning', id, { resource: `srn:${app.projectId}:tool:${id}`, component: 'pages', price_id: price.id }],
    )
  })

  it('counts at most a billion tokens of a call by a quantity of its tool, so that sums stay in their range', async () => {
    const { id } = await tool()
    await put([{ ...perPage(id), component: 'input_tokens', unit: 'token' }])
    for (const pages of [1e9, 1e9 + 1]) {
      target.answer = json({ pages })
      assert.equal((await app.key.post(`/tools/${id}/call`)).status, 200)
    }
    const quantities = (await usesOf(id, 2)).map(({ components }) => components[1].quantity)
    assert.deepEqual(quantities.sort(), [0, 1e9])
  })

  it('is not held up by expressions that cost too much', async () => {
    const { id } = await tool()
    const costly = { map: [{ var: 'output.list' }, { '+': [{ '*': [{ var: '' }, 2] }, 1] }] }
    await put([
      perPage(id, { reduce: [costly, { '+': [{ var: 'accumulator' }, { '*': [{ var: 'current' }, 1] }] }, 0] }),
    ])
    target.answer = json({ list: Array.from({ length: 60_000 }, (_, n) => n) })
    assert.equal((await app.key.post(`/tools/${id}/call`)).status, 200)
    const [event] = await usesOf(id)
    assert.equal(event.components[1].quantity, 0)
  })

  it('through a share is of the consumer, with what prices of the publisher add', async () => {
    const { id } = await tool({ name: 'shared-tool' })
    await put([perPage(id, null)])
    const grantee = await app.projectWith(['tools:*', 'shares:*', 'usage:*', 'projects:ManageProjectPrices'])
    const share = await shared(app.key, `srn:${app.projectId}:tool:${id}`, { grantee: grantee.id })
    await accepted(grantee.key, share.id)
    const call = { ...perPage(id, null), component: 'tool_call', unit: 'tool_call', unit_price: 1, resource: null }
    await grantee.key.put(`/projects/${grantee.id}/prices`, { prices: [call] })
    assert.equal((await grantee.key.post(`/tools/${id}/call`)).status, 200)
    const [event] = await usageOnce(app, grantee.id, 1)
    assert.deepEqual([event.publisher_project_id, event.cost_usd], [app.projectId, 1.25])
  })
})
