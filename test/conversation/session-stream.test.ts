import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type Client, client } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { is, openTab } from './session-stream-support.ts'
import { expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const ACTIONS = [
  'actors:*',
  'agents:*',
  'approvals:*',
  'conversations:*',
  'events:*',
  'generations:*',
  'sessions:*',
  'tools:*',
]

describe('session streams', function () {
  this.timeout(60_000)
  const app = forSuite(() => startSessionApp({ actions: ACTIONS, env: { STREAM_PING_INTERVAL_MS: '200' } }))
  const steady = steadyWorkers()
  after(async () => {
    await steady.stop()
  })

  const tab = (session: Json, options?: Parameters<typeof openTab>[2], at: { url: string; key: Client } = app) =>
    openTab(at, session, options)
  /** A key of the project with a policy that allows exactly these actions. */
  const keyWith = async (...actions: string[]): Promise<Client & { id: string }> => {
    const statement = [{ effect: 'Allow', action: actions, resource: [`srn:${app.projectId}:*:*`] }]
    const policy = expectStatus(await app.admin.post('/policies', { document: { statement } }), 201)
    const key = expectStatus(
      await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.id] }),
      201,
    )
    return { ...client(app.url, key.secret), id: key.id }
  }

  it('shows a turn of another tab on two web processes: message, start, text, reply, end', async () => {
    const other = await steady.startWeb(app.databaseUrl)
    const { agentId } = await app.scripted([
      { reply: { chunks: ['Hello ', 'from ', 'here'], text: 'Hello from here' } },
    ])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const tabs = [await tab(session), await tab(session, {}, { url: other.url, key: app.key })]
    for (const each of tabs) {
      const ready = await each.seen(is('ready'))
      assert.deepEqual(
        [ready.id, ready.data.session.id, ready.data.generation_id, ready.data.position],
        ['0', session.id, null, null],
      )
    }
    const sent = await app.say(session, 'hi')
    for (const each of tabs) {
      await each.seen(is('turn_completed'))
      const durable = each.events.filter(({ id }) => id !== undefined)
      assert.deepEqual(
        durable.map(({ event, id }) => [event, id]),
        [
          ['ready', '0'],
          ['message', '1'],
          ['turn_started', '2'],
          ['message', '3'],
          ['turn_completed', '4'],
        ],
      )
      const [question, reply] = each.of('message')
      assert.deepEqual([question.content, question.origin, question.position], ['hi', 'end_user', 0])
      assert.deepEqual(
        [reply.content, reply.origin, reply.generation_id],
        ['Hello from here', 'agent', sent.generation_id],
      )
      assert.deepEqual(each.of('turn_completed'), [
        { generation_id: sent.generation_id, document_id: reply.document_id },
      ])
      assert.equal(each.text(sent.generation_id), 'Hello from here')
      const order = each.events.map(({ event }) => event)
      assert.ok(order.indexOf('delta') > order.indexOf('turn_started'))
      assert.ok(order.lastIndexOf('delta') < order.lastIndexOf('message'))
      assert.deepEqual(each.of('typing'), [
        { who: 'agent', state: 'started' },
        { who: 'agent', state: 'stopped' },
      ])
      assert.ok(order.indexOf('typing') < order.findIndex(event => event === 'delta' || event === 'turn_text'))
      assert.ok(order.lastIndexOf('typing') > order.lastIndexOf('delta'))
      assert.ok(order.lastIndexOf('typing') < order.lastIndexOf('message'))
    }
    for (const each of tabs) each.close()
  })

  it('a reader that comes during a turn has its text so far, and a cut one continues on another process', async () => {
    const other = await steady.startWeb(app.databaseUrl)
    const { agentId } = await app.scripted([
      {
        reply: {
          chunks: ['one ', 'two ', 'three ', 'four'],
          text: 'one two three four',
          gate: 'middle',
          gate_after: 2,
        },
      },
    ])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const first = await tab(session)
    await first.seen(is('ready'))
    const { generation_id } = await app.say(session, 'count')
    await first.seen(() => first.text(generation_id) === 'one two ')
    const after = first.last()
    assert.equal(after, '2')
    first.close()
    const second = await tab(session, { query: `?last_event_id=${after}` }, { url: other.url, key: app.key })
    assert.equal((await second.seen(is('ready'))).data.generation_id, generation_id)
    assert.deepEqual((await second.seen(is('turn_text'))).data, { generation_id, text: 'one two ' })
    await app.openGate('middle')
    await second.seen(is('turn_completed'))
    assert.equal(second.text(generation_id), 'one two three four')
    assert.deepEqual(
      second.events.filter(({ id }) => id !== undefined).map(({ id }) => id),
      ['2', '3', '4'],
    )
    assert.deepEqual(
      second.of('typing').map(({ who, state }) => [who, state]),
      [
        ['agent', 'started'],
        ['agent', 'stopped'],
      ],
    )
    second.close()
  })

  it('sends each stored event after the given one, once and in order', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'ok' } }])
    const session = await app.session({ agent_id: agentId })
    const first = await tab(session)
    await first.seen(is('ready'))
    for (let n = 0; n < 120; n++) await app.say(session, `m${n}`)
    await first.seen(is('message', { content: 'm119' }))
    first.close()
    const second = await tab(session, { after: '40' })
    await second.seen(is('message', { content: 'm119' }))
    assert.deepEqual(
      second.of('message').map(({ content }) => content),
      Array.from({ length: 80 }, (_, n) => `m${40 + n}`),
    )
    assert.equal((await second.seen(is('ready'))).id, '40')
    second.close()
  })

  it('reports a gap for a position that is no longer stored, or never was', async () => {
    const session = await app.session()
    const first = await tab(session)
    await first.seen(is('ready'))
    for (const message of ['a', 'b', 'c']) await app.say(session, message)
    await first.seen(is('message', { content: 'c' }))
    first.close()
    await app.pool.query(
      sql.unsafe`update session_frames set created_at = now() - interval '25 hours' where session_id = ${session.id} and seq < 3`,
    )
    await app.pool.query(
      sql.unsafe`delete from session_frames where session_id = ${session.id} and created_at < now() - interval '24 hours'`,
    )
    for (const after of ['0', '1', '99']) {
      const late = await tab(session, { after })
      await late.seen(is('gap'))
      assert.deepEqual(late.of('gap'), [{ after: Number(after) }])
      assert.equal(late.events[0].id, '3')
      await app.say(session, `after ${after}`)
      await late.seen(is('message', { content: `after ${after}` }))
      assert.equal(late.of('message').length, 1)
      late.close()
      await app.pool.query(sql.unsafe`delete from session_frames where session_id = ${session.id} and seq > 3`)
      await app.pool.query(sql.unsafe`update conversations set frame_seq = 3 where session_id = ${session.id}`)
    }
    const near = await tab(session, { after: '2' })
    await near.seen(is('message', { content: 'c' }))
    assert.deepEqual(near.of('gap'), [])
    near.close()
  })

  it('shows changes, deletions, closing and the end of the session', async () => {
    const session = await app.session({ name: 'first' })
    const reader = await tab(session)
    await reader.seen(is('ready'))
    const { document_id } = await app.say(session, 'hello')
    const path = `/conversations/${session.conversation_id}/messages/${document_id}`
    expectStatus(await app.key.patch(path, { metadata: { lang: 'en' } }), 200)
    const updated = await reader.seen(is('message_updated'))
    assert.equal(updated.data.message.content, 'hello')
    expectStatus(await app.key.delete(path), 204)
    assert.deepEqual((await reader.seen(is('message_deleted'))).data, { document_id })
    expectStatus(await app.key.patch(`/sessions/${session.id}`, { name: 'second' }), 200)
    expectStatus(await app.key.patch(`/sessions/${session.id}`, { status: 'closed' }), 200)
    await reader.seen(({ event, data }) => event === 'session' && data.status === 'closed')
    assert.equal(reader.of('session').at(-1)?.name, 'second')
    // A message that is gone is not sent again.
    const late = await tab(session, { after: '0' })
    await late.seen(is('message_deleted'))
    assert.deepEqual([late.of('message'), late.of('message_updated')], [[], []])
    late.close()
    expectStatus(await app.key.delete(`/sessions/${session.id}`), 204)
    const { data } = await reader.seen(is('error'))
    assert.equal(data.code, 'RESOURCE_NOT_FOUND')
  })

  it('shows takeovers, requests for a person and handbacks', async () => {
    const session = await app.session()
    const reader = await tab(session)
    await reader.seen(is('ready'))
    const path = `/sessions/${session.id}`
    expectStatus(await app.key.post(`${path}/attention`, { reason: 'unclear' }), 200)
    expectStatus(await app.admin.post(`${path}/takeover`), 200)
    expectStatus(await app.admin.post(`${path}/operator-messages`, { message: 'I am here' }), 201)
    await reader.seen(is('message', { origin: 'operator', content: 'I am here' }))
    expectStatus(await app.admin.post(`${path}/handback`), 200)
    const back = await reader.seen(
      ({ event, data, id }) => event === 'control' && data.control === 'agent' && Number(id) > 3,
    )
    assert.deepEqual(back.data, { control: 'agent', assigned_to: null, attention: null })
    assert.equal(reader.of('control').length, 3)
    reader.close()
  })

  it('shows expiry', async () => {
    const session = await app.session({ inactivity_ttl_seconds: 1 })
    const reader = await tab(session)
    await reader.seen(is('ready'))
    await new Promise(resolve => setTimeout(resolve, 1100))
    expectRefusal(await app.key.post(`/sessions/${session.id}/messages`, { message: 'late' }), 410, 'SESSION_EXPIRED')
    expectStatus(await app.key.patch(`/sessions/${session.id}`, { name: 'old' }), 200)
    await reader.seen(is('session', { status: 'expired' }))
    reader.close()
  })

  it('shows failures and cancellations', async () => {
    const { agentId } = await app.scripted([
      { when: { user: 'fail' }, reply: { error: { status: 400, message: 'no' } } },
      { reply: { chunks: ['par', 'tial'], text: 'partial', gate: 'cancelled', gate_after: 1 } },
    ])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const reader = await tab(session)
    await reader.seen(is('ready'))
    const failed = await app.say(session, 'fail')
    const failure = await reader.seen(is('turn_failed', { generation_id: failed.generation_id }))
    assert.equal(failure.data.error.code, 'AI_PROVIDER_ERROR')
    const cancelled = await app.say(session, 'go')
    await reader.seen(() => reader.text(cancelled.generation_id) === 'par')
    expectStatus(await app.key.post(`/sessions/${session.id}/cancel`), 200)
    await reader.seen(is('turn_failed', { generation_id: cancelled.generation_id }))
    await app.openGate('cancelled')
    reader.close()
  })

  it('shows tool calls by label, their names only to callers that may read generations, and pauses', async () => {
    const tool = (name: string, fields: Json) =>
      app.key.post('/tools', { name, description: name, type: 'client', ...fields })
    const ask = expectStatus(await tool('ask_user', {}), 201)
    const { agentId } = await app.scripted(
      [
        {
          when: { last_role: 'user' },
          reply: { text: 'Wait. ', tool_calls: [{ name: 'ask_user', args: { q: 1 }, id: 'call_1' }] },
        },
        { reply: { text: 'thanks' } },
      ],
      { end_user_activity: 'labels', tool_bindings: [{ tool_id: ask.id, label: 'Asking' }] },
    )
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const reader = await tab(session)
    await reader.seen(is('ready'))
    const { generation_id } = await app.say(session, 'hi')
    const paused = await reader.seen(is('requires_action'))
    assert.equal(paused.data.generation_id, generation_id)
    assert.deepEqual(
      paused.data.tool_calls.map(({ tool_name, args }: Json) => [tool_name, args]),
      [['ask_user', { q: 1 }]],
    )
    const [{ tool_call_id }] = paused.data.tool_calls
    expectStatus(
      await app.key.post(`/sessions/${session.id}/tool-outputs`, {
        generation_id,
        tool_outputs: [{ tool_call_id, output: 'yes' }],
      }),
      200,
    )
    await reader.seen(is('turn_completed'))
    assert.equal(reader.text(generation_id), 'thanks')
    assert.deepEqual(reader.of('turn_started'), [{ generation_id }, { generation_id }])
    // Later readers learn that nothing is pending.
    const late = await tab(session, { after: '0' })
    await late.seen(is('turn_completed'))
    assert.deepEqual(late.of('requires_action'), [{ generation_id, tool_calls: [] }])
    // A paused turn is in no mailbox: its end is shown too, once.
    const second = await app.say(session, 'hi again')
    await reader.seen(is('requires_action', { generation_id: second.generation_id }))
    expectStatus(await app.key.post(`/generations/${second.generation_id}/cancel`), 200)
    await reader.seen(is('turn_failed', { generation_id: second.generation_id }))
    assert.equal(reader.of('turn_failed').length, 1)
    for (const each of [reader, late]) each.close()
  })

  it('shows server tools while they run', async () => {
    const find = expectStatus(
      await app.key.post('/tools', {
        name: 'find_agents',
        description: 'lists agents',
        type: 'platform',
        actions: ['list-agents'],
      }),
      201,
    )
    const bindings = { tool_bindings: [{ tool_id: find.id, label: 'Looking' }] }
    const replies = [
      {
        when: { last_role: 'user' },
        reply: { text: 'Let me see. ', tool_calls: [{ name: 'find_agents_list-agents', args: {}, id: 'call_2' }] },
      },
      { reply: { text: 'done' } },
    ]
    const labelled = await app.scripted(replies, { ...bindings, end_user_activity: 'labels' })
    const hidden = await app.scripted(replies, bindings)
    const plain = await keyWith('sessions:ListSessionMessages')
    const watch = async (agent_id: string) => {
      const session = await app.session({ agent_id, auto_generate: true })
      const tabs = [await tab(session), await tab(session, {}, { url: app.url, key: plain })]
      for (const each of tabs) await each.seen(is('ready'))
      const { generation_id } = await app.say(session, 'hi')
      for (const each of tabs) {
        await each.seen(is('turn_completed'))
        assert.equal(each.text(generation_id), 'done')
        each.close()
      }
      return tabs.map(each => each.of('tool').map(({ generation_id: _, tool_call_id: __, ...rest }) => rest))
    }
    const [full, labels] = await watch(labelled.agentId)
    const started = { state: 'started', label: 'Looking' }
    const ended = { state: 'ended', label: 'Looking', ok: true }
    const tool_name = full[0]?.tool_name
    assert.match(tool_name, /list-agents/)
    assert.deepEqual(full, [
      { ...started, tool_name },
      { ...ended, tool_name },
    ])
    assert.deepEqual(labels, [started, ended])
    const [named, none] = await watch(hidden.agentId)
    assert.deepEqual(
      named.map(({ label, tool_name: name }) => [label, name]),
      [
        ['Working', tool_name],
        ['Working', tool_name],
      ],
    )
    assert.deepEqual(none, [])
  })

  it('ends a stream whose caller has lost its permission, and hides the session record without GetSession', async () => {
    const session = await app.session({ tool_context: { tenantId: 'secret' } })
    const reader = await keyWith('sessions:ListSessionMessages')
    const none = await keyWith('sessions:GetSession')
    expectRefusal(await none.get(`/sessions/${session.id}/stream`), 403, 'FORBIDDEN')
    const narrow = await tab(session, {}, { url: app.url, key: reader })
    const ready = await narrow.seen(is('ready'))
    assert.equal('tool_context' in ready.data.session, false)
    const full = await tab(session)
    assert.equal((await full.seen(is('ready'))).data.session.tool_context.tenantId, 'secret')
    expectStatus(await app.admin.delete(`/project-keys/${reader.id}`), 204)
    const { data } = await narrow.seen(is('error'))
    assert.equal(data.code, 'UNAUTHORIZED')
    full.close()
  })

  it('filters messages by origin', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'ok' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    expectStatus(await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'hi' }), 201)
    const listed = async (query: string) =>
      expectStatus(await app.key.get(`/sessions/${session.id}/messages?${query}`), 200).data.map(
        ({ content }: Json) => content,
      )
    assert.deepEqual(await listed('origin=agent'), ['ok'])
    assert.deepEqual(await listed('origin=end_user&origin=agent'), ['hi', 'ok'])
    assert.deepEqual(await listed('origin=operator'), [])
    expectRefusal(await app.key.get(`/sessions/${session.id}/messages?origin=nobody`), 400, 'VALIDATION_FAILED')
  })

  it('counts messages of the agent that the end user has not seen', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'ok' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const unread = async () => expectStatus(await app.key.get(`/sessions/${session.id}`), 200).unread_count
    for (const message of ['a', 'b'])
      expectStatus(await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message }), 201)
    assert.equal(await unread(), 2)
    const read = (position: unknown) => app.key.post(`/sessions/${session.id}/read`, { position })
    expectStatus(await read(1), 204)
    assert.equal(await unread(), 1)
    expectStatus(await read(0), 204)
    assert.equal(await unread(), 1)
    expectStatus(await read(1_000_000), 204)
    assert.equal(await unread(), 0)
    expectStatus(await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'c' }), 201)
    assert.equal(await unread(), 1)
    expectRefusal(await read(-1), 400, 'VALIDATION_FAILED')
  })

  it('shows typing to the other side, and its end', async () => {
    const actor = expectStatus(await app.key.post('/actors', { name: 'Ann' }), 201)
    const session = await app.session({ actor_id: actor.id })
    const operator = await tab(session, {}, { url: app.url, key: app.admin })
    const customer = await tab(session)
    for (const each of [operator, customer]) await each.seen(is('ready'))
    const typing = (by: Client, state: string) => by.post(`/sessions/${session.id}/typing`, { state })
    for (let n = 0; n < 5; n++) expectStatus(await typing(app.key, 'started'), 204)
    expectStatus(await typing(app.key, 'stopped'), 204)
    await operator.seen(is('typing', { state: 'stopped' }))
    assert.deepEqual(operator.of('typing'), [
      { who: 'end_user', state: 'started', actor_id: actor.id },
      { who: 'end_user', state: 'stopped', actor_id: actor.id },
    ])
    expectStatus(await typing(app.admin, 'started'), 204)
    await customer.seen(is('typing', { who: 'operator' }))
    assert.equal(operator.of('typing').length, 2)
    // Without a further signal it ends.
    await customer.seen(is('typing', { who: 'operator', state: 'stopped' }))
    for (const each of [operator, customer]) each.close()
  })

  it('limits the streams of a project and of a process', async () => {
    const web = await steady.startWeb(app.databaseUrl, { STREAMS_PER_PROJECT: '2', STREAMS_MAX: '3' })
    const at = { url: web.url, key: client(web.url, app.key.token) }
    const session = await app.session()
    const open = [await tab(session, {}, at), await tab(session, {}, at)]
    for (const each of open) await each.seen(is('ready'))
    const refused = await at.key.get(`/sessions/${session.id}/stream`)
    const error = expectRefusal(refused, 429, 'STREAM_LIMIT_EXCEEDED')
    assert.deepEqual([error.meta, refused.headers.get('retry-after')], [{ scope: 'project', max: 2 }, '10'])
    const other = await app.project()
    const provider = expectStatus(
      await other.key.post('/ai-providers', { name: 'own', provider: 'ollama', default_model: 'x' }),
      201,
    )
    const agent = expectStatus(await other.key.post('/agents', { ai_provider_id: provider.id }), 201)
    const foreign = expectStatus(await other.key.post('/sessions', { agent_id: agent.id }), 201)
    const third = await tab(foreign, {}, { url: web.url, key: other.key })
    await third.seen(is('ready'))
    expectRefusal(
      await client(web.url, other.key.token).get(`/sessions/${foreign.id}/stream`),
      503,
      'SERVICE_NOT_READY',
    )
    for (const each of [...open, third]) each.close()
  })

  it('the text after a killed worker equals the stored reply', async () => {
    const env = { GENERATION_LEASE_SECONDS: '2', CONVERSATION_SWEEP_SECONDS: '1', GENERATION_SWEEP_SECONDS: '1' }
    const crash = await startSessionApp({ workers: [], actions: ACTIONS, env })
    try {
      const doomed = await startProcess('worker', crash.databaseUrl, env, ['generation'])
      const { agentId } = await crash.scripted([
        {
          replies: [
            { chunks: ['lost ', 'words ', 'here'], text: 'lost words here', gate: 'killed', gate_after: 2 },
            { chunks: ['the ', 'whole ', 'answer'], text: 'the whole answer' },
          ],
        },
      ])
      const session = await crash.session({ agent_id: agentId, auto_generate: true })
      const reader = await openTab(crash, session)
      await reader.seen(is('ready'))
      const { generation_id } = await crash.say(session, 'hi')
      await reader.seen(() => reader.text(generation_id) === 'lost words ')
      await doomed.kill()
      await steady.start(crash.databaseUrl, env, ['generation'])
      await reader.seen(is('turn_completed'))
      assert.equal(reader.text(generation_id), 'the whole answer')
      assert.equal(reader.of('message').at(-1)?.content, 'the whole answer')
      assert.ok(reader.of('turn_text').some(({ text }) => text === ''))
      assert.equal(reader.of('turn_started').length, 1)
      reader.close()
    } finally {
      await steady.stop()
      await crash.close()
    }
  })
})
