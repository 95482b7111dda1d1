import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { createHttp } from '#core/http/adapter.ts'
import { openServer } from '#core/http/server.ts'
import { mountConsole } from '#identity/console/mount.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const HTML = { accept: 'text/html,*/*' }
const dist = path.resolve(import.meta.dirname, '../../console/dist')

describe('the files of the console', () => {
  const app = forSuite(startApp)
  const get = (at: string, headers: Record<string, string> = HTML) => fetch(`${app.url}${at}`, { headers })

  it('are one page for all addresses, each answer with another nonce', async () => {
    const nonces = new Set<string>()
    for (const at of ['/app', '/app/', '/app/callback?code=x', '/app/p/proj_x/agents/agent_y?tab=versions']) {
      const response = await get(at)
      assert.equal(response.status, 200, at)
      const csp = response.headers.get('content-security-policy') as string
      for (const rule of [
        "default-src 'none'",
        "script-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        'trusted-types default',
      ])
        assert.ok(csp.split('; ').includes(rule), rule)
      const nonce = /style-src 'self' 'nonce-([\w-]{22})'/.exec(csp)?.[1] as string
      const page = await response.text()
      assert.ok(page.includes(`<meta nonce="${nonce}"`))
      assert.match(page, /<link rel="icon" href="data:/)
      nonces.add(nonce)
      const headers = ['cache-control', 'referrer-policy', 'cross-origin-opener-policy', 'x-content-type-options']
      assert.deepEqual(
        headers.map(name => response.headers.get(name)),
        ['no-store', 'no-referrer', 'same-origin', 'nosniff'],
      )
      assert.ok(!/<script(?![^>]*\bsrc=)/.test(page) && !/<style|style=|\son\w+=/.test(page), 'nothing is inline')
    }
    assert.equal(nonces.size, 4)
  })

  it('are cached by browsers permanently and sent compressed', async () => {
    const page = await (await get('/app')).text()
    const [script] = /\/app\/assets\/[\w-]+\.js/.exec(page) as RegExpExecArray
    const plain = await (await get(script, { 'accept-encoding': 'identity' })).text()
    for (const encoding of ['br', 'gzip']) {
      const response = await get(script, { 'accept-encoding': encoding })
      assert.equal(response.headers.get('content-encoding'), encoding)
      assert.match(response.headers.get('cache-control') as string, /immutable/)
      assert.equal(response.headers.get('content-type'), 'text/javascript; charset=utf-8')
      assert.equal(await response.text(), plain)
      const tag = response.headers.get('etag') as string
      assert.equal((await get(script, { 'if-none-match': tag })).status, 304)
    }
  })

  it('are not the page where a file is missing, and not for programs', async () => {
    for (const [at, headers] of [
      ['/app/assets/index-missing.js', HTML],
      ['/app/assets/..%2f..%2fpackage.json', HTML],
      ['/app/p/proj_x', { accept: 'application/json' }],
    ] as const) {
      const response = await get(at, headers)
      assert.equal(response.status, 404, at)
      assert.equal(((await response.json()) as any).error.code, 'RESOURCE_NOT_FOUND')
    }
    assert.equal((await fetch(`${app.url}/app`, { method: 'POST', headers: HTML })).status, 404)
  })

  it('include the settings that the page needs before anybody signs in', async () => {
    const response = await get('/app/config.json', {})
    const { version, ...config } = (await response.json()) as any
    assert.match(version, /^\d+\.\d+\.\d+$/)
    const { BASE_URL, DOCS_BASE_URL, HEADER_PREFIX } = app.config
    assert.deepEqual(config, {
      base_url: BASE_URL,
      docs_url: DOCS_BASE_URL,
      header_prefix: HEADER_PREFIX,
      oidc: false,
      bootstrap_open: false,
      idle_minutes: 30,
    })
    const count = app.statements.length
    await get('/app/config.json', {})
    assert.equal(app.statements.length, count, 'a flood of requests sends no statements')
  })

  const assets = path.join(dist, 'assets')
  const bytesOf = (names: Iterable<string>) =>
    [...names].reduce((sum, name) => sum + fs.statSync(path.join(assets, `${name}.gz`)).size, 0)
  /** Scripts and styles that files load, but those in `loaded`; with `later` also those that they load on demand. */
  const filesOf = (names: readonly string[], { later = false, loaded = new Set<string>() } = {}): Set<string> => {
    const files = new Set<string>()
    const load = (name: string): void => {
      if (files.has(name) || loaded.has(name)) return
      files.add(name)
      const text = fs.readFileSync(path.join(assets, name), 'utf8')
      for (const [, onDemand, imported] of text.matchAll(/(?:from|import)(\(?)\s*["'`]\.\/([\w.-]+\.js)["'`]/g))
        if (later || !onDemand) load(imported)
    }
    names.forEach(load)
    return files
  }
  const filesOfPage = (): string[] => {
    const page = fs.readFileSync(path.join(dist, 'index.html'), 'utf8')
    return [...page.matchAll(/\/app\/assets\/([\w-]+\.(?:js|css))/g)].map(([, name]) => name)
  }
  const filesOfViews = (): string[] => {
    const sources = fs.globSync('*/*.tsx', { cwd: path.join(dist, '../src/views') })
    const views = sources.map(name => path.basename(name, '.tsx'))
    return fs.readdirSync(assets).filter(name => views.includes(name.replace(/-[\w-]{8}\.js$/, '')))
  }

  it('fit the budget of the first load, sign-in to overview', () => {
    const overview = filesOfViews().find(name => name.startsWith('overview-')) as string
    const files = filesOf([...filesOfPage(), overview])
    assert.ok(bytesOf(files) < 340_000, `${bytesOf(files)} bytes`)
    assert.ok(files.size <= 16, [...files].join(' '))
    for (const name of fs.readdirSync(assets)) assert.match(name, /-[\w-]{8}\.(js|css|svg)(\.br|\.gz)?$/)
  })

  it('fit the budget of each view, including files that it loads on demand', () => {
    const loaded = filesOf(filesOfPage())
    const views = filesOfViews()
    assert.ok(views.length > 50, `${views.length} views`)
    for (const view of views) {
      const bytes = bytesOf(filesOf([view], { later: true, loaded }))
      assert.ok(bytes > 0 && bytes <= 100 * 1024, `${view}: ${bytes} bytes`)
    }
  })

  it('are missing with the remedy where nothing was built, and the log says so', async () => {
    const directory = fs.mkdtempSync(path.join(tmpdir(), 'console-'))
    const count = app.logs.length
    const http = createHttp(app.services, [], express => mountConsole(express, app.services, directory))
    const server = openServer(http, { docsBaseUrl: '', log: app.services.log })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    try {
      const { port } = server.address() as { port: number }
      const response = await fetch(`http://127.0.0.1:${port}/app`, { headers: HTML })
      assert.equal(response.status, 404)
      assert.match(((await response.json()) as any).error.message, /npm run build/)
      assert.equal(app.logs.slice(count).filter(line => line.includes('the console is not built')).length, 1)
    } finally {
      server.close()
      server.closeAllConnections()
      fs.rmdirSync(directory)
    }
  })

  it('are off with CONSOLE_ENABLED=false', async () => {
    const off = await startApp({ env: { CONSOLE_ENABLED: 'false' } })
    try {
      for (const at of ['/app', '/app/config.json', '/app/p/x'])
        assert.equal((await fetch(`${off.url}${at}`, { headers: HTML })).status, 404, at)
    } finally {
      await off.close()
    }
  })
})
