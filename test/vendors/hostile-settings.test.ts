import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Client, eventually, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>
type Answer = { status?: number; body: unknown }

const COMPLETION = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'm',
  choices: [{ index: 0, message: { role: 'assistant', content: 'fine' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 10, completion_tokens: 2, total_tokens: 12 },
}

/** Starts a vendor in the format of OpenAI, whose answers a test gives. */
async function startVendor() {
  const vendor = {
    url: '',
    sent: [] as Json[],
    paths: [] as string[],
    answer: (_path: string, _body: Json): Answer => ({ body: COMPLETION }),
    close: () => server.close(),
  }
  const server = createServer(async (request, response) => {
    let text = ''
    for await (const chunk of request) text += chunk
    const body = text === '' ? {} : JSON.parse(text)
    if (request.method === 'POST') vendor.sent.push(body)
    vendor.paths.push(request.url ?? '')
    const { status = 200, body: answer } = vendor.answer(request.url ?? '', body)
    response
      .writeHead(status, { 'content-type': 'application/json' })
      .end(typeof answer === 'string' ? answer : JSON.stringify(answer))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  vendor.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return vendor
}

describe('providers that several callers share', function () {
  this.timeout(60_000)
  const vendor = forSuite(startVendor)
  const app = forSuite(() => startApp({ env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  let key: Client
  /** May complete, and neither read nor change the provider. */
  let narrow: Client

  before(async () => {
    const project = await app.projectWith(['ai-providers:*', 'chats:*', 'secrets:*', 'usage:*'])
    key = project.key
    const statement = [{ effect: 'Allow', action: ['chats:CreateChatCompletion'], resource: ['*'] }]
    const policy = await app.admin.post('/policies', { document: { statement } })
    const made = await app.admin.post('/project-keys', { project_id: project.id, policy_ids: [policy.body.id] })
    narrow = app.as(made.body.secret)
  })
  beforeEach(() => {
    vendor.answer = () => ({ body: COMPLETION })
  })

  const providerOf = async (fields: object = {}): Promise<string> =>
    (
      await createdBy(key, '/ai-providers', {
        name: 'shared',
        provider: 'custom',
        default_model: 'm',
        base_url: vendor.url,
        ...fields,
      })
    ).id
  const complete = (by: Client, id: string, fields: object): Promise<{ status: number; body: Json }> =>
    by.post('//openai/v1/chat/completions', {
      model: `${id}/m`,
      messages: [{ role: 'user', content: 'Hello' }],
      ...fields,
    })
  const findingsOf = async (id: string): Promise<string[]> =>
    (await key.get(`/ai-providers/${id}/profile`)).body.findings.map(({ finding }: Json) => finding)

  /** What one caller sends, the refusal of the vendor, and what another caller sends afterwards. */
  const poisons: [title: string, sent: Json, refusal: unknown, others: Json][] = [
    [
      'a value that the model does not have',
      { reasoning_effort: 'minimal' },
      {
        error: {
          message:
            "Unsupported value: 'reasoning_effort' does not support 'minimal' with this model. Supported values are: 'low' and 'high'.",
          param: 'reasoning_effort',
          code: 'unsupported_value',
        },
      },
      { reasoning_effort: 'high' },
    ],
    [
      'a setting without what it is about',
      { parallel_tool_calls: false },
      {
        error: {
          message:
            "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.",
          param: 'parallel_tool_calls',
        },
      },
      {
        parallel_tool_calls: false,
        tools: [{ type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }],
      },
    ],
    [
      'an invalid key',
      { logit_bias: { abc: 1 } },
      { error: { message: "Invalid key in 'logit_bias': abc.", type: 'invalid_request_error', param: 'logit_bias' } },
      { logit_bias: { '50256': -100 } },
    ],
    [
      'a value above the limit of the vendor',
      { temperature: 1.8 },
      {
        error: { type: 'invalid_request_error', message: 'temperature: Input should be less than or equal to 1' },
      },
      { temperature: 0 },
    ],
    [
      'a seed that is too large',
      { seed: 9_000_000_000_000_000 },
      { error: { message: "Invalid 'seed': integer above maximum value.", param: 'seed' } },
      { seed: 7 },
    ],
    [
      'a combination',
      { temperature: 0.5, top_p: 0.9 },
      { message: '`temperature` and `top_p` cannot both be specified for this model. Please use only one.' },
      { temperature: 0.5 },
    ],
    [
      'a setting next to another one',
      { temperature: 0.5, reasoning_effort: 'high' },
      { error: { message: '`temperature` may only be set to 1 when thinking is enabled.' } },
      { temperature: 0.5 },
    ],
    [
      'a quote of the whole request',
      { temperature: 0.5, stop: ['END'] },
      {
        detail: [
          {
            type: 'value_error',
            msg: 'Value error, invalid metadata',
            input: { model: 'm', messages: [{ role: 'user', content: 'Hello' }], temperature: 0.5, stop: ['END'] },
          },
        ],
      },
      { temperature: 0.5, stop: ['END'] },
    ],
    [
      'a quote of a message',
      { seed: 3, messages: [{ role: 'user', content: 'seed' }] },
      { error: { message: "Unsupported content 'seed'" } },
      { seed: 3 },
    ],
    [
      'a quote of a result',
      {
        temperature: 0.5,
        messages: [
          { role: 'user', content: 'Go' },
          {
            role: 'assistant',
            content: null,
            tool_calls: [{ id: 'c1', type: 'function', function: { name: 'look', arguments: '{}' } }],
          },
          { role: 'tool', tool_call_id: 'c1', content: 'temperature' },
        ],
      },
      { error: { message: 'Unsupported result: temperature' } },
      { temperature: 0.5 },
    ],
  ]
  for (const [title, sent, refusal, others] of poisons)
    it(`keep a setting of others when a vendor refuses ${title}`, async () => {
      const id = await providerOf()
      let refusals = 0
      vendor.answer = () => (refusals++ === 0 ? { status: 400, body: refusal } : { body: COMPLETION })
      await complete(narrow, id, sent)
      assert.ok(refusals > 0)
      const reply = await complete(key, id, others)
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
      for (const name of Object.keys(others)) assert.ok(name in vendor.sent.at(-1)!, name)
      assert.deepEqual(await findingsOf(id), [])
    })

  it('learn a setting whose ordinary value is refused', async () => {
    const id = await providerOf()
    for (const [name, value] of Object.entries({ temperature: 0.2, top_p: 0.9, seed: 7, reasoning_effort: 'low' })) {
      vendor.answer = (_path, body) =>
        name in body
          ? { status: 400, body: { error: { message: `Unsupported parameter: '${name}'`, param: name } } }
          : { body: COMPLETION }
      assert.equal((await complete(narrow, id, { [name]: value })).status, 200)
      await eventually(async () => (await findingsOf(id)).includes(name))
    }
  })

  it('keep what a check found when calls of many models are refused', async () => {
    const id = await providerOf()
    vendor.answer = (_path, body) =>
      'temperature' in body
        ? { status: 400, body: { error: { message: 'Unsupported parameter', param: 'temperature' } } }
        : { body: COMPLETION }
    assert.equal((await key.post(`/ai-providers/${id}/check`, { matrix: true })).status, 200)
    const modelsOf = async () =>
      (await key.get(`/ai-providers/${id}/profile`)).body.findings.map(({ model }: Json) => model) as string[]
    assert.deepEqual(await modelsOf(), ['m'])
    for (let at = 0; at < 110; at += 10)
      await Promise.all(
        Array.from({ length: 10 }, (_, n) =>
          complete(narrow, id, { model: `${id}/made-up-${at + n}`, temperature: 0.2 }),
        ),
      )
    await eventually(async () => (await modelsOf()).length === 100)
    assert.ok((await modelsOf()).includes('m'))
  })

  it('store a check whatever characters the vendor answers with', async () => {
    const id = await providerOf()
    vendor.answer = path =>
      path.endsWith('/models') ? { status: 500, body: 'broken \0 \ud800 listing' } : { body: COMPLETION }
    const { status, body } = await key.post(`/ai-providers/${id}/check`, { matrix: true })
    assert.equal(status, 200, JSON.stringify(body))
    const { last_check } = (await key.get(`/ai-providers/${id}/profile`)).body
    assert.deepEqual(last_check?.checks, body.checks)
  })

  it('estimate a check at the prices of its prompts', async () => {
    const id = await providerOf()
    const price = { model: 'm', component: 'input_tokens', unit: 'token', effective_from: '2026-01-01' }
    const prices = [
      { ...price, unit_price: 0.001 },
      { ...price, unit_price: 1, above_tokens: 10_000 },
    ]
    assert.equal((await key.put(`/ai-providers/${id}/prices`, { prices })).status, 200)
    const { input_tokens, cost_usd } = (await key.post(`/ai-providers/${id}/estimate-check`, { matrix: true })).body
    assert.ok(input_tokens > 10_000)
    assert.equal(cost_usd, input_tokens / 1000)
  })

  const LIES: [title: string, usage: unknown][] = [
    ['negative counts', { prompt_tokens: -5, completion_tokens: -1e9, total_tokens: -7 }],
    ['counts beyond all numbers', '{"prompt_tokens":1e400,"completion_tokens":1e400,"total_tokens":-1e400}'],
    ['huge counts', { prompt_tokens: 1e300, completion_tokens: 1e300, total_tokens: 1e300 }],
    ['fractions', { prompt_tokens: 1.5, completion_tokens: 0.1, total_tokens: 1.6 }],
    ['texts', { prompt_tokens: '12', completion_tokens: {}, total_tokens: [] }],
    [
      'parts that are larger than the whole',
      {
        prompt_tokens: 10,
        completion_tokens: 2,
        total_tokens: 12,
        prompt_tokens_details: { cached_tokens: 1e9, audio_tokens: 1e9, cache_write_tokens: -3, image_tokens: 'x' },
        completion_tokens_details: { reasoning_tokens: 1e12, audio_tokens: Number.MAX_VALUE },
        cache_creation: null,
        cacheDetails: [null, 3, { ttl: '1h', inputTokens: 'x' }],
        server_tool_use: { web_search_requests: -1 },
        service_tier: ['x'],
      },
    ],
    [
      'searches without number',
      { prompt_tokens: 10, completion_tokens: 2, num_search_queries: 1e300, service_tier: '\0'.repeat(9000) },
    ],
  ]
  for (const [title, usage] of LIES)
    it(`meter whole numbers from 0 of a vendor that reports ${title}`, async () => {
      const id = await providerOf()
      const whole = JSON.stringify({ ...COMPLETION, model: 'x'.repeat(1_000_000), service_tier: '\0\u001b'.repeat(9) })
      const text = typeof usage === 'string' ? usage : JSON.stringify(usage)
      vendor.answer = () => ({ body: whole.replace(JSON.stringify(COMPLETION.usage), text) })
      const reply = await complete(narrow, id, {})
      // The package refuses a body whose counts are no numbers.
      if (reply.status !== 200) assert.match(JSON.stringify(reply.body), /Invalid JSON response/)
      const events = await eventually(async () => {
        const { body } = await key.get(`/usage/events?ai_provider_id=${id}`)
        return reply.status !== 200 || body.data.length > 0 ? (body.data as Json[]) : null
      })
      for (const { components, served_model } of events) {
        assert.ok((served_model ?? '').length <= 255)
        for (const { quantity } of components) assert.ok(Number.isSafeInteger(quantity) && quantity >= 0, `${quantity}`)
      }
    })

  it('cite only pages of the web, at positions in the text', async () => {
    const secret = await key.post('/secrets', { name: 'key', value: 'vendor-key' })
    const id = await providerOf({ provider: 'openai', config: { api: 'responses' }, secret_id: secret.body.id })
    const cite = (fields: object) => ({
      type: 'url_citation',
      start_index: 0,
      end_index: 4,
      url: 'https://example.com',
      title: 'Page',
      ...fields,
    })
    const annotations = [
      cite({ start_index: -5, end_index: 1e300 }),
      cite({ start_index: 1.5, end_index: 2.5 }),
      cite({ start_index: 3, end_index: 1 }),
      cite({ url: 'javascript:alert(1)' }),
      cite({ url: 'data:text/html,x' }),
      cite({ url: ' javascript:https://x' }),
      cite({ url: `https://example.com/${'x'.repeat(3000)}` }),
      cite({ url: 'https://example.com/\0\u001b\ud800', title: '\0'.repeat(1_000_000) }),
      ...Array.from({ length: 10_000 }, (_, n) => cite({ url: `https://example.com/${n}` })),
    ]
    const content = [{ type: 'output_text', text: 'fine', annotations }]
    vendor.answer = () => ({
      body: {
        id: 'resp_1',
        object: 'response',
        created_at: 1,
        model: 'm',
        status: 'completed',
        output: [{ type: 'message', id: 'msg_1', role: 'assistant', status: 'completed', content }],
        usage: { input_tokens: 3, output_tokens: 1, total_tokens: 4 },
      },
    })
    const { status, body } = await complete(narrow, id, {})
    assert.equal(status, 200, JSON.stringify(body))
    const cited: Json[] = body.choices[0].message.annotations.map(({ url_citation }: Json) => url_citation)
    assert.equal(cited.length, 200)
    for (const { url, title, start_index, end_index } of cited) {
      assert.match(url, /^https:\/\/example\.com[^\0]{0,30}$/)
      assert.ok(title.length <= 500)
      assert.ok([start_index, end_index].every(Number.isInteger), `${start_index} ${end_index}`)
      assert.ok(0 <= start_index && start_index <= end_index && end_index <= 4, `${start_index} ${end_index}`)
    }
  })

  for (const [provider, config, base, escapes, model, path] of [
    ['google', null, '/v1beta', [], 'tunedModels/x', '/v1beta/tunedModels/x:streamGenerateContent?alt=sse'],
    [
      'azure',
      { api: 'chat', api_version: '2024-02-01' },
      '/openai',
      ['x/extensions'],
      'x.1',
      '/openai/deployments/x.1/chat/completions?api-version=2024-02-01',
    ],
    [
      'azure',
      { api: 'chat', api_version: '2024-02-01', model: 'gpt-4.1' },
      '/openai',
      [],
      'x.1',
      '/openai/deployments/x.1/chat/completions?api-version=2024-02-01',
    ],
  ] as const)
    it(`send requests of ${provider} with ${JSON.stringify(config)} to no path that a caller names`, async () => {
      const secret = await key.post('/secrets', { name: 'key', value: 'vendor-key' })
      const fields = { provider, config, base_url: vendor.url + base, secret_id: secret.body.id }
      const id = await providerOf(fields)
      const outside = ['../x?y=', '../../x#', 'a/../../x', '..', '%2e%2e/x', '\\..\\x', '.\t./x', '/x', ...escapes]
      vendor.paths.length = 0
      for (const name of outside) {
        const { status, body } = await complete(narrow, id, { model: `${id}/${name}` })
        assert.deepEqual([status, body.error.code], [400, 'VALIDATION_FAILED'], name)
      }
      assert.deepEqual(vendor.paths, [])
      await complete(narrow, id, { model: `${id}/${model}` })
      assert.equal(vendor.paths[0], path)
    })
})
