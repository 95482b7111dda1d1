import assert from 'node:assert/strict'
import { madeDecider } from '../execution/decider-support.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { ended, item, made, quotaOfOneTurn, startEvalApp } from './support.ts'

const EXACT = [{ type: 'exact_match' }]

describe('a run of an eval', () => {
  // One item at a time, so that what happens in the midst of a run does so between two items.
  const app = forSuite(() => startEvalApp({ env: { EVAL_WORKER_BATCH: '1' } }))

  const items = (count: number) => app.dataset(Array.from({ length: count }, (_, at) => item(`q${at}`, 'Yes')))
  const waiting = (gate: string) =>
    eventually(async () => (await app.lanes.gate(gate))?.waiting === 1, { what: `a turn at ${gate}` })
  const open = (gate: string) => app.lanes.read('POST', `/control/gates/${gate}/open`)
  /** Starts a run whose first turn waits for a task meanwhile. */
  async function midway(
    lane: string,
    count: number,
    meanwhile: (run: any) => Promise<unknown>,
    scorers: object[] = EXACT,
  ) {
    const agent_id = await app.echo(lane, [
      { when: { call: 1 }, reply: { text: 'Yes', gate: lane } },
      { reply: { text: 'Yes' } },
    ])
    const { id } = await app.eval({ agent_id, dataset_id: await items(count), scorers })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    await waiting(lane)
    try {
      await meanwhile({ ...run, agent_id })
    } finally {
      await open(lane)
    }
    return run
  }
  const codes = async (run: any) => (await app.results(run)).map(({ error }) => error?.code ?? null)

  it('continues to its end when a quota is used up during the run', async () => {
    let quota = ''
    const run = await midway('spends', 4, async ({ agent_id }) => {
      quota = await quotaOfOneTurn(app, agent_id)
    })
    const { status, completed_count, errored_count, aggregate_scores } = await ended(app.key, run)
    assert.deepEqual([status, completed_count, errored_count], ['completed', 1, 3])
    assert.deepEqual(await codes(run), [null, 'QUOTA_EXCEEDED', 'QUOTA_EXCEEDED', 'QUOTA_EXCEEDED'])
    // An unanswered item is in no figure.
    assert.deepEqual([aggregate_scores.pass_rate, aggregate_scores.scored_item_count], [1, 1])
    assert.equal((await app.admin.delete(`/quotas/${quota}`)).status, 204)
  })

  it('continues to its end when its model must have a price from then on, and has none', async () => {
    const requires = (require_priced_model: boolean) =>
      app.admin.patch(`/projects/${app.projectId}`, { require_priced_model })
    const run = await midway('unpriced', 3, async () => assert.equal((await requires(true)).status, 200))
    try {
      const { status, completed_count, errored_count } = await ended(app.key, run)
      assert.deepEqual([status, completed_count, errored_count], ['completed', 1, 2])
      assert.deepEqual(await codes(run), [null, 'MODEL_NOT_PRICED', 'MODEL_NOT_PRICED'])
    } finally {
      await requires(false)
    }
  })

  it('continues with its pinned version of a decider that is deleted during the run', async () => {
    const decides = await app.echo('decides-midway', [{ reply: { object: { good: true } } }])
    const questions = [{ type: 'predicate', name: 'good', instructions: 'Is it good?' }]
    const decider = await madeDecider(app.key, { agent_id: decides, questions })
    const score = { var: 'answers_by_name.good.probability' }
    const scorer = { type: 'decider', name: 'quality', decider_id: decider.id, score, pass_threshold: 0.5 }
    const gone = async () => assert.equal((await app.key.delete(`/deciders/${decider.id}`)).status, 204)
    const run = await midway('decided-midway', 2, gone, [scorer])
    const { status, completed_count, decider_versions } = await ended(app.key, run)
    assert.deepEqual([status, completed_count, decider_versions], ['completed', 2, { quality: 1 }])
    for (const { scores } of await app.results(run)) assert.deepEqual([scores.length, scores[0].score], [1, 1])
  })

  it('that is deleted with its eval is compared whole or not at all', async () => {
    const agent_id = await app.echo('compared')
    const { id } = await app.eval({ agent_id, dataset_id: await items(3), scorers: EXACT })
    const runs = [(await app.run(id)).id, (await app.run(id)).id]
    const compare = () => app.key.get(`/evals/${id}/compare?runs=${runs.join(',')}`)
    assert.equal((await compare()).body.total, 3)
    const all = Array.from({ length: 8 }, compare)
    const [deleted, ...answers] = await Promise.all([app.key.delete(`/evals/${id}`), ...all])
    assert.equal(deleted.status, 204)
    for (const { status, body } of [...answers, await compare()]) {
      assert.ok([200, 400, 404].includes(status), JSON.stringify(body))
      if (status !== 200) continue
      for (const { results } of body.data)
        assert.ok(
          results.every((result: any) => result === null || result.passed),
          JSON.stringify(results),
        )
    }
    assert.equal((await compare()).status, 404)
  })
})
