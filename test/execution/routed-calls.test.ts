import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import type { Script } from '#local/double/script.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { createdBy } from '../support/replies.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { openStream, readStream } from './streams.ts'

type Json = Record<string, any>
type Rules = NonNullable<Script['rules']>

/** All that the callers of these tests may do. */
const RUNNER = ['agents:CreateAgentGeneration', 'generations:*', 'traces:GetTrace']

const DOWN: Rules = [{ reply: { error: { status: 500, message: 'down' } } }]
const answers = (text: string): Rules => [{ reply: { text } }]
const CALLS_A_TOOL = { tool_calls: [{ name: 'nothing', args: {} }] }

/** Shared setup: routes over lanes of the model double, each with a separate provider. */
function setUp(options: Parameters<typeof startAgentApp>[0] = {}) {
  let app: AgentApp
  let double: ReturnType<typeof client>
  let counter = 0

  const open = async () => {
    app = await startAgentApp({ actions: RUNNER, ...options })
    double = client(app.double)
  }
  const close = () => app?.close()

  const newProvider = async (fields: Json = {}): Promise<string> =>
    (
      await createdBy(app.admin, '/ai-providers', {
        project_id: app.projectId,
        name: 'double',
        provider: 'custom',
        default_model: 'm',
        base_url: `${app.double.url}/v1`,
        ...fields,
      })
    ).id

  /** A target whose model answers by the rules. */
  const target = async (rules: Rules, fields: Json = {}) => {
    const lane = `lane${++counter}`
    await double.put(lane, { rules })
    return { lane, ai_provider_id: await newProvider(), model: `${lane}/m`, ...fields }
  }
  type Target = { lane?: string; ai_provider_id: string; model: string }

  const route = async (targets: Target[], fields: Json = {}): Promise<string> =>
    (
      await createdBy(app.admin, '/model-routes', {
        project_id: app.projectId,
        name: `route ${++counter}`,
        targets: targets.map(({ lane: _, ...rest }) => rest),
        ...fields,
      })
    ).id
  const routed = async (targets: Target[], fields: Json = {}): Promise<string> =>
    app.agent({ ai_provider_id: null, model_route_id: await route(targets, fields) })

  const ask = (agent: string) => app.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'hello' })
  /** Runs a turn and returns its record, whatever its outcome. */
  const turn = async (agent: string): Promise<Json> => {
    const { body } = await ask(agent)
    return record(body.id ?? body.error.meta.generation_id)
  }
  const record = async (id: string): Promise<Json> => (await app.key.get(`/generations/${id}`)).body
  const ended = (id: string) =>
    eventually(
      async () => {
        const body = await record(id)
        return body.status === 'completed' || body.status === 'failed' ? body : null
      },
      { what: `end of ${id}` },
    )
  const requests = async ({ lane }: { lane: string }) => (await double.requests(lane)).length
  const waitingAt = (gate: string, count = 1) =>
    eventually(async () => ((await double.gate(gate))?.waiting ?? 0) >= count, { what: `${count} waiting at ${gate}` })
  const release = (gate: string) => double.read('POST', `/control/gates/${gate}/open`)

  return {
    open,
    close,
    newProvider,
    target,
    route,
    routed,
    ask,
    turn,
    record,
    ended,
    requests,
    waitingAt,
    release,
    get app() {
      return app
    },
    get double() {
      return double
    },
  }
}

const classes = ({ routing }: Json) => routing.attempts.map(({ error_class }: Json) => error_class)

describe('a routed call', function () {
  this.timeout(60_000)
  const its = setUp()
  const { newProvider, target, route, routed, ask, turn, record, ended, requests, waitingAt, release } = its
  before(its.open)
  after(its.close)

  describe('that fails by its own fault or by its request', () => {
    const failing = (status: number, body: object): Rules => [{ reply: { error: { status, body } } }]
    const said = (message: string, more: object = {}) => ({ error: { message, ...more } })
    const cases: [string, string, Rules][] = [
      ['auth', 'OpenAI', failing(401, said('Incorrect API key provided', { code: 'invalid_api_key' }))],
      [
        'auth',
        'Google',
        failing(400, said('API key not valid. Please pass a valid API key.', { status: 'INVALID_ARGUMENT' })),
      ],
      ['credit', 'DeepSeek', failing(402, said('Insufficient Balance'))],
      ['credit', 'Anthropic', failing(400, said('Your credit balance is too low to access the Anthropic API.'))],
      ['not_found', 'OpenAI', failing(404, said('The model `m` does not exist', { code: 'model_not_found' }))],
      ['not_found', 'Bedrock', failing(400, { message: 'The provided model identifier is invalid.' })],
      ['context_length', 'OpenAI', failing(400, said('too long', { code: 'context_length_exceeded' }))],
      ['context_length', 'Anthropic', failing(400, said('prompt is too long: 208310 tokens > 200000 maximum'))],
      ['refusal', 'Azure', failing(400, said('filtered', { code: 'content_filter' }))],
      ['refusal', 'an answer', [{ reply: { finish: 'content_filter', text: '' } } as Rules[number]]],
    ]
    for (const [error_class, vendor, rules] of cases)
      it(`as ${error_class}, which ${vendor} says, leads on only where the route names it`, async () => {
        const [first, second] = [await target(rules, { max_retries: 2 }), await target(answers('from the second'))]
        const byDefault = await turn(await routed([first, second]))
        assert.notEqual(byDefault.output?.content, 'from the second')
        if (byDefault.status === 'failed') assert.deepEqual(classes(byDefault), [error_class])
        assert.equal(await requests(first), 1)
        const named = await turn(await routed([first, second], { retry_on: [error_class] }))
        assert.equal(named.output?.content, 'from the second', JSON.stringify(named))
        assert.deepEqual(classes(named), [error_class, null])
        assert.equal(await requests(first), 2)
      })

    it('for lack of credit still leads on by default where the vendor calls it a rate limit', async () => {
      const first = await target(failing(429, said('no credit', { code: 'insufficient_quota' })), { max_retries: 2 })
      const made = await turn(await routed([first, await target(answers('from the second'))]))
      assert.deepEqual([made.output?.content, classes(made)], ['from the second', ['credit', null]])
      assert.equal(await requests(first), 1)
    })

    it('gives a withheld answer back if no later target answers', async () => {
      const withheld = await target([{ reply: { finish: 'content_filter', text: '' } } as Rules[number]])
      const made = await turn(
        await routed([withheld, await target(failing(400, said('prompt is too long')))], { retry_on: ['refusal'] }),
      )
      assert.deepEqual([made.status, made.output?.finish_reason], ['completed', 'content-filter'], JSON.stringify(made))
      assert.equal(made.routing.target_index, 0)
    })
  })

  it('goes to the next target when the first fails', async () => {
    const [first, second] = [await target(DOWN), await target(answers('from the second'))]
    const route_id = await route([first, second])
    const agent = await its.app.agent({ ai_provider_id: null, model_route_id: route_id })
    const { status, body } = await ask(agent)
    assert.deepEqual([status, body.output?.content], [200, 'from the second'], JSON.stringify(body))
    assert.deepEqual([body.ai_provider_id, body.output.model], [second.ai_provider_id, second.model])
    const generation = await record(body.id)
    const attempt = (index: number, { ai_provider_id, model }: Json) => ({
      step: 1,
      target_index: index,
      ai_provider_id,
      model,
    })
    assert.deepEqual(generation.routing, {
      route_id,
      target_index: 1,
      fallbacks: 1,
      attempts: [
        { ...attempt(0, first), error_class: 'provider_error', provider_status_code: 500 },
        { ...attempt(1, second), error_class: null, provider_status_code: null, served_model: second.model },
      ],
    })
    assert.deepEqual(generation.usage, body.usage)
    const [step] = (await its.app.key.get(`/generations/${body.id}/transcript`)).body.steps
    assert.deepEqual([step.ai_provider_id, step.model], [second.ai_provider_id, second.model])
    assert.ok(step.usage.output_tokens > 0)
    const listed = (await its.app.key.get(`/generations?agent_id=${agent}`)).body.data
    assert.deepEqual(listed[0].routing, generation.routing)
  })

  it('stays with the first target while that answers', async () => {
    const [first, second] = [await target(answers('one')), await target(answers('two'))]
    const generation = await turn(await routed([first, second]))
    assert.deepEqual([generation.routing.target_index, generation.routing.fallbacks], [0, 0])
    assert.deepEqual([await requests(first), await requests(second)], [1, 0])
  })

  for (const [status, error_class] of [
    [400, null],
    [401, 'auth'],
    [403, 'auth'],
    [404, 'not_found'],
    [422, null],
  ] as const)
    it(`fails immediately on a ${status}`, async () => {
      const first = await target([{ reply: { error: { status } } }], { max_retries: 2 })
      const second = await target(answers('never'))
      const route_id = await route([first, second])
      const { status: answered, body } = await ask(
        await its.app.agent({ ai_provider_id: null, model_route_id: route_id }),
      )
      assert.deepEqual([answered, body.error.code], [502, 'AI_PROVIDER_ERROR'])
      assert.equal(body.error.meta.model_route_id, route_id)
      assert.equal(body.error.meta.provider_status_code, status)
      assert.deepEqual([await requests(first), await requests(second)], [1, 0])
      const { routing, error } = await record(body.error.meta.generation_id)
      assert.equal(error.meta.model_route_id, route_id)
      assert.deepEqual([routing.target_index, routing.fallbacks], [null, 0])
      assert.deepEqual(
        routing.attempts.map((each: Json) => [each.target_index, each.error_class, each.provider_status_code]),
        [[0, error_class, status]],
      )
    })

  it('moves on from the classes of retry_on alone', async () => {
    const first = await target([{ reply: { error: { status: 503 } } }], { max_retries: 1 })
    const second = await target(answers('never'))
    const generation = await turn(await routed([first, second], { retry_on: ['timeout'] }))
    assert.deepEqual([generation.status, generation.error.meta.provider_status_code], ['failed', 503])
    assert.deepEqual([await requests(first), await requests(second)], [1, 0])
    assert.deepEqual(classes(generation), ['provider_error'])
  })

  it('is around one step: those before stay as they are', async () => {
    const first = await target([{ replies: [CALLS_A_TOOL, { error: { status: 500 } }] }])
    const second = await target(answers('done'))
    const generation = await turn(await routed([first, second]))
    assert.deepEqual([generation.status, generation.output?.content], ['completed', 'done'])
    const { steps } = (await its.app.key.get(`/generations/${generation.id}/transcript`)).body
    assert.deepEqual(
      steps.map((step: Json) => step.ai_provider_id),
      [first.ai_provider_id, second.ai_provider_id],
    )
    assert.deepEqual([await requests(first), await requests(second)], [2, 1])
    const [{ body }] = await its.double.requests(second.lane)
    assert.deepEqual(
      body.messages.map(({ role }: Json) => role),
      ['user', 'assistant', 'tool'],
    )
    assert.deepEqual(
      generation.routing.attempts.map((each: Json) => [each.step, each.target_index, each.error_class]),
      [
        [1, 0, null],
        [2, 0, 'provider_error'],
        [2, 1, null],
      ],
    )
    assert.deepEqual([generation.routing.target_index, generation.routing.fallbacks], [1, 1])
  })

  it('makes the attempts of a target before it leaves it, and no more', async () => {
    const only = await target(DOWN, { max_retries: 2 })
    const generation = await turn(await routed([only]))
    assert.deepEqual([generation.status, generation.error.code], ['failed', 'AI_PROVIDER_ERROR'])
    assert.equal(await requests(only), 3)
    assert.deepEqual(classes(generation), ['provider_error', 'provider_error', 'provider_error'])
    // Of a route whose every target fails the last failure is the call's.
    const [first, last] = [
      await target(DOWN, { max_retries: 1 }),
      await target([{ reply: { error: { status: 503 } } }]),
    ]
    const failed = await turn(await routed([first, last]))
    assert.deepEqual([await requests(first), await requests(last)], [2, 1])
    assert.equal(failed.error.meta.provider_status_code, 503)
    assert.deepEqual([failed.routing.target_index, failed.routing.fallbacks], [null, 1])
  })

  it('waits before it calls a target again', async () => {
    const first = await target(
      [{ replies: [{ error: { status: 500 } }, { error: { status: 500 } }, { text: 'up' }] }],
      {
        max_retries: 2,
      },
    )
    const started = performance.now()
    const generation = await turn(await routed([first]))
    assert.equal(generation.output.content, 'up')
    // 250 ms and 500 ms, each a fifth shorter at most.
    assert.ok(performance.now() - started >= 600)
  })

  it('waits as long as the vendor says when it is short, else moves to the next target immediately', async () => {
    const busy = (retry_after: number): Rules => [
      { replies: [{ error: { status: 429, retry_after } }, { text: 'again' }] },
    ]
    const short = await target(busy(1), { max_retries: 1 })
    let started = performance.now()
    const waited = await turn(await routed([short, await target(answers('never'))]))
    assert.ok(performance.now() - started >= 1000)
    assert.deepEqual([waited.output.content, classes(waited)], ['again', ['rate_limited', null]])
    const long = await target(busy(30), { max_retries: 3 })
    started = performance.now()
    const left = await turn(await routed([long, await target(answers('other'))]))
    assert.ok(performance.now() - started < 20_000)
    assert.deepEqual([left.output.content, await requests(long)], ['other', 1])
    assert.deepEqual(left.routing.attempts[0].provider_status_code, 429)
  })

  it('gives an attempt the time of its target', async () => {
    const slow = await target([{ reply: { text: 'late', delay_ms: 20_000 } }], { timeout_seconds: 1, max_retries: 1 })
    const second = await target(answers('in time'))
    const started = performance.now()
    const generation = await turn(await routed([slow, second]))
    const took = performance.now() - started
    assert.ok(took >= 2000 && took < 15_000, String(took))
    assert.equal(generation.output.content, 'in time')
    assert.deepEqual(classes(generation), ['timeout', 'timeout', null])
  })

  it('leaves a target that cannot be reached, or breaks off', async () => {
    const unreachable = { ai_provider_id: await newProvider({ base_url: 'http://127.0.0.1:9/v1' }), model: 'm' }
    const cut = await target([{ reply: { text: 'x', cut: { after: 0 } } }])
    const empty = await target([{ reply: { text: 'x', corrupt: 'empty' } }])
    const generation = await turn(await routed([unreachable, cut, empty, await target(answers('here'))]))
    assert.equal(generation.output?.content, 'here', JSON.stringify(generation.error))
    assert.deepEqual(classes(generation), ['provider_error', 'provider_error', 'provider_error', null])
    assert.equal(generation.routing.fallbacks, 3)
  })

  it('fails immediately at a target that is misconfigured, and is refused when it is the first', async () => {
    const broken = { ai_provider_id: await newProvider({ provider: 'openai', base_url: null }), model: 'm' }
    const after = await target(answers('never'))
    const generation = await turn(await routed([await target(DOWN), broken, after]))
    assert.deepEqual([generation.status, generation.error.code], ['failed', 'AI_PROVIDER_MISCONFIGURED'])
    assert.deepEqual(classes(generation), ['provider_error', null])
    assert.equal(await requests(after), 0)
    const refused = await ask(await routed([broken, after]))
    assert.deepEqual([refused.status, refused.body.error.code], [400, 'AI_PROVIDER_MISCONFIGURED'])
  })

  it('of a stream goes to the next target before its first content', async () => {
    const cut = await target([{ reply: { text: 'x', cut: { after: 0 } } }])
    const failing = await target([{ reply: { text: 'x', stream_error: { after: 0, message: 'no' } } }])
    const agent = await routed([cut, failing, await target(answers('one two three'))])
    const messages = await readStream(
      await openStream(its.app, `/agents/${agent}/generate`, { prompt: 'x', stream: true }),
    )
    const text = messages.filter(({ event }) => event === 'delta').map(({ data }) => data.choices[0].delta.content)
    assert.deepEqual([text.join(''), messages.at(-1)?.event], ['one two three', 'completed'])
    const generation = await record(messages[0].data.generation_id)
    assert.deepEqual(classes(generation), ['provider_error', 'provider_error', null])
  })

  it('of a stream that breaks off after content is the failure of the turn', async () => {
    const first = await target([{ reply: { text: 'one two three four', chunk_delay_ms: 250, cut: { after: 3 } } }], {
      max_retries: 1,
    })
    const second = await target(answers('never'))
    const route_id = await route([first, second], { failure_threshold: 1 })
    const agent = await its.app.agent({ ai_provider_id: null, model_route_id: route_id })
    const messages = await readStream(
      await openStream(its.app, `/agents/${agent}/generate`, { prompt: 'x', stream: true }),
    )
    const text = messages.filter(({ event }) => event === 'delta').map(({ data }) => data.choices[0].delta.content)
    assert.match(text.join(''), /^one two three/)
    const last = messages.at(-1)
    assert.deepEqual([last?.event, last?.data.code], ['error', 'AI_PROVIDER_ERROR'])
    assert.equal(last?.data.meta.model_route_id, route_id)
    assert.deepEqual([await requests(first), await requests(second)], [1, 0])
    assert.deepEqual(classes(await record(messages[0].data.generation_id)), [null])
  })

  it('ends with the turn when that is cancelled', async () => {
    const first = await target([{ reply: { text: 'x', gate: 'held' } }])
    const second = await target(answers('never'))
    const agent = await routed([first, second], { failure_threshold: 1 })
    const { body } = await its.app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('held')
    await its.app.key.post(`/generations/${body.generation_id}/cancel`)
    const generation = await ended(body.generation_id)
    assert.deepEqual([generation.stop_reason, await requests(second)], ['cancelled', 0])
    assert.deepEqual(generation.routing.attempts, [])
  })

  it('goes by a route that was changed while the turn ran, from the next step', async () => {
    const first = await target([{ reply: { ...CALLS_A_TOOL, gate: 'change' } }])
    const second = await target(answers('changed'))
    const route_id = await route([first])
    const agent = await its.app.agent({ ai_provider_id: null, model_route_id: route_id })
    const { body } = await its.app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('change')
    const { lane: _, ...targets } = second
    assert.equal((await its.app.admin.patch(`/model-routes/${route_id}`, { targets: [targets] })).status, 200)
    await release('change')
    assert.equal((await ended(body.generation_id)).output.content, 'changed')
    assert.deepEqual([await requests(first), await requests(second)], [1, 1])
  })

  it('goes by the default route of the project, whichever that is', async () => {
    const [first, second] = [await target(answers('one')), await target(answers('two'))]
    const [one, two] = [await route([first]), await route([second])]
    const setDefault = (id: string) =>
      its.app.admin.patch(`/projects/${its.app.projectId}`, { default_model_route_id: id })
    await setDefault(one)
    const agent = await its.app.agent({ ai_provider_id: null })
    assert.equal((await turn(agent)).output.content, 'one')
    await setDefault(two)
    const generation = await turn(agent)
    assert.deepEqual([generation.output.content, generation.routing.route_id], ['two', two])
  })

  it('notes the newest 500 attempts', async () => {
    const answering = await target([
      { when: { model: 'ok' }, reply: CALLS_A_TOOL },
      { reply: { error: { status: 500 } } },
    ])
    const failing = Array.from({ length: 9 }, (_, n) => ({ ...answering, model: `${answering.lane}/down${n}` }))
    const targets = [...failing, { ...answering, model: `${answering.lane}/ok` }]
    const route_id = await route(targets, { failure_threshold: 100 })
    const generation = await turn(
      await its.app.agent({ ai_provider_id: null, model_route_id: route_id, max_steps: 52 }),
    )
    const { attempts, fallbacks } = generation.routing
    assert.deepEqual([generation.stop_reason, generation.step_count], ['max_steps', 52])
    assert.deepEqual([attempts.length, fallbacks, await requests(answering)], [500, 9 * 52, 520])
    assert.deepEqual([attempts[0].step, attempts[0].target_index], [3, 0])
    assert.deepEqual([attempts.at(-1).step, attempts.at(-1).target_index], [52, 9])
  })

  it('leaves how it went when the content of the turn is erased, or never kept', async () => {
    const [first, second] = [await target(DOWN), await target(answers('secret'))]
    const agent = await routed([first, second])
    const generation = await turn(agent)
    const purged = await its.app.key.delete(`/generations/${generation.id}/content`)
    assert.deepEqual([purged.status, purged.body.output, purged.body.routing], [200, null, generation.routing])
    await its.app.admin.patch(`/agents/${agent}`, { trace_content_mode: 'none' })
    const hidden = await turn(agent)
    assert.deepEqual([hidden.output, classes(hidden)], [null, ['provider_error', null]])
  })

  it('has no separate statement while its targets answer: its reads ride in statements of the turn', async () => {
    const counted = setUp({ inProcess: true })
    await counted.open()
    try {
      const first = await counted.target([{ replies: [CALLS_A_TOOL, { text: 'x' }] }])
      const agent = await counted.routed([first, await counted.target(answers('never'))])
      const from = counted.app.statements.length
      const { body } = await counted.ask(agent)
      assert.deepEqual([body.output?.content, body.usage !== null], ['x', true])
      const routing = counted.app.statements.slice(from).filter(text => /model_routes|model_breakers/.test(text))
      // The load of the turn, the third carrier, is in the claim of its message.
      const carriers = [/select a\..* from served_agent/s, /update generations set step_count/]
      assert.equal(routing.length, carriers.length, routing.join('\n\n'))
      for (const [index, carrier] of carriers.entries()) assert.match(routing[index], carrier)
    } finally {
      await counted.close()
    }
  })

  it('has no separate model, which sessions may request', async () => {
    const routedAgent = await routed([await target(answers('x'))])
    const session = await its.app.admin.post('/sessions', { project_id: its.app.projectId, agent_id: routedAgent })
    assert.equal(session.status, 201, JSON.stringify(session.body))
    const path = `/sessions/${session.body.id}`
    await its.app.admin.post(`${path}/messages`, { message: 'hello' })
    const refused = await its.app.admin.post(`${path}/generate?wait=true`, { model: 'other' })
    assert.deepEqual([refused.status, refused.body.error?.meta.problems[0].path], [400, 'model'])
    const reply = await its.app.admin.post(`${path}/generate?wait=true`, {})
    assert.deepEqual([reply.status, reply.body.content], [200, 'x'], JSON.stringify(reply.body))
  })
})

describe('a call without a route', function () {
  this.timeout(60_000)
  const its = setUp({ env: { PROVIDER_MAX_RETRIES: '1' } })
  before(its.open)
  after(its.close)

  it('is repeated PROVIDER_MAX_RETRIES times in the same classes, and notes no routing', async () => {
    for (const [status, calls] of [
      [503, 2],
      [429, 2],
      [400, 1],
    ]) {
      const only = await its.target([{ reply: { error: { status } } }])
      const agent = await its.app.agent({ ai_provider_id: only.ai_provider_id, model: only.model })
      const generation = await its.turn(agent)
      assert.deepEqual([generation.error.code, generation.routing], ['AI_PROVIDER_ERROR', null])
      assert.equal(generation.error.meta.model_route_id, undefined)
      assert.equal(await its.requests(only), calls, `${status}`)
    }
    const breakers = await its.app.pool.any(sql.unsafe`select * from model_breakers`)
    assert.deepEqual(breakers, [])
  })
})

describe('the breaker of a target', function () {
  this.timeout(60_000)
  const its = setUp({ workers: [] })
  const processes: TestProcess[] = []
  const worker = async (env: Record<string, string> = {}) => {
    const fast = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }
    const made = await startProcess('worker', its.app.databaseUrl, { ...fast, ...env }, ['generation'])
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = (env: Record<string, string> = {}) => {
    const fast = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0' }
    return steady.start(its.app.databaseUrl, { ...fast, ...env }, ['generation'])
  }
  before(its.open)
  afterEach(async () => {
    await steady.stop()
    await Promise.all(processes.splice(0).map(each => each.kill()))
  })
  after(its.close)

  const { target, routed, route, turn, ended, requests, waitingAt, release } = its
  const rows = (lane: string) =>
    its.app.pool.any(sql.unsafe`select * from model_breakers where model = ${`${lane}/m`}`) as Promise<readonly Json[]>
  /** Moves the last failure of a target into the past, as its cooldown would. */
  const coolDown = ({ lane }: { lane: string }, seconds: number) =>
    its.app.pool.query(sql.unsafe`
      update model_breakers set failed_at = failed_at - make_interval(secs => ${seconds}) where model = ${`${lane}/m`}`)

  it('trips in one process and is open in every other, until its cooldown is over', async () => {
    const first = await target(DOWN)
    const second = await target(answers('spare'))
    const agent = await routed([first, second], { failure_threshold: 2, cooldown_seconds: 600 })
    const one = await worker()
    assert.deepEqual([(await turn(agent)).output.content, (await turn(agent)).output.content], ['spare', 'spare'])
    await one.kill()
    await steadyWorker()
    const third = await turn(agent)
    assert.deepEqual([third.output.content, await requests(first)], ['spare', 2])
    assert.deepEqual(classes(third), [null])
    assert.deepEqual([third.routing.target_index, third.routing.fallbacks], [1, 1])
    await coolDown(first, 601)
    const fourth = await turn(agent)
    assert.deepEqual([classes(fourth), await requests(first)], [['provider_error', null], 3])
    // The probe failed: the next cooldown begins.
    assert.deepEqual(classes(await turn(agent)), [null])
    assert.equal(await requests(first), 3)
  })

  it('counts the failures of the call at hand, too', async () => {
    const first = { ...(await target(DOWN)), max_retries: 2 }
    const second = await target(DOWN)
    const agent = await routed([first, second, first], { failure_threshold: 3, cooldown_seconds: 600 })
    await steadyWorker()
    assert.equal((await turn(agent)).status, 'failed')
    assert.deepEqual([await requests(first), await requests(second)], [3, 1])
  })

  it('counts consecutive failures: an answer resets it', async () => {
    const first = await target([
      { replies: [{ error: { status: 500 } }, { text: 'up' }, { error: { status: 500 } }], then: 'stick' },
    ])
    const agent = await routed([first, await target(answers('spare'))], { failure_threshold: 2, cooldown_seconds: 600 })
    await steadyWorker()
    const seen = []
    for (let n = 0; n < 5; n++) seen.push((await turn(agent)).output.content)
    assert.deepEqual(seen, ['spare', 'up', 'spare', 'spare', 'spare'])
    assert.equal(await requests(first), 4)
  })

  it('does not count what a route does not move on from, nor refused requests', async () => {
    const first = await target([{ replies: [{ error: { status: 500 } }, { error: { status: 400 } }, { text: 'up' }] }])
    const fields = { failure_threshold: 1, cooldown_seconds: 600, retry_on: ['timeout'] }
    const agent = await routed([first, await target(answers('spare'))], fields)
    await steadyWorker()
    assert.deepEqual([(await turn(agent)).status, (await turn(agent)).status], ['failed', 'failed'])
    assert.equal((await turn(agent)).output.content, 'up')
    assert.deepEqual(await rows(first.lane), [])
  })

  it('is of a provider and model, whatever route calls them; thresholds are of the route', async () => {
    const first = await target(DOWN)
    const spare = await target(answers('spare'))
    await steadyWorker()
    const strict = await routed([first, spare], { failure_threshold: 1, cooldown_seconds: 600 })
    const lenient = await routed([first, spare], { failure_threshold: 3, cooldown_seconds: 600 })
    const otherModel = await routed([{ ...first, model: `${first.lane}/n` }, spare], { failure_threshold: 1 })
    await turn(lenient)
    assert.deepEqual(classes(await turn(strict)), [null])
    assert.deepEqual(classes(await turn(lenient)), ['provider_error', null])
    assert.deepEqual(classes(await turn(otherModel)), ['provider_error', null])
    assert.equal(await requests(first), 3)
  })

  it('lets the first target be called when all are open', async () => {
    const [first, second] = [await target(DOWN, { max_retries: 1 }), await target(DOWN)]
    const agent = await routed([first, second], { failure_threshold: 1, cooldown_seconds: 600 })
    await steadyWorker()
    await turn(agent)
    const generation = await turn(agent)
    assert.deepEqual([generation.status, await requests(first), await requests(second)], ['failed', 4, 1])
    assert.deepEqual([generation.routing.fallbacks, classes(generation)], [0, ['provider_error', 'provider_error']])
  })

  it('lets one call of all processes try the target after the cooldown; its answer closes it', async () => {
    const first = await target([
      { replies: [{ error: { status: 500 } }, { text: 'back', gate: 'probe' }, { text: 'up' }] },
    ])
    const second = await target(answers('spare'))
    const agent = await routed([first, second], { failure_threshold: 1, cooldown_seconds: 600 })
    const both = await Promise.all([steadyWorker(), steadyWorker()])
    await turn(agent)
    await coolDown(first, 601)
    const asked = await Promise.all(
      Array.from({ length: 12 }, () => its.app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })),
    )
    await waitingAt('probe')
    const others = async () =>
      (await Promise.all(asked.map(({ body }) => its.record(body.generation_id)))).filter(
        ({ status }) => status === 'completed',
      )
    await eventually(async () => (await others()).length === 11)
    assert.ok((await others()).every(({ output }) => output.content === 'spare'))
    assert.equal(await requests(first), 2)
    await release('probe')
    const contents = (await Promise.all(asked.map(({ body }) => ended(body.generation_id)))).map(
      ({ output }) => output.content,
    )
    assert.deepEqual(contents.filter(content => content === 'back').length, 1)
    assert.deepEqual(await rows(first.lane), [])
    assert.equal((await turn(agent)).output.content, 'up')
    // Both processes took part.
    const turns = both.map(({ output }) => output.filter(line => line.includes('"work":"turn.execute"')).length)
    assert.ok(
      turns.every(count => count > 0),
      String(turns),
    )
  })

  it('lets another call try the target when the trial call was cancelled', async () => {
    const first = await target([
      { replies: [{ error: { status: 500 } }, { text: 'x', gate: 'cancelled-probe' }, { text: 'up' }] },
    ])
    const agent = await routed([first, await target(answers('spare'))], { failure_threshold: 1, cooldown_seconds: 600 })
    await steadyWorker()
    await turn(agent)
    await coolDown(first, 601)
    const { body } = await its.app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('cancelled-probe')
    assert.equal((await turn(agent)).output.content, 'spare')
    await its.app.key.post(`/generations/${body.generation_id}/cancel`)
    await ended(body.generation_id)
    assert.equal((await turn(agent)).output.content, 'up')
  })

  it('lets another call try the target when the process that did was killed', async () => {
    const first = await target(
      [{ replies: [{ error: { status: 500 } }, { text: 'x', gate: 'killed-probe' }, { text: 'up' }] }],
      { timeout_seconds: 1 },
    )
    const agent = await routed([first, await target(answers('spare'))], { failure_threshold: 1, cooldown_seconds: 600 })
    const one = await worker()
    await turn(agent)
    await coolDown(first, 601)
    await its.app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('killed-probe')
    await one.kill()
    const [{ probe_until }] = await rows(first.lane)
    assert.ok(probe_until !== null)
    await steadyWorker()
    assert.equal((await turn(agent)).output.content, 'spare')
    await eventually(async () => (await turn(agent)).output.content === 'up', { every: 500 })
    assert.deepEqual(await rows(first.lane), [])
  })

  it('that cannot be written holds no call up', async () => {
    const first = await target([{ replies: [{ error: { status: 500 } }, { text: 'up' }, { error: { status: 500 } }] }])
    const second = await target(answers('spare'))
    const agent = await routed([first, second], { failure_threshold: 1, cooldown_seconds: 600 })
    await steadyWorker()
    await its.app.pool.query(sql.unsafe`
      create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`)
    await its.app.pool.query(sql.unsafe`
      create trigger refuse before insert or update or delete on model_breakers
      for each statement execute function refuse()`)
    try {
      const generation = await turn(agent)
      assert.deepEqual([generation.output.content, classes(generation)], ['spare', ['provider_error', null]])
      assert.equal((await turn(agent)).output.content, 'up')
      await its.app.pool.query(sql.unsafe`alter table model_breakers disable trigger refuse`)
      await turn(agent)
      await coolDown(first, 601)
      await its.app.pool.query(sql.unsafe`alter table model_breakers enable trigger refuse`)
      // The probe cannot be claimed, so the next target serves.
      assert.deepEqual(classes(await turn(agent)), [null])
    } finally {
      await its.app.pool.query(sql.unsafe`drop function refuse cascade`)
    }
  })

  it('is forgotten a day after the last failure, and with its provider', async () => {
    const { sweeps } = await import('#core/work/sweeps.ts')
    const sweep = () => sweeps.get('failures of model targets').run(its.app.services, new AbortController().signal)
    const [first, second] = [await target(DOWN), await target(DOWN)]
    const route_id = await route([first, second])
    await steadyWorker()
    await turn(await its.app.agent({ ai_provider_id: null, model_route_id: route_id }))
    await coolDown(first, 86_401)
    await sweep()
    assert.deepEqual([(await rows(first.lane)).length, (await rows(second.lane)).length], [0, 1])
    const { lane: _, ...left } = first
    await its.app.admin.patch(`/model-routes/${route_id}`, { targets: [left] })
    assert.equal((await its.app.admin.delete(`/ai-providers/${second.ai_provider_id}`)).status, 204)
    assert.deepEqual(await rows(second.lane), [])
  })

  it('and how calls went survive the worker of a turn', async () => {
    const first = await target([{ replies: [{ error: { status: 500 } }], then: 'stick' }])
    const second = await target([{ replies: [CALLS_A_TOOL, { text: 'lost', gate: 'survive' }, { text: 'found' }] }])
    const agent = await routed([first, second], { failure_threshold: 1, cooldown_seconds: 600 })
    const one = await worker()
    const { body } = await its.app.key.post(`/agents/${agent}/generate`, { prompt: 'x' })
    await waitingAt('survive')
    const running = await its.record(body.generation_id)
    assert.deepEqual([running.status, classes(running)], ['in_progress', ['provider_error', null]])
    await one.kill()
    await steadyWorker()
    const generation = await ended(body.generation_id)
    assert.equal(generation.output.content, 'found')
    assert.deepEqual(
      generation.routing.attempts.map((each: Json) => [each.step, each.target_index, each.error_class]),
      [
        [1, 0, 'provider_error'],
        [1, 1, null],
        [2, 1, null],
      ],
    )
    assert.equal(generation.routing.fallbacks, 2)
    assert.equal(await requests(first), 1)
  })
})
