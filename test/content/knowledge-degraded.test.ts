import { strict as assert } from 'node:assert'
import { rawQuery } from '#core/db/sql.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { startEmbeddingServer } from '../support/embedding-server.ts'
import { forSuite } from '../support/suite.ts'
import { startTools } from '../support/tools.ts'

const DIMENSIONS = 32

describe('knowledge search with something missing', () => {
  const server = forSuite(() => startEmbeddingServer(DIMENSIONS))
  const apps: TestApp[] = []

  const provider = () => ({
    EMBEDDING_PROVIDER: 'openai',
    EMBEDDING_MODEL: 'm',
    EMBEDDING_DIMENSIONS: String(DIMENSIONS),
    EMBEDDING_BASE_URL: server.url,
    KNOWLEDGE_EMBED_TIMEOUT_MS: '1500',
  })
  /** An application with given settings, with one document in one project. */
  const started = async (env: Record<string, string>): Promise<{ app: TestApp; key: Client; projectId: string }> => {
    const app = await startApp({ env })
    apps.push(app)
    const { key, id } = await app.project()
    assert.equal((await key.post('/documents', { content: 'a curlew on the shore' })).status, 201)
    return { app, key, projectId: id }
  }
  const search = (key: Client, body: object = {}) => key.post('/knowledge/search', { query: 'curlew', ...body })
  afterEach(async () => {
    server.behave = () => ({})
    for (const app of apps.splice(0)) await app.close()
  })

  it('answers by words alone without an embedding model', async () => {
    const { key } = await started({})
    const { status, body } = await search(key, { min_similarity: 0.9 })
    assert.equal(status, 200)
    assert.deepEqual(body.degraded_channels, ['vector'])
    assert.deepEqual(body.results[0].signals, { lexical: 1 })
    assert.ok(!('similarity_score' in body.results[0]))
  })

  it('answers by words alone while the provider is down or slow, and by both when it is back', async () => {
    const { key } = await started(provider())
    for (const failure of [{ status: 500 }, { status: 401 }, { hangUp: 'at once' as const }, { delayMs: 10_000 }]) {
      server.behave = () => failure
      const { status, body } = await search(key)
      assert.equal(status, 200)
      assert.deepEqual(body.degraded_channels, ['vector'], JSON.stringify(failure))
      assert.equal(body.results.length, 1)
      assert.ok(!('similarity_score' in body.results[0]))
    }
    server.behave = () => ({})
    const { body } = await search(key)
    assert.deepEqual(body.degraded_channels, [])
    assert.deepEqual(body.results[0].signals, { vector: 1, lexical: 1 })
  })

  it('calls the provider once for equal questions', async () => {
    const { key } = await started(provider())
    server.calls.length = 0
    await search(key)
    await search(key)
    assert.equal(server.calls.length, 1)
  })

  it('answers by meaning alone when the text search configuration is missing', async () => {
    const { app, key } = await started({ EMBEDDING_PROVIDER: 'local', KNOWLEDGE_TEXT_SEARCH_CONFIG: 'nonsense' })
    const { status, body } = await search(key)
    assert.equal(status, 200)
    assert.deepEqual(body.degraded_channels, ['lexical'])
    assert.deepEqual(body.results[0].signals, { vector: 1 })
    const { channel, code, detail, err } = JSON.parse(
      app.logs.find(line => line.includes('search channel unavailable')) ?? '{}',
    )
    assert.deepEqual([channel, code, err], ['lexical', '42704', undefined])
    assert.match(detail, /nonsense/)
  })

  it('fails with what the provider failed with when words cannot be searched either', async () => {
    const { key } = await started({ ...provider(), KNOWLEDGE_TEXT_SEARCH_CONFIG: 'nonsense' })
    server.behave = () => ({ status: 401 })
    const { status, body } = await search(key)
    assert.equal(status, 502)
    assert.equal(body.error.code, 'AI_PROVIDER_ERROR')
  })

  it('fails when there is neither a model nor a text search configuration', async () => {
    const { key } = await started({ KNOWLEDGE_TEXT_SEARCH_CONFIG: 'nonsense' })
    const { status, body } = await search(key)
    assert.equal(status, 500)
    assert.equal(body.error.code, 'INTERNAL_ERROR')
    assert.equal((await key.post('/knowledge/search', { document_paths: '/' })).body.results.length, 1)
  })

  it('gives a channel up after its time', async () => {
    const { app, key } = await started({ EMBEDDING_PROVIDER: 'local', KNOWLEDGE_QUERY_TIMEOUT_MS: '1500' })
    await search(key)
    /** The answer while a table cannot be read; it can be again before the records are. */
    const whileLocked = async (table: string) =>
      app.services.pool.connect(async connection => {
        await connection.query(rawQuery('begin'))
        await connection.query(rawQuery(`lock table ${table} in access exclusive mode`))
        const given = app.logs.length
        const answer = search(key)
        await eventually(() => app.logs.slice(given).some(line => line.includes('search channel unavailable')))
        await connection.query(rawQuery('rollback'))
        return answer
      })
    const words = await whileLocked('knowledge_vectors')
    assert.deepEqual(words.body.degraded_channels, ['vector'])
    assert.deepEqual(words.body.results[0].signals, { lexical: 1 })
    const meaning = await whileLocked('document_chunks')
    assert.deepEqual(meaning.body.degraded_channels, ['lexical'])
    assert.deepEqual(meaning.body.results[0].signals, { vector: 1 })
    // The pool's connections have their own time again.
    assert.deepEqual((await search(key)).body.degraded_channels, [])
  })

  describe('reranked by a tool', () => {
    const tools = forSuite(startTools)

    it('orders the first rows by the scores of the tool', async () => {
      const { app, key, projectId } = await started({ EMBEDDING_PROVIDER: 'local' })
      for (let index = 0; index < 5; index++) await key.post('/documents', { content: `curlew number ${index}` })
      const plain = (await search(key)).body.results as any[]
      const tool_id = await tools.add(app, projectId)
      const [a, b, c, d] = plain.map(({ chunk_id }) => chunk_id)
      tools.answer(tool_id, {
        body: [
          { id: c, score: 7 },
          { id: a, score: 9 },
          { id: d, score: 99 },
          { id: 'x', score: 1 },
        ],
      })
      const { body } = await search(key, { rerank: { tool_id, action: 'rank', top_n: 3 } })
      assert.deepEqual(body.degraded_channels, [])
      assert.deepEqual(
        body.results.map(({ chunk_id }: { chunk_id: string }) => chunk_id),
        [a, c, b, d, ...plain.slice(4).map(({ chunk_id }) => chunk_id)],
      )
      assert.equal(body.results[0].signals.rerank, 9)
      assert.deepEqual(tools.calls(tool_id)[0].input, {
        query: 'curlew',
        candidates: plain.slice(0, 3).map(({ chunk_id, content }) => ({ id: chunk_id, content })),
      })
      assert.equal(tools.handed.at(-1)?.action, 'rank')
      const principal = tools.handed.at(-1)?.principal as { type: string }
      assert.equal(principal.type, 'api_key')
      const few = (await search(key, { limit: 1, rerank: { tool_id } })).body.results
      assert.deepEqual(
        few.map(({ chunk_id }: { chunk_id: string }) => chunk_id),
        [d],
      )
      const other = await app.project()
      const foreign = await search(other.key, { rerank: { tool_id } })
      assert.equal(foreign.status, 400)
      assert.equal(foreign.body.error.code, 'TOOL_NOT_FOUND')
    })

    it('keeps its own order when the tool fails or answers something else', async () => {
      const { app, key, projectId } = await started({ EMBEDDING_PROVIDER: 'local' })
      const plain = (await search(key)).body.results
      const tool_id = await tools.add(app, projectId)
      for (const answer of [
        { status: 500, body: {} },
        { body: 'text' },
        { body: [{ id: 1, score: 2 }] },
        { body: [{ id: 'x', score: 'y' }] },
        { body: null },
        { body: { scores: [] } },
      ]) {
        tools.answer(tool_id, answer)
        const { status, body } = await search(key, { rerank: { tool_id } })
        assert.equal(status, 200)
        assert.deepEqual(body.degraded_channels, ['rerank'], JSON.stringify(answer))
        assert.deepEqual(body.results, plain)
      }
    })
  })
})
