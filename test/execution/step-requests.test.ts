import assert from 'node:assert/strict'
import { client } from '../local/double/client.ts'
import { allowing } from '../support/oauth.ts'
import { createdBy, refusalOf } from '../support/replies.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { accepted, shared } from './share-support.ts'
import { json, startTarget } from './tool-target.ts'

type Json = Record<string, any>

const ACTIONS = ['agents:*', 'documents:*', 'generations:*', 'traces:*', 'knowledge:*', 'shares:*', 'tools:*']

describe('model requests of steps', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startAgentApp({
      actions: ACTIONS,
      env: { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '64', EGRESS_ALLOW_HOSTS: '127.0.0.1' },
    }),
  )
  const double = forSuite(() => client(app.double))
  const target = forSuite(startTarget)
  let lanes = 0

  /** An agent with a lane of the model that gives these replies. */
  const scripted = async (replies: object[], fields: object = {}): Promise<{ id: string; lane: string }> => {
    const lane = `steps-${++lanes}`
    await double.put(lane, { rules: [{ replies }] } as never)
    return { lane, id: await app.agent({ model: `${lane}/m`, ...fields }) }
  }
  const turn = async (agent: string, body: object = { prompt: 'Where do curlews nest?' }): Promise<Json> =>
    (await app.key.post(`/agents/${agent}/generate?wait=true`, body)).body
  const pathOf = (id: string, step: number | string) => `/generations/${id}/steps/${step}/request`
  const requestOf = async (id: string, step: number): Promise<Json> => {
    const { status, body } = await app.key.get(pathOf(id, step))
    assert.equal(status, 200, JSON.stringify(body))
    return body
  }
  const parameters = { type: 'object', properties: { of: { type: 'string' } } }
  const tool = (name: string) => ({
    tool: { name, description: 'Orders of a customer', parameters, execute: { url: `${target.url}/${name}` } },
  })

  it('are what the model was given, in each step, with knowledge, tools, settings and earlier steps', async () => {
    target.answer = json({ total: 240 })
    const document = { content: 'Curlews nest in moors and marshes.', path: '/birds/curlew.md' }
    const { id: documentId } = await createdBy(app.key, '/documents', document)
    const { id: agent, lane } = await scripted([toolCall('orders', { of: 'A-17' }), { text: 'done' }], {
      instructions: 'Be brief',
      temperature: 0.25,
      max_output_tokens: 500,
      knowledge_config: { document_paths: ['/birds'] },
      tool_bindings: [tool('orders')],
    })
    const messages = ['Hello', 'Where do curlews nest?'].map(content => ({ role: 'user', content }))
    const { id } = await turn(agent, { messages })
    const requests = (await double.requests(lane)).map(({ body }: Json) => body)
    assert.equal(requests.length, 2)
    for (const [index, body] of requests.entries()) {
      const sent = await requestOf(id, index + 1)
      assert.deepEqual([sent.step, sent.model, sent.ai_provider_id], [index + 1, `${lane}/m`, app.providerId])
      assert.equal(sent.system, body.messages[0].content)
      // Texts of searches are not stored.
      const given = body.messages.filter(({ content }: Json) => !String(content).includes('<knowledge>'))
      assert.equal(given.length, body.messages.length - 1)
      assert.deepEqual(
        sent.messages.map(({ role }: Json) => role),
        given.slice(1).map(({ role }: Json) => role),
      )
      const texts = (all: Json[]) => all.flatMap(({ role, content }) => (role === 'user' ? [content] : []))
      assert.deepEqual(texts(sent.messages), texts(given))
      assert.equal(sent.knowledge.results[0].document_id, documentId)
      const [offered] = body.tools
      assert.deepEqual(sent.tools, [
        {
          name: offered.function.name,
          description: offered.function.description,
          parameters: offered.function.parameters,
        },
      ])
      assert.deepEqual(sent.settings, { temperature: 0.25, max_output_tokens: 500 })
      assert.deepEqual([sent.omitted_messages, sent.is_shortened], [0, false])
    }
    const [call, result] = (await requestOf(id, 2)).messages.slice(-2)
    assert.deepEqual(call.content[0].args, { of: 'A-17' })
    assert.deepEqual(result.content[0].result, { total: 240 })
    assert.deepEqual(Object.keys(result.content[0]).sort(), ['error', 'result', 'tool_call_id', 'tool_name', 'type'])
    const stored = await app.rows('select body from step_requests where generation_id = $1', [id])
    assert.equal(stored.length, 1)
    assert.doesNotMatch(stored[0].body, /Curlews nest/)
  })

  it('name the messages that were left out', async () => {
    const { id: agent, lane } = await scripted([{ text: 'done' }], { max_context_messages: 1 })
    const { id } = await turn(agent, { messages: ['one', 'two', 'three'].map(content => ({ role: 'user', content })) })
    const { messages, omitted_messages, knowledge } = await requestOf(id, 1)
    assert.deepEqual([messages, omitted_messages, knowledge], [[{ role: 'user', content: 'three' }], 2, null])
    const [{ body }] = (await double.requests(lane)) as Json[]
    assert.equal(body.messages.length, 1)
  })

  it('are stored for a call that failed, and for a turn that waited for its client', async () => {
    const { id: failing } = await scripted([{ error: { status: 400 } }], { instructions: 'Fail' })
    const { error } = await turn(failing)
    const failed = await requestOf(error.meta.generation_id, 1)
    assert.deepEqual([failed.system, failed.model], ['Fail', null])

    const ask = { tool: { name: 'ask', type: 'client', description: 'Asks', parameters: { type: 'object' } } }
    const { id: pausing } = await scripted([toolCall('ask'), { text: 'done' }], { tool_bindings: [ask] })
    const paused = await turn(pausing)
    assert.equal(paused.status, 'requires_action', JSON.stringify(paused))
    const outputs = [{ tool_call_id: paused.required_action.tool_calls[0].id, output: 'yes' }]
    const resumed = await app.key.post(`/agents/${pausing}/generate/${paused.id}/tool-outputs?wait=true`, {
      tool_outputs: outputs,
    })
    assert.equal(resumed.status, 200, JSON.stringify(resumed.body))
    assert.deepEqual(
      (await requestOf(paused.id, 1)).tools.map(({ name }: Json) => name),
      ['ask'],
    )
    assert.equal((await requestOf(paused.id, 2)).messages.length, 3)
  })

  it('have the tools without schemas if they are longer than 256 KiB', async () => {
    const properties = Object.fromEntries(
      Array.from({ length: 60 }, (_, n) => [`field_${n}`, { type: 'string', description: 'x'.repeat(900) }]),
    )
    const bindings = Array.from({ length: 6 }, (_, n) => ({
      tool: { ...tool(`big_${n}`).tool, parameters: { type: 'object', properties } },
    }))
    const { id: agent } = await scripted([{ text: 'done' }], { tool_bindings: bindings, instructions: 'Be brief' })
    const { id } = await turn(agent)
    const { tools, is_shortened, system } = await requestOf(id, 1)
    assert.deepEqual([is_shortened, system, tools.length], [true, 'Be brief', 6])
    assert.deepEqual(tools[0], { name: 'big_0', description: '', parameters: {} })
  })

  it('are stored up to a megabyte a turn', async () => {
    const parameters = { type: 'object', properties: { of: { type: 'string', description: 'x'.repeat(60_000) } } }
    const made = await Promise.all(
      ['even', 'odd'].map(name => createdBy(app.key, '/tools', { ...tool(name).tool, parameters })),
    )
    const steps = 24
    const replies = Array.from({ length: steps - 1 }, (_, n) => toolCall(n % 2 ? 'odd' : 'even'))
    const { id: agent } = await scripted([...replies, { text: 'done' }], {
      tool_bindings: made.map(({ id }) => ({ tool_id: id })),
      max_steps: steps,
      step_rules: Array.from({ length: steps }, (_, n) => ({ step: n + 1, active_tool_ids: [made[n % 2].id] })),
    })
    const { id } = await turn(agent)
    const statuses = []
    for (let n = 1; n <= steps; n++) statuses.push((await app.key.get(pathOf(id, n))).status)
    assert.deepEqual([statuses[0], statuses.at(-1)], [200, 409])
    const [{ bytes }] = await app.rows(
      'select sum(octet_length(body))::int as bytes from step_requests where generation_id = $1',
      [id],
    )
    assert.ok(bytes > 600_000 && bytes <= 1024 * 1024, String(bytes))
  })

  it('have the times of the model and of each call', async () => {
    target.answer = (request, response) => setTimeout(() => json({ ok: true })(request, response), 30)
    const { id: agent } = await scripted([{ tool_calls: [...toolCall('orders').tool_calls] }, { text: 'done' }], {
      tool_bindings: [tool('orders')],
    })
    const { id } = await turn(agent)
    const [step] = (await app.key.get(`/generations/${id}/transcript`)).body.steps
    const [{ started_at, completed_at }] = step.tool_results
    const times = [step.started_at, step.answered_at, started_at, completed_at, step.completed_at]
    assert.deepEqual(times, times.toSorted())
    assert.ok(Date.parse(completed_at) - Date.parse(started_at) >= 25)
  })

  it('are read with permission for the trace, and what the agent defines with permission for it', async () => {
    const { id: agent } = await scripted([{ text: 'done' }])
    const { id } = await turn(agent)
    const other = await app.projectWith(['*'])
    assert.deepEqual(refusalOf(await other.key.get(pathOf(id, 1))), [404, 'GENERATION_NOT_FOUND'])
    const userWith = (action: string) => app.user(undefined, [allowing(app.projectId, [action])])
    const { status, body } = await (await userWith('traces:GetTrace')).get(pathOf(id, 1))
    assert.deepEqual([status, body.messages.length, body.knowledge], [200, 1, null])
    assert.deepEqual(
      ['system', 'tools', 'tool_choice', 'output_schema', 'settings', 'vendor_tools', 'provider_options'].filter(
        name => body[name] !== null,
      ),
      [],
    )
    assert.deepEqual(refusalOf(await (await userWith('generations:GetGeneration')).get(pathOf(id, 1))), [
      403,
      'FORBIDDEN',
    ])
  })

  it('are refused for a step that is not there, and for content that is not', async () => {
    const { id: agent } = await scripted([{ text: 'done' }, { text: 'again' }])
    const { id } = await turn(agent)
    assert.deepEqual(refusalOf(await app.key.get(pathOf(id, 2))), [404, 'RESOURCE_NOT_FOUND'])
    const { status, body } = await app.key.get(pathOf(id, 'one'))
    assert.deepEqual([status, body.error.meta.problems[0].path], [400, 'step'])

    const hidden = await turn(await app.agent({ trace_content_mode: 'none' }))
    assert.deepEqual(refusalOf(await app.key.get(pathOf(hidden.id, 1))), [409, 'GENERATION_CONTENT_UNAVAILABLE'])
    assert.deepEqual(await app.rows('select n from step_requests where generation_id = $1', [hidden.id]), [])

    await app.key.delete(`/generations/${id}/content`)
    assert.deepEqual(refusalOf(await app.key.get(pathOf(id, 1))), [409, 'GENERATION_CONTENT_UNAVAILABLE'])
    assert.deepEqual(await app.rows('select n from step_requests where generation_id = $1', [id]), [])
  })

  it('of an agent that another project shares are not stored', async () => {
    const grantee = await app.projectWith(ACTIONS)
    const share = await shared(app.key, `srn:${app.projectId}:agent:${app.agentId}`, { grantee: grantee.id })
    await accepted(grantee.key, share.id)
    const { status, body } = await grantee.key.post(`/agents/${app.agentId}/generate?wait=true`, {
      prompt: scriptOf({ text: 'hi' }),
    })
    assert.equal(status, 200, JSON.stringify(body))
    assert.deepEqual(refusalOf(await grantee.key.get(pathOf(body.id, 1))), [409, 'GENERATION_CONTENT_UNAVAILABLE'])
  })
})
