import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { setTimeout as sleep } from 'node:timers/promises'
import { retryAfter } from '#execution/providers/retry-after.ts'
import { eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { createdBy } from '../support/replies.ts'
import { begin, finish, refuse, startScriptedVendor, whole } from '../support/scripted-vendor.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'

const ACTIONS = [
  'agents:CreateAgentGeneration',
  'ai-providers:CheckAiProvider',
  'generations:*',
  'sessions:*',
  'usage:ListUsageEvents',
]
/** An idle limit of 1 s, and a total one of 20 s. */
const LIMITS = { PROVIDER_MAX_RETRIES: '7', MODEL_STREAM_IDLE_MS: '1000', MODEL_CALL_TIMEOUT_MS: '20000' }
const BUSY = { message: 'Overloaded', type: 'overloaded_error' }

describe('patience with a vendor', function () {
  this.timeout(60_000)
  const vendor = forSuite(startScriptedVendor)
  const app = forSuite(() =>
    startAgentApp({
      actions: ACTIONS,
      env: { ...LIMITS, SYNC_WAIT_SECONDS: '10', OLLAMA_BASE_URL: vendor.url.slice(0, -3) },
    }),
  )
  let agent: string

  const provider = async (fields: object = {}) => {
    const base = { project_id: app.projectId, name: 'scripted', provider: 'custom', default_model: 'm' }
    return (await createdBy(app.admin, '/ai-providers', { ...base, base_url: vendor.url, ...fields })).id as string
  }
  const agentOf = async () => app.agent({ ai_provider_id: await provider(), model: 'm' })
  const run = (body: object = {}, id = agent) =>
    app.key.post(`/agents/${id}/generate?wait=true`, { prompt: 'hello', ...body })
  const start = async (id = agent) =>
    (await app.key.post(`/agents/${id}/generate`, { prompt: 'hello' })).body.generation_id as string
  const turn = async (id: string) => (await app.key.get(`/generations/${id}`)).body
  const ended = (id: string) =>
    eventually(async () => {
      const found = await turn(id)
      return ['completed', 'failed'].includes(found.status) ? found : null
    })
  const eventsOf = async (generation: string) =>
    (await app.key.get(`/usage/events?generation_id=${generation}`)).body.data as any[]

  before(async () => {
    agent = await agentOf()
  })

  describe('within one call', () => {
    it('requests a stream with its usage, and waits as long as any bytes arrive', async () => {
      vendor.script(async ({ response }) => {
        // Before the first byte for longer than the idle limit.
        await sleep(1500)
        begin(response)
        for (let n = 0; n < 6; n++) {
          response.write(n % 2 ? ': ping\n\n' : 'data: \n\n')
          await sleep(400)
        }
        finish(response, 'late')
      })
      const { body } = await run()
      assert.equal(body.output?.content, 'late', JSON.stringify(body))
      assert.deepEqual(
        vendor.calls.map(({ stream, stream_options }) => [stream, stream_options]),
        [[true, { include_usage: true }]],
      )
      assert.equal(body.usage.output_tokens, 5)
    })

    it('ends an answer that falls silent, repeats it, and meters both', async () => {
      vendor.script(({ response, n }) => (n === 1 ? begin(response, 'word '.repeat(100)) : finish(response, 'again')))
      const { body } = await run()
      assert.equal(body.output?.content, 'again', JSON.stringify(body))
      assert.equal(vendor.calls.length, 2)
      const events = await eventually(async () => {
        const found = await eventsOf(body.id)
        return found.length === 2 ? found : null
      })
      const output = (event: any) => event.components.find((each: any) => each.component === 'output_tokens').quantity
      // 500 characters are estimated, the other answer has its usage.
      assert.deepEqual(
        events.map(output).sort((a, b) => a - b),
        [5, 125],
      )
    })

    it('fails with a message for an answer that is shown and falls silent', async () => {
      vendor.script(({ response }) => begin(response, 'begun'))
      const reply = await app.key.post(`/agents/${agent}/generate`, { prompt: 'hello', stream: true })
      assert.match(String(reply.body), /sent nothing for 1000 ms/)
      assert.equal(vendor.calls.length, 1)
    })

    it('repeats an answer that breaks off before anything of it was shown', async () => {
      vendor.script(({ response, n }) => {
        if (n > 1) return finish(response, 'whole')
        begin(response, 'half')
        return sleep(50).then(() => response.destroy())
      })
      const { body } = await run()
      assert.equal(body.output?.content, 'whole', JSON.stringify(body))
    })

    it('does not repeat a whole answer that cannot be read', async () => {
      vendor.script(({ response }) =>
        response.writeHead(200, { 'content-type': 'application/json' }).end('{"choices":'),
      )
      assert.equal((await run()).body.error?.code, 'AI_PROVIDER_ERROR')
      assert.equal(vendor.calls.length, 1)
    })

    it('takes a whole answer in place of a stream', async () => {
      vendor.script(({ response }) => whole(response, 'whole'))
      assert.equal((await run()).body.output?.content, 'whole')
      const streamed = await app.key.post(`/agents/${agent}/generate`, { prompt: 'hello', stream: true })
      assert.match(String(streamed.body), /"whole"/)
      assert.equal(vendor.calls.length, 2)
    })

    for (const [name, error] of [
      [
        'OpenAI',
        {
          message: 'Your organization must be verified to stream this model.',
          type: 'invalid_request_error',
          param: 'stream',
          code: 'unsupported_value',
        },
      ],
      ['Bedrock', { message: 'The model is unsupported for streaming.' }],
    ] as const)
      it(`remembers that a model refuses to stream, as ${name} says it`, async () => {
        const own = await agentOf()
        vendor.script(({ response, body }) =>
          body.stream ? refuse(response, 400, error) : whole(response, 'unstreamed'),
        )
        for (let n = 0; n < 2; n++) assert.equal((await run({}, own)).body.output?.content, 'unstreamed')
        assert.deepEqual(
          vendor.calls.map(({ stream }) => stream ?? false),
          [true, false, false],
        )
      })

    it('has no limit of the HTTP library in its way', async () => {
      const seen: { origin: string; limits: unknown[] }[] = []
      const note = (message: any) => {
        const { origin, headersTimeout, bodyTimeout } = message.request
        seen.push({ origin: String(origin), limits: [headersTimeout, bodyTimeout] })
      }
      vendor.script(({ response }) => finish(response, 'fine'))
      subscribe('undici:request:create', note)
      try {
        // A host of the tenant, and a host of the operator.
        for (const id of [await provider(), await provider({ provider: 'ollama', base_url: undefined })]) {
          const reply = await app.key.post(`/ai-providers/${id}/check`, {})
          assert.equal(reply.status, 200, JSON.stringify(reply.body))
        }
      } finally {
        unsubscribe('undici:request:create', note)
      }
      const limits = seen.filter(({ origin }) => vendor.url.startsWith(origin)).map(each => each.limits)
      assert.equal(limits.length, vendor.calls.length)
      assert.ok(limits.length >= 2)
      for (const each of limits) assert.deepEqual(each, [0, 0])
    })
  })

  describe('of turns in the background', () => {
    it('holds no slot, survives its worker, and ends with the answer', async () => {
      const own = await startAgentApp({ workers: [], actions: ACTIONS, env: LIMITS })
      const processes: TestProcess[] = []
      const worker = async () =>
        processes.push(
          await startProcess('worker', own.databaseUrl, { ...LIMITS, WORKER_CONCURRENCY: '1' }, ['generation']),
        )
      try {
        await worker()
        const made = await own.admin.post('/ai-providers', {
          project_id: own.projectId,
          name: 'scripted',
          provider: 'custom',
          default_model: 'm',
          base_url: vendor.url,
        })
        const waiting = await own.agent({ ai_provider_id: made.body.id, model: 'm' })
        vendor.script(({ response, n }) =>
          n < 4 ? refuse(response, n === 1 ? 529 : 503, BUSY) : finish(response, 'at last'),
        )
        const { generation_id } = (await own.key.post(`/agents/${waiting}/generate`, { prompt: 'hello' })).body
        await eventually(() => vendor.calls.length === 3, { what: 'attempts with a slot' })
        const other = await own.key.post(`/agents/${own.agentId}/generate`, { prompt: 'hello' })
        const read = async (id: string) => (await own.key.get(`/generations/${id}`)).body
        await eventually(async () => (await read(other.body.generation_id)).status === 'completed', {
          what: 'other turn',
        })
        assert.equal((await read(generation_id)).status, 'in_progress')
        await processes[0]!.kill('SIGKILL')
        await worker()
        const settled = await eventually(async () => {
          const found = await read(generation_id)
          return found.status !== 'in_progress' && found
        })
        assert.deepEqual([settled.status, settled.output?.content], ['completed', 'at last'], JSON.stringify(settled))
        assert.equal(vendor.calls.length, 4)
      } finally {
        await Promise.all(processes.map(({ kill }) => kill('SIGKILL')))
        await own.close()
      }
    })

    it('waits for the time that the vendor states', async () => {
      let first = 0
      let second = 0
      vendor.script(({ response, n }) => {
        if (n === 1) first = Date.now()
        else second = Date.now()
        return n === 1 ? refuse(response, 429, BUSY, { 'retry-after': '6' }) : finish(response, 'fine')
      })
      assert.equal((await ended(await start())).status, 'completed')
      assert.equal(vendor.calls.length, 2)
      assert.ok(second - first >= 5900, `${second - first} ms`)
    })

    it('fails when the vendor states more than ten minutes, and after a failure that stays', async () => {
      vendor.script(({ response }) => refuse(response, 429, BUSY, { 'retry-after': '900' }))
      assert.equal((await ended(await start())).error.code, 'AI_PROVIDER_ERROR')
      vendor.script(({ response }) => refuse(response, 429, { message: 'no credit', code: 'insufficient_quota' }))
      assert.equal((await ended(await start())).error.code, 'AI_PROVIDER_ERROR')
      assert.equal(vendor.calls.length, 1)
    })

    it('ends when the turn is cancelled, and the next turn of the session starts', async () => {
      const session = (await app.key.post('/sessions', { agent_id: agent })).body
      const say = async (message: string): Promise<string> => {
        await app.key.post(`/sessions/${session.id}/messages`, { message })
        return (await createdBy(app.key, `/sessions/${session.id}/generate`, {}, 202)).generation_id
      }
      vendor.script(({ response, body }) =>
        JSON.stringify(body.messages).includes('second')
          ? finish(response, 'fine')
          : refuse(response, 429, BUSY, { 'retry-after': '120' }),
      )
      const id = await say('first')
      await eventually(() => vendor.calls.length === 1)
      // Requeued, so that the cancellation needs no worker.
      const cancelled = await eventually(async () => {
        await app.key.post(`/generations/${id}/cancel`, {})
        const found = await turn(id)
        return found.status === 'failed' && found
      })
      assert.equal(cancelled.stop_reason, 'cancelled')
      assert.equal((await ended(await say('second'))).status, 'completed')
    })
  })

  it('of waited turns ends with the wait of their caller', async () => {
    vendor.script(({ response }) => refuse(response, 429, BUSY, { 'retry-after': '30' }))
    const began = Date.now()
    const { status, body } = await run()
    assert.deepEqual([status, body.error.code, body.error.meta.retry_after_seconds], [502, 'AI_PROVIDER_ERROR', 30])
    assert.ok(Date.now() - began < 8000)
  })

  it('of a mount follows its client', async () => {
    vendor.script(({ response }) => refuse(response, 429, BUSY, { 'retry-after': '7' }))
    const reply = await fetch(`${app.url}/openai/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${app.key.token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: agent, messages: [{ role: 'user', content: 'hello' }] }),
    })
    assert.deepEqual([reply.status, reply.headers.get('retry-after')], [429, '7'], await reply.text())
  })

  it('reads the time of a repeat as vendors state it', () => {
    const now = Date.parse('2026-11-28T12:00:00Z')
    const info = { '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: '34.5s' }
    const google = JSON.stringify({ error: { code: 429, details: [info] } }, null, 2)
    const cases: [Record<string, string>, string | null, number | null][] = [
      [{ 'retry-after': '7' }, null, 7000],
      [{ 'retry-after': 'Sat, 28 Nov 2026 12:00:20 GMT' }, null, 20_000],
      [{ 'retry-after-ms': '1500', 'retry-after': '9' }, null, 1500],
      [{}, google, 34_500],
      [{ 'x-ratelimit-remaining-requests': '0', 'x-ratelimit-reset-requests': '6m0s' }, null, 360_000],
      [{ 'x-ratelimit-remaining-tokens': '0', 'x-ratelimit-reset-tokens': '17ms' }, null, 17],
      [{ 'x-ratelimit-remaining-tokens': '12', 'x-ratelimit-reset-tokens': '1h' }, null, null],
      [
        {
          'anthropic-ratelimit-requests-remaining': '49',
          'anthropic-ratelimit-requests-reset': '2026-11-28T12:05:00Z',
          'anthropic-ratelimit-input-tokens-remaining': '0',
          'anthropic-ratelimit-input-tokens-reset': '2026-11-28T12:00:30Z',
        },
        null,
        30_000,
      ],
      [{ 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': String(now + 4000) }, null, 4000],
      [{ 'retry-after': 'soon' }, '{"retryDelay":"soon"}', null],
      [{ 'retry-after': '9'.repeat(400) }, null, 30 * 86_400_000],
      [{ 'retry-after-ms': '1e300' }, null, 30 * 86_400_000],
    ]
    for (const [headers, body, expected] of cases) assert.equal(retryAfter(headers, body, now), expected)
  })
})
