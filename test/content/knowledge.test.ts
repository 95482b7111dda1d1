import { strict as assert } from 'node:assert'
import { rawQuery } from '../../src/core/db.ts'
import { type Client, startApp, type TestApp } from '../support/app.ts'

const allow = (resource: string[], action = ['knowledge:SearchKnowledge']) => ({
  statement: [{ effect: 'Allow', action, resource }],
})

describe('knowledge search', () => {
  let app: TestApp
  let project: { id: string; key: Client }

  const rows = (text: string, values: unknown[] = []) =>
    app.services.pool.any(rawQuery(text, values)) as Promise<readonly any[]>
  const write = async (body: object, by: Client = project.key) => {
    const made = await by.post('/documents', body)
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return made.body as { id: string; path: string }
  }
  const search = async (body: object, by: Client = project.key) => {
    const found = await by.post('/knowledge/search', body)
    assert.equal(found.status, 200, JSON.stringify(found.body))
    return found.body as { results: any[]; degraded_channels: string[] }
  }
  const refuse = async (body: object, status = 400, by: Client = project.key) => {
    const answer = await by.post('/knowledge/search', body)
    assert.equal(answer.status, status, `${JSON.stringify(body)}: ${JSON.stringify(answer.body)}`)
    return answer.body.error
  }
  /** A user who may only search what the resources name. */
  const searcher = (resources: string[]) => app.user(undefined, [allow(resources)])

  before(async () => {
    app = await startApp({ env: { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '256' } })
  })
  after(() => app.close())
  beforeEach(async () => {
    project = await app.project()
  })

  describe('what is found', () => {
    it('puts the one document with an exact token first of two hundred', async () => {
      await Promise.all(
        Array.from({ length: 199 }, (_, index) =>
          write({ content: `Spare part number ${index} of the SKU catalogue, revision ${4700 + (index % 11)}` }),
        ),
      )
      const wanted = await write({ content: 'Replaced by SKU-4711, which fits both frames' })
      const { results } = await search({ query: 'SKU-4711' })
      assert.equal(results[0].document_id, wanted.id)
      assert.equal(results[0].signals.lexical, 1)
    })
    it('finds an exact sentence by both channels, first, with its cosine', async () => {
      const sentence = 'The boiler shuts down when the return temperature exceeds ninety degrees'
      const wanted = await write({ content: sentence, title: 'Boiler', metadata: { a: 1 }, tags: { t: 'x' } })
      await write({ content: 'Cats sleep most of the day' })
      const { results, degraded_channels } = await search({ query: sentence })
      const [first] = results
      const { score, similarity_score, signals, chunk_id, created_at, updated_at, file_id, ...rest } = first
      assert.deepEqual(rest, {
        source_type: 'document',
        content: sentence,
        project_id: project.id,
        tags: { t: 'x' },
        document_id: wanted.id,
        chunk_index: 0,
        page: null,
        path: wanted.path,
        filename: wanted.path.slice(1),
        title: 'Boiler',
        content_type: 'text/plain',
        size: Buffer.byteLength(sentence),
        metadata: { a: 1 },
      })
      assert.match(chunk_id, /^dchunk_/)
      assert.match(file_id, /^file_/)
      assert.ok(created_at <= updated_at)
      assert.ok(similarity_score > 0.9)
      assert.deepEqual(signals, { vector: 1, lexical: 1 })
      assert.equal(score, 2 / 61)
      assert.deepEqual(degraded_channels, [])
    })
    it('never lets scores rise down the list, nor any beyond two first ranks', async () => {
      for (let index = 0; index < 30; index++)
        await write({ content: `Pump ${index} moves water ${index % 3 ? 'slowly' : 'fast'} through pipe ${index % 7}` })
      for (const [query, k] of [['water pump', 60], ['fast pipe 3', 1], ['moves 12', 0.5]] as const) {
        const { results } = await search({ query, rrf_k: k, limit: 50 })
        assert.equal(results.length, 30)
        for (const [index, { score }] of results.entries()) {
          assert.ok(score <= 2 / (k + 1))
          if (index > 0) assert.ok(score <= results[index - 1].score)
        }
      }
    })
  })
})
