import assert from 'node:assert/strict'
import { z } from 'zod'
import { sql } from '#core/db/sql.ts'
import { evalItemWork } from '#evaluation/eval-runs/process-item.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { rounds } from '../support/rounds.ts'
import { forSuite } from '../support/suite.ts'
import { ended, item, made, startEvalApp } from './support.ts'

/** Items of the run whose workers are killed. */
const ITEMS = rounds('EVAL_CRASH_ITEMS', 24, 1000)

const FAST = {
  SHUTDOWN_GRACE_MS: '2000',
  EVAL_TASK_LEASE_TTL_MS: '2000',
  EVAL_WORKER_INTERVAL_MS: '1000',
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  DATASET_MAX_ITEMS: '2000',
}

const counting = sql.type(z.object({ count: z.int() }))

describe('runs of evals whose workers are killed', () => {
  const app = forSuite(() => startEvalApp({ workers: [], env: FAST }))
  const workers: TestProcess[] = []
  const steady = steadyWorkers()
  afterEach(async () => {
    await steady.stop()
    await Promise.all(workers.splice(0).map(each => each.kill('SIGKILL')))
  })

  const doomedWorker = async (faults: string): Promise<TestProcess> => {
    const started = await startProcess('worker', app.databaseUrl, { ...FAST, FAULT_POINTS: faults }, ['evaluation'])
    workers.push(started)
    return started
  }
  /** A worker that is not killed. */
  const worker = (concern: string, env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, [concern])

  const judge = (lane: string) => ({
    type: 'llm_judge',
    prompt: 'x',
    pass_threshold: 1,
    ai_provider_id: app.providerId,
    model: `${lane}/m`,
  })
  const count = (query: ReturnType<typeof counting>) => app.pool.oneFirst(query)
  /** Usage events of the turns of an agent and of the judges of their outputs. */
  const used = (agent_id: string) =>
    Promise.all(
      ['eval', 'eval_judge'].map(source =>
        count(counting`select count(*) from usage_events where agent_id = ${agent_id} and source = ${source}`),
      ),
    )

  it('score each item once and cost what its turns cost', async function () {
    this.timeout(120_000 + ITEMS * 200)
    const agent_id = await app.echo('crashing')
    await app.lanes.put('crash-judge', { rules: [{ reply: { text: '{"score": 1}' } }] })
    const dataset_id = (await made(app.key, '/datasets', { name: 'crash' })).id
    const items = Array.from({ length: ITEMS }, (_, at) => item(`q${at}`, 'Yes'))
    for (let from = 0; from < ITEMS; from += 500)
      await made(app.key, `/datasets/${dataset_id}/items/import`, { items: items.slice(from, from + 500) })
    const scorers = [{ type: 'exact_match' }, judge('crash-judge')]
    const { id } = await app.eval({ agent_id, dataset_id, scorers, pass_threshold: 1 })
    const run = await made(app.key, `/evals/${id}/runs`, {})

    await worker('generation')
    const doomed = await Promise.all([
      doomedWorker(`${evalItemWork.name}/claimed=kill:3`),
      doomedWorker(`${evalItemWork.name}/ending=kill:4`),
      doomedWorker(`${evalItemWork.name}/ended=kill:5`),
    ])
    await Promise.all(doomed.map(each => each.exited))
    const last = await doomedWorker('eval_run_settling=kill')
    await last.exited
    await worker('evaluation')
    const done = await eventually(
      async () => {
        const { body } = await app.key.get(`/evals/${id}/runs/${run.id}`)
        return body.status === 'completed' || body.status === 'failed' ? body : null
      },
      { what: 'end of the run', within: 60_000 + ITEMS * 200 },
    )
    assert.deepEqual(
      [done.status, done.completed_count, done.errored_count, done.passed],
      ['completed', ITEMS, 0, true],
    )

    const generations = await count(counting`
      select count(*) from generations where agent_id = ${agent_id} and source = 'eval'`)
    const results = await count(counting`
      select count(distinct item_id) from eval_results where eval_run_id = ${run.id} and state = 'done'`)
    assert.deepEqual([generations, results, ...(await used(agent_id))], [ITEMS, ITEMS, ITEMS, ITEMS])
    const events = (await app.key.get(`/events?resource_id=${run.id}`)).body.data
    assert.equal(events.length, 1)
  })

  it('get nothing from a worker that is suspended past its lease while it scores', async function () {
    this.timeout(60_000)
    const agent_id = await app.echo('freezing')
    await app.lanes.put('freeze-judge', { rules: [{ reply: { text: '{"score": 1}' } }] })
    const { id } = await app.eval({
      agent_id,
      dataset_id: await app.dataset([item('q', 'Yes')]),
      scorers: [judge('freeze-judge')],
    })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    await worker('generation')
    await (await doomedWorker(`${evalItemWork.name}/ended=kill`)).exited
    const hasState = (state: string) =>
      eventually(
        () =>
          count(counting`
            select count(*) from eval_results where eval_run_id = ${run.id} and state = ${state} and output is not null`),
        { what: `an item that is ${state}` },
      )
    await hasState('queued')
    const frozen = await worker('evaluation', { FAULT_POINTS: `${evalItemWork.name}/claimed=freeze:3000` })
    await hasState('running')
    process.kill(frozen.pid, 'SIGSTOP')
    await worker('evaluation')
    const done = await ended(app.key, run)
    assert.deepEqual([done.status, done.completed_count], ['completed', 1])
    process.kill(frozen.pid, 'SIGCONT')
    await eventually(() => frozen.output.some(line => line.includes('"outcome":"claim_lost"')), {
      what: `the loss of the claim\n${frozen.output.join('\n')}`,
    })
    const [{ error, scores }] = await app.results(run)
    assert.deepEqual([error, scores.length, await used(agent_id)], [null, 1, [1, 1]])
  })
})
