import assert from 'node:assert/strict'
import { client } from '../local/double/client.ts'
import { type Client, eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { type Message, type OpenStream, openStream, readStream } from './streams.ts'

/** Streams check the permissions of their caller again with each ping. */
describe('a stream whose caller loses the right to it', () => {
  const app = forSuite(() => startAgentApp({ env: { STREAM_PING_INTERVAL_MS: '100' } }))
  const double = forSuite(() => client(app.double))

  let lanes = 0
  /** An agent whose model says one word and then waits until `finish` is called. */
  const waiting = async () => {
    const gate = `rights-${++lanes}`
    await double.put(gate, { rules: [{ reply: { text: 'one two three', gate, gate_after: 1 } }] })
    return {
      agent: await app.agent({ model: `${gate}/m` }),
      finish: () => double.read('POST', `/control/gates/${gate}/open`),
    }
  }
  const temporaryKey = async () => {
    const { body } = await app.admin.post('/project-keys', { project_id: app.projectId })
    return { key: app.as(body.secret), revoke: () => app.admin.delete(`/project-keys/${body.id}`) }
  }
  const open = (key: Client, path: string, body?: object, headers?: Record<string, string>) =>
    openStream({ url: app.url, key }, path, body, headers)
  /** Reads on while `until` has not been seen; `first` then has the received frames, and `rest` the later ones. */
  const readUntil = async (stream: OpenStream, until: string) => {
    const messages = stream.messages[Symbol.asyncIterator]()
    const first: Message[] = []
    while (first.at(-1)?.event !== until) {
      const next = await messages.next()
      assert.ok(!next.done, `the stream ended without ${until}: ${JSON.stringify(first)}`)
      first.push(next.value)
    }
    const rest = async () => {
      const messagesLeft: Message[] = []
      for (let next = await messages.next(); !next.done; next = await messages.next()) messagesLeft.push(next.value)
      return messagesLeft
    }
    return { first, rest }
  }
  const textOf = (messages: Message[]) =>
    messages
      .filter(({ event }) => event === 'delta')
      .map(({ data }) => data.choices[0].delta.content)
      .join('')
  const completed = (id: string) =>
    eventually(async () => {
      const { body } = await app.key.get(`/generations/${id}`)
      return body.status === 'completed' ? body : null
    })

  it('ends with UNAUTHORIZED when the key is deleted, while the turn continues and another key can resume', async () => {
    const { agent, finish } = await waiting()
    const { key, revoke } = await temporaryKey()
    const stream = await readUntil(await open(key, `/agents/${agent}/generate`, { prompt: 'x', stream: true }), 'delta')
    assert.equal((await revoke()).status, 204)
    const last = await stream.rest()
    assert.deepEqual(
      last.map(({ event, data }) => [event, data.code]),
      [['error', 'UNAUTHORIZED']],
    )
    await finish()
    const id = stream.first[0].data.generation_id
    assert.equal((await completed(id)).output.content, 'one two three')
    const resumed = await readStream(
      await open(app.key, `/generations/${id}/stream`, undefined, { 'last-event-id': String(last[0].id) }),
    )
    assert.equal(textOf([...stream.first, ...resumed]), 'one two three')
  })

  it('ends with FORBIDDEN when the policy is taken away, for a stream that was attached to as well', async () => {
    const { agent, finish } = await waiting()
    const user = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['generations:GetGeneration'], resource: ['*'] }] },
    ])
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    const stream = await readUntil(await open(user, `/generations/${body.generation_id}/stream`), 'started')
    assert.equal((await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [] })).status, 204)
    const [error, ...more] = await stream.rest()
    assert.deepEqual([error.event, error.data.code, more.length], ['error', 'FORBIDDEN', 0])
    assert.equal(error.data.meta.action, 'generations:GetGeneration')
    await finish()
    await completed(body.generation_id)
  })

  it('ends for turns of conversations, of sessions and of retries too', async () => {
    const { agent, finish } = await waiting()
    const say = { role: 'user', message: 'hello' }
    const conversation = (await app.key.post('/conversations', {})).body.id
    await app.key.post(`/conversations/${conversation}/messages`, say)
    const session = (await app.key.post('/sessions', { agent_id: agent })).body.id
    await app.key.post(`/sessions/${session}/messages`, { message: 'hello' })
    const failing = await app.agent({ model: 'rights-failing/m' })
    await double.put('rights-failing', {
      rules: [{ replies: [{ error: { status: 400 } }, { text: 'a b', gate: `rights-${lanes}`, gate_after: 1 }] }],
    })
    const failed = (await app.key.post(`/agents/${failing}/generate?wait=true`, { prompt: 'x' })).body.error.meta
    for (const [path, body] of [
      [`/conversations/${conversation}/generate`, { agent_id: agent, stream: true }],
      [`/sessions/${session}/generate`, { stream: true }],
      [`/generations/${failed.generation_id}/retry`, { stream: true }],
    ] as const) {
      const { key, revoke } = await temporaryKey()
      const stream = await readUntil(await open(key, path, body), 'delta')
      await revoke()
      const last = await stream.rest()
      assert.deepEqual([last.length, last[0].event, last[0].data.code], [1, 'error', 'UNAUTHORIZED'], path)
    }
    await finish()
  })

  it('keeps the stream of a caller that has lost nothing open over many pings', async () => {
    const { agent, finish } = await waiting()
    const response = await fetch(`${app.url}/api/v1/agents/${agent}/generate`, {
      method: 'POST',
      headers: { authorization: `Bearer ${app.key.token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: 'x', stream: true }),
    })
    let text = ''
    let finished = false
    for await (const chunk of (response.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream())) {
      text += chunk
      if (!finished && text.split(': ping\n\n').length > 3) {
        finished = true
        await finish()
      }
    }
    assert.match(text, /event: completed/)
  })

  it('breaks off an export of messages between two of its pages', async () => {
    const { key, revoke } = await temporaryKey()
    const { id } = (await app.key.post('/conversations', {})).body
    const messages = 120
    const message = 'x'.repeat(200_000)
    for (let sent = 0; sent < messages; sent += 10)
      await Promise.all(
        Array.from({ length: 10 }, () => app.key.post(`/conversations/${id}/messages`, { role: 'user', message })),
      )
    const response = await fetch(`${app.url}/api/v1/conversations/${id}/export`, {
      headers: { authorization: `Bearer ${key.token}` },
    })
    const reader = (response.body as ReadableStream<Uint8Array>).getReader()
    await reader.read()
    await revoke()
    // The next page is requested after the interval.
    await new Promise(resolve => setTimeout(resolve, 200))
    await assert.rejects(async () => {
      while (!(await reader.read()).done);
    })
  })
})
