import assert from 'node:assert/strict'
import { embedDocuments } from '#content/index/embeddings/embed-documents.ts'
import { embedMissing } from '#content/index/embeddings/embed-missing.ts'
import { reindexDocuments, reindexQueue } from '#content/index/embeddings/reindex.ts'
import { adoptSettings } from '#content/index/embeddings/settings-owner.ts'
import { currentSpace, type Space } from '#content/index/embeddings/space.ts'
import { sql } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { type EmbeddingServer, startEmbeddingServer } from '../support/embedding-server.ts'
import { runWorker } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { createdBy } from '../support/replies.ts'

type Counts = { vectors: number; spaces: number; bytes: number; embedded: number }

/** How many vectors there are, of how many spaces, their length in bytes, and the chunks documents say are embedded. */
const counts = async (app: TestApp): Promise<Counts> => ({
  ...((await app.pool.one(sql.unsafe`
      select count(*)::int as vectors, count(distinct space_id)::int as spaces, max(length(vec)) as bytes,
        (select coalesce(sum(embedded_chunks), 0)::int from documents) as embedded
      from knowledge_vectors`)) as Counts),
})

const create = async (key: Client, content: string, more: object = {}) =>
  (await createdBy(key, '/documents', { content, ...more })).id as string

const pendingOf = async (key: Client) => (await key.get('/embeddings/config')).body.reindex.pending as number

describe('reindexing of embeddings', () => {
  let first: TestApp
  let server: EmbeddingServer
  let project: { id: string; key: Client }
  const apps: TestApp[] = []
  beforeEach(async () => {
    server = await startEmbeddingServer(64)
    first = await startApp()
    apps.push(first)
    project = await first.project()
  })
  afterEach(async () => {
    for (const app of apps.splice(0).reverse()) await app.close()
    await server.close()
  })

  /** Another process on the same database, with other settings. */
  const next = async (env: Record<string, string>, workers: 'ingestion'[] = ['ingestion']) => {
    const app = await startApp({ databaseUrl: first.databaseUrl, env, workers })
    apps.push(app)
    return { app, key: app.as(project.key.token) }
  }
  const local = (dimensions: number) => ({ EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: String(dimensions) })
  const remote = (more: Record<string, string> = {}) => ({
    EMBEDDING_PROVIDER: 'openai',
    EMBEDDING_MODEL: 'm',
    EMBEDDING_DIMENSIONS: String(server.dimensions),
    EMBEDDING_BASE_URL: server.url,
    ...more,
  })
  const pages = (count: number) =>
    Promise.all(Array.from({ length: count }, (_, index) => create(project.key, `page ${index} of the book`)))

  it('gives documents vectors that were written before there was a provider', async () => {
    await pages(7)
    const { app, key } = await next(local(64))
    await eventually(async () => (await pendingOf(key)) === 0)
    assert.deepEqual(await counts(app), { vectors: 7, spaces: 1, bytes: 256, embedded: 7 })
    await eventually(() => app.logs.some(line => line.includes('documents reindexed') && line.includes('"pending":0')))
  })

  it('replaces the vectors of another model, and reports the remaining number until then', async () => {
    await pages(5)
    await create(project.key, 'abcdefgh', { chunk_strategy: 'size', chunk_size: 2, chunk_overlap: 0 })
    const before = await next(local(64))
    await eventually(async () => (await pendingOf(before.key)) === 0)
    assert.deepEqual(await counts(first), { vectors: 9, spaces: 1, bytes: 256, embedded: 9 })
    await apps.pop()?.close()
    const web = await next(local(128), [])
    assert.equal(await pendingOf(web.key), 6)
    const { key } = await next(local(128))
    await eventually(async () => (await pendingOf(key)) === 0)
    assert.deepEqual(await counts(first), { vectors: 9, spaces: 1, bytes: 512, embedded: 9 })
  })

  it('goes back to vectors that were replaced', async () => {
    await pages(3)
    for (const dimensions of [64, 128, 64]) {
      const { key } = await next(local(dimensions))
      await eventually(async () => (await pendingOf(key)) === 0)
      assert.deepEqual(await counts(first), { vectors: 3, spaces: 1, bytes: 4 * dimensions, embedded: 3 })
      await apps.pop()?.close()
    }
  })

  it('uses the settings of the worker that started last, whichever worker runs it', async () => {
    await pages(3)
    const newer = await next({ ...local(128), KNOWLEDGE_TEXT_SEARCH_CONFIG: 'english' })
    const configs = () => first.pool.anyFirst(sql.unsafe`select distinct tsv_config from document_chunks`)
    await eventually(async () => (await pendingOf(newer.key)) === 0 && (await configs()).join() === 'english/2')
    const ended = { vectors: 3, spaces: 1, bytes: 512, embedded: 3 }
    // A worker without a model has nothing for documents to follow.
    const { app: without } = await next({ KNOWLEDGE_TEXT_SEARCH_CONFIG: 'english' }, [])
    await adoptSettings(without.services)
    // What a worker of the configuration before does with a message that it happens to take.
    const { app: old, key } = await next(local(64), [])
    const { signal } = new AbortController()
    const handling = { signal, stopping: signal, log: old.services.log }
    await reindexDocuments(old.services, handling)
    assert.deepEqual(await counts(first), ended)
    assert.deepEqual(await configs(), ['english/2'])
    await first.pool.query(sql.unsafe`update documents set embed_since = now()`)
    await embedMissing(old.services, handling)
    assert.deepEqual(await counts(first), ended)
    await first.pool.query(sql.unsafe`update documents set embed_since = null`)
    // Rows written by the old settings meanwhile follows.
    await create(key, 'late')
    assert.deepEqual(await counts(first), { vectors: 4, spaces: 2, bytes: 512, embedded: 4 })
    await first.services.queues.send([queueMessage(reindexQueue, {})])
    await eventually(async () => (await counts(first)).spaces === 1)
    assert.deepEqual(await counts(first), { vectors: 4, spaces: 1, bytes: 512, embedded: 4 })
  })

  it('counts only documents of projects in which the caller may embed', async () => {
    await pages(3)
    const other = await first.project()
    await create(other.key, 'elsewhere')
    const { app, key } = await next(local(64), [])
    assert.equal(await pendingOf(key), 3)
    assert.equal(await pendingOf(app.as(first.admin.token)), 4)
    const user = await first.user(undefined, [
      {
        statement: [
          { effect: 'Allow', action: ['embeddings:CreateEmbeddings'], resource: [`srn:${other.id}:embedding:*`] },
        ],
      },
    ])
    assert.equal(await pendingOf(app.as(user.token)), 1)
  })

  it('begins with the newest documents, and puts small ones into one call', async () => {
    for (let index = 0; index < 60; index++) await create(project.key, `page ${index}`)
    const { key } = await next(remote({ EMBEDDING_BATCH_SIZE: '10', EMBEDDING_CONCURRENCY: '1' }))
    await eventually(async () => (await pendingOf(key)) === 0)
    const order = server.calls.flatMap(call => call.texts.map(text => Number(text.slice(5))))
    assert.equal(server.calls.length, 6)
    assert.deepEqual(
      order.slice(0, 50).sort((a, b) => b - a),
      Array.from({ length: 50 }, (_, index) => 59 - index),
    )
  })

  it('waits for a provider that is away, and leaves documents as they are', async () => {
    await pages(4)
    const before = await next(local(64))
    await eventually(async () => (await pendingOf(before.key)) === 0)
    await apps.pop()?.close()
    server.behave = () => ({ status: 401 })
    const { app, key } = await next(remote({ EMBEDDING_MODEL: 'another' }))
    await eventually(() => server.calls.length > 0)
    await eventually(() => app.logs.some(line => line.includes('documents reindexed')))
    assert.equal(await pendingOf(key), 4)
    assert.deepEqual(await counts(first), { vectors: 4, spaces: 1, bytes: 256, embedded: 4 })
  })

  it('passes by a text that the provider refuses', async () => {
    await create(project.key, 'good')
    const poison = await create(project.key, 'poison')
    server.behave = call => (call.texts.includes('poison') ? { status: 400 } : {})
    const { key } = await next(remote())
    await eventually(async () => (await pendingOf(key)) === 0)
    assert.deepEqual(await counts(first), { vectors: 1, spaces: 1, bytes: 256, embedded: 1 })
    assert.equal((await project.key.get(`/documents/${poison}`)).body.embedding, 'partial')
  })

  it('leaves a chunk the vectors that it has where the provider refuses new ones', async () => {
    const before = await next(local(64))
    await create(before.key, 'goodevil', { chunk_strategy: 'size', chunk_size: 4, chunk_overlap: 0 })
    assert.deepEqual(await counts(first), { vectors: 2, spaces: 1, bytes: 256, embedded: 2 })
    await apps.pop()?.close()
    server.behave = call => (call.texts.includes('evil') ? { status: 400 } : {})
    const { key } = await next(remote())
    await eventually(async () => (await pendingOf(key)) === 0)
    assert.deepEqual(await counts(first), { vectors: 2, spaces: 2, bytes: 256, embedded: 1 })
  })

  it('calls a provider that is down for three pages of documents, not for all', async () => {
    await Promise.all(Array.from({ length: 201 }, (_, index) => create(project.key, `document ${index}`)))
    server.behave = () => ({ status: 401 })
    const { app } = await next(remote())
    await eventually(() => app.logs.some(line => line.includes('documents reindexed')))
    assert.equal(server.calls.length, 3)
  })

  it('leaves no vector of a window that a text has no more', async () => {
    const narrow = await next(remote({ EMBEDDING_MAX_INPUT_CHARS: '500' }), [])
    const id = await create(narrow.key, 'a long text '.repeat(100))
    assert.equal((await counts(first)).vectors, 4)
    const { app } = await next(remote({ EMBEDDING_MAX_INPUT_CHARS: '8000' }), [])
    const space = (await currentSpace(app.servicesOf(id))) as Space
    const { signal } = new AbortController()
    await embedDocuments(app.servicesOf(id), space, [{ id, project_id: project.id }], { signal, again: true })
    assert.deepEqual(await counts(first), { vectors: 1, spaces: 1, bytes: 256, embedded: 1 })
  })

  it('ends for texts in which there is nothing to embed', async () => {
    await create(project.key, '… — !')
    const { key } = await next(local(64))
    await eventually(async () => (await pendingOf(key)) === 0)
    assert.equal((await counts(first)).vectors, 0)
  })

  it('continues after the last page of a killed worker', async () => {
    await create(project.key, 'x'.repeat(60_000), { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 })
    // 6,000 chunks: 24 rounds of 256, each of 4 calls.
    server.behave = () => ({ delayMs: 60 })
    const settings = remote({ INGESTION_LEASE_SECONDS: '2' })
    const killed = await startProcess('worker', first.databaseUrl, settings, ['ingestion'])
    await eventually(async () => (await counts(first)).vectors > 512)
    await killed.kill('SIGKILL')
    // Statements it had sent to the database may still be done there.
    const working = sql.unsafe`
      select count(*) from pg_stat_activity
      where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null`
    await eventually(async () => (await first.pool.oneFirst(working)) === 0)
    const { vectors } = await counts(first)
    assert.ok(vectors < 6000)
    const asked = server.calls.length
    server.behave = () => ({})
    const { key } = await next(remote(), [])
    assert.equal(await pendingOf(key), 1)
    // The new worker takes the message over once the lease of the dead one is over; its own start sends one too.
    const again = await runWorker(first.databaseUrl, settings, ['ingestion'])
    try {
      await eventually(async () => (await pendingOf(key)) === 0, { within: 60_000, every: 250 })
    } finally {
      await again.stop()
    }
    assert.deepEqual(await counts(first), { vectors: 6000, spaces: 1, bytes: 256, embedded: 6000 })
    const texts = server.calls.slice(asked).reduce((sum, call) => sum + call.texts.length, 0)
    assert.equal(texts, 6000 - vectors)
  }).timeout(90_000)
})
