import assert from 'node:assert/strict'
import pg from 'pg'
import { rawQuery } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { placesOf } from '../support/search-everywhere.ts'
import { forSuite } from '../support/suite.ts'
import { EVAL_ACTIONS, ended, item, made, refused, startEvalApp } from './support.ts'

describe('examples copied from an end user', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startEvalApp({
      workers: ['generation', 'evaluation', 'snapshot'],
      env: { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1' },
      actions: [...EVAL_ACTIONS, 'actors:*', 'sessions:*', 'conversations:*'],
    }),
  )

  const actor = async () => (await made(app.key, '/actors', { name: 'Ann' })).id as string
  /** A session of an actor in which a marker was said and answered. */
  const session = async (actor_id: string, marker: string) => {
    const { id } = await made(app.key, '/sessions', { agent_id: app.agentId, actor_id, auto_generate: true })
    const { body } = await app.key.post(`/sessions/${id}/messages?wait=true`, { message: `I eat a ${marker}` })
    assert.equal(body.reply?.status, 'completed', JSON.stringify(body))
    return { id: id as string, generation_id: body.reply.generation_id as string }
  }
  const fromSession = (dataset: string, session_id: string) =>
    made(app.key, `/datasets/${dataset}/items/from-session`, { session_id })
  const items = async (dataset: string) => (await app.key.get(`/datasets/${dataset}/items`)).body
  const purge = async (id: string): Promise<Record<string, number>> => {
    const { status, body } = await app.key.post(`/actors/${id}/purge-content`)
    assert.equal(status, 202, JSON.stringify(body))
    const entry = await eventually(async () => {
      const audit = `/audit-log?project_id=${app.projectId}&resource_public_id=${id}&limit=100`
      return (await app.admin.get(audit)).body.data.find(({ detail }: any) => detail?.job_id === body.job_id)
    })
    return entry.detail.counts
  }

  it('are deleted with their copies in runs, and are counted; examples of others stay', async () => {
    const [ann, bob] = [await actor(), await actor()]
    const [hers, his] = [await session(ann, 'strudel-marker'), await session(bob, 'knoedel-marker')]
    const dataset = await app.dataset([item('written by hand')])
    await fromSession(dataset, hers.id)
    const { id: copied } = await made(app.key, `/datasets/${dataset}/items/from-generation`, {
      generation_id: hers.generation_id,
      metadata: { note: 'strudel-marker' },
    })
    await fromSession(dataset, his.id)
    await app.lanes.put('judging', {
      rules: [{ reply: { text: '{"score": 1, "reasoning": "It was strange"}' } }],
    })
    const decides = await app.echo('deciding', [{ reply: { object: { good: true } } }])
    const decider = await made(app.key, '/deciders', {
      name: 'decider of examples',
      agent_id: decides,
      questions: [{ type: 'predicate', name: 'good', instructions: 'Is it good?' }],
    })
    const judge = { type: 'llm_judge', prompt: '{{input}} {{output}}', pass_threshold: 0.5 }
    const scored = await app.eval({
      dataset_id: dataset,
      agent_id: app.agentId,
      scorers: [
        { ...judge, ai_provider_id: app.providerId, model: 'judging/m' },
        {
          type: 'decider',
          name: 'good',
          decider_id: decider.id,
          score: { var: 'answers_by_name.good.probability' },
          pass_threshold: 0,
        },
      ],
    })
    const run = await app.run(scored.id)
    assert.equal(run.status, 'completed', JSON.stringify(run))
    const before = await app.results(run)
    assert.ok(
      before.every(({ scores, error }) => error === null && scores.length === 2),
      JSON.stringify(before),
    )
    // A result outlives its item, and so does the source of the copy.
    assert.equal((await app.key.delete(`/datasets/${dataset}/items/${copied}`)).status, 204)

    const counts = await purge(ann)
    assert.deepEqual([counts.dataset_items, counts.eval_results], [1, 2])
    assert.deepEqual(await placesOf(app, 'strudel-marker'), [])
    const left = await items(dataset)
    assert.deepEqual([left.total, left.data.length], [2, 2])
    const results = await app.results(run)
    const empty = results.filter(({ input }) => input.length === 0)
    assert.equal(empty.length, 2)
    for (const { expected_output, output, scores, passed, generation_id } of empty) {
      assert.deepEqual([expected_output, output, passed], [null, null, true])
      assert.deepEqual(
        scores.map(({ score, reasoning }: any) => [score, reasoning]),
        [
          [1, undefined],
          [1, undefined],
        ],
      )
      assert.ok((await app.key.get(`/generations/${generation_id}`)).body.content_redacted_at)
    }
    const kept = results.filter(({ input }) => input.length > 0)
    assert.equal(kept.length, 2)
    assert.ok(kept.every(({ output, scores }) => output !== null && scores[0].reasoning !== undefined))
    const { aggregate_scores } = (await app.key.get(`/evals/${run.eval_id}/runs/${run.id}`)).body
    assert.deepEqual(aggregate_scores, run.aggregate_scores)
    // A run of the remaining items.
    assert.equal((await app.run(scored.id)).item_count, 2)
  })

  it('go after the session and its turns are gone, and after a merge', async () => {
    const [ann, into] = [await actor(), await actor()]
    const hers = await session(ann, 'buchtel-marker')
    const dataset = await app.dataset([])
    await fromSession(dataset, hers.id)
    assert.equal((await app.key.delete(`/sessions/${hers.id}`)).status, 204)
    await app.pool.query(rawQuery('delete from generations where id = $1', [hers.generation_id]))
    assert.equal((await app.key.post(`/actors/${ann}/merge`, { into_actor_id: into })).status, 200)
    assert.equal((await items(dataset)).data[0].source_generation_id, null)
    assert.equal((await purge(into)).dataset_items, 1)
    assert.equal((await items(dataset)).total, 0)
  })

  it('are not made of messages that are erased meanwhile', async () => {
    const hers = await session(await actor(), 'linzer-marker')
    const dataset = await app.dataset([])
    const eraser = new pg.Client({ connectionString: app.databaseUrlOf(app.projectId) })
    await eraser.connect()
    try {
      // As a purge does that has not committed yet: the copy waits for its end.
      await eraser.query('begin')
      await eraser.query(
        `delete from documents where id in (
           select m.document_id from conversation_messages m join sessions s on s.conversation_id = m.conversation_id
           where s.id = $1)`,
        [hers.id],
      )
      const copying = app.key.post(`/datasets/${dataset}/items/from-session`, { session_id: hers.id })
      await eventually(async () => {
        const { rows } = await eraser.query(
          'select from pg_stat_activity where pg_backend_pid() = any(pg_blocking_pids(pid))',
        )
        return rows.length > 0
      })
      await eraser.query('commit')
      refused(await copying, 400, 'VALIDATION_FAILED', 'session_id')
    } finally {
      await eraser.end()
    }
    assert.equal((await items(dataset)).total, 0)
  })

  it('end the active items of runs', async () => {
    const ann = await actor()
    const hers = await session(ann, 'krapfen-marker')
    const dataset = await app.dataset([])
    for (let copy = 0; copy < 7; copy++) await fromSession(dataset, hers.id)
    const agent_id = await app.echo('waiting', [{ reply: { text: 'never', gate: 'never' } }])
    const { id } = await app.eval({
      dataset_id: dataset,
      agent_id,
      scorers: [{ type: 'contains', value: 'Yes' }],
    })
    const started = await made(app.key, `/evals/${id}/runs`, {})
    // A worker has a lower concurrency: the others are queued.
    await eventually(async () => ((await app.lanes.gate('never'))?.waiting ?? 0) > 0)
    const counts = await purge(ann)
    assert.deepEqual([counts.dataset_items, counts.eval_results], [7, 7])
    const run = await ended(app.key, started)
    assert.deepEqual([run.status, run.errored_count], ['completed', 7])
    assert.deepEqual(await placesOf(app, 'krapfen-marker'), [])
    for (const { input, error } of await app.results(run))
      assert.deepEqual([input, error.code], [[], 'GENERATION_CONTENT_UNAVAILABLE'])
  })
})
