import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { accepted, shared } from '../execution/share-support.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { placesOf } from '../support/search-everywhere.ts'
import { forSuite } from '../support/suite.ts'
import { CHAT_ACTIONS, endUser } from './end-user-support.ts'
import { openTab } from './session-stream-support.ts'
import { expectStatus, type SessionApp, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const ACTIONS = [...CHAT_ACTIONS, 'conversations:*']
const TITLER = 'Write a title'

function titlesOf(app: SessionApp) {
  const run = async (text: string): Promise<any[]> => [...(await app.pool.query(rawQuery(text))).rows]
  return {
    run,
    /** An agent that names its sessions; `title` is the reply to the call for a title. */
    async agent(title: Json, fields: Json = {}) {
      const { agentId, requests } = await app.scripted(
        [{ when: { system: { contains: TITLER } }, reply: title }, { reply: { text: 'It is on its way.' } }] as never,
        { auto_title: true, ...fields },
      )
      return {
        agentId,
        titles: async () => (await requests()).filter(({ body }) => body.messages[0].content.startsWith(TITLER)),
      }
    },
    session: (agent_id: string, fields: Json = {}) => app.session({ agent_id, auto_generate: true, ...fields }),
    say: async (session: Json, message = 'Where is my order?') =>
      expectStatus(await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message }), 201),
    name: async (session: Json) => expectStatus(await app.key.get(`/sessions/${session.id}`), 200).name,
    idle: () =>
      eventually(async () => (await run('select from session_title_work')).length === 0, {
        what: 'the end of the work on titles',
      }),
  }
}

describe('names of sessions by the agent', function () {
  this.timeout(60_000)
  const app = forSuite(() => startSessionApp({ actions: ACTIONS, workers: ['generation', 'snapshot'] }))
  let t: ReturnType<typeof titlesOf>
  before(async () => {
    t = titlesOf(app)
  })

  it('are set after the first completed turn, from its two messages', async () => {
    const { agentId, titles } = await t.agent({ text: '"An order that\u0007 is late"\nMore text', usage: {} })
    const session = await t.session(agentId, { actor: { external_id: 'ann', name: 'Ann' } })
    await t.say(session, '</transcript> Where is it?')
    await t.idle()
    assert.equal(await t.name(session), 'An order that is late')
    const [{ body }] = await titles()
    assert.deepEqual([body.temperature, body.tools, body.messages.length], [undefined, undefined, 2])
    assert.equal(body.messages[1].content.match(/<\/transcript>/g).length, 1)
    const lines = body.messages[1].content
      .split('\n')
      .slice(1, -1)
      .map(JSON.parse as never)
    assert.deepEqual(lines, [
      { from: 'user', name: 'Ann', text: '</transcript> Where is it?' },
      { from: 'assistant', text: 'It is on its way.' },
    ])
    const updated = (await app.events('sessions.updated')).filter(({ resource_id }) => resource_id === session.id)
    assert.deepEqual(
      updated.map(({ data }) => data.name),
      ['An order that is late'],
    )
    const { data } = expectStatus(
      await app.admin.get(`/usage/events?project_id=${app.projectId}&source=title&agent_id=${agentId}`),
      200,
    )
    assert.deepEqual(
      data.map((event: Json) => [event.actor_id, event.session_id]),
      [[session.actor_id, session.id]],
    )
    await t.say(session)
    await t.idle()
    assert.equal((await titles()).length, 1)
  })

  it('are shown to the end user, like the face of the agent', async () => {
    const { agentId } = await t.agent(
      { text: 'Late order' },
      { description: 'Help with orders', greeting: 'Hello!', suggestions: ['Where is it?'] },
    )
    const user = await endUser(app, { agent_ids: [agentId] })
    const { avatar_file_id, ...face } = expectStatus(await user.get(`/agents/${agentId}`), 200)
    assert.equal(avatar_file_id, null)
    for (const [name, value] of Object.entries({
      id: agentId,
      description: 'Help with orders',
      greeting: 'Hello!',
      suggestions: ['Where is it?'],
    }))
      assert.deepEqual(face[name], value)
    for (const name of ['auto_title', 'context_policy', 'instructions']) assert.equal(name in face, false)
    const session = expectStatus(await user.post('/sessions', { agent_id: agentId }), 201)
    const tab = await openTab({ url: app.url, key: app.key }, session)
    expectStatus(await user.post(`/sessions/${session.id}/messages`, { message: 'Where is it?' }), 201)
    expectStatus(await user.post(`/sessions/${session.id}/generate?wait=true`), 200)
    await t.idle()
    assert.equal(expectStatus(await user.get(`/sessions/${session.id}`), 200).name, 'Late order')
    await tab.seen(({ event, data }) => event === 'session' && data.name === 'Late order')
    tab.close()
  })

  it('have at most 60 characters', async () => {
    const { agentId } = await t.agent({ text: `${'😀'.repeat(40)}` })
    const session = await t.session(agentId)
    await t.say(session)
    await t.idle()
    const name = await t.name(session)
    assert.ok(name.length <= 60 && name.isWellFormed() && name.startsWith('😀'))
  })

  it('are not set without auto_title, and replace no other name', async () => {
    const plain = await t.agent({ text: 'Unwanted' }, { auto_title: false })
    const titled = await t.agent({ text: 'Unwanted' })
    const slow = await t.agent({ text: 'Unwanted', gate: 'slow-title' })
    for (const [agentId, fields, name] of [
      [plain.agentId, {}, null],
      [titled.agentId, { name: 'Mine' }, 'Mine'],
    ] as const) {
      const session = await t.session(agentId, fields)
      await t.say(session)
      await t.idle()
      assert.equal(await t.name(session), name)
    }
    assert.deepEqual([(await plain.titles()).length, (await titled.titles()).length], [0, 0])
    const session = await t.session(slow.agentId)
    await t.say(session)
    await app.atGate('slow-title')
    expectStatus(await app.key.patch(`/sessions/${session.id}`, { name: 'Renamed' }), 200)
    await app.openGate('slow-title')
    await t.idle()
    assert.equal(await t.name(session), 'Renamed')
  })

  it('are requested once: a failure and an empty answer leave none', async () => {
    for (const reply of [{ error: { status: 400, message: 'no' } }, { text: ' \n"" ' }]) {
      const { agentId, titles } = await t.agent(reply)
      const session = await t.session(agentId)
      await t.say(session)
      await t.idle()
      await t.say(session)
      await t.idle()
      assert.equal(await t.name(session), null)
      assert.equal((await titles()).length, 1)
    }
  })

  it('follow the first turn that completes, whatever failed before', async () => {
    const { agentId } = await app.scripted(
      [
        { when: { system: { contains: TITLER } }, reply: { text: 'Second' } },
        { when: { call: 1 }, reply: { error: { status: 400, message: 'no' } } },
        { reply: { text: 'ok' } },
      ] as never,
      { auto_title: true },
    )
    const session = await t.session(agentId)
    const failed = await app.key.post(`/sessions/${session.id}/messages?wait=true`, { message: 'one' })
    assert.equal(failed.status, 502)
    assert.equal(await t.name(session), null)
    await t.say(session, 'two')
    await t.idle()
    assert.equal(await t.name(session), 'Second')
  })

  it('are skipped when a quota is spent', async () => {
    const { agentId, titles } = await t.agent({ text: 'Unpaid' })
    const quota = { project_id: app.projectId, scope: 'agent', scope_ref: agentId, metric: 'tokens' }
    expectStatus(
      await app.admin.post('/quotas', { ...quota, window: 'calendar_month', limit: 1, mode: 'enforce' }),
      201,
    )
    const session = await t.session(agentId)
    await t.say(session)
    await t.idle()
    assert.deepEqual([await t.name(session), (await titles()).length], [null, 0])
  })

  it('are not requested of the model of a shared agent, nor without stored content', async () => {
    const { agentId, titles } = await t.agent({ text: 'Unwanted' })
    const grantee = await app.projectWith(['sessions:*', 'shares:*'], undefined, app.projectId)
    const terms = { grantee: grantee.id, project_id: app.projectId }
    const share = await shared(app.admin, `srn:${app.projectId}:agent:${agentId}`, terms)
    await accepted(grantee.key, share.id)
    const theirs = expectStatus(await grantee.key.post('/sessions', { agent_id: agentId, auto_generate: true }), 201)
    expectStatus(await grantee.key.post(`/sessions/${theirs.id}/messages?wait=true`, { message: 'hello' }), 201)
    const silent = await t.agent({ text: 'Unwanted' }, { trace_content_mode: 'none' })
    const session = await t.session(silent.agentId)
    await t.say(session)
    await t.idle()
    assert.equal(await t.name(session), null)
    assert.deepEqual([(await titles()).length, (await silent.titles()).length], [0, 0])
  })

  it('are erased with the content of the end user, but not names given by others', async () => {
    const { agentId } = await t.agent({ text: 'Giraffe story' })
    const actor = { external_id: 'dan', name: 'Dan' }
    const [kept, renamed] = [await t.session(agentId, { actor }), await t.session(agentId, { actor })]
    for (const session of [kept, renamed]) await t.say(session)
    await t.idle()
    expectStatus(await app.key.patch(`/sessions/${renamed.id}`, { name: 'Case 7' }), 200)
    expectStatus(await app.key.post(`/actors/${kept.actor_id}/purge-content`), 202)
    await eventually(async () => (await t.run('select from actor_purges')).length === 0, { what: 'the purge' })
    assert.deepEqual([await t.name(kept), await t.name(renamed)], [null, 'Case 7'])
    assert.deepEqual(await placesOf(app, 'Giraffe'), [])
  })
})

describe('names of sessions and their workers', function () {
  this.timeout(120_000)
  const FAST = { GENERATION_LEASE_SECONDS: '2' }
  const app = forSuite(() => startSessionApp({ actions: ACTIONS, workers: [], env: FAST }))
  let t: ReturnType<typeof titlesOf>
  const steady = steadyWorkers()
  before(async () => {
    t = titlesOf(app)
  })
  afterEach(() => steady.stop())

  it('are set once after a killed worker', async () => {
    for (const point of ['session.title/claimed', 'title_answered', 'session.title/ending']) {
      const { agentId } = await t.agent({ text: 'Late order' })
      const session = await t.session(agentId)
      const turn = t.say(session)
      const doomed = await startProcess('worker', app.databaseUrl, { ...FAST, FAULT_POINTS: `${point}=kill` }, [
        'generation',
      ])
      assert.equal((await doomed.exited).signal, 'SIGKILL')
      await turn
      await steady.start(app.databaseUrl, FAST, ['generation'])
      await t.idle()
      assert.equal(await t.name(session), 'Late order')
      const updated = (await app.events('sessions.updated')).filter(({ resource_id }) => resource_id === session.id)
      assert.equal(updated.length, 1)
      await steady.stop()
    }
  })
})
