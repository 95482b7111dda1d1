import assert from 'node:assert/strict'
import { newId } from '#core/base/ids.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const ACTIONS = [
  'agents:CreateAgentGeneration',
  'generations:*',
  'traces:*',
  'sessions:*',
  'conversations:*',
  'actors:*',
  'events:ListEvents',
  'usage:ListUsageEvents',
]

describe('records', function () {
  this.timeout(90_000)
  const app = forSuite(() => startAgentApp({ actions: ACTIONS }))
  const processes: TestProcess[] = []

  const sweeper = async (env: Record<string, string> = {}) => {
    const settings = { CONTENT_RETENTION_SWEEP_INTERVAL_MS: '1000', ...env }
    const made = await startProcess('worker', app.databaseUrl, settings, ['snapshot'])
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A project that must not change. */
  const steadySweeper = async (concerns = ['snapshot']) => {
    await steady.start(app.databaseUrl, { CONTENT_RETENTION_SWEEP_INTERVAL_MS: '1000' }, concerns)
  }
  const project = async (fields: object) => {
    const reply = await app.admin.patch(`/projects/${app.projectId}`, fields)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
  }
  const audits = async (action: string): Promise<any[]> =>
    (await app.admin.get(`/audit-log?project_id=${app.projectId}&action=${action}&limit=200`)).body.data
  /** How much of something the audit log says went. */
  const counted = async (action: string, what: string): Promise<number> =>
    (await audits(action)).reduce((sum, { detail }) => sum + (detail.counts[what] ?? 0), 0)
  const status = async (path: string): Promise<number> => (await app.key.get(path)).status
  /** Waits until something is gone. */
  const gone = (path: string) => eventually(async () => (await status(path)) === 404, { what: `end of ${path}` })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(processes.map(each => (each.child.exitCode ?? each.child.signalCode) === null && each.kill()))
    processes.length = 0
    await project({
      trace_retention_days: null,
      conversation_retention_days: null,
      run_retention_days: null,
      content_hold_until: null,
    })
  })

  describe('of traces', () => {
    const turn = (more: object = {}, agent = app.agentId) =>
      createdBy(app.key, `/agents/${agent}/generate?wait=true`, { prompt: 'hello', ...more }, 200)
    /** As if turns had been made three days ago. */
    const age = (...ids: string[]) =>
      app.rows(
        `with g as (update generations set created_at = created_at - interval '3 days',
           last_activity_at = last_activity_at - interval '3 days' where id = any($1::text[]) returning trace_id)
         update traces t set created_at = t.created_at - interval '3 days' from g where t.id = g.trace_id`,
        [ids],
      )

    it('are deleted with their generations after the days of their project, and are counted', async () => {
      const known = (await audits('traces:ExpireTraces')).length
      const [old, young, half] = [await turn(), await turn(), await turn()]
      const later = await turn({ trace_id: half.trace_id })
      const [root, child] = [await turn(), await turn()]
      await app.rows('update traces set parent_trace_id = $1, root_trace_id = $1 where id = $2', [
        root.trace_id,
        child.trace_id,
      ])
      await age(old.id, half.id, root.id)
      await eventually(
        async () => (await app.rows('select from files where path like $1', [`%${old.trace_id}%`])).length === 1,
      )
      await steadySweeper()
      await project({ trace_retention_days: 1 })
      await gone(`/traces/${old.trace_id}`)
      assert.equal(await status(`/generations/${old.id}`), 404)
      for (const { id, trace_id } of [young, half, later, root, child]) {
        assert.equal(await status(`/traces/${trace_id}`), 200)
        const { body } = await app.key.get(`/generations/${id}`)
        assert.equal(body.content_redacted_at, null)
      }
      for (const table of ['generation_steps', 'generation_journal'])
        assert.deepEqual(await app.rows(`select from ${table} where generation_id = $1`, [old.id]), [])
      assert.deepEqual(await app.rows('select from files where path like $1', [`%${old.trace_id}%`]), [])
      const [entry, ...more] = await audits('traces:ExpireTraces')
      assert.equal(more.length, known)
      assert.deepEqual([entry.principal_type, entry.resource_public_id], [null, app.projectId])
      const { kind, before, counts } = entry.detail
      assert.deepEqual([kind, counts.traces, counts.generations, counts.trace_files], ['retention_sweep', 1, 1, 1])
      assert.ok(Date.now() - Date.parse(before) >= 86_400_000)
      // Its usage is still to be paid for, and the list counts existing records.
      assert.equal((await app.key.get(`/usage/events?generation_id=${old.id}`)).body.total, 1)
      assert.equal((await app.key.get('/generations')).body.total, 5)
      assert.equal((await app.key.get('/traces')).body.total, 4)
      // A tree goes as a whole.
      await age(child.id)
      await gone(`/traces/${root.trace_id}`)
      assert.equal(await status(`/traces/${child.trace_id}`), 404)
    })

    it('stay while a turn runs, an approval waits, a chain continues, or a legal hold is on', async () => {
      const double = client(app.double)
      await double.put('slow', { rules: [{ reply: { text: 'x', gate: 'slow' } }] })
      const slow = await app.agent({ model: 'slow/m' })
      const asked = (await app.key.post(`/agents/${slow}/generate`, { prompt: 'x' })).body
      const running = { id: asked.generation_id, trace_id: asked.trace_id }
      await eventually(async () => ((await double.gate('slow'))?.waiting ?? 0) > 0)
      const [awaited, chained, plain] = [await turn(), await turn(), await turn()]
      await app.rows(
        `insert into approvals (id, project_id, origin, generation_id, expires_at)
         values ('approval_1', $1, 'tool_call', $2, now() + interval '1 day')`,
        [app.projectId, awaited.id],
      )
      await app.rows(
        `with chain as (
           insert into chains (id, project_id, agent_id, root_generation_id, "limit", limit_source, last_generation_at)
           values ('chain_1', $1, $2, $3, 9, 'platform', now()) returning id)
         update generations set chain_id = chain.id from chain where generations.id = $3`,
        [app.projectId, app.agentId, chained.id],
      )
      await age(running.id, awaited.id, chained.id, plain.id)
      await project({ trace_retention_days: 1, content_hold_until: new Date(Date.now() + 3_600_000).toISOString() })
      // A project without a hold shows that the sweep has been there.
      const other = await app.project(undefined, app.projectId)
      await app.admin.patch(`/projects/${other.id}`, { trace_retention_days: 1 })
      const expired = app.inCellOf(other.id, () => newId('trace'))
      const old = `insert into traces (id, project_id, agent_id, created_at) values ($1, $2, $3, now() - interval '3 days')`
      await app.rows(old, [expired, other.id, app.agentId])
      await steadySweeper()
      await eventually(async () => (await app.admin.get(`/traces/${expired}`)).status === 404)
      assert.equal(await status(`/traces/${plain.trace_id}`), 200)

      await project({ content_hold_until: null })
      await gone(`/traces/${plain.trace_id}`)
      for (const { id, trace_id } of [running, awaited, chained]) {
        assert.equal(await status(`/traces/${trace_id}`), 200)
        assert.equal((await app.key.get(`/generations/${id}`)).body.content_redacted_at, null)
      }
      await app.rows(`update approvals set status = 'rejected'`)
      await app.rows(`update chains set last_generation_at = now() - interval '2 days'`)
      await double.read('POST', '/control/gates/slow/open')
      await gone(`/traces/${awaited.trace_id}`)
      await gone(`/traces/${chained.trace_id}`)
      // It has just ended.
      assert.equal(await status(`/traces/${running.trace_id}`), 200)
    })
  })

  describe('of conversations', () => {
    const session = async (text: string, agent_id = app.agentId) => {
      const made = await app.key.post('/sessions', { agent_id })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      const said = await app.key.post(`/sessions/${made.body.id}/messages`, { message: text })
      assert.equal(said.status, 201, JSON.stringify(said.body))
      return { id: made.body.id as string, conversation_id: made.body.conversation_id as string }
    }
    /** As if nothing had happened in conversations for three days. */
    const age = (...ids: string[]) =>
      app.rows(
        `update conversations set created_at = created_at - interval '3 days', updated_at = updated_at - interval '3 days'
         where id = any($1::text[])`,
        [ids],
      )

    it('are deleted with their sessions and messages after the days of their project, and are counted', async () => {
      const action = 'conversations:ExpireConversations'
      const totals = () => Promise.all(['conversations', 'sessions', 'messages'].map(what => counted(action, what)))
      const before = await totals()

      const [old, young, active] = [await session('old'), await session('young'), await session('active')]
      const fork = await app.key.post(`/sessions/${old.id}/fork`, {})
      assert.equal(fork.status, 201, JSON.stringify(fork.body))
      const plain = (await app.key.post('/conversations', {})).body.id as string
      await age(old.conversation_id, active.conversation_id, plain)
      assert.equal((await app.key.post(`/sessions/${active.id}/messages`, { message: 'again' })).status, 201)
      await steadySweeper()
      await project({ conversation_retention_days: 1 })
      await gone(`/conversations/${old.conversation_id}`)
      await gone(`/conversations/${plain}`)
      assert.equal(await status(`/sessions/${old.id}`), 404)
      for (const { id } of [young, active, fork.body]) assert.equal(await status(`/sessions/${id}`), 200)
      // A text that a fork shares stays.
      const { body } = await app.key.get(`/sessions/${fork.body.id}/messages`)
      assert.deepEqual(
        body.data.map(({ content }: any) => content),
        ['old'],
      )
      assert.equal((await app.key.get(`/events?resource_id=${old.id}&event=sessions.deleted`)).body.total, 1)
      assert.equal((await app.key.get(`/events?resource_id=${plain}&event=conversations.deleted`)).body.total, 1)
      const after = await totals()
      assert.deepEqual(
        after.map((count, at) => count - before[at]),
        [2, 1, 1],
      )
      const [entry] = await audits(action)
      assert.deepEqual(
        [entry.principal_type, entry.resource_public_id, entry.detail.kind],
        [null, app.projectId, 'retention_sweep'],
      )
    })

    it('stay while a turn waits or runs, an approval waits, or a legal hold is on', async () => {
      const double = client(app.double)
      await double.put('held', { rules: [{ reply: { text: 'x', gate: 'held' } }] })
      const slow = await app.agent({ model: 'held/m' })
      const [running, awaited, plain] = [await session('a', slow), await session('b'), await session('c')]
      assert.equal((await app.key.post(`/sessions/${running.id}/generate`, {})).status, 202)
      await eventually(async () => ((await double.gate('held'))?.waiting ?? 0) > 0)
      const answered = await app.key.post(`/sessions/${awaited.id}/generate?wait=true`, {})
      assert.equal(answered.status, 200, JSON.stringify(answered.body))
      await app.rows(
        `insert into approvals (id, project_id, origin, generation_id, expires_at)
         values ('approval_2', $1, 'tool_call', $2, now() + interval '1 day')`,
        [app.projectId, answered.body.generation_id],
      )
      await age(running.conversation_id, awaited.conversation_id, plain.conversation_id)
      await project({
        conversation_retention_days: 1,
        content_hold_until: new Date(Date.now() + 3_600_000).toISOString(),
      })
      const other = await app.project()
      await app.admin.patch(`/projects/${other.id}`, { conversation_retention_days: 1 })
      const free = (await other.key.post('/conversations', {})).body.id as string
      await age(free)
      await steadySweeper()
      await eventually(async () => (await other.key.get(`/conversations/${free}`)).status === 404)
      assert.equal(await status(`/sessions/${plain.id}`), 200)

      await project({ content_hold_until: null })
      await gone(`/sessions/${plain.id}`)
      for (const { id } of [running, awaited]) assert.equal(await status(`/sessions/${id}`), 200)
      await app.rows(`update approvals set status = 'rejected'`)
      await gone(`/sessions/${awaited.id}`)
      await double.read('POST', '/control/gates/held/open')
      // Its reply was something that happened.
      await eventually(async () => (await app.key.get(`/sessions/${running.id}/messages`)).body.total === 2)
      assert.equal(await status(`/sessions/${running.id}`), 200)
    })
  })

  describe('of runs', () => {
    let graph: string
    before(async () => {
      const made = await app.admin.post('/orchestrations', {
        project_id: app.projectId,
        name: 'expiring',
        nodes: [{ id: 'n', type: 'transform', expression: { cat: ['a', 'b'] } }],
        edges: [],
      })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      graph = made.body.id
    })
    const started = async () => {
      const { body } = await app.admin.post('/orchestration-runs', { orchestration_id: graph })
      await eventually(async () => (await app.admin.get(`/orchestration-runs/${body.id}`)).body.status === 'succeeded')
      return body.id as string
    }
    /** As if runs had been made and ended three days ago. */
    const age = (...ids: string[]) =>
      app.rows(
        `update orchestration_runs set created_at = created_at - interval '3 days',
           completed_at = completed_at - interval '3 days' where id = any($1::text[])`,
        [ids],
      )
    const has = async (id: string) => (await app.admin.get(`/orchestration-runs/${id}`)).status === 200

    it('are deleted with their nodes and nested runs once all have ended, and stay under a hold or while a retry is young', async () => {
      await steadySweeper(['orchestration'])
      const [old, young, live, retried, retry, parent, child] = [
        await started(),
        await started(),
        await started(),
        await started(),
        await started(),
        await started(),
        await started(),
      ]
      await age(old, live, retried, parent, child)
      await app.rows('update orchestration_runs set retry_of_run_id = $1 where id = $2', [retried, retry])
      await app.rows('update orchestration_runs set parent_id = $1, root_id = $1, run_depth = 1 where id = $2', [
        parent,
        child,
      ])
      await app.rows(
        `update orchestration_runs set status = 'awaiting_input', completed_at = null where id = any($1)`,
        [[live, child]],
      )
      await project({ run_retention_days: 1, content_hold_until: new Date(Date.now() + 3_600_000).toISOString() })
      const other = await app.project()
      await app.admin.patch(`/projects/${other.id}`, { run_retention_days: 1 })
      const free = `${old.slice(0, -1)}_`
      await app.rows(
        `insert into orchestration_runs select (jsonb_populate_record(r, jsonb_build_object('id', $2::text, 'root_id', $2::text, 'project_id', $3::text))).*
         from orchestration_runs r where id = $1`,
        [old, free, other.id],
      )
      await steadySweeper()
      await eventually(
        async () => (await app.rows('select from orchestration_runs where id = $1', [free])).length === 0,
      )
      assert.ok(await has(old))

      await project({ content_hold_until: null })
      await eventually(async () => !(await has(old)))
      assert.deepEqual(await app.rows('select from orchestration_node_executions where run_id = $1', [old]), [])
      for (const id of [young, live, retried, retry, parent, child]) assert.ok(await has(id), id)
      const [{ detail }] = await audits('orchestrations:ExpireRuns')
      assert.deepEqual([detail.kind, detail.counts], ['retention_sweep', { runs: 1, node_executions: 1 }])

      await age(retry)
      await app.rows(
        `update orchestration_runs set status = 'cancelled', completed_at = now() - interval '3 days' where id = $1`,
        [child],
      )
      for (const id of [retried, retry, parent, child]) await eventually(async () => !(await has(id)))
      for (const id of [young, live]) assert.ok(await has(id), id)
      await app.rows(`update orchestration_runs set status = 'cancelled', completed_at = now() where id = $1`, [live])
    })
  })

  it('that stay are counted in a metric, and reported when they grow, until they are gone', async () => {
    const other = await app.project()
    await app.admin.patch(`/projects/${other.id}`, { conversation_retention_days: 1 })
    const make = (count: number) =>
      app.rows(
        `insert into conversations (id, project_id, created_at, updated_at)
         select 'conv_' || md5(random()::text), $1, now() - interval '5 days', now() - interval '5 days'
         from generate_series(1, $2::int)`,
        [other.id, count],
      )
    // A fault that lets no conversation of the project go.
    await app.rows(
      `create function refuse_delete() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`,
    )
    await app.rows(
      `create trigger refuse_delete before delete on conversations for each row
       when (old.project_id = '${other.id}') execute function refuse_delete()`,
    )
    const backlog = async () => {
      const text = await (await fetch(`${app.url}/metrics`)).text()
      const counts = text.matchAll(
        /muster_retention_backlog_records\{setting="conversation_retention_days"(?:,cell="\w+")?\} (\d+)/g,
      )
      return [...counts].reduce((sum, [, count]) => sum + Number(count), 0)
    }
    const exceptions = async (state: string): Promise<any[]> =>
      (await app.admin.get(`/exceptions?project_id=${other.id}&status=${state}`)).body.data
    await make(120)
    await steadySweeper(['snapshot', 'delivery'])
    await eventually(async () => (await backlog()) === 120)
    assert.deepEqual(await exceptions('open'), [])
    await make(30)
    await eventually(async () => (await backlog()) === 150)
    await eventually(async () => (await exceptions('open')).length === 1)
    const [{ kind, title }] = await exceptions('open')
    assert.deepEqual([kind, title.includes('150 expired records')], ['retention_backlog', true])
    await app.rows('drop trigger refuse_delete on conversations')
    await eventually(async () => (await backlog()) === 0)
    assert.equal((await exceptions('resolved')).length, 1)
  })

  it('go page by page, each once, by workers that are killed and that work at the same time', async () => {
    const made = `'0' || lpad(n::text, 25, '0'), $1, now() - interval '5 days' + n * interval '1 s'`
    await app.rows(
      `insert into traces (id, project_id, created_at, agent_id)
       select 'trace_' || ${made}, $2 from generate_series(1, 250) n`,
      [app.projectId, app.agentId],
    )
    await app.rows(
      `insert into conversations (id, project_id, created_at, updated_at)
       select 'conv_' || ${made}, now() - interval '4 days' from generate_series(1, 250) n`,
      [app.projectId],
    )
    const left = async (table: string) => (await app.rows(`select from ${table} where id like '%\\_00000%'`)).length
    const [traces, conversations] = ['traces:ExpireTraces', 'conversations:ExpireConversations']
    const before = [await counted(traces, 'traces'), await counted(conversations, 'conversations')]
    await project({ trace_retention_days: 1 })
    const first = await sweeper({ FAULT_POINTS: 'traces_expired=kill' })
    assert.equal((await first.exited).signal, 'SIGKILL')
    assert.equal(await left('traces'), 150)
    await project({ conversation_retention_days: 1 })
    const second = await sweeper({ FAULT_POINTS: 'conversations_expired=kill' })
    assert.equal((await second.exited).signal, 'SIGKILL')
    assert.equal(await left('conversations'), 150)
    await Promise.all([steadySweeper(), steadySweeper()])
    await eventually(async () => (await left('traces')) + (await left('conversations')) === 0)
    assert.equal((await counted(traces, 'traces')) - before[0], 250)
    assert.equal((await counted(conversations, 'conversations')) - before[1], 250)
  })

  it('stay where no days are set, and where the sweep is switched off', async () => {
    const conversation = (await app.key.post('/conversations', {})).body.id as string
    const other = await app.project()
    const free = (await other.key.post('/conversations', {})).body.id as string
    await app.rows(
      `update conversations set created_at = now() - interval '9 years', updated_at = now() - interval '9 years'`,
    )
    await app.admin.patch(`/projects/${other.id}`, { conversation_retention_days: 1 })
    const off = await sweeper({ CONTENT_RETENTION_SWEEP_DISABLED: 'true' })
    // Another duty of the same worker shows that it is at work.
    const actor = (await app.key.post('/actors', { name: 'Ann' })).body.id
    await app.key.post(`/actors/${actor}/purge-content`)
    await eventually(async () => (await app.rows('select from actor_purges')).length === 0)
    assert.equal((await other.key.get(`/conversations/${free}`)).status, 200)
    await off.kill()
    await steadySweeper()
    await eventually(async () => (await other.key.get(`/conversations/${free}`)).status === 404)
    assert.equal(await status(`/conversations/${conversation}`), 200)
    assert.equal((await app.key.delete(`/conversations/${conversation}`)).status, 204)
    for (const days of [0, -1, 1.5, 'x'])
      assert.equal((await app.admin.patch(`/projects/${app.projectId}`, { trace_retention_days: days })).status, 400)
  })
})
