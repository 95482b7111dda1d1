import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { createHttp } from '#core/http/adapter.ts'
import { mountPackages } from '#core/http/packages.ts'
import { openServer } from '#core/http/server.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const run = promisify(execFile)
const root = path.resolve(import.meta.dirname, '../..')
const { version } = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8'))

type Entry = { name: string; version: string; path: string; immutable_path: string; size: number; sha256: string }

describe('packages', () => {
  const app = forSuite(startApp)
  const get = (at: string, headers: Record<string, string> = {}) => fetch(`${app.url}${at}`, { headers })
  const index = async (): Promise<Entry[]> => ((await (await get('/packages/index.json')).json()) as any).packages

  it('are listed with name, version, size and checksum', async () => {
    const packages = await index()
    assert.deepEqual(
      packages.map(each => [each.name, each.version, each.path]),
      [
        ['@muster/client', version, '/packages/client.tgz'],
        ['@muster/cli', version, '/packages/cli.tgz'],
        ['@muster/cli', version, '/packages/muster.mjs'],
        ['muster-client', version, `/packages/muster_client-${version}-py3-none-any.whl`],
      ],
    )
    const page = fs.readFileSync(path.join(root, 'docs/install.md'), 'utf8')
    for (const { path: at, size, sha256 } of packages) {
      assert.ok(page.includes(`$BASE_URL${at}`), `${at} is not in docs/install.md`)
      const content = Buffer.from(await (await get(at)).arrayBuffer())
      assert.deepEqual([content.length, createHash('sha256').update(content).digest('hex')], [size, sha256], at)
    }
  })

  it('are revalidated under their names, and cached permanently under paths with version and hash', async () => {
    for (const { path: at, immutable_path, sha256 } of await index()) {
      assert.ok(immutable_path.startsWith(`/packages/${version}-${sha256.slice(0, 16)}/`), immutable_path)
      for (const [address, caching] of [
        [at, 'no-cache'],
        [immutable_path, 'public, max-age=31536000, immutable'],
      ]) {
        const response = await get(address)
        await response.arrayBuffer()
        assert.deepEqual([response.status, response.headers.get('cache-control')], [200, caching])
        const tag = response.headers.get('etag') as string
        assert.equal(tag, `"${sha256}"`)
        assert.equal((await get(address, { 'if-none-match': tag })).status, 304)
        const head = await fetch(`${app.url}${address}`, { method: 'HEAD' })
        assert.deepEqual(
          [head.status, head.headers.get('content-length')],
          [200, response.headers.get('content-length')],
        )
      }
    }
  })

  it('are sent to any caller without a statement', async () => {
    const before = app.statements.length
    for (const { path: at } of await index())
      assert.equal((await get(at, { authorization: 'Bearer nonsense' })).status, 200)
    assert.equal(app.statements.length, before)
  })

  it('refuse other paths, and name the command where they are not built', async () => {
    for (const at of [
      '/packages',
      '/packages/',
      '/packages/client',
      '/packages/..%2fpackage.json',
      '/packages/0.0.0-x/cli.tgz',
    ]) {
      const response = await get(at)
      const { error } = (await response.json()) as any
      assert.deepEqual([response.status, error.code], [404, 'RESOURCE_NOT_FOUND'], at)
    }
    const http = createHttp(app.services, [], each => mountPackages(each, path.join(tmpdir(), 'no-packages')))
    const server = openServer(http, { docsBaseUrl: '', log: app.services.log })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    try {
      const { port } = server.address() as { port: number }
      const response = await fetch(`http://127.0.0.1:${port}/packages/client.tgz`)
      const { error } = (await response.json()) as any
      assert.deepEqual([response.status, error.code], [404, 'RESOURCE_NOT_FOUND'])
      assert.match(error.message, /npm run build/)
    } finally {
      server.close()
      server.closeAllConnections()
    }
  })

  it('contain the licenses of the packages in them, and nothing that needs a registry', async () => {
    const folder = fs.mkdtempSync(path.join(tmpdir(), 'packages-'))
    try {
      for (const name of ['client', 'cli']) {
        const target = path.join(folder, name)
        fs.mkdirSync(target)
        await run('tar', ['-xzf', path.join(root, `packages/dist/${name}.tgz`), '-C', target])
        const manifest = JSON.parse(fs.readFileSync(path.join(target, 'package/package.json'), 'utf8'))
        assert.deepEqual([manifest.dependencies, manifest.scripts, manifest.version], [undefined, undefined, version])
        assert.match(fs.readFileSync(path.join(target, 'package/LICENSE'), 'utf8'), /Apache License/)
      }
      const licenses = fs.readFileSync(path.join(folder, 'cli/package/THIRD-PARTY-LICENSES'), 'utf8')
      const program = fs.readFileSync(path.join(root, 'packages/dist/muster.mjs'), 'utf8')
      for (const name of ['commander', 'yaml'])
        for (const text of [licenses, program]) assert.match(text, new RegExp(`^${name} \\d+\\.\\d+\\.\\d+$`, 'm'))
    } finally {
      fs.rmSync(folder, { recursive: true })
    }
  })
})
