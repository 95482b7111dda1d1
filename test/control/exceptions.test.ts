import assert from 'node:assert/strict'
import { type ExceptionFiling, fileExceptionInTx, fileExceptionLater } from '#control/exceptions/file-exception.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { type Client, eventually, type Reply, startApp, type TestProject } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { runWorker } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

const ALL = ['exceptions:*', 'activity:ListActivity']

describe('exceptions', () => {
  const app = forSuite(() => startApp({ workers: ['delivery'] }))
  let project: TestProject
  beforeEach(async () => {
    project = await app.projectWith(ALL)
  })
  const filing = (more: Partial<ExceptionFiling> = {}): ExceptionFiling => ({
    project_id: project.id,
    kind: 'guardrail_tripwire',
    title: 'A tripwire',
    dedup_key: 'agent:tool:version',
    ...more,
  })
  const list = async (query = '', as: Client = project.key) => {
    const { status, body } = await as.get(`/exceptions${query}`)
    assert.equal(status, 200, JSON.stringify(body))
    return body.data
  }
  /** The items once they have been counted so often together. */
  const filed = (occurrences: number) =>
    eventually(async () => {
      const items = await list()
      const sum = items.reduce((all: number, { occurrence_count }: any) => all + occurrence_count, 0)
      return sum === occurrences ? items : null
    })
  const manual = async (more: object = {}, as: Client = project.key) =>
    await as.post('/exceptions', { title: 'look', ...more })
  const events = (name: string) => storedEvents(app.pool, { project: project.id, name })
  const refused = ({ status, body }: Reply, expected: number, code: string) =>
    assert.deepEqual([status, body.error?.code], [expected, code], JSON.stringify(body))

  it('that are written together carry the triggers that led to each', async () => {
    const file = (kind: ExceptionFiling['kind']) => fileExceptionLater(app.servicesOf(project.id), filing({ kind }))
    withTriggerChain(['trg_1'], () => file('run_failed'))
    file('webhook_failing')
    withTriggerChain(['trg_1', 'trg_2'], () => file('guardrail_tripwire'))
    await filed(3)
    const written = await app.rows(
      `select causation, resource_id from events where project_id = $1 and name = 'exceptions.created'`,
      [project.id],
    )
    const kinds = new Map((await list()).map(({ id, kind }: any) => [id, kind]))
    assert.deepEqual(Object.fromEntries(written.map(each => [kinds.get(each.resource_id), each.causation])), {
      run_failed: ['trg_1'],
      webhook_failing: null,
      guardrail_tripwire: ['trg_1', 'trg_2'],
    })
  })

  it('are filed with the severity of their kind, as one event and one entry of the feed', async () => {
    fileExceptionLater(
      app.servicesOf(project.id),
      filing({
        kind: 'run_failed',
        title: 'The run failed',
        detail: { error: { code: 'X' } },
        orchestration_run_id: 'orch_run_1',
      }),
    )
    const [item] = await filed(1)
    const { actor_id, actor_name, actor_external_id, agent_name, ...record } = item
    assert.deepEqual([actor_id, actor_name, actor_external_id, agent_name], [null, null, null, null])
    const { id, created_at, updated_at, last_seen_at, ...rest } = record
    assert.match(id, /^exc_[0-9a-z]{26}$/)
    assert.ok(created_at && updated_at && last_seen_at)
    assert.deepEqual(rest, {
      project_id: project.id,
      status: 'open',
      severity: 'critical',
      kind: 'run_failed',
      title: 'The run failed',
      detail: { error: { code: 'X' } },
      occurrence_count: 1,
      orchestration_run_id: 'orch_run_1',
      node_id: null,
      agent_id: null,
      guardrail_version: null,
      acknowledged_by: null,
      resolved_by: null,
      resolution_note: null,
    })
    assert.deepEqual((await project.key.get(`/exceptions/${id}`)).body, record)
    assert.deepEqual(
      (await events('exceptions.created')).map(({ data }) => data),
      [record],
    )
    const [entry] = (await project.key.get('/activity')).body.data
    assert.deepEqual(
      [entry.kind, entry.severity, entry.ref_id, entry.orchestration_run_id, entry.detail],
      ['exception_created', 'critical', id, 'orch_run_1', { exception_kind: 'run_failed', severity: 'critical' }],
    )
  })

  it('of one matter fold into one item without losing a count, from several processes and transactions', async () => {
    for (let n = 0; n < 20; n++) fileExceptionLater(app.servicesOf(project.id), filing({ detail: { n } }))
    await Promise.all(
      Array.from({ length: 10 }, (_, n) =>
        app.servicesOf(project.id).write(async tx => fileExceptionInTx(tx, filing({ detail: { n: 100 + n } }))),
      ),
    )
    const [item, ...more] = await filed(30)
    assert.deepEqual([item.occurrence_count, more.length], [30, 0])
    assert.equal((await events('exceptions.created')).length, 1)
    assert.equal((await project.key.get('/activity')).body.data.length, 1)
  })

  it('fold exactly when many transactions file equal matters concurrently', async () => {
    const keys = Array.from({ length: 5 }, (_, n) => `key ${n}`)
    await Promise.all(
      Array.from({ length: 12 }, (_, n) =>
        Promise.all((n % 2 ? keys : keys.toReversed()).map(dedup_key => manual({ dedup_key }))),
      ),
    )
    const items = await list()
    assert.deepEqual(
      items.map(({ occurrence_count }: any) => occurrence_count),
      [12, 12, 12, 12, 12],
    )
    assert.equal((await events('exceptions.created')).length, 5)
  })

  it('commit with the transaction of their producer, and only with it', async () => {
    const write = (title: string, fail: boolean) =>
      app.servicesOf(project.id).write(async tx => {
        fileExceptionInTx(tx, filing({ title, dedup_key: title }))
        if (fail) throw new Error('no')
      })
    await assert.rejects(write('undone', true))
    await write('done', false)
    assert.deepEqual(
      (await filed(1)).map(({ title }: any) => title),
      ['done'],
    )
  })

  it('wait for a worker, and are filed once whatever becomes of the first', async () => {
    const alone = await startApp()
    try {
      const { id, key } = await alone.projectWith(ALL)
      const find = async () => (await key.get('/exceptions')).body.data
      const faulty = { FAULT_POINTS: 'exception_filed=kill' }
      const first = await startProcess('worker', alone.databaseUrl, faulty, ['delivery'])
      await alone.servicesOf(id).write(async tx => fileExceptionInTx(tx, filing({ project_id: id })))
      assert.equal((await first.exited).signal, 'SIGKILL')
      assert.deepEqual(await find(), [])
      const second = await runWorker(alone.databaseUrl, {}, ['delivery'])
      const [item] = await eventually(async () => ((await find()).length > 0 ? await find() : null), { within: 60_000 })
      assert.equal(item.occurrence_count, 1)
      await second.stop()
      assert.equal((await find())[0].occurrence_count, 1)
    } finally {
      await alone.close()
    }
  }).timeout(90_000)

  it('of a project that is gone leave nothing and hold up nothing', async () => {
    const gone = 'proj_00000000000000000000000000'
    await app.servicesOf(project.id).write(async tx => fileExceptionInTx(tx, filing({ project_id: gone })))
    fileExceptionLater(app.servicesOf(project.id), filing({ project_id: gone }))
    fileExceptionLater(app.servicesOf(project.id), filing())
    await filed(1)
    await eventually(async () =>
      (await app.servicesOf(project.id).queues.stats()).every(
        ({ queue, waiting, active, dead }) => queue !== 'exception.file' || waiting + active + dead === 0,
      ),
    )
  })

  it('without a key never fold, and keys are scoped to a project and a kind', async () => {
    fileExceptionLater(app.servicesOf(project.id), filing({ dedup_key: null }))
    fileExceptionLater(app.servicesOf(project.id), filing({ dedup_key: null }))
    fileExceptionLater(app.servicesOf(project.id), filing())
    fileExceptionLater(app.servicesOf(project.id), filing({ kind: 'webhook_failing' }))
    await filed(4)
    await manual({ dedup_key: 'agent:tool:version' })
    const other = await app.projectWith(ALL)
    await manual({ dedup_key: 'agent:tool:version' }, other.key)
    assert.equal((await list()).length, 5)
    assert.equal((await list('', other.key)).length, 1)
  })

  it('recur as a new item once resolved, and on the same item while acknowledged', async () => {
    const { body } = await manual({ dedup_key: 'k', detail: { n: 1 } })
    await project.key.post(`/exceptions/${body.id}/acknowledge`)
    const again = await manual({ dedup_key: 'k', detail: { n: 2 }, title: 'other' })
    assert.equal(again.status, 200)
    assert.deepEqual(
      [again.body.id, again.body.status, again.body.occurrence_count, again.body.detail, again.body.title],
      [body.id, 'acknowledged', 2, { n: 2 }, 'look'],
    )
    assert.ok(again.body.last_seen_at >= body.last_seen_at)
    assert.equal((await project.key.post(`/exceptions/${body.id}/resolve`)).status, 200)
    const anew = await manual({ dedup_key: 'k' })
    assert.deepEqual([anew.status, anew.body.occurrence_count], [201, 1])
    assert.notEqual(anew.body.id, body.id)
  })

  it('are acknowledged once, by the first who does', async () => {
    const { id } = (await manual()).body
    const first = await project.key.post(`/exceptions/${id}/acknowledge`)
    assert.deepEqual([first.status, first.body.status], [200, 'acknowledged'])
    assert.match(first.body.acknowledged_by, /^user_/)
    const second = await (
      await app.user('second', [
        { statement: [{ effect: 'Allow', action: ['exceptions:*'], resource: [`srn:${project.id}:exception:*`] }] },
      ])
    ).post(`/exceptions/${id}/acknowledge`)
    assert.deepEqual(second.body, first.body)
    assert.equal((await events('exceptions.acknowledged')).length, 1)
  })

  it('are resolved once: of two at the same time one is refused', async () => {
    const { id } = (await manual()).body
    const replies = await Promise.all(
      Array.from({ length: 4 }, (_, n) => project.key.post(`/exceptions/${id}/resolve`, { note: `note ${n}` })),
    )
    assert.deepEqual(replies.map(({ status }) => status).sort(), [200, 409, 409, 409])
    for (const reply of replies) if (reply.status === 409) refused(reply, 409, 'EXCEPTION_ALREADY_RESOLVED')
    refused(await project.key.post(`/exceptions/${id}/acknowledge`), 409, 'EXCEPTION_ALREADY_RESOLVED')
    const { body } = await project.key.get(`/exceptions/${id}`)
    assert.deepEqual(
      [body.status, body.resolution_note],
      ['resolved', replies.find(({ status }) => status === 200)?.body.resolution_note],
    )
    assert.match(body.resolved_by, /^user_/)
    assert.equal((await events('exceptions.resolved')).length, 1)
  })

  it('are resolved many at a time, each for itself', async () => {
    const [a, b, c] = await Promise.all([1, 2, 3].map(async () => (await manual()).body.id))
    const other = await app.projectWith(ALL, undefined, project.id)
    const foreign = (await manual({}, other.key)).body.id
    await project.key.post(`/exceptions/${b}/resolve`)
    const { status, body } = await project.key.post('/exceptions/resolve', {
      ids: [a, b, foreign, 'exc_1', a],
      note: 'done',
    })
    assert.equal(status, 200, JSON.stringify(body))
    assert.deepEqual(
      body.results.map(({ id, exception, error }: any) => [
        id,
        exception?.status,
        exception?.resolution_note,
        error?.code,
      ]),
      [
        [a, 'resolved', 'done', undefined],
        [b, undefined, undefined, 'EXCEPTION_ALREADY_RESOLVED'],
        [foreign, undefined, undefined, 'EXCEPTION_NOT_FOUND'],
        ['exc_1', undefined, undefined, 'EXCEPTION_NOT_FOUND'],
      ],
    )
    const user = await app.user(undefined, [
      {
        statement: [
          { effect: 'Allow', action: ['exceptions:ResolveException'], resource: [`srn:${project.id}:exception:${c}`] },
        ],
      },
    ])
    const narrow = await user.post('/exceptions/resolve', { ids: [c, foreign] })
    assert.deepEqual(
      narrow.body.results.map(({ error }: any) => error?.code),
      [undefined, 'EXCEPTION_NOT_FOUND'],
    )
    assert.equal((await other.key.get(`/exceptions/${foreign}`)).body.status, 'open')
    for (const ids of [[], Array(101).fill(a), 'x', undefined])
      refused(await project.key.post('/exceptions/resolve', { ids }), 400, 'VALIDATION_FAILED')
  })

  it('are listed by status, severity, kind, agent and run', async () => {
    for (const [n, severity] of (['info', 'warning', 'critical'] as const).entries())
      await manual({ title: severity, severity, agent_id: `agent_${n}`, orchestration_run_id: `orch_run_${n}` })
    const [critical, , info] = await list()
    await project.key.post(`/exceptions/${critical.id}/resolve`)
    await project.key.post(`/exceptions/${info.id}/acknowledge`)
    const titles = async (query: string) => (await list(`?${query}`)).map(({ title }: any) => title)
    assert.deepEqual(await titles('status=open'), ['warning'])
    assert.deepEqual(await titles('status=open&status=acknowledged'), ['warning', 'info'])
    assert.deepEqual(await titles('severity=critical&severity=info'), ['critical', 'info'])
    assert.deepEqual(await titles('kind=manual&agent_id=agent_1'), ['warning'])
    assert.deepEqual(await titles('orchestration_run_id=orch_run_2'), ['critical'])
    assert.deepEqual(await titles('kind=run_failed'), [])
    for (const query of ['status=closed', 'severity=loud', 'kind=other'])
      refused(await project.key.get(`/exceptions?${query}`), 400, 'VALIDATION_FAILED')
  })

  it('are filed by callers within limits', async () => {
    const made = await manual({ severity: 'critical', detail: { hint: 'look here' } })
    assert.deepEqual([made.status, made.body.kind, made.body.severity], [201, 'manual', 'critical'])
    for (const more of [
      { title: '' },
      { title: 'x'.repeat(501) },
      { severity: 'loud' },
      { kind: 'run_failed' },
      { detail: 'x' },
      { detail: { text: 'x'.repeat(16_384) } },
      { dedup_key: '' },
      { agent_id: 'x'.repeat(65) },
    ])
      refused(await manual(more), 400, 'VALIDATION_FAILED')
    refused(await app.admin.post('/exceptions', { title: 'x' }), 400, 'VALIDATION_FAILED')
  })

  it('follow policies, and are audited when they change', async () => {
    const { id } = (await manual()).body
    const reader = await app.projectWith(['exceptions:ListExceptions'])
    refused(await reader.key.get(`/exceptions/${id}`), 403, 'FORBIDDEN')
    refused(await manual({}, reader.key), 403, 'FORBIDDEN')
    const other = await app.projectWith(ALL)
    for (const reply of [
      await other.key.get(`/exceptions/${id}`),
      await other.key.post(`/exceptions/${id}/acknowledge`),
      await other.key.post(`/exceptions/${id}/resolve`),
    ])
      refused(reply, 404, 'EXCEPTION_NOT_FOUND')
    await project.key.post(`/exceptions/${id}/acknowledge`)
    await project.key.post(`/exceptions/${id}/resolve`)
    const entries = (await app.admin.get(`/audit-log?resource_public_id=${id}`)).body.data
    assert.deepEqual(
      entries
        .filter(({ project_id, status }: any) => project_id === project.id && status < 300)
        .map(({ action }: any) => action),
      ['exceptions:ResolveException', 'exceptions:AcknowledgeException', 'exceptions:CreateException'],
    )
  })

  it('are deleted with their project, and their count with them', async () => {
    await manual()
    assert.equal((await project.key.get('/exceptions')).body.total, 1)
    assert.equal((await app.admin.delete(`/projects/${project.id}?force=true`)).status, 204)
    assert.deepEqual(
      await app.rows(`select 1 from row_counts where table_name = 'exceptions' and scope = $1`, [project.id]),
      [],
    )
  })
})
