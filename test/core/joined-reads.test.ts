import assert from 'node:assert/strict'
import { joinedReads } from '../../src/core/db/joined-reads.ts'

describe('joined reads', () => {
  it('follow the read that is under way with one for everybody who asked meanwhile', async () => {
    const joined = joinedReads<number>()
    const gates: (() => void)[] = []
    let stored = 1
    const read = async () => {
      const value = stored
      await new Promise<void>(resolve => gates.push(resolve))
      return value
    }
    const first = joined('a', read)
    stored = 2
    const later = [joined('a', read), joined('a', read), joined('a', read)]
    const other = joined('b', read)
    assert.equal(gates.length, 2)
    for (const open of gates.splice(0)) open()
    assert.deepEqual([await first, await other], [1, 2])
    assert.equal(gates.length, 1)
    stored = 3
    gates[0]()
    assert.deepEqual(await Promise.all(later), [2, 2, 2])
  })

  it('fail together, and not those who ask after them', async () => {
    const joined = joinedReads<number>()
    const fails = () => Promise.reject(new Error('gone'))
    await assert.rejects(joined('a', fails), /gone/)
    const [first, second] = await Promise.allSettled([joined('a', fails), joined('a', async () => 4)])
    assert.deepEqual([first.status, second.status], ['rejected', 'fulfilled'])
    assert.equal(await joined('a', async () => 5), 5)
  })
})
