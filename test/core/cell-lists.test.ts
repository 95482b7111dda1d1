import assert from 'node:assert/strict'
import type { ListOrder } from '#core/api/across.ts'
import { type Operation, operations } from '#core/api/operation.ts'
import { rawQuery } from '#core/db/sql.ts'
import { migrate } from '#core/queues/migrate.ts'
import { sealedForCell } from '#core/services/cell-directory.ts'
import { type Client, client, eventually, startApp } from '../support/app.ts'
import { copyProjects, moveCopies } from '../support/copied-projects.ts'
import { populate } from '../support/populate.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

const SCHEMA = 'cell_second'

/** Marks of the copies of all projects, of which each cell has half. */
const MARKS = Array.from({ length: 60 }, (_, index) => `y0${String(index).padStart(2, '0')}`)
const MOVED = MARKS.filter((_, index) => index % 2 === 1)

/** Parameters without which a list has no entries here. */
const NEEDED: Record<string, string> = { listApprovalRecurrences: 'status=pending&min_count=1&' }

/**
 * Reads without path parameters that one cell answers without a project: of the deployment (`home`), of a record that the call
 * names (`record`), or none, because they require a project (`project`). Other reads declare how they go across cells.
 */
const OF_ONE_CELL: Record<string, 'home' | 'record' | 'project'> = {
  createEmbeddings: 'home',
  exportActivity: 'project',
  exportAuditEntries: 'project',
  exportUsageEvents: 'project',
  getDocumentByPath: 'project',
  getGenerationStatistics: 'project',
  getMe: 'home',
  getOauthConsentInfo: 'home',
  getSystemStatus: 'home',
  getUsageTimeseries: 'project',
  listActivity: 'project',
  listCells: 'home',
  listEventRegistry: 'home',
  listMemories: 'record',
  listMemoryEntries: 'record',
  listOauthGrants: 'home',
  listOwnPermissions: 'home',
  listPermissions: 'home',
  listPrices: 'home',
  listSystemSettings: 'home',
  listTriggerFirings: 'record',
  listWebhookDeliveries: 'record',
  readUsageReceipt: 'record',
  streamActivity: 'project',
  validateFormation: 'home',
  validateOrchestration: 'home',
  validatePlaybook: 'home',
  verifyAuditLog: 'home',
}

const orderOf = ({ across }: Operation): ListOrder | null => (across && 'order' in across ? across.order : null)

const lists = operations.all().filter(operation => orderOf(operation) !== null)

/** Compares entries as declared, with the texts in the order of their characters, which the databases of tests have. */
function compare(order: ListOrder, a: Json, b: Json): number {
  for (const [value, direction] of order) {
    const [x, y] = [a, b].map(row => (typeof value === 'string' ? row[value] : value(row as never)))
    assert.ok(x !== undefined && y !== undefined, `the entries lack ${value}`)
    if (x !== y) return x < y === (direction === 'asc') ? -1 : 1
  }
  return 0
}

/** A part of these tests depends on those before it: the projects of one database are then in two cells. */
describe('lists of projects in several cells', function () {
  this.timeout(600_000)
  const app = forSuite(startApp)
  let userId: string
  let web: Awaited<ReturnType<typeof startProcess>>
  let admin: Client
  /** Responses of one database, by path. */
  const expected = new Map<string, string>()

  const textOf = async (url: string, path: string): Promise<string> => {
    const response = await fetch(`${url}/api/v1${path}`, { headers: { authorization: `Bearer ${app.admin.token}` } })
    // Ages are different in every response.
    return `${response.status} ${(await response.text()).replace(/(?<=_age_seconds":)[\d.]+/, '0')}`
  }
  const pathOf = ({ id, path }: Operation): string => `${path.replace('{user_id}', userId)}?${NEEDED[id] ?? ''}`

  before(async () => {
    await populate(app)
    userId = (await app.admin.get('/users/me')).body.id
    await app.user()
    // A node that a worker has executed, whose wait is part of the statistics of queues.
    await app.services.pool.query(
      rawQuery(`
        insert into orchestration_node_executions (id, run_id, project_id, node_id, node_type, status, round, applied, deliveries, started_at)
        select replace(id, 'run_', 'nodex_'), id, project_id, 'past', 'tool', 'completed', 1, true, 1, now() from orchestration_runs limit 1`),
    )
    await copyProjects(app.databaseUrl, MARKS)
  })
  after(() => web?.kill('SIGTERM'))

  it('include every read that neither belongs to the deployment nor names a record or a project', async () => {
    const reads = operations
      .all()
      .filter(({ path, reads, gate, shape }) => reads && gate !== 'public' && shape !== 'create' && !path.includes('{'))
      .filter(({ kind, across }) => !kind?.global && !across)
    assert.deepEqual(reads.map(({ id }) => id).sort(), Object.keys(OF_ONE_CELL))
    const others: Record<string, string> = {
      getDocumentByPath: 'path=/a',
      getGenerationStatistics: 'interval=day&from=2026-01-01&to=2026-01-02',
      getUsageTimeseries: 'interval=day&from=2026-01-01&to=2026-01-02',
    }
    for (const { id, path } of reads) {
      if (OF_ONE_CELL[id] !== 'project') continue
      const { status, body } = await app.admin.get(`${path}?${others[id] ?? ''}`)
      assert.equal(status, 400, id)
      assert.deepEqual(
        body.error.meta.problems.map((problem: Json) => [problem.code, problem.path]),
        [['REQUIRED', 'project_id']],
        id,
      )
    }
  })

  for (const list of lists)
    it(`${list.id} answers in its declared order`, async () => {
      const { status, body } = await app.admin.get(`${pathOf(list)}limit=100`)
      assert.equal(status, 200, JSON.stringify(body))
      // A page of large rows is cut by its bytes.
      assert.ok(body.data.length > 5, `${body.data.length} rows`)
      const order = orderOf(list) as ListOrder
      for (const [index, row] of body.data.entries())
        if (index > 0) assert.ok(compare(order, body.data[index - 1], row) < 0, `row ${index}`)
    })

  /** Paths of pages of a list: all of the largest size, and others that begin and end anywhere. */
  async function pagesOf(list: Operation): Promise<string[]> {
    const { max } = list.pageSize
    const { total } = (await app.admin.get(`${pathOf(list)}limit=1`)).body
    const all = Array.from({ length: Math.ceil(total / max) + 1 }, (_, page) => [max, page * max])
    const others = [
      [1, 0],
      [7, 7],
      [3, max - 1],
      [20, total - 5],
      [5, total],
      [5, 10_000],
    ]
    return ['', ...[...all, ...others].map(([limit, offset]) => `limit=${limit}&offset=${offset}`)].map(
      page => `${pathOf(list)}${page}`,
    )
  }

  /** Reads of figures over all projects, with their parameters. */
  const figures = [
    '/usage/aggregate?group_by=project&include=distinct',
    '/usage/aggregate?group_by=project&limit=3&offset=20&meter_type=tool_execution',
    ...['agent_version', 'agent', 'day', 'label'].map(group => `/feedback/aggregate?group_by=${group}`),
    '/sessions/assignees?',
    '/embeddings/config?',
    '/orchestrations/queue/stats',
  ]

  it('are, page by page, the lists of one database', async () => {
    for (const path of figures) {
      const text = await textOf(app.url, path)
      assert.match(text, /^200 .*"(key"|session_count"|pending_words"|p50":\d)/, path)
      expected.set(path, text)
    }
    for (const list of lists) for (const path of await pagesOf(list)) expected.set(path, await textOf(app.url, path))
    const { length } = [...expected].filter(
      ([path, text]) => path.includes('limit=100') && !text.includes('"limit":100,'),
    )
    assert.ok(length > 0, 'no page is cut by its size')
    const { pool, secrets } = app.services
    const url = new URL(app.databaseUrl)
    url.searchParams.set('schema', SCHEMA)
    await migrate(url.href)
    await moveCopies(app.databaseUrl, SCHEMA, MOVED)
    const sealed = secrets.seal(url.href, sealedForCell('second'))
    await pool.query(rawQuery(`insert into cells (name, number, url) values ('second', 1, $1)`, [sealed]))
    await pool.query(
      rawQuery(`insert into project_cells (project_id, cell) select id, 'second' from ${SCHEMA}.projects`),
    )
    web = await startProcess('web', app.databaseUrl, { CELLS: 'true' })
    admin = client(web.url, app.admin.token)
    for (const [path, text] of expected) assert.equal(await textOf(web.url, path), text, path)
  })

  it('are refused once, as by one database', async () => {
    for (const path of ['/agents?limit=0', '/agents?from=x', '/agents?partial=maybe', '/shares?role=grantee']) {
      const { status, body } = await admin.get(path)
      assert.deepEqual([status, body.error.code, body.error.meta.problems.length], [400, 'VALIDATION_FAILED', 1], path)
    }
    const user = await app.user()
    const { status, body } = await client(web.url, user.token).get('/agents')
    assert.deepEqual([status, body.error.code], [403, 'FORBIDDEN'])
  })

  it('name a cell that does not answer, and are without it only if the call accepts that', async () => {
    const paths = [
      '/agents?',
      '/events?limit=3&',
      '/saved-views?',
      `/users/${userId}/authored?`,
      '/feedback/aggregate?group_by=label&',
      '/usage/aggregate?group_by=project&',
    ]
    for (const path of paths)
      assert.equal(await textOf(web.url, `${path}partial=true`), await textOf(web.url, path), path)
    const set = (state: string) => app.services.pool.query(rawQuery(`update cells set state = $1`, [state]))
    await set('down')
    await eventually(async () => (await admin.get('/agents')).status === 503)
    for (const path of paths) {
      const { status, body } = await admin.get(path)
      assert.deepEqual([status, body.error.code, body.error.meta.cell], [503, 'CELL_UNAVAILABLE', 'second'], path)
      const partial = (await admin.get(`${path}partial=true`)).body
      const { meta, ...home } = partial
      assert.equal(Object.keys(partial).at(-1), 'meta')
      assert.deepEqual(meta, { missing_cells: ['second'] })
      // The application of these tests reads the first cell alone.
      assert.deepEqual(home, (await app.admin.get(path)).body, path)
    }
    await set('open')
    await eventually(async () => (await admin.get('/agents')).status === 200)
    assert.equal(await textOf(web.url, '/agents?'), await textOf(web.url, '/agents?partial=true'))
  })

  it('have exact totals, and each row once, while rows are written in every cell', async () => {
    const ids = (await admin.get('/projects?limit=100')).body.data.map(({ id }: Json) => id)
    const projects = [false, true].map(isMoved =>
      ids.find((id: string) => MOVED.some(mark => id.includes(mark)) === isMoved),
    )
    const before = (await admin.get('/conversations?limit=1')).body.total
    const WRITES = 60
    let [sent, written] = [0, 0]
    const write = async (project_id: string) => {
      for (let count = 0; count < WRITES; count++) {
        sent++
        const { status, body } = await admin.post('/conversations', { project_id, name: 'Table' })
        assert.equal(status, 201, JSON.stringify(body))
        written++
      }
    }
    let isWriting = true
    const read = async (offset: number) => {
      while (isWriting) {
        const least = before + written
        const { total, data } = (await admin.get(`/conversations?limit=100&offset=${offset}`)).body
        assert.ok(total >= least && total <= before + sent, `${total} of ${least} to ${before + sent}`)
        assert.equal(new Set(data.map(({ id }: Json) => id)).size, data.length)
        assert.equal(data.length, Math.min(100, Math.max(0, total - offset)))
      }
    }
    const reading = Promise.all([0, 15, 210].map(read))
    await Promise.all(projects.map(write)).finally(() => {
      isWriting = false
    })
    await reading
    assert.equal((await admin.get('/conversations?limit=1')).body.total, before + 2 * WRITES)
  })
})
