import { LRUCache } from 'lru-cache'
import { raise } from '#core/base/errors.ts'

/** Parsed cron expression. */
type Cron = {
  minutes: readonly number[]
  hours: readonly number[]
  days: ReadonlySet<number>
  months: ReadonlySet<number>
  weekdays: ReadonlySet<number>
  /** Whether day of month and day of week are both restricted: a day then matches by either. */
  eitherDay: boolean
  /** Whether the hours are `*` or a step of it: local times in a clock shift are then skipped or repeated. */
  followsClock: boolean
}

type Field = { name: string; from: number; to: number; names?: readonly string[] }

const MONTHS = ['JAN', 'FEB', 'MAR', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP', 'OCT', 'NOV', 'DEC']
const WEEKDAYS = ['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT']

const FIELDS: readonly Field[] = [
  { name: 'minute', from: 0, to: 59 },
  { name: 'hour', from: 0, to: 23 },
  { name: 'day of the month', from: 1, to: 31 },
  { name: 'month', from: 1, to: 12, names: MONTHS },
  { name: 'day of the week', from: 0, to: 7, names: WEEKDAYS },
]

const DAYS_IN_MONTH = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]

const refuse = (message: string): never => raise('INVALID_CRON_EXPRESSION', { message, meta: { field: 'cron' } })

const refuseText = (text: string, { name }: Field): never => refuse(`${JSON.stringify(text)} is not a valid ${name}`)

function parseValue(text: string, field: Field): number {
  const { from, to, names = [] } = field
  const index = names.indexOf(text.toUpperCase())
  const value = index >= 0 ? index + from : /^\d{1,2}$/.test(text) ? Number(text) : Number.NaN
  return value >= from && value <= to ? value : refuseText(text, field)
}

/** A value, or `*` or a range with an optional step. */
const LIST_ITEM = /^(?:([^*/-]+)|(?:\*|([^*/-]+)-([^*/-]+))(?:\/(.*))?)$/

function parseListItem(text: string, field: Field): number[] {
  const { name, from, to } = field
  const [, value, start, end, stepText = '1'] = LIST_ITEM.exec(text) ?? refuseText(text, field)
  if (value) return [parseValue(value, field)]
  const step = /^\d{1,2}$/.test(stepText) ? Number(stepText) : 0
  if (step < 1 || step > to) refuse(`The step of the ${name} must be from 1 to ${to}`)
  const first = start ? parseValue(start, field) : from
  const last = end ? parseValue(end, field) : to
  if (first > last) refuseText(text, field)
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, index) => first + index * step)
}

const isStar = (text: string): boolean => text.startsWith('*')

/**
 * Parses a cron expression of five fields. Seconds, `@daily`, `L` and `W`, which libraries accept, are not part of the
 * API.
 * @throws INVALID_CRON_EXPRESSION if it is malformed or never occurs
 */
export function parseCron(text: string): Cron {
  const parts = text.trim().split(/[ \t]+/)
  if (parts.length !== FIELDS.length) refuse('A cron expression must have five fields')
  const [minutes, hours, days, months, weekdays] = FIELDS.map((field, index) => {
    const values = new Set(parts[index].split(',').flatMap(item => parseListItem(item, field)))
    return [...values].sort((a, b) => a - b)
  })
  const eitherDay = !isStar(parts[2]) && !isStar(parts[4])
  // Every month contains each day of the week, but not each day of the month.
  if (!eitherDay && !months.some(month => days[0] <= DAYS_IN_MONTH[month - 1]))
    refuse('The cron expression never occurs: none of its months has the day')
  return {
    minutes,
    hours,
    days: new Set(days),
    months: new Set(months),
    weekdays: new Set(weekdays.map(day => day % 7)),
    eitherDay,
    followsClock: isStar(parts[1]),
  }
}

const formats = new LRUCache<string, Intl.DateTimeFormat>({
  max: 1000,
  // Swedish times are ISO 8601 with a space.
  memoMethod: zone => new Intl.DateTimeFormat('sv-SE', { dateStyle: 'short', timeStyle: 'short', timeZone: zone }),
})

/** Whether a name is an IANA time zone. */
export function isTimezone(name: string): boolean {
  try {
    // Intl also accepts offsets, which are not zones.
    return !/^[+-]/.test(name) && formats.memo(name) !== undefined
  } catch {
    return false
  }
}

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

/** More than the largest offset of any zone, 14 hours. */
const MAX_OFFSET = 15 * HOUR

/** Returns the local time of a zone, encoded as a UTC timestamp, minus the instant, which is in whole minutes. */
function offsetAt(instant: number, zone: string): number {
  if (zone === 'UTC') return 0
  return Date.parse(`${formats.memo(zone).format(instant).replace(' ', 'T')}Z`) - instant
}

/** Returns the first minute after `start`, at most `end`, at which the offset is not the offset at `start`. */
function findShift(start: number, end: number, zone: string): number {
  const offset = offsetAt(start, zone)
  let [before, after] = [start, end]
  while (after - before > MINUTE) {
    const middle = before + Math.floor((after - before) / 2 / MINUTE) * MINUTE
    if (offsetAt(middle, zone) === offset) before = middle
    else after = middle
  }
  return after
}

function* localTimes({ hours, minutes }: Cron, day: number): Generator<number> {
  for (const hour of hours) for (const minute of minutes) yield day + hour * HOUR + minute * MINUTE
}

/** Yields the instants of a local day at which an expression occurs, in order. See `nextOccurrence` for clock shifts. */
function* occurrencesOn(cron: Cron, day: number, zone: string): Generator<number> {
  const [start, end] = [day - MAX_OFFSET, day + DAY + MAX_OFFSET]
  const [before, after] = [offsetAt(start, zone), offsetAt(end, zone)]
  if (before === after) {
    for (const local of localTimes(cron, day)) yield local - before
    return
  }
  const shift = findShift(start, end, zone)
  const instants = new Set<number>()
  for (const local of localTimes(cron, day)) {
    const matches = [local - before, local - after].filter((instant, index) => instant < shift === (index === 0))
    if (cron.followsClock) for (const instant of matches) instants.add(instant)
    else instants.add(matches[0] ?? shift)
  }
  yield* [...instants].sort((a, b) => a - b)
}

function matchesDay({ months, days, weekdays, eitherDay }: Cron, date: Date): boolean {
  if (!months.has(date.getUTCMonth() + 1)) return false
  const day = days.has(date.getUTCDate())
  const weekday = weekdays.has(date.getUTCDay())
  return eitherDay ? day || weekday : day && weekday
}

const crons = new LRUCache<string, Cron>({ max: 5000, memoMethod: parseCron })

/**
 * Returns the next occurrence of a cron expression after an instant. A local time that a clock shift skips occurs once,
 * at the shift; a local time that a shift repeats occurs at its first instance. If the hour is `*` or a step of it,
 * skipped times do not occur and repeated times occur twice. The longest gap is 40 years: a given weekday on 29
 * February.
 */
export function nextOccurrence(text: string, zone: string | null, after: Date): Date {
  const cron = crons.memo(text)
  const from = after.getTime()
  const today = Math.floor((from + offsetAt(Math.floor(from / MINUTE) * MINUTE, zone ?? 'UTC')) / DAY)
  // Occurrences of yesterday follow if a shift repeats the end of the day or skips it.
  for (let day = (today - 1) * DAY; ; day += DAY)
    if (matchesDay(cron, new Date(day)))
      for (const instant of occurrencesOn(cron, day, zone ?? 'UTC')) if (instant > from) return new Date(instant)
}
