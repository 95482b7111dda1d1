import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { made, refused, refusedAt } from '../execution/tool-target.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const ACTIONS = [
  'actors:*',
  'agents:*',
  'documents:*',
  'events:*',
  'generations:*',
  'knowledge:*',
  'memories:*',
  'orchestrations:*',
  'sessions:*',
  'tools:*',
  'traces:*',
]

const LOCAL = { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '64' }

describe('memory of end users in turns', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ actions: ACTIONS, env: LOCAL, workers: ['generation', 'orchestration'] }))
  const double = forSuite(() => client(app.double))
  let lanes = 0

  const created = (path: string, body: object): Promise<any> => createdBy(app.key, path, body)
  const actor = async (external_id?: string): Promise<string> =>
    (await created('/actors', { name: 'somebody', ...(external_id ? { external_id } : {}) })).id
  const store = async (): Promise<string> => (await created('/memory-stores', { name: 'Guests' })).id
  const session = async (agent_id: string, actor_id: string | null, more: object = {}): Promise<string> =>
    (await created('/sessions', { agent_id, ...(actor_id ? { actor_id } : {}), ...more })).id
  const fact = async (memory_store_id: string, content: string, actor_id: string | null, more: object = {}) =>
    (await created('/memory-entries', { memory_store_id, content, actor_id, ...more })).memory_id as string

  /** An agent with a lane of the model for it alone, which answers by directive and else with a text. */
  const agent = async (knowledge_config: object | null, replies: object[] = [], fields: object = {}) => {
    const lane = `end-user-${++lanes}`
    await double.put(lane, { rules: [...(replies.length > 0 ? [{ replies }] : [])] as never })
    return { lane, id: await app.agent({ model: `${lane}/m`, knowledge_config, ...fields }) }
  }
  const says = async (sessionId: string, message: string, body: object = {}): Promise<any> => {
    assert.equal((await app.key.post(`/sessions/${sessionId}/messages`, { message })).status, 201)
    return createdBy(app.key, `/sessions/${sessionId}/generate?wait=true`, body, 200)
  }
  /** What the model was shown last, as one text. */
  const shown = async (lane: string): Promise<string> =>
    JSON.stringify(((await double.requests(lane)).at(-1) as any).body.messages)
  const writes = (content: string) => [{ tool_calls: [{ name: 'write_memory', args: { content } }] }, { text: 'noted' }]
  const both = (id: string, more: object = {}) => ({
    memory_store_ids: [id],
    write_memory_store_id: id,
    min_score: 0,
    ...more,
  })

  it('is not visible to other end users', async () => {
    const storeId = await store()
    const { id, lane } = await agent(both(storeId), writes('My password hint is curlew'))
    const [ann, bob] = [await actor(), await actor()]
    await says(await session(id, ann), 'Remember: my password hint is curlew')
    const [entry] = (await app.key.get(`/memory-entries?memory_store_id=${storeId}`)).body.data
    assert.deepEqual([entry.mechanism, entry.actor_id], ['tool', ann])
    await fact(storeId, 'The hint of the house is on the door', null)
    await says(await session(id, bob), 'What is the password hint?')
    const bobs = await shown(lane)
    assert.ok(!bobs.includes('curlew') && bobs.includes('hint of the house'), bobs)
    await says(await session(id, ann), 'What is the password hint?')
    assert.match(await shown(lane), /hint is curlew/)
    await app.key.post(`/agents/${id}/generate?wait=true`, { prompt: 'What is the password hint?' })
    const nobodys = await shown(lane)
    assert.ok(!nobodys.includes('curlew') && nobodys.includes('hint of the house'), nobodys)
    await says(await session(id, null), 'What is the password hint?')
    assert.ok(!(await shown(lane)).includes('curlew'))
  })

  it('is read by all turns of an agent that shares it, which alone may write it for all', async () => {
    const storeId = await store()
    const sharing = await agent(both(storeId, { share_between_actors: true }), writes('The gate code is curlew'))
    const [ann, bob] = [await actor(), await actor()]
    await says(await session(sharing.id, ann), 'Remember: the gate code is curlew')
    const marks = async () =>
      (await app.key.get(`/memories?memory_store_id=${storeId}`)).body.data.map(({ actor_id }: any) => actor_id)
    assert.deepEqual(await marks(), [ann])
    await says(await session(sharing.id, bob), 'What is the gate code?')
    assert.match(await shown(sharing.lane), /gate code is curlew/)
    const refusedScope = both(storeId, { write_memory_scope: 'store' })
    refusedAt(
      await app.key.post('/agents', { name: 'a', ai_provider_id: app.providerId, knowledge_config: refusedScope }),
      'knowledge_config.write_memory_scope',
    )
    const everybodys = await agent(
      both(storeId, { share_between_actors: true, write_memory_scope: 'store' }),
      writes('Tea is served at five'),
    )
    await says(await session(everybodys.id, bob), 'Remember that')
    assert.deepEqual(await marks(), [null, ann])
    // Only the owner of the agent loosens it.
    for (const knowledge_config of [{ share_between_actors: true }, { write_memory_scope: 'store' }]) {
      const closed = await agent(both(storeId))
      refused(await app.key.post('/sessions', { agent_id: closed.id, knowledge_config }), 400, 'VALIDATION_FAILED')
      const open = await session(closed.id, bob)
      refused(await app.key.patch(`/sessions/${open}`, { knowledge_config }), 400, 'VALIDATION_FAILED')
      await app.key.post(`/sessions/${open}/messages`, { message: 'x' })
      refused(await app.key.post(`/sessions/${open}/generate`, { knowledge_config }), 400, 'VALIDATION_FAILED')
      const asked = { prompt: 'x', knowledge_config }
      refused(await app.key.post(`/agents/${closed.id}/generate`, asked), 400, 'VALIDATION_FAILED')
    }
  })

  it('is not reached by tools of the platform either, nor by agents and runs that the turn starts', async () => {
    const storeId = await store()
    const [ann, bob] = [await actor(), await actor()]
    const bobs = await fact(storeId, 'Bob has the code 4711', bob)
    const bobsEntry = (await app.key.get(`/memory-entries?memory_store_id=${storeId}`)).body.data[0].id
    await fact(storeId, 'Ann has the code 1234', ann)
    await fact(storeId, 'The codes are four digits', null)
    const platform = async (actions: string[]) =>
      (await made(app.key, { type: 'platform', actions } as never)).id as string
    const tool = await platform([
      'search-knowledge',
      'list-memories',
      'get-memory',
      'update-memory',
      'delete-memory',
      'list-memory-entries',
      'get-memory-entry',
      'create-memory-entry',
      'list-events',
    ])
    const call = (name: string, args: object) => ({ name, args })
    const calls = [
      call('search-knowledge', { query: 'code', memory_store_ids: [storeId], include_documents: false }),
      call('search-knowledge', { query: 'code', memory_store_ids: [storeId], actor_id: bob }),
      call('list-memories', { memory_store_id: storeId }),
      call('list-memories', { memory_store_id: storeId, actor_id: bob }),
      call('get-memory', { memory_id: bobs }),
      call('update-memory', { memory_id: bobs, content: 'x' }),
      call('delete-memory', { memory_id: bobs }),
      call('list-memory-entries', { memory_store_id: storeId }),
      call('get-memory-entry', { memory_entry_id: bobsEntry }),
      call('create-memory-entry', { memory_store_id: storeId, content: 'x', actor_id: bob }),
      call('create-memory-entry', { memory_store_id: storeId, content: 'x', actor_id: null }),
      call('create-memory-entry', { memory_store_id: storeId, content: 'Ann is early' }),
      call('create-memory-entry', { memory_store_id: storeId, content: 'x', supersedes: bobs }),
      call('list-events', { resource_id: bobs }),
    ]
    const { id, lane } = await agent(null, [], { tool_bindings: [{ tool_id: tool }] })
    const named = async (): Promise<string[]> => {
      await says(await session(id, ann), 'hello')
      return ((await double.requests(lane)).at(-1) as any).body.tools.map((each: any) => each.function.name)
    }
    const names = await named()
    const nameOf = (name: string) => names.find(each => each.endsWith(name)) as string
    await double.put(lane, {
      rules: [
        {
          replies: [{ tool_calls: calls.map(({ name, args }) => ({ name: nameOf(name), args })) }, { text: 'done' }],
        } as never,
      ],
    })
    const { generation_id } = await says(await session(id, ann), 'Look for everything')
    const [{ tool_results: results }] = (await app.key.get(`/generations/${generation_id}/transcript`)).body.steps
    assert.equal(results.length, calls.length)
    const text = JSON.stringify(results.slice(0, 9).map(({ result, error }: any) => [result, error?.code]))
    assert.ok(!text.includes('4711'), text)
    for (const index of [0, 2, 7]) assert.match(JSON.stringify(results[index].result), /1234/)
    assert.deepEqual(
      [4, 5, 6, 8, 12].map(index => /RESOURCE_NOT_FOUND/.test(JSON.stringify(results[index].error))),
      Array(5).fill(true),
    )
    assert.deepEqual(
      [9, 10].map(index => /must be the end user of the turn/.test(JSON.stringify(results[index].error))),
      [true, true],
    )
    assert.ok(!JSON.stringify(results[13]).includes('4711') && JSON.stringify(results[13]).includes(bobs))
    assert.equal(results[11].result.actor_id ?? results[11].result.body?.actor_id, ann)
    assert.equal((await app.key.get(`/memories/${bobs}`)).status, 200)
  })

  it('is read by an agent below a turn as by the narrowest of both', async () => {
    const storeId = await store()
    const [ann, bob] = [await actor(), await actor()]
    await fact(storeId, 'Bob has the code 4711', bob)
    await fact(storeId, 'Ann has the code 1234', ann)
    const starter = (
      await made(app.key, {
        type: 'platform',
        actions: ['create-agent-generation'],
      } as never)
    ).id
    const nested = async (outer: boolean, inner: boolean): Promise<string> => {
      const below = await agent({ memory_store_ids: [storeId], min_score: 0, share_between_actors: inner })
      const above = await agent({ share_between_actors: outer, write_memory_store_id: null }, [], {
        tool_bindings: [{ tool_id: starter }],
      })
      const first = await session(above.id, ann)
      await says(first, 'hello')
      const [tool] = ((await double.requests(above.lane)).at(-1) as any).body.tools
      const args = { agent_id: below.id, prompt: 'Which codes are there?' }
      await double.put(above.lane, {
        rules: [{ replies: [{ tool_calls: [{ name: tool.function.name, args }] }, { text: 'done' }] } as never],
      })
      await says(first, 'Ask the other')
      await eventually(async () => (await double.requests(below.lane)).length === 1)
      return shown(below.lane)
    }
    for (const [outer, inner, sees] of [
      [false, false, false],
      [false, true, false],
      [true, false, false],
      [true, true, true],
    ]) {
      const text = await nested(outer, inner)
      assert.match(text, /1234/)
      assert.equal(text.includes('4711'), sees, `${outer} ${inner}`)
    }
  })

  it('is the memory of its end user in a session that a turn of another end user starts', async () => {
    const storeId = await store()
    const [ann, bob] = [await actor(), await actor()]
    await fact(storeId, 'Bob has the code 4711', bob)
    await fact(storeId, 'Ann has the code 1234', ann)
    const tool = await made(app.key, {
      type: 'platform',
      actions: ['send-session-message', 'generate-session-reply'],
    } as never)
    // Neither does the sharing agent outside widen what the one inside reads.
    const below = await agent(both(storeId), writes('Bob was asked'))
    const above = await agent({ share_between_actors: true }, [], { tool_bindings: [{ tool_id: tool.id }] })
    const bobs = await session(below.id, bob)
    const calls = [
      { name: 'tool_send-session-message', args: { session_id: bobs, message: 'Which codes are there?' } },
      { name: 'tool_generate-session-reply', args: { session_id: bobs } },
    ]
    await double.put(above.lane, {
      rules: [{ replies: [...calls.map(call => ({ tool_calls: [call] })), { text: 'done' }] } as never],
    })
    await says(await session(above.id, ann), 'Ask Bob')
    await eventually(async () => (await double.requests(below.lane)).length === 2)
    const text = await shown(below.lane)
    assert.ok(text.includes('4711') && !text.includes('1234'), text)
    const [entry] = await eventually(async () => {
      const { data } = (await app.key.get(`/memory-entries?memory_store_id=${storeId}`)).body
      return data[0].mechanism === 'tool' ? data : null
    })
    assert.deepEqual([entry.content, entry.actor_id], ['Bob was asked', bob])
  })

  it('is marked by rules, whose handlers read what the turn read', async () => {
    const [kept, facts] = [await store(), await store()]
    const [ann, bob] = [await actor(), await actor()]
    await fact(facts, 'Bob has the code 4711', bob)
    await fact(facts, 'Ann has the code 1234', ann)
    const handler = await agent({ memory_store_ids: [facts], min_score: 0, share_between_actors: true }, [
      { text: '{"facts":[{"content":"Ann is early"}]}' },
    ])
    const talker = await agent(null)
    const rule = {
      memory_store_id: kept,
      on: 'generations.completed',
      source_agent_ids: [talker.id],
      agent_id: handler.id,
    }
    await created('/memory-rules', rule)
    await says(await session(talker.id, ann), 'Which codes are there?')
    const [entry] = await eventually(async () => {
      const { data } = (await app.key.get(`/memory-entries?memory_store_id=${kept}`)).body
      return data.length > 0 ? data : null
    })
    assert.deepEqual([entry.mechanism, entry.content, entry.actor_id], ['rule', 'Ann is early', ann])
    const text = await shown(handler.lane)
    assert.ok(text.includes('1234') && !text.includes('4711'), text)
  })

  it('is marked and read by runs that a turn starts as the turn is', async () => {
    const storeId = await store()
    const [ann, bob] = [await actor(), await actor()]
    await fact(storeId, 'Bob has the code 4711', bob)
    await fact(storeId, 'Ann has the code 1234', ann)
    const write = { id: 'w', type: 'memory_write', memory_store_id: storeId, input_mapping: { content: 'Ann is late' } }
    const nodes = [write, { id: 'k', type: 'knowledge', input_mapping: { query: 'code', memory_store_ids: [storeId] } }]
    const graph = { name: 'r', nodes, edges: [{ from: 'w', to: 'k' }] }
    const orchestration_id = (await created('/orchestrations', graph)).id
    const tool = await made(app.key, { type: 'platform', actions: ['start-run'] } as never)
    const starting = await agent(
      null,
      [{ tool_calls: [{ name: 'tool_start-run', args: { orchestration_id } }] }, { text: 'done' }],
      { tool_bindings: [{ tool_id: tool.id }] },
    )
    await says(await session(starting.id, ann), 'Start it')
    const run = await eventually(async () => {
      const [found] = (await app.key.get(`/orchestration-runs?orchestration_id=${orchestration_id}`)).body.data
      return found && ['succeeded', 'failed'].includes(found.status) ? found : null
    })
    assert.equal(run.status, 'succeeded', JSON.stringify(run))
    const { output } = (await app.key.get(`/orchestration-runs/${run.id}`)).body
    const found = JSON.stringify(output)
    assert.ok(found.includes('1234') && !found.includes('4711'), found)
    const [entry] = (await app.key.get(`/memory-entries?memory_store_id=${storeId}`)).body.data
    assert.deepEqual([entry.mechanism, entry.content, entry.actor_id], ['orchestration', 'Ann is late', ann])
    // A run without a turn is an operator's: it names the owner of the fact, and reads all.
    const own = { ...write, input_mapping: { content: 'Bob is late', actor_id: bob } }
    const direct = (await created('/orchestrations', { ...graph, nodes: [own, nodes[1]] })).id
    const started = (await app.key.post('/orchestration-runs', { orchestration_id: direct })).body
    const ended = await eventually(async () => {
      const { body } = await app.key.get(`/orchestration-runs/${started.id}`)
      return ['succeeded', 'failed'].includes(body.status) ? body : null
    })
    assert.match(JSON.stringify(ended.output), /4711/)
    assert.equal((await app.key.get(`/memories?memory_store_id=${storeId}&actor_id=${bob}`)).body.data.length, 2)
  })

  it('is configured on sessions, with names that stand for the end user', async () => {
    const [first, second] = [await store(), await store()]
    const [ann, star] = [await actor('ann-7'), await actor('*')]
    await fact(first, 'Rooms look at the sea', null, { tags: { customer: 'ann-7' } })
    await fact(first, 'Rooms look at the yard', null, { tags: { customer: '*' } })
    await fact(second, 'Rooms have numbers', null)
    await created('/documents', { path: '/customers/ann-7/room.md', content: 'The room of Ann is 12.' })
    await created('/documents', { path: '/customers/bob/room.md', content: 'The room of Bob is 13.' })
    const tagged = await agent({ tags: { customer: '{actor_external_id}' }, memory_store_ids: [first], min_score: 0 })
    const asks = async (sessionId: string, lane: string, body: object = {}): Promise<string> => {
      await says(sessionId, 'Which rooms are there?', body)
      return shown(lane)
    }
    const anns = await asks(await session(tagged.id, ann), tagged.lane)
    assert.ok(anns.includes('the sea') && !anns.includes('the yard'), anns)
    const stars = await asks(await session(tagged.id, star), tagged.lane)
    assert.ok(stars.includes('the yard') && !stars.includes('the sea'), stars)
    for (const actorId of [null, await actor()]) {
      const none = await asks(await session(tagged.id, actorId), tagged.lane)
      assert.ok(!none.includes('Rooms'), none)
    }
    const below = await agent({ document_paths: ['/customers/{actor_external_id}'], min_score: 0 })
    const paths = async (actorId: string | null) => asks(await session(below.id, actorId), below.lane)
    const room = await paths(ann)
    assert.ok(room.includes('Ann is 12') && !room.includes('Bob is 13'), room)
    for (const actorId of [star, await actor('../customers'), await actor('bob/'), null])
      assert.ok(!(await paths(actorId)).includes('The room of'))

    const plain = await agent({ memory_store_ids: [first], min_score: 0 }, [])
    const knowledge_config = { memory_store_ids: [second], write_memory_store_id: second }
    const own = await session(plain.id, ann, { knowledge_config })
    assert.deepEqual((await app.key.get(`/sessions/${own}`)).body.knowledge_config, knowledge_config)
    const all = await asks(own, plain.lane)
    assert.ok(all.includes('the sea') && all.includes('have numbers'), all)
    const { tools } = ((await double.requests(plain.lane)).at(-1) as any).body
    assert.equal(tools[0].function.name, 'write_memory')
    assert.equal((await app.key.patch(`/sessions/${own}`, { knowledge_config: null })).body.knowledge_config, null)
    assert.ok(!(await asks(own, plain.lane)).includes('have numbers'))
    const overlaid = { knowledge_config: { memory_store_ids: [second] } }
    assert.match(await asks(own, plain.lane, overlaid), /have numbers/)
    refused(
      await app.key.post('/sessions', { agent_id: plain.id, knowledge_config: { memory_store_ids: ['mstore_x'] } }),
      404,
      'RESOURCE_NOT_FOUND',
    )
  })

  it('is widened by fewer tags, fewer stores or sharing only with permission to search the result', async () => {
    const storeId = await store()
    const may = async (action: string[]) =>
      app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:*:*`] }] }])
    const [writer, searcher] = [
      await may(['agents:*', 'sessions:*']),
      await may(['agents:*', 'knowledge:SearchKnowledge']),
    ]
    const tags = { customer: 'a' }
    const tagged = { memory_store_ids: [storeId], document_paths: ['/customers'], tags }
    const { id } = await agent(tagged)
    const wider = [
      { memory_store_ids: [storeId], document_paths: ['/customers'] },
      { ...tagged, tags: { customer: 'b' } },
      { document_paths: ['/customers'], tags },
      { ...tagged, share_between_actors: true },
    ]
    for (const knowledge_config of wider) {
      refused(await writer.patch(`/agents/${id}`, { knowledge_config }), 403, 'FORBIDDEN')
      assert.equal((await searcher.patch(`/agents/${id}`, { knowledge_config })).status, 200)
      assert.equal((await app.key.patch(`/agents/${id}`, { knowledge_config: tagged })).status, 200)
    }
    const overlay = { knowledge_config: { tags: { customer: 'b' } } }
    refused(await writer.post(`/agents/${id}/generate`, { prompt: 'x', ...overlay }), 403, 'FORBIDDEN')
    refused(await writer.post('/sessions', { project_id: app.projectId, agent_id: id, ...overlay }), 403, 'FORBIDDEN')
    const narrower = { knowledge_config: { tags: { place: 'sea' } } }
    const own = await writer.post('/sessions', { project_id: app.projectId, agent_id: id, ...narrower })
    assert.equal(own.status, 201, JSON.stringify(own.body))
    await writer.post(`/sessions/${own.body.id}/messages`, { message: 'x' })
    const loosened = { knowledge_config: { tags: { place: 'yard' } } }
    refused(await writer.post(`/sessions/${own.body.id}/generate`, loosened), 403, 'FORBIDDEN')
  })

  it('cannot be loosened by the turn itself', async () => {
    const [ann, bob] = [await actor('loose-ann'), await actor('loose-bob')]
    const actions = ['create-agent', 'update-agent', 'merge-actor', 'update-actor', 'test-memory-rule']
    const tool = (await made(app.key, { type: 'platform', actions } as never)).id
    const talker = await agent(null)
    const { generation_id } = await says(await session(talker.id, bob), 'I am Bob')
    const rule = await created('/memory-rules', {
      memory_store_id: await store(),
      on: 'generations.completed',
      enabled: false,
    })
    const turning = await agent(null, [], { tool_bindings: [{ tool_id: tool }] })
    const knowledge_config = { share_between_actors: true }
    const calls = [
      ['create-agent', { name: 'x', ai_provider_id: app.providerId, knowledge_config }],
      ['update-agent', { agent_id: talker.id, knowledge_config }],
      ['merge-actor', { actor_id: bob, into_actor_id: ann }],
      ['update-actor', { actor_id: bob, external_id: 'loose-else' }],
      ['test-memory-rule', { memory_rule_id: rule.id, generation_id }],
    ] as const
    const tool_calls = calls.map(([name, args]) => ({ name: `tool_${name}`, args }))
    await double.put(turning.lane, { rules: [{ replies: [{ tool_calls }, { text: 'done' }] } as never] })
    const turn = await says(await session(turning.id, ann), 'Loosen it')
    const [{ tool_results }] = (await app.key.get(`/generations/${turn.generation_id}/transcript`)).body.steps
    assert.deepEqual(
      tool_results.map(({ error }: any) => /403 FORBIDDEN|404 GENERATION_NOT_FOUND/.test(error?.message)),
      calls.map(() => true),
      JSON.stringify(tool_results),
    )
  })

  it('is allowed on a session only with permission to read and write the additions', async () => {
    const storeId = await store()
    const { id } = await agent({})
    const may = async (action: string[]) =>
      app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:*:*`] }] }])
    const body = (knowledge_config: object) => ({ project_id: app.projectId, agent_id: id, knowledge_config })
    const reading = { memory_store_ids: [storeId] }
    const writing = { write_memory_store_id: storeId }
    const opener = await may(['sessions:*', 'agents:*'])
    refused(await opener.post('/sessions', body(reading)), 403, 'FORBIDDEN')
    refused(await opener.post('/sessions', body(writing)), 403, 'FORBIDDEN')
    const own = (await opener.post('/sessions', { project_id: app.projectId, agent_id: id })).body.id
    refused(await opener.patch(`/sessions/${own}`, { knowledge_config: reading }), 403, 'FORBIDDEN')
    await opener.post(`/sessions/${own}/messages`, { message: 'x' })
    refused(await opener.post(`/sessions/${own}/generate`, { knowledge_config: reading }), 403, 'FORBIDDEN')
    const reader = await may(['sessions:*', 'agents:*', 'knowledge:SearchKnowledge'])
    assert.equal((await reader.post('/sessions', body(reading))).status, 201)
    refused(await reader.post('/sessions', body(writing)), 403, 'FORBIDDEN')
    const writer = await may(['sessions:*', 'memories:CreateMemoryEntry'])
    assert.equal((await writer.post('/sessions', body(writing))).status, 201)
  })
})
