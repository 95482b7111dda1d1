import assert from 'node:assert/strict'
import { pageStarts, splitIntoPages } from '#content/index/chunks/pages.ts'
import { joinPages } from '#content/index/chunks/split.ts'
import { startApp } from '../support/app.ts'
import { pdf } from '../support/pdf.ts'
import { forSuite } from '../support/suite.ts'
import { rowsOf } from './documents-support.ts'
import { chunksOf, ingested, settledStatus, upload } from './ingestion-support.ts'

describe('pages of documents', () => {
  const app = forSuite(() => startApp({ workers: ['ingestion'] }))
  const key = forSuite(async () => (await app.project()).key)

  const patch = async (id: string, body: object) => {
    const reply = await key.patch(`/documents/${id}`, body)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }
  const numbered = async (id: string) =>
    (await chunksOf(app, id)).map(({ page_number, content }) => [page_number, content])
  const again = async (id: string, body: object = {}) => {
    assert.equal((await key.post(`/documents/${id}/ingest`, body)).status, 202)
    assert.equal((await settledStatus(key, id)).status, 'ready')
  }
  const pdfFile = (pages: string[]) => upload(key, pdf(pages), { content_type: 'application/pdf' })
  /** Has a file other bytes than it was ingested with; only the platform could. */
  const swap = (fileId: string, otherId: string) =>
    rowsOf(
      app,
      `update files f set (size, sha256, storage, location) =
         (select o.size, o.sha256, o.storage, o.location from files o where o.id = $2)
       where f.id = $1 returning f.id`,
      [fileId, otherId],
    )

  it('are found again in the text that they were joined to', () => {
    for (const pages of [
      [{ number: 1, text: 'a' }],
      [
        { number: 2, text: '🎉 é' },
        { number: null, text: '' },
        { number: 9, text: 'line\nline' },
        { number: 9, text: '\u{1F469}\u200D\u{1F4BB}' },
      ],
    ])
      assert.deepEqual(splitIntoPages(joinPages(pages), pageStarts(pages)), pages)
    assert.deepEqual(
      pageStarts([
        { number: 1, text: '🎉' },
        { number: 3, text: 'x' },
      ]),
      [
        [1, 0],
        [3, 2],
      ],
    )
    assert.equal(pageStarts([{ number: null, text: 'a' }]), null)
    assert.deepEqual(splitIntoPages('a', null), [{ number: null, text: 'a' }])
  })

  it('are rebuilt when an ingested document is split again', async () => {
    const file = await pdfFile(['first page', '', 'third page', 'fourth'])
    const made = await ingested(key, file, { chunk_strategy: 'whole' })
    const all = [
      [1, 'first page'],
      [3, 'third page'],
      [4, 'fourth'],
    ]
    assert.deepEqual(await numbered(made.id), [[null, 'first page\nthird page\nfourth']])
    await patch(made.id, { chunk_strategy: 'page' })
    assert.deepEqual(await numbered(made.id), all)
    await patch(made.id, { chunk_strategy: 'auto', chunk_size: 10 })
    assert.deepEqual([...new Set((await numbered(made.id)).map(([number]) => number))], [1, 3, 4])
    await patch(made.id, { chunk_strategy: 'size', chunk_size: 12, chunk_overlap: 0 })
    assert.equal((await chunksOf(app, made.id))[0].page_number, null)
    await patch(made.id, { chunk_strategy: 'page', title: 'x' })
    assert.deepEqual(await numbered(made.id), all)
  })

  it('come back with the version of a text, and with a withdrawn document', async () => {
    const file = await pdfFile(['one', 'two'])
    const made = await ingested(key, file)
    await swap(file, await pdfFile(['uno', 'due', 'tre']))
    await again(made.id)
    const restored = async (version: number) => {
      const reply = await key.post(`/documents/${made.id}/versions/${version}/restore`)
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
      return numbered(made.id)
    }
    const italian = [
      [1, 'uno'],
      [2, 'due'],
      [3, 'tre'],
    ]
    const english = [
      [1, 'one'],
      [2, 'two'],
    ]
    assert.deepEqual(await numbered(made.id), italian)
    assert.deepEqual(await restored(1), english)
    assert.deepEqual(await restored(2), italian)
    assert.equal((await key.post(`/documents/${made.id}/withdraw`)).status, 200)
    assert.deepEqual(await restored(3), english)
    await patch(made.id, { chunk_strategy: 'whole' })
    await patch(made.id, { chunk_strategy: 'page' })
    assert.deepEqual(await numbered(made.id), english)
    const version = (await key.get(`/documents/${made.id}/versions/1`)).body
    assert.equal(version.content, 'one\ntwo')
    assert.ok(!('pages' in version))
    const twice = await rowsOf(
      app,
      `select v.version from document_versions v join documents d on d.id = v.document_id
       where d.id = $1 and v.version = d.text_version and (v.content is not null or v.pages is not null)`,
      [made.id],
    )
    assert.deepEqual(twice, [], 'the live text is stored a second time')
  })

  it('are taken from the last ingestion where the text is unchanged', async () => {
    const file = await pdfFile(['one', 'two'])
    const made = await ingested(key, file)
    await swap(file, await pdfFile(['one\ntwo']))
    await again(made.id)
    assert.equal((await key.get(`/documents/${made.id}`)).body.version, 1)
    assert.deepEqual(await numbered(made.id), [[1, 'one\ntwo']])
    await patch(made.id, { chunk_strategy: 'whole' })
    await patch(made.id, { chunk_strategy: 'page' })
    assert.deepEqual(await numbered(made.id), [[1, 'one\ntwo']])
  })

  it('are removed by a text that a caller writes, and stay in the version before', async () => {
    const made = await ingested(key, await upload(key, 'plain'))
    await rowsOf(app, `update document_texts set pages = '[[1, 0], [2, 3]]' where document_id = $1 returning 1`, [
      made.id,
    ])
    await patch(made.id, { content: 'my own', chunk_strategy: 'page' })
    assert.deepEqual(await numbered(made.id), [[null, 'my own']])
    assert.equal((await key.post(`/documents/${made.id}/versions/1/restore`)).status, 200)
    assert.deepEqual(await numbered(made.id), [
      [1, 'pl'],
      [2, 'in'],
    ])
    // The text is the file now; a document of it again has the pages it had.
    await again(made.id, { chunk_strategy: 'page' })
    assert.deepEqual(
      (await numbered(made.id)).map(([number]) => number),
      [1, 2],
    )
  })
})
