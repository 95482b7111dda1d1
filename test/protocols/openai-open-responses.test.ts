import assert from 'node:assert/strict'
import { z } from 'zod'
import { voidStatement } from '#core/db/sql.ts'
import { forSuite } from '../support/suite.ts'
import { startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

/** The schemas of responses and stream events in the Open Responses specification of 2026-04-24. */
const itemStatus = z.enum(['in_progress', 'completed', 'incomplete'])
const OutputText = z.object({
  type: z.literal('output_text'),
  text: z.string(),
  annotations: z.array(z.unknown()),
  logprobs: z.array(z.unknown()).optional(),
})
const MessageItem = z.object({
  type: z.literal('message'),
  id: z.string(),
  status: itemStatus,
  role: z.literal('assistant'),
  content: z.array(OutputText),
})
const CallItem = z.object({
  type: z.literal('function_call'),
  id: z.string(),
  call_id: z.string(),
  name: z.string(),
  arguments: z.string(),
  status: itemStatus,
})
const Item = z.discriminatedUnion('type', [MessageItem, CallItem])
const Tool = z.strictObject({
  type: z.literal('function'),
  name: z.string(),
  description: z.string().nullable(),
  parameters: z.record(z.string(), z.unknown()).nullable(),
  strict: z.boolean().nullable(),
})
const Format = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('text') }),
  z.strictObject({ type: z.literal('json_object') }),
  z.strictObject({
    type: z.literal('json_schema'),
    name: z.string(),
    description: z.string().nullable(),
    schema: z.unknown(),
    strict: z.boolean(),
  }),
])
const mode = z.enum(['none', 'auto', 'required'])
const ResponseResource = z.object({
  id: z.string(),
  object: z.literal('response'),
  created_at: z.int(),
  completed_at: z.int().nullable(),
  status: z.enum(['queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled']),
  incomplete_details: z.object({ reason: z.string() }).nullable(),
  model: z.string(),
  previous_response_id: z.string().nullable(),
  instructions: z.string().nullable(),
  output: z.array(Item),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  tools: z.array(Tool),
  tool_choice: z.union([mode, z.object({ type: z.literal('function'), name: z.string() })]),
  truncation: z.enum(['auto', 'disabled']),
  parallel_tool_calls: z.boolean(),
  text: z.object({ format: Format, verbosity: z.enum(['low', 'medium', 'high']).optional() }),
  top_p: z.number(),
  presence_penalty: z.number(),
  frequency_penalty: z.number(),
  top_logprobs: z.int(),
  temperature: z.number(),
  reasoning: z.object({ effort: z.string().nullable(), summary: z.string().nullable() }).nullable(),
  usage: z
    .object({
      input_tokens: z.int(),
      output_tokens: z.int(),
      total_tokens: z.int(),
      input_tokens_details: z.object({ cached_tokens: z.int() }),
      output_tokens_details: z.object({ reasoning_tokens: z.int() }),
    })
    .nullable(),
  max_output_tokens: z.int().nullable(),
  max_tool_calls: z.int().nullable(),
  store: z.boolean(),
  background: z.boolean(),
  service_tier: z.string(),
  metadata: z.record(z.string(), z.unknown()),
  safety_identifier: z.string().nullable(),
  prompt_cache_key: z.string().nullable(),
})

const event = <T extends string, S extends z.ZodRawShape>(type: T, fields: S) =>
  z.object({ type: z.literal(type), sequence_number: z.int(), ...fields })
const item = { output_index: z.int(), item: Item }
const at = { item_id: z.string(), output_index: z.int() }
const part = { ...at, content_index: z.int() }
const Event = z.discriminatedUnion('type', [
  event('response.created', { response: ResponseResource }),
  event('response.in_progress', { response: ResponseResource }),
  event('response.completed', { response: ResponseResource }),
  event('response.incomplete', { response: ResponseResource }),
  event('response.failed', { response: ResponseResource }),
  event('response.output_item.added', item),
  event('response.output_item.done', item),
  event('response.content_part.added', { ...part, part: OutputText }),
  event('response.content_part.done', { ...part, part: OutputText }),
  event('response.output_text.delta', { ...part, delta: z.string(), logprobs: z.array(z.unknown()).optional() }),
  event('response.output_text.done', { ...part, text: z.string(), logprobs: z.array(z.unknown()).optional() }),
  event('response.function_call_arguments.delta', { ...at, delta: z.string() }),
  event('response.function_call_arguments.done', { ...at, name: z.string(), arguments: z.string() }),
])
type Event = z.output<typeof Event>

/** An item of an input. */
const message = (role: string, content: unknown) => ({ type: 'message', role, content })
const weather = {
  type: 'function',
  name: 'get_weather',
  description: 'Returns the weather at a place',
  parameters: { type: 'object', properties: { location: { type: 'string' } }, required: ['location'] },
}
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

const rules = [
  { when: { user: 'cut off' }, reply: { text: 'too lo', finish: 'length' } },
  { when: { user: 'fail' }, reply: { error: { status: 400, message: 'no' } } },
  { when: { user: 'break' }, reply: { text: 'one two', stream_error: { after: 1, message: 'gone' } } },
  { when: { last_role: 'tool' }, reply: { text: 'Sunny' } },
  {
    when: { user: 'weather' },
    reply: { text: 'Asking', tool_calls: [{ name: 'get_weather', args: { location: 'Rome' } }] },
  },
  { reply: { text: 'an answer' } },
]

describe('the OpenAI mount: Open Responses', () => {
  const app = forSuite(() =>
    startOpenAiApp({
      actions: ['agents:*', 'sessions:*', 'generations:*', 'chats:*', 'actors:*'],
      env: { PROVIDER_MAX_RETRIES: '0' },
    }),
  )
  /** An agent and a chat on the same lane. */
  let models: string[]
  let requests: () => Promise<Json[]>

  before(async () => {
    const scripted = await app.scripted(rules, { accept_client_tools: true })
    requests = scripted.requests
    const { model } = (await app.admin.get(`/agents/${scripted.agentId}`)).body
    models = [scripted.agentId, (await app.chat({ model })).id]
  })

  async function create(body: Json): Promise<z.output<typeof ResponseResource>> {
    const response = await app.send('/responses', body)
    const text = await response.text()
    assert.equal(response.status, 200, text)
    return ResponseResource.parse(JSON.parse(text))
  }

  /** Reads a stream: its events by their schema, numbered from 0, each named by its type, without [DONE]. */
  function eventsIn(text: string, from = 0): Event[] {
    const blocks = text.split('\n\n').filter(block => block.startsWith('event: '))
    assert.equal(text.includes('[DONE]'), false)
    return blocks.map((block, index) => {
      const [name, data] = block.split('\n').map(line => line.slice(line.indexOf(': ') + 2))
      const parsed = Event.parse(JSON.parse(data))
      assert.deepEqual([parsed.type, parsed.sequence_number], [name, from + index])
      return parsed
    })
  }
  async function stream(body: Json): Promise<Event[]> {
    const response = await app.send('/responses', { ...body, stream: true })
    const text = await response.text()
    assert.equal(response.status, 200, text)
    assert.match(response.headers.get('content-type') as string, /^text\/event-stream/)
    return eventsIn(text)
  }
  /** Requires that the events build the output of the last response: every item and part is opened, filled and closed. */
  function expectBuilt(events: Event[]): z.output<typeof ResponseResource> {
    const last = events.at(-1) as Event
    assert.ok('response' in last)
    assert.deepEqual(
      events.slice(0, 2).map(({ type }) => type),
      ['response.created', 'response.in_progress'],
    )
    for (const [index, expected] of last.response.output.entries()) {
      const own = events.filter(each => 'output_index' in each && each.output_index === index)
      const types = own.map(({ type }) => type.slice('response.'.length)).filter(type => !type.endsWith('.delta'))
      const deltas = own.map(each => ('delta' in each ? each.delta : '')).join('')
      const added = own[0]
      const done = own.at(-1)
      assert.ok(added.type === 'response.output_item.added' && done?.type === 'response.output_item.done')
      assert.equal(added.item.status, 'in_progress')
      assert.deepEqual(done.item, expected)
      if (expected.type === 'message') {
        assert.deepEqual(types, [
          'output_item.added',
          'content_part.added',
          'output_text.done',
          'content_part.done',
          'output_item.done',
        ])
        assert.equal(deltas, expected.content[0].text)
      } else {
        assert.deepEqual(types, ['output_item.added', 'function_call_arguments.done', 'output_item.done'])
        assert.equal(deltas, expected.arguments)
      }
      for (const each of own) if ('item_id' in each) assert.equal(each.item_id, expected.id)
    }
    return last.response
  }
  const textOf = ({ output }: z.output<typeof ResponseResource>): string =>
    output.flatMap(each => (each.type === 'message' ? each.content.map(({ text }) => text) : [])).join('')

  it('a text, a system message, several turns and an image are answered', async () => {
    for (const model of models) {
      const inputs = [
        [message('user', 'Say hello in three words.')],
        [message('system', 'Talk like a pirate.'), message('user', 'Say hello.')],
        [message('user', 'I am Ann.'), message('assistant', 'Hello Ann!'), message('user', 'Who am I?')],
        [
          message('user', [
            { type: 'input_text', text: 'Describe it' },
            { type: 'input_image', image_url: `data:image/png;base64,${PIXEL}` },
          ]),
        ],
      ]
      for (const input of inputs) {
        const made = await create({ model, input, store: false })
        assert.deepEqual(
          [made.status, textOf(made), made.error, made.incomplete_details],
          ['completed', 'an answer', null, null],
        )
        assert.ok(made.completed_at !== null && made.completed_at >= made.created_at)
      }
      assert.match(JSON.stringify((await requests()).at(-1)?.body.messages), /data:image\/png;base64,iVBOR/)
    }
  })

  it('streams build the response that their last event has', async () => {
    for (const model of models) {
      const response = expectBuilt(await stream({ model, input: [message('user', 'Count.')], store: false }))
      assert.deepEqual([response.status, textOf(response)], ['completed', 'an answer'])
      const called = expectBuilt(
        await stream({ model, input: [message('user', 'weather?')], tools: [weather], store: false }),
      )
      assert.deepEqual(
        called.output.map(({ type }) => type),
        ['message', 'function_call'],
      )
    }
  })

  it('a call of a tool is answered by its output, streamed with the item IDs that are stored', async () => {
    for (const streamed of [false, true]) {
      const [model] = models
      const input = [message('user', 'weather?')]
      const first = streamed
        ? expectBuilt(await stream({ model, input, tools: [weather] }))
        : await create({ model, input, tools: [weather] })
      const call = first.output.find(each => each.type === 'function_call')
      assert.ok(call && JSON.parse(call.arguments).location === 'Rome')
      const next = {
        model,
        previous_response_id: first.id,
        input: [{ type: 'function_call_output', call_id: call.call_id, output: 'sunny' }],
        tools: [weather],
      }
      const second = streamed ? expectBuilt(await stream(next)) : await create(next)
      assert.deepEqual([textOf(second), second.output.length], ['Sunny', 1])
      const stored = ResponseResource.parse(await (await get(`/responses/${second.id}`)).json())
      assert.ok(stored.output.some(({ id }) => id === second.output[0].id))
      const reference = { type: 'item_reference', id: second.output[0].id }
      const third = await create({ model, input: [message('user', 'a'), reference, message('user', 'b')] })
      assert.equal(textOf(third), 'an answer')
      const again = eventsIn(await (await get(`/responses/${second.id}?stream=true`)).text())
      assert.deepEqual(expectBuilt(again).output, second.output)
    }
  })

  it('responses repeat the settings of their request, streamed or not', async () => {
    const schema = { type: 'object', properties: {} }
    for (const model of models) {
      const sent = {
        instructions: 'Be kind',
        temperature: 0.25,
        top_p: 0.5,
        tools: [{ ...weather, strict: true }, { type: 'web_search' }],
        tool_choice: 'none',
        parallel_tool_calls: false,
        max_output_tokens: 100,
        metadata: { order: '17' },
        reasoning: { effort: 'low' },
        service_tier: 'flex',
        prompt_cache_key: 'cache',
        safety_identifier: 'ann',
        top_logprobs: 2,
        text: { format: { type: 'json_schema', name: 'answer', schema }, verbosity: 'low' },
      }
      const repeated = {
        ...sent,
        tools: [{ ...weather, strict: true }],
        reasoning: { effort: 'low', summary: null },
        text: {
          format: { type: 'json_schema', name: 'answer', description: null, schema, strict: false },
          verbosity: 'low',
        },
        store: false,
        background: false,
        previous_response_id: null,
      }
      const body = { model, input: 'cut off', store: false, ...sent }
      const events = await stream({ ...body, text: { verbosity: 'low' } })
      for (const each of [events[0], events.at(-1) as Event]) {
        assert.ok('response' in each)
        const { text, ...others } = repeated
        assert.deepEqual(pick(each.response, others), others)
        assert.deepEqual(each.response.text, { format: { type: 'text' }, verbosity: 'low' })
      }
      await app.lanes.put('schema', { rules: [{ reply: { text: '{}' } }] } as never)
      const structured =
        model === models[0] ? await app.agent({ model: 'schema/m' }) : (await app.chat({ model: 'schema/m' })).id
      assert.deepEqual(pick(await create({ ...body, model: structured }), repeated), repeated)
    }
  })

  it('an answer that was cut off is incomplete, with its last item', async () => {
    for (const model of models) {
      const whole = await create({ model, input: 'cut off', store: false })
      const built = expectBuilt(await stream({ model, input: 'cut off', store: false }))
      for (const { status, incomplete_details, output, completed_at } of [whole, built])
        assert.deepEqual(
          [status, incomplete_details, output[0].status, completed_at],
          ['incomplete', { reason: 'max_output_tokens' }, 'incomplete', null],
        )
    }
  })

  it('errors are a body before the stream, and response.failed in it', async () => {
    for (const model of models) {
      for (const stream of [false, true]) {
        const refused = await app.send('/responses', { model, input: 'fail', stream, store: false })
        const { error } = (await refused.json()) as Json
        assert.deepEqual([refused.status, error.type, typeof error.message], [400, 'invalid_request_error', 'string'])
      }
      const last = (await stream({ model, input: 'break', store: false })).at(-1)
      assert.ok(last?.type === 'response.failed' && last.response.status === 'failed' && last.response.error)
    }
    for (const [body, param] of [
      [{ input: 'a' }, 'model'],
      [{ model: models[0] }, 'input'],
      [{ model: models[0], input: [{ type: 'message', role: 'user' }] }, 'input'],
      [{ model: models[0], input: 'a', temperature: 'hot' }, 'temperature'],
    ] as const) {
      const refused = await app.send('/responses', body)
      const { error } = (await refused.json()) as Json
      assert.deepEqual([refused.status, error.type], [400, 'invalid_request_error'])
      assert.ok(String(error.param).startsWith(param), `${error.param} is not ${param}`)
    }
  })

  it('a stream is built again from the record when its frames are gone, also of a turn that was not streamed', async () => {
    const [model] = models
    const whole = await create({ model, input: 'hello' })
    const events = eventsIn(await (await get(`/responses/${whole.id}?stream=true`)).text())
    assert.deepEqual(expectBuilt(events).output, whole.output)
    const after = await (await get(`/responses/${whole.id}?stream=true&starting_after=3`)).text()
    assert.deepEqual(eventsIn(after, 4), events.slice(4))
    const beyond = await (await get(`/responses/${whole.id}?stream=true&starting_after=500`)).text()
    assert.match(beyond, /^event: response\.completed/m)
    const streamed = expectBuilt(await stream({ model, input: 'hello' }))
    await app.pool.query(voidStatement`
      delete from stream_frames where generation_id = ${streamed.id.replace('resp_', 'gen_')}`)
    const rebuilt = eventsIn(await (await get(`/responses/${streamed.id}?stream=true`)).text())
    assert.deepEqual(expectBuilt(rebuilt).output, streamed.output)
  })

  const get = (path: string) =>
    fetch(app.base + path, { headers: { authorization: `Bearer ${app.key.token as string}` } })
  const pick = (from: object, names: object): object =>
    Object.fromEntries(Object.keys(names).map(name => [name, (from as Json)[name]]))
})
