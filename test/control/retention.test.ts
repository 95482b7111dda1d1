import assert from 'node:assert/strict'
import { newId } from '#core/base/ids.ts'
import { contentSweepHandler } from '#execution/generations/erase/expire-content.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { createdBy, refusalOf } from '../support/replies.ts'

const SOON = { CONTENT_RETENTION_SWEEP_INTERVAL_MS: '1000' }

describe('content', function () {
  this.timeout(90_000)
  let app: AgentApp
  const processes: TestProcess[] = []
  const sweeper = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...SOON, ...env }, ['snapshot'])
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A project that must not change. */
  const steadySweeper = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...SOON, ...env }, ['snapshot'])
  const turn = (more: object = {}) =>
    createdBy(app.key, `/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello', ...more }, 200)
  /** As if a turn had been made days ago. */
  const age = (generationId: string, days: number) =>
    app.rows(
      `with g as (update generations set created_at = created_at - $2 * interval '1 day',
         last_activity_at = last_activity_at - $2 * interval '1 day' where id = $1 returning trace_id)
       update traces t set created_at = t.created_at - $2 * interval '1 day' from g where t.id = g.trace_id`,
      [generationId, days],
    )
  const project = async (fields: object) => {
    const reply = await app.admin.patch(`/projects/${app.projectId}`, fields)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }
  const trace = async (id: string) => (await app.key.get(`/traces/${id}`)).body
  const audits = async () =>
    (
      await app.admin.get(`/audit-log?project_id=${app.projectId}&action=traces:PurgeTraceContent&limit=200`)
    ).body.data.filter(({ detail }: any) => detail?.kind === 'retention_sweep')

  beforeEach(async () => {
    app = await startAgentApp({
      actions: [
        'agents:CreateAgentGeneration',
        'generations:*',
        'traces:*',
        'actors:CreateActor',
        'actors:PurgeActorContent',
        'events:ListEvents',
      ],
    })
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(processes.map(each => (each.child.exitCode ?? each.child.signalCode) === null && each.kill()))
    processes.length = 0
    await app.close()
  })

  it('under a legal hold is never erased until the hold ends', async () => {
    const { id, trace_id } = await turn()
    await age(id, 3)
    const until = new Date(Date.now() + 3_600_000).toISOString()
    const far = await project({ content_hold_until: '2098-01-02T00:00:00+23:59' })
    assert.equal(far.content_hold_until, '2098-01-01T00:01:00.000Z')
    const held = await project({ content_hold_until: until, trace_content_retention_days: 1 })
    assert.equal(held.content_hold_until, until)
    const actor = (await app.key.post('/actors', { name: 'Ann' })).body.id
    for (const refused of [
      await app.key.delete(`/traces/${trace_id}/content`),
      await app.key.delete(`/traces/${trace_id}/content?dry_run=true`),
      await app.key.delete(`/generations/${id}/content`),
      await app.key.post(`/actors/${actor}/purge-content`),
    ]) {
      assert.deepEqual(refusalOf(refused), [409, 'CONTENT_ON_HOLD'])
      assert.equal(refused.body.error.meta.content_hold_until, until)
    }
    // A project without a hold shows that the sweep has been there.
    const other = await app.project(undefined, app.projectId)
    await app.admin.patch(`/projects/${other.id}`, { trace_content_retention_days: 1 })
    const unheld = app.inCellOf(other.id, () => newId('trace'))
    await app.rows(
      `insert into traces (id, project_id, agent_id, created_at) values ($1, $2, $3, now() - interval '3 days')`,
      [unheld, other.id, app.agentId],
    )
    await steadySweeper()
    await eventually(async () => (await app.admin.get(`/traces/${unheld}`)).body.content_redacted_at)
    assert.equal((await trace(trace_id)).content_redacted_at, null)
    await project({ content_hold_until: null })
    await eventually(async () => (await trace(trace_id)).content_redacted_at)
    assert.equal((await app.key.post(`/actors/${actor}/purge-content`)).status, 202)
  })

  it('under a hold that is over can be erased', async () => {
    const { id } = await turn()
    await project({ content_hold_until: '2020-01-01T00:00:00Z' })
    const purged = await app.key.delete(`/generations/${id}/content`)
    assert.equal(purged.status, 200)
    assert.equal(purged.body.content_redacted_by_principal_type, 'api_key')
  })

  it('is counted by a dry run, which changes nothing', async () => {
    const { id } = await turn()
    const before = (await app.key.get(`/generations/${id}`)).body
    const dry = await app.key.delete(`/generations/${id}/content?dry_run=true`)
    assert.deepEqual(
      [dry.status, dry.body.dry_run, dry.body.counts.generations, dry.body.counts.events],
      [200, true, 1, 1],
    )
    assert.deepEqual((await app.key.get(`/generations/${id}`)).body, before)
    assert.equal((await app.key.get(`/events?resource_id=${id}&event=generations.content_purged`)).body.total, 0)
    assert.equal((await app.key.delete(`/generations/${id}/content?dry_run=maybe`)).status, 400)
    await app.key.delete(`/generations/${id}/content`)
    assert.deepEqual((await app.key.delete(`/generations/${id}/content?dry_run=true`)).body.counts, {})
  })

  it('older than the retention of its project is erased, newer content stays', async () => {
    const old = await turn()
    const young = await turn()
    const grouped = await turn()
    await turn({ trace_id: grouped.trace_id })
    await age(old.id, 2)
    await age(grouped.id, 2)
    await steadySweeper()
    await project({ trace_content_retention_days: 1 })
    await eventually(async () => (await trace(old.trace_id)).content_redacted_at)
    const record = (await app.key.get(`/generations/${old.id}`)).body
    assert.deepEqual(
      [record.output, record.content_redacted_by_principal_type, record.content_redacted_by_principal_id],
      [null, 'system', 'retention_sweep'],
    )
    assert.deepEqual(record.usage, old.usage)
    assert.equal((await trace(young.trace_id)).content_redacted_at, null)
    assert.equal((await trace(grouped.trace_id)).content_redacted_at, null)
    const [entry, ...more] = await audits()
    assert.deepEqual(more, [])
    assert.deepEqual(
      [entry.principal_type, entry.resource_public_id, entry.resource_srn],
      [null, old.trace_id, `srn:${app.projectId}:trace:${old.trace_id}`],
    )
    assert.equal((await app.key.get(`/events?resource_id=${old.id}&event=generations.content_purged`)).body.total, 1)
  })

  it('of a project is erased in one sweep, however much it is, in turn with other projects', async () => {
    const projects = [await app.project(undefined, app.projectId), await app.project(undefined, app.projectId)]
    const [first, second] = projects.sort((x, y) => (x.id < y.id ? -1 : 1))
    const traces = (projectId: string, count: number) =>
      app.rows(
        `insert into traces (id, project_id, agent_id, created_at)
         select 'trace_' || $1 || n, $1, $2, now() - interval '400 days' + n * interval '1 s' from generate_series(1, $3::int) n`,
        [projectId, app.agentId, count],
      )
    await traces(first.id, 10_500)
    await traces(second.id, 1)
    for (const { id } of [first, second]) await app.admin.patch(`/projects/${id}`, { trace_content_retention_days: 1 })
    const erased = async ({ id }: { id: string }) =>
      app.rows(
        'select max(content_redacted_at) as last, count(*)::int as count from traces where project_id = $1 and content_redacted_at is not null',
        [id],
      )
    const context = { services: app.servicesOf(first.id), stopping: new AbortController().signal } as never
    await contentSweepHandler.handle({}, context)
    const [[large], [small]] = [await erased(first), await erased(second)]
    assert.deepEqual([large.count, small.count], [10_500, 1])
    assert.ok(small.last < large.last, 'the small project waited for the large one')
  })
  it('is kept when the sweep is switched off', async () => {
    const { id, trace_id } = await turn()
    await age(id, 2)
    await project({ trace_content_retention_days: 1 })
    const off = await sweeper({ CONTENT_RETENTION_SWEEP_DISABLED: 'true' })
    // Another duty of the same worker shows that it is at work.
    const actor = (await app.key.post('/actors', { name: 'Ann' })).body.id
    await app.key.post(`/actors/${actor}/purge-content`)
    await eventually(async () => (await app.rows('select from actor_purges')).length === 0)
    assert.equal((await trace(trace_id)).content_redacted_at, null)
    await off.kill()
  })

  it('is erased once by workers that are killed and that work at the same time', async () => {
    await app.rows(
      `insert into traces (id, project_id, agent_id, created_at)
       select 'trace_' || lpad(n::text, 26, '0'), $1, $2, now() - interval '5 days' + n * interval '1 s'
       from generate_series(1, 250) n`,
      [app.projectId, app.agentId],
    )
    const left = async () => (await app.rows('select id from traces where content_redacted_at is null')).length
    await project({ trace_content_retention_days: 1 })
    const first = await sweeper({ FAULT_POINTS: 'content_expired=kill' })
    assert.equal((await first.exited).signal, 'SIGKILL')
    assert.equal(await left(), 150)
    await Promise.all([steadySweeper(), steadySweeper()])
    await eventually(async () => (await left()) === 0)
    const entries = await app.rows(
      `select resource_public_id as id from audit_entries where detail ->> 'kind' = 'retention_sweep'`,
    )
    assert.equal(new Set(entries.map(({ id }) => id)).size, 250)
    assert.equal(entries.length, 250)
    assert.equal((await app.rows(`select from events where name = 'traces.content_purged'`)).length, 250)
  })

  it('of projects whose retention ends before all time stays, and holds up no other', async () => {
    const { id, trace_id } = await turn()
    await age(id, 2)
    const other = await app.project()
    await app.admin.patch(`/projects/${other.id}`, { trace_content_retention_days: 2_147_483_647 })
    await project({ trace_content_retention_days: 1 })
    await steadySweeper()
    await eventually(async () => (await trace(trace_id)).content_redacted_at)
  })
})
