import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { TASK_DISPATCH } from '#automation/workflows/tasks/queue.ts'
import { sql } from '#core/db/sql.ts'
import { json, made } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { rounds } from '../support/rounds.ts'
import { forSuite } from '../support/suite.ts'
import { FAST, historyOf, move, ok, read, startTaskApp, task, until, workflow } from './tasks-support.ts'

/** Tasks per fault point, and workers killed there. */
const TASKS = rounds('CRASH_TASKS', 3, 100)
const KILLS = rounds('CRASH_KILLS', 1, 20)

/** Fault points, and the kind of work that the task has started. */
const POINTS = [
  ['task.dispatch/claimed', 'tool'],
  ['task_called', 'tool'],
  ['task.dispatch/ended', 'tool'],
  ['task_starting', 'agent'],
  ['task.dispatch/ended', 'orchestration'],
  ['task_settling', 'orchestration'],
] as const

describe('tasks after the loss of a worker', function () {
  this.timeout(600_000)
  const app = forSuite(() => startTaskApp({ workers: [] }))
  const key = forSuite(() => app.key)
  let doomed: TestProcess | undefined
  const steady = steadyWorkers()
  let repeatable: string
  let quick: string
  const flows = new Map<string, any>()

  const kinds = ['orchestration', 'generation', 'trigger']
  const doomedWorker = async (FAULT_POINTS: string) => {
    doomed = await startProcess('worker', app.databaseUrl, { ...FAST, FAULT_POINTS }, kinds)
    return doomed
  }
  /** A worker that is not killed. */
  const worker = (env: Record<string, string> = {}) => steady.start(app.databaseUrl, { ...FAST, ...env }, kinds)
  const flowOf = async (kind: string, tool_id = repeatable) => {
    const targets = {
      tool: { tool_id },
      agent: { agent_id: app.agentId, input_mapping: { prompt: 'hello' } },
      orchestration: { orchestration_id: quick },
    }
    const name = `${kind} ${tool_id}`
    if (!flows.has(name))
      flows.set(
        name,
        await workflow(key, {
          states: [
            {
              name: 'work',
              initial: true,
              on_enter: {
                dispatch: { kind, ...targets[kind as keyof typeof targets] },
                on_complete: [{ when: true, transition: 'pass' }],
                on_failure: 'fall',
              },
            },
            { name: 'good', terminal: true },
            { name: 'bad', terminal: true },
          ],
          transitions: [
            { name: 'pass', from: ['work'], to: 'good' },
            { name: 'fall', from: ['work'], to: 'bad' },
          ],
        }),
      )
    return flows.get(name)
  }
  const closed = (id: string) => until(key, id, ({ status }) => status === 'closed', 120_000)
  const forget = (id: string) =>
    app.pool.query(
      sql.unsafe`delete from pgboss.job_common where name = ${TASK_DISPATCH} and data ->> 'entity_id' = ${id}`,
    )

  before(async () => {
    const fields = { project_id: app.projectId, execute: { url: app.target.url } }
    repeatable = (await made(app.admin, { ...fields, name: 'repeatable', idempotent: true })).id
    const node = { id: 'a', type: 'transform', expression: 1 }
    quick = (await ok(key.post('/orchestrations', { name: 'quick', nodes: [node], edges: [] }), 201)).id
  })
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })
  const stopAll = async () => {
    await steady.stop()
    await doomed?.kill()
  }
  after(async () => {
    await stopAll()
  })

  it('applies each transition and starts each work item once, whatever the fault point', async () => {
    const tasks: { id: string; kind: string }[] = []
    for (const [point, kind] of POINTS) {
      const flow = await flowOf(kind)
      for (let n = 0; n < TASKS; n++) tasks.push({ id: (await task(key, flow.id)).id, kind })
      for (let kill = 1; kill <= KILLS; kill++) {
        const killed = await doomedWorker(`${point}=kill:${kill}`)
        if (kill > 1) tasks.push({ id: (await task(key, flow.id)).id, kind })
        // The first is killed at the first fault; later workers may have less to do.
        const idle = kill === 1 ? new Promise<never>(() => {}) : sleep(5000)
        await Promise.race([killed.exited, idle])
        await killed.kill()
      }
    }
    await worker()
    for (const { id } of tasks) {
      assert.equal((await closed(id)).state, 'good')
      const moves = (await historyOf(key, id)).map(({ transition }) => transition)
      assert.deepEqual(moves, [null, 'pass'])
    }
    const idsOf = (kind: string) => tasks.filter(each => each.kind === kind).map(({ id }) => id)
    const runs = await app.pool.anyFirst(sql.unsafe`select task_id from orchestration_runs order by task_id`)
    assert.deepEqual(runs, idsOf('orchestration').sort())
    const turns = await ok(key.get('/generations?limit=1'))
    assert.equal(turns.total, idsOf('agent').length)
    const keys = app.target.requests.map(({ headers }) => headers['idempotency-key'])
    assert.deepEqual(
      [...new Set(keys)].sort(),
      idsOf('tool')
        .map(id => `${id}:1:1`)
        .sort(),
    )
    const used = await ok(
      app.admin.get(`/usage/events?project_id=${app.projectId}&meter_type=tool_execution&limit=100`),
    )
    assert.equal(used.total, idsOf('tool').length)
  })

  it('fails a call that is not repeatable', async () => {
    await stopAll()
    const { id } = await task(key, (await flowOf('tool', app.toolId)).id)
    await (await doomedWorker('task_called=kill')).exited
    await worker()
    const failed = await closed(id)
    assert.equal(failed.state, 'bad')
    assert.equal(app.target.requests.length, 1)
    const used = await ok(app.admin.get(`/usage/events?project_id=${app.projectId}&source=task&limit=100`))
    assert.equal(used.data.filter(({ tool_id }: any) => tool_id === app.toolId).length, 1)
  })

  it('recovers when the message of a dispatch is lost before or after its work has settled', async () => {
    await stopAll()
    const calling = await task(key, (await flowOf('tool')).id)
    await forget(calling.id)
    const waiting = await task(key, (await flowOf('agent')).id)
    await (await doomedWorker('task_settling=kill')).exited
    await forget(waiting.id)
    await worker()
    for (const { id } of [calling, waiting]) assert.equal((await closed(id)).state, 'good')
  })

  it('queues one message per dispatch, however often the sweep runs', async () => {
    await stopAll()
    app.target.answer = () => {}
    const flow = await flowOf('tool')
    const ids: string[] = []
    for (let n = 0; n < 4; n++) ids.push((await task(key, flow.id)).id)
    await worker({ TASK_WORKER_CONCURRENCY: '1', PROJECT_WORKER_SHARE: '1' })
    await eventually(() => app.target.requests.length === 1)
    const sweeps = () =>
      app.pool.oneFirst(sql.unsafe`
        select count(*)::int from pgboss.job_common
        where name = 'work.sweep_orchestration' and data ->> 'work' = ${TASK_DISPATCH} and state = 'completed'`) as Promise<number>
    // Past the time after which they count as orphaned.
    await app.pool.query(
      sql.unsafe`update task_dispatches set due_at = now() - interval '1 minute' where state = 'queued'`,
    )
    const before = await sweeps()
    await eventually(async () => (await sweeps()) >= before + 3)
    const waiting = await app.pool.anyFirst(sql.unsafe`
      select count(*)::int from pgboss.job_common
      where name = ${TASK_DISPATCH} and state < 'active' and data ->> 'entity_id' = any(${sql.array(ids, 'text')})
      group by data ->> 'work_id'`)
    assert.ok(waiting.length >= 3)
    assert.deepEqual([...new Set(waiting)], [1])
    await stopAll()
    app.target.answer = json({ ok: true })
    await worker()
    for (const id of ids) await closed(id)
  })

  it('ignores the writes of a worker that was frozen past its lease', async () => {
    await stopAll()
    const frozen = await worker()
    let answer = () => {}
    app.target.answer = (request, response) => {
      answer = () => json({ late: true })(request, response)
      app.target.answer = json({ ok: true })
    }
    const { id } = await task(key, (await flowOf('tool')).id)
    await eventually(() => app.target.requests.length === 1)
    process.kill(frozen.pid, 'SIGSTOP')
    await worker()
    const done = await closed(id)
    answer()
    process.kill(frozen.pid, 'SIGCONT')
    const other = await task(key, (await flowOf('tool')).id)
    await closed(other.id)
    assert.deepEqual(done.last_result, { ok: true })
    assert.deepEqual((await read(key, id)).last_result, { ok: true })
    assert.equal((await historyOf(key, id)).length, 2)
  })

  it('applies every move of fifty concurrent callers and a worker', async () => {
    const flow = await flowOf('tool')
    const { id } = await task(key, flow.id)
    const replies = await Promise.all(Array.from({ length: 50 }, () => move(key, id, 'fall')))
    const won = replies.filter(({ status }) => status === 200).length
    await closed(id)
    const moves = (await historyOf(key, id)).map(({ transition }) => transition)
    assert.deepEqual(moves, [null, won === 1 ? 'fall' : 'pass'])
  })
})
