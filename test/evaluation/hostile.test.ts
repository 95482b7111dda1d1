import assert from 'node:assert/strict'
import { counting } from '../../src/core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { type EvalApp, ended, item, made, refused, startEvalApp } from './support.ts'

const EXACT = [{ type: 'exact_match' }]
const MiB = 1024 * 1024

describe('a hostile project that evaluates', () => {
  let app: EvalApp
  before(async () => {
    app = await startEvalApp({ env: { EVAL_WORKER_INTERVAL_MS: '500' } })
  })
  after(() => app?.close())

  const judge = (lane: string, prompt = 'x') => ({
    type: 'llm_judge',
    prompt,
    pass_threshold: 0.5,
    ai_provider_id: app.providerId,
    model: `${lane}/m`,
  })
  const waiting = (gate: string) =>
    eventually(async () => ((await app.lanes.gate(gate))?.waiting ? true : null), { what: `a call at ${gate}` })
  const open = (gate: string) => app.lanes.read('POST', `/control/gates/${gate}/open`)

  it('has no judge asked with one value thousands of times', async () => {
    const agent_id = await app.echo('many')
    await app.lanes.put('many-judge', { rules: [{ reply: { text: '{"score": 1}' } }] })
    const dataset_id = await app.dataset([item('x'.repeat(MiB), 'y'.repeat(MiB))])
    const scorers = [judge('many-judge', '{{expected}}{{input}}'.repeat(3000))]
    const run = await app.run((await app.eval({ agent_id, dataset_id, scorers })).id)
    const [{ error }] = await app.results(run)
    assert.deepEqual([run.status, error.code, error.meta.scorer], ['completed', 'EVAL_SCORING_FAILED', 'llm_judge'])
    assert.match(error.message, /more than 8388608/)
    assert.equal((await app.lanes.requests('many-judge')).length, 0)
    // What an item and an answer take is asked whole.
    const plain = await app.eval({ agent_id, dataset_id, scorers: [judge('many-judge', '{{expected}}{{input}}')] })
    assert.equal((await app.run(plain.id)).completed_count, 1)
  })

  it('gets no answer back that was purged while it was judged', async () => {
    const agent_id = await app.echo('purged', [{ reply: { text: 'my secret' } }])
    await app.lanes.put('slow-judge', { rules: [{ reply: { text: '{"score": 1}', gate: 'slow-judge' } }] })
    const dataset_id = await app.dataset([item('Say it', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: [judge('slow-judge')] })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    await waiting('slow-judge')
    const { data } = (await app.key.get(`/generations?agent_id=${agent_id}`)).body
    assert.equal((await app.key.delete(`/generations/${data[0].id}/content`)).status, 200)
    await open('slow-judge')
    assert.equal((await ended(app.key, run)).completed_count, 1)
    const [result] = await app.results(run)
    assert.deepEqual([result.output, result.passed], [null, true])
  })

  it('has no judge asked while it is paused', async () => {
    const agent_id = await app.echo('halted', [{ reply: { text: 'Yes', gate: 'halted' } }])
    await app.lanes.put('halted-judge', { rules: [{ reply: { text: '{"score": 1}' } }] })
    const dataset_id = await app.dataset([item('x', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: [judge('halted-judge')] })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    await waiting('halted')
    assert.equal((await app.key.post(`/projects/${app.projectId}/pause`, {})).status, 200)
    await open('halted')
    const { data } = (await app.key.get(`/generations?agent_id=${agent_id}`)).body
    await eventually(
      async () => ((await app.key.get(`/generations/${data[0].id}`)).body.status === 'completed' ? true : null),
      { what: 'the end of the turn' },
    )
    await eventually(async () => ((await heldItems(run.id)) === 1 ? true : null), { what: 'the item to be held' })
    assert.equal((await app.lanes.requests('halted-judge')).length, 0)
    assert.equal((await app.key.post(`/projects/${app.projectId}/resume`, {})).status, 200)
    assert.equal((await ended(app.key, run)).completed_count, 1)
  })

  /** Items of a run that a pause holds. */
  const heldItems = (run: string): Promise<number> =>
    app.services.pool.oneFirst(counting`
      select count(*) as count from eval_results where eval_run_id = ${run} and held_until is not null`)

  it('reads no dataset through an eval that it may not read', async () => {
    const agent_id = await app.echo('reader')
    const mine = await app.dataset([item('mine')])
    const secret = await app.dataset([item('the secret')])
    const allow = (action: string[], resource: string[]) => ({ effect: 'Allow', action, resource })
    const user = await app.user(undefined, [
      {
        statement: [
          allow(['evaluations:*'], [`srn:${app.projectId}:eval:*`, `srn:${app.projectId}:dataset:${mine}`]),
          allow(['agents:CreateAgentGeneration'], [`srn:${app.projectId}:agent:*`]),
        ],
      },
    ])
    const body = { project_id: app.projectId, agent_id, scorers: EXACT }
    refused(await user.post('/evals', { ...body, name: 'spy', dataset_id: secret }), 403, 'FORBIDDEN')
    const own = await made(user, '/evals', { ...body, name: 'own', dataset_id: mine })
    refused(await user.patch(`/evals/${own.id}`, { dataset_id: secret }), 403, 'FORBIDDEN')
    assert.equal((await user.patch(`/evals/${own.id}`, { group_by: 'kind' })).status, 200)
    // Neither may it have an eval of others show what it does not: what scorers see and metadata that groups show.
    const theirs = await app.eval({ agent_id, dataset_id: secret, scorers: EXACT })
    refused(await user.patch(`/evals/${theirs.id}`, { group_by: 'kind' }), 403, 'FORBIDDEN')
    refused(await user.patch(`/evals/${theirs.id}`, { scorers: [{ type: 'contains', value: 'x' }] }), 403, 'FORBIDDEN')
    assert.equal((await user.patch(`/evals/${theirs.id}`, { name: 'renamed' })).status, 200)
  })

  describe('with a file', () => {
    const send = (id: string, body: string, type: string) =>
      app.key.post(`/datasets/${id}/items/import-file`, body, { 'content-type': type })
    const CSV = 'text/csv'

    it('is refused rows of a million cells at the cell that is too many', async () => {
      const id = await app.dataset([])
      const header = await send(id, `input${','.repeat(MiB)}\n`, CSV)
      refused(header, 400, 'VALIDATION_FAILED', 'lines[1]')
      const row = await send(id, `input\nx\n${'a,'.repeat(MiB)}\n`, CSV)
      refused(row, 400, 'VALIDATION_FAILED', 'lines[3]')
      assert.match(row.body.error.meta.problems[0].message, /more than 100 cells/)
      const wide = await send(id, `input\n${`${'x'.repeat(MiB)},`.repeat(20)}\n`, CSV)
      refused(wide, 400, 'VALIDATION_FAILED', 'lines[2]')
      assert.match(wide.body.error.meta.problems[0].message, /longer than a row may be/)
    })
  })
})
