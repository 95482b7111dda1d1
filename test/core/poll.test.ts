import assert from 'node:assert/strict'
import { pollUntil } from '#core/base/poll.ts'

describe('a poll', () => {
  const pollsOf = (results: readonly (string | null)[]) => {
    let count = 0
    const poll = async () => results[Math.min(count++, results.length - 1)]
    return { poll, count: () => count }
  }

  it('is repeated until it returns a result, also a false one', async () => {
    const { poll, count } = pollsOf([null, null, 'found'])
    assert.equal(await pollUntil(poll, { withinMs: 60_000, pauseMs: 1 }), 'found')
    assert.equal(count(), 3)
    assert.equal(await pollUntil(async () => false, { withinMs: 60_000, pauseMs: 1 }), false)
  })

  it('is made once without time, and returns null', async () => {
    const { poll, count } = pollsOf([null])
    assert.equal(await pollUntil(poll, { withinMs: 0, pauseMs: 1000 }), null)
    assert.equal(count(), 1)
  })

  it('is made last at the end of the time, before a pause would end', async () => {
    const { poll, count } = pollsOf([null])
    assert.equal(await pollUntil(poll, { withinMs: 5, pauseMs: 60_000 }), null)
    assert.ok(count() >= 2, `${count()} polls`)
  })

  it('is made less often with pauses that double', async () => {
    const pauses: number[] = []
    let last = performance.now()
    await pollUntil(
      async () => {
        pauses.push(performance.now() - last)
        last = performance.now()
        return pauses.length === 5 ? true : null
      },
      { withinMs: 60_000, pauseMs: 4, doubles: true },
    )
    assert.ok(pauses[4] >= 30, `${pauses}`)
  })

  it('rejects with the error of the poll', async () => {
    await assert.rejects(
      pollUntil(() => Promise.reject(new Error('lost')), { withinMs: 60_000, pauseMs: 1 }),
      /lost/,
    )
  })
})
