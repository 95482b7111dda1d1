import assert from 'node:assert/strict'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { type Profile, profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'

const ACTIONS = ['agents:CreateAgentGeneration', 'generations:*', 'sessions:*']
const RESULT_BYTES = 8192
const STEPS = 20
const anthropic = profiles.find(({ name }) => name === 'anthropic') as Profile

/** Cost of the input of a turn, in tokens at the price of an uncached one. */
const equivalents = ({ uncached_input_tokens, cached_tokens, cache_write_tokens }: Record<string, number>) =>
  uncached_input_tokens! + 1.25 * cache_write_tokens! + 0.1 * cached_tokens!

describe('prompt caching', function () {
  this.timeout(60_000)
  let app: AgentApp
  let simulators: Simulators
  let tools: Server
  let lanes = 0

  before(async () => {
    ;[app, simulators] = await Promise.all([
      startAgentApp({ actions: ACTIONS, env: { AGENT_MAX_STEPS_CEILING: '50' } }),
      startSimulators(),
    ])
    let results = 0
    tools = createServer((_, response) => {
      const line = `${++results} `.repeat(RESULT_BYTES).slice(0, RESULT_BYTES)
      response.writeHead(200, { 'content-type': 'text/plain' }).end(line)
    })
    await new Promise<void>(resolve => tools.listen(0, '127.0.0.1', resolve))
  })
  after(async () => {
    tools?.close()
    await Promise.all([app?.close(), simulators?.close()])
  })

  /** An agent of a separate provider, whose calls have a separate lane. */
  const agentWith = async (fields: object, model?: string) => {
    const lane = `lane-${++lanes}`
    const secret = await app.admin.post('/secrets', { project_id: app.projectId, name: lane, value: lane })
    const provider = { ...providerFields(anthropic, simulators.url), name: lane, secret_id: secret.body.id }
    const made = await app.admin.post('/ai-providers', {
      project_id: app.projectId,
      ...provider,
      ...(model && { default_model: model }),
    })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    const agent = await app.agent({ ai_provider_id: made.body.id, name: lane, ...fields })
    return { agent, lane }
  }
  const look = () => ({
    tool: {
      name: 'look',
      type: 'http',
      parameters: { type: 'object', properties: { at: { type: 'integer' } } },
      execute: { url: `http://127.0.0.1:${(tools.address() as AddressInfo).port}/` },
    },
  })

  const longTurn = async (fields: object) => {
    const { agent, lane } = await agentWith({
      tool_bindings: [look()],
      max_steps: 50,
      instructions: 'Look around.',
      ...fields,
    })
    simulators.plan(lane, (_, n) =>
      n < STEPS - 1 ? { tool_calls: [{ name: 'look', args: { at: n } }] } : { text: 'seen' },
    )
    const { body } = await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'Look' })
    assert.equal(body.output?.content, 'seen', JSON.stringify(body))
    assert.equal(simulators.calls(lane).length, STEPS)
    return equivalents(body.usage)
  }

  it('is on for agents with tools, and a turn of 20 steps with results of 8 KB costs at most 110,000 tokens', async () => {
    const [cached, uncached] = [await longTurn({}), await longTurn({ prompt_caching: { enabled: false } })]
    assert.ok(cached <= 110_000, `${cached} tokens, ${uncached} without caching`)
    assert.ok(uncached > 3 * cached, `${cached} tokens, ${uncached} without caching`)
  })

  it('requests an hour where the agent does, at four places at most', async () => {
    const { agent, lane } = await agentWith({
      tool_bindings: [look()],
      instructions: 'Look around.',
      prompt_caching: { enabled: true, ttl: '1h' },
    })
    simulators.plan(lane, [{ tool_calls: [{ name: 'look', args: { at: 1 } }] }, { text: 'seen' }])
    await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'Look' })
    const [first, second] = simulators.calls(lane).map(({ body }) => JSON.stringify(body))
    const marks = (text: string) => text.match(/"cache_control":\{"type":"ephemeral","ttl":"1h"\}/g)?.length
    assert.deepEqual([marks(first!), marks(second!)], [3, 4])
  })

  it('is requested from no model without tools by default', async () => {
    const { agent, lane } = await agentWith({ instructions: 'Answer.' })
    simulators.plan(lane, { text: 'fine' })
    await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'Hello' })
    assert.doesNotMatch(JSON.stringify(simulators.calls(lane)[0]!.body), /cache_control/)
  })

  it('finds the history of earlier turns, because what changes per turn follows it', async () => {
    const { agent, lane } = await agentWith({
      tool_bindings: [look()],
      shared_state: true,
      instructions: 'word '.repeat(1200),
    })
    const session = (await app.key.post('/sessions', { agent_id: agent })).body
    simulators.plan(lane, { text: 'answer '.repeat(1200) })
    for (let n = 0; n < 3; n++) {
      assert.equal((await app.key.patch(`/sessions/${session.id}`, { state: { page: n } })).status, 200)
      await app.key.post(`/sessions/${session.id}/messages`, { message: `question ${n} ${'word '.repeat(1200)}` })
      const { status, body } = await app.key.post(`/sessions/${session.id}/generate?wait=true`, {})
      assert.equal(status, 200, JSON.stringify(body))
    }
    const calls = await eventually(() => {
      const found = simulators.calls(lane).filter(({ body }) => JSON.stringify(body).includes('shared_state'))
      return found.length === 3 ? found : null
    })
    const [, second, third] = calls.map(({ body }) => body.messages.map((each: object) => JSON.stringify(each)))
    const unmarked = (text: string) => text.replaceAll(/,"cache_control":\{[^}]*\}/g, '')
    // The state precedes the last question only.
    assert.equal(third.filter((text: string) => text.includes('shared_state')).length, 1)
    assert.match(third.at(-1), /shared_state.*question 2/)
    assert.equal(unmarked(third[0]).includes('question 0'), true)
    assert.deepEqual(third.slice(0, 2).map(unmarked)[1], second.slice(0, 2).map(unmarked)[1])
    const { usage } = (await app.key.get(`/generations?session_id=${session.id}&limit=1`)).body.data[0]
    assert.ok(usage.cached_tokens > 3000, JSON.stringify(usage))
  })
})
