import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { pruneAudit } from '#control/audit/retention.ts'
import { pruneEvents } from '#control/events/retention.ts'
import { eventMonths } from '#control/events/store.ts'
import { idFloor, newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { maintainMonths } from '#core/db/months.ts'
import { DatabaseClient } from '#core/db/pg-client.ts'
import { MIGRATIONS } from '#core/queues/breaking-migrations.ts'
import { migrate } from '#core/queues/migrate.ts'
import { eventually, startApp } from '../support/app.ts'
import { tcpUrl, testEnvironment } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const TABLES = ['events', 'audit_entries']
const DAY_MS = 86_400_000

/** The partitions of a table with their bounds. */
const PARTITIONS = `
  select c.relname as name, pg_get_expr(c.relpartbound, c.oid) as bound
  from pg_inherits join pg_class c on c.oid = inhrelid where inhparent = $1::regclass order by 1`

const nameOf = (table: string, months: number): string => {
  const now = new Date()
  const month = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + months))
  return `${table}_${month.toISOString().slice(0, 7).replace('-', '_')}`
}

const startOf = (months: number): Date => {
  const now = new Date()
  return new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + months))
}

/** Makes a directory with the migrations before the tables are partitioned. */
function olderMigrations(): string {
  const older = fs.mkdtempSync(path.join(tmpdir(), 'muster-months-'))
  for (const file of fs.readdirSync(MIGRATIONS))
    if (file < '0037') fs.copyFileSync(path.join(MIGRATIONS, file), path.join(older, file))
  return older
}

describe('the migration that partitions tables by months', function () {
  this.timeout(120_000)
  let url: string
  let client: pg.Client
  before(async () => {
    url = await createDatabase()
    const older = olderMigrations()
    await migrate(url, { directory: older })
    fs.rmSync(older, { recursive: true })
    client = new pg.Client({ connectionString: url })
    await client.connect()
  })
  after(async () => {
    await client.end()
    await dropDatabase(new URL(url).pathname.slice(1))
  })

  const all = async (text: string, values: unknown[] = []) => (await client.query(text, values)).rows
  /** Indexes and constraints of a table as they are defined, without the names of partitions. */
  const definitions = (table: string) =>
    all(
      `select pg_get_indexdef(indexrelid) as definition from pg_index where indrelid = $1::regclass
       union all select conname || ' ' || pg_get_constraintdef(oid) from pg_constraint
       where conrelid = $1::regclass and contype <> 'n'
       union all select pg_get_triggerdef(oid) from pg_trigger where tgrelid = $1::regclass and not tgisinternal order by 1`,
      [table],
    ).then(rows => rows.map(({ definition }) => definition.replace(' ON ONLY ', ' ON ')))

  /** Writes events with audit entries, as requests do, until it is stopped; returns how many were committed. */
  async function write(project: string, stopping: AbortSignal): Promise<number> {
    const writer = new pg.Client({ connectionString: url })
    await writer.connect()
    let written = 0
    try {
      for (; !stopping.aborted; written++) {
        await writer.query('begin')
        // As work that locks its project and writes its events later.
        await writer.query('select from projects where id = $1 for share', [project])
        await writer.query(
          `insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at)
           values ($1, $2, 'a.b', 'a', 'b', '{}', now())`,
          [newId('evt'), project],
        )
        await writer.query(
          `insert into audit_entries (id, project_id, action, status, created_at) values ($1, $2, 'a:B', 200, now())`,
          [newId('audit'), project],
        )
        await writer.query('commit')
      }
    } finally {
      await writer.end()
    }
    return written
  }

  it('keeps every row, index, constraint and trigger while the tables are written', async () => {
    const project = newId('proj')
    await client.query(`insert into projects (id, name) values ($1, 'Old')`, [project])
    const old = Array.from({ length: 400 }, (_, day) => new Date(Date.now() - day * DAY_MS).toISOString())
    await client.query(
      `insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at)
       select id, $1, 'a.b', 'a', 'b', '{}', at from unnest($2::text[], $3::timestamptz[]) as r (id, at)`,
      [project, old.map(at => idFloor('evt', new Date(at))), old],
    )
    const before = new Map<string, string[]>()
    for (const table of TABLES) before.set(table, await definitions(table))
    const stopping = new AbortController()
    const writers = [write(project, stopping.signal), write(project, stopping.signal)]
    await eventually(async () => (await all('select count(*)::int as n from audit_entries'))[0].n > 20)
    await migrate(url)
    const [{ n }] = await all('select count(*)::int as n from audit_entries')
    await eventually(async () => (await all('select count(*)::int as n from audit_entries'))[0].n > n + 20)
    stopping.abort()
    const written = (await Promise.all(writers)).reduce((sum, each) => sum + each)
    for (const table of TABLES) {
      assert.deepEqual(await definitions(table), before.get(table))
      const [{ count, counted }] = await all(
        `select (select count(*)::int from ${table}) as count,
           (select sum(count)::int from row_counts where table_name = $1 and scope = $2) as counted`,
        [table, project],
      )
      const expected = written + (table === 'events' ? old.length : 0)
      assert.deepEqual([count, counted], [expected, expected])
      const partitions = await all(PARTITIONS, [table])
      const first = partitions.find(({ name }) => name === `${table}_before`)
      assert.match(first.bound, /^FOR VALUES FROM \(MINVALUE\) TO /)
      const [{ inside }] = await all(`select count(*)::int as inside from ${table}_before`)
      assert.equal(inside, expected)
      const unused = await all(
        `select indexrelid::regclass::text as name from pg_index i join pg_inherits p on p.inhrelid = i.indrelid
         where p.inhparent = $1::regclass and not (indisvalid and (select relispartition from pg_class where oid = indexrelid))`,
        [table],
      )
      assert.deepEqual(unused, [])
    }
    assert.deepEqual(await migrate(url), [])
  })

  it('lets a row be found by its ID in one partition', async () => {
    for (const [table, prefix] of [
      ['events', 'evt'],
      ['audit_entries', 'audit'],
    ]) {
      const plan = await all(`explain select * from ${table} where id = '${newId(prefix)}'`)
      const scanned = plan.flatMap(
        row => /(?:on|using) \w*?(events_\w+|audit_entries_\w+)/.exec(row['QUERY PLAN'])?.[1] ?? [],
      )
      assert.deepEqual(
        plan.filter(row => / (Scan|Append)/.test(row['QUERY PLAN'])).length,
        1,
        `${scanned} ${JSON.stringify(plan)}`,
      )
    }
  })

  it('computes the least ID of a time as the service does', async () => {
    for (const time of [new Date(0), new Date('2026-12-01T00:00:00Z'), new Date('2031-07-09T12:34:56.789Z')]) {
      const [{ floor }] = await all(`select id_floor('evt', $1) as floor`, [time])
      assert.equal(floor, idFloor('evt', time))
    }
  })

  it('refuses TRUNCATE of partitions of audit entries', async () => {
    for (const { name } of await all(PARTITIONS, ['audit_entries']))
      await assert.rejects(client.query(`truncate ${name}`), /append-only/, name)
  })
})

describe('months of events and audit entries', function () {
  this.timeout(120_000)
  const app = forSuite(() => startApp({ workers: ['delivery'] }))

  const all = async (text: string, values: unknown[] = []): Promise<any[]> =>
    (await app.services.queues.db.executeSql(text, values)).rows
  const partitions = async (table: string) => (await all(PARTITIONS, [table])).map(({ name }) => name)
  /** Services of a sweep that runs later. */
  const later = (days: number, config: Partial<Services['config']> = {}): Services => ({
    ...app.services,
    config: { ...app.services.config, ...config },
    clock: { now: () => new Date(Date.now() + days * DAY_MS) },
  })
  const countsOf = async (project: string) => ({
    events: (await app.admin.get(`/events?project_id=${project}`)).body.total,
    entries: (await app.admin.get(`/audit-log?project_id=${project}`)).body.total,
    rows: await all(
      `select (select count(*)::int from events where project_id = $1) as events,
         (select count(*)::int from audit_entries where project_id = $1) as entries`,
      [project],
    ),
  })
  /** Sums of counters that differ from the rows. */
  const wrongCounts = () =>
    all(`
      select table_name, scope, counted::int, coalesce(n, 0)::int as n from (
        select table_name, scope, sum(count) as counted from row_counts where table_name in ('events', 'audit_entries') group by 1, 2) c
      left join (
        select 'events' as table_name, project_id as scope, count(*) as n from events group by 2
        union all select 'audit_entries', coalesce(project_id, ''), count(*) from audit_entries group by 2) r using (table_name, scope)
      where counted <> coalesce(n, 0)`)
  const settled = () =>
    eventually(async () => (await all('select 1 from events where dispatched_at is null')).length === 0)

  it('exist three months ahead, from the start and after a sweep', async () => {
    for (const table of TABLES)
      assert.deepEqual(
        await partitions(table),
        [`${table}_before`, `${table}_rest`, ...[0, 1, 2, 3].map(n => nameOf(table, n))].toSorted(),
      )
    await pruneEvents(later(0))
    await pruneAudit(later(0))
    assert.equal((await partitions('events')).includes(nameOf('events', 3)), true)
    const soon = (startOf(1).getTime() - Date.now()) / DAY_MS + 1
    await pruneEvents(later(soon))
    await pruneAudit(later(soon))
    for (const table of TABLES) assert.ok((await partitions(table)).includes(nameOf(table, 4)), table)
  })

  it('that are missing are a warning of doctor', async () => {
    const doctor = async () => (await muster(['doctor'], testEnvironment(app.databaseUrl))).stdout
    assert.doesNotMatch(await doctor(), /months/)
    const missing = (await partitions('events')).filter(name => name > nameOf('events', 0) && name < 'events_before')
    await all(missing.map(name => `drop table ${name}`).join(';'))
    assert.match(await doctor(), /months +events has no partition for the next month/)
    const soon = (startOf(1).getTime() - Date.now()) / DAY_MS + 1
    await pruneEvents(later(soon))
  })

  it('take over the rows that came before their partition', async () => {
    const { id } = await app.project()
    const at = new Date(startOf(5).getTime() + DAY_MS)
    const event = idFloor('evt', at)
    const entry = idFloor('audit', at)
    await all(
      `insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at, dispatched_at)
       values ($1, $2, 'a.b', 'a', 'b', '{}', $3, now())`,
      [event, id, at],
    )
    await all(
      `insert into audit_entries (id, project_id, action, status, created_at) values ($1, $2, 'a:B', 200, $3)`,
      [entry, id, at],
    )
    const inRest = async () => all(`select id from events_rest union all select id from audit_entries_rest order by 1`)
    assert.deepEqual(
      (await inRest()).map(row => row.id),
      [entry, event],
    )
    const soon = (startOf(2).getTime() - Date.now()) / DAY_MS + 1
    await pruneEvents(later(soon, { EVENT_RETENTION_DAYS: 400 }))
    await pruneAudit(later(soon))
    assert.deepEqual(await inRest(), [])
    assert.deepEqual(await all(`select id from ${nameOf('events', 5)}`), [{ id: event }])
    assert.deepEqual(await all(`select id from ${nameOf('audit_entries', 5)}`), [{ id: entry }])
    assert.deepEqual(await wrongCounts(), [])
    assert.equal((await app.admin.get(`/audit-log/verify?project_id=${id}`)).body.valid, true)
    await all('delete from events where id = $1', [event])
  })

  it('are deleted by rows until their last row expires, and then as a whole, with the same figures', async () => {
    const { id } = await app.project()
    for (let n = 0; n < 5; n++) await postedBy(app.admin, '/conversations', { project_id: id })
    await settled()
    const before = await countsOf(id)
    assert.ok(before.events >= 5 && before.entries >= 5, JSON.stringify(before))
    // The month has rows that are kept: none is deleted with `month`, and all that expired with `day`.
    const inside = (startOf(1).getTime() - Date.now()) / DAY_MS + 30 - 0.01
    await pruneEvents(later(inside, { RETENTION_GRANULARITY: 'month' }))
    assert.deepEqual(await countsOf(id), before)
    assert.ok((await partitions('events')).includes(nameOf('events', 0)))
    const removed = await pruneEvents(later(inside + 0.02, { RETENTION_GRANULARITY: 'month' }))
    assert.ok(removed >= before.events, `${removed}`)
    assert.ok(!(await partitions('events')).includes(nameOf('events', 0)))
    assert.deepEqual(await countsOf(id), { ...before, events: 0, rows: [{ events: 0, entries: before.entries }] })
    assert.deepEqual(await wrongCounts(), [])
    // Rows of a month without a partition are kept, and deleted by rows.
    await postedBy(app.admin, '/conversations', { project_id: id })
    assert.ok((await countsOf(id)).events > 0)
    await settled()
    await pruneEvents(later(inside + 0.02, { RETENTION_GRANULARITY: 'month' }))
    assert.equal((await countsOf(id)).events, 0)
    assert.deepEqual(await wrongCounts(), [])
  })

  it('leave a valid chain of audit entries, and show an entry that was removed before', async () => {
    const [whole, broken] = [await app.project(), await app.project()]
    for (const { id } of [whole, broken]) {
      for (let n = 0; n < 5; n++) await postedBy(app.admin, '/conversations', { project_id: id })
      assert.equal((await app.admin.get(`/audit-log/verify?project_id=${id}`)).body.valid, true)
    }
    const [{ id: removed }] = await all(
      'select id from audit_entries where project_id = $1 order by id offset 2 limit 1',
      [broken.id],
    )
    await all(`begin; set local muster.audit_retention = on; delete from audit_entries where id = '${removed}'; commit`)
    const month = nameOf('audit_entries', 0)
    assert.ok((await partitions('audit_entries')).includes(month))
    await pruneAudit(later((startOf(1).getTime() - Date.now()) / DAY_MS + 366))
    assert.ok(!(await partitions('audit_entries')).includes(month))
    await postedBy(app.admin, '/conversations', { project_id: whole.id })
    const of = async ({ id }: { id: string }) => (await app.admin.get(`/audit-log/verify?project_id=${id}`)).body
    assert.equal((await of(whole)).valid, true)
    const { valid, first_broken_id } = await of(broken)
    assert.deepEqual([valid, first_broken_id], [false, removed])
  })

  describe('that have passed', () => {
    const OLD = 20_000
    let project: string
    let receiver: Receiver
    let webhook: string
    let old: string
    before(async () => {
      project = (await app.project()).id
      receiver = await startReceiver()
      webhook = (
        await postedBy(app.admin, '/webhooks', {
          project_id: project,
          name: 'w',
          url: receiver.url,
          events: ['conversations.*'],
        })
      ).id
      // As in a deployment that has run for months.
      old = nameOf('events', -4)
      const [first, next] = [startOf(-4), startOf(-3)].map(time => idFloor('evt', time))
      await all(`drop table if exists events_before`)
      await all(`create table ${old} partition of events for values from ('${first}') to ('${next}')`)
      const [row] = await all(`
        insert into events (id, project_id, name, resource_type, resource_id, envelope, dispatched_at, created_at)
        select left('${first}', -8) || lpad(n::text, 8, '0'), '${project}', 'conversations.created', 'conversation', 'old',
          json_build_object('id', n), now(), now() - interval '90 days' from generate_series(1, ${OLD}) n returning id`)
      await all(`
        insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type, status, next_attempt_at)
        select replace(id, 'evt_', 'whd_'), '${webhook}', project_id, id, name, 'completed', null from events where id <= '${row.id}' or id in (
          select id from events order by id limit 50)`)
    })
    after(() => receiver.close())

    it('are as before if their removal is interrupted at its last step', async () => {
      const before = await countsOf(project)
      const holder = new pg.Client({ connectionString: app.databaseUrl })
      await holder.connect()
      await holder.query('begin; lock table events in access share mode')
      const pruning = maintainMonths(later(0), eventMonths, startOf(-2))
      const sweep = await eventually(
        async () =>
          (
            await all(
              `select pid from pg_locks where not granted and mode = 'AccessExclusiveLock' and relation = 'events'::regclass
                and database = (select oid from pg_database where datname = current_database())`,
            )
          )[0]?.pid as number | undefined,
      )
      await all(`select pg_terminate_backend(${sweep})`)
      assert.equal(await pruning, 0)
      await holder.query('rollback')
      await holder.end()
      assert.ok((await partitions('events')).includes(old))
      assert.deepEqual(await countsOf(project), before)
      assert.deepEqual(await all('select event_id from retained_envelopes'), [])
    })

    it('are dropped under load without a failed request, with the envelopes that deliveries need', async () => {
      const stopping = new AbortController()
      let made = 0
      const write = async () => {
        for (; !stopping.signal.aborted; made++) await postedBy(app.admin, '/conversations', { project_id: project })
      }
      const writers = [write(), write(), write(), write()]
      const retained = await all(`select id from webhook_deliveries where event_id < '${idFloor('evt', startOf(-3))}'`)
      const redelivery = (async () => {
        for (const { id } of retained)
          assert.equal((await app.admin.post(`/webhook-deliveries/${id}/redeliver`)).status, 202)
      })()
      const removed = await pruneEvents(later(0))
      await redelivery
      stopping.abort()
      await Promise.all(writers)
      assert.equal(removed, OLD)
      assert.ok(!(await partitions('events')).includes(old))
      const now = await countsOf(project)
      assert.equal(now.events, now.rows[0].events)
      const [{ n }] = await all(
        `select count(*)::int as n from events where project_id = $1 and name = 'conversations.created'`,
        [project],
      )
      assert.equal(n, made)
      assert.deepEqual(await wrongCounts(), [])
      await eventually(() => receiver.requests.length >= made + retained.length, { within: 60_000 })
      const bodies = receiver.requests.map(({ body }) => body).filter(body => /^\{"id" : \d+\}$/.test(body))
      assert.equal(new Set(bodies).size, retained.length)
    })
  })
})

describe('sessions', () => {
  const app = forSuite(startApp)

  it('plan without pruning on PostgreSQL 18, also with several hosts', async () => {
    const [{ number }] = await app.rows(`select current_setting('server_version_num')::int as number`)
    const expected = number < 180_000 ? 'on' : 'off'
    const { hostname, port, username, password, pathname } = tcpUrl(app.databaseUrl)
    const severalHosts = `postgres://${username}:${password}@${hostname}:1,${hostname}:${port}${pathname}`
    const settingOf = async (client: DatabaseClient) => {
      await client.connect()
      try {
        return (await client.query('show enable_partition_pruning')).rows[0].enable_partition_pruning
      } finally {
        await client.end()
      }
    }
    for (const connectionString of [app.databaseUrl, severalHosts])
      assert.equal(await settingOf(new DatabaseClient({ connectionString })), expected)
    const [{ enable_partition_pruning }] = await app.rows('show enable_partition_pruning')
    assert.equal(enable_partition_pruning, expected)
  })
})

describe('months of a new database', () => {
  it('are of UTC, whatever the time zone of its sessions', async () => {
    const url = await createDatabase()
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    try {
      await client.query(`alter database ${new URL(url).pathname.slice(1)} set timezone = 'America/New_York'`)
      await migrate(url)
      const { rows } = await client.query(PARTITIONS, ['events'])
      for (const months of [0, 1, 2, 3]) {
        const found = rows.find(({ name }) => name === nameOf('events', months))
        const [first, next] = [startOf(months), startOf(months + 1)].map(time => idFloor('evt', time))
        assert.equal(found?.bound, `FOR VALUES FROM ('${first}') TO ('${next}')`)
      }
    } finally {
      await client.end()
      await dropDatabase(new URL(url).pathname.slice(1))
    }
  })

  it('are partitioned after an interrupted migration, whose bound is near', async () => {
    const url = await createDatabase()
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    const older = olderMigrations()
    try {
      await migrate(url, { directory: older })
      await client.query(
        `alter table events add constraint events_bound check (id < '${idFloor('evt', startOf(1))}') not valid`,
      )
      await migrate(url)
      const { rows } = await client.query(PARTITIONS, ['events'])
      assert.ok(
        rows.some(({ name }) => name === nameOf('events', 3)),
        JSON.stringify(rows),
      )
    } finally {
      fs.rmSync(older, { recursive: true })
      await client.end()
      await dropDatabase(new URL(url).pathname.slice(1))
    }
  })
})
