import assert from 'node:assert/strict'
import { tool } from '@langchain/core/tools'
import { createReactAgent } from '@langchain/langgraph/prebuilt'
import { ChatOpenAI } from '@langchain/openai'
import type OpenAI from 'openai'
import { forSuite } from '../support/suite.ts'
import { dataLines, startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

const rules = [
  { when: { last_role: 'tool' }, reply: { text: 'Sunny' } },
  { when: { user: 'weather' }, reply: { text: 'Asking', tool_calls: [{ name: 'weather', args: { city: 'Rome' } }] } },
  { reply: { text: 'an answer' } },
]
const parameters = { type: 'object', properties: { city: { type: 'string' } } }
const weather = { type: 'function', name: 'weather', parameters }

describe('the OpenAI mount: histories of clients', () => {
  const app = forSuite(() =>
    startOpenAiApp({
      actions: ['agents:*', 'sessions:*', 'generations:*', 'chats:*'],
      env: { PROVIDER_MAX_RETRIES: '0' },
    }),
  )
  let openai: OpenAI
  before(async () => {
    openai = app.openai(app.key.token)
  })

  const post = async (path: string, body: Json) => {
    const response = await app.send(path, body)
    const ignored = response.headers.get('x-svc-ignored-params')
    return { status: response.status, ignored, body: (await response.json()) as Json }
  }
  const double = () => `${app.providerId}/double-1`

  for (const stream of [false, true])
    it(`have answers with separate IDs after results of tools${stream ? ', streamed' : ''}`, async () => {
      const { agentId: model } = await app.scripted(rules, { accept_client_tools: true })
      const tools = [{ type: 'function', function: { name: 'weather', parameters } }]
      const chat = async (messages: Json[]) => {
        const response = await app.send('/chat/completions', { model, messages, tools, stream })
        if (!stream) return ((await response.json()) as Json).id
        const ids = new Set((await dataLines(response)).flatMap(line => (line === '[DONE]' ? [] : JSON.parse(line).id)))
        assert.equal(ids.size, 1)
        return [...ids][0]
      }
      const user = { role: 'user', content: 'weather' }
      const first = await openai.chat.completions.create({ model, messages: [user], tools, stream: false } as any)
      const [{ message }] = first.choices
      const result = { role: 'tool', tool_call_id: message.tool_calls![0]!.id, content: 'sun' }
      const second = await chat([user, message as Json, result])
      assert.match(second, /^chatcmpl_/)
      assert.notEqual(second, first.id)
      assert.ok(second.startsWith(first.id), 'it is the same turn')

      const asked = await openai.responses.create({ model, input: 'weather', tools: [weather] } as any)
      const call = asked.output.find(({ type }) => type === 'function_call') as Json
      const output = { type: 'function_call_output', call_id: call.call_id, output: 'sun' }
      const body: Json = { model, previous_response_id: asked.id, input: [output], tools: [weather] }
      let answered: Json
      if (stream) {
        const lines = await dataLines(await app.send('/responses', { ...body, stream }))
        answered = JSON.parse(lines.at(-1)!).response
      } else answered = await openai.responses.create(body as any)
      assert.match(answered.id, /^resp_/)
      assert.notEqual(answered.id, asked.id)
      const read = await openai.responses.retrieve(answered.id)
      assert.deepEqual([read.id, read.output_text], [answered.id, 'Sunny'])
      assert.deepEqual(
        read.output.map(({ id }) => id),
        answered.output.map(({ id }: Json) => id),
      )
      assert.equal((await openai.responses.retrieve(asked.id)).output_text, 'AskingSunny')
      const next = await openai.responses.create({ model, previous_response_id: answered.id, input: 'and now?' })
      assert.equal(next.output_text, 'an answer')
    })

  for (const useResponsesApi of [false, true])
    it(`come from LangGraph, with a tool of the client (${useResponsesApi ? 'responses' : 'chat completions'})`, async () => {
      const { agentId } = await app.scripted(rules, { accept_client_tools: true })
      const asked: unknown[] = []
      const weatherTool = tool(
        args => {
          asked.push(args)
          return 'sun'
        },
        { name: 'weather', description: 'The weather', schema: parameters as { type: 'object' } },
      )
      for (const model of [agentId, double()]) {
        const llm = new ChatOpenAI({
          model,
          apiKey: app.key.token as string,
          useResponsesApi,
          configuration: { baseURL: `${app.url}/openai/v1` },
        })
        const graph = createReactAgent({ llm, tools: [weatherTool] })
        const { messages } = await graph.invoke({
          messages: [{ role: 'user', content: model === agentId ? 'weather' : 'Hello' }],
        })
        const answers = messages.filter(message => message.getType() === 'ai')
        assert.equal(new Set(answers.map(({ id }) => id)).size, answers.length)
        assert.equal((answers.at(-1)?.text ?? '') !== '', true)
        if (model !== agentId) continue
        assert.deepEqual([asked, answers.length, answers[1]?.text], [[{ city: 'Rome' }], 2, 'Sunny'])
        const streamed: string[] = []
        for await (const [message] of await graph.stream(
          { messages: [{ role: 'user', content: 'weather again' }] },
          { streamMode: 'messages' },
        ))
          if (message.getType() === 'ai') streamed.push(message.text)
        assert.match(streamed.join(''), /Asking.*Sunny/)
      }
    })

  it('have arguments as they were given out, also where these are no JSON', async () => {
    const cut = '{"city":"Par'
    const chat = (name: string, args: string) => [
      { role: 'user', content: 'weather' },
      { role: 'assistant', tool_calls: [{ id: 'call_1', type: 'function', function: { name, arguments: args } }] },
      { role: 'tool', tool_call_id: 'call_1', content: 'cut' },
    ]
    const items = (args: string) => [
      { role: 'user', content: 'weather' },
      { type: 'function_call', call_id: 'call_1', name: 'weather', arguments: args },
      { type: 'function_call_output', call_id: 'call_1', output: 'cut' },
    ]
    for (const args of [cut, '[1]', '5', '']) {
      assert.equal((await post('/chat/completions', { model: double(), messages: chat('weather', args) })).status, 200)
      assert.equal((await post('/responses', { model: double(), input: items(args) })).status, 200)
    }
    const { body } = await app.key.post('/chat/completions', {
      ai_provider_id: app.providerId,
      messages: chat('weather', cut),
    })
    assert.equal(body.choices?.length, 1, JSON.stringify(body))
  })

  it('are refused by the names of the fields of their route', async () => {
    const result = { type: 'function_call_output', call_id: 'call_9', output: 'x' }
    const { body } = await post('/responses', { model: double(), input: ['Hello', result].map(toItem) })
    assert.equal(body.error.param, 'input[1].call_id')
    const call = { type: 'function_call', call_id: 'call_1', name: 'weather', arguments: '{}' }
    const open = await post('/responses', { model: double(), input: [toItem('Hello'), call] })
    assert.equal(open.body.error.param, 'input')
    const { agentId } = await app.scripted(rules)
    const empty = await app.send(
      '/responses',
      { model: agentId, input: [{ role: 'user', content: ' ' }] },
      { headers: { 'X-Svc-Session-Key': 'blank' } },
    )
    assert.deepEqual([empty.status, ((await empty.json()) as Json).error.param], [400, 'input'])
    const malformed = await post('/responses', { model: double(), input: [{ type: 'function_call', name: 'x' }] })
    assert.equal(malformed.status, 400)
  })
  const toItem = (item: unknown) => (typeof item === 'string' ? { role: 'user', content: item } : item)

  it('and what only their vendor has are taken, and named as ignored', async () => {
    const model = double()
    const responses = await post('/responses', {
      model,
      tools: [{ ...weather, strict: true }, { type: 'custom', name: 'shell' }, { type: 'web_search' }],
      tool_choice: { type: 'custom', name: 'shell' },
      input: [
        { role: 'user', content: 'Hello' },
        { type: 'web_search_call', id: 'ws_1', status: 'completed', action: { type: 'search', query: 'x' } },
        { type: 'custom_tool_call', call_id: 'call_1', name: 'shell', input: 'ls' },
        {
          type: 'custom_tool_call_output',
          call_id: 'call_1',
          output: [
            { type: 'input_text', text: 'a.txt' },
            { type: 'input_image', image_url: 'data:image/png;base64,AA==' },
          ],
        },
        { type: 'mcp_list_tools', id: 'mcp_1', tools: [] },
        { role: 'user', content: 'And now?' },
      ],
    })
    assert.equal(responses.status, 200, JSON.stringify(responses.body))
    const expected = 'tools, tools.strict, tool_choice, input.web_search_call, output.input_image, input.mcp_list_tools'
    assert.equal(responses.ignored, `${expected}, vendor_tools.web_search`)
    const chat = await post('/chat/completions', {
      model,
      tools: [
        { type: 'function', function: { name: 'weather', strict: true, parameters } },
        { type: 'custom', custom: { name: 'shell' } },
      ],
      tool_choice: { type: 'custom', custom: { name: 'shell' } },
      messages: [
        { role: 'user', content: 'Hello' },
        { role: 'assistant', tool_calls: [{ id: 'call_1', type: 'custom', custom: { name: 'shell', input: 'ls' } }] },
        { role: 'tool', tool_call_id: 'call_1', content: 'a.txt' },
        { role: 'user', content: 'And now?' },
      ],
    })
    assert.equal(chat.status, 200, JSON.stringify(chat.body))
    assert.equal(chat.ignored, 'tools, tool_choice, tools.strict')
  })

  it('name the field of a result without a call', async () => {
    const pathOf = async (message: object) =>
      (await post('/chat/completions', { model: double(), messages: [message] })).body.error.param
    assert.equal(await pathOf({ role: 'function', name: 'weather', content: 'sun' }), 'messages[0].name')
    assert.equal(await pathOf({ role: 'tool', tool_call_id: 'x', content: 'sun' }), 'messages[0].tool_call_id')
  })

  it('may have every kind of message and item that the vendor takes', async () => {
    const model = double()
    const user = { role: 'user', content: 'Hello' }
    const call = { id: 'call_1', type: 'function', function: { name: 'weather', arguments: '{}' } }
    const chats: Json[][] = [
      [
        user,
        { role: 'assistant', content: null, function_call: { name: 'weather', arguments: '{}' } },
        { role: 'function', name: 'weather', content: 'sun' },
      ],
      [
        user,
        { role: 'assistant', content: null, tool_calls: [call] },
        { role: 'tool', tool_call_id: 'call_1', content: [{ type: 'text', text: 'sun' }] },
      ],
      [user, { role: 'assistant', content: [{ type: 'refusal', refusal: 'no' }] }],
      [
        user,
        { role: 'assistant', content: 'x', refusal: 'no', audio: { id: 'audio_1' }, annotations: [], name: 'helper' },
      ],
      [user, { role: 'assistant', content: [{ type: 'text', text: 'x' }], reasoning_content: 'hm' }],
      [{ role: 'developer', content: [{ type: 'text', text: 'Be kind' }], name: 'dev' }],
      [{ role: 'user', name: 'ann', content: [{ type: 'input_audio', input_audio: { data: 'AA==', format: 'wav' } }] }],
    ]
    const refused: unknown[] = []
    for (const messages of chats) {
      const { status, body } = await post('/chat/completions', { model, messages: [...messages, user] })
      if (status !== 200) refused.push([messages, body])
    }
    const functionCall = { type: 'function_call', call_id: 'call_1', name: 'weather', arguments: '{}' }
    const items: Json[][] = [
      [
        functionCall,
        { type: 'function_call_output', call_id: 'call_1', output: [{ type: 'input_text', text: 'sun' }] },
      ],
      [
        { ...functionCall, id: 'fc_1', status: 'completed' },
        { type: 'function_call_output', id: 'fco_1', status: 'completed', call_id: 'call_1', output: 'sun' },
      ],
      [
        { type: 'reasoning', id: 'rs_1', summary: [], encrypted_content: 'x' },
        { role: 'assistant', content: 'x' },
      ],
      [
        {
          type: 'message',
          id: 'msg_1',
          status: 'completed',
          role: 'assistant',
          content: [{ type: 'output_text', text: 'x', annotations: [], logprobs: [] }],
        },
      ],
      [{ type: 'message', role: 'assistant', content: [{ type: 'refusal', refusal: 'no' }] }],
      ...[
        { type: 'file_search_call', id: 'fs_1', status: 'completed', queries: ['x'], results: null },
        {
          type: 'computer_call',
          id: 'cu_1',
          call_id: 'c',
          action: { type: 'wait' },
          pending_safety_checks: [],
          status: 'completed',
        },
        { type: 'computer_call_output', call_id: 'c', output: { type: 'computer_screenshot', image_url: 'x' } },
        { type: 'image_generation_call', id: 'ig_1', status: 'completed', result: 'AA==' },
        { type: 'code_interpreter_call', id: 'ci_1', status: 'completed', code: '1', container_id: 'c', outputs: [] },
        {
          type: 'local_shell_call',
          id: 'ls_1',
          call_id: 'c',
          action: { type: 'exec', command: ['ls'] },
          status: 'completed',
        },
        { type: 'shell_call', call_id: 'c', action: { commands: ['ls'] } },
        { type: 'apply_patch_call', call_id: 'c', operation: { type: 'delete_file', path: 'x' }, status: 'completed' },
        { type: 'mcp_call', id: 'mcp_1', name: 'x', server_label: 's', arguments: '{}', output: 'y' },
        { type: 'mcp_approval_request', id: 'ar_1', name: 'x', server_label: 's', arguments: '{}' },
        { type: 'compaction', id: 'cmp_1', encrypted_content: 'x' },
      ].map(item => [item]),
    ]
    for (const input of items) {
      const { status, body } = await post('/responses', { model, input: [user, ...input, user] })
      if (status !== 200) refused.push([input, body])
    }
    assert.deepEqual(refused, [])
  })

  it('have strict tools, which vendors that constrain calls receive if the schema qualifies', async () => {
    const closed = { ...parameters, required: ['city'], additionalProperties: false }
    const chatTool = (name: string, schema: Json) => ({
      type: 'function',
      function: { name, strict: true, parameters: schema },
    })
    const lane = await app.scripted([], { accept_client_tools: true })
    const route = (await app.key.get(`/agents/${lane.agentId}`)).body.model
    const strictnessOf = async () =>
      (await lane.requests()).at(-1)!.body.tools.map((tool: Json) => [tool.function.name, tool.function.strict])
    const messages = [{ role: 'user', content: 'Hello' }]
    for (const model of [`${app.providerId}/${route}`, lane.agentId])
      for (const stream of [false, true]) {
        const fitting = await app.send('/chat/completions', {
          model,
          messages,
          stream,
          tools: [chatTool('weather', closed), { type: 'function', function: { name: 'free', parameters } }],
        })
        await fitting.text()
        assert.deepEqual([fitting.status, fitting.headers.get('x-svc-ignored-params')], [200, null])
        assert.deepEqual(await strictnessOf(), [
          ['weather', true],
          ['free', undefined],
        ])
        const open = await app.send('/responses', {
          model,
          input: 'Hello',
          stream,
          tools: [
            { ...weather, strict: true },
            { type: 'function', name: 'closed', strict: true, parameters: closed },
          ],
        })
        await open.text()
        assert.deepEqual([open.status, open.headers.get('x-svc-ignored-params')], [200, 'tools.strict'])
        assert.deepEqual(await strictnessOf(), [
          ['weather', undefined],
          ['closed', true],
        ])
      }
  })

  it('may be a prompt of the older completions', async () => {
    const { agentId } = await app.scripted(rules)
    for (const model of [agentId, double()]) {
      const made = await openai.completions.create({ model, prompt: 'Hello', max_tokens: 50, echo: true })
      assert.match(made.id, /^cmpl_/)
      assert.deepEqual([made.object, made.choices[0]!.finish_reason], ['text_completion', 'stop'])
      assert.ok(made.choices[0]!.text.length > 0)
      const pieces = await openai.completions.create({ model, prompt: ['Hello'], stream: true })
      let text = ''
      for await (const { choices } of pieces) text += choices[0]?.text ?? ''
      assert.equal(text, made.choices[0]!.text)
    }
    const { ignored } = await post('/completions', { model: double(), prompt: 'Hello', echo: true, suffix: 'x' })
    assert.equal(ignored, 'suffix, echo')
    const many = await post('/completions', { model: double(), prompt: ['a', 'b'] })
    assert.deepEqual([many.status, many.body.error.param], [400, 'prompt'])
  })
})
