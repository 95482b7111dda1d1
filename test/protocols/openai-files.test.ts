import assert from 'node:assert/strict'
import { forSuite } from '../support/suite.ts'
import { startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

describe('the OpenAI mount: embeddings and files', () => {
  const app = forSuite(() =>
    startOpenAiApp({
      workers: [],
      actions: [
        'embeddings:CreateEmbeddings',
        'files:UploadFile',
        'files:GetFile',
        'files:DownloadFile',
        'files:DeleteFile',
      ],
      env: { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '64' },
    }),
  )

  it('three texts give the vectors of the API, whether as numbers or as base64', async () => {
    const texts = ['one', 'two', 'three']
    const expected = (await app.key.post('/embeddings', { inputs: texts })).body
    const client = app.openai(app.key.token)
    const packed = await client.embeddings.create({ model: 'any', input: texts })
    assert.deepEqual(
      packed.data.map(({ embedding }) => embedding),
      expected.embeddings.map((vector: number[]) => vector.map(Math.fround)),
    )
    assert.ok(packed.usage.total_tokens > 0)
    const plain = await client.embeddings.create({ model: 'any', input: 'one', encoding_format: 'float' })
    assert.deepEqual(plain.data[0].embedding, expected.embeddings[0])
    assert.equal(plain.model, expected.model)
    const refused = await app.send('/embeddings', { model: 'any', input: 'one', dimensions: expected.dimensions + 1 })
    assert.equal(((await refused.json()) as Json).error.param, 'dimensions')
    const tokens = await app.send('/embeddings', { model: 'any', input: [1, 2] })
    assert.deepEqual([tokens.status, ((await tokens.json()) as Json).error.param], [400, 'input'])
  })

  it('lists of files are read in pages by both orders', async () => {
    const client = app.openai(app.key.token)
    const made: string[] = []
    for (const name of ['1', '2', '3', '4', '5']) {
      const file = await client.files.create({ file: new File([name], `${name}.txt`), purpose: 'user_data' })
      made.push(file.id)
    }
    const ids = async (order: 'asc' | 'desc') => {
      const found: string[] = []
      for await (const file of client.files.list({ limit: 2, order })) found.push(file.id)
      return found
    }
    assert.deepEqual(await ids('asc'), made)
    assert.deepEqual(await ids('desc'), made.toReversed())
    const page = async (query: string) => {
      const response = await fetch(`${app.base}/files?${query}`, {
        headers: { authorization: `Bearer ${app.key.token}` },
      })
      return { status: response.status, body: (await response.json()) as Json }
    }
    const last = await page(`after=${made[1]}&limit=1&order=desc`)
    assert.deepEqual(
      [last.body.data[0].id, last.body.first_id, last.body.last_id, last.body.has_more],
      [made[0], made[0], made[0], false],
    )
    for (const [query, param] of [
      ['limit=0', 'limit'],
      ['order=up', 'order'],
    ])
      assert.deepEqual([(await page(query)).status, (await page(query)).body.error.param], [400, param])
    const other = await app.projectWith(['files:GetFile', 'files:UploadFile'])
    const foreign = await app
      .openai(other.key.token)
      .files.create({ file: new File(['x'], 'x.txt'), purpose: 'user_data' })
    const refused = await page(`after=${foreign.id}`)
    assert.deepEqual([refused.status, refused.body.error.param], [404, 'after'])
    for (const id of made) await client.files.delete(id)
  })

  it('files are uploaded, also under equal names, read, listed, downloaded and deleted', async () => {
    const client = app.openai(app.key.token)
    const upload = () =>
      client.files.create({ file: new File(['hello'], 'a.txt', { type: 'text/plain' }), purpose: 'assistants' })
    const first = await upload()
    const second = await upload()
    assert.match(first.id, /^file_/)
    assert.deepEqual([first.filename, first.purpose, first.bytes], ['a.txt', 'assistants', 5])
    assert.deepEqual(await client.files.retrieve(first.id), first)
    const listed = await client.files.list()
    assert.deepEqual(listed.data.map(({ id }) => id).sort(), [first.id, second.id].sort())
    assert.equal(await (await client.files.content(first.id)).text(), 'hello')
    assert.equal((await client.files.delete(first.id)).deleted, true)
    await assert.rejects(client.files.retrieve(first.id), { status: 404 })
  })
})
