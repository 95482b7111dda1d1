import assert from 'node:assert/strict'
import { createdBy } from '../support/replies.ts'
import { placesOf } from '../support/search-everywhere.ts'
import { forSuite } from '../support/suite.ts'
import { type EndUserClient, endUser } from './end-user-support.ts'
import { expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

const ACTIONS = ['actors:*', 'agents:*', 'memories:*', 'generations:*', 'sessions:*']

describe('facts that an end user sees about itself', function () {
  this.timeout(60_000)
  const app = forSuite(() => startSessionApp({ actions: ACTIONS }))

  const store = async (fields: object = {}): Promise<string> =>
    expectStatus(await app.key.post('/memory-stores', { name: 'Guests', ...fields }), 201).id
  const agent = (knowledge_config: object | null) => app.agent({ knowledge_config })
  const fact = async (memory_store_id: string, content: string, actor_id: string | null, more: object = {}) =>
    (await createdBy(app.key, '/memories', { memory_store_id, content, actor_id, ...more })).id as string
  const token = (agent_ids: string[], actorId?: string, scopes = ['memories']) =>
    endUser(app, { agent_ids, scopes }, actorId)
  const contents = async (user: EndUserClient): Promise<string[]> =>
    expectStatus(await user.get('/memories'), 200).data.map(({ content }: any) => content)

  it('are its current ones in the stores that the agents of the token read, without anything else', async () => {
    const [read, written, tagged] = [await store(), await store(), await store({ tags: { place: 'sea' } })]
    const reading = await agent({ memory_store_ids: [read], write_memory_store_id: written })
    const ann = await token([reading])
    const bob = await token([reading])
    const first = await fact(read, 'Ann likes tea', ann.actorId, {
      tags: { secret: 'tag' },
      metadata: { secret: 'data' },
    })
    await fact(read, 'Bob likes rain', bob.actorId)
    await fact(read, 'Tea is hot', null)
    await fact(written, 'Ann is young', ann.actorId)
    await fact(tagged, 'Ann swims', ann.actorId)
    const over = await fact(read, 'Ann likes milk', ann.actorId)
    expectStatus(await app.key.post(`/memories/${over}/retract`), 200)

    const page = expectStatus(await ann.get('/memories'), 200)
    assert.deepEqual([page.total, page.data.length], [1, 1])
    assert.deepEqual({ ...page.data[0], created_at: null }, { id: first, content: 'Ann likes tea', created_at: null })
    assert.deepEqual(await contents(bob), ['Bob likes rain'])
    assert.deepEqual(await contents(await token([app.agentId], ann.actorId)), [])
    const both = await token([reading, await agent({ memory_store_ids: [tagged, written] })], ann.actorId)
    assert.deepEqual(await contents(both), ['Ann swims', 'Ann is young', 'Ann likes tea'])
    // Tags alone select from all stores.
    const everywhere = await token([await agent({ tags: { place: 'sea' } })], ann.actorId)
    assert.equal((await contents(everywhere)).length, 3)
    // A released version counts, not the draft.
    expectStatus(await app.admin.patch(`/agents/${reading}`, { knowledge_config: null }), 200)
    assert.deepEqual(await contents(ann), [])
    const release = { stable_version: 1, canary_version: 2, canary_percent: 10 }
    expectStatus(await app.admin.put(`/agents/${reading}/release`, release), 200)
    assert.deepEqual(await contents(ann), ['Ann likes tea'])
  })

  it('are deleted by it with their copies, its own alone', async () => {
    const id = await store()
    const reading = await agent({ memory_store_ids: [id] })
    const [ann, bob] = [await token([reading]), await token([reading])]
    const own = await fact(id, 'marmalade-of-ann', ann.actorId)
    // Skipped as a duplicate, in the ledger alone.
    expectStatus(
      await app.key.post('/memories', { memory_store_id: id, content: 'marmalade-of-ann', actor_id: ann.actorId }),
      200,
    )
    const unmarked = await fact(id, 'Tea is hot', null)
    const bobs = await fact(id, 'Bob likes rain', bob.actorId)
    const other = await fact(await store(), 'Ann is young', ann.actorId)
    for (const memory of [unmarked, bobs, other, 'mem_00000000000000000000000000'])
      expectRefusal(await ann.delete(`/memories/${memory}`), 404, 'RESOURCE_NOT_FOUND')
    assert.equal((await ann.delete(`/memories/${own}`)).status, 204)
    expectRefusal(await ann.delete(`/memories/${own}`), 404, 'RESOURCE_NOT_FOUND')
    assert.deepEqual(await contents(ann), [])
    assert.deepEqual(await placesOf(app, 'marmalade-of-ann'), [])
    assert.equal(expectStatus(await app.key.get(`/memories?memory_store_id=${id}`), 200).total, 2)
    const names = (await app.events('memories.deleted')).filter(({ resource_id }) => resource_id === own)
    assert.deepEqual(
      names.map(({ data }) => data.content),
      [null],
    )
  })

  it('are opened by the scope alone, and by it nothing else of memory', async () => {
    const id = await store()
    const reading = await agent({ memory_store_ids: [id] })
    const ann = await token([reading])
    const own = await fact(id, 'Ann likes tea', ann.actorId)
    const chatting = await token([reading], ann.actorId, ['chat'])
    expectRefusal(await chatting.get('/memories'), 403, 'FORBIDDEN')
    expectRefusal(await chatting.delete(`/memories/${own}`), 403, 'FORBIDDEN')
    for (const reply of [
      await ann.get(`/memories?memory_store_id=${id}`),
      await ann.get('/memories?include_invalidated=true'),
      await ann.get(`/memories/${own}`),
      await ann.patch(`/memories/${own}`, { content: 'x' }),
      await ann.post('/memories', { memory_store_id: id, content: 'x' }),
      await ann.get(`/memory-entries?memory_store_id=${id}`),
      await ann.post(`/memory-stores/${id}/assign`, { memory_ids: [own], actor_id: ann.actorId }),
    ])
      expectRefusal(reply, 403, 'FORBIDDEN')
    const problem = expectRefusal(await app.key.get('/memories'), 400, 'VALIDATION_FAILED')
    assert.equal(problem.meta.problems[0].path, 'memory_store_id')
  })

  it('are never more visible than to the key that issued the token', async () => {
    const [open, closed] = [await store(), await store()]
    const reading = await agent({ memory_store_ids: [open, closed] })
    const statement = [
      { effect: 'Allow', action: ACTIONS, resource: [`srn:${app.projectId}:*:*`] },
      { effect: 'Deny', action: ['memories:*'], resource: [`srn:${app.projectId}:memory_store:${closed}`] },
    ]
    const policy = expectStatus(await app.admin.post('/policies', { document: { statement } }), 201)
    const made = { project_id: app.projectId, policy_ids: [policy.id] }
    const key = app.as(expectStatus(await app.admin.post('/project-keys', made), 201).secret)
    const ann = await endUser({ ...app, key }, { agent_ids: [reading], scopes: ['memories'] })
    await fact(open, 'Ann likes tea', ann.actorId)
    const hidden = await fact(closed, 'Ann likes milk', ann.actorId)
    assert.deepEqual(await contents(ann), ['Ann likes tea'])
    expectRefusal(await ann.delete(`/memories/${hidden}`), 403, 'FORBIDDEN')
  })
})
