import assert from 'node:assert/strict'
import { missingQueue } from '#content/index/embeddings/embed-missing.ts'
import { type Clock, manualClock } from '#core/base/clock.ts'
import { sql } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { type EmbeddingServer, startEmbeddingServer } from '../support/embedding-server.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const DIMENSIONS = 32
const HOUR = 3_600_000
const EMBEDDER = { EMBEDDING_PROVIDER: 'openai', EMBEDDING_MODEL: 'm', EMBEDDING_DIMENSIONS: String(DIMENSIONS) }

const waits = async (app: TestApp, id: string) =>
  (await app.pool.one(sql.unsafe`
    select embedded_chunks, embed_since is not null as waiting from documents where id = ${id}`)) as {
    embedded_chunks: number
    waiting: boolean
  }

const refsOf = async (app: TestApp, documentId: string) =>
  (await app.pool.anyFirst(sql.unsafe`
    select ref_id from knowledge_vectors where container_id = ${documentId} order by ref_id`)) as readonly string[]

const chunksOf = async (app: TestApp, documentId: string) =>
  (await app.pool.anyFirst(sql.unsafe`
    select id from document_chunks where document_id = ${documentId} order by id`)) as readonly string[]

describe('vectors that are missing', () => {
  const server = forSuite(() => startEmbeddingServer(DIMENSIONS))
  const app = forSuite(() =>
    startApp({
      together: true,
      workers: ['delivery', 'ingestion'],
      clock,
      env: {
        ...EMBEDDER,
        EMBEDDING_BASE_URL: server.url,
        EMBEDDING_INLINE_TIMEOUT_MS: '1500',
        EMBEDDING_TIMEOUT_MS: '5000',
      },
    }),
  )
  const key = forSuite(async () => (await app.project()).key)
  const clock = manualClock() as Clock & { advance(ms: number): void }
  beforeEach(() => {
    server.calls.length = 0
    server.behave = () => ({})
    app.logs.length = 0
  })

  const create = async (content: string, more: object = {}) =>
    (await createdBy(key, '/documents', { content, ...more })).id as string
  /** Runs the sweep once, to its end. */
  const sweep = async () => {
    const ended = () => app.logs.filter(line => line.includes('missing vectors')).length
    const before = ended()
    await app.services.queues.send([queueMessage(missingQueue, {})])
    await eventually(() => ended() > before)
  }
  const down = () => {
    server.behave = () => ({ status: 401 })
  }

  it('are embedded once the provider is back', async () => {
    down()
    const id = await create('alpha beta')
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 0, waiting: true })
    assert.equal((await key.get(`/documents/${id}/status`)).body.embedded_chunks, 0)
    await sweep()
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 0, waiting: true })
    server.behave = () => ({})
    await sweep()
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 1, waiting: false })
    assert.deepEqual(await refsOf(app, id), await chunksOf(app, id))
    assert.equal((await key.get(`/documents/${id}/chunks`)).body.data[0].embedded, true)
    assert.equal((await key.get(`/documents/${id}`)).body.version, 1)
  })

  it('of a write that could not wait are added after it', async () => {
    let release = () => {}
    const held = new Promise<void>(resolve => (release = resolve))
    server.behave = () => ({ held })
    const id = await create('too slow')
    assert.equal((await waits(app, id)).waiting, true)
    release()
    server.behave = () => ({})
    await sweep()
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 1, waiting: false })
  })

  it('are requested for many documents in few calls', async () => {
    down()
    const ids = await Promise.all(Array.from({ length: 20 }, (_, index) => create(`document ${index}`)))
    server.behave = () => ({})
    server.calls.length = 0
    await sweep()
    for (const id of ids) assert.equal((await waits(app, id)).waiting, false)
    assert.equal(server.calls.length, 1)
    assert.equal(server.calls[0].texts.length, 20)
  })

  it('are not requested endlessly while the provider is down', async () => {
    down()
    await Promise.all(Array.from({ length: 60 }, (_, index) => create(`document ${index}`)))
    server.calls.length = 0
    await sweep()
    assert.equal(server.calls.length, 1)
    server.behave = () => ({})
    await sweep()
  })

  it('are requested only where they are missing', async () => {
    server.behave = call => (call.texts.some(text => text.startsWith('b')) ? { status: 400 } : {})
    const id = await create('aaaabbbbcccc', { chunk_strategy: 'size', chunk_size: 4, chunk_overlap: 0 })
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 2, waiting: true })
    server.behave = () => ({})
    server.calls.length = 0
    await sweep()
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 3, waiting: false })
    assert.deepEqual(
      server.calls.flatMap(call => call.texts),
      ['bbbb'],
    )
  })

  const exceptions = async (): Promise<{ status: string; documents: number; document_id: string }[]> =>
    (await key.get('/exceptions?kind=embedding_partial')).body.data.map(
      ({ status, detail }: { status: string; detail: { documents: number; document_id: string } }) => ({
        status,
        ...detail,
      }),
    )
  const embeddingOf = async (id: string) => (await key.get(`/documents/${id}`)).body.embedding

  it('are not requested again for texts that the model refuses, and are reported until they exist', async () => {
    const refusing: EmbeddingServer['behave'] = call =>
      call.texts.some(text => text.startsWith('b')) ? { status: 400 } : {}
    server.behave = refusing
    const id = await create('aaaabbbbcccc', { chunk_strategy: 'size', chunk_size: 4, chunk_overlap: 0 })
    const whole = await create('whole')
    await sweep()
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 2, waiting: false })
    const { status, embedding } = (await key.get(`/documents/${id}`)).body
    assert.deepEqual([status, embedding, await embeddingOf(whole)], ['ready', 'partial', null])
    assert.deepEqual(
      (await key.get('/documents?embedding=partial')).body.data.map((each: { id: string }) => each.id),
      [id],
    )
    await eventually(async () => (await exceptions()).length === 1)
    assert.deepEqual(await exceptions(), [{ status: 'open', documents: 1, document_id: id }])
    const reprocess = () =>
      muster(['reprocess', 'embeddings', '--missing', '--json'], {
        ...testEnvironment(app.databaseUrlOf(id)),
        ...EMBEDDER,
        EMBEDDING_BASE_URL: server.url,
      })
    assert.equal(JSON.parse((await reprocess()).stdout).failed_chunks, 1)
    assert.equal(await embeddingOf(id), 'partial')
    assert.deepEqual(
      (await exceptions()).map(({ status: each }: { status: string }) => each),
      ['open'],
    )
    server.behave = () => ({})
    assert.equal(JSON.parse((await reprocess()).stdout).embedded_chunks, 1)
    assert.equal(await embeddingOf(id), null)
    assert.deepEqual(
      (await exceptions()).map(({ status: each }: { status: string }) => each),
      ['resolved'],
    )
  })

  it('are created for other texts when the model refuses one', async () => {
    server.behave = call => (call.texts.some(text => text.startsWith('b')) ? { status: 400 } : {})
    const texts = Array.from({ length: 40 }, (_, n) =>
      n === 7 || n === 30 ? 'bbbb' : `a${String(n).padStart(3, '0')}`,
    )
    const id = await create(texts.join(''), { chunk_strategy: 'size', chunk_size: 4, chunk_overlap: 0 })
    assert.equal((await waits(app, id)).embedded_chunks, 38)
    assert.ok(server.calls.length <= 30, `${server.calls.length} calls`)
  })

  it('are tried for again until a day has passed', async () => {
    server.behave = call => (call.texts.includes('poison') ? { status: 503 } : {})
    const id = await create('poison')
    clock.advance(23 * HOUR)
    await sweep()
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 0, waiting: true })
    clock.advance(2 * HOUR)
    server.calls.length = 0
    await sweep()
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 0, waiting: false })
    assert.deepEqual(server.calls, [])
    const { status, embedding } = (await key.get(`/documents/${id}`)).body
    assert.deepEqual([status, embedding], ['ready', 'partial'])
    await eventually(async () => (await exceptions()).some(each => each.status === 'open' && each.document_id === id))
    // New text is a new beginning.
    await key.patch(`/documents/${id}`, { content: 'cured' })
    assert.equal(await embeddingOf(id), null)
  })

  it('of a text with nothing to embed are not waited for', async () => {
    const id = await create('zero')
    await app.pool.query(sql.unsafe`delete from knowledge_vectors where container_id = ${id}`)
    await app.pool.query(sql.unsafe`
      update documents set embed_since = ${clock.now().toISOString()}::timestamptz, embedded_chunks = 0 where id = ${id}`)
    server.behave = call => ({ vectors: call.texts.map(() => new Array(DIMENSIONS).fill(0)) })
    await sweep()
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 0, waiting: false })
    assert.deepEqual(await refsOf(app, id), [])
  })

  it('of a document that is deleted meanwhile are not written', async () => {
    down()
    const id = await create('soon gone')
    const stays = await create('stays')
    let release = () => {}
    const held = new Promise<void>(resolve => (release = resolve))
    server.behave = () => ({ held })
    server.calls.length = 0
    const swept = sweep()
    await eventually(() => server.calls.length === 1)
    assert.equal((await key.delete(`/documents/${id}`)).status, 204)
    release()
    await swept
    assert.deepEqual(await refsOf(app, id), [])
    assert.equal((await waits(app, stays)).waiting, false)
  })

  it('of a text that is replaced meanwhile are computed from the new text', async () => {
    down()
    const id = await create('old text')
    let release = () => {}
    const held = new Promise<void>(resolve => (release = resolve))
    server.behave = call => (call.texts.includes('old text') ? { held } : {})
    server.calls.length = 0
    const swept = sweep()
    await eventually(() => server.calls.length === 1)
    const changed = await key.patch(`/documents/${id}`, { content: 'new text' })
    assert.equal(changed.status, 200)
    release()
    await swept
    assert.deepEqual(await refsOf(app, id), await chunksOf(app, id))
    assert.deepEqual({ ...(await waits(app, id)) }, { embedded_chunks: 1, waiting: false })
  })

  it('leave no orphaned vector when texts change during sweeps', async () => {
    down()
    const ids = await Promise.all(Array.from({ length: 8 }, (_, index) => create(`text ${index}`)))
    server.behave = () => ({ delayMs: Math.random() * 30 })
    await Promise.all([
      sweep(),
      ...ids.map(async (id, index) => {
        await key.patch(`/documents/${id}`, { content: `another ${index}` })
        if (index % 2 === 0) await key.delete(`/documents/${id}`)
      }),
    ])
    for (const id of ids) assert.deepEqual(await refsOf(app, id), await chunksOf(app, id))
  })
})

describe('documents without a provider', () => {
  it('wait for no vectors', async () => {
    const app = await startApp({ workers: ['ingestion'] })
    try {
      const { key } = await app.project()
      const { status, body } = await key.post('/documents', { content: 'alpha' })
      assert.equal(status, 201)
      assert.deepEqual({ ...(await waits(app, body.id)) }, { embedded_chunks: 0, waiting: false })
    } finally {
      await app.close()
    }
  })
})
