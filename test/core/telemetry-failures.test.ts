import assert from 'node:assert/strict'
import path from 'node:path'
import { json, startTarget, type Target } from '../execution/tool-target.ts'
import { client, eventually } from '../support/app.ts'
import { root, type TestProcess } from '../support/processes.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { assertBelow, startTracedApp, type TracedApp } from './telemetry-support.ts'

const RATIO_0 = { OTEL_TRACES_SAMPLER: 'parentbased_traceidratio', OTEL_TRACES_SAMPLER_ARG: '0' }
const FOREIGN = { trace: '0af7651916cd43dd8448eb211c80319c', id: 'b7ad6b7169203331' }
const TRACEPARENT = `00-${FOREIGN.trace}-${FOREIGN.id}-01`
/** Prints the packages of OpenTelemetry that a process loads. */
const WATCHED = ['--import', path.join(root, 'test/support/print-telemetry-modules.mjs')]

const stop = async (processes: TestProcess[]) => {
  for (const each of processes) await each.kill('SIGTERM')
}

describe('traces in bad conditions', function () {
  this.timeout(90_000)
  const app: TracedApp = forSuite(() => startTracedApp())
  const target: Target = forSuite(() => startTarget())
  const other: Target = forSuite(() => startTarget())

  beforeEach(() => {
    app.collector.spans.length = 0
    app.collector.hangs = false
    target.requests.length = 0
    other.requests.length = 0
    target.answer = json({ ok: true })
  })
  afterEach(() => assert.deepEqual(app.collector.problems, []))

  const bound = (name: string) => ({ tool: { name, execute: { url: `${target.url}/${name}` }, idempotent: true } })
  const generate = async (process: TestProcess, agent: string, prompt: string) => {
    const reply = await app.at(process).post(`/agents/${agent}/generate?wait=false`, { prompt })
    assert.equal(reply.status, 202, JSON.stringify(reply.body))
    return reply.body.generation_id as string
  }
  /** Spans that a process has not exported, by the reason. */
  const dropped = async (process: TestProcess, reason: string) => {
    const metrics: string = (await client(process.url, null).get('//metrics')).body
    const line = new RegExp(`^muster_telemetry_dropped_total\\{reason="${reason}"\\} (\\d+)$`, 'm')
    return Number(line.exec(metrics)?.[1] ?? 0)
  }
  const ended = (id: string) =>
    eventually(
      async () => {
        const { body } = await app.key.get(`/generations/${id}`)
        return ['completed', 'failed'].includes(body.status) ? body : null
      },
      { what: `end of ${id}`, within: 60_000 },
    )

  it('a worker that is killed in a turn leaves no span that says success; the next attempt continues the trace', async () => {
    const agent = await app.agent({ name: 'killed', tool_bindings: [bound('act')] })
    const web = await app.start('web')
    const first = await app.start('worker', { FAULT_POINTS: 'before_tool=kill' })
    const id = await generate(web, agent, scriptOf(toolCall('act'), { text: 'done' }))
    await first.exited
    const second = await app.start('worker')
    assert.equal((await ended(id)).status, 'completed')
    const turn = await app.span(({ name }) => name === 'invoke_agent killed', 'the second attempt')
    const server = await app.span(({ kind }) => kind === 'server', 'the request')
    assertBelow(turn, server)
    assert.deepEqual([turn.attributes['muster.attempt'], turn.attributes['muster.outcome']], [2, 'completed'])
    assert.equal(app.collector.named('invoke_agent killed').length, 1)
    for (const { name, trace } of app.collector.spans)
      if (/^(chat|execute_tool)/.test(name)) assert.equal(trace, turn.trace)
    await stop([web, second])
  })

  it('hosts receive the context of their request only if they are listed, and not after a redirect to another host', async () => {
    const agent = await app.agent({ name: 'calls', tool_bindings: [bound('act')] })
    const prompt = scriptOf(toolCall('act'), { text: 'done' })
    const web = await app.start('web')
    const silent = await app.start('worker')
    await ended(await generate(web, agent, prompt))
    assert.equal(target.last().headers.traceparent, undefined)
    await silent.kill('SIGTERM')
    app.collector.spans.length = 0

    const worker = await app.start('worker', { OTEL_PROPAGATE_HOSTS: '127.0.0.1,localhost' })
    target.answer = (_request, response) =>
      response.writeHead(307, { location: `http://localhost:${other.port}/elsewhere` }).end()
    await ended(await generate(web, agent, prompt))
    const request = await app.span(({ name }) => name === 'POST', 'the request of the tool')
    assert.equal(target.last().headers.traceparent, `00-${request.trace}-${request.id}-01`)
    assert.equal(other.last().url, '/elsewhere')
    assert.equal(other.last().headers.traceparent, undefined)
    await stop([web, worker])
  })

  it('the context of a client is linked, and its sampled flag decides nothing', async () => {
    const web = await app.start('web', RATIO_0)
    for (let count = 0; count < 200; count++) {
      const reply = await client(web.url, null).get('/agents', { traceparent: TRACEPARENT })
      assert.equal(reply.status, 401)
      assert.equal(reply.headers.get('traceparent'), null)
    }
    assert.equal((await app.at(web).get('/agents', { traceparent: TRACEPARENT })).status, 200)
    await stop([web])
    assert.equal(app.collector.spans.length, 0)

    const sampling = await app.start('web')
    const byKey = await app.at(sampling).get('/agents', { traceparent: TRACEPARENT })
    assert.equal(byKey.headers.get('traceparent'), null)
    const byAdmin = await app.at(sampling, app.admin).get('/agents')
    await stop([sampling])
    const [linked, admin] = app.collector.spans
    assert.deepEqual([linked.parent, linked.links, linked.trace === FOREIGN.trace], [null, [FOREIGN], false])
    assert.equal(byAdmin.headers.get('traceparent'), `00-${admin.trace}-${admin.id}-01`)
  })

  it('a trusted context is the parent, with its flag', async () => {
    const web = await app.start('web', { ...RATIO_0, OTEL_TRUST_INCOMING: 'true' })
    await app.at(web).get('/agents', { traceparent: TRACEPARENT })
    await app.at(web).get('/agents', { traceparent: TRACEPARENT.replace(/01$/, '00') })
    await app.at(web).get('/agents', { traceparent: 'not a context' })
    await stop([web])
    assert.deepEqual(
      app.collector.spans.map(({ trace, parent, links }) => ({ trace, parent, links })),
      [{ trace: FOREIGN.trace, parent: FOREIGN.id, links: [] }],
    )
  })

  it('failed work is exported although its trace is not sampled, with the code, without message, content and statements; other work is not', async () => {
    const web = await app.start('web', RATIO_0)
    const captured = { OTEL_CAPTURE_CONTENT: 'true', OTEL_DB_SPANS: 'true' }
    const worker = await app.start('worker', { ...RATIO_0, ...captured })
    const good = await app.agent({ name: 'good' })
    const bad = await app.agent({ name: 'bad' })
    await ended(await generate(web, good, scriptOf({ text: 'fine' })))
    const failed = await ended(
      await generate(web, bad, scriptOf({ error: { status: 400, type: 'CANARY-type', message: 'CANARY-message' } })),
    )
    assert.equal(failed.status, 'failed')
    const turn = await app.span(({ name }) => name === 'invoke_agent bad', 'the failed turn')
    await stop([web, worker])
    const chat = app.collector.spans.find(({ name }) => name.startsWith('chat'))
    assert.ok(chat)
    assertBelow(chat, turn)
    for (const { failed: isFailed, attributes } of [turn, chat])
      assert.deepEqual([isFailed, attributes['error.type']], [true, failed.error.code])
    assert.deepEqual(app.collector.named('db'), [])
    assert.deepEqual([...new Set(app.collector.spans.map(({ trace }) => trace))], [turn.trace])
    assert.ok(!app.collector.bodies.join().includes('CANARY'))
  })

  it('names and values that vendors and tenants choose are cut', async () => {
    const name = 'n'.repeat(128)
    const agent = await app.agent({ name, tool_bindings: [bound('act')] })
    const web = await app.start('web')
    const worker = await app.start('worker')
    const call = { id: `call_${'i'.repeat(10_000)}`, name: 'act', args: {} }
    await ended(await generate(web, agent, scriptOf({ tool_calls: [call] }, { text: 'done' })))
    await app.span(each => each.name === `invoke_agent ${name}`, 'the turn')
    await stop([web, worker])
    assert.ok(app.collector.spans.some(each => each.name === 'execute_tool act'))
    for (const { name, attributes } of app.collector.spans)
      for (const value of [name, ...Object.values(attributes)]) assert.ok(String(value).length <= 256, name)
  })

  it('failed work of one project is exported to a limit, and then counted', async () => {
    const web = await app.start('web', RATIO_0)
    const worker = await app.start('worker', { ...RATIO_0, WORKER_CONCURRENCY: '30' })
    const bad = await app.agent({ name: 'bad' })
    const prompt = scriptOf({ error: { status: 400, message: 'no' } })
    const started = performance.now()
    const ids = await Promise.all(Array.from({ length: 60 }, () => generate(web, bad, prompt)))
    for (const id of ids) assert.equal((await ended(id)).status, 'failed')
    const seconds = (performance.now() - started) / 1000
    const limited = await dropped(worker, 'limit')
    await stop([web, worker])
    const exported = app.collector.named('invoke_agent bad').length
    assert.ok(exported <= 5 * (Math.ceil(seconds) + 1), `${exported} in ${seconds} s`)
    // Turn and model call.
    assert.equal(exported + limited / 2, ids.length)
  })

  it('a collector that does not answer delays no request: spans beyond the queue are dropped, counted and logged once', async () => {
    app.collector.hangs = true
    const full = await app.start('web', {
      OTEL_BSP_MAX_QUEUE_SIZE: '20',
      OTEL_BSP_MAX_EXPORT_BATCH_SIZE: '10',
      OTEL_BSP_EXPORT_TIMEOUT: '60000',
    })
    for (let count = 0; count < 100; count++) assert.equal((await app.at(full).get('/agents')).status, 200)
    // Ten are on their way and twenty wait; reads of the metrics have spans too.
    await eventually(async () => (await dropped(full, 'queue')) >= 70, { what: 'the dropped spans' })
    await full.kill('SIGTERM')
    assert.equal(full.output.filter(line => line.includes('"spans dropped"')).length, 1)

    const failing = await app.start('web', { OTEL_BSP_EXPORT_TIMEOUT: '200' })
    assert.equal((await app.at(failing).get('/agents')).status, 200)
    await eventually(async () => (await dropped(failing, 'export')) > 0, { what: 'the span of a failed export' })
    assert.ok((await app.at(failing, app.admin).get('/system/status')).body.telemetry.dropped > 0)
    await failing.kill('SIGTERM')
  })

  it('turns complete while a collector never answers; a process keeps a full queue and one batch, and drops the others', async () => {
    app.collector.hangs = true
    const before = app.collector.bodies.length
    const limits = { queued: 8, batch: 4 }
    const web = await app.start('web')
    const worker = await app.start('worker', {
      OTEL_BSP_MAX_QUEUE_SIZE: String(limits.queued),
      OTEL_BSP_MAX_EXPORT_BATCH_SIZE: String(limits.batch),
      OTEL_BSP_EXPORT_TIMEOUT: '600000',
    })
    const agent = await app.agent({ name: 'unseen' })
    const ids = await Promise.all(Array.from({ length: 40 }, () => generate(web, agent, scriptOf({ text: 'fine' }))))
    for (const id of ids) assert.equal((await ended(id)).status, 'completed')
    // Turn and model call. A span ends after its turn.
    const least = 2 * ids.length - limits.queued - limits.batch
    await eventually(async () => (await dropped(worker, 'queue')) >= least, { what: 'the dropped spans' })
    const batches = app.collector.bodies.slice(before).filter(body => /"resourceSpans".*"muster-worker"/.test(body))
    assert.equal(batches.length, 1)
    assert.ok(batches[0].split('"startTimeUnixNano"').length - 1 <= limits.batch)
    await stop([web, worker])
  })

  it('turns complete while a collector refuses connections, and each of their spans is dropped', async () => {
    // The port of no service.
    const refused = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1', OTEL_BSP_EXPORT_TIMEOUT: '200' }
    const web = await app.start('web', refused)
    const worker = await app.start('worker', refused)
    const agent = await app.agent({ name: 'refused' })
    const ids = await Promise.all(Array.from({ length: 20 }, () => generate(web, agent, scriptOf({ text: 'fine' }))))
    for (const id of ids) assert.equal((await ended(id)).status, 'completed')
    await eventually(async () => (await dropped(worker, 'export')) >= 2 * ids.length, { what: 'the dropped spans' })
    await stop([web, worker])
    assert.equal(app.collector.spans.length, 0)
  })

  it('without an endpoint no package is loaded and rows have no context; with one they have', async () => {
    const agent = await app.agent({ name: 'off' })
    const off = { OTEL_EXPORTER_OTLP_ENDPOINT: '' }
    const counts = async () =>
      (
        await app.rows(`select
          (select count(*)::int from events where trace_context is not null) as events,
          (select count(*)::int from generation_work where trace_context is not null) as turns`)
      )[0]
    const before = await counts()
    const processes = [
      await app.start('web', off, { flags: WATCHED }),
      await app.start('worker', off, { flags: WATCHED }),
    ]
    await ended(await generate(processes[0], agent, scriptOf({ text: 'fine' })))
    await generate(processes[0], agent, scriptOf({ text: 'fine' }))
    assert.deepEqual(await counts(), before)
    await stop(processes)
    for (const { output } of processes)
      assert.deepEqual(
        output.filter(line => line.startsWith('LOADED')),
        [],
      )

    const on = await app.start('web', {}, { flags: WATCHED })
    await generate(on, agent, scriptOf({ text: 'waits for a worker' }))
    const after = await counts()
    assert.ok(after.events > before.events)
    assert.equal(after.turns, before.turns + 1)
    const contexts = await app.rows(
      'select distinct length(trace_context) as length from events where trace_context is not null',
    )
    assert.deepEqual(contexts, [{ length: 55 }])
    assert.ok(on.output.some(line => line.startsWith('LOADED')))
    await stop([on])
  })

  it('a process whose packages are not installed does not start, and says how to install them', async () => {
    const flags = ['--import', path.join(root, 'test/support/without-telemetry-modules.mjs')]
    await assert.rejects(app.start('web', {}, { flags }), /OTEL_EXPORTER_OTLP_ENDPOINT.*npm i/s)
    await assert.rejects(app.start('worker', {}, { flags }), /OTEL_EXPORTER_OTLP_ENDPOINT.*npm i/s)
    const disabled = await app.start('web', { OTEL_SDK_DISABLED: 'true' }, { flags })
    await stop([disabled])
  })
})
