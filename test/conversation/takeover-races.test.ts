import assert from 'node:assert/strict'
import { client, type Reply } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const ACTIONS = ['conversations:*', 'events:*', 'generations:*', 'sessions:*']

const times = <T>(n: number, make: (index: number) => T): T[] => [...Array(n).keys()].map(make)

/** Runs `round` so often, some at a time. */
async function rounds(count: number, width: number, round: (n: number) => Promise<void>): Promise<void> {
  let next = 0
  await Promise.all(
    times(width, async () => {
      while (next < count) await round(next++)
    }),
  )
}

describe('takeovers and turns in parallel', function () {
  this.timeout(120_000)
  const app = forSuite(() => startSessionApp({ actions: ACTIONS }))

  const path = (session: Json) => `/sessions/${session.id}`

  it('no reply is stored of a turn that starts after the takeover', async () => {
    const wins = { turn: 0, takeover: 0 }
    await rounds(200, 20, async n => {
      const automatic = n % 2 === 0
      const session = await app.session({ auto_generate: automatic })
      if (!automatic) await app.say(session, 'hello')
      const request = (): Promise<Reply> =>
        automatic ? app.key.post(`${path(session)}/messages`, { message: 'hello' }) : app.generate(session)
      const [taken, asked] = await Promise.all([app.key.post(`${path(session)}/takeover`), request()])
      assert.equal(expectStatus(taken, 200).control, 'operator')
      if (!automatic && asked.status !== 202) assert.equal(asked.body.error.code, 'SESSION_UNDER_OPERATOR')
      const id: string | null = asked.body.generation_id ?? null
      const generation = id === null ? null : await app.settled(id)
      const replies = (await app.messages(session)).filter(({ origin }) => origin === 'agent')
      if (generation?.status !== 'completed') {
        wins.takeover++
        assert.deepEqual(replies, [])
        return
      }
      wins.turn++
      assert.equal(replies.length, 1)
      const { data } = expectStatus(
        await app.key.get(`/events?event=sessions.taken_over&resource_id=${session.id}`),
        200,
      )
      const isFinished = generation.completed_at <= data[0].timestamp
      assert.ok(isFinished || data[0].data.generation_id === id, JSON.stringify([generation, data[0]]))
    })
    assert.ok(wins.takeover > 0, JSON.stringify(wins))
  })

  it('of concurrent handbacks one succeeds and requests one turn', async () => {
    await rounds(20, 10, async () => {
      const session = await app.session({ auto_generate: true })
      expectStatus(await app.key.post(`${path(session)}/takeover`), 200)
      await app.say(session, 'hello')
      const replies = await Promise.all(times(5, () => app.key.post(`${path(session)}/handback`)))
      const [won, ...others] = replies.toSorted((a, b) => a.status - b.status)
      await app.settled(expectStatus(won, 200).generation_id)
      for (const { body } of others) assert.equal(body.error.code, 'SESSION_NOT_UNDER_OPERATOR')
      assert.deepEqual(
        (await app.messages(session)).map(({ origin }) => origin),
        ['end_user', 'system', 'agent'],
      )
    })
  })

  it('a concurrent message and handback leave no message unanswered', async () => {
    await rounds(40, 10, async () => {
      const session = await app.session({ auto_generate: true })
      expectStatus(await app.key.post(`${path(session)}/takeover`), 200)
      const [sent, back] = await Promise.all([app.say(session, 'hello'), app.key.post(`${path(session)}/handback`)])
      const ids = [sent.generation_id, expectStatus(back, 200).generation_id].filter(id => id !== null)
      assert.equal(ids.length, 1)
      await app.settled(ids[0])
      assert.equal((await app.messages(session)).filter(({ origin }) => origin === 'agent').length, 1)
    })
  })
})

describe('takeovers and lost processes', function () {
  this.timeout(90_000)
  const app = forSuite(() => startSessionApp({ workers: [], actions: ACTIONS, env }))
  const steady = steadyWorkers()
  const env = { CONVERSATION_SWEEP_SECONDS: '1', GENERATION_LEASE_SECONDS: '2' }
  afterEach(() => steady.stop())

  const path = (session: Json) => `/sessions/${session.id}`
  const worker = () => steady.start(app.databaseUrl, env, ['generation'])
  const origins = async (session: Json) => (await app.messages(session)).map(({ origin }) => origin)

  it('another worker finishes the running turn of a takeover', async () => {
    const doomed = await startProcess('worker', app.databaseUrl, env, ['generation'])
    const { agentId } = await app.scripted([{ reply: { text: 'finished', gate: 'lost' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const { generation_id } = await app.say(session, 'hello')
    await app.atGate('lost')
    expectStatus(await app.key.post(`${path(session)}/takeover`), 200)
    await doomed.kill()
    expectStatus(await app.key.post(`${path(session)}/operator-messages`, { message: 'One moment.' }), 201)
    await app.say(session, 'are you there?')
    await worker()
    await app.openGate('lost')
    assert.equal((await app.settled(generation_id)).status, 'completed')
    assert.deepEqual(await origins(session), ['end_user', 'agent', 'operator', 'end_user'])
    const { generation_id: next } = expectStatus(await app.key.post(`${path(session)}/handback`), 200)
    assert.equal((await app.settled(next)).status, 'completed')
    assert.deepEqual(await origins(session), ['end_user', 'agent', 'operator', 'end_user', 'system', 'agent'])
  })

  it('a turn whose worker was lost before its start does not start under an operator', async () => {
    const doomed = await startProcess('worker', app.databaseUrl, { ...env, FAULT_POINTS: 'turn_taken=kill' }, [
      'generation',
    ])
    const { agentId, requests } = await app.scripted([{ reply: { text: 'answer' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const { generation_id } = await app.say(session, 'hello')
    await doomed.exited
    expectStatus(await app.key.post(`${path(session)}/takeover`), 200)
    await worker()
    assert.equal((await app.settled(generation_id)).error.code, 'SESSION_UNDER_OPERATOR')
    assert.equal((await requests()).length, 0)
    const { generation_id: next } = expectStatus(await app.key.post(`${path(session)}/handback`), 200)
    assert.equal((await app.settled(next)).status, 'completed')
    assert.deepEqual(await origins(session), ['end_user', 'system', 'agent'])
  })

  it('a killed web process leaves each takeover complete or absent', async () => {
    const web = await startProcess('web', app.databaseUrl, env)
    const caller = client(web.url, app.key.token)
    const sessions = await Promise.all(times(12, () => app.session()))
    const first = caller.post(`${path(sessions[0])}/takeover`, { note: 'mine' })
    const calls = sessions
      .slice(1)
      .map(session => caller.post(`${path(session)}/takeover`, { note: 'mine' }).catch(() => null))
    await first
    await web.kill()
    await Promise.all(calls)
    for (const session of sessions) {
      const { control } = expectStatus(await app.key.get(path(session)), 200)
      const events = expectStatus(
        await app.key.get(`/events?event=sessions.taken_over&resource_id=${session.id}`),
        200,
      ).data
      const isTaken = control === 'operator'
      assert.deepEqual([events.length, (await origins(session)).length], isTaken ? [1, 1] : [0, 0])
      const handedBack = await app.key.post(`${path(session)}/handback`)
      assert.equal(handedBack.status, isTaken ? 200 : 409)
    }
    assert.equal((await app.key.get(`${path(sessions[0])}`)).body.control, 'agent')
  })
})
