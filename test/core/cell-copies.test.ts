import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { loadConfig } from '#config.ts'
import { cellOfId } from '#core/base/ids.ts'
import { silentLog } from '#core/base/log.ts'
import { DatabaseClient } from '#core/db/pg-client.ts'
import { migrate } from '#core/queues/migrate.ts'
import { Cells } from '#core/services/cells.ts'
import { HOME_TABLES } from '#core/services/copied-rows.ts'
import { copiesState, readCopies, startCopies, stopCopies } from '#core/services/copies.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { sweeps } from '#core/work/sweeps.ts'
import { startDouble } from '#local/double/server.ts'
import { ADMIN, client, eventually } from '../support/app.ts'
import { startCells, type TestCells } from '../support/cells.ts'
import { testEnvironment } from '../support/environment.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { root, startProcess } from '../support/processes.ts'
import { bodyOf, createdBy, postedBy, refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const names = HOME_TABLES.map(({ table }) => table) as string[]

/** Time within which a change at home must apply in every cell. */
const EFFECTIVE_MS = 5000

/** Time for which a change waits for the cells. */
const BARRIER_MS = 1000

/** Tables without a project that rows of projects reference, of which each cell has its own. */
const OF_EACH_CELL = ['cells', 'embedding_spaces']

/** Runs a sweep as a worker with the cells of a deployment. */
async function sweep(cells: TestCells, name: string): Promise<void> {
  const all = new Cells(cells.services, { role: 'cli' })
  await all.start()
  try {
    await sweeps.get(name).run(cells.services, new AbortController().signal)
  } finally {
    await all.close()
  }
}

const second = (cells: TestCells) => ({ name: 'second', number: 1, url: cells.second })

describe('copies of the rows of home in the same database', function () {
  this.timeout(120_000)
  const cells = forSuite(() => startCells())
  const inHome = (text: string, values?: unknown[]) => cells.rows(cells.home, text, values)
  const inSecond = (text: string, values?: unknown[]) => cells.rows(cells.second, text, values)

  /** A user with a policy that allows everything, who is no admin. */
  async function member(name: string) {
    const user = await createdBy(cells.admin, '/users', { username: name, password: 'correct horse battery' })
    const policy = await createdBy(cells.admin, '/policies', {
      document: { statement: [{ effect: 'Allow', action: ['*'] }] },
    })
    assert.equal((await cells.admin.post(`/users/${user.id}/policies/${policy.id}`)).status, 204)
    const token = await bodyOf(
      cells.as(null).post('/users/login', { username: name, password: 'correct horse battery' }),
    )
    return { id: user.id as string, policy: policy.id as string, caller: cells.as(token.token) }
  }

  it('are of every table without a project that rows of projects reference', async () => {
    const references = await inHome(
      `with recursive of_projects (oid) as (
         select attrelid from pg_attribute join pg_class c on c.oid = attrelid
         where attname = 'project_id' and relkind in ('r', 'p') and not relispartition and relnamespace = 'public'::regnamespace
         union
         select conrelid from pg_constraint join of_projects p on confrelid = p.oid where contype = 'f'
       )
       select distinct confrelid::regclass::text as name from pg_constraint
       where contype = 'f' and conrelid in (select oid from of_projects)
         and confrelid not in (select oid from of_projects) order by name`,
    )
    const referenced = references.map(({ name }) => name as string)
    assert.ok(referenced.includes('users') && referenced.includes('policies'), referenced.join())
    assert.deepEqual(
      referenced.filter(name => !names.includes(name)),
      OF_EACH_CELL,
    )
  })

  it('are of every table that the authorization of a user, key or grant reads', () => {
    const text = readFileSync(path.join(root, 'src/identity/principals/principal-store.ts'), 'utf8')
    const read = [...text.matchAll(/\b(?:from|join) (\w+) \w+ (?:join|on|where)\b|\bfrom (policies) where/g)].map(
      ([, first, other]) => first ?? other,
    )
    assert.deepEqual([...new Set(read)].sort(), names.filter(name => name !== 'prices').sort())
  })

  it('reference rows with rules that the trigger of a cell applies', async () => {
    const rules = await inHome(
      `select r.conrelid::regclass::text as name, r.confdeltype as rule, cardinality(r.conkey) as columns,
         exists (select from pg_constraint d where d.contype = 'f' and d.confrelid = r.conrelid
           and d.conrelid::regclass::text <> all ($1)) as deletes_more
       from pg_constraint r where r.contype = 'f' and r.confrelid::regclass::text = any ($1)
         and r.conrelid::regclass::text <> all ($1)`,
      [names],
    )
    const unknown = rules.filter(({ rule, columns }) => columns !== 1 || !['a', 'r', 'c', 'n'].includes(rule))
    assert.deepEqual(unknown, [])
    // Rows at home only, which cells do not have.
    const further = rules.filter(({ rule, deletes_more }) => rule === 'c' && deletes_more).map(({ name }) => name)
    assert.deepEqual(further, ['user_identities'])
  })

  it('have a changed policy with its commit', async () => {
    const { key, keyId } = await cells.project('second')
    assert.equal((await key.get('/conversations')).status, 200)
    const [policy] = (await bodyOf(cells.admin.get(`/project-keys/${keyId}`))).policy_ids
    const document = { statement: [{ effect: 'Deny', action: ['conversations:ListConversations'] }] }
    await bodyOf(cells.admin.patch(`/policies/${policy}`, { document }))
    await eventually(async () => (await key.get('/conversations')).status === 403, { within: EFFECTIVE_MS })
  })

  it('let a user of home act in a project of the cell until the user is disabled', async () => {
    const { id: project } = await cells.project('second')
    const { id, caller } = await member('cora')
    const key = await createdBy(caller, '/project-keys', { project_id: project })
    assert.equal(cellOfId(key.id), 1)
    const bound = cells.as(key.secret)
    assert.equal((await bound.get('/conversations')).status, 200)
    assert.equal((await caller.get(`/conversations?project_id=${project}`)).status, 200)
    await bodyOf(cells.admin.patch(`/users/${id}`, { disabled: true }))
    await eventually(async () => (await bound.get('/conversations')).status === 401, { within: EFFECTIVE_MS })
    assert.equal((await caller.get(`/conversations?project_id=${project}`)).status, 401)
  })

  it('end the keys and assignments of a deleted user in the cell', async () => {
    const { id: project } = await cells.project('second')
    const { id, caller } = await member('dora')
    const { id: keyId, secret } = await createdBy(caller, '/project-keys', { project_id: project })
    assert.equal((await cells.as(secret).get('/conversations')).status, 200)
    assert.equal((await cells.admin.delete(`/users/${id}`)).status, 204)
    await eventually(async () => (await cells.as(secret).get('/conversations')).status === 401, {
      within: EFFECTIVE_MS,
    })
    const left = await inSecond(
      'select id from users where id = $1 union all select id from project_keys where id = $2',
      [id, keyId],
    )
    assert.deepEqual(left, [])
  })

  it('are of keys without a project only, which lists have once', async () => {
    const { caller, policy } = await member('enno')
    const [home, other] = [await cells.project('home'), await cells.project('second')]
    const free = await createdBy(caller, '/project-keys', { policy_ids: [policy] })
    const bound = await createdBy(caller, '/project-keys', { project_id: home.id, policy_ids: [policy] })
    const far = await createdBy(caller, '/project-keys', { project_id: other.id })
    const copied = await inSecond(
      'select k.id, a.policy_id from project_keys k left join project_key_policies a on a.key_id = k.id where k.id = any ($1)',
      [[free.id, bound.id]],
    )
    assert.deepEqual(copied, [{ id: free.id, policy_id: policy }])
    assert.equal((await cells.as(free.secret).get(`/conversations?project_id=${other.id}`)).status, 200)
    const list = await bodyOf(caller.get('/project-keys'))
    assert.deepEqual(list.data.map(({ id }: any) => id).sort(), [free.id, bound.id, far.id].sort())
    assert.equal(list.total, 3)
    const unbound = await caller.patch(`/project-keys/${far.id}`, { project_id: null })
    assert.deepEqual(refusalOf(unbound), [400, 'VALIDATION_FAILED'])
    for (const [id, project_id] of [
      [bound.id, other.id],
      [far.id, home.id],
    ]) {
      const { status, body } = await caller.patch(`/project-keys/${id}`, { project_id })
      assert.deepEqual([status, body.error.meta?.problems[0].path], [400, 'project_id'])
    }
    // The copy of a key that is bound is deleted; a key that is unbound is copied with its policies.
    await bodyOf(caller.patch(`/project-keys/${free.id}`, { project_id: home.id }))
    assert.deepEqual(await inSecond('select key_id from project_key_policies where key_id = $1', [free.id]), [])
    for (const { id, secret } of [bound, free]) {
      await bodyOf(caller.patch(`/project-keys/${id}`, { project_id: null }))
      assert.equal((await inSecond('select key_id from project_key_policies where key_id = $1', [id])).length, 1)
      assert.equal((await cells.as(secret).get(`/conversations?project_id=${other.id}`)).status, 200)
    }
    assert.equal((await caller.delete(`/project-keys/${free.id}`)).status, 204)
    assert.equal((await caller.delete(`/project-keys/${bound.id}`)).status, 204)
    assert.deepEqual(await inSecond('select id from project_keys where id = any ($1)', [[free.id, bound.id]]), [])
  })

  it('are of the prices of all projects, which are listed once', async () => {
    const price = { meter_type: 'llm_tokens', provider: 'openai', model: 'copied', component: 'input', unit: 'token' }
    await bodyOf(
      cells.admin.put('/usage/prices', {
        prices: [{ ...price, unit_price: 0.5, effective_from: '2026-01-01T00:00:00Z' }],
      }),
    )
    const [copy] = await inSecond(`select unit_price::text from prices where model = 'copied'`)
    assert.equal(copy.unit_price, '0.5')
    assert.equal((await bodyOf(cells.admin.get('/usage/prices?model=copied'))).total, 1)
  })

  it('keep a policy that rows of a cell reference', async () => {
    const { policy: id } = await member('fred')
    const places = [await cells.project('home'), await cells.project('second')]
    for (const { key } of places)
      await postedBy(key, '/webhooks', { name: 'all', url: 'https://example.com/', events: ['*'], policy_id: id })
    const refusal = await cells.admin.delete(`/policies/${id}`)
    assert.deepEqual(refusalOf(refusal), [409, 'POLICY_HAS_DEPENDENTS'])
    assert.deepEqual(refusal.body.error.meta.counts, { users: 1, project_keys: 0, triggers: 0, webhooks: 2 })
    const attachments = await bodyOf(cells.admin.get(`/policies/${id}/attachments`))
    assert.deepEqual(
      attachments.data.map(({ type }: any) => type),
      ['user', 'webhook', 'webhook'],
    )
    assert.equal(attachments.total, 3)
  })

  it('do not report a fault of a cell as its absence', async () => {
    const { policy } = await member('faulty')
    await inSecond('alter table webhooks rename to webhooks_of_test')
    try {
      for (const reply of [
        await cells.admin.get(`/policies/${policy}/attachments`),
        await cells.admin.delete(`/policies/${policy}`),
      ])
        assert.deepEqual(refusalOf(reply), [500, 'INTERNAL_ERROR'])
    } finally {
      await inSecond('alter table webhooks_of_test rename to webhooks')
    }
    assert.equal((await cells.admin.get(`/policies/${policy}/attachments`)).status, 200)
  })

  it('of grants are deleted with their project, and the grant at home, if needed by a sweep', async () => {
    const projects = [await cells.project('home'), await cells.project('second')]
    const grantOf = (id: string, project: string) =>
      inHome(
        `insert into oauth_grants (id, user_id, project_id, client_id, scopes, openid_scopes, ends_at, expires_at)
         select $1, id, $2, 'client', '{}', '{}', now() + interval '1 day', now() + interval '1 day' from users limit 1`,
        [id, project],
      )
    for (const [index, { id }] of projects.entries()) await grantOf(`grant_${index}`, id)
    const grants = `select id from oauth_grants where client_id = 'client' order by id`
    assert.equal((await inSecond(grants)).length, 2)
    for (const { id } of projects) assert.equal((await cells.admin.delete(`/projects/${id}?force=true`)).status, 204)
    assert.deepEqual(await inSecond(grants), [])
    await eventually(async () => (await inHome(grants)).length === 0)
    // As if the process had ended between the two deletions.
    await grantOf('grant_2', projects[1].id)
    await sweep(cells, 'identity.sweep')
    assert.deepEqual(await inHome(grants), [])
  })

  it('have managed policies and the first admin of home only', async () => {
    const count = `select (select count(*)::int from policies where managed) as managed, (select count(*)::int from policy_versions) as versions`
    assert.deepEqual(await inSecond(count), [{ managed: 3, versions: 0 }])
  })

  it('survive a column that one of the databases lacks', async () => {
    await inHome(`alter table users add column added_at_home text default 'here'`)
    await inSecond(`alter table users add column added_in_cell text not null default 'there'`)
    const { id } = await member('gina')
    assert.deepEqual(await inSecond('select username, added_in_cell from users where id = $1', [id]), [
      { username: 'gina', added_in_cell: 'there' },
    ])
    await inHome('alter table users drop column added_at_home')
    await inSecond('alter table users drop column added_in_cell')
  })

  it('are made again after they were stopped', async () => {
    await stopCopies(cells.services, second(cells))
    const { id, policy } = await member('hans')
    const stale = await member('stale')
    assert.deepEqual(await inSecond('select id from users where id = $1', [id]), [])
    await startCopies(cells.services, second(cells))
    await startCopies(cells.services, second(cells))
    assert.equal((await inSecond('select policy_id from user_policies where policy_id = $1', [policy])).length, 1)
    await stopCopies(cells.services, second(cells))
    assert.equal((await cells.admin.delete(`/users/${stale.id}`)).status, 204)
    await startCopies(cells.services, second(cells))
    assert.deepEqual(await inSecond('select id from users where id = $1', [stale.id]), [])
    const differences = await inHome(
      `select id from users where not exists (select from cell_second.users c where c = users) union all
       select id from policies p where not exists (select from cell_second.policies c where to_jsonb(c) = to_jsonb(p))`,
    )
    assert.deepEqual(differences, [])
  })

  it('are made again by a sweep if the cell was restored from a backup, and only then', async () => {
    const { id, policy, caller } = await member('iris')
    const { id: keyId } = await createdBy(caller, '/project-keys', { policy_ids: [policy] })
    await inHome(
      `insert into oauth_grants (id, user_id, project_id, client_id, scopes, openid_scopes, ends_at, expires_at)
       values ('grant_of_deleted', $1, 'project_of_cell', 'client', '{}', '{}', now() + interval '1 day', now() + interval '1 day')`,
      [id],
    )
    // What a cell does to its copies.
    await inSecond('update project_keys set last_used_at = now(), browser_used_at = now() where id = $1', [keyId])
    await inSecond(`delete from oauth_grants where id = 'grant_of_deleted'`)
    const triggers = () => inHome(`select oid from pg_trigger where tgname = 'copy_to_cell_second' order by oid`)
    const before = await triggers()
    await sweep(cells, 'copies in cells')
    assert.deepEqual(await triggers(), before)

    await inSecond('update users set disabled_at = now() where id = $1', [id])
    await inSecond('delete from user_policies where user_id = $1', [id])
    await inSecond('delete from project_key_policies where key_id = $1', [keyId])
    const { differing, problems } = await copiesState(cells.services, second(cells))
    assert.deepEqual(differing, ['users', 'user_policies', 'project_key_policies'])
    assert.deepEqual(problems, [
      'Rows of users, user_policies, project_key_policies in the cell second differ from home',
    ])
    await sweep(cells, 'copies in cells')
    const copies = `select u.disabled_at, p.policy_id as of_user, k.policy_id as of_key
      from users u join user_policies p on p.user_id = u.id join project_key_policies k on k.key_id = $2 where u.id = $1`
    assert.deepEqual(await inSecond(copies, [id, keyId]), [{ disabled_at: null, of_user: policy, of_key: policy }])
    assert.deepEqual((await copiesState(cells.services, second(cells))).problems, [])
  })

  it('are not started by a sweep for a cell that is taken down before its turn', async () => {
    const command = new DatabaseClient({ connectionString: cells.home })
    await command.connect()
    await command.query(`select pg_advisory_lock(hashtext('muster copies'))`)
    const swept = sweep(cells, 'copies in cells')
    const waiting = `select from pg_locks join pg_database d on d.oid = database and datname = current_database()
      where locktype = 'advisory' and not granted`
    await eventually(async () => (await inHome(waiting)).length > 0)
    await inHome(`update cells set state = 'down'`)
    for (const name of names) await inHome(`drop trigger copy_to_cell_second on ${name}`)
    await command.end()
    await swept
    assert.deepEqual(await inHome(`select from pg_trigger where tgname = 'copy_to_cell_second'`), [])
  })
})

describe('copies of the rows of home in another database', function () {
  this.timeout(180_000)
  const double = forSuite(() => startDouble({}))
  const cells = forSuite(() => startCells({ servers: true }))
  const inHome = (text: string, values?: unknown[]) => cells.rows(cells.home, text, values)
  const inSecond = (text: string, values?: unknown[]) => cells.rows(cells.second, text, values)

  /** Replays nothing in the cell while work runs. */
  async function withoutReplay<T>(work: () => Promise<T>): Promise<T> {
    const [{ name }] = await inSecond('select subname as name from pg_subscription')
    await inSecond(`alter subscription ${name} disable`)
    try {
      return await work()
    } finally {
      await inSecond(`alter subscription ${name} enable`)
    }
  }

  const newPolicy = (statement: object = { effect: 'Allow', action: ['*'] }) =>
    cells.admin.post('/policies', { document: { statement: [statement] } })

  /** A new policy that the cell has; null if it was announced as missing. */
  const copiedPolicy = async () => {
    const reply = await newPolicy()
    return reply.headers.get('x-svc-replication') === null ? reply : null
  }

  it('are there before a change at home is answered', async () => {
    for (let count = 0; count < 5; count++) {
      const { body } = await eventually(copiedPolicy)
      assert.equal((await inSecond('select id from policies where id = $1', [body.id])).length, 1)
    }
    assert.equal((await inSecond(`select role from users where role = 'admin'`)).length, 1)
    assert.equal((await inSecond('select id from policies where managed')).length, 3)
  })

  it('are announced as missing if the cell does not replay them within a second, and arrive later', async () => {
    const { headers, body } = await withoutReplay(() => newPolicy())
    assert.equal(headers.get('x-svc-replication'), 'behind')
    await eventually(async () => (await inSecond('select id from policies where id = $1', [body.id])).length === 1)
  })

  it('are not waited for by a sign-in', async () => {
    const { status, headers } = await withoutReplay(() => cells.as(null).post('/users/login', ADMIN))
    assert.deepEqual([status, headers.get('x-svc-replication')], [200, null])
  })

  it('are not waited for while the cell is known to replay nothing', async () => {
    await withoutReplay(() =>
      eventually(
        async () => {
          const since = performance.now()
          const { headers } = await newPolicy()
          return headers.get('x-svc-replication') === 'behind' && performance.now() - since < BARRIER_MS
        },
        { within: 30_000 },
      ),
    )
    await eventually(copiedPolicy)
  })

  it('apply in every process within five seconds', async () => {
    const { key, keyId } = await cells.project('second')
    const other = await startProcess('web', cells.home, cells.env)
    try {
      const there = client(other.url, key.token)
      const status = async () => (await there.get('/conversations')).status
      assert.equal(await status(), 200)
      const [policy] = (await bodyOf(cells.admin.get(`/project-keys/${keyId}`))).policy_ids
      const document = { statement: [{ effect: 'Deny', action: ['conversations:ListConversations'] }] }
      await bodyOf(cells.admin.patch(`/policies/${policy}`, { document }))
      await eventually(async () => (await status()) === 403, { within: EFFECTIVE_MS })
    } finally {
      await other.kill('SIGTERM')
    }
  })

  it('notify the processes of the cell when they arrive', async () => {
    const { body: policy } = await newPolicy()
    const services = await openServices(loadConfig(testEnvironment(cells.second)), {
      log: silentLog(),
      role: 'cli',
    })
    try {
      const received: string[] = []
      await services.notifications.listen('muster_principals', source => received.push(source)).ready
      await bodyOf(cells.admin.patch(`/policies/${policy.id}`, { name: 'renamed' }))
      await eventually(() => received.includes(`policy:${policy.id}`))
    } finally {
      await services.close()
    }
  })

  it('end the keys and assignments of a deleted user in the cell', async () => {
    const { id: project, key } = await cells.project('second')
    const user = await createdBy(cells.admin, '/users', { username: 'ida', password: 'correct horse battery' })
    await inSecond(
      `insert into project_keys (id, key_hash, key_prefix, user_id, project_id) values ('key_of_ida', '\\x01', 'sk_', $1, $2)`,
      [user.id, project],
    )
    const { body: policy } = await newPolicy()
    await inSecond(`insert into project_key_policies values ('key_of_ida', $1, 1)`, [policy.id])
    const provider = await createdBy(key, '/ai-providers', {
      name: 'double',
      provider: 'custom',
      default_model: 'double-1',
      base_url: `${double.url}/v1`,
    })
    const agent = await createdBy(key, '/agents', { name: 'Helper', ai_provider_id: provider.id })
    const session = await createdBy(key, '/sessions', { agent_id: agent.id })
    await inSecond('update sessions set assigned_to = $1 where id = $2', [user.id, session.id])
    assert.equal((await cells.admin.delete(`/users/${user.id}`)).status, 204)
    await eventually(async () => (await inSecond(`select id from project_keys where id = 'key_of_ida'`)).length === 0)
    assert.deepEqual(await inSecond(`select key_id from project_key_policies where key_id = 'key_of_ida'`), [])
    assert.deepEqual(await inSecond('select assigned_to, assigned_at from sessions where id = $1', [session.id]), [
      { assigned_to: null, assigned_at: null },
    ])
  })

  it('keep a policy that a row of the cell references while its delete arrives', async () => {
    const { key, id: project } = await cells.project('second')
    const { body: policy } = await newPolicy()
    const webhook = { name: 'all', url: 'https://example.com/', events: ['*'], policy_id: policy.id }
    await withoutReplay(async () => {
      assert.equal((await cells.admin.delete(`/policies/${policy.id}`)).status, 204)
      await postedBy(key, '/webhooks', webhook)
    })
    const { body: next } = await newPolicy()
    await eventually(async () => (await inSecond('select id from policies where id = $1', [next.id])).length === 1)
    const found = await inSecond(
      'select p.id from policies p join webhooks w on w.policy_id = p.id where w.project_id = $1',
      [project],
    )
    assert.deepEqual(found, [{ id: policy.id }])
  })

  it('refuse the delete of a policy while a cell cannot be read', async () => {
    const deleted = async () => {
      const { body } = await newPolicy()
      return cells.admin.delete(`/policies/${body.id}`)
    }
    await inHome(`update cells set state = 'down'`)
    const refusal = await eventually(async () => {
      const reply = await deleted()
      return reply.status === 503 ? reply : null
    })
    assert.equal(refusal.body.error.code, 'CELL_UNAVAILABLE')
    await inHome(`update cells set state = 'open'`)
    await eventually(async () => (await deleted()).status === 204)
  })

  it('continue after a crash of either server', async () => {
    const isCopied = async () => {
      const { body } = await eventually(async () => {
        const reply = await newPolicy().catch(() => null)
        return reply?.status === 201 ? reply : null
      })
      await eventually(async () => {
        const found = await inSecond('select id from policies where id = $1', [body.id]).catch(() => [])
        return found.length === 1
      })
    }
    await cells.restartHome?.()
    await isCopied()
    await cells.kill?.()
    await cells.restart?.()
    await isCopied()
    assert.equal((await copiesState(cells.services, second(cells))).by, 'replication')
  })

  it('are stopped without an answer of the cell, and made again when it is back', async () => {
    await cells.kill?.()
    await stopCopies(cells.services, second(cells))
    assert.deepEqual(await inHome('select slot_name from pg_replication_slots'), [])
    const { body } = await newPolicy()
    await cells.restart?.()
    await startCopies(cells.services, second(cells))
    assert.equal((await inSecond('select id from policies where id = $1', [body.id])).length, 1)
    await eventually(copiedPolicy)
  })

  it('are made again when the slot was lost, with the changes since', async () => {
    const { body: deleted } = await newPolicy()
    await stopCopies(cells.services, second(cells))
    assert.deepEqual((await copiesState(cells.services, second(cells))).by, null)
    const { body: added } = await newPolicy()
    assert.equal((await cells.admin.delete(`/policies/${deleted.id}`)).status, 204)
    await startCopies(cells.services, second(cells))
    await startCopies(cells.services, second(cells))
    assert.deepEqual(await inSecond('select id from policies where id = any ($1)', [[added.id, deleted.id]]), [
      { id: added.id },
    ])
    const reply = await eventually(copiedPolicy)
    assert.equal((await inSecond('select id from policies where id = $1', [reply.body.id])).length, 1)
  })

  it('are made again by a sweep when home has removed their log', async () => {
    await inHome(
      `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = (select slot_name from pg_replication_slots)`,
    )
    await eventually(() =>
      inHome('select pg_drop_replication_slot(slot_name) from pg_replication_slots').then(
        () => true,
        () => false,
      ),
    )
    const { body } = await newPolicy()
    await sweep(cells, 'copies in cells')
    assert.equal((await inSecond('select id from policies where id = $1', [body.id])).length, 1)
    await eventually(copiedPolicy)
  })

  it('are made by a sweep from another address of home', async () => {
    const [{ oid, name }] = await inSecond('select oid, subname as name from pg_subscription')
    await inSecond(
      `alter subscription ${name} connection 'host=127.0.0.1 port=1 user=nobody dbname=none password=none'`,
    )
    await eventually(async () => (await inHome('select from pg_replication_slots where active')).length === 0)
    const { body } = await newPolicy()
    await sweep(cells, 'copies in cells')
    await eventually(async () => (await inSecond('select id from policies where id = $1', [body.id])).length === 1)
    assert.deepEqual(await inSecond('select oid, subname as name from pg_subscription'), [{ oid, name }])
  })

  it('are made again by a sweep if the cell was restored from a backup, and only then', async () => {
    const subscription = async () => (await inSecond('select oid from pg_subscription'))[0].oid
    // What a cell has, or does to its copies: policies of keys at home, its use of keys, and policies that it requires.
    const { id: project, key } = await cells.project('second')
    await cells.project('home')
    const free = await createdBy(cells.admin, '/project-keys', {})
    const { body: required } = await newPolicy()
    await eventually(copiedPolicy)
    await postedBy(key, '/webhooks', {
      name: 'all',
      url: 'https://example.com/',
      events: ['*'],
      policy_id: required.id,
    })
    await inHome('delete from policies where id = $1', [required.id])
    await inSecond('update project_keys set last_used_at = now() where id = $1', [free.id])
    await eventually(copiedPolicy)
    const before = await subscription()
    await sweep(cells, 'copies in cells')
    assert.deepEqual((await copiesState(cells.services, second(cells))).differing, [])
    assert.equal(await subscription(), before)

    const { body: narrowed } = await newPolicy()
    await eventually(copiedPolicy)
    await inSecond(`update policies set document = '{"statement": []}' where id = $1`, [narrowed.id])
    await inSecond(`insert into users (id, username, role) values ('user_of_backup', 'deleted', 'admin')`)
    await inSecond('delete from project_keys where id = $1', [free.id])
    const { differing } = await copiesState(cells.services, second(cells))
    assert.deepEqual(differing, ['users', 'policies', 'project_keys'])
    await sweep(cells, 'copies in cells')
    assert.notEqual(await subscription(), before)
    assert.deepEqual(await inSecond('select document from policies where id = $1', [narrowed.id]), [
      { document: narrowed.document },
    ])
    assert.deepEqual(await inSecond(`select id from users where id = 'user_of_backup'`), [])
    assert.equal((await inSecond('select id from project_keys where id = $1', [free.id])).length, 1)
    assert.equal((await inSecond('select id from webhooks where project_id = $1', [project])).length, 1)
    await eventually(copiedPolicy)
  })

  it('have the policies of a key that is unbound', async () => {
    const { id: project } = await cells.project('home')
    const { body: policy } = await newPolicy()
    const key = await createdBy(cells.admin, '/project-keys', { policy_ids: [policy.id] })
    const policies = () => inSecond('select policy_id from project_key_policies where key_id = $1', [key.id])
    await eventually(async () => (await policies()).length === 1)
    await bodyOf(cells.admin.patch(`/project-keys/${key.id}`, { project_id: project }))
    await eventually(async () => (await policies()).length === 0)
    await bodyOf(cells.admin.patch(`/project-keys/${key.id}`, { project_id: null }))
    await eventually(async () => (await policies()).length === 1)
  })

  it('are made again by a sweep if a row of the cell keeps them from being replayed', async () => {
    await inSecond(`insert into users (id, username) values ('user_in_the_way', 'jack')`)
    const { id } = await createdBy(cells.admin, '/users', { username: 'jack', password: 'correct horse battery' })
    // A sweep leaves a subscription whose position still moves to the next one.
    await eventually(async () => {
      await sweep(cells, 'copies in cells')
      return (await inSecond(`select id from users where username = 'jack'`))[0].id === id
    })
    await eventually(copiedPolicy)
  })

  it('are possible between databases of one server, in the schema of home', async () => {
    await inHome('create database third')
    const url = new URL(cells.home)
    url.pathname = '/third'
    const third = { name: 'third', number: 2, url: url.href }
    await migrate(third.url)
    await startCopies(cells.services, third)
    const { body } = await newPolicy()
    await eventually(
      async () => (await cells.rows(third.url, 'select id from policies where id = $1', [body.id])).length === 1,
    )
    await stopCopies(cells.services, third)
    url.searchParams.set('schema', 'cell_third')
    await migrate(url.href)
    await assert.rejects(
      startCopies(cells.services, { ...third, url: url.href }),
      /requires the schema of home, public/,
    )
  })

  it('of two deployments in one database are separate, also with the same name of a cell', async () => {
    const home = new URL(cells.home)
    home.searchParams.set('schema', 'other_home')
    await inHome('create database fourth')
    const cell = new URL(home)
    cell.pathname = '/fourth'
    await Promise.all([migrate(home.href), migrate(cell.href)])
    const other = await openServices(loadConfig(testEnvironment(home.href)), { log: silentLog(), role: 'cli' })
    const fourth = { name: 'second', number: 1, url: cell.href }
    try {
      await startCopies(other, fourth)
      assert.equal((await copiesState(other, fourth)).by, 'replication')
      const copiesOf = async () => {
        const [here, there] = [await readCopies(cells.services, [second(cells)]), await readCopies(other, [fourth])]
        return [here.get('second')?.copies, there.get('second')?.copies]
      }
      assert.deepEqual(await copiesOf(), ['replication', 'replication'])
      await stopCopies(other, fourth)
      assert.deepEqual(await copiesOf(), ['replication', null])
      assert.equal((await copiesState(cells.services, second(cells))).by, 'replication')
      await eventually(copiedPolicy)
    } finally {
      await other.close()
    }
  })
})

describe('copies of the rows of home by a server without logical decoding', () => {
  it('are refused with its setting', async () => {
    const [here, there] = [await cloneTemplate(), await cloneTemplate()]
    const home = await openServices(loadConfig(testEnvironment(here.url)), { log: silentLog(), role: 'cli' })
    try {
      const cell = { name: 'other', number: 1, url: there.url }
      await assert.rejects(startCopies(home, cell), /wal_level = minimal; .* requires wal_level = logical/)
    } finally {
      await home.close()
      await Promise.all([here.drop(), there.drop()])
    }
  })
})
