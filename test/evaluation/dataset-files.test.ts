import assert from 'node:assert/strict'
import { forSuite } from '../support/suite.ts'
import { item, refused, startEvalApp } from './support.ts'

describe('files of dataset items', () => {
  const app = forSuite(() =>
    startEvalApp({
      workers: [],
      env: { DATASET_MAX_ITEMS: '700', DATASET_MAX_BYTES: '100000', DATASET_IMPORT_MAX_BYTES: String(1024 * 1024) },
    }),
  )

  const CSV = { 'content-type': 'text/csv; charset=utf-8' }
  const JSONL = { 'content-type': 'application/x-ndjson' }
  const send = (id: string, body: string, headers: Record<string, string>) =>
    app.key.post(`/datasets/${id}/items/import-file`, body, headers)
  const itemsOf = async (id: string): Promise<any[]> =>
    (await app.key.get(`/datasets/${id}/items?limit=100`)).body.data.map(
      ({ input, expected_output, metadata }: any) => ({
        input,
        expected_output,
        metadata,
      }),
    )
  const exported = async (id: string, format: string): Promise<string> => {
    const reply = await app.key.get(`/datasets/${id}/items/export?format=${format}`)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }

  /** What breaks files of tables. */
  const NASTY = [
    'plain',
    '=1+1',
    "'=1+1",
    "''-2",
    '-5',
    '+49 30',
    '@SUM(A1)',
    '\tTab',
    '\rReturn',
    '\nplain',
    '\uff1d1+1',
    "'\uff20x",
    "'quoted",
    'a "quote", a comma',
    'two\nlines\r\nthree',
    '[not a list',
    '["a list"]',
    ' [1]',
    '{"role":"user"}',
    'null',
    ' padded ',
    'line\u2028separator',
    'ünïcode 🙂',
    '',
  ]

  for (const format of ['csv', 'jsonl'])
    it(`come back as they went in ${format}`, async () => {
      const items: object[] = NASTY.map((text, at) => ({
        input: [{ role: 'user', content: text }],
        expected_output: at === 0 ? null : NASTY[NASTY.length - at],
        metadata: at % 2 === 0 ? null : { kind: text, deep: { '=x': [1, null] } },
      }))
      items.push({
        input: [
          { role: 'user', content: [{ type: 'text', text: 'Hi' }] },
          { role: 'assistant', content: 'Yes?' },
          { role: 'user', content: '=2' },
        ],
        expected_output: null,
        metadata: null,
      })
      const id = await app.dataset(items)
      const file = await exported(id, format)
      if (format === 'csv') assert.doesNotMatch(file, /(^|,)"?[=+@\t-]/m)
      const copy = await app.dataset([])
      const sent = await send(copy, file, format === 'csv' ? CSV : JSONL)
      assert.deepEqual([sent.status, sent.body?.created], [201, items.length], JSON.stringify(sent.body))
      assert.deepEqual(await itemsOf(copy), await itemsOf(id))
      assert.deepEqual(await itemsOf(copy), items)
    })

  it('name the errors by line and field, and nothing is written', async () => {
    const id = await app.dataset([])
    const paths = async (body: string, headers: Record<string, string>) => {
      const reply = await send(id, body, headers)
      refused(reply, 400, 'VALIDATION_FAILED')
      return reply.body.error.meta.problems.map(({ path }: any) => path)
    }
    const csv =
      'input,metadata\r\nok,\r\n"two\r\nlines",{\r\n,{}\r\na,b,c\r\n"[{""role"":""system"",""content"":""x""}]",\r\n'
    assert.deepEqual(await paths(csv, CSV), [
      'lines[3].metadata',
      'lines[5].input',
      'lines[6]',
      'lines[7].input[0].role',
    ])
    assert.deepEqual(await paths('input,other\r\na,b\r\n', CSV), ['lines[1]'])
    assert.deepEqual(await paths('expected_output\r\na\r\n', CSV), ['lines[1]'])
    assert.deepEqual(await paths('input\r\n"never closed\r\n', CSV).then(found => found.length), 1)
    assert.deepEqual(await paths('input\r\n', CSV), [''])
    const good = JSON.stringify(item('a'))
    assert.deepEqual(await paths(`${good}\n\n{\n{"input":[]}\n{"input":[{"role":"user"}],"x":1}\n`, JSONL), [
      'lines[3]',
      'lines[4].input',
      'lines[5].input[0].content',
      'lines[5].x',
    ])
    refused(await send(id, good, { 'content-type': 'application/pdf' }), 415, 'REQUEST_REJECTED')
    refused(await send(id, `${JSON.stringify(item('x'.repeat(4000)))}\n`.repeat(300), JSONL), 413, 'REQUEST_REJECTED')
    refused(await send(id, `${good}\n`.repeat(701), JSONL), 400, 'VALIDATION_FAILED')
    assert.equal((await app.key.get(`/datasets/${id}/items`)).body.total, 0)
  })

  it('are read with the columns in any order, and need the right to write', async () => {
    const id = await app.dataset([])
    const sent = await send(id, '\ufeffexpected_output,input\nYes,Is it?\n"",Nothing\n', CSV)
    assert.equal(sent.status, 201, JSON.stringify(sent.body))
    assert.deepEqual(
      (await itemsOf(id)).map(({ input, expected_output }) => [input[0].content, expected_output]),
      [
        ['Is it?', 'Yes'],
        ['Nothing', ''],
      ],
    )
    const statement = [{ effect: 'Allow', action: ['evaluations:List*'], resource: [`srn:${app.projectId}:*:*`] }]
    const reader = await app.user('file-reader', [{ statement }])
    refused(await reader.post(`/datasets/${id}/items/import-file`, 'input\na\n', CSV), 403, 'FORBIDDEN')
    assert.equal((await reader.get(`/datasets/${id}/items/export?format=csv`)).status, 200)
    refused(await app.key.get(`/datasets/${id}/items/export?format=xml`), 400, 'VALIDATION_FAILED', 'format')
  })

  it('as JSON are taken all or none, named by their place', async () => {
    const id = await app.dataset([])
    const path = `/datasets/${id}/items/import`
    const bad = await app.key.post(path, { items: [item('a'), { input: [] }] })
    refused(bad, 400, 'VALIDATION_FAILED', 'items[1].input')
    refused(await app.key.post(path, { items: [] }), 400, 'VALIDATION_FAILED', 'items')
    const many = Array.from({ length: 501 }, () => item('a'))
    refused(await app.key.post(path, { items: many }), 400, 'VALIDATION_FAILED', 'items')
    const sent = await app.key.post(path, { items: many.slice(1) })
    assert.deepEqual([sent.status, sent.body.created, sent.body.ids.length], [201, 500, 500])
    refused(await app.key.post(path, { items: many.slice(0, 201) }), 400, 'VALIDATION_FAILED')
    assert.equal((await app.key.get(`/datasets/${id}/items`)).body.total, 500)
  })

  it('take no more than a dataset may hold, however they come, and give it back', async () => {
    const id = await app.dataset([])
    const path = `/datasets/${id}/items`
    const large = item('x'.repeat(60_000))
    const full = (reply: { status: number; body: any }) => {
      refused(reply, 400, 'VALIDATION_FAILED')
      assert.equal(reply.body.error.meta.problems[0].code, 'LIMIT_REACHED')
    }
    const first = (await app.key.post(path, large)).body
    const second = (await app.key.post(path, item('x'))).body
    full(await app.key.post(path, large))
    full(await app.key.post(`${path}/import`, { items: [large] }))
    full(await send(id, JSON.stringify(large), JSONL))
    full(await app.key.patch(`${path}/${second.id}`, { input: large.input }))
    assert.equal((await app.key.patch(`${path}/${first.id}`, item('y'))).status, 200)
    assert.equal((await app.key.patch(`${path}/${second.id}`, { input: large.input })).status, 200)
    full(await app.key.post(path, large))
    assert.equal((await app.key.delete(`${path}/${second.id}`)).status, 204)
    assert.equal((await app.key.post(path, large)).status, 201)
  })

  it('hold no formula of any spelling', async () => {
    const id = await app.dataset(
      ['=1', '+1', '-1', '@x', '\t=1', '\r=1', '\n=1', '\uff1d1', '\uff0b1', '\uff0d1', '\uff20x'].map(text =>
        item(text),
      ),
    )
    const file = await exported(id, 'csv')
    assert.equal(file.match(/^"'/gm)?.length, 11, file)
  })
})
