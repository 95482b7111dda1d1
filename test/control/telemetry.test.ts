import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { made, startTarget, type Target } from '../execution/tool-target.ts'
import { client, eventually, type TestProject } from '../support/app.ts'
import { type Collector, type ReceivedSpan, startCollector } from '../support/collector.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { startReceiver } from '../support/receiver.ts'
import { bodyOf, createdBy, refusalOf } from '../support/replies.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'

const ENV = {
  EMBEDDING_PROVIDER: 'local',
  EMBEDDING_DIMENSIONS: '64',
  WEBHOOK_TIMEOUT_MS: '500',
  SHUTDOWN_GRACE_MS: '3000',
}

describe('the telemetry target of a project', function () {
  this.timeout(120_000)
  const app: AgentApp = forSuite(() => startAgentApp({ workers: [], env: ENV }))
  const collector: Collector = forSuite(() => startCollector())
  const tools: Target = forSuite(() => startTarget())
  const processes: TestProcess[] = []
  let web: TestProcess
  /** Does all work but send. */
  let others: TestProcess
  let key: TestProject['key']

  const path = (project = app.projectId) => `/projects/${project}/telemetry`
  const target = (fields: object = {}) => ({ endpoint: `${collector.url}/v1/traces`, ...fields })
  const put = (fields: object = {}) => bodyOf(app.key.put(path(), target(fields)))
  const get = (project?: string) => bodyOf(app.admin.get(path(project)))
  /** Starts a worker that sends spans. */
  const worker = async (env: Record<string, string> = {}) => {
    const process = await startProcess('worker', app.databaseUrl, { ...ENV, ...env }, ['delivery'])
    processes.push(process)
    return process
  }
  const stop = async () => {
    await Promise.all(processes.splice(0).map(each => each.kill()))
  }
  const spansOf = (project: string) =>
    collector.spans.filter(({ attributes }) => attributes['muster.project_id'] === project)
  const arrived = (find: (span: ReceivedSpan) => boolean, what: string) =>
    eventually(() => collector.spans.find(find), { what, within: 60_000 })
  const sent = (project = app.projectId) =>
    eventually(async () => (await get(project)).lag_seconds === null, { what: 'an empty outbox', within: 60_000 })
  const turn = async (prompt = 'hello', agent = app.agentId) =>
    bodyOf(key.post(`/agents/${agent}/generate?wait=true`, { prompt }))

  before(async () => {
    const concerns = ['generation', 'orchestration', 'ingestion']
    web = await startProcess('web', app.databaseUrl, ENV)
    others = await startProcess('worker', app.databaseUrl, ENV, concerns)
    key = client(web.url, app.key.token)
  })
  after(async () => {
    await Promise.all([web?.kill(), others?.kill()])
  })
  beforeEach(() => {
    collector.spans.length = 0
    collector.bodies.length = 0
    collector.headers.length = 0
    collector.status = null
    collector.refuses = () => true
    collector.hangs = false
  })
  afterEach(async () => {
    await stop()
    assert.deepEqual(collector.problems, [])
  })

  it('is set, shown without header values and removed, by who may', async () => {
    const empty = await get()
    assert.deepEqual([empty.endpoint, empty.content, empty.dropped, empty.lag_seconds], [null, 'none', 0, null])
    const shown = await put({
      headers: { Authorization: 'Bearer CANARY-token' },
      sample_ratio: 0.5,
      kinds: ['model', 'model'],
    })
    assert.deepEqual(
      [shown.header_names, shown.sample_ratio, shown.kinds, shown.last_exported_at],
      [['Authorization'], 0.5, ['model'], null],
    )
    assert.deepEqual(await get(), shown)
    assert.ok(!JSON.stringify(await app.rows('select * from telemetry_targets')).includes('CANARY'))
    const [entry] = await app.rows(
      `select detail, resource_public_id from audit_entries where action = 'projects:UpdateTelemetry'`,
    )
    assert.equal(entry.resource_public_id, app.projectId)
    assert.ok(!JSON.stringify(entry).includes('CANARY'))

    for (const [fields, at] of [
      [{ endpoint: 'ftp://host/' }, 'endpoint'],
      [{ headers: { 'bad name': 'x' } }, 'headers.bad name'],
      [{ headers: { Host: 'x' } }, 'headers.Host'],
      [{ sample_ratio: 2 }, 'sample_ratio'],
      [{ content: 'some' }, 'content'],
      [{ kinds: ['request', 'other'] }, 'kinds[1]'],
    ] as const) {
      const { status, body } = await app.key.put(path(), target(fields))
      assert.deepEqual([status, body.error.meta.problems[0].path], [400, at])
    }
    assert.deepEqual(refusalOf(await app.key.put(path(), target({ headers: { a: '{{secret:sec_x}}' } }))), [
      400,
      'SECRET_NOT_FOUND',
    ])

    const reader = await app.projectWith(['projects:GetTelemetry'])
    assert.equal((await reader.key.get(path(reader.id))).status, 200)
    assert.equal((await reader.key.put(path(reader.id), target())).status, 403)
    assert.equal((await reader.key.post(`${path(reader.id)}/test`)).status, 403)
    const writer = await app.projectWith(['projects:UpdateTelemetry'])
    assert.equal((await writer.key.put(path(writer.id), target())).status, 200)
    assert.equal((await writer.key.get(path(writer.id))).status, 403)
    const secret = await createdBy(app.admin, '/secrets', { project_id: writer.id, name: 's', value: 'a-value' })
    for (const fields of [{ content: 'full' }, { headers: { a: `{{secret:${secret.id}}}` } }])
      assert.deepEqual(refusalOf(await writer.key.put(path(writer.id), target(fields))), [403, 'FORBIDDEN'])
    for (const method of ['get', 'put'] as const)
      assert.deepEqual(
        [
          (await reader.key[method](path(), target() as never)).status,
          (await reader.key.post(`${path()}/test`)).status,
        ],
        [
          (await reader.key.get(`/projects/${app.projectId}`)).status,
          (await reader.key.get(`/projects/${app.projectId}`)).status,
        ],
      )

    const removed = await bodyOf(app.key.put(path(), { endpoint: null }))
    assert.equal(removed.endpoint, null)
    assert.deepEqual(refusalOf(await app.key.post(`${path()}/test`)), [404, 'RESOURCE_NOT_FOUND'])
  })

  it('gets the spans of a turn, its tools and its session without content, of work that no collector gets', async () => {
    const secret = await createdBy(app.admin, '/secrets', {
      project_id: app.projectId,
      name: 'key',
      value: 'CANARY-key',
    })
    await put({ headers: { Authorization: `Bearer {{secret:${secret.id}}}` } })
    const tool = await made(app.admin, {
      project_id: app.projectId,
      name: 'look',
      execute: { url: `${tools.url}/CANARY-path` },
    })
    const agent = await app.agent({ name: 'helper', tool_bindings: [{ tool_id: tool.id }] })
    await worker()
    const session = await createdBy(key, '/sessions', { agent_id: agent, auto_generate: true })
    await bodyOf(
      key.post(`/sessions/${session.id}/messages?wait=true`, {
        message: scriptOf(toolCall('look', { q: 'CANARY-argument' }), { text: 'CANARY-reply' }),
      }),
    )
    const root = await arrived(({ name }) => name === 'invoke_agent helper', 'the turn')
    const spans = collector.spans.filter(({ trace }) => trace === root.trace)
    assert.deepEqual(spans.map(({ name }) => name.split(' ')[0]).sort(), [
      'POST',
      'chat',
      'chat',
      'execute_tool',
      'invoke_agent',
    ])
    for (const span of spans) {
      assert.equal(span.attributes['session.id'], session.id)
      assert.equal(span.attributes['muster.project_id'], app.projectId)
      if (span !== root)
        assert.equal(
          spans.some(({ id }) => id === span.parent),
          true,
          span.name,
        )
    }
    assert.deepEqual(
      [root.attributes['muster.outcome'], root.failed, root.resource['service.name']],
      ['completed', false, 'muster'],
    )
    assert.ok(root.attributes['gen_ai.usage.input_tokens'] > 0 && root.attributes['gen_ai.usage.output_tokens'] > 0)
    assert.equal(collector.headers.at(-1)?.authorization, 'Bearer CANARY-key')
    assert.ok(!collector.bodies.join().includes('CANARY'))
    await sent()
    assert.ok((await get()).last_exported_at)
  })
  it('gets all spans although workers are killed before and after they are sent', async () => {
    await put()
    await worker({ FAULT_POINTS: 'telemetry.export/claimed=kill' })
    const ids: string[] = []
    for (let n = 0; n < 3; n++) ids.push((await turn()).id)
    await processes[0].exited
    assert.deepEqual(spansOf(app.projectId), [])
    await worker({ FAULT_POINTS: 'telemetry.export/ending=kill' })
    await processes[1].exited
    const first = spansOf(app.projectId).map(({ id }) => id)
    await worker()
    await sent()
    const turns = spansOf(app.projectId).filter(({ name }) => name.startsWith('invoke_agent'))
    assert.deepEqual(new Set(turns.map(({ attributes }) => attributes['muster.generation_id'])), new Set(ids))
    // Sent twice, with the same ids.
    assert.equal(turns.length > 3, true)
    assert.equal(new Set(turns.map(({ id }) => id)).size, 3)
    assert.deepEqual(first.slice().sort(), [...new Set(spansOf(app.projectId).map(({ id }) => id))].sort())
  })

  it('loses nothing while its receiver is down, and delays no other project', async () => {
    const other = await app.project()
    const up = await startCollector()
    try {
      await bodyOf(app.admin.put(path(other.id), { endpoint: `${up.url}/v1/traces` }))
      await put()
      collector.status = 503
      await worker()
      const { id } = await turn()
      await eventually(async () => (await get()).last_error, { what: 'a failure', within: 60_000 })
      const webhooks = await startReceiver()
      await createdBy(app.admin, '/webhooks', {
        project_id: other.id,
        name: 'w',
        url: webhooks.url,
        events: ['actors.*'],
      })
      await createdBy(client(web.url, other.key.token), '/actors', { name: 'Ann' })
      await eventually(() => up.named('deliver').length > 0, { what: 'spans of the other project', within: 60_000 })
      await webhooks.close()
      const failing = await get()
      assert.equal(failing.last_error, '503 no')
      assert.ok(failing.lag_seconds > 0)
      assert.equal(failing.dropped, 0)
      collector.status = null
      await arrived(({ attributes }) => attributes['muster.generation_id'] === id, 'the turn')
      await sent()
      assert.equal((await get()).last_error, null)
      const [delivery] = up.named('deliver')
      assert.deepEqual([delivery.kind, delivery.attributes['muster.event']], ['client', 'actors.created'])
      assert.deepEqual(up.problems, [])
    } finally {
      await up.close()
    }
  })

  it('drops one refused unit after it accepts another, and counts and reports it', async () => {
    await put()
    await turn()
    const bad = await app.agent({ name: 'unwanted' })
    await turn('hello', bad)
    await turn()
    collector.status = 400
    collector.refuses = body => body.includes('unwanted')
    const { dropped: before } = await get()
    await worker()
    await sent()
    assert.equal(spansOf(app.projectId).filter(({ name }) => name === 'invoke_agent agent').length, 2)
    assert.equal(collector.named('invoke_agent unwanted').length, 0)
    assert.ok((await get()).dropped > before)
    await oneException()
  })

  it('keeps spans for at most 24 hours', async () => {
    const project = await app.project()
    await bodyOf(app.admin.put(path(project.id), target()))
    await app.rows(`insert into span_outbox (id, project_id, spans, span_count, bytes, created_at)
      select 'spans_' || n, '${project.id}', '', 3, case n when 1 then 10 when 2 then 64 * 1024 * 1024 else 10 end,
        now() - case n when 1 then interval '25 hours' else interval '1 minute' end
      from generate_series(1, 3) n`)
    await app.rows(`update telemetry_targets set next_attempt_at = 'infinity' where project_id = '${project.id}'`)
    await worker()
    await eventually(async () => (await get(project.id)).dropped === 6, { what: 'the drops', within: 90_000 })
    assert.deepEqual(await app.rows(`select id from span_outbox where project_id = '${project.id}'`), [
      { id: 'spans_3' },
    ])
    await oneException(project.id)
  })

  const oneException = async (project = app.projectId) => {
    const list = () => bodyOf(app.admin.get(`/exceptions?project_id=${project}&kind=telemetry_dropped`))
    await eventually(async () => (await list()).data.length > 0, { what: 'the exception' })
    assert.deepEqual(
      (await list()).data.map(({ occurrence_count }: any) => occurrence_count),
      [1],
    )
  }

  it('is not sent anything inside, and no answer is read without end', async () => {
    let answer: 'inside' | 'endless' | 'never' = 'inside'
    const server = createServer((_request, response) => {
      if (answer === 'inside') response.writeHead(307, { location: 'http://169.254.169.254/latest' }).end()
      else if (answer === 'endless') {
        response.writeHead(200)
        const timer = setInterval(() => response.write('x'.repeat(65_536)), 1)
        response.on('close', () => clearInterval(timer))
      }
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    try {
      const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
      await put({ endpoint })
      const test = () => bodyOf(key.post(`${path()}/test`))
      const inside = await test()
      assert.deepEqual([inside.ok, inside.status_code], [false, null])
      assert.match(inside.response_body, /^blocked by egress policy: 169\.254\.169\.254/)
      answer = 'endless'
      const endless = await test()
      assert.deepEqual([endless.ok, endless.status_code, endless.response_body.length], [true, 200, 1024])
      answer = 'never'
      const never = await test()
      assert.deepEqual([never.ok, never.status_code], [false, null])
      assert.match(never.response_body, /^timeout/)
      answer = 'inside'
      await worker()
      await turn()
      const failed = await eventually(async () => (await get()).last_error, { what: 'a failure', within: 60_000 })
      assert.match(failed, /^blocked by egress policy/)
    } finally {
      server.closeAllConnections()
      server.close()
    }
  })

  it('returns the response of the receiver to a test', async () => {
    await put()
    const accepted = await bodyOf(key.post(`${path()}/test`))
    assert.deepEqual([accepted.ok, accepted.status_code, accepted.response_body], [true, 200, '{}'])
    assert.deepEqual(
      collector.spans.map(({ name, trace }) => [name, trace]),
      [['test', accepted.trace_id]],
    )
    collector.status = 401
    const refused = await bodyOf(key.post(`${path()}/test`))
    assert.deepEqual([refused.ok, refused.status_code, refused.response_body], [false, 401, 'no'])
  })

  it('gets content of turns only if their project keeps it and its author may read it, without secrets', async () => {
    // Deletes spans that the receiver of another test has not accepted.
    await bodyOf(app.key.put(path(), { endpoint: null }))
    const actions = ['projects:*', 'traces:GetTrace']
    const policy = await createdBy(app.admin, '/policies', {
      document: { statement: [{ effect: 'Allow', action: actions, resource: [`srn:${app.projectId}:*:*`] }] },
    })
    const author = await createdBy(app.admin, '/project-keys', { project_id: app.projectId, policy_ids: [policy.id] })
    await bodyOf(client(web.url, author.secret).put(path(), target({ content: 'full' })))
    await createdBy(app.admin, '/secrets', {
      project_id: app.projectId,
      name: 'masked',
      value: 'masked-value-of-a-secret',
    })
    const kept = await turn(scriptOf({ text: 'the CANARY reply' }))
    const [row] = await app.rows(
      `select encode(spans, 'escape') as spans, sealed_content from span_outbox where generation_id = '${kept.id}'`,
    )
    assert.ok(row.sealed_content && !JSON.stringify(row).includes('CANARY'))
    await turn('say masked-value-of-a-secret')
    const mute = await app.agent({ name: 'mute', trace_content_mode: 'none' })
    await turn('a CANARY for nobody', mute)
    await worker()
    await sent()
    const chats = () => collector.spans.filter(({ name }) => name.startsWith('chat '))
    const withContent = chats().filter(({ attributes }) => attributes['gen_ai.input.messages'])
    assert.deepEqual([chats().length, withContent.length], [3, 2])
    assert.deepEqual(JSON.parse(withContent[0].attributes['gen_ai.output.messages']), [
      { role: 'assistant', parts: [{ type: 'text', content: 'the CANARY reply' }], finish_reason: 'stop' },
    ])
    assert.ok(!collector.bodies.join().includes('masked-value-of-a-secret'))
    assert.match(collector.bodies.join(), /say \*\*\*/)
    assert.ok(!collector.bodies.join().includes('for nobody'))
    await stop()

    collector.spans.length = 0
    const erased = await turn('an erased CANARY')
    await bodyOf(app.key.delete(`/traces/${erased.trace_id}/content`))
    assert.deepEqual(await app.rows(`select sealed_content from span_outbox where generation_id = '${erased.id}'`), [
      { sealed_content: null },
    ])
    const passing = await app.agent({ name: 'passing' })
    const gone = await turn('a CANARY of an agent that is deleted', passing)
    await bodyOf(app.key.delete(`/agents/${passing}?force=true`))
    assert.deepEqual(await app.rows(`select sealed_content from span_outbox where generation_id = '${gone.id}'`), [
      { sealed_content: null },
    ])
    await app.admin.patch(`/policies/${policy.id}`, {
      document: { statement: [{ effect: 'Allow', action: ['projects:*'], resource: [`srn:${app.projectId}:*:*`] }] },
    })
    await turn('a CANARY that the author may not read')
    await worker()
    await sent()
    assert.deepEqual(
      chats().map(({ attributes }) => attributes['gen_ai.input.messages']),
      [undefined, undefined, undefined],
    )
  })

  it('gets the chosen kinds of runs, ingestions and deliveries, of all or no traces', async () => {
    await put({ kinds: ['run', 'node', 'ingestion'] })
    await worker()
    const tool = await made(app.admin, { project_id: app.projectId, name: 'call', execute: { url: tools.url } })
    const orchestration = await createdBy(key, '/orchestrations', {
      name: 'graph',
      nodes: [
        { id: 'call', type: 'tool', tool_id: tool.id },
        { id: 'ask', type: 'agent', agent_id: app.agentId, prompt: 'hello' },
      ],
      edges: [{ from: 'call', to: 'ask' }],
    })
    const run = await bodyOf(
      key.post('/orchestration-runs', { orchestration_id: orchestration.id, input: {}, wait: true }),
    )
    const { id: file_id } = await createdBy(key, '/files/upload/base64', {
      content: Buffer.from('curlews nest in moors').toString('base64'),
      filename: 'a.txt',
      content_type: 'text/plain',
    })
    await createdBy(key, '/documents/ingest', { file_id }, 202)
    const ingest = await arrived(({ name }) => name === 'ingest', 'the ingestion')
    assert.deepEqual([ingest.attributes['muster.outcome'], ingest.failed], ['settled', false])
    const node = await arrived(({ name }) => name === 'node tool', 'the node')
    assert.deepEqual([node.attributes['muster.run_id'], node.attributes['muster.outcome']], [run.id, 'completed'])
    const end = await arrived(({ attributes }) => attributes['muster.outcome'] === 'succeeded', 'the end of the run')
    assert.equal(end.trace, node.trace)
    assert.deepEqual(new Set(collector.spans.map(({ name }) => name.split(' ')[0])), new Set(['run', 'node', 'ingest']))
    await put({ sample_ratio: 0 })
    await sleep(500)
    await turn()
    assert.equal((await get()).lag_seconds, null)
  })
})
