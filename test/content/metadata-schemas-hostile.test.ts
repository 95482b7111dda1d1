import assert from 'node:assert/strict'
import { type Client, client, eventually, type Reply, startApp } from '../support/app.ts'
import { longestTurnAtBest } from '../support/event-loop.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

/** A schema of 25 KB that takes about 300 ms of a processor to compile; each number makes another. */
const costly = (number: number) => ({
  patternProperties: Object.fromEntries(
    Array.from({ length: 800 }, (_, index) => [`^a${index}x${number}.*b$`, { type: 'string' }]),
  ),
})

/** A schema by which any value takes the 50 ms that there are. */
function endless(): object {
  const $defs: Record<string, object> = { d40: { type: 'string' } }
  for (let index = 0; index < 40; index++) {
    const next = { $ref: `#/$defs/d${index + 1}` }
    $defs[`d${index}`] = { allOf: [next, next] }
  }
  return { $ref: '#/$defs/d0', $defs }
}

describe('schemas of a hostile project', function () {
  this.timeout(120_000)
  const app = forSuite(startApp)
  let hostile: { id: string; key: Client }
  let quiet: { id: string; key: Client }
  beforeEach(async () => {
    hostile = await app.project()
    quiet = await app.project()
  })

  const declare = (key: Client, path_prefix: string, schema: object) =>
    key.post('/metadata-schemas', { resource_type: 'document', path_prefix, schema })
  const write = (key: Client, path: string, metadata: object = {}) =>
    key.post('/documents', { content: 'x', path, metadata })

  it('hold the event loop neither when they are compiled nor when they check a value', async () => {
    const provider = await hostile.key.post('/ai-providers', {
      name: 'p',
      provider: 'openai',
      default_model: 'm',
      config: { api_key: 'sk-test' },
    })
    const work = async (number: number) => {
      assert.equal((await declare(hostile.key, `/a${number}`, costly(number))).status, 201)
      assert.equal((await write(hostile.key, `/a${number}/x`)).status, 201)
      const agent = { ai_provider_id: provider.body.id, output_schema: costly(100 + number) }
      const made = await hostile.key.post('/agents', agent)
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.equal((await declare(hostile.key, `/b${number}`, { ...endless(), title: String(number) })).status, 201)
      assert.equal((await write(hostile.key, `/b${number}/x`)).status, 400)
      const checked = await hostile.key.post('/metadata-schemas/validate', { path: `/b${number}`, metadata: {} })
      assert.equal(checked.body.valid, false)
    }
    await work(0)
    const turn = await longestTurnAtBest(time => work(time + 1), 40)
    assert.ok(turn < 40, `${turn} ms`)
  })

  it('leave connections to others while they wait, which read and write meanwhile', async () => {
    assert.equal((await declare(hostile.key, '/', endless())).status, 201)
    const web = await startProcess('web', app.databaseUrl, { DATABASE_POOL_MAX: '5' })
    try {
      const [theirs, ours] = [hostile.key, quiet.key].map(({ token }) => client(web.url, token))
      await write(ours, '/warm')
      const refused: Reply[] = []
      const flood = Promise.allSettled(
        Array.from({ length: 40 }, async (_, index) => refused.push(await write(theirs, `/x${index}`, { index }))),
      )
      for (let index = 0; index < 5; index++) {
        assert.equal((await write(ours, `/y${index}`)).status, 201)
        assert.equal((await ours.get('/documents')).status, 200)
      }
      assert.ok(refused.length < 30, `${refused.length} of 40 of the other project's were answered first`)
      const first = await eventually(() => refused[0])
      assert.match(first.body.error.message, /takes longer than 50 ms to check/)
      await web.kill()
      await flood
    } finally {
      await web.kill()
    }
  })

  it('are checked in a process that has never loaded them, for fifty concurrent writes', async () => {
    await declare(quiet.key, '/', { type: 'object', required: ['index'], properties: { index: { multipleOf: 2 } } })
    const web = await startProcess('web', app.databaseUrl)
    try {
      const key = client(web.url, quiet.key.token)
      const replies = await Promise.all(Array.from({ length: 50 }, (_, index) => write(key, `/x${index}`, { index })))
      assert.deepEqual(
        replies.map(({ status }) => status),
        replies.map((_, index) => (index % 2 ? 400 : 201)),
      )
      assert.equal((await key.get('/documents')).body.total, 25)
    } finally {
      await web.kill()
    }
  })
})
