import assert from 'node:assert/strict'
import { QUOTA_WINDOWS, retryAfter, windowOf } from '#control/quotas/windows.ts'
import { random } from '../support/random.ts'

const SECOND = 1000
const DAY = 86_400 * SECOND

/** Fixed lengths; a month has none. */
const LENGTHS = { rolling_1m: 60 * SECOND, rolling_1h: 3600 * SECOND, rolling_24h: DAY }

/** Random instants of 2000 to 2120, half of them within two seconds of a midnight at the start of a month. */
function* instants(): Generator<Date> {
  const next = random(1)
  for (let count = 0; count < 5000; count++) {
    const month = Date.UTC(2000, next(1440), 1)
    yield new Date(
      count % 2 ? month + next(31 * 86_400) * SECOND + next(SECOND) : month - 2 * SECOND + next(4 * SECOND),
    )
  }
  yield* ['2024-02-29T23:59:59.999Z', '2100-02-28T23:59:59.999Z', '2025-12-31T23:59:59.999Z'].map(at => new Date(at))
}

describe('windows of quotas', () => {
  for (const name of QUOTA_WINDOWS) {
    const resets = name !== 'current'

    it(`${name} contains its instant`, () => {
      for (const now of instants()) {
        const { start, resets_at } = windowOf(name, now)
        assert.ok(new Date(start) <= now, now.toISOString())
        assert.equal(resets_at !== null, resets)
        assert.ok(resets_at === null || now < new Date(resets_at), now.toISOString())
      }
    })

    it(`${name} is the same for all of its instants, under a key that no other has`, () => {
      const next = random(2)
      const starts = new Map<string, string>()
      for (const now of instants()) {
        const window = windowOf(name, now)
        const start = Date.parse(window.start)
        const end = window.resets_at ? Date.parse(window.resets_at) : start + DAY
        for (const at of [start, end - 1, start + next(end - start)])
          assert.deepEqual(windowOf(name, new Date(at)), window, now.toISOString())
        assert.equal(starts.get(window.key) ?? window.start, window.start)
        starts.set(window.key, window.start)
      }
    })

    it(`${name} follows another without a gap, with a later key`, () => {
      for (const now of instants()) {
        const { key, start, resets_at } = windowOf(name, now)
        const end = resets_at ?? new Date(Date.parse(start) + DAY).toISOString()
        const following = windowOf(name, new Date(end))
        assert.equal(following.start, end)
        assert.ok(following.key > key, `${following.key} after ${key}`)
        const { resets_at: before } = windowOf(name, new Date(Date.parse(start) - 1))
        assert.equal(before, resets ? start : null)
      }
    })
  }

  it('have their length, and a month the days of its calendar', () => {
    for (const now of instants()) {
      for (const [name, length] of Object.entries(LENGTHS)) {
        const { start, resets_at } = windowOf(name as keyof typeof LENGTHS, now)
        assert.equal(Date.parse(resets_at!) - Date.parse(start), length)
        assert.equal(Date.parse(start) % length, 0)
      }
      const { start, resets_at } = windowOf('calendar_month', now)
      assert.match(`${start} ${resets_at}`, /^\d{4}-\d\d-01T00:00:00.000Z \d{4}-\d\d-01T00:00:00.000Z$/)
      const days = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1, 0)).getUTCDate()
      assert.equal(Date.parse(resets_at!) - Date.parse(start), days * DAY)
    }
  })

  it('are over after Retry-After, which is at least a second and at most one too long', () => {
    for (const now of instants())
      for (const name of QUOTA_WINDOWS) {
        const { resets_at } = windowOf(name, now)
        if (resets_at === null) continue
        const seconds = retryAfter(resets_at, now)
        const later = now.getTime() + seconds * SECOND
        assert.ok(seconds >= 1 && later >= Date.parse(resets_at) && later - SECOND < Date.parse(resets_at))
        assert.equal(retryAfter(resets_at, new Date(later)), 1)
      }
  })
})
