import assert from 'node:assert/strict'
import { FairSemaphore } from '#core/base/fair-semaphore.ts'

describe('shares of something that a process has', () => {
  /** Takes parts one after the other, each held until `release` is called, and notes who got one. */
  const using = (shares: FairSemaphore) => {
    const order: string[] = []
    const held: { project: string; giveBack: () => void }[] = []
    const take = async (project: string, amount = 1, signal?: AbortSignal) => {
      const giveBack = await shares.acquire(project, amount, signal)
      order.push(project)
      held.push({ project, giveBack })
    }
    const release = async (project: string) => {
      const at = held.findIndex(each => each.project === project)
      held.splice(at, 1)[0].giveBack()
      await settled()
    }
    return { order, take, release }
  }
  const settled = () => new Promise(resolve => setImmediate(resolve))

  it('are given out up to what there is', async () => {
    const { order, take, release } = using(new FairSemaphore(10))
    void take('a', 6)
    void take('b', 4)
    void take('c', 1)
    await settled()
    assert.deepEqual(order, ['a', 'b'])
    await release('b')
    assert.deepEqual(order, ['a', 'b', 'c'])
  })

  it('go to the project that holds least, and around where all hold the same', async () => {
    const { order, take, release } = using(new FairSemaphore(2))
    for (const project of ['a', 'a', 'a', 'a', 'b', 'c']) void take(project)
    await settled()
    assert.deepEqual(order, ['a', 'a'])
    await release('a')
    await release('a')
    assert.deepEqual(order, ['a', 'a', 'b', 'c'])
    const single = using(new FairSemaphore(1))
    for (const project of ['a', 'a', 'a', 'b', 'b']) void single.take(project)
    await settled()
    for (const project of ['a', 'b', 'a', 'b']) await single.release(project)
    assert.deepEqual(single.order, ['a', 'b', 'a', 'b', 'a'])
  })

  it('are reserved for a caller that needs many: smaller requests do not overtake endlessly', async () => {
    const { order, take, release } = using(new FairSemaphore(4))
    void take('a', 2)
    void take('b', 2)
    await settled()
    void take('large', 4)
    void take('c', 1)
    await settled()
    await release('a')
    assert.deepEqual(order, ['a', 'b'])
    await release('b')
    assert.deepEqual(order, ['a', 'b', 'large'])
  })

  it('are not waited for by callers that left, nor returned twice', async () => {
    const shares = new FairSemaphore(2)
    const { order, take, release } = using(shares)
    const leaving = new AbortController()
    const reason = new Error('gone')
    void take('a', 2)
    const left = take('large', 2, leaving.signal)
    void take('b', 1)
    await settled()
    leaving.abort(reason)
    await assert.rejects(left, reason)
    await assert.rejects(take('large', 1, leaving.signal), reason)
    await release('a')
    assert.deepEqual(order, ['a', 'b'])
    const giveBack = await shares.acquire('c', 1)
    giveBack()
    giveBack()
    await assert.rejects(
      shares.use('e', 1, undefined, () => Promise.reject(reason)),
      reason,
    )
    void take('d', 2)
    await settled()
    assert.deepEqual(order, ['a', 'b'])
    await release('b')
    assert.deepEqual(order, ['a', 'b', 'd'])
  })

  it('refuse the last of the project of which most wait, where too many wait', async () => {
    const full = new Error('full')
    const { order, take, release } = using(new FairSemaphore(1, { most: 3, full: () => full }))
    void take('a')
    void take('a')
    void take('a')
    const last = take('a')
    const quiet = take('b')
    await assert.rejects(last, full)
    const another = take('c')
    void another.catch(() => {})
    await release('a')
    await quiet
    assert.deepEqual(order, ['a', 'b'])
    for (const project of ['b', 'c', 'a']) await release(project)
    assert.deepEqual(order, ['a', 'b', 'c', 'a'])
  })

  it('refuse who comes where no project has more that wait', async () => {
    const full = new Error('full')
    const { take } = using(new FairSemaphore(1, { most: 2, full: () => full }))
    for (const project of ['a', 'b', 'c']) void take(project)
    await assert.rejects(take('d'), full)
  })
})
