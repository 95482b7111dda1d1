import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import net, { type AddressInfo } from 'node:net'
import { sql } from '#core/db/sql.ts'
import { eventually, startApp } from '../support/app.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { startProcess } from '../support/processes.ts'
import { startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'

const PASSWORD = 'a-password-nobody-logs'
const VALUE = 'a-secret-value-nobody-logs'
const VENDOR_KEY = 'sk-vendor-key-nobody-logs-0123456789'
const PROMPT = 'a-prompt-nobody-logs'
const URL_TOKEN = 'a-token-in-a-url-nobody-logs'

/** A vendor that refuses every call and says the key it got, as careless vendors do. */
async function startVendor(): Promise<{ url: string; calls: () => number; close(): Promise<void> }> {
  let calls = 0
  const server = createServer((request, response) => {
    calls++
    request.resume()
    response.statusCode = 401
    response.setHeader('content-type', 'application/json')
    response.end(JSON.stringify({ error: { message: `Incorrect key: ${request.headers.authorization}` } }))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    calls: () => calls,
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

describe('log lines', () => {
  const receiver = forSuite(startReceiver)
  const vendor = forSuite(startVendor)
  const app = forSuite(() =>
    startApp({
      env: { LOG_LEVEL: 'trace', METRICS_TOKEN: 'a-metrics-token-nobody-logs' },
      workers: ['delivery', 'ingestion', 'generation', 'snapshot'],
    }),
  )
  const project = forSuite(() => app.project())
  /** Whatever must not be in any line. */
  const secrets = [PASSWORD, VALUE, VENDOR_KEY, PROMPT, URL_TOKEN]
  before(async () => {
    secrets.push(app.admin.token as string, project.key.token as string, 'a-metrics-token-nobody-logs')
  })

  /** Keeps every value of an answer that is a secret. */
  const note = (...values: unknown[]) => secrets.push(...values.map(value => String(value)))

  it('hold nothing of users and their passwords', async () => {
    const username = 'logged-user'
    await app.admin.post('/users', { username, password: PASSWORD })
    await app.admin.post('/users', { username, password: PASSWORD })
    await app.admin.post('/users', { username: '', password: PASSWORD, [PASSWORD]: PASSWORD })
    await app.anonymous.post('/users/bootstrap', { username, password: PASSWORD })
    await app.anonymous.post('/users/login', { username, password: `${PASSWORD}!` })
    await app.anonymous.post(`/users/login?password=${PASSWORD}`, { username, password: PASSWORD, extra: PASSWORD })
    await app.anonymous.post('/users/login', `{"username":"${username}","password":"${PASSWORD}`)
    const { body } = await app.anonymous.post('/users/login', { username, password: PASSWORD })
    note(body.token)
    const changed = await app
      .as(body.token)
      .put('/users/me/password', { current_password: PASSWORD, new_password: `${PASSWORD} two` })
    assert.equal(changed.status, 200, JSON.stringify(changed.body))
    note(changed.body.token)
    await app.as(body.token).get('/users/me')
  })

  it('hold no credential, wherever it was put', async () => {
    const made = await app.admin.post('/project-keys', { project_id: project.id }, { 'idempotency-key': 'logged' })
    await app.admin.post('/project-keys', { project_id: project.id }, { 'idempotency-key': 'logged' })
    const key = made.body.secret as string
    note(key)
    const rotated = await app.admin.post(`/project-keys/${made.body.id}/rotate`, { grace_seconds: 60 })
    note(rotated.body.secret)
    for (const token of [key, app.admin.token as string]) {
      await app.anonymous.get(`/projects?access_token=${token}&api_key=${token}`)
      await app.anonymous.get(`/projects/${token}`)
      await app.admin.get(`/projects/${token}`)
      await app.admin.get(`/${token}/x`)
      await app.anonymous.get(`//${token}`)
      await app.admin.post(`/projects/${token}/pause`, { reason: token })
      await app.admin.post('/actors', { project_id: token, name: 'x' })
      await app.admin.get('/projects', { 'x-request-id': token, 'user-agent': token, cookie: `session=${token}` })
      await app.as(`${token}x`).get('/projects')
      await app.anonymous.get('/projects', { authorization: `Basic ${token}`, 'x-api-key': token })
      await app.anonymous.post('/users/login', { token })
      const { port } = new URL(app.url)
      await new Promise<void>(resolve => {
        const socket = net.connect(Number(port), '127.0.0.1')
        socket.setTimeout(300, () => socket.destroy())
        socket.on('error', () => {})
        socket.on('close', () => resolve())
        socket.resume()
        socket.write(`GET /${token} GARBAGE ${token}\r\nAuthorization: Bearer ${token}\r\n\r\n`)
      })
    }
    await app.anonymous.get('//metrics', { authorization: 'Bearer a-metrics-token-nobody-logs' })
    await app.anonymous.get('//metrics?token=a-metrics-token-nobody-logs')
  })

  it('hold no value of a secret', async () => {
    const { body: secret } = await project.key.post('/secrets', { name: 's', value: VALUE })
    await project.key.post('/secrets', { name: 's', value: VALUE })
    await project.key.post('/secrets', { name: '', value: VALUE, [VALUE]: { value: VALUE } })
    await project.key.patch(`/secrets/${secret.id}`, { value: `${VALUE} two` })
    await project.key.post(`/secrets/${secret.id}/rollback`)
    await project.key.get(`/secrets?name=${VALUE}&limit=0`)
    await app.anonymous.post('/secrets', { name: 's', value: VALUE })
  })

  it('hold no webhook secret and nothing of the address, in requests and in deliveries', async () => {
    const url = `${receiver.url}?token=${URL_TOKEN}`
    const hook = await project.key.post('/webhooks', { name: 'h', url, events: ['actors.*'] })
    const gone = await project.key.post('/webhooks', {
      name: 'gone',
      url: `http://127.0.0.1:9/?token=${URL_TOKEN}`,
      events: ['actors.*'],
    })
    const rotated = await project.key.post(`/webhooks/${hook.body.id}/rotate-secret`)
    const read = await project.key.get(`/webhooks/${hook.body.id}/secret`)
    note(hook.body.secret, gone.body.secret, rotated.body.secret, read.body.secret)
    await project.key.post('/webhooks', { name: 'h', url: `http://user:${PASSWORD}@127.0.0.1/`, events: ['*'] })
    await project.key.post('/actors', { name: 'delivered', instructions: PROMPT })
    await eventually(() => receiver.requests.length > 0)
    await eventually(() => app.logs.some(line => line.includes('delivery attempt') && line.includes(gone.body.id)))
  })

  it('hold no provider key, nothing of a prompt and nothing of an answer', async () => {
    const { body: secret } = await project.key.post('/secrets', { name: 'vendor', value: VENDOR_KEY })
    const provider = await project.key.post('/ai-providers', {
      name: 'p',
      provider: 'openai',
      default_model: 'm',
      base_url: vendor.url,
      secret_id: secret.id,
    })
    assert.equal(provider.status, 201, JSON.stringify(provider.body))
    await project.key.post('/ai-providers', {
      name: 'inline',
      provider: 'bedrock',
      default_model: 'm',
      config: { region: 'x', access_key_id: VALUE, secret_access_key: VALUE, surprise: VALUE },
    })
    await project.key.post(`/ai-providers/${provider.body.id}/check`)
    await project.key.get(`/ai-providers/${provider.body.id}/models`)
    const { body: agent } = await project.key.post('/agents', {
      name: 'a',
      ai_provider_id: provider.body.id,
      instructions: PROMPT,
    })
    const turn = await project.key.post(`/agents/${agent.id}/generate?wait=true`, { prompt: PROMPT })
    assert.ok(turn.status >= 400)
    assert.ok(vendor.calls() > 0)
    assert.ok(!JSON.stringify(turn.body).includes(VENDOR_KEY))
    await eventually(() => app.logs.some(line => line.includes('"work":"turn.execute"')))
  })

  it('hold nothing of a request or a row when the server fails', async () => {
    const { pool } = app.services
    await pool.query(
      sql.unsafe`alter table actors add constraint refused check (instructions <> ${sql.literalValue(PROMPT)}) not valid`,
    )
    const refused = await project.key.post('/actors', { name: 'x', instructions: PROMPT, metadata: { VALUE } })
    assert.equal(refused.status, 500)
    await pool.query(sql.unsafe`alter table secrets rename to secrets_elsewhere`)
    const failed = await project.key.post('/secrets', { name: 'x', value: VALUE })
    assert.equal(failed.status, 500)
    await pool.query(sql.unsafe`alter table secrets_elsewhere rename to secrets`)
    for (const reply of [refused, failed])
      assert.ok(
        app.logs.some(
          line => line.includes('"level":"error"') && line.includes(reply.headers.get('x-request-id') as string),
        ),
      )
  })

  it('so far hold none of them', () => {
    assert.ok(app.logs.length > 60)
    assert.ok(secrets.length > 12)
    for (const secret of secrets) {
      assert.ok(secret.length > 12)
      for (const line of app.logs) assert.ok(!line.includes(secret), `${secret} in ${line}`)
    }
  })

  it('are exactly one for each request, under its request id, with method, path, status and time', async () => {
    const cases: [string, Promise<unknown>][] = [
      ['line-200', project.key.get('/actors?name=x', { 'x-request-id': 'line-200' })],
      ['line-201', project.key.post('/actors', { name: 'x' }, { 'x-request-id': 'line-201' })],
      ['line-400', project.key.post('/actors', '{', { 'x-request-id': 'line-400' })],
      ['line-401', app.anonymous.get('/actors', { 'x-request-id': 'line-401' })],
      ['line-403', project.key.post('/users', {}, { 'x-request-id': 'line-403' })],
      ['line-404', project.key.get('/actors/missing', { 'x-request-id': 'line-404' })],
      ['line-404b', project.key.get('/no/such/route', { 'x-request-id': 'line-404b' })],
      ['line-404c', app.anonymous.get('//elsewhere', { 'x-request-id': 'line-404c' })],
      ['line-stream', app.admin.get(`/audit-log/export?project_id=${project.id}`, { 'x-request-id': 'line-stream' })],
    ]
    await Promise.all(cases.map(([, sent]) => sent))
    const linesOf = (id: string) => app.logs.filter(line => line.includes(`"request_id":"${id}"`))
    await eventually(() => cases.every(([id]) => linesOf(id).length > 0), { what: 'a line for each' })
    for (const [id] of cases) {
      const lines = linesOf(id).map(line => JSON.parse(line))
      assert.equal(lines.length, 1, `${id} ${JSON.stringify(lines)}`)
      const [line] = lines
      assert.equal(line.msg, 'request')
      assert.equal(typeof line.ms, 'number')
      assert.ok(line.method && line.path.startsWith('/') && !line.path.includes('?'), JSON.stringify(line))
      const status = /\d{3}/.exec(id)?.[0]
      if (status) assert.equal(line.status, Number(status))
    }
  })

  it('are JSON objects with a level and a time', () => {
    for (const line of app.logs) {
      const parsed = JSON.parse(line)
      assert.match(parsed.level, /^(trace|debug|info|warn|error)$/)
      assert.match(parsed.time, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
    }
  })
})

describe('the output of a process', () => {
  it('holds none of its settings that are secret', async () => {
    const database = await cloneTemplate()
    const env = {
      LOG_LEVEL: 'trace',
      JWT_SECRET: 'the-jwt-secret-nobody-prints-0123456789',
      SECRETS_ENCRYPTION_KEY: 'fedcba98'.repeat(8),
      METRICS_TOKEN: 'the-metrics-token-nobody-prints',
      ADMIN_USERNAME: 'root',
      ADMIN_PASSWORD: 'the-admin-password-nobody-prints',
    }
    const processes = []
    try {
      const web = await startProcess('web', database.url, env)
      processes.push(web)
      processes.push(await startProcess('worker', database.url, env))
      const login = await fetch(`${web.url}/api/v1/users/login`, {
        method: 'POST',
        body: JSON.stringify({ username: 'root', password: env.ADMIN_PASSWORD }),
      })
      const { token } = (await login.json()) as { token: string }
      assert.ok(token)
      await fetch(`${web.url}/api/v1/projects?token=${token}`, { headers: { authorization: `Bearer ${token}` } })
      for (const child of processes) await child.kill('SIGTERM')
      const password = new URL(database.url).password
      const values = [
        token,
        env.JWT_SECRET,
        env.SECRETS_ENCRYPTION_KEY,
        env.METRICS_TOKEN,
        env.ADMIN_PASSWORD,
        database.url,
        ...(password ? [`:${password}@`] : []),
      ]
      for (const { output } of processes) {
        assert.ok(output.length > 1)
        for (const line of output) for (const value of values) assert.ok(!line.includes(value), `${value} in ${line}`)
      }
    } finally {
      for (const child of processes) await child.kill()
      await database.drop()
    }
  })
})
