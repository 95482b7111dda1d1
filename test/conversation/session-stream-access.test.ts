import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { openEvents } from '../execution/streams.ts'
import { type Client, client, eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'
import { endUser } from './end-user-support.ts'
import { is, openTab } from './session-stream-support.ts'
import { expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const ACTIONS = [
  ...['actors:*', 'agents:*', 'approvals:*', 'conversations:*', 'generations:*', 'sessions:*', 'tools:*', 'traces:*'],
]
const SECRET = 'xylophone'

describe('access to session streams', function () {
  this.timeout(60_000)
  const app = forSuite(() => startSessionApp({ actions: ACTIONS, env: { STREAM_PING_INTERVAL_MS: '200' } }))
  const steady = steadyWorkers()
  after(async () => {
    await steady.stop()
  })

  const tab = (session: Json, key: Client, options?: Parameters<typeof openTab>[2]) =>
    openTab({ url: app.url, key }, session, options)
  const anonymous = (): Client => client(app.url, null)

  describe('by ticket', () => {
    const ticketOf = async (path: string, by: Client = app.key) => {
      const { ticket, expires_at } = expectStatus(await by.post(`${path}/stream-tickets`), 201)
      assert.match(ticket, /^stk_[\w-]{43}$/)
      assert.ok(Math.abs(Date.parse(expires_at) - Date.now() - 60_000) < 10_000)
      return ticket as string
    }

    it('opens one stream once, with the position in the query, and is not logged', async () => {
      const session = await app.session()
      const ticket = await ticketOf(`/sessions/${session.id}`)
      const reader = await tab(session, anonymous(), { query: `?ticket=${ticket}&last_event_id=0` })
      await reader.seen(is('ready'))
      await app.say(session, 'hello')
      await reader.seen(is('message', { content: 'hello' }))
      const again = await anonymous().get(`/sessions/${session.id}/stream?ticket=${ticket}`)
      expectRefusal(again, 401, 'UNAUTHORIZED')
      reader.close()
      await eventually(() => app.logs.some(line => line.includes(`/sessions/${session.id}/stream"`)))
      assert.equal(app.logs.join('').includes(ticket), false)
      const stored = await app.pool.any(sql.unsafe`select * from stream_tickets`)
      assert.deepEqual(stored, [])
    })

    it('is refused for another stream, after its time, and in any other place', async () => {
      const [session, other] = [await app.session(), await app.session()]
      const elsewhere = await ticketOf(`/sessions/${session.id}`)
      expectRefusal(await anonymous().get(`/sessions/${other.id}/stream?ticket=${elsewhere}`), 401, 'UNAUTHORIZED')
      const late = await ticketOf(`/sessions/${session.id}`)
      await app.pool.query(sql.unsafe`update stream_tickets set expires_at = now() - interval '1 second'`)
      expectRefusal(await anonymous().get(`/sessions/${session.id}/stream?ticket=${late}`), 401, 'UNAUTHORIZED')
      const misplaced = await ticketOf(`/sessions/${session.id}`)
      expectRefusal(await anonymous().get(`/sessions/${session.id}?ticket=${misplaced}`), 401, 'UNAUTHORIZED')
      expectRefusal(await client(app.url, misplaced).get(`/sessions/${session.id}`), 401, 'UNAUTHORIZED')
      expectRefusal(await anonymous().get(`/sessions/${session.id}/stream?ticket=stk_x`), 401, 'UNAUTHORIZED')
    })

    it('needs the right of the stream, ends with its credential, and stores neither ticket nor credential', async () => {
      const statement = [{ effect: 'Allow', action: ['sessions:GetSession'], resource: [`srn:${app.projectId}:*:*`] }]
      const policy = expectStatus(await app.admin.post('/policies', { document: { statement } }), 201)
      const made = expectStatus(
        await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.id] }),
        201,
      )
      const session = await app.session()
      const narrow = client(app.url, made.secret)
      expectRefusal(await narrow.post(`/sessions/${session.id}/stream-tickets`), 403, 'FORBIDDEN')
      const own = expectStatus(await app.admin.post('/project-keys', { project_id: app.projectId }), 201)
      const ticket = await ticketOf(`/sessions/${session.id}`, client(app.url, own.secret))
      const rows = JSON.stringify(
        await app.pool.any(sql.unsafe`select encode(hash, 'base64') as hash, sealed from stream_tickets`),
      )
      assert.equal(rows.includes(ticket) || rows.includes(own.secret), false)
      const reader = await tab(session, anonymous(), { query: `?ticket=${ticket}` })
      await reader.seen(is('ready'))
      expectStatus(await app.admin.delete(`/project-keys/${own.id}`), 204)
      assert.equal((await reader.seen(is('error'))).data.code, 'UNAUTHORIZED')
      await eventually(reader.ended)
    })

    it('opens the stream of a generation after an event', async () => {
      const { agentId } = await app.scripted([{ reply: { chunks: ['a ', 'b'], text: 'a b' } }])
      const session = await app.session({ agent_id: agentId })
      await app.say(session, 'hi')
      const { stream } = await app.streamed(session)
      const { generation_id } = (await stream)[0].data
      const ticket = await ticketOf(`/generations/${generation_id}`)
      const opened = await openEvents(
        { url: app.url, key: anonymous() },
        `/generations/${generation_id}/stream?ticket=${ticket}&last_event_id=1`,
      )
      const events = []
      for await (const event of opened.messages) events.push(event)
      assert.ok(events.length > 1 && events.every(({ id }) => Number(id) > 1))
      assert.equal(events.at(-1)?.event, 'completed')
      expectRefusal(await anonymous().get(`/generations/${generation_id}/stream?ticket=${ticket}`), 401, 'UNAUTHORIZED')
    })

    it('is deleted by the sweep when it has expired', async () => {
      const session = await app.session()
      await ticketOf(`/sessions/${session.id}`)
      await app.pool.query(sql.unsafe`update stream_tickets set expires_at = now() - interval '1 hour'`)
      const { deleteExpiredTickets } = await import('#execution/generations/streams/tickets.ts')
      assert.ok((await deleteExpiredTickets(app.pool, new Date(), 100)) > 0)
    })
  })

  describe('by an end user', () => {
    it('shows its own session only, without instructions, tools and vendors', async () => {
      const { agentId } = await app.scripted(
        [
          { when: { user: 'fail' }, reply: { error: { status: 400, message: `vendor ${SECRET}` } } },
          {
            when: { last_role: 'user' },
            reply: { text: 'Wait. ', tool_calls: [{ name: 'own_list-agents', args: {} }] },
          },
          { reply: { chunks: ['all ', 'fine'], text: 'all fine', gate: 'gate-all-fine', gate_after: 1 } },
        ],
        {
          instructions: `secret ${SECRET}`,
          end_user_activity: 'labels',
          tool_bindings: [{ tool: { name: 'own', type: 'platform', actions: ['list-agents'] }, label: 'Looking' }],
        },
      )
      const ann = await endUser(app, { agent_ids: [agentId], allow_unbounded_agents: true })
      const bob = await endUser(app, { agent_ids: [agentId], allow_unbounded_agents: true })
      const session = expectStatus(await ann.post('/sessions', { agent_id: agentId }), 201)
      expectStatus(
        await app.key.patch(`/sessions/${session.id}`, { auto_generate: true, tool_context: { tenantId: SECRET } }),
        200,
      )
      const path = `/sessions/${session.id}`
      expectRefusal(await bob.get(`${path}/stream`), 404, 'RESOURCE_NOT_FOUND')
      for (const action of ['stream-tickets', 'typing', 'read'])
        expectRefusal(
          await bob.post(`${path}/${action}`, { typing: { state: 'started' }, read: { position: 0 } }[action]),
          404,
          'RESOURCE_NOT_FOUND',
        )
      const reader = await rawTab(app.url, `${path}/stream`, ann.token)
      await reader.seen(/event: ready/)
      const operator = await tab(session, app.admin)
      await operator.seen(is('ready'))
      expectStatus(await ann.post(`${path}/messages`, { message: 'hi' }), 201)
      await reader.seen(/"text":"all "/)
      await app.openGate('gate-all-fine')
      await reader.seen(/event: turn_completed/)
      expectStatus(await ann.post(`${path}/messages`, { message: 'fail' }), 201)
      await reader.seen(/event: turn_failed/)
      expectStatus(await ann.post(`${path}/typing`, { state: 'started' }), 204)
      await operator.seen(is('typing', { who: 'end_user', state: 'started' }))
      expectStatus(await ann.post(`${path}/read`, { position: 1 }), 204)
      const text = reader.text()
      assert.match(text, /"label":"Looking"/)
      assert.match(text, /"unread_count":0/)
      for (const hidden of [
        SECRET,
        'own_list-agents',
        'tenantId',
        'double-1',
        'trace_',
        'vendor',
        bob.actorId,
        '"who":"end_user"',
      ])
        assert.equal(text.includes(hidden), false, hidden)
      assert.match(text, /The answer could not be produced/)
      reader.close()
      operator.close()
    })

    it('opens it by ticket, and ends it when its tokens are revoked or it hides the session', async () => {
      const ann = await endUser(app)
      const session = expectStatus(await ann.post('/sessions', { agent_id: app.agentId }), 201)
      const path = `/sessions/${session.id}`
      const { ticket } = expectStatus(await ann.post(`${path}/stream-tickets`), 201)
      const first = await rawTab(app.url, `${path}/stream?ticket=${ticket}`, null)
      await first.seen(/event: ready/)
      expectStatus(await ann.delete(path), 204)
      await first.seen(/event: error\ndata: \{"code":"RESOURCE_NOT_FOUND"/)
      const next = expectStatus(await ann.post('/sessions', { agent_id: app.agentId }), 201)
      const second = await rawTab(app.url, `/sessions/${next.id}/stream`, ann.token)
      await second.seen(/event: ready/)
      expectStatus(await app.key.post(`/actors/${ann.actorId}/tokens/revoke`), 204)
      await second.seen(/event: error\ndata: \{"code":"UNAUTHORIZED"/)
      await eventually(second.ended)
    })

    it('is limited by the streams of its token', async () => {
      const ann = await endUser(app, { limits: { streams: 2 } })
      const session = expectStatus(await ann.post('/sessions', { agent_id: app.agentId }), 201)
      const path = `/sessions/${session.id}/stream`
      const open = [await rawTab(app.url, path, ann.token), await rawTab(app.url, path, ann.token)]
      for (const each of open) await each.seen(/event: ready/)
      const again = await endUser(app, { limits: { streams: 2 } }, ann.actorId)
      const refused = await again.get(path)
      assert.deepEqual(expectRefusal(refused, 429, 'STREAM_LIMIT_EXCEEDED').meta, { scope: 'actor', max: 2 })
      open[0].close()
      await eventually(async () => {
        const reader = await rawTab(app.url, path, ann.token).catch(() => null)
        reader?.close()
        return reader
      })
      open[1].close()
    })

    it('does not show messages of hidden origins', async () => {
      const ann = await endUser(app)
      const session = expectStatus(await ann.post('/sessions', { agent_id: app.agentId }), 201)
      const reader = await rawTab(app.url, `/sessions/${session.id}/stream`, ann.token)
      const full = await tab(session, app.key)
      await reader.seen(/event: ready/)
      await full.seen(is('ready'))
      await app.pool.query(sql.unsafe`
        create function test_hide() returns trigger language plpgsql as $$ begin new.origin := 'system'; return new; end $$`)
      await app.pool.query(sql.unsafe`
        create trigger test_hide before insert on conversation_messages for each row execute function test_hide()`)
      await app.say(session, 'platform note')
      await app.pool.query(sql.unsafe`drop function test_hide cascade`)
      await app.say(session, 'visible')
      await full.seen(is('message', { content: 'platform note', origin: 'system' }))
      await reader.seen(/visible/)
      assert.equal(reader.text().includes('platform note'), false)
      reader.close()
      full.close()
    })
  })

  it('shows approvals of its turns to callers that may read them', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'ok' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const reader = await tab(session, app.key)
    await reader.seen(is('ready'))
    const sent = expectStatus(await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'hi' }), 201)
    const tool = expectStatus(
      await app.key.post('/tools', {
        name: 'pay',
        description: 'pays',
        type: 'http',
        parameters: { type: 'object' },
        execute: { url: 'https://example.com/pay', method: 'POST' },
      }),
      201,
    )
    const { id } = await propose(app, sent.generation_id, { id: tool.id, name: 'pay' }, {})
    const filed = await reader.seen(is('approval', { id }))
    assert.equal(filed.data.status, 'pending')
    expectStatus(await app.admin.post(`/approvals/${id}/reject`, { reason: 'no' }), 200)
    await reader.seen(is('approval', { id, status: 'rejected' }))
    reader.close()
  })

  it('shows nothing of erased content to later readers, and stores none', async () => {
    const { agentId } = await app.scripted(
      [
        {
          when: { last_role: 'user' },
          reply: { text: SECRET, tool_calls: [{ name: 'pick', args: { note: SECRET } }] },
        },
        { reply: { text: SECRET } },
      ],
      { tool_bindings: [{ tool: { name: 'pick', type: 'client' } }] },
    )
    const actor = expectStatus(await app.key.post('/actors', { name: 'Ann' }), 201)
    const session = await app.session({ agent_id: agentId, auto_generate: true, actor_id: actor.id })
    const reader = await tab(session, app.key)
    await reader.seen(is('ready'))
    await app.say(session, `say ${SECRET}`)
    await reader.seen(is('requires_action'))
    const frames = async () => JSON.stringify(await app.pool.any(sql.unsafe`select * from session_frames`))
    assert.equal((await frames()).includes(SECRET), false)
    const { generation_id } = reader.of('requires_action')[0]
    const erased = await app.key.delete(`/generations/${generation_id}/content`)
    assert.ok(erased.status < 300, JSON.stringify(erased.body))
    const [message] = await app.messages(session)
    expectStatus(await app.key.delete(`/conversations/${session.conversation_id}/messages/${message.document_id}`), 204)
    const late = await tab(session, app.key, { after: '0' })
    await late.seen(is('message_deleted'))
    assert.equal(JSON.stringify(late.events).includes(SECRET), false)
    assert.deepEqual(late.of('requires_action'), [{ generation_id, tool_calls: [] }])
    for (const each of [reader, late]) each.close()
  })

  it('shows pending calls of a turn whose content is not stored', async () => {
    const { agentId } = await app.scripted(
      [
        { when: { last_role: 'user' }, reply: { text: 'x', tool_calls: [{ name: 'pick', args: { note: SECRET } }] } },
        { reply: { text: 'done' } },
      ],
      { tool_bindings: [{ tool: { name: 'pick', type: 'client' } }], trace_content_mode: 'none' },
    )
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const reader = await tab(session, app.key)
    await reader.seen(is('ready'))
    await app.say(session, 'hi')
    const { data } = await reader.seen(is('requires_action'))
    assert.deepEqual(
      data.tool_calls.map(({ args }: Json) => args),
      [{ note: SECRET }],
    )
    reader.close()
  })
})

/** A stream read as text, unchecked: its events are those that an end user sees. */
async function rawTab(url: string, path: string, token: string | null) {
  const controller = new AbortController()
  const response = await fetch(`${url}/api/v1${path}`, {
    headers: token === null ? {} : { authorization: `Bearer ${token}` },
    signal: controller.signal,
  })
  if (response.status !== 200) throw new Error(`${response.status} ${await response.text()}`)
  let text = ''
  let ended = false
  void (async () => {
    const decoder = new TextDecoder()
    for await (const chunk of response.body as ReadableStream<Uint8Array>)
      text += decoder.decode(chunk, { stream: true })
    ended = true
  })().catch(() => {
    ended = true
  })
  return {
    text: () => text,
    ended: () => ended,
    seen: (pattern: RegExp) => eventually(() => pattern.test(text), { within: 15_000, what: `${pattern} in ${text}` }),
    close: () => controller.abort(),
  }
}
