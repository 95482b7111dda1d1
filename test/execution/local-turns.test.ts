import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { queueMessage } from '#core/queues/queue.ts'
import { turnQueue } from '#execution/generations/request/create.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { type Client, client, eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { scrape } from '../support/metrics.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { toolCall } from '../support/scripts.ts'
import { startSilentProxy } from '../support/silent-proxy.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { openStream } from './streams.ts'
import { startTarget } from './tool-target.ts'

/** Short intervals, so that a lost process is missed within seconds. */
const FAST = {
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  WORKER_HEARTBEAT_INTERVAL_MS: '500',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
}
const LOCAL = { ...FAST, WEB_EXECUTES: 'true' }
const ACTIONS = ['agents:CreateAgentGeneration', 'generations:*', 'traces:*', 'events:*', 'tools:CallTool']
const CLIENT_TOOL = { tool: { name: 'pick', type: 'client', parameters: { type: 'object' } } }
const script = (...replies: object[]) => ({ prompt: `@double ${JSON.stringify(replies)}` })

describe('turns that the web process executes', function () {
  this.timeout(90_000)
  const app = forSuite(() => startAgentApp({ workers: [], env: FAST, actions: ACTIONS }))
  const double = forSuite(() => doubleClient(app.double))
  const processes: TestProcess[] = []
  const steady = steadyWorkers()
  afterEach(async () => {
    await steady.stop()
    await Promise.all(processes.splice(0).map(each => each.kill('SIGKILL')))
  })

  const worker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['generation'])
  const web = async (env: Record<string, string> = {}) => {
    const made = await startProcess('web', app.databaseUrl, { ...LOCAL, ...env })
    processes.push(made)
    return { ...made, key: client(made.url, app.key.token) }
  }
  const generate = (key: Client, agent: string, body: object = { prompt: 'x' }) =>
    key.post(`/agents/${agent}/generate?wait=true`, body)
  const rowOf = async (id: string) =>
    (
      await app.rows(
        'select g.*, w.holder from generations g left join generation_work w on w.generation_id = g.id where g.id = $1',
        [id],
      )
    )[0]
  const messagesOf = async (id: string): Promise<number> =>
    (await app.rows(`select count(*)::int as count from pgboss.job_common where singleton_key = $1`, [id]))[0].count
  const eventsOf = async (id: string) => (await app.key.get(`/events?resource_id=${id}`)).body.data as any[]
  /** Slots of a web process with turns. */
  const heldSlots = async (url: string) =>
    (await scrape(url)).value('muster_worker_slots', { queue: 'web', state: 'held' })
  const calls = async (lane: string) => (await double.requests(lane)).length
  const open = (gate: string) => double.read('POST', `/control/gates/${gate}/open`)
  /** A turn whose caller waits, and whose model answers when the gate named as its lane is opened. */
  const gated = async (key: Client, lane: string, body?: object, fields: object = {}) => {
    await double.put(lane, { rules: [{ reply: { text: `answer of ${lane}`, gate: lane } }] })
    const agent = await app.agent({ model: `${lane}/m`, ...fields })
    const answer = generate(key, agent, body)
    answer.catch(() => {})
    const [turn] = await eventually(async () => {
      const rows = await app.rows('select id from generations where agent_id = $1', [agent])
      return (await calls(lane)) === 1 ? rows : null
    })
    return { id: turn.id as string, agent, answer }
  }
  const ended = (id: string) =>
    eventually(
      async () => {
        const { body } = await app.key.get(`/generations/${id}`)
        return body.status === 'completed' || body.status === 'failed' ? body : null
      },
      { what: `end of ${id}` },
    )

  it('have no message, and the answer, the events and the record of the turns of workers', async () => {
    const made = [await web(), await web({ WEB_EXECUTES: 'false' })]
    await worker()
    const agent = await app.agent({ temperature: 0.25, max_output_tokens: 77, instructions: 'Be brief.' })
    const request = { prompt: 'hello', metadata: { a: [1.5, null] }, action_id: 'label', timeout_seconds: 60 }
    const seen = []
    for (const { key } of made) {
      const { status, body } = await generate(key, agent, request)
      assert.equal(status, 200, JSON.stringify(body))
      const row = await rowOf(body.id)
      const record = (await app.key.get(`/generations/${body.id}`)).body
      const transcript = (await app.key.get(`/generations/${body.id}/transcript`)).body
      const sameEverywhere = (value: unknown) =>
        JSON.parse(
          JSON.stringify(value)
            .replace(/"(gen|trc|trace|evt)_[0-9a-z]{26}"/g, '"$1"')
            .replace(/\d{4}-\d\d-\d\d[T ][\d:.]+(Z|\+00)/g, 'time')
            .replace(/"latency_ms":\d+/g, '"latency_ms":0'),
        )
      const events = (await eventsOf(body.id)).map(({ event, data }) => ({ event, data }))
      seen.push({ ids: await messagesOf(body.id), same: sameEverywhere({ body, record, transcript, row, events }) })
    }
    const [local, remote] = seen
    assert.deepEqual([local.ids, remote.ids], [0, 1])
    assert.deepEqual(local.same, remote.same)
    assert.deepEqual(local.same.events.map(({ event }: any) => event).sort(), [
      'generations.completed',
      'generations.started',
    ])
  })

  it('are in progress from their creation on, as their event says', async () => {
    const { key } = await web()
    for (const trace_content_mode of ['full', 'none']) {
      const { id, answer } = await gated(
        key,
        `created-${trace_content_mode}`,
        { prompt: 'x', metadata: { a: 1 } },
        { trace_content_mode },
      )
      const record = (await app.key.get(`/generations/${id}`)).body
      const [{ event, data }] = await eventsOf(id)
      assert.equal(event, 'generations.started')
      const { memory_entries, ...announced } = data.generation ?? data
      const { output, required_action, ...listed } = record
      for (const [field, value] of Object.entries(announced)) assert.deepEqual(value, record[field], field)
      assert.deepEqual([listed.status, output, required_action, memory_entries], ['in_progress', null, null, []])
      const { holder, attempt, content_mode } = await rowOf(id)
      assert.deepEqual([holder !== null, attempt, content_mode], [true, 1, trace_content_mode])
      await open(`created-${trace_content_mode}`)
      assert.equal((await answer).status, 200)
    }
  })

  it('call tools, pause for their client, and are continued by a worker', async () => {
    const target = await startTarget()
    const { key } = await web()
    const act = { tool: { name: 'act', execute: { url: `${target.url}/act` } } }
    const agent = await app.agent({ tool_bindings: [act, CLIENT_TOOL] })
    try {
      const paused = await generate(
        key,
        agent,
        script(toolCall('act', { n: 1 }), toolCall('pick', { b: 1 }), { text: 'done' }),
      )
      assert.deepEqual([paused.status, paused.body.status, target.requests.length], [200, 'requires_action', 1])
      const { id, required_action } = paused.body
      const { tool_call_id } = required_action.tool_calls[0]
      const resumed = key.post(`/agents/${agent}/generate/${id}/tool-outputs?wait=true`, {
        tool_outputs: [{ tool_call_id, output: 'a' }],
      })
      await worker()
      const { status, body } = await resumed
      assert.deepEqual([status, body.output?.content], [200, 'done'], JSON.stringify(body))
    } finally {
      await target.close()
    }
  })

  it('stream their answers', async () => {
    const { url } = await web()
    const stream = await openStream({ url, key: app.key }, `/agents/${app.agentId}/generate`, {
      ...script({ text: 'one two three' }),
      stream: true,
    })
    const events: string[] = []
    let text = ''
    for await (const { event, data } of stream.messages) {
      if (event !== events.at(-1)) events.push(event)
      if (event === 'delta') text += data.choices[0].delta.content
    }
    assert.deepEqual([events, text], [['started', 'delta', 'step', 'completed'], 'one two three'])
  })

  it('are cancelled like others', async () => {
    const { key } = await web()
    const { id, answer } = await gated(key, 'cancelled')
    assert.equal((await app.key.post(`/generations/${id}/cancel`)).status, 200)
    const { status, body } = await answer
    assert.deepEqual([status, body.error.code], [500, 'GENERATION_FAILED'], JSON.stringify(body))
    assert.equal((await ended(id)).stop_reason, 'cancelled')
  })

  it('are not claimed by workers while their process lives, whatever messages there are', async () => {
    // Default heartbeats, which a busy machine does not delay for too long.
    const { key } = await web({ WORKER_HEARTBEAT_INTERVAL_MS: '' })
    await worker({ WORKER_HEARTBEAT_INTERVAL_MS: '' })
    const { id, answer } = await gated(key, 'long')
    await app.services.queues.send([queueMessage(turnQueue, { generation_id: id, project_id: app.projectId })])
    await eventually(async () => {
      const [{ done }] = await app.rows(
        `select bool_and(state = 'completed') as done from pgboss.job_common where singleton_key = $1`,
        [id],
      )
      return done
    })
    // Several leases and sweeps.
    await sleep(5000)
    const { attempt, holder } = await rowOf(id)
    assert.deepEqual([attempt, holder !== null, await calls('long'), await messagesOf(id)], [1, true, 1, 1])
    await open('long')
    const { status, body } = await answer
    assert.deepEqual([status, body.output.content], [200, 'answer of long'])
  })

  it('are continued by a worker when their process is killed', async () => {
    const { key, kill } = await web()
    const { id, answer } = await gated(key, 'killed')
    await worker()
    await kill('SIGKILL')
    await assert.rejects(answer)
    await eventually(async () => (await calls('killed')) === 2, { what: 'call by the worker' })
    await open('killed')
    const { status, output } = await ended(id)
    const { attempt, lost_attempts } = await rowOf(id)
    assert.deepEqual([status, output.content, attempt, lost_attempts], ['completed', 'answer of killed', 2, 1])
    assert.deepEqual((await eventsOf(id)).map(({ event }) => event).sort(), [
      'generations.completed',
      'generations.started',
    ])
  })

  it('are continued by a worker when their process stops, and answered as long as it may', async () => {
    const { key, kill } = await web({ SHUTDOWN_GRACE_MS: '1000' })
    const { id, answer } = await gated(key, 'stopped')
    const stopped = kill('SIGTERM')
    assert.equal(
      await answer.then(
        ({ status }) => status === 200,
        () => false,
      ),
      false,
    )
    assert.deepEqual(await stopped, { code: 0, signal: null })
    await worker()
    await eventually(async () => (await calls('stopped')) === 2, { what: 'call by the worker' })
    await open('stopped')
    const { status } = await ended(id)
    const { attempt, lost_attempts } = await rowOf(id)
    assert.deepEqual([status, attempt, lost_attempts], ['completed', 2, 0])
  })

  it('are answered by a worker while their process is suspended, which writes nothing later', async () => {
    const { key, child, url } = await web()
    const { id, answer } = await gated(key, 'suspended')
    child.kill('SIGSTOP')
    await worker()
    await eventually(async () => (await calls('suspended')) === 2, { what: 'call by the worker' })
    await open('suspended')
    await ended(id)
    child.kill('SIGCONT')
    const { status, body } = await answer
    assert.deepEqual([status, body.output?.content], [200, 'answer of suspended'], JSON.stringify(body))
    await eventually(async () => (await heldSlots(url)) === 0, { what: 'end of the suspended attempt' })
    assert.equal((await eventsOf(id)).length, 2)
    const usage = await app.rows('select count(*)::int as count from usage_events where generation_id = $1', [id])
    assert.equal(usage[0].count, 1)
  })

  it('are found by the sweep when their process left without a heartbeat', async () => {
    const { key, child } = await web()
    const { id } = await gated(key, 'gone')
    child.kill('SIGKILL')
    // One in flight may be written after the end of the process.
    await eventually(async () => {
      await app.rows(`delete from worker_heartbeats where kinds = '{}' returning instance_id`)
      const connected = await app.rows(
        `select from pg_stat_activity where application_name like 'muster web%' and datname = current_database()`,
      )
      return connected.length === 0
    })
    await app.rows(`delete from worker_heartbeats where kinds = '{}' returning instance_id`)
    await worker()
    await eventually(async () => (await calls('gone')) === 2, { what: 'call by the worker' })
    await open('gone')
    assert.equal((await ended(id)).status, 'completed')
  })

  it('are as many as the process has slots; workers have the others', async () => {
    const { key, url } = await web({ WORKER_CONCURRENCY: '1' })
    assert.equal(await heldSlots(url), 0)
    const first = await gated(key, 'first')
    assert.equal(await heldSlots(url), 1)
    const agent = await app.agent()
    const second = generate(key, agent)
    const [{ id }] = await eventually(async () => {
      const rows = await app.rows('select id from generations where agent_id = $1', [agent])
      return rows.length > 0 ? rows : null
    })
    assert.deepEqual([(await rowOf(id)).status, await messagesOf(id)], ['pending', 1])
    await worker()
    assert.equal((await second).status, 200)
    await open('first')
    assert.equal((await first.answer).status, 200)
  })

  it('do not include turns in the background', async () => {
    const { key } = await web()
    const { body } = await key.post(`/agents/${app.agentId}/generate`, { prompt: 'x' })
    assert.deepEqual([(await rowOf(body.generation_id)).status, await messagesOf(body.generation_id)], ['pending', 1])
    assert.equal((await app.key.post(`/generations/${body.generation_id}/cancel`)).status, 200)
    const response = { model: app.agentId, input: 'x', background: true }
    assert.equal((await key.post('//openai/v1/responses', response)).status, 200)
    const [{ id }] = await app.rows('select id from generations order by created_at desc limit 1')
    assert.deepEqual([(await rowOf(id)).status, await messagesOf(id)], ['pending', 1])
    assert.equal((await app.key.post(`/generations/${id}/cancel`)).status, 200)
  })

  it('are executed once when workers claim them before their process has begun', async () => {
    const { key, child } = await web({ FAULT_POINTS: 'local_turn=stall:6000' })
    await double.put('stalled', { rules: [{ reply: { text: 'by the worker' } }] })
    const agent = await app.agent({ model: 'stalled/m', tool_bindings: [CLIENT_TOOL] })
    await worker()
    const { status, body } = await generate(key, agent)
    assert.deepEqual([status, body.output?.content], [200, 'by the worker'], JSON.stringify(body))
    await eventually(async () => (await heldSlots(`http://127.0.0.1:${new URL(processes[0].url).port}`)) === 0)
    assert.deepEqual([await calls('stalled'), (await rowOf(body.id)).attempt], [1, 2])
    assert.equal(child.exitCode, null)
  })

  it('wait for an overloaded model without a slot, and are continued by a worker', async () => {
    const { key, url } = await web()
    await worker()
    const limited = {
      times: 1,
      reply: { error: { status: 429, message: 'slow down', retry_after: 6 } },
    }
    await double.put('limited', { rules: [limited, { reply: { text: 'in the end' } }] })
    const agent = await app.agent({ model: 'limited/m' })
    const { status, body } = await generate(key, agent)
    assert.deepEqual([status, body.output?.content], [200, 'in the end'], JSON.stringify(body))
    assert.equal(await heldSlots(url), 0)
    const { attempt, lost_attempts } = await rowOf(body.id)
    assert.deepEqual([attempt, lost_attempts], [2, 0])
  })

  it('leave slots of a process to other projects', async () => {
    const { url } = await web({ WORKER_CONCURRENCY: '2', PROJECT_WORKER_SHARE: '0.5' })
    const key = client(url, app.key.token)
    const first = await gated(key, 'share')
    const agent = await app.agent()
    const second = generate(key, agent)
    const [{ id }] = await eventually(async () => {
      const rows = await app.rows('select id from generations where agent_id = $1', [agent])
      return rows.length > 0 ? rows : null
    })
    assert.equal((await rowOf(id)).status, 'pending')
    await worker()
    assert.equal((await second).status, 200)
    await open('share')
    assert.equal((await first.answer).status, 200)
  })

  it('do not include turns for which a quota reserves, and those that join a trace', async () => {
    const { key } = await web()
    await worker()
    const first = await generate(key, app.agentId)
    const joined = await generate(key, app.agentId, { prompt: 'x', trace_id: first.body.trace_id })
    assert.deepEqual([joined.status, await messagesOf(first.body.id), await messagesOf(joined.body.id)], [200, 0, 1])
    const agent = await app.agent()
    const quota = {
      project_id: app.projectId,
      scope: 'agent',
      scope_ref: agent,
      metric: 'tokens',
      window: 'rolling_24h',
      limit: 100_000,
    }
    const made = await app.admin.post('/quotas', { ...quota, reserve: true })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    const reserved = await generate(key, agent)
    assert.deepEqual([reserved.status, await messagesOf(reserved.body.id)], [200, 1])
  })

  it('are continued by a worker when the answer of their insert is lost', async () => {
    const proxy = await startSilentProxy(app.databaseUrl)
    try {
      const { key } = await web({ DATABASE_URL: proxy.url })
      await worker()
      await double.put('unanswered', { rules: [{ reply: { text: 'after all' } }] })
      const agent = await app.agent({ model: 'unanswered/m' })
      const lost = proxy.loseAnswer(sent => /insert into generation_work/.test(sent))
      const [answer] = await Promise.all([generate(key, agent), lost])
      assert.equal(answer.status, 503, JSON.stringify(answer.body))
      const [{ id }] = await app.rows('select id from generations where agent_id = $1', [agent])
      const { status, output } = await ended(id)
      assert.deepEqual([status, output.content, await calls('unanswered')], ['completed', 'after all', 1])
    } finally {
      await proxy.close()
    }
  })

  it('do not include requests with calls of tools, which are made once whatever changes meanwhile', async () => {
    const target = await startTarget()
    const { key } = await web()
    await worker()
    try {
      const execute = { url: `${target.url}/look` }
      const tool = await app.admin.post('/tools', { project_id: app.projectId, name: 'look', execute })
      const agent = await app.agent({ tool_bindings: [{ tool_id: tool.body.id }] })
      target.answer = (_request, response) =>
        void app.admin
          .patch(`/agents/${agent}`, { instructions: `changed ${target.requests.length}` })
          .then(() => response.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}'))
      const content = { type: 'tool_output', tool_id: tool.body.id }
      const { status, body } = await generate(key, agent, { messages: [{ role: 'user', content }], prompt: 'x' })
      assert.deepEqual([status, target.requests.length, await messagesOf(body.id)], [200, 1, 1], JSON.stringify(body))
    } finally {
      await target.close()
    }
  })

  it('have the circuit breakers of their route as they are, in every process', async () => {
    const { key } = await web()
    await double.put('broken', { rules: [{ reply: { error: { status: 500, message: 'down' } } }] })
    await double.put('spare', { rules: [{ reply: { text: 'spare' } }] })
    const provider = { project_id: app.projectId, provider: 'custom', base_url: `${app.double.url}/v1` }
    const made = async (name: string) =>
      (await app.admin.post('/ai-providers', { ...provider, name, default_model: 'm' })).body.id as string
    const targets = [
      { ai_provider_id: await made('first'), model: 'broken/m', max_retries: 0 },
      { ai_provider_id: await made('second'), model: 'spare/m', max_retries: 0 },
    ]
    const breaker = { failure_threshold: 2, cooldown_seconds: 2 }
    const route = await app.admin.post('/model-routes', { project_id: app.projectId, name: 'r', targets, ...breaker })
    assert.equal(route.status, 201, JSON.stringify(route.body))
    const agent = await app.agent({ ai_provider_id: null, model_route_id: route.body.id })
    const content = async () => (await generate(key, agent)).body.output?.content
    for (let n = 0; n < 3; n++) assert.equal(await content(), 'spare')
    assert.equal(await calls('broken'), 2)
    await double.put('broken', { rules: [{ reply: { text: 'first again' } }] })
    await eventually(async () => (await content()) === 'first again', { every: 500 })
  })

  it('are refused by pauses and permissions as requests', async () => {
    const { key, url } = await web()
    const project = await app.projectWith(['generations:*'])
    const agent = await app.agent()
    assert.equal((await generate(client(url, project.key.token), agent)).status, 403)
    const before = (await app.rows('select count(*)::int as count from generations'))[0].count
    assert.equal((await app.admin.patch(`/agents/${agent}`, { instructions: 'changed' })).status, 200)
    assert.equal((await app.admin.post(`/projects/${app.projectId}/pause`, {})).status, 200)
    assert.equal((await generate(key, agent)).body.error.code, 'PROJECT_PAUSED')
    assert.equal((await app.admin.post(`/projects/${app.projectId}/resume`, {})).status, 200)
    assert.equal((await app.rows('select count(*)::int as count from generations'))[0].count, before)
    const { status, body } = await generate(key, agent)
    assert.deepEqual([status, (await app.key.get(`/generations/${body.id}`)).body.agent_version], [200, 2])
  })
})
