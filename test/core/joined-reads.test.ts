import assert from 'node:assert/strict'
import { setImmediate } from 'node:timers/promises'
import { coalescedReads } from '#core/db/coalesced-reads.ts'
import { abandonmentNow, withTenant } from '#core/db/tenant-context.ts'

describe('joined reads', () => {
  it('follow the running read with one for all callers that called meanwhile', async () => {
    const joined = coalescedReads<number>()
    const gates: (() => void)[] = []
    let stored = 1
    const read = async () => {
      const value = stored
      await new Promise<void>(resolve => gates.push(resolve))
      return value
    }
    const first = joined('a', read)
    await setImmediate()
    stored = 2
    const later = [joined('a', read), joined('a', read), joined('a', read)]
    const other = joined('b', read)
    await setImmediate()
    assert.equal(gates.length, 2)
    for (const open of gates.splice(0)) open()
    assert.deepEqual([await first, await other], [1, 2])
    assert.equal(gates.length, 1)
    stored = 3
    gates[0]()
    assert.deepEqual(await Promise.all(later), [2, 2, 2])
  })

  it('are shared by all callers in a turn of the event loop', async () => {
    const joined = coalescedReads<number>()
    let reads = 0
    const read = async () => ++reads
    assert.deepEqual(await Promise.all([joined('a', read), joined('a', read), joined('b', read)]), [1, 1, 2])
    assert.equal(await joined('a', read), 3)
  })

  it('are not abandoned with the first caller', async () => {
    const joined = coalescedReads<boolean>()
    const read = async () => abandonmentNow() !== undefined
    const tenancy = { tenant: 'a', patienceMs: 1, isAbandoned: () => true }
    assert.equal(await withTenant(tenancy, () => joined('a', read)), false)
  })

  it('fail together, without affecting later callers', async () => {
    const joined = coalescedReads<number>()
    const fails = () => Promise.reject(new Error('gone'))
    await assert.rejects(joined('a', fails), /gone/)
    const failing = joined('a', fails)
    await setImmediate()
    const [first, second] = await Promise.allSettled([failing, joined('a', async () => 4)])
    assert.deepEqual([first.status, second.status], ['rejected', 'fulfilled'])
    assert.equal(await joined('a', async () => 5), 5)
  })
})
