import assert from 'node:assert/strict'
import { json, startTarget, type Target } from '../execution/tool-target.ts'
import { client, eventually } from '../support/app.ts'
import { CANARIES, canary } from '../support/canaries.ts'
import { populate } from '../support/populate.ts'
import { createdBy } from '../support/replies.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { startTracedApp, type TracedApp } from './telemetry-support.ts'

const LOCAL = { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '64', OTEL_DB_SPANS: 'true' }

/** First words of the spans of each kind of work. */
const KINDS = [
  'GET',
  'POST',
  'chat',
  'db',
  'deliver',
  'embeddings',
  'eval',
  'execute_tool',
  'fire',
  'ingest',
  'invoke_agent',
  'node',
  'retrieval',
  'run',
  'task',
  'upsert_memory',
]

describe('spans of every kind of work', function () {
  this.timeout(180_000)
  const app: TracedApp = forSuite(() => startTracedApp({ env: LOCAL }))
  const target: Target = forSuite(() => startTarget())

  it('have no prompt, argument, result, secret, file name or credential', async () => {
    const web = await app.start('web', LOCAL)
    const admin = app.at(web, app.admin)
    // One of every kind, made through the process that exports, before any worker takes the work of those.
    await populate({ ...app, admin, anonymous: client(web.url, null) })
    await app.start('worker', LOCAL)
    const key = app.at(web)

    target.answer = json({ answered: canary('result') })
    const secret = await createdBy(admin, '/secrets', {
      project_id: app.projectId,
      name: 'of the tool',
      value: canary('secret-value'),
    })
    const headers = { authorization: `Bearer {{secret:${secret.id}}}` }
    const call = {
      project_id: app.projectId,
      name: 'call',
      execute: { url: `${target.url}/${canary('path')}`, headers },
    }
    const tool = await createdBy(admin, '/tools', call)
    await createdBy(key, '/webhooks', { name: 'all', url: `${target.url}/${canary('hook')}`, events: ['*'] })
    const { id: file_id } = await createdBy(key, '/files/upload/base64', {
      content: Buffer.from(`${canary('file')}: curlews nest in moors.`).toString('base64'),
      filename: `${canary('file-name')}.txt`,
      content_type: 'text/plain',
    })
    await createdBy(key, '/documents/ingest', { file_id }, 202)
    await app.span(({ name }) => name === 'ingest', 'the ingestion')
    const store = await createdBy(key, '/memory-stores', { name: 'facts' })
    await createdBy(key, '/memory-entries', { memory_store_id: store.id, content: canary('fact') })
    const agent_id = await app.agent({
      name: 'worker',
      instructions: canary('instructions'),
      knowledge_config: { limit: 3 },
      tool_bindings: [{ tool_id: tool.id }],
    })
    const prompt = scriptOf(toolCall('call', { q: canary('argument') }), { text: canary('reply') })
    const orchestration = await createdBy(key, '/orchestrations', {
      name: 'graph',
      nodes: [
        { id: 'first', type: 'tool', tool_id: tool.id },
        { id: 'second', type: 'agent', agent_id, prompt },
      ],
      edges: [{ from: 'first', to: 'second' }],
    })
    const by = { type: 'manual', target_type: 'orchestration', target_id: orchestration.id }
    const trigger = await createdBy(key, '/triggers', { name: 'by hand', ...by })
    await createdBy(key, `/triggers/${trigger.id}/fire`, { input: { text: canary('input') } }, 200)
    const flow = await createdBy(key, '/workflows', {
      name: 'flow',
      states: [
        { name: 'new', initial: true, on_enter: { dispatch: { kind: 'tool', tool_id: tool.id } } },
        { name: 'end', terminal: true },
      ],
      transitions: [{ name: 'finish', from: ['new'], to: 'end' }],
    })
    await createdBy(key, '/tasks', { workflow_id: flow.id, title: canary('title') })
    const dataset = await createdBy(key, '/datasets', { name: 'd' })
    const input = [{ role: 'user', content: prompt }]
    await createdBy(key, `/datasets/${dataset.id}/items`, { input, expected_output: canary('expected') })
    const measured = { name: 'e', agent_id, dataset_id: dataset.id, scorers: [{ type: 'exact_match' }] }
    const { id: eval_id } = await createdBy(key, '/evals', measured)
    await createdBy(key, `/evals/${eval_id}/runs`, {})

    const missing = () => KINDS.filter(kind => !app.collector.spans.some(({ name }) => name.split(' ', 1)[0] === kind))
    await eventually(() => missing().length === 0, { within: 60_000, what: 'spans of every kind' }).catch(error => {
      assert.deepEqual(missing(), [], error.message)
    })
    await app.span(({ name }) => name === 'invoke_agent worker', 'a turn with a tool')
    assert.deepEqual(app.collector.leaks, [])
    assert.deepEqual(app.collector.problems, [])
    assert.deepEqual(
      CANARIES.filter(text => app.collector.bodies.some(body => body.includes(text))),
      [],
    )
  })
})
