import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { client } from '../local/double/client.ts'
import { eventually, startApp } from '../support/app.ts'
import { pdf } from '../support/pdf.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { reply, startTools, type TestTools } from '../support/tools.ts'
import { chunksOf, eventsOf, ingested, settledStatus, upload } from './ingestion-support.ts'

const BASE_URL = 'http://muster.test'
const INLINE_BYTES = 65_536
/** An image of one pixel. */
const GIF = Buffer.from('R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7', 'base64')

// Tools are filled in by test/support/tools.ts: the product has the hook for them, and no tools yet.
describe('converters', function () {
  this.timeout(60_000)
  const tools = forSuite(startTools)
  const app = forSuite(() =>
    startAgentApp({
      workers: ['ingestion', 'generation'],
      env: {
        BASE_URL,
        FILES_INLINE_MAX_BYTES: String(INLINE_BYTES),
        PROVIDER_MAX_RETRIES: '0',
        INGESTION_LEASE_SECONDS: '2',
      },
    }),
  )
  const double = forSuite(() => client(app.double))

  let counter = 0
  /** A type that no other test uses, so that its rule is the only one. */
  const someType = () => `test/t${++counter}`
  const rule = (fields: object) => createdBy(app.key, '/ingestion-rules', fields)
  /** A tool of the project with a rule for a type that only it has. */
  const converter = async (fields: object = {}) => {
    const tool = await tools.add(app, app.projectId)
    const content_type = someType()
    const made = await rule({ content_type_glob: content_type, tool_id: tool, ...fields })
    return { tool, content_type, rule: made }
  }
  const ingest = async (content_type: string, fields: object = {}, bytes: Buffer | string = 'bytes') =>
    ingested(app.key, await upload(app.key, bytes, { content_type }), fields)
  /** A file one byte larger than the limit of files in base64. */
  const uploadLarge = async (content_type: string) => {
    const body = new FormData()
    body.set('content_type', content_type)
    body.set('file', new Blob([Buffer.alloc(INLINE_BYTES + 1)]), `large ${++counter}.bin`)
    const headers = { authorization: `Bearer ${app.key.token}` }
    const uploaded = await fetch(`${app.url}/api/v1/files/upload`, { method: 'POST', headers, body })
    assert.equal(uploaded.status, 201)
    return ((await uploaded.json()) as { id: string }).id
  }
  const waited = async (content_type: string) => {
    const file_id = await upload(app.key, 'bytes', { content_type })
    return app.key.post('/documents/ingest?wait=true', { file_id })
  }
  const failure = ({ status, error }: any, code: string) => {
    assert.deepEqual([status, error?.code], ['failed', code], JSON.stringify(error))
    return error
  }

  describe('of files', () => {
    it('are taken from the rule that matches best', async () => {
      const [all, exact] = [await tools.add(app, app.projectId), await tools.add(app, app.projectId)]
      await rule({ content_type_glob: 'image/*', tool_id: all })
      await rule({ content_type_glob: 'image/png', tool_id: exact })
      await ingest('image/png; q=1')
      assert.deepEqual([tools.calls(all).length, tools.calls(exact).length], [0, 1])
      await ingest('IMAGE/gif')
      assert.deepEqual([tools.calls(all).length, tools.calls(exact).length], [1, 1])
      const below = await tools.add(app, app.projectId)
      await rule({ content_type_glob: 'image/*', tool_id: below, path_prefix: '/scans' })
      const file = await upload(app.key, 'bytes', { content_type: 'image/png', prefix: '/scans/2026' })
      assert.equal((await ingested(app.key, file)).status, 'ready')
      assert.deepEqual([tools.calls(exact).length, tools.calls(below).length], [1, 1])
    })

    it('are called for a PDF with text under `skip` alone', async () => {
      const tool = await tools.add(app, app.projectId)
      const made = await rule({ content_type_glob: 'application/pdf', tool_id: tool })
      const born = await ingest('application/pdf', {}, pdf(['Born digital']))
      assert.deepEqual([born.status, born.content], ['ready', 'Born digital'])
      assert.equal(tools.calls(tool).length, 0)
      tools.answer(tool, { body: 'read off the picture' })
      const scanned = await ingest('application/pdf', {}, pdf(['', '']))
      assert.deepEqual([scanned.status, scanned.content], ['ready', 'read off the picture'])
      assert.equal(tools.calls(tool).length, 1)
      assert.equal((await app.key.patch(`/ingestion-rules/${made.id}`, { native_extraction: 'skip' })).status, 200)
      const skipped = await ingest('application/pdf', {}, pdf(['Born digital']))
      assert.deepEqual([skipped.content, tools.calls(tool).length], ['read off the picture', 2])
      await app.key.delete(`/ingestion-rules/${made.id}`)
      failure(await ingest('application/pdf', {}, pdf(['', ''])), 'FILE_PARSE_FAILED')
    })

    it('are selected when a file is processed, by the rules of that moment', async () => {
      const web = await startApp()
      const { id, key } = await web.project()
      const [first, second] = [await tools.add(web, id), await tools.add(web, id)]
      const made = (await key.post('/ingestion-rules', { content_type_glob: 'x/y', tool_id: first })).body
      const gone = (await key.post('/ingestion-rules', { content_type_glob: 'x/gone', tool_id: first })).body
      const post = async (content_type: string) =>
        (await key.post('/documents/ingest', { file_id: await upload(key, 'bytes', { content_type }) })).body.id
      const [changed, lost] = [await post('x/y'), await post('x/gone')]
      await key.patch(`/ingestion-rules/${made.id}`, { tool_id: second })
      await key.patch(`/ingestion-rules/${gone.id}`, { enabled: false })
      const worker = await startApp({ databaseUrl: web.databaseUrl, workers: ['ingestion'] })
      try {
        assert.equal((await settledStatus(key, changed)).status, 'ready')
        assert.deepEqual([tools.calls(first).length, tools.calls(second).length], [0, 1])
        failure(await settledStatus(key, lost), 'UNSUPPORTED_FILE_TYPE')
      } finally {
        await worker.close()
        await web.close()
      }
    })

    it('finish a conversion that began before their rule was deleted', async () => {
      const { tool, content_type, rule: made } = await converter()
      let release = () => {}
      tools.answer(tool, (_request, response) => {
        release = () => reply(response, 'the end')
      })
      const file_id = await upload(app.key, 'bytes', { content_type })
      const { id } = (await app.key.post('/documents/ingest', { file_id })).body
      await eventually(() => tools.calls(tool).length === 1)
      assert.equal((await app.key.delete(`/ingestion-rules/${made.id}`)).status, 204)
      release()
      assert.equal((await settledStatus(app.key, id)).status, 'ready')
    })
  })

  describe('that are tools', () => {
    it('are sent the presets verbatim, the file and the callback, under the key of the attempt', async () => {
      const preset_parameters = { Some_Key: 1, nested: { Deep_Key: [true, null] } }
      const { tool, content_type } = await converter({ preset_parameters })
      const bytes = Buffer.from([0, 1, 2, 255])
      const file_id = await upload(app.key, bytes, { content_type: `${content_type}; q=1`, filename: 'scan 1.bin' })
      const document = await ingested(app.key, file_id)
      const [{ input, headers }] = tools.calls(tool)
      const { callback, ...rest } = input
      assert.deepEqual(rest, {
        ...preset_parameters,
        file: {
          id: file_id,
          filename: 'scan 1.bin',
          content_type: `${content_type}; q=1`,
          size: 4,
          data_base64: bytes.toString('base64'),
        },
      })
      assert.deepEqual(Object.keys(callback).sort(), ['token', 'url'])
      assert.equal(
        callback.url,
        `${BASE_URL}/api/v1/documents/${document.id}/ingestion-callback?token=${callback.token}`,
      )
      assert.match(headers['idempotency-key'] as string, /^iat_/)
      assert.equal(document.content, 'text')
    })

    it('are called as the caller of the ingestion, with the action of the rule and the limit on calls', async () => {
      const { id, key, keyId } = await app.project()
      const tool = await tools.add(app, id)
      await key.post('/ingestion-rules', { content_type_glob: 'x/y', tool_id: tool, action: 'ocr' })
      await ingested(key, await upload(key, 'bytes', { content_type: 'x/y' }))
      assert.deepEqual(
        tools.handed.filter(call => call.tool_id === tool),
        [
          {
            tool_id: tool,
            action: 'ocr',
            timeout_ms: 120_000,
            principal: { type: 'api_key', id: keyId, via: null },
          },
        ],
      )
    })

    it('may be given an address to download the file from, good for that file alone', async () => {
      const { tool, content_type } = await converter({ file_delivery: 'download_url' })
      const file_id = await upload(app.key, 'the bytes', { content_type })
      await ingested(app.key, file_id)
      const [{ input }] = tools.calls(tool)
      assert.deepEqual(Object.keys(input.file).sort(), ['content_type', 'download_url', 'filename', 'id', 'size'])
      const url = new URL(input.file.download_url)
      assert.equal(`${url.origin}${url.pathname}`, `${BASE_URL}/api/v1/files/${file_id}/download`)
      const download = (path: string) => fetch(`${app.url}${path}`)
      const answer = await download(`${url.pathname}${url.search}`)
      assert.deepEqual([answer.status, await answer.text()], [200, 'the bytes'])
      const other = await upload(app.key, 'other', { content_type })
      assert.equal((await download(`/api/v1/files/${other}/download${url.search}`)).status, 401)
      assert.equal((await download(`${url.pathname}${url.search}x`)).status, 401)
      assert.equal((await download(`/api/v1/files/${file_id}${url.search}`)).status, 401)
      const callback = `/api/v1/documents/${file_id}/ingestion-callback${url.search}`
      assert.equal((await fetch(`${app.url}${callback}`, { method: 'POST' })).status, 401)
    })

    it('are not sent files in base64 that are larger than FILES_INLINE_MAX_BYTES', async () => {
      const { tool, content_type, rule: made } = await converter()
      const file_id = await uploadLarge(content_type)
      const document = await ingested(app.key, file_id)
      const error = failure(document, 'CONVERTER_FAILED')
      assert.deepEqual(error.meta, { tool_id: tool, reason: 'file_too_large_for_base64' })
      assert.equal(tools.calls(tool).length, 0)
      await app.key.patch(`/ingestion-rules/${made.id}`, { file_delivery: 'download_url' })
      assert.equal((await app.key.post(`/documents/${document.id}/ingest`)).status, 202)
      assert.equal((await settledStatus(app.key, document.id)).status, 'ready')
    })

    it('answer a string, or pages in their order, numbered or not; blank ones are dropped', async () => {
      const { tool, content_type } = await converter()
      const cases: [unknown, [number, string][]][] = [
        ['all of it', [[1, 'all of it']]],
        [
          { pages: [{ text: 'one' }, { text: ' ' }, { text: 'three', page_number: 3 }] },
          [
            [1, 'one'],
            [3, 'three'],
          ],
        ],
        [
          {
            pages: [
              { text: 'b', page_number: '12' },
              { text: 'a', page_number: null },
            ],
            confidence: 0.9,
          },
          [
            [12, 'b'],
            [2, 'a'],
          ],
        ],
        [{ pages: [{ text: 'nul\0 and \ud800 half' }] }, [[1, 'nul and \ufffd half']]],
      ]
      for (const [body, pages] of cases) {
        tools.answer(tool, { body })
        const document = await ingest(content_type)
        assert.equal(document.status, 'ready', JSON.stringify(document.error))
        assert.deepEqual(
          (await chunksOf(app, document.id)).map(chunk => [chunk.page_number, chunk.content]),
          pages,
        )
        assert.equal((await app.key.get(`/documents/${document.id}/status`)).body.total_pages, pages.length)
      }
    })

    it('cut by the chunk settings of the rule, unless the request says otherwise', async () => {
      const { tool, content_type } = await converter({ chunk_strategy: 'size', chunk_size: 4, chunk_overlap: 0 })
      tools.answer(tool, { body: 'abcdefgh' })
      const byRule = await ingest(content_type)
      assert.deepEqual([byRule.chunk_strategy, byRule.chunk_size, byRule.chunk_count], ['size', 4, 2])
      const asked = await ingest(content_type, { chunk_strategy: 'whole' })
      assert.deepEqual([asked.chunk_strategy, asked.chunk_count], ['whole', 1])
    })

    it('fail a document with an answer that is none', async () => {
      const { tool, content_type } = await converter()
      const cases: [unknown, string][] = [
        [{ foo: 1 }, 'output'],
        [5, 'output'],
        [null, 'output'],
        // An empty answer is null.
        ['', 'output'],
        [[], 'output'],
        [['text'], 'output'],
        [{ pages: 'text' }, 'output'],
        [{ pages: ['text'] }, 'pages[0]'],
        [{ pages: [null] }, 'pages[0]'],
        [{ pages: [{ text: 'a' }, { page_number: 2 }] }, 'pages[1].text'],
        [{ pages: [{ text: 1 }] }, 'pages[0].text'],
        ...[0, -1, 1.5, 2 ** 31, 'two', '0x2', '', {}, true].map((page_number): [unknown, string] => [
          { pages: [{ text: 'a', page_number }] },
          'pages[0].page_number',
        ]),
      ]
      const documents = []
      for (const [body] of cases) {
        tools.answer(tool, { body })
        documents.push(await ingest(content_type))
      }
      for (const [index, document] of documents.entries()) {
        const error = failure(document, 'CONVERTER_OUTPUT_INVALID')
        assert.deepEqual(error.meta, { tool_id: tool, path: cases[index][1] }, JSON.stringify(cases[index][0]))
      }
      const [told] = (await eventsOf(app, documents[0].id)).filter(({ name }) => name === 'documents.ingest_failed')
      assert.equal(told.data.error.code, 'CONVERTER_OUTPUT_INVALID')
    })

    it('fail a document with an answer without text', async () => {
      const { tool, content_type } = await converter()
      for (const body of [' \n', { pages: [] }, { pages: [{ text: '\t' }] }]) {
        tools.answer(tool, { body })
        failure(await ingest(content_type), 'FILE_PARSE_FAILED')
      }
    })

    it('fail a document when they fail, immediately and with the cause', async () => {
      const { tool, content_type } = await converter()
      tools.answer(tool, { status: 500, body: 'out of order' })
      const error = failure(await ingest(content_type), 'CONVERTER_FAILED')
      assert.deepEqual(error, {
        code: 'CONVERTER_FAILED',
        message: `Converter tool '${tool}' failed: Target of the tool responded with 500`,
        meta: {
          tool_id: tool,
          cause: {
            code: 'TOOL_HTTP_ERROR',
            meta: {
              tool_status_code: 500,
              tool_response_body: 'out of order',
              tool_url: tools.url(tool),
              tool_method: 'POST',
            },
          },
        },
      })
      assert.equal(tools.calls(tool).length, 1)
      tools.answer(tool, (_request, response) => response.destroy())
      failure(await ingest(content_type), 'CONVERTER_FAILED')
      tools.answer(tool, { status: 400, body: 'nul \0 in it' })
      const { cause } = failure(await ingest(content_type), 'CONVERTER_FAILED').meta
      assert.equal(cause.meta.tool_response_body, 'nul \ufffd in it')
    })

    it('are cut off, and say nothing, once another attempt has taken the place of theirs', async () => {
      const { tool, content_type } = await converter()
      tools.answer(tool, () => {})
      const file_id = await upload(app.key, 'bytes', { content_type })
      const { id } = (await app.key.post('/documents/ingest', { file_id })).body
      await eventually(() => tools.calls(tool).length === 1)
      tools.answer(tool, { body: 'second' })
      assert.equal((await app.key.post(`/documents/${id}/ingest`)).status, 202)
      assert.equal((await settledStatus(app.key, id)).status, 'ready')
      await eventually(() => tools.calls(tool)[0].signal.aborted, { what: 'the end of the first call' })
      const attempt = tools.calls(tool)[0].headers['idempotency-key'] as string
      await eventually(() => app.logs.some(line => line.includes(attempt) && line.includes('claim_lost')))
      assert.ok(!app.logs.some(line => line.includes(attempt) && line.includes('CONVERTER_FAILED')))
      assert.equal((await app.key.get(`/documents/${id}`)).body.content, 'second')
    })

    it('fail a document when they are lost', async () => {
      const { tool, content_type } = await converter()
      await tools.remove(app, tool)
      const error = failure(await ingest(content_type), 'CONVERTER_FAILED')
      assert.deepEqual(error.meta, { tool_id: tool, reason: 'converter_missing' })
    })
  })

  describe('that answer later', () => {
    const pending = { body: { status: 'pending' } }
    /** A document whose converter has answered pending, and how its callback is reached. */
    const deferred = async () => {
      const { tool, content_type } = await converter()
      tools.answer(tool, pending)
      const file_id = await upload(app.key, 'bytes', { content_type })
      const { id } = (await app.key.post('/documents/ingest', { file_id })).body
      await eventually(() => tools.calls(tool).length === 1)
      const { token } = tools.calls(tool)[0].input.callback
      const post = (body: unknown, query = `?token=${token}`) =>
        app.anonymous.post(`/documents/${id}/ingestion-callback${query}`, body)
      return { id, tool, token, post }
    }
    const refused = (answer: { status: number; body: any }, status: number, code: string) =>
      assert.deepEqual([answer.status, answer.body?.error?.code], [status, code])

    it('leave the document processing until the text is posted, once', async () => {
      const { id, post } = await deferred()
      await new Promise(resolve => setTimeout(resolve, 500))
      assert.equal((await app.key.get(`/documents/${id}`)).body.status, 'processing')
      assert.equal((await post({ text: 'posted later' })).status, 204)
      refused(await post({ text: 'posted again' }), 409, 'INGESTION_CALLBACK_CONFLICT')
      assert.equal((await settledStatus(app.key, id)).status, 'ready')
      assert.equal((await app.key.get(`/documents/${id}`)).body.content, 'posted later')
      refused(await post({ text: 'posted again' }), 409, 'INGESTION_CALLBACK_CONFLICT')
    })

    it('may post pages in an invalid body first, and then in a valid one', async () => {
      const { id, post } = await deferred()
      for (const body of [{ foo: 1 }, { pages: [{ text: 1 }] }, { status: 'pending' }, [], '{'])
        refused(await post(body), 422, 'CONVERTER_OUTPUT_INVALID')
      assert.equal((await post({ pages: [{ text: 'one' }, { text: 'two', page_number: 7 }] })).status, 204)
      assert.equal((await settledStatus(app.key, id)).status, 'ready')
      assert.deepEqual(
        (await chunksOf(app, id)).map(chunk => chunk.page_number),
        [1, 7],
      )
    })

    it('are refused with a token that is missing, tampered with, or of another document', async () => {
      const { id, token, post } = await deferred()
      const other = await deferred()
      for (const query of ['', '?token=', `?token=${token}x`, `?token=${other.token}`, '?token=a.b.c'])
        refused(await post({ text: 'x' }, query), 401, 'INGESTION_CALLBACK_INVALID_TOKEN')
      assert.equal((await app.key.get(`/documents/${id}`)).body.status, 'processing')
    })

    it('are refused once another attempt has taken the place of theirs', async () => {
      const { id, tool, post } = await deferred()
      assert.equal((await app.key.post(`/documents/${id}/ingest`)).status, 202)
      await eventually(() => tools.calls(tool).length === 2)
      refused(await post({ text: 'too late' }), 409, 'INGESTION_CALLBACK_CONFLICT')
      const { token } = tools.calls(tool)[1].input.callback
      assert.equal((await post({ text: 'in time' }, `?token=${token}`)).status, 204)
      await settledStatus(app.key, id)
      assert.equal((await app.key.get(`/documents/${id}`)).body.content, 'in time')
      const keys = tools.calls(tool).map(call => call.headers['idempotency-key'])
      assert.notEqual(keys[0], keys[1])
    })

    it('fail a document that is waited for: they are given no callback', async () => {
      const { tool, content_type } = await converter()
      tools.answer(tool, pending)
      const { status, body } = await waited(content_type)
      assert.equal(status, 201)
      assert.deepEqual(failure(body, 'CONVERTER_FAILED').meta, { tool_id: tool, reason: 'deferral_not_allowed' })
      assert.equal('callback' in tools.calls(tool)[0].input, false)
    })
  })

  describe('without an address of the deployment', () => {
    const plain = forSuite(() => startApp({ workers: ['ingestion'], env: { CONVERTER_TIMEOUT_MS: '2000' } }))

    const convert = async (answer: Parameters<TestTools['answer']>[1], fields: object = {}) => {
      const { id, key } = await plain.project()
      const tool = await tools.add(plain, id)
      tools.answer(tool, answer)
      await key.post('/ingestion-rules', { content_type_glob: 'x/y', tool_id: tool, ...fields })
      return { tool, document: await ingested(key, await upload(key, 'bytes', { content_type: 'x/y' })) }
    }

    it('tools are given no callback and may not answer later', async () => {
      const { tool, document } = await convert({ body: { status: 'pending' } })
      assert.equal('callback' in tools.calls(tool)[0].input, false)
      assert.equal(failure(document, 'CONVERTER_FAILED').meta.reason, 'deferral_not_allowed')
    })

    it('tools cannot be given an address of the file', async () => {
      const { tool, document } = await convert({ body: 'text' }, { file_delivery: 'download_url' })
      failure(document, 'FILE_DOWNLOAD_URL_NOT_CONFIGURED')
      assert.equal(tools.calls(tool).length, 0)
    })

    it('tools have CONVERTER_TIMEOUT_MS', async () => {
      const { tool, document } = await convert(() => {})
      failure(document, 'CONVERTER_FAILED')
      assert.ok(tools.calls(tool)[0].signal.aborted)
    })
  })

  describe('that are agents', () => {
    const lane = async (name: string, rules: object[] = [], content_type = `image/${name}`) => {
      await double.put(name, { rules } as never)
      const agent = await app.agent({ model: `${name}/m` })
      await rule({ content_type_glob: content_type, agent_id: agent })
      return { agent, content_type }
    }
    const generationsOf = async (agent: string) => (await app.key.get(`/generations?agent_id=${agent}`)).body.data

    it('receive the picture and the request for its text, in one ordinary generation', async () => {
      const { agent, content_type } = await lane('ocr', [{ reply: { text: 'Invoice 7' } }], 'image/gif')
      const file_id = await upload(app.key, GIF, { content_type })
      const document = await ingested(app.key, file_id)
      assert.deepEqual([document.status, document.content], ['ready', 'Invoice 7'])
      assert.deepEqual(
        (await chunksOf(app, document.id)).map(chunk => [chunk.page_number, chunk.content]),
        [[1, 'Invoice 7']],
      )
      const requests = await double.requests('ocr')
      assert.equal(requests.length, 1)
      const [instruction, picture] = requests[0].body.messages[0].content
      assert.match(instruction.text, /extract all text .* verbatim/i)
      const data = GIF.toString('base64')
      assert.deepEqual(picture, { type: 'image_url', image_url: { url: `data:${content_type};base64,${data}` } })
      const [generation, ...more] = await generationsOf(agent)
      assert.equal(more.length, 0)
      assert.deepEqual(
        [generation.status, generation.source, generation.started_by_principal_type, generation.session_id],
        ['completed', 'ingestion', 'api_key', null],
      )
      assert.ok(generation.usage.input_tokens > 0)
      assert.equal((await app.key.get(`/traces/${generation.trace_id}`)).body.agent_id, agent)
      const { input } = (await app.key.get(`/generations/${generation.id}/transcript`)).body
      assert.deepEqual(input[0].content[1], { type: 'file', file_id })
    })

    it('are given a PDF as a file', async () => {
      const { agent } = await lane('pdfs', [{ reply: { text: 'read' } }])
      const made = await rule({ content_type_glob: 'application/pdf', agent_id: agent, native_extraction: 'skip' })
      const bytes = pdf(['x'])
      assert.equal((await ingest('application/pdf', {}, bytes)).content, 'read')
      await app.key.delete(`/ingestion-rules/${made.id}`)
      const [request] = await double.requests('pdfs')
      const { type, file } = request.body.messages[0].content[1]
      assert.deepEqual([type, file.file_data], ['file', `data:application/pdf;base64,${bytes.toString('base64')}`])
    })

    it('fail a document as their generation failed', async () => {
      const { agent, content_type } = await lane('broken', [
        { reply: { error: { status: 400, message: 'no picture' } } },
      ])
      const error = failure(await ingest(content_type), 'CONVERTER_FAILED')
      const [generation] = await generationsOf(agent)
      assert.equal(generation.status, 'failed')
      assert.ok(error.message.startsWith(`Converter agent '${agent}' failed: `))
      assert.equal(error.meta.agent_id, agent)
      assert.equal(error.meta.cause.code, 'AI_PROVIDER_ERROR')
      assert.equal(error.meta.cause.meta.generation_id, generation.id)
      assert.equal(error.meta.cause.meta.provider_status_code, 400)
    })

    it('fail a document when they are deleted while they read it', async () => {
      const { agent, content_type } = await lane('deleted', [{ reply: { text: 'late', gate: 'deleted' } }])
      const file_id = await upload(app.key, 'x', { content_type })
      const { id } = (await app.key.post('/documents/ingest', { file_id })).body
      await eventually(async () => ((await double.gate('deleted'))?.waiting ?? 0) >= 1)
      const [{ id: made }] = (await app.key.get('/ingestion-rules?limit=1')).body.data
      assert.equal((await app.key.delete(`/ingestion-rules/${made}`)).status, 204)
      assert.equal((await app.key.delete(`/agents/${agent}?force=true`)).status, 204)
      const { error, status } = await settledStatus(app.key, id)
      assert.deepEqual(
        [status, error.code, error.meta.cause.code],
        ['failed', 'CONVERTER_FAILED', 'RESOURCE_NOT_FOUND'],
      )
      await double.read('POST', '/control/gates/deleted/open')
    })

    it('fail a document when they answer no text', async () => {
      const { content_type } = await lane('mute', [{ reply: { text: ' \n' } }])
      const { meta } = failure(await ingest(content_type), 'CONVERTER_FAILED')
      assert.equal(meta.cause.meta.reason, 'no_text')
    })

    it('fail a document of a type that their model does not take', async () => {
      const agent = await app.agent()
      const content_type = 'application/x-strange'
      await rule({ content_type_glob: content_type, agent_id: agent })
      const { meta } = failure(await ingest(content_type), 'CONVERTER_FAILED')
      assert.equal(meta.cause.code, 'AI_PROVIDER_ERROR')
    })

    it('fail a document when no turn can be made', async () => {
      const { agent, content_type } = await lane('paused')
      const file_id = await upload(app.key, 'x', { content_type })
      await app.admin.post(`/projects/${app.projectId}/pause`, {})
      const document = await ingested(app.key, file_id)
      await app.admin.post(`/projects/${app.projectId}/resume`)
      assert.equal(failure(document, 'CONVERTER_FAILED').meta.cause.code, 'PROJECT_PAUSED')
      assert.equal((await generationsOf(agent)).length, 0)
    })

    it('are not given files larger than FILES_INLINE_MAX_BYTES', async () => {
      const { agent, content_type } = await lane('large')
      const document = await ingested(app.key, await uploadLarge(content_type))
      assert.deepEqual(failure(document, 'CONVERTER_FAILED').meta, {
        agent_id: agent,
        reason: 'file_too_large_for_base64',
      })
      assert.equal((await generationsOf(agent)).length, 0)
    })

    it('are run for every caller who may ingest, even without permission to run agents', async () => {
      const { content_type } = await lane('deputy', [{ reply: { text: 'for you' } }])
      const user = await app.user(undefined, [
        {
          statement: [
            {
              effect: 'Allow',
              action: ['documents:*', 'files:*'],
              resource: [`srn:${app.projectId}:document:*`, `srn:${app.projectId}:file:*`],
            },
          ],
        },
      ])
      const project_id = app.projectId
      const file_id = await upload(user, 'x', { content_type, project_id })
      const document = await ingested(user, file_id, { project_id })
      assert.deepEqual([document.status, document.content], ['ready', 'for you'])
    })

    it('answer in a project that keeps no content', async () => {
      const { content_type } = await lane('secret', [{ reply: { text: 'for your eyes' } }])
      await app.admin.patch(`/projects/${app.projectId}`, { trace_content_mode: 'none' })
      const document = await ingest(content_type)
      await app.admin.patch(`/projects/${app.projectId}`, { trace_content_mode: 'full' })
      assert.deepEqual([document.status, document.content], ['ready', 'for your eyes'])
    })
  })

  it('that are agents have CONVERTER_TIMEOUT_MS, whether or not a worker runs them', async () => {
    const idle = await startAgentApp({ workers: ['ingestion'], env: { CONVERTER_TIMEOUT_MS: '500' } })
    try {
      const late = { content_type_glob: 'image/*', agent_id: idle.agentId }
      assert.equal((await idle.key.post('/ingestion-rules', late)).status, 201)
      const document = await ingested(idle.key, await upload(idle.key, 'x', { content_type: 'image/png' }))
      const { cause } = failure(document, 'CONVERTER_FAILED').meta
      assert.deepEqual([cause.code, cause.meta.reason], ['GENERATION_FAILED', 'deadline'])
      const [generation] = (await idle.key.get('/generations')).body.data
      assert.deepEqual([generation.status, generation.stop_reason], ['failed', 'cancelled'])
    } finally {
      await idle.close()
    }
  })
})
