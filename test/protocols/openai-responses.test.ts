import assert from 'node:assert/strict'
import { createOpenAI } from '@ai-sdk/openai'
import { ChatOpenAI } from '@langchain/openai'
import { type ModelMessage, streamText } from 'ai'
import type OpenAI from 'openai'
import { forSuite } from '../support/suite.ts'
import { startOpenAiApp } from './openai-support.ts'

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
  const app = forSuite(() => startOpenAiApp({ actions: ACTIONS, env: { PROVIDER_MAX_RETRIES: '0' } }))
  let openai: OpenAI

  before(async () => {
    openai = app.openai(app.key.token)
  })

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

  it('continue the session of a previous response, and fork it after an earlier one', async () => {
    const { agentId, requests } = await app.scripted(rules)
    const ask = async (input: string, more: Json = {}) => {
      const { data, response } = await openai.responses
        .create({ model: agentId, input, user: 'chain', ...more } as OpenAI.Responses.ResponseCreateParamsNonStreaming)
        .withResponse()
      return { id: data.id, session: response.headers.get('x-svc-session-id') as string }
    }
    const contentsOf = async (id: string) => (await app.messages({ id })).map(({ content }: Json) => content)
    const sessionOf = async (id: string) => (await app.key.get(`/sessions/${id}`)).body

    const first = await ask('one', { conversation: 'chain-1' })
    const second = await ask('two', { previous_response_id: first.id })
    assert.equal(second.session, first.session)
    assert.deepEqual(await contentsOf(first.session), ['one', 'an answer', 'two', 'an answer'])
    const fork = await ask('other', { previous_response_id: first.id })
    const forked = await sessionOf(fork.session)
    assert.deepEqual([forked.forked_from_session_id, forked.forked_from_position], [first.session, 1])
    assert.deepEqual(await contentsOf(fork.session), ['one', 'an answer', 'other', 'an answer'])
    assert.deepEqual(await contentsSent(requests), ['[chain]: one', 'an answer', '[chain]: other'])
    assert.equal((await contentsOf(first.session)).length, 4)
    // The key still names the first session.
    assert.equal((await ask('three', { conversation: 'chain-1' })).session, first.session)
    // With a key, the fork gets it.
    const headers = { 'x-svc-session-key': 'chain-1', 'x-svc-actor': 'chain' }
    const body = { model: agentId, input: 'moved', previous_response_id: second.id }
    const moved = await app.send('/responses', body, { headers })
    assert.equal(moved.status, 200, await moved.clone().text())
    const target = moved.headers.get('x-svc-session-id') as string
    assert.deepEqual(await contentsOf(target), ['one', 'an answer', 'two', 'an answer', 'moved', 'an answer'])
    assert.equal((await ask('four', { conversation: 'chain-1' })).session, target)
  })

  it('continue the ephemeral session of a previous response, whose fork is another one', async () => {
    const { agentId } = await app.scripted(rules)
    const ask = async (input: string, previous_response_id?: string) => {
      const { data, response } = await openai.responses
        .create({ model: agentId, input, user: 'short', previous_response_id })
        .withResponse()
      return { id: data.id, session: response.headers.get('x-svc-session-id') as string }
    }
    const first = await ask('one')
    const second = await ask('two', first.id)
    assert.equal(second.session, first.session)
    const forks = await Promise.all([ask('a', first.id), ask('b', first.id)])
    for (const { session } of forks) {
      const fork = (await app.key.get(`/sessions/${session}`)).body
      assert.deepEqual([fork.forked_from_session_id, fork.ephemeral], [first.session, true])
    }
    assert.deepEqual(await app.messages({ id: first.session }), [])
  })

  it('of two concurrent requests after one response, one continues its session', async () => {
    const { agentId } = await app.scripted([
      { when: { user: 'contend' }, reply: { text: 'slow', gate: 'previous-race' } },
      ...rules,
    ])
    const create = (input: string, more: Json) =>
      app.send('/responses', { model: agentId, input, user: 'twin', ...more })
    const first = (await (await create('one', { conversation: 'twin' })).json()) as Json
    const both = [1, 2].map(() => create('contend', { previous_response_id: first.id }))
    await app.atGate('previous-race')
    const refused = await Promise.race(both)
    assert.deepEqual([refused.status, refused.headers.get('retry-after')], [409, '2'])
    await app.openGate('previous-race')
    assert.deepEqual((await Promise.all(both)).map(({ status }) => status).sort(), [200, 409])
  })

  it('are stored for the operator who has the session of a previous response', async () => {
    const { agentId } = await app.scripted(rules)
    const create = (input: string, more: Json) => app.send('/responses', { model: agentId, input, user: 'op', ...more })
    const made = await create('one', { conversation: 'op' })
    const { id } = (await made.json()) as Json
    const session = made.headers.get('x-svc-session-id') as string
    assert.equal((await app.admin.post(`/sessions/${session}/takeover`, {})).status, 200)
    const refused = await create('to a person', { previous_response_id: id })
    assert.deepEqual([refused.status, ((await refused.json()) as Json).error.code], [400, 'SESSION_UNDER_OPERATOR'])
    assert.deepEqual(
      (await app.messages({ id: session })).map(({ content }: Json) => content),
      ['one', 'an answer', 'to a person'],
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
      (error: Json) => {
        assert.deepEqual([error.status, error.param], [404, 'conversation'])
        return true
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
    assert.equal(second.id, `${first.id}_1`)
    assert.equal((await app.key.get(`/generations?agent_id=${agentId}`)).body.total, 1)
  })

  it('name the fields without effect', async () => {
    const { agentId } = await app.scripted(rules)
    const response = await app.send('/responses', {
      model: agentId,
      input: 'a',
      truncation: 'auto',
      include: null,
      tools: [{ type: 'web_search' }],
      tool_choice: 'auto',
      top_p: 0.5,
      max_output_tokens: 10,
      invented: {},
    })
    assert.equal(response.status, 200, await response.clone().text())
    assert.equal(response.headers.get('x-svc-ignored-params'), 'truncation, invented, tool_choice, tools, top_p')
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
