import assert from 'node:assert/strict'
import { decodeJwt } from 'jose'
import { z } from 'zod'
import { sql } from '#core/db/sql.ts'
import { client, eventually } from '../support/app.ts'
import { frameIn } from '../support/frames.ts'
import { forSuite } from '../support/suite.ts'
import { CHAT_ACTIONS, chat, endUser } from './end-user-support.ts'
import { contents, expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const keptAnswers = sql.type(z.any())`select * from idempotency_keys`

describe('end-user tokens', () => {
  const app = forSuite(() => startSessionApp({ actions: CHAT_ACTIONS, env: { SYNC_WAIT_SECONDS: '30' } }))

  describe('issue', () => {
    const mint = (body: Json, actor = 'customer-x') =>
      app.key.post('/actors/tokens', { actor: { external_id: actor, name: 'Ann' }, agent_ids: [app.agentId], ...body })

    it('a token names its actor, agents, scopes and limits; the actor is made once', async () => {
      const first = expectStatus(await mint({}, 'made-once'), 201)
      const second = expectStatus(await mint({ limits: { streams: 9 } }, 'made-once'), 201)
      assert.equal(first.actor_id, second.actor_id)
      const { token, jti, expires_at, ...rest } = first
      assert.deepEqual(rest, {
        token_type: 'Bearer',
        actor_id: first.actor_id,
        agents: [app.agentId],
        sessions: null,
        scopes: ['chat'],
        limits: {
          requests_per_minute: 120,
          messages_per_hour: 120,
          open_sessions: 20,
          streams: 4,
          message_chars: 8000,
          upload_bytes_per_day: 52_428_800,
        },
      })
      assert.equal(second.limits.streams, 9)
      const claims = decodeJwt(token)
      assert.deepEqual(
        [claims.typ, claims.sub, claims.jti, (claims.exp as number) - (claims.iat as number)],
        ['actor', first.actor_id, jti, 3600],
      )
      assert.equal(new Date(expires_at).getTime(), (claims.exp as number) * 1000)
    })

    it('refuses lifetimes, agents, origins and limits out of bounds', async () => {
      expectRefusal(await mint({ ttl_seconds: 86_401 }), 400, 'VALIDATION_FAILED')
      expectRefusal(await mint({ ttl_seconds: 59 }), 400, 'VALIDATION_FAILED')
      expectRefusal(await mint({ agent_ids: [] }), 400, 'VALIDATION_FAILED')
      expectRefusal(await mint({ agent_ids: ['agent_00000000000000000000000000'] }), 400, 'AGENT_NOT_FOUND')
      expectRefusal(await mint({ scopes: ['everything'] }), 400, 'VALIDATION_FAILED')
      expectRefusal(await mint({ origins: ['https://a.example/path'] }), 400, 'VALIDATION_FAILED')
      expectRefusal(await mint({ limits: { streams: 401 } }), 400, 'VALIDATION_FAILED')
      const other = await app.project()
      const agent = expectStatus(
        await app.admin.post('/agents', { project_id: app.projectId, name: 'own', ai_provider_id: app.providerId }),
        201,
      )
      expectRefusal(
        await other.key.post('/actors/tokens', { actor: { external_id: 'a', name: 'A' }, agent_ids: [agent.id] }),
        400,
        'AGENT_NOT_FOUND',
      )
    })

    it('an agent with platform tools needs a boundary policy, also in a pipeline', async () => {
      const made = async (path: string, body: Json) =>
        expectStatus(await app.admin.post(path, { project_id: app.projectId, ...body }), 201).id as string
      const platform = await made('/tools', { name: 'platform', type: 'platform', actions: ['list-actors'] })
      const pipeline = await made('/tools', {
        name: 'pipeline',
        type: 'pipeline',
        pipeline: { steps: [{ id: 'a', tool_id: platform, action: 'list-actors' }] },
      })
      const http = await made('/tools', { name: 'http', type: 'http', execute: { url: 'https://example.com' } })
      const boundary = { statement: [{ effect: 'Allow', action: ['actors:*'], resource: ['*'] }] }
      const inline = { tool: { name: 'inline', type: 'platform', actions: ['list-actors'] } }
      const cases: [Json, boolean][] = [
        [{ tool_bindings: [{ tool_id: platform }] }, true],
        [{ tool_bindings: [{ tool_id: pipeline }] }, true],
        [{ tool_bindings: [inline] }, true],
        [{ tool_bindings: [{ tool_id: http }] }, false],
        [{ tool_bindings: [{ tool_id: platform }], boundary_policy: boundary }, false],
      ]
      for (const [fields, refused] of cases) {
        const id = await app.agent(fields)
        const agent_ids = [app.agentId, id]
        if (!refused) expectStatus(await mint({ agent_ids }), 201)
        else {
          const error = expectRefusal(await mint({ agent_ids }), 400, 'VALIDATION_FAILED')
          assert.equal(error.meta.problems[0].path, 'agent_ids[1]', JSON.stringify(fields))
          expectStatus(await mint({ agent_ids, allow_unbounded_agents: true }), 201)
        }
      }
      const released = await app.agent({ tool_bindings: [inline] })
      expectStatus(await app.admin.patch(`/agents/${released}`, { tool_bindings: null }), 200)
      expectStatus(await mint({ agent_ids: [released] }), 201)
      const release = { stable_version: 2, canary_version: 1, canary_percent: 10 }
      expectStatus(await app.admin.put(`/agents/${released}/release`, release), 200)
      expectRefusal(await mint({ agent_ids: [released] }), 400, 'VALIDATION_FAILED')
    })

    it('only bound keys and users issue tokens, with the permissions that the scopes open', async () => {
      const { actorId, ...user } = await endUser(app)
      const body = { agent_ids: [app.agentId] }
      expectRefusal(await user.post(`/actors/${actorId}/tokens`, body), 403, 'FORBIDDEN')
      const unbound = expectStatus(await app.admin.post('/project-keys', {}), 201)
      expectRefusal(await client(app.url, unbound.secret).post(`/actors/${actorId}/tokens`, body), 403, 'FORBIDDEN')
      const issued = expectStatus(await app.admin.post(`/actors/${actorId}/tokens`, body), 201)
      expectStatus(await client(app.url, issued.token).get('/sessions'), 200)
      const named = { project_id: app.projectId, actor: { external_id: 'by-admin', name: 'Ann' }, ...body }
      expectStatus(await app.admin.post('/actors/tokens', named), 201)

      const allow = (action: string[]) => ({
        statement: [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:*:*`] }],
      })
      const keyWith = async (action: string[]) => {
        const policy = expectStatus(await app.admin.post('/policies', { document: allow(action) }), 201)
        const key = { project_id: app.projectId, policy_ids: [policy.id] }
        return client(app.url, expectStatus(await app.admin.post('/project-keys', key), 201).secret)
      }
      const less = await keyWith(['actors:CreateActorToken', 'sessions:*', 'agents:GetAgent'])
      const refusal = expectRefusal(await less.post(`/actors/${actorId}/tokens`, body), 403, 'FORBIDDEN')
      assert.equal(refusal.meta.action, 'generations:GetGeneration')
      const enough = await keyWith(['actors:CreateActorToken', 'sessions:*', 'agents:GetAgent', 'generations:Get*'])
      expectStatus(await enough.post(`/actors/${actorId}/tokens`, body), 201)
      const actor = { external_id: 'unknown', name: 'Ann' }
      expectRefusal(await enough.post('/actors/tokens', { actor, ...body }), 403, 'FORBIDDEN')
      assert.equal((await app.key.get('/actors?external_id=unknown')).body.total, 0)
    })

    it('a repeat with an Idempotency-Key gets the same token, which is not stored in plain text', async () => {
      const headers = { 'idempotency-key': 'mint-1' }
      const body = { actor: { external_id: 'repeated', name: 'Ann' }, agent_ids: [app.agentId] }
      const first = expectStatus(await app.key.post('/actors/tokens', body, headers), 201)
      const repeat = await app.key.post('/actors/tokens', body, headers)
      assert.deepEqual([repeat.body.token, repeat.headers.get('idempotency-replayed')], [first.token, 'true'])
      const stored = JSON.stringify(await app.pool.any(keptAnswers))
      assert.ok(stored.includes('mint-1') && !stored.includes(first.token))
    })

    it('creates at most ACTORS_CREATED_PER_HOUR actors per key', async () => {
      const limited = await startSessionApp({ actions: CHAT_ACTIONS, env: { ACTORS_CREATED_PER_HOUR: '3' } })
      try {
        const token = (external_id: string) =>
          limited.key.post('/actors/tokens', { actor: { external_id, name: 'Ann' }, agent_ids: [limited.agentId] })
        const made = await Promise.all(Array.from({ length: 8 }, (_each, index) => token(`new-${index}`)))
        assert.equal(made.filter(({ status }) => status === 201).length, 3)
        const refused = made.find(({ status }) => status === 429)
        assert.equal(refused?.body.error.code, 'ACTOR_LIMIT_EXCEEDED')
        assert.equal(refused?.body.error.meta.actor_id, null)
        assert.equal((await limited.key.get('/actors')).body.total, 3)
      } finally {
        await limited.close()
      }
    })
  })

  describe('use', () => {
    it('an end user chats: creates, sends, generates, reads, renames, closes', async () => {
      const user = await endUser(app)
      const session = expectStatus(await user.post('/sessions', { agent_id: app.agentId, name: 'Mine' }), 201)
      assert.deepEqual(Object.keys(session).sort(), [
        'agent_id',
        'attention',
        'control',
        'created_at',
        'id',
        'last_activity_at',
        'name',
        'status',
        'unread_count',
        'updated_at',
      ])
      const path = `/sessions/${session.id}`
      const sent = expectStatus(await user.post(`${path}/messages`, { message: 'hello' }), 201)
      assert.equal(sent.content, 'hello')
      const turn = expectStatus(await user.post(`${path}/generate?wait=true`), 200)
      assert.deepEqual(Object.keys(turn).sort(), ['content', 'generation_id', 'message', 'status'])
      const generation = expectStatus(await user.get(`/generations/${turn.generation_id}`), 200)
      assert.deepEqual(
        [generation.status, generation.session_id, generation.error, Object.keys(generation).length],
        ['completed', session.id, null, 7],
      )
      const { data, total } = expectStatus(await user.get(`${path}/messages`), 200)
      assert.deepEqual([contents(data), total], [['hello', turn.content], 2])
      assert.deepEqual(Object.keys(data[1]).sort(), [
        'annotations',
        'author_name',
        'content',
        'created_at',
        'document_id',
        'feedback',
        'generation_id',
        'origin',
        'parts',
        'position',
        'refused',
        'role',
      ])
      expectStatus(await user.patch(path, { name: 'Ours' }), 200)
      assert.equal(expectStatus(await user.patch(path, { status: 'closed' }), 200).status, 'closed')
      expectRefusal(await user.patch(path, { status: 'open' }), 403, 'FORBIDDEN')
      expectRefusal(await user.post(`${path}/messages`, { message: 'again' }), 409, 'SESSION_CLOSED')

      const operated = expectStatus(await app.key.get(path), 200)
      assert.deepEqual([operated.actor_id, operated.auto_generate], [user.actorId, false])
      const full = await app.generation(turn.generation_id)
      assert.deepEqual([full.started_by_principal_type, full.actor_id], [null, user.actorId])
    })

    it('a streamed turn shows its texts and its result, nothing of the model', async () => {
      const user = await endUser(app)
      const session = await chat(user, app.agentId)
      const path = `/sessions/${session.id}/generate`
      const { body } = await user.post(path, { stream: true })
      const frames = body.split('\n\n').flatMap((block: string) => frameIn(block) ?? [])
      assert.deepEqual([...new Set(frames.map(({ event }: Json) => event))], ['started', 'delta', 'completed'])
      const last = frames.at(-1) as Json
      assert.deepEqual(Object.keys(last.data).sort(), ['content', 'generation_id', 'message', 'status'])
      assert.equal(body.includes('double-1'), false)
      const again = await user.get(`/generations/${last.data.generation_id}/stream`)
      assert.equal(again.body.includes('double-1'), false)
      assert.ok(again.body.includes('"choices"'))
    })

    it("another end user's session, messages, generation and stream are not found, and lists hold own rows", async () => {
      const [ann, bob] = [await endUser(app), await endUser(app)]
      const session = await chat(ann, app.agentId)
      const turn = expectStatus(await ann.post(`/sessions/${session.id}/generate?wait=true`), 200)
      const operators = expectStatus(await app.key.post('/sessions', { agent_id: app.agentId }), 201)
      for (const id of [session.id, operators.id]) {
        expectRefusal(await bob.get(`/sessions/${id}`), 404, 'RESOURCE_NOT_FOUND')
        expectRefusal(await bob.get(`/sessions/${id}/messages`), 404, 'RESOURCE_NOT_FOUND')
        expectRefusal(await bob.patch(`/sessions/${id}`, { name: 'x' }), 404, 'RESOURCE_NOT_FOUND')
        expectRefusal(await bob.delete(`/sessions/${id}`), 404, 'RESOURCE_NOT_FOUND')
        expectRefusal(await bob.post(`/sessions/${id}/messages`, { message: 'x' }), 404, 'RESOURCE_NOT_FOUND')
        expectRefusal(await bob.post(`/sessions/${id}/generate`), 404, 'RESOURCE_NOT_FOUND')
        expectRefusal(await bob.post(`/sessions/${id}/cancel`), 404, 'RESOURCE_NOT_FOUND')
      }
      for (const path of ['', '/stream'])
        expectRefusal(await bob.get(`/generations/${turn.generation_id}${path}`), 404, 'GENERATION_NOT_FOUND')
      assert.deepEqual(expectStatus(await bob.get('/sessions'), 200), { data: [], total: 0, limit: 50, offset: 0 })
      assert.deepEqual(
        expectStatus(await ann.get('/sessions'), 200).data.map(({ id }: Json) => id),
        [session.id],
      )
    })

    it('agents and sessions outside the token are not found, and listed sessions forbid new ones', async () => {
      const other = await app.agent({ name: 'Other' })
      const wide = await endUser(app, { agent_ids: [app.agentId, other] })
      const [one, two] = [await chat(wide, app.agentId), await chat(wide, other)]
      const narrow = await endUser(app, {}, wide.actorId)
      expectRefusal(await narrow.get(`/sessions/${two.id}`), 404, 'RESOURCE_NOT_FOUND')
      expectRefusal(await narrow.get(`/agents/${other}`), 404, 'RESOURCE_NOT_FOUND')
      expectRefusal(await narrow.post('/sessions', { agent_id: other }), 400, 'AGENT_NOT_FOUND')
      assert.equal((await narrow.get('/sessions')).body.total, 1)
      const listed = await endUser(app, { session_ids: [one.id] }, wide.actorId)
      const third = await chat(wide, app.agentId)
      expectStatus(await listed.get(`/sessions/${one.id}`), 200)
      expectRefusal(await listed.get(`/sessions/${third.id}`), 404, 'RESOURCE_NOT_FOUND')
      assert.equal((await listed.get('/sessions')).body.total, 1)
      expectRefusal(await listed.post('/sessions', { agent_id: app.agentId }), 403, 'FORBIDDEN')
      assert.deepEqual(expectStatus(await narrow.get(`/agents/${app.agentId}`), 200), {
        id: app.agentId,
        name: 'agent',
        description: null,
        avatar_file_id: null,
        greeting: null,
        media: null,
        suggestions: null,
      })
    })

    it('fields and parameters of operators are refused, with nothing stored', async () => {
      const user = await endUser(app)
      const session = await chat(user, app.agentId)
      const path = `/sessions/${session.id}`
      const refused = async (field: string, reply: ReturnType<typeof user.post>) =>
        assert.equal(expectRefusal(await reply, 403, 'FORBIDDEN').meta.field, field)
      await refused('tool_context', user.post(`${path}/messages`, { message: 'x', tool_context: { tenantId: 't' } }))
      await refused('document_id', user.post(`${path}/messages`, { document_id: 'doc_x' }))
      await refused('origin', user.post(`${path}/messages`, { message: 'x', origin: 'operator' }))
      await refused('metadata', user.post(`${path}/messages`, { message: 'x', metadata: {} }))
      await refused('model', user.post(`${path}/generate`, { model: 'x' }))
      await refused('knowledge_config', user.post(`${path}/generate`, { knowledge_config: {} }))
      await refused('actor_id', user.post('/sessions', { agent_id: app.agentId, actor_id: user.actorId }))
      await refused('auto_generate', user.patch(path, { auto_generate: true }))
      const error = expectRefusal(await user.get('/sessions?actor_id=x'), 403, 'FORBIDDEN')
      assert.equal(error.meta.parameter, 'actor_id')
      assert.equal((await app.messages(session)).length, 1)
    })

    it('a deleted session is closed and gone for the end user, and kept for operators', async () => {
      const user = await endUser(app)
      const session = await chat(user, app.agentId)
      const turn = expectStatus(await user.post(`/sessions/${session.id}/generate?wait=true`), 200)
      expectStatus(await user.delete(`/sessions/${session.id}`), 204)
      for (const path of [`/sessions/${session.id}`, `/sessions/${session.id}/messages`])
        expectRefusal(await user.get(path), 404, 'RESOURCE_NOT_FOUND')
      expectRefusal(await user.get(`/generations/${turn.generation_id}`), 404, 'GENERATION_NOT_FOUND')
      expectRefusal(await user.delete(`/sessions/${session.id}`), 404, 'RESOURCE_NOT_FOUND')
      assert.equal((await user.get('/sessions')).body.total, 0)
      assert.equal(expectStatus(await app.key.get(`/sessions/${session.id}`), 200).status, 'closed')
      assert.equal((await app.messages(session)).length, 2)
    })

    it('other mounts and a proof of possession do not accept the token', async () => {
      const user = await endUser(app)
      const response = await fetch(`${app.url}/mcp`, {
        method: 'POST',
        headers: { authorization: `Bearer ${user.token}`, 'content-type': 'application/json' },
        body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' }),
      })
      assert.equal(response.status, 401)
      const proof = await fetch(`${app.url}/api/v1/sessions`, { headers: { authorization: `DPoP ${user.token}` } })
      assert.equal(proof.status, 401)
      const info = await fetch(`${app.url}/oauth/userinfo`, { headers: { authorization: `Bearer ${user.token}` } })
      assert.equal(info.status, 401)
    })

    it('policies see the credential of the issuer', async () => {
      const resource = [`srn:${app.projectId}:*:*`]
      const statement = [
        { effect: 'Allow', action: CHAT_ACTIONS, resource },
        {
          effect: 'Deny',
          action: ['sessions:ListSessions'],
          resource,
          condition: { StringEquals: { 'svc:CredentialType': 'api_key' } },
        },
      ]
      const policy = expectStatus(await app.admin.post('/policies', { document: { statement } }), 201)
      const fields = { project_id: app.projectId, policy_ids: [policy.id] }
      const key = client(app.url, expectStatus(await app.admin.post('/project-keys', fields), 201).secret)
      expectRefusal(await key.get('/sessions'), 403, 'FORBIDDEN')
      const { actorId } = await endUser(app)
      const { token } = expectStatus(await key.post(`/actors/${actorId}/tokens`, { agent_ids: [app.agentId] }), 201)
      expectRefusal(await client(app.url, token).get('/sessions'), 403, 'FORBIDDEN')
      expectStatus(await client(app.url, token).post('/sessions', { agent_id: app.agentId }), 201)
    })

    it('a repeat with the next token of the end user gets the first response, narrowed like it', async () => {
      const first = await endUser(app)
      const next = await endUser(app, {}, first.actorId)
      const headers = { 'idempotency-key': 'create-1' }
      const made = expectStatus(await first.post('/sessions', { agent_id: app.agentId }, headers), 201)
      const repeat = await next.post('/sessions', { agent_id: app.agentId }, headers)
      assert.deepEqual([repeat.body, repeat.headers.get('idempotency-replayed')], [made, 'true'])
      assert.equal((await next.get('/sessions')).body.total, 1)
      // A stored refusal is shown like a new one.
      const unknown = { agent_id: 'agent_00000000000000000000000000' }
      const refused = await first.post('/sessions', unknown, { 'idempotency-key': 'create-2' })
      const again = await next.post('/sessions', unknown, { 'idempotency-key': 'create-2' })
      assert.deepEqual([again.status, again.body], [refused.status, refused.body])
      assert.deepEqual([refused.status, refused.body.error.meta], [400, undefined])
      const other = await endUser(app)
      const own = await other.post('/sessions', { agent_id: app.agentId }, headers)
      assert.notEqual(expectStatus(own, 201).id, made.id)
    })

    it('responses have no entity tag of hidden fields, and no method reads more', async () => {
      const user = await endUser(app)
      const session = await chat(user, app.agentId)
      const reply = await user.get(`/sessions/${session.id}`)
      assert.equal(reply.headers.get('etag'), null)
      const head = await fetch(`${app.url}/api/v1/sessions/${session.id}`, {
        method: 'HEAD',
        headers: { authorization: `Bearer ${user.token}` },
      })
      assert.deepEqual([head.status, head.headers.get('etag')], [200, null])
      assert.equal(Number(head.headers.get('content-length')), JSON.stringify(reply.body).length)
    })

    it('a key that a page sends is logged as a warning and recorded; a ticket of a key is none', async () => {
      const { key: other } = await app.projectWith(['agents:*', 'ai-providers:*', 'sessions:*'])
      const provider = { name: 'own', provider: 'ollama', default_model: 'x' }
      const { id: providerId } = expectStatus(await other.post('/ai-providers', provider), 201)
      const agent = expectStatus(await other.post('/agents', { ai_provider_id: providerId }), 201)
      const session = expectStatus(await other.post('/sessions', { agent_id: agent.id }), 201)
      const { ticket } = expectStatus(await other.post(`/sessions/${session.id}/stream-tickets`), 201)
      const url = `${app.url}/api/v1/sessions/${session.id}/stream?ticket=${ticket}`
      const stream = await fetch(url, { headers: { origin: 'https://shop.example.com' } })
      assert.equal(stream.status, 200)
      await stream.body?.cancel()
      expectStatus(await app.key.get('/sessions', { origin: 'https://shop.example.com' }), 200)
      const keys = sql.type(z.object({ id: z.string() }))`select id from project_keys where browser_used_at is not null`
      const found = await eventually(async () => {
        const rows = await app.pool.any(keys)
        return rows.length > 0 ? rows : null
      })
      assert.equal(found.length, 1)
      const [{ id }] = found
      const warning = app.logs.find(line => line.includes('keys sent by browsers')) ?? ''
      assert.deepEqual([JSON.parse(warning).key_ids, JSON.parse(warning).level], [[id], 'warn'])
    })

    it('costs one statement for the limits, and a token at most three round trips', async () => {
      const user = await endUser(app)
      const session = await chat(user, app.agentId)
      const sent = async (work: () => Promise<unknown>) => {
        // The first call fills the caches.
        await work()
        app.statements.length = 0
        await work()
        return app.statements
          .filter(text => !/pg_notify|heartbeat|last_used_at|browser_used_at|muster_/.test(text))
          .map(text => text.trim().split(/\s+/).slice(0, 4).join(' '))
      }
      const read = await sent(() => user.get(`/sessions/${session.id}`))
      assert.equal(read.length, 2, JSON.stringify(read))
      const issued = await sent(() => app.key.post(`/actors/${user.actorId}/tokens`, { agent_ids: [app.agentId] }))
      assert.ok(issued.length <= 3, JSON.stringify(issued))
    })

    it('audit entries name the key, the actor and the token', async () => {
      const user = await endUser(app)
      const session = await chat(user, app.agentId)
      const { data } = expectStatus(
        await app.admin.get(`/audit-log?project_id=${app.projectId}&action=sessions:CreateSession&limit=1`),
        200,
      )
      assert.equal(data[0].principal_type, 'api_key')
      assert.deepEqual(data[0].detail, { actor_id: user.actorId, jti: user.jti })
      assert.equal(data[0].resource_public_id, session.id)
    })
  })
})
