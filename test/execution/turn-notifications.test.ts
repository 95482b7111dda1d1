import assert from 'node:assert/strict'
import pg from 'pg'
import { sql } from '#core/db/sql.ts'
import { createSecretBox } from '#core/secrets/secretbox.ts'
import { readTurnEnd } from '#execution/generations/request/wait-for-turn.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'

const ACTIONS = ['agents:CreateAgentGeneration', 'sessions:*', 'actors:CreateActor']
const CLIENT_TOOL = { tool: { name: 'pick', type: 'client', parameters: { type: 'object' } } }
const script = (...replies: object[]) => ({ prompt: `@double ${JSON.stringify(replies)}` })
/** Poll of a request that waits. */
const POLL_MS = 2000
const pick = { tool_calls: [{ name: 'pick', args: { b: 1, a: 2 } }] }

describe('the end of a turn in its notification', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ actions: ACTIONS, env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  const double = forSuite(() => client(app.double))
  const heard: string[] = []
  const listener = forSuite(async () => {
    const connection = new pg.Client(app.databaseUrlOf(app.projectId))
    await connection.connect()
    connection.on('notification', ({ payload }) => heard.push(payload ?? ''))
    await connection.query('listen muster_turns')
    return {
      notify: (payload: string) => connection.query(`select pg_notify('muster_turns', $1)`, [payload]),
      close: () => connection.end(),
    }
  })
  beforeEach(() => void heard.splice(0))

  const open = (gate: string) => double.read('POST', `/control/gates/${gate}/open`)
  const send = async (path: string, body: object) => {
    const response = await fetch(`${app.url}/api/v1${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${app.key.token}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    const text = await response.text()
    return { status: response.status, text, body: JSON.parse(text) }
  }
  const rowReads = () => app.statements.filter(text => text.includes('as last_frame')).length
  const generate = (agent: string, body: object) => send(`/agents/${agent}/generate?wait=true`, body)
  /**
   * Sends a request that waits and returns the answer, and how often the process read the row of the turn for it. Repeats one
   * that took longer than the poll of a waiting request, which reads the row too.
   */
  const waited = async (agent: string, body: object) => {
    for (let tries = 1; ; tries++) {
      const before = rowReads()
      const started = performance.now()
      const reply = await generate(agent, body)
      if (performance.now() - started < POLL_MS || tries === 5) return { ...reply, reads: rowReads() - before }
    }
  }
  const rowAnswer = async (id: string) => JSON.stringify((await readTurnEnd(app.services, id))?.result)
  /** A turn whose model answers when its gate is opened, and whose caller waits. */
  const held = async (lane: string, reply: object = {}) => {
    await double.put(lane, { rules: [{ reply: { text: `answer of ${lane}`, gate: lane, ...reply } }] })
    const agent = await app.agent({ model: `${lane}/m` })
    const answer = generate(agent, { prompt: 'x' })
    const [turn] = await eventually(async () => {
      const rows = await app.rows('select id from generations where agent_id = $1', [agent])
      return (await double.requests(lane)).length === 1 ? rows : null
    })
    return { id: turn.id as string, answer }
  }

  it('is the answer that the row gives, which is not read', async () => {
    for (const text of ['short', 'ünïcode \u2028 "quoted" \\ \n', 'sentence '.repeat(700)]) {
      const { status, text: answer, body, reads } = await waited(app.agentId, script({ text }))
      assert.deepEqual([status, body.output.content, reads], [200, text, 0])
      assert.equal(answer, await rowAnswer(body.id))
    }
  })

  it('keeps the numbers of a structured answer as the model wrote them', async () => {
    const agent = await app.agent({ output_schema: { type: 'object' } })
    const written = '{"b":1.0,"a":12345678901234567890.5}'
    const { text: answer, body, reads } = await waited(agent, script({ text: written }))
    assert.equal(reads, 0)
    assert.ok(answer.includes(`"object":${written}`), answer)
    assert.equal(answer, await rowAnswer(body.id))
  })

  it('is not in it if it does not fit: the row is read', async () => {
    const noise = Array.from({ length: 2500 }, () => Math.random().toString(36).slice(2)).join(' ')
    for (const text of [noise.slice(0, 9000), noise]) {
      const { text: answer, body, reads } = await waited(app.agentId, script({ text }))
      assert.deepEqual([body.output.content, reads], [text, 1])
      assert.equal(answer, await rowAnswer(body.id))
      assert.ok(heard.includes(`${body.id} settled`))
    }
    assert.ok(heard.every(payload => payload.length <= 7000))
  })

  it('is readable only with the key of the deployment, whatever the content mode', async () => {
    for (const trace_content_mode of ['full', 'none']) {
      const agent = await app.agent({ trace_content_mode })
      const { text: answer, body, reads } = await waited(agent, script({ text: 'whispered '.repeat(300) }))
      assert.equal(reads, 0)
      assert.equal(answer, await rowAnswer(body.id))
      const payload = await eventually(() => heard.find(each => each.startsWith(`${body.id} settled`)))
      const [, , seq, sealed] = payload.split(' ')
      const row = { kind: 'turn_end', id: `${body.id}:${seq}`, project_id: null }
      const other = createSecretBox({ key: 'ab'.repeat(32) })
      assert.equal(other.openBytes(sealed, row).ok, false)
      assert.equal(app.services.secrets.openBytes(sealed, row).ok, true)
      assert.equal(app.services.secrets.openBytes(sealed, { ...row, id: `gen_x:${seq}` }).ok, false)
    }
  })

  it('has no answer of a turn in the background', async () => {
    const { body } = await send(`/agents/${app.agentId}/generate`, script({ text: 'unheard' }))
    await eventually(() => heard.some(payload => payload.startsWith(`${body.generation_id} settled`)))
    assert.ok(heard.includes(`${body.generation_id} settled`))
  })

  it('is read from the row if the turn failed', async () => {
    const agent = await app.agent({ output_schema: { type: 'object', required: ['n'] } })
    const { status, body, reads } = await waited(agent, script({ text: '{"m":1}' }))
    assert.deepEqual([status, body.error.code, reads], [502, 'OUTPUT_SCHEMA_VALIDATION_FAILED', 1])
    const { generation_id } = body.error.meta
    const failure = (await readTurnEnd(app.services, generation_id))?.failure
    const { generation_id: _, trace_id: __, ...meta } = body.error.meta
    assert.equal(JSON.stringify(meta), JSON.stringify(failure?.meta))
  })

  it('is a pause for the calls of the client, and then the rest', async () => {
    const agent = await app.agent({ tool_bindings: [CLIENT_TOOL] })
    const first = await waited(agent, script(pick, { text: 'picked' }))
    assert.deepEqual([first.body.status, first.reads], ['requires_action', 0])
    assert.equal(first.text, await rowAnswer(first.body.id))
    const [{ id }] = first.body.required_action.tool_calls
    const before = rowReads()
    const rest = await send(`/agents/${agent}/generate/${first.body.id}/tool-outputs`, {
      tool_outputs: [{ tool_call_id: id, output: 1 }],
    })
    assert.deepEqual([rest.body.status, rest.body.output.content, rowReads() - before], ['completed', 'picked', 0])
    assert.equal(rest.text, await rowAnswer(first.body.id))
  })

  it('has the result of a call that waits for an approval', async () => {
    const rule = { name: 'rule', project_id: app.projectId, document: { class: 'C' } }
    const guardrail = (await app.admin.post('/guardrails', rule)).body.id
    const tool_bindings = [{ tool: { name: 'refund', execute: { url: `${app.url}/healthz` } } }]
    const agent = await app.agent({ tool_bindings, guardrail_ids: [guardrail] })
    const call = { tool_calls: [{ name: 'refund', args: { amount: 500 } }] }
    const { text, body, reads } = await waited(agent, script(call, { text: 'waiting' }))
    assert.deepEqual([body.output.content, reads], ['waiting', 0])
    assert.ok(text.includes('pending_approval'))
    assert.equal(text, await rowAnswer(body.id))
  })

  it('of an earlier pause does not end the wait for the rest of a turn', async () => {
    await double.put('late', {
      rules: [{ when: { call: 1 }, reply: pick }, { reply: { text: 'picked', gate: 'late' } }],
    })
    const agent = await app.agent({ model: 'late/m', tool_bindings: [CLIENT_TOOL] })
    const first = await waited(agent, { prompt: 'x' })
    const paused = await eventually(() => heard.find(payload => payload.startsWith(`${first.body.id} settled`)))
    const [{ id }] = first.body.required_action.tool_calls
    const rest = send(`/agents/${agent}/generate/${first.body.id}/tool-outputs`, {
      tool_outputs: [{ tool_call_id: id, output: 1 }],
    })
    await eventually(async () => (await double.requests('late')).length === 2)
    await listener.notify(paused)
    await listener.notify(paused)
    await open('late')
    assert.deepEqual((await rest).body.output.content, 'picked')
  })

  it('is refused if another process made it, or if it is cut off', async () => {
    const { body: other } = await waited(app.agentId, script({ text: 'of another turn' }))
    const foreign = await eventually(() => heard.find(payload => payload.startsWith(`${other.id} settled`)))
    const { id, answer } = await held('forged')
    const box = createSecretBox({ key: 'cd'.repeat(32) })
    const head = JSON.stringify({ trace_id: 't', status: 'completed', content_mode: 'full' })
    const forged = box.seal(`${head}\n{"output":"forged"}`, { kind: 'turn_end', id: `${id}:99`, project_id: null })
    const [, , seq, sealed] = foreign.split(' ')
    const payloads = [`99 ${forged}`, `${seq} ${sealed}`, `${seq} ${sealed.slice(0, 40)}`, '1 ', '1', 'x y z', '99 v1.']
    for (const payload of payloads) await listener.notify(`${id} settled ${payload}`)
    await listener.notify(`${id} unknown`)
    await open('forged')
    const { status, body, text } = await answer
    assert.deepEqual([status, body.output.content], [200, 'answer of forged'])
    assert.equal(text, await rowAnswer(id))
  })

  it('may be lost: the row is read', async () => {
    const { id, answer } = await held('lost')
    const ended = await app.pool.any(sql.unsafe`
      select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and application_name = 'muster-listen'`)
    assert.ok(ended.length > 0)
    await open('lost')
    const { body, text } = await answer
    assert.equal(body.output.content, 'answer of lost')
    assert.equal(text, await rowAnswer(id))
  })

  it('has the reply of a waited message of a session, also through a queued turn of another message', async () => {
    const actor = await send('/actors', { name: 'caller' })
    const session = await send('/sessions', { agent_id: app.agentId, actor_id: actor.body.id, auto_generate: true })
    const before = rowReads()
    const message = async (text: string) => {
      const { text: answer, body } = await send(`/sessions/${session.body.id}/messages?wait=true`, { message: text })
      assert.ok(answer.includes(`"reply":${await rowAnswer(body.generation_id)}`), answer)
    }
    const { text, body } = await send(`/sessions/${session.body.id}/messages?wait=true`, { message: 'hello' })
    assert.equal(rowReads() - before, 0)
    assert.ok(text.includes(`"reply":${await rowAnswer(body.generation_id)}`), text)
    await Promise.all(['one', 'two', 'three'].map(message))
  })
})
