import assert from 'node:assert/strict'
import { eventsOf } from '../execution/decider-support.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, set, startRunApp } from './fixtures.ts'

describe('run records', function () {
  this.timeout(60_000)
  const app = forSuite(startRunApp)
  beforeEach(() => {
    app.target.answer = json({ ok: true })
  })

  const refused = (reply: any, path: string) => {
    assert.equal(reply.status, 400, JSON.stringify(reply.body))
    assert.deepEqual(
      reply.body.error.meta.problems.map((each: any) => each.path),
      [path],
    )
  }
  const total = async () => (await app.key.get('/orchestration-runs?limit=1')).body.total
  const told = async (id: string, count: number): Promise<any[]> =>
    eventually<any>(async () => {
      const found = await eventsOf(app.key, id)
      return found.length >= count && found
    })

  it('are not created for refused requests', async () => {
    const input_schema = { type: 'object', required: ['n'], properties: { n: { type: 'integer' } } }
    const orchestration_id = await app.orchestration([set('a')], [], { input_schema })
    const before = await total()
    const post = (body: object) => app.key.post('/orchestration-runs', { orchestration_id, input: { n: 1 }, ...body })
    refused(await post({ input: { n: 'x' } }), 'input.n')
    refused(await post({ input: { n: 1, text: 'x'.repeat(1024 * 1024) } }), 'input')
    for (const field of ['input', 'metadata', 'guardrail_context']) refused(await post({ [field]: [1] }), field)
    refused(await post({ orchestration_version: 0 }), 'orchestration_version')
    refused(await post({ extra: 1 }), 'extra')
    const missing = await post({ orchestration_version: 9 })
    assert.deepEqual([missing.status, missing.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    const gone = await post({ orchestration_id: 'orch_missing' })
    assert.deepEqual([gone.status, gone.body.error.code], [404, 'ORCHESTRATION_NOT_FOUND'])
    assert.equal(await total(), before)
  })

  it('execute the requested version, regardless of later ones', async () => {
    const id = await app.orchestration([set('one')])
    await app.key.patch(`/orchestrations/${id}`, {
      nodes: [{ id: 'h', type: 'human' }, set('two')],
      edges: chain('h', 'two'),
    })
    assert.deepEqual((await app.start(id, { orchestration_version: 1 })).output, { one: { result: 'one' } })
    const run = await app.start(id)
    await app.key.patch(`/orchestrations/${id}`, { nodes: [set('three')], edges: [] })
    const done = (await app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'h', output: 'text' }))
      .body
    assert.deepEqual([done.orchestration_version, done.artifacts.h, done.output], [2, {}, { two: { result: 'two' } }])
  })

  it('are created once per idempotency key', async () => {
    const body = { orchestration_id: await app.orchestration([set('a')]), input: { n: 1 } }
    const headers = { 'idempotency-key': 'start-once' }
    const replies = [
      await app.key.post('/orchestration-runs', body, headers),
      await app.key.post('/orchestration-runs', body, headers),
    ]
    assert.deepEqual(
      replies.map(({ status }) => status),
      [201, 201],
    )
    assert.equal(replies[0].body.id, replies[1].body.id)
    const other = await app.key.post('/orchestration-runs', { ...body, input: {} }, headers)
    assert.equal(other.status, 409, JSON.stringify(other.body))
  })

  it('are in events as GET returns them, each time a run starts to await input', async () => {
    const graph = await app.orchestration(
      [
        { id: 'h', type: 'human' },
        { id: 'i', type: 'human' },
      ],
      chain('h', 'i'),
    )
    const run = await app.start(graph)
    const [first] = (await told(run.id, 2)).filter(({ event }: any) => event.endsWith('awaiting_input'))
    assert.deepEqual(first.data, run)
    await app.key.post(`/orchestration-runs/${run.id}/resume`)
    const again = (await app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'h', output: {} })).body
    assert.equal(again.required_action.node_id, 'i')
    const done = (await app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'i', output: {} })).body
    const all = await told(run.id, 4)
    assert.deepEqual(all.map(({ event }: any) => event.split('.')[1]).sort(), [
      'awaiting_input',
      'awaiting_input',
      'started',
      'succeeded',
    ])
    assert.deepEqual(all.find(({ event }: any) => event.endsWith('succeeded')).data, done)
    assert.deepEqual(await app.read(run.id), done)
  })

  it('of failed runs emit their error and file an exception', async () => {
    const run = await app.run([{ id: 'u', type: 'unheard' }])
    const failed = (await told(run.id, 2)).find(({ event }: any) => event.endsWith('failed'))
    assert.deepEqual([failed.data, failed.error ?? failed.data.error], [run, run.error])
    const own = await eventually(async () => {
      const { data } = (await app.key.get('/exceptions?kind=run_failed')).body
      const found = data.filter((each: any) => each.orchestration_run_id === run.id)
      return found.length > 0 && found
    })
    assert.deepEqual(
      own.map(({ severity, detail }: any) => [severity, detail.code]),
      [['critical', run.error.code]],
    )
  })

  it('emit events of their graphs once, with the input of the node', async () => {
    const run = await app.run(
      [{ id: 'e', type: 'emit_event', event_type: 'orders.shipped', input_mapping: { n: { var: 'input.n' } } }],
      [],
      { input: { n: 1 } },
    )
    const [event] = (await told(run.id, 3)).filter((each: any) => each.event === 'orders.shipped')
    assert.deepEqual(
      [event.id, event.data, event.resource_type],
      [run.output.e.event_id, { n: 1 }, 'orchestration_run'],
    )
    for (const event_type of ['orchestration_runs.succeeded', 'Nope', 'single'])
      assert.equal(
        (
          await app.key.post('/orchestrations', {
            name: 'x',
            nodes: [{ id: 'e', type: 'emit_event', event_type }],
            edges: [],
          })
        ).status,
        400,
      )
  })

  it('are metered once per attempt, by worker time without waits', async () => {
    const leaf = await app.orchestration([set('a')])
    const run = await app.run(
      [
        set('a'),
        { id: 'c', type: 'condition', expression: 'x' },
        set('never'),
        { id: 'd', type: 'delay', duration: '3s' },
        { id: 'e', type: 'emit_event', event_type: 'orders.metered' },
        { id: 'h', type: 'human' },
        { id: 's', type: 'sub_orchestration', orchestration_id: leaf },
        { id: 'u', type: 'unheard', on_error: 'route' },
      ],
      [
        ...chain('a', 'c', 'd', 'e'),
        { from: 'c', to: 'never', condition: 'y' },
        { from: 'u', to: 'h', condition: 'failed' },
      ],
    )
    await app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'h', output: {}, wait: false })
    assert.equal((await app.until(run.id)).status, 'succeeded')
    const { data } = (await app.key.get(`/usage/events?orchestration_run_id=${run.id}&meter_type=compute_execution`))
      .body
    assert.deepEqual(data.map(({ node_id }: any) => node_id).sort(), ['a', 'c', 'd', 'e', 'h', 's', 'u'])
    for (const { components } of data) {
      const [{ component, quantity }] = components
      assert.equal(component, 'compute_second')
      assert.ok(quantity >= 0.001 && quantity < 3, String(quantity))
    }
  })

  it('are listed by their filters, newest first', async () => {
    const graph = await app.orchestration([{ id: 'h', type: 'human' }])
    const ids = [(await app.start(graph)).id, (await app.start(graph)).id]
    await app.key.post(`/orchestration-runs/${ids[0]}/cancel`, { reason: 'enough' })
    const list = async (query: string) =>
      (await app.key.get(`/orchestration-runs?orchestration_id=${graph}&${query}`)).body.data?.map(({ id }: any) => id)
    assert.deepEqual(await list(''), [ids[1], ids[0]])
    assert.deepEqual(await list('status=cancelled'), [ids[0]])
    assert.deepEqual(await list('status=cancelled&status=awaiting_input'), [ids[1], ids[0]])
    assert.deepEqual(await list('nested=true'), [])
    assert.deepEqual(await list('trigger_id=trg_x'), [])
    for (const query of ['status=bogus', 'status='])
      assert.equal((await app.key.get(`/orchestration-runs?${query}`)).status, 400)
    const [summary] = (await app.key.get(`/orchestration-runs?orchestration_id=${graph}&view=summary`)).body.data
    assert.deepEqual(
      [summary.state, summary.artifacts, summary.node_executions, summary.usage],
      [null, null, null, null],
    )
  })

  it('of commands are in the audit log', async () => {
    const run = await app.run([{ id: 'h', type: 'human' }])
    for (const verb of ['pause', 'resume']) await app.key.post(`/orchestration-runs/${run.id}/${verb}`)
    await app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'x' })
    await app.key.post(`/orchestration-runs/${run.id}/cancel`, { reason: 'enough' })
    const entries = await eventually(async () => {
      const { data } = (await app.admin.get(`/audit-log?project_id=${app.projectId}&limit=100`)).body
      const own = data.filter((entry: any) => JSON.stringify(entry).includes(run.id))
      return own.length >= 5 && own
    })
    assert.deepEqual(entries.map(({ action }: any) => action.split(':')[1]).sort(), [
      'CancelRun',
      'PauseRun',
      'ResumeRun',
      'StartRun',
      'SubmitHumanInput',
    ])
    const detail = (name: string) => entries.find(({ action }: any) => action.endsWith(name)).detail
    assert.equal(detail('CancelRun').reason, 'enough')
  })

  it('are deleted with their orchestration, whatever is active', async () => {
    app.target.answer = () => {}
    const tool_id = await app.tool()
    const graph = await app.orchestration([
      { id: 'a', type: 'tool', tool_id },
      { id: 'h', type: 'human' },
    ])
    const run = await app.start(graph, { wait: false })
    await app.until(run.id, each => each.required_action !== null && attempts(each).length === 2)
    assert.equal((await app.key.delete(`/orchestrations/${graph}`)).status, 204)
    assert.equal((await app.key.get(`/orchestration-runs/${run.id}`)).body.error.code, 'ORCHESTRATION_RUN_NOT_FOUND')
  })
})
