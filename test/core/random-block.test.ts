import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { uniqueBytes } from '#core/base/random-block.ts'

const MODULE = new URL('../../src/core/base/random-block.ts', import.meta.url).href
const COUNT = 3000

describe('random bytes of blocks', () => {
  it('are returned once and never change, also where blocks end', () => {
    // 4,096 is no multiple of these.
    const taken = Array.from({ length: COUNT }, (_, index) => uniqueBytes(index % 2 ? 10 : 12))
    const texts = taken.map(bytes => bytes.toString('hex'))
    assert.deepEqual(
      texts.map(text => text.length),
      taken.map((_, index) => (index % 2 ? 20 : 24)),
    )
    const places = new Set(
      taken.flatMap(bytes => [...bytes.keys()].map(n => `${addressOf(bytes)}:${bytes.byteOffset + n}`)),
    )
    assert.equal(places.size, COUNT * 11)
    assert.equal(new Set(texts).size, COUNT)
    for (let index = 0; index < COUNT; index++) uniqueBytes(12)
    assert.deepEqual(
      taken.map(bytes => bytes.toString('hex')),
      texts,
    )
    assert.equal(uniqueBytes(5000).length, 5000)
  })

  it('differ between threads', async () => {
    const program = `import { parentPort } from 'node:worker_threads'
      import { uniqueBytes } from ${JSON.stringify(MODULE)}
      parentPort.postMessage(Array.from({ length: ${COUNT} }, () => uniqueBytes(12).toString('hex')))`
    const url = new URL(`data:text/javascript,${encodeURIComponent(program)}`)
    const threads = [0, 1].map(() => new Worker(url))
    const sets = await Promise.all(threads.map(async thread => (await once(thread, 'message'))[0] as string[]))
    sets.push(Array.from({ length: COUNT }, () => uniqueBytes(12).toString('hex')))
    assert.equal(new Set(sets.flat()).size, COUNT * 3)
    await Promise.all(threads.map(thread => thread.terminate()))
  })
})

const blocks = new Map<ArrayBufferLike, number>()

/** Number of the memory that bytes are part of. */
function addressOf({ buffer }: Buffer): number {
  if (!blocks.has(buffer)) blocks.set(buffer, blocks.size)
  return blocks.get(buffer) as number
}
