import assert from 'node:assert/strict'
import { z } from 'zod'
import { sql } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { toolCall } from '../support/scripts.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { json, startTarget, type Target } from './tool-target.ts'

/** Short leases, so that a lost worker is missed within seconds. */
const FAST = {
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  PROVIDER_MAX_RETRIES: '0',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
}

const counted = sql.type(z.object({ count: z.int() }))
/** Entries of the journals of active steps. */
const entries = (settled: boolean) =>
  counted`select count(*)::int as count from generation_journal where position > 0 and (not ${settled} or body is not null)`

const script = (...replies: object[]) => ({ prompt: `@double ${JSON.stringify(replies)}` })

describe('workers killed in turns with tools', function () {
  this.timeout(90_000)
  let app: AgentApp
  let target: Target
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
  const killed = ({ child }: TestProcess) => eventually(() => child.signalCode === 'SIGKILL', { what: 'the kill' })
  const bound = (name: string, idempotent: boolean) => ({
    tool: { name, execute: { url: `${target.url}/${name}` }, idempotent },
  })
  const ended = (id: string, ...statuses: string[]) =>
    eventually(
      async () => {
        const { body } = await app.key.get(`/generations/${id}`)
        return (statuses.length ? statuses : ['completed', 'failed']).includes(body.status) ? body : null
      },
      { what: `end of ${id}`, within: 60_000 },
    )
  const stepsOf = async (id: string) => (await app.key.get(`/generations/${id}/transcript`)).body.steps
  const toolUses = (id: string) =>
    app.pool.oneFirst(
      counted`select count(*)::int as count from usage_events where generation_id = ${id} and meter_type = 'tool_execution'`,
    )
  const modelCalls = async () => {
    const answer = await fetch(`${app.double.url}/control/requests?kind=chat`)
    return ((await answer.json()) as any).data.length
  }

  beforeEach(async () => {
    target = await startTarget()
    app = await startAgentApp({
      workers: [],
      env: FAST,
      actions: ['agents:CreateAgentGeneration', 'agents:GetAgent', 'generations:*', 'traces:*'],
    })
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(
      processes
        .splice(0)
        .map(async each => (each.child.exitCode === null && each.child.signalCode === null ? each.kill() : null)),
    )
    await app.close()
    await target.close()
  })

  // Where a worker is killed; calls of the tool that may be repeated, and of the other; calls of the model.
  for (const [point, repeated, once, asked] of [
    ['before_model', 1, 1, 2],
    ['after_model', 1, 1, 3],
    ['before_tool', 1, 0, 2],
    ['after_tool', 2, 1, 2],
    ['before_settle', 1, 1, 3],
  ] as const) {
    it(`at ${point.replace('_', ' ')} lose nothing, and repeat no call that must not be`, async () => {
      for (const idempotent of [true, false]) {
        target.requests.length = 0
        const before = await modelCalls()
        const agent = await app.agent({ tool_bindings: [bound('act', idempotent)] })
        const first = await worker({ FAULT_POINTS: `${point}=kill` })
        const { body } = await app.key.post(
          `/agents/${agent}/generate`,
          script(toolCall('act', { n: 1 }), { text: 'done' }),
        )
        await killed(first)
        await steadyWorker()
        const record = await ended(body.generation_id)
        await steady.stop()
        assert.deepEqual([record.status, record.step_count, record.output.content], ['completed', 2, 'done'])
        assert.equal(target.requests.length, idempotent ? repeated : once, `${idempotent}`)
        assert.equal(new Set(target.requests.map(({ headers }) => headers['idempotency-key'])).size <= 1, true)
        assert.equal((await modelCalls()) - before, asked)
        for (const step of [1, 2]) {
          const sent = await app.key.get(`/generations/${record.id}/steps/${step}/request`)
          assert.deepEqual(
            [sent.status, sent.body.tools?.[0].name, sent.body.messages?.length],
            [200, 'act', 2 * step - 1],
          )
        }
        // Made once more or not at all, and not known whether it was: it counts once.
        assert.equal(await toolUses(record.id), 1)
        const [step] = await stepsOf(record.id)
        const known = idempotent || !['before_tool', 'after_tool'].includes(point)
        if (known) assert.deepEqual(step.tool_results[0].result, { ok: true })
        else
          assert.deepEqual(
            [step.tool_results[0].error.code, step.tool_results[0].error.meta],
            ['TOOL_CALL_FAILED', { reason: 'outcome_unknown' }],
          )
      }
    })
  }

  it('during a call, keep the outcome of another call and report the unknown one', async () => {
    let held = 0
    target.answer = (request, response) => {
      if (request.url === '/fast') return json({ fast: true })(request, response)
      if (request.url === '/again' && held > 1) return json({ again: true })(request, response)
      held++
    }
    const agent = await app.agent({ tool_bindings: [bound('fast', false), bound('act', false), bound('again', true)] })
    const first = await worker()
    const calls = { tool_calls: ['fast', 'act', 'again'].map(name => ({ name, args: {} })) }
    const { body } = await app.key.post(`/agents/${agent}/generate`, script(calls, { text: 'done' }))
    await eventually(() => held === 2, { what: 'two active calls' })
    await eventually(async () => (await app.pool.oneFirst(entries(true))) === 1, {
      what: 'the outcome of the first',
    })
    await first.kill()
    await steadyWorker()
    const record = await ended(body.generation_id)
    assert.equal(record.status, 'completed')
    const [{ tool_results }] = await stepsOf(record.id)
    assert.deepEqual(
      tool_results.map(({ result, error }: any) => result ?? error.meta.reason),
      [{ fast: true }, 'outcome_unknown', { again: true }],
    )
    assert.equal(await toolUses(record.id), 3)
    const made = Object.groupBy(target.requests, ({ url }) => url)
    assert.deepEqual(
      ['/fast', '/act', '/again'].map(url => made[url]?.length),
      [1, 1, 2],
    )
    const keys = made['/again']?.map(({ headers }) => headers['idempotency-key']) ?? []
    assert.equal(keys[0], keys[1])
    assert.equal(await app.pool.oneFirst(entries(false)), 0)
  })

  it('over one call again and again, end the turn, which has used the call once', async () => {
    const agent = await app.agent({ tool_bindings: [bound('act', true)] })
    const { body } = await app.key.post(`/agents/${agent}/generate`, script(toolCall('act'), { text: 'done' }))
    for (let lost = 0; lost < 3; lost++) await killed(await worker({ FAULT_POINTS: 'before_tool=kill' }))
    await steadyWorker()
    const record = await ended(body.generation_id)
    assert.deepEqual([record.status, record.error.meta.reason], ['failed', 'executor_lost'])
    const [{ tool_results }] = await stepsOf(record.id)
    assert.equal(tool_results[0].error.meta.reason, 'outcome_unknown')
    const uses = await app.pool.any(
      sql.unsafe`select tool_action from usage_events where generation_id = ${record.id} and meter_type = 'tool_execution'`,
    )
    assert.deepEqual(uses, [{ tool_action: 'act' }])
  })

  it('in a pause and after it, continue days later with the same version and numbers', async () => {
    const client = { tool: { name: 'pick', type: 'client' } }
    const agent = await app.agent({ instructions: 'first', tool_bindings: [client, bound('act', false)] })
    const first = await worker({ FAULT_POINTS: 'after_settle=kill' })
    const calls = {
      tool_calls: [
        { name: 'pick', args: {} },
        { name: 'act', args: {} },
      ],
    }
    const { body } = await app.key.post(`/agents/${agent}/generate`, script(calls, { text: 'done' }))
    await killed(first)
    const paused = await ended(body.generation_id, 'requires_action')
    await app.admin.patch(`/agents/${agent}`, { instructions: 'second' })
    const [{ id }] = paused.required_action.tool_calls
    const tool_outputs = [{ tool_call_id: id, output: 'picked' }]
    const path = `/agents/${agent}/generate/${paused.id}/tool-outputs?wait=false`
    assert.equal((await app.key.post(path, { tool_outputs })).status, 202)
    const second = await worker({ FAULT_POINTS: 'after_model=kill' })
    await killed(second)
    await steadyWorker()
    const record = await ended(paused.id)
    assert.deepEqual([record.status, record.agent_version, record.step_count], ['completed', 1, 2])
    assert.equal(target.requests.length, 1)
    const [{ tool_results }] = await stepsOf(record.id)
    assert.deepEqual(
      tool_results.map(({ result }: any) => result),
      ['picked', { ok: true }],
    )
  })

  it('lose nothing of a turn whose content is not kept', async () => {
    const agent = await app.agent({ trace_content_mode: 'none', tool_bindings: [bound('act', false)] })
    target.answer = json({ secret: 'value' })
    const first = await worker({ FAULT_POINTS: 'before_settle=kill' })
    const waited = app.key.post(
      `/agents/${agent}/generate?wait=true`,
      script(toolCall('act'), toolCall('act'), { text: 'saw {{tool.act.secret}}' }),
    )
    await killed(first)
    await steadyWorker()
    const { body } = await waited
    assert.equal(body.output.content, 'saw value')
    assert.equal(target.requests.length, 2)
  })

  it('give no second chance to a turn that is called off during a call, which is kept as not known', async () => {
    target.answer = () => {}
    const agent = await app.agent({ tool_bindings: [bound('act', false)] })
    await steadyWorker()
    const { body } = await app.key.post(`/agents/${agent}/generate`, script(toolCall('act'), { text: 'done' }))
    await eventually(() => target.requests.length === 1)
    await app.key.post(`/generations/${body.generation_id}/cancel`)
    const record = await ended(body.generation_id)
    assert.deepEqual([record.status, record.stop_reason], ['failed', 'cancelled'])
    const [{ tool_results }] = await stepsOf(record.id)
    assert.equal(tool_results[0].error.meta.reason, 'outcome_unknown')
    assert.equal(await toolUses(record.id), 1)
    target.answer = json({ ok: true })
    const again = await app.key.post(`/generations/${record.id}/retry?wait=true`)
    assert.equal(again.body.output.content, 'done')
    assert.equal(target.requests.length, 1, 'what may have been done is not done again')
  })
})
