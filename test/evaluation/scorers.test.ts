import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { madeDecider } from '../execution/decider-support.ts'
import { json, made as madeTool, startTarget, type Target } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { forSuite } from '../support/suite.ts'
import { ended, item, made, refused, startEvalApp } from './support.ts'

describe('scorers', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startEvalApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '64' },
    }),
  )

  /** The one result of a run over one item. */
  const scored = async (scorers: object[], agent_id: string, expected: string | null = 'Yes', body = {}) => {
    const dataset_id = await app.dataset([item('Is it?', expected, { kind: 'x' })])
    const { id } = await app.eval({ agent_id, dataset_id, scorers })
    const run = await app.run(id, body)
    assert.equal(run.status, 'completed', JSON.stringify(run))
    const [result] = await app.results(run)
    return { run, result, evalId: id }
  }
  const usage = async (source: string, generation: string): Promise<any[]> =>
    (await app.key.get(`/usage/events?source=${source}&generation_id=${generation}`)).body.data

  describe('of a schema', () => {
    it('need an agent with one, when the eval is written and when it is run', async () => {
      const schema = { type: 'object', properties: { n: { type: 'number' } }, required: ['n'] }
      const agent = await app.echo('object', [{ reply: { object: { n: 3 } } }], { output_schema: schema })
      const narrow = { type: 'object', properties: { n: { maximum: 2 } } }
      const { result, evalId } = await scored([{ type: 'output_schema' }], agent)
      assert.deepEqual(result.scores, [{ scorer: 'output_schema', score: 1, passed: true }])
      const other = await scored([{ type: 'output_schema', schema: narrow }], agent)
      assert.equal(other.result.passed, false)
      assert.equal((await app.key.patch(`/agents/${agent}`, { output_schema: null })).status, 200)
      refused(await app.key.post(`/evals/${evalId}/runs`, {}), 400, 'VALIDATION_FAILED', 'scorers[0]')
      // The version that has one is still there.
      assert.equal((await app.run(evalId, { agent_version: 1 })).completed_count, 1)
    })
  })

  it('of similarity compare by meaning, and call nothing where nothing is expected', async () => {
    const agent = await app.echo('near', [{ reply: { text: 'a red apple' } }])
    const scorers = [{ type: 'embedding_similarity', pass_threshold: 0.9 }]
    const same = await scored(scorers, agent, 'a red apple')
    assert.ok(same.result.scores[0].score > 0.99 && same.result.passed, JSON.stringify(same.result))
    assert.equal((await scored(scorers, agent, 'quantum chromodynamics')).result.passed, false)
    assert.deepEqual((await scored(scorers, agent, null)).result.scores[0].score, 0)
  })

  describe('that are judges', () => {
    it('call the judge once, fill in each value once, and are metered', async () => {
      const agent = await app.echo('judged', [{ reply: { text: 'Yes' } }])
      await app.lanes.put('judge', { rules: [{ reply: { text: 'Sure: {"score": 0.8, "reasoning": "good"} .' } }] })
      const prompt = 'Q {{input}} A {{output}} E {{expected}} U {{other}}'
      const judge = { type: 'llm_judge', prompt, pass_threshold: 0.8, ai_provider_id: app.providerId, model: 'judge/m' }
      const { result } = await scored([judge], agent, 'No {{output}}')
      assert.deepEqual(result.scores, [{ scorer: 'llm_judge', score: 0.8, passed: true, reasoning: 'good' }])
      const [{ body }, ...more] = await app.lanes.requests('judge')
      assert.equal(more.length, 0)
      assert.deepEqual([body.temperature, body.tools], [undefined, undefined])
      assert.equal(
        body.messages.at(-1).content,
        'Q [{"role":"user","content":"Is it?"}] A Yes E No {{output}} U {{other}}',
      )
      assert.equal((await usage('eval_judge', result.generation_id)).length, 1)
      assert.equal((await usage('eval', result.generation_id)).length, 1)
    })

    it('give an item an error for a reply that is no verdict, and keep the answer', async () => {
      const agent = await app.echo('unjudged')
      for (const [at, text] of ['87', '{"score": 87}', '{"score": "1"}'].entries()) {
        await app.lanes.put(`bad${at}`, { rules: [{ reply: { text } }] })
        const judge = {
          type: 'llm_judge',
          prompt: 'x',
          pass_threshold: 1,
          ai_provider_id: app.providerId,
          model: `bad${at}/m`,
        }
        const { run, result } = await scored([{ type: 'exact_match' }, judge], agent)
        assert.deepEqual([result.error.code, result.error.meta.scorer], ['EVAL_SCORING_FAILED', 'llm_judge'])
        assert.deepEqual([result.output, result.scores, run.errored_count], ['Yes', [], 1])
      }
    })

    it('hold their provider, or the default route of the project', async () => {
      const agent_id = await app.echo('held')
      const dataset_id = await app.dataset([item('a')])
      const judge = { type: 'llm_judge', prompt: 'x', pass_threshold: 1 }
      const fields = { agent_id, dataset_id, scorers: [judge] }
      refused(await app.key.post('/evals', { name: 'no route', ...fields }), 400, 'VALIDATION_FAILED', 'scorers[0]')
      const route = await made(app.admin, '/model-routes', {
        project_id: app.projectId,
        name: 'default',
        targets: [{ ai_provider_id: app.providerId, model: 'verdict/m' }],
      })
      const project = `/projects/${app.projectId}`
      assert.equal((await app.admin.patch(project, { default_model_route_id: route.id })).status, 200)
      await app.lanes.put('verdict', { rules: [{ reply: { text: '{"score":1}' } }] })
      const { id } = await app.eval(fields)
      assert.equal((await app.run(id)).aggregate_scores.pass_rate, 1)
      const cleared = await app.admin.patch(project, { default_model_route_id: null })
      refused(cleared, 409, 'PROJECT_DEFAULT_ROUTE_INHERITED')
      assert.equal((await app.key.delete(`/evals/${id}`)).status, 204)
      assert.equal((await app.admin.patch(project, { default_model_route_id: null })).status, 200)
      const own = await app.eval({ ...fields, scorers: [{ ...judge, ai_provider_id: app.providerId }] })
      const held = await app.admin.delete(`/ai-providers/${app.providerId}?force=true`)
      assert.equal(held.status, 409)
      assert.ok(held.body.error.meta.sample_ids.evals.includes(own.id))
      assert.equal((await app.key.delete(`/evals/${own.id}`)).status, 204)
    })
  })

  describe('that are tools', () => {
    it('receive the item, once, with the headers of the run', async () => {
      const agent = await app.echo('tooled')
      const { id: tool_id } = await madeTool(app.key, { execute: { url: target.url } })
      const scorer = { type: 'tool', name: 'mine', tool_id, preset_parameters: { strict: true } }
      target.answer = json({ score: 0.4, passed: true, reasoning: 'near enough' })
      const before = target.requests.length
      const { result, run } = await scored([scorer], agent, 'Yes', { tool_context: { tenant: 't1' } })
      assert.deepEqual(result.scores, [{ scorer: 'mine', score: 0.4, passed: true, reasoning: 'near enough' }])
      assert.ok(!('tool_context' in run))
      const sent = target.requests.slice(before)
      assert.equal(sent.length, 1)
      const { strict, output, expected, item: told, ...rest } = JSON.parse(sent[0].body)
      assert.deepEqual(
        [strict, output, expected, told, 'object' in rest],
        [true, 'Yes', 'Yes', { metadata: { kind: 'x' } }, false],
      )
      assert.ok(Object.values(sent[0].headers).includes('t1'))
      const events = await eventually(
        async () => {
          const found = await usage('evaluation', result.generation_id)
          return found.length > 0 ? found : null
        },
        { what: 'usage' },
      )
      assert.equal(events.length, 1)
    })

    it('have the headers of a run that was canceled while it was scored, until its last item', async () => {
      const agent_id = await app.echo('canceled')
      const { id: tool_id } = await madeTool(app.key, { execute: { url: target.url } })
      const { promise: released, resolve: release } = Promise.withResolvers<void>()
      const tenants: unknown[] = []
      target.answer = async (request, response) => {
        tenants.push(Object.values(request.headers).includes('t2'))
        if (tenants.length === 1) await released
        json({ score: 1, passed: true })(request, response)
      }
      const scorers = ['first', 'second'].map(name => ({ type: 'tool', name, tool_id }))
      const dataset_id = await app.dataset([item('Is it?', 'Yes')])
      const { id } = await app.eval({ agent_id, dataset_id, scorers })
      const run = await made(app.key, `/evals/${id}/runs`, { tool_context: { tenant: 't2' } })
      await eventually(async () => tenants.length === 1, { what: 'the first call' })
      const path = `/evals/${id}/runs/${run.id}`
      assert.equal((await app.key.post(`${path}/cancel`)).status, 200)
      release()
      await eventually(async () => (await app.key.get(path)).body.completed_count === 1, { what: 'the result' })
      assert.deepEqual(tenants, [true, true])
      const kept = () => app.pool.oneFirst(sql.unsafe`select context is not null from eval_runs where id = ${run.id}`)
      assert.equal(await kept(), false)
      // An item whose turn is gone is no longer active.
      await app.lanes.put('canceled', { rules: [{ reply: { text: 'Yes', gate: 'canceled' } }] })
      const other = await made(app.key, `/evals/${id}/runs`, { tool_context: { tenant: 't2' } })
      await eventually(async () => (await app.lanes.gate('canceled'))?.waiting, { what: 'the turn' })
      assert.equal((await app.key.post(`/evals/${id}/runs/${other.id}/cancel`)).status, 200)
      await app.pool.query(sql.unsafe`delete from generations where agent_id = ${agent_id} and status <> 'completed'`)
      await eventually(async () => (await app.key.get(`/evals/${id}/runs/${other.id}`)).body.errored_count === 1, {
        what: 'the result of the turn that is gone',
      })
      const left = sql.unsafe`select context is null from eval_runs where id = ${other.id}`
      assert.equal(await app.pool.oneFirst(left), true)
      await app.lanes.read('POST', '/control/gates/canceled/open')
    })

    it('that fail for an internal reason are distinguished from items that were not scored', async () => {
      target.answer = json({ score: 1, passed: true })
      const agent_id = await app.echo('unscored')
      const { id: tool_id } = await madeTool(app.key, { execute: { url: target.url } })
      const dataset_id = await app.dataset([item('Is it?', 'Yes')])
      const { id } = await app.eval({ agent_id, dataset_id, scorers: [{ type: 'tool', name: 'mine', tool_id }] })
      const keeps = `new.state = 'running' and new.scores::text <> old.scores::text`
      await refusingUpdates(app.servicesOf(app.projectId), 'eval_results', keeps, async () => {
        const run = await app.run(id)
        const [{ error, output }] = await app.results(run)
        assert.deepEqual([error.code, output], ['GENERATION_FAILED', 'Yes'])
        assert.match(error.message, /could not be scored/)
      })
    })

    it('that say no verdict, fail or are gone give the item an error', async () => {
      const agent = await app.echo('tool-errors')
      const { id: tool_id } = await madeTool(app.key, { execute: { url: target.url } })
      const scorer = { type: 'tool', name: 'mine', tool_id }
      const failing = async (answer: Target['answer'], code: string, more = {}) => {
        target.answer = answer
        const { result } = await scored([{ ...scorer, ...more }], agent)
        assert.deepEqual([result.error?.code, result.error?.meta.scorer], [code, 'mine'], JSON.stringify(result))
      }
      await failing(json({ score: 0.5 }), 'EVAL_SCORING_FAILED')
      await failing(json({ score: 2 }), 'EVAL_SCORING_FAILED', { pass_threshold: 0.5 })
      await failing(json({ fault: true }, 500), 'TOOL_HTTP_ERROR')
      target.answer = json({ score: 0.5 })
      assert.equal((await scored([{ ...scorer, pass_threshold: 0.5 }], agent)).result.passed, true)
      for (const name of ['input', 'item']) {
        const bad = { ...scorer, preset_parameters: { [name]: 1 } }
        const reply = await app.key.post('/evals', {
          name: `bad ${name}`,
          agent_id: agent,
          dataset_id: await app.dataset([item('a')]),
          scorers: [bad],
        })
        refused(reply, 400, 'VALIDATION_FAILED', `scorers[0].preset_parameters.${name}`)
      }
    })
  })

  it('that are deciders request one decision of the pinned version', async () => {
    const agent = await app.echo('decided')
    const decides = await app.echo('decides', [{ reply: { object: { good: true } } }])
    const questions = [{ type: 'predicate', name: 'good', instructions: 'Is it good?' }]
    const decider = await madeDecider(app.key, { agent_id: decides, questions })
    const scorer = {
      type: 'decider',
      name: 'quality',
      decider_id: decider.id,
      score: { var: 'answers_by_name.good.probability' },
      pass_threshold: 0.5,
      input: { var: 'output' },
    }
    const { run, result } = await scored([scorer], agent)
    assert.deepEqual(run.decider_versions, { quality: 1 })
    const [{ decision_id, ...score }] = result.scores
    assert.deepEqual(score, { scorer: 'quality', score: 1, passed: true })
    const decision = (await app.key.get(`/decisions/${decision_id}`)).body
    assert.deepEqual(
      [decision.decider_id, decision.metadata],
      [decider.id, { eval_id: run.eval_id, eval_run_id: run.id, dataset_item_id: result.dataset_item_id }],
    )
    assert.equal((await app.key.get(`/decisions?decider_id=${decider.id}`)).body.total, 1)
    const wrong = await scored([{ ...scorer, score: { var: 'answers_by_name.good.name' } }], agent)
    assert.equal(wrong.result.error.code, 'EVAL_SCORING_FAILED')
  })

  it('a turn that waits for its client is no answer', async () => {
    const { id: tool_id } = await madeTool(app.key, { type: 'client', execute: undefined })
    const [{ name }] = [(await app.key.get(`/tools/${tool_id}`)).body]
    const agent = await app.echo('waits', [{ reply: { tool_calls: [{ name, args: {} }] } }], {
      tool_bindings: [{ tool_id }],
    })
    const { run, result } = await scored([{ type: 'exact_match' }], agent)
    assert.deepEqual(
      [result.error.code, run.errored_count, run.aggregate_scores.pass_rate],
      ['GENERATION_FAILED', 1, null],
    )
  })

  it('a project that is paused keeps items waiting', async () => {
    const agent_id = await app.echo('paused')
    const dataset_id = await app.dataset([item('a', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: [{ type: 'exact_match' }] })
    const project = `/projects/${app.projectId}`
    assert.equal((await app.admin.post(`${project}/pause`, { reason: 'test' })).status, 200)
    refused(await app.key.post(`/evals/${id}/runs`, {}), 409, 'PROJECT_PAUSED')
    assert.equal((await app.admin.post(`${project}/resume`)).status, 200)
    const run = await made(app.key, `/evals/${id}/runs`, {})
    assert.equal((await ended(app.key, run)).passed, null)
  })
})
