import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import { signToken } from '#identity/tokens/tokens.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { randomOf } from '../support/fuzz.ts'
import { pdf } from '../support/pdf.ts'
import { forSuite } from '../support/suite.ts'
import { reply, startTools } from '../support/tools.ts'
import {
  age,
  chunksOf,
  eventsOf,
  ingested,
  refuses,
  settledStatus,
  silence,
  sweep,
  upload,
} from './ingestion-support.ts'

describe('conversion of files', () => {
  const tools = forSuite(startTools)
  const app = forSuite(() =>
    startApp({
      workers: ['ingestion'],
      env: {
        BASE_URL: 'http://muster.test',
        INGESTION_MAX_TEXT_BYTES: '100000',
        INGESTION_MAX_PAGES: '20',
        INGESTION_LEASE_SECONDS: '4',
      },
    }),
  )
  let key: TestApp['admin']
  let keyId: string
  let tool: string

  before(async () => {
    const project = await app.project()
    key = project.key
    keyId = project.keyId
    tool = await tools.add(app, project.id)
    for (const fields of [
      { content_type_glob: 'image/*' },
      { content_type_glob: 'application/pdf', path_prefix: '/first' },
      { content_type_glob: 'application/pdf', path_prefix: '/skip', native_extraction: 'skip' },
      {
        content_type_glob: 'text/plain',
        path_prefix: '/sized',
        chunk_strategy: 'size',
        chunk_size: 10,
        chunk_overlap: 0,
      },
    ]) {
      const { status, body } = await key.post('/ingestion-rules', { tool_id: tool, ...fields })
      assert.equal(status, 201, JSON.stringify(body))
    }
  })
  beforeEach(() => tools.answer(tool, { body: 'text' }))

  const image = (fields: object = {}) => upload(key, 'PNG', { content_type: 'image/png', ...fields })
  const lastInput = () => tools.calls(tool)[tools.calls(tool).length - 1].input
  /** Ingests an image whose converter defers, and answers the document with the address to post the text to. */
  const deferred = async () => {
    tools.answer(tool, { body: { status: 'pending' } })
    const { body } = await key.post('/documents/ingest', { file_id: await image() })
    await attemptIs(body.id, 'awaiting')
    const { callback } = lastInput()
    return { id: body.id as string, token: callback.token as string, url: callback.url as string }
  }
  const attemptIs = (id: string, state: string) =>
    eventually(async () => (await attempt(id))?.state === state, { what: `${id} being ${state}` })
  const attempt = (id: string) =>
    app.pool.maybeOne(sql.unsafe`select * from ingestion_attempts where document_id = ${id}`) as Promise<{
      id: string
      state: string
    } | null>
  const post = (id: string, token: string, body: unknown, headers?: Record<string, string>) =>
    app.anonymous.post(`/documents/${id}/ingestion-callback?token=${token}`, body, headers)

  it('makes chunks of the pages that a tool answers', async () => {
    tools.answer(tool, { body: { pages: [{ text: 'one' }, { text: ' ' }, { text: 'three', page_number: 3 }] } })
    const document = await ingested(key, await image())
    assert.equal(document.status, 'ready')
    assert.deepEqual(
      (await chunksOf(app, document.id)).map(({ page_number, content }) => [page_number, content]),
      [
        [1, 'one'],
        [3, 'three'],
      ],
    )
    assert.equal((await key.get(`/documents/${document.id}/status`)).body.total_pages, 2)
  })

  it('records what a tool answers wrongly, and that it fails, without another try', async () => {
    const failure = async (answer: { status?: number; body: unknown }) => {
      tools.answer(tool, answer)
      const calls = tools.calls(tool).length
      const document = await ingested(key, await image())
      assert.equal(document.status, 'failed')
      assert.equal(tools.calls(tool).length, calls + 1)
      return document.error.code
    }
    assert.equal(await failure({ body: { foo: 1 } }), 'CONVERTER_OUTPUT_INVALID')
    assert.equal(await failure({ status: 500, body: 'no' }), 'CONVERTER_FAILED')
    assert.equal(await failure({ body: ' \n ' }), 'FILE_PARSE_FAILED')
    assert.equal(await failure({ body: { pages: [] } }), 'FILE_PARSE_FAILED')
  })

  it('bounds the depth of posted bodies before it parses them', async () => {
    const { id, token } = await deferred()
    const reply = await post(id, token, `{"pages":${'['.repeat(40_000)}${']'.repeat(40_000)}}`)
    assert.deepEqual([reply.status, reply.body.error.meta.problems?.[0].code], [400, 'TOO_DEEP'])
    assert.equal((await post(id, token, { text: 'whole' })).status, 204)
  })

  it('hands a tool every key of its presets', async () => {
    const preset_parameters = JSON.parse('{ "Some_Key": 1, "__proto__": { "a": 1 } }')
    await key.post('/ingestion-rules', { tool_id: tool, content_type_glob: 'audio/preset', preset_parameters })
    await ingested(key, await upload(key, 'RIFF', { content_type: 'audio/preset' }))
    const { file: _, callback: __, ...presets } = lastInput()
    assert.deepEqual(presets, preset_parameters)
  })

  it('takes as much text as a document may have, from a tool too', async () => {
    tools.answer(tool, { body: 'x'.repeat(100_001) })
    const { status, error } = await ingested(key, await image())
    assert.deepEqual([status, error.code], ['failed', 'INGESTION_FAILED'])
    assert.match(error.message, /INGESTION_MAX_TEXT_BYTES/)
    tools.answer(tool, { body: 'x'.repeat(100_000) })
    assert.equal((await ingested(key, await image())).status, 'ready')
  })

  it('takes as many pages as a file may have, answered or posted', async () => {
    const pages = Array.from({ length: 21 }, (_, n) => ({ text: `page ${n}` }))
    tools.answer(tool, { body: { pages } })
    const { status, error } = await ingested(key, await image())
    assert.deepEqual([status, error.code, error.meta.path], ['failed', 'CONVERTER_OUTPUT_INVALID', 'pages'])
    assert.match(error.message, /at most 20 items \(INGESTION_MAX_PAGES\)/)
    const { id, token } = await deferred()
    refuses(await post(id, token, { pages }), 422, 'CONVERTER_OUTPUT_INVALID')
    assert.equal((await post(id, token, { pages: pages.slice(1) })).status, 204)
    assert.equal((await settledStatus(key, id)).chunk_count, 20)
  })

  it('calls the converter of a native type only where its rule says so', async () => {
    const calls = () => tools.calls(tool).length
    const of = async (bytes: Buffer, prefix: string) => {
      const before = calls()
      const document = await ingested(key, await upload(key, bytes, { content_type: 'application/pdf', prefix }))
      return [document.content, calls() - before]
    }
    assert.deepEqual(await of(pdf(['born digital']), '/first'), ['born digital', 0])
    assert.deepEqual(await of(pdf(['']), '/first'), ['text', 1])
    assert.deepEqual(await of(pdf(['born digital']), '/skip'), ['text', 1])
    assert.deepEqual(await of(pdf(['born digital']), '/none'), ['born digital', 0])
  })

  it('cuts by the settings of the rule unless the request names others', async () => {
    const text = 'x'.repeat(25)
    const ruled = await ingested(key, await upload(key, text, { prefix: '/sized' }))
    assert.deepEqual([ruled.chunk_strategy, ruled.chunk_size, ruled.chunk_count], ['size', 10, 3])
    const asked = await ingested(key, await upload(key, text, { prefix: '/sized' }), { chunk_strategy: 'whole' })
    assert.deepEqual([asked.chunk_strategy, asked.chunk_size, asked.chunk_count], ['whole', null, 1])
  })

  it('fails by name where a rule, changed since, and the request exclude each other', async () => {
    const cut = { chunk_strategy: 'size', chunk_size: 1000, chunk_overlap: 0 }
    const rule = await key.post('/ingestion-rules', { tool_id: tool, content_type_glob: 'audio/*', ...cut })
    tools.answer(tool, { body: { status: 'pending' } })
    const { status, body } = await key.post('/documents/ingest', {
      file_id: await upload(key, 'RIFF', { content_type: 'audio/wav' }),
      chunk_overlap: 500,
    })
    assert.equal(status, 202)
    await attemptIs(body.id, 'awaiting')
    assert.equal((await key.patch(`/ingestion-rules/${rule.body.id}`, { chunk_size: 300 })).status, 200)
    assert.equal((await post(body.id, lastInput().callback.token, { text: 'posted' })).status, 204)
    const { error } = await settledStatus(key, body.id)
    assert.equal(error.code, 'VALIDATION_FAILED')
    assert.match(error.message, /chunk_overlap/)
    assert.equal((await key.delete(`/ingestion-rules/${rule.body.id}`)).status, 204)
  })

  it('applies the rules of the moment when it runs', async () => {
    const rule = await key.post('/ingestion-rules', { tool_id: tool, content_type_glob: 'audio/*' })
    tools.answer(tool, { body: { status: 'pending' } })
    const { body } = await key.post('/documents/ingest', {
      file_id: await upload(key, 'RIFF', { content_type: 'audio/wav' }),
    })
    await attemptIs(body.id, 'awaiting')
    assert.equal((await key.delete(`/ingestion-rules/${rule.body.id}`)).status, 204)
    refuses(await key.post(`/documents/${body.id}/ingest`), 400, 'UNSUPPORTED_FILE_TYPE')
    assert.equal((await attempt(body.id))?.state, 'awaiting')
  })

  it('waits for a callback, takes it once, and is ready', async () => {
    const { id, token, url } = await deferred()
    assert.match(url, new RegExp(`^http://muster\\.test/api/v1/documents/${id}/ingestion-callback\\?token=`))
    assert.equal((await key.get(`/documents/${id}/status`)).body.status, 'processing')
    assert.equal((await post(id, token, { text: 'posted later' })).status, 204)
    assert.equal((await settledStatus(key, id)).status, 'ready')
    assert.equal((await key.get(`/documents/${id}`)).body.content, 'posted later')
    refuses(await post(id, token, { text: 'posted later' }), 409, 'INGESTION_CALLBACK_CONFLICT')
    assert.deepEqual(
      (await eventsOf(app, id)).map(({ name }) => name),
      ['documents.created', 'documents.ingested'],
    )
  })

  it('takes pages as a converter answers them; blank ones are no text', async () => {
    const first = await deferred()
    const pages = [{ text: 'a\u0000b' }, { text: ' ' }, { text: 'c', page_number: '7' }]
    assert.equal((await post(first.id, first.token, { pages })).status, 204)
    await settledStatus(key, first.id)
    assert.deepEqual(
      (await chunksOf(app, first.id)).map(({ page_number, content }) => [page_number, content]),
      [
        [1, 'ab'],
        [7, 'c'],
      ],
    )
    const blank = await deferred()
    assert.equal((await post(blank.id, blank.token, { text: ' ' })).status, 204)
    assert.equal((await settledStatus(key, blank.id)).error.code, 'FILE_PARSE_FAILED')
  })

  it('settles with the failure that a converter posts', async () => {
    const { id, token } = await deferred()
    assert.equal((await post(id, token, { status: 'failed', message: 'unreadable\u0000 scan' })).status, 204)
    const { status, error } = (await key.get(`/documents/${id}/status`)).body
    assert.deepEqual([status, error], ['failed', { code: 'CONVERTER_FAILED', message: 'unreadable scan' }])
    refuses(await post(id, token, { text: 'late' }), 409, 'INGESTION_CALLBACK_CONFLICT')
  })

  it('takes no callback but with the token of the document, before anything else', async () => {
    const { id, token } = await deferred()
    const other = await deferred()
    const sign = (kind: 'ingestion' | 'download', subject: string, claims: object, seconds = 60) =>
      signToken(app.servicesOf(subject), kind, subject, claims as Record<string, unknown>, seconds).then(
        signed => signed.token,
      )
    const claims = { attempt_id: (await attempt(id))?.id }
    for (const wrong of [
      '',
      'x',
      `${token}x`,
      token.slice(0, -3),
      other.token,
      key.token as string,
      await sign('download', id, claims),
      await sign('ingestion', id, {}),
      await sign('ingestion', id, claims, -5),
    ])
      refuses(await post(id, wrong, 'not json'), 401, 'INGESTION_CALLBACK_INVALID_TOKEN')
    refuses(
      await app.anonymous.post(`/documents/${id}/ingestion-callback`, {}),
      401,
      'INGESTION_CALLBACK_INVALID_TOKEN',
    )
    refuses(await key.post(`/documents/${id}/ingestion-callback`, {}), 401, 'INGESTION_CALLBACK_INVALID_TOKEN')
    refuses(
      await app.anonymous.post(`/documents/${id}/ingestion-callback?token=${token}&token=${token}`, {}),
      401,
      'INGESTION_CALLBACK_INVALID_TOKEN',
    )
    const gone = newId('doc')
    refuses(await post(gone, await sign('ingestion', gone, claims), 'not json'), 404, 'RESOURCE_NOT_FOUND')
    assert.equal((await post(id, token, { text: 'fine' })).status, 204)
    assert.equal((await post(other.id, other.token, { text: 'fine' })).status, 204)
  })

  it('refuses a body of another shape and stays open', async () => {
    const { id, token } = await deferred()
    for (const wrong of [
      'not json',
      '"text"',
      '[]',
      'null',
      '7',
      {},
      { status: 'pending' },
      { status: 'done' },
      { status: 'failed' },
      { status: 'failed', message: 7 },
      { text: 7 },
      { pages: 'x' },
      { pages: ['x'] },
      { pages: [{ text: 1 }] },
      { pages: [{ text: 'x', page_number: 'two' }] },
      { pages: [{ text: 'x', page_number: 0 }] },
      { text: 'x', pages: [] },
    ])
      refuses(await post(id, token, wrong), 422, 'CONVERTER_OUTPUT_INVALID')
    const big = await post(id, token, { text: 'x'.repeat(100_001) })
    refuses(big, 413, 'REQUEST_REJECTED')
    assert.equal((await attempt(id))?.state, 'awaiting')
    assert.equal((await post(id, token, { text: 'right' }, { 'content-type': 'text/plain' })).status, 204)
    assert.equal((await settledStatus(key, id)).status, 'ready')
  })

  it('refuses the token of an attempt that was superseded', async () => {
    const { id, token } = await deferred()
    assert.equal((await key.post(`/documents/${id}/ingest`)).status, 202)
    await attemptIs(id, 'awaiting')
    refuses(await post(id, token, { text: 'old' }), 409, 'INGESTION_CALLBACK_CONFLICT')
    const fresh = lastInput().callback.token
    assert.equal((await post(id, fresh, { text: 'new' })).status, 204)
    await settledStatus(key, id)
    assert.equal((await key.get(`/documents/${id}`)).body.content, 'new')
  })

  it('refuses a callback for a deleted, withdrawn or ready document', async () => {
    const deleted = await deferred()
    assert.equal((await key.delete(`/documents/${deleted.id}`)).status, 204)
    refuses(await post(deleted.id, deleted.token, { text: 'x' }), 404, 'RESOURCE_NOT_FOUND')
    const withdrawn = await deferred()
    assert.equal((await key.post(`/documents/${withdrawn.id}/withdraw`)).status, 200)
    refuses(await post(withdrawn.id, withdrawn.token, { text: 'x' }), 409, 'INGESTION_CALLBACK_CONFLICT')
    assert.equal((await key.get(`/documents/${withdrawn.id}`)).body.status, 'withdrawn')
  })

  it('refuses a callback for a document that no worker has begun', async () => {
    const idle = await startApp()
    const other = await idle.project()
    const { body } = await other.key.post('/documents/ingest', { file_id: await upload(other.key, 'text') })
    const attempt_id = await idle.pool.oneFirst(sql.unsafe`select id from ingestion_attempts`)
    const { token } = await signToken(idle.services, 'ingestion', body.id, { attempt_id }, 60)
    for (const early of [{ text: 'x' }, { status: 'failed', message: 'no' }])
      refuses(
        await idle.anonymous.post(`/documents/${body.id}/ingestion-callback?token=${token}`, early),
        409,
        'INGESTION_CALLBACK_CONFLICT',
      )
    assert.equal((await other.key.get(`/documents/${body.id}`)).body.status, 'pending')
    await idle.close()
  })

  it('accepts one of many concurrent callbacks', async () => {
    const { id, token } = await deferred()
    const answers = await Promise.all(Array.from({ length: 10 }, (_, n) => post(id, token, { text: `text ${n}` })))
    const taken = answers.findIndex(({ status }) => status === 204)
    assert.equal(answers.filter(({ status }) => status === 204).length, 1)
    assert.equal(answers.filter(({ body }) => body?.error?.code === 'INGESTION_CALLBACK_CONFLICT').length, 9)
    await settledStatus(key, id)
    assert.equal((await key.get(`/documents/${id}`)).body.content, `text ${taken}`)
  })

  it('lets a callback that comes before the tool has answered win over the answer', async () => {
    for (const answer of [{ status: 'pending' }, 'answered text'])
      await (async () => {
        let finish = () => {}
        const posted = new Promise<void>(resolve => {
          tools.answer(tool, ({ input }, response) => {
            finish = () => reply(response, answer)
            void post(new URL(input.callback.url).pathname.split('/')[4], input.callback.token, {
              text: 'called back early',
            }).then(({ status }) => {
              assert.equal(status, 204)
              resolve()
            })
          })
        })
        const { body } = await key.post('/documents/ingest', { file_id: await image() })
        await posted
        finish()
        assert.equal((await settledStatus(key, body.id)).status, 'ready')
        assert.equal((await key.get(`/documents/${body.id}`)).body.content, 'called back early')
        assert.equal((await eventsOf(app, body.id)).length, 2)
      })()
  })

  it('refuses a callback once the tool has answered', async () => {
    const slow = await startApp({
      workers: ['ingestion'],
      env: { BASE_URL: 'http://muster.test', FAULT_POINTS: 'ingestion_read=freeze:3000' },
    })
    const other = await slow.project()
    const answering = await tools.add(slow, other.id)
    await other.key.post('/ingestion-rules', { tool_id: answering, content_type_glob: 'image/*' })
    tools.answer(answering, { body: 'answered' })
    const file_id = await upload(other.key, 'PNG', { content_type: 'image/png' })
    const { body } = await other.key.post('/documents/ingest', { file_id })
    const kept = sql.unsafe`select pages is not null from ingestion_attempts where document_id = ${body.id}`
    await eventually(() => slow.pool.maybeOneFirst(kept))
    const { token } = tools.calls(answering)[0].input.callback
    for (const late of [{ text: 'posted' }, { status: 'failed', message: 'no' }])
      refuses(
        await slow.anonymous.post(`/documents/${body.id}/ingestion-callback?token=${token}`, late),
        409,
        'INGESTION_CALLBACK_CONFLICT',
      )
    assert.equal((await settledStatus(other.key, body.id)).status, 'ready')
    assert.equal((await other.key.get(`/documents/${body.id}`)).body.content, 'answered')
    await slow.close()
  })

  it('does not call a tool again that has answered, when a later step fails', async () => {
    tools.answer(tool, { body: { pages: [{ text: 'answered once', page_number: 4 }] } })
    await app.pool.query(sql.unsafe`
      create function refuse_chunks() returns trigger language plpgsql as
      $$ begin raise exception 'chunks are refused'; end $$`)
    await app.pool.query(sql.unsafe`
      create trigger refuse_chunks before insert on document_chunks for each row execute function refuse_chunks()`)
    const calls = tools.calls(tool).length
    const { body } = await key.post('/documents/ingest', { file_id: await image() })
    const failures = sql.unsafe`select failures from ingestion_attempts where document_id = ${body.id}`
    await eventually(async () => (await app.pool.maybeOneFirst(failures)) === 1)
    await app.pool.query(sql.unsafe`drop trigger refuse_chunks on document_chunks`)
    await age(app, body.id, 10)
    await sweep(app)
    assert.equal((await settledStatus(key, body.id)).status, 'ready')
    assert.equal(tools.calls(tool).length, calls + 1)
    assert.deepEqual(
      (await chunksOf(app, body.id)).map(({ page_number, content }) => [page_number, content]),
      [[4, 'answered once']],
    )
  })

  it('leaves a tool that was overtaken by its callback within a beat of the lease', async () => {
    let ended = false
    tools.answer(tool, ({ input, signal }) => {
      signal.addEventListener('abort', () => {
        ended = true
      })
      void post(new URL(input.callback.url).pathname.split('/')[4], input.callback.token, { text: 'no need to wait' })
    })
    const { body } = await key.post('/documents/ingest', { file_id: await image() })
    assert.equal((await settledStatus(key, body.id)).status, 'ready')
    await eventually(() => ended)
  })

  it('does not defer for a caller that waits', async () => {
    tools.answer(tool, { body: { status: 'pending' } })
    const { status, body } = await key.post('/documents/ingest?wait=true', { file_id: await image() })
    assert.deepEqual([status, body.status, body.error.code], [201, 'failed', 'CONVERTER_FAILED'])
    assert.equal('callback' in lastInput(), false)
  })

  it('records the error of its last try, without characters that a text cannot store', async () => {
    const once = await startApp({ workers: ['ingestion'], env: { INGESTION_MAX_TRIES: '1' } })
    const other = await once.project()
    const broken = await tools.add(once, other.id)
    await other.key.post('/ingestion-rules', { tool_id: broken, content_type_glob: 'image/*' })
    tools.break(broken, `\u0000${'x'.repeat(5000)}`)
    const document = await ingested(other.key, await upload(other.key, 'PNG', { content_type: 'image/png' }))
    assert.deepEqual([document.status, document.error.code], ['failed', 'INGESTION_FAILED'])
    assert.match(document.error.message, /xxx/)
    assert.ok(document.error.message.length <= 2000 && !document.error.message.includes('\0'))
    await once.close()
  })

  it('accepts a callback for a day, or for twice its waiting time', async () => {
    const lifeOf = (token: string) => {
      const { iat, exp } = JSON.parse(Buffer.from(token.split('.')[1], 'base64url').toString())
      return exp - iat
    }
    await deferred()
    assert.equal(lifeOf(lastInput().callback.token), 86_400)
    const patient = await startApp({
      workers: ['ingestion'],
      env: { BASE_URL: 'http://muster.test', CONVERSION_STALL_TIMEOUT_MS: '72000000' },
    })
    const other = await patient.project()
    const slow = await tools.add(patient, other.id)
    await other.key.post('/ingestion-rules', { tool_id: slow, content_type_glob: 'image/*' })
    await ingested(other.key, await upload(other.key, 'PNG', { content_type: 'image/png' }))
    assert.equal(lifeOf(tools.calls(slow)[0].input.callback.token), 144_000)
    await patient.close()
  })

  it('offers no callback where the deployment has no address', async () => {
    const nowhere = await startApp({ workers: ['ingestion'] })
    const other = await nowhere.project()
    const deaf = await tools.add(nowhere, other.id)
    await other.key.post('/ingestion-rules', { tool_id: deaf, content_type_glob: 'image/*' })
    const document = await ingested(other.key, await upload(other.key, 'PNG', { content_type: 'image/png' }))
    assert.equal(document.status, 'ready')
    assert.equal('callback' in tools.calls(deaf)[0].input, false)
    await nowhere.close()
  })

  it('ends when the converter never calls back', async () => {
    const { id, token } = await deferred()
    await sweep(app)
    assert.equal((await key.get(`/documents/${id}/status`)).body.status, 'processing')
    await age(app, id, 10)
    await sweep(app)
    assert.equal(
      (await app.pool.oneFirst(sql.unsafe`select error ->> 'code' from documents where id = ${id}`)) as string,
      'CONVERSION_TIMEOUT',
    )
    refuses(await post(id, token, { text: 'late' }), 409, 'INGESTION_CALLBACK_CONFLICT')
    assert.deepEqual(
      (await eventsOf(app, id)).map(({ name }) => name),
      ['documents.created', 'documents.ingest_failed'],
    )
  })

  it('lets the callback or the end of the time win, never both', async () => {
    for (let round = 0; round < 8; round++) {
      const { id, token } = await deferred()
      await age(app, id, 10)
      const [answer] = await Promise.all([post(id, token, { text: 'just in time' }), key.get(`/documents/${id}`)])
      const { status } = await settledStatus(key, id)
      assert.equal(status, answer.status === 204 ? 'ready' : 'failed')
      assert.equal((await eventsOf(app, id)).length, 2)
    }
  })

  it('runs with the permissions of the caller who requested it', async () => {
    tools.handed.length = 0
    await ingested(key, await image())
    assert.deepEqual(
      tools.handed.map(({ principal }) => principal),
      [{ type: 'api_key', id: keyId, via: null }],
    )
  })

  it('settles completely under concurrent tools, callbacks, callers and two workers', async function () {
    this.timeout(120_000)
    const seed = Number(process.env.FUZZ_SEED ?? Date.now() % 1_000_000)
    const seeded = `FUZZ_SEED=${seed}`
    const { next, int, chance, pick } = randomOf(seed)
    const env = {
      BASE_URL: 'http://muster.test',
      EMBEDDING_PROVIDER: 'local',
      EMBEDDING_DIMENSIONS: '64',
      INGESTION_LEASE_SECONDS: '2',
      CONVERTER_TIMEOUT_MS: '1500',
      FAULT_POINTS: 'ingestion_batch=freeze:60,ingestion_read=freeze:80,ingestion_written=freeze:150',
    }
    const one = await startApp({ workers: ['ingestion'], env })
    const two = await startApp({ workers: ['ingestion'], env, databaseUrl: one.databaseUrl })
    const other = await one.project()
    const [mine, theirs] = [other.key, two.as(other.key.token)]
    const busy = await tools.add(one, other.id)
    const cut = { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 }
    await mine.post('/ingestion-rules', { tool_id: busy, content_type_glob: 'image/*', ...cut })
    const answers: { status: number; body: any }[] = []
    const callbacks: Promise<unknown>[] = []
    const text = () => 'ten chars.'.repeat(1 + int(150))
    const results = [
      () => ({ text: text() }),
      () => ({ pages: [{ text: text() }, { text: ' ' }] }),
      () => ({ status: 'failed', message: 'gave up' }),
      () => ({ nonsense: true }),
    ]
    tools.answer(busy, async ({ input: { callback } }, response) => {
      if (callback)
        for (let times = int(4); times > 0; times--) {
          const posted = sleep(next() * 2000).then(() =>
            one.anonymous.post(callback.url.slice(callback.url.indexOf('/documents')), pick(results)()),
          )
          callbacks.push(posted.then(answer => answers.push(answer)))
        }
      await sleep(next() * 500)
      pick([
        () => response.destroy(),
        () => reply(response, { foo: 1 }),
        () => reply(response, { status: 'pending' }),
        () => reply(response, { status: 'pending' }),
        () => reply(response, text()),
        () => {},
      ])()
    })
    const deeds: ((path: string, id: string) => Promise<{ status: number; body: any } | undefined>)[] = [
      path => mine.post(`${path}/ingest`),
      path => theirs.post(`${path}/ingest`, { chunk_strategy: 'whole' }),
      path => theirs.post(`${path}/ingest?wait=true`),
      path => mine.patch(path, { title: `${next()}` }),
      path => theirs.patch(path, cut),
      path => mine.post(`${path}/withdraw`),
      path => theirs.post(`${path}/versions/1/restore`),
      path => mine.get(path),
      path => theirs.get(`${path}/status`),
      (_, id) => age(one, id, 10).then(() => undefined),
      (path, id) => silence(one, id, 400).then(() => mine.get(path)),
      path => (chance(0.2) ? theirs.delete(path) : mine.get(path)),
    ]
    await Promise.all(
      Array.from({ length: 20 }, async () => {
        const file_id = await upload(mine, 'PNG', { content_type: 'image/png' })
        const { id } = (await mine.post('/documents/ingest', { file_id })).body
        for (let deed = 0; deed < 8; deed++) {
          await sleep(next() * 400)
          const answer = await pick(deeds)(`/documents/${id}`, id)
          if (answer) answers.push(answer)
        }
      }),
    )
    const live = sql.unsafe`select count(*) from ingestion_attempts where state <> 'awaiting'`
    await eventually(async () => {
      await Promise.all(callbacks)
      await one.pool.query(sql.unsafe`
        update ingestion_attempts set due_at = now() - interval '10 s' where state = 'awaiting'`)
      await sweep(one)
      return (await one.pool.oneFirst(live)) === 0
    })
    await sweep(one)
    assert.deepEqual(
      answers.filter(({ status }) => status >= 500),
      [],
      seeded,
    )
    const broken = await one.pool.any(sql.unsafe`
      select d.id, d.status, d.error, d.chunk_count, d.embedded_chunks, c.*, v.* from documents d
      cross join lateral (select count(*) as chunks, coalesce(max(chunk_index) + 1, 0) as last from document_chunks
        where document_id = d.id) c
      cross join lateral (select count(*) as vectors, count(distinct ref_id) as of_chunks from knowledge_vectors
        where container_id = d.id) v
      where d.status not in ('ready', 'failed', 'withdrawn') or (d.error is null) = (d.status = 'failed')
        or (c.chunks > 0) <> (d.status = 'ready') or d.chunk_count <> c.chunks or d.embedded_chunks <> c.chunks
        or c.last <> c.chunks or v.vectors <> c.chunks or v.of_chunks <> c.chunks`)
    assert.deepEqual(broken, [], seeded)
    assert.equal(await one.pool.oneFirst(sql.unsafe`select count(*) from ingestion_attempts`), 0)
    await two.close()
    await one.close()
  })
})
