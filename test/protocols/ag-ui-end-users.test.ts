import assert from 'node:assert/strict'
import { CHAT_ACTIONS, endUser } from '../conversation/end-user-support.ts'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { calls, ofType, postRun, said, ThreadClient, types } from './ag-ui-support.ts'

describe('end users at the AG-UI mount', () => {
  let app: SessionApp
  const target = forSuite(startTarget)
  let agentId: string

  before(async () => {
    target.answer = json({ hidden_result: 1 })
    app = await startSessionApp({ env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' }, actions: CHAT_ACTIONS })
    agentId = await app.agent({
      instructions: 'hidden instructions',
      shared_state: true,
      tool_bindings: [
        { tool: { name: 'pick', type: 'client' } },
        { tool: { name: 'hidden_tool', execute: { url: `${target.url}/x` } } },
      ],
    })
  })
  after(async () => {
    await app.close()
  })

  const user = (fields: object = {}) => endUser(app, { agent_ids: [agentId], ...fields })
  const open = (token: string, options: Partial<ConstructorParameters<typeof ThreadClient>[0]> = {}) =>
    new ThreadClient({ url: app.url, token, agentId, ...options })
  const run = (fields: object = {}) => ({
    threadId: crypto.randomUUID(),
    runId: crypto.randomUUID(),
    messages: [{ id: crypto.randomUUID(), role: 'user', content: said({ text: 'ok' }) }],
    ...fields,
  })

  it('chat in own sessions, with tools of the client and state', async () => {
    const { token, actorId } = await user()
    const client = open(token, { state: { n: 1 } })
    const patch = calls('update_state', { patch: [{ op: 'replace', path: '/n', value: 2 }] })
    const asked = await client.say(said(patch, calls('pick', { q: 1 }), { text: 'got {{tool.pick}}' }))
    const [{ toolCallId, toolCallName }] = ofType(asked, 'TOOL_CALL_START')
    assert.equal(toolCallName, 'pick')
    await client.answer({ [toolCallId]: 'seven' })
    assert.deepEqual(client.texts(), ['got seven'])
    assert.deepEqual(client.agent.state, { n: 2 })
    const sessions = (await app.key.get(`/sessions?actor_id=${actorId}`)).body.data
    assert.deepEqual(
      sessions.map(({ agent_id, actor_id }: any) => [agent_id, actor_id]),
      [[agentId, actorId]],
    )
    await client.say(said({ text: 'more' }))
    assert.deepEqual(client.texts().at(-1), 'more')
  })

  it('see no name, argument or result of a tool on the server, no step, usage or vendor text', async () => {
    const { token } = await user()
    const client = open(token)
    const done = await client.say(said(calls('hidden_tool', { hidden_argument: 1 }), { text: 'done' }))
    const failed: any = await client
      .say(said({ error: { status: 500, message: 'hidden vendor text' } }))
      .catch(() => client.runs.at(-1))
    assert.deepEqual([failed.at(-1).type, failed.at(-1).code], ['RUN_ERROR', 'AI_PROVIDER_ERROR'])
    // The script of the double is a message of the end user.
    const shown = JSON.stringify([done, failed].flat().filter(({ type }: any) => type !== 'MESSAGES_SNAPSHOT'))
    for (const hidden of ['hidden', 'STEP_', 'usage', 'trace_', 'double-1', 'ACTIVITY'])
      assert.equal(shown.includes(hidden), false, hidden)
    assert.deepEqual(client.texts(), ['done'])
  })

  it('learn no name of a tool on the server by a tool of the client with the name: the tool of the agent wins', async () => {
    const accepting = await app.scripted([{ reply: { text: 'fine' } }] as any, {
      accept_client_tools: true,
      tool_bindings: [{ tool: { name: 'own', type: 'client' } }],
    })
    const { token } = await endUser(app, { agent_ids: [accepting.agentId] })
    const tools = ['own', 'other'].map(name => ({ name, description: 'guess', parameters: { type: 'object' } }))
    const events = await open(token, { agentId: accepting.agentId }).say('x', { tools })
    assert.equal(events.at(-1)?.type, 'RUN_FINISHED')
    const [{ body }] = await accepting.requests()
    assert.deepEqual(body.tools.map((tool: any) => tool.function.name).sort(), ['other', 'own'])
    assert.equal(JSON.stringify(body.tools).split('guess').length, 2)
  })

  it('see the label of a tool if the agent shows activity', async () => {
    const tool = { name: 'hidden_tool', execute: { url: `${target.url}/x` } }
    const labelled = await app.agent({
      end_user_activity: 'labels',
      tool_bindings: [{ label: 'Checking the order', tool }],
    })
    const { token } = await endUser(app, { agent_ids: [labelled] })
    const events = await open(token, { agentId: labelled }).say(said(calls('hidden_tool'), { text: 'done' }))
    assert.deepEqual(
      ofType(events, 'ACTIVITY_SNAPSHOT').map(({ content }) => content),
      [
        { label: 'Checking the order', state: 'started' },
        { label: 'Checking the order', state: 'ended', ok: true },
      ],
    )
    assert.equal(JSON.stringify(events).includes('hidden_tool'), false)
  })

  it('find neither other agents nor threads and sessions of others', async () => {
    const [ann, bob] = [await user(), await user()]
    const other = await app.agent()
    assert.deepEqual(refusalOf(await postRun(app, ann, other, run())), [404, 'RESOURCE_NOT_FOUND'])
    const threadId = crypto.randomUUID()
    const first = await postRun(app, ann, agentId, run({ threadId }))
    const sessionId = first.headers.get('x-svc-session-id') as string
    assert.deepEqual(refusalOf(await postRun(app, bob, agentId, run({ threadId: sessionId }))), [
      404,
      'RESOURCE_NOT_FOUND',
    ])
    const second = await postRun(app, bob, agentId, run({ threadId }))
    assert.notEqual(second.headers.get('x-svc-session-id'), sessionId)
    assert.equal((await postRun(app, ann, agentId, run({ threadId: sessionId }))).status, 200)
    const named = await postRun(app, ann, agentId, run({ threadId }), { 'X-Svc-Actor': 'bob' })
    assert.equal(named.headers.get('x-svc-session-id'), sessionId)
  })

  it('get a new session for the thread of a deleted one', async () => {
    const ann = await user()
    const threadId = crypto.randomUUID()
    const first = (await postRun(app, ann, agentId, run({ threadId }))).headers.get('x-svc-session-id')
    assert.equal((await ann.delete(`/sessions/${first}`)).status, 204)
    const second = await postRun(app, ann, agentId, run({ threadId }))
    assert.equal(second.status, 200)
    assert.notEqual(second.headers.get('x-svc-session-id'), first)
    assert.equal(types(second.events).includes('MESSAGES_SNAPSHOT'), false)
    assert.deepEqual(refusalOf(await postRun(app, ann, agentId, run({ threadId: first }))), [404, 'RESOURCE_NOT_FOUND'])
  })

  it('create no session with a token of listed sessions', async () => {
    const ann = await user()
    const session = (await ann.post('/sessions', { agent_id: agentId })).body.id
    const bound = await endUser(app, { agent_ids: [agentId], session_ids: [session] }, ann.actorId)
    assert.deepEqual(refusalOf(await postRun(app, bound, agentId, run())), [403, 'FORBIDDEN'])
    assert.equal((await postRun(app, bound, agentId, run({ threadId: session }))).status, 200)
  })

  it('are limited by their tokens, and lose access with them', async () => {
    const ann = await user({ limits: { messages_per_hour: 2 } })
    const threadId = crypto.randomUUID()
    const statuses = []
    for (let count = 0; count < 3; count++) statuses.push((await postRun(app, ann, agentId, run({ threadId }))).status)
    assert.deepEqual(statuses, [200, 200, 429])
    assert.equal((await app.key.post(`/actors/${ann.actorId}/tokens/revoke`)).status, 204)
    assert.deepEqual(refusalOf(await postRun(app, ann, agentId, run({ threadId }))), [401, 'UNAUTHORIZED'])
  })

  it('see a cancelled turn as cancelled', async () => {
    const ann = await user()
    const client = open(ann.token)
    await client.say(said({ text: 'ok' }))
    const running = client.say(said({ text: 'never', gate: 'end-user-cancel' }))
    await app.atGate('end-user-cancel')
    const [{ id }] = (await ann.get('/sessions')).body.data
    assert.equal((await ann.post(`/sessions/${id}/cancel`)).status, 200)
    assert.deepEqual((await running).at(-1)?.outcome, { type: 'cancelled' })
    await app.openGate('end-user-cancel')
  })

  it('see the capabilities of their agents only', async () => {
    const ann = await user()
    const get = async (id: string) =>
      (await fetch(`${app.url}/ag-ui/${id}`, { headers: { authorization: `Bearer ${ann.token}` } })).status
    assert.deepEqual([await get(agentId), await get(await app.agent())], [200, 404])
  })
})
