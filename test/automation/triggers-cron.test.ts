import assert from 'node:assert/strict'
import { isTimezone, nextOccurrence, parseCron } from '#automation/triggers/cron.ts'
import { loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'
import { random } from '../support/random.ts'

loadModules(modules)

const from = (text: string, at: string, zone = 'UTC', times = 1): string[] => {
  const found: string[] = []
  for (let after = new Date(at); found.length < times; ) {
    after = nextOccurrence(text, zone, after)
    found.push(after.toISOString().slice(0, 16))
  }
  return found
}

describe('cron expressions', () => {
  it('parses five fields of numbers, names, lists, ranges and steps', () => {
    for (const text of [
      '* * * * *',
      '*/15 0-6/2 1,15 JAN-MAR MON-FRI',
      '0 0 * * 7',
      '59 23 31 12 sun',
      '0 0 29 2 *',
      '5 4 31 2 1',
      ' 1  2 3 4 5 ',
    ])
      assert.doesNotThrow(() => parseCron(text), text)
    for (const text of [
      '',
      '* * * *',
      '* * * * * *',
      '@daily',
      '? * * * *',
      '0 0 L * *',
      '0 0 15W * *',
      '0 0 * * 5#3',
      '60 * * * *',
      '* 24 * * *',
      '* * 0 * *',
      '* * 32 * *',
      '* * * 0 *',
      '* * * 13 *',
      '* * * * 8',
      '* * * * FRY',
      '* * * MON *',
      '5-1 * * * *',
      '5/15 * * * *',
      '*/0 * * * *',
      '*/99 * * * *',
      '1,,2 * * * *',
      '1- * * * *',
      '1-2-3 * * * *',
      '-1 * * * *',
      '1.5 * * * *',
      '0x1 * * * *',
      '0 0 31 2 *',
      '0 0 30,31 FEB *',
      '0 0 31 4,6,9,11 *',
    ])
      assert.throws(() => parseCron(text), { code: 'INVALID_CRON_EXPRESSION' }, text)
  })

  it('computes occurrences in UTC', () => {
    const at = '2026-01-30T10:07:30Z'
    assert.deepEqual(from('* * * * *', at, 'UTC', 2), ['2026-01-30T10:08', '2026-01-30T10:09'])
    assert.deepEqual(from('*/15 * * * *', at, 'UTC', 4), [
      '2026-01-30T10:15',
      '2026-01-30T10:30',
      '2026-01-30T10:45',
      '2026-01-30T11:00',
    ])
    assert.deepEqual(from('0 9 31 * *', at, 'UTC', 2), ['2026-01-31T09:00', '2026-03-31T09:00'])
    assert.deepEqual(from('0 0 29 2 *', at, 'UTC', 2), ['2028-02-29T00:00', '2032-02-29T00:00'])
    assert.deepEqual(from('0 0 29 FEB *', '2096-03-01T00:00:00Z'), ['2104-02-29T00:00'])
    // Both 0 and 7 are Sunday.
    assert.deepEqual(from('0 0 * * 7', at), from('0 0 * * SUN', at))
    // If both days are restricted, either matches; a star defers to the restricted field.
    assert.deepEqual(from('0 0 13 * FRI', '2026-02-01T00:00:00Z', 'UTC', 3), [
      '2026-02-06T00:00',
      '2026-02-13T00:00',
      '2026-02-20T00:00',
    ])
    assert.deepEqual(from('0 0 * * MON-FRI', '2026-02-06T12:00:00Z'), ['2026-02-09T00:00'])
    // The given instant is excluded.
    assert.deepEqual(from('0 10 * * *', '2026-01-30T10:00:00Z'), ['2026-01-31T10:00'])
  })

  it('computes occurrences in a time zone', () => {
    assert.deepEqual(from('0 9 * * *', '2026-01-15T00:00:00Z', 'Europe/Berlin'), ['2026-01-15T08:00'])
    assert.deepEqual(from('0 9 * * *', '2026-07-15T00:00:00Z', 'Europe/Berlin'), ['2026-07-15T07:00'])
    assert.deepEqual(from('0 0 * * *', '2026-01-15T00:00:00Z', 'Pacific/Kiritimati'), ['2026-01-15T10:00'])
    assert.deepEqual(from('30 23 * * *', '2026-01-15T00:00:00Z', 'Pacific/Pago_Pago'), ['2026-01-15T10:30'])
    assert.deepEqual(from('0 6 * * MON', '2026-01-15T00:00:00Z', 'Asia/Kathmandu'), ['2026-01-19T00:15'])
    for (const zone of ['Europe/Berlin', 'UTC', 'America/Argentina/Buenos_Aires']) assert.equal(isTimezone(zone), true)
    for (const zone of ['Mars/Phobos', '', '+02:00', 'Europe/Berlin; x']) assert.equal(isTimezone(zone), false)
  })

  it('fires a skipped local time once, at the shift', () => {
    // 29 March 2026, 02:00 in Berlin: clocks go forward to 03:00, at 01:00 UTC.
    const at = '2026-03-28T12:00:00Z'
    assert.deepEqual(from('30 2 * * *', at, 'Europe/Berlin', 2), ['2026-03-29T01:00', '2026-03-30T00:30'])
    assert.deepEqual(from('0,30 2 * * *', at, 'Europe/Berlin', 2), ['2026-03-29T01:00', '2026-03-30T00:00'])
    assert.deepEqual(from('0 2,3 * * *', at, 'Europe/Berlin', 2), ['2026-03-29T01:00', '2026-03-30T00:00'])
    assert.deepEqual(from('30 * * * *', '2026-03-29T00:00:00Z', 'Europe/Berlin', 3), [
      '2026-03-29T00:30',
      '2026-03-29T01:30',
      '2026-03-29T02:30',
    ])
  })

  it('fires a repeated local time once, and hourly expressions at each hour', () => {
    // 25 October 2026, 03:00 in Berlin: clocks go back to 02:00, at 01:00 UTC.
    const at = '2026-10-24T12:00:00Z'
    assert.deepEqual(from('30 2 * * *', at, 'Europe/Berlin', 2), ['2026-10-25T00:30', '2026-10-26T01:30'])
    assert.deepEqual(from('0 3 * * *', at, 'Europe/Berlin', 2), ['2026-10-25T02:00', '2026-10-26T02:00'])
    assert.deepEqual(from('*/30 * * * *', '2026-10-24T23:45:00Z', 'Europe/Berlin', 5), [
      '2026-10-25T00:00',
      '2026-10-25T00:30',
      '2026-10-25T01:00',
      '2026-10-25T01:30',
      '2026-10-25T02:00',
    ])
  })

  describe('near the clock shifts of all zones', () => {
    const MINUTE = 60_000
    const DAY = 1440 * MINUTE

    /** Returns the local time of each minute of a period, encoded as a UTC timestamp. */
    function localTimes(zone: string, from: number, to: number): Map<number, number> {
      const digits = { year: 'numeric', month: 'numeric', day: 'numeric', hour: 'numeric', minute: 'numeric' } as const
      const format = new Intl.DateTimeFormat('en-GB', { ...digits, timeZone: zone })
      const times = new Map<number, number>()
      for (let instant = from; instant < to; instant += MINUTE) {
        const [day, month, year, hour, minute] = format.format(instant).match(/\d+/g)!.map(Number)
        times.set(instant, Date.UTC(year, month - 1, day, hour, minute))
      }
      return times
    }

    /** Returns the days of a year on which the clocks of a zone are shifted, by the offsets around them. */
    function shiftsOf(zone: string, year: number): Map<string, number> {
      const format = new Intl.DateTimeFormat('en-GB', { timeZone: zone, timeZoneName: 'longOffset' })
      const offset = (instant: number) => format.format(instant).split(' ')[1]
      const shifts = new Map<string, number>()
      for (let day = Date.UTC(year, 0, 1); day < Date.UTC(year + 1, 0, 1); day += DAY)
        if (offset(day) !== offset(day + DAY)) shifts.set(`${day} ${offset(day)} ${offset(day + DAY)}`, day)
      return shifts
    }

    /** A field of an expression with the values that it permits. */
    type Field = { text: string; star: boolean; values: Set<number> }

    function randomField(next: (below: number) => number, from: number, to: number): Field {
      const range = (first: number, last: number, step: number) =>
        Array.from({ length: last - first + 1 }, (_, n) => first + n).filter(n => (n - first) % step === 0)
      const form = next(6)
      if (form < 2) return { text: '*', star: true, values: new Set(range(from, to, 1)) }
      const step = 1 + next(Math.min(to, 20))
      if (form === 2) return { text: `*/${step}`, star: true, values: new Set(range(from, to, step)) }
      const first = from + next(to - from + 1)
      if (form === 3) return { text: `${first}`, star: false, values: new Set([first]) }
      const last = first + next(to - first + 1)
      if (form === 4)
        return { text: `${first}-${last}/${step}`, star: false, values: new Set(range(first, last, step)) }
      return { text: `${first},${last}`, star: false, values: new Set([first, last]) }
    }

    /** Returns the first occurrence after an instant by a search over all minutes; undefined if it is not among them. */
    function searchOccurrence(fields: readonly Field[], times: ReadonlyMap<number, number>, after: number) {
      const [minute, hour, day, month, weekday] = fields
      const matches = (local: number): boolean => {
        const date = new Date(local)
        const [inDays, inWeekdays] = [
          day.values.has(date.getUTCDate()),
          weekday.values.has(date.getUTCDay()) || (date.getUTCDay() === 0 && weekday.values.has(7)),
        ]
        return (
          minute.values.has(date.getUTCMinutes()) &&
          hour.values.has(date.getUTCHours()) &&
          month.values.has(date.getUTCMonth() + 1) &&
          (day.star || weekday.star ? inDays && inWeekdays : inDays || inWeekdays)
        )
      }
      const passed = new Set<number>()
      let previous: number | undefined
      for (const [instant, local] of times) {
        const skipped: number[] = []
        for (let gap = (previous ?? local) + MINUTE; gap < local; gap += MINUTE) skipped.push(gap)
        const occurs = hour.star ? matches(local) : (matches(local) && !passed.has(local)) || skipped.some(matches)
        if (occurs && instant > after) return instant
        passed.add(local)
        previous = local
      }
      return undefined
    }

    it('computes the times that a search over all minutes finds', () => {
      let found = 0
      const shifts = new Map<string, { zone: string; shift: number }>()
      for (const [index, zone] of Intl.supportedValuesOf('timeZone').entries())
        for (const [key, shift] of shiftsOf(zone, 2026 + (index % 3))) shifts.set(key, { zone, shift })
      for (const [index, { zone, shift }] of [...shifts.values()].entries()) {
        const next = random(index + 1)
        const end = shift + 3 * DAY
        const times = localTimes(zone, shift - 2 * DAY, end)
        for (let count = 0; count < 20; count++) {
          const fields = [randomField(next, 0, 59), randomField(next, 0, 23), randomField(next, 1, 31)]
          fields.push(
            count % 2
              ? randomField(next, 1, 12)
              : { text: '*', star: true, values: new Set(Array.from({ length: 12 }, (_, n) => n + 1)) },
          )
          fields.push(randomField(next, 0, 7))
          const text = fields.map(field => field.text).join(' ')
          const after = shift - DAY + next(2 * 1440) * MINUTE
          const expected = searchOccurrence(fields, times, after)
          let actual: number
          try {
            actual = nextOccurrence(text, zone, new Date(after)).getTime()
          } catch {
            assert.equal(expected, undefined, `${text} was refused`)
            continue
          }
          const message = `${text} after ${new Date(after).toISOString()} in ${zone}`
          if (expected === undefined) assert.ok(actual >= end, message)
          else assert.equal(new Date(actual).toISOString(), new Date(expected).toISOString(), message)
          found += Number(expected !== undefined)
        }
      }
      assert.ok(found > 500, `${found} occurrences`)
    })
  })
})
