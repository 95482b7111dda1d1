import { strict as assert } from 'node:assert'
import { createHash, randomBytes } from 'node:crypto'
import { AT_HOME, type Client, eventually, startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { codeOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { statementsOf } from './documents-support.ts'
import { download, formOf, handmade, type Part, sendForm, sendRaw } from './file-support.ts'

const MAX = 3_000_000
const INLINE = 1_000_000
const problem = (reply: { body: any }) => reply.body?.error?.meta?.problems?.[0]
const sha256 = (bytes: Uint8Array | string) => createHash('sha256').update(bytes).digest('hex')

const PNG = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
)

describe('uploads', () => {
  const app = forSuite(() =>
    startApp({
      env: {
        FILES_MAX_UPLOAD_BYTES: String(MAX),
        FILES_INLINE_MAX_BYTES: String(INLINE),
        FILE_BLOB_CHUNK_BYTES: '65536',
      },
    }),
  )
  let project: string
  let key: Client
  let counter = 0
  const nothingStaged = async () => {
    assert.deepEqual(await app.rows("select id from file_blobs where state = 'staging'"), [])
    assert.deepEqual(
      await app.rows(
        'select 1 from file_blob_chunks c where not exists (select 1 from file_blobs b where b.id = c.blob_id)',
      ),
      [],
    )
  }
  const send = (parts: (Part | [string, string])[], caller: Client = key) =>
    sendForm(app.url, caller.token, '/files/upload', formOf(parts))
  const base64 = (body: object, caller: Client = key) => caller.post('/files/upload/base64', body)
  const total = async () => (await key.get('/files')).body.total as number

  before(async () => {
    ;({ id: project, key } = await app.project())
  })
  afterEach(nothingStaged)

  describe('as a form', () => {
    it('stores the bytes and answers the record', async () => {
      const made = await send([{ bytes: 'abc', name: 'three.txt', type: 'text/plain' }])
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.equal(made.body.size, 3)
      assert.equal(made.body.path, '/three.txt')
      assert.equal(made.body.project_id, project)
      assert.equal(made.body.has_content, true)
      assert.equal(made.body.content_type, 'text/plain')
      assert.equal(made.body.checksum_sha256, sha256('abc'))
      const got = await download(app.url, key.token, made.body.id)
      assert.equal(got.bytes.toString(), 'abc')
      assert.match(got.headers.get('content-disposition') as string, /^attachment/)
      const [event] = await storedEvents(app.pool, { resource: made.body.id })
      assert.equal(event.name, 'files.created')
      assert.deepEqual(event.data, made.body)
      const [entry] = await app.rows('select action, status from audit_entries where resource_public_id = $1', [
        made.body.id,
      ])
      assert.deepEqual({ ...entry }, { action: 'files:UploadFile', status: 201 })
    })

    it('takes fields before and after the file', async () => {
      const file = { bytes: 'x', name: 'part.txt', type: 'text/plain' }
      const fields: [string, string][] = [
        ['prefix', '/f'],
        ['content_type', 'text/x-own; charset=utf-8'],
        ['metadata', '{"a":{"b":1}}'],
        ['tags', '{"team":"x"}'],
      ]
      const one = await send([...fields, ['filename', 'before.txt'], file])
      const two = await send([file, ...fields, ['filename', 'after.txt']])
      for (const [made, name] of [
        [one, 'before.txt'],
        [two, 'after.txt'],
      ] as const) {
        assert.equal(made.status, 201, JSON.stringify(made.body))
        assert.equal(made.body.path, `/f/${name}`)
        assert.equal(made.body.content_type, 'text/x-own; charset=utf-8')
        assert.deepEqual(made.body.metadata, { a: { b: 1 } })
        assert.deepEqual(made.body.tags, { team: 'x' })
      }
    })

    it('stores files of no, one and very many bytes, cut into chunks', async () => {
      for (const size of [0, 1, 65_535, 65_536, 65_537, 131_072, 1_000_001]) {
        const bytes = randomBytes(size)
        const made = await send([{ bytes, name: `s${size}` }])
        assert.equal(made.status, 201)
        assert.equal(made.body.size, size)
        assert.equal(made.body.checksum_sha256, sha256(bytes))
        assert.ok((await download(app.url, key.token, made.body.id)).bytes.equals(bytes))
        const [{ n }] = await app.rows(
          'select count(*) as n from file_blob_chunks c join files f on c.blob_id::text = f.location where f.id = $1',
          [made.body.id],
        )
        assert.equal(n, Math.ceil(size / 65_536))
      }
    })

    it('names a file by its part, reduced to its last segment, in any script', async () => {
      const names: [string, string][] = [
        ['C:\\Users\\me\\报告 ①.pdf', '报告 ①.pdf'],
        ['../../../etc/passwd', 'passwd'],
        ['e\u0301.txt', '\u00e9.txt'],
        ['a"b;c=d.txt', 'a"b;c=d.txt'],
        ['🙂'.repeat(60), '🙂'.repeat(60)],
      ]
      for (const [sent, stored] of names) {
        const made = await send([['prefix', `/names/${++counter}`], { bytes: 'x', name: sent }])
        assert.equal(made.status, 201, JSON.stringify(made.body))
        assert.equal(made.body.filename, stored)
        assert.equal(made.body.path, `/names/${counter}/${stored}`)
      }
      for (const name of ['x'.repeat(256), 'a\r\nb', 'a\tb'])
        assert.equal((await send([{ bytes: 'x', name }])).status, 400, JSON.stringify(name))
    })

    it('types a file by claim, part, extension and first bytes, in this order', async () => {
      const cases: [Part, Record<string, string>, string][] = [
        [{ bytes: 'x', name: 'a.pdf', type: 'text/html' }, { content_type: 'text/x-a' }, 'text/x-a'],
        [{ bytes: 'x', name: 'a.pdf', type: 'text/html' }, {}, 'text/html'],
        [{ bytes: 'x', name: 'a.PDF', type: 'application/octet-stream' }, {}, 'application/pdf'],
        [{ bytes: PNG, name: 'a.txt' }, {}, 'text/plain'],
        [{ bytes: PNG, name: 'a' }, {}, 'image/png'],
        [{ bytes: PNG, name: 'a.nonsense' }, {}, 'image/png'],
        [{ bytes: 'x', name: 'pdf' }, {}, 'application/octet-stream'],
        [{ bytes: '', name: 'empty' }, {}, 'application/octet-stream'],
      ]
      for (const [extension, type] of Object.entries({
        md: 'text/markdown',
        markdown: 'text/markdown',
        json: 'application/json',
        csv: 'text/csv',
        html: 'text/html',
        jpg: 'image/jpeg',
        jpeg: 'image/jpeg',
        gif: 'image/gif',
        webp: 'image/webp',
        mp3: 'audio/mpeg',
        wav: 'audio/wav',
        m4a: 'audio/mp4',
        mp4: 'video/mp4',
      }))
        cases.push([{ bytes: 'x', name: `a.${extension}` }, {}, type])
      for (const [part, fields, expected] of cases) {
        const made = await send([['prefix', `/t/${++counter}`], ...Object.entries(fields), part])
        assert.equal(made.body.content_type, expected, JSON.stringify([part.name, made.body]))
      }
      assert.equal((await send([['content_type', 'text'], { bytes: 'x' }])).status, 400)
    })

    it('refuses invalid uploads and stores nothing', async () => {
      const file = { bytes: 'x', name: 'bad.txt' }
      const before = await total()
      const cases: [(Part | [string, string])[], string][] = [
        [[], 'file'],
        [[['filename', 'a']], 'file'],
        [[['file', 'text']], 'file'],
        [[file, file], 'file'],
        [[{ ...file, field: 'upload' }], 'upload'],
        [[file, ['nonsense', '1']], 'nonsense'],
        [[file, ['content', 'eA==']], 'content'],
        [[file, ['path', '/x']], 'path'],
        [[file, ['metadata', '{']], 'metadata'],
        [[file, ['metadata', '[]']], 'metadata'],
        [[file, ['metadata', '{"a":"\\u0000"}']], 'metadata.a'],
        [[file, ['tags', '{"a":1}']], 'tags.a'],
        [[file, ['tags', 'x']], 'tags'],
        [[file, ['tags[a]', 'x']], 'tags[a]'],
        [[file, ['__proto__', '{}']], '__proto__'],
        [[file, ['prefix', '/a'], ['prefix', '/b']], 'prefix'],
        [[file, ['prefix', '../..']], 'prefix'],
        [[file, ['prefix', '/.system/x']], 'prefix'],
        [[file, ['filename', '..']], 'filename'],
        [[file, ['metadata', 'x'.repeat(300_000)]], 'metadata'],
        [[file, ...Array.from({ length: 30 }, (_, index): [string, string] => [`f${index}`, ''])], ''],
        [[file, ['k'.repeat(200), '']], ''],
      ]
      for (const [parts, path] of cases) {
        const made = await send(parts)
        assert.deepEqual(
          [made.status, codeOf(made)],
          [400, 'VALIDATION_FAILED'],
          `${path} ${JSON.stringify(made.body)}`,
        )
        assert.equal(problem(made).path, path, JSON.stringify(made.body))
        await nothingStaged()
      }
      assert.equal(await total(), before)
    })

    it('refuses bodies that are no form', async () => {
      const { head, tail, type } = handmade('bound')
      const cases: [string | undefined, string][] = [
        [undefined, ''],
        [undefined, 'abc'],
        ['application/json', '{"content":""}'],
        ['multipart/form-data', `${head}x${tail}`],
        ['multipart/mixed; boundary=bound', `${head}x${tail}`],
        [type, ''],
        [type, 'nonsense'],
        [type, `${head}cut off`],
        [type, head.slice(0, 30)],
        [type, `${head.replace('name="file"', '')}x${tail}`],
        [type, `--bound\r\n\r\nx${tail}`],
        [type, `--bound\r\n${'a: b\r\n'.repeat(3000)}\r\nx${tail}`],
        [`multipart/form-data; boundary=${'b'.repeat(300)}`, `${head}x${tail}`],
      ]
      for (const [contentType, body] of cases) {
        const reply = await sendRaw(app.url, {
          path: '/files/upload',
          token: key.token,
          headers: contentType ? { 'content-type': contentType } : {},
          pieces: body ? [body] : [],
        })
        assert.ok('status' in reply, JSON.stringify([contentType, body.slice(0, 60)]))
        assert.deepEqual(
          [reply.status, codeOf(reply)],
          [400, 'VALIDATION_FAILED'],
          `${contentType} ${body.slice(0, 60)}`,
        )
        await nothingStaged()
      }
    })

    it('refuses a file beyond the limit, by its declared length before it is read', async () => {
      const before = await total()
      const exact = await send([['prefix', '/limit'], { bytes: Buffer.alloc(MAX), name: 'exact' }])
      assert.equal(exact.status, 201)
      const over = await send([['prefix', '/limit'], { bytes: Buffer.alloc(MAX + 1), name: 'over' }])
      assert.deepEqual([over.status, codeOf(over)], [413, 'REQUEST_REJECTED'])
      const far = await send([['prefix', '/limit'], { bytes: Buffer.alloc(MAX * 3), name: 'far' }])
      assert.deepEqual([far.status, codeOf(far)], [413, 'REQUEST_REJECTED'])
      const { head, tail, type } = handmade('bound')
      const streamed = await sendRaw(app.url, {
        path: '/files/upload',
        token: key.token,
        headers: { 'content-type': type },
        pieces: [head, ...Array.from({ length: 10 }, () => Buffer.alloc(1_000_000)), tail],
      })
      assert.ok('status' in streamed)
      assert.deepEqual([streamed.status, codeOf(streamed)], [413, 'REQUEST_REJECTED'])
      const started = app.statements.length
      const declared = await sendRaw(app.url, {
        path: '/files/upload',
        token: key.token,
        headers: { 'content-type': type, 'content-length': String(10_000_000_000) },
        pieces: [head],
        after: 'nothing',
      })
      assert.ok('status' in declared, 'answered although the body never came')
      assert.equal(declared.status, 413)
      assert.ok(!app.statements.slice(started).some(text => text.includes('file_blob')))
      assert.equal(await total(), before + 1)
    })

    it('leaves nothing of a client that goes away in the middle', async () => {
      const before = await total()
      const { head, type } = handmade('bound')
      for (const size of [0, 10, 70_000, 1_000_000]) {
        const reply = await sendRaw(app.url, {
          path: '/files/upload',
          token: key.token,
          headers: { 'content-type': type, 'content-length': '2000000' },
          pieces: [head, Buffer.alloc(size)],
          after: 'destroy',
        })
        assert.ok('error' in reply)
      }
      await eventually(
        async () => (await app.rows('select 1 from file_blobs where state = $1', ['staging'])).length === 0,
      )
      assert.equal(await total(), before)
      assert.ok(!app.logs.some(line => line.includes('"level":"error"')), 'a client that leaves is no error of ours')
    })

    it('makes one file of twenty uploads at one path, and keeps the bytes of the first', async () => {
      const race = await Promise.all(
        Array.from({ length: 20 }, (_, index) =>
          send([['prefix', '/race'], { bytes: `bytes of ${index}`.repeat(10_000), name: 'x.txt' }]),
        ),
      )
      assert.deepEqual(race.map(({ status }) => status).sort(), [201, ...Array(19).fill(409)])
      const made = race.find(({ status }) => status === 201) as (typeof race)[number]
      const late = await send([['prefix', '/race'], { bytes: 'late', name: 'x.txt' }])
      assert.deepEqual(
        [late.status, codeOf(late), late.body.error.meta],
        [409, 'NAME_CONFLICT', { path: '/race/x.txt' }],
      )
      const got = await download(app.url, key.token, made.body.id)
      assert.equal(sha256(got.bytes), made.body.checksum_sha256)
      assert.equal((await app.rows("select 1 from files where path like '/race/%'")).length, 1)
    })

    it('finds the project of an unbound caller in a field, before or after the file', async () => {
      // With cells, fields after the file are for projects at home.
      const { id: project } = await app.project(undefined, AT_HOME)
      const file = { bytes: 'x' }
      const none = await send([file], app.admin)
      assert.deepEqual([none.status, problem(none).path], [400, 'project_id'])
      for (const parts of [
        [['project_id', project], { ...file, name: 'p1' }],
        [{ ...file, name: 'p2' }, ['project_id', project]],
      ] as (Part | [string, string])[][])
        assert.equal((await send(parts, app.admin)).status, 201)
      const unknown = await send([file, ['project_id', 'proj_00000000000000000000000000']], app.admin)
      assert.equal(unknown.status, 404)
      const other = await app.project(undefined, AT_HOME)
      const foreign = await send([file, ['project_id', other.id]])
      assert.deepEqual([foreign.status, codeOf(foreign)], [403, 'API_KEY_PROJECT_SCOPE'])
      const stranger = await app.user()
      const refused = await send([file, ['project_id', project]], stranger)
      assert.deepEqual([refused.status, codeOf(refused)], [403, 'FORBIDDEN'])
      const reader = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['files:UploadFile'], resource: [`srn:${other.id}:file:*`] }] },
      ])
      const late = await send([file, ['project_id', project]], reader)
      assert.deepEqual([late.status, codeOf(late)], [403, 'FORBIDDEN'])
      assert.equal((await send([file, ['project_id', other.id]], reader)).status, 201)
    })

    it('answers a repeat under an idempotency key with the first answer, and refuses another file', async () => {
      const headers = { 'idempotency-key': 'upload-once' }
      const once = (bytes: string) =>
        sendForm(app.url, key.token, '/files/upload', formOf([{ bytes, name: 'once.txt' }]), { headers })
      const first = await once('same')
      assert.equal(first.status, 201)
      const again = await once('same')
      assert.equal(again.headers.get('idempotency-replayed'), 'true')
      assert.deepEqual(again.body, first.body)
      const other = await once('other')
      assert.equal(codeOf(other), 'IDEMPOTENCY_KEY_REUSED')
    })

    it('refuses a full project before it reads a byte', async () => {
      const full = await app.project()
      await app.rows(
        'insert into storage_snapshots (project_id, day, bytes, chunk_count) values ($1, current_date, 11, 0)',
        [full.id],
      )
      await app.admin.post('/quotas', {
        project_id: full.id,
        scope: 'project',
        metric: 'storage_bytes',
        limit: 10,
        window: 'current',
      })
      const started = app.statements.length
      const refused = await send([{ bytes: 'x' }], full.key)
      assert.deepEqual([refused.status, codeOf(refused)], [409, 'QUOTA_STORAGE_EXCEEDED'])
      assert.ok(!app.statements.slice(started).some(text => text.includes('file_blob')))
      assert.equal(codeOf(await base64({ content: '' }, full.key)), 'QUOTA_STORAGE_EXCEEDED')
    })

    it('costs a small file few statements', async () => {
      await send([{ bytes: 'warm', name: 'w1' }])
      const sent = await statementsOf(app, async () =>
        assert.equal((await send([{ bytes: 'x', name: 'w2' }])).status, 201),
      )
      // The bytes, the row, the commit of the bytes, event and audit entry; begin and commit are not among them.
      assert.equal(sent.length, 4, sent.join('\n'))
    })
  })

  describe('as base64', () => {
    it('stores the bytes of either alphabet, with white space and without padding', async () => {
      const bytes = Buffer.from([0xfb, 0xff, 0xbf, 0x3e, 0x00, 0x10])
      const cases: [string, Buffer][] = [
        [bytes.toString('base64'), bytes],
        [bytes.toString('base64url'), bytes],
        [bytes.toString('base64').replaceAll(/(.)/g, '$1\n '), bytes],
        ['eA==', Buffer.from('x')],
        ['eA', Buffer.from('x')],
        ['', Buffer.alloc(0)],
        ['  ', Buffer.alloc(0)],
      ]
      for (const [content, expected] of cases) {
        const made = await base64({
          content,
          prefix: '/b',
          filename: `b${++counter}.txt`,
          metadata: { a: 1 },
          tags: { a: 'b' },
        })
        assert.equal(made.status, 201, JSON.stringify(made.body))
        assert.equal(made.body.size, expected.length)
        assert.equal(made.body.content_type, 'text/plain')
        assert.deepEqual(made.body.tags, { a: 'b' })
        const got = await key.get(`/files/${made.body.id}/download/base64`)
        assert.deepEqual(got.body, {
          content: expected.toString('base64'),
          filename: made.body.filename,
          content_type: 'text/plain',
          size: expected.length,
        })
      }
      const unnamed = await base64({ content: PNG.toString('base64') })
      assert.equal(unnamed.body.path, `/${unnamed.body.id}`)
      assert.equal(unnamed.body.content_type, 'image/png')
    })

    it('refuses invalid base64', async () => {
      for (const body of [
        {},
        { content: null },
        { content: 7 },
        { content: ['eA=='] },
        { content: '@@@' },
        { content: 'e' },
        { content: 'eA=' },
        { content: '=' },
        { content: 'eA==eA==' },
        { content: 'e€' },
        { content: 'eA==', file: 'x' },
        { content: 'eA==', path: '/x' },
        { content: 'eA==', metadata: [] },
        { content: 'eA==', filename: 7 },
      ]) {
        const made = await base64(body)
        assert.deepEqual([made.status, codeOf(made)], [400, 'VALIDATION_FAILED'], JSON.stringify(body))
      }
      assert.equal((await base64({ content: 7 })).body.error.message, 'content: must be base64')
      for (const body of ['', '[]', '7', '"x"', '{', 'null'])
        assert.equal((await key.post('/files/upload/base64', body)).status, 400, body)
    })

    it('refuses more than the inline limit', async () => {
      const exact = await base64({ content: Buffer.alloc(INLINE).toString('base64'), prefix: '/i' })
      assert.equal(exact.status, 201)
      for (const size of [INLINE + 1, INLINE * 2, INLINE * 5]) {
        const over = await base64({ content: Buffer.alloc(size).toString('base64') })
        assert.deepEqual([over.status, codeOf(over)], [413, 'REQUEST_REJECTED'], String(size))
      }
      const big = (await send([['prefix', '/i'], { bytes: Buffer.alloc(INLINE + 1), name: 'big' }])).body
      const back = await key.get(`/files/${big.id}/download/base64`)
      assert.deepEqual([back.status, codeOf(back)], [413, 'REQUEST_REJECTED'])
    })
  })

  it('keeps the ids of a route apart from its words', async () => {
    assert.equal((await key.get('/files/presigned-url')).status, 404)
    assert.equal((await base64({ content: 'eA==' })).status, 201)
  })
})
