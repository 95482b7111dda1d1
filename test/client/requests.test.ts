import assert from 'node:assert/strict'
import { inspect } from 'node:util'
import { createActor, listActors } from '../../client/dist/generated/operations.js'
import {
  Client,
  Conflict,
  isMusterError,
  LimitExceeded,
  Muster,
  MusterError,
  NoAnswer,
  NotFound,
  ServerFailure,
  WorkFailed,
  WorkWaits,
} from '../../client/dist/index.js'
import { type Answer, events, json, refusal, type Scripted, startScripted, withoutWaiting } from './support.ts'

const TOKEN = 'sk_0123456789abcdefghijABCDEFGHIJ'
const ACTOR = { id: 'actor_1', name: 'Ann' }

describe('requests of the client', () => {
  const open: Scripted[] = []
  afterEach(async () => {
    for (const server of open.splice(0)) await server.close()
  })
  const start = async (...answers: Parameters<typeof startScripted>) => {
    const server = await startScripted(...answers)
    open.push(server)
    return server
  }
  const connect = (server: Scripted, more: Partial<ConstructorParameters<typeof Muster>[0]> = {}) =>
    new Muster({ baseUrl: server.url, token: TOKEN, ...more })
  const failureOf = async (call: PromiseLike<unknown>): Promise<any> => {
    const error = await call.then(
      () => null,
      each => each,
    )
    assert.ok(error instanceof Error, 'the call succeeded')
    return error
  }

  describe('are repeated', () => {
    it('with one Idempotency-Key where they create, after each failure that may be over', async () => {
      const failures: Answer[] = [
        { destroy: true },
        { status: 502, body: 'bad gateway' },
        refusal(503, 'SERVICE_NOT_READY'),
      ]
      const server = await start(...failures, json(ACTOR))
      const { value, delays } = await withoutWaiting(async () =>
        connect(server, { maxRetries: 3 }).actors.create({ name: 'Ann' }),
      )
      assert.deepEqual(value, ACTOR)
      const keys = new Set(server.requests.map(({ headers }) => headers['idempotency-key']))
      assert.deepEqual([server.requests.length, keys.size], [4, 1])
      for (const [index, full] of [500, 1000, 2000].entries())
        assert.ok(delays[index] <= full && delays[index] >= full * 0.75, String(delays))
    })

    it('after an answer that ends early', async () => {
      const early: Answer = { headers: { 'content-length': '100' }, body: '{"id":' }
      const server = await start(res => {
        res.writeHead(200, { 'content-type': 'application/json', 'content-length': '100' })
        res.write(early.body as string, () => res.destroy())
      }, json(ACTOR))
      const { value } = await withoutWaiting(async () => connect(server).actors.get({ actor_id: 'actor_1' }))
      assert.deepEqual(value, ACTOR)
    })

    it('after the Retry-After of a 429, of at most a minute', async () => {
      const server = await start(refusal(429, 'QUOTA_EXCEEDED', { 'retry-after': '2' }), json(ACTOR))
      const { delays } = await withoutWaiting(async () => connect(server).actors.get({ actor_id: 'actor_1' }))
      assert.deepEqual([server.requests.length, delays], [2, [2000]])
      for (const headers of [{ 'retry-after': '61' }, {}] as Record<string, string>[]) {
        const busy = await start(refusal(429, 'QUOTA_EXCEEDED', headers))
        const error = await failureOf(connect(busy).actors.get({ actor_id: 'actor_1' }))
        assert.ok(error instanceof LimitExceeded)
        assert.deepEqual([busy.requests.length, error.retryAfter], [1, 'retry-after' in headers ? 61 : null])
      }
    })

    it('at most maxRetries times; without retries a create has no key', async () => {
      const server = await start(refusal(503, 'SERVICE_NOT_READY'))
      const { value } = await withoutWaiting(() => failureOf(connect(server).actors.list().page()))
      assert.ok(value instanceof ServerFailure)
      assert.equal(server.requests.length, 3)
      const single = await start(refusal(503, 'SERVICE_NOT_READY'))
      await failureOf(connect(single).actors.create({ name: 'Ann' }, { maxRetries: 0 }))
      assert.deepEqual([single.requests.length, single.requests[0].headers['idempotency-key']], [1, undefined])
    })

    it('while the first request with the key is in progress', async () => {
      const busy = refusal(409, 'IDEMPOTENCY_IN_PROGRESS', { 'retry-after': '5' })
      const server = await start(busy, busy, busy, busy, json(ACTOR))
      const { delays } = await withoutWaiting(async () => connect(server).actors.create({ name: 'Ann' }))
      assert.deepEqual(delays, [5000, 5000, 5000, 5000])
      const without = await start(busy)
      const error = await failureOf(connect(without, { maxRetries: 0 }).actors.create({ name: 'Ann' }))
      assert.ok(error instanceof Conflict)
    })

    it('never with If-Match, with a body that is read once, or of a sign-in', async () => {
      const calls: ((muster: Muster) => PromiseLike<unknown>)[] = [
        muster => muster.actors.update({ actor_id: 'actor_1', name: 'B' }, { ifMatch: '"1"' }),
        muster => muster.actors.delete({ actor_id: 'actor_1' }, { ifMatch: '"1"' }),
        muster => muster.files.upload({ file: new Response('x').body as ReadableStream<Uint8Array> }),
        muster => muster.users.login({ username: 'ann', password: 'secret password' }),
      ]
      for (const call of calls) {
        const server = await start(refusal(503, 'SERVICE_NOT_READY'))
        await failureOf(call(connect(server)))
        assert.equal(server.requests.length, 1, String(call))
      }
    })

    it('of a delete: not found on the repeat is success, at first it is not', async () => {
      const server = await start({ destroy: true }, refusal(404, 'RESOURCE_NOT_FOUND'))
      await withoutWaiting(async () => connect(server).actors.delete({ actor_id: 'actor_1' }))
      assert.equal(server.requests.length, 2)
      const gone = await start(refusal(404, 'RESOURCE_NOT_FOUND'))
      assert.ok((await failureOf(connect(gone).actors.delete({ actor_id: 'actor_1' }))) instanceof NotFound)
    })

    it('not after other refusals, nor after the caller has aborted', async () => {
      for (const status of [400, 401, 403, 409, 500]) {
        const server = await start(refusal(status, 'ANY'))
        await failureOf(connect(server).actors.list().page())
        assert.equal(server.requests.length, 1, String(status))
      }
      const controller = new AbortController()
      const server = await start(res => {
        controller.abort(new Error('left'))
        res.destroy()
      })
      const error = await failureOf(connect(server).actors.create({ name: 'Ann' }, { signal: controller.signal }))
      assert.deepEqual([error.message, server.requests.length], ['left', 1])
    })
  })

  describe('have no answer', () => {
    const get = (server: Scripted, more: object = {}) =>
      connect(server, { maxRetries: 0, ...more }).actors.get({ actor_id: 'actor_1' })

    it('when it is of another type, no JSON, or an error of something else', async () => {
      const answers: [Answer, string][] = [
        [events(['started', {}]), 'type'],
        [{ headers: { 'content-type': 'text/html' }, body: '<p>' }, 'type'],
        [{ body: '{"id":' }, 'broken'],
        [{ status: 502, headers: { 'content-type': 'text/html' }, body: '<p>' }, 'broken'],
        [json({ message: 'no code' }, { status: 500 }), 'broken'],
        [{ destroy: true }, 'network'],
      ]
      for (const [answer, reason] of answers) {
        const error = await failureOf(get(await start(answer)))
        assert.ok(error instanceof NoAnswer)
        assert.equal(error.reason, reason, JSON.stringify(answer))
      }
      const server = await start(json({}))
      const error = await failureOf(connect(server).generations.stream({ generation_id: 'gen_1' }).result())
      assert.deepEqual([error.reason, server.requests.length], ['type', 1])
    })

    it('within the time limit, before it or within it', async () => {
      for (const answer of [{ hang: true }, { hang: true, body: '{"id":' }]) {
        const error = await failureOf(get(await start(answer), { timeoutMs: 50 }))
        assert.equal(error.reason, 'timeout')
      }
    })

    it('larger than its limit', async () => {
      const chunk = new Uint8Array(8 * 1024 * 1024).fill(0x20)
      const endless = (type: string): typeof fetch => {
        const body = () => new ReadableStream({ pull: controller => controller.enqueue(chunk) })
        return async () => new Response(body(), { headers: { 'content-type': type } })
      }
      const server = await start(json({}))
      const large = await failureOf(get(server, { fetch: endless('application/json') }))
      assert.equal(large.reason, 'too_large')
      const muster = connect(server, { fetch: endless('text/event-stream') })
      const message = await failureOf(muster.generations.stream({ generation_id: 'gen_1' }).result())
      assert.equal(message.reason, 'too_large')
    })
  })

  describe('keep the credential', () => {
    it('within the origin: a redirect to another is refused without a request there', async () => {
      const elsewhere = await start(json(ACTOR))
      for (const status of [301, 302, 303, 307, 308]) {
        const server = await start({ status, headers: { location: `${elsewhere.url}/api/v1/actors/actor_1` } })
        const error = await failureOf(connect(server).actors.get({ actor_id: 'actor_1' }))
        assert.deepEqual([error.reason, elsewhere.requests.length, server.requests.length], ['redirect', 0, 1])
      }
      const server = await start({ status: 308, headers: { location: '/api/v1/actors/actor_2' } }, json(ACTOR))
      assert.deepEqual(await connect(server).actors.get({ actor_id: 'actor_1' }), ACTOR)
      assert.equal(server.requests[1].headers.authorization, `Bearer ${TOKEN}`)
      const loop = await start({ status: 307, headers: { location: '/api/v1/actors/actor_1' } })
      assert.equal((await failureOf(connect(loop).actors.get({ actor_id: 'actor_1' }))).reason, 'redirect')
    })

    it('out of errors, of their JSON, and of what inspection shows', async () => {
      const server = await start(refusal(401, 'UNAUTHORIZED'), { destroy: true })
      const leaking: typeof fetch = async (_, init) => {
        throw new TypeError(`cannot send ${JSON.stringify(init?.headers)}`)
      }
      const muster = connect(server, { maxRetries: 0 })
      const errors = [
        await failureOf(muster.actors.list().page()),
        await failureOf(muster.actors.list().page()),
        await failureOf(connect(server, { fetch: leaking, maxRetries: 0 }).actors.list().page()),
        await failureOf(
          connect(server, { token: `${TOKEN}\n` })
            .actors.list()
            .page(),
        ),
      ]
      for (const shown of [muster, muster.actors.list(), muster.generations.stream({ generation_id: 'g' }), ...errors])
        for (const text of [
          inspect(shown, { depth: 9, showHidden: true }),
          JSON.stringify(shown),
          String((shown as Error).stack),
        ])
          assert.ok(!text?.includes(TOKEN), text)
      for (const baseUrl of ['http://user:secret@127.0.0.1/', 'ftp://127.0.0.1/', 'http://127.0.0.1/?a=b'])
        assert.throws(() => new Muster({ baseUrl }), TypeError)
    })

    it('out of pages: a project key there warns once', async () => {
      const server = await start(json(ACTOR))
      const navigator = Object.getOwnPropertyDescriptor(globalThis, 'navigator') as PropertyDescriptor
      const { warn } = console
      const warnings: unknown[] = []
      console.warn = text => void warnings.push(text)
      Object.defineProperty(globalThis, 'navigator', { configurable: true, value: { userAgent: 'Mozilla/5.0' } })
      try {
        await connect(server, { allowKeyInBrowser: true }).actors.get({ actor_id: 'actor_1' })
        await connect(server, { token: 'eyJ.a.b' }).actors.get({ actor_id: 'actor_1' })
        assert.equal(warnings.length, 0)
        for (let count = 0; count < 2; count++) await connect(server).actors.get({ actor_id: 'actor_1' })
        assert.equal(warnings.length, 1)
        assert.ok(!String(warnings[0]).includes(TOKEN))
      } finally {
        console.warn = warn
        Object.defineProperty(globalThis, 'navigator', navigator)
      }
    })

    it('current, by a function that is called for each try', async () => {
      const server = await start(refusal(503, 'SERVICE_NOT_READY'), json(ACTOR))
      let count = 0
      const muster = connect(server, { token: async () => `token${++count}` })
      await withoutWaiting(async () => muster.actors.get({ actor_id: 'actor_1' }))
      assert.deepEqual(
        server.requests.map(({ headers }) => headers.authorization),
        ['Bearer token1', 'Bearer token2'],
      )
    })
  })

  it('say which client sends them', async () => {
    const server = await start(json(ACTOR))
    await connect(server).actors.get({ actor_id: 'actor_1' }, { headers: { 'X-Extra': 'yes' } })
    const { headers } = server.requests[0]
    assert.match(headers['x-muster-client'] as string, /^\d+\.\d+\.\d+\/node$/)
    assert.equal(headers['x-extra'], 'yes')
  })

  it('name the project of the client in reads and creates without one, and never in a change', async () => {
    const server = await start(json({ data: [], total: 0, limit: 100, offset: 0 }), json(ACTOR))
    const muster = connect(server, { project: 'proj_1' })
    await muster.actors.list().page()
    await muster.actors.list({ project_id: 'proj_2' }).page()
    await muster.actors.create({ name: 'Ann' })
    await muster.actors.get({ actor_id: 'actor_1' })
    await muster.projectKeys.update({ key_id: 'key_1', name: 'x' })
    assert.deepEqual(
      server.requests.map(({ url, body }) => url + body),
      [
        '/api/v1/actors?project_id=proj_1',
        '/api/v1/actors?project_id=proj_2',
        '/api/v1/actors{"project_id":"proj_1","name":"Ann"}',
        '/api/v1/actors/actor_1',
        '/api/v1/project-keys/key_1{"name":"x"}',
      ],
    )
  })

  it('are functions too, which take a client', async () => {
    const server = await start(json(ACTOR), json({ data: [ACTOR], total: 1, limit: 100, offset: 0 }))
    const client = new Client({ baseUrl: `${server.url}/`, token: TOKEN })
    assert.deepEqual(await createActor(client, { name: 'Ann' }), ACTOR)
    assert.deepEqual(await listActors(client).all(), [ACTOR])
    assert.equal(server.requests[1].url, '/api/v1/actors?limit=100')
  })

  it('pass unknown fields and codes through', async () => {
    const server = await start(json({ ...ACTOR, added_later: 1 }), refusal(418, 'ADDED_LATER'))
    assert.deepEqual(await connect(server).actors.get({ actor_id: 'a' }), { ...ACTOR, added_later: 1 })
    const error = await failureOf(connect(server).actors.get({ actor_id: 'a' }))
    assert.ok(isMusterError(error) && error.code === 'ADDED_LATER' && error.constructor === MusterError)
  })

  describe('of streams', () => {
    const started = ['started', { generation_id: 'gen_1' }, '1'] as [string, unknown, string]
    const delta = (id: string, content: string): [string, unknown, string] => [
      'delta',
      { choices: [{ delta: { content } }] },
      id,
    ]
    const completed = ['completed', { id: 'gen_1', status: 'completed' }, '9'] as [string, unknown, string]
    const generate = (muster: Muster, options: object = {}) =>
      muster.agents.generateStream({ agent_id: 'agent_1', prompt: 'x' }, options)

    it('are resumed after the last event, and repeated with their key before the first', async () => {
      const server = await start(events(), events(started, delta('2', 'a')), events(delta('3', 'b'), completed))
      const stream = generate(connect(server))
      const { value } = await withoutWaiting(async () => {
        let text = ''
        for await (const piece of stream.text()) text += piece
        return text
      })
      assert.deepEqual([value, (await stream.result()).id], ['ab', 'gen_1'])
      const [first, second, third] = server.requests
      assert.equal(first.headers['idempotency-key'], second.headers['idempotency-key'])
      assert.deepEqual(JSON.parse(second.body), { prompt: 'x', stream: true })
      assert.deepEqual(
        [third.method, third.url, third.headers['last-event-id']],
        ['GET', '/api/v1/generations/gen_1/stream', '2'],
      )
    })

    it('count as lost after five resumes without an event', async () => {
      const server = await start(events(started), events())
      const { value } = await withoutWaiting(() => failureOf(generate(connect(server)).result()))
      assert.deepEqual([value.reason, server.requests.length], ['broken', 6])
    })

    it('count as lost after 45 s without an event or a comment', async () => {
      const original = globalThis.setTimeout
      globalThis.setTimeout = ((run: () => void, ms = 0, ...args: []) =>
        original(run, ms === 45_000 ? 20 : ms >= 375 && ms <= 8000 ? 0 : ms, ...args)) as typeof setTimeout
      try {
        const server = await start({ ...events(started), hang: true }, events(completed))
        assert.equal((await generate(connect(server)).result()).status, 'completed')
        assert.equal(server.requests[1].headers['last-event-id'], '1')
      } finally {
        globalThis.setTimeout = original
      }
    })

    it('pass unknown events to onUnknown, and repeat the text of a step that is restarted', async () => {
      const restarted = ['step_restarted', { step: 1 }, '4'] as [string, unknown, string]
      const server = await start(
        events(started, ['later', { x: 1 }], delta('3', 'a'), restarted, delta('5', 'a'), completed),
      )
      const unknown: unknown[] = []
      const stream = generate(connect(server), { onUnknown: (event: unknown) => unknown.push(event) })
      const names: string[] = []
      for await (const { event } of stream) names.push(event)
      assert.deepEqual(names, ['started', 'delta', 'step_restarted', 'delta', 'completed'])
      assert.deepEqual(unknown, [{ event: 'later', data: { x: 1 } }])
    })

    it('end with WorkFailed when their last event is an error', async () => {
      const server = await start(events(started, ['error', { code: 'AI_PROVIDER_ERROR', message: 'down' }, '2']))
      const error = await failureOf(generate(connect(server)).result())
      assert.ok(error instanceof WorkFailed)
      assert.deepEqual([error.code, error.message], ['AI_PROVIDER_ERROR', 'down'])
    })

    it('end when the caller aborts, without ending the work', async () => {
      const controller = new AbortController()
      const server = await start({ ...events(started), hang: true })
      const stream = generate(connect(server), { signal: controller.signal })
      const error = await failureOf(
        (async () => {
          for await (const _ of stream) controller.abort(new Error('left'))
        })(),
      )
      assert.deepEqual([error.message, server.requests.length], ['left', 1])
    })

    it('of chat completions end with [DONE], and are not resumed', async () => {
      const piece = { choices: [{ delta: { content: 'a' } }] }
      const body = `data: ${JSON.stringify(piece)}\r\n\r\n: comment\r\n\r\ndata: [DONE]\r\n\r\n`
      const ask = { chat_id: 'chat_1', messages: [{ role: 'user' as const, content: 'x' }] }
      const headers = { 'content-type': 'text/event-stream' }
      const server = await start({ headers, body }, { headers, body: body.split(': comment')[0] })
      let text = ''
      for await (const part of connect(server).chat.completeStream(ask).text()) text += part
      assert.equal(text, 'a')
      const error = await failureOf(connect(server).chat.completeStream(ask).result())
      assert.equal(error.reason, 'broken')
    })
  })

  describe('that settle', () => {
    const startRun = (server: Scripted) => connect(server).orchestrationRuns.create({ orchestration_id: 'orch_1' })
    const run = (status: string, more: object = {}) => json({ id: 'run_1', status, ...more })

    it('poll the record until it is done, with growing delays', async () => {
      const server = await start(run('queued'), run('queued'), run('running'), run('succeeded'))
      const { value, delays } = await withoutWaiting(() => startRun(server).settled())
      assert.deepEqual([value.status, delays], ['succeeded', [500, 750]])
      assert.equal(server.requests[1].url, '/api/v1/orchestration-runs/run_1')
    })

    it('throw for failed work, for work that waits, and after their time limit', async () => {
      const failed = await start(run('queued'), run('failed', { error: { code: 'NODE_FAILED', message: 'no' } }))
      const failure = await failureOf(startRun(failed).settled())
      assert.ok(failure instanceof WorkFailed)
      assert.deepEqual([failure.code, failure.message, (failure.record as any).id], ['NODE_FAILED', 'no', 'run_1'])
      assert.ok((await failureOf(startRun(await start(run('awaiting_input'))).settled())) instanceof WorkWaits)
      const slow = await failureOf(startRun(await start(run('running'))).settled({ timeoutMs: 1 }))
      assert.equal(slow.reason, 'timeout')
    })

    it('throw for an unknown status instead of waiting longer', async () => {
      const server = await start(run('queued'), run('queued'), run('archived'))
      const { value } = await withoutWaiting(() => failureOf(startRun(server).settled({ timeoutMs: 5000 })))
      assert.deepEqual([value.name, value.reason], ['NoAnswer', 'broken'])
      assert.match(value.message, /archived/)
    })

    it('of a delete end when the record is gone', async () => {
      const record = json({ id: 'form_1', status: 'deleting' }, { status: 202 })
      const server = await start(record, refusal(404, 'RESOURCE_NOT_FOUND'))
      const settled = await connect(server).formations.delete({ formation_id: 'form_1' }).settled()
      assert.equal(settled.id, 'form_1')
    })
  })
})
