import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { release } from '#core/base/release.ts'
import { MIGRATIONS, migrationNames } from '#core/queues/breaking-migrations.ts'
import { migrate } from '#core/queues/migrate.ts'
import { migrationChecksums } from '../../scripts/collect-changes.ts'
import { eventually } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { cloneTemplate, createDatabase, dropDatabase } from '../support/postgres.ts'
import { startProcess } from '../support/processes.ts'

const RELEASED = path.join(import.meta.dirname, 'released-migrations.json')

describe('migrations', function () {
  this.timeout(60_000)
  let database: Awaited<ReturnType<typeof cloneTemplate>>
  let client: pg.Client
  let newer: string
  beforeEach(async () => {
    database = await cloneTemplate()
    client = new pg.Client({ connectionString: database.url })
    await client.connect()
    newer = fs.mkdtempSync(path.join(tmpdir(), 'muster-migrations-'))
    fs.cpSync(MIGRATIONS, newer, { recursive: true })
  })
  afterEach(async () => {
    await client.end()
    await database.drop()
    fs.rmSync(newer, { recursive: true })
  })

  /** Migrates the database as a release with one more migration. */
  const upgrade = (text: string) => {
    fs.writeFileSync(path.join(newer, '9000_next.sql'), text)
    return migrate(database.url, { directory: newer })
  }
  const breaking = async () => (await client.query('select name, release from breaking_migrations')).rows
  const recorded = async () => (await client.query('select name from migrations order by id')).rows.map(row => row.name)
  const refusal = `release ${release} cannot run on this database since migration 9000_next: start a release that has it, ${release} or later`

  it('of a release are not edited later', () => {
    const released = Object.entries(JSON.parse(fs.readFileSync(RELEASED, 'utf8')))
    assert.deepEqual(Object.entries(migrationChecksums(MIGRATIONS)).slice(0, released.length), released)
  })

  it('that do not declare whether they are breaking are refused', async () => {
    for (const header of ['', '-- Adds a table.\n', '-- breaking: maybe\n', '-- breaking: true, transaction: none\n'])
      await assert.rejects(upgrade(`${header}create table next (id text)`), /first line of 9000_next.sql must be/)
    assert.deepEqual(await recorded(), migrationNames())
  })

  it('that are breaking end processes of the release before, which then do not start', async () => {
    const running = await Promise.all([startProcess('web', database.url), startProcess('worker', database.url)])
    assert.deepEqual(await upgrade('-- breaking: true\ncreate table next (id text)'), ['9000_next'])
    for (const { exited, output } of running) {
      assert.deepEqual(await exited, { code: 0, signal: null })
      assert.ok(
        output.some(line => line.includes('"release outdated"') && line.includes(refusal)),
        output.join('\n'),
      )
    }
    const starts = [
      startProcess('web', database.url, { AUTO_MIGRATE: 'true' }),
      startProcess('worker', database.url, { AUTO_MIGRATE: 'false' }),
    ]
    for (const start of await Promise.allSettled(starts)) {
      const message = start.status === 'rejected' ? start.reason.message : 'it started'
      assert.match(message, /ended with 1 before/)
      assert.ok(message.includes(refusal), message)
    }
    const command = await muster(['migrate'], testEnvironment(database.url))
    assert.deepEqual([command.code, command.stderr.includes(refusal)], [1, true], command.stderr)
    const doctor = await muster(['doctor'], testEnvironment(database.url))
    assert.match(doctor.stdout + doctor.stderr, /migrations.*9000_next/)
    assert.deepEqual(await migrate(database.url, { directory: newer }), [])
  })

  it('that are breaking and fail leave processes of the release before as they are', async () => {
    await assert.rejects(upgrade('-- breaking: true\ncreate table next (id text); select 1/0'), /division by zero/)
    assert.deepEqual([await breaking(), await recorded()], [[], migrationNames()])
  })

  it('that fail leave none of the migrations of their release', async () => {
    fs.writeFileSync(path.join(newer, '9001_failing.sql'), '-- breaking: false\nselect 1/0')
    await assert.rejects(upgrade('-- breaking: true\ncreate table next (id text)'), /division by zero/)
    assert.deepEqual([await breaking(), await recorded()], [[], migrationNames()])
  })

  it('that remove something require the release that stopped using it, which the refusal names', async () => {
    const contract = (stopped: string, table: string) =>
      `-- breaking: true\n-- contract: ${stopped}\ndrop table if exists ${table}`
    const names = ['9000_next', '9001_later']
    const write = (first: string, second: string) => {
      fs.writeFileSync(path.join(newer, '9000_next.sql'), contract(first, 'next'))
      fs.writeFileSync(path.join(newer, '9001_later.sql'), contract(second, 'later'))
    }
    const upgradeBy = (by: string, directory = newer) => migrate(database.url, { directory, by })
    write('0.10.0', '0.9.0')
    await assert.rejects(
      upgradeBy('0.11.0'),
      /9001_later removes what releases before 0\.9\.0 use, and release 0\.1\.0 .* migrate it with release 0\.9\.0/,
    )
    assert.deepEqual([await breaking(), await recorded()], [[], migrationNames()])
    assert.deepEqual(await upgradeBy('0.9.0', MIGRATIONS), [])
    await assert.rejects(upgradeBy('0.11.0'), /9000_next .* 0\.10\.0 use, and release 0\.9\.0 /)
    assert.deepEqual(await upgradeBy('0.10.0', MIGRATIONS), [])
    // The release before may still run, and its start migrates too.
    assert.deepEqual(await upgradeBy('0.9.0', MIGRATIONS), [])
    assert.deepEqual(await upgradeBy('0.11.0'), names)
  })

  it('that remove something run on a database of the first release and on an empty one', async () => {
    await client.query('update migrations set release = null')
    assert.deepEqual(await upgrade('-- breaking: true\n-- contract: 0.1.0\ndrop table if exists next'), ['9000_next'])
    const name = `muster_test_empty_${process.pid}`
    const empty = await createDatabase(name)
    try {
      fs.writeFileSync(path.join(newer, '9001_later.sql'), '-- breaking: true\n-- contract: 0.9.0\nselect 1')
      assert.equal((await migrate(empty, { directory: newer })).at(-1), '9001_later')
    } finally {
      await dropDatabase(name)
    }
  })

  it('that follow each other do not cut requests that an outdated process answers to their end', async () => {
    const web = await startProcess('web', database.url)
    await client.query('begin; lock table users in access exclusive mode')
    const response = fetch(`${web.url}/api/v1/users/login`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ username: 'ada', password: 'not the password' }),
    })
    const waiting = 'select from pg_stat_activity where datname = current_database() and wait_event_type = $1'
    await eventually(async () => (await client.query(waiting, ['Lock'])).rowCount === 1)
    await upgrade('-- breaking: true\ncreate table next (id text)')
    // Repeated signals within half a second are one.
    await sleep(800)
    fs.writeFileSync(path.join(newer, '9001_after.sql'), '-- breaking: true\ncreate table after_next (id text)')
    await migrate(database.url, { directory: newer })
    await sleep(200)
    await client.query('commit')
    assert.equal((await response).status, 401)
    assert.deepEqual(await web.exited, { code: 0, signal: null })
  })

  it('that are breaking and of which a process was not notified make it not ready', async () => {
    const web = await startProcess('web', database.url)
    try {
      await client.query(`insert into breaking_migrations (name, release) values ('9000_next', '9.0.0')`)
      const ready = await fetch(`${web.url}/readyz`)
      assert.equal(ready.status, 503)
      assert.match(await ready.text(), /a migration requires a later release/)
    } finally {
      await web.kill('SIGTERM')
    }
  })

  it('that are not breaking run next to processes of the release before', async () => {
    const running = await startProcess('worker', database.url)
    try {
      assert.deepEqual(await upgrade('-- breaking: false\ncreate table next (id text)'), ['9000_next'])
      const started = await startProcess('web', database.url, { AUTO_MIGRATE: 'true' })
      assert.equal((await fetch(`${started.url}/readyz`)).status, 200)
      assert.equal(running.child.exitCode, null)
      assert.deepEqual(await started.kill('SIGTERM'), { code: 0, signal: null })
    } finally {
      await running.kill('SIGTERM')
    }
  })

  it('that need a lock which is in use let other work continue, and run when it is free', async () => {
    const other = new pg.Client({ connectionString: database.url })
    await other.connect()
    await client.query('begin; select from users')
    try {
      const upgraded = upgrade('-- breaking: false\nalter table users add column next text')
      const waiting = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
      await eventually(async () => (await other.query(waiting)).rowCount === 1)
      // It waits with the migration, whose statement ends before the lock is free.
      await other.query('select from users')
      await client.query('commit')
      assert.deepEqual(await upgraded, ['9000_next'])
    } finally {
      await other.end()
    }
  })

  it('that do not get their locks in time fail; those before stay, but not with a breaking one', async () => {
    await client.query('begin; select from users')
    fs.writeFileSync(path.join(newer, '9001_locking.sql'), '-- breaking: false\nalter table users add column next text')
    fs.writeFileSync(path.join(newer, '9000_next.sql'), '-- breaking: false\ncreate table next (id text)')
    const locking = () => assert.rejects(migrate(database.url, { directory: newer, lockTimeoutMs: 1 }), /lock timeout/)
    fs.writeFileSync(path.join(newer, '9002_breaking.sql'), '-- breaking: true\ncreate table last (id text)')
    await locking()
    assert.deepEqual(await recorded(), migrationNames())
    fs.rmSync(path.join(newer, '9002_breaking.sql'))
    await locking()
    await client.query('commit')
    assert.deepEqual(await recorded(), [...migrationNames(), '9000_next'])
  })

  it('without a transaction hold the lock of no table while they wait for the lock of another', async () => {
    const other = new pg.Client({ connectionString: database.url })
    await other.connect()
    await client.query('begin; select from users')
    try {
      const adding = (table: string) => `alter table ${table} add column if not exists next text;\n`
      const upgraded = upgrade(`-- breaking: false, transaction: none\n${adding('projects')}${adding('users')}`)
      const waiting = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
      await eventually(async () => (await other.query(waiting)).rowCount === 1)
      await other.query(`set lock_timeout = 5000; select next from projects`)
      await client.query('commit')
      assert.deepEqual(await upgraded, ['9000_next'])
    } finally {
      await other.end()
    }
  })

  it('without a transaction build an index again that a failed run left invalid', async () => {
    await client.query(`create table next (id integer); insert into next values (1), (1)`)
    const building =
      '-- breaking: false, transaction: none\n-- One per ID.\ncreate unique index concurrently next_id on next (id);\n'
    await assert.rejects(upgrade(building), /could not create unique index/)
    const indexes = async () =>
      (await client.query(`select indisvalid from pg_index where indrelid = 'next'::regclass`)).rows
    assert.deepEqual([await indexes(), await recorded()], [[{ indisvalid: false }], migrationNames()])
    await client.query('delete from next; insert into next values (1)')
    assert.deepEqual(await upgrade(building), ['9000_next'])
    assert.deepEqual(await indexes(), [{ indisvalid: true }])
  })

  it('between others without a transaction keep the order, and those before are not undone', async () => {
    const files = {
      '9000_next': '-- breaking: false\ncreate table next (id integer)',
      '9001_index': '-- breaking: false, transaction: none\ncreate index concurrently next_id on next (id);\n',
      '9002_failing': '-- breaking: false\nselect 1/0',
    }
    for (const [name, text] of Object.entries(files)) fs.writeFileSync(path.join(newer, `${name}.sql`), text)
    await assert.rejects(migrate(database.url, { directory: newer }), /division by zero/)
    assert.deepEqual(await recorded(), [...migrationNames(), '9000_next', '9001_index'])
  })
})
