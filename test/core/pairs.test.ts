import assert from 'node:assert/strict'
import { once } from 'node:events'
import net, { type AddressInfo, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { silentLog } from '#core/base/log.ts'
import { type Notifier, openNotifier } from '#core/db/notifier.ts'
import { type Notifications, openNotifications } from '#core/db/notify.ts'
import { openClients } from '#core/db/pg-client.ts'
import { inTransaction, openPool, type Pool } from '#core/db/pool.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { rawQuery } from '#core/db/sql.ts'
import { migrate } from '#core/queues/migrate.ts'
import { openQueues, type Queues } from '#core/queues/queue.ts'
import { type Cluster, findServer } from '#local/drills/cluster.ts'
import { query } from '#local/drills/deployment.ts'
import { openPair, PAIR_PROGRAMS, type Pair, startStandby } from '#local/drills/pair.ts'
import { eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'

const log = silentLog()
const CHANNEL = 'pairs_test'
const ADMIN = { username: 'root', password: 'a fine password' }
const ACKNOWLEDGED = 10_000
/** Time after the promotion of the standby in which the service is back. */
const BACK_MS = 10_000

/** Whether this machine has the programs; the sentence names the missing ones. */
function hasPrograms(): boolean {
  try {
    findServer(PAIR_PROGRAMS)
    return true
  } catch (error) {
    console.log(`pairs: skipped, ${(error as Error).message}`)
    return false
  }
}

/** Forwards connections to a port that can be changed; open ones stay, as with a name that another server takes over. */
async function startMovingName(first: number) {
  const name = { port: first }
  const sockets = new Set<Socket>()
  const server = net.createServer(near => {
    const far = net.connect(name.port, '127.0.0.1')
    for (const [from, to] of [
      [near, far],
      [far, near],
    ]) {
      sockets.add(from)
      from.on('error', () => {}).on('close', () => to.destroy())
      from.pipe(to)
    }
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    move: (to: number) => {
      name.port = to
    },
    close: () => {
      for (const socket of sockets) socket.destroy()
      server.close()
    },
  }
}

/** Everything of a process that connects to the database. */
type Connections = { pool: Pool; queues: Queues; notifications: Notifications; notifier: Notifier; heard: string[] }

async function openConnections(databaseUrl: string): Promise<Connections> {
  const pool = await openPool({ databaseUrl, connections: 4 })
  const notifier = openNotifier({ databaseUrl, log })
  const notifications = await openNotifications({ databaseUrl, log })
  const queues = await openQueues({ databaseUrl, connections: 2, notifier, log })
  const heard: string[] = []
  const connections = { pool, queues, notifications, notifier, heard }
  // All four are open and idle then.
  await Promise.all(Array.from({ length: 4 }, () => pool.any(rawQuery('select pg_sleep(0.2)'))))
  return connections
}

/** Listens, which a standby refuses as it refuses a write. */
const listen = ({ notifications, heard }: Connections) =>
  notifications.listen(CHANNEL, payload => heard.push(payload)).ready

async function closeConnections({ pool, queues, notifications, notifier }: Connections): Promise<void> {
  await Promise.all([notifications.close(), notifier.close(), queues.close()])
  await pool.end()
}

const portOf = async (pool: Pool): Promise<number> =>
  Number(((await pool.one(rawQuery(`select current_setting('port') as port`))) as { port: string }).port)

const insert = (pool: Pool, id: number) =>
  inTransaction(pool, tx => tx.query(rawQuery('insert into pairs_test values ($1)', [id])))

/** Asserts that writes, messages and notifications go to a server, and that no connection remains at the other one. */
async function assertMoved(connections: Connections, to: Cluster, isLeft: (port: number) => boolean): Promise<void> {
  const { pool, queues, notifications, notifier, heard } = connections
  assert.equal(await portOf(pool), to.port)
  const { rows } = await queues.db.executeSql(`select current_setting('port') as port`)
  assert.equal(Number(rows[0].port), to.port)
  await eventually(() => notifications.healthy(), { what: 'the listening connection' })
  heard.length = 0
  await eventually(
    () => {
      notifier.notify({ channel: CHANNEL, payload: 'moved' })
      return heard.includes('moved')
    },
    { every: 100, what: 'a notification from the process to itself' },
  )
  assert.deepEqual(
    [...openClients()].filter(({ port }) => isLeft(port)).map(client => client.port),
    [],
  )
}

/** Creates projects one after the other; a request that fails is repeated with its key. */
function createProjects({ url }: TestProcess) {
  const ids: string[] = []
  let isEnding = false
  let authorization = ''
  const call = async (path: string, body: object, headers: Record<string, string> = {}) => {
    const response = await fetch(`${url}/api/v1${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
    })
    return { status: response.status, body: (await response.json()) as any }
  }
  const running = (async () => {
    authorization = `Bearer ${(await call('/users/login', ADMIN)).body.token}`
    for (let n = 0; !isEnding; n++) {
      const headers = { authorization, 'idempotency-key': `project-${n}` }
      const created = await eventually(
        async () => {
          const answer = await call('/projects', { name: `p ${n}` }, headers)
          assert.ok([201, 409, 503].includes(answer.status), JSON.stringify(answer))
          return answer.status === 201 && answer.body
        },
        { within: 60_000, every: 100, what: 'a created project' },
      )
      ids.push(created.id)
    }
  })()
  return {
    ids,
    end: () => {
      isEnding = true
      return running
    },
    async missing(): Promise<string[]> {
      const statuses = await Promise.all(
        ids.map(async id => (await fetch(`${url}/api/v1/projects/${id}`, { headers: { authorization } })).status),
      )
      return ids.filter((_id, index) => statuses[index] !== 200)
    },
  }
}

describe('pairs of servers', function () {
  this.timeout(300_000)
  let pair: Pair
  /** Serve during all tests. */
  let processes: TestProcess[] = []

  before(async function () {
    if (!hasPrograms()) return this.skip()
    pair = await openPair()
    await migrate(pair.url)
    await query(pair.url, 'create table pairs_test (id int primary key)')
    processes = await Promise.all([
      startProcess('web', pair.url, { ADMIN_USERNAME: ADMIN.username, ADMIN_PASSWORD: ADMIN.password }),
      startProcess('worker', pair.url),
    ])
  })
  after(async () => {
    await Promise.all(processes.map(each => each.kill()))
    await pair?.close()
  })

  const areReady = () =>
    Promise.all(
      processes.map(({ url }) =>
        eventually(async () => (await fetch(`${url}/readyz`)).status === 200, { within: BACK_MS, what: '/readyz' }),
      ),
    )

  const url = (hosts: readonly number[], more = '') =>
    `postgres://muster@${hosts.map(port => `127.0.0.1:${port}`).join()}/muster${more}`

  /** Inserts a row as a worker does, which repeats it. Returns the number of tries. */
  async function insertRepeatedly(pool: Pool, id: number): Promise<number> {
    let tries = 0
    await retryWhileUnavailable(async () => {
      tries += 1
      await insert(pool, id)
    })
    return tries
  }

  it('are left at a standby with the first refused write, also by connections that only read', async () => {
    const { primary, standby } = pair
    // Without target_session_attrs the first host is used, whatever it is.
    const connections = await openConnections(url([standby.port, primary.port]))
    try {
      assert.equal(await portOf(connections.pool), standby.port)
      assert.equal(await insertRepeatedly(connections.pool, 1), 2)
      await listen(connections)
      await assertMoved(connections, primary, port => port === standby.port)
    } finally {
      await closeConnections(connections)
    }
  })

  it('are left at a standby whose name leads to the primary since', async () => {
    const { primary, standby } = pair
    const name = await startMovingName(standby.port)
    const connections = await openConnections(url([name.port]))
    try {
      name.move(primary.port)
      assert.equal(await portOf(connections.pool), standby.port)
      const before = performance.now()
      assert.equal(await insertRepeatedly(connections.pool, 2), 2)
      await listen(connections)
      await assertMoved(connections, primary, () => false)
      for (const client of openClients()) assert.ok(client.port !== name.port || client.openedAt > before)
    } finally {
      await closeConnections(connections)
      name.close()
    }
  })

  it('are left by all connections when the server reports that it is read-only, before a write fails', async () => {
    const { primary, standby } = pair
    const connections = await openConnections(pair.url)
    try {
      assert.equal(await portOf(connections.pool), primary.port)
      await listen(connections)
      await query(primary.url('postgres'), 'alter system set default_transaction_read_only = on')
      await query(primary.url('postgres'), 'select pg_reload_conf()')
      await standby.promote()
      await eventually(async () => (await portOf(connections.pool)) === standby.port, { what: 'the other server' })
      await areReady()
      assert.equal(await insertRepeatedly(connections.pool, 3), 1)
      await assertMoved(connections, standby, port => port === primary.port)
    } finally {
      await closeConnections(connections)
    }
    await primary.kill()
    primary.clear()
    await startStandby(primary, standby)
    Object.assign(pair, { primary: standby, standby: primary })
  })

  it('lose no acknowledged write when the primary is killed under load, and serve within 10 s of the promotion', async () => {
    const { primary, standby } = pair
    const pool = await openPool({ databaseUrl: pair.url, connections: 8 })
    const acknowledged: number[] = []
    let next = 100
    const write = async () => {
      while (acknowledged.length < ACKNOWLEDGED) {
        const id = next++
        // A write that was not acknowledged may be stored, so it is not repeated.
        await insert(pool, id).then(
          () => acknowledged.push(id),
          () => sleep(20),
        )
      }
    }
    try {
      const projects = createProjects(processes[0])
      const writers = Promise.all(Array.from({ length: 8 }, write))
      await eventually(() => acknowledged.length > ACKNOWLEDGED / 3 && projects.ids.length > 3, { within: 120_000 })
      await primary.kill()
      const [writes, created] = [acknowledged.length, projects.ids.length]
      await standby.promote()
      const promotedAt = performance.now()
      const progresses = (count: () => number, before: number) =>
        eventually(() => count() > before, { within: BACK_MS, what: 'an acknowledged write' })
      await Promise.all([
        progresses(() => acknowledged.length, writes),
        progresses(() => projects.ids.length, created),
        areReady(),
      ])
      console.log(`pairs: back ${Math.round(performance.now() - promotedAt)} ms after the promotion`)
      await writers
      await projects.end()
      const lost = `select id from unnest('{${acknowledged}}'::int[]) as a (id)
        where not exists (select from pairs_test t where t.id = a.id)`
      assert.deepEqual(await query(pair.url, lost), [])
      assert.deepEqual(await projects.missing(), [])
      const unlogged = await query(
        pair.url,
        `select oid::regclass::text as name from pg_class
        where relpersistence = 'u' and relkind = 'r' order by 1`,
      )
      assert.ok(unlogged.length >= 8)
      for (const { name } of unlogged) await query(pair.url, `select from ${name} limit 1`)
      primary.clear()
      await startStandby(primary, standby)
      assert.equal(await portOf(pool), standby.port)
      await areReady()
    } finally {
      await pool.end()
    }
  })
})
