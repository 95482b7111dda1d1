import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, set, startRunApp } from './fixtures.ts'

describe('rounds of nodes', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startRunApp({ env: { ORCHESTRATION_RUN_MAX_STEPS: '510', ORCHESTRATION_NODE_LEASE_SECONDS: '3' } }),
  )
  let tool_id: string
  let answers = new Map<string, (status?: number) => void>()

  before(async () => {
    tool_id = await app.tool()
  })
  beforeEach(() => {
    app.target.requests.length = 0
    answers = new Map()
    app.target.answer = (request, response) => {
      const node = request.headers['idempotency-key']?.toString().split(':')[1] as string
      answers.set(node, (status = 200) => json({ node }, status)(request, response))
    }
  })

  const call = (id: string, more: object = {}) => ({ id, type: 'tool', tool_id, ...more })
  const asked = (node: string) => eventually(() => answers.get(node), { what: `the call of ${node}` })
  const started = async (nodes: object[], edges: object[] = [], body: object = {}) =>
    (await app.start(await app.orchestration(nodes, edges), { wait: false, ...body })).id as string
  const failed = (run: any, reason: string) => {
    assert.deepEqual(
      [run.error?.code, run.error?.meta.reason],
      ['ORCHESTRATION_NODE_FAILED', reason],
      JSON.stringify(run.error),
    )
    return run.error.meta
  }

  it('see the same state, and are applied together, in the order of the definition', async () => {
    const write = (value: unknown) => ({ state_mapping: { 'state.last': value } })
    const id = await started(
      [
        call('slow', write({ var: 'output.node' })),
        set('fast', { var: ['last', 'nothing'] }, write('fast')),
        call('mid', write({ cat: [{ var: 'state.last' }, '+mid'] })),
        set('next', { var: 'last' }),
        set('after', { var: 'last' }),
      ],
      [...chain('fast', 'next'), ...chain('mid', 'after')],
    )
    ;(await asked('mid'))()
    await app.until(
      id,
      ({ node_executions }) => node_executions.filter((each: any) => each.status === 'completed').length === 2,
    )
    const held = await app.read(id)
    assert.equal(held.status, 'running')
    assert.deepEqual([held.artifacts, held.active_nodes], [{}, ['slow', 'fast', 'mid']])
    ;(await asked('slow'))()
    const run = await app.until(id)
    assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
    assert.deepEqual(
      [run.artifacts.fast.result, run.artifacts.next.result, run.state.last],
      ['nothing', 'fast+mid', 'fast+mid'],
    )
  })

  it('do not wait for nodes that wait, whose outcome is applied separately', async () => {
    const id = await started(
      [call('slow'), { id: 'h', type: 'human' }, set('then'), call('own'), set('after')],
      [...chain('h', 'then'), ...chain('slow', 'after')],
    )
    await asked('slow')
    const parked = await app.until(id, ({ required_action }) => required_action !== null)
    assert.equal(parked.status, 'running')
    await app.key.post(`/orchestration-runs/${id}/human-input`, { node_id: 'h', output: { x: 1 }, wait: false })
    const passed = await app.until(id, ({ artifacts }) => artifacts.then !== undefined)
    assert.deepEqual([passed.artifacts.h, passed.active_nodes], [{ x: 1 }, ['slow', 'own']])
    ;(await asked('slow'))()
    ;(await asked('own'))()
    assert.equal((await app.until(id)).status, 'succeeded')
  })

  it('end with the first failure: active work is cancelled, completed work is not applied', async () => {
    const rule = await app.key.post('/guardrails', { name: 'ask', document: { class: 'C' } })
    const gated = await app.tool({ guardrail_ids: [rule.body.id] })
    const leaf = await app.orchestration([call('inner')])
    const id = await started(
      [
        call('done'),
        call('slow'),
        call('bad'),
        call('gated', { tool_id: gated }),
        { id: 'h', type: 'human' },
        { id: 'd', type: 'delay', duration: '1h' },
        { id: 's', type: 'sub_orchestration', orchestration_id: leaf },
        set('next'),
      ],
      chain('done', 'next'),
      { tool_context: { a: 'b' } },
    )
    ;(await asked('done'))()
    for (const node of ['slow', 'inner', 'bad']) await asked(node)
    const waiting = await app.until(
      id,
      ({ required_actions, node_executions }) =>
        required_actions.length === 2 && node_executions.some((each: any) => each.status === 'completed'),
    )
    const { approval_id } = waiting.required_actions.find(({ type }: any) => type === 'approval')
    ;(await asked('bad'))(404)
    const run = await app.until(id)
    assert.deepEqual([run.status, run.failed_node_id, run.error.code], ['failed', 'bad', 'TOOL_HTTP_ERROR'])
    assert.deepEqual(attempts(run).sort(), [
      'bad:1:failed',
      'd:1:cancelled',
      'done:1:completed',
      'gated:1:cancelled',
      'h:1:cancelled',
      's:1:cancelled',
      'slow:1:cancelled',
    ])
    assert.deepEqual(
      [run.artifacts, run.output, run.active_nodes, run.required_actions, run.wake_at],
      [{}, null, [], [], null],
    )
    const [child] = (await app.key.get(`/orchestration-runs?parent_orchestration_run_id=${id}`)).body.data
    assert.deepEqual([child.status, attempts(child)], ['cancelled', ['inner:1:cancelled']])
    assert.equal((await app.key.get(`/approvals/${approval_id}`)).body.status, 'expired')
    ;(await asked('slow'))()
    ;(await asked('inner'))()
    await eventually(() => app.logs.filter(line => line.includes('claim_lost') && line.includes(id)).length >= 1)
    assert.deepEqual(await app.read(id), run)
  })

  it('follow labels: values as text; a value without an edge ends the run, an object fails it', async () => {
    for (const [value, text] of [
      [true, 'true'],
      [null, 'null'],
      [1.5, '1.5'],
      ['x', 'x'],
    ]) {
      const run = await app.run(
        [{ id: 'c', type: 'condition', expression: { var: 'input.v' } }, set('yes'), set('no'), set('always')],
        [
          { from: 'c', to: 'yes', condition: text },
          { from: 'c', to: 'no', condition: 'other' },
          { from: 'c', to: 'always' },
        ],
        { input: { v: value } },
      )
      assert.deepEqual(Object.keys(run.output ?? {}), ['yes', 'always'], JSON.stringify(run.error))
      assert.deepEqual(run.artifacts.c, { label: text })
    }
    const stuck = await app.run(
      [{ id: 'c', type: 'condition', expression: 1 }, set('a')],
      [{ from: 'c', to: 'a', condition: '2' }],
    )
    assert.deepEqual([stuck.status, stuck.output], ['succeeded', {}])
    const list = await app.run([{ id: 'c', type: 'condition', expression: { var: 'input' } }], [], { input: {} })
    assert.equal(failed(list, 'expression').field, 'expression')
  })

  it('write into the state by paths, in order, without access to objects of the engine', async () => {
    const run = await app.run(
      [
        set(
          'a',
          { var: 'input' },
          { state_mapping: { 'state.x.y': { var: 'output.result' }, 'x.z': { var: 'state.x.y.n' }, 'x.z.deep': 1 } },
        ),
        set('b', { var: 'x' }),
      ],
      chain('a', 'b'),
      { input: { n: 5, toString: 1 } },
    )
    assert.deepEqual(run.output.b.result, { y: { n: 5, toString: 1 }, z: { deep: 1 } }, JSON.stringify(run.error))
    for (const name of ['nodes.a', 'input.x', 'state.__proto__.x', 'a.constructor']) {
      const reply = await app.key.post('/orchestrations', {
        name: 'bad',
        nodes: [set('a', 1, { state_mapping: { [name]: 1 } })],
        edges: [],
      })
      assert.equal(reply.body.error?.code, 'ORCHESTRATION_VALIDATION_FAILED', name)
    }
  })

  it('accept any names in input and outputs', async () => {
    const input = JSON.parse('{"__proto__":{"a":1},"constructor":2,"hasOwnProperty":3,"a.b":4}')
    const graph = await app.orchestration(
      [
        { id: 'p', type: 'transform', expression: { var: 'input.constructor' } },
        { id: 'c', type: 'transform', expression: { var: 'input' } },
        { id: 'h', type: 'human' },
      ],
      chain('p', 'c', 'h'),
    )
    const reply = await app.key.post(
      '/orchestration-runs',
      `{"orchestration_id":"${graph}","wait":true,"input":${JSON.stringify(input)}}`,
    )
    const run = reply.body
    assert.equal(run.status, 'awaiting_input', JSON.stringify(run))
    assert.equal(JSON.stringify(run.input), JSON.stringify(input))
    assert.deepEqual(Object.keys(run.artifacts), ['p', 'c'])
    assert.equal(JSON.stringify(run.artifacts.c.result), JSON.stringify(input))
    const answer = await app.key.post(
      `/orchestration-runs/${run.id}/human-input`,
      `{"node_id":"h","output":{"__proto__":{"x":1},"choice":"constructor"}}`,
    )
    assert.equal(answer.body.status, 'succeeded', JSON.stringify(answer.body))
    assert.equal(JSON.stringify(answer.body.output), '{"h":{"__proto__":{"x":1},"choice":"constructor"}}')
  })

  it('fail for expressions without a usable value and for unknown types', async () => {
    const text = await app.run([{ id: 'd', type: 'delay', duration: { var: 'input.d' } }], [], { input: { d: 'soon' } })
    assert.equal(failed(text, 'expression').field, 'duration')
    const unknown = await app.run([{ id: 'u', type: 'teleport', retry: { max_attempts: 3 } }])
    failed(unknown, 'unknown_type')
    assert.deepEqual(attempts(unknown), ['u:1:failed'])
    // A type that graphs of playbooks alone have.
    const decide = await app.run([{ id: 'u', type: 'decide', metadata: { decider_id: 'dcd_1' } }])
    failed(decide, 'unknown_type')
  })

  it('pass edges with an empty label for an empty value', async () => {
    const run = await app.run(
      [{ id: 'c', type: 'condition', expression: { var: 'input.label' } }, set('empty'), set('other')],
      [
        { from: 'c', to: 'empty', condition: '' },
        { from: 'c', to: 'other', condition: 'other' },
      ],
      { input: { label: '' } },
    )
    assert.deepEqual(Object.keys(run.output), ['empty'], JSON.stringify(run))
  })

  it('do not start for graphs that cannot be executed', async () => {
    const stored = async (change: (id: string) => Promise<unknown>) => {
      const id = await app.orchestration([set('a'), set('b')], chain('a', 'b'))
      await change(id)
      return app.start(id)
    }
    const { pool } = app
    const cyclic = await stored(id =>
      pool.query(sql.unsafe`
        update orchestration_versions set config = jsonb_set(config::jsonb, '{edges}', config::jsonb -> 'edges' || '[{"from":"b","to":"a"}]')
        where orchestration_id = ${id}`),
    )
    const gone = await stored(id =>
      pool.query(sql.unsafe`delete from orchestration_versions where orchestration_id = ${id}`),
    )
    for (const [run, code] of [
      [cyclic, 'ORCHESTRATION_CYCLE_DETECTED'],
      [gone, 'ORCHESTRATION_NOT_FOUND'],
    ])
      assert.deepEqual([run.status, run.error?.code, attempts(run)], ['failed', code, []])
  })

  it('whose advance keeps failing end their run and block nothing', async () => {
    const { pool } = app
    const id = await app.orchestration([set('a')])
    let run: any
    await refusingUpdates(app.services, 'orchestration_runs', `new.status = 'succeeded'`, async () => {
      run = await app.start(id, { wait: false })
      // Each attempt follows immediately instead of after up to a minute.
      const done = async () => {
        await pool.query(sql.unsafe`
          update pgboss.job set start_after = now() where name = 'run.advance' and state = 'retry'`)
        run = await app.read(run.id)
        return run.status === 'failed'
      }
      await eventually(done, { every: 200, within: 50_000 })
    })
    assert.deepEqual([run.error.code, attempts(run)], ['INTERNAL_ERROR', []])
    await app.idle(run.id)
    const dead = await app.services.queues.deadLetters.list({ queue: 'run.advance' })
    assert.deepEqual(
      dead.map(({ data, attempts }) => [(data as any).run_id, attempts]),
      [[run.id, 11]],
    )
  })

  it('can be many: a chain and a fan of 500 nodes, without blocking others', async () => {
    const ids = Array.from({ length: 250 }, (_, index) => `n${index}`)
    const fan = Array.from({ length: 250 }, (_, index) => `f${index}`)
    const graph = await app.orchestration(
      [...ids, ...fan].map(id => set(id, { var: 'input.n' })),
      [...chain(...ids), ...fan.map(to => ({ from: 'n0', to }))],
    )
    const quick = await app.orchestration([set('a')])
    const [big, small] = await Promise.all([app.start(graph, { input: { n: 1 } }), app.start(quick)])
    assert.deepEqual([big.status, small.status], ['succeeded', 'succeeded'], JSON.stringify(big.error))
    assert.equal(big.node_executions.length, 500)
  })

  it('are limited per run, including polls and retries', async () => {
    const fan = Array.from({ length: 499 }, (_, index) => `f${index}`)
    app.target.answer = json({ done: false })
    const run = await app.run(
      [
        ...fan.map(id => set(id)),
        { id: 'p', type: 'poll', tool_id, exit_condition: false, interval: '0s', max_iterations: 1000 },
      ],
      [],
      { wait: false },
    )
    const done = await eventually(
      async () => {
        const now = await app.read(run.id)
        return now.status === 'failed' && now
      },
      { within: 50_000 },
    )
    assert.equal(done.error.code, 'ORCHESTRATION_MAX_ITERATIONS_EXCEEDED')
    assert.ok(app.target.requests.length <= 11, String(app.target.requests.length))
  })
})
