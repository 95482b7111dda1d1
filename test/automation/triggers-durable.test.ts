import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { usageOf } from '../control/usage-support.ts'
import { json } from '../execution/tool-target.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { ended, FAST, firingsOf, hook, madeTrigger, startTriggerApp } from './triggers-support.ts'

describe('durable firings', function () {
  this.timeout(90_000)
  const app = forSuite(() => startTriggerApp({ workers: [] }))
  const key = forSuite(() => app.key)
  const double = forSuite(() => doubleClient(app.double))
  const processes: TestProcess[] = []
  const worker = async (env: Record<string, string> = {}, kinds = ['trigger', 'generation']) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, kinds)
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** Starts a worker without faults. */
  const steadyWorker = (env: Record<string, string> = {}, kinds = ['trigger', 'generation']) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, kinds)
  const tool = (fields: object = {}) => madeTrigger(key, { target_type: 'tool', target_id: app.toolId, ...fields })
  const fire = async (id: string, input?: object): Promise<string> =>
    (await createdBy(key, `/triggers/${id}/fire?wait=false`, { input }, 202)).id
  /** Blocks the first call of the target. Returns a function that answers it. */
  const holdCall = () => {
    let free = () => {}
    app.target.answer = (request, response) => {
      free = () => json({ late: true })(request, response)
      app.target.answer = json({ ok: true })
    }
    return () => free()
  }
  const called = (count: number) => eventually(() => app.target.requests.length === count, { what: `${count} calls` })
  /** Returns the waiting and active messages of firings of the project. */
  const messages = () =>
    app.pool.anyFirst(sql.unsafe`
      select id from pgboss.job_common
      where name = 'trigger.fire' and state in ('created', 'active', 'retry') and data ->> 'project_id' = ${app.projectId}`)
  const keys = () => app.target.requests.map(({ headers }) => headers['idempotency-key'])
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(processes.splice(0).map(each => each.kill()))
  })

  it('fires an accepted hook after a time without workers and after the loss of its message', async () => {
    const trigger = await tool({ type: 'webhook' })
    const ids: string[] = []
    for (const body of ['{"n":1}', '{"n":2}']) ids.push((await hook(app.url, trigger, body)).body.firing_id)
    await app.pool.query(
      sql.unsafe`delete from pgboss.job_common where name = 'trigger.fire' and data ->> 'work_id' = ${ids[1]}`,
    )
    await steadyWorker()
    for (const id of ids) assert.equal((await ended(key, id)).status, 'succeeded')
    assert.deepEqual(keys().sort(), [...ids].sort())
  })

  it('keeps a hook that was accepted by a web process killed after the commit', async () => {
    const web = await startProcess('web', app.databaseUrl, { ...FAST, FAULT_POINTS: 'trigger_accepted=kill' })
    const trigger = await tool({ type: 'webhook' })
    const headers = { 'X-Svc-Signature': (await import('./triggers-support.ts')).signatureOf(trigger.secret, '{}') }
    await assert.rejects(hook(web.url, trigger, '{}', headers))
    await steadyWorker()
    const [firing] = await eventually(async () => {
      const all = await firingsOf(key, trigger.id)
      return all[0]?.status === 'succeeded' ? all : null
    })
    // The sender retries.
    assert.equal((await hook(app.url, trigger, '{}', headers)).body.firing_id, firing.id)
    assert.equal(app.target.requests.length, 1)
  })

  it('starts a turn on another worker after a worker is killed before the start', async () => {
    const trigger = await madeTrigger(key, { target_type: 'agent', target_id: app.agentId })
    const first = await worker({ FAULT_POINTS: 'trigger_starting=kill' }, ['trigger'])
    const id = await fire(trigger.id, { message: 'hi' })
    await first.exited
    await steadyWorker()
    const firing = await ended(key, id)
    assert.deepEqual([firing.status, firing.attempts], ['succeeded', 1])
    assert.equal((await key.get(`/generations?agent_id=${app.agentId}`)).body.total, 1)
  })

  it('starts one turn when a worker is killed after the start', async () => {
    const agent = await app.agent()
    const trigger = await madeTrigger(key, { target_type: 'agent', target_id: agent })
    const first = await worker({ FAULT_POINTS: 'trigger_started=kill' }, ['trigger'])
    const id = await fire(trigger.id, { message: 'hi' })
    await first.exited
    assert.equal((await key.get(`/trigger-firings/${id}`)).body.status, 'running')
    await steadyWorker()
    assert.equal((await ended(key, id)).status, 'succeeded')
    assert.equal((await key.get(`/generations?agent_id=${agent}`)).body.total, 1)
  })

  it('settles a firing once when a worker is killed between the end of the turn and its settling', async () => {
    const agent = await app.agent()
    const trigger = await madeTrigger(key, { target_type: 'agent', target_id: agent })
    await steadyWorker({}, ['trigger'])
    const first = await worker({ FAULT_POINTS: 'before_settle=kill' }, ['generation'])
    const id = await fire(trigger.id, { message: 'hi' })
    await first.exited
    await steadyWorker({}, ['generation'])
    const firing = await ended(key, id)
    assert.equal(firing.status, 'succeeded')
    assert.equal((await key.get(`/generations/${firing.result.result_id}`)).body.status, 'completed')
  })

  it('repeats a tool call with the same idempotency key after its worker is killed', async () => {
    const trigger = await tool()
    holdCall()
    const first = await worker()
    const id = await fire(trigger.id)
    await called(1)
    await first.kill()
    await steadyWorker()
    const firing = await ended(key, id)
    assert.deepEqual([firing.status, firing.attempts], ['succeeded', 2])
    assert.deepEqual(keys(), [id, id])
  })

  it('abandons a firing after too many lost workers', async () => {
    const trigger = await tool()
    const id = await fire(trigger.id)
    for (let lost = 0; lost < 3; lost++) await (await worker({ FAULT_POINTS: 'trigger_called=kill' })).exited
    await steadyWorker()
    const firing = await ended(key, id)
    assert.deepEqual([firing.status, firing.error.code, firing.attempts], ['failed', 'TRIGGER_FIRING_ABANDONED', 3])
    assert.deepEqual(keys(), [id, id, id])
    const uses = (await usageOf(app, app.projectId)).filter(({ idempotency_key }) => idempotency_key === `tool:${id}`)
    assert.deepEqual(
      uses.map(({ trigger_id, source }) => [trigger_id, source]),
      [[trigger.id, 'trigger']],
    )
  })

  it('ignores the writes of a worker that was frozen past its lease', async () => {
    const trigger = await tool()
    const answer = holdCall()
    const first = await worker()
    const id = await fire(trigger.id)
    await called(1)
    first.child.kill('SIGSTOP')
    await steadyWorker()
    const firing = await ended(key, id)
    assert.deepEqual(firing.result.output, { ok: true })
    first.child.kill('SIGCONT')
    answer()
    await first.kill('SIGTERM')
    assert.deepEqual((await key.get(`/trigger-firings/${id}`)).body, firing)
  })

  it('calls a tool once after its worker is killed before the call', async () => {
    const trigger = await tool()
    const first = await worker({ FAULT_POINTS: 'trigger.fire/claimed=kill' })
    const id = await fire(trigger.id)
    await first.exited
    await steadyWorker()
    const firing = await ended(key, id)
    assert.deepEqual([firing.status, firing.attempts, keys()], ['succeeded', 2, [id]])
  })

  for (const [moment, points, status, calls] of [
    ['before', ['trigger_starting', 'trigger.fire/claimed'], 'pending', 0],
    ['after', ['trigger_started', 'trigger_called'], 'running', 1],
  ] as const)
    it(`starts work once although a worker is frozen past its lease ${moment} the start`, async () => {
      const agent = await app.agent()
      const started = await madeTrigger(key, { target_type: 'agent', target_id: agent })
      const FAULT_POINTS = points.map(point => `${point}=freeze:3000`).join()
      const frozen = await steadyWorker({ FAULT_POINTS }, ['trigger'])
      const ids = [await fire(started.id, { message: 'hi' }), await fire((await tool()).id)]
      const read = () => Promise.all(ids.map(async id => (await key.get(`/trigger-firings/${id}`)).body))
      await called(calls)
      await eventually(
        async () => {
          const active = await app.pool.anyFirst(sql.unsafe`
            select id from pgboss.job_common where name = 'trigger.fire' and state = 'active'`)
          return active.length === 2 && (await read()).map(each => each.status).join() === `${status},running`
        },
        { what: 'both firings at their points' },
      )
      process.kill(frozen.pid, 'SIGSTOP')
      await steadyWorker()
      for (const id of ids) assert.equal((await ended(key, id)).status, 'succeeded')
      const settled = await read()
      process.kill(frozen.pid, 'SIGCONT')
      await eventually(
        () => frozen.output.filter(line => line.includes('"msg":"work attempted"')).length === ids.length,
        { what: 'the end of both attempts' },
      )
      await frozen.stop()
      assert.deepEqual(await read(), settled)
      assert.deepEqual(
        settled.map(({ attempts }) => attempts),
        [1, 2],
      )
      assert.equal((await key.get(`/generations?agent_id=${agent}`)).body.total, 1)
      // A repeated call has the same key.
      assert.deepEqual([...new Set(keys())], [ids[1]])
    })

  it('requeues the call of a stopped worker without counting a loss', async () => {
    const trigger = await tool()
    for (let n = 0; n < 4; n++) {
      app.target.requests.length = 0
      holdCall()
      const first = await steadyWorker()
      const id = n === 0 ? await fire(trigger.id) : (await firingsOf(key, trigger.id))[0].id
      await called(1)
      await first.stop()
      if (n < 3) assert.notEqual((await key.get(`/trigger-firings/${id}`)).body.status, 'failed')
    }
    const id = (await firingsOf(key, trigger.id))[0].id
    await steadyWorker()
    assert.equal((await ended(key, id)).status, 'succeeded')
  })

  it('releases firings accepted before a pause on resume, even of an inactive trigger', async () => {
    const trigger = await tool()
    const id = await fire(trigger.id)
    await key.patch(`/triggers/${trigger.id}`, { active: false })
    await app.admin.post(`/projects/${app.projectId}/pause`)
    await steadyWorker()
    const other = await app.project()
    assert.equal((await other.key.get('/triggers')).status, 200)
    await eventually(async () => (await messages()).length === 0, { what: 'the message being handled' })
    assert.equal((await key.get(`/trigger-firings/${id}`)).body.status, 'pending')
    await app.admin.post(`/projects/${app.projectId}/resume`)
    assert.equal((await ended(key, id)).status, 'succeeded')
  })

  it('releases deferred firings after a resume that writes none of them', async () => {
    const { pool } = app
    const count = 450
    const trigger = await tool()
    await app.admin.post(`/projects/${app.projectId}/pause`)
    await pool.query(sql.unsafe`
      insert into trigger_firings (id, project_id, trigger_id, source, target_type, input, due_at, created_at, fired_by)
      select 'trf_off' || n, ${app.projectId}, ${trigger.id}, 'webhook', 'tool', '{}', now() - interval '1 minute', now(), null
      from generate_series(1, ${count}) n`)
    const before = app.statements.length
    await app.admin.post(`/projects/${app.projectId}/resume`)
    assert.ok(!app.statements.slice(before).some(text => text.includes('update trigger_firings')))
    assert.deepEqual(await messages(), [])
    await steadyWorker()
    await eventually(
      async () =>
        (await pool.oneFirst(sql.unsafe`
          select count(*)::int from trigger_firings where trigger_id = ${trigger.id} and completed_at is not null`)) ===
        count,
      { what: 'the end of all firings', within: 60_000 },
    )
    assert.equal(new Set(keys()).size, count)
    assert.equal(app.target.requests.length, count)
  })

  it('returns the unsettled firing of a fire request after the maximum wait', async () => {
    const slow = await steady.startWeb(app.databaseUrl, { ...FAST, TRIGGER_FIRE_WAIT_MAX_MS: '50' })
    const trigger = await tool()
    const reply = await fetch(`${slow.url}/api/v1/triggers/${trigger.id}/fire`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key.token}` },
    })
    assert.equal(reply.status, 200)
    const { id, status } = (await reply.json()) as { id: string; status: string }
    assert.equal(status, 'pending')
    await steadyWorker()
    assert.equal((await ended(key, id)).status, 'succeeded')
  })

  it('discards waiting firings of a deleted trigger and continues started work', async () => {
    const agent = await app.agent({ model: 'gone/m' })
    await double.put('gone', { rules: [{ reply: { text: 'done', gate: 'gone' } }] })
    const trigger = await madeTrigger(key, { target_type: 'agent', target_id: agent })
    const waiting = await tool()
    await fire(waiting.id)
    await key.delete(`/triggers/${waiting.id}`)
    await steadyWorker()
    await fire(trigger.id, { message: 'hi' })
    await eventually(async () => ((await double.gate('gone'))?.waiting ?? 0) > 0)
    assert.equal((await key.delete(`/triggers/${trigger.id}`)).status, 204)
    await double.read('POST', '/control/gates/gone/open')
    await eventually(async () => (await key.get(`/generations?agent_id=${agent}`)).body.data[0]?.status === 'completed')
    assert.equal(app.target.requests.length, 0)
  })

  it('settles a firing whose turn was deleted', async () => {
    const agent = await app.agent()
    const trigger = await madeTrigger(key, { target_type: 'agent', target_id: agent })
    await steadyWorker({}, ['trigger'])
    const id = await fire(trigger.id, { message: 'hi' })
    await eventually(async () => (await key.get(`/trigger-firings/${id}`)).body.status === 'running')
    const deleted = await key.delete(`/agents/${agent}?force=true`)
    assert.equal(deleted.status, 204, JSON.stringify(deleted.body))
    assert.equal((await ended(key, id)).error.code, 'RESOURCE_NOT_FOUND')
  })

  it('settles the other firings when many cannot be settled', async () => {
    const agent = await app.agent()
    const trigger = await madeTrigger(key, { target_type: 'agent', target_id: agent })
    await steadyWorker({}, ['trigger'])
    const ids = [await fire(trigger.id, { message: 'bad' }), await fire(trigger.id, { message: 'good' })]
    for (const id of ids)
      await eventually(async () => (await key.get(`/trigger-firings/${id}`)).body.status === 'running')
    // The first fill more than one page, and all are older than the second.
    await app.pool.query(sql.unsafe`
      insert into trigger_firings select r.* from trigger_firings t, generate_series(1, 1000) n, jsonb_populate_record(t,
        jsonb_build_object('id', left(t.id, -4) || lpad(n::text, 4, '0'), 'created_at', t.created_at - interval '1 day')) r
      where t.id = ${ids[0]}`)
    const ends = `new.id <> '${ids[1]}' and new.completed_at is not null`
    await refusingUpdates(app.services, 'trigger_firings', ends, async () => {
      assert.equal((await key.delete(`/agents/${agent}?force=true`)).status, 204)
      assert.equal((await ended(key, ids[1])).error.code, 'RESOURCE_NOT_FOUND')
      assert.equal((await key.get(`/trigger-firings/${ids[0]}`)).body.status, 'running')
    })
  })

  it('deletes firings past their retention', async () => {
    const { firingRetention } = await import('#automation/triggers/retention.ts')
    const trigger = await tool()
    await steadyWorker()
    const ids = [await fire(trigger.id), await fire(trigger.id)]
    for (const id of ids) await ended(key, id)
    await app.pool.query(
      sql.unsafe`update trigger_firings set completed_at = now() - interval '31 days' where id = ${ids[0]}`,
    )
    const fanouts = async () => app.pool.anyFirst(sql.unsafe`select root_id from trigger_fanouts order by root_id`)
    await app.pool.query(sql.unsafe`
      insert into trigger_fanouts (root_id, project_id, firings, created_at)
      values ('evt_new', ${app.projectId}, 1, now() - interval '29 days'), ('evt_old', ${app.projectId}, 1, now() - interval '31 days')`)
    await firingRetention.run(app.services, new AbortController().signal)
    assert.deepEqual(await fanouts(), ['evt_new'])
    assert.deepEqual(
      (await firingsOf(key, trigger.id)).map(({ id }) => id),
      [ids[1]],
    )
  })
})
