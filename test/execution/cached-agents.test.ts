import assert from 'node:assert/strict'
import { client as doubleClient } from '../local/double/client.ts'
import { type Client, client } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { codeOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { json, startTarget } from './tool-target.ts'

type Json = Record<string, any>

const ACTIONS = ['agents:CreateAgentGeneration', 'tools:CallTool']
const ROUNDS = 30

describe('cached agents', function () {
  this.timeout(120_000)
  const target = forSuite(startTarget)
  const app = forSuite(() => startAgentApp({ actions: ACTIONS, env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  const double = forSuite(() => doubleClient(app.double))
  const processes = steadyWorkers()
  let other: { admin: Client; key: Client }
  before(async () => {
    const { url } = await processes.startWeb(app.databaseUrl, { EGRESS_ALLOW_HOSTS: '127.0.0.1' })
    other = { admin: client(url, app.admin.token), key: client(url, app.key.token) }
    for (const lane of ['one', 'two']) await double.put(lane, { rules: [{ reply: { text: lane } }] })
  })
  after(() => processes.stop())

  const run = (key: Client, agent: string, body: Json = {}, query = '') =>
    key.post(`/agents/${agent}/generate${query}`, { prompt: 'x', ...body })
  const ok = ({ status, body }: { status: number; body: any }) => {
    assert.ok(status < 300, JSON.stringify(body))
    return body
  }
  const versionOf = async ({ generation_id }: Json): Promise<number> =>
    (await app.rows('select assigned_version from generations where id = $1', [generation_id]))[0].assigned_version
  const turnsOf = async (agent: string): Promise<number> =>
    (await app.rows('select count(*)::int as n from generations where agent_id = $1', [agent]))[0].n
  /** An agent in the caches of both processes. */
  const cached = async (fields: Json = {}) => {
    const agent = await app.agent(fields)
    for (const key of [app.key, other.key]) ok(await run(key, agent))
    return agent
  }

  it('are not read again for a turn, and read after a change', async () => {
    const agent = await cached()
    const reads = () => app.statements.filter(text => text.includes('as revision')).length
    const before = reads()
    for (let n = 0; n < 3; n++) ok(await run(app.key, agent))
    assert.equal(reads(), before)
    ok(await other.admin.patch(`/agents/${agent}`, { instructions: 'changed' }))
    assert.equal(await versionOf(ok(await run(app.key, agent))), 2)
    assert.equal(reads(), before + 1)
  })

  it('serve each turn as the change before it left them, whichever process made it', async () => {
    const agent = await cached({ model: 'one/m' })
    for (let round = 0; round < ROUNDS; round++) {
      const [changing, running] = round % 2 ? [other.admin, app.key] : [app.admin, other.key]
      const lane = round % 3 ? 'one' : 'two'
      const { version } = ok(await changing.patch(`/agents/${agent}`, { model: `${lane}/m`, name: `round ${round}` }))
      const { agent_version, output } = ok(await run(running, agent, {}, '?wait=true'))
      assert.deepEqual([agent_version, output.content], [version, lane])
    }
  })

  it('serve no turn with a version from before its request, while they change all the time', async () => {
    const agent = await cached()
    let answered = 1
    let isOver = false
    const changes = async () => {
      for (let n = 0; n < ROUNDS; n++)
        answered = ok(await app.admin.patch(`/agents/${agent}`, { name: `n${n}` })).version
      isOver = true
    }
    const turns = async (key: Client) => {
      while (!isOver) {
        const least = answered
        const version = await versionOf(ok(await run(key, agent)))
        assert.ok(version >= least, `version ${version} after ${least}`)
      }
    }
    await Promise.all([changes(), turns(app.key), turns(other.key), turns(other.key)])
  })

  it('are not found after their deletion in another process', async () => {
    for (let round = 0; round < 10; round++) {
      const agent = await cached()
      ok(await app.admin.delete(`/agents/${agent}?force=true`))
      const reply = await run(other.key, agent)
      assert.deepEqual([reply.status, codeOf(reply)], [404, 'RESOURCE_NOT_FOUND'])
      assert.equal(await turnsOf(agent), 0)
    }
  })

  it('serve the versions of a release from its start to its end', async () => {
    for (let round = 0; round < 5; round++) {
      const agent = await cached()
      ok(await app.admin.patch(`/agents/${agent}`, { instructions: 'second' }))
      assert.equal(await versionOf(ok(await run(other.key, agent))), 2)
      const release = { stable_version: 1, canary_version: 2, canary_percent: 0 }
      ok(await app.admin.put(`/agents/${agent}/release`, release))
      assert.equal(await versionOf(ok(await run(other.key, agent))), 1)
      ok(await app.admin.put(`/agents/${agent}/release`, { ...release, canary_percent: 100 }))
      assert.equal(await versionOf(ok(await run(other.key, agent))), 2)
      ok(await app.admin.put(`/agents/${agent}/release`, { ...release, canary_percent: 50 }))
      const drawn = new Set<number>()
      for (let n = 0; n < 20; n++) drawn.add(await versionOf(ok(await run(other.key, agent))))
      assert.deepEqual([...drawn].sort(), [1, 2])
      ok(await app.admin.post(`/agents/${agent}/release/abort`))
      assert.equal(await versionOf(ok(await run(other.key, agent))), 3)
    }
  })

  it('refuse a request by their current settings only', async () => {
    const agent = await cached()
    for (const output_schema of [{ type: 'object' }, null, { type: 'object' }, null]) {
      ok(await app.admin.patch(`/agents/${agent}`, { output_schema }))
      const reply = await run(other.key, agent, { stream: true })
      if (output_schema) assert.equal(codeOf(reply), 'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
      else assert.equal(reply.status, 200)
    }
  })

  it('follow the settings of their project, its default route and its provider', async () => {
    const project = `/projects/${app.projectId}`
    const prices = ['input_tokens', 'output_tokens'].map(component => ({
      ...{ provider: 'custom', model: 'priced', component, unit: 'token' },
      ...{ unit_price: 0.001, effective_from: '2026-01-01' },
    }))
    ok(await app.admin.put(`${project}/prices`, { prices }))
    const targets = (model: string) => ({ targets: [{ ai_provider_id: app.providerId, model }] })
    const route = ok(
      await app.admin.post('/model-routes', { project_id: app.projectId, name: 'r', ...targets('unpriced') }),
    )
    ok(await app.admin.patch(project, { default_model_route_id: route.id }))
    const routed = await cached({ ai_provider_id: null })
    const direct = await cached()
    const runs = async (agent: string, isPriced: boolean) => {
      const reply = await run(other.key, agent)
      assert.equal(codeOf(reply), isPriced ? undefined : 'MODEL_NOT_PRICED')
    }
    for (let round = 0; round < 5; round++) {
      ok(await app.admin.patch(project, { require_priced_model: true }))
      for (const agent of [routed, direct]) await runs(agent, false)
      ok(await app.admin.patch(`/model-routes/${route.id}`, targets('priced')))
      ok(await app.admin.patch(`/ai-providers/${app.providerId}`, { default_model: 'priced' }))
      for (const agent of [routed, direct]) await runs(agent, true)
      ok(await app.admin.patch(`/model-routes/${route.id}`, targets('unpriced')))
      ok(await app.admin.patch(`/ai-providers/${app.providerId}`, { default_model: 'double-1' }))
      for (const agent of [routed, direct]) await runs(agent, false)
      ok(await app.admin.patch(project, { require_priced_model: false }))
      for (const agent of [routed, direct]) await runs(agent, true)
    }
  })

  it('that changed have one audit entry and one turn for each request', async () => {
    const agent = await cached()
    ok(await app.admin.patch(`/agents/${agent}`, { name: 'changed' }))
    const key = { 'idempotency-key': 'changed-once' }
    const first = ok(await other.key.post(`/agents/${agent}/generate`, { prompt: 'x' }, key))
    assert.deepEqual(ok(await other.key.post(`/agents/${agent}/generate`, { prompt: 'x' }, key)), first)
    assert.equal(await turnsOf(agent), 3)
    const [{ n }] = await app.rows(
      `select count(*)::int as n from audit_entries where resource_public_id = $1 and action = 'agents:CreateAgentGeneration'`,
      [agent],
    )
    assert.equal(n, 4)
  })

  it('that changed have the tools of a request called once', async () => {
    target.answer = json({ ok: true })
    const tool = ok(
      await app.admin.post('/tools', {
        project_id: app.projectId,
        name: 'look',
        execute: { url: `${target.url}/look` },
      }),
    )
    const agent = await cached({ tool_bindings: [{ tool_id: tool.id }] })
    for (let round = 0; round < 3; round++) {
      ok(await app.admin.patch(`/agents/${agent}`, { name: `round ${round}` }))
      target.requests.length = 0
      const content = { type: 'tool_output', tool_id: tool.id }
      const body = { messages: [{ role: 'user', content }] }
      assert.equal(await versionOf(ok(await run(other.key, agent, body))), round + 2)
      assert.equal(target.requests.length, 1)
    }
  })

  it('are checked by turns that reserve a quota too', async () => {
    const quota = {
      scope: 'project',
      metric: 'tokens',
      window: 'calendar_month',
      limit: 1e9,
      mode: 'enforce',
      reserve: true,
    }
    const { id } = ok(await app.admin.post('/quotas', { project_id: app.projectId, ...quota }))
    const agent = await cached()
    for (let round = 0; round < 5; round++) {
      const { version } = ok(await app.admin.patch(`/agents/${agent}`, { name: `round ${round}` }))
      assert.equal(await versionOf(ok(await run(other.key, agent))), version)
    }
    ok(await app.admin.delete(`/quotas/${id}`))
  })
})
