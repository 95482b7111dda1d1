import assert from 'node:assert/strict'
import { eventsOf } from '../execution/decider-support.ts'
import { json } from '../execution/tool-target.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, set, startRunApp } from './fixtures.ts'

describe('orchestration runs', function () {
  this.timeout(60_000)
  const app = forSuite(startRunApp)
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })

  describe('graphs of inline nodes', () => {
    it('run to completion while the caller waits and output the artifacts of the final nodes', async () => {
      const run = await app.run(
        [
          set(
            'double',
            { '*': [{ var: 'input.n' }, 2] },
            { state_mapping: { 'state.total': { var: 'output.result' } } },
          ),
          { id: 'size', type: 'condition', expression: { if: [{ '>': [{ var: 'total' }, 10] }, 'large', 'small'] } },
          set('large', { cat: ['large ', { var: 'total' }] }),
          set('small', 'small'),
        ],
        [
          ...chain('double', 'size'),
          { from: 'size', to: 'large', condition: 'large' },
          { from: 'size', to: 'small', condition: 'small' },
        ],
        { input: { n: 21 } },
      )
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      assert.deepEqual(run.output, { large: { result: 'large 42' } })
      assert.deepEqual(run.state, {
        input: { n: 21 },
        nodes: { double: { result: 42 }, size: { label: 'large' }, large: { result: 'large 42' } },
        total: 42,
      })
      assert.deepEqual(attempts(run), [
        'double:1:completed',
        'size:1:completed',
        'large:1:completed',
        'small:1:skipped',
      ])
      assert.deepEqual((await eventsOf(app.key, run.id)).map(({ event }: any) => event).sort(), [
        'orchestration_runs.started',
        'orchestration_runs.succeeded',
      ])
    })

    it('are queued for a caller who does not wait', async () => {
      const id = await app.orchestration([set('a', 1)])
      const run = await app.start(id, { wait: false })
      assert.equal(run.status, 'queued')
      assert.equal((await app.until(run.id)).status, 'succeeded')
    })

    it('join once: `all` after both edges, `any` after the first', async () => {
      const run = await app.run(
        [
          set('a', 1),
          set('b', 2),
          set('all', { '+': [{ var: 'nodes.a.result' }, { var: 'nodes.b.result' }] }),
          set('any', 'x'),
        ],
        [
          { from: 'a', to: 'all', activation_group: 'g' },
          { from: 'b', to: 'all', activation_group: 'g' },
          { from: 'a', to: 'any', activation_group: 'h', activation_condition: 'any' },
          { from: 'b', to: 'any', activation_group: 'h', activation_condition: 'any' },
        ],
      )
      assert.deepEqual(run.output, { all: { result: 3 }, any: { result: 'x' } })
      assert.equal(run.node_executions.length, 4)
    })
  })

  describe('tools', () => {
    it('are called in order with the input of their node, each under its own key', async () => {
      const tool_id = await app.tool()
      app.target.answer = ({ body }, response) => json({ got: JSON.parse(body || '{}') })({} as never, response)
      const run = await app.run(
        [
          { id: 'a', type: 'tool', tool_id, input_mapping: { x: { var: 'input.x' } } },
          { id: 'b', type: 'tool', tool_id, input_mapping: { y: { var: 'nodes.a.got.x' } } },
        ],
        chain('a', 'b'),
        { input: { x: 7 } },
      )
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      assert.deepEqual(run.output, { b: { got: { y: 7 } } })
      assert.deepEqual(
        app.target.requests.map(({ headers }) => headers['idempotency-key']),
        [`${run.id}:a:1`, `${run.id}:b:1`],
      )
    })

    it('are retried by the policy of their node, under another key', async () => {
      const tool_id = await app.tool()
      let calls = 0
      app.target.answer = (request, response) => json({ n: ++calls }, calls < 3 ? 500 : 200)(request, response)
      const run = await app.run([
        { id: 'a', type: 'tool', tool_id, retry: { max_attempts: 3, backoff: { delay_ms: 10 } } },
      ])
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      assert.deepEqual(attempts(run), ['a:1:failed', 'a:2:failed', 'a:3:completed'])
      assert.equal(new Set(app.target.requests.map(({ headers }) => headers['idempotency-key'])).size, 3)
    })

    it('are called once when the failure is not retriable', async () => {
      const tool_id = await app.tool()
      app.target.answer = json({ no: true }, 404)
      const run = await app.run([
        { id: 'a', type: 'tool', tool_id, retry: { max_attempts: 3, backoff: { delay_ms: 10 } } },
      ])
      assert.equal(run.status, 'failed')
      assert.equal(run.error.code, 'TOOL_HTTP_ERROR')
      assert.equal(run.failed_node_id, 'a')
      assert.equal(app.target.requests.length, 1)
    })

    it('are polled until the condition is met', async () => {
      const tool_id = await app.tool()
      let calls = 0
      app.target.answer = (request, response) => json({ done: ++calls === 3 })(request, response)
      const run = await app.run([
        { id: 'p', type: 'poll', tool_id, exit_condition: { var: 'response.done' }, interval: '20ms' },
      ])
      assert.deepEqual(run.output, {
        p: { result: { done: true }, attempts: 3, condition_met: true, timed_out: false },
      })
      assert.deepEqual(
        app.target.requests.map(({ headers }) => headers['idempotency-key']),
        [1, 2, 3].map(n => `${run.id}:p:1:${n}`),
      )
    })
  })

  describe('waits', () => {
    it('for people are submitted one by one, each once', async () => {
      const run = await app.run(
        [
          { id: 'x', type: 'human', options: ['yes', 'no'] },
          { id: 'y', type: 'human', prompt: 'Why?' },
          set('z', { var: 'nodes.x.choice' }),
        ],
        [{ from: 'x', to: 'z', condition: 'yes' }],
      )
      assert.equal(run.status, 'awaiting_input')
      assert.deepEqual(
        run.required_actions.map(({ type, node_id, prompt }: any) => [type, node_id, prompt]),
        [
          ['human_input', 'x', 'Human input required.'],
          ['human_input', 'y', 'Why?'],
        ],
      )
      const answer = (node_id: string, output: object) =>
        app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id, output })
      for (const choice of ['maybe', 1, null, ['yes']])
        assert.equal((await answer('x', { choice })).body.error?.meta.problems[0].path, 'output.choice', String(choice))
      const replies = await Promise.all([answer('x', { choice: 'yes' }), answer('x', { choice: 'yes' })])
      assert.deepEqual(replies.map(({ status }) => (status === 200 ? 200 : 0)).sort(), [0, 200])
      const left = replies.find(({ status }) => status === 200)?.body
      assert.deepEqual(left.active_nodes, ['y'], JSON.stringify(left))
      assert.equal((await answer('z', {})).body.error.code, 'ORCHESTRATION_HUMAN_NODE_MISMATCH')
      const done = await answer('y', { because: 1 })
      assert.equal(done.body.status, 'succeeded')
      assert.deepEqual(done.body.output, { y: { because: 1 }, z: { result: 'yes' } })
      assert.equal((await answer('y', {})).body.error.code, 'ORCHESTRATION_RUN_NOT_AWAITING_INPUT')
    })

    it('for a time end when it is reached', async () => {
      const run = await app.run([{ id: 'd', type: 'delay', duration: '200ms' }, set('e', 1)], chain('d', 'e'))
      assert.deepEqual(run.output, { e: { result: 1 } })
      assert.deepEqual(run.artifacts.d, { waited: '200ms' })
    })

    it('for an approval follow the decision', async () => {
      const tool_id = await app.tool()
      const graph = await app.orchestration(
        [{ id: 'ask', type: 'approval', tool_id, arguments: { n: { var: 'input.n' } } }, set('yes', 1), set('no', 0)],
        [
          { from: 'ask', to: 'yes' },
          { from: 'ask', to: 'no', condition: 'rejected' },
        ],
      )
      const decide = async (verb: string, body?: object) => {
        const run = await app.start(graph, { input: { n: 3 } })
        assert.equal(run.status, 'awaiting_input', JSON.stringify(run.error))
        const { approval_id } = run.required_action
        const reply = await app.key.post(`/approvals/${approval_id}/${verb}`, body)
        assert.equal(reply.status, 200, JSON.stringify(reply.body))
        return app.until(run.id)
      }
      const approved = await decide('approve')
      assert.deepEqual(approved.output, { yes: { result: 1 } })
      assert.equal(approved.artifacts.ask.decision, 'approved')
      const rejected = await decide('reject', { reason: 'no' })
      assert.deepEqual(rejected.output, { no: { result: 0 } })
      assert.equal(app.target.requests.length, 0)
    })
  })

  describe('memory', () => {
    it('is written by nodes, and searched in the stores of the node if the input lists none', async () => {
      const store = async (name: string) => (await app.key.post('/memory-stores', { name })).body.id
      const [kept, other] = [await store('kept'), await store('other')]
      const find = (id: string, more: object) => ({
        id,
        type: 'knowledge',
        memory_store_ids: [kept],
        input_mapping: { query: 'harbour', ...more },
      })
      const write = (id: string, memory_store_id: string, content: string) => ({
        id,
        type: 'memory_write',
        memory_store_id,
        input_mapping: { content },
      })
      const run = await app.run(
        [
          write('six', kept, 'The harbour opens at six'),
          write('ten', other, 'The harbour closes at ten'),
          find('own', {}),
          find('given', { memory_store_ids: [other] }),
        ],
        [...chain('six', 'ten', 'own'), ...chain('ten', 'given')],
      )
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      assert.deepEqual([run.artifacts.six.action, run.artifacts.ten.action], ['created', 'created'])
      const contents = ({ results }: any) => results.map(({ content }: any) => content)
      assert.deepEqual(contents(run.output.own), ['The harbour opens at six'], JSON.stringify(run.output))
      assert.deepEqual(contents(run.output.given), ['The harbour closes at ten'])
    })
  })

  describe('agents', () => {
    it('are called in a separate turn whose reply is the artifact', async () => {
      const run = await app.run(
        [{ id: 'a', type: 'agent', agent_id: app.agentId, prompt: { cat: ['Hello ', { var: 'input.who' }] } }],
        [],
        {
          input: { who: 'you' },
        },
      )
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      assert.equal(typeof run.output.a.content, 'string')
      assert.match(run.node_executions[0].generation_id, /^gen_/)
      assert.match(run.trace_id, /^trace_/)
    })
  })

  describe('nested runs', () => {
    it('return their output, in item order for a loop', async () => {
      const child = await app.orchestration([set('r', { '*': [{ var: 'input.item' }, { var: 'input.by' }] })])
      const run = await app.run(
        [
          {
            id: 'l',
            type: 'loop',
            orchestration_id: child,
            collection: 'state.input.items',
            parallelism: 2,
            input_mapping: { by: 10 },
          },
          { id: 's', type: 'sub_orchestration', orchestration_id: child, input_mapping: { item: 1, by: 1 } },
        ],
        [],
        { input: { items: [1, 2, 3, 4, 5] } },
      )
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      assert.deepEqual(
        run.output.l.results,
        [10, 20, 30, 40, 50].map(result => ({ r: { result } })),
      )
      assert.deepEqual(run.output.s, { r: { result: 1 } })
      const nested = await app.key.get(`/orchestration-runs?parent_orchestration_run_id=${run.id}&view=summary`)
      assert.equal(nested.body.total, 6)
      assert.ok(nested.body.data.every((each: any) => each.run_depth === 1 && each.state === null))
    })

    it('that recurse stop at the depth limit', async () => {
      const id = await app.orchestration([set('a', 1)])
      const made = await app.key.patch(`/orchestrations/${id}`, {
        nodes: [{ id: 'again', type: 'sub_orchestration', orchestration_id: id }],
      })
      assert.equal(made.status, 200, JSON.stringify(made.body))
      // If both limits are equal, the limit of the deployment is reported.
      for (const max_run_depth of [10, null]) {
        await app.admin.patch(`/projects/${app.projectId}`, { max_run_depth })
        const run = await app.until((await app.start(id, { wait: false })).id)
        assert.deepEqual([run.status, run.error?.code], ['failed', 'ORCHESTRATION_RUN_DEPTH_LIMIT'])
        assert.deepEqual(run.error.meta, { depth: 11, limit: 10, limit_source: 'deployment', orchestration_id: id })
      }
    })

    it('block their parent while they await input', async () => {
      const child = await app.orchestration([{ id: 'h', type: 'human' }])
      const run = await app.run([{ id: 's', type: 'sub_orchestration', orchestration_id: child }])
      assert.equal(run.status, 'awaiting_input')
      assert.equal(run.required_action.type, 'nested_run')
      await app.key.post(`/orchestration-runs/${run.required_action.orchestration_run_id}/human-input`, {
        node_id: 'h',
        output: { ok: 1 },
      })
      assert.deepEqual((await app.until(run.id)).output, { s: { h: { ok: 1 } } })
    })

    it('that are cancelled fail their parent', async () => {
      const child = await app.orchestration([{ id: 'h', type: 'human' }])
      const run = await app.run([{ id: 's', type: 'sub_orchestration', orchestration_id: child }])
      const { orchestration_run_id } = run.required_action
      assert.equal((await app.key.post(`/orchestration-runs/${orchestration_run_id}/cancel`)).body.status, 'cancelled')
      const failed = await app.until(run.id)
      assert.equal(failed.error.code, 'ORCHESTRATION_NESTED_RUN_FAILED')
      assert.deepEqual(failed.error.meta, { orchestration_run_id, node_id: 's', status: 'cancelled' })
    })
  })

  describe('commands', () => {
    it('are refused for runs that await no input', async () => {
      const asleep = await app.run([{ id: 'd', type: 'delay', duration: '1h' }], [], { wait: false })
      await app.until(asleep.id, ({ status }) => status === 'sleeping')
      const ended = await app.run([set('a')])
      for (const [{ id }, status] of [
        [asleep, 'sleeping'],
        [ended, 'succeeded'],
      ])
        for (const [command, body] of [
          ['human-input', { node_id: 'd', output: {} }],
          ['resume', {}],
        ] as const) {
          const reply = await app.key.post(`/orchestration-runs/${id}/${command}`, body)
          assert.deepEqual(
            [reply.status, reply.body.error?.code, reply.body.error?.meta],
            [409, 'ORCHESTRATION_RUN_NOT_AWAITING_INPUT', { status }],
          )
        }
      assert.equal((await app.key.post(`/orchestration-runs/${asleep.id}/cancel`)).status, 200)
    })

    it('pause a waiting run: its wait stays first, and a decision during the pause applies on resume', async () => {
      const tool_id = await app.tool()
      const run = await app.run(
        [{ id: 'ask', type: 'approval', tool_id }, { id: 'hook', type: 'webhook' }, set('next')],
        chain('ask', 'next'),
      )
      const paused = (await app.key.post(`/orchestration-runs/${run.id}/pause`, { reason: 'wait' })).body
      assert.deepEqual(
        paused.required_actions.map(({ type, node_id, prompt, reason }: any) => [type, node_id, prompt, reason]),
        [
          ['approval', 'ask', 'Approval required.', null],
          ['webhook_receive', 'hook', 'Waiting for webhook callback.', null],
          ['paused', null, null, 'wait'],
        ],
      )
      const { approval_id } = run.required_action
      assert.equal((await app.key.post(`/approvals/${approval_id}/approve`)).status, 200)
      const held = await app.until(run.id, ({ required_actions }) => required_actions.length === 2)
      assert.deepEqual([held.status, held.artifacts, held.active_nodes], ['awaiting_input', {}, ['ask', 'hook']])
      assert.equal(held.required_action.type, 'webhook_receive')
      const resumed = (await app.key.post(`/orchestration-runs/${run.id}/resume`)).body
      assert.deepEqual([resumed.artifacts.ask?.decision, resumed.active_nodes], ['approved', ['hook']])
      assert.deepEqual(resumed.artifacts.next, { result: 'next' })
    })

    it('cancel a run with its pending approval, once', async () => {
      const tool_id = await app.tool()
      const run = await app.run([{ id: 'ask', type: 'approval', tool_id }])
      const cancel = () => app.key.post(`/orchestration-runs/${run.id}/cancel`)
      assert.equal((await cancel()).body.status, 'cancelled')
      assert.equal((await cancel()).body.error.code, 'ORCHESTRATION_RUN_NOT_CANCELLABLE')
      const { approval_id } = run.required_action
      assert.equal((await app.key.get(`/approvals/${approval_id}`)).body.status, 'expired')
      assert.equal((await app.key.post(`/approvals/${approval_id}/approve`)).status, 409)
    })

    it('pause a run: active work finishes, and nothing starts until the run is resumed', async () => {
      const tool_id = await app.tool()
      let free = () => {}
      app.target.answer = (request, response) => {
        free = () => json({ ok: true })(request, response)
      }
      const id = await app.orchestration([{ id: 'a', type: 'tool', tool_id }, set('b', 2)], chain('a', 'b'))
      const run = await app.start(id, { wait: false })
      await app.until(run.id, () => app.target.requests.length === 1)
      const pause = (reason: string) => app.key.post(`/orchestration-runs/${run.id}/pause`, { reason })
      assert.equal((await pause('first')).body.pause_reason, 'first')
      assert.equal((await pause('second')).body.pause_reason, 'first')
      free()
      const held = await app.until(run.id, each => each.status === 'awaiting_input')
      assert.deepEqual(attempts(held), ['a:1:completed'])
      assert.equal(held.required_action.type, 'paused')
      const answer = await app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'a' })
      assert.deepEqual([answer.status, answer.body.error.code], [409, 'ORCHESTRATION_RUN_PAUSED'])
      const resumed = await app.key.post(`/orchestration-runs/${run.id}/resume`)
      assert.equal(resumed.body.status, 'succeeded', JSON.stringify(resumed.body))
      assert.equal(
        (await app.key.post(`/orchestration-runs/${run.id}/pause`)).body.error.code,
        'ORCHESTRATION_RUN_NOT_PAUSABLE',
      )
    })
  })
})
