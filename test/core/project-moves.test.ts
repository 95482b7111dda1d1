import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { operations } from '#core/api/operation.ts'
import { DatabaseClient } from '#core/db/pg-client.ts'
import { rawQuery } from '#core/db/sql.ts'
import { tablesOfProject } from '#core/services/project-rows.ts'
import { startDouble } from '#local/double/server.ts'
import { type Client, eventually, type TestApp } from '../support/app.ts'
import { startCells, type TestCells } from '../support/cells.ts'
import { run } from '../support/commands.ts'
import { testEnvironment } from '../support/environment.ts'
import { populate } from '../support/populate.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

/** Rows of a project that has many. */
const MANY = process.env.TEST_NIGHTLY ? 1_000_000 : 100_000

const ARGUMENTS = (id: string, to: string) => ['cells', 'projects', 'move', id, '--to', to, '--json']

const environmentOf = (cells: TestCells, env: Record<string, string> = {}) => ({
  ...testEnvironment(cells.home),
  ...cells.env,
  ...env,
})

const move = (cells: TestCells, id: string, to: string, env: Record<string, string> = {}) =>
  run('bin/muster.ts', ARGUMENTS(id, to), environmentOf(cells, env))

/** Moves a project and returns what the command printed. */
async function moved(cells: TestCells, id: string, to: string): Promise<Json> {
  const { code, stdout, stderr } = await move(cells, id, to)
  assert.equal(code, 0, stderr)
  return JSON.parse(stdout)
}

/** Numbers of the rows of a project by their tables. */
async function countsOf(cells: TestCells, url: string, id: string): Promise<Json> {
  const [{ tables }] = await cells.rows(
    url,
    // Entries of other chains name the project too.
    `select json_object_agg(name, count) as tables from (
       select c.relname as name, (xpath('/row/c/text()', query_to_xml(format(
         'select count(*) as c from %I t where to_jsonb(t)::text like %L', c.relname, '%' || $1 || '%'), false, true, '')))[1]::text::int as count
       from pg_class c where relkind in ('r', 'p') and not relispartition and relnamespace = current_schema()::regnamespace
         and relname not in ('project_cells', 'idempotency_keys', 'activity_entries', 'policies', 'policy_versions', 'audit_entries')
       union all select 'audit_entries', count(*)::int from audit_entries where project_id = $1) t where count > 0`,
    [id],
  )
  return tables ?? {}
}

describe('a project that is moved', function () {
  this.timeout(300_000)
  const cells = forSuite(() => startCells({ servers: true }))

  it('has the same records, tags, lists, figures, files and audit chain in the other cell, and back', async () => {
    const setState = (state: string) => cells.services.pool.query(rawQuery(`update cells set state = $1`, [state]))
    // Makes the rows at home.
    await setState('closed')
    const params = await populate({
      ...cells,
      pool: cells.services.pool,
      servicesOf: () => cells.services,
      inCellOf: (_id: string, work: (services: typeof cells.services) => unknown) => work(cells.services),
      anonymous: cells.as(null),
    } as unknown as TestApp)
    await setState('open')
    const id = params.project_id
    const statement = [{ effect: 'Allow', action: ['*'], resource: [`srn:${id}:*:*`] }]
    const policy = await postedBy(cells.admin, '/policies', { document: { statement } })
    const key = await postedBy(cells.admin, '/project-keys', { project_id: id, policy_ids: [policy.id] })
    const bound = cells.as(key.secret)
    const content = await bound.get(`/files/${params.file_id}/content`)
    const verified = await cells.admin.get(`/audit-log/verify?project_id=${id}`)
    assert.equal(verified.body.valid, true, JSON.stringify(verified.body))
    const refused = await move(cells, id, 'second')
    assert.equal(refused.code, 1)
    assert.match(refused.stderr, /shares with projects of home: delete shr_/)
    assert.equal((await cells.admin.delete(`/shares/${params.share_id}?force=true`)).status, 204)
    delete params.share_id
    const paths = pathsOf(params)
    // The last use of a key and usage are written later than their calls.
    const written = async () =>
      JSON.stringify([[...(await readAll(cells.admin, paths))], await countsOf(cells, cells.home, id)])
    await eventually(
      async () => {
        const before = await written()
        await sleep(3000)
        return before === (await written())
      },
      { within: 60_000, what: 'the writes that follow calls' },
    )
    for (const to of ['second', 'home']) {
      const [here, there] = to === 'home' ? [cells.home, cells.second] : [cells.second, cells.home]
      const before = await readAll(cells.admin, paths)
      assert.ok(before.size > 60, `${before.size} reads`)
      const counts = await countsOf(cells, there, id)
      const { rows } = await moved(cells, id, to)
      assert.ok(rows > 200, `${rows} rows`)
      await eventually(async () => (await cells.admin.get(`/projects/${id}`)).status === 200)
      assert.deepEqual(
        Object.keys(await countsOf(cells, there, id)).filter(name => name !== 'oauth_grants'),
        [],
      )
      const now = await countsOf(cells, here, id)
      assert.deepEqual({ ...now, oauth_grants: counts.oauth_grants }, counts)
      const grants = await cells.rows(cells.home, 'select id from oauth_grants where project_id = $1', [id])
      assert.equal(grants.length, 1)
      const after = await readAll(cells.admin, paths)
      assert.deepEqual(
        [...before]
          .filter(([path, text]) => after.get(path) !== text)
          .map(([path, text]) => [path, text, after.get(path)]),
        [],
      )
      assert.deepEqual((await bound.get(`/files/${params.file_id}/content`)).body, content.body)
      const again = await cells.admin.get(`/audit-log/verify?project_id=${id}`)
      assert.equal(again.body.valid, true, JSON.stringify(again.body))
      assert.ok(again.body.checked >= verified.body.checked)
      const made = await bound.post('/conversations', { name: to })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.equal((await cells.admin.get(`/conversations/${made.body.id}`)).status, 200)
      assert.equal((await cells.admin.delete(`/conversations/${made.body.id}`)).status, 204)
      // Others learn nothing of it.
      const other = await cells.project(to === 'home' ? 'second' : 'home')
      const hidden = await other.key.get(`/agents/${params.agent_id}`)
      const none = await other.key.get(`/agents/agent_${'7'.repeat(26)}`)
      assert.deepEqual([hidden.status, hidden.body.error.code], [none.status, none.body.error.code])
    }
  })
})

describe('a project that is moved while it is in use', function () {
  this.timeout(300_000)
  const double = forSuite(() => startDouble({}))
  const cells = forSuite(() => startCells({ servers: true, workers: true }))

  const newSession = async (key: Client) => {
    const provider = await postedBy(key, '/ai-providers', {
      name: 'double',
      provider: 'custom',
      default_model: 'double-1',
      base_url: `${double.url}/v1`,
    })
    const agent = await postedBy(key, '/agents', { name: 'Helper', ai_provider_id: provider.id })
    return (await postedBy(key, '/sessions', { agent_id: agent.id })).id as string
  }

  const completed = (key: Client, id: string) =>
    eventually(async () => (await key.get(`/generations/${id}`)).body.status === 'completed', { within: 60_000 })

  it('ends its turns once, and runs new ones in the other cell', async () => {
    const { id, key } = await cells.project('home')
    const session = await newSession(key)
    const slow = [{ delay_ms: 4000, text: 'Late' }]
    await postedBy(key, `/sessions/${session}/messages`, { message: `@double ${JSON.stringify(slow)}` })
    const first = (await key.post(`/sessions/${session}/generate`)).body.generation_id
    await eventually(async () => (await key.get(`/generations/${first}`)).body.status === 'in_progress')
    await moved(cells, id, 'second')
    await completed(key, first)
    const messages = (await key.get(`/sessions/${session}/messages`)).body.data
    assert.equal(messages.filter((message: Json) => message.role === 'assistant').length, 1)
    await postedBy(key, `/sessions/${session}/messages`, { message: 'Hello' })
    await completed(key, (await key.post(`/sessions/${session}/generate`)).body.generation_id)
    const usage = await key.get(`/usage/events?project_id=${id}`)
    assert.equal(usage.body.data.filter((event: Json) => event.generation_id === first).length <= 1, true)
    assert.deepEqual(await cells.rows(cells.home, 'select id from generations where project_id = $1', [id]), [])
  })

  it('is complete after a kill of the command at any time, and a repeat', async () => {
    const { id, key } = await cells.project('home')
    const { id: conversation } = await postedBy(key, '/conversations', { name: 'Kept' })
    const path = `/conversations/${conversation}`
    let to = 'second'
    for (const point of ['move_taking', 'move_staged', 'move_taken', 'move_placed']) {
      const { code } = await move(cells, id, to, { FAULT_POINTS: `${point}=kill` })
      assert.equal(code, 'SIGKILL', point)
      for (const caller of [key, cells.admin]) {
        const { status, headers } = await caller.get(path)
        assert.deepEqual([status, headers.get('retry-after')], [503, '5'], point)
      }
      const elsewhere = to === 'home' ? 'second' : 'home'
      const back = await move(cells, id, elsewhere)
      const hasLeft = point === 'move_taken' || point === 'move_placed'
      if (hasLeft) assert.match(back.stderr, /has left/, point)
      else
        assert.deepEqual(
          [back.code, JSON.parse(back.stdout)],
          [0, { project_id: id, from: to, to: elsewhere, rows: null, cancelled: true }],
        )
      const { rows, cancelled } = await moved(cells, id, to)
      assert.equal(cancelled, false)
      if (point === 'move_placed') assert.equal(rows, null)
      else assert.ok(rows > 5, `${rows} rows`)
      await eventually(async () => (await key.get(path)).status === 200)
      assert.equal((await cells.admin.get(path)).status, 200)
      const both = await Promise.all(
        [cells.home, cells.second].map(url =>
          cells.rows(url, 'select id from conversations where id = $1', [conversation]),
        ),
      )
      assert.deepEqual(
        both.map(rows => rows.length),
        to === 'home' ? [1, 0] : [0, 1],
        point,
      )
      for (const url of [cells.home, cells.second])
        assert.deepEqual(await cells.rows(url, 'select project_id from moving_rows limit 1'), [])
      to = elsewhere
    }
  })

  it('is reported to be where it was after a cancelled move', async () => {
    const { id } = await cells.project('home')
    assert.equal((await move(cells, id, 'second', { FAULT_POINTS: 'move_staged=kill' })).code, 'SIGKILL')
    const { code, stdout, stderr } = await run(
      'bin/muster.ts',
      ['cells', 'projects', 'move', id, '--to', 'home'],
      environmentOf(cells),
    )
    assert.deepEqual(
      [code, stdout],
      [0, `the move of project ${id} to second is cancelled; it is in home, where it was\n`],
      stderr,
    )
  })

  it('refuses what cannot be moved', async () => {
    const { id } = await cells.project('home')
    const refusals: [string, string, RegExp][] = [
      [id, 'third', /no cell is called third/],
      [id, 'home', /is in home/],
      [`proj_${'7'.repeat(26)}`, 'second', /no project is called/],
    ]
    for (const [project, to, reason] of refusals) {
      const { code, stderr } = await move(cells, project, to)
      assert.equal(code, 1)
      assert.match(stderr, reason)
    }
    await cells.rows(cells.home, `update cells set state = 'closed'`)
    const closed = await move(cells, id, 'second')
    await cells.rows(cells.home, `update cells set state = 'open'`)
    assert.match(closed.stderr, /cell second is closed/)
    assert.deepEqual(await cells.rows(cells.home, 'select * from project_cells where project_id = $1', [id]), [])
  })

  it('is on the way: users and policies are not deleted, and callers without rights do not read its name', async () => {
    const id = `proj_${'7'.repeat(26)}`
    const policy = await postedBy(cells.admin, '/policies', {
      name: 'free',
      document: { statement: [{ effect: 'Allow', action: ['agents:ListAgents'], resource: ['*'] }] },
    })
    const user = await postedBy(cells.admin, '/users', { username: 'una', password: 'correct horse battery' })
    const paths = [`/policies/${policy.id}`, `/users/${user.id}`]
    await cells.rows(
      cells.home,
      `insert into project_cells (project_id, moving_to, numbers) values ($1, 'second', '{0}')`,
      [id],
    )
    for (const path of paths) {
      const { status, body } = await cells.admin.delete(path)
      assert.deepEqual([status, body.error.code], [503, 'CELL_UNAVAILABLE'], path)
    }
    const stranger = cells.as(`sk_${'a'.repeat(43)}`)
    const refusal = await eventually(async () => {
      const reply = await stranger.get('/conversations')
      return reply.status === 503 && reply.body
    })
    assert.ok(
      !JSON.stringify(refusal).includes(id) && !JSON.stringify(refusal).includes('second'),
      JSON.stringify(refusal),
    )
    // The project was deleted when its move had begun.
    const { code, stderr } = await move(cells, id, 'second')
    assert.equal(code, 1)
    assert.match(stderr, /was deleted/)
    assert.deepEqual(await cells.rows(cells.home, 'select * from project_cells where project_id = $1', [id]), [])
    for (const path of paths) assert.equal((await cells.admin.delete(path)).status, 204, path)
    await eventually(async () => (await stranger.get('/conversations')).status === 401)
  })

  it('is listed in its cell, and may have many rows', async () => {
    const { id, key } = await cells.project('home')
    await cells.rows(
      cells.home,
      `insert into events (id, project_id, name, resource_type, resource_id, envelope, packed, created_at, dispatched_at)
       select 'evt_' || lpad(n::text, 26, '0'), project_id, name, resource_type, resource_id, envelope, packed,
         created_at - n * interval '1 s', now()
       from (select * from events where project_id = $1 limit 1) e, generate_series(1, $2::int) n`,
      [id, MANY],
    )
    const { total } = (await key.get('/events?limit=1')).body
    assert.ok(total > MANY)
    // Rows of other partitions have the same places as rows of the project.
    const neighbour = await cells.project('home')
    const { total: kept } = (await neighbour.key.get('/events?limit=1')).body
    const stored = () =>
      cells.rows(cells.home, 'select count(*)::int as n from events where project_id = $1', [neighbour.id])
    assert.deepEqual(await stored(), [{ n: kept }])
    const { code, stdout, stderr } = await move(cells, id, 'second', { NODE_OPTIONS: '--max-old-space-size=96' })
    assert.equal(code, 0, stderr)
    assert.ok(JSON.parse(stdout).rows > MANY)
    await eventually(async () => (await key.get('/events?limit=1')).body.total === total)
    assert.deepEqual(await stored(), [{ n: kept }])
    const listed = await run('bin/muster.ts', ['cells', 'projects', 'second', '--json'], environmentOf(cells))
    const found = JSON.parse(listed.stdout).projects.find((project: Json) => project.id === id)
    assert.ok(found.cell === 'second' && found.rows >= MANY, listed.stdout)
  })
})

describe('a project that is moved between cells of one database', function () {
  this.timeout(120_000)
  const cells = forSuite(() => startCells({ workers: true }))

  it('is in the other schema, and back', async () => {
    const { id, key, keyId } = await cells.project('home')
    const { id: conversation } = await postedBy(key, '/conversations', { name: 'Kept' })
    for (const to of ['second', 'home']) {
      await moved(cells, id, to)
      await eventually(async () => (await key.get(`/conversations/${conversation}`)).status === 200)
      const [{ schemas }] = await cells.rows(
        cells.home,
        `select array(select 'home' from projects where id = $1 union all
           select 'second' from cell_second.projects where id = $1) as schemas`,
        [id],
      )
      assert.deepEqual(schemas, [to])
      assert.equal((await cells.admin.get(`/project-keys/${keyId}?project_id=${id}`)).status, 200)
      assert.equal((await key.post('/conversations', { name: to })).status, 201)
    }
    assert.equal((await key.get('/conversations')).body.total, 3)
    assert.equal((await cells.admin.delete(`/project-keys/${keyId}?project_id=${id}`)).status, 204)
    await eventually(async () => (await key.get('/conversations')).status === 401)
  })
})

/** Reads by ID and lists of a project, without those whose answers change with time. */
function pathsOf(params: Record<string, string>): string[] {
  const volatile =
    /stream|presigned|\/me\b|permissions|\/system|content$|\/cells|download|export$|verify|openapi|activity|receipt|limits|retention|events\/registry|secret|summary|webhooks$/
  return operations
    .all()
    .filter(
      ({ method, gate, shape }) => method === 'get' && gate !== 'public' && (shape === 'item' || shape === 'list'),
    )
    .map(({ path, kind }) => ({ path, kind, names: [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name) }))
    .filter(({ kind, names }) => names.length > 0 || (kind && !kind.global && kind.name !== 'project'))
    .filter(({ path, names }) => !volatile.test(path) && names.every(name => params[name]))
    .map(({ path, names }) => {
      const filled = names.reduce((text, name) => text.replace(`{${name}}`, params[name]), path)
      return names.length === 0 ? `${filled}?project_id=${params.project_id}` : filled
    })
}

/** Statuses, entity tags and bodies of reads that succeed. */
async function readAll(caller: Client, paths: readonly string[]): Promise<Map<string, string>> {
  const found = new Map<string, string>()
  for (const path of paths) {
    const { status, headers, body } = await caller.get(path)
    // The window of a quota may end while the project is moved.
    const text = JSON.stringify(body, (key, value) => (['window_key', 'resets_at'].includes(key) ? null : value))
    if (status === 200) found.set(path, `${headers.get('etag')} ${text}`)
  }
  return found
}

describe('tables of projects', () => {
  let url: string
  let drop: () => Promise<void>
  before(async () => {
    ;({ url, drop } = await cloneTemplate())
  })
  after(() => drop())

  it('are all that refer to projects, and none is forgotten', async () => {
    const client = new DatabaseClient({ connectionString: url })
    await client.connect()
    try {
      const tables = (await tablesOfProject(client)).map(({ name }) => name)
      assert.equal(tables.at(-1), 'projects')
      for (const name of ['generation_steps', 'node_interruptions', 'audit_entries'])
        assert.ok(tables.includes(name), name)
      await client.query('create table forgotten (project_id text)')
      await assert.rejects(tablesOfProject(client), /does not declare whose rows are in forgotten/)
    } finally {
      await client.query('drop table if exists forgotten')
      await client.end()
    }
  })
})
