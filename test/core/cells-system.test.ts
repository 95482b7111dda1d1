import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { startCells } from '../support/cells.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster as inHost } from '../support/hosts.ts'
import { scrape } from '../support/metrics.ts'
import { forSuite } from '../support/suite.ts'

describe('cells of a running deployment', function () {
  this.timeout(180_000)
  const cells = forSuite(() => startCells())

  const muster = async (...args: string[]) => {
    const { code, stderr } = await inHost(args, { ...testEnvironment(cells.home), ...cells.env })
    assert.equal(code, 0, stderr)
  }
  const listed = async () => {
    const { status, body } = await cells.admin.get('/system/cells')
    assert.equal(status, 200)
    return body.data as any[]
  }

  it('are listed with their state and size, home first, for admins only', async () => {
    await cells.project('second')
    const [home, second] = await listed()
    const times = /^\d{4}-.*Z$/
    assert.deepEqual(
      [home, second].map(({ name, number, state, reachable, projects, lag_bytes }) => [
        name,
        number,
        state,
        reachable,
        projects,
        lag_bytes,
      ]),
      [
        ['home', 0, 'open', true, 0, null],
        ['second', 1, 'open', true, 1, null],
      ],
    )
    assert.match(second.address, /schema=cell_second$/)
    assert.deepEqual([home.added_at, home.changed_at], [null, null])
    assert.match(second.added_at, times)
    assert.match(second.changed_at, times)
    for (const { bytes, release, address } of [home, second]) {
      assert.ok(bytes > 100_000)
      assert.equal(release, '0.1.0')
      assert.equal(address.includes('@'), false)
    }
    const { key } = await cells.project('home')
    assert.equal((await key.get('/system/cells')).status, 403)
    assert.equal((await cells.as(null).get('/system/cells')).status, 401)
    const page = await cells.admin.get('/system/cells?limit=1&offset=1')
    assert.deepEqual([page.body.total, page.body.data.map(({ name }: any) => name)], [2, ['second']])
  })

  it('are served without a restart once they are added, and closed cells get no new project', async () => {
    await muster('cells', 'add', 'third', '--url', cells.home, '--schema', 'cell_third')
    await eventually(async () => (await listed()).some(({ name, reachable }) => name === 'third' && reachable))
    const { id, key } = await cells.project('third')
    assert.equal((await key.post('/conversations', { name: 'Table' })).status, 201)
    const third = (await listed()).find(({ name }) => name === 'third')
    assert.deepEqual([third.number, third.projects], [2, 1])

    await muster('cells', 'close', 'third')
    await eventually(async () => (await listed()).some(({ name, state }) => name === 'third' && state === 'closed'))
    const refused = await cells.admin.post('/projects', { name: 'Late', cell: 'third' })
    assert.deepEqual([refused.status, refused.body.error.meta.problems[0].path], [400, 'cell'])
    for (let index = 0; index < 3; index++) await cells.admin.post('/projects', { name: `Any ${index}` })
    assert.equal((await listed()).find(({ name }) => name === 'third').projects, 1)
    assert.equal((await cells.admin.get(`/projects/${id}`)).status, 200)
  })

  it('have a label in the metrics', async () => {
    await eventually(async () => (await scrape(cells.url)).value('muster_cell_up', { cell: 'second' }) === 1)
    const { text, value } = await scrape(cells.url)
    assert.equal(value('muster_cell_up', { cell: 'home' }), 1)
    for (const cell of ['home', 'second']) {
      assert.ok((value('muster_database_connections', { state: 'max', cell }) as number) > 0)
      assert.equal(value('muster_queue_messages', { queue: 'conversation.process', state: 'active', cell }), 0)
      assert.equal(value('muster_dead_letters', { queue: 'conversation.process', cell }), 0)
      assert.equal(value('muster_work_oldest_seconds', { concern: 'delivery', cell }) !== undefined, true)
    }
    for (const line of text.split('\n'))
      if (/^muster_(queue|dead|database_con|database_w|work_)/.test(line)) assert.match(line, /cell="/)
  })

  it('are no cells of an unknown name', async () => {
    const refused = await cells.admin.post('/projects', { name: 'Lost', cell: 'nowhere' })
    assert.deepEqual([refused.status, refused.body.error.code], [400, 'VALIDATION_FAILED'])
    assert.equal(refused.body.error.meta.problems[0].path, 'cell')
  })
})

describe('cells in two servers', function () {
  this.timeout(180_000)
  const cells = forSuite(() => startCells({ servers: true }))

  it('are listed with the lag of their copies, and without their size while they are down', async () => {
    const listed = async () => (await cells.admin.get('/system/cells')).body.data
    const [home, second] = await listed()
    assert.deepEqual([home.lag_bytes, typeof second.lag_bytes], [null, 'number'])
    await cells.kill?.()
    const lost = await eventually(async () => (await listed()).find(({ reachable }: any) => !reachable))
    assert.deepEqual([lost.name, lost.state, lost.projects, lost.bytes], ['second', 'open', null, null])
    await eventually(async () => (await scrape(cells.url)).value('muster_cell_up', { cell: 'second' }) === 0)
    assert.equal((await scrape(cells.url)).value('muster_cell_up', { cell: 'home' }), 1)
    await cells.restart?.()
    await eventually(async () => (await listed()).every(({ reachable }: any) => reachable), { within: 20_000 })
  })
})
