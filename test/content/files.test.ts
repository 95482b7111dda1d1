import { strict as assert } from 'node:assert'
import { createHash } from 'node:crypto'
import { insertFile } from '#content/files/store.ts'
import { newId } from '#core/base/ids.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { type Client, client, startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { codeOf, createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { statementsOf } from './documents-support.ts'
import { download, formOf, sendForm, upload } from './file-support.ts'

const unknown = 'file_00000000000000000000000000'
const allow = (action: string[], ...resource: string[]) => ({ statement: [{ effect: 'Allow', action, resource }] })
const problem = (reply: { body: any }) => reply.body?.error?.meta?.problems?.[0]

describe('files', () => {
  const app = forSuite(startApp)
  let project: string
  let key: Client
  let counter = 0
  const events = async (id: string) =>
    (await storedEvents(app.pool, { resource: id })).map(({ name, data }) => ({ name, data }))
  const record = (body: object = {}, caller = key) =>
    createdBy(caller, '/files', { filename: `r${++counter}.txt`, ...body })
  const stored = async (bytes = 'abc', fields: Record<string, string> = {}) => {
    const made = await upload(app.url, key, { bytes, name: `u${++counter}.txt`, type: 'text/plain' }, fields)
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return made.body
  }
  /** A key of the project that one policy narrows. */
  const narrowed = async (...documents: object[]): Promise<Client> => {
    const policy_ids = []
    for (const document of documents) policy_ids.push((await app.admin.post('/policies', { document })).body.id)
    const made = await app.admin.post('/project-keys', { project_id: project, policy_ids })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return client(app.url, made.body.secret)
  }
  const bytesHeld = async () => (await app.rows('select count(*) as n from file_blobs'))[0].n as number

  before(async () => {
    ;({ id: project, key } = await app.project())
  })

  describe('a record without content', () => {
    it('answers the record, emits an event with it and leaves an audit entry', async () => {
      const made = await key.post('/files', {
        filename: 'r.pdf',
        prefix: '/docs//2026/',
        size: 12,
        metadata: { 'A b': [1, null] },
        tags: { team: 'x' },
        path: '/evil',
        storage_type: 's3',
        storage_path: '/etc/passwd',
      })
      assert.equal(made.status, 201)
      const { id, created_at, updated_at, ...rest } = made.body
      assert.match(id, /^file_[0-9a-z]{26}$/)
      assert.equal(created_at, updated_at)
      assert.deepEqual(rest, {
        project_id: project,
        prefix: '/docs/2026',
        filename: 'r.pdf',
        path: '/docs/2026/r.pdf',
        content_type: 'application/pdf',
        size: 12,
        has_content: false,
        checksum_sha256: null,
        metadata: { 'A b': [1, null] },
        tags: { team: 'x' },
        document_id: null,
        actor_id: null,
      })
      assert.deepEqual((await key.get(`/files/${id}`)).body, made.body)
      assert.deepEqual(await events(id), [{ name: 'files.created', data: made.body }])
      const [entry] = await app.rows('select * from audit_entries where resource_public_id = $1', [id])
      assert.equal(entry.action, 'files:CreateFile')
      assert.equal((await key.get(`/files/${id}/download`)).status, 404)
      assert.equal((await key.get(`/files/${id}/download/base64`)).status, 404)
    })

    it('takes name for filename, and its id without either', async () => {
      assert.equal((await record({ filename: undefined, name: 'n.txt', prefix: '/n' })).path, '/n/n.txt')
      const unnamed = await record({ filename: undefined })
      assert.equal(unnamed.path, `/${unnamed.id}`)
      assert.equal(unnamed.size, null)
      assert.equal(unnamed.content_type, 'application/octet-stream')
    })

    it('reduces a name to its last segment, in one spelling', async () => {
      assert.equal((await record({ filename: '../../etc/shadow', prefix: '/p' })).path, '/p/shadow')
      assert.equal((await record({ filename: 'cafe\u0301.txt', prefix: '/p' })).filename, 'caf\u00e9.txt')
      assert.equal((await record({ filename: 'e\u0301'.repeat(127), prefix: '/p' })).filename, '\u00e9'.repeat(127))
      assert.equal((await record({ filename: ' spaced ', prefix: '/p' })).path, '/p/spaced')
      const strange = await record({ filename: '50%_*\\.txt', prefix: '/p' })
      assert.equal(strange.path, '/p/50%_*\\.txt')
    })

    it('refuses invalid files', async () => {
      for (const body of [
        { filename: '' },
        { filename: '..' },
        { filename: 'a/' },
        { filename: 'a\nb' },
        { filename: 'x'.repeat(256) },
        { filename: 'é'.repeat(128) },
        { filename: 7 },
        { filename: 'a', prefix: '../..' },
        { filename: 'a', prefix: 7 },
        { filename: 'a', prefix: '/x\u0000' },
        { filename: 'a', prefix: `/${'x'.repeat(1024)}` },
        { filename: 'a', size: -1 },
        { filename: 'a', size: 1.5 },
        { filename: 'a', size: '1' },
        { filename: 'a', content_type: 'nonsense' },
        { filename: 'a', content_type: 'text/plain\r\nX-Injected: 1' },
        { filename: 'a', content_type: `text/${'x'.repeat(255)}` },
        { filename: 'a', metadata: [] },
        { filename: 'a', metadata: '[]' },
        { filename: 'a', metadata: '{' },
        { filename: 'a', metadata: '{"a":"\\u0000"}' },
        { filename: 'a', metadata: '['.repeat(60_000) },
        { filename: 'a', metadata: { a: 'x'.repeat(65_536) } },
        { filename: 'a', metadata: JSON.parse(`${'{"a":'.repeat(17)}1${'}'.repeat(17)}`) },
        { filename: 'a', tags: { 'system.x': '1' } },
        { filename: 'a', nonsense: 1 },
        { filename: 'a', checksum_sha256: 'x' },
      ]) {
        const made = await key.post('/files', body)
        assert.equal(made.status, 400, JSON.stringify(body).slice(0, 90))
        assert.equal(codeOf(made), 'VALIDATION_FAILED')
      }
    })

    it('takes metadata as JSON text and null', async () => {
      assert.deepEqual((await record({ metadata: '{"a":1}' })).metadata, { a: 1 })
      assert.equal((await record({ metadata: null })).metadata, null)
    })

    it('leaves the reserved root to the platform', async () => {
      for (const body of [
        { filename: 'x', prefix: '/.system/x' },
        { filename: 'x', prefix: 'a/../.system' },
        { filename: '.system' },
        { filename: '.system', prefix: '/' },
      ]) {
        const made = await key.post('/files', body)
        assert.equal(made.status, 400, JSON.stringify(body))
        assert.equal(problem(made).code, 'RESERVED_PATH')
      }
      assert.equal((await record({ filename: 'x', prefix: '/.systems' })).path, '/.systems/x')
    })

    it('refuses a path that is taken, and makes one file of twenty creates at one path', async () => {
      const first = await record({ prefix: '/a', filename: 'x.txt' })
      const second = await key.post('/files', { prefix: 'a/', filename: 'x.txt' })
      assert.deepEqual(
        [second.status, codeOf(second), second.body.error.meta],
        [409, 'NAME_CONFLICT', { path: '/a/x.txt' }],
      )
      assert.equal((await key.get(`/files/${first.id}`)).status, 200)
      const race = await Promise.all(
        Array.from({ length: 20 }, () => key.post('/files', { prefix: '/race', filename: 'x' })),
      )
      assert.deepEqual(race.map(({ status }) => status).sort(), [201, ...Array(19).fill(409)])
      const other = await app.project()
      assert.equal((await other.key.post('/files', { prefix: '/a', filename: 'x.txt' })).status, 201)
      assert.equal((await key.post('/files', { prefix: '/A', filename: 'x.txt' })).status, 201)
    })

    it('answers a repeat under an idempotency key with the first answer', async () => {
      const headers = { 'idempotency-key': 'record-once' }
      const first = await key.post('/files', { filename: 'once.txt' }, headers)
      const second = await key.post('/files', { filename: 'once.txt' }, headers)
      assert.equal(second.headers.get('idempotency-replayed'), 'true')
      assert.equal(second.body.id, first.body.id)
    })

    it('counts a declared size against the storage quota', async () => {
      const full = await app.project()
      const made = await app.admin.post('/quotas', {
        project_id: full.id,
        scope: 'project',
        metric: 'storage_bytes',
        limit: 10,
        window: 'current',
      })
      if (made.status !== 201) assert.fail(JSON.stringify(made.body))
      const over = await full.key.post('/files', { filename: 'a', size: 11 })
      assert.deepEqual([over.status, codeOf(over)], [409, 'QUOTA_STORAGE_EXCEEDED'])
      assert.deepEqual(over.body.error.meta, {
        quota_id: made.body.id,
        metric: 'storage_bytes',
        limit: 10,
        current_bytes: 11,
      })
      assert.equal((await full.key.get('/files')).body.total, 0)
      assert.equal((await full.key.post('/files', { filename: 'a', size: 10 })).status, 201)
      const big = await upload(app.url, full.key, { bytes: 'x'.repeat(11) })
      assert.deepEqual([big.status, codeOf(big)], [409, 'QUOTA_STORAGE_EXCEEDED'])
      assert.equal((await app.rows("select 1 from file_blobs where state = 'staging'")).length, 0)
      assert.equal((await upload(app.url, full.key, { bytes: 'x'.repeat(10) })).status, 201)
    })
  })

  describe('reading', () => {
    it('takes one statement for one file and one for a list', async () => {
      const made = await record()
      await key.get(`/files/${made.id}`)
      for (const path of [`/files/${made.id}`, '/files']) {
        const sent = await statementsOf(app, async () => assert.equal((await key.get(path)).status, 200))
        assert.equal(sent.length, 1, sent.join('\n'))
      }
    })

    it('answers 404 for what does not exist or lies in another project', async () => {
      const made = await stored()
      const other = await app.project()
      const random = await key.get(`/files/${unknown}`)
      const foreign = await other.key.get(`/files/${made.id}`)
      assert.deepEqual(
        JSON.parse(JSON.stringify(foreign.body.error).replaceAll(made.id, unknown)),
        random.body.error,
        'a foreign id answers like a random one',
      )
      for (const reply of [
        random,
        foreign,
        await key.get('/files/upload'),
        await other.key.get(`/files/${made.id}/download`),
        await other.key.get(`/files/${made.id}/download/base64`),
        await other.key.get(`/files/${made.id}/dependents`),
        await other.key.patch(`/files/${made.id}/metadata`, { filename: 'x' }),
        await other.key.put(`/files/${made.id}/tags`, {}),
        await other.key.delete(`/files/${made.id}`),
        await sendForm(app.url, other.key.token, `/files/${made.id}/content`, formOf([{ bytes: 'x' }]), {
          method: 'PUT',
        }),
      ]) {
        assert.equal(reply.status, 404)
        assert.equal(codeOf(reply), 'RESOURCE_NOT_FOUND')
      }
      assert.equal((await app.anonymous.get(`/files/${made.id}`)).status, 401)
      assert.equal((await app.anonymous.get(`/files/${made.id}/download`)).status, 401)
      assert.equal((await sendForm(app.url, null, '/files/upload', formOf([{ bytes: 'x' }]))).status, 401)
    })

    it('lists newest first, by directory, type, tags and time', async () => {
      const { key, id } = await app.project()
      const make = async (body: object) => (await key.post('/files', { project_id: id, ...body })).body
      const a = await make({ prefix: '/reports', filename: 'a.txt', tags: { team: 'x' } })
      const b = await make({ prefix: '/reports/sub', filename: 'b.pdf', tags: { team: 'x', year: '1' } })
      const c = await make({ prefix: '/reports-archive', filename: 'c', content_type: 'Text/HTML; charset=utf-8' })
      const d = await make({ filename: 'reports%' })
      const ids = async (query: string) => {
        const list = await key.get(`/files${query}`)
        assert.equal(list.status, 200, JSON.stringify(list.body))
        assert.equal(list.body.total, list.body.data.length)
        return list.body.data.map((item: { id: string }) => item.id)
      }
      assert.deepEqual(await ids(''), [d.id, c.id, b.id, a.id])
      for (const prefix of ['/reports', 'reports/', '//reports/x/..'])
        assert.deepEqual(await ids(`?path_prefix=${encodeURIComponent(prefix)}`), [b.id, a.id])
      assert.deepEqual(await ids('?path_prefix=/'), [d.id, c.id, b.id, a.id])
      assert.deepEqual(await ids('?path_prefix=/reports/a.txt'), [a.id])
      assert.deepEqual(await ids('?path_prefix=/report_'), [])
      assert.deepEqual(await ids('?content_type=text/html'), [c.id])
      assert.deepEqual(await ids('?content_type=TEXT/html%3B%20x=1'), [c.id])
      assert.deepEqual(await ids('?tags[team]=x'), [b.id, a.id])
      assert.deepEqual(await ids('?tags[team]=x&tags[year]=1'), [b.id])
      assert.deepEqual(await ids(`?to=${a.created_at}&path_prefix=/reports/a.txt`), [a.id])
      assert.deepEqual((await key.get('/files?limit=1&offset=1')).body.data[0].id, c.id)
      assert.equal((await key.get('/files?path_prefix=../x')).status, 400)
    })

    it('keeps what the platform wrote out of lists, unless they name its directory', async () => {
      const { key, id } = await app.project()
      const row = (path: string) => ({
        id: app.inCellOf(id, () => newId('file')),
        project_id: id,
        path,
        filename: path.slice(path.lastIndexOf('/') + 1),
        content_type: 'application/json',
        size: null,
        sha256: null,
        storage: null,
        location: null,
        metadata: null,
        tags: {},
      })
      const trace = await insertFile(app.pool, row('/.system/traces/trace_1.json'))
      const message = await insertFile(app.pool, row('/.system/conversations/conv_1/doc_1.txt'))
      await app.pool.query(sql.unsafe`
        insert into documents (id, project_id, file_id, kind, status, filename, size, chunk_strategy)
        values (${newId('doc')}, ${id}, ${message.id}, 'message', 'ready', 'doc_1.txt', 0, 'whole')`)
      const own = (await key.post('/files', { filename: 'own' })).body
      const ids = async (query: string) =>
        (await key.get(`/files${query}`)).body.data.map((item: { id: string }) => item.id)
      assert.deepEqual(await ids(''), [own.id])
      assert.deepEqual(await ids('?path_prefix=/'), [own.id])
      assert.deepEqual(await ids('?path_prefix=/.system'), [trace.id])
      assert.deepEqual(await ids('?path_prefix=/.system/conversations'), [])
      assert.equal((await key.get(`/files/${trace.id}`)).status, 200)
      for (const reply of [
        await key.patch(`/files/${trace.id}/metadata`, { metadata: {} }),
        await key.patch(`/files/${trace.id}/metadata`, { prefix: '/mine' }),
        await key.put(`/files/${trace.id}/tags`, { a: 'b' }),
        await key.patch(`/files/${trace.id}/tags`, { a: 'b' }),
        await key.delete(`/files/${trace.id}`),
        await sendForm(app.url, key.token, `/files/${trace.id}/content`, formOf([{ bytes: 'x' }]), { method: 'PUT' }),
      ]) {
        assert.equal(reply.status, 400)
        assert.equal(problem(reply).code, 'RESERVED_PATH')
      }
      assert.equal((await key.get(`/files/${trace.id}`)).body.updated_at, trace.updated_at)
      const moved = await key.patch(`/files/${own.id}/metadata`, { prefix: '/.system' })
      assert.equal(problem(moved).code, 'RESERVED_PATH')
    })

    it('stays indexed with ten thousand files in one directory', async () => {
      const { key, id } = await app.project()
      const other = await app.project(undefined, id)
      const fill = (project: string, prefix: string, files: number) =>
        app.pool.query(sql.unsafe`
          insert into files (id, project_id, path, filename, created_at)
          select 'file_' || left(md5(${project} || n), 26), ${project}, ${prefix} || n, n::text, now() - make_interval(secs => n)
          from generate_series(1, ${files}::int) as n`)
      await fill(id, '/big/', 10_000)
      await fill(other.id, '/other/', 60_000)
      await app.pool.query(sql.unsafe`analyze files`)
      const list = await key.get('/files?path_prefix=/big&offset=9950&limit=50')
      assert.equal(list.body.total, 10_000)
      assert.equal(list.body.data.at(-1).filename, '10000')
      assert.equal((await key.post('/files', { prefix: '/big', filename: '5' })).status, 409)
      const text = app.statements.findLast(statement => statement.includes('page_total')) as string
      const within = [id, '/big', '/big/%']
      const values = [...within, 1050, 9950, 1050, ...within, 9950, 50]
      const numbered = [...text.matchAll(/\$(\d+)/g)].map(match => Number(match[1]))
      assert.equal(Math.max(...numbered), values.length, text)
      const lines = await app.servicesOf(id).pool.anyFirst(rawQuery(`explain ${text}`, values))
      const plan = lines.join('\n')
      assert.match(plan, /files_(path|project)/)
      assert.doesNotMatch(plan, /Seq Scan on files/)
    })

    it('shows a list only what the policy permits, by path', async () => {
      const pub = await record({ prefix: '/pub', filename: 'shown.txt' })
      const hidden = await record({ prefix: '/private', filename: 'hidden.txt' })
      const reader = await narrowed(allow(['files:GetFile'], `srn:${project}:file:/pub/*`))
      const list = await reader.get('/files')
      assert.equal(list.body.total, 1)
      assert.equal(list.body.data[0].id, pub.id)
      assert.equal((await reader.get(`/files/${pub.id}`)).status, 200)
      assert.equal((await reader.get(`/files/${hidden.id}`)).status, 403)
    })

    it('holds creates and moves to the paths that a policy names', async () => {
      const writer = await narrowed(allow(['files:*'], `srn:${project}:file:/mine/*`))
      assert.equal((await writer.post('/files', { prefix: '/mine', filename: 'p1' })).status, 201)
      assert.equal((await writer.post('/files', { prefix: '/mine' })).status, 201)
      assert.equal((await writer.post('/files', { prefix: '/mine/..', filename: 'p1' })).status, 403)
      assert.equal((await writer.post('/files', { filename: 'p1' })).status, 403)
      const made = await upload(app.url, writer, { bytes: 'x', name: 'p2' }, { prefix: '/mine' })
      assert.equal(made.status, 201)
      assert.equal((await upload(app.url, writer, { bytes: 'x', name: 'p2' }, { prefix: '/other' })).status, 403)
      assert.equal((await upload(app.url, writer, { bytes: 'x', name: 'p2' }, { prefix: '/.system' })).status, 403)
      assert.equal((await writer.post('/files/upload/base64', { content: '', prefix: '/other' })).status, 403)
      assert.equal((await writer.post('/files/upload/base64', { content: '', prefix: '/mine' })).status, 201)
      assert.equal((await writer.post('/files/presigned-url', { prefix: '/other' })).status, 403)
      assert.equal((await writer.post('/files/presigned-url', { prefix: '/mine' })).status, 201)
      assert.equal((await writer.patch(`/files/${made.body.id}/metadata`, { prefix: '/other' })).status, 403)
      assert.equal((await writer.patch(`/files/${made.body.id}/metadata`, { prefix: '/mine/deep' })).status, 200)
      const denied = await narrowed({
        statement: [
          { effect: 'Allow', action: ['files:*'], resource: ['*'] },
          { effect: 'Deny', action: ['files:*'], resource: [`srn:${project}:file:/secret/*`] },
        ],
      })
      assert.equal((await denied.post('/files', { prefix: '/secret', filename: 'x' })).status, 403)
      assert.equal((await denied.post('/files', { prefix: '/a/../secret/', filename: 'b/x' })).status, 403)
      assert.equal((await upload(app.url, denied, { bytes: 'x', name: 'x' }, { prefix: 'secret' })).status, 403)
      assert.equal((await denied.patch(`/files/${made.body.id}/metadata`, { prefix: '/secret' })).status, 403)
      assert.equal((await app.rows("select 1 from file_blobs where state = 'staging'")).length, 0)
    })

    it('evaluates a policy for the one path that a file gets, whichever parameter names it', async () => {
      const denied = await narrowed({
        statement: [
          { effect: 'Allow', action: ['files:*'], resource: ['*'] },
          { effect: 'Deny', action: ['files:*'], resource: [`srn:${project}:file:/kept/secret.txt`] },
        ],
      })
      const prefix = '/kept'
      const name = 'secret.txt'
      const part = { bytes: 'x', name }
      const form = (fields: Record<string, string>, named = part) =>
        upload(app.url, denied, named, { prefix, ...fields })
      for (const refused of [
        await denied.post('/files', { prefix, filename: name }),
        await denied.post('/files', { prefix, name }),
        await denied.post('/files', { prefix, filename: name, name: 'other.txt' }),
        await denied.post('/files', { prefix: '/', filename: '../kept/secret.txt', name }).then(made => {
          assert.equal(made.body.path, '/secret.txt', 'only the last segment of a name counts')
          return denied.patch(`/files/${made.body.id}/metadata`, { prefix })
        }),
        await form({}),
        await form({}, { bytes: 'x', name: 'C:\\kept\\secret.txt' }),
        await form({ filename: name }, { bytes: 'x', name: 'other.txt' }),
        await denied.post('/files/upload/base64', { content: '', prefix, filename: name }),
        await denied.post('/files/presigned-url', { prefix, filename: name }),
      ])
        assert.deepEqual([refused.status, codeOf(refused)], [403, 'FORBIDDEN'])
      const both = await denied.post('/files', { prefix, filename: 'open.txt', name })
      assert.deepEqual([both.status, both.body.path], [201, '/kept/open.txt'])
      assert.equal((await form({ filename: 'open2.txt' })).body.path, '/kept/open2.txt')
    })
  })

  describe('changing', () => {
    it('moves, renames and describes, each only as requested', async () => {
      const made = await stored('abc', { prefix: '/from', metadata: '{"a":1}' })
      const moved = await key.patch(`/files/${made.id}/metadata`, { prefix: '/moved' })
      assert.equal(moved.status, 200)
      assert.equal(moved.body.path, `/moved/${made.filename}`)
      assert.deepEqual(moved.body.metadata, { a: 1 })
      const renamed = await key.patch(`/files/${made.id}/metadata`, { filename: 'new.txt' })
      assert.equal(renamed.body.path, '/moved/new.txt')
      assert.equal(renamed.body.filename, 'new.txt')
      const cleared = await key.patch(`/files/${made.id}/metadata`, { metadata: null })
      assert.equal(cleared.body.metadata, null)
      const times = [made, moved.body, renamed.body, cleared.body].map(({ updated_at }) => updated_at)
      assert.deepEqual([...new Set(times)].sort(), times, 'each change is a later one')
      assert.deepEqual((await events(made.id)).slice(1), [
        { name: 'files.updated', data: moved.body },
        { name: 'files.updated', data: renamed.body },
        { name: 'files.updated', data: cleared.body },
      ])
      assert.deepEqual((await key.patch(`/files/${made.id}/metadata`, {})).body, cleared.body)
      assert.equal((await events(made.id)).length, 4)
      assert.equal((await download(app.url, key.token, made.id)).bytes.toString(), 'abc')
      const [entry] = await app.rows(
        "select * from audit_entries where resource_public_id = $1 and action = 'files:UpdateFileMetadata' order by id limit 1",
        [made.id],
      )
      assert.equal(entry.status, 200)
    })

    it('refuses a path in the body, a taken path and an invalid name', async () => {
      const a = await record({ prefix: '/c', filename: 'a' })
      await record({ prefix: '/c', filename: 'b' })
      for (const body of [
        { path: '/x' },
        { filename: null },
        { filename: '..' },
        { prefix: '../..' },
        { prefix: null },
        { tags: {} },
      ])
        assert.equal((await key.patch(`/files/${a.id}/metadata`, body)).status, 400, JSON.stringify(body))
      const taken = await key.patch(`/files/${a.id}/metadata`, { filename: 'b' })
      assert.deepEqual([taken.status, codeOf(taken), taken.body.error.meta], [409, 'NAME_CONFLICT', { path: '/c/b' }])
      assert.equal((await key.get(`/files/${a.id}`)).body.path, '/c/a')
    })

    it('obeys If-Match in an update', async () => {
      const made = await record()
      const etag = (await key.get(`/files/${made.id}`)).headers.get('etag') as string
      assert.equal((await key.patch(`/files/${made.id}/metadata`, { metadata: {} }, { 'if-match': etag })).status, 200)
      const stale = await key.patch(`/files/${made.id}/metadata`, { metadata: {} }, { 'if-match': etag })
      assert.deepEqual([stale.status, codeOf(stale)], [412, 'PRECONDITION_FAILED'])
    })

    it('keeps tags, and emits events with them', async () => {
      const made = await record({ tags: { a: '1' } })
      assert.deepEqual((await key.get(`/files/${made.id}/tags`)).body, { a: '1' })
      assert.deepEqual((await key.patch(`/files/${made.id}/tags`, { b: '2', a: null })).body, { b: '2' })
      assert.deepEqual((await key.put(`/files/${made.id}/tags`, { c: '3' })).body, { c: '3' })
      assert.ok((await key.get(`/files/${made.id}`)).body.updated_at > made.updated_at)
      assert.equal(problem(await key.put(`/files/${made.id}/tags`, { 'system.x': '1' })).code, 'RESERVED_TAG_KEY')
      assert.deepEqual(
        (await events(made.id)).map(({ name, data }) => [name, data.tags]),
        [
          ['files.created', { a: '1' }],
          ['files.updated', { b: '2' }],
          ['files.updated', { c: '3' }],
        ],
      )
    })

    it('is checked against the declaration for files at its path', async () => {
      const { key, id } = await app.project()
      const schema = { type: 'object', required: ['quarter'] }
      const declared = await app.admin.post('/metadata-schemas', {
        project_id: id,
        resource_type: 'file',
        path_prefix: '/reports',
        schema,
      })
      assert.equal(declared.status, 201, JSON.stringify(declared.body))
      const refused = await key.post('/files', { prefix: '/reports', filename: 'a', metadata: {} })
      assert.equal(refused.status, 400)
      assert.equal(refused.body.error.meta.metadata_schema_id, declared.body.id)
      assert.equal((await key.post('/files', { prefix: '/reports', filename: 'a' })).status, 201)
      const fields = { prefix: '/reports', metadata: '{"quarters":1}' }
      assert.equal((await upload(app.url, key, { bytes: 'x', name: 'b' }, fields)).status, 400)
      const good = await upload(app.url, key, { bytes: 'x', name: 'b' }, { ...fields, metadata: '{"quarter":1}' })
      assert.equal(good.status, 201)
      const path = `/files/${good.body.id}/metadata`
      assert.equal((await key.patch(path, { metadata: null })).status, 400)
      assert.equal((await key.patch(path, { filename: 'c' })).status, 200)
      const draft = (await key.post('/files', { prefix: '/drafts', filename: 'd', metadata: {} })).body
      assert.equal((await key.patch(`/files/${draft.id}/metadata`, { prefix: '/reports' })).status, 400)
      const bare = (await key.post('/files', { prefix: '/drafts', filename: 'bare' })).body
      assert.equal((await key.patch(`/files/${bare.id}/metadata`, { prefix: '/reports' })).status, 200)
      assert.equal((await key.get(`/files/${draft.id}`)).body.prefix, '/drafts')
      const both = { prefix: '/reports', metadata: { quarter: 1 } }
      assert.equal((await key.patch(`/files/${draft.id}/metadata`, both)).status, 200)
      assert.equal(
        (await key.post('/files/upload/base64', { content: '', prefix: '/reports', metadata: {} })).status,
        400,
      )
    })
  })

  describe('content replaced', () => {
    const put = (id: string, bytes: string, headers: Record<string, string> = {}, caller = key) =>
      fetch(`${app.url}/api/v1/files/${id}/content`, {
        method: 'PUT',
        body: bytes,
        headers: { authorization: `Bearer ${caller.token}`, ...headers },
      }).then(async response => ({
        status: response.status,
        body: (await response.json()) as any,
        headers: response.headers,
      }))

    it('gives a record its bytes and a file other ones', async () => {
      const made = await record({ filename: 'later.md', size: 99 })
      const given = await put(made.id, 'hello', { 'content-type': 'application/octet-stream' })
      assert.equal(given.status, 200, JSON.stringify(given.body))
      assert.equal(given.body.has_content, true)
      assert.ok(given.body.updated_at > made.updated_at)
      assert.equal(given.body.size, 5)
      assert.equal(given.body.content_type, 'text/markdown')
      assert.equal(given.body.checksum_sha256, createHash('sha256').update('hello').digest('hex'))
      const held = await bytesHeld()
      const again = await sendForm(
        app.url,
        key.token,
        `/files/${made.id}/content`,
        formOf([{ bytes: 'other bytes', type: 'text/x-other' }]),
        { method: 'PUT' },
      )
      assert.equal(again.status, 200, JSON.stringify(again.body))
      assert.equal(again.body.content_type, 'text/x-other')
      assert.equal(again.body.filename, 'later.md')
      const untyped = await put(made.id, 'other bytes', { 'content-type': 'application/octet-stream' })
      assert.equal(untyped.body.content_type, 'text/x-other', 'the declared type is stored')
      assert.equal((await download(app.url, key.token, made.id)).bytes.toString(), 'other bytes')
      assert.equal(await bytesHeld(), held, 'the old bytes are gone')
      assert.deepEqual(
        (await events(made.id)).map(({ name }) => name),
        ['files.created', 'files.updated', 'files.updated', 'files.updated'],
      )
    })

    it('obeys If-Match, and counts the added bytes against the quota', async () => {
      const made = await stored('12345')
      const stale = await put(made.id, 'x', { 'if-match': '"nonsense"' })
      assert.deepEqual([stale.status, codeOf(stale)], [412, 'PRECONDITION_FAILED'])
      assert.equal((await download(app.url, key.token, made.id)).bytes.toString(), '12345')
      const full = await app.project()
      await app.admin.post('/quotas', {
        project_id: full.id,
        scope: 'project',
        metric: 'storage_bytes',
        limit: 5,
        window: 'current',
      })
      const small = (await upload(app.url, full.key, { bytes: '12345' })).body
      assert.equal((await put(small.id, '1234567890', {}, full.key)).status, 200)
      const over = await put(small.id, '1234567890123456', {}, full.key)
      assert.deepEqual([over.status, codeOf(over)], [409, 'QUOTA_STORAGE_EXCEEDED'])
      assert.equal((await download(app.url, full.key.token, small.id)).bytes.toString(), '1234567890')
      await app.rows(
        'insert into storage_snapshots (project_id, day, bytes, chunk_count) values ($1, current_date, 6, 0)',
        [full.id],
      )
      const started = app.statements.length
      assert.equal(codeOf(await put(small.id, '', {}, full.key)), 'QUOTA_STORAGE_EXCEEDED')
      assert.ok(!app.statements.slice(started).some(text => text.includes('file_blob')), 'before a byte is read')
    })

    it('refuses encodings and bodies that are no form', async () => {
      const made = await record()
      const encoded = await put(made.id, 'x', { 'content-encoding': 'gzip' })
      assert.deepEqual([encoded.status, codeOf(encoded)], [415, 'REQUEST_REJECTED'])
      const empty = await sendForm(app.url, key.token, `/files/${made.id}/content`, formOf([['a', 'b']]), {
        method: 'PUT',
      })
      assert.equal(empty.status, 400)
      assert.equal((await key.get(`/files/${made.id}`)).body.has_content, false)
    })

    it('keeps the bytes of one of two concurrent uploads', async () => {
      const made = await stored('first')
      const held = await bytesHeld()
      const both = await Promise.all([put(made.id, 'second'), put(made.id, 'third!')])
      assert.deepEqual(
        both.map(({ status }) => status),
        [200, 200],
      )
      const now = (await key.get(`/files/${made.id}`)).body
      const bytes = (await download(app.url, key.token, made.id)).bytes
      assert.equal(now.checksum_sha256, createHash('sha256').update(bytes).digest('hex'))
      assert.equal(await bytesHeld(), held)
    })
  })

  describe('a file that backs a document', () => {
    const document = () =>
      createdBy(key, '/documents', {
        content: 'some text',
        filename: `named${++counter}.txt`,
        path: `/docs/d${counter}.txt`,
      })

    it('cannot be deleted, moved, renamed or replaced, and the error names its document', async () => {
      const made = await document()
      const file = made.file_id as string
      assert.equal((await key.get(`/files/${file}`)).body.document_id, made.id)
      const refusals = [
        await key.delete(`/files/${file}`),
        await key.patch(`/files/${file}/metadata`, { prefix: '/elsewhere' }),
        await key.patch(`/files/${file}/metadata`, { filename: 'other.txt' }),
        // Its path would stay unchanged, only its name would not.
        await key.patch(`/files/${file}/metadata`, { filename: `d${counter}.txt` }),
        await sendForm(app.url, key.token, `/files/${file}/content`, formOf([{ bytes: 'x' }]), { method: 'PUT' }),
      ]
      for (const reply of refusals) {
        assert.deepEqual([reply.status, codeOf(reply)], [409, 'FILE_HAS_DEPENDENTS'])
        assert.deepEqual(reply.body.error.meta, {
          counts: { documents: 1 },
          sample_ids: { documents: [made.id] },
          forcible: false,
        })
      }
      const list = await key.get(`/files/${file}/dependents`)
      assert.deepEqual(list.body, {
        data: [{ resource_type: 'document', resource_id: made.id }],
        total: 1,
        limit: 50,
        offset: 0,
      })
      assert.equal((await key.patch(`/files/${file}/metadata`, { metadata: { a: 1 } })).status, 200)
      assert.equal((await key.put(`/files/${file}/tags`, { a: 'b' })).status, 200)
      assert.equal((await key.delete(`/documents/${made.id}`)).status, 204)
      assert.equal((await key.get(`/files/${file}`)).status, 404)
    })

    it('has no place while the document has none, and is listed all the same', async () => {
      const made = await document()
      assert.equal((await key.patch(`/documents/${made.id}`, { path: null })).status, 200)
      const file = (await key.get(`/files/${made.file_id}`)).body
      assert.deepEqual([file.path, file.prefix, file.filename], [null, null, made.filename])
      for (const query of [`from=${file.created_at}`, `from=${file.created_at}&path_prefix=/`])
        assert.ok(
          (await key.get(`/files?${query}`)).body.data.some(({ id }: { id: string }) => id === file.id),
          query,
        )
      assert.equal((await key.get(`/files?path_prefix=/docs/d${counter}.txt`)).body.total, 0)
      assert.equal((await key.patch(`/files/${file.id}/metadata`, { metadata: { a: 1 } })).status, 200)
    })

    it('gives the text of the document as its bytes, and ranges of it', async () => {
      const text = 'ä€😀 text '.repeat(300_000)
      const made = await key.post('/documents', { content: text, path: '/docs/long.txt', chunk_strategy: 'whole' })
      assert.equal(made.status, 201, JSON.stringify(made.body).slice(0, 300))
      const bytes = Buffer.from(text)
      const whole = await download(app.url, key.token, made.body.file_id)
      assert.equal(whole.status, 200)
      assert.ok(whole.bytes.equals(bytes))
      assert.equal(whole.headers.get('etag'), `"${createHash('sha256').update(bytes).digest('hex')}"`)
      const range = { range: `bytes=1048570-${bytes.length - 3}` }
      const part = await download(app.url, key.token, made.body.file_id, range)
      assert.equal(part.status, 206)
      assert.ok(part.bytes.equals(bytes.subarray(1_048_570, bytes.length - 2)))
    })
  })

  describe('deleting', () => {
    it('deletes the row with its bytes and emits the last record', async () => {
      const made = await stored()
      const held = await bytesHeld()
      assert.deepEqual((await key.get(`/files/${made.id}/dependents`)).body.data, [])
      assert.equal((await key.delete(`/files/${made.id}`)).status, 204)
      assert.equal((await key.get(`/files/${made.id}`)).status, 404)
      assert.equal((await key.delete(`/files/${made.id}`)).status, 404)
      assert.equal(await bytesHeld(), held - 1)
      assert.equal(
        (
          await app.rows(
            'select 1 from file_blob_chunks c where not exists (select 1 from file_blobs b where b.id = c.blob_id)',
          )
        ).length,
        0,
      )
      assert.deepEqual((await events(made.id)).at(-1), { name: 'files.deleted', data: made })
      assert.equal(
        (await upload(app.url, key, { bytes: 'x', name: made.filename })).status,
        201,
        'the path is free again',
      )
    })

    it('a delete and a concurrent ingestion of one file leave one of the two', async () => {
      for (let round = 0; round < 12; round++) {
        const made = await stored()
        const ingest = () => key.post('/documents/ingest', { file_id: made.id })
        const remove = () => key.delete(`/files/${made.id}`)
        const [ingested, removed] =
          round % 2 === 0
            ? await Promise.all([ingest(), remove()])
            : await Promise.all([remove(), ingest()]).then(([second, first]) => [first, second])
        const outcome = `${ingested.status} ${codeOf(ingested) ?? ''} ${removed.status} ${codeOf(removed) ?? ''}`
        if (removed.status === 204)
          assert.deepEqual([ingested.status, codeOf(ingested)], [400, 'FILE_NOT_FOUND'], outcome)
        else {
          assert.deepEqual([removed.status, codeOf(removed)], [409, 'FILE_HAS_DEPENDENTS'], outcome)
          assert.ok(ingested.status < 300, outcome)
        }
      }
    })

    it('keeps a project that has files until it is forced', async () => {
      const { id, key } = await app.project()
      await upload(app.url, key, { bytes: 'x' })
      const refused = await app.admin.delete(`/projects/${id}`)
      assert.deepEqual([refused.status, refused.body.error.meta.counts.files], [409, 1])
      assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
    })
  })
})
