import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { ruleFiringWork } from '#execution/memory-rules/fire.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { json, made, startTarget } from './tool-target.ts'

const ACTIONS = ['agents:*', 'tools:*', 'generations:*', 'memories:*', 'projects:*', 'traces:*']

/** Short leases, so that a lost worker is missed within seconds. */
const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', SHUTDOWN_GRACE_MS: '300' }

const FACTS = JSON.stringify(['One', 'Two', 'Three'])

describe('memory rules and their workers', function () {
  this.timeout(60_000)
  const target = forSuite(startTarget)
  const app = forSuite(() => startAgentApp({ workers: [], actions: ACTIONS }))
  const double = forSuite(() => client(app.double))
  let agent: string
  const processes: TestProcess[] = []
  let lanes = 0
  let lane: string

  const worker = async (env: Record<string, string> = {}): Promise<TestProcess> => {
    const started = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['generation'])
    processes.push(started)
    return started
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['generation'])
  /** A rule on the turns of the agent, and the store that it fills. */
  const ruled = async (fields: object = {}): Promise<{ id: string; store: string }> => {
    const store = (await app.key.post('/memory-stores', { name: `store ${++lanes}` })).body.id
    const body = { memory_store_id: store, on: 'generations.completed', source_agent_ids: [agent], ...fields }
    const reply = await app.key.post('/memory-rules', body)
    assert.equal(reply.status, 201, JSON.stringify(reply.body))
    return { id: reply.body.id, store }
  }
  const start = async (): Promise<string> =>
    (await app.key.post(`/agents/${agent}/generate`, { prompt: 'hello' })).body.generation_id
  const extraction = (generation: string, rule: string): Promise<any> =>
    eventually(async () => (await app.key.get(`/generations/${generation}`)).body.extraction?.[rule], {
      what: `what ${rule} makes of ${generation}`,
    })
  const contents = async (store: string): Promise<string[]> =>
    (await app.key.get(`/memory-entries?memory_store_id=${store}`)).body.data
      .map(({ content }: { content: string }) => content)
      .sort()
  const all = { candidates: 3, created: 3, superseded: 0, skipped: 0, failed: 0 }
  const extractions = async () =>
    (await double.requests(lane)).filter(({ body }: any) => body.messages[0].role === 'system').length
  /** Those that are due and not handled yet; of earlier tests some wait for their time. */
  const waitingMessages = async (): Promise<number> => {
    const rows = await app.pool.any(sql.unsafe`
      select from pgboss.job_common where name = 'memory_rule.fire' and state < 'completed' and start_after <= now()`)
    return rows.length
  }
  const firings = async (): Promise<any[]> => [
    ...(await app.pool.any(sql.unsafe`select * from memory_rule_firings order by id`)),
  ]
  beforeEach(async () => {
    target.requests.length = 0
    lane = `durable-${++lanes}`
    await double.put(lane, {
      rules: [{ when: { system: 'JSON array' }, reply: { text: FACTS } }, { reply: { text: 'Hello' } }],
    })
    agent = await app.agent({ model: `${lane}/m` })
  })
  afterEach(async () => {
    await steady.stop()
    const running = processes.splice(0).filter(({ child }) => (child.exitCode ?? child.signalCode) === null)
    await Promise.all(running.map(each => each.kill()))
    await app.pool.query(sql.unsafe`delete from memory_rules`)
  })

  for (const [point, calls] of [
    ['memory_rule.fire/claimed', 1],
    ['firing_answered', 2],
    ['firing_facts', 1],
    ['firing_fact_written', 1],
  ] as const)
    it(`a worker that is lost at ${point} doubles no fact and no count`, async () => {
      const { id, store } = await ruled()
      const first = await worker({ FAULT_POINTS: `${point}=kill` })
      const generation = await start()
      await first.exited
      await steadyWorker()
      assert.deepEqual(await extraction(generation, id), all)
      assert.deepEqual(await contents(store), ['One', 'Three', 'Two'])
      assert.equal(await extractions(), calls)
    })

  it('a firing whose workers are lost repeatedly is abandoned', async () => {
    const { id } = await ruled()
    const generation = await start()
    for (let lost = 0; lost < 3; lost++) await (await worker({ FAULT_POINTS: 'memory_rule.fire/claimed=kill' })).exited
    await steadyWorker()
    const { error } = await extraction(generation, id)
    assert.equal(error.code, 'GENERATION_FAILED')
  })

  it('messages that are delivered twice, or to two workers concurrently, do nothing twice', async () => {
    const { id, store } = await ruled()
    await steadyWorker()
    const generation = await start()
    await extraction(generation, id)
    const [firing] = await firings()
    await steadyWorker()
    const message = { entity_id: firing.id, work_id: firing.id, project_id: app.projectId }
    await Promise.all(
      [1, 2, 3, 4].map(() => app.services.queues.send([{ queue: ruleFiringWork.queue, data: message }])),
    )
    await eventually(async () => (await waitingMessages()) === 0, { what: 'the messages being handled' })
    assert.deepEqual(await contents(store), ['One', 'Three', 'Two'])
    assert.deepEqual((await app.key.get(`/generations/${generation}`)).body.extraction, { [id]: all })
    assert.equal(await extractions(), 1)
  })

  it('a worker that was frozen past its lease writes nothing more', async () => {
    const { id, store } = await ruled()
    const first = await worker({ FAULT_POINTS: 'firing_fact_written=freeze:600000' })
    const generation = await start()
    await eventually(async () => (await contents(store)).length === 1, { what: 'the first fact' })
    first.child.kill('SIGSTOP')
    await steadyWorker()
    const counted = await extraction(generation, id)
    first.child.kill('SIGCONT')
    assert.deepEqual(counted, all)
    assert.deepEqual(await contents(store), ['One', 'Three', 'Two'])
    assert.deepEqual((await app.key.get(`/generations/${generation}`)).body.extraction, { [id]: all })
  })

  it('a firing whose message is lost is found by the sweep', async () => {
    const { id } = await ruled()
    const first = await worker({ FAULT_POINTS: 'memory_rule.fire/claimed=kill' })
    const generation = await start()
    await first.exited
    await app.pool.query(sql.unsafe`delete from pgboss.job_common where name = 'memory_rule.fire'`)
    await steadyWorker()
    assert.deepEqual(await extraction(generation, id), all)
  })

  it('what a turn fires commits with its end: a turn that is done again fires once', async () => {
    const { id } = await ruled()
    const first = await worker({ FAULT_POINTS: 'before_settle=kill' })
    const generation = await start()
    await first.exited
    assert.deepEqual(await firings(), [])
    const second = await worker({ FAULT_POINTS: 'after_settle=kill' })
    await second.exited
    assert.equal((await firings()).length, 1)
    await steadyWorker()
    assert.deepEqual(await extraction(generation, id), all)
    assert.equal((await firings()).length, 1)
  })

  it('the answer of a handler agent reaches its firing, whichever worker is lost meanwhile', async () => {
    const said = { text: `{"facts":${FACTS}}` }
    await double.put('handler', {
      rules: [{ when: { call: 1 }, reply: { ...said, gate: 'handler' } }, { reply: said }],
    })
    const { id, store } = await ruled({ agent_id: await app.agent({ model: 'handler/m' }) })
    const first = await worker()
    const generation = await start()
    await eventually(async () => ((await double.gate('handler'))?.waiting ?? 0) > 0, { what: 'the handler' })
    await first.kill()
    const second = await worker({ FAULT_POINTS: 'firing_fact_written=kill' })
    await second.exited
    await steadyWorker()
    assert.deepEqual(await extraction(generation, id), all)
    assert.deepEqual(await contents(store), ['One', 'Three', 'Two'])
    assert.equal((await double.requests('handler')).length, 2)
  })

  it('a handler that fails is called again later, twice, and the failure is recorded then', async () => {
    target.answer = json({ error: 'down' }, 500)
    const tool = await made(app.key, { execute: { url: target.url } })
    const { id } = await ruled({ tool_id: tool.id })
    await steadyWorker()
    const generation = await start()
    const delays: number[] = []
    for (let failures = 1; failures <= 2; failures++) {
      const waiting = await eventually(
        async () => (await firings()).find(each => each.state === 'queued' && each.failures === failures),
        { what: `failure ${failures}` },
      )
      const delay = await app.pool.oneFirst(sql.unsafe`
        select extract(epoch from start_after - created_on)::float8 from pgboss.job_common
        where name = ${ruleFiringWork.name} and state = 'created' and data ->> 'work_id' = ${waiting.id}
        order by created_on desc limit 1`)
      delays.push(Math.round(delay as number))
      assert.equal((await app.key.get(`/generations/${generation}`)).body.extraction, null)
      // The time has come, and the sweep finds it.
      await app.pool.query(sql.unsafe`update memory_rule_firings set due_at = now() - interval '1 minute'`)
    }
    const { error, candidates } = await extraction(generation, id)
    assert.deepEqual([error.code, candidates, target.requests.length], ['TOOL_HTTP_ERROR', 0, 3])
    assert.ok(delays[0] >= 8 && delays[0] <= 40, String(delays[0]))
    assert.ok(delays[1] >= 58 && delays[1] <= 90, String(delays[1]))
    const [{ facts, state }] = await firings()
    assert.deepEqual([facts, state], [null, 'failed'])
  })

  it('an answer without a list of facts is tried again, and fails the extraction', async () => {
    target.answer = json('nothing that could be read')
    const tool = await made(app.key, { execute: { url: target.url } })
    const { id } = await ruled({ tool_id: tool.id })
    await steadyWorker()
    const generation = await start()
    for (let failures = 1; failures <= 2; failures++) {
      await eventually(async () =>
        (await firings()).some(each => each.failures === failures && each.state === 'queued'),
      )
      await app.pool.query(sql.unsafe`update memory_rule_firings set due_at = now() - interval '1 minute'`)
    }
    const { error, candidates } = await extraction(generation, id)
    assert.deepEqual([error.code, candidates, target.requests.length], ['OUTPUT_SCHEMA_VALIDATION_FAILED', 0, 3])
  })

  it('a handler that takes too long has failed', async () => {
    target.answer = () => {}
    const tool = await made(app.key, { execute: { url: target.url } })
    await ruled({ tool_id: tool.id })
    await steadyWorker({ MEMORY_RULE_TIMEOUT_SECONDS: '1' })
    await start()
    await eventually(async () => (await firings()).some(each => each.failures === 1), { what: 'the first failure' })
  })

  it('a handler that is deleted while its turn runs is a rule that is off, and nothing is extracted in its place', async () => {
    await double.put('doomed', { rules: [{ reply: { text: '{"facts":["Never"]}', gate: 'doomed' } }] })
    const handler = await app.agent({ model: 'doomed/m' })
    const { id, store } = await ruled({ agent_id: handler })
    await steadyWorker()
    const generation = await start()
    await eventually(async () => ((await double.gate('doomed'))?.waiting ?? 0) > 0, { what: 'the handler' })
    assert.equal((await app.admin.delete(`/agents/${handler}?force=true`)).status, 204)
    await double.read('POST', '/control/gates/doomed/open')
    await app.pool.query(sql.unsafe`update memory_rule_firings set due_at = now() - interval '1 minute'`)
    const { error } = await extraction(generation, id)
    assert.equal(error.code, 'AGENT_NOT_FOUND')
    assert.deepEqual(await contents(store), [])
    assert.equal((await app.key.get(`/memory-rules/${id}`)).body.disabled_reason, 'handler_deleted')
  })

  it('a firing of a rule that is switched off, and of a turn that is erased, ends without a word', async () => {
    const off = await ruled()
    const erased = await ruled()
    const first = await worker({ FAULT_POINTS: 'after_settle=kill' })
    const generation = await start()
    await first.exited
    await app.key.patch(`/memory-rules/${off.id}`, { enabled: false })
    assert.equal((await app.key.delete(`/generations/${generation}/content`)).status, 200)
    await steadyWorker()
    await eventually(async () => (await firings()).every(({ state }) => state === 'done'), { what: 'the end of both' })
    assert.deepEqual([...(await contents(off.store)), ...(await contents(erased.store))], [])
    assert.equal((await app.key.get(`/generations/${generation}`)).body.extraction, null)
  })

  it('a firing whose turn is erased during the call of its handler stores nothing', async () => {
    await double.put(lane, {
      rules: [{ when: { system: 'JSON array' }, reply: { text: FACTS, gate: 'asked' } }, { reply: { text: 'hi' } }],
    })
    const { id, store } = await ruled()
    await steadyWorker()
    const generation = await start()
    await eventually(async () => ((await double.gate('asked'))?.waiting ?? 0) > 0, { what: 'the handler' })
    assert.equal((await app.key.delete(`/generations/${generation}/content`)).status, 200)
    await double.read('POST', '/control/gates/asked/open')
    // By the end of a later firing the answer has been processed.
    const later = await ruled()
    const next = await start()
    for (const rule of [id, later.id]) assert.deepEqual(await extraction(next, rule), all)
    assert.deepEqual(
      (await firings())
        .filter(({ generation_id }) => generation_id === generation)
        .map(({ state, facts }) => [state, facts]),
      [['done', null]],
    )
    assert.deepEqual(await contents(store), ['One', 'Three', 'Two'])
    assert.equal((await app.key.get(`/memory-entries?generation_id=${generation}`)).body.total, 0)
    assert.equal((await app.key.get(`/generations/${generation}`)).body.extraction, null)
  })

  it('firings of a paused project continue when it is resumed', async () => {
    const { id } = await ruled()
    const first = await worker({ FAULT_POINTS: 'after_settle=kill' })
    const generation = await start()
    await first.exited
    assert.equal((await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'x' })).status, 200)
    await steadyWorker()
    await eventually(async () => (await waitingMessages()) === 0, { what: 'the read of the message' })
    assert.equal(await extractions(), 0)
    await app.admin.post(`/projects/${app.projectId}/resume`)
    assert.deepEqual(await extraction(generation, id), all)
  })
})
