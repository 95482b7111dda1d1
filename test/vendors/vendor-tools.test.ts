import assert from 'node:assert/strict'
import { type Client, startApp, type TestApp } from '../support/app.ts'
import { postedBy } from '../support/replies.ts'
import type { Plan } from '../support/vendors/plan.ts'
import { profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'
import { startToolServer, type ToolServer } from './tool-server.ts'

const URL_FOUND = 'https://example.com/weather'
const FOUND = { query: 'weather of Paris', found: URL_FOUND, cited: 'Sun all day.' }
const ANSWER = { searches: [FOUND], text: 'It is sunny.' }
const SEARCH = [{ type: 'web_search' }]

describe('tools of vendors', () => {
  let app: TestApp
  let simulators: Simulators
  let tools: ToolServer
  let key: Client
  let projectId: string
  let lanes = 0

  before(async () => {
    ;[simulators, tools] = await Promise.all([startSimulators(), startToolServer()])
    app = await startApp({ workers: ['generation'], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } })
    const project = await app.projectWith([
      'agents:*',
      'ai-providers:CreateAiProvider',
      'chats:*',
      'conversations:*',
      'generations:*',
      'model-routes:*',
      'secrets:*',
      'sessions:*',
      'tools:*',
      'traces:*',
    ])
    key = project.key
    projectId = project.id
  })
  after(() => Promise.all([app?.close(), simulators?.close(), tools?.close()]))

  const made = (at: string, body: object) => postedBy(key, at, body)

  const providerOf = async (profile: string, more: object = {}) => {
    const lane = `hosted-${++lanes}`
    const secret = await made('/secrets', { name: lane, value: lane })
    const fields = providerFields(profiles.find(({ name }) => name === profile)!, simulators.url)
    const { id } = await made('/ai-providers', { ...fields, ...more, secret_id: secret.id })
    return {
      id: id as string,
      plan: (plan: Plan) => simulators.plan(lane, plan),
      sent: () => simulators.calls(lane).at(-1)!.body,
    }
  }

  const agentOf = async (ai_provider_id: string, fields: object = {}) =>
    (await made('/agents', { name: 'agent', ai_provider_id, ...fields })).id as string

  const generate = async (agent: string) => {
    const generation = await made(`/agents/${agent}/generate?wait=true`, { prompt: 'Weather?' })
    assert.equal(generation.status, 'completed', JSON.stringify(generation.error))
    const { body } = await key.get(`/generations/${generation.id}/transcript`)
    return { generation, step: body.steps.at(-1) }
  }

  const CITED = {
    type: 'url_citation',
    url: URL_FOUND,
    title: 'weather of Paris',
    cited_text: null,
    start_index: 0,
    end_index: ANSWER.text.length,
  }
  const all = [{ type: 'web_search', blocked_domains: ['example.org'] }, { type: 'code_execution' }]
  const offers: [profile: string, vendor_tools: object[], sent: object[], annotation: object][] = [
    [
      'anthropic',
      [{ ...all[0], max_uses: 3 }, all[1]!],
      [
        { type: 'web_search_20250305', name: 'web_search', max_uses: 3, blocked_domains: ['example.org'] },
        { type: 'code_execution_20250825', name: 'code_execution' },
      ],
      { ...CITED, cited_text: FOUND.cited },
    ],
    [
      'openai responses',
      all,
      [
        { type: 'web_search', filters: { blocked_domains: ['example.org'] } },
        { type: 'code_interpreter', container: { type: 'auto' } },
      ],
      CITED,
    ],
    ['google', [...SEARCH, all[1]!], [{ googleSearch: {} }, { codeExecution: {} }], CITED],
    [
      'xai',
      all,
      [{ type: 'web_search', excluded_domains: ['example.org'] }, { type: 'code_interpreter' }],
      { ...CITED, title: null },
    ],
    ['groq', SEARCH, [{ type: 'browser_search' }], CITED],
  ]
  for (const [profile, vendor_tools, sent, annotation] of offers)
    it(`of ${profile} are offered, and the answer has the citations`, async () => {
      const provider = await providerOf(profile)
      const agent = await agentOf(provider.id, { vendor_tools })
      provider.plan(ANSWER)
      const { generation, step } = await generate(agent)
      assert.deepEqual(provider.sent().tools, sent)
      assert.equal(generation.output.content, ANSWER.text)
      assert.deepEqual(generation.output.annotations, [annotation])
      assert.deepEqual(step.annotations, [annotation])
      assert.equal('ignored_params' in generation, false, JSON.stringify(generation.ignored_params))
    })

  for (const profile of ['xai', 'groq'])
    it(`of ${profile} give streams their citations, and count as searches`, async () => {
      const provider = await providerOf(profile)
      provider.plan(ANSWER)
      const agent = await agentOf(provider.id, { vendor_tools: SEARCH })
      for (const stream of [true, false]) {
        const reply = await fetch(`${app.url}/api/v1/agents/${agent}/generate?wait=true`, {
          method: 'POST',
          headers: { 'content-type': 'application/json', authorization: `Bearer ${key.token}` },
          body: JSON.stringify({ prompt: 'Weather?', stream }),
        })
        const text = await reply.text()
        const last = stream ? (/event: completed\ndata: (.*)/.exec(text)?.[1] ?? text) : text
        const { output, usage } = JSON.parse(last)
        assert.deepEqual(
          output.annotations.map(({ url, end_index }: any) => [url, end_index]),
          [[URL_FOUND, ANSWER.text.length]],
        )
        assert.deepEqual(usage.details, { web_searches: 1 })
      }
    })

  for (const profile of ['anthropic', 'openai responses', 'google'])
    it(`of ${profile} are added to the tools of the agent, whose calls alone are made here`, async () => {
      const provider = await providerOf(profile)
      const path = `beside-${lanes}`
      const agent = await agentOf(provider.id, {
        vendor_tools: SEARCH,
        tool_bindings: [{ tool: { name: 'look', type: 'http', execute: { url: `${tools.url}/${path}` } } }],
      })
      provider.plan([{ searches: [FOUND], text: 'Let me look.', tool_calls: [{ name: 'look', args: {} }] }, ANSWER])
      const { generation } = await generate(agent)
      assert.equal(generation.output.annotations.length, 1)
      assert.equal(tools.received(path).length, 1)
    })

  it('give messages of sessions and conversations what these cite', async () => {
    const provider = await providerOf('anthropic')
    const agent_id = await agentOf(provider.id, { vendor_tools: SEARCH })
    const session = await made('/sessions', { agent_id, auto_generate: true })
    provider.plan(ANSWER)
    const { reply } = await made(`/sessions/${session.id}/messages?wait=true`, { message: 'Weather?' })
    const expected = [{ ...CITED, cited_text: FOUND.cited }]
    assert.deepEqual(reply.message.annotations, expected)
    for (const at of [`/sessions/${session.id}/messages`, `/conversations/${session.conversation_id}/messages`]) {
      const { data } = (await key.get(at)).body
      assert.deepEqual(
        data.map(({ annotations }: any) => annotations),
        [null, expected],
      )
    }
  })

  it('give clients of the OpenAI API what an answer cites', async () => {
    const provider = await providerOf('openai responses')
    const agent = await agentOf(provider.id, { vendor_tools: SEARCH })
    provider.plan(ANSWER)
    const { title, url, start_index, end_index } = CITED
    const chat = await made('//openai/v1/chat/completions', {
      model: agent,
      messages: [{ role: 'user', content: 'Hi' }],
    })
    assert.deepEqual(chat.choices[0].message.annotations, [
      { type: 'url_citation', url_citation: { title, url, start_index, end_index } },
    ])
    const { output } = await made('//openai/v1/responses', { model: agent, input: 'Hi' })
    assert.deepEqual(output.at(-1).content[0].annotations, [
      { type: 'url_citation', title, url, start_index, end_index },
    ])
  })

  const refused: [profile: string, vendor_tools: object[], path: string, message: RegExp][] = [
    ['custom openai', SEARCH, 'vendor_tools[0].type', /is not available from custom providers/],
    ['openai chat', SEARCH, 'vendor_tools[0].type', /openai providers with the chat API/],
    ['groq', [{ type: 'code_execution' }], 'vendor_tools[0].type', /groq providers/],
    ['google', [{ type: 'web_search', max_uses: 1 }], 'vendor_tools[0].max_uses', /google providers/],
    ['anthropic', [...SEARCH, ...SEARCH], 'vendor_tools', /each tool only once/],
    [
      'anthropic',
      [{ type: 'web_search', allowed_domains: ['a.com'], blocked_domains: ['b.com'] }],
      'vendor_tools[0].blocked_domains',
      /cannot be combined/,
    ],
  ]
  for (const [profile, vendor_tools, at, message] of refused)
    it(`are refused where ${profile} does not have ${JSON.stringify(vendor_tools)}`, async () => {
      const { id } = await providerOf(profile)
      const { status, body } = await key.post('/agents', { name: 'x', ai_provider_id: id, vendor_tools })
      assert.equal(status, 400, JSON.stringify(body))
      const [problem] = body.error.meta.problems
      assert.equal(problem.path, at)
      assert.match(problem.message, message)
    })

  it('are left out, with notes, for targets of a route that do not have them', async () => {
    const provider = await providerOf('custom openai')
    const route = await made('/model-routes', {
      name: 'route',
      targets: [{ ai_provider_id: provider.id, model: 'prod-gpt-5-mini' }],
    })
    const { id } = await made('/agents', { name: 'agent', model_route_id: route.id, vendor_tools: SEARCH })
    const { generation, step } = await generate(id)
    assert.deepEqual(generation.ignored_params, ['vendor_tools.web_search'])
    assert.equal(step.notes[0].message, 'the vendor does not have it')
    assert.equal('tools' in provider.sent(), false)
  })

  it('give way to a tool of the agent with their name', async () => {
    const provider = await providerOf('anthropic')
    const agent = await agentOf(provider.id, {
      vendor_tools: SEARCH,
      tool_bindings: [{ tool: { name: 'web_search', type: 'http', execute: { url: `${tools.url}/own` } } }],
    })
    const { generation } = await generate(agent)
    assert.deepEqual(generation.ignored_params, ['vendor_tools.web_search'])
  })

  describe('in a project that requires prices', () => {
    const requires = (require_priced_model: boolean) =>
      app.admin.patch(`/projects/${projectId}`, { require_priced_model })
    const price = (component: string, unit: string) =>
      app.admin.put(`/projects/${projectId}/prices`, {
        prices: ['anthropic', 'custom'].map(provider => ({
          ...{ provider, component, unit, unit_price: 0.001, effective_from: '2026-01-01' },
          model: profiles.find(each => each.provider === provider)!.model,
        })),
      })
    after(() => requires(false))

    it('require a price of searches, where the vendor has them', async () => {
      for (const component of ['input_tokens', 'output_tokens'])
        assert.equal((await price(component, 'token')).status, 200)
      assert.equal((await requires(true)).status, 200)
      const vendor = await providerOf('anthropic')
      const model = profiles.find(({ provider }) => provider === 'custom')!.model
      const custom = await providerOf('custom openai', { default_model: model })
      const searching = await agentOf(vendor.id, { vendor_tools: SEARCH })
      const coding = await agentOf(vendor.id, { vendor_tools: [{ type: 'code_execution' }] })
      const route = await made('/model-routes', { name: 'r', targets: [{ ai_provider_id: custom.id, model }] })
      const elsewhere = (await made('/agents', { name: 'a', model_route_id: route.id, vendor_tools: SEARCH })).id
      const ask = (agent: string) => key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'Weather?' })
      const { status, body } = await ask(searching)
      assert.deepEqual([status, body.error.code], [409, 'MODEL_NOT_PRICED'])
      assert.deepEqual(
        body.error.meta.unpriced_rows.map(({ component }: { component: string }) => component),
        ['web_searches'],
      )
      for (const agent of [coding, elsewhere]) assert.equal((await ask(agent)).status, 200)
      assert.equal((await price('web_searches', 'search')).status, 200)
      assert.equal((await ask(searching)).status, 200)
    })
  })
})
