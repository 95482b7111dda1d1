import assert from 'node:assert/strict'
import { startApp, type TestApp } from '../support/app.ts'
import { withoutSharing } from '../support/fuzz.ts'
import { forSuite } from '../support/suite.ts'
import { eventsOf, makeDocument, plantDocument, problemCodes, rowsOf, statementsOf } from './documents-support.ts'

describe('changes of documents', () => {
  const app = forSuite(() => startApp({ env: { DOCUMENT_CONTENT_MAX_BYTES: '100000' } }))
  let project: Awaited<ReturnType<TestApp['project']>>
  beforeEach(async () => {
    project = await app.project()
  })

  const patch = (id: string, body: unknown, headers?: Record<string, string>) =>
    project.key.patch(`/documents/${id}`, body, headers)
  const get = async (id: string) => (await project.key.get(`/documents/${id}`)).body
  const versions = async (id: string) => (await project.key.get(`/documents/${id}/versions`)).body.data as any[]
  const names = async (id: string) => (await eventsOf(app, id)).map(({ name }) => name)
  const chunkTexts = async (id: string) =>
    (await project.key.get(`/documents/${id}/chunks`)).body.data.map((chunk: any) => chunk.content)
  const schema = (path_prefix: string, required: string[]) =>
    project.key.post('/metadata-schemas', {
      resource_type: 'document',
      path_prefix,
      schema: { type: 'object', required },
    })

  describe('update', () => {
    it('changes the given fields as one version, and emits an event with the record', async () => {
      const made = await makeDocument(project.key, { title: 'a', metadata: { k: 1 }, tags: { a: '1' } })
      const changed = await patch(made.id, { title: 'b', tags: { b: '2' } })
      assert.equal(changed.status, 200, JSON.stringify(changed.body))
      const { updated_at } = changed.body
      assert.deepEqual(changed.body, { ...made, title: 'b', tags: { b: '2' }, version: 2, updated_at })
      assert.deepEqual(await get(made.id), { ...changed.body, content: 'alpha beta' })
      const events = await eventsOf(app, made.id)
      assert.deepEqual(events.at(-1), { name: 'documents.updated', data: changed.body })
      const [entry] = await rowsOf(
        app,
        `select * from audit_entries where resource_public_id = $1 and action = 'documents:UpdateDocument'`,
        [made.id],
      )
      assert.deepEqual([entry.status, entry.detail.changes], [200, ['title', 'tags']])
      const cleared = await patch(made.id, { title: null, metadata: null })
      assert.deepEqual([cleared.body.title, cleared.body.metadata, cleared.body.version], [null, null, 3])
    })

    it('creates no version and no event for the current state', async () => {
      const made = await makeDocument(project.key, {
        title: 'a',
        metadata: { a: { b: 1, c: 2 } },
        tags: { x: 'y', z: '' },
      })
      for (const body of [
        {},
        { title: 'a' },
        { content: 'alpha beta' },
        { append: '' },
        { metadata: { a: { c: 2, b: 1 } }, tags: { z: '', x: 'y' }, path: made.path },
        { chunk_strategy: 'whole', chunk_size: 7 },
      ]) {
        const same = await patch(made.id, body)
        assert.equal(same.status, 200, JSON.stringify(body))
        assert.deepEqual(same.body, made, JSON.stringify(body))
      }
      assert.deepEqual(await names(made.id), ['documents.created'])
      assert.equal((await versions(made.id)).length, 1)
    })

    it('refuses invalid fields', async () => {
      const made = await makeDocument(project.key)
      for (const body of [
        { content: 1 },
        { content: null },
        { content: 'a\0' },
        { content: 'x'.repeat(100_001) },
        { append: 'x'.repeat(99_991) },
        { append: 1 },
        { content: 'a', append: 'b' },
        { title: 1 },
        { title: 'x'.repeat(513) },
        { path: '../..' },
        { path: '/' },
        { path: 7 },
        { metadata: 'x' },
        { tags: { a: null } },
        { tags: { 'system.a': 'b' } },
        { filename: 'x' },
        { status: 'ready' },
        { chunk_strategy: 'size', chunk_size: 5, chunk_overlap: 5 },
        { expected_version: 0 },
        { expected_version: '1' },
      ]) {
        const refused = await patch(made.id, body)
        assert.equal(refused.status, 400, JSON.stringify(body).slice(0, 60))
        assert.equal(refused.body.error.code, 'VALIDATION_FAILED')
      }
      assert.deepEqual(await get(made.id), { ...made, content: 'alpha beta' })
    })

    it('replaces the text, its chunks and the bytes of its file', async () => {
      const made = await makeDocument(project.key)
      const changed = (await patch(made.id, { content: 'gämma' })).body
      assert.deepEqual([changed.version, changed.size, changed.chunk_count], [2, 6, 1])
      assert.equal((await get(made.id)).content, 'gämma')
      assert.deepEqual(await chunkTexts(made.id), ['gämma'])
      const file = (await project.key.get(`/files/${made.file_id}`)).body
      assert.equal(file.size, 6)
      assert.equal((await project.key.get(`/files/${made.file_id}/download`)).body, 'gämma')
      assert.equal((await eventsOf(app, made.file_id)).at(-1)?.name, 'files.updated')
      const emptied = (await patch(made.id, { content: '' })).body
      assert.deepEqual([emptied.chunk_count, emptied.size, emptied.status], [0, 0, 'ready'])
    })

    it('writes the bytes of a text file as UTF-8, whatever they were in', async () => {
      const id = await plantDocument(app, project.id, { content_type: 'text/markdown; Charset="latin1"; variant=GFM' })
      const changed = (await patch(id, { content: 'Größe' })).body
      assert.deepEqual([changed.content_type, changed.size], ['text/markdown; variant=GFM', 7])
      const file = (await project.key.get(`/files/${changed.file_id}`)).body
      assert.deepEqual([file.content_type, file.size, file.has_content], [changed.content_type, 7, true])
      assert.equal((await project.key.get(`/files/${changed.file_id}/download`)).body, 'Größe')
    })

    it('splits the stored text again when only the settings change', async () => {
      const made = await makeDocument(project.key, { content: 'x'.repeat(2500) })
      const cut = (await patch(made.id, { chunk_strategy: 'size', chunk_overlap: 0 })).body
      assert.deepEqual([cut.chunk_size, cut.chunk_overlap, cut.chunk_count, cut.version], [1000, 0, 3, 2])
      const finer = (await patch(made.id, { chunk_size: 500 })).body
      assert.deepEqual([finer.chunk_size, finer.chunk_overlap, finer.chunk_count], [500, 0, 5])
      const invalid = await patch(made.id, { chunk_overlap: 500 })
      assert.equal(invalid.status, 400)
      const whole = (await patch(made.id, { chunk_strategy: 'whole' })).body
      assert.deepEqual([whole.chunk_size, whole.chunk_overlap, whole.chunk_count], [null, null, 1])
    })

    it('adds to the text, fifty times concurrently without losing an addition', async () => {
      const made = await makeDocument(project.key, { content: '' })
      const pieces = Array.from({ length: 50 }, (_, index) => `[${index}]`)
      const answers = await Promise.all(pieces.map(append => patch(made.id, { append })))
      assert.deepEqual(
        answers.map(({ status }) => status),
        pieces.map(() => 200),
      )
      assert.equal(new Set(answers.map(({ body }) => body.version)).size, 50)
      const after = await get(made.id)
      assert.equal(after.version, 51)
      assert.deepEqual(after.content.match(/\[\d+\]/g).sort(), [...pieces].sort())
      assert.equal(after.content.length, pieces.join('').length)
      assert.deepEqual(await chunkTexts(made.id), [after.content])
    })

    it('keeps one text, its file and its chunks together under twenty concurrent writes', async () => {
      const made = await makeDocument(project.key)
      const texts = Array.from({ length: 20 }, (_, index) => `text ${index} `.repeat(index + 1))
      const answers = await Promise.all(texts.map(content => patch(made.id, { content })))
      assert.ok(answers.every(({ status }) => status === 200))
      const after = await get(made.id)
      assert.equal(after.version, 21)
      assert.deepEqual(await chunkTexts(made.id), [after.content])
      assert.equal((await project.key.get(`/files/${made.file_id}`)).body.size, after.content.length)
      const kept = await Promise.all(
        Array.from({ length: 21 }, async (_, index) => {
          const version = await project.key.get(`/documents/${made.id}/versions/${index + 1}`)
          return version.body.content
        }),
      )
      assert.deepEqual(kept.sort(), [...texts, 'alpha beta'].sort())
      const stored = await rowsOf(
        app,
        'select version from document_versions where document_id = $1 and content is null',
        [made.id],
      )
      assert.deepEqual(stored, [{ version: 21 }], 'the live text is stored a second time')
    })

    it('leaves the text of another kind of source alone', async () => {
      const id = await plantDocument(app, project.id)
      for (const body of [{ content: 'x' }, { append: 'x' }]) {
        const refused = await patch(id, body)
        assert.deepEqual([refused.status, refused.body.error.code], [400, 'VALIDATION_FAILED'])
      }
      const cut = await patch(id, { chunk_strategy: 'size', chunk_size: 5, chunk_overlap: 0 })
      assert.deepEqual([cut.status, cut.body.chunk_count, cut.body.size], [200, 2, 3])
      assert.deepEqual(await chunkTexts(id), ['extra', 'cted'])
    })

    it('says how the text of a file that is no text is replaced, and that works', async () => {
      const id = await plantDocument(app, project.id, { path: '/advice.pdf' })
      const refused = await patch(id, { content: 'x' })
      const [problem] = refused.body.error.meta.problems
      assert.match(problem.message, /delete the document and upload another file/)
      assert.equal((await project.key.delete(`/documents/${id}`)).status, 204)
      const bytes = { prefix: '/', filename: 'advice.pdf', content: Buffer.from('other').toString('base64') }
      assert.equal((await project.key.post('/files/upload/base64', bytes)).status, 201)
    })

    it('ends an active ingestion', async () => {
      for (const [status, text, body] of [
        ['pending', null, { content: 'mine' }],
        ['processing', 'old', { content: 'mine' }],
        ['processing', 'old', { append: ' mine' }],
        ['processing', 'old', { content: 'old' }],
        ['failed', 'old', { chunk_strategy: 'size' }],
        ['pending', 'old', { chunk_strategy: 'page' }],
      ] as const) {
        const id = await plantDocument(app, project.id, { content_type: 'Text/Markdown; charset=utf-8', status, text })
        await rowsOf(
          app,
          `insert into ingestion_attempts (document_id, id, principal, allow_deferral, settings)
           values ($1, $1, '{}', true, '{}') returning id`,
          [id],
        )
        const changed = await patch(id, body)
        const what = JSON.stringify([status, text, body, changed.body])
        assert.deepEqual([changed.status, changed.body.status, changed.body.chunk_count], [200, 'ready', 1], what)
        if (status !== 'failed')
          assert.equal((await rowsOf(app, 'select 1 from ingestion_attempts where document_id = $1', [id])).length, 0)
        assert.deepEqual(await names(id), ['documents.updated'])
      }
    })

    it('clears what an ingestion has left: its error and the number of its pages', async () => {
      const id = await plantDocument(app, project.id, { content_type: 'text/plain', status: 'failed' })
      const left = `total_pages = 3, error = '{"code": "INGESTION_FAILED", "message": "x"}'`
      await rowsOf(app, `update documents set ${left} where id = $1 returning id`, [id])
      const changed = await patch(id, { content: 'mine' })
      assert.deepEqual([changed.body.status, changed.body.error], ['ready', null])
      assert.equal((await project.key.get(`/documents/${id}/status`)).body.total_pages, null)
    })

    it('adds nothing to a text that is not there', async () => {
      const id = await plantDocument(app, project.id, { content_type: 'text/plain', status: 'pending', text: null })
      assert.equal((await patch(id, { append: 'x' })).status, 400)
      assert.deepEqual([(await get(id)).status, (await versions(id)).length], ['pending', 1])
    })

    it('leaves an ingestion alone when neither text nor chunks are given', async () => {
      const id = await plantDocument(app, project.id, { status: 'processing', text: null })
      await rowsOf(
        app,
        `insert into ingestion_attempts (document_id, id, state, due_at, principal, allow_deferral, settings)
         values ($1, $1, 'running', now() + interval '1 hour', '{}', true, '{}') returning id`,
        [id],
      )
      const changed = await patch(id, { title: 'x' })
      assert.deepEqual([changed.status, changed.body.status, changed.body.version], [200, 'processing', 2])
      assert.equal((await rowsOf(app, 'select 1 from ingestion_attempts where document_id = $1', [id])).length, 1)
      for (const body of [{ chunk_strategy: 'whole' }, { append: 'x' }])
        assert.equal((await patch(id, body)).status, 400, JSON.stringify(body))
    })
  })

  it('takes few statements', async () => {
    const made = await makeDocument(project.key)
    const at = `/documents/${made.id}`
    await patch(made.id, { title: 'first', path: '/first' })
    const counts: Record<string, number> = {}
    for (const [name, work] of Object.entries({
      title: () => patch(made.id, { title: 'x' }),
      tags: () => project.key.put(`${at}/tags`, { a: 'b' }),
      nothing: () => patch(made.id, { title: 'x' }),
      path: () => patch(made.id, { path: '/second' }),
      content: () => patch(made.id, { content: 'x' }),
      append: () => patch(made.id, { append: 'x' }),
      withdraw: () => project.key.post(`${at}/withdraw`),
    })) {
      const sent = await statementsOf(app, async () => assert.equal((await work()).status, 200))
      counts[name] = sent.length
    }
    assert.deepEqual(counts, { title: 4, tags: 4, nothing: 3, path: 5, content: 10, append: 10, withdraw: 6 })
  })

  describe('preconditions', () => {
    it('applies one of two writes that expect the same version', async () => {
      const made = await makeDocument(project.key)
      const answers = await Promise.all(['x', 'y'].map(title => patch(made.id, { title, expected_version: 1 })))
      assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 409])
      const refused = answers.find(({ status }) => status === 409) as (typeof answers)[0]
      assert.equal(refused.body.error.code, 'VERSION_CONFLICT')
      assert.deepEqual(refused.body.error.meta, { current_version: 2, expected_version: 1 })
      assert.equal((await get(made.id)).version, 2)
    })

    it('applies one of ten texts that expect the same version', async () => {
      const made = await makeDocument(project.key)
      const answers = await Promise.all(
        Array.from({ length: 10 }, (_, index) => patch(made.id, { content: `t${index}`, expected_version: 1 })),
      )
      assert.deepEqual(answers.map(({ status }) => status).sort(), [200, ...Array(9).fill(409)])
      assert.equal((await versions(made.id)).length, 2)
    })

    it('refuses a stale one even where nothing would change', async () => {
      const made = await makeDocument(project.key)
      assert.equal((await patch(made.id, { expected_version: 2 })).status, 409)
      assert.equal((await patch(made.id, { expected_version: 1 })).status, 200)
    })

    it('compares If-Match with the current record', async () => {
      const made = await makeDocument(project.key)
      const read = await project.key.get(`/documents/${made.id}`)
      const etag = read.headers.get('etag') as string
      assert.equal((await patch(made.id, { content: 'b' }, { 'if-match': etag })).status, 200)
      const stale = await patch(made.id, { content: 'c' }, { 'if-match': etag })
      assert.deepEqual([stale.status, stale.body.error.code], [412, 'PRECONDITION_FAILED'])
      assert.equal((await get(made.id)).content, 'b')
      assert.equal((await patch(made.id, { title: 'x' }, { 'if-match': '*' })).status, 200)
      const tags = await project.key.put(`/documents/${made.id}/tags`, { a: 'b' }, { 'if-match': etag })
      assert.equal(tags.status, 412)
      for (const act of ['withdraw', 'versions/1/restore']) {
        const refused = await project.key.post(`/documents/${made.id}/${act}`, {}, { 'if-match': etag })
        assert.deepEqual([refused.status, refused.body.error?.code], [412, 'PRECONDITION_FAILED'], act)
      }
      const now = await project.key.get(`/documents/${made.id}`)
      assert.deepEqual([now.body.status, now.body.version], ['ready', 3])
      const tag = { 'if-match': now.headers.get('etag') as string }
      assert.equal((await project.key.post(`/documents/${made.id}/withdraw`, {}, tag)).body.status, 'withdrawn')
      assert.equal((await project.key.post(`/documents/${made.id}/withdraw`, {}, tag)).status, 412)
      const { paths } = withoutSharing((await app.anonymous.get('//openapi.json')).body)
      for (const act of ['withdraw', 'versions/{version}/restore']) {
        const { parameters, responses } = paths[`/api/v1/documents/{document_id}/${act}`].post
        assert.ok(parameters.some((each: { name: string }) => each.name === 'If-Match') && responses['412'], act)
      }
    })
  })

  describe('move', () => {
    it('takes the file along; the name follows where it was the leaf', async () => {
      const made = await makeDocument(project.key, { path: '/a/b.txt' })
      const moved = (await patch(made.id, { path: 'c/d.txt' })).body
      assert.deepEqual([moved.path, moved.filename, moved.version], ['/c/d.txt', 'd.txt', 2])
      const file = (await project.key.get(`/files/${made.file_id}`)).body
      assert.deepEqual([file.path, file.filename, file.prefix], ['/c/d.txt', 'd.txt', '/c'])
      assert.equal((await eventsOf(app, made.file_id)).at(-1)?.data.path, '/c/d.txt')
      const named = await makeDocument(project.key, { path: '/n/x', filename: 'own.txt' })
      assert.equal((await patch(named.id, { path: '/n/y' })).body.filename, 'own.txt')
      const cleared = (await patch(made.id, { path: null })).body
      assert.deepEqual([cleared.path, cleared.filename], [null, 'd.txt'])
      assert.equal((await project.key.get(`/files/${made.file_id}`)).body.path, null)
      assert.equal((await patch(made.id, { path: '/back' })).body.filename, 'd.txt')
    })

    it('needs a last segment that can be a name, where it becomes one', async () => {
      const path = `/long/${'é'.repeat(128)}`
      const made = await makeDocument(project.key, { path: '/a/b.txt' })
      for (const refused of [
        await patch(made.id, { path }),
        await project.key.post('/documents', { content: 'x', path }),
      ]) {
        assert.equal(refused.status, 400)
        assert.equal(refused.body.error.meta.problems[0].path, 'path')
      }
      assert.equal((await get(made.id)).path, '/a/b.txt')
      const named = await makeDocument(project.key, { path, filename: 'b.txt' })
      assert.deepEqual([named.path, named.filename], [path, 'b.txt'])
      assert.equal((await patch(named.id, { path: `${path}s` })).body.filename, 'b.txt')
      const longest = (await patch(made.id, { path: path.slice(0, -1) })).body
      assert.equal(longest.filename, 'é'.repeat(127))
    })

    it('is refused where a file exists, and changes nothing', async () => {
      const made = await makeDocument(project.key, { path: '/a' })
      await makeDocument(project.key, { path: '/b' })
      const refused = await patch(made.id, { path: '/b', title: 'x', content: 'new' })
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'NAME_CONFLICT'])
      assert.deepEqual(refused.body.error.meta, { path: '/b' })
      assert.deepEqual(await get(made.id), { ...made, content: 'alpha beta' })
      const reserved = await patch(made.id, { path: '/.system/x' })
      assert.deepEqual(problemCodes(reserved), ['RESERVED_PATH'])
    })

    it('is checked against the declaration for the new path', async () => {
      await schema('/reports', ['quarter'])
      const made = await makeDocument(project.key, { path: '/drafts/a', metadata: { x: 1 } })
      const refused = await patch(made.id, { path: '/reports/a' })
      assert.equal(refused.status, 400, JSON.stringify(refused.body))
      assert.equal(refused.body.error.meta.path_prefix, '/reports')
      assert.equal((await get(made.id)).path, '/drafts/a')
      const both = await patch(made.id, { path: '/reports/a', metadata: { quarter: 1 } })
      assert.equal(both.status, 200)
      assert.equal((await patch(made.id, { metadata: null })).status, 400)
      assert.equal((await patch(made.id, { title: 'x' })).status, 200)
      assert.equal(
        (await project.key.post('/documents', { content: 'a', path: '/reports/b', metadata: {} })).status,
        400,
      )
      assert.equal(
        (await project.key.post('/documents', { content: 'a', path: '/reports/b', metadata: null })).status,
        400,
      )
      assert.equal((await project.key.post('/documents', { content: 'a', path: '/reports/c' })).status, 201)
    })
  })

  describe('tags', () => {
    it('are read, replaced and merged, each change a version', async () => {
      const made = await makeDocument(project.key, { tags: { a: '1' } })
      const at = `/documents/${made.id}/tags`
      assert.deepEqual((await project.key.get(at)).body, { a: '1' })
      assert.deepEqual((await project.key.put(at, { b: '2' })).body, { b: '2' })
      assert.deepEqual((await project.key.patch(at, { c: '3', b: null })).body, { c: '3' })
      const kept = await versions(made.id)
      assert.deepEqual(
        kept.map(version => [version.version, version.tags]),
        [
          [3, { c: '3' }],
          [2, { b: '2' }],
          [1, { a: '1' }],
        ],
      )
      assert.deepEqual(kept[0].created_by, { type: 'api_key', id: project.keyId })
      assert.deepEqual(await names(made.id), ['documents.created', 'documents.updated', 'documents.updated'])
    })

    it('that exist already create no version and no event', async () => {
      const made = await makeDocument(project.key, { tags: { a: '1', b: '2' } })
      const at = `/documents/${made.id}/tags`
      assert.equal((await project.key.put(at, { b: '2', a: '1' })).status, 200)
      assert.equal((await project.key.patch(at, { a: '1', x: null })).status, 200)
      assert.deepEqual(await get(made.id), { ...made, content: 'alpha beta' })
      assert.deepEqual(await names(made.id), ['documents.created'])
    })

    it('of the platform stay', async () => {
      const made = await makeDocument(project.key)
      await rowsOf(app, `update documents set tags = '{"system.a": "p", "b": "1"}' where id = $1 returning id`, [
        made.id,
      ])
      assert.deepEqual((await patch(made.id, { tags: { c: '1' } })).body.tags, { 'system.a': 'p', c: '1' })
      const refused = await project.key.put(`/documents/${made.id}/tags`, { 'system.b': 'x' })
      assert.deepEqual(problemCodes(refused), ['RESERVED_TAG_KEY'])
    })

    it('bring a document neither into nor out of reach of a policy', async () => {
      const made = await makeDocument(project.key, { tags: { team: 'red' } })
      const at = `/documents/${made.id}`
      await patch(made.id, { tags: { team: 'blue' } })
      const user = await app.user(undefined, [
        {
          statement: [
            {
              effect: 'Allow',
              action: ['documents:UpdateDocument', 'documents:GetDocument'],
              resource: ['*'],
              condition: { StringEquals: { 'svc:ResourceTag/team': 'blue' } },
            },
          ],
        },
      ])
      for (const refused of [
        await user.patch(at, { tags: { team: 'red' } }),
        await user.put(`${at}/tags`, { team: 'red' }),
        await user.patch(`${at}/tags`, { team: null }),
        await user.post(`${at}/versions/1/restore`),
      ])
        assert.deepEqual([refused.status, refused.body.error?.code], [403, 'FORBIDDEN'])
      assert.equal((await user.patch(at, { tags: { team: 'blue', more: 'x' } })).status, 200)
    })
  })

  describe('versions', () => {
    it('keep the whole state, each text once', async () => {
      const made = await makeDocument(project.key, { title: 'one', metadata: { m: 1 }, path: '/p' })
      await patch(made.id, { content: 'second' })
      await patch(made.id, { title: 'three' })
      const list = await project.key.get(`/documents/${made.id}/versions?limit=2`)
      assert.deepEqual([list.body.total, list.body.limit], [3, 2])
      assert.deepEqual(
        list.body.data.map((item: any) => item.version),
        [3, 2],
      )
      assert.ok(!('content' in list.body.data[0]) && !('text_version' in list.body.data[0]))
      const version = async (number: number) => (await project.key.get(`/documents/${made.id}/versions/${number}`)).body
      const first = await version(1)
      const { created_at, ...rest } = first
      assert.ok(created_at)
      assert.deepEqual(rest, {
        document_id: made.id,
        version: 1,
        tombstone: false,
        title: 'one',
        path: '/p',
        metadata: { m: 1 },
        tags: {},
        chunk_strategy: 'whole',
        chunk_unit: null,
        chunk_size: null,
        chunk_overlap: null,
        created_by: { type: 'api_key', id: project.keyId },
        content: 'alpha beta',
      })
      assert.deepEqual([(await version(2)).content, (await version(3)).content], ['second', 'second'])
      for (const number of ['4', '0', '-1', '1.5', 'x', '01', '99999999999999'])
        assert.equal((await project.key.get(`/documents/${made.id}/versions/${number}`)).status, 404, number)
      const bytes = await rowsOf(
        app,
        'select version from document_versions where document_id = $1 and content is not null',
        [made.id],
      )
      assert.deepEqual(bytes, [{ version: 1 }])
    })

    it('are restored as new ones', async () => {
      const made = await makeDocument(project.key, { title: 'one', path: '/p', tags: { a: '1' }, metadata: { m: 1 } })
      await patch(made.id, {
        content: 'second '.repeat(300),
        title: 'two',
        path: '/q',
        tags: {},
        metadata: null,
        chunk_strategy: 'size',
      })
      const restored = await project.key.post(`/documents/${made.id}/versions/1/restore`)
      assert.equal(restored.status, 200, JSON.stringify(restored.body))
      assert.deepEqual(restored.body, { ...made, version: 3, updated_at: restored.body.updated_at })
      assert.equal((await get(made.id)).content, 'alpha beta')
      assert.deepEqual(await chunkTexts(made.id), ['alpha beta'])
      const second = (await project.key.get(`/documents/${made.id}/versions/2`)).body
      assert.deepEqual([second.content, second.title, second.chunk_strategy], ['second '.repeat(300), 'two', 'size'])
      assert.equal((await project.key.get(`/documents/${made.id}/versions/3`)).body.content, 'alpha beta')
      assert.equal((await project.key.get(`/files/${made.file_id}/download`)).body, 'alpha beta')
      assert.deepEqual(await names(made.id), ['documents.created', 'documents.updated', 'documents.updated'])
      const again = await project.key.post(`/documents/${made.id}/versions/1/restore`)
      assert.deepEqual([again.status, again.body], [200, restored.body])
      await patch(made.id, { content: 'fourth' })
      const texts = []
      for (const number of [1, 2, 3, 4])
        texts.push((await project.key.get(`/documents/${made.id}/versions/${number}`)).body.content)
      assert.deepEqual(texts, ['alpha beta', 'second '.repeat(300), 'alpha beta', 'fourth'])
    })

    it('without metadata are restored where metadata is required', async () => {
      const made = await makeDocument(project.key, { path: '/p' })
      await patch(made.id, { path: '/q' })
      await schema('/', ['k'])
      assert.equal((await project.key.post(`/documents/${made.id}/versions/1/restore`)).status, 200)
      await patch(made.id, { metadata: { k: 1 } })
      const judged = await project.key.post(`/documents/${made.id}/versions/1/restore`)
      assert.deepEqual([judged.status, judged.body.error?.meta.path_prefix], [400, '/'])
    })

    it('are restored under the rules of an update', async () => {
      const made = await makeDocument(project.key, { path: '/p', metadata: {} })
      await patch(made.id, { path: '/q', content: 'b' })
      const at = `/documents/${made.id}/versions`
      const stale = await project.key.post(`${at}/1/restore`, { expected_version: 1 })
      assert.deepEqual([stale.status, stale.body.error.code], [409, 'VERSION_CONFLICT'])
      assert.equal((await project.key.post(`${at}/9/restore`)).status, 404)
      assert.equal((await project.key.post(`${at}/1/restore`, { nonsense: 1 })).status, 400)
      const taken = await makeDocument(project.key, { path: '/p' })
      const conflict = await project.key.post(`${at}/1/restore`)
      assert.deepEqual([conflict.status, conflict.body.error.code], [409, 'NAME_CONFLICT'])
      await project.key.delete(`/documents/${taken.id}`)
      await schema('/p', ['k'])
      const judged = await project.key.post(`${at}/1/restore`)
      assert.deepEqual([judged.status, judged.body.error.meta.path_prefix], [400, '/p'])
      assert.equal((await get(made.id)).content, 'b')
    })

    it('of a document extracted from its file bring back the text and leave the file', async () => {
      const id = await plantDocument(app, project.id, { text: 'first text' })
      await rowsOf(
        app,
        `with t as (update document_texts set content = 'second text' where document_id = $1),
          v as (update document_versions set content = 'first text' where document_id = $1),
          n as (insert into document_versions (document_id, version, path, chunk_strategy, text_version)
            select id, 2, path, 'page', 2 from documents where id = $1)
         update documents set version = 2, text_version = 2 where id = $1 returning id`,
        [id],
      )
      const restored = await project.key.post(`/documents/${id}/versions/1/restore`)
      assert.deepEqual([restored.status, restored.body.version, restored.body.size], [200, 3, 3])
      assert.equal((await get(id)).content, 'first text')
      assert.equal((await project.key.get(`/documents/${id}/versions/2`)).body.content, 'second text')
    })

    it('are restored however long their texts are', async () => {
      const text = 'x'.repeat(100_001)
      const id = await plantDocument(app, project.id, { content_type: 'text/plain', text })
      assert.equal((await patch(id, { content: 'short' })).status, 200)
      const restored = await project.key.post(`/documents/${id}/versions/1/restore`)
      assert.deepEqual([restored.status, restored.body.size], [200, 100_001])
    })

    it('are listed by the time they were made', async () => {
      const made = await makeDocument(project.key)
      await patch(made.id, { title: 'x' })
      await rowsOf(
        app,
        `update document_versions set created_at = '2001-01-01' where document_id = $1 and version = 1 returning 1`,
        [made.id],
      )
      const between = async (query: string) =>
        (await project.key.get(`/documents/${made.id}/versions?${query}`)).body.data.map((item: any) => item.version)
      assert.deepEqual([await between('from=2002-01-01'), await between('to=2002-01-01')], [[2], [1]])
    })

    it('from before there was a text are not restored over one', async () => {
      const id = await plantDocument(app, project.id, { content_type: 'text/plain', status: 'failed', text: null })
      await patch(id, { content: 'mine' })
      assert.equal((await project.key.get(`/documents/${id}/versions/1`)).body.content, null)
      assert.equal((await project.key.post(`/documents/${id}/versions/1/restore`)).status, 400)
      assert.equal((await get(id)).content, 'mine')
    })
  })

  describe('withdraw', () => {
    it('takes a document out of lists and brings it back with a version', async () => {
      const made = await makeDocument(project.key)
      const at = `/documents/${made.id}`
      const withdrawn = await project.key.post(`${at}/withdraw`)
      assert.equal(withdrawn.status, 200)
      const { updated_at } = withdrawn.body
      assert.deepEqual(withdrawn.body, { ...made, status: 'withdrawn', version: 2, chunk_count: 0, updated_at })
      assert.equal((await get(made.id)).content, null)
      assert.deepEqual(await chunkTexts(made.id), [])
      assert.equal((await rowsOf(app, 'select 1 from document_chunks where document_id = $1', [made.id])).length, 0)
      const total = async (query: string) => (await project.key.get(`/documents?${query}`)).body.total
      assert.deepEqual(
        [
          await total(''),
          await total('include_withdrawn=false'),
          await total('include_withdrawn=true'),
          await total('status=withdrawn'),
          await total('status=ready&include_withdrawn=true'),
        ],
        [0, 0, 1, 1, 0],
      )
      const status = (await project.key.get(`${at}/status`)).body
      assert.deepEqual([status.status, status.chunk_count, status.progress, status.error], ['withdrawn', 0, null, null])
      const tombstone = (await project.key.get(`${at}/versions/2`)).body
      assert.deepEqual([tombstone.tombstone, tombstone.content], [true, null])
      assert.equal((await project.key.get(`${at}/versions/1`)).body.content, 'alpha beta')
      const again = await project.key.post(`${at}/withdraw`)
      assert.deepEqual([again.status, again.body], [200, withdrawn.body])
      const restored = await project.key.post(`${at}/versions/1/restore`)
      assert.deepEqual(restored.body, { ...made, version: 3, updated_at: restored.body.updated_at })
      assert.equal(await total(''), 1)
      assert.deepEqual(await chunkTexts(made.id), ['alpha beta'])
      const events = await eventsOf(app, made.id)
      assert.deepEqual(
        events.slice(1).map(event => [event.name, event.data]),
        [
          ['documents.withdrawn', withdrawn.body],
          ['documents.restored', restored.body],
        ],
      )
    })

    it('takes the error of a failed ingestion away', async () => {
      const id = await plantDocument(app, project.id, { status: 'failed' })
      const error = '{"code": "INGESTION_FAILED", "message": "x"}'
      await rowsOf(app, `update documents set error = $2, embed_since = now() where id = $1 returning id`, [id, error])
      assert.equal((await project.key.post(`/documents/${id}/withdraw`)).body.error, null)
      assert.deepEqual(await rowsOf(app, 'select embed_since from documents where id = $1', [id]), [
        { embed_since: null },
      ])
    })

    it('refuses writes until a restore, and tombstones for one', async () => {
      const made = await makeDocument(project.key)
      const at = `/documents/${made.id}`
      const stale = await project.key.post(`${at}/withdraw`, { expected_version: 2 })
      assert.deepEqual([stale.status, stale.body.error.code], [409, 'VERSION_CONFLICT'])
      await project.key.post(`${at}/withdraw`, { expected_version: 1 })
      assert.equal((await project.key.post(`${at}/withdraw`, { expected_version: 1 })).status, 409)
      for (const refused of [
        await patch(made.id, { title: 'x' }),
        await patch(made.id, { content: 'x' }),
        await project.key.put(`${at}/tags`, { a: 'b' }),
        await project.key.post(`${at}/versions/2/restore`),
      ])
        assert.deepEqual([refused.status, refused.body.error.code], [400, 'VALIDATION_FAILED'])
      assert.equal((await versions(made.id)).length, 2)
      assert.equal((await project.key.delete(at)).status, 204)
    })

    it('ten concurrent withdrawals create one tombstone', async () => {
      const made = await makeDocument(project.key)
      const answers = await Promise.all(
        Array.from({ length: 10 }, () => project.key.post(`/documents/${made.id}/withdraw`)),
      )
      assert.ok(answers.every(({ status, body }) => status === 200 && body.version === 2))
      assert.deepEqual(await names(made.id), ['documents.created', 'documents.withdrawn'])
    })

    it('of a document without a text yet comes back as one to ingest again', async () => {
      const id = await plantDocument(app, project.id, { status: 'pending', text: null })
      await rowsOf(
        app,
        `insert into ingestion_attempts (document_id, id, principal, allow_deferral, settings)
         values ($1, $1, '{}', true, '{}') returning id`,
        [id],
      )
      await project.key.post(`/documents/${id}/withdraw`)
      assert.equal((await rowsOf(app, 'select 1 from ingestion_attempts where document_id = $1', [id])).length, 0)
      const restored = await project.key.post(`/documents/${id}/versions/1/restore`)
      assert.deepEqual(
        [restored.status, restored.body.status, restored.body.error.code],
        [200, 'failed', 'INGESTION_FAILED'],
      )
    })
  })
})
