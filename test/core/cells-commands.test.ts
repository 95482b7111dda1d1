import assert from 'node:assert/strict'
import { z } from 'zod'
import { loadConfig } from '#config.ts'
import { silentLog } from '#core/base/log.ts'
import { release as currentRelease } from '#core/base/release.ts'
import { DatabaseClient } from '#core/db/pg-client.ts'
import { rawQuery } from '#core/db/sql.ts'
import { migrationNames } from '#core/queues/breaking-migrations.ts'
import { createSecretBox } from '#core/secrets/secretbox.ts'
import { sealedForCell } from '#core/services/cell-directory.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { run } from '../support/commands.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster as inHost, runWeb } from '../support/hosts.ts'
import { cloneTemplate, createDatabase, dropDatabase } from '../support/postgres.ts'
import { forSuite } from '../support/suite.ts'

const inSchema = (databaseUrl: string, schema: string): string => {
  const url = new URL(databaseUrl)
  url.searchParams.set('schema', schema)
  return url.href
}

/** The only project of these tests, inserted without its counts. */
const PROJECT_OF_TEN = { cell: 'ten', id: 'prj_of_ten', name: 'Ten', rows: 0, bytes: null }

const LAST = migrationNames().at(-1) as string

const KEY = testEnvironment('').SECRETS_ENCRYPTION_KEY

const rows = async (databaseUrl: string, text: string, values?: unknown[]): Promise<readonly any[]> => {
  const services = await openServices(loadConfig(testEnvironment(databaseUrl)), { log: silentLog(), role: 'cli' })
  try {
    return (await services.pool.any(rawQuery(text, values))) as readonly any[]
  } finally {
    await services.close()
  }
}

describe('muster cells', function () {
  this.timeout(180_000)

  const home = forSuite(async () => {
    const { url, drop } = await cloneTemplate({ admin: true })
    return { url, close: drop }
  })
  const databases: string[] = []
  after(() => Promise.all(databases.map(dropDatabase)))

  const newDatabase = async () => {
    const url = await createDatabase()
    databases.push(new URL(url).pathname.slice(1))
    return url
  }

  const muster = (args: string[], env: Record<string, string> = {}) =>
    inHost(args, { ...testEnvironment(home.url), ...env })

  const cells = async () => {
    const { code, stdout, stderr } = await muster(['cells', 'list', '--json'])
    assert.equal(code, 0, stderr)
    return JSON.parse(stdout) as any[]
  }

  const refused = async (args: string[], pattern: RegExp, env: Record<string, string> = {}) => {
    const { code, stdout, stderr } = await muster(['cells', ...args], env)
    assert.deepEqual([code, stdout], [1, ''], stderr)
    assert.match(stderr, pattern)
    assert.equal(stderr.includes('muster.password'), false)
  }

  it('add migrates schemas, numbers the cells, and seals their URLs', async () => {
    const three = inSchema(home.url, 'cell_three')
    const added = await muster(['cells', 'add', 'two', '--url', home.url, '--schema', 'cell_two', '--json'])
    assert.equal(added.code, 0, added.stderr)
    const { ran, ...two } = JSON.parse(added.stdout)
    assert.deepEqual(ran, migrationNames())
    assert.deepEqual([two.name, two.number, two.state], ['two', 1, 'open'])
    assert.match(two.address, /schema=cell_two$/)
    assert.match(added.stderr, /CELLS=true/)
    const plain = await muster(['cells', 'add', 'three'], { CELL_URL: three, CELLS: 'true' })
    assert.equal(plain.code, 0, plain.stderr)
    assert.match(plain.stdout, /^cell three, number 2, is open at /)
    assert.equal(plain.stderr, '')

    const listed = await cells()
    assert.deepEqual(
      listed.map(({ name, number, state, projects, copies, error }) => [name, number, state, projects, copies, error]),
      [
        ['home', 0, 'open', 0, null, null],
        ['two', 1, 'open', 0, 'triggers', null],
        ['three', 2, 'open', 0, 'triggers', null],
      ],
    )
    for (const { bytes, migrations, release, address } of listed) {
      assert.ok(bytes > 100_000)
      assert.equal(migrations, listed[0].migrations)
      assert.equal(release, currentRelease)
      assert.equal(address.includes('@'), false)
    }
    const text = await muster(['cells', 'list'])
    assert.match(text.stdout, /^name +number +state +address/)
    assert.match(text.stdout, /^three +2 +open +.* by triggers +- +yes$/m)
    const directory = await rows(home.url, 'select name, url from cells')
    assert.deepEqual(
      directory.map(({ url }) => url.split('.')[0]),
      ['v1', 'v1'],
    )
    // The directory of each other cell has the cell itself only.
    for (const [name, url] of [
      ['two', inSchema(home.url, 'cell_two')],
      ['three', three],
    ])
      assert.deepEqual(
        (await rows(url, 'select name from cells')).map(row => row.name),
        [name],
      )
  })

  it('add refuses a database that is in use, and names that are no names, and changes nothing', async () => {
    const foreign = await cloneTemplate({ admin: true })
    const other = await newDatabase()
    const before = await rows(home.url, 'select * from cells order by number')
    try {
      const schema = inSchema(home.url, 'cell_two')
      const three = (await cells()).find(({ name }) => name === 'three')
      await refused(['add', 'two', '--url', other], /cell two exists/)
      await refused(['add', 'four', '--url', home.url], /home uses the database/)
      await refused(['add', 'four', '--url', schema], /cell two uses the database/)
      // Another way to write the address of the same server.
      await refused(['add', 'four', '--url', schema.replace('127.0.0.1', 'localhost')], /cell two uses the database/)
      await refused(['add', 'four', '--url', foreign.url], /belongs to another deployment/)
      await refused(['add', 'home', '--url', other], /is not home/)
      await refused(['add', 'Four', '--url', other], /lower case/)
      await refused(['add', 'four'], /no URL given/)
      await refused(['add', 'four', '--url', 'mysql://a:muster.password@b/c'], /must begin with postgres/)
      await refused(['add', 'four', '--url', other, '--schema', 'public'], /schema must have/)
      await refused(['add', 'four'], /127\.0\.0\.1:1\/none cannot be a cell: .*ECONNREFUSED/, {
        CELL_URL: 'postgres://a:muster.password@127.0.0.1:1/none',
      })
      // A database of another deployment gets no row.
      assert.equal((await cells()).find(({ name }) => name === 'three').number, three.number)
      assert.deepEqual(await rows(home.url, 'select * from cells order by number'), before)
      assert.deepEqual(await rows(foreign.url, 'select * from cells'), [])
    } finally {
      await foreign.drop()
    }
  })

  it('add refuses a database with tables of another program, and leaves it unchanged', async () => {
    const other = await newDatabase()
    const client = new DatabaseClient({ connectionString: other })
    await client.connect()
    try {
      await client.query('create table orders (id int)')
      await refused(['add', 'four', '--url', other], /tables of another program/)
      const { rows: tables } = await client.query(
        `select relname from pg_class where relname in ('orders', 'migrations')`,
      )
      assert.deepEqual(tables, [{ relname: 'orders' }])
    } finally {
      await client.end()
    }
  })

  it('add that was interrupted can be repeated, with the same number', async () => {
    const url = inSchema(home.url, 'cell_four')
    assert.equal((await muster(['cells', 'add', 'four', '--url', url])).code, 0)
    const [{ number }] = await rows(home.url, `update cells set state = 'down' where name = 'four' returning number`)
    await refused(['open', 'four'], /cell four is down\nRepeat muster cells add/)
    const checked = await muster(['cells', 'check', 'four'])
    assert.match(checked.stdout, /^warn +four state +four is not complete/m)
    const again = await muster(['cells', 'add', 'four', '--url', url, '--json'])
    assert.equal(again.code, 0, again.stderr)
    const { ran, ...cell } = JSON.parse(again.stdout)
    assert.deepEqual([ran, cell.number, cell.state], [[], number, 'open'])
  })

  it('add of a database without logical replication leaves the cell down, and can be repeated with another database', async () => {
    const other = await newDatabase()
    await refused(
      ['add', 'eight', '--url', other],
      /cell eight is down: .*wal_level = logical\nRepeat muster cells add/,
    )
    assert.equal((await cells()).find(({ name }) => name === 'eight').state, 'down')
    await refused(['add', 'nine', '--url', other], /cell eight uses the database/)
    const again = await muster(['cells', 'add', 'eight', '--url', home.url, '--schema', 'cell_eight', '--json'])
    assert.equal(again.code, 0, again.stderr)
    const users = 'select id, username from users'
    assert.deepEqual(await rows(inSchema(home.url, 'cell_eight'), users), await rows(home.url, users))
  })

  it('two commands at the same time do not share a number, or a database', async () => {
    const [one, other] = ['cell_five', 'cell_six'].map(schema => inSchema(home.url, schema))
    const results = await Promise.all([
      muster(['cells', 'add', 'five', '--url', one, '--json']),
      muster(['cells', 'add', 'six', '--url', other, '--json']),
      muster(['cells', 'add', 'seven', '--url', other, '--json']),
    ])
    const added = results.filter(({ code }) => code === 0).map(({ stdout }) => JSON.parse(stdout))
    assert.equal(added.length, 2, JSON.stringify(results))
    assert.notEqual(added[0].number, added[1].number)
    const [failed] = results.filter(({ code }) => code !== 0)
    assert.match(failed.stderr, /cell (six|seven) uses the database/)
    assert.equal((await rows(home.url, `select from cells where state = 'down'`)).length, 0)
  })

  it('remove takes a lost cell down and ends its copies, and add restores it with its number', async () => {
    const url = inSchema(home.url, 'cell_ten')
    const add = async () => JSON.parse((await muster(['cells', 'add', 'ten', '--url', url, '--json'])).stdout)
    const triggers = () => rows(home.url, `select oid from pg_trigger where tgname = 'copy_to_cell_ten'`)
    const signIn = () => rows(home.url, 'update users set last_login_at = now() returning id')
    const { number } = await add()
    await rows(url, `insert into projects (id, name) values ('prj_of_ten', 'Ten')`)
    await refused(['remove', 'ten'], /cell ten answers and has projects: 1\nPass --force/)
    assert.notEqual((await triggers()).length, 0)
    await rows(home.url, 'drop schema cell_ten cascade')
    await assert.rejects(signIn())
    const removed = await muster(['cells', 'remove', 'ten', '--json'])
    assert.deepEqual([removed.code, JSON.parse(removed.stdout)], [0, { name: 'ten', number, state: 'down' }])
    assert.deepEqual(await triggers(), [])
    assert.equal((await signIn()).length, 1)
    assert.equal((await cells()).find(({ name }) => name === 'ten').state, 'down')
    assert.match(
      (await muster(['cells', 'check', 'ten'])).stdout,
      /^warn +ten state +ten is not complete, or was removed/m,
    )
    assert.equal((await muster(['cells', 'remove', 'ten'])).code, 0)

    const again = await add()
    assert.deepEqual([again.number, again.state], [number, 'open'])
    await rows(url, `insert into projects (id, name) values ('prj_of_ten', 'Ten')`)
    const forced = await muster(['cells', 'remove', 'ten', '--force'])
    assert.deepEqual([forced.code, forced.stdout], [0, 'cell ten is down, and home does not copy to it\n'])
    assert.deepEqual(await rows(url, 'select id from projects'), [{ id: 'prj_of_ten' }])
    assert.equal((await add()).state, 'open')
    await refused(['remove', 'home'], /home cannot be removed/)
    await refused(['remove', 'nine'], /no cell is called nine/)
  })

  it('close and open change whether a cell takes new projects', async () => {
    const state = async () => (await cells()).find(({ name }) => name === 'two').state
    const closed = await muster(['cells', 'close', 'two'])
    assert.deepEqual([closed.code, closed.stdout], [0, 'cell two takes no new projects\n'])
    assert.equal(await state(), 'closed')
    assert.deepEqual(JSON.parse((await muster(['cells', 'open', 'two', '--json'])).stdout), {
      name: 'two',
      state: 'open',
    })
    assert.equal(await state(), 'open')
    await refused(['close', 'home'], /home is always open/)
    await refused(['close', 'nine'], /no cell is called nine/)
  })

  it('check prints a line for each check of each cell, and exits 1 if one fails', async () => {
    const all = await muster(['cells', 'check', '--json'])
    assert.equal(all.code, 0, all.stdout)
    const names = z.array(z.object({ name: z.string(), status: z.string() })).parse(JSON.parse(all.stdout).checks)
    for (const cell of ['home', 'two', 'three'])
      for (const check of [
        'database',
        'clock',
        'connections',
        'migrations',
        'queues',
        'addresses',
        ...(cell === 'home' ? [] : ['copies']),
      ])
        assert.ok(
          names.some(({ name, status }) => name === `${cell} ${check}` && status === 'ok'),
          `${cell} ${check}`,
        )
    const two = inSchema(home.url, 'cell_two')
    await rows(two, `update users set display_name = 'of a backup'`)
    const differing = await muster(['cells', 'check', 'two'])
    assert.equal(differing.code, 1)
    assert.match(differing.stdout, /^fail +two copies +Rows of users in the cell two differ from home$/m)
    await rows(two, 'update users set display_name = null')
    await rows(two, 'delete from migrations where name = $1', [LAST])
    const failed = await muster(['cells', 'check', 'two'])
    assert.equal(failed.code, 1)
    assert.match(failed.stdout, /^fail +two migrations +1 not applied: /m)
    assert.ok(failed.stdout.includes(`1 not applied: ${LAST}`))
    assert.equal(failed.stdout.includes('home '), false)
    await refused(['check', 'nine'], /no cell is called nine/)
  })

  const doctor = async (env: Record<string, string> = {}) => {
    const { stdout } = await muster(['doctor', '--json'], env)
    const { checks } = JSON.parse(stdout) as { checks: { name: string; status: string; detail: string }[] }
    return (name: string) =>
      checks.filter(check => check.name === name).map(({ status, detail }) => `${status} ${detail}`)
  }

  it('migrate migrates home, then each cell, a line for each', async () => {
    const before = await muster(['doctor', '--json'], { CELLS: 'true' })
    assert.ok(before.stdout.includes(`"1 not applied: ${LAST}"`))
    await rows(inSchema(home.url, 'cell_two'), 'insert into migrations (name, run_on) values ($1, now())', [LAST])
    await rows(home.url, 'drop schema cell_four cascade')
    const { code, stdout, stderr } = await muster(['migrate'])
    assert.equal(code, 0, stderr)
    const [first, ...lines] = stdout.trim().split('\n')
    assert.equal(first, 'the database is up to date')
    assert.deepEqual(lines.slice(0, 3), [
      'cell two: up to date',
      'cell three: up to date',
      `cell four: ${migrationNames().length} migrations`,
    ])
    const again = JSON.parse((await muster(['migrate', '--json'])).stdout)
    assert.deepEqual([again.ran, again.cells[0].name, again.cells[0].ran, again.cells[0].error], [[], 'two', [], null])
  })

  it('secrets reencrypt re-encrypts the URLs and the secrets of each cell', async () => {
    const next = { SECRETS_ENCRYPTION_KEY: 'ab'.repeat(32), SECRETS_ENCRYPTION_KEY_PREVIOUS: KEY }
    const before = await rows(home.url, 'select url from cells order by number')
    const { code, stdout, stderr } = await muster(['secrets', 'reencrypt', '--json'], next)
    assert.equal(code, 0, stderr)
    const { counts, remaining } = JSON.parse(stdout)
    assert.equal(remaining, 0)
    const urls = counts.filter((count: any) => count.table === 'cells')
    assert.deepEqual(
      urls.slice(0, 3).map(({ cell, reencrypted }: any) => [cell, reencrypted]),
      [
        [undefined, before.length],
        ['two', 1],
        ['three', 1],
      ],
    )
    const verified = JSON.parse((await muster(['secrets', 'verify', '--json'], next)).stdout)
    assert.equal(verified.undecryptable, 0)
    assert.ok(verified.counts.some((count: any) => count.cell === 'three' && count.table === 'cells'))
    const back = { SECRETS_ENCRYPTION_KEY: KEY, SECRETS_ENCRYPTION_KEY_PREVIOUS: 'ab'.repeat(32) }
    assert.equal((await muster(['secrets', 'reencrypt'], back)).code, 0)
    assert.equal((await cells()).find(({ name }) => name === 'two').error, null)
  })

  it('reprocess replays what a cell has, by --cell', async () => {
    const two = inSchema(home.url, 'cell_two')
    const [{ id }] = await rows(
      two,
      `insert into job (name, source_name, data) values ('event.dispatch.dead', 'event.dispatch', '{"project_id":"none"}')
       returning id`,
    )
    const deadLetters = async (...args: string[]) => {
      const { code, stdout, stderr } = await muster(['reprocess', 'dead-letters', ...args])
      assert.equal(code, 0, stderr)
      return JSON.parse(stdout)
    }
    assert.deepEqual(await deadLetters('list', '--json'), [])
    assert.deepEqual(
      (await deadLetters('list', '--json', '--cell', 'two')).map((letter: any) => [letter.id, letter.queue]),
      [[id, 'event.dispatch']],
    )
    assert.equal((await deadLetters('inspect', id, '--cell', 'two')).id, id)
    const { stdout: checks } = await muster(['cells', 'check', 'two'])
    assert.match(checks, /^warn +two dead letters +event\.dispatch 1$/m)
    assert.match(checks, /list --cell two to see them/)
    assert.equal((await deadLetters('replay', '--json')).replayed, 0)
    assert.equal((await deadLetters('replay', '--json', '--cell', 'two')).replayed, 1)
    assert.equal((await rows(two, `select from job where name = 'event.dispatch'`)).length, 1)
    const { code, stderr } = await muster(['reprocess', 'generations', '--cell', 'nowhere'])
    assert.equal(code, 1)
    assert.match(stderr, /no cell is called nowhere/)
  })

  it('doctor has a line for each cell, and warns of cells that no process serves', async () => {
    const without = await doctor()
    assert.match(without('cell two')[0], /^ok .*schema=cell_two$/)
    assert.match(without('cells')[0], /^warn CELLS is not set: projects of two, three, /)
    assert.deepEqual((await doctor({ CELLS: 'true' }))('cells'), [])
  })

  it('lists a cell that does not answer, and checks it as failed', async () => {
    const secrets = createSecretBox({ key: KEY })
    const lost = secrets.seal('postgres://a:muster.password@127.0.0.1:1/none', sealedForCell('three'))
    await rows(home.url, `update cells set url = $1 where name = 'three'`, [lost])
    const three = (await cells()).find(({ name }) => name === 'three')
    assert.deepEqual([three.state, three.projects, three.address], ['open', null, '127.0.0.1:1/none'])
    assert.match(three.error, /ECONNREFUSED/)
    const projects = await muster(['cells', 'projects', '--json'])
    const { missing_cells: missing, ...listed } = JSON.parse(projects.stdout)
    assert.deepEqual([projects.code, projects.stderr, listed], [1, '', { projects: [PROJECT_OF_TEN] }])
    assert.deepEqual(
      missing.map(({ name }: any) => name),
      ['three'],
    )
    assert.match(missing[0].error, /ECONNREFUSED/)
    const text = await muster(['cells', 'projects', 'three'])
    assert.deepEqual([text.code, text.stdout], [1, 'no projects\n'])
    assert.match(text.stderr, /^cell three does not answer: .*ECONNREFUSED/)
    const checked = await muster(['cells', 'check'])
    assert.equal(checked.code, 1)
    assert.match(checked.stdout, /^fail +three database +127\.0\.0\.1:1\/none does not answer: .*ECONNREFUSED/m)
    assert.match((await doctor({ CELLS: 'true' }))('cell three')[0], /^fail .* does not answer/)
    const migrated = await muster(['migrate'])
    assert.equal(migrated.code, 1)
    assert.match(migrated.stdout, /^cell three: cannot be migrated: .*ECONNREFUSED.*\ncell four: up to date$/m)
    const verified = await muster(['secrets', 'verify'])
    assert.equal(verified.code, 1)
    assert.match(verified.stderr, /^cell three is omitted: /m)
  })

  it('processes with AUTO_MIGRATE migrate the cells at their start, except those that do not answer', async () => {
    await rows(home.url, 'drop schema cell_five cascade')
    const web = await runWeb(home.url, { CELLS: 'true', AUTO_MIGRATE: 'true' })
    try {
      const failed = web.output.filter(line => line.includes('the cell cannot be migrated'))
      assert.deepEqual(
        failed.map(line => JSON.parse(line).cell),
        ['three'],
      )
      const [{ count }] = await rows(inSchema(home.url, 'cell_five'), 'select count(*)::int as count from migrations')
      assert.equal(count, migrationNames().length)
    } finally {
      await web.stop()
    }
  })

  it('list names the cells whose URL no configured key opens', async () => {
    const dead = await run('bin/muster.ts', ['cells', 'list', '--json'], {
      ...testEnvironment(home.url),
      SECRETS_ENCRYPTION_KEY: 'ff'.repeat(32),
    })
    assert.equal(dead.code, 0, dead.stderr)
    const [first, ...others] = JSON.parse(dead.stdout)
    assert.equal(first.error, null)
    for (const { address, projects, error } of others) {
      assert.deepEqual([address, projects], [null, null])
      assert.match(error, /key that is not configured/)
    }
  })
})
