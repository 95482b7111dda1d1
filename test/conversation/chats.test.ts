import { strict as assert } from 'node:assert'
import OpenAI from 'openai'
import { startAgentApp } from '../execution/fixtures.ts'
import { client as control } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { framesOf } from '../support/frames.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const ACTIONS = ['chats:*', 'documents:*', 'model-routes:*', 'ai-providers:*', 'actors:*', 'projects:*']
const user = (content: unknown) => [{ role: 'user', content }]

describe('chats', () => {
  const app = forSuite(() => startAgentApp({ workers: [], actions: ACTIONS }))
  let double: ReturnType<typeof control>
  const make = (body: object = {}) => createdBy(app.key, '/chats', { ai_provider_id: app.providerId, ...body })
  const complete = (body: object, key = app.key) => key.post('/chat/completions', body)
  const refused = (reply: { status: number; body: any }, status: number, code: string) => {
    assert.deepEqual([reply.status, reply.body.error?.code], [status, code], JSON.stringify(reply.body))
    return reply.body.error
  }
  /** Usage of chats, oldest first. */
  const used = () =>
    app.rows(`select * from usage_events where project_id = $1 and source = 'chat' order by id`, [app.projectId])

  before(async () => {
    double = control(app.double)
  })

  describe('records', () => {
    it('are made, read, listed, changed and deleted, each with its event', async () => {
      const chat = await make({ name: 'Support', instructions: 'Be kind', model: 'double-2' })
      assert.match(chat.id, /^chat_[0-9a-z]{26}$/)
      assert.deepEqual((await app.key.get(`/chats/${chat.id}`)).body, chat)
      const changed = await app.key.patch(`/chats/${chat.id}`, { name: 'Sales', instructions: null, model: null })
      assert.deepEqual([changed.body.name, changed.body.instructions, changed.body.model], ['Sales', null, null])
      const listed = await app.key.get(`/chats?name=sal&ai_provider_id=${app.providerId}`)
      assert.deepEqual(
        listed.body.data.map(({ id }: any) => id),
        [chat.id],
      )
      assert.equal((await app.key.delete(`/chats/${chat.id}`)).status, 204)
      refused(await app.key.get(`/chats/${chat.id}`), 404, 'RESOURCE_NOT_FOUND')
      const events = await storedEvents(app.pool, { resource: chat.id })
      assert.deepEqual(
        events.map(({ name }: any) => name),
        ['chats.created', 'chats.updated', 'chats.deleted'],
      )
    })

    it('need a provider of the project, or a default route of it', async () => {
      refused(await app.key.post('/chats', {}), 400, 'VALIDATION_FAILED')
      const elsewhere = await app.project()
      const foreign = await app.admin.post('/ai-providers', {
        project_id: elsewhere.id,
        name: 'p',
        provider: 'custom',
        default_model: 'm',
        base_url: `${app.double.url}/v1`,
      })
      const error = refused(
        await app.key.post('/chats', { ai_provider_id: foreign.body.id }),
        400,
        'AI_PROVIDER_NOT_FOUND',
      )
      assert.equal(error.meta.id, foreign.body.id)
      refused(await app.key.post('/chats', { model: 'm' }), 400, 'VALIDATION_FAILED')
    })

    it('keep their provider from being deleted', async () => {
      const provider = await app.admin.post('/ai-providers', {
        project_id: app.projectId,
        name: 'held',
        provider: 'custom',
        default_model: 'm',
        base_url: `${app.double.url}/v1`,
      })
      const chat = await make({ ai_provider_id: provider.body.id })
      const path = `/ai-providers/${provider.body.id}`
      refused(await app.key.delete(path), 409, 'AI_PROVIDER_HAS_DEPENDENTS')
      await app.key.delete(`/chats/${chat.id}`)
      assert.equal((await app.key.delete(path)).status, 204)
    })

    it('are links of actors, which a delete takes away', async () => {
      const chat = await make()
      const both = { name: 'a', agent_id: app.agentId, chat_id: chat.id }
      refused(await app.key.post('/actors', both), 400, 'AGENT_AND_CHAT_EXCLUSIVE')
      refused(await app.key.post('/actors', { name: 'a', chat_id: 'chat_x' }), 400, 'CHAT_NOT_FOUND')
      const actor = await app.key.post('/actors', { name: 'a', chat_id: chat.id })
      assert.equal(actor.body.chat_id, chat.id)
      assert.equal((await app.key.delete(`/chats/${chat.id}`)).status, 204)
      assert.equal((await app.key.get(`/actors/${actor.body.id}`)).body.chat_id, null)
    })
  })

  describe('completions', () => {
    it('answer with the settings of the chat, its instructions replaced for one call', async () => {
      const lane = 'settings'
      await double.put(lane, { rules: [{ reply: { text: 'hello' } }] })
      const chat = await make({ instructions: 'Stored', model: `${lane}/m` })
      const said = await complete({
        chat_id: chat.id,
        messages: [...user('a'), { role: 'assistant', content: 'b' }, ...user('c')],
        temperature: 0.5,
        top_p: 0.9,
        max_tokens: 7,
        stop: ['x'],
      })
      assert.equal(said.status, 200, JSON.stringify(said.body))
      assert.match(said.body.id, /^chatcmpl_/)
      assert.deepEqual(said.body.choices, [
        { index: 0, message: { role: 'assistant', content: 'hello', refusal: null }, finish_reason: 'stop' },
      ])
      assert.equal(said.body.object, 'chat.completion')
      assert.equal(said.body.usage.total_tokens, said.body.usage.prompt_tokens + said.body.usage.completion_tokens)
      await complete({ chat_id: chat.id, messages: user('d'), instructions: 'For once' })
      await complete({ chat_id: chat.id, messages: user('e') })
      const asked = (await double.requests(lane)).map(({ body }: any) => body)
      assert.deepEqual(
        asked.map(({ messages }: any) => messages[0]),
        ['Stored', 'For once', 'Stored'].map(content => ({ role: 'system', content })),
      )
      const { temperature, top_p, max_tokens, stop, messages } = asked[0]
      assert.deepEqual([temperature, top_p, max_tokens, stop], [0.5, 0.9, 7, ['x']])
      assert.deepEqual(
        messages.slice(1).map(({ role }: any) => role),
        ['user', 'assistant', 'user'],
      )
    })

    it('name one target, by a field or by the model', async () => {
      const chat = await make()
      const messages = user('x')
      refused(await complete({ messages }), 400, 'VALIDATION_FAILED')
      refused(await complete({ messages, model: 'double-1' }), 400, 'VALIDATION_FAILED')
      refused(await complete({ messages, chat_id: chat.id, ai_provider_id: app.providerId }), 400, 'VALIDATION_FAILED')
      for (const target of [
        { chat_id: chat.id },
        { ai_provider_id: app.providerId },
        { model: chat.id },
        { model: `${app.providerId}/double-2` },
      ])
        assert.equal((await complete({ messages, ...target })).status, 200, JSON.stringify(target))
    })

    it('refuse before a stream opens: system messages first, then the target', async () => {
      for (const stream of [false, true]) {
        const system = [{ role: 'system', content: 'x' }, ...user('y')]
        refused(await complete({ messages: system, chat_id: 'chat_x', stream }), 400, 'SYSTEM_MESSAGE_NOT_ALLOWED')
        const absent = 'chat_00000000000000000000000000'
        refused(await complete({ messages: user('y'), chat_id: absent, stream }), 400, 'CHAT_NOT_FOUND')
        refused(await complete({ messages: user('y'), ai_provider_id: 'aip_x', stream }), 400, 'AI_PROVIDER_NOT_FOUND')
        refused(await complete({ messages: [], chat_id: absent, stream }), 400, 'VALIDATION_FAILED')
      }
    })

    it('are for those that may, on the chat or the project of the provider', async () => {
      const chat = await make()
      const other = await make()
      const statement = [
        { effect: 'Allow', action: ['chats:CreateChatCompletion'], resource: [`srn:${app.projectId}:chat:${chat.id}`] },
      ]
      const policy = await app.admin.post('/policies', { document: { statement } })
      const made = await app.admin.post('/project-keys', {
        project_id: app.projectId,
        policy_ids: [policy.body.id],
      })
      const key = app.as(made.body.secret)
      const before = (await used()).length
      assert.equal((await complete({ chat_id: chat.id, messages: user('x') }, key)).status, 200)
      refused(await complete({ chat_id: other.id, messages: user('x') }, key), 403, 'FORBIDDEN')
      refused(await complete({ ai_provider_id: app.providerId, messages: user('x') }, key), 403, 'FORBIDDEN')
      const stranger = (await app.project()).key
      refused(await complete({ chat_id: chat.id, messages: user('x') }, stranger), 400, 'CHAT_NOT_FOUND')
      assert.equal((await used()).length, before + 1)
    })

    it('read documents of the project, by field and as parts', async () => {
      const lane = 'documents'
      await double.put(lane, { rules: [{ reply: { text: 'read' } }] })
      const chat = await make({ model: `${lane}/m` })
      const made = await app.key.post('/documents', { path: '/a.txt', content: 'the text of it' })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      const { id } = made.body
      const messages = [
        { role: 'user', document_id: id },
        ...user([
          { type: 'text', text: 'and' },
          { type: 'document', document_id: id },
        ]),
      ]
      assert.equal((await complete({ chat_id: chat.id, messages })).status, 200)
      const [{ body }] = await double.requests(lane)
      assert.equal(JSON.stringify(body.messages).split('the text of it').length, 3)
      const wrong = [{ role: 'user', content: 'x', document_id: id }]
      refused(await complete({ chat_id: chat.id, messages: wrong }), 400, 'VALIDATION_FAILED')
      const foreign = await app.project()
      const theirs = await foreign.key.post('/documents', { path: '/b.txt', content: 'secret' })
      refused(
        await complete({ chat_id: chat.id, messages: [{ role: 'user', document_id: theirs.body.id }] }),
        404,
        'RESOURCE_NOT_FOUND',
      )
    })

    it('go by the default route of the project, which names the models', async () => {
      const lane = 'routed'
      await double.put(lane, { rules: [{ reply: { text: 'by route' } }] })
      const route = await app.key.post('/model-routes', {
        name: 'r',
        targets: [{ ai_provider_id: app.providerId, model: `${lane}/m` }],
      })
      assert.equal(route.status, 201, JSON.stringify(route.body))
      const path = `/projects/${app.projectId}`
      assert.equal((await app.admin.patch(path, { default_model_route_id: route.body.id })).status, 200)
      const chat = await make({ ai_provider_id: null })
      const said = await complete({ chat_id: chat.id, messages: user('x') })
      assert.equal(said.body.choices[0].message.content, 'by route')
      refused(await complete({ chat_id: chat.id, messages: user('x'), model: 'm' }), 400, 'VALIDATION_FAILED')
      refused(await app.admin.patch(path, { default_model_route_id: null }), 409, 'PROJECT_DEFAULT_ROUTE_INHERITED')
      await app.key.delete(`/chats/${chat.id}`)
      assert.equal((await app.admin.patch(path, { default_model_route_id: null })).status, 200)
    })

    it('fail as the provider does, and are not kept', async () => {
      const lane = 'failing'
      await double.put(lane, { rules: [{ reply: { error: { status: 404, message: 'no such model' } } }] })
      const chat = await make({ model: `${lane}/gone` })
      const before = (await used()).length
      const error = refused(await complete({ chat_id: chat.id, messages: user('x') }), 502, 'AI_PROVIDER_ERROR')
      assert.match(error.message, /404.*no such model/)
      assert.equal(error.meta.provider_status_code, 404)
      assert.equal((await used()).length, before)
      const [count] = await app.rows('select count(*)::int as n from generations where project_id = $1', [
        app.projectId,
      ])
      assert.equal(count.n, 0)
    })

    it('require one result for each call of a history, immediately after it', async () => {
      const chat = await make()
      const call = (id: string) => ({ id, type: 'function', function: { name: 'f', arguments: '{}' } })
      const result = (tool_call_id: string) => ({ role: 'tool', tool_call_id, content: 'x' })
      const calling = (...ids: string[]) => ({ role: 'assistant', content: null, tool_calls: ids.map(call) })
      const ask = (...messages: object[]) => complete({ chat_id: chat.id, messages: [...user('hello'), ...messages] })
      for (const messages of [
        [calling('a')],
        [calling('a'), ...user('more')],
        [calling('a', 'b'), result('a')],
        [calling('a'), result('b')],
        [calling('a'), result('a'), result('a')],
        [calling('a'), ...user('more'), result('a')],
        [calling('a', 'a'), result('a')],
        [result('a')],
      ])
        refused(await ask(...messages), 400, 'VALIDATION_FAILED')
      const { status, body } = await ask(calling('a', 'b'), result('b'), result('a'), ...user('more'))
      assert.equal(status, 200, JSON.stringify(body))
    })

    it('keep no content for repeats where the project keeps none', async () => {
      const { id } = await make()
      const ask = (key: string) =>
        app.key.post('/chat/completions', { chat_id: id, messages: user('hello') }, { 'Idempotency-Key': key })
      const first = await ask('once')
      assert.deepEqual((await ask('once')).body, first.body)
      await app.admin.patch(`/projects/${app.projectId}`, { trace_content_mode: 'none' })
      assert.equal((await ask('twice')).body.choices[0].message.content, 'echo: hello')
      assert.equal((await ask('twice')).body.choices[0].message.content, '')
      await app.admin.patch(`/projects/${app.projectId}`, { trace_content_mode: 'full' })
    })

    it('are refused while the project is paused', async () => {
      const { id, key } = await app.project()
      const provider = await app.admin.post('/ai-providers', {
        project_id: id,
        name: 'p',
        provider: 'custom',
        default_model: 'm',
        base_url: `${app.double.url}/v1`,
      })
      await app.admin.post(`/projects/${id}/pause`, { reason: 'test' })
      const body = { ai_provider_id: provider.body.id, messages: user('x') }
      refused(await complete(body, key), 409, 'PROJECT_PAUSED')
      refused(await complete({ ...body, stream: true }, key), 409, 'PROJECT_PAUSED')
    })

    it('are refused by a project quota before the model call, and by no quota of agents or actors', async () => {
      const lane = 'capped'
      await double.put(lane, { rules: [{ reply: { text: 'x', usage: { prompt_tokens: 11, completion_tokens: 5 } } }] })
      const { id, key } = await app.project()
      const provider = await app.admin.post('/ai-providers', {
        ...{ project_id: id, name: 'p', provider: 'custom', default_model: `${lane}/m` },
        base_url: `${app.double.url}/v1`,
      })
      const body = { ai_provider_id: provider.body.id, messages: user('x') }
      const asked = async () => (await double.requests(lane)).length
      const metered = async () =>
        (await app.rows('select count(*)::int as count from usage_events where project_id = $1', [id]))[0].count
      const cap = async (fields: object) =>
        (await createdBy(app.admin, '/quotas', { project_id: id, window: 'calendar_month', ...fields })).id as string
      for (const scope of ['agent', 'actor']) await cap({ scope, metric: 'tokens', limit: 1 })
      const tokens = await cap({ scope: 'project', metric: 'tokens', limit: 40 })
      for (let call = 1; call <= 3; call++) assert.equal((await complete(body, key)).status, 200)
      for (const stream of [false, true]) {
        const reply = await complete({ ...body, stream }, key)
        const { meta } = refused(reply, 429, 'QUOTA_EXCEEDED')
        assert.deepEqual([meta.quota_id, meta.limit, meta.metric], [tokens, 40, 'tokens'])
        assert.ok(Number(reply.headers.get('retry-after')) >= 1)
        assert.match(String(reply.headers.get('content-type')), /json/)
      }
      assert.deepEqual([await asked(), await metered()], [3, 3])
      assert.equal((await app.admin.delete(`/quotas/${tokens}`)).status, 204)
      const cost = await cap({ scope: 'project', metric: 'cost_usd', limit: 1 })
      const blind = await complete({ ...body, stream: true }, key)
      assert.equal(refused(blind, 409, 'QUOTA_UNENFORCEABLE').meta.quota_id, cost)
      assert.equal(blind.headers.get('retry-after'), null)
      assert.deepEqual([await asked(), await metered()], [3, 3])
    })

    it('are each metered and audited when they run at the same time, whatever their model', async () => {
      const before = (await used()).length
      const chats = [await make({ model: 'double-1' }), await make({ model: 'double-2' })]
      const replies = await Promise.all(
        Array.from({ length: 24 }, (_each, n) => complete({ chat_id: chats[n % 2].id, messages: user(`number ${n}`) })),
      )
      assert.deepEqual([...new Set(replies.map(({ status }) => status))], [200])
      const models = (await used()).slice(before).map(({ model }) => model)
      assert.deepEqual(models.toSorted(), [...Array(12).fill('double-1'), ...Array(12).fill('double-2')])
      const audited = await app.rows(
        `select resource_public_id from audit_entries where action = 'chats:CreateChatCompletion' and resource_public_id = any($1)`,
        [chats.map(({ id }) => id)],
      )
      assert.equal(audited.length, 24)
    })

    it('are metered with the reported usage, attributed only to the project', async () => {
      const lane = 'metered'
      await double.put(lane, {
        rules: [{ reply: { text: 'x', usage: { prompt_tokens: 11, completion_tokens: 5 } } }],
      })
      const chat = await make({ model: `${lane}/m` })
      const said = await complete({ chat_id: chat.id, messages: user('x') })
      assert.deepEqual([said.body.usage.prompt_tokens, said.body.usage.completion_tokens], [11, 5])
      const [event] = (await used()).slice(-1)
      assert.deepEqual(
        [event.meter_type, event.provider, event.model, event.ai_provider_id, event.agent_id, Number(event.tokens)],
        ['llm_tokens', 'custom', `${lane}/m`, app.providerId, null, 16],
      )
    })
  })

  describe('with the client of OpenAI', () => {
    const openai = (apiKey = app.key.token as string) =>
      new OpenAI({ apiKey, baseURL: `${app.url}/api/v1`, maxRetries: 0, fetch: checking })
    /** Streams that clients read, as texts. */
    const texts: Promise<string>[] = []
    /** The frames until the client went away. */
    async function textOf({ body }: Response): Promise<string> {
      const decoder = new TextDecoder()
      let text = ''
      try {
        for await (const chunk of body as ReadableStream<Uint8Array>) text += decoder.decode(chunk, { stream: true })
      } catch (error) {
        if ((error as Error).name !== 'AbortError') throw error
      }
      return text.slice(0, text.lastIndexOf('\n\n') + 2)
    }
    const checking: typeof fetch = async (...request) => {
      const response = await fetch(...request)
      if (response.headers.get('content-type')?.startsWith('text/event-stream')) texts.push(textOf(response.clone()))
      return response
    }

    after('every frame matches the description', async () => {
      const frames = (await Promise.all(texts)).flatMap(text => framesOf('post', '/chat/completions', text))
      const kinds = new Set(frames.map(({ data }) => (data === '[DONE]' ? data : Object.keys(data)[0])))
      assert.deepEqual([...kinds].sort(), ['[DONE]', 'error', 'id'])
    })

    const asked = (content = 'x') => [{ role: 'user' as const, content }]

    it('complete a message by the client', async () => {
      const chat = await make()
      const said = await openai().chat.completions.create({ model: chat.id, messages: asked('hello you') })
      assert.equal(said.choices[0].message.content, 'echo: hello you')
      assert.equal(said.choices[0].finish_reason, 'stop')
    })

    it('stream: the pieces join to the text, and the last has the usage', async () => {
      const lane = 'streamed'
      await double.put(lane, { rules: [{ reply: { text: 'one two three' } }] })
      const chat = await make({ model: `${lane}/m` })
      const stream = await openai().chat.completions.create({
        model: chat.id,
        messages: asked(),
        stream: true,
        stream_options: { include_usage: true },
      })
      const pieces: OpenAI.ChatCompletionChunk[] = []
      for await (const piece of stream) pieces.push(piece)
      assert.equal(pieces.map(piece => piece.choices[0]?.delta.content ?? '').join(''), 'one two three')
      assert.equal(pieces[0].choices[0].delta.role, 'assistant')
      assert.equal(pieces.at(-2)?.choices[0].finish_reason, 'stop')
      assert.ok((pieces.at(-1)?.usage?.total_tokens ?? 0) > 0)
    })

    it('call client tools, whole and streamed, and continue with their results', async () => {
      const lane = 'tools'
      const call = { name: 'weather', args: { city: 'Rome' } }
      await double.put(lane, {
        rules: [{ when: { last_role: 'tool' }, reply: { text: 'it is sunny' } }, { reply: { tool_calls: [call] } }],
      })
      const chat = await make({ model: `${lane}/m` })
      const tools: OpenAI.ChatCompletionTool[] = [
        {
          type: 'function',
          function: {
            name: 'weather',
            description: 'Says the weather',
            parameters: { type: 'object', properties: { city: { type: 'string' } } },
          },
        },
      ]
      const said = await openai().chat.completions.create({ model: chat.id, messages: asked(), tools })
      const { message, finish_reason } = said.choices[0]
      assert.equal(finish_reason, 'tool_calls')
      const [made] = message.tool_calls ?? []
      assert.ok(made.type === 'function')
      assert.deepEqual([made.function.name, JSON.parse(made.function.arguments)], ['weather', { city: 'Rome' }])
      const after = await openai().chat.completions.create({
        model: chat.id,
        messages: [...asked(), message, { role: 'tool', tool_call_id: made.id, content: 'sunny' }],
        tools,
      })
      assert.equal(after.choices[0].message.content, 'it is sunny')
      const runner = openai().chat.completions.stream({ model: chat.id, messages: asked(), tools })
      const final = await runner.finalChatCompletion()
      const [streamed] = final.choices[0].message.tool_calls ?? []
      assert.ok(streamed.type === 'function')
      assert.deepEqual(JSON.parse(streamed.function.arguments), { city: 'Rome' })
      const sent = (await double.requests(lane)).map(({ body }: any) => body)
      assert.equal(sent[0].tools[0].function.name, 'weather')
      assert.deepEqual(
        sent[1].messages.map(({ role }: any) => role),
        ['user', 'assistant', 'tool'],
      )
    })

    it('answer with an object that satisfies the schema', async () => {
      const lane = 'structured'
      await double.put(lane, {
        rules: [{ when: { user: 'good' }, reply: { text: '{"city":"Rome"}' } }, { reply: { text: '{"city":1}' } }],
      })
      const chat = await make({ model: `${lane}/m` })
      const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
      const response_format = { type: 'json_schema' as const, json_schema: { name: 'place', schema } }
      const ask = (content: string) =>
        openai().chat.completions.create({ model: chat.id, messages: asked(content), response_format })
      assert.deepEqual(JSON.parse((await ask('good')).choices[0].message.content as string), { city: 'Rome' })
      await assert.rejects(
        ask('bad'),
        (error: any) => error.status === 502 && error.code === 'OUTPUT_SCHEMA_VALIDATION_FAILED',
      )
      refused(
        await complete({ chat_id: chat.id, messages: user('x'), response_format, stream: true }),
        400,
        'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
      )
      const broken = { type: 'json_schema', json_schema: { schema: { type: 'nothing' } } }
      refused(
        await complete({ chat_id: chat.id, messages: user('x'), response_format: broken }),
        400,
        'INVALID_OUTPUT_SCHEMA',
      )
    })

    it('accept answers as the client sends them back, with its parsed fields', async () => {
      const lane = 'again'
      await double.put(lane, {
        rules: [{ when: { json: true }, reply: { text: '```json\n{"city":"Rome"}\n```' } }, { reply: { text: 'on' } }],
      })
      const chat = await make({ model: `${lane}/m` })
      const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
      const response_format = { type: 'json_schema' as const, json_schema: { name: 'place', schema } }
      const parsed = await openai().chat.completions.parse({ model: chat.id, messages: asked(), response_format })
      const { message } = parsed.choices[0]
      assert.equal(message.content, '{"city":"Rome"}')
      const messages = [...asked(), { ...message, parsed: { city: 'Rome' } }, ...asked()]
      const more = await openai().chat.completions.create({ model: chat.id, messages })
      assert.equal(more.choices[0].message.content, 'on')
    })

    it('aborts the model call and meters the streamed text', async () => {
      const lane = 'left'
      await double.put(lane, {
        rules: [{ reply: { text: 'one two three four', chunk_words: 1, gate: 'left-gate', gate_after: 2 } }],
      })
      const chat = await make({ model: `${lane}/m` })
      const before = (await used()).length
      const stream = await openai().chat.completions.create({ model: chat.id, messages: asked(), stream: true })
      for await (const piece of stream) {
        if (piece.choices[0].delta.content?.includes('two')) stream.controller.abort()
      }
      await eventually(async () => (await double.requests(lane))[0]?.aborted === true)
      const event = await eventually(async () => (await used())[before])
      assert.equal((await used()).length, before + 1)
      assert.ok(Number(event.tokens) >= 2)
    })

    it('fail with the errors of that client', async () => {
      const chat = await make()
      await assert.rejects(
        openai('sk_wrong').chat.completions.create({ model: chat.id, messages: asked() }),
        OpenAI.AuthenticationError,
      )
      await assert.rejects(
        openai().chat.completions.create({ model: 'nothing', messages: asked() }),
        (error: any) => error instanceof OpenAI.BadRequestError && error.code === 'VALIDATION_FAILED',
      )
      const lane = 'cut'
      await double.put(lane, { rules: [{ reply: { text: 'one two three', chunk_words: 1, cut: { after: 2 } } }] })
      const cut = await make({ model: `${lane}/m` })
      const stream = await openai().chat.completions.create({ model: cut.id, messages: asked(), stream: true })
      let text = ''
      await assert.rejects(
        (async () => {
          for await (const piece of stream) text += piece.choices[0].delta.content ?? ''
        })(),
        OpenAI.APIError,
      )
      assert.ok('one two three'.startsWith(text) && text !== '')
    })
  })
})
