import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { openStream, readStream } from '../execution/streams.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy, refusalOf } from '../support/replies.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'

describe('tools in sessions and conversations', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
      actions: ['sessions:*', 'conversations:*', 'agents:CreateAgentGeneration', 'generations:GetGeneration'],
    }),
  )
  let agent: string

  before(async () => {
    agent = await app.agent({
      tool_bindings: [
        { tool: { name: 'pick', type: 'client' } },
        { tool: { name: 'server', execute: { url: `${target.url}/server` } } },
      ],
    })
  })

  const open = (fields: object = {}) => createdBy(app.key, '/sessions', { agent_id: agent, ...fields })
  const say = (session: string, content: string) => app.key.post(`/sessions/${session}/messages`, { message: content })
  const generate = (session: string, query = '?wait=true') => app.key.post(`/sessions/${session}/generate${query}`, {})
  const messages = async (session: string) => (await app.key.get(`/sessions/${session}/messages`)).body.data
  const outputs = (session: string, result: any, output: unknown, query = '') =>
    app.key.post(`/sessions/${session}/tool-outputs${query}`, {
      generation_id: result.generation_id,
      tool_outputs: result.required_action.tool_calls.map(({ id }: { id: string }) => ({ tool_call_id: id, output })),
    })
  const paused = async (session: string) => {
    await say(session, scriptOf(toolCall('pick', { n: 1 }), { text: 'got {{tool.pick}}' }))
    const { body } = await generate(session)
    assert.equal(body.status, 'requires_action', JSON.stringify(body))
    return body
  }

  it('pause a session, whose reply is stored once the client has answered', async () => {
    const { id } = await open()
    const result = await paused(id)
    assert.deepEqual([result.message, result.required_action.tool_calls[0].args], [null, { n: 1 }])
    assert.equal((await messages(id)).length, 1)
    const wrong = { generation_id: result.generation_id, tool_outputs: [{ tool_call_id: 'x', output: 1 }] }
    assert.deepEqual(refusalOf(await app.key.post(`/sessions/${id}/tool-outputs`, wrong)), [400, 'VALIDATION_FAILED'])
    const both = await Promise.all([outputs(id, result, 'seven'), outputs(id, result, 'seven')])
    assert.deepEqual(both.map(({ status }) => status).sort(), [200, 404])
    const done = both.find(({ status }) => status === 200)?.body
    assert.deepEqual([done.status, done.content, done.message.content], ['completed', 'got seven', 'got seven'])
    assert.deepEqual(
      (await messages(id)).map(({ role, content }: any) => [role, content.startsWith('@') ? 'asked' : content]),
      [
        ['user', 'asked'],
        ['assistant', 'got seven'],
      ],
    )
    assert.deepEqual(refusalOf(await outputs(id, result, 1)), [404, 'GENERATION_NOT_FOUND'])
    const names = (await storedEvents(app.pool, { resource: id })).map(({ name }) => name)
    assert.deepEqual(names, [
      'sessions.created',
      'sessions.generation_started',
      'sessions.generation_requires_action',
      'sessions.generation_completed',
    ])
  })

  it('keep no session busy while paused; the resumed turn is enqueued at the end', async () => {
    const { id } = await open()
    const result = await paused(id)
    await say(id, scriptOf({ text: 'meanwhile' }))
    const between = await generate(id)
    assert.equal(between.body.content, 'meanwhile')
    assert.equal((await outputs(id, result, 'late')).body.content, 'got late')
    assert.deepEqual(
      (await messages(id)).filter(({ role }: any) => role === 'assistant').map(({ content }: any) => content),
      ['meanwhile', 'got late'],
    )
  })

  it('take the outputs of a session over the route of its agent too, through the same mailbox', async () => {
    const { id } = await open()
    const result = await paused(id)
    const tool_outputs = [{ tool_call_id: result.required_action.tool_calls[0].id, output: 'x' }]
    const path = `/agents/${agent}/generate/${result.generation_id}/tool-outputs`
    const { status, body } = await app.key.post(path, { tool_outputs })
    assert.deepEqual([status, body.content, body.message.content], [200, 'got x', 'got x'])
    assert.equal((await messages(id)).length, 2)
  })

  it('are refused of other sessions and of closed ones, and consume nothing', async () => {
    const [mine, other] = [await open(), await open()]
    const result = await paused(mine.id)
    assert.deepEqual(refusalOf(await outputs(other.id, result, 1)), [404, 'GENERATION_NOT_FOUND'])
    await app.key.patch(`/sessions/${mine.id}`, { status: 'closed' })
    assert.deepEqual(refusalOf(await outputs(mine.id, result, 1)), [409, 'SESSION_CLOSED'])
    assert.equal((await app.key.get(`/generations/${result.generation_id}`)).body.status, 'requires_action')
  })

  it('stream tool events and the events after a pause', async () => {
    const { id } = await open()
    await say(id, scriptOf(toolCall('server'), toolCall('pick'), { text: 'the end' }))
    const first = await readStream(await openStream(app, `/sessions/${id}/generate`, { stream: true }))
    assert.deepEqual(
      first.map(({ event }) => event),
      ['started', 'tool_call', 'tool_result', 'requires_action'],
    )
    const { data } = first.at(-1) as { data: any }
    const [{ id: tool_call_id }] = data.required_action.tool_calls
    const body = { generation_id: data.generation_id, tool_outputs: [{ tool_call_id, output: 1 }], stream: true }
    const rest = await readStream(await openStream(app, `/sessions/${id}/tool-outputs`, body))
    assert.deepEqual([rest.at(-1)?.event, rest.at(-1)?.data.content], ['completed', 'the end'])
    // Events of protocol mounts have numbers too.
    assert.ok(Number(rest[0].id) > Number(first.at(-1)?.id))
  })

  it('say whose session it is to those who are called', async () => {
    target.answer = json({ ok: true })
    const actor = (await app.admin.post('/actors', { project_id: app.projectId, name: 'Ada', external_id: 'ext-1' }))
      .body
    const { id } = await open({ actor_id: actor.id, tool_context: { tenant: 'acme', sessionId: 'forged' } })
    await say(id, scriptOf(toolCall('server'), { text: 'ok' }))
    await generate(id)
    const { headers } = target.last()
    assert.equal(headers['x-svc-context-tenant'], 'acme')
    assert.equal(headers['x-svc-context-sessionid'], id)
    assert.equal(headers['x-svc-context-actorid'], actor.id)
    assert.equal(headers['x-svc-context-actorexternalid'], 'ext-1')
  })

  it('do not wait for a turn that waits for them', async () => {
    const tool = { name: 'api', type: 'platform', actions: ['generate-session-reply', 'send-session-message'] }
    const own = await app.agent({ tool_bindings: [{ tool }] })
    const { id } = (await app.key.post('/sessions', { agent_id: own, auto_generate: false })).body
    const calls = { tool_calls: [{ name: 'api_generate-session-reply', args: { session_id: id } }] }
    await say(id, scriptOf(calls, { text: 'well' }))
    const { body } = await generate(id)
    assert.equal(body.content, 'well')
    const { steps } = (await app.admin.get(`/generations/${body.generation_id}/transcript`)).body
    assert.match(JSON.stringify(steps[0].tool_results[0].error), /GENERATION_ALREADY_IN_PROGRESS/)
  })

  it('let a paused turn of a session be called off, and end with it', async () => {
    const { id } = await open()
    const result = await paused(id)
    assert.equal((await app.key.delete(`/sessions/${id}`)).status, 204)
    assert.deepEqual(refusalOf(await outputs(id, result, 1)), [404, 'RESOURCE_NOT_FOUND'])
    const path = `/agents/${agent}/generate/${result.generation_id}/tool-outputs`
    const tool_outputs = [{ tool_call_id: result.required_action.tool_calls[0].id, output: 'x' }]
    const refused = await app.key.post(path, { tool_outputs })
    assert.equal(refused.status, 404, JSON.stringify(refused.body))
  })
})
