import assert from 'node:assert/strict'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, ended, set, startRunApp } from './fixtures.ts'

describe('nested runs', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp({ env: { ORCHESTRATION_NODE_LEASE_SECONDS: '3' } }))
  let tool_id: string
  let held: { item: unknown; headers: any; answer: (status?: number) => void }[] = []

  before(async () => {
    tool_id = await app.tool()
  })
  beforeEach(async () => {
    held = []
    app.target.requests.length = 0
    app.target.answer = (request, response) => {
      const { item } = JSON.parse(request.body || '{}')
      held.push({ item, headers: request.headers, answer: (status = 200) => json({ item }, status)(request, response) })
    }
    await app.admin.patch(`/projects/${app.projectId}`, { max_run_depth: null })
  })

  const leaf = () =>
    app.orchestration([{ id: 'a', type: 'tool', tool_id, input_mapping: { item: { var: 'input.item' } } }])
  const loop = (orchestration_id: string, more: object = {}) => ({
    id: 'l',
    type: 'loop',
    orchestration_id,
    collection: 'state.input.items',
    ...more,
  })
  const children = async (id: string) =>
    (await app.key.get(`/orchestration-runs?parent_orchestration_run_id=${id}&limit=100`)).body.data
  const failed = (run: any, code: string) => {
    assert.deepEqual([run.status, run.error?.code], ['failed', code], JSON.stringify(run.error))
    return run.error.meta
  }

  it('of a loop run concurrently up to its parallelism, in a sliding window', async () => {
    const id = await app.orchestration([loop(await leaf(), { parallelism: 2 })])
    const run = await app.start(id, { input: { items: [0, 1, 2, 3, 4] }, wait: false })
    const finished = new Set<number>()
    for (const item of [1, 2, 0, 4, 3]) {
      await eventually(() => held.length - finished.size === 2 || held.length === 5)
      assert.ok(held.length - finished.size <= 2)
      assert.equal((await children(run.id)).filter((each: any) => !ended(each)).length <= 2, true)
      held.find(each => each.item === item)?.answer()
      finished.add(item)
    }
    const done = await app.until(run.id)
    assert.deepEqual(
      done.output.l.results.map(({ a }: any) => a.item),
      [0, 1, 2, 3, 4],
    )
    assert.deepEqual(attempts(done), ['l:1:completed'])
  })

  it('are none for a value that is no list, and refused above max_iterations', async () => {
    const graph = await app.orchestration([loop(await leaf(), { max_iterations: 2 }), set('b')], chain('l', 'b'))
    for (const input of [{}, { items: 'abc' }, { items: [] }])
      assert.deepEqual((await app.start(graph, { input })).artifacts.l, { results: [] })
    const run = await app.start(graph, { input: { items: [1, 2, 3] } })
    failed(run, 'ORCHESTRATION_MAX_ITERATIONS_EXCEEDED')
    assert.equal((await children(run.id)).length, 0)
  })

  it('fail the node with their own error and cancel the others', async () => {
    const id = await app.orchestration([loop(await leaf())])
    const run = await app.start(id, { input: { items: [0, 1, 2] }, wait: false })
    await eventually(() => held.length === 3)
    held.find(({ item }) => item === 1)?.answer(404)
    const done = await app.until(run.id)
    const meta = failed(done, 'TOOL_HTTP_ERROR')
    assert.equal(meta.tool_status_code, 404)
    const below = await children(run.id)
    assert.deepEqual(below.map(({ status }: any) => status).sort(), ['cancelled', 'cancelled', 'failed'])
    const ids = [run.id, ...below.map((each: any) => each.id)]
    const reported = await eventually(async () => {
      const { data } = (await app.key.get('/exceptions?kind=run_failed')).body
      const found = data.flatMap((each: any) =>
        ids.includes(each.orchestration_run_id) ? each.orchestration_run_id : [],
      )
      return found.length > 0 && found
    })
    assert.deepEqual(reported, [run.id])
  })

  it('are cancelled with their parent, whatever is active in them', async () => {
    const middle = await app.orchestration([loop(await leaf()), { id: 'h', type: 'human' }])
    const run = await app.run(
      [
        {
          id: 's',
          type: 'sub_orchestration',
          orchestration_id: middle,
          input_mapping: { items: { var: 'input.items' } },
        },
      ],
      [],
      { input: { items: [1, 2] }, wait: false },
    )
    await eventually(() => held.length === 2)
    const cancelled = (await app.key.post(`/orchestration-runs/${run.id}/cancel`)).body
    assert.deepEqual([cancelled.status, attempts(cancelled)], ['cancelled', ['s:1:cancelled']])
    const [child] = await children(run.id)
    assert.deepEqual([child.status, child.completed_at !== null], ['cancelled', true])
    for (const each of await children(child.id))
      assert.deepEqual([each.status, attempts(each)], ['cancelled', ['a:1:cancelled']])
    for (const each of [run, child]) {
      const { data } = (await app.key.get(`/events?resource_id=${each.id}`)).body
      const last = data.filter(({ event }: any) => event === 'orchestration_runs.cancelled')
      assert.equal(last.length, 1)
      assert.deepEqual(last[0].data.node_executions, (await app.read(each.id)).node_executions)
    }
  })

  it('inherit the principal, and the tool context keys of the node', async () => {
    const id = await app.orchestration([
      { id: 'all', type: 'sub_orchestration', orchestration_id: await leaf(), input_mapping: { item: 'all' } },
      {
        id: 'one',
        type: 'sub_orchestration',
        orchestration_id: await leaf(),
        input_mapping: { item: 'one' },
        context_keys: ['TENANT'],
      },
      {
        id: 'none',
        type: 'sub_orchestration',
        orchestration_id: await leaf(),
        input_mapping: { item: 'none' },
        context_keys: [],
      },
    ])
    const run = await app.start(id, {
      tool_context: { tenant: 'value-t', other: 'value-o' },
      metadata: { m: 1 },
      wait: false,
    })
    await eventually(() => held.length === 3)
    const seen = (item: string) => {
      const text = JSON.stringify(held.find(each => each.item === item)?.headers)
      return ['value-t', 'value-o'].filter(value => text.includes(value))
    }
    assert.deepEqual([seen('all'), seen('one'), seen('none')], [['value-t', 'value-o'], ['value-t'], []])
    for (const each of await children(run.id)) {
      assert.deepEqual(
        [each.started_by, each.run_depth, each.metadata, each.parent_orchestration_run_id],
        [run.started_by, 1, null, run.id],
      )
    }
    for (const { answer } of held) answer()
    assert.equal((await app.until(run.id)).status, 'succeeded')
  })

  it('are limited by the project at their start, and by the deployment', async () => {
    const inner = await app.orchestration([set('x')])
    const middle = await app.orchestration([{ id: 's', type: 'sub_orchestration', orchestration_id: inner }])
    await app.admin.patch(`/projects/${app.projectId}`, { max_run_depth: 1 })
    assert.equal((await app.run([{ id: 's', type: 'sub_orchestration', orchestration_id: inner }])).status, 'succeeded')
    const deep = await app.run([{ id: 's', type: 'sub_orchestration', orchestration_id: middle }])
    const meta = failed(deep, 'ORCHESTRATION_RUN_DEPTH_LIMIT')
    assert.deepEqual(meta, { depth: 2, limit: 1, limit_source: 'project', orchestration_id: inner })
    await app.admin.patch(`/projects/${app.projectId}`, { max_run_depth: 10 })
    const again = await app.orchestration(
      [
        { id: 'h', type: 'human' },
        { id: 's', type: 'sub_orchestration', orchestration_id: middle },
      ],
      chain('h', 's'),
    )
    const waiting = await app.start(again)
    await app.admin.patch(`/projects/${app.projectId}`, { max_run_depth: 1 })
    const late = await app.key.post(`/orchestration-runs/${waiting.id}/human-input`, { node_id: 'h', output: {} })
    failed(late.body, 'ORCHESTRATION_RUN_DEPTH_LIMIT')
  })

  it('may run each other: written without a finding, they stop at the depth limit', async () => {
    const first = await app.orchestration([set('x')])
    const second = await app.orchestration([{ id: 'back', type: 'sub_orchestration', orchestration_id: first }])
    const nodes = [
      set('items', 1, { state_mapping: { items: { var: 'state.input.items' } } }),
      { id: 'on', type: 'loop', orchestration_id: second },
    ]
    const graph = { nodes, edges: chain('items', 'on') }
    const found = await app.key.post('/orchestrations/validate', graph)
    assert.deepEqual(found.body, { valid: true, problems: [], warnings: [] })
    assert.equal((await app.key.patch(`/orchestrations/${first}`, graph)).status, 200)
    // What runs below has no items: its loop is empty.
    assert.equal((await app.start(first, { input: { items: [1] } })).status, 'succeeded')
    const onward = { ...nodes[1], input_mapping: { items: [1] } }
    const through = { id: 'back', type: 'sub_orchestration', orchestration_id: first, input_mapping: { items: [1] } }
    assert.equal((await app.key.patch(`/orchestrations/${first}`, { nodes: [nodes[0], onward] })).status, 200)
    assert.equal((await app.key.patch(`/orchestrations/${second}`, { nodes: [through] })).status, 200)
    const meta = failed(await app.start(first, { input: { items: [1] } }), 'ORCHESTRATION_RUN_DEPTH_LIMIT')
    assert.deepEqual(meta, { depth: 11, limit: 10, limit_source: 'deployment', orchestration_id: second })
  })

  it('must match the input_schema of their graph, in the version current at their start', async () => {
    const graph = await app.orchestration(
      [{ id: 'a', type: 'tool', tool_id, input_mapping: { item: { var: 'input.item' } } }],
      [],
      {
        input_schema: { type: 'object', properties: { item: { type: 'integer' } }, required: ['item'] },
      },
    )
    const bad = await app.run([
      {
        id: 's',
        type: 'sub_orchestration',
        orchestration_id: graph,
        input_mapping: { item: 'x' },
        retry: { max_attempts: 3 },
      },
    ])
    const meta = failed(bad, 'ORCHESTRATION_NODE_FAILED')
    assert.deepEqual([meta.node_id, meta.reason, meta.problems[0].path], ['s', 'input_schema', 'input.item'])
    assert.equal((await children(bad.id)).length, 0)
    const run = await app.run([loop(graph, { parallelism: 1 })], [], { input: { items: [1, 2] }, wait: false })
    await eventually(() => held.length === 1)
    await app.key.patch(`/orchestrations/${graph}`, { nodes: [set('changed', { var: 'input.item' })] })
    held[0].answer()
    const done = await app.until(run.id)
    assert.deepEqual(
      done.output.l.results,
      [{ a: { item: 1 } }, { changed: { result: 2 } }],
      JSON.stringify(done.error),
    )
    assert.deepEqual((await children(run.id)).map((each: any) => each.orchestration_version).sort(), [1, 2])
  })

  it('are restarted by a retry, and cancelled by the timeout of their node', async () => {
    const run = await app.run(
      [
        {
          id: 's',
          type: 'sub_orchestration',
          orchestration_id: await leaf(),
          timeout: '300ms',
          retry: { max_attempts: 2, backoff: { delay_ms: 0 } },
        },
      ],
      [],
      { wait: false },
    )
    await eventually(() => held.length === 2)
    held[1].answer()
    const done = await app.until(run.id)
    assert.deepEqual(attempts(done)[0], 's:1:failed')
    assert.deepEqual(done.node_executions[0].error.meta.reason, 'timeout')
    const below = await children(run.id)
    assert.equal(below.length, 2)
    assert.ok(below.some(({ status }: any) => status === 'cancelled'))
  })

  it('determine the status of their parent: sleeping, waiting, running', async () => {
    const sleeper = await app.orchestration([{ id: 'd', type: 'delay', duration: '1h' }])
    const run = await app.run([{ id: 's', type: 'sub_orchestration', orchestration_id: sleeper }], [], { wait: false })
    await app.until(run.id, ({ status }) => status === 'sleeping')
    const paused = (await app.key.post(`/orchestration-runs/${run.id}/pause`, { reason: 'why' })).body
    assert.deepEqual(
      [paused.status, paused.required_action.type, paused.required_action.reason],
      ['awaiting_input', 'paused', 'why'],
    )
    const [child] = await children(run.id)
    assert.deepEqual([child.pause_reason, child.pause_requested_at !== null], ['why', true])
    const parked = await app.until(child.id, ({ status }) => status === 'awaiting_input')
    assert.equal(parked.required_action.type, 'paused')
    const resumed = (await app.key.post(`/orchestration-runs/${run.id}/resume`)).body
    assert.deepEqual([resumed.pause_requested_at, resumed.required_action.type], [null, 'nested_run'])
    await app.key.post(`/orchestration-runs/${child.id}/resume`, { wait: false })
    await app.until(run.id, ({ status }) => status === 'sleeping')
  })

  it('of a long loop start and complete in reasonable time', async () => {
    const quick = await app.orchestration([set('x', { var: 'input.item' })])
    const items = Array.from({ length: 300 }, (_, index) => index)
    const run = await app.run([loop(quick, { parallelism: 50 })], [], { input: { items }, wait: false })
    const done = await app.until(run.id)
    assert.deepEqual(
      done.output.l.results.map(({ x }: any) => x.result),
      items,
    )
    const listed = await app.key.get(`/orchestration-runs?parent_orchestration_run_id=${run.id}&view=summary`)
    assert.equal(listed.body.total, 300)
  })
})
