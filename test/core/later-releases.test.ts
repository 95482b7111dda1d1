import assert from 'node:assert/strict'
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import pino, { type Logger } from 'pino'
import { loadConfig } from '#config.ts'
import { NewerFormatError } from '#core/base/format-versions.ts'
import { silentLog } from '#core/base/log.ts'
import { type Notifier, openNotifier } from '#core/db/notifier.ts'
import { type Notifications, openNotifications } from '#core/db/notify.ts'
import { loadModules } from '#core/modules/module.ts'
import {
  createQueuesInDatabase,
  openQueues,
  type Queue,
  type Queues,
  queueMessage,
  queues as queueTable,
} from '#core/queues/queue.ts'
import { type Handler, handler } from '#core/work/handler.ts'
import { startWorkers, type Workers } from '#core/work/worker.ts'
import { modules } from '#modules.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { mailbox, tasks } from '../support/queue-fixtures.ts'

/** A queue as the next release declares it. */
const later = <M extends object>(queue: Queue<M>): Queue<M> => ({ ...queue, version: queue.version + 1 })

describe('messages of a later release', function () {
  this.timeout(60_000)
  let databaseUrl: string
  let notifier: Notifier
  let queues: Queues
  let listen: Notifications
  let pool: pg.Pool
  const started: Workers[] = []
  const children: ChildProcess[] = []

  before(async () => {
    databaseUrl = await createDatabase()
    queueTable.fill([mailbox, tasks])
    await createQueuesInDatabase(databaseUrl)
    notifier = openNotifier({ databaseUrl, log: silentLog() })
    queues = await openQueues({ databaseUrl, connections: 4, notifier, log: silentLog() })
    listen = await openNotifications({ databaseUrl, log: silentLog() })
    pool = new pg.Pool({ connectionString: databaseUrl, max: 4 })
    await pool.query(`
      create table worker_heartbeats (instance_id text primary key, holder text);
      create table entity (id text primary key, posted int not null default 0, seen int not null default 0);
      create table spans (n serial primary key, entity text, worker text,
        started timestamptz not null default clock_timestamp(), ended timestamptz);
      create table trail (n serial primary key, task text, worker text, attempt int, what text);
      create table leaves (n serial primary key, times int, delay numeric);
      create function log_leave() returns trigger language plpgsql as $$ begin
        insert into leaves (times, delay) values (
          (new.data ->> 'left_to_later_release')::int, extract(epoch from new.start_after - now()));
        return null;
      end $$;
      create trigger log_leave after update on pgboss.job_common for each row
        when (new.data ->> 'left_to_later_release' is distinct from old.data ->> 'left_to_later_release')
        execute function log_leave();`)
  })

  afterEach(async () => {
    for (const child of children.splice(0)) child.kill('SIGKILL')
    await Promise.all(started.splice(0).map(workers => workers.stop(0)))
    await pool.query('delete from pgboss.job_common; truncate entity, spans, trail, leaves')
  })

  after(async () => {
    await listen?.close()
    await queues?.close()
    await notifier?.close()
    await pool?.end()
    loadModules(modules)
    await dropDatabase(new URL(databaseUrl).pathname.slice(1))
  })

  /** Starts a worker process whose queues have a version, which is its name. */
  async function startWorker(version: 1 | 2): Promise<ChildProcess> {
    const program = path.resolve(import.meta.dirname, '../support/queue-worker.ts')
    const child = fork(program, [databaseUrl, `release ${version}`, String(version)])
    children.push(child)
    await once(child, 'message')
    return child
  }

  async function run(handlers: Handler[], log: Logger): Promise<void> {
    const config = loadConfig(testEnvironment(databaseUrl))
    started.push(await startWorkers({ services: { queues, log, config }, handlers, concurrency: 10, listen }))
  }

  function recorder(): { log: Logger; lines: Record<string, any>[] } {
    const lines: Record<string, any>[] = []
    return { lines, log: pino({}, { write: line => lines.push(JSON.parse(line)) }) }
  }

  async function until(what: string, done: () => boolean | Promise<boolean>, ms = 30_000): Promise<void> {
    for (const deadline = Date.now() + ms; !(await done()); await sleep(10))
      if (Date.now() > deadline) throw new Error(`not reached in ${ms} ms: ${what}`)
  }

  const rows = async (sql: string, values: unknown[] = []) => (await pool.query(sql, values)).rows
  const ends = () => rows(`select task, worker, attempt from trail where what = 'end' order by task`)
  const message = async (id: string) =>
    (await rows(`select * from pgboss.job_common where data ->> 'id' = $1 and name not like '%.dead'`, [id]))[0]
  const timesLeft = async (id: string): Promise<number> => (await message(id)).data.left_to_later_release ?? 0
  const dead = async () => (await queues.deadLetters.list({ queue: tasks.name })).length

  it('are left to its workers, which read messages of the release before too; other messages do not wait', async function () {
    this.timeout(180_000)
    await startWorker(1)
    await queues.send(['n1', 'n2', 'n3'].map(id => queueMessage(later(tasks), { id })))
    await until('left', async () => (await timesLeft('n3')) > 0)
    await queues.send(Array.from({ length: 20 }, (_, n) => queueMessage(tasks, { id: `o${n + 10}` })))
    await until('others', async () => (await ends()).length === 20)
    for (const id of ['n1', 'n2', 'n3']) {
      const { state, retry_count, started_on } = await message(id)
      assert.deepEqual({ state, retry_count, started_on }, { state: 'created', retry_count: 0, started_on: null })
    }
    await startWorker(2)
    // Either worker may claim them next, and each time that it is the earlier one they wait longer.
    await until('all', async () => (await ends()).length === 23, 120_000)
    const fromLater = (await ends()).filter(({ task }) => task.startsWith('n'))
    assert.deepEqual(
      fromLater,
      ['n1', 'n2', 'n3'].map(task => ({ task, worker: 'release 2', attempt: 1 })),
    )
    for (const child of children.splice(0, 1)) child.kill('SIGKILL')
    await queues.send([queueMessage(tasks, { id: 'p' })])
    await until('one of the release before', async () => (await ends()).some(({ task }) => task === 'p'))
  })

  it('wait longer each time, and are logged once', async () => {
    const { log, lines } = recorder()
    let handled = 0
    await run([handler(tasks, {}, async () => void handled++)], log)
    await queues.send([queueMessage(later(tasks), { id: 'n' })])
    await until('left twice', async () => (await timesLeft('n')) >= 2)
    assert.deepEqual(await rows('select times, delay::int as seconds from leaves order by n limit 2'), [
      { times: 1, seconds: 1 },
      { times: 2, seconds: 2 },
    ])
    assert.equal(handled, 0)
    const left = lines.filter(({ msg }) => msg === 'message left to a worker of a later release')
    assert.deepEqual(
      left.map(({ queue, message }) => ({ queue, message })),
      [{ queue: tasks.name, message: { id: 'n' } }],
    )
    assert.equal(lines.filter(({ msg }) => msg === 'attempt').length, 0)
  })

  it('are retried, but never failed, by a worker that takes them over', async () => {
    const killed = await startWorker(2)
    await queues.send(['retried', 'last'].map(id => queueMessage(later(tasks), { id, ms: 60_000 })))
    await until('both started', async () => (await rows('select from trail')).length === 2)
    await pool.query(`update pgboss.job_common set retry_limit = 0 where data ->> 'id' = 'last'`)
    killed.kill('SIGKILL')
    await startWorker(1)
    await until('taken over', async () => (await message('retried')).state === 'created')
    await until('both taken over', async () => (await message('last')).data.lost_claim !== undefined)
    const { heartbeat_on, data } = await message('last')
    await until('taken over again', async () => (await message('last')).heartbeat_on > heartbeat_on)
    const last = await message('last')
    assert.equal(last.state, 'active')
    assert.deepEqual(last.data.lost_claim, data.lost_claim)
    assert.equal(await dead(), 0)
    await startWorker(2)
    await until('failed by its release', async () => (await dead()) === 1)
    await until('retried', async () => (await rows('select from trail')).length === 3)
    const [, , retry] = await rows('select task, worker, attempt from trail order by n')
    // The lost attempt counts, the claims of release 1 do not.
    assert.deepEqual(retry, { task: 'retried', worker: 'release 2', attempt: 2 })
  })

  it('keep their version as delayed wake-ups', async () => {
    await startWorker(1)
    await pool.query(`insert into entity (id, posted) values ('e', 1)`)
    const startAfter = new Date(Date.now() + 300)
    await queues.send([queueMessage(later(mailbox), { id: 'e' }, { startAfter })])
    await until('left', async () => (await timesLeft('e')) > 0)
    assert.equal((await message('e')).data.format_version, 2)
    for (const child of children.splice(0)) child.kill('SIGKILL')
    await startWorker(2)
    await until('handled', async () => (await rows('select from entity where seen = posted')).length === 1)
    assert.deepEqual(await rows('select worker from spans'), [{ worker: 'release 2' }])
  })

  it('of the release before keep their version as delayed wake-ups', async () => {
    await startWorker(2)
    await pool.query(`insert into entity (id, posted) values ('e', 1)`)
    await queues.send([queueMessage(mailbox, { id: 'e' }, { startAfter: new Date(Date.now() + 300) })])
    await until('handled', async () => (await rows('select from entity where seen = posted')).length === 1)
    const messages = `select singleton_key = 'e' as immediate, data from pgboss.job_common order by created_on`
    assert.deepEqual(await rows(messages), [
      { immediate: false, data: { id: 'e' } },
      { immediate: true, data: { id: 'e' } },
    ])
  })

  it('do not pause a worker as suspects', async () => {
    await queues.send([queueMessage(later(tasks), { id: 'n' })])
    await pool.query(`update pgboss.job_common set state = 'retry', blocked = true, started_on = now(),
      data = data || '{"worker_losses": 1}'`)
    const { log, lines } = recorder()
    const handled: string[] = []
    await run([handler(tasks, {}, async ({ id }) => void handled.push(id))], log)
    await queues.send([queueMessage(tasks, { id: 'o' })])
    await until('other', () => handled.length === 1)
    await sleep(300)
    assert.deepEqual(handled, ['o'])
    assert.deepEqual(
      lines.filter(({ msg }) => msg === 'work quarantined'),
      [],
    )
    const { state, blocked } = await message('n')
    assert.deepEqual({ state, blocked }, { state: 'retry', blocked: true })
  })

  it('include messages whose working state has a later format', async () => {
    const { log, lines } = recorder()
    const attempts: number[] = []
    const handle = async (_: object, { attempt }: { attempt: number }) => {
      attempts.push(attempt)
      if (attempts.length < 3) throw new NewerFormatError('The state')
    }
    await run([handler(tasks, {}, handle)], log)
    await queues.send([queueMessage(tasks, { id: 's' })])
    await until('handled', async () => (await message('s')).state === 'completed')
    assert.deepEqual(attempts, [1, 1, 1])
    assert.equal(lines.filter(({ msg }) => msg === 'message left to a worker of a later release').length, 1)
  })
})
