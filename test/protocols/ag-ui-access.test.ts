import assert from 'node:assert/strict'
import { startSessionApp } from '../conversation/session-support.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { CHAT_ACTIONS, calls, ofType, postRun, said, ThreadClient, types } from './ag-ui-support.ts'

describe('access of AG-UI clients', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() => startSessionApp({ env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' }, actions: CHAT_ACTIONS }))

  const message = (content = said({ text: 'ok' })) => ({ id: crypto.randomUUID(), role: 'user', content })
  const run = (fields: object = {}) => ({
    threadId: crypto.randomUUID(),
    runId: crypto.randomUUID(),
    messages: [message()],
    ...fields,
  })
  const keyWith = async (actions: readonly string[]) => {
    const resource = [`srn:${app.projectId}:*:*`]
    const policy = await app.admin.post('/policies', {
      document: { statement: [{ effect: 'Allow', action: actions, resource }] },
    })
    const key = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
    return { ...app.as(key.body.secret), id: key.body.id as string }
  }

  it('needs a credential, the action and an agent of the project, before a stream begins', async () => {
    assert.deepEqual(refusalOf(await postRun(app, { token: 'sk_no' }, app.agentId, run())), [401, 'UNAUTHORIZED'])
    const without = await keyWith(['sessions:CreateSession'])
    assert.deepEqual(refusalOf(await postRun(app, without, app.agentId, run())), [403, 'FORBIDDEN'])
    assert.deepEqual(refusalOf(await postRun(app, app.key, 'agent_none', run())), [404, 'RESOURCE_NOT_FOUND'])
    const other = await app.projectWith(CHAT_ACTIONS)
    assert.deepEqual(refusalOf(await postRun(app, other.key, app.agentId, run())), [404, 'RESOURCE_NOT_FOUND'])
    const anonymous = await fetch(`${app.url}/ag-ui/${app.agentId}`, { method: 'POST', body: '{}' })
    assert.equal(anonymous.status, 401)
  })

  it('finds no session of another end user by its id', async () => {
    const as = (id: string) => ({ 'x-svc-actor': id })
    const first = await postRun(app, app.key, app.agentId, run(), as('ann'))
    const threadId = first.headers.get('x-svc-session-id') as string
    await postRun(app, app.key, app.agentId, run(), as('bob'))
    for (const id of ['bob', 'nobody'])
      assert.deepEqual(refusalOf(await postRun(app, app.key, app.agentId, run({ threadId }), as(id))), [
        404,
        'RESOURCE_NOT_FOUND',
      ])
    assert.equal((await postRun(app, app.key, app.agentId, run({ threadId }), as('ann'))).status, 200)
  })

  it('finds no session of another agent or project by its id', async () => {
    const first = await postRun(app, app.key, app.agentId, run())
    const threadId = first.headers.get('x-svc-session-id') as string
    const agent = await app.agent()
    assert.deepEqual(refusalOf(await postRun(app, app.key, agent, run({ threadId }))), [404, 'RESOURCE_NOT_FOUND'])
    const other = await app.projectWith(CHAT_ACTIONS)
    assert.deepEqual(refusalOf(await postRun(app, other.key, app.agentId, run({ threadId }))), [
      404,
      'RESOURCE_NOT_FOUND',
    ])
  })

  it('refuses a malformed body and another major version, and ignores unknown fields', async () => {
    for (const body of [
      {},
      run({ messages: 'x' }),
      run({ threadId: '' }),
      run({ messages: [{ id: 'm', role: 'user' }] }),
    ])
      assert.deepEqual(refusalOf(await postRun(app, app.key, app.agentId, body)), [400, 'VALIDATION_FAILED'])
    const future = run({ protocolVersion: '2.0' })
    assert.deepEqual(refusalOf(await postRun(app, app.key, app.agentId, future)), [400, 'VALIDATION_FAILED'])
    const long = run({ context: [{ description: 'd', value: 'x'.repeat(17_000) }] })
    assert.deepEqual(refusalOf(await postRun(app, app.key, app.agentId, long)), [400, 'VALIDATION_FAILED'])
    const minimal = run({ state: undefined, forwardedProps: undefined, tools: undefined, context: undefined })
    assert.equal((await postRun(app, app.key, app.agentId, minimal)).status, 200)
    const newer = run({ protocolVersion: '1.7', invented: true })
    assert.equal((await postRun(app, app.key, app.agentId, newer)).status, 200)
    const nul = run({ messages: [message('a\u0000b')] })
    assert.deepEqual(refusalOf(await postRun(app, app.key, app.agentId, nul)), [400, 'VALIDATION_FAILED'])
    const deleted = await fetch(`${app.url}/ag-ui/${app.agentId}`, {
      method: 'DELETE',
      headers: { authorization: `Bearer ${app.key.token}` },
    })
    assert.deepEqual([deleted.status, deleted.headers.get('allow')], [405, 'GET, POST'])
  })

  it('needs the right to create an end user that it names', async () => {
    const key = await keyWith(CHAT_ACTIONS.filter(action => action !== 'actors:CreateActor'))
    const named = { 'X-Svc-Actor': 'somebody-new' }
    assert.deepEqual(refusalOf(await postRun(app, key, app.agentId, run(), named)), [403, 'FORBIDDEN'])
    assert.equal((await postRun(app, key, app.agentId, run())).status, 200)
  })

  it('counts a run as one request of the key', async () => {
    const key = await keyWith(CHAT_ACTIONS)
    const quota = {
      project_id: app.projectId,
      scope: 'api_key',
      scope_ref: key.id,
      metric: 'requests',
      window: 'rolling_24h',
      limit: 2,
    }
    const made = await app.admin.post('/quotas', quota)
    assert.equal(made.status, 201, JSON.stringify(made.body))
    const results = []
    for (let count = 0; count < 3; count++) results.push(await postRun(app, key, app.agentId, run()))
    assert.deepEqual(
      results.map(({ status }) => status),
      [200, 200, 429],
    )
    assert.ok(Number(results[2].headers.get('retry-after')) > 0)
  })

  it('reports a refusal of a closed session in the stream', async () => {
    const threadId = crypto.randomUUID()
    const { headers } = await postRun(app, app.key, app.agentId, run({ threadId }))
    await app.admin.patch(`/sessions/${headers.get('x-svc-session-id')}`, { status: 'closed' })
    const { events } = await postRun(app, app.key, app.agentId, run({ threadId }))
    assert.deepEqual(types(events), ['RUN_STARTED', 'RUN_ERROR'])
    assert.equal(events[1].code, 'SESSION_CLOSED')
  })

  it('answers the capabilities of the agent without its instructions', async () => {
    const id = await app.agent({ name: 'Desk', instructions: 'secret words', accept_client_tools: true })
    const get = (token: string | null) =>
      fetch(`${app.url}/ag-ui/${id}`, { headers: { authorization: `Bearer ${token}` } })
    const answer = await get(app.key.token)
    assert.equal(answer.status, 200)
    const text = await answer.text()
    assert.equal(text.includes('secret words'), false)
    const { identity, tools, state } = JSON.parse(text)
    assert.deepEqual([identity.name, tools.clientProvided, state.deltas], ['Desk', true, false])
    assert.equal((await get((await keyWith(['agents:GetAgent'])).token)).status, 403)
    assert.equal((await get((await app.projectWith(['*'])).key.token)).status, 404)
    assert.equal((await get('sk_none')).status, 401)
  })

  it('shows steps, calls with results and usage to a caller that may read turns', async () => {
    target.answer = json({ answer: 42 })
    const agentId = await app.agent({
      tool_bindings: [{ tool: { name: 'server', execute: { url: `${target.url}/x` } } }],
    })
    const key = await keyWith([...CHAT_ACTIONS, 'generations:GetGeneration', 'traces:GetTrace'])
    const client = new ThreadClient({ url: app.url, token: key.token, agentId })
    const events = await client.say(said({ text: 'One moment', ...calls('server', { q: 1 }) }, { text: 'done' }))
    assert.deepEqual(
      types(events).filter(type => !type.startsWith('TEXT') && type !== 'ACTIVITY_SNAPSHOT'),
      [
        'RUN_STARTED',
        'STEP_STARTED',
        'TOOL_CALL_START',
        'TOOL_CALL_ARGS',
        'TOOL_CALL_END',
        'TOOL_CALL_RESULT',
        'STEP_FINISHED',
        'STEP_STARTED',
        'STEP_FINISHED',
        'RUN_FINISHED',
      ],
    )
    assert.equal(ofType(events, 'TOOL_CALL_ARGS')[0].delta, '{"q":1}')
    assert.match(ofType(events, 'TOOL_CALL_RESULT')[0].content, /42/)
    assert.ok(events.at(-1)?.usage[0].inputTokens > 0)
    assert.deepEqual(client.texts(), ['One moment', 'done'])
    await client.say(said({ text: 'next' }))
    assert.deepEqual(client.texts().at(-1), 'next')
  })

  it('names the agents that calls run, to a caller that may read turns and to no other', async () => {
    const below = await app.agent({ name: 'Researcher' })
    const tool = { name: 'ask', type: 'platform', actions: ['create-agent-generation'] }
    const agentId = await app.agent({ tool_bindings: [{ tool }] })
    const foreign = await app.projectWith(['*'])
    const provider = { name: 'own', provider: 'custom', base_url: `${app.double.url}/v1`, default_model: 'm' }
    const ai_provider_id = (await foreign.key.post('/ai-providers', provider)).body.id
    const hidden = await foreign.key.post('/agents', { name: 'Hidden', instructions: 'x', ai_provider_id })
    assert.equal(hidden.status, 201, JSON.stringify(hidden.body))
    const ask = (agent_id: string) => ({
      name: 'ask_create-agent-generation',
      args: { agent_id, prompt: said({ text: 'found' }) },
    })
    const script = said({ tool_calls: [ask(below), ask(hidden.body.id)] }, { text: 'done' })
    const actions = [...CHAT_ACTIONS, 'agents:CreateAgentGeneration', 'generations:GetGeneration', 'traces:GetTrace']
    const client = new ThreadClient({ url: app.url, token: (await keyWith(actions)).token, agentId })
    const events = (await client.say(script)).filter(({ type }) => type.startsWith('SUBAGENT'))
    assert.deepEqual(events.map(({ type }) => type).sort(), [
      'SUBAGENT_ERROR',
      'SUBAGENT_FINISHED',
      'SUBAGENT_STARTED',
      'SUBAGENT_STARTED',
    ])
    assert.deepEqual(
      events.filter(({ type }) => type === 'SUBAGENT_STARTED').map(({ name }) => name),
      ['Researcher', hidden.body.id],
    )
    assert.deepEqual(client.texts(), ['done'])
    const other = new ThreadClient({ url: app.url, token: app.key.token, agentId })
    const fewer = await other.say(script)
    assert.equal(JSON.stringify(fewer.filter(({ type }) => type !== 'MESSAGES_SNAPSHOT')).includes('SUBAGENT'), false)
  })
})

describe('a disabled AG-UI mount', () => {
  it('does not exist', async () => {
    const app = await startSessionApp({ env: { AGUI_MOUNT: 'false' }, actions: CHAT_ACTIONS })
    try {
      const answer = await postRun(app, app.key, app.agentId, { threadId: 't', runId: 'r', messages: [] })
      assert.deepEqual([answer.status, answer.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    } finally {
      await app.close()
    }
  })
})
