import assert from 'node:assert/strict'
import { isTimezone, nextFiringTime, parseCron } from '../../src/automation/triggers/cron.ts'
import { loadModules } from '../../src/core/api/module.ts'
import { modules } from '../../src/modules.ts'

loadModules(modules)

const from = (text: string, at: string, zone?: string, times = 1): string[] => {
  const cron = parseCron(text)
  const found: string[] = []
  for (let after = new Date(at); found.length < times; ) {
    after = nextFiringTime(cron, after, zone)
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
})
