import assert from 'node:assert/strict'
import pg from 'pg'
import { rawQuery } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
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

describe('a message or a turn during another change of its conversation', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startSessionApp({ actions: ['conversations:*', 'sessions:*', 'generations:*'], workers: [] }),
  )
  const steady = steadyWorkers()
  afterEach(() => steady.stop())

  /**
   * Carries out a change that has the conversation's lock and waits for the session's row, and starts `second` meanwhile, which
   * waits for the lock. Then both continue.
   */
  async function withWaiting<T, S>(session: any, change: () => Promise<T>, second: () => Promise<S>): Promise<[T, S]> {
    const holder = new pg.Client({ connectionString: app.databaseUrlOf(app.projectId) })
    await holder.connect()
    try {
      const waiting = (count: number) =>
        eventually(
          async () => {
            const { rowCount } = await app.pool.query(
              rawQuery(`select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`),
            )
            return rowCount >= count
          },
          { what: `${count} statements that wait for a lock` },
        )
      await holder.query('begin')
      await holder.query('select from sessions where id = $1 for update', [session.id])
      const changed = change()
      await waiting(1)
      const done = second()
      await waiting(2)
      await holder.query('commit')
      return await Promise.all([changed, done])
    } finally {
      await holder.end()
    }
  }

  const startWorker = () => steady.start(app.databaseUrl, FAST, ['generation'])
  const takeDuring = async <T>(session: any, change: () => Promise<T>): Promise<T> =>
    (await withWaiting(session, change, startWorker))[0]

  it('of two messages each has a position', async () => {
    const session = await app.session({ auto_generate: true })
    const [first, second] = await withWaiting(
      session,
      () => app.say(session, 'one'),
      () => app.say(session, 'two'),
    )
    assert.deepEqual([first.position, second.position], [0, 1])
    assert.equal(second.generation_id, first.generation_id)
    assert.deepEqual(contents(await app.messages(session)), ['one', 'two'])
  })

  it('a message is refused once its session was closed', async () => {
    const session = await app.session({ auto_generate: true })
    const [closed, refused] = await withWaiting(
      session,
      () => app.key.patch(`/sessions/${session.id}`, { status: 'closed' }),
      () => app.key.post(`/sessions/${session.id}/messages`, { message: 'one' }),
    )
    expectStatus(closed, 200)
    assert.equal(expectStatus(refused, 409).error.code, 'SESSION_CLOSED')
    assert.deepEqual(await app.messages(session), [])
  })

  it('a turn answers a message that was added to it', async () => {
    const { agentId, requests } = await app.scripted([{ reply: { text: 'answer' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const { generation_id } = await app.say(session, 'one')
    const second = await takeDuring(session, () => app.say(session, 'two'))
    assert.equal(second.generation_id, generation_id)
    assert.equal((await app.settled(generation_id)).status, 'completed')
    assert.deepEqual(
      (await requests()).map(({ body }) => body.messages.map(({ content }: any) => content)),
      [['one', 'two']],
    )
    assert.deepEqual(contents(await app.messages(session)), ['one', 'two', 'answer'])
  })

  it('a turn has the changed session', async () => {
    const session = await app.session({ auto_generate: true })
    const { generation_id } = await app.say(session, 'one')
    await takeDuring(session, () => app.key.patch(`/sessions/${session.id}`, { name: 'Renamed' }))
    await app.settled(generation_id)
    const started = (await app.events('sessions.generation_started')).at(-1)
    assert.deepEqual([started?.data.id, started?.data.name], [session.id, 'Renamed'])
  })

  it('a turn fails if its session was closed', async () => {
    const session = await app.session({ auto_generate: true })
    const { generation_id } = await app.say(session, 'one')
    const closed = await takeDuring(session, () => app.key.patch(`/sessions/${session.id}`, { status: 'closed' }))
    assert.equal(closed.body.status, 'closed')
    assert.equal((await app.settled(generation_id)).error.code, 'SESSION_CLOSED')
    assert.deepEqual(contents(await app.messages(session)), ['one'])
  })
})
