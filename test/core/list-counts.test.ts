import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import path from 'node:path'
import { createInterface } from 'node:readline'
import pg from 'pg'
import { kinds } from '#core/api/kind.ts'
import { startApp, type TestProject } from '../support/app.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { rounds } from '../support/rounds.ts'
import { forSuite } from '../support/suite.ts'

const root = path.resolve(import.meta.dirname, '../..')
/** Writes by clients of which some are killed. */
const WRITES = rounds('LIST_COUNT_WRITES', 1000, 100_000)
const PROCESSES = 4
const CONNECTIONS = 4
const KILLS = Math.ceil(WRITES / 250)

/** Tables whose rows are counted, with the column that they are counted by. */
const COUNTED = {
  actors: 'project_id',
  audit_entries: 'project_id',
  cases: 'project_id',
  decisions: 'project_id',
  events: 'project_id',
  exceptions: 'project_id',
  feedback: 'project_id',
  generations: 'project_id',
  guardrail_evaluations: 'project_id',
  orchestration_runs: 'project_id',
  playbook_exports: 'project_id',
  tasks: 'project_id',
  usage_events: 'project_id',
  webhook_deliveries: 'webhook_id',
}

const rowsByScope = Object.entries(COUNTED)
  .map(([table, column]) => `select coalesce(${column}, '') as scope, '${table}' as table_name from ${table}`)
  .join(' union all ')

/** Scopes whose kept count is not the count of their rows. */
const WRONG = `
  select scope, table_name, a.rows::int, k.kept::int
  from (select scope, table_name, count(*) as rows from (${rowsByScope}) r group by 1, 2) a
  full join (select scope, table_name, sum(count) as kept from row_counts group by 1, 2) k using (scope, table_name)
  where coalesce(a.rows, 0) <> coalesce(k.kept, 0)`

/** Counts of deleted rows. */
const LEFT = `
  select * from row_counts c where table_name <> 'audit_entries'
  and not exists (select from projects where id = c.scope) and not exists (select from webhooks where id = c.scope)`

/** States of workflows whose kept count is not the count of their tasks, and counts of workflows that are gone. */
const WRONG_STATES = `
  select workflow_id, state from (select workflow_id, state, count(*) as rows from tasks group by 1, 2) a
  full join (select workflow_id, state, sum(count) as kept from task_state_counts group by 1, 2) k using (workflow_id, state)
  where coalesce(a.rows, 0) <> coalesce(k.kept, 0) or not exists (select from workflows w where w.id = workflow_id)`

async function connected(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => {})
  await client.connect()
  return client
}

/** 16 clients in four processes that write until `writes` are done; `onPart` is called as each of `parts` parts is. */
async function writers(
  url: string,
  writes: number,
  parts: number,
  onPart: (kill: (index: number) => void, part: number) => unknown,
): Promise<void> {
  let done = 0
  let part = 0
  let enough = () => {}
  let failed = (_: Error) => {}
  const ended = new Promise<void>((resolve, reject) => {
    enough = resolve
    failed = reject
  })
  const running = new Map<number, ReturnType<typeof spawn>>()
  const start = (index: number): void => {
    const child = spawn(process.execPath, ['test/support/count-writers.ts', url, String(CONNECTIONS)], {
      cwd: root,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    running.set(index, child)
    const complaints: string[] = []
    child.stderr.on('data', chunk => complaints.push(String(chunk)))
    child.once('exit', code => {
      running.delete(index)
      if (code) failed(new Error(complaints.join('')))
      else if (done < writes) start(index)
    })
    createInterface(child.stdout).on('line', () => {
      done += 10
      if (done >= writes) enough()
      else if (done > (part * writes) / parts) Promise.resolve(onPart(kill, part++)).catch(failed)
    })
  }
  const kill = (index: number) => running.get(index)?.kill('SIGKILL')
  for (let index = 0; index < PROCESSES; index++) start(index)
  try {
    await ended
  } finally {
    done = writes
    const exits = [...running.values()].map(child => new Promise(resolve => child.once('exit', resolve)))
    for (const child of running.values()) child.kill('SIGKILL')
    await Promise.all(exits)
  }
}

/** Waits until the server has noticed that its clients are gone. */
async function settled(client: pg.Client): Promise<void> {
  for (;;) {
    const { rows } = await client.query(
      `select 1 from pg_stat_activity where datname = current_database() and application_name = 'count writer'`,
    )
    if (rows.length === 0) return
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

describe('counts of rows', () => {
  it('are kept by triggers for every kind that says so', async () => {
    const database = await cloneTemplate()
    const client = await connected(database.url)
    // Inserts of usage are counted by its folds.
    const { rows } = await client.query(`
      select tgrelid::regclass::text as table_name from pg_trigger
      where tgfoid in ('count_rows'::regproc, 'usage_added'::regproc) group by 1 having count(*) = 2 order by 1`)
    const tables = kinds.all().flatMap(({ countKept, table }) => (countKept ? [table] : []))
    assert.deepEqual(
      rows.map(({ table_name }) => table_name),
      [...tables, 'webhook_deliveries'].sort(),
    )
    assert.deepEqual(Object.keys(COUNTED), [...tables, 'webhook_deliveries'].sort())
    await client.end()
    await database.drop()
  })

  it('equal the rows after writes, cascades and rollbacks by 16 clients of which some are killed', async function () {
    this.timeout(WRITES * 50 + 60_000)
    const database = await cloneTemplate()
    const client = await connected(database.url)
    await writers(database.url, WRITES, KILLS, (kill, part) =>
      part % 2 === 0
        ? kill((part / 2) % PROCESSES)
        : client.query(`select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and application_name = 'count writer' order by random() limit 4`),
    )
    await settled(client)
    assert.deepEqual((await client.query(WRONG)).rows, [])
    assert.deepEqual((await client.query(LEFT)).rows, [])
    assert.deepEqual((await client.query(WRONG_STATES)).rows, [])
    const { rows } = await client.query('select count(distinct shard)::int as shards from row_counts')
    assert.ok(rows[0].shards > 1, 'no two transactions counted concurrently')
    await client.end()
    await database.drop()
  })

  it('begin with the rows that exist, while others write', async function () {
    this.timeout(60_000)
    const database = await cloneTemplate()
    const client = await connected(database.url)
    const triggers = ['row_counts_inserted', 'row_counts_deleted', 'row_counts_kept']
    const tables = Object.keys(COUNTED).filter(table => table !== 'usage_events')
    for (const table of tables)
      await client.query(triggers.map(trigger => `drop trigger ${trigger} on ${table}`).join(';'))
    // One transaction, because it is one message.
    const counting = tables
      .map(table => [
        table,
        COUNTED[table as keyof typeof COUNTED],
        ...(table === 'orchestration_runs' ? ['driver'] : []),
      ])
      .map(names => `call count_table(${names.map(name => `'${name}'`).join(', ')})`)
      .join(';')
    const count = async (): Promise<void> => {
      try {
        await client.query(counting)
      } catch (error) {
        // The writers of this test lock tables in any order.
        if ((error as pg.DatabaseError).code !== '40P01') throw error
        await count()
      }
    }
    let counted: Promise<void> | undefined
    await writers(database.url, 900, 3, (_, part) => {
      if (part === 1) counted = count()
    })
    await counted
    await settled(client)
    assert.deepEqual((await client.query(WRONG)).rows, [])
    assert.deepEqual((await client.query(LEFT)).rows, [])
    await client.end()
    await database.drop()
  })

  it('wait for no other transaction', async () => {
    const database = await cloneTemplate()
    const clients = await Promise.all(Array.from({ length: 20 }, () => connected(database.url)))
    await clients[0].query(`insert into projects (id, name) values ('proj_1', 'p')`)
    for (const [n, client] of clients.entries()) {
      await client.query(`set lock_timeout = '1s'; begin`)
      await client.query(`insert into actors (id, project_id, name) values ($1, 'proj_1', 'a')`, [`actor_${n}`])
      await client.query(`savepoint s; delete from actors where id = 'actor_${n}'; rollback to savepoint s`)
    }
    for (const [n, client] of clients.entries()) await client.query(n % 2 === 0 ? 'commit' : 'rollback')
    assert.deepEqual((await clients[0].query(WRONG)).rows, [])
    const { rows } = await clients[0].query('select count(*)::int from row_counts')
    assert.equal(rows[0].count, 10)
    await Promise.all(clients.map(client => client.end()))
    await database.drop()
  })

  it('are of rows that stay in their project and webhook', async () => {
    const database = await cloneTemplate()
    const client = await connected(database.url)
    for (const [table, column] of Object.entries(COUNTED))
      await assert.rejects(client.query(`update ${table} set ${column} = 'other'`), /stay where they were made/)
    await client.end()
    await database.drop()
  })
})

describe('totals of lists', () => {
  const app = forSuite(startApp)
  let project: TestProject
  beforeEach(async () => {
    project = await app.project()
  })

  const total = async (path: string, as = project.key): Promise<number> => {
    const { status, body } = await as.get(path)
    assert.equal(status, 200, JSON.stringify(body))
    return body.total
  }
  const actor = async (body: object = {}) => (await project.key.post('/actors', { name: 'a', ...body })).body
  const exec = async (text: string) => {
    const client = await connected(app.databaseUrl)
    const { rows } = await client.query(text)
    await client.end()
    return rows
  }
  const fill = (count: number, team: string) =>
    exec(`insert into actors (id, project_id, name, tags)
      select 'actor_' || gen_random_uuid(), '${project.id}', '${team} ' || n, '{"team": "${team}"}'
      from generate_series(1, ${count}) n`)

  it('follow creates and deletes, on full pages and on others', async () => {
    const { id } = await actor()
    await actor()
    await actor()
    for (const limit of [1, 2, 3, 4]) assert.equal(await total(`/actors?limit=${limit}`), 3)
    await project.key.delete(`/actors/${id}`)
    assert.equal(await total('/actors?limit=1'), 2)
    assert.equal(await total('/actors?limit=1&offset=1'), 2)
    assert.equal(await total('/actors?limit=1&offset=7'), 2)
    // With a bound that leaves every row, rows are counted.
    for (const list of ['events', 'audit-log']) {
      assert.ok((await total(`/${list}`)) >= 4)
      assert.equal(await total(`/${list}?limit=1`), await total(`/${list}?limit=1&from=2000-01-01`))
    }
  })

  it('of generations follow what deletes them', async () => {
    await exec(`
      with p as (insert into ai_providers (id, project_id, name, provider, default_model)
        values ('p_${project.id}', '${project.id}', 'p', 'openai', 'm') returning *),
      a as (insert into agents (id, project_id, ai_provider_id) select 'a' || n || p.project_id, p.project_id, p.id
        from p, generate_series(1, 2) n returning *),
      t as (insert into traces (id, project_id, agent_id) select a.id, a.project_id, a.id from a returning *)
      insert into generations (id, project_id, agent_id, trace_id, created_at, updated_at, authority)
      select 'gen_' || n || t.id, t.project_id, t.agent_id, t.id, now(), now(), '{}' from t, generate_series(1, 60) n`)
    assert.equal(await total('/generations'), 120)
    await exec(`delete from agents where id = 'a1${project.id}'`)
    assert.equal(await total('/generations'), 60)
    await app.admin.delete(`/projects/${project.id}?force=true`)
    assert.deepEqual(await exec(LEFT), [])
  })

  it('of deliveries count the deliveries of the webhook', async () => {
    const webhook = async () =>
      (await project.key.post('/webhooks', { name: 'w', url: 'http://127.0.0.1:1/', events: ['none'] })).body.id
    const [one, other] = [await webhook(), await webhook()]
    for (const id of [one, one, other]) await project.key.post(`/webhooks/${id}/test`)
    assert.equal(await total(`/webhook-deliveries?webhook_id=${one}&limit=1`), 2)
    assert.equal(await total(`/webhook-deliveries?webhook_id=${other}&limit=1`), 1)
    assert.equal(await total(`/webhook-deliveries?webhook_id=${one}&limit=1&status=failed`), 0)
    const elsewhere = (await app.project()).id
    assert.equal(await total(`/webhook-deliveries?webhook_id=${one}&project_id=${elsewhere}`, app.admin), 0)
    assert.equal((await project.key.delete(`/webhooks/${one}`)).status, 204)
    assert.deepEqual(await exec(LEFT), [])
    assert.equal(await total(`/webhook-deliveries?webhook_id=${other}&limit=1`), 1)
  })

  it('of messages follow callers who add and delete them concurrently', async () => {
    const { id } = (await project.key.post('/conversations', {})).body
    const path = `/conversations/${id}/messages`
    const add = async (n: number) =>
      (await project.key.post(path, { role: 'user', message: `m ${n}`, position: n % 3 })).body
    const made = await Promise.all(Array.from({ length: 12 }, (_, n) => add(n)))
    const [first, ...rest] = made
    await Promise.all([
      ...[first, first, ...rest.slice(0, 4)].map(message => project.key.delete(`${path}/${message.document_id}`)),
      ...Array.from({ length: 4 }, (_, n) => add(n)),
    ])
    assert.equal(await total(`${path}?limit=1`), 11)
    assert.equal(await total(`${path}?limit=1&role=user`), 11)
    const pages = []
    for (let offset = 0; offset < 11; offset += 2)
      pages.push(...(await project.key.get(`${path}?limit=2&offset=${offset}`)).body.data)
    assert.deepEqual(pages, (await project.key.get(path)).body.data)
    assert.equal(new Set(pages.map(message => message.document_id)).size, 11)
  })

  it('are read without counting by callers who see the whole project, and by admins who see all of it', async () => {
    await fill(60, 'red')
    for (const [path, table] of [
      ['/actors', 'actors'],
      ['/events', 'events'],
      ['/audit-log', 'audit_entries'],
      ['/generations', 'generations'],
    ])
      for (const as of [project.key, app.admin]) {
        const column = as === app.admin ? 'true' : `project_id = '${project.id}'`
        const [{ count }] = await exec(`select count(*)::int from ${table} where ${column}`)
        assert.equal(await total(path, as), count)
        const statement = app.statements.findLast(text => text.includes(`from "${table}" t`)) ?? ''
        assert.match(statement, /row_counts/)
        assert.doesNotMatch(statement, /count\(\*\) from "/)
      }
    assert.equal(await total(`/actors?project_id=${project.id}`, app.admin), 60)
  })

  it('count the rows that filters leave, at any offset', async () => {
    await fill(10_060, 'red')
    await fill(60, 'blue')
    for (const offset of [0, 100, 9_999, 10_000, 10_059, 10_060, 20_000])
      assert.equal(await total(`/actors?name=red&offset=${offset}`), 10_060)
    assert.equal(await total('/actors?name=blue'), 60)
    assert.equal(await total('/actors?name=blue&limit=100'), 60)
    assert.equal(await total('/actors?name=green'), 0)
    assert.equal(await total('/actors?offset=10000'), 10_120)
    assert.equal(await total('/actors?from=2000-01-01'), 10_120)
    assert.equal(await total('/actors?to=2000-01-01'), 0)
  })

  it('count no row that the caller may not see', async () => {
    await fill(60, 'red')
    await fill(70, 'blue')
    const [{ id }] = await exec(`select id from actors where project_id = '${project.id}' limit 1`)
    const allow = { effect: 'Allow', action: ['actors:*'], resource: [`srn:${project.id}:*:*`] }
    const deny = { ...allow, effect: 'Deny', resource: [`srn:${project.id}:actor:${id}`] }
    const red = { ...allow, condition: { StringEquals: { 'svc:ResourceTag/team': 'red' } } }
    const elsewhere = { ...allow, resource: [`srn:${(await app.project()).id}:*:*`] }
    const sees = async (statement: object[], path: string) => total(path, await app.user(undefined, [{ statement }]))
    const here = `/actors?project_id=${project.id}`
    assert.equal(await sees([allow], here), 130)
    assert.equal(await sees([allow], '/actors'), 130)
    assert.equal(await sees([allow, deny], here), 129)
    assert.equal(await sees([red], here), 60)
    assert.equal(await sees([red], '/actors'), 60)
    assert.equal(await sees([elsewhere], '/actors'), 0)
  })

  it('of the audit log leave entries without a project to admins', async () => {
    const everything = [{ effect: 'Allow', action: ['*'], resource: ['*'] }]
    const reader = await app.user(undefined, [{ statement: everything }])
    const [{ all, ours }] = await exec('select count(*)::int as all, count(project_id)::int as ours from audit_entries')
    assert.ok(ours < all)
    assert.equal(await total('/audit-log?limit=1', reader), ours)
    assert.equal(await total('/audit-log?limit=1', app.admin), all)
  })
})
