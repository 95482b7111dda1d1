import assert from 'node:assert/strict'
import http from 'node:http'
import { inTransaction, onSeparateConnection } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { eventually, type Reply, startApp, type TestApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { eventsOf, makeDocument, plantDocument, rowsOf } from './documents-support.ts'

const ACTIONS = [
  'documents:CreateDocument',
  'documents:GetDocument',
  'documents:ListDocuments',
  'documents:UpdateDocument',
  'documents:DeleteDocument',
]

describe('documents under attack', () => {
  const app = forSuite(() => startApp({ env: { DOCUMENT_CONTENT_MAX_BYTES: '100000' } }))
  let project: Awaited<ReturnType<TestApp['project']>>
  beforeEach(async () => {
    project = await app.project()
  })

  const get = async (id: string) => (await project.key.get(`/documents/${id}`)).body
  const statuses = (answers: Reply[]) => answers.map(({ status }) => status)

  describe('by paths that policies distinguish', () => {
    /** Everything below /pub but not below /pub/secret. */
    const visitor = () =>
      app.user(undefined, [
        {
          statement: [
            { effect: 'Allow', action: ACTIONS, resource: [`srn:${project.id}:document:/pub/*`] },
            { effect: 'Deny', action: ACTIONS, resource: [`srn:${project.id}:document:/pub/secret/*`] },
          ],
        },
      ])

    it('opens no route to denied documents', async () => {
      const open = await makeDocument(project.key, { path: '/pub/a' })
      const secret = await makeDocument(project.key, { path: '/pub/secret/b' })
      await project.key.patch(`/documents/${secret.id}`, { title: 'x' })
      const user = await visitor()
      const project_id = project.id
      const routes: [string, (id: string) => Promise<Reply>][] = [
        ['get', id => user.get(`/documents/${id}`)],
        ['status', id => user.get(`/documents/${id}/status`)],
        ['chunks', id => user.get(`/documents/${id}/chunks`)],
        ['tags', id => user.get(`/documents/${id}/tags`)],
        ['versions', id => user.get(`/documents/${id}/versions`)],
        ['version', id => user.get(`/documents/${id}/versions/1`)],
        ['patch', id => user.patch(`/documents/${id}`, { metadata: { a: 1 } })],
        ['append', id => user.patch(`/documents/${id}`, { append: '!' })],
        ['put tags', id => user.put(`/documents/${id}/tags`, { a: 'b' })],
        ['patch tags', id => user.patch(`/documents/${id}/tags`, { a: 'c' })],
        ['restore', id => user.post(`/documents/${id}/versions/1/restore`)],
        ['withdraw', id => user.post(`/documents/${id}/withdraw`)],
        ['delete', id => user.delete(`/documents/${id}`)],
      ]
      const before = await get(secret.id)
      for (const [name, ask] of routes) {
        const refused = await ask(secret.id)
        assert.deepEqual([refused.status, refused.body.error?.code], [403, 'FORBIDDEN'], name)
        const allowed = await ask(open.id)
        assert.ok(allowed.status < 300, `${name} ${allowed.status} ${JSON.stringify(allowed.body)}`)
      }
      assert.deepEqual(await get(secret.id), before)
      const list = await user.get(`/documents?project_id=${project_id}`)
      assert.deepEqual([list.body.total, list.body.data], [0, []])
    })

    it('reads no path in another way than the place it leads to', async () => {
      const user = await visitor()
      const { id } = await makeDocument(project.key, { path: '/pub/a' })
      for (const path of [
        '/pub/secret/x',
        ' /pub/secret/x',
        '\u00a0pub/secret/x',
        '\ufeff/pub/secret/x ',
        'pub//secret/./x',
        '/pub/y/../secret/x',
        '/other/../pub/secret/x/',
        '/x',
        'pub/../x',
        ' ',
        '/pub/../../x',
      ]) {
        const made = await user.post('/documents', { project_id: project.id, content: 'x', path })
        assert.ok([400, 403].includes(made.status), `create at ${JSON.stringify(path)}: ${made.status}`)
        const moved = await user.patch(`/documents/${id}`, { path })
        assert.ok([400, 403].includes(moved.status), `move to ${JSON.stringify(path)}: ${moved.status}`)
      }
      assert.equal((await user.patch(`/documents/${id}`, { path: null })).status, 403)
      assert.equal((await get(id)).path, '/pub/a')
      assert.equal((await rowsOf(app, 'select 1 from files where project_id = $1', [project.id])).length, 1)
      const spaced = await user.post('/documents', { project_id: project.id, content: 'x', path: '  pub//b ' })
      assert.deepEqual([spaced.status, spaced.body.path], [201, '/pub/b'])
    })

    it('does not reveal by a path whether a document exists', async () => {
      await makeDocument(project.key, { path: '/pub/secret/b' })
      const byId = await makeDocument(project.key, { path: '/elsewhere' })
      const user = await visitor()
      const at = (path: string) => user.get(`/documents/by-path?project_id=${project.id}&path=${path}`)
      for (const path of ['/pub/secret/b', '/pub/secret/none', '/elsewhere', '/nowhere'])
        assert.deepEqual([(await at(path)).status, path], [403, path])
      assert.equal((await at('/pub/none')).status, 404)
      const holder = await app.user(undefined, [
        {
          statement: [{ effect: 'Allow', action: ACTIONS, resource: [`srn:${project.id}:document:${byId.id}`] }],
        },
      ])
      assert.equal((await holder.get(`/documents/by-path?project_id=${project.id}&path=/elsewhere`)).status, 200)
    })

    it('restores nothing to where the caller may not write', async () => {
      const made = await makeDocument(project.key, { path: '/pub/secret/a' })
      await project.key.patch(`/documents/${made.id}`, { path: '/pub/a' })
      const user = await visitor()
      const refused = await user.post(`/documents/${made.id}/versions/1/restore`)
      assert.deepEqual([refused.status, refused.body.error.code], [403, 'FORBIDDEN'])
      assert.equal((await get(made.id)).path, '/pub/a')
    })
  })

  it('has one spelling of every path', async () => {
    for (const [path, spelled] of [
      ['/a/ /', '/a'],
      ['a / / ', '/a'],
      ['/b/.. /c/ /.', '/b/.. /c'],
      ['/d/ x ', '/d/ x'],
      ['/e\\f%g_*', '/e\\f%g_*'],
      ['/Cafe\u0301', '/Café'],
      [`/${'🎉'.repeat(1023)}`, `/${'🎉'.repeat(1023)}`],
    ]) {
      const made = await makeDocument(project.key, { path, filename: 'a' })
      assert.equal(made.path, spelled)
      const found = await project.key.get(`/documents/by-path?path=${encodeURIComponent(spelled)}`)
      assert.equal(found.body.id, made.id, path)
      assert.equal((await project.key.patch(`/documents/${made.id}`, { path: spelled })).body.version, 1)
      await project.key.delete(`/documents/${made.id}`)
    }
    for (const path of ['', ' ', '/', '/a/..', '/..', `/${'x'.repeat(1024)}`, '/a\u007fb', '/a\nb', '/a\0b', '/\ud800'])
      assert.equal((await project.key.post('/documents', { content: 'x', path })).status, 400, JSON.stringify(path))
  })

  it('answers everything that makes no sense with 400', async () => {
    const { id } = await makeDocument(project.key)
    const deep = (levels: number): unknown => JSON.parse(`${'['.repeat(levels)}${']'.repeat(levels)}`)
    const bad = ['a\0b', '\ud800', 7, true, [], {}, deep(70)]
    const fields = ['content', 'path', 'title', 'filename', 'chunk_strategy', 'chunk_unit', 'chunk_size', 'project_id']
    const before = await get(id)
    for (const field of [...fields, 'metadata', 'tags', 'append', 'expected_version', 'constructor', '__proto__'])
      for (const value of bad) {
        if (field === 'chunk_size' && value === 7) continue
        if ((field === 'metadata' || field === 'tags') && JSON.stringify(value) === '{}') continue
        const text = `{${field === 'content' ? '' : '"content":"x",'}${JSON.stringify(field)}:${JSON.stringify(value)}}`
        const made = await project.key.post('/documents', text, { 'content-type': 'application/json' })
        assert.ok([400, 403].includes(made.status), `POST ${text.slice(0, 80)}: ${made.status}`)
        if (field === 'expected_version' && value === 7) continue
        const patched = await project.key.patch(
          `/documents/${id}`,
          `{${JSON.stringify(field)}:${JSON.stringify(value)}}`,
          {
            'content-type': 'application/json',
          },
        )
        assert.equal(patched.status, 400, `PATCH ${field} ${JSON.stringify(value).slice(0, 80)}`)
      }
    for (const body of [
      '{"content":"x","metadata":{"n":1e400}}',
      '{"content":"x","metadata":{"a\\u0000":1}}',
      `{"content":"x","metadata":{"a":${'['.repeat(16)}${']'.repeat(16)}}}`,
      `{"content":"x","metadata":${'{"a":'.repeat(5000)}1${'}'.repeat(5000)}}`,
      'null',
      '[]',
      '"x"',
      '{',
    ])
      assert.equal((await project.key.post('/documents', body, { 'content-type': 'application/json' })).status, 400)
    for (const query of [
      'metadata={"n":{"gte":1e400}}',
      'metadata={"n":1e400}',
      `metadata={"n":${'['.repeat(3000)}${']'.repeat(3000)}}`,
      'metadata={"n":"\\ud800"}',
      'metadata={"n\\u0000":1}',
      'metadata[a]=b',
      'metadata=',
      'path_prefix=%00',
      'path_prefix=a&path_prefix=b',
      'path_prefix[x]=a',
      'tags[a]=b&tags[a]=c',
      'tags[a][b]=c',
      'status[x]=ready',
      'limit=1e3',
      'offset=-1',
    ])
      assert.equal((await project.key.get(`/documents?${query}`)).status, 400, query.slice(0, 60))
    assert.equal((await project.key.get('/documents?metadata={"n":{"lt":-1e308,"gt":1e-308}}')).status, 200)
    for (const path of ['/documents/by-path', '/documents/by-path?path=', '/documents/by-path?path[x]=a'])
      assert.ok([400, 404].includes((await project.key.get(path)).status), path)
    for (const version of ['%00', '1%2f2', '1e1', '٣', '9'.repeat(400)])
      assert.equal((await project.key.get(`/documents/${id}/versions/${version}`)).status, 404, version)
    for (const body of [{ expected_version: 1.5 }, { expected_version: 2 ** 60 }, { x: 1 }, []]) {
      for (const at of ['withdraw', 'versions/1/restore'])
        assert.equal((await project.key.post(`/documents/${id}/${at}`, body)).status, 400, JSON.stringify(body))
    }
    for (const tag of ['x', 'W/"x"', '"', '*, x', ' ', '"a", "b"'])
      assert.ok(
        [400, 412].includes((await project.key.patch(`/documents/${id}`, { title: 'x' }, { 'if-match': tag })).status),
      )
    assert.deepEqual(await get(id), before)
    assert.equal((await rowsOf(app, 'select 1 from files where project_id = $1', [project.id])).length, 1)
  })

  it('takes metadata up to its bounds', async () => {
    const nested = (levels: number) => ({ a: JSON.parse(`${'['.repeat(levels - 1)}${']'.repeat(levels - 1)}`) })
    const sized = (bytes: number) => ({ a: 'x'.repeat(bytes - '{"a":""}'.length) })
    for (const [metadata, status] of [
      [nested(16), 201],
      [nested(17), 400],
      [sized(65_536), 201],
      [sized(65_537), 400],
    ] as const)
      assert.equal((await project.key.post('/documents', { content: 'x', metadata })).status, status)
  })

  it('is nowhere to be found from another project', async () => {
    const other = await app.project()
    const mine = await makeDocument(project.key, { path: '/a', tags: { a: 'b' } })
    const at = `/documents/${mine.id}`
    const answers = await Promise.all([
      other.key.get(at),
      other.key.patch(at, { title: 'x' }),
      other.key.delete(at),
      other.key.put(`${at}/tags`, {}),
      other.key.post(`${at}/withdraw`),
      other.key.post(`${at}/versions/1/restore`),
      other.key.get(`${at}/versions/1`),
      other.key.get(`/documents/by-path?path=/a`),
    ])
    assert.deepEqual(statuses(answers), Array(8).fill(404))
    assert.equal((await other.key.get('/documents?tags[a]=b&path_prefix=/a')).body.total, 0)
    assert.equal((await other.key.get(`/documents?project_id=${project.id}`)).status, 403)
    assert.equal((await other.key.get(`/documents/by-path?path=/a&project_id=${project.id}`)).status, 403)
  })

  it('keeps what a client that hangs up has sent, whole or not at all', async () => {
    const body = JSON.stringify({ content: 'x'.repeat(50_000), chunk_strategy: 'size', chunk_size: 100, path: '/gone' })
    const send = (bytes: number, hangUpAfterMs: number) =>
      new Promise<void>(resolve => {
        const request = http.request(`${app.url}/api/v1/documents`, {
          method: 'POST',
          headers: {
            authorization: `Bearer ${project.key.token}`,
            'content-type': 'application/json',
            'content-length': Buffer.byteLength(body),
          },
        })
        request.on('error', () => resolve())
        request.on('response', response => response.resume().on('end', resolve))
        request.write(body.slice(0, bytes))
        setTimeout(() => request.destroy(), hangUpAfterMs)
        request.on('close', () => resolve())
      })
    await send(20_000, 20)
    assert.equal((await rowsOf(app, 'select 1 from files where project_id = $1', [project.id])).length, 0)
    await send(body.length, 1)
    // Whether it arrived is the network's; that nothing of it is half there is ours.
    await eventually(async () => (await project.key.get('/documents')).status === 200)
    const [row] = await rowsOf(app, 'select id, chunk_count from documents where project_id = $1', [project.id])
    if (row) assert.equal((await project.key.get(`/documents/${row.id}/chunks?limit=1`)).body.total, row.chunk_count)
  })

  describe('by concurrent writes', () => {
    /** Versions from 1 to the last, each an event but the first, and chunks of the text that is there. */
    const sound = async (id: string) => {
      const document = await get(id)
      const versions = await rowsOf(
        app,
        'select version, tombstone from document_versions where document_id = $1 order by version',
        [id],
      )
      assert.deepEqual(
        versions.map(({ version }) => version),
        Array.from({ length: document.version }, (_, index) => index + 1),
      )
      assert.equal(versions.at(-1)?.tombstone, document.status === 'withdrawn')
      assert.equal((await eventsOf(app, id)).length, document.version)
      const chunks = (await project.key.get(`/documents/${id}/chunks?limit=100`)).body
      assert.equal(chunks.total, document.chunk_count)
      if (document.status === 'ready')
        assert.equal(chunks.data.map(({ content }: any) => content).join(''), document.content)
      const copies = await rowsOf(
        app,
        `select count(*)::int as count from document_versions v join documents d on d.id = v.document_id
         where d.id = $1 and v.version = d.text_version and v.content is not null`,
        [id],
      )
      assert.equal(copies[0].count, 0, 'the live text is stored a second time')
      return document
    }

    it('has every write of every kind in a separate version', async () => {
      const { id } = await makeDocument(project.key)
      const at = `/documents/${id}`
      const writes = Array.from({ length: 12 }, (_, index) => [
        project.key.patch(at, { content: `text ${index}` }),
        project.key.patch(at, { title: `title ${index}` }),
        project.key.patch(at, { append: `+${index}` }),
        project.key.put(`${at}/tags`, { index: String(index) }),
        project.key.patch(at, { path: `/moved/${index}` }),
        project.key.post(`${at}/versions/1/restore`),
      ]).flat()
      const answers = await Promise.all(writes)
      assert.deepEqual([...new Set(statuses(answers))], [200])
      const { file_id, path, content } = await sound(id)
      const file = (await project.key.get(`/files/${file_id}`)).body
      assert.deepEqual([file.path, file.size], [path, content.length])
    })

    it('withdraws, restores and changes one document in some order', async () => {
      const { id } = await makeDocument(project.key)
      const at = `/documents/${id}`
      const answers = await Promise.all(
        Array.from({ length: 10 }, (_, index) => [
          project.key.post(`${at}/withdraw`),
          project.key.post(`${at}/versions/1/restore`),
          project.key.patch(at, { content: `text ${index}` }),
        ]).flat(),
      )
      for (const { status, body } of answers)
        assert.ok(status === 200 || (status === 400 && /withdrawn/.test(body.error.message)), JSON.stringify(body))
      await sound(id)
      assert.equal((await project.key.post(`${at}/versions/1/restore`)).status, 200)
      assert.equal((await sound(id)).content, 'alpha beta')
    })

    it('is deleted once, whatever else is written', async () => {
      for (let round = 0; round < 3; round++) {
        const { id, file_id } = await makeDocument(project.key)
        const at = `/documents/${id}`
        await project.key.post(`${at}/withdraw`)
        const answers = await Promise.all([
          project.key.post(`${at}/versions/1/restore`),
          project.key.patch(at, { title: 'x' }),
          project.key.delete(at),
          project.key.post(`${at}/versions/1/restore`),
          project.key.patch(at, { content: 'x' }),
          project.key.delete(at),
        ])
        assert.deepEqual(statuses([answers[2], answers[5]]).sort(), [204, 404])
        for (const { status } of answers) assert.ok([200, 204, 400, 404].includes(status), String(status))
        assert.equal((await eventsOf(app, id)).at(-1)?.name, 'documents.deleted')
        for (const [table, column, value] of [
          ['documents', 'id', id],
          ['document_versions', 'document_id', id],
          ['document_texts', 'document_id', id],
          ['document_chunks', 'document_id', id],
          ['files', 'id', file_id],
        ])
          assert.equal((await rowsOf(app, `select 1 from ${table} where ${column} = $1`, [value])).length, 0, table)
      }
    })

    it('changes places with others without an end', async () => {
      const made = await Promise.all(['/a', '/b', '/c'].map(path => makeDocument(project.key, { path })))
      for (let round = 0; round < 5; round++) {
        const answers = await Promise.all(
          made.map(({ id }, index) =>
            project.key.patch(`/documents/${id}`, { path: ['/a', '/b', '/c'][(index + round) % 3] }),
          ),
        )
        for (const { status } of answers) assert.ok([200, 409].includes(status), String(status))
        const rows = await rowsOf(
          app,
          'select d.path as place, f.path from documents d join files f on f.id = d.file_id where d.project_id = $1',
          [project.id],
        )
        for (const { place, path } of rows) assert.equal(place, path)
      }
    })

    it('is written while its project goes', async () => {
      const { id } = await makeDocument(project.key)
      const answers = await Promise.all([
        ...Array.from({ length: 8 }, (_, index) => app.admin.patch(`/documents/${id}`, { content: `text ${index}` })),
        app.admin.delete(`/projects/${project.id}?force=true`),
        ...Array.from({ length: 4 }, () => app.admin.post('/documents', { project_id: project.id, content: 'late' })),
      ])
      for (const { status, body } of answers)
        assert.ok([200, 201, 204, 403, 404].includes(status), `${status} ${JSON.stringify(body)}`)
      assert.equal((await rowsOf(app, 'select 1 from documents where project_id = $1', [project.id])).length, 0)
    })

    it('has its file to itself while the delete of its project waits for it', async () => {
      const { id, file_id } = await makeDocument(project.key)
      const { asked } = await inTransaction(app.servicesOf(id).pool, async tx => {
        await tx.query(rawQuery('select 1 from documents where id = $1 for update', [id]))
        const asked = app.admin.delete(`/projects/${project.id}?force=true`)
        const waiting = () =>
          rowsOf(app, `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
        await eventually(async () => (await onSeparateConnection(waiting)).length > 0)
        await tx.query(rawQuery('select 1 from files where id = $1 for update nowait', [file_id]))
        return { asked }
      })
      assert.equal((await asked).status, 204)
    })
  })

  it('paths are distinguished under one Idempotency-Key', async () => {
    const headers = { 'idempotency-key': 'k' }
    const body = { content: 'a', path: '/once' }
    const answers = await Promise.all(Array.from({ length: 8 }, () => project.key.post('/documents', body, headers)))
    for (const { status, body: answer } of answers)
      assert.ok(status === 201 || (status === 409 && answer.error.code === 'IDEMPOTENCY_IN_PROGRESS'), String(status))
    assert.equal((await project.key.get('/documents')).body.total, 1)
    const other = await project.key.post('/documents', { ...body, content: 'b' }, headers)
    assert.deepEqual([other.status, other.body.error.code], [409, 'IDEMPOTENCY_KEY_REUSED'])
    const { id } = (await project.key.get('/documents')).body.data[0]
    const at = `/documents/${id}/withdraw`
    const first = await project.key.post(at, undefined, headers)
    await project.key.post(`/documents/${id}/versions/1/restore`)
    const again = await project.key.post(at, undefined, headers)
    assert.deepEqual([again.status, again.body], [200, first.body])
    assert.equal((await get(id)).status, 'ready')
  })

  it('cannot be made of the platform’s files, or moved there by its name', async () => {
    const planted = await plantDocument(app, project.id, { path: '/.system/traces/t.json' })
    assert.equal((await project.key.delete(`/documents/${planted}`)).status, 400)
    const file = await project.key.post('/files/upload/base64', {
      content: Buffer.from('x').toString('base64'),
      filename: '.system',
      prefix: '/x',
      content_type: 'text/plain',
    })
    assert.equal(file.status, 201, JSON.stringify(file.body))
    const refused = await project.key.post('/documents/ingest', { file_id: file.body.id, path_prefix: '/' })
    assert.deepEqual([refused.status, refused.body.error.meta?.problems?.[0].code], [400, 'RESERVED_PATH'])
  })
})
