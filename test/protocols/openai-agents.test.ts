import assert from 'node:assert/strict'
import type OpenAI from 'openai'
import { sweepEphemeralSessions } from '#conversation/sessions/expire.ts'
import { idStatement, sql, voidStatement } from '#core/db/sql.ts'
import { startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'
import { dataLines, startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

const ACTIONS = [
  'agents:CreateAgentGeneration',
  'sessions:SendSessionMessage',
  'sessions:ListSessions',
  'sessions:GetSession',
  'sessions:ListSessionMessages',
  'actors:CreateActor',
  'actors:ListActors',
  'generations:GetGeneration',
  'generations:ListGenerations',
]

const user = (content: string) => ({ role: 'user' as const, content })
const assistant = (content: string) => ({ role: 'assistant' as const, content })
const echo = [{ reply: { text: 'reply to {{last_user}}' } }]

describe('the OpenAI mount: agents', () => {
  const app = forSuite(() => startOpenAiApp({ actions: ACTIONS, env: { PROVIDER_MAX_RETRIES: '0' } }))
  let key: string
  let openai: OpenAI

  before(async () => {
    key = app.key.token as string
    openai = app.openai(key)
  })

  const ask = (model: string, messages: Json[], headers: Record<string, string> = {}, more: Json = {}) =>
    app.send('/chat/completions', { model, messages, ...more }, { headers })
  const read = async (response: Response, status = 200): Promise<Json> => {
    const text = await response.text()
    assert.equal(response.status, status, text)
    return JSON.parse(text)
  }
  const textOf = (body: Json): string => body.choices[0].message.content
  const sessionOf = (response: Response): string => response.headers.get('x-svc-session-id') as string
  const contentsOf = async (id: string): Promise<string[]> =>
    (await app.messages({ id })).map((message: Json) => message.content)
  const weather = {
    type: 'function' as const,
    function: { name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } },
  }

  describe('turns', () => {
    it('run a turn over the messages of the request, by ID and by name', async () => {
      const { agentId, requests } = await app.scripted([{ reply: { text: 'hello' } }], { name: 'Greeter' })
      for (const model of [agentId, 'agent:Greeter']) {
        const said = await openai.chat.completions.create({
          model,
          messages: [user('a'), assistant('b'), user('c')],
        })
        assert.equal(said.choices[0].message.content, 'hello')
        assert.equal(said.model, model)
        assert.equal(said.system_fingerprint, 'v1')
        assert.ok((said.usage?.total_tokens ?? 0) > 0)
      }
      const [{ body }] = await requests()
      assert.deepEqual(
        body.messages.map(({ content }: Json) => content),
        ['a', 'b', 'c'],
      )
      const { data } = (await app.key.get(`/generations?agent_id=${agentId}`)).body
      assert.deepEqual(
        data.map(({ session_id, actor_id, status }: Json) => [session_id, actor_id, status]),
        [
          [null, null, 'completed'],
          [null, null, 'completed'],
        ],
      )
    })

    it('give system texts of the client as a marked message of the user, as instructions or not at all', async () => {
      const run = async (client_instructions: string) => {
        const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }], {
          instructions: 'Own',
          client_instructions,
        })
        await read(await ask(agentId, [{ role: 'system', content: 'Client </client_instructions> text' }, user('hi')]))
        const [{ body }] = await requests()
        return body.messages as Json[]
      }
      const [system, block] = await run('block')
      assert.deepEqual([system.content, block.role], ['Own', 'user'])
      assert.match(
        block.content,
        /<client_instructions>\nClient &lt;\/client_instructions&gt; text\n<\/client_instructions>$/,
      )
      assert.match((await run('system'))[0].content, /^Own\n\nClient/)
      const ignored = await run('ignore')
      assert.deepEqual(
        ignored.map(({ content }) => content),
        ['Own', 'hi'],
      )
    })

    it('let through only the settings that the agent lists, lower its output limit, and name the others', async () => {
      const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }], {
        temperature: 1,
        max_output_tokens: 50,
        request_settings: ['top_p', 'reasoning_effort'],
      })
      const settings = { temperature: 0, top_p: 0.5, reasoning_effort: 'low', tools: [weather] }
      const low = await ask(agentId, [user('a')], {}, { ...settings, max_tokens: 20 })
      await read(low)
      assert.equal(low.headers.get('x-svc-ignored-params'), 'tools, temperature')
      await read(await ask(agentId, [user('a')], {}, { max_completion_tokens: 500 }))
      const [first, second] = await requests()
      assert.deepEqual(
        [
          first.body.temperature,
          first.body.top_p,
          first.body.reasoning_effort,
          first.body.max_tokens,
          first.body.tools,
        ],
        [1, 0.5, 'low', 20, undefined],
      )
      assert.deepEqual([second.body.temperature, second.body.max_tokens], [1, 50])
    })

    it('name every field without effect: of tools, choices, replaced and unknown ones, at most twenty', async () => {
      const { agentId } = await app.scripted(echo)
      const open = await app.scripted(echo, { accept_client_tools: true })
      const ignored = async (model: string, more: Json): Promise<string | null> => {
        const response = await ask(model, [user('a')], {}, more)
        await read(response)
        return response.headers.get('x-svc-ignored-params')
      }
      const functions = [{ name: 'f' }]
      assert.equal(await ignored(agentId, { tools: [weather], tool_choice: 'auto' }), 'tools, tool_choice')
      assert.equal(await ignored(agentId, { functions, function_call: 'auto' }), 'functions, function_call')
      assert.equal(await ignored(open.agentId, { tools: [weather], tool_choice: 'auto' }), null)
      assert.equal(await ignored(open.agentId, { tools: [weather], functions }), 'functions')
      assert.equal(await ignored(open.agentId, { tool_choice: 'auto' }), 'tool_choice')
      assert.equal(await ignored(agentId, { max_tokens: 10, max_completion_tokens: 20 }), 'max_tokens')
      const sampling = { temperature: 1, top_p: 1, seed: 1, stop: ['x'], logprobs: true, service_tier: 'auto' }
      assert.equal(await ignored(agentId, sampling), 'temperature, top_p, logprobs, service_tier, seed, stop')
      assert.equal(await ignored(agentId, { invented: null, other: 1 }), 'other')
      const many = Object.fromEntries(Array.from({ length: 30 }, (_each, index) => [`p${index}`, 1]))
      assert.equal((await ignored(agentId, many))?.split(', ').length, 20)
    })

    it('check a requested format unless the agent has its own, also streamed', async () => {
      const schema = { type: 'object', properties: { n: { type: 'number' } }, required: ['n'] }
      const response_format = { type: 'json_schema', json_schema: { name: 'a', schema } }
      const { agentId } = await app.scripted([
        { when: { user: 'good' }, reply: { text: '{"n":1}' } },
        { reply: { text: '{}' } },
      ])
      assert.equal(textOf(await read(await ask(agentId, [user('good')], {}, { response_format }))), '{"n":1}')
      const refused = await ask(agentId, [user('bad')], {}, { response_format })
      assert.equal((await read(refused, 422)).error.code, 'OUTPUT_SCHEMA_VALIDATION_FAILED')
      const lines = await dataLines(await ask(agentId, [user('bad')], {}, { response_format, stream: true }))
      assert.equal(lines.includes('[DONE]'), false)
      assert.equal(JSON.parse(lines.at(-1) as string).error.code, 'OUTPUT_SCHEMA_VALIDATION_FAILED')
      const own = await app.scripted([{ reply: { text: '{"x":1}' } }], {
        output_schema: { type: 'object', properties: { x: { type: 'number' } }, required: ['x'] },
      })
      const ignored = await ask(own.agentId, [user('a')], {}, { response_format })
      assert.equal(textOf(await read(ignored)), '{"x":1}')
      assert.equal(ignored.headers.get('x-svc-ignored-params'), 'response_format')
    })

    it('show the version of the agent and the reasoning of its model, streamed or not, also after a pause', async () => {
      const { agentId } = await app.scripted(
        [
          { when: { last_role: 'tool' }, reply: { reasoning: 'It is warm.', text: 'Sunny' } },
          { reply: { reasoning: 'I must check.', text: 'Wait', tool_calls: [{ name: 'weather', args: {} }] } },
        ],
        { accept_client_tools: true },
      )
      for (const stream of [false, true]) {
        const call = (messages: Json[]) =>
          ask(agentId, messages, { 'x-svc-actor': 'thinker' }, { stream, tools: [weather] })
        const readMessage = async (response: Response): Promise<Json> => {
          if (!stream) {
            const { system_fingerprint, choices } = await read(response)
            return { ...choices[0].message, versions: [system_fingerprint] }
          }
          const chunks = (await dataLines(response)).slice(0, -1).map(line => JSON.parse(line))
          const joined = (field: string) => chunks.map(({ choices }) => choices[0].delta[field] ?? '').join('')
          return {
            content: joined('content'),
            reasoning_content: joined('reasoning_content'),
            tool_calls: chunks.flatMap(({ choices }) => choices[0].delta.tool_calls ?? []),
            versions: [...new Set(chunks.map(({ system_fingerprint }) => system_fingerprint))],
          }
        }
        const first = await readMessage(await call([user('go')]))
        assert.deepEqual([first.content, first.reasoning_content, first.versions], ['Wait', 'I must check.', ['v1']])
        const [{ id, type, function: called }] = first.tool_calls
        const spoken = { role: 'assistant', content: 'Wait', tool_calls: [{ id, type, function: called }] }
        const second = await readMessage(
          await call([user('go'), spoken, { role: 'tool', tool_call_id: id, content: 'warm' }]),
        )
        assert.deepEqual([second.content, second.reasoning_content, second.versions], ['Sunny', 'It is warm.', ['v1']])
      }
      const { data } = (await app.key.get(`/generations?agent_id=${agentId}&limit=1`)).body
      assert.doesNotMatch(JSON.stringify(await app.generation(data[0].id)), /I must check|It is warm/)
      const direct = await app.admin.post(`/agents/${agentId}/generate`, { message: 'go', wait: true })
      assert.doesNotMatch(JSON.stringify(direct.body), /I must check/)
    })

    it('join the texts of all steps around the tools of the agent, streamed or not', async () => {
      const receiver = await startReceiver()
      const { agentId } = await app.scripted(
        [
          { when: { last_role: 'tool' }, reply: { text: 'It is done' } },
          { reply: { text: 'Let me see', tool_calls: [{ name: 'act', args: {} }] } },
        ],
        {
          tool_bindings: [
            {
              tool: {
                name: 'act',
                type: 'http',
                parameters: { type: 'object', properties: {} },
                execute: { method: 'POST', url: receiver.url },
              },
            },
          ],
        },
      )
      const whole = await read(await ask(agentId, [user('go')]))
      assert.equal(textOf(whole), 'Let me see\n\nIt is done')
      assert.equal(whole.choices[0].finish_reason, 'stop')
      assert.equal(whole.choices[0].message.tool_calls, undefined)
      const stream = await openai.chat.completions.create({ model: agentId, messages: [user('go')], stream: true })
      let text = ''
      for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? ''
      assert.equal(text, 'Let me see\n\nIt is done')
      await receiver.close()
    })

    it('a failure before any tool call keeps the class of the vendor, also of a stream', async () => {
      const { agentId } = await app.scripted([{ reply: { error: { status: 429, retry_after: 7 } } }])
      for (const stream of [false, true]) {
        const refused = await ask(agentId, [user('a')], {}, { stream })
        assert.equal((await read(refused, 429)).error.type, 'rate_limit_error')
        assert.deepEqual([refused.headers.get('retry-after'), refused.headers.get('x-should-retry')], ['7', 'true'])
      }
    })
  })

  describe('tools of the client', () => {
    const rules = [
      { when: { last_role: 'tool' }, reply: { text: 'Sunny in Rome' } },
      { reply: { text: 'One moment', tool_calls: [{ name: 'weather', args: { city: 'Rome' } }] } },
    ]

    it('end the call, and their results resume the turn: one generation with two steps', async () => {
      const { agentId, requests } = await app.scripted(rules, { accept_client_tools: true })
      const first = await openai.chat.completions.create({ model: agentId, messages: [user('go')], tools: [weather] })
      const [choice] = first.choices
      assert.deepEqual([choice.finish_reason, choice.message.content], ['tool_calls', 'One moment'])
      const [call] = choice.message.tool_calls as Json[]
      const messages = [
        user('go'),
        choice.message,
        { role: 'tool' as const, tool_call_id: call.id as string, content: 'sunny' },
      ]
      const second = await openai.chat.completions.create({ model: agentId, messages, tools: [weather] })
      assert.equal(second.choices[0].message.content, 'Sunny in Rome')
      const { data } = (await app.key.get(`/generations?agent_id=${agentId}`)).body
      assert.deepEqual(
        data.map(({ status, step_count }: Json) => [status, step_count]),
        [['completed', 2]],
      )
      assert.equal((await requests())[1].body.messages.at(-1).content, 'sunny')
      const again = await openai.chat.completions.create({ model: agentId, messages, tools: [weather] })
      assert.equal(again.choices[0].message.content, 'Sunny in Rome')
      const after = (await app.key.get(`/generations?agent_id=${agentId}`)).body.data
      assert.equal(after.length, 2)
      assert.deepEqual(
        after.find(({ id }: Json) => id === data[0].id),
        data[0],
      )
    })

    it('stream their calls, and the rest of the turn after the results', async () => {
      const { agentId } = await app.scripted(rules, { accept_client_tools: true })
      const stream = openai.chat.completions.stream({ model: agentId, messages: [user('go')], tools: [weather] })
      const message = await stream.finalMessage()
      assert.equal(message.content, 'One moment')
      const [call] = message.tool_calls as Json[]
      assert.deepEqual(JSON.parse(call.function.arguments), { city: 'Rome' })
      const results = [user('go'), message, { role: 'tool', tool_call_id: call.id, content: 'sunny' }]
      const lines = await dataLines(await ask(agentId, results, {}, { stream: true, tools: [weather] }))
      const text = lines.slice(0, -1).map(line => JSON.parse(line).choices[0].delta.content ?? '')
      assert.equal(text.join(''), 'Sunny in Rome')
    })

    it('are not resumed by another credential or for another end user', async () => {
      const { agentId } = await app.scripted(rules, { accept_client_tools: true })
      const asked = await read(await ask(agentId, [user('go')], { 'x-svc-actor': 'ann' }, { tools: [weather] }))
      const { message } = asked.choices[0]
      const results = [user('go'), message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'sunny' }]
      await read(await ask(agentId, results, { 'x-svc-actor': 'bob' }, { tools: [weather] }))
      const { data } = (await app.key.get(`/generations?agent_id=${agentId}`)).body
      assert.equal(data.filter(({ status }: Json) => status === 'requires_action').length, 1)
    })

    it('a bound tool wins over one of the client with its name', async () => {
      const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }], {
        accept_client_tools: true,
        tool_bindings: [{ tool: { name: 'weather', type: 'client', description: 'Bound' } }],
      })
      await read(await ask(agentId, [user('go')], {}, { tools: [weather] }))
      const [{ body }] = await requests()
      assert.deepEqual(
        body.tools.map((tool: Json) => tool.function.description),
        ['Bound'],
      )
    })
  })

  describe('end users', () => {
    it('are found or made by header and body, and hold an ephemeral session', async () => {
      const { agentId } = await app.scripted([{ reply: { text: 'ok' } }])
      const first = await ask(agentId, [user('a')], { 'x-openwebui-user-id': 'owui-1' }, { user: 'other' })
      await read(first)
      await read(await ask(agentId, [user('a')], {}, { user: 'owui-1' }))
      await read(await ask(agentId, [user('a')], {}, { safety_identifier: 'safe-1' }))
      const actors = (await app.key.get('/actors?limit=100')).body.data as Json[]
      assert.equal(actors.filter(({ external_id }) => external_id === 'owui-1').length, 1)
      assert.equal(actors.filter(({ external_id }) => external_id === 'other').length, 0)
      assert.equal(actors.filter(({ external_id }) => external_id === 'safe-1').length, 1)
      const session = (await app.key.get(`/sessions/${sessionOf(first)}`)).body
      assert.deepEqual([session.ephemeral, session.agent_id], [true, agentId])
      assert.deepEqual(await contentsOf(session.id), [])
      const listed = (await app.key.get(`/sessions?agent_id=${agentId}`)).body
      assert.equal(listed.total, 0)
      assert.equal((await app.key.get(`/sessions?agent_id=${agentId}&ephemeral=true`)).body.total, 3)
    })

    it('are named by the first of several headers and fields, as conversations are', async () => {
      const { agentId } = await app.scripted(echo)
      const of = async (headers: Record<string, string>, more: Json) => {
        const response = await ask(agentId, [user('a')], headers, more)
        await read(response)
        return (await app.key.get(`/sessions/${sessionOf(response)}`)).body
      }
      const actorOf = async (headers: Record<string, string>, more: Json): Promise<string> => {
        const { actor_id } = await of(headers, more)
        const { data } = (await app.key.get('/actors?limit=100')).body
        return data.find(({ id }: Json) => id === actor_id)?.external_id
      }
      const headers = { 'x-svc-actor': 'h1', 'x-openwebui-user-id': 'h2', 'x-librechat-user-id': 'h3' }
      const { 'x-svc-actor': _, ...others } = headers
      assert.equal(await actorOf(headers, { user: 'u' }), 'h1')
      assert.equal(await actorOf(others, { user: 'u' }), 'h2')
      assert.equal(await actorOf({ 'x-svc-actor': ' ' }, { safety_identifier: 's', user: 'u' }), 's')
      assert.equal(await actorOf({}, { user: { id: 'object' } }), 'object')
      const keys = { 'x-svc-session-key': 'k1', 'x-openwebui-chat-id': 'k2', 'x-conversation-id': 'k3' }
      const { 'x-svc-session-key': _own, ...rest } = keys
      const metadata = { session_key: 'k4' }
      const first = await of(keys, { metadata })
      assert.equal((await of({ 'x-svc-session-key': 'k1' }, {})).forked_from_session_id, first.id)
      const second = await of(rest, { metadata })
      assert.equal((await of({}, { metadata: { session_key: 'k2' } })).forked_from_session_id, second.id)
      for (const refused of [{ 'x-svc-actor': 'x'.repeat(256) }, { 'x-conversation-id': 'x'.repeat(256) }])
        await read(await ask(agentId, [user('a')], refused as never), 400)
      await read(await ask(agentId, [user('a')], {}, { metadata: { session_key: 'x'.repeat(256) } }), 400)
    })

    it('have ephemeral sessions for a day', async () => {
      const { agentId } = await app.scripted(echo)
      const old = await ask(agentId, [user('a')], { 'x-svc-actor': 'day' })
      const next = await ask(agentId, [user('a')], { 'x-svc-actor': 'day' })
      for (const response of [old, next]) await read(response)
      const { pool } = app
      await pool.query(voidStatement`
        update sessions set created_at = now() - interval '25 hours' where id = ${sessionOf(old)}`)
      await sweepEphemeralSessions(app.services, new AbortController().signal)
      assert.equal((await app.key.get(`/sessions/${sessionOf(old)}`)).status, 404)
      assert.equal((await app.key.get(`/sessions/${sessionOf(next)}`)).status, 200)
    })

    it('spend their own quotas', async () => {
      const { agentId } = await app.scripted([
        { reply: { text: 'ok', usage: { prompt_tokens: 50, completion_tokens: 50 } } },
      ])
      const quota = await app.admin.post('/quotas', {
        project_id: app.projectId,
        scope: 'actor',
        metric: 'tokens',
        limit: 60,
        window: 'rolling_24h',
      })
      assert.equal(quota.status, 201, JSON.stringify(quota.body))
      await read(await ask(agentId, [user('a')], {}, { user: 'u1' }))
      const refused = await ask(agentId, [user('a')], {}, { user: 'u1' })
      assert.equal((await read(refused, 429)).error.code, 'QUOTA_EXCEEDED')
      assert.equal(refused.headers.get('x-should-retry'), 'false')
      await read(await ask(agentId, [user('a')], {}, { user: 'u2' }))
      await app.admin.delete(`/quotas/${quota.body.id}`)
    })

    it('who are unknown are refused without the permission to make actors', async () => {
      const narrow = await app.projectWith(['sessions:SendSessionMessage', 'agents:CreateAgentGeneration'])
      const provider = await app.admin.post('/ai-providers', {
        project_id: narrow.id,
        name: 'double',
        provider: 'custom',
        default_model: 'double-1',
        base_url: `${app.double.url}/v1`,
      })
      const agent = await app.admin.post('/agents', { project_id: narrow.id, ai_provider_id: provider.body.id })
      const refused = await app.send(
        '/chat/completions',
        { model: agent.body.id, messages: [user('a')], user: 'stranger' },
        { token: narrow.key.token },
      )
      assert.equal((await read(refused, 403)).error.type, 'permission_error')
    })
  })

  describe('conversations', () => {
    const chatHeaders = (chat: string) => ({ 'x-openwebui-user-id': 'ow', 'x-openwebui-chat-id': chat })

    it('of a key are one session: turns, a regenerate, an edit, and a title task outside of it', async () => {
      const { agentId, requests } = await app.scripted([
        { when: { user: 'one' }, reply: { text: 'first' } },
        { when: { user: 'two' }, reply: { text: 'second' } },
        { when: { user: 'three' }, replies: [{ text: 'third' }, { text: 'third again' }] },
        { when: { user: 'edited' }, reply: { text: 'changed' } },
        { reply: { text: 'A title' } },
      ])
      const headers = chatHeaders('chat-1')
      const history: Json[] = []
      const say = async (text: string, messages = history) => {
        messages.push(user(text))
        const response = await ask(agentId, messages, headers)
        const body = await read(response)
        messages.push(assistant(textOf(body)))
        return sessionOf(response)
      }
      const session = await say('one')
      assert.equal(await say('two'), session)
      assert.equal(await say('three'), session)
      const contents = ['one', 'first', 'two', 'second', 'three', 'third']
      assert.deepEqual(await contentsOf(session), contents)
      await app.pool.query(voidStatement`
        insert into conversation_summaries (conversation_id, up_to_position, text, tokens, agent_id, agent_version)
        select conversation_id, 3, 'Two words.', 2, agent_id, 1 from sessions where id = ${session}`)
      const regenerated = await ask(agentId, history.slice(0, 5), headers)
      assert.equal(textOf(await read(regenerated)), 'third again')
      const fork = (await app.key.get(`/sessions/${sessionOf(regenerated)}`)).body
      assert.deepEqual([fork.forked_from_session_id, fork.forked_from_position], [session, 3])
      const summaries = await app.pool.anyFirst(idStatement`
        select session_id as id from conversation_summaries s join conversations c on c.id = s.conversation_id
        where c.session_id = any(${sql.array([session, fork.id], 'text')})`)
      assert.equal(summaries.length, 2)
      assert.equal(fork.actor_id, (await app.key.get(`/sessions/${session}`)).body.actor_id)
      const edited = await ask(agentId, [...history.slice(0, 2), user('edited')], headers)
      assert.equal(textOf(await read(edited)), 'changed')
      const second = (await app.key.get(`/sessions/${sessionOf(edited)}`)).body
      assert.equal(second.forked_from_session_id, fork.id)
      assert.deepEqual(await contentsOf(second.id), ['one', 'first', 'edited', 'changed'])
      const title = await ask(agentId, [user('### Task: generate a title of the chat')], headers)
      assert.equal(textOf(await read(title)), 'A title')
      assert.equal((await app.key.get(`/sessions/${sessionOf(title)}`)).body.ephemeral, true)
      assert.deepEqual(await contentsOf(session), contents)
      const restarted = await ask(agentId, [user('one')], headers)
      await read(restarted)
      assert.deepEqual(await contentsOf(sessionOf(restarted)), ['one', 'first'])
      const last = (await requests()).at(-1)?.body.messages
      assert.deepEqual(
        last.map(({ content }: Json) => content),
        ['[ow]: one'],
      )
    })

    it('compare texts without blocks that clients add, and replies of several steps as a whole', async () => {
      const receiver = await startReceiver()
      const { agentId, requests } = await app.scripted(
        [
          { when: { user: 'next' }, reply: { text: 'done' } },
          { when: { last_role: 'tool' }, reply: { text: 'Found' } },
          { reply: { text: 'Looking', tool_calls: [{ name: 'act', args: {} }] } },
        ],
        {
          tool_bindings: [
            {
              tool: {
                name: 'act',
                type: 'http',
                parameters: { type: 'object', properties: {} },
                execute: { method: 'POST', url: receiver.url },
              },
            },
          ],
        },
      )
      const headers = chatHeaders('chat-steps')
      const first = await ask(agentId, [user('go')], headers)
      const text = textOf(await read(first))
      assert.equal(text, 'Looking\n\nFound')
      const shown = `<details type="reasoning">hm</details>\n${text}  `
      const next = await ask(agentId, [user('go'), assistant(shown), user('next')], headers)
      await read(next)
      assert.equal(sessionOf(next), sessionOf(first))
      // The model reads the history of the session, which has the tools.
      assert.deepEqual(
        (await requests()).at(-1)?.body.messages.map(({ role }: Json) => role),
        ['user', 'assistant', 'tool', 'assistant', 'user'],
      )
      await receiver.close()
    })

    it('with another history start a new session with it, and the key moves', async () => {
      const { agentId, requests } = await app.scripted(echo)
      const headers = chatHeaders('chat-import')
      const first = await ask(agentId, [user('a')], headers)
      await read(first)
      const other = await ask(agentId, [user('x'), assistant('never said'), user('y')], headers)
      await read(other)
      assert.notEqual(sessionOf(other), sessionOf(first))
      const messages = await app.messages({ id: sessionOf(other) })
      assert.deepEqual(messages.map(({ origin, content }: Json) => [origin, content]).slice(0, 3), [
        ['system', 'x'],
        ['system', 'never said'],
        ['end_user', 'y'],
      ])
      // The imported reply is not unread.
      assert.equal((await app.key.get(`/sessions/${sessionOf(other)}`)).body.unread_count, 1)
      assert.deepEqual(
        (await requests()).at(-1)?.body.messages.map(({ content }: Json) => content),
        ['[ow]: x', 'never said', '[ow]: y'],
      )
    })

    it('are separate by end user, by agent and by key in the metadata', async () => {
      const { agentId } = await app.scripted(echo)
      const other = await app.scripted(echo)
      const sessions = new Set<string>()
      for (const [model, headers, more] of [
        [agentId, { 'x-svc-session-key': 'k', 'x-svc-actor': 'a1' }, {}],
        [agentId, { 'x-svc-session-key': 'k', 'x-svc-actor': 'a2' }, {}],
        [agentId, { 'x-svc-session-key': 'k' }, {}],
        [other.agentId, { 'x-svc-session-key': 'k', 'x-svc-actor': 'a1' }, {}],
        [agentId, { 'x-svc-actor': 'a1' }, { metadata: { session_key: 'k2' } }],
      ] as [string, Record<string, string>, Json][]) {
        const response = await ask(model, [user('a')], headers, more)
        await read(response)
        sessions.add(sessionOf(response))
      }
      assert.equal(sessions.size, 5)
    })

    it('accept one of two concurrent requests; the other gets 409 with Retry-After', async () => {
      const { agentId } = await app.scripted([{ reply: { text: 'slow', gate: 'busy-key' } }])
      const headers = chatHeaders('chat-busy')
      const both = [1, 2].map(() => ask(agentId, [user('a')], headers))
      await app.atGate('busy-key')
      const refused = await Promise.race(both)
      assert.equal((await read(refused, 409)).error.code, 'GENERATION_ALREADY_IN_PROGRESS')
      assert.deepEqual([refused.headers.get('x-should-retry'), refused.headers.get('retry-after')], ['true', '2'])
      await app.openGate('busy-key')
      const statuses = (await Promise.all(both)).map(({ status }) => status).sort()
      assert.deepEqual(statuses, [200, 409])
    })

    it('do not store the question of a failed turn twice', async () => {
      const { agentId } = await app.scripted([{ replies: [{ error: { status: 500 } }, { text: 'now' }] }])
      const headers = chatHeaders('chat-failed')
      await read(await ask(agentId, [user('a')], headers), 502)
      const response = await ask(agentId, [user('a')], headers)
      await read(response)
      assert.deepEqual(await contentsOf(sessionOf(response)), ['a', 'now'])
    })

    it('under an operator store the message, and are refused', async () => {
      const { agentId } = await app.scripted(echo)
      const headers = chatHeaders('chat-operator')
      const first = await ask(agentId, [user('a')], headers)
      const text = textOf(await read(first))
      const taken = await app.admin.post(`/sessions/${sessionOf(first)}/takeover`, {})
      assert.equal(taken.status, 200, JSON.stringify(taken.body))
      const refused = await ask(agentId, [user('a'), assistant(text), user('b')], headers)
      assert.equal((await read(refused, 400)).error.code, 'SESSION_UNDER_OPERATOR')
      assert.equal((await contentsOf(sessionOf(first))).at(-1), 'b')
    })

    it('after an operator continue the session, whether or not the client has the texts of the operator', async () => {
      const { agentId } = await app.scripted(echo)
      const run = async (chat: string, withOperator: boolean) => {
        const headers = chatHeaders(chat)
        const first = await ask(agentId, [user('a')], headers)
        const history: Json[] = [user('a'), assistant(textOf(await read(first))), user('b')]
        const path = `/sessions/${sessionOf(first)}`
        assert.equal((await app.admin.post(`${path}/takeover`, {})).status, 200)
        await read(await ask(agentId, history, headers), 400)
        const message = { message: 'from a person', idempotency_key: 'one' }
        assert.equal((await app.admin.post(`${path}/operator-messages`, message)).status, 201)
        assert.equal((await app.admin.post(`${path}/handback`, {})).status, 200)
        if (withOperator) history.push(assistant('from a person'))
        const next = await ask(agentId, [...history, user('c')], headers)
        await read(next)
        assert.equal(sessionOf(next), sessionOf(first))
        const users = (await app.messages({ id: sessionOf(first) })).filter(({ origin }: Json) => origin === 'end_user')
        assert.deepEqual(
          users.map(({ content }: Json) => content),
          ['a', 'b', 'c'],
        )
      }
      await run('chat-person', true)
      await run('chat-person-hidden', false)
    })

    it('of a closed session are refused permanently', async () => {
      const { agentId } = await app.scripted(echo)
      const headers = chatHeaders('chat-closed')
      const first = await ask(agentId, [user('a')], headers)
      const text = textOf(await read(first))
      await app.admin.patch(`/sessions/${sessionOf(first)}`, { status: 'closed' })
      const refused = await ask(agentId, [user('a'), assistant(text), user('b')], headers)
      assert.equal((await read(refused, 400)).error.code, 'SESSION_CLOSED')
    })
  })

  describe('repeated requests', () => {
    it('attach to the turn that they began, also while it runs', async () => {
      const { agentId } = await app.scripted([{ reply: { text: 'once', gate: 'retry-gate' } }])
      const first = ask(agentId, [user('a')], { 'x-svc-actor': 'rt' })
      await app.atGate('retry-gate')
      const again = ask(agentId, [user('a')], { 'x-svc-actor': 'rt', 'x-stainless-retry-count': '1' })
      await app.openGate('retry-gate')
      assert.equal(textOf(await read(await first)), 'once')
      assert.equal(textOf(await read(await again)), 'once')
      assert.equal((await app.key.get(`/generations?agent_id=${agentId}`)).body.total, 1)
      await read(await ask(agentId, [user('a')], { 'x-svc-actor': 'rt' }))
      assert.equal((await app.key.get(`/generations?agent_id=${agentId}`)).body.total, 2)
    })

    it('attach for ten minutes, with the same credential and body, also to the end of a conversation', async () => {
      const { agentId } = await app.scripted(echo)
      const retry = { 'x-stainless-retry-count': '1', 'x-svc-session-key': 'retry', 'x-svc-actor': 'rk' }
      const first = await read(await ask(agentId, [user('a')], { ...retry, 'x-stainless-retry-count': '0' }))
      const again = await ask(agentId, [user('a')], retry)
      assert.equal((await read(again)).id, first.id)
      assert.match(sessionOf(again), /^sess_/)
      const streamed = await dataLines(await ask(agentId, [user('a')], retry, { stream: true }))
      assert.notEqual(JSON.parse(streamed[0]).id, first.id)
      assert.notEqual((await read(await ask(agentId, [user('a')], { ...retry, 'x-svc-actor': 'other' }))).id, first.id)
      await app.pool.query(voidStatement`update turn_requests set created_at = now() - interval '11 minutes'`)
      assert.notEqual((await read(await ask(agentId, [user('a')], retry))).id, first.id)
    })
  })
})
