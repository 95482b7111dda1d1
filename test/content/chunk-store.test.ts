import assert from 'node:assert/strict'
import { embeddingWindows } from '#content/index/chunks/embed.ts'
import { sql } from '#core/db/sql.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { startEmbeddingServer } from '../support/embedding-server.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const DIMENSIONS = 32

/** Chunks of a document as they are stored. */
const stored = async (app: TestApp, documentId: string) =>
  (await app.pool.any(sql.unsafe`
    select id, tsv_config, tsvector_to_array(tsv) as words, pg_column_size(tsv) as size
    from document_chunks where document_id = ${documentId} order by chunk_index`)) as unknown as {
    id: string
    tsv_config: string
    words: string[]
    size: number
  }[]

const vectorsOf = async (app: TestApp, documentId: string) =>
  (await app.pool.any(sql.unsafe`
    select source, ref_id, segment, length(vec) as bytes from knowledge_vectors
    where container_id = ${documentId} order by ref_id, segment`)) as unknown as {
    source: number
    ref_id: string
    segment: number
    bytes: number
  }[]

const create = (client: Client, body: object) => createdBy(client, '/documents', body)

describe('windows of a text', () => {
  it('are the text itself when it fits', () => {
    assert.deepEqual(embeddingWindows('a'.repeat(500), 500), ['a'.repeat(500)])
  })

  it('share 200 characters with the one before', () => {
    const text = Array.from({ length: 1000 }, (_, index) => String.fromCharCode(97 + (index % 26))).join('')
    const segments = embeddingWindows(text, 500)
    assert.deepEqual(segments, [text.slice(0, 500), text.slice(300, 800), text.slice(600)])
  })

  it('are 64 at most', () => {
    assert.equal(embeddingWindows('x'.repeat(1_000_000), 500).length, 64)
  })

  it('cut no character in two', () => {
    for (const offset of [0, 1]) {
      const segments = embeddingWindows('x'.repeat(offset) + '🙂'.repeat(2000), 501)
      for (const segment of segments) assert.ok(segment.isWellFormed())
      assert.ok(segments.every(segment => segment.length <= 501))
    }
  })
})

describe('chunks in the database', () => {
  const server = forSuite(() => startEmbeddingServer(DIMENSIONS))
  const app = forSuite(() =>
    startApp({
      env: {
        EMBEDDING_PROVIDER: 'openai',
        EMBEDDING_MODEL: 'm',
        EMBEDDING_DIMENSIONS: String(DIMENSIONS),
        EMBEDDING_BASE_URL: server.url,
        EMBEDDING_MAX_INPUT_CHARS: '500',
      },
    }),
  )
  beforeEach(() => {
    server.calls.length = 0
    server.behave = () => ({})
  })

  it('hold their words and a lexeme of the project', async () => {
    const { id, key } = await app.project()
    const made = await create(key, { content: 'Alpha beta SKU-4711' })
    const [chunk] = await stored(app, made.id)
    assert.equal(chunk.tsv_config, 'simple/2')
    assert.ok(chunk.words.includes(`~p${id}`))
    for (const word of ['alpha', 'beta', 'sku']) assert.ok(chunk.words.includes(word), word)
  })

  it('hold the words of as much of a text as a tsvector takes', async () => {
    const { key } = await app.project()
    // Each pair of letters is a word of six bytes.
    const letters = Array.from({ length: 150_000 }, (_, index) =>
      String.fromCodePoint(0x4e00 + ((index * (1 + (index >> 10))) % 20_000)),
    )
    const made = await create(key, { content: letters.join('') })
    const [chunk] = await stored(app, made.id)
    const found = new Set(chunk.words)
    const pair = (index: number) => letters[index] + letters[index + 1]
    assert.ok(found.has(pair(0)) && found.has(pair(80_000)))
    assert.equal(found.has(pair(149_001)), false)
    const { body } = await key.get(`/documents/${made.id}`)
    assert.equal(body.content, letters.join(''))
  })

  it('have one vector a window, of source 1, under the document', async () => {
    const { key } = await app.project()
    const made = await create(key, { content: 'word '.repeat(260) })
    const chunks = await stored(app, made.id)
    assert.deepEqual(
      (await vectorsOf(app, made.id)).map(row => ({ ...row })),
      [0, 1, 2, 3].map(segment => ({ source: 1, ref_id: chunks[0].id, segment, bytes: 4 * DIMENSIONS })),
    )
    assert.equal(chunks.length, 1)
  })

  it('are written in one statement, and their vectors in another', async () => {
    const { key } = await app.project()
    await create(key, { content: 'warm up' })
    app.statements.length = 0
    const made = await create(key, {
      content: 'word '.repeat(2000),
      chunk_strategy: 'size',
      chunk_size: 100,
      chunk_overlap: 0,
    })
    assert.equal(made.chunk_count, 100)
    assert.equal(app.statements.filter(text => text.includes('insert into document_chunks')).length, 1)
    assert.equal(app.statements.filter(text => text.includes('insert into knowledge_vectors')).length, 1)
  })

  it('are embedded under the title and the headings above them, which are no part of their text', async () => {
    const { key } = await app.project()
    const made = await create(key, {
      content: '# Fruit\n\nApples are red.\n',
      title: 'The garden',
      chunk_strategy: 'auto',
    })
    const texts = server.calls.flatMap(call => call.texts)
    assert.equal(texts.length, made.chunk_count)
    assert.ok(texts[0].startsWith('The garden') && texts[0].includes('Fruit'))
    assert.ok(texts[0].includes('Apples are red'))
    const { body } = await key.get(`/documents/${made.id}/chunks`)
    assert.equal(body.data[0].content.includes('The garden'), false)
  })

  it('without letters are not sent to a provider', async () => {
    const { key } = await app.project()
    const made = await create(key, { content: ' \n ' })
    assert.deepEqual(server.calls, [])
    assert.deepEqual(await vectorsOf(app, made.id), [])
  })

  it('are listed in their order with their place in the text', async () => {
    const { key } = await app.project()
    server.behave = call => (call.texts.some(text => text.startsWith('b')) ? { status: 400 } : {})
    const content = `${'a'.repeat(100)}${'b'.repeat(100)}${'c'.repeat(50)}`
    const made = await create(key, { content, chunk_strategy: 'size', chunk_size: 100, chunk_overlap: 0 })
    const first = await key.get(`/documents/${made.id}/chunks?limit=2`)
    assert.equal(first.status, 200)
    assert.equal(first.body.total, 3)
    const second = await key.get(`/documents/${made.id}/chunks?limit=2&offset=2`)
    const all = [...first.body.data, ...second.body.data]
    assert.deepEqual(
      all.map(({ id, ...rest }: { id: string }) => rest),
      [
        { chunk_index: 0, page_number: null, char_start: 0, char_end: 100, content: 'a'.repeat(100), embedded: true },
        {
          chunk_index: 1,
          page_number: null,
          char_start: 100,
          char_end: 200,
          content: 'b'.repeat(100),
          embedded: false,
        },
        { chunk_index: 2, page_number: null, char_start: 200, char_end: 250, content: 'c'.repeat(50), embedded: true },
      ],
    )
    for (const { id } of all) assert.match(id, /^dchunk_/)
  })

  it('chunks and their vectors are deleted with their document', async () => {
    const { key } = await app.project()
    const made = await create(key, { content: 'one two' })
    assert.equal((await vectorsOf(app, made.id)).length, 1)
    assert.equal((await key.delete(`/documents/${made.id}`)).status, 204)
    assert.deepEqual(await stored(app, made.id), [])
    assert.deepEqual(await vectorsOf(app, made.id), [])
  })
})

describe('a text search configuration', () => {
  for (const name of ['klingon', 'a.b.c', '"', "it's"]) {
    it(`called ${name}, which there is not, counts as simple`, async () => {
      const app = await startApp({ env: { KNOWLEDGE_TEXT_SEARCH_CONFIG: name } })
      try {
        const { key } = await app.project()
        const made = await create(key, { content: 'The cats' })
        assert.equal((await stored(app, made.id))[0].tsv_config, 'simple/2')
      } finally {
        await app.close()
      }
    })
  }

  it('may be named with its schema, in any case', async () => {
    const app = await startApp({ env: { KNOWLEDGE_TEXT_SEARCH_CONFIG: 'pg_catalog.English' } })
    try {
      const { key } = await app.project()
      const made = await create(key, { content: 'The running cats' })
      assert.ok((await stored(app, made.id))[0].words.includes('cat'))
    } finally {
      await app.close()
    }
  })

  it('that is configured is used, and another configuration rebuilds the words', async () => {
    const english = await startApp({ env: { KNOWLEDGE_TEXT_SEARCH_CONFIG: 'english' } })
    try {
      const { key } = await english.project()
      const made = await create(key, { content: 'The running cats' })
      const [before] = await stored(english, made.id)
      assert.equal(before.tsv_config, 'english/2')
      assert.ok(before.words.includes('cat') && !before.words.includes('the'))
      const simple = await startApp({ databaseUrl: english.databaseUrl, workers: ['ingestion'] })
      try {
        const after = await eventually(async () => {
          const [chunk] = await stored(simple, made.id)
          return chunk.tsv_config === 'simple/2' ? chunk : null
        })
        assert.ok(after.words.includes('cats') && after.words.includes('the'))
        assert.ok(after.words.some(word => word.startsWith('~pproj_')))
      } finally {
        await simple.close()
      }
    } finally {
      await english.close()
    }
  })
})
