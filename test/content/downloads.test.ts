import { strict as assert } from 'node:assert'
import { createHash, randomBytes } from 'node:crypto'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { downloadUrl } from '#content/files/download.ts'
import { manualClock } from '#core/base/clock.ts'
import { signToken } from '#identity/tokens/tokens.ts'
import { eventually, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { statementsOf } from './documents-support.ts'
import { download, formOf, sendForm, upload } from './file-support.ts'

const CHUNK = 1024
const code = (bytes: Buffer) => JSON.parse(bytes.toString()).error.code

describe('downloads', () => {
  const clock = manualClock()
  const app = forSuite(() =>
    startApp({
      env: { FILE_BLOB_CHUNK_BYTES: String(CHUNK), FILE_DOWNLOAD_TOKEN_TTL_SECONDS: '60' },
      clock,
    }),
  )
  const key = forSuite(async () => (await app.project()).key)
  let bytes: Buffer
  let id: string
  let etag: string
  const get = (headers: Record<string, string> = {}, file = id) => download(app.url, key.token, file, headers)
  const stored = async (name: string, content: Buffer | string = 'x') => {
    const made = await upload(app.url, key, { bytes: content, name, type: 'text/plain' })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return made.body
  }

  before(async () => {
    bytes = randomBytes(CHUNK * 3 + 100)
    id = (await stored('data.txt', bytes)).id
    etag = `"${createHash('sha256').update(bytes).digest('hex')}"`
  })

  it('answers the bytes as an attachment that no cache stores and no browser sniffs', async () => {
    const got = await get()
    assert.equal(got.status, 200)
    assert.ok(got.bytes.equals(bytes))
    assert.deepEqual(
      [
        'content-type',
        'content-length',
        'content-disposition',
        'etag',
        'x-content-type-options',
        'cache-control',
        'accept-ranges',
      ].map(name => got.headers.get(name)),
      [
        'text/plain',
        String(bytes.length),
        `attachment; filename="data.txt"; filename*=UTF-8''data.txt`,
        etag,
        'nosniff',
        'private, no-store',
        'bytes',
      ],
    )
  })

  it('answers HEAD without the bytes', async () => {
    const head = await fetch(`${app.url}/api/v1/files/${id}/download`, {
      method: 'HEAD',
      headers: { authorization: `Bearer ${key.token}` },
    })
    assert.equal(head.status, 200)
    assert.equal(head.headers.get('content-length'), String(bytes.length))
    assert.equal(await head.text(), '')
  })

  it('writes any name into the header without breaking it', async () => {
    for (const name of [
      'a"b\\c.txt',
      "it's; filename=evil.txt",
      '报告.txt',
      '100%.txt',
      'é.txt',
      '🙂.txt',
      '\u202etxt.exe',
    ]) {
      const made = await key.post('/files/upload/base64', { content: 'eA==', filename: name })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      const header = (await get({}, made.body.id)).headers.get('content-disposition') as string
      const [, ascii, extended] =
        /^attachment; filename=("(?:[^"\\]|\\.)*"); filename\*=UTF-8''([\w%.!~-]+)$/.exec(header) ?? []
      assert.ok(ascii, header)
      assert.match(ascii, /^[\x20-\x7e]+$/)
      assert.equal(decodeURIComponent(extended), name)
    }
  })

  it('answers any single range', async () => {
    const size = bytes.length
    const cases: [string, number, number][] = [
      ['0-0', 0, 0],
      ['0-', 0, size - 1],
      [`${CHUNK - 1}-${CHUNK}`, CHUNK - 1, CHUNK],
      [`${CHUNK}-${CHUNK * 2 - 1}`, CHUNK, CHUNK * 2 - 1],
      [`5-${CHUNK * 3 + 5}`, 5, CHUNK * 3 + 5],
      [`${size - 1}-`, size - 1, size - 1],
      ['-1', size - 1, size - 1],
      [`-${size}`, 0, size - 1],
      [`-${size * 10}`, 0, size - 1],
      [`10-${size * 10}`, 10, size - 1],
    ]
    for (const [asked, start, end] of cases) {
      const part = await get({ range: `bytes=${asked}` })
      assert.equal(part.status, 206, asked)
      assert.equal(part.headers.get('content-range'), `bytes ${start}-${end}/${size}`, asked)
      assert.equal(part.headers.get('content-length'), String(end + 1 - start))
      assert.ok(part.bytes.equals(bytes.subarray(start, end + 1)), asked)
    }
  })

  it('refuses a range beyond the end, and answers the whole file to an invalid range', async () => {
    for (const asked of [`bytes=${bytes.length}-`, 'bytes=-0', 'bytes=9-2']) {
      const refused = await get({ range: asked })
      assert.equal(refused.status, 416, asked)
      assert.equal(code(refused.bytes), 'REQUEST_REJECTED')
      assert.equal(refused.headers.get('content-range'), `bytes */${bytes.length}`)
    }
    const empty = await stored('empty', '')
    assert.equal((await get({ range: 'bytes=0-' }, empty.id)).status, 416)
    assert.equal((await get({}, empty.id)).bytes.length, 0)
    for (const asked of ['bytes=0-1,5-6', 'bytes=a-b', 'bytes', 'lines=0-1', 'bytes=', '', 'bytes=1e3-'])
      assert.equal((await get({ range: asked })).status, 200, asked)
  })

  it('answers 304 to who has the bytes, and a range only of the bytes that are meant', async () => {
    for (const known of [etag, `"other", ${etag}`, '*']) {
      const same = await get({ 'if-none-match': known })
      assert.equal(same.status, 304)
      assert.equal(same.headers.get('etag'), etag)
    }
    assert.equal((await get({ 'if-none-match': '"other"' })).status, 200)
    assert.equal((await get({ range: 'bytes=0-1', 'if-range': etag })).status, 206)
    assert.equal((await get({ range: 'bytes=0-1', 'if-range': '"other"' })).status, 200)
    assert.equal((await get({ range: 'bytes=0-1', 'if-range': 'Sat, 21 Nov 2026 00:00:00 GMT' })).status, 200)
  })

  it('needs its own permission', async () => {
    const project = (await key.get(`/files/${id}`)).body.project_id
    const document = {
      statement: [{ effect: 'Allow', action: ['files:GetFile'], resource: [`srn:${project}:file:*`] }],
    }
    const reader = await app.user(undefined, [document])
    assert.equal((await reader.get(`/files/${id}`)).status, 200)
    assert.equal((await download(app.url, reader.token, id)).status, 403)
    assert.equal((await reader.get(`/files/${id}/download/base64`)).status, 403)
  })

  it('answers 404 when the bytes are lost', async () => {
    const made = await stored('lost.txt')
    await app.rows('delete from file_blobs where id::text = (select location from files where id = $1)', [made.id])
    const got = await get({}, made.id)
    assert.deepEqual([got.status, code(got.bytes)], [404, 'RESOURCE_NOT_FOUND'])
    assert.equal((await key.get(`/files/${made.id}/download/base64`)).status, 404)
  })

  it('costs two statements in addition to the row for a file of one chunk', async () => {
    const made = await stored('small.txt')
    await get({}, made.id)
    const sent = await statementsOf(app, async () => assert.equal((await get({}, made.id)).status, 200))
    assert.equal(sent.length, 3, 'the row, the facts, the chunk')
  })

  describe('by token', () => {
    const by = async (query: string, file = id) => download(app.url, null, file, {}, query)
    const tokenOf = async (file: string) => `?${new URL(await downloadUrl(app.servicesOf(file), file)).searchParams}`

    it('needs no credential, leaves no audit entry and takes ranges', async () => {
      const audited = async () => (await app.rows('select count(*) as n from audit_entries'))[0].n as number
      const url = new URL(await downloadUrl(app.servicesOf(id), id))
      assert.equal(`${url.origin}${url.pathname}`, `${app.config.BASE_URL}/api/v1/files/${id}/download`)
      const before = await audited()
      const got = await by(url.search)
      assert.equal(got.status, 200)
      assert.ok(got.bytes.equals(bytes))
      assert.equal(await audited(), before)
      const part = await download(app.url, null, id, { range: 'bytes=0-3' }, url.search)
      assert.ok(part.bytes.equals(bytes.subarray(0, 4)))
      const bad = await download(app.url, 'sk_nonsense', id, {}, url.search)
      assert.equal(bad.status, 200, 'a bearer next to it is not checked')
    })

    it('is ignored when it is for another file, another purpose, expired or nonsense', async () => {
      const other = await stored('other.txt')
      const wrong = await tokenOf(other.id)
      const upload = await signToken(app.servicesOf(id), 'upload', id, {}, 600)
      const user = app.admin.token as string
      for (const query of [
        wrong,
        `?token=${upload.token}`,
        `?token=${user}`,
        '?token=nonsense',
        '?token=',
        '?token=a&token=b',
      ]) {
        const got = await by(query)
        assert.equal(got.status, 401, query)
        assert.equal(code(got.bytes), 'UNAUTHORIZED')
      }
      assert.equal((await download(app.url, key.token, id, {}, wrong)).status, 200, 'the bearer decides')
      const token = await tokenOf(id)
      assert.equal((await by(token)).status, 200)
      clock.advance(61_000)
      assert.equal((await by(token)).status, 401)
      const late = await tokenOf(other.id)
      assert.equal((await key.delete(`/files/${other.id}`)).status, 204)
      assert.equal((await by(late, other.id)).status, 404)
      for (const path of [`/files/${id}`, `/files/${id}/download/base64`])
        assert.equal((await app.anonymous.get(`${path}${await tokenOf(id)}`)).status, 401, path)
    })
  })

  it('breaks off when the file goes while it is read, and holds no connection for a slow reader', async () => {
    const large = randomBytes(CHUNK * 20_000)
    const made = await stored('large.bin', large)
    const { hostname, port } = new URL(app.url)
    const readers = await Promise.all(
      Array.from({ length: 10 }, async () => {
        const socket = connect(Number(port), hostname)
        socket.pause()
        socket.write(
          `GET /api/v1/files/${made.id}/download HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key.token}\r\nConnection: close\r\n\r\n`,
        )
        return socket
      }),
    )
    await sleep(500)
    // Ten readers that do not read leave the pool free.
    assert.equal((await key.get('/files')).status, 200)
    assert.equal((await key.delete(`/files/${made.id}`)).status, 204)
    const got = await Promise.all(
      readers.map(
        socket =>
          new Promise<number>(resolve => {
            let length = 0
            socket.on('data', piece => {
              length += piece.length
            })
            socket.on('close', () => resolve(length))
            socket.on('error', () => {})
            socket.resume()
          }),
      ),
    )
    for (const length of got) assert.ok(length < large.length, `${length} of ${large.length} bytes`)
    await eventually(async () => (await key.get('/files')).status === 200)
  })

  it('answers bytes that are replaced meanwhile as they were or as they are, and never fails for it', async () => {
    const made = await stored('changing.bin', Buffer.alloc(900, 'a'))
    const inBase64 = await stored('changing-too.bin', Buffer.alloc(20 * CHUNK, 'a'))
    let writing = true
    const replace = async () => {
      for (const letter of 'bcdefghijklmnopqrstuvw') {
        const put = (file: string, size: number) =>
          sendForm(app.url, key.token, `/files/${file}/content`, formOf([{ bytes: Buffer.alloc(size, letter) }]), {
            method: 'PUT',
          })
        const answers = await Promise.all([put(made.id, 900), put(inBase64.id, 20 * CHUNK)])
        for (const { status, body } of answers) assert.equal(status, 200, JSON.stringify(body))
      }
      writing = false
    }
    const whole = (content: Buffer, size: number) => {
      assert.equal(content.length, size)
      assert.ok(content.equals(Buffer.alloc(size, content[0])))
    }
    const read = async () => {
      while (writing) {
        const got = await get({}, made.id)
        assert.equal(got.status, 200)
        whole(got.bytes, 900)
        const { status, body } = await key.get(`/files/${inBase64.id}/download/base64`)
        assert.equal(status, 200, JSON.stringify(body))
        whole(Buffer.from(body.content, 'base64'), 20 * CHUNK)
      }
    }
    await Promise.all([replace(), ...Array.from({ length: 6 }, read)])
  })
})
