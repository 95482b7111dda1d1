import assert from 'node:assert/strict'
import { json, made, startTarget, type Target } from '../execution/tool-target.ts'
import { createdBy } from '../support/replies.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { assertBelow, startTracedApp, type TracedApp } from './telemetry-support.ts'

const LOCAL = { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '64' }

describe('traces of background work', function () {
  this.timeout(90_000)
  const app: TracedApp = forSuite(() => startTracedApp({ env: LOCAL }))
  const target: Target = forSuite(() => startTarget())
  let key: TracedApp['key']

  before(async () => {
    target.answer = json({ answered: 'CANARY-result' })
    const web = await app.start('web', LOCAL)
    await app.start('worker', LOCAL)
    key = app.at(web)
  })
  beforeEach(() => {
    app.collector.spans.length = 0
  })
  afterEach(() => {
    assert.deepEqual(app.collector.problems, [])
    assert.ok(!app.collector.bodies.join().includes('CANARY'))
  })

  const named = (name: string) => app.span(span => span.name === name, name)
  const request = (route: string) => app.span(({ name }) => name === `POST /api/v1${route}`, `the request to ${route}`)
  const tool = (name: string) =>
    made(app.admin, { project_id: app.projectId, name, execute: { url: `${target.url}/CANARY-path` } })

  it('an ingestion is below its upload, and a turn that searches has its channels and embeddings', async () => {
    const { id: file_id } = await createdBy(key, '/files/upload/base64', {
      content: Buffer.from('CANARY-content: curlews nest in moors.').toString('base64'),
      filename: 'CANARY-name.txt',
      content_type: 'text/plain',
    })
    await createdBy(key, '/documents/ingest', { file_id }, 202)
    const ingest = await named('ingest')
    assert.equal(ingest.attributes['muster.outcome'], 'ready')
    const upload = await request('/documents/ingest')
    assertBelow(ingest, upload)
    assert.equal(ingest.attributes['muster.request_id'], upload.attributes['muster.request_id'])
    const stages = app.collector.spans.filter(({ attributes }) => attributes['muster.stage'])
    assert.deepEqual(
      stages.map(({ name }) => name),
      ['ingest read', 'ingest cut', 'ingest embed', 'ingest write'],
    )
    for (const stage of stages) {
      assertBelow(stage, ingest)
      assert.equal(stage.attributes['muster.document_id'], undefined)
    }
    const [read, cut, embed, write] = stages.map(({ attributes }) => attributes)
    assert.deepEqual([read['muster.bytes'], read['muster.pages']], [38, 1])
    assert.deepEqual(
      [cut, embed, write].map(each => each['muster.chunks']),
      [1, 1, 1],
    )
    assert.ok(app.collector.spans.some(({ name, trace }) => name.startsWith('embeddings') && trace === ingest.trace))

    const agent = await app.agent({ name: 'knows', knowledge_config: { limit: 3 } })
    await key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'Where do CANARY curlews nest?' })
    const turn = await named('invoke_agent knows')
    const search = app.collector.spans.find(({ name, trace }) => name.startsWith('retrieval ') && trace === turn.trace)
    assert.ok(search)
    assertBelow(search, turn)
    assert.deepEqual(
      [search.attributes['gen_ai.operation.name'], search.attributes['muster.hits'] >= 1],
      ['retrieval', true],
    )
    for (const channel of ['search vector', 'search lexical']) assertBelow(await named(channel), search)
    const embedded = app.collector.spans.find(
      ({ name, trace }) => name.startsWith('embeddings') && trace === turn.trace,
    )
    assert.deepEqual(
      [embedded?.kind, embedded?.attributes['muster.batch_size'], embedded?.attributes['gen_ai.operation.name']],
      ['client', 1, 'embeddings'],
    )
  })

  it('a firing, its run, the nodes and their turns are one trace', async () => {
    const agent_id = await app.agent({ name: 'in run' })
    const orchestration = await createdBy(key, '/orchestrations', {
      name: 'graph',
      nodes: [
        { id: 'call', type: 'tool', tool_id: (await tool('call')).id },
        { id: 'ask', type: 'agent', agent_id, prompt: scriptOf({ text: 'CANARY-reply' }) },
      ],
      edges: [{ from: 'call', to: 'ask' }],
    })
    const trigger = await createdBy(key, '/triggers', {
      name: 'by hand',
      type: 'manual',
      target_type: 'orchestration',
      target_id: orchestration.id,
    })
    await createdBy(key, `/triggers/${trigger.id}/fire`, { input: { secret: 'CANARY-input' } }, 200)
    const turn = await named('invoke_agent in run')
    const fire = await named('fire manual')
    assertBelow(fire, await request('/triggers/{trigger_id}/fire'))
    assert.equal(fire.attributes['muster.trigger_id'], trigger.id)
    const ended = await app.span(
      ({ name, attributes }) => name === `run ${orchestration.id}` && attributes['muster.outcome'] === 'succeeded',
      'the end of the run',
    )
    assertBelow(ended, fire)
    const node = await named('node tool')
    assert.deepEqual(
      [node.trace, node.attributes['muster.node_id'], node.attributes['muster.outcome']],
      [fire.trace, 'call', 'completed'],
    )
    const [sent] = app.collector.spans.filter(({ name, trace }) => name === 'POST' && trace === fire.trace)
    assertBelow(sent, node)
    assert.equal(turn.trace, fire.trace)
    for (const span of [ended, node, sent, turn])
      assert.equal(span.attributes['muster.run_id'], ended.attributes['muster.run_id'], span.name)
    const parents = new Map(app.collector.spans.map(span => [span.id, span]))
    for (const span of [node, turn]) assert.equal(parents.get(span.parent as string)?.name, `run ${orchestration.id}`)
  })

  it('a task continues the request that moved it, and the items of an eval the request of its run, with an event for each score', async () => {
    const agent_id = await app.agent({ name: 'judged' })
    const flow = await createdBy(key, '/workflows', {
      name: 'flow',
      states: [
        { name: 'new', initial: true },
        { name: 'open', on_enter: { dispatch: { kind: 'tool', tool_id: (await tool('work')).id } } },
        { name: 'end', terminal: true },
      ],
      transitions: [
        { name: 'start', from: ['new'], to: 'open' },
        { name: 'finish', from: ['open'], to: 'end' },
      ],
    })
    const card = await createdBy(key, '/tasks', { workflow_id: flow.id, title: 'CANARY-title' })
    assert.equal((await key.post(`/tasks/${card.id}/transitions`, { transition: 'start' })).status, 200)
    const task = await named('task open')
    assertBelow(task, await request('/tasks/{task_id}/transitions'))
    assert.equal(task.attributes['muster.task_id'], card.id)

    const dataset = await createdBy(key, '/datasets', { name: 'd' })
    await createdBy(key, `/datasets/${dataset.id}/items`, {
      input: [{ role: 'user', content: scriptOf({ text: 'yes' }) }],
      expected_output: 'yes',
    })
    const judge = await createdBy(key, '/evals', {
      name: 'e',
      agent_id,
      dataset_id: dataset.id,
      scorers: [{ type: 'exact_match' }],
    })
    await createdBy(key, `/evals/${judge.id}/runs`, { wait: true })
    const item = await named('eval item')
    const turn = await named('invoke_agent judged')
    assert.equal(turn.trace, item.trace)
    const scored = app.collector.spans.flatMap(({ trace, events }) => (trace === item.trace ? events : []))
    assert.deepEqual(scored, [
      {
        name: 'gen_ai.evaluation.result',
        attributes: {
          'gen_ai.evaluation.name': 'exact_match',
          'gen_ai.evaluation.score.value': 1,
          'gen_ai.evaluation.score.label': 'passed',
        },
      },
    ])
  })

  it('a call of the platform inside a turn is part of its span, and a nested turn below it', async () => {
    const inner = await app.agent({ name: 'inner' })
    const platform = await createdBy(app.admin, '/tools', {
      project_id: app.projectId,
      name: 'delegate',
      type: 'platform',
      actions: ['create-agent-generation'],
      preset_parameters: { agent_id: inner },
    })
    const outer = await app.agent({ name: 'outer', tool_bindings: [{ tool_id: platform.id }] })
    await key.post(`/agents/${outer}/generate?wait=true`, {
      prompt: scriptOf(toolCall('delegate_create-agent-generation', { prompt: 'CANARY' }), { text: 'done' }),
    })
    const turn = await named('invoke_agent outer')
    const nested = await named('invoke_agent inner')
    const [call] = app.collector.spans.filter(
      ({ name, trace }) => name.startsWith('execute_tool') && trace === turn.trace,
    )
    assertBelow(call, turn)
    assertBelow(nested, call)
    assert.deepEqual(
      [call.attributes['muster.operation'], call.attributes['muster.surface'], call.attributes['muster.tool_kind']],
      ['createAgentGeneration', 'platform_tool', 'platform'],
    )
  })
})
