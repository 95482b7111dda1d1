import assert from 'node:assert/strict'
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import net from 'node:net'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import pino, { type Logger } from 'pino'
import { loadConfig } from '#config.ts'
import type { Config } from '#core/base/config.ts'
import { silentLog } from '#core/base/log.ts'
import { registry, setQueueDepthSource } from '#core/base/metrics.ts'
import type { Services } from '#core/base/services.ts'
import { type Notifier, openNotifier } from '#core/db/notifier.ts'
import { type Notifications, openNotifications } from '#core/db/notify.ts'
import { inTransaction, openPool } from '#core/db/pool.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { currentTriggerChain } from '#core/db/trigger-chain.ts'
import { loadModules } from '#core/modules/module.ts'
import {
  createQueuesInDatabase,
  delayedChannel,
  openQueues,
  type QueueMessage,
  type Queues,
  queueMessage,
  queues as queueTable,
} from '#core/queues/queue.ts'
import { type Handler, handler, type JobContext, RequeueError, schedule } from '#core/work/handler.ts'
import { claimMessages } from '#core/work/message-claims.ts'
import { MessageOutcomes } from '#core/work/message-outcomes.ts'
import { startWorkers, type Workers } from '#core/work/worker.ts'
import { createWriter } from '#core/writes/writer.ts'
import { modules } from '#modules.ts'
import { tcpUrl, testEnvironment } from '../support/environment.ts'
import { createDatabase, dropDatabase, LOCK_WAITS } from '../support/postgres.ts'
import { fragile, mailbox, recurring, shared, sharedMailbox, tasks } from '../support/queue-fixtures.ts'

describe('queues and workers', function () {
  this.timeout(60_000)
  let databaseUrl: string
  let config: Config
  let notifier: Notifier
  let queues: Queues
  let listen: Notifications
  let pool: pg.Pool
  const started: Workers[] = []
  const children: ChildProcess[] = []

  before(async () => {
    databaseUrl = await createDatabase()
    config = loadConfig(testEnvironment(databaseUrl))
    queueTable.fill([mailbox, tasks, fragile, recurring, shared, sharedMailbox])
    await createQueuesInDatabase(databaseUrl)
    notifier = openNotifier({ databaseUrl, log: silentLog() })
    queues = await openQueues({ databaseUrl, connections: 6, notifier, log: silentLog() })
    listen = await openNotifications({ databaseUrl, log: silentLog() })
    pool = new pg.Pool({ connectionString: databaseUrl, max: 60 })
    await pool.query(`
      create table worker_heartbeats (instance_id text primary key, holder text);
      create table entity (id text primary key, posted int not null default 0, seen int not null default 0);
      create table spans (n serial primary key, entity text, worker text,
        started timestamptz not null default clock_timestamp(), ended timestamptz);
      create table trail (n serial primary key, task text, worker text, attempt int, what text);`)
  })

  afterEach(async () => {
    for (const child of children.splice(0)) {
      child.kill('SIGCONT')
      child.kill('SIGKILL')
    }
    await Promise.all(started.splice(0).map(workers => workers.stop(0)))
    await pool.query(
      'delete from pgboss.job_common; delete from pgboss.muster_suspect_time; truncate entity, spans, trail',
    )
  })

  after(async () => {
    await listen?.close()
    await queues?.close()
    await notifier?.close()
    await pool?.end()
    loadModules(modules)
    await dropDatabase(new URL(databaseUrl).pathname.slice(1))
  })

  async function run(
    handlers: Handler[],
    { log = silentLog(), ...more }: Partial<Parameters<typeof startWorkers>[0]> & { log?: Logger } = {},
  ): Promise<Workers> {
    const workers = await startWorkers({
      services: { queues, log, config },
      handlers,
      concurrency: 10,
      listen,
      ...more,
    })
    started.push(workers)
    return workers
  }

  async function startProcess(worker: string): Promise<ChildProcess> {
    const child = fork(path.resolve(import.meta.dirname, '../support/queue-worker.ts'), [databaseUrl, worker])
    children.push(child)
    await once(child, 'message')
    return child
  }

  async function until(what: string, done: () => boolean | Promise<boolean>, ms = 30_000): Promise<void> {
    const deadline = Date.now() + ms
    while (!(await done())) {
      if (Date.now() > deadline) throw new Error(`not reached in ${ms} ms: ${what}`)
      await sleep(5)
    }
  }

  const one = async (sql: string, values: unknown[] = []) => (await pool.query(sql, values)).rows[0]
  const jobs = async (queue: string) =>
    (await pool.query('select * from pgboss.job_common where name = $1 order by created_on', [queue])).rows

  /** A poll that no test lives to see: messages that come in time come without it. */
  const RARELY = 60_000

  /** Lines of a log, as objects. */
  function recorder(): { log: Logger; lines: Record<string, any>[] } {
    const lines: Record<string, any>[] = []
    return { lines, log: pino({}, { write: line => lines.push(JSON.parse(line)) }) }
  }

  describe('sending', () => {
    it('a message sent in a transaction that rolls back does not exist', async () => {
      await assert.rejects(
        queues.transaction(async tx => {
          await queues.insert(tx, [queueMessage(tasks, { id: 'a' })])
          throw new Error('no')
        }),
      )
      assert.equal((await jobs(tasks.name)).length, 0)
    })

    it('sends messages of several queues in one statement of the caller', async () => {
      const parts = await queues.sendCtes([
        queueMessage(mailbox, { id: 'a' }),
        queueMessage(tasks, { id: 'b' }),
        queueMessage(tasks, { id: 'c' }),
      ])
      assert.ok(parts, 'the shape of pg-boss inserts has changed')
      assert.equal(parts.length, 2)
      const text = (held: boolean) => `
        with ${parts.map(({ before, after }, n) => `${before}(case when ${held} then $${n + 1}::text else '[]' end)${after}`).join(', ')}
        select ${parts.map(({ queue, stored }) => `(select count(*)::int from ${stored}) as "${queue}"`).join(', ')}`
      const values = parts.map(part => part.jobs)
      await pool.query(text(false), values)
      assert.equal((await pool.query('select 1 from pgboss.job_common')).rowCount, 0)
      assert.deepEqual((await pool.query(text(true), values)).rows, [{ 'test-mailbox': 1, 'test-tasks': 2 }])
      const { rows } = await pool.query(`select name, data ->> 'id' as id from pgboss.job_common order by id`)
      assert.deepEqual(rows, [
        { name: 'test-mailbox', id: 'a' },
        { name: 'test-tasks', id: 'b' },
        { name: 'test-tasks', id: 'c' },
      ])
    })

    it('data that does not fit the schema is refused', async () => {
      await assert.rejects(queues.send([{ queue: tasks, data: { id: 1 } }]), { name: 'ZodError' })
    })

    it('a second wake-up of an entity is dropped without hurting the transaction', async () => {
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      await queues.transaction(async tx => {
        await queues.insert(tx, [queueMessage(mailbox, { id: 'e' })])
        await tx.executeSql(`insert into entity (id) values ('e')`)
      })
      assert.equal((await jobs(mailbox.name)).length, 1)
      assert.equal((await one('select count(*)::int as n from entity')).n, 1)
    })

    it('handles a wake-up sent while another is active after it', async () => {
      const order: string[] = []
      let finish = () => {}
      await run([
        handler(mailbox, {}, async () => {
          order.push('start')
          if (order.length === 1) await new Promise<void>(resolve => (finish = resolve))
          order.push('end')
        }),
      ])
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      await until('first handler', () => order.length === 1)
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      assert.equal((await jobs(mailbox.name)).length, 2)
      await sleep(100)
      assert.deepEqual(order, ['start'])
      finish()
      await until('second handler', () => order.length === 4)
      await sleep(100)
      assert.deepEqual(order, ['start', 'end', 'start', 'end'])
    })

    it('a delayed wake-up suppresses no immediate one with the same key', async () => {
      const at: number[] = []
      await run([handler(mailbox, {}, async () => void at.push(Date.now()))])
      const due = Date.now() + 2000
      await queues.send([queueMessage(mailbox, { id: 'e' }, { startAfter: new Date(due) })])
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      await until('both', () => at.length === 2)
      assert.ok(at[0] < due && at[1] >= due, `${at[0] - due} ${at[1] - due}`)
    })

    it('two transactions that send to the same keys in different orders do not deadlock', async () => {
      const keys = Array.from({ length: 20 }, (_, i) => queueMessage(mailbox, { id: `k${i}` }))
      const send = (messages: QueueMessage[]) => queues.transaction(tx => queues.insert(tx, messages))
      await Promise.all(Array.from({ length: 12 }, (_, i) => send(i % 2 ? keys : [...keys].reverse())))
      assert.equal((await jobs(mailbox.name)).length, 20)
    })

    it('sending locks no row shared with other senders', async () => {
      await queues.transaction(async tx => {
        await queues.insert(tx, [queueMessage(tasks, { id: 'first' })])
        await tx.executeSql('set constraints all immediate', [])
        const { rowCount } = await pool.query('select from pgboss.queue for update nowait')
        assert.ok(rowCount)
      })
    })

    it('creating the queues again only updates changed options', async () => {
      await createQueuesInDatabase(databaseUrl, { retentionDays: 3 })
      const row = await one('select * from pgboss.queue where name = $1', [mailbox.name])
      assert.equal(row.deletion_seconds, 3 * 86_400)
      assert.equal(row.policy, 'stately')
      assert.equal(row.dead_letter, 'test-mailbox.dead')
      config = loadConfig(testEnvironment(databaseUrl))
      queueTable.fill([mailbox, tasks, fragile, shared, sharedMailbox])
      await createQueuesInDatabase(databaseUrl)
    })
  })

  describe('waking', () => {
    it('a committed message reaches its handler within milliseconds', async () => {
      let arrived = (_: number) => {}
      await run([handler(tasks, {}, async () => arrived(performance.now()))], { pollMs: RARELY })
      const times: number[] = []
      for (let i = 0; i < 30; i++) {
        await sleep(10)
        const arrival = new Promise<number>(resolve => (arrived = resolve))
        const { commit, transaction } = await begun()
        const notices = await queues.insert(transaction, [queueMessage(tasks, { id: String(i) })])
        const sent = performance.now()
        await commit()
        notifier.notify(...notices)
        times.push((await arrival) - sent)
      }
      times.sort((a, b) => a - b)
      assert.ok(times[15] < 200, `median ${times[15]} ms`)
    })

    async function begun() {
      const client = await pool.connect()
      await client.query('begin')
      return {
        transaction: { executeSql: (text: string, values?: unknown[]) => client.query(text, values) },
        commit: async () => {
          await client.query('commit')
          client.release()
        },
      }
    }

    it('a mailbox polls for wake-ups sent while it was busy if notifications are down', async () => {
      let handled = 0
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      await run(
        [
          handler(mailbox, {}, async () => {
            handled += 1
            if (handled === 1) await queues.send([queueMessage(mailbox, { id: 'e' })])
          }),
        ],
        { listen: undefined, pollMs: RARELY },
      )
      await until('both', () => handled === 2, 20_000)
    })

    it('handles messages without notifications', async () => {
      let handled = 0
      await run([handler(tasks, {}, async () => void handled++)], { listen: undefined, pollMs: 100 })
      await queues.send([queueMessage(tasks, { id: 'a' })])
      await until('poll', () => handled === 1)
    })

    it('no wake-up is lost with 50 senders and two worker processes, and no entity is handled twice concurrently', async () => {
      const entities = ['a', 'b', 'c', 'd', 'e', 'f', 'g']
      await pool.query('insert into entity (id) select unnest($1::text[])', [entities])
      await Promise.all([startProcess('one'), startProcess('two')])
      await Promise.all(
        Array.from({ length: 50 }, async (_, sender) => {
          for (let i = 0; i < 20; i++) {
            const id = entities[(sender + i) % entities.length]
            const client = await pool.connect()
            await client.query('begin')
            await client.query('update entity set posted = posted + 1 where id = $1', [id])
            const executor = { executeSql: (text: string, values?: unknown[]) => client.query(text, values) }
            const notices = await queues.insert(executor, [queueMessage(mailbox, { id })])
            await client.query('commit')
            notifier.notify(...notices)
            client.release()
          }
        }),
      )
      await until('all seen', async () => (await one('select bool_and(seen = posted) as done from entity')).done)
      assert.equal((await one('select sum(posted)::int as n from entity')).n, 1000)
      const overlap =
        await one(`select count(*)::int as n from spans x join spans y on x.entity = y.entity and x.n < y.n
        where x.started < y.ended and y.started < x.ended`)
      assert.equal(overlap.n, 0)
      assert.equal((await one('select count(distinct worker)::int as n from spans')).n, 2)
    })
  })

  describe('polling', () => {
    /** Workers that handle `shared`, polling seldom after the first seconds in which nothing happens. */
    async function seldomPolling(more: { listen?: Notifications; idleMs?: number } = {}) {
      const seen = { handled: [] as string[], polls: 0 }
      await run([handler(shared, {}, async ({ id }) => void seen.handled.push(id))], {
        pollMs: 100,
        idleMs: RARELY,
        onPoll: () => seen.polls++,
        ...more,
      })
      return seen
    }

    /** A message without a notification. */
    const insertSilently = () =>
      pool.query(
        `insert into pgboss.job_common (name, policy, group_id, data) values ($1, 'standard', '*', '{"id":"silent"}')`,
        [shared.name],
      )

    it('a message is due by the clock of the database, not of its sender', async () => {
      const { now } = Date
      const due = new Date(now() + 60_000)
      Date.now = () => now() + 120_000
      try {
        await queues.send([queueMessage(shared, { id: 'ahead' }, { startAfter: due })])
      } finally {
        Date.now = now
      }
      const { rows } = await pool.query(
        `select start_after > now() as waits from pgboss.job_common where name = $1 and data ->> 'id' = 'ahead'`,
        [shared.name],
      )
      assert.deepEqual(rows, [{ waits: true }])
      await pool.query(`delete from pgboss.job_common where name = $1 and data ->> 'id' = 'ahead'`, [shared.name])
    })

    it('a message that is due soon is handled in time by workers that poll seldom', async () => {
      const seen = await seldomPolling()
      // The next one is more than five seconds away.
      await until('polled seldom', () => seen.polls === 6)
      const due = Date.now() + 300
      await queues.send([queueMessage(shared, { id: 'soon' }, { startAfter: new Date(due) })])
      await until('handled', () => seen.handled.length === 1, 5000)
      assert.ok(Date.now() >= due)
    })

    it('notifies workers of every message that is due soon', async () => {
      const told: string[] = []
      const heard = async (what: string) => {
        await until(what, () => told.length > 0)
        assert.deepEqual(told.splice(0), [shared.name], what)
      }
      const end = listen.listen(delayedChannel, name => told.push(name))
      await end.ready
      const startAfter = new Date(Date.now() + 5000)
      await queues.send([queueMessage(shared, { id: 'sent' }, { startAfter })])
      await heard('sent')

      const slonik = await openPool({ databaseUrl, connections: 2 })
      const writer = createWriter({ pool: slonik, queues, notifier, eventMaxBytes: 0, onError: () => assert.fail() })
      await writer.write(async tx => tx.send(shared, { id: 'written' }, { startAfter }))
      await slonik.end()
      await heard('written')

      await queues.send([queueMessage(shared, { id: 'tried' })])
      const request = { limit: 1, last: '', held: new Map(), share: 1, borrow: 1 }
      const claimed = async () => (await claimMessages(queues.db, shared, request))!.jobs[0]
      const settlement = new MessageOutcomes(
        { queues, log: silentLog(), config } as Services,
        handler(shared, {}, async () => {}),
        shared,
      )
      const held = async () => ({ ...(await claimed()), startedAt: performance.now(), heldSince: performance.now() })
      assert.deepEqual(await settlement.fail(await held(), new Error('failed'), 0), { lost: false, dueInMs: 0 })
      await heard('tried again')
      const { signal } = new AbortController()
      assert.equal((await settlement.requeue([await held()], { delayMs: 1000, signal, ended: true })).size, 1)
      await heard('given back')

      // Workers have polled again by then.
      await queues.send([queueMessage(shared, { id: 'late' }, { startAfter: new Date(Date.now() + 60_000) })])
      await sleep(100)
      assert.deepEqual(told, [])
      end()
    })

    it('handles a message whose notification was lost with the next poll', async () => {
      const seen = await seldomPolling({ idleMs: 1000 })
      await until('polled seldom', () => seen.polls === 5)
      const polls = seen.polls
      await insertSilently()
      await until('handled', () => seen.handled.length === 1)
      // One may have been in progress.
      assert.ok(seen.polls <= polls + 2, `${seen.polls - polls} polls`)
    })

    it('polls are frequent again while no notification can arrive', async () => {
      const sockets: net.Socket[] = []
      const { hostname, port } = tcpUrl(databaseUrl)
      const relay = net.createServer(socket => {
        const upstream = net.connect(Number(port), hostname)
        for (const end of [socket, upstream]) sockets.push(end.on('error', () => {}))
        socket.pipe(upstream).pipe(socket)
      })
      await new Promise<void>(resolve => relay.listen(0, '127.0.0.1', resolve))
      const url = tcpUrl(databaseUrl)
      url.host = `127.0.0.1:${(relay.address() as net.AddressInfo).port}`
      const relayed = await openNotifications({ databaseUrl: url.href, log: silentLog() })
      const seen = await seldomPolling({ listen: relayed })
      await until('polled seldom', () => seen.polls === 5)
      relay.close()
      for (const socket of sockets) socket.destroy()
      // Two of them would come anyway.
      await until('polled often', () => seen.polls >= 15, 10_000)
      await insertSilently()
      await until('handled', () => seen.handled.length === 1)
      await relayed.close()
    })
  })

  describe('leases', () => {
    const trail = async () => (await pool.query('select worker, attempt, what from trail order by n')).rows

    it('another worker takes over the message of a killed worker after the lease', async () => {
      const first = await startProcess('one')
      await queues.send([queueMessage(tasks, { id: 't', ms: 600 })])
      await until('started', async () => (await trail()).length === 1)
      first.kill('SIGKILL')
      const killed = Date.now()
      await startProcess('two')
      const ready = Date.now()
      await until('second start', async () => (await trail()).length >= 2)
      const now = Date.now()
      assert.ok(now - killed > 1000 && now - ready < 5000, `${now - killed} ms, ${now - ready} ms`)
      await until('end', async () => (await trail()).length === 3)
      assert.deepEqual(await trail(), [
        { worker: 'one', attempt: 1, what: 'start' },
        { worker: 'two', attempt: 2, what: 'start' },
        { worker: 'two', attempt: 2, what: 'end' },
      ])
    })

    it('a worker that was suspended past its lease records nothing', async () => {
      const first = await startProcess('one')
      await queues.send([queueMessage(tasks, { id: 't', ms: 1500 })])
      await until('started', async () => (await trail()).length === 1)
      first.kill('SIGSTOP')
      const second = await startProcess('two')
      await until('second start', async () => (await trail()).length === 2)
      second.kill('SIGSTOP')
      first.kill('SIGCONT')
      await until('first leaves', async () => (await trail()).some(row => row.worker === 'one' && row.what !== 'start'))
      await sleep(300)
      const [job] = await jobs(tasks.name)
      assert.equal(job.state, 'active')
      assert.equal(job.retry_count, 1)
      second.kill('SIGCONT')
      await until('completed', async () => (await jobs(tasks.name))[0].state === 'completed')
    })

    it('a handler that runs longer than the lease keeps it', async () => {
      const attempts: number[] = []
      await run([
        handler(tasks, {}, async (_, { attempt }) => {
          attempts.push(attempt)
          await sleep(3500)
        }),
      ])
      await queues.send([queueMessage(tasks, { id: 't' })])
      await until('completed', async () => (await jobs(tasks.name))[0].state === 'completed')
      assert.deepEqual(attempts, [1])
    })

    it('aborts the signal of a handler whose claim is lost', async () => {
      let aborted = false
      await run([
        handler(tasks, {}, async (_, { signal }) => {
          await once(signal, 'abort')
          aborted = true
          throw new Error('left')
        }),
      ])
      await queues.send([queueMessage(tasks, { id: 't' })])
      await until('active', async () => (await jobs(tasks.name))[0].state === 'active')
      await pool.query(`update pgboss.job_common set state = 'cancelled' where name = $1`, [tasks.name])
      await until('aborted', () => aborted)
      await sleep(50)
      assert.equal((await jobs(tasks.name))[0].state, 'cancelled')
    })
  })

  it('counts a slot whose handler continues after a lost lease as held, not working', async () => {
    const slots = async () =>
      [...(await registry.metrics()).matchAll(/muster_worker_slots\{queue="test-tasks",state="(\w+)"\} (\d+)/g)].map(
        ([, state, count]) => `${count} ${state}`,
      )
    let leave = () => {}
    const left = new Promise<void>(resolve => {
      leave = resolve
    })
    await run([handler(tasks, { concurrency: 3 }, () => left)])
    await queues.send([queueMessage(tasks, { id: 't' })])
    await until('active', async () => (await jobs(tasks.name))[0].state === 'active')
    assert.deepEqual(await slots(), ['3 total', '1 held', '1 working'])
    await pool.query(`update pgboss.job_common set state = 'cancelled' where name = $1`, [tasks.name])
    await until('lost', async () => (await slots()).join() === '3 total,1 held,0 working')
    leave()
    await until('free', async () => (await slots()).join() === '3 total,0 held,0 working')
  })

  it('lost connections lose no message', async () => {
    const handled = new Map<string, number>()
    await run([handler(tasks, {}, async ({ id }) => void handled.set(id, (handled.get(id) ?? 0) + 1))])
    const cut = () =>
      pool.query(`select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name in ('muster-queue', 'muster-listen')`)
    let sent = 0
    for (let round = 0; round < 4; round++) {
      for (let i = 0; i < 50; i++) {
        const id = String(sent)
        // A send whose connection was cut may or may not have happened; the test sends it again.
        await queues.send([queueMessage(tasks, { id })]).then(
          () => sent++,
          () => sleep(5),
        )
        if (i === 25) await cut()
      }
    }
    await until('all handled', () => handled.size === sent)
    await until('all recorded', async () => (await jobs(tasks.name)).every(job => job.state === 'completed'))
    // Its connection was cut too, and the tests after this one count on it.
    await until('notifications again', () => listen.healthy())
  })

  it('the gauges show waiting messages', async () => {
    setQueueDepthSource(() => [{ read: () => queues.stats() }])
    await queues.send([
      queueMessage(tasks, { id: 'a' }),
      queueMessage(tasks, { id: 'b' }, { startAfter: new Date(Date.now() + 1e6) }),
    ])
    const text = await registry.metrics()
    setQueueDepthSource(() => [])
    assert.match(text, /muster_queue_messages\{queue="test-tasks",state="waiting"\} 1\n/)
    assert.match(text, /muster_queue_messages\{queue="test-tasks",state="delayed"\} 1\n/)
    assert.match(text, /muster_dead_letters\{queue="test-tasks"\} 0\n/)
  })

  describe('failing', () => {
    it('does not count an attempt failed by the database, but counts a statement timeout', async () => {
      const attempts: number[] = []
      const { log, lines } = recorder()
      let exhausted = 0
      const states = ['53100', '57P01', '40001', null, '08006']
      const own = await openPool({ databaseUrl, connections: 1 })
      await run(
        [
          handler(fragile, { onExhausted: async () => void exhausted++ }, async (_data, { attempt }) => {
            const state = states[attempts.push(attempt) - 1]
            if (state === null)
              await inTransaction(own, async tx => {
                await tx.query(rawQuery('set local statement_timeout = 20'))
                await tx.query(rawQuery('select pg_sleep(5)'))
              })
            if (state) await pool.query(`do $$ begin raise exception 'x' using errcode = '${state}'; end $$`)
          }),
        ],
        { log },
      )
      await queues.send([queueMessage(fragile, { id: 'f' })])
      await until('done', () => lines.some(line => line.outcome === 'done'))
      await own.end()
      assert.deepEqual(attempts, [1, 1, 1, 1, 2, 2])
      assert.equal(exhausted, 0)
      const outcomes = lines.filter(line => line.msg === 'attempt').map(line => line.outcome)
      assert.deepEqual(outcomes, ['requeued', 'requeued', 'requeued', 'retry', 'requeued', 'done'])
    })

    it('requeues all messages of a batch failed by the database', async () => {
      const handled: string[][] = []
      await run([
        handler(fragile, { batch: 3, concurrency: 1 }, async (batch: { id: string }[]) => {
          handled.push(batch.map(({ id }) => id).sort())
          if (handled.length === 1) await pool.query(`do $$ begin raise exception 'x' using errcode = '53100'; end $$`)
        }),
      ])
      await queues.send(['a', 'b', 'c'].map(id => queueMessage(fragile, { id })))
      await until('again', () => handled.flat().length === 6)
      assert.deepEqual(handled, [
        ['a', 'b', 'c'],
        ['a', 'b', 'c'],
      ])
    })

    it('drops a failed or lost message that a schedule sends again', async () => {
      const request = { limit: 1, last: '', held: new Map(), share: 1, borrow: 0 }
      await queues.send([queueMessage(recurring, { id: 'lost' })])
      const [lost] = (await claimMessages(queues.db, recurring, request))!.jobs
      assert.deepEqual(lost.data, { id: 'lost' })
      await queues.send([queueMessage(recurring, { id: 'failing' })])
      const { log, lines } = recorder()
      const handled: string[] = []
      await run(
        [
          handler(recurring, {}, async ({ id }) => {
            handled.push(id)
            throw new Error('broken')
          }),
        ],
        { log },
      )
      const dropped = () => lines.filter(({ outcome }: any) => outcome === 'dropped')
      await until('both dropped', async () => dropped().length === 2)
      assert.deepEqual(handled, ['failing'])
      assert.deepEqual(
        dropped()
          .map(({ message }: any) => message.id)
          .sort(),
        ['failing', 'lost'],
      )
      assert.deepEqual(await queues.deadLetters.list(), [])
      assert.deepEqual(
        (await jobs(recurring.name)).map(({ state }) => state),
        ['failed', 'failed'],
      )
    })

    it('the last failure is passed to onExhausted, then the message is a dead letter that can be replayed', async () => {
      const passed: unknown[] = []
      let broken = true
      let handled = 0
      const { log, lines } = recorder()
      await run(
        [
          handler(fragile, { onExhausted: async (data, error) => void passed.push(data, String(error)) }, async () => {
            if (broken) throw Object.assign(new Error('broken'), { code: 'E_BROKEN' })
            handled += 1
          }),
        ],
        { log },
      )
      await queues.send([queueMessage(fragile, { id: 'f' })])
      await until('dead', async () => (await queues.deadLetters.list({ queue: fragile.name })).length === 1)
      assert.deepEqual(passed, [{ id: 'f' }, 'Error: broken'])
      const [letter] = await queues.deadLetters.list()
      assert.equal(letter.queue, fragile.name)
      assert.deepEqual(letter.data, { id: 'f' })
      assert.deepEqual(letter.error, { name: 'Error', code: 'E_BROKEN', message: 'broken' })
      assert.equal(letter.attempts, 2)
      assert.deepEqual(await queues.deadLetters.inspect(letter.id), letter)
      const stats = (await queues.stats()).find(row => row.queue === fragile.name)!
      assert.equal(stats.dead, 1)

      broken = false
      assert.equal(await queues.deadLetters.replay({ queue: fragile.name, ids: [letter.id] }), 1)
      await until('replayed', () => handled === 1)
      assert.equal((await queues.deadLetters.list()).length, 0)

      const written = lines.filter(line => line.msg === 'attempt')
      await until('three lines', () => lines.filter(line => line.msg === 'attempt').length === 3)
      assert.deepEqual(
        written.slice(0, 2).map(line => [line.queue, line.attempt, line.outcome, line.message.id, line.next_ms]),
        [
          [fragile.name, 1, 'retry', 'f', 0],
          [fragile.name, 2, 'dead', 'f', undefined],
        ],
      )
      assert.ok(written.every(line => typeof line.duration_ms === 'number' && typeof line.job === 'string'))
    })

    it('stores an error without characters that the database cannot store', async () => {
      const texts = [`${'x'.repeat(1999)}😀`, 'a\0b\ud83d', null]
      await run([
        handler(fragile, {}, async ({ ms }) => {
          const text = texts[ms as number]
          throw text === null ? null : new Error(text)
        }),
      ])
      await queues.send(texts.map((_, ms) => queueMessage(fragile, { id: `t${ms}`, ms })))
      await until('dead', async () => (await queues.deadLetters.list({ queue: fragile.name })).length === 3)
      const letters = (await queues.deadLetters.list()).sort((a, b) =>
        JSON.stringify(a.data) < JSON.stringify(b.data) ? -1 : 1,
      )
      assert.deepEqual(
        letters.map(({ error }) => (error as { message: string }).message),
        ['x'.repeat(1999), 'a\ufffdb\ufffd', 'null'],
      )
      assert.ok(letters.every(({ attempts }) => attempts === 2))
    })

    it('a handler sets the delay of its retry', async () => {
      const at: number[] = []
      const waiting = handler(tasks, {}, async (_, { retryIn }) => {
        at.push(Date.now())
        if (at.length > 1) return
        retryIn(300)
        throw new Error('later')
      })
      await run([waiting], { pollMs: RARELY })
      await queues.send([queueMessage(tasks, { id: 't' })])
      await until('second', () => at.length === 2)
      const gap = at[1] - at[0]
      assert.ok(gap >= 300 && gap < 10_000, `${gap} ms`)
    })

    it('a message completed by its handler stays completed after a later error', async () => {
      const writes = await openPool({ databaseUrl, connections: 2 })
      const writer = createWriter({ pool: writes, queues, notifier, eventMaxBytes: 0, onError: () => {} })
      const exhausted: string[] = []
      const tried: number[] = []
      const options = { onExhausted: async ({ id }: { id: string }) => void exhausted.push(id) }
      const lines: any[] = []
      const log = pino({ level: 'info' }, { write: (line: string) => void lines.push(JSON.parse(line)) })
      await run(
        [
          handler(fragile, options, async ({ id }, { complete, attempt }) => {
            tried.push(attempt)
            if (id === 'undone' && attempt === 1)
              await writer.write(async tx => {
                complete(tx)
                throw new Error('rolled back')
              })
            await writer.write(async tx => complete(tx))
            throw new Error('after the commit')
          }),
        ],
        { log },
      )
      await queues.send([queueMessage(fragile, { id: 'done' })])
      await until('an outcome', () => lines.some(({ msg }) => msg === 'attempt'))
      assert.deepEqual(
        (await jobs(fragile.name)).map(({ state }) => state),
        ['completed'],
      )
      assert.deepEqual([tried, exhausted], [[1], []])
      assert.deepEqual(
        lines.filter(({ msg }) => msg === 'attempt').map(({ outcome }) => outcome),
        ['done'],
      )
      await queues.send([queueMessage(fragile, { id: 'undone' })])
      await until('the second try', () => tried.length === 3)
      await until('completed', async () => (await jobs(fragile.name)).every(({ state }) => state === 'completed'))
      await writes.end()
    })

    it('a failing entity handles new wake-ups immediately and dead-letters no merged retries', async () => {
      let handled = 0
      let broken = true
      await run([
        handler(mailbox, {}, async (_, { retryIn }) => {
          handled += 1
          retryIn(60_000)
          if (broken) throw new Error('broken')
        }),
      ])
      for (const n of [1, 2, 3]) {
        await queues.send([queueMessage(mailbox, { id: 'e' })])
        await until(`attempt ${n}`, () => handled === n)
        await until('settled', async () => (await jobs(mailbox.name)).every(job => job.state !== 'active'))
      }
      assert.deepEqual((await jobs(mailbox.name)).map(job => job.state).sort(), ['completed', 'completed', 'retry'])
      broken = false
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      await until('handled', () => handled === 4)
    })

    it('an onExhausted that cannot record the failure is called again after the lease', async () => {
      const calls: number[] = []
      await run([
        handler(
          tasks,
          {
            onExhausted: async () => {
              calls.push(Date.now())
              if (calls.length === 1) throw new Error('database away')
            },
          },
          async (_, { last }) => {
            assert.equal(last, true)
            throw new Error('broken')
          },
        ),
      ])
      await queues.send([queueMessage(tasks, { id: 't' })])
      await pool.query(`update pgboss.job_common set retry_limit = 0 where name = $1`, [tasks.name])
      await until('dead', async () => (await queues.deadLetters.list({ queue: tasks.name })).length === 1)
      assert.equal(calls.length, 2)
      assert.ok(calls[1] - calls[0] > 1000)
    })

    it('retries the messages of a failed batch one by one', async () => {
      const calls: string[][] = []
      const { log, lines } = recorder()
      await queues.send(['a', 'b', 'c'].map(id => queueMessage(tasks, { id })))
      await run(
        [
          handler(tasks, { batch: 10 }, async (messages, { attempt }) => {
            calls.push(messages.map(({ id }) => id))
            if (attempt === 1 && messages.some(({ id }) => id === 'b')) throw new Error('b')
          }),
        ],
        { log },
      )
      await until('completed', async () => (await jobs(tasks.name)).every(job => job.state === 'completed'))
      assert.equal(calls[0].length, 3)
      assert.deepEqual(
        calls.slice(1).map(ids => ids.length),
        [1, 1, 1, 1],
      )
      await until('lines', () => lines.length === 4)
      assert.deepEqual(lines.map(line => `${line.message.id} ${line.outcome}`).sort(), [
        'a done',
        'b done',
        'b retry',
        'c done',
      ])
    })

    it('handles messages of a batch under their own trigger chains', async () => {
      const calls: [chain: readonly string[], ids: string[]][] = []
      const sent = { a: ['trg_1'], b: [], c: ['trg_1'], d: ['trg_1', 'trg_2'] }
      await queues.send(Object.entries(sent).map(([id, chain]) => queueMessage(tasks, { id }, { chain })))
      await run([
        handler(tasks, { batch: 10, concurrency: 1 }, async messages => {
          calls.push([currentTriggerChain(), messages.map(({ id }) => id).sort()])
        }),
      ])
      await until('completed', async () => (await jobs(tasks.name)).every(job => job.state === 'completed'))
      assert.deepEqual(calls.map(call => JSON.stringify(call)).sort(), [
        '[["trg_1","trg_2"],["d"]]',
        '[["trg_1"],["a","c"]]',
        '[[],["b"]]',
      ])
    })
  })

  describe('slots', () => {
    /** Handles the shared queue in a number of slots, and returns the handled messages; `takeSlot` belongs to another handler. */
    async function runWithSlots(concurrency: number, more: Parameters<typeof run>[1]) {
      let takeSlot: JobContext['tryAcquireSlot'] = () => null
      const handled: string[] = []
      await run(
        [
          handler(tasks, {}, async (_, context) => {
            takeSlot = context.tryAcquireSlot
          }),
          handler(shared, { concurrency }, async ({ id }) => void handled.push(id)),
        ],
        more,
      )
      await queues.send([queueMessage(tasks, { id: 'asks' })])
      await until('asked', async () => (await jobs(tasks.name)).every(job => job.state === 'completed'))
      return { takeSlot, handled }
    }

    it('work without a message acquires and releases slots under the limits of a claim', async () => {
      const { takeSlot, handled } = await runWithSlots(4, { projectShare: 0.5 })
      const taken = ['p', 'p', 'p', 'p', 'q', 'r'].map(project => takeSlot(shared, project))
      assert.deepEqual(
        taken.map(slot => slot !== null),
        [true, true, true, false, true, false],
      )
      await queues.send([queueMessage(shared, { id: 'waits', project_id: 'r' })])
      taken[0]?.release()
      await until('handled', () => handled.length === 1)
    })

    it('requeues a message whose slot was acquired during the claim, and handles it later', async () => {
      await pool.query(`
        create function await_gate() returns trigger language plpgsql as $$
          begin perform pg_advisory_xact_lock_shared(4711); return new; end $$;
        create trigger gate before update on pgboss.job_common for each row
          when (new.name = 'test-shared' and new.state = 'active') execute function await_gate()`)
      const gate = await pool.connect()
      try {
        await gate.query('select pg_advisory_lock(4711)')
        const { takeSlot, handled } = await runWithSlots(2, { projectShare: 1, pollMs: RARELY })
        await queues.send(['a', 'b'].map(id => queueMessage(shared, { id, project_id: 'p' })))
        await until('claiming', async () => {
          const { waits } = await one(`select exists (${LOCK_WAITS} and locktype = 'advisory') as waits`)
          return waits
        })
        const taken = [takeSlot(shared, 'q'), takeSlot(shared, 'q')]
        assert.ok(taken.every(Boolean))
        const sent = (await jobs(shared.name)).map(job => job.start_after.getTime())
        await gate.query('select pg_advisory_unlock(4711)')
        await until('given back', async () => {
          const now = await jobs(shared.name)
          return now.every((job, n) => job.state === 'created' && job.start_after.getTime() > sent[n])
        })
        assert.deepEqual(
          (await jobs(shared.name)).map(job => job.retry_count),
          [0, 0],
        )
        assert.deepEqual(handled, [])
        taken[0]?.release()
        await until('handled', () => handled.length === 2)
      } finally {
        gate.release()
        await pool.query('drop trigger gate on pgboss.job_common; drop function await_gate()')
      }
    })

    it('a slow message holds one slot only', async () => {
      let finish = () => {}
      let quick = 0
      await run([
        handler(tasks, { concurrency: 2 }, async ({ id }) => {
          if (id === 'slow') await new Promise<void>(resolve => (finish = resolve))
          else quick += 1
        }),
      ])
      await queues.send([queueMessage(tasks, { id: 'slow' })])
      await queues.send(Array.from({ length: 20 }, (_, i) => queueMessage(tasks, { id: String(i) })))
      await until('quick ones', () => quick === 20)
      finish()
    })

    it('a waiting wake-up of a busy entity delays no other entity', async () => {
      let finish = () => {}
      let quick = 0
      await run([
        handler(mailbox, {}, async ({ id }) => {
          if (id === 'slow') await new Promise<void>(resolve => (finish = resolve))
          else quick += 1
        }),
      ])
      await queues.send([queueMessage(mailbox, { id: 'slow' })])
      await until('active', async () => (await jobs(mailbox.name))[0].state === 'active')
      await queues.send([queueMessage(mailbox, { id: 'slow' })])
      for (let i = 0; i < 20; i++) await queues.send([queueMessage(mailbox, { id: String(i) })])
      await until('quick ones', () => quick === 20)
      finish()
    })

    it('handles a wake-up sent while its entity is busy, or as it ends, without a poll', async () => {
      let handled = 0
      const next = () => queues.send([queueMessage(sharedMailbox, { id: 'one', project_id: 'one' })])
      const chained = handler(sharedMailbox, {}, async () => {
        handled += 1
        if (handled < 300) setTimeout(() => void next(), Math.random() * 6)
        await sleep(Math.random() * 6)
      })
      await run([chained], { pollMs: RARELY })
      await next()
      await until('all', () => handled === 300, 40_000)
    })

    it('one project holds its share while others wait, otherwise all but one slot', async () => {
      const held = new Map<string, number>()
      let most = 0
      const release: (() => void)[] = []
      await queues.send(Array.from({ length: 30 }, () => queueMessage(shared, { id: 'x', project_id: 'big' })))
      await queues.send(Array.from({ length: 6 }, () => queueMessage(shared, { id: 'x', project_id: 'small' })))
      const holding = handler(shared, {}, async ({ project_id = '' }) => {
        held.set(project_id, (held.get(project_id) ?? 0) + 1)
        if (held.get('small')) most = Math.max(most, held.get('big') ?? 0)
        await new Promise<void>(resolve => release.push(resolve))
        held.set(project_id, held.get(project_id)! - 1)
      })
      await run([holding], { concurrency: 6, projectShare: 0.5 })
      await until('full', () => release.length === 6)
      assert.deepEqual(Object.fromEntries(held), { big: 3, small: 3 })
      const free = () => {
        for (const resolve of release.splice(0)) resolve()
      }
      free()
      await until('full again', () => release.length === 6)
      assert.deepEqual(Object.fromEntries(held), { big: 3, small: 3 })
      free()
      await until('borrowed', () => held.get('big') === 5)
      await queues.send([queueMessage(shared, { id: 'late', project_id: 'small' })])
      await until('the free slot', () => held.get('small') === 1)
      await until('drained', async () => {
        free()
        return (await jobs(shared.name)).every(job => job.state === 'completed')
      })
      assert.ok(most <= 5)
    })
  })

  describe('turns of projects', () => {
    /** A handler that holds its slots until they are freed one by one; notes the projects of the messages it starts. */
    function holding(queue = shared) {
      const started: string[] = []
      const ends: { project: string; end: () => void }[] = []
      const declared = handler(queue, {}, async ({ project_id = '' }) => {
        started.push(project_id)
        await new Promise<void>(end => ends.push({ project: project_id, end }))
      })
      const free = (project?: string) => {
        const at = project === undefined ? 0 : ends.findIndex(each => each.project === project)
        ends.splice(at, 1)[0].end()
      }
      const drain = async (workers: Workers) => {
        const stopped = workers.stop(60_000)
        while (workers.running() > 0) {
          for (const { end } of ends.splice(0)) end()
          await sleep(5)
        }
        await stopped
      }
      return { started, declared, free, drain }
    }
    const backlog = (project_id: string, count: number, queue = shared) =>
      queues.send(
        Array.from({ length: count }, (_, i) => queueMessage(queue, { id: `${project_id} ${i}`, project_id })),
      )

    for (const queue of [shared, sharedMailbox]) {
      it(`a message of a quiet project takes the next slot, whatever waits of two others (${queue.policy})`, async () => {
        const { started, declared, free, drain } = holding(queue)
        await backlog('one', 100, queue)
        await backlog('two', 100, queue)
        const workers = await run([declared], { concurrency: 4, projectShare: 0.5 })
        await until('full', () => started.length === 4)
        await backlog('quiet', 1, queue)
        free()
        await until('the next', () => started.length === 5)
        assert.equal(started[4], 'quiet')
        await drain(workers)
      })

      it(`projects take turns where there is one slot (${queue.policy})`, async () => {
        const started: string[] = []
        const note = async ({ project_id = '' }) => void started.push(project_id)
        await backlog('busy', 20, queue)
        for (const project of ['quiet', 'third']) await backlog(project, 2, queue)
        await run([handler(queue, {}, note)], { concurrency: 1 })
        await until('all', () => started.length === 24)
        assert.deepEqual(started.slice(0, 7), ['busy', 'quiet', 'third', 'busy', 'quiet', 'third', 'busy'])
      })
    }

    it('projects take turns in a batch', async () => {
      const batches: string[][] = []
      await backlog('busy', 20)
      await backlog('quiet', 2)
      const note = async (messages: { project_id?: string }[]) =>
        void batches.push(messages.map(({ project_id = '' }) => project_id))
      await run([handler(shared, { concurrency: 1, batch: 4 }, note)])
      await until('all', () => batches.flat().length === 22)
      assert.deepEqual(batches[0].sort(), ['busy', 'busy', 'quiet', 'quiet'])
    })

    it('a free slot goes to the project with the fewest active messages in the deployment', async () => {
      const first = holding()
      await backlog('a', 10)
      const one = await run([first.declared], { concurrency: 3 })
      await until('full', () => first.started.length === 3)
      await backlog('b', 10)
      const second = holding()
      const two = await run([second.declared], { concurrency: 4 })
      await until('full', () => second.started.length === 4)
      assert.deepEqual(second.started.sort(), ['a', 'b', 'b', 'b'])
      second.free('b')
      await until('the next', () => second.started.length === 5)
      assert.equal(second.started[4], 'b')
      await first.drain(one)
      await second.drain(two)
    })

    it('each of many projects gets its turn before one gets a second', async () => {
      const projects = Array.from({ length: 100 }, (_, i) => `p${i}`)
      for (const project of projects) await backlog(project, 3)
      const started: string[] = []
      await run([handler(shared, {}, async ({ project_id = '' }) => void started.push(project_id))], { concurrency: 1 })
      await until('all', () => started.length === 300)
      for (const round of [0, 100, 200]) assert.equal(new Set(started.slice(round, round + 100)).size, 100)
    })

    it('within a project a higher priority comes first, then the oldest', async () => {
      const started: string[] = []
      for (const id of ['old', 'new']) await queues.send([queueMessage(shared, { id, project_id: 'a' })])
      await queues.send([queueMessage(shared, { id: 'urgent', project_id: 'a' }, { priority: 1 })])
      await run([handler(shared, {}, async ({ id }) => void started.push(id))], { concurrency: 1 })
      await until('all', () => started.length === 3)
      assert.deepEqual(started, ['urgent', 'old', 'new'])
    })

    it('a claim reads a few rows of a long backlog', async () => {
      await pool.query(
        `insert into pgboss.job_common (name, policy, group_id, data, created_on)
         select $1, 'standard', case when n > 20000 then 'quiet' else 'busy' end, '{"id":"x"}', now() + n * interval '1 ms'
         from generate_series(1, 20002) n`,
        [shared.name],
      )
      const { projects, read } = await queues.transaction(async tx => {
        const rowsRead = async () => {
          const { rows } = await tx.executeSql(
            `select seq_tup_read + idx_tup_fetch as n from pg_stat_xact_user_tables where relname = 'job_common'`,
          )
          return Number(rows[0].n)
        }
        const request = { limit: 4, last: '', held: new Map([['busy', 2]]), share: 2, borrow: 3 }
        const before = await rowsRead()
        const claims = await claimMessages(tx, shared, request)
        return { projects: claims?.jobs.map(job => job.project), read: (await rowsRead()) - before }
      })
      assert.deepEqual(projects?.sort(), ['busy', 'quiet', 'quiet'])
      assert.ok(read > 0 && read < 100, `${read} rows`)
    })
  })

  describe('suspects', () => {
    /** Makes the waiting messages of a queue suspects, as after the loss of workers. */
    const suspect = (queue: { name: string }, losses: number) =>
      pool.query(
        `update pgboss.job_common set state = 'retry', blocked = true, started_on = now(),
           data = data || jsonb_build_object('worker_losses', $2::int)
         where name = $1 and state = 'created'`,
        [queue.name, losses],
      )
    /** The data of a message; a replayed one also has its failed row. */
    const dataOf = async (id: string) =>
      (await one(`select data from pgboss.job_common where data ->> 'id' = $1 and state <> 'failed'`, [id])).data
    const quarantined = (lines: Record<string, any>[]) => lines.filter(({ msg }) => msg === 'work quarantined').length

    it('at their limit of lost workers that take long let other messages be claimed again', async () => {
      await queues.send([queueMessage(tasks, { id: 'long' })])
      await suspect(tasks, 2)
      const handled: string[] = []
      const handle = async ({ id }: { id: string }, { signal }: JobContext) => {
        handled.push(id)
        if (id === 'long') await once(signal, 'abort')
      }
      const workers = await run([handler(tasks, {}, handle)], { strictMs: 300 })
      await until('long', () => handled.length === 1)
      await queues.send([queueMessage(tasks, { id: 'other' })])
      await until('other', () => handled.length === 2, 10_000)
      assert.deepEqual(handled, ['long', 'other'])
      assert.deepEqual(await dataOf('long'), { id: 'long', worker_losses: 2 })
      await workers.stop(0)
    })

    it('that fail are retried as messages that lost no worker', async () => {
      await queues.send([queueMessage(tasks, { id: 'a' })])
      await suspect(tasks, 2)
      const seen: object[] = []
      const { log, lines } = recorder()
      const handle = async ({ id }: { id: string }) => {
        seen.push(await dataOf(id))
        if (seen.length === 1) throw new Error('not yet')
      }
      await run([handler(tasks, {}, handle)], { log })
      await until('the retry', () => seen.length === 2)
      assert.deepEqual(seen, [{ id: 'a', worker_losses: 2, ran_alone: true }, { id: 'a' }])
      assert.equal(quarantined(lines), 1)
    })

    it('that their handler requeues pause their worker only once', async () => {
      await queues.send([queueMessage(tasks, { id: 'a' })])
      await suspect(tasks, 1)
      let calls = 0
      const { log, lines } = recorder()
      const handle = async (_: object, { retryIn }: JobContext) => {
        retryIn(1)
        if (++calls < 4) throw new RequeueError()
      }
      await run([handler(tasks, {}, handle)], { log })
      await until('the end', async () => (await jobs(tasks.name))[0].state === 'completed')
      assert.equal(calls, 4)
      assert.equal(quarantined(lines), 1)
      // The requeued attempts may not have done what ended the worker.
      assert.deepEqual(await dataOf('a'), { id: 'a', worker_losses: 1 })
    })

    it('are replayed from the dead letters as messages that lost no worker', async () => {
      await queues.send([queueMessage(tasks, { id: 'a' })])
      await pool.query(
        `update pgboss.job_common set state = 'active', started_on = now(), heartbeat_on = 'epoch',
           retry_count = retry_limit, data = data || '{"worker_losses": 1}' where name = $1`,
        [tasks.name],
      )
      const seen: object[] = []
      await run([handler(tasks, {}, async ({ id }) => void seen.push(await dataOf(id)))])
      await until('dead', async () => (await queues.deadLetters.list({ queue: tasks.name })).length === 1)
      assert.deepEqual(seen, [])
      assert.equal(await queues.deadLetters.replay({ queue: tasks.name }), 1)
      await until('replayed', () => seen.length === 1)
      assert.deepEqual(seen, [{ id: 'a' }])
    })

    it('do not wait for messages that wait for other messages, and do not run alone then', async () => {
      let answer = () => {}
      const waiting = handler(shared, {}, (_, { releaseSlotWhile }) =>
        releaseSlotWhile(() => new Promise<void>(resolve => (answer = resolve))),
      )
      const seen: object[] = []
      const workers = await run([waiting, handler(tasks, {}, async ({ id }) => void seen.push(await dataOf(id)))])
      await queues.send([queueMessage(shared, { id: 'parent', project_id: 'p' })])
      await until('waiting', () => workers.running() === 1)
      await queues.transaction(async tx => {
        await queues.insert(tx, [queueMessage(tasks, { id: 'a' })])
        await tx.executeSql(`update pgboss.job_common set state = 'retry', blocked = true, data = data || '{"worker_losses": 2}'
          where name = 'test-tasks'`)
      })
      // The limit of the wait is a minute.
      await until('the suspect', () => seen.length === 1, 20_000)
      assert.deepEqual(seen, [{ id: 'a', worker_losses: 2, ran_alone: false }])
      answer()
    })

    it('that wait for other messages run alone no longer', async () => {
      let answer = () => {}
      await queues.send([queueMessage(shared, { id: 'a', project_id: 'p' })])
      await suspect(shared, 2)
      const handle = (_: object, { releaseSlotWhile }: JobContext) =>
        releaseSlotWhile(() => new Promise<void>(resolve => (answer = resolve)))
      const workers = await run([handler(shared, {}, handle)])
      await until('waiting', () => workers.running() === 1)
      await until('the end of the probation', async () => !('ran_alone' in (await dataOf('a'))), 10_000)
      answer()
    })

    it('delay the wake-ups of their entity, which would do the same work', async () => {
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      await suspect(mailbox, 1)
      await pool.query(`update pgboss.job_common set start_after = now() + interval '1 hour'`)
      await queues.send(['e', 'f'].map(id => queueMessage(mailbox, { id })))
      const handled: string[] = []
      await run([handler(mailbox, {}, async ({ id }) => void handled.push(id))])
      await until('the other entity', () => handled.length === 1)
      await pool.query(`update pgboss.job_common set start_after = now() where blocked`)
      await until('both', async () => (await jobs(mailbox.name)).every(({ state }) => state === 'completed'))
      assert.deepEqual(handled, ['f', 'e', 'e'])
    })

    it('that are delayed wake-ups are replaced by immediate ones', async () => {
      await queues.send([queueMessage(mailbox, { id: 'e' }, { startAfter: new Date(0) })])
      await suspect(mailbox, 1)
      let handled = 0
      await run([handler(mailbox, {}, async () => void handled++)])
      await until('handled', () => handled === 1)
      await until('both', async () => (await jobs(mailbox.name)).every(({ state }) => state === 'completed'))
      assert.deepEqual((await jobs(mailbox.name)).map(job => job.singleton_key).sort(), ['e', 'e@0'])
    })

    it('of one project take only its share of the time from other projects', async () => {
      const send = (project_id: string, count: number) =>
        queues.send(Array.from({ length: count }, (_, n) => queueMessage(shared, { id: `${n}`, project_id })))
      await send('busy', 4)
      await send('quiet', 1)
      await suspect(shared, 2)
      await pool.query(
        `insert into pgboss.muster_suspect_time values ('busy', now() + interval '239.9 s'), ('paid', now() - interval '1 s')`,
      )
      const handled: string[] = []
      const handle = async ({ project_id = '' }, { signal }: JobContext) => {
        handled.push(project_id)
        if (project_id === 'busy') await once(signal, 'abort')
      }
      const first = await run([handler(shared, {}, handle)], { strictMs: 1000 })
      await until('two suspects', () => handled.length === 2, 10_000)
      await send('quiet', 1)
      await until('other work', () => handled.length === 3, 10_000)
      // A second of a pause is four seconds of the share. The account outlives the process.
      const charged = await one(`
        update pgboss.muster_suspect_time set paid_at = now() + interval '1 hour'
        where project_id = 'busy' and paid_at > now() + interval '240 s' returning 1`)
      assert.ok(charged)
      await first.stop(0)
      await run([handler(shared, {}, handle)])
      await sleep(1500)
      await send('quiet', 1)
      await until('other work', () => handled.length === 4, 10_000)
      assert.deepEqual(handled, ['quiet', 'busy', 'quiet', 'quiet'])
      assert.equal(await one(`select from pgboss.muster_suspect_time where project_id = 'paid'`), undefined)
      await pool.query(`update pgboss.muster_suspect_time set paid_at = now()`)
      await until('the next suspect', () => handled.length === 5, 10_000)
    })
  })

  describe('stopping', () => {
    it('waits for running handlers, then requeues the rest without counting the attempt', async () => {
      const { log, lines } = recorder()
      const seen: string[] = []
      const workers = await run(
        [
          handler(tasks, {}, async ({ id }, { stopping, signal }) => {
            await once(stopping, 'abort')
            seen.push(`${id} asked`)
            if (id === 'quick') return
            if (id === 'gives up') throw new RequeueError()
            await once(signal, 'abort')
            if (id === 'deaf') await sleep(60_000, undefined, { ref: false })
            throw new Error('interrupted')
          }),
        ],
        { log },
      )
      await queues.send(['quick', 'gives up', 'slow', 'deaf'].map(id => queueMessage(tasks, { id })))
      await until('all active', () => workers.running() === 4)
      const { requeued } = await workers.stop(1000)
      assert.equal(requeued, 3)
      assert.equal(seen.length, 4)
      const states = Object.fromEntries((await jobs(tasks.name)).map(job => [job.data.id, job.state]))
      assert.deepEqual(states, { quick: 'completed', 'gives up': 'created', slow: 'created', deaf: 'created' })
      assert.deepEqual(lines.map(line => line.outcome).sort(), ['done', 'requeued', 'requeued', 'requeued'])

      const attempts: number[] = []
      await run([handler(tasks, {}, async (_, { attempt }) => void attempts.push(attempt))])
      await until('again', () => attempts.length === 3)
      assert.deepEqual(attempts, [1, 1, 1])
    })

    it('requeues the messages of a batch with other trigger chains than the active ones', async () => {
      const calls: (readonly string[])[] = []
      await queues.send(
        ['trg_1', 'trg_2', 'trg_3'].map((trigger, n) => queueMessage(tasks, { id: `${n}` }, { chain: [trigger] })),
      )
      const workers = await run([
        handler(tasks, { batch: 10, concurrency: 1 }, async (_, { signal }) => {
          calls.push(currentTriggerChain())
          await once(signal, 'abort')
        }),
      ])
      await until('active', () => calls.length === 1)
      assert.equal((await workers.stop(0)).requeued, 2)
      assert.equal(calls.length, 1)
      assert.deepEqual((await jobs(tasks.name)).map(job => job.state).sort(), ['completed', 'created', 'created'])
    })

    it('requeues a suspect whose claim is answered meanwhile', async () => {
      await pool.query(`
        create function await_gate() returns trigger language plpgsql as $$
          begin perform pg_advisory_xact_lock_shared(4712); return new; end $$;
        create trigger gate before update on pgboss.job_common for each row
          when (new.name = 'test-tasks' and new.state = 'active') execute function await_gate()`)
      const gate = await pool.connect()
      try {
        await gate.query('select pg_advisory_lock(4712)')
        await queues.send([queueMessage(tasks, { id: 'suspect' })])
        await pool.query(`
          update pgboss.job_common set state = 'retry', blocked = true, started_on = now(), data = data || '{"worker_losses": 1}'
          where name = 'test-tasks'`)
        const handled: string[] = []
        const workers = await run([handler(tasks, {}, async ({ id }) => void handled.push(id))])
        await until('claiming', async () => {
          const { waits } = await one(`select exists (${LOCK_WAITS} and locktype = 'advisory') as waits`)
          return waits
        })
        const stopped = workers.stop(0)
        await sleep(100)
        await gate.query('select pg_advisory_unlock(4712)')
        await stopped
        assert.deepEqual(
          (await jobs(tasks.name)).map(({ state, blocked }) => [state, blocked]),
          [['created', true]],
        )
        assert.deepEqual(handled, [])
      } finally {
        gate.release()
        await pool.query('drop trigger gate on pgboss.job_common; drop function await_gate()')
      }
    })

    it('handles an entity requeued while its next wake-up waits immediately', async () => {
      const workers = await run([
        handler(mailbox, {}, async (_, { signal }) => {
          await once(signal, 'abort')
          throw new Error('interrupted')
        }),
      ])
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      await until('active', () => workers.running() === 1)
      await queues.send([queueMessage(mailbox, { id: 'e' })])
      assert.equal((await workers.stop(0)).requeued, 1)
      assert.deepEqual((await jobs(mailbox.name)).map(job => job.state).sort(), ['completed', 'created'])
    })
  })

  describe('schedules', () => {
    it('an instant at which nothing is due sends no message', async () => {
      let asked = 0
      let due = false
      const looks = async () => {
        asked += 1
        return due
      }
      await run([], { schedules: [schedule('test-due', 1, tasks, { id: 'due' }, looks)] })
      await until('asked twice', () => asked >= 2)
      assert.equal((await jobs(tasks.name)).length, 0)
      due = true
      await until('sent', async () => (await jobs(tasks.name)).length > 0)
    })

    it('evaluates conditions of schedules with the same instants in one statement, each separately', async () => {
      const asked: string[] = []
      const counting = pg.Client.prototype.query as (...args: unknown[]) => unknown
      pg.Client.prototype.query = function (this: pg.Client, ...args: unknown[]) {
        const [config] = args as [string | { text: string }]
        const text = typeof config === 'string' ? config : config.text
        if (text.includes('test-one')) asked.push(text)
        return counting.apply(this, args)
      } as never
      const asks = await openPool({ databaseUrl, connections: 1 })
      try {
        const condition = (value: boolean) => sql.fragment`exists (select where ${value})`
        const services = { queues, log: silentLog(), config, pool: asks }
        await run([], {
          services,
          schedules: [
            schedule('test-one', 1, tasks, { id: 'one' }, condition(true)),
            schedule('test-two', 1, tasks, { id: 'two' }, condition(false)),
            schedule('test-three', 1, tasks, { id: 'three' }),
            schedule('test-never', 0, tasks, { id: 'never' }),
          ],
        })
        await until('two instants', async () => (await jobs(tasks.name)).length >= 4)
        await started.at(-1)?.stop(0)
      } finally {
        pg.Client.prototype.query = counting as never
        await asks.end()
      }
      const ids = (await jobs(tasks.name)).map(job => job.data.id)
      assert.deepEqual([...new Set(ids)].sort(), ['one', 'three'])
      assert.ok(asked.length >= 2)
      for (const text of asked) assert.match(text, /as "test-two"/)
    })

    it('any number of workers sends one message per instant', async () => {
      let handled = 0
      const handlers = [handler(tasks, {}, async () => void handled++)]
      const schedules = [schedule('test-tick', 1, tasks, instant => ({ id: instant.toISOString() }))]
      await run(handlers, { schedules })
      await run([], { schedules })
      await run([], { schedules: [schedule('test-cron', '* * * * * *', tasks, { id: 'cron' })] })
      const seen = async () => {
        const ids = (await jobs(tasks.name)).map(job => job.data.id)
        const instants = ids.filter(id => id !== 'cron')
        return { instants, crons: ids.length - instants.length }
      }
      await until('three instants of both', async () => {
        const { instants, crons } = await seen()
        return instants.length >= 3 && crons >= 3
      })
      await until('their handling', () => handled >= 6)
      const { instants, crons } = await seen()
      assert.equal(new Set(instants).size, instants.length)
      for (const instant of instants) assert.equal(Date.parse(instant) % 1000, 0, instant)
      assert.ok(crons <= instants.length + 1, `${crons} of the one worker, ${instants.length} of two`)
    })
  })
})
