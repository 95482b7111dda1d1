import assert from 'node:assert/strict'
import { parseExactJson } from '#core/base/exact-json.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { postedBy } from '../support/replies.ts'
import type { Plan } from '../support/vendors/plan.ts'
import { profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Recorded, type Simulators, startSimulators } from '../support/vendors/server.ts'
import { startToolServer, type ToolServer } from './tool-server.ts'

const REFUSAL = { text: 'I cannot', finish: 'refusal', refusal: { category: 'cyber', explanation: 'It could harm.' } }

describe('answers of vendors', () => {
  let app: TestApp
  let simulators: Simulators
  let tools: ToolServer
  let key: Client
  let lanes = 0

  before(async () => {
    const env = { EGRESS_ALLOW_HOSTS: '127.0.0.1' }
    ;[simulators, tools, app] = await Promise.all([
      startSimulators(),
      startToolServer(),
      startApp({ workers: ['generation'], env }),
    ])
    const project = await app.projectWith([
      'actors:*',
      'agents:*',
      'ai-providers:*',
      'chats:*',
      'conversations:*',
      'generations:*',
      'memories:*',
      'model-routes:*',
      'secrets:*',
      'sessions:*',
      'tools:*',
      'traces:*',
      'usage:*',
    ])
    key = project.key
  })
  after(() => Promise.all([app?.close(), simulators?.close(), tools?.close()]))

  const made = (path: string, body: object) => postedBy(key, path, body)

  /** A provider with its own lane at a simulator. */
  const vendor = async (profile: string) => {
    const lane = `lane-${++lanes}`
    const fields = providerFields(profiles.find(({ name }) => name === profile)!, simulators.url)
    const secret = await made('/secrets', { name: lane, value: lane })
    const { id } = await made('/ai-providers', { ...fields, secret_id: secret.id })
    return {
      id: id as string,
      plan: (plan: Plan) => simulators.plan(lane, plan),
      calls: (): Recorded[] => simulators.calls(lane),
      sent: () =>
        JSON.stringify(simulators.calls(lane).at(-1)!.body.messages ?? simulators.calls(lane).at(-1)!.body.input),
    }
  }

  const agentOf = async (ai_provider_id: string, fields: object = {}): Promise<string> =>
    (await made('/agents', { name: 'agent', ai_provider_id, ...fields })).id

  const transcript = async (generation_id: string) => (await key.get(`/generations/${generation_id}/transcript`)).body

  describe('that are refused', () => {
    it('are marked and left out of later turns of a session with their message, also in copies of it', async () => {
      const { id, plan, calls, sent } = await vendor('anthropic')
      const agent_id = await agentOf(id)
      const session = await made('/sessions', { agent_id, auto_generate: true })
      const say = (message: string) => made(`/sessions/${session.id}/messages?wait=true`, { message })
      plan({ text: 'Welcome.' })
      await say('Good morning')
      plan(REFUSAL)
      const { reply, generation_id } = await say('Break in')
      assert.equal(reply.message.refused, true)
      const { stop_reason } = (await key.get(`/generations/${generation_id}`)).body
      assert.equal(stop_reason, 'content-filter')
      const [step] = (await transcript(generation_id)).steps
      assert.deepEqual(step.notes, [{ kind: 'refused', category: 'cyber', message: 'It could harm.' }])
      plan({ text: 'Fine.' })
      assert.equal((await say('And now?')).reply.content, 'Fine.')
      assert.doesNotMatch(sent(), /Break in|I cannot/)
      assert.match(sent(), /Good morning.*Welcome.*And now/)
      const { data } = (await key.get(`/sessions/${session.id}/messages`)).body
      assert.deepEqual(
        data.map(({ content, refused }: any) => [content, refused]),
        [
          ['Good morning', false],
          ['Welcome.', false],
          ['Break in', false],
          ['I cannot', true],
          ['And now?', false],
          ['Fine.', false],
        ],
      )
      const fork = await made(`/sessions/${session.id}/fork`, {})
      await made(`/sessions/${fork.id}/messages`, { message: 'Here too' })
      await made(`/sessions/${fork.id}/generate?wait=true`, {})
      assert.equal(calls().length, 2)
      assert.doesNotMatch(sent(), /Break in|I cannot/)
    })

    it('are sent again with their message as long as no other follows', async () => {
      const [first, second] = [await vendor('anthropic'), await vendor('openai responses')]
      const { id } = await made('/conversations', {})
      const asks = (agent_id: string) => made(`/conversations/${id}/generate?wait=true`, { agent_id })
      await made(`/conversations/${id}/messages`, { role: 'user', message: 'Break in' })
      first.plan(REFUSAL)
      await asks(await agentOf(first.id))
      second.plan({ text: 'No.' })
      assert.equal((await asks(await agentOf(second.id))).content, 'No.')
      assert.match(second.sent(), /Break in/)
      assert.doesNotMatch(second.sent(), /I cannot/)
    })

    it('are no source of facts, nor of the title of their session, which the next answer has', async () => {
      const { id, plan, calls } = await vendor('anthropic')
      const agent_id = await agentOf(id, { auto_title: true })
      const memory_store_id = (await made('/memory-stores', { name: id })).id
      const rule = await made('/memory-rules', {
        on: 'generations.completed',
        memory_store_id,
        source_agent_ids: [agent_id],
      })
      const session = await made('/sessions', { agent_id, auto_generate: true })
      const say = (message: string) => made(`/sessions/${session.id}/messages?wait=true`, { message })
      await made(`/sessions/${session.id}/takeover`, { note: 'Ada is a guest' })
      await made(`/sessions/${session.id}/handback`, {})
      plan(REFUSAL)
      const refused = await say('Break in')
      assert.equal(refused.reply.message.refused, true)
      const tested = await key.post(`/memory-rules/${rule.id}/test`, { generation_id: refused.generation_id })
      assert.match(JSON.stringify(tested.body), /"path":"generation_id","message":"was refused/)
      const asked = calls().length
      plan(({ body }) => ({
        text: /Write a title/.test(JSON.stringify(body.system)) ? 'A title' : '["Ada likes tea"]',
      }))
      const { generation_id } = await say('I like tea')
      const named = await eventually(async () => {
        const { name } = (await key.get(`/sessions/${session.id}`)).body
        const { extraction } = (await key.get(`/generations/${generation_id}`)).body
        return name !== null && extraction?.[rule.id] && name
      })
      assert.equal(named, 'A title')
      assert.deepEqual([asked, calls().length], [1, 3])
      for (const { body } of calls()) {
        assert.doesNotMatch(JSON.stringify(body), /Break in|I cannot/)
        // The note precedes the refused message.
        assert.match(JSON.stringify(body), /Ada is a guest/)
      }
    })

    it('are left out of later replies of a chat', async () => {
      const { id, plan, sent } = await vendor('anthropic')
      const chat = await made('/chats', { ai_provider_id: id })
      const actor = await made('/actors', { name: 'Bot', chat_id: chat.id })
      const { id: conversation } = await made('/conversations', {})
      const say = async (message: string) => {
        await made(`/conversations/${conversation}/messages`, { role: 'user', message })
        return made(`/conversations/${conversation}/generate?wait=true`, { actor_id: actor.id })
      }
      plan(REFUSAL)
      assert.equal((await say('Break in')).message.refused, true)
      plan({ text: 'Fine.' })
      assert.equal((await say('And now?')).content, 'Fine.')
      assert.doesNotMatch(sent(), /Break in|I cannot/)
    })
  })

  describe('with calls of another model in the same turn', () => {
    const weather = (path: string) => ({
      tool: { name: 'weather', type: 'http', execute: { url: `${tools.url}/${path}` } },
    })
    const CALL = { tool_calls: [{ name: 'weather', args: {} }] }

    it('are requested without thinking that requires reasoning before each call', async () => {
      const [first, second] = [await vendor('custom kimi'), await vendor('anthropic')]
      const route = await made('/model-routes', {
        name: 'thinkers',
        targets: [
          { ai_provider_id: first.id, model: 'kimi-k2.6' },
          { ai_provider_id: second.id, model: 'claude-sonnet-4-5' },
        ],
      })
      const { id } = await made('/agents', {
        name: 'agent',
        model_route_id: route.id,
        tool_bindings: [weather('two-models')],
        provider_options: { anthropic: { thinking: { type: 'enabled', budgetTokens: 2048 } } },
      })
      first.plan([{ reasoning: 'I look.', ...CALL }, { error: { status: 503 } }])
      second.plan([CALL, { text: 'Sun.' }])
      const reply = await made(`/agents/${id}/generate?wait=true`, { prompt: 'Weather?' })
      assert.equal(reply.output?.content, 'Sun.', JSON.stringify(reply.error))
      assert.deepEqual(
        second.calls().map(({ body }) => body.thinking?.type),
        ['disabled', 'disabled'],
      )
      assert.deepEqual(reply.ignored_params, ['thinking'])
      second.plan({ reasoning: 'Hm.', text: 'Fine.' })
      first.plan({ error: { status: 503 } })
      await made(`/agents/${id}/generate?wait=true`, { prompt: 'And now?' })
      assert.equal(second.calls()[0]!.body.thinking.type, 'enabled')
    })

    it('are requested with thinking after a step without reasoning, if the turn began with it', async () => {
      const { id, plan, calls } = await vendor('anthropic')
      const agent = await agentOf(id, {
        model: 'claude-sonnet-4-5',
        tool_bindings: [weather('one-model')],
        provider_options: { anthropic: { thinking: { type: 'enabled', budgetTokens: 2048 } } },
      })
      plan([{ reasoning: 'I look.', ...CALL }, CALL, { text: 'Sun.' }])
      const reply = await made(`/agents/${agent}/generate?wait=true`, { prompt: 'Weather?' })
      assert.equal(reply.output?.content, 'Sun.', JSON.stringify(reply.error))
      assert.deepEqual(
        calls().map(({ body }) => body.thinking?.type),
        ['enabled', 'enabled', 'enabled'],
      )
    })

    it('are requested without an effort that means such thinking, for a history of a client', async () => {
      const { id, plan, calls } = await vendor('anthropic')
      plan({ text: 'Sun.' })
      const call = { id: 'call_1', type: 'function', function: { name: 'weather', arguments: '{}' } }
      for (const [model, thinking] of [
        ['claude-sonnet-4-5', 'disabled'],
        ['claude-sonnet-4-6', 'adaptive'],
      ]) {
        const reply = await fetch(`${app.url}/openai/v1/chat/completions`, {
          method: 'POST',
          headers: { authorization: `Bearer ${key.token}`, 'content-type': 'application/json' },
          body: JSON.stringify({
            model: `${id}/${model}`,
            reasoning_effort: 'low',
            messages: [
              { role: 'user', content: 'Weather?' },
              { role: 'assistant', content: null, tool_calls: [call] },
              { role: 'tool', tool_call_id: 'call_1', content: 'sun' },
            ],
            tools: [{ type: 'function', function: { name: 'weather', parameters: { type: 'object' } } }],
          }),
        })
        assert.equal(reply.status, 200, await reply.text())
        assert.equal(calls().at(-1)!.body.thinking?.type, thinking, model)
      }
    })
  })

  describe('with calls that the vendor makes', () => {
    const weather = { type: 'object', properties: { city: { type: 'string' } } }
    const bound = (path: string) => ({
      tool: { name: 'weather', type: 'http', parameters: weather, execute: { url: `${tools.url}/${path}` } },
    })
    const SEARCH = { query: 'news', limit: parseExactJson('2512292042121000001'), found: 'https://example.org/news' }

    for (const stream of [false, true])
      it(`are kept with the results, go back with the calls of tools, and run nothing here${stream ? ', streamed' : ''}`, async () => {
        const { id, plan, calls } = await vendor('anthropic')
        const path = `searched-${stream}`
        const agent = await agentOf(id, { tool_bindings: [bound(path)] })
        plan([
          { searches: [SEARCH], text: 'I found it. ', tool_calls: [{ name: 'weather', args: { city: 'Paris' } }] },
          { searches: [SEARCH], text: 'Sun.' },
        ])
        const reply = await key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'News?', stream })
        const text = stream ? /"content":"(Sun\.)"/.exec(reply.body)?.[1] : reply.body.output.content
        assert.equal(text, 'Sun.')
        assert.equal(tools.received(path).length, 1)
        const types = calls()[1]!.body.messages[1].content.map(({ type }: any) => type)
        assert.deepEqual(types, ['server_tool_use', 'web_search_tool_result', 'text', 'tool_use'])
        assert.match(JSON.stringify(calls()[1]!.body.messages[1]), /"limit":2512292042121000001\b/)
        const generation = stream ? /"(gen_\w+)"/.exec(reply.body)![1]! : reply.body.id
        const { steps } = await transcript(generation)
        assert.deepEqual(
          steps.map(({ tool_calls, vendor_calls }: any) => [
            tool_calls.length,
            vendor_calls.map(({ type, name, input }: any) => [type, name, input?.query]),
          ]),
          [1, 0].map(count => [
            count,
            [
              ['vendor_call', 'web_search', 'news'],
              ['vendor_result', 'web_search', undefined],
            ],
          ]),
        )
      })

    for (const stream of [false, true])
      it(`are continued where the vendor pauses, as one answer${stream ? ', streamed' : ''}`, async () => {
        const { id, plan, calls } = await vendor('anthropic')
        const path = `paused-${stream}`
        const agent = await agentOf(id, { tool_bindings: [bound(path)] })
        const usage = { prompt_tokens: 10, completion_tokens: 5, cached_tokens: 0, reasoning_tokens: 0 }
        plan([
          { searches: [SEARCH], finish: 'pause_turn', usage },
          { searches: [SEARCH], text: 'Half ', finish: 'pause_turn', usage },
          { text: 'and half. ', tool_calls: [{ name: 'weather', args: { city: 'Paris' } }], usage },
          { text: 'Done.', usage },
        ])
        const reply = await key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'News?', stream })
        const generation = stream ? /"(gen_\w+)"/.exec(reply.body)![1]! : reply.body.id
        const { steps } = await transcript(generation)
        assert.deepEqual(
          steps.map(({ text }: any) => text),
          ['Half and half. ', 'Done.'],
        )
        assert.equal(steps[0].usage.output_tokens, 15)
        assert.deepEqual(
          calls().map(({ body }) => body.messages.map(({ role, content }: any) => [role, content.length])),
          [
            [['user', 1]],
            [
              ['user', 1],
              ['assistant', 2],
            ],
            [
              ['user', 1],
              ['assistant', 5],
            ],
            [
              ['user', 1],
              ['assistant', 7],
              ['user', 1],
            ],
          ],
        )
      })
  })

  describe('of several messages', () => {
    const COMMENTARY = { commentary: 'Let me look.', text: 'Sun.' }

    for (const stream of [false, true])
      it(`are separated by a blank line, and go back with their phases${stream ? ', streamed' : ''}`, async () => {
        const { id, plan, calls } = await vendor('openai responses')
        const agent_id = await agentOf(id, { provider_options: { openai: { store: false } } })
        const session = await made('/sessions', { agent_id })
        const ask = async (message: string) => {
          await made(`/sessions/${session.id}/messages`, { message })
          return key.post(`/sessions/${session.id}/generate?wait=true`, { stream })
        }
        plan([COMMENTARY, { text: 'Again.' }])
        const { body } = await ask('Weather?')
        if (stream) assert.equal(textOf(body), 'Let me look.\n\nSun.')
        else assert.equal(body.content, 'Let me look.\n\nSun.')
        await ask('And now?')
        assert.deepEqual(
          calls()[1]!
            .body.input.filter(({ role }: any) => role === 'assistant')
            .map(({ content, phase }: any) => [content, phase]),
          [
            ['Let me look.', 'commentary'],
            ['Sun.', 'final_answer'],
          ],
        )
      })

    it('are stored items of the vendor in the steps of a turn', async () => {
      const { id, plan, calls } = await vendor('openai responses')
      const agent = await agentOf(id, {
        tool_bindings: [{ tool: { name: 'look', type: 'http', execute: { url: `${tools.url}/look` } } }],
      })
      plan([{ ...COMMENTARY, reasoning: 'Hm.', tool_calls: [{ name: 'look', args: {} }] }, { text: 'Done.' }])
      const { output } = await made(`/agents/${agent}/generate?wait=true`, { prompt: 'Weather?' })
      assert.equal(output.content, 'Done.')
      const types = calls()[1]!.body.input.map(({ type, role }: any) => type ?? role)
      assert.equal(types.filter((type: string) => type === 'item_reference').length, 3, types.join())
    })
  })

  describe('that are malformed', () => {
    const malformed = { finish: 'MALFORMED_FUNCTION_CALL', usage: { prompt_tokens: 40, completion_tokens: 2 } }
    const prompts = async (ai_provider_id: string) =>
      (await key.get(`/usage/events?ai_provider_id=${ai_provider_id}`)).body.data
        .flatMap(({ components }: any) => components)
        .filter(({ component }: any) => component === 'input_tokens')
        .map(({ quantity }: any) => quantity)

    it('are repeated without a use of the retries, as attempts of the route', async () => {
      const { id, plan } = await vendor('google')
      const { default_model } = (await key.get(`/ai-providers/${id}`)).body
      plan([malformed, { error: { status: 503 } }, { text: 'fine' }])
      const targets = [{ ai_provider_id: id, model: default_model, max_retries: 1 }]
      const route = await made('/model-routes', { name: 'malformed', targets })
      const agent = await made('/agents', { name: 'agent', model_route_id: route.id })
      const turn = await made(`/agents/${agent.id}/generate?wait=true`, { prompt: 'Hello' })
      assert.equal(turn.output.content, 'fine')
      const { routing } = (await key.get(`/generations/${turn.id}`)).body
      assert.deepEqual(
        routing.attempts.map(({ error_class, provider_status_code }: any) => [error_class, provider_status_code]),
        [
          [null, null],
          ['provider_error', 503],
          [null, null],
        ],
      )
    })

    it('are metered if the repeat is cancelled', async () => {
      const { id, plan, calls } = await vendor('google')
      const agent = await agentOf(id)
      plan([malformed, { text: 'late', delay_ms: 5000 }])
      const { generation_id } = await made(`/agents/${agent}/generate`, { prompt: 'Hello' })
      await eventually(() => calls().length === 2)
      await made(`/generations/${generation_id}/cancel`, {})
      assert.deepEqual(await eventually(async () => (await prompts(id)).length > 0 && prompts(id)), [40])
    })

    it('are metered by an estimate if they are cancelled before their end, with tools and their results', async () => {
      const { id, plan } = await vendor('anthropic')
      const long = 'sunny '.repeat(1000)
      const parameters = { type: 'object', properties: { city: { type: 'string', description: long } } }
      const tool = { name: 'weather', type: 'http', parameters, execute: { url: `${tools.url}/echo` } }
      const agent = await agentOf(id, { tool_bindings: [{ tool }] })
      plan([
        { tool_calls: [{ name: 'weather', args: { city: long } }] },
        { chunks: Array(40).fill('word '), chunk_delay_ms: 200 },
      ])
      const response = await fetch(`${app.url}/api/v1/agents/${agent}/generate`, {
        method: 'POST',
        headers: { authorization: `Bearer ${key.token}`, 'content-type': 'application/json' },
        body: JSON.stringify({ prompt: 'Hello', stream: true }),
      })
      let seen = ''
      for await (const piece of response.body!.pipeThrough(new TextDecoderStream())) {
        seen += piece
        if (seen.includes('event: delta')) break
      }
      await made(`/generations/${/gen_\w+/.exec(seen)![0]}/cancel`, {})
      const [event] = await eventually(async () => {
        const { data } = (await key.get(`/usage/events?ai_provider_id=${id}`)).body
        const estimated = ({ components }: any) =>
          components.some(({ component }: any) => component === 'estimated_calls')
        return data.some(estimated) && data.filter(estimated)
      })
      const { quantity } = event.components.find(({ component }: any) => component === 'input_tokens')
      assert.ok(quantity > 4000, `${quantity} tokens of schema, arguments and result`)
    })

    it('are not repeated after their reasoning was shown', async () => {
      const { id, plan, calls } = await vendor('openai responses')
      const agent = await agentOf(id)
      const ask = (path: string, body: object) => {
        plan([
          { text: '', reasoning: 'Hm.' },
          { text: 'fine', reasoning: 'Hm.' },
        ])
        return key.post(path, body)
      }
      const { body } = await ask('//openai/v1/chat/completions', {
        model: agent,
        messages: [{ role: 'user', content: 'Hello' }],
        stream: true,
      })
      assert.match(body, /Hm\./)
      assert.equal(calls().length, 1)
      await ask(`/agents/${agent}/generate`, { prompt: 'Hello', stream: true })
      assert.equal(calls().length, 2)
    })
  })

  describe('that fail in the stream', () => {
    const failing = {
      text: 'one two three',
      stream_error: { after: 5, message: 'Internal server error' },
      headers: { 'request-id': 'req_9' },
    }
    const ids = (meta: any) => [meta.provider_status_code, meta.provider_code, meta.provider_request_id]

    it('keep status, code and request ID of the vendor in the error, the attempts and the log', async () => {
      const { id, plan } = await vendor('anthropic')
      plan(failing)
      const route = await made('/model-routes', {
        name: 'route',
        targets: [{ ai_provider_id: id, model: 'claude-sonnet-4-6', max_retries: 0 }],
      })
      const agent = (await made('/agents', { name: 'agent', model_route_id: route.id })).id
      const { body } = await key.post(`/agents/${agent}/generate`, { prompt: 'Hello', stream: true })
      const generation = (await key.get(`/generations/${/"(gen_\w+)"/.exec(body)![1]}`)).body
      assert.deepEqual(ids(generation.error.meta), [500, 'api_error', 'req_9'])
      assert.deepEqual(ids(generation.routing.attempts[0]), [500, 'api_error', 'req_9'])
      const line = app.logs
        .map(each => JSON.parse(each))
        .find(({ provider_request_id }) => provider_request_id === 'req_9')
      assert.deepEqual(ids(line), [500, 'api_error', 'req_9'])
    })

    it('are repeated if they break off in a call before any text', async () => {
      const { id, plan, calls } = await vendor('anthropic')
      const agent = await agentOf(id)
      plan([{ text: '', tool_calls: [{ name: 'look', args: { a: 1 } }], cut: { after: 4 } }, { text: 'fine' }])
      const { body } = await key.post(`/agents/${agent}/generate`, { prompt: 'Hello', stream: true })
      assert.match(body, /"content":"fine"/)
      assert.equal(calls().length, 2)
    })

    it('keep them of an answer that is refused or breaks off', async () => {
      const { id, plan } = await vendor('openai chat')
      const agent = await agentOf(id)
      plan({ error: { status: 400, message: 'no', code: 'bad_value' }, headers: { 'x-request-id': 'req_7' } })
      const refused = await key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'Hello' })
      assert.deepEqual(ids(refused.body.error.meta), [400, 'bad_value', 'req_7'])
      plan({ text: 'one two three', cut: { after: 3 }, headers: { 'x-request-id': 'req_8' } })
      const { body } = await key.post(`/agents/${agent}/generate`, { prompt: 'Hello', stream: true })
      assert.match(body, /"provider_request_id":"req_8"/)
    })
  })

  describe('to requests with settings that the vendor does not take', () => {
    it('have notes, and the response that waits for them names the settings', async () => {
      const { id, plan } = await vendor('anthropic')
      const agent = await agentOf(id, { seed: 7 })
      plan({ text: 'Fine.' })
      const reply = await key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'Hello' })
      assert.equal(reply.headers.get('x-svc-ignored-params'), 'seed')
      assert.deepEqual(reply.body.ignored_params, ['seed'])
      const [step] = (await transcript(reply.body.id)).steps
      assert.deepEqual(
        step.notes.map(({ kind, setting }: any) => [kind, setting]),
        [['setting_left_out', 'seed']],
      )
      const session = await made('/sessions', { agent_id: agent })
      await made(`/sessions/${session.id}/messages`, { message: 'Hello' })
      const turn = await key.post(`/sessions/${session.id}/generate?wait=true`, {})
      assert.deepEqual([turn.headers.get('x-svc-ignored-params'), turn.body.ignored_params], ['seed', ['seed']])
      const completion = await key.post('/chat/completions', {
        ai_provider_id: id,
        messages: [{ role: 'user', content: 'Hello' }],
        seed: 7,
      })
      assert.equal(completion.headers.get('x-svc-ignored-params'), 'seed')
    })

    it('keep those that a refusal of another request only quotes', async () => {
      const { id, plan, calls } = await vendor('custom vllm')
      const [plain, heating] = await Promise.all([
        agentOf(id, { temperature: 0.5 }),
        agentOf(id, {
          temperature: 0.5,
          tool_bindings: [
            {
              tool: {
                name: 'heat',
                type: 'client',
                description: 'Heats',
                parameters: { type: 'object', properties: { temperature: { type: 'number' } } },
              },
            },
          ],
        }),
      ])
      const message = "Invalid schema for function 'heat': temperature is not allowed"
      plan(({ body }) => (body.tools ? { error: { status: 400, message } } : { text: 'Fine.' }))
      const refused = await key.post(`/agents/${heating}/generate?wait=true`, { prompt: 'Hello' })
      assert.equal(refused.status, 502, JSON.stringify(refused.body))
      assert.deepEqual((await key.get(`/ai-providers/${id}/profile`)).body.findings, [])
      await made(`/agents/${plain}/generate?wait=true`, { prompt: 'Hello' })
      assert.equal(calls().at(-1)!.body.temperature, 0.5)
    })

    it('and to JSON and reasoning efforts are requested as each vendor takes them', async () => {
      const effort: Record<string, (body: any) => unknown> = {
        'openai responses': body => body.reasoning?.effort,
        'openai chat': body => body.reasoning_effort,
        anthropic: body => body.output_config?.effort,
        google: body => body.generationConfig?.thinkingConfig?.thinkingLevel,
        groq: body => body.reasoning_effort,
        gateway: body => body.reasoning_effort,
      }
      for (const [profile, read] of Object.entries(effort)) {
        const { id, plan, calls } = await vendor(profile)
        plan({ text: '{"a":1}' })
        const model = profiles.find(({ name }) => name === profile)!.model
        const reply = await fetch(`${app.url}/openai/v1/chat/completions`, {
          method: 'POST',
          headers: { authorization: `Bearer ${key.token}`, 'content-type': 'application/json' },
          body: JSON.stringify({
            model: `${id}/${model}`,
            messages: [{ role: 'user', content: 'Hello' }],
            reasoning_effort: 'low',
            response_format: { type: 'json_object' },
          }),
        })
        assert.equal(reply.status, 200, `${profile}: ${await reply.text()}`)
        const { body } = calls()[0]!
        assert.equal(read(body), 'low', `${profile}: ${JSON.stringify(body)}`)
        assert.match(JSON.stringify(body), /one JSON object/, profile)
      }
    })
  })
})

/** Returns the text of the deltas of a stream. */
const textOf = (body: string): string =>
  [...body.matchAll(/^data: (.*"delta".*)$/gm)]
    .map(([, data]) => JSON.parse(data!).choices?.[0].delta.content ?? '')
    .join('')
