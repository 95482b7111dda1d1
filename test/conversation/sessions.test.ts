import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { eventually, type Reply } from '../support/app.ts'
import { framesOf } from '../support/frames.ts'
import { forSuite } from '../support/suite.ts'
import { contents, expectRefusal, expectStatus, roles, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const ACTIONS = ['actors:*', 'agents:*', 'conversations:*', 'events:*', 'generations:*', 'sessions:*']

describe('sessions', () => {
  const app = forSuite(() => startSessionApp({ actions: ACTIONS, env: { SYNC_WAIT_SECONDS: '5' } }))

  const actor = async (fields: Json = {}) =>
    expectStatus(await app.key.post('/actors', { name: 'Ann', ...fields }), 201)
  const patch = (session: Json, body: Json) => app.key.patch(`/sessions/${session.id}`, body)
  const streamed = (session: Json, { body }: Reply) => framesOf('post', `/sessions/${session.id}/generate`, body)
  const read = async (session: Json) => expectStatus(await app.key.get(`/sessions/${session.id}`), 200)

  describe('creation', () => {
    it('a session is open, has a separate conversation and creates no actor', async () => {
      const before = (await app.key.get('/actors')).body.total
      const session = await app.session()
      const { id, conversation_id, created_at, updated_at, ...rest } = session
      assert.match(id, /^sess_/)
      assert.match(conversation_id, /^conv_/)
      assert.equal(created_at, updated_at)
      assert.deepEqual(rest, {
        project_id: app.projectId,
        agent_id: app.agentId,
        status: 'open',
        name: null,
        actor_id: null,
        assigned_to: null,
        assignee_name: null,
        assigned_at: null,
        attention: null,
        control: 'agent',
        takeover_timeout_seconds: null,
        tags: {},
        auto_generate: false,
        message_delay_seconds: null,
        inactivity_ttl_seconds: 0,
        tool_context: null,
        knowledge_config: null,
        last_activity_at: null,
        generating_at: null,
        queued_turns: 0,
        forked_from_session_id: null,
        forked_from_position: null,
        unread_count: 0,
        title_error: null,
        summary_error: null,
        ephemeral: false,
        state: null,
      })
      assert.deepEqual(await read(session), session)
      const conversation = expectStatus(await app.key.get(`/conversations/${conversation_id}`), 200)
      assert.deepEqual([conversation.session_id, conversation.status], [id, 'open'])
      assert.equal((await app.key.get('/actors')).body.total, before)
    })

    it('unknown agents and actors, and agents and actors of other projects, are refused with specific codes', async () => {
      const other = await app.project()
      const stranger = expectStatus(await other.key.post('/actors', { name: 'Stranger' }), 201)
      for (const agent_id of ['agent_00000000000000000000000000', 'nonsense'])
        expectRefusal(await app.key.post('/sessions', { agent_id }), 400, 'AGENT_NOT_FOUND')
      expectRefusal(await other.key.post('/sessions', { agent_id: app.agentId }), 400, 'AGENT_NOT_FOUND')
      for (const actor_id of ['actor_00000000000000000000000000', stranger.id])
        expectRefusal(await app.key.post('/sessions', { agent_id: app.agentId, actor_id }), 400, 'ACTOR_NOT_FOUND')
    })

    it('the project of an unbound caller follows from the agent and must agree with a named one', async () => {
      const other = await app.project()
      const made = expectStatus(await app.admin.post('/sessions', { agent_id: app.agentId }), 201)
      assert.equal(made.project_id, app.projectId)
      expectStatus(await app.admin.post('/sessions', { agent_id: app.agentId, project_id: app.projectId }), 201)
      expectRefusal(
        await app.admin.post('/sessions', { agent_id: app.agentId, project_id: other.id }),
        400,
        'VALIDATION_FAILED',
      )
      const unknown = { agent_id: 'agent_00000000000000000000000000' }
      expectRefusal(await app.admin.post('/sessions', unknown), 400, 'AGENT_NOT_FOUND')
      const nobody = await app.user()
      expectRefusal(await nobody.post('/sessions', { agent_id: app.agentId }), 403, 'FORBIDDEN')
      const elsewhere = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['sessions:*'], resource: [`srn:${other.id}:*:*`] }] },
      ])
      expectRefusal(await elsewhere.post('/sessions', { agent_id: app.agentId }), 400, 'AGENT_NOT_FOUND')
    })

    it('values out of bounds and unknown properties are refused by name', async () => {
      const refused: [Json, string][] = [
        [{ inactivity_ttl_seconds: -1 }, 'inactivity_ttl_seconds'],
        [{ inactivity_ttl_seconds: 31_536_001 }, 'inactivity_ttl_seconds'],
        [{ message_delay_seconds: 3601 }, 'message_delay_seconds'],
        [{ message_delay_seconds: 1.5 }, 'message_delay_seconds'],
        [{ name: ' ' }, 'name'],
        [{ status: 'open' }, 'status'],
        [{ knowledge_config: { share_between_actors: true } }, 'knowledge_config.share_between_actors'],
        [{ tool_context: { a: 1 } }, 'tool_context.a'],
        [{ tool_context: { a: 'x\r\ny' } }, 'tool_context.a'],
        [{ tool_context: Object.fromEntries([...Array(65).keys()].map(n => [`k${n}`, ''])) }, 'tool_context'],
      ]
      for (const [fields, path] of refused) {
        const reply = await app.key.post('/sessions', { agent_id: app.agentId, ...fields })
        assert.equal(expectRefusal(reply, 400, 'VALIDATION_FAILED').meta.problems[0].path, path)
      }
    })

    it('tool_context keys must be header names that differ in more than case; reserved ones are dropped', async () => {
      const make = (tool_context: Json) => app.key.post('/sessions', { agent_id: app.agentId, tool_context })
      const bad = expectRefusal(await make({ 'user id': '1', ok: '2' }), 400, 'INVALID_TOOL_CONTEXT_KEY')
      assert.deepEqual(bad.meta, { keys: ['user id'] })
      const clash = expectRefusal(await make({ userId: '1', userid: '2' }), 400, 'INVALID_TOOL_CONTEXT_KEY')
      assert.deepEqual(clash.meta, { keys: ['userId', 'userid'], header: 'X-Svc-Context-userId' })
      const session = expectStatus(await make({ tenantId: 't1', sessionId: 'forged', ActorID: 'forged' }), 201)
      assert.deepEqual(session.tool_context, { tenantId: 't1' })
    })

    it('an end user given inline is found by external id or made', async () => {
      const inline = { external_id: 'crm-1', name: 'Crm' }
      const first = await app.session({ actor: inline })
      const second = await app.session({ actor: { ...inline, name: 'Another name' } })
      assert.equal(first.actor_id, second.actor_id)
      const made = expectStatus(await app.key.get(`/actors/${first.actor_id}`), 200)
      assert.deepEqual([made.external_id, made.name], ['crm-1', 'Crm'])
      const both = { agent_id: app.agentId, actor: inline, actor_id: first.actor_id }
      expectRefusal(await app.key.post('/sessions', both), 400, 'VALIDATION_FAILED')
    })
  })

  describe('one session per end user', () => {
    it('a second open session of the pair is refused until the first is closed', async () => {
      const agent_id = await app.agent({ single_session_per_actor: true })
      const ann = await actor()
      const first = await app.session({ agent_id, actor_id: ann.id })
      const refused = await app.key.post('/sessions', { agent_id, actor_id: ann.id })
      assert.deepEqual(expectRefusal(refused, 409, 'SINGLE_SESSION_CONFLICT').meta, { session_id: first.id })
      await app.session({ agent_id })
      await app.session({ agent_id })
      await app.session({ agent_id, actor_id: (await actor()).id })
      expectStatus(await patch(first, { status: 'closed' }), 200)
      const second = await app.session({ agent_id, actor_id: ann.id })
      const reopened = await patch(first, { status: 'open' })
      assert.deepEqual(expectRefusal(reopened, 409, 'SINGLE_SESSION_CONFLICT').meta, { session_id: second.id })
      expectStatus(await patch(second, { status: 'closed' }), 200)
      assert.equal(expectStatus(await patch(first, { status: 'open' }), 200).status, 'open')
    })

    it('a session past its time to live does not count and is expired on the spot', async () => {
      const agent_id = await app.agent({ single_session_per_actor: true })
      const ann = await actor()
      const first = await app.session({ agent_id, actor_id: ann.id, inactivity_ttl_seconds: 1 })
      await sleep(1100)
      await app.session({ agent_id, actor_id: ann.id })
      const told = (await app.events('sessions.expired')).filter(event => event.resource_id === first.id)
      assert.deepEqual(
        told.map(event => event.data.status),
        ['expired'],
      )
    })

    it('a merge of end users that would leave two open sessions is refused; otherwise sessions move', async () => {
      const agent_id = await app.agent({ single_session_per_actor: true })
      const [ann, bob] = [await actor(), await actor()]
      const session = await app.session({ agent_id, actor_id: ann.id })
      const other = await app.session({ agent_id, actor_id: bob.id })
      const merge = () => app.key.post(`/actors/${ann.id}/merge`, { into_actor_id: bob.id })
      const refused = expectRefusal(await merge(), 409, 'SINGLE_SESSION_CONFLICT')
      assert.deepEqual(refused.meta, { session_id: other.id })
      expectStatus(await patch(other, { status: 'closed' }), 200)
      expectStatus(await merge(), 200)
      assert.equal((await read(session)).actor_id, bob.id)
    })
  })

  describe('messages and turns', () => {
    it('a message is stored without a reply; generate?wait=true answers it', async () => {
      const ann = await actor()
      const session = await app.session({ actor_id: ann.id })
      const stored = await app.say(session, 'hello')
      assert.deepEqual(
        [stored.role, stored.content, stored.position, stored.generation_id, stored.reply],
        ['user', 'hello', 0, null, null],
      )
      assert.ok((await read(session)).last_activity_at >= stored.created_at)
      assert.deepEqual(roles(await app.messages(session)), ['user'])
      const reply = expectStatus(await app.generate(session, '?wait=true'), 200)
      assert.deepEqual([reply.status, reply.model, reply.message.position], ['completed', 'double-1', 1])
      const [user, assistant] = await app.messages(session)
      assert.deepEqual([user.role, user.actor_id, user.model], ['user', ann.id, null])
      assert.deepEqual(
        [assistant.role, assistant.content, assistant.model, assistant.generation_id, assistant.document_id],
        ['assistant', reply.content, 'double-1', reply.generation_id, reply.message.document_id],
      )
      const generation = await app.generation(reply.generation_id)
      assert.deepEqual([generation.session_id, generation.actor_id], [session.id, ann.id])
    })

    it('generate without wait answers 202 with a generation that can be read immediately', async () => {
      const session = await app.session()
      await app.say(session, 'hello')
      const accepted = expectStatus(await app.generate(session), 202)
      assert.deepEqual([accepted.status, accepted.session_id], ['accepted', session.id])
      assert.equal((await app.generation(accepted.generation_id)).trace_id, accepted.trace_id)
      await app.settled(accepted.generation_id)
      assert.deepEqual(contents(await app.messages(session)), ['hello', 'echo: hello'])
      for (const name of ['sessions.generation_started', 'sessions.generation_completed']) {
        const told = (await app.events(name)).filter(event => event.resource_id === session.id)
        assert.equal(told.length, 1, name)
        assert.deepEqual(
          [told[0].data.id, told[0].data.generation_id, told[0].data.trace_id],
          [session.id, accepted.generation_id, accepted.trace_id],
        )
      }
    })

    it('generate in an empty session, and an invalid value of wait, is refused', async () => {
      const session = await app.session()
      expectRefusal(await app.generate(session), 400, 'VALIDATION_FAILED')
      expectRefusal(await app.generate(session, '?wait=yes'), 400, 'VALIDATION_FAILED')
      expectRefusal(await app.generate(session, '', { message: 'x' }), 400, 'VALIDATION_FAILED')
      for (const body of [{}, { message: '' }, { message: ['x'] }, { message: 'x', document_id: 'doc_1' }])
        expectRefusal(await app.key.post(`/sessions/${session.id}/messages`, body), 400, 'VALIDATION_FAILED')
    })

    it('a failed turn answers its code to the waiting caller and leaves no message', async () => {
      const { agentId } = await app.scripted([{ reply: { error: { status: 400, message: 'no' } } }])
      const session = await app.session({ agent_id: agentId })
      await app.say(session, 'hello')
      const refused = expectRefusal(await app.generate(session, '?wait=true'), 502, 'AI_PROVIDER_ERROR')
      assert.deepEqual(roles(await app.messages(session)), ['user'])
      const [failed] = (await app.events('sessions.generation_failed')).filter(
        event => event.resource_id === session.id,
      )
      assert.deepEqual(
        [failed.data.generation_id, failed.data.error.code],
        [refused.meta.generation_id, 'AI_PROVIDER_ERROR'],
      )
      assert.equal((await read(session)).generating_at, null)
    })

    it('a stream starts, brings the text and completes after the reply is stored', async () => {
      const { agentId } = await app.scripted([{ reply: { text: 'one two three' } }])
      const session = await app.session({ agent_id: agentId })
      await app.say(session, 'hello')
      expectRefusal(await app.generate(session, '?wait=false', { stream: true }), 400, 'VALIDATION_FAILED')
      const reply = await app.generate(session, '', { stream: true })
      assert.equal(reply.headers.get('content-type'), 'text/event-stream')
      const events = streamed(session, reply)
      assert.deepEqual([events[0].event, events.at(-1)?.event], ['started', 'completed'])
      const text = events.filter(each => each.event === 'delta').map(each => each.data.choices[0].delta.content)
      assert.equal(text.join(''), 'one two three')
      const result = events.at(-1)?.data as Json
      assert.deepEqual([result.status, result.content], ['completed', 'one two three'])
      assert.deepEqual(contents(await app.messages(session)), ['hello', 'one two three'])
    })

    it('an agent with an output schema cannot be streamed', async () => {
      const agent_id = await app.agent({ output_schema: { type: 'object', properties: { a: { type: 'string' } } } })
      const session = await app.session({ agent_id })
      await app.say(session, 'hello')
      const refused = await app.generate(session, '', { stream: true })
      expectRefusal(refused, 400, 'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
    })

    it('a caller that waits longer than SYNC_WAIT_SECONDS gets 202, and the turn continues', async () => {
      const { agentId } = await app.scripted([{ reply: { text: 'late', gate: 'late' } }])
      const session = await app.session({ agent_id: agentId })
      await app.say(session, 'hello')
      const accepted = expectStatus(await app.generate(session, '?wait=true'), 202)
      const { generating_at } = await read(session)
      assert.ok(generating_at)
      await app.openGate('late')
      assert.equal((await app.settled(accepted.generation_id)).status, 'completed')
      assert.deepEqual(contents(await app.messages(session)), ['hello', 'late'])
    })

    it('a paused project refuses turns and still stores messages', async () => {
      const project = await app.project()
      const provider = await project.key.post('/ai-providers', {
        name: 'double',
        provider: 'custom',
        default_model: 'double-1',
        base_url: `${app.double.url}/v1`,
      })
      const agent = await project.key.post('/agents', { ai_provider_id: provider.body.id })
      const session = expectStatus(await project.key.post('/sessions', { agent_id: agent.body.id }), 201)
      expectStatus(await app.admin.post(`/projects/${project.id}/pause`, { reason: 'stop' }), 200)
      expectStatus(await project.key.post(`/sessions/${session.id}/messages`, { message: 'hello' }), 201)
      expectRefusal(await project.key.post(`/sessions/${session.id}/generate`), 409, 'PROJECT_PAUSED')
      expectStatus(await app.admin.post(`/projects/${project.id}/resume`), 200)
      expectStatus(await project.key.post(`/sessions/${session.id}/generate?wait=true`), 200)
    })

    it('a caller with the right to send messages alone can have them answered', async () => {
      const user = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['sessions:SendSessionMessage'], resource: ['*'] }] },
      ])
      const session = await app.session()
      expectStatus(await user.post(`/sessions/${session.id}/messages`, { message: 'hello' }), 201)
      expectStatus(await user.post(`/sessions/${session.id}/generate?wait=true`), 200)
      expectRefusal(await user.get(`/sessions/${session.id}`), 403, 'FORBIDDEN')
    })

    it('the tool_context of a request is validated like a stored one and changes nothing that is stored', async () => {
      const session = await app.session({ tool_context: { tenantId: 'stored' } })
      await app.say(session, 'hello', { tool_context: { tenantId: 'sent' } })
      expectStatus(
        await app.generate(session, '?wait=true', { tool_context: { TENANTID: 'sent', sessionid: 'x' } }),
        200,
      )
      const bad = { tool_context: { 'a b': 'x' } }
      expectRefusal(await app.generate(session, '', bad), 400, 'INVALID_TOOL_CONTEXT_KEY')
      const message = { message: 'x', ...bad }
      expectRefusal(await app.key.post(`/sessions/${session.id}/messages`, message), 400, 'INVALID_TOOL_CONTEXT_KEY')
      assert.deepEqual((await read(session)).tool_context, { tenantId: 'stored' })
    })

    it('messages are listed in order and filtered by role', async () => {
      const session = await app.session()
      await app.say(session, 'one')
      expectStatus(await app.generate(session, '?wait=true'), 200)
      await app.say(session, 'two')
      const list = async (query: string) =>
        expectStatus(await app.key.get(`/sessions/${session.id}/messages${query}`), 200)
      assert.deepEqual(contents((await list('')).data), ['one', 'echo: one', 'two'])
      assert.deepEqual(contents((await list('?role=user')).data), ['one', 'two'])
      const page = await list('?limit=1&offset=1')
      assert.deepEqual([contents(page.data), page.total], [['echo: one'], 3])
      expectRefusal(await app.key.get(`/sessions/${session.id}/messages?role=system`), 400, 'VALIDATION_FAILED')
    })
  })

  describe('automatic replies', () => {
    it('with auto_generate a message requests a turn, and wait=true fills the reply', async () => {
      const session = await app.session({ auto_generate: true })
      const waited = expectStatus(
        await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'a' }),
        201,
      )
      assert.equal(waited.reply.content, 'echo: a')
      assert.equal(waited.reply.generation_id, waited.generation_id)
      const background = await app.say(session, 'b')
      assert.equal(background.reply, null)
      await app.settled(background.generation_id)
      assert.deepEqual(contents(await app.messages(session)), ['a', 'echo: a', 'b', 'echo: b'])
    })

    it('a failed automatic turn answers its error to the waiting caller; the message is retained', async () => {
      const { agentId } = await app.scripted([{ reply: { error: { status: 400, message: 'no' } } }])
      const session = await app.session({ agent_id: agentId, auto_generate: true })
      const reply = await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'hello' })
      expectRefusal(reply, 502, 'AI_PROVIDER_ERROR')
      assert.deepEqual(contents(await app.messages(session)), ['hello'])
    })

    it('an idempotency key twice: 201 then 200, one message and one generation', async () => {
      const session = await app.session({ auto_generate: true })
      const send = () =>
        app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'hello', idempotency_key: 'k' })
      const first = expectStatus(await send(), 201)
      const second = expectStatus(await send(), 200)
      assert.deepEqual(
        [second.document_id, second.generation_id, second.content],
        [first.document_id, first.generation_id, 'hello'],
      )
      const other = await app.key.post(`/sessions/${session.id}/messages`, { message: 'other', idempotency_key: 'k' })
      assert.equal(expectStatus(other, 200).content, 'hello')
      assert.deepEqual(roles(await app.messages(session)), ['user', 'assistant'])
      assert.equal((await app.key.get(`/generations?session_id=${session.id}`)).body.total, 1)
    })

    it('generate absorbs a turn that waits out its delay and answers for it', async () => {
      const session = await app.session({ auto_generate: true, message_delay_seconds: 60 })
      const message = await app.say(session, 'hello')
      assert.equal((await read(session)).queued_turns, 1)
      const reply = expectStatus(await app.generate(session, '?wait=true'), 200)
      assert.notEqual(reply.generation_id, message.generation_id)
      const absorbed = await app.settled(message.generation_id)
      assert.deepEqual([absorbed.status, absorbed.error.code], ['failed', 'GENERATION_FAILED'])
      assert.deepEqual(contents(await app.messages(session)), ['hello', 'echo: hello'])
    })

    it('turning auto_generate off cancels a turn that waits out its delay', async () => {
      const session = await app.session({ auto_generate: true, message_delay_seconds: 60 })
      const message = await app.say(session, 'hello')
      const changed = expectStatus(await patch(session, { auto_generate: false }), 200)
      assert.deepEqual([changed.auto_generate, changed.queued_turns], [false, 0])
      assert.equal((await app.generation(message.generation_id)).status, 'failed')
    })

    it('wait=true with a delay returns immediately without a reply', async () => {
      const session = await app.session({ auto_generate: true, message_delay_seconds: 60 })
      const reply = expectStatus(
        await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'a' }),
        201,
      )
      assert.ok(reply.generation_id)
      assert.equal(reply.reply, null)
      assert.equal((await app.generation(reply.generation_id)).status, 'pending')
    })
  })

  describe('changes', () => {
    it('a patch changes the given fields; a patch without changes leaves the record and emits nothing', async () => {
      const session = await app.session({ name: 'first', tags: { a: '1' } })
      const changed = expectStatus(
        await patch(session, { name: null, tags: { b: '2' }, tool_context: { x: 'y' } }),
        200,
      )
      assert.deepEqual([changed.name, changed.tags, changed.tool_context], [null, { b: '2' }, { x: 'y' }])
      assert.deepEqual(await read(session), changed)
      for (const body of [{}, { name: null, tags: { b: '2' } }, { status: 'open' }])
        assert.deepEqual(expectStatus(await patch(session, body), 200), changed)
      assert.equal(expectStatus(await patch(session, { tool_context: null }), 200).tool_context, null)
      const told = (await app.events('sessions.updated')).filter(event => event.resource_id === session.id)
      assert.equal(told.length, 2)
      for (const body of [
        { status: 'expired' },
        { actor_id: null },
        { agent_id: app.agentId },
        { message_delay_seconds: -1 },
      ])
        expectRefusal(await patch(session, body), 400, 'VALIDATION_FAILED')
    })

    it('a closed session refuses messages and turns until it is opened again', async () => {
      const session = await app.session()
      await app.say(session, 'hello')
      const closed = expectStatus(await patch(session, { status: 'closed' }), 200)
      assert.equal(closed.status, 'closed')
      const message = { message: 'x' }
      expectRefusal(await app.key.post(`/sessions/${session.id}/messages`, message), 409, 'SESSION_CLOSED')
      expectRefusal(await app.generate(session), 409, 'SESSION_CLOSED')
      const { conversation_id } = session
      const plain = await app.key.post(`/conversations/${conversation_id}/messages`, { ...message, role: 'user' })
      expectRefusal(plain, 409, 'SESSION_CLOSED')
      const names = ['sessions.updated', 'sessions.closed']
      for (const name of names) {
        const told = (await app.events(name)).filter(event => event.resource_id === session.id)
        assert.deepEqual(
          told.map(event => event.data.status),
          ['closed'],
        )
      }
      const opened = expectStatus(await patch(session, { status: 'open' }), 200)
      assert.ok(opened.last_activity_at > closed.last_activity_at)
      expectStatus(await app.generate(session, '?wait=true'), 200)
    })

    it('closing cancels the turns that wait', async () => {
      const session = await app.session({ auto_generate: true, message_delay_seconds: 60 })
      const message = await app.say(session, 'hello')
      assert.equal(expectStatus(await patch(session, { status: 'closed' }), 200).queued_turns, 0)
      const { status, error } = await app.generation(message.generation_id)
      assert.deepEqual([status, error.code], ['failed', 'SESSION_CLOSED'])
    })

    it('a stale If-Match is refused', async () => {
      const session = await app.session()
      const tag = (await app.key.get(`/sessions/${session.id}`)).headers.get('etag') as string
      expectStatus(await app.key.patch(`/sessions/${session.id}`, { name: 'a' }, { 'if-match': tag }), 200)
      const stale = await app.key.patch(`/sessions/${session.id}`, { name: 'b' }, { 'if-match': tag })
      expectRefusal(stale, 412, 'PRECONDITION_FAILED')
    })
  })

  describe('expiry', () => {
    it('a session past its time to live is expired for every reader and refuses messages and turns', async () => {
      const session = await app.session({ inactivity_ttl_seconds: 1, name: 'expires' })
      await app.say(session, 'hello')
      assert.equal((await read(session)).status, 'open')
      await sleep(1200)
      assert.equal((await read(session)).status, 'expired')
      expectRefusal(await app.generate(session), 410, 'SESSION_EXPIRED')
      expectRefusal(await app.key.post(`/sessions/${session.id}/messages`, { message: 'x' }), 410, 'SESSION_EXPIRED')
      const listed = async (status: string) =>
        (await app.key.get(`/sessions?status=${status}&name=expires`)).body.data.map((each: Json) => each.id)
      assert.deepEqual(await listed('open'), [])
      assert.deepEqual(await listed('expired'), [session.id])
      for (const status of ['open', 'closed']) expectRefusal(await patch(session, { status }), 410, 'SESSION_EXPIRED')
      const renamed = expectStatus(await patch(session, { name: 'still', inactivity_ttl_seconds: 0 }), 200)
      assert.deepEqual([renamed.name, renamed.status], ['still', 'expired'])
      assert.equal((await read(session)).status, 'expired')
      const told = (await app.events('sessions.expired')).filter(event => event.resource_id === session.id)
      assert.equal(told.length, 1)
    })

    it('a session does not expire while a turn runs or waits, nor when it is closed', async () => {
      const { agentId } = await app.scripted([{ reply: { text: 'slow', gate: 'expiry' } }])
      const session = await app.session({ agent_id: agentId, inactivity_ttl_seconds: 1 })
      const closed = await app.session({ inactivity_ttl_seconds: 1 })
      expectStatus(await patch(closed, { status: 'closed' }), 200)
      await app.say(session, 'hello')
      const { generation_id } = expectStatus(await app.generate(session), 202)
      await app.atGate('expiry')
      await sleep(1200)
      assert.equal((await read(session)).status, 'open')
      assert.equal((await read(closed)).status, 'closed')
      await app.openGate('expiry')
      await app.settled(generation_id)
      assert.equal((await read(session)).status, 'expired')
      assert.equal(expectStatus(await patch(closed, { status: 'open' }), 200).status, 'open')
    })

    it('a time to live counts from the last activity, also if it is set later', async () => {
      const session = await app.session()
      await app.say(session, 'hello')
      await sleep(1100)
      assert.equal(expectStatus(await patch(session, { inactivity_ttl_seconds: 3600 }), 200).status, 'open')
      assert.equal(expectStatus(await patch(session, { inactivity_ttl_seconds: 1 }), 200).status, 'expired')
    })
  })

  describe('lists and tags', () => {
    it('sessions are filtered by agent, end user, status, name and tags', async () => {
      const agent_id = await app.agent()
      const ann = await actor()
      const one = await app.session({ agent_id, name: 'Support 100%', tags: { team: 'red' } })
      const two = await app.session({ agent_id, actor_id: ann.id, tags: { team: 'blue' } })
      expectStatus(await patch(two, { status: 'closed' }), 200)
      const ids = async (query: string) =>
        expectStatus(await app.key.get(`/sessions?agent_id=${agent_id}&${query}`), 200).data.map(
          (each: Json) => each.id,
        )
      assert.deepEqual(await ids(''), [two.id, one.id])
      assert.deepEqual(await ids(`actor_id=${ann.id}`), [two.id])
      assert.deepEqual(await ids('status=open'), [one.id])
      assert.deepEqual(await ids('status=open&status=closed'), [two.id, one.id])
      assert.deepEqual(await ids('name=100%25'), [one.id])
      assert.deepEqual(await ids('tags[team]=blue'), [two.id])
      expectRefusal(await app.key.get('/sessions?status=gone'), 400, 'VALIDATION_FAILED')
    })

    it('tag routes read, replace and merge tags, and emit a specific event', async () => {
      const session = await app.session({ tags: { a: '1' } })
      const path = `/sessions/${session.id}/tags`
      assert.deepEqual(expectStatus(await app.key.put(path, { b: '2', c: '3' }), 200), { b: '2', c: '3' })
      assert.deepEqual(expectStatus(await app.key.patch(path, { c: null, d: '4' }), 200), { b: '2', d: '4' })
      assert.deepEqual(expectStatus(await app.key.get(path), 200), { b: '2', d: '4' })
      const told = (await app.events('sessions.tags_updated')).filter(event => event.resource_id === session.id)
      assert.deepEqual(told.at(-1)?.data.tags, { b: '2', d: '4' })
    })
  })

  describe('forks', () => {
    const parent = async () => {
      const session = await app.session({ inactivity_ttl_seconds: 3600, tool_context: { t: '1' } })
      for (const text of ['one', 'two']) {
        await app.say(session, text, { idempotency_key: text })
        expectStatus(await app.generate(session, '?wait=true'), 200)
      }
      return session
    }
    const fork = (session: Json, body?: Json) => app.key.post(`/sessions/${session.id}/fork`, body)

    it('a fork starts with the messages up to a position, the same texts, and leaves the parent alone', async () => {
      const session = await parent()
      const before = await app.messages(session)
      const made = expectStatus(await fork(session, { fork_at_position: 1, name: 'fork', tags: { f: '1' } }), 201)
      assert.deepEqual(
        [made.forked_from_session_id, made.forked_from_position, made.status, made.auto_generate, made.name],
        [session.id, 1, 'open', false, 'fork'],
      )
      assert.deepEqual(
        [made.inactivity_ttl_seconds, made.tool_context, made.last_activity_at, made.tags],
        [3600, { t: '1' }, null, { f: '1' }],
      )
      assert.deepEqual(await app.messages(made), before.slice(0, 2))
      assert.deepEqual(await app.messages(session), before)
      await app.say(made, 'one', { idempotency_key: 'one' })
      expectStatus(await app.generate(made, '?wait=true'), 200)
      assert.equal((await app.messages(made)).length, 4)
      assert.deepEqual(await app.messages(session), before)
      const { message_count } = expectStatus(await app.key.get(`/conversations/${made.conversation_id}`), 200)
      assert.equal(message_count, 4)
    })

    it('without a position all is copied; a session without messages forks empty', async () => {
      const session = await parent()
      const made = expectStatus(await fork(session, { tool_context: null }), 201)
      assert.deepEqual([made.forked_from_position, made.tool_context], [null, null])
      assert.equal((await app.messages(made)).length, 4)
      const empty = expectStatus(await fork(await app.session()), 201)
      assert.deepEqual(await app.messages(empty), [])
      const forks = expectStatus(await app.key.get(`/sessions/${session.id}/forks`), 200)
      assert.deepEqual([forks.total, forks.data], [1, [made]])
    })

    it('a position without a message and an agent of another project are refused', async () => {
      const session = await parent()
      for (const fork_at_position of [9, -1, 1.5, '1'])
        expectRefusal(await fork(session, { fork_at_position }), 400, 'VALIDATION_FAILED')
      const other = await app.project()
      const provider = await other.key.post('/ai-providers', {
        name: 'p',
        provider: 'custom',
        default_model: 'double-1',
        base_url: `${app.double.url}/v1`,
      })
      const stranger = await other.key.post('/agents', { ai_provider_id: provider.body.id })
      expectRefusal(await fork(session, { agent_id: stranger.body.id }), 400, 'AGENT_NOT_FOUND')
      const agent_id = await app.agent()
      assert.equal(expectStatus(await fork(session, { agent_id }), 201).agent_id, agent_id)
    })

    it('a fork outlives its parent, and a text lives as long as one of them', async () => {
      const session = await parent()
      const made = expectStatus(await fork(session), 201)
      const before = await app.messages(made)
      expectStatus(await app.key.delete(`/sessions/${session.id}`), 204)
      assert.deepEqual(await app.messages(made), before)
      assert.equal((await read(made)).forked_from_session_id, null)
      expectStatus(await app.key.delete(`/sessions/${made.id}`), 204)
    })

    it('a fork needs the right to read and the right to create', async () => {
      const session = await app.session()
      const reader = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['sessions:GetSession'], resource: ['*'] }] },
      ])
      expectRefusal(await reader.post(`/sessions/${session.id}/fork`), 403, 'FORBIDDEN')
    })
  })

  describe('deletion', () => {
    it('a deleted session takes its conversation along; generations stay', async () => {
      const session = await app.session()
      await app.say(session, 'hello')
      const { generation_id } = expectStatus(await app.generate(session, '?wait=true'), 200)
      expectStatus(await app.key.delete(`/sessions/${session.id}`), 204)
      expectRefusal(await app.key.get(`/sessions/${session.id}`), 404, 'RESOURCE_NOT_FOUND')
      expectRefusal(await app.key.get(`/conversations/${session.conversation_id}`), 404, 'RESOURCE_NOT_FOUND')
      assert.equal((await app.generation(generation_id)).session_id, session.id)
      const told = (await app.events('sessions.deleted')).filter(event => event.resource_id === session.id)
      assert.equal(told.length, 1)
    })

    it('deleting the conversation of a session deletes the session, and needs the right to', async () => {
      const session = await app.session()
      const limited = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['conversations:DeleteConversation'], resource: ['*'] }] },
      ])
      const path = `/conversations/${session.conversation_id}`
      expectRefusal(await limited.delete(path), 403, 'FORBIDDEN')
      expectStatus(await app.key.delete(path), 204)
      expectRefusal(await app.key.get(`/sessions/${session.id}`), 404, 'RESOURCE_NOT_FOUND')
      const told = (await app.events('sessions.deleted')).filter(event => event.resource_id === session.id)
      assert.equal(told.length, 1)
    })

    it('sessions alone do not block the delete of their agent', async () => {
      const agent_id = await app.agent()
      const session = await app.session({ agent_id })
      await app.say(session, 'hello')
      expectStatus(await app.key.delete(`/agents/${agent_id}`), 204)
      expectRefusal(await app.key.get(`/sessions/${session.id}`), 404, 'RESOURCE_NOT_FOUND')
      expectRefusal(await app.key.get(`/conversations/${session.conversation_id}`), 404, 'RESOURCE_NOT_FOUND')
    })

    it('with generations, sessions are counted among the dependents and deleted with force', async () => {
      const agent_id = await app.agent()
      const session = await app.session({ agent_id })
      await app.say(session, 'hello')
      expectStatus(await app.generate(session, '?wait=true'), 200)
      const refused = expectRefusal(await app.key.delete(`/agents/${agent_id}`), 409, 'AGENT_HAS_DEPENDENTS')
      assert.equal(refused.meta.counts.sessions, 1)
      assert.equal(refused.meta.forcible, true)
      expectStatus(await app.key.delete(`/agents/${agent_id}?force=true`), 204)
      expectRefusal(await app.key.get(`/sessions/${session.id}`), 404, 'RESOURCE_NOT_FOUND')
    })
  })

  describe('a turn that runs', () => {
    const running = async (gate: string, reply: Json = {}) => {
      const { agentId } = await app.scripted([
        { when: { call: 1 }, reply: { text: 'one two three four', gate, ...reply } },
        { reply: { text: 'next' } },
      ])
      const session = await app.session({ agent_id: agentId })
      await app.say(session, 'hello')
      return session
    }
    const start = async (session: Json, gate: string) => {
      const { generation_id } = expectStatus(await app.generate(session), 202)
      await app.atGate(gate)
      return generation_id as string
    }

    it('makes the session busy: a second generate is refused with its id', async () => {
      const session = await running('busy')
      const generation_id = await start(session, 'busy')
      const refused = expectRefusal(await app.generate(session), 409, 'GENERATION_ALREADY_IN_PROGRESS')
      assert.deepEqual(refused.meta, { generation_id })
      await app.openGate('busy')
      await app.settled(generation_id)
      expectStatus(await app.generate(session, '?wait=true'), 200)
    })

    it('is aborted by a close, and its reply is never stored', async () => {
      const session = await running('close')
      const generation_id = await start(session, 'close')
      expectStatus(await patch(session, { status: 'closed' }), 200)
      const { status, error } = await app.settled(generation_id)
      assert.deepEqual([status, error.code], ['failed', 'SESSION_CLOSED'])
      await app.openGate('close')
      await sleep(200)
      assert.deepEqual(roles(await app.messages(session)), ['user'])
    })

    it('is aborted by a delete of its session', async () => {
      const session = await running('delete')
      const generation_id = await start(session, 'delete')
      expectStatus(await app.key.delete(`/sessions/${session.id}`), 204)
      const { status, error } = await app.settled(generation_id)
      assert.deepEqual([status, error.code], ['failed', 'RESOURCE_NOT_FOUND'])
      await app.openGate('delete')
    })

    it('cancel aborts it and cancels automatic turns that wait; without any the record comes back unchanged', async () => {
      const session = await running('cancel')
      const generation_id = await start(session, 'cancel')
      expectStatus(await patch(session, { auto_generate: true }), 200)
      const message = await app.say(session, 'more')
      const cancel = () => app.key.post(`/sessions/${session.id}/cancel`)
      assert.equal(expectStatus(await cancel(), 200).queued_turns, 0)
      for (const id of [generation_id, message.generation_id]) {
        const { status, stop_reason, error } = await app.settled(id)
        assert.deepEqual([status, stop_reason], ['failed', 'cancelled'])
        assert.deepEqual([error.code, error.message], ['GENERATION_FAILED', 'cancelled'])
      }
      await app.openGate('cancel')
      const idle = await eventually(async () => {
        const record = await read(session)
        return record.generating_at === null ? record : null
      })
      assert.deepEqual(expectStatus(await cancel(), 200), idle)
      assert.deepEqual(roles(await app.messages(session)), ['user', 'user'])
    })

    it('a queued turn that is cancelled by its generation leaves the mailbox; the next message requests another', async () => {
      const session = await app.session({ auto_generate: true, message_delay_seconds: 3600 })
      const first = await app.say(session, 'one')
      expectStatus(await app.key.post(`/generations/${first.generation_id}/cancel`), 200)
      assert.equal((await read(session)).queued_turns, 0)
      const told = (await app.events('sessions.generation_failed')).filter(
        event => event.data.generation_id === first.generation_id,
      )
      assert.equal(told.length, 1)
      const second = await app.say(session, 'two')
      assert.notEqual(second.generation_id, first.generation_id)
      assert.equal((await app.generation(second.generation_id)).status, 'pending')
    })

    it('on_busy queue waits for the running turn; more than twenty turns are refused', async () => {
      const session = await running('queue')
      const first = await start(session, 'queue')
      const queued: string[] = []
      for (let n = 0; n < 20; n++)
        queued.push(expectStatus(await app.generate(session, '', { on_busy: 'queue' }), 202).generation_id)
      assert.equal((await read(session)).queued_turns, 20)
      const refused = await app.generate(session, '', { on_busy: 'queue' })
      expectRefusal(refused, 409, 'GENERATION_ALREADY_IN_PROGRESS')
      await app.openGate('queue')
      for (const id of [first, ...queued]) assert.equal((await app.settled(id)).status, 'completed')
      assert.equal((await app.messages(session)).length, 22)
    })

    it('on_busy interrupt aborts it, keeps its text so far and runs next', async () => {
      const session = await running('interrupt', { gate_after: 2 })
      const { stream, text } = await app.streamed(session)
      await eventually(() => text() === 'one two ', { what: 'the text so far' })
      const reply = expectStatus(await app.generate(session, '?wait=true', { on_busy: 'interrupt' }), 200)
      assert.equal(reply.content, 'next')
      const [, kept, next] = await app.messages(session)
      assert.deepEqual([kept.role, kept.content, next.content], ['assistant', 'one two ', 'next'])
      const path = `/conversations/${session.conversation_id}/messages`
      const [, record] = expectStatus(await app.key.get(path), 200).data
      assert.deepEqual(record.metadata, { interrupted: true })
      const last = (await stream).at(-1)
      assert.deepEqual([last?.event, last?.data.code], ['error', 'GENERATION_FAILED'])
      await app.openGate('interrupt')
    })

    it('on_busy rollback aborts it, leaves no message and runs next', async () => {
      const session = await running('rollback', { gate_after: 2 })
      const stream = app.generate(session, '', { stream: true })
      await app.atGate('rollback')
      const reply = expectStatus(await app.generate(session, '?wait=true', { on_busy: 'rollback' }), 200)
      assert.equal(reply.content, 'next')
      assert.deepEqual(contents(await app.messages(session)), ['hello', 'next'])
      assert.equal(streamed(session, await stream).at(-1)?.event, 'error')
      await app.openGate('rollback')
    })

    it('on_busy says nothing to a session that is not busy', async () => {
      for (const on_busy of ['reject', 'queue', 'interrupt', 'rollback']) {
        const session = await app.session()
        await app.say(session, 'hello')
        expectStatus(await app.generate(session, '?wait=true', { on_busy }), 200)
      }
      expectRefusal(await app.generate(await app.session(), '', { on_busy: 'wait' }), 400, 'VALIDATION_FAILED')
    })
  })
})
