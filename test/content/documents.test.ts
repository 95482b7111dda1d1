import assert from 'node:assert/strict'
import { inTransaction, onSeparateConnection } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { eventsOf, makeDocument, plantDocument, problemCodes, rowsOf, statementsOf } from './documents-support.ts'

const unknown = 'doc_00000000000000000000000000'
const allow = (action: string[], ...resource: string[]) => ({
  statement: [{ effect: 'Allow', action, resource }],
})

describe('documents', () => {
  const app = forSuite(() => startApp({ env: { DOCUMENT_CONTENT_MAX_BYTES: '100000', INGESTION_MAX_CHUNKS: '500' } }))
  let project: Awaited<ReturnType<TestApp['project']>>
  beforeEach(async () => {
    project = await app.project()
  })

  const ids = (reply: { body: any }) => reply.body.data.map((item: { id: string }) => item.id)
  const listed = async (query: string) => {
    const reply = await project.key.get(`/documents?${query}`)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }

  describe('create', () => {
    it('makes a ready document of a text, with its file, a chunk, events and an audit entry', async () => {
      const made = await makeDocument(project.key, {
        path: 'notes/a.txt/',
        title: 'A',
        metadata: { Key: 1 },
        tags: { team: 'x' },
      })
      const { id, file_id, created_at, updated_at, ...rest } = made
      assert.match(id, /^doc_[0-9a-z]{26}$/)
      assert.equal(created_at, updated_at)
      assert.deepEqual(rest, {
        project_id: project.id,
        path: '/notes/a.txt',
        filename: 'a.txt',
        content_type: 'text/plain',
        charset: null,
        size: 10,
        kind: 'document',
        status: 'ready',
        version: 1,
        title: 'A',
        metadata: { Key: 1 },
        tags: { team: 'x' },
        chunk_strategy: 'whole',
        chunk_unit: null,
        chunk_size: null,
        chunk_overlap: null,
        chunk_count: 1,
        embedding: null,
        error: null,
      })
      const read = await project.key.get(`/documents/${id}`)
      assert.deepEqual(read.body, { ...made, content: 'alpha beta' })
      const events = await eventsOf(app, id)
      assert.deepEqual(events, [{ name: 'documents.created', data: made }])
      const [file] = await eventsOf(app, file_id)
      assert.deepEqual([file.name, file.data.path, file.data.document_id], ['files.created', '/notes/a.txt', id])
      const entries = await rowsOf(app, 'select * from audit_entries where resource_public_id = $1', [id])
      assert.deepEqual(
        entries.map(entry => [entry.action, entry.status]),
        [['documents:CreateDocument', 201]],
      )
    })

    it('keeps the exact text: white space, line ends and all planes of Unicode', async () => {
      const content = '  \r\n héllo 🎉 \u{1F469}\u200D\u{1F4BB}\t\n'
      const made = await makeDocument(project.key, { content })
      assert.equal(made.size, Buffer.byteLength(content))
      assert.equal((await project.key.get(`/documents/${made.id}`)).body.content, content)
      const file = await project.key.get(`/files/${made.file_id}/download`)
      assert.deepEqual([file.status, file.body], [200, content])
    })

    it('gives metadata back as it came, whatever its keys are', async () => {
      const metadata = '{"__proto__":{"a":{"__proto__":1}},"constructor":null,"Key":1}'
      const body = `{"content":"x","metadata":${metadata}}`
      const made = await project.key.post('/documents', body, { 'content-type': 'application/json' })
      assert.equal(made.status, 201)
      assert.deepEqual(made.body.metadata, JSON.parse(metadata))
      const list = await listed(`metadata=${encodeURIComponent('{"__proto__":{"in":[{"a":{"__proto__":1}}]}}')}`)
      assert.deepEqual(list.data[0].metadata, JSON.parse(metadata))
      const file = await project.key.post('/files', { filename: 'f', metadata })
      assert.deepEqual(file.body.metadata, JSON.parse(metadata))
      const deep = `{"content":"x","metadata":{"__proto__":${'['.repeat(16)}${']'.repeat(16)}}}`
      assert.equal((await project.key.post('/documents', deep, { 'content-type': 'application/json' })).status, 400)
    })

    it('takes an empty text as a document without chunks', async () => {
      const made = await makeDocument(project.key, { content: '' })
      assert.deepEqual([made.status, made.chunk_count, made.size], ['ready', 0, 0])
      assert.equal((await project.key.get(`/documents/${made.id}`)).body.content, '')
    })

    it('finds a place: by path, by filename, by id', async () => {
      const named = await makeDocument(project.key, { filename: 'b.txt' })
      assert.deepEqual([named.path, named.filename], ['/b.txt', 'b.txt'])
      const both = await makeDocument(project.key, { path: '/x/y', filename: 'z.txt' })
      assert.deepEqual([both.path, both.filename], ['/x/y', 'z.txt'])
      const bare = await makeDocument(project.key)
      assert.deepEqual([bare.path, bare.filename], [`/${bare.id}.txt`, `${bare.id}.txt`])
    })

    it('refuses a path that a file has, and all but one of twenty concurrent creates', async () => {
      const answers = await Promise.all(
        Array.from({ length: 20 }, () => project.key.post('/documents', { content: 'x', path: '/one' })),
      )
      assert.deepEqual(answers.map(({ status }) => status).sort(), [201, ...Array(19).fill(409)])
      const refused = answers.find(({ status }) => status === 409) as (typeof answers)[0]
      assert.deepEqual([refused.body.error.code, refused.body.error.meta], ['NAME_CONFLICT', { path: '/one' }])
      assert.equal((await rowsOf(app, 'select 1 from documents where project_id = $1', [project.id])).length, 1)
    })

    it('refuses invalid documents', async () => {
      for (const body of [
        {},
        { content: null },
        { content: 7 },
        { content: ['a'] },
        { content: 'a\0b' },
        { content: '\ud800' },
        { content: 'x'.repeat(100_001) },
        { content: 'a', nonsense: 1 },
        { content: 'a', file_id: 'file_1' },
        { content: 'a', title: 'x'.repeat(513) },
        { content: 'a', path: '../a' },
        { content: 'a', path: '/' },
        { content: 'a', path: 'a\u0007b' },
        { content: 'a', path: 'x'.repeat(1025) },
        { content: 'a', filename: '' },
        { content: 'a', filename: 'a/b' },
        { content: 'a', filename: '..' },
        { content: 'a', filename: 'x'.repeat(256) },
        { content: 'a', metadata: 'text' },
        { content: 'a', metadata: [] },
        { content: 'a', metadata: { a: 'x'.repeat(65_536) } },
        { content: 'a', tags: { a: 1 } },
        { content: 'a', chunk_size: 0 },
        { content: 'a', chunk_size: 100_001 },
        { content: 'a', chunk_size: 1.5 },
        { content: 'a', chunk_overlap: -1 },
        { content: 'a', chunk_strategy: 'pages' },
        { content: 'a', chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 10 },
        { content: 'a'.repeat(501), chunk_strategy: 'size', chunk_size: 1, chunk_overlap: 0 },
      ]) {
        const refused = await project.key.post('/documents', body)
        assert.equal(refused.status, 400, JSON.stringify(body).slice(0, 80))
        assert.equal(refused.body.error.code, 'VALIDATION_FAILED')
      }
      assert.equal((await project.key.post('/documents', '{"content": "a')).status, 400)
      assert.equal((await rowsOf(app, 'select 1 from files where project_id = $1', [project.id])).length, 0)
    })

    it('takes a text as long as allowed however it is spelled in JSON, and no body beyond the limit', async () => {
      const content = '"\n'.repeat(50_000)
      assert.equal((await makeDocument(project.key, { content })).size, 100_000)
      const escaped = `{"content":"${'\\u00e9'.repeat(50_000)}","metadata":{"a":"${'x'.repeat(65_000)}"}}`
      assert.equal((await project.key.post('/documents', escaped, { 'content-type': 'application/json' })).status, 201)
      const huge = await project.key.post('/documents', { content: 'x'.repeat(2_000_000) })
      assert.deepEqual([huge.status, huge.body.error.code], [413, 'REQUEST_REJECTED'])
    })

    it('writes nothing below the reserved root and no tag of the platform', async () => {
      for (const body of [{ path: '/.system/a' }, { path: '/x/../.system' }, { filename: '.system' }]) {
        const refused = await project.key.post('/documents', { content: 'a', ...body })
        assert.equal(refused.status, 400)
        assert.deepEqual(problemCodes(refused), ['RESERVED_PATH'])
      }
      const tagged = await project.key.post('/documents', { content: 'a', tags: { 'system.actor': 'x' } })
      assert.equal(tagged.status, 400)
      assert.deepEqual(problemCodes(tagged), ['RESERVED_TAG_KEY'])
    })

    it('splits by the requested settings and stores the settings in force', async () => {
      const sized = await makeDocument(project.key, { content: 'x'.repeat(2500), chunk_strategy: 'size' })
      assert.deepEqual(
        [sized.chunk_strategy, sized.chunk_size, sized.chunk_overlap, sized.chunk_count],
        ['size', 1000, 200, 3],
      )
      const ignored = await makeDocument(project.key, { chunk_size: 5, chunk_overlap: 1 })
      assert.deepEqual([ignored.chunk_strategy, ignored.chunk_size, ignored.chunk_count], ['whole', null, 1])
      const page = await makeDocument(project.key, { chunk_strategy: 'page' })
      assert.deepEqual([page.chunk_strategy, page.chunk_count], ['page', 1])
      const chunks = await project.key.get(`/documents/${sized.id}/chunks?limit=2&offset=1`)
      assert.deepEqual([chunks.body.total, chunks.body.limit, chunks.body.offset], [3, 2, 1])
      assert.deepEqual(
        chunks.body.data.map((chunk: any) => [chunk.chunk_index, chunk.char_start, chunk.char_end]),
        [
          [1, 800, 1800],
          [2, 1600, 2500],
        ],
      )
      assert.match(chunks.body.data[0].id, /^dchunk_/)
    })

    it('answers a repeat under an idempotency key with the first answer', async () => {
      const headers = { 'idempotency-key': 'once' }
      const first = await project.key.post('/documents', { content: 'a' }, headers)
      const second = await project.key.post('/documents', { content: 'a' }, headers)
      assert.equal(second.headers.get('idempotency-replayed'), 'true')
      assert.equal(second.body.id, first.body.id)
    })

    it('takes two statements and a transaction', async () => {
      const sent = () => statementsOf(app, () => makeDocument(project.key))
      // Until the process has cached that the project has no quota.
      await eventually(async () => !(await sent()).some(text => text.includes('from quotas')))
      const texts = await sent()
      assert.equal(texts.length, 2, texts.map(text => text.trim().slice(0, 60)).join('\n'))
    })

    it('needs the project of an unscoped caller and keeps a key in its own', async () => {
      assert.equal((await app.admin.post('/documents', { content: 'a' })).status, 400)
      assert.equal((await app.admin.post('/documents', { content: 'a', project_id: project.id })).status, 201)
      const other = await app.project()
      const refused = await project.key.post('/documents', { content: 'a', project_id: other.id })
      assert.deepEqual([refused.status, refused.body.error.code], [403, 'API_KEY_PROJECT_SCOPE'])
      assert.equal((await app.anonymous.post('/documents', { content: 'a' })).status, 401)
    })

    it('refuses by the storage quota before anything is stored', async () => {
      const quota = await app.admin.post('/quotas', {
        project_id: project.id,
        scope: 'project',
        metric: 'storage_bytes',
        window: 'current',
        limit: 10,
        mode: 'enforce',
      })
      assert.equal(quota.status, 201, JSON.stringify(quota.body))
      const refused = await project.key.post('/documents', { content: 'é'.repeat(6) })
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'QUOTA_STORAGE_EXCEEDED'])
      assert.equal(refused.body.error.meta.current_bytes, 12)
      assert.equal((await listed('')).total, 0)
      const made = await makeDocument(project.key, { content: 'é'.repeat(5) })
      const patched = await project.key.patch(`/documents/${made.id}`, { content: 'x'.repeat(100) })
      assert.equal(patched.status, 200)
    })
  })

  describe('read', () => {
    it('answers the same 404 for an unknown id and for another project’s', async () => {
      const foreign = await makeDocument((await app.project()).key)
      for (const id of [unknown, foreign.id, 'nonsense', 'doc_%00']) {
        for (const path of ['', '/status', '/chunks', '/versions', '/versions/1', '/tags']) {
          const reply = await project.key.get(`/documents/${id}${path}`)
          assert.deepEqual([reply.status, reply.body.error.code], [404, 'RESOURCE_NOT_FOUND'], `${id}${path}`)
        }
      }
    })

    it('reports the progress of a document by its status', async () => {
      const made = await makeDocument(project.key)
      const status = async () => (await project.key.get(`/documents/${made.id}/status`)).body
      const ready = await status()
      assert.deepEqual(ready, {
        id: made.id,
        status: 'ready',
        chunk_count: 1,
        embedded_chunks: 0,
        total_chunks: 1,
        total_pages: null,
        progress: 100,
        error: null,
      })
      const error = { code: 'PDF_PARSE_FAILED', message: 'broken' }
      for (const [columns, progress] of [
        [`status = 'pending', chunk_count = 0, total_chunks = null`, 0],
        [`status = 'processing', chunk_count = 0, total_chunks = null`, null],
        [`status = 'processing', chunk_count = 0, total_chunks = 0`, 99],
        [`status = 'processing', chunk_count = 2, total_chunks = 3`, 66],
        [`status = 'processing', chunk_count = 3, total_chunks = 3`, 99],
        [`status = 'failed', chunk_count = 0, error = '${JSON.stringify(error)}'`, null],
      ] as const) {
        await rowsOf(app, `update documents set ${columns} where id = $1 returning id`, [made.id])
        assert.equal((await status()).progress, progress, columns)
        assert.equal((await project.key.get(`/documents/${made.id}`)).body.content, null, columns)
      }
      assert.deepEqual((await status()).error, error)
      assert.deepEqual((await project.key.get(`/documents/${made.id}`)).body.error, error)
    })

    it('settles an ingestion that has stalled first', async () => {
      for (const [path, error] of [
        ['', (body: any) => body.error],
        ['/status', (body: any) => body.error],
      ] as const) {
        const id = await plantDocument(app, project.id, { status: 'processing', text: null })
        await rowsOf(
          app,
          `insert into ingestion_attempts (document_id, id, state, claims, due_at, created_at, principal,
             allow_deferral, settings)
           values ($1, $1, 'running', 1, now() - interval '1 day', now() - interval '1 day', $2,
             true, '{}') returning id`,
          [id, JSON.stringify({ type: 'api_key', id: project.keyId, via: null })],
        )
        const read = await project.key.get(`/documents/${id}${path}`)
        if (path === '')
          assert.equal((await project.key.get(`/documents/${id}`)).headers.get('etag'), read.headers.get('etag'))
        assert.deepEqual([read.status, read.body.status, error(read.body)?.code], [200, 'failed', 'INGESTION_TIMEOUT'])
        assert.equal((await eventsOf(app, id)).at(-1)?.name, 'documents.ingest_failed')
      }
    })

    it('comes with its text when it gets ready under the eyes of a reader', async () => {
      const id = await plantDocument(app, project.id, { status: 'processing', text: 'late' })
      await rowsOf(
        app,
        `insert into ingestion_attempts (document_id, id, state, claims, due_at, principal, allow_deferral,
           settings)
         values ($1, $1, 'running', 1, now() - interval '1 day', '{}', true, '{}') returning id`,
        [id],
      )
      const reading = await inTransaction(app.servicesOf(id).pool, async tx => {
        await tx.query(rawQuery('select 1 from documents where id = $1 for update', [id]))
        const asked = project.key.get(`/documents/${id}`)
        const waiting = () =>
          rowsOf(app, `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
        await eventually(async () => (await onSeparateConnection(waiting)).length > 0)
        await tx.query(rawQuery('delete from ingestion_attempts where document_id = $1', [id]))
        await tx.query(rawQuery(`update documents set status = 'ready' where id = $1`, [id]))
        return { asked }
      })
      const { body } = await reading.asked
      assert.deepEqual([body.status, body.content], ['ready', 'late'])
    })

    it('is not sent again to who has it, and is once anything of it changes', async () => {
      const made = await makeDocument(project.key)
      const at = `/documents/${made.id}`
      const tag = async () => (await project.key.get(at)).headers.get('etag') as string
      const first = await tag()
      const again = await project.key.get(at, { 'if-none-match': first })
      assert.deepEqual([again.status, again.body, again.headers.get('etag')], [304, null, first])
      await project.key.patch(at, { content: 'gamma' })
      const changed = await project.key.get(at, { 'if-none-match': first })
      assert.deepEqual([changed.status, changed.body.content], [200, 'gamma'])
      await rowsOf(app, `update documents set status = 'failed' where id = $1 returning id`, [made.id])
      assert.equal((await project.key.get(at, { 'if-none-match': await tag() })).status, 304)
    })

    it('reads one document with one statement', async () => {
      const made = await makeDocument(project.key)
      await project.key.get(`/documents/${made.id}`)
      const sent = await statementsOf(app, () => project.key.get(`/documents/${made.id}`))
      assert.equal(sent.length, 1, sent.join('\n'))
    })

    it('finds a document by its path', async () => {
      const made = await makeDocument(project.key, { path: '/r/a.md' })
      const found = await project.key.get('/documents/by-path?path=r//./a.md')
      assert.equal(found.status, 200)
      assert.deepEqual(found.body, { ...made, content: 'alpha beta' })
      const missed = await project.key.get('/documents/by-path?path=r/')
      assert.deepEqual([missed.status, missed.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
      assert.deepEqual(missed.body.error.meta, { path: '/r', project_id: project.id })
      assert.equal((await project.key.get('/documents/by-path')).status, 400)
      assert.equal((await project.key.get('/documents/by-path?path=../x')).status, 400)
      assert.equal((await project.key.get('/documents/by-path?path=a&path=b')).status, 400)
      assert.equal((await app.admin.get('/documents/by-path?path=/r/a.md')).status, 400)
      assert.equal((await app.admin.get(`/documents/by-path?project_id=${project.id}&path=/r/a.md`)).status, 200)
      const other = await app.project()
      assert.equal((await other.key.get('/documents/by-path?path=/r/a.md')).status, 404)
      const user = await app.user(undefined, [allow(['documents:GetDocument'], `srn:${project.id}:document:/public/*`)])
      const refused = await user.get(`/documents/by-path?project_id=${project.id}&path=/r/a.md`)
      assert.deepEqual([refused.status, refused.body.error.code], [403, 'FORBIDDEN'])
      await makeDocument(project.key, { path: '/public/b' })
      const permitted = await user.get(`/documents/by-path?project_id=${project.id}&path=/public/b`)
      assert.equal(permitted.status, 200)
    })
  })

  describe('list', () => {
    it('shows the newest first without their texts, page by page', async () => {
      const made = []
      for (let index = 0; index < 3; index++) made.push(await makeDocument(project.key))
      const first = await listed('limit=2')
      assert.deepEqual([first.total, first.limit, first.offset], [3, 2, 0])
      assert.deepEqual(first.data, [made[2], made[1]])
      assert.deepEqual(ids({ body: await listed('limit=2&offset=2') }), [made[0].id])
      assert.equal((await listed('offset=9')).total, 3)
      const other = await app.project()
      assert.equal((await other.key.get('/documents')).body.total, 0)
    })

    it('goes by directories at their borders, without wildcards', async () => {
      await makeDocument(project.key, { path: '/r/a' })
      await makeDocument(project.key, { path: '/r-old/b' })
      const odd = await makeDocument(project.key, { path: '/100%/c' })
      for (const prefix of ['r', '/r', '/r/', '//r/.', '/r/a'])
        assert.deepEqual(
          (await listed(`path_prefix=${encodeURIComponent(prefix)}`)).data.map((item: any) => item.path),
          ['/r/a'],
          prefix,
        )
      for (const prefix of ['/%', '/_', '/R', '/r/b', '/1'])
        assert.equal((await listed(`path_prefix=${encodeURIComponent(prefix)}`)).total, 0, prefix)
      assert.equal((await listed('path_prefix=/')).total, 3)
      assert.deepEqual(ids({ body: await listed(`path_prefix=${encodeURIComponent('/100%')}`) }), [odd.id])
    })

    it('filters by status, tags and time', async () => {
      const a = await makeDocument(project.key, { tags: { k: 'v', l: '' } })
      const b = await makeDocument(project.key, { tags: { k: 'w' } })
      await rowsOf(app, `update documents set status = 'failed' where id = $1 returning id`, [b.id])
      assert.deepEqual(ids({ body: await listed('status=ready') }), [a.id])
      assert.equal((await listed('status=ready&status=failed')).total, 2)
      assert.deepEqual(ids({ body: await listed('tags[k]=v&tags[l]=') }), [a.id])
      assert.equal((await listed('from=2100-01-01')).total, 0)
      assert.equal((await listed(`to=${a.created_at}`)).data.at(-1).id, a.id)
    })

    it('refuses filters that are none', async () => {
      for (const query of [
        'status=done',
        'status=',
        'include_withdrawn=yes',
        'include_withdrawn=',
        'metadata=x',
        'metadata=[]',
        'path_prefix=../..',
        'limit=0',
        'from=x',
        'tags=x',
      ]) {
        const reply = await project.key.get(`/documents?${query}`)
        assert.deepEqual([reply.status, reply.body.error?.code], [400, 'VALIDATION_FAILED'], query)
      }
    })

    it('counts and shows only what the caller may list, by id, path and tags', async () => {
      const open = await makeDocument(project.key, { path: '/public/a' })
      await makeDocument(project.key, { path: '/private/b' })
      const secret = await makeDocument(project.key, { path: '/public/secret' })
      const read = ['documents:ListDocuments', 'documents:GetDocument']
      const user = await app.user(undefined, [
        allow(read, `srn:${project.id}:document:/public/*`),
        {
          statement: [{ effect: 'Deny', action: read, resource: [`srn:${project.id}:document:${secret.id}`] }],
        },
      ])
      const seen = await user.get(`/documents?project_id=${project.id}&limit=1`)
      assert.deepEqual([seen.body.total, ids(seen)], [1, [open.id]])
      assert.equal((await user.get(`/documents/${open.id}`)).status, 200)
      assert.equal((await user.get(`/documents/${secret.id}`)).status, 403)
      assert.equal((await user.patch(`/documents/${open.id}`, { title: 'x' })).status, 403)
      const none = await app.user()
      assert.equal((await none.get(`/documents?project_id=${project.id}`)).status, 403)
    })
  })

  describe('permissions by path', () => {
    it('lets a caller create and move only to where its policies reach', async () => {
      const user = await app.user(undefined, [
        allow(
          ['documents:CreateDocument', 'documents:UpdateDocument', 'documents:GetDocument'],
          `srn:${project.id}:document:/mine/*`,
        ),
      ])
      const project_id = project.id
      const made = await user.post('/documents', { project_id, content: 'a', path: 'mine/a' })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.equal((await user.post('/documents', { project_id, content: 'a', path: '/mine/../b' })).status, 403)
      assert.equal((await user.post('/documents', { project_id, content: 'a' })).status, 403)
      const moved = await user.patch(`/documents/${made.body.id}`, { path: '/theirs/a' })
      assert.deepEqual([moved.status, moved.body.error.code], [403, 'FORBIDDEN'])
      assert.equal((await project.key.get(`/documents/${made.body.id}`)).body.path, '/mine/a')
      assert.equal((await user.patch(`/documents/${made.body.id}`, { path: '/mine/b/c' })).status, 200)
    })

    it('denies a place that a document gets by its id too', async () => {
      const project_id = project.id
      const user = await app.user(undefined, [
        allow(['documents:CreateDocument'], `srn:${project.id}:document:*`),
        {
          statement: [
            { effect: 'Deny', action: ['documents:CreateDocument'], resource: [`srn:${project.id}:document:/doc_*`] },
          ],
        },
      ])
      assert.equal((await user.post('/documents', { project_id, content: 'a', path: '/a' })).status, 201)
      assert.equal((await user.post('/documents', { project_id, content: 'a' })).status, 403)
    })
  })

  describe('delete', () => {
    it('deletes the document with everything of it and emits its last record', async () => {
      const made = await makeDocument(project.key)
      const changed = (await project.key.patch(`/documents/${made.id}`, { content: 'other' })).body
      const file = (await project.key.get(`/files/${made.file_id}`)).body
      assert.equal((await project.key.delete(`/documents/${made.id}`)).status, 204)
      assert.equal((await project.key.get(`/documents/${made.id}`)).status, 404)
      assert.equal((await project.key.get(`/files/${made.file_id}`)).status, 404)
      assert.equal((await project.key.delete(`/documents/${made.id}`)).status, 404)
      for (const table of ['document_texts', 'document_versions', 'document_chunks'])
        assert.equal((await rowsOf(app, `select 1 from ${table} where document_id = $1`, [made.id])).length, 0, table)
      const deleted = (await eventsOf(app, made.id)).at(-1)
      assert.deepEqual(deleted, { name: 'documents.deleted', data: changed })
      assert.deepEqual((await eventsOf(app, made.file_id)).at(-1), { name: 'files.deleted', data: file })
      assert.equal((await makeDocument(project.key, { path: made.path })).path, made.path)
    })

    it('of ten concurrent deletes, one succeeds', async () => {
      const made = await makeDocument(project.key)
      const answers = await Promise.all(Array.from({ length: 10 }, () => project.key.delete(`/documents/${made.id}`)))
      assert.deepEqual(answers.map(({ status }) => status).sort(), [204, ...Array(9).fill(404)])
      assert.equal((await eventsOf(app, made.id)).filter(({ name }) => name === 'documents.deleted').length, 1)
    })

    it('is refused on a record that has changed since it was read', async () => {
      const made = await makeDocument(project.key)
      const etag = (await project.key.get(`/documents/${made.id}`)).headers.get('etag') as string
      await project.key.patch(`/documents/${made.id}`, { title: 'new' })
      const stale = await project.key.delete(`/documents/${made.id}`, { 'if-match': etag })
      assert.deepEqual([stale.status, stale.body.error.code], [412, 'PRECONDITION_FAILED'])
    })

    it('ends an active ingestion', async () => {
      const id = await plantDocument(app, project.id, { status: 'processing', text: null })
      await rowsOf(
        app,
        `insert into ingestion_attempts (document_id, id, principal, allow_deferral, settings)
         values ($1, $1, '{}', true, '{}') returning id`,
        [id],
      )
      assert.equal((await project.key.delete(`/documents/${id}`)).status, 204)
      assert.equal((await rowsOf(app, 'select 1 from ingestion_attempts where document_id = $1', [id])).length, 0)
    })

    it('documents are deleted with their project', async () => {
      const made = await makeDocument(project.key)
      const gone = await app.admin.delete(`/projects/${project.id}?force=true`)
      assert.equal(gone.status, 204, JSON.stringify(gone.body))
      assert.equal((await rowsOf(app, 'select 1 from documents where id = $1', [made.id])).length, 0)
    })
  })

  describe('documents of the platform', () => {
    it('are read by id and refuse every write, and no list shows them', async () => {
      const id = await plantDocument(app, project.id, {
        kind: 'message',
        content_type: 'text/plain',
        path: '/.system/conversations/conv_1/m.txt',
        text: 'hi',
      })
      const read = await project.key.get(`/documents/${id}`)
      assert.deepEqual([read.status, read.body.content, read.body.kind], [200, 'hi', 'message'])
      assert.equal((await listed('')).total, 0)
      assert.equal((await listed('path_prefix=/.system')).total, 0)
      assert.equal((await project.key.get(`/documents/by-path?path=${read.body.path}`)).status, 404)
      const at = `/documents/${id}`
      for (const [what, refused] of Object.entries({
        patch: await project.key.patch(at, { title: 'x' }),
        content: await project.key.patch(at, { content: 'x' }),
        delete: await project.key.delete(at),
        put: await project.key.put(`${at}/tags`, { a: 'b' }),
        merge: await project.key.patch(`${at}/tags`, { a: 'b' }),
        withdraw: await project.key.post(`${at}/withdraw`),
        restore: await project.key.post(`${at}/versions/1/restore`),
      })) {
        assert.equal(refused.status, 400, what)
        assert.deepEqual(problemCodes(refused), ['RESERVED_PATH'], what)
      }
    })
  })
})
