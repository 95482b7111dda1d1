import assert from 'node:assert/strict'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, type LanguageModel } from 'ai'
import { voidStatement } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'
import { startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

const ACTIONS = ['chats:CreateChatCompletion', 'agents:CreateAgentGeneration', 'sessions:*', 'actors:*']
const RETRIES = 2

/** A response as a client got it. */
type Seen = { status: number; headers: Headers; error: Json }
type Request = { model: string; token: string; headers?: Record<string, string>; schema?: object }

/**
 * Returns a fetch that records responses and shortens the wait before a retry, which both clients read from a header
 * that the mount does not send.
 */
function recorder(seen: Seen[]): typeof fetch {
  return async (...request) => {
    const response = await fetch(...request)
    const headers = new Headers(response.headers)
    const text = await response.text()
    seen.push({ status: response.status, headers: response.headers, error: JSON.parse(text).error })
    headers.set('retry-after-ms', '1')
    headers.delete('content-length')
    headers.delete('content-encoding')
    return new Response(text, { status: response.status, headers })
  }
}

/** Repeats a failed check during which a window of a minute has ended. */
async function inOneMinute(check: () => Promise<void>): Promise<void> {
  const minute = () => Math.floor(Date.now() / 60_000)
  const begun = minute()
  await check().catch(error => (minute() === begun ? Promise.reject(error) : check()))
}

const SCHEMA = { type: 'object', properties: { n: { type: 'number' } }, required: ['n'], additionalProperties: false }

describe('the OpenAI mount: errors as clients see them', () => {
  const app = forSuite(() => startOpenAiApp({ actions: ACTIONS, env: { PROVIDER_MAX_RETRIES: '0' } }))

  const key = () => app.key.token as string

  const sdk = async (model: LanguageModel, headers?: Record<string, string>) => {
    await assert.rejects(Promise.resolve(generateText({ model, prompt: 'go', maxRetries: RETRIES, headers })))
  }
  /** One call of every client; each fails. Returns the responses that each got. */
  const clients: Record<string, (request: Request, fetch: typeof globalThis.fetch) => Promise<void>> = {
    'openai completions': async ({ model, token, headers, schema }, fetch) => {
      const client = app.openai(token, { maxRetries: RETRIES, fetch, defaultHeaders: headers })
      await assert.rejects(
        client.chat.completions.create({
          model,
          messages: [{ role: 'user', content: 'go' }],
          ...(schema && {
            response_format: { type: 'json_schema', json_schema: { name: 'n', schema: { ...schema } } },
          }),
        }),
      )
    },
    'openai responses': async ({ model, token, headers, schema }, fetch) => {
      const client = app.openai(token, { maxRetries: RETRIES, fetch, defaultHeaders: headers })
      await assert.rejects(
        client.responses.create({
          model,
          input: 'go',
          store: false,
          ...(schema && { text: { format: { type: 'json_schema', name: 'n', schema: { ...schema } } } }),
        }),
      )
    },
  }
  const sdks: typeof clients = {
    'AI SDK openai-compatible': ({ model, token, headers }, fetch) =>
      sdk(createOpenAICompatible({ name: 'm', baseURL: app.base, apiKey: token, fetch })(model), headers),
    'AI SDK openai': ({ model, token, headers }, fetch) =>
      sdk(createOpenAI({ baseURL: app.base, apiKey: token, fetch })(model), headers),
    'AI SDK openai chat': ({ model, token, headers }, fetch) =>
      sdk(createOpenAI({ baseURL: app.base, apiKey: token, fetch }).chat(model), headers),
  }

  type Expected = {
    status: number
    type: string
    code?: string
    param?: string
    retryAfter?: string
    /** Whether clients repeat the request. */
    repeats?: boolean
    /** The header for clients that read it, if it differs. */
    shouldRetry?: string
  }

  /** Requires the response and the number of requests of each client. */
  async function expectOfAll(request: Omit<Request, 'token'> & { token?: string }, expected: Expected): Promise<void> {
    const { repeats = false, shouldRetry = String(repeats) } = expected
    const used = request.schema ? clients : { ...clients, ...sdks }
    for (const [name, call] of Object.entries(used)) {
      const seen: Seen[] = []
      await call({ token: key(), ...request }, recorder(seen))
      const isOpenAi = name.startsWith('openai')
      const isRepeated = isOpenAi ? shouldRetry === 'true' : repeats
      assert.equal(seen.length, isRepeated ? 1 + RETRIES : 1, `${name}: ${JSON.stringify(seen.at(-1))}`)
      for (const { status, headers, error } of seen) {
        assert.deepEqual([status, error.type], [expected.status, expected.type], `${name}: ${JSON.stringify(error)}`)
        assert.equal(headers.get('x-should-retry'), shouldRetry, name)
        if (expected.code) assert.equal(error.code, expected.code, name)
        if (expected.param) assert.equal(error.param, expected.param, name)
        if (expected.type === 'turn_failed') assert.match(error.meta.generation_id, /^gen_/, name)
        if (expected.retryAfter) assert.equal(headers.get('retry-after'), expected.retryAfter, name)
        assert.ok(error.message && error.hint && error.docs_url && headers.get('x-request-id'), name)
      }
    }
  }

  /** A chat on a lane that fails, and the number of requests of the lane. */
  async function failingChat(lane: string, reply: Json) {
    await app.lanes.put(lane, { rules: [{ reply }] } as never)
    const chat = await app.chat({ model: `${lane}/m` })
    const count = async () => (await app.lanes.read('GET', `/control/requests?lane=${lane}`)).data.length
    return { model: chat.id as string, count }
  }
  const EVERY = Object.keys(clients).length + Object.keys(sdks).length

  for (const [status, shown] of [
    [400, 400],
    [404, 400],
    [413, 413],
    [422, 422],
  ])
    it(`a request that the vendor refuses with ${status} is never repeated, and keeps code and param`, async () => {
      const body = { error: { message: 'no', code: 'context_length_exceeded', param: 'messages' } }
      const { model, count } = await failingChat(`v${status}`, { error: { status, body } })
      await expectOfAll(
        { model },
        { status: shown, type: 'invalid_request_error', code: 'context_length_exceeded', param: 'messages' },
      )
      assert.equal(await count(), EVERY)
    })

  for (const status of [401, 402, 403])
    it(`the credential of the deployment refused by the vendor with ${status} is 424`, async () => {
      const { model, count } = await failingChat(`v${status}`, { error: { status } })
      await expectOfAll({ model }, { status: 424, type: 'upstream_error' })
      assert.equal(await count(), EVERY)
    })

  it('429 of the vendor is repeated after its Retry-After', async () => {
    const { model, count } = await failingChat('v429', { error: { status: 429, retry_after: 7 } })
    await expectOfAll({ model }, { status: 429, type: 'rate_limit_error', retryAfter: '7', repeats: true })
    assert.equal(await count(), EVERY * (1 + RETRIES))
  })

  it('5xx of the vendor and no answer are repeated', async () => {
    for (const [lane, reply] of [
      ['v500', { error: { status: 500 } }],
      ['v503', { error: { status: 503 } }],
      ['vcut', { text: 'x', cut: { after: 0 } }],
    ] as const) {
      const { model, count } = await failingChat(lane, reply)
      await expectOfAll({ model }, { status: 502, type: 'server_error', repeats: true })
      assert.equal(await count(), EVERY * (1 + RETRIES))
    }
  })

  it('a failure of a turn before any tool call keeps its class', async () => {
    const { agentId } = await app.scripted([{ reply: { error: { status: 500 } } }])
    await expectOfAll({ model: agentId }, { status: 502, type: 'server_error', repeats: true })
  })

  it('any failure of a turn after a tool call started is never repeated', async () => {
    const receiver = await startReceiver()
    for (const status of [429, 500]) {
      const { agentId, requests } = await app.scripted(
        [
          { when: { last_role: 'tool' }, reply: { error: { status } } },
          { reply: { tool_calls: [{ name: 'act', args: {} }] } },
        ],
        {
          tool_bindings: [
            {
              tool: {
                name: 'act',
                type: 'http',
                parameters: { type: 'object', properties: {} },
                execute: { method: 'POST', url: receiver.url },
              },
            },
          ],
        },
      )
      receiver.requests.length = 0
      await expectOfAll({ model: agentId }, { status: 424, type: 'turn_failed' })
      assert.equal(receiver.requests.length, EVERY)
      assert.equal((await requests()).length, EVERY * 2)
    }
    await receiver.close()
  })

  it('an invalid structured answer and a tool call written as text are 422', async () => {
    const { model } = await failingChat('vschema', { text: '{"n":"x"}' })
    const invalid = { status: 422, type: 'invalid_response_error', code: 'OUTPUT_SCHEMA_VALIDATION_FAILED' }
    await expectOfAll({ model, schema: SCHEMA }, invalid)
    const { agentId } = await app.scripted([{ reply: { text: '{"name":"act","arguments":{}}' } }], {
      tool_bindings: [{ tool: { name: 'act', type: 'client' } }],
    })
    await expectOfAll({ model: agentId }, { ...invalid, code: 'TEXT_ENCODED_TOOL_CALL' })
  })

  it('an unknown model is 404, an invalid credential 401, a missing permission 403', async () => {
    const refused = { status: 404, type: 'invalid_request_error', param: 'model' }
    for (const model of ['gpt-5', 'agent_00000000000000000000000000', 'chat_00000000000000000000000000'])
      await expectOfAll({ model }, refused)
    await expectOfAll({ model: app.agentId, token: 'nonsense' }, { status: 401, type: 'authentication_error' })
    const poor = await app.projectWith(['chats:GetChat'])
    const provider = {
      project_id: poor.id,
      name: 'p',
      provider: 'custom',
      default_model: 'm',
      base_url: app.double.url,
    }
    const { id } = (await app.admin.post('/ai-providers', provider)).body
    await expectOfAll(
      { model: `${id}/m`, token: poor.key.token as string },
      { status: 403, type: 'permission_error', code: 'FORBIDDEN' },
    )
  })

  it('a spent quota is 429 with Retry-After, and worth repeating only if it resets within a minute', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'ok' } }])
    for (const [window, shouldRetry] of [
      ['calendar_month', 'false'],
      ['rolling_1m', 'true'],
    ]) {
      const quota = await app.admin.post('/quotas', {
        project_id: app.projectId,
        scope: 'agent',
        scope_ref: agentId,
        metric: 'tokens',
        limit: 1,
        window,
      })
      assert.equal(quota.status, 201, JSON.stringify(quota.body))
      await inOneMinute(async () => {
        const spend = { model: agentId, messages: [{ role: 'user', content: 'spend' }] }
        await eventually(async () => (await app.send('/chat/completions', spend)).status === 429)
        await expectOfAll(
          { model: agentId },
          { status: 429, type: 'rate_limit_error', code: 'QUOTA_EXCEEDED', repeats: true, shouldRetry },
        )
      })
      await app.admin.delete(`/quotas/${quota.body.id}`)
    }
  })

  it('what lasts is 400: a closed session, a paused project', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'ok' } }])
    const headers = { 'X-Svc-Session-Key': 'closed' }
    const first = await app.send(
      '/chat/completions',
      { model: agentId, messages: [{ role: 'user', content: 'go' }] },
      { headers },
    )
    await first.json()
    await app.admin.patch(`/sessions/${first.headers.get('x-svc-session-id')}`, { status: 'closed' })
    await expectOfAll(
      { model: agentId, headers },
      { status: 400, type: 'invalid_request_error', code: 'SESSION_CLOSED' },
    )
    await app.admin.post(`/projects/${app.projectId}/pause`, {})
    try {
      await expectOfAll({ model: agentId }, { status: 400, type: 'invalid_request_error', code: 'PROJECT_PAUSED' })
    } finally {
      await app.admin.post(`/projects/${app.projectId}/resume`, {})
    }
  })

  it('a database that is not available is 503 with Retry-After', async () => {
    const run = (text: ReturnType<typeof voidStatement>) => app.pool.query(text)
    const { agentId } = await app.scripted([{ reply: { text: 'ok' } }])
    await run(voidStatement`
      create function refuse_turn() returns trigger language plpgsql as $$
      begin raise exception using errcode = '53300'; end $$`)
    await run(voidStatement`
      create trigger refuse_turn before insert on turn_requests for each row execute function refuse_turn()`)
    try {
      await expectOfAll(
        { model: agentId },
        { status: 503, type: 'server_error', code: 'SERVICE_NOT_READY', retryAfter: '1', repeats: true },
      )
    } finally {
      await run(voidStatement`drop function refuse_turn() cascade`)
    }
  })
})
