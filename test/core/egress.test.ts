import assert from 'node:assert/strict'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import https from 'node:https'
import net, { type AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { TLSSocket } from 'node:tls'
import { gzipSync } from 'node:zlib'
import {
  createEgress,
  type Egress,
  EgressBlockedError,
  type EgressOptions,
  type EgressOutcome,
  type EgressRequest,
} from '#core/net/egress.ts'
import { RemoteBodyError } from '#core/net/limited-body.ts'
import { openResolver } from '#core/net/resolver.ts'
import { INTERNAL_HOSTS } from '../support/addresses.ts'
import { eventually } from '../support/app.ts'
import { cert, key } from '../support/tls.ts'

type Received = { method: string; url: string; headers: http.IncomingHttpHeaders; body: string; localAddress: string }
type Handler = (request: Received, response: ServerResponse, raw: IncomingMessage) => void

const cleanups: (() => unknown)[] = []

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

/** A receiver on a loopback address; counts connections and keeps the requests. */
async function serve(handler: Handler, host = '127.0.0.1', tls?: https.ServerOptions) {
  const requests: Received[] = []
  const sockets = new Set<net.Socket>()
  let connections = 0
  const listener = async (raw: IncomingMessage, response: ServerResponse) => {
    const chunks: Buffer[] = []
    for await (const chunk of raw) chunks.push(chunk)
    const request = {
      method: raw.method!,
      url: raw.url!,
      headers: raw.headers,
      body: Buffer.concat(chunks).toString(),
      localAddress: raw.socket.localAddress!,
    }
    requests.push(request)
    handler(request, response, raw)
  }
  const server = tls ? https.createServer(tls, listener) : http.createServer(listener)
  server.on('connection', socket => {
    connections++
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
  })
  await new Promise<void>(resolve => server.listen(0, host, resolve))
  cleanups.push(() => {
    server.closeAllConnections()
    return new Promise(resolve => server.close(resolve))
  })
  const { port } = server.address() as AddressInfo
  return { url: `http://${host}:${port}`, port, requests, sockets, connections: () => connections }
}

/** A server that speaks whatever bytes it likes. */
async function serveRaw(onSocket: (socket: net.Socket) => void) {
  const sockets = new Set<net.Socket>()
  const server = net.createServer(socket => {
    sockets.add(socket)
    socket.on('error', () => {})
    onSocket(socket)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy()
    return new Promise(resolve => server.close(resolve))
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

function client(options: Partial<EgressOptions> = {}): Egress {
  const egress = createEgress({ allowHosts: '127.0.0.1', resolve: openResolver({ servers: '' }), ...options })
  cleanups.push(() => egress.close())
  return egress
}

function call(egress: Egress, url: string, request: Partial<EgressRequest> = {}): Promise<EgressOutcome> {
  return egress.request({
    url,
    method: 'GET',
    timeoutMs: 5000,
    maxRedirects: 5,
    redirectMode: 'standard',
    maxBytes: 1_000_000,
    ...request,
  })
}

/** `answer 200`, `blocked 10.0.0.1`, `failed dns`: the part of an outcome that tests compare. */
function gist(outcome: EgressOutcome): string {
  if (outcome.kind === 'answer') return `answer ${outcome.status}`
  return outcome.kind === 'blocked' ? `blocked ${outcome.address}` : `failed ${outcome.reason}`
}

const ok: Handler = (_request, response) => response.end('ok')
const echo: Handler = (request, response) => response.end(JSON.stringify(request))

/** A call that follows immediately may find the first connection still busy with its end, never more than one connection. */
function assertReused(server: { connections(): number }): void {
  assert.ok(server.connections() <= 2, `${server.connections()} connections`)
}

describe('the egress rule', () => {
  for (const [host, address] of INTERNAL_HOSTS)
    it(`refuses ${host}`, async () => {
      assert.equal(gist(await call(client({ allowHosts: '' }), `http://${host}/`)), `blocked ${address}`)
    })

  const passed = ['8.8.8.8', '172.32.0.1', '[2606:4700::1111]', '[::ffff:8.8.8.8]', '[64:ff9b::8.8.8.8]']
  passed.push('168.63.129.17', '166.12.0.0', '199.36.153.12', '[2600:2d00:2:3000::1]')
  for (const host of passed)
    it(`does not refuse ${host}`, async () => {
      // An aborted call ends after the rule and before any connection.
      const outcome = await call(client({ allowHosts: '' }), `http://${host}/`, { signal: AbortSignal.abort() })
      assert.equal(gist(outcome), 'failed aborted')
    })

  it('refuses a name when any of its addresses is not public', async () => {
    for (const address of ['127.0.0.1', '10.1.1.1', '::1', 'fe80::1%eth0', '::ffff:192.168.0.1', 'not an address']) {
      const egress = client({ allowHosts: '', resolve: async () => ['8.8.8.8', address] })
      assert.equal(gist(await call(egress, 'http://name.test/')), `blocked ${address}`)
    }
  })

  it('refuses localhost by the system resolver', async () => {
    const outcome = await call(client({ allowHosts: '' }), 'http://localhost:1/')
    assert.ok(outcome.kind === 'blocked' && ['127.0.0.1', '::1'].includes(outcome.address!))
  })

  it('refuses other schemes, credentials in the URL and invalid URLs', async () => {
    const egress = client({ allowHosts: '*.test,127.0.0.1' })
    for (const url of [
      'ftp://a.test/',
      'file:///etc/passwd',
      'http://u:p@127.0.0.1/',
      'http://u@127.0.0.1/',
      'x',
      'http://',
      '',
    ])
      assert.equal(gist(await call(egress, url)), 'blocked null', url)
  })
})

describe('the allow-list', () => {
  const allows = async (allowHosts: string, host: string, address = '127.0.0.1', port = 0): Promise<boolean> => {
    const server = await serve(ok)
    const list = allowHosts.replace('PORT', String(port || server.port))
    const outcome = await call(
      client({ allowHosts: list, resolve: async () => [address] }),
      `http://${host}:${server.port}/`,
    )
    assert.ok(outcome.kind === 'answer' || outcome.kind === 'blocked', gist(outcome))
    return outcome.kind === 'answer'
  }

  it('names a host, whatever the case, with or without the final dot', async () => {
    assert.equal(await allows('other.test, Name.Test', 'name.test'), true)
    assert.equal(await allows('name.test', 'NAME.test.'), true)
    assert.equal(await allows('name.test', 'sub.name.test'), false)
    assert.equal(await allows('ame.test', 'name.test'), false)
  })

  it('names a host on one port', async () => {
    assert.equal(await allows('name.test:PORT', 'name.test'), true)
    assert.equal(await allows('name.test:PORT', 'name.test', '127.0.0.1', 9), false)
    assert.equal(await allows('127.0.0.1:PORT', '127.0.0.1'), true)
    assert.equal(await allows('127.0.0.1:PORT', '127.0.0.1', '127.0.0.1', 9), false)
  })

  it('names a suffix, not the domain itself', async () => {
    assert.equal(await allows('*.corp.test', 'a.b.corp.test'), true)
    assert.equal(await allows('*.corp.test', 'corp.test'), false)
    assert.equal(await allows('*.corp.test', 'evilcorp.test'), false)
  })

  it('names an address or a range, as literal or as what a name resolves to', async () => {
    assert.equal(await allows('127.0.0.1', '127.0.0.1'), true)
    assert.equal(await allows('127.0.0.0/30', 'name.test'), true)
    assert.equal(await allows('127.0.0.2/31', 'name.test'), false)
    assert.equal(await allows('10.0.0.0/8,::1', 'name.test'), false)
    assert.equal(await allows('::ffff:127.0.0.1', '127.0.0.1'), true)
    assert.equal(await allows('::ffff:127.0.0.0/104', '127.0.0.1'), true)
  })

  it('covers every address of an allowed name, but one address of another only itself', async () => {
    const resolve = async () => ['127.0.0.1', '10.0.0.1']
    assert.equal(
      gist(await call(client({ allowHosts: '127.0.0.1', resolve }), 'http://name.test/')),
      'blocked 10.0.0.1',
    )
  })

  it('refuses an invalid entry', () => {
    const bad = [
      '*',
      '*.',
      'a b',
      'http://x',
      '10.0.0.0/33',
      '10.0.0/8',
      '::/129',
      'x:0',
      'x:99999',
      'x:y',
      '1.2.3.4/8/8',
    ]
    bad.push('[::1', 'a..b', '010.0.0.1', '*.*.x', '::ffff:10.0.0.0/90')
    for (const entry of bad)
      assert.throws(() => client({ allowHosts: `ok.test,${entry}` }), /is not a host, host:port/, entry)
    for (const entry of ['', ' , ', '[::1]:80', '::1', 'fd00::/8', 'a_b.test', 'bücher.test'])
      client({ allowHosts: entry })
  })
})

describe('pinning', () => {
  it('connects to the address that was checked, with the name in the Host header', async () => {
    const server = await serve(echo, '127.0.0.2')
    const resolved: string[] = []
    const resolve = async (name: string) => {
      resolved.push(name)
      return ['127.0.0.2']
    }
    const outcome = await call(client({ allowHosts: '127.0.0.2', resolve }), `http://pinned.test:${server.port}/x?y=1`)
    assert.equal(gist(outcome), 'answer 200')
    assert.deepEqual(resolved, ['pinned.test'])
    assert.equal(server.requests[0].localAddress, '127.0.0.2')
    assert.equal(server.requests[0].headers.host, `pinned.test:${server.port}`)
    assert.equal(server.requests[0].url, '/x?y=1')
  })

  it('a name that moves to an internal address is refused, and its pooled connection not used', async () => {
    const good = await serve(ok, '127.0.0.2')
    let address = '127.0.0.2'
    const egress = client({ allowHosts: '127.0.0.2', resolve: async () => [address] })
    const url = `http://rebind.test:${good.port}/`
    assert.equal(gist(await call(egress, url)), 'answer 200')
    address = '127.0.0.1'
    assert.equal(gist(await call(egress, url)), 'answer 200', 'within the second the answer is shared')
    await sleep(1050)
    assert.equal(gist(await call(egress, url)), 'blocked 127.0.0.1')
    assert.equal(good.requests.length, 2)
  })

  it('a name that moves to another allowed address is followed there', async () => {
    const first = await serve((_r, response) => response.end('first'), '127.0.0.2')
    let address = '127.0.0.2'
    const egress = client({ allowHosts: '127.0.0.0/8', resolve: async () => [address] })
    const second = http.createServer((_r, response) => response.end('second'))
    await new Promise<void>(resolve => second.listen(first.port, '127.0.0.3', resolve))
    cleanups.push(() => second.close())
    const bodies: string[] = []
    for (const next of ['127.0.0.2', '127.0.0.3']) {
      address = next
      if (bodies.length > 0) await sleep(1050)
      const outcome = await call(egress, `http://moving.test:${first.port}/`)
      bodies.push(outcome.kind === 'answer' ? outcome.body.toString() : gist(outcome))
    }
    assert.deepEqual(bodies, ['first', 'second'])
  })

  it('tries the other checked addresses of a name when one refuses the connection, and remembers', async () => {
    const server = await serve(ok)
    const egress = client({ allowHosts: '127.0.0.0/8', resolve: async () => ['127.0.0.2', '127.0.0.1'] })
    for (let i = 0; i < 3; i++)
      assert.equal(
        gist(await call(egress, `http://two.test:${server.port}/`, { method: 'POST', body: 'x' })),
        'answer 200',
      )
    assert.equal(server.requests.length, 3)
    assertReused(server)
  })
})

describe('redirects', () => {
  /** Answers `/<status>/<target>` with a redirect to the target, everything else with the request. */
  const redirecting: Handler = (request, response) => {
    const [, status, to] = /^\/(\d{3})\/(.*)$/.exec(request.url) ?? []
    if (status) response.writeHead(Number(status), { location: decodeURIComponent(to) }).end('moved')
    else echo(request, response, undefined!)
  }
  const through = (base: string, status: number, to: string) => `${base}/${status}/${encodeURIComponent(to)}`

  async function final(
    url: string,
    request: Partial<EgressRequest>,
    options: Partial<EgressOptions> = {},
  ): Promise<Received> {
    const outcome = await call(client(options), url, request)
    assert.ok(outcome.kind === 'answer', gist(outcome))
    return JSON.parse(outcome.body.toString())
  }

  it('standard: 301 and 302 after POST and every 303 become GET without body', async () => {
    const { url } = await serve(redirecting)
    const post = { method: 'POST', body: '{}', headers: { 'Content-Type': 'application/json', 'X-A': 'b' } }
    for (const status of [301, 302, 303]) {
      const request = await final(through(url, status, '/end'), post)
      assert.deepEqual([request.method, request.body, request.url], ['GET', '', '/end'])
      assert.equal(request.headers['content-type'], undefined)
      assert.equal(request.headers['x-a'], 'b')
    }
    for (const status of [307, 308]) {
      const request = await final(through(url, status, '/end'), post)
      assert.deepEqual(
        [request.method, request.body, request.headers['content-type']],
        ['POST', '{}', 'application/json'],
      )
    }
    assert.equal((await final(through(url, 302, '/end'), { method: 'PUT', body: 'x' })).method, 'PUT')
    assert.equal((await final(through(url, 303, '/end'), { method: 'PUT', body: 'x' })).method, 'GET')
  })

  it('repost: 301, 302, 307 and 308 repeat the same body and headers', async () => {
    const { url } = await serve(redirecting)
    const headers = { 'Content-Type': 'application/json', 'X-Svc-Signature': 't=1,v1=aa' }
    for (const status of [301, 302, 307, 308]) {
      const request = await final(through(url, status, '/end'), {
        method: 'POST',
        body: '{"a":1}',
        headers,
        redirectMode: 'repost',
      })
      assert.deepEqual([request.method, request.body], ['POST', '{"a":1}'])
      assert.equal(request.headers['x-svc-signature'], 't=1,v1=aa')
      assert.equal(request.headers['content-type'], 'application/json')
    }
  })

  it('repost: 303, too many hops and an unusable location are failures', async () => {
    const { url } = await serve(redirecting)
    const request = { method: 'POST', body: 'x', redirectMode: 'repost' as const }
    const see = await call(client(), through(url, 303, '/end'), request)
    assert.deepEqual(see, { kind: 'failed', reason: 'redirects', message: 'receiver answered 303', status: 303 })
    const loop = await serve((_r, response) => response.writeHead(307, { location: '/' }).end())
    assert.equal(gist(await call(client(), loop.url, { ...request, maxRedirects: 2 })), 'failed redirects')
    assert.equal(loop.requests.length, 3)
    assert.equal(gist(await call(client(), through(url, 307, 'http://'), request)), 'failed redirects')
    assert.equal(gist(await call(client(), through(url, 307, 'ftp://a.test/'), request)), 'blocked null')
  })

  it('standard: too many hops are blocked without an address', async () => {
    const loop = await serve((_r, response) => response.writeHead(302, { location: '/' }).end())
    assert.equal(gist(await call(client(), loop.url, { maxRedirects: 5 })), 'blocked null')
    assert.equal(loop.requests.length, 6)
    assert.equal(gist(await call(client(), loop.url, { maxRedirects: 0 })), 'blocked null')
  })

  it('none: the redirect is the answer', async () => {
    const { url, requests } = await serve(redirecting)
    const outcome = await call(client(), through(url, 302, '/end'), { redirectMode: 'none' })
    assert.ok(outcome.kind === 'answer')
    assert.deepEqual([outcome.status, outcome.headers.location, outcome.body.toString()], [302, '/end', 'moved'])
    assert.equal(requests.length, 1)
  })

  it('a 3xx without location, or that is no redirect, is the answer', async () => {
    const { url } = await serve((request, response) => response.writeHead(request.url === '/a' ? 302 : 304).end())
    assert.equal(gist(await call(client(), `${url}/a`)), 'answer 302')
    assert.equal(gist(await call(client(), `${url}/b`)), 'answer 304')
  })

  for (const redirectMode of ['standard', 'repost'] as const)
    it(`${redirectMode}: a redirect to an address that is not allowed is blocked before a connection`, async () => {
      const inner = await serve(ok, '127.0.0.2')
      const { url } = await serve(redirecting)
      for (const to of [inner.url, inner.url.replace('127.0.0.2', '2130706434'), `//127.0.0.2:${inner.port}/`]) {
        const outcome = await call(client(), through(url, 307, to), { method: 'POST', body: 'x', redirectMode })
        assert.equal(gist(outcome), 'blocked 127.0.0.2')
      }
      assert.equal(inner.connections(), 0)
    })

  it('credentials and sensitive headers stay on their origin, and do not come back on return', async () => {
    const there = await serve(redirecting, '127.0.0.2')
    const { url, requests } = await serve(redirecting)
    const headers = {
      Authorization: 'Bearer x',
      Cookie: 'a=b',
      'Proxy-Authorization': 'p',
      'X-Api-Key': 'k',
      'X-Plain': 'p',
    }
    const options = { allowHosts: '127.0.0.0/8' }
    const same = await final(through(url, 302, '/end'), { headers, sensitiveHeaders: ['x-API-key'] }, options)
    assert.equal(same.headers.authorization, 'Bearer x')
    assert.equal(same.headers['x-api-key'], 'k')
    requests.length = 0
    const back = through(there.url, 302, `${url}/end`)
    const other = await final(through(url, 302, back), { headers, sensitiveHeaders: ['X-Api-Key'] }, options)
    for (const request of [there.requests[0], other]) {
      for (const name of ['authorization', 'cookie', 'proxy-authorization', 'x-api-key'])
        assert.equal(request.headers[name], undefined, name)
      assert.equal(request.headers['x-plain'], 'p')
    }
    assert.equal(requests[0].headers.cookie, 'a=b')
  })

  it('the url of the answer is the last one', async () => {
    const { url } = await serve(redirecting)
    const outcome = await call(client(), through(url, 302, '../end?x'))
    assert.ok(outcome.kind === 'answer')
    assert.equal(outcome.url, `${url}/end?x`)
  })
})

describe('a request', () => {
  it('sends method, headers and body of any kind, and answers headers and bytes', async () => {
    const { url } = await serve((request, response) => {
      response.setHeader('set-cookie', ['a=1', 'b=2'])
      response.setHeader('X-Mixed', 'v')
      response.writeHead(418).end(Buffer.from(request.body))
    })
    for (const body of ['äö', Buffer.from('äö'), new TextEncoder().encode('äö')]) {
      const outcome = await call(client(), url, { method: 'PATCH', body })
      assert.ok(outcome.kind === 'answer')
      assert.equal(outcome.status, 418)
      assert.equal(outcome.body.toString(), 'äö')
      assert.equal(outcome.headers['x-mixed'], 'v')
      assert.equal(outcome.headers['set-cookie'], 'a=1, b=2')
    }
  })

  it('never sends a Host or framing header of the caller', async () => {
    const { url, requests } = await serve(ok)
    const headers = {
      Host: 'other.internal',
      Connection: 'close',
      'Content-Length': '99',
      'Transfer-Encoding': 'chunked',
      Upgrade: 'x',
      Expect: '100-continue',
      TE: 'x',
    }
    assert.equal(gist(await call(client(), url, { method: 'POST', body: 'abc', headers })), 'answer 200')
    assert.equal(requests[0].headers.host, url.slice(7))
    assert.equal(requests[0].headers['content-length'], '3')
    assert.equal(requests[0].headers.upgrade, undefined)
  })

  it('requests an unencoded body, and returns an encoded one unchanged', async () => {
    const { url, requests } = await serve((_request, response) =>
      response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync('x'.repeat(10_000))),
    )
    const outcome = await call(client(), url, { maxBytes: 100 })
    assert.ok(outcome.kind === 'answer' && outcome.body.length < 100)
    assert.equal(requests[0].headers['accept-encoding'], 'identity')
  })

  it('honours no proxy environment', async () => {
    const proxy = await serve((_r, response) => response.end('proxied'))
    const { url } = await serve(ok)
    process.env.HTTP_PROXY = process.env.http_proxy = proxy.url
    try {
      const outcome = await call(client(), url)
      assert.ok(outcome.kind === 'answer' && outcome.body.toString() === 'ok')
    } finally {
      delete process.env.HTTP_PROXY
      delete process.env.http_proxy
    }
    assert.equal(proxy.connections(), 0)
  })

  it('reuses connections, one per concurrent call', async () => {
    const server = await serve(ok)
    const egress = client({ allowHosts: '127.0.0.1', resolve: async () => ['127.0.0.1'] })
    for (let i = 0; i < 20; i++) await call(egress, `http://name.test:${server.port}/`, { method: 'POST', body: 'x' })
    assertReused(server)
    await Promise.all(Array.from({ length: 10 }, () => call(egress, `http://name.test:${server.port}/`)))
    assert.ok(server.connections() <= 11)
    assert.equal(server.requests.length, 30)
  })

  it('a failing response body never breaks the process', async () => {
    const url = await serveRaw(socket => {
      socket.once('data', () => {
        socket.write('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart')
        setTimeout(() => socket.destroy(), 20)
      })
    })
    assert.equal(gist(await call(client(), url)), 'failed connect')
  })

  it('turns every misbehaviour of a receiver into an outcome', async () => {
    for (const bytes of ['garbage\r\n\r\n', 'HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n', '']) {
      const url = await serveRaw(socket => socket.once('data', () => socket.end(bytes)))
      assert.equal(gist(await call(client(), url)), 'failed connect', JSON.stringify(bytes))
    }
    const url = await serveRaw(socket =>
      socket.once('data', () => socket.end(`HTTP/1.1 200 OK\r\nX: ${'y'.repeat(100_000)}\r\n\r\n`)),
    )
    assert.equal(gist(await call(client(), url)), 'failed response_too_large')
  })

  it('turns what cannot be sent into an outcome', async () => {
    const { url, requests } = await serve(ok)
    const unsendable: Partial<EgressRequest>[] = [{ method: 'BAD METHOD' }, { headers: { 'x-a': 'b\r\nc: d' } }]
    unsendable.push({ headers: { 'bad name': 'x' } })
    for (const request of unsendable) assert.equal(gist(await call(client(), url, request)), 'failed connect')
    assert.equal(requests.length, 0)
  })

  it('distinguishes a refused connection, an unknown name and a name without address', async () => {
    assert.equal(gist(await call(client(), 'http://127.0.0.1:9/')), 'failed connect')
    const unknown = client({ resolve: () => Promise.reject(new Error('ENOTFOUND')) })
    assert.equal(gist(await call(unknown, 'http://name.test/')), 'failed dns')
    assert.equal(gist(await call(client({ resolve: async () => [] }), 'http://name.test/')), 'failed dns')
  })

  it('caches a failed lookup for two seconds', async () => {
    const server = await serve(ok)
    let answers = 0
    const resolve = async () => {
      if (answers++ === 0) throw new Error('temporary')
      return ['127.0.0.1']
    }
    const egress = client({ resolve })
    for (let times = 0; times < 2; times++)
      assert.equal(gist(await call(egress, `http://name.test:${server.port}/`)), 'failed dns')
    assert.equal(answers, 1)
    await sleep(2050)
    assert.equal(gist(await call(egress, `http://name.test:${server.port}/`)), 'answer 200')
  })

  it('does not count the wait for a lookup slot as part of its timeout, up to waitMs', async () => {
    const server = await serve(ok)
    const release: (() => void)[] = []
    const resolve = (name: string) =>
      name === 'good.test'
        ? Promise.resolve(['127.0.0.1'])
        : new Promise<string[]>(done => void release.push(() => done([])))
    const egress = client({ resolve })
    const url = `http://good.test:${server.port}/`
    const held = Array.from({ length: 32 }, (_, n) => call(egress, `http://${n}.test/`, { tenant: 'a' }))
    const patient = call(egress, url, { tenant: 'a', timeoutMs: 200 })
    const short = call(egress, url, { tenant: 'a', timeoutMs: 200, waitMs: 100 })
    assert.equal(gist(await call(egress, 'http://33.test/', { tenant: 'a', waitMs: 50 })), 'failed busy')
    assert.equal(gist(await short), 'failed busy')
    await sleep(300)
    assert.equal(server.requests.length, 0)
    for (const done of release.splice(0)) done()
    assert.equal(gist(await patient), 'answer 200')
    for (const outcome of await Promise.all(held)) assert.equal(gist(outcome), 'failed dns')
    assert.equal(gist(await call(egress, url, { tenant: 'b', timeoutMs: 200 })), 'answer 200')
  })

  it('times out while resolving, waiting for headers, reading the body, following redirects', async () => {
    const limited = { timeoutMs: 150 }
    const hanging = client({ resolve: () => new Promise(() => {}) })
    assert.equal(gist(await call(hanging, 'http://name.test/', limited)), 'failed timeout')
    const { url, sockets } = await serve(async (request, response) => {
      if (request.url === '/silent') return
      if (request.url === '/loop') {
        await sleep(60)
        response.writeHead(302, { location: '/loop' }).end()
      } else {
        response.writeHead(200).write('x')
      }
    })
    const egress = client()
    for (const path of ['/silent', '/body'])
      assert.equal(gist(await call(egress, url + path, limited)), 'failed timeout')
    await eventually(() => sockets.size === 0, { what: 'the connections of calls that were abandoned closed' })
    assert.equal(gist(await call(egress, `${url}/loop`, limited)), 'failed timeout')
  })

  it('ends when it is aborted, also before it starts', async () => {
    const { url } = await serve(() => {})
    const controller = new AbortController()
    setTimeout(() => controller.abort(), 50)
    assert.equal(gist(await call(client(), url, { signal: controller.signal })), 'failed aborted')
    assert.equal(gist(await call(client(), url, { signal: AbortSignal.abort() })), 'failed aborted')
    assert.equal(
      gist(
        await call(client({ resolve: () => new Promise(() => {}) }), 'http://a.test', { signal: AbortSignal.abort() }),
      ),
      'failed aborted',
    )
  })

  it('refuses a body above the cap, announced or not, and accepts one of exactly the cap', async () => {
    const { url } = await serve((request, response) => {
      if (request.url === '/chunked') {
        response.write('12345')
        response.end('67890')
      } else response.end('1234567890')
    })
    for (const path of ['/', '/chunked']) {
      assert.equal(gist(await call(client(), url + path, { maxBytes: 9 })), 'failed response_too_large')
      assert.equal(gist(await call(client(), url + path, { maxBytes: 10 })), 'answer 200')
    }
  })

  it('truncates with the option truncate, and drops the connection', async () => {
    const { url, sockets } = await serve((_r, response) => {
      response.write('0123456789')
      const timer = setInterval(() => response.write('x'.repeat(1000)), 5)
      response.on('close', () => clearInterval(timer))
    })
    const outcome = await call(client(), url, { maxBytes: 4, truncate: true })
    assert.ok(outcome.kind === 'answer')
    assert.equal(outcome.body.toString(), '0123')
    await eventually(() => sockets.size === 0, { what: 'the connection closed' })
  })

  it('ends the body once isEnough is true, and drops the connection', async () => {
    const { url, sockets } = await serve((_r, response) => {
      response.setHeader('x-kind', 'endless')
      const timer = setInterval(() => response.write('0123456789'), 5)
      response.on('close', () => clearInterval(timer))
    })
    const kinds = new Set<string>()
    let left = 30
    const isEnough = (chunk: Buffer, headers: Record<string, string>) => {
      kinds.add(headers['x-kind'])
      left -= chunk.length
      return left <= 0
    }
    const outcome = await call(client(), url, { isEnough })
    assert.ok(outcome.kind === 'answer')
    assert.match(outcome.body.toString(), /^(0123456789){3,}$/)
    assert.deepEqual([...kinds], ['endless'])
    await eventually(() => sockets.size === 0, { what: 'the connection closed' })
    assert.equal(gist(await call(client(), url, { maxBytes: 25, isEnough: () => false })), 'failed response_too_large')
  })

  it('a short body under truncate keeps the connection', async () => {
    const server = await serve(ok)
    const egress = client()
    for (let i = 0; i < 5; i++) await call(egress, server.url, { maxBytes: 1024, truncate: true })
    assertReused(server)
  })

  it('a closed client has no open connection and sends nothing more', async () => {
    const server = await serve((request, response) => {
      if (request.url !== '/hang') response.end('ok')
    })
    const egress = client()
    await call(egress, server.url)
    const hanging = call(egress, `${server.url}/hang`)
    while (server.requests.length < 2) await sleep(5)
    await egress.close()
    assert.equal(gist(await hanging), 'failed aborted')
    assert.equal(gist(await call(egress, server.url)), 'failed aborted')
    await eventually(() => server.sockets.size === 0, { what: 'all connections closed' })
    await egress.close()
  })
})

describe('TLS', () => {
  const resolve = async () => ['127.0.0.1']

  it('checks the certificate against the name in the url, on the pinned address', async () => {
    const servernames: unknown[] = []
    const server = await serve(
      (_request, response, raw) => {
        servernames.push((raw.socket as TLSSocket & { servername: string }).servername)
        response.end('ok')
      },
      '127.0.0.1',
      { key, cert },
    )
    const trusting = client({ ca: cert, resolve })
    assert.equal(gist(await call(trusting, `https://tls.test:${server.port}/`)), 'answer 200')
    assert.deepEqual(servernames, ['tls.test'])
    assert.equal(gist(await call(trusting, `https://other.test:${server.port}/`)), 'failed tls')
    assert.equal(gist(await call(trusting, `https://127.0.0.1:${server.port}/`)), 'failed tls')
    assert.equal(gist(await call(client({ resolve }), `https://tls.test:${server.port}/`)), 'failed tls')
    assert.equal(server.requests.length, 1)
  })

  it('a server that speaks no TLS is a failure', async () => {
    const server = await serve(ok)
    assert.equal(gist(await call(client({ resolve }), `https://tls.test:${server.port}/`)), 'failed tls')
  })
})

describe('fetch', () => {
  it('sends and answers like fetch', async () => {
    const { url, requests } = await serve((request, response) => {
      response.writeHead(201, { 'content-type': 'application/json' }).end(request.body)
    })
    const { fetch } = client()
    const headers = new Headers({ 'x-a': 'b', host: 'other.internal' })
    const response = await fetch(`${url}/p`, { method: 'POST', headers, body: '{"a":1}' })
    assert.equal(response.status, 201)
    assert.equal(response.ok, true)
    assert.equal(response.headers.get('content-type'), 'application/json')
    assert.deepEqual(await response.json(), { a: 1 })
    assert.deepEqual([requests[0].method, requests[0].url, requests[0].headers['x-a']], ['POST', '/p', 'b'])
    assert.equal(requests[0].headers.host, url.slice(7))
    await (await fetch(new URL(url))).text()
    await (await fetch(new Request(url, { method: 'PUT', body: 'r', headers: { 'x-r': '1' } }))).text()
    assert.deepEqual([requests[2].method, requests[2].body, requests[2].headers['x-r']], ['PUT', 'r', '1'])
  })

  it('sends a form', async () => {
    const { url, requests } = await serve(ok)
    const form = new FormData()
    form.append('model', 'm')
    form.append('file', new Blob(['bytes']), 'a.txt')
    await (await client().fetch(url, { method: 'POST', body: form })).text()
    assert.match(requests[0].headers['content-type']!, /^multipart\/form-data; boundary=/)
    assert.match(requests[0].body, /filename="a.txt"[\s\S]*bytes/)
  })

  it('streams the body', async () => {
    let finish: () => void = () => {}
    const { url } = await serve((_request, response) => {
      response.write('first')
      finish = () => response.end('last')
    })
    const response = await client().fetch(url)
    const reader = response.body!.getReader()
    const decoder = new TextDecoder()
    assert.equal(decoder.decode((await reader.read()).value), 'first')
    finish()
    assert.equal(decoder.decode((await reader.read()).value), 'last')
    assert.equal((await reader.read()).done, true)
  })

  it('requests one coding, decodes it, and counts decoded bytes', async () => {
    const body = 'x'.repeat(100_000)
    const { url, requests } = await serve((request, response) => {
      const gzipped = gzipSync(body)
      response.setHeader('content-encoding', request.url === '/one' ? 'gzip' : ['gzip', 'gzip'])
      response.end(request.url === '/one' ? gzipped : gzipSync(gzipped))
    })
    const { fetch } = client()
    assert.equal(await (await fetch(`${url}/one`, { maxBytes: 100_000 })).text(), body)
    assert.equal(requests[0].headers['accept-encoding'], 'gzip')
    await assert.rejects((await fetch(`${url}/one`, { maxBytes: 99_999 })).text(), RemoteBodyError)
    await assert.rejects(fetch(`${url}/two`), RemoteBodyError)
    await fetch(`${url}/one`, { headers: { 'Accept-Encoding': 'identity' } })
    assert.equal(requests[3].headers['accept-encoding'], 'identity')
  })

  it('bounds each event of a stream, and a stream by four times as much', async () => {
    const { url } = await serve(async (request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
      const pieces: Record<string, string[]> = {
        '/stream': Array.from({ length: 9 }, () => `event: e\ndata: ${'x'.repeat(80)}\n\n`),
        '/windows': Array.from({ length: 9 }, () => `data: ${'x'.repeat(80)}\r\n\r\n`),
        '/long': Array.from({ length: 200 }, () => 'data: x\n\n'),
        '/event': Array.from({ length: 200 }, () => 'data: x\n'),
        '/json': Array.from({ length: 200 }, () => '{},\n\n'),
      }
      for (const piece of pieces[request.url]) {
        // In two parts, so that a boundary falls between chunks.
        response.write(piece.slice(0, -2))
        await sleep(1)
        response.write(piece.slice(-2))
      }
      response.end()
    })
    const read = async (path: string) => (await client().fetch(url + path, { maxBytes: 250 })).text()
    assert.equal((await read('/stream')).length, 9 * 97)
    assert.equal((await read('/windows')).length, 9 * 90)
    await assert.rejects(read('/long'), /more than 1000 bytes/)
    await assert.rejects(read('/event'), /more than 250 bytes/)
    await assert.rejects(read('/json'), /more than 250 bytes/)
  })

  it('bounds the values of an answer, and of each event of a stream', async () => {
    const values = (count: number) => `[${Array.from({ length: count - 1 }, () => '1').join(',')}]`
    const stream = Array.from({ length: 9 }, () => `data: ${values(25)}\n\n`)
    const { url } = await serve(async (request, response) => {
      if (request.url === '/stream') response.setHeader('content-type', 'text/event-stream')
      const pieces: Record<string, string[]> = {
        '/stream': stream,
        '/untyped': stream,
        '/event': [`data: ${values(25)}\n`, `data: ${values(25)}\n\n`],
        '/lines': ['data: 1\n\n', 'x\n'.repeat(70)],
        '/json': [`{"lists":[${values(25)},\n\n`, `${values(25)}]}`],
        '/small': [values(30)],
      }
      for (const piece of pieces[request.url]) {
        response.write(piece.slice(0, -2))
        await sleep(1)
        response.write(piece.slice(-2))
      }
      response.end()
    })
    const read = async (path: string) => (await client().fetch(url + path, { maxValues: 30 })).text()
    for (const path of ['/stream', '/untyped']) assert.equal(await read(path), stream.join(''))
    assert.equal(await read('/small'), values(30))
    for (const path of ['/event', '/json']) await assert.rejects(read(path), /more than 30 values/)
    await assert.rejects(read('/lines'), /more than 60 lines/)
  })

  it('returns a redirect unchanged', async () => {
    const { url, requests } = await serve((_r, response) => response.writeHead(302, { location: '/x' }).end('moved'))
    const response = await client().fetch(url, { redirect: 'follow' })
    assert.deepEqual([response.status, response.headers.get('location')], [302, '/x'])
    await response.text()
    assert.equal(requests.length, 1)
  })

  it('rejects if the rule refuses', async () => {
    const { fetch } = client({ resolve: async () => ['10.0.0.1'] })
    await assert.rejects(fetch('http://name.test/v1'), (error: unknown) => {
      assert.ok(error instanceof EgressBlockedError)
      assert.deepEqual([error.url, error.address], ['http://name.test/v1', '10.0.0.1'])
      return true
    })
    await assert.rejects(fetch('http://[::1]/'), EgressBlockedError)
    await assert.rejects(fetch('ftp://name.test/'), EgressBlockedError)
  })

  it('rejects network failures and aborts as fetch does', async () => {
    const { url } = await serve(() => {})
    await assert.rejects(
      client({ resolve: () => Promise.reject(new Error('no')) }).fetch('http://name.test'),
      TypeError,
    )
    await assert.rejects(client().fetch('http://127.0.0.1:1/'), TypeError)
    await assert.rejects(client().fetch(url, { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' })
    await assert.rejects(client().fetch(url, { signal: AbortSignal.abort() }), { name: 'AbortError' })
    await assert.rejects(client({ fetchIdleTimeoutMs: 100 }).fetch(url), TypeError)
  })

  it('tries the other addresses of a name when one refuses the connection', async () => {
    const server = await serve(ok)
    const { fetch } = client({ allowHosts: '127.0.0.0/8', resolve: async () => ['127.0.0.2', '127.0.0.1'] })
    const response = await fetch(`http://two.test:${server.port}/`, { method: 'POST', body: 'x' })
    assert.equal(await response.text(), 'ok')
  })

  it('shares connections with request', async () => {
    const server = await serve(ok)
    const egress = client()
    for (let i = 0; i < 5; i++) {
      await call(egress, server.url)
      await (await egress.fetch(server.url)).text()
    }
    assertReused(server)
  })

  it('a closed client rejects, also while a body streams', async () => {
    const { url } = await serve((_request, response) => response.write('x'))
    const egress = client()
    const response = await egress.fetch(url)
    const text = response.text()
    await egress.close()
    await assert.rejects(text)
    await assert.rejects(egress.fetch(url), TypeError)
  })
})
