import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { startDouble } from '#local/double/server.ts'
import { forSuite } from '../../support/suite.ts'
import { client, until } from './client.ts'

describe('model double: embeddings', () => {
  const double = forSuite(() => startDouble({ dims: 64 }))
  const api = forSuite(() => client(double))

  const ask = (body: Record<string, unknown>, lane = 'vectors') =>
    api.send('POST', '/v1/embeddings', { model: 'double-embed', ...body }, { 'x-double-lane': lane })
  const vectors = async (input: unknown, more: Record<string, unknown> = {}, lane?: string): Promise<number[][]> => {
    const { data } = (await (await ask({ input, ...more }, lane)).json()) as any
    return data.map((each: any) => each.embedding)
  }
  const length = (vector: number[]) => Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0))

  it('the answer keeps the order of the inputs', async () => {
    const answer = (await (await ask({ input: ['abcd efgh', 'x'] })).json()) as any
    assert.equal(answer.object, 'list')
    assert.equal(answer.model, 'double-embed')
    assert.deepEqual(answer.usage, { prompt_tokens: 4, total_tokens: 4 })
    assert.deepEqual(
      answer.data.map((each: any) => [each.object, each.index, each.embedding.length]),
      [
        ['embedding', 0, 64],
        ['embedding', 1, 64],
      ],
    )
    assert.deepEqual(await vectors('x'), [answer.data[1].embedding])
  })

  it('a vector is the normalised sum of hashed words and pairs', async () => {
    const expected = new Array<number>(64).fill(0)
    for (const [feature, weight] of [
      ['red', 2],
      ['fox', 1],
      ['red fox', 0.5],
      ['fox red', 0.5],
    ] as const) {
      const digest = createHash('sha256').update(feature).digest()
      expected[digest.readUInt32BE(0) % 64] += digest[4] % 2 === 1 ? -weight : weight
    }
    const norm = length(expected)
    const [vector] = await vectors('RED, fox — ｒｅｄ!')
    for (const [index, value] of vector.entries()) assert.ok(Math.abs(value - expected[index] / norm) <= 5.1e-8)
    assert.ok(vector.every(value => value === Number(value.toFixed(7))))
  })

  it('a text without words is the first unit vector', async () => {
    const [empty, signs] = await vectors(['', ' ?! '], { dimensions: 8 })
    assert.deepEqual(empty, [1, 0, 0, 0, 0, 0, 0, 0])
    assert.deepEqual(signs, empty)
  })

  it('dimensions are 8 to 4096', async () => {
    for (const dimensions of [8, 4096]) assert.equal((await vectors('x y', { dimensions }))[0].length, dimensions)
    for (const dimensions of [7, 4097, 8.5, '8']) assert.equal((await ask({ input: 'x', dimensions })).status, 400)
  })

  it('base64 is little-endian float32', async () => {
    const [text] = (await vectors('some words here', { encoding_format: 'base64' })) as unknown as string[]
    const bytes = Buffer.from(text, 'base64')
    const [floats] = await vectors('some words here', { encoding_format: 'float' })
    assert.equal(bytes.length, 64 * 4)
    assert.deepEqual(
      floats.map((_, index) => bytes.readFloatLE(index * 4)),
      floats.map(Math.fround),
    )
    assert.equal((await ask({ input: 'x', encoding_format: 'int8' })).status, 400)
  })

  it('token arrays and empty inputs are 400', async () => {
    for (const input of [[1, 2], [[1, 2]], ['a', 1], [], 5, undefined]) assert.equal((await ask({ input })).status, 400)
  })

  it('alias embeds a text as another, pin gives its vector', async () => {
    await api.put('scripted', {
      strict: true,
      embeddings: { alias: { dog: 'hound', cat: 'pinned' }, pin: { pinned: [3, 4], zero: [0] } },
    })
    const [dog, hound, cat, pinned, zero] = await vectors(['dog', 'hound', 'cat', 'pinned', 'zero'], {}, 'scripted')
    assert.deepEqual(dog, hound)
    assert.deepEqual(pinned, [0.6, 0.8, ...new Array(62).fill(0)])
    assert.deepEqual(cat, pinned)
    assert.equal(zero[0], 1)
  })

  it('a scripted error hits the first `times` requests', async () => {
    await api.put('error', { embeddings: { error: { status: 429, retry_after: 2 }, times: 2 } })
    const statuses: number[] = []
    for (let turn = 0; turn < 3; turn += 1) statuses.push((await ask({ input: 'x' }, 'error')).status)
    assert.deepEqual(statuses, [429, 429, 200])
    await api.put('error', { embeddings: { error: { status: 500 } } })
    for (let turn = 0; turn < 3; turn += 1) assert.equal((await ask({ input: 'x' }, 'error')).status, 500)
  })

  it('a gate and a delay hold embeddings', async () => {
    await api.put('held', { embeddings: { gate: 'embed-gate', delay_ms: 20 } })
    const held = ask({ input: 'x' }, 'held')
    await until(async () => (await api.gate('embed-gate'))?.waiting === 1)
    const start = performance.now()
    await api.read('POST', '/control/gates/embed-gate/open')
    assert.equal((await held).status, 200)
    assert.ok(performance.now() - start >= 19)
  })

  it('chat and embeddings requests are counted separately', async () => {
    await api.put('apart', {})
    await ask({ input: 'x' }, 'apart')
    assert.equal((await api.answer('apart')).id, 'chatcmpl-apart-1')
    assert.equal((await api.read('GET', '/control/lanes/apart')).calls, 2)
  })
})
