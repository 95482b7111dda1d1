import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { client, eventually, type Reply } from '../support/app.ts'
import { runWorker, steadyWorkers } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { contents, expectRefusal, expectStatus, roles, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const ACTIONS = ['actors:*', 'agents:*', 'conversations:*', 'events:*', 'generations:*', 'sessions:*']

const times = <T>(n: number, make: (index: number) => T): T[] => [...Array(n).keys()].map(make)
const statuses = (replies: Reply[]) => replies.map(reply => reply.status).sort()

/** Of ten calls all but the one whose turn is held have their answer. */
async function nineAnswered(calls: Promise<Reply>[]): Promise<void> {
  let answered = 0
  for (const call of calls) void call.then(() => answered++)
  await eventually(() => answered === 9, { what: 'nine answers' })
}

describe('sessions under concurrency', function () {
  this.timeout(60_000)
  const app = forSuite(() => startSessionApp({ actions: ACTIONS, env: { SESSION_SWEEP_SECONDS: '1' } }))

  const read = async (session: Json) => expectStatus(await app.key.get(`/sessions/${session.id}`), 200)
  const patch = (session: Json, body: Json) => app.key.patch(`/sessions/${session.id}`, body)
  /** A session with one message whose first turn is held at a gate. */
  const held = async (gate: string, fields: Json = {}, reply: Json = {}, next: Json = {}) => {
    const { agentId, requests } = await app.scripted([
      { when: { call: 1 }, reply: { text: 'one two three', gate, ...reply } },
      { reply: { text: 'again', ...next } },
    ])
    const session = await app.session({ agent_id: agentId, ...fields })
    return { session, requests }
  }

  it('of ten concurrent creates for one end user exactly one succeeds', async () => {
    const agent_id = await app.agent({ single_session_per_actor: true })
    const { id: actor_id } = expectStatus(await app.key.post('/actors', { name: 'Ann' }), 201)
    const replies = await Promise.all(times(10, () => app.key.post('/sessions', { agent_id, actor_id })))
    assert.deepEqual(statuses(replies), [201, ...times(9, () => 409)])
    const [made] = replies.filter(reply => reply.status === 201)
    for (const reply of replies.filter(each => each.status === 409))
      assert.deepEqual(expectRefusal(reply, 409, 'SINGLE_SESSION_CONFLICT').meta, { session_id: made.body.id })
    assert.equal((await app.key.get(`/sessions?actor_id=${actor_id}`)).body.total, 1)
  })

  it('of concurrent creates and reopens exactly one succeeds, round after round', async () => {
    const agent_id = await app.agent({ single_session_per_actor: true })
    const { id: actor_id } = expectStatus(await app.key.post('/actors', { name: 'Ann' }), 201)
    const closed: Json[] = []
    for (let round = 0; round < 5; round++) {
      const replies = await Promise.all([
        ...closed.map(session => patch(session, { status: 'open' })),
        ...times(3, () => app.key.post('/sessions', { agent_id, actor_id })),
      ])
      const open = (await app.key.get(`/sessions?actor_id=${actor_id}&status=open`)).body
      assert.equal(open.total, 1)
      assert.equal(replies.filter(reply => reply.status < 300).length, 1, JSON.stringify(statuses(replies)))
      expectStatus(await patch(open.data[0], { status: 'closed' }), 200)
      if (!closed.some(session => session.id === open.data[0].id)) closed.push(open.data[0])
    }
  })

  it('of ten concurrent generates one runs, nine are refused, and one reply is stored', async () => {
    const { session } = await held('ten')
    await app.say(session, 'hello')
    const calls = times(10, () => app.generate(session, '?wait=true'))
    await app.atGate('ten')
    await nineAnswered(calls)
    await app.openGate('ten')
    const replies = await Promise.all(calls)
    assert.deepEqual(statuses(replies), [200, ...times(9, () => 409)])
    const [{ body: reply }] = replies.filter(each => each.status === 200)
    for (const each of replies.filter(({ status }) => status === 409)) {
      const { meta } = expectRefusal(each, 409, 'GENERATION_ALREADY_IN_PROGRESS')
      assert.equal(meta.generation_id, reply.generation_id)
    }
    assert.deepEqual(roles(await app.messages(session)), ['user', 'assistant'])
    assert.equal((await app.key.get(`/generations?session_id=${session.id}`)).body.total, 1)
  })

  it('messages sent while a turn runs are answered by one following turn that sees them all', async () => {
    const { session, requests } = await held('five', { auto_generate: true })
    const first = await app.say(session, 'm0')
    await app.atGate('five')
    const later = await Promise.all(times(5, n => app.say(session, `m${n + 1}`)))
    const ids = new Set(later.map(message => message.generation_id))
    assert.equal(ids.size, 1)
    assert.ok(!ids.has(first.generation_id))
    await app.openGate('five')
    await app.settled([...ids][0])
    const messages = await app.messages(session)
    assert.deepEqual(roles(messages), ['user', 'assistant', 'user', 'user', 'user', 'user', 'user', 'assistant'])
    assert.deepEqual(
      messages.map(message => message.position),
      times(8, n => n),
    )
    const sent = (await requests()).map(request => request.body.messages.map((each: Json) => each.content))
    assert.equal(sent.length, 2)
    assert.deepEqual(sent[1].slice(0, 2), ['m0', 'one two three'])
    assert.deepEqual(
      sent[1].slice(2).sort(),
      times(5, n => `m${n + 1}`),
    )
  })

  it('no message of a burst goes unanswered, whenever its turn starts', async () => {
    const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    for (let burst = 0; burst < 6; burst++) {
      const sent = await Promise.all(times(5, n => app.say(session, `b${burst}m${n}`)))
      for (const id of new Set(sent.map(message => message.generation_id))) await app.settled(id)
    }
    await eventually(
      async () => (await read(session)).queued_turns === 0 && (await read(session)).generating_at === null,
    )
    const seen = new Set((await requests()).flatMap(request => request.body.messages.map((each: Json) => each.content)))
    for (let burst = 0; burst < 6; burst++) for (const n of times(5, n => n)) assert.ok(seen.has(`b${burst}m${n}`))
    const messages = await app.messages(session)
    assert.equal(messages.at(-1)?.role, 'assistant')
    assert.deepEqual(
      messages.map(message => message.position),
      times(messages.length, n => n),
    )
  })

  it('a delay is counted from the last message: three messages, one turn', async () => {
    const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true, message_delay_seconds: 3 })
    const sent: Json[] = []
    for (const text of ['a', 'b', 'c']) {
      if (sent.length > 0) await sleep(600)
      sent.push(await app.say(session, text))
    }
    assert.equal(new Set(sent.map(message => message.generation_id)).size, 1)
    const generation = await app.settled(sent[0].generation_id)
    const quiet = Date.parse(generation.started_at) - Date.parse(sent[2].created_at)
    assert.ok(quiet >= 2990, `started after ${quiet} ms`)
    assert.deepEqual(contents(await app.messages(session)), ['a', 'b', 'c', 'ok'])
    assert.equal((await requests()).length, 1)
  })

  it('ten messages with one idempotency key: one message, one turn', async () => {
    const session = await app.session({ auto_generate: true })
    const replies = await Promise.all(
      times(10, () => app.key.post(`/sessions/${session.id}/messages`, { message: 'hello', idempotency_key: 'k' })),
    )
    assert.deepEqual(statuses(replies), [...times(9, () => 200), 201])
    assert.equal(new Set(replies.map(reply => reply.body.generation_id)).size, 1)
    await app.settled(replies[0].body.generation_id)
    assert.deepEqual(roles(await app.messages(session)), ['user', 'assistant'])
  })

  it('a close that races the end of a turn leaves the reply and a completed turn, or neither', async () => {
    const outcomes = new Set<string>()
    // The close follows the opening of the gate by a number of ms, or comes before it: nearer and nearer to the end of
    // the turn, which lies elsewhere on every machine.
    let lag = 0
    let step = 8
    for (let round = 0; round < 25; round++) {
      const { session } = await held(`close${round}`)
      await app.say(session, 'hello')
      const { generation_id } = expectStatus(await app.generate(session), 202)
      await app.atGate(`close${round}`)
      const [closed] = await Promise.all([
        sleep(Math.max(0, lag)).then(() => patch(session, { status: 'closed' })),
        sleep(Math.max(0, -lag)).then(() => app.openGate(`close${round}`)),
      ])
      expectStatus(closed, 200)
      const { status, error } = await app.settled(generation_id)
      step = outcomes.size < 2 && (outcomes.size === 0 || outcomes.has(status)) ? step * 2 : Math.max(1, step / 2)
      lag += status === 'completed' ? -step : step
      outcomes.add(status)
      const messages = await app.messages(session)
      if (status === 'completed') assert.deepEqual(roles(messages), ['user', 'assistant'])
      else {
        assert.equal(error.code, 'SESSION_CLOSED')
        assert.deepEqual(roles(messages), ['user'])
      }
      const record = await eventually(async () => {
        const found = await read(session)
        return found.generating_at === null ? found : null
      })
      assert.deepEqual([record.status, record.queued_turns], ['closed', 0])
    }
    assert.deepEqual([...outcomes].sort(), ['completed', 'failed'])
  })

  it('of ten concurrent interrupts exactly one takes the place of the running turn', async () => {
    for (const [round, on_busy] of times(6, n => [n, n % 2 ? 'interrupt' : 'rollback'] as const)) {
      const gate = `take-${round}`
      const { session, requests } = await held(gate, {}, { gate_after: 2 }, { gate: `${gate}-next` })
      await app.say(session, 'hello')
      const { stream, text } = await app.streamed(session)
      await eventually(() => text() === 'one two ', { what: 'the text so far' })
      const asked = times(10, () => app.generate(session, '?wait=true', { on_busy }))
      await nineAnswered(asked)
      await app.openGate(`${gate}-next`)
      const replies = await Promise.all(asked)
      assert.deepEqual(statuses(replies), [200, ...times(9, () => 409)], on_busy)
      for (const reply of replies.filter(each => each.status === 409))
        expectRefusal(reply, 409, 'GENERATION_ALREADY_IN_PROGRESS')
      assert.equal((await stream).at(-1)?.event, 'error')
      const stored = on_busy === 'interrupt' ? ['hello', 'one two ', 'again'] : ['hello', 'again']
      assert.deepEqual(contents(await app.messages(session)), stored)
      assert.equal((await requests()).length, 2)
      await app.openGate(gate)
    }
  })

  it('concurrent deletes and messages end with a session that is gone and no error of ours', async () => {
    for (let round = 0; round < 5; round++) {
      const session = await app.session({ auto_generate: true })
      await app.say(session, 'first')
      const replies = await Promise.all([
        ...times(5, n => app.key.post(`/sessions/${session.id}/messages`, { message: `m${n}` })),
        app.key.delete(`/sessions/${session.id}`),
        app.generate(session),
        patch(session, { name: 'x' }),
      ])
      for (const { status, body } of replies) assert.ok(status < 500, JSON.stringify(body))
      expectRefusal(await app.key.get(`/sessions/${session.id}`), 404, 'RESOURCE_NOT_FOUND')
    }
  })

  it('the sweep writes an expiry down and emits it once, with several workers at it', async () => {
    const other = await runWorker(app.databaseUrl, { SESSION_SWEEP_SECONDS: '1' }, ['generation'])
    try {
      const sessions = await Promise.all(times(5, () => app.session({ inactivity_ttl_seconds: 1 })))
      const ids = new Set(sessions.map(session => session.id))
      const told = async () => (await app.events('sessions.expired')).filter(event => ids.has(event.resource_id))
      await eventually(async () => (await told()).length >= 5)
      for (const session of sessions) expectRefusal(await app.generate(session), 410, 'SESSION_EXPIRED')
      await sleep(2500)
      assert.equal((await told()).length, 5)
      for (const session of sessions) {
        const { status, updated_at, created_at } = await read(session)
        assert.equal(status, 'expired')
        assert.ok(updated_at > created_at)
      }
    } finally {
      await other.stop()
    }
  })

  it('the turns of many sessions run side by side and each session stays in order', async () => {
    const sessions = await Promise.all(times(8, () => app.session({ auto_generate: true })))
    await Promise.all(
      sessions.map(async session => {
        for (let n = 0; n < 3; n++) {
          const path = `/sessions/${session.id}/messages?wait=true`
          expectStatus(await app.key.post(path, { message: `m${n}` }), 201)
        }
      }),
    )
    for (const session of sessions)
      assert.deepEqual(contents(await app.messages(session)), ['m0', 'echo: m0', 'm1', 'echo: m1', 'm2', 'echo: m2'])
  })
})

describe('sessions over several processes', function () {
  this.timeout(90_000)
  const app = forSuite(() => startSessionApp({ workers: [], actions: ACTIONS, env }))
  const steady = steadyWorkers()
  const env = { CONVERSATION_SWEEP_SECONDS: '1', GENERATION_LEASE_SECONDS: '2' }
  afterEach(() => steady.stop())

  const worker = () => steady.start(app.databaseUrl, env, ['generation'])

  it('of ten concurrent generates over two web processes and two workers one runs', async () => {
    const web = () => steady.startWeb(app.databaseUrl, env)
    const [one, two] = await Promise.all([web(), web()])
    await Promise.all([worker(), worker()])
    const { agentId, requests } = await app.scripted([{ reply: { text: 'slow', gate: 'processes' } }])
    const session = await app.session({ agent_id: agentId })
    await app.say(session, 'hello')
    const callers = [one, two].map(({ url }) => client(url, app.key.token))
    const path = `/sessions/${session.id}/generate?wait=true`
    const calls = times(10, n => callers[n % 2].post(path))
    await app.atGate('processes')
    await nineAnswered(calls)
    await app.openGate('processes')
    const replies = await Promise.all(calls)
    assert.deepEqual(statuses(replies), [200, ...times(9, () => 409)])
    assert.deepEqual(contents(await app.messages(session)), ['hello', 'slow'])
    assert.equal((await requests()).length, 1)
  })

  it('a delayed turn survives the process that took its messages and the worker that waited', async () => {
    const doomed = await Promise.all([
      startProcess('web', app.databaseUrl, env),
      startProcess('worker', app.databaseUrl, env, ['generation']),
    ])
    const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true, message_delay_seconds: 3 })
    const caller = client(doomed[0].url, app.key.token)
    const sent: Json[] = []
    for (const message of ['a', 'b', 'c']) {
      if (sent.length > 0) await sleep(600)
      sent.push(expectStatus(await caller.post(`/sessions/${session.id}/messages`, { message }), 201))
    }
    await Promise.all(doomed.map(each => each.kill()))
    await worker()
    const generation = await app.settled(sent[0].generation_id)
    assert.equal(generation.status, 'completed')
    assert.ok(Date.parse(generation.started_at) - Date.parse(sent[2].created_at) >= 2990)
    assert.deepEqual(contents(await app.messages(session)), ['a', 'b', 'c', 'ok'])
    assert.equal((await requests()).length, 1)
    assert.equal((await app.key.get(`/generations?session_id=${session.id}`)).body.total, 1)
  })

  it('a close reaches a turn that another process runs', async () => {
    await worker()
    const { agentId } = await app.scripted([{ reply: { text: 'never', gate: 'elsewhere' } }])
    const session = await app.session({ agent_id: agentId })
    await app.say(session, 'hello')
    const { generation_id } = expectStatus(await app.generate(session), 202)
    await app.atGate('elsewhere')
    expectStatus(await app.key.patch(`/sessions/${session.id}`, { status: 'closed' }), 200)
    const { status, error } = await app.settled(generation_id)
    assert.deepEqual([status, error.code], ['failed', 'SESSION_CLOSED'])
    await app.openGate('elsewhere')
    assert.deepEqual(roles(await app.messages(session)), ['user'])
  })
})
