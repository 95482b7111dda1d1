import assert from 'node:assert/strict'
import { loadConfig } from '#config.ts'
import { localVector } from '#content/index/embeddings/local.ts'
import { startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { forSuite } from '../support/suite.ts'

const norm = (vector: number[]) => Math.hypot(...vector)
const dot = (a: ArrayLike<number>, b: ArrayLike<number>) => {
  let sum = 0
  for (let index = 0; index < a.length; index++) sum += a[index] * b[index]
  return sum
}

/** A vector of the built-in embedder times a million, worked out from its rule by another program. */
const KNOWN = [
  0, 121599, 0, 0, 0, 0, 0, -205885, 0, 0, 205885, 0, 72959, 582009, 0, 0, 607996, -121599, 0, 0, 243198, -121599, 0,
  170239, 0, 0, 0, -158912, -121599, 0, -170239, 0,
]

describe('embeddings without a provider', () => {
  const app = forSuite(startApp)

  it('answer 503 EMBEDDING_NOT_CONFIGURED', async () => {
    const { key } = await app.project()
    const { status, body } = await key.post('/embeddings', { input: 'x' })
    assert.equal(status, 503)
    assert.equal(body.error.code, 'EMBEDDING_NOT_CONFIGURED')
  })

  it('say in their configuration that there is none', async () => {
    const { key } = await app.project()
    const { status, body } = await key.get('/embeddings/config')
    assert.equal(status, 200)
    assert.deepEqual(body, {
      configured: false,
      provider: null,
      model: null,
      dimensions: null,
      reindex: { pending: 0, pending_words: 0 },
    })
  })

  it('take 32 to 4096 dimensions and known providers, and stop the process at others', () => {
    const load = (env: Record<string, string>) => loadConfig({ ...testEnvironment(app.databaseUrl), ...env })
    for (const EMBEDDING_DIMENSIONS of ['31', '4097', '64.5', 'many'])
      assert.throws(() => load({ EMBEDDING_DIMENSIONS }), /EMBEDDING_DIMENSIONS/)
    for (const EMBEDDING_DIMENSIONS of ['32', '4096'])
      assert.equal(load({ EMBEDDING_DIMENSIONS }).EMBEDDING_DIMENSIONS, Number(EMBEDDING_DIMENSIONS))
    assert.equal(load({}).EMBEDDING_DIMENSIONS, 1024)
    assert.throws(() => load({ EMBEDDING_PROVIDER: 'other' }), /EMBEDDING_PROVIDER/)
  })

  it('count a provider without a model as none', async () => {
    const other = await startApp({ env: { EMBEDDING_PROVIDER: 'openai' } })
    try {
      const { key } = await other.project()
      assert.equal((await key.post('/embeddings', { input: 'x' })).status, 503)
      assert.equal((await key.get('/embeddings/config')).body.configured, false)
    } finally {
      await other.close()
    }
  })
})

describe('embeddings with the built-in embedder', () => {
  const app = forSuite(() => startApp({ env: { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '256' } }))

  it('are as long as configured and of length 1', async () => {
    const { key } = await app.project()
    const { status, body } = await key.post('/embeddings', { input: 'x' })
    assert.equal(status, 200)
    assert.deepEqual(Object.keys(body), ['embedding', 'model', 'dimensions'])
    assert.equal(body.embedding.length, 256)
    assert.equal(body.dimensions, 256)
    assert.equal(body.model, 'local-hash-v1')
    assert.ok(Math.abs(norm(body.embedding) - 1) < 1e-3)
  })

  it('come for input, for inputs in their order, and for both', async () => {
    const { key } = await app.project()
    const both = await key.post('/embeddings', { input: 'a b', inputs: ['c d', 'a b'] })
    assert.equal(both.body.embeddings.length, 2)
    assert.deepEqual(both.body.embeddings[1], both.body.embedding)
    assert.notDeepEqual(both.body.embeddings[0], both.body.embedding)
    const many = await key.post('/embeddings', { inputs: ['c d', 'a b'] })
    assert.deepEqual(many.body.embeddings, both.body.embeddings)
    assert.equal('embedding' in many.body, false)
  })

  it('are the same every time', async () => {
    const { key } = await app.project()
    const once = await key.post('/embeddings', { input: 'The same text' })
    const again = await key.post('/embeddings', { input: 'The same text' })
    assert.deepEqual(once.body.embedding, again.body.embedding)
  })

  it('of a text without letters and digits are zeros', async () => {
    const { key } = await app.project()
    const { status, body } = await key.post('/embeddings', { input: '…!' })
    assert.equal(status, 200)
    assert.equal(norm(body.embedding), 0)
  })

  const wrong: [string, unknown][] = [
    ['nothing', {}],
    ['a number', { input: 1 }],
    ['a null', { input: null }],
    ['a list as input', { input: ['x'] }],
    ['a text as inputs', { inputs: 'x' }],
    ['no inputs', { inputs: [] }],
    ['an empty text', { input: '' }],
    ['an empty text among others', { inputs: ['x', ''] }],
    ['a number among texts', { inputs: ['x', 1] }],
    ['257 texts', { inputs: Array.from({ length: 257 }, () => 'x') }],
    ['300 texts', { inputs: Array.from({ length: 300 }, () => 'x') }],
    ['a text of 32001 characters', { input: 'x'.repeat(32_001) }],
    ['a long text among others', { inputs: ['x', 'x'.repeat(32_001)] }],
    ['an unknown key', { input: 'x', model: 'y' }],
    ['a project that is no text', { input: 'x', project_id: 7 }],
    ['a NUL character', { input: 'a\0b' }],
    ['half a surrogate pair', { input: 'a\ud800' }],
  ]
  for (const [name, body] of wrong) {
    it(`are refused for ${name}`, async () => {
      const { key } = await app.project()
      const answer = await key.post('/embeddings', body)
      assert.equal(answer.status, 400)
      assert.equal(answer.body.error.code, 'VALIDATION_FAILED')
    })
  }

  it('take 256 texts, and one of 32000 characters', async () => {
    const { key } = await app.project()
    const many = await key.post('/embeddings', { inputs: Array.from({ length: 256 }, (_, index) => `text ${index}`) })
    assert.equal(many.body.embeddings.length, 256)
    const long = await key.post('/embeddings', { input: 'word '.repeat(6400) })
    assert.equal(long.status, 200)
  })

  it('require the permission in the project of the request', async () => {
    const one = await app.project()
    const other = await app.project()
    const allow = (resource: string) => ({
      statement: [{ effect: 'Allow', action: ['embeddings:CreateEmbeddings'], resource: [resource] }],
    })
    const user = await app.user(undefined, [allow(`srn:${one.id}:embedding:*`)])
    assert.equal((await user.post('/embeddings', { input: 'x', project_id: one.id })).status, 200)
    assert.equal((await user.post('/embeddings', { input: 'x' })).status, 200)
    assert.equal((await user.post('/embeddings', { input: 'x', project_id: other.id })).status, 403)
    const nobody = await app.user(undefined, [])
    assert.equal((await nobody.post('/embeddings', { input: 'x' })).status, 403)
    assert.equal((await nobody.get('/embeddings/config')).status, 403)
    assert.equal((await user.get('/embeddings/config')).status, 200)
    assert.equal((await app.anonymous.post('/embeddings', { input: 'x' })).status, 401)
  })

  it('keep a key to its project', async () => {
    const one = await app.project()
    const other = await app.project()
    const answer = await one.key.post('/embeddings', { input: 'x', project_id: other.id })
    assert.equal(answer.status, 403)
    assert.equal(answer.body.error.code, 'API_KEY_PROJECT_SCOPE')
    const missing = await app.admin.post('/embeddings', { input: 'x', project_id: 'proj_01hzzzzzzzzzzzzzzzzzzzzzzz' })
    assert.equal(missing.status, 404)
  })
})

describe('the built-in embedder', () => {
  it('makes no difference between widths and cases', () => {
    assert.deepEqual(localVector('Ｆｉｌｅ ① GRÖSSE', 64), localVector('file 1 grösse', 64))
  })

  it('puts texts that share words nearer than others', () => {
    const question = localVector('how to reset a password', 1024)
    const near = localVector('Reset your password in the settings', 1024)
    const far = localVector('Quarterly revenue rose in Europe', 1024)
    assert.ok(dot(question, near) > 0.3)
    assert.ok(dot(question, near) > 3 * dot(question, far))
  })

  it('gives the same vectors on every host', () => {
    const vector = localVector('Grüße, 世界! The the b2b', 32)
    assert.deepEqual(
      Array.from(vector, value => Math.round(value * 1e6)),
      KNOWN,
    )
  })
})
