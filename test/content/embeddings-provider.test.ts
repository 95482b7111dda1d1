import assert from 'node:assert/strict'
import { embedderOf } from '#content/index/embeddings/embedder.ts'
import type { EmbedOptions } from '#content/index/embeddings/model.ts'
import { sql } from '#core/db/sql.ts'
import { usageOnce, usageSettled } from '../control/usage-support.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { startEmbeddingServer, vectorOf } from '../support/embedding-server.ts'
import { scrape } from '../support/metrics.ts'
import { forSuite } from '../support/suite.ts'

const DIMENSIONS = 32
const KEY = 'sk-embedding-key-of-the-tests'

const lines = (app: TestApp, text: string) =>
  app.logs.filter(line => line.includes(text)).map(line => JSON.parse(line) as Record<string, unknown>)

describe('the embedding provider', () => {
  const server = forSuite(() => startEmbeddingServer(DIMENSIONS))
  const apps: TestApp[] = []
  beforeEach(() => {
    server.calls.length = 0
    server.busiest = 0
    server.behave = () => ({})
  })
  after(async () => {
    for (const app of apps) await app.close()
  })

  const start = async (env: Record<string, string> = {}): Promise<TestApp> => {
    const app = await startApp({
      databaseUrl: apps[0]?.databaseUrl,
      env: {
        EMBEDDING_PROVIDER: 'openai',
        EMBEDDING_MODEL: 'text-model',
        EMBEDDING_DIMENSIONS: String(DIMENSIONS),
        EMBEDDING_BASE_URL: `${server.url}/v1`,
        EMBEDDING_API_KEY: KEY,
        ...env,
      },
    })
    apps.push(app)
    return app
  }
  const options = (more: Partial<EmbedOptions> = {}): EmbedOptions => ({
    project_id: null,
    purpose: { kind: 'document', ref: 'doc_1' },
    ...more,
  })

  describe('of OpenAI or like it', () => {
    let app: TestApp
    before(async () => {
      app = await start()
    })
    beforeEach(() => {
      app.logs.length = 0
    })

    it('gets the texts, the model and the key, and gives vectors of length 1 in the order of the texts', async () => {
      server.behave = call => ({ vectors: call.texts.map(text => vectorOf(text, DIMENSIONS).map(value => value * 7)) })
      const { key } = await app.project()
      const { status, body } = await key.post('/embeddings', { input: 'one', inputs: ['two', 'three'] })
      assert.equal(status, 200)
      const [call] = server.calls
      assert.equal(server.calls.length, 1)
      assert.equal(call.path, '/v1/embeddings')
      assert.equal(call.headers.authorization, `Bearer ${KEY}`)
      assert.deepEqual(call.body, { model: 'text-model', input: ['one', 'two', 'three'], encoding_format: 'float' })
      for (const [index, vector] of [body.embedding, ...body.embeddings].entries()) {
        const wanted = vectorOf(['one', 'two', 'three'][index], DIMENSIONS)
        for (const [at, value] of vector.entries()) assert.ok(Math.abs(value - wanted[at]) < 1e-6)
      }
    })

    it('is timed by outcome, and its tokens are counted', async () => {
      const calls = async (outcome: string) =>
        (await scrape(app.url)).value('muster_embedding_call_duration_seconds_count', { outcome }) ?? 0
      const tokens = async () =>
        (await scrape(app.url)).value('muster_tokens_total', { provider: 'openai', kind: 'input_tokens' }) ?? 0
      const before = { done: await calls('done'), refused: await calls('refused'), tokens: await tokens() }
      const { key } = await app.project()
      assert.equal((await key.post('/embeddings', { input: 'counted' })).status, 200)
      assert.equal(await calls('done'), before.done + 1)
      await eventually(async () => (await tokens()) > before.tokens)
      server.behave = () => ({ status: 400 })
      assert.notEqual((await key.post('/embeddings', { input: 'refused' })).status, 200)
      assert.equal(await calls('refused'), before.refused + 1)
      assert.equal(await calls('done'), before.done + 1)
    })

    it('receives the length only where its model takes one', async () => {
      const third = await start({ EMBEDDING_MODEL: 'text-embedding-3-small' })
      await (await third.project()).key.post('/embeddings', { input: 'x' })
      assert.equal(server.calls[0].body.dimensions, DIMENSIONS)
    })

    it('receives OPENAI_API_KEY where the provider has no key, and no key where none exists', async () => {
      const before = process.env.OPENAI_API_KEY
      try {
        process.env.OPENAI_API_KEY = 'sk-of-the-environment'
        server.behave = () => ({ status: 400, body: { error: { message: 'no such key: sk-of-the-environment' } } })
        const one = await start({ EMBEDDING_API_KEY: '' })
        await (await one.project()).key.post('/embeddings', { input: 'x' })
        assert.match(String(lines(one, 'embedding call')[0].detail), /no such key: \*\*\*/)
        assert.equal(one.logs.join('').includes('sk-of-the-environment'), false)
        delete process.env.OPENAI_API_KEY
        const two = await start({ EMBEDDING_API_KEY: '' })
        await (await two.project()).key.post('/embeddings', { input: 'x' })
        assert.deepEqual(
          server.calls.map(call => call.headers.authorization),
          ['Bearer sk-of-the-environment', undefined],
        )
      } finally {
        if (before === undefined) delete process.env.OPENAI_API_KEY
        else process.env.OPENAI_API_KEY = before
      }
    })

    it('is tried three times at a 500, with increasing delays, then 502', async () => {
      server.behave = () => ({ status: 500, body: { error: { message: `internal, key ${KEY}` } } })
      const { key } = await app.project()
      const { status, body } = await key.post('/embeddings', { input: 'x' })
      assert.equal(status, 502)
      assert.equal(body.error.code, 'AI_PROVIDER_ERROR')
      assert.deepEqual(body.error.meta, { provider_status_code: 500 })
      assert.equal(JSON.stringify(body).includes('internal'), false)
      assert.equal(server.calls.length, 3)
      const [first, second] = [1, 2].map(index => server.calls[index].at - server.calls[index - 1].at)
      assert.ok(first >= 380 && first < 900, `${first}`)
      assert.ok(second >= 780 && second < 1500, `${second}`)
      const attempts = lines(app, 'embedding call')
      assert.deepEqual(
        attempts.map(({ attempt, outcome, status: code, texts }) => [attempt, outcome, code, texts]),
        [1, 2, 3].map(attempt => [attempt, 'server', 500, 1]),
      )
      assert.match(String(attempts[0].detail), /internal/)
      assert.equal(app.logs.join('').includes(KEY), false)
    })

    it('is called again after a 500 that passes', async () => {
      server.behave = () => (server.calls.length < 3 ? { status: 503 } : {})
      const { key } = await app.project()
      assert.equal((await key.post('/embeddings', { input: 'x' })).status, 200)
      assert.equal(server.calls.length, 3)
    })

    it('is not called for the time that a 429 states', async () => {
      server.behave = () => (server.calls.length === 1 ? { status: 429, headers: { 'retry-after': '1' } } : {})
      const { key } = await app.project()
      assert.equal((await key.post('/embeddings', { input: 'x' })).status, 200)
      const waited = server.calls[1].at - server.calls[0].at
      assert.ok(waited >= 990 && waited < 1600, `${waited}`)
    })

    it('is not waited for where a 429 requires more than 20 s', async () => {
      server.behave = () => ({ status: 429, headers: { 'retry-after': '21' } })
      const { key } = await app.project()
      assert.equal((await key.post('/embeddings', { input: 'x' })).status, 502)
      assert.equal(server.calls.length, 1)
    })

    it('is not called until the date that a 429 states', async () => {
      const at = Math.ceil(Date.now() / 1000) * 1000 + 1000
      server.behave = () =>
        server.calls.length === 1 ? { status: 429, headers: { 'retry-after': new Date(at).toUTCString() } } : {}
      const { key } = await app.project()
      assert.equal((await key.post('/embeddings', { input: 'x' })).status, 200)
      assert.ok(server.calls[1].at >= at - 20, `${server.calls[1].at - at}`)
    })

    for (const retryAfter of ['0', '-1', 'Fri, 01 Jan 2021 00:00:00 GMT', 'soon'])
      it(`is not called for a while where a 429 says ${retryAfter}`, async () => {
        server.behave = () => (server.calls.length === 1 ? { status: 429, headers: { 'retry-after': retryAfter } } : {})
        const { key } = await app.project()
        assert.equal((await key.post('/embeddings', { input: 'x' })).status, 200)
        const waited = server.calls[1].at - server.calls[0].at
        assert.ok(waited >= 380, `${waited}`)
      })

    for (const [status, message] of [
      [400, /responded with status 400/],
      [401, /refused the credentials/],
      [403, /refused the credentials/],
      [404, /refused the credentials, the model or the address/],
      [422, /responded with status 422/],
    ] as const) {
      it(`is called once when it answers ${status}`, async () => {
        server.behave = () => ({ status, body: { error: { message: 'no' } } })
        const { key } = await app.project()
        const { status: answered, body } = await key.post('/embeddings', { input: 'x' })
        assert.equal(answered, 502)
        assert.match(body.error.message, message)
        assert.deepEqual(body.error.meta, { provider_status_code: status })
        assert.equal(server.calls.length, 1)
      })
    }

    for (const hangUp of ['at once', 'in the body'] as const) {
      it(`is tried again when it hangs up ${hangUp}`, async () => {
        server.behave = () => (server.calls.length === 1 ? { hangUp } : {})
        const { key } = await app.project()
        assert.equal((await key.post('/embeddings', { input: 'x' })).status, 200)
        assert.equal(server.calls.length, 2)
      })
    }

    it('fails the call when it cannot be reached', async () => {
      const away = await start({ EMBEDDING_BASE_URL: 'http://127.0.0.1:9/v1' })
      const { body } = await (await away.project()).key.post('/embeddings', { input: 'x' })
      assert.equal(body.error.code, 'AI_PROVIDER_ERROR')
      assert.equal(lines(away, 'embedding call').length, 3)
    })

    it('is not waited for longer than EMBEDDING_TIMEOUT_MS a call', async () => {
      const hasty = await start({ EMBEDDING_TIMEOUT_MS: '1000' })
      server.behave = () => (server.calls.length < 3 ? { delayMs: 20_000 } : {})
      const { key } = await hasty.project()
      assert.equal((await key.post('/embeddings', { input: 'x' })).status, 200)
      assert.deepEqual(
        lines(hasty, 'embedding call').map(({ outcome }) => outcome),
        ['timeout', 'timeout', 'done'],
      )
    })

    it('is not waited for longer than the limit where its body never ends', async () => {
      const hasty = await start({ EMBEDDING_TIMEOUT_MS: '1000' })
      server.behave = () => (server.calls.length === 1 ? { dripMs: 20 } : {})
      const { key } = await hasty.project()
      assert.equal((await key.post('/embeddings', { input: 'x' })).status, 200)
      assert.deepEqual(
        lines(hasty, 'embedding call').map(({ outcome }) => outcome),
        ['timeout', 'done'],
      )
      await eventually(() => server.calls[0].abandoned)
    })

    it('is hung up on when it sends more than the vectors of a call can be', async () => {
      const app = await start({ EMBEDDING_BATCH_SIZE: '2' })
      const { key } = await app.project()
      const answer = (spaces: number) => `{"data":[{"embedding":[${vectorOf('x', DIMENSIONS)}]}]${' '.repeat(spaces)}}`
      server.behave = () => ({ body: answer(500 * 1024) })
      assert.equal((await key.post('/embeddings', { input: 'x' })).status, 200)
      for (const status of [200, 400]) {
        server.calls.length = 0
        server.behave = () => ({ status, body: answer(64 * 1024 * 1024) })
        assert.equal((await key.post('/embeddings', { input: 'x' })).status, 502)
        assert.equal(server.calls.length, 1)
      }
      assert.match(String(lines(app, 'embedding call').at(-2)?.detail), /more than 524288 bytes/)
    })

    const vector = (first: string) => `{"data":[{"embedding":[${[first, ...vectorOf('x', DIMENSIONS - 1)]}]}]}`
    const unreadable: [string, object | string][] = [
      ['no JSON', '<html>'],
      ['another shape', { vectors: [] }],
      ['too few vectors', { data: [] }],
      ['too many vectors', { data: [1, 2].map(() => ({ embedding: vectorOf('x', DIMENSIONS) })) }],
      ['vectors of text', { data: [{ embedding: ['a'] }] }],
      ['NaN', vector('NaN')],
      ['null in a vector', vector('null')],
      ['a number beyond all others', vector('1e999')],
      ['numbers whose squares are', vector('1e200')],
    ]
    for (const [name, body] of unreadable) {
      it(`fails with 502 when it answers ${name}`, async () => {
        server.behave = () => ({ body })
        const { key } = await app.project()
        const answer = await key.post('/embeddings', { input: 'x' })
        assert.equal(answer.status, 502)
        assert.equal(answer.body.error.code, 'AI_PROVIDER_ERROR')
        assert.equal(server.calls.length, 1)
      })
    }

    it('fails with 502 when its vectors are of another length, which is logged once a minute', async () => {
      server.behave = call => ({ vectors: call.texts.map(text => vectorOf(text, DIMENSIONS + 1)) })
      const { key } = await app.project()
      for (let time = 0; time < 2; time++) {
        const { status, body } = await key.post('/embeddings', { input: 'x' })
        assert.equal(status, 502)
        assert.match(body.error.message, /EMBEDDING_DIMENSIONS/)
      }
      assert.equal(server.calls.length, 2)
      const complaints = lines(app, 'embedding dimensions differ from EMBEDDING_DIMENSIONS')
      assert.equal(complaints.length, 1)
      assert.deepEqual([complaints[0].dimensions, complaints[0].expected], [DIMENSIONS + 1, DIMENSIONS])
    })

    it('receives no further call for a client that has left', async () => {
      server.behave = () => ({ delayMs: 3000 })
      const { key } = await app.project()
      const client = new AbortController()
      const asked = fetch(`${app.url}/api/v1/embeddings`, {
        method: 'POST',
        headers: { authorization: `Bearer ${key.token}`, 'content-type': 'application/json' },
        body: JSON.stringify({ input: 'x' }),
        signal: client.signal,
      })
      await eventually(() => server.calls.length === 1)
      client.abort()
      await assert.rejects(asked)
      await eventually(() => server.calls[0].abandoned)
      await eventually(() => lines(app, '/embeddings').some(line => line.status === 400))
      assert.equal(lines(app, 'request failed').length, 0)
      assert.equal(lines(app, 'embedding call')[0].outcome, 'abandoned')
    })

    it('gives no vectors of another length to documents, which wait for better ones', async () => {
      server.behave = call => ({ vectors: call.texts.map(text => vectorOf(text, DIMENSIONS - 1)) })
      const { key } = await app.project()
      const { status, body } = await key.post('/documents', { content: 'text' })
      assert.deepEqual([status, body.chunk_count], [201, 1], JSON.stringify(body))
      const stored = sql.unsafe`
        select (select count(*)::int from knowledge_vectors where container_id = d.id) as vectors,
          d.embed_since is not null as waits
        from documents d where d.id = ${body.id}`
      assert.deepEqual({ ...((await app.pool.one(stored)) as object) }, { vectors: 0, waits: true })
    })

    it('fails the whole request when it fails one of its texts', async () => {
      server.behave = call => (call.texts.includes('bad') ? { status: 400 } : {})
      const { key } = await app.project()
      assert.equal((await key.post('/embeddings', { inputs: ['a', 'b', 'bad'] })).status, 502)
    })
  })

  describe('and its calls', () => {
    it('hold at most EMBEDDING_BATCH_SIZE texts, EMBEDDING_CONCURRENCY at a time', async () => {
      const app = await start({ EMBEDDING_BATCH_SIZE: '4', EMBEDDING_CONCURRENCY: '3' })
      server.behave = () => ({ delayMs: 50 })
      const { key } = await app.project()
      const inputs = Array.from({ length: 18 }, (_, index) => `text ${index}`)
      const { body } = await key.post('/embeddings', { inputs })
      assert.deepEqual(server.calls.map(call => call.texts.length).sort(), [2, 4, 4, 4, 4])
      assert.equal(server.busiest, 3)
      for (const [index, text] of inputs.entries())
        assert.ok(Math.abs(body.embeddings[index][0] - vectorOf(text, DIMENSIONS)[0]) < 1e-6)
    })

    it('hold at most 200,000 characters', async () => {
      const app = await start()
      const { key } = await app.project()
      await key.post('/embeddings', { inputs: Array.from({ length: 13 }, () => 'x'.repeat(32_000)) })
      // Of each the tokens that models take.
      assert.deepEqual(server.calls.map(call => call.texts.length).sort(), [1, 12])
    })

    it('are shared by callers at the same time, and metered to each by its share', async () => {
      const app = await start()
      const one = await app.project()
      const two = await app.project(undefined, one.id)
      server.behave = () => ({ tokens: 101 })
      const embed = embedderOf(app.services).embed
      await Promise.all([
        embed(['aaaaaa'], options({ project_id: one.id, purpose: { kind: 'document', ref: 'doc_a' }, admitted: true })),
        embed(
          ['bbb', 'ccc'],
          options({ project_id: two.id, purpose: { kind: 'memory', ref: 'mem_b' }, admitted: true }),
        ),
        embed(['dddddd'], options()),
      ])
      assert.equal(server.calls.length, 1)
      const [first] = await usageOnce(app, one.id, 1)
      const [second] = await usageOnce(app, two.id, 1)
      assert.deepEqual([first.components[0].quantity, second.components[0].quantity], [34, 33])
      assert.match(first.idempotency_key, /^embed:document:doc_a:.+/)
      assert.match(second.idempotency_key, /^embed:memory:mem_b:.+/)
      const { meter_type, provider, model, source, tokens } = first
      assert.deepEqual(
        { meter_type, provider, model, source, tokens },
        { meter_type: 'llm_tokens', provider: 'openai', model: 'text-model', source: 'embedding', tokens: 34 },
      )
    })

    it('are metered once each, by a quarter of the characters where no tokens are reported', async () => {
      const app = await start({ EMBEDDING_BATCH_SIZE: '1' })
      server.behave = () => ({ tokens: null })
      const { id, key } = await app.project()
      await key.post('/embeddings', { inputs: ['12345', '123456789'] })
      const events = await usageOnce(app, id, 2)
      assert.deepEqual(events.map(({ components }) => components[0].quantity).sort(), [2, 3])
      for (const { idempotency_key } of events) assert.match(idempotency_key, /^embed:api:[\w-]+:[\w-]+$/)
    })

    for (const tokens of [-5, 1.5, 1e300])
      it(`are metered by their characters where ${tokens} tokens are reported`, async () => {
        const app = await start()
        server.behave = () => ({ tokens })
        const { id, key } = await app.project()
        assert.equal((await key.post('/embeddings', { input: '123456789' })).status, 200)
        const events = await usageOnce(app, id, 1)
        assert.deepEqual(
          events.map(({ components }) => components[0].quantity),
          [3],
        )
      })

    it('are metered under the document or the search that they are for', async () => {
      const app = await start()
      const { id, key } = await app.project()
      const document = (await key.post('/documents', { content: 'alpha' })).body.id
      const searched = await key.post('/knowledge/search', { query: 'beta' })
      assert.equal(searched.status, 200)
      assert.deepEqual(
        (await usageOnce(app, id, 2)).map(({ idempotency_key }) => idempotency_key.replace(/:[^:]+$/, '')),
        [`embed:document:${document}`, `embed:search:${searched.headers.get('x-request-id')}`],
      )
    })

    it('are not metered when they cost nothing', async () => {
      const app = await start({ EMBEDDING_PROVIDER: 'local', EMBEDDING_MODEL: '' })
      const { id, key } = await app.project()
      assert.equal((await key.post('/embeddings', { input: 'x' })).status, 200)
      assert.equal((await key.post('/documents', { content: 'x' })).status, 201)
      assert.deepEqual(await usageSettled(app, id), [])
    })

    it('are not metered when they fail, nor without a project', async () => {
      const app = await start()
      await app.admin.post('/embeddings', { input: 'x' })
      server.behave = () => ({ status: 400 })
      const { id, key } = await app.project()
      await key.post('/embeddings', { input: 'x' })
      assert.equal(server.calls.length, 2)
      assert.deepEqual(await usageSettled(app, id), [])
    })

    it('that are refused are halved until the bad text is alone', async () => {
      const app = await start()
      server.behave = call => (call.texts.includes('bad') ? { status: 400 } : {})
      const vectors = await embedderOf(app.services).embed(['a', 'b', 'c', 'd', 'e', 'bad', 'g', 'h'], options())
      assert.deepEqual(
        vectors.map(vector => vector !== null),
        [true, true, true, true, true, false, true, true],
      )
      assert.deepEqual(
        server.calls.map(call => call.texts.length),
        [8, 4, 4, 2, 1, 1, 2],
      )
    })

    it('are tried once in each half, however often they were tried whole', async () => {
      const app = await start()
      server.behave = () => ({ status: 500 })
      await assert.rejects(embedderOf(app.services).embed(['a', 'b'], options()))
      assert.deepEqual(
        server.calls.map(call => call.texts),
        [['a', 'b'], ['a', 'b'], ['a', 'b'], ['a'], ['b']],
      )
    })

    it('hold no text without a waiting caller', async () => {
      const app = await start({ EMBEDDING_CONCURRENCY: '1', EMBEDDING_BATCH_SIZE: '1' })
      let release = () => {}
      const held = new Promise<void>(resolve => (release = resolve))
      server.behave = () => ({ held })
      const { embed } = embedderOf(app.services)
      const first = embed(['first'], options())
      await eventually(() => server.calls.length === 1)
      const left = new AbortController()
      const gone = assert.rejects(embed(['gone'], options({ signal: left.signal })))
      const last = embed(['last'], options())
      await new Promise(resolve => setTimeout(resolve, 20))
      left.abort()
      await gone
      release()
      await Promise.all([first, last])
      assert.deepEqual(
        server.calls.map(call => call.texts),
        [['first'], ['last']],
      )
    })

    it("that fail for one caller's text are repeated for each text, so that no other caller loses vectors", async () => {
      const app = await start()
      server.behave = call => (call.texts.includes('bad') ? { status: 500 } : {})
      const { embed } = embedderOf(app.services)
      const [mine, theirs] = await Promise.allSettled([
        embed(['bad'], options({ retries: 0 })),
        embed(['a', 'b'], options({ retries: 0 })),
      ])
      assert.equal(mine.status, 'rejected')
      assert.equal(theirs.status, 'fulfilled')
      assert.ok(theirs.status === 'fulfilled' && theirs.value.every(vector => vector !== null))
      assert.deepEqual(
        server.calls.map(call => call.texts),
        [['bad', 'a', 'b'], ['bad'], ['a', 'b']],
      )
    })

    it('are not divided when the provider is away', async () => {
      const app = await start()
      server.behave = () => ({ status: 401 })
      await assert.rejects(embedderOf(app.services).embed(['a', 'b'], options()))
      assert.equal(server.calls.length, 1)
    })

    it('serve questions before everything else, and alone', async () => {
      const app = await start({ EMBEDDING_CONCURRENCY: '1', EMBEDDING_BATCH_SIZE: '2' })
      let release = () => {}
      const held = new Promise<void>(resolve => (release = resolve))
      server.behave = () => ({ held })
      const { embed, embedQuery } = embedderOf(app.services)
      const late = embed(['z'], options({ background: true }))
      const written = embed(['a', 'b', 'c', 'd'], options())
      await eventually(() => server.calls.length === 1)
      const asked = embedQuery('?', options({ purpose: { kind: 'search', ref: 'req_1' } }))
      release()
      await Promise.all([asked, written, late])
      assert.deepEqual(
        server.calls.map(call => call.texts),
        [['a', 'b'], ['?'], ['c', 'd'], ['z']],
      )
    })

    it('are not made for a question that was embedded recently', async () => {
      const app = await start()
      const { embedQuery } = embedderOf(app.services)
      const asked = options({ purpose: { kind: 'search', ref: 'req_1' } })
      const once = await embedQuery('why', asked)
      assert.deepEqual(await embedQuery('why', asked), once)
      await embedQuery('why not', asked)
      assert.equal(server.calls.length, 2)
    })

    it('of a question are tried twice', async () => {
      const app = await start()
      server.behave = () => ({ status: 500 })
      const asked = options({ purpose: { kind: 'search', ref: 'req_1' } })
      await assert.rejects(embedderOf(app.services).embedQuery('why', asked), { code: 'AI_PROVIDER_ERROR' })
      assert.equal(server.calls.length, 2)
    })
  })

  describe('and a caller that does not wait', () => {
    it('receives the vectors that were completed in time', async () => {
      const app = await start({ EMBEDDING_BATCH_SIZE: '1', EMBEDDING_CONCURRENCY: '4' })
      server.behave = call => ({ delayMs: call.texts[0] === 'slow' ? 20_000 : 0 })
      const vectors = await embedderOf(app.services).embed(['a', 'slow', 'b'], options({ timeoutMs: 2000 }))
      assert.deepEqual(
        vectors.map(vector => vector !== null),
        [true, false, true],
      )
      await eventually(() => server.calls.find(call => call.texts[0] === 'slow')?.abandoned)
    })

    it('gets AI_PROVIDER_ERROR when nothing was', async () => {
      const app = await start()
      server.behave = () => ({ delayMs: 20_000 })
      await assert.rejects(embedderOf(app.services).embed(['a'], options({ timeoutMs: 200 })), {
        code: 'AI_PROVIDER_ERROR',
      })
      await eventually(() => server.calls[0].abandoned)
      await assert.rejects(embedderOf(app.services).embed(['a'], options({ timeoutMs: 0 })))
      assert.equal(server.calls.length, 1)
    })

    it('receives the reason of the abort, and its call is dropped', async () => {
      const app = await start()
      server.behave = () => ({ delayMs: 3000 })
      const abort = new AbortController()
      const asked = embedderOf(app.services).embed(['a'], options({ signal: abort.signal }))
      await eventually(() => server.calls.length === 1)
      abort.abort(new Error('enough'))
      await assert.rejects(asked, /enough/)
      await eventually(() => server.calls[0].abandoned)
      await assert.rejects(embedderOf(app.services).embed(['a'], options({ signal: abort.signal })), /enough/)
      assert.equal(server.calls.length, 1)
    })

    it('receives that reason also when it leaves before the call for its first text started', async () => {
      const app = await start()
      const left = new AbortController()
      const embedding = embedderOf(app.services).embed(['x'], options({ signal: left.signal }))
      left.abort(new Error('gone already'))
      await assert.rejects(embedding, /gone already/)
      assert.equal(server.calls.length, 0)
    })

    it('does not end the call of another that shares it', async () => {
      const app = await start()
      server.behave = () => ({ delayMs: 400 })
      const { embed } = embedderOf(app.services)
      const [left, stayed] = await Promise.allSettled([
        embed(['a'], options({ timeoutMs: 100 })),
        embed(['b'], options()),
      ])
      assert.equal(left.status, 'rejected')
      assert.equal(stayed.status, 'fulfilled')
      assert.equal(server.calls.length, 1)
    })
  })

  it('may be Ollama, without a key', async () => {
    const app = await start({ EMBEDDING_PROVIDER: 'ollama', OLLAMA_BASE_URL: `${server.url}/`, EMBEDDING_BASE_URL: '' })
    const { status } = await (await app.project()).key.post('/embeddings', { input: 'x' })
    assert.equal(status, 200)
    assert.equal(server.calls[0].path, '/v1/embeddings')
    assert.equal(server.calls[0].headers.authorization, undefined)
  })

  describe('of Bedrock', () => {
    const environment = [
      'AWS_ENDPOINT_URL_BEDROCK_RUNTIME',
      'AWS_EC2_METADATA_DISABLED',
      'AWS_ACCESS_KEY_ID',
      'AWS_SECRET_ACCESS_KEY',
    ]
    const earlier: Record<string, string | undefined> = {}
    before(() => {
      for (const name of environment) {
        earlier[name] = process.env[name]
        delete process.env[name]
      }
      process.env.AWS_ENDPOINT_URL_BEDROCK_RUNTIME = server.url
      process.env.AWS_EC2_METADATA_DISABLED = 'true'
    })
    after(() => {
      for (const name of environment) {
        if (earlier[name] === undefined) delete process.env[name]
        else process.env[name] = earlier[name]
      }
    })
    const bedrock = { EMBEDDING_PROVIDER: 'bedrock', EMBEDDING_MODEL: 'amazon.titan-embed-text-v1' }

    it('gets one text a call, with the key as bearer', async () => {
      const app = await start(bedrock)
      const { status, body } = await (await app.project()).key.post('/embeddings', { inputs: ['a', 'b'] })
      assert.equal(status, 200)
      assert.equal(body.embeddings.length, 2)
      assert.deepEqual(server.calls.map(call => call.body.inputText).sort(), ['a', 'b'])
      assert.equal(server.calls[0].path, '/model/amazon.titan-embed-text-v1/invoke')
      assert.equal(server.calls[0].headers.authorization, `Bearer ${KEY}`)
    })

    it('receives the length where its model takes it, and for Cohere whether a text is a question', async () => {
      const asked = async (model: string, dimensions: number) => {
        const app = await start({ ...bedrock, EMBEDDING_MODEL: model, EMBEDDING_DIMENSIONS: String(dimensions) })
        server.calls.length = 0
        const { key } = await app.project()
        await key.post('/embeddings', { input: 'a' })
        await key.post('/knowledge/search', { query: 'b' })
        return server.calls.map(({ body }) => body)
      }
      const titan = (dimensions: number) => asked('amazon.titan-embed-text-v2:0', dimensions)
      assert.deepEqual((await titan(256))[0], { inputText: 'a', dimensions: 256 })
      assert.deepEqual((await titan(32))[0], { inputText: 'a' })
      const [nova] = await asked('amazon.nova-2-multimodal-embeddings-v1:0', 384)
      assert.equal(nova.singleEmbeddingParams.embeddingDimension, 384)
      const cohere = (dimensions: number) => asked('cohere.embed-v4:0', dimensions)
      assert.deepEqual(await cohere(512), [
        { input_type: 'search_document', texts: ['a'], output_dimension: 512 },
        { input_type: 'search_query', texts: ['b'], output_dimension: 512 },
      ])
      assert.equal('output_dimension' in (await cohere(64))[0], false)
      assert.equal('output_dimension' in (await asked('cohere.embed-english-v3', 1024))[0], false)
    })

    it('gets requests signed with the keys of the deployment where there is no other', async () => {
      process.env.AWS_ACCESS_KEY_ID = 'AKIATEST'
      process.env.AWS_SECRET_ACCESS_KEY = 'secret'
      const app = await start({ ...bedrock, EMBEDDING_API_KEY: '', EMBEDDING_REGION: 'eu-central-1' })
      assert.equal((await (await app.project()).key.post('/embeddings', { input: 'a' })).status, 200)
      assert.match(
        String(server.calls[0].headers.authorization),
        /^AWS4-HMAC-SHA256 Credential=AKIATEST\/\d+\/eu-central-1\/bedrock\//,
      )
      delete process.env.AWS_ACCESS_KEY_ID
      delete process.env.AWS_SECRET_ACCESS_KEY
    })

    it('is not called without any key', async () => {
      const app = await start({ ...bedrock, EMBEDDING_API_KEY: '' })
      const { status } = await (await app.project()).key.post('/embeddings', { input: 'a' })
      assert.equal(status, 502)
      assert.equal(server.calls.length, 0)
      assert.equal(lines(app, 'embedding call')[0].outcome, 'denied')
    })
  })
})
