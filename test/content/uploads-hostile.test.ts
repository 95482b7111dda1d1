import { strict as assert } from 'node:assert'
import { randomBytes } from 'node:crypto'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import { sendFile as answerDownload, downloadBase64 } from '#content/files/download.ts'
import { fileKind } from '#content/files/model.ts'
import { rawQuery } from '#core/db/sql.ts'
import { eventually, startApp } from '../support/app.ts'
import { codeOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { download, formOf, handmade, sendForm, sendRaw, upload } from './file-support.ts'

const MAX = 3_000_000
/** The longest pause of a client, far above pauses of a busy machine. */
const IDLE = 1000

describe('uploads of clients that are slow, broken or hostile', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startApp({
      env: {
        FILES_MAX_UPLOAD_BYTES: String(MAX),
        FILES_INLINE_MAX_BYTES: '1000000',
        FILE_BLOB_CHUNK_BYTES: '65536',
        DATABASE_POOL_MAX: '4',
        HTTP_IDLE_TIMEOUT_MS: String(IDLE),
        HTTP_BODY_TIMEOUT_MS: '1500',
        UPLOAD_TIMEOUT_MS: '6000',
      },
    }),
  )
  const key = forSuite(async () => (await app.project()).key)
  const { head, tail, type } = handmade('bound')
  const staged = async () => (await app.rows("select 1 from file_blobs where state = 'staging'")).length
  const nothingStaged = async () => {
    await eventually(async () => (await staged()) === 0, { what: 'no staged bytes' })
    assert.deepEqual(
      await app.rows(
        'select 1 from file_blob_chunks c where not exists (select 1 from file_blobs b where b.id = c.blob_id)',
      ),
      [],
    )
  }
  const requestHead = (method: string, path: string, ...headers: string[]) =>
    [`${method} /api/v1${path} HTTP/1.1`, 'Host: x', `Authorization: Bearer ${key.token}`, ...headers, '\r\n'].join(
      '\r\n',
    )

  /** A connection that is written to directly, and on which the client never ends its side. */
  const open = () => {
    const { hostname, port } = new URL(app.url)
    const socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true })
    const seen = { text: '', closed: false, socket }
    socket.setNoDelay(true)
    socket.on('data', piece => {
      seen.text += piece
    })
    socket.on('error', () => {})
    for (const event of ['end', 'close'])
      socket.on(event, () => {
        seen.closed = true
      })
    return seen
  }
  const statuses = (text: string) => [...text.matchAll(/HTTP\/1\.1 (\d+) /g)].map(([, status]) => Number(status))
  /** Sends a whole form of parts given as text. */
  const sendParts = async (...parts: (string | Buffer)[]) => {
    const body = Buffer.concat([...parts, '--bound--\r\n'].map(part => Buffer.from(part as string)))
    const reply = await sendRaw(app.url, {
      path: '/files/upload',
      token: key.token,
      headers: { 'content-type': type, 'content-length': String(body.length) },
      pieces: [body],
    })
    assert.ok('status' in reply, parts[0].toString().slice(0, 80))
    return reply
  }
  const part = (headers: string, body = 'x') => `--bound\r\n${headers}\r\n\r\n${body}\r\n`
  const filePart = (name: string, more = '') =>
    part(`Content-Disposition: form-data; name="file"; filename="${name}"${more}`)

  /** Holds every use of stored bytes for twice the longest pause of a client. */
  const bytesHeld = () =>
    new Promise<{ end: Promise<unknown> }>(resolve => {
      const end = app.services.pool.connect(connection =>
        connection.transaction(async tx => {
          await tx.query(rawQuery('lock table file_blob_chunks', []))
          resolve({ end })
          await sleep(IDLE * 2)
        }),
      )
    })
  afterEach(async () => {
    await nothingStaged()
    assert.deepEqual(
      app.logs.filter(line => line.includes('"level":"error"')),
      [],
    )
  })

  it('end with the key they came with, or that their address was made by, although it held when they began', async () => {
    const { id: project_id } = await app.project()
    const { key: owner, id: ownerProject } = await app.project()
    const file = (await owner.post('/files', { filename: 'later' })).body
    const begun = async (
      what: { method?: string; path: string; headers?: Record<string, string> },
      id: string,
      project: string,
    ) => {
      const made = await app.admin.post('/project-keys', { project_id: project })
      const token = made.body.secret as string
      const uploadToken =
        id === 'token'
          ? (await app.as(token).post('/files/presigned-url', { filename: 'x' })).body.upload_token
          : undefined
      const raw = what.method === 'PUT'
      return sendRaw(app.url, {
        ...what,
        path: what.path.replace('{token}', uploadToken),
        token: uploadToken ? null : token,
        headers: { 'content-type': raw ? 'application/octet-stream' : type },
        pieces: (async function* () {
          yield raw ? 'begin' : `${head}begin`
          await sleep(50)
          assert.equal((await app.admin.delete(`/project-keys/${made.body.id}`)).status, 204)
          yield raw ? 'end' : `end${tail}`
        })(),
      })
    }
    const outcomes = [
      await begun({ path: '/files/upload' }, 'key', project_id),
      await begun({ path: '/files/upload/{token}' }, 'token', project_id),
      await begun({ method: 'PUT', path: `/files/${file.id}/content` }, 'key', ownerProject),
    ]
    assert.deepEqual(
      outcomes.map(outcome => ('status' in outcome ? [outcome.status, codeOf(outcome)] : outcome.error)),
      [
        [401, 'UNAUTHORIZED'],
        [404, 'UPLOAD_TOKEN_NOT_FOUND'],
        [401, 'UNAUTHORIZED'],
      ],
    )
    assert.equal((await app.admin.get(`/files?project_id=${project_id}`)).body.total, 0)
    assert.equal((await owner.get(`/files/${file.id}`)).body.has_content, false)
  })

  describe('in time', () => {
    it('wait for a sender of single bytes, for longer than other requests may take', async () => {
      const connection = open()
      const body = `${head}${'y'.repeat(20)}${tail}`
      connection.socket.write(
        requestHead('POST', '/files/upload', `Content-Type: ${type}`, `Content-Length: ${body.length}`),
      )
      connection.socket.write(head)
      const started = performance.now()
      for (let index = 0; index < 20; index++) {
        connection.socket.write('y')
        await sleep(100)
      }
      assert.ok(performance.now() - started > 1800)
      connection.socket.write(tail)
      await eventually(() => statuses(connection.text)[0] === 201, { what: 'the answer' })
      connection.socket.destroy()
    })

    it('end after their longest time, however steadily the bytes come', async () => {
      const connection = open()
      connection.socket.write(requestHead('POST', '/files/upload', `Content-Type: ${type}`, 'Content-Length: 100000'))
      connection.socket.write(head)
      const started = performance.now()
      while (!connection.text && performance.now() - started < 20_000) {
        connection.socket.write('y')
        await sleep(50)
      }
      const took = performance.now() - started
      assert.deepEqual(statuses(connection.text), [408])
      assert.ok(took > 5900 && took < 15_000, String(took))
      await eventually(() => connection.closed)
    })

    it('end after a pause, with their bytes and their connection, although the client holds on to it', async () => {
      const made = (await upload(app.url, key, { bytes: 'old', name: 'paused.txt' })).body
      const large = Buffer.alloc(200_000)
      const token = (await key.post('/files/presigned-url', {})).body.upload_token
      const cases: [string, string, (string | Buffer)[]][] = [
        ['POST', '/files/upload', [`Content-Type: ${type}`, head.slice(0, 20)]],
        ['POST', '/files/upload', [`Content-Type: ${type}`, head]],
        ['POST', '/files/upload', [`Content-Type: ${type}`, head, large]],
        ['POST', '/files/upload', [`Content-Type: ${type}`, head, large, tail]],
        ['POST', `/files/upload/${token}`, [`Content-Type: ${type}`, head, large]],
        ['PUT', `/files/${made.id}/content`, ['Content-Type: text/plain', large]],
        ['POST', '/files/upload/base64', ['Content-Type: application/json', '{"content":"']],
        ['POST', '/files', ['Content-Type: application/json', '{"filename":"']],
      ]
      await Promise.all(
        cases.map(async ([method, path, [contentType, ...pieces]]) => {
          const connection = open()
          connection.socket.write(requestHead(method, path, contentType as string, 'Content-Length: 1000000'))
          for (const piece of pieces) connection.socket.write(piece)
          const started = performance.now()
          await eventually(() => connection.closed, { what: `${method} ${path} closed` })
          assert.deepEqual(statuses(connection.text), [408], `${method} ${path}`)
          assert.match(connection.text, /"code":"REQUEST_REJECTED"/)
          assert.ok(performance.now() - started < 5900, `${path} ${performance.now() - started}`)
        }),
      )
      assert.equal((await download(app.url, key.token, made.id)).bytes.toString(), 'old')
    })

    it('hold the body of any other request to a shorter time', async () => {
      const connection = open()
      connection.socket.write(requestHead('POST', '/files', 'Content-Type: application/json', 'Content-Length: 10000'))
      const started = performance.now()
      while (!connection.text && performance.now() - started < 10_000) {
        connection.socket.write(' ')
        await sleep(50)
      }
      const took = performance.now() - started
      assert.deepEqual(statuses(connection.text), [408])
      assert.ok(took > 1400 && took < 5900, String(took))
      await eventually(() => connection.closed)
    })

    it('take no pause of the database for one of the client', async () => {
      const held = await bytesHeld()
      const made = await upload(app.url, key, { bytes: randomBytes(2_000_000), name: 'patient.bin' })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      await held.end
    })

    it('end a download whose reader does not read', async () => {
      const made = (await upload(app.url, key, { bytes: randomBytes(2_900_000), name: 'unread.bin' })).body
      const connection = open()
      connection.socket.pause()
      // More than sockets hold by themselves.
      connection.socket.write(
        requestHead('GET', `/files/${made.id}/download`, '').trimEnd().concat('\r\n\r\n').repeat(4),
      )
      await sleep(IDLE * 3)
      connection.socket.resume()
      await eventually(() => connection.closed, { what: 'the connection closed' })
      assert.ok(connection.text.length < 4 * 2_900_000, 'not all of it came')
    })
  })

  describe('by their bodies', () => {
    it('leave nothing whenever they go away', async () => {
      const bytes = Buffer.alloc(150_000, 'z')
      const body = Buffer.concat([
        Buffer.from(part('Content-Disposition: form-data; name="prefix"', '/gone')),
        Buffer.from(head),
        bytes,
        Buffer.from(tail),
      ])
      const start = requestHead('POST', '/files/upload', `Content-Type: ${type}`, `Content-Length: ${body.length}`)
      const whole = Buffer.concat([Buffer.from(start), body])
      const cuts = [20, start.length, start.length + 30, start.length + 120, start.length + 240, 70_000, 140_000]
      for (const cut of [...cuts, whole.length - tail.length, whole.length - 3, whole.length])
        for (const pause of [0, 30]) {
          const connection = open()
          connection.socket.write(whole.subarray(0, cut))
          await sleep(pause)
          connection.socket.destroy()
        }
      await sleep(200)
      await nothingStaged()
      const left = (await key.get('/files?path_prefix=/gone')).body
      assert.ok(left.total <= 1, 'at most the one whose body had come')
      for (const { id } of left.data) assert.ok((await download(app.url, key.token, id)).bytes.equals(bytes))
    })

    it('get to their answer when all bytes are sent before it is read', async () => {
      const made = (await upload(app.url, key, { bytes: 'old', name: 'drained.txt' })).body
      const piece = Buffer.alloc(500_000, 'A')
      const chunk = (bytes: Buffer | string) => [`${Buffer.byteLength(bytes).toString(16)}\r\n`, bytes, '\r\n']
      for (const [method, path, contentType, first] of [
        ['PUT', `/files/${made.id}/content`, 'text/plain', 'x'],
        ['POST', '/files/upload', type, head],
        ['POST', '/files/upload/base64', 'application/json', '{"content":"'],
      ]) {
        const connection = open()
        const { socket } = connection
        socket.pause()
        const write = async (piece: Buffer | string) => {
          if (!socket.write(piece)) await new Promise(resolve => socket.once('drain', resolve))
        }
        await write(requestHead(method, path, `Content-Type: ${contentType}`, 'Transfer-Encoding: chunked'))
        for (const bytes of chunk(first)) await write(bytes)
        for (let index = 0; index < 40; index++) for (const bytes of chunk(piece)) await write(bytes)
        await write('0\r\n\r\n')
        await write(requestHead('GET', `/files/${made.id}`, 'Connection: close'))
        socket.resume()
        await eventually(() => connection.closed, { what: `${path} answered` })
        assert.deepEqual(statuses(connection.text), [413, 200], path)
      }
      assert.equal((await download(app.url, key.token, made.id)).bytes.toString(), 'old')
    })

    it('are answered one by one on one connection', async () => {
      const connection = open()
      for (const name of ['first', 'second', '..', 'third']) {
        const body = `${handmade('bound', name).head}abc${tail}`
        connection.socket.write(
          requestHead('POST', '/files/upload', `Content-Type: ${type}`, `Content-Length: ${body.length}`) + body,
        )
      }
      connection.socket.write(requestHead('GET', '/files?limit=1', 'Connection: close'))
      await eventually(() => connection.closed)
      assert.deepEqual(statuses(connection.text), [201, 201, 400, 201, 200])
    })

    it('receive 100 Continue when they wait for it', async () => {
      const body = `${handmade('bound', 'asked').head}abc${tail}`
      const connection = open()
      connection.socket.write(
        requestHead(
          'POST',
          '/files/upload',
          `Content-Type: ${type}`,
          `Content-Length: ${body.length}`,
          'Expect: 100-continue',
          'Connection: close',
        ),
      )
      await eventually(() => statuses(connection.text)[0] === 100)
      connection.socket.write(body)
      await eventually(() => connection.closed)
      assert.deepEqual(statuses(connection.text), [100, 201])
    })

    it('must not be framed in two ways, or wrongly', async () => {
      for (const headers of [
        ['Content-Length: 5', 'Transfer-Encoding: chunked'],
        ['Content-Length: 5', 'Content-Length: 6'],
        ['Content-Length: -1'],
        ['Content-Length: 1e3'],
        ['Transfer-Encoding: gzip, nonsense'],
      ]) {
        const connection = open()
        connection.socket.write(requestHead('POST', '/files/upload', `Content-Type: ${type}`, ...headers))
        connection.socket.write('0\r\n\r\n')
        await eventually(() => connection.closed, { what: headers.join() })
        assert.deepEqual(statuses(connection.text), [400], headers.join())
      }
    })

    it('are not decoded, and a form that is cannot be read', async () => {
      const form = gzipSync(`${head}abc${tail}`)
      const sent = await sendRaw(app.url, {
        path: '/files/upload',
        token: key.token,
        headers: { 'content-type': type, 'content-encoding': 'gzip' },
        pieces: [form],
      })
      assert.ok('status' in sent)
      assert.deepEqual([sent.status, codeOf(sent)], [415, 'REQUEST_REJECTED'])
      const json = async (body: Buffer) =>
        sendRaw(app.url, {
          path: '/files/upload/base64',
          token: key.token,
          headers: { 'content-encoding': 'gzip' },
          pieces: [body],
        })
      const bomb = await json(gzipSync(`{"content":"${'A'.repeat(30_000_000)}"}`))
      assert.ok('status' in bomb)
      assert.deepEqual([bomb.status, codeOf(bomb)], [413, 'REQUEST_REJECTED'], 'small on the wire alone')
      const packed = await json(gzipSync('{"content":"eA==","filename":"packed.txt"}'))
      assert.ok('status' in packed)
      assert.deepEqual([packed.status, packed.body.size], [201, 1], 'JSON is not the file')
    })

    it('are refused with a reason in 400, whatever their parts are', async () => {
      const inner = '--inner\r\nContent-Disposition: attachment; filename="in"\r\n\r\nabc\r\n--inner--'
      const cases: Record<string, (string | Buffer)[]> = {
        'ten thousand fields': [
          ...Array.from({ length: 10_000 }, (_, n) => part(`Content-Disposition: form-data; name="f${n}"`)),
          filePart('a'),
        ],
        'names of what every object has': [
          filePart('a'),
          ...['__proto__', 'constructor', 'toString'].map(n => part(`Content-Disposition: form-data; name="${n}"`)),
        ],
        'a file so named': [part('Content-Disposition: form-data; name="__proto__"; filename="a"')],
        'two files': [filePart('a'), filePart('b')],
        'a form in a form': [
          part('Content-Disposition: form-data; name="file"\r\nContent-Type: multipart/mixed; boundary=inner', inner),
        ],
        'NUL in a name': [filePart('a\0b')],
        'a name that is a directory': [filePart('../')],
        'a name in broken percent signs': [
          part(`Content-Disposition: form-data; name="file"; filename*=UTF-8''%ZZ%C3`),
        ],
        'a line break in a name': [filePart('a%0D%0Ab')],
        'a name that is too long': [filePart('y'.repeat(256))],
        'emoji that are too long': [filePart('🙂'.repeat(64))],
        'a huge head of a part': [
          part(`X: ${'y'.repeat(100_000)}\r\nContent-Disposition: form-data; name="file"; filename="a"`),
        ],
        'a head without an end': ['--bound\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'],
      }
      const { total } = (await key.get('/files')).body
      for (const [what, parts] of Object.entries(cases)) {
        const reply = await sendParts(...parts)
        assert.deepEqual(
          [reply.status, codeOf(reply)],
          [400, 'VALIDATION_FAILED'],
          `${what} ${JSON.stringify(reply.body)}`,
        )
        await nothingStaged()
      }
      assert.equal((await key.get('/files')).body.total, total)
    })

    it('name and type a file without a way into a header', async () => {
      const cases: [string, string, string, string][] = [
        [filePart('plain.txt', `; filename*=UTF-8''st%C3%A9r.txt`), 'stér.txt', 'text/plain', "UTF-8''st%C3%A9r.txt"],
        [filePart('%22quoted%22'), '"quoted"', 'text/plain', "UTF-8''%22quoted%22"],
        [filePart('\u202egpj.exe'), '\u202egpj.exe', 'text/plain', "UTF-8''%E2%80%AEgpj.exe"],
        [
          filePart(`${'🙂'.repeat(63)}abc`),
          `${'🙂'.repeat(63)}abc`,
          'text/plain',
          `UTF-8''${'%F0%9F%99%82'.repeat(63)}abc`,
        ],
        [
          part(
            'Content-Disposition: form-data; name="file"; filename="folded"\r\nContent-Type: text/html\r\n X-Evil: 1',
          ),
          'folded',
          'text/plain',
          "UTF-8''folded",
        ],
        [
          part(
            `Content-Disposition: form-data; name="file"; filename="long.pdf"\r\nContent-Type: text/${'x'.repeat(300)}`,
          ),
          'long.pdf',
          'application/pdf',
          "UTF-8''long.pdf",
        ],
      ]
      for (const [sent, filename, contentType, extended] of cases) {
        const made = await sendParts(sent)
        assert.equal(made.status, 201, JSON.stringify(made.body))
        assert.equal(made.body.filename, filename)
        assert.equal(made.body.content_type, contentType)
        const got = await download(app.url, key.token, made.body.id)
        assert.equal(got.headers.get('content-type'), contentType)
        assert.match(
          got.headers.get('content-disposition') as string,
          /^attachment; filename=[\x20-\x7e]+; filename\*=/,
        )
        assert.ok(got.headers.get('content-disposition')?.endsWith(`filename*=${extended}`), extended)
        assert.equal(got.headers.get('x-content-type-options'), 'nosniff')
        assert.equal(got.headers.get('x-evil'), null)
      }
      for (const contentType of [
        'text/plain\r\nX-Evil: 1',
        'text/é',
        `text/${'x'.repeat(300)}`,
        'text',
        'text/plain; a="\n"',
      ])
        assert.equal(
          (await key.post('/files/upload/base64', { content: 'eA==', content_type: contentType })).status,
          400,
          contentType,
        )
    })
  })

  describe('concurrently', () => {
    it('never wait for a connection while they hold one', async () => {
      const made = await Promise.all(
        Array.from({ length: 50 }, (_, index) =>
          upload(app.url, key, { bytes: randomBytes(100_000), name: `many${index}` }, { metadata: '{"a":1}' }),
        ),
      )
      assert.deepEqual([...new Set(made.map(({ status }) => status))], [201])
      const tokens = await Promise.all(Array.from({ length: 20 }, () => key.post('/files/presigned-url', {})))
      const byToken = await Promise.all(
        tokens.map(({ body }, index) =>
          sendForm(app.url, null, `/files/upload/${body.upload_token}`, formOf([{ bytes: 'x', name: `t${index}` }])),
        ),
      )
      assert.deepEqual([...new Set(byToken.map(({ status }) => status))], [201])
    })

    it('replace and delete a file in one order or the other', async () => {
      for (let round = 0; round < 10; round++) {
        const made = (await upload(app.url, key, { bytes: 'old', name: `raced${round}` })).body
        const [put, gone] = await Promise.all([
          sendForm(app.url, key.token, `/files/${made.id}/content`, formOf([{ bytes: randomBytes(100_000) }]), {
            method: 'PUT',
          }),
          (async () => {
            await sleep(round * 2)
            return key.delete(`/files/${made.id}`)
          })(),
        ])
        assert.equal(gone.status, 204)
        assert.ok(put.status === 200 || put.status === 404, String(put.status))
        assert.equal((await key.get(`/files/${made.id}`)).status, 404)
      }
      await nothingStaged()
      const [{ n }] = await app.rows(
        'select count(*) as n from file_blobs b where not exists (select 1 from files f where f.location = b.id::text)',
      )
      assert.equal(n, 0, 'no bytes without a file')
    })

    it('give the bytes that took the place of those a reader was about to get', async () => {
      const made = (await upload(app.url, key, { bytes: 'old', name: 'swapped.txt' })).body
      const before = await fileKind.find(app.pool, made.id)
      assert.ok(before)
      const put = await sendForm(app.url, key.token, `/files/${made.id}/content`, formOf([{ bytes: 'newer' }]), {
        method: 'PUT',
      })
      assert.equal(put.status, 200)
      const answer = await answerDownload({
        resource: before,
        services: app.servicesOf(made.id),
        request: { headers: {} } as never,
      })
      assert.equal(answer.headers?.ETag, `"${put.body.checksum_sha256}"`)
      assert.equal(answer.headers?.['Content-Length'], '5')
      assert.equal(Buffer.concat((await answer.stream?.toArray()) as Buffer[]).toString(), 'newer')
      const inBase64 = await downloadBase64(app.servicesOf(made.id), before)
      const text = Buffer.concat((await inBase64.stream?.toArray()) as Buffer[]).toString()
      assert.equal(JSON.parse(text).content, Buffer.from('newer').toString('base64'))
      assert.equal(inBase64.headers?.['Content-Length'], String(text.length))
    })
  })
})
