import assert from 'node:assert/strict'
import { client, eventually, type Reply } from '../support/app.ts'
import { type HostedProcess, runWeb } from '../support/hosts.ts'
import { CHAT_ACTIONS, chat, endUser, openEndUserStream } from './end-user-support.ts'
import { expectRefusal, expectStatus, type SessionApp, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const PAGE = 'https://shop.example.com'

describe('end users on several web processes', () => {
  let app: SessionApp
  let other: HostedProcess
  before(async () => {
    const env = { STREAM_PING_INTERVAL_MS: '100', SYNC_WAIT_SECONDS: '30' }
    app = await startSessionApp({ actions: CHAT_ACTIONS, env })
    other = await runWeb(app.databaseUrl, env)
  })
  after(async () => {
    await other?.stop()
    await app?.close()
  })

  const onOther = (token: string) => client(other.url, token)

  it('exactly the limit of requests passes, over processes and tokens of the actor', async () => {
    const limits = { requests_per_minute: 5 }
    const one = await endUser(app, { limits })
    const two = await endUser(app, { limits }, one.actorId)
    const clients = [one, two, onOther(one.token), onOther(two.token)]
    const replies = await Promise.all(Array.from({ length: 20 }, (_each, index) => clients[index % 4].get('/sessions')))
    assert.equal(replies.filter(({ status }) => status === 200).length, 5)
    const refused = replies.find(({ status }) => status === 429)
    const { code, meta } = (refused as Reply).body.error
    assert.equal(code, 'ACTOR_LIMIT_EXCEEDED')
    assert.deepEqual([meta.actor_id, meta.limit, meta.max], [one.actorId, 'requests_per_minute', 5])
    const seconds = Number(refused?.headers.get('retry-after'))
    assert.ok(seconds >= 1 && seconds <= 60)
    assert.ok(new Date(meta.resets_at).getTime() > Date.now())
    // The limit is of the actor: another one is not refused.
    expectStatus(await (await endUser(app, { limits })).get('/sessions'), 200)
    // A token with a higher limit counts the same requests.
    const higher = await endUser(app, { limits: { requests_per_minute: 6 } }, one.actorId)
    expectStatus(await higher.get('/sessions'), 200)
    expectRefusal(await higher.get('/sessions'), 429, 'ACTOR_LIMIT_EXCEEDED')
  })

  it('messages, their length and open sessions are limited', async () => {
    const limits = { messages_per_hour: 3, message_chars: 10, open_sessions: 2 }
    const user = await endUser(app, { limits })
    const replies = await Promise.all(
      Array.from({ length: 6 }, (_each, index) =>
        [user, onOther(user.token)][index % 2].post('/sessions', { agent_id: app.agentId }),
      ),
    )
    const made = replies.filter(({ status }) => status === 201)
    assert.equal(made.length, 2)
    assert.equal(replies.find(({ status }) => status === 429)?.body.error.meta.limit, 'open_sessions')
    const path = `/sessions/${made[0].body.id}/messages`
    const long = expectRefusal(await user.post(path, { message: 'x'.repeat(11) }), 429, 'ACTOR_LIMIT_EXCEEDED')
    assert.deepEqual([long.meta.limit, long.meta.max, long.meta.resets_at], ['message_chars', 10, null])
    const described = [{ type: 'image', file_id: 'file_none', alt: 'x'.repeat(6) }]
    const parts = await user.post(path, { parts: [...described, ...described] })
    assert.equal(expectRefusal(parts, 429, 'ACTOR_LIMIT_EXCEEDED').meta.limit, 'message_chars')
    const sent = await Promise.all(
      Array.from({ length: 6 }, () => onOther(user.token).post(path, { message: 'hello' })),
    )
    assert.equal(sent.filter(({ status }) => status === 201).length, 3)
    assert.equal(sent.find(({ status }) => status === 429)?.body.error.meta.limit, 'messages_per_hour')
    assert.equal((await app.messages({ id: made[0].body.id })).length, 3)
    // A closed session does not count.
    expectStatus(await user.patch(`/sessions/${made[0].body.id}`, { status: 'closed' }), 200)
    expectStatus(await user.post('/sessions', { agent_id: app.agentId }), 201)
  })

  it('a started turn counts as a message, and outputs of client tools are limited like messages', async () => {
    const limits = { messages_per_hour: 2, message_chars: 10 }
    const user = await endUser(app, { limits })
    const session = await chat(user, app.agentId)
    expectStatus(await user.post(`/sessions/${session.id}/generate?wait=true`), 200)
    for (const on of [user, onOther(user.token)]) {
      const refused = expectRefusal(await on.post(`/sessions/${session.id}/generate`), 429, 'ACTOR_LIMIT_EXCEEDED')
      assert.equal(refused.meta.limit, 'messages_per_hour')
    }
    assert.equal((await app.messages(session)).length, 2)
    for (const output of ['x'.repeat(11), { text: 'x'.repeat(5) }]) {
      const body = { generation_id: 'gen_none', tool_outputs: [{ tool_call_id: 'call', output }] }
      const refused = await user.post(`/sessions/${session.id}/tool-outputs`, body)
      assert.equal(expectRefusal(refused, 429, 'ACTOR_LIMIT_EXCEEDED').meta.limit, 'message_chars')
    }
    const short = { generation_id: 'gen_none', tool_outputs: [{ tool_call_id: 'call', output: 'x'.repeat(10) }] }
    expectRefusal(await user.post(`/sessions/${session.id}/tool-outputs`, short), 404, 'GENERATION_NOT_FOUND')
  })

  it('calls of end users do not count in a quota of requests', async () => {
    const quota = {
      project_id: app.projectId,
      scope: 'project',
      metric: 'requests',
      window: 'calendar_month',
      limit: 2,
    }
    const user = await endUser(app)
    const { id } = expectStatus(await app.admin.post('/quotas', quota), 201)
    try {
      for (let call = 0; call < 5; call++) expectStatus(await user.get('/sessions'), 200)
    } finally {
      await app.admin.delete(`/quotas/${id}`)
    }
  })

  /** A stream of an end user on the other process, on a turn that waits. */
  const openTurn = async (fields: Json = {}, actorId?: string) => {
    const gate = `gate-${Math.random().toString(36).slice(2)}`
    const { agentId } = await app.scripted([{ reply: { text: 'one two three', gate, gate_after: 1 } }] as never[])
    const user = await endUser(app, { ...fields, agent_ids: [agentId] }, actorId)
    const session = await chat(user, agentId)
    const { token } = user
    const stream = await openEndUserStream(other.url, token, `/sessions/${session.id}/generate`, { stream: true })
    let frame = await stream.read()
    const generationId = frame?.data.generation_id as string
    while (frame?.event !== 'delta') frame = await stream.read()
    return { user, session, stream, generationId, finish: () => app.openGate(gate) }
  }
  const errorOf = async ({ stream }: Awaited<ReturnType<typeof openTurn>>) => {
    const last = await stream.read()
    assert.equal(last?.event, 'error')
    assert.equal(await stream.read(), null)
    return last?.data
  }

  it('streams of turns and of sessions count together, and free their place when they end', async () => {
    const { user, session, stream, generationId, finish } = await openTurn({ limits: { streams: 1 } })
    const reader = onOther(user.token)
    const again = `/generations/${generationId}/stream`
    const refused = expectRefusal(await reader.get(again), 429, 'STREAM_LIMIT_EXCEEDED')
    assert.deepEqual(refused.meta, { scope: 'actor', max: 1 })
    expectRefusal(await reader.get(`/sessions/${session.id}/stream`), 429, 'STREAM_LIMIT_EXCEEDED')
    // A refused call starts no turn.
    const another = expectStatus(await user.post('/sessions', { agent_id: session.agent_id }), 201)
    expectStatus(await user.post(`/sessions/${another.id}/messages`, { message: 'hello' }), 201)
    const body = { stream: true }
    expectRefusal(await reader.post(`/sessions/${another.id}/generate`, body), 429, 'STREAM_LIMIT_EXCEEDED')
    expectStatus(await reader.get(`/sessions/${another.id}`), 200)
    assert.equal(expectStatus(await app.key.get(`/generations?session_id=${another.id}`), 200).total, 0)
    stream.close()
    await eventually(async () => {
      const next = await openEndUserStream(other.url, user.token, again).catch(() => null)
      next?.close()
      return next
    })
    await finish()
    await app.settled(generationId)
    // A stream that has ended is free immediately; refusals and plain responses keep nothing.
    for (let call = 0; call < 3; call++) {
      const read = await eventually(() => openEndUserStream(other.url, user.token, again).catch(() => null))
      while (await read.read());
      expectRefusal(await reader.get('/generations/gen_none/stream'), 404, 'GENERATION_NOT_FOUND')
    }
  })

  it('a revocation ends tokens and streams on every process; the turn continues, a new token works', async () => {
    const turn = await openTurn()
    const { user } = turn
    expectStatus(await onOther(user.token).get('/sessions'), 200)
    expectStatus(await app.key.post(`/actors/${user.actorId}/tokens/revoke`), 204)
    expectRefusal(await user.get('/sessions'), 401, 'UNAUTHORIZED')
    const after = Date.now()
    let status = 200
    while (status === 200) status = (await onOther(user.token).get('/sessions')).status
    assert.equal(status, 401)
    // By notification: the entry of the cache lives for five seconds.
    assert.ok(Date.now() - after < 4000)
    assert.equal((await errorOf(turn)).code, 'UNAUTHORIZED')
    await turn.finish()
    assert.equal((await app.settled(turn.generationId)).status, 'completed')
    const next = await endUser(app, {}, user.actorId)
    expectStatus(await onOther(next.token).get('/sessions'), 200)
    expectStatus(await next.get('/sessions'), 200)
  })

  it('a token and its streams end with its key, its user and its actor', async () => {
    const policy = {
      document: { statement: [{ effect: 'Allow', action: ['*'], resource: [`srn:${app.projectId}:*:*`] }] },
    }
    const { id: policyId } = expectStatus(await app.admin.post('/policies', policy), 201)
    const made = expectStatus(
      await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policyId] }),
      201,
    )
    const { actorId } = await endUser(app)
    const body = { agent_ids: [app.agentId] }
    const issue = async (by: ReturnType<typeof client>) =>
      expectStatus(await by.post(`/actors/${actorId}/tokens`, body), 201).token as string
    const ofKey = await issue(client(app.url, made.secret))
    expectStatus(await client(app.url, ofKey).get('/sessions'), 200)
    // A rotation replaces the string of the key, not the key.
    const rotated = await app.admin.post(`/project-keys/${made.id}/rotate`)
    assert.equal(rotated.status, 200, JSON.stringify(rotated.body))
    expectStatus(await client(app.url, ofKey).get('/sessions'), 200)
    expectStatus(await app.admin.delete(`/project-keys/${made.id}`), 204)
    expectRefusal(await client(app.url, ofKey).get('/sessions'), 401, 'UNAUTHORIZED')

    const member = await app.user(undefined, [policy.document])
    const ofUser = await issue(member)
    expectStatus(await client(app.url, ofUser).get('/sessions'), 200)
    // Without the permission to issue tokens, earlier ones end.
    await app.admin.put(`/users/${member.id}/policies`, { policy_ids: [] })
    expectRefusal(await client(app.url, ofUser).get('/sessions'), 401, 'UNAUTHORIZED')
    await app.admin.put(`/users/${member.id}/policies`, { policy_ids: [policyId] })
    expectStatus(await client(app.url, ofUser).get('/sessions'), 200)
    await app.admin.patch(`/users/${member.id}`, { disabled: true })
    expectRefusal(await client(app.url, ofUser).get('/sessions'), 401, 'UNAUTHORIZED')

    const ofActor = await issue(app.key)
    expectStatus(await app.key.delete(`/actors/${actorId}`), 204)
    expectRefusal(await client(app.url, ofActor).get('/sessions'), 401, 'UNAUTHORIZED')
    const [from, into] = [await endUser(app), await endUser(app)]
    expectStatus(await app.key.post(`/actors/${from.actorId}/merge`, { into_actor_id: into.actorId }), 200)
    expectRefusal(await from.get('/sessions'), 401, 'UNAUTHORIZED')
    expectStatus(await into.get('/sessions'), 200)
  })

  it('a stream ends when the issuer loses the permission of its operation', async () => {
    const document = (action: string[]) => ({
      document: { statement: [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:*:*`] }] },
    })
    const policy = expectStatus(await app.admin.post('/policies', document(CHAT_ACTIONS)), 201)
    const member = await app.user()
    await app.admin.put(`/users/${member.id}/policies`, { policy_ids: [policy.id] })
    const gate = 'gate-lost-permission'
    const { agentId } = await app.scripted([{ reply: { text: 'one two three', gate, gate_after: 1 } }] as never[])
    const { actorId } = await endUser(app)
    const { token } = expectStatus(await member.post(`/actors/${actorId}/tokens`, { agent_ids: [agentId] }), 201)
    const session = await chat(client(app.url, token), agentId)
    const started = expectStatus(await client(app.url, token).post(`/sessions/${session.id}/generate`), 202)
    const stream = await openEndUserStream(other.url, token, `/generations/${started.generation_id}/stream`)
    assert.equal((await stream.read())?.event, 'started')
    const less = document(['actors:*', 'sessions:*'])
    expectStatus(await app.admin.patch(`/policies/${policy.id}`, less), 200)
    assert.deepEqual((await stream.read())?.data, { code: 'FORBIDDEN', message: 'Forbidden' })
    assert.equal(await stream.read(), null)
    await app.openGate(gate)
  })

  it('a page of another origin passes the preflight, and its call is refused', async () => {
    const user = await endUser(app, { origins: [PAGE] })
    const preflight = (origin: string, path: string, headers: string) =>
      fetch(`${app.url}${path}`, {
        method: 'OPTIONS',
        headers: { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': headers },
      })
    app.statements.length = 0
    for (const path of [
      '/api/v1/sessions',
      '/mcp',
      '/oauth/token',
      '/openai/v1/chat/completions',
      '/ag-ui/agent_x',
      '/ui/v1/chat/agent_x',
    ]) {
      const answer = await preflight('https://evil.example', path, 'authorization, x-stainless-lang')
      assert.deepEqual([path, answer.status], [path, 204])
      assert.equal(answer.headers.get('access-control-allow-headers'), 'authorization,x-stainless-lang')
      assert.equal(answer.headers.get('access-control-max-age'), '600')
      assert.equal(answer.headers.get('access-control-allow-credentials'), null)
    }
    assert.deepEqual(
      app.statements.filter(text => /principal|project_keys|actors/.test(text) && !text.includes('last_used_at')),
      [],
    )
    const many = Array.from({ length: 41 }, (_each, index) => `x-header-${index}`).join(', ')
    for (const headers of [many, 'x y', `x-${'y'.repeat(64)}`])
      assert.equal(
        (await preflight(PAGE, '/api/v1/sessions', headers)).headers.get('access-control-allow-headers'),
        null,
      )
    expectStatus(await user.get('/sessions', { origin: PAGE }), 200)
    expectStatus(await user.get('/sessions'), 200)
    const refused = await user.get('/sessions', { origin: 'https://evil.example' })
    expectRefusal(refused, 403, 'FORBIDDEN')
    assert.ok(refused.headers.get('access-control-allow-origin'))
  })
})
