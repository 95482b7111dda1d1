import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer, request, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { startApp, type TestApp } from '../support/app.ts'
import { loadBeside } from '../support/modules.ts'
import { fixtures } from './conformance/fixtures.ts'

const root = path.resolve(import.meta.dirname, '../..')

/**
 * The conformance suites of the protocol against the real endpoint, with the tools that they require. A proxy
 * adds the credential. Expected failures, for features that are not offered, are in conformance/expected-failures-*.yml.
 */
describe('conformance of /mcp', () => {
  let app: TestApp
  let unload: () => void
  let proxy: Server
  let url: string
  let results: string
  before(async () => {
    unload = loadBeside(fixtures)
    app = await startApp({ env: { CORS_ALLOWED_ORIGINS: 'http://localhost,http://127.0.0.1' } })
    const { key } = await app.project()
    proxy = createServer((req, res) => {
      const headers = { ...req.headers, authorization: `Bearer ${key.token}` }
      // The suite's own page is an origin that a deployment allows.
      if (/^http:\/\/(localhost|127\.0\.0\.1)(:\d+)?$/.test(headers.origin ?? '')) headers.origin = 'http://localhost'
      const to = request(`${app.url}${req.url}`, { method: req.method, headers }, answer => {
        res.writeHead(answer.statusCode ?? 502, answer.headers)
        answer.pipe(res)
      })
      to.on('error', () => res.destroy())
      res.on('close', () => to.destroy())
      req.pipe(to)
    })
    await new Promise<void>(resolve => proxy.listen(0, '127.0.0.1', resolve))
    url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}/mcp`
    results = await mkdtemp(path.join(tmpdir(), 'conformance-'))
  })
  after(async () => {
    proxy?.closeAllConnections()
    proxy?.close()
    await app?.close()
    unload?.()
    if (results) await rm(results, { recursive: true, force: true })
  })

  const run = async (name: string, revision: string, args: readonly string[]): Promise<void> => {
    const script = path.join(root, `node_modules/@modelcontextprotocol/${name}/dist/index.js`)
    const expected = path.join(import.meta.dirname, `conformance/expected-failures-${revision}.yml`)
    const all = ['server', '--url', url, '--expected-failures', expected, '-o', results, ...args]
    const child = spawn(process.execPath, [script, ...all], { cwd: results, stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', piece => (output += piece))
    const code = await new Promise(resolve => child.once('close', resolve))
    assert.equal(code, 0, output.slice(-6000))
  }

  it('holds for the revisions that begin with initialize', () => run('conformance', '2025', []))

  it('holds for 2026-07-28 and its tasks', () => run('conformance-next', '2026', ['--requirements', '2026-07-28']))
})
