import assert from 'node:assert/strict'
import { exactTail, logTail, mcnemarTest, wilsonInterval } from '#evaluation/eval-runs/statistics.ts'

describe('figures of evals', () => {
  const near = (value: number, expected: number, digits = 1e-9) =>
    assert.ok(Math.abs(value - expected) <= digits * Math.max(1e-300, Math.abs(expected)), `${value} for ${expected}`)

  it('have the interval of Wilson', () => {
    // Newcombe (1998), table I, method 3.
    for (const [passed, total, low, high] of [
      [81, 263, 0.2553, 0.3662],
      [15, 148, 0.0624, 0.1605],
      [0, 20, 0, 0.1611],
      [1, 29, 0.0061, 0.1718],
    ]) {
      const found = wilsonInterval(passed, total)
      assert.deepEqual([found?.low.toFixed(4), found?.high.toFixed(4)], [low.toFixed(4), high.toFixed(4)])
    }
    assert.equal(wilsonInterval(0, 0), null)
    assert.equal(wilsonInterval(20, 20)?.high, 1)
  })

  it('have the exact test of McNemar', () => {
    assert.equal(mcnemarTest(0, 0), 1)
    assert.equal(mcnemarTest(4, 4), 1)
    near(mcnemarTest(9, 6), 0.60723876953125)
    near(mcnemarTest(1, 0), 1)
    near(mcnemarTest(10, 0), 2 / 1024)
    near(mcnemarTest(0, 10), 2 / 1024)
    near(mcnemarTest(25, 8), 0.004551384132355452)
    for (const [n, k] of [
      [100, 30],
      [1000, 450],
      [2000, 990],
      [5000, 2300],
      [5000, 2499],
    ])
      near(logTail(n, k), exactTail(n, k))
    assert.ok(mcnemarTest(400_000, 399_000) > 0.2 && mcnemarTest(400_000, 399_000) < 0.3)
    assert.ok(mcnemarTest(1_000_000, 0) >= 0)
  })
})
