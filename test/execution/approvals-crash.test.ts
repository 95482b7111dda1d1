import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { usageOf } from '../control/usage-support.ts'
import { eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { runWorker } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { guardrail } from './guardrail-support.ts'
import { made, startTarget } from './tool-target.ts'

/** Short leases, so that a lost worker is missed within seconds. */
const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', APPROVAL_SWEEP_INTERVAL_MS: '1000' }

describe('the call after an approval, when its worker is killed', function () {
  this.timeout(60_000)
  const target = forSuite(startTarget)
  const app = forSuite(() => startAgentApp({ workers: [] }))
  const processes: TestProcess[] = []

  const worker = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['generation'])
    processes.push(made)
    return made
  }
  after(async () => {
    await Promise.all(processes.map(each => (each.child.exitCode ?? each.child.signalCode) === null && each.kill()))
  })

  /** Approves a call whose worker is killed at a point, and returns its outcome with another worker. */
  async function killedAt(point: string, fields: object = {}) {
    target.requests.length = 0
    const tool = await made(app.key, { name: 'pay', execute: { url: `${target.url}/pay` }, ...fields })
    const first = await worker({ FAULT_POINTS: `${point}=kill` })
    const { body } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'pay' })
    const { id } = await propose(app, body.id, { id: tool.id, name: 'pay' }, { amount: 1 })
    assert.equal((await app.admin.post(`/approvals/${id}/approve`)).status, 200)
    assert.equal((await first.exited).signal, 'SIGKILL')
    const next = await runWorker(app.databaseUrl, FAST, ['generation'])
    const { execution } = await eventually(async () => {
      const item = (await app.admin.get(`/approvals/${id}`)).body
      return item.execution.generation_id && item
    })
    const followers = (await app.key.get('/generations?limit=100')).body.data.filter(
      (each: any) => each.initiator_generation_id === body.id,
    )
    assert.equal(followers.length, 1)
    const uses = (await usageOf(app, app.projectId)).filter(({ idempotency_key }) => idempotency_key === `tool:${id}`)
    assert.deepEqual(
      uses.map(({ tool_id, source }) => [tool_id, source]),
      [[tool.id, 'approval']],
    )
    await next.stop()
    return { execution, id }
  }

  it('before the call, is not called: no record proves that it was not', async () => {
    const { execution } = await killedAt('approval_executing')
    assert.deepEqual(
      [execution.status, execution.error.code, execution.error.meta.reason],
      ['failed', 'TOOL_CALL_FAILED', 'outcome_unknown'],
    )
    assert.equal(target.requests.length, 0)
  })

  it('after the call, is not called again', async () => {
    const { execution } = await killedAt('approval_called')
    assert.deepEqual([execution.status, execution.error.meta.reason], ['failed', 'outcome_unknown'])
    assert.equal(target.requests.length, 1)
  })

  it('after the call of an idempotent tool, is called again under the same key', async () => {
    const { execution, id } = await killedAt('approval_called', { idempotent: true })
    assert.equal(execution.status, 'succeeded')
    assert.deepEqual(
      target.requests.map(({ headers }) => headers['idempotency-key']),
      [id, id],
    )
  })

  it('after the outcome was kept, carries on with it', async () => {
    const { execution } = await killedAt('approval_executed')
    assert.equal(execution.status, 'succeeded')
    assert.equal(target.requests.length, 1)
  })

  it('of a turn that filed it next to another call, is not requested again', async () => {
    const rule = await guardrail(app.key, { class: 'C' })
    const url = `${target.url}/tool`
    const held = await made(app.key, { name: 'held', execute: { url }, guardrail_ids: [rule.id] })
    const free = await made(app.key, { name: 'free', execute: { url }, idempotent: true })
    const agent = await app.agent({ tool_bindings: [{ tool_id: held.id }, { tool_id: free.id }] })
    const first = await worker({ FAULT_POINTS: 'before_tool=kill' })
    const calls = ['held', 'free'].map(name => ({ name, args: {} }))
    const prompt = `@double ${JSON.stringify([{ tool_calls: calls }, { text: 'done' }])}`
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt })
    assert.equal((await first.exited).signal, 'SIGKILL')
    const [item] = (await app.key.get(`/approvals?agent_id=${agent}`)).body.data
    assert.equal((await app.admin.post(`/approvals/${item.id}/reject`, { reason: 'no' })).status, 200)
    const next = await runWorker(app.databaseUrl, FAST, ['generation'])
    await eventually(async () => (await app.key.get(`/generations/${body.generation_id}`)).body.status === 'completed')
    const { steps } = (await app.key.get(`/generations/${body.generation_id}/transcript`)).body
    assert.equal(steps[0].tool_results[0].result.approval_id, item.id)
    assert.equal((await app.key.get(`/approvals?agent_id=${agent}`)).body.total, 1)
    await next.stop()
  })

  describe('and the database refuses to keep', () => {
    /** Has the database raise an error a number of times; the sequence counts those that were rolled back, too. */
    const refusing = async (column: 'executing' | 'outcome', sqlstate: string, times: number) => {
      await statements(
        'create sequence refused',
        `create function refuse() returns trigger language plpgsql as $$ begin
          if new.${column} is distinct from old.${column} and nextval('refused') <= ${times} then
            raise exception 'not now' using errcode = '${sqlstate}';
          end if;
          return new;
        end $$`,
        'create trigger refuse before update on approval_attempts for each row execute function refuse()',
      )
    }
    const statements = async (...texts: string[]) => {
      for (const text of texts) await app.pool.query(rawQuery(text))
    }
    afterEach(() => statements('drop function refuse cascade', 'drop sequence refused'))

    async function executed(): Promise<any> {
      target.requests.length = 0
      const tool = await made(app.key, { name: 'pay', execute: { url: `${target.url}/pay` } })
      const next = await runWorker(app.databaseUrl, FAST, ['generation'])
      const { body } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'pay' })
      const { id } = await propose(app, body.id, { id: tool.id, name: 'pay' }, { amount: 2 })
      assert.equal((await app.admin.post(`/approvals/${id}/approve`)).status, 200)
      const execution = await eventually(
        async () => {
          const item = (await app.admin.get(`/approvals/${id}`)).body
          return item.execution.finished_at && item.execution
        },
        { within: 50_000 },
      )
      await next.stop()
      return execution
    }

    it('that the call is about to be made, as it goes away: is called once it is there', async () => {
      await refusing('executing', '57P03', 1)
      const { status, error } = await executed()
      assert.deepEqual([status, error], ['succeeded', null])
      assert.equal(target.requests.length, 1)
    })

    it('its outcome, permanently: is abandoned, and not called again', async () => {
      await refusing('outcome', '23514', 1_000)
      const { status, error } = await executed()
      assert.deepEqual([status, error.code, error.meta.reason], ['failed', 'TOOL_CALL_FAILED', 'outcome_unknown'])
      assert.equal(target.requests.length, 1)
    })
  })
})
