import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { refused as expectRefusal } from '../execution/tool-target.ts'
import { type Client, client, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { at, createStore, entriesOf, eventsOf, memoriesOf, remote, startAngles, state } from './support.ts'

describe('memories of end users', () => {
  const server = forSuite(startAngles)
  const app = forSuite(() => startApp({ env: remote(server) }))
  const project = forSuite(() => app.projectWith(['memories:*', 'actors:*', 'knowledge:*']))
  const key = forSuite(() => project.key)
  let store: string
  beforeEach(async () => {
    store = await createStore(key)
  })

  const actor = async (more: object = {}): Promise<string> =>
    (await key.post('/actors', { name: 'somebody', ...more })).body.id
  const found = async (query: string, more: object = {}): Promise<string[]> =>
    (await createdBy(key, '/knowledge/search', { query, memory_store_ids: [store], ...more }, 200)).results
      .map(({ memory_id }: any) => memory_id)
      .sort()

  it('are marked by who states them, and stay so', async () => {
    const ann = await actor()
    const entry = await state(key, store, 'Ann likes tea', { actor_id: ann })
    const made = await key.post('/memories', { memory_store_id: store, content: 'Ann likes rain', actor_id: ann })
    const nobodys = await state(key, store, 'Tea is hot')
    assert.deepEqual([entry.actor_id, made.body.actor_id, nobodys.actor_id], [ann, ann, null])
    expectRefusal(await key.patch(`/memories/${made.body.id}`, { actor_id: null }), 400, 'VALIDATION_FAILED')
    const unknown = { memory_store_id: store, content: 'x' }
    for (const path of ['/memory-entries', '/memories']) {
      expectRefusal(await key.post(path, { ...unknown, actor_id: 'actor_nobody' }), 400, 'ACTOR_NOT_FOUND')
      const elsewhere = await app.projectWith(['actors:*'])
      const other = (await elsewhere.key.post('/actors', { name: 'x' })).body.id
      expectRefusal(await key.post(path, { ...unknown, actor_id: other }), 400, 'ACTOR_NOT_FOUND')
    }
    const listed = async (query: string) => [
      (await memoriesOf(key, store, query)).map(({ content }) => content).sort(),
      (await entriesOf(key, store, query)).map(({ content }) => content).sort(),
    ]
    const anns = ['Ann likes rain', 'Ann likes tea']
    assert.deepEqual(await listed(`&actor_id=${ann}`), [anns, anns])
    assert.deepEqual(await listed('&actor_id='), [['Tea is hot'], ['Tea is hot']])
    assert.equal((await memoriesOf(key, store)).length, 3)
  })

  it('are compared only with memories of their end user', async () => {
    const [ann, bob] = [await actor(), await actor()]
    const vegan = 'I am vegan'
    const both = await Promise.all([ann, bob].map(actor_id => state(key, store, vegan, { actor_id })))
    assert.deepEqual(
      both.map(({ action }) => action),
      ['created', 'created'],
    )
    assert.equal((await state(key, store, vegan)).action, 'created')
    assert.equal((await state(key, store, vegan, { actor_id: bob })).action, 'skipped')
    const first = await state(key, store, at(0, 'tea'), { actor_id: ann })
    assert.equal((await state(key, store, at(1, 'tea'), { actor_id: bob })).action, 'created')
    assert.equal((await state(key, store, at(1, 'tea'))).action, 'created')
    assert.deepEqual(
      [await state(key, store, at(2, 'tea'), { actor_id: ann })].map(({ action, memory_id }) => [action, memory_id]),
      [['skipped', first.memory_id]],
    )
    const replaced = await state(key, store, at(24, 'tea'), { actor_id: ann })
    assert.deepEqual([replaced.action, replaced.superseded_memory_id], ['superseded', first.memory_id])
    const named = { memory_store_id: store, content: 'another', supersedes: replaced.memory_id }
    for (const actor_id of [bob, null]) {
      const refusal = expectRefusal(await key.post('/memory-entries', { ...named, actor_id }), 400, 'VALIDATION_FAILED')
      assert.equal(refusal.meta.problems[0].path, 'supersedes')
    }
    assert.equal((await key.post('/memory-entries', { ...named, actor_id: ann })).body.action, 'superseded')
  })

  it('state once a fact that arrives many times concurrently, for each end user', async () => {
    const actors = await Promise.all([1, 2, 3, 4].map(() => actor()))
    const claims = Array.from({ length: 24 }, (_, n) => actors[n % actors.length])
    const entries = await Promise.all(claims.map(actor_id => state(key, store, 'I live by the sea', { actor_id })))
    for (const actor_id of actors) {
      const mine = entries.filter(entry => entry.actor_id === actor_id).map(({ action }) => action)
      assert.deepEqual(mine.sort(), ['created', ...Array(5).fill('skipped')])
    }
    assert.equal((await key.get(`/memory-stores/${store}`)).body.memory_count, 4)
  })

  it('are searched by end user with actor_id, by meaning and by words, and by all without', async () => {
    const [ann, bob] = [await actor(), await actor()]
    const of = async (content: string, actor_id: string | null) =>
      (await state(key, store, content, { actor_id })).memory_id as string
    const anns = await of(at(0, 'holidays'), ann)
    const bobs = await of(at(0, 'holidays'), bob)
    const nobodys = await of(at(90, 'holidays'), null)
    assert.deepEqual(await found(at(0, 'holidays'), { actor_id: ann }), [anns, nobodys].sort())
    assert.deepEqual(await found(at(0, 'holidays'), { actor_id: null }), [nobodys])
    assert.deepEqual(await found(at(0, 'holidays')), [anns, bobs, nobodys].sort())
    const { behave } = server
    server.behave = () => ({ status: 500 })
    try {
      assert.deepEqual(await found('holidays', { actor_id: ann }), [anns, nobodys].sort())
      assert.deepEqual(await found('holidays', { actor_id: null }), [nobodys])
    } finally {
      server.behave = behave
    }
  })

  it('are found exactly, however many nearer facts others have', async () => {
    const wide = await createStore(key, { duplicate_threshold: 1, supersede_threshold: 0.99999 })
    const actors = await Promise.all(Array.from({ length: 8 }, () => actor()))
    // Facts of an end user differ by two degrees; each end user starts further from the query than the previous one.
    const degrees = (index: number, fact: number) => index * 5 + 0.5 * index + fact * 2
    await Promise.all(
      actors.map(async (actor_id, index) => {
        for (let fact = 0; fact < 50; fact++) {
          const { action } = await state(key, wide, at(degrees(index, fact), 'sights'), { actor_id })
          assert.equal(action, 'created')
        }
      }),
    )
    for (const [index, actor_id] of actors.entries()) {
      const body = { query: at(0, 'sights'), memory_store_ids: [wide], actor_id, min_score: 0, limit: 50 }
      const { results } = (await key.post('/knowledge/search', body)).body
      assert.ok(results.every((result: any) => result.actor_id === actor_id))
      const nearest = results
        .filter(({ signals }: any) => signals.vector <= 5)
        .sort((left: any, right: any) => left.signals.vector - right.signals.vector)
        .map(({ content }: any) => content)
      assert.deepEqual(
        nearest,
        [0, 1, 2, 3, 4].map(fact => at(degrees(index, fact), 'sights')),
      )
    }
  })

  it('are limited in each store, and one more retires the oldest', async () => {
    const limited = await createStore(key, { actor_memory_limit: 2 })
    const [ann, bob] = [await actor(), await actor()]
    const first = await state(key, limited, 'one thing', { actor_id: ann })
    for (const content of ['another matter', 'something else']) await state(key, limited, content, { actor_id: ann })
    await state(key, limited, 'one thing', { actor_id: bob })
    for (const n of [1, 2, 3, 4]) await state(key, limited, `of nobody ${n}`)
    const held = async (actor_id: string) =>
      (await memoriesOf(key, limited, `&actor_id=${actor_id}`)).map(({ content }) => content)
    assert.deepEqual(await held(ann), ['something else', 'another matter'])
    assert.deepEqual(await held(bob), ['one thing'])
    assert.equal((await held('')).length, 4)
    assert.deepEqual(await eventsOf(app, first.memory_id), ['memories.created', 'memories.retracted'])
    assert.equal((await key.get(`/memory-stores/${limited}`)).body.memory_count, 7)
    assert.equal((await key.get(`/memories/${first.memory_id}`)).body.superseded_by_memory_id, null)
    // A replaced memory frees capacity for its successor.
    const [, older] = await memoriesOf(key, limited, `&actor_id=${ann}`)
    await state(key, limited, 'a third', { actor_id: ann, supersedes: older.id })
    assert.deepEqual(await held(ann), ['a third', 'something else'])
    for (const actor_memory_limit of [0, 1.5, -1])
      expectRefusal(await key.post('/memory-stores', { name: 'x', actor_memory_limit }), 400, 'VALIDATION_FAILED')
  })

  it('are assigned to an end user, all or none', async () => {
    const [ann, bob] = [await actor(), await actor()]
    const ids: string[] = []
    for (const content of ['first fact', 'second fact']) ids.push((await state(key, store, content)).memory_id)
    const assign = (memory_ids: string[], actor_id: string, by: Client = key) =>
      by.post(`/memory-stores/${store}/assign`, { memory_ids, actor_id })
    expectRefusal(await assign([...ids, 'mem_unknown'], ann), 404, 'RESOURCE_NOT_FOUND')
    const foreign = (await state(key, await createStore(key), 'third fact')).memory_id
    expectRefusal(await assign([...ids, foreign], ann), 404, 'RESOURCE_NOT_FOUND')
    expectRefusal(await assign(ids, 'actor_nobody'), 400, 'ACTOR_NOT_FOUND')
    const statement = [
      { effect: 'Allow', action: ['memories:Create*', 'memories:Get*', 'memories:List*'], resource: ['*'] },
    ]
    const policy = await app.admin.post('/policies', { document: { statement } })
    const made = { project_id: project.id, policy_ids: [policy.body.id] }
    const writer = client(app.url, (await app.admin.post('/project-keys', made)).body.secret)
    expectRefusal(await assign(ids, ann, writer), 403, 'FORBIDDEN')
    assert.equal((await memoriesOf(key, store, '&actor_id=')).length, 2)
    assert.deepEqual((await assign([...ids, ids[0]], ann)).body, { assigned: 2 })
    assert.deepEqual((await assign(ids, ann)).body, { assigned: 0 })
    assert.equal((await entriesOf(key, store, '&actor_id=')).length, 0)
    assert.equal((await entriesOf(key, store, `&actor_id=${ann}`)).length, 2)
    const refusal = expectRefusal(await assign(ids, bob), 400, 'VALIDATION_FAILED')
    assert.equal(refusal.meta.problems[0].path, 'memory_ids')
    assert.deepEqual(await found('fact', { actor_id: bob }), [])
    assert.deepEqual(await found('fact', { actor_id: ann }), [...ids].sort())
    assert.deepEqual(await eventsOf(app, ids[0]), ['memories.created', 'memories.updated'])
    // Without an owner it would be a duplicate.
    assert.equal((await state(key, store, 'first fact')).action, 'created')
    assert.equal((await key.delete(`/actors/${ann}`)).status, 204)
    assert.deepEqual(
      (await entriesOf(key, store)).map(({ content, actor_id }) => [content, actor_id]),
      [['first fact', null]],
    )
  })

  it('move with an end user who is merged, and are deleted with one', async () => {
    const [ann, bob] = [await actor(), await actor()]
    const kept = await state(key, store, 'Tea is hot')
    const anns = await state(key, store, 'Ann likes tea', { actor_id: ann })
    await state(key, store, 'Ann likes tea', { actor_id: ann })
    await key.post(`/memories/${(await state(key, store, 'Ann is young', { actor_id: ann })).memory_id}/retract`)
    assert.equal((await key.post(`/actors/${ann}/merge`, { into_actor_id: bob })).status, 200)
    assert.deepEqual(await found('tea', { actor_id: bob }), [anns.memory_id, kept.memory_id].sort())
    assert.equal((await entriesOf(key, store, `&actor_id=${bob}`)).length, 3)
    assert.equal((await key.get(`/memories/${anns.memory_id}`)).body.actor_id, bob)
    assert.equal((await key.delete(`/actors/${bob}`)).status, 204)
    const left = await app.pool.one(sql.unsafe`
      select (select count(*)::int from memories where actor_id in (${ann}, ${bob})) as memories,
        (select count(*)::int from memory_entries where actor_id in (${ann}, ${bob})) as entries,
        (select count(*)::int from knowledge_vectors where owner_id in (${ann}, ${bob})) as vectors`)
    assert.deepEqual(left, { memories: 0, entries: 0, vectors: 0 })
    assert.deepEqual(await found('tea'), [kept.memory_id])
    assert.deepEqual((await eventsOf(app, anns.memory_id)).at(-1), 'memories.deleted')
    const audit = (await app.admin.get('/audit-log?action=actors:DeleteActor&limit=1')).body.data[0]
    assert.deepEqual(audit.detail.counts, { memories: 2, memory_entries: 3 })
    assert.equal((await key.get(`/memory-stores/${store}`)).body.memory_count, 1)
  })
})
