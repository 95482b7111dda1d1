import { strict as assert } from 'node:assert'
import { startAgentApp } from '../execution/fixtures.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const allow = (action: string[], resource = '*') => ({ statement: [{ effect: 'Allow', action, resource: [resource] }] })

describe('conversations', () => {
  const app = forSuite(() =>
    startAgentApp({ workers: [], actions: ['actors:*', 'conversations:*', 'events:ListEvents'] }),
  )
  const ids = (reply: { body: any }) => reply.body.data.map((item: { id: string }) => item.id)
  const actor = async (name = 'Alice') => (await app.key.post('/actors', { name })).body.id as string
  const make = (body: object = {}) => createdBy(app.key, '/conversations', body)
  const say = (id: string, message: string, more: object = {}) =>
    app.key.post(`/conversations/${id}/messages`, { message, role: 'user', ...more })
  const texts = async (id: string, query = '') =>
    (await app.key.get(`/conversations/${id}/messages${query}`)).body.data.map((each: any) => each.content)
  const events = async (id: string) =>
    (await storedEvents(app.pool, { resource: id })).map(({ name, data }) => ({ name, data }))

  describe('the record', () => {
    it('is made, read, changed and deleted, each with its event', async () => {
      const owner = await actor()
      const made = await make({ name: ' Support ', actor_id: owner, tags: { tier: 'gold' } })
      const { id, created_at, updated_at, ...rest } = made
      assert.match(id, /^conv_[0-9a-z]{26}$/)
      assert.equal(created_at, updated_at)
      assert.deepEqual(rest, {
        project_id: app.projectId,
        name: 'Support',
        status: 'open',
        actor_id: owner,
        session_id: null,
        tags: { tier: 'gold' },
        message_count: 0,
        summary_error: null,
      })
      assert.deepEqual((await app.key.get(`/conversations/${id}`)).body, made)
      const changed = await app.key.patch(`/conversations/${id}`, { name: null, status: 'closed', tags: { a: 'b' } })
      assert.deepEqual(
        [changed.status, changed.body.name, changed.body.status, changed.body.tags],
        [200, null, 'closed', { a: 'b' }],
      )
      assert.equal((await app.key.delete(`/conversations/${id}`)).status, 204)
      assert.equal((await app.key.get(`/conversations/${id}`)).status, 404)
      const told = await events(id)
      assert.deepEqual(
        told.map(event => event.name),
        ['conversations.created', 'conversations.updated', 'conversations.deleted'],
      )
      assert.deepEqual([told[0].data, told[1].data, told[2].data], [made, changed.body, changed.body])
    })

    it('is refused with invalid fields', async () => {
      const { id } = await make()
      const missing = await app.key.post('/conversations', { actor_id: 'actor_00000000000000000000000000' })
      assert.deepEqual([missing.status, missing.body.error.code], [400, 'ACTOR_NOT_FOUND'])
      const other = await app.project()
      assert.equal((await other.key.post('/conversations', { actor_id: await actor() })).status, 400)
      for (const body of [{ status: 'expired' }, { session_id: 'sess_1' }, { name: '' }, { tags: { a: 1 } }])
        assert.equal((await app.key.post('/conversations', body)).status, 400, JSON.stringify(body))
      for (const body of [{ actor_id: null }, { status: null }, { nonsense: 1 }])
        assert.equal((await app.key.patch(`/conversations/${id}`, body)).status, 400, JSON.stringify(body))
      assert.equal((await other.key.get(`/conversations/${id}`)).status, 404)
      assert.equal((await other.key.get(`/conversations/${id}/messages`)).status, 404)
    })

    it('is unchanged by an empty patch', async () => {
      const record = (await make({ name: 'same' })) as { id: string }
      const changed = await app.key.patch(`/conversations/${record.id}`, {})
      assert.deepEqual([changed.status, changed.body], [200, record])
      const events = await app.key.get(`/events?resource_id=${record.id}`)
      assert.deepEqual(
        events.body.data.map(({ event }: { event: string }) => event),
        ['conversations.created'],
      )
    })

    it('is listed by author, owner, status, name and tags', async () => {
      const { key } = await app.project()
      const create = async (body: object) => (await key.post('/conversations', body)).body.id as string
      const owner = (await key.post('/actors', { name: 'owner' })).body.id
      const author = (await key.post('/actors', { name: 'author' })).body.id
      const one = await create({ name: 'Alpha', actor_id: owner })
      const two = await create({ name: 'Beta', status: 'closed', tags: { k: '' } })
      for (const actor_id of [author, author])
        await key.post(`/conversations/${two}/messages`, { message: 'hi', role: 'user', actor_id })
      const list = async (query: string) => ids(await key.get(`/conversations?${query}`))
      assert.deepEqual(await list(''), [two, one])
      assert.deepEqual(await list(`actor_id=${author}`), [two])
      assert.deepEqual(await list(`actor_id=${owner}`), [])
      assert.deepEqual(await list(`owner_actor_id=${owner}`), [one])
      assert.deepEqual(await list('status=closed'), [two])
      assert.deepEqual(await list('status=closed&status=open'), [two, one])
      assert.deepEqual(await list('name=ALPH'), [one])
      assert.deepEqual(await list('tags[k]='), [two])
      assert.equal((await key.get('/conversations?status=expired')).status, 400)
    })

    it('has tag routes, which policies apply to', async () => {
      const { id } = await make({ tags: { team: 'red' } })
      assert.deepEqual((await app.key.patch(`/conversations/${id}/tags`, { tier: 'gold' })).body, {
        team: 'red',
        tier: 'gold',
      })
      const user = await app.user(undefined, [
        {
          statement: [
            {
              effect: 'Allow',
              action: ['conversations:*'],
              resource: ['*'],
              condition: { StringEquals: { 'svc:ResourceTag/team': 'red' } },
            },
          ],
        },
      ])
      assert.equal((await user.get(`/conversations/${id}`)).status, 200)
      await app.key.put(`/conversations/${id}/tags`, { team: 'blue' })
      assert.equal((await user.get(`/conversations/${id}`)).status, 403)
    })
  })

  describe('messages', () => {
    it('a message is stored with its text and counted, and its event has the record', async () => {
      const { id } = await make()
      const author = await actor()
      const stored = await say(id, 'hello', { actor_id: author, metadata: { lang: 'en' } })
      assert.equal(stored.status, 201)
      const { document_id, created_at, ...rest } = stored.body
      assert.match(document_id, /^doc_[0-9a-z]{26}$/)
      assert.ok(created_at)
      assert.deepEqual(rest, {
        conversation_id: id,
        role: 'user',
        origin: 'end_user',
        actor_id: author,
        agent_id: null,
        generation_id: null,
        position: 0,
        content: 'hello',
        parts: null,
        metadata: { lang: 'en' },
        refused: false,
        annotations: null,
      })
      assert.deepEqual((await app.key.get(`/conversations/${id}/messages`)).body.data, [stored.body])
      assert.equal((await app.key.get(`/conversations/${id}`)).body.message_count, 1)
      assert.deepEqual(await events(document_id), [{ name: 'conversation_messages.created', data: stored.body }])
    })

    it('an invalid message is refused', async () => {
      const { id } = await make()
      const system = await say(id, 'x', { role: 'system' })
      assert.deepEqual([system.status, system.body.error.code], [400, 'SYSTEM_MESSAGE_NOT_ALLOWED'])
      const missing = await say(id, 'x', { actor_id: 'actor_00000000000000000000000000' })
      assert.deepEqual([missing.status, missing.body.error.code], [400, 'ACTOR_NOT_FOUND'])
      for (const body of [
        { message: 'x' },
        { role: 'user' },
        { message: '', role: 'user' },
        { message: 'x', role: 'tool' },
        { message: 'x', role: 'user', position: -1 },
        { message: 'x', role: 'user', position: 1.5 },
        { message: { type: 'document', document_id: 'doc_1' }, role: 'user' },
        { message: 'x', document_id: 'doc_1', role: 'user' },
        { message: 'x'.repeat(262_145), role: 'user' },
        { message: 'x', role: 'user', metadata: [] },
        { message: 'x', role: 'user', idempotency_key: '' },
      ]) {
        const refused = await app.key.post(`/conversations/${id}/messages`, body)
        assert.deepEqual([refused.status, refused.body.error.code], [400, 'VALIDATION_FAILED'])
      }
      assert.equal((await app.key.get(`/conversations/${id}`)).body.message_count, 0)
    })

    it('fifty concurrent appends get different positions', async () => {
      const { id } = await make()
      const answers = await Promise.all(Array.from({ length: 50 }, (_, index) => say(id, `m${index}`)))
      assert.deepEqual(new Set(answers.map(each => each.status)), new Set([201]))
      assert.deepEqual(
        answers.map(each => each.body.position).sort((a, b) => a - b),
        Array.from({ length: 50 }, (_, index) => index),
      )
      assert.equal((await app.key.get(`/conversations/${id}`)).body.message_count, 50)
    })

    it('an insertion moves the later ones up, a deletion leaves a gap, a position beyond the end is the end', async () => {
      const { id } = await make()
      const [a, b, c] = [await say(id, 'a'), await say(id, 'b'), await say(id, 'c')]
      assert.equal((await say(id, 'first', { position: 0 })).body.position, 0)
      assert.deepEqual(await texts(id), ['first', 'a', 'b', 'c'])
      assert.equal((await app.key.delete(`/conversations/${id}/messages/${b.body.document_id}`)).status, 204)
      const left = (await app.key.get(`/conversations/${id}/messages`)).body.data
      assert.deepEqual(
        left.map((each: any) => each.position),
        [0, 1, 3],
      )
      assert.equal((await say(id, 'gap', { position: 2 })).body.position, 2)
      assert.deepEqual(await texts(id), ['first', 'a', 'gap', 'c'])
      assert.equal((await say(id, 'far', { position: 100 })).body.position, 4)
      assert.equal((await say(id, 'second', { position: 1 })).body.position, 1)
      assert.deepEqual(await texts(id), ['first', 'second', 'a', 'gap', 'c', 'far'])
      const { document_id } = b.body
      const [, deleted] = await events(document_id)
      assert.deepEqual([deleted.name, deleted.data.document_id], ['conversation_messages.deleted', document_id])
      assert.equal((await app.key.delete(`/conversations/${id}/messages/${document_id}`)).status, 404)
      assert.ok(a.body.document_id !== c.body.document_id)
    })

    it('concurrent insertions at one place keep every message once', async () => {
      const { id } = await make()
      await say(id, 'end')
      await Promise.all(Array.from({ length: 20 }, (_, index) => say(id, `m${index}`, { position: 0 })))
      const stored = (await app.key.get(`/conversations/${id}/messages?limit=100`)).body.data
      assert.deepEqual(
        stored.map((each: any) => each.position),
        Array.from({ length: 21 }, (_, index) => index),
      )
      assert.equal(stored[20].content, 'end')
      assert.equal(new Set(stored.map((each: any) => each.content)).size, 21)
    })

    it('an idempotency key stores one message, also for concurrent requests', async () => {
      const { id } = await make()
      const first = await say(id, 'once', { idempotency_key: 'k' })
      const again = await say(id, 'twice', { idempotency_key: 'k', metadata: { a: 1 } })
      assert.deepEqual([first.status, again.status], [201, 200])
      assert.deepEqual(again.body, first.body)
      const elsewise = { idempotency_key: 'k', actor_id: 'actor_00000000000000000000000000' }
      assert.deepEqual((await say(id, 'twice', elsewise)).body, first.body)
      assert.equal((await events(first.body.document_id)).length, 1)
      const both = await Promise.all([
        say(id, 'x', { idempotency_key: 'race' }),
        say(id, 'y', { idempotency_key: 'race' }),
      ])
      assert.deepEqual(both.map(each => each.status).sort(), [200, 201])
      assert.equal(both[0].body.document_id, both[1].body.document_id)
      assert.equal((await texts(id)).length, 2)
      const { id: elsewhere } = await make()
      assert.equal((await say(elsewhere, 'x', { idempotency_key: 'k' })).status, 201)
    })

    it('are listed in order, by role, author and position, and page by page', async () => {
      const { id } = await make()
      const author = await actor()
      for (let index = 0; index < 5; index++)
        await say(id, `m${index}`, { role: index % 2 ? 'assistant' : 'user', actor_id: index === 2 ? author : null })
      assert.deepEqual(await texts(id, '?role=assistant'), ['m1', 'm3'])
      assert.deepEqual(await texts(id, '?role=assistant&role=user&limit=2&offset=1'), ['m1', 'm2'])
      assert.deepEqual(await texts(id, `?actor_id=${author}`), ['m2'])
      assert.deepEqual(await texts(id, '?after_position=1&before_position=4'), ['m2', 'm3'])
      assert.equal((await app.key.get(`/conversations/${id}/messages?after_position=x`)).status, 400)
      assert.equal((await app.key.get(`/conversations/${id}/messages?role=system`)).status, 400)
      assert.equal((await app.key.get(`/conversations/${id}/messages?limit=2`)).body.total, 5)
    })

    it('metadata of a message can be replaced, its content cannot', async () => {
      const { id } = await make()
      const { document_id } = (await say(id, 'x', { metadata: { a: 1 } })).body
      const path = `/conversations/${id}/messages/${document_id}`
      assert.deepEqual((await app.key.patch(path, { metadata: { b: [1] } })).body.metadata, { b: [1] })
      assert.equal((await app.key.patch(path, { metadata: null })).body.metadata, null)
      assert.equal((await app.key.patch(path, { content: 'y' })).status, 400)
      assert.deepEqual((await app.key.patch(path, { metadata: { c: 1 } })).body, (await app.key.patch(path, {})).body)
      assert.equal(
        (await app.key.patch(`/conversations/${id}/messages/doc_1`, { metadata: null })).body.error.code,
        'RESOURCE_NOT_FOUND',
      )
    })

    it('are exported line by line in order', async () => {
      const { id } = await make()
      assert.equal((await app.key.get(`/conversations/${id}/export`)).body, null)
      for (const text of ['a', 'b\nb', 'c']) await say(id, text)
      const exported = await app.key.get(`/conversations/${id}/export`)
      assert.match(exported.headers.get('content-type') as string, /ndjson/)
      const lines = String(exported.body)
        .trimEnd()
        .split('\n')
        .map(line => JSON.parse(line))
      assert.deepEqual(lines, (await app.key.get(`/conversations/${id}/messages`)).body.data)
    })

    it('leave no text when they or their conversation are deleted', async () => {
      const { id } = await make()
      const stored = [await say(id, 'a'), await say(id, 'b')].map(each => each.body.document_id)
      const kept = async () =>
        (await app.rows('select document_id from document_texts where document_id = any($1)', [stored])).length
      await app.key.delete(`/conversations/${id}/messages/${stored[0]}`)
      assert.equal(await kept(), 1)
      assert.equal((await app.key.get(`/conversations/${id}`)).body.message_count, 1)
      await app.key.delete(`/conversations/${id}`)
      assert.equal(await kept(), 0)
    })

    it('share a text until the last conversation that uses it is deleted, also concurrently', async () => {
      for (let round = 0; round < 10; round++) {
        const one = await make()
        const two = await make()
        const { document_id } = (await say(one.id, 'shared')).body
        // What a fork does.
        await app.rows(
          `insert into conversation_messages (conversation_id, document_id, position, role)
           values ($1, $2, 0, 'user')`,
          [two.id, document_id],
        )
        const remaining = () => app.rows('select 1 from document_texts where document_id = $1', [document_id])
        if (round === 0) {
          await app.key.delete(`/conversations/${one.id}`)
          assert.equal((await remaining()).length, 1)
          assert.deepEqual(await texts(two.id), ['shared'])
          await app.key.delete(`/conversations/${two.id}`)
        } else {
          const both = await Promise.all([one, two].map(({ id }) => app.key.delete(`/conversations/${id}`)))
          assert.deepEqual(
            both.map(each => each.status),
            [204, 204],
          )
        }
        assert.equal((await remaining()).length, 0)
      }
    })

    it('need the permission to change the conversation', async () => {
      const { id } = await make()
      const reader = await app.user(undefined, [allow(['conversations:GetConversation'])])
      assert.equal((await reader.get(`/conversations/${id}/messages`)).status, 200)
      assert.equal((await reader.post(`/conversations/${id}/messages`, { message: 'x', role: 'user' })).status, 403)
      assert.equal((await reader.post(`/conversations/${id}/generate`, { agent_id: app.agentId })).status, 403)
      assert.equal((await reader.delete(`/conversations/${id}`)).status, 403)
    })
  })
})
