import assert from 'node:assert/strict'
import type { ServerResponse } from 'node:http'
import { deflateRawSync } from 'node:zlib'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { bodyOf, createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const ENV = { WEBHOOK_TIMEOUT_MS: '10000', SHUTDOWN_GRACE_MS: '20000' }

describe('the export of spans to a telemetry target', function () {
  this.timeout(120_000)
  const app: AgentApp = forSuite(() => startAgentApp({ workers: [], env: ENV }))
  const receiver: Receiver = forSuite(() => startReceiver())
  const processes: TestProcess[] = []
  let project = ''

  const path = () => `/projects/${project}/telemetry`
  const put = (fields: object = {}) => bodyOf(app.admin.put(path(), { endpoint: receiver.url, ...fields }))
  const get = () => bodyOf(app.admin.get(path()))
  const worker = async (env: Record<string, string> = {}) => {
    const process = await startProcess('worker', app.databaseUrl, { ...ENV, ...env }, ['delivery'])
    processes.push(process)
    return process
  }
  /** Adds a unit of one span for each name, in their order. */
  const addSpans = async (names: readonly string[]) => {
    for (const name of names) {
      const packed = deflateRawSync(JSON.stringify([{ name, attributes: [] }])).toString('base64')
      rows++
      await app.rows(`insert into span_outbox (id, project_id, spans, span_count, bytes)
        values ('spans_${String(rows).padStart(6, '0')}', '${project}', decode('${packed}', 'base64'), 1, 100)`)
    }
  }
  let rows = 0
  const waiting = async () => (await app.rows(`select from span_outbox where project_id = '${project}'`)).length
  const namesIn = (event: any): string[] => event.resourceSpans[0].scopeSpans[0].spans.map(({ name }: any) => name)
  const accepted = () =>
    receiver.requests.filter(({ body }) => !body.includes('poison')).flatMap(({ event }) => namesIn(event))
  const answer = (response: ServerResponse, status: number, body = '') => {
    response.statusCode = status
    response.end(body)
  }

  beforeEach(async () => {
    project = (await app.project()).id
    receiver.requests.length = 0
    receiver.answer = ({ body }, response) => answer(response, body.includes('poison') ? 400 : 200)
    await put()
  })
  afterEach(() => Promise.all(processes.splice(0).map(each => each.kill())))

  it('drops many refused units, wherever they are, and no other', async () => {
    await addSpans(['poison', 'poison', 'poison', 'poison', 'a', 'poison', 'b', 'c', 'poison', 'poison'])
    await worker()
    await eventually(() => new Set(accepted()).size === 3, { what: 'the accepted units', within: 60_000 })
    await addSpans(['d'])
    await eventually(async () => (await waiting()) === 0, { what: 'an empty outbox', within: 60_000 })
    assert.deepEqual(accepted().sort(), ['a', 'b', 'c', 'd'])
    assert.deepEqual([(await get()).dropped, (await get()).last_error], [7, null])
  })

  it('records each part that is accepted, and stops after the request in progress', async () => {
    await addSpans(['a', 'b', 'c', 'd', 'poison', 'e', 'f', 'g'])
    let held: ServerResponse | undefined
    receiver.answer = ({ body }, response) => {
      if (!body.includes('poison')) return answer(response, 200)
      if (receiver.requests.length === 1) return answer(response, 400)
      held = response
    }
    const first = await worker()
    const response = await eventually(() => held, { what: 'the request after an accepted one', within: 60_000 })
    assert.deepEqual([accepted(), await waiting()], [['a', 'b', 'c', 'd'], 4])
    const count = receiver.requests.length
    first.child.kill('SIGTERM')
    const isReady = () =>
      fetch(`${first.url}/readyz`).then(
        ({ ok }) => ok,
        () => false,
      )
    await eventually(async () => !(await isReady()), { what: 'the stop', within: 30_000 })
    answer(response, 400)
    await first.exited
    assert.equal(receiver.requests.length, count)
    receiver.answer = ({ body }, response) => answer(response, body.includes('poison') ? 400 : 200)
    await worker()
    await eventually(async () => (await waiting()) === 0, { what: 'an empty outbox', within: 60_000 })
    assert.deepEqual(accepted().sort(), ['a', 'b', 'c', 'd', 'e', 'f', 'g'])
  })

  it('counts and reports spans that its receiver rejects of an accepted request', async () => {
    const partialSuccess = { rejectedSpans: '1', errorMessage: 'too long' }
    receiver.answer = (_request, response) => answer(response, 200, JSON.stringify({ partialSuccess }))
    await addSpans(['a', 'b'])
    await worker()
    await eventually(async () => (await waiting()) === 0, { what: 'an empty outbox', within: 60_000 })
    const { dropped, last_error } = await get()
    assert.deepEqual([dropped, last_error, receiver.requests.length], [1, '1 spans rejected: too long', 1])
    const list = await bodyOf(app.admin.get(`/exceptions?project_id=${project}&kind=telemetry_dropped`))
    assert.equal(list.data.length, 1)
  })

  it('has one request at a time for tests of a project', async () => {
    receiver.most = 0
    receiver.answer = (_request, response) => void setTimeout(() => answer(response, 200), 300)
    const tests = await Promise.all([...Array(20).keys()].map(() => bodyOf(app.admin.post(`${path()}/test`))))
    assert.deepEqual([tests.every(({ ok }) => ok), receiver.most], [true, 1])
  })

  it('is audited with the host of its receiver and the names of its headers', async () => {
    await put({ headers: { 'x-api-key': 'CANARY-value' } })
    const [{ detail }] = await app.rows(`select detail from audit_entries
      where action = 'projects:UpdateTelemetry' and resource_public_id = '${project}' order by id desc limit 1`)
    assert.deepEqual([detail.endpoint_host, detail.header_names], [new URL(receiver.url).host, ['x-api-key']])
    assert.ok(!JSON.stringify(detail).includes('CANARY'))
  })

  it('writes no outcome of an earlier target onto its replacement', async () => {
    for (const status of [503, 200, 400]) {
      await addSpans(['a'])
      let held: ServerResponse | undefined
      receiver.answer = (_request, response) => {
        held = response
      }
      await worker()
      const response = await eventually(() => held, { what: 'a request', within: 60_000 })
      await put({ sample_ratio: 0.5 })
      receiver.answer = 200
      await app.rows(`update telemetry_targets set next_attempt_at = 'infinity' where project_id = '${project}'`)
      answer(response, status)
      await processes[0].kill('SIGTERM')
      const { last_error, last_exported_at, dropped } = await get()
      assert.deepEqual(
        [last_error, last_exported_at, dropped, await waiting()],
        [null, null, 0, status === 200 ? 0 : 1],
      )
      await app.rows(`delete from span_outbox where project_id = '${project}'`)
      await put()
      processes.length = 0
    }
  })
})

describe('end users in spans for a telemetry target', function () {
  this.timeout(120_000)
  const env = { ...ENV, OTEL_CAPTURE_USER: 'true' }
  const app: AgentApp = forSuite(() => startAgentApp({ workers: [], env }))
  const receiver: Receiver = forSuite(() => startReceiver())
  let worker: TestProcess
  after(() => worker?.kill())

  it('are named without a collector, and erased from waiting spans when they are purged', async () => {
    await bodyOf(app.key.put(`/projects/${app.projectId}/telemetry`, { endpoint: receiver.url }))
    const isDue = (time: string) => app.rows(`update telemetry_targets set next_attempt_at = '${time}'`)
    await isDue('infinity')
    worker = await startProcess('worker', app.databaseUrl, env)
    const turnOf = async (external_id: string) => {
      const actor = await createdBy(app.key, '/actors', { name: 'Ann', external_id })
      const session = await createdBy(app.key, '/sessions', {
        agent_id: app.agentId,
        actor_id: actor.id,
        auto_generate: true,
      })
      await bodyOf(app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'hello' }))
      return actor.id
    }
    await turnOf('CANARY-kept')
    const purged = await turnOf('CANARY-purged')
    assert.equal((await app.key.post(`/actors/${purged}/purge-content`)).status, 202)
    await eventually(async () => (await app.rows('select from actor_purges')).length === 0, { what: 'the purge' })
    await isDue('now')
    await eventually(async () => (await app.rows('select from span_outbox')).length === 0, {
      what: 'an empty outbox',
      within: 60_000,
    })
    const sent = receiver.requests.map(({ body }) => body).join()
    assert.equal(sent.split('invoke_agent').length > 2, true)
    assert.deepEqual(
      ['CANARY-kept', 'CANARY-purged', 'gen_ai.input.messages'].map(text => sent.includes(text)),
      [true, false, false],
    )
  })
})
