import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { firingRetention } from '#execution/memory-rules/retention.ts'
import { usageSettled } from '../control/usage-support.ts'
import { client } from '../local/double/client.ts'
import { type Client, eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { eventsOf } from './decider-support.ts'
import { startAgentApp } from './fixtures.ts'
import { accepted, shared } from './share-support.ts'
import { json, made, refused, refusedAt, startTarget } from './tool-target.ts'

const ACTIONS = [
  ...[
    'agents:*',
    'tools:*',
    'guardrails:*',
    'generations:*',
    'traces:*',
    'conversations:*',
    'memories:*',
    'projects:*',
  ],
  ...['events:*', 'exceptions:*', 'actors:*', 'sessions:*', 'model-routes:*', 'ai-providers:*', 'shares:*'],
]

const FACTS = '["Ada likes tea", {"content": "Ada lives in Turin"}, 7, ""]'

describe('memory rules', function () {
  this.timeout(60_000)
  const target = forSuite(startTarget)
  const app = forSuite(() => startAgentApp({ together: true, actions: ACTIONS, workers: ['generation', 'delivery'] }))
  const double = forSuite(() => client(app.double))
  let lanes = 0
  beforeEach(() => {
    target.requests.length = 0
  })

  const store = async (): Promise<string> =>
    (await createdBy(app.key, '/memory-stores', { name: `store ${++lanes}` })).id
  const agentWith = async (rules: object[], fields: object = {}): Promise<string> => {
    const lane = `rules-${++lanes}`
    await double.put(lane, { rules: rules as never })
    return app.agent({ model: `${lane}/m`, ...fields })
  }
  /** An agent that says hello, and as what extracts facts says those. */
  const talker = (facts = FACTS, fields: object = {}) =>
    agentWith([{ when: { system: 'JSON array' }, reply: { text: facts } }, { reply: { text: 'Hello Ada' } }], fields)
  const rule = (fields: object, key: Client = app.key): Promise<any> =>
    createdBy(key, '/memory-rules', { on: 'generations.completed', ...fields })
  const turn = async (agent: string, body: object = {}): Promise<string> =>
    (await createdBy(app.key, `/agents/${agent}/generate?wait=true`, { prompt: 'I am Ada', ...body }, 200)).id
  const extraction = (generation: string, ruleId: string): Promise<any> =>
    eventually(async () => (await app.key.get(`/generations/${generation}`)).body.extraction?.[ruleId], {
      what: `what ${ruleId} makes of ${generation}`,
    })
  const entries = async (storeId: string): Promise<any[]> =>
    (await app.key.get(`/memory-entries?memory_store_id=${storeId}`)).body.data
  const contents = async (storeId: string): Promise<string[]> =>
    (await entries(storeId)).map(({ content }) => content).sort()
  const counts = (candidates: number, created: number, skipped = 0, failed = 0) => ({
    candidates,
    created,
    superseded: 0,
    skipped,
    failed,
  })

  describe('as records', () => {
    it('are kept, found, changed and deleted by who may', async () => {
      const memory_store_id = await store()
      const agent = await talker()
      const made = await rule({ memory_store_id, source_agent_ids: [agent] })
      assert.match(made.id, /^mrule_/)
      assert.deepEqual(
        { ...made, id: 0, created_at: 0, updated_at: 0 },
        {
          id: 0,
          project_id: app.projectId,
          memory_store_id,
          on: 'generations.completed',
          source_agent_ids: [agent],
          agent_id: null,
          tool_id: null,
          action: null,
          preset_parameters: null,
          prompt: null,
          ai_provider_id: null,
          model: null,
          enabled: true,
          include_evaluations: false,
          disabled_reason: null,
          created_at: 0,
          updated_at: 0,
        },
      )
      const path = `/memory-rules/${made.id}`
      assert.equal((await app.key.patch(path, { enabled: false, prompt: 'Names only' })).body.enabled, false)
      const listed = await app.key.get(`/memory-rules?memory_store_id=${memory_store_id}&enabled=false`)
      assert.deepEqual([listed.body.total, listed.body.data[0].prompt], [1, 'Names only'])
      assert.equal((await app.key.get(`/memory-rules?memory_store_id=${memory_store_id}&enabled=true`)).body.total, 0)
      refusedAt(await app.key.patch(path, { memory_store_id: await store() }), 'memory_store_id')
      assert.equal((await app.key.delete(path)).status, 204)
      assert.equal((await app.key.get(path)).status, 404)
      assert.deepEqual(
        (await eventsOf(app.key, made.id)).map(({ event }) => event),
        ['memory_rules.deleted', 'memory_rules.updated', 'memory_rules.created'],
      )
    })

    it('are at most 200 per project, under any number of concurrent creates', async () => {
      const { key } = await app.projectWith(ACTIONS)
      const memory_store_id = (await key.post('/memory-stores', { name: 'store' })).body.id
      const more = () => key.post('/memory-rules', { memory_store_id, on: 'generations.completed', enabled: false })
      for (let n = 0; n < 190; n += 38) await Promise.all(Array.from({ length: 38 }, more))
      const statuses = (await Promise.all(Array.from({ length: 20 }, more))).map(({ status }) => status)
      assert.equal(statuses.filter(status => status === 201).length, 10)
      assert.equal((await more()).body.error.meta.problems[0].code, 'LIMIT_REACHED')
    })

    it('are decided on their store', async () => {
      const [mine, theirs] = [await store(), await store()]
      const hidden = await rule({ memory_store_id: theirs, enabled: false })
      const resource = [`srn:${app.projectId}:memory_store:${mine}`]
      const user = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['memories:*'], resource }] }])
      const own = await rule({ memory_store_id: mine, enabled: false }, user)
      refused(
        await user.post('/memory-rules', { on: 'generations.completed', memory_store_id: theirs }),
        403,
        'FORBIDDEN',
      )
      assert.equal((await user.get(`/memory-rules/${own.id}`)).status, 200)
      for (const path of [`/memory-rules/${hidden.id}`])
        for (const reply of [await user.get(path), await user.patch(path, {}), await user.delete(path)])
          refused(reply, 403, 'FORBIDDEN')
      const listed = (await user.get(`/memory-rules?project_id=${app.projectId}`)).body
      assert.deepEqual(
        listed.data.map(({ id }: { id: string }) => id),
        [own.id],
      )
      const stranger = await app.projectWith(ACTIONS)
      for (const id of [theirs, 'mstore_1'])
        refused(
          await stranger.key.post('/memory-rules', { on: 'generations.completed', memory_store_id: id }),
          404,
          'RESOURCE_NOT_FOUND',
        )
      assert.equal((await stranger.key.get(`/memory-rules/${own.id}`)).status, 404)
    })

    it('refuse what does not go together', async () => {
      const memory_store_id = await store()
      const agent_id = await talker()
      const tool_id = (await made(app.key, { execute: { url: target.url } })).id
      const platform = (await made(app.key, { type: 'platform', actions: ['list-agents'] })).id
      const client = (await made(app.key, { type: 'client', parameters: { type: 'object' } })).id
      const post = (fields: object) =>
        app.key.post('/memory-rules', { memory_store_id, on: 'generations.completed', ...fields })
      for (const [path, fields] of [
        ['tool_id', { agent_id, tool_id }],
        ['action', { action: 'x' }],
        ['preset_parameters', { agent_id, preset_parameters: {} }],
        ['prompt', { agent_id, prompt: 'x' }],
        ['model', { tool_id, model: 'x' }],
        ['ai_provider_id', { tool_id, ai_provider_id: app.providerId }],
        ['on', { on: 'conversation_messages.generated' }],
        ['on', { on: 'agents.created' }],
        ['tool_id', { tool_id: client }],
        ['action', { tool_id: platform }],
        ['action', { tool_id, action: 'x' }],
        ['preset_parameters.transcript', { tool_id, preset_parameters: { transcript: 1 } }],
        ['source_agent_ids', { source_agent_ids: [] }],
        ['extra', { extra: 1 }],
      ] as const)
        refusedAt(await post(fields), path)
      refused(await post({ agent_id: 'agent_1' }), 400, 'AGENT_NOT_FOUND')
      refused(await post({ source_agent_ids: [agent_id, 'agent_1'] }), 400, 'AGENT_NOT_FOUND')
      refused(await post({ tool_id: 'tool_1' }), 400, 'TOOL_NOT_FOUND')
      refused(await post({ ai_provider_id: 'aip_1' }), 400, 'AI_PROVIDER_NOT_FOUND')

      const { id } = await rule({ memory_store_id, prompt: 'mine', enabled: false })
      refusedAt(await app.key.patch(`/memory-rules/${id}`, { agent_id }), 'prompt')
      assert.equal((await app.key.patch(`/memory-rules/${id}`, { agent_id, prompt: null })).status, 200)
      refusedAt(await app.key.patch(`/memory-rules/${id}`, { tool_id }), 'tool_id')
    })

    it('require permission to call their handler', async () => {
      const memory_store_id = await store()
      const agent_id = await talker()
      const tool_id = (await made(app.key, { execute: { url: target.url } })).id
      const resource = [`srn:${app.projectId}:*:*`]
      const user = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['memories:*'], resource }] }])
      const body = { memory_store_id, on: 'generations.completed' }
      for (const handler of [{ agent_id }, { tool_id }])
        refused(await user.post('/memory-rules', { ...body, ...handler }), 403, 'FORBIDDEN')
      const { id } = await rule({ memory_store_id, tool_id, enabled: false })
      refused(await user.patch(`/memory-rules/${id}`, { preset_parameters: { a: 1 } }), 403, 'FORBIDDEN')
      assert.equal((await user.patch(`/memory-rules/${id}`, { source_agent_ids: null })).status, 200)
    })

    it('are switched off when their handler is deleted, and hold their provider', async () => {
      const memory_store_id = await store()
      const agent_id = await talker()
      const tool_id = (await made(app.key, { execute: { url: target.url } })).id
      const ids = [
        (await rule({ memory_store_id, agent_id })).id,
        (await rule({ memory_store_id, tool_id, preset_parameters: { a: 1 } })).id,
      ]
      assert.equal((await app.key.delete(`/agents/${agent_id}`)).status, 204)
      assert.equal((await app.key.delete(`/tools/${tool_id}`)).status, 204)
      for (const id of ids) {
        const { body } = await app.key.get(`/memory-rules/${id}`)
        assert.deepEqual(
          [body.enabled, body.disabled_reason, body.agent_id, body.tool_id],
          [false, 'handler_deleted', null, null],
        )
        assert.deepEqual((await eventsOf(app.key, id))[0].event, 'memory_rules.updated')
      }
      const again = (await app.key.patch(`/memory-rules/${ids[0]}`, { enabled: true })).body
      assert.deepEqual([again.enabled, again.disabled_reason], [true, null])
      for (const id of ids) await app.key.delete(`/memory-rules/${id}`)

      const provider = await app.key.post('/ai-providers', {
        name: 'held',
        provider: 'custom',
        default_model: 'm',
        base_url: `${app.double.url}/v1`,
      })
      const { id } = await rule({ memory_store_id, ai_provider_id: provider.body.id, enabled: false })
      const error = refused(
        await app.key.delete(`/ai-providers/${provider.body.id}?force=true`),
        409,
        'AI_PROVIDER_HAS_DEPENDENTS',
      )
      assert.deepEqual([error.meta.counts.memory_rules, error.meta.forcible], [1, false])
      assert.equal((await app.key.delete(`/memory-stores/${memory_store_id}`)).status, 204)
      assert.equal((await app.key.get(`/memory-rules/${id}`)).status, 404)
    })
  })

  describe('without a handler', () => {
    it('have a model extract facts of turns that complete', async () => {
      const memory_store_id = await store()
      const agent = await talker()
      const { id } = await rule({ memory_store_id, source_agent_ids: [agent] })
      const generation = await turn(agent, {
        messages: [
          { role: 'user', content: 'Hi' },
          { role: 'assistant', content: 'Who is there?' },
        ],
      })
      assert.deepEqual(await extraction(generation, id), counts(2, 2))
      assert.deepEqual(await contents(memory_store_id), ['Ada likes tea', 'Ada lives in Turin'])
      const [entry] = await entries(memory_store_id)
      assert.deepEqual(
        [entry.mechanism, entry.memory_rule_id, entry.generation_id, entry.principal_type, entry.principal_id],
        ['rule', id, generation, 'agent', agent],
      )
      const lane = `rules-${lanes}`
      const request = (await double.requests(lane)).at(-1)?.body as any
      assert.equal(request.temperature, undefined)
      assert.equal(request.tools, undefined)
      assert.deepEqual(request.messages.at(-1), {
        role: 'user',
        content: 'user: Hi\nassistant: Who is there?\nuser: I am Ada\nassistant: Hello Ada',
      })
      const second = await turn(agent)
      assert.deepEqual(await extraction(second, id), counts(2, 0, 2))
      await app.key.delete(`/memory-rules/${id}`)
    })

    it('leave their memories in the store when they are deleted, without their id', async () => {
      const memory_store_id = await store()
      const agent = await talker()
      const { id } = await rule({ memory_store_id, source_agent_ids: [agent] })
      const generation = await turn(agent)
      assert.deepEqual(await extraction(generation, id), counts(2, 2))
      const before = await entries(memory_store_id)
      assert.deepEqual(new Set(before.map(entry => entry.memory_rule_id)), new Set([id]))
      assert.equal((await app.key.delete(`/memory-rules/${id}`)).status, 204)
      assert.deepEqual(
        await entries(memory_store_id),
        before.map(entry => ({ ...entry, memory_rule_id: null })),
      )
      assert.equal((await app.key.get(`/memories?memory_store_id=${memory_store_id}`)).body.total, 2)
      assert.deepEqual(Object.keys((await app.key.get(`/generations/${generation}`)).body.extraction), [id])
    })

    it('are metered as extraction, for the agent and the turn, and refused at a quota before the model is called', async () => {
      const memory_store_id = await store()
      const agent = await talker()
      const { id } = await rule({ memory_store_id, source_agent_ids: [agent] })
      const metered = async () =>
        (await usageSettled(app, app.projectId)).filter(
          event => event.source === 'memory_extraction' && event.agent_id === agent,
        )
      const first = await turn(agent)
      await extraction(first, id)
      const [event, ...others] = await metered()
      assert.deepEqual(others, [])
      assert.deepEqual(
        [event.meter_type, event.generation_id, event.ai_provider_id, event.model],
        ['llm_tokens', first, app.providerId, `rules-${lanes}/m`],
      )
      assert.ok(event.components.some(({ component, quantity }: any) => component === 'input_tokens' && quantity > 0))

      // The next turn may start, and uses the remaining quota.
      const [{ tokens }] = (await app.pool.any(
        rawQuery('select sum(tokens)::int as tokens from usage_events where agent_id = $1', [agent]),
      )) as { tokens: number }[]
      const quota = await app.admin.post('/quotas', {
        ...{ project_id: app.projectId, scope: 'agent', scope_ref: agent },
        ...{ metric: 'tokens', window: 'calendar_month', limit: tokens + 1 },
      })
      assert.equal(quota.status, 201, JSON.stringify(quota.body))
      const asked = async () => (await double.requests(`rules-${lanes}`)).length
      const before = await asked()
      const second = await turn(agent)
      const { error, ...of } = await extraction(second, id)
      assert.deepEqual([error.code, error.meta.quota_id, of], ['QUOTA_EXCEEDED', quota.body.id, counts(0, 0)])
      assert.equal(await asked(), before + 1)
      assert.equal((await metered()).length, 1)
      await app.key.delete(`/memory-rules/${id}`)
      await app.admin.delete(`/quotas/${quota.body.id}`)
    })

    it('extract facts of turns of a shared agent on the provider, and at the prices, of the project of the rule', async () => {
      const grantee = await app.projectWith(ACTIONS)
      const agent = await talker()
      const share = await shared(app.key, `srn:${app.projectId}:agent:${agent}`, { grantee: grantee.id })
      await accepted(grantee.key, share.id)
      const lane = `rules-${lanes}`
      const { base_url } = (await app.key.get(`/ai-providers/${app.providerId}`)).body
      const provider = await grantee.key.post('/ai-providers', {
        ...{ name: 'own', provider: 'custom', base_url, default_model: `${lane}/own` },
      })
      assert.equal(provider.status, 201, JSON.stringify(provider.body))
      const price = { component: 'input_tokens', unit: 'token', effective_from: '2026-01-01', model: `${lane}/own` }
      for (const [project, unit_price] of [
        [app.projectId, 7],
        [grantee.id, 1],
      ] as const)
        assert.equal(
          (
            await app.admin.put(`/projects/${project}/prices`, {
              prices: [{ ...price, provider: 'custom', unit_price }],
            })
          ).status,
          200,
        )
      const memory_store_id = (await grantee.key.post('/memory-stores', { name: 'own' })).body.id
      const { id } = await rule({ memory_store_id, ai_provider_id: provider.body.id }, grantee.key)
      const reply = await grantee.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'I am Ada' })
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
      await eventually(
        async () => (await grantee.key.get(`/generations/${reply.body.id}`)).body.extraction?.[id]?.created === 2,
      )
      const events = await usageSettled(app, grantee.id)
      const [event, ...others] = events.filter(({ source }) => source === 'memory_extraction')
      assert.deepEqual(others, [])
      assert.deepEqual([event.ai_provider_id, event.publisher_project_id], [provider.body.id, null])
      const input = event.components.find(({ component }: any) => component === 'input_tokens')
      assert.equal(input.unit_price, 1)
      await grantee.key.delete(`/memory-rules/${id}`)
    })

    it('process turns of every transport, once each, and no failed or pausing turn', async () => {
      const memory_store_id = await store()
      const agent = await agentWith(
        [
          { when: { system: 'JSON array' }, reply: { text: '["A fact"]' } },
          { when: { user: 'fail' }, reply: { error: { status: 400 } } },
          { when: { user: 'pause', last_role: 'user' }, reply: { tool_calls: [{ name: 'ask', args: {} }] } },
          { reply: { text: 'ok' } },
        ],
        { tool_bindings: [{ tool: { type: 'client', name: 'ask', parameters: { type: 'object' } } }] },
      )
      const { id } = await rule({ memory_store_id, source_agent_ids: [agent] })
      const path = `/agents/${agent}/generate`
      const background = (await app.key.post(path, { prompt: 'x' })).body.generation_id
      const streamed = await app.key.post(path, { prompt: 'x', stream: true })
      assert.equal(streamed.status, 200)
      const paused = (await app.key.post(`${path}?wait=true`, { prompt: 'pause' })).body
      const failed = await app.key.post(`${path}?wait=true`, { prompt: 'fail' })
      assert.equal(failed.status, 502)
      await extraction(background, id)
      assert.equal((await app.key.get(`/generations/${paused.id}`)).body.extraction, null)
      const [{ tool_call_id }] = paused.required_action.tool_calls
      const outputs = { tool_outputs: [{ tool_call_id, output: 'done' }] }
      const resumed = await app.key.post(`${path}/${paused.id}/tool-outputs`, outputs)
      assert.equal(resumed.status, 200, JSON.stringify(resumed.body))
      await extraction(paused.id, id)
      const conversation = (await app.key.post('/conversations', {})).body.id
      await app.key.post(`/conversations/${conversation}/messages`, { role: 'user', message: 'hello' })
      const said = await app.key.post(`/conversations/${conversation}/generate?wait=true`, { agent_id: agent })
      assert.equal(said.status, 200, JSON.stringify(said.body))
      await extraction(said.body.generation_id, id)
      await eventually(async () => (await entries(memory_store_id)).length === 4, { what: 'four entries' })
      const all = await entries(memory_store_id)
      assert.equal(new Set(all.map(entry => entry.generation_id)).size, 4)
      const ofConversation = all.find(entry => entry.generation_id === said.body.generation_id)
      assert.equal(ofConversation.conversation_id, conversation)
      assert.equal((await app.key.get(`/generations/${failed.body.error.meta.generation_id}`)).body.extraction, null)
      await app.key.delete(`/memory-rules/${id}`)
    })

    it('keep what can be read of an answer, and at most twenty facts', async () => {
      const memory_store_id = await store()
      const many = JSON.stringify(Array.from({ length: 30 }, (_, n) => `Fact ${n}`))
      for (const [text, kept] of [
        ['see [1] and ["A", "B"] then ["C"]', 0],
        ['Sure: ```json\n["Said [so]", "and \\"so\\""]\n```', 2],
        [many, 20],
      ] as const) {
        const agent = await talker(text)
        const { id } = await rule({ memory_store_id, source_agent_ids: [agent] })
        const { candidates, error } = await extraction(await turn(agent), id)
        assert.deepEqual([candidates, error], [kept, undefined], text)
        await app.key.delete(`/memory-rules/${id}`)
      }
    })

    it('fail by an answer that is no list of facts, and are repeated', async () => {
      const memory_store_id = await store()
      const agent = await talker('I found nothing.')
      const handler = await agentWith([{ reply: { text: 'Nothing either.' } }])
      const ids = [
        (await rule({ memory_store_id, source_agent_ids: [agent] })).id,
        (await rule({ memory_store_id, source_agent_ids: [agent], agent_id: handler })).id,
      ]
      await turn(agent)
      const failures = () =>
        app.pool.any(
          rawQuery('select failures from memory_rule_firings where memory_rule_id = any($1) and failures = 1', [ids]),
        )
      await eventually(async () => (await failures()).length === 2, { what: 'failed attempts of both handlers' })
      for (const id of ids) await app.key.delete(`/memory-rules/${id}`)
    })

    it('fail for an answer without a list of facts, such as a truncated one, also of an agent', async () => {
      const memory_store_id = await store()
      for (const text of ['no json', '["A", "B']) {
        const agent = await talker(text)
        const said = await turn(agent)
        for (const handler of [{}, { agent_id: agent }]) {
          const { id } = await rule({ memory_store_id, source_agent_ids: [agent], ...handler })
          const { status, body } = await app.key.post(`/memory-rules/${id}/test`, { generation_id: said })
          assert.deepEqual(
            [status, body.error?.code],
            [502, 'OUTPUT_SCHEMA_VALIDATION_FAILED'],
            `${text}: ${JSON.stringify(body)}`,
          )
          await app.key.delete(`/memory-rules/${id}`)
        }
      }
    })

    it('call the model of the rule, else the model of the agent, with the prompt of the rule', async () => {
      const memory_store_id = await store()
      await double.put('named', { rules: [{ reply: { text: '["Named"]' } }] })
      const agent = await talker('["Of the agent"]')
      const named = await rule({
        memory_store_id,
        source_agent_ids: [agent],
        model: 'named/m',
        prompt: 'Only names of pets',
      })
      assert.deepEqual(await extraction(await turn(agent), named.id), counts(1, 1))
      const [{ body }] = await double.requests('named')
      assert.match((body as any).messages[0].content, /^Only names of pets\n\nAnswer with a JSON array/)
      assert.deepEqual(await contents(memory_store_id), ['Named'])
      await app.key.delete(`/memory-rules/${named.id}`)

      const route = await app.key.post('/model-routes', {
        name: 'of rules',
        targets: [{ ai_provider_id: app.providerId, model: 'named/m' }],
      })
      const routed = await app.agent({ ai_provider_id: null, model_route_id: route.body.id })
      const other = await rule({ memory_store_id: await store(), source_agent_ids: [routed], model: 'ignored' })
      assert.deepEqual(await extraction(await turn(routed), other.id), counts(1, 1))
      await app.key.delete(`/memory-rules/${other.id}`)
    })
  })

  describe('with an agent', () => {
    it('write the answer of the agent, with its tags, and its turns fire no rule', async () => {
      const memory_store_id = await store()
      const said =
        'Here: {"note": 1} {"facts": [{"content": "Ada is tall", "tags": {"kind": "body", "n": 3}}, "Plain"]}'
      const handler = await agentWith([{ reply: { text: said } }])
      const agent = await talker()
      const { id } = await rule({ memory_store_id, agent_id: handler })
      const generation = await turn(agent)
      assert.deepEqual(await extraction(generation, id), counts(2, 2))
      const [tall] = (await entries(memory_store_id)).filter(({ content }) => content === 'Ada is tall')
      assert.deepEqual([tall.tags, tall.principal_id], [{ kind: 'body' }, agent])
      const turns = (await app.key.get(`/generations?agent_id=${handler}`)).body.data
      assert.deepEqual(
        turns.map(({ source, initiator_generation_id, extraction: made }: any) => [
          source,
          initiator_generation_id,
          made,
        ]),
        [['memory_rule', generation, null]],
      )
      // Requested by a person, too.
      const direct = await turn(handler)
      await turn(agent).then(next => extraction(next, id))
      assert.equal((await app.key.get(`/generations/${direct}`)).body.extraction, null)
      await app.key.delete(`/memory-rules/${id}`)
    })

    it('call in the chain of the turn, and skip the call where the chain is full', async () => {
      const memory_store_id = await store()
      const handler = await agentWith([{ reply: { text: '{"facts":["One"]}' } }])
      const agent = await talker()
      const { id } = await rule({ memory_store_id, agent_id: handler })
      const generation = await turn(agent)
      assert.deepEqual(await extraction(generation, id), counts(1, 1))
      const asked = async (): Promise<any[]> => (await app.key.get(`/generations?agent_id=${handler}`)).body.data
      const { chain_id } = (await app.key.get(`/generations/${generation}`)).body
      assert.ok(chain_id)
      assert.deepEqual(
        (await asked()).map(each => each.chain_id),
        [chain_id],
      )
      await app.admin.patch(`/projects/${app.projectId}`, { max_chain_generations: 1 })
      const refused = await turn(agent)
      const spent = `/chains?project_id=${app.projectId}&status=budget_exhausted`
      await eventually(async () => (await app.admin.get(spent)).body.total === 1, { what: 'the chain' })
      assert.equal((await asked()).length, 1)
      assert.equal((await app.key.get(`/generations/${refused}`)).body.extraction, null)
      await app.admin.patch(`/projects/${app.projectId}`, { max_chain_generations: null })
      await app.key.delete(`/memory-rules/${id}`)
    })

    it('fire by nothing that their handler causes', async () => {
      const memory_store_id = await store()
      const helper = await agentWith([{ reply: { text: 'helped' } }])
      const platform = (await made(app.key, { name: 'run', type: 'platform', actions: ['create-agent-generation'] })).id
      const handler = await agentWith(
        [
          {
            replies: [
              { tool_calls: [{ name: 'run_create-agent-generation', args: { agent_id: helper, prompt: 'help' } }] },
              { text: '{"facts":["Once"]}' },
            ],
          },
        ],
        { tool_bindings: [{ tool_id: platform }] },
      )
      const tools = (await app.key.get(`/tools/${platform}/actions`)).body
      assert.ok(tools)
      const agent = await talker()
      const { id } = await rule({ memory_store_id, agent_id: handler })
      const generation = await turn(agent)
      assert.deepEqual(await extraction(generation, id), counts(1, 1))
      const helped = (await app.key.get(`/generations?agent_id=${helper}`)).body.data
      assert.deepEqual(
        helped.map(({ source, extraction: made }: any) => [source, made]),
        [['memory_rule', null]],
      )
      await app.key.delete(`/memory-rules/${id}`)
    })

    it('end with the failure of its turn', async () => {
      const memory_store_id = await store()
      const handler = await agentWith([{ reply: { text: '{"facts":[]}', gate: 'handler' } }])
      const agent = await talker()
      const { id } = await rule({ memory_store_id, agent_id: handler, source_agent_ids: [agent] })
      const generation = await turn(agent)
      await eventually(async () => ((await double.gate('handler'))?.waiting ?? 0) > 0, { what: 'the handler' })
      assert.equal((await app.admin.patch(`/projects/${app.projectId}`, { trace_content_mode: 'none' })).status, 200)
      await double.read('POST', '/control/gates/handler/open')
      assert.deepEqual(await extraction(generation, id), counts(0, 0))
      await app.admin.patch(`/projects/${app.projectId}`, { trace_content_mode: 'full' })
      await app.key.delete(`/memory-rules/${id}`)
    })
  })

  describe('with a tool', () => {
    it('write the answer of the tool in place of extracted facts, whatever its presets say', async () => {
      const memory_store_id = await store()
      target.answer = json({ facts: [{ content: 'By tool', tags: { a: 'b' } }], more: 1 })
      const tool = await made(app.key, { execute: { url: target.url } })
      const agent = await talker()
      const { id } = await rule({
        memory_store_id,
        tool_id: tool.id,
        preset_parameters: { color: 'blue' },
        source_agent_ids: [agent],
        on: 'conversation_messages.generated',
      })
      const conversation_id = (await app.key.post('/conversations', {})).body.id
      await app.key.post(`/conversations/${conversation_id}/messages`, { role: 'user', message: 'I am Ada' })
      const said = await app.key.post(`/conversations/${conversation_id}/generate?wait=true`, { agent_id: agent })
      const { generation_id } = said.body
      assert.deepEqual(await extraction(generation_id, id), counts(1, 1))
      const [request] = target.requests
      assert.deepEqual(JSON.parse(request.body), {
        color: 'blue',
        event: 'conversation_messages.generated',
        memory_rule_id: id,
        agent_id: agent,
        generation_id,
        conversation_id,
        transcript: 'user: I am Ada\nassistant: Hello Ada',
      })
      assert.match(String(request.headers['idempotency-key']), /^mfire_/)
      // A turn outside of conversations makes no message.
      const generation = await turn(agent)
      const third = await rule({ memory_store_id, source_agent_ids: [agent] })
      await extraction(await turn(agent), third.id)
      assert.equal((await app.key.get(`/generations/${generation}`)).body.extraction, null)
      assert.equal(target.requests.length, 1)
      for (const each of [id, third.id]) await app.key.delete(`/memory-rules/${each}`)
    })

    it('write nothing of what guardrails hold back', async () => {
      const memory_store_id = await store()
      const guard = await app.key.post('/guardrails', { name: 'no', document: { class: 'D' } })
      assert.equal(guard.status, 201, JSON.stringify(guard.body))
      const tool = await made(app.key, { execute: { url: target.url }, guardrail_ids: [guard.body.id] })
      const agent = await talker()
      const { id } = await rule({ memory_store_id, tool_id: tool.id, source_agent_ids: [agent] })
      assert.deepEqual(await extraction(await turn(agent), id), counts(0, 0))
      assert.equal(target.requests.length, 0)
      await app.key.delete(`/memory-rules/${id}`)
    })

    it('run with the permissions of their author, as these were then, and only while they last', async () => {
      const memory_store_id = await store()
      const tool = await made(app.key, { execute: { url: target.url } })
      const resource = [`srn:${app.projectId}:*:*`]
      const statement = [{ effect: 'Allow', action: ['memories:*', 'tools:CallTool'], resource }]
      const author = await app.user(undefined, [{ statement }])
      const agent = await talker()
      const { id } = await rule({ memory_store_id, tool_id: tool.id, source_agent_ids: [agent] }, author)
      await app.admin.put(`/users/${author.id}/policies`, { policy_ids: [] })
      const { error } = await extraction(await turn(agent), id)
      assert.equal(error.code, 'FORBIDDEN')
      assert.equal(target.requests.length, 0)
      // Three in a row are filed once, and a fourth is not.
      for (let n = 0; n < 3; n++) await extraction(await turn(agent), id)
      const filed = await eventually(
        async () =>
          (await app.key.get('/exceptions?kind=memory_rule_failed')).body.data.find(
            (each: any) => each.detail.memory_rule_id === id,
          ),
        { what: 'the exception' },
      )
      assert.deepEqual([filed.severity, filed.occurrence_count, filed.detail.code], ['warning', 1, 'FORBIDDEN'])
      await app.key.delete(`/memory-rules/${id}`)
    })
  })

  describe('leave out', () => {
    it('turns of other agents, turns without stored content, and earlier turns', async () => {
      const memory_store_id = await store()
      const [agent, other] = [await talker(), await talker()]
      const silent = await talker(FACTS, { trace_content_mode: 'none' })
      const early = await turn(agent)
      const { id } = await rule({ memory_store_id, source_agent_ids: [agent, silent] })
      const left = [early, await turn(other), await turn(silent)]
      await extraction(await turn(agent), id)
      for (const generation of left)
        assert.equal((await app.key.get(`/generations/${generation}`)).body.extraction, null)
      assert.equal((await entries(memory_store_id)).length, 2)
      assert.equal((await app.key.patch(`/memory-rules/${id}`, { enabled: false })).status, 200)
      const later = await turn(agent)
      const next = await rule({ memory_store_id, source_agent_ids: [agent] })
      const last = await turn(agent)
      await extraction(last, next.id)
      assert.equal((await app.key.get(`/generations/${later}`)).body.extraction, null)
      for (const each of [id, next.id]) await app.key.delete(`/memory-rules/${each}`)
    })

    it('a fact that cannot be written, and continue with the others', async () => {
      const memory_store_id = await store()
      const agent = await talker(JSON.stringify(['Short', 'x'.repeat(9000), 'Also short']))
      const { id } = await rule({ memory_store_id, source_agent_ids: [agent] })
      assert.deepEqual(await extraction(await turn(agent), id), counts(3, 2, 0, 1))
      await app.key.delete(`/memory-rules/${id}`)
    })
  })

  it('of one turn each record their writes, whatever the others do', async () => {
    const agent = await talker()
    const stores = await Promise.all(Array.from({ length: 6 }, store))
    const shared = stores[0]
    const rules = await Promise.all(
      stores.map(memory_store_id =>
        rule({ memory_store_id: memory_store_id === stores[1] ? shared : memory_store_id, source_agent_ids: [agent] }),
      ),
    )
    const generation = await turn(agent)
    const made = await Promise.all(rules.map(({ id }) => extraction(generation, id)))
    const sum = (name: string) => made.reduce((total, each) => total + each[name], 0)
    assert.deepEqual([sum('candidates'), sum('created'), sum('skipped')], [12, 10, 2])
    assert.equal((await contents(shared)).length, 4)
    for (const { id } of rules) await app.key.delete(`/memory-rules/${id}`)
  })

  it('forget after 30 days which turns they have processed', async () => {
    const memory_store_id = await store()
    const agent = await talker()
    const { id } = await rule({ memory_store_id, source_agent_ids: [agent] })
    const older = await turn(agent)
    // What the other turn says is the same: the first turn makes the memories.
    await extraction(older, id)
    const newer = await turn(agent)
    await extraction(newer, id)
    const firings = async () =>
      (
        (await app.pool.any(
          rawQuery('select generation_id from memory_rule_firings where memory_rule_id = $1', [id]),
        )) as { generation_id: string }[]
      ).map(({ generation_id }) => generation_id)
    const settled = (generation: string, days: number) =>
      app.pool.query(
        rawQuery(
          `update memory_rule_firings set settled_at = now() - $2 * interval '1 day' where generation_id = $1 and memory_rule_id = $3`,
          [generation, days, id],
        ),
      )
    await settled(older, 30.01)
    await settled(newer, 29.99)
    await firingRetention.run(app.services, new AbortController().signal)
    assert.deepEqual(await firings(), [newer])
    assert.deepEqual((await app.key.get(`/generations/${older}`)).body.extraction[id], counts(2, 2))
    await app.key.delete(`/memory-rules/${id}`)
  })

  it('are tried on a past turn without writing', async () => {
    const memory_store_id = await store()
    const agent = await talker()
    const handler = await agentWith([{ reply: { text: '{"facts":["By agent"]}' } }])
    const built = await rule({ memory_store_id, source_agent_ids: [agent] })
    const generation_id = await turn(agent)
    await extraction(generation_id, built.id)
    const byAgent = await rule({ memory_store_id, agent_id: handler, enabled: false })
    const test = (id: string, key: Client = app.key, generation = generation_id) =>
      key.post(`/memory-rules/${id}/test`, { generation_id: generation })
    const known = await test(built.id)
    assert.equal(known.status, 200, JSON.stringify(known.body))
    assert.deepEqual(
      known.body.facts.map(({ content, action }: any) => [content, action]),
      [
        ['Ada likes tea', 'skipped'],
        ['Ada lives in Turin', 'skipped'],
      ],
    )
    const fresh = await test(byAgent.id)
    assert.deepEqual(
      fresh.body.facts.map(({ content, action }: any) => [content, action]),
      [['By agent', 'created']],
    )
    assert.equal((await entries(memory_store_id)).length, 2)
    refused(await test(built.id, app.key, 'gen_1'), 404, 'GENERATION_NOT_FOUND')
    const resource = [`srn:${app.projectId}:*:*`]
    const user = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['memories:*'], resource }] }])
    refused(await test(built.id, user), 403, 'FORBIDDEN')
    await app.key.delete(`/generations/${generation_id}/content`)
    refused(await test(built.id), 409, 'GENERATION_CONTENT_UNAVAILABLE')
    assert.equal((await app.key.get(`/generations/${generation_id}`)).body.extraction, null)
    for (const { id } of [built, byAgent]) await app.key.delete(`/memory-rules/${id}`)
  })
})
