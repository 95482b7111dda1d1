import assert from 'node:assert/strict'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { contents, expectStatus, startSessionApp } from './session-support.ts'

const FAST = { GENERATION_LEASE_SECONDS: '2', CONVERSATION_SWEEP_SECONDS: '1' }

describe('a turn that was taken by a worker that is lost before it starts', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startSessionApp({
      actions: ['conversations:*', 'sessions:*', 'generations:*'],
      workers: [],
      env: FAST,
    }),
  )
  afterEach(() => steady.stop())

  const doomedWorker = () =>
    startProcess('worker', app.databaseUrl, { ...FAST, FAULT_POINTS: 'turn_taken=kill' }, ['generation'])
  const steady = steadyWorkers()
  const worker = () => steady.start(app.databaseUrl, FAST, ['generation'])
  /** The prompt of the model, but for the instructions. */
  const asked = async (requests: () => Promise<any[]>) =>
    (await requests()).map(({ body }) =>
      body.messages.filter(({ role }: any) => role !== 'system').map(({ content }: any) => content),
    )

  it('sees the messages of its first claim, and the next turn answers later ones', async () => {
    const { agentId, requests } = await app.scripted([{ reply: { text: 'answer' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const first = await app.say(session, 'one')
    const doomed = await doomedWorker()
    await doomed.exited
    assert.equal((await app.generation(first.generation_id)).status, 'pending')
    const second = await app.say(session, 'two')
    assert.notEqual(second.generation_id, first.generation_id)
    await worker()
    for (const { generation_id } of [first, second])
      assert.equal((await app.settled(generation_id)).status, 'completed')
    assert.deepEqual(await asked(requests), [['one'], ['one', 'answer', 'two']])
    assert.deepEqual(contents(await app.messages(session)), ['one', 'answer', 'two', 'answer'])
  })

  it('sees no message stored after its claim, by agents and chats', async () => {
    const chat = expectStatus(
      await app.admin.post('/chats', { project_id: app.projectId, ai_provider_id: app.providerId }),
      201,
    )
    const bot = { project_id: app.projectId, name: 'Bot', chat_id: chat.id }
    const actor_id = expectStatus(await app.admin.post('/actors', bot), 201).id
    for (const speaks of [{ agent_id: app.agentId }, { actor_id }]) {
      const { id } = expectStatus(await app.key.post('/conversations', {}), 201)
      const path = `/conversations/${id}`
      const say = async (message: string) =>
        expectStatus(await app.key.post(`${path}/messages`, { role: 'user', message }), 201)
      await say('one')
      const doomed = await doomedWorker()
      const answered = app.key.post(`${path}/generate?wait=true`, speaks)
      await doomed.exited
      await say('two')
      await worker()
      assert.equal(expectStatus(await answered, 200).content, 'echo: one')
      const { data } = (await app.key.get(`${path}/messages`)).body
      assert.deepEqual(contents(data), ['one', 'echo: one', 'two'])
      await steady.stop()
    }
  })
})
