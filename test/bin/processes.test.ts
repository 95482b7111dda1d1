import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdir, mkdtemp, rm, stat } from 'node:fs/promises'
import { createServer, request } from 'node:http'
import type net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openPool } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { launch, type Running, run } from '../support/commands.ts'
import { testEnvironment } from '../support/environment.ts'
import { cloneTemplate } from '../support/postgres.ts'

describe('web and worker processes', function () {
  this.timeout(60_000)

  let database: Awaited<ReturnType<typeof cloneTemplate>>
  const started: Running[] = []
  before(async () => {
    database = await cloneTemplate()
  })
  after(async () => {
    for (const { child } of started) child.kill('SIGKILL')
    await Promise.all(started.map(({ ended }) => ended))
    await database?.drop()
  })

  /** Starts a process and waits for its address: of the API, or of a worker's health. */
  async function ready(file: string, args: string[] = [], env: Record<string, string> = {}) {
    const running = launch(file, args, { ...testEnvironment(database.url), ...env })
    started.push(running)
    const port = await eventually(
      () => {
        assert.equal(running.child.exitCode, null, running.output.stdout + running.output.stderr)
        return /"(?:health_)?port":(\d+)[^\n]*is ready/.exec(running.output.stdout)?.[1]
      },
      { within: 50_000, what: `${file} to be ready` },
    )
    return { running, url: `http://127.0.0.1:${port}`, port: Number(port) }
  }

  const status = async (url: string) => (await fetch(url)).status

  /** A sign-in whose body is sent in two parts, so that it is in flight for as long as the test likes. */
  async function inFlight(port: number) {
    const body = JSON.stringify({ username: 'nobody', password: 'nothing' })
    const req = request({
      port,
      host: '127.0.0.1',
      method: 'POST',
      path: '/api/v1/users/login',
      headers: {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(body),
        // Answered as soon as the head has been read.
        expect: '100-continue',
      },
    })
    const answered = once(req, 'response').then(([res]) => {
      res.resume()
      return res.statusCode as number
    })
    req.flushHeaders()
    await once(req, 'continue')
    req.write(body.slice(0, 5))
    return { finish: () => req.end(body.slice(5)), answered }
  }

  it('say once at their start that the text search configuration is missing', async () => {
    const lines = async (env: Record<string, string>) => {
      const both = await Promise.all([ready('src/web.ts', [], env), ready('jobs/worker.ts', [], env)])
      const told = both.map(
        ({ running }) => running.output.stdout.match(/"klingon".*text search configuration not found/g)?.length,
      )
      for (const { running } of both) await running.stop()
      return told
    }
    assert.deepEqual(await lines({ KNOWLEDGE_TEXT_SEARCH_CONFIG: 'klingon' }), [1, 1])
    assert.deepEqual(await lines({ KNOWLEDGE_TEXT_SEARCH_CONFIG: 'english' }), [undefined, undefined])
  })

  it('a web process finishes requests in flight, answers 503 meanwhile and exits 0', async () => {
    const { running, url, port } = await ready('src/web.ts')
    assert.equal(await status(`${url}/healthz`), 200)
    assert.equal(await status(`${url}/readyz`), 200)
    const { finish, answered } = await inFlight(port)
    running.child.kill('SIGTERM')
    await eventually(async () => (await status(`${url}/readyz`)) === 503)
    assert.equal(await status(`${url}/healthz`), 200)
    const refused = await fetch(`${url}/api/v1/users/me`)
    assert.equal(refused.status, 503)
    const body = (await refused.json()) as { error: { code: string } }
    assert.equal(body.error.code, 'SERVICE_NOT_READY')
    finish()
    assert.equal(await answered, 401)
    assert.equal(await running.ended, 0)
  })

  it('a web process waits no longer than SHUTDOWN_GRACE_MS', async () => {
    const { running, port } = await ready('src/web.ts', [], { SHUTDOWN_GRACE_MS: '500' })
    const { answered } = await inFlight(port)
    const began = performance.now()
    assert.equal(await running.stop(), 0)
    // Its default is half a minute.
    assert.ok(performance.now() - began < 15_000)
    assert.equal(await answered, 503)
  })

  it('the SIGINT of a terminal and its echo through npm are one signal; a later signal ends the process immediately', async () => {
    const echoed = await ready('src/web.ts')
    const first = await inFlight(echoed.port)
    echoed.running.child.kill('SIGINT')
    await sleep(20)
    echoed.running.child.kill('SIGINT')
    await sleep(200)
    first.finish()
    assert.equal(await first.answered, 401)
    assert.equal(await echoed.running.ended, 0)

    const impatient = await ready('src/web.ts')
    const second = await inFlight(impatient.port)
    second.answered.catch(() => {})
    impatient.running.child.kill('SIGTERM')
    await eventually(() => impatient.running.output.stdout.includes('"msg":"shutdown started"'))
    await sleep(800)
    assert.equal(await impatient.running.stop(), 1)
  })

  it('a worker runs the concerns named, shows its health and leaves no heartbeat when it stops', async () => {
    const { running, url } = await ready('jobs/worker.ts', ['delivery', 'snapshot'], {
      WORKER_HEARTBEAT_INTERVAL_MS: '200',
    })
    assert.match(running.output.stdout, /"kinds":\["delivery","snapshot"\]/)
    const others = '"ingestion","generation","orchestration","trigger","evaluation"'
    await eventually(() => running.output.stdout.includes(`"concerns":[${others}]`), { what: 'orphaned work' })
    assert.equal(await status(`${url}/healthz`), 200)
    await eventually(async () => (await status(`${url}/readyz`)) === 200, { within: 10_000 })
    assert.equal(await running.stop(), 0, running.output.stdout.slice(-3000) + running.output.stderr)
    assert.match(running.output.stdout, /worker stopped/)
    const pool = await openPool({ databaseUrl: database.url, connections: 1 })
    assert.equal(await pool.oneFirst(sql.unsafe`select count(*) from worker_heartbeats where kinds <> '{}'`), 0)
    await pool.end()
  })

  it('a worker of runs writes its heartbeat file after each poll of its queues, and is not ready while it cannot', async () => {
    const folder = await mkdtemp(path.join(tmpdir(), 'muster-heartbeat-'))
    const file = path.join(folder, 'beat')
    const env = { ORCHESTRATION_WORKER_HEARTBEAT_FILE: file, ORCHESTRATION_WORKER_HEARTBEAT_STALE_MS: '12000' }
    const { running, url } = await ready('jobs/worker.ts', ['orchestration'], env)
    const check = async () => ((await (await fetch(`${url}/readyz`)).json()) as any).checks?.heartbeat_file
    const written = async () => (await stat(file).catch(() => null))?.mtimeMs ?? 0
    const first = await eventually(written)
    await eventually(async () => (await written()) > first, { what: 'another beat' })
    assert.equal(await check(), 'ok')
    await rm(folder, { recursive: true })
    const stale = async () => {
      const { error } = (await (await fetch(`${url}/readyz`)).json()) as any
      return error?.code === 'SERVICE_NOT_READY' && error.meta.checks.heartbeat_file === 'not written recently'
    }
    await eventually(stale, { what: 'the worker not ready' })
    assert.equal(await running.stop(), 0)
    await mkdir(folder)
    const other = await ready('jobs/worker.ts', ['snapshot'], env)
    const { checks } = (await (await fetch(`${other.url}/readyz`)).json()) as any
    assert.deepEqual([checks.worker, checks.heartbeat_file, await written()], ['ok', undefined, 0])
    assert.equal(await other.running.stop(), 0)
    await rm(folder, { recursive: true })
  })

  it('a worker of runs refuses to start with a queue driver that there is not; others do not need it', async () => {
    const env = { ORCHESTRATION_QUEUE_DRIVER: 'redis' }
    const refused = await run('jobs/worker.ts', ['delivery', 'orchestration'], {
      ...testEnvironment(database.url),
      ...env,
    })
    assert.equal(refused.code, 1)
    assert.match(refused.stdout, /ORCHESTRATION_QUEUE_DRIVER: must be postgres/)
    const { running } = await ready('jobs/worker.ts', ['delivery'], env)
    assert.equal(await running.stop(), 0)
  })

  it('a worker without arguments runs WORKER_KINDS', async () => {
    const { running } = await ready('jobs/worker.ts', [], { WORKER_KINDS: 'snapshot' })
    assert.match(running.output.stdout, /"kinds":\["snapshot"\]/)
    assert.equal(await running.stop(), 0)
  })

  it('a worker refuses a concern that does not exist', async () => {
    const { code, stderr } = await run('jobs/worker.ts', ['delivery', 'cooking'], testEnvironment(database.url))
    assert.equal(code, 1)
    assert.equal(
      stderr,
      'cooking: is not a worker concern; use one of delivery, ingestion, generation, orchestration, trigger, evaluation, snapshot\n',
    )
  })

  it('unusable settings are all named together, each in a line', async () => {
    for (const file of ['src/web.ts', 'jobs/worker.ts']) {
      const settings = { DATABASE_POOL_MAX: 'many', NODE_ENV: 'production', EGRESS_ALLOW_HOSTS: 'a b' }
      const { code, stderr } = await run(file, [], { ...testEnvironment(database.url), ...settings })
      assert.equal(code, 1)
      assert.deepEqual(stderr.split('\n').sort(), [
        '',
        'BASE_URL: is required in production',
        'DATABASE_POOL_MAX: must be an integer',
        'EGRESS_ALLOW_HOSTS: "a b" is not a host, host:port, *.suffix, IP or CIDR',
      ])
    }
  })

  it('a port that is taken ends the process', async () => {
    const blocker = createServer().listen(0, '127.0.0.1')
    await once(blocker, 'listening')
    const { port } = blocker.address() as net.AddressInfo
    const { code, stdout } = await run('src/web.ts', [], { ...testEnvironment(database.url), PORT: String(port) })
    assert.equal(code, 1)
    assert.match(stdout, /EADDRINUSE/)
    blocker.close()
  })
})
