import assert from 'node:assert/strict'
import { cellOfId, cellOfToken } from '#core/base/ids.ts'
import { startDouble } from '#local/double/server.ts'
import { type Client, eventually } from '../support/app.ts'
import { startCells, type TestCells } from '../support/cells.ts'
import { startProcess } from '../support/processes.ts'
import { postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const CELLS = ['home', 'second']

describe('a deployment with cells', function () {
  this.timeout(120_000)
  const double = forSuite(() => startDouble({}))
  const cells = forSuite(() => startCells({ workers: true }))

  it('keeps a project, its records and its keys in the cell that the admin names', async () => {
    for (const [index, name] of CELLS.entries()) {
      const { id, key } = await cells.project(name)
      assert.deepEqual([cellOfId(id), cellOfToken(key.token as string)], [index, index])
      const made = await postedBy(key, '/conversations', { name: 'Table' })
      assert.equal(cellOfId(made.id), index)
      for (const caller of [key, cells.admin]) assert.equal((await caller.get(`/conversations/${made.id}`)).status, 200)
      const found = await Promise.all(
        [cells.home, cells.second].map(async url => {
          const [{ count }] = await cells.rows(url, 'select count(*)::int as count from projects where id = $1', [id])
          return count
        }),
      )
      assert.deepEqual(found, [1 - index, index])
    }
  })

  it('runs turns of projects of every cell, in web and worker processes', async () => {
    for (const name of CELLS) {
      const session = await newSession((await cells.project(name)).key, double.url)
      for (const query of ['?wait=true', '']) {
        await postedBy(session.key, `/sessions/${session.id}/messages`, { message: 'Hello' })
        const { body } = await session.key.post(`/sessions/${session.id}/generate${query}`)
        await completed(session.key, body.generation_id)
      }
    }
  })

  it('has the policies of its formations at home', async () => {
    const { id } = await cells.project('second')
    const policy = (action: string) => ({
      type: 'policy',
      properties: {
        name: 'of a formation',
        document: { statement: [{ effect: 'Allow', action: [action], resource: [`srn:${id}:*:*`] }] },
      },
    })
    const template = (action: string) => ({
      resources: {
        Policy: policy(action),
        Key: { type: 'api_key', properties: { name: 'one', policy_ids: [{ ref: 'Policy' }] } },
      },
    })
    const settled = (formation: string) =>
      eventually(async () => {
        const { body } = await cells.admin.get(`/formations/${formation}`)
        return ['active', 'failed'].includes(body.status) && body
      })
    const made = await cells.admin.post('/formations', {
      project_id: id,
      name: 'stack',
      template: template('conversations:*'),
    })
    assert.ok(made.status < 300, JSON.stringify(made.body))
    const formation = await settled(made.body.id)
    assert.equal(formation.status, 'active', JSON.stringify(formation))
    const idOf = (logicalId: string) =>
      formation.resources.find((each: { logical_id: string }) => each.logical_id === logicalId).physical_resource_id
    const path = `/policies/${idOf('Policy')}`
    const actions = async () => (await cells.admin.get(path)).body.document?.statement[0].action
    assert.deepEqual(await actions(), ['conversations:*'])
    assert.equal((await cells.admin.delete(path)).status, 409)
    const changed = await cells.admin.put(`/formations/${formation.id}`, { template: template('actors:*') })
    assert.ok(changed.status < 300, JSON.stringify(changed.body))
    await eventually(async () => (await actions())?.[0] === 'actors:*')
    await settled(formation.id)
    const rows = (databaseUrl: string) =>
      cells.rows(databaseUrl, 'select document::text from policies where id = $1', [idOf('Policy')])
    assert.deepEqual(await rows(cells.second), await rows(cells.home))
    const deleted = await cells.admin.delete(`/formations/${formation.id}`)
    assert.ok(deleted.status < 300, JSON.stringify(deleted.body))
    await eventually(async () => (await cells.admin.get(path)).status === 404)
    await eventually(async () => (await rows(cells.second)).length === 0)
  })

  it('is served by separate workers, which take over what a lost worker held', async () => {
    const { key } = await cells.project('second')
    const session = await newSession(key, double.url)
    const only = {
      ...cells.env,
      WORKER_CELLS: 'second',
      WORKER_HEARTBEAT_INTERVAL_MS: '500',
      WORKER_HEARTBEAT_STALE_MS: '2000',
    }
    await cells.worker?.kill('SIGTERM')
    const slow = [{ delay_ms: 3000, text: 'Late' }]
    await postedBy(key, `/sessions/${session.id}/messages`, { message: `@double ${JSON.stringify(slow)}` })
    const first = await startProcess('worker', cells.home, only)
    const { body } = await key.post(`/sessions/${session.id}/generate`)
    await eventually(async () => (await key.get(`/generations/${body.generation_id}`)).body.status === 'in_progress')
    await first.kill()
    const next = await startProcess('worker', cells.home, only)
    await completed(key, body.generation_id)
    const { key: atHome } = await cells.project('home')
    const waiting = await newSession(atHome, double.url)
    await postedBy(atHome, `/sessions/${waiting.id}/messages`, { message: 'Hello' })
    const queued = await atHome.post(`/sessions/${waiting.id}/generate`)
    await turnOf(session)
    assert.equal((await atHome.get(`/generations/${queued.body.generation_id}`)).body.status, 'pending')
    const all = await startProcess('worker', cells.home, cells.env)
    await completed(atHome, queued.body.generation_id)
    await Promise.all([next.kill('SIGTERM'), all.kill('SIGTERM')])
  })

  it('shows prices of all projects once, to credentials of its projects too', async () => {
    const price = { model: 'priced', component: 'input_tokens', unit: 'token', unit_price: 0.1, provider: 'one' }
    const written = await cells.admin.put('/usage/prices', {
      prices: [{ ...price, effective_from: '2026-01-01T00:00:00.000Z' }],
    })
    assert.equal(written.status, 200, JSON.stringify(written.body))
    const [home, second] = [await cells.project('home'), await cells.project('second')]
    for (const caller of [cells.admin, home.key, second.key]) {
      const { body } = await caller.get('/usage/prices?model=priced')
      assert.deepEqual([body.total, body.data[0]?.unit_price], [1, 0.1])
    }
  })

  it('requires a project of what cannot be merged, and pages that begin early', async () => {
    const search = await cells.admin.post('/knowledge/search', { query: 'x' })
    const page = await cells.admin.get('/conversations?offset=10001')
    assert.deepEqual(
      [search, page].map(({ status, body }) => [status, body.error.meta.problems[0].path]),
      [
        [400, 'project_id'],
        [400, 'offset'],
      ],
    )
    const { id } = await cells.project('second')
    assert.equal((await cells.admin.post('/knowledge/search', { query: 'x', project_id: id })).status, 200)
    assert.equal((await cells.admin.get(`/conversations?offset=10001&project_id=${id}`)).status, 200)
  })

  it('keeps keys without a project at home, whatever project a request names', async () => {
    const { id } = await cells.project('second')
    const key = await postedBy(cells.admin, '/project-keys', { name: 'Unbound' })
    const renamed = await cells.admin.patch(`/project-keys/${key.id}?project_id=${id}`, { name: 'Renamed' })
    assert.equal(renamed.status, 200, JSON.stringify(renamed.body))
    const bound = await cells.admin.patch(`/project-keys/${key.id}`, { project_id: id })
    assert.ok(bound.status >= 400, JSON.stringify(bound.body))
    assert.equal((await cells.admin.delete(`/project-keys/${key.id}?project_id=${id}`)).status, 204)
    await eventually(async () => (await cells.as(key.secret).get('/me')).status === 401)
  })

  it('answers for another project of the same cell, of another one, and of none alike', async () => {
    const [mine, same, other] = [
      await cells.project('second'),
      await cells.project('second'),
      await cells.project('home'),
    ]
    const refusals = []
    for (const { key } of [same, other]) {
      const { id } = await postedBy(key, '/conversations', { name: 'Theirs' })
      const { status, body } = await mine.key.get(`/conversations/${id}`)
      refusals.push([status, body.error.code, Object.keys(body.error.meta ?? {})])
    }
    const { status, body } = await mine.key.get(`/conversations/conv_${'7'.repeat(26)}`)
    refusals.push([status, body.error.code, Object.keys(body.error.meta ?? {})])
    assert.deepEqual(refusals[0], refusals[2])
    assert.deepEqual(refusals[1], refusals[2])
  })
})

describe('a cell whose schema is renamed by a move, in a process that has not closed it', function () {
  this.timeout(120_000)
  const cells = forSuite(() => startCells({}))

  it('is unavailable, and answers after the schema has its name again', async () => {
    const { id, key } = await cells.project('second')
    const conversation = await postedBy(key, '/conversations', { name: 'Kept' })
    const path = `/conversations/${conversation.id}`
    const reads = () =>
      Promise.all([
        key.get(path),
        key.get('/conversations'),
        key.post('/conversations', { name: 'Refused' }),
        cells.admin.get(path),
        cells.admin.get(`/projects/${id}`),
        cells.admin.get('/conversations'),
      ])
    // Some of the statements are prepared.
    for (let count = 0; count < 12; count++) await reads()
    await cells.rows(cells.home, 'alter schema cell_second rename to cell_second_moved')
    // As the fence does, so that the search path has a schema.
    await cells.rows(cells.home, 'create schema cell_second')
    for (const { status, headers, body } of await reads())
      assert.deepEqual(
        [status, body.error?.code, body.error?.meta, headers.get('retry-after')],
        [503, 'CELL_UNAVAILABLE', { cell: 'second' }, '5'],
      )
    await cells.rows(cells.home, 'drop schema cell_second')
    for (const { status } of await reads()) assert.equal(status, 503)
    await cells.rows(cells.home, 'alter schema cell_second_moved rename to cell_second')
    await eventually(async () => (await key.get(path)).status === 200)
    assert.equal(
      (await key.get('/conversations')).body.data.some((each: { name: string }) => each.name === 'Refused'),
      true,
    )
  })
})

describe('a cell that lacks one table', () => {
  const cells = forSuite(() => startCells({}))

  it('has a fault, which is not answered as a move', async () => {
    const { key } = await cells.project('second')
    await cells.rows(cells.home, 'alter table cell_second.conversations rename to gone')
    const { status, body } = await key.get('/conversations')
    await cells.rows(cells.home, 'alter table cell_second.gone rename to conversations')
    assert.deepEqual([status, body.error.code], [500, 'INTERNAL_ERROR'])
  })
})

describe('a cell whose server is lost', function () {
  this.timeout(180_000)
  const double = forSuite(() => startDouble({}))
  const cells = forSuite(() => startCells({ servers: true, workers: true }))

  it('answers 503 that names it, and is back after its return, without a restart; others are not affected', async () => {
    const [home, second] = [await cells.project('home'), await cells.project('second')]
    const conversation = await postedBy(second.key, '/conversations', { name: 'Kept' })
    const before = await newSession(second.key, double.url)
    await cells.kill?.()
    for (const [caller, path] of [
      [second.key, `/conversations/${conversation.id}`],
      [cells.admin, `/conversations/${conversation.id}`],
      [cells.admin, `/conversations?project_id=${second.id}`],
      [cells.admin, '/conversations'],
      [second.key, '/conversations'],
    ] as [Client, string][]) {
      const started = performance.now()
      const { status, body } = await caller.get(path)
      assert.deepEqual(
        [status, body.error?.code, body.error?.meta],
        [503, 'CELL_UNAVAILABLE', { cell: 'second' }],
        path,
      )
      assert.ok(performance.now() - started < 6000, path)
    }
    assert.equal((await home.key.post('/conversations', { name: 'Unaffected' })).status, 201)
    await turnOf(await newSession(home.key, double.url))
    assert.equal((await cells.admin.get(`/projects/${home.id}`)).status, 200)
    const ready = await fetch(`${cells.url}/readyz`)
    assert.equal(ready.status, 200)
    await cells.restart?.()
    await eventually(async () => (await second.key.get(`/conversations/${conversation.id}`)).status === 200)
    await turnOf(before)
  })

  it('answers alike for a hidden and an unknown item while it is down and may have it', async () => {
    const [home, own] = [await cells.project('home'), await cells.project('home')]
    const { id: hidden } = await postedBy(home.key, '/conversations', { name: 'Hidden' })
    const { id: visible } = await postedBy(own.key, '/conversations', { name: 'Visible' })
    const statement = [{ effect: 'Allow', action: ['conversations:*'], resource: [`srn:${own.id}:*:*`] }]
    const policy = await postedBy(cells.admin, '/policies', { document: { statement } })
    const [nobody, member] = await Promise.all(
      [[], [policy.id]].map(async (policy_ids, index) => {
        const credentials = { username: `user${index}`, password: 'a fine password' }
        const { id } = await postedBy(cells.admin, '/users', credentials)
        assert.equal((await cells.admin.put(`/users/${id}/policies`, { policy_ids })).status, 204)
        return cells.as((await cells.as(null).post('/users/login', credentials)).body.token)
      }),
    )
    const unknown = `conv_${'7'.repeat(26)}`
    const answersTo = async (caller: Client) => {
      const [one, other] = await Promise.all([hidden, unknown].map(id => caller.get(`/conversations/${id}`)))
      assert.deepEqual([one.status, one.body.error.code], [other.status, other.body.error.code])
      return one.status
    }
    const answers = () => Promise.all([nobody, member].map(answersTo))
    assert.deepEqual(await answers(), [403, 404])
    const left = [`proj_${'7'.repeat(26)}`]
    await cells.rows(
      cells.home,
      `insert into project_cells (project_id, cell, numbers) values ($1, 'second', '{0}')`,
      left,
    )
    await cells.kill?.()
    // Until the web process has read the entry, the item is known to be at home.
    await eventually(async () => (await member.get(`/conversations/${unknown}`)).status === 503)
    assert.deepEqual(await answers(), [503, 503])
    const atHome = await cells.admin.get(`/policies/pol_${'7'.repeat(26)}`)
    assert.equal(atHome.status, 404)
    for (const caller of [member, cells.admin])
      assert.equal((await caller.get(`/conversations/${visible}`)).status, 200)
    await cells.restart?.()
    await eventually(async () => (await member.get(`/conversations/${unknown}`)).status === 404)
    assert.deepEqual(await answers(), [403, 404])
    await cells.rows(cells.home, 'delete from project_cells where project_id = $1', left)
  })

  it('that is silent is as if it were lost', async () => {
    const { key } = await cells.project('second')
    const conversation = await postedBy(key, '/conversations', { name: 'Kept' })
    const path = `/conversations/${conversation.id}`
    cells.silence?.()
    try {
      await eventually(async () => (await key.get(path)).body.error?.code === 'CELL_UNAVAILABLE', { within: 8000 })
      const started = performance.now()
      assert.equal((await cells.admin.get(path)).status, 503)
      assert.ok(performance.now() - started < 6000)
      await turnOf(await newSession((await cells.project('home')).key, double.url))
    } finally {
      cells.silence?.(false)
    }
    await eventually(async () => (await key.get(path)).status === 200)
  })

  it('does not keep processes from starting, which open it when it answers', async () => {
    const { key } = await cells.project('second')
    const conversation = await postedBy(key, '/conversations', { name: 'Kept' })
    await cells.kill?.()
    const web = await restarted(cells)
    const path = `${web.url}/api/v1/conversations/${conversation.id}`
    const headers = { authorization: `Bearer ${key.token}` }
    const refused = await fetch(path, { headers })
    assert.deepEqual([refused.status, ((await refused.json()) as any).error.code], [503, 'CELL_UNAVAILABLE'])
    await cells.restart?.()
    await eventually(async () => (await fetch(path, { headers })).status === 200)
    await web.kill('SIGTERM')
  })
})

type Session = { id: string; key: Client }

/** A session with an agent on the model double. */
async function newSession(key: Client, doubleUrl: string): Promise<Session> {
  const provider = await postedBy(key, '/ai-providers', {
    name: 'double',
    provider: 'custom',
    default_model: 'double-1',
    base_url: `${doubleUrl}/v1`,
  })
  const agent = await postedBy(key, '/agents', { name: 'Helper', ai_provider_id: provider.id })
  const { id } = await postedBy(key, '/sessions', { agent_id: agent.id })
  return { id, key }
}

const completed = (key: Client, id: string) =>
  eventually(async () => {
    const { body } = await key.get(`/generations/${id}`)
    return body.status === 'completed'
  })

/** Has a turn of a session executed by a worker. */
async function turnOf({ id, key }: Session): Promise<void> {
  await postedBy(key, `/sessions/${id}/messages`, { message: 'Hello' })
  const { body } = await key.post(`/sessions/${id}/generate`)
  await completed(key, body.generation_id)
}

const restarted = (cells: TestCells) => startProcess('web', cells.home, cells.env)
