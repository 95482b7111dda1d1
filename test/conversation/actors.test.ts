import { strict as assert } from 'node:assert'
import { startAgentApp } from '../execution/fixtures.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const allow = (action: string[], resource: string) => ({
  statement: [{ effect: 'Allow', action, resource: [resource] }],
})

describe('actors', () => {
  const app = forSuite(() => startAgentApp({ workers: [], actions: ['actors:*', 'agents:*', 'conversations:*'] }))
  const unknown = 'actor_00000000000000000000000000'
  const ids = (reply: { body: any }) => reply.body.data.map((item: { id: string }) => item.id)
  const events = (id: string) => storedEvents(app.pool, { resource: id })
  const make = (body: object = {}) => createdBy(app.key, '/actors', { name: 'Alice', ...body })
  const conversation = async () => (await app.key.post('/conversations', {})).body.id as string

  describe('create', () => {
    it('answers the record, emits an event with it and leaves an audit entry', async () => {
      const made = await make({ external_id: 'u-1', instructions: 'Be brief', agent_id: app.agentId })
      assert.match(made.id, /^actor_[0-9a-z]{26}$/)
      const { id, created_at, updated_at, ...rest } = made
      assert.equal(created_at, updated_at)
      assert.deepEqual(rest, {
        project_id: app.projectId,
        name: 'Alice',
        external_id: 'u-1',
        instructions: 'Be brief',
        agent_id: app.agentId,
        chat_id: null,
        metadata: null,
        tags: {},
      })
      assert.deepEqual((await app.key.get(`/actors/${id}`)).body, made)
      const [event] = await events(id)
      assert.equal(event.name, 'actors.created')
      assert.deepEqual(event.data, made)
      const [entry] = await app.rows('select * from audit_entries where resource_public_id = $1', [id])
      assert.equal(entry.action, 'actors:CreateActor')
    })

    it('refuses invalid actors', async () => {
      for (const body of [
        {},
        { name: '' },
        { name: '   ' },
        { name: 'x'.repeat(256) },
        { name: 'a', tags: {} },
        { name: 'a', nonsense: 1 },
        { name: 'a', external_id: '' },
        { name: 'a', external_id: 'x'.repeat(256) },
        { name: 'a', instructions: 'x'.repeat(65_537) },
        { name: 'a', metadata: [] },
        { name: 'a', metadata: { a: 'x'.repeat(16_384) } },
        { name: 'a', metadata: { a: { b: { c: { d: { e: { f: { g: { h: {} } } } } } } } } },
      ]) {
        const made = await app.key.post('/actors', body)
        assert.equal(made.status, 400, JSON.stringify(body).slice(0, 80))
        assert.equal(made.body.error.code, 'VALIDATION_FAILED')
      }
      const both = await app.key.post('/actors', { name: 'a', agent_id: app.agentId, chat_id: 'chat_1' })
      assert.deepEqual([both.status, both.body.error.code], [400, 'AGENT_AND_CHAT_EXCLUSIVE'])
      const agent = await app.key.post('/actors', { name: 'a', agent_id: 'agent_00000000000000000000000000' })
      assert.deepEqual([agent.status, agent.body.error.code], [400, 'AGENT_NOT_FOUND'])
      const chat = await app.key.post('/actors', { name: 'a', chat_id: 'chat_1' })
      assert.deepEqual([chat.status, chat.body.error.code], [400, 'CHAT_NOT_FOUND'])
      const other = await app.project()
      const foreign = await other.key.post('/actors', { name: 'a', agent_id: app.agentId })
      assert.deepEqual([foreign.status, foreign.body.error.code], [400, 'AGENT_NOT_FOUND'])
    })

    it('finds the actor that has the external id, unchanged and without an event', async () => {
      const made = await make({ external_id: 'x' })
      const again = await app.key.post('/actors', { name: 'Bob', instructions: 'other', external_id: 'x' })
      assert.equal(again.status, 200)
      assert.deepEqual(again.body, made)
      assert.equal((await events(made.id)).length, 1)
      const other = await app.project()
      assert.equal((await other.key.post('/actors', { name: 'Carol', external_id: 'x' })).status, 201)
      assert.equal((await make({ external_id: 'X' })).external_id, 'X')
    })

    it('makes one actor of twenty concurrent creates with one external id', async () => {
      const answers = await Promise.all(
        Array.from({ length: 20 }, (_, index) => app.key.post('/actors', { name: `n${index}`, external_id: 'race' })),
      )
      const statuses = answers.map(each => each.status).sort()
      assert.deepEqual(statuses, [...Array(19).fill(200), 201])
      assert.equal(new Set(answers.map(each => each.body.id)).size, 1)
    })

    it('answers a repeat under an idempotency key with the first answer', async () => {
      const headers = { 'idempotency-key': 'actor-once' }
      const first = await app.key.post('/actors', { name: 'Once' }, headers)
      const second = await app.key.post('/actors', { name: 'Once' }, headers)
      assert.equal(second.headers.get('idempotency-replayed'), 'true')
      assert.equal(second.body.id, first.body.id)
    })

    it('needs the project of an unscoped caller and keeps a key in its own', async () => {
      assert.equal((await app.admin.post('/actors', { name: 'a' })).status, 400)
      assert.equal((await app.admin.post('/actors', { name: 'a', project_id: app.projectId })).status, 201)
      const other = await app.project()
      const refused = await app.key.post('/actors', { name: 'a', project_id: other.id })
      assert.deepEqual([refused.status, refused.body.error.code], [403, 'API_KEY_PROJECT_SCOPE'])
    })
  })

  describe('read and list', () => {
    it('takes one statement to read one actor', async () => {
      const made = await make()
      await app.key.get(`/actors/${made.id}`)
      const before = app.statements.length
      assert.equal((await app.key.get(`/actors/${made.id}`)).status, 200)
      assert.equal(app.statements.length - before, 1)
    })

    it('takes one statement to list', async () => {
      await make()
      const before = app.statements.length
      assert.equal((await app.key.get('/actors')).status, 200)
      assert.equal(app.statements.length - before, 1)
    })

    it('answers 404 for what does not exist or lies in another project', async () => {
      const made = await make()
      const other = await app.project()
      for (const reply of [
        await app.key.get(`/actors/${unknown}`),
        await app.key.get('/actors/nonsense'),
        await other.key.get(`/actors/${made.id}`),
        await other.key.patch(`/actors/${made.id}`, { name: 'x' }),
        await other.key.delete(`/actors/${made.id}`),
        await app.key.put(`/actors/${unknown}/tags`, {}),
      ]) {
        assert.equal(reply.status, 404)
        assert.equal(reply.body.error.code, 'RESOURCE_NOT_FOUND')
      }
      assert.equal((await app.anonymous.get(`/actors/${made.id}`)).status, 401)
    })

    it('filters by name, external id, link, tags and conversation, all of which must hold', async () => {
      const { key, id: project } = await app.project()
      const create = async (body: object) => (await key.post('/actors', body)).body
      const alice = await create({ name: 'Alice', external_id: 'a' })
      const percent = await create({ name: '100% sure' })
      await key.put(`/actors/${percent.id}/tags`, { tier: 'gold' })
      const list = async (query: string) => ids(await key.get(`/actors?${query}`))
      assert.deepEqual(await list(''), [percent.id, alice.id])
      assert.deepEqual(await list('name=ali'), [alice.id])
      assert.deepEqual(await list('name=%25'), [percent.id])
      assert.deepEqual(await list('name=_'), [])
      assert.deepEqual(await list('external_id=a'), [alice.id])
      assert.deepEqual(await list('external_id=A'), [])
      assert.deepEqual(await list('agent_id=agent_00000000000000000000000000'), [])
      assert.deepEqual(await list('chat_id=chat_x'), [])
      assert.deepEqual(await list('tags[tier]=gold'), [percent.id])
      assert.deepEqual(await list('tags[tier]=gold&name=ali'), [])
      const unknownConversation = await key.get('/actors?conversation_id=conv_00000000000000000000000000')
      assert.deepEqual([unknownConversation.status, unknownConversation.body.total], [200, 0])
      const { id } = (await key.post('/conversations', {})).body
      for (const actor_id of [alice.id, alice.id])
        await key.post(`/conversations/${id}/messages`, { message: 'hi', role: 'user', actor_id })
      const authors = await key.get(`/actors?conversation_id=${id}`)
      assert.deepEqual(ids(authors), [alice.id])
      assert.equal(authors.body.total, 1)
      const paged = await key.get('/actors?limit=1&offset=1')
      assert.deepEqual([ids(paged), paged.body.total], [[alice.id], 2])
      const other = await app.key.get(`/actors?conversation_id=${id}`)
      assert.equal(other.body.total, 0)
      assert.equal((await app.admin.get(`/actors?project_id=${project}`)).body.total, 2)
    })

    it('shows a limited caller only the actors its policies allow', async () => {
      const mine = await make({ name: 'mine' })
      const other = await make({ name: 'other' })
      const user = await app.user(undefined, [
        allow(['actors:GetActor', 'actors:ListActors', 'actors:UpdateActor'], `srn:${app.projectId}:actor:${mine.id}`),
      ])
      assert.deepEqual(ids(await user.get(`/actors?project_id=${app.projectId}`)), [mine.id])
      assert.equal((await user.get(`/actors/${mine.id}`)).status, 200)
      assert.equal((await user.get(`/actors/${other.id}`)).status, 403)
      assert.equal((await user.patch(`/actors/${mine.id}`, { name: 'renamed' })).status, 200)
      assert.equal((await user.delete(`/actors/${mine.id}`)).status, 403)
      assert.equal((await user.post('/actors', { project_id: app.projectId, name: 'x' })).status, 403)
    })
  })

  describe('update', () => {
    it('writes given fields, clears null ones and emits the update', async () => {
      const made = await make({ instructions: 'a', metadata: { plan: 'free' } })
      const changed = await app.key.patch(`/actors/${made.id}`, {
        name: ' Bea ',
        instructions: null,
        external_id: 'bea',
        metadata: { plan: 'paid' },
        tags: { tier: 'gold' },
      })
      assert.equal(changed.status, 200)
      const { updated_at, ...rest } = changed.body
      assert.deepEqual(rest, {
        ...Object.fromEntries(Object.entries(made).filter(([key]) => key !== 'updated_at')),
        name: 'Bea',
        instructions: null,
        external_id: 'bea',
        metadata: { plan: 'paid' },
        tags: { tier: 'gold' },
      })
      assert.ok(updated_at > made.updated_at)
      const [, event] = await events(made.id)
      assert.equal(event.name, 'actors.updated')
      assert.deepEqual(event.data, changed.body)
      assert.deepEqual((await app.key.patch(`/actors/${made.id}`, {})).body, changed.body)
      assert.equal((await events(made.id)).length, 2)
      assert.equal((await app.key.patch(`/actors/${made.id}`, { external_id: null })).status, 400)
      assert.equal((await app.key.patch(`/actors/${made.id}`, { agent_id: '' })).status, 400)
    })

    it('validates the two links on the merged record', async () => {
      const made = await make({ agent_id: app.agentId })
      const refused = await app.key.patch(`/actors/${made.id}`, { chat_id: 'chat_1' })
      assert.deepEqual([refused.status, refused.body.error.code], [400, 'AGENT_AND_CHAT_EXCLUSIVE'])
      const missing = await app.key.patch(`/actors/${made.id}`, { chat_id: 'chat_1', agent_id: null })
      assert.deepEqual([missing.status, missing.body.error.code], [400, 'CHAT_NOT_FOUND'])
      const cleared = await app.key.patch(`/actors/${made.id}`, { agent_id: null })
      assert.deepEqual([cleared.status, cleared.body.agent_id], [200, null])
    })

    it('refuses an external id that is taken', async () => {
      await make({ external_id: 'taken' })
      const made = await make({ external_id: 'free' })
      const refused = await app.key.patch(`/actors/${made.id}`, { external_id: 'taken' })
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'NAME_CONFLICT'])
      assert.deepEqual(refused.body.error.meta, { field: 'external_id' })
      assert.equal((await app.key.patch(`/actors/${made.id}`, { external_id: 'free' })).status, 200)
    })

    it('honours If-Match in an update', async () => {
      const made = await make()
      const etag = (await app.key.get(`/actors/${made.id}`)).headers.get('etag') as string
      assert.equal((await app.key.patch(`/actors/${made.id}`, { name: 'a' }, { 'if-match': etag })).status, 200)
      assert.equal((await app.key.patch(`/actors/${made.id}`, { name: 'b' }, { 'if-match': etag })).status, 412)
    })

    it('replaces, merges and reads tags', async () => {
      const { id } = await make()
      assert.deepEqual((await app.key.put(`/actors/${id}/tags`, { a: '1', b: '2' })).body, { a: '1', b: '2' })
      assert.deepEqual((await app.key.patch(`/actors/${id}/tags`, { b: null, c: '' })).body, { a: '1', c: '' })
      assert.deepEqual((await app.key.get(`/actors/${id}/tags`)).body, { a: '1', c: '' })
      assert.equal((await app.key.put(`/actors/${id}/tags`, { a: 1 })).status, 400)
      assert.deepEqual((await app.key.put(`/actors/${id}/tags`, {})).body, {})
    })

    it('loses no link when its agent is deleted but the link itself', async () => {
      const agent = await app.agent()
      const made = await make({ agent_id: agent })
      assert.equal((await app.key.delete(`/agents/${agent}`)).status, 204)
      const left = await app.key.get(`/actors/${made.id}`)
      assert.deepEqual([left.status, left.body.agent_id], [200, null])
    })
  })

  describe('delete and merge', () => {
    it('is refused while a message names the actor', async () => {
      const { id } = await make()
      const owned = (await app.key.post('/conversations', { actor_id: id })).body
      const message = await app.key.post(`/conversations/${await conversation()}/messages`, {
        message: 'hi',
        role: 'user',
        actor_id: id,
      })
      const refused = await app.key.delete(`/actors/${id}`)
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'ACTOR_HAS_MESSAGES'])
      assert.deepEqual(refused.body.error.meta, { message_count: 1 })
      const { conversation_id, document_id } = message.body
      assert.equal((await app.key.delete(`/conversations/${conversation_id}/messages/${document_id}`)).status, 204)
      assert.equal((await app.key.delete(`/actors/${id}`)).status, 204)
      assert.equal((await app.key.get(`/actors/${id}`)).status, 404)
      assert.equal((await app.key.get(`/conversations/${owned.id}`)).body.actor_id, null)
      assert.deepEqual(
        (await events(id)).map(event => event.name),
        ['actors.created', 'actors.deleted'],
      )
    })

    it('never leaves a message without its author, whatever a delete races with', async () => {
      for (let round = 0; round < 10; round++) {
        const { id } = await make()
        const target = await conversation()
        const [posted, deleted] = await Promise.all([
          app.key.post(`/conversations/${target}/messages`, { message: 'hi', role: 'user', actor_id: id }),
          app.key.delete(`/actors/${id}`),
        ])
        const pair = [posted.status, deleted.status]
        assert.ok(pair.join() === '201,409' || pair.join() === '400,204', pair.join())
      }
    })

    it('gives messages and conversations to the actor it is merged into', async () => {
      const from = await make({ name: 'from' })
      const into = await make({ name: 'into' })
      const owned = (await app.key.post('/conversations', { actor_id: from.id })).body
      await app.key.post(`/conversations/${owned.id}/messages`, { message: 'hi', role: 'user', actor_id: from.id })
      const merge = (id: string, into_actor_id: string) => app.key.post(`/actors/${id}/merge`, { into_actor_id })
      assert.equal((await merge(from.id, from.id)).status, 400)
      const missing = await merge(from.id, unknown)
      assert.deepEqual([missing.status, missing.body.error.code], [400, 'ACTOR_NOT_FOUND'])
      const other = await app.project()
      const foreign = (await other.key.post('/actors', { name: 'foreign' })).body
      assert.equal((await merge(from.id, foreign.id)).status, 400)
      const merged = await merge(from.id, into.id)
      assert.deepEqual([merged.status, merged.body.id], [200, into.id])
      assert.equal((await app.key.get(`/actors/${from.id}`)).status, 404)
      assert.equal((await app.key.get(`/conversations/${owned.id}`)).body.actor_id, into.id)
      assert.equal((await app.key.get(`/conversations/${owned.id}/messages`)).body.data[0].actor_id, into.id)
    })
  })
})
