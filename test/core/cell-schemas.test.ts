import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { loadSettings } from '#config.ts'
import { addressOf, parseDatabaseUrl } from '#core/db/database-url.ts'
import { DatabaseClient } from '#core/db/pg-client.ts'
import { migrate } from '#core/queues/migrate.ts'
import { wakeChannel } from '#core/queues/queue.ts'
import { WORKER_KINDS } from '#core/work/settings.ts'
import { eventually, startApp } from '../support/app.ts'
import { populate } from '../support/populate.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { root } from '../support/processes.ts'

const SCHEMA = 'cell_two'

/** Channels that the program names. */
const channels = [
  wakeChannel,
  ...new Set(
    fs
      .globSync('src/**/*.ts', { cwd: root })
      .flatMap(file => fs.readFileSync(path.join(root, file), 'utf8').match(/(?<=')muster_[a-z_]+(?=')/g) ?? []),
  ),
]

const inSchema = (databaseUrl: string, schema = SCHEMA): string => {
  const url = new URL(databaseUrl)
  url.searchParams.set('schema', schema)
  return url.href
}

describe('two cells in one database', function () {
  this.timeout(180_000)
  let database: Awaited<ReturnType<typeof cloneTemplate>>
  let cellUrl: string
  before(async () => {
    database = await cloneTemplate({ admin: true })
    cellUrl = inSchema(database.url)
    await migrate(cellUrl)
  })
  after(() => database?.drop())

  const rows = async (text: string, url = database.url): Promise<any[]> => {
    const client = new DatabaseClient({ connectionString: url })
    await client.connect()
    try {
      return (await client.query(text)).rows
    } finally {
      await client.end()
    }
  }

  it('have the same tables, functions, types and bookkeeping, each in its own schemas', async () => {
    const objects = await rows(`
      select case n.nspname when '${SCHEMA}' then 'cell' else 'home' end as cell, array_agg(distinct name order by name) as names
      from (
        select relnamespace as namespace, concat(relkind, ' ', relname) as name from pg_class
        union all select pronamespace, 'function ' || proname from pg_proc
        union all select typnamespace, 'type ' || typname from pg_type
        union all select connamespace, 'constraint ' || conname from pg_constraint
      ) o join pg_namespace n on n.oid = o.namespace
      where n.nspname in ('public', 'pgboss', '${SCHEMA}') group by 1 order by 1`)
    const [cell, home] = objects.map(({ names }) => names)
    assert.ok(cell.length > 1000)
    assert.deepEqual(cell, home)
    assert.deepEqual(await migrate(cellUrl), [])
    const ran = 'select name from migrations order by name'
    assert.deepEqual(await rows(ran, cellUrl), await rows(ran))
  })

  it('refers in no object of the cell to the schemas of home', async () => {
    assert.deepEqual(
      await rows(`
        select conname from pg_constraint where connamespace = '${SCHEMA}'::regnamespace
          and confrelid <> 0 and confrelid not in (select oid from pg_class where relnamespace = '${SCHEMA}'::regnamespace)`),
      [],
    )
    assert.deepEqual(
      await rows(`
        select proname from pg_proc where pronamespace = '${SCHEMA}'::regnamespace and prosrc ~ '(pgboss|public)[.]'`),
      [],
    )
  })

  it('identify the rows of all logged tables, so that each can be published', async () => {
    for (const url of [database.url, cellUrl])
      assert.deepEqual(
        await rows(
          `select relname from pg_class c where relkind in ('r', 'p') and relpersistence = 'p'
            and relnamespace = any (array[current_schema()::regnamespace, coalesce(to_regnamespace('pgboss'), 0)])
            and relreplident = 'd' and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)`,
          url,
        ),
        [],
      )
  })

  it('execute every kind of work without a notification to, or a row of, each other', async () => {
    const heard = new Set<string>()
    const listener = new DatabaseClient({ connectionString: database.url })
    await listener.connect()
    listener.on('notification', ({ channel }) => heard.add(channel))
    for (const channel of channels) await listener.query(`listen "${channel}"; listen "${SCHEMA}.${channel}"`)
    // Home runs later: its schedules notify it too.
    const cell = await startApp({ databaseUrl: cellUrl, workers: [...WORKER_KINDS] })
    try {
      const ids = await populate(cell)
      await cell.admin.patch(`/projects/${ids.project_id}`, { audit_reads_enabled: true })
      const expected = [wakeChannel, 'muster_turns', 'muster_webhooks', 'muster_audit_reads'].map(
        name => `${SCHEMA}.${name}`,
      )
      // A worker may execute the turn later.
      await eventually(() => expected.every(name => heard.has(name)), {
        what: 'notifications of the cell',
      })
      await listener.end()
      assert.deepEqual(
        [...heard].filter(name => !name.startsWith(`${SCHEMA}.`)),
        [],
      )

      const home = await startApp({ databaseUrl: database.url })
      try {
        assert.ok(Object.keys(ids).length > 30)
        assert.deepEqual((await home.admin.get('/projects')).body.data, [])
        assert.equal((await home.admin.get(`/generations/${ids.generation_id}`)).status, 404)
      } finally {
        await home.close()
      }
    } finally {
      await cell.close()
    }
  })
})

describe('the schema of a URL', function () {
  this.timeout(60_000)

  it('is in its address, and refused if it cannot be a separate schema', () => {
    assert.equal(addressOf('postgres://u:p@a:1/d?schema=cell_b'), 'a:1/d?schema=cell_b')
    assert.equal(
      parseDatabaseUrl('postgres://a/d?schema=b&options=-c%20work_mem%3D5MB').urls[0].includes('work_mem'),
      true,
    )
    assert.throws(() => parseDatabaseUrl('postgres://a/d?Schema=b'), /has the parameter Schema, which must be schema/)
    for (const schema of ['', 'public', 'pgboss', 'pg_temp', 'Cell', 'a b', 'a;b', '1a', 'a'.repeat(31)])
      assert.throws(() => parseDatabaseUrl(`postgres://a/d?schema=${schema}`), /schema must have/, schema)
  })

  it('replaces only whole names in statements', async () => {
    const database = await cloneTemplate()
    const client = new DatabaseClient({ connectionString: inSchema(database.url).replace(SCHEMA, 'my_pgboss') })
    try {
      await client.connect()
      const { rows } = await client.query(`select 'pgboss.job' as named, 'my_pgboss.job' as own`)
      assert.deepEqual(rows, [{ named: 'my_pgboss.job', own: 'my_pgboss.job' }])
    } finally {
      await client.end()
      await database.drop()
    }
  })

  it('is no reserved word, and may exist already for a role that cannot create one', async () => {
    const { url, drop } = await cloneTemplate()
    try {
      await assert.rejects(migrate(inSchema(url, 'user')), /DATABASE_URL: has the schema user, a reserved word of SQL/)
      const client = new DatabaseClient({ connectionString: url })
      await client.connect()
      const role = `muster_role_${process.pid}`
      await client.query(`create role ${role} login superuser; create schema given authorization ${role};
        alter role ${role} nosuperuser; alter role ${role} password 'given'`)
      try {
        const own = new URL(inSchema(url, 'given'))
        own.username = role
        own.password = 'given'
        assert.ok((await migrate(own.href)).length > 20)
      } finally {
        await client.query(`drop schema given cascade; drop role ${role}`)
        await client.end()
      }
    } finally {
      await drop()
    }
  })

  it('is the same for the listening connection', () => {
    assert.throws(
      () => loadSettings({ DATABASE_URL: 'postgres://a/d?schema=b', DATABASE_LISTEN_URL: 'postgres://a/d' }),
      /DATABASE_LISTEN_URL: must have the same schema as DATABASE_URL/,
    )
  })
})
