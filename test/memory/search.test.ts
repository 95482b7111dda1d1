import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type Client, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { createStore, state } from './support.ts'

describe('searching memories', () => {
  const app = forSuite(() => startApp({ env: { EMBEDDING_PROVIDER: 'local' } }))
  let key: Client
  beforeEach(async () => {
    key = (await app.projectWith(['memories:*', 'documents:*', 'knowledge:SearchKnowledge'])).key
  })

  const search = async (body: object) => (await createdBy(key, '/knowledge/search', body, 200)).results as any[]
  const contents = async (body: object) => (await search(body)).map(({ content }) => content)
  const document = async (content: string, more: object = {}) =>
    assert.equal((await key.post('/documents', { content, ...more })).status, 201)

  it('ranks them with documents', async () => {
    const store = await createStore(key, { name: 'Habits' })
    const { memory_id } = await state(key, store, 'Ada drinks green tea in the morning', { tags: { who: 'ada' } })
    await document('Green tea is grown in the hills')
    const found = await search({ query: 'green tea in the morning' })
    assert.deepEqual(
      found.map(({ source_type }) => source_type),
      ['memory', 'document'],
    )
    const { score, similarity_score, signals, created_at, updated_at, ...memory } = found[0]
    assert.deepEqual(memory, {
      source_type: 'memory',
      content: 'Ada drinks green tea in the morning',
      project_id: memory.project_id,
      tags: { who: 'ada' },
      memory_id,
      memory_store_id: store,
      memory_store_name: 'Habits',
      actor_id: null,
    })
    assert.deepEqual(signals, { vector: 1, lexical: 1 })
    assert.ok(score > 0 && similarity_score > 0.5 && created_at && updated_at)
    assert.equal((await search({ query: 'green tea', include_memories: false })).length, 1)
    assert.equal((await search({ query: 'green tea', include_documents: false })).length, 1)
  })

  it('takes memories of the named stores, and documents next to them', async () => {
    const [first, second] = [await createStore(key), await createStore(key)]
    await state(key, first, 'The red house has a garden')
    await state(key, second, 'The red car has a radio')
    await document('A red house')
    const query = 'red'
    assert.deepEqual(await contents({ query, memory_store_ids: first, include_documents: false }), [
      'The red house has a garden',
    ])
    assert.equal((await search({ query, memory_store_ids: [first, second] })).length, 3)
    assert.deepEqual(await contents({ query, memory_store_ids: ['mstore_none'], include_documents: false }), [])
    assert.deepEqual(await contents({ query, memory_store_ids: first, include_memories: false }), ['A red house'])
    assert.equal((await search({ query, document_paths: '/none' })).length, 2, 'a filter of documents leaves memories')
  })

  it('reads stores oldest first without a query', async () => {
    const [first, second] = [await createStore(key), await createStore(key)]
    for (const text of ['a dog barks', 'two cats sleep', 'three birds sing']) await state(key, first, text)
    await state(key, second, 'four fish swim')
    await document('a document')
    const found = await search({ memory_store_ids: [first] })
    assert.deepEqual(
      found.map(({ content }) => content),
      ['a dog barks', 'two cats sleep', 'three birds sing'],
    )
    assert.ok(found.every(row => !('score' in row) && !('similarity_score' in row) && !('signals' in row)))
    assert.equal((await search({ memory_store_ids: [second, first], limit: 2 })).length, 2)
    assert.deepEqual(await contents({ document_paths: ['/nowhere'] }), [])
  })

  it('matches tags of a memory or of its store', async () => {
    const tagged = await createStore(key, { tags: { team: 'a', area: 'x' } })
    const plain = await createStore(key)
    await state(key, tagged, 'by the store')
    await state(key, plain, 'by itself', { tags: { team: 'a', area: 'x' } })
    await state(key, plain, 'half of it', { tags: { team: 'a' } })
    await document('by a document', { tags: { team: 'a', area: 'x' } })
    const tags = { team: 'a', area: 'x' }
    assert.deepEqual((await contents({ tags })).sort(), ['by a document', 'by itself', 'by the store'])
    assert.deepEqual((await contents({ query: 'by itself', tags, include_documents: false })).sort(), [
      'by itself',
      'by the store',
    ])
  })

  it('leaves out what no longer holds, whichever channel would find it', async () => {
    const store = await createStore(key)
    const { memory_id } = await state(key, store, 'The gate code is 4711')
    assert.equal((await search({ query: '4711' }))[0].memory_id, memory_id)
    const next = await state(key, store, 'The gate code is 4712', { supersedes: memory_id })
    assert.deepEqual(
      (await search({ query: 'gate code' })).map(row => row.memory_id),
      [next.memory_id],
    )
    assert.deepEqual(
      (await search({ memory_store_ids: [store] })).map(row => row.memory_id),
      [next.memory_id],
    )
    await app.pool.query(
      sql.unsafe`update memories set expires_at = now() - interval '1 second' where id = ${next.memory_id}`,
    )
    assert.deepEqual(await search({ query: 'gate code' }), [])
    assert.deepEqual(await search({ memory_store_ids: [store] }), [])
  })

  it('lets old ones count less', async () => {
    const store = await createStore(key)
    const old = await state(key, store, 'The team lunch is on Monday at noon')
    await state(key, store, 'The team lunch moved, it is on Friday, in the canteen, and starts when all are there', {
      supersede_threshold: 0.98,
      duplicate_threshold: 0.99,
    })
    const first = async (more: object) => (await search({ query: 'team lunch is on Monday', ...more }))[0].memory_id
    assert.equal(await first({}), old.memory_id)
    await app.pool.query(
      sql.unsafe`update memories set updated_at = now() - interval '100 days' where id = ${old.memory_id}`,
    )
    assert.equal(await first({}), old.memory_id)
    assert.notEqual(await first({ recency_half_life_days: 10 }), old.memory_id)
  })

  it('costs a project without stores nothing, and finds the first fact of its first store immediately', async () => {
    await document('Otters hold hands')
    await search({ query: 'otters' })
    app.statements.length = 0
    await search({ query: 'otters' })
    assert.ok(app.statements.length > 0)
    assert.ok(app.statements.every(text => !text.includes('memor')))
    await state(key, await createStore(key), 'Otters sleep on their backs')
    assert.equal((await search({ query: 'otters' })).length, 2)
  })

  it('shows nothing of another project', async () => {
    const store = await createStore(key)
    await state(key, store, 'A secret of this project')
    const mine = key
    key = (await app.project()).key
    assert.deepEqual(await search({ query: 'A secret of this project' }), [])
    assert.deepEqual(await search({ memory_store_ids: [store] }), [])
    key = mine
    assert.equal((await search({ query: 'A secret of this project' })).length, 1)
  })
})
