import assert from 'node:assert/strict'
import { z } from 'zod'
import { sql } from '../../src/core/db/sql.ts'
import { evalItemWork } from '../../src/evaluation/eval-runs/process-item.ts'
import { eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { type EvalApp, item, made, startEvalApp } from './support.ts'

/** Items of the run whose workers are killed. A long run: 1000. */
const ITEMS = Number(process.env.EVAL_CRASH_ITEMS ?? 24)

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
  let app: EvalApp
  const workers: TestProcess[] = []
  before(async () => {
    app = await startEvalApp({ workers: [], env: FAST })
  })
  after(async () => {
    for (const worker of workers) worker.kill('SIGKILL')
    await app?.close()
  })

  const worker = async (concerns: string[], faults?: string): Promise<TestProcess> => {
    const env = { ...FAST, ...(faults ? { FAULT_POINTS: faults } : {}) }
    const started = await startProcess('worker', app.databaseUrl, env, concerns)
    workers.push(started)
    return started
  }

  it('score each item once and cost what its turns cost', async function () {
    this.timeout(60_000 + ITEMS * 200)
    const agent_id = await app.echo('crashing')
    await app.lanes.put('crash-judge', { rules: [{ reply: { text: '{"score": 1}' } }] })
    const dataset_id = (await made(app.key, '/datasets', { name: 'crash' })).id
    const items = Array.from({ length: ITEMS }, (_, at) => item(`q${at}`, 'Yes'))
    for (let from = 0; from < ITEMS; from += 500)
      await made(app.key, `/datasets/${dataset_id}/items/import`, { items: items.slice(from, from + 500) })
    const judge = {
      type: 'llm_judge',
      prompt: 'x',
      pass_threshold: 1,
      ai_provider_id: app.providerId,
      model: 'crash-judge/m',
    }
    const { id } = await app.eval({
      agent_id,
      dataset_id,
      scorers: [{ type: 'exact_match' }, judge],
      pass_threshold: 1,
    })
    const run = await made(app.key, `/evals/${id}/runs`, {})

    await worker(['generation'])
    const doomed = await Promise.all([
      worker(['evaluation'], `${evalItemWork.name}/claimed=kill:3`),
      worker(['evaluation'], `${evalItemWork.name}/ending=kill:4`),
      worker(['evaluation'], `${evalItemWork.name}/ended=kill:5`),
    ])
    await Promise.all(doomed.map(each => each.exited))
    const last = await worker(['evaluation'], 'eval_run_settling=kill')
    await last.exited
    await worker(['evaluation'])
    const done = await eventually(
      async () => {
        const { body } = await app.key.get(`/evals/${id}/runs/${run.id}`)
        return body.status === 'completed' || body.status === 'failed' ? body : null
      },
      { what: 'end of the run', within: 40_000 + ITEMS * 200 },
    )
    assert.deepEqual(
      [done.status, done.completed_count, done.errored_count, done.passed],
      ['completed', ITEMS, 0, true],
    )

    const count = (query: ReturnType<typeof counting>) => app.services.pool.oneFirst(query)
    const generations = await count(counting`
      select count(*) from generations where agent_id = ${agent_id} and source = 'eval'`)
    const used = (source: string) =>
      count(counting`select count(*) from usage_events where agent_id = ${agent_id} and source = ${source}`)
    const results = await count(counting`
      select count(distinct item_id) from eval_results where eval_run_id = ${run.id} and state = 'done'`)
    assert.deepEqual([generations, results, await used('eval'), await used('eval_judge')], [ITEMS, ITEMS, ITEMS, ITEMS])
    const events = (await app.key.get(`/events?resource_id=${run.id}`)).body.data
    assert.equal(events.length, 1)
  })
})
