import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { usageOf } from '../control/usage-support.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { DECIDER_ACTIONS, eventsOf, madeDecider, QUESTIONS, settled, TOOL_ANSWERS, toolAt } from './decider-support.ts'
import { startAgentApp } from './fixtures.ts'
import { json, startTarget } from './tool-target.ts'

/** Short leases, so that a lost worker is missed within seconds. */
const FAST = {
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  DECISION_LEASE_SECONDS: '2',
  DECISION_SWEEP_INTERVAL_MS: '1000',
  SHUTDOWN_GRACE_MS: '300',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
}
const GOOD = JSON.stringify({ urgent: true, team: 'support', anger: 2 })
const SECRET = 'what nobody else may read'

describe('decisions and their workers', function () {
  this.timeout(60_000)
  const target = forSuite(startTarget)
  const app = forSuite(() => startAgentApp({ workers: [], actions: [...DECIDER_ACTIONS, 'projects:*'] }))
  const double = forSuite(() => client(app.double))
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
  const ask = async (body: object, decider: string): Promise<string> =>
    (await createdBy(app.key, `/deciders/${decider}/decisions`, { input: SECRET, ...body })).id
  /** A tool that keeps its caller waiting at the first request, and a decider that calls it. */
  const slowTool = async (fields: object = {}) => {
    let free = () => {}
    target.answer = (request, response) => {
      free = () => json(TOOL_ANSWERS)(request, response)
      target.answer = json(TOOL_ANSWERS)
    }
    const { id } = await madeDecider(app.key, { tool_id: await toolAt(app.key, target.url, fields) })
    return { decider: id as string, answer: () => free() }
  }
  const called = (count = 1) => eventually(() => target.requests.length === count, { what: `${count} calls` })
  const rows = async (table: string) =>
    (await app.pool.any(sql.unsafe`select * from ${sql.identifier([table])}`)) as Record<string, unknown>[]
  const inputsLeft = async () =>
    [...(await rows('decision_inputs')), ...(await rows('decision_inputs_unlogged'))].length
  const usedOnce = async (id: string) => {
    const keys = (await usageOf(app, app.projectId)).map(({ idempotency_key }) => idempotency_key)
    assert.equal(keys.filter(key => key === `tool:${id}`).length, 1)
  }
  const endedOnce = async (id: string) =>
    assert.equal((await eventsOf(app.key, id)).length, 1, JSON.stringify(await eventsOf(app.key, id)))
  beforeEach(() => {
    target.requests.length = 0
    target.answer = json(TOOL_ANSWERS)
  })
  afterEach(async () => {
    await steady.stop()
    const running = processes.splice(0).filter(each => (each.child.exitCode ?? each.child.signalCode) === null)
    await Promise.all(running.map(each => each.kill()))
    assert.equal(await inputsLeft(), 0)
  })

  it('an agent is called again when its worker is killed, and the decision ends once', async () => {
    await double.put('killed', {
      rules: [{ when: { call: 1 }, reply: { text: GOOD, gate: 'killed' } }, { reply: { text: GOOD } }],
    })
    const { id: decider } = await madeDecider(app.key, { agent_id: await app.agent({ model: 'killed/m' }) })
    const first = await worker()
    const id = await ask({}, decider)
    await eventually(async () => ((await double.gate('killed'))?.waiting ?? 0) > 0, { what: 'the call of the model' })
    await first.kill()
    await steadyWorker()
    const decision = await settled(app.key, id)
    assert.deepEqual([decision.status, decision.answers.length], ['completed', 3])
    assert.equal((await app.key.get(`/generations?agent_id=${decision.agent_id}`)).body.total, 1)
    assert.equal((await double.requests('killed')).length, 2)
    await endedOnce(id)
  })

  it('a tool that was called is not called again when its worker is killed', async () => {
    const { decider } = await slowTool()
    const first = await worker()
    const id = await ask({}, decider)
    await called()
    await first.kill()
    await steadyWorker()
    const decision = await settled(app.key, id)
    assert.deepEqual([decision.status, decision.error.code], ['failed', 'DECISION_INTERRUPTED'])
    assert.equal(target.requests.length, 1)
    await endedOnce(id)
    await usedOnce(id)
  })

  it('a tool call that is idempotent is repeated with its first key', async () => {
    const { decider } = await slowTool({ idempotent: true })
    const first = await worker()
    const id = await ask({}, decider)
    await called()
    await first.kill()
    await steadyWorker()
    assert.equal((await settled(app.key, id)).status, 'completed')
    assert.deepEqual(
      target.requests.map(({ headers }) => headers['idempotency-key']),
      [id, id],
    )
    await endedOnce(id)
  })

  it('a tool call that had not started is made by another worker', async () => {
    const { id: decider } = await madeDecider(app.key, { tool_id: await toolAt(app.key, target.url) })
    const first = await worker({ FAULT_POINTS: 'decision.evaluate/claimed=kill' })
    const id = await ask({}, decider)
    await first.exited
    await steadyWorker()
    assert.equal((await settled(app.key, id)).status, 'completed')
    assert.equal(target.requests.length, 1)
  })

  it('an answer that a worker could not record any more is lost', async () => {
    const { id: decider } = await madeDecider(app.key, { tool_id: await toolAt(app.key, target.url) })
    const first = await worker({ FAULT_POINTS: 'decision_answered=kill' })
    const id = await ask({}, decider)
    await first.exited
    await steadyWorker()
    assert.equal((await settled(app.key, id)).error.code, 'DECISION_INTERRUPTED')
    assert.equal(target.requests.length, 1)
  })

  it('an idempotent tool is not called endlessly by workers that are lost', async () => {
    const { id: decider } = await madeDecider(app.key, {
      tool_id: await toolAt(app.key, target.url, { idempotent: true }),
    })
    const id = await ask({}, decider)
    for (let lost = 0; lost < 3; lost++) await (await worker({ FAULT_POINTS: 'decision_answered=kill' })).exited
    await steadyWorker()
    assert.equal((await settled(app.key, id)).error.code, 'DECISION_INTERRUPTED')
    assert.equal(target.requests.length, 3)
    await usedOnce(id)
  })

  it('a worker that was frozen past its lease changes nothing when it thaws', async () => {
    const { decider, answer } = await slowTool()
    const first = await steadyWorker()
    const id = await ask({}, decider)
    await called()
    process.kill(first.pid, 'SIGSTOP')
    await steadyWorker()
    const decision = await settled(app.key, id)
    assert.equal(decision.error.code, 'DECISION_INTERRUPTED')
    answer()
    process.kill(first.pid, 'SIGCONT')
    await eventually(() => first.output.some(line => line.includes(id) && line.includes('claim_lost')), {
      what: 'the late worker leaving',
    })
    assert.deepEqual((await app.key.get(`/decisions/${id}`)).body, decision)
    await endedOnce(id)
  })

  it('a worker that stops gives the call of an idempotent tool to another', async () => {
    const { decider } = await slowTool({ idempotent: true })
    const first = await worker()
    const id = await ask({}, decider)
    await called()
    await first.kill('SIGTERM')
    await steadyWorker()
    assert.equal((await settled(app.key, id)).status, 'completed')
    assert.equal(target.requests.length, 2)
  })

  it('a decision whose message is lost is found by the sweep', async () => {
    const { id: decider } = await madeDecider(app.key, { tool_id: await toolAt(app.key, target.url) })
    const id = await ask({}, decider)
    await app.pool.query(sql.unsafe`delete from pgboss.job_common where name = 'decision.evaluate'`)
    await steadyWorker()
    assert.equal((await settled(app.key, id)).status, 'completed')
  })

  it('a decision requested before a pause waits for its end', async () => {
    await double.put('paused', { rules: [{ reply: { text: GOOD } }] })
    const deciders = [
      await madeDecider(app.key, { tool_id: await toolAt(app.key, target.url) }),
      await madeDecider(app.key, { agent_id: await app.agent({ model: 'paused/m' }) }),
    ]
    const ids = await Promise.all(deciders.map(({ id }) => ask({}, id)))
    assert.equal((await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'x' })).status, 200)
    await steadyWorker()
    await eventually(
      async () =>
        (
          await app.pool.any(sql.unsafe`
          select from pgboss.job_common where name = 'decision.evaluate' and state < 'completed'`)
        ).length === 0,
      { what: 'the read of the messages' },
    )
    for (const id of ids) assert.equal((await app.key.get(`/decisions/${id}`)).body.status, 'queued')
    await app.admin.post(`/projects/${app.projectId}/resume`)
    for (const id of ids) assert.equal((await settled(app.key, id)).status, 'completed')
  })

  it('a caller without the permission decides nothing further, and a deleted decider is still called', async () => {
    await double.put('rights', { rules: [{ reply: { text: GOOD } }] })
    const deciders = [
      await madeDecider(app.key, { tool_id: await toolAt(app.key, target.url) }),
      await madeDecider(app.key, { agent_id: await app.agent({ model: 'rights/m' }) }),
    ]
    const statement = [{ effect: 'Allow', action: ['deciders:*'], resource: [`srn:${app.projectId}:*:*`] }]
    const user = await app.user(undefined, [{ statement }])
    const refused: string[] = []
    for (const { id } of deciders) refused.push((await user.post(`/deciders/${id}/decisions`, { input: 'x' })).body.id)
    const made = await Promise.all(deciders.map(({ id }) => ask({}, id)))
    await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [] })
    for (const { id } of deciders) assert.equal((await app.key.delete(`/deciders/${id}`)).status, 204)
    await steadyWorker()
    for (const id of refused) assert.equal((await settled(app.key, id)).error?.code, 'FORBIDDEN')
    for (const id of made) assert.equal((await settled(app.key, id)).status, 'completed')
    assert.equal(target.requests.length, 1)
  })

  it('a decision ends with its agent, and with its tool', async () => {
    await double.put('doomed', { rules: [{ reply: { text: GOOD, gate: 'doomed' } }] })
    const agent_id = await app.agent({ model: 'doomed/m' })
    const tool_id = await toolAt(app.key, target.url)
    const inline = { questions: QUESTIONS, input: 'x' }
    const asked = (await app.key.post('/decisions', { ...inline, agent_id })).body.id
    const first = await worker()
    await eventually(async () => ((await double.gate('doomed'))?.waiting ?? 0) > 0, { what: 'the call of the model' })
    assert.equal((await app.admin.delete(`/agents/${agent_id}?force=true`)).status, 204)
    assert.equal((await settled(app.key, asked)).error.code, 'AGENT_NOT_FOUND')
    await double.read('POST', '/control/gates/doomed/open')
    await first.kill()
    const second = await app.agent({ model: 'doomed/m' })
    const waiting = [
      (await app.key.post('/decisions', { ...inline, agent_id: second })).body.id,
      (await app.key.post('/decisions', { ...inline, tool_id })).body.id,
    ]
    assert.equal((await app.admin.delete(`/agents/${second}`)).status, 204)
    assert.equal((await app.admin.delete(`/tools/${tool_id}`)).status, 204)
    await steadyWorker()
    assert.equal((await settled(app.key, waiting[0])).error.code, 'AGENT_NOT_FOUND')
    assert.equal((await settled(app.key, waiting[1])).error.code, 'TOOL_NOT_FOUND')
  })

  it('of concurrent ends one counts', async () => {
    await double.put('race', { rules: [{ reply: { text: GOOD, gate: 'race' } }] })
    const { id: decider } = await madeDecider(app.key, { agent_id: await app.agent({ model: 'race/m' }) })
    await Promise.all([steadyWorker(), steadyWorker()])
    const ids = await Promise.all(Array.from({ length: 8 }, () => ask({}, decider)))
    await eventually(async () => ((await double.gate('race'))?.waiting ?? 0) === 8, { what: 'the call of the model' })
    const turns = await Promise.all(
      ids.map(async id => (await app.key.get(`/decisions/${id}`)).body.generation_id as string),
    )
    await Promise.all([
      double.read('POST', '/control/gates/race/open'),
      ...turns.flatMap(id => [1, 2].map(() => app.key.post(`/generations/${id}/cancel`))),
    ])
    for (const id of ids) {
      await settled(app.key, id)
      await endedOnce(id)
    }
  })

  describe('the subject of a decision', () => {
    it('is held sealed until the end', async () => {
      const { decider, answer } = await slowTool()
      const id = await ask({}, decider)
      const [held] = await rows('decision_inputs')
      assert.equal(held.decision_id, id)
      assert.ok(!JSON.stringify(held).includes(SECRET))
      await steadyWorker()
      await called()
      assert.equal(await inputsLeft(), 1)
      answer()
      assert.equal((await settled(app.key, id)).status, 'completed')
      assert.equal(await inputsLeft(), 0)
    })

    it('is in no log of the database where no content is kept, and is lost with a crash of it', async () => {
      await double.put('none', { rules: [{ reply: { text: GOOD } }] })
      const silent = await app.agent({ model: 'none/m', trace_content_mode: 'none' })
      const deciders = [
        await madeDecider(app.key, { agent_id: silent }),
        await madeDecider(app.key, { tool_id: await toolAt(app.key, target.url) }),
      ]
      const asAgent = await ask({}, deciders[0].id)
      assert.deepEqual(
        (await rows('decision_inputs_unlogged')).map(({ decision_id }) => decision_id),
        [asAgent],
      )
      await app.admin.patch(`/projects/${app.projectId}`, { trace_content_mode: 'none' })
      const kept = await ask({}, deciders[1].id)
      const lost = [await ask({}, deciders[0].id), await ask({}, deciders[1].id)]
      assert.deepEqual(await rows('decision_inputs'), [])
      await app.pool.query(
        sql.unsafe`delete from decision_inputs_unlogged where decision_id = any(${sql.array(lost, 'text')})`,
      )
      await steadyWorker()
      for (const id of lost) assert.equal((await settled(app.key, id)).error.code, 'GENERATION_CONTENT_UNAVAILABLE')
      const decision = await settled(app.key, asAgent)
      assert.deepEqual([decision.status, decision.answers[1].choice], ['completed', 'support'])
      assert.equal((await app.key.get(`/generations/${decision.generation_id}`)).body.output, null)
      assert.equal((await settled(app.key, kept)).status, 'completed')
      await app.admin.patch(`/projects/${app.projectId}`, { trace_content_mode: 'full' })
    })

    it('is in no log line and no audit entry', async () => {
      const { id: decider } = await madeDecider(app.key, { tool_id: await toolAt(app.key, target.url) })
      const made = await worker()
      const id = await ask({}, decider)
      await settled(app.key, id)
      await eventually(() => made.output.some(line => line.includes(id)), { what: 'the line of the decision' })
      assert.ok(![...made.output, ...app.logs].some(line => line.includes(SECRET)))
      const entries = (await app.admin.get(`/audit-log?project_id=${app.projectId}&limit=200`)).body
      assert.ok(!JSON.stringify(entries).includes(SECRET))
      const of = `resource_public_id=${decider}&action=deciders:CreateDecision`
      assert.equal((await app.admin.get(`/audit-log?project_id=${app.projectId}&${of}`)).body.total, 1)
    })
  })
})
