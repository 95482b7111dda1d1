import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { attempts, chain, startRunApp } from '../automation/fixtures.ts'
import { ended, madeTrigger } from '../automation/triggers-support.ts'
import { ingested, upload } from '../content/ingestion-support.ts'
import { json } from '../execution/tool-target.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { startReceiver } from '../support/receiver.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { forSuite } from '../support/suite.ts'

/** Work whose outcome the database does not take for a while: full, read-only, shutting down. */
describe('work while the database is unavailable', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startRunApp({
      workers: ['orchestration', 'generation', 'delivery', 'trigger', 'ingestion'],
      actions: ['*'],
      env: { GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' },
    }),
  )
  const double = forSuite(() => client(app.double))
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })

  const turnEnded = (id: string): Promise<any> =>
    eventually(
      async () => {
        const { body } = await app.key.get(`/generations/${id}`)
        return ['completed', 'failed'].includes(body.status) && body
      },
      { what: `end of ${id}` },
    )

  for (const state of ['53100', '25006', '57P03', '40P01', 'XX000'])
    it(`keeps what a model has answered until its turn can be settled: ${state}`, async () => {
      const script = `kept-${state}`
      await double.put(script, { rules: [] })
      const agent = await app.agent({ model: `${script}/m` })
      let id = ''
      await refusingUpdates(
        app.services,
        'generations',
        `new.status in ('completed', 'failed')`,
        async refused => {
          const { status, body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
          assert.equal(status, 202)
          id = body.generation_id
          await refused(4)
        },
        { state },
      )
      const turn = await turnEnded(id)
      assert.deepEqual([turn.status, turn.error], ['completed', null])
      assert.equal((await double.requests(script)).length, 1, 'the model was called once')
    })

  it('keeps what a tool has answered in a turn', async () => {
    await double.put('tool', {
      rules: [
        { when: { call: 1 }, reply: { tool_calls: [{ name: 'lookup', args: {} }] } },
        { reply: { text: 'done' } },
      ],
    })
    const tool_id = await app.tool({ name: 'lookup' })
    const agent = await app.agent({ model: 'tool/m', tool_bindings: [{ tool_id }] })
    app.target.answer = json({ found: 7 })
    let id = ''
    await refusingUpdates(
      app.services,
      'generations',
      'new.step_count > old.step_count',
      async refused => {
        id = (await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })).body.generation_id
        await refused(4)
      },
      { state: '53100' },
    )
    assert.equal((await turnEnded(id)).status, 'completed')
    assert.equal(app.target.requests.length, 1, 'the tool was called once')
    const { steps } = (await app.key.get(`/generations/${id}/transcript`)).body
    assert.deepEqual(steps[0].tool_results[0].result, { found: 7 })
  })

  it('keeps what the tools of nodes have answered', async () => {
    const tool_id = await app.tool()
    const node = (name: string) => ({ id: name, type: 'tool', tool_id })
    const id = await app.orchestration([node('a'), node('b'), node('c')], chain('a', 'b', 'c'))
    let run: any
    await refusingUpdates(
      app.services,
      'orchestration_node_executions',
      `new.status in ('completed', 'failed')`,
      async refused => {
        run = await app.start(id, { wait: false })
        await refused(4)
      },
      { state: '57P03' },
    )
    const done = await app.until(run.id)
    assert.equal(done.status, 'succeeded')
    assert.deepEqual(attempts(done), ['a:1:completed', 'b:1:completed', 'c:1:completed'])
    assert.equal(app.target.requests.length, 3)
  })

  it('keeps what the tool of a trigger has answered', async () => {
    const trigger = await madeTrigger(app.key, { target_type: 'tool', target_id: await app.tool() })
    let firing: any
    await refusingUpdates(
      app.services,
      'trigger_firings',
      `new.state in ('succeeded', 'failed')`,
      async refused => {
        firing = (await app.key.post(`/triggers/${trigger.id}/fire`, { wait: false })).body
        await refused(4)
      },
      { state: '53100' },
    )
    const { status, error } = await ended(app.key, firing.id)
    assert.deepEqual([status, error], ['succeeded', null])
    assert.equal(app.target.requests.length, 1)
  })

  it('keeps the claim of an ingestion, and counts no failure', async () => {
    const file = await upload(app.key, 'some text')
    let document: any
    await refusingUpdates(
      app.services,
      'documents',
      `new.status in ('ready', 'failed')`,
      async refused => {
        const ending = ingested(app.key, file)
        await refused(4)
        const { failures, claims } = (await app.pool.one(
          sql.unsafe`select failures, claims from ingestion_attempts`,
        )) as { failures: number; claims: number }
        assert.deepEqual([failures, claims], [0, 1])
        document = ending
      },
      { state: '53100' },
    )
    assert.equal((await document).status, 'ready')
  })

  it('sends a delivery once whose outcome it could not record', async () => {
    const receiver = await startReceiver()
    try {
      const hook = { name: 'hook', url: receiver.url, events: ['actors.created'] }
      const { status, body } = await app.key.post('/webhooks', hook)
      assert.equal(status, 201, JSON.stringify(body))
      await refusingUpdates(
        app.services,
        'webhook_deliveries',
        `new.status = 'completed'`,
        async refused => {
          assert.equal((await app.key.post('/actors', { name: 'one' })).status, 201)
          await refused(3)
        },
        { state: '53100' },
      )
      await eventually(async () => {
        const { data } = (await app.key.get(`/webhook-deliveries?webhook_id=${body.id}`)).body
        return data.length === 1 && data[0].status === 'completed'
      })
      assert.equal(receiver.requests.length, 1)
    } finally {
      await receiver.close()
    }
  })
})
