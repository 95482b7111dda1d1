import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { loadConfig } from '#config.ts'
import { silentLog } from '#core/base/log.ts'
import { openPool, type Pool } from '#core/db/pool.ts'
import { Replica } from '#core/db/replica.ts'
import { type PrimaryFacts, replicaProblem } from '#core/db/replica-facts.ts'
import { rawQuery } from '#core/db/sql.ts'
import { migrate } from '#core/queues/migrate.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { bootstrapAdmin } from '#identity/users/bootstrap.ts'
import { issueUserToken } from '#identity/users/sign-in.ts'
import { type Cluster, findServer, startCluster } from '#local/drills/cluster.ts'
import { query } from '#local/drills/deployment.ts'
import { openStandby, PAIR_PROGRAMS } from '#local/drills/pair.ts'
import { checkReplica } from '#operator/doctor-database.ts'
import { ADMIN, type Client, client, eventually, startApp } from '../support/app.ts'
import { run } from '../support/commands.ts'
import { testEnvironment } from '../support/environment.ts'
import { scrape } from '../support/metrics.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'

const findBin = (): string | null => {
  try {
    return findServer(PAIR_PROGRAMS)
  } catch {
    return null
  }
}

const urlOf = (server: Cluster) => server.url('muster')

const pidOf = (server: Cluster) => Number.parseInt(fs.readFileSync(path.join(server.dir, 'postmaster.pid'), 'utf8'), 10)

/** Stops a server and its sessions, or lets them continue. */
function silence(server: Cluster, signal: 'SIGSTOP' | 'SIGCONT'): void {
  const pid = pidOf(server)
  const sessions = fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number)
  for (const each of [pid, ...sessions]) process.kill(each, signal)
}

describe('replicas for reading', function () {
  this.timeout(180_000)
  let primary: Cluster
  let standby: Cluster
  const started: TestProcess[] = []
  let token: string
  let project: string

  before(async function () {
    const bin = findBin()
    if (bin === null) {
      console.log(`      skipped: ${PAIR_PROGRAMS} is not on the PATH`)
      return this.skip()
    }
    primary = await startCluster(bin)
    await migrate(urlOf(primary))
    const services = await openServices(loadConfig(testEnvironment(urlOf(primary))), { log: silentLog(), role: 'cli' })
    await bootstrapAdmin(services, ADMIN)
    const [account] = await query(urlOf(primary), `select id, role, token_version from users`)
    token = (await issueUserToken(services, account)).token
    await services.close()
    standby = await openStandby(primary)
  })

  afterEach(async () => {
    for (const each of started.splice(0)) await each.kill()
  })

  after(async () => {
    await standby?.close()
    await primary?.close()
  })

  const startWeb = async (env: Record<string, string> = {}): Promise<TestProcess & { admin: Client }> => {
    const web = await startProcess('web', urlOf(primary), { DATABASE_READ_URL: urlOf(standby), ...env })
    started.push(web)
    const admin = client(web.url, token)
    if (project === undefined) {
      const made = await admin.post('/projects', { name: 'reads' })
      assert.equal(made.status, 201)
      project = made.body.id
    }
    return { ...web, admin }
  }

  const reads = async ({ url }: TestProcess, place: 'replica' | 'primary', reason?: string): Promise<number> =>
    (await scrape(url)).value('muster_replica_reads_total', { place, ...(reason && { reason }) }) ?? 0

  const isRead = async (web: TestProcess): Promise<boolean> => (await scrape(web.url)).value('muster_replica_up') === 1

  const untilRead = (web: TestProcess) => eventually(() => isRead(web), { what: 'replica is read' })

  /** Makes reads until `count` of them ran at a place. */
  const untilReadAt = async (web: TestProcess & { admin: Client }, place: 'replica' | 'primary', reason?: string) => {
    const before = await reads(web, place, reason)
    await eventually(
      async () => {
        assert.equal((await web.admin.get('/audit-log')).status, 200)
        return (await reads(web, place, reason)) > before
      },
      { what: `reads at the ${place}` },
    )
  }

  const delay = async (setting: string) => {
    await query(urlOf(standby), `alter system set recovery_min_apply_delay = '${setting}'`)
    await query(urlOf(standby), 'select pg_reload_conf()')
  }

  it('runs reports, logs, exports and pages of large offsets on the replica, and nothing else', async () => {
    const web = await startWeb()
    await untilRead(web)
    const day = { from: '2026-01-01T00:00:00Z', to: '2026-01-02T00:00:00Z' }
    const range = `project_id=${project}&interval=day&from=${day.from}&to=${day.to}`
    const search = () => web.admin.post('/knowledge/search', { project_id: project, query: 'heron' })
    const get = (address: string) => () => web.admin.get(address)
    const addresses = [
      '/audit-log',
      `/audit-log/export?project_id=${project}`,
      '/events',
      '/usage/events',
      `/usage/aggregate?project_id=${project}`,
      `/usage/timeseries?${range}`,
      `/usage/export?project_id=${project}`,
      `/generations/statistics?${range}`,
      '/feedback/aggregate?group_by=day',
      `/activity/export?project_id=${project}`,
      '/agents?offset=1001',
    ]
    const calls = [...addresses.map(address => ({ address, send: get(address) })), { address: 'search', send: search }]
    for (const { address, send } of calls) {
      // A replica that is late for a moment is not read.
      await eventually(
        async () => {
          const before = await reads(web, 'replica')
          const { status, body } = await send()
          assert.equal(status, 200, JSON.stringify(body))
          return (await reads(web, 'replica')) > before
        },
        { what: `${address} on the replica` },
      )
    }
    const total = async () => (await reads(web, 'replica')) + (await reads(web, 'primary'))
    const before = await total()
    for (const each of ['/agents', '/agents?offset=1000', `/projects/${project}`, '/policies', '/quotas'])
      assert.equal((await web.admin.get(each)).status, 200)
    assert.equal(await total(), before)
    const sent = await query(
      urlOf(standby),
      `select query, application_name from pg_stat_activity where application_name like 'muster web%'`,
    )
    assert.ok(sent.length > 0)
    assert.ok(!sent.some(({ query: text }) => /policies|project_keys|quotas/.test(text)), JSON.stringify(sent))
    const { value } = await scrape(web.url)
    assert.ok((value('muster_database_connections', { database: 'replica', state: 'max' }) ?? 0) > 0)
    assert.ok((value('muster_replica_lag_seconds') ?? -1) >= 0)
    const [{ count }] = await query(urlOf(primary), 'select count(*)::int from audit_entries')
    assert.equal((await web.admin.get('/audit-log')).body.total, count)
  })

  it('loses no own write and has no stale permission while the replica is 30 s late, with two web processes', async () => {
    const [a, b] = [await startWeb(), await startWeb()]
    await Promise.all([untilRead(a), untilRead(b)])
    await delay('30s')
    try {
      for (let round = 0; round < 10; round++) {
        const [writer, reader] = round % 2 ? [a, b] : [b, a]
        const made = await writer.admin.post('/actors', { project_id: project, name: `late ${round}` })
        assert.equal(made.status, 201, JSON.stringify(made.body))
        for (const web of [reader, writer]) {
          const events = await web.admin.get(`/events?resource_id=${made.body.id}`)
          assert.equal(events.body.total, 1, `round ${round}: ${JSON.stringify(events.body)}`)
          const entries = await web.admin.get(`/audit-log?project_id=${project}&limit=1`)
          assert.equal(entries.body.data[0].resource_public_id, made.body.id)
        }
      }
      assert.ok((await reads(a, 'primary', 'replay')) + (await reads(a, 'primary', 'lag')) > 0)

      const statement = (effect: string) => [
        { effect: 'Allow', action: ['*'], resource: [`srn:${project}:*:*`] },
        { effect, action: ['audit:*'], resource: [`srn:${project}:*:*`] },
      ]
      const policy = await a.admin.post('/policies', { document: { statement: statement('Allow') } })
      assert.equal(policy.status, 201, JSON.stringify(policy.body))
      const made = await a.admin.post('/project-keys', { project_id: project, policy_ids: [policy.body.id] })
      const keys = [a, b].map(({ url }) => client(url, made.body.secret))
      for (const key of keys) assert.equal((await key.get('/audit-log')).status, 200)
      const changed = await a.admin.patch(`/policies/${policy.body.id}`, { document: { statement: statement('Deny') } })
      assert.equal(changed.status, 200, JSON.stringify(changed.body))
      assert.equal((await keys[0].get('/audit-log')).status, 403)
      // Another process receives the change by a notification.
      await eventually(async () => (await keys[1].get('/audit-log')).status === 403)

      // Its lag exceeds the limit, until it has replayed everything.
      await eventually(async () => !(await isRead(a)), { what: 'lag' })
      assert.ok(((await scrape(a.url)).value('muster_replica_lag_seconds') ?? 0) > 5)
      await untilReadAt(a, 'primary', 'lag')
    } finally {
      await delay('0')
    }
    await untilRead(a)
    await untilReadAt(a, 'replica')
  })

  /** Sends reads until `work` is done and its condition holds, all of which must succeed. */
  async function underLoad(web: TestProcess & { admin: Client }, work: () => Promise<unknown>): Promise<number> {
    let isOver = false
    let longestMs = 0
    const refused: unknown[] = []
    const send = async (address: string) => {
      while (!isOver) {
        const startedAt = performance.now()
        const { status, body } = await web.admin.get(address)
        longestMs = Math.max(longestMs, performance.now() - startedAt)
        if (status !== 200) refused.push([address, status, body])
      }
    }
    const ofProject = `project_id=${project}`
    const senders = ['/audit-log', '/events', `/usage/aggregate?${ofProject}`, `/audit-log/export?${ofProject}`].map(
      send,
    )
    try {
      await work()
    } finally {
      isOver = true
      await Promise.all(senders)
    }
    assert.deepEqual(refused.slice(0, 3), [])
    return longestMs
  }

  it('answers every request while the replica is silent', async () => {
    const web = await startWeb()
    await untilRead(web)
    const longestMs = await underLoad(web, async () => {
      await untilReadAt(web, 'replica')
      silence(standby, 'SIGSTOP')
      try {
        await eventually(async () => !(await isRead(web)), { what: 'silence' })
        await untilReadAt(web, 'primary', 'unavailable')
      } finally {
        silence(standby, 'SIGCONT')
      }
      await untilRead(web)
      await untilReadAt(web, 'replica')
    })
    assert.ok(longestMs < 15_000, `${longestMs}`)
  })

  it('answers every request while the replica crashes, and reads it again after its start', async () => {
    const web = await startWeb()
    await untilRead(web)
    await underLoad(web, async () => {
      await untilReadAt(web, 'replica')
      await standby.crash()
      await eventually(async () => !(await isRead(web)), { what: 'crash' })
      await standby.start()
      await untilRead(web)
      await untilReadAt(web, 'replica')
    })
    assert.ok(web.output.some(line => line.includes('replica is not read')))
  })

  it('repeats reads on the primary that the replay of the replica cancels', async () => {
    await query(urlOf(standby), `alter system set max_standby_streaming_delay = '0'`)
    await query(urlOf(standby), 'select pg_reload_conf()')
    const pool: Pool = await openPool({ databaseUrl: urlOf(primary), connections: 2 })
    const replica = new Replica({
      databaseUrl: urlOf(standby),
      primary: pool,
      maxLagMs: 5000,
      log: silentLog(),
      pool: { connections: 2 },
    })
    try {
      const places = await eventually(async () => {
        const found: boolean[] = []
        const count = await replica.reads().transaction(async db => {
          const isStandby = (await db.oneFirst(rawQuery('select pg_is_in_recovery() from projects limit 1'))) as boolean
          found.push(isStandby)
          if (isStandby) {
            await query(urlOf(primary), 'begin; lock table projects; commit')
            const [{ lsn }] = await query(urlOf(primary), 'select pg_current_wal_flush_lsn()::text as lsn')
            const replayed = `select pg_last_wal_replay_lsn() >= '${lsn}'::pg_lsn as replayed`
            await eventually(async () => (await query(urlOf(standby), replayed))[0].replayed)
          }
          return db.oneFirst(rawQuery('select count(*)::int from projects'))
        })
        assert.ok((count as number) > 0)
        return found[0] && found
      })
      assert.deepEqual(places, [true, false])
    } finally {
      await replica.close()
      await pool.end()
      await query(urlOf(standby), 'alter system reset max_standby_streaming_delay')
      await query(urlOf(standby), 'select pg_reload_conf()')
    }
  })

  it('sends no statement in a process without a replica', async () => {
    const app = await startApp()
    try {
      await app.admin.get('/audit-log')
      assert.equal(app.services.replica, null)
      assert.ok(app.statements.length > 0)
      assert.deepEqual(
        app.statements.filter(text => /pg_current_wal|pg_control/.test(text)),
        [],
      )
      assert.equal((await scrape(app.url)).value('muster_replica_lag_seconds'), undefined)
    } finally {
      await app.close()
    }
  })

  it('compares servers, databases, schemas and timelines', () => {
    const facts: PrimaryFacts = { system: '1', timeline: 2, database: 'muster', schema: 'public', position: 10 }
    const replica = { ...facts, is_standby: true, position: 10 }
    assert.equal(replicaProblem(facts, replica), null)
    for (const [other, problem] of [
      [{ system: '2' }, /not a replica of/],
      [{ is_standby: false }, /not a standby/],
      [{ database: 'other' }, /database other/],
      [{ schema: null }, /schema null/],
      [{ timeline: 1 }, /timeline 1, not 2/],
    ] as const)
      assert.match(replicaProblem(facts, { ...replica, ...other }) ?? '', problem)
  })

  /** The line of `muster doctor` for a URL. */
  const doctor = async (DATABASE_READ_URL: string) => {
    const config = loadConfig({ ...testEnvironment(urlOf(primary)), DATABASE_READ_URL })
    const pool = await openPool({ databaseUrl: config.DATABASE_URL, connections: 1 })
    try {
      const [check] = await checkReplica(config, pool)
      return check
    } finally {
      await pool.end()
    }
  }

  it('starts with an unusable replica; log and doctor have one line for it', async () => {
    for (const [url, detail] of [
      ['postgres://127.0.0.1:1/muster', /does not answer/],
      ['mysql://replica/muster', /must begin with postgres/],
      [urlOf(primary), /is not a standby/],
      [standby.url('postgres'), /has the database postgres, not muster/],
    ] as const) {
      const found = await doctor(url)
      assert.equal(found.status, 'fail')
      assert.match(found.detail, detail)
    }
    const working = await doctor(urlOf(standby))
    assert.equal(working.status, 'ok', working.detail)
    for (const [url, detail] of [
      ['mysql://replica/muster', /must begin with postgres/],
      [urlOf(primary), /is not a standby/],
    ] as const) {
      const web = await startWeb({ DATABASE_READ_URL: url })
      assert.equal((await web.admin.get('/audit-log')).status, 200)
      await eventually(() => web.output.some(each => each.includes('replica is not read')), { what: url })
      const lines = web.output.filter(each => each.includes('replica is not read'))
      assert.equal(lines.length, 1)
      assert.match(lines[0], detail)
      assert.equal(await reads(web, 'replica'), 0)
    }
    const { stdout } = await run('bin/muster.mjs', ['doctor', '--json'], {
      ...testEnvironment(urlOf(primary)),
      DATABASE_READ_URL: urlOf(primary),
    })
    const check = JSON.parse(stdout).checks.find(({ name }: { name: string }) => name === 'replica')
    assert.equal(check.status, 'fail')
  })

  it('does not read a replica that was promoted', async () => {
    const web = await startWeb()
    await untilRead(web)
    await untilReadAt(web, 'replica')
    await underLoad(web, async () => {
      await standby.promote()
      await query(urlOf(standby), 'truncate events cascade')
      const [{ count }] = await query(urlOf(primary), 'select count(*)::int from events')
      assert.ok(count > 0)
      for (let read = 0; read < 20; read++) assert.equal((await web.admin.get('/events')).body.total, count)
      await eventually(async () => !(await isRead(web)), { what: 'promotion' })
    })
    const before = await reads(web, 'replica')
    assert.equal((await web.admin.get('/audit-log')).status, 200)
    assert.equal(await reads(web, 'replica'), before)
    assert.match((await doctor(urlOf(standby))).detail, /is not a standby/)
  })
})
