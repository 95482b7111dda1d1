import assert from 'node:assert/strict'
import fs from 'node:fs'
import http from 'node:http'
import https from 'node:https'
import net, { type AddressInfo } from 'node:net'
import path from 'node:path'
import { json as answer, refusal, startScripted } from '../client/support.ts'
import { startApp } from '../support/app.ts'
import { cert, key, TLS_HOST } from '../support/tls.ts'
import { User } from './support.ts'

const EMPTY = { data: [], total: 0, limit: 20, offset: 0 }

/** A service with TLS and a certificate of an unknown authority. */
async function startSecure() {
  const server = https.createServer({ key, cert }, (_req, res) =>
    res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(EMPTY)),
  )
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return { server, port: (server.address() as AddressInfo).port }
}

/** A proxy that leads every tunnel to a port of this machine, and the addresses of its requests. */
async function startProxy(port: number) {
  const asked: string[] = []
  const server = http.createServer((_req, res) => res.writeHead(405).end())
  server.on('connect', (req, client) => {
    asked.push(req.url as string)
    const upstream = net.connect(port, '127.0.0.1', () => {
      client.write('HTTP/1.1 200 OK\r\n\r\n')
      client.pipe(upstream).pipe(client)
    })
    for (const each of [client, upstream]) each.on('error', () => upstream.destroy())
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return { server, asked, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
}

describe('the command line and the network', function () {
  this.timeout(60_000)
  let secure: Awaited<ReturnType<typeof startSecure>>
  let proxy: Awaited<ReturnType<typeof startProxy>>
  let user: User
  before(async () => {
    secure = await startSecure()
    proxy = await startProxy(secure.port)
  })
  beforeEach(() => {
    user = new User(`https://${TLS_HOST}:${secure.port}`)
    proxy.asked.length = 0
  })
  afterEach(() => user.close())
  after(() => {
    for (const { server } of [secure, proxy]) {
      server?.close()
      server?.closeAllConnections()
    }
  })
  const list = (env: Record<string, string> = {}) => user.run(['agents', 'list'], { env })

  it('uses the proxy of HTTPS_PROXY, the authority of ca_file, and no proxy for hosts of NO_PROXY', async () => {
    const env = { HTTPS_PROXY: proxy.url }
    const untrusted = await list(env)
    assert.equal(untrusted.code, 10)
    assert.match(untrusted.stderr, /Step: TLS of https:\/\/tls\.test/)
    assert.equal((await user.run(['profile', 'set', 'ca_file', user.file('ca.pem', cert)])).code, 0)
    const { code, stdout, stderr } = await list(env)
    assert.equal(code, 0, stderr)
    assert.deepEqual(JSON.parse(stdout), EMPTY)
    assert.ok(proxy.asked.length >= 2)
    assert.deepEqual([...new Set(proxy.asked)], [`${TLS_HOST}:${secure.port}`])
    proxy.asked.length = 0
    // The host has no address, which only a proxy may resolve.
    for (const direct of [{}, { ...env, NO_PROXY: TLS_HOST }]) {
      const failed = await list(direct)
      assert.equal(failed.code, 10)
      assert.match(failed.stderr, /Step: resolve/)
    }
    assert.deepEqual(proxy.asked, [])
  })

  it('names the step when the proxy does not answer', async () => {
    const { code, stderr } = await list({ HTTPS_PROXY: 'http://127.0.0.1:1' })
    assert.equal(code, 10)
    assert.match(stderr, /Step: connect/)
  })

  it('names a ca_file that cannot be read', async () => {
    await user.run(['profile', 'set', 'ca_file', path.join(user.directory, 'none.pem')])
    const { code, stderr } = await list()
    assert.equal(code, 1)
    assert.match(stderr, /ca_file cannot be read: .*none\.pem/)
  })

  it('notes once a day for each profile that the service has another version', async () => {
    const headers = { 'x-muster-version': '7.8.9' }
    const scripted = await startScripted(answer(EMPTY, { headers }))
    const lines = async (...args: string[]) => {
      const { stderr } = await user.run(['agents', 'list', '--url', scripted.url, ...args])
      return stderr.split('\n').filter(line => line.includes('7.8.9'))
    }
    assert.deepEqual(await lines('--quiet'), [])
    assert.deepEqual(await lines('--json'), [])
    const [line, ...more] = await lines()
    assert.match(line, /this is version \d+\.\d+\.\d+, the service has 7\.8\.9; muster profile sync/)
    assert.deepEqual(more, [])
    assert.deepEqual(await lines(), [])
    const file = path.join(user.env.MUSTER_CONFIG_DIR, 'cache/default/version-noted')
    const yesterday = Date.now() / 1000 - 25 * 3600
    fs.utimesSync(file, yesterday, yesterday)
    assert.equal((await lines()).length, 1)
    await user.run(['profile', 'set', 'url', scripted.url, '--profile', 'other'])
    assert.equal((await lines('--profile', 'other')).length, 1)
    await scripted.close()

    const refused = await startScripted(refusal(404, 'AGENT_NOT_FOUND', headers))
    fs.rmSync(file)
    const { code, stderr } = await user.run(['agents', 'get', 'agent_1', '--url', refused.url])
    assert.equal(code, 5)
    assert.match(stderr, /the service has 7\.8\.9/)
    await refused.close()
  })

  it('shows no version and stores no commands of an address that is not the service', async () => {
    const page = { body: '<title>Shop</title>', headers: { 'content-type': 'text/html' } }
    const other = { body: JSON.stringify({ openapi: '3.1.0', info: { title: 'Shop', version: '2.0.0' } }) }
    for (const [served, status] of [
      [page, 200],
      [{ ...page, status: 404 }, 404],
      [other, 200],
    ] as const) {
      const scripted = await startScripted(served)
      const { code, stdout, stderr } = await user.run(['version', '--json', '--url', scripted.url])
      assert.deepEqual([code, JSON.parse(stdout).server], [10, null])
      assert.ok(stderr.includes(`no service of Muster answers at this address (status ${status})`), stderr)
      assert.ok(stderr.includes(scripted.url), stderr)
      const sync = await user.run(['profile', 'sync', '--url', scripted.url])
      assert.deepEqual([sync.code, /no service|answered 404/.test(sync.stderr)], [10, true], sync.stderr)
      await scripted.close()
    }
  })

  it('notes no difference of the patch, and the service names its version to clients only', async () => {
    const app = await startApp()
    const answered = (headers: Record<string, string>) => fetch(`${app.url}/api/v1/agents`, { headers })
    assert.equal((await answered({})).headers.get('x-muster-version'), null)
    const version = (await answered({ 'x-muster-client': '1.0.0/node' })).headers.get('x-muster-version') as string
    assert.match(version, /^\d+\.\d+\.\d+$/)
    const key = await app.project()
    const own = new User(app.url, key.key.token)
    assert.equal((await own.run(['agents', 'list'])).stderr, '')
    own.close()
    await app.close()

    const patched = version.replace(/\d+$/, patch => String(Number(patch) + 1))
    const scripted = await startScripted(answer(EMPTY, { headers: { 'x-muster-version': patched } }))
    assert.equal((await user.run(['agents', 'list', '--url', scripted.url])).stderr, '')
    await scripted.close()
  })
})
