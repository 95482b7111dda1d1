import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { CHAT_ACTIONS, calls, ofType, said, ThreadClient, types } from './ag-ui-support.ts'

/** Short leases, so that a lost worker is missed within seconds. */
const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }

describe('runs of AG-UI clients after a lost process', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ workers: [], actions: [...CHAT_ACTIONS, 'sessions:ListSessions'] }))
  const double = forSuite(() => doubleClient(app.double))
  const processes: TestProcess[] = []
  afterEach(() => Promise.all(processes.splice(0).map(each => each.kill())))

  const start = async (kind: 'web' | 'worker') => {
    const made = await startProcess(kind, app.databaseUrl, FAST, kind === 'worker' ? ['generation'] : [])
    processes.push(made)
    return made
  }
  const waitingAt = (gate: string) =>
    eventually(async () => ((await double.gate(gate))?.waiting ?? 0) >= 1, { what: `a request at ${gate}` })
  const stored = async () => {
    const [session] = (await app.key.get('/sessions?limit=1')).body.data
    return (await app.key.get(`/sessions/${session.id}/messages`)).body.data.map(({ content }: any) => content)
  }

  it('end with the stored reply, without the text of a step that a killed worker had begun', async () => {
    await double.put('void', {
      rules: [
        { when: { call: 1 }, reply: { text: 'never to be seen whole', gate: 'void-gate', gate_after: 2 } },
        { reply: { text: 'the real answer' } },
      ],
    })
    const agentId = await app.agent({ model: 'void/m' })
    const client = new ThreadClient({ url: app.url, token: app.key.token, agentId })
    const first = await start('worker')
    const running = client.say('x')
    await waitingAt('void-gate')
    await eventually(() => client.texts().length === 1)
    await first.kill()
    processes.pop()
    await start('worker')
    const events = await running
    assert.ok(types(events).includes('MESSAGES_SNAPSHOT'))
    assert.deepEqual(client.texts(), ['the real answer'])
    assert.deepEqual((await stored()).slice(1), ['the real answer'])
    const ids = ofType(events, 'TEXT_MESSAGE_START').map(({ messageId }) => messageId)
    assert.equal(new Set(ids).size, 2)
  })

  it('keep the messages of steps before the lost one', async () => {
    await double.put('second', {
      rules: [
        { when: { call: 1 }, reply: { text: 'Let me see', tool_calls: [{ name: 'pick', args: {} }] } },
        { when: { call: 2 }, reply: { text: 'half of the', gate: 'second-gate', gate_after: 1 } },
        { reply: { text: 'all of it' } },
      ],
    })
    const agentId = await app.agent({ model: 'second/m', tool_bindings: [{ tool: { name: 'pick', type: 'client' } }] })
    const client = new ThreadClient({ url: app.url, token: app.key.token, agentId })
    const first = await start('worker')
    const [{ toolCallId }] = ofType(await client.say('x'), 'TOOL_CALL_START')
    const running = client.answer({ [toolCallId]: 'seven' })
    await waitingAt('second-gate')
    await first.kill()
    processes.pop()
    await start('worker')
    await running
    assert.deepEqual(client.texts(), ['Let me see', 'all of it'])
    assert.equal(client.agent.messages.filter(({ role }) => role === 'tool').length, 1)
  })

  it('continue in a repeated run on another web process after the first was killed', async () => {
    const web = await start('web')
    await start('worker')
    const threadId = crypto.randomUUID()
    const runId = crypto.randomUUID()
    const of = (url: string) => new ThreadClient({ url, token: app.key.token, agentId: app.agentId, threadId })
    const cut = of(web.url)
    const lost = cut.say(said({ text: 'survives', gate: 'web-gate' }), { runId }).catch((error: Error) => error)
    await waitingAt('web-gate')
    await web.kill()
    processes.shift()
    await lost
    const again = of(app.url)
    again.agent.messages = cut.agent.messages
    const running = again.run({ runId })
    await double.read('POST', '/control/gates/web-gate/open')
    await running
    assert.deepEqual(again.texts(), ['survives'])
    assert.equal((await stored()).length, 2)
  })

  it('store a message next to outputs by a repeat, if the process was killed after the outputs', async () => {
    const agentId = await app.agent({ tool_bindings: [{ tool: { name: 'pick', type: 'client' } }] })
    await start('worker')
    const client = new ThreadClient({ url: app.url, token: app.key.token, agentId })
    const [{ toolCallId }] = ofType(await client.say(said(calls('pick'), { text: 'done' })), 'TOOL_CALL_START')
    const faulty = await startProcess('web', app.databaseUrl, { FAULT_POINTS: 'request_carried_out=kill' })
    const { threadId } = client.agent
    const cut = new ThreadClient({ url: faulty.url, token: app.key.token, agentId, threadId })
    cut.agent.messages = client.agent.messages
    cut.agent.addMessage({ id: 'next-to-it', role: 'tool', toolCallId, content: 'seven' })
    const runId = crypto.randomUUID()
    assert.ok((await cut.say('one more thing', { runId }).catch((error: Error) => error)) instanceof Error)
    const again = new ThreadClient({ url: app.url, token: app.key.token, agentId, threadId })
    again.agent.messages = cut.agent.messages
    await again.run({ runId })
    assert.deepEqual(again.texts(), ['done'])
    const count = (await stored()).filter((content: string) => content === 'one more thing').length
    assert.equal(count, 1)
    await again.run({ runId })
    assert.equal((await stored()).length, 3)
  })

  it('store the change of a state once, whatever is lost', async () => {
    const agentId = await app.agent({ shared_state: true })
    const client = new ThreadClient({ url: app.url, token: app.key.token, agentId, state: { items: [] } })
    const append = calls('update_state', { patch: [{ op: 'add', path: '/items/-', value: 1 }] })
    const first = await start('worker')
    const running = client.say(said(append, { text: 'half', gate: 'state-crash', gate_after: 1 }))
    await waitingAt('state-crash')
    await first.kill()
    processes.pop()
    await start('worker')
    await double.read('POST', '/control/gates/state-crash/open')
    await running
    assert.deepEqual(client.agent.state, { items: [1] })
    assert.deepEqual(client.texts(), ['half'])
  })
})
