import assert from 'node:assert/strict'
import { release as currentRelease } from '#core/base/release.ts'
import { migrationNames } from '#core/queues/breaking-migrations.ts'
import { eventually } from '../support/app.ts'
import { startCells } from '../support/cells.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster as inHost } from '../support/hosts.ts'
import { scrape } from '../support/metrics.ts'
import { forSuite } from '../support/suite.ts'

const copiesOf = ({ copies, copies_connected, lag_bytes, lag_seconds }: any) => [
  copies,
  copies_connected,
  lag_bytes,
  lag_seconds,
]

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

  it('are listed with their state, size and copies, home first, for admins only', async () => {
    await cells.project('second')
    const [home, second] = await listed()
    const times = /^\d{4}-.*Z$/
    assert.deepEqual(
      [home, second].map(({ name, number, state, reachable, projects }) => [name, number, state, reachable, projects]),
      [
        ['home', 0, 'open', true, 0],
        ['second', 1, 'open', true, 1],
      ],
    )
    assert.deepEqual([home, second].map(copiesOf), [
      [null, null, null, null],
      ['triggers', null, null, null],
    ])
    assert.match(second.address, /schema=cell_second$/)
    assert.deepEqual([home.added_at, home.changed_at], [null, null])
    assert.match(second.added_at, times)
    assert.match(second.changed_at, times)
    for (const { bytes, migrations, release, address } of [home, second]) {
      assert.ok(bytes > 100_000)
      assert.equal(migrations, migrationNames().length)
      assert.equal(release, currentRelease)
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
    const third = await eventually(async () =>
      (await listed()).find(({ name, projects }) => name === 'third' && projects === 1),
    )
    assert.deepEqual([third.number, copiesOf(third)], [2, ['triggers', null, null, null]])

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
  const listed = async () => (await cells.admin.get('/system/cells')).body.data as any[]
  const secondWhen = (isWanted: (second: any) => boolean) =>
    eventually(async () => (await listed()).filter(({ name }) => name === 'second').find(isWanted), { within: 20_000 })

  it('are listed with the lag of their copies, and without their size while they are down', async () => {
    const [home] = await listed()
    assert.deepEqual(copiesOf(home), [null, null, null, null])
    // The second is connected once its subscription has reached home.
    const second = await secondWhen(({ copies_connected, lag_bytes }) => copies_connected && lag_bytes === 0)
    assert.deepEqual(copiesOf(second), ['replication', true, 0, 0])

    await cells.kill?.()
    const lost = await secondWhen(({ reachable, copies_connected }) => !reachable && !copies_connected)
    assert.deepEqual(
      [lost.state, lost.projects, lost.bytes, lost.migrations, lost.release],
      ['open', null, null, null, null],
    )
    await cells.rows(cells.home, `insert into policies (id, document) values ('pol_late', '{"statement": []}')`)
    const late = await secondWhen(({ lag_bytes }) => lag_bytes > 0)
    const later = await secondWhen(({ lag_seconds }) => lag_seconds > late.lag_seconds)
    assert.deepEqual([later.copies, later.copies_connected], ['replication', false])
    await eventually(async () => (await scrape(cells.url)).value('muster_cell_up', { cell: 'second' }) === 0)
    assert.equal((await scrape(cells.url)).value('muster_cell_up', { cell: 'home' }), 1)

    const environment = { ...testEnvironment(cells.home), ...cells.env }
    const table = await inHost(['cells', 'list'], environment)
    assert.match(table.stdout, /^second .* - +- +by replication +\d+ bytes, \d+\.\d s, not connected +connect E/m)
    await cells.restart?.()
    await secondWhen(({ reachable, copies_connected, lag_bytes }) => reachable && copies_connected && lag_bytes === 0)
    // The command has the facts of the operation, and what a cell answers in place of whether it does.
    const { stdout } = await inHost(['cells', 'list', '--json'], environment)
    const facts = (await listed()).map(({ reachable, ...rest }) => ({ ...rest, error: null }))
    const stable = ({ bytes, lag_bytes, lag_seconds, ...rest }: any) => rest
    assert.deepEqual(JSON.parse(stdout).map(stable), facts.map(stable))
  })

  it('are listed while one is silent', async () => {
    cells.silence?.()
    try {
      const silent = await secondWhen(({ reachable }) => !reachable)
      assert.deepEqual([silent.copies, silent.projects], ['replication', null])
      const answers = await Promise.all(Array.from({ length: 8 }, listed))
      assert.ok(answers.every(([home]) => home.reachable && home.projects !== null))
    } finally {
      cells.silence?.(false)
    }
    await secondWhen(({ reachable }) => reachable)
  })
})
