import assert from 'node:assert/strict'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { makeDocument, rowsOf } from './documents-support.ts'

const DIMENSIONS = 32

/** An embedding provider on a separate socket, in the wire format of OpenAI. `before` holds every answer back. */
async function openProvider(): Promise<{
  url: string
  calls: string[][]
  before: () => Promise<void>
  server: Server
}> {
  const provider = { url: '', calls: [] as string[][], before: async () => {}, server: null as unknown as Server }
  provider.server = createServer((req, res) => {
    let text = ''
    req.on('data', chunk => {
      text += chunk
    })
    req.on('end', async () => {
      const { input } = JSON.parse(text)
      const inputs: string[] = Array.isArray(input) ? input : [input]
      provider.calls.push(inputs)
      await provider.before()
      const embedding = Array.from({ length: DIMENSIONS }, (_, index) => (index === 0 ? 1 : 0))
      res.setHeader('content-type', 'application/json')
      res.end(
        JSON.stringify({
          object: 'list',
          model: 'm',
          data: inputs.map((_, index) => ({ object: 'embedding', index, embedding })),
          usage: { prompt_tokens: 1, total_tokens: 1 },
        }),
      )
    })
  })
  await new Promise<void>(resolve => provider.server.listen(0, '127.0.0.1', resolve))
  provider.url = `http://127.0.0.1:${(provider.server.address() as AddressInfo).port}/v1`
  return provider
}

describe('vectors of inline documents', () => {
  let app: TestApp
  let provider: Awaited<ReturnType<typeof openProvider>>
  let project: Awaited<ReturnType<TestApp['project']>>
  before(async () => {
    provider = await openProvider()
    app = await startApp({
      env: {
        EMBEDDING_PROVIDER: 'openai',
        EMBEDDING_MODEL: 'm',
        EMBEDDING_API_KEY: 'k',
        EMBEDDING_BASE_URL: provider.url,
        EMBEDDING_DIMENSIONS: String(DIMENSIONS),
        EMBEDDING_INLINE_TIMEOUT_MS: '1500',
        DATABASE_POOL_MAX: '3',
      },
    })
  })
  after(async () => {
    await app.close()
    provider.server.closeAllConnections()
    await new Promise(resolve => provider.server.close(resolve))
  })
  beforeEach(async () => {
    provider.before = async () => {}
    provider.calls.length = 0
    project = await app.project()
  })

  const vectors = async (id: string) =>
    (await rowsOf(app, 'select 1 from knowledge_vectors where container_id = $1', [id])).length
  const waiting = async (id: string) =>
    (await rowsOf(app, 'select embed_since from documents where id = $1', [id]))[0].embed_since !== null
  const embedded = async (id: string) =>
    (await project.key.get(`/documents/${id}/status`)).body.embedded_chunks as number

  it('are created with the document, replaced with its text and deleted with it', async () => {
    const made = await makeDocument(project.key, { content: 'x'.repeat(2500), chunk_strategy: 'size' })
    assert.deepEqual([await embedded(made.id), await vectors(made.id), await waiting(made.id)], [3, 3, false])
    const chunks = await project.key.get(`/documents/${made.id}/chunks`)
    assert.deepEqual(
      chunks.body.data.map((chunk: any) => chunk.embedded),
      [true, true, true],
    )
    await project.key.patch(`/documents/${made.id}`, { content: 'short' })
    assert.deepEqual([await embedded(made.id), await vectors(made.id)], [1, 1])
    await project.key.post(`/documents/${made.id}/withdraw`)
    assert.deepEqual([await embedded(made.id), await vectors(made.id)], [0, 0])
    await project.key.post(`/documents/${made.id}/versions/1/restore`)
    assert.deepEqual([await embedded(made.id), await vectors(made.id)], [3, 3])
    await project.key.delete(`/documents/${made.id}`)
    assert.equal(await vectors(made.id), 0)
  })

  it('are not requested by writes that leave text and chunks unchanged', async () => {
    const made = await makeDocument(project.key)
    provider.calls.length = 0
    await project.key.patch(`/documents/${made.id}`, { title: 'x', path: '/moved', tags: { a: 'b' }, metadata: {} })
    await project.key.put(`/documents/${made.id}/tags`, {})
    await project.key.patch(`/documents/${made.id}`, { content: 'alpha beta' })
    assert.deepEqual(provider.calls, [])
    assert.equal(await vectors(made.id), 1)
  })

  it('are rebuilt when the title that they carry changes', async () => {
    const made = await makeDocument(project.key, { title: 'old title', chunk_strategy: 'auto' })
    assert.match(provider.calls.flat().join(), /old title/)
    provider.calls.length = 0
    const changed = await project.key.patch(`/documents/${made.id}`, { title: 'new title' })
    assert.equal(changed.body.version, 2)
    assert.match(provider.calls.flat().join(), /new title/)
  })

  it('leave one entry of one check in the audit log, however often they are made', async () => {
    const made = await makeDocument(project.key)
    let spaces = 0
    provider.before = async () => {
      spaces += 1
      if (spaces < 3) await project.key.patch(`/documents/${made.id}`, { append: ' '.repeat(spaces) })
    }
    assert.equal((await project.key.patch(`/documents/${made.id}`, { append: 'x', path: '/moved' })).status, 200)
    const entries = await rowsOf(
      app,
      `select detail from audit_entries where resource_public_id = $1 and action = 'documents:UpdateDocument'
         and detail -> 'additional_checks' is not null`,
      [made.id],
    )
    assert.deepEqual(
      entries.map(({ detail }) => detail.additional_checks.length),
      [1],
    )
  })

  it('are left for later when the provider takes too long', async () => {
    let release = () => {}
    provider.before = () => new Promise(resolve => (release = resolve))
    const made = await makeDocument(project.key, { content: 'slow' })
    release()
    assert.deepEqual([made.status, made.chunk_count], ['ready', 1])
    assert.deepEqual([await embedded(made.id), await vectors(made.id), await waiting(made.id)], [0, 0, true])
    assert.equal((await project.key.get(`/documents/${made.id}`)).body.content, 'slow')
  })

  it('hold no connection during the call of the provider', async () => {
    const made = await makeDocument(project.key)
    let release = () => {}
    const held = new Promise<void>(resolve => {
      release = resolve
    })
    provider.calls.length = 0
    provider.before = () => held
    const writes = [
      ...Array.from({ length: 4 }, () => project.key.post('/documents', { content: 'held' })),
      ...Array.from({ length: 4 }, () => project.key.patch(`/documents/${made.id}`, { append: 'held' })),
    ]
    // More texts than there are connections; a call may hold several.
    await eventually(() => provider.calls.flat().length > 3)
    const read = await project.key.get(`/documents/${made.id}`)
    const renamed = await project.key.patch(`/documents/${made.id}`, { title: 'meanwhile' })
    assert.deepEqual([read.status, renamed.status, renamed.body.title], [200, 200, 'meanwhile'])
    release()
    assert.deepEqual((await Promise.all(writes)).map(({ status }) => status).sort(), [
      ...Array(4).fill(200),
      ...Array(4).fill(201),
    ])
  })

  it('give way when the text is another one each time they are made', async () => {
    const made = await makeDocument(project.key, { content: '' })
    let spaces = 0
    provider.before = async () => {
      spaces += 1
      const other = await project.key.patch(`/documents/${made.id}`, { content: ' '.repeat(spaces) })
      assert.equal(other.status, 200)
    }
    const added = await project.key.patch(`/documents/${made.id}`, { append: 'mine' })
    assert.equal(added.status, 200, JSON.stringify(added.body))
    assert.equal(spaces, 3)
    assert.equal((await project.key.get(`/documents/${made.id}`)).body.content, '   mine')
    assert.deepEqual([added.body.version, added.body.chunk_count], [5, 1])
    assert.deepEqual([await vectors(made.id), await waiting(made.id)], [0, true])
  })

  it('are deleted with a document that is deleted during the call of the provider', async () => {
    const made = await makeDocument(project.key)
    provider.before = async () => {
      provider.before = async () => {}
      assert.equal((await project.key.delete(`/documents/${made.id}`)).status, 204)
    }
    const late = await project.key.patch(`/documents/${made.id}`, { content: 'late' })
    assert.deepEqual([late.status, late.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    assert.equal(await vectors(made.id), 0)
  })

  it('are deleted with a project that is deleted during the call of the provider', async () => {
    provider.before = async () => {
      assert.equal((await app.admin.delete(`/projects/${project.id}?force=true`)).status, 204)
    }
    const late = await app.admin.post('/documents', { project_id: project.id, content: 'late' })
    assert.deepEqual([late.status, late.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    for (const table of ['files', 'documents', 'document_chunks', 'knowledge_vectors'])
      assert.equal((await rowsOf(app, `select 1 from ${table} where project_id = $1`, [project.id])).length, 0, table)
  })

  it('are computed from the stored text, whatever was written in between', async () => {
    const made = await makeDocument(project.key, { content: 'a' })
    let once = true
    provider.before = async () => {
      if (!once) return
      once = false
      await project.key.patch(`/documents/${made.id}`, { append: 'b' })
    }
    const added = await project.key.patch(`/documents/${made.id}`, { append: 'c' })
    assert.equal((await project.key.get(`/documents/${made.id}`)).body.content, 'abc')
    const chunks = await project.key.get(`/documents/${made.id}/chunks`)
    assert.deepEqual(
      chunks.body.data.map((chunk: any) => chunk.content),
      ['abc'],
    )
    assert.deepEqual([added.body.version, await vectors(made.id)], [3, 1])
  })
})

describe('vectors of a document of more than a thousand chunks', () => {
  const app = forSuite(() =>
    startApp({
      env: {
        EMBEDDING_PROVIDER: 'local',
        EMBEDDING_DIMENSIONS: String(DIMENSIONS),
        EMBEDDING_INLINE_TIMEOUT_MS: '60000',
      },
    }),
  )

  it('are written with it, each once, by a create and by a change of the text', async () => {
    const { key } = await app.project()
    const textOf = (chunks: number) => 'word '.repeat(chunks)
    const made = await makeDocument(key, {
      content: textOf(2100),
      chunk_strategy: 'size',
      chunk_size: 5,
      chunk_overlap: 0,
    })
    const vectors = async () =>
      (
        await rowsOf(
          app,
          `select count(*)::int as all, count(distinct ref_id)::int as of_chunks from knowledge_vectors
         where container_id = '${made.id}'`,
        )
      )[0]
    assert.deepEqual(await vectors(), { all: 2100, of_chunks: 2100 })
    assert.equal((await key.patch(`/documents/${made.id}`, { content: textOf(1100) })).status, 200)
    assert.deepEqual(await vectors(), { all: 1100, of_chunks: 1100 })
  })
})
