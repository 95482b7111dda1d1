import assert from 'node:assert/strict'
import net from 'node:net'
import { gzipSync } from 'node:zlib'
import { startApp, type TestApp } from '../support/app.ts'
import { runWeb } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'

/** Sends bytes and returns the response until the other side closes the connection or is silent for `quietMs`. */
function raw(url: string, bytes: string | Buffer, options: { end?: boolean; quietMs?: number } = {}): Promise<string> {
  const { hostname, port } = new URL(url)
  return new Promise((resolve, reject) => {
    let text = ''
    const socket = net.connect(Number(port), hostname)
    const done = () => {
      socket.destroy()
      resolve(text)
    }
    socket.setTimeout(options.quietMs ?? 1000, done)
    socket.on('data', chunk => {
      text += chunk
    })
    socket.on('close', done)
    socket.on('error', reject)
    socket.write(bytes)
    if (options.end) socket.end()
  })
}

const statusOf = (answer: string): number => Number(answer.slice(9, 12))
const bodyOf = (answer: string): any => JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4))

function assertRejected(answer: string, status: number) {
  assert.equal(statusOf(answer), status, answer)
  const { error } = bodyOf(answer)
  assert.equal(error.code, 'REQUEST_REJECTED')
  for (const name of ['message', 'hint', 'docs_url']) assert.equal(typeof error[name], 'string')
  assert.match(answer, /\r\nx-request-id: [0-9a-f-]{36}\r\n/i)
  assert.match(answer, /\r\ncontent-type: application\/json/i)
}

describe('requests over HTTP', () => {
  const app = forSuite(() => startApp({ env: { HTTP_JSON_LIMIT_BYTES: '4096' } }))
  let projectId: string
  before(async () => {
    projectId = (await app.project()).id
  })

  describe('the request id', () => {
    it("is the caller's when it is at most 128 visible characters", async () => {
      for (const id of ['abc', '!~', 'x'.repeat(128)]) {
        const { headers } = await app.admin.get('/users/me', { 'x-request-id': id })
        assert.equal(headers.get('x-request-id'), id)
      }
    })

    it('is a new one otherwise', async () => {
      for (const id of ['', 'two words', 'x'.repeat(129), 'caf\u00e9', 'tab\tbed']) {
        const { headers } = await app.admin.get('/users/me', { 'x-request-id': id })
        assert.match(headers.get('x-request-id') as string, /^[0-9a-f]{8}-[0-9a-f-]{27}$/)
      }
    })

    it('is on every answer: errors, documents, health and preflights', async () => {
      for (const path of [
        '/nothing',
        '//nothing',
        '//healthz',
        '//readyz',
        '//metrics',
        '//openapi.json',
        '//docs/errors',
      ])
        assert.ok((await app.anonymous.get(path)).headers.get('x-request-id'), path)
      const preflight = await fetch(`${app.url}/api/v1/actors`, { method: 'OPTIONS', headers: { origin: 'http://x' } })
      assert.ok(preflight.headers.get('x-request-id'))
    })
  })

  describe('a body', () => {
    it('that is not JSON is refused as malformed before the credential is checked', async () => {
      for (const text of ['{', '{"a":}', 'NaN', '{"a":1}}', '\u0000', '{"a":1e999x}']) {
        for (const client of [app.admin, app.anonymous]) {
          const { status, body } = await client.post('/projects', text)
          assert.equal(status, 400, text)
          assert.equal(body.error.code, 'VALIDATION_FAILED')
          assert.ok(body.error.message.startsWith('Malformed request body:'), body.error.message)
          assert.ok(body.error.meta.problems.length > 0)
        }
      }
    })

    it('that is JSON but no object is malformed too', async () => {
      for (const text of ['[]', '"text"', '1', 'null', 'true']) {
        const { status, body } = await app.admin.post('/projects', text)
        assert.equal(status, 400, text)
        assert.ok(body.error.message.startsWith('Malformed request body:'), body.error.message)
      }
    })

    it('that is missing where one is needed is refused', async () => {
      const { status, body } = await app.admin.post('/projects')
      assert.deepEqual([status, body.error.code], [400, 'VALIDATION_FAILED'])
    })

    it('larger than HTTP_JSON_LIMIT_BYTES is REQUEST_REJECTED 413, also when it is small on the wire', async () => {
      const fits = JSON.stringify({ name: 'fits', metadata: undefined }).padEnd(4096)
      assert.equal((await app.admin.post('/projects', fits)).status, 201)
      const large = await app.admin.post('/projects', fits.padEnd(4097))
      assert.deepEqual([large.status, large.body.error.code], [413, 'REQUEST_REJECTED'])
      const response = await fetch(`${app.url}/api/v1/projects`, {
        method: 'POST',
        headers: { authorization: `Bearer ${app.admin.token}`, 'content-encoding': 'gzip' },
        body: gzipSync(Buffer.alloc(1_000_000, 0x20)),
      })
      assert.equal(response.status, 413)
      assert.equal(((await response.json()) as any).error.code, 'REQUEST_REJECTED')
    })

    it('in an encoding or a character set that is not known is REQUEST_REJECTED 415', async () => {
      for (const headers of [
        { 'content-encoding': 'klingon' },
        { 'content-type': 'application/json; charset=klingon' },
      ] as Record<string, string>[]) {
        const { status, body } = await app.admin.post('/projects', '{}', headers)
        assert.deepEqual([status, body.error.code], [415, 'REQUEST_REJECTED'])
      }
    })

    it('may come compressed and under any content type', async () => {
      const response = await fetch(`${app.url}/api/v1/projects`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${app.admin.token}`,
          'content-encoding': 'gzip',
          'content-type': 'text/plain',
        },
        body: gzipSync(JSON.stringify({ name: 'compressed' })),
      })
      assert.equal(response.status, 201)
    })

    it('nested beyond what can be stored, with NUL or half a surrogate pair, is refused by its path', async () => {
      const deep = `${'['.repeat(200)}${']'.repeat(200)}`
      for (const [text, path, code] of [
        [`{"name":"x","extra":${deep}}`, undefined, 'TOO_DEEP'],
        ['{"name":"a\\u0000b"}', 'name', 'INVALID_STRING'],
        ['{"name":"\\ud800"}', 'name', 'INVALID_STRING'],
        ['{"n\\u0000me":"x"}', '', 'INVALID_STRING'],
        ['{"name":"x","limit":1e999}', 'limit', 'INVALID_NUMBER'],
      ] as const) {
        const { status, body } = await app.admin.post('/projects', text)
        assert.equal(status, 400)
        assert.equal(body.error.meta.problems[0].code, code)
        if (path !== undefined) assert.equal(body.error.meta.problems[0].path, path)
      }
    })

    it('cannot reach the prototype of anything', async () => {
      const { status, body } = await app.admin.post(
        '/projects',
        '{"name":"x","__proto__":{"admin":true},"constructor":{"prototype":{"admin":true}}}',
      )
      assert.equal(status, 400)
      assert.deepEqual(body.error.meta.problems.map((problem: any) => problem.path).sort(), [
        '__proto__',
        'constructor',
      ])
      assert.equal(({} as any).admin, undefined)
    })
  })

  describe('HEAD', () => {
    it('answers a GET route with its status and headers and no body', async () => {
      for (const path of [`/projects/${projectId}`, '/projects', '/projects/missing']) {
        const get = await app.admin.get(path)
        const head = await fetch(`${app.url}/api/v1${path}`, {
          method: 'HEAD',
          headers: { authorization: `Bearer ${app.admin.token}` },
        })
        assert.equal(head.status, get.status)
        assert.equal(await head.text(), '')
        for (const name of ['content-type', 'content-length', 'etag'])
          assert.equal(head.headers.get(name), get.headers.get(name), `${path} ${name}`)
      }
    })

    it('of a stream ends immediately', async () => {
      const head = await fetch(`${app.url}/api/v1/audit-log/export?project_id=${projectId}`, {
        method: 'HEAD',
        headers: { authorization: `Bearer ${app.admin.token}` },
        signal: AbortSignal.timeout(20_000),
      })
      assert.equal(head.status, 200)
      assert.match(head.headers.get('content-type') as string, /ndjson/)
    })
  })

  describe('a route that does not exist', () => {
    it('is 404 in the error shape for callers, 401 without a credential', async () => {
      for (const path of ['/nothing', '/projects/x/y/z', '/Projects', '/', '//api/v1']) {
        const { status, body } = await app.admin.get(path)
        assert.deepEqual([status, body.error?.code], [404, 'RESOURCE_NOT_FOUND'], path)
      }
      assert.equal((await app.anonymous.get('/nothing')).status, 401)
    })

    it('outside the API is 404 in the error shape for everybody', async () => {
      for (const path of ['//nothing', '//', '//docs/nothing', '//api/v2/projects']) {
        const { status, body } = await app.anonymous.get(path)
        assert.deepEqual([status, body.error?.code], [404, 'RESOURCE_NOT_FOUND'], path)
      }
    })

    it('a method that a path does not have is 404 in the error shape', async () => {
      for (const method of ['DELETE', 'PUT', 'PATCH', 'TRACE', 'PROPFIND']) {
        const answer = await raw(
          app.url,
          `${method} /api/v1/projects HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${app.admin.token}\r\nConnection: close\r\n\r\n`,
        )
        assert.equal(statusOf(answer), 404, method)
        assert.equal(bodyOf(answer).error.code, 'RESOURCE_NOT_FOUND')
      }
    })

    it('a path that cannot be decoded is refused in the error shape', async () => {
      const { status, body } = await app.admin.get('/projects/%E0%A4%A')
      assert.equal(status, 400)
      assert.equal(body.error.code, 'REQUEST_REJECTED')
    })
  })

  describe('what the HTTP layer refuses', () => {
    it('a bad request line, a bad method and a bad version are 400', async () => {
      for (const text of [
        'GARBAGE\r\n\r\n',
        'FOO /api/v1/projects HTTP/1.1\r\nHost: x\r\n\r\n',
        'GET /api/v1/projects HTTP/9.9\r\nHost: x\r\n\r\n',
        'GET /api/v1/projects HTTP/1.1\r\nno colon here\r\n\r\n',
        'POST /api/v1/projects HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n',
        'POST /api/v1/projects HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n{}',
      ])
        assertRejected(await raw(app.url, text), 400)
    })

    it('headers over size are 431', async () => {
      const header = `X-Long: ${'y'.repeat(20_000)}`
      assertRejected(await raw(app.url, `GET /api/v1/projects HTTP/1.1\r\nHost: x\r\n${header}\r\n\r\n`), 431)
    })

    it('CONNECT is 405, an expectation that cannot be met 417', async () => {
      assertRejected(await raw(app.url, 'CONNECT a.invalid:443 HTTP/1.1\r\nHost: a.invalid\r\n\r\n'), 405)
      assertRejected(await raw(app.url, 'GET /api/v1/projects HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n'), 417)
    })

    it('is logged with the request id of its answer', async () => {
      const answer = await raw(app.url, 'GARBAGE\r\n\r\n')
      const id = /x-request-id: (\S+)/i.exec(answer)?.[1] as string
      assert.equal(app.logs.filter(line => line.includes(id)).length, 1)
    })

    it('a request without a Host header is served', async () => {
      const answer = await raw(app.url, 'GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n')
      assert.equal(statusOf(answer), 200)
    })

    it('a client that disconnects in the middle of its body leaves nothing open', async () => {
      const id = 'gone-in-the-middle'
      await raw(
        app.url,
        `POST /api/v1/projects HTTP/1.1\r\nHost: x\r\nX-Request-Id: ${id}\r\nAuthorization: Bearer ${app.admin.token}\r\nContent-Length: 500\r\n\r\n{"name":"half`,
        { quietMs: 100 },
      )
      const { body } = await app.admin.get('/projects?limit=100')
      assert.ok(!body.data.some((project: any) => project.name === 'half'))
      assert.deepEqual(
        app.logs.filter(line => line.includes(id)),
        [],
      )
    })
  })
})

describe('an idle connection', () => {
  const app = forSuite(startApp)

  it('is kept for as long as the setting says, which answers name', async () => {
    const web = await runWeb(app.databaseUrl, { HTTP_KEEP_ALIVE_MS: '1000' })
    try {
      const started = performance.now()
      const text = await raw(web.url, 'GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n', { quietMs: 30_000 })
      const ms = performance.now() - started
      assert.match(text, /^HTTP\/1\.1 200 [\s\S]*\r\nKeep-Alive: timeout=1\r\n/)
      assert.ok(ms >= 1000 && ms < 30_000, `${ms} ms`)
    } finally {
      await web.stop()
    }
  })
})

describe('cross-origin requests', () => {
  const preflight = (app: TestApp, origin: string) =>
    fetch(`${app.url}/api/v1/actors`, {
      method: 'OPTIONS',
      headers: {
        origin,
        'access-control-request-method': 'PATCH',
        'access-control-request-headers': 'authorization, content-type, idempotency-key, if-match',
      },
    })

  it('are allowed from anywhere by default', async () => {
    const app = await startApp()
    try {
      const answer = await preflight(app, 'https://app.example.test')
      assert.equal(answer.status, 204)
      assert.equal(answer.headers.get('access-control-allow-origin'), '*')
      assert.match(answer.headers.get('access-control-allow-methods') as string, /PATCH/)
      assert.match(answer.headers.get('access-control-allow-headers') as string, /idempotency-key/)
      assert.equal(answer.headers.get('access-control-allow-credentials'), null)
      const read = await app.admin.get('/users/me', { origin: 'https://app.example.test' })
      assert.equal(read.headers.get('access-control-allow-origin'), '*')
      const exposed = read.headers.get('access-control-expose-headers') as string
      for (const name of ['ETag', 'X-Request-Id', 'Retry-After', 'Idempotency-Replayed', 'Content-Disposition'])
        assert.match(exposed, RegExp(name))
    } finally {
      await app.close()
    }
  })

  it('are allowed from the origins of CORS_ALLOWED_ORIGINS only', async () => {
    const app = await startApp({ env: { CORS_ALLOWED_ORIGINS: 'https://one.example.test,https://two.example.test' } })
    try {
      const allowed = await preflight(app, 'https://two.example.test')
      assert.equal(allowed.headers.get('access-control-allow-origin'), 'https://two.example.test')
      assert.match(allowed.headers.get('vary') as string, /Origin/)
      const refused = await preflight(app, 'https://three.example.test')
      assert.equal(refused.headers.get('access-control-allow-origin'), null)
      // Responses too, also refusals, and always the one origin of the request.
      for (const by of [app.admin, app.anonymous]) {
        const { headers } = await by.get('/users/me', { origin: 'https://one.example.test' })
        assert.equal(headers.get('access-control-allow-origin'), 'https://one.example.test')
        assert.match(headers.get('vary') as string, /Origin/)
        assert.equal(headers.get('access-control-allow-credentials'), null)
        const other = await by.get('/users/me', { origin: 'https://three.example.test' })
        assert.equal(other.headers.get('access-control-allow-origin'), null)
        assert.match(other.headers.get('vary') as string, /Origin/)
      }
    } finally {
      await app.close()
    }
  })
})

describe('the address of a caller', () => {
  /** The address in the audit entry of a request with this header. */
  async function recorded(app: TestApp, forwarded: string): Promise<string> {
    const { id } = await app.project()
    await app.admin.patch(`/projects/${id}`, { name: 'renamed' }, { 'x-forwarded-for': forwarded })
    const { body } = await app.admin.get(`/audit-log?project_id=${id}&action=projects:UpdateProject`)
    return body.data[0].ip
  }

  for (const [trust, expected] of [
    ['false', /^(::ffff:)?127\.0\.0\.1$/],
    ['1', /^203\.0\.113\.9$/],
    ['2', /^198\.51\.100\.7$/],
    ['true', /^192\.0\.2\.1$/],
  ] as const) {
    it(`with TRUST_PROXY=${trust} is ${expected.source.replaceAll('\\', '')} in the audit log`, async () => {
      const app = await startApp({ env: { TRUST_PROXY: trust } })
      try {
        assert.match(await recorded(app, '192.0.2.1, 198.51.100.7, 203.0.113.9'), expected)
      } finally {
        await app.close()
      }
    })
  }
})
