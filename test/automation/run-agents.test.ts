import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { scriptOf } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, startRunApp } from './fixtures.ts'

describe('agents in runs', function () {
  this.timeout(60_000)
  const app = forSuite(startRunApp)

  const agent = (id: string, more: object = {}) => ({ id, type: 'agent', agent_id: app.agentId, ...more })
  const asked = async (): Promise<any[]> => {
    const answer = await fetch(`${app.double.url}/control/requests?kind=chat`)
    return ((await answer.json()) as any).data.map(({ body }: any) => body.messages)
  }
  const generation = async (id: string) => (await app.key.get(`/generations/${id}`)).body

  it('receive messages, else a prompt with the other input, else a placeholder', async () => {
    const messages = [
      { role: 'user', content: 'one' },
      { role: 'assistant', content: 'two' },
      { role: 'user', content: 'three' },
    ]
    const cases: [object, object, string[]][] = [
      [
        { input_mapping: { messages: { var: 'input.messages' }, x: 1 }, prompt: 'no' },
        { messages },
        ['one', 'two', 'three'],
      ],
      [
        { prompt: { cat: ['Hi ', { var: 'input.who' }] }, input_mapping: { a: { var: 'input' }, prompt: 'kept' } },
        { who: 'you' },
        ['Hi you\na: {"who":"you"}\nprompt: "kept"'],
      ],
      [{ input_mapping: { prompt: 'Given', n: 1 } }, {}, ['Given\nn: 1']],
      [{ input_mapping: { prompt: { var: 'input.list' } } }, { list: [1] }, ['prompt: [1]']],
      [{}, {}, ['(no input)']],
    ]
    for (const [node, input, texts] of cases) {
      const run = await app.run([agent('a', node)], [], { input })
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      assert.deepEqual(
        (await asked()).at(-1).map(({ content }: any) => content),
        texts,
      )
    }
    const wrong = await app.run([agent('a', { input_mapping: { messages: { var: 'input.m' } } })], [], {
      input: { m: [{ role: 'system', content: 'x' }] },
    })
    assert.deepEqual([wrong.error.code, wrong.error.meta.reason], ['ORCHESTRATION_NODE_FAILED', 'expression'])
  })

  it('return the object of an output_schema, or of their text', async () => {
    const output_schema = {
      type: 'object',
      properties: { n: { type: 'integer' } },
      required: ['n'],
      additionalProperties: false,
    }
    for (const text of ['{"n":1}', '```json\n{"n":1}\n```']) {
      const run = await app.run([agent('a', { output_schema, prompt: scriptOf({ text }) })])
      assert.deepEqual(run.output, { a: { n: 1 } }, JSON.stringify(run.error))
    }
    const list = { ...agent('a', { prompt: scriptOf({ text: '[1]' }) }), output_schema: { type: 'array' } }
    assert.deepEqual((await app.run([list])).output, { a: { content: '[1]' } })
    const retry = { max_attempts: 2, backoff: { delay_ms: 0 } }
    const wrong = await app.run([agent('a', { output_schema, retry, prompt: scriptOf({ text: 'n is 1' }) })])
    assert.deepEqual(
      [wrong.error?.code, attempts(wrong)],
      ['OUTPUT_SCHEMA_VALIDATION_FAILED', ['a:1:failed', 'a:2:failed']],
    )
    const free = await app.run([agent('a', { prompt: scriptOf({ text: '{"n":1}' }) })])
    assert.deepEqual(free.output, { a: { content: '{"n":1}' } })
  })

  it('carry their origin; later traces are children of the first', async () => {
    const run = await app.run([agent('a'), agent('b')], chain('a', 'b'), { metadata: { m: 1 } })
    assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
    const [one, two] = await Promise.all(run.node_executions.map((each: any) => generation(each.generation_id)))
    assert.deepEqual([one.orchestration_run_id, one.node_id, one.node_attempt], [run.id, 'a', 1])
    assert.equal(run.trace_id, one.trace_id)
    assert.notEqual(two.trace_id, one.trace_id)
    const trace = await app.admin.get(`/traces/${two.trace_id}`)
    assert.equal(
      trace.body.parent_trace_id ?? trace.body.trace?.parent_trace_id,
      run.trace_id,
      JSON.stringify(trace.body).slice(0, 300),
    )
    const used = await app.read(run.id)
    assert.ok(used.usage_own.output_tokens > 0)
  })

  it('wait for their tool outputs and continue with them', async () => {
    const tool = await app.admin.post('/tools', { project_id: app.projectId, name: 'pick', type: 'client' })
    const agent_id = await app.agent({ tool_bindings: [{ tool_id: tool.body.id }] })
    const prompt = scriptOf({ tool_calls: [{ name: 'pick', args: {} }] }, { text: 'picked' })
    const run = await app.run(
      [
        agent('a', { agent_id, prompt }),
        { id: 'x', type: 'transform', expression: 1 },
        { id: 'y', type: 'transform', expression: 2 },
      ],
      chain('x', 'y'),
    )
    assert.equal(run.status, 'awaiting_input', JSON.stringify(run.error))
    const { type, generation_id, node_id } = run.required_action
    assert.deepEqual([type, node_id], ['generation', 'a'])
    assert.deepEqual(run.artifacts.y, { result: 2 })
    const turn = await generation(generation_id)
    const [call] = turn.required_action.tool_calls
    const reply = await app.key.post(`/agents/${agent_id}/generate/${generation_id}/tool-outputs?wait=true`, {
      tool_outputs: [{ tool_call_id: call.id ?? call.tool_call_id, output: 'it' }],
    })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    const done = await app.until(run.id)
    assert.deepEqual(done.output.a, { content: 'picked' }, JSON.stringify(done.error))
  })

  it('are retried in a separate turn; the failure is the failure of the turn', async () => {
    const failing = scriptOf({ error: { status: 400, message: 'no' } })
    const run = await app.run([agent('a', { prompt: failing, retry: { max_attempts: 2, backoff: { delay_ms: 0 } } })])
    assert.equal(run.status, 'failed')
    const turns = run.node_executions.map((each: any) => each.generation_id)
    assert.equal(new Set(turns).size, turns.length)
    assert.equal((await generation(turns.at(-1))).error.code, run.error.code)
    const missing = await app.run([agent('a', { agent_id: 'agent_missing', retry: { max_attempts: 3 } })])
    assert.deepEqual([missing.error.code, attempts(missing)], ['AGENT_NOT_FOUND', ['a:1:failed']])
  })

  it('are cancelled by the timeout of their node and with their run', async () => {
    const slow = scriptOf({ delay_ms: 20_000, text: 'late' })
    const late = await app.run([agent('a', { prompt: slow, timeout: '200ms' })])
    assert.deepEqual([late.error?.code, late.error?.meta.reason], ['ORCHESTRATION_NODE_FAILED', 'timeout'])
    await eventually(async () => (await generation(late.node_executions[0].generation_id)).status === 'failed')
    const run = await app.run([agent('a', { prompt: slow })], [], { wait: false })
    const { node_executions } = await app.until(run.id, each => each.node_executions[0]?.generation_id)
    await app.key.post(`/orchestration-runs/${run.id}/cancel`)
    await eventually(async () => (await generation(node_executions[0].generation_id)).status === 'failed')
    assert.equal((await app.read(run.id)).status, 'cancelled')
  })

  it('fail with the quota code of their project', async () => {
    const quota = await app.admin.post('/quotas', {
      scope: 'project',
      project_id: app.projectId,
      metric: 'tokens',
      limit: 1,
      window: 'calendar_month',
    })
    assert.equal(quota.status, 201, JSON.stringify(quota.body))
    const run = await app.run([agent('a', { retry: { max_attempts: 3 } })])
    await app.admin.delete(`/quotas/${quota.body.id}`)
    assert.equal(run.error.code, 'QUOTA_EXCEEDED')
    assert.deepEqual(attempts(run), ['a:1:failed'])
  })

  it('are redacted after the content of their turn was erased, in the run and in its retries', async () => {
    const tool_id = await app.tool()
    app.target.answer = (_request, response) => response.writeHead(400).end()
    const nodes = [
      agent('ask', { input_mapping: { prompt: 'SECRET' } }),
      { id: 'call', type: 'tool', tool_id, input_mapping: { said: 'kept' } },
    ]
    const orchestration = await app.orchestration(
      [...nodes, { id: 'last', type: 'condition', expression: true }],
      chain('ask', 'call', 'last'),
    )
    const run = await app.start(orchestration)
    assert.deepEqual(attempts(run).slice(0, 2), ['ask:1:completed', 'call:1:failed'])
    assert.match(JSON.stringify(run.artifacts.ask), /SECRET/)
    const retried = await app.key.post(`/orchestration-runs/${run.id}/retry`)
    const again = await app.until(retried.body.id)
    assert.match(JSON.stringify(again.state), /SECRET/)
    const { generation_id } = run.node_executions[0]
    const path = `/generations/${generation_id}/content`
    assert.equal((await app.key.delete(`${path}?dry_run=true`)).body.counts.orchestration_runs, 2)
    assert.equal((await app.key.delete(path)).status, 200)
    for (const id of [run.id, again.id]) {
      const after = await app.until(id)
      assert.doesNotMatch(JSON.stringify(after), /SECRET/)
      assert.deepEqual([after.status, after.artifacts.ask], ['failed', null])
      assert.deepEqual(after.node_executions.find(({ node_id }: any) => node_id === 'call').input, { said: 'kept' })
      const { data } = (await app.key.get(`/events?resource_id=${id}`)).body
      assert.ok(data.some(({ event }: any) => event === 'orchestration_runs.failed'))
      for (const event of data) assert.doesNotMatch(JSON.stringify(event), /SECRET/, event.event)
    }
  })

  it('keep the records of their turns while they are live, whatever the retention of the project', async () => {
    const nodes = [agent('a', { prompt: scriptOf({ text: 'kept' }) }), { id: 'b', type: 'human', prompt: 'Go on?' }]
    const id = await app.orchestration(nodes, chain('a', 'b'))
    const run = await app.start(id, { wait: false })
    const waiting = await app.until(run.id, ({ status }) => status === 'awaiting_input')
    const turn = await generation(waiting.node_executions[0].generation_id)
    const free = (await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'x' })).body
    await app.pool.query(
      rawQuery(
        `with g as (update generations set created_at = created_at - interval '3 days',
           last_activity_at = last_activity_at - interval '3 days' where id = any($1::text[]) returning trace_id)
         update traces t set created_at = t.created_at - interval '3 days' from g where t.id = g.trace_id`,
        [[turn.id, free.id]],
      ),
    )
    await app.admin.patch(`/projects/${app.projectId}`, { trace_retention_days: 1 })
    const sweeper = await runWorker(app.databaseUrl, { CONTENT_RETENTION_SWEEP_INTERVAL_MS: '1000' }, ['snapshot'])
    try {
      const gone = async (id: string) => (await app.key.get(`/generations/${id}`)).status === 404
      await eventually(() => gone(free.id))
      assert.equal(await gone(turn.id), false)
      await app.key.post(`/orchestration-runs/${run.id}/cancel`)
      await eventually(() => gone(turn.id))
    } finally {
      await sweeper.stop()
      await app.admin.patch(`/projects/${app.projectId}`, { trace_retention_days: null })
    }
  })
})
