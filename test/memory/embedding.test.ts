import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { memoryEmbedQueue } from '#memory/facts/handlers.ts'
import { usageSettled } from '../control/usage-support.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { type EmbeddingServer, startEmbeddingServer } from '../support/embedding-server.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { createStore, DIMENSIONS, entriesOf, memoriesOf, remote, state } from './support.ts'

describe('vectors of memories', function () {
  this.timeout(60_000)

  let first: TestApp
  let server: EmbeddingServer
  let key: Client
  let store: string
  const apps: TestApp[] = []
  beforeEach(async () => {
    server = await startEmbeddingServer(DIMENSIONS)
    first = await startApp()
    apps.push(first)
    key = (await first.project()).key
    store = await createStore(key)
  })
  afterEach(async () => {
    for (const app of apps.splice(0).reverse()) await app.close()
    await server.close()
  })

  /** Another process on the same database, with other settings. */
  const next = async (env: Record<string, string>, workers: 'ingestion'[] = ['ingestion']) => {
    const app = await startApp({ databaseUrl: first.databaseUrl, env, workers })
    apps.push(app)
    return { app, key: app.as(key.token) }
  }
  const local = (dimensions: number) => ({ EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: String(dimensions) })
  const counts = () =>
    first.pool.one(sql.unsafe`
      select count(*)::int as vectors, count(distinct space_id)::int as spaces, max(length(vec)) as bytes
      from knowledge_vectors where source = 2`) as Promise<object>
  const embedded = async () => (await memoriesOf(key, store, '&limit=100')).every(memory => memory.embedded)
  const texts = (count: number) => Array.from({ length: count }, (_, index) => `fact number ${index} of many`)

  it('are made when a worker comes with a model, in batches of 64', async () => {
    for (const text of texts(70)) await state(key, store, text)
    const retired = (await memoriesOf(key, store))[0]
    await key.post(`/memories/${retired.id}/retract`)
    await next(remote(server))
    await eventually(embedded)
    assert.deepEqual(await counts(), { vectors: 69, spaces: 1, bytes: DIMENSIONS * 4 })
    assert.ok(server.calls.every(call => call.texts.length <= 64))
    assert.ok(server.calls.every(call => !call.texts.includes(retired.content)))
  })

  it('follow a change of the model', async () => {
    for (const text of texts(5)) await state(key, store, text)
    await next(local(64))
    await eventually(embedded)
    assert.deepEqual(await counts(), { vectors: 5, spaces: 1, bytes: 256 })
    await apps.pop()?.close()
    const { key: other } = await next(local(128))
    await eventually(async () => (await counts().then(JSON.stringify)).includes('512'))
    await eventually(async () => JSON.stringify(await counts()) === '{"vectors":5,"spaces":1,"bytes":512}')
    const same = await state(other, store, 'fact number 3 of  many')
    assert.equal(same.action, 'skipped')
    const found = await other.post('/knowledge/search', { query: texts(5)[2] })
    assert.equal(found.body.results[0].content, texts(5)[2])
    assert.ok(found.body.results[0].similarity_score > 0.99)
  })

  it('are made later when the provider fails, and no fact is lost', async () => {
    server.behave = () => ({ status: 500 })
    const { app } = await next(remote(server, { EMBEDDING_INLINE_TIMEOUT_MS: '3000' }))
    const other = app.as(key.token)
    const made = await other.post('/memories', { memory_store_id: store, content: 'The provider is down' })
    assert.deepEqual([made.status, made.body.embedded], [201, false])
    assert.equal((await state(other, store, 'The provider  is down')).action, 'skipped')
    const changed = await other.patch(`/memories/${made.body.id}`, { content: 'The provider is still down' })
    assert.deepEqual([changed.status, changed.body.embedded], [200, false])
    server.behave = () => ({})
    await eventually(async () => {
      await app.inEachCell(({ queues }) => queues.send([queueMessage(memoryEmbedQueue, {})]))
      return embedded()
    })
    assert.equal((await entriesOf(key, store)).length, 3)
  })

  it('are metered for the project of the store, when a fact is stated, changed and embedded later', async () => {
    server.behave = ({ texts }) => ({ tokens: 7 * texts.length })
    const later = await state(key, store, 'stated without a model')
    const { app, key: embedding } = await next(remote(server))
    const { project_id } = (await key.get(`/memory-stores/${store}`)).body
    await eventually(embedded)
    const { memory_id } = await state(embedding, store, 'stated with one')
    await embedding.patch(`/memories/${memory_id}`, { content: 'said in other words' })
    // The text has its vector.
    await state(embedding, store, 'said in other  words')
    const events = await usageSettled(app, project_id)
    assert.deepEqual(
      events.map(({ source, meter_type, tokens, idempotency_key }) => [
        source,
        meter_type,
        tokens,
        idempotency_key.split(':').slice(0, 3).join(':'),
      ]),
      [store, store, memory_id].map(ref => ['embedding', 'llm_tokens', 7, `embed:memory:${ref}`]),
    )
    for (const { agent_id, actor_id, session_id } of events)
      assert.deepEqual([agent_id, actor_id, session_id], [null, null, null])
    assert.equal(later.action, 'created')
  })
  it('are tried a few times for a text that the model refuses, and no more', async () => {
    server.behave = ({ texts }) => (texts.some(text => text.includes('bad')) ? { status: 400 } : {})
    await state(key, store, 'a bad text')
    await state(key, store, 'a good text')
    const { app } = await next(remote(server))
    const waiting = () =>
      app.pool.oneFirst(sql.unsafe`select count(*)::int from memories where space_id = 0`) as Promise<number>
    await eventually(async () => {
      await app.inEachCell(({ queues }) => queues.send([queueMessage(memoryEmbedQueue, {})]))
      return (await waiting()) === 0
    })
    assert.deepEqual((await memoriesOf(key, store)).map(memory => memory.embedded).sort(), [false, true])
  })

  it('and hashes and words are rebuilt by muster reprocess memory', async () => {
    for (const text of texts(3)) await state(key, store, text)
    await first.pool.query(sql.unsafe`
      update memories set content_hash = 'x', tsv = to_tsvector('simple', 'other') where content like '%number 1%'`)
    const json = async (args: string[], env: Record<string, string>) => {
      const { code, stdout, stderr } = await muster(['reprocess', 'memory', ...args, '--json'], {
        ...testEnvironment(first.databaseUrlOf(store)),
        ...env,
      })
      assert.equal(code, 0, stderr)
      return JSON.parse(stdout)
    }
    const { key: other } = await next(remote(server), [])
    assert.deepEqual(await json(['--dry-run'], remote(server)), {
      found: 3,
      corrected: 0,
      embedded: 0,
      failed: 0,
      dry_run: true,
    })
    assert.equal(await embedded(), false)
    const words = async () => (await key.post('/knowledge/search', { query: '"number 1"' })).body.results.length
    assert.equal(await words(), 0)
    const done = await json([], remote(server))
    assert.deepEqual([done.found, done.corrected, done.embedded, done.failed], [3, 1, 3, 0])
    assert.equal(await embedded(), true)
    assert.equal(await words(), 1)
    assert.equal((await state(other, store, texts(3)[1])).action, 'skipped')
    assert.equal((await json(['--missing'], remote(server))).found, 0)
    const { code, stderr } = await muster(
      ['reprocess', 'memory', '--missing'],
      testEnvironment(first.databaseUrlOf(store)),
    )
    assert.equal(code, 1)
    assert.match(stderr, /embeddings are not configured/)
  })

  it('follow a writer that changed a text while it was embedded', async () => {
    const { memory_id } = await state(key, store, 'before')
    let release = () => {}
    const held = new Promise<void>(resolve => {
      release = resolve
    })
    server.behave = ({ texts }) => (texts.includes('before') ? { held } : {})
    const { app } = await next(remote(server))
    await eventually(() => server.calls.some(call => call.texts.includes('before')))
    await app.as(key.token).patch(`/memories/${memory_id}`, { content: 'after' })
    release()
    const { key: other } = { key: app.as(key.token) }
    const similarity = async () => {
      const { results } = (await other.post('/knowledge/search', { query: 'after' })).body
      return results[0]?.similarity_score as number | undefined
    }
    await eventually(async () => ((await similarity()) ?? 0) > 0.99)
    assert.deepEqual(await counts(), { vectors: 1, spaces: 1, bytes: DIMENSIONS * 4 })
  })
})
