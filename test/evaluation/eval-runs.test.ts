import assert from 'node:assert/strict'
import { sql, voidStatement } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { evalItemWork } from '#evaluation/eval-runs/process-item.ts'
import { evalRunQueue } from '#evaluation/eval-runs/settle-run.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { ended, heldItems, item, made, quotaOfOneTurn, refused, startEvalApp } from './support.ts'

describe('runs of evals', () => {
  const app = forSuite(() =>
    startEvalApp({
      workers: ['generation', 'evaluation', 'trigger'],
      env: { EVAL_WORKER_BATCH: '3', EVAL_WORKER_INTERVAL_MS: '1000' },
    }),
  )

  const EXACT = [{ type: 'exact_match' }]
  /** An agent whose answer is what a prompt holds; by rules, so that it can change. */
  const answers = (lane: string, by: Record<string, string>) =>
    app.lanes.put(lane, { rules: Object.entries(by).map(([user, text]) => ({ when: { user }, reply: { text } })) })

  /** Waits until two turns wait at a gate of the double. */
  const waiting = (gate: string) =>
    eventually(async () => ((await app.lanes.gate(gate))?.waiting === 2 ? true : null), {
      what: `two turns at ${gate}`,
    })
  const open = (gate: string) => app.lanes.read('POST', `/control/gates/${gate}/open`)

  it('compare themselves with a baseline over what both have scored', async () => {
    const agent_id = await app.echo('base')
    await answers('base', { one: 'Yes', two: 'No', three: 'Yes', four: 'No', five: 'Yes' })
    const kinds = { one: 'x', two: 'x', three: 'y', four: 'y' } as Record<string, string>
    const items = Object.keys(kinds).map(name => item(name, 'Yes', { kind: kinds[name] }))
    const dataset_id = await app.dataset(items)
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT, group_by: 'kind', pass_threshold: 0.9 })
    const first = await app.run(id)
    assert.equal(first.aggregate_scores.baseline, undefined)
    const { grouping } = first.aggregate_scores
    assert.deepEqual(
      [grouping.group_by, grouping.ungrouped_item_count, Object.keys(grouping.groups).sort()],
      ['kind', 0, ['x', 'y']],
    )
    assert.deepEqual([grouping.groups.x.pass_rate, grouping.groups.x.scored_item_count], [0.5, 2])

    await answers('base', { one: 'No', two: 'Yes', three: 'Yes', four: 'Yes', five: 'No' })
    await made(app.key, `/datasets/${dataset_id}/items`, item('five', 'Yes', { kind: 7 }))
    const gone = (await app.results(first)).find(({ input }) => input[0].content === 'three')
    await app.key.delete(`/datasets/${dataset_id}/items/${gone.dataset_item_id}`)
    const second = await app.run(id, { baseline_run_id: first.id })
    const { baseline } = second.aggregate_scores
    const { scorers, grouping: groups, ...figures } = baseline
    assert.deepEqual(figures, {
      run_id: first.id,
      compared_item_count: 3,
      added_item_count: 1,
      removed_item_count: 1,
      pass_rate_delta: 1 / 3,
      flipped: { improved: 2, regressed: 1 },
      p_value: 1,
    })
    assert.ok(Math.abs(scorers.exact_match.mean_delta - 1 / 3) < 1e-12)
    assert.deepEqual([groups.groups.y.pass_rate_delta, groups.ungrouped_item_count], [1, 0])
    assert.equal(second.aggregate_scores.grouping.ungrouped_item_count, 1)

    const compared = await app.key.get(`/evals/${id}/compare?runs=${first.id},${second.id}`)
    assert.deepEqual([compared.status, compared.body.total], [200, 5], JSON.stringify(compared.body))
    const by = new Map<string, any>(compared.body.data.map((each: any) => [each.input[0].content, each]))
    assert.deepEqual(
      [by.get('one').changed, by.get('one').results.map((result: any) => result.output)],
      [true, ['Yes', 'No']],
    )
    assert.deepEqual([by.get('three').dataset_item_id, by.get('three').results[1]], [null, null])
    const changed = (await app.key.get(`/evals/${id}/compare?runs=${first.id},${second.id}&changed=true`)).body
    assert.deepEqual(
      changed.data.map((each: any) => each.input[0].content),
      ['one', 'two', 'four'],
    )
    refused(await app.key.get(`/evals/${id}/compare?runs=,`), 400, 'VALIDATION_FAILED', 'runs')
    refused(await app.key.get(`/evals/${id}/compare?runs=${first.id},evrun_1`), 400, 'VALIDATION_FAILED', 'runs')
  })

  it('give their results in the order of the dataset, whichever ends first', async () => {
    const agent_id = await app.echo('ordered', [
      { when: { user: 'first' }, reply: { text: 'Yes', gate: 'ordered' } },
      { reply: { text: 'Yes' } },
    ])
    const names = ['first', 'second', 'third', 'fourth']
    const dataset_id = await app.dataset(names.map(name => item(name, 'Yes')))
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    const order = async () => (await app.results(run)).map(({ input }) => input[0].content)
    await eventually(async () => (await order()).length === 3, { what: 'all results but the first' })
    assert.deepEqual(await order(), names.slice(1))
    await open('ordered')
    await ended(app.key, run)
    assert.deepEqual(await order(), names)
    const results = await app.results(run)
    assert.ok(results[0].created_at >= results[3].created_at)
    assert.deepEqual(
      [...(await app.results(run, '?limit=2')), ...(await app.results(run, '?limit=2&offset=2'))].map(each => each.id),
      results.map(each => each.id),
    )
  })

  it('are canceled once, keep the results so far, and emit nothing', async () => {
    const agent_id = await app.echo('slow', [{ reply: { text: 'Yes', gate: 'slow' } }])
    const dataset_id = await app.dataset(Array.from({ length: 6 }, (_, at) => item(`q${at}`, 'Yes')))
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const run = await made(app.key, `/evals/${id}/runs`, { tool_context: { secret: 's3cret' } })
    const path = `/evals/${id}/runs/${run.id}`
    await waiting('slow')
    refused(
      await app.key.post(`/evals/${id}/runs`, { baseline_run_id: run.id }),
      400,
      'VALIDATION_FAILED',
      'baseline_run_id',
    )
    // Of EVAL_WORKER_BATCH items one is kept for other projects.
    const turns = await app.key.get(`/generations?agent_id=${agent_id}`)
    assert.equal(turns.body.total, 2)
    const canceled = await app.key.post(`${path}/cancel`)
    assert.deepEqual([canceled.status, canceled.body.status, canceled.body.aggregate_scores], [200, 'canceled', null])
    refused(await app.key.post(`${path}/cancel`), 400, 'VALIDATION_FAILED')
    await open('slow')
    const kept = await eventually(
      async () => {
        const { body } = await app.key.get(path)
        return body.completed_count === 2 ? body : null
      },
      { what: 'results of active items' },
    )
    assert.deepEqual([kept.status, kept.passed, (await app.results(run)).length], ['canceled', null, 2])
    assert.deepEqual((await app.key.get(`/events?resource_id=${run.id}`)).body.data, [])
    const held = await app.pool.any(sql.unsafe`select context from eval_runs where id = ${run.id}`)
    assert.deepEqual(held, [{ context: null }])
  })

  it('wait while their project is paused, and continue with it', async () => {
    const agent_id = await app.echo('pause', [{ reply: { text: 'Yes', gate: 'pause' } }])
    const dataset_id = await app.dataset(Array.from({ length: 5 }, (_, at) => item(`q${at}`, 'Yes')))
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    await waiting('pause')
    const project = `/projects/${app.projectId}`
    assert.equal((await app.admin.post(`${project}/pause`, { reason: 'test' })).status, 200)
    await open('pause')
    const path = `/evals/${id}/runs/${run.id}`
    await eventually(async () => ((await heldItems(app, run)) === 3 ? true : null), { what: 'items that are held' })
    const meanwhile = (await app.key.get(path)).body
    assert.deepEqual([meanwhile.status, meanwhile.completed_count], ['running', 2])
    assert.equal((await app.admin.post(`${project}/resume`)).status, 200)
    const done = await ended(app.key, run)
    assert.deepEqual([done.status, done.completed_count], ['completed', 5])
  })

  it('run and score an item once, however often its messages come', async () => {
    const agent_id = await app.echo('again')
    const dataset_id = await app.dataset([item('a', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const run = await app.run(id)
    const [{ id: result_id }] = await app.results(run)
    await app
      .servicesOf(app.projectId)
      .queues.send([
        queueMessage(evalItemWork.queue, { entity_id: result_id, work_id: result_id, project_id: app.projectId }),
        queueMessage(evalRunQueue, { eval_run_id: run.id, project_id: app.projectId }),
      ])
    const { pool } = app
    const handled = async () => {
      const left = await pool.any(sql.unsafe`
        select from pgboss.job where (data ->> 'eval_run_id' = ${run.id} or data ->> 'work_id' = ${result_id})
          and state < 'completed'`)
      return left.length === 0 ? true : null
    }
    await eventually(handled, { what: 'messages that are handled' })
    assert.equal((await app.key.get(`/generations?agent_id=${agent_id}`)).body.total, 1)
    assert.deepEqual((await app.key.get(`/evals/${id}/runs/${run.id}`)).body, run)
    assert.equal((await app.key.get(`/events?resource_id=${run.id}`)).body.total, 1)
  })

  it('whose messages are lost continue to their end', async () => {
    const agent_id = await app.echo('lost', [{ reply: { text: 'Yes', gate: 'lost' } }])
    const dataset_id = await app.dataset(Array.from({ length: 4 }, (_, at) => item(`q${at}`, 'Yes')))
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    await waiting('lost')
    // A waiting message is lost.
    await app.pool.query(voidStatement`
      delete from pgboss.job where name = ${evalItemWork.name} and data ->> 'work_id' in (
        select id from eval_results where eval_run_id = ${run.id})`)
    await open('lost')
    const done = await ended(app.key, run)
    assert.deepEqual([done.status, done.completed_count, done.error], ['completed', 4, null])
    assert.equal((await app.key.get(`/generations?agent_id=${agent_id}`)).body.total, 4)
    const events = (await app.key.get(`/events?resource_id=${run.id}`)).body.data
    assert.deepEqual(
      events.map(({ event }: { event: string }) => event),
      ['eval_runs.completed'],
    )
  })

  it('allow only a version that has passed the current eval to go live', async () => {
    const agent_id = await app.echo('gated')
    const dataset_id = await app.dataset([item('a', 'Yes')])
    const gate = await app.eval({ agent_id, dataset_id, scorers: EXACT, pass_threshold: 1 })
    const other = await app.eval({ agent_id: await app.echo('other'), dataset_id, scorers: EXACT })
    assert.equal((await app.key.patch(`/agents/${agent_id}`, { instructions: 'Be brief.' })).body.version, 2)
    const release = { stable_version: 1, canary_version: 2, canary_percent: 10 }
    const put = (promotion_gate: string) => app.key.put(`/agents/${agent_id}/release`, { ...release, promotion_gate })
    refused(await put(other.id), 400, 'VALIDATION_FAILED', 'promotion_gate')
    refused(await put('eval_1'), 400, 'VALIDATION_FAILED', 'promotion_gate')
    assert.equal((await put(gate.id)).status, 200)
    const promote = () => app.key.post(`/agents/${agent_id}/release/promote`)
    const unmet = async () => {
      const reply = await promote()
      refused(reply, 409, 'PROMOTION_GATE_UNMET')
      assert.deepEqual(reply.body.error.meta, { promotion_gate: gate.id, agent_version: 2 })
    }
    await unmet()
    const stable = await app.run(gate.id)
    assert.deepEqual([stable.agent_version, stable.passed], [1, true])
    await unmet()
    const early = await app.run(gate.id, { agent_version: 2 })
    assert.equal(early.passed, true)
    // Another threshold is another revision: an earlier pass does not count.
    assert.equal((await app.key.patch(`/evals/${gate.id}`, { pass_threshold: 0.5 })).body.revision, 2)
    await unmet()
    await app.run(gate.id, { agent_version: 2 })
    const newest = await app.run(gate.id, { agent_version: 2 })
    const promoted = await promote()
    assert.equal(promoted.status, 200, JSON.stringify(promoted.body))
    const version = (await app.key.get(`/agents/${agent_id}/versions/${promoted.body.version}`)).body
    assert.equal(version.eval_run_id, newest.id)
  })

  it('are started by triggers, with the permissions of their creator', async () => {
    const agent_id = await app.echo('fired')
    const dataset_id = await app.dataset([item('a', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const trigger = await made(app.key, '/triggers', {
      name: 'nightly',
      type: 'manual',
      target_type: 'eval',
      target_id: id,
      input: { agent_version: 1, note: 'ignored' },
    })
    const fired = await app.key.post(`/triggers/${trigger.id}/fire`, {})
    assert.equal(fired.body.status, 'succeeded', JSON.stringify(fired.body))
    const { result_id } = fired.body.result
    const run = await ended(app.key, { id: result_id, eval_id: id })
    assert.deepEqual([run.status, run.trigger_id, run.completed_count], ['completed', trigger.id, 1])
    const bad = await app.key.post(`/triggers/${trigger.id}/fire`, { input: { agent_version: 9 } })
    assert.deepEqual([bad.body.status, bad.body.error?.code], ['failed', 'VALIDATION_FAILED'], JSON.stringify(bad.body))
    const wrong = await app.key.post(`/triggers/${trigger.id}/fire`, { input: { agent_version: 'x' } })
    refused(wrong, 400, 'TRIGGER_INPUT_INVALID')
    assert.equal((await app.key.get(`/evals/${id}/runs`)).body.total, 1)
    const statement = [{ effect: 'Allow', action: ['triggers:*'], resource: [`srn:${app.projectId}:*:*`] }]
    const writer = await app.user('trigger-writer', [{ statement }])
    const theirs = { project_id: app.projectId, name: 't', type: 'manual', target_type: 'eval', target_id: id }
    refused(await writer.post('/triggers', theirs), 403, 'FORBIDDEN')
  })

  it('hold their agent, and are deleted with it by force', async () => {
    const agent_id = await app.echo('deleted')
    const dataset_id = await app.dataset([item('a', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    await app.run(id)
    const held = await app.key.delete(`/agents/${agent_id}`)
    refused(held, 409, 'AGENT_HAS_DEPENDENTS')
    assert.deepEqual([held.body.error.meta.counts.evals, held.body.error.meta.forcible], [1, true])
    assert.equal((await app.key.delete(`/agents/${agent_id}?force=true`)).status, 204)
    refused(await app.key.get(`/evals/${id}`), 404, 'RESOURCE_NOT_FOUND')
  })

  it('refuse items that a quota refuses, with its code', async () => {
    const agent_id = await app.echo('spent')
    const dataset_id = await app.dataset([item('a', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const quota = await quotaOfOneTurn(app, agent_id)
    await app.run(id)
    const run = await app.run(id)
    const [result] = await app.results(run)
    assert.equal(result.error?.code, 'QUOTA_EXCEEDED', JSON.stringify(result))
    assert.equal(result.generation_id, null)
    assert.equal((await app.admin.delete(`/quotas/${quota}`)).status, 204)
  })
})
