import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { eventually, type Reply } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { type Message, openStream } from './streams.ts'
import { json, startTarget } from './tool-target.ts'

/** A prompt that makes the model answer one after the other. */
const script = (...replies: object[]) => ({ prompt: `@double ${JSON.stringify(replies)}` })
const call = (name: string, args: object = {}, more: object = {}) => ({ tool_calls: [{ name, args, ...more }] })
const text = (text: string) => ({ text })

describe('turns with tools', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({
      env: {
        EGRESS_ALLOW_HOSTS: '127.0.0.1',
        GENERATION_TOOL_RESULT_MAX_BYTES: '2000',
        GENERATION_TOOL_CONCURRENCY: '3',
      },
      actions: ['agents:CreateAgentGeneration', 'generations:GetGeneration', 'generations:PurgeGenerationContent'],
    }),
  )
  const names = new Map<string, string>()

  /** A tool of the project, as the admin makes it. */
  const tool = async (name: string, fields: object = {}): Promise<string> => {
    const execute = { url: `${target.url}/${name}` }
    const made = await app.admin.post('/tools', { project_id: app.projectId, name, execute, ...fields })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    names.set(name, made.body.id)
    return made.body.id
  }
  const agentWith = (bindings: object[], fields: object = {}) => app.agent({ tool_bindings: bindings, ...fields })
  const generate = (agent: string, body: object, query = '?wait=true') =>
    app.key.post(`/agents/${agent}/generate${query}`, body)
  const outputs = (agent: string, generation: string, body: object, query = '') =>
    app.key.post(`/agents/${agent}/generate/${generation}/tool-outputs${query}`, body)
  const done = (reply: Reply) => {
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }
  const transcript = async (id: string) => (await app.admin.get(`/generations/${id}/transcript`)).body
  /** The prompts of the model, oldest first. */
  const requests = async (): Promise<any[]> => {
    const answer = await fetch(`${app.double.url}/control/requests?kind=chat`)
    return ((await answer.json()) as any).data.map(({ body }: any) => body)
  }
  const asked = async () => (await requests()).at(-1)
  const collect = async (path: string, body?: object): Promise<Message[]> => {
    const messages: Message[] = []
    for await (const message of (await openStream(app, path, body)).messages) messages.push(message)
    return messages
  }
  beforeEach(() => {
    target.answer = json({ ok: true })
    target.requests.length = 0
  })

  it('show the model the tools, make its calls and return the results', async () => {
    const parameters = { type: 'object', required: ['city'], properties: { city: { type: 'string' } } }
    const id = await tool('weather', { description: 'Says the weather', parameters })
    const agent = await agentWith([{ tool_id: id }])
    target.answer = json({ temp: 21 })
    const body = done(
      await generate(agent, script(call('weather', { city: 'Paris' }), text('It is {{tool.weather.temp}}'))),
    )
    assert.equal(body.output.content, 'It is 21')
    assert.deepEqual(
      target.requests.map(({ body }) => JSON.parse(body)),
      [{ city: 'Paris' }],
    )
    const [first, second] = (await requests()).slice(-2)
    assert.deepEqual(first.tools[0].function.name, 'weather')
    assert.equal(first.tools[0].function.description, 'Says the weather')
    assert.deepEqual(first.tools[0].function.parameters.required, ['city'])
    assert.equal(second.messages.at(-1).role, 'tool')
    const roles = body.output.response_messages.map(({ role }: { role: string }) => role)
    assert.deepEqual(roles, ['assistant', 'tool', 'assistant'])
    const { body: record } = await app.key.get(`/generations/${body.id}`)
    assert.deepEqual([record.step_count, record.stop_reason, record.tool_surface.tools], [2, 'stop', 1])
    assert.equal(record.tool_surface.estimated_tokens, Math.ceil(record.tool_surface.bytes / 3.4))
    const { steps } = await transcript(body.id)
    assert.deepEqual(steps[0].tool_calls[0].args, { city: 'Paris' })
    assert.deepEqual(steps[0].tool_results[0].result, { temp: 21 })
  })

  it('make the calls of one step concurrently up to a limit, with results in order', async () => {
    const id = await tool('slow')
    const agent = await agentWith([{ tool_id: id }])
    let [now, most] = [0, 0]
    target.answer = (request, response) => {
      most = Math.max(most, ++now)
      const { n } = JSON.parse(request.body)
      setTimeout(
        () => {
          now--
          json({ n })(request, response)
        },
        n === 0 ? 400 : 100,
      )
    }
    const calls = [0, 1, 2, 3, 4, 5].map(n => ({ name: 'slow', args: { n } }))
    const body = done(await generate(agent, script({ tool_calls: calls }, text('done'))))
    const { steps } = await transcript(body.id)
    assert.equal(steps.length, 2)
    assert.deepEqual(
      steps[0].tool_results.map(({ result }: any) => result.n),
      [0, 1, 2, 3, 4, 5],
    )
    assert.equal(most, 3)
  })

  it('return failures to the model and continue', async () => {
    const id = await tool('odd', { parameters: { type: 'object', properties: { n: { type: 'integer' } } } })
    const agent = await agentWith([{ tool_id: id }])
    target.answer = json({ no: 'way' }, 500)
    const calls = [
      { name: 'nobody', args: {} },
      { name: 'odd', args: { n: 'x' } },
      { name: 'odd', args: {}, raw: '{"n":' },
      { name: 'odd', args: { n: 1 } },
    ]
    const body = done(await generate(agent, script({ tool_calls: calls }, text('so be it'))))
    assert.equal(body.output.content, 'so be it')
    const { steps } = await transcript(body.id)
    const errors = steps[0].tool_results.map(({ error }: any) => error.code)
    assert.deepEqual(errors, ['TOOL_NOT_FOUND', 'VALIDATION_FAILED', 'VALIDATION_FAILED', 'TOOL_HTTP_ERROR'])
    assert.equal(steps[0].tool_results[1].error.meta.problems[0].path, 'input.n')
    assert.equal(steps[0].tool_results[3].error.meta.tool_status_code, 500)
    assert.equal(target.requests.length, 1)
    assert.match(JSON.stringify((await asked()).messages.at(-4)), /TOOL_NOT_FOUND/)
  })

  it('limit the calls of one step', async () => {
    const id = await tool('many')
    const agent = await agentWith([{ tool_id: id }])
    const calls = Array.from({ length: 128 }, (_, n) => ({ name: 'many', args: { n }, id: 'same' }))
    const body = done(await generate(agent, script({ tool_calls: calls }, text('enough'))))
    const { steps } = await transcript(body.id)
    assert.equal(target.requests.length, 64)
    assert.deepEqual(steps[0].tool_results[64].error.meta, { reason: 'too_many_calls' })
    const ids = new Set(steps[0].tool_calls.map(({ id }: { id: string }) => id))
    assert.equal(ids.size, 128)
    const keys = new Set(target.requests.map(({ headers }) => headers['idempotency-key']))
    assert.equal(keys.size, 64)
    for (const key of keys) assert.match(key as string, new RegExp(`^${body.id}:`))
  })

  it('fail a call whose result is too large to keep', async () => {
    const agent = await agentWith([{ tool_id: await tool('large') }])
    target.answer = json({ text: 'x'.repeat(3000) })
    const body = done(await generate(agent, script(call('large'), text('ok'))))
    const { steps } = await transcript(body.id)
    assert.deepEqual(
      [steps[0].tool_results[0].error.code, steps[0].tool_results[0].error.meta],
      ['TOOL_CALL_FAILED', { reason: 'result_too_large' }],
    )
  })

  it('end at max_steps, and at a call that is to end them', async () => {
    const id = await tool('again')
    const tired = await agentWith([{ tool_id: id }], { max_steps: 2 })
    const before = (await requests()).length
    const body = done(await generate(tired, script(call('again'))))
    assert.equal((await requests()).length - before, 2)
    assert.equal((await app.key.get(`/generations/${body.id}`)).body.stop_reason, 'max_steps')
    assert.equal(target.requests.length, 2)

    const ends = { stop_conditions: [{ type: 'has_tool_call', tool_name: 'again' }] }
    const forced = await agentWith([{ tool_id: id }], { tool_choice: 'required', ...ends })
    const ended = done(await generate(forced, script({ text: 'calling', ...call('again') })))
    assert.equal(ended.output.content, 'calling')
    const { body: record } = await app.key.get(`/generations/${ended.id}`)
    assert.deepEqual([record.stop_reason, record.step_count], ['tool-calls', 1])
    assert.equal((await asked()).tool_choice, 'required')
  })

  it('take the settings of each step from where they are said first', async () => {
    const [search, fetch] = [await tool('search'), await tool('fetch')]
    const agent = await agentWith([{ tool_id: search }, { tool_id: fetch }], {
      active_tool_ids: [fetch],
      step_rules: [
        { step: 1, tool_choice: { type: 'tool', tool_name: 'search' }, active_tool_ids: [search] },
        { step: 2, tool_choice: 'none' },
      ],
    })
    done(await generate(agent, script(call('search'), text('found'))))
    const [one, two] = (await requests()).slice(-2)
    const offered = (request: any) => request.tools.map((each: any) => each.function.name)
    assert.deepEqual([offered(one), one.tool_choice.function.name], [['search'], 'search'])
    assert.deepEqual([offered(two), two.tool_choice], [['fetch'], 'none'])

    const own = { step_rules: [{ step: 1, tool_choice: 'auto' }], active_tool_ids: [fetch] }
    done(await generate(agent, { ...script(call('search'), text('no')), ...own }))
    const [asked1] = (await requests()).slice(-2)
    // The tool of a rule of the agent is not in the way of the choice that the request makes.
    assert.deepEqual([offered(asked1), asked1.tool_choice], [['search'], 'auto'])
    const gone = {
      tool_choice: { type: 'tool', tool_name: 'nope' },
      stop_conditions: [{ type: 'has_tool_call', tool_name: 'x' }],
    }
    const plain = await agentWith([{ tool_id: search }])
    done(await generate(plain, { ...script(text('x')), ...gone }))
    assert.equal((await asked()).tool_choice, 'auto')
    const none = await agentWith([{ tool_id: search }], { active_tool_ids: [search] })
    assert.deepEqual(refusalOf(await generate(none, { prompt: 'x', active_tool_ids: [fetch] })), [
      400,
      'TOOL_NOT_FOUND',
    ])
    assert.deepEqual(refusalOf(await generate(none, { prompt: 'x', tool_choice: 'required' })), [
      400,
      'FORCED_TOOL_CHOICE_CANNOT_STOP',
    ])
  })

  it('refuse a call that the model wrote as text', async () => {
    const agent = await agentWith([{ tool_id: await tool('lookup') }])
    const written = JSON.stringify({ name: 'lookup', arguments: {} })
    for (const answer of [written, `\`\`\`json\n${written}\n\`\`\``, `[${written}]`]) {
      const refused = await generate(agent, script(text(answer)))
      assert.deepEqual(refusalOf(refused), [502, 'TEXT_ENCODED_TOOL_CALL'], answer)
      assert.equal(refused.body.error.meta.tool_name, 'lookup')
      assert.equal((await transcript(refused.body.error.meta.generation_id)).steps.length, 1)
    }
    const others = [
      `I would call ${written}`,
      JSON.stringify({ name: 'other' }),
      JSON.stringify({ name: 'lookup', why: 1 }),
      '[]',
    ]
    for (const answer of others) assert.equal(done(await generate(agent, script(text(answer)))).output.content, answer)
    const schema = { output_schema: { type: 'object' } }
    const structured = await agentWith([{ tool_id: names.get('lookup') }], schema)
    assert.deepEqual(done(await generate(structured, script(text(written)))).output.object, JSON.parse(written))
  })

  it('send the tool context of their caller, and require the keys in headers of servers', async () => {
    const id = await tool('context', { context_keys: ['tenant'] })
    const agent = await agentWith([{ tool_id: id }])
    const tool_context = { tenant: 'acme', other: 'x', sessionId: 'forged' }
    done(await generate(agent, { ...script(call('context'), text('ok')), tool_context }))
    const { headers } = target.requests[0]
    assert.equal(headers['x-svc-context-tenant'], 'acme')
    assert.equal(headers['x-svc-context-other'], undefined)
    assert.equal(headers['x-svc-context-sessionid'], undefined)
    target.answer = (request, response) =>
      response.writeHead(500).end(`who is ${request.headers['x-svc-context-tenant']}?`)
    const echoed = done(
      await generate(agent, { ...script(call('context'), text('ok')), tool_context: { tenant: 'a-credential' } }),
    )
    const { steps } = await transcript(echoed.id)
    assert.equal(steps[0].tool_results[0].error.meta.tool_response_body, 'who is ***?')
    assert.deepEqual(refusalOf(await generate(agent, { prompt: 'x', tool_context: { 'a b': 'x' } })), [
      400,
      'INVALID_TOOL_CONTEXT_KEY',
    ])
    const mcp = { url: `${target.url}/mcp`, headers: { 'X-Tenant': '{{context:tenant}}' } }
    const server = await agentWith([{ tool: { name: 'srv', type: 'mcp', mcp } }])
    const lacking = await generate(server, { prompt: 'x' }, '')
    assert.deepEqual([refusalOf(lacking), lacking.body.error.meta.key], [[400, 'MISSING_TOOL_CONTEXT_KEY'], 'tenant'])
  })

  it('continue without unavailable tools, and report it to the model', async () => {
    const gone = await tool('gone')
    const agent = await agentWith([
      { tool_id: gone },
      { tool: { name: 'dead server', type: 'mcp', mcp: { url: 'http://127.0.0.1:9/mcp' } } },
      { tool_id: await tool('here') },
      { tool: { name: 'here', type: 'client' } },
    ])
    assert.equal((await app.admin.delete(`/tools/${gone}`)).status, 204)
    done(await generate(agent, script(text('fine'))))
    const { messages, tools } = await asked()
    assert.deepEqual(
      tools.map((each: any) => each.function.name),
      ['here'],
    )
    assert.equal(messages[0].role, 'system')
    assert.match(messages[0].content, /currently unavailable: .*dead server/)
    assert.doesNotMatch(messages[0].content, /ECONN|connect/)
  })

  it('stream tool events, and replay them on reconnect', async () => {
    const agent = await agentWith([{ tool_id: await tool('streamed') }])
    const reply = { text: 'let me see', ...call('streamed') }
    const events = await collect(`/agents/${agent}/generate`, {
      ...script(reply, text('done')),
      stream: true,
    })
    const kinds = events.map(({ event }) => event)
    assert.deepEqual(
      kinds.filter((each, index) => each !== 'delta' || kinds[index - 1] !== 'delta'),
      ['started', 'delta', 'tool_call', 'tool_result', 'step', 'delta', 'step', 'completed'],
    )
    const find = (event: string) => events.find(each => each.event === event)?.data as any
    assert.equal(find('tool_call').tool_name, 'streamed')
    assert.deepEqual(find('tool_result'), { ...find('tool_call'), ok: true })
    const again = await collect(`/generations/${find('started').generation_id}/stream`)
    assert.deepEqual(again, events)
  })

  describe('of clients', () => {
    const client = { tool: { name: 'pick', type: 'client', parameters: { type: 'object', required: ['n'] } } }
    let agent: string
    before(async () => {
      agent = await agentWith([client, { tool_id: await tool('server') }])
    })
    const paused = async (more: object = {}) => {
      const body = done(
        await generate(agent, { ...script(call('pick', { n: 1 }), text('got {{tool.pick}}')), ...more }),
      )
      assert.equal(body.status, 'requires_action')
      return body
    }
    const answers = (body: any, output: unknown) => ({
      tool_outputs: body.required_action.tool_calls.map(({ id }: { id: string }) => ({ tool_call_id: id, output })),
    })

    it('called off while they wait leave the calls that were made to a retry, which does not repeat them', async () => {
      const both = {
        tool_calls: [
          { name: 'pick', args: { n: 1 } },
          { name: 'server', args: {} },
        ],
      }
      const body = done(await generate(agent, script(both, text('went on'))))
      assert.equal(body.status, 'requires_action')
      const calls = target.requests.length
      const cancelled = (await app.admin.post(`/generations/${body.id}/cancel`)).body
      assert.deepEqual([cancelled.status, cancelled.step_count, cancelled.usage], ['failed', 1, body.usage])
      const [step] = (await app.admin.get(`/generations/${body.id}/transcript`)).body.steps
      assert.deepEqual(
        step.tool_results.map(({ result, error }: any) => [result, error?.meta.reason]),
        [
          [null, 'not_run'],
          [{ ok: true }, undefined],
        ],
      )
      const retried = await app.admin.post(`/generations/${body.id}/retry?wait=true`, {})
      assert.deepEqual([retried.status, retried.body.status], [200, 'completed'], JSON.stringify(retried.body))
      assert.equal(target.requests.length, calls)
    })

    it('pause, and continue with the outputs of the client', async () => {
      const body = await paused()
      assert.equal(body.output, null)
      const [pending] = body.required_action.tool_calls
      assert.deepEqual([pending.tool_name, pending.args, pending.id], ['pick', { n: 1 }, pending.tool_call_id])
      assert.equal(body.required_action.type, 'submit_tool_outputs')
      assert.ok(body.usage.output_tokens > 0)
      const { body: record } = await app.key.get(`/generations/${body.id}`)
      assert.deepEqual([record.status, record.required_action], ['requires_action', body.required_action])
      const resumed = done(await outputs(agent, body.id, answers(body, 'seven')))
      assert.deepEqual([resumed.status, resumed.output.content], ['completed', 'got seven'])
      const { body: after } = await app.key.get(`/generations/${body.id}`)
      assert.deepEqual([after.required_action, after.step_count], [null, 2])
      assert.deepEqual(refusalOf(await outputs(agent, body.id, answers(body, 'eight'))), [404, 'GENERATION_NOT_FOUND'])
      const [required] = await storedEvents(app.pool, {
        resource: body.id,
        name: 'generations.requires_action',
      })
      assert.deepEqual(required.data.required_action, body.required_action)
    })

    it('require one output for each pending call, and change nothing otherwise', async () => {
      const body = await paused()
      const [{ id }] = body.required_action.tool_calls
      const one = { tool_call_id: id, output: 1 }
      for (const tool_outputs of [
        [],
        [one, one],
        [one, { tool_call_id: 'other', output: 1 }],
        [{ tool_call_id: 'x', output: 1 }],
        [{ ...one, output: 'x'.repeat(3000) }],
      ])
        assert.deepEqual(refusalOf(await outputs(agent, body.id, { tool_outputs })), [400, 'VALIDATION_FAILED'])
      assert.deepEqual(refusalOf(await outputs(app.agentId, body.id, { tool_outputs: [one] })), [
        404,
        'GENERATION_NOT_FOUND',
      ])
      assert.deepEqual(refusalOf(await outputs(agent, 'gen_00000000000000000000000000', { tool_outputs: [one] })), [
        404,
        'GENERATION_NOT_FOUND',
      ])
      const both = await Promise.all([1, 2].map(output => outputs(agent, body.id, answers(body, output))))
      assert.deepEqual(both.map(({ status }) => status).sort(), [200, 404])
    })

    it('run the calls of servers in the same step first, and give the model both', async () => {
      const calls = {
        tool_calls: [
          { name: 'pick', args: { n: 1 } },
          { name: 'server', args: {} },
        ],
      }
      const body = done(await generate(agent, script(calls, text('both'))))
      assert.equal(target.requests.length, 1)
      assert.deepEqual(
        body.required_action.tool_calls.map(({ tool_name }: { tool_name: string }) => tool_name),
        ['pick'],
      )
      done(await outputs(agent, body.id, answers(body, { picked: true })))
      assert.equal(target.requests.length, 1)
      const results = (await asked()).messages.slice(-2)
      assert.deepEqual(
        results.map(({ content }: any) => JSON.parse(content)),
        [{ picked: true }, { ok: true }],
      )
    })

    it('end without another model call where the call was to end the turn', async () => {
      const ends = {
        tool_choice: { type: 'tool', tool_name: 'pick' },
        stop_conditions: [{ type: 'has_tool_call', tool_name: 'pick' }],
      }
      const before = (await requests()).length
      const body = await paused(ends)
      const ended = done(await outputs(agent, body.id, answers(body, 1)))
      assert.equal(ended.status, 'completed')
      assert.equal((await app.key.get(`/generations/${body.id}`)).body.stop_reason, 'tool-calls')
      assert.equal((await requests()).length - before, 1)
    })

    it('keep their version, their settings and the numbers of their steps', async () => {
      const own = await agentWith([client, { tool_id: names.get('server') }], {
        instructions: 'first',
        step_rules: [{ step: 2, tool_choice: 'none' }],
      })
      const body = done(await generate(own, script(call('pick', { n: 1 }), text('two'))))
      await app.admin.patch(`/agents/${own}`, { instructions: 'second', step_rules: null })
      const resumed = done(await outputs(own, body.id, answers(body, 1)))
      assert.equal(resumed.agent_version, 1)
      assert.equal((await asked()).messages[0].content, 'first')
      assert.equal((await asked()).tool_choice, 'none')
      const other = done(await generate(own, script(call('pick', { n: 1 }), call('server'), text('three'))))
      const settings = {
        tool_choice: { type: 'tool', tool_name: 'server' },
        defaults: { active_tool_ids: [names.get('server')] },
      }
      done(await outputs(own, other.id, { ...answers(other, 1), ...settings }))
      const [second, third] = (await requests()).slice(-2)
      assert.equal(second.tool_choice.function.name, 'server')
      assert.equal(third.tool_choice, 'auto')
    })

    it('map what the client gives as the tool says, and refuse what costs too much', async () => {
      const mapped = { tool: { ...client.tool, output_mapping: { var: 'output.value' } } }
      const own = await agentWith([mapped])
      const body = done(await generate(own, script(call('pick', { n: 1 }), text('got {{tool.pick}}'))))
      assert.equal(done(await outputs(own, body.id, answers(body, { value: 'deep' }))).output.content, 'got deep')
    })

    it('stream both halves; who comes back sees them as one', async () => {
      const start = await collect(`/agents/${agent}/generate`, {
        ...script(call('pick', { n: 1 }), text('and on')),
        stream: true,
      })
      const last = start.at(-1) as any
      assert.equal(last.event, 'requires_action')
      const rest = await collect(`/agents/${agent}/generate/${last.data.id}/tool-outputs`, {
        ...answers(last.data, 1),
        stream: true,
      })
      assert.equal(rest.at(-1)?.event, 'completed')
      const ids = [...start, ...rest].map(({ id }) => Number(id))
      assert.deepEqual(
        ids,
        ids.map((_, index) => index + 1),
      )
      const all = await collect(`/generations/${last.data.id}/stream`)
      assert.deepEqual(all, [...start, ...rest])
    })

    it('hold nothing while they are paused, and can be called off or erased', async () => {
      const called = await paused()
      assert.equal((await app.admin.post(`/generations/${called.id}/cancel`)).body.status, 'failed')
      assert.deepEqual(refusalOf(await outputs(agent, called.id, answers(called, 1))), [404, 'GENERATION_NOT_FOUND'])
      const erased = await paused()
      const purged = await app.key.delete(`/generations/${erased.id}/content`)
      assert.deepEqual([purged.status, purged.body.status, purged.body.required_action], [200, 'failed', null])
      assert.deepEqual(refusalOf(await outputs(agent, erased.id, answers(erased, 1))), [
        409,
        'GENERATION_CONTENT_UNAVAILABLE',
      ])
    })

    it('wait for a paused project, and consume nothing', async () => {
      const body = await paused()
      await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'x' })
      assert.deepEqual(refusalOf(await outputs(agent, body.id, answers(body, 1))), [409, 'PROJECT_PAUSED'])
      await app.admin.post(`/projects/${app.projectId}/resume`)
      assert.equal(done(await outputs(agent, body.id, answers(body, 'x'))).status, 'completed')
    })

    it('store no content in content mode none, and continue nevertheless', async () => {
      const hidden = await agentWith([client], { trace_content_mode: 'none' })
      const secret = 'VERY-SECRET-VALUE'
      const body = done(
        await generate(hidden, script({ text: secret, ...call('pick', { n: secret }) }, text('saw {{tool.pick}}'))),
      )
      assert.equal(body.required_action.tool_calls[0].args.n, secret)
      assert.equal((await app.key.get(`/generations/${body.id}`)).body.required_action, null)
      const tables = [
        'generations',
        'generation_steps',
        'generation_work',
        'generation_work_unlogged',
        'generation_journal',
        'generation_journal_unlogged',
        'stream_frames',
        'events',
      ]
      const clear = async () => {
        for (const table of tables) {
          const rows = await app.pool.any(rawQuery(`select t::text as text from ${table} t`, []))
          assert.ok(!rows.some(row => String((row as { text: string }).text).includes(secret)), table)
        }
      }
      await clear()
      const resumed = done(await outputs(hidden, body.id, answers(body, secret)))
      assert.equal(resumed.output.content, `saw ${secret}`)
      await clear()
      assert.deepEqual(await app.pool.any(rawQuery('select 1 from generation_journal_unlogged', [])), [])
    })
  })

  describe('of the platform', () => {
    const platform = (actions: string[], more: object = {}) => ({
      tool: { name: 'api', type: 'platform', actions, ...more },
    })

    it('run as whom the turn runs as, within what the agent may do', async () => {
      const agent = await agentWith([platform(['list-tools', 'get-agent'])])
      const calls = {
        tool_calls: [
          { name: 'api_get-agent', args: { agent_id: agent } },
          { name: 'api_list-tools', args: {} },
        ],
      }
      const refused = done(await generate(agent, script(calls, text('so'))))
      const { steps } = await transcript(refused.id)
      assert.deepEqual(
        steps[0].tool_results.map(({ error }: any) => error?.meta?.tool_status_code),
        [403, 403],
      )
      const allowed = [{ effect: 'Allow', action: ['agents:GetAgent'], resource: ['*'] }]
      const bounded = await agentWith([platform(['list-tools', 'get-agent'])], {
        boundary_policy: { statement: allowed },
      })
      const own = {
        tool_calls: [
          { name: 'api_get-agent', args: { agent_id: bounded } },
          { name: 'api_list-tools', args: {} },
        ],
      }
      const { body } = await app.admin.post(`/agents/${bounded}/generate?wait=true`, script(own, text('so')))
      const results = (await transcript(body.id)).steps[0].tool_results
      assert.equal(results[0].result.id, bounded)
      assert.equal(results[1].error.code, 'FORBIDDEN')
    })

    it('nest agents, as deep as they may, in one tree', async () => {
      const agent = await app.agent({ tool_bindings: [platform(['create-agent-generation'])] })
      // A model that calls its own agent with its prompt.
      const nested = call('api_create-agent-generation', { agent_id: agent, prompt: 'again' })
      const rules = [
        { when: { last_role: 'user' }, reply: nested },
        { when: { last_role: 'tool' }, reply: text('done') },
      ]
      await fetch(`${app.double.url}/control/lanes/self`, {
        method: 'PUT',
        body: JSON.stringify({ lane: 'self', rules }),
      })
      await app.admin.patch(`/agents/${agent}`, { model: 'self/m' })
      const body = done(await generate(agent, { prompt: 'go', max_call_depth: 3 }))
      assert.equal(body.output.content, 'done')
      const { body: list } = await app.admin.get(`/generations?agent_id=${agent}&limit=20`)
      const rows = list.data.reverse()
      assert.equal(rows.length, 4)
      assert.deepEqual(
        rows.map((row: any) => row.initiator_generation_id),
        [null, ...rows.slice(0, 3).map(({ id }: { id: string }) => id)],
      )
      assert.equal(rows[3].stop_reason, 'depth_guard')
      const { body: tree } = await app.admin.get(`/traces/${rows[0].trace_id}/tree`)
      let depth = 0
      for (let node = tree; node; node = node.children[0]) depth++
      assert.equal(depth, 4)
    })

    it('never wait for each other for lack of workers', async () => {
      const leaf = await app.agent({ model: 'double-1' })
      const agent = await app.agent({ tool_bindings: [platform(['create-agent-generation'])] })
      const ask = script(call('api_create-agent-generation', { agent_id: leaf, prompt: 'hi' }), text('done'))
      const replies = await Promise.all(Array.from({ length: 40 }, () => generate(agent, ask)))
      for (const reply of replies) assert.equal(done(reply).output.content, 'done')
    })
  })

  it('fail a paused turn whose client does not come back', async () => {
    const impatient = await startAgentApp({
      env: { GENERATION_ACTION_TTL_SECONDS: '1', GENERATION_SWEEP_SECONDS: '1' },
    })
    try {
      const agent = await impatient.agent({ tool_bindings: [{ tool: { name: 'pick', type: 'client' } }] })
      const { body } = await impatient.key.post(`/agents/${agent}/generate?wait=true`, script(call('pick'), text('x')))
      const failed = await eventually(
        async () => {
          const { body: row } = await impatient.key.get(`/generations/${body.id}`)
          return row.status === 'failed' && row
        },
        { what: 'the end of the pause' },
      )
      assert.deepEqual([failed.error.code, failed.error.meta], ['GENERATION_FAILED', { reason: 'action_expired' }])
      assert.ok(failed.usage.output_tokens > 0)
    } finally {
      await impatient.close()
    }
  })
})
