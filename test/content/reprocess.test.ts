import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { startEmbeddingServer } from '../support/embedding-server.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const DIMENSIONS = 64

describe('muster reprocess', function () {
  this.timeout(60_000)

  let app: TestApp
  const server = forSuite(() => startEmbeddingServer(DIMENSIONS))
  let project: { id: string; key: Client }
  beforeEach(async () => {
    server.calls.length = 0
    server.behave = () => ({})
    app = await startApp({ env: settings(), workers: ['ingestion'] })
    project = await app.project()
  })
  afterEach(() => app?.close())

  const settings = () => ({
    EMBEDDING_PROVIDER: 'openai',
    EMBEDDING_MODEL: 'm',
    EMBEDDING_DIMENSIONS: String(DIMENSIONS),
    EMBEDDING_BASE_URL: server.url,
  })
  const reprocess = (args: string[], env: Record<string, string> = settings()) =>
    muster(['reprocess', ...args], { ...testEnvironment(app.databaseUrlOf(project.id)), ...env })
  const json = async (args: string[]) => {
    const { code, stdout, stderr } = await reprocess([...args, '--json'])
    assert.equal(code, 0, stderr)
    return { ...JSON.parse(stdout), stderr }
  }
  const create = async (content: string, key = project.key) =>
    (await createdBy(key, '/documents', { content })).id as string
  const vectors = async (id: string) =>
    (await app.pool.anyFirst(sql.unsafe`
      select encode(vec, 'hex') from knowledge_vectors where container_id = ${id} order by segment`)) as readonly string[]

  it('is described in the documentation', async () => {
    const { code, stdout } = await reprocess(['--help'])
    assert.equal(code, 0)
    assert.match(stdout, /ingestions/)
    assert.match(stdout, /embeddings/)
    assert.equal((await reprocess(['ingestions', '--status', 'pending'])).code, 2)
  })

  it('embeddings needs a configured model', async () => {
    const { code, stderr } = await reprocess(['embeddings'], {})
    assert.equal(code, 1)
    assert.match(stderr, /not configured/)
    assert.match(stderr, /EMBEDDING_PROVIDER/)
  })

  it('embeddings rebuilds every vector, newest document first, and reports its progress', async () => {
    const [first, second] = [await create('one'), await create('two')]
    const other = await app.project(undefined, project.id)
    await create('elsewhere', other.key)
    const before = await vectors(first)
    server.calls.length = 0
    // What the provider calls by the same name has become another model.
    server.behave = call => ({ vectors: call.texts.map(() => Array.from({ length: DIMENSIONS }, (_, at) => at + 1)) })
    assert.deepEqual((await json(['embeddings', '--dry-run'])).found, 3)
    assert.equal(server.calls.length, 0)
    const done = await json(['embeddings', '--project', project.id])
    assert.deepEqual(
      { ...done, stderr: '' },
      { found: 2, embedded_chunks: 2, failed_chunks: 0, dry_run: false, stderr: '' },
    )
    assert.match(done.stderr, /2 of 2 documents, 2 chunks embedded/)
    assert.notDeepEqual(await vectors(first), before)
    assert.equal((await vectors(first)).length, 1)
    assert.equal((await vectors(second)).length, 1)
    assert.deepEqual(server.calls.flatMap(call => call.texts).sort(), ['one', 'two'])
    assert.equal((await json(['embeddings', '--limit', '1'])).embedded_chunks, 1)
    assert.equal((await json(['embeddings', '--id', first])).embedded_chunks, 1)
  })

  it('embeddings --missing leaves alone what has its vectors', async () => {
    await create('there')
    server.behave = () => ({ status: 400 })
    const lacking = await create('lacking')
    server.behave = () => ({})
    server.calls.length = 0
    assert.equal((await json(['embeddings', '--missing'])).found, 1)
    assert.deepEqual(
      server.calls.flatMap(call => call.texts),
      ['lacking'],
    )
    assert.equal((await project.key.get(`/documents/${lacking}/status`)).body.embedded_chunks, 1)
  })

  it('embeddings refuses another model than the workers use', async () => {
    const id = await create('one')
    const before = await vectors(id)
    server.calls.length = 0
    const { code, stderr } = await reprocess(['embeddings'], { ...settings(), EMBEDDING_MODEL: 'another' })
    assert.equal(code, 1)
    assert.match(stderr, /the workers use another embedding model/)
    assert.deepEqual(server.calls, [])
    assert.deepEqual(await vectors(id), before)
  })

  it('embeddings stops while the provider is away, and loses nothing', async () => {
    const id = await create('one')
    const before = await vectors(id)
    server.behave = () => ({ status: 401 })
    const { code, stderr } = await reprocess(['embeddings'])
    assert.equal(code, 1)
    assert.match(stderr, /the embedding provider failed after 0 of 1 documents/)
    assert.deepEqual(await vectors(id), before)
  })

  it('ingestions reads files again that could not be read', async () => {
    const { key } = project
    const file = await key.post('/files/upload/base64', { content: '', filename: 'a.txt' })
    assert.equal(file.status, 201, JSON.stringify(file.body))
    const made = await key.post('/documents/ingest?wait=true', { file_id: file.body.id })
    assert.equal(made.body.status, 'failed', JSON.stringify(made.body))
    await create('inline, ready')
    assert.deepEqual((await json(['ingestions', '--dry-run'])).found, 1)
    const events = async () =>
      (await key.get('/events?event_type=documents.ingest_failed')).body.data?.length as number | undefined
    const before = await events()
    const done = await json(['ingestions', '--project', project.id])
    assert.deepEqual({ ...done, stderr: '' }, { found: 1, queued: 1, refused: [], dry_run: false, stderr: '' })
    assert.match(done.stderr, /1 of 1 documents checked, 1 queued/)
    await eventually(async () => (await events()) === (before as number) + 1)
    const again = await json(['ingestions', '--status', 'ready'])
    assert.equal(again.queued, 1)
  })

  it('ingestions passes by what cannot be ingested any more', async () => {
    const { key } = project
    const rule = await key.post('/files/upload/base64', { content: '', filename: 'a.txt' })
    const made = await key.post('/documents/ingest?wait=true', { file_id: rule.body.id })
    assert.equal(made.body.status, 'failed')
    // A type that nothing reads: the rule that once did is gone.
    await app.pool.query(sql.unsafe`update files set content_type = 'image/png' where id = ${rule.body.id}`)
    const done = await json(['ingestions'])
    assert.deepEqual(done.refused, [{ id: made.body.id, code: 'UNSUPPORTED_FILE_TYPE' }])
    assert.equal(done.queued, 0)
  })
})
