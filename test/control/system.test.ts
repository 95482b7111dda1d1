import assert from 'node:assert/strict'
import { setTimeout } from 'node:timers/promises'
import { messageEntity } from '#control/system/status.ts'
import { sql, voidStatement } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { handler } from '#core/work/handler.ts'
import { claimMessages, scheduleRetry } from '#core/work/message-claims.ts'
import { startWorkers } from '#core/work/worker.ts'
import { turnQueue } from '#execution/generations/request/create.ts'
import { eventually, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const MESSAGES = `/system/queues/${turnQueue.name}/messages`

describe('the system', () => {
  const app = forSuite(startApp)
  beforeEach(() =>
    app.pool.query(voidStatement`
      with gone as (delete from worker_heartbeats) delete from pgboss.job_common where name like ${`${turnQueue.name}%`}`),
  )

  const send = (project_id: string, ...ids: string[]) =>
    app.services.queues.send(ids.map(generation_id => queueMessage(turnQueue, { generation_id, project_id })))
  const generation = (n: number) => `gen_01k5p3vd7r9hj2x8m4qcw6tz${String(n).padStart(2, '0')}`
  const worker = (slots: number, share: number, ageSeconds = 0, more: object = {}) =>
    app.pool.query(voidStatement`
      insert into worker_heartbeats (instance_id, kinds, started_at, beat_at, version, queues)
      values (${`w${slots}`}, '{generation}', now(), now() - ${ageSeconds} * interval '1 s', '1.2.3',
        ${JSON.stringify({ [turnQueue.name]: { slots, share, ...more } })}::jsonb)`)
  const claim = async (limit: number) => {
    const request = { limit, last: '', held: new Map(), share: 9, borrow: 9 }
    return (await claimMessages(app.services.queues.db, turnQueue, request))?.jobs ?? []
  }
  const list = async (query = '') => (await app.admin.get(`${MESSAGES}${query}`)).body
  const reasons = async (query?: string) =>
    Object.fromEntries(
      (await list(query)).data.map(({ entity, state, waits_for }: Record<string, any>) => [
        Number(entity.id.slice(-2)),
        `${state} ${waits_for}`,
      ]),
    )
  /** Leaves a dead letter of a turn in the way of every other one: its attempts fail. */
  const fail = async (project_id: string) => {
    await send(project_id, generation(1))
    const broken = handler(turnQueue, {}, async (_, { retryIn }) => {
      retryIn(0)
      throw new Error('broken')
    })
    const workers = await startWorkers({ services: app.services, handlers: [broken], concurrency: 1, pollMs: 20 })
    try {
      return await eventually(async () => (await list('?state=dead')).data[0])
    } finally {
      await workers.stop(1000)
    }
  }

  it('says why each message waits, and of which record it is', async () => {
    const [one, other] = [await app.project(), await app.project()]
    await send(one.id, generation(1), generation(2))
    assert.deepEqual(await reasons(), { 1: 'waiting no_worker', 2: 'waiting no_worker' })
    await worker(9, 9, 3600)
    assert.deepEqual(await reasons(), { 1: 'waiting no_worker', 2: 'waiting no_worker' })

    await worker(2, 1)
    const [first] = await claim(1)
    await send(one.id, generation(1))
    await send(other.id, generation(3))
    assert.deepEqual(await reasons('?state=waiting'), {
      1: 'waiting entity',
      2: 'waiting project_share',
      3: 'waiting null',
    })
    await claim(1)
    const third = await app.project()
    await send(third.id, generation(4))
    assert.deepEqual(await reasons(`?state=waiting&project_id=${third.id}`), { 4: 'waiting slot' })
    await scheduleRetry(app.services.queues.db, turnQueue, first, 60_000, { error: { message: 'not yet' } })
    const [delayed] = (await list('?state=delayed')).data
    assert.deepEqual(
      [delayed.waits_for, delayed.attempts, delayed.error, delayed.entity],
      ['backoff', 1, 'not yet', { kind: 'generation', id: generation(1) }],
    )
    const [active] = (await list('?state=active')).data
    assert.ok(Date.parse(active.lease_expires_at) > Date.now())
    assert.ok(!('data' in active))
    assert.equal((await list('?older_than_seconds=3600')).total, 0)
    for (const value of ['', '0x10', '1.5', '-1'])
      assert.equal((await list(`?older_than_seconds=${value}`)).error?.code, 'VALIDATION_FAILED', value)
    assert.equal((await list('?limit=1')).total, 5)
  })

  it('shows queues with the slots of live workers, and projects with their share', async () => {
    const project = await app.project()
    await worker(4, 2, 0, { written_by: 'a later release' })
    await worker(3, 3, 3600)
    await send(project.id, generation(1), generation(2))
    await claim(1)
    const read = async () => (await app.admin.get('/system/status')).body
    const status = await eventually(async () => {
      const found = await read()
      return found.projects.some(({ project_id }: { project_id: string }) => project_id === project.id) && found
    })
    const queue = status.queues.find(({ name }: { name: string }) => name === turnQueue.name)
    assert.deepEqual(
      { ...queue, oldest_seconds: 0 },
      { name: turnQueue.name, waiting: 1, delayed: 0, active: 1, dead: 0, oldest_seconds: 0, slots: 4, workers: 1 },
    )
    const own = status.projects.find(({ project_id }: { project_id: string }) => project_id === project.id)
    assert.deepEqual(own, { project_id: project.id, active: 1, waiting: 1, share: 2 })
    assert.equal(status.checks.database, 'ok')
    assert.deepEqual(
      status.processes.map(({ kind, version, stale }: Record<string, unknown>) => [kind, version !== null, stale]),
      [
        ['web', true, false],
        ['worker', true, false],
        ['worker', true, true],
      ],
    )
  })

  it('reads the status once while the database is slow', async () => {
    const waiting = () =>
      app.pool.oneFirst(sql.unsafe`
        select count(*) from pg_stat_activity where datname = current_database()
          and wait_event_type = 'Lock' and query like '%worker_heartbeats%'`)
    const read = () => app.admin.get('/system/status')
    const [locked, released] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    await setTimeout(2100)
    const lock = app.services.pool.transaction(async tx => {
      await tx.query(sql.unsafe`lock table worker_heartbeats in access exclusive mode`)
      locked.resolve()
      await released.promise
    })
    await locked.promise
    const first = read()
    let later: typeof first | undefined
    try {
      await eventually(async () => Number(await waiting()) === 1)
      await setTimeout(2100)
      later = read()
      await setTimeout(500)
      assert.equal(Number(await waiting()), 1)
    } finally {
      released.resolve()
      await lock
    }
    for (const answer of [first, later]) assert.equal((await answer)?.status, 200)
  })

  it('takes as the record of a message only an ID, not a text that begins like one', () => {
    const data = (text: string) => messageEntity({ key: null, data: { project_id: generation(2), text } })
    assert.deepEqual(data(generation(1)), { kind: 'generation', id: generation(1) })
    for (const text of ['gen_the password is hunter2', `${generation(1)} and more`]) assert.equal(data(text), null)
  })

  it('replays and deletes dead letters only, and audits it', async () => {
    const project = await app.project()
    const dead = await fail(project.id)
    assert.deepEqual([dead.state, dead.attempts, dead.error, dead.waits_for], ['dead', 9, 'broken', null])
    const replayed = await app.admin.post(`${MESSAGES}/${dead.id}/replay`)
    assert.equal(replayed.status, 202, JSON.stringify(replayed.body))
    assert.deepEqual(await reasons(), { 1: 'waiting no_worker' })
    const [waiting] = (await list()).data
    for (const id of [waiting.id, dead.id, 'x']) {
      assert.equal((await app.admin.post(`${MESSAGES}/${id}/replay`)).status, 404)
      assert.equal((await app.admin.delete(`${MESSAGES}/${id}`)).status, 404)
    }
    await claim(1)
    await app.pool.query(voidStatement`delete from pgboss.job_common where name = ${turnQueue.name}`)
    const other = await fail(project.id)
    assert.equal((await app.admin.delete(`${MESSAGES}/${other.id}`)).status, 204)
    assert.equal((await list()).total, 0)
    const entries = (await app.admin.get('/audit-log?action=system:ManageDeadLetters&status=202&status=204')).body.data
    assert.deepEqual(
      entries.map(({ resource_public_id, detail }: Record<string, any>) => [resource_public_id, detail.queue]),
      [
        [other.id, turnQueue.name],
        [dead.id, turnQueue.name],
      ],
    )
  })

  it('shows settings without the values of secrets', async () => {
    const { data } = (await app.admin.get('/system/settings?limit=100')).body
    const find = (name: string) => data.find((each: { name: string }) => each.name === name)
    assert.equal(find('CONSOLE_ENABLED').value, 'true')
    assert.deepEqual([find('JWT_SECRET').value, find('JWT_SECRET').secret, find('JWT_SECRET').set], [null, true, true])
    const all = JSON.stringify(data)
    for (const secret of [app.config.JWT_SECRET, app.config.DATABASE_URL]) assert.ok(!all.includes(secret))
  })

  it('lists home alone in a deployment without cells, which has no other for a project', async () => {
    const { data, total } = (await app.admin.get('/system/cells')).body
    assert.deepEqual([total, data[0].name, data[0].number, data[0].reachable], [1, 'home', 0, true])
    const projects = (await app.admin.get('/projects')).body.total
    assert.equal(data[0].projects, projects)
    assert.equal((await app.admin.post('/projects', { name: 'Here', cell: 'home' })).status, 201)
    const elsewhere = await app.admin.post('/projects', { name: 'There', cell: 'second' })
    assert.deepEqual([elsewhere.status, elsewhere.body.error.meta.problems[0].path], [400, 'cell'])
    assert.equal((await app.admin.get('/projects')).body.total, projects + 1)
  })

  it('is refused to callers who are no admins', async () => {
    const user = await app.user('reader', [{ statement: [{ effect: 'Allow', action: ['*'], resource: ['*'] }] }])
    for (const path of ['/system/status', '/system/settings', '/system/cells', MESSAGES])
      assert.equal((await user.get(path)).status, 403)
    assert.equal((await app.admin.get('/system/queues/none/messages')).status, 404)
  })
})
