import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { openStream, readStream } from '../execution/streams.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { runWorker } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { postedBy, refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const FAST = { GENERATION_LEASE_SECONDS: '2', CONVERSATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }

describe('replies of chats', () => {
  const app = forSuite(() =>
    startAgentApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', ...FAST },
      actions: ['conversations:*', 'generations:ListGenerations', 'traces:ListTraces'],
    }),
  )
  const double = forSuite(() => client(app.double))

  const admin = (path: string, body: object) => postedBy(app.admin, path, { project_id: app.projectId, ...body })
  /** An actor that a chat speaks as. */
  const speaker = async (fields: object = {}, actor: object = {}) => {
    const chat = await admin('/chats', { ai_provider_id: app.providerId, ...fields })
    return admin('/actors', { name: 'Bot', chat_id: chat.id, ...actor })
  }
  const conversation = async (...messages: string[]) => {
    const { id } = await admin('/conversations', {})
    for (const message of messages) await app.admin.post(`/conversations/${id}/messages`, { role: 'user', message })
    return { id, path: `/conversations/${id}` }
  }
  const messages = async (path: string): Promise<any[]> => (await app.key.get(`${path}/messages`)).body.data
  const asked = async (lane: string) => (await double.requests(lane)).at(-1)?.body.messages

  it('are one completion by the settings of the chat, without a generation', async () => {
    await double.put('reply', { rules: [] })
    const actor = await speaker({ model: 'reply/m', instructions: 'Be brief' }, { instructions: 'You are Bot' })
    const { id, path } = await conversation('first', 'hello')
    const { status, body } = await app.key.post(`${path}/generate?wait=true`, { actor_id: actor.id })
    assert.equal(status, 200, JSON.stringify(body))
    assert.deepEqual(
      [body.status, body.content, body.model, body.generation_id, body.trace_id],
      ['completed', 'echo: hello', 'reply/m', null, null],
    )
    const { role, actor_id, agent_id, generation_id, position, model } = body.message
    assert.deepEqual(
      [role, actor_id, agent_id, generation_id, position, model],
      ['assistant', actor.id, null, null, 2, 'reply/m'],
    )
    const sent = await asked('reply')
    assert.match(sent[0].content, /^Be brief\n\nYou are Bot\n\nYou speak as Bot\./)
    assert.deepEqual(
      sent.slice(1).map(({ content }: any) => content),
      ['first', 'hello'],
    )
    assert.equal((await app.key.get(`/generations?conversation_id=${id}`)).body.total, 0)
    const events = await storedEvents(app.pool, { resource: body.message.document_id })
    assert.deepEqual(
      events.map(({ name }) => name),
      ['conversation_messages.created', 'conversation_messages.generated'],
    )
    const other = await app.key.post(`${path}/generate?wait=true`, { actor_id: actor.id, model: 'reply/other' })
    assert.equal(other.body.model, 'reply/other')
  })

  it('come in the background, and as a stream', async () => {
    const actor = await speaker()
    const { id, path } = await conversation('hello')
    const { status, body } = await app.key.post(`${path}/generate`, { actor_id: actor.id })
    const accepted = { status: 'accepted', conversation_id: id, generation_id: null, trace_id: null }
    assert.deepEqual([status, body], [202, accepted])
    await eventually(async () => (await messages(path)).length === 2, { what: 'the reply' })
    const stream = await readStream(await openStream(app, `${path}/generate`, { actor_id: actor.id, stream: true }))
    assert.deepEqual(
      stream.map(({ event }: any) => event),
      ['started', 'delta', 'completed'],
    )
    assert.equal(stream[1].data.choices[0].delta.content, stream[2].data.content)
    assert.equal((await messages(path)).at(-1).document_id, stream[2].data.message.document_id)
  })

  it('are refused as requests', async () => {
    const actor = await speaker()
    const { path } = await conversation('hello')
    const generate = (body: object, of = path) => app.key.post(`${of}/generate?wait=true`, body)
    const loose = await admin('/actors', { name: 'Ann' })
    assert.deepEqual(refusalOf(await generate({ actor_id: loose.id })), [400, 'VALIDATION_FAILED'])
    assert.deepEqual(refusalOf(await generate({ actor_id: actor.id, agent_id: app.agentId })), [
      400,
      'VALIDATION_FAILED',
    ])
    assert.deepEqual(refusalOf(await generate({ actor_id: 'actor_x' })), [400, 'ACTOR_NOT_FOUND'])
    const foreign = (await app.admin.post('/actors', { project_id: (await app.project()).id, name: 'x' })).body
    assert.deepEqual(refusalOf(await generate({ actor_id: foreign.id })), [400, 'ACTOR_NOT_FOUND'])
    const empty = await conversation()
    assert.deepEqual(refusalOf(await generate({ actor_id: actor.id }, empty.path)), [400, 'VALIDATION_FAILED'])
    const session = await admin('/sessions', { agent_id: app.agentId })
    await app.admin.post(`/sessions/${session.id}/messages`, { message: 'hello' })
    const ofSession = await generate({ actor_id: actor.id }, `/conversations/${session.conversation_id}`)
    assert.deepEqual(refusalOf(ofSession), [400, 'VALIDATION_FAILED'])
    await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'a test' })
    assert.deepEqual(refusalOf(await generate({ actor_id: actor.id })), [409, 'PROJECT_PAUSED'])
    await app.admin.post(`/projects/${app.projectId}/resume`)
  })

  it('fail as their provider does, and leave no message', async () => {
    await double.put('failing', { rules: [{ reply: { error: { status: 400, message: 'not this one' } } }] })
    const actor = await speaker({ model: 'failing/m' })
    const { path } = await conversation('hello')
    const failed = await app.key.post(`${path}/generate?wait=true`, { actor_id: actor.id })
    assert.deepEqual(refusalOf(failed), [502, 'AI_PROVIDER_ERROR'])
    const stream = await readStream(await openStream(app, `${path}/generate`, { actor_id: actor.id, stream: true }))
    assert.deepEqual([stream.at(-1)?.event, stream.at(-1)?.data.code], ['error', 'AI_PROVIDER_ERROR'])
    assert.equal((await messages(path)).length, 1)
  })

  it('run in sequence with agent turns, each reply after the messages it has seen', async () => {
    await double.put('queue', {
      rules: [{ when: { system: 'chat' }, reply: { text: 'from the chat', gate: 'queue' } }],
    })
    const actor = await speaker({ model: 'queue/m', instructions: 'a chat' })
    const agent = await app.agent({ model: 'queue/m', instructions: 'an agent' })
    const { path } = await conversation('hello')
    const first = app.key.post(`${path}/generate?wait=true`, { actor_id: actor.id })
    await eventually(async () => ((await double.gate('queue'))?.waiting ?? 0) > 0, { what: 'the call of the chat' })
    const second = app.key.post(`${path}/generate?wait=true`, { agent_id: agent })
    await app.admin.post(`${path}/messages`, { role: 'user', message: 'meanwhile' })
    await double.read('POST', '/control/gates/queue/open')
    assert.equal((await first).body.content, 'from the chat')
    assert.equal((await second).status, 200)
    assert.deepEqual(
      (await messages(path)).map(({ content }) => content),
      ['hello', 'from the chat', 'meanwhile', 'echo: meanwhile'],
    )
  })

  it('are lost with their conversation, and with their chat', async () => {
    await double.put('gone', { rules: [{ reply: { text: 'late', gate: 'gone' } }] })
    const actor = await speaker({ model: 'gone/m' })
    const { path } = await conversation('hello')
    const running = app.key.post(`${path}/generate?wait=true`, { actor_id: actor.id })
    await eventually(async () => ((await double.gate('gone'))?.waiting ?? 0) > 0, { what: 'the call' })
    assert.equal((await app.key.delete(path)).status, 204)
    assert.deepEqual(refusalOf(await running), [404, 'RESOURCE_NOT_FOUND'])

    const other = await conversation('hello')
    const before = app.key.post(`${other.path}/generate?wait=true`, { actor_id: actor.id })
    await eventually(async () => ((await double.gate('gone'))?.waiting ?? 0) > 1, { what: 'the next call' })
    const waiting = app.key.post(`${other.path}/generate?wait=true`, { actor_id: actor.id })
    await eventually(async () => (await turnsOf(other.id)) === 2, { what: 'the turn that waits' })
    assert.equal((await app.admin.delete(`/chats/${actor.chat_id}`)).status, 204)
    await double.read('POST', '/control/gates/gone/open')
    assert.equal((await before).body.content, 'late')
    assert.deepEqual(refusalOf(await waiting), [400, 'CHAT_NOT_FOUND'])
    assert.deepEqual(refusalOf(await app.key.post(`${other.path}/generate`, { actor_id: actor.id })), [
      400,
      'VALIDATION_FAILED',
    ])
  })

  const turnsOf = async (id: string): Promise<number> => {
    const { rawQuery } = await import('#core/db/sql.ts')
    return (
      (await app.pool.any(
        rawQuery('select seq from conversation_turns where conversation_id = $1', [id]),
      )) as readonly unknown[]
    ).length
  }

  it('are stored once when the worker is killed between the answer and the reply', async () => {
    const alone = await startAgentApp({ workers: [], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', ...FAST } })
    try {
      const env = { EGRESS_ALLOW_HOSTS: '127.0.0.1', ...FAST }
      const make = async (path: string, body: object) => (await alone.key.post(path, body)).body
      const chat = await make('/chats', { ai_provider_id: alone.providerId })
      const actor = await make('/actors', { name: 'Bot', chat_id: chat.id })
      const { id } = await make('/conversations', {})
      await make(`/conversations/${id}/messages`, { role: 'user', message: 'hello' })
      const waiting = alone.key.post(`/conversations/${id}/generate?wait=true`, { actor_id: actor.id })
      const first = await startProcess('worker', alone.databaseUrl, { ...env, FAULT_POINTS: 'chat_answered=kill' }, [
        'generation',
      ])
      await first.exited
      const second = await runWorker(alone.databaseUrl, env, ['generation'])
      try {
        assert.equal((await waiting).body.content, 'echo: hello')
        const { data } = (await alone.key.get(`/conversations/${id}/messages`)).body
        assert.deepEqual(
          data.map(({ content }: any) => content),
          ['hello', 'echo: hello'],
        )
      } finally {
        await second.stop()
      }
    } finally {
      await alone.close()
    }
  })
})
