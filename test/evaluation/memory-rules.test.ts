import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { scriptOf } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { EVAL_ACTIONS, item, made, startEvalApp } from './support.ts'

/** Turns of evaluations, and the work they start, leave no facts of test data in memory. */
describe('memory rules and evaluations', function () {
  this.timeout(120_000)
  const app = forSuite(() =>
    startEvalApp({
      workers: ['evaluation', 'generation', 'orchestration', 'trigger', 'delivery'],
      actions: [...EVAL_ACTIONS, 'orchestrations:*'],
    }),
  )
  const by = forSuite(() => app.admin)
  let extractor: string
  let counter = 0

  before(async () => {
    // A fact that each turn adds to: a store of exact texts would skip a repeated one.
    const steps = [
      { id: 'a', action: 'list-secrets', tool: { name: 'n', type: 'platform', actions: ['list-secrets'] } },
    ]
    const output = [{ content: { cat: ['fact of ', { var: 'input.generation_id' }] } }]
    extractor = (await create('/tools', { name: 'extractor', type: 'pipeline', pipeline: { steps, output } })).id
  })

  const create = (path: string, body: object) => made(by, path, { project_id: app.projectId, ...body })
  const rule = async (fields: object = {}) => {
    const { id: memory_store_id } = await create('/memory-stores', { name: `store ${++counter}` })
    const rule = await create('/memory-rules', {
      memory_store_id,
      on: 'generations.completed',
      tool_id: extractor,
      ...fields,
    })
    const facts = async () => (await by.get(`/memory-entries?memory_store_id=${memory_store_id}`)).body.total as number
    return { ...rule, facts }
  }
  const agent = async (fields: object = {}) =>
    (await create('/agents', { name: `agent ${++counter}`, ai_provider_id: app.providerId, ...fields })).id as string
  const talk = async (id: string) => {
    const { status, body } = await by.post(`/agents/${id}/generate?wait=true`, { prompt: scriptOf({ text: 'hello' }) })
    assert.equal(status, 200, JSON.stringify(body))
  }
  const evaluated = async (agent_id: string, content: string) => {
    const dataset_id = await app.dataset([item(content)])
    const run = await app.run(
      (await app.eval({ agent_id, dataset_id, scorers: [{ type: 'contains', value: 'o' }] })).id,
    )
    assert.equal(run.status, 'completed', JSON.stringify(run))
  }

  it('rules skip turns of evaluations unless they include them', async () => {
    const [skipping, including] = [await rule(), await rule({ include_evaluations: true })]
    assert.deepEqual([skipping.include_evaluations, including.include_evaluations], [false, true])
    const id = await agent()
    await evaluated(id, scriptOf({ text: 'hello' }))
    await eventually(async () => (await including.facts()) === 1)
    await talk(id)
    await eventually(async () => (await including.facts()) === 2 && (await skipping.facts()) === 1)
    const changed = await by.patch(`/memory-rules/${skipping.id}`, { include_evaluations: true })
    assert.equal(changed.body.include_evaluations, true)
    await eventually(async () => {
      await evaluated(id, scriptOf({ text: 'hello' }))
      return (await skipping.facts()) > 1
    })
  })

  it('rules skip the turns that a turn of an evaluation starts, directly and in runs', async () => {
    const skipping = await rule()
    const below = await agent()
    const nodes = [{ id: 'a', type: 'agent', agent_id: below, prompt: scriptOf({ text: 'in a run' }) }]
    const inner = await create('/orchestrations', { name: 'inner', nodes, edges: [] })
    const nested = [{ id: 'a', type: 'sub_orchestration', orchestration_id: inner.id }]
    const graph = await create('/orchestrations', { name: 'graph', nodes: nested, edges: [] })
    const tool = await create('/tools', {
      name: 'starts',
      type: 'platform',
      actions: ['create-agent-generation', 'start-run'],
    })
    const top = await agent({ tool_bindings: [{ tool_id: tool.id }] })
    const calls = [
      { name: 'starts_create-agent-generation', args: { agent_id: below, prompt: scriptOf({ text: 'nested' }) } },
      { name: 'starts_start-run', args: { orchestration_id: graph.id } },
    ]
    await evaluated(top, scriptOf({ tool_calls: calls }, { text: 'done' }))
    const turns = (await by.get(`/generations?agent_id=${below}`)).body.data
    assert.deepEqual(
      turns.map(({ status, source }: any) => [status, source]),
      [
        ['completed', 'eval'],
        ['completed', 'eval'],
      ],
    )
    await talk(below)
    await eventually(async () => (await skipping.facts()) === 1)
    const { data } = (await by.get(`/events?event=generations.completed&limit=100`)).body
    const sources = data.filter((each: any) => each.data.agent_id === below).map((each: any) => each.data.source)
    assert.deepEqual(sources.sort(), ['eval', 'eval', null])
  })

  it('a filter of a trigger leaves out the turns of evaluations by their source', async () => {
    const below = await agent()
    const id = await agent()
    const trigger = await create('/triggers', {
      name: `on turns ${++counter}`,
      type: 'event',
      event_pattern: 'generations.completed',
      event_filter: { and: [{ '==': [{ var: 'data.agent_id' }, id] }, { '!=': [{ var: 'data.source' }, 'eval'] }] },
      target_type: 'agent',
      target_id: below,
      input: { message: scriptOf({ text: 'fired' }) },
    })
    await evaluated(id, scriptOf({ text: 'hello' }))
    await talk(id)
    const firings = () => by.get(`/trigger-firings?trigger_id=${trigger.id}`).then(({ body }) => body.data)
    await eventually(async () => (await firings()).length > 0)
    assert.equal((await firings()).length, 1)
  })

  it('a retry of a turn of an evaluation is one of the evaluation', async () => {
    const id = await agent()
    const dataset_id = await app.dataset([item(scriptOf({ status: 400, body: { error: { message: 'no' } } }))])
    await app.run((await app.eval({ agent_id: id, dataset_id, scorers: [{ type: 'exact_match' }] })).id)
    const [failed] = (await by.get(`/generations?agent_id=${id}`)).body.data
    assert.equal(failed.status, 'failed')
    const retried = await by.post(`/generations/${failed.id}/retry`)
    assert.ok(retried.status < 300, JSON.stringify(retried.body))
    const turns = (await by.get(`/generations?agent_id=${id}`)).body.data
    assert.deepEqual(
      turns.map(({ source }: any) => source),
      ['eval', 'eval'],
    )
  })
})
