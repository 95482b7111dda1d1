import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { type Fragment, sql } from '#core/db/sql.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { type Message, openStream, readStream } from './streams.ts'

/** Short leases, so that a lost worker is missed within seconds. */
const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }

describe('durable turns', function () {
  this.timeout(60_000)
  let app: AgentApp
  let double: ReturnType<typeof client>
  const processes: TestProcess[] = []

  const worker = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['generation'])
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['generation'])
  const open = (gate: string) => double.read('POST', `/control/gates/${gate}/open`)
  const waitingAt = (gate: string, count = 1) =>
    eventually(async () => ((await double.gate(gate))?.waiting ?? 0) >= count, { what: `${count} waiting at ${gate}` })
  const ended = (id: string) =>
    eventually(
      async () => {
        const { body } = await app.key.get(`/generations/${id}`)
        return body.status === 'completed' || body.status === 'failed' ? body : null
      },
      { what: `end of ${id}` },
    )

  before(async () => {
    app = await startAgentApp({
      workers: [],
      actions: ['agents:*', 'conversations:*', 'events:*', 'generations:*', 'traces:*'],
    })
    double = client(app.double)
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(
      processes
        .splice(0)
        .map(async each => (each.child.exitCode === null && each.child.signalCode === null ? each.kill() : null)),
    )
  })
  after(() => app?.close())

  it('two workers run 100 background turns once each', async () => {
    await double.put('many', { rules: [] })
    const agent = await app.agent({ model: 'many/m' })
    await Promise.all([steadyWorker(), steadyWorker()])
    const asked = await Promise.all(
      Array.from({ length: 100 }, (_, n) => app.key.post(`/agents/${agent}/generate`, { prompt: `turn ${n}` })),
    )
    assert.ok(asked.every(answer => answer.status === 202))
    await eventually(
      async () => (await app.key.get(`/generations?agent_id=${agent}&status=completed`)).body.total === 100,
      { within: 50_000 },
    )
    const prompts = (await double.requests('many')).map(request => request.body.messages.at(-1).content)
    assert.equal(prompts.length, 100)
    assert.equal(new Set(prompts).size, 100)
  })

  it('another worker continues after the settled step of a killed one', async () => {
    await double.put('killed', {
      rules: [
        { when: { call: 1 }, reply: { tool_calls: [{ name: 'nothing', args: {} }] } },
        { when: { call: 2 }, reply: { text: 'lost', gate: 'killed-gate' } },
        { reply: { text: 'found' } },
      ],
    })
    const agent = await app.agent({ model: 'killed/m' })
    const first = await worker()
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('killed-gate')
    await first.kill()
    await steadyWorker()
    const record = await ended(body.generation_id)
    assert.equal(record.output.content, 'found')
    const transcript = (await app.key.get(`/generations/${record.id}/transcript`)).body
    assert.deepEqual(
      transcript.steps.map((step: { index: number }) => step.index),
      [0, 1],
    )
    assert.equal((await double.requests('killed')).length, 3)
    assert.equal(record.step_count, 2)
  })

  it('what a turn works on is small while it waits, whatever its size, and whole when it runs', async () => {
    await double.put('long', { rules: [] })
    const agent = await app.agent({ model: 'long/m' })
    const said = (length: number) => 'a word that is said again; '.repeat(length)
    const prompts = [said(1), said(1000), said(9000), `é${said(1000)}\u{1f600}`]
    for (const prompt of prompts)
      assert.equal((await app.key.post(`/agents/${agent}/generate`, { prompt })).status, 202)
    const sizes = (await app.pool.anyFirst(
      sql.unsafe`select length(sealed) from generation_work order by generation_id`,
    )) as number[]
    assert.equal(sizes.length, 4)
    assert.ok(Math.max(...sizes) < 5000, String(sizes))
    await steadyWorker()
    await eventually(async () => (await double.requests('long')).length === 4)
    // Later tests count what their workers do.
    await eventually(
      async () => (await app.key.get(`/generations?agent_id=${agent}&status=completed`)).body.total === 4,
    )
    const asked = (await double.requests('long')).map(request => request.body.messages.at(-1).content)
    assert.deepEqual(new Set(asked), new Set(prompts))
  })

  it('a worker frozen past its lease changes nothing when it thaws', async () => {
    await double.put('frozen', {
      rules: [{ when: { call: 1 }, reply: { text: 'stale', gate: 'frozen-gate' } }, { reply: { text: 'fresh' } }],
    })
    const agent = await app.agent({ model: 'frozen/m' })
    const first = await steadyWorker()
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('frozen-gate')
    process.kill(first.pid, 'SIGSTOP')
    await steadyWorker()
    const record = await ended(body.generation_id)
    assert.equal(record.output.content, 'fresh')
    await open('frozen-gate')
    process.kill(first.pid, 'SIGCONT')
    await eventually(() => first.output.some(line => line.includes('"outcome":"claim_lost"')), {
      what: 'the thawed worker leaving',
    })
    assert.deepEqual((await app.key.get(`/generations/${record.id}`)).body, record)
    assert.equal((await app.key.get(`/traces/${record.trace_id}`)).body.step_count, 1)
  })

  it('a turn whose workers are lost three times without progress fails with executor_lost', async () => {
    await double.put('cursed', {
      rules: [
        { when: { call: { from: 2 } }, reply: { text: 'x' } },
        { reply: { tool_calls: [{ name: 'nothing', args: {} }] } },
      ],
    })
    const agent = await app.agent({ model: 'cursed/m' })
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    // The first settles a step and dies at the next; two more die immediately.
    const first = await worker({ FAULT_POINTS: 'before_settle=kill' })
    await first.exited
    for (let lost = 0; lost < 2; lost++) await (await worker({ FAULT_POINTS: 'before_model=kill' })).exited
    await steadyWorker()
    const record = await ended(body.generation_id)
    assert.equal(record.status, 'failed')
    assert.equal(record.error.code, 'GENERATION_FAILED')
    assert.equal(record.error.meta.reason, 'executor_lost')
    assert.equal(record.step_count, 1)
    assert.ok(record.usage.output_tokens > 0)
  })

  for (const point of ['after_claim', 'before_model', 'after_model', 'before_settle', 'after_settle']) {
    it(`a worker killed ${point.replace('_', ' ')} costs no turn and doubles none`, async () => {
      const agent = await app.agent()
      const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
      await (await worker({ FAULT_POINTS: `${point}=kill` })).exited
      await steadyWorker()
      const record = await ended(body.generation_id)
      assert.equal(record.output.content, 'echo: x')
      assert.equal(record.step_count, 1)
      assert.equal((await app.key.get(`/traces/${record.trace_id}`)).body.step_count, 1)
      const events = await app.key.get(`/events?resource_id=${record.id}`)
      assert.deepEqual(events.body.data.map((event: { event: string }) => event.event).sort(), [
        'generations.completed',
        'generations.started',
      ])
    })
  }

  /** Locks a table, does `work`, and cuts the connection of the statement that waits for the lock then. */
  const cutWaiting = async (lock: Fragment, work: () => Promise<unknown>) => {
    await app.services.pool.transaction(async tx => {
      await tx.query(sql.unsafe`lock table ${lock} mode`)
      await work()
      const waiting = sql.type(z.object({ pid: z.int() }))`
        select pid from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query !~ 'last_used_at'`
      // A transaction sees the activity of its first read, unless it says otherwise.
      const look = async () => {
        await tx.query(sql.unsafe`select pg_stat_clear_snapshot()`)
        return tx.maybeOneFirst(waiting)
      }
      const pid = await eventually(look, { within: 30_000, what: 'a statement that waits' })
      await tx.query(sql.unsafe`select pg_terminate_backend(${pid})`)
    })
  }

  it('a database that is lost before a turn has started costs no turn', async () => {
    const agent = await app.agent()
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await cutWaiting(sql.fragment`project_keys in access exclusive`, steadyWorker)
    const record = await ended(body.generation_id)
    assert.deepEqual([record.status, record.error, record.step_count], ['completed', null, 1])
  })

  it('a database that is lost when the model has answered costs no turn, and no second call', async () => {
    await double.put('cut', {
      rules: [{ when: { call: 1 }, reply: { text: 'x', gate: 'cut' } }, { reply: { text: 'y' } }],
    })
    const agent = await app.agent({ model: 'cut/m' })
    await steadyWorker()
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('cut')
    await cutWaiting(sql.fragment`generations in share`, () => open('cut'))
    const record = await ended(body.generation_id)
    assert.deepEqual([record.status, record.error, record.output.content], ['completed', null, 'x'])
    assert.equal((await double.requests('cut')).length, 1)
  })

  it('workers killed under load lose no turn and double none', async () => {
    await double.put('load', { rules: [{ reply: { text: 'ok', delay_ms: 20 } }] })
    const agent = await app.agent({ model: 'load/m' })
    const asked: string[] = []
    for (let round = 0; round < 3; round++) {
      const running = await worker()
      const answers = await Promise.all(
        Array.from({ length: 40 }, () => app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })),
      )
      asked.push(...answers.map(answer => answer.body.generation_id))
      await sleep(150)
      await running.kill()
    }
    await steadyWorker()
    await eventually(
      async () => (await app.key.get(`/generations?agent_id=${agent}&status=completed`)).body.total === asked.length,
      { within: 40_000, every: 200 },
    )
    const counted = await app.pool.any(
      (await import('#core/db/sql.ts')).sql
        .unsafe`select resource_id, count(*) as count from events where name = 'generations.completed' group by 1 having count(*) > 1`,
    )
    assert.deepEqual(counted, [])
  })

  it('a client of a killed web process resumes its stream at another without a gap', async () => {
    await double.put('moved', {
      rules: [{ reply: { text: 'one two three four five six seven eight', chunk_delay_ms: 80 } }],
    })
    const agent = await app.agent({ model: 'moved/m' })
    const web = await startProcess('web', app.databaseUrl)
    processes.push(web)
    await steadyWorker()
    const stream = await openStream({ url: web.url, key: app.key }, `/agents/${agent}/generate`, {
      prompt: 'x',
      stream: true,
    })
    const seen: Message[] = []
    await assert.rejects(async () => {
      for await (const message of stream.messages) {
        seen.push(message)
        if (seen.length === 3) await web.kill()
      }
      throw new Error('the stream ended')
    })
    assert.ok(seen.length >= 3)
    const id = seen[0].data.generation_id
    const rest = await readStream(
      await openStream(app, `/generations/${id}/stream`, undefined, { 'last-event-id': String(seen.at(-1)?.id) }),
    )
    const all = [...seen, ...rest]
    assert.deepEqual(
      all.map(message => message.id),
      all.map((_, index) => index + 1),
    )
    assert.equal(
      all
        .filter(message => message.event === 'delta')
        .map(message => message.data.choices[0].delta.content)
        .join(''),
      'one two three four five six seven eight',
    )
    assert.equal(all.at(-1)?.event, 'completed')
  })

  it('a stream says when the text of a step is void because its worker was lost', async () => {
    await double.put('void', {
      rules: [
        { when: { call: { to: 2 } }, reply: { text: 'never to be seen whole', gate: 'void-gate', gate_after: 2 } },
        { reply: { text: 'the real answer' } },
      ],
    })
    const agent = await app.agent({ model: 'void/m' })
    const conversation = (await app.key.post('/conversations', {})).body.id
    await app.key.post(`/conversations/${conversation}/messages`, { message: 'x', role: 'user' })
    const first = await worker()
    const [direct, spoken] = await Promise.all([
      openStream(app, `/agents/${agent}/generate`, { prompt: 'x', stream: true }),
      openStream(app, `/conversations/${conversation}/generate`, { agent_id: agent, stream: true }),
    ])
    const read = Promise.all([readStream(direct), readStream(spoken)])
    await waitingAt('void-gate', 2)
    await first.kill()
    await steadyWorker()
    const [turn, reply] = await read
    const { generation_id } = turn[0].data
    const attached = await readStream(await openStream(app, `/generations/${generation_id}/stream`))
    for (const messages of [turn, reply, attached]) {
      const restart = messages.findIndex(message => message.event === 'step_restarted')
      assert.ok(restart > 0)
      assert.deepEqual(messages[restart].data, { step: 1 })
      const text = messages
        .slice(restart)
        .filter(message => message.event === 'delta')
        .map(message => message.data.choices[0].delta.content)
      assert.equal(text.join(''), 'the real answer')
      const last = messages.at(-1)?.data
      assert.equal(last.output?.content ?? last.content, 'the real answer')
    }
  })

  it('SIGTERM lets a running turn finish; the process exits 0', async () => {
    await double.put('polite', { rules: [{ reply: { text: 'finished', gate: 'polite-gate' } }] })
    const agent = await app.agent({ model: 'polite/m' })
    const running = await worker()
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('polite-gate')
    running.child.kill('SIGTERM')
    await eventually(() => running.output.some(line => line.includes('"msg":"shutdown started"')))
    await open('polite-gate')
    assert.deepEqual(await running.exited, { code: 0, signal: null })
    const record = await ended(body.generation_id)
    assert.equal(record.output.content, 'finished')
  })

  it('a starting worker immediately continues the turn of a killed one, with default leases', async () => {
    await double.put('successor', {
      rules: [
        { when: { call: 1 }, reply: { text: 'held', gate: 'successor-gate' } },
        { reply: { text: 'taken over' } },
      ],
    })
    const agent = await app.agent({ model: 'successor/m' })
    const long = { GENERATION_LEASE_SECONDS: '60', GENERATION_SWEEP_SECONDS: '60' }
    const running = await worker(long)
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('successor-gate')
    await running.kill()
    await steadyWorker(long)
    assert.equal((await ended(body.generation_id)).output.content, 'taken over')
  })

  it('a worker requeues its turn immediately and uncounted when its grace period ends', async () => {
    await double.put('handed', {
      rules: [{ when: { call: 1 }, reply: { text: 'held', gate: 'handed-gate' } }, { reply: { text: 'taken over' } }],
    })
    const agent = await app.agent({ model: 'handed/m' })
    const running = await worker({
      SHUTDOWN_GRACE_MS: '200',
      GENERATION_LEASE_SECONDS: '60',
      GENERATION_SWEEP_SECONDS: '60',
    })
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('handed-gate')
    running.child.kill('SIGTERM')
    assert.equal((await running.exited).code, 0)
    await steadyWorker({ GENERATION_LEASE_SECONDS: '60', GENERATION_SWEEP_SECONDS: '60' })
    assert.equal((await ended(body.generation_id)).output.content, 'taken over')
  })

  /** Stops a worker in a model call, and returns the outcome that it logs for its attempt at the turn. */
  async function outcomeOfStop(model: string, whileStopping: (id: string, stop: () => Promise<void>) => Promise<void>) {
    await double.put(model, {
      rules: [{ when: { call: 1 }, reply: { text: 'held', gate: `${model}-gate` } }, { reply: { text: 'taken over' } }],
    })
    const agent = await app.agent({ model: `${model}/m` })
    const leases = { GENERATION_LEASE_SECONDS: '60', GENERATION_SWEEP_SECONDS: '60' }
    const running = await worker({ ...leases, SHUTDOWN_GRACE_MS: '200', LOG_LEVEL: 'info' })
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt(`${model}-gate`)
    await whileStopping(body.generation_id, async () => {
      running.child.kill('SIGTERM')
      await running.exited
    })
    const attempts = running.output.filter(line => line.includes('work attempted') && line.includes(body.generation_id))
    await steadyWorker(leases)
    assert.equal((await ended(body.generation_id)).output.content, 'taken over')
    return attempts.map(line => JSON.parse(line)).map(({ outcome, err }) => ({ outcome, error: err?.message ?? null }))
  }

  it('a worker that cannot requeue its turn when it stops says so in its log', async () => {
    const logged = await outcomeOfStop('unrequeued', (_id, stop) =>
      refusingUpdates(app.services, 'generations', 'new.handed_back', async refused => {
        await stop()
        await refused(1)
      }),
    )
    assert.deepEqual(logged, [{ outcome: 'requeue_failed', error: 'refused' }])
  })

  it('a worker that has lost its turn when it stops does not log that it requeued it', async () => {
    const logged = await outcomeOfStop('lost-at-stop', async (id, stop) => {
      await app.pool.query(sql.unsafe`update generations set attempt = attempt + 1 where id = ${id}`)
      await stop()
    })
    assert.deepEqual(logged, [{ outcome: 'claim_lost', error: null }])
  })
})
