import assert from 'node:assert/strict'
import { computeBriefScores } from '#evaluation/eval-runs/score.ts'
import { processorMs } from '../support/event-loop.ts'
import { forSuite } from '../support/suite.ts'
import { ended, item, made, refused, startEvalApp } from './support.ts'

describe('evals', () => {
  const app = forSuite(() => startEvalApp({ env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  let agent_id: string
  before(async () => {
    agent_id = await app.echo('plain')
  })

  const EXACT = [{ type: 'exact_match' }]

  it('search for a long text in a long answer in time linear in both', async () => {
    const scorer = { type: 'contains', value: `${'a'.repeat(32_000)}b${'a'.repeat(32_000)}` } as never
    const ms = await processorMs(async () => {
      const run = { scorers: [scorer] }
      const score = async (output: string) => (await computeBriefScores({ run, output } as never))?.[0].passed
      assert.equal(await score('a'.repeat(4_000_000)), false)
      assert.equal(await score(`${'a'.repeat(100_000)}B${'a'.repeat(100_000)}`), true)
    })
    assert.ok(ms < 2000, `${ms} ms`)
  })

  it('run every item by one version of an agent and count how many pass', async () => {
    const dataset_id = await app.dataset([item('a', 'Yes '), item('b', 'No'), item('c')])
    const scorers = [{ type: 'exact_match' }, { type: 'contains', value: 'yes' }]
    const { id, revision } = await app.eval({ agent_id, dataset_id, scorers, pass_threshold: 0.5 })
    assert.equal(revision, 1)
    const run = await app.run(id, { metadata: { why: 'test' } })
    assert.match(run.id, /^evrun_/)
    const { status, agent_version, item_count, completed_count, errored_count, passed, metadata, eval_revision } = run
    assert.deepEqual(
      { status, agent_version, item_count, completed_count, errored_count, passed, metadata, eval_revision },
      {
        status: 'completed',
        agent_version: 1,
        item_count: 3,
        completed_count: 3,
        errored_count: 0,
        passed: false,
        metadata: { why: 'test' },
        eval_revision: 1,
      },
    )
    const { scorers: figures, pass_rate, scored_item_count, pass_rate_interval } = run.aggregate_scores
    assert.deepEqual(figures, {
      exact_match: { mean: 1 / 3, pass_rate: 1 / 3 },
      contains: { mean: 1, pass_rate: 1 },
    })
    assert.deepEqual([pass_rate, scored_item_count, pass_rate_interval.level], [1 / 3, 3, 0.95])
    const results = await app.results(run)
    assert.deepEqual(
      new Map(results.map(({ expected_output, passed }) => [expected_output, passed])),
      new Map([
        ['No', false],
        ['Yes ', true],
        [null, false],
      ]),
    )
    const [first] = results
    assert.deepEqual(first.scores[1], { scorer: 'contains', score: 1, passed: true })
    assert.equal(first.output, 'Yes')
    const turn = (await app.key.get(`/generations/${first.generation_id}`)).body
    assert.deepEqual(
      [turn.source, turn.agent_version, turn.metadata.eval_run_id, turn.metadata.dataset_item_id],
      ['eval', 1, run.id, first.dataset_item_id],
    )
    assert.equal((await app.results(run, '?passed=true')).length, 1)
    const events = (await app.key.get(`/events?resource_id=${run.id}`)).body.data
    assert.deepEqual(
      events.map(({ event, data }: any) => [event, data.passed]),
      [['eval_runs.completed', false]],
    )
    assert.deepEqual(events[0].data, run)
  })

  it('refuse a run of nothing, a run too large to wait for, and invalid choices', async () => {
    const empty = await app.eval({ agent_id, dataset_id: await app.dataset([]), scorers: EXACT })
    for (const wait of [true, false])
      refused(await app.key.post(`/evals/${empty.id}/runs`, { wait }), 400, 'VALIDATION_FAILED')
    const dataset_id = await app.dataset(Array.from({ length: 26 }, (_, at) => item(`q${at}`)))
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const path = `/evals/${id}/runs`
    refused(await app.key.post(path, { wait: true }), 400, 'VALIDATION_FAILED', 'wait')
    refused(await app.key.post(path, { wait: 'yes' }), 400, 'VALIDATION_FAILED', 'wait')
    refused(await app.key.post(path, { agent_version: 7 }), 400, 'VALIDATION_FAILED', 'agent_version')
    refused(await app.key.post(path, { metadata: [] }), 400, 'VALIDATION_FAILED', 'metadata')
    refused(await app.key.post(path, { tool_context: { a: '1', A: '2' } }), 400, 'INVALID_TOOL_CONTEXT_KEY')
    assert.equal((await app.key.get(path)).body.total, 0)
    const run = await made(app.key, path, {})
    assert.deepEqual([run.status, run.item_count, run.aggregate_scores], ['queued', 26, null])
    assert.equal((await ended(app.key, run)).completed_count, 26)
    const other = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    refused(await app.key.post(`/evals/${other.id}/runs`, { baseline_run_id: run.id }), 400, 'VALIDATION_FAILED')
    refused(await app.key.get(`/evals/${other.id}/runs/${run.id}`), 404, 'RESOURCE_NOT_FOUND')
    refused(await app.key.get(`/evals/${other.id}/runs/${run.id}/results`), 404, 'RESOURCE_NOT_FOUND')
  })

  it('have names that are unique, references that exist, and scorers that fit the agent', async () => {
    const dataset_id = await app.dataset([item('a')])
    const post = (fields: object) =>
      app.key.post('/evals', { name: 'bad', agent_id, dataset_id, scorers: EXACT, ...fields })
    refused(await post({ agent_id: 'agent_1' }), 400, 'AGENT_NOT_FOUND')
    refused(await post({ dataset_id: 'dset_1' }), 400, 'VALIDATION_FAILED', 'dataset_id')
    const scored = async (scorers: object[], code: string, path?: string) =>
      refused(await post({ scorers }), 400, code, path)
    await scored([], 'VALIDATION_FAILED', 'scorers')
    await scored([{ type: 'exact_match', value: 'x' }], 'VALIDATION_FAILED', 'scorers[0].value')
    await scored([{ type: 'contains', value: '' }], 'VALIDATION_FAILED', 'scorers[0].value')
    await scored([...EXACT, ...EXACT], 'VALIDATION_FAILED', 'scorers[1].type')
    await scored([{ type: 'output_schema' }], 'VALIDATION_FAILED', 'scorers[0]')
    await scored([{ type: 'json_logic' }], 'VALIDATION_FAILED', 'scorers[0].expression')
    await scored([{ type: 'embedding_similarity', pass_threshold: 0.5 }], 'VALIDATION_FAILED', 'scorers[0]')
    await scored([{ type: 'llm_judge', prompt: 'x', pass_threshold: 1 }], 'VALIDATION_FAILED', 'scorers[0]')
    await scored(
      [{ type: 'llm_judge', prompt: 'x', pass_threshold: 1, ai_provider_id: 'aip_1' }],
      'AI_PROVIDER_NOT_FOUND',
    )
    await scored([{ type: 'tool', name: 't', tool_id: 'tool_1' }], 'TOOL_NOT_FOUND')
    const decider = { type: 'decider', name: 'd', decider_id: 'dcd_1', score: 1, pass_threshold: 1 }
    await scored([decider], 'VALIDATION_FAILED', 'scorers[0].decider_id')
    await scored([{ ...decider, name: 'contains' }], 'VALIDATION_FAILED', 'scorers[0].name')
    await scored([{ type: 'tool', name: 'd', tool_id: 'tool_1' }, decider], 'VALIDATION_FAILED', 'scorers[1].name')
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const { name } = (await app.key.get(`/evals/${id}`)).body
    refused(await post({ name }), 409, 'NAME_CONFLICT')
    assert.equal((await app.key.get(`/evals?dataset_id=${dataset_id}`)).body.total, 1)
  })

  it('count the changes of what a verdict goes by', async () => {
    const dataset_id = await app.dataset([item('a')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const path = `/evals/${id}`
    assert.equal((await app.key.put(path, { name: 'other name' })).body.revision, 1)
    assert.equal((await app.key.patch(path, { pass_threshold: 0.5 })).body.revision, 2)
    assert.equal((await app.key.put(path, { pass_threshold: 0.5 })).body.revision, 2)
    assert.equal((await app.key.put(path, { scorers: [{ type: 'contains', value: 'x' }] })).body.revision, 3)
    refused(await app.key.put(path, { scorers: [{ type: 'output_schema' }] }), 400, 'VALIDATION_FAILED', 'scorers[0]')
  })

  it('require permissions to call the agents and tools that they name', async () => {
    const dataset_id = await app.dataset([item('a')])
    const statement = [{ effect: 'Allow', action: ['evaluations:*'], resource: [`srn:${app.projectId}:*:*`] }]
    const writer = await app.user('eval-writer', [{ statement }])
    const body = { project_id: app.projectId, name: 'theirs', agent_id, dataset_id, scorers: EXACT }
    refused(await writer.post('/evals', body), 403, 'FORBIDDEN')
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const run = await made(writer, `/evals/${id}/runs`, { wait: true })
    assert.deepEqual([run.status, run.errored_count], ['completed', 0])
  })

  it('give items that were not answered an error and leave them out of the figures', async () => {
    const broken = await app.echo('fragile', [
      { when: { user: 'fail' }, reply: { error: { status: 400 } } },
      { reply: { text: 'Yes' } },
    ])
    const dataset_id = await app.dataset([item('ok', 'Yes'), item('please fail', 'Yes')])
    const fields = { agent_id: broken, dataset_id, scorers: EXACT, pass_threshold: 1 }
    const lenient = await app.run((await app.eval(fields)).id)
    assert.deepEqual([lenient.completed_count, lenient.errored_count, lenient.passed], [1, 1, true])
    assert.equal(lenient.aggregate_scores.pass_rate, 1)
    const [failed] = await app.results(lenient, '?errored=true')
    assert.deepEqual(
      [failed.error.code, failed.scores, failed.passed, failed.output],
      ['AI_PROVIDER_ERROR', [], false, null],
    )
    assert.equal((await app.results(lenient, '?errored=false')).length, 1)
    const strict = await app.run((await app.eval({ ...fields, max_error_rate: 0.4 })).id)
    assert.equal(strict.passed, false)
    const tolerant = await app.run((await app.eval({ ...fields, max_error_rate: 0.5 })).id)
    assert.equal(tolerant.passed, true)
  })

  it('score by expressions over the item', async () => {
    const dataset_id = await app.dataset([item('a', 'Yes', { least: 2 }), item('b', 'Yes', { least: 5 })])
    const expression = { '>=': [{ length: { var: 'output' } }, { var: 'item.metadata.least' }] }
    const { id } = await app.eval({ agent_id, dataset_id, scorers: [{ type: 'json_logic', expression }] })
    const run = await app.run(id)
    assert.equal(run.status, 'completed', JSON.stringify(run))
    const seen = (await app.results(run)).map(({ input, passed }) => [input[0].content, passed]).sort()
    assert.deepEqual(seen, [
      ['a', true],
      ['b', false],
    ])
  })

  it('keep a copy of an item after it is deleted, and are deleted with their dataset', async () => {
    const dataset_id = await app.dataset([item('a', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const run = await app.run(id)
    const [{ dataset_item_id }] = await app.results(run)
    assert.equal((await app.key.delete(`/datasets/${dataset_id}/items/${dataset_item_id}`)).status, 204)
    const [kept] = await app.results(run)
    assert.deepEqual([kept.dataset_item_id, kept.expected_output, kept.input[0].content], [null, 'Yes', 'a'])
    assert.equal((await app.key.delete(`/datasets/${dataset_id}`)).status, 204)
    refused(await app.key.get(`/evals/${id}`), 404, 'RESOURCE_NOT_FOUND')
    const events = (await app.key.get(`/events?resource_id=${id}`)).body.data.map(({ event }: any) => event)
    assert.deepEqual(events, ['evals.deleted', 'evals.created'])
  })

  it('lose what a turn answered when that is purged, not the verdict', async () => {
    const dataset_id = await app.dataset([item('a', 'Yes')])
    const run = await app.run((await app.eval({ agent_id, dataset_id, scorers: EXACT })).id)
    const [{ generation_id }] = await app.results(run)
    assert.equal((await app.key.delete(`/generations/${generation_id}/content`)).status, 200)
    const [erased] = await app.results(run)
    assert.deepEqual([erased.output, erased.passed, erased.scores.length], [null, true, 1])
  })
})
