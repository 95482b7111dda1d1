import assert from 'node:assert/strict'
import type { Reply } from '../support/app.ts'
import { startEmbeddingServer } from '../support/embedding-server.ts'
import { forSuite } from '../support/suite.ts'
import { forgetUsage, insertUsage, tokenUse } from '../support/usage.ts'
import { startAgentApp } from './fixtures.ts'
import { call, json, made, startTarget } from './tool-target.ts'

describe('quotas of tokens and money that are spent', () => {
  const embeddings = forSuite(() => startEmbeddingServer(32))
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({
      workers: ['generation', 'ingestion'],
      env: {
        EGRESS_ALLOW_HOSTS: '127.0.0.1',
        EMBEDDING_PROVIDER: 'openai',
        EMBEDDING_MODEL: 'tiny',
        EMBEDDING_DIMENSIONS: '32',
        EMBEDDING_BASE_URL: `${embeddings.url}/v1`,
        EMBEDDING_API_KEY: 'sk-test',
      },
    }),
  )
  let quotas: string[] = []
  afterEach(async () => {
    for (const id of quotas) await app.admin.delete(`/quotas/${id}`)
    quotas = []
    await forgetUsage(app, app.projectId)
  })

  const quota = async (fields: object) => {
    const shared = { project_id: app.projectId, scope: 'project', window: 'calendar_month' }
    const reply = await app.admin.post('/quotas', { ...shared, ...fields })
    assert.equal(reply.status, 201, JSON.stringify(reply.body))
    quotas.push(reply.body.id)
  }
  /** A project that has used up its budget of a metric. */
  const spent = async (metric: 'tokens' | 'cost_usd', more: object = {}) => {
    await quota({ metric, limit: 1, ...more })
    await insertUsage(app, app.projectId, [tokenUse({ cost: 5, generation_id: 'gen_before' })])
  }
  const refused = async (reply: Promise<Reply> | Reply, code = 'QUOTA_EXCEEDED') => {
    const { status, body, headers } = await reply
    assert.deepEqual([status, body?.error?.code], [code === 'QUOTA_EXCEEDED' ? 429 : 409, code], JSON.stringify(body))
    if (code === 'QUOTA_EXCEEDED') assert.ok(Number(headers.get('retry-after')) > 0)
  }
  const passes = async (reply: Promise<Reply>, status = 200) => {
    const { status: given, body } = await reply
    assert.equal(given, status, JSON.stringify(body))
    return body
  }
  const check = () => app.key.post(`/ai-providers/${app.providerId}/check`)
  const embed = (text: string) => app.key.post('/embeddings', { input: text, project_id: app.projectId })
  const search = (query: string) => app.key.post('/knowledge/search', { query, project_id: app.projectId })
  const document = (content: string) => app.key.post('/documents', { content })

  it('refuse the try of a provider, which calls no vendor', async () => {
    await spent('tokens')
    await refused(check())
    await refused(app.key.post(`/ai-providers/${app.providerId}/check`, { matrix: true }))
    // The usage of before is all there is.
    assert.equal((await passes(app.key.get('/usage/events'))).total, 1)
    await app.admin.patch(`/quotas/${quotas[0]}`, { mode: 'monitor' })
    assert.equal((await passes(check())).ok, true)
  })

  it('refuse it where the cost of models cannot be measured', async () => {
    await quota({ metric: 'cost_usd', limit: 100 })
    await insertUsage(
      app,
      app.projectId,
      [1, 2, 3].map(n => tokenUse({ cost: null, generation_id: `gen_${n}` })),
    )
    await refused(check(), 'QUOTA_UNENFORCEABLE')
    // Embeddings have a separate price.
    await passes(embed('a text'))
  })

  for (const metric of ['tokens', 'cost_usd'] as const)
    it(`refuse what embeds texts, by ${metric}, and nothing is written`, async () => {
      const store = (await passes(app.key.post('/memory-stores', { name: `store ${metric}` }), 201)).id
      const fact = (content: string) => app.key.post('/memory-entries', { memory_store_id: store, content })
      const memory = (await passes(fact('Ada likes tea'), 201)).memory_id
      const known = await passes(document(`a document of before, ${metric}`), 201)
      const form = new FormData()
      form.set('file', new Blob(['Some text to find.'], { type: 'text/plain' }), `${metric}.txt`)
      const upload = await fetch(`${app.url}/api/v1/files/upload`, {
        method: 'POST',
        headers: { authorization: `Bearer ${app.key.token}` },
        body: form,
      })
      const file_id = ((await upload.json()) as { id: string }).id
      await passes(search('asked before'))
      await spent(metric)
      const calls = embeddings.calls.length
      const total = async (path: string) => (await app.key.get(path)).body.total
      const before = await total('/documents?limit=1')
      await refused(embed('a text'))
      await refused(search(`never asked ${metric}`))
      await refused(document('another document'))
      await refused(app.key.patch(`/documents/${known.id}`, { content: 'another text' }))
      await refused(app.key.post('/documents/ingest', { file_id }))
      await refused(fact('Ada likes coffee'))
      await refused(app.key.patch(`/memories/${memory}`, { content: 'Ada likes water' }))
      assert.equal(embeddings.calls.length, calls)
      assert.equal(await total('/documents?limit=1'), before)
      assert.equal((await app.key.get(`/documents/${known.id}`)).body.version, 1)
      // Work without a provider continues.
      await passes(search('asked before'))
      await passes(app.key.patch(`/documents/${known.id}`, { title: 'A title' }))
      await passes(fact('Ada likes tea'))
      await app.admin.patch(`/quotas/${quotas[0]}`, { limit: 1_000_000 })
      const ingested = await passes(app.key.post('/documents/ingest?wait=true', { file_id }), 201)
      assert.equal(ingested.status, 'ready')
    })

  it('refuse direct calls of tools by the cost of everything, and by no other', async () => {
    target.answer = json({ ok: true })
    const tool = await made(app.key, { execute: { url: target.url } })
    await spent('tokens')
    await passes(call(app.key, tool.id))
    await quota({ metric: 'cost_usd', limit: 1, meter_type: 'llm_tokens' })
    await passes(call(app.key, tool.id))
    const requests = target.requests.length
    await quota({ metric: 'cost_usd', limit: 1 })
    await refused(call(app.key, tool.id))
    assert.equal(target.requests.length, requests)
  })
})
