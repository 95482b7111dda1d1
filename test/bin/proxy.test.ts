import assert from 'node:assert/strict'
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import http, { type IncomingMessage } from 'node:http'
import https from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { settingRows } from '#core/base/declared-settings.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { quietPort } from '../support/postgres.ts'
import { root } from '../support/processes.ts'
import { cert, key, TLS_HOST } from '../support/tls.ts'

const run = promisify(execFile)
const read = (file: string) => fs.readFileSync(path.join(root, 'deploy', file), 'utf8')
const PATH = `${process.env.PATH}:/usr/sbin:/usr/local/sbin`

/** Whether a program is on this machine; without it, the caller counts as skipped. */
const has = (program: string, ...args: string[]): Promise<boolean> =>
  run(program, args, { env: { PATH } }).then(
    () => true,
    () => {
      console.log(`proxy: skipped, no ${program}`)
      return false
    },
  )

/** Returns the text with its only occurrence of another text replaced. */
function replaced(text: string, from: string, to: string): string {
  assert.equal(text.split(from).length, 2, from)
  return text.replace(from, to)
}

const defaultOf = (name: string) => settingRows().find(each => each.name === name)?.default ?? assert.fail(name)

describe('reverse proxies', function () {
  this.timeout(60_000)

  it('forward to the default port of web, and outlast waits and comments of streams', () => {
    for (const file of ['nginx.conf', 'Caddyfile']) {
      assert.ok(read(file).includes(`127.0.0.1:${defaultOf('PORT')}`), file)
      assert.equal(read(file).split('{').length, read(file).split('}').length)
    }
    const seconds = Number(/proxy_read_timeout (\d+)s;/.exec(read('nginx.conf'))?.[1])
    assert.ok(seconds > Number(defaultOf('SYNC_WAIT_SECONDS')))
    assert.ok(seconds * 1000 > Number(defaultOf('STREAM_PING_INTERVAL_MS')))
    assert.ok(60_000 < Number(defaultOf('HTTP_KEEP_ALIVE_MS')))
  })

  it('of Caddy has a valid configuration', async function () {
    if (!(await has('caddy', 'version'))) return this.skip()
    await run('caddy', ['validate', '--adapter', 'caddyfile', '--config', path.join(root, 'deploy/Caddyfile')], {
      env: { PATH },
    })
  })

  it('of nginx keep web processes in use that answer requests of one caller with 503', async function () {
    if (!(await has('nginx', '-v'))) return this.skip()
    const folder = fs.mkdtempSync(path.join(tmpdir(), 'muster-proxy-'))
    const webs = await Promise.all(
      [1, 2].map(async () => {
        const web = http.createServer((request, response) =>
          response.writeHead(request.url === '/busy' ? 503 : 200).end(),
        )
        await once(web.listen(0, '127.0.0.1'), 'listening')
        return web
      }),
    )
    const port = await quietPort()
    const lineOf = (rest: string, web: http.Server) => `server 127.0.0.1:${(web.address() as AddressInfo).port}${rest};`
    const server = read('nginx.conf')
      .replace(/server 127\.0\.0\.1:5047(.*);/, (_line, rest) => webs.map(web => lineOf(rest, web)).join(' '))
      .replace('listen 443 ssl', `listen 127.0.0.1:${port}`)
      .replace(/ssl_certificate.*;/g, '')
    const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
      .map(each => `${each}_temp_path ${folder}/${each};`)
      .join(' ')
    fs.writeFileSync(path.join(folder, 'server.conf'), server)
    fs.writeFileSync(
      path.join(folder, 'main.conf'),
      `daemon off; pid ${folder}/pid; error_log stderr; events {}
      http { access_log off; ${temporary} include ${folder}/server.conf; }`,
    )
    const nginx = spawn('nginx', ['-e', 'stderr', '-p', folder, '-c', `${folder}/main.conf`], {
      env: { PATH },
      stdio: 'ignore',
    })
    try {
      const statusOf = async (at: string) => (await fetch(`http://127.0.0.1:${port}${at}`)).status
      await eventually(() => statusOf('/').catch(() => null), { what: 'nginx' })
      for (let n = 0; n < 3; n++) assert.equal(await statusOf('/busy'), 503)
      for (let n = 0; n < 3; n++) assert.equal(await statusOf('/other'), 200)
    } finally {
      nginx.kill('SIGTERM')
      await once(nginx, 'exit')
      for (const web of webs) web.close()
      fs.rmSync(folder, { recursive: true })
    }
  })

  describe('of nginx', () => {
    let folder: string
    let nginx: ChildProcess
    let app: TestApp
    let port: number
    const errors: string[] = []

    before(async function () {
      if (!(await has('nginx', '-v'))) return this.skip()
      app = await startApp({ env: { TRUST_PROXY: '1', STREAM_PING_INTERVAL_MS: '200' } })
      folder = fs.mkdtempSync(path.join(tmpdir(), 'muster-proxy-'))
      port = await quietPort()
      const file = (name: string, text = '') => {
        fs.writeFileSync(path.join(folder, name), text)
        return path.join(folder, name)
      }
      let server = read('nginx.conf')
      server = replaced(server, '127.0.0.1:5047', new URL(app.url).host)
      server = replaced(server, 'listen 443 ssl', `listen 127.0.0.1:${port} ssl`)
      server = replaced(server, '/etc/ssl/muster.pem', file('cert.pem', cert))
      server = replaced(server, '/etc/ssl/muster.key', file('key.pem', key))
      const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
        .map(each => `${each}_temp_path ${folder}/${each};`)
        .join(' ')
      const user = process.getuid?.() === 0 ? 'user root;' : ''
      const main = `daemon off; pid ${folder}/pid; error_log stderr; ${user} events {}
        http { access_log off; ${temporary} include ${file('server.conf', server)}; }`
      const args = ['-e', 'stderr', '-p', folder, '-c', file('main.conf', main)]
      nginx = spawn('nginx', args, { env: { PATH }, stdio: ['ignore', 'ignore', 'pipe'] })
      nginx.stderr?.on('data', part => errors.push(String(part)))
      await eventually(
        async () => {
          assert.equal(nginx.exitCode, null, errors.join(''))
          return (await answer('GET', '/healthz').catch(() => null))?.status === 200
        },
        { what: 'nginx' },
      )
    })
    after(async () => {
      if (nginx?.exitCode === null) {
        nginx.kill('SIGTERM')
        await once(nginx, 'exit')
      }
      await app?.close()
      if (folder) fs.rmSync(folder, { recursive: true })
    })

    const open = async (method: string, at: string, headers: Record<string, string> = {}, body?: string) => {
      const request = https.request(`https://127.0.0.1:${port}${at}`, {
        method,
        headers: { authorization: `Bearer ${app.admin.token}`, ...headers },
        ca: cert,
        servername: TLS_HOST,
        agent: false,
      })
      request.end(body)
      return ((await once(request, 'response')) as [IncomingMessage])[0]
    }
    const answer = async (method: string, at: string, headers: Record<string, string> = {}, body?: object) => {
      const json = body && { ...headers, 'content-type': 'application/json' }
      const response = await open(method, at, json || headers, body && JSON.stringify(body))
      let text = ''
      for await (const part of response) text += part
      return { status: response.statusCode, body: text.startsWith('{') ? JSON.parse(text) : text }
    }

    it('passes on comments of a stream while it is open', async () => {
      const project = await app.project()
      const stream = await open('GET', `/api/v1/activity/stream?project_id=${project.id}`)
      assert.equal(stream.statusCode, 200)
      let text = ''
      stream.on('data', part => (text += part))
      const comments = () => text.split('\n').filter(line => line.startsWith(':')).length
      await eventually(() => comments() >= 3, { what: 'comments' })
      assert.equal(stream.complete, false)
      stream.destroy()
    })

    it('passes on bodies of more than 1 MB', async () => {
      const { id: project_id } = await app.project()
      const content = Buffer.alloc(2 * 1024 * 1024, 'x').toString('base64')
      const file = { project_id, content, filename: 'x.txt', content_type: 'text/plain' }
      const { status, body } = await answer('POST', '/api/v1/files/upload/base64', {}, file)
      assert.equal(status, 201, JSON.stringify(body))
    })

    it('passes on the address of its client, not an address that the client sends', async () => {
      const forwarded = { 'x-forwarded-for': '203.0.113.9', 'idempotency-key': 'x' }
      const made = await answer('POST', '/api/v1/projects', forwarded, { name: 'x' })
      assert.equal(made.status, 201)
      const entries = await app.rows(`select ip from audit_entries where resource_public_id = $1`, [made.body.id])
      assert.deepEqual(entries, [{ ip: '127.0.0.1' }])
    })
  })
})
