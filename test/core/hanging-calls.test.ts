import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { beginHostCall, type HostCall, withSlotHolder } from '../../src/core/net/hanging-calls.ts'
import { eventually } from '../support/app.ts'

describe('calls to a host that does not answer', () => {
  it('start one for each that ends, also when two end at once', async () => {
    const holder = { project: 'hanging calls', most: 2, release: () => () => {} }
    const begun: HostCall[] = []
    const begin = () =>
      withSlotHolder(holder, async () => {
        begun.push((await beginHostCall('silent.test')) as HostCall)
      })
    await Promise.all([begin(), begin()])
    // Until they hang, further calls start.
    await sleep(2500)
    const waiting = Promise.all(Array.from({ length: 5 }, begin))
    await sleep(10)
    assert.equal(begun.length, 2)
    for (const call of begun.slice()) call.end()
    await sleep(10)
    assert.equal(begun.length, 4)
    await eventually(() => {
      for (const call of begun) call.end()
      return begun.length === 7
    })
    await waiting
  })
})
