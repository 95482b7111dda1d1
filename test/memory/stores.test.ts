import assert from 'node:assert/strict'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { createStore, eventsOf, memoriesOf, state } from './support.ts'

const RIGHTS = ['ListMemoryStores', ...['Create', 'Get', 'Update', 'Delete'].map(verb => `${verb}MemoryStore`)]

describe('memory stores', () => {
  const app = forSuite(() => startApp({ env: { EMBEDDING_PROVIDER: 'local' } }))
  const project = forSuite(() => app.projectWith(RIGHTS.map(action => `memories:${action}`)))

  it('are kept, found, changed and deleted by who may', async () => {
    const made = await project.key.post('/memory-stores', { name: '  Likes ', description: 'x', tags: { team: 'a' } })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    assert.match(made.body.id, /^mstore_[0-9a-z]{26}$/)
    assert.deepEqual(
      { ...made.body, id: 0, project_id: 0, created_at: 0, updated_at: 0 },
      {
        id: 0,
        project_id: 0,
        name: 'Likes',
        description: 'x',
        duplicate_threshold: null,
        supersede_threshold: null,
        actor_memory_limit: null,
        memory_count: 0,
        tags: { team: 'a' },
        created_at: 0,
        updated_at: 0,
      },
    )
    const path = `/memory-stores/${made.body.id}`
    await createStore(project.key, { name: 'Likes' })
    assert.equal((await project.key.get('/memory-stores?name=like')).body.total, 2)
    assert.equal((await project.key.get('/memory-stores?tags[team]=a')).body.total, 1)
    assert.equal((await project.key.patch(path, { description: null })).body.description, null)
    const put = await project.key.put(path, { name: 'Dislikes' })
    assert.deepEqual([put.body.name, put.body.tags], ['Dislikes', { team: 'a' }])
    assert.deepEqual((await project.key.patch(path, { tags: null })).body.tags, {})
    assert.deepEqual((await project.key.patch(`${path}/tags`, { b: 'c' })).body, { b: 'c' })
    assert.deepEqual((await project.key.get(`${path}/tags`)).body, { b: 'c' })
    assert.equal((await project.key.delete(path)).status, 204)
    assert.equal((await project.key.get(path)).status, 404)
    assert.deepEqual(await eventsOf(app, made.body.id), [
      'memory_stores.created',
      ...Array(4).fill('memory_stores.updated'),
      'memory_stores.deleted',
    ])
    assert.equal((await (await app.project()).key.get(path)).status, 404)
  })

  it('need a supersede threshold below the duplicate threshold', async () => {
    const refused = (reply: { status: number; body: any }) => {
      assert.equal(reply.status, 400, JSON.stringify(reply.body))
      assert.equal(reply.body.error.meta.problems[0].path, 'supersede_threshold')
    }
    const { key } = project
    refused(await key.post('/memory-stores', { name: 'x', supersede_threshold: 0.96 }))
    refused(await key.post('/memory-stores', { name: 'x', duplicate_threshold: 0.9 }))
    refused(await key.post('/memory-stores', { name: 'x', duplicate_threshold: 0.5, supersede_threshold: 0.5 }))
    assert.equal((await key.post('/memory-stores', { name: 'x', supersede_threshold: 1.1 })).status, 400)
    const id = await createStore(key, { duplicate_threshold: 0.99, supersede_threshold: 0.97 })
    // The later value: 0.97 next to the constant 0.95.
    refused(await key.patch(`/memory-stores/${id}`, { duplicate_threshold: null }))
    refused(await key.patch(`/memory-stores/${id}`, { duplicate_threshold: 0.6 }))
    const cleared = await key.patch(`/memory-stores/${id}`, { duplicate_threshold: null, supersede_threshold: null })
    assert.deepEqual([cleared.body.duplicate_threshold, cleared.body.supersede_threshold], [null, null])
  })

  it('count what holds, and take everything along', async () => {
    const { id, key } = await app.project()
    const store = await createStore(key)
    const other = await createStore(key)
    const kept = await state(key, other, 'the other store stays')
    const first = await state(key, store, 'The office opens at nine')
    const second = await state(key, store, 'The lift is out of order')
    const count = async () => (await key.get(`/memory-stores/${store}`)).body.memory_count
    assert.equal(await count(), 2)
    await state(key, store, 'The office opens at ten', { supersedes: first.memory_id })
    assert.equal(await count(), 2)
    await key.post(`/memories/${second.memory_id}/retract`)
    assert.equal(await count(), 1)
    await key.delete(`/memories/${second.memory_id}`)
    assert.equal(await count(), 1)
    assert.equal((await key.delete(`/memory-stores/${store}`)).status, 204)
    for (const path of [`/memories/${first.memory_id}`, `/memory-entries/${first.id}`])
      assert.equal((await key.get(path)).status, 404)
    assert.equal((await key.get(`/memories?memory_store_id=${store}`)).status, 404)
    assert.equal((await key.get(`/memory-entries?memory_store_id=${store}`)).body.total, 0)
    const found = await key.post('/knowledge/search', { query: 'The office opens at ten' })
    assert.deepEqual(
      found.body.results.map((row: any) => row.memory_id),
      [kept.memory_id],
    )
    assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
    assert.equal((await app.admin.get(`/memories/${kept.memory_id}`)).status, 404)
  })

  it('are deleted with their project only by force', async () => {
    const { id, key } = await app.project()
    await state(key, await createStore(key), 'something')
    const refused = await app.admin.delete(`/projects/${id}`)
    assert.equal(refused.status, 409)
    assert.deepEqual(refused.body.error.meta.counts, { memory_stores: 1 })
    assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
  })

  it('are exported oldest first, one memory a line', async () => {
    const { key } = await app.project()
    const store = await createStore(key)
    const texts = ['Rome is in Italy', 'Bread needs salt', 'Ships float']
    for (const [index, text] of texts.entries()) await state(key, store, text, { tags: { n: String(index % 2) } })
    const [oldest] = (await memoriesOf(key, store)).reverse()
    await key.post(`/memories/${oldest.id}/retract`)
    const lines = async (query = '') => {
      const { status, body, headers } = await key.get(`/memory-stores/${store}/export${query}`)
      assert.equal(status, 200)
      assert.match(headers.get('content-type') ?? '', /application\/x-ndjson/)
      return String(body ?? '')
        .split('\n')
        .filter(line => line !== '')
        .map(line => JSON.parse(line).content)
    }
    assert.deepEqual(await lines(), texts.slice(1))
    assert.deepEqual(await lines('?include_invalidated=true'), texts)
    assert.deepEqual(await lines('?tags[n]=0'), [texts[2]])
    assert.equal((await key.get('/memory-stores/mstore_x/export')).status, 404)
  })
})
