import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { loadConfig } from '#config.ts'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import { eventually, startApp } from '../support/app.ts'
import { type EmbeddingServer, startEmbeddingServer } from '../support/embedding-server.ts'
import { testEnvironment } from '../support/environment.ts'
import { pdf } from '../support/pdf.ts'
import { forSuite } from '../support/suite.ts'
import { chunksOf, eventsOf, ingested, refuses, settledStatus, upload } from './ingestion-support.ts'

describe('ingestion', () => {
  const app = forSuite(() =>
    startApp({ workers: ['ingestion'], env: { SYNC_INGESTION_MAX_BYTES: '4000', SYNC_WAIT_SECONDS: '20' } }),
  )
  const project = forSuite(() => app.project())
  const key = forSuite(() => project.key)

  const ingest = (fileId: string, fields: object = {}, query = '') =>
    key.post(`/documents/ingest${query}`, { file_id: fileId, ...fields })
  const again = (id: string, body?: object, query = '') => key.post(`/documents/${id}/ingest${query}`, body)
  const attempts = async () => (await app.pool.oneFirst(sql.unsafe`select count(*) from ingestion_attempts`)) as number

  describe('of a file', () => {
    it('answers 202 with a pending document and makes it ready', async () => {
      const file = await upload(key, pdf(['first page', 'second page', 'third page']), {
        content_type: 'application/pdf',
        filename: 'report.pdf',
        prefix: '/in',
      })
      const { status, body } = await ingest(file)
      assert.equal(status, 202)
      assert.equal(body.status, 'pending')
      const { id, created_at, updated_at, ...rest } = body
      assert.match(id, /^doc_/)
      assert.equal(typeof created_at, 'string')
      assert.equal(typeof updated_at, 'string')
      assert.deepEqual(rest, {
        project_id: project.id,
        file_id: file,
        path: '/in/report.pdf',
        filename: 'report.pdf',
        content_type: 'application/pdf',
        charset: null,
        size: rest.size,
        kind: 'document',
        status: 'pending',
        version: 1,
        title: 'report.pdf',
        metadata: null,
        tags: {},
        chunk_strategy: 'page',
        chunk_unit: null,
        chunk_size: null,
        chunk_overlap: null,
        chunk_count: 0,
        embedding: null,
        error: null,
      })
      const done = await settledStatus(key, id)
      assert.deepEqual(
        [done.status, done.chunk_count, done.total_chunks, done.total_pages, done.progress, done.error],
        ['ready', 3, 3, 3, 100, null],
      )
      assert.deepEqual(
        (await chunksOf(app, id)).map(({ page_number, content }) => [page_number, content]),
        [
          [1, 'first page'],
          [2, 'second page'],
          [3, 'third page'],
        ],
      )
      const read = (await key.get(`/documents/${id}`)).body
      assert.equal(read.content, 'first page\nsecond page\nthird page')
      assert.equal(read.version, 1)
    })

    it('emits documents.created with the pending record, documents.ingested with the ready one', async () => {
      const document = await ingested(key, await upload(key, 'some text'))
      const events = await eventsOf(app, document.id)
      assert.deepEqual(
        events.map(({ name, data }) => [name, data.status, data.chunk_count]),
        [
          ['documents.created', 'pending', 0],
          ['documents.ingested', 'ready', 1],
        ],
      )
      const { content: _, ...record } = document
      assert.deepEqual(events[1].data, record)
      assert.equal('content' in events[0].data, false)
    })

    it('takes title, tags, metadata and chunk settings from the request', async () => {
      const document = await ingested(key, await upload(key, 'x'.repeat(2500)), {
        title: 'A title',
        tags: { kind: 'memo' },
        metadata: { Quarter: 'Q1' },
        chunk_strategy: 'size',
        chunk_size: 1000,
        chunk_overlap: 200,
      })
      assert.deepEqual(
        [
          document.title,
          document.tags,
          document.metadata,
          document.chunk_strategy,
          document.chunk_size,
          document.chunk_overlap,
        ],
        ['A title', { kind: 'memo' }, { Quarter: 'Q1' }, 'size', 1000, 200],
      )
      assert.deepEqual(
        (await chunksOf(app, document.id)).map(({ char_start, char_end }) => [char_start, char_end]),
        [
          [0, 1000],
          [800, 1800],
          [1600, 2500],
        ],
      )
    })

    it('without overlap also cuts 2500 characters in three', async () => {
      const document = await ingested(key, await upload(key, 'x'.repeat(2500)), {
        chunk_strategy: 'size',
        chunk_size: 1000,
        chunk_overlap: 0,
      })
      assert.equal(document.chunk_count, 3)
    })

    it('with path_prefix moves the file with the document and emits events for both', async () => {
      const file = await upload(key, 'moved', { filename: 'a.txt', prefix: '/here' })
      const document = await ingested(key, file, { path_prefix: 'there//deep/' })
      assert.equal(document.path, '/there/deep/a.txt')
      assert.equal((await key.get(`/files/${file}`)).body.path, '/there/deep/a.txt')
      assert.deepEqual(
        (await eventsOf(app, file)).map(({ name, data }) => [name, data.path]),
        [
          ['files.created', '/here/a.txt'],
          ['files.updated', '/there/deep/a.txt'],
        ],
      )
    })

    it('fills version 1 with the text, as the caller who requested it', async () => {
      const document = await ingested(key, await upload(key, 'the text'))
      const versions = (await key.get(`/documents/${document.id}/versions`)).body
      assert.equal(versions.total, 1)
      const first = (await key.get(`/documents/${document.id}/versions/1`)).body
      assert.equal(first.content, 'the text')
      assert.deepEqual(first.created_by, { type: 'api_key', id: project.keyId })
    })

    it('leaves one audit entry, of the action with the status answered', async () => {
      const { body } = await ingest(await upload(key, 'audited'))
      const { data } = (
        await app.admin.get(
          `/audit-log?project_id=${project.id}&action=documents:IngestDocument&resource_public_id=${body.id}`,
        )
      ).body
      assert.deepEqual(
        data.map((entry: { status: number; project_id: string }) => [entry.status, entry.project_id]),
        [[202, project.id]],
      )
    })

    it('continues while the project is paused', async () => {
      const other = await app.project()
      const file = await upload(other.key, 'text')
      assert.equal((await app.admin.post(`/projects/${other.id}/pause`, {})).status, 200)
      assert.equal((await ingested(other.key, file)).status, 'ready')
    })
  })

  describe('is refused', () => {
    const refused = async (
      reply: Promise<Awaited<ReturnType<typeof ingest>>>,
      status: number,
      code: string,
      problem?: string,
    ) => {
      const before = (await key.get('/documents')).body.total
      const answer = await reply
      refuses(answer, status, code, problem)
      assert.equal((await key.get('/documents')).body.total, before)
      return answer.body.error
    }

    it('for a file that is none of the project', async () => {
      const other = await app.project()
      await refused(ingest(newId('file')), 400, 'FILE_NOT_FOUND')
      await refused(ingest('nonsense'), 400, 'FILE_NOT_FOUND')
      await refused(ingest(await upload(other.key, 'theirs')), 400, 'FILE_NOT_FOUND')
    })

    it('for a record without bytes', async () => {
      const { body } = await key.post('/files', { filename: 'empty.txt', content_type: 'text/plain', size: 5 })
      await refused(ingest(body.id), 400, 'FILE_PARSE_FAILED')
    })

    it('for a type that nothing reads', async () => {
      await refused(ingest(await upload(key, 'PNG', { content_type: 'image/png' })), 400, 'UNSUPPORTED_FILE_TYPE')
    })

    it('for a file that backs a document already', async () => {
      const file = await upload(key, 'once')
      const { body } = await ingest(file)
      const error = await refused(ingest(file), 409, 'FILE_ALREADY_INGESTED')
      assert.deepEqual(error.meta, { file_id: file, document_id: body.id })
    })

    it('when waited for, for a file above SYNC_INGESTION_MAX_BYTES; not without wait', async () => {
      const file = await upload(key, 'y'.repeat(4001))
      const error = await refused(ingest(file, {}, '?wait=true'), 413, 'FILE_TOO_LARGE_FOR_SYNC')
      assert.deepEqual(error.meta, { size: 4001, max_bytes: 4000 })
      assert.equal((await ingest(file)).status, 202)
    })

    it('by the default of SYNC_INGESTION_MAX_BYTES where that is no positive integer', () => {
      const limit = (SYNC_INGESTION_MAX_BYTES: string) =>
        loadConfig({ ...testEnvironment(app.databaseUrl), SYNC_INGESTION_MAX_BYTES }).SYNC_INGESTION_MAX_BYTES
      for (const wrong of ['', 'much', '0', '-1', '1.5']) assert.equal(limit(wrong), 10_485_760, wrong)
      assert.equal(limit('1'), 1)
    })

    it('by the first check that fails, in the order that is documented', async () => {
      const big = 'y'.repeat(4001)
      const taken = await upload(key, 'x', { filename: 'taken.txt', prefix: '/ordered' })
      const at = { filename: 'taken.txt', prefix: '/elsewhere' }
      const bare = await key.post('/files', { ...at, content_type: 'image/png' })
      await refused(ingest(bare.body.id, { path_prefix: '/ordered' }, '?wait=true'), 400, 'FILE_PARSE_FAILED')
      assert.equal((await key.delete(`/files/${bare.body.id}`)).status, 204)
      const file = await upload(key, big, { ...at, content_type: 'image/png' })
      await refused(ingest(file, { path_prefix: '/ordered' }, '?wait=true'), 400, 'UNSUPPORTED_FILE_TYPE')
      const typed = (type: string, id: string) =>
        app.pool.query(sql.unsafe`update files set content_type = ${type} where id = ${id}`)
      await typed('text/plain', file)
      await refused(ingest(file, { path_prefix: '/ordered' }, '?wait=true'), 413, 'FILE_TOO_LARGE_FOR_SYNC')
      await refused(ingest(file, { path_prefix: '/ordered' }), 409, 'NAME_CONFLICT')
      assert.equal((await key.delete(`/files/${taken}`)).status, 204)
      assert.equal((await ingest(file, { path_prefix: '/ordered' })).status, 202)
      await refused(ingest(file, {}, '?wait=true'), 409, 'FILE_ALREADY_INGESTED')
      await typed('image/png', file)
      await refused(ingest(file), 400, 'UNSUPPORTED_FILE_TYPE')
    })

    it('where the path is taken, reserved, or out of the root', async () => {
      const file = await upload(key, 'one', { filename: 'same.txt', prefix: '/p1' })
      await upload(key, 'two', { filename: 'same.txt', prefix: '/p2' })
      const error = await refused(ingest(file, { path_prefix: '/p2' }), 409, 'NAME_CONFLICT')
      assert.deepEqual(error.meta, { path: '/p2/same.txt' })
      assert.equal((await key.get(`/files/${file}`)).body.path, '/p1/same.txt')
      await refused(ingest(file, { path_prefix: '/.system/x' }), 400, 'VALIDATION_FAILED', 'RESERVED_PATH')
      await refused(ingest(file, { path_prefix: '../..' }), 400, 'VALIDATION_FAILED')
      await refused(ingest(file, { path_prefix: `/${'d'.repeat(1020)}` }), 400, 'VALIDATION_FAILED')
    })

    it('for a file that the platform wrote', async () => {
      const file = await upload(key, 'trace')
      await app.pool.query(sql.unsafe`update files set path = '/.system/traces/x.json' where id = ${file}`)
      await refused(ingest(file), 400, 'VALIDATION_FAILED', 'RESERVED_PATH')
      await refused(ingest(file, { path_prefix: '/mine' }), 400, 'VALIDATION_FAILED', 'RESERVED_PATH')
    })

    it('refuses metadata that breaks the declaration for the path of the document', async () => {
      const declared = await key.post('/metadata-schemas', {
        resource_type: 'document',
        path_prefix: '/judged',
        schema: { type: 'object', required: ['quarter'] },
      })
      assert.equal(declared.status, 201)
      const file = await upload(key, 'judged')
      const error = await refused(ingest(file, { path_prefix: '/judged', metadata: {} }), 400, 'VALIDATION_FAILED')
      assert.equal(error.meta.metadata_schema_id, declared.body.id)
      await refused(ingest(file, { path_prefix: '/judged', metadata: null }), 400, 'VALIDATION_FAILED')
      assert.equal((await ingest(file, { path_prefix: '/judged' })).status, 202)
    })

    it('refuses metadata of the file that breaks the declaration for files at the new path', async () => {
      await key.post('/metadata-schemas', {
        resource_type: 'file',
        path_prefix: '/strict',
        schema: { type: 'object', required: ['owner'] },
      })
      const wrong = await upload(key, 'a', { metadata: { x: 1 } })
      await refused(ingest(wrong, { path_prefix: '/strict' }), 400, 'VALIDATION_FAILED')
      assert.equal((await ingest(await upload(key, 'b'), { path_prefix: '/strict' })).status, 202)
    })

    it('while the project is over its storage quota, again too', async () => {
      const other = await app.project()
      const file = await upload(other.key, 'text')
      const ready = await ingested(other.key, await upload(other.key, 'other text'))
      await app.pool.query(sql.unsafe`
        insert into storage_snapshots (project_id, day, bytes, chunk_count) values (${other.id}, '2026-01-01', 100, 0)`)
      const quota = await app.admin.post('/quotas', {
        project_id: other.id,
        scope: 'project',
        metric: 'storage_bytes',
        window: 'current',
        limit: 50,
        mode: 'enforce',
      })
      assert.equal(quota.status, 201, JSON.stringify(quota.body))
      refuses(await other.key.post('/documents/ingest', { file_id: file }), 409, 'QUOTA_STORAGE_EXCEEDED')
      refuses(await other.key.post(`/documents/${ready.id}/ingest`), 409, 'QUOTA_STORAGE_EXCEEDED')
      assert.equal((await other.key.get(`/documents/${ready.id}`)).body.status, 'ready')
    })

    it('for a wait that is neither true nor false, unknown fields and wrong types', async () => {
      const file = await upload(key, 'text')
      await refused(ingest(file, {}, '?wait=yes'), 400, 'VALIDATION_FAILED')
      await refused(ingest(file, {}, '?wait=true&wait=true'), 400, 'VALIDATION_FAILED')
      for (const fields of [
        { file_id: 7 },
        { file_id: null },
        { file_id: '' },
        { mode: 'x' },
        { tags: { 'system.actor': 'x' } },
        { tags: { a: 1 } },
        { metadata: 'text' },
        { title: 'x'.repeat(513) },
        { chunk_strategy: 'words' },
        { chunk_size: 0 },
        { chunk_size: 1.5 },
        { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 10 },
        { path_prefix: 5 },
        { title: 'a\0b' },
      ])
        await refused(ingest(file, fields), 400, 'VALIDATION_FAILED')
      await refused(key.post('/documents/ingest', []), 400, 'VALIDATION_FAILED')
      await refused(key.post('/documents/ingest'), 400, 'VALIDATION_FAILED')
      assert.equal((await ingest(file)).status, 202)
    })

    it('to who may not ingest there', async () => {
      const allow = (resource: string) => ({
        statement: [
          { effect: 'Allow', action: ['documents:IngestDocument', 'documents:GetDocument'], resource: [resource] },
        ],
      })
      const nobody = await app.user(undefined, [])
      const below = await app.user(undefined, [allow(`srn:${project.id}:document:/mine/*`)])
      const file = await upload(key, 'text', { filename: 'policed.txt', prefix: '/elsewhere' })
      const as = (who: typeof nobody, fields: object) =>
        who.post('/documents/ingest', { project_id: project.id, file_id: file, ...fields })
      refuses(await as(nobody, {}), 403, 'FORBIDDEN')
      refuses(await as(below, {}), 403, 'FORBIDDEN')
      refuses(await as(below, { path_prefix: '/mine/../elsewhere' }), 403, 'FORBIDDEN')
      refuses(await as(below, { file_id: newId('file'), path_prefix: '/mine' }), 403, 'FORBIDDEN')
      refuses(await as(below, { file_id: 5, path_prefix: '/mine' }), 403, 'FORBIDDEN')
      assert.equal((await as(below, { path_prefix: '/mine' })).status, 202)
      // The file's own path is the name that counts.
      const theirs = await upload(key, 'text', { filename: 'theirs.txt', prefix: '/mine/deep' })
      assert.equal((await as(below, { file_id: theirs })).status, 202)
      const taken = await as(below, { file_id: theirs })
      refuses(taken, 409, 'FILE_ALREADY_INGESTED')
      refuses(await as(below, { file_id: theirs, path_prefix: '/elsewhere' }), 409, 'FILE_ALREADY_INGESTED')
      const away = await upload(key, 'text', { filename: 'away.txt', prefix: '/mine' })
      refuses(await as(below, { file_id: away, path_prefix: '/elsewhere' }), 403, 'FORBIDDEN')
      // A file of another project says nothing here, wherever it lies.
      const other = await app.project()
      const strange = await upload(other.key, 'text', { filename: 'strange.txt', prefix: '/mine' })
      refuses(await as(below, { file_id: strange }), 403, 'FORBIDDEN')
      const exact = await app.user(undefined, [allow(`srn:${project.id}:document:/mine/away.txt`)])
      assert.equal((await as(exact, { file_id: away })).status, 202)

      const elsewhere = {
        statement: [
          { effect: 'Allow', action: ['documents:IngestDocument'], resource: ['*'] },
          { effect: 'Deny', action: ['documents:IngestDocument'], resource: [`srn:${project.id}:document:/secret/*`] },
        ],
      }
      const kept = await app.user(undefined, [elsewhere])
      const secret = await upload(key, 'text', { filename: 'deep.txt', prefix: '/secret' })
      const at = (fields: object) =>
        kept.post('/documents/ingest', { project_id: project.id, file_id: secret, ...fields })
      refuses(await at({}), 403, 'FORBIDDEN')
      assert.equal((await at({ path_prefix: '/open' })).status, 202)
    })
  })

  describe('that two callers request concurrently', () => {
    it('makes one document; the other learns of it', async () => {
      const file = await upload(key, 'contested')
      const answers = await Promise.all(Array.from({ length: 8 }, () => ingest(file)))
      const made = answers.filter(({ status }) => status === 202)
      assert.equal(made.length, 1)
      for (const { status, body } of answers.filter(({ status }) => status !== 202)) {
        assert.deepEqual([status, body.error.code], [409, 'FILE_ALREADY_INGESTED'])
        assert.deepEqual(body.error.meta, { file_id: file, document_id: made[0].body.id })
      }
      await settledStatus(key, made[0].body.id)
      assert.equal((await chunksOf(app, made[0].body.id)).length, 1)
    })

    it('and a delete of the file: one of them wins', async () => {
      for (let round = 0; round < 10; round++) {
        const file = await upload(key, 'disputed')
        const [made, gone] = await Promise.all([ingest(file), key.delete(`/files/${file}`)])
        if (made.status === 202) refuses(gone, 409, 'FILE_HAS_DEPENDENTS')
        else {
          refuses(made, 400, 'FILE_NOT_FOUND')
          assert.equal(gone.status, 204)
        }
      }
    })

    it('again settles once as current, without doubled chunks', async () => {
      const document = await ingested(key, await upload(key, 'z'.repeat(3000)), {
        chunk_strategy: 'size',
        chunk_size: 100,
      })
      const answers = await Promise.all(Array.from({ length: 5 }, () => again(document.id)))
      assert.ok(answers.every(({ status }) => status === 202))
      const done = await settledStatus(key, document.id)
      const chunks = await chunksOf(app, document.id)
      assert.equal(chunks.length, done.chunk_count)
      assert.equal(new Set(chunks.map(chunk => chunk.chunk_index)).size, chunks.length)
      await eventually(async () => (await attempts()) === 0)
      assert.equal((await key.get(`/documents/${document.id}`)).body.status, 'ready')
    })
  })

  describe('that fails', () => {
    const failure = async (content: string | Buffer, content_type: string) => {
      const document = await ingested(key, await upload(key, content, { content_type }))
      assert.equal(document.status, 'failed')
      assert.equal(document.content, null)
      assert.equal(document.chunk_count, 0)
      const events = await eventsOf(app, document.id)
      assert.deepEqual(
        events.map(({ name }) => name),
        ['documents.created', 'documents.ingest_failed'],
      )
      assert.deepEqual(events[1].data.error, document.error)
      const status = (await key.get(`/documents/${document.id}/status`)).body
      assert.deepEqual([status.progress, status.error], [null, document.error])
      return document.error
    }

    it('records FILE_PARSE_FAILED without a charset; a charset that its bytes show is noted until the text is replaced', async () => {
      const { code, message } = await failure(Buffer.from([0x47, 0x72, 0xfc]), 'text/plain')
      assert.equal(code, 'FILE_PARSE_FAILED')
      assert.match(message, /charset=windows-1252/)
      const text = 'Größe und Maß stehen auf der Rückseite, möchten Sie später zurückkommen?'
      const document = await ingested(
        key,
        await upload(key, Buffer.from(text, 'latin1'), { content_type: 'text/plain' }),
      )
      assert.deepEqual([document.status, document.charset, document.content], ['ready', 'windows-1252', text])
      const { body } = await key.patch(`/documents/${document.id}`, { content: 'new' })
      assert.equal(body.charset, null)
    })
    it('records FILE_PARSE_FAILED without text', async () => {
      assert.equal((await failure(' \n\t ', 'text/plain')).code, 'FILE_PARSE_FAILED')
      assert.equal((await failure('', 'text/markdown')).code, 'FILE_PARSE_FAILED')
      assert.equal((await failure(pdf(['']), 'application/pdf')).code, 'FILE_PARSE_FAILED')
    })

    it('for a PDF that is none, or is locked, records PDF_PARSE_FAILED', async () => {
      assert.equal((await failure('no pdf', 'application/pdf')).code, 'PDF_PARSE_FAILED')
      const locked = pdf(['secret'], { encrypt: { user_password: 'x' } })
      assert.equal((await failure(locked, 'Application/PDF; x=1')).code, 'PDF_PARSE_FAILED')
    })

    it('because its bytes are lost records RESOURCE_NOT_FOUND', async () => {
      const file = await upload(key, 'lost soon')
      await app.pool.query(sql.unsafe`
        update files set location = gen_random_uuid()::text where id = ${file}`)
      const document = await ingested(key, file)
      assert.deepEqual([document.status, document.error.code], ['failed', 'RESOURCE_NOT_FOUND'])
    })

    it('because its backend is not set up records FILE_STORAGE_MISCONFIGURED, without another try', async () => {
      const file = await upload(key, 'elsewhere')
      await app.pool.query(sql.unsafe`update files set storage = 's3', location = 'x' where id = ${file}`)
      const document = await ingested(key, file)
      assert.deepEqual([document.status, document.error.code], ['failed', 'FILE_STORAGE_MISCONFIGURED'])
    })

    it('can be tried again', async () => {
      const file = await upload(key, 'found again')
      const [{ location }] = (await app.pool.any(sql.unsafe`select location from files where id = ${file}`)) as {
        location: string
      }[]
      await app.pool.query(sql.unsafe`update files set location = gen_random_uuid()::text where id = ${file}`)
      const document = await ingested(key, file)
      assert.equal(document.status, 'failed')
      await app.pool.query(sql.unsafe`update files set location = ${location} where id = ${file}`)
      const { status, body } = await again(document.id)
      assert.deepEqual([status, body.status, body.error], [202, 'pending', null])
      assert.equal((await settledStatus(key, document.id)).status, 'ready')
      const read = (await key.get(`/documents/${document.id}`)).body
      assert.deepEqual([read.version, read.content], [1, 'found again'])
    })
  })

  describe('within limits', () => {
    const small = forSuite(() =>
      startApp({
        workers: ['ingestion'],
        env: { INGESTION_MAX_TEXT_BYTES: '1000', INGESTION_MAX_CHUNKS: '10', INGESTION_MAX_PAGES: '3' },
      }),
    )
    const other = forSuite(() => small.project())

    it('records INGESTION_FAILED with the limit that was passed, without another try', async () => {
      const failed = async (content: string | Buffer, fields: object, file: object = {}) => {
        const document = await ingested(other.key, await upload(other.key, content, file), fields)
        assert.deepEqual([document.status, document.error.code], ['failed', 'INGESTION_FAILED'])
        return document.error.message as string
      }
      assert.match(await failed('t'.repeat(1001), {}), /INGESTION_MAX_TEXT_BYTES/)
      const repeated = { chunk_strategy: 'size', chunk_size: 900, chunk_overlap: 880 }
      assert.match(await failed('t'.repeat(1000), repeated), /twice INGESTION_MAX_TEXT_BYTES/)
      for (const fields of [repeated, { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 }]) {
        const inline = await other.key.post('/documents', { content: 't'.repeat(1000), ...fields })
        refuses(inline, 400, 'VALIDATION_FAILED', 'TOO_MANY_CHUNKS')
        assert.equal(inline.body.error.meta.problems[0].path, 'chunk_size')
      }
      assert.match(
        await failed('t'.repeat(110), { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 }),
        /INGESTION_MAX_CHUNKS/,
      )
      assert.match(
        await failed(pdf(['1', '2', '3', '4']), {}, { content_type: 'application/pdf' }),
        /INGESTION_MAX_PAGES/,
      )
      const fits = await ingested(other.key, await upload(other.key, 't'.repeat(100)), {
        chunk_strategy: 'size',
        chunk_size: 10,
        chunk_overlap: 0,
      })
      assert.equal(fits.chunk_count, 10)
    })
  })

  describe('without an embedding provider that answers', () => {
    it('makes the document ready; its chunks wait for their vectors', async () => {
      const down = await startApp({
        workers: ['ingestion'],
        env: {
          EMBEDDING_PROVIDER: 'openai',
          EMBEDDING_MODEL: 'any',
          EMBEDDING_API_KEY: 'any',
          EMBEDDING_BASE_URL: 'http://127.0.0.1:9/v1',
        },
      })
      const other = await down.project()
      const document = await ingested(other.key, await upload(other.key, 'some text'))
      assert.deepEqual([document.status, document.chunk_count], ['ready', 1])
      assert.equal((await other.key.get(`/documents/${document.id}/status`)).body.embedded_chunks, 0)
      const waits = sql.unsafe`select embed_since is not null from documents where id = ${document.id}`
      assert.equal(await down.pool.oneFirst(waits), true)
      await down.close()
    })

    const embeddedBy = (server: EmbeddingServer) => ({
      EMBEDDING_PROVIDER: 'openai',
      EMBEDDING_MODEL: 'any',
      EMBEDDING_API_KEY: 'any',
      EMBEDDING_BASE_URL: `${server.url}/v1`,
      EMBEDDING_DIMENSIONS: '32',
    })

    it('calls it once for a long text, not for every part of it', async () => {
      const server = await startEmbeddingServer(32)
      server.behave = () => ({ status: 429, headers: { 'retry-after': '60' } })
      const busy = await startApp({
        workers: ['ingestion'],
        env: embeddedBy(server),
      })
      const other = await busy.project()
      const cut = { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 }
      const document = await ingested(other.key, await upload(other.key, 'x'.repeat(2000)), cut)
      assert.deepEqual([document.status, document.chunk_count], ['ready', 200])
      assert.equal((await other.key.get(`/documents/${document.id}/status`)).body.embedded_chunks, 0)
      assert.equal(server.calls.length, 1)
      await busy.close()
      await server.close()
    })

    it('calls it for the remaining parts of a text of which it refuses one', async () => {
      const server = await startEmbeddingServer(32)
      server.behave = ({ texts }) => (texts.some(text => text.includes('bad')) ? { status: 400 } : {})
      const strict = await startApp({
        workers: ['ingestion'],
        env: embeddedBy(server),
      })
      const other = await strict.project()
      const cut = { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 }
      const text = `${'bad texts.'.repeat(64)}${'good texts'.repeat(64)}`
      const document = await ingested(other.key, await upload(other.key, text), cut)
      assert.deepEqual([document.status, document.chunk_count], ['ready', 128])
      assert.equal((await other.key.get(`/documents/${document.id}/status`)).body.embedded_chunks, 64)
      await strict.close()
      await server.close()
    })
  })

  describe('of a document again', () => {
    it('begins from nothing: no result of the attempt before remains', async () => {
      const idle = await startApp()
      const other = await idle.project()
      const { body } = await other.key.post('/documents/ingest', { file_id: await upload(other.key, 'text') })
      const attempt = () =>
        idle.pool.one(sql.unsafe`select * from ingestion_attempts where document_id = ${body.id}`) as Promise<
          Record<string, unknown>
        >
      const { id } = await attempt()
      await idle.pool.query(sql.unsafe`
        update ingestion_attempts set state = 'running', claims = 2, losses = 2, failures = 2, pages = '[]',
          principal = '{}', allow_deferral = false, due_at = now() + interval '1 hour', trace_context = 'before'`)
      await idle.pool.query(sql.unsafe`
        update documents set status = 'processing', chunk_count = 5, embedded_chunks = 4, total_chunks = 9,
          total_pages = 3, embed_since = now()`)
      assert.equal((await other.key.post(`/documents/${body.id}/ingest`)).status, 202)
      const { id: next, created_at, due_at, trace_context, ...rest } = await attempt()
      assert.notEqual(next, id)
      assert.notEqual(trace_context, 'before')
      assert.ok((due_at as string) <= new Date(Date.now() + 1000).toISOString())
      assert.deepEqual(rest, {
        document_id: body.id,
        state: 'queued',
        claims: 0,
        losses: 0,
        failures: 0,
        principal: { type: 'api_key', id: other.keyId, via: null },
        allow_deferral: true,
        settings: { chunk_strategy: 'page', chunk_unit: null, chunk_size: null, chunk_overlap: null },
        pages: null,
      })
      assert.deepEqual((await other.key.get(`/documents/${body.id}/status`)).body, {
        id: body.id,
        status: 'pending',
        chunk_count: 0,
        embedded_chunks: 0,
        total_chunks: null,
        total_pages: null,
        progress: 0,
        error: null,
      })
      const waits = sql.unsafe`select embed_since from documents where id = ${body.id}`
      assert.equal(await idle.pool.oneFirst(waits), null)
      await idle.close()
    })

    it('becomes pending and ready, with the requested settings, and one more event', async () => {
      const file = await upload(key, pdf(['one', 'two']), { content_type: 'application/pdf' })
      const document = await ingested(key, file)
      assert.equal(document.chunk_count, 2)
      const { status, body } = await again(document.id, { chunk_strategy: 'whole' })
      assert.deepEqual([status, body.status, body.chunk_count, body.chunk_strategy], [202, 'pending', 0, 'whole'])
      const done = await settledStatus(key, document.id)
      assert.deepEqual([done.status, done.chunk_count, done.total_chunks], ['ready', 1, 1])
      assert.deepEqual(
        (await eventsOf(app, document.id)).map(({ name, data }) => [name, data.chunk_count]),
        [
          ['documents.created', 0],
          ['documents.ingested', 2],
          ['documents.ingested', 1],
        ],
      )
    })

    it('makes a version only when its text or its chunks are others', async () => {
      const file = await upload(key, 'same text')
      const document = await ingested(key, file)
      const versions = async () => (await key.get(`/documents/${document.id}/versions`)).body
      const repeat = async (fields?: object) => {
        await again(document.id, fields)
        await settledStatus(key, document.id)
        return (await key.get(`/documents/${document.id}`)).body.version
      }
      assert.equal(await repeat(), 1)
      assert.equal((await versions()).total, 1)
      assert.equal(await repeat({ chunk_strategy: 'size', chunk_size: 4, chunk_overlap: 0 }), 2)
      assert.equal(await repeat(), 2)
      assert.equal((await chunksOf(app, document.id)).length, 3)
      assert.deepEqual(
        (await versions()).data.map((each: any) => [each.version, each.chunk_strategy, each.created_by.id]),
        [
          [2, 'size', project.keyId],
          [1, 'page', project.keyId],
        ],
      )
    })

    it('keeps the old text as its version when the new one is another', async () => {
      const file = await upload(key, 'old words')
      const document = await ingested(key, file)
      const other = await upload(key, 'new words')
      await app.pool.query(sql.unsafe`
        update files f set location = o.location, size = o.size, sha256 = o.sha256 from files o
        where f.id = ${file} and o.id = ${other}`)
      await again(document.id)
      await settledStatus(key, document.id)
      const read = (await key.get(`/documents/${document.id}`)).body
      assert.deepEqual([read.version, read.content], [2, 'new words'])
      assert.equal((await key.get(`/documents/${document.id}/versions/1`)).body.content, 'old words')
      assert.equal((await key.get(`/documents/${document.id}/versions/2`)).body.content, 'new words')
    })

    it('of a document with its own text splits that text unchanged', async () => {
      const text = '  spaced text \n'
      const made = (await key.post('/documents', { content: text })).body
      assert.equal((await again(made.id, { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 })).status, 202)
      await settledStatus(key, made.id)
      const read = (await key.get(`/documents/${made.id}`)).body
      assert.deepEqual([read.status, read.content, read.version], ['ready', text, 2])
      assert.equal((await key.get(`/files/${read.file_id}/download`)).body, text)
      assert.deepEqual(
        (await chunksOf(app, made.id)).map(({ content }) => content),
        ['  spaced t', 'ext \n'],
      )
    })

    it('is refused while the document is withdrawn, for a message document, and for a missing document', async () => {
      const document = await ingested(key, await upload(key, 'withdrawn soon'))
      assert.equal((await key.post(`/documents/${document.id}/withdraw`)).status, 200)
      refuses(await again(document.id), 400, 'VALIDATION_FAILED')
      const message = await ingested(key, await upload(key, 'message soon'))
      await app.pool.query(sql.unsafe`update documents set kind = 'message' where id = ${message.id}`)
      refuses(await again(message.id), 400, 'VALIDATION_FAILED', 'RESERVED_PATH')
      const reserved = await ingested(key, await upload(key, 'reserved soon'))
      await app.pool.query(
        sql.unsafe`update documents set path = '/.system/conversations/c/d.txt' where id = ${reserved.id}`,
      )
      refuses(await again(reserved.id), 400, 'VALIDATION_FAILED', 'RESERVED_PATH')
      refuses(await again(newId('doc')), 404, 'RESOURCE_NOT_FOUND')
      const theirs = await app.project()
      refuses(await theirs.key.post(`/documents/${document.id}/ingest`), 404, 'RESOURCE_NOT_FOUND')
      const fine = await ingested(key, await upload(key, 'fine'))
      for (const wrong of [
        { title: 'x' },
        { chunk_size: 0 },
        { chunk_strategy: 'size', chunk_size: 5, chunk_overlap: 5 },
      ])
        refuses(await again(fine.id, wrong), 400, 'VALIDATION_FAILED')
      refuses(await again(fine.id, undefined, '?wait=yes'), 400, 'VALIDATION_FAILED')
      assert.equal((await key.get(`/documents/${fine.id}`)).body.status, 'ready')
    })

    it('is refused for a type that nothing reads any more, and when waited for above the limit', async () => {
      const big = await ingested(key, await upload(key, 'y'.repeat(4001)))
      refuses(await again(big.id, undefined, '?wait=true'), 413, 'FILE_TOO_LARGE_FOR_SYNC')
      assert.equal((await key.get(`/documents/${big.id}`)).body.status, 'ready')
      await app.pool.query(sql.unsafe`update files set content_type = 'image/png' where id = ${big.file_id}`)
      refuses(await again(big.id), 400, 'UNSUPPORTED_FILE_TYPE')
    })
  })

  describe('that is waited for', () => {
    it('answers 201 with the ready document', async () => {
      const { status, body } = await ingest(await upload(key, 'waited for'), {}, '?wait=true')
      assert.deepEqual([status, body.status, body.chunk_count], [201, 'ready', 1])
      assert.deepEqual(body, (({ content: _, ...record }) => record)((await key.get(`/documents/${body.id}`)).body))
      const repeated = await again(body.id, { chunk_strategy: 'whole' }, '?wait=true')
      assert.deepEqual([repeated.status, repeated.body.status], [201, 'ready'])
    })

    for (const [end, content] of [
      ['ready', 'prompt'],
      ['failed', ' '],
    ])
      it(`answers on the notification of a ${end} one, not on its own poll`, async () => {
        let quickest = Number.POSITIVE_INFINITY
        for (let n = 0; n < 20 && quickest > 900; n++) {
          const file = await upload(key, content)
          const started = performance.now()
          const { status, body } = await ingest(file, {}, '?wait=true')
          assert.deepEqual([status, body.status], [201, end])
          quickest = Math.min(quickest, performance.now() - started)
        }
        assert.ok(quickest <= 900, `${quickest} ms, and the poll comes every second`)
      })

    it('answers 201 with a failed one too', async () => {
      const { status, body } = await ingest(await upload(key, '   '), {}, '?wait=true')
      assert.deepEqual([status, body.status, body.error.code], [201, 'failed', 'FILE_PARSE_FAILED'])
    })

    it('answers 202 with the current record after SYNC_WAIT_SECONDS, holding nothing open; the job continues', async () => {
      const idle = await startApp({ env: { SYNC_WAIT_SECONDS: '2' } })
      const other = await idle.project()
      const file = await upload(other.key, 'slow')
      const waiting = other.key.post('/documents/ingest?wait=true', { file_id: file })
      await eventually(async () => (await other.key.get('/documents')).body.total === 1)
      await sleep(200)
      const open = await idle.pool.oneFirst(sql.unsafe`
        select count(*) from pg_stat_activity
        where datname = current_database() and state like 'idle in transaction%'`)
      assert.equal(open, 0)
      const { status, body } = await waiting
      assert.deepEqual([status, body.status], [202, 'pending'])
      const worker = await startApp({ workers: ['ingestion'], databaseUrl: idle.databaseUrl })
      await settledStatus(other.key, body.id)
      await worker.close()
      await idle.close()
    })

    it('continues when the client leaves', async () => {
      const idle = await startApp()
      const other = await idle.project()
      const file = await upload(other.key, 'left alone')
      const controller = new AbortController()
      const request = fetch(`${idle.url}/api/v1/documents/ingest?wait=true`, {
        method: 'POST',
        headers: { authorization: `Bearer ${other.key.token}`, 'content-type': 'application/json' },
        body: JSON.stringify({ file_id: file }),
        signal: controller.signal,
      })
      const left = assert.rejects(request, { name: 'AbortError' })
      const document = await eventually(async () => (await other.key.get(`/files/${file}`)).body.document_id)
      controller.abort()
      await left
      const worker = await startApp({ workers: ['ingestion'], databaseUrl: idle.databaseUrl })
      assert.equal((await settledStatus(other.key, document)).status, 'ready')
      await worker.close()
      await idle.close()
    })

    it('runs before ingestions without a waiting caller', async () => {
      const idle = await startApp({ env: { SYNC_WAIT_SECONDS: '1' } })
      const other = await idle.project()
      const background = await Promise.all([1, 2, 3].map(n => upload(other.key, `background ${n}`)))
      for (const file_id of background) await other.key.post('/documents/ingest', { file_id })
      const waited = await upload(other.key, 'waited')
      const { body } = await other.key.post('/documents/ingest?wait=true', { file_id: waited })
      const worker = await startApp({
        workers: ['ingestion'],
        databaseUrl: idle.databaseUrl,
        env: { WORKER_CONCURRENCY: '1' },
      })
      await eventually(async () => (await other.key.get('/documents?status=ready')).body.total === 4)
      const first = await idle.pool.oneFirst(sql.unsafe`
        select resource_id from events where name = 'documents.ingested' order by created_at, id limit 1`)
      assert.equal(first, body.id)
      await worker.close()
      await idle.close()
    })

    it('is answered again for a repeat with its Idempotency-Key', async () => {
      const file = await upload(key, 'once only')
      const send = () =>
        key.post(
          '/documents/ingest?wait=true',
          { file_id: file },
          { 'idempotency-key': `ingest ${file}`.replace(' ', '-') },
        )
      const first = await send()
      const second = await send()
      assert.deepEqual([first.status, second.status], [201, 201])
      assert.deepEqual(second.body, first.body)
    })
  })
})
