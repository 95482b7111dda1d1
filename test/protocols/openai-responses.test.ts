import assert from 'node:assert/strict'
import { createOpenAI } from '@ai-sdk/openai'
import { ChatOpenAI } from '@langchain/openai'
import { type ModelMessage, streamText } from 'ai'
import type OpenAI from 'openai'
import { type OpenAiApp, startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

const ACTIONS = ['agents:*', 'sessions:*', 'actors:*', 'generations:*', 'chats:*']

const rules = [
  { when: { last_role: 'tool' }, reply: { text: 'Sunny' } },
  { when: { user: 'weather' }, reply: { text: 'Asking', tool_calls: [{ name: 'weather', args: { city: 'Rome' } }] } },
  { reply: { text: 'an answer' } },
]
const weather = {
  type: 'function' as const,
  name: 'weather',
  strict: false,
  parameters: { type: 'object', properties: { city: { type: 'string' } } },
}

describe('the OpenAI mount: responses', () => {
  let app: OpenAiApp
  let openai: OpenAI

  before(async () => {
    app = await startOpenAiApp({ actions: ACTIONS, env: { PROVIDER_MAX_RETRIES: '0' } })
    openai = app.openai(app.key.token)
  })
  after(() => app?.close())

  const contentsSent = async (requests: () => Promise<Json[]>): Promise<string[]> =>
    (await requests()).at(-1)?.body.messages.map(({ content }: Json) => content)

  it('run an agent, and are read, listed by input and deleted', async () => {
    const { agentId } = await app.scripted(rules)
    const made = await openai.responses.create({ model: agentId, input: 'hello', instructions: 'Be kind' })
    assert.match(made.id, /^resp_/)
    assert.deepEqual([made.status, made.output_text, made.model], ['completed', 'an answer', agentId])
    assert.match(made.output[0].id as string, /^msg_/)
    assert.ok((made.usage?.total_tokens ?? 0) > 0)
    const read = await openai.responses.retrieve(made.id)
    assert.deepEqual([read.output_text, read.status], ['an answer', 'completed'])
    const items = await openai.responses.inputItems.list(made.id)
    assert.deepEqual(
      items.data.map((item: Json) => item.content[0].text),
      ['hello'],
    )
    await openai.responses.delete(made.id)
    await assert.rejects(openai.responses.retrieve(made.id), { status: 404 })
  })

  it('run chats and models of providers', async () => {
    const chat = await app.chat({ instructions: 'Stored' })
    const made = await openai.responses.create({ model: chat.id, input: 'hello', store: false })
    assert.equal(made.status, 'completed')
    assert.ok(made.output_text.length > 0)
  })

  it('stream their events in order, also again after an event', async () => {
    const { agentId } = await app.scripted(rules)
    const stream = await openai.responses.create({ model: agentId, input: 'hello', stream: true })
    const events: Json[] = []
    for await (const event of stream) events.push(event)
    assert.deepEqual(
      events.map(({ sequence_number }) => sequence_number),
      events.map((_event, index) => index),
    )
    const types = events.map(({ type }) => type).filter(type => type !== 'response.output_text.delta')
    assert.deepEqual(types, [
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.completed',
    ])
    const { response } = events.at(-1) as Json
    assert.equal(response.output[0].content[0].text, 'an answer')
    const again = await openai.responses.retrieve(response.id, { stream: true, starting_after: 3 })
    const rest: Json[] = []
    for await (const event of again) rest.push(event)
    assert.deepEqual(
      rest.map(({ sequence_number }) => sequence_number),
      events.slice(4).map(({ sequence_number }) => sequence_number),
    )
  })

  it('continue a previous response, also one in the middle, and never one of another end user', async () => {
    const { agentId, requests } = await app.scripted(rules)
    const ask = (input: string, previous_response_id?: string, user = 'ann') =>
      openai.responses.create({ model: agentId, input, previous_response_id, user })
    const first = await ask('one')
    const second = await ask('two', first.id)
    assert.deepEqual(await contentsSent(requests), ['one', 'an answer', 'two'])
    assert.equal(second.previous_response_id, first.id)
    await ask('three', second.id)
    await ask('fork', first.id)
    assert.deepEqual(await contentsSent(requests), ['one', 'an answer', 'fork'])
    for (const attempt of [
      ask('x', first.id, 'bob'),
      ask('x', 'resp_00000000000000000000000000'),
      ask('x', 'nonsense'),
    ])
      await assert.rejects(attempt, (error: Json) => {
        assert.deepEqual([error.status, error.param], [404, 'previous_response_id'])
        return true
      })
    await assert.rejects(
      openai.responses.create({ model: agentId, input: 'x', previous_response_id: first.id, conversation: 'k' }),
      { status: 400 },
    )
  })

  it('add to a conversation by key or by its ID', async () => {
    const { agentId, requests } = await app.scripted(rules)
    const ask = (input: string, conversation: string) =>
      openai.responses.create({ model: agentId, input, conversation, user: 'cid' }).withResponse()
    const { response } = await ask('one', 'desk-1')
    const session = (await app.key.get(`/sessions/${response.headers.get('x-svc-session-id')}`)).body
    await ask('two', 'desk-1')
    await ask('three', session.conversation_id)
    assert.deepEqual(await contentsSent(requests), [
      '[cid]: one',
      'an answer',
      '[cid]: two',
      'an answer',
      '[cid]: three',
    ])
    await assert.rejects(
      openai.responses.create({ model: agentId, input: 'x', conversation: session.conversation_id }),
      {
        status: 404,
      },
    )
  })

  it('call tools of the client, and resume with their outputs', async () => {
    const { agentId } = await app.scripted(rules, { accept_client_tools: true })
    const first = await openai.responses.create({ model: agentId, input: 'weather?', tools: [weather] })
    const call = first.output.find(({ type }) => type === 'function_call') as Json
    assert.deepEqual([call.name, JSON.parse(call.arguments)], ['weather', { city: 'Rome' }])
    const second = await openai.responses.create({
      model: agentId,
      previous_response_id: first.id,
      input: [{ type: 'function_call_output', call_id: call.call_id, output: 'sunny' }],
      tools: [weather],
    })
    assert.equal(second.output_text, 'Sunny')
    assert.equal(second.id, first.id)
    assert.equal((await app.key.get(`/generations?agent_id=${agentId}`)).body.total, 1)
  })

  it('store nothing with store false', async () => {
    const { agentId } = await app.scripted(rules)
    const made = await openai.responses.create({ model: agentId, input: 'secret', store: false })
    assert.equal(made.output_text, 'an answer')
    await assert.rejects(openai.responses.retrieve(made.id), { status: 404 })
    const { data } = (await app.key.get(`/generations?agent_id=${agentId}`)).body
    assert.equal((await app.generation(data[0].id)).output, null)
  })

  it('run in the background, and are cancelled', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'late', gate: 'background' } }])
    const made = await openai.responses.create({ model: agentId, input: 'go', background: true })
    assert.deepEqual([made.status, made.output], ['queued', []])
    await app.atGate('background')
    assert.equal((await openai.responses.retrieve(made.id)).status, 'in_progress')
    await openai.responses.cancel(made.id)
    await app.settled(made.id.replace('resp_', 'gen_'))
    assert.equal((await openai.responses.retrieve(made.id)).status, 'cancelled')
    await app.openGate('background')
  })

  it('the AI SDK refers to stored items over three turns', async () => {
    const { agentId, requests } = await app.scripted(rules)
    const sdk = createOpenAI({ baseURL: app.base, apiKey: app.key.token as string })
    const messages: ModelMessage[] = []
    for (const text of ['one', 'two', 'three']) {
      messages.push({ role: 'user', content: text })
      const result = streamText({ model: sdk(agentId), messages, onError: ({ error }) => assert.fail(String(error)) })
      assert.equal(await result.text, 'an answer')
      messages.push(...(await result.response).messages)
    }
    assert.deepEqual(await contentsSent(requests), ['one', 'an answer', 'two', 'an answer', 'three'])
    await assert.rejects(
      openai.responses.create({
        model: agentId,
        input: [
          { type: 'item_reference', id: 'msg_00000000000000000000000000_1' },
          { role: 'user', content: 'x' },
        ],
      }),
      (error: Json) => {
        assert.deepEqual([error.status, error.param], [404, 'input[0]'])
        return true
      },
    )
  })

  it('LangChain uses completions: invoke, stream and tools', async () => {
    const { agentId } = await app.scripted(rules, { accept_client_tools: true })
    const model = new ChatOpenAI({
      model: agentId,
      apiKey: app.key.token as string,
      configuration: { baseURL: app.base },
      maxRetries: 0,
    })
    assert.equal((await model.invoke('hello')).content, 'an answer')
    let text = ''
    for await (const chunk of await model.stream('hello')) text += chunk.content
    assert.equal(text, 'an answer')
    const { type, ...definition } = weather
    const called = await model.bindTools([{ type, function: definition }]).invoke('weather?')
    assert.deepEqual(called.tool_calls?.[0].args, { city: 'Rome' })
  })
})
