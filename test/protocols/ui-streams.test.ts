import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { lastAssistantMessageIsCompleteWithToolCalls } from 'ai'
import { CHAT_ACTIONS, endUser } from '../conversation/end-user-support.ts'
import { startSessionApp } from '../conversation/session-support.ts'
import { eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { asking, chatUrl, chunkTypes, openChat, partsOf, requestUi, transcript } from './ui-support.ts'

/** Short leases, so that a lost worker is missed within seconds. */
const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }

describe('streams of chats of the AI SDK', function () {
  this.timeout(60_000)
  const app = forSuite(() => startSessionApp({ workers: [], actions: CHAT_ACTIONS }))
  const processes: TestProcess[] = []
  afterEach(() => Promise.all(processes.splice(0).map(each => each.kill())))

  const start = async (kind: 'web' | 'worker') => {
    const made = await startProcess(kind, app.databaseUrl, FAST, kind === 'worker' ? ['generation'] : [])
    processes.push(made)
    return made
  }
  const ready = (chat: { status: string }) =>
    eventually(() => chat.status === 'ready' || null, { what: 'a ready chat' })

  /** An agent that stops in its text at a gate, with an end user. */
  const gated = async (rules: object[], fields: object = {}) => {
    const gate = randomUUID()
    const { agentId } = await app.scripted(
      rules.map(rule => JSON.parse(JSON.stringify(rule).replaceAll('GATE', gate))),
      fields,
    )
    const { token, actorId } = await endUser(app, { agent_ids: [agentId] })
    return { agentId, token, actorId, gate }
  }
  const half = { text: 'half of the answer', gate: 'GATE', gate_after: 1 }

  it('are resumed from the beginning by a reloaded page; there is nothing to resume before and after', async () => {
    await start('worker')
    const { agentId, token, gate } = await gated([{ reply: half }])
    const options = { agentId, token, id: randomUUID() }
    const path = `/${options.id}/stream`
    assert.equal((await requestUi(app, { agentId, token, path })).status, 204)
    const first = openChat(app, options)
    const sending = first.sendMessage({ text: 'x' })
    await app.atGate(gate)
    await eventually(() => first.messages.length === 2 || null)
    await first.stop()
    await sending
    const { messages } = (await requestUi(app, { agentId, token, path: `/${options.id}` })).body
    const second = openChat(app, { ...options, messages })
    const resuming = second.resumeStream()
    await eventually(() => second.messages.length === 2 || null)
    await app.openGate(gate)
    await resuming
    assert.deepEqual([second.status, second.error], ['ready', undefined])
    assert.deepEqual(transcript(second), ['user: x', 'assistant: half of the answer'])
    assert.equal(second.messages[1].id, first.messages[1].id)
    assert.equal((await requestUi(app, { agentId, token, path })).status, 204)
    const loaded = (await requestUi(app, { agentId, token, path: `/${options.id}` })).body.messages
    assert.deepEqual(
      loaded.map(({ id }: any) => id),
      second.messages.map(({ id }) => id),
    )
    await second.resumeStream()
    assert.deepEqual([second.status, second.messages.length], ['ready', 2])
  })

  it('are resumed with the outputs of tools, which do not run again', async () => {
    await start('worker')
    const rules = [
      { when: { call: 1 }, reply: { text: 'Wait. ', tool_calls: [{ name: 'pick', args: { q: 1 } }] } },
      { reply: half },
    ]
    const { agentId, token, gate } = await gated(rules, {
      tool_bindings: [{ tool: { name: 'pick', type: 'client' } }],
    })
    const ran: string[] = []
    const options = { agentId, token, id: randomUUID() }
    const first = openChat(app, { ...options, sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls })
    await first.sendMessage({ text: 'x' })
    const [{ toolCallId }] = partsOf(first, 'tool-pick')

    // The page is reloaded while the turn waits for the output.
    const waiting = openChat(app, { ...options, onToolCall: ({ toolCall }) => void ran.push(toolCall.toolCallId) })
    await waiting.resumeStream()
    assert.deepEqual(ran, [toolCallId])
    assert.equal(partsOf(waiting, 'tool-pick')[0].state, 'input-available')

    await first.addToolOutput({ tool: 'pick', toolCallId, output: { seven: 7 } })
    await app.atGate(gate)
    const second = openChat(app, { ...options, onToolCall: ({ toolCall }) => void ran.push(toolCall.toolCallId) })
    const resuming = second.resumeStream()
    await eventually(() => transcript(second).at(-1)?.includes('half') || null)
    await app.openGate(gate)
    await Promise.all([resuming, ready(first)])
    assert.equal(ran.length, 1)
    for (const chat of [first, second]) {
      assert.equal(chat.error, undefined)
      assert.deepEqual(
        partsOf(chat, 'tool-pick').map(({ state, input, output }) => [state, input, output]),
        [['output-available', { q: 1 }, { seven: 7 }]],
      )
      assert.equal(transcript(chat).at(-1), 'assistant: Wait. half of the answer')
    }
  })

  it('end when the chat is stopped, and the chat continues', async () => {
    await start('worker')
    const { agentId, token, gate } = await gated([{ when: { call: 1 }, reply: half }, { reply: { text: 'next' } }])
    const chat = openChat(app, { agentId, token })
    const sending = chat.sendMessage({ text: 'x' })
    await app.atGate(gate)
    const reply = await requestUi(app, { agentId, token, path: `/${chat.id}/stop`, method: 'POST' })
    assert.equal(reply.status, 204)
    await sending
    assert.deepEqual([chat.status, chat.error], ['ready', undefined])
    await chat.sendMessage({ text: 'y' })
    assert.equal(transcript(chat).at(-1), 'assistant: next')
    const nothing = await requestUi(app, { agentId, token, path: `/${randomUUID()}/stop`, method: 'POST' })
    assert.equal(nothing.status, 204)
  })

  it('replace a running answer with a regenerated one', async () => {
    await start('worker')
    const { agentId, token, gate } = await gated([{ when: { call: 1 }, reply: half }, { reply: { text: 'again' } }])
    const chat = openChat(app, { agentId, token })
    const sending = chat.sendMessage({ text: 'x' })
    await app.atGate(gate)
    await chat.stop()
    await sending
    await chat.regenerate()
    assert.deepEqual([chat.status, chat.error, transcript(chat)], ['ready', undefined, ['user: x', 'assistant: again']])
    await app.openGate(gate)
    const { messages } = (await requestUi(app, { agentId, token, path: `/${chat.id}` })).body
    assert.deepEqual(transcript({ messages }), ['user: x', 'assistant: again'])
  })

  it('remove the text of a step that a killed worker had begun', async () => {
    const { agentId, token, gate } = await gated([
      { when: { call: 1 }, reply: { text: 'never to be seen whole', gate: 'GATE', gate_after: 2 } },
      { reply: { text: 'the real answer' } },
    ])
    const chat = openChat(app, { agentId, token })
    const first = await start('worker')
    const sending = chat.sendMessage({ text: 'x' })
    await app.atGate(gate)
    await eventually(() => chat.messages.length === 2 || null)
    await first.kill()
    processes.pop()
    await start('worker')
    await sending
    assert.equal(chat.error, undefined)
    assert.deepEqual(transcript(chat), ['user: x', 'assistant: the real answer'])
  })

  it('are resumed on another web process after the first one was killed', async () => {
    await start('worker')
    const web = await start('web')
    const { agentId, token, gate } = await gated([{ reply: half }])
    const options = { agentId, token, id: randomUUID() }
    const chat = openChat(web as { url: string }, options)
    const sending = chat.sendMessage({ text: 'x' })
    await app.atGate(gate)
    await eventually(() => chat.messages.length === 2 || null)
    await web.kill()
    await sending
    assert.equal(chat.status, 'error')
    const other = openChat(app, { ...options, messages: chat.messages })
    const resuming = other.resumeStream()
    await app.openGate(gate)
    await resuming
    assert.deepEqual(transcript(other), ['user: x', 'assistant: half of the answer'])
  })

  it('show a client that a person answers, and show the messages of the person', async () => {
    await start('worker')
    const { agentId, token, actorId } = await gated([{ reply: { text: 'hello' } }])
    const data: unknown[] = []
    const chat = openChat(app, { agentId, token, onData: part => void data.push(part) })
    await chat.sendMessage({ text: 'x' })
    const [session] = (await app.key.get(`/sessions?actor_id=${actorId}`)).body.data
    assert.equal((await app.admin.post(`/sessions/${session.id}/takeover`, {})).status, 200)
    await chat.sendMessage({ text: 'to a person' })
    assert.deepEqual(data, [
      { type: 'data-operator', data: { control: 'operator', session_id: session.id }, transient: true },
    ])
    assert.deepEqual([chat.status, chat.messages.length], ['ready', 3])
    await app.admin.post(`/sessions/${session.id}/operator-messages`, { message: 'Good day' })
    const { messages } = (await requestUi(app, { agentId, token, path: `/${chat.id}` })).body
    assert.equal(transcript({ messages }).at(-1), 'assistant: Good day')
    assert.equal((await app.admin.post(`/sessions/${session.id}/handback`, {})).status, 200)
    chat.messages = messages
    await chat.sendMessage({ text: 'again' })
    const stored = (await app.messages(session)).filter(({ origin }) => origin !== 'system')
    assert.deepEqual(
      stored.map(({ content }) => content),
      ['x', 'hello', 'to a person', 'Good day', 'again', 'hello'],
    )
  })

  it('show an answer with a schema when it is complete', async () => {
    await start('worker')
    const output_schema = { type: 'object', properties: { a: { type: 'number' } }, required: ['a'] }
    const { agentId, token } = await gated([{ reply: { text: '{"a":1}' } }], { output_schema })
    const reply = await requestUi(app, { agentId, token, body: asking('x') })
    assert.deepEqual(chunkTypes(reply).slice(-3), ['text-end', 'finish-step', 'finish'])
    assert.equal(reply.chunks.find(({ type }) => type === 'text-delta')?.delta, '{"a":1}')
    assert.equal(chatUrl(app, agentId).includes('/ui/v1/chat/'), true)
  })
})
