import assert from 'node:assert/strict'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { refused } from './tool-target.ts'

const ACTIONS = [
  'agents:*',
  'generations:*',
  'traces:*',
  'memories:*',
  'activity:*',
  'deciders:*',
  'conversations:*',
  'guardrails:*',
]

describe('the tool write_memory', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ actions: ACTIONS, workers: ['generation', 'delivery'] }))
  const double = forSuite(() => client(app.double))
  let lanes = 0

  const store = async (): Promise<string> => (await app.key.post('/memory-stores', { name: `s ${++lanes}` })).body.id
  const writing = { tool_calls: [{ name: 'write_memory', args: { content: ' Ada likes tea ' } }] }
  /** An agent that may write to a store, and whose model answers so. */
  const writer = async (storeId: string, replies: object[] = [writing, { text: 'noted' }], fields: object = {}) => {
    const lane = `write-${++lanes}`
    await double.put(lane, { rules: [{ replies } as never] })
    const knowledge_config = { write_memory_store_id: storeId }
    return { lane, id: await app.agent({ model: `${lane}/m`, knowledge_config, ...fields }) }
  }
  const turn = async (agent: string): Promise<string> =>
    (await createdBy(app.key, `/agents/${agent}/generate?wait=true`, { prompt: 'Remember that' }, 200)).id
  const firstResult = async (generation: string): Promise<any> =>
    (await app.key.get(`/generations/${generation}/transcript`)).body.steps[0].tool_results[0]
  const entries = async (storeId: string): Promise<any[]> =>
    (await app.key.get(`/memory-entries?memory_store_id=${storeId}`)).body.data

  it('writes to the store of the agent, in its name, as part of the turn', async () => {
    const storeId = await store()
    const { id, lane } = await writer(storeId)
    const generation = await turn(id)
    const { result, error } = await firstResult(generation)
    const [entry] = await entries(storeId)
    assert.equal(error, null)
    assert.deepEqual(result, { action: 'created', memory_id: entry.memory_id, entry_id: entry.id })
    assert.deepEqual(
      [entry.content, entry.mechanism, entry.generation_id, entry.principal_type, entry.principal_id],
      ['Ada likes tea', 'tool', generation, 'agent', id],
    )
    const [{ body }] = await double.requests(lane)
    assert.deepEqual(
      (body as any).tools.map((tool: any) => [tool.function.name, Object.keys(tool.function.parameters.properties)]),
      [['write_memory', ['content']]],
    )
    const read = (await app.key.get(`/generations/${generation}`)).body
    assert.deepEqual(
      read.memory_entries.map((each: any) => each.id),
      [entry.id],
    )
    const [completed] = await storedEvents(app.pool, { name: 'generations.completed', resource: generation })
    assert.deepEqual(completed.envelope.data, read)
    assert.equal(read.tool_surface.tools, 1)
    assert.ok(!('memory_entries' in (await app.key.get('/generations')).body.data[0]))
    const again = await firstResult(await turn((await writer(storeId)).id))
    assert.deepEqual([again.result.action, again.result.memory_id], ['skipped', entry.memory_id])
    assert.equal((await app.key.get('/activity?kind=action_executed')).body.data.length, 0)
  })

  it('takes one statement and nothing else', async () => {
    const storeId = await store()
    for (const args of [
      {},
      { content: '' },
      { content: '  ' },
      { content: 7 },
      { content: 'x', store: 'y' },
      { content: 'x'.repeat(8193) },
    ]) {
      const { id } = await writer(storeId, [{ tool_calls: [{ name: 'write_memory', args }] }, { text: 'ok' }])
      assert.equal(
        (await firstResult(await turn(id))).error?.code,
        'VALIDATION_FAILED',
        JSON.stringify(args).slice(0, 40),
      )
    }
    assert.deepEqual(await entries(storeId), [])
  })

  it('keeps to the boundary of the agent', async () => {
    const storeId = await store()
    const boundary = (action: string[]) => ({
      boundary_policy: {
        statement: [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:memory_store:${storeId}`] }],
      },
    })
    const rights = ['memories:CreateMemoryEntry', 'memories:UpdateMemory']
    for (const missing of rights) {
      const { id } = await writer(storeId, undefined, boundary(rights.filter(right => right !== missing)))
      assert.equal((await firstResult(await turn(id))).error.code, 'FORBIDDEN')
    }
    assert.deepEqual(await entries(storeId), [])
    const { id } = await writer(storeId, undefined, boundary(rights))
    assert.equal((await firstResult(await turn(id))).result.action, 'created')
  })

  it('writes whatever else whom the turn runs as may do', async () => {
    const storeId = await store()
    const { id } = await writer(storeId)
    const statement = [{ effect: 'Allow', action: ['agents:*'], resource: [`srn:${app.projectId}:*:*`] }]
    const user = await app.user(undefined, [{ statement }])
    const reply = await user.post(`/agents/${id}/generate?wait=true`, { prompt: 'x' })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    assert.equal((await entries(storeId)).length, 1)
  })

  it('names the conversation of the turn', async () => {
    const storeId = await store()
    const { id } = await writer(storeId)
    const conversation = (await app.key.post('/conversations', {})).body.id
    await app.key.post(`/conversations/${conversation}/messages`, { role: 'user', message: 'hi' })
    const said = await app.key.post(`/conversations/${conversation}/generate?wait=true`, { agent_id: id })
    assert.equal(said.status, 200, JSON.stringify(said.body))
    const [entry] = await entries(storeId)
    assert.deepEqual([entry.conversation_id, entry.generation_id], [conversation, said.body.generation_id])
  })

  it('is held to the guardrails', async () => {
    const storeId = await store()
    const guard = await app.key.post('/guardrails', { name: 'no', document: { class: 'D' } })
    const { id } = await writer(storeId, undefined, { guardrail_ids: [guard.body.id] })
    assert.equal((await firstResult(await turn(id))).result.status, 'blocked')
    assert.deepEqual(await entries(storeId), [])
  })

  it('goes before a bound tool of its name, and is missed where its store is gone', async () => {
    const storeId = await store()
    const own = { tool: { type: 'client', name: 'write_memory', parameters: { type: 'object' } } }
    const { id, lane } = await writer(storeId, undefined, { tool_bindings: [own] })
    assert.equal((await firstResult(await turn(id))).result.action, 'created')
    assert.equal(((await double.requests(lane))[0].body as any).tools.length, 1)

    assert.equal((await app.key.delete(`/memory-stores/${storeId}`)).status, 204)
    const without = await writer(await store(), [{ text: 'ok' }])
    await app.key.delete(
      `/memory-stores/${(await app.key.get(`/agents/${without.id}`)).body.knowledge_config.write_memory_store_id}`,
    )
    await turn(without.id)
    assert.equal(((await double.requests(without.lane))[0].body as any).tools, undefined)
    const told = await eventually(
      async () => (await app.key.get(`/activity?kind=tool_resolution_failed&agent_id=${without.id}`)).body.data[0],
      { what: 'the entry of the feed' },
    )
    assert.deepEqual([told.severity, told.detail.tool_name], ['warning', 'write_memory'])
  })

  it('makes an agent ineligible for deciders', async () => {
    const { id } = await writer(await store())
    const questions = [{ type: 'predicate', name: 'q', instructions: 'Is it?' }]
    const error = refused(
      await app.key.post('/deciders', { name: 'd', agent_id: id, questions }),
      400,
      'DECIDER_AGENT_NOT_TOOL_LESS',
    )
    assert.deepEqual(error.meta.tools, ['write_memory'])
  })
})
