import assert from 'node:assert/strict'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { streamText } from 'ai'
import pg from 'pg'
import { z } from 'zod'
import { sql, voidStatement } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { dataLines, startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

const ACTIONS = ['chats:CreateChatCompletion', 'agents:CreateAgentGeneration']

describe('the OpenAI mount: models and completions', () => {
  const app = forSuite(() => startOpenAiApp({ workers: [], actions: ACTIONS, env: { PROVIDER_MAX_RETRIES: '0' } }))
  let key: string
  const put = (lane: string, ...rules: Json[]) => app.lanes.put(lane, { rules } as never)
  /** A chat on a lane of the model double. */
  const chatOn = (lane: string, fields: Json = {}) => app.chat({ model: `${lane}/m`, ...fields })
  const requests = async (lane: string): Promise<Json[]> =>
    (await app.lanes.read('GET', `/control/requests?lane=${lane}`)).data
  /** Statuses of the audit entries of completions of a chat. */
  const audited = (chatId: string) =>
    app.pool.anyFirst(
      sql.type(z.object({ status: z.int() }))`
        select status from audit_entries
        where action = 'chats:CreateChatCompletion' and resource_public_id = ${chatId} order by status`,
    )
  const user = (content: unknown) => ({ role: 'user' as const, content: content as string })

  before(async () => {
    key = app.key.token as string
  })

  describe('models', () => {
    it('lists agents, chats, routes and models that the key may use, and no other project', async () => {
      const chat = await app.chat({ name: 'Support' })
      const route = await app.admin.post('/model-routes', {
        project_id: app.projectId,
        name: 'r',
        targets: [{ ai_provider_id: app.providerId, model: 'm' }],
      })
      assert.equal(route.status, 201, JSON.stringify(route.body))
      const other = await app.project()
      await app.admin.post('/agents', { project_id: other.id, name: 'foreign' })
      const { data } = await app.openai(key).models.list()
      assert.deepEqual(
        data.map(({ id }) => id).sort(),
        [app.agentId, chat.id, route.body.id, `${app.providerId}/double-1`].sort(),
      )
      const listed = data.find(({ id }) => id === chat.id) as Json
      assert.deepEqual(
        [listed.object, listed.owned_by, listed.name, listed.kind, typeof listed.created],
        ['model', 'project', 'Support', 'chat', 'number'],
      )
    })

    it('lists the other models that the record of a provider lists, each once', async () => {
      const catalog = await app.projectWith(['chats:CreateChatCompletion'])
      const provider = await app.admin.post('/ai-providers', {
        project_id: catalog.id,
        name: 'catalog',
        provider: 'custom',
        default_model: 'm-1',
        base_url: `${app.double.url}/v1`,
        config: { models: { 'm-1': { input: ['text'] }, 'm/2': { input: ['text', 'image'] } } },
      })
      assert.equal(provider.status, 201, JSON.stringify(provider.body))
      const client = app.openai(catalog.key.token)
      const { data } = await client.models.list()
      assert.deepEqual(data.map(({ id }) => id).sort(), [`${provider.body.id}/m-1`, `${provider.body.id}/m/2`])
      assert.equal((await client.models.retrieve(`${provider.body.id}/m/2`)).id, `${provider.body.id}/m/2`)
    })

    it('are cached for a credential, but never a failed read', async () => {
      const cached = await app.projectWith(['chats:CreateChatCompletion'])
      const client = app.openai(cached.key.token)
      const rename = (from: string, to: string) =>
        app.pool.query(voidStatement`alter table ${sql.identifier([from])} rename to ${sql.identifier([to])}`)
      await rename('model_routes', 'model_routes_away')
      try {
        const failed = await Promise.allSettled([client.models.list(), client.models.list()])
        assert.deepEqual(
          failed.map(each => (each.status === 'rejected' ? each.reason.status : 200)),
          [500, 500],
        )
      } finally {
        await rename('model_routes_away', 'model_routes')
      }
      assert.deepEqual((await client.models.list()).data, [])
      await app.admin.post('/chats', { project_id: cached.id, name: 'new' })
      assert.deepEqual((await client.models.list()).data, [])
    })

    it('lists only what the policies of the key allow', async () => {
      const sessions = await app.projectWith(['sessions:SendSessionMessage'])
      assert.deepEqual((await app.openai(sessions.key.token).models.list()).data, [])
      const reader = await app.projectWith(['agents:GetAgent', 'chats:GetChat'])
      await app.admin.post('/ai-providers', {
        project_id: reader.id,
        name: 'p',
        provider: 'custom',
        default_model: 'm',
        base_url: `${app.double.url}/v1`,
      })
      assert.deepEqual((await app.openai(reader.key.token).models.list()).data, [])
    })

    it('gives one model by its ID, an agent also by its name, and 404 for others', async () => {
      const client = app.openai(key)
      assert.equal((await client.models.retrieve(app.agentId)).id, app.agentId)
      assert.equal((await client.models.retrieve('agent:agent')).id, 'agent:agent')
      assert.equal((await client.models.retrieve(`${app.providerId}/any`)).id, `${app.providerId}/any`)
      await assert.rejects(client.models.retrieve('gpt-5'), (error: Json) => {
        assert.deepEqual([error.status, error.param, error.type], [404, 'model', 'invalid_request_error'])
        return true
      })
    })
  })

  describe('completions', () => {
    it('pass system texts, settings and effort to the model, and name ignored fields', async () => {
      await put('settings', { reply: { text: 'ok' } })
      const chat = await chatOn('settings', { instructions: 'Stored' })
      const response = await app.send('/chat/completions', {
        model: chat.id,
        messages: [
          { role: 'system', content: 'Be brief' },
          { role: 'developer', content: [{ type: 'text', text: 'Use French' }] },
          user('hi'),
        ],
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        reasoning_effort: 'low',
        verbosity: 'low',
        logit_bias: { 7: 5 },
        temperature: null,
        store: true,
        invented: 1,
      })
      assert.equal(response.status, 200, await response.clone().text())
      assert.equal(response.headers.get('x-svc-ignored-params'), 'invented')
      const [{ body }] = await requests('settings')
      assert.equal(body.messages[0].content, 'Be brief\n\nUse French')
      assert.deepEqual(
        [body.presence_penalty, body.frequency_penalty, body.reasoning_effort, body.verbosity, body.logit_bias],
        [0.5, 0.25, 'low', 'low', { 7: 5 }],
      )
      assert.equal('temperature' in body, false)
    })

    it('answer as the openai package reads them: text, usage, tools and their results', async () => {
      await put(
        'tools',
        { when: { last_role: 'tool' }, reply: { text: 'It is sunny' } },
        { reply: { tool_calls: [{ name: 'weather', args: { city: 'Rome' }, id: 'call_1' }] } },
      )
      const chat = await chatOn('tools')
      const client = app.openai(key)
      const tools = [
        {
          type: 'function' as const,
          function: { name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } },
        },
      ]
      const first = await client.chat.completions.create({ model: chat.id, messages: [user('Weather?')], tools })
      const [call] = first.choices[0].message.tool_calls as Json[]
      assert.deepEqual(
        [first.choices[0].finish_reason, call.id, JSON.parse(call.function.arguments)],
        ['tool_calls', 'call_1', { city: 'Rome' }],
      )
      const second = await client.chat.completions.create({
        model: chat.id,
        messages: [
          user('Weather?'),
          first.choices[0].message,
          { role: 'tool', tool_call_id: 'call_1', content: 'sunny' },
        ],
        tools,
      })
      assert.equal(second.choices[0].message.content, 'It is sunny')
      assert.ok((second.usage?.total_tokens ?? 0) > 0)
      assert.equal(second.usage?.prompt_tokens_details?.cached_tokens, 0)
    })

    it('accept the old form of functions', async () => {
      await put('functions', { reply: { tool_calls: [{ name: 'f', args: {} }] } })
      const chat = await chatOn('functions')
      const response = await app.send('/chat/completions', {
        model: chat.id,
        messages: [
          user('a'),
          { role: 'assistant', content: null, function_call: { name: 'f', arguments: '{}' } },
          { role: 'function', name: 'f', content: 'done' },
        ],
        functions: [{ name: 'f', parameters: { type: 'object', properties: {} } }],
        function_call: { name: 'f' },
      })
      assert.equal(response.status, 200, await response.clone().text())
      const [{ body }] = await requests('functions')
      assert.equal(body.tools[0].function.name, 'f')
      assert.deepEqual(body.tool_choice, { type: 'function', function: { name: 'f' } })
      assert.deepEqual(
        body.messages.map(({ role }: Json) => role),
        ['user', 'assistant', 'tool'],
      )
    })

    it('stream chunks with the usage on request, as the openai package and the AI SDK read them', async () => {
      await put('stream', { reply: { text: 'one two three' } })
      const chat = await chatOn('stream')
      const stream = await app.openai(key).chat.completions.create({
        model: chat.id,
        messages: [user('count')],
        stream: true,
        stream_options: { include_usage: true },
      })
      let text = ''
      let usage: Json | null | undefined
      const ids = new Set<string>()
      for await (const chunk of stream) {
        text += chunk.choices[0]?.delta.content ?? ''
        ids.add(chunk.id)
        if (chunk.usage) usage = chunk.usage
      }
      assert.equal(text, 'one two three')
      assert.equal(ids.size, 1)
      assert.ok(usage && usage.total_tokens > 0)
      const sdk = createOpenAICompatible({ name: 'm', baseURL: app.base, apiKey: key, includeUsage: true })
      const streamed = streamText({ model: sdk(chat.id), prompt: 'count' })
      assert.equal(await streamed.text, 'one two three')
      assert.ok(((await streamed.usage).totalTokens ?? 0) > 0)
    })

    it('run on model routes and on models of providers', async () => {
      await put('routed', { reply: { text: 'by route' } })
      const route = await app.admin.post('/model-routes', {
        project_id: app.projectId,
        name: 'routed',
        targets: [{ ai_provider_id: app.providerId, model: 'routed/m' }],
      })
      const client = app.openai(key)
      for (const model of [route.body.id, `${app.providerId}/routed/m`]) {
        const said = await client.chat.completions.create({ model, messages: [user('a')] })
        assert.equal(said.choices[0].message.content, 'by route')
      }
    })

    it('pass images to the model, and refuse other files as images', async () => {
      await put('images', { reply: { text: 'a pixel' } })
      const chat = await chatOn('images')
      const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
      const image = (url: string) => [
        { type: 'text', text: 'Describe it' },
        { type: 'image_url', image_url: { url, detail: 'low' } },
      ]
      const good = await app.send('/chat/completions', {
        model: chat.id,
        messages: [user(image(`data:image/png;base64,${pixel}`))],
      })
      assert.equal(good.status, 200, await good.clone().text())
      const [{ body }] = await requests('images')
      assert.match(JSON.stringify(body.messages), /image_url.*data:image\/png;base64,iVBOR/)
      const bad = await app.send('/chat/completions', {
        model: chat.id,
        messages: [user(image(`data:text/html;base64,${pixel}`))],
      })
      assert.equal(bad.status, 400)
      assert.equal(((await bad.json()) as Json).error.param, 'messages[0].content[1].image_url')
    })

    it('stream before their audit entry is committed, and end after it', async () => {
      const chat = await chatOn('audit')
      const locking = new pg.Client(app.databaseUrlOf(app.projectId))
      await locking.connect()
      try {
        await locking.query('begin; lock table audit_entries in share mode')
        const response = await app.send('/chat/completions', { model: chat.id, messages: [user('a')], stream: true })
        let text = ''
        let isEnded = false
        const reading = (async () => {
          for await (const chunk of (response.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream()))
            text += chunk
          isEnded = true
        })()
        await eventually(() => text.includes('[DONE]'))
        for (let n = 0; n < 5; n++) assert.equal((await fetch(`${app.url}/healthz`)).status, 200)
        assert.deepEqual([isEnded, await audited(chat.id)], [false, []])
        await locking.query('rollback')
        await reading
        assert.deepEqual(await audited(chat.id), [200])
      } finally {
        await locking.end()
      }
    })

    it('are audited if their clients leave and the process ends', async () => {
      const own = await startOpenAiApp({ workers: [], actions: ACTIONS, env: { PROVIDER_MAX_RETRIES: '0' } })
      const locking = new pg.Client(own.databaseUrlOf(own.projectId))
      await locking.connect()
      try {
        const chat = await own.chat({ model: 'double-1' })
        await locking.query('begin; lock table audit_entries in share mode')
        // The second entry waits in this process for the statement of the first.
        for (let n = 0; n < 2; n++) {
          const { body } = await own.send('/chat/completions', { model: chat.id, messages: [user('a')], stream: true })
          const reader = (body as ReadableStream<Uint8Array>).getReader()
          assert.equal((await reader.read()).done, false)
          await reader.cancel()
        }
        const closed = own.services.close()
        // Without the wait for entries, the pool is closed within a few round trips.
        for (let n = 0; n < 500 && own.services.pool.state().state === 'ACTIVE'; n++) await locking.query('select 1')
        await locking.query('rollback')
        await closed
        const { rows } = await locking.query('select status from audit_entries where resource_public_id = $1', [
          chat.id,
        ])
        assert.deepEqual(
          rows.filter(({ status }) => status === 200),
          [{ status: 200 }, { status: 200 }],
        )
      } finally {
        await locking.end()
        await own.close()
      }
    })

    it('are metered even if the database refuses their audit entry', async () => {
      const chat = await chatOn('unaudited')
      const metered = () =>
        app.pool.oneFirst(
          sql.type(z.object({ n: z.int() }))`select count(*)::int as n from usage_events where source = 'chat'`,
        )
      const before = await metered()
      const owner = new pg.Client(app.databaseUrlOf(app.projectId))
      await owner.connect()
      try {
        await owner.query(
          `alter table audit_entries add constraint refused check (resource_public_id is distinct from '${chat.id}') not valid`,
        )
        const made = await app.send('/chat/completions', { model: chat.id, messages: [user('a')] })
        assert.equal(made.status, 200, await made.text())
        assert.deepEqual([(await metered()) - before, await audited(chat.id)], [1, []])
      } finally {
        await owner.query('alter table audit_entries drop constraint if exists refused')
        await owner.end()
      }
    })

    it('check structured answers, also streamed: a violation is an error frame without [DONE]', async () => {
      await put(
        'schema',
        { when: { user: 'good' }, reply: { text: '{"n": 1}' } },
        { when: { user: 'bad' }, reply: { text: '{"n": "x"}' } },
      )
      const chat = await chatOn('schema')
      const schema = { type: 'object', properties: { n: { type: 'number' } }, required: ['n'] }
      const response_format = { type: 'json_schema' as const, json_schema: { name: 'answer', schema } }
      const ask = (text: string, stream: boolean) =>
        app.send('/chat/completions', { model: chat.id, messages: [user(text)], response_format, stream })
      assert.equal((await ask('good', false)).status, 200)
      assert.equal((await ask('bad', false)).status, 422)
      assert.deepEqual(await audited(chat.id), [200, 502])
      const good = await dataLines(await ask('good', true))
      assert.equal(good.at(-1), '[DONE]')
      const pieces = good.slice(0, -1).map(line => JSON.parse(line).choices[0].delta.content ?? '')
      assert.deepEqual(JSON.parse(pieces.join('')), { n: 1 })
      const bad = await dataLines(await ask('bad', true))
      assert.equal(bad.includes('[DONE]'), false)
      assert.equal(JSON.parse(bad.at(-1) as string).error.code, 'OUTPUT_SCHEMA_VALIDATION_FAILED')
      const whole = await ask('bad', false)
      const { error } = (await whole.json()) as Json
      assert.deepEqual(
        [whole.status, error.type, whole.headers.get('x-should-retry')],
        [422, 'invalid_response_error', 'false'],
      )
      const object = await app.send('/chat/completions', {
        model: chat.id,
        messages: [user('good')],
        response_format: { type: 'json_object' },
      })
      assert.equal(object.status, 200)
      assert.deepEqual((await requests('schema')).at(-1)?.body.response_format, { type: 'json_object' })
    })

    it('refuse a known field of another type, and 404 an unknown model', async () => {
      const chat = await chatOn('types')
      for (const [fields, param] of [
        [{ temperature: 'hot' }, 'temperature'],
        [{ n: 2 }, 'n'],
        [{ messages: [] }, 'messages'],
        [{ tools: [{ type: 'function', function: { name: 'a b' } }] }, 'tools[0].function.name'],
      ] as const) {
        const refused = await app.send('/chat/completions', { model: chat.id, messages: [user('a')], ...fields })
        const { error } = (await refused.json()) as Json
        assert.deepEqual([refused.status, error.param, error.type], [400, param, 'invalid_request_error'])
        assert.equal(refused.headers.get('x-should-retry'), 'false')
      }
      for (const model of ['gpt-5', 'chat_00000000000000000000000000', 'route_00000000000000000000000000']) {
        const refused = await app.send('/chat/completions', { model, messages: [user('a')] })
        assert.deepEqual([refused.status, ((await refused.json()) as Json).error.param], [404, 'model'], model)
      }
    })
  })

  describe('errors', () => {
    it('have the type of their class, the code, hint and documentation of the platform, and a request ID', async () => {
      const chat = await chatOn('classes')
      const anonymous = await app.send('/chat/completions', { model: chat.id, messages: [user('a')] }, { token: null })
      const { error } = (await anonymous.json()) as Json
      assert.deepEqual([anonymous.status, error.type, error.code], [401, 'authentication_error', 'UNAUTHORIZED'])
      assert.ok(error.hint && error.docs_url && anonymous.headers.get('x-request-id'))
      const other = await app.projectWith(['agents:CreateAgentGeneration'])
      const hidden = await app.send(
        '/chat/completions',
        { model: chat.id, messages: [user('a')] },
        { token: other.key.token },
      )
      assert.ok([403, 404].includes(hidden.status))
      for (const [method, path, message] of [
        ['POST', '/assistants', /^No route POST \/openai\/v1\/assistants$/],
        ['DELETE', '/models', /^No route DELETE \/openai\/v1\/models; the path accepts GET$/],
        ['PUT', '/files', /; the path accepts POST, GET$/],
      ] as const) {
        const unrouted = await fetch(app.base + path, { method, headers: { authorization: `Bearer ${key}` } })
        const { error } = (await unrouted.json()) as Json
        assert.deepEqual(
          [unrouted.status, error.type, error.code],
          [404, 'invalid_request_error', 'RESOURCE_NOT_FOUND'],
        )
        assert.match(error.message, message)
        assert.match(error.hint, /docs\/openai\.md/)
        assert.equal(unrouted.headers.get('x-should-retry'), 'false')
      }
    })

    it('of a vendor without a Retry-After get one of five seconds', async () => {
      await put('busy', { reply: { error: { status: 429 } } })
      const chat = await chatOn('busy')
      const response = await app.send('/chat/completions', { model: chat.id, messages: [user('a')] })
      assert.deepEqual([response.status, response.headers.get('retry-after')], [429, '5'])
    })
  })
})
